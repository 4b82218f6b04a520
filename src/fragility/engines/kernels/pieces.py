"""Pieces: where the decision of a row flips while one field runs through all its values and the others stay.

The tests about the field cut its values into pieces on which every test decides alike. A walk through a tree carries
the pieces that come along; a leaf adds its value where its pieces begin and takes it off where they end, so that
running sums over the pieces are the raw scores of the trees that ask about the field. All other trees stay as they are.

A helper is called once per row, not once per tree: numba counts references to the arrays of every call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper
from fragility.engines.kernels.decisions import goes_right, prepare_cell
from fragility.engines.trees.forest import AVERAGE, KIND, NAN_RIGHT, NUMERIC, SIGMOID

PIECE_BLOCK = 64  # rows of a span
CLIP = 1e-12  # as in ``fragility.scores``


@entry
def find_flips(forest: Any, asked: Any, rules: Any, cells: Any, scan: Any, span: Any, found: Any) -> None:
    """Fill found (n, 2) with the nearest piece below and above, within a row's bounds, that may flip; -1: none.

    asked: ``trees.pieces.FieldPieces``; rules: ``trees.pieces.FlipRules``; scan: ``trees.pieces.Scan``; cells (n, d).
    """
    rounding, zero_missing = asked.rounding, asked.zero_missing
    n_outputs, oblivious = len(forest.base), len(forest.level_start) > 1
    sums = np.zeros((asked.n_pieces + 1, n_outputs))
    stack = np.empty((asked.n_pieces + 2, 3), dtype=np.int64)
    compared, scores = np.empty(cells.shape[1]), np.empty(max(n_outputs, 2))
    for row in range(span[0], span[1]):
        first, last = scan.lowest[row], scan.highest[row]
        found[row, 0] = found[row, 1] = -1
        if first == last:
            continue
        for column in range(len(compared)):
            compared[column] = prepare_cell(cells[row, column], rounding[column], zero_missing)
        sums[first : last + 2] = 0.0
        if oblivious:
            _add_levels(forest, asked, compared, first, last + 1, stack, sums)
        else:
            _add_trees(forest, asked, compared, first, last + 1, stack, sums)
        for output in range(n_outputs):
            for piece in range(first + 1, last + 1):
                sums[piece, output] += sums[piece - 1, output]
            rest = scan.totals[row, output] - sums[scan.own[row], output]  # of the trees that do not ask
            for piece in range(first, last + 1):
                sums[piece, output] += rest
        found[row, 0] = _find_first(sums, scan.below[row] - 1, first - 1, -1, scan.original[row], rules, scores)
        found[row, 1] = _find_first(sums, scan.above[row] + 1, last + 1, 1, scan.original[row], rules, scores)


@helper
def _find_first(sums: Any, start: int, stop: int, way: int, original: int, rules: Any, scores: Any) -> int:
    """Return the first piece at which another class leads, or comes within rounding of it; -1 if none does."""
    offset, n_outputs = rules.offset, sums.shape[1]
    factor = rules.scale / rules.divisor
    for piece in range(start, stop, way):
        for output in range(n_outputs):
            raw = sums[piece, output] * factor
            scores[output] = np.log(max(raw, CLIP)) if rules.link == AVERAGE else raw
        if rules.link == SIGMOID:
            scores[1] = scores[0]
            scores[0] = 0.0
        elif n_outputs == 1:  # votes for the second class; the first has the rest
            scores[1] = scores[0]
            scores[0] = np.log(max(1.0 - sums[piece, 0] * factor, CLIP))
        held = scores[original] + offset[original] + rules.resolution - rules.slack
        for rival in range(len(scores)):
            if rival != original and not scores[rival] + offset[rival] <= held:
                return piece
    return -1


@helper
def _add_trees(forest: Any, asked: Any, compared: Any, first: int, stop: int, stack: Any, sums: Any) -> None:
    """Add the leaves of all trees that ask, on the pieces first..stop; at most one entry waits for each piece."""
    node_test, node_right, column = forest.node_test, forest.node_right, forest.test_column
    threshold, flags = forest.test_threshold, forest.test_flags
    set_start, set_words = forest.set_start, forest.set_words
    local, first_way, turns, turn_start = asked.local, asked.first_way, asked.turns, asked.turn_start
    trees, tree_start, tree_output, leaf_value = asked.trees, forest.tree_start, forest.tree_output, forest.leaf_value
    for i in range(len(trees)):
        output = tree_output[trees[i]]
        stack[0, 0], stack[0, 1], stack[0, 2] = tree_start[trees[i]], first, stop
        waiting = 1
        while waiting:
            waiting -= 1
            node, begin, end = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2]
            test = node_test[node]
            while test >= 0:
                own = local[test]
                if own < 0:
                    v = compared[column[test]]
                    if (flags[test] & KIND) == NUMERIC:
                        right = (flags[test] & NAN_RIGHT) != 0 if v != v else v > threshold[test]
                    else:
                        right = goes_right(v, threshold[test], flags[test], set_start, set_words)
                else:
                    way, turn, last = first_way[own], turn_start[own], turn_start[own + 1]
                    while turn < last and turns[turn] <= begin:
                        way, turn = 1 - way, turn + 1
                    while turn < last and turns[turn] < end:
                        stack[waiting, 0] = node_right[node] if way else node + 1
                        stack[waiting, 1], stack[waiting, 2] = begin, turns[turn]
                        waiting += 1
                        begin, way, turn = turns[turn], 1 - way, turn + 1
                    right = way != 0
                node = node_right[node] if right else node + 1
                test = node_test[node]
            for v in range(leaf_value.shape[1]):
                sums[begin, output + v] += leaf_value[-1 - test, v]
                sums[end, output + v] -= leaf_value[-1 - test, v]


@helper
def _add_levels(forest: Any, asked: Any, compared: Any, first: int, stop: int, stack: Any, sums: Any) -> None:
    """The same for oblivious trees, whose levels' decisions are the bits of the leaf's number."""
    level_test, level_start, leaf_start = forest.level_test, forest.level_start, forest.leaf_start
    column, threshold, flags = forest.test_column, forest.test_threshold, forest.test_flags
    set_start, set_words = forest.set_start, forest.set_words
    local, first_way, turns, turn_start = asked.local, asked.first_way, asked.turns, asked.turn_start
    tree_output, leaf_value, ends = forest.tree_output, forest.leaf_value, stack[:, 0]
    for tree in asked.trees:
        start, end = level_start[tree], level_start[tree + 1]
        fixed, count = 0, 0
        for level in range(start, end):
            test = level_test[level]
            own = local[test]
            if own < 0:
                if goes_right(compared[column[test]], threshold[test], flags[test], set_start, set_words):
                    fixed |= 1 << (level - start)
                continue
            for turn in range(turn_start[own], turn_start[own + 1]):
                place, i = turns[turn], 0
                while i < count and ends[i] < place:
                    i += 1
                if first < place < stop and (i == count or ends[i] != place):
                    for j in range(count, i, -1):
                        ends[j] = ends[j - 1]
                    ends[i] = place
                    count += 1
        begin = first
        for i in range(count + 1):
            finish, leaf = ends[i] if i < count else stop, fixed
            for level in range(start, end):
                own = local[level_test[level]]
                if own >= 0:
                    way = first_way[own]
                    for turn in range(turn_start[own], turn_start[own + 1]):
                        if turns[turn] <= begin:
                            way = 1 - way
                    leaf |= np.int64(way) << (level - start)
            for v in range(leaf_value.shape[1]):
                sums[begin, tree_output[tree] + v] += leaf_value[leaf_start[tree] + leaf, v]
                sums[finish, tree_output[tree] + v] -= leaf_value[leaf_start[tree] + leaf, v]
            begin = finish
