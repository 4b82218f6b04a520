"""Review policy: which confident predictions may go unreviewed, with a guarantee.

Given n confident rows with a score and a held-out label each: rows whose score lies below a threshold go unreviewed,
such that the brittle rate among them is at most ``risk``, with probability at least ``confidence`` over the rows' draw.

    thresholds    the score's quantiles in steps of 1%; the last one, infinity, reviews nothing
    bound         k brittle of n' rows below a threshold: the exact binomial (Clopper-Pearson) upper limit
    starts        five, evenly spaced among the thresholds whose n' could pass with k = 0 (a condition on scores alone);
                  each is tested at level 1 - (1 - confidence) / 5
    walk          from each start toward laxer thresholds while the bound is at most ``risk`` (fixed-sequence testing)
    policy        the laxest threshold passed by any walk

Policies within segments split 1 - confidence once more, over the segments. The guarantee holds for rows drawn like the
labelled ones and for the declared stress; every policy says both.

Of several declared scores the one that sends the fewest rows to review is taken, and the level is divided among them.
The score ``rehearsal`` is that of the labels' own stress, by other draws. The score may also be the exposure to a
failure mode. If only some confident rows have one, the policy is fitted on them: they are drawn by their content, which
is as good as at random. A row without a score is always reviewed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.stats import beta

from fragility.audits import Audit, Certificates
from fragility.audits.audit import RANKED_BY
from fragility.audits.comparison import differences_in_stress, list_differences
from fragility.base.arrays import Booleans, Floats, is_number
from fragility.base.errors import Advice, DataError, ProtocolError
from fragility.base.files import parse_json
from fragility.base.ids import IdSpan, check_same_rows, places_by_id, say_unlabelled
from fragility.base.schemas import Count, Limit, Share, read_document, show_value, write_document
from fragility.base.text import BriefRepr
from fragility.evidence.modes import MODES
from fragility.pages.results import JsonFile
from fragility.pages.terms import ATTAINED, NOT_ATTAINABLE
from fragility.pages.wording import (
    describe_choice,
    describe_guarantee,
    describe_other_scores,
    describe_rule,
    describe_unscored,
    name_score,
)
from fragility.protocol import Protocol
from fragility.questions.stress.declaration import Stress, read_stress
from fragility.questions.stress.labels import PROTOCOL_KEY, STRESS_KEY, BrittleLabels
from fragility.scores import REHEARSAL

FORMAT, WHAT = "fragility-policy/1", "the review policy"
TRIED = ("confidence", "exposure", "fds", "rcma")  # where no score that was asked for supports a policy
MOST_SCORES = 4
SCORES = (*RANKED_BY, *MODES, REHEARSAL, "confidence")  # that a policy may be by
NO_STRESS = (
    "by which stress they were made, and a rehearsal holds for one stress only; keep labels as .parquet, since .csv "
    "says nothing of it"
)
STARTS = 5
PREDICTED = "predicted"  # segments by predicted class
RuleState: TypeAlias = Literal["attained", "not attainable"]


@dataclass(frozen=True, slots=True, repr=False)
class LabelledRows(BriefRepr):
    """Held-out labels as a policy takes them, wherever they come from."""

    ids: tuple[Hashable, ...]
    confidence: Floats  # (n,)
    high_confidence: Booleans  # (n,)
    brittle: Booleans  # (n,)
    min_confidence: float
    stress: Mapping[str, Any] | None  # None if the labels do not say how they were made
    protocol: Protocol | None = None  # likewise

    @property
    def brittle_by_id(self) -> dict[Hashable, float]:
        """Whether each row is brittle; NaN for one that is not confident."""
        brittle = np.where(self.high_confidence, self.brittle, np.nan)
        return dict(zip(self.ids, brittle.tolist(), strict=True))

    def check_made_under(self, protocol: Protocol) -> None:
        """Refuse labels of other failures: made with another baseline, other groups or another decision."""
        unlike = () if self.protocol is None else differences_in_stress(protocol, self.protocol)
        if unlike:
            raise DataError(
                f"the certificates and the labels were made under different protocols: {list_differences(unlike)}; "
                "make the labels under the protocol of the audit"
            )

    @classmethod
    def of(cls, labels: BrittleLabels | pa.Table, min_confidence: float) -> LabelledRows:
        """Take labels from `label_brittle`, or from the table that `fragility evaluate labels` writes."""
        if isinstance(labels, BrittleLabels):
            return cls(
                ids=tuple(np.asarray(labels.id).tolist()),
                confidence=labels.confidence,
                high_confidence=labels.high_confidence,
                brittle=labels.brittle,
                min_confidence=labels.min_confidence,
                stress=labels.stress.to_dict(),
                protocol=labels.run.protocol,
            )
        for name in ("id", "confidence", "high_confidence", "brittle"):
            if name not in labels.column_names:
                raise DataError(
                    f"a table of labels has id, confidence, high_confidence and brittle; this one lacks {name!r}: "
                    "make one with label_brittle(...).save(FILE) or fragility evaluate labels --out FILE"
                )
        notes = labels.schema.metadata or {}
        stress = protocol = None
        try:
            key = STRESS_KEY
            if (stated := notes.get(key.encode())) is not None:
                stress = dict(parse_json(stated.decode("utf-8")))
                min_confidence = float(stress["tau_confidence"])
            key = PROTOCOL_KEY
            if (stated := notes.get(key.encode())) is not None:
                protocol = Protocol.from_json(stated.decode("utf-8"))
        except (ValueError, TypeError, LookupError, ProtocolError) as error:
            raise DataError(f"the table of labels does not say how it was made: its note {key!r} is damaged") from error
        confidence = np.asarray(labels.column("confidence"), dtype=np.float64)
        confident, brittle = (np.asarray(labels.column(name), dtype=bool) for name in ("high_confidence", "brittle"))
        if (confident != (confidence >= min_confidence)).any():
            raise DataError(
                f"the labels call other rows confident than those of at least {min_confidence:g}; say ",
                Advice("min_confidence", "it with --min-confidence"),
            )
        ids = tuple(labels.column("id").to_pylist())
        return cls(ids, confidence, confident, brittle, min_confidence, stress, protocol)


@dataclass(frozen=True, slots=True)
class ReviewRule:
    """One threshold, for all rows or for one segment."""

    segment: str | None  # None for a rule over all rows
    state: RuleState  # not attainable with the labelled rows at hand: then every confident row is reviewed
    threshold: Limit | None  # rows whose score lies below it go unreviewed; infinity reviews nothing
    bound: Share | None  # upper limit of the brittle rate among unreviewed rows, at the level tested
    review_share: Share  # share of the labelled confident rows that are to be reviewed
    rows: Count  # labelled confident rows
    brittle: Count
    unreviewed: Count  # rows below the threshold
    unreviewed_brittle: Count
    # If not attainable: how many labelled confident rows would do at the brittle rate observed among the lowest scores;
    # None if no number would.
    rows_needed: Count | None

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.state == NOT_ATTAINABLE):
            raise DataError(f"a rule that is {self.state} cannot have the threshold {show_value(self.threshold)}")


@dataclass(frozen=True, slots=True, repr=False)
class ReviewCurve(BriefRepr):
    """The effect of each threshold on the labelled rows: the picture of a rule. m thresholds, strictest first."""

    threshold: tuple[Limit, ...]
    review_share: tuple[Share, ...]
    brittle_rate: tuple[Share, ...]  # among unreviewed rows
    bound: tuple[Share, ...]  # its upper limit at the level tested


@dataclass(frozen=True, slots=True, repr=False)
class ReviewPolicy(JsonFile, BriefRepr):
    """Which confident predictions to review, so that few brittle ones stay unreviewed.

    Made by :meth:`fit`; applied by :meth:`select`.

    Attributes
    ----------
    by : str
        The score that orders rows: ``exposure``, ``fds``, ``rehearsal``, a failure mode such as ``wrong``, or another
        score of the certificates.
    risk, confidence : float
        Largest brittle rate allowed among unreviewed rows, and the probability of keeping to it, over the draw of the
        labelled rows.
    min_confidence : float
        Rows at least this confident are under the policy.
    segmented_by : str or None
        ``predicted`` for one rule per class, ``declared`` for the user's own segments, None for one rule.
    rules, curves : tuple of ReviewRule, tuple of ReviewCurve
        One rule, or one per segment; and for each what every threshold would have done on the labelled rows.
    protocol_digest, model_fingerprint : str
        Of the protocol and the model of the audit.
    stress : mapping or None
        The stress of the labels, if they declare it.
    unscored : int
        Labelled confident rows without the score, which took no part; such rows are always reviewed.
    attained_by : tuple of (str, float)
        Of a policy that is not attainable: the other scores by which one is, with the level divided among all that
        were tried, and the share of the labelled confident rows that it sends to review; least first.
    tried : tuple of str
        The scores that it was chosen among; one if one was asked for.

    See Also
    --------
    label_brittle : Makes the labels.
    ReviewPolicyDisplay : Draws a policy.
    """

    _noun = "policy"
    _error = DataError

    by: str
    risk: Share
    confidence: Share
    min_confidence: Share
    segmented_by: str | None
    rules: tuple[ReviewRule, ...]
    curves: tuple[ReviewCurve, ...]
    protocol_digest: str
    model_fingerprint: str
    stress: Mapping[str, Any] | None
    unscored: Count = 0
    attained_by: tuple[tuple[str, Share], ...] = ()
    tried: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        certs: Audit,
        labels: BrittleLabels | pa.Table,
        *,
        risk: float = 0.02,
        confidence: float = 0.95,
        by: str | Sequence[str] = "exposure",
        segments: str | Mapping[Hashable, str] | None = None,
        min_confidence: float | None = None,
    ) -> ReviewPolicy:
        """Choose the laxest threshold whose guarantee the labelled rows support.

        Parameters
        ----------
        certs, labels : Certificates or StoredAudit, BrittleLabels or pyarrow.Table
            Certificates and held-out labels of the same rows; labels from `label_brittle`, or the table it saves.
        risk, confidence : float, default=0.02 and 0.95
            Largest brittle rate allowed among the rows that go unreviewed, and the probability of keeping to it.
        by : str or sequence of str, default="exposure"
            The score that orders rows: ``exposure``, ``fds``, another score of the certificates, ``confidence`` (least
            first), ``rehearsal`` if the labels have it, or the exposure to a failure mode, such as ``wrong``, if the
            certificates have a modes block. Labels should then come from stress of the same kind. Of at most four names
            the score is taken that sends the fewest rows to review; each is held to its part of the level, so that the
            guarantee includes the choice.
        segments : ``"predicted"``, mapping from id to segment, or None
            A rule for each predicted class, or for each segment; the guarantee then holds in every one of them at once.
        min_confidence : float, optional
            Which rows are confident, for a table of labels that does not say; by default as the protocol declares.

        Returns
        -------
        ReviewPolicy
            A policy that cannot be had is a result too: its state is ``not attainable``. It says by which other score
            one can be had: ``confidence``, ``exposure``, ``fds`` and ``rcma`` are tried.
        """
        for name, value in (("risk", risk), ("confidence", confidence)):
            if not is_number(value) or not 0 < value < 1:
                raise DataError(f"{name} must lie between 0 and 1, such as 0.02, got {value!r}")
        names_tried = _read_names(by)
        tried = {name: certs.score(name, partial=True, labels=labels) for name in names_tried}
        columns = certs.read_columns("id", "confidence")
        ids, certified = columns.column("id").to_pylist(), columns.column("confidence").to_numpy()
        rows = LabelledRows.of(labels, certs.confident_from(min_confidence))
        rows.check_made_under(certs.protocol)
        if REHEARSAL in names_tried and rows.stress is None:
            raise DataError(f"the labels do not say {NO_STRESS}")
        place, missing = places_by_id(ids, rows.ids)
        if missing:
            raise DataError(*say_unlabelled(len(missing), len(certs), missing[0], IdSpan(ids), IdSpan(rows.ids)))
        check_same_rows(ids, certified, rows.confidence[place])
        confident, brittle = rows.high_confidence[place], rows.brittle[place]
        if not confident.any():
            raise DataError(
                f"no labelled row is {rows.min_confidence:.0%} confident, and a policy is about those that are; ",
                Advice(
                    "label them with a lower Stress(tau_confidence=...)", "label them with a lower --tau-confidence"
                ),
            )
        unscored = np.zeros(len(confident), dtype=bool)
        for name, scores in tried.items():
            lacking = confident & np.isnan(scores)
            _check_unscored(int(lacking.sum()), int(confident.sum()), rows.min_confidence, certs.confident_from(), name)
            unscored |= lacking
        confident &= ~unscored
        names = _segment_names(certs, segments)
        parts = [None] if names is None else sorted(set(names[confident]))
        alpha = (1 - confidence) / len(parts) / STARTS
        groups_of_rows = [confident if part is None else confident & (names == part) for part in parts]
        fitted = {
            name: [
                fit_rule(part, scores[mine], brittle[mine], risk, 1 - alpha / len(tried))
                for part, mine in zip(parts, groups_of_rows, strict=True)
            ]
            for name, scores in tried.items()
        }
        shares = {name: _share_reviewed([rule for rule, _ in fits]) for name, fits in fitted.items()}
        known = {name: share for name, share in shares.items() if share is not None}
        chosen = min(known, key=known.__getitem__) if known else names_tried[0]
        rules, curves = zip(*fitted[chosen], strict=True)
        others = tuple[tuple[str, float], ...]()
        if shares[chosen] is None:
            others = _try_others(certs, names_tried, groups_of_rows, brittle, risk, alpha)
        return cls(
            by=chosen,
            tried=names_tried,
            risk=float(risk),
            confidence=float(confidence),
            min_confidence=float(rows.min_confidence),
            rules=rules,
            curves=curves,
            segmented_by=None if segments is None else PREDICTED if segments == PREDICTED else "declared",
            protocol_digest=certs.protocol.digest,
            model_fingerprint=certs.manifest.model.fingerprint,
            stress=rows.stress,
            unscored=int(unscored.sum()),
            attained_by=others,
        )

    @property
    def rule(self) -> ReviewRule:
        """The one rule of a policy without segments."""
        if self.segmented_by is not None:
            raise DataError(f"this policy has a rule for each of {len(self.rules)} segments; look at .rules")
        return self.rules[0]

    @property
    def threshold(self) -> float | None:
        """Rows with a score below it go unreviewed; None where the policy is not attainable."""
        return self.rule.threshold

    @property
    def bound(self) -> float | None:
        """Upper limit of the brittle rate among unreviewed rows."""
        return self.rule.bound

    @property
    def state(self) -> RuleState:
        """``attained`` if every rule is, else ``not attainable``."""
        return ATTAINED if all(rule.state == ATTAINED for rule in self.rules) else NOT_ATTAINABLE

    @property
    def review_share(self) -> float:
        """Share of the labelled confident rows that are to be reviewed."""
        return 1.0 - sum(rule.unreviewed for rule in self.rules) / sum(rule.rows for rule in self.rules)

    def select(
        self,
        certs: Audit,
        *,
        segments: Mapping[Hashable, str] | None = None,
        labels: BrittleLabels | pa.Table | None = None,
    ) -> Certificates:
        """Return the confident predictions to review, highest score first.

        All rows are reviewed in a segment without an attainable rule, and in one that the policy has not seen. So are
        rows without the policy's score, which come last.

        Parameters
        ----------
        certs : Certificates or StoredAudit
            Certificates of new rows: the same model, under the same protocol.
        segments : mapping from id to segment, optional
            For a policy with declared segments.
        labels : BrittleLabels or pyarrow.Table, optional
            For a policy by ``rehearsal``, which is read from them: labels of these rows under the policy's stress.

        Returns
        -------
        Certificates
            Those to review.
        """
        self.check_made_for(certs.protocol.digest, certs.manifest.model.fingerprint)
        if labels is not None:
            self.check_rehearsed(labels)
            LabelledRows.of(labels, self.min_confidence).check_made_under(certs.protocol)
        scores = certs.score(self.by, partial=True, labels=labels)
        places = np.flatnonzero(self.mark_rows(certs, scores, segments=segments))
        return cast(Certificates, certs.take(places[np.argsort(-scores[places], kind="stable")]))

    def mark_rows(self, certs: Audit, scores: Floats, *, segments: Mapping[Hashable, str] | None = None) -> Booleans:
        """Return which predictions :meth:`select` sends to review.

        Parameters
        ----------
        certs : Certificates or StoredAudit
            Certificates of new rows: the same model, under the same protocol.
        scores : array of shape (n,)
            The policy's score of each of them, NaN where a row has none.
        segments : mapping from id to segment, optional
            For a policy with declared segments.

        Returns
        -------
        array of bool of shape (n,)
            In the order of the certificates.
        """
        self.check_made_for(certs.protocol.digest, certs.manifest.model.fingerprint)
        if self.segmented_by == "declared" and segments is None:
            raise DataError(
                "the policy has rules for declared segments; ",
                Advice(
                    "give segments={id: segment} for these rows", "apply it in Python, with the segments of these rows"
                ),
            )
        names = _segment_names(certs, PREDICTED if self.segmented_by == PREDICTED else segments)
        limits = np.full(len(certs), -np.inf)  # everything is reviewed unless a rule says otherwise
        for rule in self.rules:
            if rule.threshold is not None:
                limits[slice(None) if names is None or rule.segment is None else names == rule.segment] = rule.threshold
        confident = certs.read_columns("confidence").column(0).to_numpy() >= self.min_confidence
        return np.asarray(confident & ~(scores < limits))  # a row without a score, NaN, is reviewed

    def check_made_for(self, protocol_digest: str, model_fingerprint: str) -> None:
        """Refuse to apply the policy to certificates of another protocol or model.

        Parameters
        ----------
        protocol_digest, model_fingerprint : str
            Of the certificates.
        """
        if protocol_digest != self.protocol_digest:
            raise DataError("the policy was fitted under another protocol than these certificates; fit one for them")
        if model_fingerprint != self.model_fingerprint:
            raise DataError("the policy was fitted for another model than the one audited here; fit one for it")

    def check_rehearsed(self, labels: BrittleLabels | pa.Table) -> None:
        """Refuse labels of another stress than the policy's.

        Parameters
        ----------
        labels : BrittleLabels or pyarrow.Table
            Those that say how a policy by ``rehearsal`` ranks rows.
        """
        if self.by != REHEARSAL:
            return
        own = LabelledRows.of(labels, self.min_confidence).stress
        if own is None or self.stress is None:
            raise DataError(f"{'the labels do' if own is None else 'the policy does'} not say {NO_STRESS}")
        # The rule "any" counts draws that collapse the margin, so its share depends on where that begins.
        names = ("stressors", "rule", *(("tau_collapse",) if own["rule"] == "any" else ()))
        if any(own[name] != self.stress[name] for name in names):
            raise DataError("the rehearsal is of another stress than the policy's; make the labels by the same stress")

    def sentence(self) -> str:
        """Return the policy in words.

        Returns
        -------
        str
            What to review, what is promised, and under which conditions.
        """
        sentences = []
        for rule in self.rules:
            whom = "confident predictions" if rule.segment is None else f"confident predictions in {rule.segment!r}"
            sentences.append(describe_rule(asdict(rule), whom, self.by, self.risk, self.confidence))
        if len(self.tried) > 1 and self.state == ATTAINED:
            sentences.append(describe_choice(self.by, self.tried))
        if self.state != ATTAINED:
            others = [name for name in (*self.tried, *TRIED) if name != self.by]
            sentences.append(describe_other_scores(self.attained_by, list(dict.fromkeys(others))))
        if self.unscored:
            sentences.append(describe_unscored(self.unscored, self.by))
        return " ".join([*sentences, self.guarantee()])

    def guarantee(self) -> str:
        """Return what the policy holds for.

        Returns
        -------
        str
            One sentence, which names the stress if the labels do.
        """
        return describe_guarantee(stressors=() if self.stress is None else Stress.from_dict(self.stress).names)

    def __str__(self) -> str:
        return self.sentence()

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "guarantee": self.guarantee(), **write_document(self)}

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        read = read_document(document, cls, WHAT, DataError, format=FORMAT, beside={"guarantee": str})
        if read.tried and (read.by not in read.tried or len(set(read.tried)) != len(read.tried) > 0):
            raise DataError(f"{WHAT} is by {read.by!r}, but was chosen among {list(read.tried)}")
        if unknown := [name for name in (read.by, *read.tried) if name not in SCORES]:
            raise DataError(f"{WHAT} names {unknown[0]!r}, which is no score")
        if read.stress is None:
            return read
        return replace(read, stress=read_stress(read.stress, WHAT, "stress").to_dict())


def upper_limit(brittle: npt.ArrayLike, rows: npt.ArrayLike, level: float) -> Floats:
    """Return the exact binomial upper limit of the rate brittle / rows, one-sided at ``level``; 1 for no rows."""
    k, n = np.broadcast_arrays(np.asarray(brittle, dtype=np.float64), np.asarray(rows, dtype=np.float64))
    limit = np.ones(k.shape)
    open_above = k < n
    limit[open_above] = beta.ppf(level, k[open_above] + 1, n[open_above] - k[open_above])
    return limit


def fit_rule(
    segment: str | None, scores: Floats, brittle: Booleans, risk: float, level: float
) -> tuple[ReviewRule, ReviewCurve]:
    """Return the laxest threshold the labelled rows support at this level, and what every threshold would do."""
    ordered = np.sort(scores)
    quantiles = ordered[-(-np.arange(1, 100) * (len(scores) - 1) // 100)]  # the upper of two neighbours
    thresholds = np.unique(np.append(quantiles, np.inf))
    below = np.searchsorted(ordered, thresholds, side="left")
    bad = np.searchsorted(np.sort(scores[brittle]), thresholds, side="left")
    bound = upper_limit(bad, below, level)
    chosen = None
    eligible = np.flatnonzero(upper_limit(0, below, level) <= risk)
    if len(eligible):
        starts = np.unique(np.rint(np.linspace(0, len(eligible) - 1, STARTS)).astype(np.int64))
        failed = np.append(np.flatnonzero(bound > risk), len(bound))
        ends = failed[np.searchsorted(failed, eligible[starts])] - 1  # the last threshold that each walk passes
        chosen = max(ends[ends >= eligible[starts]].tolist(), default=None)
    unreviewed = 0 if chosen is None else int(below[chosen])
    rule = ReviewRule(
        segment=segment,
        state=NOT_ATTAINABLE if chosen is None else ATTAINED,
        threshold=None if chosen is None else float(thresholds[chosen]),
        bound=None if chosen is None else float(bound[chosen]),
        review_share=1.0 - unreviewed / len(scores),
        rows=len(scores),
        brittle=int(brittle.sum()),
        unreviewed=unreviewed,
        unreviewed_brittle=0 if chosen is None else int(bad[chosen]),
        rows_needed=_count_rows_needed(below, bad, len(scores), risk, level) if chosen is None else None,
    )
    columns = (thresholds, 1 - below / len(scores), bad / np.maximum(below, 1), bound)
    return rule, ReviewCurve(*(tuple(column.tolist()) for column in columns))


def _count_rows_needed(
    below: npt.NDArray[np.intp], bad: npt.NDArray[np.intp], rows: int, risk: float, level: float
) -> int | None:
    """Return how many labelled rows would support a rule, at the lowest brittle rate seen below any threshold."""
    has_share = below > 0
    rates = bad[has_share] / below[has_share]
    best = int(np.flatnonzero(rates == rates.min())[-1])  # the laxest of the thresholds with that rate
    rate, share = float(rates[best]), float(below[has_share][best]) / rows
    if rate >= risk:
        return None
    low, high = 0, 1
    while upper_limit(math.ceil(rate * high), high, level) > risk:
        low, high = high, high * 2
        if high > 10**9:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if upper_limit(math.ceil(rate * middle), middle, level) <= risk else (middle, high)
    return math.ceil(high / share)


def _read_names(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the scores that a policy may be by."""
    names = (by,) if isinstance(by, str) else tuple(by)
    if not 0 < len(names) <= MOST_SCORES or len(set(names)) != len(names):
        raise DataError(f"a policy is chosen among 1 to {MOST_SCORES} different scores, got {list(names)}")
    return names


