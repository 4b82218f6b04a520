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

from fragility.engines.kernels.compiling import count_bits, entry, helper, lowest_bit
from fragility.engines.kernels.decisions import goes_right, prepare_cell
from fragility.engines.kernels.subsets import (
    FIRST_BITS,
    LOW_BITS,
    WORD_BITS,
    enter_few,
    transform_and_mark,
    transform_and_mark_few,
    words_of,
)
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
    """Mark the states of rows span[0]..span[1] whose value is surely, or perhaps, below an edge.

    edge: ``lattice.trees.TreeEdge``. jobs: (bits (m, G) the bit of each live group or 0, live (m,), first_word (m,)).
    scratch: (table, masks). marks: (sure, near), see ``subsets.mark_values``.
    """
    matrix, fixed = cells
    bits, lives, first_word = jobs
    table, masks = scratch
    sure, near = marks
    way = np.empty(len(plan.test_group), dtype=np.uint8)
    stack = np.empty((plan.slots + 1, 3), dtype=np.int64)
    kept, removed, number = leaves = _make_leaves(plan.slots)
    trees, leaf = edge.trees, edge.leaf
    for job in range(span[0], span[1]):
        _decide_tests(forest, plan, matrix[job], fixed[job : job + 1], way)
        part = table[: 1 << max(lives[job], WORD_BITS)]
        part[:] = 0
        part[: 1 << FIRST_BITS] = edge.start
        for t in range(len(trees)):
            count = _list_leaves(forest, plan, trees[t], way, bits[job], lives[job], stack, leaves)
            for i in range(count):
                _enter_leaf(leaf[number[i]], kept[i], removed[i], masks, part)
        first = first_word[job]
        last = first + words_of(lives[job])
        transform_and_mark(part, edge.low, edge.high, sure[first:last], near[first:last])


@helper
def _make_leaves(most: int) -> Any:
    """Return room for leaves: kept, removed, number."""
    return np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)


@helper
def _list_leaves(forest: Any, plan: Any, tree: int, way: Any, bits: Any, most: int, stack: Any, leaves: Any) -> int:
    """List the leaves of a tree that removals of at most ``most`` groups reach; return how many.

    stack: (node, kept, removed) still to be walked. leaves: (kept, removed, number), each filled from the first place.
    """
    kept_of, removed_of, number = leaves
    node_test, node_right = forest.node_test, forest.node_right
    test_group = plan.test_group
    stack[0, 0], stack[0, 1], stack[0, 2] = forest.tree_start[tree], 0, 0
    depth, count = 1, 0
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
                    if np.int64(count_bits(np.uint64(removed))) < most:
                        stack[depth, 0] = place + 1 if right else node_right[place]
                        stack[depth, 1], stack[depth, 2] = kept, removed | bit
                        depth += 1
                    kept |= bit
            place = node_right[place] if right else place + 1
            test = node_test[place]
        kept_of[count], removed_of[count], number[count] = kept, removed, -1 - test
        count += 1
    return count


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


# --- sets of few groups, and whether any set fails at all ----------------------------------------------------


@entry
def mark_few_states(
    forest: Any, plan: Any, edge: Any, cells: Any, jobs: Any, few: Any, table: Any, marks: Any, span: Any
) -> None:
    """Mark what `mark_states` marks, of the states that lack at most few.largest groups; few: ``subsets.FewGroups``."""
    matrix, fixed = cells
    bits, lives, first_word = jobs
    sure, near = marks
    way = np.empty(len(plan.test_group), dtype=np.uint8)
    stack = np.empty((plan.slots + 1, 3), dtype=np.int64)
    kept, removed, number = leaves = _make_leaves(plan.slots)
    chosen = np.empty((2, few.largest), dtype=np.int64)
    trees, leaf = edge.trees, edge.leaf
    for job in range(span[0], span[1]):
        _decide_tests(forest, plan, matrix[job], fixed[job : job + 1], way)
        table[: few.start[1 << max(lives[job] - LOW_BITS, 0)]] = 0
        table[0] = edge.start
        for t in range(len(trees)):
            count = _list_leaves(forest, plan, trees[t], way, bits[job], few.largest, stack, leaves)
            for i in range(count):
                enter_few(few, leaf[number[i]], kept[i], removed[i], chosen, table)
        first = first_word[job]
        last = first + words_of(lives[job])
        transform_and_mark_few(few, lives[job], edge.low, edge.high, table, sure[first:last], near[first:last])


