"""What a log keeps of rows that were decided, and the journal that holds them until a seal moves them into the audit.

An entry is three Arrow record batches: certificates, the rows themselves, and an event for each. It is encoded without
their schemas, which follow from protocol and classes. The journal is an append-only file:

    8 bytes    magic
    16 bytes   salt, random for each file
    then, for each append, one record:
        8 bytes    magic
        8 bytes    length of the payload, little-endian
        32 bytes   SHA-256 of salt, the record's offset (8 bytes, little-endian) and payload
        payload

An append returns when its record is on the disk. A kill can therefore tear the last record only: reading ends there,
and the rows of that record were never acknowledged. A broken record with a whole one behind it cannot come from a kill
and is refused. The salt keeps a payload from containing what looks like a record.

The file is locked for as long as a server may append to it or has not sealed it. Each append checks that the file is
still the one of its name, and as long as it should be; if it is not, nothing more is acknowledged.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from fragility.audits import Certificates
from fragility.base.canonical import is_missing
from fragility.base.errors import CertificateError, DataError, ProtocolError, first_line
from fragility.base.files import PRIVATE, force_to_disk, lock_open
from fragility.blocks.claims import list_of, schema_of
from fragility.evidence.fields import Field, date_text
from fragility.models import ClassLabel
from fragility.protocol import Protocol

ID = "id"  # the column of ids in the tables of a log
COUNTS = struct.Struct("<QQQQQ")  # evaluations, rows asked as a black box, and the lengths of three batches
# How the values of a field are stored. A baseline may put 37.5 in the place of a whole number, so these are doubles.
STORED = {
    "integer": pa.float64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "date": pa.string(),
    "duration": pa.duration("ns"),
    "empty": pa.string(),
}


@dataclass(frozen=True)
class LogSchemas:
    """The columns of a log's tables."""

    certificates: pa.Schema
    rows: pa.Schema
    events: pa.Schema

    @classmethod
    def of(cls, protocol: Protocol, classes: Sequence[ClassLabel]) -> LogSchemas:
        """Return the columns that follow from a protocol and the model's classes; refuse fields of no one type."""
        for field in protocol.fields:
            if field.type not in STORED:
                raise ProtocolError(
                    f"field {field.name!r} held values of no one type in the training data, which a log cannot store; "
                    "fit the protocol on training rows that hold one type, or serve without a log"
                )
            if field.name == ID:
                raise ProtocolError(f"a field is named {ID!r}, which is the column of ids in a log; rename it")
        label, names = pa.array(list(classes)).type, list_of(pa.string())
        return cls(
            schema_of(protocol, classes, pa.string()),
            pa.schema([(ID, pa.string()), *((field.name, STORED[field.type]) for field in protocol.fields)]),
            pa.schema(
                [
                    (ID, pa.string()),
                    ("time", pa.timestamp("us", tz="UTC")),
                    ("decision", label),
                    ("confidence", pa.float64()),
                    ("exposure", pa.float64()),
                    ("flip_budget", pa.int32()),
                    ("missing", names),
                    ("stale", names),
                    ("p_change", pa.float64()),
                    ("review", pa.bool_()),
                    ("request", pa.string()),
                ]
            ),
        )


