"""State sets: one walk through a tree carries all states of a row, as the bits of one word.

Let a row x and the baseline stand at a numeric test. A cell that moves from one to the other crosses the threshold at
most once (``plan.monotone``), hence:

    x and the baseline go the same way    so does every state between them: the set walks on together,
                                          at the cost of one comparison
    they part                             the states that move the cell far enough go with the baseline, the others
                                          with x: ``levels.at_least`` holds that set for each severity, so a split is
                                          one look-up and one AND

Where a set splits, the states that go right wait on a stack and the others walk on to the left, which is the next node.
At a leaf each state of the set takes its value. Tests of other kinds (categories, zero band) ask every severity.

What a walk needs of a node is its threshold and its word, explained in ``preparing``; the names for the word's parts
are the first functions below. Helpers of numbers are inlined and cost nothing; one that takes arrays counts references
to them, which the step from node to node cannot afford, so look-ups in arrays stay in the loop.

States of a certificate are ``scoring.PackedStates``; those of rows with states of their own come as plain arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import LANES, add_slice, add_where, entry, helper, inlined, lowest_bit
from fragility.engines.kernels.decisions import ALL, NONE, ONE, goes_right, prepare_cell, round_cell, stress_cell
from fragility.engines.kernels.preparing import BASELINE_RIGHT, COLUMN_SHIFT
from fragility.engines.trees.forest import FLAGS, KIND, NAN_RIGHT, NUMERIC

WALK_BLOCK = 2048  # rows that visit a deep tree one after the other, while its nodes are near
MOST_STATES = 64


# --- a node's word ------------------------------------------------------------------------------------------


@inlined
def column_of(word: int, column_bits: int) -> Any:
    return np.uint64((word >> COLUMN_SHIFT) & ((1 << column_bits) - 1))


@inlined
def steps_to_right(word: int, column_bits: int) -> Any:
    """Return how many places after its parent the right child stands; the left child is the next node."""
    return np.uint64(word >> (COLUMN_SHIFT + column_bits))


@inlined
def _baseline_right(word: int) -> bool:
    return (word & BASELINE_RIGHT) != 0


@inlined
def _is_numeric(word: int) -> bool:
    return (word & KIND) == NUMERIC


@inlined
def _together_right(word: int) -> bool:
    """Return whether all states go right with a cell above the threshold: the test is numeric, the baseline right."""
    return (word & (KIND | BASELINE_RIGHT)) == (NUMERIC | BASELINE_RIGHT)


@inlined
def _together_left(word: int) -> bool:
    """Return whether all states go left with a cell that is not above the threshold."""
    return (word & (KIND | BASELINE_RIGHT)) == NUMERIC


@inlined
def _cell_right(v: float, threshold: float, word: int) -> bool:
    """Return whether a cell goes right at a numeric test."""
    missing_right = (word & NAN_RIGHT) != 0
    return missing_right if v != v else v > threshold


# --- states that part ---------------------------------------------------------------------------------------


@inlined
def _find_level(cell: Any, threshold: float, way: bool, severities: Any, jump: int, rounding: int) -> int:
    """Return the first severity at which a cell is on the baseline's side of a test that it crosses once.

    cell: (x, baseline, stepwise). way: x itself goes right. jump: see ``scoring.PackedStates``.
    """
    x, baseline, stepwise = cell
    if stepwise or x != x:
        return jump
    toward, level = baseline - x, 0
    for i in range(len(severities)):  # counts those at which it has not crossed yet: without branches, the fastest
        v = round_cell(x + severities[i] * toward, rounding)
        level += (v > threshold) == way
    return level


@helper
def _ask_each_level(states: Any, node: Any, cell: Any, group: int, levels: Any, compare: Any, sets: Any) -> Any:
    """Return the states that go right at a test that a cell may cross more than once: every severity is asked.

    node: (threshold, word). cell: (x, baseline, stepwise). compare: (rounding, zero_missing). sets: (starts, words).
    """
    severities, at_least, _ = levels
    x, baseline, stepwise = cell
    threshold, word = node
    rounding, zero_missing = compare
    set_start, set_words = sets
    right = at_least[group, len(severities)] if _baseline_right(word) else NONE
    for i in range(len(severities) + 1):  # the states that do not move the cell, then those of each severity
        severity, moved = (severities[i - 1], at_least[group, i - 1]) if i else (0.0, ALL)
        v = prepare_cell(stress_cell(x, baseline, severity, stepwise), rounding, zero_missing)
        if goes_right(v, threshold, word & FLAGS, set_start, set_words):
            right |= moved & ~at_least[group, i]
    return states & right


# --- the walk -----------------------------------------------------------------------------------------------


@entry
def walk_states(
    forest: Any, plan: Any, packed: Any, cells: Any, order: Any, levels: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of up to 64 states of the rows span[0]..span[1].

    packed: ``scoring.PackedNodes``. cells: (rows (n, d), cells that no state moves (n, d), or (0, d) where there are
    none). order: (n, places) groups of a row by place. levels: ``scoring.PackedStates``.
    """
    matrix, fixed = cells
    column_group, nowhere = plan.column_group, len(levels.at_least) - 1
    tree_start, tree_output = forest.tree_start, forest.tree_output
    rounding, zero_missing = plan.rounding, plan.zero_missing
    n_states, n_outputs, _ = scores.shape
    by_state, lines = _choose_layout(forest.leaf_value.shape[1], n_states, n_outputs)
    block = min(WALK_BLOCK, span[1] - span[0])
    compared = np.empty((block, matrix.shape[1]), dtype=packed.compared.dtype)
    sums = np.zeros((block * lines, LANES), dtype=forest.leaf_value.dtype)
    rank = np.empty(nowhere, dtype=np.int64)
    place_of = np.empty((block, matrix.shape[1]), dtype=np.int64)
    waiting = (np.empty(MOST_STATES + 1, dtype=np.uint64), np.empty(MOST_STATES + 1, dtype=np.uint64))
    for start in range(span[0], span[1], WALK_BLOCK):
        size = min(WALK_BLOCK, span[1] - start)
        x = matrix[start : start + size]
        for row in range(size):
            for column in range(x.shape[1]):
                compared[row, column] = prepare_cell(x[row, column], rounding[column], zero_missing)
        _begin_sums(forest.base, by_state, n_states, lines, sums)
        for row in range(size):  # the place of each column's group; those not in ``order`` share the place after it
            rank[:] = min(order.shape[1], len(rank) - 1)
            for place in range(order.shape[1]):
                rank[order[start + row, place]] = place
            for column in range(x.shape[1]):
                place_of[row, column] = rank[column_group[column]]
                if len(fixed) > 0 and fixed[start + row, column]:
                    place_of[row, column] = nowhere
        rows = (x, compared, place_of)
        for tree in range(len(tree_output)):  # a tree's nodes stay in cache for the whole block
            at = (tree_start[tree], tree_output[tree])
            _walk_tree(forest, plan, packed, at, rows, levels, waiting, (sums, by_state, n_states, lines))
        for state in range(n_states):
            for output in range(n_outputs):
                line, lane = _find_place(state, output, by_state, n_states, n_outputs)
                for row in range(size):
                    scores[state, output, start + row] = sums[row * lines + line, lane]


