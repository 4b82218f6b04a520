"""Compiled kernels of the tree engine: flat arrays in, arrays out.

Two formulations of the same question, "which leaf does each state of each row reach?":

Bit planes (``score_states``, for trees of up to 256 leaves and for oblivious trees). 512 rows are one vector of 8
words. For each distinct test one bit a row says whether the row goes right. A tree is a network of ANDs over those
bits: the rows that reach a node, split into those that go left and right. The numbers of the leaves are read back as
bit planes, transposed to one byte a row, and look up the leaf values. A state differs from x only in the bits of the
tests whose group it moves, so it costs one pass through the networks of the trees that ask about such a group.

State sets (``walk_states``, for deep trees). One walk a row and tree carries a 64-bit set of states; it splits only at
nodes where x and the baseline part.

Entry points are called in several threads, each on its own rows; a row's sums run in tree order, so no bit depends on
the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config, njit
from numba.core import types
from numba.extending import intrinsic

WORDS = 8
BLOCK = 64 * WORDS  # rows evaluated together
RANK_TESTS = 64  # a column with more tests is decided by the rank of its cells
WALK_BLOCK = 512  # rows that visit a deep tree together
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
def _decide_by_test(tests: Any, test: int, cells: Any, decisions: Any) -> None:
    """Fill the bits of one test of any kind."""
    threshold, flags, set_start, set_words = tests
    for w in range(WORDS):
        word = np.uint64(0)
        for bit in range(64):
            way = goes_right(cells[64 * w + bit], threshold[test], flags[test], set_start, set_words)
            word |= np.uint64(way) << np.uint64(bit)
        decisions[test, w] = word


@_helper
def _compare(cells: Any, threshold: float, test: int, decisions: Any) -> None:
    for w in range(WORDS):
        word = np.uint64(0)
        for bit in range(64):
            word |= np.uint64(cells[64 * w + bit] > threshold) << np.uint64(bit)
        decisions[test, w] = word


@_helper
def _decide_by_rank(threshold: Any, first: int, last: int, cells: Any, decisions: Any) -> None:
    """v > t_i for all i below v's rank: mark each row at its rank, then OR downward."""
    for test in range(first, last):
        for w in range(WORDS):
            decisions[test, w] = np.uint64(0)
    for row in range(BLOCK):
        v = cells[row]
        low = first  # the tests from first to low have thresholds < v; none for NaN
        size = last - first
        while size > 0:
            half = size >> 1
            above = v > threshold[low + half]
            low = low + half + 1 if above else low
            size = size - half - 1 if above else half
        if low > first:
            decisions[low - 1, row >> 6] |= _ONE << np.uint64(row & 63)
    for test in range(last - 2, first - 1, -1):
        for w in range(WORDS):
            decisions[test, w] |= decisions[test + 1, w]


@_helper
def _route_missing(flags: Any, first: int, last: int, cells: Any, decisions: Any) -> None:
    """NaN > t is false, so missing cells sit on the left; move those whose default is right."""
    missing_cells = 0
    for row in range(BLOCK):
        missing_cells += cells[row] != cells[row]
    if missing_cells == 0:
        return
    for w in range(WORDS):
        missing = np.uint64(0)
        for bit in range(64):
            v = cells[64 * w + bit]
            missing |= np.uint64(v != v) << np.uint64(bit)
        for test in range(first, last):
            if flags[test] & 1:
                decisions[test, w] |= missing


# --- bit planes ---------------------------------------------------------------------------------------------


@_helper
def _run_network(gates: Any, first: int, last: int, decisions: Any, reach: Any) -> None:
    """Fill ``reach``: the rows that arrive at each node of the tree with these gates."""
    for w in range(WORDS):
        reach[0, w] = _ALL
    for gate in range(first, last):
        slot = gates[gate, 0]
        right = gates[gate, 1]
        test = gates[gate, 2]
        for w in range(WORDS):
            here = reach[slot, w]
            way = decisions[test, w]
            reach[slot + np.uint32(1), w] = here & ~way
            reach[right, w] = here & way


@_helper
def _collect_planes(slots: Any, starts: Any, tree: int, reach: Any, planes: Any) -> None:
    """Fill 8 bit planes of the leaf numbers from the rows that reach each node."""
    for plane in range(8):
        for w in range(WORDS):
            planes[plane, w] = np.uint64(0)
        for i in range(starts[tree, plane], starts[tree, plane + 1]):
            slot = slots[i]
            for w in range(WORDS):
                planes[plane, w] |= reach[slot, w]


