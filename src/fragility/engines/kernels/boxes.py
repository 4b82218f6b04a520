"""Boxes: whether some values of a set of fields flip a row, while all others stay.

The values of a field are cut into pieces on which every test decides alike; a set of fields is then a grid of cells, on
each of which the trees' sum is one number. A walk through a tree that follows both ways at the tests of free fields
reaches each leaf on boxes of that grid. With E = start + the sum over trees of the leaf reached (whole numbers, so that
sums are exact; ``lattice.trees``), a cell flips if E <= low and does not if E >= high; in between the model is asked.

    one or two fields     a difference array over the boxes' edges; its running sums are E of every cell
    more                  branch and bound: the sum over trees of the least leaf that meets a region bounds E from below

Before a set is looked at, a bound that is read from one walk per tree must let it reach the edge: in tree t let m_V be
by how much a leaf lies below x's own that needs exactly the units V to change. Units S gain at most

    sum_t max over V in S of m_V
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper
from fragility.engines.kernels.decisions import goes_right, prepare_cell

BOX_BLOCK = 4  # rows of a span
HOLDS, DOUBTFUL, FLIPS, OPEN = 0, 1, 2, 3
MOST_CELLS = 1 << 20  # of a grid; a larger one is searched by branch and bound
MOST_DOUBTS = 64  # cells of a set that are left to the model
MOST_SETS = 64  # sets of a row that are doubtful
NOWHERE = np.int64(1) << 62


# --- what a set can gain at most ----------------------------------------------------------------------------


@helper
def decide_row(walked: Any, cells: Any, rounding: Any, zero_missing: bool, ways: Any) -> None:
    """Fill ways (T,) with 1 where the row's cells (d,) go right."""
    column, threshold, flags = walked.test_column, walked.test_threshold, walked.test_flags
    set_start, set_words = walked.set_start, walked.set_words
    for test in range(len(ways)):
        v = prepare_cell(cells[column[test]], rounding[column[test]], zero_missing)
        ways[test] = goes_right(v, threshold[test], flags[test], set_start, set_words)


@helper
def reach_leaves(walked: Any, trees: Any, leaf: Any, ways: Any, reached: Any) -> Any:
    """Fill reached (trees,) with the value of x's own leaf of each tree; return their sum."""
    node_test, node_right, total = walked.node_test, walked.node_right, np.int64(0)
    for i in range(len(trees)):
        node = walked.tree_start[trees[i]]
        test = node_test[node]
        while test >= 0:
            node = node_right[node] if ways[test] else node + 1
            test = node_test[node]
        reached[trees[i]] = leaf[-1 - test]
        total += reached[trees[i]]
    return total


@helper
def _triple(u: int, v: int, w: int) -> int:
    """Return the number of a triple u < v < w."""
    return (w * (w - 1) * (w - 2)) // 6 + (v * (v - 1)) // 2 + u


