"""Bit planes: the leaves that a block of rows reaches, by logic on whole words of rows.

decisions   (T, WORDS)             bit of a row: it goes right at the test
reach       (nodes, WORDS)         bit of a row: it arrives at the node
planes      (16, WORDS)            bit of a row: that bit of its leaf's number
known       (trees + 1, 2, BLOCK)  leaf numbers of x, low and high byte; the last place is for those of one state
sums        (outputs, BLOCK)       raw sums
totals      (parts, BLOCK, LANES)  the same where a leaf holds a value for each output: LANES outputs side by side
on_the_way  (parts, BLOCK)         sums of x before every tree whose place in the sequence is a multiple of STRIDE
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.trees.kernels.compiling import LANES, add_lanes, entry, helper, inlined, split_rows, unite_rows
from fragility.engines.trees.kernels.decisions import ALL, BLOCK, NONE, ONE, WORDS, decide_block, take_block
from fragility.engines.trees.kernels.layout import MAX_LEAVES, PLANES

MOST_PLANES = 2 * PLANES  # of an oblivious tree: its leaves' numbers have up to two bytes
STRIDE = 8  # trees between two sums of x that are kept

KNOWN, ASKED, TO_KNOW = 0, 1, 2  # a tree's leaves: those of x, to be found, to be found and remembered as those of x


# --- from decisions to leaves -------------------------------------------------------------------------------


@inlined
def _run_network(gates: Any, first: int, last: int, decisions: Any, reach: Any) -> None:
    """Fill ``reach``: the rows that arrive at each node of the tree with these gates."""
    for w in range(WORDS):
        reach[0, w] = ALL
    for gate in range(first, last):
        split_rows(reach, gates[gate, 0], gates[gate, 1], decisions, gates[gate, 2])


@inlined
def _collect_planes(slots: Any, starts: Any, tree: int, reach: Any, planes: Any) -> None:
    """Fill 8 bit planes of the leaf numbers from the rows that reach each node."""
    for plane in range(PLANES):
        unite_rows(reach, slots, starts[tree, plane], starts[tree, plane + 1], planes, plane)


@inlined
def _copy_planes(level_test: Any, first: int, last: int, decisions: Any, planes: Any) -> None:
    """The leaf number of an oblivious tree has its levels' decisions for bits."""
    for level in range(first, last):
        test = level_test[level]
        for w in range(WORDS):
            planes[level - first, w] = decisions[test, w]
    for plane in range(last - first, MOST_PLANES if last - first > PLANES else PLANES):
        for w in range(WORDS):
            planes[plane, w] = NONE


@inlined
def _transpose(plane_bytes: Any, byte: int, numbers: Any, slot: int) -> None:
    """Turn 8 bit planes of a block into one byte a row, eight rows at a time.

    plane_bytes: (16, BLOCK / 8) planes by bytes of eight rows; numbers: (trees + 1, 2, BLOCK / 8) words of eight rows.
    Eight bytes, one a plane, are an 8 x 8 matrix of bits; it is transposed by exchanging the two off-diagonal bits of
    each 2 x 2 square, then the off-diagonal squares of each 4 x 4 square, then those of the whole.
    """
    p = 8 * byte
    for q in range(8 * WORDS):
        x = (
            np.uint64(plane_bytes[p, q])
            | np.uint64(plane_bytes[p + 1, q]) << np.uint64(8)
            | np.uint64(plane_bytes[p + 2, q]) << np.uint64(16)
            | np.uint64(plane_bytes[p + 3, q]) << np.uint64(24)
            | np.uint64(plane_bytes[p + 4, q]) << np.uint64(32)
            | np.uint64(plane_bytes[p + 5, q]) << np.uint64(40)
            | np.uint64(plane_bytes[p + 6, q]) << np.uint64(48)
            | np.uint64(plane_bytes[p + 7, q]) << np.uint64(56)
        )
        x = _exchange(x, np.uint64(7), np.uint64(0x00AA00AA00AA00AA))
        x = _exchange(x, np.uint64(14), np.uint64(0x0000CCCC0000CCCC))
        numbers[slot, byte, q] = _exchange(x, np.uint64(28), np.uint64(0x00000000F0F0F0F0))


@inlined
def _exchange(x: Any, distance: Any, lower: Any) -> Any:
    """Exchange the bits marked in ``lower`` with those ``distance`` places above them."""
    differing = (x ^ (x >> distance)) & lower
    return x ^ differing ^ (differing << distance)


# --- from leaves to sums ------------------------------------------------------------------------------------


