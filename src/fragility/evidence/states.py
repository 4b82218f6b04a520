"""States: stressed copies of rows, described by which units they move toward the baseline, and how far.

Every deterministic state of an audit is a severity s in [0, 1] for each group, applied to x: each column of group g
moves by s_g * (baseline - x). ``blend`` is that rule, once, for every engine's twin to agree with. Cells of raw fields
that are missing in a row are not moved.

Evidence that is not there cannot be lost: a raw field whose value is missing in a row stays missing in every state of
that row, and the pipeline's imputer, or the model's own rule for missing values, goes on answering for it. A cell of
the evidence space is *absent* if every raw field it comes from is missing in its row; an evidence group, if all of its
cells are. No state moves an absent cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.evidence.fields import Field
from fragility.evidence.rows import Rows

STEP = 0.5  # a value that cannot be interpolated takes the baseline's from this severity on
Fields = tuple[str, ...]


class Spared(NamedTuple):
    """What no state moves in m rows."""

    cells: Booleans  # (m, d)
    groups: Booleans  # (m, G) groups of which every cell is absent

    def of(self, rows: Any) -> Spared:
        """Return the same of some of the rows: positions, marks or a slice."""
        return Spared(self.cells[rows], self.groups[rows])


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Stressed copies of some rows, q in all, described by what is moved; their cells are not built.

    A state marks units of one row, its groups or its columns (U units), and moves the marked ones toward the baseline:
    by 1, which removes them, or by a severity of its own. An engine that reads the model answers such states without
    the cells of every copy; for the model itself, ``EvidenceRows.stressed`` builds them.
    """

    owner: Integers  # (q,) the row that each state is of, rising
    moved: Booleans  # (q, U)
    severity: Floats | None = None  # of what is moved: (q,), or (q, U); None: it is removed
    by_column: bool = False  # units are columns

    @classmethod
    def removals(cls, moved: Booleans, by_column: bool = False) -> States:
        """Return the states of rows that have as many each; moved (m, Q, U)."""
        m, per_row, units = moved.shape
        return cls(np.repeat(np.arange(m), per_row), moved.reshape(m * per_row, units), None, by_column)

    @classmethod
    def unmoved(cls, n: int, n_groups: int) -> States:
        """Return n rows as they stand."""
        return cls(np.arange(n), np.zeros((n, n_groups), dtype=bool))

    @classmethod
    def of_one(cls, moved: Booleans) -> States:
        """Return the removals of groups (q, G) of a single row."""
        return cls(np.zeros(len(moved), dtype=np.int64), moved)

    def __len__(self) -> int:
        return len(self.owner)

    def between(self, start: int, stop: int) -> States:
        """Return the states from start to stop, as views."""
        return self.some(slice(start, stop))

    def some(self, chosen: Booleans | slice) -> States:
        """Return the states that are marked (q,), or lie in a slice."""
        severity = None if self.severity is None else self.severity[chosen]
        return States(self.owner[chosen], self.moved[chosen], severity, self.by_column)

    def sparing(self, spared: Spared | None, column_group: Integers) -> States:
        """Return the same states without what they would move of absent evidence; ``spared`` is of the rows."""
        if spared is None:
            return self
        if self.by_column:
            return replace(self, moved=self.moved & ~spared.cells[self.owner])
        if np.array_equal(spared.groups[:, column_group], spared.cells):
            return replace(self, moved=self.moved & ~spared.groups[self.owner])
        severity = self.severity  # some groups have lost a part of themselves: their columns move by themselves
        if severity is not None and severity.ndim == 2:
            severity = severity[:, column_group]
        moved = self.moved[:, column_group] & ~spared.cells[self.owner]
        return States(self.owner, moved, severity, by_column=True)

    def unit_of(self, column_group: Integers) -> Integers:
        """Return (d,) the unit of each column."""
        return np.arange(len(column_group)) if self.by_column else column_group


def blend(x: Floats, baseline: Floats, severity: npt.ArrayLike, stepwise: Booleans) -> Floats:
    """Return x moved toward the baseline by ``severity`` (broadcast over x's shape).

    s <= 0 is x exactly and s >= 1 the baseline exactly. Between, a cell is x + s * (baseline - x), unless it cannot be
    interpolated (a nominal column, a missing baseline or a missing value): then it is x while s < 0.5 and the
    baseline from 0.5 on.
    """
    s = np.broadcast_to(np.asarray(severity, dtype=np.float64), x.shape)
    moved = x + s * (baseline - x)
    jump = stepwise | np.isnan(x)
    moved = np.where(jump, np.where(s >= STEP, baseline, x), moved)
    return np.where(s >= 1.0, baseline, np.where(s <= 0.0, x, moved))


# --- absence ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Absence:
    """The raw fields that are missing in n rows, and what that means for their cells; F fields, A sets of fields."""

    missing: Booleans  # (n, F) fields in the protocol's order
    gone: Booleans  # (n, A) sets of fields of which all are missing
    of_column: Integers  # (d,) the set of fields that each column comes from
    of_group: tuple[Integers, ...]  # (G,) the sets that each group's columns come from

    def take(self, rows: Any) -> Absence:
        """Return the same of some rows: positions or a slice."""
        return replace(self, missing=self.missing[rows], gone=self.gone[rows])

    def of_columns(self, columns: Integers) -> Absence:
        """Return the same for some columns."""
        return replace(self, of_column=self.of_column[columns])

    def groups(self) -> Booleans:
        """Return (n, G) the groups of which every cell is absent."""
        return np.ascontiguousarray(np.transpose([self.gone[:, sets].all(axis=1) for sets in self.of_group]))

    def spared(self, start: int, stop: int | None) -> Spared | None:
        """Return what no state moves in the rows from start to stop; None if all may be moved."""
        part = self.take(slice(start, stop))
        return Spared(part.gone.take(self.of_column, axis=1), part.groups()) if part.gone.any() else None


def find_absence(
    rows: Rows, fields: Sequence[Field], column_fields: Sequence[Fields], column_group: Integers
) -> Absence | None:
    """Return which fields are missing in which rows, and so which cells of the evidence space; None if none is.

    column_fields: (d,) the raw fields that each column of the space is made from.
    """
    missing = find_missing(rows)
    if missing is None:
        return None
    missing = missing[:, [rows.names.index(field.name) for field in fields]]
    place = {field.name: i for i, field in enumerate(fields)}
    sets = sorted(set(column_fields))
    gone = np.stack([missing[:, [place[name] for name in names]].all(axis=1) for names in sets], axis=1)
    number = {names: i for i, names in enumerate(sets)}
    of_column = np.array([number[names] for names in column_fields], dtype=np.int64)
    of_group = tuple(np.unique(of_column[column_group == g]) for g in range(int(column_group.max()) + 1))
    return Absence(missing, gone, of_column, of_group)


def find_missing(rows: Rows) -> Booleans | None:
    """Return (n, columns) which raw values are missing; None if none is."""
    if rows.frame is None:
        return None
    if isinstance(rows.native, np.ndarray) and rows.native.dtype.kind in "fiub":
        missing = np.isnan(rows.native)
    else:
        missing = rows.frame.isna().to_numpy()
    return np.asarray(missing, dtype=bool) if missing.any() else None
