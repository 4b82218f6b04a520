"""The report as Markdown: the same sections without pictures, with their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fragility.drawing.svg import readable
from fragility.report.blocks import (
    Block,
    Cases,
    CaseView,
    Command,
    Facts,
    Figure,
    Lead,
    Notice,
    Numbers,
    Section,
    Table,
    Text,
)
from fragility.report.sections import sections_of
from fragility.report.summary import ReportSummary
from fragility.report.words import byline, title

# An underscore inside a word is no emphasis, and names of fields are full of them.
SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w))")
LINE_START = re.compile(r"^([-+#]|\d+(?=[.)]\s))")


def markdown_page(summary: ReportSummary) -> str:
    """Return the report as Markdown (CommonMark with tables)."""
    lines = [f"# {plain(title(summary))}", "", paragraph(byline(summary)), ""]
    for section in sections_of(summary):
        lines += _section(section)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def plain(text: object) -> str:
    """Return text from data so that Markdown shows it as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(readable(text).split()))


def paragraph(text: object) -> str:
    """Return text that stays a paragraph, whatever it begins with."""
    return LINE_START.sub(lambda found: _guarded(found[1]), plain(text))


def _guarded(mark: str) -> str:
    return f"\\{mark}" if not mark.isdigit() else f"{mark}\u2060"  # a word joiner keeps "1." from opening a list


def _section(section: Section) -> list[str]:
    lines = [f"{'#' * section.level} {plain(section.heading)}", ""]
    for block in section.blocks:
        lines += [*_block(block, section.level), ""]
    return lines


def _block(block: Block, level: int) -> list[str]:
    if isinstance(block, Text):
        return list(_apart(paragraph(text) for text in block.paragraphs))
    if isinstance(block, Lead):
        bold = [f"**{plain(text)}**" for text in block.paragraphs]
        return [*_apart(iter(bold)), "", *_block(block.figure, level)]
    if isinstance(block, Notice):
        return [f"> {plain(block.text)}"]
    if isinstance(block, Numbers):
        return [f"- **{plain(value)}** {plain(label)}" for value, label in block.entries]
    if isinstance(block, Facts):
        return [f"- **{plain(term)}**: {plain(text)}" for term, text in block.entries]
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        return [] if block.table is None else _table(block.table)
    if isinstance(block, Cases):
        return [line for case in block.cases for line in _case(case, level + 1)]
    return _command(block)


def _apart(paragraphs: Iterator[str]) -> Iterator[str]:
    for number, text in enumerate(paragraphs):
        if number:
            yield ""
        yield text


def _table(table: Table) -> list[str]:
    head = [plain(name) or "measure" for name in table.head]
    ruler = ["---", *("---:" for _ in head[1:])]
    rows = [[plain(cell) for cell in row] for row in table.rows]
    return [f"**{plain(table.caption)}**", "", *(_line(row) for row in (head, ruler, *rows))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _case(case: CaseView, level: int) -> list[str]:
    path = " > ".join(plain(f"{step.group} ({step.values})" if step.values else step.group) for step in case.path)
    lines = [
        f"{'#' * level} {plain(case.heading)}",
        "",
        paragraph(case.sentence),
        "",
        plain(case.facts),
        "",
        f"Path: {path}",
        "",
    ]
    if case.smallest is not None:
        lines += [plain(case.smallest), ""]
    return lines if case.command is None else [*lines, *_command(Command(case.command)), ""]


def _command(block: Command) -> list[str]:
    text = " ".join(readable(block.command).split())
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}bash", text, fence]
