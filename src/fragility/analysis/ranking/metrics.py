"""Metrics: how well descending scores find the brittle rows, and how good a classifier's probabilities are.

**Ranking.** A metric with a cut (capture, area under the residual-risk curve) takes its expected value over all orders
of tied rows, so it depends neither on row order nor on luck. Uncertainty comes from the bootstrap: over units (models)
or, for one model, over its rows.

**Probabilities.** Calibration error, Brier score, likelihood and discrimination. Every function takes ``probabilities``
(n, C), rows summing to one, and ``y`` (n,), the *column* of the true class; `class_codes` turns labels of any kind into
columns. Letters: n rows, C classes, B bins; p_ic the probability row i gives to class c; y_i the true column.

Pure functions on arrays: nothing here knows about models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import Advice, DataError
from fragility.base.text import BriefRepr
from fragility.pages.results import NanEqual
from fragility.scores import CLIP

BUDGETS = (0.05, 0.10, 0.20)
DEFINED = "defined"
NO_ROWS = "undefined: no rows"
NO_BRITTLE = "undefined: no brittle rows"
ALL_BRITTLE = "undefined: all rows brittle"
NO_SCORE = "undefined: score is missing on every row"


def ranking_state(scores: Floats, brittle: Booleans) -> str:
    """Why the AUROC of a score can or cannot be computed on the rows that have one."""
    if len(brittle) == 0:
        return NO_ROWS
    defined = ~np.isnan(scores)
    if not defined.any():
        return NO_SCORE
    hits = int(brittle[defined].sum())
    if hits == 0:
        return NO_BRITTLE
    return ALL_BRITTLE if hits == int(defined.sum()) else DEFINED


def auroc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """P(s+ > s-) + P(s+ = s-) / 2 over pairs of a positive and a negative row; NaN when a class is empty.

    Rows whose score is NaN are left out.
    """
    s, b = _known(scores, positive)
    n_positive = int(b.sum())
    n_pairs = n_positive * (len(b) - n_positive)
    if n_pairs == 0:
        return math.nan
    return float((stats.rankdata(s)[b].sum() - n_positive * (n_positive + 1) / 2) / n_pairs)


def capture_at(scores: npt.ArrayLike, positive: npt.ArrayLike, budget: float) -> float:
    """Capture@q = |Top_q(s) & B| / |B|, Top_q the ceil(q n) highest scores; expected value over tied orders.

    NaN when there are no positives.
    """
    if not 0.0 < budget <= 1.0:
        raise DataError(f"review budget must be a share in (0, 1], got {budget!r}")
    s, b = _known(scores, positive)
    if not b.any():
        return math.nan
    size, hits = _tie_blocks(s, b)
    slots = math.ceil(budget * len(s) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
    captured = np.clip(slots - (np.cumsum(size) - size), 0, size)
    return float((captured / size * hits).sum() / hits.sum())


def false_confidence_captured(
    scores: npt.ArrayLike, brittle: npt.ArrayLike, wrong: npt.ArrayLike, budget: float = 0.20
) -> float:
    """Share of wrong high-confidence predictions that break under stress found in the top `budget`; NaN if none."""
    brittle_and_wrong = np.asarray(brittle, dtype=bool) & np.asarray(wrong, dtype=bool)
    return capture_at(scores, brittle_and_wrong, budget)


def residual_risk(scores: npt.ArrayLike, positive: npt.ArrayLike) -> Floats:
    """Share of brittle rows among those left after the j highest-ranked are escalated, j = 0..n-1."""
    s, b = _known(scores, positive)
    if len(s) == 0:
        return np.zeros(0)
    size, hits = _tie_blocks(s, b)
    per_row = np.repeat(hits / size, size)  # within a tie, brittle rows are spread evenly
    left = np.cumsum(per_row[::-1])[::-1]
    return left / np.arange(len(s), 0, -1)


def aurc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Mean residual brittle risk over escalation depths, (1/n) sum_j risk_j; lower is better; NaN if no positives."""
    b = _known(scores, positive)[1]
    return float(residual_risk(scores, positive).mean()) if b.any() else math.nan


