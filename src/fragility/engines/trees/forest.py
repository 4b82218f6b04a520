"""A tree ensemble as flat arrays, whatever library it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import EngineError, ModelError
from fragility.models.soundness import fault_of_tree, fault_of_trees

# The flags of a test are three bits: where a missing cell goes, and (KIND) what is compared.
NAN_RIGHT = 1  # a missing cell, and for ZERO_BAND a zero, goes right
NUMERIC = 0  # right iff v > threshold
ZERO_BAND = 2  # the same, but zeros are missing (LightGBM's zero_as_missing)
CATEGORY = 4  # right iff the cell is 0 or more and in the set that the threshold numbers
CATEGORY_INVERTED = 6  # right iff it is not in the set; -0.5 counts as 0
KIND = 6
FLAGS = NAN_RIGHT | KIND

WHOLE, NARROW = 1, 2  # rounding of a column's cells before they are compared: to whole numbers, to float32

SIGMOID, SOFTMAX, AVERAGE = 0, 1, 2  # links: how raw scores become probabilities

Columns: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint32]

NO_LEVELS: tuple[Columns, Integers] = (np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64))


class Forest(NamedTuple):
    """A tree ensemble as flat arrays; T tests, N nodes in preorder (a left child follows its parent), L leaves."""

    test_column: Columns  # (T,) sorted
    test_threshold: Floats  # (T,) rising within a column; for a category test the number of its set
    test_flags: Flags  # (T,) NAN_RIGHT and KIND
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
    def one_sided(self) -> bool:
        """Whether the sums are the votes for the second of two classes; the first has the rest."""
        return self.link == AVERAGE and len(self.base) == 1

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
    from fragility.engines.kernels.preparing import preorder

    if not trees:
        raise EngineError("the ensemble has no trees")
    _refuse_damaged(trees, n_columns)
    orders = [preorder(tree.left, tree.right, tree.leaf) for tree in trees]

    def join(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([array[order] for array, order in zip(arrays, orders, strict=True)])

    starts, leaf = find_starts([len(order) for order in orders]), join(tree.leaf for tree in trees)
    tests, inner_test = collect_tests(
        join(tree.column for tree in trees)[~leaf].astype(np.int32),
        join(tree.threshold for tree in trees)[~leaf].astype(np.float64),
        join(tree.flags for tree in trees)[~leaf],
        n_columns,
        sets,
    )
    node_test = np.empty(len(leaf), dtype=np.int32)
    node_test[~leaf] = inner_test
    node_test[leaf] = -1 - np.arange(int(leaf.sum()), dtype=np.int32)
    rights = []
    for tree, order, start in zip(trees, orders, starts[:-1], strict=True):
        place = np.empty(len(tree.leaf), dtype=np.int64)
        place[order] = np.arange(start, start + len(order))
        rights.append(place[np.where(tree.leaf, 0, tree.right)])
    return Forest(
        **tests,
        node_test=node_test,
        node_right=join(rights).astype(np.int32),
        tree_start=starts,
        leaf_start=find_starts(np.add.reduceat(leaf, starts[:-1], dtype=np.int64)),
        leaf_value=np.ascontiguousarray(join(tree.value for tree in trees)[leaf]),
        tree_output=np.array([tree.output for tree in trees], dtype=np.int32),
        level_test=NO_LEVELS[0],
        level_start=NO_LEVELS[1],
        **convention._asdict(),
    )


def _refuse_damaged(trees: Sequence[TreeNodes], n_columns: int) -> None:
    arrays = [(tree.left, tree.right, tree.leaf, tree.column) for tree in trees]
    if all(len(array) == len(tree.leaf) for tree, own in zip(trees, arrays, strict=True) for array in own):
        # all trees at once: to look at each by itself is slow
        left, right, leaf, column = (np.concatenate(part) for part in zip(*arrays, strict=True))
        starts = find_starts([len(tree.leaf) for tree in trees])
        if fault_of_trees(left, right, leaf, column, starts, n_columns) is None:
            return
    for number, own in enumerate(arrays):
        fault = fault_of_tree(*own, n_columns)
        if fault is not None:
            raise ModelError(f"the model is damaged: tree {number}: {fault}")


def find_starts(sizes: Sequence[int] | Integers) -> Integers:
    """Return where each of some neighbouring pieces starts, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def list_members(words: npt.NDArray[np.uint32]) -> list[int]:
    """Return the categories whose bits are set in some words."""
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def collect_tests(
    column: Columns, threshold: Floats, flags: Flags, n_columns: int, sets: Sequence[Sequence[int]]
) -> tuple[dict[str, Any], npt.NDArray[np.int32]]:
    """Return the distinct tests of all splits, as fields of ``Forest``, and the number of each split's test.

    sets: as for ``assemble``; equal sets get one number.
    """
    distinct: dict[tuple[int, ...], int] = {}
    numbers = np.array([distinct.setdefault(tuple(sorted(s)), len(distinct)) for s in sets], dtype=np.int64)
    category = (flags & KIND) >= CATEGORY
    if category.any():
        threshold = threshold.copy()
        threshold[category] = numbers[threshold[category].astype(np.int64)]
    words = [np.zeros(max(members, default=0) // 32 + 1, dtype=np.uint32) for members in distinct]
    for bits, members in zip(words, distinct, strict=True):
        for member in members:
            bits[member // 32] |= np.uint32(1 << (member % 32))
    order = np.lexsort((flags, threshold, column))
    c, t, f = column[order], threshold[order], flags[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (c[1:] != c[:-1]) | (t[1:] != t[:-1]) | (f[1:] != f[:-1])
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.cumsum(first) - 1
    fields = {
        "test_column": c[first],
        "test_threshold": t[first],
        "test_flags": f[first],
        "column_start": np.searchsorted(c[first], np.arange(n_columns + 1)).astype(np.int64),
        "set_start": find_starts([len(bits) for bits in words]),
        "set_words": np.concatenate([np.zeros(0, dtype=np.uint32), *words]),
    }
    return fields, number