@helper
def _walk_tree(forest: Any, plan: Any, packed: Any, at: Any, rows: Any, levels: Any, waiting: Any, sums: Any) -> None:
    """Add one tree's leaves to the sums.

    at: (root, first output). rows: (x, x as compared, place of each column's group). waiting: scratch for the (node,
    states) of a row that are still to be walked. sums: (sums, whether states stand side by side, their number,
    lines of a row).
    """
    root, output = at
    x, compared, place_of = rows
    nodes, column_bits = packed.nodes, packed.column_bits
    severities, at_least, jump = levels
    waiting_place, waiting_states = waiting
    leaf_value, n_values, sets = packed.leaves, forest.leaf_value.shape[1], (forest.set_start, forest.set_words)
    total, by_state, n_states, lines = sums
    baseline, stepwise = plan.baseline, plan.stepwise
    monotone, rounding, zero_missing = plan.monotone, plan.rounding, plan.zero_missing
    removal = len(severities)
    everything = ALL >> np.uint64(MOST_STATES - n_states)
    several = 0 if monotone else KIND  # a cell may cross the threshold of any test more than once
    for row in range(len(x)):
        waiting_place[0], waiting_states[0] = root, everything
        depth = 1
        while depth > 0:
            depth -= 1
            place, states = waiting_place[depth], waiting_states[depth]
            word = np.int64(nodes[place].word)
            while word >= 0:
                v, threshold = compared[row, column_of(word, column_bits)], nodes[place].threshold
                way = v > threshold
                if way:
                    if _together_right(word | several):
                        place += steps_to_right(word, column_bits)
                        word = np.int64(nodes[place].word)
                        continue
                elif v != v and (word & NAN_RIGHT) != 0:
                    way = True
                elif _together_left(word | several):
                    place += ONE
                    word = np.int64(nodes[place].word)
                    continue
                column = column_of(word, column_bits)
                group = place_of[row, column]
                cell = (x[row, column], baseline[column], stepwise[column] != 0)
                if _is_numeric(word | several):
                    level = removal
                    if way == _baseline_right(word):
                        right = states if way else NONE
                    else:
                        if states & at_least[group, 0] & ~at_least[group, removal]:  # some move the cell in part
                            level = _find_level(cell, threshold, way, severities, jump, rounding[column])
                        moved = at_least[group, level]
                        right = states & (~moved if way else moved)
                else:
                    node, compare = (np.float64(threshold), word), (rounding[column], zero_missing)
                    right = _ask_each_level(states, node, cell, group, levels, compare, sets)
                if right == states:
                    place += steps_to_right(word, column_bits)
                else:
                    if right:
                        waiting_place[depth] = place + steps_to_right(word, column_bits)
                        waiting_states[depth] = right
                        depth += 1
                    states &= ~right
                    place += ONE
                word = np.int64(nodes[place].word)
            leaf, line = (-1 - word) * n_values, row * lines
            if by_state:
                groups = (n_states + LANES - 1) // LANES
                for part in range(n_values):
                    first = line + (output + part) * groups
                    for group in range(groups):
                        add_where(total, first + group, states >> np.uint64(LANES * group), leaf_value[leaf + part])
            else:
                parts = lines // n_states
                while states:
                    first = line + np.int64(lowest_bit(states)) * parts
                    for part in range(parts):
                        add_slice(total, first + part, leaf_value, leaf + part * LANES)
                    states &= states - ONE


