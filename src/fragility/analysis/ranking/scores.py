"""Ranking scores: one number per prediction; large values indicate brittle predictions.

Scores are computed without the label channel: nothing here imports `fragility.questions.stress`, and labels enter only
as arrays at the metrics. (The score ``rehearsal`` knows the declared stress, and is computed by draws of its own: see
`fragility.questions.stress.labels`.) With p~ and z~ the clipped probabilities and centred pseudo-logits of
app:score_conversion:

    max_softmax          max_c p~_c                        negative_entropy   sum_c p~_c log p~_c
    margin               z~_(1) - z~_(2)                   negative_energy    log sum_c exp z~_c
    one_step_drop        max_g delta_g                     random_order       mean RCMA along random group orders
    permutation_order    RCMA along one global order       group_shap         share of |SHAP| in the top groups
    cfc_rcma             RCMA                              cfc_fds            FDS
    inverse_flip_budget  1 / k*                            inverse_threshold  mean_P 1 / (lambda*_P + 1e-8)
    cfc_exposure         exposure                          independent_loss   I
    common_loss          A                                 random_loss        Q
    exposure_MODE        1 - exp(-loss) of a failure mode, for any of them (`fragility.questions.modes`)

(The paper's formula for "negative entropy" is the entropy itself; its table agrees with the name, and so do we.)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from fragility.analysis.ranking.metrics import negative_log_likelihood
from fragility.audits import Certificates
from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.base.errors import DataError
from fragility.base.libraries import say_lacking
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows, States
from fragility.evidence.agreement import original_class
from fragility.evidence.modes import MODES
from fragility.protocol import Protocol
from fragility.scores import (
    clipped_probabilities,
    collapse,
    current_margin,
    degradation_risk,
    pseudo_logits,
    rcma,
    sigmoid_probabilities,
)

CONFIDENCE_SCORES = ("max_softmax", "negative_entropy", "margin", "negative_energy")
PERTURBATION_SCORES = ("random_order", "one_step_drop", "permutation_order")
ATTRIBUTION_SCORES = ("group_shap",)
CERTIFICATE_SCORES = (
    "cfc_rcma",
    "cfc_fds",
    "cfc_exposure",
    "inverse_flip_budget",
    "inverse_threshold",
    "independent_loss",
    "common_loss",
    "random_loss",
)
REHEARSAL_SCORES = ("rehearsal",)
MODE_SCORES = tuple(f"exposure_{mode}" for mode in MODES)

FAMILIES = {
    "confidence": CONFIDENCE_SCORES,
    "perturbation": PERTURBATION_SCORES,
    "attribution": ATTRIBUTION_SCORES,
    "certificate": CERTIFICATE_SCORES,
    "mode": MODE_SCORES,
    "rehearsal": REHEARSAL_SCORES,
}


def score_kind(name: str) -> str:
    """Return the family of a score, or ``other`` for a user's own."""
    return next((kind for kind, names in FAMILIES.items() if name in names), "other")


def in_reading_order(table: Mapping[str, Floats]) -> dict[str, Floats]:
    """Confidence first, a user's own scores after the known baselines; those of certificates, modes, rehearsal last."""
    baselines = [*CONFIDENCE_SCORES, *PERTURBATION_SCORES, *ATTRIBUTION_SCORES]
    others = [name for name in table if score_kind(name) == "other"]
    ours = [*CERTIFICATE_SCORES, *MODE_SCORES, *REHEARSAL_SCORES]
    return {name: table[name] for name in [*baselines, *others, *ours] if name in table}


def is_baseline(name: str) -> bool:
    """Return whether a score is one to compare with, which may be turned round; ours are not."""
    return score_kind(name) not in ("certificate", "mode", "rehearsal")


def natural_direction(name: str) -> int:
    """Return +1 if large values indicate brittle predictions, -1 if they indicate safe ones (confidence)."""
    return -1 if score_kind(name) == "confidence" else 1


# --- scores from probabilities -----------------------------------------------------------------------------------


def confidence_scores(p: npt.ArrayLike) -> dict[str, Floats]:
    """Return the four scores that need only the probabilities at x, p (n, C).

    The negative entropy is 0 for a certain prediction and -log C for an even one. With two classes the negative energy
    is log(2 cosh(m / 2)), strictly increasing in the margin m.
    """
    clipped = clipped_probabilities(p)
    return {
        "max_softmax": clipped.max(axis=-1),
        "negative_entropy": (clipped * np.log(clipped)).sum(axis=-1),
        "margin": current_margin(p),
        "negative_energy": np.asarray(logsumexp(pseudo_logits(p), axis=-1)),
    }


# --- scores from certificates ------------------------------------------------------------------------------------


