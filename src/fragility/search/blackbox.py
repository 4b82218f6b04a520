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
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.engines.choice import prepared
from fragility.errors import ProtocolError
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import original_class
from fragility.progress import Report, progress_bar
from fragility.protocol import Protocol, bind
from fragility.scores import Booleans, Floats, Integers, support_margin
from fragility.search.found import FOUND, NONE, UNAFFORDABLE, FailingSets

METHODS = ("beam", "exact")
DEFAULT_MAX_EVALUATIONS = 50_000


def find_failing_sets(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    method: str = "beam",
    width: int = 8,
    max_size: int | None = None,
    max_evaluations: int = DEFAULT_MAX_EVALUATIONS,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> FailingSets:
    """Smallest set of groups whose removal flips each prediction.

    Parameters
    ----------
    method : "beam" (width `width`) or "exact" (all subsets by size).
    max_size : largest set tried, by default the protocol's depth K.
    max_evaluations : for "exact", the most states a row may cost; a row whose next size would pass it ends with
        state "unaffordable" and `searched_size` says up to which size absence is proved.
    ids : one distinct id a row, as in `audit`.
    engine : whose predictor answers: ``auto`` takes a native one where the model is known to it.
    byte_budget : bound on the states held in memory at a time; it changes nothing in the result.
    progress : a bar on the terminal (the default if there is one), or a function (rows decided, rows in all).
    """
    return failing_sets_of_rows(
        prepared(bind(model, X, protocol, ids=ids), engine),
        protocol,
        method=method,
        width=width,
        max_size=max_size,
        max_evaluations=max_evaluations,
        byte_budget=byte_budget,
        progress=progress,
    )


def failing_sets_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    method: str = "beam",
    width: int = 8,
    max_size: int | None = None,
    max_evaluations: int = DEFAULT_MAX_EVALUATIONS,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = False,
) -> FailingSets:
    """`find_failing_sets` on rows that are already bound, asked through their own predictor."""
    if method not in METHODS:
        raise ProtocolError(f"search method must be one of {METHODS}, got {method!r}")
    if width < 1:
        raise ProtocolError(f"beam width must be at least 1, got {width}")
    limit = min(protocol.depth, rows.n_groups) if max_size is None else max_size
    if not 1 <= limit <= rows.n_groups:
        raise ProtocolError(f"max_size must be between 1 and the number of groups {rows.n_groups}, got {limit}")
    search = _Search(rows, protocol, limit, byte_budget)
    with progress_bar("searching", progress) as search.report:
        if method == "exact":
            search.run_exact(max_evaluations)
        else:
            search.run_beam(width)
    return search.result(method, width if method == "beam" else None, protocol.group_names)


class _Search:
    """Working state of one search over all rows; rows leave `active` as soon as they are decided."""

    def __init__(self, rows: EvidenceRows, protocol: Protocol, max_size: int, byte_budget: int) -> None:
        n = len(rows)
        self.x = rows.dense()
        self.rows, self.max_size = rows, max_size
        self.resolution = protocol.resolution
        self.batch = max(1, byte_budget // (32 * self.x.shape[1]))
        self.live = self._live_groups()
        self.original = original_class(rows, rows.predict(self.x), self.resolution)
        self.size = np.full(n, max_size + 1, dtype=np.int64)
        self.searched = np.zeros(n, dtype=np.int64)
        self.removed = np.zeros((n, rows.n_groups), dtype=bool)
        self.margin = np.full(n, np.nan)
        self.state = np.full(n, NONE, dtype=object)
        self.evaluations = n
        self.report: Report | None = None

    def _live_groups(self) -> Booleans:
        """Groups that are not already at their baseline, (n, G)."""
        same = (self.x == self.rows.baseline) | (np.isnan(self.x) & np.isnan(self.rows.baseline))
        live = np.zeros((len(self.x), self.rows.n_groups), dtype=bool)
        for column, group in enumerate(self.rows.column_group):
            live[:, group] |= ~same[:, column]
        return live

    def margins(self, row: Integers, removed: Booleans) -> Floats:
        """Support margins of states (row[i], removed[i]), evaluated in byte-bounded batches."""
        out = np.empty(len(row))
        for start in range(0, len(row), self.batch):
            part = slice(start, start + self.batch)
            gone = removed[part][:, self.rows.column_group]
            states = np.where(gone, self.rows.baseline, self.x[row[part]])
            out[part] = support_margin(self.rows.predict(states), self.original[row[part]], self.rows.offset)
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
        if self.report is not None:
            self.report(int((self.state != NONE).sum()), len(self.x))

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
