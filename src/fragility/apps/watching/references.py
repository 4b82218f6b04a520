"""The reference of a log, kept beside it: what the first days showed stays known when their folders are moved away.

``watch.json`` in the folder of the log holds one reference per protocol and setting:

    format            "fragility-watch/1"
    references        a list; each has `protocol_digest`, `classes`, `reference_days` and `min_confidence`, which say
                      what it is for, the days `first` and `last` with its `rows`, and the `columns`: measure, name, and
                      how many decisions (`n`) have which sum (`k`) and sum of squares (`squares`)
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fragility.apps.watching.events import WatchedColumn
from fragility.base.arrays import Floats
from fragility.base.errors import DataError
from fragility.base.files import read_json, write_text

FORMAT, FILE = "fragility-watch/1", "watch.json"


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceSums:
    """What was counted on the reference days; C columns."""

    first: dt.date
    last: dt.date
    rows: int
    n: Floats  # (C,)
    k: Floats
    squares: Floats


@dataclass(frozen=True)
class ReferenceKeeper:
    """Reads and writes the reference of one log, for one protocol and setting."""

    folder: Path
    key: dict[str, Any]  # what a reference is for
    columns: tuple[WatchedColumn, ...]

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def load(self) -> ReferenceSums | None:
        """Return the reference that is kept; None if there is none of this kind."""
        for kept in self._read():
            if {name: kept[name] for name in self.key} == self.key:
                return self._decode(kept)
        return None

    def save(self, sums: ReferenceSums) -> None:
        """Keep a reference beside those of other kinds."""
        columns = [
            {"measure": column.measure, "name": column.name, "n": n, "k": k, "squares": squares}
            for column, n, k, squares in zip(
                self.columns, sums.n.tolist(), sums.k.tolist(), sums.squares.tolist(), strict=True
            )
        ]
        days = {"first": sums.first.isoformat(), "last": sums.last.isoformat(), "rows": sums.rows}
        document = {"format": FORMAT, "references": [*self._read(), {**self.key, **days, "columns": columns}]}
        write_text(self.path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def _read(self) -> list[dict[str, Any]]:
        try:
            document = read_json(self.path)
            if document["format"] != FORMAT:
                raise ValueError(f"it has format {document['format']!r}, this version reads {FORMAT!r}")
            references: list[dict[str, Any]] = document["references"]
            if any(name not in kept for kept in references for name in (*self.key, "first", "last", "rows", "columns")):
                raise ValueError("a reference lacks what it is for")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._refuse(error) from error
        return references

    def _decode(self, kept: dict[str, Any]) -> ReferenceSums:
        try:
            given = {(one["measure"], one["name"]): one for one in kept["columns"]}
            n, k, squares = (
                np.array([float(given[column.measure, column.name][name]) for column in self.columns])
                for name in ("n", "k", "squares")
            )
            first, last = (dt.date.fromisoformat(kept[name]) for name in ("first", "last"))
            if not all(bool((np.isfinite(sums) & (sums >= 0.0)).all()) for sums in (n, k, squares)) or last < first:
                raise ValueError("its figures are none of decisions")
            return ReferenceSums(first, last, int(kept["rows"]), n, k, squares)
        except (ValueError, KeyError, TypeError) as error:
            raise self._refuse(error) from error

    def _refuse(self, error: Exception) -> DataError:
        reason = getattr(error, "strerror", None) or error
        return DataError(f"cannot read the reference {self.path}: {reason}; restore it, or remove it to set it anew")
