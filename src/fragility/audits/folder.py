"""An audit folder: how it is written so that it is always whole, and how it is read.

`manifest.json` is the commit point. Data files carry the digest of their content in their names, so a new audit's
files lie beside the old one's without touching them; one rename of the manifest then makes the new audit the one that
is there, and files that no manifest names any more are removed. A reader believes only what the manifest names. Other
files in the folder are never written, moved or removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from fragility.audits.manifest import Manifest, digest_in_name, kind_of, named_files, parse_manifest
from fragility.audits.parts import beside_name, decode_part, encode_block, encode_part, part_name
from fragility.base.canonical import DIGEST_PREFIX, digest_bytes
from fragility.base.envelopes import signed_protocol
from fragility.base.errors import CertificateError
from fragility.base.files import (
    AUDIT_FILE,
    JSON_LIMIT,
    LOCK_NAME,
    PART_NAME,
    digest_file,
    exclusive,
    force_to_disk,
    read_bounded,
    read_digested,
    sweep_parts,
    write_bytes,
)
from fragility.blocks.all import place_blocks
from fragility.blocks.block import AuditBlock
from fragility.protocol import Protocol

MANIFEST_FILE = "manifest.json"
WORK_FOLDER = ".audit"  # what an audit of files keeps there until it is whole
LoadedFolder: TypeAlias = tuple[pa.Table, Protocol, Manifest, bytes | None]  # and the protocol's signature
READ_ATTEMPTS = 20  # a folder that is rewritten while it is read is read again


# --- writing ------------------------------------------------------------------------------------------------


def check_writable_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder an audit may be written to, links followed; refuse any other before work is spent on it.

    Allowed: a folder that does not exist yet, an empty one, and one that holds an audit (which will be replaced, other
    files in it left alone). Refused: a file, a folder with other files and no audit, a manifest that is not an audit's.
    """
    target = Path(os.path.realpath(folder))
    try:
        names = os.listdir(target) if target.is_dir() else []
        if os.path.lexists(target) and not target.is_dir():
            raise CertificateError(f"{folder} is a file; an audit needs a folder, choose another name")
        if MANIFEST_FILE in names:
            try:
                check_is_audit(target)
            except CertificateError as error:
                raise CertificateError(
                    f"{folder} is not an audit of this version: {error}; choose another name"
                ) from error
        elif any(not _looks_ours(name) for name in names):
            raise CertificateError(f"{folder} exists and is not an audit folder; choose another name")
        there = next(place for place in (target, *target.parents) if place.exists())
        if not there.is_dir():
            raise CertificateError(f"cannot write to {folder}: {there} is a file; choose another name")
        if not os.access(there, os.W_OK | os.X_OK):
            raise CertificateError(f"cannot write to {folder}: no permission to write in {there}; choose another name")
    except OSError as error:
        raise CertificateError(f"cannot write to {folder}: {error.strerror or error}; choose another name") from error
    return target


def _looks_ours(name: str) -> bool:
    """True for names that only a writer of this module gives: all there is where one was killed at its first try."""
    return name in (LOCK_NAME, WORK_FOLDER) or bool(PART_NAME.fullmatch(name) or digest_in_name(name))


def write_folder(
    folder: str | os.PathLike[str],
    parts: Iterable[pa.Table],
    blocks: Mapping[str, Sequence[pa.Table]],
    protocol: Protocol,
    manifest: Manifest,
    protocol_signature: bytes | None = None,
) -> Path:
    """Write an audit; after any interruption, even a kill, the folder holds the old audit or the new one, whole.

    blocks: as in ``commit``, the blocks of every row part by part.
    """
    with writing_into(folder) as (target, alone):
        try:
            commit(target, place_parts(target, parts), blocks, protocol, manifest, protocol_signature)
        finally:
            if alone:
                remove_unnamed(target)
    return Path(folder)


@contextmanager
def writing_into(folder: str | os.PathLike[str], *, patience: float | None = None) -> Iterator[tuple[Path, bool]]:
    """Be the only writer of an audit folder, which is made if need be, and removed again if nothing came of it.

    Yields the folder, links followed, and whether there are locks there, so that no other writer can be at work.
    """
    target = check_writable_folder(folder)
    made = False
    try:
        made = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
        force_to_disk(target.parent)
        with exclusive(target, patience=patience) as alone:
            yield target, alone
    except OSError as error:
        raise CertificateError(f"cannot write the certificates to {folder}: {error.strerror or error}") from error
    finally:
        if made:
            with suppress(OSError):
                target.rmdir()  # succeeds only while nothing is in it


def place_parts(target: Path, parts: Iterable[pa.Table]) -> Iterator[tuple[str, str]]:
    """Write parts of certificates one after the other into a folder; return their names and digests."""
    for place, part in enumerate(parts):
        data = encode_part(part)
        name = part_name(place, data)
        place_file(target / name, data)
        yield name, digest_bytes(data)


