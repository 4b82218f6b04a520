"""Compiled kernels of the tree engine: flat arrays in, arrays out.

Two formulations of the same question, "which leaf does each state of each row reach?":

Bit planes (``score_states``, for trees of up to 256 leaves and for oblivious trees). 512 rows are one vector of 8
words. For each distinct test one bit a row says whether the row goes right. A tree is a network of ANDs over those bits: the
rows that reach a node, split into those that go left and right. The numbers of the leaves are read back as bit planes,
transposed to one byte a row, and look up the leaf values. A state differs from x only in the bits of the tests whose
group it moves, so it costs one pass through the networks of the trees that ask about such a group.

State sets (``walk_states``, for deep trees). One walk a row and tree carries a 64-bit set of states; it splits only at
nodes where x and the baseline part.

Rows are the parallel axis, a row's sums run in tree order, and nothing depends on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config, njit
from numba.core import types
from numba.extending import intrinsic

WORDS = 8
BLOCK = 64 * WORDS  # rows evaluated together
WALK_BLOCK = 256  # rows that visit a deep tree together
MAX_LEAVES = 256  # of a tree in the bit-plane form: a leaf number is one byte a row
ZERO_THRESHOLD = float(np.float32(1e-35))  # LightGBM's zero band
THREADS = int(config.NUMBA_NUM_THREADS)  # the processor's cores, unless the environment says otherwise
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)

_entry = njit(cache=True, nogil=True)  # called from Python, in several threads on separate rows
# Without the wrappers that would make it callable from Python, a helper compiles several times faster.
_helper = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@intrinsic
def _lowest(typing_context: Any, word: Any) -> Any:
    """Return the number of the lowest bit set in a non-zero word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, 1))

    return types.uint64(types.uint64), generate


# --- preparing ----------------------------------------------------------------------------------------------


@_entry
def preorder(left: Any, right: Any, leaf: Any) -> Any:
    """Return the nodes of a tree in preorder, left child first; node 0 is the root."""
    order = np.empty(len(leaf), dtype=np.int64)
    stack = np.empty(len(leaf) + 1, dtype=np.int64)
    stack[0] = 0
    depth = 1
    count = 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        order[count] = node
        count += 1
        if not leaf[node]:
            stack[depth] = right[node]
            stack[depth + 1] = left[node]
            depth += 2
    return order[:count]


@_entry
def build_networks(node_test: Any, node_right: Any, tree_start: Any) -> Any:
    """Return (gates, gate_start, plane_slots, plane_start): the trees as networks of ANDs.

    gates: (inner nodes, 3) slot of the node, slot of its right child, test; slots number a tree's nodes in preorder.
    plane_slots, plane_start[tree, j]: the nodes whose union is the rows with bit j in their leaf's number. A node
    stands for all its leaves where they share the bit, so that a balanced tree needs one OR a node.
    """
    n_trees = len(tree_start) - 1
    gates = np.empty(((node_test >= 0).sum(), 3), dtype=np.uint32)
    gate_start = np.zeros(n_trees + 1, dtype=np.int64)
    plane_slots = np.empty(8 * len(node_test), dtype=np.uint32)
    plane_start = np.zeros((n_trees, 9), dtype=np.int64)
    count = 0
    listed = 0
    for tree in range(n_trees):
        start = tree_start[tree]
        size = tree_start[tree + 1] - start
        bits = np.zeros(size, dtype=np.int64)
        parent = np.zeros(size, dtype=np.int64)
        _common_bits(node_test[start : start + size], node_right[start : start + size] - start, bits, parent)
        for slot in range(size):
            if node_test[start + slot] >= 0:
                gates[count, 0] = slot
                gates[count, 1] = node_right[start + slot] - start
                gates[count, 2] = node_test[start + slot]
                count += 1
        gate_start[tree + 1] = count
        for plane in range(8):
            plane_start[tree, plane] = listed
            for slot in range(1, size):
                if (bits[slot] & ~bits[parent[slot]]) >> plane & 1:
                    plane_slots[listed] = slot
                    listed += 1
        plane_start[tree, 8] = listed
    return gates, gate_start, plane_slots[:listed].copy(), plane_start


