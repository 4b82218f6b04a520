"""Measuring: from the rows of an audit to the estimates that a rule asks for, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.certificates import Audit
from fragility.certificates.flips import bound_flips, flip_columns, settled_within
from fragility.errors import Advice, CertificateError, DataError
from fragility.gate.estimates import Estimate, Keys, estimate_auroc, estimate_mean, estimate_share
from fragility.gate.rules import PATH, PREDICTED, SETS, Rule
from fragility.ids import IdSpan, id_keys, id_text, places_by_id, say_unlabelled
from fragility.policy import LabelledRows
from fragility.segments import read_by, read_values, segment_rows

Estimator = Callable[[Booleans, float], Estimate]  # (n,) rows of a segment, level of the bounds


@dataclass(frozen=True, eq=False)
class AuditEvidence:
    """An audit, and what else is known of its rows."""

    audit: Audit
    rows: Any = None  # a table, or a source of rows, with the columns that rules cut by
    labels: Mapping[Any, Any] | None = None  # true classes by id
    stress: LabelledRows | None = None

    def read(self, *columns: str) -> dict[str, Any]:
        """Return columns of the certificates as arrays; predicted classes as text."""
        table = pa.concat_tables(self.audit.batches(columns))
        found = {name: table.column(name).to_numpy() for name in columns if name != PREDICTED}
        if PREDICTED in columns:
            found[PREDICTED] = np.array([str(value) for value in table.column(PREDICTED).to_pylist()], dtype=object)
        return found

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
    if rule.measure == "flips_early":
        protocol, declared = evidence.audit.protocol, evidence.audit.manifest.lattice
        most = protocol.depth if counted == PATH else len(protocol.groups)
        if rule.groups > most:
            raise DataError(
                f"a rule asks which predictions flip within {rule.groups} groups, but the audit removes only {most}; "
                "lower groups, or audit with a larger depth"
            )
        table = pa.concat_tables(evidence.audit.batches(["confidence", *flip_columns(declared)]))
        bounds = bound_flips(table, protocol, declared, search=counted == SETS)
        confident = table.column("confidence").to_numpy() >= min_confidence
        return _share_of(bounds.flips_within(rule.groups), confident, evidence.keys)
    if rule.measure == "exposure":
        column = evidence.audit.column_ranked_by(rule.mode or "exposure")
        got = evidence.read("confidence", column)
        known = ~np.isnan(got[column])  # the rows that have a block of failure modes
        return _share_of(got[column] > rule.above, (got["confidence"] >= min_confidence) & known, evidence.keys)
    if rule.measure == "lost":
        column = evidence.audit.column_ranked_by("failure_probability")
        got = evidence.read(column)
        return _mean_of(got[column], ~np.isnan(got[column]), evidence.keys)
    if rule.measure == "brittle":
        return _estimate_brittle(evidence)
    if evidence.labels is None:
        raise DataError(
            f"a rule about {rule.measure} needs the true classes; give them with ", Advice("labels", "--labels")
        )
    got = evidence.read("confidence", PREDICTED)
    truth = _true_classes(evidence.labels, evidence.ids)
    if rule.measure == "accuracy":
        return _share_of(truth == got[PREDICTED], np.ones(len(truth), dtype=bool), evidence.keys)
    classes = [str(label) for label in evidence.audit.classes]
    if len(classes) != 2:
        raise DataError(f"a rule about auroc needs a model of two classes, this one has {len(classes)}; use accuracy")
    scores = np.where(got[PREDICTED] == classes[1], got["confidence"], 1.0 - got["confidence"])
    return _auroc_of(scores, truth == classes[1], evidence.keys)


def _share_of(holds: Booleans, counted: Booleans, keys: Keys) -> Estimator:
    def estimate(segment: Booleans, level: float) -> Estimate:
        own = segment & counted
        return estimate_share(holds[own], keys[own], level)

    return estimate


def _mean_of(values: Floats, counted: Booleans, keys: Keys) -> Estimator:
    def estimate(segment: Booleans, level: float) -> Estimate:
        own = segment & counted
        return estimate_mean(values[own], keys[own], level)

    return estimate


def _auroc_of(scores: Floats, positive: Booleans, keys: Keys) -> Estimator:
    return lambda segment, level: estimate_auroc(scores[segment], positive[segment], keys[segment], level)


def _estimate_brittle(evidence: AuditEvidence) -> Estimator:
    labelled = evidence.stress
    if labelled is None:
        raise DataError(
            "a rule about brittle predictions needs labels from held-out stress; give them with ",
            Advice("stress", "--stress"),
        )
    labelled.check_made_under(evidence.audit.protocol)
    ids = evidence.ids
    places, lacking = places_by_id(ids, labelled.ids)
    if lacking:
        raise DataError(*say_unlabelled(len(lacking), len(ids), lacking[0], IdSpan(ids), IdSpan(labelled.ids)))
    return _share_of(labelled.brittle[places], labelled.high_confidence[places], evidence.keys)


def _true_classes(labels: Mapping[Any, Any], ids: Sequence[Any]) -> Any:
    """Return (n,) the true classes of some rows as text; refuse labels that lack one."""
    by_text = {id_text(own_id): str(label) for own_id, label in labels.items()}
    lacking = [own_id for own_id in ids if id_text(own_id) not in by_text]
    if lacking:
        raise DataError(*say_unlabelled(len(lacking), len(ids), lacking[0], IdSpan(ids), IdSpan(labels)))
    return np.array([by_text[id_text(own_id)] for own_id in ids], dtype=object)


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
        names = tuple(str(label) for label in audits[0].audit.classes)
        found = []
        for one in audits:
            predicted = one.read(PREDICTED)[PREDICTED]
            if other := sorted(set(predicted) - set(names)):
                raise CertificateError(f"the earlier audit predicts {other[0]!r}, which is no class of the new model")
            found.append(Segments(names, np.array([names.index(label) for label in predicted], dtype=np.int64)))
        return found
    rows = audits[0].rows
    if rows is None:
        raise DataError(
            f"a rule by {by!r} cuts the audited rows by a column of theirs; give the rows with ",
            Advice("rows", "--data"),
        )
    source = read_values(rows)
    coded = segment_rows(source, read_by(by, source.column_names), [one.audit for one in audits])
    return [Segments(own[0].names, own[0].codes.astype(np.int64)) for own in coded]
