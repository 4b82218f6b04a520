"""Wrappers: one model inside and two classes is a threshold on its scores; any other, its states themselves.

With one member, a wrapper's probability of class 1 is a monotone function g of the member's raw score f: calibrators,
averages and linear heads all are. So a state flips class 1 exactly if f(S) < t_1, and class 0 exactly if f(S) > t_0,
where t are the scores at which g crosses the edge of the decision. They are found by bisection, down to neighbouring
numbers, and the inequality of `additive` holds with other constants:

    E(S) = f_o(S) - f_c(S) + lead_o < 0        lead_1 = -t_1,  lead_0 = t_0        boosted trees, linear models
    E(S) = p_o(S) - 1 / (1 + exp(lead_o)) < 0  lead_1 = -logit(t_1), ...           averaged trees

With several members, or more classes, the states of a row's subsets are answered by the engine and decided one by one:
they are its answers, so rounding is left only in the sums of linear members.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.lattice.additive import FlipRule, LinearLattice
from fragility.engines.lattice.trees import TreeLattice
from fragility.engines.trees.forest import AVERAGE, Forest
from fragility.engines.wrapped.engine import WrappedEngine
from fragility.engines.wrapped.members import LinearMember, TreeMember
from fragility.evidence import EvidenceRows, Spared, States
from fragility.protocol import Protocol

MOST_LIVE = 12  # groups whose subsets are answered one by one
STATES_TOGETHER = 1 << 15
SLACK = 1e-9  # of a margin: the rounding of linear sums behind a steep calibrator
FAR = 1e9  # no score of a linear model that is not in doubt lies beyond it
DOUBLE_ROUNDING, SINGLE_ROUNDING = 1e-9, 1e-6  # of a score near a threshold: links need not be monotone to the last bit


def make_lattice(rows: EvidenceRows, protocol: Protocol, rule: FlipRule) -> Any:
    """Return the lattice of a wrapper that the engine reads."""
    engine = WrappedEngine(rows)
    only, found = read_only_member(engine, rule)
    if found is not None and isinstance(only, TreeMember):
        return ThresholdTrees(only.rows, protocol, found)
    if found is not None and isinstance(only, LinearMember):
        return ThresholdSums(rows, found, only.sums)
    return StateLattice(rows, rule, engine)


def read_only_member(engine: WrappedEngine, rule: FlipRule) -> tuple[Any, ThresholdRule | None]:
    """Return the one member of a two-class wrapper and the rule by which its scores decide; None if there is none."""
    if engine.form.n_classes != 2 or len(engine.members) != 1:
        return None, None
    (only,) = engine.members.values()
    if isinstance(only, TreeMember):
        forest = only.ensemble.forest
        found = find_threshold_rule(rule, *_score_range(forest), _scores_to_probabilities(engine, only))
        return only, None if found is None else _as_leads(found, forest)
    if isinstance(only, LinearMember):
        return only, find_threshold_rule(rule, -FAR, FAR, lambda f: engine.combine_one(only.respond(f[:, None])))
    return only, None


# --- one member: a threshold on its scores --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ThresholdRule(FlipRule):
    """A decision that is a threshold on a score; leads: by original class, what ``lead`` is for the scores."""

    leads: tuple[float, float]
    near: float  # rounding of scores near the threshold

    def lead(self, original: int | Integers, rival: int) -> Any:
        return np.asarray(self.leads)[original]

    @property
    def rounding(self) -> float:
        return self.near


def find_threshold_rule(
    rule: FlipRule, lowest: float, highest: float, probabilities: Callable[[Floats], Floats]
) -> ThresholdRule | None:
    """Return the rule by which scores flip a prediction; None if the probability of class 1 falls with them.

    probabilities: scores (n,) between the lowest and the highest -> (n, 2).
    """
    ends = probabilities(np.array([lowest, highest]))
    if not ends[1, 1] >= ends[0, 1]:
        return None

    def flips(score: float, original: int) -> bool:
        return bool(rule.flips(probabilities(np.array([score])), np.array([original]))[0])

    beyond = 1.0 + abs(highest - lowest)
    low = _bisect(lambda score: flips(score, 1), lowest, highest)  # class 1 is lost up to here
    high = _bisect(lambda score: not flips(score, 0), lowest, highest)  # class 0 holds up to here
    leads = (high + beyond if high == highest else high, -(low - beyond if low < lowest else low))
    return ThresholdRule(rule.resolution, rule.offset, leads=leads, near=DOUBLE_ROUNDING)


def _bisect(holds: Callable[[float], bool], lowest: float, highest: float) -> float:
    """Return the last number up to which a condition holds that ends once; less than the lowest if it never does."""
    if not holds(lowest):
        return float(np.nextafter(lowest, -np.inf))
    if holds(highest):
        return highest
    while lowest < (middle := (lowest + highest) / 2.0) < highest:
        lowest, highest = (middle, highest) if holds(middle) else (lowest, middle)
    return lowest


def _score_range(forest: Forest) -> tuple[float, float]:
    """Return the least and the greatest score that the trees can give, as their link takes it."""
    if forest.link == AVERAGE:
        return 0.0, 1.0
    leaf, starts = forest.leaf_value[:, 0].astype(np.float64), forest.leaf_start[:-1]
    base = float(forest.base[0])
    ends = base + np.minimum.reduceat(leaf, starts).sum(), base + np.maximum.reduceat(leaf, starts).sum()
    room = 1e-3 * (1.0 + abs(ends[0]) + abs(ends[1]))  # the library's own rounding
    return float(ends[0] - room), float(ends[1] + room)


def _scores_to_probabilities(engine: WrappedEngine, only: TreeMember) -> Callable[[Floats], Floats]:
    """Return the function scores of the trees (n,) -> the wrapper's probabilities (n, 2)."""
    forest = only.ensemble.forest

    def probabilities(scores: Floats) -> Floats:
        sums = np.stack([1.0 - scores, scores]) * forest.divisor if forest.link == AVERAGE else scores[None]
        return engine.combine_one(only.respond(sums.astype(forest.leaf_value.dtype)))

    return probabilities