@_helper
def _common_bits(test: Any, right: Any, bits: Any, parent: Any) -> None:
    """Fill, for each node, the bits that all its leaves' numbers have, and its parent."""
    leaves = 0
    for slot in range(len(test)):  # preorder meets the leaves in the order of their numbers
        if test[slot] < 0:
            bits[slot] = leaves
            leaves += 1
        else:
            parent[slot + 1] = slot
            parent[right[slot]] = slot
    for slot in range(len(test) - 1, -1, -1):
        if test[slot] >= 0:
            bits[slot] = bits[slot + 1] & bits[right[slot]]


# --- tests --------------------------------------------------------------------------------------------------


@_helper
def stressed_cell(x: float, baseline: float, severity: float, stepwise: bool) -> float:
    """Return the cell x moved toward the baseline: the rule of ``evidence.blend`` for one cell."""
    if severity <= 0.0:
        return x
    if severity >= 1.0:
        return baseline
    if stepwise or x != x:
        return baseline if severity >= 0.5 else x
    return x + severity * (baseline - x)


@_helper
def compared_cell(v: float, single: bool, zero_missing: bool) -> float:
    """Return the cell as the library compares it: rounded to float32, an absent zero as missing."""
    if zero_missing and v == 0.0:
        return np.nan
    if single:
        return np.float64(np.float32(v))
    return v


@_helper
def goes_right(v: float, threshold: float, flags: int, set_start: Any, set_words: Any) -> bool:
    """Return whether the cell v passes a test to the right; see ``trees.Forest`` for the flags."""
    if v != v:
        return (flags & 1) == 1
    kind = flags & 6
    if kind == 0:
        return v > threshold
    if kind == 2:
        if abs(v) <= ZERO_THRESHOLD:
            return (flags & 1) == 1
        return v > threshold
    member = False
    number = np.int64(threshold)
    if v > -1.0 and v < 16777216.0:
        category = np.int64(v)  # toward zero, as the libraries cast
        word = set_start[number] + category // 32
        if word < set_start[number + 1]:
            member = (np.int64(set_words[word]) >> (category % 32)) & 1 == 1
    return member != (kind == 6)


@_entry
def baseline_ways(forest: Any, baseline: Any, single: bool, zero_missing: bool) -> Any:
    """Return (T,) 1 where the baseline goes right."""
    ways = np.empty(len(forest.test_column), dtype=np.uint8)
    for test in range(len(ways)):
        v = compared_cell(baseline[forest.test_column[test]], single, zero_missing)
        ways[test] = goes_right(
            v, forest.test_threshold[test], forest.test_flags[test], forest.set_start, forest.set_words
        )
    return ways


@_helper
def _decide_column(forest: Any, column: int, cells: Any, decisions: Any) -> None:
    """Fill the decision bits of a column's tests for the block's cells (as compared)."""
    first = forest.column_start[column]
    last = forest.column_start[column + 1]
    plain = True
    for test in range(first, last):
        plain &= (forest.test_flags[test] & 6) == 0
    if not plain:
        _decide_by_test(forest, first, last, cells, decisions)
    elif last - first <= 4:
        for test in range(first, last):
            _compare(cells, forest.test_threshold[test], decisions[test])
        _route_missing(forest, first, last, cells, decisions)
    else:
        _decide_by_rank(forest.test_threshold[first:last], cells, decisions[first:last])
        _route_missing(forest, first, last, cells, decisions)


@_helper
def _decide_by_test(forest: Any, first: int, last: int, cells: Any, decisions: Any) -> None:
    for test in range(first, last):
        threshold = forest.test_threshold[test]
        flags = forest.test_flags[test]
        for w in range(WORDS):
            word = np.uint64(0)
            for bit in range(64):
                way = goes_right(cells[64 * w + bit], threshold, flags, forest.set_start, forest.set_words)
                word |= np.uint64(way) << np.uint64(bit)
            decisions[test, w] = word


@_helper
def _compare(cells: Any, threshold: float, words: Any) -> None:
    for w in range(WORDS):
        word = np.uint64(0)
        for bit in range(64):
            word |= np.uint64(cells[64 * w + bit] > threshold) << np.uint64(bit)
        words[w] = word


