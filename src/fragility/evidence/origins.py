"""Origins, tried: do the columns of a model's input come from the raw fields that they are said to come from?

What the structure and the names of a preprocessing say is a claim (`fragility.evidence.tracing`). Here it is put to the
whole preprocessing, on a few raw rows: some fields are given the values of other rows, and a column that moves with
them comes from one of them too. A step may mix fields only where one of them is missing, as an imputer does that
guesses from the other columns, so some rows have missing cells, if need be ones that were emptied for the purpose.

Most columns are said to come from one field. Fields are then moved many at a time, so that each pair of them is told
apart by one set that moves one and leaves the other; only what contradicts a claim is tried field by field.

A protocol stores the origins found on its training rows; rows bound to it are compared with what it says.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Booleans, Integers
from fragility.errors import EvidenceError, ProtocolError, name_error
from fragility.evidence.bound import EvidenceSpace, InputColumn
from fragility.evidence.rows import Rows, list_names, native_like
from fragility.evidence.tracing import Origin, Origins, UntraceableError, claim_origins, output_names
from fragility.models.adapter import Model

SAMPLE_ROWS = 64  # of which half have a missing cell, where there are such rows
CHECKED_ROWS = 24  # where a protocol is compared with what its columns do
SHIFTS = (1, 7, 29)  # how far down a field's values move; together they bring most pairs of values together
ROWS_AT_A_TIME = 20_000
FEW_FIELDS = 6  # so many are moved one by one
MANY_FIELDS = 64  # so many are moved by one shift only where they are moved one by one
CLOSE, CLOSE_SINGLE = 1e-9, 1e-5  # relative: a matrix product rounds by the shape of its batch


def trace_origins(model: Model, rows: Rows) -> Origins:
    """Return the origin of each column that the preprocessing hands on: as claimed, and as tried on training rows."""
    claimed = claim_origins(model.transformer, rows.names)
    found = Trial.of(model, rows).find_fields([origin.fields for origin in claimed])
    if found is None:
        found = [origin.fields for origin in claimed]
    if len(found) != len(claimed):
        raise UntraceableError(
            f"the preprocessing gives {len(found)} columns, {len(claimed)} could be traced to raw fields"
        )
    place = {name: j for j, name in enumerate(rows.names)}
    found = [tuple(sorted(fields, key=place.__getitem__)) for fields in found]
    return [
        replace(origin, fields=fields) if len(fields) == len(origin.fields) else Origin(fields, rising=False)
        for origin, fields in zip(claimed, found, strict=True)
    ]


def list_inputs(model: Model, origins: Origins) -> tuple[InputColumn, ...]:
    """Return the columns that the preprocessing hands on, with the raw fields that each is made from."""
    names = output_names(model.transformer, len(origins))
    return tuple(InputColumn(name, origin.fields) for name, origin in zip(names, origins, strict=True))


def known_origins(model: Model, space: EvidenceSpace) -> Origins:
    """Return the origins of the preprocessing's columns that a protocol stores, with what its steps say beside.

    A column is known to rise with its field only where its steps make it from that field alone.
    """
    stored = [Origin(column.fields, rising=False) for column in space.inputs]
    names = [own.name for own in space.fields]
    try:
        claimed = claim_origins(model.transformer, list(model.name_columns(names) or names))
    except UntraceableError:
        return stored
    if len(claimed) != len(stored):
        return stored
    return [
        replace(claim, fields=own.fields) if set(own.fields) == set(claim.fields) else own
        for own, claim in zip(stored, claimed, strict=True)
    ]


def check_origins(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Refuse a protocol whose columns come from other fields than it says, by their steps or by what they do here."""
    check_claims(model, rows, space)
    check_moves(model, rows, space)


