"""Results: what every result of the library can do, however it was made.

A result has sections to read, tables to count with, and a plain form. From these follow its text, Markdown and HTML,
what a notebook shows, and the files it is saved as. A new result is one class with `sections`, and where it has them
`tables` and `to_dict`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fragility.base.errors import DataError
from fragility.base.files import write_text
from fragility.base.text import BriefRepr
from fragility.pages.rendering import render_fragment, render_html, render_markdown, render_text
from fragility.pages.saving import TABLE_SUFFIXES, checked_suffix, without_nan, write_json, write_table
from fragility.pages.sections import Document, Section

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TOP = 10  # rows of a long list that are shown


def tabulate(kind: type, lines: Sequence[Any]) -> pa.Table:
    """Return one row per dataclass of a kind."""
    import pyarrow as pa

    rows = [asdict(line) for line in lines]
    return pa.table({field.name: pa.array([row[field.name] for row in rows]) for field in fields(kind)})


class Result(BriefRepr):
    """Base of a result: its sections as text, Markdown and HTML, its tables, and its plain form; saved by suffix.

    ``str`` is its text, ``repr`` the first line of it, and a notebook shows its page.
    """

    __slots__ = ()
    _title: ClassVar[str] = ""
    _generator: ClassVar[str] = "fragility"
    _indent: ClassVar[int | None] = 2  # of its JSON file
    SUFFIXES: ClassVar[tuple[str, ...]] = (".txt", ".md", ".html", ".json")

    def sections(self, top: int = TOP) -> list[Section]:
        """Return what there is to read.

        Parameters
        ----------
        top : int, default=10
            How many rows of a long list to show.

        Returns
        -------
        list of Section
            The first one opens every page.
        """
        raise NotImplementedError

    def tables(self) -> dict[str, pa.Table]:
        """Return what there is to count with, by name; the first table is what ``.csv`` and ``.parquet`` hold.

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
            What a ``.json`` file holds; NaN as None.
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
        """Return the sections to read in a terminal.

        Parameters
        ----------
        top : int, default=10
            How many rows of a long list to show.

        Returns
        -------
        str
            Several lines; also what printing shows.
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
            It opens offline; nothing is fetched.
        """
        return render_html(self._document())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result as the file's name says; the file appears whole or not at all.

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
        """Return what is written as text, by suffix."""
        return {".txt": self.to_text, ".md": self.to_markdown, ".html": self.to_html}

    def _document(self) -> Document:
        return Document(self._title, self._byline(), self.sections(), self._generator)

    def _byline(self) -> str:
        return ""

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return render_fragment(self._document())
