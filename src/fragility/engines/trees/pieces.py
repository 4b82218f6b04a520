"""Pieces of a field: the stretches of its values on which every test of a forest decides alike.

The edges between pieces are the same for all rows, so they are found once. A row's decision is constant on a piece, and
`kernels.pieces` finds the nearest pieces of each row that flip it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.base.arrays import Floats, Integers
from fragility.engines.kernels.compiling import run_on_all_threads
from fragility.engines.kernels.decisions import ZERO_THRESHOLD, baseline_ways
from fragility.engines.kernels.pieces import PIECE_BLOCK, find_flips
from fragility.engines.trees.engine import ensemble_of
from fragility.engines.trees.forest import (
    CATEGORY,
    KIND,
    NAN_RIGHT,
    NARROW,
    NUMERIC,
    WHOLE,
    ZERO_BAND,
    Columns,
    Flags,
    find_starts,
)
from fragility.engines.trees.recoding import make_recoding
from fragility.engines.trees.scoring import make_row_scorer, mark_tree_groups
from fragility.evidence import EvidenceRows

# How far a sum over pieces may be from the model's own, in margin units, if leaves have double or single precision.
SLACK, SINGLE_SLACK = 1e-9, 1e-4
MOST_DECISIONS = 1 << 24  # of tests about pieces, held at a time


class FieldPieces(NamedTuple):
    """How the trees decide on the pieces of one field; T tests in all, t about the field."""

    n_pieces: int
    local: npt.NDArray[np.int32]  # (T,) number of a test among those about the field, -1 for any other
    first_way: npt.NDArray[np.uint8]  # (t,) 1: the first piece goes right
    turn_start: Integers  # (t + 1,)
    turns: Integers  # pieces from which on a test decides the other way, rising for each test
    trees: Integers  # trees that ask about the field
    rounding: Flags  # (d,) of cells
    zero_missing: bool


class FlipRules(NamedTuple):
    """How raw sums are compared."""

    link: int
    divisor: float
    scale: float
    offset: Floats  # (C,) of the declared decision
    resolution: float
    slack: float


class Scan(NamedTuple):
    """The rows that are looked at, and where; pieces are numbered from 0."""

    totals: Floats  # (m, outputs) raw sums at x
    original: Integers  # (m,)
    own: Integers  # (m,) the piece of x
    lowest: Integers  # (m,) the outermost pieces to look at
    highest: Integers
    below: Integers  # (m,) pieces up to which nothing flips
    above: Integers

    def take(self, some: Integers) -> Scan:
        """Return some of the rows."""
        totals, *places = (each[some] for each in self)
        return Scan(totals, *places)  # type: ignore[arg-type]


class ForestPieces:
    """A forest and the rows that its pieces are searched for."""

    def __init__(self, rows: EvidenceRows, resolution: float) -> None:
        ensemble = ensemble_of(rows.model)
        self.forest, self.recoding = ensemble.forest, make_recoding(ensemble, rows)
        self.zero = ZERO_THRESHOLD if ensemble.least else 0.0  # LightGBM compares cells up to it as 0
        sparse = bool(sp.issparse(rows.matrix))
        self.zero_missing = sparse and self.forest.absent_missing
        self.score = make_row_scorer(self.forest, self.recoding.rounding, sparse)
        offset = np.zeros(self.forest.n_classes) if rows.offset is None else np.asarray(rows.offset, dtype=np.float64)
        single = self.forest.leaf_value.dtype == np.float32
        divisor, scale = float(self.forest.divisor), float(self.forest.scale)
        slack = SINGLE_SLACK if single else SLACK
        self.rules = FlipRules(int(self.forest.link), divisor, scale, offset, resolution, slack)

    def list_edges(self, columns: Integers) -> tuple[Columns, Floats] | None:
        """Return (column, threshold) of each place where a test about some columns may decide otherwise.

        None if they are compared as categories, which have no order.
        """
        forest = self.forest
        tests = np.flatnonzero(np.isin(forest.test_column, columns))
        kinds = forest.test_flags[tests] & KIND
        if (kinds >= CATEGORY).any() or any(int(j) in self.recoding.listed for j in columns):
            return None
        pairs = {(int(forest.test_column[t]), float(forest.test_threshold[t])) for t in tests}
        around: list[float] = []  # zeros that are read as missing have edges of their own
        if (kinds == ZERO_BAND).any():
            around += [np.nextafter(-ZERO_THRESHOLD, -np.inf), ZERO_THRESHOLD]
        if self.zero_missing:
            around += [np.nextafter(0.0, -np.inf), 0.0]
        pairs |= {(int(column), edge) for column in forest.test_column[tests] for edge in around}
        ordered = sorted(pairs)
        return np.array([c for c, _ in ordered], dtype=np.int32), np.array([t for _, t in ordered], dtype=np.float64)

    def round_cells(self, cells: Floats) -> Floats:
        """Return cells (k, d) as the trees compare them; zeros that they read as missing are still zeros."""
        rounding, recoded = self.recoding.rounding, self.recoding.recode(cells)
        whole = np.where(rounding & WHOLE, np.rint(recoded), recoded)
        with np.errstate(over="ignore"):
            rounded = np.where(rounding & NARROW, whole.astype(np.float32).astype(np.float64), whole)
        return np.where(np.abs(rounded) <= self.zero, 0.0, rounded)

    def rank_cells(self, cells: Floats, column: Columns, threshold: Floats) -> Integers:
        """Return (k, columns) how many edges each cell of rows (k, d) lies beyond; column, threshold: the edges."""
        compared = self.round_cells(cells)
        ranks = [np.searchsorted(threshold[column == j], compared[:, j], side="left") for j in np.unique(column)]
        return np.stack(ranks, axis=1) if ranks else np.zeros((len(cells), 0), dtype=np.int64)

    def cut(self, columns: Integers, cells: Floats) -> FieldPieces:
        """Return how the trees decide on the pieces of a field with these columns; cells (pieces, d)."""
        forest = self.forest
        tests = np.flatnonzero(np.isin(forest.test_column, columns))
        local = np.full(len(forest.test_column), -1, dtype=np.int32)
        local[tests] = np.arange(len(tests))
        first_way, turns = self.find_turns(tests, cells)
        group = np.isin(np.arange(len(self.recoding.rounding)), columns).astype(np.uint32)
        return FieldPieces(
            n_pieces=len(cells),
            local=local,
            first_way=first_way,
            turn_start=find_starts([len(own) for own in turns]),
            turns=np.concatenate([np.zeros(0, dtype=np.int64), *turns]),
            trees=np.flatnonzero(mark_tree_groups(forest, group, 2)[1]),
            rounding=self.recoding.rounding,
            zero_missing=self.zero_missing,
        )

    def find_turns(self, tests: Integers, cells: Floats) -> tuple[Flags, list[Integers]]:
        """Return (t,) which way the first piece goes at some tests, and the pieces from which on it goes the other way.

        cells: (pieces, d). Tests of numbers are decided a column at a time, by the values that the pieces have there.
        """
        forest, compared = self.forest, self.round_cells(cells)
        column, flags = forest.test_column[tests], forest.test_flags[tests]
        threshold = forest.test_threshold[tests]
        first, turns = np.zeros(len(tests), dtype=np.uint8), [np.zeros(0, dtype=np.int64)] * len(tests)
        plain = ((flags & KIND) == NUMERIC) & (not self.zero_missing)
        for j in np.unique(column[plain]):
            some, v = np.flatnonzero(plain & (column == j)), compared[:, j]
            same = (v[1:] == v[:-1]) | (np.isnan(v[1:]) & np.isnan(v[:-1]))
            begins = np.flatnonzero(np.concatenate([[True], ~same]))
            known = v[begins][~np.isnan(v[begins])]
            if (np.diff(known) > 0).all() and not np.isnan(v[begins[: len(known)]]).any():
                rank, gaps = np.searchsorted(known, threshold[some], side="right"), len(known) < len(begins)
                missing = (flags[some] & NAN_RIGHT) != 0
                first[some] = (rank == 0) if len(known) else missing
                for i, k, at_last, at_missing in zip(some, rank, rank < len(known), missing, strict=True):
                    turned = [begins[k]] if 0 < k < len(known) else []
                    turned += [begins[-1]] if gaps and len(known) and at_last != at_missing else []
                    turns[i] = np.array(turned, dtype=np.int64)
                continue
            for part in np.array_split(some, -(-len(some) * len(begins) // MOST_DECISIONS)):
                values = v[begins][:, None]
                ways = np.where(np.isnan(values), (flags[part] & NAN_RIGHT) != 0, values > threshold[part])
                first[part] = ways[0]
                test, turn = np.nonzero((ways[1:] != ways[:-1]).T)
                stops = np.searchsorted(test, np.arange(1, len(part)))
                for i, own in zip(part, np.split(begins[1:][turn], stops), strict=True):
                    turns[i] = own
        others = np.flatnonzero(~plain)
        if len(others):
            asking = forest._replace(  # the other tests would cost as much again for each piece
                test_column=column[others], test_threshold=threshold[others], test_flags=flags[others]
            )
            rounding = self.recoding.rounding
            ways = np.stack([baseline_ways(asking, y, rounding, self.zero_missing) for y in compared])
            first[others] = ways[0]
            for i, own in zip(others, (ways[1:] != ways[:-1]).T, strict=True):
                turns[i] = np.flatnonzero(own) + 1
        return first, turns

    def sum_rows(self, x: Floats) -> Floats:
        """Return (m, outputs) raw sums of rows x (m, d)."""
        return np.ascontiguousarray(self.score(self.recoding.recode(x)).T, dtype=np.float64)

    def find_flips(self, pieces: FieldPieces, x: Floats, scan: Scan) -> Integers:
        """Return (m, 2) the nearest pieces below and above that may flip rows x (m, d); -1 where none does."""
        cells = np.ascontiguousarray(self.recoding.recode(x))
        found = np.empty((len(x), 2), dtype=np.int64)
        find: Callable[[tuple[int, int]], Any] = lambda span: find_flips(  # noqa: E731
            self.forest, pieces, self.rules, cells, scan, span, found
        )
        run_on_all_threads(len(x), PIECE_BLOCK, find)
        return found
