"""Bit planes: the leaves that a block of rows reaches, by logic on whole words of rows.

decisions  (T, WORDS)            bit of a row: it goes right at the test
reach      (nodes, WORDS)        bit of a row: it arrives at the node
planes     (16, WORDS)           bit of a row: that bit of its leaf's number
known      (trees + 1, 2, BLOCK) leaf numbers of x, low and high byte; the last place is for those of one state
sums       (outputs, BLOCK)      raw sums
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.trees.kernels.compiling import entry, helper
from fragility.engines.trees.kernels.decisions import ALL, BLOCK, NONE, WORDS, decide_block, take_block
from fragility.engines.trees.kernels.layout import MAX_LEAVES, PLANES

MOST_PLANES = 2 * PLANES  # of an oblivious tree: its leaves' numbers have up to two bytes

KNOWN, ASKED, TO_KNOW = 0, 1, 2  # a tree's leaves: those of x, to be found, to be found and remembered as those of x


# --- from decisions to leaves -------------------------------------------------------------------------------


@helper
def _run_network(gates: Any, first: int, last: int, decisions: Any, reach: Any) -> None:
    """Fill ``reach``: the rows that arrive at each node of the tree with these gates."""
    for w in range(WORDS):
        reach[0, w] = ALL
    for gate in range(first, last):
        slot = gates[gate, 0]
        right = gates[gate, 1]
        test = gates[gate, 2]
        for w in range(WORDS):
            here = reach[slot, w]
            way = decisions[test, w]
            reach[slot + np.uint32(1), w] = here & ~way
            reach[right, w] = here & way


@helper
def _collect_planes(slots: Any, starts: Any, tree: int, reach: Any, planes: Any) -> None:
    """Fill 8 bit planes of the leaf numbers from the rows that reach each node."""
    for plane in range(PLANES):
        for w in range(WORDS):
            planes[plane, w] = NONE
        for i in range(starts[tree, plane], starts[tree, plane + 1]):
            slot = slots[i]
            for w in range(WORDS):
                planes[plane, w] |= reach[slot, w]


@helper
def _copy_planes(level_test: Any, first: int, last: int, decisions: Any, planes: Any) -> None:
    """The leaf number of an oblivious tree has its levels' decisions for bits."""
    for level in range(first, last):
        test = level_test[level]
        for w in range(WORDS):
            planes[level - first, w] = decisions[test, w]
    for plane in range(last - first, MOST_PLANES if last - first > PLANES else PLANES):
        for w in range(WORDS):
            planes[plane, w] = NONE


@helper
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


@helper
def _exchange(x: Any, distance: Any, lower: Any) -> Any:
    """Exchange the bits marked in ``lower`` with those ``distance`` places above them."""
    differing = (x ^ (x >> distance)) & lower
    return x ^ differing ^ (differing << distance)


@helper
def _add_leaves(leaf_columns: Any, part: int, first: Any, known: Any, slot: int, total: Any) -> None:
    """Add to ``total`` (BLOCK,) the value of each row's leaf, numbered from ``first``; leaf_columns (V, L)."""
    for row in range(BLOCK):
        total[row] += leaf_columns[part, first + np.uint64(known[slot, 0, row])]


@helper
def _add_many_leaves(leaf_columns: Any, part: int, first: Any, known: Any, slot: int, total: Any) -> None:
    """The same where leaf numbers have two bytes."""
    for row in range(BLOCK):
        leaf = np.uint64(known[slot, 0, row]) | np.uint64(known[slot, 1, row]) << np.uint64(8)
        total[row] += leaf_columns[part, first + leaf]


