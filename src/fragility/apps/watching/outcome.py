"""WatchResult: what happened over time, and the alarms; its page, and the text that Prometheus reads.

The text is for the textfile collector of Prometheus' node exporter.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from fragility.apps.watching.events import OF_FIELDS, STATES
from fragility.apps.watching.findings import (
    NOT_CONFIDENT,
    Alarm,
    ExpectedLoss,
    Watched,
    draw_bars,
    draw_over_time,
    write_number,
    write_rate,
    write_value,
)
from fragility.base.text import replace_controls, shorten
from fragility.pages.results import TOP, Result, without_nan
from fragility.pages.sections import Facts, Figure, Notice, Numbers, PageBlock, Section, Table, Text, render_text
from fragility.pages.wording import join_names, write_count, write_percent

SHOWN_GROUPS = 6
MOST_PICTURES = 24  # of fields; the table has them all
NAMES = {
    "missing": "missing",
    "stale": "stale",
    "out_of_range": "outside the training range",
    "repeated": "repeats the value before",
}
MetricLabels: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True, repr=False)
class WatchResult(Result):
    """What happened over time. It is true unless an alarm is open.

    Attributes
    ----------
    alarms : tuple of Alarm
        In the order in which they were raised.
    days : tuple of datetime.date
        The days with decisions.
    decisions : tuple of int
        Decisions of each day.
    without : tuple of int
        Decisions of each day with a missing or stale field.
    changed : tuple of float
        The sum of ``p_change`` over them: decisions that would probably differ with these fields present.
    watched : tuple of Watched
        Every measure, day by day.
    loss : ExpectedLoss or None
        Decisions expected to be lost; None for audits, and if no importance is known.
    models : tuple of str
        The models that decided, by kind and fingerprint.
    source : str
        What was watched.
    settings : dict
        ``alpha``, ``horizon``, ``reference_days``, ``window``, ``allowance`` and ``min_confidence``.
    notes : tuple of str
        What else a reader has to know.

    See Also
    --------
    watch : Makes one.
    """

    alarms: tuple[Alarm, ...]
    days: tuple[dt.date, ...]
    decisions: tuple[int, ...]
    without: tuple[int, ...]
    changed: tuple[float, ...]
    watched: tuple[Watched, ...]
    loss: ExpectedLoss | None
    models: tuple[str, ...]
    source: str
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    _title: ClassVar[str] = "Decisions over time"
    _generator: ClassVar[str] = "fragility watch"
    SUFFIXES: ClassVar[tuple[str, ...]] = (".html", ".md", ".json", ".prom", ".txt")

    def __bool__(self) -> bool:
        return not self.open_alarms

    @property
    def open_alarms(self) -> tuple[Alarm, ...]:
        """The alarms whose values are not back yet."""
        return tuple(alarm for alarm in self.alarms if alarm.is_open)

    @property
    def is_watching(self) -> bool:
        """Whether there are decisions after the reference, so that alarms can be raised."""
        return self.settings["reference"] is not None

    @property
    def days_of_reference(self) -> int:
        """How many of the days belong to the reference; none if they were moved away."""
        reference = self.settings["reference"]
        if reference is None:
            return min(int(self.settings["reference_days"]), len(self.days))
        return sum(day <= reference["last"] for day in self.days)

    @property
    def unit(self) -> str:
        """What figures are of: ``day``, or ``audit`` for dated audits, which do not record the states of fields."""
        return "day" if any(one.measure == "missing" for one in self.watched) else "audit"

    @property
    def last_days(self) -> str:
        """The days or audits that current figures are of, in words."""
        window = min(int(self.settings["window"]), len(self.days))
        return f"the last {self.unit}" if window == 1 else f"the last {window} {self.unit}s"

    @property
    def rates(self) -> dict[str, float]:
        """Share of recent decisions made without each evidence group, as :func:`assess_reliability` takes it."""
        return {} if self.loss is None else {group.group: group.rate for group in self.loss.groups}

    def headline(self) -> str:
        """Return how many alarms are open, of how many decisions.

        Returns
        -------
        str
            One line.
        """
        total = write_count(sum(self.decisions), "decision")
        span = f"{total} from {self.days[0]} to {self.days[-1]}"
        if not self.is_watching:
            needed, had = self.settings["reference_days"], len(self.days)
            if had < needed:
                return (
                    f"{span}: the reference is not complete ({self.unit} {had} of {needed}), no alarm can be raised yet"
                )
            return f"{span}: the reference is complete, alarms can be raised from the next {self.unit} on"
        open_now = len(self.open_alarms)
        return f"{span}: {write_count(open_now, 'open alarm') if open_now else 'no open alarm'}"

    def recent_lines(self) -> list[str]:
        """Return what is known of the last days.

        Returns
        -------
        list of str
            Exposure, share that flips early, fields that are missing or stale, decisions expected to be lost.
        """
        by_measure = {one.measure: one.recent for one in self.watched if one.name is None}
        early, exposure = by_measure["flips_early"], by_measure["exposure"]
        flips = f"{write_percent(early.value)} of confident decisions flip early" if early.decisions else NOT_CONFIDENT
        lines = [f"over {self.last_days}: mean exposure {write_number(exposure.value)}, {flips}"]
        for measure in STATES:
            rates = [one for one in self.watched if one.measure == measure and one.recent.value > 0]
            rates.sort(key=lambda one: -one.recent.value)
            if rates:
                listed = [f"{one.name} {write_rate(one.recent.value)}" for one in rates]
                lines.append(f"{measure.replace('_', ' ')}: {join_names(listed, 5)}")
        if self.loss is not None:
            lines.append(
                f"expected to be lost at these rates: {write_number(self.loss.per_day)} decisions per day "
                f"({write_rate(self.loss.share)})"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        document = asdict(self)
        document["alarms"] = [
            {**asdict(alarm), "sentence": alarm.sentence(), "open": alarm.is_open} for alarm in self.alarms
        ]
        plain: dict[str, Any] = without_nan(_plain(document))
        return plain

    def sections(self, top: int = TOP) -> list[Section]:
        sections = [Section("now", "Now", list(_tell_now(self)))]
        if self.alarms:
            sections.append(Section("alarms", "All alarms", [_list_alarms(self.alarms)]))
        if self.loss is not None:
            sections.append(Section("lost", "Decisions expected to be lost", list(_tell_losses(self))))
        sections.append(Section("certificates", "Decisions and their certificates", list(_tell_certificates(self))))
        fields = [one for one in self.watched if one.measure in OF_FIELDS]
        if fields:
            sections.append(Section("fields", "Fields", list(_tell_fields(self, fields))))
        sections.append(Section("days", f"{self.unit.capitalize()} by {self.unit}", [_list_days(self)]))
        sections.append(Section("how", "How alarms are raised", [_explain(self)]))
        return sections

    def to_text(self, top: int = TOP, *, replay: bool = False) -> str:
        """Return the open alarms, then what is known of the last days; the page has the rest.

        Parameters
        ----------
        top : int, default=10
            Not used.
        replay : bool, default=False
            List every alarm that was ever raised, with the decision at which it would have been.

        Returns
        -------
        str
            What ``fragility watch`` prints.
        """
        return render_text(self.sections()[: 2 if replay and self.alarms else 1])

    def to_prometheus(self) -> str:
        """Return the last days and the alarms in Prometheus' text format, for a textfile collector.

        Returns
        -------
        str
            The metrics; field and class names are label values.
        """
        return "".join(_write_metric(*metric) for metric in _list_metrics(self))

    def _forms(self) -> Mapping[str, Callable[[], str]]:
        return {**super(WatchResult, self)._forms(), ".prom": self.to_prometheus}

    def _byline(self) -> str:
        return f"{self.source}, {self.days[0]} to {self.days[-1]}; model: {'; '.join(self.models)}"

    def _headline(self) -> str:
        return self.headline()


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


# --- sections -----------------------------------------------------------------------------------------------


def _tell_now(result: WatchResult) -> Sequence[PageBlock]:
    blocks: list[PageBlock] = [Text([f"{result.headline()}."])]
    blocks += [Notice(f"Alarm: {alarm.title}: {alarm.finding()}.") for alarm in result.open_alarms]
    recent = {one.measure: one.recent for one in result.watched if one.name is None}
    window = min(result.settings["window"], len(result.days))
    per_day = sum(result.decisions[-window:]) / window
    entries = [(write_number(per_day), f"decisions per {result.unit}")]
    if result.loss is not None:
        entries.append((write_number(result.loss.per_day), "of them expected to be lost at the current rates"))
    if result.unit == "day":
        without = sum(result.without[-window:]) / max(sum(result.decisions[-window:]), 1)
        entries.append((write_rate(without), "made with a missing or stale field"))
    early = recent["flips_early"]
    of_what = "of confident decisions flip early" if early.decisions else "of the decisions are confident"
    entries += [(write_percent(early.value), of_what), (write_number(recent["exposure"].value), "mean exposure")]
    ended = len(result.alarms) - len(result.open_alarms)
    earlier = [f"{write_count(ended, 'earlier alarm')} ended by now."] if ended else []
    blocks += [Numbers(entries), Text([*earlier, *(f"{line}." for line in result.recent_lines()), *result.notes])]
    return blocks


def _list_alarms(alarms: Sequence[Alarm]) -> Table:
    head = (
        "what",
        "raised",
        "after decisions",
        "since",
        "value",
        "reference",
        "decisions affected",
        "would change",
        "ended",
    )
    rows = [
        (
            f"{alarm.title} ({'rise' if alarm.direction == 'up' else 'fall'})",
            str(alarm.day),
            f"{alarm.decision_number:,}",
            str(alarm.since),
            write_value(alarm.measure, alarm.value),
            write_value(alarm.measure, alarm.reference),
            f"{alarm.affected:,}",
            "-" if alarm.changed is None else write_number(alarm.changed),
            "open" if alarm.closed is None else str(alarm.closed),
        )
        for alarm in alarms
    ]
    return Table("Alarms in the order in which they were raised", head, rows, sortable=True)


def _tell_losses(result: WatchResult) -> Sequence[PageBlock]:
    loss = result.loss
    assert loss is not None
    rows = [
        (group.group, write_rate(group.rate), write_rate(group.importance), write_number(group.lost_per_day))
        for group in loss.groups
    ]
    head = ("group", "decisions without it", "decisions that hang on it", "lost per day")
    table = Table("Evidence groups, costliest first", head, rows[:SHOWN_GROUPS], sortable=True)
    bars = draw_bars(result.days, loss.by_day, "Decisions expected to be lost")
    caption = (
        "Expected decisions lost: how often each group was missing or stale on the day, times how many decisions hang "
        f"on it (to first order; from {loss.source}, {write_count(loss.rows, 'row')})."
    )
    blocks: list[PageBlock] = [Figure([bars], caption, table)]
    if len(rows) > SHOWN_GROUPS:
        blocks.append(Table("All evidence groups", head, rows, folded=True, sortable=True))
    if any(result.changed):
        total = f"{round(sum(result.changed)):,}"
        blocks.append(
            Text(
                [
                    f"Of the {write_count(sum(result.without), 'decision')} made with a missing or stale field, about "
                    f"{total} would have been decided differently with the field present (the sum of p_change in the "
                    "log)."
                ]
            )
        )
    return blocks


def _tell_certificates(result: WatchResult) -> Sequence[PageBlock]:
    titles = {
        "exposure": "Mean exposure",
        "flips_early": "Confident decisions that flip early (share)",
        "decision": "Decisions for {} (share)",
        "lost": "Decisions lost at the declared rates (share)",
    }
    pictures = [
        _draw(result, one, titles[one.measure].format(one.name))
        for measure in titles
        for one in result.watched
        if one.measure == measure and any(day.decisions for day in one.days)
    ]
    unit = result.unit
    caption = (
        f"Each dot is {'an' if unit == 'audit' else 'a'} {unit}, with its confidence sequence as a band. The grey bar "
        f"marks the {unit}s of the reference, the dashed lines its bounds; a vertical line is an alarm."
    )
    return [Figure(pictures, caption, small=True)]


def _tell_fields(result: WatchResult, fields: Sequence[Watched]) -> Sequence[PageBlock]:
    alarmed = {(alarm.measure, alarm.name) for alarm in result.alarms}
    moving = [
        one
        for one in fields
        if (one.measure, one.name) in alarmed or (one.measure in STATES and any(day.value > 0 for day in one.days))
    ]
    moving.sort(key=lambda one: ((one.measure, one.name) not in alarmed, -one.recent.value))
    blocks: list[PageBlock] = []
    if moving:
        pictures = [
            _draw(result, one, f"{shorten(one.name, 26)}: {NAMES[one.measure]} (share of decisions)")
            for one in moving[:MOST_PICTURES]
        ]
        left = len(moving) - len(pictures)
        more = f" {write_count(left, 'quieter one')} only in the table." if left else ""
        blocks.append(Figure(pictures, f"Share of decisions, those with alarms first.{more}", small=True))
    else:
        blocks.append(Text(["No field was missing, stale or outside its training range on any day."]))
    by_name: dict[str, dict[str, str]] = {}
    for one in fields:
        rate = f"{write_rate(one.recent.value)} (was {write_rate(one.reference)})"
        by_name.setdefault(str(one.name), {})[one.measure] = rate
    rows = [(name, *(rates.get(measure, "-") for measure in OF_FIELDS)) for name, rates in by_name.items()]
    head = ("field", *(NAMES[measure] for measure in OF_FIELDS))
    blocks.append(Table("The last days, and the reference", head, rows, folded=True, sortable=True))
    return blocks


def _list_days(result: WatchResult) -> Table:
    by = {one.measure: one for one in result.watched if one.name is None}
    columns = {
        result.unit: [str(day) for day in result.days],
        "decisions": [f"{count:,}" for count in result.decisions],
        "mean exposure": [write_number(day.value) for day in by["exposure"].days],
        "flip early": [write_percent(day.value) for day in by["flips_early"].days],
    }
    if result.unit == "day":
        columns["missing or stale field"] = [f"{count:,}" for count in result.without]
    if result.loss is not None:
        columns["expected lost"] = [write_number(lost) for lost in result.loss.by_day]
    rows = list(zip(*columns.values(), strict=True))
    return Table(f"{result.unit.capitalize()}s", tuple(columns), rows, folded=len(rows) > 14)


def _explain(result: WatchResult) -> Facts:
    settings, unit, count = result.settings, result.unit, result.settings["reference_days"]
    first = f"the first {unit}" if count == 1 else f"the first {count} {unit}s"
    reference = settings["reference"]
    span = (
        ""
        if reference is None
        else f" ({reference['first']} to {reference['last']}, {write_count(reference['decisions'], 'decision')})"
    )
    return Facts(
        [
            ("reference", f"{first} with decisions{span}, unless rates were declared or a released audit was given"),
            (
                "alarm",
                "the reference has left the confidence sequence of the stream. All streams together raise a false "
                f"alarm within {settings['horizon']} {unit}s with a probability of at most {settings['alpha']:g}, "
                "however often one looks, if decisions are drawn as in the reference",
            ),
            ("allowance", f"{settings['allowance']:g} beyond the bounds of the reference"),
            ("ended", "the decisions since speak for a return, a hundred to one, or are within the bound on average"),
            ("band", f"the confidence sequence of one {unit} by itself, {1 - settings['alpha']:.0%}"),
        ]
    )


def _draw(result: WatchResult, watched: Watched, title: str) -> str:
    raised = [alarm for alarm in result.alarms if (alarm.measure, alarm.name) == (watched.measure, watched.name)]
    return draw_over_time(result.days, watched, title, raised, result.days_of_reference)


# --- Prometheus ---------------------------------------------------------------------------------------------


def _list_metrics(result: WatchResult) -> list[tuple[str, str, list[tuple[MetricLabels, float]]]]:
    """Return name, help and samples of each metric."""
    named = {**dict.fromkeys(OF_FIELDS, "field"), "decision": "class"}
    recent: dict[str, list[tuple[MetricLabels, float]]] = {}
    for one in result.watched:
        labels = {} if one.name is None else {named[one.measure]: one.name}
        recent.setdefault(one.measure, []).append((labels, one.recent.value))
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
    metrics: list[tuple[str, str, list[tuple[MetricLabels, float]]]] = [
        ("alarms_open", "Alarms whose values are not back yet.", [({}, float(len(result.open_alarms)))]),
        (
            "alarm",
            "1 for each open alarm, with the day on which it was raised.",
            [
                (
                    {"measure": a.measure, "name": a.name or "", "direction": a.direction, "raised": a.day.isoformat()},
                    1.0,
                )
                for a in result.open_alarms
            ],
        ),
        (
            "alarm_affected_decisions",
            "Decisions that each open alarm concerns.",
            [
                ({"measure": a.measure, "name": a.name or "", "direction": a.direction}, float(a.affected))
                for a in result.open_alarms
            ],
        ),
        ("decisions", "Decisions read.", [({}, float(sum(result.decisions)))]),
        *((name, help_text, samples) for measure, samples in recent.items() for name, help_text in [help_of[measure]]),
    ]
    if result.loss is not None:
        lost = "Decisions expected to be lost per day at the recent rates."
        metrics.append(("expected_lost_per_day", lost, [({}, result.loss.per_day)]))
        groups = [({"group": one.group}, one.lost_per_day) for one in result.loss.groups]
        metrics.append(("expected_lost_per_day_by_group", "The same, because of one evidence group.", groups))
    midnight = dt.datetime.combine(result.days[-1], dt.time(), dt.UTC).timestamp()
    metrics.append(("last_day_timestamp_seconds", "The last day with decisions.", [({}, midnight)]))
    return metrics


def _write_metric(name: str, help_text: str, samples: Sequence[tuple[MetricLabels, float]]) -> str:
    full = f"fragility_watch_{name}"
    lines = [f"# HELP {full} {help_text}", f"# TYPE {full} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escape_label(text)}"' for key, text in labels.items())
        lines.append(f"{full}{f'{{{inside}}}' if inside else ''} {'NaN' if math.isnan(value) else repr(float(value))}")
    return "\n".join(lines) + "\n"


def escape_label(text: str) -> str:
    """Return a label value as Prometheus' text format quotes it; control characters become U+FFFD."""
    plain = replace_controls(text.replace("\r", "\ufffd"))
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
