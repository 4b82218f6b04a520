"""Estimates of a share, a mean or an AUROC from the rows of an audit, with confidence bounds.

Each estimate has two one-sided bounds at a declared level, and the influence of each row: its contribution to the
error, so that the sum of squares is the variance.

    share of n rows     Clopper-Pearson bounds                              influence (v - p) / n
    mean of values in   mean -+ sqrt(2 V L / n) -+ 7 L / (3 (n - 1))        influence (v - mean) / n
      [0, 1]            with L = ln(2 / (1 - level)), V the sample variance (Maurer and Pontil)
    AUROC A             A -+ z s, on the scale log(A / (1 - A))             DeLong's components

The difference d of a new estimate and an old one has the bounds (Zou and Donner, from the bounds l and u of each):

    lower = d - sqrt((new - l_new)^2 + (u_old - old)^2 - 2 r (new - l_new) (u_old - old))
    upper = d + sqrt((u_new - new)^2 + (old - l_old)^2 - 2 r (u_new - new) (old - l_old))

where r is the correlation of the two, from the influences of the rows that both audits cover; 0 if they share none. No
flag says whether a comparison is paired: rows that are matched by accident have uncorrelated influences.

One audit cannot show how far models differ that are trained again; several audits can. Let m_1, m_2, ... be the numbers
of audits on each side of a comparison, and s the standard deviation of their values around the mean of their side, with
f = sum (m_i - 1) degrees of freedom. Training then adds to the bounds of the means

    reach = t_f s sqrt(1 / m_1 + 1 / m_2 + ...)      with Student's t at the level asked for

in quadrature, since it is independent of which rows were drawn. With one audit on each side nothing is added: the
comparison is then about these two models, not about the way they were trained. The value of one more model, trained in
the same way as m audited ones, is bounded by mean + t s sqrt(1 + 1 / m).

The sampling error of a mean of audits is the mean of the audits' distances from value to bound, times the spread of the
mean of their influences over the mean of their spreads. It shrinks if the audits err on different rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from fragility.analysis.policy import LabelledRows, upper_limit
from fragility.analysis.segments import read_by, read_values, segment_rows
from fragility.audits import Audit
from fragility.audits.measures import Measure, changed_within, label_rows, read_whole, settled_within, write_class
from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import Advice, CertificateError, DataError
from fragility.base.ids import RowLabels, id_keys
from fragility.blocks.any_value import AnyValueDeclaration
from fragility.gate.rules import PATH, PREDICTED, SETS, Rule
from fragility.pages.wording import write_count

Keys = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """The estimate from n rows; each bound is one-sided at the level of the estimate."""

    value: float  # NaN if the rows show nothing
    rows: int
    lower: float
    upper: float
    influence: Floats  # (n,)
    keys: Keys  # (n,) which rows


@dataclass(frozen=True, slots=True)
class DifferenceEstimate:
    """The difference of a new and an old estimate."""

    value: float
    lower: float
    upper: float
    shared: int  # rows that both have


@dataclass(frozen=True, slots=True)
class RetrainedEstimates:
    """The estimates from audits of models that differ only by being trained again; or the estimate from one audit."""

    estimates: tuple[Estimate, ...]

    @property
    def defined(self) -> list[Estimate]:
        """The estimates that have rows; all of them if none has."""
        return [estimate for estimate in self.estimates if not math.isnan(estimate.value)] or list(self.estimates)

    @property
    def values(self) -> list[float]:
        """The values of the estimates that have rows."""
        return [estimate.value for estimate in self.estimates if not math.isnan(estimate.value)]

    def average(self) -> Estimate:
        """Return the mean of the audits; its bounds cover the sampling of rows, not training."""
        defined = self.defined
        m = len(defined)
        if m == 1 or math.isnan(defined[0].value):
            return defined[0]
        keys, places = np.unique(np.concatenate([e.keys for e in defined]), return_inverse=True)
        influence = np.bincount(places, np.concatenate([e.influence for e in defined]), len(keys)) / m
        spread = math.fsum(math.sqrt(math.fsum(e.influence**2)) for e in defined) / m
        narrowed = math.sqrt(math.fsum(influence**2)) / spread if spread > 0.0 else 1.0
        value = math.fsum(e.value for e in defined) / m
        below = narrowed * math.fsum(e.value - e.lower for e in defined) / m
        above = narrowed * math.fsum(e.upper - e.value for e in defined) / m
        return Estimate(value, len(keys), value - below, value + above, influence, keys)

    def bound_mean(self, level: float) -> Estimate:
        """Return the mean of the audits, with bounds that also cover how far retrained models differ."""
        mean = self.average()
        reach = _reach_of_training(level, self.values)
        lower, upper = (math.hypot(end - mean.value, reach) for end in (mean.lower, mean.upper))
        return replace(mean, lower=max(mean.value - lower, 0.0), upper=min(mean.value + upper, 1.0))

    def bound_next(self, level: float) -> float:
        """Return an upper bound for one more model trained in the same way; with one audit, its own upper bound."""
        defined = self.defined
        upper = math.fsum(estimate.upper for estimate in defined) / len(defined)
        return upper + _reach_of_training(level, self.values, [0.0])  # the new model is a side of one audit


def compare_retrained(new: RetrainedEstimates, old: RetrainedEstimates, level: float) -> DifferenceEstimate:
    """Return the difference of the means of two sides, with bounds that also cover how far retrained models differ."""
    difference = compare_estimates(new.average(), old.average())
    reach = _reach_of_training(level, new.values, old.values)
    lower, upper = (math.hypot(end - difference.value, reach) for end in (difference.lower, difference.upper))
    return replace(difference, lower=difference.value - lower, upper=difference.value + upper)


def _reach_of_training(level: float, *sides: Sequence[float]) -> float:
    """Return how far means of retrained models lie from those of all such models; 0 if no side has two of them."""
    freedom = sum(len(values) - 1 for values in sides if values)
    if freedom < 1:
        return 0.0
    spread = math.sqrt(math.fsum(float(np.var(values)) * len(values) for values in sides if len(values) > 1) / freedom)
    return float(stats.t.ppf(level, freedom)) * spread * math.sqrt(sum(1.0 / len(values) for values in sides if values))


def estimate_share(holds: Booleans, keys: Keys, level: float) -> Estimate:
    """Return the share of rows that have a property, (n,)."""
    n, k = len(holds), int(holds.sum())
    if n == 0:
        return Estimate(math.nan, 0, 0.0, 1.0, np.empty(0), keys)
    lower, upper = 1.0 - float(upper_limit(n - k, n, level)), float(upper_limit(k, n, level))
    return Estimate(k / n, n, lower, upper, (holds - k / n) / n, keys)


def estimate_mean(values: Floats, keys: Keys, level: float) -> Estimate:
    """Return the mean of values within 0 and 1, (n,)."""
    n = len(values)
    if n < 2:
        value = float(values[0]) if n else math.nan
        return Estimate(value, n, 0.0, 1.0, np.zeros(n), keys)
    mean = math.fsum(values) / n
    lower, upper = bound_mean(n, mean, math.fsum((values - mean) ** 2) / (n - 1), level)
    return Estimate(mean, n, lower, upper, (values - mean) / n, keys)


def bound_mean(n: int, mean: float, variance: float, level: float) -> tuple[float, float]:
    """Return the one-sided bounds of the mean of n > 1 values within 0 and 1, from their sample variance."""
    log = math.log(2.0 / (1.0 - level))
    room = math.sqrt(2.0 * variance * log / n) + 7.0 * log / (3.0 * (n - 1))
    return max(mean - room, 0.0), min(mean + room, 1.0)


def estimate_auroc(scores: Floats, positive: Booleans, keys: Keys, level: float) -> Estimate:
    """Return the AUROC of scores (n,) for a class; NaN without a row of the class, or of the others."""
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if not n_pos or not n_neg:
        return Estimate(math.nan, len(scores), 0.0, 1.0, np.zeros(len(scores)), keys)
    # For each positive row the share of negative rows below it, for each negative row the share above (ties half).
    overall_rank, rank_in_class = stats.rankdata(scores), np.empty(len(scores))
    for of_class in (positive, ~positive):
        rank_in_class[of_class] = stats.rankdata(scores[of_class])
    below = overall_rank - rank_in_class
    component = np.where(positive, below / n_neg, 1.0 - below / n_pos)
    value = float(component[positive].mean())
    influence = (component - value) / np.where(positive, n_pos, n_neg)
    spread = math.sqrt(math.fsum(influence**2))
    if not 0.0 < value < 1.0:
        # All pairs are ordered alike, so the spread is 0; bound the chance of a disordered pair by the smaller class.
        room = 1.0 - (1.0 - level) ** (1.0 / min(n_pos, n_neg))
        return Estimate(value, len(scores), max(value - room, 0.0), min(value + room, 1.0), influence, keys)
    room = stats.norm.ppf(level) * spread / (value * (1.0 - value))
    logit = math.log(value / (1.0 - value))
    lower, upper = (1.0 / (1.0 + math.exp(-end)) for end in (logit - room, logit + room))
    return Estimate(value, len(scores), lower, upper, influence, keys)


def compare_estimates(new: Estimate, old: Estimate) -> DifferenceEstimate:
    """Return the difference, whose bounds are one-sided at the level of the two estimates."""
    _, mine, theirs = np.intersect1d(new.keys, old.keys, assume_unique=True, return_indices=True)
    variance = math.fsum(new.influence**2) * math.fsum(old.influence**2)
    covariance = math.fsum(new.influence[mine] * old.influence[theirs])
    r = min(max(covariance / math.sqrt(variance), -1.0), 1.0) if variance > 0.0 else 0.0
    value = new.value - old.value
    return DifferenceEstimate(
        value,
        value - _combine(new.value - new.lower, old.upper - old.value, r),
        value + _combine(new.upper - new.value, old.value - old.lower, r),
        len(mine),
    )


def _combine(a: float, b: float, r: float) -> float:
    return math.sqrt(max(a * a + b * b - 2.0 * r * a * b, 0.0))


# --- the estimates of a rule, segment by segment --------------------------------------------------------------

Estimator = Callable[[Booleans, float], Estimate]  # (n,) rows of a segment, level of the bounds


@dataclass(frozen=True, eq=False)
class AuditEvidence:
    """An audit with its rows, true classes and held-out labels, as far as they were given."""

    audit: Audit
    rows: Any = None  # a table, or a source of rows, with the columns that rules cut by
    labels: Mapping[Any, Any] | None = None  # true classes by id
    stress: LabelledRows | None = None

    def estimate(self, measure: Measure, min_confidence: float, *, search: bool = True) -> Estimator:
        """Return an estimator of a measure on any rows of the audit."""
        row_labels: dict[str, Any] = {}
        if self.labels is not None:
            row_labels["labels"] = label_rows(self.labels)
        if self.stress is not None:
            self.stress.check_made_under(self.audit.protocol)
            row_labels["brittle"] = RowLabels(self.stress.brittle_by_id)
        rows = read_whole(self.audit, [measure], min_confidence, search=search, **row_labels)
        values, _ = measure.read(rows)
        positive = None if measure.positive is None else np.asarray(measure.positive(rows))
        for labels in row_labels.values():
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
        return [row_id for batch in self.audit.batches(["id"]) for row_id in batch.column("id").to_pylist()]

    @cached_property
    def keys(self) -> Keys:
        """(n,) the ids in the form in which they are compared."""
        return id_keys(self.ids)


def choose_counting(rule: Rule, audits: Sequence[AuditEvidence], min_confidence: float) -> str | None:
    """Return how a rule counts early flips in all of its audits; None for a rule about something else.

    Shares are comparable only if they are counted in the same way: over all sets of groups if every confident row of
    every audit was searched, else along the path.
    """
    if rule.measure != "flips_early" or rule.counted == PATH:
        return rule.counted
    settled = settled_within(rule.groups, [evidence.audit for evidence in audits], min_confidence)
    if rule.counted == SETS and not settled:
        raise DataError(
            f"a rule counts predictions that flip within {rule.groups} groups over all sets of groups, but some "
            "confident rows of the audit were not searched; audit with ",
            Advice("lattice=True", "--lattice all"),
            ', or declare counted = "path"',
        )
    return SETS if settled else PATH


def check_searched(audit: Audit, groups: int, min_confidence: float) -> None:
    """Refuse an audit that leaves open for a confident prediction if some values of ``groups`` groups flip it."""
    declared = audit.manifest.find_block(AnyValueDeclaration)
    remedy = "audit with ", Advice("any_value=True", "--any-value all")
    if declared is None:
        raise DataError("a rule about any_value_budget needs an audit with any-value budgets; ", *remedy)
    if groups > declared.max_size:
        raise DataError(
            f"a rule counts predictions that some values of {groups} groups flip, but the audit searches sets of at "
            f"most {declared.max_size}; lower groups"
        )
    measure = changed_within(groups)
    rows = read_whole(audit, [measure], min_confidence)
    if unknown := int((measure.read(rows)[1]).sum()):
        needs = (
            "a rule about any_value_budget needs to know for every confident prediction whether some values of "
            f"{write_count(groups, 'group')} flip it, but the audit leaves {unknown:,} open; "
        )
        if not declared.is_partial:
            raise DataError(
                f"{needs}the model could only be asked about some values, which proves nothing of the others"
            )
        raise DataError(needs, *remedy)


def prepare_estimator(
    rule: Rule, evidence: AuditEvidence, min_confidence: float, counted: str | None = None
) -> Estimator:
    """Return an estimator of a rule's measure on any rows of an audit; counted: from `choose_counting`."""
    audit = evidence.audit
    if rule.measure == "flips_early":
        most = audit.protocol.depth if counted == PATH else len(audit.protocol.groups)
        if rule.groups > most:
            raise DataError(
                f"a rule counts predictions that flip within {rule.groups} groups, but the audit removes only {most}; "
                "lower groups, or audit with a larger depth"
            )
    elif rule.measure == "exposure":
        audit.column_ranked_by(rule.mode or "exposure")  # fails if the certificates lack it
    elif rule.measure == "any_value_budget":
        check_searched(audit, rule.groups, min_confidence)
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
            f"a rule about auroc needs a model with two classes, this one has {len(audit.classes)}; use accuracy"
        )
    return evidence.estimate(rule.measured, min_confidence, search=counted != PATH)


