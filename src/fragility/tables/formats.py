"""Table files and their formats: Parquet, CSV and Arrow; a file, a folder or a pattern, local or in an object store.

pandas accepts CSV files that it should not: a truncated line, another separator, another encoding. CSV files are
checked before they are read, and the error names the format that would help.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import os
import re
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from fragility.base.errors import Advice, DataError, first_line

TAB = "\t"
READ_BYTES = 1 << 20  # of a column at a time, so that a row group larger than memory can be read
LINE_BYTES = 16 * 2**20  # of CSV text that is parsed together; no line may be longer
SCANNED_ROWS = 200_000  # rows at a time of the columns that are scanned before the audit
SAMPLED_BYTES = 64 * 1024  # of a CSV file, to recognise its format
GZIP_MOST = 1032  # gzip cannot compress by more than this factor
INFLATED_MOST = 200  # a table may have been compressed by this factor
INFLATED_FREE = 256 * 2**20  # bytes up to which the factor is not checked


@dataclass(frozen=True)
class CsvFormat:
    """How CSV files are written.

    Attributes
    ----------
    separator, encoding, decimal : str or None
        What separates fields, the encoding, and the decimal mark; by default a comma, UTF-8 and a point.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None


@dataclass(frozen=True)
class SourceFile:
    """A file to read."""

    path: str  # in its file system
    name: str  # below the folder that was given; shown in messages
    size: int
    kind: str  # parquet, csv or arrow


KINDS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".csv.gz"), "csv"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
}


def kind_of_file(name: str) -> str | None:
    """Return the kind of a table file by its name; None if the suffix is unknown."""
    return next((kind for suffix, kind in KINDS.items() if name.lower().endswith(suffix)), None)


