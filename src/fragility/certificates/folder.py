"""An audit folder: how it is written so that it is always whole, and how it is read.

`manifest.json` is the commit point. Data files carry the digest of their content in their names, so a new audit's
files lie beside the old one's without touching them; one rename of the manifest then makes the new audit the one that
is there, and files that no manifest names any more are removed. A reader believes only what the manifest names. Other
files in the folder are never written, moved or removed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fragility.canonical import digest_bytes
from fragility.certificates.digests import FORMAT
from fragility.certificates.footer import read_footer
from fragility.certificates.manifest import CONTENT_NAME, SAVED_FIELDS, check_manifest, kind_of, manifest_text
from fragility.envelopes import signed_protocol
from fragility.errors import CertificateError
from fragility.files import (
    JSON_LIMIT,
    LOCK_NAME,
    PART_NAME,
    exclusive,
    force_to_disk,
    parse_json,
    read_bounded,
    sweep_parts,
    write_bytes,
)
from fragility.merkle import DIGEST_BYTES
from fragility.protocol import Protocol

MANIFEST_FILE = "manifest.json"
MOST_INFLATED = 1000  # times the file's size that a column may take uncompressed
READ_ATTEMPTS = 20  # a folder that is rewritten while it is read is read again


@dataclass(frozen=True)
class AuditFolder:
    """What a folder holds, as its manifest names it; the bytes are those whose digests the manifest states."""

    manifest: dict[str, Any]
    protocol: Protocol
    table: pa.Table
    protocol_signature: bytes | None = None


# --- writing ------------------------------------------------------------------------------------------------


def check_writable_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder an audit may be written to, links followed; refuse any other before work is spent on it.

    Allowed: a folder that does not exist yet, an empty one, and one that holds an audit (which will be replaced, other
    files in it left alone). Refused: a file, a folder with other files and no audit, a manifest that is not an audit's.
    """
    target = Path(os.path.realpath(folder))
    try:
        if target.is_dir():
            _check_is_audit(target, folder)
        elif os.path.lexists(target):
            raise CertificateError(f"{folder} is a file; an audit needs a folder, choose another name")
        _check_permission(target, folder)
    except OSError as error:
        raise CertificateError(f"cannot write to {folder}: {error.strerror or error}; choose another name") from error
    return target


def _check_is_audit(target: Path, shown: str | os.PathLike[str]) -> None:
    names = os.listdir(target)
    if MANIFEST_FILE in names:
        try:
            read_manifest(target)
        except CertificateError as error:
            raise CertificateError(f"{shown} is not an audit of this version: {error}; choose another name") from error
    elif any(not _looks_ours(name) for name in names):
        raise CertificateError(f"{shown} exists and is not an audit folder; choose another name")


def _looks_ours(name: str) -> bool:
    """True for names that only a writer of this module gives: all there is where one was killed at its first try."""
    return name == LOCK_NAME or bool(PART_NAME.fullmatch(name) or CONTENT_NAME.fullmatch(name))


def _check_permission(target: Path, shown: str | os.PathLike[str]) -> None:
    there = next(place for place in (target, *target.parents) if place.exists())
    if not there.is_dir():
        raise CertificateError(f"cannot write to {shown}: {there} is a file; choose another name")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CertificateError(f"cannot write to {shown}: no permission to write in {there}; choose another name")


def write_folder(
    folder: str | os.PathLike[str],
    table: pa.Table,
    protocol: Protocol,
    manifest: Mapping[str, Any],
    protocol_signature: bytes | None = None,
) -> Path:
    """Write an audit; after any interruption, even a kill, the folder holds the old audit or the new one, whole."""
    target = check_writable_folder(folder)
    made = False
    try:
        contents = _contents(table, protocol) | _signature_contents(protocol_signature)
        files = {name: digest_bytes(data) for name, data in contents.items()}
        made = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
        force_to_disk(target.parent)
        with exclusive(target) as alone:
            _commit(target, contents, manifest_text({**manifest, "files": files}), alone)
    except OSError as error:
        raise CertificateError(f"cannot write the certificates to {folder}: {error.strerror or error}") from error
    finally:
        if made:
            with suppress(OSError):
                target.rmdir()  # succeeds only while nothing is in it
    return Path(folder)


