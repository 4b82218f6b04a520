"""Small kernels that prepare trees: nodes in preorder, nodes as words, networks of ANDs; and the random draws.

A node of a deep tree, as a walk reads it, is its threshold and one integer, its ``word``:

    a leaf      -1 - number of the leaf
    inner node  steps to the right child | column      | BASELINE_RIGHT | flags of the test (``trees.forest``)
                all bits that are left   | column_bits | 1 bit          | 3 bits
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper

BASELINE_RIGHT = 8  # of a node's word: the baseline goes right here
COLUMN_SHIFT = 4  # of a node's word: the column begins above the flags and BASELINE_RIGHT
PLANES = 8  # bits of a leaf's number
MAX_LEAVES = 2**PLANES  # of a tree in the bit-plane form: a leaf number is one byte a row


@entry
def preorder(left: Any, right: Any, leaf: Any) -> Any:
    """Return the nodes of a tree in preorder, left child first; left, right, leaf (nodes,), node 0 is the root."""
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


@entry
def groups_asked(test: Any, start: Any, group: Any, asked: Any) -> None:
    """Mark in ``asked`` (G, trees) the groups that each tree asks about.

    test: of every node of the trees, negative: none. start: (trees+1,) where a tree's begin. group: (T,) of each test.
    """
    for tree in range(len(start) - 1):
        for node in range(start[tree], start[tree + 1]):
            if test[node] >= 0:
                asked[group[test[node]], tree] = 1


@entry
def fill_nodes(forest: Any, test_base: Any, threshold: Any, column_bits: int, nodes: Any) -> None:
    """Fill ``nodes`` (N,), records of threshold and word; threshold: (T,) in their precision."""
    node_test, node_right = forest.node_test, forest.node_right
    column, flags = forest.test_column, forest.test_flags
    for node in range(len(nodes)):
        test = node_test[node]
        if test < 0:
            nodes[node].threshold = 0.0
            nodes[node].word = test
        else:
            steps = np.int64(node_right[node]) - node
            word = steps << (COLUMN_SHIFT + column_bits) | np.int64(column[test]) << COLUMN_SHIFT
            nodes[node].threshold = threshold[test]
            nodes[node].word = word | (BASELINE_RIGHT if test_base[test] else 0) | np.int64(flags[test])


@entry
def build_networks(node_test: Any, node_right: Any, tree_start: Any) -> Any:
    """Return (gates, gate_start, plane_slots, plane_start): the trees as networks of ANDs.

    gates: (inner nodes, 3) slot of the node, slot of its right child, test; slots number a tree's nodes in preorder.
    gate_start: (trees+1,). plane_slots, plane_start[tree, j]: the nodes whose union is the rows with bit j in their
    leaf's number; (trees, 9). A node stands for all its leaves where they share the bit, so that a balanced tree needs
    one OR a node.
    """
    n_trees = len(tree_start) - 1
    inner = 0
    for node in node_test:
        inner += node >= 0
    gates = np.empty((inner, 3), dtype=np.uint32)
    gate_start = np.zeros(n_trees + 1, dtype=np.int64)
    plane_slots = np.empty(PLANES * len(node_test), dtype=np.uint32)
    plane_start = np.zeros((n_trees, PLANES + 1), dtype=np.int64)
    listed = 0
    for tree in range(n_trees):
        start, stop = tree_start[tree], tree_start[tree + 1]
        test, right = node_test[start:stop], node_right[start:stop] - start
        count = gate_start[tree]
        for slot in range(len(test)):  # parents first
            if test[slot] >= 0:
                gates[count, 0], gates[count, 1], gates[count, 2] = slot, right[slot], test[slot]
                count += 1
        gate_start[tree + 1] = count
        listed = _list_planes(test, right, plane_slots, plane_start[tree], listed)
    return gates, gate_start, plane_slots[:listed].copy(), plane_start


@helper
def _list_planes(test: Any, right: Any, plane_slots: Any, plane_start: Any, listed: int) -> int:
    """Write one tree's nodes of each bit from ``listed`` on, and where each bit starts; return where they end."""
    bits = np.zeros(len(test), dtype=np.int64)  # that the numbers of all leaves below a node have
    parent = np.zeros(len(test), dtype=np.int64)
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
    for plane in range(PLANES):
        plane_start[plane] = listed
        for slot in range(1, len(test)):
            if (bits[slot] & ~bits[parent[slot]]) >> plane & 1:
                plane_slots[listed] = slot
                listed += 1
    plane_start[PLANES] = listed
    return listed


MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@entry
def strike(keys: Any, offset: Any, bound: Any, span: Any, out: Any) -> None:
    """Fill out (n, positions) of the rows span[0]..span[1]: whether the word at each offset lies below the bound.

    Steps 2 and 3 of the draw format (``stress.draws``), word by word.
    """
    for row in range(span[0], span[1]):
        key = keys[row]
        for place in range(len(offset)):
            word = key + offset[place]
            word = (word ^ (word >> np.uint64(30))) * MIX_1
            word = (word ^ (word >> np.uint64(27))) * MIX_2
            word ^= word >> np.uint64(31)
            out[row, place] = (word >> np.uint64(11)) < bound
