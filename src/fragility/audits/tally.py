"""Tally: measures of an audit, counted in one pass over its pieces; and the summary, which is all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.audits.measures import Audited, Measure, MeasuredRows, list_columns
from fragility.base.arrays import ExactSum, Floats, Integers
from fragility.base.errors import CertificateError
from fragility.base.ids import RowLabels
from fragility.base.shares import Share, share_of
from fragility.base.text import BriefRepr
from fragility.pages.results import NanEqual

EVERY = slice(None)


@dataclass(frozen=True, eq=False, slots=True)
class Average(NanEqual):
    """A mean, or a median, over the rows that a measure applies to.

    Attributes
    ----------
    value : float
        NaN without rows.
    rows : int
        How many rows those are.
    total : float
        The sum of their values, exact before it is rounded.
    """

    value: float
    rows: int
    total: float


@dataclass(frozen=True, repr=False)
class AuditSummary(BriefRepr):
    """Every measure of one audit, by name; ``summary["flips_early"]`` returns one.

    Every row counts: a prediction that never flips enters the mean flip budget as K + 1, as its certificate says, and
    ``never_flips`` states how many those are. What an audit does not have is not among the measures: ``accuracy``
    without labels, ``lost`` without rates, ``searched`` and the like without a search of the smallest failing sets.

    Attributes
    ----------
    rows : int
        The certificates.
    min_confidence : float
        Where confident begins.
    measures : mapping of str to Share or Average
        Shares have ``count``, ``rows``, ``value``, ``unsettled`` and the ends of a 95% interval, averages ``value``,
        ``rows`` and ``total``.
    """

    rows: int
    min_confidence: float
    measures: Mapping[str, Share | Average]

    def __getitem__(self, name: str) -> Any:
        return self.measures[name]

    def __contains__(self, name: str) -> bool:
        return name in self.measures


class Tally:
    """The running counts and sums of measures, over the rows of an audit or of each of several segments of it.

    Counts are whole numbers and sums are exact, so that nothing depends on how the audit is cut into pieces.
    """

    def __init__(
        self,
        audit: Audited,
        measures: Mapping[str, Measure],
        min_confidence: float,
        *,
        segments: int = 1,
        labels: RowLabels | None = None,
        brittle: RowLabels | None = None,
    ) -> None:
        self.audit, self.measures, self.min_confidence = audit, measures, min_confidence
        self.labels, self.brittle = labels, brittle
        self.columns = list_columns(measures.values(), audit)
        self.rows = 0
        self.counts = {name: np.zeros((segments, 3), dtype=np.int64) for name in measures}  # rows, count, unsettled
        self._sums = {
            name: [ExactSum() for _ in range(segments)] for name, own in measures.items() if own.kind == "mean"
        }
        self._values: dict[str, list[Floats]] = {name: [] for name, own in measures.items() if own.kind == "median"}

    def add(self, batch: pa.Table, segment: Integers | None = None) -> None:
        """Count the rows of a piece, of which ``columns`` are needed; segment: (n,) that each belongs to."""
        rows = MeasuredRows(batch, self.audit, self.min_confidence, labels=self.labels, brittle=self.brittle)
        own = np.zeros(len(rows), dtype=np.int64) if segment is None else segment
        self.rows += len(rows)
        for name, measure in self.measures.items():
            values, unsettled = measure.read(rows)
            known = ~np.isnan(values)
            counted = np.stack([known, known & (values != 0.0), unsettled], axis=1)
            np.add.at(self.counts[name], own, counted.astype(np.int64))
            if name in self._values:
                self._values[name].append(values[known])
            for place in np.unique(own) if name in self._sums else ():
                self._sums[name][place].add(values[known & (own == place)])

    def share(self, name: str, segments: slice = EVERY) -> Share:
        """Return a share, of all rows or of some segments."""
        rows, count, unsettled = self.counts[name][segments].sum(axis=0).tolist()
        return share_of(count, rows, unsettled=unsettled)

    def mean(self, name: str, segments: slice = EVERY) -> Average:
        """Return a mean of all rows or of some segments, or a median of all."""
        rows = int(self.counts[name][segments, 0].sum())
        if name in self._values:
            values = np.concatenate(self._values[name])
            return Average(float(np.median(values)) if rows else float("nan"), rows, math.fsum(values))
        total = math.fsum(each.total for each in self._sums[name][segments])
        return Average(total / rows if rows else float("nan"), rows, total)

    def read(self) -> dict[str, Share | Average]:
        """Return every measure; refuse labels that do not cover every row."""
        for labels in (self.labels, self.brittle):
            if labels is not None:
                labels.check()
        return {
            name: self.share(name) if own.kind == "share" else self.mean(name) for name, own in self.measures.items()
        }

    def summary(self) -> AuditSummary:
        """Return the summary of all rows; refuse an audit without certificates."""
        if not self.rows:
            raise CertificateError("there are no certificates to summarise")
        return AuditSummary(self.rows, self.min_confidence, self.read())
