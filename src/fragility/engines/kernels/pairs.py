"""Pairs: one and two free fields in one walk per tree, as what each field does alone and what two do beyond that.

Relative to x, with pieces a of field f and b of field g (``kernels.boxes``):

    E(a, b) = E(x) + A_f(a) + A_g(b) + I_fg(a, b)

A tree splits the grid of all fields into boxes, on each of which it adds D = its leaf less x's own. Let V be the fields
whose side of a box does not hold x's own piece. A field that changes alone reaches the boxes with V = {f}, two of them
those with V within {f, g}, so that

    V = {f}       adds D to A_f on the box's side F, and -D to I_fg where a is in F and b beyond the side G, for each
                  field g that the box bounds
    V = {f, g}    adds D to I_fg on F x G

and no other box counts. I_fg is constant between the sides of these boxes; there the least of A_f and of A_g are
independent of each other, so a grid of few cells gives the least E of a pair exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.boxes import (
    DOUBTFUL,
    FLIPS,
    HOLDS,
    MOST_CELLS,
    MOST_SETS,
    NOWHERE,
    OPEN,
    decide_row,
    has_value,
    reach_leaves,
    rival_of,
)
from fragility.engines.kernels.compiling import entry, helper

FAR = np.int64(1) << 61


@helper
def _walk_trees(
    walked: Any, asked: Any, trees: Any, leaf: Any, ways: Any, reached: Any, own: Any, size: int, sides: Any, out: Any
) -> Any:
    """Add up A and list the boxes of I; return them, which grow.

    sides: (F, 2) the sides of the box that a walk is in. out: effects (pieces of all fields and one more of each),
    least (F, F) a bound on I from below, head (F, F) the last box of a pair, boxes (any, 5), their values.
    """
    effects, least, head, boxes, values = out
    node_test, node_right, test_field = walked.node_test, walked.node_right, asked.test_field
    first_way, turn_start, turns = asked.first_way, asked.turn_start, asked.turns
    stack, trail = np.empty((256, 8), dtype=np.int32), np.empty((len(sides) + 256, 3), dtype=np.int32)
    count = 0
    for i in range(len(trees)):
        tree = trees[i]
        for f in range(len(sides)):
            sides[f, 0], sides[f, 1] = 0, asked.n_pieces[f]
        stack[0, 0], stack[0, 1], stack[0, 2] = walked.tree_start[tree], 0, -1
        stack[0, 5], stack[0, 6], stack[0, 7] = 0, -1, -1
        waiting, trailing = 1, 0
        while waiting:
            waiting -= 1
            node, back, field = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2]
            changed, u, v = stack[waiting, 5], stack[waiting, 6], stack[waiting, 7]
            while trailing > back:
                trailing -= 1
                sides[trail[trailing, 0], 0], sides[trail[trailing, 0], 1] = trail[trailing, 1], trail[trailing, 2]
            if field >= 0:
                trail[trailing, 0], trail[trailing, 1], trail[trailing, 2] = field, sides[field, 0], sides[field, 1]
                trailing += 1
                sides[field, 0], sides[field, 1] = stack[waiting, 3], stack[waiting, 4]
            test, lives = node_test[node], True
            while test >= 0:
                field = test_field[test]
                if field < 0:
                    node = node_right[node] if ways[test] else node + 1
                    test = node_test[node]
                    continue
                begin, end = sides[field, 0], sides[field, 1]
                way, turn, last = first_way[test], turn_start[test], turn_start[test + 1]
                while turn < last and turns[turn] <= begin:
                    way, turn = 1 - way, turn + 1
                if turn == last or turns[turn] >= end:
                    node = node_right[node] if way else node + 1
                    test = node_test[node]
                    continue
                # Parts of the side go different ways: one is gone on with, that of x's own value if it is among them.
                known, inside, kept, kept_end, kept_way = u == field or v == field, begin <= own[field] < end, -1, 0, 0
                while begin < end:
                    stop = turns[turn] if turn < last and turns[turn] < end else end
                    holds = begin <= own[field] < stop
                    may = holds or ((known or changed < size) and has_value(asked, own, field, begin, stop))
                    if holds or (may and not inside and kept < 0):
                        kept, kept_end, kept_way = begin, stop, way
                    elif may:
                        if waiting == len(stack):
                            more = np.empty((2 * len(stack), 8), dtype=np.int32)
                            more[: len(stack)] = stack
                            stack = more
                        stack[waiting, 0] = node_right[node] if way else node + 1
                        stack[waiting, 1], stack[waiting, 2] = trailing, field
                        stack[waiting, 3], stack[waiting, 4] = begin, stop
                        stack[waiting, 5], stack[waiting, 6], stack[waiting, 7] = changed, u, v
                        if not known:
                            stack[waiting, 5], stack[waiting, 6 + changed] = changed + 1, field
                        waiting += 1
                    begin, way, turn = stop, 1 - way, turn + 1
                if kept < 0:
                    lives = False
                    break
                if trailing == len(trail):
                    longer = np.empty((2 * len(trail), 3), dtype=np.int32)
                    longer[: len(trail)] = trail
                    trail = longer
                trail[trailing, 0], trail[trailing, 1], trail[trailing, 2] = field, sides[field, 0], sides[field, 1]
                trailing += 1
                sides[field, 0], sides[field, 1] = kept, kept_end
                node = node_right[node] if kept_way else node + 1
                test = node_test[node]
            if not lives or changed == 0:
                continue
            value = leaf[-1 - test] - reached[tree]
            if value == 0:
                continue
            if count + 2 * trailing + 1 > len(values):
                more_boxes = np.empty((2 * len(values) + 2 * trailing, 5), dtype=np.int32)
                more_boxes[:count] = boxes[:count]
                boxes = more_boxes
                more_values = np.empty(2 * len(values) + 2 * trailing, dtype=np.int64)
                more_values[:count] = values[:count]
                values = more_values
            if changed == 2:
                f, g = min(u, v), max(u, v)
                boxes[count, 0], boxes[count, 1], boxes[count, 2] = sides[f, 0], sides[f, 1], sides[g, 0]
                boxes[count, 3], boxes[count, 4], values[count] = sides[g, 1], head[f, g], value
                head[f, g] = count
                least[f, g] += min(value, 0)
                count += 1
                continue
            start = asked.piece_start[u]
            effects[start + sides[u, 0]] += value
            effects[start + sides[u, 1]] -= value
            if size == 1:
                continue
            for t in range(trailing):
                g = trail[t, 0]
                if g == u or trail[t, 1] != 0 or trail[t, 2] != asked.n_pieces[g]:
                    continue  # a field whose side was cut before is listed already
                for half in range(2):
                    side0 = 0 if half == 0 else sides[g, 1]
                    side1 = sides[g, 0] if half == 0 else asked.n_pieces[g]
                    if side0 >= side1:
                        continue
                    if u < g:
                        boxes[count, 0], boxes[count, 1] = sides[u, 0], sides[u, 1]
                        boxes[count, 2], boxes[count, 3] = side0, side1
                    else:
                        boxes[count, 0], boxes[count, 1] = side0, side1
                        boxes[count, 2], boxes[count, 3] = sides[u, 0], sides[u, 1]
                    a, b = min(u, g), max(u, g)
                    boxes[count, 4], values[count] = head[a, b], -value
                    head[a, b] = count
                    least[a, b] += min(-value, 0)
                    count += 1
    return boxes, values


@helper
def _sum_effects(asked: Any, own: Any, effects: Any, allowed: Any, lowest: Any) -> None:
    """Turn differences into A; allowed: A where the field may go, else FAR; lowest (F,): the least of them."""
    for f in range(len(asked.n_pieces)):
        start, run, least = asked.piece_start[f], np.int64(0), FAR
        for p in range(asked.n_pieces[f]):
            run += effects[start + p]
            effects[start + p] = run
            allowed[start + p] = run if has_value(asked, own, f, p, p + 1) else FAR
            least = min(least, allowed[start + p])
        lowest[f] = least


@helper
def _mark_edges(asked: Any, f: int, side: int, first: int, boxes: Any, marks: Any, edges: Any) -> int:
    """Fill edges with the sides of a pair's boxes along one of its fields, rising; return how many there are.

    marks: (pieces + 1,) -1; afterwards the number of each edge, which the caller undoes.
    """
    edges[0], edges[1], count = 0, asked.n_pieces[f], 2
    marks[0] = marks[asked.n_pieces[f]] = 0
    box = first
    while box >= 0:
        for end in range(2):
            edge = boxes[box, 2 * side + end]
            if marks[edge] < 0:
                marks[edge], edges[count] = 0, edge
                count += 1
        box = boxes[box, 4]
    edges[:count].sort()
    for i in range(count):
        marks[edges[i]] = i
    return count


@helper
def _least_between(asked: Any, f: int, allowed: Any, edges: Any, count: int, out: Any) -> None:
    """Fill out with the least effect of a field between neighbouring edges."""
    start = asked.piece_start[f]
    for i in range(count - 1):
        least = FAR
        for p in range(edges[i], edges[i + 1]):
            least = min(least, allowed[start + p])
        out[i] = least


@helper
def _decide_pair(
    asked: Any,
    f: int,
    g: int,
    start: int,
    edges_of: Any,
    head: Any,
    boxes: Any,
    values: Any,
    allowed: Any,
    scratch: Any,
) -> int:
    """Return the state of a pair of fields; edges_of: (low, high) of the rival. OPEN: its grid is too large."""
    low, high = edges_of
    marks, edges, between, grid = scratch
    m = _mark_edges(asked, f, 0, head[f, g], boxes, marks[0], edges[0])
    k = _mark_edges(asked, g, 1, head[f, g], boxes, marks[1], edges[1])
    state = HOLDS
    if m * k > MOST_CELLS:
        state = OPEN
    else:
        _least_between(asked, f, allowed, edges[0], m, between[0])
        _least_between(asked, g, allowed, edges[1], k, between[1])
        grid[: m * k] = 0
        box = head[f, g]
        while box >= 0:
            a, b = marks[0, boxes[box, 0]], marks[0, boxes[box, 1]]
            c, e = marks[1, boxes[box, 2]], marks[1, boxes[box, 3]]
            grid[a * k + c] += values[box]
            grid[b * k + c] -= values[box]
            grid[a * k + e] -= values[box]
            grid[b * k + e] += values[box]
            box = boxes[box, 4]
        least = NOWHERE
        for i in range(m - 1):
            run = np.int64(0)
            for j in range(k - 1):
                run += grid[i * k + j]
                grid[i * k + j] = run if i == 0 else run + grid[(i - 1) * k + j]
                if between[0, i] < FAR and between[1, j] < FAR:
                    least = min(least, between[0, i] + between[1, j] + grid[i * k + j])
            if start + least <= low:
                break
        if start + least < high:
            state = FLIPS if start + least <= low else DOUBTFUL
    for i in range(m):
        marks[0, edges[0, i]] = -1
    for i in range(k):
        marks[1, edges[1, i]] = -1
    return state


@helper
def _join(state: int, other: int) -> int:
    """Return the state of a set that one rival leaves in one state and another one in another."""
    if state == FLIPS or other == FLIPS:
        return FLIPS
    return max(state, other)


@entry
def search_pairs(walked: Any, asked: Any, rivals: Any, size: int, rows: Any, span: Any, out: Any) -> None:
    """Decide all sets of one or two fields for the rows of a span; each field is a unit, and each own value a piece.

    The arguments are those of ``boxes.search_size``. A pair whose grid is too large is OPEN.
    """
    cells, own_pieces = rows
    counts, witness, doubtful, by_unit = out
    n_fields, n_rivals = len(asked.n_pieces), len(rivals.start)
    n_effects = len(asked.domain_counts)
    ways, reached = np.empty(len(walked.test_column), np.uint8), np.empty(len(walked.tree_start) - 1, np.int64)
    sides, effects = np.empty((n_fields, 2), np.int32), np.empty(n_effects, np.int64)
    allowed, lowest = np.empty(n_effects, np.int64), np.empty(n_fields, np.int64)
    states = np.zeros((n_fields, n_fields), np.uint8)
    head, least = np.empty((n_fields, n_fields), np.int32), np.empty((n_fields, n_fields), np.int64)
    boxes, values = np.empty((16384, 5), np.int32), np.empty(16384, np.int64)
    widest = asked.n_pieces.max() + 1
    scratch = (
        np.full((2, widest), -1, np.int32),
        np.empty((2, widest + 2), np.int32),
        np.empty((2, widest + 2), np.int64),
        np.empty(MOST_CELLS if size > 1 else 0, np.int64),
    )
    for row in range(span[0], span[1]):
        own = own_pieces[row]
        decide_row(walked, cells[row], asked.rounding, asked.zero_missing, ways)
        states[:] = HOLDS
        for r in range(n_rivals):
            trees, leaf, begin, low, high = rival_of(rivals, r)
            start = begin + reach_leaves(walked, trees, leaf, ways, reached)
            head[:] = -1
            least[:] = 0
            effects[:] = 0
            boxes, values = _walk_trees(
                walked, asked, trees, leaf, ways, reached, own, size, sides, (effects, least, head, boxes, values)
            )
            _sum_effects(asked, own, effects, allowed, lowest)
            for f in range(n_fields):
                if size == 1:
                    total = start + lowest[f]
                    own_state = HOLDS if total >= high else (FLIPS if total <= low else DOUBTFUL)
                    states[f, f] = _join(states[f, f], own_state)
                    continue
                for g in range(f + 1, n_fields):
                    if states[f, g] == FLIPS or start + lowest[f] + lowest[g] + least[f, g] >= high:
                        continue
                    found = _decide_pair(asked, f, g, start, (low, high), head, boxes, values, allowed, scratch)
                    states[f, g] = _join(states[f, g], found)
        for f in range(n_fields):
            for g in range(f if size == 1 else f + 1, f + 1 if size == 1 else n_fields):
                state = states[f, g]
                if state == FLIPS and counts[row, FLIPS] == 0:
                    witness[row, 0], witness[row, size - 1] = f, g
                if state == DOUBTFUL:
                    if counts[row, DOUBTFUL] < MOST_SETS:
                        doubtful[row, counts[row, DOUBTFUL], 0] = f
                        doubtful[row, counts[row, DOUBTFUL], size - 1] = g
                    else:
                        state = OPEN
                counts[row, state] += 1
                if size == 1:
                    by_unit[row, f] = state


@entry
def weigh_flips(walked: Any, asked: Any, rivals: Any, points: Any, rows: Any, span: Any, out: Any) -> None:
    """Fill out (alone (n, F), together (n,)) with the chance that values drawn by weight flip a row.

    points: (first point of each field (F + 1,), the piece of each point, rising, and its weight); a field's weights sum
    to 1, or it has none. together: summed over pairs of fields with points.
    """
    cells, own_pieces = rows
    alone, together = out
    point_start, point_piece, point_weight = points
    n_fields, n_rivals, n_effects = len(asked.n_pieces), len(rivals.start), len(asked.domain_counts)
    ways, reached = np.empty(len(walked.test_column), np.uint8), np.empty(len(walked.tree_start) - 1, np.int64)
    sides = np.empty((n_fields, 2), np.int32)
    effects, start = np.empty((n_rivals, n_effects), np.int64), np.empty(n_rivals, np.int64)
    head, least = np.empty((n_rivals, n_fields, n_fields), np.int32), np.empty((n_fields, n_fields), np.int64)
    # the boxes of all rivals stand one after the other
    boxes, values = np.empty((n_rivals, 16384, 5), np.int32), np.empty((n_rivals, 16384), np.int64)
    most = 1
    for f in range(n_fields):
        most = max(most, point_start[f + 1] - point_start[f])
    grid, flips = np.empty((most + 1, most + 1), np.int64), np.empty((most, most), np.uint8)
    rank = np.empty((n_fields, asked.n_pieces.max() + 1), np.int32)  # points before a piece
    for f in range(n_fields):
        p = point_start[f]
        for piece in range(asked.n_pieces[f] + 1):
            while p < point_start[f + 1] and point_piece[p] < piece:
                p += 1
            rank[f, piece] = p - point_start[f]
    for row in range(span[0], span[1]):
        own = own_pieces[row]
        decide_row(walked, cells[row], asked.rounding, asked.zero_missing, ways)
        for r in range(n_rivals):
            trees, leaf, begin, _, _ = rival_of(rivals, r)
            start[r] = begin + reach_leaves(walked, trees, leaf, ways, reached)
            head[r] = -1
            effects[r] = 0
            own_boxes, own_values = _walk_trees(
                walked, asked, trees, leaf, ways, reached, own, 2, sides,
                (effects[r], least, head[r], boxes[r], values[r]),
            )  # fmt: skip
            if len(own_values) > values.shape[1]:
                larger, longer = (
                    np.empty((n_rivals, len(own_values), 5), np.int32),
                    np.empty((n_rivals, len(own_values)), np.int64),
                )
                for s in range(r):
                    larger[s, : values.shape[1]] = boxes[s]
                    longer[s, : values.shape[1]] = values[s]
                larger[r], longer[r] = own_boxes, own_values
                boxes, values = larger, longer
            for f in range(n_fields):
                run = np.int64(0)
                for p in range(asked.piece_start[f], asked.piece_start[f] + asked.n_pieces[f]):
                    run += effects[r, p]
                    effects[r, p] = run
        for f in range(n_fields):
            first_f, n_f = point_start[f], point_start[f + 1] - point_start[f]
            for i in range(n_f):
                for r in range(n_rivals):
                    if start[r] + effects[r, asked.piece_start[f] + point_piece[first_f + i]] < 0:
                        alone[row, f] += point_weight[first_f + i]
                        break
            for g in range(f + 1, n_fields):
                first_g, n_g = point_start[g], point_start[g + 1] - point_start[g]
                if n_f == 0 or n_g == 0:
                    continue
                flips[:n_f, :n_g] = 0
                for r in range(n_rivals):
                    grid[: n_f + 1, : n_g + 1] = 0
                    box = head[r, f, g]
                    while box >= 0:
                        a, b = rank[f, boxes[r, box, 0]], rank[f, boxes[r, box, 1]]
                        c, e = rank[g, boxes[r, box, 2]], rank[g, boxes[r, box, 3]]
                        grid[a, c] += values[r, box]
                        grid[b, c] -= values[r, box]
                        grid[a, e] -= values[r, box]
                        grid[b, e] += values[r, box]
                        box = boxes[r, box, 4]
                    for i in range(n_f):
                        at_f = start[r] + effects[r, asked.piece_start[f] + point_piece[first_f + i]]
                        run = np.int64(0)
                        for j in range(n_g):
                            run += grid[i, j]
                            grid[i, j] = run if i == 0 else run + grid[i - 1, j]
                            at_g = effects[r, asked.piece_start[g] + point_piece[first_g + j]]
                            if at_f + at_g + grid[i, j] < 0:
                                flips[i, j] = 1
                for i in range(n_f):
                    for j in range(n_g):
                        if flips[i, j]:
                            together[row] += point_weight[first_f + i] * point_weight[first_g + j]
