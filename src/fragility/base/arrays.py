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
    """Return whether a value is a finite number; True and False are not."""
    if isinstance(value, (float, np.floating)):
        return math.isfinite(value)
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_count(value: object, least: float = 1) -> bool:
    """Return whether a value is a whole number of at least ``least``; True and False are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


UNITS = 1130  # of 2**-1130: every float64 is a whole number of them


class ExactSum:
    """A sum of finite numbers, rounded once: it does not depend on their order, nor on the parts that they come in."""

    def __init__(self) -> None:
        self._high, self._low = (np.zeros(UNITS + 1024, dtype=np.int64) for _ in range(2))

    def add(self, values: Floats) -> None:
        """Add some numbers: whole mantissas, in two halves that cannot overflow, by their exponents."""
        mantissa, exponent = np.frexp(values)
        whole, place = (mantissa * 2.0**53).astype(np.int64), exponent.astype(np.int64) - 53 + UNITS
        np.add.at(self._high, place, whole >> 27)
        np.add.at(self._low, place, whole & (2**27 - 1))

    @property
    def total(self) -> float:
        """The sum."""
        used = np.flatnonzero(self._high | self._low).tolist()
        return sum(((int(self._high[at]) << 27) + int(self._low[at])) << at for at in used) / (1 << UNITS)
