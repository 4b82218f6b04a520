"""A tree ensemble as a polynomial in the groups removed, and bounds on it.

Walk a tree from its root. Where x and the baseline go the same way, follow it; where they part, branch into "group
kept" (x's way) and "group removed" (the baseline's way), once for each group on a path. A leaf of value v with kept set
A and removed set B is reached exactly at the states S that hold all of B and none of A, so for every A' subset of A

    coefficient(B u A') += (-1)^|A'| v

and ``subsets`` turns coefficients into the values of all states. The same walk, with probabilities instead of sets,
gives the expected value under independent failures, and with least and greatest leaves bounds over many states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import count_bits, entry, helper
from fragility.engines.kernels.decisions import goes_right, prepare_cell
from fragility.engines.kernels.subsets import FIRST_BITS, WORD_BITS, transform_and_mark, words_of
from fragility.engines.trees.forest import KIND, NUMERIC

FIRST = (1 << FIRST_BITS) - 1
RIGHT, PARTS = 1, 2  # bits of a test's way: x goes right; x and the baseline part
FREE, KEPT, REMOVED = 0, 1, 2  # what is decided of a group in a search


@helper
def _decide_tests(forest: Any, plan: Any, row: Any, fixed: Any, way: Any) -> None:
    """Fill way (T,): bit 0 where x goes right at a test, bit 1 where x and the baseline part.

    fixed: (1, d) cells that no state moves, so that nothing parts there; (0, d) where there are none.
    """
    column_start, threshold, flags = forest.column_start, forest.test_threshold, forest.test_flags
    set_start, set_words, test_base = forest.set_start, forest.set_words, plan.test_base
    for column in range(len(column_start) - 1):
        first, last = column_start[column], column_start[column + 1]
        v = prepare_cell(row[column], plan.rounding[column], plan.zero_missing)
        plain = v == v
        for test in range(first, last):
            plain &= (flags[test] & KIND) == NUMERIC
        if plain:
            for test in range(first, last):
                right = np.uint8(v > threshold[test])
                way[test] = right | (right ^ test_base[test]) << 1
        else:
            for test in range(first, last):
                right = np.uint8(goes_right(v, threshold[test], flags[test], set_start, set_words))
                way[test] = right | (right ^ test_base[test]) << 1
        if len(fixed) > 0 and fixed[0, column]:
            for test in range(first, last):
                way[test] &= RIGHT


@entry
def live_groups(forest: Any, plan: Any, cells: Any, live: Any, span: Any) -> None:
    """Mark in live (n, G) the groups of which some test tells x from the baseline.

    cells: (rows (n, d), cells that no state moves (n, d), or (0, d) where there are none), here and below.
    """
    matrix, fixed = cells
    test_group = plan.test_group
    way = np.empty(len(test_group), dtype=np.uint8)
    for row in range(span[0], span[1]):
        _decide_tests(forest, plan, matrix[row], fixed[row : row + 1], way)
        for test in range(len(way)):
            if way[test] & PARTS:
                live[row, test_group[test]] = True


@entry
def mark_states(forest: Any, plan: Any, edge: Any, cells: Any, jobs: Any, scratch: Any, marks: Any, span: Any) -> None:
    """Mark the states of rows jobs.row[span[0]..span[1]] whose value is surely, or perhaps, below an edge.

    edge: ``lattice.trees.TreeEdge``. jobs: (row (m,), bits (m, G) the bit of each live group or 0, live (m,),
    first_word (m,)). scratch: (table, masks). marks: (sure, near), see ``subsets.mark_values``.
    """
    matrix, fixed = cells
    rows, bits, lives, first_word = jobs
    table, masks = scratch
    sure, near = marks
    way = np.empty(len(plan.test_group), dtype=np.uint8)
    stack = np.empty((plan.slots + 1, 3), dtype=np.int64)
    for job in range(span[0], span[1]):
        _decide_tests(forest, plan, matrix[rows[job]], fixed[rows[job] : rows[job] + 1], way)
        part = table[: 1 << max(lives[job], WORD_BITS)]
        part[:] = 0
        part[: 1 << FIRST_BITS] = edge.start
        _enter_trees(forest, plan, edge, way, bits[job], stack, masks, part)
        first = first_word[job]
        last = first + words_of(lives[job])
        transform_and_mark(part, edge.low, edge.high, sure[first:last], near[first:last])


@helper
def _enter_trees(forest: Any, plan: Any, edge: Any, way: Any, bits: Any, stack: Any, masks: Any, table: Any) -> None:
    """Add the coefficients of one row's trees to ``table``; stack: (node, kept, removed) still to be walked."""
    node_test, node_right, tree_start = forest.node_test, forest.node_right, forest.tree_start
    test_group, trees, leaf = plan.test_group, edge.trees, edge.leaf
    for t in range(len(trees)):
        stack[0, 0], stack[0, 1], stack[0, 2] = tree_start[trees[t]], 0, 0
        depth = 1
        while depth > 0:
            depth -= 1
            place, kept, removed = stack[depth, 0], stack[depth, 1], stack[depth, 2]
            test = node_test[place]
            while test >= 0:
                right = way[test] & RIGHT
                if way[test] & PARTS:
                    bit = bits[test_group[test]]
                    if removed & bit:
                        right ^= 1
                    elif bit and not kept & bit:  # a group without a bit stays as it is
                        stack[depth, 0] = place + 1 if right else node_right[place]
                        stack[depth, 1], stack[depth, 2] = kept, removed | bit
                        depth += 1
                        kept |= bit
                place = node_right[place] if right else place + 1
                test = node_test[place]
            _enter_leaf(leaf[-1 - test], kept, removed, masks, table)


