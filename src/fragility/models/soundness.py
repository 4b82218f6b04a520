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
    n = len(leaf)
    if n == 0 or not len(left) == len(right) == len(column) == n:
        return "its arrays differ in length, or are empty"
    seen = np.zeros(n, dtype=bool)
    level = np.zeros(1, dtype=np.int64)
    while len(level):
        if seen[level].any():
            return "a node is reached in two ways"
        seen[level] = True
        inner = level[~leaf[level]]
        if ((column[inner] < 0) | (column[inner] >= n_columns)).any():
            return f"a node asks for a column that is not among the {n_columns}"
        level = np.concatenate([left[inner], right[inner]]).astype(np.int64)
        if ((level < 0) | (level >= n)).any():
            return "a child is out of range"
        if len(np.unique(level)) != len(level):
            return "a node is reached in two ways"
    return None
