"""The mask stressor without draws: what the lattice knows exactly of a label that is otherwise drawn.

``expected`` (two classes, where the margin is a sum): the mean support margin over the draws tends to E_m, so
kappa = [m - E_m]_+ / (|m| + 1e-8) is the rule's own statistic without noise.

``any flip`` (every additive model): a row is labelled where any of D draws flips it, which has probability
1 - (1 - P_flip)^D, and the share of flips among D further draws is binomial. The AUROC that an independent set of draws
reaches is then known without a draw, and so is that of the best score there can be, P_flip itself:

    ceiling = sum_ij pi_i (1 - pi_j) P(s_i > s_j) / sum_ij pi_i (1 - pi_j),   i != j, ties one half
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import binom, rankdata

from fragility_paper.arrays import Array, Floats
from fragility_paper.library import BrittleLabels, auroc, collapse_under
from fragility_paper.unit.case import Case
from fragility_paper.unit.lattice import MASK_RATE, flip_score
from fragility_paper.unit.work import mean_of

JUDGED = ("cfc_exposure", "cfc_fds", "cfc_fds_smallest", flip_score(MASK_RATE), "random_order")


def record_exact_mask(case: Case) -> None:
    """Ceilings, agreement and scores for mask alone, drawn and exact; nothing for a model that is not additive."""
    if case.lattice is None or not case.lattice.decided.all():
        return
    place = [stressor.kind for stressor in case.labels.stress.stressors].index("mask")
    _record_flips(case, place)
    if case.lattice.expected_margin is not None:
        _record_expected(case, place, case.lattice.expected_margin)


def _record_expected(case: Case, place: int, margin: Floats) -> None:
    record, labels, again = case.work.record, case.labels, case.independent
    kappa = collapse_under(labels.margin, margin)
    exact = (margin < 0.0) | (kappa >= labels.stress.tau_collapse)
    drawn = labels.brittle_by[:, place]
    where: dict[str, Any] = {"rule": "expected", "count": len(kappa)}
    record.add("exact_mask", "brittle_share", mean_of(drawn), variant="drawn", **where)
    record.add("exact_mask", "brittle_share", mean_of(exact), variant="exact", **where)
    record.add("exact_mask", "ceiling", auroc(again.kappa[:, place], drawn), variant="drawn", **where)
    record.add("exact_mask", "ceiling", auroc(kappa, drawn), variant="exact", **where)
    record.add("exact_mask", "agreement", mean_of(again.brittle_by[:, place] == drawn), variant="drawn", **where)
    record.add("exact_mask", "agreement", mean_of(exact == drawn), variant="exact", **where)
    for name in JUDGED:
        turned = case.directions[name] * case.scores[name]
        for variant, brittle in (("drawn", drawn), ("exact", exact)):
            record.add("exact_mask", "auroc", auroc(turned, brittle), score=name, variant=variant, **where)


def _record_flips(case: Case, place: int) -> None:
    record, chance = case.work.record, _lattice_chance(case)
    flips, again = (_flips(labels, place) for labels in (case.labels, case.independent))
    drawn = np.asarray(flips.any(axis=1))
    where: dict[str, Any] = {"rule": "any flip", "count": len(drawn)}
    record.add("exact_mask", "brittle_share", mean_of(drawn), variant="drawn", **where)
    record.add("exact_mask", "brittle_share", mean_of(labelled(chance, flips.shape[1])), variant="exact", **where)
    record.add("exact_mask", "ceiling", auroc(again.mean(axis=1), drawn), variant="drawn", **where)
    record.add("exact_mask", "ceiling", auroc(chance, drawn), variant="exact", **where)
    record.add("exact_mask", "ceiling", drawn_ceiling(chance, flips.shape[1]), variant="no draws", **where)
    record.add("exact_mask", "ceiling", best_ceiling(chance, flips.shape[1]), variant="no draws, best", **where)


def _lattice_chance(case: Case) -> Floats:
    assert case.lattice is not None
    return case.lattice.p_flip[MASK_RATE]


def _flips(labels: BrittleLabels, place: int) -> Array:
    """(n, D) which draws of one stressor flip a row."""
    return np.asarray(labels.run.draw_flip[:, place])


def labelled(chance: Floats, draws: int) -> Floats:
    """The probability that at least one of so many draws flips a row."""
    return np.asarray(-np.expm1(draws * np.log1p(-np.minimum(chance, 1.0 - 1e-16))))


def best_ceiling(chance: Floats, draws: int) -> float:
    """The expected AUROC of P_flip itself against labels of so many draws."""
    return _expected_auroc(chance, labelled(chance, draws), np.ones((len(chance), 1)))


def drawn_ceiling(chance: Floats, draws: int) -> float:
    """The expected AUROC of the share of flips among so many further draws."""
    shares = binom.pmf(np.arange(draws + 1), draws, chance[:, None])
    return _expected_auroc(np.arange(draws + 1.0), labelled(chance, draws), shares)


def _expected_auroc(score: Floats, positive: Floats, shares: Floats) -> float:
    """AUROC where row i is positive with probability positive[i] and has level l of the score with shares[i, l].

    shares (n, 1): every row has its own level. A row is not compared with itself, which would count as a tie.
    """
    own = shares.shape[1] == 1
    weight = positive if own else positive @ shares
    other = 1.0 - positive if own else (1.0 - positive) @ shares
    level = rankdata(score, method="dense").astype(np.int64) - 1
    above, below = (np.bincount(level, weights=part) for part in (weight, other))
    lower = np.concatenate([[0.0], np.cumsum(below)[:-1]])
    itself = float((positive * (1.0 - positive)).sum())
    pairs = float(positive.sum() * (1.0 - positive).sum()) - itself
    return float((above * (lower + below / 2)).sum() - itself / 2) / pairs if pairs > 1e-9 else math.nan
