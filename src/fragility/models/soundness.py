"""Whether the arrays of a decision tree form one: children in range, no node reached twice, columns that exist.

Libraries walk their trees without looking: a child out of range reads memory that is not theirs, and a child that leads
back never ends. This module imports numpy alone, because ``trial`` loads it in a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def fault_of_tree(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    leaf: npt.NDArray[np.bool_],
    column: npt.NDArray[Any],
    n_columns: int,
) -> str | None:
    """Return what is wrong with a tree whose node 0 is the root, in words; None for a tree. Unreached nodes may be."""
    return fault_of_trees(left, right, leaf, column, np.array([0, len(leaf)]), n_columns)


def fault_of_trees(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    leaf: npt.NDArray[np.bool_],
    column: npt.NDArray[Any],
    starts: npt.NDArray[Any],
    n_columns: int,
) -> str | None:
    """Return what is wrong with trees that lie one after the other, children counted from their own tree's root.

    starts: (trees+1,) first node of each tree. All trees are walked together, level by level.
    """
    n = len(leaf)
    if not len(left) == len(right) == len(column) == n or (np.diff(starts) < 1).any():
        return "its arrays differ in length, or are empty"
    reached_by = np.full(n, -1, dtype=np.int64)
    tree = np.arange(len(starts) - 1)
    level = np.asarray(starts[:-1], dtype=np.int64)
    while len(level):
        if (reached_by[level] >= 0).any():
            return "a node is reached in two ways"
        own = np.arange(len(level))
        reached_by[level] = own
        if (reached_by[level] != own).any():  # another one of this level came here as well
            return "a node is reached in two ways"
        tree, level = tree[~leaf[level]], level[~leaf[level]]
        if ((column[level] < 0) | (column[level] >= n_columns)).any():
            return f"a node asks for a column that is not among the {n_columns}"
        children = np.concatenate([left[level], right[level]]).astype(np.int64)
        tree = np.concatenate([tree, tree])
        level = children + starts[tree]
        if ((children < 0) | (level >= starts[tree + 1])).any():
            return "a child is out of range"
    return None
