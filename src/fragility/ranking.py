"""Ranking scores, ranking metrics and their uncertainty: does a score put the brittle cases first?

A ranking score s gives every prediction a number; the metrics ask how well descending s finds the brittle rows among
the high-confidence ones. Scores are computed here without the label channel: this module does not import
`fragility.stress`, and labels enter only as arrays at the metrics.

Scores, with p~ and z~ the clipped probabilities and centred pseudo-logits of app:score_conversion:

    max_softmax          max_c p~_c                        negative_entropy   sum_c p~_c log p~_c
    margin               z~_(1) - z~_(2)                   negative_energy    log sum_c exp z~_c
    one_step_drop        max_g delta_g                     random_order       mean RCMA along random group orders
    permutation_order    RCMA along one global order       group_shap         share of |SHAP| in the top groups
    cfc_rcma             RCMA                              cfc_fds            FDS
    inverse_flip_budget  1 / k*                            inverse_threshold  mean_P 1 / (lambda*_P + 1e-8)

(The paper's formula for "negative entropy" is the entropy itself; its table agrees with the name, and so do we.)

Orientation. The four confidence scores are large where the model is sure. Every non-certificate score is reported as
the paper ranks by it (`orientation = "paper"`: s as written above) and `oriented`: the better of s and -s on
validation rows. Certificate scores are never turned round.

Ties. A metric with a cut (capture, area under the residual-risk curve) takes its expected value over all orders of
tied rows, so it depends neither on row order nor on luck.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple
from typing import Protocol as Shape

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from fragility.arrays import STRESS_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.certificate import Certificates
from fragility.errors import DataError
from fragility.evidence import EvidenceRows
from fragility.metrics import brier_score, expected_calibration_error, negative_log_likelihood
from fragility.protocol import Protocol
from fragility.scores import (
    clipped_probabilities,
    collapse,
    current_margin,
    degradation_risk,
    predicted_class,
    pseudo_logits,
    rcma,
    reading_margin,
    sigmoid_probabilities,
)

Predict = Callable[[Floats], Floats]

CONFIDENCE_SCORES = ("max_softmax", "negative_entropy", "margin", "negative_energy")
PERTURBATION_SCORES = ("random_order", "one_step_drop", "permutation_order")
ATTRIBUTION_SCORES = ("group_shap",)
CERTIFICATE_SCORES = ("cfc_rcma", "cfc_fds", "inverse_flip_budget", "inverse_threshold")
BUDGETS = (0.05, 0.10, 0.20)


def score_kind(name: str) -> str:
    """Family of a score: confidence, perturbation, attribution, certificate, or other (a user's own)."""
    families = {
        "confidence": CONFIDENCE_SCORES,
        "perturbation": PERTURBATION_SCORES,
        "attribution": ATTRIBUTION_SCORES,
        "certificate": CERTIFICATE_SCORES,
    }
    return next((kind for kind, names in families.items() if name in names), "other")


def natural_direction(name: str) -> int:
    """+1 where a large value is meant to be brittle, -1 where it is meant to be safe (confidence)."""
    return -1 if score_kind(name) == "confidence" else 1


# --- scores from probabilities -----------------------------------------------------------------------------------


def max_softmax(p: npt.ArrayLike) -> Floats:
    """max_c p~_c; p (n, C) -> (n,)."""
    return clipped_probabilities(p).max(axis=-1)


def negative_entropy(p: npt.ArrayLike) -> Floats:
    """sum_c p~_c log p~_c; p (n, C) -> (n,). Zero for a certain prediction, -log C for an even one."""
    clipped = clipped_probabilities(p)
    return (clipped * np.log(clipped)).sum(axis=-1)


def margin(p: npt.ArrayLike) -> Floats:
    """z~_(1) - z~_(2); p (n, C) -> (n,)."""
    return current_margin(p)


def negative_energy(p: npt.ArrayLike) -> Floats:
    """log sum_c exp z~_c; p (n, C) -> (n,). With two classes log(2 cosh(m / 2)), strictly increasing in m."""
    return logsumexp(pseudo_logits(p), axis=-1)


def confidence_scores(p: npt.ArrayLike) -> dict[str, Floats]:
    """The four scores that need only the probabilities at x."""
    return {
        "max_softmax": max_softmax(p),
        "negative_entropy": negative_entropy(p),
        "margin": margin(p),
        "negative_energy": negative_energy(p),
    }


# --- scores from certificates ------------------------------------------------------------------------------------


def certificate_scores(certs: Certificates) -> dict[str, Floats]:
    """RCMA, FDS, each remaining component alone, and the one-step drop, from the certificates' own columns."""
    claims = certs.claims
    return {
        "cfc_fds": claims.fds,
        "cfc_rcma": claims.rcma,
        "inverse_flip_budget": 1.0 / claims.flip_budget,
        "inverse_threshold": degradation_risk(claims.thresholds),
        "one_step_drop": claims.one_step_drop.max(axis=1),
    }


def scores_of(certs: Certificates, probabilities: npt.ArrayLike | None = None) -> dict[str, Floats]:
    """All scores that need no further model calls, in the order of tables.

    Without `probabilities` the confidence scores come from the certificates: for two classes all four (the margin
    determines the probabilities), for more only max_softmax and margin.
    """
    if probabilities is not None:
        return {**confidence_scores(probabilities), **certificate_scores(certs)}
    claims = certs.claims
    if len(certs.classes) == 2:
        return {**confidence_scores(sigmoid_probabilities(claims.margin)), **certificate_scores(certs)}
    known = {"max_softmax": claims.confidence, "margin": claims.margin}
    return {**known, **certificate_scores(certs)}


# --- scores along other removal orders ---------------------------------------------------------------------------


def rcma_along(
    rows: EvidenceRows,
    protocol: Protocol,
    order: npt.ArrayLike,
    *,
    predict: Predict | None = None,
    byte_budget: int = STRESS_BYTE_BUDGET,
) -> Floats:
    """RCMA of every row when groups are removed in a given order instead of the certificate's.

    order: group indices, (G,) for one order or (n, G) for one a row; the first K = protocol.depth are removed.
    """
    ask = rows.predict if predict is None else predict
    n, d = rows.matrix.shape
    depth = min(protocol.depth, int(rows.n_groups))
    orders = np.broadcast_to(np.asarray(order, dtype=np.int64), (n, np.shape(order)[-1]))[:, :depth]
    out = np.empty(n)
    chunk = rows_within(byte_budget, d * (depth + 1), copies=4)
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        out[start:stop] = _rcma_chunk(rows, protocol, orders[start:stop], start, stop, ask)
    return out


def _rcma_chunk(
    rows: EvidenceRows, protocol: Protocol, orders: Integers, start: int, stop: int, ask: Predict
) -> Floats:
    x = np.asarray(rows.dense(start, stop), dtype=np.float64)
    n, depth = orders.shape
    rank = np.full((n, int(rows.n_groups)), depth, dtype=np.int64)  # never removed within the depth
    np.put_along_axis(rank, orders, np.arange(depth)[None, :].repeat(n, axis=0), axis=1)
    removed = rank[:, None, :] < np.arange(depth + 1)[None, :, None]
    states = np.where(removed[:, :, rows.column_group], rows.baseline, x[:, None, :])
    p = ask(states.reshape(-1, x.shape[1])).reshape(n, depth + 1, -1)
    original = predicted_class(p[:, 0], protocol.resolution)
    margins = reading_margin(p, original[:, None], protocol.reading)
    return rcma(collapse(margins[:, 0], margins, protocol.reading))


def random_order_score(
    rows: EvidenceRows, protocol: Protocol, *, repeats: int = 5, seed: int = 0, predict: Predict | None = None
) -> Floats:
    """Mean RCMA over `repeats` random group orders, each order common to all rows."""
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(int(rows.n_groups)) for _ in range(repeats)]
    return np.mean([rcma_along(rows, protocol, order, predict=predict) for order in orders], axis=0)


