"""The score channel: every ranking score of some rows. Not given labels, and blind to the label channel's draws."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

import fragility as fg
from fragility_paper.arrays import Array, Floats, Scores
from fragility_paper.library import (
    CERTIFICATE_SCORES,
    BrittleLabels,
    better_direction,
    certificate_scores,
    clipped_probabilities,
    confidence_scores,
    natural_direction,
    permutation_importance_order,
    random_order_score,
    rcma_along,
)
from fragility_paper.unit.lattice import LATTICE_SCORES
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.work import Work

CERTIFICATE = (
    *CERTIFICATE_SCORES,
    "cfc_rcma_current",
    "cfc_fds_current",
    "cfc_exposure_current",
    *LATTICE_SCORES,
)


def importance_order(work: Work, rows: AuditedRows) -> Array:
    """One order of the groups for all rows: by the loss that permuting a group causes on validation rows."""
    return permutation_importance_order(rows.oracle, rows.truth, seed=work.fitted.unit.seed)


def scores_on(work: Work, rows: AuditedRows, order: Array) -> dict[str, Floats]:
    """Every ranking score that all rows have."""
    oracle, protocol = rows.oracle, work.fitted.protocol
    return {
        **cheap_scores(rows),
        # log-sum-exp of log-probabilities is 0 for every row; what is left is rounding (contradiction 1).
        "energy_of_log_probabilities": logsumexp(np.log(clipped_probabilities(rows.p)), axis=1),
        "random_order": random_order_score(
            oracle, protocol, repeats=work.profile.random_orders, seed=work.fitted.unit.seed
        ),
        "permutation_order": rcma_along(oracle, protocol, order),
    }


def cheap_scores(rows: AuditedRows) -> dict[str, Floats]:
    """Scores that need nothing beyond probabilities and certificates."""
    return {**confidence_scores(rows.p), **certificate_scores(rows.certs)}


def current_scores(certs: fg.Certificates) -> dict[str, Floats]:
    claims = certs.claims
    return {
        "cfc_rcma_current": claims.rcma,
        "cfc_fds_current": claims.fds,
        "cfc_exposure_current": claims.exposure,
    }


def orientations(scores: Scores, held: Scores, labels: BrittleLabels | None) -> dict[str, int]:
    """+1 or -1 for every score, decided on validation rows; certificate scores are never turned round.

    Without confident validation rows a score keeps the direction it is meant to have.
    """
    return {name: _direction(name, held, labels) for name in scores}


def _direction(name: str, held: Scores, labels: BrittleLabels | None) -> int:
    if name in CERTIFICATE:
        return 1
    if labels is None or name not in held:
        return natural_direction(name)
    return better_direction(held[name], labels.brittle, natural_direction(name))