@helper
def _enter_leaf(value: Any, kept: int, removed: int, masks: Any, table: Any) -> None:
    """Add a leaf's coefficients; over the lowest groups its value goes to the very states it is reached at.

    masks (256, 16): by kept and removed among the lowest four groups, all ones at those states.
    """
    pattern = (kept & FIRST) << FIRST_BITS | (removed & FIRST)
    kept_above, removed_above = kept >> FIRST_BITS, removed >> FIRST_BITS
    some = 0
    while True:
        place = (removed_above | some) << FIRST_BITS
        signed = -value if count_bits(np.uint64(some)) & np.uint64(1) else value
        for j in range(1 << FIRST_BITS):
            table[place + j] += signed & masks[pattern, j]
        some = (some - kept_above) & kept_above
        if some == 0:
            break


@entry
def expected_values(forest: Any, plan: Any, values: Any, cells: Any, rates: Any, out: Any, span: Any) -> None:
    """Fill out (n,) with sum over trees of the expected leaf value where group g is removed with probability rates[g].

    values: (leaves,). On a path a group is decided once: kept with 1 - r, removed with r.
    """
    matrix, fixed = cells
    node_test, node_right, tree_start = forest.node_test, forest.node_right, forest.tree_start
    test_group = plan.test_group
    way = np.empty(len(test_group), dtype=np.uint8)
    place_of = np.empty(plan.slots + 1, dtype=np.int64)
    weight_of = np.empty(plan.slots + 1)
    undo_of = np.empty(plan.slots + 1, dtype=np.int64)  # how many decisions stood when the node was put aside
    group_of = np.empty(plan.slots + 1, dtype=np.int64)
    decided = np.zeros(len(rates), dtype=np.int8)
    trail = np.empty(len(rates) + 1, dtype=np.int64)
    for row in range(span[0], span[1]):
        _decide_tests(forest, plan, matrix[row], fixed[row : row + 1], way)
        total = 0.0
        for tree in range(len(tree_start) - 1):
            place_of[0], weight_of[0], undo_of[0], group_of[0] = tree_start[tree], 1.0, 0, -1
            depth, taken = 1, 0
            while depth > 0:
                depth -= 1
                place, weight = place_of[depth], weight_of[depth]
                while taken > undo_of[depth]:
                    taken -= 1
                    decided[trail[taken]] = FREE
                if group_of[depth] >= 0:
                    decided[group_of[depth]] = REMOVED
                    trail[taken] = group_of[depth]
                    taken += 1
                test = node_test[place]
                while test >= 0:
                    right = way[test] & RIGHT
                    if way[test] & PARTS:
                        group = np.int64(test_group[test])
                        if decided[group] == REMOVED:
                            right ^= 1
                        elif decided[group] == FREE:
                            place_of[depth] = place + 1 if right else node_right[place]
                            weight_of[depth] = weight * rates[group]
                            undo_of[depth], group_of[depth] = taken, group
                            depth += 1
                            weight *= 1.0 - rates[group]
                            decided[group] = KEPT
                            trail[taken] = group
                            taken += 1
                    place = node_right[place] if right else place + 1
                    test = node_test[place]
                total += weight * values[-1 - test]
            while taken > 0:
                taken -= 1
                decided[trail[taken]] = FREE
        out[row] = total


# --- more live groups than a table holds ---------------------------------------------------------------------


