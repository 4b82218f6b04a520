"""What a search gives: the smallest failing set per row, how far that is proved, and how far greedy paths are off."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.errors import DataError, ProtocolError
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol
from fragility.saving import TABLE_SUFFIXES, NanEqual, checked_suffix, write_table
from fragility.wording import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND, none_up_to

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


@dataclass(slots=True, eq=False)
class Answers:
    """The arrays of a FailingSets, to be filled."""

    max_size: int
    size: Integers
    searched: Integers
    removed: Booleans
    margin: Floats
    count: Integers
    evaluations: Integers
    method: npt.NDArray[np.object_]
    exhausted: Booleans  # (n,) every set there is was decided
    minimal: list[MinimalSets] | None

    @classmethod
    def make_blank(cls, n: int, n_groups: int, max_size: int, every: bool) -> Answers:
        return cls(
            max_size=max_size,
            size=np.full(n, max_size + 1, dtype=np.int64),
            searched=np.zeros(n, dtype=np.int64),
            removed=np.zeros((n, n_groups), dtype=bool),
            margin=np.full(n, np.nan),
            count=np.zeros(n, dtype=np.int64),
            evaluations=np.zeros(n, dtype=np.int64),
            method=np.full(n, "", dtype=object),
            exhausted=np.zeros(n, dtype=bool),
            minimal=[MinimalSets((), True) for _ in range(n)] if every else None,
        )

    def put(self, row: int, removed: Booleans, count: int = NOT_COUNTED) -> None:
        """Record a row's failing set."""
        self.size[row] = int(removed.sum())
        self.removed[row] = removed
        self.count[row] = count

    def state_of(self, row: int) -> str:
        if self.size[row] <= self.max_size:
            return MINIMUM if self.searched[row] >= self.size[row] - 1 else UPPER_BOUND
        if self.exhausted[row]:
            return NONE_AT_ALL
        return none_up_to(self.max_size) if self.searched[row] >= self.max_size else UNDECIDED

    def finish(self, rows: EvidenceRows, protocol: Protocol) -> FailingSets:
        n = len(self.size)
        return FailingSets(
            id=np.fromiter(rows.ids, dtype=object, count=n),
            method=tuple(str(name) for name in self.method),
            max_size=self.max_size,
            depth=protocol.depth,
            size=self.size,
            state=tuple(self.state_of(row) for row in range(n)),
            searched_size=self.searched,
            removed=self.removed,
            margin=self.margin,
            count=self.count,
            evaluations=self.evaluations,
            group_names=protocol.group_names,
            minimal=None if self.minimal is None else tuple(self.minimal),
        )

    def name_sets(self, sets: Booleans, names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(names[g] for g in np.flatnonzero(members)) for members in sets)


@dataclass(frozen=True, slots=True, eq=False)
class SearchComparison(NanEqual):
    """How far the greedy flip budget is from the smallest failing set; NaN where no row allows it.

    exact_match   Pr[k* = k_exact]                    greedy_over  Pr[k* > k_exact]
    mean_gap      E[(k* - k_exact)_+]                 pair_miss    Pr[k_exact = 2 and k* > 2]
    beam_improve  Pr[k_beam < k*]

    The first four are over exact-feasible rows, the last over all rows the beam searched. Where the exact search ran
    out of evaluations, the feasible rows are the ones with small failing sets, so read the first four with
    `exact_unaffordable` beside them.
    """

    rows: int
    exact_feasible: int
    exact_unaffordable: int
    exact_match: float
    greedy_over: float
    mean_gap: float
    pair_miss: float
    beam_rows: int
    beam_improve: float

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return asdict(self)


def compare_searches(
    greedy: npt.ArrayLike, exact: FailingSets | None = None, beam: FailingSets | None = None
) -> SearchComparison:
    """Compare greedy flip budgets with exact and beam searches of the same rows, in the same order.

    k* = K + 1 means "no flip within the protocol's depth K"; so does a smallest set of more than K groups here.

    Parameters
    ----------
    greedy : array of shape (n,)
        k* of the certificates.
    exact : FailingSets, optional
        Of :func:`find_failing_sets` with ``method="exact"``.
    beam : FailingSets, optional
        The same with ``method="beam"``.

    Returns
    -------
    SearchComparison
        How often and by how much the greedy path is longer than need be; NaN where no row allows it.

    Raises
    ------
    ProtocolError
        The searches are of other rows or of a smaller depth.

    See Also
    --------
    find_failing_sets : The searches.
    """
    k = np.asarray(greedy, dtype=np.int64)
    for name, search in (("exact", exact), ("beam", beam)):
        if search is not None and len(search) != len(k):
            raise ProtocolError(f"{name} search has {len(search)} rows, the greedy budgets {len(k)}")
        if search is not None and len(k) and int(k.max()) > search.max_size + 1:
            raise ProtocolError(
                f"greedy budgets reach {int(k.max())} but the {name} search stopped at size "
                f"{search.max_size}; search with max_size equal to the protocol's depth"
            )
    feasible = np.zeros(len(k), dtype=bool) if exact is None else exact.resolved
    gap = np.zeros(0, dtype=np.int64) if exact is None else (k - _within_depth(exact))[feasible]
    pairs = np.zeros(0, dtype=bool) if exact is None else ((exact.size == 2) & (k > 2))[feasible]
    improved = np.zeros(0, dtype=bool) if beam is None else _within_depth(beam) < k
    return SearchComparison(
        rows=len(k),
        exact_feasible=int(feasible.sum()),
        exact_unaffordable=0 if exact is None else int((~feasible).sum()),
        exact_match=_mean(gap == 0),
        greedy_over=_mean(gap > 0),
        mean_gap=_mean(np.maximum(gap, 0)),
        pair_miss=_mean(pairs),
        beam_rows=0 if beam is None else len(beam),
        beam_improve=_mean(improved),
    )


def _within_depth(search: FailingSets) -> Integers:
    """Return the sizes as the greedy path would have counted them: nothing beyond the depth."""
    return np.minimum(search.size, min(search.max_size, search.depth) + 1)


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
