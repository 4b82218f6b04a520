"""Search diagnostics: is there a smaller failing set than the greedy path found? (app:greedy_gap)

    k_exact(x) = min { |S| : S subset of G, |S| <= K, R(x, S) flips the prediction },   K + 1 if there is none
    k_beam(x)  = the same minimum over the sets a beam of width B keeps

A state flips when the support margin of the original class is below -resolution, as in the certificate. Where several
sets of the smallest size fail, the one with the lowest support margin (at the declared resolution) is
reported, ties going to the set that comes first in lexicographic order of declared group positions. A
certificate's k* is an upper bound on k_exact; these searches measure by how much.

Groups that already sit at their baseline for a row change nothing, so no smallest set holds them and no set with
them is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fragility.arrays import STRESS_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.errors import ProtocolError
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.scores import predicted_class, support_margin

Predict = Callable[[Floats], Floats]

METHODS = ("beam", "exact")
FOUND = "found"
NONE = "none up to max_size"
UNAFFORDABLE = "unaffordable"
DEFAULT_MAX_EVALUATIONS = 50_000


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


def smallest_failing_sets(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    method: str = "beam",
    width: int = 8,
    max_size: int | None = None,
    max_evaluations: int = DEFAULT_MAX_EVALUATIONS,
    ids: Any = None,
    predict: Predict | None = None,
    byte_budget: int = STRESS_BYTE_BUDGET,
) -> FailingSets:
    """Smallest set of groups whose removal flips each prediction.

    Parameters
    ----------
    method : "beam" (width `width`) or "exact" (all subsets by size).
    max_size : largest set tried, by default the protocol's depth K.
    max_evaluations : for "exact", the most states a row may cost; a row whose next size would pass it ends with
        state "unaffordable" and `searched_size` says up to which size absence is proved.
    predict : replaces the model's probabilities on evidence matrices, (m, d) -> (m, C).
    """
    rows = bind(Model.wrap(model), X, protocol, ids=ids)
    return failing_sets_of_rows(
        rows,
        protocol,
        method=method,
        width=width,
        max_size=max_size,
        max_evaluations=max_evaluations,
        predict=predict,
        byte_budget=byte_budget,
    )


def failing_sets_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    method: str = "beam",
    width: int = 8,
    max_size: int | None = None,
    max_evaluations: int = DEFAULT_MAX_EVALUATIONS,
    predict: Predict | None = None,
    byte_budget: int = STRESS_BYTE_BUDGET,
) -> FailingSets:
    """`smallest_failing_sets` on rows that are already bound."""
    if method not in METHODS:
        raise ProtocolError(f"search method must be one of {METHODS}, got {method!r}")
    if width < 1:
        raise ProtocolError(f"beam width must be at least 1, got {width}")
    n_groups = int(rows.n_groups)
    limit = min(protocol.depth, n_groups) if max_size is None else max_size
    if not 1 <= limit <= n_groups:
        raise ProtocolError(f"max_size must be between 1 and the number of groups {n_groups}, got {limit}")
    search = _Search(rows, protocol, limit, rows.predict if predict is None else predict, byte_budget)
    if method == "exact":
        search.run_exact(max_evaluations)
    else:
        search.run_beam(width)
    return search.result(method, width if method == "beam" else None, protocol.group_names)


class _Search:
    """Working state of one search over all rows; rows leave `active` as soon as they are decided."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol, max_size: int, ask: Predict, byte_budget: int) -> None:
        n = rows.matrix.shape[0]
        self.x = np.asarray(rows.dense(0, n), dtype=np.float64)
        self.rows, self.ask, self.max_size = rows, ask, max_size
        self.column_group = np.asarray(rows.column_group, dtype=np.int64)
        self.resolution = protocol.resolution
        self.batch = rows_within(byte_budget, self.x.shape[1], copies=4)
        self.live = self._live_groups()
        self.original = predicted_class(ask(self.x), self.resolution)
        self.size = np.full(n, max_size + 1, dtype=np.int64)
        self.searched = np.zeros(n, dtype=np.int64)
        self.removed = np.zeros((n, int(rows.n_groups)), dtype=bool)
        self.margin = np.full(n, np.nan)
        self.state = np.full(n, NONE, dtype=object)
        self.evaluations = n

    def _live_groups(self) -> Booleans:
        """Groups that are not already at their baseline, (n, G)."""
        same = (self.x == self.rows.baseline) | (np.isnan(self.x) & np.isnan(self.rows.baseline))
        live = np.zeros((len(self.x), int(self.rows.n_groups)), dtype=bool)
        for column, group in enumerate(self.column_group):
            live[:, group] |= ~same[:, column]
        return live

    def margins(self, row: Integers, removed: Booleans) -> Floats:
        """Support margins of states (row[i], removed[i]), evaluated in byte-bounded batches."""
        out = np.empty(len(row))
        for start in range(0, len(row), self.batch):
            part = slice(start, start + self.batch)
            gone = removed[part][:, self.column_group]
            states = np.where(gone, self.rows.baseline, self.x[row[part]])
            out[part] = support_margin(self.ask(states), self.original[row[part]])
        self.evaluations += len(row)
        return out

    def settle(self, row: Integers, removed: Booleans, margins: Floats, size: int) -> None:
        """Record for every row the failing candidate with the lowest margin; earlier candidates win ties."""
        failing = np.flatnonzero(margins < -self.resolution)
        step = self._rounded(margins[failing])
        order = np.lexsort((failing, step, row[failing]))
        owner, first = np.unique(row[failing][order], return_index=True)
        best = order[first]
        better = (self.size[owner] != size) | (step[best] < self._rounded(self.margin[owner]))
        owner, chosen = owner[better], failing[best[better]]
        self.size[owner], self.state[owner] = size, FOUND
        self.removed[owner], self.margin[owner] = removed[chosen], margins[chosen]

    def _rounded(self, margins: Floats) -> Floats:
        return np.rint(margins / self.resolution) if self.resolution > 0 else margins

    # -- exact ---------------------------------------------------------------------------------------------------

    def run_exact(self, max_evaluations: int) -> None:
        """All subsets of live groups by increasing size, until every row is decided."""
        spent = np.zeros(len(self.x), dtype=np.int64)
        active = np.arange(len(self.x))
        live_count = self.live.sum(axis=1)
        for size in range(1, self.max_size + 1):
            cost = np.asarray([math.comb(int(count), size) for count in live_count[active]], dtype=np.float64)
            affordable = spent[active] + cost <= max_evaluations
            self.state[active[~affordable]] = UNAFFORDABLE
            active = active[affordable]
            if len(active) == 0:
                return
            self._exact_level(active, size)
            spent[active] += cost[affordable].astype(np.int64)
            self.searched[active] = size
            active = active[self.size[active] > self.max_size]

    def _exact_level(self, active: Integers, size: int) -> None:
        inert = (~self.live[active]).T.astype(np.float32)
        for block in _blocks_of_subsets(len(inert), size, self.batch // len(active)):
            # np.nonzero goes subset by subset, which keeps lexicographic order within every row.
            subset, place = np.nonzero(block.astype(np.float32) @ inert == 0.0)
            row, removed = active[place], block[subset]
            self.settle(row, removed, self.margins(row, removed), size)

    # -- beam ----------------------------------------------------------------------------------------------------

    def run_beam(self, width: int) -> None:
        """Grow the `width` most damaging sets of every undecided row by one group at a time."""
        row = np.arange(len(self.x))
        kept = np.zeros((len(row), self.removed.shape[1]), dtype=bool)
        for size in range(1, self.max_size + 1):
            row, kept = self._expand(row, kept)
            if len(row) == 0:
                break
            margins = self.margins(row, kept)
            self.settle(row, kept, margins, size)
            self.searched[np.unique(row)] = size
            row, kept = self._prune(row, kept, margins, width)
        # A row with nothing left to remove has been searched as far as it can be.
        self.searched[self.size > self.max_size] = self.max_size

    def _expand(self, row: Integers, kept: Booleans) -> tuple[Integers, Booleans]:
        """All distinct sets that add one live, unused group; sorted by row, then lexicographically."""
        parent, group = np.nonzero(self.live[row] & ~kept)
        grown = kept[parent]
        grown[np.arange(len(group)), group] = True
        owner = row[parent]
        # False sorts before true, so ~grown puts sets with earlier groups first: lexicographic order of positions.
        keys = np.column_stack([owner.astype(">i8").view(np.uint8).reshape(-1, 8), np.packbits(~grown, axis=1)])
        void = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1]))).ravel()
        first = np.unique(void, return_index=True)[1]
        return owner[first], grown[first]

    def _prune(self, row: Integers, kept: Booleans, margins: Floats, width: int) -> tuple[Integers, Booleans]:
        """The `width` lowest margins of every undecided row; equal margins keep lexicographic order."""
        order = np.lexsort((np.arange(len(row)), self._rounded(margins), row))
        row, kept = row[order], kept[order]
        position = np.arange(len(row)) - np.searchsorted(row, row, side="left")
        chosen = (position < width) & (self.size[row] > self.max_size)
        return row[chosen], kept[chosen]

    def result(self, method: str, width: int | None, group_names: Sequence[str]) -> FailingSets:
        """The finished search."""
        return FailingSets(
            id=np.fromiter(self.rows.ids, dtype=object, count=len(self.rows.ids)),
            method=method,
            width=width,
            max_size=self.max_size,
            size=self.size,
            state=tuple(str(state) for state in self.state),
            searched_size=self.searched,
            removed=self.removed,
            margin=self.margin,
            evaluations=self.evaluations,
            group_names=tuple(group_names),
        )