@dataclass(frozen=True, eq=False)
class LogEntry:
    """Rows that were decided together, as a log keeps them."""

    certificates: pa.RecordBatch
    rows: pa.RecordBatch
    events: pa.RecordBatch
    evaluations: int
    blackbox_rows: int  # for which the model was asked instead of the engine

    @classmethod
    def of(
        cls,
        certificates: Certificates,
        rows: Any,
        *,
        time: dt.datetime,
        missing: Sequence[Iterable[str]] | None = None,
        stale: Sequence[Iterable[str]] | None = None,
        p_change: Sequence[float | None] | None = None,
        review: Sequence[bool | None] | None = None,
        requests: Sequence[str | None] | None = None,
    ) -> LogEntry:
        """Return the entry of some rows; an argument that is left out is None for all of them.

        certificates: their ids are text. rows: the raw rows as they were decided, in the same order: a table of
        pandas, or a list of values by field.
        time: when they were decided, with a time zone. requests: digests of what was asked, for rows whose id the
        client has chosen.
        """
        schemas = LogSchemas.of(certificates.protocol, certificates.manifest.model.classes)
        table, n = certificates.table.select(schemas.certificates.names), len(certificates)
        if table.schema.field(ID).type != pa.string():
            raise CertificateError("ids of a log are text; certify the rows with ids of text")
        if table.schema != schemas.certificates:
            raise CertificateError("a log holds full certificates of its own protocol and model; these are others")
        stored = [_store_column(rows[field.name], field) for field in certificates.protocol.fields]
        if any(len(column) != n for column in stored):
            raise DataError(f"one row per certificate was expected: {n} certificates, {len(stored[0])} rows")
        nothing = [None] * n
        events = {
            ID: table.column(ID).combine_chunks(),
            "time": pa.array([time] * n, schemas.events.field("time").type),
            "decision": table.column("predicted").combine_chunks(),
            **{name: table.column(name).combine_chunks() for name in ("confidence", "exposure", "flip_budget")},
            "missing": [sorted(names) for names in missing] if missing is not None else [()] * n,
            "stale": [sorted(names) for names in stale] if stale is not None else [()] * n,
            "p_change": nothing if p_change is None else list(p_change),
            "review": nothing if review is None else list(review),
            "request": nothing if requests is None else list(requests),
        }
        return cls(
            table.combine_chunks().to_batches()[0],
            pa.record_batch([events[ID], *stored], schema=schemas.rows),
            pa.record_batch(
                [value if isinstance(value, pa.Array) else pa.array(value, schemas.events.field(name).type)
                 for name, value in events.items()], schema=schemas.events,
            ),
            certificates.manifest.engine.evaluations,
            certificates.manifest.engine.blackbox_rows,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.events)

    def encode(self) -> bytes:
        """Return the entry as bytes."""
        batches = [batch.serialize().to_pybytes() for batch in (self.certificates, self.rows, self.events)]
        return COUNTS.pack(self.evaluations, self.blackbox_rows, *map(len, batches)) + b"".join(batches)


def decode_entries(payload: bytes, schemas: LogSchemas) -> Iterator[LogEntry]:
    """Yield the entries that lie one after the other in the payload of a record."""
    view, offset = memoryview(payload), 0
    try:
        while offset < len(view):
            evaluations, blackbox_rows, *lengths = COUNTS.unpack_from(view, offset)
            offset, batches = offset + COUNTS.size, []
            for schema, length in zip((schemas.certificates, schemas.rows, schemas.events), lengths, strict=True):
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(view[offset : offset + length]), schema))
                offset += length
            certificates, rows, events = batches
            yield LogEntry(certificates, rows, events, evaluations, blackbox_rows)
    except (struct.error, OSError, ValueError, pa.ArrowException) as error:
        raise CertificateError(f"a journal holds rows of another form: {first_line(error)}") from error


def _store_column(column: Any, field: Field) -> pa.Array:
    """Return the values of a field as a log stores them."""
    kind, values = STORED[field.type], column
    if isinstance(column, pd.Series) and isinstance(column.dtype, pd.CategoricalDtype):
        values = column.astype(object)
    if field.type == "date":
        values = [None if is_missing(v) else v if isinstance(v, str) else date_text(v) for v in column]
    try:
        if kind == pa.float64() and isinstance(values, pd.Series):
            stored = pa.Array.from_pandas(values).cast(kind)  # refuses whole numbers that are no doubles
        else:
            stored = pa.array(values, kind, from_pandas=True)
        # Text that pandas holds in several pieces comes in as many.
        return stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"a log cannot store the values of field {field.name!r}: {first_line(error)}") from error


# --- the journal ----------------------------------------------------------------------------------------------

MAGIC = b"\x89fragjr\n"
SALT_BYTES = 16
START = len(MAGIC) + SALT_BYTES
HEAD = struct.Struct("<8sQ32s")


class JournalError(CertificateError):
    """Rows cannot be written to the journal of a log."""