def _contents(table: pa.Table, protocol: Protocol) -> dict[str, bytes]:
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, compression="zstd")
    rows, declared = sink.getvalue().to_pybytes(), protocol.to_json().encode()
    return {f"certificates-{_short(rows)}.parquet": rows, f"protocol-{_short(declared)}.json": declared}


def _signature_contents(envelope: bytes | None) -> dict[str, bytes]:
    return {} if envelope is None else {f"protocol-signature-{_short(envelope)}.json": envelope}


def _short(data: bytes) -> str:
    return digest_bytes(data).removeprefix("sha256:")[:16]


def _commit(target: Path, contents: Mapping[str, bytes], manifest: str, alone: bool) -> None:
    sweep_parts(target)
    try:
        for name, data in contents.items():
            _place(target / name, data)
        write_bytes(target / MANIFEST_FILE, manifest.encode())
    finally:
        if alone:
            _remove_unnamed(target)


def _place(path: Path, data: bytes) -> None:
    """Write a data file unless it is there; a file of its name that is not ours is left alone."""
    if os.path.lexists(path):
        if path.is_file() and path.read_bytes() == data:
            return
        if path.name not in (_named(path.parent) or ()):
            raise CertificateError(f"{path} exists and is not a file of an audit; move it away")
    write_bytes(path, data)


def _named(target: Path) -> set[str] | None:
    """Return the files that a folder's manifest names; None where there is a manifest that cannot be read."""
    if not os.path.lexists(target / MANIFEST_FILE):
        return set()
    try:
        files = read_manifest(target).get("files")
    except CertificateError:
        return None
    return set(files) if isinstance(files, dict) else None


def _remove_unnamed(target: Path) -> None:
    """Remove data files of earlier audits: those the manifest does not name, whose names prove that they are ours."""
    named = _named(target)
    if named is None:
        return
    with suppress(OSError):
        for name in os.listdir(target):
            if name not in named and _is_own_data(target / name):
                (target / name).unlink()


def _is_own_data(path: Path) -> bool:
    match = CONTENT_NAME.fullmatch(path.name)
    return bool(match and path.is_file() and not path.is_symlink() and _short(path.read_bytes()) == match[2])


# --- reading ------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder as it stands; refuse what is not one, or another version."""
    return _parsed_manifest(folder, manifest_bytes(folder))


def read_folder(folder: Path) -> AuditFolder:
    """Return the audit of a folder; refuse files that are not the ones its manifest names."""
    for _ in range(READ_ATTEMPTS):
        data = manifest_bytes(folder)
        manifest = _checked_manifest(folder, data)
        try:
            contents = {name: (folder / name).read_bytes() for name in manifest["files"]}
            break
        except FileNotFoundError as error:
            if manifest_bytes(folder) == data:  # not rewritten meanwhile: the file is missing
                raise CertificateError(f"{folder} is incomplete: {Path(error.filename).name} is missing") from error
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror or error}") from error
    else:
        raise CertificateError(f"{folder} is being rewritten again and again; read it when that has ended")
    for name, found in contents.items():
        if digest_bytes(found) != manifest["files"][name]:
            raise CertificateError(f"{folder / name} was changed after it was written: the manifest names other bytes")
    protocol, signature = _protocol_in(folder, contents), _signature_in(folder, contents)
    if signature is not None:
        check_signed_protocol(signature, "the protocol's signature", protocol.digest)
    return AuditFolder(manifest, protocol, _table_in(folder, contents, protocol), signature)


def read_protocol(path: str | os.PathLike[str]) -> Protocol:
    """Return the protocol of an audit folder, or of a protocol file."""
    source = Path(path)
    if not source.is_dir():
        return Protocol.load(source)
    manifest = _checked_manifest(source, manifest_bytes(source))
    return Protocol.load(source / next(name for name in manifest["files"] if kind_of(name) == "protocol"))


