"""Decisions on rows that lack fields: the model decides on the row as it arrives, and changes are measured.

A missing field stays missing where the model can answer without it, by its imputer or its own rule for missing values.
Only where it cannot, a stand-in takes its place. Which it is, is tried once for each field, on a row made of values
that the protocol knows, so it depends on no row that is checked.

The stand-in is the protocol's baseline in raw units, so that the row as decided is an ordinary raw row: it can be
handed to the model, audited, logged and verified. In the raw space the protocol declares it. In the transformed space
the baseline is a value of the estimator's columns, and the stand-in is the raw value that the preprocessing turns into
it: a category of the catalogue or of the encoder, or a number found by interpolation within the training range, rounded
where the field held whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fragility.auditing.auditor import Auditor
from fragility.base.arrays import Floats, Integers
from fragility.base.canonical import is_missing
from fragility.base.errors import DataError, EvidenceError, FragilityError
from fragility.deciding.changing import DecisionChange, ValueCells, find_changes
from fragility.deciding.values import Neighbours
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import original_class
from fragility.evidence.fields import Field, is_categorical, type_of, value_like
from fragility.evidence.modes import values_frame, weigh_values
from fragility.evidence.origins import find_categories
from fragility.evidence.rows import (
    Rows,
    Scalar,
    are_records,
    list_names,
    name_by_text,
    native_like,
    read_model_rows,
    row_ids,
)
from fragility.models.outputs import to_python
from fragility.protocol import Protocol

# --- stand-ins ------------------------------------------------------------------------------------------------

GRID = 65  # values that are tried at a time between the two nearest so far
ROUNDS = 4
SAME = 1e-9  # of a cell: by so much may the encoding of a category differ from the baseline


def find_standins(rows: EvidenceRows, protocol: Protocol) -> dict[str, Scalar]:
    """Return the stand-in of each field that has one; None is a missing value.

    rows: any rows bound to the protocol. A field has no stand-in if no raw value becomes its baseline, as nominal
    fields under the baseline ``mean``.
    """
    if protocol.space == "raw" or rows.model.transformer is None or protocol.baseline == "missing":
        declared = {column.name: column.baseline for column in protocol.columns}
        return {field.name: declared.get(field.name) for field in protocol.fields}
    origins = protocol.evidence.column_fields
    used = {name for fields in origins for name in fields}
    standins: dict[str, Scalar] = {field.name: None for field in protocol.fields if field.name not in used}
    columns_of = {
        field.name: np.array([j for j, fields in enumerate(origins) if fields == (field.name,)], dtype=np.int64)
        for field in protocol.fields
    }
    measured = {
        name: columns[[protocol.columns[j].kind != "nominal" for j in columns]] for name, columns in columns_of.items()
    }
    ranges = {one.field: one for one in protocol.modes.ranges if isinstance(one.low, float)}
    numbers = {field.name: field for field in protocol.fields if field.name in ranges and len(measured[field.name])}
    ends = {name: (float(ranges[name].low), float(ranges[name].high)) for name in numbers}
    for name, value in _solve(rows, {name: (*ends[name], int(measured[name][0])) for name in numbers}).items():
        standins[name] = float(round(value)) if numbers[name].type == "integer" else value
    listed = [field for field in protocol.fields if field.name not in standins and len(columns_of[field.name])]
    candidates = {field.name: list(weigh_values(protocol.modes, field.name)) for field in listed}
    standins |= _match(rows, {name: values for name, values in candidates.items() if values}, columns_of)
    if any(name not in standins for name in candidates):  # joint values of a group need not hold the most frequent ones
        for name, values in find_categories(rows.model.transformer, rows.source.names).items():
            if name in candidates and name not in standins:
                with suppress(FragilityError):  # an encoder behind other steps: these are no raw values
                    standins |= _match(rows, {name: [to_python(value) for value in values]}, columns_of)
    return standins


def _encode(rows: EvidenceRows, values: dict[str, list[Scalar]]) -> Floats:
    assert rows.encode is not None and rows.source.frame is not None
    return rows.encode(values_frame(values, rows.source.frame))


def _solve(rows: EvidenceRows, searched: dict[str, tuple[float, float, int]]) -> dict[str, float]:
    """Return the number of each field at which its column is nearest to the baseline; searched: low, high, column.

    All fields are searched at once, since no column of one depends on another.
    """
    if not searched or rows.encode is None:
        return {}
    places = np.arange(GRID) / (GRID - 1)
    for _ in range(ROUNDS):
        grids = {name: low + (high - low) * places for name, (low, high, _) in searched.items()}
        cells = _encode(rows, {name: list(map(float, grid)) for name, grid in grids.items()})
        for name, (_, _, column) in searched.items():
            gap = cells[:, column] - rows.baseline[column]
            crossed = np.flatnonzero((gap[:-1] <= 0.0) != (gap[1:] <= 0.0))
            at = int(crossed[0]) if len(crossed) else int(np.argmin(np.abs(gap)))
            after = min(at + 1, GRID - 1) if len(crossed) else at
            searched = searched | {name: (float(grids[name][at]), float(grids[name][after]), column)}
    numbers = {}
    ends = _encode(rows, {name: [low, high] for name, (low, high, _) in searched.items()})
    for name, (low, high, column) in searched.items():
        left, right = ends[:, column]
        part = 0.0 if right == left else (rows.baseline[column] - left) / (right - left)
        numbers[name] = low + (high - low) * float(np.clip(part, 0.0, 1.0))
    return numbers


def _match(
    rows: EvidenceRows, candidates: dict[str, list[Scalar]], columns_of: dict[str, Integers]
) -> dict[str, Scalar]:
    """Return the first value of each field, among its candidates, that is encoded as the baseline."""
    if not candidates or rows.encode is None:
        return {}
    most = max(map(len, candidates.values()))
    padded = {name: [*values, *values[:1] * (most - len(values))] for name, values in candidates.items()}
    cells, matches = _encode(rows, padded), {}
    for name, values in candidates.items():
        columns = columns_of[name]
        mine, target = cells[: len(values), columns], rows.baseline[columns]
        same = (np.isnan(mine) & np.isnan(target)) | (np.abs(mine - target) <= SAME * (1.0 + np.abs(target)))
        if same.all(axis=1).any():
            matches[name] = values[int(np.argmax(same.all(axis=1)))]
    return matches


# --- putting them into a table -------------------------------------------------------------------------------


def fill_column(column: pd.Series, gaps: Sequence[bool], value: Scalar, field: Field) -> pd.Series:
    """Return a raw column with the stand-in in some of its rows, in a type that holds both."""
    if not any(gaps):
        return column
    at = np.asarray(gaps)
    if value is None:
        return column.mask(at)
    if field.type == "date":
        value = value_like(str(value), column)
    if is_categorical(column):
        known = column if value in column.cat.categories else column.cat.add_categories([value])
        return known.mask(at, value)
    if field.kind == "numeric" and _are_numbers(column := column.mask(at)):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        numbers[at] = value
        whole = field.type == "integer" and not np.isnan(numbers).any() and bool((numbers == np.rint(numbers)).all())
        return pd.Series(numbers.astype(np.int64) if whole else numbers, index=column.index, name=column.name)
    filled = column.astype(object).mask(at, value)
    holds_both = type_of(column) == field.type and not filled.isna().any() and not column.isna().any()
    return filled.astype(column.dtype) if holds_both else filled


def _are_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) or type_of(column) in ("integer", "number", "boolean", "empty")


# --- decisions ------------------------------------------------------------------------------------------------

Names = Collection[str]
USE_TYPICAL = "fit a protocol with the baseline 'typical'"


class Completed(NamedTuple):
    """Rows as they are decided."""

    native: Any
    ids: tuple[Hashable, ...]
    missing: list[tuple[str, ...]]  # fields of each row
    stand_ins: Mapping[str, Scalar]  # the value of each missing field that the model cannot answer without


class Decided(NamedTuple):
    """Decisions as they are made, before anything else is asked about them."""

    oracle: Oracle  # of the rows as decided
    predicted: Integers  # (n,) class indices
    confidence: Floats  # (n,)
    missing: tuple[tuple[str, ...], ...]
    stand_ins: Mapping[str, Scalar]  # of missing fields that the model cannot answer without
    stale: tuple[tuple[str, ...], ...]
    changes: tuple[DecisionChange | None, ...]


class Decider:
    """Decides on raw rows with missing or stale fields; its parts are prepared once.

    Cells of catalogue values are kept for rows of one form: ``EvidenceRows.encode`` is the same object for all of them.
    """

    def __init__(self, auditor: Auditor, draws: int, neighbours: Neighbours | None) -> None:
        self.auditor, self.protocol = auditor, auditor.protocol
        self.fields = tuple(field.name for field in self.protocol.fields)
        self._whole = {field.name for field in self.protocol.fields if field.type == "integer"}
        self._empty = {field.name for field in self.protocol.fields if field.type == "empty"}  # all missing in training
        self.draws, self.neighbours = draws, neighbours
        # Threads share these without a lock, which a fork would leave held: they are replaced as a whole.
        self._standins: dict[str, Scalar] | None = None
        self._answered: dict[tuple[type, str], bool] = {}  # by container and field: the model answers without it
        self._cells: tuple[Any, ValueCells] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_cells": None}  # cells belong to closures, which are made again

    def decide(
        self, rows: Any, missing: Sequence[Names | None] | None, stale: Sequence[Names] | None, ids: Any
    ) -> Decided:
        """Return the decision on each row, and what its unknown fields would have changed.

        missing: fields of each row, None for those that are null; None: for every row.
        """
        completed = self.complete(rows, missing, stale, ids)
        gone = completed.missing
        old = self._read_stale(stale, completed.ids, gone)
        bound = self.auditor.bind(completed.native, completed.ids)
        oracle = self.auditor.choose_oracle(bound)
        p = bound.own_probabilities(0, bound.dense())
        predicted = original_class(bound, p, self.protocol.resolution)
        unknown = [(*lost, *aged) for lost, aged in zip(gone, old, strict=True)]
        changes: list[DecisionChange | None] = [None] * len(bound)
        if any(unknown):
            changes = find_changes(
                oracle, self.protocol, predicted, unknown, self.find_cells(bound), self.draws, self.neighbours
            )
        confidence = p[np.arange(len(p)), predicted]
        return Decided(oracle, predicted, confidence, tuple(gone), completed.stand_ins, tuple(old), tuple(changes))

    def _read_stale(
        self, stale: Sequence[Names] | None, ids: Sequence[Hashable], gone: Sequence[tuple[str, ...]]
    ) -> list[tuple[str, ...]]:
        given = _list_names("stale", [()] * len(ids) if stale is None else stale, len(ids))
        old = [self._read_names("stale", names, row_id) for names, row_id in zip(given, ids, strict=True)]
        for row_id, lost, aged in zip(ids, gone, old, strict=True):
            if both := set(lost) & set(aged):
                raise DataError(f"row {row_id!r} names {min(both)!r} as missing and as stale; name it once")
        return old

    def _read_names(self, what: str, given: Names, row: Hashable) -> tuple[str, ...]:
        """Return the named fields in the order of the table; refuse one that is not known."""
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise DataError(
                f"the {what} fields of row {row!r} must be a collection of names, such as ['age'], got {given!r}"
            )
        names = list(given)
        if unknown := sorted(str(name) for name in names if name not in self.fields):
            raise DataError(
                f"the {what} fields of row {row!r} name {list_names(unknown)}, which the model does not know; the "
                f"fields are {', '.join(self.fields)}"
            )
        return tuple(name for name in self.fields if name in names)

    # --- rows as they are decided -----------------------------------------------------------------------------

    def complete(
        self, rows: Any, missing: Sequence[Names | None] | None, stale: Sequence[Names] | None, ids: Any
    ) -> Completed:
        """Return the rows as the model decides on them: with missing fields left missing, or with stand-ins.

        A null in a field that is named as stale is its old value; one in a field that never had a value says nothing.
        """
        if are_records(rows):
            given = [rows] if isinstance(rows, Mapping) else rows
            records = [name_by_text(row, place) for place, row in enumerate(given)]
            filled = [{**dict.fromkeys(self._empty), **row} if self._empty - row.keys() else row for row in records]
            return self._complete_records(filled, missing, stale, ids)
        if isinstance(rows, pd.DataFrame):
            held = set(map(str, rows.columns))
            absent = [name for name in self.fields if name not in held]
            rows = rows.assign(**dict.fromkeys(absent)) if absent else rows
        read = self.read(rows, ids)
        table = read.frame
        if table is None:
            raise DataError("a check needs rows in a table or a dense array, got a sparse matrix")
        nulls = {name: table[name].isna().to_numpy(dtype=bool) for name in self.fields}
        missing_of = self._find_missing(
            missing, stale, read.ids, lambda i: (name for name in self.fields if nulls[name][i])
        )
        lacking = [field for field in self.protocol.fields if any(field.name in lacked for lacked in missing_of)]
        if not lacking:
            return Completed(read.native, read.ids, missing_of, {})
        names = [field.name for field in lacking]
        standins = self._choose_standins(names, type(read.native), lambda gap: self._probe_table(read, gap))
        changed = {}
        for field in lacking:
            gaps = [field.name in lacked for lacked in missing_of]
            changed[field.name] = fill_column(table[field.name], gaps, standins.get(field.name), field)
        return Completed(native_like(table.assign(**changed), read), read.ids, missing_of, standins)

    def _complete_records(
        self,
        records: list[Mapping[str, Any]],
        missing: Sequence[Names | None] | None,
        stale: Sequence[Names] | None,
        ids: Any,
    ) -> Completed:
        """Complete rows given as mappings, in which a missing field may be absent."""
        own_ids = row_ids(ids, None, len(records))
        missing_of = self._find_missing(
            missing, stale, own_ids, lambda i: (name for name in self.fields if is_missing(records[i].get(name)))
        )
        names = [name for name in self.fields if any(name in lacked for lacked in missing_of)]
        if not names:
            return Completed(records, own_ids, missing_of, {})
        standins = self._choose_standins(names, dict, lambda gap: self._probe_records(records[0], gap))
        completed = [
            {**row, **{name: standins.get(name) for name in lost}} if lost else row
            for row, lost in zip(records, missing_of, strict=True)
        ]
        return Completed(completed, own_ids, missing_of, standins)

    def _choose_standins(
        self, names: Sequence[str], container: type, probe: Callable[[str | None], Any]
    ) -> dict[str, Scalar]:
        """Return the values that stand in for those of the fields that the model cannot answer without.

        probe: makes two rows of known values in the form of the user's; in the first of them a field may be missing.
        """
        unanswered = [name for name in names if not self._answers_without(name, container, probe)]
        if not unanswered:
            return {}
        standins = self._standins or self.find_standins(lambda: probe(None))
        return {name: self._stand_in(name, standins) for name in unanswered}

    def _answers_without(self, name: str, container: type, probe: Callable[[str | None], Any]) -> bool:
        """Return whether the model answers when a field is missing; tried once for each container of rows."""
        if self.protocol.baseline == "missing":
            return True  # Protocol.fit has tried it
        answers = self._answered.get((container, name))
        if answers is None:
            # A model that cannot answer the complete rows either says nothing about the field.
            answers = self._answers(probe(name)) or not self._answers(probe(None))
            self._answered = {**self._answered, (container, name): answers}
        return answers

    def _answers(self, rows: Any) -> bool:
        try:
            bound = self.auditor.bind(rows, [0, 1])
            bound.own_probabilities(0, bound.dense())
        except FragilityError:
            return False
        return True

    def _probe_records(self, record: Mapping[str, Any], gap: str | None) -> list[dict[str, Any]]:
        known = {name: record.get(name) for name in self.fields} | known_values(self.protocol)
        return [known if gap is None else {**known, gap: None}, known]

    def _probe_table(self, rows: Rows, gap: str | None) -> Any:
        assert rows.frame is not None
        known, table = known_values(self.protocol), rows.frame.iloc[[0, 0]].reset_index(drop=True)
        fields = [field for field in self.protocol.fields if field.name in known]
        table = table.assign(**{f.name: fill_column(table[f.name], [True, True], known[f.name], f) for f in fields})
        gaps = [field for field in self.protocol.fields if field.name == gap]
        table = table.assign(**{f.name: fill_column(table[f.name], [True, False], None, f) for f in gaps})
        return native_like(table, rows)

    def _find_missing(
        self,
        missing: Sequence[Names | None] | None,
        stale: Sequence[Names] | None,
        ids: Sequence[Hashable],
        find_nulls: Callable[[int], Iterable[str]],
    ) -> list[tuple[str, ...]]:
        given = _list_names("missing", [None] * len(ids) if missing is None else missing, len(ids))
        old = _list_names("stale", [()] * len(ids) if stale is None else stale, len(ids))
        return [
            tuple(
                name
                for name in find_nulls(i)
                if name not in self._empty and name not in self._read_names("stale", old[i], ids[i])
            )
            if names is None
            else self._read_names("missing", names, ids[i])
            for i, names in enumerate(given)
        ]

    def read(self, rows: Any, ids: Any) -> Rows:
        """Return rows in any container, with all columns of the model."""
        model = self.auditor.model
        return read_model_rows(model, rows, model.name_columns(self.fields) or self.fields, ids)

    def _stand_in(self, name: str, standins: Mapping[str, Scalar]) -> Scalar:
        if name not in standins:
            typical = self.protocol.baseline == "typical"
            raise EvidenceError(
                f"the field {name!r} is missing, the model has no answer without it, and no raw value stands for its "
                f"baseline ({self.protocol.baseline!r}); "
                + ("give the value to decide with, and name the field as stale" if typical else USE_TYPICAL)
            )
        value, whole = standins[name], self._whole
        return int(value) if name in whole and isinstance(value, float) else value

    def find_standins(self, probe: Callable[[], Any]) -> dict[str, Scalar]:
        """Return the stand-in of each field that has one, found once; probe: makes a row in the form of the user's."""
        standins = self._standins
        if standins is None:
            protocol, model = self.protocol, self.auditor.model
            if protocol.space == "raw" or model.transformer is None or protocol.baseline == "missing":
                declared = {column.name: column.baseline for column in protocol.columns}
                standins = {name: declared.get(name) for name in self.fields}
            else:
                standins = find_standins(self.auditor.bind(probe(), [0, 1]), protocol)
            self._standins = standins
        return standins

    def find_cells(self, bound: EvidenceRows) -> ValueCells:
        """Return the catalogue as cells of rows in this form."""
        kept = self._cells
        if kept is None or kept[0] is not bound.encode:
            kept = self._cells = bound.encode, ValueCells.of(bound, self.protocol)
        return kept[1]

    def explain_unable(self, field: str, bound: EvidenceRows) -> str | None:
        """Return why a decision without this field cannot be made and judged; None if it can."""
        if field in self.find_cells(bound).unused:
            return "the model does not read it"
        if self.neighbours is None and not any(field in entry.fields for entry in self.protocol.modes.catalogue):
            return "the protocol lists no values for it"
        try:
            self._choose_standins([field], type(bound.source.native), lambda gap: self._probe_table(bound.source, gap))
        except EvidenceError:
            return (
                "the model has no answer without it, and no raw value stands for its baseline "
                f"({self.protocol.baseline!r})"
            )
        return None


def _list_names(what: str, given: Any, rows: int) -> list[Any]:
    """Return the fields named for each row; refuse those of another number of rows."""
    named = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if named is None or len(named) != rows:
        got = f"{given!r}" if named is None else f"{len(named)} given"
        raise DataError(f"one collection of {what} fields per row is needed: {rows} rows, {got}")
    return named


def known_values(protocol: Protocol) -> dict[str, Scalar]:
    """Return a value of each field of which the protocol knows one."""
    known: dict[str, Scalar] = {one.field: one.low for one in protocol.modes.ranges}
    for field in protocol.fields:
        if listed := list(weigh_values(protocol.modes, field.name)):
            known[field.name] = listed[0]
    return known
