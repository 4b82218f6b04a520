"""P_flip by quasi-random subsets, where a row's lattice is too large or its model is a black box.

Scrambled Sobol points in [0, 1)^G, group g removed where its coordinate is below r_g: every scrambling gives an
unbiased estimate with far less scatter than independent draws. The interval is Student's over the estimates of 16
independent scramblings; where no draw flips (or all do) it reaches to the exact binomial limit of as many independent
draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.oracle import Oracle
from fragility.evidence import Spared, States
from fragility.questions.search.blackbox import live_groups

REPLICATES = 16
LEVEL = 0.95


def draw_points(dimensions: int, draws: int, seed: int) -> Floats:
    """Return (draws, dimensions) Sobol points in [0, 1), scrambling by scrambling."""
    power = int(np.log2(draws // REPLICATES)) if draws >= REPLICATES else -1
    if power < 0 or REPLICATES << power != draws:
        raise DataError(f"draws must be a power of two of at least {REPLICATES}, got {draws}")
    seeds = np.random.SeedSequence(seed).spawn(REPLICATES)
    points = [
        stats.qmc.Sobol(dimensions, scramble=True, seed=np.random.default_rng(s)).random_base2(power) for s in seeds
    ]
    return np.concatenate(points)


def weigh_distinct(drawn: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Floats]:
    """Return the distinct rows (U, G) of what was drawn (draws, G), and their share of each scrambling's draws."""
    distinct, place = np.unique(drawn, axis=0, return_inverse=True)
    each = len(drawn) // REPLICATES
    weight = np.zeros((REPLICATES, len(distinct)))
    np.add.at(weight, (np.repeat(np.arange(REPLICATES), each), place.ravel()), 1.0 / each)
    return distinct, weight


def estimate_probability(hits: Booleans, weight: Floats, draws: int) -> tuple[Floats, Floats, Floats]:
    """Return the probability of a hit with its interval, each (m,), from hits (m, U) and weights (REPLICATES, U)."""
    by_replicate = hits @ weight.T  # (m, REPLICATES)
    p = by_replicate.mean(axis=1)
    error = by_replicate.std(axis=1, ddof=1) / np.sqrt(REPLICATES)
    reach = float(stats.t.ppf(0.5 + LEVEL / 2.0, REPLICATES - 1)) * error
    edge = 1.0 - ((1.0 - LEVEL) / 2.0) ** (1.0 / draws)  # the binomial limit at no hit in all draws
    low = np.where(p >= 1.0, 1.0 - edge, np.clip(p - reach, 0.0, 1.0))
    high = np.where(p <= 0.0, edge, np.clip(p + reach, 0.0, 1.0))
    return p, low, high


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSubsets:
    """Distinct subsets of groups with the number of draws of each, by scrambling."""

    removed: Booleans  # (U, G)
    weight: Floats  # (REPLICATES, U) share of a scrambling's draws
    rates: Floats  # (G,)
    draws: int

    @classmethod
    def of(cls, rates: Floats, draws: int, seed: int) -> DrawnSubsets:
        return cls(*weigh_distinct(draw_points(len(rates), draws, seed) < rates), rates, draws)

    def estimates(self, flips: Booleans) -> tuple[Floats, Floats, Floats]:
        """Return p_flip, low and high (m,) from flips (m, U)."""
        return estimate_probability(flips, self.weight, self.draws)

    def importance(self, flips: Booleans) -> tuple[Floats, Floats]:
        """Return (m, G) P(flip | g fails) - P(flip | g holds), and P(flip) - P(flip | g holds); NaN where not drawn."""
        weight = self.weight.mean(axis=0)
        weighted = flips * weight
        with np.errstate(invalid="ignore", divide="ignore"):
            failing = (weighted @ self.removed) / (weight @ self.removed)
            holding = (weighted @ ~self.removed) / (weight @ ~self.removed)
        kept = np.where(self.rates == 0.0, 0.0, weighted.sum(axis=1)[:, None] - holding)
        return failing - holding, kept


def multilinear(flips: Booleans, rates: Floats) -> tuple[float, Floats]:
    """Return the probability of a flip and its slope in each rate (L,), from flips (2**L,), the first group highest."""
    table = flips.astype(np.float64)
    slope = np.zeros(len(rates))
    for g in range(len(rates)):
        split = table.reshape(1 << g, 2, -1)  # earlier groups, this one, later groups
        slope[g] = _weights(rates[:g]) @ (split[:, 1] - split[:, 0]) @ _weights(rates[g + 1 :])
    return float(_weights(rates) @ table), slope


def _weights(rates: Floats) -> Floats:
    """(2**L,) how likely each subset is, the first group the highest bit."""
    out = np.ones(1)
    for rate in rates:
        out = np.outer(out, [1.0 - rate, rate]).ravel()
    return out


def ask_flips(
    oracle: Oracle,
    rule: FlipRule,
    x: Floats,
    spared: Spared | None,
    original: Integers,
    removed: Booleans,
    byte_budget: int,
) -> Booleans:
    """Return (m, U) whether each subset flips each row; only groups that can move are asked about."""
    rows, flips = oracle.rows, np.zeros((len(x), len(removed)), dtype=bool)
    for i, live in enumerate(live_groups(rows, x, spared)):
        gone, place = np.unique(removed & live, axis=0, return_inverse=True)
        own = None if spared is None else spared.of(slice(i, i + 1))
        states = States.of_one(gone).sparing(own, rows.column_group)
        p = oracle.answer_states(x[i : i + 1], states, byte_budget)
        flips[i] = rule.flips(p, original[i])[place.ravel()]
    return flips
