"""Results as files: JSON, Parquet or CSV, whole or not at all; and results that may hold NaN."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fragility.errors import DataError
from fragility.files import replacing, write_text

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_SUFFIXES = (".parquet", ".csv")


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Write plain values as indented JSON; NaN is refused (see `without_nan`)."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def without_nan(value: Any) -> Any:
    """Return a plain document with NaN and infinity as None, which JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    return [without_nan(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write an Arrow table as .parquet or .csv, whole or not at all."""
    import pyarrow.csv
    import pyarrow.parquet

    writers: dict[str, Callable[[pa.Table, Path], Any]] = {
        ".parquet": pyarrow.parquet.write_table,
        ".csv": pyarrow.csv.write_csv,
    }
    write = writers[checked_suffix(path, TABLE_SUFFIXES)]
    with replacing(path) as temporary:
        write(table, temporary)


def save_report(path: str | os.PathLike[str], document: Callable[[], Any], table: Callable[[], pa.Table]) -> None:
    """Write a result as its name says: everything (.json), or its table (.csv, .parquet)."""
    if checked_suffix(path, (".json", *TABLE_SUFFIXES)) == ".json":
        write_json(path, document())
    else:
        write_table(path, table())


def checked_suffix(path: str | os.PathLike[str], allowed: Sequence[str]) -> str:
    """Return the suffix of a file's name; refuse one that names no format we write."""
    suffix = Path(path).suffix.lower()
    if suffix not in allowed:
        raise DataError(f"{path} must end in {' or '.join(allowed)}")
    return suffix


class NanEqual:
    """Base of a dataclass (with ``eq=False``) that equals another one field by field, NaN being equal to NaN.

    Python decides by identity or by value whether a dataclass that holds NaN equals itself, depending on its version.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._figures() == other._figures()

    def __hash__(self) -> int:
        return hash(self._figures())

    def _figures(self) -> tuple[Any, ...]:
        values = (getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]
        return tuple("undefined" if isinstance(value, float) and math.isnan(value) else value for value in values)