def certificate_scores(certs: Certificates) -> dict[str, Floats]:
    """RCMA, FDS, exposure, each remaining component alone, and the one-step drop, from the certificates' own columns.

    Without the operator attenuate_all there is no common loss, and in a summary no one-step drop; they are left out.
    """
    claims = certs.claims
    common = {} if certs.protocol.fading is None else {"common_loss": claims.common_loss}
    drops = {} if certs.extent == "summary" else {"one_step_drop": claims.one_step_drop.max(axis=1)}
    return {
        "cfc_exposure": claims.exposure,
        "independent_loss": claims.independent_loss,
        **common,
        "random_loss": claims.random_loss,
        "cfc_fds": claims.fds,
        "cfc_rcma": claims.rcma,
        "inverse_flip_budget": 1.0 / claims.flip_budget,
        "inverse_threshold": degradation_risk(claims.thresholds),
        **drops,
    }


def collect_scores(certs: Certificates, probabilities: npt.ArrayLike | None = None) -> dict[str, Floats]:
    """All scores that need no further model calls, in the order of tables.

    The confidence scores are those of the model's own probabilities, not of smoothed ones. Without `probabilities` they
    come from the certificates: for two classes all four, for more only max_softmax and, where margins are neither
    smoothed nor measured from a threshold, margin.
    """
    if probabilities is not None:
        return {**confidence_scores(probabilities), **certificate_scores(certs)}
    claims, protocol = certs.claims, certs.protocol
    plain = protocol.smoothing == 0.0 and protocol.decision is None  # the margin is that of the probabilities
    if len(certs.classes) == 2:
        # A margin keeps the digits of the losing class, which 1 - confidence does not.
        p = sigmoid_probabilities(claims.margin) if plain else np.stack([claims.confidence, 1.0 - claims.confidence], 1)
        return {**confidence_scores(p), **certificate_scores(certs)}
    scores = {"max_softmax": claims.confidence, **({"margin": claims.margin} if plain else {})}
    return {**scores, **certificate_scores(certs)}


# --- scores along other removal orders: further model calls, on states that no certificate holds --------------------


