"""A tree ensemble as flat arrays, whatever library it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats, Integers
from fragility.engines.trees.encoding import CATEGORY, KIND
from fragility.errors import EngineError, ModelError
from fragility.models.soundness import fault_of_tree, fault_of_trees

Columns: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint32]

NO_LEVELS: tuple[Columns, Integers] = (np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64))
NO_SETS: tuple[Integers, Words] = (np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint32))


class Forest(NamedTuple):
    """A tree ensemble as flat arrays; T tests, N nodes in preorder (a left child follows its parent), L leaves."""

    test_column: Columns  # (T,) sorted
    test_threshold: Floats  # (T,) rising within a column; for a category test the number of its set
    test_flags: Flags  # (T,) see ``encoding``
    column_start: Integers  # (d+1,) first test of each column
    set_start: Integers  # (sets+1,) first word of each category set
    set_words: Words  # category c is in a set if bit c % 32 of its word c // 32 is 1
    node_test: npt.NDArray[np.int32]  # (N,) test, or -1 - leaf
    node_right: npt.NDArray[np.int32]  # (N,) right child
    tree_start: Integers  # (trees+1,) first node of each tree
    leaf_start: Integers  # (trees+1,) first leaf of each tree
    leaf_value: npt.NDArray[Any]  # (L, V) float32 or float64; V > 1: a leaf holds a value for each output
    tree_output: npt.NDArray[np.int32]  # (trees,) first output a tree adds to
    level_test: npt.NDArray[np.int32]  # (levels,) tests of oblivious trees, lowest index bit first; else empty
    level_start: Integers  # (trees+1,) first level of each oblivious tree
    base: npt.NDArray[Any]  # (outputs,) where the sums start
    divisor: float  # sums are divided by it
    link: int  # SIGMOID, SOFTMAX or AVERAGE
    scale: float  # raw scores are multiplied by it before the link
    single: bool  # cells are compared in float32
    absent_missing: bool  # an entry absent from a sparse row is missing, not zero

    @property
    def n_trees(self) -> int:
        return len(self.tree_output)

    @property
    def n_columns(self) -> int:
        return len(self.column_start) - 1

    @property
    def n_classes(self) -> int:
        return max(len(self.base), 2)

    @property
    def oblivious(self) -> bool:
        return len(self.level_start) > 1

    @property
    def most_leaves(self) -> int:
        return int(np.diff(self.leaf_start).max())

    @property
    def most_nodes(self) -> int:
        return max(int(np.diff(self.tree_start).max()), 1)


class Convention(NamedTuple):
    """What a library makes of leaf values, and how it compares cells; the fields are those of ``Forest``."""

    base: npt.NDArray[Any]
    link: int
    divisor: float = 1.0
    scale: float = 1.0
    single: bool = False
    absent_missing: bool = False


class TreeNodes(NamedTuple):
    """One tree as its library stores it; node 0 is the root."""

    column: npt.NDArray[Any]
    threshold: npt.NDArray[Any]  # in the form right iff v > threshold
    left: npt.NDArray[Any]  # < 0 or self-referencing entries are never read where ``leaf`` holds
    right: npt.NDArray[Any]
    leaf: npt.NDArray[np.bool_]
    flags: Flags
    value: npt.NDArray[Any]  # (nodes, V), read at leaves
    output: int = 0


def assemble(
    trees: Sequence[TreeNodes], convention: Convention, n_columns: int, sets: Sequence[Sequence[int]] = ()
) -> Forest:
    """Return the forest of ``trees``: nodes in preorder, equal splits merged into one test.

    sets: the categories that category tests ask for; a test's threshold is its place in this list.
    """
    from fragility.engines.kernels import preorder

    if not trees:
        raise EngineError("the ensemble has no trees")
    _refuse_damaged(trees, n_columns)
    ordered = [_reordered(tree, preorder(tree.left, tree.right, tree.leaf)) for tree in trees]
    starts = starts_of([len(tree.leaf) for tree in ordered])
    leaf = np.concatenate([tree.leaf for tree in ordered])
    column = np.concatenate([tree.column for tree in ordered])[~leaf].astype(np.int32)
    flags = np.concatenate([tree.flags for tree in ordered])[~leaf]
    threshold = np.concatenate([tree.threshold for tree in ordered])[~leaf].astype(np.float64)
    set_start, set_words, threshold = pack_sets(sets, flags, threshold)
    tests, inner_test = distinct_tests(column, threshold, flags)
    return Forest(
        *tests,
        column_start=column_starts(tests[0], n_columns),
        set_start=set_start,
        set_words=set_words,
        node_test=_numbered(leaf, inner_test),
        node_right=np.concatenate([t.right + s for t, s in zip(ordered, starts, strict=False)]).astype(np.int32),
        tree_start=starts,
        leaf_start=starts_of([int(tree.leaf.sum()) for tree in ordered]),
        leaf_value=np.ascontiguousarray(np.concatenate([t.value[t.leaf] for t in ordered])),
        tree_output=np.array([tree.output for tree in ordered], dtype=np.int32),
        level_test=NO_LEVELS[0],
        level_start=NO_LEVELS[1],
        **convention._asdict(),
    )


def _refuse_damaged(trees: Sequence[TreeNodes], n_columns: int) -> None:
    arrays = [(tree.left, tree.right, tree.leaf, tree.column) for tree in trees]
    starts = starts_of([len(tree.leaf) for tree in trees])
    alike = all(len(array) == len(tree.leaf) for tree, own in zip(trees, arrays, strict=True) for array in own)
    if alike:
        left, right, leaf, column = (np.concatenate(part) for part in zip(*arrays, strict=True))
        if fault_of_trees(left, right, leaf, column, starts, n_columns) is None:
            return
    for number, own in enumerate(arrays):
        fault = fault_of_tree(*own, n_columns)
        if fault is not None:
            raise ModelError(f"the model is damaged: tree {number}: {fault}")


def _numbered(leaf: npt.NDArray[np.bool_], inner_test: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return (N,) the test of each inner node, -1 - number of each leaf."""
    node_test = np.empty(len(leaf), dtype=np.int32)
    node_test[~leaf] = inner_test
    node_test[leaf] = -1 - np.arange(int(leaf.sum()), dtype=np.int32)
    return node_test


