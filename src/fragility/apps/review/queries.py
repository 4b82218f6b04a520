"""Cases by view: DuckDB over the certificate files of an audit.

The files may hold millions of rows, so they are never loaded. When an audit is opened, their digests are compared with
the manifest's, and the few columns by which cases are found are copied into a temporary DuckDB file, whose memory is
bounded; a certificate that someone opens is read from its Parquet file.

A case's `place` is its position in the audit, counted from 0. What reviewers decided lies in a small table beside the
cases, brought up to date from the store before every question that asks about it.
"""

from __future__ import annotations

import hashlib
import math
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fragility.analysis.policy import PREDICTED, ReviewPolicy
from fragility.apps.review.history import Case
from fragility.apps.review.scratch import Scratch
from fragility.apps.review.store import Store
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
from fragility.audits import Manifest, StoredAudit
from fragility.audits.folder import BlockReader, read_manifest, read_protocol, read_table
from fragility.base.errors import CertificateError, DataError, first_line
from fragility.evidence.modes import MODES
from fragility.protocol import Protocol

MEMORY = "128MB"  # that DuckDB may hold; beyond it, it writes to its temporary folder
THREADS = 2
SORTED_BY = {"exposure": "exposure", "fds": "fds", "confidence": "confidence", "k": "flip_budget", "id": "place"}
NOT_ASSESSED = -1.0  # stands for the exposure to a failure mode of a case that has none, and sorts behind all others
SIMILAR = 8
EXAMPLES = 8  # values named in an error
MOST_VALUES = 500  # values that a filter offers
REMEMBERED = 1000  # answers
CANDIDATES = 64  # cases looked at when the next one is given out
REPLACED = "the audit was replaced while it was being reviewed; start the workbench anew"
NEEDED = ("id", "predicted", "confidence", "flip_budget", "flipped", "fds", "exposure", "path", "digest")

SHOWN = (
    "c.digest, c.place, c.name, c.failing, c.exposures, c.label, c.confidence, c.flip_budget, c.flipped, c.exposure, "
    "c.fds, c.flips_to"
)

# What `case_state` says of a case, for many at once. A case is found by its place in this audit, or by its digest where
# an entry speaks of it in another audit; rows of other audits are passed over.
CHANGED_STATES = """
CREATE TEMP TABLE changed AS
WITH placed AS (
    SELECT DISTINCT n.digest, CASE WHEN n.audit = $audit THEN n.place ELSE c.place END AS place
    FROM named n LEFT JOIN cases c ON n.audit <> $audit AND c.digest = n.digest
), decided AS (
    SELECT digest, count(*) AS people, count(DISTINCT decision) AS kinds, min(decision) AS decision,
        list(reviewer ORDER BY seq) AS reviewers
    FROM standing GROUP BY digest
)
SELECT p.place,
    CASE WHEN d.kinds > 1 THEN 'conflict' WHEN d.kinds = 1 THEN d.decision
        WHEN w.digest IS NOT NULL THEN 'park' ELSE 'open' END AS status,
    coalesce(d.reviewers, []) AS reviewers,
    a.digest IS NOT NULL AND coalesce(d.people, 0) = 1 AS second
FROM placed p LEFT JOIN decided d ON d.digest = p.digest LEFT JOIN parked w ON w.digest = p.digest
    LEFT JOIN asked a ON a.digest = p.digest
WHERE p.place IS NOT NULL
"""

# A parameter names the viewer: what was decided is hidden from whoever may give a blind second review.
HIDDEN = "(s.second AND NOT list_contains(s.reviewers, ?))"


@dataclass(frozen=True)
class QueuedCase:
    """One line of the queue."""

    case: Case
    failing: tuple[str, ...]  # the groups of the path that flip it together; none if it never flips
    exposures: Mapping[str, float]  # by failure mode; none where they were not assessed
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
class FieldValues:
    """What a field holds: the range of its numbers, or its values."""

    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()


def case_key(case: Case) -> str:
    """Return how an address names a case: its place, and the start of its digest, so that no other row can answer."""
    return f"{case.place}-{case.digest.removeprefix('sha256:')[:16]}"