@_helper
def _copy_planes(level_test: Any, first: int, last: int, decisions: Any, planes: Any) -> None:
    """The leaf number of an oblivious tree has its levels' decisions for bits."""
    for level in range(first, last):
        test = level_test[level]
        for w in range(WORDS):
            planes[level - first, w] = decisions[test, w]
    for plane in range(last - first, 16 if last - first > 8 else 8):
        for w in range(WORDS):
            planes[plane, w] = np.uint64(0)


@_helper
def _transpose(plane_bytes: Any, byte: int, numbers: Any, slot: int) -> None:
    """Turn 8 bit planes of a block into one byte a row, eight rows at a time."""
    p = 8 * byte
    for q in range(8 * WORDS):
        x = (
            np.uint64(plane_bytes[p, q])
            | np.uint64(plane_bytes[p + 1, q]) << np.uint64(8)
            | np.uint64(plane_bytes[p + 2, q]) << np.uint64(16)
            | np.uint64(plane_bytes[p + 3, q]) << np.uint64(24)
            | np.uint64(plane_bytes[p + 4, q]) << np.uint64(32)
            | np.uint64(plane_bytes[p + 5, q]) << np.uint64(40)
            | np.uint64(plane_bytes[p + 6, q]) << np.uint64(48)
            | np.uint64(plane_bytes[p + 7, q]) << np.uint64(56)
        )
        t = (x ^ (x >> np.uint64(7))) & np.uint64(0x00AA00AA00AA00AA)
        x = x ^ t ^ (t << np.uint64(7))
        t = (x ^ (x >> np.uint64(14))) & np.uint64(0x0000CCCC0000CCCC)
        x = x ^ t ^ (t << np.uint64(14))
        t = (x ^ (x >> np.uint64(28))) & np.uint64(0x00000000F0F0F0F0)
        numbers[slot, byte, q] = x ^ t ^ (t << np.uint64(28))


@_helper
def _add_leaves(leaf_columns: Any, part: int, first: Any, known: Any, slot: int, total: Any) -> None:
    """Add the value of each row's leaf, numbered from ``first``."""
    for row in range(BLOCK):
        total[row] += leaf_columns[part, first + np.uint64(known[slot, 0, row])]


@_helper
def _add_many_leaves(leaf_columns: Any, part: int, first: Any, known: Any, slot: int, total: Any) -> None:
    """The same where leaf numbers have two bytes."""
    for row in range(BLOCK):
        leaf = np.uint64(known[slot, 0, row]) | np.uint64(known[slot, 1, row]) << np.uint64(8)
        total[row] += leaf_columns[part, first + leaf]


@_helper
def _sum_block(forest: Any, networks: Any, decisions: Any, asked: Any, scratch: Any, known: Any, sums: Any) -> None:
    """Fill ``sums`` (outputs, BLOCK) in tree order.

    asked[tree]: 0 where the rows reach the leaves ``known`` already, 1 where they must be found (in the last place of
    ``known``), 2 to make them known. Every array is taken out of its tuple before the loop: inside, it would cost more
    in reference counts than the work itself.
    """
    gates, gate_start, plane_slots, plane_start, leaf_columns = networks
    reach, planes = scratch
    plane_bytes = planes.view(np.uint8)
    known_words = known.view(np.uint64)
    leaf_start, tree_output = forest.leaf_start, forest.tree_output
    level_test, level_start, base = forest.level_test, forest.level_start, forest.base
    oblivious = len(level_start) > 1
    n_trees = len(tree_output)
    for output in range(len(sums)):
        for row in range(BLOCK):
            sums[output, row] = base[output]
    for tree in range(n_trees):
        slot = n_trees if asked[tree] == 1 else tree
        wide = leaf_start[tree + 1] - leaf_start[tree] > 256
        if asked[tree]:
            if oblivious:
                _copy_planes(level_test, level_start[tree], level_start[tree + 1], decisions, planes)
            else:
                _run_network(gates, gate_start[tree], gate_start[tree + 1], decisions, reach)
                _collect_planes(plane_slots, plane_start, tree, reach, planes)
            for byte in range(2 if wide else 1):
                _transpose(plane_bytes, byte, known_words, slot)
        first = np.uint64(leaf_start[tree])
        for part in range(len(leaf_columns)):
            total = sums[tree_output[tree] + part]
            if wide:
                _add_many_leaves(leaf_columns, part, first, known, slot, total)
            else:
                _add_leaves(leaf_columns, part, first, known, slot, total)


