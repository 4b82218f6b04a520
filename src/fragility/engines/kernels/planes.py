"""Bit planes: the leaves that a block of rows reaches, by logic on whole words of rows.

decisions   (T, WORDS)             bit of a row: it goes right at the test
reach       (nodes, WORDS)         bit of a row: it arrives at the node
planes      (16, WORDS)            bit of a row: that bit of its leaf's number
known       (slots, bytes, BLOCK)  leaf numbers of x by tree; the last TOGETHER slots are for those of one state
sums        (outputs, BLOCK)       raw sums
totals      (parts, BLOCK, LANES)  the same where a leaf holds a value for each output: LANES outputs side by side
on_the_way  (parts, BLOCK)         sums of x before every tree whose place in the sequence is a multiple of STRIDE

States of a certificate are ``scoring.PlaceStates``; those of rows with states of their own come as plain arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import (
    LANES,
    TOGETHER,
    add_lanes,
    compare_lanes,
    entry,
    helper,
    inlined,
    split_rows,
    unite_rows,
)
from fragility.engines.kernels.decisions import (
    ALL,
    BLOCK,
    NONE,
    ONE,
    WORDS,
    decide_block,
    goes_right,
    prepare_cell,
    stress_cell,
    take_block,
)
from fragility.engines.kernels.preparing import PLANES

MOST_PLANES = 2 * PLANES  # of an oblivious tree: its leaves' numbers have up to two bytes
STRIDE = 8  # trees between two sums of x that are kept; a multiple of TOGETHER

KNOWN, ASKED, TO_KNOW = 0, 1, 2  # a tree's leaves: those of x, to be found, to be found and remembered as those of x


# --- from decisions to leaves -------------------------------------------------------------------------------


@inlined
def _copy_planes(level_test: Any, first: int, last: int, wide: bool, decisions: Any, planes: Any) -> None:
    """The leaf number of an oblivious tree has its levels' decisions for bits."""
    for level in range(first, last):
        test = level_test[level]
        for w in range(WORDS):
            planes[level - first, w] = decisions[test, w]
    for plane in range(last - first, MOST_PLANES if wide else PLANES):
        for w in range(WORDS):
            planes[plane, w] = NONE