@helper
def _bound_gains(
    walked: Any, asked: Any, trees: Any, leaf: Any, ways: Any, reached: Any, size: int, gains: Any, scratch: Any
) -> None:
    """Fill gains (single (U,), pair (U, U), triple): what units gain at most, alone and beyond their subsets.

    pair[u, w]: sum over trees of  max(m_u, m_w, m_uw) - m_u - m_w;  triple: of [m_uvw - the largest below it]_+.
    scratch: arrays like ``gains`` of zeros, which they are again when this ends.
    """
    single, pair, triple = gains
    one, two, three = scratch
    node_test, node_right, test_unit = walked.node_test, walked.node_right, asked.test_unit
    single[:] = 0
    pair[:] = 0
    triple[:] = 0
    stack = np.empty((asked.n_waiting, 5), dtype=np.int32)
    ones, twos = np.empty(len(single), dtype=np.int32), np.empty((asked.n_waiting, 2), dtype=np.int32)
    threes = np.empty((asked.n_waiting, 3), dtype=np.int32)
    for i in range(len(trees)):
        own, n_one, n_two, n_three = reached[trees[i]], 0, 0, 0
        stack[0, 0], stack[0, 1], waiting = walked.tree_start[trees[i]], 0, 1
        while waiting:
            waiting -= 1
            node, changed = stack[waiting, 0], stack[waiting, 1]
            u, v, w = stack[waiting, 2], stack[waiting, 3], stack[waiting, 4]
            test = node_test[node]
            while test >= 0:
                unit, way = test_unit[test], ways[test]
                if unit >= 0 and (asked.can_left[test] if way else asked.can_right[test]):
                    known = (changed > 0 and u == unit) or (changed > 1 and v == unit) or (changed > 2 and w == unit)
                    if known or changed < size:
                        stack[waiting, 0] = node + 1 if way else node_right[node]
                        stack[waiting, 1] = changed if known else changed + 1
                        a, b, c = u, v, w
                        if not known:  # kept sorted
                            if changed == 0:
                                a = unit
                            elif changed == 1:
                                a, b = min(u, unit), max(u, unit)
                            elif unit > v:
                                c = unit
                            elif unit > u:
                                b, c = unit, v
                            else:
                                a, b, c = unit, u, v
                        stack[waiting, 2], stack[waiting, 3], stack[waiting, 4] = a, b, c
                        waiting += 1
                node = node_right[node] if way else node + 1
                test = node_test[node]
            gain = own - leaf[-1 - test]
            if changed == 0 or gain <= 0:
                continue
            if changed == 1:
                if one[u] == 0:
                    ones[n_one] = u
                    n_one += 1
                one[u] = max(one[u], gain)
            elif changed == 2:
                if two[u, v] == 0:
                    twos[n_two, 0], twos[n_two, 1] = u, v
                    n_two += 1
                two[u, v] = max(two[u, v], gain)
            elif len(three):
                number = _triple(u, v, w)
                if three[number] == 0:
                    threes[n_three, 0], threes[n_three, 1], threes[n_three, 2] = u, v, w
                    n_three += 1
                three[number] = max(three[number], gain)
        for k in range(n_three):
            u, v, w = threes[k, 0], threes[k, 1], threes[k, 2]
            below = max(max(one[u], one[v], one[w]), max(two[u, v], two[u, w], two[v, w]))
            triple[_triple(u, v, w)] += max(three[_triple(u, v, w)] - below, 0)
            three[_triple(u, v, w)] = 0
        if size > 1:
            for k in range(n_one):
                for j in range(k):
                    u, v = min(ones[k], ones[j]), max(ones[k], ones[j])
                    pair[u, v] -= min(one[u], one[v])
        for k in range(n_two):
            u, v = twos[k, 0], twos[k, 1]
            pair[u, v] += max(two[u, v] - max(one[u], one[v]), 0)
            two[u, v] = 0
        for k in range(n_one):
            single[ones[k]] += one[ones[k]]
            one[ones[k]] = 0


@helper
def _most_gain(gains: Any, chosen: Any, size: int) -> Any:
    """Return what a set of up to three units, rising, gains at most."""
    single, pair, triple = gains
    u = chosen[0]
    if size == 1:
        return single[u]
    v = chosen[1]
    both = single[u] + single[v] + pair[u, v]
    if size == 2:
        return both
    w = chosen[2]
    if len(triple) == 0:
        return NOWHERE
    # Beyond the best of two, the third unit adds its own gain, and what it gains together with each and with both.
    beyond_u = pair[u, v] + single[u] + single[v] + single[w] + _extra(gains, u, w) + _extra(gains, v, w)
    beyond_v = pair[u, w] + single[u] + single[w] + single[v] + _extra(gains, u, v) + _extra(gains, v, w)
    beyond_w = pair[v, w] + single[v] + single[w] + single[u] + _extra(gains, u, v) + _extra(gains, u, w)
    return min(beyond_u, beyond_v, beyond_w) + triple[_triple(u, v, w)]


