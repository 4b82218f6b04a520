"""What a search gives: the smallest failing set per row, how far that is proved, and how far greedy paths are off."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError
from fragility.base.text import BriefRepr
from fragility.evidence import EvidenceRows
from fragility.pages.results import TABLE_SUFFIXES, checked_suffix, write_table
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND, none_up_to
from fragility.protocol import Protocol

NOT_COUNTED = -1


@dataclass(frozen=True, slots=True, repr=False)
class MinimalSets(BriefRepr):
    """The minimal failing sets of one row: each fails, and none of its proper subsets does."""

    sets: tuple[tuple[str, ...], ...]  # by size, then in declared order of groups
    complete: bool  # False: there are, or may be, more

    def to_text(self) -> str:
        """`checking_status, or else duration and purpose`."""
        return ", or else ".join(" and ".join(names) for names in self.sets) + ("" if self.complete else ", or others")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FailingSets(BriefRepr):
    """The smallest failing set found for every row; n rows, G groups.

    States: ``minimum`` (no smaller set fails, proved), ``upper bound`` (smaller ones may), ``none up to K, proved``,
    ``none at all, proved``, and ``not decided`` (the budget ended first and nothing was found).
    """

    id: npt.NDArray[Any]  # (n,)
    method: tuple[str, ...]  # (n,) lattice, branch and bound, closed form, integer program, by size, beam
    max_size: int  # K, the largest size asked for
    depth: int  # of the protocol, where the certificate's path ends
    size: Integers  # (n,) groups in the set, or K + 1 where none was found
    state: tuple[str, ...]  # (n,) how far that is proved
    searched_size: Integers  # (n,) every set of at most so many groups was decided
    removed: Booleans  # (n, G) the set, all false where none was found
    margin: Floats  # (n,) support margin after its removal, NaN where none was found
    count: Integers  # (n,) failing sets of that size, -1 where they were not counted, 0 where there is none
    evaluations: Integers  # (n,) states decided on the way, by the lattice or by the model
    group_names: tuple[str, ...]  # in declared order
    minimal: tuple[MinimalSets, ...] | None = None  # (n,) with every=True

    def __len__(self) -> int:
        return len(self.id)

    @property
    def found(self) -> Booleans:
        """Rows with a failing set."""
        return np.asarray(self.size <= self.max_size)

    @property
    def resolved(self) -> Booleans:
        """Rows whose question is answered: a proved minimum, or proved absence up to max_size."""
        return np.asarray([state not in (UPPER_BOUND, UNDECIDED) for state in self.state], dtype=bool)

    def groups(self, row: int) -> tuple[str, ...]:
        """Return the names of the groups of one row's set, in declared order; empty where none was found."""
        return name_groups(self.removed[row], self.group_names)

    def every(self, row: int) -> MinimalSets:
        """Return all minimal failing sets of one row, up to a cap; the search must have been asked for them."""
        if self.minimal is None:
            raise DataError("only the smallest set of each row was searched for; ask for every one of them")
        return self.minimal[row]

    def counts(self) -> dict[str, int]:
        """Return how many rows are in each state that occurs."""
        return {state: self.state.count(state) for state in sorted(set(self.state))}

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per prediction; null where there is no set, or where sets were not counted."""
        size, count = pd.array(self.size, dtype="Int64"), pd.array(self.count, dtype="Int64")
        size[~self.found] = pd.NA
        count[self.count == NOT_COUNTED] = pd.NA
        columns = {
            "id": self.id,
            "size": size,
            "state": self.state,
            "groups": [self.groups(row) for row in range(len(self))],
            "count": count,
            "margin": self.margin,
            "searched_size": self.searched_size,
            "evaluations": self.evaluations,
            "method": self.method,
        }
        if self.minimal is not None:
            columns["minimal_sets"] = [[list(names) for names in found.sets] for found in self.minimal]
            columns["minimal_sets_complete"] = [found.complete for found in self.minimal]
        return pd.DataFrame(columns)

    def to_arrow(self) -> pa.Table:
        """Return `to_pandas` as an Arrow table; the groups are lists of names."""
        return pa.Table.from_pandas(self.to_pandas(), preserve_index=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as .parquet, or as .csv with the groups of a set joined by " + ", sets by " | "."""
        frame = self.to_pandas()
        if checked_suffix(path, TABLE_SUFFIXES) == ".csv":  # a CSV cell holds no list
            frame["groups"] = frame["groups"].map(" + ".join)
            if self.minimal is not None:
                frame["minimal_sets"] = [" | ".join(map(" + ".join, found.sets)) for found in self.minimal]
        write_table(path, pa.Table.from_pandas(frame, preserve_index=False))


def name_groups(removed: Booleans, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the groups of one set (G,)."""
    return tuple(names[g] for g in np.flatnonzero(removed))


class Answers:
    """The arrays of a FailingSets, to be filled."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol, max_size: int, every: bool = False) -> None:
        n = len(rows)
        self.rows, self.protocol, self.max_size = rows, protocol, max_size
        self.size: Integers = np.full(n, max_size + 1, dtype=np.int64)
        self.searched: Integers = np.zeros(n, dtype=np.int64)
        self.removed: Booleans = np.zeros((n, rows.n_groups), dtype=bool)
        self.margin: Floats = np.full(n, np.nan)
        self.count: Integers = np.zeros(n, dtype=np.int64)
        self.evaluations: Integers = np.zeros(n, dtype=np.int64)
        self.method: npt.NDArray[np.object_] = np.full(n, "", dtype=object)
        self.exhausted: Booleans = np.zeros(n, dtype=bool)  # every set there is was decided
        self.minimal: list[MinimalSets] | None = [MinimalSets((), True) for _ in range(n)] if every else None

    def put(self, row: int, removed: Booleans, count: int = NOT_COUNTED) -> None:
        """Record a row's failing set."""
        self.size[row] = int(removed.sum())
        self.removed[row] = removed
        self.count[row] = count

    def put_minimal(self, row: int, sets: Booleans, complete: bool) -> None:
        """Record a row's minimal failing sets (k, G), if they are asked for."""
        if self.minimal is not None:
            names = self.protocol.group_names
            self.minimal[row] = MinimalSets(tuple(name_groups(removed, names) for removed in sets), complete)

    def finish(self) -> FailingSets:
        """Return the answers as they stand."""
        n = len(self.size)
        return FailingSets(
            id=np.fromiter(self.rows.ids, dtype=object, count=n),
            method=tuple(str(name) for name in self.method),
            max_size=self.max_size,
            depth=self.protocol.depth,
            size=self.size,
            state=tuple(self._state_of(row) for row in range(n)),
            searched_size=self.searched,
            removed=self.removed,
            margin=self.margin,
            count=self.count,
            evaluations=self.evaluations,
            group_names=self.protocol.group_names,
            minimal=None if self.minimal is None else tuple(self.minimal),
        )

    def _state_of(self, row: int) -> str:
        if self.size[row] <= self.max_size:
            return MINIMUM if self.searched[row] >= self.size[row] - 1 else UPPER_BOUND
        if self.exhausted[row]:
            return NONE_AT_ALL
        return none_up_to(self.max_size) if self.searched[row] >= self.max_size else UNDECIDED