def commit(
    target: Path,
    placed: Iterable[tuple[str, str]],
    blocks: Mapping[str, Sequence[pa.Table]],
    protocol: Protocol,
    manifest: Manifest,
    protocol_signature: bytes | None = None,
) -> None:
    """Make an audit the one that is there; ``placed`` puts files of it in place, one by one, and names them.

    blocks: the tables of blocks that are not yet in place: one for each part, or one of chosen rows.
    """
    sweep_parts(target)
    files, documents = dict(placed), dict[str, bytes]()
    for name, declared in manifest.blocks.items():
        for place, table in enumerate(blocks.get(name, ())):
            data = encode_block(table)
            documents[beside_name(name, data) if declared.is_partial else part_name(place, data, name)] = data
    data = protocol.to_json().encode()
    documents[beside_name("protocol", data)] = data
    if protocol_signature is not None:
        documents[beside_name("protocol-signature", protocol_signature)] = protocol_signature
    for name, data in documents.items():
        place_file(target / name, data)
        files[name] = digest_bytes(data)
    kinds = ("certificates", *manifest.blocks, "protocol", "protocol-signature")
    files = {name: digest for kind in kinds for name, digest in files.items() if kind_of(name) == kind}
    write_bytes(target / MANIFEST_FILE, replace(manifest, files=files).to_bytes(), own=AUDIT_FILE)


def place_file(path: Path, data: bytes) -> None:
    """Write a data file unless it is there; a file of its name that is not ours is left alone."""
    if os.path.lexists(path):
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return
        if path.name not in (_list_named(path.parent) or ()):
            raise CertificateError(f"{path} exists and is not a file of an audit; move it away")
    write_bytes(path, data, own=AUDIT_FILE)


def _list_named(target: Path) -> set[str] | None:
    """Return the files that a folder's manifest names; None where there is a manifest that cannot be read."""
    if not os.path.lexists(target / MANIFEST_FILE):
        return set()
    try:
        return named_files(manifest_bytes(target), target / MANIFEST_FILE)
    except CertificateError:
        return None


def remove_unnamed(target: Path) -> None:
    """Remove data files of earlier audits: those the manifest does not name, whose names prove that they are ours."""
    named = _list_named(target)
    if named is None:
        return
    with suppress(OSError):
        for name in os.listdir(target):
            path, digits = target / name, digest_in_name(name)
            if name in named or digits is None or path.is_symlink() or not path.is_file():
                continue
            if digest_file(path).startswith(digits):
                path.unlink()


# --- reading ------------------------------------------------------------------------------------------------


def check_is_audit(folder: Path) -> None:
    """Refuse a folder without a manifest of this version; whether the audit is whole is not looked at."""
    parse_manifest(manifest_bytes(folder), folder / MANIFEST_FILE)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder; refuse one that was changed."""
    return Manifest.from_bytes(manifest_bytes(folder), folder / MANIFEST_FILE)


def read_folder(folder: Path) -> LoadedFolder:
    """Return what ``Certificates`` are made of; refuse files that are not the ones the manifest names."""

    def read(manifest: Manifest) -> LoadedFolder:
        protocol, signature = _read_documents(folder, manifest)
        tables = [read_table(folder, manifest, name, protocol) for name in manifest.files_of("certificates")]
        joined = BlockReader(folder, manifest, protocol)
        tables = [joined.add(table, place) for place, table in enumerate(tables)]
        try:
            table = pa.concat_tables(tables)
        except pa.ArrowException as error:
            raise CertificateError(f"the certificate files of {folder} do not have the same columns") from error
        return table, protocol, replace(manifest, files=None), signature

    return _read_steady(folder, read)


def read_table(
    folder: Path,
    manifest: Manifest,
    name: str,
    protocol: Protocol,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the table in a data file, or some of its columns; refuse another file than the manifest names."""
    return decode_part(_read_content(folder, manifest, name), str(folder / name), protocol, columns)


