"""Sealing: pending rows become a part of an ordinary audit folder, and stay one whatever is killed when.

A seal takes a journal that nothing is appended to any more, and in this order

    1. writes the part of raw rows and the part of events, under names made of their place and content;
    2. writes the part of certificates, and replaces the manifest of the audit folder: the commit point;
    3. removes the journal.

A journal whose part the manifest names already is only removed; any other is sealed from the beginning, to the same
bytes. So a seal may be interrupted at any point and repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fragility.apps.serving.entries import ID, LogEntry, LogSchemas, decode_entries, measure_journal, read_journal
from fragility.audits.folder import (
    MANIFEST_FILE,
    commit,
    place_file,
    read_manifest,
    read_table,
    remove_unnamed,
    writing_into,
)
from fragility.audits.manifest import AuditedRows, Manifest, place_text
from fragility.audits.parts import encode_part, part_name, read_columns, short_digest
from fragility.base.canonical import combine_digests, digest_bytes, hashed_leaves, root_of
from fragility.base.errors import CertificateError, first_line
from fragility.base.files import LOG_FILE, LOG_PART_NAME, force_to_disk, write_bytes
from fragility.blocks.claims import digest_from_text, digest_text
from fragility.evidence.rows import input_row_digests, read_rows
from fragility.protocol import Protocol


@dataclass(frozen=True)
class AuditPlace:
    """Where an audit folder of a log lies, and the rows and events that belong to it."""

    log: Path
    number: int

    def _at(self, kind: str) -> Path:
        return self.log / kind / number_text(self.number)

    @property
    def audit(self) -> Path:
        return self._at("audits")

    @property
    def rows(self) -> Path:
        return self._at("rows")

    @property
    def events(self) -> Path:
        return self._at("events")

    @property
    def pending(self) -> Path:
        return self._at("pending")

    def journal(self, place: int) -> Path:
        """Return the path of the journal that becomes the part of a place."""
        return self.pending / f"part-{place_text(place)}.journal"


def number_text(number: int) -> str:
    """Return the name of an audit folder of a log, e.g. ``000012``."""
    return f"{number:06d}"


def empty_manifest(manifest: Manifest) -> Manifest:
    """Return a manifest without rows: model, protocol, engine and libraries."""
    nothing = digest_text(root_of(b""))
    return replace(
        manifest.without_blocks(),
        input=AuditedRows(nothing, 0),
        engine=replace(manifest.engine, evaluations=0, blackbox_rows=0),
        rows=0,
        root_digest=nothing,
        claims="full",
        protocol_signature=None,
        files=None,
    )


@dataclass
class SealedAudit:
    """The audit folder that is being filled: its parts, and the digests of their rows."""

    place: AuditPlace
    protocol: Protocol
    manifest: Manifest  # without rows
    parts: list[tuple[str, str]] = field(default_factory=list)  # names and digests of the parts of certificates
    claims: bytearray = field(default_factory=bytearray)  # digests of the rows' claims, and of their input
    inputs: bytearray = field(default_factory=bytearray)
    claim_leaves: bytearray = field(default_factory=bytearray)  # the same, hashed as leaves of their trees
    input_leaves: bytearray = field(default_factory=bytearray)
    evaluations: int = 0
    blackbox_rows: int = 0
    bytes_torn: int = 0  # at the ends of the journals that were sealed

    def __len__(self) -> int:
        return len(self.claims) // 32

    @classmethod
    def open(cls, place: AuditPlace, protocol: Protocol, manifest: Manifest) -> SealedAudit:
        """Open an audit folder on the disk; ``manifest`` (without rows) is for a folder that does not exist yet."""
        audit = cls(place, protocol, manifest)
        if not (place.audit / MANIFEST_FILE).exists():
            return audit
        manifest_there = read_manifest(place.audit)
        if empty_manifest(manifest_there) != manifest:
            raise CertificateError(f"{place.audit} is the audit of another model or protocol; move it away")
        audit.evaluations, audit.blackbox_rows = manifest_there.engine.evaluations, manifest_there.engine.blackbox_rows
        for index, name in enumerate(manifest_there.files_of("certificates")):
            try:
                table = read_table(place.audit, manifest_there, name, protocol, ["digest"])
            except FileNotFoundError as error:
                raise CertificateError(f"{place.audit} is incomplete: {name} is missing; restore it") from error
            audit._add(name, (manifest_there.files or {})[name], table, read_part(place.rows, index))
        return audit

    def _add(self, name: str, digest: str, certificates: pa.Table, rows: pa.Table) -> None:
        """Take in a part of certificates and the digests of its rows."""
        claims = b"".join(map(digest_from_text, certificates.column("digest").to_pylist()))
        names = [field.name for field in self.protocol.fields]
        frame = rows.select(names).to_pandas()
        inputs = b"".join(input_row_digests(read_rows(frame, names, len(names), rows.column(ID).to_pylist())))
        self.parts.append((name, digest))
        self.claims += claims
        self.claim_leaves += hashed_leaves([claims])
        self.inputs += inputs
        self.input_leaves += hashed_leaves([inputs])

    def seal(self, place: int) -> int:
        """Seal the journal of a place; return how many rows it held. Nothing happens if that was done before."""
        journal = self.place.journal(place)
        if place < len(self.parts):
            journal.unlink()
            return 0
        if place > len(self.parts):
            lacking = self.place.journal(len(self.parts))
            raise CertificateError(f"{lacking} is missing, whose rows come before those of {journal.name}; restore it")
        schemas = LogSchemas.of(self.protocol, self.manifest.model.classes)
        payloads = list(read_journal(journal))
        self.bytes_torn += max(0, journal.stat().st_size - measure_journal(payloads))
        entries = [entry for payload in payloads for entry in decode_entries(payload, schemas)]
        if entries:
            self._commit(place, entries, schemas)
        journal.unlink()
        return sum(map(len, entries))

    def _commit(self, place: int, entries: list[LogEntry], schemas: LogSchemas) -> None:
        rows = pa.Table.from_batches([entry.rows for entry in entries], schemas.rows)
        write_part(self.place.rows, place, rows)
        write_part(self.place.events, place, pa.Table.from_batches([entry.events for entry in entries], schemas.events))
        table = pa.Table.from_batches([entry.certificates for entry in entries], schemas.certificates)
        data = encode_part(table)
        name = part_name(place, data)
        before = len(self.claims)
        counts = self.evaluations, self.blackbox_rows
        self._add(name, digest_bytes(data), table, rows)
        self.evaluations += sum(entry.evaluations for entry in entries)
        self.blackbox_rows += sum(entry.blackbox_rows for entry in entries)

        def placed() -> Iterator[tuple[str, str]]:
            place_file(target / name, data)
            yield from self.parts

        try:
            with writing_into(self.place.audit) as (target, alone):
                commit(target, placed(), {}, self.protocol, self._full_manifest())
                if alone:
                    remove_unnamed(target)
        except BaseException:  # as if it had not been tried
            self.parts.pop()
            self.evaluations, self.blackbox_rows = counts
            for digests_of in (self.claims, self.claim_leaves, self.inputs, self.input_leaves):
                del digests_of[before:]
            raise

    def _full_manifest(self) -> Manifest:
        rows, empty = len(self), self.manifest
        return replace(
            empty,
            input=AuditedRows(combine_digests([bytes(self.inputs)], bytes(self.input_leaves)), rows),
            engine=replace(
                empty.engine,
                evaluations=self.evaluations,
                blackbox_rows=self.blackbox_rows,
            ),
            rows=rows,
            root_digest=combine_digests([bytes(self.claims)], bytes(self.claim_leaves)),
        )


# --- parts of rows and events ---------------------------------------------------------------------------------


def write_part(folder: Path, place: int, table: pa.Table) -> None:
    """Write the part of a place; what an interrupted seal left in that place is removed."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, compression="zstd", row_group_size=max(len(table), 1))
    data = bytes(sink.getvalue())
    name = f"part-{place_text(place)}-{short_digest(data)}.parquet"
    make_folder(folder)
    for other in find_parts(folder, place):
        if other.name != name:
            other.unlink()
    write_bytes(folder / name, data, own=LOG_FILE, private=True)


def find_parts(folder: Path, place: int) -> list[Path]:
    """Return the files of the part at a place: one, or none."""
    return list(folder.glob(f"part-{place_text(place)}-*.parquet"))


def read_part(folder: Path, place: int, columns: list[str] | None = None) -> pa.Table:
    """Return the part of a place, or some of its columns; refuse one that was changed after it was written."""
    for path in find_parts(folder, place):
        match = LOG_PART_NAME.fullmatch(path.name)
        if match is None:
            continue
        data = path.read_bytes()
        if short_digest(data) != match["digest"]:
            raise CertificateError(f"{path} was changed after it was written: its name holds another digest")
        try:
            table = read_columns(data, columns)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CertificateError(f"cannot read {path}: {first_line(error)}") from error
        return table if columns is None else table.select(columns)
    raise CertificateError(f"{folder} is incomplete: the part {place_text(place)} is missing; restore it")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and wait until their names are on the disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    force_to_disk(folder.parent)