def _as_leads(found: ThresholdRule, forest: Forest) -> ThresholdRule:
    """Return the rule in the units in which `trees` takes leads."""
    holds, lost = found.leads[0], -found.leads[1]
    near = SINGLE_ROUNDING if forest.leaf_value.dtype == np.float32 else found.near
    if forest.link == AVERAGE:
        least = 1e-12
        held, gone = (float(np.clip(p, least, 1.0 - least)) for p in (holds, lost))
        leads = float(np.log(held) - np.log1p(-held)), float(np.log1p(-gone) - np.log(gone))
    else:
        leads = tuple(lead * forest.scale / forest.divisor for lead in found.leads)  # type: ignore[assignment]
    return ThresholdRule(found.resolution, found.offset, leads=leads, near=near)


class ThresholdTrees(TreeLattice):
    """The trees inside a wrapper; the rule is a threshold on their sums."""

    name = "wrapped"

    def expected_margin(self, x: Floats, original: Integers, rates: Floats, run: Any) -> Floats | None:
        return None  # the margin is no sum of the trees


class ThresholdSums(LinearLattice):
    """The sums of a linear model inside a wrapper; the rule is a threshold on them."""

    name = "wrapped"

    def expected_margin(self, x: Floats, original: Integers, rates: Floats, run: Any) -> Floats | None:
        return None


# --- several members: every state answered --------------------------------------------------------------------


class StateLattice:
    """A wrapper whose states are answered one by one."""

    name, kind, most_live = "wrapped", "states", MOST_LIVE
    few: tuple[int, ...] = ()

    def __init__(self, rows: EvidenceRows, rule: FlipRule, engine: WrappedEngine) -> None:
        self.rows, self.rule, self.engine = rows, rule, engine
        self._spared: Spared | None = None  # of the block begun

    def rebind(self, rows: EvidenceRows) -> StateLattice:
        """Return the same model for other rows."""
        other = copy(self)
        other.rows = rows
        return other

    def entry_bytes(self) -> int:
        return 8

    def begin(self, start: int, stop: int) -> None:
        """Look up what no state moves in the rows that the next calls are about."""
        self._spared = self.rows.spared(start, stop)

    def live(self, x: Floats, run: Any) -> Booleans:
        """(n, G) the groups that are not at their baseline."""
        baseline = self.rows.targets(x, self._spared)
        moves = ~((x == baseline) | (np.isnan(x) & np.isnan(baseline)))
        return np.stack([moves[:, columns].any(axis=1) for columns in self.rows.group_columns()], axis=1)

    def mark(self, x: Floats, original: int, largest: int, jobs: Any, marks: Any, run: Any) -> None:
        """Mark the flips of the rows of ``jobs``, which all are of one original class."""
        row, bits, lives, first_word = jobs
        counts = np.cumsum(1 << lives)
        for some in np.split(np.arange(len(row)), np.flatnonzero(np.diff(counts // STATES_TOGETHER)) + 1):
            owner = np.repeat(np.arange(len(some)), 1 << lives[some])
            subset = np.concatenate([np.arange(1 << live) for live in lives[some]])
            moved = (subset[:, None] & bits[some][owner]) != 0
            spared = None if self._spared is None else self._spared.of(row[some])
            p = self.engine.answer_states(x[row[some]], States(owner, moved).sparing(spared, self.rows.column_group))
            assert p is not None  # removals are always answered
            margin = self.rule.support(p, original) + self.rule.resolution
            for place, job in enumerate(some):
                own = margin[owner == place]
                for words, marked in zip(marks, (own < -SLACK, np.abs(own) <= SLACK), strict=True):
                    part = np.packbits(_pad(marked), bitorder="little").view(np.uint64)
                    words[first_word[job] : first_word[job] + len(part)] = part

    def expected_margin(self, x: Floats, original: Integers, rates: Floats, run: Any) -> Floats | None:
        return None


def _pad(marked: Booleans) -> Booleans:
    """Return marks filled up to a whole word."""
    return np.concatenate([marked, np.zeros(-len(marked) % 64, dtype=bool)])
