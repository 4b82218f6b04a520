"""What was measured, as JSON and as Markdown."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fragility_paper.bench.costs import Cost
from fragility_paper.bench.models import THREADS
from fragility_paper.library import write_text
from fragility_paper.table import NOTHING, Table

MODEL_HEADER = (
    "data", "model", "engine", "one native pass", "certificate / native pass", "faster than black box",
    "faster than TreeExplainer (rows timed)", "rows/s", "end to end", "peak MiB",
)  # fmt: skip
GOAL_HEADER = ("work, in native passes", "before", "goal", "measured", "again", "")
PARTS_HEADER = (
    "audit", "one native pass", "binding", "own predict in it", "reading the model", "fingerprint", "states",
    "claims, their digests, table", "digests of the input",
)  # fmt: skip
PARTS_NOTE = "Each part run alone, once; in an audit the last two run beside the states."
MEMORY_HEADER = ("rows", "time", "rows/s", "peak memory", "cores busy")
SCALING_HEADER = ("grows", "value", "certificate", "native pass", "ratio", "rows/s", "peak MiB")


def report(
    repeats: int,
    *,
    models: Sequence[Cost] = (),
    goals: Mapping[str, Any] | None = None,
    scaling: Sequence[Mapping[str, Any]] = (),
    memory: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return everything measured, as JSON values."""
    return {
        "machine": {"cores": THREADS, "processor": platform.machine(), "python": platform.python_version()},
        "repeats": repeats,
        "models": [cost.to_dict() for cost in models],
        **(goals or {"goals": [], "fixed_passes": {}, "parts": []}),
        "scaling": [dict(row) for row in scaling],
        "memory": [dict(row) for row in memory],
    }


def save_report(document: Mapping[str, Any], path: Path) -> None:
    write_text(path, json.dumps(document, indent=1) + "\n")


def markdown(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown tables."""
    note = f"Measured on {document['machine']['cores']} cores, medians of {document['repeats']} alternating repeats."
    tables = []
    if document["models"]:
        rows = tuple(map(_model_row, document["models"]))
        tables.append(Table("models", "What a certificate costs", MODEL_HEADER, rows, note))
    if document["goals"]:
        rows = tuple(map(_goal_row, document["goals"]))
        tables.append(Table("goals", "Goals", GOAL_HEADER, rows, f"{note} {_fixed(document['fixed_passes'])}".strip()))
    if document["parts"]:
        rows = tuple(map(_parts_row, document["parts"]))
        tables.append(Table("parts", "Where the time of an audit goes, in passes", PARTS_HEADER, rows, PARTS_NOTE))
    if document["scaling"]:
        rows = tuple(map(_scaling_row, document["scaling"]))
        tables.append(Table("scaling", "How the cost grows", SCALING_HEADER, rows))
    if document["memory"]:
        rows = tuple(map(_memory_row, document["memory"]))
        tables.append(Table("memory", "Audits of files", MEMORY_HEADER, rows))
    return "\n".join(table.to_markdown() for table in tables)


def _goal_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    digits = 3 if row["unit"] == "seconds" else 1
    unit = " s" if row["unit"] == "seconds" else ""
    found = [NOTHING if value is None else f"{value:.{digits}f}{unit}" for value in row["found"]]
    return (row["work"], row["before"] + unit, f"at most {row['most']:g}{unit}", *found, row["verdict"])


def _fixed(passes: Mapping[str, float]) -> str:
    told = ", ".join(f"{name} {value:.2f}" for name, value in passes.items())
    return f"The fixed cost in passes over all rows of the end-to-end lines: {told}." if passes else ""


def _parts_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    parts = [
        f"{row[name]:.2f}" for name in ("bind", "own_predict", "engine", "fingerprint", "trace", "claims", "input")
    ]
    return (row["bench"], f"{row['native_pass_seconds'] * 1e3:.0f} ms", *parts)


def _memory_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    cells = (f"{row['rows']:,}", f"{row['seconds']:.0f} s", f"{row['rows_per_second']:,}")
    return (*cells, f"{row['peak_mib']:,} MiB", f"{row['cpu_over_wall']:.2f}")


def _model_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["dataset"],
        row["model"],
        row["engine"],
        f"{row['native_pass'] * 1e3:.1f} ms",
        f"{row['over_native_pass']:.1f}",
        _faster(row["blackbox"], row),
        NOTHING if row["explainer"] is None else f"{_faster(row['explainer'], row)} ({row['explainer_rows']:,})",
        f"{row['rows_per_second']:,.0f}",
        f"{row['end_to_end']:.2f} s",
        _mebibytes(row),
    )


def _scaling_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["grows"],
        f"{row['value']:,}",
        f"{row['certificate']:.3f} s",
        f"{row['native_pass']:.3f} s",
        f"{row['over_native_pass']:.1f}",
        f"{row['rows_per_second']:,.0f}",
        _mebibytes(row),
    )


def _mebibytes(row: Mapping[str, Any]) -> str:
    return f"{row['peak_bytes'] / 2**20:.0f}"


def _faster(other: float | None, row: Mapping[str, Any]) -> str:
    return NOTHING if other is None else f"{other / row['certificate']:.1f}x"
