"""FailingSets: the smallest failing set of each row, and how far that is proved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.errors import DataError
from fragility.saving import TABLE_SUFFIXES, checked_suffix, write_table
from fragility.wording import UNDECIDED, UPPER_BOUND

NOT_COUNTED = -1


@dataclass(frozen=True, slots=True)
class MinimalSets:
    """The minimal failing sets of one row: each fails, and none of its proper subsets does."""

    sets: tuple[tuple[str, ...], ...]  # by size, then in declared order of groups
    complete: bool  # False: there are, or may be, more

    def to_text(self) -> str:
        """`checking_status, or else duration and purpose`."""
        return ", or else ".join(" and ".join(names) for names in self.sets) + ("" if self.complete else ", or others")


@dataclass(frozen=True, slots=True, eq=False)
class FailingSets:
    """The smallest failing set found for every row; n rows, G groups.

    States: ``minimum`` (no smaller set fails, proved), ``upper bound`` (smaller ones may), ``none up to K, proved``,
    ``none at all, proved``, and ``not decided`` (the budget ended first and nothing was found).

    Attributes
    ----------
    id : array of shape (n,)
        The rows' ids.
    method : tuple of str
        By row: ``lattice``, ``branch and bound``, ``closed form``, ``by size`` or ``beam``.
    max_size : int
        K, the largest size asked for.
    depth : int
        Of the protocol, where the certificate's path ends.
    size : array of shape (n,)
        Groups in the set; K + 1 where none was found.
    state : tuple of str
        By row, how far that is proved.
    searched_size : array of shape (n,)
        Every set of at most so many groups was decided.
    removed : array of bool of shape (n, G)
        The set; all false where none was found.
    margin : array of shape (n,)
        Support margin after its removal; NaN where none was found.
    count : array of shape (n,)
        Failing sets of that size; -1 where they were not counted, 0 where there is none.
    evaluations : array of shape (n,)
        States decided on the way, by the lattice or by the model.
    group_names : tuple of str
        Names of the groups, in declared order.
    minimal : tuple of MinimalSets or None
        By row, all minimal failing sets, with ``every=True``.

    See Also
    --------
    find_failing_sets : Makes one.
    """

    id: npt.NDArray[Any]  # (n,)
    method: tuple[str, ...]  # (n,) lattice, branch and bound, closed form, by size, beam
    max_size: int  # K, the largest size asked for
    depth: int  # of the protocol, where the certificate's path ends
    size: Integers  # (n,) |S|, or K + 1 where none was found
    state: tuple[str, ...]  # (n,)
    searched_size: Integers  # (n,) every set of at most so many groups was decided
    removed: Booleans  # (n, G) the set, all false where none was found
    margin: Floats  # (n,) support margin after its removal, NaN where none was found
    count: Integers  # (n,) failing sets of that size, -1 where they were not counted, 0 where there is none
    evaluations: Integers  # (n,) states decided on the way, by the lattice or by the model
    group_names: tuple[str, ...]
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
        """Return the groups of one row's set.

        Parameters
        ----------
        row : int
            Its position.

        Returns
        -------
        tuple of str
            Their names, in declared order; empty where none was found.
        """
        return tuple(self.group_names[g] for g in np.flatnonzero(self.removed[row]))

    def every(self, row: int) -> MinimalSets:
        """Return all minimal failing sets of one row, up to a cap.

        Parameters
        ----------
        row : int
            Its position.

        Returns
        -------
        MinimalSets
            The sets, and whether they are all there are.

        Raises
        ------
        DataError
            The search was not asked for them with ``every=True``.
        """
        if self.minimal is None:
            raise DataError("only the smallest set of each row was searched for; ask for every one of them")
        return self.minimal[row]

    def counts(self) -> dict[str, int]:
        """Return how many rows are in each state.

        Returns
        -------
        dict of str to int
            Only states that occur.
        """
        return {state: self.state.count(state) for state in sorted(set(self.state))}

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a table.

        Returns
        -------
        pandas.DataFrame
            One row a prediction; null where there is no set, or where sets were not counted.
        """
        size = pd.array(self.size, dtype="Int64")
        size[~self.found] = pd.NA
        count = pd.array(self.count, dtype="Int64")
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
        """Return the rows as an Arrow table.

        Returns
        -------
        pyarrow.Table
            As ``to_pandas``; the groups are lists of names.
        """
        return pa.Table.from_pandas(self.to_pandas(), preserve_index=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as .parquet, or as .csv with the groups of a set joined by " + ", sets by " | ".

        Parameters
        ----------
        path : path
            The file to write; its ending names the format.
        """
        table = self.to_arrow()
        if checked_suffix(path, TABLE_SUFFIXES) == ".csv":  # a CSV cell holds no list
            joined = [" + ".join(self.groups(row)) for row in range(len(self))]
            table = table.set_column(table.column_names.index("groups"), "groups", pa.array(joined))
            if self.minimal is not None:
                listed = [" | ".join(" + ".join(names) for names in found.sets) for found in self.minimal]
                table = table.set_column(table.column_names.index("minimal_sets"), "minimal_sets", pa.array(listed))
        write_table(path, table)
