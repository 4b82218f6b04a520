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
SCALING_HEADER = ("grows", "value", "certificate", "native pass", "ratio", "rows/s", "peak MiB")


def report(costs: Sequence[Cost], scaling: Sequence[Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """Return everything measured, as JSON values."""
    return {
        "machine": {"cores": THREADS, "processor": platform.machine(), "python": platform.python_version()},
        "repeats": repeats,
        "models": [cost.to_dict() for cost in costs],
        "scaling": [dict(row) for row in scaling],
    }


def save_report(document: Mapping[str, Any], path: Path) -> None:
    write_text(path, json.dumps(document, indent=1) + "\n")


def markdown(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown tables."""
    note = f"Measured on {document['machine']['cores']} cores, medians of {document['repeats']} alternating repeats."
    tables = [
        Table("models", "What a certificate costs", MODEL_HEADER, tuple(map(_model_row, document["models"])), note)
    ]
    if document["scaling"]:
        rows = tuple(map(_scaling_row, document["scaling"]))
        tables.append(Table("scaling", "How the cost grows", SCALING_HEADER, rows))
    return "\n".join(table.to_markdown() for table in tables)


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