@helper
def _extra(gains: Any, u: int, v: int) -> int:
    """Return a bound on what two units gain together beyond the better of them: sum_t [m_uv - max(m_u, m_v)]_+.

    pair = that - sum_t min(m_u, m_v), and sum_t min(m_u, m_v) <= min of the sums.
    """
    return gains[1][u, v] + min(gains[0][u], gains[0][v])


# --- the boxes of a set -------------------------------------------------------------------------------------


@helper
def has_value(asked: Any, own: Any, field: int, begin: int, end: int) -> bool:
    """Return whether a value that the field may take lies in the pieces begin..end."""
    if begin <= own[field] < end:
        return True
    counts, start = asked.domain_counts, asked.piece_start[field]
    return counts[start + end] > counts[start + begin]


@helper
def _collect_boxes(
    walked: Any,
    asked: Any,
    trees: Any,
    leaf: Any,
    ways: Any,
    reached: Any,
    own: Any,
    fields: Any,
    slots: Any,
    store: Any,
) -> Any:
    """Return (boxes, their values, first box of each tree, how many trees, boxes, the sum of all other trees).

    fields: (k,) that are free; slots: (F,) their place among them, -1 for others. store: arrays to fill, which grow.
    """
    node_test, node_right, test_field = walked.node_test, walked.node_right, asked.test_field
    first_way, turn_start, turns = asked.first_way, asked.turn_start, asked.turns
    boxes, values, first, stack = store
    k, count, n_trees, rest = len(fields), 0, 0, np.int64(0)
    here = np.empty(2 * k, dtype=np.int32)
    for i in range(len(trees)):
        tree, asks = trees[i], False
        for s in range(k):
            if asked.field_trees[fields[s], tree]:
                asks = True
                break
        if not asks:
            rest += reached[tree]
            continue
        first[n_trees] = count
        n_trees += 1
        stack[0, 0], waiting = walked.tree_start[tree], 1
        for s in range(k):
            stack[0, 1 + 2 * s], stack[0, 2 + 2 * s] = 0, asked.n_pieces[fields[s]]
        while waiting:
            waiting -= 1
            node, lives = stack[waiting, 0], True
            for j in range(2 * k):
                here[j] = stack[waiting, 1 + j]
            test = node_test[node]
            while test >= 0:
                field = test_field[test]
                slot = slots[field] if field >= 0 else -1
                if slot < 0:
                    right = ways[test] != 0
                else:
                    begin, end = here[2 * slot], here[2 * slot + 1]
                    way, turn, last = first_way[test], turn_start[test], turn_start[test + 1]
                    while turn < last and turns[turn] <= begin:
                        way, turn = 1 - way, turn + 1
                    while turn < last and turns[turn] < end:
                        if has_value(asked, own, field, begin, turns[turn]):
                            if waiting == len(stack):
                                larger = np.empty((2 * len(stack), stack.shape[1]), dtype=np.int32)
                                larger[: len(stack)] = stack
                                stack = larger
                            stack[waiting, 0] = node_right[node] if way else node + 1
                            for j in range(2 * k):
                                stack[waiting, 1 + j] = here[j]
                            stack[waiting, 1 + 2 * slot], stack[waiting, 2 + 2 * slot] = begin, turns[turn]
                            waiting += 1
                        begin, way, turn = turns[turn], 1 - way, turn + 1
                    here[2 * slot] = begin
                    right = way != 0
                    if not has_value(asked, own, field, begin, end):
                        lives = False
                        break
                node = node_right[node] if right else node + 1
                test = node_test[node]
            if not lives:
                continue
            if count == len(values):
                more = np.empty((2 * len(values), boxes.shape[1]), dtype=np.int32)
                more[:count] = boxes
                boxes = more
                longer = np.empty(2 * len(values), dtype=np.int64)
                longer[:count] = values
                values = longer
            for j in range(2 * k):
                boxes[count, j] = here[j]
            values[count] = leaf[-1 - test]
            count += 1
    first[n_trees] = count
    return boxes, values, first, stack, n_trees, count, rest


# --- every cell of a line or a grid -------------------------------------------------------------------------