@inlined
def _add_leaves(leaf_value: Any, first: int, wide: bool, known: Any, slot: int, total: Any) -> None:
    """Add to ``total`` (BLOCK,) the value of each row's leaf, numbered from ``first``; leaf_value (L,)."""
    start = np.uint64(first)
    if wide:
        for row in range(BLOCK):
            leaf = np.uint64(known[slot, 0, row]) | np.uint64(known[slot, 1, row]) << np.uint64(8)
            total[row] += leaf_value[start + leaf]
    else:
        for row in range(BLOCK):
            total[row] += leaf_value[start + np.uint64(known[slot, 0, row])]


@inlined
def _add_leaf_vectors(leaf_lanes: Any, first: int, wide: bool, known: Any, slot: int, totals: Any) -> None:
    """Add a value for each output: totals (parts, BLOCK, LANES), leaf_lanes (parts, L, LANES)."""
    for part in range(len(leaf_lanes)):
        leaves, total = leaf_lanes[part], totals[part]
        if wide:
            for row in range(BLOCK):
                leaf = np.int64(known[slot, 0, row]) | np.int64(known[slot, 1, row]) << 8
                add_lanes(total, row, leaves, first + leaf)
        else:
            for row in range(BLOCK):
                add_lanes(total, row, leaves, first + np.int64(known[slot, 0, row]))


