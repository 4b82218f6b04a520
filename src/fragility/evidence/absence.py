"""Absence: evidence that is not there cannot be lost.

A raw field whose value is missing in a row stays missing in every state of that row: the pipeline's imputer, or the
model's own rule for missing values, goes on answering for it. A cell of the evidence space is *absent* if every raw
field it comes from is missing in its row; an evidence group, if all of its cells are. No state moves an absent cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fragility.base.arrays import Booleans, Integers
from fragility.evidence.fields import Field
from fragility.evidence.rows import Rows

Fields = tuple[str, ...]


class Spared(NamedTuple):
    """What no state moves in m rows."""

    cells: Booleans  # (m, d)
    groups: Booleans  # (m, G) groups of which every cell is absent

    def of(self, rows: Any) -> Spared:
        """Return the same of some of the rows: positions, marks or a slice."""
        return Spared(self.cells[rows], self.groups[rows])


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
