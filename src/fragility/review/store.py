"""Decisions as an append-only SQLite file: what was acknowledged is on the disk.

A write-ahead log lets readers and one writer work at once, also from several processes. Every write is a transaction
that SQLite forces to the disk before it returns (synchronous=FULL), so neither a killed process nor a power cut loses
a decision that a reviewer saw saved. Triggers refuse to change or remove an entry, whoever opens the file.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from fragility.errors import FragilityError
from fragility.review.history import (
    DECISIONS,
    Case,
    CaseState,
    Entry,
    case_state,
    groups_text,
)

APPLICATION_ID = 0x46524756  # marks the file as ours
VERSION = 2
LEASE = 15 * 60.0  # seconds for which a case given out by "next" is nobody else's
PATIENCE = 30.0  # seconds to wait for another writer
LONGEST_NOTE = 4000
LONGEST_NAME = 80
MANY = 500  # names in one query; SQLite bounds them

SCHEMA = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    digest TEXT NOT NULL,
    audit TEXT NOT NULL,
    place INTEGER NOT NULL,
    row_id TEXT NOT NULL,
    reviewer TEXT NOT NULL CHECK (length(reviewer) > 0),
    action TEXT NOT NULL CHECK (action IN ('accept', 'escalate', 'reacquire', 'undo', 'second')),
    groups TEXT NOT NULL,
    note TEXT NOT NULL,
    undoes INTEGER UNIQUE REFERENCES entries (seq),
    blind INTEGER NOT NULL,
    bulk TEXT
);
CREATE INDEX entries_of_case ON entries (digest, seq);
CREATE INDEX entries_of_bulk ON entries (bulk) WHERE bulk IS NOT NULL;
CREATE INDEX entries_blind ON entries (digest) WHERE blind;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TABLE claims (digest TEXT PRIMARY KEY, reviewer TEXT NOT NULL, until REAL NOT NULL);
"""
COLUMNS = "seq, at, digest, audit, place, row_id, reviewer, action, groups, note, undoes, blind, bulk"
NOT_UNDONE = "NOT EXISTS (SELECT 1 FROM entries u WHERE u.undoes = e.seq)"


class StoreError(FragilityError):
    """A store cannot be opened or written."""


class RefusedError(FragilityError):
    """A decision that cannot be taken as it was asked for; nothing was written."""


class ConflictError(RefusedError):
    """Someone else decided since the reviewer looked; nothing was written."""

    def __init__(self, newer: Sequence[Entry]) -> None:
        self.newer = tuple(newer)
        super().__init__("someone else decided about this case meanwhile; look at it again")


@dataclass(frozen=True)
class Bulk:
    """One action on many cases."""

    first: Entry  # of the decisions; all have its action, note and reviewer
    count: int
    standing: int  # that were not undone


def reviewer_name(text: str) -> str:
    """Return a reviewer's name as it is stored; refuse what is no name."""
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not name or len(name) > LONGEST_NAME:
        raise RefusedError(f"a reviewer's name has 1 to {LONGEST_NAME} characters; write yours")
    if any(unicodedata.category(character)[0] == "C" for character in name):
        raise RefusedError("a reviewer's name holds characters that cannot be shown; write it in plain letters")
    return name


