"""Bit planes of states instead of rows: each row has its own states, and each state its own bits.

A lane is one state of one row; BLOCK lanes are one vector of WORDS words, as rows are in ``planes``. Lanes of one row
that move by one severity are a piece of a word: their cells are the same, but for which of them are moved. So a test is
decided at most twice a piece, for the cell as it stands and as it is moved, and each lane takes one of the two:

    here, there   (P, WORDS)    the cells of up to P pieces in each word
    lanes         (P, WORDS)    bits of the lanes of a piece
    moved         (U, WORDS)    bit of a lane: its state moves the unit
    decisions     (T, WORDS)    (here & ~moved) | (there & moved)

From the decisions on, lanes are rows to the networks of ``planes``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.trees.kernels.cells import compared_cell, goes_right, stressed_cell
from fragility.engines.trees.kernels.compiling import entry, helper
from fragility.engines.trees.kernels.decisions import ALL, BLOCK, NONE, ONE, WORDS
from fragility.engines.trees.kernels.planes import ASKED, KNOWN, _memory, _sum_block

MOST_PIECES = 64  # of a word: every lane another row


@entry
def score_row_states(forest: Any, networks: Any, sides: Any, matrix: Any, states: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, q) with the raw sums of the states span[0]..span[1] of rows matrix (m, d).

    sides: ``asking.Sides``. states: (owner (q,), moved (q, U), severity (q,), or empty where all are removals).
    """
    owner, moved, severity = states
    lane_moved = np.empty((WORDS, moved.shape[1]), dtype=np.uint64)
    first_lane = np.empty((MOST_PIECES, WORDS), dtype=np.int64)
    lanes = np.empty((MOST_PIECES, WORDS), dtype=np.uint64)
    cells = (np.empty((MOST_PIECES, WORDS)), np.empty((MOST_PIECES, WORDS)))
    decisions = np.empty((len(forest.test_column), WORDS), dtype=np.uint64)
    memory = _memory(forest, networks, sides)
    asked = np.full(len(forest.tree_output) + 1, ASKED, dtype=np.uint8)
    asked[-1] = KNOWN  # the tree without a split
    sums = np.empty((len(scores), BLOCK), dtype=forest.leaf_value.dtype)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        pieces = _cut_pieces(owner, severity, start, size, first_lane, lanes)
        _gather_moved(moved, start, size, lane_moved)
        _decide_lanes(
            forest,
            sides,
            matrix,
            (owner, severity),
            (first_lane[:pieces], lanes[:pieces], lane_moved),
            cells,
            decisions,
        )
        _sum_block(forest, networks, decisions, asked, memory, sums)
        scores[:, start : start + size] = sums[:, :size]


@helper
def _cut_pieces(owner: Any, severity: Any, start: int, size: int, first_lane: Any, lanes: Any) -> int:
    """Fill first_lane and lanes (MOST_PIECES, WORDS); return how many pieces the word of most pieces has.

    A piece that a word lacks has no lanes.
    """
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
def _decide_lanes(forest: Any, sides: Any, matrix: Any, states: Any, block: Any, cells: Any, decisions: Any) -> None:
    """Fill decisions (T, WORDS) of a block; states: (owner, severity), block: (first_lane, lanes, lane_moved)."""
    column_start, threshold, flags = forest.column_start, forest.test_threshold, forest.test_flags
    tests = (threshold, flags, forest.set_start, forest.set_words)
    unit, numeric, test_base = sides.unit, sides.numeric, sides.test_base
    lane_moved = block[2]
    here, there = cells
    pieces, whole = len(block[0]), sides.whole
    moved = np.empty(WORDS, dtype=np.uint64)
    for column in range(len(column_start) - 1):
        first, last = column_start[column], column_start[column + 1]
        if first == last:
            continue
        for w in range(WORDS):
            moved[w] = lane_moved[w, unit[column]]
        missing = _take_cells(sides, matrix, states, block[0], column, here, there)
        if not numeric[column] or missing:
            for test in range(first, last):
                _decide_by_piece(tests, test, test_base[test], whole, block[1], cells, moved, decisions)
        elif whole:
            for test in range(first, last):
                _compare_removed(threshold[test], test, test_base[test], pieces, block[1], here, moved, decisions)
        else:
            for test in range(first, last):
                _compare_moved(threshold[test], test, pieces, block[1], cells, moved, decisions)


@helper
def _take_cells(sides: Any, matrix: Any, states: Any, first_lane: Any, column: int, here: Any, there: Any) -> bool:
    """Fill one column's cells of all pieces, as they stand and as they are moved; return whether one is missing."""
    owner, severity = states
    baseline, stepwise = sides.baseline[column], sides.stepwise[column] != 0
    rounding, zero_missing = sides.rounding[column], sides.zero_missing
    missing = False
    for piece in range(len(first_lane)):
        for w in range(WORDS):
            lane = first_lane[piece, w]
            x = matrix[owner[lane], column]
            v = compared_cell(x, rounding, zero_missing)
            here[piece, w] = v
            missing |= v != v
            if not sides.whole:
                v = compared_cell(stressed_cell(x, baseline, severity[lane], stepwise), rounding, zero_missing)
                there[piece, w] = v
                missing |= v != v
    return missing


@helper
def _compare_removed(
    threshold: float, test: int, base_right: int, pieces: int, lanes: Any, here: Any, moved: Any, decisions: Any
) -> None:
    """Fill the bits of one numeric test; what is moved is at the baseline."""
    base = ALL if base_right else NONE
    for w in range(WORDS):
        decisions[test, w] = NONE
    for piece in range(pieces):
        for w in range(WORDS):
            decisions[test, w] |= lanes[piece, w] if here[piece, w] > threshold else NONE
    for w in range(WORDS):
        decisions[test, w] = (decisions[test, w] & ~moved[w]) | (base & moved[w])


@helper
def _compare_moved(
    threshold: float, test: int, pieces: int, lanes: Any, cells: Any, moved: Any, decisions: Any
) -> None:
    """Fill the bits of one numeric test; what is moved is on its way."""
    here, there = cells
    for w in range(WORDS):
        decisions[test, w] = NONE
    for piece in range(pieces):
        for w in range(WORDS):
            decisions[test, w] |= (lanes[piece, w] & ~moved[w]) if here[piece, w] > threshold else NONE
            decisions[test, w] |= (lanes[piece, w] & moved[w]) if there[piece, w] > threshold else NONE


@helper
def _decide_by_piece(
    tests: Any, test: int, base_right: int, whole: bool, lanes: Any, cells: Any, moved: Any, decisions: Any
) -> None:
    """Fill the bits of one test of any kind, cells missing or not."""
    threshold, flags, set_start, set_words = tests
    here, there = cells
    for w in range(WORDS):
        word = moved[w] if whole and base_right else NONE
        for piece in range(len(lanes)):
            own = lanes[piece, w]
            if own & ~moved[w] and goes_right(here[piece, w], threshold[test], flags[test], set_start, set_words):
                word |= own & ~moved[w]
            if whole or not own & moved[w]:
                continue
            if goes_right(there[piece, w], threshold[test], flags[test], set_start, set_words):
                word |= own & moved[w]
        decisions[test, w] = word
