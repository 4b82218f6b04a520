"""`Report`: the report on audits, as `fragility report` and the demo write it."""

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
    """A report on one audit or several: one HTML file, the same as text or Markdown, and its numbers as JSON.

    :meth:`of` makes one. The same audits give the same bytes; opening the file fetches nothing, and its size does not
    grow with the number of rows.

    Attributes
    ----------
    summary : ReportSummary
        Every number the report shows.
    changes : tuple of AuditChanges
        For each audit after the first, its rows beside those of the first.
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
            The audits; several are also compared, row by row if they share ids.
        name : str, default="audit"
            The name of a single audit, for example its folder.
        labels : mapping of id to class, optional
            True classes of every audited row, for accuracy and for the results of a review.
        brittle : BrittleLabels or pyarrow.Table, optional
            Held-out stress labels of a single audit's rows, from :func:`label_brittle`.
        min_confidence : float, optional
            The threshold of confidence; by default as the protocol declares.
        risk : float, default=0.02
            The largest rate of wrong or brittle predictions among those that the review policy leaves unreviewed.
        verify : str or sequence of str, optional
            The command that verifies each audit; by default one with the model and the rows left to fill in.
        rows : table or array of shape (n, d), optional
            The rows that were audited, in any order, to show the values of the cases and for ``by``; they may have
            columns that the model does not see. Their digest is compared with the audit's.
        ids : sequence, optional
            One id per row, as in :func:`audit`; by default the index of a pandas table, else 0, 1, ...
        by : str, sequence of str, or mapping, default=()
            Columns of ``rows`` to group predictions by, as in :func:`share_by`.
        model : estimator, pipeline, booster or Model, optional
            The audited model, to find the replacement of a raw value whose columns its preprocessing transforms.
        author : str, optional
            Who made the report.
        purpose : str, optional
            What it was made for.
        date : str, optional
            Its date. The clock is not read, so that the same input gives the same bytes.
        signed_by : str or sequence of str, optional
            The key of each audit's signature, once verified with :func:`verify_signature`.
        reliability : FailureProbability, optional
            For a single audit: the failure probabilities of its rows, from :func:`assess_reliability`, or from a file
            of ``fragility reliability`` by ``FailureProbability.load``.
        parity : ModelParity or sequence of ModelParity, default=()
            Comparisons of an audited model with other artefacts of it, from :func:`check_parity`.
        values : bool, default=False
            Whether the examples of these comparisons keep the values of their rows, or only the names of fields.

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
        for values_given, what in ((commands, "command to verify"), (keys, "signing key of")):
            if len(values_given) != len(named):
                raise DataError(f"one {what} each of {len(named)} audits was expected, got {len(values_given)}")
        reported = [
            ReportedAudit(replace_controls(key), audit, replace_controls(command), signer)
            for (key, audit), command, signer in zip(named.items(), commands, keys, strict=True)
        ]
        shown_rows = None if rows is None else ShownRows.of(rows, ids, model)
        byline = Byline(author, purpose, date)
        compared = (parity,) if isinstance(parity, ModelParity) else tuple(parity)
        if not values:
            compared = tuple(comparison.without_values() for comparison in compared)
        if min_confidence is None:  # several audits: as the first one declares
            min_confidence = next((entry.audit.protocol.min_confidence for entry in reported), CONFIDENT)
        settings = ReportSettings(labels, brittle, min_confidence, risk, shown_rows, by, byline, reliability, compared)
        return cls(*summarise(reported, settings))

    def sections(self, top: int = TOP) -> list[Section]:
        return list_sections(self.summary)

    def to_text(self, top: int = TOP) -> str:
        """Return the report as text for a terminal; for several audits, their comparison.

        Parameters
        ----------
        top : int, default=10
            Ignored: the lengths of a report's lists are fixed.

        Returns
        -------
        str
            Several lines; ``print`` shows the same.
        """
        return render_text(list_comparison(self.summary) or self.sections())

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows that audits share, before and after; empty for one audit.

        Returns
        -------
        dict of str to pyarrow.Table
            ``changes``, if there are several audits.
        """
        tables = []
        for numbers, changes in zip(self.summary.audits[1:], self.changes, strict=True):
            table = pa.Table.from_pandas(changes.table, preserve_index=False)
            tables.append(table.append_column("audit", pa.array([numbers.facts.name] * len(table), pa.string())))
        return {"changes": pa.concat_tables(tables, promote_options="permissive")} if tables else {}

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
            raise DataError("a table of changes needs at least two audits; this report is about one")
        return super().to_arrow()

    def to_dict(self) -> dict[str, Any]:
        return self.summary.to_dict()

    def _document(self) -> Document:
        return Document(write_title(self.summary), write_byline(self.summary), self.sections(), GENERATOR)

    def _headline(self) -> str:
        return write_headline(self.summary.audits[0])[0]


def verify_command(folder: object, *words: object) -> str:
    """Return the command that verifies an audit, with these options or with placeholders for model and rows."""
    options = shlex.join(str(word) for word in words) if words else "--model MODEL --data DATA"
    return f"fragility verify {shlex.quote(str(folder))} {options}"


def is_report(path: Path) -> bool:
    """Return whether a file is a report, which another report may replace."""
    try:
        with path.open("rb") as stream:
            return MARKER.encode() in stream.read(1000)
    except OSError:
        return False


def save_beside(report: Report, folder: Path) -> Path | None:
    """Write the report into an audit's folder; return None, and write nothing, if another file has its name."""
    target = folder / REPORT_FILE
    if os.path.lexists(target) and not is_report(target):
        return None
    return report.save(target)