def permutation_importance_order(
    rows: EvidenceRows,
    y: npt.ArrayLike,
    *,
    repeats: int = 3,
    seed: int = 0,
    predict: Predict | None = None,
) -> Integers:
    """Groups by descending increase of validation NLL when the group's columns are permuted together across rows.

    rows: validation rows; y: their class columns (`fragility.metrics.class_codes`). Ties keep declared order.
    """
    ask = rows.predict if predict is None else predict
    x = np.asarray(rows.dense(0, rows.matrix.shape[0]), dtype=np.float64)
    code = np.asarray(y, dtype=np.int64)
    base = negative_log_likelihood(ask(x), code)
    generator = np.random.default_rng(seed)
    increase = np.zeros(int(rows.n_groups))
    for _ in range(repeats):
        shuffle = generator.permutation(len(x))
        for group in range(len(increase)):
            columns = np.flatnonzero(np.asarray(rows.column_group) == group)
            permuted = x.copy()
            permuted[:, columns] = x[np.ix_(shuffle, columns)]
            increase[group] += (negative_log_likelihood(ask(permuted), code) - base) / repeats
    return np.argsort(-increase, kind="stable")


# --- group-SHAP --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class GroupShap:
    """Absolute SHAP mass of every group on the explained rows; `score` is NaN on rows that were not explained."""

    explainer: str  # "tree", "linear" or "permutation"
    explained: Integers  # (s,) row positions
    mass: Floats  # (s, G) sum of |SHAP| within each group
    score: Floats  # (n,) share of the `top` largest groups
    top: int


