"""Answers while they are being found: one entry a row, filled by whichever search decides it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fragility.arrays import Booleans, Floats, Integers
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol
from fragility.search.found import NOT_COUNTED, FailingSets, MinimalSets
from fragility.wording import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND, none_up_to


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
    def blank(cls, n: int, n_groups: int, max_size: int, every: bool) -> Answers:
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

    def finished(self, rows: EvidenceRows, protocol: Protocol) -> FailingSets:
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
