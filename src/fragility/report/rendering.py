"""The report's sections as HTML and as Markdown.

The HTML is one file: nothing is fetched, and the template escapes everything from data. It holds one script, which
sorts tables; the page's own policy admits that script alone, by its digest. Markdown has tables instead of pictures.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fragility.base.text import replace_controls
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
from fragility.report.sections import list_sections
from fragility.report.sentences import write_byline, write_title
from fragility.report.summary import ReportSummary

MARKER = '<meta name="generator" content="fragility report">'  # of a file that a later report may replace
# An underscore inside a word is no emphasis, and names of fields are full of them.
SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w))")
LINE_START = re.compile(r"^([-+#]|\d+(?=[.)]\s))")


# --- HTML ---------------------------------------------------------------------------------------------------


def render_html(summary: ReportSummary) -> str:
    """Return a whole document, to open in a browser."""
    return render_document(write_title(summary), _render_body(summary))


def render_document(title: str, body: str, generator: str = "fragility report") -> str:
    """Return a whole document around a body that is HTML already."""
    page, script = _load_templates().get_template("report.html.jinja"), _read_template("report.js")
    document = page.render(
        title=title,
        generator=generator,
        style=Markup(_read_template("report.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        body=Markup(body),
    )
    return document + "\n"


def render_fragment(summary: ReportSummary) -> str:
    """Return the report for inside another page, such as a notebook."""
    style = _read_template("report.css").split("\n.skip", 1)
    return f'<style>{style[0]}</style><div class="fragility-report">{_render_body(summary)}</div>'


def _render_body(summary: ReportSummary) -> str:
    return render_sections(write_title(summary), write_byline(summary), list_sections(summary))


def render_sections(title: str, byline: str, sections: Sequence[Section]) -> str:
    """Return sections as the body of a document; the first stands above the contents."""
    return _load_templates().get_template("body.html.jinja").render(title=title, byline=byline, sections=sections)


@cache
def _load_templates() -> Environment:
    templates = Environment(
        autoescape=True,
        loader=FunctionLoader(_read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else replace_controls(value),
    )
    templates.globals["kind_of"] = lambda block: type(block).__name__
    return templates


def _read_template(name: str) -> str:
    return files("fragility.report").joinpath("templates", name).read_text(encoding="utf-8")


# --- Markdown -----------------------------------------------------------------------------------------------


def render_markdown(summary: ReportSummary) -> str:
    """Return the report as Markdown (CommonMark with tables)."""
    parts = [f"# {escape_markdown(write_title(summary))}", escape_paragraph(write_byline(summary))]
    for section in list_sections(summary):
        parts.append(f"{'#' * section.level} {escape_markdown(section.heading)}")
        parts += [_render_block(block, section.level) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: object) -> str:
    """Return text from data so that Markdown shows it as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(replace_controls(text).split()))


def escape_paragraph(text: object) -> str:
    """Return text that stays a paragraph, whatever it begins with."""
    # A word joiner keeps "1." from opening a list.
    return LINE_START.sub(
        lambda found: f"{found[1]}\u2060" if found[1].isdigit() else f"\\{found[1]}", escape_markdown(text)
    )


def _render_block(block: Block, level: int) -> str:
    match block:
        case Text(paragraphs):
            return "\n\n".join(map(escape_paragraph, paragraphs))
        case Lead(paragraphs, figure):
            return "\n\n".join([*(f"**{escape_markdown(text)}**" for text in paragraphs), _render_block(figure, level)])
        case Notice(text):
            return f"> {escape_markdown(text)}"
        case Numbers(entries):
            return "\n".join(f"- **{escape_markdown(value)}** {escape_markdown(label)}" for value, label in entries)
        case Facts(entries):
            return "\n".join(f"- **{escape_markdown(term)}**: {escape_markdown(text)}" for term, text in entries)
        case Table():
            head = [escape_markdown(name) or "measure" for name in block.head]
            ruler = ["---", *("---:" for _ in head[1:])]
            rows = [[escape_markdown(cell) for cell in row] for row in block.rows]
            lines = [f"| {' | '.join(cells)} |" for cells in (head, ruler, *rows)]
            return "\n".join([f"**{escape_markdown(block.caption)}**", "", *lines])
        case Figure():
            return "" if block.table is None else _render_block(block.table, level)
        case Cases(cases):
            return "\n\n".join(_render_case(case, level + 1) for case in cases)
        case Command(command):
            return _render_command(command)


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