@_helper
def _decide_by_rank(thresholds: Any, cells: Any, decisions: Any) -> None:
    """v > t_i for all i below v's rank: mark each row at its rank, then OR downward."""
    n = len(thresholds)
    decisions[:, :] = np.uint64(0)
    for row in range(BLOCK):
        rank = _count_below(thresholds, cells[row])
        if rank > 0:
            decisions[rank - 1, row >> 6] |= _ONE << np.uint64(row & 63)
    for test in range(n - 2, -1, -1):
        for w in range(WORDS):
            decisions[test, w] |= decisions[test + 1, w]


@_helper
def _count_below(thresholds: Any, v: float) -> int:
    """Return how many of the rising thresholds are < v; 0 for NaN."""
    low = 0
    size = len(thresholds)
    while size > 0:
        half = size >> 1
        go = v > thresholds[low + half]
        low = low + half + 1 if go else low
        size = size - half - 1 if go else half
    return low


@_helper
def _route_missing(forest: Any, first: int, last: int, cells: Any, decisions: Any) -> None:
    """NaN > t is false, so missing cells sit on the left; move those whose default is right."""
    any_missing = False
    for row in range(BLOCK):
        any_missing |= cells[row] != cells[row]
    if not any_missing:
        return
    for w in range(WORDS):
        missing = np.uint64(0)
        for bit in range(64):
            v = cells[64 * w + bit]
            missing |= np.uint64(v != v) << np.uint64(bit)
        for test in range(first, last):
            if forest.test_flags[test] & 1:
                decisions[test, w] |= missing


# --- bit planes ---------------------------------------------------------------------------------------------


@_helper
def _run_network(gates: Any, decisions: Any, reach: Any) -> None:
    """Fill ``reach``: the rows that arrive at each node of one tree."""
    for w in range(WORDS):
        reach[0, w] = _ALL
    for gate in range(len(gates)):
        slot = gates[gate, 0]
        right = gates[gate, 1]
        test = gates[gate, 2]
        for w in range(WORDS):
            here = reach[slot, w]
            way = decisions[test, w]
            reach[slot + np.uint32(1), w] = here & ~way
            reach[right, w] = here & way


@_helper
def _collect_planes(slots: Any, starts: Any, reach: Any, planes: Any) -> None:
    for plane in range(8):
        p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = np.uint64(0)
        for i in range(starts[plane], starts[plane + 1]):
            r = reach[slots[i]]
            p0 |= r[0]
            p1 |= r[1]
            p2 |= r[2]
            p3 |= r[3]
            p4 |= r[4]
            p5 |= r[5]
            p6 |= r[6]
            p7 |= r[7]
        q = planes[plane]
        q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7] = p0, p1, p2, p3, p4, p5, p6, p7


@_helper
def _transpose(planes: Any, numbers: Any) -> None:
    """Turn 8 bit planes of a block into one byte a row, eight rows at a time."""
    p = planes.view(np.uint8)
    out = numbers.view(np.uint64)
    for q in range(8 * WORDS):
        x = (
            np.uint64(p[0, q])
            | np.uint64(p[1, q]) << np.uint64(8)
            | np.uint64(p[2, q]) << np.uint64(16)
            | np.uint64(p[3, q]) << np.uint64(24)
            | np.uint64(p[4, q]) << np.uint64(32)
            | np.uint64(p[5, q]) << np.uint64(40)
            | np.uint64(p[6, q]) << np.uint64(48)
            | np.uint64(p[7, q]) << np.uint64(56)
        )
        t = (x ^ (x >> np.uint64(7))) & np.uint64(0x00AA00AA00AA00AA)
        x = x ^ t ^ (t << np.uint64(7))
        t = (x ^ (x >> np.uint64(14))) & np.uint64(0x0000CCCC0000CCCC)
        x = x ^ t ^ (t << np.uint64(14))
        t = (x ^ (x >> np.uint64(28))) & np.uint64(0x00000000F0F0F0F0)
        out[q] = x ^ t ^ (t << np.uint64(28))


