"""Raw scores of states: what an audit means for a forest (Plan, PlaceStates), and the kernel that fits the forest.

The kernels themselves are explained in ``engines.kernels``; here a forest is brought into the form that each reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers
from fragility.engines.kernels.compiling import LANES, TOGETHER, run_in_this_thread, run_on_all_threads
from fragility.engines.kernels.decisions import BLOCK, NONE, WORDS, baseline_ways
from fragility.engines.kernels.observing import observe_path_and_grid, observe_removals
from fragility.engines.kernels.planes import score_row_states, score_states
from fragility.engines.kernels.preparing import COLUMN_SHIFT, MAX_LEAVES, build_networks, fill_nodes, groups_asked
from fragility.engines.kernels.walks import WALK_BLOCK, walk_alike, walk_row_states, walk_states
from fragility.engines.trace import Trace, TraceStates
from fragility.engines.trees.forest import KIND, NARROW, NUMERIC, SIGMOID, SOFTMAX, Flags, Forest, find_starts
from fragility.engines.trees.recoding import Ensemble, Recoding, make_recoding
from fragility.engines.trees.tables import make_order_lookup
from fragility.evidence import STEP, EvidenceRows, Spared, States
from fragility.protocol import Protocol
from fragility.scores import sigmoid_probabilities, smoothed_offset, softmax_probabilities

logger = logging.getLogger(__name__)

DECISION_BYTES = 64 * MEBIBYTE  # a block's decision bits stay below this, else trees are walked
CACHE_LINE = 64  # bytes
WALK_STATES = 64  # states in one walk: bits of a word
MOST_UNLIKE = 0.4  # of the tests: rows whose cells differ at more of them walk one by one
LISTS_KEPT = 4  # of states whose levels are sorted once
# Up to so many rows walk through small trees as well: bit planes cost as much for one row as for 512. They are fewer
# than the rows on which an engine is compared with its model, so that an audit compiles planes or walks, not both.
FEW_ROWS = 15
MONOTONE_BELOW = 0.999  # severities; only within rounding of 1 can x + s (b - x) pass the baseline itself


# --- what an audit means for a forest -----------------------------------------------------------------------


class Plan(NamedTuple):
    """What a protocol's baseline and groups mean for the tests of a forest; G groups."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    column_group: npt.NDArray[np.uint32]  # (d,)
    test_group: npt.NDArray[np.uint32]  # (T,)
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    tree_group: npt.NDArray[np.uint8]  # (G, trees) 1 where a tree asks about a group
    slots: int  # nodes of the largest tree
    rounding: npt.NDArray[np.uint8]  # (d,) of cells before they are compared: WHOLE, NARROW
    single: bool  # all of them are compared in float32
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    monotone: bool  # a cell moving through the grid crosses a threshold at most once


class PlaceStates(NamedTuple):
    """States by place in a row's order: state q moves the groups at the places marked, by one severity."""

    severity: Floats  # (Q,)
    moved: npt.NDArray[np.uint8]  # (Q, G)


def make_plan(forest: Forest, recoding: Recoding, rows: EvidenceRows, protocol: Protocol) -> Plan:
    baseline = recoding.recode(rows.baseline)
    plain = make_plain_plan(forest, recoding.rounding, bool(sp.issparse(rows.matrix)))
    group = rows.column_group.astype(np.uint32)
    largest = max((severity for severity in protocol.severities if severity < 1.0), default=0.0)
    return plain._replace(
        baseline=baseline,
        stepwise=rows.stepwise.astype(np.uint8),
        column_group=group,
        test_group=group[forest.test_column],
        test_base=baseline_ways(forest, baseline, recoding.rounding, plain.zero_missing),
        tree_group=mark_tree_groups(forest, group, rows.n_groups),
        monotone=not plain.zero_missing and largest <= MONOTONE_BELOW,
    )