@helper
def _note(found: Any, state: int, at: Any, k: int, total: int) -> None:
    """Enter a cell that flips or is doubtful; found: (count of doubts, cells (MOST_DOUBTS, 2k), least E)."""
    numbers, cells = found
    if state == FLIPS:
        if total < numbers[1]:
            numbers[1] = total
            for j in range(2 * k):
                cells[0, j] = at[j]
    else:
        if numbers[1] == NOWHERE and numbers[0] < len(cells):
            for j in range(2 * k):
                cells[numbers[0], j] = at[j]
        numbers[0] += 1


@helper
def _scan_grid(
    asked: Any,
    own: Any,
    fields: Any,
    boxes: Any,
    values: Any,
    count: int,
    begin: int,
    edges: Any,
    best: bool,
    found: Any,
) -> int:
    """Return whether a cell of one or two fields flips; OPEN if there are more cells than a grid may have."""
    k, low, high = len(fields), edges[0], edges[1]
    n0 = asked.n_pieces[fields[0]]
    n1 = asked.n_pieces[fields[1]] if k == 2 else 1
    mark0, mark1 = np.zeros(n0 + 1, dtype=np.int32), np.zeros(n1 + 1, dtype=np.int32)
    mark0[0] = mark0[n0] = mark1[0] = mark1[n1] = 1
    for b in range(count):
        mark0[boxes[b, 0]] = mark0[boxes[b, 1]] = 1
        if k == 2:
            mark1[boxes[b, 2]] = mark1[boxes[b, 3]] = 1
    edge0, edge1 = np.empty(n0 + 1, dtype=np.int32), np.empty(n1 + 1, dtype=np.int32)
    m0 = m1 = 0
    for p in range(n0 + 1):
        if mark0[p]:
            edge0[m0], mark0[p] = p, m0
            m0 += 1
    for p in range(n1 + 1):
        if mark1[p]:
            edge1[m1], mark1[p] = p, m1
            m1 += 1
    if m0 * m1 > MOST_CELLS:
        return OPEN
    grid = np.zeros((m0, m1), dtype=np.int64)
    for b in range(count):
        a, e, v = mark0[boxes[b, 0]], mark0[boxes[b, 1]], values[b]
        c = mark1[boxes[b, 2]] if k == 2 else 0
        f = mark1[boxes[b, 3]] if k == 2 else m1 - 1
        grid[a, c] += v
        grid[e, c] -= v
        grid[a, f] -= v
        grid[e, f] += v
    free1 = np.ones(m1, dtype=np.uint8)
    if k == 2:
        for j in range(m1 - 1):
            free1[j] = has_value(asked, own, fields[1], edge1[j], edge1[j + 1])
    at = np.empty(4, dtype=np.int32)
    for i in range(m0 - 1):
        run = np.int64(0)
        for j in range(m1 - 1):
            run += grid[i, j]
            grid[i, j] = run if i == 0 else run + grid[i - 1, j]
        if not has_value(asked, own, fields[0], edge0[i], edge0[i + 1]):
            continue
        for j in range(m1 - 1):
            total = begin + grid[i, j]
            if total < high and free1[j]:
                at[0], at[1], at[2], at[3] = edge0[i], edge0[i + 1], edge1[j], edge1[j + 1]
                _note(found, FLIPS if total <= low else DOUBTFUL, at, k, total)
                if total <= low and not best:
                    return FLIPS
    if found[0][1] < NOWHERE:
        return FLIPS
    return HOLDS if found[0][0] == 0 else (DOUBTFUL if found[0][0] <= len(found[1]) else OPEN)


# --- branch and bound ---------------------------------------------------------------------------------------


@helper
def _shrink(asked: Any, own: Any, fields: Any, region: Any) -> bool:
    """Return whether a region holds a cell that the fields may take; its sides are drawn in to such cells."""
    for s in range(len(fields)):
        begin, end = region[2 * s], region[2 * s + 1]
        if not has_value(asked, own, fields[s], begin, end):
            return False
        while not has_value(asked, own, fields[s], begin, begin + 1):
            begin += 1
        while not has_value(asked, own, fields[s], end - 1, end):
            end -= 1
        region[2 * s], region[2 * s + 1] = begin, end
    return True


