"""Trees whose fields take any value: pieces of many fields at once, and which sets of them can flip a row.

The pieces of a field (`pieces`) become a grid with those of others; ``kernels.boxes`` decides its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.kernels.boxes import BOX_BLOCK, MOST_DOUBTS, MOST_SETS, OPEN, decide_sets, search_size
from fragility.engines.kernels.compiling import run_on_all_threads
from fragility.engines.kernels.pairs import list_entries, search_pairs, weigh_flips
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.lattice.trees import expand_levels, make_edge
from fragility.engines.trees.forest import Flags, find_starts
from fragility.engines.trees.pieces import ForestPieces
from fragility.engines.trees.scoring import mark_tree_groups

Whole: TypeAlias = npt.NDArray[np.int32]
MOST_TRIPLES = 128  # units of whose triples a bound is tabulated


class FieldGrid(NamedTuple):
    """A field as an axis of the grid: its pieces, and which of them it may take; P pieces, n rows."""

    columns: Integers  # of the estimator's input that come from it, and from no other field
    cells: Floats  # (P, d) a row's cells at a value of each piece; only those of ``columns`` are read
    domain: Booleans  # (P,) the piece holds a value of the domain
    own: Integers  # (n,) the piece of each row's own value; -1 where it is in none


class Walked(NamedTuple):
    """What a walk reads of a forest, whatever the numbers in its leaves; the fields are those of ``Forest``."""

    test_column: Whole
    test_threshold: Floats
    test_flags: Flags
    set_start: Integers
    set_words: npt.NDArray[np.uint32]
    node_test: Whole
    node_right: Whole
    tree_start: Integers


class Pieces(NamedTuple):
    """What the kernels read of the fields; T tests, F fields, U units of them."""

    test_field: Whole  # (T,) -1: the test is about no field that is free
    test_unit: Whole  # (T,)
    first_way: Flags  # (T,) 1: the first piece of the test's field goes right
    turn_start: Integers  # (T + 1,)
    turns: Whole  # pieces from which on the test decides the other way
    can_left: Flags  # (T,) 1: some value of the domain goes there
    can_right: Flags
    n_pieces: Integers  # (F,)
    piece_start: Integers  # (F,) of a field's counts
    domain_counts: Integers  # how many pieces of the domain come before the first, the second, ... and in all
    field_trees: Flags  # (F, trees) 1: the tree asks about the field
    unit_start: Integers  # (U + 1,)
    unit_field: Integers
    widest_unit: int  # fields of a unit, at most
    most_triples: int
    n_waiting: int
    rounding: Flags  # (d,) of cells
    zero_missing: bool


class LeafWords(NamedTuple):
    """The leaves of all trees, 64 to a word, and what keeps rows from them; K words, I items, E entries.

    An item is a field that tests on the way to leaves of a word are about; an entry is such a test.
    """

    word_tree: Integers  # (K,)
    leaf: Whole  # (K, 64) number of a bit's leaf; -1 where there is none
    full: npt.NDArray[np.uint64]  # (K,) the bits that have one
    word_item: Integers  # (K + 1,)
    item_field: Whole  # (I,) -1 for tests about no field that is free
    item_bound: npt.NDArray[np.uint64]  # (I,) leaves on whose way the field is asked about
    item_start: Integers  # (I + 1,)
    entry_test: Whole  # (E,)
    lost: npt.NDArray[np.uint64]  # (E, 2) leaves that a row going left, or right, cannot reach
    most_items: int  # of a word

    @classmethod
    def of(cls, walked: Walked, test_field: Whole) -> LeafWords:
        """Return those of a forest; test_field: the field of each test."""
        word, test, lost, word_tree, leaf = list_entries(walked.node_test, walked.node_right, walked.tree_start)
        field = test_field[test]
        order = np.lexsort((field, word))
        word, test, lost, field = word[order], test[order], lost[order], field[order]
        begins = np.flatnonzero(np.diff(word, prepend=-1) | np.diff(field, prepend=-2))
        items = np.bincount(word[begins], minlength=len(word_tree))
        present = (leaf >= 0).astype(np.uint64) << np.arange(64, dtype=np.uint64)
        return cls(
            word_tree=word_tree,
            leaf=leaf,
            full=np.bitwise_or.reduce(present, axis=1),
            word_item=find_starts(items),
            item_field=field[begins].astype(np.int32),
            item_bound=np.bitwise_or.reduceat(lost[:, 0] | lost[:, 1], begins) if len(begins) else lost[:, 0],
            item_start=np.append(begins, len(word)).astype(np.int64),
            entry_test=test,
            lost=lost,
            most_items=int(items.max(initial=0)) + 1,
        )


class Rivals(NamedTuple):
    """E of one original class and each of its R rivals; see ``lattice.trees``."""

    trees: Whole  # those that tell the two classes apart, one rival after another
    tree_start: Integers  # (R + 1,)
    leaf: Integers  # (R, leaves)
    start: Integers  # (R,)
    low: Integers
    high: Integers


class SizeFound(NamedTuple):
    """What is known of all sets of one size; m rows."""

    counts: Integers  # (m, 4) sets that hold, are doubtful, flip, and are open
    witness: Whole  # (m, size) units of the first set that flips
    doubtful: Whole  # (m, MOST_SETS, size)
    by_unit: Flags  # (m, U) the state of each unit alone, where size is 1


class SetsFound(NamedTuple):
    """What is known of some sets of fields; J jobs, R rivals."""

    states: Flags  # (J, R)
    doubts: Integers  # (J, R) cells that are left to the model
    places: Whole  # (J, R, MOST_DOUBTS, 2 fields) from which to which piece of each field these cells reach


class TreeBoxes:
    """The trees of some rows, and the grid of their fields."""

    def __init__(self, pieces: ForestPieces, rule: FlipRule, grids: Sequence[FieldGrid], units: Sequence[Integers]):
        self.pieces, self.rule = pieces, rule
        self.forest = expand_levels(pieces.forest)
        self.walked = Walked(*(getattr(self.forest, name) for name in Walked._fields))
        self.own = np.ascontiguousarray(np.stack([grid.own for grid in grids], axis=1).astype(np.int32))
        self.asked = self._list_pieces(grids, units)
        self.leaves = LeafWords.of(self.walked, self.asked.test_field)
        self._rivals: dict[int, Rivals] = {}

    def _list_pieces(self, grids: Sequence[FieldGrid], units: Sequence[Integers]) -> Pieces:
        forest, n_tests = self.forest, len(self.forest.test_column)
        test_field, test_unit = np.full((2, n_tests), -1, dtype=np.int32)
        first_way, can_left, can_right = np.zeros((3, n_tests), dtype=np.uint8)
        turns: list[Integers] = [np.zeros(0, dtype=np.int64)] * n_tests
        field_trees = np.zeros((len(grids), forest.n_trees), dtype=np.uint8)
        unit_of = {int(field): u for u, own in enumerate(units) for field in own}
        n_columns = len(self.pieces.recoding.rounding)
        for f, grid in enumerate(grids):
            tests = np.flatnonzero(np.isin(forest.test_column, grid.columns))
            first, own_turns = self.pieces.find_turns(tests, grid.cells)
            test_field[tests], test_unit[tests], first_way[tests] = f, unit_of.get(f, -1), first
            for test, way, places in zip(tests, first, own_turns, strict=True):
                turns[test] = places
                ways = (way + np.searchsorted(places, np.flatnonzero(grid.domain), side="right")) % 2
                can_left[test], can_right[test] = (ways == 0).any(), (ways == 1).any()
            group = np.isin(np.arange(n_columns), grid.columns).astype(np.uint32)
            field_trees[f, np.flatnonzero(mark_tree_groups(forest, group, 2)[1])] = 1
        counts = [np.concatenate([[0], np.cumsum(grid.domain)]) for grid in grids]
        return Pieces(
            test_field=test_field,
            test_unit=test_unit,
            first_way=first_way,
            turn_start=find_starts([len(own) for own in turns]),
            turns=np.concatenate([np.zeros(0, dtype=np.int64), *turns]).astype(np.int32),
            can_left=can_left,
            can_right=can_right,
            n_pieces=np.array([len(grid.domain) for grid in grids], dtype=np.int64),
            piece_start=find_starts([len(own) for own in counts])[:-1],
            domain_counts=np.concatenate(counts).astype(np.int64),
            field_trees=field_trees,
            unit_start=find_starts([len(own) for own in units]),
            unit_field=np.concatenate(units).astype(np.int64),
            widest_unit=max(map(len, units)),
            most_triples=MOST_TRIPLES,
            n_waiting=forest.most_leaves + 2,
            rounding=self.pieces.recoding.rounding,
            zero_missing=self.pieces.zero_missing,
        )

    @property
    def by_field(self) -> bool:
        """Whether each field is a unit of its own."""
        each = np.arange(len(self.asked.n_pieces))
        return self.asked.widest_unit == 1 and np.array_equal(self.asked.unit_field, each)

    def rivals(self, original: int) -> Rivals:
        """Return the inequalities of all rivals of a class."""
        if original not in self._rivals:
            edges = [make_edge(self.forest, self.rule, original, c, wide=True) for c in self.rule.rivals(original)]
            start, low, high = np.array([(edge.start, edge.low, edge.high) for edge in edges], dtype=np.int64).T
            self._rivals[original] = Rivals(
                trees=np.concatenate([edge.trees for edge in edges]).astype(np.int32),
                tree_start=find_starts([len(edge.trees) for edge in edges]),
                leaf=np.stack([edge.leaf for edge in edges]).astype(np.int64),
                start=np.ascontiguousarray(start),
                low=np.ascontiguousarray(low),
                high=np.ascontiguousarray(high),
            )
        return self._rivals[original]

    def _rows(self, x: Floats, who: Integers) -> tuple[Floats, Whole]:
        return np.ascontiguousarray(self.pieces.recoding.recode(x)), np.ascontiguousarray(self.own[who])

    def search_size(
        self, original: int, x: Floats, who: Integers, size: int, budget: int, by_sets: bool = False
    ) -> SizeFound:
        """Decide all sets of so many units for rows ``who`` of one class, whose cells are x (m, d).

        by_sets: not in one walk per tree for all sets of one or two fields, but set by set.
        """
        m, rivals, rows = len(who), self.rivals(original), self._rows(x, who)
        found = self._blank(m, size)
        if by_sets or not self.by_field or size > 2 or (rows[1] < 0).any():
            return self._search_sets(rivals, rows, size, budget, found)
        self._run(
            m, lambda span: search_pairs(self.walked, self.asked, self.leaves, rivals, size, rows, span, tuple(found))
        )
        if (left := np.flatnonzero(found.counts[:, OPEN])).size:  # their grids are too large
            some = tuple(part[left] for part in rows)
            again = self._search_sets(rivals, some, size, budget, self._blank(len(left), size))
            for name in SizeFound._fields:
                getattr(found, name)[left] = getattr(again, name)
        return found

    def _blank(self, m: int, size: int) -> SizeFound:
        return SizeFound(
            np.zeros((m, 4), dtype=np.int64),
            np.full((m, size), -1, dtype=np.int32),
            np.full((m, MOST_SETS, size), -1, dtype=np.int32),
            np.zeros((m, len(self.asked.unit_start) - 1), dtype=np.uint8),
        )

    def _search_sets(self, rivals: Rivals, rows: Any, size: int, budget: int, found: SizeFound) -> SizeFound:
        self._run(
            len(rows[0]),
            lambda span: search_size(self.walked, self.asked, rivals, size, rows, budget, span, tuple(found)),
        )
        return found

    def decide_sets(
        self, original: int, x: Floats, who: Integers, jobs: Sequence[tuple[int, Sequence[int]]], budget: int
    ) -> SetsFound:
        """Decide sets of fields, each of one of the rows; jobs: (place in ``who``, fields)."""
        rivals, rows = self.rivals(original), self._rows(x, who)
        widest = max((len(fields) for _, fields in jobs), default=1)
        flat = (
            np.array([row for row, _ in jobs], dtype=np.int64),
            find_starts([len(fields) for _, fields in jobs]),
            np.array([field for _, fields in jobs for field in fields], dtype=np.int32),
        )
        shape = (len(jobs), len(rivals.start))
        found = SetsFound(
            np.zeros(shape, dtype=np.uint8),
            np.zeros(shape, dtype=np.int64),
            np.zeros((*shape, MOST_DOUBTS, 2 * max(widest, 1)), dtype=np.int32),
        )
        self._run(
            len(jobs), lambda span: decide_sets(self.walked, self.asked, rivals, rows, flat, budget, span, tuple(found))
        )
        return found

    def weigh_flips(
        self, original: int, x: Floats, who: Integers, points: Sequence[tuple[Integers, Floats]]
    ) -> tuple[Floats, Floats]:
        """Return (m, F) the chance that a field's points flip the rows, and (m,) that summed over pairs of fields.

        points: the piece of each value of a field, rising, and its weight.
        """
        rivals, rows = self.rivals(original), self._rows(x, who)
        flat = (
            find_starts([len(pieces) for pieces, _ in points]),
            np.concatenate([pieces for pieces, _ in points]).astype(np.int64),
            np.concatenate([weights for _, weights in points]).astype(np.float64),
        )
        out = np.zeros((len(who), len(points))), np.zeros(len(who))
        odd = (rows[1] < 0).any(axis=1)  # a field's own value is in no piece
        self._run(
            len(who), lambda span: weigh_flips(self.walked, self.asked, self.leaves, rivals, flat, rows, span, out)
        )
        out[0][odd], out[1][odd] = np.nan, np.nan
        return out

    @staticmethod
    def _run(n: int, work: Callable[[tuple[int, int]], Any]) -> None:
        if n:
            run_on_all_threads(n, BOX_BLOCK, work)
