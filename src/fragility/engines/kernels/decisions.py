"""Decisions: how a state moves a cell, which way the cell goes at a test, and for each test one bit per row of a block.

A block is BLOCK rows; the decisions of a test are WORDS words of 64 rows each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper, inlined
from fragility.engines.trees.forest import CATEGORY, CATEGORY_INVERTED, KIND, NAN_RIGHT, NARROW, WHOLE, ZERO_BAND
from fragility.evidence import STEP

WORDS = 8
BLOCK = 64 * WORDS  # rows evaluated together
COLUMNS_AT_ONCE = 8  # of a row while a block is copied: one line of the cache
MOST_ALIKE = 64  # distinct cells of a column in a block that are decided once each
RANK_TESTS = 24  # a column with more tests is decided by the rank of its cells
ZERO_THRESHOLD = float(np.float32(1e-35))  # LightGBM's zero band
CATEGORY_LIMIT = float(2**24)  # no library codes more categories
ONE = np.uint64(1)
NONE = np.uint64(0)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


# --- one cell and one test ----------------------------------------------------------------------------------


@helper
def stress_cell(x: float, baseline: float, severity: float, stepwise: bool) -> float:
    """Return the cell x moved toward the baseline: the rule of ``evidence.blend`` for one cell."""
    if severity <= 0.0:
        return x
    if severity >= 1.0:
        return baseline
    if stepwise or x != x:
        return baseline if severity >= STEP else x
    return x + severity * (baseline - x)


@inlined
def round_cell(v: float, rounding: int) -> float:
    """Return the cell as it is handed over and compared: to whole numbers (halves to even), then to float32."""
    if rounding & WHOLE:
        v = np.rint(v)
    if rounding & NARROW:
        v = np.float64(np.float32(v))
    return v


@helper
def prepare_cell(v: float, rounding: int, zero_missing: bool) -> float:
    """Return the cell as the library compares it: rounded, an absent zero as missing."""
    if zero_missing and v == 0.0:
        return np.nan
    return round_cell(v, rounding)


@helper
def goes_right(v: float, threshold: float, flags: int, set_start: Any, set_words: Any) -> bool:
    """Return whether the cell v passes a test to the right; see ``trees.forest`` for the flags."""
    kind = flags & KIND
    if v != v or (kind == ZERO_BAND and abs(v) <= ZERO_THRESHOLD):
        return (flags & NAN_RIGHT) != 0
    if kind < CATEGORY:
        return v > threshold
    if kind == CATEGORY and v < 0.0:  # XGBoost knows no category below 0; others cut -0.5 to 0
        return False
    member = False
    if v > -1.0 and v < CATEGORY_LIMIT:
        number, category = np.int64(threshold), np.int64(v)  # toward zero, as the libraries cast
        word = set_start[number] + category // 32
        member = word < set_start[number + 1] and (np.int64(set_words[word]) >> (category % 32)) & 1 == 1
    return member != (kind == CATEGORY_INVERTED)


@entry
def baseline_ways(forest: Any, baseline: Any, rounding: Any, zero_missing: bool) -> Any:
    """Return (T,) 1 where the baseline (d,) goes right; rounding: (d,) of cells."""
    column, threshold, flags = forest.test_column, forest.test_threshold, forest.test_flags
    set_start, set_words = forest.set_start, forest.set_words
    ways = np.empty(len(column), dtype=np.uint8)
    for test in range(len(ways)):
        v = prepare_cell(baseline[column[test]], rounding[column[test]], zero_missing)
        ways[test] = goes_right(v, threshold[test], flags[test], set_start, set_words)
    return ways


# --- a block of rows ----------------------------------------------------------------------------------------


@helper
def take_block(matrix: Any, start: int, cells: Any) -> None:
    """Copy the block's rows of matrix (n, d) to cells (d, BLOCK); the last row stands in beyond the end."""
    for first in range(0, matrix.shape[1], COLUMNS_AT_ONCE):
        last = min(first + COLUMNS_AT_ONCE, matrix.shape[1])
        for row in range(BLOCK):
            source = min(start + row, len(matrix) - 1)
            for column in range(first, last):
                cells[column, row] = matrix[source, column]


@helper
def decide_block(forest: Any, plan: Any, cells: Any, severity: float, here: Any, decisions: Any) -> None:
    """Fill decisions (T, WORDS) of a block, cells (d, BLOCK), at one severity below 1 of every group.

    here: the decisions of x itself, which a column that cannot be interpolated shares until it jumps; filled already,
    except at severity 0.
    """
    column_start, flags = forest.column_start, forest.test_flags
    tests = (forest.test_threshold, flags, forest.set_start, forest.set_words)
    baseline, stepwise, test_base = plan.baseline, plan.stepwise, plan.test_base
    rounding, zero_missing = plan.rounding, plan.zero_missing
    compared, ranks = np.empty(BLOCK), np.empty(BLOCK, dtype=np.int64)
    alike = (np.empty(MOST_ALIKE), np.empty((MOST_ALIKE, WORDS), dtype=np.uint64))
    for column in range(len(column_start) - 1):
        first, last = column_start[column], column_start[column + 1]
        if severity > 0.0 and stepwise[column]:
            for test in range(first, last):
                for w in range(WORDS):
                    decisions[test, w] = (ALL if test_base[test] else NONE) if severity >= STEP else here[test, w]
        elif first < last:
            _stress_column(cells[column], baseline[column], severity, compared)
            _round_column(compared, rounding[column], zero_missing)
            _decide_column(tests, first, last, compared, (ranks, alike), decisions)


