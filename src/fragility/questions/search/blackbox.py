"""Searches that ask the model: beam, and all subsets by size. (app:greedy_gap)

    k_exact(x) = min { |S| : S subset of G, |S| <= K, R(x, S) flips the prediction },   K + 1 if there is none
    k_beam(x)  = the same minimum over the sets a beam of width B keeps

A state flips when the support margin of the original class is below -resolution, as in the certificate. Where several
sets of the smallest size fail, the one that comes first in lexicographic order of declared group positions is reported;
where they could not be counted, the first of those the beam has met. A certificate's k* is an upper bound on k_exact;
these searches measure by how much.

Groups that already sit at their baseline for a row, or are missing in it, change nothing, so no smallest set holds them
and no set with them is evaluated.
"""

from __future__ import annotations

import math
from itertools import combinations, islice

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers
from fragility.base.errors import ProtocolError
from fragility.base.progress import Report, progress_bar
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.oracle import Oracle
from fragility.evidence import EvidenceRows, Spared, States
from fragility.evidence.agreement import original_class
from fragility.protocol import Protocol
from fragility.questions.search.found import NOT_COUNTED, Answers, FailingSets

METHODS = ("auto", "exact", "beam")
DEFAULT_BUDGET = 50_000
DEFAULT_WIDTH = 8
DEFAULT_NODES = 1000
BEAM, BY_SIZE = "beam", "by size"


def failing_sets_of_rows(
    oracle: Oracle,
    protocol: Protocol,
    *,
    method: str = "beam",
    width: int = DEFAULT_WIDTH,
    max_size: int | None = None,
    budget: int = DEFAULT_BUDGET,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = False,
) -> FailingSets:
    """Search an oracle's rows by asking it alone; max_size is the protocol's depth by default."""
    rows = oracle.rows
    limit = min(protocol.depth, rows.n_groups) if max_size is None else max_size
    check_request(rows, method, width, limit)
    answers = Answers(rows, protocol, limit)
    with progress_bar("searching", progress) as report:
        search_by_asking(answers, oracle, np.arange(len(rows)), method, width, budget, byte_budget, report)
    return answers.finish()


def check_request(rows: EvidenceRows, method: str, width: int, max_size: int) -> None:
    """Refuse a search that no method can do."""
    if method not in METHODS:
        raise ProtocolError(f"search method must be one of {', '.join(METHODS)}, got {method!r}")
    if width < 1:
        raise ProtocolError(f"beam width must be at least 1, got {width}")
    if not 1 <= max_size <= rows.n_groups:
        raise ProtocolError(f"max_size must be between 1 and the number of groups {rows.n_groups}, got {max_size}")


def live_groups(rows: EvidenceRows, x: Floats, spared: Spared | None) -> Booleans:
    """Return (m, G) the groups of rows x (m, d) that are not already at their baseline, nor absent."""
    target = rows.targets(x, spared)
    moved = ~((x == target) | (np.isnan(x) & np.isnan(target)))
    live = np.zeros((len(x), rows.n_groups), dtype=bool)
    for column, group in enumerate(rows.column_group):
        live[:, group] |= moved[:, column]
    return live


def search_by_asking(
    answers: Answers,
    oracle: Oracle,
    places: Integers,
    method: str,
    width: int,
    budget: int,
    byte_budget: int,
    report: Report | None,
) -> None:
    """Fill the answers at some places: a beam, all subsets by size, or (auto) the beam's answer proved by size.

    oracle: of the rows at these places.
    """
    if len(places) == 0:
        return
    search = _Search(oracle, answers, byte_budget, report)
    if method != "exact":
        search.run_beam(width)
    if method != "beam":
        search.run_exact(budget)
    search.hand_over(answers, places, BEAM if method == "beam" else BY_SIZE)


