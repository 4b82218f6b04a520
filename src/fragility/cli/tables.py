"""Tables that a user names on the command line: Parquet, CSV or Arrow files in, pandas out."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fragility.cli.terminal import note
from fragility.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    import fragility as fg
    from fragility.tables import RowSource

TAB = "\t"
TAB_NAMES = ("tab", "\\t")  # a tab is hard to type in a shell
SAMPLED_BYTES = 64 * 1024
MOST_LABELLED = 500_000  # rows whose labels are read for the report after an audit
MOST_READ_AGAIN = 256 * 1024**2  # bytes of files without columns to choose from
GZIP_MOST = 1032  # times its size is the most that gzip can stand for
INFLATED_MOST = 200  # times its size a table may have been compressed
INFLATED_FREE = 256 * 2**20  # bytes that nobody asks about


@dataclass(frozen=True)
class CsvFormat:
    """How the CSV files of one command are written; None where the user did not say."""

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None


PLAIN = CsvFormat()


def csv_format(
    separator: str | None, encoding: str | None, decimal: str | None, *tables: str | Path | None
) -> CsvFormat:
    """Check the options of CSV files, and that there is a CSV file among the `tables` for them to speak of."""
    given = {"--separator": separator, "--encoding": encoding, "--decimal": decimal}
    options = [option for option, value in given.items() if value is not None]
    if options and not any(table is not None and is_csv(table) for table in tables):
        raise DataError(f"{options[0]} is for CSV files, and none was given; leave it out")
    if separator in TAB_NAMES:
        separator = TAB
    for option, value in (("--separator", separator), ("--decimal", decimal)):
        if value is not None and len(value) != 1:
            raise DataError(f"{option} must be one character, such as ';' or ',', got {value!r}")
    if encoding is not None:
        _check_encoding(encoding)
    return CsvFormat(separator, encoding, decimal)


def _check_encoding(name: str) -> None:
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise DataError(f"--encoding {name} is not known; utf-8, latin-1, cp1252 and utf-16 are common ones") from error


# --- readers ------------------------------------------------------------------------------------------------


def is_csv(path: str | Path) -> bool:
    """Whether a table is a CSV file, or a folder that holds some."""
    if Path(path).is_dir():
        return any(is_csv(inside) for inside in Path(path).rglob("*") if inside.is_file())
    return str(path).lower().endswith((".csv", ".csv.gz"))


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    from pyarrow.fs import LocalFileSystem

    # Given a path alone, pandas opens a Python file, which threads of Arrow may let go of only while Python ends: it
    # would abort then.
    return pd.read_parquet(path, filesystem=LocalFileSystem())


def _read_arrow(path: Path) -> pd.DataFrame:
    """Arrow files come in two layouts, with a footer (Feather, IPC file) and without (IPC stream)."""
    import pyarrow as pa

    from fragility.tables import arrow_batches

    with pa.memory_map(str(path)) as stream:
        schema, batches = arrow_batches(stream)
        table: pd.DataFrame = pa.Table.from_batches(batches, schema=schema).to_pandas()
    return table


def _read_csv(path: Path, role: str, form: CsvFormat) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    from fragility.tables import CsvFormat as Form
    from fragility.tables import check_csv_lines

    _check_inflated(path, role)
    _check_first_lines(path, role, form)
    try:
        with pa.input_stream(path, compression="detect") as stream:
            check_csv_lines(stream, f"{role} {path}", Form(form.separator, form.encoding, form.decimal))
        return pd.read_csv(
            path,
            sep="," if form.separator is None else form.separator,
            encoding="utf-8" if form.encoding is None else form.encoding,
            decimal="." if form.decimal is None else form.decimal,
        )
    except UnicodeError as error:
        raise DataError(_undecodable(path, role, form, error)) from error


def _check_inflated(path: Path, role: str) -> None:
    """Refuse a compressed file that stands for absurdly more than its size, before it takes all the memory."""
    size = path.stat().st_size
    if path.suffix.lower() != ".gz" or size * GZIP_MOST <= INFLATED_FREE:
        return
    limit, found = max(INFLATED_FREE, size * INFLATED_MOST), 0
    with gzip.open(path) as stream, suppress(EOFError, gzip.BadGzipFile, zlib.error):  # damaged: its reader says so
        while found <= limit and (piece := stream.read(2**20)):
            found += len(piece)
    if found > limit:
        raise DataError(
            f"{role} {path} inflates to more than {INFLATED_MOST} times its size, which no table does; "
            "if it is one, decompress it first"
        )


def _check_first_lines(path: Path, role: str, form: CsvFormat) -> None:
    """Refuse what would be read as one column of everything, or as nonsense, and name the option that helps."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            start = stream.read(SAMPLED_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{role} {path} is not a whole gzip file ({error}); it may be cut off") from error
    if form.encoding is None and b"\0" in start:
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or start.count(b"\0") > len(start) // 4:
            raise DataError(f"{role} {path} seems to be UTF-16 text; add --encoding utf-16, or save it as UTF-8")
        line = start[: start.index(b"\0")].count(b"\n") + 1
        raise DataError(f"{role} {path}, line {line}: a NUL byte, which no text holds; the file may be damaged")
    lines = start.decode(form.encoding or "utf-8", errors="replace").splitlines() or [""]
    mark = _other_separator(lines[0]) if form.separator is None else None
    if mark is not None:
        word = TAB_NAMES[0] if mark == TAB else repr(mark)
        decimal = " and --decimal ','" if form.decimal is None and re.search(r"\d,\d", " ".join(lines[1:20])) else ""
        raise DataError(
            f"{role} {path} seems to have {word} between its fields, not a comma; add --separator {word}{decimal}"
        )


