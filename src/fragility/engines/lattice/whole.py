"""Rows in chunks and threads: for each row, one bit for each subset of its live groups.

A worker's table takes 2^L entries of 4 or 8 bytes (at 24 groups 64 or 128 MiB); as many workers run as fit into the
byte budget, at least one. The bits of a chunk of rows are kept together until they have been read. Each row is worked
on by one worker from start to end in whole numbers, so nothing depends on how many there are. Where only the smallest
failing sets are asked for, sets of few groups and bounds decide most rows, which then need no table of all subsets.

States near the edge are asked of the model itself, in one batch per chunk.
"""

from __future__ import annotations

import importlib
import math
import queue
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import say_lacking, warn_once
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import find_engine, never_reads
from fragility.engines.engine import Engine
from fragility.engines.lattice.additive import MOST_LIVE, FlipRule, LinearLattice, is_additive
from fragility.engines.oracle import EngineOracle, ModelOracle
from fragility.evidence import EvidenceRows, Spared, States
from fragility.evidence.agreement import original_class
from fragility.protocol import Protocol

WORD_BITS = 6
CHUNK_BYTES = 32 * MEBIBYTE  # bits of a chunk of rows
BLOCK_ROWS = 2048  # rows whose cells are held at a time
SPANS_PER_WORKER = 8
LEAST_LIVE = 16  # with fewer live groups, walks through the trees cost more than a table of all subsets
ENTRY_COST = 8  # of a set of few groups, in entries of a table of all subsets
CHECK_ROWS, CHECK_STATES = 16, 8
CHECK_ENTRIES = 1 << 21  # of the tables made for them; further rows are compared in states of few groups
Words: TypeAlias = npt.NDArray[np.uint64]
Work: TypeAlias = Callable[[tuple[int, int], int], None]  # (span of rows, worker)


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """Threads, each with a number of its own."""

    count: int

    def __call__(self, n: int, work: Work) -> None:
        if self.count == 1 or n <= 1:
            work((0, n), 0)
            return
        spans = min(n, SPANS_PER_WORKER * self.count)
        bounds = [n * i // spans for i in range(spans + 1)]
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for worker in range(self.count):
            free.put(worker)

        def take(span: tuple[int, int]) -> None:
            worker = free.get()
            try:
                work(span, worker)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(self.count) as threads:
            list(threads.map(take, pairwise(bounds)))


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some rows as they stand: their cells, original classes and live groups."""

    start: int
    x: Floats  # (m, d)
    original: Integers  # (m,)
    live: Booleans  # (m, G)
    doubted: Booleans  # (m,) rows that the engine may read otherwise than the model: they are left to the model
    spared: Spared | None = None  # what no state moves in them
    most_live: int = MOST_LIVE  # groups of a row whose subsets can be tabulated

    def spared_in(self, row: int) -> Spared | None:
        """Return what no state moves in one of the rows."""
        return None if self.spared is None else self.spared.of(slice(row, row + 1))

    def among(self, groups: Booleans) -> Block:
        """The same rows, where too many groups are live, with only some of them free to fail; groups (G,)."""
        wide = self.live.sum(axis=1) > self.most_live
        return replace(self, live=np.where(wide[:, None], self.live & groups, self.live))

    @property
    def narrow(self) -> Integers:
        """The rows whose subsets can be tabulated."""
        return np.flatnonzero((self.live.sum(axis=1) <= self.most_live) & ~self.doubted)

    @property
    def wide(self) -> Integers:
        """The rows with too many live groups for a table."""
        return np.flatnonzero((self.live.sum(axis=1) > self.most_live) & ~self.doubted)


@dataclass(frozen=True, slots=True, eq=False)
class Subsets:
    """The failing subsets of m rows of a block; bit b of a subset stands for group ``group[i, b]``."""

    block: Block
    place: Integers  # (m,) rows of the block
    group: Integers  # (m, 24), -1 where there are fewer live groups
    lives: Integers  # (m,)
    first_word: Integers  # (m,)
    words: Words
    asked: int  # states that the model itself was asked for
    run: Workers

    @classmethod
    def without_marks(cls, block: Block, place: Integers, run: Workers) -> Subsets:
        """Return rows of which no subset is marked yet."""
        live = block.live[place]
        lives = live.sum(axis=1).astype(np.int64)
        row, g = np.nonzero(live)
        group = np.full((len(live), MOST_LIVE), -1, dtype=np.int64)
        group[row, lives[row] - np.cumsum(live, axis=1)[row, g]] = g  # the first live group is the highest bit
        sizes = 1 << np.maximum(lives - WORD_BITS, 0)
        first_word = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        return cls(block, place, group, lives, first_word, np.zeros(int(sizes.sum()), dtype=np.uint64), 0, run)

    def take(self, those: Booleans) -> Subsets:
        """Return some of the rows."""
        place, group, lives = self.place[those], self.group[those], self.lives[those]
        return replace(self, place=place, group=group, lives=lives, first_word=self.first_word[those])

    @property
    def jobs(self) -> tuple[Integers, Integers, Integers, Integers]:
        """(rows of the block (m,), the bit of each live group or 0 (m, G), live groups (m,), first words (m,))."""
        bits = np.zeros((len(self.place), self.block.live.shape[1]), dtype=np.int64)
        row, bit = np.nonzero(self.group >= 0)
        bits[row, self.group[row, bit]] = np.int64(1) << bit
        return self.place.astype(np.int64), bits, self.lives, self.first_word

    def words_of(self, i: int) -> Words:
        first = self.first_word[i]
        return self.words[first : first + (1 << max(int(self.lives[i]) - WORD_BITS, 0))]

    def sizes(self) -> Integers:
        """(m, 25) how many failing sets of each size a row has."""
        return _count_sizes(self.words, self.first_word, self.lives, self.run)

    def list_sets(self, i: int, smallest: int, largest: int, cap: int) -> Booleans:
        """(k, G) failing sets of one row within these sizes, by size and then in lexicographic order of groups."""
        found = _list_subsets(self.words_of(i), int(self.lives[i]), smallest, largest, cap)
        return _mark_groups(found, self.group[i], self.block.live.shape[1])

    def list_minimal(self, i: int, largest: int, cap: int) -> tuple[Booleans, int]:
        """Return the failing sets without a failing proper subset, by size, at most ``cap``; and how many there are."""
        from fragility.engines.kernels.subsets import keep_minimal

        words, live = self.words_of(i).copy(), int(self.lives[i])
        keep_minimal(words, live)
        counts = _count_sizes(words, np.zeros(1, dtype=np.int64), self.lives[i : i + 1], Workers(1))[0, : largest + 1]
        found = np.zeros(0, dtype=np.int64)
        for size in np.flatnonzero(counts):
            found = np.append(found, _list_subsets(words, live, int(size), int(size), cap - len(found)))
        return _mark_groups(found, self.group[i], self.block.live.shape[1]), int(counts.sum())

    def probabilities(self, rates: Floats) -> tuple[Floats, Floats]:
        """Return (m,) the probability of a flip where group g fails at rates[g], and (m, G) its slope in each rate."""
        from fragility.engines.kernels.subsets import failure_probabilities

        m, words, first_word, lives = len(self.place), self.words, self.first_word, self.lives
        by_bit = np.where(self.group >= 0, rates[np.maximum(self.group, 0)], 0.0)
        p, slope = np.zeros(m), np.zeros((m, MOST_LIVE))
        self.run(m, lambda span, _: failure_probabilities(words, first_word, lives, by_bit, p, slope, span))
        importance = np.zeros((m, len(rates)))
        row, bit = np.nonzero(self.group >= 0)
        importance[row, self.group[row, bit]] = slope[row, bit]
        return p, importance


@dataclass(frozen=True, slots=True, eq=False)
class WholeLattice:
    """An additive model bound to rows; `blocks` and `subsets` answer for all of them."""

    rows: EvidenceRows
    rule: FlipRule
    native: type[Engine]
    model: Any  # LinearLattice, TreeLattice, or that of a wrapper
    byte_budget: int

    def blocks(self) -> Iterator[Block]:
        run, oracle = Workers(_cores()), EngineOracle(self.native(self.rows), self.rows)
        for start, x, p, original in row_blocks(self.rows, self.rule):
            self.model.begin(start, start + len(x))
            live = self.model.live(x, run)
            spared = self.rows.spared(start, start + len(x))
            doubted = oracle.find_doubted(start, x, p)
            yield Block(start, x, original, live, doubted, spared, self.model.most_live)

    def subsets(self, block: Block, max_size: int = MOST_LIVE) -> Iterator[Subsets]:
        """Yield the tabulated rows of a block, in chunks: rows of one original class, within the bytes of a chunk.

        max_size: states near the edge that lack more groups may stay as they are.
        """
        return self._mark(block, block.narrow, MOST_LIVE, lambda sizes: np.full(len(sizes), max_size))

    def smallest(self, block: Block, max_size: int) -> Iterator[Subsets]:
        """Yield what `subsets` yields, marked only as far as a row's smallest failing sets need, up to ``max_size``.

        Most rows are decided by sets of few groups, or by bounds that show that no set fails; only the others need a
        table of all subsets.
        """

        def settle(sizes: Integers) -> Integers:
            """No state above the smallest certain size matters."""
            return np.minimum(np.where(sizes.any(axis=1), (sizes > 0).argmax(axis=1), MOST_LIVE), max_size)

        rows, lives = block.narrow, block.live.sum(axis=1)
        for step, largest in enumerate(self.model.few):
            able = rows[np.isin(lives[rows], find_short(largest))]
            left = [np.setdiff1d(rows, able)]
            for found in self._mark(block, able, largest, settle):
                done = found.sizes()[:, : largest + 1].any(axis=1) | (largest >= max_size)
                yield found.take(done)
                left.append(found.place[~done])
                if step == 0 and not done.all():
                    safe = self._find_safe(found.take(~done))
                    yield safe
                    left[-1] = np.setdiff1d(left[-1], safe.place)
            rows = np.concatenate(left)
        yield from self._mark(block, rows, MOST_LIVE, settle)

    def mark_for_check(self, block: Block) -> Iterator[tuple[Subsets, int]]:
        """Yield the tabulated rows of a block, and how many groups their marked sets have at most.

        Of rows whose tables are large, some have all subsets marked, the others sets of few groups.
        """
        lives = block.live.sum(axis=1)[block.narrow]
        large = (lives >= LEAST_LIVE) & (len(self.model.few) > 0)
        entries = np.where(large, 1 << lives, 0)
        short = large & (np.cumsum(entries) - entries >= CHECK_ENTRIES)
        yield from ((found, MOST_LIVE) for found in self._mark(block, block.narrow[~short], MOST_LIVE, _settle_all))
        for largest in self.model.few[:1]:
            yield from ((found, largest) for found in self._mark(block, block.narrow[short], largest, _settle_all))

    def _mark(
        self, block: Block, rows: Integers, largest: int, settle: Callable[[Integers], Integers]
    ) -> Iterator[Subsets]:
        """Yield rows with their failing sets of at most ``largest`` groups.

        settle: given the failing sets of each size that are certain, (m, 25), the largest size (m,) up to which states
        near the edge are to be settled.
        """
        lives = block.live.sum(axis=1)
        for original in np.unique(block.original[rows]):
            those = rows[block.original[rows] == original]
            those = those[np.argsort(lives[those], kind="stable")]
            bytes_of = 16 << np.maximum(lives[those] - WORD_BITS, 0)
            cuts = np.flatnonzero(np.diff(np.cumsum(bytes_of) // CHUNK_BYTES)) + 1
            for place in np.split(those, cuts):
                none = Subsets.without_marks(block, place, self.workers(int(lives[place].max())))
                near = np.zeros_like(none.words)
                self.model.mark(block.x, int(original), largest, none.jobs, (none.words, near), none.run)
                near &= ~none.words
                yield replace(none, asked=self._settle(none, near, settle(none.sizes())))

    def _find_safe(self, left: Subsets) -> Subsets:
        """Return those rows, all of one original class, of which bounds show that no set fails."""
        original = int(left.block.original[left.place[0]])
        return left.take(self.model.find_safe(left.block.x, original, left.jobs, left.run))

    def workers(self, live: int) -> Workers:
        """Return as many threads as have room for a table of so many live groups."""
        table = self.model.entry_bytes() << max(live, WORD_BITS)
        return Workers(max(1, min(_cores(), self.byte_budget // table)))

    def _settle(self, found: Subsets, near: Words, limit: Integers) -> int:
        """Ask the model for the states near the edge, up to a size for each row, and mark those that flip."""
        counts = _count_sizes(near, found.first_word, found.lives, found.run)
        total = 0
        for i in np.flatnonzero(counts.any(axis=1)):
            wanted = int(counts[i, : int(limit[i]) + 1].sum())
            if wanted == 0:
                continue
            words, first = found.words_of(int(i)), found.first_word[i]
            states = _list_subsets(near[first : first + len(words)], int(found.lives[i]), 0, int(limit[i]), wanted)
            flips = states[self.ask_flips(found.block, int(found.place[i]), states, found.group[i])]
            np.bitwise_or.at(words, flips >> WORD_BITS, np.uint64(1) << (flips & 63).astype(np.uint64))
            total += wanted
        return total

    def ask_flips(self, block: Block, row: int, states: Integers, group: Integers) -> Booleans:
        """Ask the model which of some subsets of one row's groups flip it."""
        out = np.empty(len(states), dtype=bool)
        step = max(1, self.byte_budget // (32 * self.rows.width))
        for start in range(0, len(states), step):
            gone = _mark_groups(states[start : start + step], group, block.live.shape[1])
            out[start : start + step] = self.ask_removed(block, np.full(len(gone), row), gone)
        return out

    def ask_removed(self, block: Block, owner: Integers, gone: Booleans) -> Booleans:
        """Ask the model which of the rows of a block, (k,), are flipped by removing groups (k, G)."""
        without = States(owner, gone).sparing(block.spared, self.rows.column_group)
        p = ModelOracle(self.rows).answer_states(block.x, without, self.byte_budget)
        return self.rule.flips(p, block.original[owner])


def row_blocks(rows: EvidenceRows, rule: FlipRule) -> Iterator[tuple[int, Floats, Floats, Integers]]:
    """Yield (first row, cells (m, d), the model's probabilities (m, C), original classes (m,)), some rows at a time."""
    for start in range(0, len(rows), BLOCK_ROWS):
        x = rows.dense(start, start + BLOCK_ROWS)
        p = rows.own_probabilities(start, x)
        yield start, x, p, original_class(rows, p, rule.resolution, slice(start, start + len(x)))


@cache
def find_short(largest: int) -> Integers:
    """Return the numbers of live groups for which the sets of at most ``largest`` groups cost less than a table."""
    numbers = range(LEAST_LIVE, MOST_LIVE + 1)
    few = [sum(math.comb(live, size) for size in range(largest + 1)) for live in numbers]
    return np.array([live for live, sets in zip(numbers, few, strict=True) if sets * ENTRY_COST <= 1 << live])


def _settle_all(sizes: Integers) -> Integers:
    """Return that every state near the edge is to be settled."""
    return np.full(len(sizes), MOST_LIVE)


def _count_sizes(words: Words, first_word: Integers, lives: Integers, run: Workers) -> Integers:
    from fragility.engines.kernels.subsets import count_sizes

    counts = np.zeros((len(lives), MOST_LIVE + 1), dtype=np.int64)
    run(len(lives), lambda span, _: count_sizes(words, first_word, lives, counts, span))
    return counts


def _list_subsets(words: Words, live: int, smallest: int, largest: int, cap: int) -> Integers:
    from fragility.engines.kernels.subsets import list_subsets

    out = np.empty(cap, dtype=np.int64)
    return out[: list_subsets(words, live, smallest, largest, out)]


def _mark_groups(states: Integers, group: Integers, n_groups: int) -> Booleans:
    """(k, G) the groups of some subsets of one row."""
    gone = np.zeros((len(states), n_groups), dtype=bool)
    live = np.flatnonzero(group >= 0)
    gone[:, group[live]] = (states[:, None] >> live) & 1
    return gone


def _cores() -> int:
    from fragility.engines.kernels.compiling import THREADS

    return THREADS


# --- which models -------------------------------------------------------------------------------------------


def find_lattice(rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int) -> WholeLattice | None:
    """Return the lattice of an additive model, once it agreed with the model on a few states; None for any other."""
    native, rule = find_engine(rows, engine), FlipRule.of(rows, protocol)
    if native is None or rule.clip_matters:
        return None
    if lacking := say_lacking("the exact search of failing sets", "numba"):
        warn_once(lacking)
        return None
    model: Any
    if native.name == "linear" and is_additive(rows):
        model = LinearLattice(rows, rule)
    elif native.name == "trees":
        model = importlib.import_module("fragility.engines.lattice.trees").TreeLattice(rows, protocol, rule)
    elif native.name == "wrapped":
        model = importlib.import_module("fragility.engines.lattice.wrapped").make_lattice(rows, protocol, rule)
    else:
        return None
    lattice = WholeLattice(rows, rule, native, model, byte_budget)
    if _agrees(lattice):
        return lattice
    message = f"the lattice of {rows.model.kind} and its own probabilities disagree whether a state flips"
    if engine != "auto":
        raise EngineError(f"{message}; use ", Advice.argument("engine", "auto"))
    warnings.warn(f"{message}; the model is searched as a black box instead", stacklevel=4)
    return None


def _agrees(lattice: WholeLattice) -> bool:
    """Compare the marks of a few rows with the model itself, on states spread over all sizes where tables are small."""
    few = lattice.rows.take(range(min(CHECK_ROWS, len(lattice.rows))))
    small = replace(lattice, rows=few, model=lattice.model.rebind(few))
    draws = np.random.default_rng(0)
    for block in small.blocks():
        marks, owner, gone = list[Words](), list[Integers](), list[Booleans]()
        for found, largest in small.mark_for_check(block):
            for i, live in enumerate(found.lives.tolist()):
                if largest < live:
                    states = np.bitwise_or.reduce(1 << draws.integers(0, live, (CHECK_STATES, largest)), axis=1)
                else:
                    states = draws.integers(0, 1 << live, CHECK_STATES)
                marks.append(found.words_of(i)[states >> WORD_BITS] >> (states & 63).astype(np.uint64) & np.uint64(1))
                owner.append(np.full(len(states), found.place[i]))
                gone.append(_mark_groups(states, found.group[i], block.live.shape[1]))
        if marks:  # of all rows together: a call costs more than the states
            asked = small.ask_removed(block, np.concatenate(owner), np.concatenate(gone))
            if not np.array_equal(np.concatenate(marks).astype(bool), asked):
                return False
    return True


def never_searches(engine: str, rows: EvidenceRows, protocol: Protocol) -> str | None:
    """Return why an engine can never have tabulated the subsets of this model's rows; None if it may have."""
    reason = never_reads(engine, rows)
    if reason is not None or engine == BLACKBOX:
        return reason
    if FlipRule.of(rows, protocol).clip_matters:
        return "its decisions depend on how probabilities are clipped"
    return "its decisions are no differences of its scores" if engine == "linear" and not is_additive(rows) else None


def find_linear_sums(rows: EvidenceRows, protocol: Protocol, engine: str) -> tuple[LinearLattice, EngineOracle] | None:
    """Return a linear model's sums over groups where its decisions are differences of them, else None.

    With them comes the engine, which finds the rows that are left to the model.
    """
    native, rule = find_engine(rows, engine), FlipRule.of(rows, protocol)
    if native is None or native.name != "linear" or rule.clip_matters or not is_additive(rows):
        return None
    return LinearLattice(rows, rule), EngineOracle(native(rows), rows)
