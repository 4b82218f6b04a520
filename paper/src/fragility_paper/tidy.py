"""The tidy table of a study: one row per unit, analysis, setting, score and metric.

A setting that does not apply to an analysis is empty; a value that is undefined (no brittle row, say) is NaN and the
row stays, with the reason in ``state``, so that tables can count what they could not average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

KEYS = ("dataset", "model", "seed")
TEXT = (
    "analysis",
    "reading",
    "baseline",
    "grouping",
    "weights",
    "training",
    "variant",
    "rule",
    "rows",
    "score",
    "against",
    "orientation",
    "metric",
)
NUMBERS = ("depth", "tau_p", "tau_kappa", "severity", "step", "smoothing")
COLUMNS = (*KEYS, *TEXT[:1], "metric", "value", "count", "state", *TEXT[1:-1], *NUMBERS)


@dataclass(slots=True)
class Recorder:
    """Collects the rows of one unit in order."""

    dataset: str
    model: str
    seed: int
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, analysis: str, metric: str, value: float, *, count: int = -1, state: str = "", **setting: Any
    ) -> None:
        """One measured value; ``count`` is the number of rows behind it (-1: not a mean over rows)."""
        unknown = set(setting) - set(TEXT) - set(NUMBERS)
        if unknown:
            raise TypeError(f"unknown settings {sorted(unknown)} of a tidy row")
        number = float(value)
        line = {
            "dataset": self.dataset,
            "model": self.model,
            "seed": self.seed,
            "analysis": analysis,
            "metric": metric,
            "value": number,
            "count": int(count),
            "state": state or ("undefined" if math.isnan(number) else ""),
        }
        self.lines.append({**line, **setting})

    def frame(self) -> pd.DataFrame:
        return tidy_frame(self.lines)


def tidy_frame(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table with the declared columns and types."""
    frame = pd.DataFrame(lines).reindex(columns=list(COLUMNS))
    for name in ("dataset", "model", "state", *TEXT):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), "").astype(str)
    for name in ("value", *NUMBERS):
        frame[name] = frame[name].astype("float64")
    return frame.astype({"seed": "int64", "count": "int64"})
