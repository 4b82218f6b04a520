"""Ranking scores: one number per prediction, large where it is meant to be brittle.

Scores are computed without the label channel: nothing here imports `fragility.stress`, and labels enter only as arrays
at the metrics. With p~ and z~ the clipped probabilities and centred pseudo-logits of
app:score_conversion:

    max_softmax          max_c p~_c                        negative_entropy   sum_c p~_c log p~_c
    margin               z~_(1) - z~_(2)                   negative_energy    log sum_c exp z~_c
    one_step_drop        max_g delta_g                     random_order       mean RCMA along random group orders
    permutation_order    RCMA along one global order       group_shap         share of |SHAP| in the top groups
    cfc_rcma             RCMA                              cfc_fds            FDS
    inverse_flip_budget  1 / k*                            inverse_threshold  mean_P 1 / (lambda*_P + 1e-8)
    cfc_exposure         exposure                          independent_loss   I            common_loss        A

(The paper's formula for "negative entropy" is the entropy itself; its table agrees with the name, and so do we.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from fragility.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.certificates import Certificates
from fragility.evidence import EvidenceRows, RowStates
from fragility.evidence.agreement import original_class
from fragility.protocol import Protocol
from fragility.ranking.predictive import negative_log_likelihood
from fragility.scores import (
    clipped_probabilities,
    collapse,
    current_margin,
    degradation_risk,
    pseudo_logits,
    rcma,
    reading_margin,
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
)


def score_kind(name: str) -> str:
    """Family of a score: confidence, perturbation, attribution, certificate, or other (a user's own)."""
    families = {
        "confidence": CONFIDENCE_SCORES,
        "perturbation": PERTURBATION_SCORES,
        "attribution": ATTRIBUTION_SCORES,
        "certificate": CERTIFICATE_SCORES,
    }
    return next((kind for kind, names in families.items() if name in names), "other")


def in_reading_order(table: Mapping[str, Floats]) -> dict[str, Floats]:
    """Confidence first, a user's own scores after the known baselines, certificate scores last."""
    baselines = [*CONFIDENCE_SCORES, *PERTURBATION_SCORES, *ATTRIBUTION_SCORES]
    own = [name for name in table if score_kind(name) == "other"]
    return {name: table[name] for name in [*baselines, *own, *CERTIFICATE_SCORES] if name in table}


def natural_direction(name: str) -> int:
    """+1 where a large value is meant to be brittle, -1 where it is meant to be safe (confidence)."""
    return -1 if score_kind(name) == "confidence" else 1


# --- scores from probabilities -----------------------------------------------------------------------------------


def max_softmax(p: npt.ArrayLike) -> Floats:
    """max_c p~_c; p (n, C) -> (n,)."""
    return np.asarray(clipped_probabilities(p).max(axis=-1))


def negative_entropy(p: npt.ArrayLike) -> Floats:
    """sum_c p~_c log p~_c; p (n, C) -> (n,). Zero for a certain prediction, -log C for an even one."""
    clipped = clipped_probabilities(p)
    return np.asarray((clipped * np.log(clipped)).sum(axis=-1))


def margin(p: npt.ArrayLike) -> Floats:
    """z~_(1) - z~_(2); p (n, C) -> (n,)."""
    return current_margin(p)


def negative_energy(p: npt.ArrayLike) -> Floats:
    """log sum_c exp z~_c; p (n, C) -> (n,). With two classes log(2 cosh(m / 2)), strictly increasing in m."""
    return np.asarray(logsumexp(pseudo_logits(p), axis=-1))


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
    known = {"max_softmax": claims.confidence, **({"margin": claims.margin} if plain else {})}
    return {**known, **certificate_scores(certs)}


# --- scores along other removal orders: further model calls, on states that no certificate holds --------------------


def rcma_along(
    rows: EvidenceRows,
    protocol: Protocol,
    order: npt.ArrayLike,
    *,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Floats:
    """RCMA of every row when groups are removed in a given order instead of the certificate's.

    order: group indices, (G,) for one order or (n, G) for one per row; the first K = protocol.depth are removed.
    """
    orders = np.broadcast_to(np.asarray(order, dtype=np.int64), (len(rows), np.shape(order)[-1]))
    return _compute_rcma(rows, protocol, orders[:, None], byte_budget)[:, 0]


def random_order_score(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    repeats: int = 5,
    seed: int = 0,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Floats:
    """Mean RCMA over `repeats` random group orders, each order common to all rows."""
    generator = np.random.default_rng(seed)
    orders = np.stack([generator.permutation(int(rows.n_groups)) for _ in range(repeats)])
    along = _compute_rcma(rows, protocol, np.broadcast_to(orders, (len(rows), *orders.shape)), byte_budget)
    return np.asarray(along.mean(axis=1))


def _compute_rcma(rows: EvidenceRows, protocol: Protocol, orders: Integers, byte_budget: int) -> Floats:
    """Return (n, R) RCMA of every row along each of its orders (n, R, G or fewer)."""
    n, repeats = orders.shape[:2]
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
        states = RowStates.removals(removed.reshape(m, repeats * (depth + 1), -1))
        p = rows.answers(rows.dense(part.start, part.stop), states, byte_budget).reshape(m, repeats, depth + 1, -1)
        original = original_class(rows, p[:, 0, 0], protocol.resolution, part)
        margins = reading_margin(p, original[:, None, None], protocol.reading, rows.offset, protocol.smoothing)
        margins = margins.reshape(m * repeats, -1)
        out[part] = rcma(collapse(margins[:, 0], margins, protocol.reading)).reshape(m, repeats)
    return out


def permutation_importance_order(rows: EvidenceRows, y: npt.ArrayLike, *, repeats: int = 3, seed: int = 0) -> Integers:
    """Groups by descending increase of validation NLL when the group's columns are permuted together across rows.

    rows: validation rows; y: their class columns (`class_codes`). Ties keep declared order.
    """
    x = np.asarray(rows.dense(0, rows.matrix.shape[0]), dtype=np.float64)
    code = np.asarray(y, dtype=np.int64)
    base = negative_log_likelihood(rows.predict(x), code)
    generator = np.random.default_rng(seed)
    increase = np.zeros(int(rows.n_groups))
    for _ in range(repeats):
        shuffle = generator.permutation(len(x))
        for group in range(len(increase)):
            columns = np.flatnonzero(np.asarray(rows.column_group) == group)
            permuted = x.copy()
            permuted[:, columns] = x[np.ix_(shuffle, columns)]
            increase[group] += (
                negative_log_likelihood(rows.predict_copies(x, permuted[:, None]), code) - base
            ) / repeats
    return np.argsort(-increase, kind="stable")