class BlockReader:
    """The blocks of an audit folder, joined to the parts of the certificates as these are read."""

    def __init__(self, folder: Path, manifest: Manifest, protocol: Protocol) -> None:
        self._folder, self._manifest, self._protocol = folder, manifest, protocol
        model = manifest.model
        self._blocks = place_blocks(manifest.blocks, protocol, model.fingerprint, model.classes)
        self._of_chosen_rows: dict[str, pa.Table] = {}

    @property
    def columns(self) -> set[str]:
        """The columns that do not lie in the parts."""
        return {name for own in self._blocks.values() for name in own.names}

    def add(self, table: pa.Table, place: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the part of a place with the blocks of its rows; where columns are given, with those they name."""
        for name, own in self._blocks.items():
            if columns is None or not set(own.names).isdisjoint(columns):
                block = self.of_chosen_rows(name) if own.declared.is_partial else self._of_part(own, table, place)
                table = own.join(table, block)
        return table

    def of_row(self, own_id: Hashable, place: int) -> dict[str, Any]:
        """Return the blocks, by column, of one row of the part of a place."""
        row = pa.table({"id": [own_id]})
        for name, own in self._blocks.items():
            row = own.join(row, self.of_chosen_rows(name) if own.declared.is_partial else self.of_place(name, place))
        return dict(row.to_pylist()[0])

    def of_chosen_rows(self, name: str) -> pa.Table:
        """Return the one table of a block that has chosen rows."""
        if name not in self._of_chosen_rows:
            self._of_chosen_rows[name] = self._read(name, self._manifest.files_of(name)[0])
        return self._of_chosen_rows[name]

    def of_place(self, name: str, place: int) -> pa.Table:
        """Return the block of every row of the part of a place."""
        return self._read(name, self._manifest.files_of(name)[place])

    def _of_part(self, own: AuditBlock, table: pa.Table, place: int) -> pa.Table:
        block = self.of_place(own.name, place)
        if not block.column("id").equals(table.column("id")):
            file = self._folder / self._manifest.files_of(own.name)[place]
            raise CertificateError(f"{file} is of other rows than the part of its place")
        return block

    def _read(self, name: str, file: str) -> pa.Table:
        block = read_table(self._folder, self._manifest, file, self._protocol)
        self._blocks[name].check_table(block)
        return block


def read_declarations(folder: Path) -> tuple[Manifest, Protocol, bytes | None]:
    """Return manifest, protocol and the protocol's signature of a folder, all as their digests say."""
    return _read_steady(folder, lambda manifest: (manifest, *_read_documents(folder, manifest)))


def _read_documents(folder: Path, manifest: Manifest) -> tuple[Protocol, bytes | None]:
    """Return the protocol of an audit, and the envelope that signed it if the manifest names one."""
    (name,) = manifest.files_of("protocol")
    data = _read_content(folder, manifest, name)
    try:
        protocol = Protocol.from_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CertificateError(f"{folder / name} is not UTF-8 text: {error}") from error
    if data != protocol.to_json().encode():
        raise CertificateError(f"{folder / name} is not written as the format says")
    envelope = None
    for name in manifest.files_of("protocol-signature"):
        envelope = _read_content(folder, manifest, name)
        check_signed_protocol(envelope, "the protocol's signature", protocol.digest)
    return protocol, envelope


Found = TypeVar("Found")


def _read_steady(folder: Path, read: Callable[[Manifest], Found]) -> Found:
    """Return what ``read`` makes of a manifest; once more if the folder was rewritten while it was read."""
    for _ in range(READ_ATTEMPTS):
        data = manifest_bytes(folder)
        try:
            return read(Manifest.from_bytes(data, folder / MANIFEST_FILE))
        except FileNotFoundError as error:
            if manifest_bytes(folder) == data:  # not rewritten meanwhile: the file is missing
                raise CertificateError(f"{folder} is incomplete: {Path(error.filename).name} is missing") from error
    raise CertificateError(f"{folder} is being rewritten again and again; read it when that has ended")


def _read_content(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a data file; refuse others than the manifest names. FileNotFoundError where it is gone."""
    try:
        data = read_digested(folder / name, (manifest.files or {})[name].removeprefix(DIGEST_PREFIX))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or error
        raise CertificateError(f"cannot read {folder / name}: {told}") from error
    if data is None:
        raise CertificateError(f"{folder / name} was changed after it was written: the manifest names other bytes")
    return data


def read_protocol(path: str | os.PathLike[str]) -> Protocol:
    """Return the protocol of an audit folder, or of a protocol file."""
    source = Path(path)
    if not source.is_dir():
        return Protocol.load(source)
    return Protocol.load(source / read_manifest(source).files_of("protocol")[0])


def manifest_bytes(folder: Path) -> bytes:
    path = folder / MANIFEST_FILE
    return read_file(path, path, f"{folder} is not an audit folder: {MANIFEST_FILE} is missing")


def read_file(path: str | os.PathLike[str], name: object, missing: str | None = None) -> bytes:
    """Return the bytes of a small file; ``name`` and ``missing``, the message where there is none, are for errors."""
    try:
        return read_bounded(path, JSON_LIMIT)
    except (OSError, ValueError) as error:
        if missing is not None and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise CertificateError(missing) from error
        raise CertificateError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def read_protocol_signature(path: str | os.PathLike[str], protocol_digest: str) -> bytes:
    """Return the bytes of an envelope that signs this protocol; refuse any other."""
    data = read_file(path, f"the signature {path}")
    check_signed_protocol(data, path, protocol_digest)
    return data


def check_signed_protocol(envelope: bytes, name: object, protocol_digest: str) -> None:
    """Refuse an envelope that does not speak of this protocol."""
    signed = signed_protocol(envelope, name)
    if signed != protocol_digest:
        raise CertificateError(f"{name} signs the protocol {signed:.80}, and this one is {protocol_digest}")