def make_plain_plan(forest: Forest, rounding: Flags, sparse: bool) -> Plan:
    """Return the plan of rows that are not stressed: one group that no state moves; rounding: as in ``Plan``."""
    return Plan(
        baseline=np.zeros(len(rounding)),
        stepwise=np.zeros(len(rounding), dtype=np.uint8),
        column_group=np.zeros(len(rounding), dtype=np.uint32),
        test_group=np.zeros(len(forest.test_column), dtype=np.uint32),
        test_base=np.zeros(len(forest.test_column), dtype=np.uint8),
        tree_group=np.zeros((1, forest.n_trees), dtype=np.uint8),
        slots=forest.most_nodes,
        rounding=rounding,
        single=bool((rounding & NARROW).all()),
        zero_missing=sparse and forest.absent_missing,
        monotone=False,
    )


def mark_tree_groups(forest: Forest, group: npt.NDArray[np.uint32], n_groups: int) -> npt.NDArray[np.uint8]:
    """Return (G, trees): 1 where a tree asks about a group."""
    tests, starts = (
        (forest.level_test, forest.level_start) if forest.oblivious else (forest.node_test, forest.tree_start)
    )
    asked = np.zeros((n_groups, forest.n_trees), dtype=np.uint8)
    groups_asked(tests, starts, group[forest.test_column], asked)
    return asked


def list_originals(n_groups: int) -> PlaceStates:
    """Return one state, the row itself."""
    return PlaceStates(np.zeros(1), np.zeros((1, n_groups), dtype=np.uint8))


def list_single_removals(n_groups: int) -> PlaceStates:
    """Return the row itself, then every group removed alone."""
    severity = np.ones(1 + n_groups)
    severity[0] = 0.0
    return PlaceStates(severity, np.eye(1 + n_groups, n_groups, -1, dtype=np.uint8))


def list_path_and_grid(asked: TraceStates, *, bare: bool) -> PlaceStates:
    """Return the removal of the first 2..K groups, each severity of each operator, and, if ``bare``, of every group."""
    places = np.arange(asked.n_groups)
    steps = range(2, asked.depth + 1)
    moved = [places < k for k in steps] + [places < width for _ in asked.grid for width in asked.widths]
    severity = [1.0 for _ in steps] + [s for s in asked.grid for _ in asked.widths]
    if bare:
        moved, severity = [*moved, places < asked.n_groups], [*severity, 1.0]
    return PlaceStates(np.array(severity), np.array(moved, dtype=np.uint8).reshape(len(severity), asked.n_groups))


# --- scoring functions --------------------------------------------------------------------------------------

# (rows (n, d), cells that no state moves (n, d) or (0, d), order (n, places): groups of each row by place, Q states)
# -> raw sums (Q, outputs, n)
Score: TypeAlias = Callable[[Floats, Booleans, Integers, PlaceStates], npt.NDArray[Any]]
# (rows, rows of a block, what scores the rows first..last) -> None: which rows are scored together, and where
Share: TypeAlias = Callable[[int, int, Callable[[tuple[int, int]], None]], None]


@cache
def announce_compilation() -> None:
    """Say once, before it begins, that the kernels are compiled because no earlier process left them on the disk."""
    kept = [Path(kernel._cache._cache_file._index_path) for kernel in (score_states, walk_states)]
    if not any(path.exists() for path in kept):
        logger.warning("compiling the engine for this machine, which takes about half a minute, once")


def make_scorer(forest: Forest, plan: Plan, share: Share = run_in_this_thread) -> Score:
    """Return the scoring function of a forest: bit planes for small and oblivious trees, walks for deep ones.

    Few rows walk through small trees too. Both add the leaves of a row in the order of the trees, so the sums have the
    same bits.
    """
    announce_compilation()
    if not fits_planes(forest):
        return score_by_walks(forest, plan, share)
    # Each is built when it is first needed: an audit of many rows never walks, a single row needs no networks.
    by_planes, by_walks = cache(lambda: score_by_planes(forest, plan, share)), cache(lambda: walk_few(forest, plan))
    if forest.oblivious:
        return by_planes()

    def score(x: Floats, fixed: Booleans, order: Integers, states: PlaceStates) -> npt.NDArray[Any]:
        # Planes cost as much per state as walks of about two rows; the states of a row share its walks.
        few = len(x) <= min(FEW_ROWS, 2 * len(states.severity))
        return (by_walks() if few else by_planes())(x, fixed, order, states)

    return score