def _other_separator(header: str) -> str | None:
    """The separator of a header without commas, if it has an obvious one."""
    return None if "," in header else next((mark for mark in (";", TAB, "|") if mark in header), None)


def _undecodable(path: Path, role: str, form: CsvFormat, error: UnicodeError) -> str:
    if form.encoding is not None:
        return f"{role} {path} is not {form.encoding} text ({error}); try another --encoding"
    byte = error.object[error.start] if isinstance(error, UnicodeDecodeError) else 0
    likely = "cp1252" if 0x80 <= byte <= 0x9F else "latin-1"
    return f"{role} {path} is not UTF-8 text; it is probably {likely}: add --encoding {likely}, or save it as UTF-8"


READERS: dict[str, Callable[[Path, str, CsvFormat], pd.DataFrame]] = {
    ".parquet": lambda path, role, form: _read_parquet(path),
    ".pq": lambda path, role, form: _read_parquet(path),
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".arrow": lambda path, role, form: _read_arrow(path),
    ".feather": lambda path, role, form: _read_arrow(path),
    ".ipc": lambda path, role, form: _read_arrow(path),
}


def read_table(path: Path, role: str, form: CsvFormat = PLAIN) -> pd.DataFrame:
    """Read the file `path`; `role` names it in messages (DATA, --train ...)."""
    reader = _reader(path, role)
    try:
        table = reader(path, role, form)
    except (MemoryError, DataError):
        raise
    except OSError as error:
        # pyarrow raises a bare OSError, without a number, for a file it cannot parse
        if error.errno is not None:
            raise
        raise DataError(_unreadable(path, role, error)) from error
    except Exception as error:
        raise DataError(_unreadable(path, role, error)) from error
    if table.shape[1] == 0 or len(table) == 0:
        raise DataError(f"{role} {path} holds no rows; at least one row and one column were expected")
    if not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()][0]
        raise DataError(f"{role} {path} has two columns named {twice!r}; column names must differ")
    return table