@helper
def _search_regions(
    asked: Any,
    own: Any,
    fields: Any,
    boxes: Any,
    values: Any,
    first: Any,
    n_trees: int,
    count: int,
    begin: Any,
    edges: Any,
    budget: int,
    found: Any,
) -> int:
    """Return whether a cell of several fields flips; OPEN where the budget of boxes looked at ends first.

    A region keeps the boxes that meet it, tree by tree. It is cut at an edge of those boxes until each tree has one.
    """
    k, low, high = len(fields), edges[0], edges[1]
    kept = np.empty(4 * count + 64, dtype=np.int32)  # numbers of boxes of the regions that wait, one after the other
    tree_of = np.empty(count, dtype=np.int32)
    for t in range(n_trees):
        for b in range(first[t], first[t + 1]):
            tree_of[b] = t
    regions = np.empty((64, 2 * k + 2), dtype=np.int32)  # sides, then where its boxes start and how many there are
    for s in range(k):
        regions[0, 2 * s], regions[0, 2 * s + 1] = 0, asked.n_pieces[fields[s]]
    for b in range(count):
        kept[b] = b
    regions[0, 2 * k], regions[0, 2 * k + 1] = 0, count
    waiting, region, spent = 1, np.empty(2 * k, dtype=np.int32), 0
    inner, mean = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.float64)
    while waiting:
        waiting -= 1
        start, own_count = regions[waiting, 2 * k], regions[waiting, 2 * k + 1]
        for j in range(2 * k):
            region[j] = regions[waiting, j]
        if not _shrink(asked, own, fields, region):
            continue
        spent += own_count
        if spent > budget:
            return OPEN
        # the boxes that still meet the region, the least of each tree, and where edges lie within
        bound, last_tree, least, left, several = begin, np.int32(-1), np.int64(0), 0, False
        inner[:] = 0
        mean[:] = 0.0
        for i in range(start, start + own_count):
            b, meets = kept[i], True
            for s in range(k):
                if boxes[b, 2 * s] >= region[2 * s + 1] or boxes[b, 2 * s + 1] <= region[2 * s]:
                    meets = False
                    break
            if not meets:
                continue
            kept[start + left] = b
            left += 1
            if tree_of[b] != last_tree:
                bound += least
                last_tree, least = tree_of[b], values[b]
            else:
                least, several = min(least, values[b]), True
            for s in range(k):
                for side in range(2):
                    edge = boxes[b, 2 * s + side]
                    if region[2 * s] < edge < region[2 * s + 1]:
                        inner[s] += 1
                        mean[s] += edge
        bound += least
        if bound >= high:
            continue
        if not several:
            _note(found, FLIPS if bound <= low else DOUBTFUL, region, k, bound)
            if bound <= low:
                return FLIPS
            continue
        axis = 0
        for s in range(1, k):
            if inner[s] > inner[axis]:
                axis = s
        middle, cut = mean[axis] / inner[axis], -1
        for i in range(start, start + left):
            for side in range(2):
                edge = boxes[kept[i], 2 * axis + side]
                nearer = cut < 0 or abs(edge - middle) < abs(cut - middle)
                if nearer and region[2 * axis] < edge < region[2 * axis + 1]:
                    cut = edge
        if waiting + 2 > len(regions):
            more = np.empty((2 * len(regions), regions.shape[1]), dtype=np.int32)
            more[: len(regions)] = regions
            regions = more
        if start + 2 * left > len(kept):
            longer = np.empty(2 * len(kept) + 2 * left, dtype=np.int32)
            longer[: len(kept)] = kept
            kept = longer
        for i in range(left):
            kept[start + left + i] = kept[start + i]
        for half in range(2):
            for j in range(2 * k):
                regions[waiting, j] = region[j]
            regions[waiting, 2 * axis + 1 - half] = cut
            regions[waiting, 2 * k], regions[waiting, 2 * k + 1] = start + half * left, left
            waiting += 1
    return HOLDS if found[0][0] == 0 else (DOUBTFUL if found[0][0] <= len(found[1]) else OPEN)


