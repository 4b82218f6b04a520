"""Values: one walk through a deep tree answers all values that the units of a row may take, each unit by itself.

Columns that change together are an *axis*, and what they may turn into are its values: up to 64, the bits of a word. A
row walks down a tree as it stands, and at a test about an axis the values that go the other way leave it. From there on
they are a set of one axis: at tests of that axis it parts, at all others it goes the way of x. At a leaf, each value
takes the leaf's numbers.

So a tree costs the way of x, and beside it the ways of the values that come to other leaves. Sums are kept by axis and
value, and leaves are added in the order of the trees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import LANES, add_where, entry, helper
from fragility.engines.kernels.decisions import ALL, NONE, ONE, goes_right, prepare_cell
from fragility.engines.kernels.walks import column_of, steps_to_right
from fragility.engines.trees.forest import FLAGS, KIND, NAN_RIGHT, NUMERIC

VALUES_BLOCK = 256  # rows that visit a tree one after the other, while its nodes are near
MOST_VALUES = 64  # of an axis
WITH_X = -1  # no axis: the way of x itself


@entry
def walk_values(forest: Any, packed: Any, axes: Any, matrix: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (values, outputs, n) with the raw sums of the rows span[0]..span[1] of ``matrix`` (n, d).

    packed: ``scoring.PackedNodes``. axes: ``trees.values.Axes``.
    """
    n_outputs, n_lines = len(forest.base), axes.first_line[-1]
    tree_start, tree_output, base = forest.tree_start, forest.tree_output, forest.base
    axis_values, first_line, value_start = axes.sizes, axes.first_line, axes.first_value
    block = min(VALUES_BLOCK, span[1] - span[0])
    n_axes, n_taken = len(axis_values), axes.taken.shape[1]
    compared = np.empty((block, matrix.shape[1]), dtype=packed.compared.dtype)
    taken = np.empty((block, matrix.shape[1], n_taken), dtype=packed.compared.dtype)
    bounds = np.empty((block, matrix.shape[1], 2), dtype=packed.compared.dtype)
    sums = np.empty((block * n_outputs * n_lines, LANES), dtype=forest.leaf_value.dtype)
    here, all_values = np.empty(n_axes, dtype=np.uint64), np.empty(n_axes, dtype=np.uint64)
    for axis in range(n_axes):
        all_values[axis] = ALL >> np.uint64(MOST_VALUES - axis_values[axis])
    most = n_axes * MOST_VALUES + 1
    waiting = (np.empty(most, dtype=np.uint64), np.empty(most, dtype=np.uint64), np.empty(most, dtype=np.int64))
    for start in range(span[0], span[1], VALUES_BLOCK):
        size = min(VALUES_BLOCK, span[1] - start)
        _take_rows(axes, matrix, start, size, compared, taken, bounds)
        for line in range(size * n_outputs * n_lines):
            for lane in range(LANES):
                sums[line, lane] = base[line // n_lines % n_outputs]
        for tree in range(len(tree_output)):
            at = (tree_start[tree], tree_output[tree])
            _walk_tree(forest, packed, axes, at, (size, compared, taken, bounds), (here, all_values), waiting, sums)
        for row in range(size):
            for output in range(n_outputs):
                first = (row * n_outputs + output) * n_lines
                for axis in range(n_axes):
                    for value in range(axis_values[axis]):
                        line = first + first_line[axis] + value // LANES
                        scores[value_start[axis] + value, output, start + row] = sums[line, value % LANES]


@helper
def _take_rows(axes: Any, matrix: Any, start: int, size: int, compared: Any, taken: Any, bounds: Any) -> None:
    """Fill the cells of a block as they are compared, those that they may turn into, and the least and largest of both.

    Where one is missing, nothing is known of their bounds.
    """
    rounding, zero_missing, own = axes.rounding, axes.zero_missing, axes.taken
    column_axis, axis_values = axes.column_axis, axes.sizes
    for row in range(size):
        for column in range(matrix.shape[1]):
            v = prepare_cell(matrix[start + row, column], rounding[column], zero_missing)
            compared[row, column] = v
            if own.shape[1] == 0 or column_axis[column] < 0:
                continue
            least, largest, known = v, v, v == v
            for i in range(axis_values[column_axis[column]]):
                v = prepare_cell(own[start + row, i, column], rounding[column], zero_missing)
                taken[row, column, i] = v
                known &= v == v
                least, largest = min(least, v), max(largest, v)
            bounds[row, column, 0] = least if known else np.nan
            bounds[row, column, 1] = largest if known else np.nan


@helper
def _ask_each_value(asked: Any, cells: Any, threshold: float, word: int, set_start: Any, set_words: Any) -> Any:
    """Return the values among ``asked`` that go right; cells (values,): as they are compared."""
    right, bit, i = NONE, ONE, 0
    while asked:
        if asked & ONE:
            v = np.float64(cells[i])
            if (word & KIND) == NUMERIC:
                way = (word & NAN_RIGHT) != 0 if v != v else v > threshold
            else:
                way = goes_right(v, threshold, word & FLAGS, set_start, set_words)
            if way:
                right |= bit
        asked >>= ONE
        bit <<= ONE
        i += 1
    return right


@helper
def _walk_tree(forest: Any, packed: Any, axes: Any, at: Any, rows: Any, values: Any, waiting: Any, sums: Any) -> None:
    """Add one tree's leaves to ``sums``: (rows outputs lines, LANES), LANES values of an axis side by side.

    at: (root, first output). rows: (how many, cells as compared, those that they may turn into, bounds). values: (those
    of each axis that are still with x, all of each axis). waiting: scratch for (node, values, their axis).
    """
    root, output = at
    size, compared, taken, bounds = rows
    here, all_values = values
    nodes, column_bits = packed.nodes, packed.column_bits
    waiting_place, waiting_values, waiting_axis = waiting
    leaf_value, set_start, set_words = forest.leaf_value, forest.set_start, forest.set_words
    column_axis, first_line, n_lines, node_set = axes.column_axis, axes.first_line, axes.first_line[-1], axes.node_set
    n_outputs, n_axes, shared = len(forest.base), len(all_values), len(node_set) > 0
    for row in range(size):
        first = (row * n_outputs + output) * n_lines
        for axis in range(n_axes):
            here[axis] = all_values[axis]
        # The way of x comes first: its axis is none. What leaves it waits, and is walked in the same loop afterwards.
        depth, place, own_axis, own = 0, np.uint64(root), WITH_X, NONE
        while True:
            word = np.int64(nodes[place].word)
            while word >= 0:
                column, threshold = column_of(word, column_bits), nodes[place].threshold
                v = compared[row, column]
                axis = column_axis[column]
                if (word & KIND) == NUMERIC:
                    way = (word & NAN_RIGHT) != 0 if v != v else v > threshold
                else:
                    way = goes_right(np.float64(v), np.float64(threshold), word & FLAGS, set_start, set_words)
                if axis >= 0 and own_axis in (WITH_X, axis):
                    asked = here[axis] if own_axis == WITH_X else own
                    if shared:
                        right = asked & node_set[place]
                    elif (word & KIND) == NUMERIC and bounds[row, column, 0] > threshold:
                        right = asked
                    elif (word & KIND) == NUMERIC and bounds[row, column, 1] <= threshold:
                        right = NONE
                    else:
                        cells = taken[row, column]
                        right = _ask_each_value(asked, cells, np.float64(threshold), word, set_start, set_words)
                    if own_axis == WITH_X:
                        leaving = asked & ~right if way else right
                        here[axis] ^= leaving
                    else:
                        way = right == asked
                        leaving = NONE if way else right
                        own ^= leaving
                    if leaving:
                        waiting_place[depth] = place + (ONE if way else steps_to_right(word, column_bits))
                        waiting_values[depth], waiting_axis[depth] = leaving, axis
                        depth += 1
                place += steps_to_right(word, column_bits) if way else ONE
                word = np.int64(nodes[place].word)
            for part in range(leaf_value.shape[1]):
                value, line = leaf_value[-1 - word, part], first + part * n_lines
                if own_axis == WITH_X:
                    for axis in range(n_axes):
                        for i in range(first_line[axis], first_line[axis + 1]):
                            add_where(sums, line + i, here[axis] >> np.uint64(LANES * (i - first_line[axis])), value)
                else:
                    for i in range(first_line[own_axis], first_line[own_axis + 1]):
                        add_where(sums, line + i, own >> np.uint64(LANES * (i - first_line[own_axis])), value)
            if depth == 0:
                break
            depth -= 1
            place, own, own_axis = waiting_place[depth], waiting_values[depth], waiting_axis[depth]
