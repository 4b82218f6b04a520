"""Quality of a classifier's probabilities: calibration error, Brier score, likelihood, discrimination.

Every function takes ``probabilities`` (n, C), rows summing to one, and ``y`` (n,), the *column* of the true class.
`class_codes` turns labels of any kind into columns. Pure functions on arrays: nothing here knows about models.

Letters: n rows, C classes, B bins; p_ic the probability row i gives to class c; y_i the true column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from fragility.analysis.ranking.metrics import auroc
from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, DataError
from fragility.base.text import BriefRepr
from fragility.pages.saving import NanEqual
from fragility.scores import CLIP

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
    """Return probabilities (n, C) as float64; refuse what are none."""
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
