"""Text of unknown origin made safe for terminals and documents, and plain tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

# What a terminal obeys or reorders text by: C0 and C1 controls, delete, bidirectional marks, other line ends.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LINE_CONTROL = re.compile(rf"[\t\n]|{CONTROL.pattern}")
# What no document may hold: controls but tab and newline, lone surrogates, marks that turn the direction of text.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: object, *, lines: bool = False) -> str:
    """Return text with its control characters written out, such as ``\\x1b``; with ``lines``, line ends stay."""
    pattern = CONTROL if lines else LINE_CONTROL
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def replace_controls(text: object) -> str:
    """Return text that any document may hold: each forbidden character becomes U+FFFD."""
    return FORBIDDEN.sub("\ufffd", str(text))


def shorten(text: object, limit: int) -> str:
    """Return at most ``limit`` characters that any document may hold, the last an ellipsis if some were cut."""
    whole = replace_controls(text)
    return whole if len(whole) <= limit else whole[: limit - 1].rstrip() + "\u2026"


def align_columns(table: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Return one line per row, columns two blanks apart; the first ``left`` columns are words, the others numbers."""
    rows = [tuple(row) for row in table]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def format_number(value: float, digits: int = 3) -> str:
    """Return a fixed number of digits, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