@_helper
def _take_block(matrix: Any, start: int, cells: Any) -> None:
    """Copy a block's rows to columns, eight columns at a time; the last row stands in beyond the end."""
    for first in range(0, matrix.shape[1], 8):
        last = min(first + 8, matrix.shape[1])
        for row in range(BLOCK):
            source = min(start + row, len(matrix) - 1)
            for column in range(first, last):
                cells[column, row] = matrix[source, column]


@_helper
def _stress_column(cells: Any, column: int, baseline: float, severity: float, stepwise: bool, out: Any) -> None:
    """Fill ``out`` with a column of the block at one severity below 1: ``stressed_cell`` without its branches."""
    jumped = baseline if severity >= 0.5 else np.nan  # where a missing cell goes
    if severity <= 0.0 or (stepwise and severity < 0.5):
        for row in range(BLOCK):
            out[row] = cells[column, row]
    elif stepwise:
        for row in range(BLOCK):
            out[row] = baseline
    else:
        for row in range(BLOCK):
            x = cells[column, row]
            out[row] = jumped if x != x else x + severity * (baseline - x)


@_helper
def _decide_block(forest: Any, plan: Any, cells: Any, severity: float, decisions: Any) -> None:
    """Fill all decision bits of a block at one severity of every group."""
    column_start, threshold, flags = forest.column_start, forest.test_threshold, forest.test_flags
    tests = (threshold, flags, forest.set_start, forest.set_words)
    baseline, stepwise = plan.baseline, plan.stepwise
    single, zero_missing = plan.single, plan.zero_missing
    compared = np.empty(BLOCK)
    for column in range(len(column_start) - 1):
        first = column_start[column]
        last = column_start[column + 1]
        if first == last:
            continue
        _stress_column(cells, column, baseline[column], severity, stepwise[column] != 0, compared)
        if zero_missing:
            for row in range(BLOCK):
                compared[row] = compared_cell(compared[row], False, True)
        if single:
            for row in range(BLOCK):
                compared[row] = np.float64(np.float32(compared[row]))
        kinds = 0
        for test in range(first, last):
            kinds |= flags[test] & 6
        if kinds:
            for test in range(first, last):
                _decide_by_test(tests, test, compared, decisions)
        else:
            if last - first > RANK_TESTS:
                _decide_by_rank(threshold, first, last, compared, decisions)
            else:
                for test in range(first, last):
                    _compare(compared, threshold[test], test, decisions)
            _route_missing(flags, first, last, compared, decisions)


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
    scratch = (np.empty((plan.slots, WORDS), dtype=np.uint64), np.zeros((16, WORDS), dtype=np.uint64))
    known = np.zeros((n_trees + 1, 2, BLOCK), dtype=np.uint8)
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
def _right_by_level(test: Any, x: float, baseline: float, stepwise: bool, settings: Any, grid: Any, sets: Any) -> Any:
    """Return the states that go right at a node where a cell may cross more than once: every severity is asked.

    test: (threshold, flags). grid: (severities (S,), states (S+1,) that move this cell by the i-th severity or more;
    the last is the removal).
    """
    severities, at_least = grid
    single, zero_missing = settings
    set_start, set_words = sets
    threshold, flags = test
    right = np.uint64(0)
    for i in range(-1, len(severities)):
        v = compared_cell(stressed_cell(x, baseline, severities[i] if i >= 0 else 0.0, stepwise), single, zero_missing)
        if goes_right(v, threshold, flags & 7, set_start, set_words):
            right |= ~at_least[0] if i < 0 else at_least[i] & ~at_least[i + 1]
    if flags & 8:
        right |= at_least[len(severities)]
    return right


