"""Sections of a page, and their rendering as terminal text, Markdown or HTML.

A section is a heading and blocks; a block contains text, numbers as text, and pictures. Only pictures, which are SVG,
are escaped already.

The HTML is one file that fetches nothing, and the template escapes all text. It contains one script, which sorts
tables; the page's content security policy admits only that script, by its digest. Markdown and text have tables instead
of pictures.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from fragility.base.text import align_columns, escape_controls, replace_controls
from fragility.pages.drawing import draw_share_bar
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
    """Terms with their values: (term, text)."""

    entries: Sequence[tuple[str, str]]


class Lists(NamedTuple):
    """Lists side by side: (heading, items, whether they name what is missing)."""

    entries: Sequence[tuple[str, Sequence[str], bool]]


class Links(NamedTuple):
    """Links: (label, link)."""

    entries: Sequence[tuple[str, str]]


class ShellCommand(NamedTuple):
    """A command line to type."""

    command: str


class Cell(NamedTuple):
    """A cell with a bar beside its number, with a link, or highlighted as a problem."""

    text: str
    bar: str = ""
    link: str = ""  # "#anchor" on the page, or a file beside it
    amiss: bool = False
    more: Sequence[tuple[str, str]] = ()  # further links: (label, link)

    def __str__(self) -> str:
        return self.text


TableCell: TypeAlias = str | Cell


def count_cell(count: int, rows: int) -> TableCell:
    """Return `12 (30%)` with its bar; `none` if there are no rows."""
    return Cell(write_part(count, rows), draw_share_bar(count / rows)) if rows else "none"


class Table(NamedTuple):
    """A table; its first columns contain words, the others numbers.

    head: may be empty. words: the number of columns with words. more: how many rows were left out. anchors: of the
    rows, if anything links to them.
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
    """One or several pictures with a caption, and a table of the numbers they show."""

    pictures: Sequence[str]
    caption: str
    table: Table | None = None
    small: bool = False  # show all pictures side by side


class Lead(NamedTuple):
    """The sentences a reader should take away, with the picture that shows them."""

    paragraphs: Sequence[str]
    figure: Figure | None = None


class PathStep(NamedTuple):
    """A group of a case's path."""

    group: str
    place: str  # before the flip, the flip, or after it
    values: str  # the values of its fields and their replacements; empty without rows
    flip: str  # the class that the prediction flips to here, else empty


class CaseView(NamedTuple):
    """One prediction as text, with its small curve."""

    key: str
    heading: str
    sentence: str
    facts: str
    path: Sequence[PathStep]
    smallest: str | None
    modes: Sequence[str]  # the cost of each failure mode; empty if the row was not assessed
    intervals: Sequence[str]  # how far its values may move; empty if the row has no intervals block
    curve: str
    command: str | None  # opens it in the workbench


class Cases(NamedTuple):
    """Several predictions, one after the other."""

    cases: Sequence[CaseView]


PageBlock: TypeAlias = Text | Lead | Notice | Numbers | Facts | Lists | Links | Table | Figure | Cases | ShellCommand


class Section(NamedTuple):
    """A heading and its blocks."""

    key: str
    heading: str
    blocks: Sequence[PageBlock] = ()
    level: int = 2


class Document(NamedTuple):
    """A title, a byline and sections; the table of contents follows the first section."""

    title: str
    byline: str
    sections: Sequence[Section]
    generator: str = "fragility report"


# --- rendering ------------------------------------------------------------------------------------------------

# Names of fields often contain underscores, which mark no emphasis inside a word.
SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w))")
LINE_START = re.compile(r"^([-+#]|\d+(?=[.)]\s))")


def write_more(table: Table) -> str:
    """Return how many rows of a table were left out; empty if none."""
    return f"and {table.more:,} more" if table.more else ""


# --- HTML ---------------------------------------------------------------------------------------------------