@helper
def _sum_block(forest: Any, networks: Any, decisions: Any, asked: Any, scratch: Any, known: Any, sums: Any) -> None:
    """Fill ``sums`` (outputs, BLOCK) in tree order.

    networks: what ``build_networks`` gives, and leaf_columns (V, L). asked: (trees,) KNOWN, ASKED or TO_KNOW.
    scratch: (reach, planes).
    """
    gates, gate_start, plane_slots, plane_start, leaf_columns = networks
    reach, planes = scratch
    plane_bytes = planes.view(np.uint8)
    known_words = known.view(np.uint64)
    leaf_start, tree_output, base = forest.leaf_start, forest.tree_output, forest.base
    level_test, level_start = forest.level_test, forest.level_start
    oblivious = len(level_start) > 1
    n_trees = len(tree_output)
    for output in range(len(sums)):
        sums[output, :] = base[output]
    for tree in range(n_trees):
        slot = n_trees if asked[tree] == ASKED else tree
        wide = leaf_start[tree + 1] - leaf_start[tree] > MAX_LEAVES
        if asked[tree]:
            if oblivious:
                _copy_planes(level_test, level_start[tree], level_start[tree + 1], decisions, planes)
            else:
                _run_network(gates, gate_start[tree], gate_start[tree + 1], decisions, reach)
                _collect_planes(plane_slots, plane_start, tree, reach, planes)
            for byte in range(2 if wide else 1):
                _transpose(plane_bytes, byte, known_words, slot)
        first = np.uint64(leaf_start[tree])
        for part in range(len(leaf_columns)):
            total = sums[tree_output[tree] + part]
            if wide:
                _add_many_leaves(leaf_columns, part, first, known, slot, total)
            else:
                _add_leaves(leaf_columns, part, first, known, slot, total)


# --- from x to its states -----------------------------------------------------------------------------------


@helper
def _rows_moved(moved: Any, rank: Any, start: int, rows: Any) -> None:
    """Fill ``rows`` (G, WORDS): the rows of the block in which the state moves group g.

    moved: (G,) 1 at the places that the state moves. rank: (n, G) place of each group in a row's order.
    """
    for group in range(len(rows)):
        for w in range(WORDS):
            word = NONE
            for bit in range(64):
                row = min(start + 64 * w + bit, len(rank) - 1)
                word |= np.uint64(moved[rank[row, group]]) << np.uint64(bit)
            rows[group, w] = word


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
def _score_x(forest: Any, networks: Any, plan: Any, cells: Any, here: Any, leaves: Any, sums: Any) -> None:
    """Find the leaves of x itself, which many states share; here: its decisions, to be filled."""
    scratch, known, asked = leaves
    decide_block(forest, plan, cells, 0.0, here, here)
    asked[:] = TO_KNOW
    _sum_block(forest, networks, here, asked, scratch, known, sums)


@entry
def score_states(
    forest: Any, networks: Any, plan: Any, matrix: Any, rank: Any, states: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of every state of the rows span[0]..span[1].

    rank: (n, G) place of each group in the row's order. states: (severity (Q,), moved (Q, G)): state q moves the groups
    whose place is marked by severity[q]; states of equal severity follow one another.
    """
    severity, moved = states
    tree_group = plan.tree_group
    n_tests, n_trees = len(forest.test_column), len(forest.tree_output)
    cells = np.empty((matrix.shape[1], BLOCK))
    here = np.empty((n_tests, WORDS), dtype=np.uint64)
    there = np.empty((n_tests, WORDS), dtype=np.uint64)
    mixed = np.empty((n_tests, WORDS), dtype=np.uint64)
    rows = np.empty((len(tree_group), WORDS), dtype=np.uint64)
    scratch = (np.empty((plan.slots, WORDS), dtype=np.uint64), np.zeros((MOST_PLANES, WORDS), dtype=np.uint64))
    known = np.zeros((n_trees + 1, 2, BLOCK), dtype=np.uint8)
    asked = np.empty(n_trees, dtype=np.uint8)
    sums = np.empty((scores.shape[1], BLOCK), dtype=forest.leaf_value.dtype)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        take_block(matrix, start, cells)
        _score_x(forest, networks, plan, cells, here, (scratch, known, asked), sums)
        at = 0.0
        for state in range(len(severity)):
            by = severity[state]
            if by != at and by < 1.0:
                at = by
                decide_block(forest, plan, cells, at, here, there)
            _rows_moved(moved[state], rank, start, rows)
            if by <= 0.0:
                rows[:] = NONE
            _trees_asked(tree_group, rows, asked)
            _mix(plan, here, there, by >= 1.0, rows, mixed)
            _sum_block(forest, networks, mixed, asked, scratch, known, sums)
            scores[state, :, start : start + size] = sums[:, :size]
