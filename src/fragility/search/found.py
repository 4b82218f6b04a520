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
from fragility.text import BriefRepr
from fragility.wording import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND, none_up_to

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
    method: tuple[str, ...]  # (n,) lattice, branch and bound, closed form, by size, beam
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
    reach = int(k.max(initial=0))
    for name, search in (("exact", exact), ("beam", beam)):
        if search is not None and len(search) != len(k):
            raise ProtocolError(f"{name} search has {len(search)} rows, the greedy budgets {len(k)}")
        if search is not None and reach > search.max_size + 1:
            raise ProtocolError(
                f"greedy budgets reach {reach} but the {name} search stopped at size "
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
