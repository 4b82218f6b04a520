"""Text of unknown origin made safe for terminals and documents, and plain tables."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

# What a terminal obeys or reorders text by: C0 and C1 controls, delete, bidirectional marks, other line ends.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LINE_CONTROL = re.compile(rf"[\t\n]|{CONTROL.pattern}")
# What no document may hold: controls but tab and newline, lone surrogates, marks that turn the direction of text.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: object, *, lines: bool = False) -> str:
    """Return text with its control characters written out, such as ``\\x1b``; with ``lines``, line ends stay."""
    pattern = CONTROL if lines else LINE_CONTROL
    return pattern.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


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


REPR_LENGTH, REPR_VALUE, REPR_ENTRIES = 300, 60, 3


class BriefRepr:
    """Base of results, whose ``repr`` is one line however many rows they hold, and is not generated.

    A result with a text of its own (``str``) shows the beginning of it, and all of it in a notebook; any other one
    shows its fields, arrays and tables by their size.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        name = type(self).__name__
        if type(self).__str__ is not object.__str__:
            return shorten(f"{name}: {self._headline()}", REPR_LENGTH)
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        shown = [field.name for field in fields if field.repr and hasattr(self, field.name)]
        values = ", ".join(f"{field}={describe_value(getattr(self, field))}" for field in shown)
        return f"{name}({shorten(values, REPR_LENGTH)})"

    def _headline(self) -> str:
        """Return its finding in one line: by default the first line of its text."""
        return next((line.strip() for line in str(self).splitlines() if line.strip()), "")

    def _repr_html_(self) -> str | None:
        if type(self).__str__ is object.__str__:
            return None  # a notebook then shows the repr
        return f"<pre>{html.escape(replace_controls(str(self)))}</pre>"


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def describe_value(value: Any) -> str:
    """Return a value in few characters: arrays, tables and long collections by their size."""
    if isinstance(value, BriefRepr) or dataclasses.is_dataclass(value):
        return type(value).__name__
    if isinstance(getattr(value, "shape", None), tuple):
        size = " x ".join(map(str, value.shape))
        return f"<{type(value).__name__} {size}>" if size else shorten(repr(value), REPR_VALUE)
    if isinstance(value, (Mapping, Sequence, Set)) and not isinstance(value, (str, bytes)):
        entries = list(itertools.islice(value, REPR_ENTRIES + 1))
        words = (
            repr(value)
            if all(map(_is_plain, entries)) and len(value) <= REPR_ENTRIES and not isinstance(value, Mapping)
            else ""
        )
        return (
            words
            if words and len(words) <= REPR_VALUE
            else f"<{len(value)} {'entry' if len(value) == 1 else 'entries'}>"
        )
    return shorten(" ".join(repr(value).split()), REPR_VALUE)
