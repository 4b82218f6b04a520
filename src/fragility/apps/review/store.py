"""Decisions as an append-only SQLite file: what was acknowledged is on the disk.

A write-ahead log lets readers and one writer work at once, also from several processes. Every write is a transaction
that SQLite forces to the disk before it returns (synchronous=FULL), so neither a killed process nor a power cut loses
a decision that a reviewer saw saved. Triggers refuse to change or remove an entry, also for other programs. SQLite goes
on writing to a file that was removed, so that is looked at before and after every write.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import tempfile
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from fragility.apps.review.history import (
    DECISIONS,
    LONGEST_REASON,
    OPEN,
    WRITTEN,
    Case,
    CaseState,
    Entry,
    case_state,
    may_be_blind,
    write_groups,
)
from fragility.base.errors import FragilityError
from fragility.base.files import PRIVATE

STORE_FILE = "review.sqlite"  # in the audit's folder, unless named otherwise
APPLICATION_ID = 0x46524756  # marks the file as ours
VERSION = 2
LEASE = 15 * 60.0  # seconds for which a case given out by "next" is reserved
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
    action TEXT NOT NULL
        CHECK (action IN ('accept', 'escalate', 'reacquire', 'park', 'comment', 'undo', 'second')),
    groups TEXT NOT NULL,
    reason TEXT NOT NULL,
    note TEXT NOT NULL,
    undoes INTEGER UNIQUE REFERENCES entries (seq),
    blind INTEGER NOT NULL,
    bulk TEXT
);
CREATE INDEX entries_of_case ON entries (digest, reviewer, seq, action);
CREATE INDEX entries_of_reviewer ON entries (reviewer, seq);
CREATE INDEX entries_waiting ON entries (digest) WHERE action IN ('park', 'second');
CREATE INDEX entries_of_bulk ON entries (bulk) WHERE bulk IS NOT NULL;
CREATE INDEX entries_blind ON entries (digest) WHERE blind;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TABLE claims (digest TEXT PRIMARY KEY, reviewer TEXT NOT NULL, until REAL NOT NULL);
"""
COLUMNS = "seq, at, digest, audit, place, row_id, reviewer, action, groups, reason, note, undoes, blind, bulk"
VALID = "seq NOT IN (SELECT undoes FROM entries WHERE undoes IS NOT NULL)"
DECIDES = "action IN ('accept', 'escalate', 'reacquire')"
# The last valid decision of each reviewer about each case, in the order of the index; SQLite takes `action` from the
# row with the largest seq.
STANDING = (
    "SELECT digest, reviewer, action, max(seq) AS seq FROM entries "
    f"WHERE {DECIDES} AND {VALID} AND {{where}} GROUP BY digest, reviewer"
)
# How many decisions stand, by reviewer and kind, and how many of them are the only one about their case. Most cases are
# decided once: these are counted as they come, and only the others are looked at one by one.
TALLY = f"""
WITH several AS MATERIALIZED (SELECT digest FROM entries WHERE {DECIDES} GROUP BY digest HAVING count(*) > 1),
standing AS MATERIALIZED ({STANDING.format(where="digest IN several")}),
counted AS (SELECT reviewer, action, count(*) OVER (PARTITION BY digest) = 1 AS only FROM standing)
SELECT reviewer, action, count(*), count(*) FROM entries WHERE {DECIDES} AND {VALID} AND digest NOT IN several
GROUP BY reviewer, action
UNION ALL SELECT reviewer, action, count(*), sum(only) FROM counted GROUP BY reviewer, action
"""


class StoreError(FragilityError):
    """A store cannot be opened or written."""


class DecisionRefusedError(FragilityError):
    """A decision was refused; nothing was written."""


class ConflictError(DecisionRefusedError):
    """Another reviewer decided in the meantime; nothing was written."""

    def __init__(self, newer: Sequence[Entry]) -> None:
        self.newer = tuple(newer)
        super().__init__("someone else decided about this case meanwhile; look at it again")