@helper
def _sum_block(forest: Any, networks: Any, decisions: Any, asked: Any, memory: Any, sums: Any) -> None:
    """Fill ``sums`` (outputs, BLOCK), those of each output in tree order.

    networks: ``scoring.Networks``. asked: (trees,) KNOWN, ASKED or TO_KNOW. memory: what ``_memory`` gives. Where a
    leaf holds one value, an output begins at the first tree whose leaves are not those of x, as far as sums were kept.
    """
    sequence, sequence_start = networks.sequence, networks.sequence_start
    gates, gate_start = networks.gates, networks.gate_start
    plane_slots, plane_start = networks.plane_slots, networks.plane_start
    leaf_value, leaf_lanes, leaf_start = networks.leaf_value, networks.leaf_lanes, forest.leaf_start
    level_test, level_start, base = forest.level_test, forest.level_start, forest.base
    reach, planes, known, sums_x, on_the_way, totals = memory
    plane_bytes, known_words = planes.view(np.uint8), known.view(np.uint64)
    vectors, oblivious = len(leaf_lanes) > 0, len(level_start) > 1
    for output in range(len(sequence_start) - 1):
        first, last = sequence_start[output], sequence_start[output + 1]
        begin = first if vectors else _first_asked(sequence, first, last, asked)
        if begin == last and first < last:
            sums[output] = sums_x[output]
            continue
        total = sums[output]
        _begin_sums(base, output, begin > first, on_the_way[begin // STRIDE], total, totals)
        for place in range(begin, last):
            tree = sequence[place]
            if asked[tree] == TO_KNOW and place % STRIDE == 0 and not vectors:
                on_the_way[place // STRIDE] = total
            slot = len(asked) if asked[tree] == ASKED else tree
            wide = leaf_start[tree + 1] - leaf_start[tree] > MAX_LEAVES
            if asked[tree]:
                if oblivious:
                    _copy_planes(level_test, level_start[tree], level_start[tree + 1], decisions, planes)
                else:
                    _run_network(gates, gate_start[tree], gate_start[tree + 1], decisions, reach)
                    _collect_planes(plane_slots, plane_start, tree, reach, planes)
                for byte in range(2 if wide else 1):
                    _transpose(plane_bytes, byte, known_words, slot)
            if vectors:
                _add_leaf_vectors(leaf_lanes, leaf_start[tree], wide, known, slot, totals)
            else:
                _add_leaves(leaf_value, leaf_start[tree], wide, known, slot, total)
    if vectors:
        for output in range(len(sums)):
            for row in range(BLOCK):
                sums[output, row] = totals[output // LANES, row, output % LANES]


@helper
def _first_asked(sequence: Any, first: int, last: int, asked: Any) -> int:
    """Return the place from which sums differ from those of x, as far as sums of x were kept; ``last``: nowhere."""
    place = first
    while place < last and asked[sequence[place]] == KNOWN:
        place += 1
    return place if place == last else max(first, place - place % STRIDE)


@helper
def _begin_sums(base: Any, output: int, on_the_way: bool, kept: Any, total: Any, totals: Any) -> None:
    """Fill what the leaves are added to: sums of x on the way, or the base, of one output or of all."""
    if len(totals):
        for each in range(len(base)):
            totals[each // LANES, :, each % LANES] = base[each]
    elif on_the_way:
        total[:] = kept
    else:
        total[:] = base[output]


# --- from x to its states -----------------------------------------------------------------------------------


@helper
def _rows_moved(moved: Any, order: Any, start: int, rows: Any) -> None:
    """Fill ``rows`` (G, WORDS): the rows of the block in which the state moves group g.

    moved: (G,) 1 at the places that the state moves. order: (n, places) groups of a row by place.
    """
    if moved.all():
        rows[:] = ALL
        return
    rows[:] = NONE
    for place in range(order.shape[1]):
        if moved[place]:
            for row in range(BLOCK):
                group = order[min(start + row, len(order) - 1), place]
                rows[group, row >> 6] |= ONE << np.uint64(row & 63)


@helper
def _mix(plan: Any, here: Any, there: Any, whole: bool, rows: Any, mixed: Any) -> None:
    """Fill the bits of a state: those of ``there`` (or of the baseline) where a row's group is moved, else of x.

    here, there, mixed: (T, WORDS). rows: (G, WORDS). whole: the state removes its groups.
    """
    test_group, test_base = plan.test_group, plan.test_base
    for test in range(len(mixed)):
        group = test_group[test]
        base = ALL if test_base[test] else NONE
        for w in range(WORDS):
            r = rows[group, w]
            target = base if whole else there[test, w]
            mixed[test, w] = (here[test, w] & ~r) | (target & r)


@helper
def _trees_asked(tree_group: Any, rows: Any, asked: Any) -> None:
    """Mark in ``asked`` (trees,) the trees with a test on a group that some row of the block moves."""
    asked[:] = KNOWN
    for group in range(len(rows)):
        some = NONE
        for w in range(WORDS):
            some |= rows[group, w]
        if some:
            for tree in range(len(asked)):
                asked[tree] |= tree_group[group, tree]


@helper
def _memory(forest: Any, networks: Any, plan: Any) -> Any:
    """Return (reach, planes, known, sums of x, on_the_way, totals) of a block, to be filled."""
    n_trees, kind = len(forest.tree_output), forest.leaf_value.dtype
    return (
        np.empty((plan.slots, WORDS), dtype=np.uint64),
        np.zeros((MOST_PLANES, WORDS), dtype=np.uint64),
        np.zeros((n_trees + 1, 2, BLOCK), dtype=np.uint8),
        np.empty((len(forest.base), BLOCK), dtype=kind),
        np.empty((n_trees // STRIDE + 1, BLOCK), dtype=kind),
        np.zeros((len(networks.leaf_lanes), BLOCK, LANES), dtype=kind),
    )


@entry
def score_states(
    forest: Any, networks: Any, plan: Any, matrix: Any, order: Any, states: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of every state of the rows span[0]..span[1].

    order: (n, places) groups of a row by place. states: (severity (Q,), moved (Q, G)): state q moves the groups whose
    place is marked by severity[q]; states of equal severity follow one another, and one that moves a place beyond those
    of ``order`` moves all.
    """
    severity, moved = states
    tree_group = plan.tree_group
    n_tests = len(forest.test_column)
    cells = np.empty((matrix.shape[1], BLOCK))
    here = np.empty((n_tests, WORDS), dtype=np.uint64)
    there = np.empty((n_tests, WORDS), dtype=np.uint64)
    mixed = np.empty((n_tests, WORDS), dtype=np.uint64)
    rows = np.empty((len(tree_group), WORDS), dtype=np.uint64)
    memory = _memory(forest, networks, plan)
    sums_x, sums = memory[3], np.empty((scores.shape[1], BLOCK), dtype=forest.leaf_value.dtype)
    asked = np.empty(len(forest.tree_output), dtype=np.uint8)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        take_block(matrix, start, cells)
        decide_block(forest, plan, cells, 0.0, here, here)
        asked[:] = TO_KNOW
        _sum_block(forest, networks, here, asked, memory, sums_x)
        at = 0.0
        for state in range(len(severity)):
            by = severity[state]
            if by <= 0.0:
                scores[state, :, start : start + size] = sums_x[:, :size]
                continue
            if by != at and by < 1.0:
                at = by
                decide_block(forest, plan, cells, at, here, there)
            _rows_moved(moved[state], order, start, rows)
            _trees_asked(tree_group, rows, asked)
            if not asked.any():
                scores[state, :, start : start + size] = sums_x[:, :size]
                continue
            _mix(plan, here, there, by >= 1.0, rows, mixed)
            _sum_block(forest, networks, mixed, asked, memory, sums)
            scores[state, :, start : start + size] = sums[:, :size]