def render_html(document: Document) -> str:
    """Return a whole document, to open in a browser."""
    from markupsafe import Markup

    script = _read_template("page.js")
    page = _load_templates().get_template("page.html.jinja")
    text: str = page.render(
        title=document.title,
        generator=document.generator,
        style=Markup(_read_template("page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        body=Markup(_render_body(document)),
    )
    return text + "\n"


def render_fragment(document: Document) -> str:
    """Return the document as part of another page, such as a notebook."""
    style = _read_template("page.css").split("\n.skip", 1)
    return f'<style>{style[0]}</style><div class="fragility-report">{_render_body(document)}</div>'


def _render_body(document: Document) -> str:
    body = _load_templates().get_template("body.html.jinja")
    text: str = body.render(title=document.title, byline=document.byline, sections=document.sections)
    return text


@cache
def _load_templates() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # not needed for text
    from markupsafe import Markup

    templates = Environment(
        autoescape=True,
        loader=FunctionLoader(_read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else replace_controls(value),
    )
    templates.globals["kind_of"] = lambda block: type(block).__name__
    templates.globals["write_more"] = write_more
    return templates


def _read_template(name: str) -> str:
    return files("fragility.pages").joinpath("templates", name).read_text(encoding="utf-8")


# --- Markdown -----------------------------------------------------------------------------------------------


def render_markdown(document: Document) -> str:
    """Return the document as Markdown (CommonMark with tables)."""
    parts = [f"# {escape_markdown(document.title)}", escape_paragraph(document.byline)]
    for section in document.sections:
        parts += [f"{'#' * section.level} {escape_markdown(section.heading)}"] if section.heading else []
        parts += [render_markdown_block(block, section.level) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: object) -> str:
    """Return text from data, escaped so that Markdown shows it literally, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(replace_controls(text).split()))


def escape_paragraph(text: object) -> str:
    """Return text escaped so that it stays a paragraph."""
    # A word joiner keeps "1." from opening a list.
    return LINE_START.sub(
        lambda match: f"{match[1]}\u2060" if match[1].isdigit() else f"\\{match[1]}", escape_markdown(text)
    )


def render_markdown_block(block: PageBlock, level: int = 2) -> str:
    """Return one block as Markdown; level: that of its section's heading."""
    match block:
        case Text(paragraphs):
            return "\n\n".join(map(escape_paragraph, paragraphs))
        case Lead(paragraphs, figure):
            numbers = "" if figure is None else render_markdown_block(figure, level)
            parts = [*(f"**{escape_markdown(text)}**" for text in paragraphs), numbers]
            return "\n\n".join(part for part in parts if part)
        case Notice(text):
            return f"> {escape_markdown(text)}"
        case Numbers(entries):
            return "\n".join(f"- **{escape_markdown(value)}** {escape_markdown(label)}" for value, label in entries)
        case Facts(entries):
            return "\n".join(f"- **{escape_markdown(term)}**: {escape_markdown(text)}" for term, text in entries)
        case Lists(entries):
            return "\n\n".join(
                "\n".join([f"{heading}:", "", *(f"- {escape_paragraph(item)}" for item in items)])
                for heading, items, _ in entries
            )
        case Links(entries):
            return " · ".join(f"[{escape_markdown(label)}]({link})" for label, link in entries if link[0] != "#")
        case Table():
            return _render_table(block)
        case Figure():
            return "" if block.table is None else _render_table(block.table)
        case Cases(cases):
            return "\n\n".join(_render_case(case, level + 1) for case in cases)
        case ShellCommand(command):
            return _render_command(command)


def _render_table(table: Table) -> str:
    width = len(table.head) or len(table.rows[0])
    head = [escape_markdown(name) or "measure" for name in table.head] or [" "] * width
    ruler = [*["---"] * table.words, *["---:"] * (width - table.words)]
    rows = [[_link(cell) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ruler, *rows)]
    caption = [f"**{escape_markdown(table.caption)}**", ""] if table.caption else []
    return "\n".join([*caption, *lines, *(["", f"{write_more(table)}."] if table.more else [])])


def _link(cell: TableCell) -> str:
    text = escape_markdown(cell)
    if isinstance(cell, Cell) and cell.amiss:
        return f"**{text}**"
    return f"[{text}]({cell.link})" if isinstance(cell, Cell) and cell.link and cell.link[0] != "#" else text


def _render_case(case: CaseView, level: int) -> str:
    steps = [f"{step.group} ({step.values})" if step.values else step.group for step in case.path]
    paragraphs = [
        f"{'#' * level} {escape_markdown(case.heading)}",
        escape_paragraph(case.sentence),
        escape_markdown(case.facts),
        f"Path: {' > '.join(map(escape_markdown, steps))}",
    ]
    if case.smallest is not None:
        paragraphs.append(escape_markdown(case.smallest))
    for sentences in (case.modes, case.intervals):
        if sentences:
            paragraphs.append("\n".join(f"- {escape_markdown(sentence)}" for sentence in sentences))
    if case.command is not None:
        paragraphs.append(_render_command(case.command))
    return "\n\n".join(paragraphs)


def _render_command(command: str) -> str:
    text = " ".join(replace_controls(command).split())
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}"


# --- terminal text ------------------------------------------------------------------------------------------


def render_text(sections: Sequence[Section]) -> str:
    """Return sections as text for a terminal; the first one has no heading."""
    lines = [line for block in sections[0].blocks for line in _list_lines(block)]
    for section in sections[1:]:
        lines += ["", section.heading, *(line for block in section.blocks for line in _list_lines(block))]
    # Adjacent tables give two blank lines; keep one, and none at the ends.
    merged = [line for blank, run in groupby(lines, key=lambda line: not line) for line in ([""] if blank else run)]
    return "\n".join(escape_controls(line) for line in merged).strip("\n")


def _list_lines(block: PageBlock) -> list[str]:
    match block:
        case Text(paragraphs):
            return list(paragraphs)
        case Lead(paragraphs, figure):
            return [*paragraphs, *([] if figure is None else _list_lines(figure))]
        case Notice(text):
            return [text]
        case Numbers(entries):
            return [f"{value} {label}" for value, label in entries]
        case Facts(entries):
            return [f"{term}: {text}" for term, text in entries]
        case Lists(entries):
            return [f"{heading}: {item}" for heading, items, _ in entries for item in items]
        case Links():
            return []
        case Table():
            caption = [block.caption] if block.caption and block.head else []
            rows = [[str(cell) for cell in row] for row in block.rows]
            lines = align_columns([block.head, *rows] if block.head else rows, left=block.words)
            return ["", *caption, *lines, *([write_more(block)] if block.more else []), ""]
        case Figure():
            return [] if block.table is None else _list_lines(block.table)
        case Cases(cases):
            return [line for case in cases for line in ("", case.heading, case.sentence, case.facts)]
        case ShellCommand(command):
            return ["", f"    {command}", ""]