@dataclass(frozen=True)
class Changes:
    """What stands for the cases that were written about, as rows for a database to put together."""

    cases: list[tuple[str, str, int]]  # (digest, audit, place), as often as there are entries
    standing: list[tuple[str, str, str, int]]  # (digest, reviewer, decision, number of the entry)
    parked: list[str]  # digests
    asked: list[str]  # digests of cases for which a second review was asked


@dataclass(frozen=True)
class TeamProgress:
    """How far a team is."""

    standing: list[tuple[str, str, int]]  # (reviewer, decision, how many stand)
    waiting: int  # cases that wait for a second review
    eligible: int  # cases that one reviewer decided, for which a second review may be asked


@dataclass(frozen=True)
class Bulk:
    """One action on many cases."""

    first: Entry  # of the decisions; all have its action, note and reviewer
    count: int
    standing: int  # that were not undone


def check_name(text: str) -> str:
    """Return a reviewer's name in its stored form; refuse an empty, long or unprintable one."""
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not name or len(name) > LONGEST_NAME:
        raise DecisionRefusedError(f"a reviewer's name has 1 to {LONGEST_NAME} characters; write yours")
    if any(unicodedata.category(character)[0] == "C" for character in name):
        raise DecisionRefusedError("a reviewer's name holds characters that cannot be shown; write it in plain letters")
    return name


