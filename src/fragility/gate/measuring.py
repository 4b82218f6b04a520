"""Measuring: from the rows of an audit to the estimates that a rule asks for, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fragility.analysis.policy import LabelledRows
from fragility.analysis.segments import read_by, read_values, segment_rows
from fragility.audits import Audit
from fragility.audits.measures import Measure, label_rows, read_whole, settled_within, write_class
from fragility.base.arrays import Booleans, Integers
from fragility.base.errors import Advice, CertificateError, DataError
from fragility.base.ids import RowLabels, id_keys
from fragility.gate.estimates import Estimate, Keys, estimate_auroc, estimate_mean, estimate_share
from fragility.gate.rules import PATH, PREDICTED, SETS, Rule

Estimator = Callable[[Booleans, float], Estimate]  # (n,) rows of a segment, level of the bounds


@dataclass(frozen=True, eq=False)
class AuditEvidence:
    """An audit, and what else is known of its rows."""

    audit: Audit
    rows: Any = None  # a table, or a source of rows, with the columns that rules cut by
    labels: Mapping[Any, Any] | None = None  # true classes by id
    stress: LabelledRows | None = None

    def estimate(self, measure: Measure, min_confidence: float, *, search: bool = True) -> Estimator:
        """Return what estimates a measure on any rows of the audit."""
        known: dict[str, Any] = {}
        if self.labels is not None:
            known["labels"] = label_rows(self.labels)
        if self.stress is not None:
            self.stress.check_made_under(self.audit.protocol)
            known["brittle"] = RowLabels(self.stress.brittle_by_id)
        rows = read_whole(self.audit, [measure], min_confidence, search=search, **known)
        values, _ = measure.read(rows)
        positive = None if measure.positive is None else np.asarray(measure.positive(rows))
        for labels in known.values():
            labels.check()
        counted, keys = ~np.isnan(values), self.keys

        def estimate(segment: Booleans, level: float) -> Estimate:
            chosen = segment & counted
            if positive is not None:
                return estimate_auroc(values[chosen], positive[chosen], keys[chosen], level)
            if measure.kind == "share":
                return estimate_share(values[chosen] > 0.0, keys[chosen], level)
            return estimate_mean(values[chosen], keys[chosen], level)

        return estimate

    @cached_property
    def ids(self) -> list[Any]:
        """The ids of the certificates."""
        return [own_id for batch in self.audit.batches(["id"]) for own_id in batch.column("id").to_pylist()]

    @cached_property
    def keys(self) -> Keys:
        """(n,) the ids as they are matched; every rule of a gate reads them."""
        return id_keys(self.ids)


def choose_counting(rule: Rule, audits: Sequence[AuditEvidence], min_confidence: float) -> str | None:
    """Return how a rule counts early flips in all audits concerned; None for a rule about something else.

    Shares compare only if they are counted alike: over all sets of groups if every confident row of every audit was
    searched, else along the path.
    """
    if rule.measure != "flips_early" or rule.counted == PATH:
        return rule.counted
    settled = settled_within(rule.groups, [one.audit for one in audits], min_confidence)
    if rule.counted == SETS and not settled:
        raise DataError(
            f"a rule counts predictions that flip within {rule.groups} groups over all sets of groups, but not every "
            "confident row of the audit was searched; audit with ",
            Advice("lattice=True", "--lattice"),
            ', or declare counted = "path"',
        )
    return SETS if settled else PATH


def prepare_estimator(
    rule: Rule, evidence: AuditEvidence, min_confidence: float, counted: str | None = None
) -> Estimator:
    """Return what estimates the measure of a rule on any rows of an audit; counted: as `choose_counting` says."""
    audit = evidence.audit
    if rule.measure == "flips_early":
        most = audit.protocol.depth if counted == PATH else len(audit.protocol.groups)
        if rule.groups > most:
            raise DataError(
                f"a rule asks which predictions flip within {rule.groups} groups, but the audit removes only {most}; "
                "lower groups, or audit with a larger depth"
            )
    elif rule.measure == "exposure":
        audit.column_ranked_by(rule.mode or "exposure")  # refuses what the certificates lack
    elif rule.measure == "lost":
        audit.column_ranked_by("failure_probability")
    elif rule.measure == "brittle" and evidence.stress is None:
        raise DataError(
            "a rule about brittle predictions needs labels from held-out stress; give them with ",
            Advice("stress", "--stress"),
        )
    elif rule.measure in ("accuracy", "auroc") and evidence.labels is None:
        raise DataError(
            f"a rule about {rule.measure} needs the true classes; give them with ", Advice("labels", "--labels")
        )
    if rule.measure == "auroc" and len(audit.classes) != 2:
        raise DataError(
            f"a rule about auroc needs a model of two classes, this one has {len(audit.classes)}; use accuracy"
        )
    return evidence.estimate(rule.measured, min_confidence, search=counted != PATH)


@dataclass(frozen=True, eq=False)
class Segments:
    """The rows of an audit by segment."""

    names: tuple[str | None, ...]  # None for all rows together
    codes: Integers  # (n,) the segment of each row

    def rows(self, name: str | None) -> Booleans:
        """Return (n,) the rows of one segment; none of a name that these rows do not have."""
        if name not in self.names:
            return np.zeros(len(self.codes), dtype=bool)
        return np.asarray(self.codes == self.names.index(name))


def cut_into_segments(by: str | None, audits: Sequence[AuditEvidence]) -> list[Segments]:
    """Return the segments of each audit, cut in the same way."""
    if by is None:
        return [Segments((None,), np.zeros(len(one.audit), dtype=np.int64)) for one in audits]
    if by == PREDICTED:
        names = tuple(write_class(label) for label in audits[0].audit.classes)
        segments = []
        for one in audits:
            predicted = read_whole(one.audit, (), 0.0, columns=[PREDICTED]).predicted
            if other := sorted(set(predicted) - set(names)):
                raise CertificateError(f"the earlier audit predicts {other[0]!r}, which is no class of the new model")
            segments.append(Segments(names, np.array([names.index(label) for label in predicted], dtype=np.int64)))
        return segments
    rows = audits[0].rows
    if rows is None:
        raise DataError(
            f"a rule by {by!r} cuts the audited rows by a column of theirs; give the rows with ",
            Advice("rows", "--data"),
        )
    source = read_values(rows)
    coded = segment_rows(source, read_by(by, source.column_names), [one.audit for one in audits])
    return [Segments(cut[0].names, cut[0].codes.astype(np.int64)) for cut in coded]
