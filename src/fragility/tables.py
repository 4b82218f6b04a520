"""Rows in files, read part by part: Parquet, CSV and Arrow; a file, a folder or a pattern, here or in an object store.

Every part is typed alike, whatever its rows, and as a reader of the whole file would type it. Parquet and Arrow files
say what their columns hold; of a CSV file the protocol says it, and where it does not (the ids) all rows are looked at
first. Categories are those of the whole input, in the order in which they first appear.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from fragility.errors import Advice, DataError
from fragility.evidence.fields import Field
from fragility.evidence.rows import index_ids

WILD = "*?["
READ_BYTES = 1 << 20  # of a column at a time, so that a row group larger than memory can be read
LINE_BYTES = 16 * 2**20  # of CSV text that is parsed together; no line may be longer
SCANNED_ROWS = 200_000  # rows at a time of the columns that are looked at before the audit


@dataclass(frozen=True)
class CsvFormat:
    """How CSV files are written; None where nobody said.

    Attributes
    ----------
    separator : str or None
        What separates fields; a comma by default.
    encoding : str or None
        Their encoding; UTF-8 by default.
    decimal : str or None
        The decimal mark; a point by default.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None


@dataclass(frozen=True)
class SourceFile:
    """A file to read."""

    path: str  # as its file system has it
    name: str  # for people, and to know it again
    size: int
    kind: str  # parquet, csv or arrow


@dataclass(frozen=True, eq=False)
class RawPart:
    """Consecutive rows of the input."""

    frame: pd.DataFrame  # the fields, and nothing else
    ids: list[Any]
    start: int  # how many rows of the input come before it
    numbered: bool = False  # the ids are the rows' numbers, so they are distinct

    def __len__(self) -> int:
        return len(self.frame)


KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


def kind_of_file(name: str) -> str | None:
    """Return what a file of this name holds; None for a name that does not say."""
    return next((kind for suffix, kind in KINDS.items() if name.lower().endswith(suffix)), None)


def find_files(
    source: str | os.PathLike[str], filesystem: arrow_fs.FileSystem | None = None
) -> tuple[arrow_fs.FileSystem, tuple[SourceFile, ...]]:
    """Return the file system and the files that ``source`` names, in the order of their names.

    source: a file, a folder (with all tables below it), or a pattern; with ``://`` in it, an address that pyarrow
        knows, such as ``s3://bucket/rows/``.
    """
    shown = os.fspath(source)
    where, path = _located(shown, filesystem)
    try:
        found = _matching(where, path) if any(mark in path for mark in WILD) else _below(where, path, shown)
    except OSError as error:
        raise DataError(f"cannot look up {shown}: {str(error).splitlines()[0]}") from error
    if not found:
        known = ", ".join(KINDS)
        raise DataError(f"{shown} names no table; files that end in one of {known} were expected")
    files = tuple(sorted(found, key=lambda file: file.path))
    kinds = sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise DataError(f"{shown} names tables of several kinds ({' and '.join(kinds)}); audit one kind at a time")
    return where, files


def _located(shown: str, filesystem: arrow_fs.FileSystem | None) -> tuple[arrow_fs.FileSystem, str]:
    if filesystem is not None:
        return filesystem, shown
    if "://" not in shown:
        return arrow_fs.LocalFileSystem(), os.path.abspath(shown)
    try:
        where, path = arrow_fs.FileSystem.from_uri(shown)
    except (OSError, ValueError, pa.ArrowException, ImportError) as error:
        raise DataError(f"cannot open {shown}: {str(error).splitlines()[0]}") from error
    return where, path


def _below(where: arrow_fs.FileSystem, path: str, shown: str) -> list[SourceFile]:
    info = where.get_file_info(path)
    if info.type == arrow_fs.FileType.NotFound:
        raise DataError(f"{shown} does not exist")
    if info.type == arrow_fs.FileType.File:
        kind = kind_of_file(path)
        if kind is None:
            suffix = Path(path).suffix or "(no suffix)"
            raise DataError(f"{shown} has an unknown kind {suffix!r}; expected one of {', '.join(KINDS)}")
        return [SourceFile(path, Path(path).name, info.size, kind)]
    inside = where.get_file_info(arrow_fs.FileSelector(path, recursive=True))
    return _tables(inside, path)


