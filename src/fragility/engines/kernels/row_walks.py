"""State sets of rows that have states of their own: one walk through a deep tree carries up to 64 states of a row.

A visit is one row with up to 64 of its states that move by one severity. At a test its cell has two sides, as it stands
and as it is moved; where they go the same way so does the whole set, else the states that move the cell's unit leave
the others. The words of nodes are those of ``walks``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.cells import compared_cell, goes_right, stressed_cell
from fragility.engines.kernels.compiling import LANES, add_where, entry, helper
from fragility.engines.kernels.walks import (
    ALL,
    FETCHED_FOR,
    MOST_STATES,
    NONE,
    ONE,
    _baseline_right,
    _cell_right,
    _column,
    _fetch_tree,
    _is_leaf,
    _is_numeric,
    _leaf_number,
    _steps_to_right,
)
from fragility.engines.trees.encoding import FLAGS

LINES = MOST_STATES // LANES  # of the sums of one output: LANES states stand side by side
VISITS = 1024  # that go through a tree together, while its nodes are in cache


@entry
def walk_row_states(forest: Any, packed: Any, sides: Any, matrix: Any, states: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, q) with the raw sums of the states span[0]..span[1] of rows matrix (m, d).

    packed: ``scoring.PackedNodes``. sides: ``asking.Sides``. states: (owner (q,), moved (q, U), severity (q,), or empty
    where all are removals).
    """
    tree_start, tree_output = forest.tree_start, forest.tree_output
    first = np.empty(VISITS + 1, dtype=np.int64)
    here = np.empty((VISITS, matrix.shape[1]), dtype=packed.compared.dtype)
    there = np.empty((VISITS, matrix.shape[1]), dtype=packed.compared.dtype)
    moved = np.empty((VISITS, states[1].shape[1]), dtype=np.uint64)
    sums = np.empty((VISITS * len(scores) * LINES, LANES), dtype=forest.leaf_value.dtype)
    waiting = (np.empty(MOST_STATES + 1, dtype=np.uint64), np.empty(MOST_STATES + 1, dtype=np.uint64))
    start = span[0]
    while start < span[1]:
        count = _cut_visits(states[0], states[2], start, span[1], first)
        visits = first[: count + 1]
        _take_visits(sides, matrix, states, visits, (here, there, moved))
        for line in range(len(sums)):
            sums[line] = forest.base[line // LINES % len(scores)]
        for tree in range(len(tree_output)):
            at = (tree_start[tree], tree_output[tree])
            if count >= FETCHED_FOR:
                _fetch_tree(forest, packed, tree)
            _visit_tree(forest, sides, packed, at, visits, (here, there, moved), waiting, sums)
        for visit in range(count):
            for output in range(len(scores)):
                for state in range(visits[visit + 1] - visits[visit]):
                    line = (visit * len(scores) + output) * LINES + state // LANES
                    scores[output, visits[visit] + state] = sums[line, state % LANES]
        start = visits[count]


@helper
def _cut_visits(owner: Any, severity: Any, start: int, stop: int, first: Any) -> int:
    """Fill the first state of each visit, and where the last one ends; return how many there are."""
    count = 0
    first[0] = start
    for state in range(start + 1, stop):
        new = owner[state] != owner[state - 1] or state - first[count] == MOST_STATES
        if not new and len(severity):
            new = severity[state] != severity[state - 1]
        if new:
            count += 1
            first[count] = state
            if count == VISITS:
                return count
    first[count + 1] = stop
    return count + 1


@helper
def _take_visits(sides: Any, matrix: Any, states: Any, visits: Any, taken: Any) -> None:
    """Fill the cells of each visit as they are compared, as they stand and moved, and the states that move a unit."""
    owner, moved, severity = states
    here, there, sets = taken
    baseline, stepwise, rounding, zero_missing = sides.baseline, sides.stepwise, sides.rounding, sides.zero_missing
    for visit in range(len(visits) - 1):
        first = visits[visit]
        for column in range(matrix.shape[1]):
            x = matrix[owner[first], column]
            here[visit, column] = compared_cell(x, rounding[column], zero_missing)
            if len(severity):
                v = stressed_cell(x, baseline[column], severity[first], stepwise[column] != 0)
                there[visit, column] = compared_cell(v, rounding[column], zero_missing)
        sets[visit] = NONE
        for state in range(first, visits[visit + 1]):
            bit = np.uint64(state - first)
            for unit in range(moved.shape[1]):
                sets[visit, unit] |= np.uint64(moved[state, unit]) << bit


@helper
def _visit_tree(
    forest: Any, sides: Any, packed: Any, at: Any, visits: Any, taken: Any, waiting: Any, sums: Any
) -> None:
    """Add one tree's leaves to ``sums``: (visits outputs LINES, LANES), LANES states side by side.

    at: (root, first output). waiting: scratch for the (node, states) of a visit that are still to be walked.
    """
    root, output = at
    here, there, moved = taken
    nodes, column_bits = packed.nodes, packed.column_bits
    waiting_place, waiting_states = waiting
    leaf_value, set_start, set_words = forest.leaf_value, forest.set_start, forest.set_words
    unit, whole, n_outputs = sides.unit, sides.whole, len(forest.base)
    for visit in range(len(visits) - 1):
        waiting_place[0] = root
        waiting_states[0] = ALL >> np.uint64(MOST_STATES - (visits[visit + 1] - visits[visit]))
        depth = 1
        while depth > 0:
            depth -= 1
            place, states = waiting_place[depth], waiting_states[depth]
            word = np.int64(nodes[place].word)
            while not _is_leaf(word):
                column = _column(word, column_bits)
                threshold = nodes[place].threshold
                v = here[visit, column]
                if _is_numeric(word):
                    way = _cell_right(v, threshold, word)
                    other = _baseline_right(word) if whole else _cell_right(there[visit, column], threshold, word)
                else:
                    number, flags = np.float64(threshold), word & FLAGS
                    way = goes_right(np.float64(v), number, flags, set_start, set_words)
                    other = _baseline_right(word)
                    if not whole:
                        other = goes_right(np.float64(there[visit, column]), number, flags, set_start, set_words)
                right = states if way else NONE
                if way != other:
                    leaving = states & moved[visit, unit[column]]
                    right ^= leaving
                    if leaving and leaving != states:
                        waiting_place[depth] = place + _steps_to_right(word, column_bits)
                        waiting_states[depth] = right
                        depth += 1
                        states ^= right
                        right = NONE
                place += _steps_to_right(word, column_bits) if right else ONE
                word = np.int64(nodes[place].word)
            first = (visit * n_outputs + output) * LINES
            lines = (visits[visit + 1] - visits[visit] + LANES - 1) // LANES
            for part in range(leaf_value.shape[1]):
                value = leaf_value[_leaf_number(word), part]
                for line in range(lines):
                    add_where(sums, first + part * LINES + line, states >> np.uint64(LANES * line), value)
