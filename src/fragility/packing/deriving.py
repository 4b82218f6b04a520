"""Everything in a pack that follows from its sources: verdicts, report, figures, answers and pages.

Whoever checks a pack derives all of it again and compares bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fragility.packing.figures import AUDIT, VERDICTS, PackFigure, SourceReader, list_figures
from fragility.packing.guidance import Finding, find_answers
from fragility.packing.pages import render_card, render_index
from fragility.packing.sources import CARD, INDEX, PROTOCOL, REPORT, REPORT_NUMBERS, VERDICTS_TEXT, Evidence
from fragility.report import Report


@dataclass(frozen=True, eq=False)
class Derived:
    """What follows from the sources of a pack."""

    figures: tuple[PackFigure, ...]
    findings: tuple[Finding, ...]
    files: Mapping[str, bytes]
    reader: SourceReader  # that computed the figures


def derive(evidence: Evidence) -> Derived:
    """Return the figures, answers and files of a pack; nothing is written."""
    settings, audit, verdicts = evidence.settings, evidence.audit, evidence.verdicts
    report = Report.of(
        audit,
        name=AUDIT,
        labels=evidence.labels,
        brittle=evidence.stress,
        min_confidence=settings.min_confidence,
        verify=f"fragility verify {AUDIT} --model MODEL --data DATA",
        author=settings.author,
        purpose=settings.purpose,
        date=settings.date,
        signed_by=None if evidence.verified is None else evidence.verified[:16],
        parity=evidence.parities,
        values=True,  # the sources have none but those that were asked for
    )
    report = _say_place(report)
    numbers = json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    files = {PROTOCOL: audit.protocol.to_json(), REPORT: report.to_html(), REPORT_NUMBERS: numbers}
    if verdicts is not None:
        files[VERDICTS] = json.dumps(verdicts.to_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
        files[VERDICTS_TEXT] = verdicts.to_markdown()
    in_memory = {VERDICTS: verdicts.to_dict()} if verdicts is not None else {}
    reader = SourceReader(evidence.folder, audit, in_memory)
    figures = tuple(list_figures(reader, settings.min_confidence))
    findings = tuple(find_answers(figures))
    files[INDEX] = render_index(evidence, figures, findings)
    files[CARD] = render_card(evidence, figures, findings)
    return Derived(figures, findings, {name: text.encode() for name, text in files.items()}, reader)


def _say_place(report: Report) -> Report:
    """Return the report with the audit's place in the pack, wherever it lay when the report was made."""
    (audit,) = report.summary.audits
    placed = replace(audit, facts=replace(audit.facts, folder=AUDIT))
    return Report(replace(report.summary, audits=(placed,)))
