"""Tree ensembles: the flip inequality as whole numbers per leaf, and how far off it can be.

For the original class o and a rival c, E(S) = start + sum over trees of the leaf that S reaches, where a leaf counts
with the weights of o and c in its values. Leaves are rounded to whole numbers of a quantum, so every sum over leaves is
exact (see ``kernels.subsets``). What is left is bounded:

    rounding of the leaves     at most the largest rounding in each tree, summed over trees
    the library's own sums     in float32 or float64: unit roundoff times the sum of all partial sums, each at most
                               the sum of the largest leaves; the trees with the largest leaves first is the worst order
    link and logarithms        1e-13 in units of the margin

A state further from 0 than that bound is decided; the others are the model's own to decide.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.kernels.lattice import (
    expected_values,
    find_safe,
    list_reached,
    live_groups,
    mark_few_states,
    mark_states,
    search_size,
    tree_bounds,
)
from fragility.engines.kernels.subsets import FIRST_BITS, WORD_BITS, list_few
from fragility.engines.lattice.additive import MOST_LIVE, FlipRule
from fragility.engines.trees.engine import ensemble_of
from fragility.engines.trees.forest import AVERAGE, NO_LEVELS, SIGMOID, Forest
from fragility.engines.trees.recoding import make_recoding
from fragility.engines.trees.scoring import make_plan
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol

NARROW_ROUNDING = 2e-5  # of a margin: more than this through 32-bit numbers, and 64-bit ones are taken
FEW = (3, 5, 8)  # sizes of sets that are tried before all subsets are tabulated
MOST_BY_TESTS = 20  # live groups that are taken as they are; where there seem to be more, the trees are walked
NOTHING = np.empty((0, 3), dtype=np.int64)
SAFE_BITS = 5  # a search without a table looks at a leaf for every 32 entries that the table has
# The largest value a state may have, in quanta; bounds add up differences of several states, which must not overflow.
NARROW, WIDE = 2.0**30, 2.0**57


class TreeEdge(NamedTuple):
    """E for one original class and one rival, in quanta."""

    trees: npt.NDArray[np.int32]  # those that tell the two classes apart
    leaf: npt.NDArray[Any]  # (leaves,) int32 or int64
    start: int
    low: int  # E <= low: flips for certain
    high: int  # E >= high: does not, for certain


class TreeLattice:
    """The trees of a model, bound to the baseline and groups of some rows."""

    name = kind = "trees"
    most_live = MOST_LIVE
    few = FEW

    def __init__(self, rows: EvidenceRows, protocol: Protocol, rule: FlipRule) -> None:
        ensemble = ensemble_of(rows.model)
        self.forest = expand_levels(ensemble.forest)
        self.recoding = make_recoding(ensemble, rows)
        self.rule = rule
        self.plan = make_plan(self.forest, self.recoding, rows, protocol)
        self.rows = rows
        self._fixed = np.empty((0, rows.width), dtype=bool)  # cells of the block begun that no state moves
        self._edges: dict[tuple[int, int, bool], TreeEdge] = {}
        self._tables: dict[tuple[int, Any], npt.NDArray[Any]] = {}  # by worker and kind of number

    def rebind(self, rows: EvidenceRows) -> TreeLattice:
        """Return the same model for other rows, with tables of its own: several threads may use it at once."""
        other = copy(self)
        other.rows, other._tables = rows, {}
        return other

    def edge(self, original: int, rival: int, *, wide: bool = False) -> TreeEdge:
        """E of a pair of classes; ``wide``: in 64-bit numbers even where 32 bits would do."""
        key = (original, rival, wide)
        if key not in self._edges:
            self._edges[key] = make_edge(self.forest, self.rule, original, rival, wide)
        return self._edges[key]

    def entry_bytes(self) -> int:
        """Bytes of a table's entry."""
        classes = range(self.rule.n_classes)
        return max(self.edge(o, c).leaf.itemsize for o in classes for c in self.rule.rivals(o))

    def begin(self, start: int, stop: int) -> None:
        """Look up what no state moves in the rows that the next calls are about."""
        spared = self.rows.spared(start, stop)
        self._fixed = np.empty((0, self.rows.width), dtype=bool) if spared is None else spared.cells

    def live(self, x: Floats, run: Any) -> Booleans:
        """(n, G) the groups that can change a row's scores; of rows with many, those that some state tests."""
        live = np.zeros((len(x), self.plan.tree_group.shape[0]), dtype=bool)
        matrix, fixed = cells = (self.recoding.recode(x), self._fixed)
        run(len(x), lambda span, _: live_groups(self.forest, self.plan, cells, live, span))
        wide = np.flatnonzero(live.sum(axis=1) > MOST_BY_TESTS)
        live[wide] = False
        every = np.arange(self.forest.n_trees, dtype=np.int32)

        def walk(span: tuple[int, int], _: int) -> None:
            for row in wide[slice(*span)]:
                spared = fixed[row : row + 1]
                list_reached(self.forest, self.plan, every, matrix[row], spared, NOTHING, NOTHING, live[row])

        run(len(wide), walk)
        return live

    def list_reached(self, row: Floats, fixed: Booleans, trees: Any) -> tuple[Integers, Integers]:
        """Return the leaves of some trees that states of a row reach, and what each needs; see the kernel."""
        seen = np.zeros(self.plan.tree_group.shape[0], dtype=bool)
        of_row = self.forest, self.plan, trees, self.recoding.recode(row), fixed
        n, m = list_reached(*of_row, NOTHING, NOTHING, seen)
        leaves, decisions = np.empty((n, 2), dtype=np.int64), np.empty((m, 3), dtype=np.int64)
        list_reached(*of_row, leaves, decisions, seen)
        return leaves, decisions

    def mark(self, x: Floats, original: int, largest: int, jobs: Any, marks: Any, run: Any) -> None:
        """Mark the flips of the rows of ``jobs``, which all are of one original class.

        largest: how many groups the states lack at most.
        """
        cells, those = self._cells_of(x, jobs[0]), jobs[1:]
        most = int(jobs[2].max(initial=0))
        few = list_few(largest) if largest < most else None
        size = 1 << max(most, WORD_BITS) if few is None else int(few.start[-1])
        for rival in self.rule.rivals(original):
            edge = self.edge(original, rival)

            def work(span: tuple[int, int], worker: int) -> None:
                table = self._table(worker, edge.leaf.dtype, size)  # noqa: B023
                if few is None:
                    scratch = table, spread_masks(edge.leaf.dtype)  # noqa: B023
                    mark_states(self.forest, self.plan, edge, cells, those, scratch, marks, span)  # noqa: B023
                else:
                    mark_few_states(self.forest, self.plan, edge, cells, those, few, table, marks, span)  # noqa: B023

            run(len(jobs[0]), work)

    def find_safe(self, x: Floats, original: int, jobs: Any, run: Any) -> Booleans:
        """(m,) which rows of ``jobs`` surely have no failing set; the search ends where a table costs less."""
        cells, those = self._cells_of(x, jobs[0]), jobs[1:]
        safe, budget = np.ones(len(jobs[0]), dtype=bool), np.int64(1) << np.maximum(jobs[2] - SAFE_BITS, 0)
        for rival in self.rule.rivals(original):
            edge, above = self.edge(original, rival), np.zeros(len(safe), dtype=bool)
            run(len(safe), lambda span, _: find_safe(self.forest, self.plan, edge, cells, those, budget, above, span))  # noqa: B023
            safe &= above
        return safe

    def _cells_of(self, x: Floats, rows: Integers) -> tuple[Any, Booleans]:
        return self.recoding.recode(x[rows]), self._fixed[rows] if len(self._fixed) else self._fixed

    def _table(self, worker: int, kind: Any, size: int) -> npt.NDArray[Any]:
        """A worker's own table; kept, because fresh memory costs as much as a transform."""
        table = self._tables.get((worker, kind))
        if table is None or len(table) < size:
            table = self._tables[worker, kind] = np.empty(size, dtype=kind)
        return table

    def expected_margin(self, x: Floats, original: Integers, rates: Floats, run: Any) -> Floats | None:
        """(n,) expected support margin, clips aside; None where the margin is no sum of the trees."""
        if self.forest.link != SIGMOID:
            return None
        out, cells = np.zeros(len(x)), (self.recoding.recode(x), self._fixed)
        values = self.forest.leaf_value[:, 0].astype(np.float64)
        run(len(x), lambda span, _: expected_values(self.forest, self.plan, values, cells, rates, out, span))
        score = (out + float(self.forest.base[0])) / self.forest.divisor * self.forest.scale
        score += self.rule.offset[1] - self.rule.offset[0]
        return np.asarray(np.where(original == 1, score, -score))

    # -- branch and bound ----------------------------------------------------------------------------------------

    def bounds(self, row: Floats, fixed: Booleans, original: int, rival: int) -> tuple[int, Integers]:
        """Return (least E over all states, by how much each group's removal can lower it).

        fixed: (1, d) cells of the row that no state moves; (0, d) where there are none.
        """
        gains = np.zeros(self.plan.tree_group.shape[0], dtype=np.int64)
        edge = self.edge(original, rival, wide=True)
        return int(tree_bounds(self.forest, self.plan, edge, self.recoding.recode(row), fixed, gains)), gains

    def sets_of_size(
        self,
        row: Floats,
        fixed: Booleans,
        original: int,
        rival: int,
        gains: Integers,
        size: int,
        budget: int,
        cap: int,
    ) -> tuple[Integers, int, int, bool]:
        """Return (sets perhaps failing (k, size), how many fail for certain, states evaluated, searched to the end)."""
        groups = np.flatnonzero(gains > 0)
        found = np.zeros((cap, size), dtype=np.int64)
        edge = self.edge(original, rival, wide=True)
        listed, sure, spent, done = search_size(
            self.forest, self.plan, edge, (self.recoding.recode(row), fixed), groups, gains[groups], size, budget, found
        )
        return found[:listed], int(sure), int(spent), bool(done)