def walk_few(forest: Forest, plan: Plan) -> Score:
    """Return the walking scorer of few rows, in this thread."""
    return score_by_walks(forest, plan, run_in_this_thread)


def fits_planes(forest: Forest, decisions_per_test: int = 3) -> bool:
    """Return whether bit planes score a forest; they hold the decisions at x, at a severity, and of a state."""
    small = forest.most_leaves <= MAX_LEAVES or forest.oblivious
    return small and decisions_per_test * len(forest.test_column) * 8 * WORDS <= DECISION_BYTES


def score_by_planes(forest: Forest, plan: Plan, share: Share) -> Score:
    networks, none = build_gates(forest), np.empty((0, len(plan.baseline)))

    def score(x: Floats, fixed: Booleans, order: Integers, states: PlaceStates) -> npt.NDArray[Any]:
        scores = np.empty((len(states.severity), len(forest.base), len(x)), dtype=forest.leaf_value.dtype)
        cells = (x, none, fixed)
        share(len(x), BLOCK, lambda span: score_states(forest, networks, plan, cells, order, states, span, scores))
        return scores

    return score


def score_by_walks(forest: Forest, plan: Plan, share: Share, packed: PackedNodes | None = None) -> Score:
    packed = packed or pack_nodes(forest, plan)
    sorted_before: dict[
        int, tuple[PlaceStates, list[PackedStates]]
    ] = {}  # by id: an audit asks about the same few lists

    def pack_all(states: PlaceStates) -> list[PackedStates]:
        if id(states) not in sorted_before:
            parts = (slice(start, start + WALK_STATES) for start in range(0, len(states.severity), WALK_STATES))
            levels = [pack_states(PlaceStates(states.severity[some], states.moved[some])) for some in parts]
            if len(sorted_before) >= LISTS_KEPT:
                return levels
            sorted_before[id(states)] = states, levels
        return sorted_before[id(states)][1]

    def score(x: Floats, fixed: Booleans, order: Integers, states: PlaceStates) -> npt.NDArray[Any]:
        scores = np.empty((len(states.severity), len(forest.base), len(x)), dtype=forest.leaf_value.dtype)
        cells = (x, fixed)
        for i, levels in enumerate(pack_all(states)):
            part = scores[WALK_STATES * i : WALK_STATES * (i + 1)]
            share(len(x), WALK_BLOCK, lambda span: walk_states(forest, plan, packed, cells, order, levels, span, part))  # noqa: B023
        return scores

    return score


