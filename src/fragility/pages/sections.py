"""Sections: what a page is made of, before it is terminal text, Markdown or HTML.

A section is a heading and blocks; a block holds text, numbers as text, and pictures. Nothing here is escaped except the
pictures, which are SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from fragility.pages.svg import draw_share_bar
from fragility.pages.wording import write_part


class Text(NamedTuple):
    """Paragraphs."""

    paragraphs: Sequence[str]


class Notice(NamedTuple):
    """A sentence that must not be overlooked."""

    text: str


class Numbers(NamedTuple):
    """A few large numbers: (value, what it counts)."""

    entries: Sequence[tuple[str, str]]


class Facts(NamedTuple):
    """Terms and what they mean."""

    entries: Sequence[tuple[str, str]]


class Lists(NamedTuple):
    """Lists beside each other: (heading, items, whether they are what is missing)."""

    entries: Sequence[tuple[str, Sequence[str], bool]]


class Links(NamedTuple):
    """Where to read on: (label, link)."""

    entries: Sequence[tuple[str, str]]


class Command(NamedTuple):
    """A command to type."""

    command: str


class Cell(NamedTuple):
    """A cell with a bar beside its number, one that leads elsewhere, or one that says that something is amiss."""

    text: str
    bar: str = ""
    link: str = ""  # "#key" of a place on the page, or a file beside it
    amiss: bool = False
    more: Sequence[tuple[str, str]] = ()  # further links: (label, link)

    def __str__(self) -> str:
        return self.text


TableCell: TypeAlias = str | Cell


def count_cell(count: int, rows: int) -> TableCell:
    """Return `12 (30%)` with its bar; `none` of no rows."""
    return Cell(write_part(count, rows), draw_share_bar(count / rows)) if rows else "none"


class Table(NamedTuple):
    """A table; its first columns are words, the others numbers.

    head: empty for a table without one. words: how many columns are words. more: how many rows were left out.
    anchors: what each row is called by links, if anything leads to it.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    folded: bool = False
    sortable: bool = False
    wrapped: bool = False  # its cells may take several lines
    words: int = 1
    more: int = 0
    anchors: Sequence[str] = ()


class Figure(NamedTuple):
    """One or several pictures with their caption, and the numbers they show."""

    pictures: Sequence[str]
    caption: str
    table: Table | None = None
    small: bool = False  # pictures to stand beside each other, however many there are


class Lead(NamedTuple):
    """The sentences a reader should take away, with the picture that shows them."""

    paragraphs: Sequence[str]
    figure: Figure | None = None


class PathStep(NamedTuple):
    """A group of a case's path."""

    group: str
    place: str  # before the flip, the flip, or after it
    values: str  # what its fields hold and become; empty without rows
    flip: str  # what the prediction flips to here, else empty


class CaseView(NamedTuple):
    """One prediction as text, with its small curve."""

    key: str
    heading: str
    sentence: str
    facts: str
    path: Sequence[PathStep]
    smallest: str | None
    modes: Sequence[str]  # what each failure mode costs it; none where the row was not assessed
    intervals: Sequence[str]  # how far its values may move; none where the row has no intervals block
    curve: str
    command: str | None  # that opens it in the workbench


class Cases(NamedTuple):
    """Several predictions, one after the other."""

    cases: Sequence[CaseView]


PageBlock: TypeAlias = Text | Lead | Notice | Numbers | Facts | Lists | Links | Table | Figure | Cases | Command


class Section(NamedTuple):
    """A heading and its blocks."""

    key: str
    heading: str
    blocks: Sequence[PageBlock] = ()
    level: int = 2


class Document(NamedTuple):
    """A title, who made it and what of, and sections; the first one opens it, the contents follow that one."""

    title: str
    byline: str
    sections: Sequence[Section]
    generator: str = "fragility report"
