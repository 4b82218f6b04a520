"""Estimates: what the rows of an audit show of a share, a mean or an AUROC, and how far the truth may lie from it.

Each estimate has two one-sided bounds at a declared level, and the influence of each row: what the row contributes to
its error, so that the squares add up to the variance.

    share of n rows     Clopper-Pearson bounds                              influence (v - p) / n
    mean of values in   mean -+ sqrt(2 V L / n) -+ 7 L / (3 (n - 1))        influence (v - mean) / n
      [0, 1]            with L = ln(2 / (1 - level)), V the sample variance (Maurer and Pontil)
    AUROC A             A -+ z s, on the scale log(A / (1 - A))             DeLong's components

The difference d of a new estimate and an old one has the bounds (Zou and Donner, from the bounds l and u of each):

    lower = d - sqrt((new - l_new)^2 + (u_old - old)^2 - 2 r (new - l_new) (u_old - old))
    upper = d + sqrt((u_new - new)^2 + (old - l_old)^2 - 2 r (u_new - new) (old - l_old))

where r is the correlation of the two, from the influences of the rows that both audits cover; 0 if they share none. It
follows from the rows whether a comparison is paired: rows that are matched by accident have unrelated influences.

The rows of an audit do not say how far models differ that are trained again. Several audits do. Let m_1, m_2, ... be
the numbers of audits on each side of a comparison, and s the standard deviation of their values around the mean of
their side, with f = sum (m_i - 1) degrees of freedom. Training then adds to the bounds of the means

    reach = t_f s sqrt(1 / m_1 + 1 / m_2 + ...)      with Student's t at the level asked for

as a root of squares, since it is independent of which rows were drawn. With one audit on each side nothing is added:
the comparison is then about these two models, not about the way they were trained. One more model, trained in the same
way as m audited ones, is a side of its own: mean + t s sqrt(1 + 1 / m).

What the rows leave open of a mean of audits: the mean of the audits' distances from value to bound, times the spread
of the mean of their influences over the mean of their spreads. It shrinks as far as the audits err on different rows.
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

Keys = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """What n rows show; the bounds are one-sided, each at the level asked for."""

    value: float  # NaN if the rows show nothing
    rows: int
    lower: float
    upper: float
    influence: Floats  # (n,)
    keys: Keys  # (n,) which rows


@dataclass(frozen=True, slots=True)
class DifferenceEstimate:
    """How far a new estimate lies above an old one."""

    value: float
    lower: float
    upper: float
    shared: int  # rows that both have


@dataclass(frozen=True, slots=True)
class RetrainedEstimates:
    """What the audits of several models show that differ only by being trained again; or one audit alone."""

    estimates: tuple[Estimate, ...]

    @property
    def shown(self) -> list[Estimate]:
        """The audits that have rows for it; all of them if none has."""
        return [one for one in self.estimates if not math.isnan(one.value)] or list(self.estimates)

    @property
    def values(self) -> list[float]:
        """What they show."""
        return [one.value for one in self.shown if not math.isnan(one.value)]

    def average(self) -> Estimate:
        """Return the mean of the audits; its bounds cover the sampling of rows, not training."""
        shown, m = self.shown, len(self.shown)
        if m == 1 or math.isnan(shown[0].value):
            return shown[0]
        keys, places = np.unique(np.concatenate([one.keys for one in shown]), return_inverse=True)
        influence = np.bincount(places, np.concatenate([one.influence for one in shown]), len(keys)) / m
        spread = math.fsum(math.sqrt(math.fsum(one.influence**2)) for one in shown) / m
        narrowed = math.sqrt(math.fsum(influence**2)) / spread if spread > 0.0 else 1.0
        value = math.fsum(one.value for one in shown) / m
        below = narrowed * math.fsum(one.value - one.lower for one in shown) / m
        above = narrowed * math.fsum(one.upper - one.value for one in shown) / m
        return Estimate(value, len(keys), value - below, value + above, influence, keys)

    def bound_mean(self, level: float) -> Estimate:
        """Return the mean of the audits, with bounds that also cover how far retrained models differ."""
        mean = self.average()
        reach = _reach_of_training(level, self.values)
        lower, upper = (math.hypot(end - mean.value, reach) for end in (mean.lower, mean.upper))
        return replace(mean, lower=max(mean.value - lower, 0.0), upper=min(mean.value + upper, 1.0))

    def bound_next(self, level: float) -> float:
        """Return how large the upper bound of one more such model may be; of one audit, its own upper bound."""
        upper = math.fsum(one.upper for one in self.shown) / len(self.shown)
        return upper + _reach_of_training(level, self.values, [0.0])  # a side of one


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
    # Of each positive row, the share of negative rows below it, and of each negative row the share above (ties half).
    among_all, among_own = stats.rankdata(scores), np.empty(len(scores))
    for of_class in (positive, ~positive):
        among_own[of_class] = stats.rankdata(scores[of_class])
    below = among_all - among_own
    component = np.where(positive, below / n_neg, 1.0 - below / n_pos)
    value = float(component[positive].mean())
    influence = (component - value) / np.where(positive, n_pos, n_neg)
    spread = math.sqrt(math.fsum(influence**2))
    if not 0.0 < value < 1.0:
        # Every pair is in order, so the spread says nothing: this bounds the chance of a pair by its fewest rows.
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


def _combine(one: float, other: float, r: float) -> float:
    return math.sqrt(max(one * one + other * other - 2.0 * r * one * other, 0.0))


# --- the estimates that a rule asks for, segment by segment ---------------------------------------------------

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
            Advice("lattice=True", "--lattice all"),
            ', or declare counted = "path"',
        )
    return SETS if settled else PATH


def check_searched(audit: Audit, groups: int, min_confidence: float) -> None:
    """Refuse an audit that does not say of every confident prediction if some values of so many groups flip it."""
    declared = audit.manifest.find_block(AnyValueDeclaration)
    remedy = "audit with ", Advice("any_value=True", "--any-value all")
    if declared is None:
        raise DataError("a rule about any_value_budget needs an audit that says what any values flip; ", *remedy)
    if groups > declared.max_size:
        raise DataError(
            f"a rule asks which predictions some values of {groups} groups flip, but the audit searches sets of at "
            f"most {declared.max_size}; lower groups"
        )
    measure = changed_within(groups)
    rows = read_whole(audit, [measure], min_confidence)
    if unknown := int((measure.read(rows)[1]).sum()):
        raise DataError(
            f"a rule about any_value_budget needs to know of every confident prediction if some values of {groups} "
            f"groups flip it; of {unknown} the audit does not say; ",
            *remedy,
        )


def prepare_estimator(
    rule: Rule, evidence: AuditEvidence, min_confidence: float, counted: str | None = None
) -> Estimator:
    """Return an estimator of a rule's measure on any rows of an audit; counted: from `choose_counting`."""
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
            f"a rule about auroc needs a model of two classes, this one has {len(audit.classes)}; use accuracy"
        )
    return evidence.estimate(rule.measured, min_confidence, search=counted != PATH)


@dataclass(frozen=True, eq=False)
class Segments:
    """The rows of an audit by segment."""

    names: tuple[str | None, ...]  # None for all rows together
    codes: Integers  # (n,) the segment of each row

    def rows(self, name: str | None) -> Booleans:
        """Return (n,) the rows of one segment; none for an unknown name."""
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