class Store:
    """The decisions of one file; safe to use from several threads, and beside other processes."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path, *, new: bool = True) -> Store:
        """Open a store, or make it if ``new``; refuse a file that is something else."""
        if not new and not path.is_file():
            raise StoreError(f"{path} does not exist; name the file that `fragility review` wrote")
        try:
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                _prepare(connection, path)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"cannot keep decisions in {path}: {error}; choose another place with --store") from error
        return cls(path, connection)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"the decision was not saved: {error}") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _read(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._lock:
            return self._connection.execute(sql, tuple(values)).fetchall()

    # --- reading --------------------------------------------------------------------------------------------

    def last(self) -> int:
        """Return the number of the newest entry; it changes with every write."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM entries")[0][0])

    def entries(self, digest: str) -> list[Entry]:
        """Return the history of one case."""
        return _entries(self._read(f"SELECT {COLUMNS} FROM entries WHERE digest = ? ORDER BY seq", [digest]))

    def latest(self, count: int) -> list[Entry]:
        """Return the newest entries, newest first."""
        return _entries(self._read(f"SELECT {COLUMNS} FROM entries ORDER BY seq DESC LIMIT ?", [count]))

    def everything(self) -> list[Entry]:
        return _entries(self._read(f"SELECT {COLUMNS} FROM entries ORDER BY seq"))

    def state(self, digest: str) -> CaseState:
        return case_state(self.entries(digest))

    def states(self, since: int = 0) -> dict[Case, CaseState]:
        """Return what stands for every case with an entry after ``since``, by the case as last named."""
        rows = self._read(
            f"SELECT {COLUMNS} FROM entries WHERE digest IN (SELECT digest FROM entries WHERE seq > ?) "
            "ORDER BY digest, seq",
            [since],
        )
        grouped = (list(entries) for _, entries in groupby(_entries(rows), key=lambda entry: entry.case.digest))
        return {entries[-1].case: case_state(entries) for entries in grouped}

    def states_of(self, digests: Sequence[str]) -> dict[str, CaseState]:
        """Return what stands for these cases; those without an entry are left out."""
        found: dict[str, CaseState] = {}
        for start in range(0, len(digests), MANY):
            part = digests[start : start + MANY]
            marks = ",".join("?" * len(part))
            sql = f"SELECT {COLUMNS} FROM entries WHERE digest IN ({marks}) ORDER BY digest, seq"
            for digest, entries in groupby(_entries(self._read(sql, part)), key=lambda entry: entry.case.digest):
                found[digest] = case_state(entries)
        return found

    def blind_histories(self) -> list[list[Entry]]:
        """Return the history of every case that was ever decided blind."""
        rows = self._read(
            f"SELECT {COLUMNS} FROM entries WHERE digest IN (SELECT digest FROM entries WHERE blind) "
            "ORDER BY digest, seq"
        )
        return [list(entries) for _, entries in groupby(_entries(rows), key=lambda entry: entry.case.digest)]

    def entry(self, seq: int) -> Entry | None:
        """Return the entry of this number."""
        found = _entries(self._read(f"SELECT {COLUMNS} FROM entries WHERE seq = ?", [seq]))
        return found[0] if found else None

    def reviewers(self) -> tuple[str, ...]:
        """Return everyone who ever wrote an entry."""
        return tuple(name for (name,) in self._read("SELECT DISTINCT reviewer FROM entries ORDER BY reviewer"))

    def bulks(self, count: int) -> list[Bulk]:
        """Return the newest actions on many cases, newest first."""
        rows = self._read(
            "SELECT min(seq) AS first, count(*) FROM entries WHERE bulk IS NOT NULL GROUP BY bulk "
            "ORDER BY first DESC LIMIT ?",
            [count],
        )
        undone = dict(
            self._read(
                "SELECT e.bulk, count(*) FROM entries u CROSS JOIN entries e ON e.seq = u.undoes "
                "WHERE u.undoes IS NOT NULL AND e.bulk IS NOT NULL GROUP BY e.bulk"
            )
        )
        firsts = [(self._written(first), total) for first, total in rows]
        return [Bulk(first, total, total - undone.get(first.bulk, 0)) for first, total in firsts]

    def standing_of(self, bulk: str, reviewer: str) -> int:
        """Return how many decisions of a bulk action were not undone."""
        sql = "SELECT count(*) FROM entries e WHERE bulk = ? AND reviewer = ? AND action <> 'undo'"
        return int(self._read(f"{sql} AND {NOT_UNDONE}", [bulk, reviewer])[0][0])

    def claimed_by(self, digest: str) -> str | None:
        """Return who was given this case by "next" a short while ago."""
        found = self._read("SELECT reviewer FROM claims WHERE digest = ? AND until > ?", [digest, time.time()])
        return str(found[0][0]) if found else None

    # --- writing --------------------------------------------------------------------------------------------

    def decide(
        self,
        case: Case,
        reviewer: str,
        action: str,
        groups: Sequence[str] = (),
        note: str = "",
        seen: int | None = None,
    ) -> Entry:
        """Write a decision.

        ``seen`` is the newest entry that the reviewer was shown: a newer one by someone else is a conflict.
        """
        _check_decision(action, groups, note)
        with self._writing() as connection:
            entries = self.entries(case.digest)
            state = case_state(entries)
            hidden = state.hidden_from(reviewer)
            newer = [e for e in entries if seen is not None and e.seq > seen and e.reviewer != reviewer]
            if newer and not hidden:
                raise ConflictError(newer)
            # Whoever asked for the review, or wrote about the case before, may have seen what was decided.
            blind = hidden and reviewer not in {state.asked_by, *(entry.reviewer for entry in entries)}
            seq = _insert(connection, case, reviewer, action, groups, note, blind=blind)
            connection.execute("DELETE FROM claims WHERE digest = ?", [case.digest])
            return self._written(seq)

    def undo(self, seq: int, reviewer: str) -> Entry:
        """Write that an entry of this reviewer no longer holds."""
        with self._writing() as connection:
            found = self.entry(seq)
            if found is None or found.action == "undo":
                raise RefusedError("there is nothing to undo at this number")
            if found.reviewer != reviewer:
                raise RefusedError(f"only {found.reviewer} can undo this entry; decide anew instead")
            if self._read("SELECT 1 FROM entries WHERE undoes = ?", [seq]):
                raise RefusedError("this entry was undone before")
            return self._written(_insert(connection, found.case, reviewer, "undo", undoes=seq))

    def ask_second(self, cases: Sequence[Case], reviewer: str, note: str = "") -> int:
        """Ask for a blind second review of cases on which exactly one reviewer's decision stands; return how many."""
        with self._writing() as connection:
            states = self.states_of([case.digest for case in cases])
            chosen = [
                case
                for case in cases
                if (state := states.get(case.digest)) and len(state.standing) == 1 and not state.second
            ]
            for case in chosen:
                _insert(connection, case, reviewer, "second", note=note)
        return len(chosen)

    def decide_all(
        self, cases: Sequence[tuple[Case, Sequence[str]]], reviewer: str, action: str, note: str = ""
    ) -> str:
        """Write a decision for each of these cases, with groups of its own, all or none; return the action's name.

        A case that someone decided meanwhile is a conflict.
        """
        for distinct in {tuple(groups) for _, groups in cases}:
            _check_decision(action, distinct, note)
        bulk = secrets.token_hex(8)
        with self._writing() as connection:
            states = self.states_of([case.digest for case, _ in cases])
            if newer := [entry for state in states.values() for entry in state.standing]:
                raise ConflictError(newer)
            for case, groups in cases:
                _insert(connection, case, reviewer, action, groups, note, bulk=bulk)
        return bulk

    def undo_all(self, bulk: str, reviewer: str) -> int:
        """Write that every decision of a bulk action no longer holds; return how many did."""
        with self._writing() as connection:
            sql = f"SELECT {COLUMNS} FROM entries e WHERE bulk = ? AND reviewer = ? AND action <> 'undo'"
            rows = self._read(f"{sql} AND {NOT_UNDONE}", [bulk, reviewer])
            for entry in _entries(rows):
                _insert(connection, entry.case, reviewer, "undo", undoes=entry.seq)
        return len(rows)

    def claim(self, candidates: Sequence[Case], reviewer: str, *, second: bool = False) -> Case | None:
        """Give the first case that is nobody's to this reviewer, for a while; None if all are taken.

        Nobody's: no decision stands (or, for a ``second`` review, only another's), and nobody else was given it.
        """
        now = time.time()
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE until <= ?", [now])
            states = self.states_of([case.digest for case in candidates])
            for case in candidates:
                state = states.get(case.digest)
                free = state.hidden_from(reviewer) if second and state else not (state and state.standing)
                if free and self.claimed_by(case.digest) in (None, reviewer):
                    claim = [case.digest, reviewer, now + LEASE]
                    connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", claim)
                    return case
        return None

    def _written(self, seq: int) -> Entry:
        entry = self.entry(seq)
        assert entry is not None
        return entry


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    if mark == 0:
        _create(connection, path)
    elif mark != APPLICATION_ID:
        raise StoreError(f"{path} belongs to another program; choose another place with --store")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise StoreError(f"{path} has version {version}, this one reads {VERSION}; use another fragility")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _create(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; two processes may try at once."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise StoreError(f"{path} belongs to another program; choose another place with --store")
            for statement in _statements(SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    """Return a script's statements one by one: `executescript` would commit the transaction it is in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _check_decision(action: str, groups: Sequence[str], note: str) -> None:
    if action not in DECISIONS:
        raise RefusedError(f"a decision is one of {', '.join(DECISIONS)}, got {action[:40]!r}")
    if action == "reacquire" and not groups:
        raise RefusedError("say which evidence to re-acquire: choose at least one group")
    if action != "reacquire" and groups:
        raise RefusedError("groups are named where evidence is to be re-acquired; leave them out, or choose that")
    if len(note) > LONGEST_NOTE:
        raise RefusedError(f"a note has at most {LONGEST_NOTE} characters, this one has {len(note)}")


def _insert(
    connection: sqlite3.Connection, case: Case, reviewer: str, action: str, groups: Sequence[str] = (), note: str = "",
    *, undoes: int | None = None, blind: bool = False, bulk: str | None = None,
) -> int:  # fmt: skip
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    values = (at, case.digest, case.audit, case.place, case.row_id, reviewer, action)
    cursor = connection.execute(
        "INSERT INTO entries (at, digest, audit, place, row_id, reviewer, action, groups, note, undoes, blind, bulk) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, groups_text(groups), note, undoes, int(blind), bulk),
    )
    return int(cursor.lastrowid or 0)


def _entries(rows: Iterable[Any]) -> list[Entry]:
    return [
        Entry(
            seq=row[0],
            at=row[1],
            case=Case(row[2], row[3], row[4], row[5]),
            reviewer=row[6],
            action=row[7],
            groups=tuple(json.loads(row[8])),
            note=row[9],
            undoes=row[10],
            blind=bool(row[11]),
            bulk=row[12],
        )
        for row in rows
    ]