def manifest_bytes(folder: Path) -> bytes:
    try:
        return read_bounded(folder / MANIFEST_FILE, JSON_LIMIT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CertificateError(f"{folder} is not an audit folder: {MANIFEST_FILE} is missing") from error
    except OSError as error:
        raise CertificateError(f"cannot read {folder / MANIFEST_FILE}: {error.strerror or error}") from error
    except ValueError as error:
        raise CertificateError(f"cannot read {folder / MANIFEST_FILE}: {error}") from error


def _parsed_manifest(folder: Path, data: bytes) -> dict[str, Any]:
    path = folder / MANIFEST_FILE
    try:
        document = parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise CertificateError(f"cannot read {path}: {error}") from error
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise CertificateError(f"{path} has format {version!r}, this version reads {FORMAT!r}; use another fragility")
    return dict(document)


def _checked_manifest(folder: Path, data: bytes) -> dict[str, Any]:
    manifest = _parsed_manifest(folder, data)
    check_manifest(manifest, saved=True)
    if data != manifest_text(manifest).encode():
        raise CertificateError(f"{folder / MANIFEST_FILE} was changed after it was written: its digest is not its own")
    return manifest


def _protocol_in(folder: Path, contents: Mapping[str, bytes]) -> Protocol:
    name, data = next((name, data) for name, data in contents.items() if kind_of(name) == "protocol")
    try:
        protocol = Protocol.from_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CertificateError(f"{folder / name} is not UTF-8 text: {error}") from error
    if data != protocol.to_json().encode():
        raise CertificateError(f"{folder / name} is not written as the format says")
    return protocol


def _signature_in(folder: Path, contents: Mapping[str, bytes]) -> bytes | None:
    """Return the envelope that signed the protocol, if the manifest names one."""
    return next((data for name, data in contents.items() if kind_of(name) == "protocol-signature"), None)


def read_protocol_signature(path: str | os.PathLike[str], protocol_digest: str) -> bytes:
    """Return the bytes of an envelope that signs this protocol; refuse any other."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read the signature {path}: {error.strerror or error}") from error
    check_signed_protocol(data, path, protocol_digest)
    return data


def check_signed_protocol(envelope: bytes, name: object, protocol_digest: str) -> None:
    """Refuse an envelope that does not speak of this protocol."""
    signed = signed_protocol(envelope, name)
    if signed != protocol_digest:
        raise CertificateError(f"{name} signs the protocol {signed:.80}, and this one is {protocol_digest}")


def _table_in(folder: Path, contents: Mapping[str, bytes], protocol: Protocol) -> pa.Table:
    tables = []
    for name, data in contents.items():
        if kind_of(name) == "certificates":
            try:
                tables.append(read_claims(data, protocol))
            except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
                raise CertificateError(f"cannot read {folder / name}: {told(error)}") from error
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise CertificateError(f"the certificate files of {folder} do not have the same columns") from error


def told(error: BaseException) -> str:
    """Return the first line of what a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def read_claims(data: bytes, protocol: Protocol) -> pa.Table:
    """Return the table of a certificates file; ValueError where it declares more than a file of its size can hold.

    Compressed data can stand for any amount of memory. But a row's digest cannot be compressed below its 32 bytes, so
    the size of the file bounds the rows, and the protocol bounds the values of a row.
    """
    declared = read_footer(data)
    most_rows = len(data) // DIGEST_BYTES
    width = max(protocol.depth + 1, len(protocol.groups), len(protocol.severities))
    if declared.rows > most_rows:
        raise ValueError(f"it declares {declared.rows} rows, and a file of its size holds {most_rows} at most")
    for column in declared.columns:
        if column.values > most_rows * width or column.inflated > len(data) * MOST_INFLATED:
            raise ValueError(f"a column declares {column.values} values, {column.inflated} bytes, which it cannot hold")
    table = pq.read_table(pa.BufferReader(data))
    table.validate(full=True)  # also that text is text
    return table


def without_files(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved manifest's fields that do not speak of files."""
    return {name: value for name, value in manifest.items() if name not in SAVED_FIELDS[-2:]}