@entry
def tree_bounds(forest: Any, plan: Any, edge: Any, row: Any, fixed: Any, gains: Any) -> Any:
    """Return the least value that any state of a row can have; fill gains (G,): how much less one removal can make it.

    In one tree, removing g changes nothing before the first node of g where x and the baseline part, so it takes at
    most the greatest leaf on x's side less the least leaf on the baseline's side, over those nodes.
    """
    node_test, node_right, tree_start = forest.node_test, forest.node_right, forest.tree_start
    test_group, trees, leaf = plan.test_group, edge.trees, edge.leaf
    way = np.empty(len(test_group), dtype=np.uint8)
    _decide_tests(forest, plan, row, fixed, way)
    least = np.zeros(plan.slots, dtype=np.int64)
    most = np.zeros(plan.slots, dtype=np.int64)
    own = np.zeros(len(gains), dtype=np.int64)
    gains[:] = 0
    total = np.int64(edge.start)
    for t in range(len(trees)):
        root, end = tree_start[trees[t]], tree_start[trees[t] + 1]
        own[:] = 0
        for place in range(end - 1, root - 1, -1):  # children before their parents
            test = node_test[place]
            here = place - root
            if test < 0:
                least[here] = most[here] = leaf[-1 - test]
                continue
            right = way[test] & RIGHT
            with_x = node_right[place] - root if right else here + 1
            least[here], most[here] = least[with_x], most[with_x]
            if way[test] & PARTS:
                with_base = here + 1 if right else node_right[place] - root
                group = test_group[test]
                own[group] = max(own[group], most[with_x] - least[with_base])
                least[here] = min(least[here], least[with_base])
                most[here] = max(most[here], most[with_base])
        total += least[0]
        for group in range(len(gains)):
            gains[group] += own[group]
    return total


@helper
def _sum_leaves(forest: Any, plan: Any, edge: Any, way: Any, gone: Any) -> Any:
    """Return the value of one state; gone (G,): the groups removed."""
    node_test, node_right, tree_start = forest.node_test, forest.node_right, forest.tree_start
    test_group, trees, leaf = plan.test_group, edge.trees, edge.leaf
    total = np.int64(edge.start)
    for t in range(len(trees)):
        place = np.int64(tree_start[trees[t]])
        test = node_test[place]
        while test >= 0:
            right = way[test] & RIGHT
            if way[test] & PARTS and gone[test_group[test]]:
                right ^= 1
            place = node_right[place] if right else place + 1
            test = node_test[place]
        total += leaf[-1 - test]
    return total


@entry
def search_size(
    forest: Any, plan: Any, edge: Any, cells: Any, groups: Any, gains: Any, size: int, budget: int, found: Any
) -> Any:
    """Look at the sets of ``size`` of the live groups (declared order) for values below the edge.

    cells: (row (d,), as ``fixed`` of `_decide_tests`). gains (L,): of ``groups``. found (cap, size): filled with
    the first sets of value < edge.high, in order. Return (sets in ``found``, how many of value <= edge.low in all,
    states evaluated, whether the size was searched to its end). A set is passed over where the value of its first
    members, less the largest gains of as many groups as are still to come, stays at or above edge.high.
    """
    row, fixed = cells
    way = np.empty(len(plan.test_group), dtype=np.uint8)
    _decide_tests(forest, plan, row, fixed, way)
    most = _sum_largest(gains, size)
    gone = np.zeros(plan.tree_group.shape[0], dtype=np.bool_)
    chosen = np.zeros(size, dtype=np.int64)  # places in ``groups``
    value = np.zeros(size + 1, dtype=np.int64)
    value[0] = _sum_leaves(forest, plan, edge, way, gone)
    listed, sure, spent = 0, 0, 1
    depth = 0
    at = 0  # the next place to try at this depth
    while True:
        left = size - depth
        if at + left > len(groups) or value[depth] - most[at, left] >= edge.high:
            if depth == 0:  # also where no later group can do it: the bound only rises with the place
                return listed, sure, spent, True
            depth -= 1
            at = chosen[depth] + 1
            gone[groups[chosen[depth]]] = False
            continue
        if value[depth] - gains[at] - (most[at + 1, left - 1] if left > 1 else 0) >= edge.high:
            at += 1  # not with this group; perhaps with later ones
            continue
        if spent >= budget:
            return listed, sure, spent, False
        gone[groups[at]] = True
        chosen[depth] = at
        value[depth + 1] = _sum_leaves(forest, plan, edge, way, gone)
        spent += 1
        if left > 1:
            depth += 1
            at += 1
            continue
        if value[depth + 1] < edge.high:
            sure += value[depth + 1] <= edge.low
            if listed < len(found):
                for i in range(size):
                    found[listed, i] = groups[chosen[i]]
                listed += 1
        gone[groups[at]] = False
        at += 1


@helper
def _sum_largest(gains: Any, size: int) -> Any:
    """Return (L+2, size+1): the sum of the k largest gains among groups from each place on."""
    n = len(gains)
    sums = np.zeros((n + 2, size + 1), dtype=np.int64)
    largest = np.zeros(size, dtype=np.int64)
    for place in range(n - 1, -1, -1):
        gain = gains[place]
        for k in range(size):
            if gain > largest[k]:
                largest[k], gain = gain, largest[k]
        for k in range(size):
            sums[place, k + 1] = sums[place, k] + largest[k]
    return sums