def complete_sums(forest: Forest, sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return raw sums (..., outputs, n) with those of a class that has what another one leaves, in their precision."""
    if not forest.one_sided:
        return sums
    rest = np.maximum(sums.dtype.type(forest.divisor) - sums, sums.dtype.type(0.0))
    return np.concatenate([rest, sums], axis=-2)


def compute_probabilities(forest: Forest, sums: npt.NDArray[Any]) -> Floats:
    """Return (..., n, C) probabilities of raw sums (..., outputs, n): the forest's link in float64."""
    sums = complete_sums(forest, sums)
    scores = np.moveaxis(sums, -2, -1).astype(np.float64) / forest.divisor * forest.scale
    if forest.link == SIGMOID:
        return sigmoid_probabilities(scores[..., 0])
    return softmax_probabilities(scores) if forest.link == SOFTMAX else scores


def make_row_scorer(forest: Forest, rounding: Flags, sparse: bool = False) -> Callable[[Floats], npt.NDArray[Any]]:
    """Return the function rows (m, d) -> raw sums (outputs, m), without states; ``sparse``: as a sparse matrix.

    Through deep trees, rows that are alike, such as copies of one row, walk together.
    """
    plan, originals = make_plain_plan(forest, rounding, sparse), list_originals(1)
    deep = not fits_planes(forest)
    packed = pack_nodes(forest, plan) if deep else None
    score = (
        score_by_walks(forest, plan, run_on_all_threads, packed)
        if deep
        else make_scorer(forest, plan, run_on_all_threads)
    )
    tested = np.bincount(forest.test_column[forest.node_test[forest.node_test >= 0]], minlength=len(plan.baseline))

    def sum_leaves(matrix: Floats) -> npt.NDArray[Any]:
        rows = np.ascontiguousarray(matrix, dtype=np.float64)
        if not deep or not _are_alike(rows, tested):
            return np.asarray(score(rows, rows[:0] != 0, np.zeros((len(rows), 1), dtype=np.int64), originals)[0])
        sums = np.empty((len(forest.base), len(rows)), dtype=forest.leaf_value.dtype)
        run_on_all_threads(len(rows), WALK_STATES, lambda span: walk_alike(forest, plan, packed, rows, span, sums))
        return sums

    return sum_leaves


def _are_alike(rows: Floats, tested: Integers) -> bool:
    """Return whether most tests see the same cell in a row and in the one before it; tested: (d,) tests of a column."""
    if len(rows) < 2:
        return False
    other = (rows[1:] != rows[:-1]).mean(axis=0)
    return float(tested @ other) <= MOST_UNLIKE * float(tested.sum())


# --- the trace of an audit ----------------------------------------------------------------------------------


class SumLink(NamedTuple):
    """How sums become probabilities: the fields of ``Forest`` that say so."""

    link: int
    divisor: float
    scale: float
    n_classes: int


class Rules(NamedTuple):
    """How raw sums become margins, classes and thresholds; C classes, P operators, S severities."""

    link: int
    divisor: float
    scale: float
    offset: Floats  # (C,) of the declared decision
    shifted: bool  # some offset is not 0
    current: bool  # the reading takes the leader's margin, not the original class's
    resolution: float
    smoothing: float
    smoothed_offset: Floats  # (C,) of the declared decision, for the logarithms of smoothed probabilities
    widths: Integers  # (P,) groups that each operator degrades
    fading: int  # which operator is attenuate_all, -1: none
    severities: Floats  # (S,)
    n_grid: int  # how many of them are scored; the last, removal, may be known
    bare: npt.NDArray[Any]  # (outputs,) raw sums of the baseline itself: all evidence lost

    @classmethod
    def of(cls, forest: Forest | SumLink, asked: TraceStates, bare: npt.NDArray[Any]) -> Rules:
        rule, offset = asked.rule, asked.rule.offset
        offsets = np.zeros(forest.n_classes) if offset is None else np.asarray(offset, dtype=np.float64)
        smoothed = smoothed_offset(offset, rule.smoothing)
        return cls(
            link=forest.link,
            divisor=float(forest.divisor),
            scale=float(forest.scale),
            offset=offsets,
            shifted=bool(offsets.any()),
            current=rule.reading == "current",
            resolution=float(rule.resolution),
            smoothing=float(rule.smoothing),
            smoothed_offset=np.zeros(forest.n_classes) if smoothed is None else smoothed,
            widths=np.array(asked.widths, dtype=np.int64),
            fading=-1 if asked.fading is None else asked.fading,
            severities=np.array(asked.severities, dtype=np.float64),
            n_grid=len(asked.grid),
            bare=bare,
        )


class Blank(NamedTuple):
    """The arrays of a ``Trace`` that are read off scores; n rows, G groups, K depth, P operators."""

    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    one_step_margin: Floats  # (n, G)
    one_step_confidence: Floats  # (n, G)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    threshold: Floats  # (n, P)
    fade_margin: Floats  # (n, S), or (n, 0)
    bare_margin: Floats  # (n,)

    @classmethod
    def of(cls, trace: Trace, rows: slice) -> Blank:
        """Return views of some rows of a trace."""
        views: Any = (getattr(trace, name)[rows] for name in cls._fields)
        return cls(*views)


class AuditScorer:
    """A scoring function bound to the baseline and groups of an audit; ``of_trees`` makes that of a forest."""

    def __init__(
        self, score: Score, link: Forest | SumLink, rows: EvidenceRows, protocol: Protocol, block: int, engine: str
    ) -> None:
        self.score, self.block, self.engine = score, block, engine  # block: rows that are scored together
        self.asked = TraceStates.of(protocol, rows)
        self.in_order = np.tile(np.arange(rows.n_groups), (block, 1))
        self.nothing = np.empty((0, rows.width), dtype=bool)
        self.first, self.second = list_single_removals(rows.n_groups), list_path_and_grid(self.asked, bare=False)
        # Rows that lack evidence: with all evidence lost, each is a state of its own.
        self.second_of_each = list_path_and_grid(self.asked, bare=True)
        originals = list_originals(rows.n_groups)
        copies = 1 if len(rows) <= FEW_ROWS else FEW_ROWS + 1  # so many take the kernel that the rows will take
        bare = score(np.tile(rows.baseline, (copies, 1)), self.nothing, self.in_order[:copies], originals)[0, :, 0]
        self.rules = Rules.of(link, self.asked, bare)

    @classmethod
    def of_trees(cls, ensemble: Ensemble, rows: EvidenceRows, protocol: Protocol) -> AuditScorer:
        forest, score = ensemble.forest, score_cells(ensemble, rows, protocol)
        together = ensemble.terms is not None or fits_planes(forest)
        block = BLOCK if together else WALK_BLOCK  # rows that the kernel takes together
        completed: Score = lambda *asked: complete_sums(forest, score(*asked))  # noqa: E731
        return cls(completed if forest.one_sided else score, forest, rows, protocol, block, "trees")

    def trace_chunk(self, x: Floats, decided: Integers | None, spared: Spared | None) -> Trace:
        """Return the trace of some rows; the sums of all states are held for one block of them at a time."""
        asked, n = self.asked, len(x)
        trace, order = Trace.allocate(asked, n, decided, self.engine), np.empty((n, asked.longest), dtype=np.int64)
        for start in range(0, n, self.block):
            block = slice(start, start + self.block)
            rows, out = x[block], Blank.of(trace, block)
            path_support = np.empty_like(out.path_margin)
            fixed, last, second = self.nothing, self.nothing, self.second
            if spared is not None and (some := spared.of(block)).cells.any():
                fixed, last, second = *some, self.second_of_each
            first = self.score(rows, fixed, self.in_order[: len(rows)], self.first)
            observe_removals(first, self.rules, out, (order[block], last, path_support))
            observe_path_and_grid(self.score(rows, fixed, order[block], second), self.rules, out, path_support)
        return replace(trace, order=order[:, : asked.depth], evaluations=n * asked.per_row)


def score_cells(ensemble: Ensemble, rows: EvidenceRows, protocol: Protocol) -> Score:
    """Return the scoring function of an ensemble's trees on cells of the evidence space."""
    recoding = make_recoding(ensemble, rows)
    plan = make_plan(ensemble.forest, recoding, rows, protocol)
    if ensemble.terms is not None:
        score: Score = make_order_lookup(ensemble.terms, plan)
    else:
        score = make_scorer(ensemble.forest, plan)
    if not recoding.tables and not recoding.listed:
        return score
    return lambda x, fixed, order, states: score(recoding.recode(x), fixed, order, states)


# --- rows that have states of their own ---------------------------------------------------------------------


class Sides(NamedTuple):
    """The two sides of every cell, as it stands and at the baseline, and the units that states move."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    unit: Integers  # (d,)
    numeric: npt.NDArray[np.uint8]  # (d,) 1 where a column's tests are all numeric
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    rounding: npt.NDArray[np.uint8]  # (d,) of cells before they are compared: WHOLE, NARROW
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    whole: bool  # what is moved is removed
    slots: int  # nodes of the largest tree


def make_state_scorer(
    forest: Forest, recoding: Recoding, rows: EvidenceRows
) -> Callable[[Floats, States], npt.NDArray[Any]]:
    """Return the function (recoded rows (m, d), q states) -> raw sums (outputs, q)."""
    baseline = recoding.recode(rows.baseline)
    plain = make_plain_plan(forest, recoding.rounding, bool(sp.issparse(rows.matrix)))
    numeric = np.ones(rows.width, dtype=np.uint8)
    numeric[forest.test_column[(forest.test_flags & KIND) != NUMERIC]] = 0
    sides = Sides(
        baseline=baseline,
        stepwise=rows.stepwise.astype(np.uint8),
        unit=rows.column_group.astype(np.int64),
        numeric=numeric,
        test_base=baseline_ways(forest, baseline, recoding.rounding, plain.zero_missing),
        rounding=recoding.rounding,
        zero_missing=plain.zero_missing,
        whole=True,
        slots=forest.most_nodes,
    )
    planes = fits_planes(forest, decisions_per_test=1)
    gates: Callable[[], Any] = cache(lambda: build_gates(forest))
    packed: Callable[[], Any] = cache(lambda: pack_nodes(forest, plain._replace(test_base=sides.test_base)))

    def score(x: Floats, states: States) -> npt.NDArray[Any]:
        unit = np.ascontiguousarray(states.unit_of(sides.unit), dtype=np.int64)
        moved = sides._replace(unit=unit, whole=states.severity is None)
        severity = np.zeros(0) if states.severity is None else np.ascontiguousarray(states.severity, dtype=np.float64)
        flags = np.ascontiguousarray(states.moved, dtype=bool).view(np.uint8)
        flat = (np.ascontiguousarray(states.owner, dtype=np.int64), flags, severity)
        scores = np.empty((len(forest.base), len(states)), dtype=forest.leaf_value.dtype)
        kernel: Any = walk_row_states
        trees, block = packed, WALK_BLOCK
        if planes and (forest.oblivious or len(states) > FEW_ROWS):
            kernel, trees, block = score_row_states, gates, BLOCK
        run_on_all_threads(len(states), block, lambda span: kernel(forest, trees(), moved, x, flat, span, scores))
        return scores

    return score


# --- a forest as the kernels read it ------------------------------------------------------------------------


class Networks(NamedTuple):
    """The trees of a forest as networks of ANDs, and their leaves as a block of rows adds them.

    Trees are added several at a time. Where their number is no multiple of that, the sequence is filled up with a tree
    that the forest does not have: without a split, and its leaf -0.0, the number that changes no sum, not even the sign
    of 0.
    """

    gates: npt.NDArray[np.uint32]  # these four: see ``kernels.preparing.build_networks``
    gate_start: Integers
    plane_slots: npt.NDArray[np.uint32]
    plane_start: Integers
    sequence: Integers  # the trees of the first output in their order, filled up; then those of the second, ...
    sequence_start: Integers  # (outputs+1,) where each output's trees begin; (2,) where a tree adds to all outputs
    leaf_start: Integers  # (trees+1,) first leaf of each tree
    leaf_value: npt.NDArray[Any]  # (L+1,) where a leaf holds one value, else empty
    leaf_lanes: npt.NDArray[Any]  # (parts, L+1, LANES) where it holds several: outputs in parts of LANES, filled up
    number_bytes: int  # of the number of a leaf within its tree


def build_gates(forest: Forest) -> Networks:
    gates, gate_start, plane_slots, plane_start = build_networks(forest.node_test, forest.node_right, forest.tree_start)
    n_leaves, values = forest.leaf_value.shape
    sequence = []
    for output in range(len(forest.base) if values == 1 else 1):
        trees = np.flatnonzero(forest.tree_output == output)
        sequence.append(np.append(trees, np.full(-len(trees) % TOGETHER, forest.n_trees)))
    parts = -(-values // LANES) if values > 1 else 0
    leaves = np.full((n_leaves + 1, max(parts * LANES, 1)), -0.0, dtype=forest.leaf_value.dtype)
    leaves[:-1, :values] = forest.leaf_value
    lanes = (leaves if parts else leaves[:, :0]).reshape(n_leaves + 1, parts, LANES).transpose(1, 0, 2)
    # Leaf vectors begin with a line of the cache, so that no vector of a line's length lies across two.
    memory = np.empty(lanes.nbytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    aligned = memory[start : start + lanes.nbytes].view(lanes.dtype).reshape(lanes.shape)
    aligned[:] = lanes
    return Networks(
        gates=gates,
        gate_start=gate_start,
        plane_slots=plane_slots,
        plane_start=plane_start,
        sequence=np.concatenate(sequence),
        sequence_start=find_starts([len(trees) for trees in sequence]),
        leaf_start=forest.leaf_start,
        leaf_value=np.ascontiguousarray(leaves[: 0 if parts else None, 0]),
        leaf_lanes=aligned,
        number_bytes=1 if forest.most_leaves <= MAX_LEAVES else 2,
    )


class PackedNodes(NamedTuple):
    """The nodes of a forest as a walk reads them; the word of a node is explained in ``kernels.preparing``."""

    nodes: npt.NDArray[Any]  # (N,) records of ``threshold`` and ``word``
    leaves: npt.NDArray[Any]  # (L * V + LANES,) leaf values one after the other, and a vector more to read beyond them
    compared: npt.NDArray[Any]  # (0,) of the thresholds' type: cells are compared in it
    column_bits: int  # of a node's word


def pack_nodes(forest: Forest, plan: Plan) -> PackedNodes:
    """Return the forest packed for a walk, in eight bytes per node where they suffice.

    Where cells are compared in float32, the threshold may be rounded down to float32, since v > t exactly if v exceeds
    the largest float32 that is <= t. Eight bytes per node instead of sixteen make the walk nearly twice as fast: it
    waits for memory most of the time.
    """
    column_bits = max(len(plan.baseline) - 1, 1).bit_length()
    small = plan.single and forest.most_nodes << (COLUMN_SHIFT + column_bits) < 2**31
    precision, whole = (np.float32, np.int32) if small else (np.float64, np.int64)
    threshold: npt.NDArray[Any] = forest.test_threshold.astype(precision)
    above = np.flatnonzero(threshold > forest.test_threshold)
    threshold[above] = np.nextafter(threshold[above], precision(-np.inf))
    nodes = np.empty(len(forest.node_test), dtype=[("threshold", precision), ("word", whole)])
    fill_nodes(forest, plan.test_base, threshold, column_bits, nodes)
    leaves = np.zeros(forest.leaf_value.size + LANES, dtype=forest.leaf_value.dtype)
    leaves[: forest.leaf_value.size] = forest.leaf_value.ravel()
    return PackedNodes(nodes, leaves, np.empty(0, dtype=precision), column_bits)


class PackedStates(NamedTuple):
    """Up to 64 states as sets of bits, by how far they move a group; S severities between 0 and 1."""

    severities: Floats  # (S,) rising
    at_least: npt.NDArray[np.uint64]  # (G+1, S+1): by place, the states that move it by the i-th severity or more;
    # the last column is removal, the last place is what no state moves
    jump: int  # the first severity at which a cell that cannot be interpolated is at its baseline


def pack_states(states: PlaceStates) -> PackedStates:
    bit = np.uint64(1) << np.arange(len(states.severity), dtype=np.uint64)
    severities = np.unique(states.severity[(states.severity > 0.0) & (states.severity < 1.0)])
    moved = np.where(states.moved.astype(bool), bit[:, None], np.uint64(0))  # (Q, G)
    at_least = [np.append(np.bitwise_or.reduce(moved[states.severity >= s], axis=0), NONE) for s in [*severities, 1.0]]
    jump = int(np.searchsorted(severities, STEP))
    return PackedStates(severities, np.ascontiguousarray(np.transpose(at_least).astype(np.uint64)), jump)