def _matching(where: arrow_fs.FileSystem, pattern: str) -> list[SourceFile]:
    steps = pattern.split("/")
    first = next(i for i, step in enumerate(steps) if any(mark in step for mark in WILD))
    root = "/".join(steps[:first])
    if isinstance(where, arrow_fs.LocalFileSystem):
        return _tables(where.get_file_info(sorted(glob.glob(pattern, recursive=True))), root)
    inside = where.get_file_info(arrow_fs.FileSelector(root, recursive=True, allow_not_found=True))
    return _tables([info for info in inside if fnmatch(info.path, pattern)], root)


def _tables(infos: Sequence[arrow_fs.FileInfo], root: str) -> list[SourceFile]:
    found = []
    for info in infos:
        name = info.path.removeprefix(root).lstrip("/")
        kind = kind_of_file(name)
        hidden = any(step.startswith((".", "_")) for step in name.split("/"))
        if info.type == arrow_fs.FileType.File and kind is not None and not hidden:
            found.append(SourceFile(info.path, name, info.size, kind))
    return found


# --- reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowSource:
    """The rows of some files, in order."""

    filesystem: arrow_fs.FileSystem
    files: tuple[SourceFile, ...]
    fields: tuple[Field, ...] = ()  # what the protocol says of the columns
    id_column: str | None = None
    target: str | None = None
    chosen: slice = field(default_factory=lambda: slice(None))  # of all rows; no negative bounds, no step
    csv: CsvFormat = field(default_factory=CsvFormat)
    drop: tuple[str, ...] = ()  # columns to leave out, where they are there
    only: frozenset[str] | None = None  # columns to read, beside a stored index; None: all

    @property
    def kind(self) -> str:
        return self.files[0].kind

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of the first file, ids and labels included."""
        file = self.files[0]
        with self._reading(file), self.filesystem.open_input_file(file.path) as stream:
            if file.kind == "parquet":
                return tuple(pq.read_schema(stream).names)
            if file.kind == "arrow":
                return tuple(arrow_batches(stream)[0].names)
        with self._reading(file), self._csv_reader(file, 1, []) as reader:
            return tuple(str(name) for name in reader.read(0).columns)

    def check_has(self, id_column: str) -> None:
        """Refuse an id column that is not there."""
        if id_column not in self.column_names:
            raise DataError(*_no_ids(id_column, self.files[0], self.column_names))

    @cached_property
    def count(self) -> int | None:
        """How many rows there are to read; None where only reading them tells."""
        return len(range(*self.chosen.indices(sum(self.file_rows)))) if self.kind == "parquet" else None

    @cached_property
    def file_rows(self) -> tuple[int, ...]:
        """How many rows each Parquet file has."""
        found = []
        for file in self.files:
            with self._reading(file), self.filesystem.open_input_file(file.path) as stream:
                found.append(int(pq.read_metadata(stream).num_rows))
        return tuple(found)

    def refuse_text(self, part: RawPart, name: str) -> None:
        """Name the line of a CSV file where a column of numbers holds something else."""
        odd = _first_text(part.frame[name]) if self.kind == "csv" and len(self.files) == 1 else None
        if odd is not None:
            line = part.start + odd + 2
            raise DataError(
                f"{self.files[0].name}, line {line}: column {name!r} held numbers in the training data, "
                f"{part.frame[name].iloc[odd]!r} is none; correct it, or leave the cell empty if the value is missing"
            )

    def head(self, rows: int) -> RawPart:
        """Return the first rows."""
        for part in self.parts(rows):
            return part
        if self.chosen != slice(None):
            bounds = ":".join("" if bound is None else str(bound) for bound in (self.chosen.start, self.chosen.stop))
            raise DataError(Advice("rows", "--rows"), f" {bounds} selects none of the rows of {self.files[0].name}")
        raise DataError(f"{self.files[0].name} holds no rows; at least one row and one column were expected")

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

    def labels(self, rows: int) -> Iterator[tuple[list[Any], pd.Series]]:
        """Return ids and labels alone, ``rows`` at a time; the label column must be there."""
        assert self.target is not None
        for ids, frame in self.values([self.target], rows):
            yield ids, frame[self.target]

    def values(self, names: Sequence[str], rows: int) -> Iterator[tuple[list[Any], pd.DataFrame]]:
        """Return ids and these columns alone, ``rows`` at a time; they need not be fields of the model."""
        if self.id_column in names:
            raise DataError(f"the column {self.id_column!r} holds the ids, which tell every row apart; choose another")
        wanted = frozenset({*names, *(() if self.id_column is None else (self.id_column,))})
        known = {own.name: own for own in self.fields}
        fields = tuple(known.get(name, Field(name, "nominal", "mixed")) for name in names)
        for part in replace(self, fields=fields, target=None, only=wanted).parts(rows):
            yield part.ids, part.frame

    @cached_property
    def _first_columns(self) -> list[Any]:
        return list(next(self._pieces(self.files[0], 1)).columns)

    def span(self, start: int, rows: int) -> RawPart:
        """Return the part of Parquet files that begins at a chosen row, without reading the rows before it."""
        first, before, pieces = (self.chosen.start or 0) + start, 0, list[RawPart]()
        for file, count in zip(self.files, self.file_rows, strict=True):
            low, high = max(first - before, 0), min(first + rows - before, count)
            if low < high:
                with self._reading(file):
                    frame = self._parquet_rows(file, low, high)
                _check_distinct(frame, file)
                _check_same_columns(frame, self._first_columns, file)
                pieces.append(self._without_ids(frame, before + low, file))
            before += count
        return _cut(pieces, rows)[0]

    def _chosen_pieces(self, rows: int) -> Iterator[RawPart]:
        start, names = 0, list[Any]()
        first, last = self.chosen.start or 0, self.chosen.stop
        for file in self.files:
            for frame in self._pieces(file, rows):
                _check_same_columns(frame, names := names or list(frame.columns), file)
                keep = slice(max(first - start, 0), None if last is None else max(last - start, 0))
                piece = self._without_ids(frame, start, file)
                start += len(frame)
                if len(frame.iloc[keep]):
                    yield RawPart(piece.frame.iloc[keep], piece.ids[keep], piece.start + keep.start, piece.numbered)
                if last is not None and start >= last:
                    return

    def _without_ids(self, frame: pd.DataFrame, start: int, file: SourceFile) -> RawPart:
        """Take the ids and the labels out of a table, as far as there are columns of them."""
        if self.id_column is not None:
            if self.id_column not in frame.columns:
                raise DataError(*_no_ids(self.id_column, file, frame.columns))
            ids = frame[self.id_column].tolist()
            frame = frame.drop(columns=self.id_column)
        else:
            ids = self._index_ids(frame, start)
        gone = [name for name in (self.target, *self.drop) if name is not None and name in frame.columns]
        frame = frame.drop(columns=gone)
        if frame.shape[1] == 0:
            raise DataError(f"{file.name} has no field left besides the id and target columns")
        numbered = self.id_column is None and isinstance(frame.index, pd.RangeIndex)
        return RawPart(frame.reset_index(drop=True), ids, start, numbered)

    def _index_ids(self, frame: pd.DataFrame, start: int) -> list[Any]:
        """Return a stored index of the table; the row's number in the input where there is none."""
        index = frame.index
        if isinstance(index, pd.RangeIndex):
            base, step = (index.start, index.step) if len(self.files) == 1 else (start, 1)
            return list(range(base, base + step * len(frame), step))
        return index_ids(index)

    def _pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        """Return a file's rows in order, about ``rows`` at a time, in the types of the whole input."""
        reader: Callable[[SourceFile, int], Iterator[pd.DataFrame]] = {
            "parquet": self._parquet_pieces,
            "arrow": self._arrow_pieces,
            "csv": self._csv_pieces,
        }[file.kind]
        with self._reading(file):
            for frame in reader(file, rows):
                _check_distinct(frame, file)
                yield frame

    @contextmanager
    def _reading(self, file: SourceFile) -> Iterator[None]:
        try:
            yield
        except (MemoryError, DataError):
            raise
        except UnicodeError as error:
            raise DataError(*_undecodable(file, self.csv.encoding, error)) from error
        except (OSError, ValueError, pa.ArrowException, pd.errors.ParserError) as error:
            told = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(f"{file.name} could not be read as {file.kind}: {told}") from error

    # --- Parquet and Arrow ----------------------------------------------------------------------------------

    def _parquet_pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        with self.filesystem.open_input_file(file.path) as stream:
            parquet = pq.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False)
            schema = self._wanted(parquet.schema_arrow)
            names = None if self.only is None else schema.names
            yield from self._framed(parquet.iter_batches(batch_size=rows, columns=names), schema, rows)

    def _parquet_rows(self, file: SourceFile, low: int, high: int) -> pd.DataFrame:
        with self.filesystem.open_input_file(file.path) as stream:
            parquet = pq.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False)
            sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [i for i, end in enumerate(ends) if end > low and end - sizes[i] < high]
            at, found = ends[groups[0]] - sizes[groups[0]], list[pa.RecordBatch]()
            for batch in parquet.iter_batches(batch_size=high - low, row_groups=groups):
                if at + len(batch) > low:
                    found.append(batch.slice(max(low - at, 0), high - max(at, low)))
                at += len(batch)
                if at >= high:
                    break
            schema = parquet.schema_arrow
            frame = self._with_categories(pa.Table.from_batches(found, schema=schema)).to_pandas()
            return _numbered(frame, _stored_range(schema), low)

    def _arrow_pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        with self.filesystem.open_input_file(file.path) as stream:
            schema, batches = arrow_batches(stream)
            wanted = self._wanted(schema)
            if self.only is not None:
                batches = (batch.select(wanted.names) for batch in batches)
            yield from self._framed(batches, wanted, rows)

    def _wanted(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns to read, with those of a stored index."""
        if self.only is None:
            return schema
        index = [name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)]
        names = [name for name in schema.names if name in self.only or name in index]
        return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)

    def _framed(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows: int) -> Iterator[pd.DataFrame]:
        start = 0
        index = _stored_range(schema)
        for batch in batches:
            for first in range(0, len(batch), rows):
                table = self._with_categories(pa.Table.from_batches([batch.slice(first, rows)], schema=schema))
                frame = _numbered(table.to_pandas(), index, start)
                start += len(frame)
                yield frame

    def _with_categories(self, table: pa.Table) -> pa.Table:
        for name, known in self._categories.items():
            place = table.schema.get_field_index(name)
            if place < 0:
                continue
            column = table.column(place)
            plain = column.cast(known.type)
            codes = pc.index_in(plain, value_set=known).combine_chunks()
            coded = pa.DictionaryArray.from_arrays(codes, known, ordered=column.type.ordered)
            table = table.set_column(place, pa.field(name, coded.type), coded)
        return table

    @cached_property
    def _categories(self) -> dict[str, pa.Array]:
        """Values of each categorical column over all files, in the order of their appearance."""
        found: dict[str, pa.Array] = {}
        for file in self.files:
            with self._reading(file), self.filesystem.open_input_file(file.path) as stream:
                for name, values in _dictionaries(file, stream):
                    known = found.get(name)
                    joined = values if known is None else pa.concat_arrays([known, values.cast(known.type)])
                    found[name] = joined.unique().drop_null()
        return found

    # --- CSV ------------------------------------------------------------------------------------------------

    def _csv_pieces(self, file: SourceFile, rows: int) -> Iterator[pd.DataFrame]:
        if file.path not in self._lines_checked:
            with self.filesystem.open_input_stream(file.path) as stream:
                check_csv_lines(stream, file.name, self.csv)
            self._lines_checked.add(file.path)
        texts = [own.name for own in self.fields if own.type in ("text", "date")]
        types = {**dict.fromkeys(texts, "text"), **self._csv_types}
        texts = [name for name, type_ in types.items() if type_ == "text"]
        with self._csv_reader(file, rows, texts, self.only) as reader:
            for frame in reader:
                yield self._typed(frame)

    @cached_property
    def _lines_checked(self) -> set[str]:
        """Paths of the CSV files whose lines all have the fields of their header."""
        return set()

    @contextmanager
    def _csv_reader(
        self, file: SourceFile, rows: int, texts: Sequence[str], only: Container[str] | None = None
    ) -> Iterator[Any]:
        with (
            self.filesystem.open_input_stream(file.path) as stream,
            pd.read_csv(
                stream,
                sep=self.csv.separator or ",",
                encoding=self.csv.encoding or "utf-8",
                decimal=self.csv.decimal or ".",
                dtype=dict.fromkeys(texts, str),
                usecols=None if only is None else (lambda name: name in only),
                chunksize=rows,
                low_memory=False,
            ) as reader,
        ):
            yield reader

    def _typed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a piece with whole numbers as decimals where the column holds decimals elsewhere."""
        decimal = {own.name for own in self.fields if own.type == "number"}
        decimal |= {name for name, type_ in self._csv_types.items() if type_ == "number"}
        whole = [name for name in frame.columns if name in decimal and pd.api.types.is_integer_dtype(frame[name].dtype)]
        return frame.astype(dict.fromkeys(whole, np.float64)) if whole else frame

    @cached_property
    def _csv_types(self) -> dict[str, str]:
        """The types of columns of which the protocol does not know them, from all of their values."""
        unknown = {own.name for own in self.fields if own.type in ("mixed", "empty")}
        unknown |= {self.id_column} if self.id_column is not None else set()
        seen: dict[str, set[str]] = {name: set() for name in unknown}
        for file in self.files if unknown else ():
            with self._csv_reader(file, SCANNED_ROWS, [], sorted(unknown)) as reader:
                for frame in reader:
                    for name in frame.columns:
                        seen[name] |= _csv_type(frame[name])
        return {name: _joint_type(types) for name, types in seen.items()}


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
    return RowSource(where, files, tuple(fields), id_column, target, rows, csv or CsvFormat(), tuple(drop))


def check_csv_lines(stream: pa.NativeFile, name: str, form: CsvFormat) -> None:
    """Refuse a CSV file with a line that has fewer or more fields than its header.

    pandas takes a line that was cut off for one with missing values. pyarrow's parser does not, and is fast enough to
    go over the file first.
    """
    reading = pyarrow.csv.ReadOptions(
        use_threads=False,  # only one thread knows the number of a line
        autogenerate_column_names=True,
        block_size=LINE_BYTES,
        encoding=form.encoding or "utf8",
    )
    parsing = pyarrow.csv.ParseOptions(delimiter=form.separator or ",", newlines_in_values=True)
    # One column, as it is: what the cells hold is not looked at here.
    converting = pyarrow.csv.ConvertOptions(include_columns=["f0"], column_types={"f0": pa.binary()})
    try:
        with pyarrow.csv.open_csv(stream, reading, parsing, converting) as reader:
            for _ in reader:
                pass
    except pa.ArrowInvalid as error:
        uneven = re.search(r"(Row #(\d+): )?Expected (\d+) columns, got (\d+)", str(error))
        if uneven is None:
            return  # what else is wrong with the file, its reader says
        line = f"line {uneven[2]}" if uneven[2] else "a line"
        raise DataError(
            f"{name}, {line}: {uneven[4]} fields, and the header has {uneven[3]}; a line may be cut off, or a field "
            "with the separator in it not quoted"
        ) from error


def _first_text(column: pd.Series) -> int | None:
    """Return the place of the first value that is no number; None where all are."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return None
    odd = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna() & column.notna())
    return int(odd[0]) if len(odd) else None


def _no_ids(id_column: str, file: SourceFile, names: Iterable[Any]) -> tuple[Advice, str]:
    named = Advice(f"the id column {id_column!r} is", f"--id names the column {id_column!r}, which is")
    return named, f" not in {file.name}, which has {', '.join(map(str, names))}"


def _undecodable(file: SourceFile, encoding: str | None, error: UnicodeError) -> tuple[str | Advice, ...]:
    if encoding is not None:
        return (f"{file.name} is not {encoding} text ({error}); name its own encoding",)
    byte = error.object[error.start] if isinstance(error, UnicodeDecodeError) else 0
    likely = "cp1252" if 0x80 <= byte <= 0x9F else "latin-1"
    return (
        f"{file.name} is not UTF-8 text; it is probably {likely}: ",
        Advice(f"give csv=CsvFormat(encoding='{likely}')", f"add --encoding {likely}"),
        ", or save it as UTF-8",
    )


def _cut(pieces: Sequence[RawPart], rows: int) -> tuple[RawPart, RawPart]:
    """Return the first rows of pieces that follow each other, and the rest."""
    if len(pieces) == 1:
        joined = pieces[0]
    else:
        frame = pd.concat([piece.frame for piece in pieces], ignore_index=True)
        ids = [own_id for piece in pieces for own_id in piece.ids]
        joined = RawPart(frame, ids, pieces[0].start, all(piece.numbered for piece in pieces))
    first = replace(joined, frame=joined.frame.iloc[:rows], ids=joined.ids[:rows])
    return first, RawPart(joined.frame.iloc[rows:], joined.ids[rows:], joined.start + rows, joined.numbered)


def _check_distinct(frame: pd.DataFrame, file: SourceFile) -> None:
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{file.name} has two columns named {twice!r}; column names must differ")


def _check_same_columns(frame: pd.DataFrame, names: list[Any], file: SourceFile) -> None:
    other = set(frame.columns) ^ set(names)
    if other:
        raise DataError(f"{file.name} has other columns than the files before it, for example {min(map(str, other))!r}")


def _numbered(frame: pd.DataFrame, index: range | None, start: int) -> pd.DataFrame:
    """Return rows that begin at ``start`` of a file with their numbers there, or those that pandas noted."""
    stop = start + len(frame)
    if index is not None:
        first = index.start
        frame.index = pd.RangeIndex(first + start * index.step, first + stop * index.step, index.step)
    elif isinstance(frame.index, pd.RangeIndex):
        frame.index = pd.RangeIndex(start, stop)
    return frame


def _stored_range(schema: pa.Schema) -> range | None:
    """Return the row numbers that pandas noted when it wrote the table; None where it noted others or none."""
    noted: Mapping[str, Any] = schema.pandas_metadata or {}
    columns = noted.get("index_columns") or []
    if len(columns) == 1 and isinstance(columns[0], dict) and columns[0].get("kind") == "range":
        return range(columns[0]["start"], columns[0]["stop"], columns[0]["step"])
    return None


def arrow_batches(stream: pa.NativeFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Arrow files come in two layouts, with a footer (Feather, IPC file) and without (IPC stream)."""
    try:
        reader = pa.ipc.open_file(stream)
        return reader.schema, map(_validated, (reader.get_batch(i) for i in range(reader.num_record_batches)))
    except pa.ArrowInvalid:
        stream.seek(0)
        flow = pa.ipc.open_stream(stream)
        return flow.schema, map(_validated, flow)


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose offsets and codes lie within its buffers; Arrow itself follows a wrong one and crashes."""
    batch.validate(full=True)
    return batch


def _dictionaries(file: SourceFile, stream: pa.NativeFile) -> Iterator[tuple[str, pa.Array]]:
    if file.kind == "parquet":
        parquet = pq.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False)
        names = [own.name for own in parquet.schema_arrow if pa.types.is_dictionary(own.type)]
        batches = parquet.iter_batches(batch_size=SCANNED_ROWS, columns=names) if names else iter(())
    else:
        schema, batches = arrow_batches(stream)
        names = [own.name for own in schema if pa.types.is_dictionary(own.type)]
    for batch in batches if names else ():
        for name in names:
            yield name, batch.column(name).dictionary


def _csv_type(column: pd.Series) -> set[str]:
    if bool(column.isna().all()):
        return set()
    if pd.api.types.is_bool_dtype(column.dtype):
        return {"boolean"}
    if pd.api.types.is_integer_dtype(column.dtype):
        return {"integer"}
    return {"number"} if pd.api.types.is_numeric_dtype(column.dtype) else {"text"}


def _joint_type(types: set[str]) -> str:
    """Return the type of a column whose pieces have these."""
    if len(types) == 1:
        return next(iter(types))
    return "number" if types == {"integer", "number"} else "text"