@_helper
def _number_leaves(forest: Any, networks: Any, tree: int, decisions: Any, scratch: Any, numbers: Any) -> None:
    """Fill ``numbers`` (2, BLOCK): low and high byte of the leaf each row of the block reaches."""
    reach, planes = scratch
    if len(forest.level_start) > 1:
        first = forest.level_start[tree]
        levels = forest.level_start[tree + 1] - first
        for plane in range(16 if levels > 8 else 8):
            for w in range(WORDS):
                planes[plane, w] = decisions[forest.level_test[first + plane], w] if plane < levels else np.uint64(0)
        if levels > 8:
            _transpose(planes[8:], numbers[1])
    else:
        gates, gate_start, plane_slots, plane_start = networks
        _run_network(gates[gate_start[tree] : gate_start[tree + 1]], decisions, reach)
        _collect_planes(plane_slots, plane_start[tree], reach, planes)
    _transpose(planes[:8], numbers[0])


@_helper
def _add_leaves(forest: Any, tree: int, numbers: Any, sums: Any) -> None:
    first = forest.leaf_start[tree]
    last = forest.leaf_start[tree + 1]
    output = forest.tree_output[tree]
    for part in range(forest.leaf_value.shape[1]):
        values = forest.leaf_value[first:last, part]
        total = sums[output + part]
        if last - first <= 256:
            low = numbers[0]
            for row in range(BLOCK):
                total[row] += values[low[row]]
        else:
            for row in range(BLOCK):
                total[row] += values[np.int64(numbers[0, row]) | (np.int64(numbers[1, row]) << 8)]


@_helper
def _sum_block(
    forest: Any, networks: Any, decisions: Any, asked: Any, scratch: Any, known: Any, sums: Any
) -> None:
    """Fill ``sums`` (outputs, BLOCK) in tree order.

    asked[tree]: 0 where the rows reach the leaves ``known`` already, 1 where they must be found, 2 to make them known.
    """
    reach, planes, found = scratch
    for output in range(len(sums)):
        for row in range(BLOCK):
            sums[output, row] = forest.base[output]
    for tree in range(len(forest.tree_output)):
        numbers = found if asked[tree] == 1 else known[tree]
        if asked[tree]:
            _number_leaves(forest, networks, tree, decisions, (reach, planes), numbers)
        _add_leaves(forest, tree, numbers, sums)


@_helper
def _take_block(matrix: Any, start: int, cells: Any) -> None:
    """Copy a block's rows to columns; the last row stands in beyond the end."""
    for row in range(BLOCK):
        source = min(start + row, len(matrix) - 1)
        for column in range(matrix.shape[1]):
            cells[column, row] = matrix[source, column]


@_helper
def _decide_block(forest: Any, plan: Any, cells: Any, severity: float, decisions: Any) -> None:
    """Fill all decision bits of a block at one severity of every group."""
    compared = np.empty(BLOCK)
    for column in range(len(forest.column_start) - 1):
        if forest.column_start[column] == forest.column_start[column + 1]:
            continue
        baseline = plan.baseline[column]
        stepwise = plan.stepwise[column] != 0
        for row in range(BLOCK):
            v = stressed_cell(cells[column, row], baseline, severity, stepwise)
            compared[row] = compared_cell(v, plan.single, plan.zero_missing)
        _decide_column(forest, column, compared, decisions)


@_helper
def _rows_moved(moved: Any, rank: Any, start: int, rows: Any) -> None:
    """Fill ``rows`` (G, WORDS): the rows of the block in which the state moves group g."""
    for group in range(len(rows)):
        for w in range(WORDS):
            word = np.uint64(0)
            for bit in range(64):
                row = min(start + 64 * w + bit, len(rank) - 1)
                word |= np.uint64(moved[rank[row, group]]) << np.uint64(bit)
            rows[group, w] = word


@_helper
def _mix(plan: Any, here: Any, there: Any, whole: bool, rows: Any, mixed: Any) -> None:
    """Fill the bits of a state: those of ``there`` (or of the baseline) where a row's group is moved, else of x."""
    for test in range(len(mixed)):
        group = plan.test_group[test]
        base = _ALL if plan.test_base[test] else np.uint64(0)
        for w in range(WORDS):
            r = rows[group, w]
            target = base if whole else there[test, w]
            mixed[test, w] = (here[test, w] & ~r) | (target & r)