# --- sums ---------------------------------------------------------------------------------------------------
#
# The sums of a row are lines of LANES numbers. Where a leaf holds few values, LANES states stand side by side, and a
# leaf is added to those that reach it, without a loop over them; else LANES outputs of one state do.

FEW_VALUES = 2


@helper
def _choose_layout(n_values: int, n_states: int, n_outputs: int) -> Any:
    """Return whether states stand side by side, and how many lines a row has."""
    by_state = n_values <= FEW_VALUES
    if by_state:
        return True, n_outputs * ((n_states + LANES - 1) // LANES)
    return False, n_states * ((n_outputs + LANES - 1) // LANES)


@helper
def _find_place(state: int, output: int, by_state: bool, n_states: int, n_outputs: int) -> Any:
    """Return (line, lane) of a sum within those of its row."""
    if by_state:
        return output * ((n_states + LANES - 1) // LANES) + state // LANES, state % LANES
    return state * ((n_outputs + LANES - 1) // LANES) + output // LANES, output % LANES


@helper
def _begin_sums(base: Any, by_state: bool, n_states: int, lines: int, sums: Any) -> None:
    """Fill the sums of all rows with the base (outputs,); lines: of a row."""
    for state in range(n_states):
        for output in range(len(base)):
            line, lane = _find_place(state, output, by_state, n_states, len(base))
            for row in range(len(sums) // lines):
                sums[row * lines + line, lane] = base[output]


# --- rows that have states of their own ---------------------------------------------------------------------
#
# A visit is one row with up to 64 of its states that move by one severity. At a test its cell has two sides, as it
# stands and as it is moved; where they go the same way so does the whole set, else the states that move the cell's unit
# leave the others.

LINES = MOST_STATES // LANES  # of the sums of one output: LANES states stand side by side
VISITS = 1024  # that go through a tree together, while its nodes are in cache


@entry
def walk_row_states(forest: Any, packed: Any, sides: Any, matrix: Any, states: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, q) with the raw sums of the states span[0]..span[1] of rows matrix (m, d).

    packed: ``scoring.PackedNodes``. sides: ``scoring.Sides``. states: (owner (q,), moved (q, U), severity (q,), or
    empty where all are removals).
    """
    tree_start, tree_output = forest.tree_start, forest.tree_output
    most = min(VISITS, span[1] - span[0])
    first = np.empty(most + 1, dtype=np.int64)
    here = np.empty((most, matrix.shape[1]), dtype=packed.compared.dtype)
    there = np.empty((most, matrix.shape[1]), dtype=packed.compared.dtype)
    moved = np.empty((most, states[1].shape[1]), dtype=np.uint64)
    sums = np.empty((most * len(scores) * LINES, LANES), dtype=forest.leaf_value.dtype)
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
            if count == len(first) - 1:
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
            here[visit, column] = prepare_cell(x, rounding[column], zero_missing)
            if len(severity):
                v = stress_cell(x, baseline[column], severity[first], stepwise[column] != 0)
                there[visit, column] = prepare_cell(v, rounding[column], zero_missing)
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
            while word >= 0:
                column = column_of(word, column_bits)
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
                        waiting_place[depth] = place + steps_to_right(word, column_bits)
                        waiting_states[depth] = right
                        depth += 1
                        states ^= right
                        right = NONE
                place += steps_to_right(word, column_bits) if right else ONE
                word = np.int64(nodes[place].word)
            first = (visit * n_outputs + output) * LINES
            lines = (visits[visit + 1] - visits[visit] + LANES - 1) // LANES
            for part in range(leaf_value.shape[1]):
                value = leaf_value[-1 - word, part]
                for line in range(lines):
                    add_where(sums, first + part * LINES + line, states >> np.uint64(LANES * line), value)


# --- rows that are alike ------------------------------------------------------------------------------------
#
# Copies of one row differ in few cells. Up to 64 rows that follow each other walk as one set: at a test, the rows whose
# cell is that of the first one go its way, and only the others are asked one by one.


@entry
def walk_alike(forest: Any, plan: Any, packed: Any, matrix: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (outputs, n) with the raw sums of the rows span[0]..span[1] of ``matrix`` (n, d)."""
    tree_start, tree_output = forest.tree_start, forest.tree_output
    compared = np.empty((MOST_STATES, matrix.shape[1]), dtype=packed.compared.dtype)
    differs = np.empty(matrix.shape[1], dtype=np.uint64)
    sums = np.empty((len(scores) * LINES, LANES), dtype=forest.leaf_value.dtype)
    waiting = (np.empty(MOST_STATES + 1, dtype=np.uint64), np.empty(MOST_STATES + 1, dtype=np.uint64))
    for start in range(span[0], span[1], MOST_STATES):
        size = min(MOST_STATES, span[1] - start)
        for column in range(matrix.shape[1]):
            differs[column] = NONE
            for row in range(size):
                v = prepare_cell(matrix[start + row, column], plan.rounding[column], plan.zero_missing)
                compared[row, column] = v
                first = compared[0, column]
                if compared[row, column] != first and not (v != v and first != first):
                    differs[column] |= ONE << np.uint64(row)
        for line in range(len(sums)):
            sums[line] = forest.base[line // LINES]
        for tree in range(len(tree_output)):
            at = (tree_start[tree], tree_output[tree])
            _walk_tree_alike(forest, packed, at, (compared, differs, size), waiting, sums)
        for output in range(len(scores)):
            for row in range(size):
                scores[output, start + row] = sums[output * LINES + row // LANES, row % LANES]


@helper
def _walk_tree_alike(forest: Any, packed: Any, at: Any, rows: Any, waiting: Any, sums: Any) -> None:
    """Add one tree's leaves to ``sums``: (outputs LINES, LANES), LANES rows side by side.

    at: (root, first output). rows: (cells as compared, rows that differ from the first by column, how many rows).
    """
    root, output = at
    compared, differs, size = rows
    nodes, column_bits = packed.nodes, packed.column_bits
    waiting_place, waiting_rows = waiting
    leaf_value, set_start, set_words = forest.leaf_value, forest.set_start, forest.set_words
    lines = (size + LANES - 1) // LANES
    waiting_place[0], waiting_rows[0] = root, ALL >> np.uint64(MOST_STATES - size)
    depth = 1
    while depth > 0:
        depth -= 1
        place, walking = waiting_place[depth], waiting_rows[depth]
        word = np.int64(nodes[place].word)
        while word >= 0:
            column, threshold = column_of(word, column_bits), nodes[place].threshold
            asked = walking & differs[column]
            right = NONE
            if walking != asked and _row_right(compared[0, column], threshold, word, set_start, set_words):
                right = walking & ~asked
            while asked:
                row = lowest_bit(asked)
                if _row_right(compared[row, column], threshold, word, set_start, set_words):
                    right |= ONE << row
                asked &= asked - ONE
            if right and right != walking:
                waiting_place[depth] = place + steps_to_right(word, column_bits)
                waiting_rows[depth] = right
                depth += 1
                walking &= ~right
                right = NONE
            place += steps_to_right(word, column_bits) if right else ONE
            word = np.int64(nodes[place].word)
        for part in range(leaf_value.shape[1]):
            for line in range(lines):
                add_where(
                    sums,
                    (output + part) * LINES + line,
                    walking >> np.uint64(LANES * line),
                    leaf_value[-1 - word, part],
                )


@inlined
def _row_right(v: float, threshold: float, word: int, set_start: Any, set_words: Any) -> bool:
    """Return whether a row goes right at a test of any kind."""
    if _is_numeric(word):
        return _cell_right(v, threshold, word)
    return goes_right(np.float64(v), np.float64(threshold), word & FLAGS, set_start, set_words)