@_entry
def walk_states(forest: Any, plan: Any, walk: Any, matrix: Any, rank: Any, levels: Any, span: Any, scores: Any) -> None:
    """Fill ``scores`` (states, outputs, n) with the raw sums of up to 64 states of the rows span[0]..span[1].

    walk: (node records, an empty array of the thresholds' type, bits of a column number); see ``trees._node_records``.
    rank: (n, G) place of each group in the row's order. levels: (severities (S,) below 1, at_least (G, S+1)): by PLACE,
    the states that move that group by the i-th severity or more, as bits; the last column is removal.
    """
    nodes, cell_type, column_bits = walk
    leaf_value, tree_start, tree_output, base = forest.leaf_value, forest.tree_start, forest.tree_output, forest.base
    n_columns = matrix.shape[1]
    n_states, n_outputs, _ = scores.shape
    compared = np.empty((WALK_BLOCK, n_columns), dtype=cell_type.dtype)
    sums = np.empty((WALK_BLOCK, n_states, n_outputs), dtype=leaf_value.dtype)
    waiting = (np.empty(65, dtype=np.uint64), np.empty(65, dtype=np.uint64))
    for start in range(span[0], span[1], WALK_BLOCK):
        size = min(WALK_BLOCK, span[1] - start)
        for row in range(size):
            for column in range(n_columns):
                compared[row, column] = compared_cell(matrix[start + row, column], plan.single, plan.zero_missing)
            for state in range(n_states):
                for output in range(n_outputs):
                    sums[row, state, output] = base[output]
        cells = (matrix[start : start + size], compared, rank[start : start + size])
        for tree in range(len(tree_output)):  # a tree's nodes stay in cache for the whole block
            at = (tree_start[tree], tree_output[tree], column_bits)
            _walk_tree(forest, plan, nodes, at, cells, levels, waiting, sums)
        for row in range(size):
            for state in range(n_states):
                for output in range(n_outputs):
                    scores[state, output, start + row] = sums[row, state, output]


@_helper
def _walk_tree(forest: Any, plan: Any, nodes: Any, at: Any, cells: Any, levels: Any, waiting: Any, sums: Any) -> None:
    """Add one tree's leaves to ``sums`` (rows, states, outputs).

    at: (root, first output, bits of a column number). cells: (rows, rows as compared, rank). waiting: scratch for the
    (node, states) of the row that are still to be walked. One loop, because it is the innermost of all: calls and
    tuples inside it would cost more than the step itself.
    """
    x, compared, rank = cells
    severities, at_least = levels
    root, output, column_bits = at
    waiting_node, waiting_states = waiting
    leaf_value, column_group, stepwise, baseline = forest.leaf_value, plan.column_group, plan.stepwise, plan.baseline
    set_start, set_words = forest.set_start, forest.set_words
    monotone, single, zero_missing = plan.monotone, plan.single, plan.zero_missing
    n_parts = leaf_value.shape[1]
    full = len(severities)
    half = 0  # severities at which a cell that cannot be interpolated keeps its value
    while half < full and severities[half] < 0.5:
        half += 1
    column_mask = (1 << column_bits) - 1
    offset_shift = column_bits + 4
    everything = _ALL >> np.uint64(64 - sums.shape[1])
    for row in range(len(x)):
        waiting_node[0] = root
        waiting_states[0] = everything
        depth = 1
        while depth > 0:
            depth -= 1
            place = waiting_node[depth]
            states = waiting_states[depth]
            meta = np.int64(nodes[place].meta)
            while meta >= 0:
                column = np.uint64((meta >> 4) & column_mask)
                threshold = nodes[place].threshold
                right_child = place + np.uint64(meta >> offset_shift)
                v = compared[row, column]
                base = (meta & 8) != 0
                plain = monotone and (meta & 6) == 0
                way = v > threshold
                if v != v:
                    way = (meta & 1) != 0
                if plain and way == base:
                    if way:
                        place = right_child
                    else:
                        place += _ONE
                else:
                    order = rank[row, column_group[column]]
                    cell = x[row, column]
                    if plain:
                        level = full
                        if states & at_least[order, 0] & ~at_least[order, full]:
                            level = half
                            if not (stepwise[column] or cell != cell):
                                level = _first_level(cell, baseline[column] - cell, threshold, base, severities, single)
                        right = at_least[order, level]
                        if way:
                            right = ~right
                    else:
                        right = _right_by_level(
                            (np.float64(threshold), meta & 15),
                            cell,
                            baseline[column],
                            stepwise[column] != 0,
                            (single, zero_missing),
                            (severities, at_least[order]),
                            (set_start, set_words),
                        )
                    right &= states
                    if right == states:
                        place = right_child
                    else:
                        if right:
                            waiting_node[depth] = right_child
                            waiting_states[depth] = right
                            depth += 1
                            states &= ~right
                        place += _ONE
                meta = np.int64(nodes[place].meta)
            leaf = np.uint64(-1 - meta)
            while states:
                state: Any = _lowest(states)
                for part in range(n_parts):
                    sums[row, state, output + part] += leaf_value[leaf, part]
                states &= states - _ONE