@inlined
def _transpose(plane_bytes: Any, byte: int, numbers: Any, slot: int) -> None:
    """Turn 8 bit planes of a block into one byte per row, eight rows at a time.

    plane_bytes: (16, BLOCK / 8) planes by bytes of eight rows; numbers: (slots, bytes, BLOCK / 8) words of eight rows.
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
def _find_leaf(first: int, known: Any, slot: int, row: int, wide: bool) -> Any:
    """Return the number of the leaf that a row reaches, among all leaves of the forest."""
    leaf = first + np.int64(known[slot, 0, row])
    return np.uint64(leaf + (np.int64(known[slot, 1, row]) << 8) if wide else leaf)


@inlined
def _add_leaves(leaf_value: Any, firsts: Any, known: Any, slots: Any, wide: bool, total: Any) -> None:
    """Add to ``total`` (BLOCK,) the leaves of TOGETHER trees, one after the other; leaf_value (L,).

    firsts: first leaf of each tree. slots: where its leaf numbers are known.
    """
    a, b, c, d = firsts[0], firsts[1], firsts[2], firsts[3]
    p, q, r, s = slots[0], slots[1], slots[2], slots[3]
    for row in range(BLOCK):
        value = total[row] + leaf_value[_find_leaf(a, known, p, row, wide)]
        value += leaf_value[_find_leaf(b, known, q, row, wide)]
        value += leaf_value[_find_leaf(c, known, r, row, wide)]
        total[row] = value + leaf_value[_find_leaf(d, known, s, row, wide)]


@inlined
def _add_leaf_vectors(leaf_lanes: Any, firsts: Any, known: Any, slots: Any, wide: bool, totals: Any) -> None:
    """The same for all outputs of a leaf; leaf_lanes (parts, L, LANES), totals (parts, BLOCK, LANES)."""
    a, b, c, d = firsts[0], firsts[1], firsts[2], firsts[3]
    p, q, r, s = slots[0], slots[1], slots[2], slots[3]
    for part in range(len(leaf_lanes)):
        leaves, total = leaf_lanes[part], totals[part]
        for row in range(BLOCK):
            first, second = _find_leaf(a, known, p, row, wide), _find_leaf(b, known, q, row, wide)
            third, fourth = _find_leaf(c, known, r, row, wide), _find_leaf(d, known, s, row, wide)
            add_lanes(total, row, leaves, (first, second, third, fourth))


@helper
def _sum_block(forest: Any, networks: Any, decisions: Any, asked: Any, memory: Any, sums: Any) -> None:
    """Fill ``sums`` (outputs, BLOCK), those of each output in tree order.

    networks: ``scoring.Networks``. asked: (trees + 1,) KNOWN, ASKED or TO_KNOW. memory: what ``_make_memory`` gives.
    Where a leaf holds one value, an output begins near the first tree whose leaves are not those of x.
    """
    sequence, sequence_start = networks.sequence, networks.sequence_start
    gates, gate_start = networks.gates, networks.gate_start
    plane_slots, plane_start = networks.plane_slots, networks.plane_start
    leaf_value, leaf_lanes, leaf_start = networks.leaf_value, networks.leaf_lanes, networks.leaf_start
    level_test, level_start, base = forest.level_test, forest.level_start, forest.base
    reach, planes, known, sums_x, on_the_way, totals = memory
    plane_bytes, known_words = planes.view(np.uint8), known.view(np.uint64)
    vectors, oblivious = len(leaf_lanes) > 0, len(level_start) > 1
    wide = known.shape[1] > 1
    firsts, slots = np.empty(TOGETHER, dtype=np.int64), np.empty(TOGETHER, dtype=np.int64)
    for output in range(len(sequence_start) - 1):
        first, last = sequence_start[output], sequence_start[output + 1]
        begin = first if vectors else _find_first_asked(sequence, first, last, asked)
        if begin == last and first < last:
            _copy(sums_x[output], sums[output])
            continue
        total = sums[output]
        if vectors:
            for each in range(len(base)):
                for row in range(BLOCK):
                    totals[each // LANES, row, each % LANES] = base[each]
        elif begin > first:
            _copy(on_the_way[begin // STRIDE + output], total)
        else:
            for row in range(BLOCK):
                total[row] = base[output]
        for place in range(begin, last, TOGETHER):
            if (place - first) % STRIDE == 0 and asked[sequence[place]] == TO_KNOW and not vectors:
                _copy(total, on_the_way[place // STRIDE + output])
            for i in range(TOGETHER):
                tree = sequence[place + i]
                slots[i] = len(asked) + i if asked[tree] == ASKED else tree
                firsts[i] = leaf_start[tree]
                if asked[tree]:
                    if oblivious:
                        _copy_planes(level_test, level_start[tree], level_start[tree + 1], wide, decisions, planes)
                    else:
                        for w in range(WORDS):
                            reach[0, w] = ALL
                        for gate in range(gate_start[tree], gate_start[tree + 1]):
                            split_rows(reach, gates[gate, 0], gates[gate, 1], decisions, gates[gate, 2])
                        for plane in range(PLANES):
                            first_slot, last_slot = plane_start[tree, plane], plane_start[tree, plane + 1]
                            unite_rows(reach, plane_slots, first_slot, last_slot, planes, plane)
                    for byte in range(known.shape[1]):
                        _transpose(plane_bytes, byte, known_words, slots[i])
            if vectors:
                _add_leaf_vectors(leaf_lanes, firsts, known, slots, wide, totals)
            else:
                _add_leaves(leaf_value, firsts, known, slots, wide, total)
    if vectors:
        for output in range(len(sums)):
            for row in range(BLOCK):
                sums[output, row] = totals[output // LANES, row, output % LANES]


@helper
def _find_first_asked(sequence: Any, first: int, last: int, asked: Any) -> int:
    """Return the place from which sums differ from those of x, as far as sums of x were kept; ``last``: nowhere."""
    place = first
    while place < last and asked[sequence[place]] == KNOWN:
        place += 1
    return place if place == last else place - (place - first) % STRIDE


@helper
def _copy(source: Any, target: Any) -> None:
    """Copy a row of sums. A loop compiles several times faster than the assignment of a slice."""
    for row in range(BLOCK):
        target[row] = source[row]


# --- from x to its states -----------------------------------------------------------------------------------


@helper
def _mark_rows_moved(moved: Any, order: Any, start: int, rows: Any) -> None:
    """Fill ``rows`` (G, WORDS): the rows of the block in which the state moves group g.

    moved: (G,) 1 at the places that the state moves. order: (n, places) groups of a row by place.
    """
    everything = True
    for place in range(len(moved)):
        everything = everything and moved[place] != 0
    for group in range(len(rows)):
        for w in range(WORDS):
            rows[group, w] = ALL if everything else NONE
    if everything:
        return
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
def _take_fixed(fixed: Any, start: int, spared: Any) -> None:
    """Fill spared (d, WORDS): the rows of the block whose cell no state moves; fixed (n, d)."""
    spared[:] = NONE
    for row in range(BLOCK):
        source = min(start + row, len(fixed) - 1)
        for column in range(fixed.shape[1]):
            spared[column, row >> 6] |= np.uint64(fixed[source, column]) << np.uint64(row & 63)


@helper
def _spare(forest: Any, here: Any, spared: Any, mixed: Any) -> None:
    """Give the tests of cells that no state moves the bits of x back."""
    column_start = forest.column_start
    for column in range(len(column_start) - 1):
        some = NONE
        for w in range(WORDS):
            some |= spared[column, w]
        if some:
            for test in range(column_start[column], column_start[column + 1]):
                for w in range(WORDS):
                    mixed[test, w] = (here[test, w] & spared[column, w]) | (mixed[test, w] & ~spared[column, w])


@helper
def _mark_trees_asked(tree_group: Any, rows: Any, asked: Any) -> bool:
    """Mark in ``asked`` (trees + 1,) the trees that ask about a group that some row moves; return whether any do."""
    for tree in range(len(asked)):
        asked[tree] = KNOWN
    for group in range(len(rows)):
        some = NONE
        for w in range(WORDS):
            some |= rows[group, w]
        if some:
            for tree in range(tree_group.shape[1]):
                asked[tree] |= tree_group[group, tree]
    found = NONE
    for tree in range(len(asked)):
        found |= np.uint64(asked[tree])
    return found != NONE


@helper
def _make_memory(forest: Any, networks: Any, plan: Any) -> Any:
    """Return (reach, planes, known, sums of x, on_the_way, totals) of a block, to be filled."""
    n_trees, n_outputs, kind = len(forest.tree_output), len(forest.base), forest.leaf_value.dtype
    return (
        np.empty((plan.slots, WORDS), dtype=np.uint64),
        np.zeros((MOST_PLANES, WORDS), dtype=np.uint64),
        np.zeros((n_trees + 1 + TOGETHER, networks.number_bytes, BLOCK), dtype=np.uint8),
        np.empty((n_outputs, BLOCK), dtype=kind),
        np.empty((len(networks.sequence) // STRIDE + n_outputs + 1, BLOCK), dtype=kind),
        np.zeros((len(networks.leaf_lanes), BLOCK, LANES), dtype=kind),
    )


@entry
def score_states(
    forest: Any, networks: Any, plan: Any, cells: Any, order: Any, states: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of every state of the rows span[0]..span[1].

    cells: (rows (n, d), others, fixed). others: (n, d) cells that moved groups take at any severity below 1; (0, d):
    they move toward the baseline. fixed: (n, d) cells that no state moves; (0, d): there are none.

    order: (n, places) groups of a row by place. states: (severity (Q,), moved (Q, G)): state q moves the groups whose
    place is marked by severity[q]; states of equal severity follow one another, and one that moves a place beyond those
    of ``order`` moves all.
    """
    matrix, others, fixed = cells
    severity, moved = states
    tree_group = plan.tree_group
    n_tests = len(forest.test_column)
    block = np.empty((matrix.shape[1], BLOCK))
    spared = np.empty((matrix.shape[1], WORDS), dtype=np.uint64)
    here = np.empty((n_tests, WORDS), dtype=np.uint64)
    there = np.empty((n_tests, WORDS), dtype=np.uint64)
    mixed = np.empty((n_tests, WORDS), dtype=np.uint64)
    rows = np.empty((len(tree_group), WORDS), dtype=np.uint64)
    memory = _make_memory(forest, networks, plan)
    sums_x, sums = memory[3], np.empty((scores.shape[1], BLOCK), dtype=forest.leaf_value.dtype)
    asked = np.empty(len(forest.tree_output) + 1, dtype=np.uint8)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        take_block(matrix, start, block)
        decide_block(forest, plan, block, 0.0, here, here)
        if len(fixed):
            _take_fixed(fixed, start, spared)
        for tree in range(len(asked)):
            asked[tree] = TO_KNOW if tree < len(asked) - 1 else KNOWN  # the last is the tree without a split
        _sum_block(forest, networks, here, asked, memory, sums_x)
        at = 0.0
        for state in range(len(severity)):
            by = severity[state]
            _mark_rows_moved(moved[state], order, start, rows)
            if by <= 0.0 or not _mark_trees_asked(tree_group, rows, asked):
                _keep(sums_x, scores[state], start, size)
                continue
            if by != at and by < 1.0:
                at = by
                if len(others):
                    take_block(others, start, block)
                    decide_block(forest, plan, block, 0.0, there, there)
                else:
                    decide_block(forest, plan, block, at, here, there)
            _mix(plan, here, there, by >= 1.0, rows, mixed)
            if len(fixed):
                _spare(forest, here, spared, mixed)
            _sum_block(forest, networks, mixed, asked, memory, sums)
            _keep(sums, scores[state], start, size)


