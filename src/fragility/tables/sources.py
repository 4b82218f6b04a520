"""Rows in files, read part by part or at once, with their ids.

Every part has the column types that reading the whole input at once would give. Parquet and Arrow files store the types
of their columns. For a CSV file the protocol declares them; columns it does not declare, such as the ids, are scanned
first. Categories are those of the whole input, in the order in which they first appear.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as arrow_fs

from fragility.base.errors import Advice, DataError
from fragility.evidence.fields import Field
from fragility.evidence.rows import index_ids
from fragility.tables.formats import (
    SCANNED_ROWS,
    CsvFormat,
    SourceFile,
    TableFiles,
    check_inflated,
    find_files,
    open_batches,
    open_parquet,
)

MOST_ROWS = 2**40  # more than any table has


@dataclass(frozen=True, eq=False)
class RawPart:
    """Consecutive rows of the input."""

    frame: pd.DataFrame  # the fields, and nothing else
    ids: list[Any]
    start: int  # how many rows of the input come before it
    numbered: bool = False  # whether the ids are row numbers, which are distinct

    def __len__(self) -> int:
        return len(self.frame)


@dataclass(frozen=True, eq=False)
class RowSource:
    """The rows of some files, in order."""

    tables: TableFiles
    fields: tuple[Field, ...] = ()  # the columns as the protocol declares them
    id_column: str | None = None
    target: str | None = None
    chosen: slice = field(default_factory=lambda: slice(None))  # of all rows; no negative bounds, no step
    drop: tuple[str, ...] = ()  # columns to leave out; unknown names are ignored
    only: frozenset[str] | None = None  # columns to read, besides a stored index; None: all

    @property
    def kind(self) -> str:
        return self.tables.kind

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tables.files

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of the first file, ids and labels included."""
        return self.tables.column_names

    def check_has(self, id_column: str) -> None:
        """Refuse an unknown id column."""
        if id_column not in self.column_names:
            raise _no_ids(id_column, self.files[0], self.column_names)

    @cached_property
    def count(self) -> int | None:
        """The number of rows to read; None if it is known only after reading them."""
        return len(range(*self.chosen.indices(sum(self.tables.file_rows)))) if self.kind == "parquet" else None

    def refuse_text(self, part: RawPart, name: str) -> None:
        """Refuse a CSV file with text in a column of numbers, and name the line."""
        column = part.frame[name]
        if self.kind != "csv" or len(self.files) > 1 or pd.api.types.is_numeric_dtype(column.dtype):
            return
        odd = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna() & column.notna())
        if len(odd):
            raise DataError(
                f"{self.files[0].name}, line {part.start + odd[0] + 2}: column {name!r} was numeric in the training "
                f"data, but {column.iloc[odd[0]]!r} is not a number; correct it, or leave the cell empty if the value "
                "is missing"
            )

    def head(self, rows: int) -> RawPart:
        """Return the first rows."""
        for part in self.parts(rows):
            return part
        if self.chosen != slice(None):
            bounds = ":".join("" if bound is None else str(bound) for bound in (self.chosen.start, self.chosen.stop))
            raise DataError(Advice("rows", "--rows"), f" {bounds} selects none of the rows of {self.files[0].name}")
        raise DataError(f"{self.files[0].name} holds no rows; at least one row and one column were expected")

    def read_all(self) -> RawPart:
        """Return all rows at once."""
        for file in self.files:
            if file.path.lower().endswith(".gz") and self.tables.filesystem.type_name == "local":
                check_inflated(Path(file.path))
        return self.head(MOST_ROWS if self.count is None else max(self.count, 1))

    def parts(self, rows: int) -> Iterator[RawPart]:
        """Return all rows, ``rows`` at a time; the last part may be shorter."""
        waiting: list[RawPart] = []
        for piece in self._chosen_pieces(rows):
            waiting.append(piece)
            while sum(map(len, waiting)) >= rows:
                whole, rest = _cut(waiting, rows)
                yield whole
                waiting = [rest] if len(rest) else []
        if waiting:
            yield _cut(waiting, rows)[0]

    def values(self, names: Sequence[str], rows: int) -> Iterator[tuple[list[Any], pd.DataFrame]]:
        """Return ids and the named columns, ``rows`` at a time; the columns need not be fields of the model."""
        if self.id_column in names:
            raise DataError(f"the column {self.id_column!r} holds the ids, which differ in every row; choose another")
        needed = frozenset({*names, *(() if self.id_column is None else (self.id_column,))})
        declared = {field.name: field for field in self.fields}
        fields = tuple(declared.get(name, Field(name, "nominal", "mixed")) for name in names)
        for part in replace(self, fields=fields, target=None, drop=(), only=needed).parts(rows):
            yield part.ids, part.frame

    @cached_property
    def _first_columns(self) -> list[Any]:
        return list(next(self._pieces(self.files[0], 1)).columns)

    def span(self, start: int, rows: int) -> RawPart:
        """Return ``rows`` rows of Parquet files from the row ``start`` on, without reading the rows before it."""
        first, before, pieces = (self.chosen.start or 0) + start, 0, list[RawPart]()
        for file, count in zip(self.files, self.tables.file_rows, strict=True):
            low, high = max(first - before, 0), min(first + rows - before, count)
            if low < high:
                with self.tables.reading(file):
                    frame = self._parquet_rows(file, low, high)
                _check_columns(frame, self._first_columns, file)
                pieces.append(self._without_ids(frame, before + low, file))
            before += count
        return _cut(pieces, rows)[0]

    def _chosen_pieces(self, rows: int) -> Iterator[RawPart]:
        start, names = 0, list[Any]()
        first, last = self.chosen.start or 0, self.chosen.stop
        for file in self.files:
            for frame in self._pieces(file, rows):
                _check_columns(frame, names := names or list(frame.columns), file)
                keep = slice(max(first - start, 0), None if last is None else max(last - start, 0))
                piece = self._without_ids(frame, start, file)
                start += len(frame)
                if len(frame.iloc[keep]):
                    yield RawPart(piece.frame.iloc[keep], piece.ids[keep], piece.start + keep.start, piece.numbered)
                if last is not None and start >= last:
                    return

    def _without_ids(self, frame: pd.DataFrame, start: int, file: SourceFile) -> RawPart:
        """Split a table into fields and ids; drop the target and the columns to leave out, if present."""
        numbered = self.id_column is None and isinstance(frame.index, pd.RangeIndex)  # no ids, and no stored index
        if self.id_column is not None:
            if self.id_column not in frame.columns:
                raise _no_ids(self.id_column, file, frame.columns)
            ids = frame[self.id_column].tolist()
            frame = frame.drop(columns=self.id_column)
        elif numbered and len(self.files) > 1:
            ids = list(range(start, start + len(frame)))  # the rows' numbers in the input
        else:
            ids = index_ids(frame.index)
        left_out = [name for name in (self.target, *self.drop) if name is not None and name in frame.columns]
        frame = frame.drop(columns=left_out)
        if frame.shape[1] == 0:
            raise DataError(f"{file.name} has no field left besides the id and target columns")
        return RawPart(frame.reset_index(drop=True), ids, start, numbered)

    def _pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        """Return a file's rows in order, about ``rows`` at a time, in the types of the whole input."""
        reader = self._csv_pieces if file.kind == "csv" else self._arrow_pieces
        with self.tables.reading(file):
            yield from reader(file, rows)

    # --- Parquet and Arrow ----------------------------------------------------------------------------------

    def _arrow_pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        with self.tables.filesystem.open_input_file(file.path) as stream:
            schema, read = open_batches(stream, file.kind)
            names = None
            if self.only is not None:
                index = (schema.pandas_metadata or {}).get("index_columns", ())  # names, or the description of a range
                names = [name for name in schema.names if name in self.only or name in index]
                schema = pa.schema([schema.field(name) for name in names], metadata=schema.metadata)
            stored, start = _read_stored_range(schema), 0
            for batch in read(rows, names):
                for first in range(0, len(batch), rows):
                    table = self._with_categories(pa.Table.from_batches([batch.slice(first, rows)], schema=schema))
                    frame = _number_rows(table.to_pandas(), stored, start)
                    start += len(frame)
                    yield frame

    def _parquet_rows(self, file: SourceFile, low: int, high: int) -> pd.DataFrame:
        with self.tables.filesystem.open_input_file(file.path) as stream:
            parquet = open_parquet(stream)
            sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [i for i, end in enumerate(ends) if end > low and end - sizes[i] < high]
            at, slices = ends[groups[0]] - sizes[groups[0]], list[pa.RecordBatch]()
            for batch in parquet.iter_batches(batch_size=high - low, row_groups=groups):
                if at + len(batch) > low:
                    slices.append(batch.slice(max(low - at, 0), high - max(at, low)))
                at += len(batch)
                if at >= high:
                    break
            schema = parquet.schema_arrow
            frame = self._with_categories(pa.Table.from_batches(slices, schema=schema)).to_pandas()
            return _number_rows(frame, _read_stored_range(schema), low)

    def _with_categories(self, table: pa.Table) -> pa.Table:
        for name, categories in self.tables.categories.items():
            place = table.schema.get_field_index(name)
            if place < 0:
                continue
            column = table.column(place)
            plain = column.cast(categories.type)
            codes = pc.index_in(plain, value_set=categories).combine_chunks()
            coded = pa.DictionaryArray.from_arrays(codes, categories, ordered=column.type.ordered)
            table = table.set_column(place, pa.field(name, coded.type), coded)
        return table

    # --- CSV ------------------------------------------------------------------------------------------------

    def _csv_pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        types = {field.name: "text" for field in self.fields if field.type in ("text", "date")} | self._csv_types
        texts = [name for name, type_ in types.items() if type_ == "text"]
        decimal = {field.name for field in self.fields if field.type == "number"}
        decimal |= {name for name, type_ in types.items() if type_ == "number"}
        with self.tables.csv_reader(file, rows, texts, self.only) as reader:
            for frame in reader:
                # A column that holds decimals elsewhere holds decimals here too.
                whole = [name for name in decimal & set(frame) if pd.api.types.is_integer_dtype(frame[name].dtype)]
                yield frame.astype(dict.fromkeys(whole, np.float64)) if whole else frame

    @cached_property
    def _csv_types(self) -> dict[str, str]:
        """The types of the columns that the protocol does not declare, inferred from all of their values."""
        unknown = {field.name for field in self.fields if field.type in ("mixed", "empty")}
        unknown |= {self.id_column} if self.id_column is not None else set()
        value_types: dict[str, set[str]] = {name: set() for name in unknown}
        for file in self.files if unknown else ():
            with self.tables.csv_reader(file, SCANNED_ROWS, [], sorted(unknown)) as reader:
                for frame in reader:
                    for name in frame.columns:
                        value_types[name] |= _infer_csv_type(frame[name])
        joint = {name: "number" if types == {"integer", "number"} else "text" for name, types in value_types.items()}
        return {name: next(iter(types)) if len(types) == 1 else joint[name] for name, types in value_types.items()}


