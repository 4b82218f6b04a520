"""Pairs: one and two free fields, as what each field does alone and what two do beyond that.

Relative to x, with pieces a of field f and b of field g (``kernels.boxes``):

    E(a, b) = E(x) + A_f(a) + A_g(b) + I_fg(a, b)

A leaf is reached from stretches of pieces of each field that is asked about on its way; there it adds D = its value
less that of x's own leaf. Let V be the fields whose stretches do not hold x's own piece. A field that changes alone
reaches the leaves with V = {f}, two of them those with V within {f, g}, so that

    V = {f}       adds D to A_f on the leaf's stretches F of f, and -D to I_fg on F x all but G, for each other field g
                  that is asked about on the way, G being its stretches
    V = {f, g}    adds D to I_fg on F x G

and no other leaf counts. I_fg is constant between the ends of these stretches; there the least of A_f and of A_g are
independent of each other, so a grid of few cells gives the least E of a pair exactly.

V is found for 64 leaves at once: for each field one word says which of them x's own piece cannot reach, and three words
count up to three of these.
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
from fragility.engines.kernels.compiling import entry, helper, inlined, lowest_bit
from fragility.engines.kernels.decisions import ALL, NONE, ONE

FAR = np.int64(1) << 61
UNBOUNDED = -(np.int64(1) << 61)  # sums of E are far from overflow, but the losses of all boxes of a pair may not be


@entry
def list_entries(node_test: Any, node_right: Any, tree_start: Any) -> Any:
    """Return (word, test, leaves lost) of each inner node and word of its leaves, the tree of each word, and leaves.

    The leaves of a tree fill words of 64 in preorder. leaves lost (entries, 2): those that a row going left, or right,
    cannot reach. leaves: (words, 64) their numbers, -1 where a word has fewer.
    """
    n_words, n_entries = 0, 0
    last = np.empty(len(node_test), dtype=np.int64)  # leaves of the tree up to the end of a node
    before = np.empty(len(node_test), dtype=np.int64)
    for tree in range(len(tree_start) - 1):
        count = 0
        for node in range(tree_start[tree], tree_start[tree + 1]):
            before[node] = count
            count += node_test[node] < 0
        for node in range(tree_start[tree + 1] - 1, tree_start[tree] - 1, -1):
            last[node] = before[node] + 1 if node_test[node] < 0 else last[node_right[node]]
            if node_test[node] >= 0:
                n_entries += (last[node] - 1) // 64 - before[node] // 64 + 1
        n_words += (count + 63) // 64
    word_of, test_of = np.empty(n_entries, dtype=np.int64), np.empty(n_entries, dtype=np.int32)
    lost, tree_of = np.zeros((n_entries, 2), dtype=np.uint64), np.empty(n_words, dtype=np.int64)
    leaves = np.full((n_words, 64), -1, dtype=np.int32)
    entry_count, first = 0, 0
    for tree in range(len(tree_start) - 1):
        for node in range(tree_start[tree], tree_start[tree + 1]):
            test = node_test[node]
            if test < 0:
                leaves[first + before[node] // 64, before[node] % 64] = -1 - test
                tree_of[first + before[node] // 64] = tree
                continue
            middle = before[node_right[node]]
            for word in range(before[node] // 64, (last[node] - 1) // 64 + 1):
                word_of[entry_count], test_of[entry_count] = first + word, test
                for leaf in range(max(before[node], 64 * word), min(last[node], 64 * word + 64)):
                    lost[entry_count, 0 if leaf >= middle else 1] |= ONE << np.uint64(leaf - 64 * word)
                entry_count += 1
        first += (last[tree_start[tree]] + 63) // 64
    return word_of, test_of, lost, tree_of, leaves


@helper
def _find_leaves(leaves: Any, ways: Any, size: int, hits: Any) -> Any:
    """Return (hits (any, 4), how many): word, bit, and the items of the fields of V, the second -1 where V has one."""
    word_item, item_field, item_start = leaves.word_item, leaves.item_field, leaves.item_start
    entry_test, lost = leaves.entry_test, leaves.lost
    missed, partner = np.empty(leaves.most_items, dtype=np.uint64), np.full(64, -1, dtype=np.int32)
    full, count = leaves.full, 0
    for word in range(len(word_item) - 1):
        first, last, gone = word_item[word], word_item[word + 1], False
        once, twice, more = NONE, NONE, ~full[word]
        for item in range(first, last):
            out = NONE
            for e in range(item_start[item], item_start[item + 1]):
                out |= lost[e, ways[entry_test[e]]]
            missed[item - first] = out
            if item_field[item] < 0:  # of fields that stay
                once |= out
                twice |= out
                more |= out
            more |= twice & out
            twice |= once & out
            once |= out
            if (more if size > 1 else more | twice) == ALL:
                gone = True
                break
        if gone:
            continue
        single, double = once & ~twice & ~more, twice & ~more if size > 1 else NONE
        if count + 64 > len(hits):
            longer = np.empty((2 * len(hits), 4), dtype=np.int32)
            longer[:count] = hits[:count]
            hits = longer
        for item in range(first, last):
            if item_field[item] < 0:
                continue
            left = missed[item - first] & single
            while left:
                bit = lowest_bit(left)
                left &= left - ONE
                hits[count, 0], hits[count, 1], hits[count, 2], hits[count, 3] = word, bit, item, -1
                count += 1
            left = missed[item - first] & double
            while left:
                bit = lowest_bit(left)
                left &= left - ONE
                if partner[bit] < 0:
                    partner[bit] = item
                else:
                    hits[count, 0], hits[count, 1], hits[count, 2], hits[count, 3] = word, bit, partner[bit], item
                    partner[bit] = -1
                    count += 1
    return hits, count


@inlined
def _find_stretches(n_pieces: int, begin: int, end: int, bit: Any, tests: Any, stretches: Any, spare: Any) -> int:
    """Fill stretches (any, 2) with the pieces of a field from which a leaf is reached; return how many.

    begin, end: the entries of the item. tests: arrays of ``LeafWords`` and ``Pieces``, each by itself, because numba
    counts the references to all arrays of a named tuple whenever one of them is looked at.
    """
    entry_test, lost, first_way, turn_start, turns = tests
    count = 1
    stretches[0, 0], stretches[0, 1] = 0, n_pieces
    for e in range(begin, end):
        right = (lost[e, 0] >> np.uint64(bit)) & ONE
        if not right and not (lost[e, 1] >> np.uint64(bit)) & ONE:
            continue
        test = entry_test[e]
        wanted, way = np.int64(right), np.int64(first_way[test])
        from_piece, turn, last, made = 0, turn_start[test], turn_start[test + 1], 0
        while from_piece < n_pieces:  # the stretches on which the test decides as the leaf wants it
            to_piece = turns[turn] if turn < last else n_pieces
            if way == wanted:
                for i in range(count):
                    low, high = max(stretches[i, 0], from_piece), min(stretches[i, 1], to_piece)
                    if low < high:
                        spare[made, 0], spare[made, 1] = low, high
                        made += 1
            from_piece, way, turn = to_piece, 1 - way, turn + 1
        for i in range(made):
            stretches[i, 0], stretches[i, 1] = spare[i, 0], spare[i, 1]
        count = made
    return count


@inlined
def _unpack(asked: Any, leaves: Any) -> Any:
    """Return the arrays that `_find_stretches` takes as ``tests``, and those of items and words."""
    tests = (leaves.entry_test, leaves.lost, asked.first_way, asked.turn_start, asked.turns)
    return tests, (leaves.item_field, leaves.item_start, leaves.item_bound, leaves.word_item)


@helper
def _add_effects(
    asked: Any, leaves: Any, hits: Any, count: int, values: Any, size: int, effects: Any, least: Any, room: Any
) -> None:
    """Add up differences of A, and a bound on I from below for each pair.

    values: (count,) D of each hit; room: two arrays (any, 2) to work in.
    """
    tests, (item_field, item_start, item_bound, word_item) = _unpack(asked, leaves)
    n_pieces, piece_start, stretches, spare = asked.n_pieces, asked.piece_start, room[0], room[1]
    for h in range(count):
        value, word, bit, item = values[h], hits[h, 0], hits[h, 1], hits[h, 2]
        if value == 0:
            continue
        f = item_field[item]
        if hits[h, 3] >= 0:
            g = item_field[hits[h, 3]]
            if value < 0:
                least[f, g] = max(least[f, g] + value, UNBOUNDED)
            continue
        start = piece_start[f]
        n = _find_stretches(n_pieces[f], item_start[item], item_start[item + 1], bit, tests, stretches, spare)
        for i in range(n):
            effects[start + stretches[i, 0]] += value
            effects[start + stretches[i, 1]] -= value
        if size > 1 and value > 0:
            for other in range(word_item[word], word_item[word + 1]):
                g = item_field[other]
                if g >= 0 and other != item and (item_bound[other] >> np.uint64(bit)) & ONE:
                    u, v = min(f, g), max(f, g)
                    least[u, v] = max(least[u, v] - value, UNBOUNDED)


@inlined
def _keep_domain(domain_counts: Any, start: int, stretches: Any, count: int) -> int:
    """Keep the stretches with a value that the field may take; return how many."""
    kept = 0
    for i in range(count):
        low, high = stretches[i, 0], stretches[i, 1]
        if domain_counts[start + high] > domain_counts[start + low]:
            stretches[kept, 0], stretches[kept, 1] = low, high
            kept += 1
    return kept


@inlined
def _find_gaps(n_pieces: int, stretches: Any, count: int, gaps: Any) -> int:
    """Fill gaps with the pieces of a field between some stretches; return how many."""
    begin, made = 0, 0
    for i in range(count + 1):
        end = stretches[i, 0] if i < count else n_pieces
        if begin < end:
            gaps[made, 0], gaps[made, 1] = begin, end
            made += 1
        begin = stretches[i, 1] if i < count else n_pieces
    return made


@helper
def _list_boxes(
    asked: Any, leaves: Any, hits: Any, n_hits: int, gains: Any, wanted: Any, head: Any, store: Any, room: Any
) -> Any:
    """Return (boxes (any, 5), their values): I of the pairs that are wanted, as lists that start at ``head`` (F, F)."""
    boxes, values = store
    tests, (item_field, item_start, item_bound, word_item) = _unpack(asked, leaves)
    n_pieces, piece_start, domain_counts = asked.n_pieces, asked.piece_start, asked.domain_counts
    own, others, spare = room
    count = 0
    for h in range(n_hits):
        value, word, bit, item = gains[h], hits[h, 0], hits[h, 1], hits[h, 2]
        if value == 0:
            continue
        f, n_f, both = item_field[item], -1, hits[h, 3] >= 0
        first, last = (hits[h, 3], hits[h, 3] + 1) if both else (word_item[word], word_item[word + 1])
        for other in range(first, last):
            g = item_field[other]
            if g < 0 or other == item or not wanted[min(f, g), max(f, g)]:
                continue
            if not (item_bound[other] >> np.uint64(bit)) & ONE:
                continue
            if n_f < 0:
                n_f = _find_stretches(n_pieces[f], item_start[item], item_start[item + 1], bit, tests, own, spare)
                n_f = _keep_domain(domain_counts, piece_start[f], own, n_f)
            if n_f == 0:
                break
            n_g = _find_stretches(n_pieces[g], item_start[other], item_start[other + 1], bit, tests, others, spare)
            if not both:
                n_g = _find_gaps(n_pieces[g], others, n_g, spare)
                for i in range(n_g):
                    others[i, 0], others[i, 1] = spare[i, 0], spare[i, 1]
            n_g = _keep_domain(domain_counts, piece_start[g], others, n_g)
            if count + n_f * n_g > len(values):
                more_boxes = np.empty((2 * (len(values) + n_f * n_g), 5), dtype=np.int32)
                more_boxes[:count] = boxes[:count]
                boxes = more_boxes
                more_values = np.empty(2 * (len(values) + n_f * n_g), dtype=np.int64)
                more_values[:count] = values[:count]
                values = more_values
            at_f, at_g = (0, 2) if f < g else (2, 0)
            for i in range(n_f):
                for j in range(n_g):
                    boxes[count, at_f], boxes[count, at_f + 1] = own[i, 0], own[i, 1]
                    boxes[count, at_g], boxes[count, at_g + 1] = others[j, 0], others[j, 1]
                    boxes[count, 4], values[count] = head[min(f, g), max(f, g)], value if both else -value
                    head[min(f, g), max(f, g)] = count
                    count += 1
    return boxes, values


@helper
def _weigh_hits(leaves: Any, hits: Any, count: int, told: Any, leaf: Any, reached: Any, gains: Any) -> Any:
    """Return D of each hit; 0 in trees that do not tell two classes apart. told: (trees,)."""
    if count > len(gains):
        gains = np.empty(2 * count, dtype=np.int64)
    word_tree, numbers = leaves.word_tree, leaves.leaf
    for h in range(count):
        tree = word_tree[hits[h, 0]]
        gains[h] = leaf[numbers[hits[h, 0], hits[h, 1]]] - reached[tree] if told[tree] else 0
    return gains


@helper
def _make_room(widest: int) -> Any:
    return (
        np.empty((widest + 2, 2), np.int32),
        np.empty((widest + 2, 2), np.int32),
        np.empty((widest + 2, 2), np.int32),
    )


@helper
def _mark_trees(rivals: Any, n_trees: int) -> Any:
    """Return (R, trees) whether a tree tells the classes of a rival apart."""
    told = np.zeros((len(rivals.start), n_trees), dtype=np.uint8)
    for r in range(len(rivals.start)):
        for i in range(rivals.tree_start[r], rivals.tree_start[r + 1]):
            told[r, rivals.trees[i]] = 1
    return told


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
def search_pairs(walked: Any, asked: Any, leaves: Any, rivals: Any, size: int, rows: Any, span: Any, out: Any) -> None:
    """Decide all sets of one or two fields for the rows of a span; each field is a unit, and each own value a piece.

    leaves: ``trees.boxes.LeafWords``; the other arguments are those of ``boxes.search_size``. A pair whose grid is too
    large is OPEN.
    """
    cells, own_pieces = rows
    counts, witness, doubtful, by_unit = out
    n_fields, n_rivals = len(asked.n_pieces), len(rivals.start)
    n_effects = len(asked.domain_counts)
    ways, reached = np.empty(len(walked.test_column), np.uint8), np.empty(len(walked.tree_start) - 1, np.int64)
    effects, hits, gains = np.empty(n_effects, np.int64), np.empty((4096, 4), np.int32), np.empty(4096, np.int64)
    told, wanted = _mark_trees(rivals, len(reached)), np.empty((n_fields, n_fields), np.uint8)
    allowed, lowest = np.empty(n_effects, np.int64), np.empty(n_fields, np.int64)
    states = np.zeros((n_fields, n_fields), np.uint8)
    head, least = np.empty((n_fields, n_fields), np.int32), np.empty((n_fields, n_fields), np.int64)
    boxes, values = np.empty((16384, 5), np.int32), np.empty(16384, np.int64)
    widest = asked.n_pieces.max() + 1
    room = _make_room(widest)
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
        hits, count = _find_leaves(leaves, ways, size, hits)
        for r in range(n_rivals):
            trees, leaf, begin, low, high = rival_of(rivals, r)
            start = begin + reach_leaves(walked, trees, leaf, ways, reached)
            head[:] = -1
            least[:] = 0
            effects[:] = 0
            gains = _weigh_hits(leaves, hits, count, told[r], leaf, reached, gains)
            _add_effects(asked, leaves, hits, count, gains, size, effects, least, room)
            _sum_effects(asked, own, effects, allowed, lowest)
            if size > 1:
                for f in range(n_fields):
                    for g in range(f + 1, n_fields):
                        reaches = least[f, g] == UNBOUNDED or start + lowest[f] + lowest[g] + least[f, g] < high
                        wanted[f, g] = reaches and states[f, g] != FLIPS
                boxes, values = _list_boxes(asked, leaves, hits, count, gains, wanted, head, (boxes, values), room)
            for f in range(n_fields):
                if size == 1:
                    total = start + lowest[f]
                    own_state = HOLDS if total >= high else (FLIPS if total <= low else DOUBTFUL)
                    states[f, f] = _join(states[f, f], own_state)
                    continue
                for g in range(f + 1, n_fields):
                    if not wanted[f, g]:
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
def weigh_flips(walked: Any, asked: Any, leaves: Any, rivals: Any, points: Any, rows: Any, span: Any, out: Any) -> None:
    """Fill out (alone (n, F), together (n,)) with the chance that values drawn by weight flip a row.

    points: (first point of each field (F + 1,), the piece of each point, rising, and its weight); a field's weights sum
    to 1, or it has none. together: summed over pairs of fields with points.
    """
    cells, _ = rows
    alone, together = out
    point_start, point_piece, point_weight = points
    n_fields, n_rivals, n_effects = len(asked.n_pieces), len(rivals.start), len(asked.domain_counts)
    ways, reached = np.empty(len(walked.test_column), np.uint8), np.empty(len(walked.tree_start) - 1, np.int64)
    hits, gains, told = np.empty((4096, 4), np.int32), np.empty(4096, np.int64), _mark_trees(rivals, len(reached))
    wanted, room = np.ones((n_fields, n_fields), np.uint8), _make_room(asked.n_pieces.max() + 1)
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
        decide_row(walked, cells[row], asked.rounding, asked.zero_missing, ways)
        hits, count = _find_leaves(leaves, ways, 2, hits)
        for r in range(n_rivals):
            trees, leaf, begin, _, _ = rival_of(rivals, r)
            start[r] = begin + reach_leaves(walked, trees, leaf, ways, reached)
            head[r] = -1
            effects[r] = 0
            gains = _weigh_hits(leaves, hits, count, told[r], leaf, reached, gains)
            _add_effects(asked, leaves, hits, count, gains, 2, effects[r], least, room)
            own_boxes, own_values = _list_boxes(
                asked, leaves, hits, count, gains, wanted, head[r], (boxes[r], values[r]), room
            )
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
