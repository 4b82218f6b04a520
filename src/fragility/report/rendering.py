"""The report's sections as HTML and as Markdown.

The HTML is one file: nothing is fetched, and the template escapes everything from data. It holds one script, which
sorts tables; the page's own policy admits that script alone, by its digest. Markdown has tables instead of pictures.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fragility.report.blocks import Block, Cases, CaseView, Facts, Figure, Lead, Notice, Numbers, Table, Text
from fragility.report.sections import list_sections
from fragility.report.sentences import write_byline, write_title
from fragility.report.summary import ReportSummary
from fragility.text import replace_controls

MARKER = '<meta name="generator" content="fragility report">'  # by it a later report knows an earlier one as its own
# An underscore inside a word is no emphasis, and names of fields are full of them.
SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w))")
LINE_START = re.compile(r"^([-+#]|\d+(?=[.)]\s))")


# --- HTML ---------------------------------------------------------------------------------------------------


def render_html(summary: ReportSummary) -> str:
    """Return a whole document, to open in a browser."""
    page, script = _load_templates().get_template("report.html.jinja"), _read_template("report.js")
    document = page.render(
        title=write_title(summary),
        style=Markup(_read_template("report.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        body=Markup(_render_body(summary)),
    )
    return document + "\n"


def render_fragment(summary: ReportSummary) -> str:
    """Return the report for inside another page, such as a notebook."""
    style = _read_template("report.css").split("\n.skip", 1)
    return f'<style>{style[0]}</style><div class="fragility-report">{_render_body(summary)}</div>'


def _render_body(summary: ReportSummary) -> str:
    body = _load_templates().get_template("body.html.jinja")
    return body.render(title=write_title(summary), byline=write_byline(summary), sections=list_sections(summary))


@cache
def _load_templates() -> Environment:
    return Environment(
        autoescape=True,
        loader=FunctionLoader(_read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else replace_controls(value),
    )


def _read_template(name: str) -> str:
    return files("fragility.report").joinpath("templates", name).read_text(encoding="utf-8")


# --- Markdown -----------------------------------------------------------------------------------------------


def render_markdown(summary: ReportSummary) -> str:
    """Return the report as Markdown (CommonMark with tables)."""
    lines = [f"# {escape_markdown(write_title(summary))}", "", escape_paragraph(write_byline(summary)), ""]
    for section in list_sections(summary):
        lines += [f"{'#' * section.level} {escape_markdown(section.heading)}", ""]
        for block in section.blocks:
            lines += [*_render_block(block, section.level), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def escape_markdown(text: object) -> str:
    """Return text from data so that Markdown shows it as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(replace_controls(text).split()))


def escape_paragraph(text: object) -> str:
    """Return text that stays a paragraph, whatever it begins with."""
    # A word joiner keeps "1." from opening a list.
    return LINE_START.sub(
        lambda found: f"{found[1]}\u2060" if found[1].isdigit() else f"\\{found[1]}", escape_markdown(text)
    )


def _render_block(block: Block, level: int) -> list[str]:
    if isinstance(block, Text):
        return _put_apart(escape_paragraph(text) for text in block.paragraphs)
    if isinstance(block, Lead):
        bold = _put_apart(f"**{escape_markdown(text)}**" for text in block.paragraphs)
        return [*bold, "", *_render_block(block.figure, level)]
    if isinstance(block, Notice):
        return [f"> {escape_markdown(block.text)}"]
    if isinstance(block, Numbers):
        return [f"- **{escape_markdown(value)}** {escape_markdown(label)}" for value, label in block.entries]
    if isinstance(block, Facts):
        return [f"- **{escape_markdown(term)}**: {escape_markdown(text)}" for term, text in block.entries]
    if isinstance(block, Table):
        head = [escape_markdown(name) or "measure" for name in block.head]
        ruler = ["---", *("---:" for _ in head[1:])]
        rows = [[escape_markdown(cell) for cell in row] for row in block.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (head, ruler, *rows)]
        return [f"**{escape_markdown(block.caption)}**", "", *lines]
    if isinstance(block, Figure):
        return [] if block.table is None else _render_block(block.table, level)
    if isinstance(block, Cases):
        return [line for case in block.cases for line in _render_case(case, level + 1)]
    return _render_command(block.command)


def _put_apart(paragraphs: Iterable[str]) -> list[str]:
    return "\n\n".join(paragraphs).split("\n")


def _render_case(case: CaseView, level: int) -> list[str]:
    steps = [f"{step.group} ({step.values})" if step.values else step.group for step in case.path]
    paragraphs = [
        f"{'#' * level} {escape_markdown(case.heading)}",
        escape_paragraph(case.sentence),
        escape_markdown(case.facts),
        f"Path: {' > '.join(map(escape_markdown, steps))}",
    ]
    if case.smallest is not None:
        paragraphs.append(escape_markdown(case.smallest))
    command = [] if case.command is None else [*_render_command(case.command), ""]
    return [*_put_apart(paragraphs), "", *command]


def _render_command(command: str) -> list[str]:
    text = " ".join(replace_controls(command).split())
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}bash", text, fence]
