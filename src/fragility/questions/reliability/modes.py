"""P_flip where a group may be lost or wrong, each at a rate of its own.

Group g is lost with probability a_g and wrong with probability b_g, never both; it fails with r_g = a_g + b_g <= 1.
Groups fail independently, and a wrong group takes value v of its catalogue with weight w_v:

    P_one(x)  = sum_g (a_g 1[x flips with g lost] + b_g flip_chance_g(x)) prod_{h != g} (1 - r_h)
    P_flip(x) = P_one(x) + P(two groups or more fail, and x flips)

P_one, the chance that exactly one group fails and flips the decision, is exact. P_flip is exact too if the combinations
of failures are no more than the draws; otherwise its second term is estimated by scrambled Sobol points u in [0, 1)^G:
g is lost where u_g < a_g and wrong where a_g <= u_g < r_g, with the value at which the cumulative weights pass
(u_g - a_g) / b_g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers, rows_within
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows, Spared
from fragility.protocol import Protocol
from fragility.questions.modes.losses import ModeLosses, Plan
from fragility.questions.reliability.rates import ModeRates
from fragility.questions.reliability.sampling import draw_points, estimate_probability, weigh_distinct

HOLDS, LOST, FIRST_VALUE = 0, 1, 2  # what becomes of a group: FIRST_VALUE + v is the value v of its catalogue


@dataclass(frozen=True, slots=True, eq=False)
class GroupFates:
    """What may become of each group: it holds, is lost, or takes one of R values; G groups, d columns."""

    rates: ModeRates
    weights: Floats  # (R, G) of the values of a wrong group; 0 for groups without a catalogue
    cells: Floats  # (1 + R, d) of groups that are lost, and of each value
    column_group: Integers  # (d,)

    @classmethod
    def of(cls, rows: EvidenceRows, protocol: Protocol, rates: ModeRates) -> GroupFates:
        plan = Plan("wrong", rows, protocol)
        weights = np.zeros((len(plan.shares), len(protocol.groups)))
        weights[:, [protocol.group_names.index(name) for name in plan.units]] = plan.shares
        return cls(rates, weights, np.vstack([rows.baseline, plan.cells]), rows.column_group)

    def fates_of(self, g: int) -> tuple[Integers, Floats]:
        """Return what may become of one group, and how likely each is; a group that never fails holds."""
        lost, wrong, values = self.rates.lost[g], self.rates.wrong[g], np.flatnonzero(self.weights[:, g])
        fates, chances = [HOLDS], [1.0 - lost - wrong]
        if lost > 0.0:
            fates, chances = [*fates, LOST], [*chances, lost]
        if wrong > 0.0:
            fates += (FIRST_VALUE + values).tolist()
            chances += (wrong * self.weights[values, g]).tolist()
        return np.array(fates), np.array(chances)

    @property
    def combinations(self) -> int:
        """How many combinations of fates there are."""
        return math.prod(len(self.fates_of(g)[0]) for g in range(len(self.rates.lost)))

    def draw(self, draws: int, seed: int) -> Integers:
        """Return (draws, G) drawn fates."""
        lost, wrong = self.rates.lost, self.rates.wrong
        points = draw_points(len(lost), draws, seed)
        fates = np.where(points < lost, LOST, HOLDS)
        for g in np.flatnonzero(wrong > 0.0):
            struck = (points[:, g] >= lost[g]) & (points[:, g] < lost[g] + wrong[g])
            values = np.flatnonzero(self.weights[:, g])
            ends = np.cumsum(self.weights[values[:-1], g])  # the last value takes what rounding leaves
            place = np.searchsorted(ends, (points[struck, g] - lost[g]) / wrong[g], side="right")
            fates[struck, g] = FIRST_VALUE + values[place]
        return fates

    def ask_flips(
        self,
        oracle: Oracle,
        rule: FlipRule,
        x: Floats,
        spared: Spared | None,
        original: Integers,
        fates: Integers,
        byte_budget: int,
    ) -> Booleans:
        """Return (m, U) whether each combination of fates (U, G) flips each of the rows x (m, d)."""
        if oracle.asks_model(self.cells[1:]).any():  # the engine may read a value otherwise than the model
            oracle = oracle.model
        by_column, width = fates[:, self.column_group], oracle.rows.width
        taken = self.cells[np.maximum(by_column - LOST, 0), np.arange(width)]
        flips = np.empty((len(x), len(fates)), dtype=bool)
        step = rows_within(byte_budget, width * max(len(fates), 1), copies=4)
        for start in range(0, len(x) if len(fates) else 0, step):
            part = slice(start, min(start + step, len(x)))
            holds = by_column == HOLDS
            if spared is not None:
                holds = holds | spared.cells[part, None, :]
            copies = np.where(holds, x[part, None, :], taken)
            flipped = rule.flips(oracle.predict_copies(x[part], copies), np.repeat(original[part], len(fates)))
            flips[part] = flipped.reshape(-1, len(fates))
        return flips


def other_products(factors: Floats) -> Floats:
    """Return (..., G) for each of the last axis the product of all the others."""
    ones = np.ones((*factors.shape[:-1], 1))
    before = np.cumprod(np.concatenate([ones, factors[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([ones, factors[..., :0:-1]], axis=-1), axis=-1)
    return np.asarray(before * after[..., ::-1])


def single_failures(losses: ModeLosses, rates: ModeRates, names: tuple[str, ...], absent: Booleans | None) -> Floats:
    """Return (n, G) the chance that this group alone fails and flips the decision: the terms of P_one.

    absent: (n, G) groups that are missing in a row, and cannot fail there.
    """
    terms = rates.lost * losses["lost"].flip_chance
    if "wrong" in losses.by_mode:
        own = [names.index(unit) for unit in losses["wrong"].units]
        terms[:, own] += rates.wrong[own] * losses["wrong"].flip_chance
    holds = 1.0 - rates.failing
    return np.asarray(terms * other_products(holds if absent is None else np.where(absent, 1.0, holds)))


@dataclass(frozen=True, slots=True, eq=False)
class EveryCombination:
    """All combinations of fates (U, G): P_flip is exact."""

    fates: Integers
    weight: Floats  # (U,)
    slope: Floats  # (U, G) their weights in P(flip | g fails) - P(flip | g holds); NaN for a group that never fails

    @classmethod
    def of(cls, groups: GroupFates) -> EveryCombination:
        rates = groups.rates.failing
        able = np.flatnonzero(rates > 0.0).tolist()
        each = [groups.fates_of(g) for g in able]
        place = np.indices([len(fates) for fates, _ in each]).reshape(len(each), -1)
        fates = np.zeros((place.shape[1], len(rates)), dtype=np.int64)
        chance = np.ones(fates.shape)
        for g, at, (own, chances) in zip(able, place, each, strict=True):
            fates[:, g], chance[:, g] = own[at], chances[at]
        given_failure = np.divide(chance, rates, out=np.full(chance.shape, np.nan), where=rates > 0.0)
        sign = np.where((fates == HOLDS) & (rates > 0.0), -1.0, given_failure)
        return cls(fates, chance.prod(axis=1), sign * other_products(chance))


@dataclass(frozen=True, slots=True, eq=False)
class DrawnCombinations:
    """Drawn combinations of fates (U, G) in which at least two groups fail; one failure needs no draw."""

    fates: Integers
    weight: Floats  # (REPLICATES, U)
    rates: ModeRates
    draws: int

    @classmethod
    def of(cls, groups: GroupFates, draws: int, seed: int) -> DrawnCombinations:
        fates, weight = weigh_distinct(groups.draw(draws, seed))
        several = (fates != HOLDS).sum(axis=1) >= 2
        return cls(fates[several], weight[:, several], groups.rates, draws)

    @property
    def most(self) -> float:
        """The probability that at least two groups fail, which bounds that of a flip by them."""
        holds = 1.0 - self.rates.failing
        return max(0.0, 1.0 - float(holds.prod()) - float(self.rates.failing @ other_products(holds)))

    def estimates(self, flips: Booleans, single: Floats) -> tuple[Floats, Floats, Floats]:
        """Return P_flip with its interval (m,), from flips (m, U) and the terms of P_one (m, G)."""
        p, low, high = estimate_probability(flips, self.weight, self.draws)
        one = single.sum(axis=1)
        return one + p, one + low, one + np.maximum(np.minimum(high, self.most), p)

    def importance(self, flips: Booleans, single: Floats) -> tuple[Floats, Floats]:
        """Return (m, G) P(flip | g fails) - P(flip | g holds), and P(flip) - P(flip | g holds); NaN where not drawn."""
        weight, rates = self.weight.mean(axis=0), self.rates.failing
        one = single.sum(axis=1)[:, None]
        several = flips * weight
        with np.errstate(invalid="ignore", divide="ignore"):
            holding = (one - single + several @ (self.fates == HOLDS)) / (1.0 - rates)
            kept = np.where(rates == 0.0, 0.0, one + several.sum(axis=1)[:, None] - holding)
            return kept / rates, kept