def _known(scores: npt.ArrayLike, positive: npt.ArrayLike) -> tuple[Floats, Booleans]:
    s, b = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    if s.shape != b.shape or s.ndim != 1:
        raise DataError(f"scores and labels must be one value per row, got shapes {s.shape} and {b.shape}")
    defined = ~np.isnan(s)
    return s[defined], b[defined]


def _tie_blocks(s: Floats, b: Booleans) -> tuple[Integers, Integers]:
    """Rows and positives in every block of equal scores, highest score first."""
    values, place = np.unique(-s, return_inverse=True)
    size = np.bincount(place, minlength=len(values))
    return size, np.bincount(place, weights=b, minlength=len(values)).astype(np.int64)


def better_direction(scores: npt.ArrayLike, brittle: npt.ArrayLike, fallback: int = 1) -> int:
    """+1 if s, -1 if -s has the higher AUROC; `fallback` if it is undefined or exactly 1/2."""
    area = auroc(scores, brittle)
    if math.isnan(area) or area == 0.5:
        return fallback
    return 1 if area > 0.5 else -1


@dataclass(frozen=True, slots=True, eq=False)
class MeanInterval(NanEqual):
    """A mean over units with its percentile interval; `undefined` units are counted, not averaged."""

    mean: float
    low: float
    high: float
    standard_deviation: float
    units: int
    undefined: int


@dataclass(frozen=True, slots=True, eq=False)
class PairedDifference(NanEqual):
    """Mean of a - b over paired units, its percentile interval, and how many units agree with its sign."""

    mean: float
    low: float
    high: float
    win_rate: float  # share of units with a > b
    not_better: float  # share of units with a - b <= 0
    units: int
    undefined: int