@helper
def _decide_set(
    walked: Any,
    asked: Any,
    edge: Any,
    ways: Any,
    reached: Any,
    own: Any,
    fields: Any,
    slots: Any,
    store: Any,
    budget: int,
    best: bool,
    found: Any,
) -> Any:
    """Return (whether some values of the free fields let one rival flip the row, the arrays to go on with).

    edge: (trees, leaf, start, low, high) of the rival. best: look for the cell with the least E, not for the first.
    """
    trees, leaf, start, low, high = edge
    for s in range(len(fields)):
        slots[fields[s]] = s
    boxes, values, first, stack, n_trees, count, rest = _collect_boxes(
        walked, asked, trees, leaf, ways, reached, own, fields, slots, store
    )
    for s in range(len(fields)):
        slots[fields[s]] = -1
    found[0][0], found[0][1] = 0, NOWHERE
    state = OPEN
    if len(fields) <= 2:
        state = _scan_grid(asked, own, fields, boxes, values, count, start + rest, (low, high), best, found)
    if state == OPEN and found[0][0] == 0:
        state = _search_regions(
            asked, own, fields, boxes, values, first, n_trees, count, start + rest, (low, high), budget, found
        )
    return state, (boxes, values, first, stack)


@helper
def _make_store(asked: Any, n_trees: int, k: int) -> Any:
    """Return arrays for boxes of up to k fields."""
    return (
        np.empty((4096, 2 * k), dtype=np.int32),
        np.empty(4096, dtype=np.int64),
        np.empty(n_trees + 1, dtype=np.int64),
        np.empty((256, 2 * k + 1), dtype=np.int32),
    )


@helper
def rival_of(rivals: Any, r: int) -> Any:
    trees = rivals.trees[rivals.tree_start[r] : rivals.tree_start[r + 1]]
    return trees, rivals.leaf[r], rivals.start[r], rivals.low[r], rivals.high[r]


# --- what is asked for --------------------------------------------------------------------------------------


