"""Report: what `fragility report` and the demo hand out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from fragility.analysis.segments import ByColumn
from fragility.audits import Audit
from fragility.audits.comparison import AuditChanges
from fragility.base.errors import DataError
from fragility.base.text import replace_controls
from fragility.pages.results import TABLE_SUFFIXES, TOP, Result
from fragility.pages.sections import Document, Section, render_text
from fragility.parity import ModelParity
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.stress.labels import BrittleLabels
from fragility.report.gathering import ReportedAudit, ReportSettings, summarise
from fragility.report.inputs import ShownRows
from fragility.report.sections import list_comparison, list_sections
from fragility.report.sentences import write_byline, write_headline, write_title
from fragility.report.summary import Byline, ReportSummary
from fragility.scores import CONFIDENT

REPORT_FILE = "report.html"
GENERATOR = "fragility report"
MARKER = f'<meta name="generator" content="{GENERATOR}">'  # of a file that a later report may replace
RISK = 0.02


@dataclass(frozen=True, repr=False)
class Report(Result):
    """A report on one audit or several: one HTML file for people, the same as text or Markdown, its numbers as JSON.

    Made by :meth:`of`. The same audits give the same bytes; nothing is fetched when it is opened, and its size does
    not grow with the number of rows.

    Attributes
    ----------
    summary : ReportSummary
        Every number the report shows.
    changes : tuple of AuditChanges
        Of each audit after the first: its rows beside those of the first.
    """

    summary: ReportSummary
    changes: tuple[AuditChanges, ...] = field(default=(), compare=False)

    SUFFIXES: ClassVar[tuple[str, ...]] = (*Result.SUFFIXES, *TABLE_SUFFIXES)
    _indent: ClassVar[int | None] = None  # it is large

    @classmethod
    def of(
        cls,
        audits: Audit | Mapping[str, Audit],
        *,
        name: str = "audit",
        labels: Mapping[Hashable, Any] | None = None,
        brittle: BrittleLabels | pa.Table | None = None,
        min_confidence: float | None = None,
        risk: float = RISK,
        verify: str | Sequence[str] | None = None,
        rows: Any = None,
        ids: Any = None,
        by: ByColumn = (),
        model: Any = None,
        author: str | None = None,
        purpose: str | None = None,
        date: str | None = None,
        signed_by: str | Sequence[str | None] | None = None,
        reliability: FailureProbability | None = None,
        parity: ModelParity | Sequence[ModelParity] = (),
        values: bool = False,
    ) -> Report:
        """Summarise one audit, or several by name.

        Parameters
        ----------
        audits : Certificates or mapping of str to Certificates
            What was audited; several are also put side by side, row by row where they share ids.
        name : str, default="audit"
            What to call a single audit: the folder it lies in, say.
        labels : mapping of id to class, optional
            True classes of every audited row, for accuracy and for what a review would find.
        brittle : BrittleLabels or pyarrow.Table, optional
            Held-out stress labels of a single audit's rows, from :func:`label_brittle`.
        min_confidence : float, optional
            Where confident begins; by default as the protocol declares.
        risk : float, default=0.02
            The rate that the review policy is to keep to among unreviewed predictions.
        verify : str or sequence of str, optional
            The command that verifies each audit; by default one with the model and the rows left to fill in.
        rows : table or array of shape (n, d), optional
            The rows that were audited, in any order, to show the values of the cases and for ``by``; they may have
            columns that the model does not see. Their digest is compared with the audit's.
        ids : sequence, optional
            One id per row, as in :func:`audit`; by default the index of a pandas table, else 0, 1, ...
        by : str, sequence of str, or mapping, default=()
            Columns of ``rows`` to cut predictions by, as in :func:`share_by`.
        model : estimator, pipeline, booster or Model, optional
            The audited model, to tell what replaces a value where its preprocessing makes other columns of it.
        author : str, optional
            Who made the report.
        purpose : str, optional
            What it was made for.
        date : str, optional
            Its date. Nothing is looked up, so that the same input gives the same bytes.
        signed_by : str or sequence of str, optional
            The key of each audit's signature, once verified with :func:`verify_signature`.
        reliability : FailureProbability, optional
            Of a single audit's rows, from :func:`assess_reliability`: what to make reliable first. Of a file that
            ``fragility reliability`` wrote: ``FailureProbability.load``.
        parity : ModelParity or sequence of ModelParity, default=()
            Comparisons of an audited model with other artefacts of it, from :func:`check_parity`.
        values : bool, default=False
            Whether the examples of these comparisons keep the values of their rows; else they name fields alone.

        Returns
        -------
        Report
            Ready to show or save.

        Raises
        ------
        DataError
            An audit is empty, labels do not cover its rows, ``reliability`` is of another audit, or ``parity``
            of another model.
        """
        named = audits if isinstance(audits, Mapping) else {name: audits}
        commands = [verify] if isinstance(verify, str) else verify or [verify_command(key) for key in named]
        keys = [signed_by] if isinstance(signed_by, str) else signed_by or [None for _ in named]
        for given, what in ((commands, "command to verify"), (keys, "signing key of")):
            if len(given) != len(named):
                raise DataError(f"one {what} each of {len(named)} audits was expected, got {len(given)}")
        reported = [
            ReportedAudit(replace_controls(key), audit, replace_controls(command), signer)
            for (key, audit), command, signer in zip(named.items(), commands, keys, strict=True)
        ]
        shown = None if rows is None else ShownRows.of(rows, ids, model)
        byline = Byline(author, purpose, date)
        compared = (parity,) if isinstance(parity, ModelParity) else tuple(parity)
        if not values:
            compared = tuple(one.without_values() for one in compared)
        if min_confidence is None:  # of several audits, the first one says it
            min_confidence = next((one.audit.protocol.min_confidence for one in reported), CONFIDENT)
        settings = ReportSettings(labels, brittle, min_confidence, risk, shown, by, byline, reliability, compared)
        return cls(*summarise(reported, settings))

    def sections(self, top: int = TOP) -> list[Section]:
        return list_sections(self.summary)

    def to_text(self, top: int = TOP) -> str:
        """Return the report to read in a terminal; of several audits, how they compare.

        Parameters
        ----------
        top : int, default=10
            Not used: the report says itself how much it shows.

        Returns
        -------
        str
            Several lines; also what printing shows.
        """
        return render_text(list_comparison(self.summary) or self.sections())

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows that audits share, before and after; one audit has no such table.

        Returns
        -------
        dict of str to pyarrow.Table
            ``changes``, if there are several audits.
        """
        named = [each.facts.name for each in self.summary.audits[1:]]
        both = [pa.Table.from_pandas(one.table, preserve_index=False) for one in self.changes]
        both = [
            table.append_column("audit", pa.array([name] * len(table), pa.string()))
            for name, table in zip(named, both, strict=True)
        ]
        return {"changes": pa.concat_tables(both, promote_options="permissive")} if both else {}

    def to_arrow(self) -> pa.Table:
        """Return the rows that audits share, before and after.

        Returns
        -------
        pyarrow.Table
            One row per prediction and audit after the first.

        Raises
        ------
        DataError
            The report is about one audit.
        """
        if not self.changes:
            raise DataError("a table of what changed needs two audits or more; this report is about one")
        return super().to_arrow()

    def to_dict(self) -> dict[str, Any]:
        return self.summary.to_dict()

    def _document(self) -> Document:
        return Document(write_title(self.summary), write_byline(self.summary), self.sections(), GENERATOR)

    def _headline(self) -> str:
        return write_headline(self.summary.audits[0])[0]


def verify_command(folder: object, *words: object) -> str:
    """Return the command that verifies an audit; without further words, with the model and the rows to fill in."""
    given = shlex.join(str(word) for word in words) if words else "--model MODEL --data DATA"
    return f"fragility verify {shlex.quote(str(folder))} {given}"


def is_report(path: Path) -> bool:
    """Whether a file was written by us, so that another report may replace it."""
    try:
        with path.open("rb") as stream:
            return MARKER.encode() in stream.read(1000)
    except OSError:
        return False


def save_beside(report: Report, folder: Path) -> Path | None:
    """Write the report into an audit's folder; return None if a file of that name is not a report, and leave it."""
    target = folder / REPORT_FILE
    if os.path.lexists(target) and not is_report(target):
        return None
    return report.save(target)