def _match_steps(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path matches a pattern, both split at slashes; as in `glob.glob`, only ** matches several."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_match_steps(path[place:], pattern[1:]) for place in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _match_steps(path[1:], pattern[1:])


def find_files(
    source: str | os.PathLike[str], filesystem: arrow_fs.FileSystem | None = None
) -> tuple[arrow_fs.FileSystem, tuple[SourceFile, ...]]:
    """Return the file system and the files that ``source`` names, in the order of their names.

    source: a file, a folder (with all tables below it), or a pattern; with ``://`` in it, an address that pyarrow
        knows, such as ``s3://bucket/rows/``.
    """
    address = os.fspath(source)
    suffixes = ", ".join(KINDS)
    fs, path = filesystem, address
    try:
        if fs is None and "://" in address:
            fs, path = arrow_fs.FileSystem.from_uri(address)
        elif fs is None:
            fs, path = arrow_fs.LocalFileSystem(), os.path.abspath(address)
    except (OSError, ValueError, pa.ArrowException, ImportError) as error:
        raise DataError(f"cannot open {address}: {first_line(error)}") from error
    try:
        steps = path.split("/")
        wild = [i for i, step in enumerate(steps) if any(mark in step for mark in "*?[")]
        root = "/".join(steps[: wild[0]]) if wild else path
        if wild and isinstance(fs, arrow_fs.LocalFileSystem):
            infos = fs.get_file_info(sorted(glob.glob(path, recursive=True)))
        elif wild:
            inside = fs.get_file_info(arrow_fs.FileSelector(root, recursive=True, allow_not_found=True))
            infos = [info for info in inside if _match_steps(info.path.split("/"), steps)]
        else:
            info = fs.get_file_info(path)
            if info.type == arrow_fs.FileType.NotFound:
                raise DataError(f"{address} does not exist")
            if info.type == arrow_fs.FileType.File:
                kind = kind_of_file(path)
                if kind is None:
                    suffix = Path(path).suffix or "(no suffix)"
                    raise DataError(f"{address} has an unknown kind {suffix!r}; expected one of {suffixes}")
                return fs, (SourceFile(path, Path(path).name, info.size, kind),)
            infos = fs.get_file_info(arrow_fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise DataError(f"cannot look up {address}: {first_line(error)}") from error
    files = []
    for info in infos:
        name = info.path.removeprefix(root).lstrip("/")
        kind = kind_of_file(name)
        hidden = any(step.startswith((".", "_")) for step in name.split("/"))
        if info.type == arrow_fs.FileType.File and kind is not None and not hidden:
            files.append(SourceFile(info.path, name, info.size, kind))
    if not files:
        raise DataError(f"{address} names no table; files that end in one of {suffixes} were expected")
    kinds = sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise DataError(f"{address} names tables of several kinds ({' and '.join(kinds)}); audit one kind at a time")
    return fs, tuple(sorted(files, key=lambda file: file.path))


@dataclass(frozen=True, eq=False)
class TableFiles:
    """Files of one kind, and cached facts about them that do not depend on the rows and columns to read."""

    filesystem: arrow_fs.FileSystem
    files: tuple[SourceFile, ...]
    csv: CsvFormat
    checked: set[str] = field(default_factory=set)  # paths of the CSV files whose lines were checked

    @property
    def kind(self) -> str:
        return self.files[0].kind

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of the first file, ids and labels included."""
        file = self.files[0]
        if file.kind == "csv":
            with self.reading(file), self.csv_reader(file, 1, []) as reader:
                return tuple(str(name) for name in reader.read(0).columns)
        with self.reading(file), self.filesystem.open_input_file(file.path) as stream:
            return tuple(open_batches(stream, file.kind)[0].names)

    @cached_property
    def file_rows(self) -> tuple[int, ...]:
        """How many rows each Parquet file has."""
        rows = []
        for file in self.files:
            with self.reading(file), self.filesystem.open_input_file(file.path) as stream:
                rows.append(int(pq.read_metadata(stream).num_rows))
        return tuple(rows)

    @cached_property
    def categories(self) -> dict[str, pa.Array]:
        """Values of each categorical column over all files, in the order of their appearance."""
        categories: dict[str, pa.Array] = {}
        for file in self.files:
            with self.reading(file), self.filesystem.open_input_file(file.path) as stream:
                schema, read = open_batches(stream, file.kind)
                names = [field.name for field in schema if pa.types.is_dictionary(field.type)]
                for batch in read(SCANNED_ROWS, names) if names else ():
                    for name in names:
                        earlier, values = categories.get(name), batch.column(name).dictionary
                        joined = values if earlier is None else pa.concat_arrays([earlier, values.cast(earlier.type)])
                        categories[name] = joined.unique().drop_null()
        return categories

    @contextmanager
    def reading(self, file: SourceFile) -> Iterator[None]:
        """Turn the errors of readers into one sentence."""
        try:
            yield
        except (MemoryError, DataError):
            raise
        except UnicodeError as error:
            if self.csv.encoding is not None:
                raise DataError(
                    f"{file.name} is not {self.csv.encoding} text ({error}); name its actual encoding"
                ) from error
            byte = error.object[error.start] if isinstance(error, UnicodeDecodeError) else 0
            likely = "cp1252" if 0x80 <= byte <= 0x9F else "latin-1"
            raise DataError(
                f"{file.name} is not UTF-8 text; it is probably {likely}: ",
                _format_advice({"encoding": likely}),
                ", or save it as UTF-8",
            ) from error
        except (OSError, ValueError, pa.ArrowException, pd.errors.ParserError) as error:
            raise DataError(f"{file.name} could not be read as {file.kind}: {first_line(error)}") from error

    @contextmanager
    def csv_reader(
        self, file: SourceFile, rows: int, texts: Sequence[str], only: Container[str] | None = None
    ) -> Iterator[Any]:
        """Open a CSV file with well-formed lines; texts: columns to read as text even if they look like numbers."""
        if file.path not in self.checked:
            try:
                with self.filesystem.open_input_stream(file.path) as stream:
                    start = stream.read(SAMPLED_BYTES)
            except OSError as error:
                if not file.path.lower().endswith(".gz"):
                    raise
                raise DataError(f"{file.name} is not a complete gzip file ({error}); it may be truncated") from error
            check_csv_start(start, file.name, self.csv)
            with self.filesystem.open_input_stream(file.path) as stream:
                check_csv_lines(stream, file.name, self.csv)
            self.checked.add(file.path)
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


def open_parquet(stream: pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file whose row groups may be larger than memory."""
    return pq.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False)


def open_batches(
    stream: pa.NativeFile, kind: str
) -> tuple[pa.Schema, Callable[[int, list[str] | None], Iterator[pa.RecordBatch]]]:
    """Return the schema of a Parquet or Arrow file, and a reader of batches.

    The reader takes the number of rows per batch and the columns to read (None: all). Batches of an Arrow file keep the
    size with which they were written.
    """
    if kind == "parquet":
        parquet = open_parquet(stream)
        return parquet.schema_arrow, lambda rows, names: parquet.iter_batches(batch_size=rows, columns=names)
    try:
        reader = pa.ipc.open_file(stream)  # with a footer: Feather, IPC file
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    except pa.ArrowInvalid:
        stream.seek(0)
        batches = reader = pa.ipc.open_stream(stream)

    def read(_: int, names: list[str] | None) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            batch.validate(full=True)  # Arrow follows an offset or code that lies outside its buffers, and crashes
            yield batch if names is None else batch.select(names)

    return reader.schema, read


def _format_advice(options: dict[str, str]) -> Advice:
    """Return the advice to name the format of CSV files."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
    words = {**options, **{name: repr(value) for name, value in options.items() if len(value) == 1}}
    if options.get("separator") == TAB:
        words["separator"] = "tab"
    advised = " and ".join(f"--{name} {word}" for name, word in words.items())
    return Advice(f"give csv=CsvFormat({arguments})", f"add {advised}")


def check_csv_start(start: bytes, name: str, form: CsvFormat) -> None:
    """Refuse text that would be read as a single column or in a wrong encoding; name the format that helps."""
    if form.encoding is None and b"\0" in start:
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or start.count(b"\0") > len(start) // 4:
            raise DataError(
                f"{name} seems to be UTF-16 text; ", _format_advice({"encoding": "utf-16"}), ", or save it as UTF-8"
            )
        line = start[: start.index(b"\0")].count(b"\n") + 1
        raise DataError(f"{name}, line {line}: a NUL byte, which text does not contain; the file may be damaged")
    lines = start.decode(form.encoding or "utf-8", errors="replace").splitlines() or [""]
    mark = next((mark for mark in (";", TAB, "|") if mark in lines[0]), None)
    if form.separator is None and "," not in lines[0] and mark is not None:
        options = {"separator": mark}
        if form.decimal is None and re.search(r"\d,\d", " ".join(lines[1:20])):
            options["decimal"] = ","
        word = "tab" if mark == TAB else repr(mark)
        raise DataError(f"{name} seems to have {word} between its fields, not a comma; ", _format_advice(options))


def check_inflated(path: Path) -> None:
    """Refuse a gzip file that inflates to implausibly many times its size, before it fills the memory."""
    size = path.stat().st_size
    if size * GZIP_MOST <= INFLATED_FREE:
        return
    limit, inflated = max(INFLATED_FREE, size * INFLATED_MOST), 0
    with gzip.open(path) as stream, suppress(EOFError, gzip.BadGzipFile, zlib.error):  # damaged: its reader says so
        while inflated <= limit and (piece := stream.read(2**20)):
            inflated += len(piece)
    if inflated > limit:
        raise DataError(
            f"{path} inflates to more than {INFLATED_MOST} times its size, far more than a table usually does; if it "
            "is one, decompress it first"
        )


def check_csv_lines(stream: pa.NativeFile, name: str, form: CsvFormat) -> None:
    """Refuse a CSV file with a line that has fewer or more fields than its header.

    pandas reads a truncated line as one with missing values. pyarrow's parser refuses it, and is fast enough to check
    the whole file first.
    """
    reading = pyarrow.csv.ReadOptions(
        use_threads=False,  # errors name line numbers only with one thread
        autogenerate_column_names=True,
        block_size=LINE_BYTES,
        encoding=form.encoding or "utf8",
    )
    parsing = pyarrow.csv.ParseOptions(delimiter=form.separator or ",", newlines_in_values=True)
    # One column, unchanged: its cells are not inspected here.
    converting = pyarrow.csv.ConvertOptions(include_columns=["f0"], column_types={"f0": pa.binary()})
    try:
        with pyarrow.csv.open_csv(stream, reading, parsing, converting) as reader:
            for _ in reader:
                pass
    except pa.ArrowInvalid as error:
        uneven = re.search(r"(Row #(\d+): )?Expected (\d+) columns, got (\d+)", str(error))
        if uneven is None:
            return  # pandas reports any other error
        line = f"line {uneven[2]}" if uneven[2] else "a line"
        raise DataError(
            f"{name}, {line}: {uneven[4]} fields, but the header has {uneven[3]}; the line may be truncated, or a "
            "field that contains the separator is not quoted"
        ) from error
