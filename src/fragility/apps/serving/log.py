"""The log of `fragility serve`: every acknowledged row, in ordinary audit folders that `verify` and the others read.

    log.json                               format, model, protocol and the rules of sealing
    audits/000001/                         an audit folder; each seal adds a part and replaces the manifest
    rows/000001/part-00000-<digest>.parquet    the raw rows as they were decided, with the column `id`
    events/000001/part-00000-<digest>.parquet  when each was decided, what was missing, and what came of it
    pending/000001/begun.json              model and protocol of an audit folder that has pending rows
    pending/000001/part-00007.journal      rows that no seal holds yet

Rows are acknowledged when the journal is on the disk. An audit folder is closed after so many rows, or if a server with
another model, protocol or version of a library goes on with the log; the next one begins then.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from fragility.apps.serving.entries import JournalError, LogEntry, LogJournal, LogSchemas
from fragility.apps.serving.sealing import AuditPlace, SealedAudit, empty_manifest, make_folder, number_text, read_part
from fragility.audits.folder import MANIFEST_FILE, read_manifest, read_protocol
from fragility.audits.manifest import Manifest
from fragility.base.errors import CertificateError, FragilityError, reason_of
from fragility.base.files import exclusive, locked, read_json, sweep_parts, write_text
from fragility.base.schemas import check_format
from fragility.protocol import Protocol

FORMAT = "fragility-log/1"
LOG_FILE, BEGUN_FILE = "log.json", "begun.json"
FOLDERS = ("audits", "rows", "events", "pending")
FAULT_SECONDS = 10.0  # for which a failed write is reported; a proxy that sends nothing meanwhile may then try again
JOURNAL_FILE = re.compile(r"part-(?P<place>\d{5})\.journal")
MOST_PARTS = 1000  # of an audit folder: every seal writes all their names


@dataclass(frozen=True, slots=True)
class SealingRules:
    """When pending rows are sealed, and when an audit folder is closed."""

    seal_rows: int = 1000
    seal_seconds: float = 60.0
    roll: int = 100_000  # rows of an audit folder

    def __post_init__(self) -> None:
        for name, value in (("seal_rows", self.seal_rows), ("roll", self.roll)):
            if value < 1:
                raise CertificateError(f"{name} must be at least 1, got {value}")
        if not self.seal_seconds > 0:
            raise CertificateError(f"seal_seconds must be above 0, got {self.seal_seconds:g}")


class ServingLog:
    """A log that rows are appended to; only one process can have it open.

    Use :meth:`open`, as a context manager or with :meth:`close`. Appending and sealing may run in different threads.
    """

    def __init__(self, folder: Path, protocol: Protocol, manifest: Manifest, rules: SealingRules) -> None:
        self.folder, self.protocol, self.rules = folder, protocol, rules
        self.manifest = empty_manifest(manifest)
        self._held = ExitStack()  # the locks
        self._places: dict[Path, os.stat_result] = {}  # tell whether the folders are still those that were opened
        self._is_closed = False
        self._appending, self._sealing = threading.Lock(), threading.Lock()
        self._journal: LogJournal | None = None
        self._number, self._place, self._rows = 0, 0, 0  # of the audit that is appended to, of its journal; its rows
        self._ids: dict[str, str] = {}  # of that audit: its ids, and the digests of requests whose clients chose them
        self._pending, self._since = 0, 0.0  # rows in the journal, and when the first of them came
        self._failed = float("-inf"), ""  # when a write failed last, and why
        self._closed: deque[tuple[int, int, LogJournal]] = deque()  # audits and places of journals to seal
        self._audit: SealedAudit | None = None  # that was sealed last
        # Since the log was opened: rows of an earlier process that were sealed, rows appended, and rows sealed.
        self.rows_recovered, self.rows_logged, self.rows_sealed = 0, 0, 0
        self.bytes_torn = 0  # that an earlier process left at the ends of its journals
        self.last_time: dt.datetime | None = None  # of the last event when the log was opened

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], protocol: Protocol, manifest: Manifest, rules: SealingRules | None = None
    ) -> Self:
        """Open a log, or begin one; seal what an earlier process left pending.

        manifest: of the model that will answer, such as that of any of its audits under this protocol; its rows are
        not used. If the log's last audit folder has another model, protocol, engine or version of a library, a new one
        is begun.
        """
        LogSchemas.of(protocol, manifest.model.classes)
        log = cls(Path(folder), protocol, manifest, rules or SealingRules())
        check_log_folder(log.folder)
        try:
            make_folder(log.folder)
            log._held.enter_context(_hold(log.folder))
            log._held.callback(log._let_go)
            for folder_of in (log.folder, *(log.folder / name for name in FOLDERS)):
                make_folder(folder_of)
                log._places[folder_of] = os.stat(folder_of)
            log._recover()
            log._describe()
            log._continue()
        except OSError as error:
            log._held.close()
            raise CertificateError(f"cannot write the log {folder}: {error.strerror or error}") from error
        except BaseException:
            log._held.close()
            raise
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- beginning ------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Seal all journals that an earlier process left."""
        for number in _list_numbers(self.folder / "pending"):
            place = AuditPlace(self.folder, number)
            matches = map(JOURNAL_FILE.fullmatch, os.listdir(place.pending))
            journals = sorted(int(match["place"]) for match in matches if match is not None)
            if journals:
                protocol, manifest = _read_begun(place)
                audit = SealedAudit.open(place, protocol, manifest)
                for journal in journals:
                    with _claim(place.journal(journal), self.folder):
                        self.rows_recovered += audit.seal(journal)
                self.bytes_torn += audit.bytes_torn
            _remove_pending(place)

    def _describe(self) -> None:
        """Write log.json."""
        model, rules = self.manifest.model, self.rules
        document = {
            "format": FORMAT,
            "model": {"kind": model.kind, "fingerprint": model.fingerprint},
            "protocol_digest": self.protocol.digest,
            "classes": list(model.classes),
            "seal_rows": rules.seal_rows,
            "seal_seconds": rules.seal_seconds,
            "roll": rules.roll,
        }
        write_text(self.folder / LOG_FILE, json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def _continue(self) -> None:
        """Go on with the last audit folder if it is ours and has room; else begin a new one."""
        numbers = _list_numbers(self.folder / "audits")
        self._number = numbers[-1] if numbers else 1
        place = AuditPlace(self.folder, self._number)
        if (place.audit / MANIFEST_FILE).exists():
            manifest = read_manifest(place.audit)
            has_room = manifest.rows < self.rules.roll and len(manifest.files_of("certificates")) < MOST_PARTS
            if empty_manifest(manifest) != self.manifest or not has_room:
                self._number += 1
                place = AuditPlace(self.folder, self._number)
        self._audit = SealedAudit.open(place, self.protocol, self.manifest)
        self._place, self._rows = len(self._audit.parts), len(self._audit)
        for index in range(self._place):
            self._ids |= _list_ids(read_part(place.events, index, ["id", "request"]))
        if audits := list_audits(self.folder):
            last = AuditPlace(self.folder, int(audits[-1].name))
            parts = len(read_manifest(last.audit).files_of("certificates"))
            self.last_time = pc.max(read_part(last.events, parts - 1, ["time"]).column("time")).as_py()

    # --- appending ------------------------------------------------------------------------------------------

    @property
    def rows_pending(self) -> int:
        """Rows that were acknowledged and not sealed yet."""
        return self.rows_logged - self.rows_sealed

    @property
    def is_broken(self) -> bool:
        """Whether a write has failed so that nothing can be appended until the log is opened again."""
        return self._journal is not None and self._journal.is_broken

    def find_fault(self) -> str | None:
        """Return why rows cannot be appended, or recently could not; None if no fault is known."""
        if self.is_broken:
            return "a write to the log has failed; restart the server when the disk is in order"
        try:
            self._check_place()
        except OSError as error:
            return f"cannot write to the log {self.folder}: {error.strerror or error}"
        except JournalError as error:
            return str(error)
        journal = self._journal
        if journal is not None and (fault := journal.find_fault()) is not None:
            return fault
        since, fault_then = self._failed
        return fault_then if time.monotonic() - since < FAULT_SECONDS else None

    def find_request(self, row_id: str) -> str | None:
        """Return the digest of the request that logged an id in the present audit folder; None for a new id.

        It is empty if no client chose the id, so that it equals no request's.
        """
        return self._ids.get(row_id)

    def append(self, *entries: LogEntry) -> None:
        """Append rows; on return they are on the disk, and no kill can lose them."""
        if not entries:
            return
        rows = sum(map(len, entries))
        payload = b"".join(entry.encode() for entry in entries)
        ids: dict[str, str] = {}
        for entry in entries:
            ids |= _list_ids(entry.events)
        with self._appending:
            if self._is_closed:
                raise JournalError(f"the log {self.folder} is closed")
            # An audit folder cannot hold an id twice, so what is appended here could never be sealed.
            if len(ids) < rows or not ids.keys().isdisjoint(self._ids):
                raise JournalError("a row has an id that the present audit folder of the log holds already")
            try:
                self._write(payload)
            except JournalError as error:
                self._failed = time.monotonic(), str(error)
                raise
            if not self._pending:
                self._since = time.monotonic()
            self._pending += rows
            self._rows += rows
            self.rows_logged += rows
            self._ids |= ids

    def _write(self, payload: bytes) -> None:
        try:
            if self._journal is not None:
                self._journal.check()  # says more than the folders can
            self._check_place()
            if self._journal is None:
                self._begin_journal()
                assert self._journal is not None
            self._journal.append(payload)
        except OSError as error:
            raise JournalError(f"cannot write to the log {self.folder}: {error.strerror or error}") from error

    def _check_place(self) -> None:
        for place, state in self._places.items():
            if not os.path.samestat(os.stat(place), state):
                raise JournalError(f"{place} was moved or replaced while it was open; restart the server")

    def _begin_journal(self) -> None:
        place = AuditPlace(self.folder, self._number)
        make_folder(place.pending)
        if not (place.pending / BEGUN_FILE).exists():
            begun = {"manifest": self.manifest.to_dict(), "protocol": self.protocol.to_dict()}
            write_text(place.pending / BEGUN_FILE, json.dumps(begun, ensure_ascii=False, allow_nan=False))
        self._journal = LogJournal(place.journal(self._place))

    def _rotate(self) -> None:
        """End the journal and begin the next one, in a new audit folder if this one is full.

        It stays locked until it is sealed.
        """
        assert self._journal is not None
        if os.name != "posix":
            self._journal.close()  # no open file can be removed there
        self._closed.append((self._number, self._place, self._journal))
        self._journal = None
        self._pending = 0
        self._place += 1
        if self._rows >= self.rules.roll or self._place >= MOST_PARTS:
            self._number, self._place, self._rows, self._ids = self._number + 1, 0, 0, {}

    # --- sealing --------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether enough rows are pending, or one has been for long enough, or an earlier seal has failed."""
        waited = time.monotonic() - self._since
        late = self._pending > 0 and waited >= self.rules.seal_seconds
        return late or self._pending >= self.rules.seal_rows or bool(self._closed)

    def seal(self) -> int:
        """Seal all pending rows; return how many there were. Rows may be appended meanwhile."""
        with self._sealing:
            with self._appending:
                if self._pending and not self._closed and not self.is_broken:  # what an earlier seal left comes first
                    self._rotate()
            sealed = 0
            try:
                while self._closed:
                    number, place, journal = self._closed[0]
                    self._check_place()
                    if (fault := journal.find_fault()) is not None:
                        raise CertificateError(fault)
                    audit = self._audit
                    if audit is None or audit.place.number != number:
                        audit = SealedAudit.open(AuditPlace(self.folder, number), self.protocol, self.manifest)
                    rows = audit.seal(place)
                    sealed, self.rows_sealed = sealed + rows, self.rows_sealed + rows
                    self._closed.popleft()
                    journal.close()
                    if self._audit is not None and self._audit is not audit:
                        _remove_pending(self._audit.place)
                    self._audit = audit
            except OSError as error:
                raise CertificateError(f"cannot seal the log {self.folder}: {error.strerror or error}") from error
            return sealed

    def _let_go(self) -> None:
        """Let go of the journals, as the end of the process does."""
        for _, _, journal in self._closed:
            journal.close()
        if self._journal is not None:
            self._journal.close()

    def close(self) -> None:
        """Seal what is pending and let go of the log; another process may then open it."""
        with self._appending:
            if self._is_closed:
                return
            self._is_closed = True
        with self._held:
            while self._closed or (self._pending and not self.is_broken):
                self.seal()
            if self.is_broken:  # sealed when the log is opened again, which learns the ids of all rows that are there
                return
            for number in _list_numbers(self.folder / "pending"):
                _remove_pending(AuditPlace(self.folder, number))


def check_log_folder(folder: Path) -> None:
    """Refuse a folder that is neither new nor empty nor a log."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise CertificateError(f"{folder} is a file; a log needs a folder, choose another name")
    if (folder / LOG_FILE).exists():
        read_log(folder)
        return
    others = {path.name for path in folder.iterdir() if not path.name.startswith(".fragility")} - set(FOLDERS)
    if others:
        raise CertificateError(f"{folder} exists and is not a log of `fragility serve`; choose another name")


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a log until it is closed or the process ends.

    The folder itself is locked, and not only the lock file in it, which somebody may remove.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder, patience=0.0))
            stack.enter_context(locked(folder))
        except BlockingIOError as error:
            raise _name_other_server(folder) from error
        yield


@contextmanager
def _claim(journal: Path, folder: Path) -> Iterator[None]:
    """Hold a journal that an earlier process left; refuse one that a server still writes to."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(journal))
        except BlockingIOError as error:
            raise _name_other_server(folder) from error
        yield


def _name_other_server(folder: Path) -> CertificateError:
    return CertificateError(f"another server is writing to {folder}; stop it first, or give this one a log of its own")


def _list_ids(events: pa.Table | pa.RecordBatch) -> dict[str, str]:
    """Return the ids of events, and the digests of requests, which are empty for ids that no client chose."""
    requests = (request or "" for request in events.column("request").to_pylist())
    return dict(zip(events.column("id").to_pylist(), requests, strict=True))


def _remove_pending(place: AuditPlace) -> None:
    """Remove the folder of an audit's pending rows, once it has none; files of others stay."""
    sweep_parts(place.pending)
    (place.pending / BEGUN_FILE).unlink(missing_ok=True)
    with suppress(OSError):
        place.pending.rmdir()


def _list_numbers(folder: Path) -> list[int]:
    """Return the numbers of the audit folders that have a folder here, in order."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal() and number_text(int(name)) == name)


def _read_begun(place: AuditPlace) -> tuple[Protocol, Manifest]:
    """Return protocol and manifest, without rows, of an audit folder that has pending rows."""
    if (place.audit / MANIFEST_FILE).exists():
        return read_protocol(place.audit), empty_manifest(read_manifest(place.audit))
    path = place.pending / BEGUN_FILE
    try:
        begun = read_json(path)
        return Protocol.from_dict(begun["protocol"]), Manifest.from_dict(begun["manifest"])
    except FragilityError as error:
        raise CertificateError(f"cannot read {path}: ", error) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CertificateError(f"cannot read {path}: {reason_of(error)}") from error


# --- reading --------------------------------------------------------------------------------------------------


def read_log(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of log.json; refuse a folder that is not a log of this version."""
    path = Path(folder) / LOG_FILE
    try:
        document = read_json(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CertificateError(f"{folder} is not a log of `fragility serve`: {LOG_FILE} is missing") from error
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {path}: {reason_of(error)}") from error
    check_format(document, FORMAT, str(path), CertificateError)
    return dict(document)


def list_audits(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the audit folders of a log that have sealed rows, in the order of time."""
    read_log(folder)
    folders = (AuditPlace(Path(folder), number).audit for number in _list_numbers(Path(folder) / "audits"))
    return [audit for audit in folders if (audit / MANIFEST_FILE).exists()]


def read_events(folder: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the events of all sealed rows of a log in the order of time, part by part; only one part is in memory.

    columns: some of ``id``, ``time``, ``decision``, ``confidence``, ``exposure``, ``flip_budget``, ``missing``,
    ``stale``, ``p_change``, ``review`` and ``request``; by default all. A server may append to the log meanwhile.
    """
    names = None if columns is None else list(columns)
    for audit in list_audits(folder):
        place = AuditPlace(Path(folder), int(audit.name))
        for index in range(len(read_manifest(audit).files_of("certificates"))):
            yield from read_part(place.events, index, names).combine_chunks().to_batches()