def spread_masks(kind: Any) -> npt.NDArray[Any]:
    """(256, 16): by kept and removed among the lowest groups, all ones at the states they are reached at."""
    state = np.arange(1 << FIRST_BITS)
    kept, removed = np.divmod(np.arange(1 << (2 * FIRST_BITS)), 1 << FIRST_BITS)
    reached = ((kept[:, None] & state) == 0) & ((removed[:, None] & state) == removed[:, None])
    return np.where(reached, -1, 0).astype(kind)


def expand_levels(forest: Forest) -> Forest:
    """Return the forest with its oblivious trees as ordinary nodes: test of level d at depth d."""
    if not forest.oblivious:
        return forest
    tests, rights, starts = [], [], [0]
    for tree in range(forest.n_trees):
        levels = forest.level_test[forest.level_start[tree] : forest.level_start[tree + 1]]
        test, right = _build_perfect_tree(levels, int(forest.leaf_start[tree]))
        tests.append(test)
        rights.append(right + starts[-1])
        starts.append(starts[-1] + len(test))
    return forest._replace(
        node_test=np.concatenate(tests).astype(np.int32),
        node_right=np.concatenate(rights).astype(np.int32),
        tree_start=np.array(starts, dtype=np.int64),
        level_test=NO_LEVELS[0],
        level_start=NO_LEVELS[1],
    )


