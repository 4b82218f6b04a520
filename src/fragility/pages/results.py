"""Results: the interface of every result of the library, and the files it is saved as.

A result has sections to read, tables, and a plain form. Its text, Markdown, HTML and notebook display are made from the
sections; its files (JSON, Parquet, CSV) from the plain form and the tables, and they are written atomically. A new
result is one class with `sections` and, optionally, `tables` and `to_dict`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fragility.base.errors import DataError, FragilityError
from fragility.base.files import replacing, write_text
from fragility.base.schemas import load_json
from fragility.base.text import BriefRepr
from fragility.pages.sections import Document, Section, render_fragment, render_html, render_markdown, render_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLE_SUFFIXES = (".parquet", ".csv")


def write_json(path: str | os.PathLike[str], document: Any, indent: int | None = 2) -> None:
    """Write plain values as JSON, by default indented; NaN is refused (see `without_nan`)."""
    separators = None if indent else (",", ":")
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def without_nan(value: Any) -> Any:
    """Return a plain document with NaN and infinity as None, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    return [without_nan(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write an Arrow table as .parquet or .csv, atomically."""
    import pyarrow.csv
    import pyarrow.parquet

    suffix = checked_suffix(path, TABLE_SUFFIXES)
    write = pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table
    with replacing(path) as temporary:
        write(table, temporary)


def save_report(path: str | os.PathLike[str], document: Callable[[], Any], table: Callable[[], pa.Table]) -> None:
    """Write a result by the suffix of the file: everything (.json), or its table (.csv, .parquet)."""
    if checked_suffix(path, (".json", *TABLE_SUFFIXES)) == ".json":
        write_json(path, document())
    else:
        write_table(path, table())


def checked_suffix(path: str | os.PathLike[str], allowed: Sequence[str]) -> str:
    """Return the suffix of a file's name; refuse an unsupported one."""
    suffix = Path(path).suffix.lower()
    if suffix not in allowed:
        raise DataError(f"{path} must end in {' or '.join(allowed)}")
    return suffix


class JsonFile:
    """Base of a class that is saved as one JSON file, by its ``to_dict`` and ``from_dict``."""

    __slots__ = ()
    _noun: ClassVar[str]
    _error: ClassVar[type[FragilityError]]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values.

        Returns
        -------
        dict
            What ``from_dict`` takes.
        """
        raise NotImplementedError

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the object that ``to_dict`` wrote; refuse anything else.

        Parameters
        ----------
        document : mapping
            What ``to_dict`` returned.

        Returns
        -------
        object of this class
            Equal to the one that was written.
        """
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, atomically.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        Path
            The file written.
        """
        try:
            write_json(path, self.to_dict())
        except OSError as error:
            raise self._error(f"cannot write the {self._noun} to {path}: {error.strerror or error}") from error
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that ``save`` wrote.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        object of this class
            Equal to the one that was saved.
        """
        return cls.from_dict(load_json(path, f"the {cls._noun}", cls._error))


class TabularReport:
    """Base of a report, a dataclass: saved as a whole, or as a table with one row for each of its ``lines``."""

    __slots__ = ()
    lines: Sequence[Any]  # dataclasses

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; NaN as None."""
        document: dict[str, Any] = without_nan(asdict(self))  # type: ignore[call-overload]
        return document

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per line."""
        import pandas as pd

        return pd.DataFrame([asdict(line) for line in self.lines])

    def to_arrow(self) -> pa.Table:
        """Return `to_pandas` as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist([asdict(line) for line in self.lines])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything (.json) or the lines as a table (.csv, .parquet)."""
        save_report(path, self.to_dict, self.to_arrow)


class NanEqual:
    """Base of a dataclass (with ``eq=False``) that compares field by field, with NaN equal to NaN.

    Whether a dataclass that contains NaN equals itself depends on the version of Python.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._comparable_values() == other._comparable_values()

    def __hash__(self) -> int:
        return hash(self._comparable_values())

    def _comparable_values(self) -> tuple[Any, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple("undefined" if isinstance(value, float) and math.isnan(value) else value for value in values)


# --- results --------------------------------------------------------------------------------------------------

TOP = 10  # rows of a long list that are shown


def tabulate(kind: type, lines: Sequence[Any]) -> pa.Table:
    """Return one row per dataclass of a kind."""
    import pyarrow as pa

    rows = [asdict(line) for line in lines]
    return pa.table({field.name: pa.array([row[field.name] for row in rows]) for field in fields(kind)})


class Result(BriefRepr):
    """Base of a result: its sections as text, Markdown and HTML, its tables, and its plain form; saved by suffix.

    ``str`` returns its text and ``repr`` the first line of it; a notebook shows its page.
    """

    __slots__ = ()
    _title: ClassVar[str] = ""
    _generator: ClassVar[str] = "fragility"
    _indent: ClassVar[int | None] = 2  # of its JSON file
    SUFFIXES: ClassVar[tuple[str, ...]] = (".txt", ".md", ".html", ".json")

    def sections(self, top: int = TOP) -> list[Section]:
        """Return the sections of the result's page.

        Parameters
        ----------
        top : int, default=10
            How many rows of a long list to show; some results ignore it.

        Returns
        -------
        list of Section
            The first one opens every page.
        """
        raise NotImplementedError

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables by name; ``.csv`` and ``.parquet`` files contain the first one.

        Returns
        -------
        dict of str to pyarrow.Table
            Empty for a result without tables.
        """
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values.

        Returns
        -------
        dict
            The content of a ``.json`` file; NaN as None.
        """
        document: dict[str, Any] = without_nan(asdict(self))  # type: ignore[call-overload]
        return document

    def to_arrow(self) -> pa.Table:
        """Return the first table.

        Returns
        -------
        pyarrow.Table
            One row per line.
        """
        return next(iter(self.tables().values()))

    def to_pandas(self) -> pd.DataFrame:
        """Return the first table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per line.
        """
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_text(self, top: int = TOP) -> str:
        """Return the sections as text for a terminal.

        Parameters
        ----------
        top : int, default=10
            How many rows of a long list to show; some results ignore it.

        Returns
        -------
        str
            Several lines; ``print`` shows the same.
        """
        return render_text(self.sections(top))

    def to_markdown(self) -> str:
        """Return the sections as Markdown.

        Returns
        -------
        str
            A document with tables.
        """
        return render_markdown(self._document())

    def to_html(self) -> str:
        """Return the sections as one HTML document.

        Returns
        -------
        str
            It opens offline and fetches nothing.
        """
        return render_html(self._document())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result in the format of the file's suffix, atomically.

        Parameters
        ----------
        path : str or path
            The file: its text (.txt), Markdown (.md), page (.html), plain form (.json), or its first table (.csv,
            .parquet) if it has one.

        Returns
        -------
        Path
            The file written.
        """
        suffix = checked_suffix(path, self.SUFFIXES)
        try:
            if suffix in TABLE_SUFFIXES:
                write_table(path, self.to_arrow())
            elif suffix == ".json":
                write_json(path, self.to_dict(), indent=self._indent)
            else:
                write_text(path, self._forms()[suffix]().rstrip("\n") + "\n")
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror or error}") from error
        return Path(path)

    def _forms(self) -> Mapping[str, Callable[[], str]]:
        """Return the writers of text formats by suffix."""
        return {".txt": self.to_text, ".md": self.to_markdown, ".html": self.to_html}

    def _document(self) -> Document:
        return Document(self._title, self._byline(), self.sections(), self._generator)

    def _byline(self) -> str:
        return ""

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return render_fragment(self._document())
