"""Sets of free fields decided by reading the model: tree ensembles cell by cell, linear models by sorted effects.

Both speak of E(S), which is below 0 exactly if a rival class overtakes the decision (`engines.lattice.additive`). A
field adds its own term to a linear model's E, so a set flips at best by the sum of its fields' least terms.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice, product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.lattice.additive import FlipRule, is_additive
from fragility.engines.linear import GroupScores
from fragility.engines.wrapped.engine import WrappedEngine
from fragility.evidence.domains import Domain
from fragility.questions.any_value.asking import Change
from fragility.questions.any_value.values import FieldValues, ValueReader
from fragility.questions.modes.searching import Search

if TYPE_CHECKING:
    from fragility.engines.trees.boxes import TreeBoxes
    from fragility.engines.trees.pieces import ForestPieces

HOLDS, DOUBTFUL, FLIPS, OPEN = range(4)  # a set of fields: as in ``engines.kernels.boxes``
MOST_CANDIDATES = 64  # combinations of a set that are left to the model
ROUNDING = 1e-12
JOBS_TOGETHER = 256
BLOCK_ROWS = 512  # of which a linear model's sets are held together

Job = tuple[int, Sequence[str]]  # a row and the fields that are free in it


@dataclass(frozen=True, slots=True)
class Decided:
    """What is known of one row and set: its state, and values that flip it, or that the model must be asked about."""

    state: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, eq=False)
class SizeAnswers:
    """All sets of one size of m rows."""

    counts: Integers  # (m, 4) by state
    first: list[tuple[int, ...] | None]  # units of the first set that flips
    doubtful: list[list[tuple[int, ...]]]
    by_unit: Integers | None  # (m, U) with one unit: its state


class Native(ABC):
    """A model that is read: which sets of units of free fields flip its rows."""

    settled_by_asking: ClassVar[bool]  # doubtful values that the model denies leave no others

    def __init__(self, values: Mapping[str, FieldValues]) -> None:
        self.values, self.names = values, list(values)

    @abstractmethod
    def search_size(self, who: Integers, units: Sequence[Sequence[str]], size: int, budget: int) -> SizeAnswers:
        """Decide all sets of so many units, for rows ``who`` of one original class."""

    @abstractmethod
    def decide(self, jobs: Sequence[Job], budget: int) -> list[Decided]:
        """Decide sets of fields, each of one row; the rows are of one original class."""

    @abstractmethod
    def weigh(self, who: Integers) -> tuple[Floats, Floats]:
        """Return (m, F) and (m,): the chance that values of the catalogue flip; of a field, and summed over pairs."""


# --- trees --------------------------------------------------------------------------------------------------


class NativeTrees(Native):
    """A tree ensemble, or one inside a wrapper."""

    settled_by_asking = True  # on a cell of the grid the model answers alike

    def __init__(
        self,
        search: Search,
        pieces: ForestPieces,
        rule: FlipRule,
        values: Mapping[str, FieldValues],
        by_sets: bool,
    ) -> None:
        super().__init__(values)
        self.search, self.pieces, self.rule, self.by_sets = search, pieces, rule, by_sets
        self._bound: tuple[Sequence[Sequence[str]], TreeBoxes] | None = None

    def _boxes(self, units: Sequence[Sequence[str]] | None = None) -> TreeBoxes:
        """Return the grid of all fields, with these units; whatever units it has by default."""
        from fragility.engines.trees.boxes import FieldGrid, TreeBoxes

        if self._bound is None or (units is not None and self._bound[0] != units):
            grids = [FieldGrid(own.columns, own.cells, own.domain, own.own) for own in self.values.values()]
            chosen = [[name] for name in self.names] if units is None else units
            places = [np.array([self.names.index(name) for name in unit], dtype=np.int64) for unit in chosen]
            self._bound = chosen, TreeBoxes(self.pieces, self.rule, grids, places)
        return self._bound[1]

    def search_size(self, who: Integers, units: Sequence[Sequence[str]], size: int, budget: int) -> SizeAnswers:
        boxes, original = self._boxes(units), int(self.search.original[who[0]])
        found = boxes.search_size(original, self.search.take_cells(who), who, size, budget, self.by_sets)
        first = [
            tuple(map(int, sets)) if flips else None
            for sets, flips in zip(found.witness, found.counts[:, FLIPS], strict=True)
        ]
        doubtful = [
            [tuple(map(int, own)) for own in sets[:count]]
            for sets, count in zip(found.doubtful, found.counts[:, DOUBTFUL], strict=True)
        ]
        return SizeAnswers(found.counts, first, doubtful, found.by_unit.astype(np.int64) if size == 1 else None)

    def decide(self, jobs: Sequence[Job], budget: int) -> list[Decided]:
        starts = range(0, len(jobs), JOBS_TOGETHER)
        return [own for start in starts for own in self._decide(jobs[start : start + JOBS_TOGETHER], budget)]

    def _decide(self, jobs: Sequence[Job], budget: int) -> list[Decided]:
        who = np.unique([row for row, _ in jobs])
        place = {int(row): i for i, row in enumerate(who)}
        numbered = [(place[row], [self.names.index(name) for name in fields]) for row, fields in jobs]
        original = int(self.search.original[who[0]])
        found = self._boxes().decide_sets(original, self.search.take_cells(who), who, numbered, budget)
        decided = []
        for job, (row, fields) in enumerate(jobs):
            states = found.states[job]
            if (states == FLIPS).any():
                rival = int(np.flatnonzero(states == FLIPS)[0])
                decided.append(Decided(FLIPS, (self._read_place(row, fields, found.places[job, rival, 0]),)))
            elif (states == OPEN).any():
                decided.append(Decided(OPEN))
            else:
                changes = [
                    self._read_place(row, fields, found.places[job, rival, i])
                    for rival in np.flatnonzero(states == DOUBTFUL)
                    for i in range(int(found.doubts[job, rival]))
                ]
                decided.append(Decided(DOUBTFUL if changes else HOLDS, tuple(changes)))
        return decided

    def _read_place(self, row: int, fields: Sequence[str], sides: Integers) -> Change:
        """Return values of some fields within a cell; fields that keep their own are left out."""
        change = {}
        for s, name in enumerate(fields):
            own = self.values[name]
            piece = own.choose_piece(row, int(sides[2 * s]), int(sides[2 * s + 1]))
            if piece != own.own[row]:
                change[name] = own.value(row, piece)
        return change

    def weigh(self, who: Integers) -> tuple[Floats, Floats]:
        points = [
            (np.array(sorted(own.weights), dtype=np.int64), np.array([own.weights[p] for p in sorted(own.weights)]))
            for own in self.values.values()
        ]
        return self._boxes().weigh_flips(int(self.search.original[who[0]]), self.search.take_cells(who), who, points)


# --- linear models ------------------------------------------------------------------------------------------


class NativeSums(Native):
    """A linear model, or one inside a wrapper."""

    settled_by_asking = False

    def __init__(self, search: Search, scores: GroupScores, rule: FlipRule, values: Mapping[str, FieldValues]) -> None:
        super().__init__(values)
        self.search, self.scores, self.rule = search, scores, rule

    def _of_rows(self, who: Integers) -> tuple[list[Floats], list[list[Floats]], Floats]:
        """Return for each rival E (m,) and the terms (m, P) of each field's values, and a bound on rounding (m,)."""
        x, w = self.search.take_cells(who), self.scores.coefficients
        total = (x[:, None, :] * w).sum(axis=2) + self.scores.intercept
        moved = [own.cells[:, own.columns] @ w[:, own.columns].T for own in self.values.values()]
        kept = [x[:, own.columns] @ w[:, own.columns].T for own in self.values.values()]
        if len(w) == 1:
            total, moved, kept = (
                [np.concatenate([np.zeros_like(part), part], axis=1) for part in parts]
                for parts in ([total], moved, kept)
            )
            total = total[0]
        original = int(self.search.original[who[0]])
        starts, terms = [], []
        for rival in self.rule.rivals(original):
            starts.append(total[:, original] - total[:, rival] + float(self.rule.lead(original, rival)))
            terms.append(
                [
                    (at[:, original] - at[:, rival])[None] - (x_part[:, original] - x_part[:, rival])[:, None]
                    for at, x_part in zip(moved, kept, strict=True)
                ]
            )
        largest = np.abs(w).max(axis=0)
        sizes = np.abs(x) @ largest + float(np.abs(self.scores.intercept).max())
        for own in self.values.values():
            if len(own.columns):
                sizes += float((np.abs(own.cells[:, own.columns]) @ largest[own.columns]).max(initial=0.0))
        rounding = 4.0 * (len(largest) + 3) * 2.0**-53 * sizes + self.rule.rounding + ROUNDING
        return starts, terms, rounding

    def _least(self, terms: list[Floats], names: Sequence[str]) -> Floats:
        """Return (m,) the least that some fields together add to E; a field may keep its own value."""
        least = np.zeros(len(terms[0]))
        for name in names:
            f = self.names.index(name)
            domain = self.values[name].domain
            if domain.any():
                least += np.minimum(np.nan_to_num(terms[f][:, domain], nan=-np.inf).min(axis=1), 0.0)
        return least

    def search_size(self, who: Integers, units: Sequence[Sequence[str]], size: int, budget: int) -> SizeAnswers:
        parts = [self._search_rows(who[i : i + BLOCK_ROWS], units, size) for i in range(0, len(who), BLOCK_ROWS)]
        by_unit = None if size > 1 else np.concatenate([part.by_unit for part in parts if part.by_unit is not None])
        return SizeAnswers(
            np.concatenate([part.counts for part in parts]),
            [own for part in parts for own in part.first],
            [own for part in parts for own in part.doubtful],
            by_unit,
        )

    def _search_rows(self, who: Integers, units: Sequence[Sequence[str]], size: int) -> SizeAnswers:
        starts, terms, rounding = self._of_rows(who)
        sets = list(combinations(range(len(units)), size))
        states = np.zeros((len(who), len(sets)), dtype=np.int64)
        for start, own in zip(starts, terms, strict=True):
            by_unit = np.stack([self._least(own, unit) for unit in units], axis=1)
            chosen = np.array(sets, dtype=np.int64).reshape(len(sets), size)
            least = start[:, None] + sum(by_unit[:, chosen[:, s]] for s in range(size))
            state = np.where(least < -rounding[:, None], FLIPS, np.where(least <= rounding[:, None], DOUBTFUL, HOLDS))
            states = np.maximum(states, state)  # here no set is open
        counts = np.stack([(states == state).sum(axis=1) for state in range(4)], axis=1)
        first = [sets[int(np.argmax(own == FLIPS))] if (own == FLIPS).any() else None for own in states]
        doubtful = [[sets[i] for i in np.flatnonzero(own == DOUBTFUL)] for own in states]
        return SizeAnswers(counts, first, doubtful, states if size == 1 else None)

    def decide(self, jobs: Sequence[Job], budget: int) -> list[Decided]:
        return [self._decide_one(row, fields) for row, fields in jobs]

    def _decide_one(self, row: int, fields: Sequence[str]) -> Decided:
        starts, terms, rounding = self._of_rows(np.array([row]))
        doubtful: list[Change] = []
        for start, own in zip(starts, terms, strict=True):
            least = float(start[0] + self._least(own, fields)[0])
            if not least > rounding[0]:
                changes = self._list_lowest(row, own, fields, 2.0 * float(rounding[0]))
                if least < -rounding[0]:
                    return Decided(FLIPS, tuple(changes[:1]))
                doubtful += changes
        return Decided(DOUBTFUL if doubtful else HOLDS, tuple(doubtful))

    def _list_lowest(self, row: int, terms: list[Floats], fields: Sequence[str], room: float) -> list[Change]:
        """Return the combinations of values that are lowest up to rounding, the lowest first."""
        choices: list[list[tuple[str, Any] | None]] = []
        for name in fields:
            own, at = self.values[name], terms[self.names.index(name)][0]
            allowed = np.flatnonzero(own.domain)
            allowed = allowed[np.argsort(at[allowed], kind="stable")]
            least = min(float(at[allowed[0]]), 0.0) if len(allowed) else 0.0
            near = [(name, own.value(row, int(p))) for p in allowed if at[p] <= least + room]
            choices.append([*near, None] if near and least + room >= 0.0 else (list(near) or [None]))
        return [dict(filter(None, each)) for each in islice(product(*choices), MOST_CANDIDATES)]

    def weigh(self, who: Integers) -> tuple[Floats, Floats]:
        parts = [self._weigh_rows(who[i : i + BLOCK_ROWS]) for i in range(0, len(who), BLOCK_ROWS)]
        return np.concatenate([alone for alone, _ in parts]), np.concatenate([both for _, both in parts])

    def _weigh_rows(self, who: Integers) -> tuple[Floats, Floats]:
        starts, terms, _ = self._of_rows(who)
        alone, together = np.zeros((len(who), len(self.names))), np.zeros(len(who))
        pieces = [np.array(sorted(own.weights), dtype=np.int64) for own in self.values.values()]
        weights = [
            np.array([own.weights[int(p)] for p in at]) for own, at in zip(self.values.values(), pieces, strict=True)
        ]
        for a in range(len(self.names)):
            for b in range(a, len(self.names)):
                if not len(pieces[a]) or not len(pieces[b]):
                    continue
                flips = np.zeros((len(who), len(pieces[a]), len(pieces[b]) if b > a else 1), dtype=bool)
                for start, own in zip(starts, terms, strict=True):
                    e = start[:, None, None] + own[a][:, pieces[a], None]
                    flips |= (e + own[b][:, None, pieces[b]] if b > a else e) < 0.0
                if b > a:
                    together += np.einsum("nij,i,j->n", flips, weights[a], weights[b])
                else:
                    alone[:, a] = flips[:, :, 0] @ weights[a]
        return alone, together