@helper
def _keep(sums: Any, scores: Any, start: int, size: int) -> None:
    """Copy the sums of a block to its rows of ``scores`` (outputs, n)."""
    for output in range(len(sums)):
        for row in range(size):
            scores[output, start + row] = sums[output, row]


# --- rows that have states of their own ---------------------------------------------------------------------
#
# A lane is one state of one row; BLOCK lanes are one vector of WORDS words, as rows are above. Lanes of one row that
# move by one severity are a piece of a word: their cells are the same, but for which of them are moved. So a test is
# decided at most twice per piece, for the cell as it stands and as it is moved, and each lane takes one of the two:
#
#     moved      (WORDS, U)    bit of a lane: its state moves the unit
#     cells      (2 P, WORDS)  the cells of up to P pieces of each word: as they stand, then as they are moved
#     lanes      (2 P, WORDS)  bit of a lane: it has that cell
#     decisions  (T, WORDS)    bit of a lane: it goes right at the test
#
# From the decisions on, lanes are rows to the networks.

MOST_PIECES = 64  # of a word: every lane another row


@entry
def score_row_states(forest: Any, networks: Any, sides: Any, matrix: Any, states: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, q) with the raw sums of the states span[0]..span[1] of rows matrix (m, d).

    sides: ``scoring.Sides``. states: (owner (q,), moved (q, U), severity (q,), or empty where all are removals).
    """
    owner, moved, severity = states
    block = (
        np.empty((MOST_PIECES, WORDS), dtype=np.int64),
        np.empty((MOST_PIECES, WORDS), dtype=np.uint64),
        np.empty((WORDS, moved.shape[1]), dtype=np.uint64),
    )
    taken = (
        np.empty((2 * MOST_PIECES, WORDS)),
        np.empty((2 * MOST_PIECES, WORDS), dtype=np.uint64),
        np.zeros((2, WORDS), dtype=np.uint64),
    )
    decisions = np.empty((len(forest.test_column), WORDS), dtype=np.uint64)
    memory = _make_memory(forest, networks, sides)
    asked = np.empty(len(forest.tree_output) + 1, dtype=np.uint8)
    asked[:] = ASKED
    asked[-1] = KNOWN  # the tree without a split
    sums = np.empty((len(scores), BLOCK), dtype=forest.leaf_value.dtype)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        pieces = _cut_pieces(owner, severity, start, size, block)
        lane_moved = block[2]
        lane_moved[:] = NONE
        for lane in range(size):
            w, bit = lane >> 6, np.uint64(lane & 63)
            for unit in range(moved.shape[1]):
                lane_moved[w, unit] |= np.uint64(moved[start + lane, unit]) << bit
        _decide_lanes(forest, sides, matrix, (owner, severity), block, pieces, taken, decisions)
        _sum_block(forest, networks, decisions, asked, memory, sums)
        _keep(sums, scores, start, size)


@helper
def _cut_pieces(owner: Any, severity: Any, start: int, size: int, block: Any) -> int:
    """Fill the first lane and the lanes of each piece, (MOST_PIECES, WORDS); return the most that a word has.

    A piece that a word lacks has no lanes.
    """
    first_lane, lanes, _ = block
    most = 1
    lanes[:] = NONE
    first_lane[:] = start
    for w in range(WORDS):
        piece = -1
        for bit in range(64):
            lane = start + 64 * w + bit
            if lane >= start + size:
                break
            new = bit == 0 or owner[lane] != owner[lane - 1]
            if not new and len(severity):
                new = severity[lane] != severity[lane - 1]
            if new:
                piece += 1
                first_lane[piece, w] = lane
            lanes[piece, w] |= ONE << np.uint64(bit)
        most = max(most, piece + 1)
    return most


@helper
def _decide_lanes(
    forest: Any, sides: Any, matrix: Any, states: Any, block: Any, pieces: int, taken: Any, decisions: Any
) -> None:
    """Fill decisions (T, WORDS); states: (owner, severity), block: (first lane, lanes, moved) of the pieces.

    taken: (cells, their lanes, starts) of one column. Lanes that are removed go where the baseline goes: starts[1] are
    these lanes, starts[0] none.
    """
    column_start, threshold, flags = forest.column_start, forest.test_threshold, forest.test_flags
    set_start, set_words = forest.set_start, forest.set_words
    unit, numeric, test_base, whole = sides.unit, sides.numeric, sides.test_base, sides.whole
    cells, lanes, starts = taken
    first_lane, own, moved = block
    count = pieces if whole else 2 * pieces
    for column in range(len(column_start) - 1):
        first, last = column_start[column], column_start[column + 1]
        if first == last:
            continue
        for w in range(WORDS):
            gone = moved[w, unit[column]]
            starts[1, w] = gone
            for piece in range(pieces):
                lanes[piece, w] = own[piece, w] & ~gone
                if not whole:
                    lanes[pieces + piece, w] = own[piece, w] & gone
        missing = _take_cells(sides, matrix, states, first_lane, pieces, column, cells)
        for test in range(first, last):
            start = np.int64(test_base[test]) if whole else 0
            if numeric[column] and not missing:
                compare_lanes(decisions, test, starts, start, cells, lanes, count, threshold[test])
            else:
                for w in range(WORDS):
                    word = starts[start, w]
                    for p in range(count):
                        if lanes[p, w] and goes_right(cells[p, w], threshold[test], flags[test], set_start, set_words):
                            word |= lanes[p, w]
                    decisions[test, w] = word


@helper
def _take_cells(sides: Any, matrix: Any, states: Any, first_lane: Any, pieces: int, column: int, cells: Any) -> bool:
    """Fill one column's cells of all pieces, as they stand and as they are moved; return whether one is missing."""
    owner, severity = states
    baseline, stepwise = sides.baseline[column], sides.stepwise[column] != 0
    rounding, zero_missing = sides.rounding[column], sides.zero_missing
    missing = False
    for piece in range(pieces):
        for w in range(WORDS):
            lane = first_lane[piece, w]
            x = matrix[owner[lane], column]
            v = prepare_cell(x, rounding, zero_missing)
            cells[piece, w] = v
            missing |= v != v
            if not sides.whole:
                v = prepare_cell(stress_cell(x, baseline, severity[lane], stepwise), rounding, zero_missing)
                cells[pieces + piece, w] = v
                missing |= v != v
    return missing