@entry
def find_safe(forest: Any, plan: Any, edge: Any, cells: Any, jobs: Any, budget: Any, none: Any, span: Any) -> None:
    """Mark in ``none`` (m,) the rows of which no state has a value below edge.high.

    budget (m,): how many leaves are looked at before a row is left open. A part of the states is fixed by groups kept
    and groups removed. The least leaf of each tree that such a state can reach bounds all of them. Where that is below,
    the part is divided by a group about which these leaves disagree; where they agree, one state reaches all of them.
    """
    matrix, fixed = cells
    bits, lives, _ = jobs
    way = np.empty(len(plan.test_group), dtype=np.uint8)
    stack = np.empty((plan.slots + 1, 3), dtype=np.int64)
    kept, removed, number = leaves = _make_leaves(plan.slots)
    trees, leaf = edge.trees, edge.leaf
    room = 1024
    pair, value, tree = _make_parts(room)
    for job in range(span[0], span[1]):
        if 2 * room < budget[job]:
            room = budget[job] // 2
            pair, value, tree = _make_parts(room)
        _decide_tests(forest, plan, matrix[job], fixed[job : job + 1], way)
        size = 0
        for t in range(len(trees)):
            count = _list_leaves(forest, plan, trees[t], way, bits[job], lives[job], stack, leaves)
            if size + count > budget[job] // 2:
                size = -1
                break
            for i in range(count):
                pair[size] = np.uint64(kept[i] << 32 | removed[i])
                value[size], tree[size] = leaf[number[i]], t
                size += 1
        none[job] = size >= 0 and _stays_above(pair, value, tree, size, np.int64(edge.start), edge.high, budget[job])


@helper
def _make_parts(room: int) -> Any:
    return np.empty(room, dtype=np.uint64), np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int32)


@helper
def _stays_above(pair: Any, value: Any, tree: Any, size: int, start: int, high: int, budget: int) -> bool:
    """Return whether no state is below, as far as ``budget`` leaves tell.

    pair (kept above, removed in the lower 32 bits), value, tree: of ``size`` leaves, and room for more behind them.
    """
    parts = np.empty((32, 3), dtype=np.int64)  # first leaf, last leaf, value of the trees that are decided
    parts[0, 0], parts[0, 1], parts[0, 2] = 0, size, start
    n_parts = 1
    weight = np.zeros((2, 32), dtype=np.int64)
    while n_parts > 0:
        n_parts -= 1
        first, last, total = parts[n_parts, 0], parts[n_parts, 1], parts[n_parts, 2]
        budget -= last - first
        if budget < 0:
            return False
        weight[:] = 0
        i = first
        while i < last:
            best, most, this = i, value[i], tree[i]
            i += 1
            while i < last and tree[i] == this:
                if value[i] < value[best]:
                    best = i
                most = max(most, value[i])
                i += 1
            total += value[best]
            for side in range(2):
                left = (pair[best] >> np.uint64(32 * side)) & np.uint64(0xFFFFFFFF)
                while left:
                    weight[side, lowest_bit(left)] += most - value[best]
                    left &= left - np.uint64(1)
        if total >= high:
            continue
        group, strongest = 0, 0
        for g in range(32):
            if min(weight[0, g], weight[1, g]) > strongest:
                group, strongest = g, min(weight[0, g], weight[1, g])
        if strongest == 0:
            return False
        if 2 * last - first > len(pair):
            return False
        # Where the group is removed, no leaf that keeps it is reached, and the other way round. The part that more
        # trees want is looked at first; its leaves go behind the others.
        one = np.uint64(1) << np.uint64(group)
        other = one << np.uint64(32)
        if weight[0, group] > weight[1, group]:
            one, other = other, one
        total = parts[n_parts, 2]
        end, added = _keep_leaves(pair, value, tree, first, last, one, last)
        parts[n_parts + 1, 0], parts[n_parts + 1, 1], parts[n_parts + 1, 2] = last, end, total + added
        end, added = _keep_leaves(pair, value, tree, first, last, other, first)
        parts[n_parts, 0], parts[n_parts, 1], parts[n_parts, 2] = first, end, total + added
        n_parts += 2
    return True


