"""Plain text for terminals: aligned tables, and words of unknown origin without the power to command one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

# What a terminal obeys or reorders text by: C0 and C1 controls, delete, bidirectional marks, other line ends.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LINE_CONTROL = re.compile(rf"[\t\n]|{CONTROL.pattern}")


def visible(text: object, *, lines: bool = False) -> str:
    """Return text with its control characters written out, such as ``\\x1b``; with ``lines``, line ends stay."""
    pattern = CONTROL if lines else LINE_CONTROL
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


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