def check_claims(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Refuse a protocol whose columns come from other fields than it says, by the structure of the preprocessing."""
    claimed = claim_origins(model.transformer, rows.names)
    if len(claimed) != len(space.inputs):
        raise ProtocolError(
            f"the protocol names {len(space.inputs)} columns of the estimator's input, the preprocessing makes "
            f"{len(claimed)}; fit a protocol for this model"
        )
    _compare(space, [origin.fields for origin in claimed], rows.names, "is made from")


def check_moves(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Refuse a protocol whose columns move with other fields than it says, on a few of these rows."""
    found = Trial.of(model, rows, CHECKED_ROWS, SHIFTS[:2]).find_fields([column.fields for column in space.inputs])
    if found is not None:
        _compare(space, found, rows.names, "changes with")


def _compare(space: EvidenceSpace, found: Sequence[tuple[str, ...]], names: Sequence[str], does: str) -> None:
    for column, fields in zip(space.inputs, found, strict=True):
        if others := [name for name in names if name in set(fields) - set(column.fields)]:
            raise ProtocolError(
                f"the protocol says that column {column.name!r} is made from {list_names(column.fields)}, but it "
                f"{does} {list_names(others)}; fit a protocol for this model"
            )


# --- trying ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trial:
    """A preprocessing, and the few rows on which it is tried."""

    model: Model
    rows: Rows  # a few
    shifts: Sequence[int]

    @classmethod
    def of(cls, model: Model, rows: Rows, n_rows: int = SAMPLE_ROWS, shifts: Sequence[int] = SHIFTS) -> Trial:
        """Choose the rows, the same ones whatever the order of the table."""
        return cls(model, choose_rows(rows, n_rows), shifts)

    def find_fields(self, said: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]] | None:
        """Return the fields of each column: those it is said to come from, and those it moves with.

        None where nothing can be tried: there is one row only.
        """
        names = self.rows.names
        if len(self.rows) < 2 or all(set(own) == set(names) for own in said):
            return None
        place = {name: j for j, name in enumerate(names)}
        fields = np.zeros((len(said), len(names)), dtype=bool)
        for c, own in enumerate(said):
            fields[c, [place[name] for name in own if name in place]] = True
        whole, several = fields.all(axis=1), fields.sum(axis=1) > 1
        sets, sample = list_sets(len(names)), self._empty_cells(range(len(names)))
        try:
            moved = self._find_moved(sample, sets, self.shifts)
        except UntraceableError:
            sample = self._choose_emptied()
            moved = self._find_moved(sample, sets, self.shifts)
        if moved.shape[1] != len(said):
            return [()] * moved.shape[1]
        if len(names) > FEW_FIELDS:
            wrong = (moved.T & ~np.array([[(own & some).any() for some in sets] for own in fields])).any(axis=1)
            if not (wrong | (several & ~whole)).any():
                return list(said)
            shifts = self.shifts[:1] if len(names) > MANY_FIELDS else self.shifts
            moved = self._find_moved(sample, list(np.eye(len(names), dtype=bool)), shifts)
            if (wrong & ~(moved.T & ~fields).any(axis=1)).any():
                raise UntraceableError(
                    "the preprocessing makes a column that moves with several fields together and with none of them "
                    "alone, so it cannot be traced to raw fields"
                )
        fields |= moved.T
        return [tuple(name for name, own in zip(names, row, strict=True) if own) for row in fields]

    def _choose_emptied(self) -> Sample:
        """Return the rows with copies in which cells are emptied, of fields whose missing values are accepted."""
        every = range(len(self.rows.names))
        sample = self._empty_cells([j for j in every if self._accepts(self._empty_cells([j]))])
        return sample if self._accepts(sample) else self._empty_cells([])

    def _empty_cells(self, places: Sequence[int]) -> Sample:
        """Return the rows with copies in which each of some fields is missing once."""
        width = len(self.rows.names)
        count = 0 if self.rows.frame is None else min(len(places), max(len(self.rows) // 2, 1))
        emptied = np.zeros((count, width), dtype=bool)
        if count:
            emptied[np.arange(len(places)) % count, list(places)] = True
        return Sample(self.rows, np.arange(count) % len(self.rows), emptied)

    def _accepts(self, sample: Sample) -> bool:
        if not len(sample.copied):
            return True
        try:
            self._make(sample.table([np.arange(len(sample))[:, None]]))
        except Exception:  # an encoder that knows no missing value, for one: such rows are never answered
            return False
        return True

    def _make(self, native: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a step says of values that nobody has asked about
            made = self.model.preprocess(native)
        cells = np.asarray(made.toarray() if sp.issparse(made) else made)
        return cells if cells.dtype == object or cells.dtype.kind in "SUMmf" else cells.astype(np.float64)

    def _find_moved(self, sample: Sample, sets: Sequence[Booleans], shifts: Sequence[int]) -> Booleans:
        """Return (sets, columns) which columns move when the fields of a set take the values of other rows."""
        n = len(sample)
        moves = [(s, shift) for s in range(len(sets)) for shift in shifts if shift % n]
        width = max(1, ROWS_AT_A_TIME // n - 2)
        found: dict[int, Booleans] = {}
        for start in range(0, len(moves), width):
            some = moves[start : start + width]
            own = np.arange(n)[:, None]
            takes = [own, own, *(np.where(sets[s], np.roll(own, shift, axis=0), own) for s, shift in some)]
            out = self._transform(sample, takes)
            for b, (s, _) in enumerate(some, start=2):
                changed = differs(out[b], out[0]).any(axis=0)
                found[s] = found[s] | changed if s in found else changed
        return np.array([found[s] for s in range(len(sets))])

    def _transform(self, sample: Sample, takes: Sequence[Integers]) -> Any:
        """Return (blocks, n, columns) what is made of rearranged copies of the sample, the first two as they are."""
        name = " -> ".join(type(step).__name__ for _, step in getattr(self.model.transformer, "steps", ()))
        try:
            out = self._make(sample.table(takes)).reshape(len(takes), len(sample), -1)
        except Exception as error:
            raise UntraceableError(
                f"the preprocessing ({name}) fails on rows in which some fields have another row's value "
                f"({name_error(error)}), so its columns cannot be traced to raw fields"
            ) from error
        if differs(out[1], out[0]).any():
            raise EvidenceError(
                f"the preprocessing ({name}) gives different columns for the same row twice in a table, so it is "
                "random or depends on the other rows; a certificate needs preprocessing that treats each row by itself"
            )
        return out


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows, and behind them copies of some in which cells are emptied."""

    rows: Rows
    copied: Integers  # (m,) the rows copied
    emptied: Booleans  # (m, d)

    def __len__(self) -> int:
        return len(self.rows) + len(self.copied)

    def table(self, takes: Sequence[npt.NDArray[np.int64]]) -> Any:
        """Return rows in the user's kind of container: cell (i, j) of each block is that of row takes[i, j]."""
        places = np.concatenate([np.broadcast_to(some, (len(self), len(self.rows.names))) for some in takes])
        if self.rows.frame is None:
            return sp.csr_matrix(np.take_along_axis(self.rows.native.toarray(), places, axis=0))
        source = np.concatenate([np.arange(len(self.rows)), self.copied])
        columns = {}
        for j, name in enumerate(self.rows.names):
            column = self.rows.frame[name].iloc[source].reset_index(drop=True)
            gone = np.concatenate([np.zeros(len(self.rows), dtype=bool), self.emptied[:, j]])
            if gone.any():
                column = column.mask(gone)
            columns[name] = column.iloc[places[:, j]].reset_index(drop=True)
        return native_like(pd.DataFrame(columns), self.rows)


def choose_rows(rows: Rows, count: int = SAMPLE_ROWS) -> Rows:
    """Return a few rows, the same whatever the order of the table; half have missing cells where there are such."""
    try:
        frame = rows.frame
        hashes = None if frame is None else pd.util.hash_pandas_object(frame, index=False).to_numpy()
    except (TypeError, ValueError):  # cells that have no hash
        hashes = None
    if hashes is None:
        return rows.head(count)
    assert frame is not None
    order = np.argsort(hashes, kind="stable")
    gappy = frame.isna().any(axis=1).to_numpy(dtype=bool)[order]
    chosen = order[gappy][: count // 2]
    chosen = np.concatenate([chosen, order[~gappy][: count - len(chosen)]])
    chosen = np.concatenate([chosen, order[gappy][count // 2 :][: count - len(chosen)]])
    return rows.take(chosen.tolist())


def list_sets(n_fields: int) -> list[Booleans]:
    """Return sets of fields such that for any two fields one holds the first and not the second."""
    if n_fields <= FEW_FIELDS:
        return list(np.eye(n_fields, dtype=bool))
    return list(_halves(n_fields))


def _halves(n_fields: int) -> Iterator[Booleans]:
    for bit in range((n_fields - 1).bit_length()):
        held = (np.arange(n_fields) >> bit & 1).astype(bool)
        yield held
        yield ~held


def differs(a: Any, b: Any) -> Any:
    """Return where two arrays hold different values, rounding aside."""
    if a.dtype.kind == "f":
        close = CLOSE_SINGLE if a.dtype.itemsize < np.dtype(np.float64).itemsize else CLOSE
        return ~np.isclose(a, b, rtol=close, atol=1e-12, equal_nan=True)
    return np.asarray(a != b, dtype=bool) & ~(pd.isna(a) & pd.isna(b))
