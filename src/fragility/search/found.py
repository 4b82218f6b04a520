"""FailingSets: what a search for the smallest failing set found, row by row."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.saving import TABLE_SUFFIXES, checked_suffix, write_table
from fragility.scores import Booleans, Floats, Integers

FOUND = "found"
NONE = "none up to max_size"
UNAFFORDABLE = "unaffordable"


@dataclass(frozen=True, slots=True, eq=False)
class FailingSets:
    """Smallest failing set found for every row; n rows, G groups."""

    id: npt.NDArray[Any]  # (n,)
    method: str
    width: int | None  # beam width; None for the exact search
    max_size: int  # K
    size: Integers  # (n,) |S|, or K + 1 where none was found
    state: tuple[str, ...]  # (n,) "found", "none up to max_size" or "unaffordable" (exact search stopped)
    searched_size: Integers  # (n,) largest size searched in full
    removed: Booleans  # (n, G) the set, all false where none was found
    margin: Floats  # (n,) support margin after its removal, NaN where none was found
    evaluations: int  # states asked of the model
    group_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.id)

    @property
    def resolved(self) -> Booleans:
        """Rows whose search ended: found, or proved absent up to max_size."""
        return np.asarray([state != UNAFFORDABLE for state in self.state], dtype=bool)

    def groups(self, row: int) -> tuple[str, ...]:
        """Names of the groups of one row's set, in declared order."""
        return tuple(self.group_names[g] for g in np.flatnonzero(self.removed[row]))

    def to_pandas(self) -> pd.DataFrame:
        """One row a prediction."""
        return pd.DataFrame(
            {
                "id": self.id,
                "size": self.size,
                "state": self.state,
                "searched_size": self.searched_size,
                "groups": [self.groups(row) for row in range(len(self))],
                "margin": self.margin,
            }
        )

    def to_arrow(self) -> pa.Table:
        """`to_pandas` as an Arrow table; the groups are lists of names."""
        return pa.Table.from_pandas(self.to_pandas(), preserve_index=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as .parquet, or as .csv with the groups of a row joined by " + "."""
        table = self.to_arrow()
        if checked_suffix(path, TABLE_SUFFIXES) == ".csv":  # a CSV cell holds no list
            joined = pa.array([" + ".join(self.groups(row)) for row in range(len(self))])
            table = table.set_column(table.column_names.index("groups"), "groups", joined)
        write_table(path, table)