def rcma_along(
    oracle: Oracle,
    protocol: Protocol,
    order: npt.ArrayLike,
    *,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Floats:
    """RCMA of every row when groups are removed in a given order instead of the certificate's.

    order: group indices, (G,) for one order or (n, G) for one per row; the first K = protocol.depth are removed.
    """
    orders = np.broadcast_to(np.asarray(order, dtype=np.int64), (len(oracle.rows), np.shape(order)[-1]))
    return _compute_rcma(oracle, protocol, orders[:, None], byte_budget)[:, 0]


def random_order_score(
    oracle: Oracle,
    protocol: Protocol,
    *,
    repeats: int = 5,
    seed: int = 0,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Floats:
    """Mean RCMA over `repeats` random group orders, each order common to all rows."""
    rows, generator = oracle.rows, np.random.default_rng(seed)
    orders = np.stack([generator.permutation(int(rows.n_groups)) for _ in range(repeats)])
    along = _compute_rcma(oracle, protocol, np.broadcast_to(orders, (len(rows), *orders.shape)), byte_budget)
    return np.asarray(along.mean(axis=1))


def _compute_rcma(oracle: Oracle, protocol: Protocol, orders: Integers, byte_budget: int) -> Floats:
    """Return (n, R) RCMA of every row along each of its orders (n, R, G or fewer)."""
    rows, (n, repeats) = oracle.rows, orders.shape[:2]
    n_groups = int(rows.n_groups)
    depth = min(protocol.depth, n_groups)
    out = np.empty((n, repeats))
    chunk = max(1, byte_budget // (32 * rows.width * repeats * (depth + 1)))
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        removal = orders[part, :, :depth]
        m = len(removal)
        rank = np.full((m, repeats, n_groups), depth, dtype=np.int64)  # groups beyond the depth are never removed
        np.put_along_axis(rank, removal, np.broadcast_to(np.arange(depth), removal.shape), axis=2)
        removed = rank[:, :, None] < np.arange(depth + 1)[:, None]
        states = States.removals(removed.reshape(m, repeats * (depth + 1), -1))
        states = states.sparing(rows.spared(part.start, part.stop), rows.column_group)
        p = oracle.answer_states(rows.dense(part.start, part.stop), states, byte_budget)
        p = p.reshape(m, repeats, depth + 1, -1)
        original = original_class(rows, p[:, 0, 0], protocol.resolution, part)
        margins = protocol.rule(rows.offset).margin(p, original[:, None, None])
        margins = margins.reshape(m * repeats, -1)
        out[part] = rcma(collapse(margins[:, 0], margins, protocol.reading)).reshape(m, repeats)
    return out


def permutation_importance_order(oracle: Oracle, y: npt.ArrayLike, *, repeats: int = 3, seed: int = 0) -> Integers:
    """Groups by descending increase of validation NLL when the group's columns are permuted together across rows.

    oracle: of validation rows; y: their class columns (`class_codes`). Ties keep declared order.
    """
    rows = oracle.rows
    x = rows.dense()
    code = np.asarray(y, dtype=np.int64)
    base = negative_log_likelihood(oracle.predict(x), code)
    generator = np.random.default_rng(seed)
    increase = np.zeros(int(rows.n_groups))
    for _ in range(repeats):
        shuffle = generator.permutation(len(x))
        for group in range(len(increase)):
            columns = np.flatnonzero(np.asarray(rows.column_group) == group)
            permuted = x.copy()
            permuted[:, columns] = x[np.ix_(shuffle, columns)]
            loss = negative_log_likelihood(oracle.predict_copies(x, permuted[:, None]), code)
            increase[group] += (loss - base) / repeats
    return np.argsort(-increase, kind="stable")


# --- group-SHAP: is the explanation concentrated on few groups? ---------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class GroupShap:
    """Absolute SHAP mass of every group on the explained rows; `score` is NaN on rows that were not explained."""

    explainer: str  # "tree", "linear" or "permutation"
    explained: Integers  # (s,) row positions
    mass: Floats  # (s, G) sum of |SHAP| within each group
    score: Floats  # (n,) share of the largest groups


def group_shap(
    oracle: Oracle,
    protocol: Protocol,
    *,
    top: int = 3,
    max_rows: int | None = None,
    among: npt.ArrayLike | None = None,
    seed: int = 0,
) -> GroupShap:
    """Return the share of absolute SHAP mass in the `top` groups: is the explanation concentrated?

    In the transformed space the estimator decides the explainer: TreeExplainer for tree ensembles, LinearExplainer for
    linear models (against the baseline row). Everything else, and the raw space, goes through permutation masking of
    whole groups toward the baseline. With several classes the predicted class counts.

    max_rows: explain a random subset of this many rows; None explains all.
    among: (n,) the rows to choose from, e.g. the high-confidence ones; None chooses from all.
    """
    rows = oracle.rows
    n, head = len(rows), rows.model.head
    picked = np.arange(n) if among is None else np.flatnonzero(among)
    if max_rows is not None and max_rows < len(picked):
        picked = np.sort(np.random.default_rng(seed).choice(picked, size=max_rows, replace=False))
    x = np.asarray(rows.dense(0, n), dtype=np.float64)[picked]
    family = _explainer_family(head) if protocol.space == "transformed" else "permutation"
    original = original_class(rows, oracle.predict(x), protocol.resolution, picked)
    if family == "tree":
        explainer = _import_shap().TreeExplainer(head)
        with warnings.catch_warnings():
            # It warns of another layout of the values; `_sum_by_group` reads both.
            warnings.filterwarnings("ignore", message="LightGBM binary classifier")
            mass = _sum_by_group(explainer.shap_values(x, check_additivity=False), original, rows)
    elif family == "linear":
        explainer = _import_shap().LinearExplainer(head, np.asarray(rows.baseline)[None, :])
        mass = _sum_by_group(explainer.shap_values(x), original, rows)
    else:
        mass = _permutation_shap(oracle.take(picked.tolist()), x, original, seed)
    score = np.full(n, np.nan)
    score[picked] = concentration(mass, top)
    return GroupShap(family, picked, mass, score)


def concentration(mass: Floats, top: int = 3) -> Floats:
    """Return the share of each row's mass that its `top` largest groups hold; 0 if there is no mass at all."""
    largest = -np.sort(-mass, axis=1)[:, :top]
    total = mass.sum(axis=1)
    return np.asarray(np.divide(largest.sum(axis=1), total, out=np.zeros(len(mass)), where=total > 0.0))


def _explainer_family(estimator: Any) -> str:
    """Return which SHAP explainer fits an estimator, by its class and the library it comes from."""
    name, module = type(estimator).__name__, type(estimator).__module__.split(".")[0]
    if module in {"xgboost", "lightgbm", "catboost"} or (module == "sklearn" and name in _SKLEARN_TREES):
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
        raise DataError(say_lacking("group-SHAP", "shap") or f"group-SHAP cannot load shap: {error}") from error
    return shap


def _permutation_shap(oracle: Oracle, x: Floats, original: Integers, seed: int) -> Floats:
    """Return |Shapley value| of whole groups for the log-odds-like support of the predicted class; (n, G)."""
    shap, rows = _import_shap(), oracle.rows
    n_groups = int(rows.n_groups)
    mass = np.empty((len(x), n_groups))
    for index, row in enumerate(x):

        def support(kept: npt.ArrayLike, row: Floats = row, index: int = index) -> Floats:
            removed = np.asarray(kept) <= 0.5
            states = States.of_one(removed).sparing(rows.spared(index, index + 1), rows.column_group)
            return pseudo_logits(oracle.answer_states(row[None], states))[:, original[index]]

        explainer = shap.PermutationExplainer(support, np.zeros((1, n_groups)), seed=seed)
        explained = explainer(np.ones((1, n_groups)), max_evals=4 * n_groups + 2, silent=True)
        mass[index] = np.abs(explained.values[0])
    return mass


def _sum_by_group(values: Any, original: Integers, rows: EvidenceRows) -> Floats:
    """Return (n, G) sums of |SHAP| of the predicted class, from (n, d), (n, d, C) or a list of C arrays."""
    array = np.stack(values, axis=-1) if isinstance(values, list) else np.asarray(values)
    if array.ndim == 3:
        array = np.take_along_axis(array, original[:, None, None], axis=2)[:, :, 0]
    out = np.zeros((len(array), int(rows.n_groups)))
    np.add.at(out.T, np.asarray(rows.column_group), np.abs(array).T)
    return out