def open_source(
    source: str | os.PathLike[str],
    *,
    fields: Sequence[Field] = (),
    id_column: str | None = None,
    target: str | None = None,
    rows: slice = slice(None),
    csv: CsvFormat | None = None,
    filesystem: arrow_fs.FileSystem | None = None,
    drop: Sequence[str] = (),
) -> RowSource:
    """Return the rows that ``source`` names; nothing is read yet."""
    where, files = find_files(source, filesystem)
    tables = TableFiles(where, files, csv or CsvFormat())
    return RowSource(tables, tuple(fields), id_column, target, rows, tuple(drop))


def _no_ids(id_column: str, file: SourceFile, names: Iterable[Any]) -> DataError:
    subject = Advice(f"the id column {id_column!r} is", f"--id names the column {id_column!r}, which is")
    return DataError(subject, f" not in {file.name}; its columns are {', '.join(map(str, names))}")


def _cut(pieces: Sequence[RawPart], rows: int) -> tuple[RawPart, RawPart]:
    """Return the first rows of pieces that follow each other, and the rest."""
    if len(pieces) == 1:
        joined = pieces[0]
    else:
        frame = pd.concat([piece.frame for piece in pieces], ignore_index=True)
        ids = [row_id for piece in pieces for row_id in piece.ids]
        joined = RawPart(frame, ids, pieces[0].start, all(piece.numbered for piece in pieces))
    first = replace(joined, frame=joined.frame.iloc[:rows], ids=joined.ids[:rows])
    return first, RawPart(joined.frame.iloc[rows:], joined.ids[rows:], joined.start + rows, joined.numbered)


