"""How far the recomputed claims of a certificate may lie from those stated."""

from __future__ import annotations

import numpy as np

from fragility.base.arrays import Floats
from fragility.blocks.claims import Claims
from fragility.protocol import Protocol
from fragility.scores import CLIP, EPSILON, LOSS_RATES


def bound_saturation(largest: Floats) -> Floats:
    """Return how far a margin may be off where a model gives 1 - p for a small p: that p is rounded as the 1 is."""
    return np.asarray(2.0**-52 * np.exp(np.minimum(largest, -np.log(CLIP))))


def claim_tolerances(fresh: Claims, protocol: Protocol, tolerance: float) -> dict[str, Floats]:
    """Return each float claim's tolerance: margins as declared, the rest by how margins enter them."""
    largest = np.abs(fresh.path_margin).max(axis=1)
    confidence = tolerance * (1.0 + largest * 1e-3)
    margin = confidence + bound_saturation(largest)
    # c_k = (m - m_k) / (|m| + epsilon): near a tie a rounding error of the margin is large beside m.
    ratio = margin * (2.0 + fresh.path_collapse.max(axis=1)) / (np.abs(fresh.margin) + EPSILON)
    ratio = np.minimum(ratio, 1.0) if protocol.reading == "support" else ratio
    # a sum over groups of drops, each of two margins, over |m|
    own = margin * (2.0 * len(protocol.groups) + fresh.independent_loss) / (np.abs(fresh.margin) + EPSILON)
    # for each rate r, with the part of a margin that it takes away: r (1 - r) of every drop and r^2 of the last one
    near = np.abs(fresh.margin) + EPSILON
    drops, last = np.abs(fresh.one_step_drop.sum(axis=1)), np.abs(fresh.margin - fresh.bare_margin)
    random = sum(
        r * (1.0 - r) * (2.0 * len(protocol.groups) + drops / near) + r * r * (2.0 + last / near) for r in LOSS_RATES
    )
    random = np.minimum(margin * random / (len(LOSS_RATES) * near), 1.0)
    v1, v2, v3, v4 = protocol.exposure_weights
    # without attenuate_all the other two share its weight
    summed = ratio * (v1 + v3) + own * v2
    if protocol.fading is None:
        summed = (ratio * v1 + own * v2) * ((v1 + v2 + v3) / (v1 + v2) if v1 + v2 > 0 else 0.0)
    summed = summed + random * v4
    return {
        "confidence": confidence,
        "margin": margin,
        "bare_margin": margin,
        "path_margin": margin,
        "one_step_drop": 2 * margin,
        "one_step_confidence_drop": 2 * margin,
        "path_collapse": ratio + 1e-12,
        "rcma": ratio + 1e-12,
        "fds": ratio * protocol.weights[0] + 1e-12,
        "fade_margin": margin,
        "independent_loss": own + 1e-12,
        "common_loss": np.minimum(ratio, 1.0) + 1e-12,
        "random_loss": random + 1e-12,
        "exposure": np.minimum(summed, 1.0) + 1e-12,
    }