@entry
def search_size(walked: Any, asked: Any, rivals: Any, size: int, rows: Any, budget: int, span: Any, out: Any) -> None:
    """Decide all sets of ``size`` units for the rows of a span.

    walked: ``trees.boxes.Walked``; asked: ``trees.boxes.Pieces``; rivals: ``trees.boxes.Rivals``; rows: (cells (n, d),
    own pieces (n, F)).
    out: counts (n, 4) of the sets by state, first set that flips (n, size), doubtful sets (n, MOST_SETS, size), and for
    size 1 the state of each unit (n, U).
    """
    cells, own_pieces = rows
    counts, witness, doubtful, by_unit = out
    n_units, n_rivals = by_unit.shape[1], len(rivals.start)
    n_triples = _triple(n_units - 3, n_units - 2, n_units - 1) + 1 if 3 <= n_units <= asked.most_triples else 0
    if size < 3:
        n_triples = 0
    n_pairs = n_units if size > 1 else 1
    ways, slots = np.empty(len(walked.test_column), dtype=np.uint8), np.full(len(asked.n_pieces), -1, dtype=np.int32)
    reached = np.empty((n_rivals, len(walked.tree_start) - 1), dtype=np.int64)
    single = np.empty((n_rivals, n_units), dtype=np.int64)
    pair = np.empty((n_rivals, n_pairs, n_pairs), dtype=np.int64)
    triple = np.empty((n_rivals, n_triples), dtype=np.int64)
    scratch = (
        np.zeros(n_units, dtype=np.int64),
        np.zeros((n_pairs, n_pairs), dtype=np.int64),
        np.zeros(n_triples, dtype=np.int64),
    )
    start = np.empty(n_rivals, dtype=np.int64)
    widest = size * asked.widest_unit
    store = _make_store(asked, len(walked.tree_start), widest)
    found = (np.zeros(2, dtype=np.int64), np.empty((MOST_DOUBTS, 2 * widest), dtype=np.int32))
    fields, chosen = np.empty(widest, dtype=np.int32), np.empty(size, dtype=np.int32)
    for row in range(span[0], span[1]):
        own = own_pieces[row]
        decide_row(walked, cells[row], asked.rounding, asked.zero_missing, ways)
        for r in range(n_rivals):
            trees, leaf, begin, _, _ = rival_of(rivals, r)
            start[r] = begin + reach_leaves(walked, trees, leaf, ways, reached[r])
            gains = (single[r], pair[r], triple[r])
            _bound_gains(walked, asked, trees, leaf, ways, reached[r], size, gains, scratch)
        for s in range(size):
            chosen[s] = s
        going = size <= n_units
        while going:
            state = HOLDS
            n_fields = 0
            for s in range(size):
                for i in range(asked.unit_start[chosen[s]], asked.unit_start[chosen[s] + 1]):
                    fields[n_fields] = asked.unit_field[i]
                    n_fields += 1
            for r in range(n_rivals):
                if n_fields == 0 or state == FLIPS:
                    break
                edge = rival_of(rivals, r)
                if start[r] - _most_gain((single[r], pair[r], triple[r]), chosen, size) >= edge[4]:
                    continue
                state_r, store = _decide_set(
                    walked, asked, edge, ways, reached[r], own, fields[:n_fields], slots, store, budget, False, found
                )
                if state_r in (FLIPS, OPEN) or state == HOLDS:
                    state = state_r
            if state == FLIPS and counts[row, FLIPS] == 0:
                for s in range(size):
                    witness[row, s] = chosen[s]
            if state == DOUBTFUL:
                if counts[row, DOUBTFUL] < MOST_SETS:
                    for s in range(size):
                        doubtful[row, counts[row, DOUBTFUL], s] = chosen[s]
                else:
                    state = OPEN
            counts[row, state] += 1
            if size == 1:
                by_unit[row, chosen[0]] = state
            s = size - 1  # the next set in lexicographic order
            while s >= 0 and chosen[s] == n_units - size + s:
                s -= 1
            going = s >= 0
            if going:
                chosen[s] += 1
                for j in range(s + 1, size):
                    chosen[j] = chosen[j - 1] + 1


@entry
def decide_sets(walked: Any, asked: Any, rivals: Any, rows: Any, jobs: Any, budget: int, span: Any, out: Any) -> None:
    """Decide one set of fields for each job of a span; jobs: (row (J,), first field (J + 1,), fields).

    out: states (J, R), how many doubtful cells (J, R), and the cells (J, R, MOST_DOUBTS, 2 most fields), that with the
    least E first where the set flips.
    """
    cells, own_pieces = rows
    job_row, job_start, job_field = jobs
    states, doubts, places = out
    ways, slots = np.empty(len(walked.test_column), dtype=np.uint8), np.full(len(asked.n_pieces), -1, dtype=np.int32)
    reached = np.empty(len(walked.tree_start) - 1, dtype=np.int64)
    widest = places.shape[3] // 2
    store = _make_store(asked, len(walked.tree_start), widest)
    numbers = np.zeros(2, dtype=np.int64)
    for job in range(span[0], span[1]):
        row, fields = job_row[job], job_field[job_start[job] : job_start[job + 1]]
        decide_row(walked, cells[row], asked.rounding, asked.zero_missing, ways)
        for r in range(len(rivals.start)):
            edge = rival_of(rivals, r)
            reach_leaves(walked, edge[0], edge[1], ways, reached)
            state, store = _decide_set(
                walked,
                asked,
                edge,
                ways,
                reached,
                own_pieces[row],
                fields,
                slots,
                store,
                budget,
                True,
                (numbers, places[job, r]),
            )
            states[job, r], doubts[job, r] = state, numbers[0]