def _unreadable(path: Path, role: str, error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{role} {path} could not be read as {path.suffix or 'a table'}: {first_line}"


def _reader(path: Path, role: str) -> Callable[[Path, str, CsvFormat], pd.DataFrame]:
    if not path.exists():
        raise DataError(f"{role} {path} does not exist")
    if path.is_dir():
        raise DataError(f"{role} {path} is a folder; a Parquet, CSV or Arrow file was expected")
    name = path.name.lower()
    for suffix, reader in READERS.items():
        if name.endswith(suffix):
            return reader
    known = ", ".join(READERS)
    raise DataError(f"{role} {path} has an unknown kind {path.suffix or '(no suffix)'!r}; expected one of {known}")


def read_stress_labels(path: Path, role: str, form: CsvFormat = PLAIN) -> pa.Table:
    """Read what `fragility stress --out` wrote; Parquet keeps what it says about the stress."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() == ".parquet" and path.is_file():
        return pq.read_table(path)
    return pa.Table.from_pandas(read_table(path, role, form), preserve_index=False)


# --- many rows ----------------------------------------------------------------------------------------------


def check_many(data: str, form: CsvFormat, *, id_column: str | None, rows: str | None) -> None:
    """Find out before the work that DATA names tables with rows, and that the first lines of CSV files make sense."""
    source = many_rows(data, None, Columns(), rows=rows, form=form)
    if source.kind == "csv" and source.filesystem.type_name == "local":
        _check_first_lines(Path(source.files[0].path), "DATA", form)
    source.head(1)
    if id_column is not None:
        source.check_has(id_column)


def many_rows(data: str, protocol: Any, columns: Columns, *, rows: str | None, form: CsvFormat) -> RowSource:
    """Return rows to be read part by part."""
    from fragility.tables import CsvFormat as Form
    from fragility.tables import open_source

    return open_source(
        data,
        fields=() if protocol is None else protocol.fields,
        id_column=columns.id_column,
        target=columns.target,
        rows=slice(None) if rows is None else row_range(rows),
        csv=Form(form.separator, form.encoding, form.decimal),
    )


# --- rows, ids and labels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Which columns of a command's tables the model sees: not the labels and ids, nor what is to be left out."""

    target: str | None = None
    id_column: str | None = None
    drop: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None  # the model's own; None where it does not know their names
    ignore_extra: bool = False
    dropped: set[str] = field(default_factory=set)  # those of `drop` that some table had

    @classmethod
    def declare(
        cls, fields: tuple[str, ...] | None, target: str | None, id_column: str | None,
        drop: Sequence[str] | None = None, ignore_extra: bool = False,
    ) -> Columns:  # fmt: skip
        """Return what the options say of the columns; refuse options that take a field away from the model."""
        for option, name in [("--target", target), ("--id", id_column), *(("--drop", name) for name in drop or ())]:
            if fields is not None and name in fields:
                raise DataError(
                    f"{option} names the column {name!r}, which is a field of the model; name a column that the model "
                    f"does not take, or leave out {option}"
                )
        if ignore_extra and fields is None:
            raise DataError(
                "--ignore-extra needs a model that knows its columns by name, which this one does not; name the "
                "columns to leave out with --drop"
            )
        return cls(target, id_column, tuple(drop or ()), fields, ignore_extra)

    def to_leave_out(self, names: Iterable[str], path: str | Path) -> list[str]:
        """Return the columns of a table to leave out, beside labels and ids; say which ones nobody named."""
        given = [str(name) for name in names]
        named = [name for name in given if name in self.drop]
        self.dropped.update(named)
        known = {*(self.fields or ()), *named, self.target, self.id_column}
        extra = [name for name in given if name not in known] if self.ignore_extra else []
        if extra:
            more = f" and {len(extra) - 5} more" if len(extra) > 5 else ""
            note(f"left out of {path}, because the model does not know them: {', '.join(extra[:5])}{more}")
        return [*named, *extra]

    def check_dropped(self) -> None:
        """Refuse a --drop that no table of the command had a column for: a typing error would have no effect."""
        for name in self.drop:
            if name not in self.dropped:
                raise DataError(f"--drop names the column {name!r}, which no table has; leave it out or correct it")


def field_names(model: fg.Model | None, protocol: fg.Protocol | None) -> tuple[str, ...] | None:
    """Return the names of the model's fields; None where neither model nor protocol knows them."""
    if protocol is not None:
        return tuple(own.name for own in protocol.fields)
    return None if model is None else model.columns


@dataclass(frozen=True)
class AuditRows:
    """Rows for a model: the fields it sees, and beside them the ids and labels it must not see."""

    X: pd.DataFrame
    ids: tuple[Hashable, ...] | None  # None where nothing asks for them
    labels: pd.Series | None


def read_rows(
    path: Path, role: str, columns: Columns, *, rows: str | None = None, form: CsvFormat = PLAIN, ids: bool = True
) -> AuditRows:
    """Read a table and take its ids and labels out; `rows` is `N` or `START:STOP`.

    Ids are the column that --id names, else the index that pandas stored, else row numbers. The label column may be
    absent, since rows to audit are often not labelled yet; the id column may not, unless `ids` are not asked for.
    """
    from fragility.evidence.rows import row_ids

    table = read_table(path, role, form)
    if rows is not None:
        table = table.iloc[parse_rows(rows, len(table), path)]
    found = None
    if ids:
        own = None if columns.id_column is None else _column(table, columns.id_column, "--id", path).tolist()
        found = row_ids(own, table.index, len(table))
    labels = table[columns.target] if columns.target in table.columns else None
    table = _without(table, [columns.id_column, columns.target, *columns.to_leave_out(table.columns, path)])
    if table.shape[1] == 0:
        raise DataError(f"{role} {path} has no field left besides the id and target columns")
    return AuditRows(table, found, labels)


def _without(table: pd.DataFrame, names: Sequence[str | None]) -> pd.DataFrame:
    return table.loc[:, [str(name) not in names for name in table.columns]]


def labels_of(source: RowSource, count: int, classes: Sequence[object]) -> dict[Any, Any] | None:
    """Return the true classes by id where every row has one and they are the model's; None otherwise.

    Labels of very many rows, or in files that must be read whole to find them, are left out: the audit that has just
    been made in bounded memory would be followed by a reading that is not.
    """
    if source.target is None or source.target not in source.column_names:
        return None
    if count > MOST_LABELLED or must_be_read_whole(source):
        note("the report was written without the labels of so many rows; fragility report --labels adds them")
        return None
    known = {str(label) for label in classes}
    labels: dict[Any, Any] = {}
    for ids, values in source.labels(MOST_LABELLED):
        if values.isna().any() or not set(map(str, values.unique())) <= known:
            return None
        labels.update(zip(ids, values.tolist(), strict=True))
    return labels


def must_be_read_whole(source: RowSource) -> bool:
    """Whether the files are large and of a kind that has to be read whole to find some of its rows or columns."""
    return source.kind != "parquet" and sum(file.size for file in source.files) > MOST_READ_AGAIN


def note_unlabelled(rows: AuditRows, target: str | None, path: Path) -> None:
    """Rows need no labels, but whoever mistyped --target should see that it had no effect."""
    if target is not None and rows.labels is None:
        note(f"{path} has no column {target!r}, so --target has no effect on it")


def read_training(path: Path, columns: Columns, form: CsvFormat = PLAIN) -> pd.DataFrame:
    """Read the training rows; here the target, if named, must be present, because a typing error would leak it."""
    table = read_table(path, "--train", form)
    if columns.target is not None:
        _column(table, columns.target, "--target", path)
    return _without(table, [columns.target, columns.id_column, *columns.to_leave_out(table.columns, path)])


def _column(table: pd.DataFrame, name: str, option: str, path: Path) -> pd.Series:
    if name not in table.columns:
        raise DataError(f"{option} names the column {name!r}, but {path} has {', '.join(map(str, table.columns))}")
    return table[name]


def row_range(text: str) -> slice:
    """Turn `N` (the first N rows) or `START:STOP` into a slice."""
    if not re.fullmatch(r"\d+|\d*:\d*", text.strip()):
        raise DataError(f"--rows must be a number of rows or START:STOP, such as 100 or 100:200, got {text!r}")
    return slice(*(int(part) if part.strip() else None for part in text.split(":")))


def parse_rows(text: str, count: int, path: Path) -> slice:
    """Return the slice that `text` stands for, of at least one of `count` rows."""
    chosen = row_range(text)
    if len(range(*chosen.indices(count))) == 0:
        raise DataError(f"--rows {text} selects none of the {count} rows of {path}")
    return chosen
