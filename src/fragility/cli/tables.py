"""Tables that a user names on the command line: Parquet, CSV or Arrow files in, pandas out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.feather

from fragility.errors import DataError


def _read_arrow(path: Path) -> pd.DataFrame:
    """Arrow files come in two layouts, with a footer (Feather, IPC file) and without (IPC stream)."""
    try:
        return pa.feather.read_feather(path)
    except pa.ArrowInvalid:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            return reader.read_pandas()


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": pd.read_parquet,
    ".pq": pd.read_parquet,
    ".csv": pd.read_csv,
    ".csv.gz": pd.read_csv,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
    ".ipc": _read_arrow,
}


def read_table(path: Path, role: str) -> pd.DataFrame:
    """Read the file `path`; `role` names it in messages (DATA, --train ...)."""
    reader = _reader(path, role)
    try:
        table = reader(path)
    except MemoryError:
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


def _reader(path: Path, role: str) -> Callable[[Path], pd.DataFrame]:
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


@dataclass(frozen=True)
class AuditRows:
    """Rows for a model: the fields it sees, and beside them the ids and labels it must not see."""

    X: pd.DataFrame
    ids: list[object] | None
    labels: pd.Series | None


def read_rows(
    path: Path, role: str, *, target: str | None = None, id_column: str | None = None, rows: str | None = None
) -> AuditRows:
    """Read a table and take its id and label columns out; `rows` is `N` or `START:STOP`.

    The label column may be absent, since rows to audit are often not labelled yet; the id column may not.
    """
    table = read_table(path, role)
    if rows is not None:
        table = table.iloc[parse_rows(rows, len(table), path)]
    ids = None
    if id_column is not None:
        ids = _column(table, id_column, "--id", path).tolist()
        table = table.drop(columns=id_column)
    labels = None
    if target is not None and target in table.columns:
        labels, table = table[target], table.drop(columns=target)
    if table.shape[1] == 0:
        raise DataError(f"{role} {path} has no field left besides the id and target columns")
    return AuditRows(table, ids, labels)


def read_training(path: Path, *, target: str | None, id_column: str | None) -> pd.DataFrame:
    """Read the training rows; here the target, if named, must be present, because a typing error would leak it."""
    table = read_table(path, "--train")
    if target is not None:
        _column(table, target, "--target", path)
    dropped = [name for name in (target, id_column) if name is not None and name in table.columns]
    return table.drop(columns=dropped)


def _column(table: pd.DataFrame, name: str, option: str, path: Path) -> pd.Series:
    if name not in table.columns:
        raise DataError(f"{option} names the column {name!r}, but {path} has {', '.join(map(str, table.columns))}")
    return table[name]


def parse_rows(text: str, count: int, path: Path) -> slice:
    """Turn `N` (the first N rows) or `START:STOP` into a slice of at least one of `count` rows."""
    parts = text.split(":")
    try:
        numbers = [int(part) if part else None for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or (len(numbers) == 1 and numbers[0] is None):
        raise DataError(f"--rows must be a number of rows or START:STOP, such as 100 or 100:200, got {text!r}")
    chosen = slice(numbers[0]) if len(numbers) == 1 else slice(*numbers)
    if len(range(*chosen.indices(count))) == 0:
        raise DataError(f"--rows {text} selects none of the {count} rows of {path}")
    return chosen