class _Search(Answers):
    """Answers for some rows while an oracle is asked; rows leave as soon as they are decided."""

    def __init__(self, oracle: Oracle, answers: Answers, byte_budget: int, report: Report | None) -> None:
        self.oracle, rows = oracle, oracle.rows
        super().__init__(rows, answers.protocol, answers.max_size)
        self.x = rows.dense()
        self.rule = FlipRule.of(rows, self.protocol)
        self.byte_budget, self.report = byte_budget, report
        self.batch = max(1, byte_budget // (32 * self.x.shape[1]))  # states at a time
        self.spared = rows.spared()
        self.live = live_groups(rows, self.x, self.spared)
        self.original = original_class(rows, oracle.predict(self.x), self.rule.resolution)
        self.evaluations += 1

    def margins(self, row: Integers, removed: Booleans) -> Floats:
        """Return support margins of states (row[i], removed[i]); rows rise."""
        states = States(row, removed).sparing(self.spared, self.rows.column_group)
        p = self.oracle.answer_states(self.x, states, self.byte_budget)
        self.evaluations += np.bincount(row, minlength=len(self.x))
        return self.rule.support(p, self.original[row])

    def settle(self, row: Integers, removed: Booleans, margins: Floats, size: int) -> None:
        """Record for every row the first failing candidate of this size, and how many fail."""
        failing = np.flatnonzero(margins < -self.rule.resolution)
        owner, first, many = np.unique(row[failing], return_index=True, return_counts=True)
        new = self.size[owner] != size
        self.count[owner] = np.where(new, many, self.count[owner] + many)
        owner, chosen = owner[new], failing[first[new]]
        self.size[owner] = size
        self.removed[owner], self.margin[owner] = removed[chosen], margins[chosen]
        if self.report is not None:
            self.report(int((self.size <= self.max_size).sum()), len(self.x))

    # -- exact ---------------------------------------------------------------------------------------------------

    def run_exact(self, budget: int) -> None:
        """Ask for all subsets of live groups by increasing size, until each row is decided or has spent its budget."""
        spent = np.zeros(len(self.x), dtype=np.int64)
        live_count = self.live.sum(axis=1)
        active = np.arange(len(self.x))
        for size in range(1, self.max_size + 1):
            # a beam's set of this size may be neither the first nor the only
            active = active[self.size[active] >= size]
            known = self.searched[active] >= size
            cost = np.asarray([math.comb(int(count), size) for count in live_count[active]], dtype=np.float64)
            affordable = known | (spent[active] + cost <= budget)
            new = affordable & ~known & (cost > 0)
            if new.any():
                self._ask_level(active[new], size)
            spent[active[new]] += cost[new].astype(np.int64)
            active = active[affordable]
            self.searched[active] = size
            if len(active) == 0:
                return

    def _ask_level(self, active: Integers, size: int) -> None:
        """Ask for every set of one size; what a beam found of this size gives way to the first of them all."""
        known = active[self.size[active] == size]
        kept = [values[known].copy() for values in (self.removed, self.margin, self.count)]
        self.size[known] = self.max_size + 1
        inert = (~self.live[active]).T.astype(np.float32)
        somewhere = np.flatnonzero(self.live[active].any(axis=0))
        subsets = combinations(somewhere.tolist(), size)  # in lexicographic order
        while chunk := list(islice(subsets, max(1, self.batch // len(active)))):
            block = np.zeros((len(chunk), len(inert)), dtype=bool)
            np.put_along_axis(block, np.asarray(chunk), True, axis=1)
            # Row by row, and within every row subset by subset, which keeps their lexicographic order.
            place, subset = np.nonzero((block.astype(np.float32) @ inert == 0.0).T)
            row, removed = active[place], block[subset]
            self.settle(row, removed, self.margins(row, removed), size)
        denied = self.size[known] != size  # by a model that rounds by the shape of its batch
        for values, old in zip((self.removed, self.margin, self.count), kept, strict=True):
            values[known[denied]] = old[denied]
        self.size[known] = size

    # -- beam ----------------------------------------------------------------------------------------------------

    def run_beam(self, width: int) -> None:
        """Grow the `width` most damaging sets of every undecided row by one group at a time."""
        row = np.arange(len(self.x))
        kept = np.zeros((len(row), self.removed.shape[1]), dtype=bool)
        whole = np.ones(len(row), dtype=bool)  # nothing was pruned yet: the beam still holds every set
        for size in range(1, self.max_size + 1):
            self.searched[whole & (self.size > self.max_size)] = size
            row, kept = self._expand(row, kept)
            if len(row) == 0:
                break
            margins = self.margins(row, kept)
            self.settle(row, kept, margins, size)
            candidates = np.bincount(row, minlength=len(self.x))
            row, kept = self._prune(row, kept, margins, width)
            whole &= candidates == np.bincount(row, minlength=len(self.x))
        self.searched[whole & (self.size > self.max_size)] = self.max_size

    def _expand(self, row: Integers, kept: Booleans) -> tuple[Integers, Booleans]:
        """Return all distinct sets that add one live, unused group; sorted by row, then lexicographically."""
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
        """Return the `width` sets of lowest margin of every undecided row; equal margins keep their order."""
        resolution = self.rule.resolution
        rounded = np.rint(margins / resolution) if resolution > 0 else margins
        order = np.lexsort((rounded, row))  # stable
        row, kept = row[order], kept[order]
        position = np.arange(len(row)) - np.searchsorted(row, row, side="left")
        chosen = (position < width) & (self.size[row] > self.max_size)
        return row[chosen], kept[chosen]

    def hand_over(self, answers: Answers, places: Integers, method: str) -> None:
        """Put what was found into the answers."""
        answers.size[places] = self.size
        answers.removed[places] = self.removed
        answers.margin[places] = self.margin
        answers.searched[places] = self.searched
        unknown = (self.size <= self.max_size) & (self.searched < self.size)  # that size was not searched in full
        answers.count[places] = np.where(unknown, NOT_COUNTED, self.count)
        answers.evaluations[places] += self.evaluations
        answers.exhausted[places] = self.searched >= self.live.sum(axis=1)
        answers.method[places] = method
