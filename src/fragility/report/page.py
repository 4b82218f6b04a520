"""The report as one HTML file: nothing fetched, everything from data escaped by the template.

It holds one script, which sorts tables; the page's own policy admits that script alone, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fragility.drawing.svg import readable
from fragility.report.sections import sections_of
from fragility.report.summary import ReportSummary
from fragility.report.words import byline, title

MARKER = '<meta name="generator" content="fragility report">'  # by it a later report knows an earlier one as its own


def _source(name: str) -> str:
    return files("fragility.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    return Environment(
        autoescape=True,
        loader=FunctionLoader(_source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else readable(value),
    )


def html_page(summary: ReportSummary) -> str:
    """Return a whole document, to open in a browser."""
    page, script = _templates().get_template("report.html.jinja"), _source("report.js")
    made = page.render(
        title=title(summary),
        style=Markup(_source("report.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        body=Markup(html_body(summary)),
    )
    return made + "\n"


def html_fragment(summary: ReportSummary) -> str:
    """Return the report for inside another page, such as a notebook."""
    style = _source("report.css").split("\n.skip", 1)
    return f'<style>{style[0]}</style><div class="fragility-report">{html_body(summary)}</div>'


def html_body(summary: ReportSummary) -> str:
    """Return the report's sections."""
    body = _templates().get_template("body.html.jinja")
    return body.render(title=title(summary), byline=byline(summary), sections=sections_of(summary))