def bootstrap_mean(
    values: npt.ArrayLike, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> MeanInterval:
    """Mean over units with the percentile bootstrap interval (units resampled with replacement)."""
    v = np.asarray(values, dtype=np.float64)
    defined = v[~np.isnan(v)]
    low = high = math.nan
    if len(defined) > 1 and np.ptp(defined) == 0.0:  # scipy returns NaN for a degenerate distribution
        low = high = float(defined[0])
    elif len(defined) > 1:
        interval = stats.bootstrap(
            (defined,),
            np.mean,
            n_resamples=resamples,
            confidence_level=level,
            method="percentile",
            vectorized=True,
            batch=max(1, 2**22 // len(defined)),
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    spread = float(defined.std(ddof=1)) if len(defined) > 1 else math.nan
    mean = float(defined.mean()) if len(defined) else math.nan
    return MeanInterval(mean, low, high, spread, len(defined), len(v) - len(defined))


def paired_bootstrap(
    a: npt.ArrayLike, b: npt.ArrayLike, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> PairedDifference:
    """Paired bootstrap of mean(a - b) over units; a unit where either is NaN is undefined and counted."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(f"paired values must have one entry per unit, got shapes {first.shape} and {second.shape}")
    difference = first - second
    mean = bootstrap_mean(difference, resamples=resamples, level=level, seed=seed)
    counts = int((difference > 0).sum()), int((difference <= 0).sum())  # NaN is in neither
    win, lose = (count / mean.units if mean.units else math.nan for count in counts)
    return PairedDifference(mean.mean, mean.low, mean.high, win, lose, mean.units, mean.undefined)


def resampled_aurocs(
    scores: Sequence[Floats],
    positive: npt.ArrayLike,
    *,
    resamples: int = 2_000,
    seed: int = 0,
    units: Integers | None = None,
    count: int | None = None,
) -> Floats:
    """AUROC of every score on the same row resamples, (scores, resamples); NaN where a resample lacks a class.

    Rows are the units of one model. Each resample is a vector of row weights, so every score is sorted once.
    units: (n,) from 0 on, where several entries belong to one row and are drawn together. count: how many units there
    are, if these need not be all; equal counts and seeds draw the same rows.
    """
    label = np.asarray(positive, dtype=bool)
    out = np.full((len(scores), resamples), np.nan)
    if not label.any() or label.all():
        return out
    negative, positives = np.flatnonzero(~label), np.flatnonzero(label)
    placed = []  # negatives by ascending score; how many have a lower, and how many no higher score than each positive
    for s in (np.asarray(score, dtype=np.float64) for score in scores):
        ascending = negative[np.argsort(s[negative], kind="stable")]
        placed.append((ascending, *(np.searchsorted(s[ascending], s[positives], side=x) for x in ("left", "right"))))
    generator = np.random.default_rng(seed)
    n = count or (len(label) if units is None else int(units.max()) + 1)
    batch = max(1, 2**20 // len(label))  # 8 MB of weights stay in cache better than more
    for start in range(0, resamples, batch):
        stop = min(start + batch, resamples)
        weights = generator.multinomial(n, np.full(n, 1.0 / n), size=stop - start).astype(np.float64)
        weights = weights if units is None else weights[:, units]
        of_positives = weights[:, positives]
        for index, (ascending, below, up_to) in enumerate(placed):
            passed = np.zeros((len(weights), len(negative) + 1))
            np.cumsum(np.take(weights, ascending, axis=1), axis=1, out=passed[:, 1:])
            won = (of_positives * (passed[:, below] + passed[:, up_to])).sum(axis=1) / 2.0  # half of a tie counts
            with np.errstate(invalid="ignore"):
                out[index, start:stop] = won / (of_positives.sum(axis=1) * passed[:, -1])
    return out


def quantile_interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """Return the central interval of the values that are not NaN."""
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return math.nan, math.nan
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(defined, [tail, 1.0 - tail])
    return float(low), float(high)


# --- probabilities --------------------------------------------------------------------------------------------

BINS = 15


@dataclass(frozen=True, slots=True, repr=False)
class ReliabilityCurve(BriefRepr):
    """Confidence and accuracy in each confidence bin; empty bins carry NaN and a zero count.

    edges (B+1,), confidence (B,) mean top probability, accuracy (B,) share predicted right, count (B,).
    """

    edges: Floats
    confidence: Floats
    accuracy: Floats
    count: Integers

    @property
    def calibration_error(self) -> float:
        """sum_b (n_b / n) * | accuracy_b - confidence_b |."""
        filled = self.count > 0
        gap = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.sum(self.count[filled] * gap) / self.count.sum())


def class_codes(y: ArrayLike, classes: ArrayLike) -> Integers:
    """Return the column of every label of ``y`` in the declared class order."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError(f"y must have one label per row (1 dimension), got shape {labels.shape}")
    # tolist gives Python scalars, so 1, 1.0 and np.int64(1) meet and True does not depend on its array's dtype
    column = {label: code for code, label in enumerate(np.asarray(classes).tolist())}
    values = labels.tolist()
    unknown = sorted({repr(value) for value in values if value not in column})
    if unknown:
        raise DataError(
            Advice("y", "the --target column"),
            f" holds {', '.join(unknown[:5])}, not among the model's classes {list(column)}; "
            "give the labels the model was trained on",
        )
    return np.fromiter((column[value] for value in values), dtype=np.int64, count=len(values))


def reliability_curve(probabilities: ArrayLike, y: ArrayLike, bins: int = BINS) -> ReliabilityCurve:
    """Confidence against accuracy in ``bins`` equal-width bins of the top probability.

    Bin b holds the rows with (b-1)/B < max_c p_ic <= b/B; a confidence of exactly 0 would go to the first.
    The predicted class is the first column holding the maximum.
    """
    p, code = _check_columns(probabilities, y)
    if bins < 1:
        raise DataError(f"bins must be at least 1, got {bins}")
    edges = np.linspace(0.0, 1.0, bins + 1)
    confidence = p.max(axis=1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    right = (p.argmax(axis=1) == code).astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(place, weights=confidence, minlength=bins) / count
        accuracy = np.bincount(place, weights=right, minlength=bins) / count
    return ReliabilityCurve(edges, mean_confidence, accuracy, count)


def expected_calibration_error(probabilities: ArrayLike, y: ArrayLike, bins: int = BINS) -> float:
    """ECE = sum_b (n_b / n) * | accuracy_b - confidence_b | over equal-width bins of the top probability.

    Zero when in every bin the share predicted right equals the mean confidence.
    """
    return reliability_curve(probabilities, y, bins).calibration_error


def brier_score(probabilities: ArrayLike, y: ArrayLike) -> float:
    """Brier = (1/n) sum_i sum_c (p_ic - [y_i = c])^2; with two classes half of it, as in scikit-learn.

    Zero only when every true class has probability one.
    """
    p, code = _check_columns(probabilities, y)
    error = p.copy()
    error[np.arange(len(code)), code] -= 1.0
    total = float(np.mean(np.sum(error * error, axis=1)))
    return total / 2.0 if p.shape[1] == 2 else total


def negative_log_likelihood(probabilities: ArrayLike, y: ArrayLike) -> float:
    """NLL = -(1/n) sum_i log max(p_{i, y_i}, 1e-12), in nats; the clip is the score conversion's (SPEC section 2)."""
    p, code = _check_columns(probabilities, y)
    return float(-np.mean(np.log(np.maximum(p[np.arange(len(code)), code], CLIP))))


@dataclass(frozen=True, slots=True, eq=False)
class PredictiveMetrics(NanEqual):
    """Ordinary quality of a classifier on held-out rows; NaN where a class is absent."""

    rows: int
    accuracy: float
    macro_f1: float
    auroc: float
    average_precision: float
    nll: float
    ece: float
    brier: float


def predictive_metrics(p: ArrayLike, y: ArrayLike) -> PredictiveMetrics:
    """Accuracy, macro-F1, AUROC, average precision, NLL, ECE (15 bins) and Brier; p (n, C), y class columns (n,).

    AUROC and average precision: the second class against the first for two classes; macro average of one-vs-rest
    for more, NaN when a class does not occur.
    """
    probabilities, code = np.asarray(p, dtype=np.float64), np.asarray(y, dtype=np.int64)
    predicted, n_classes = probabilities.argmax(axis=1), probabilities.shape[1]
    area = precision = math.nan
    if len(np.unique(code)) == n_classes:
        columns = [1] if n_classes == 2 else range(n_classes)
        area = float(np.mean([auroc(probabilities[:, c], code == c) for c in columns]))
        precision = float(np.mean([average_precision_score(code == c, probabilities[:, c]) for c in columns]))
    return PredictiveMetrics(
        rows=len(code),
        accuracy=float(accuracy_score(code, predicted)),
        macro_f1=float(f1_score(code, predicted, average="macro")),
        auroc=area,
        average_precision=precision,
        nll=negative_log_likelihood(probabilities, code),
        ece=expected_calibration_error(probabilities, code),
        brier=brier_score(probabilities, code),
    )


def check_probabilities(probabilities: ArrayLike) -> Floats:
    """Return probabilities (n, C) as float64; refuse values that are not probabilities."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise DataError(f"probabilities must be (rows, classes) with rows >= 1 and classes >= 2, got shape {p.shape}")
    if not np.isfinite(p).all() or p.min() < 0.0 or np.abs(p.sum(axis=1) - 1.0).max() > 1e-3:
        raise DataError("probabilities must be finite, non-negative and sum to 1 in every row")
    return p


def _check_columns(probabilities: ArrayLike, y: ArrayLike) -> tuple[Floats, Integers]:
    """Return probabilities and the column of each true class; refuse those that do not belong together."""
    p, code = check_probabilities(probabilities), np.asarray(y)
    if code.shape != (p.shape[0],):
        raise DataError(f"y must have one entry for each of the {p.shape[0]} rows, got shape {code.shape}")
    if code.dtype.kind not in "iu":
        raise DataError(
            f"y must hold class columns (integers 0..{p.shape[1] - 1}), got {code.dtype} values; "
            "use class_codes(y, classes) for labels"
        )
    if code.min() < 0 or code.max() >= p.shape[1]:
        raise DataError(f"y must lie in 0..{p.shape[1] - 1}, got values from {code.min()} to {code.max()}")
    return p, code.astype(np.int64)
