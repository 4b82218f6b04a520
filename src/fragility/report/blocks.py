"""Blocks: what a section of the report is made of, before it is HTML or Markdown.

A block holds text, numbers as text, and pictures. Nothing here is escaped except the pictures, which are SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fragility.drawing.svg import draw_share_bar


@dataclass(frozen=True)
class Text:
    """Paragraphs."""

    paragraphs: Sequence[str]
    kind: str = "text"


@dataclass(frozen=True)
class Notice:
    """A sentence that must not be overlooked."""

    text: str
    kind: str = "notice"


@dataclass(frozen=True)
class Numbers:
    """A few large numbers: (value, what it counts)."""

    entries: Sequence[tuple[str, str]]
    kind: str = "numbers"


@dataclass(frozen=True)
class Facts:
    """Terms and what they mean."""

    entries: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True)
class Command:
    """A command to type."""

    command: str
    kind: str = "command"


@dataclass(frozen=True)
class Cell:
    """A cell with a bar behind its number."""

    text: str
    share: float

    @property
    def bar(self) -> str:
        """The bar as SVG."""
        return draw_share_bar(self.share)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Link:
    """A cell that leads to another place of the report."""

    text: str
    key: str

    def __str__(self) -> str:
        return self.text


TableCell: TypeAlias = str | Cell | Link


@dataclass(frozen=True)
class Table:
    """A table; the first column names the row, the others are numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    folded: bool = False
    sortable: bool = False
    wrapped: bool = False  # its cells may take several lines
    kind: str = "table"


@dataclass(frozen=True)
class Figure:
    """One or several pictures with their caption, and the numbers they show."""

    pictures: Sequence[str]
    caption: str
    table: Table | None = None
    small: bool = False  # pictures to stand beside each other, however many there are
    kind: str = "figure"


@dataclass(frozen=True)
class Lead:
    """The sentences a reader should take away, with the picture that shows them."""

    paragraphs: Sequence[str]
    figure: Figure
    kind: str = "lead"


@dataclass(frozen=True)
class PathStep:
    """A group of a case's path."""

    group: str
    place: str  # before the flip, the flip, or after it
    values: str  # what its fields hold and become; empty without rows
    flip: str  # what the prediction flips to here, else empty


@dataclass(frozen=True)
class CaseView:
    """One case as text, with its small curve."""

    key: str
    heading: str
    sentence: str
    facts: str
    path: Sequence[PathStep]
    smallest: str | None
    curve: str
    command: str | None  # that opens it in the workbench


@dataclass(frozen=True)
class Cases:
    """The most fragile cases."""

    cases: Sequence[CaseView]
    kind: str = "cases"


Block: TypeAlias = Text | Lead | Notice | Numbers | Facts | Table | Figure | Cases | Command


@dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    key: str
    heading: str
    level: int
    blocks: Sequence[Block] = field(default_factory=tuple)