@dataclass(frozen=True, eq=False)
class Segments:
    """The rows of an audit by segment."""

    names: tuple[str | None, ...]  # None for all rows together
    codes: Integers  # (n,) the segment of each row

    def rows(self, name: str | None) -> Booleans:
        """Return (n,) which rows belong to a segment; none if the name is unknown."""
        if name not in self.names:
            return np.zeros(len(self.codes), dtype=bool)
        return np.asarray(self.codes == self.names.index(name))


def cut_into_segments(by: str | None, audits: Sequence[AuditEvidence]) -> list[Segments]:
    """Return the segments of each audit, cut in the same way."""
    if by is None:
        return [Segments((None,), np.zeros(len(evidence.audit), dtype=np.int64)) for evidence in audits]
    if by == PREDICTED:
        names = tuple(write_class(label) for label in audits[0].audit.classes)
        segments = []
        for evidence in audits:
            predicted = read_whole(evidence.audit, (), 0.0, columns=[PREDICTED]).predicted
            if other := sorted(set(predicted) - set(names)):
                raise CertificateError(
                    f"the earlier audit predicts {other[0]!r}, which is not a class of the new model"
                )
            segments.append(Segments(names, np.array([names.index(label) for label in predicted], dtype=np.int64)))
        return segments
    rows = audits[0].rows
    if rows is None:
        raise DataError(
            f"a rule by {by!r} groups the audited rows by one of their columns; give the rows with ",
            Advice("rows", "--data"),
        )
    source = read_values(rows)
    coded = segment_rows(source, read_by(by, source.column_names), [evidence.audit for evidence in audits])
    return [Segments(cut[0].names, cut[0].codes.astype(np.int64)) for cut in coded]