def group_shap(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    background: npt.ArrayLike | None = None,
    top: int = 3,
    max_rows: int | None = None,
    among: npt.ArrayLike | None = None,
    seed: int = 0,
) -> GroupShap:
    """Share of absolute SHAP mass in the `top` groups: is the explanation concentrated?

    In the transformed space the estimator decides the explainer: TreeExplainer for tree ensembles, LinearExplainer for
    linear models (against `background`, by default the baseline row). Everything else, and the raw space, goes
    through permutation masking of whole groups toward the baseline. With several classes the predicted class counts.

    max_rows: explain a random subset of this many rows (declare it; at least 256 in the study); None explains all.
    among: (n,) the rows to choose from, e.g. the high-confidence ones; None chooses from all.
    """
    n, head = len(rows), rows.model.head
    picked = np.arange(n) if among is None else np.flatnonzero(among)
    if max_rows is not None and max_rows < len(picked):
        picked = np.sort(np.random.default_rng(seed).choice(picked, size=max_rows, replace=False))
    x = np.asarray(rows.dense(0, n), dtype=np.float64)[picked]
    family = _explainer_family(head) if protocol.space == "transformed" else "permutation"
    original = predicted_class(rows.predict(x), protocol.resolution)
    if family == "tree":
        mass = _by_group(_tree_shap(head, x, original), rows)
    elif family == "linear":
        reference = np.asarray(rows.baseline)[None, :] if background is None else np.asarray(background)
        mass = _by_group(_linear_shap(head, x, original, reference), rows)
    else:
        mass = _permutation_shap(rows, x, original, seed)
    score = np.full(n, np.nan)
    score[picked] = concentration(mass, top)
    return GroupShap(family, picked, mass, score, top)


def concentration(mass: Floats, top: int = 3) -> Floats:
    """Share of each row's mass that its `top` largest groups hold; 0 where there is no mass at all."""
    largest = -np.sort(-mass, axis=1)[:, :top]
    total = mass.sum(axis=1)
    return np.divide(largest.sum(axis=1), total, out=np.zeros(len(mass)), where=total > 0.0)


def _explainer_family(estimator: Any) -> str:
    """Which SHAP explainer fits an estimator, by its class and the library it comes from."""
    name, module = type(estimator).__name__, type(estimator).__module__.split(".")[0]
    if module in {"xgboost", "lightgbm", "catboost"}:
        return "tree"
    if module == "sklearn" and name in _SKLEARN_TREES:
        return "tree"
    return "linear" if module == "sklearn" and name in _SKLEARN_LINEAR else "permutation"


_SKLEARN_TREES = {
    "DecisionTreeClassifier",
    "ExtraTreeClassifier",
    "ExtraTreesClassifier",
    "GradientBoostingClassifier",
    "HistGradientBoostingClassifier",
    "RandomForestClassifier",
}
_SKLEARN_LINEAR = {"LogisticRegression", "LogisticRegressionCV", "SGDClassifier", "LinearDiscriminantAnalysis"}


def _import_shap() -> Any:
    try:
        import shap
    except ImportError as error:
        raise DataError("group-SHAP needs the package 'shap': pip install 'fragility[shap]'") from error
    return shap


def _of_class(values: Any, original: Integers) -> Floats:
    """SHAP values of the predicted class, (n, d), from (n, d), (n, d, C) or a list of C arrays."""
    array = np.stack(values, axis=-1) if isinstance(values, list) else np.asarray(values)
    return array if array.ndim == 2 else np.take_along_axis(array, original[:, None, None], axis=2)[:, :, 0]


def _tree_shap(estimator: Any, x: Floats, original: Integers) -> Floats:
    explainer = _import_shap().TreeExplainer(estimator)
    with warnings.catch_warnings():
        # Said to callers who rely on the old layout of the values; `_of_class` reads both.
        warnings.filterwarnings("ignore", message="LightGBM binary classifier")
        return _of_class(explainer.shap_values(x, check_additivity=False), original)


def _linear_shap(estimator: Any, x: Floats, original: Integers, background: Floats) -> Floats:
    explainer = _import_shap().LinearExplainer(estimator, background)
    return _of_class(explainer.shap_values(x), original)


