"""Branch and bound for tree ensembles with more live groups than a table holds.

Sizes are searched in order. A set is passed over where it cannot reach the edge: in one tree, removing group g lowers
the value by at most the greatest leaf on x's side less the least leaf on the baseline's side, over the nodes of g where
the two part; summed over trees this bounds what any further removal can do, whatever was removed before. Groups that
cannot lower the value at all are in no smallest set. Where even the least leaves together do not reach the edge, no set
fails. Every bound is in whole numbers and sound; sets near the edge are asked of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.arrays import Booleans, Floats, Integers
from fragility.engines.lattice.rule import FlipRule
from fragility.evidence import EvidenceRows, RowStates
from fragility.search.answers import Answers
from fragility.search.found import NOT_COUNTED, MinimalSets

BRANCH_AND_BOUND = "branch and bound"
MOST_SETS = 1000  # failing sets of one size that are looked at


class BoundedRow:
    """The search of one row."""

    def __init__(self, rows: EvidenceRows, rule: FlipRule, trees: Any, x: Floats, original: int) -> None:
        self.rows, self.rule, self.trees, self.x, self.original = rows, rule, trees, x, original
        bounded = {rival: trees.bounds(x, original, rival) for rival in rule.rivals(original)}
        self.gains: dict[int, Integers] = {
            rival: gains
            for rival, (least, gains) in bounded.items()
            if least < trees.edge(original, rival, wide=True).high
        }
        self.spent = len(bounded)

    @property
    def hopeless(self) -> bool:
        """Whether no set at all can fail."""
        return not self.gains

    def sets_of_size(self, size: int, budget: int) -> tuple[Booleans, bool, bool]:
        """Return (failing sets (k, G) in lexicographic order, whether these are all, whether the size was decided)."""
        parts: list[Integers] = []
        complete = True
        for rival, gains in self.gains.items():
            found, _, spent, done = self.trees.sets_of_size(
                self.x, self.original, rival, gains, size, budget - self.spent, MOST_SETS
            )
            self.spent += spent
            if not done:
                return self._failing([*parts, found]), False, False
            complete &= len(found) < MOST_SETS
            parts.append(found)
        failing = self._failing(parts)
        return failing, complete, complete or len(failing) > 0

    def _failing(self, parts: list[Integers]) -> Booleans:
        """Ask the model which of some sets fail."""
        found = np.unique(np.concatenate(parts), axis=0)
        gone = np.zeros((len(found), self.rows.n_groups), dtype=bool)
        np.put_along_axis(gone, found, True, axis=1)
        if not len(found):
            return gone
        self.spent += len(found)
        p = self.rows.answers(self.x[None], RowStates.of_one(gone))
        return gone[self.rule.flipped(p, self.original)]


def search_bounded(answers: Answers, row: int, search: BoundedRow, budget: int, names: tuple[str, ...]) -> None:
    """Fill one row's answer; it stays open where the budget ends first."""
    answers.method[row] = BRANCH_AND_BOUND
    if search.hopeless:
        answers.searched[row], answers.exhausted[row] = answers.max_size, True
    else:
        _by_size(answers, row, search, budget, names)
    answers.evaluations[row] = search.spent


def _by_size(answers: Answers, row: int, search: BoundedRow, budget: int, names: tuple[str, ...]) -> None:
    able = max(int((gains > 0).sum()) for gains in search.gains.values())
    for size in range(1, min(answers.max_size, able) + 1):
        failing, complete, decided = search.sets_of_size(size, budget)
        if len(failing):
            answers.put(row, failing[0], len(failing) if complete else NOT_COUNTED)
            if answers.minimal is not None:
                answers.minimal[row] = MinimalSets(answers.name_sets(failing, names), complete=False)
            return
        if not decided:
            return
        answers.searched[row] = size
    answers.searched[row], answers.exhausted[row] = answers.max_size, able <= answers.max_size
