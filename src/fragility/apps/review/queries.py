"""Questions about the cases of an audit: which a view shows and in what order, one of them, and those like it.

A certificate that someone opens is read from its Parquet file. A case's `place` is its position in the audit, counted
from 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from fragility.apps.review.cases import CaseTables
from fragility.apps.review.history import Case
from fragility.apps.review.views import (
    PAGE_ROWS,
    SHARES,
    FieldFilter,
    View,
    ViewError,
    Where,
    read_numbers,
    read_values,
)
from fragility.base.errors import CertificateError
from fragility.evidence.modes import MODES
from fragility.scores import REHEARSAL

SORTED_BY = {"exposure": "exposure", "fds": "fds", "confidence": "confidence", "k": "flip_budget", "id": "place"}
NOT_ASSESSED = -1.0  # stands for the exposure to a failure mode of a case that has none, and sorts behind all others
SIMILAR = 8
EXAMPLES = 8  # values named in an error
MOST_VALUES = 500  # values that a filter offers
CANDIDATES = 64  # cases looked at when the next one is given out
REPLACED = "the audit was replaced while it was being reviewed; start the workbench anew"

SHOWN = (
    "c.digest, c.place, c.name, c.failing, c.exposures, c.rehearsal, c.label, c.confidence, c.flip_budget, c.flipped, "
    "c.exposure, c.fds, c.flips_to"
)


# A parameter names the viewer: the decision is hidden from reviewers who may give a blind second review.
HIDDEN = "(s.second AND NOT list_contains(s.reviewers, ?))"


@dataclass(frozen=True)
class QueuedCase:
    """One line of the queue."""

    case: Case
    failing: tuple[str, ...]  # the groups of the path that flip it together; none if it never flips
    others: Mapping[str, float]  # exposures by failure mode, if they were assessed; the rehearsal, if there was one
    label: str
    confidence: float
    flip_budget: int
    flipped: bool
    exposure: float
    fds: float
    flips_to: str | None

    @property
    def key(self) -> str:
        return case_key(self.case)


@dataclass(frozen=True)
class QueuePage:
    cases: tuple[QueuedCase, ...]
    found: int  # by all filters
    budgeted: int  # in the budget, whatever the filters
    done: Mapping[str, int]  # of the budget: how many are decided, by status

    @property
    def pages(self) -> int:
        return max(1, math.ceil(self.found / PAGE_ROWS))


@dataclass(frozen=True)
class FilterValues:
    """The values of a field to filter by: the range of its numbers, or a list."""

    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()


def case_key(case: Case) -> str:
    """Return the key of a case in addresses: its place and the start of its digest, so that no other row can match."""
    return f"{case.place}-{case.digest.removeprefix('sha256:')[:16]}"


class CaseIndex(CaseTables):
    """The cases of one audit folder, and queries about them."""

    def draw_eligible(self, count: int) -> tuple[Case, ...]:
        """Return some of the cases for which a second review may be asked, drawn at random."""
        rest = "FROM states s JOIN cases c ON c.place = s.place WHERE len(s.reviewers) = 1 AND NOT s.second"
        return tuple(queued.case for queued in self._list(f"{rest} ORDER BY random() LIMIT {count}", ()))

    # --- conditions -----------------------------------------------------------------------------------------

    def _budget(self, view: View) -> Where:
        """Return which cases are in the queue before any filter."""
        if view.budget == "policy":
            if self.policy is None:
                raise ViewError("no review policy was given; start the workbench with --policy")
            where = Where("c.confidence >= ?", (self.policy.min_confidence,))
            for rule in self.policy.rules:
                if rule.threshold is None:
                    continue
                enough = Where(
                    "c.place IN (SELECT place FROM scores WHERE score IS NULL OR score >= ?)", (rule.threshold,)
                )
                if rule.segment is not None:
                    enough = Where(f"c.label <> ? OR ({enough.sql})", (rule.segment, *enough.values))
                where &= enough
            return where
        confident, score = Where("c.confidence >= ?", (view.confident,)), self._column_of(view.by)
        if view.by in MODES:  # what was not assessed has no rank
            confident &= Where("len(c.exposures) > 0")
        if view.budget == "all":
            return confident
        total = self._ask_once(f"SELECT count(*) FROM cases c WHERE {confident.sql}", confident.values)[0][0]
        size = view.cases_in_time if view.budget == "time" else math.ceil(SHARES[view.budget] * total)
        if size >= total:
            return confident
        if size == 0:
            return Where("FALSE")
        lowest, place = self._ask_once(
            f"SELECT {score}, c.place FROM cases c WHERE {confident.sql} ORDER BY {score} DESC, c.place "
            f"LIMIT 1 OFFSET {int(size) - 1}",
            confident.values,
        )[0]
        return confident & Where(f"{score} > ? OR ({score} = ? AND c.place <= ?)", (lowest, lowest, place))

    def _column_of(self, order: str) -> str:
        """Return what a view is ordered or ranked by, in SQL."""
        if order == REHEARSAL:
            if not self.rehearsed:
                raise ViewError("no stress was rehearsed; start the workbench with --stress, labels of these rows")
            return "c.rehearsal"
        if order not in MODES:
            return f"c.{SORTED_BY[order]}"
        if order not in self.modes:
            listed = ", ".join(self.modes) or "none; an audit with --modes all assesses them"
            raise ViewError(f"this audit did not assess the failure mode {order!r}; it has {listed}")
        return f"coalesce(c.exposures[{self.modes.index(order) + 1}], {NOT_ASSESSED})"

    def _where(self, view: View, viewer: str) -> Where:
        """Return the condition of a view; someone who looks for an id looks among all predictions."""
        where = Where("contains(c.name, ?)", (view.search,)) if view.search else self._budget(view)
        if view.label is not None:
            where &= Where("c.label = ?", (view.label,))
        if view.k == "none":
            where &= Where("NOT c.flipped")
        elif view.k:
            where &= Where(f"c.flipped AND c.flip_budget {'>=' if view.k == '4' else '='} ?", (int(view.k),))
        if view.group is not None:
            where &= Where("list_contains(c.failing, ?)", (view.group,))
        if view.mode:
            where &= Where(f"{self._column_of(view.mode)} >= ?", (view.least,))
        for name, text in view.where:
            where &= self.wanted(name, text).condition(f"f.{self._column(name)[0]}")
        if view.status:
            where &= _status_condition(view.status, viewer)
        if view.reviewer is not None:
            where &= Where(f"list_contains(s.reviewers, ?) AND NOT {HIDDEN}", (view.reviewer, viewer))
        return where

    def _column(self, name: str) -> tuple[str, bool]:
        """Return the column of a field, and whether it holds numbers."""
        if name not in self._field_columns:
            listed = ", ".join(self._field_columns) or "none, because the rows were not given with --data"
            raise ViewError(f"the rows have no field {name[:60]!r}; known are {listed}")
        return self._field_columns[name]

    def wanted(self, name: str, text: str) -> FieldFilter:
        """Read what was typed for a field."""
        column, numbers = self._column(name)
        if numbers:
            return read_numbers(name, text)
        has = f"SELECT 1 FROM fields WHERE {column} = ? LIMIT 1"
        return read_values(name, text, lambda value: bool(self._ask_once(has, [value])), lambda: self._values(column))

    def _values(self, column: str, most: int = EXAMPLES) -> list[str]:
        """Return the values of a column of text, the most frequent first."""
        rows = self._ask_once(
            f"SELECT {column} FROM fields WHERE {column} IS NOT NULL GROUP BY {column} "
            f"ORDER BY count(*) DESC, {column} LIMIT {most}"
        )
        return [value for (value,) in rows]

    def field_values(self, name: str) -> FilterValues:
        """Return what a filter on a field may ask for."""
        column, numbers = self._column(name)
        if not numbers:
            return FilterValues(values=tuple(self._values(column, MOST_VALUES)))
        low, high = self._ask_once(f"SELECT min({column}), max({column}) FROM fields")[0]
        return FilterValues(low=low, high=high)

    def _order(self, view: View, forward: bool = True) -> str:
        """Return the order of a view in SQL, or the reverse order."""
        direction = "ASC" if _rises(view, forward) else "DESC"
        return f"{self._column_of(view.order)} {direction}, c.place {'ASC' if forward else 'DESC'}"

    def _beyond(self, view: View, here: QueuedCase, forward: bool) -> Where:
        """Return the condition that a case comes after (or before) this one in the order of a view."""
        column, values = self._column_of(view.order), {**here.others, "place": here.case.place}
        name = SORTED_BY.get(view.order, view.order)
        value = values.get(name, getattr(here, name, NOT_ASSESSED))
        beyond, tie = ">" if _rises(view, forward) else "<", ">" if forward else "<"
        return Where(f"{column} {beyond} ? OR ({column} = ? AND c.place {tie} ?)", (value, value, here.case.place))

    def _from(self, view: View) -> str:
        decided = " LEFT JOIN states s ON s.place = c.place" if view.status or view.reviewer is not None else ""
        join = " JOIN fields f ON f.place = c.place" if view.where else ""
        return f"FROM cases c{decided}{join}"

    # --- answers --------------------------------------------------------------------------------------------

    def page(self, view: View, viewer: str) -> QueuePage:
        """Return one page of the queue as this reviewer may see it."""
        where, order = self._where(view, viewer), self._order(view)
        # Which cases come first, then what they say: ordering whole rows takes ten times as long on a late page.
        chosen = (
            f"SELECT c.place {self._from(view)} WHERE {where.sql} ORDER BY {order} "
            f"LIMIT {PAGE_ROWS} OFFSET {(view.page - 1) * PAGE_ROWS}"
        )
        budget = self._budget(view)
        done = (
            f"SELECT CASE WHEN {HIDDEN} THEN 'second' ELSE s.status END AS shown, count(*) "
            f"FROM states s JOIN cases c ON c.place = s.place WHERE s.status <> 'open' AND ({budget.sql}) "
            "GROUP BY shown"
        )
        return QueuePage(
            cases=self._list(f"FROM cases c WHERE c.place IN ({chosen}) ORDER BY {order}", where.values),
            found=self._count(view, where),
            budgeted=self._ask_once(f"SELECT count(*) FROM cases c WHERE {budget.sql}", budget.values)[0][0],
            done=dict(self._ask(done, (viewer, *budget.values))),
        )

    def _count(self, view: View, where: Where) -> int:
        ask = self._ask if view.status or view.reviewer is not None else self._ask_once
        return int(ask(f"SELECT count(*) {self._from(view)} WHERE {where.sql}", where.values)[0][0])

    def _list(self, rest: str, values: Sequence[Any]) -> tuple[QueuedCase, ...]:
        """Return cases, given everything of the question but what is shown of them."""
        return tuple(
            QueuedCase(
                Case(digest, self.audit, place, name),
                tuple(failing),
                dict(zip(self.modes, exposures, strict=False)) | ({} if rehearsal is None else {REHEARSAL: rehearsal}),
                *shown,
            )
            for digest, place, name, failing, exposures, rehearsal, *shown in self._ask(
                f"SELECT {SHOWN} {rest}", values
            )
        )

    def find(self, key: str) -> QueuedCase:
        """Return the case that an address names; CertificateError if there is none."""
        place = key.partition("-")[0]
        if place.isascii() and place.isdigit() and len(place) < 16 and int(place) < len(self):
            queued = self._list("FROM cases c WHERE c.place = ?", [int(place)])[0]
            if queued.key == key:
                return queued
        raise CertificateError(f"this audit has no case {key[:60]!r}; it may have been replaced by another")

    def find_row(self, name: str) -> QueuedCase:
        """Return the case of the row with this id; CertificateError if there is none."""
        cases = self._list("FROM cases c WHERE c.name = ?", [name])
        if not cases:
            examples = [row_id for (row_id,) in self._ask("SELECT name FROM cases ORDER BY place LIMIT 3")]
            raise CertificateError(f"this audit has no row {name[:60]!r}; ids run like {examples}")
        return cases[0]

    def certificate_row(self, queued: QueuedCase) -> dict[str, Any]:
        """Return the case's row of the certificate table, with its blocks."""
        part = bisect_right([first for _, first in self._parts], queued.case.place) - 1
        path, first = self._parts[part]
        with self._database.cursor() as cursor:
            try:
                cursor.execute(
                    "SELECT * EXCLUDE (file_row_number) FROM read_parquet(?, file_row_number = true) "
                    "WHERE file_row_number = ?",
                    [str(path), queued.case.place - first],
                )
                values = cursor.fetchone()
            except duckdb.Error as error:
                raise CertificateError(REPLACED) from error
            row = dict(zip(self._schema.names, values or (), strict=False))
        if row.get("digest") != queued.case.digest:
            raise CertificateError(REPLACED)
        try:
            return {**row, **self._blocks.of_row(row["id"], part)}
        except FileNotFoundError as error:
            raise CertificateError(REPLACED) from error

    def neighbours(self, view: View, viewer: str, here: QueuedCase) -> tuple[QueuedCase | None, QueuedCase | None]:
        """Return the cases before and after this one in a view, whether or not it is in the view itself."""
        nearest = []
        for forward in (False, True):
            where = self._where(view, viewer) & self._beyond(view, here, forward)
            rest = f"{self._from(view)} WHERE {where.sql} ORDER BY {self._order(view, forward)} LIMIT 1"
            nearest.append(next(iter(self._list(rest, where.values)), None))
        return nearest[0], nearest[1]

    def position(self, view: View, viewer: str, here: QueuedCase) -> tuple[int | None, int]:
        """Return the place of a case in a view, counted from 1, and how many cases the view has; None if not in it."""
        where = self._where(view, viewer)
        total = self._count(view, where)
        if not self._count(view, where & Where("c.place = ?", (here.case.place,))):
            return None, total
        return 1 + self._count(view, where & self._beyond(view, here, forward=False)), total

    def names(self) -> list[str]:
        """Return the id of every row, as text, in the order of the audit."""
        return [name for (name,) in self._ask("SELECT name FROM cases ORDER BY place")]

    def candidates(self, view: View, viewer: str, after: QueuedCase | None = None, skip: int = 0) -> tuple[Case, ...]:
        """Return the first cases of a view that wait for this reviewer, in order: those after one of them, or all."""
        where = self._where_waiting(view, viewer)
        if after is not None:
            where &= self._beyond(view, after, forward=True)
        rest = f"{self._from(replace(view, status=view.awaited))} WHERE {where.sql} ORDER BY {self._order(view)}"
        return tuple(queued.case for queued in self._list(f"{rest} LIMIT {CANDIDATES} OFFSET {skip}", where.values))

    def waiting(self, view: View, viewer: str) -> int:
        """Return how many cases of a view wait for this reviewer."""
        return self._count(replace(view, status=view.awaited), self._where_waiting(view, viewer))

    def _where_waiting(self, view: View, viewer: str) -> Where:
        return self._where(view, viewer) & _status_condition(view.awaited, viewer)

    def open_cases(self, view: View, viewer: str) -> tuple[tuple[Case, tuple[str, ...]], ...]:
        """Return every open case of a view in its order, each with the groups that flip it."""
        where = self._where(view, viewer) & _status_condition("open", viewer)
        rows = self._ask(
            f"SELECT c.digest, c.place, c.name, c.failing {self._from(replace(view, status='open'))} "
            f"WHERE {where.sql} ORDER BY {self._order(view)}",
            where.values,
        )
        return tuple((Case(digest, self.audit, place, name), tuple(failing)) for digest, place, name, failing in rows)

    def count(self, view: View, viewer: str) -> int:
        """Return how many cases a view has."""
        return self._count(view, self._where(view, viewer))

    def similar(self, here: QueuedCase) -> tuple[tuple[QueuedCase, ...], int]:
        """Return the most exposed other cases of the same class that the same groups flip, and how many there are."""
        if not here.failing:
            return (), 0
        same = Where(
            "c.label = ? AND len(c.failing) = ? AND list_has_all(c.failing, ?) AND c.place <> ?",
            (here.label, len(here.failing), list(here.failing), here.case.place),
        )
        rest = f"FROM cases c WHERE {same.sql}"
        cases = self._list(f"{rest} ORDER BY c.exposure DESC, c.place LIMIT {SIMILAR}", same.values)
        return cases, int(self._ask(f"SELECT count(*) {rest}", same.values)[0][0])

    def find_all(self, cases: Iterable[Case]) -> dict[str, QueuedCase]:
        """Return those of these cases that this audit has, by digest; most are found faster, by their place."""
        by_digest = {case.digest: case for case in cases}
        places = [case.place for case in by_digest.values() if case.audit == self.audit]
        digests = [case.digest for case in by_digest.values() if case.audit != self.audit]
        here = self._list("FROM cases c WHERE c.place IN (SELECT unnest(?))", [places]) if places else ()
        if digests:
            here += self._list("FROM cases c WHERE c.digest IN (SELECT unnest(?))", [digests])
        return {queued.case.digest: queued for queued in here if queued.case.digest in by_digest}


def _rises(view: View, forward: bool) -> bool:
    # Ids rise by themselves; everything else is looked at from its large end.
    return forward == (view.up != (view.order == "id"))


def _status_condition(status: str, viewer: str) -> Where:
    if status == "open":
        return Where("coalesce(s.status, 'open') = 'open'")
    if status == "second":
        return Where(HIDDEN, (viewer,))
    return Where(f"s.status = ? AND NOT {HIDDEN}", (status, viewer))
