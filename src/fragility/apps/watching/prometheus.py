"""The last days and the alarms in Prometheus' text format, for the textfile collector of its node exporter."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import TypeAlias

from fragility.apps.watching.events import OF_FIELDS
from fragility.apps.watching.findings import WatchFindings
from fragility.base.text import replace_controls

Labels: TypeAlias = dict[str, str]


def render_prometheus(found: WatchFindings) -> str:
    """Return all metrics."""
    return "".join(_write_metric(*metric) for metric in list_metrics(found))


def list_metrics(found: WatchFindings) -> list[tuple[str, str, list[tuple[Labels, float]]]]:
    """Return name, help and samples of each metric."""
    named = {**dict.fromkeys(OF_FIELDS, "field"), "decision": "class"}
    recent: dict[str, list[tuple[Labels, float]]] = {}
    for each in found.watched:
        labels = {} if each.name is None else {named[each.measure]: each.name}
        recent.setdefault(each.measure, []).append((labels, each.recent.value))
    help_of = {
        "missing": ("missing_ratio", "Share of recent decisions without the field."),
        "stale": ("stale_ratio", "Share of recent decisions on a stale value of the field."),
        "out_of_range": ("out_of_range_ratio", "Share of recent decisions on a value outside the training range."),
        "repeated": ("repeated_ratio", "Share of recent decisions that hold the value of the one before."),
        "flips_early": ("flips_early_ratio", "Share of recent confident decisions that flip within two groups."),
        "decision": ("decision_ratio", "Share of recent decisions for the class."),
        "exposure": ("exposure_mean", "Mean exposure of recent decisions."),
        "lost": ("lost_ratio", "Mean failure probability of recent decisions at the declared rates."),
    }
    metrics: list[tuple[str, str, list[tuple[Labels, float]]]] = [
        ("alarms_open", "Alarms whose values are not back yet.", [({}, float(len(found.open_alarms)))]),
        (
            "alarm",
            "1 for each open alarm, with the day on which it was raised.",
            [
                (
                    {"measure": a.measure, "name": a.name or "", "direction": a.direction, "raised": a.day.isoformat()},
                    1.0,
                )
                for a in found.open_alarms
            ],
        ),
        (
            "alarm_affected_decisions",
            "Decisions that each open alarm concerns.",
            [
                ({"measure": a.measure, "name": a.name or "", "direction": a.direction}, float(a.affected))
                for a in found.open_alarms
            ],
        ),
        ("decisions", "Decisions read.", [({}, float(sum(found.decisions)))]),
        *((name, told, samples) for measure, samples in recent.items() for name, told in [help_of[measure]]),
    ]
    if found.loss is not None:
        lost = "Decisions expected to be lost per day at the recent rates."
        metrics.append(("expected_lost_per_day", lost, [({}, found.loss.per_day)]))
        groups = [({"group": each.group}, each.lost_per_day) for each in found.loss.groups]
        metrics.append(("expected_lost_per_day_by_group", "The same, because of one evidence group.", groups))
    midnight = dt.datetime.combine(found.days[-1], dt.time(), dt.UTC).timestamp()
    metrics.append(("last_day_timestamp_seconds", "The last day with decisions.", [({}, midnight)]))
    return metrics


def _write_metric(name: str, told: str, samples: Sequence[tuple[Labels, float]]) -> str:
    full = f"fragility_watch_{name}"
    lines = [f"# HELP {full} {told}", f"# TYPE {full} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escape_label(text)}"' for key, text in labels.items())
        lines.append(f"{full}{f'{{{inside}}}' if inside else ''} {'NaN' if math.isnan(value) else repr(float(value))}")
    return "\n".join(lines) + "\n"


def escape_label(text: str) -> str:
    """Return a label value as Prometheus' text format quotes it; control characters become U+FFFD."""
    plain = replace_controls(text.replace("\r", "\ufffd"))
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
