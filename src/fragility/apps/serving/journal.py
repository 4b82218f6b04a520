"""The journal of a log: acknowledged rows in an append-only file, until a seal has moved them into the audit.

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

The file is locked for as long as a server may append to it or has not sealed it. Each append looks whether the file is
still the one of its name, and as long as it should be; if it is not, nothing more is acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from fragility.base.errors import CertificateError
from fragility.base.files import PRIVATE, force_to_disk, lock_open

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
        """Refuse a file that is not the one of its name any more, or has lost rows."""
        if self.is_broken or self._handle is None:
            raise JournalError(f"an earlier write to {self.path} failed; restart the server when the disk is in order")
        fault = self.find_fault()
        if fault is None and os.fstat(self._handle).st_size != self._size:
            fault = f"{self.path} was changed while rows were pending in it; restart the server"
        if fault is not None:
            self.is_broken = True
            raise JournalError(fault)

    def find_fault(self) -> str | None:
        """Return why its rows are not where they should be; None if they are."""
        if self._handle is None:
            return None
        here = os.fstat(self._handle)
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except OSError:
            there = None
        if here.st_nlink == 0:
            return f"{self.path} was removed while rows were pending in it; restart the server"
        if there is None or not os.path.samestat(here, there):
            return f"{self.path} was moved or replaced while rows were pending in it; restart the server"
        if here.st_size < self._size:
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
