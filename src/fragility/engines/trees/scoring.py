"""Scoring: the kernel that fits a forest, prepared once and run on all threads."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.arrays import MEBIBYTE, Floats, Integers
from fragility.engines.trees.encoding import COLUMN_SHIFT
from fragility.engines.trees.forest import Forest, starts_of
from fragility.engines.trees.plan import Plan, States
from fragility.evidence import STEP

logger = logging.getLogger(__name__)

DECISION_BYTES = 64 * MEBIBYTE  # a block's decision bits stay below this, else trees are walked
SPANS_PER_THREAD = 4  # several, so that a busy core does not hold up the rest
CACHE_LINE = 64  # bytes
WALK_STATES = 64  # states in one walk: bits of a word

# (rows (n, d), order (n, places): groups of each row by place, Q states) -> raw sums (Q, outputs, n)
Score: TypeAlias = Callable[[Floats, Integers, States], npt.NDArray[Any]]


# (rows, rows of a block, what scores the rows first..last) -> None: which rows are scored together, and where
Share: TypeAlias = Callable[[int, int, Callable[[tuple[int, int]], None]], None]


def scorer_of(forest: Forest, plan: Plan, share: Share) -> Score:
    """Return the scoring function of a forest: bit planes for small and oblivious trees, walks for deep ones."""
    import fragility.engines.kernels as kernels

    if not (kernels.score_states.signatures or kernels.walk_states.signatures):
        logger.info("loading the tree kernels; the first use on a machine compiles them, which takes some seconds")
    return bit_planes(forest, plan, share) if _fits_planes(forest) else walks(forest, plan, share)


def rows_of_block(forest: Forest) -> int:
    """Return how many rows the kernel of a forest takes together."""
    import fragility.engines.kernels as kernels

    return kernels.BLOCK if _fits_planes(forest) else kernels.WALK_BLOCK


def _fits_planes(forest: Forest) -> bool:
    from fragility.engines.kernels import MAX_LEAVES, WORDS

    small = forest.most_leaves <= MAX_LEAVES or forest.oblivious
    return small and 3 * len(forest.test_column) * 8 * WORDS <= DECISION_BYTES


def bit_planes(forest: Forest, plan: Plan, share: Share) -> Score:
    from fragility.engines.kernels import BLOCK, score_states

    networks = networks_of(forest)

    def score(x: Floats, order: Integers, states: States) -> npt.NDArray[Any]:
        scores = _blank_scores(forest, states, len(x))
        share(len(x), BLOCK, lambda span: score_states(forest, networks, plan, x, order, states, span, scores))
        return scores

    return score


def walks(forest: Forest, plan: Plan, share: Share) -> Score:
    from fragility.engines.kernels import WALK_BLOCK, walk_states

    packed = pack_nodes(forest, plan)

    def score(x: Floats, order: Integers, states: States) -> npt.NDArray[Any]:
        scores = _blank_scores(forest, states, len(x))
        for start in range(0, len(scores), WALK_STATES):
            some = slice(start, start + WALK_STATES)
            levels, part = levels_of(states.some(some)), scores[some]
            share(len(x), WALK_BLOCK, lambda span: walk_states(forest, plan, packed, x, order, levels, span, part))  # noqa: B023
        return scores

    return score


def _blank_scores(forest: Forest, states: States, n: int) -> npt.NDArray[Any]:
    return np.empty((len(states.severity), len(forest.base), n), dtype=forest.leaf_value.dtype)


def in_this_thread(n: int, block: int, run: Callable[[tuple[int, int]], None]) -> None:
    """Run all rows together, for a caller that has threads of its own."""
    run((0, n))


def on_all_threads(n: int, block: int, run: Callable[[tuple[int, int]], None]) -> None:
    """Run the rows in spans of whole blocks on all threads; what a row gets does not depend on its span."""
    from fragility.engines.kernels import THREADS

    blocks = max(-(-n // block), 1)
    spans = min(blocks, SPANS_PER_THREAD * THREADS)
    bounds = [min(n, block * (blocks * i // spans)) for i in range(spans)] + [n]
    if THREADS == 1 or spans == 1:
        run((0, n))
        return
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, itertools.pairwise(bounds)))


class Networks(NamedTuple):
    """The trees of a forest as networks of ANDs, and their leaves as a block of rows adds them.

    Trees are added several at a time. Where their number is no multiple of that, the last ones are a tree more that the
    forest does not have: without a split, and its leaf -0.0, the number that changes no sum, not even the sign of 0.
    """

    gates: npt.NDArray[np.uint32]  # these four: see ``kernels.build_networks``
    gate_start: Integers
    plane_slots: npt.NDArray[np.uint32]
    plane_start: Integers
    sequence: Integers  # the trees of the first output in their order, filled up; then those of the second, ...
    sequence_start: Integers  # (outputs+1,) where each output's trees begin; (2,) where a tree adds to all outputs
    leaf_start: Integers  # (trees+1,) first leaf of each tree
    leaf_value: npt.NDArray[Any]  # (L+1,) where a leaf holds one value, else empty
    leaf_lanes: npt.NDArray[Any]  # (parts, L+1, LANES) where it holds several: outputs in parts of LANES, filled up
    number_bytes: int  # of the number of a leaf within its tree


def networks_of(forest: Forest) -> Networks:
    from fragility.engines.kernels import LANES, MAX_LEAVES, build_networks

    sequence, sequence_start = _sequence_of(forest)
    gates, gate_start, plane_slots, plane_start = build_networks(forest.node_test, forest.node_right, forest.tree_start)
    n_leaves, values = forest.leaf_value.shape
    parts = -(-values // LANES) if values > 1 else 0
    leaves = np.full((n_leaves + 1, max(parts * LANES, 1)), -0.0, dtype=forest.leaf_value.dtype)
    leaves[:-1, :values] = forest.leaf_value
    lanes = leaves if parts else leaves[:, :0]
    return Networks(
        gates=gates,
        gate_start=gate_start,
        plane_slots=plane_slots,
        plane_start=plane_start,
        sequence=sequence,
        sequence_start=sequence_start,
        leaf_start=forest.leaf_start,
        leaf_value=np.ascontiguousarray(leaves[: 0 if parts else None, 0]),
        leaf_lanes=_aligned(lanes.reshape(n_leaves + 1, parts, LANES).transpose(1, 0, 2)),
        number_bytes=1 if forest.most_leaves <= MAX_LEAVES else 2,
    )


def _aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy that begins with a line of the cache, so that no vector of a line's length lies across two."""
    memory = np.empty(values.nbytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


def _sequence_of(forest: Forest) -> tuple[Integers, Integers]:
    """Return the trees of each output in order, filled up to whole groups, and where each output begins."""
    from fragility.engines.kernels import TOGETHER

    parts = []
    for output in range(len(forest.base) if forest.leaf_value.shape[1] == 1 else 1):
        trees = np.flatnonzero(forest.tree_output == output)
        parts.append(np.append(trees, np.full(-len(trees) % TOGETHER, forest.n_trees)))
    return np.concatenate(parts), starts_of([len(part) for part in parts])


class PackedNodes(NamedTuple):
    """The nodes of a forest as a walk reads them; the word of a node is explained in ``encoding``."""

    nodes: npt.NDArray[Any]  # (N,) records of ``threshold`` and ``word``
    leaves: npt.NDArray[Any]  # (L * V + LANES,) leaf values one after the other, and a vector more to read beyond them
    compared: npt.NDArray[Any]  # (0,) of the thresholds' type: cells are compared in it
    column_bits: int  # of a node's word


def pack_nodes(forest: Forest, plan: Plan) -> PackedNodes:
    """Return the forest packed for a walk, in eight bytes a node where they suffice.

    Where cells are compared in float32, the threshold may be rounded down to float32, since v > t exactly if v exceeds
    the largest float32 that is <= t. Eight bytes a node instead of sixteen make the walk nearly twice as fast: it waits
    for memory most of the time.
    """
    from fragility.engines.kernels import LANES, fill_nodes

    column_bits = max(len(plan.baseline) - 1, 1).bit_length()
    small = plan.single and forest.most_nodes << (COLUMN_SHIFT + column_bits) < 2**31
    precision, whole = (np.float32, np.int32) if small else (np.float64, np.int64)
    nodes = np.empty(len(forest.node_test), dtype=[("threshold", precision), ("word", whole)])
    fill_nodes(forest, plan.test_base, _rounded_down(forest.test_threshold, precision), column_bits, nodes)
    leaves = np.zeros(forest.leaf_value.size + LANES, dtype=forest.leaf_value.dtype)
    leaves[: forest.leaf_value.size] = forest.leaf_value.ravel()
    return PackedNodes(nodes, leaves, np.empty(0, dtype=precision), column_bits)


def _rounded_down(values: Floats, precision: Any) -> npt.NDArray[Any]:
    rounded = values.astype(precision)
    above = np.flatnonzero(rounded > values)
    rounded[above] = np.nextafter(rounded[above], precision(-np.inf))
    return rounded


class Levels(NamedTuple):
    """Up to 64 states as sets of bits, by how far they move a group; S severities between 0 and 1."""

    severities: Floats  # (S,) rising
    at_least: npt.NDArray[np.uint64]  # (G, S+1): by place, the states that move it by the i-th severity or more;
    # the last column is removal
    jump: int  # the first severity at which a cell that cannot be interpolated is at its baseline


def levels_of(states: States) -> Levels:
    bit = np.uint64(1) << np.arange(len(states.severity), dtype=np.uint64)
    severities = np.unique(states.severity[(states.severity > 0.0) & (states.severity < 1.0)])
    moved = np.where(states.moved.astype(bool), bit[:, None], np.uint64(0))  # (Q, G)
    at_least = [np.bitwise_or.reduce(moved[states.severity >= s], axis=0) for s in [*severities, 1.0]]
    jump = int(np.searchsorted(severities, STEP))
    return Levels(severities, np.ascontiguousarray(np.transpose(at_least).astype(np.uint64)), jump)