@helper
def _keep_leaves(pair: Any, value: Any, tree: Any, first: int, last: int, without: Any, to: int) -> Any:
    """Write those of the leaves first..last that share no bit with ``without`` from ``to`` on; return (their end, sum).

    A tree with one leaf left is decided: its value is in the sum instead.
    """
    begin, total = to, np.int64(0)
    for i in range(first, last):
        if not pair[i] & without:
            pair[to], value[to], tree[to] = pair[i], value[i], tree[i]
            to += 1
        if (i + 1 == last or tree[i + 1] != tree[i]) and to > begin:
            if to == begin + 1:
                to = begin
                total += value[begin]
            begin = to
    return to, total


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


@entry
def list_reached(
    forest: Any, plan: Any, trees: Any, row: Any, fixed: Any, leaves: Any, decisions: Any, seen: Any
) -> Any:
    """List the leaves of some trees that any state of a row reaches, and what each needs to be kept or removed.

    leaves (n, 2): place in ``trees``, number of the leaf. decisions (m, 3): group, 1 where it has to be removed or 0
    where kept, leaf. seen (G,): marked where a test that some state reaches tells x from the baseline. Return (leaves,
    decisions) in all; what has no room is only counted.
    """
    node_test, node_right, tree_start = forest.node_test, forest.node_right, forest.tree_start
    test_group = plan.test_group
    way = np.empty(len(test_group), dtype=np.uint8)
    _decide_tests(forest, plan, row, fixed, way)
    waiting = np.empty((plan.slots + 1, 3), dtype=np.int64)  # node, decisions that stood there, group removed there
    decided = np.zeros(plan.tree_group.shape[0], dtype=np.int8)
    trail = np.empty(len(decided) + 1, dtype=np.int64)
    listed, filled = 0, 0
    for t in range(len(trees)):
        waiting[0, 0], waiting[0, 1], waiting[0, 2] = tree_start[trees[t]], 0, -1
        depth, taken = 1, 0
        while depth > 0:
            depth -= 1
            place, stood, lost = waiting[depth, 0], waiting[depth, 1], waiting[depth, 2]
            while taken > stood:
                taken -= 1
                decided[trail[taken]] = FREE
            if lost >= 0:
                decided[lost], trail[taken] = REMOVED, lost
                taken += 1
            test = node_test[place]
            while test >= 0:
                right = way[test] & RIGHT
                if way[test] & PARTS:
                    group = np.int64(test_group[test])
                    if decided[group] == REMOVED:
                        right ^= 1
                    elif decided[group] == FREE:
                        waiting[depth, 0] = place + 1 if right else node_right[place]
                        waiting[depth, 1], waiting[depth, 2] = taken, group
                        depth += 1
                        decided[group], trail[taken] = KEPT, group
                        taken += 1
                        seen[group] = True
                place = node_right[place] if right else place + 1
                test = node_test[place]
            if listed < len(leaves) and filled + taken <= len(decisions):
                for i in range(taken):
                    group = trail[i]
                    decisions[filled + i, 0], decisions[filled + i, 1] = group, decided[group] == REMOVED
                    decisions[filled + i, 2] = listed
                leaves[listed, 0], leaves[listed, 1] = t, -1 - test
            listed += 1
            filled += taken
        while taken > 0:
            taken -= 1
            decided[trail[taken]] = FREE
    return listed, filled


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