# --- which models -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reading:
    """What can be read of the rows of a search."""

    native: Native | None
    asked: Booleans  # (n,) rows that are left to the model


class ModelReader:
    """Finds what of a model can be read."""

    def __init__(self, search: Search, domains: Sequence[Domain], by_sets: bool) -> None:
        self.search, self.domains, self.by_sets = search, domains, by_sets

    def read(self) -> Reading:
        """Return the model as it is read for all rows, and the rows that are asked about."""
        search, everything = self.search, np.ones(len(self.search.rows), dtype=bool)
        rule = FlipRule.of(search.rows, search.protocol)
        kind = search.engine
        if rule.clip_matters:
            return Reading(None, everything)
        native: Native | None = None
        if kind == "trees":
            native = self._read_trees(search.forest, rule)
        elif kind == "linear" and is_additive(search.rows):
            native = NativeSums(search, GroupScores.of(search.rows), rule, self._cut(None))
        elif kind == "wrapped":
            native = self._read_member(rule)
        if native is None or not native.values:
            return Reading(None, everything)
        return Reading(native, search.doubted)

    def _cut(self, forest: ForestPieces | None) -> dict[str, FieldValues]:
        """Return the fields that are read, in the order of their groups: then each field is the unit of its number."""
        found = ValueReader(self.search, self.domains, forest, linear=forest is None).read()
        order = dict.fromkeys(chain.from_iterable(self.search.protocol.evidence.group_fields.values()))
        return {name: found[name] for name in (*order, *found) if name in found}

    def _read_trees(self, forest: ForestPieces, rule: FlipRule) -> Native:
        return NativeTrees(self.search, forest, rule, self._cut(forest), self.by_sets)

    def _read_member(self, rule: FlipRule) -> Native | None:
        # numba is loaded where trees are read only
        wrapped: Any = importlib.import_module("fragility.engines.lattice.wrapped")
        from fragility.engines.trees.pieces import ForestPieces
        from fragility.engines.wrapped.members import LinearMember, TreeMember

        only, found = wrapped.read_only_member(WrappedEngine(self.search.rows), rule)
        if found is not None and isinstance(only, TreeMember):
            return self._read_trees(ForestPieces(only.rows, self.search.protocol.resolution), found)
        if found is not None and isinstance(only, LinearMember):
            return NativeSums(self.search, only.sums, found, self._cut(None))
        return None
