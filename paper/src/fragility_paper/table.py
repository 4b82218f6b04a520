"""A table ready to print, and how its cells are written; shared by the study and the benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fragility.base.errors import DataError
from fragility_paper.library import MeanInterval, PairedDifference

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """One table; ``key`` names the paper's label."""

    key: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise DataError(f"table {self.key!r}: a row has {len(row)} cells, the header {len(self.header)}")

    def to_markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        lines += ["| " + " | ".join(self.header) + " |", "|---" + "|---:" * (len(self.header) - 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines) + "\n"

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.rows), columns=list(self.header))


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{value:+.3f}"


def beside(ours: float | None, printed: float | None, digits: int = 3) -> str:
    """Our value with the paper's in brackets."""
    return f"{number(ours, digits)} ({number(printed, digits)})"


def interval(found: MeanInterval | PairedDifference) -> str:
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def signed_interval(found: PairedDifference) -> str:
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


def mean(values: Iterable[float]) -> float:
    """Mean of the values that are defined."""
    known = np.asarray([v for v in values if not math.isnan(v)])
    return float(known.mean()) if len(known) else math.nan