def _build_perfect_tree(levels: npt.NDArray[np.int32], first_leaf: int) -> tuple[Integers, Integers]:
    """Return (node_test, node_right) in preorder, from the leaves up: leaf index bit j is the way at level j."""
    tests = [np.array([-1 - first_leaf - index]) for index in range(2 ** len(levels))]
    rights = [np.zeros(1, dtype=np.int64) for _ in tests]
    for level in range(len(levels) - 1, -1, -1):
        half = 1 << level
        joined = [(tests[i], tests[i + half], rights[i], rights[i + half]) for i in range(half)]
        tests = [np.concatenate([[levels[level]], left, right]) for left, right, _, _ in joined]
        rights = [
            np.concatenate([[1 + len(left)], 1 + below, 1 + len(left) + beside]) for left, _, below, beside in joined
        ]
    return tests[0].astype(np.int64), rights[0].astype(np.int64)


# --- the inequality in whole numbers ------------------------------------------------------------------------


def make_edge(forest: Forest, rule: FlipRule, original: int, rival: int, wide: bool) -> TreeEdge:
    """Return E of a pair of classes; ``wide``: in 64-bit numbers even where 32 bits would do."""
    weight, constant = _weigh_outputs(forest, rule, original, rival)
    leaf = _weigh_leaves(forest, weight)
    start = float(weight @ forest.base.astype(np.float64)) + constant
    largest = np.maximum.reduceat(np.abs(leaf), forest.leaf_start[:-1])
    span = abs(start) + float(largest.sum())
    rounding = _bound_library_rounding(forest, weight) + rule.rounding * forest.divisor / forest.scale + span * 2.0**-48
    limit = NARROW_ROUNDING * forest.divisor / forest.scale
    if forest.link == AVERAGE:
        if forest.one_sided:
            rounding += forest.divisor * 2.0**-24  # of the rest, in float32
        elif np.count_nonzero(weight) != 2:  # the two probabilities of a leaf may not sum to exactly 1
            total = forest.divisor / forest.n_trees
            rounding += float(np.abs(forest.leaf_value.sum(axis=1) - total).max()) * forest.n_trees
        limit = 0.2 * rule.resolution * forest.divisor  # averages tie exactly, and a tie should be told from a flip
    if not wide:
        edge, error = _count_quanta(forest, leaf, start, largest, NARROW / max(span, 1e-300), rounding, np.int32)
        if error <= max(rounding, limit):
            return edge
    return _count_quanta(forest, leaf, start, largest, WIDE / max(span, 1e-300), rounding, np.int64)[0]