def _check_columns(frame: pd.DataFrame, names: list[Any], file: SourceFile) -> None:
    """Refuse a column name that occurs twice, and columns that differ from those of the first file."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{file.name} has two columns named {twice!r}; column names must differ")
    other = set(frame.columns) ^ set(names)
    if other:
        raise DataError(
            f"the columns of {file.name} differ from those of the files before it, for example {min(map(str, other))!r}"
        )


def _number_rows(frame: pd.DataFrame, index: range | None, start: int) -> pd.DataFrame:
    """Index rows that begin at ``start`` of a file by their numbers in it, or by the range that pandas stored."""
    stop = start + len(frame)
    if index is not None:
        frame.index = pd.RangeIndex(index.start + start * index.step, index.start + stop * index.step, index.step)
    elif isinstance(frame.index, pd.RangeIndex):
        frame.index = pd.RangeIndex(start, stop)
    return frame


def _read_stored_range(schema: pa.Schema) -> range | None:
    """Return the row numbers that pandas stored when it wrote the table; None if it stored an index or nothing."""
    metadata: Mapping[str, Any] = schema.pandas_metadata or {}
    columns = metadata.get("index_columns") or []
    if len(columns) == 1 and isinstance(columns[0], dict) and columns[0].get("kind") == "range":
        return range(columns[0]["start"], columns[0]["stop"], columns[0]["step"])
    return None


def _infer_csv_type(column: pd.Series) -> set[str]:
    if bool(column.isna().all()):
        return set()
    if pd.api.types.is_bool_dtype(column.dtype):
        return {"boolean"}
    if pd.api.types.is_integer_dtype(column.dtype):
        return {"integer"}
    return {"number"} if pd.api.types.is_numeric_dtype(column.dtype) else {"text"}