def _reordered(tree: TreeNodes, order: Integers) -> TreeNodes:
    place = np.empty(len(tree.leaf), dtype=np.int64)
    place[order] = np.arange(len(order))
    return TreeNodes(
        tree.column[order],
        tree.threshold[order],
        place[np.where(tree.leaf, 0, tree.left)][order],
        place[np.where(tree.leaf, 0, tree.right)][order],
        tree.leaf[order],
        tree.flags[order],
        tree.value[order],
        tree.output,
    )


def starts_of(sizes: Sequence[int]) -> Integers:
    """Return where each of some neighbouring pieces starts, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def pack_sets(sets: Sequence[Sequence[int]], flags: Flags, threshold: Floats) -> tuple[Integers, Words, Floats]:
    """Return (starts, words) of the distinct category sets and thresholds that number them."""
    distinct: dict[tuple[int, ...], int] = {}
    numbers = np.array([distinct.setdefault(tuple(sorted(s)), len(distinct)) for s in sets], dtype=np.int64)
    category = (flags & KIND) >= CATEGORY
    threshold = threshold.copy()
    if category.any():
        threshold[category] = numbers[threshold[category].astype(np.int64)]
    if not distinct:
        return *NO_SETS, threshold
    words = [_set_words(members) for members in distinct]
    return starts_of([len(row) for row in words]), np.concatenate(words), threshold


def _set_words(members: Sequence[int]) -> Words:
    words = np.zeros(max(members, default=0) // 32 + 1, dtype=np.uint32)
    for member in members:
        words[member // 32] |= np.uint32(1 << (member % 32))
    return words


def distinct_tests(
    column: Columns, threshold: Floats, flags: Flags
) -> tuple[tuple[Columns, Floats, Flags], npt.NDArray[np.int32]]:
    """Return the distinct (column, threshold, flags), sorted, and the number of each split's test."""
    order = np.lexsort((flags, threshold, column))
    c, t, f = column[order], threshold[order], flags[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (c[1:] != c[:-1]) | (t[1:] != t[:-1]) | (f[1:] != f[:-1])
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.cumsum(first) - 1
    return (c[first], t[first], f[first]), number


def column_starts(test_column: Columns, n_columns: int) -> Integers:
    return np.searchsorted(test_column, np.arange(n_columns + 1)).astype(np.int64)