def _weigh_outputs(forest: Forest, rule: FlipRule, original: int, rival: int) -> tuple[Floats, float]:
    """Return the weight of each output and the constant of E, in units of the trees' sums."""
    lead = float(rule.lead(original, rival))
    weight = np.zeros(len(forest.base))
    if forest.link == SIGMOID:
        weight[0] = 1.0 if original == 1 else -1.0
        return weight, lead * forest.divisor / forest.scale
    if forest.one_sided:
        share = forest.divisor / (1.0 + float(np.exp(lead)))
        weight[0] = 1.0 if original == 1 else -1.0
        return weight, -share if original == 1 else forest.divisor - share
    if forest.link == AVERAGE and rule.n_classes == 2:  # p_c = 1 - p_o: one class says it all, and halves are exact
        weight[original] = 1.0
        return weight, -forest.divisor / (1.0 + float(np.exp(lead)))
    weight[original], weight[rival] = 1.0, -1.0
    if forest.link == AVERAGE:
        weight[original] = float(np.exp(lead))
        return weight, 0.0
    return weight, lead * forest.divisor / forest.scale


def _weigh_leaves(forest: Forest, weight: Floats) -> Floats:
    tree = np.repeat(np.arange(forest.n_trees), np.diff(forest.leaf_start))
    output = forest.tree_output[tree][:, None] + np.arange(forest.leaf_value.shape[1])
    return np.asarray((weight[output] * forest.leaf_value.astype(np.float64)).sum(axis=1))


def _bound_library_rounding(forest: Forest, weight: Floats) -> float:
    """Return how far the library's sums can be from exact ones, in the units of E."""
    roundoff = 2.0**-24 if forest.leaf_value.dtype == np.float32 else 2.0**-53
    total = 0.0
    for output in np.flatnonzero(weight):
        only = np.zeros_like(weight)
        only[output] = 1.0
        largest = np.maximum.reduceat(np.abs(_weigh_leaves(forest, only)), forest.leaf_start[:-1])
        partial = np.cumsum(np.sort(largest[largest > 0.0])[::-1]) + abs(float(forest.base[output]))
        total += abs(weight[output]) * 1.01 * roundoff * float(partial.sum())
    return total


def _count_quanta(
    forest: Forest, leaf: Floats, start: float, largest: Floats, scale: float, rounding: float, kind: Any
) -> tuple[TreeEdge, float]:
    """Return (the edge in whole numbers of 1 / scale, the largest error of a state by rounding leaves)."""
    # A power of two is exact to multiply by; so is a whole number for the 0 and 1 of pure leaves, and it is larger.
    scale = float(np.floor(scale)) if kind is np.int32 and scale >= 1.0 else 2.0 ** float(np.floor(np.log2(scale)))
    whole = np.rint(leaf * scale)
    worst = np.maximum.reduceat(np.abs(whole - leaf * scale), forest.leaf_start[:-1])
    begin = np.rint(start * scale)
    off = float(worst.sum()) + abs(begin - start * scale)
    bound = int(np.ceil(off + rounding * scale)) + 1
    trees = np.flatnonzero(largest > 0.0).astype(np.int32)
    return TreeEdge(trees, whole.astype(kind), int(begin), -bound - 1, bound), off / scale