def _share_reviewed(rules: Sequence[ReviewRule]) -> float | None:
    """Return the share of rows that rules send to review; None if one of them is not attainable."""
    if any(rule.state != ATTAINED for rule in rules):
        return None
    return 1.0 - sum(rule.unreviewed for rule in rules) / sum(rule.rows for rule in rules)


def _try_others(
    certs: Audit, asked: Sequence[str], parts: Sequence[Booleans], brittle: Booleans, risk: float, alpha: float
) -> tuple[tuple[str, float], ...]:
    """Return the other scores by which each part has a rule, and the share that they send to review, least first.

    alpha: what the scores that were asked for may spend together; the others are held to an equal share of it, since
    the best of several is taken.
    """
    names = [name for name in TRIED if name not in asked]
    others, level = [], 1 - alpha / (len(names) + len(asked))
    for name in names:
        score = certs.score(name)
        rules = [fit_rule(None, score[mine], brittle[mine], risk, level)[0] for mine in parts]
        if (share := _share_reviewed(rules)) is not None:
            others.append((name, share))
    return tuple(sorted(others, key=lambda entry: entry[1]))


def _check_unscored(unscored: int, confident: int, min_confidence: float, assessed_from: float, by: str) -> None:
    """Refuse rows that lack the score unless those that have it are as good as drawn at random."""
    every = Advice("audit with modes=True", "audit with --modes all")
    if unscored == confident:
        raise DataError(f"none of the {confident} labelled confident rows has a figure for {name_score(by)}: ", every)
    if unscored and min_confidence < assessed_from:
        raise DataError(
            f"{unscored} of the {confident} labelled confident rows have no figure for {name_score(by)}, and the "
            f"others are no random part of them: only rows of at least {assessed_from:.0%} confidence have one, and "
            f"the labels call {min_confidence:.0%} confident; ",
            every,
            f" for every row, or label with a limit of {assessed_from:g}",
        )


def _segment_names(certs: Audit, segments: str | Mapping[Hashable, str] | None) -> npt.NDArray[np.str_] | None:
    if segments is None:
        return None
    if segments == PREDICTED:
        return np.array([str(label) for label in certs.read_columns("predicted").column(0).to_pylist()])
    if isinstance(segments, str):
        raise DataError(f"segments must be 'predicted' or a mapping from id to segment, got {segments!r}")
    ids = certs.read_columns("id").column(0).to_pylist()
    missing = [row_id for row_id in ids if row_id not in segments]
    if missing:
        raise DataError(f"segments lack {len(missing)} of {len(ids)} rows, for example row {missing[0]!r}")
    return np.array([str(segments[row_id]) for row_id in ids])
