"""Arrays and numbers: names of their kinds, and budgets: how many rows fit into a number of bytes.

No result depends on a budget.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

MEBIBYTE = 2**20
DEFAULT_BYTE_BUDGET = 256 * MEBIBYTE  # stressed rows held at a time, where the user names no other bound
CELL_BYTES = 8  # rows are float64


def rows_within(byte_budget: int, cells: int, copies: int = 1, *, least: int = 1, most: int | None = None) -> int:
    """Return how many rows of ``cells`` cells fit into ``byte_budget`` while ``copies`` of them are alive at a time.

    Never fewer than ``least``: some progress must be made within any budget.
    """
    fitting = max(least, byte_budget // (CELL_BYTES * copies * max(1, cells)))
    return fitting if most is None else min(most, fitting)


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; True and False are none."""
    if isinstance(value, (float, np.floating)):
        return math.isfinite(value)
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_count(value: object, least: float = 1) -> bool:
    """Return whether a value is a whole number of at least ``least``; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)
