"""Stressed copies of rows, each row with its own: said by what is moved, not built as cells.

A state marks units of one row, its evidence groups or its columns, and moves the marked ones toward the baseline: by 1,
which removes them, or by a severity of its own. An engine that reads the model answers such states without the cells of
every copy; for a model that can only be asked, ``EvidenceRows.stressed`` builds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fragility.arrays import Booleans, Floats, Integers


@dataclass(frozen=True, slots=True, eq=False)
class RowStates:
    """States of some rows, q in all; U units: the groups, or the columns."""

    owner: Integers  # (q,) the row that each state is of, rising
    moved: Booleans  # (q, U)
    severity: Floats | None = None  # of what is moved: (q,), or (q, U); None: it is removed
    by_column: bool = False  # units are columns

    @classmethod
    def removals(cls, moved: Booleans, by_column: bool = False) -> RowStates:
        """Return the states of rows that have as many each; moved (m, Q, U)."""
        m, per_row, units = moved.shape
        return cls(np.repeat(np.arange(m), per_row), moved.reshape(m * per_row, units), None, by_column)

    @classmethod
    def unmoved(cls, n: int, n_groups: int) -> RowStates:
        """Return n rows as they stand."""
        return cls(np.arange(n), np.zeros((n, n_groups), dtype=bool))

    @classmethod
    def of_one(cls, moved: Booleans) -> RowStates:
        """Return the removals of groups (q, G) of a single row."""
        return cls(np.zeros(len(moved), dtype=np.int64), moved)

    def __len__(self) -> int:
        return len(self.owner)

    def between(self, start: int, stop: int) -> RowStates:
        """Return the states from start to stop, as views."""
        severity = None if self.severity is None else self.severity[start:stop]
        return RowStates(self.owner[start:stop], self.moved[start:stop], severity, self.by_column)

    def some(self, chosen: Booleans) -> RowStates:
        """Return the states that are marked (q,)."""
        severity = None if self.severity is None else self.severity[chosen]
        return RowStates(self.owner[chosen], self.moved[chosen], severity, self.by_column)

    def unit_of(self, column_group: Integers) -> Integers:
        """Return (d,) the unit of each column."""
        return np.arange(len(column_group)) if self.by_column else column_group
