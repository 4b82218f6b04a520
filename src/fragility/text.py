"""Aligned tables of plain text: the one writer for every report that is read in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def aligned(table: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Return one line a row, columns two blanks apart; the first ``left`` columns are words, the others numbers."""
    rows = [tuple(row) for row in table]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, widths, left)).rstrip() for row in rows]


def _padded(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    cells = zip(row, widths, strict=True)
    return [cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in enumerate(cells)]


def number(value: float, digits: int = 3) -> str:
    """Return a fixed number of digits, or a dash for what is undefined."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