def _blocks_of_subsets(n_groups: int, size: int, batch: int) -> Iterator[Booleans]:
    """All subsets of one size in lexicographic order, as boolean blocks of at most `batch` rows."""
    generator = combinations(range(n_groups), size)
    while chunk := list(islice(generator, max(1, batch))):
        block = np.zeros((len(chunk), n_groups), dtype=bool)
        np.put_along_axis(block, np.asarray(chunk), True, axis=1)
        yield block


# --- diagnostics -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GreedyDiagnostics:
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


def greedy_diagnostics(
    greedy: npt.ArrayLike, exact: FailingSets | None = None, beam: FailingSets | None = None
) -> GreedyDiagnostics:
    """Compare greedy flip budgets k* (n,) with exact and beam searches of the same rows, in the same order.

    All must have the same depth: k* = K + 1 and size = max_size + 1 both mean "no flip within K".
    """
    k = np.asarray(greedy, dtype=np.int64)
    for search in (exact, beam):
        _check_comparable(k, search)
    feasible = np.zeros(len(k), dtype=bool) if exact is None else exact.resolved
    gap = np.zeros(0, dtype=np.int64) if exact is None else (k - exact.size)[feasible]
    pairs = np.zeros(0, dtype=bool) if exact is None else ((exact.size == 2) & (k > 2))[feasible]
    improved = np.zeros(0, dtype=bool) if beam is None else beam.size < k
    return GreedyDiagnostics(
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


def _check_comparable(greedy: Integers, search: FailingSets | None) -> None:
    if search is None:
        return
    if len(search) != len(greedy):
        raise ProtocolError(f"{search.method} search has {len(search)} rows, the greedy budgets {len(greedy)}")
    if len(greedy) and int(greedy.max()) > search.max_size + 1:
        raise ProtocolError(
            f"greedy budgets reach {int(greedy.max())} but the {search.method} search stopped at size "
            f"{search.max_size}; search with max_size equal to the protocol's depth"
        )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
