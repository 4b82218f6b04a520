"""Terms: a model that adds up tables, as trees and as flat tables.

A table has an entry for each combination of bins of a few columns. As a tree it asks about its columns one after the
other by halving, and the entries are its leaves: lattice and stability intervals read it so. Look-ups in the tables
themselves take a fraction of the time of a walk through such a tree: traces and answers come from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Floats, Integers
from fragility.engines.trees.forest import NAN_RIGHT, TreeNodes, find_starts


class Axis(NamedTuple):
    """A column as a table reads it: stretches of numbers that fall into one bin each; n stretches."""

    column: int
    level: int  # with the column, what tells it from other axes
    edges: Floats  # (n - 1,) rising; a number beyond the k-th edge is in a stretch after the k-th
    bins: Integers  # (n,); a missing cell is beyond every edge, and the last stretch is its own


class Term(NamedTuple):
    """One table. entries: (bins of each axis..., outputs)."""

    axes: tuple[Axis, ...]
    entries: Floats


class Terms(NamedTuple):
    """All tables as flat arrays; P slots, T terms, A axes of all terms."""

    base: Floats  # (outputs,) where sums start
    slot_column: Integers  # (P,)
    edge_start: Integers  # (P + 1,) first edge of each slot
    edges: Floats
    axis_start: Integers  # (T + 1,) first axis of each term
    axis_slot: npt.NDArray[np.uint64]  # (A,)
    axis_stride: npt.NDArray[np.uint64]  # (A,) between neighbouring stretches, in numbers
    entry_start: Integers  # (T,) first number of each term
    entries: Floats  # outputs of an entry stand side by side


def flatten_terms(terms: Sequence[Term], base: Floats) -> Terms:
    """Return tables over stretches instead of bins, one after the other."""
    axes = list({(axis.column, axis.level): axis for term in terms for axis in term.axes}.values())
    slot = {(axis.column, axis.level): p for p, axis in enumerate(axes)}
    slots, strides, tables = list[int](), list[int](), list[Floats]()
    for term in terms:
        table = term.entries
        for k, axis in enumerate(term.axes):
            table = table.take(axis.bins % table.shape[k], axis=k)
        slots += [slot[axis.column, axis.level] for axis in term.axes]
        strides += [int(np.prod(table.shape[k + 1 :])) for k in range(len(term.axes))]
        tables.append(table.reshape(-1))
    return Terms(
        base=base,
        slot_column=np.array([axis.column for axis in axes], dtype=np.int64),
        edge_start=find_starts([len(axis.edges) for axis in axes]),
        edges=np.concatenate([np.zeros(0), *(axis.edges for axis in axes)]),
        axis_start=find_starts([len(term.axes) for term in terms]),
        axis_slot=np.array(slots, dtype=np.uint64),
        axis_stride=np.array(strides, dtype=np.uint64),
        entry_start=find_starts([len(table) for table in tables])[:-1],
        entries=np.concatenate([np.zeros(0), *tables]),
    )


def build_tree(term: Term) -> TreeNodes:
    """Return a table as a tree."""
    table, edges = term.entries, []
    for k, axis in enumerate(term.axes):
        by_stretch = np.moveaxis(table.take(axis.bins % table.shape[k], axis=k), k, 0)
        # Neighbouring stretches with equal entries are one.
        first = np.r_[True, (by_stretch[1:] != by_stretch[:-1]).reshape(len(by_stretch) - 1, -1).any(axis=1)]
        edges.append(axis.edges[first[1:]])
        table = np.moveaxis(by_stretch[first], 0, k)
    tree = _Nodes.of_leaf()
    for axis, own in zip(reversed(term.axes), reversed(edges), strict=True):
        tree = tree.ask(axis.column, own)
    leaf = tree.column < 0
    flags: npt.NDArray[np.uint8] = np.where(leaf, 0, NAN_RIGHT).astype(np.uint8)
    values = table.reshape(-1, table.shape[-1])[tree.entry]
    return TreeNodes(tree.column, tree.threshold, tree.left, tree.right, leaf, flags, values)


class _Nodes(NamedTuple):
    """The shape of a tree; node 0 is the root."""

    column: Integers  # (nodes,), -1 at leaves
    threshold: Floats  # (nodes,)
    left: Integers  # (nodes,), -1 at leaves
    right: Integers
    entry: Integers  # (nodes,) at leaves the entry of the table
    entries: int

    @classmethod
    def of_leaf(cls) -> _Nodes:
        none = np.array([-1])
        return cls(none, np.zeros(1), none, none, np.array([0]), 1)

    def ask(self, column: int, edges: Floats) -> _Nodes:
        """Return a tree that asks about one more column first, and goes on with a copy of this one for each stretch."""
        size, count = len(self.column), len(edges) + 1
        edge, left, right, leaf = _halve(count)
        inner = np.flatnonzero(leaf < 0)
        place = np.empty(len(leaf), dtype=np.int64)  # inner nodes come first, then the copies
        place[inner] = np.arange(len(inner))
        place[leaf >= 0] = len(inner) + leaf[leaf >= 0] * size
        shift, part = np.repeat(np.arange(count) * size, size) + len(inner), np.repeat(np.arange(count), size)

        def copy_children(children: Integers) -> Integers:
            return np.where(np.tile(children, count) < 0, -1, np.tile(children, count) + shift)

        entry = np.tile(self.entry, count) + part * self.entries
        return _Nodes(
            column=np.concatenate([np.full(len(inner), column), np.tile(self.column, count)]),
            threshold=np.concatenate([edges[edge[inner]], np.tile(self.threshold, count)]),
            left=np.concatenate([place[left[inner]], copy_children(self.left)]),
            right=np.concatenate([place[right[inner]], copy_children(self.right)]),
            entry=np.concatenate([np.zeros(len(inner), dtype=np.int64), entry]),
            entries=self.entries * count,
        )


def _halve(count: int) -> tuple[Integers, Integers, Integers, Integers]:
    """Return (edge, left, right, stretch or -1) of each node of a search among ``count`` stretches."""
    spans = [(0, count)]
    edge, left, right, leaf = list[int](), list[int](), list[int](), list[int]()
    for first, stop in spans:  # grows as it is walked
        middle, single = (first + stop) // 2, stop - first == 1
        edge.append(0 if single else middle - 1)
        left.append(-1 if single else len(spans))
        right.append(-1 if single else len(spans) + 1)
        leaf.append(first if single else -1)
        spans += [] if single else [(first, middle), (middle, stop)]
    return np.array(edge), np.array(left), np.array(right), np.array(leaf)