@helper
def _stress_column(cells: Any, baseline: float, severity: float, out: Any) -> None:
    """Fill ``out`` with a column of the block at one severity below 1: ``stress_cell`` without its branches."""
    jumped = baseline if severity >= STEP else np.nan  # where a missing cell goes
    if severity <= 0.0:
        for row in range(BLOCK):
            out[row] = cells[row]
    else:
        for row in range(BLOCK):
            x = cells[row]
            out[row] = jumped if x != x else x + severity * (baseline - x)


@helper
def _round_column(cells: Any, rounding: int, zero_missing: bool) -> None:
    """Turn a column of the block into what the library compares, in loops without branches."""
    if zero_missing:
        for row in range(BLOCK):
            cells[row] = prepare_cell(cells[row], 0, True)
    if rounding & WHOLE:
        for row in range(BLOCK):
            cells[row] = np.rint(cells[row])
    if rounding & NARROW:
        for row in range(BLOCK):
            cells[row] = np.float64(np.float32(cells[row]))


@helper
def _decide_column(tests: Any, first: int, last: int, cells: Any, scratch: Any, decisions: Any) -> None:
    """Fill the bits of the tests first..last, which are those of one column; tests: (threshold, flags, sets).

    Tests about categories decide each distinct cell of the block once, where there are few.
    """
    threshold, flags, set_start, set_words = tests
    ranks, (values, rows) = scratch
    kinds = 0
    for test in range(first, last):
        kinds |= flags[test] & KIND
    count = _find_alike(cells, values, rows) if kinds and last - first > 1 else 0
    if count:
        for test in range(first, last):
            for w in range(WORDS):
                decisions[test, w] = NONE
            for i in range(count):
                if goes_right(values[i], threshold[test], flags[test], set_start, set_words):
                    for w in range(WORDS):
                        decisions[test, w] |= rows[i, w]
        return
    if kinds:
        for test in range(first, last):
            for w in range(WORDS):
                word = NONE
                for bit in range(64):
                    way = goes_right(cells[64 * w + bit], threshold[test], flags[test], set_start, set_words)
                    word |= np.uint64(way) << np.uint64(bit)
                decisions[test, w] = word
        return
    if last - first > RANK_TESTS:
        _decide_by_rank(threshold, first, last, cells, ranks, decisions)
    else:
        for test in range(first, last):
            _compare(cells, threshold[test], test, decisions)
    _route_missing(flags, first, last, cells, decisions)


@helper
def _find_alike(cells: Any, values: Any, rows: Any) -> int:
    """Fill the distinct cells of a block's column, and the rows that have each; return how many, 0: too many."""
    count = 0
    for row in range(BLOCK):
        v, i = cells[row], 0
        while i < count and values[i] != v and (v == v or values[i] == values[i]):
            i += 1
        if i == count:
            if count == len(values):
                return 0
            values[i] = v
            for w in range(WORDS):
                rows[i, w] = NONE
            count += 1
        rows[i, row >> 6] |= ONE << np.uint64(row & 63)
    return count


@helper
def _compare(cells: Any, threshold: float, test: int, decisions: Any) -> None:
    """Fill the bits of one numeric test; a missing cell goes left for now."""
    for w in range(WORDS):
        word = NONE
        for bit in range(64):
            word |= np.uint64(cells[64 * w + bit] > threshold) << np.uint64(bit)
        decisions[test, w] = word


@helper
def _decide_by_rank(threshold: Any, first: int, last: int, cells: Any, ranks: Any, decisions: Any) -> None:
    """v > t_i for all i below v's rank: mark each row at its rank, then OR downward.

    The rank is the first of the tests first..last whose threshold is not below v; ``first`` for NaN. All rows halve the
    same range at the same time, so that each step is one loop over vectors of rows.
    """
    ranks[:] = first
    size = last - first
    while size > 1:
        half = size >> 1
        for row in range(BLOCK):
            ranks[row] += half if cells[row] > threshold[np.uint64(ranks[row] + half - 1)] else 0
        size -= half
    for row in range(BLOCK):
        ranks[row] += 1 if cells[row] > threshold[np.uint64(ranks[row])] else 0
    for test in range(first, last):
        for w in range(WORDS):
            decisions[test, w] = NONE
    for row in range(BLOCK):
        if ranks[row] > first:
            decisions[ranks[row] - 1, row >> 6] |= ONE << np.uint64(row & 63)
    for test in range(last - 2, first - 1, -1):
        for w in range(WORDS):
            decisions[test, w] |= decisions[test + 1, w]


@helper
def _route_missing(flags: Any, first: int, last: int, cells: Any, decisions: Any) -> None:
    """NaN > t is false, so missing cells sit on the left; move those whose default is right."""
    missing_cells = 0
    for row in range(BLOCK):
        missing_cells += cells[row] != cells[row]
    if missing_cells == 0:
        return
    for w in range(WORDS):
        missing = NONE
        for bit in range(64):
            v = cells[64 * w + bit]
            missing |= np.uint64(v != v) << np.uint64(bit)
        for test in range(first, last):
            if flags[test] & NAN_RIGHT:
                decisions[test, w] |= missing
