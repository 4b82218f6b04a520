"""Ranking scores: one number a prediction, large where it is meant to be brittle.

Scores are computed without the label channel: nothing in this package imports `fragility.stress`, and labels enter
only as arrays at the metrics. With p~ and z~ the clipped probabilities and centred pseudo-logits of
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

from fragility.arrays import Floats
from fragility.certificates import Certificates
from fragility.scores import (
    clipped_probabilities,
    current_margin,
    degradation_risk,
    pseudo_logits,
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


def scores_of(certs: Certificates, probabilities: npt.ArrayLike | None = None) -> dict[str, Floats]:
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