class CaseIndex:
    """The cases of one audit folder."""

    def __init__(
        self, folder: Path, manifest: Manifest, protocol: Protocol, parts: Sequence[tuple[Path, int]],
        policy: ReviewPolicy | None,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.protocol, self.policy = folder, manifest, protocol, policy
        self._parts = tuple(parts)  # each file, and the place of its first row
        self._blocks = BlockReader(folder, manifest, protocol)
        self._schema = pq.read_schema(parts[0][0])
        self._scratch = Scratch()
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": f"{self._scratch.path}/spill",
            "autoinstall_known_extensions": "false",  # nothing is ever fetched
            "autoload_known_extensions": "false",
        }
        self._database = duckdb.connect(f"{self._scratch.path}/cases.duckdb", config=settings)
        self._lock = threading.Lock()
        self._known: dict[Any, list[tuple[Any, ...]]] = {}  # answers that cannot change, because an audit does not
        self._seen = 0
        self._field_columns: dict[str, tuple[str, bool]] = {}
        self.modes = () if manifest.modes is None else manifest.modes.modes
        missing = [name for name in NEEDED if name not in self._schema.names]
        if missing:
            raise CertificateError(f"the certificate table lacks the column {missing[0]!r}")
        flips_to = "path_predicted[flip_budget + 1]" if "path_predicted" in self._schema.names else "NULL"
        self._database.execute(
            "CREATE TABLE cases (place BIGINT, name VARCHAR, label VARCHAR, confidence DOUBLE, flip_budget INTEGER, "
            "flipped BOOLEAN, exposure DOUBLE, fds DOUBLE, flips_to VARCHAR, failing VARCHAR[], digest VARCHAR, "
            "exposures DOUBLE[])"
        )
        for part, (path, first) in enumerate(self._parts):
            self._database.register("assessed", self._exposures_of_part(part))
            self._database.execute(
                "INSERT INTO cases SELECT file_row_number + ?, CAST(id AS VARCHAR), CAST(predicted AS VARCHAR), "
                "confidence, flip_budget, flipped, exposure, fds, "
                f"CASE WHEN flipped THEN CAST({flips_to} AS VARCHAR) END, "
                "CASE WHEN flipped THEN path[:flip_budget] ELSE [] END, digest, coalesce(a.exposures, []) "
                "FROM read_parquet(?, file_row_number = true) p LEFT JOIN assessed a ON a.row = p.file_row_number",
                [first, str(path)],
            )
            self._database.unregister("assessed")
        if policy is not None:
            self._add_policy_scores(policy.by)
        self._database.execute(
            "CREATE TABLE states (place BIGINT, status VARCHAR, reviewers VARCHAR[], second BOOLEAN)"
        )

    def _exposures_of_part(self, part: int) -> pa.Table:
        """Return the exposures to failure modes of the assessed rows of a part, by their place in it."""
        row, exposures = pa.array([], type=pa.int64()), pa.array([], type=pa.list_(pa.float64()))
        if self.modes:
            columns = [f"exposure_{mode}" for mode in self.modes]
            name = self._parts[part][0].name
            ids = read_table(self.folder, self.manifest, name, self.protocol, ["id"])
            joined = self._blocks.add(ids, part, columns)
            known = np.stack([joined.column(name).to_numpy() for name in columns], axis=1)
            row = pa.array(np.flatnonzero(~np.isnan(known).any(axis=1)))
            exposures = pa.array(list(known[row.to_numpy()]), type=pa.list_(pa.float64()))
        return pa.table({"row": row, "exposures": exposures})

    @classmethod
    def open(cls, folder: Path, policy: ReviewPolicy | None = None) -> CaseIndex:
        """Open an audit; refuse files that are not the ones its manifest names."""
        manifest = read_manifest(folder)
        protocol = read_protocol(folder)  # compares the manifest with its own digest
        if policy is not None:
            _check_policy(policy, manifest, protocol)
        parts, first = [], 0
        for path in (folder / name for name in manifest.files_of("certificates")):
            try:
                with path.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except FileNotFoundError as error:
                raise CertificateError(f"{folder} is incomplete: {path.name} is missing") from error
            if f"sha256:{digest}" != (manifest.files or {})[path.name]:
                raise CertificateError(f"{path} was changed after it was written: the manifest names other bytes")
            parts.append((path, first))
            try:
                first += int(pq.read_metadata(path).num_rows)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise CertificateError(f"cannot read {path}: {first_line(error)}") from error
        if first != manifest.rows:
            raise CertificateError(f"{folder} declares {manifest.rows} certificates and holds {first}")
        return cls(folder, manifest, protocol, parts, policy)

    def close(self) -> None:
        self._database.close()
        self._scratch.remove()

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def audit(self) -> str:
        return self.manifest.root_digest

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(label) for label in self.manifest.model.classes)

    def _add_policy_scores(self, by: str) -> None:
        """Copy the score of the review policy beside the cases; NULL where a row has none."""
        audit = StoredAudit(self.folder)
        column, first = "confidence" if by == "confidence" else audit.column_ranked_by(by), 0
        sign = -1 if by == "confidence" else 1  # the least confident are the riskiest
        self._database.execute("CREATE TABLE scores (place BIGINT, score DOUBLE)")
        for table in audit.batches([column]):
            places = pa.array(range(first, first + len(table)), type=pa.int64())
            self._database.register("given", pa.table({"place": places, "score": table.column(column)}))
            self._database.execute(f"INSERT INTO scores SELECT place, {sign} * score FROM given")
            self._database.unregister("given")
            first += len(table)

    def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._database.cursor() as cursor:
            return cursor.execute(sql, list(values)).fetchall()

    def _ask_once(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Answer a question about the audit alone, whose answer never changes."""
        key = sql, tuple(values)
        answer = self._known.get(key)
        if answer is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            answer = self._known[key] = self._ask(sql, values)
        return answer

    # --- the rows' own fields -------------------------------------------------------------------------------

    def add_fields(self, table: pa.Table) -> None:
        """Make the audited rows' fields, in the order of the audit, known to filters."""
        self._field_columns = {
            name: (f"f{i}", pa.types.is_integer(kind) or pa.types.is_floating(kind))
            for i, (name, kind) in enumerate(zip(table.schema.names, table.schema.types, strict=True))
        }
        renamed = table.rename_columns([column for column, _ in self._field_columns.values()])
        renamed = renamed.append_column("place", pa.array(range(len(table)), type=pa.int64()))
        with self._database.cursor() as cursor:
            cursor.register("given", renamed)
            cursor.execute("CREATE TABLE fields AS SELECT * FROM given")
            cursor.unregister("given")

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(self._field_columns)

    # --- what was decided -----------------------------------------------------------------------------------

    def catch_up(self, store: Store) -> None:
        """Bring what was decided up to date."""
        with self._lock:
            newest = store.last()
            if newest == self._seen:
                return
            changes = store.changes(since=self._seen)
            with self._database.cursor() as cursor:
                text, number = pa.string(), pa.int64()
                given = {
                    "named": _rows_table({"digest": text, "audit": text, "place": number}, changes.cases),
                    "standing": _rows_table(
                        {"digest": text, "reviewer": text, "decision": text, "seq": number}, changes.standing
                    ),
                    "parked": pa.table({"digest": pa.array(changes.parked, type=text)}),
                    "asked": pa.table({"digest": pa.array(changes.asked, type=text)}),
                }
                for name, table in given.items():
                    cursor.register(name, table)
                cursor.execute("BEGIN")  # whoever reads meanwhile sees all of it or none
                cursor.execute(CHANGED_STATES, {"audit": self.audit})
                cursor.execute("DELETE FROM states WHERE place IN (SELECT place FROM changed)")
                cursor.execute("INSERT INTO states SELECT * FROM changed")
                cursor.execute("DROP TABLE changed")
                cursor.execute("COMMIT")
                for name in given:
                    cursor.unregister(name)
            self._seen = newest

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
        if order not in MODES:
            return f"c.{SORTED_BY[order]}"
        if order not in self.modes:
            known = ", ".join(self.modes) or "none; an audit with --modes assesses them"
            raise ViewError(f"this audit did not assess the failure mode {order!r}; it has {known}")
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
            known = ", ".join(self._field_columns) or "none, because the rows were not given with --data"
            raise ViewError(f"the rows have no field {name[:60]!r}; known are {known}")
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

    def field_values(self, name: str) -> FieldValues:
        """Return what a filter on a field may ask for."""
        column, numbers = self._column(name)
        if not numbers:
            return FieldValues(values=tuple(self._values(column, MOST_VALUES)))
        low, high = self._ask_once(f"SELECT min({column}), max({column}) FROM fields")[0]
        return FieldValues(low=low, high=high)

    def _order(self, view: View, forward: bool = True) -> str:
        """Return the order of a view, or the one in which it is read backwards."""
        direction = "ASC" if _rises(view, forward) else "DESC"
        return f"{self._column_of(view.order)} {direction}, c.place {'ASC' if forward else 'DESC'}"

    def _beyond(self, view: View, here: QueuedCase, forward: bool) -> Where:
        """Return the condition that a case comes after this one in the order of a view, or before it."""
        column, values = self._column_of(view.order), {**here.exposures, "place": here.case.place}
        name = SORTED_BY.get(view.order, view.order)
        value = values.get(name, getattr(here, name, NOT_ASSESSED))
        beyond, tie = ">" if _rises(view, forward) else "<", ">" if forward else "<"
        return Where(f"{column} {beyond} ? OR ({column} = ? AND c.place {tie} ?)", (value, value, here.case.place))

    def _from(self, view: View) -> str:
        decided = " LEFT JOIN states s ON s.place = c.place" if view.status or view.reviewer is not None else ""
        given = " JOIN fields f ON f.place = c.place" if view.where else ""
        return f"FROM cases c{decided}{given}"

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
                dict(zip(self.modes, exposures, strict=False)),
                *shown,
            )
            for digest, place, name, failing, exposures, *shown in self._ask(f"SELECT {SHOWN} {rest}", values)
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
            some = [row_id for (row_id,) in self._ask("SELECT name FROM cases ORDER BY place LIMIT 3")]
            raise CertificateError(f"this audit has no row {name[:60]!r}; ids run like {some}")
        return cases[0]

    def certificate_row(self, queued: QueuedCase) -> dict[str, Any]:
        """Return the case's row of the certificate table, with the blocks that lie beside it."""
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


def _rows_table(columns: Mapping[str, pa.DataType], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(column, type=kind) for column, kind in zip(values, columns.values(), strict=True)]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _check_policy(policy: ReviewPolicy, manifest: Manifest, protocol: Protocol) -> None:
    if protocol.digest != policy.protocol_digest:
        raise DataError("the policy was fitted under another protocol than this audit; fit one for it")
    if manifest.model.fingerprint != policy.model_fingerprint:
        raise DataError("the policy was fitted for another model than the one audited here; fit one for it")
    if policy.segmented_by not in (None, PREDICTED):
        raise DataError("the policy has rules for segments of its own, which only Python knows; fit one without them")