def _permutation_shap(rows: EvidenceRows, x: Floats, original: Integers, seed: int) -> Floats:
    """|Shapley value| of whole groups for the log-odds-like support of the predicted class; (n, G)."""
    shap = _import_shap()
    n_groups = int(rows.n_groups)
    mass = np.empty((len(x), n_groups))
    for index, row in enumerate(x):

        def support(kept: npt.ArrayLike, row: Floats = row, index: int = index) -> Floats:
            present = np.asarray(kept)[:, rows.column_group] > 0.5
            return pseudo_logits(rows.predict(np.where(present, row, rows.baseline)))[:, original[index]]

        explainer = shap.PermutationExplainer(support, np.zeros((1, n_groups)), seed=seed)
        explained = explainer(np.ones((1, n_groups)), max_evals=4 * n_groups + 2, silent=True)
        mass[index] = np.abs(explained.values[0])
    return mass


def _by_group(values: Floats, rows: EvidenceRows) -> Floats:
    """Absolute values summed within groups; (n, d) -> (n, G)."""
    out = np.zeros((len(values), int(rows.n_groups)))
    np.add.at(out.T, np.asarray(rows.column_group), np.abs(values).T)
    return out


# --- metrics -----------------------------------------------------------------------------------------------------

DEFINED = "defined"
NO_ROWS = "undefined: no rows"
NO_BRITTLE = "undefined: no brittle rows"
ALL_BRITTLE = "undefined: all rows brittle"
NO_SCORE = "undefined: score is missing on every row"


def ranking_state(scores: Floats, brittle: Booleans) -> str:
    """Why the AUROC of a score can or cannot be computed on the rows that have one."""
    if len(brittle) == 0:
        return NO_ROWS
    known = ~np.isnan(scores)
    if not known.any():
        return NO_SCORE
    hits = int(brittle[known].sum())
    if hits == 0:
        return NO_BRITTLE
    return ALL_BRITTLE if hits == int(known.sum()) else DEFINED