class LogJournal:
    """The journal that a log appends to; it is created here, and locked until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._salt = secrets.token_bytes(SALT_BYTES)
        # Appending: after a truncation the file is shorter than it should be, and has no hole that looks like rows.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._handle: int | None = os.open(path, flags, PRIVATE)
        self._size = 0  # bytes that are whole and on the disk
        self.is_broken = False  # whether nothing can be appended any more
        try:
            lock_open(self._handle)
            self._write(self._handle, MAGIC + self._salt)
            force_to_disk(path.parent)
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, payload: bytes) -> None:
        """Write a record, and return when it is on the disk; after an error it is not acknowledged."""
        self.check()
        handle = self._handle
        assert handle is not None
        digest = _hash_record(self._salt, self._size, payload)
        try:
            self._write(handle, HEAD.pack(MAGIC, len(payload), digest) + payload)
        except OSError as error:
            # Whether the record is whole on the disk is not known. Its rows may be sent again, so it must not stay.
            try:
                os.ftruncate(handle, self._size)
                os.fsync(handle)
            except OSError:
                self.is_broken = True
            raise JournalError(f"cannot write to {self.path}: {error.strerror or error}") from error
        self.check()

    def check(self) -> None:
        """Refuse a file that was replaced, or has lost rows."""
        if self.is_broken or self._handle is None:
            raise JournalError(f"an earlier write to {self.path} failed; restart the server when the disk is in order")
        fault = self.find_fault()
        if fault is None and os.fstat(self._handle).st_size != self._size:
            fault = f"{self.path} was changed while rows were pending in it; restart the server"
        if fault is not None:
            self.is_broken = True
            raise JournalError(fault)

    def find_fault(self) -> str | None:
        """Return why its rows are missing or misplaced; None if they are in place."""
        if self._handle is None:
            return None
        status = os.fstat(self._handle)
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except OSError:
            there = None
        if status.st_nlink == 0:
            return f"{self.path} was removed while rows were pending in it; restart the server"
        if there is None or not os.path.samestat(status, there):
            return f"{self.path} was moved or replaced while rows were pending in it; restart the server"
        if status.st_size < self._size:
            return f"{self.path} was truncated while rows were pending in it; restart the server"
        return None

    def _write(self, handle: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        getattr(os, "fdatasync", os.fsync)(handle)
        self._size += len(data)

    def close(self) -> None:
        """Let go of the file and its lock."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def read_journal(path: Path) -> Iterator[bytes]:
    """Yield the payloads of a journal in order, up to a record that a kill has torn."""
    data = path.read_bytes()
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise CertificateError(f"{path} is not a journal of `fragility serve`; move it away")
    salt, offset = data[len(MAGIC) : START], START
    while offset < len(data):
        payload = _read_record(data, salt, offset)
        if payload is None:
            _refuse_damage(data, salt, offset, path)
            return
        yield payload
        offset += HEAD.size + len(payload)


def measure_journal(payloads: Sequence[bytes]) -> int:
    """Return how many bytes a journal with these records has; what follows in its file was torn."""
    return START + sum(HEAD.size + len(payload) for payload in payloads)


def _read_record(data: bytes, salt: bytes, offset: int) -> bytes | None:
    """Return the payload of the record at an offset; None if it is not whole."""
    if len(data) - offset < HEAD.size:
        return None
    magic, length, digest = HEAD.unpack_from(data, offset)
    start = offset + HEAD.size
    if magic != MAGIC or length > len(data) - start:
        return None
    payload = data[start : start + length]
    return payload if _hash_record(salt, offset, payload) == digest else None


def _refuse_damage(data: bytes, salt: bytes, broken: int, path: Path) -> None:
    """Refuse a journal in which a whole record lies behind a broken one."""
    place = data.find(MAGIC, broken + 1)
    while place >= 0:
        if _read_record(data, salt, place) is not None:
            raise CertificateError(
                f"{path} is damaged at byte {broken}, before rows that were acknowledged later; restore it from a "
                "copy, or move it away to go on without its rows"
            )
        place = data.find(MAGIC, place + 1)


def _hash_record(salt: bytes, offset: int, payload: bytes) -> bytes:
    return hashlib.sha256(salt + offset.to_bytes(8, "little") + payload).digest()
