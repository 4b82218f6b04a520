"""Bit planes of states instead of rows: each row has its own states, and each state its own bits.

A lane is one state of one row; BLOCK lanes are one vector of WORDS words, as rows are in ``planes``. Lanes of one row
that move by one severity are a piece of a word: their cells are the same, but for which of them are moved. So a test is
decided at most twice a piece, for the cell as it stands and as it is moved, and each lane takes one of the two:

    moved      (WORDS, U)    bit of a lane: its state moves the unit
    cells      (2 P, WORDS)  the cells of up to P pieces of each word: as they stand, then as they are moved
    lanes      (2 P, WORDS)  bit of a lane: it has that cell
    decisions  (T, WORDS)    bit of a lane: it goes right at the test

From the decisions on, lanes are rows to the networks of ``planes``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.cells import compared_cell, goes_right, stressed_cell
from fragility.engines.kernels.compiling import compare_lanes, entry, helper
from fragility.engines.kernels.decisions import BLOCK, NONE, ONE, WORDS
from fragility.engines.kernels.planes import ASKED, KNOWN, _memory, _sum_block

MOST_PIECES = 64  # of a word: every lane another row


@entry
def score_row_states(forest: Any, networks: Any, sides: Any, matrix: Any, states: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, q) with the raw sums of the states span[0]..span[1] of rows matrix (m, d).

    sides: ``asking.Sides``. states: (owner (q,), moved (q, U), severity (q,), or empty where all are removals).
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
    memory = _memory(forest, networks, sides)
    asked = np.full(len(forest.tree_output) + 1, ASKED, dtype=np.uint8)
    asked[-1] = KNOWN  # the tree without a split
    sums = np.empty((len(scores), BLOCK), dtype=forest.leaf_value.dtype)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        pieces = _cut_pieces(owner, severity, start, size, block)
        _gather_moved(moved, start, size, block[2])
        _decide_lanes(forest, sides, matrix, (owner, severity), block, pieces, taken, decisions)
        _sum_block(forest, networks, decisions, asked, memory, sums)
        scores[:, start : start + size] = sums[:, :size]


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
def _gather_moved(moved: Any, start: int, size: int, lane_moved: Any) -> None:
    """Fill lane_moved (WORDS, U) from moved (q, U)."""
    lane_moved[:] = NONE
    for lane in range(size):
        w, bit = lane >> 6, np.uint64(lane & 63)
        for unit in range(moved.shape[1]):
            lane_moved[w, unit] |= np.uint64(moved[start + lane, unit]) << bit


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
    count = pieces if whole else 2 * pieces
    for column in range(len(column_start) - 1):
        first, last = column_start[column], column_start[column + 1]
        if first == last:
            continue
        _take_lanes(block, pieces, unit[column], whole, lanes, starts)
        missing = _take_cells(sides, matrix, states, block[0], pieces, column, cells)
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
def _take_lanes(block: Any, pieces: int, unit: int, whole: bool, lanes: Any, starts: Any) -> None:
    """Fill the lanes of one unit's cells: those that stand, then those that are moved and not removed."""
    _, own, moved = block
    for w in range(WORDS):
        gone = moved[w, unit]
        starts[1, w] = gone
        for piece in range(pieces):
            lanes[piece, w] = own[piece, w] & ~gone
            if not whole:
                lanes[pieces + piece, w] = own[piece, w] & gone


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
            v = compared_cell(x, rounding, zero_missing)
            cells[piece, w] = v
            missing |= v != v
            if not sides.whole:
                v = compared_cell(stressed_cell(x, baseline, severity[lane], stepwise), rounding, zero_missing)
                cells[pieces + piece, w] = v
                missing |= v != v
    return missing