@_helper
def _trees_asked(plan: Any, rows: Any, asked: Any) -> None:
    """Mark the trees with a test on a group that some row of the block moves."""
    asked[:] = 0
    for group in range(len(rows)):
        some = np.uint64(0)
        for w in range(WORDS):
            some |= rows[group, w]
        if some:
            for tree in range(len(asked)):
                asked[tree] |= plan.tree_group[group, tree]


@_entry
def score_states(
    forest: Any, networks: Any, plan: Any, matrix: Any, rank: Any, states: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of every state of the rows span[0]..span[1].

    rank: (n, G) place of each group in the row's order. states: (severity (Q,), moved (Q, G)): state q moves the groups
    whose place is marked by severity[q]; states of equal severity follow one another.
    """
    severity, moved = states
    n_tests = len(forest.test_column)
    n_trees = len(forest.tree_output)
    cells = np.empty((matrix.shape[1], BLOCK))
    here = np.empty((n_tests, WORDS), dtype=np.uint64)
    there = np.empty((n_tests, WORDS), dtype=np.uint64)
    mixed = np.empty((n_tests, WORDS), dtype=np.uint64)
    rows = np.empty((plan.tree_group.shape[0], WORDS), dtype=np.uint64)
    scratch = (
        np.empty((plan.slots, WORDS), dtype=np.uint64),
        np.zeros((16, WORDS), dtype=np.uint64),
        np.zeros((2, BLOCK), dtype=np.uint8),
    )
    known = np.zeros((n_trees, 2, BLOCK), dtype=np.uint8)
    asked = np.empty(n_trees, dtype=np.uint8)
    sums = np.empty((scores.shape[1], BLOCK), dtype=forest.leaf_value.dtype)
    for start in range(span[0], span[1], BLOCK):
        size = min(BLOCK, span[1] - start)
        _take_block(matrix, start, cells)
        at = -1.0
        for state in range(-1, len(severity)):  # first x itself, whose leaves many states share
            by = severity[state] if state >= 0 else 0.0
            if by != at and by < 1.0:
                at = by
                _decide_block(forest, plan, cells, at, here if state < 0 else there)
            if state < 0:
                asked[:] = 2
            else:
                _rows_moved(moved[state], rank, start, rows)
                if by <= 0.0:
                    rows[:] = np.uint64(0)
                _trees_asked(plan, rows, asked)
                _mix(plan, here, there, by >= 1.0, rows, mixed)
            _sum_block(forest, networks, here if state < 0 else mixed, asked, scratch, known, sums)
            if state >= 0:
                for output in range(len(sums)):
                    for row in range(size):
                        scores[state, output, start + row] = sums[output, row]


# --- state sets ---------------------------------------------------------------------------------------------


@_entry
def pack_nodes(forest: Any, plan: Any, nodes: Any) -> None:
    """Fill the 16-byte node records of a walk: threshold, right child, and column, baseline's way and flags in one.

    meta: -1 - leaf, or column << 4 | (baseline goes right) << 3 | test flags.
    """
    for node in range(len(nodes)):
        test = forest.node_test[node]
        nodes[node].right = forest.node_right[node]
        if test < 0:
            nodes[node].meta = test
        else:
            nodes[node].threshold = forest.test_threshold[test]
            nodes[node].meta = (
                (forest.test_column[test] << 4) | (np.int32(plan.test_base[test]) << 3) | forest.test_flags[test]
            )


@_helper
def _first_level(x: float, toward: float, threshold: float, base: bool, severities: Any, single: bool) -> int:
    """Return the first severity at which a cell that moves past the threshold is on the baseline's side.

    Such a cell crosses once, so the severities before it can be counted; a loop without branches is the fastest.
    """
    level = 0
    for i in range(len(severities)):
        v = x + severities[i] * toward
        if single:
            v = np.float64(np.float32(v))
        level += (v > threshold) != base
    return level


@_helper
def _right_by_level(node: Any, x: float, baseline: float, stepwise: bool, settings: Any, grid: Any, sets: Any) -> Any:
    """Return the states that go right at a node where a cell may cross more than once: every severity is asked.

    grid: (severities (S,), states (S+1,) that move this cell by the i-th severity or more; the last is the removal).
    """
    severities, at_least = grid
    single, zero_missing = settings
    set_start, set_words = sets
    flags = node.meta & 7
    right = np.uint64(0)
    for i in range(-1, len(severities)):
        v = compared_cell(
            stressed_cell(x, baseline, severities[i] if i >= 0 else 0.0, stepwise), single, zero_missing
        )
        if goes_right(v, node.threshold, flags, set_start, set_words):
            right |= ~at_least[0] if i < 0 else at_least[i] & ~at_least[i + 1]
    if node.meta & 8:
        right |= at_least[len(severities)]
    return right


@_entry
def walk_states(
    forest: Any, plan: Any, nodes: Any, matrix: Any, rank: Any, levels: Any, span: Any, scores: Any
) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of up to 64 states of the rows span[0]..span[1].

    rank: (n, G) place of each group in the row's order. levels: (severities (S,) below 1, at_least (G, S+1)): by PLACE,
    the states that move that group by the i-th severity or more, as bits; the last column is removal.
    """
    severities, at_least = levels
    full = len(severities)
    half = 0  # severities at which a cell that cannot be interpolated keeps its value
    while half < full and severities[half] < 0.5:
        half += 1
    n_columns = matrix.shape[1]
    n_states, n_outputs, _ = scores.shape
    everything = _ALL >> np.uint64(64 - n_states)
    leaf_value = forest.leaf_value
    n_parts = leaf_value.shape[1]
    compared = np.empty((WALK_BLOCK, n_columns))
    sums = np.empty((WALK_BLOCK, n_states, n_outputs), dtype=leaf_value.dtype)
    waiting_node = np.empty(65, dtype=np.int64)
    waiting_states = np.empty(65, dtype=np.uint64)
    for start in range(span[0], span[1], WALK_BLOCK):
        size = min(WALK_BLOCK, span[1] - start)
        for row in range(size):
            for column in range(n_columns):
                compared[row, column] = compared_cell(matrix[start + row, column], plan.single, plan.zero_missing)
            for state in range(n_states):
                for output in range(n_outputs):
                    sums[row, state, output] = forest.base[output]
        for tree in range(len(forest.tree_output)):  # a tree's nodes stay in cache for the whole block
            root = forest.tree_start[tree]
            first_output = forest.tree_output[tree]
            for row in range(size):
                waiting_node[0] = root
                waiting_states[0] = everything
                depth = 1
                while depth > 0:
                    depth -= 1
                    place = waiting_node[depth]
                    states = waiting_states[depth]
                    meta = nodes[place].meta
                    while meta >= 0:
                        column = meta >> 4
                        v = compared[row, column]
                        base = (meta & 8) != 0
                        plain = plan.monotone and (meta & 6) == 0
                        way = v > nodes[place].threshold or (v != v and (meta & 1) != 0)
                        if plain and way == base:
                            place = np.int64(nodes[place].right) if way else place + 1
                        else:
                            group_place = rank[start + row, plan.column_group[column]]
                            x = matrix[start + row, column]
                            stepwise = plan.stepwise[column] != 0
                            if plain:
                                level = full
                                if states & at_least[group_place, 0] & ~at_least[group_place, full]:
                                    if stepwise or x != x:
                                        level = half
                                    else:
                                        level = _first_level(
                                            x,
                                            plan.baseline[column] - x,
                                            nodes[place].threshold,
                                            base,
                                            severities,
                                            plan.single,
                                        )
                                right = at_least[group_place, level]
                                if way:
                                    right = ~right
                            else:
                                right = _right_by_level(
                                    nodes[place],
                                    x,
                                    plan.baseline[column],
                                    stepwise,
                                    (plan.single, plan.zero_missing),
                                    (severities, at_least[group_place]),
                                    (forest.set_start, forest.set_words),
                                )
                            right &= states
                            if right == states:
                                place = np.int64(nodes[place].right)
                            else:
                                if right:
                                    waiting_node[depth] = nodes[place].right
                                    waiting_states[depth] = right
                                    depth += 1
                                    states &= ~right
                                place += 1
                        meta = nodes[place].meta
                    leaf = -1 - np.int64(meta)
                    while states:
                        state = _lowest(states)
                        for part in range(n_parts):
                            sums[row, state, first_output + part] += leaf_value[leaf, part]
                        states &= states - _ONE
        for row in range(size):
            for state in range(n_states):
                for output in range(n_outputs):
                    scores[state, output, start + row] = sums[row, state, output]