class Store:
    """The decisions of one file; safe to use from several threads, and beside other processes."""

    def __init__(self, path: Path, connection: sqlite3.Connection, scratch: ExitStack | None = None) -> None:
        self.path = path
        self._connection = connection
        self._scratch = scratch or ExitStack()  # removed with the store
        self._identity = None if scratch else _identity(path)
        self._lock = threading.RLock()
        self._tally, self._tallied_at = TeamProgress([], 0, 0), 0

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open a store, or create it; refuse a file of another kind."""
        with suppress(OSError):  # a new file only its owner may read, which SQLite's own files beside it take over
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))
        try:
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")
                if connection.execute("PRAGMA application_id").fetchone()[0] == 0:
                    _create(connection, path)
                _check_store(connection, path)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise _describe_failure(
                path, error, f"cannot keep decisions in {path}: {error}; choose another place with --store"
            ) from error
        return cls(path, connection)

    @classmethod
    def open_to_read(cls, path: Path) -> Store:
        """Open a store that is only read, also from a folder in which nothing can be written.

        SQLite needs to write beside a file with a write-ahead log. Where it cannot, a copy of the two is read.
        """
        if not path.is_file():
            raise StoreError(f"{path} does not exist; name the file that `fragility review` wrote")
        try:
            try:
                connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
                _check_store(connection, path)
                return cls(path, connection)
            except sqlite3.OperationalError:
                scratch = ExitStack()
                folder = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="fragility-review-")))
                for file in (path, _log_of(path)):
                    if file.exists():
                        shutil.copyfile(file, folder / file.name)
                connection = sqlite3.connect(folder / path.name)
                _check_store(connection, path)
                return cls(path, connection, scratch)
        except (sqlite3.Error, OSError) as error:
            raise _describe_failure(path, error, f"cannot read decisions from {path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            self._scratch.close()

    def _check_present(self, written: bool = False) -> None:
        """Refuse to go on when the file was removed or another one put in its place; after a write, its log, too."""
        there = self._identity is None or _identity(self.path) == self._identity
        if not there or (written and not _log_of(self.path).exists()):
            raise StoreError(
                f"the store {self.path} was removed or replaced while the workbench was running, so nothing that is "
                "decided now would be kept; move it back, or stop the workbench and start it again"
            )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._check_present()
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
                self._check_present(written=True)
            except sqlite3.Error as error:
                raise StoreError(f"the decision was not saved: {error}") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _read(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._lock:
            self._check_present()
            try:
                return self._connection.execute(sql, tuple(values)).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"the decisions in {self.path} cannot be read: {error}") from error

    # --- reading --------------------------------------------------------------------------------------------

    def _select(self, rest: str, values: Iterable[Any] = ()) -> list[Entry]:
        """Return entries, given what follows the table's name in the query."""
        rows = self._read(f"SELECT {COLUMNS} FROM entries {rest}", values)
        return [
            Entry(seq, at, Case(*case), who, action, tuple(json.loads(groups)), reason, note, undoes, bool(blind), bulk)
            for seq, at, *case, who, action, groups, reason, note, undoes, blind, bulk in rows
        ]

    def _histories(self, digests: str, values: Iterable[Any] = ()) -> list[list[Entry]]:
        """Return the history of each case whose digest is in a list, written in SQL."""
        selected = self._select(f"WHERE digest IN ({digests}) ORDER BY digest, seq", values)
        return [list(entries) for _, entries in groupby(selected, key=lambda entry: entry.case.digest)]

    def last(self) -> int:
        """Return the number of the newest entry; it changes with every write."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM entries")[0][0])

    def entries(self, digest: str) -> list[Entry]:
        """Return the history of one case."""
        return self._select("WHERE digest = ? ORDER BY seq", [digest])

    def latest(self, count: int) -> list[Entry]:
        """Return the newest entries, newest first."""
        return self._select("ORDER BY seq DESC LIMIT ?", [count])

    def everything(self) -> list[Entry]:
        return self._select("ORDER BY seq")

    def changes(self, since: int = 0) -> Changes:
        """Return the cases with an entry after ``since``, and their standing decisions."""
        changed = f"digest IN (SELECT digest FROM entries WHERE seq > {since})" if since else "TRUE"
        return Changes(
            cases=self._read("SELECT digest, audit, place FROM entries WHERE seq > ?", [since]),
            standing=self._read(STANDING.format(where=changed)),
            parked=self._waiting("park"),
            asked=self._waiting("second"),
        )

    def _waiting(self, action: str) -> list[str]:
        """Return the cases that are parked, or for which a second review was asked."""
        rows = self._read(f"SELECT DISTINCT digest FROM entries WHERE action = '{action}' AND {VALID}")
        return [digest for (digest,) in rows]

    def tally(self) -> TeamProgress:
        """Return how many decisions stand, by reviewer and kind, and what second reviews there may be."""
        newest = self.last()
        if newest == self._tallied_at:
            return self._tally
        standing: Counter[tuple[str, str]] = Counter()
        only = 0
        for reviewer, action, count, single in self._read(TALLY):
            standing[reviewer, action] += count
            only += single
        waiting = sum(state.second for state in self.states_of(self._waiting("second")).values())
        self._tally = TeamProgress([(*who, count) for who, count in standing.items()], waiting, only - waiting)
        self._tallied_at = newest  # one that was written meanwhile is counted the next time
        return self._tally

    def states_of(self, digests: Sequence[str]) -> dict[str, CaseState]:
        """Return the states of these cases; those without an entry are left out."""
        states: dict[str, CaseState] = {}
        for start in range(0, len(digests), MANY):
            part = digests[start : start + MANY]
            for entries in self._histories(",".join("?" * len(part)), part):
                states[entries[0].case.digest] = case_state(entries)
        return states

    def blind_histories(self) -> list[list[Entry]]:
        """Return the history of every case that was ever decided blind."""
        return self._histories("SELECT digest FROM entries WHERE blind")

    def entry(self, seq: int) -> Entry | None:
        """Return the entry of this number."""
        return next(iter(self._select("WHERE seq = ?", [seq])), None)

    def reviewers(self) -> tuple[str, ...]:
        """Return everyone who ever wrote an entry."""
        return tuple(name for (name,) in self._read("SELECT DISTINCT reviewer FROM entries ORDER BY reviewer"))

    def bulks(self, newest: int, reviewer: str) -> list[Bulk]:
        """Return the newest actions on many cases, and all of this reviewer's that still hold; newest first."""
        rows = self._read(
            "SELECT min(seq) AS first, count(*), bulk FROM entries WHERE bulk IS NOT NULL GROUP BY bulk "
            "ORDER BY first DESC"
        )
        undone = dict(
            self._read(
                "SELECT e.bulk, count(*) FROM entries u CROSS JOIN entries e ON e.seq = u.undoes "
                "WHERE u.undoes IS NOT NULL AND e.bulk IS NOT NULL GROUP BY e.bulk"
            )
        )
        bulks = []
        for place, (first, total, bulk) in enumerate(rows):
            standing = total - undone.get(bulk, 0)
            if place < newest or standing:
                bulks.append((place, Bulk(self._written(first), total, standing)))
        return [bulk for place, bulk in bulks if place < newest or bulk.first.reviewer == reviewer]

    def standing_of(self, bulk: str, reviewer: str) -> int:
        """Return how many decisions of a bulk action were not undone."""
        sql = f"SELECT count(*) FROM entries WHERE bulk = ? AND reviewer = ? AND {VALID}"
        return int(self._read(sql, [bulk, reviewer])[0][0])

    def newest_of(self, reviewer: str) -> int:
        """Return the number of this reviewer's newest entry; 0 if there is none."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM entries WHERE reviewer = ?", [reviewer])[0][0])

    def claimed_by(self, digest: str) -> str | None:
        """Return who was given this case by "next" a short while ago."""
        rows = self._read("SELECT reviewer FROM claims WHERE digest = ? AND until > ?", [digest, time.time()])
        return str(rows[0][0]) if rows else None

    # --- writing --------------------------------------------------------------------------------------------

    def write(
        self, case: Case, reviewer: str, action: str, groups: Sequence[str] = (), note: str = "", reason: str = "",
        seen: int | None = None,
    ) -> Entry:  # fmt: skip
        """Write a decision, put the case aside, or comment on it.

        ``seen`` is the newest entry that the reviewer was shown: a newer one by someone else is a conflict.
        """
        _check_entry(action, groups, note, reason)
        with self._writing() as connection:
            entries = self.entries(case.digest)
            newer = [e for e in entries if seen is not None and e.seq > seen and e.reviewer != reviewer]
            if newer and not case_state(entries).hidden_from(reviewer):
                raise ConflictError(newer)
            blind = action in DECISIONS and may_be_blind(entries, reviewer)
            seq = _insert(connection, case, reviewer, action, groups, note, reason, blind=blind)
            if action != "comment":
                connection.execute("DELETE FROM claims WHERE digest = ?", [case.digest])
            return self._written(seq)

    def undo(self, seq: int, reviewer: str) -> Entry:
        """Undo an entry of this reviewer."""
        with self._writing() as connection:
            entry = self.entry(seq)
            if entry is None or entry.action == "undo":
                raise DecisionRefusedError("there is nothing to undo at this number")
            if entry.reviewer != reviewer:
                raise DecisionRefusedError(f"only {entry.reviewer} can undo this entry; decide anew instead")
            if self._read("SELECT 1 FROM entries WHERE undoes = ?", [seq]):
                raise DecisionRefusedError("this entry was undone before")
            return self._written(_insert(connection, entry.case, reviewer, "undo", undoes=seq))

    def ask_second(self, cases: Sequence[Case], reviewer: str, note: str = "") -> int:
        """Ask for a blind second review of cases on which exactly one reviewer's decision stands; return how many."""
        with self._writing() as connection:
            states = self.states_of([case.digest for case in cases])
            selected = [
                case
                for case in cases
                if (state := states.get(case.digest)) and len(state.standing) == 1 and not state.second
            ]
            for case in selected:
                _insert(connection, case, reviewer, "second", note=note)
        return len(selected)

    def decide_all(
        self, cases: Sequence[tuple[Case, Sequence[str]]], reviewer: str, action: str, note: str = "", reason: str = ""
    ) -> str:
        """Write a decision for each of these cases, with groups of its own, all or none; return the action's name.

        A case that someone decided meanwhile is a conflict.
        """
        for distinct in {tuple(groups) for _, groups in cases}:
            _check_entry(action, distinct, note, reason, allowed=DECISIONS)
        bulk = secrets.token_hex(8)
        with self._writing() as connection:
            states = self.states_of([case.digest for case, _ in cases])
            if newer := [entry for state in states.values() for entry in state.standing]:
                raise ConflictError(newer)
            for case, groups in cases:
                _insert(connection, case, reviewer, action, groups, note, reason, bulk=bulk)
        return bulk

    def undo_all(self, bulk: str, reviewer: str) -> int:
        """Undo every decision of a bulk action; return how many stood."""
        with self._writing() as connection:
            entries = self._select(f"WHERE bulk = ? AND reviewer = ? AND {VALID}", [bulk, reviewer])
            for entry in entries:
                _insert(connection, entry.case, reviewer, "undo", undoes=entry.seq)
        return len(entries)

    def claim(self, candidates: Sequence[Case], reviewer: str, status: str = "open") -> Case | None:
        """Claim the first free case for this reviewer, for a while; return None if all are taken.

        A free case has this status (``second``: it waits for a second review of theirs) and nobody else's claim.
        """
        now = time.time()
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE until <= ?", [now])
            states = self.states_of([case.digest for case in candidates])
            for case in candidates:
                state = states.get(case.digest, OPEN)
                free = state.hidden_from(reviewer) if status == "second" else state.status == status
                if free and self.claimed_by(case.digest) in (None, reviewer):
                    claim = [case.digest, reviewer, now + LEASE]
                    connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", claim)
                    return case
        return None

    def release(self, case: Case, reviewer: str) -> None:
        """Release this reviewer's claim on a case."""
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE digest = ? AND reviewer = ?", [case.digest, reviewer])

    def claimed_by_others(self, reviewer: str) -> int:
        """Return how many cases other reviewers have claimed."""
        sql = "SELECT count(*) FROM claims WHERE reviewer <> ? AND until > ?"
        return int(self._read(sql, [reviewer, time.time()])[0][0])

    def _written(self, seq: int) -> Entry:
        entry = self.entry(seq)
        assert entry is not None
        return entry


