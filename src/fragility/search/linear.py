"""Closed form for linear models of any number of groups: no search at all.

With the flip inequality of rival c, E_c(S) = E_c - sum_{g in S} d_gc < 0 (`engines.lattice.linear`), no set of k
groups does better against c than the k largest d_gc. So c is reached with k groups if and only if those k reach it, the
smallest such k is found along the sorted sums, and the minimum over rivals is the smallest failing set. Groups of
d <= 0 are in none. Sums within rounding of the edge are asked of the model; where it says no, but another set of that
size lies within rounding too, smaller sets are not excluded and the answer is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fragility.arrays import Booleans, Floats, Integers
from fragility.engines.lattice.linear import LinearLattice
from fragility.evidence import EvidenceRows, RowStates
from fragility.search.answers import Answers

CLOSED_FORM = "closed form"


def search_linear(
    answers: Answers,
    rows: EvidenceRows,
    lattice: LinearLattice,
    start: int,
    places: Integers,
    x: Floats,
    original: Integers,
) -> None:
    """Fill the answers of rows ``start + places``; x (m, d) and original (m,) are of the block that begins there."""
    total, removed, rounding = lattice.of_rows(start, start + len(x))
    total, removed, rounding = total[:, places], removed[..., places], rounding[places]
    reach = [_Reach(*lattice.inequality(total, removed, original[places], c), rounding) for c in range(len(total))]
    for i, place in enumerate(places):
        row = start + int(place)
        answers.method[row] = CLOSED_FORM
        answers.evaluations[row] = len(reach)

        def flips(gone: Booleans, place: int = int(place), row: int = row) -> bool:
            answers.evaluations[row] += 1
            p = rows.answers(x[place][None], RowStates.of_one(gone[None]))
            return bool(lattice.rule.flipped(p, original[place : place + 1])[0])

        _fill(answers, row, [rival.of_row(i) for rival in reach], flips)


class _Reach:
    """E along the best sets of 0, 1, 2, ... groups against one rival."""

    def __init__(self, start: Floats, steps: Floats, rounding: Floats) -> None:
        self.order = np.argsort(-steps, axis=1, kind="stable")
        self.steps = np.maximum(np.take_along_axis(steps, self.order, axis=1), 0.0)
        self.values = start[:, None] - np.cumsum(self.steps, axis=1)
        self.rounding = rounding

    def of_row(self, i: int) -> _RowReach:
        return _RowReach(self.values[i], self.steps[i], self.order[i], float(self.rounding[i]))


class _RowReach:
    def __init__(self, values: Floats, steps: Floats, order: Integers, rounding: float) -> None:
        self.values, self.steps, self.order, self.rounding = values, steps, order, rounding

    def sure(self, size: int) -> bool:
        return bool(self.values[size - 1] < -self.rounding)

    def near(self, size: int) -> bool:
        return bool(self.values[size - 1] < self.rounding)

    def another_near(self, size: int) -> bool:
        """Whether a second set of this size lies within rounding: the last member exchanged for the next group."""
        if size == len(self.steps):
            return False
        return bool(self.values[size - 1] + self.steps[size - 1] - self.steps[size] < self.rounding)

    def best(self, size: int) -> Booleans:
        gone = np.zeros(len(self.order), dtype=bool)
        gone[self.order[:size]] = True
        return gone


def _fill(answers: Answers, row: int, reach: list[_RowReach], flips: Callable[[Booleans], bool]) -> None:
    proved = True
    sizes = len(reach[0].order)
    for size in range(1, min(sizes, answers.max_size) + 1):
        candidates = [rival for rival in reach if rival.near(size)]
        for rival in candidates:
            if rival.sure(size) or flips(rival.best(size)):
                answers.put(row, rival.best(size))
                return
        proved &= not any(rival.another_near(size) for rival in candidates)
        if proved:
            answers.searched[row] = size
    # The values fall with the size: where the largest set is far from the edge, so is every other.
    answers.exhausted[row] = proved and (answers.max_size == sizes or not any(rival.near(sizes) for rival in reach))