def auroc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """P(s+ > s-) + P(s+ = s-) / 2 over pairs of a positive and a negative row; NaN when a class is empty.

    Rows whose score is NaN are left out.
    """
    s, b = _known(scores, positive)
    n_positive = int(b.sum())
    n_negative = len(b) - n_positive
    if n_positive == 0 or n_negative == 0:
        return math.nan
    ranks = stats.rankdata(s)
    return float((ranks[b].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


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
    taken = np.clip(slots - (np.cumsum(size) - size), 0, size)
    return float((taken / size * hits).sum() / hits.sum())


def false_confidence_captured(
    scores: npt.ArrayLike, brittle: npt.ArrayLike, wrong: npt.ArrayLike, budget: float = 0.20
) -> float:
    """Share of wrong high-confidence predictions that break under stress found in the top `budget`; NaN if none."""
    both = np.asarray(brittle, dtype=bool) & np.asarray(wrong, dtype=bool)
    return capture_at(scores, both, budget)


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
        raise DataError(f"scores and labels must be one value a row, got shapes {s.shape} and {b.shape}")
    known = ~np.isnan(s)
    return s[known], b[known]


def _tie_blocks(s: Floats, b: Booleans) -> tuple[Integers, Integers]:
    """Rows and positives in every block of equal scores, highest score first."""
    values, place = np.unique(-s, return_inverse=True)
    size = np.bincount(place, minlength=len(values))
    return size, np.bincount(place, weights=b, minlength=len(values)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PredictiveMetrics:
    """Ordinary quality of a classifier on held-out rows; NaN where a class is absent."""

    rows: int
    accuracy: float
    macro_f1: float
    auroc: float
    average_precision: float
    nll: float
    ece: float
    brier: float


def predictive_metrics(p: npt.ArrayLike, y: npt.ArrayLike) -> PredictiveMetrics:
    """Accuracy, macro-F1, AUROC, average precision, NLL, ECE (15 bins) and Brier; p (n, C), y class columns (n,).

    AUROC and average precision: the second class against the first for two classes; macro average of one-vs-rest
    for more, NaN when a class does not occur.
    """
    probabilities, code = np.asarray(p, dtype=np.float64), np.asarray(y, dtype=np.int64)
    predicted = probabilities.argmax(axis=1)
    area, precision = _discrimination(probabilities, code)
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


def _discrimination(p: Floats, code: Integers) -> tuple[float, float]:
    n_classes = p.shape[1]
    if len(np.unique(code)) < n_classes:
        return math.nan, math.nan
    columns = [1] if n_classes == 2 else range(n_classes)
    areas = [roc_auc_score(code == c, p[:, c]) for c in columns]
    precisions = [average_precision_score(code == c, p[:, c]) for c in columns]
    return float(np.mean(areas)), float(np.mean(precisions))


# --- orientation -------------------------------------------------------------------------------------------------


def better_direction(scores: npt.ArrayLike, brittle: npt.ArrayLike, fallback: int = 1) -> int:
    """+1 if s, -1 if -s has the higher AUROC; `fallback` where that is undefined or exactly 1/2."""
    area = auroc(scores, brittle)
    if math.isnan(area) or area == 0.5:
        return fallback
    return 1 if area > 0.5 else -1


# --- bootstrap over units ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean over units with its percentile interval; `undefined` units are counted, not averaged."""

    mean: float
    low: float
    high: float
    standard_deviation: float
    units: int
    undefined: int


@dataclass(frozen=True, slots=True)
class PairedDifference:
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
    known = v[~np.isnan(v)]
    low, high = _percentile_interval(known, resamples, level, seed)
    spread = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    mean = float(known.mean()) if len(known) else math.nan
    return MeanInterval(mean, low, high, spread, len(known), len(v) - len(known))


def paired_bootstrap(
    a: npt.ArrayLike, b: npt.ArrayLike, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> PairedDifference:
    """Paired bootstrap of mean(a - b) over units; a unit where either is NaN is undefined and counted."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(f"paired values must have one entry a unit, got shapes {first.shape} and {second.shape}")
    interval = bootstrap_mean(first - second, resamples=resamples, level=level, seed=seed)
    known = (first - second)[~np.isnan(first - second)]
    win = float((known > 0).mean()) if len(known) else math.nan
    lose = float((known <= 0).mean()) if len(known) else math.nan
    return PairedDifference(interval.mean, interval.low, interval.high, win, lose, interval.units, interval.undefined)


def _percentile_interval(values: Floats, resamples: int, level: float, seed: int) -> tuple[float, float]:
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0.0:  # scipy calls a degenerate distribution NaN; every resample has this very mean
        return float(values[0]), float(values[0])
    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        batch=max(1, 2**22 // len(values)),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def bootstrap_auroc_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    positive: npt.ArrayLike,
    *,
    resamples: int = 2_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of AUROC(a) - AUROC(b) when rows are resampled; for one model, where rows are the units.

    Resamples without one of the two classes are left out. NaN when the difference itself is undefined.
    """
    first, second = resampled_aurocs([np.asarray(a), np.asarray(b)], positive, resamples=resamples, seed=seed)
    return _quantile_interval(first - second, level)


def resampled_aurocs(
    scores: Sequence[Floats], positive: npt.ArrayLike, *, resamples: int = 2_000, seed: int = 0
) -> Floats:
    """AUROC of every score on the same row resamples, (scores, resamples); NaN where a resample lacks a class.

    Each resample is a vector of row weights, so every score is sorted once.
    """
    label = np.asarray(positive, dtype=bool)
    out = np.full((len(scores), resamples), np.nan)
    if not label.any() or label.all():
        return out
    generator = np.random.default_rng(seed)
    placed = [_places(np.asarray(s, dtype=np.float64), label) for s in scores]
    n, batch = len(label), max(1, 2**20 // len(label))  # 8 MB of weights stay in cache better than more
    for start in range(0, resamples, batch):
        stop = min(start + batch, resamples)
        weights = generator.multinomial(n, np.full(n, 1.0 / n), size=stop - start).astype(np.float64)
        for index, places in enumerate(placed):
            out[index, start:stop] = _weighted_auroc(weights, places)
    return out


def _quantile_interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return math.nan, math.nan
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(known, [tail, 1.0 - tail])
    return float(low), float(high)


class _Places(NamedTuple):
    """Where the positive rows of one score fall among its negative rows."""

    negative: Integers  # (q,) negative rows by ascending score
    positive: Integers  # (p,) positive rows
    below: Integers  # (p,) negatives with a lower score
    up_to: Integers  # (p,) negatives with a lower or equal score


def _places(s: Floats, label: Booleans) -> _Places:
    negative, positive = np.flatnonzero(~label), np.flatnonzero(label)
    negative = negative[np.argsort(s[negative], kind="stable")]
    below, up_to = (np.searchsorted(s[negative], s[positive], side=side) for side in ("left", "right"))
    return _Places(negative, positive, below, up_to)


def _weighted_auroc(weights: Floats, places: _Places) -> Floats:
    """AUROC of each row of weights, (resamples, n) -> (resamples,); half of a tie counts."""
    passed = np.zeros((len(weights), len(places.negative) + 1))
    np.cumsum(np.take(weights, places.negative, axis=1), axis=1, out=passed[:, 1:])
    own = weights[:, places.positive]
    won = (own * (passed[:, places.below] + passed[:, places.up_to])).sum(axis=1) / 2.0
    with np.errstate(invalid="ignore"):
        return won / (own.sum(axis=1) * passed[:, -1])


# --- the report --------------------------------------------------------------------------------------------------


class Labels(Shape):
    """What the metrics need of a set of brittle labels (see `fragility.stress.BrittleLabels`)."""

    @property
    def id(self) -> npt.NDArray[Any]:
        """Sample ids."""
        ...

    @property
    def high_confidence(self) -> Booleans:
        """Rows the ranking is judged on."""
        ...

    @property
    def brittle(self) -> Booleans:
        """The label."""
        ...

    @property
    def brittle_rate(self) -> Floats:
        """Share of draws that break the row."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """One score in one orientation. Metrics are NaN where undefined, and `state` says why."""

    score: str
    kind: str
    orientation: str  # "paper": s as defined; "oriented": direction * s
    direction: int
    state: str
    rows: int  # high-confidence rows that have this score
    brittle: int
    auroc: float
    capture_5: float
    capture_10: float
    capture_20: float
    false_confidence_captured_20: float
    aurc: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Label-noise ceiling: AUROC of the brittle rate over independent draws against the labels."""

    auroc: float
    state: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """AUROC of one score minus an oriented baseline on the rows both have, with an interval over rows."""

    score: str
    baseline: str
    difference: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True)
class RankingReport:
    """How well every score finds the brittle rows among the high-confidence ones."""

    rows: int
    high_confidence: int
    brittle: int
    wrong: int | None  # wrong high-confidence predictions; None when the truth was not given
    wrong_brittle: int | None
    orientation_source: str
    results: tuple[ScoreResult, ...]
    comparisons: tuple[Comparison, ...]
    ceiling: Ceiling | None

    def result(self, score: str, orientation: str = "oriented") -> ScoreResult:
        """The line of one score."""
        for line in self.results:
            if line.score == score and line.orientation == orientation:
                return line
        known = sorted({line.score for line in self.results})
        raise DataError(f"no result for score {score!r} ({orientation}); scores are {known}")

    def strongest(self, kinds: Sequence[str], metric: str = "auroc") -> ScoreResult | None:
        """The oriented line with the highest `metric` among the kinds; None when none is defined."""
        lines = [r for r in self.results if r.kind in kinds and r.orientation == "oriented"]
        known = [line for line in lines if not math.isnan(getattr(line, metric))]
        return max(known, key=lambda line: getattr(line, metric)) if known else None

    def undefined(self) -> dict[str, int]:
        """How many scores have no AUROC, by reason."""
        tally: dict[str, int] = {}
        for line in self.results:
            if line.orientation == "oriented" and line.state != DEFINED:
                tally[line.state] = tally.get(line.state, 0) + 1
        return tally

    def to_dict(self) -> dict[str, Any]:
        """Plain form: NaN as None."""
        document: dict[str, Any] = without_nan(asdict(self))
        return document

    def to_pandas(self) -> pd.DataFrame:
        """One row per score and orientation."""
        return pd.DataFrame([asdict(line) for line in self.results])

    def to_text(self) -> str:
        """A table to read in a terminal."""
        return render_report(self)

    def __str__(self) -> str:
        return render_report(self)


def ranking_report(
    certs: Certificates | None,
    labels: Labels,
    *,
    probabilities: npt.ArrayLike | None = None,
    scores: Mapping[str, npt.ArrayLike] | None = None,
    validation: tuple[Mapping[str, npt.ArrayLike], Labels] | None = None,
    wrong: npt.ArrayLike | None = None,
    independent: Labels | None = None,
    resamples: int = 2_000,
    seed: int = 0,
) -> RankingReport:
    """Every score's metrics on the high-confidence rows.

    Parameters
    ----------
    certs : certificates of the rows; None when `scores` holds everything.
    labels : brittle labels of the same rows (matched by id when certs are given).
    probabilities : (n, C) at x, for the entropy and energy of models with more than two classes.
    scores : further scores by name, (n,) each in the rows' order, NaN where unknown.
    validation : (scores, labels) of validation rows, which decide between s and -s. Without it the choice is made on
        the judged rows themselves, in every baseline's favour.
    wrong : (n,) whether the prediction is wrong, for FalseConfCaptured@20.
    independent : labels of the same rows from other draws, for the ceiling.
    resamples : row resamples for the intervals of the differences; 0 leaves them out.
    """
    own = {} if certs is None else scores_of(certs, probabilities)
    given = {name: np.asarray(s, dtype=np.float64) for name, s in (scores or {}).items()}
    table = _in_reading_order({**own, **given})
    matched = labels if certs is None else _matched(labels, certs.claims.ids)
    keep = np.asarray(matched.high_confidence, dtype=bool)
    brittle = np.asarray(matched.brittle, dtype=bool)[keep]
    misses = None if wrong is None else np.asarray(wrong, dtype=bool)[keep]
    kept = {name: _kept(name, s, keep) for name, s in table.items()}
    directions = _directions(kept, brittle, validation)
    lines = [line for n, s in kept.items() for line in _score_lines(n, s, directions[n], brittle, misses)]
    return RankingReport(
        rows=len(keep),
        high_confidence=int(keep.sum()),
        brittle=int(brittle.sum()),
        wrong=None if misses is None else int(misses.sum()),
        wrong_brittle=None if misses is None else int((misses & brittle).sum()),
        orientation_source="judged rows, in each baseline's favour" if validation is None else "validation rows",
        results=tuple(lines),
        comparisons=_comparisons(kept, directions, brittle, resamples, seed),
        ceiling=None if independent is None else label_noise_ceiling(labels, independent),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _MatchedLabels:
    id: npt.NDArray[Any]
    high_confidence: Booleans
    brittle: Booleans
    brittle_rate: Floats


def _matched(labels: Labels, ids: Sequence[object]) -> Labels:
    """Labels in the order of `ids`."""
    place = {str(sample): index for index, sample in enumerate(np.asarray(labels.id).tolist())}
    missing = [sample for sample in ids if str(sample) not in place]
    if missing:
        raise DataError(
            f"labels lack {len(missing)} of the {len(ids)} certified rows, e.g. id {missing[0]!r}; "
            "label the same rows with the same ids"
        )
    rows = np.asarray([place[str(sample)] for sample in ids], dtype=np.int64)
    return _MatchedLabels(
        np.asarray(labels.id)[rows], labels.high_confidence[rows], labels.brittle[rows], labels.brittle_rate[rows]
    )


def _in_reading_order(table: Mapping[str, Floats]) -> dict[str, Floats]:
    """Confidence first, a user's own scores after the known baselines, certificate scores last."""
    baselines = [*CONFIDENCE_SCORES, *PERTURBATION_SCORES, *ATTRIBUTION_SCORES]
    own = [name for name in table if score_kind(name) == "other"]
    return {name: table[name] for name in [*baselines, *own, *CERTIFICATE_SCORES] if name in table}


def _kept(name: str, scores: Floats, keep: Booleans) -> Floats:
    if scores.shape != keep.shape:
        raise DataError(f"score {name!r} must have one value for each of the {len(keep)} rows, got {scores.shape}")
    return scores[keep]


def _directions(
    kept: Mapping[str, Floats],
    brittle: Booleans,
    validation: tuple[Mapping[str, npt.ArrayLike], Labels] | None,
) -> dict[str, int]:
    """Direction of every score: certificate scores +1, the others the better one where it may be looked at."""
    found = {}
    for name, scores in kept.items():
        fallback = natural_direction(name)
        if score_kind(name) == "certificate":
            found[name] = 1
        elif validation is None:
            found[name] = better_direction(scores, brittle, fallback)
        else:
            found[name] = _validated_direction(name, validation, fallback)
    return found


def _validated_direction(name: str, validation: tuple[Mapping[str, npt.ArrayLike], Labels], fallback: int) -> int:
    scores, labels = validation
    if name not in scores:
        return fallback
    keep = np.asarray(labels.high_confidence, dtype=bool)
    return better_direction(np.asarray(scores[name])[keep], np.asarray(labels.brittle)[keep], fallback)


def _score_lines(
    name: str, scores: Floats, direction: int, brittle: Booleans, wrong: Booleans | None
) -> list[ScoreResult]:
    return [
        _score_line(name, scores, "paper", 1, brittle, wrong),
        _score_line(name, scores, "oriented", direction, brittle, wrong),
    ]


def _score_line(
    name: str, scores: Floats, orientation: str, direction: int, brittle: Booleans, wrong: Booleans | None
) -> ScoreResult:
    s = direction * scores
    known = ~np.isnan(s)
    captures = [capture_at(s, brittle, budget) for budget in BUDGETS]
    return ScoreResult(
        score=name,
        kind=score_kind(name),
        orientation=orientation,
        direction=direction,
        state=ranking_state(s, brittle),
        rows=int(known.sum()),
        brittle=int(brittle[known].sum()),
        auroc=auroc(s, brittle),
        capture_5=captures[0],
        capture_10=captures[1],
        capture_20=captures[2],
        false_confidence_captured_20=math.nan if wrong is None else false_confidence_captured(s, brittle, wrong),
        aurc=aurc(s, brittle),
    )


def _comparisons(
    kept: Mapping[str, Floats], directions: Mapping[str, int], brittle: Booleans, resamples: int, seed: int
) -> tuple[Comparison, ...]:
    """FDS and RCMA against every oriented baseline, on the rows that have the baseline's score."""
    baselines = [name for name in kept if score_kind(name) != "certificate"]
    subsets: dict[bytes, list[str]] = {}  # baselines known on the same rows share their resamples
    for name in baselines:
        subsets.setdefault(np.isnan(kept[name]).tobytes(), []).append(name)
    found: dict[tuple[str, str], Comparison] = {}
    for names in subsets.values():
        found |= _compare_subset(names, kept, directions, brittle, resamples, seed)
    return tuple(found[(s, b)] for s in _COMPARED if s in kept for b in baselines)


_COMPARED = ("cfc_fds", "cfc_rcma")


def _compare_subset(
    baselines: Sequence[str],
    kept: Mapping[str, Floats],
    directions: Mapping[str, int],
    brittle: Booleans,
    resamples: int,
    seed: int,
) -> dict[tuple[str, str], Comparison]:
    known = ~np.isnan(kept[baselines[0]])
    names = [*(s for s in _COMPARED if s in kept), *baselines]
    oriented = {name: directions[name] * kept[name][known] for name in names}
    label = brittle[known]
    area = {name: auroc(scores, label) for name, scores in oriented.items()}
    drawn = dict(zip(names, resampled_aurocs([*oriented.values()], label, resamples=resamples, seed=seed), strict=True))
    pairs = [(s, b) for s in _COMPARED if s in kept for b in baselines]
    return {
        (s, b): Comparison(s, b, area[s] - area[b], *_quantile_interval(drawn[s] - drawn[b]), int(known.sum()))
        for s, b in pairs
    }


def label_noise_ceiling(labels: Labels, independent: Labels) -> Ceiling:
    """AUROC of the brittle rate over independent draws against the labels, on the high-confidence rows.

    A score that knew everything about the row except which random numbers the labels drew would do about this well.
    """
    other = _matched(independent, np.asarray(labels.id).tolist())
    keep = np.asarray(labels.high_confidence, dtype=bool)
    rate, brittle = np.asarray(other.brittle_rate)[keep], np.asarray(labels.brittle)[keep]
    return Ceiling(auroc(rate, brittle), ranking_state(rate, brittle))


# --- text --------------------------------------------------------------------------------------------------------


def render_report(report: RankingReport) -> str:
    """The report as plain text: counts, ceiling, one line a score."""
    lines = [_counts_line(report), _ceiling_line(report), ""]
    header = ("score", "as paper", "oriented", "turned", "@5%", "@10%", "@20%", "wrong@20%", "AURC", "note")
    body = [_score_cells(report, name) for name in dict.fromkeys(line.score for line in report.results)]
    lines += _aligned([header, *body])
    lines += ["", f"Orientation chosen on {report.orientation_source}; captures and AURC use the oriented score."]
    return "\n".join(lines)


def _counts_line(report: RankingReport) -> str:
    text = f"{report.rows} rows, {report.high_confidence} high-confidence, {report.brittle} of them brittle"
    if report.wrong is None:
        return text + "; truth not given, so wrong predictions are not counted."
    return text + f"; {report.wrong} high-confidence predictions are wrong, {report.wrong_brittle} of these brittle."


def _ceiling_line(report: RankingReport) -> str:
    if report.ceiling is None:
        return "Label-noise ceiling: not measured."
    if report.ceiling.state != DEFINED:
        return f"Label-noise ceiling: {report.ceiling.state}."
    return f"Label-noise ceiling (AUROC of independent draws): {report.ceiling.auroc:.3f}."


def _score_cells(report: RankingReport, name: str) -> tuple[str, ...]:
    paper, turned = report.result(name, "paper"), report.result(name, "oriented")
    note = "" if turned.state == DEFINED else turned.state
    if not note and turned.rows < report.high_confidence:
        note = f"on {turned.rows} rows"
    values = (
        paper.auroc,
        turned.auroc,
        turned.capture_5,
        turned.capture_10,
        turned.capture_20,
        turned.false_confidence_captured_20,
        turned.aurc,
    )
    cells = [_number(value) for value in values]
    return (name, cells[0], cells[1], "yes" if turned.direction < 0 else "", *cells[2:], note)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _aligned(table: Iterable[Sequence[str]]) -> list[str]:
    rows = [tuple(row) for row in table]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    first = [row[0].ljust(widths[0]) for row in rows]
    rest = [[cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)] for row in rows]
    return ["  ".join([name, *cells]).rstrip() for name, cells in zip(first, rest, strict=True)]


def without_nan(value: Any) -> Any:
    """A plain document with NaN and infinity as None, which JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    return [without_nan(entry) for entry in value] if isinstance(value, (list, tuple)) else value