def _check_store(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another program or version, and one that is damaged."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path} belongs to another program; choose another place with --store")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise StoreError(f"{path} has version {version}, this one reads {VERSION}; use another fragility")
    state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if state != "ok":
        raise _describe_damage(path, state)


def _describe_failure(path: Path, error: Exception, sentence: str) -> StoreError:
    """Return the error to raise for one of SQLite's."""
    return _describe_damage(path, str(error)) if "malformed" in str(error) else StoreError(sentence)


def _describe_damage(path: Path, damage: str) -> StoreError:
    words = " ".join(damage.split()).removeprefix("*** in database main *** ")
    return StoreError(
        f"the store {path} is damaged ({words}); restore a copy of it, or save what is left with "
        f"`sqlite3 {path} .recover`"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _create(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; two processes may try at once."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise StoreError(f"{path} belongs to another program; choose another place with --store")
            statement = ""
            for line in SCHEMA.splitlines(keepends=True):  # one by one: `executescript` would commit the transaction
                statement += line
                if sqlite3.complete_statement(statement):
                    connection.execute(statement)
                    statement = ""
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_entry(action: str, groups: Sequence[str], note: str, reason: str, allowed: Sequence[str] = WRITTEN) -> None:
    if action not in allowed:
        raise DecisionRefusedError(f"an entry is one of {', '.join(allowed)}, got {action[:40]!r}")
    if action == "comment" and not note:
        raise DecisionRefusedError("a comment needs words; write them into the note")
    if action == "reacquire" and not groups:
        raise DecisionRefusedError("say which evidence to re-acquire: choose at least one group")
    if action != "reacquire" and groups:
        raise DecisionRefusedError(
            "groups are named where evidence is to be re-acquired; leave them out, or choose that"
        )
    if len(reason) > LONGEST_REASON:
        raise DecisionRefusedError(
            f"a reason's code has at most {LONGEST_REASON} characters, this one has {len(reason)}"
        )
    if len(note) > LONGEST_NOTE:
        raise DecisionRefusedError(f"a note has at most {LONGEST_NOTE} characters, this one has {len(note)}")


def _insert(
    connection: sqlite3.Connection, case: Case, reviewer: str, action: str, groups: Sequence[str] = (), note: str = "",
    reason: str = "", *, undoes: int | None = None, blind: bool = False, bulk: str | None = None,
) -> int:  # fmt: skip
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    values = (at, case.digest, case.audit, case.place, case.row_id, reviewer, action)
    cursor = connection.execute(
        f"INSERT INTO entries ({COLUMNS.removeprefix('seq, ')}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, write_groups(groups), reason, note, undoes, int(blind), bulk),
    )
    return int(cursor.lastrowid or 0)
