"""Packs on disk: a folder, or a zip archive of the same files.

An archive has one form only: files sorted by name, stored without compression, one fixed time, no comments and nothing
between the entries. So the same files give the same bytes, an archive cannot unpack to more than its size, and it
cannot hide data. An archive of any other form is refused before its documents are read.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fragility.base.canonical import DIGEST_PREFIX, canonical_bytes
from fragility.base.errors import CertificateError, DataError, reason_of
from fragility.base.files import JSON_LIMIT, parse_json, read_bounded, replacing
from fragility.base.schemas import check_format
from fragility.trust.signing import SIGNATURE_FILE

FORMAT = "fragility-pack/1"
PACK_FILE = "pack.json"
SUFFIX = ".zip"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,3}")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip archive can state
MODE = (stat.S_IFREG | 0o644) << 16
LOCAL, CENTRAL, END = 30, 46, 22  # bytes of an entry's headers and of the archive's end, without the names
LARGEST, MOST_FILES = 2**32 - 1, 2**16 - 2  # limits of a zip archive without extensions
PIECE = 2**20


def list_files(folder: Path) -> list[str]:
    """Return the names of all files below a folder, sorted; refuse links, devices, empty folders and other names."""
    names = []
    for home, folders, files in os.walk(folder):
        if not folders and not files and Path(home) != folder:
            raise CertificateError(f"{folder} contains an empty folder, which a pack never does; remove {home!r:.120}")
        for name in (*folders, *files):
            path = Path(home, name)
            relative = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or not NAME.fullmatch(relative):
                raise CertificateError(f"{folder} contains {relative!r:.120}, which is not part of a pack; remove it")
        names += [Path(home, name).relative_to(folder).as_posix() for name in files]
    return sorted(names)


def describe_files(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the digest and the size of each file."""
    return {name: {"bytes": (folder / name).stat().st_size, "digest": digest_file(folder / name)} for name in names}


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    with path.open("rb") as stream:
        return DIGEST_PREFIX + hashlib.file_digest(stream, "sha256").hexdigest()


# --- reading --------------------------------------------------------------------------------------------------


@contextmanager
def open_pack(path: Path) -> Iterator[Path]:
    """Yield a folder with the files of a pack; an archive is unpacked to a temporary folder."""
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise CertificateError(f"there is no pack {path}; make one with fragility pack")
    with tempfile.TemporaryDirectory(prefix="fragility-pack-") as scratch:
        folder, again = Path(scratch, "pack"), Path(scratch, "again.zip")
        folder.mkdir()
        _unpack(path, folder)
        write_archive(folder, again)
        if not filecmp.cmp(path, again, shallow=False):
            raise CertificateError(f"{path} is not laid out as fragility writes packs: it may contain hidden data")
        again.unlink()
        yield folder


def _unpack(path: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_entries(path, entries)
            for entry in entries:
                target = folder / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("xb") as out:
                    shutil.copyfileobj(source, out, PIECE)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, CertificateError):
            raise
        raise CertificateError(f"{path} is not an archive of a pack: {error}") from error
    except OSError as error:
        raise CertificateError(f"cannot unpack {path}: {error.strerror or error}") from error


def _check_entries(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse invalid names, duplicate names and compressed entries, before a file is unpacked."""
    names = [entry.filename for entry in entries]
    for name in names:
        if not NAME.fullmatch(name):
            raise CertificateError(f"{path} contains the file {name!r:.120}, whose name is not valid in a pack")
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise CertificateError(f"{path} contains {twice!r} twice")
    compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if compressed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise CertificateError(f"{path} is compressed, which a pack never is: it could unpack to more than its size")


def read_pack_document(folder: Path, pack: Path) -> tuple[dict[str, Any], bytes]:
    """Return a pack's document and its bytes; refuse other formats, and a document that is not in canonical form.

    folder: the unpacked files; pack: the path that the user gave, for messages.
    """
    path = pack / PACK_FILE
    try:
        data = read_bounded(folder / PACK_FILE, JSON_LIMIT)
        document = parse_json(data.decode("utf-8"))
    except FileNotFoundError as error:
        raise CertificateError(f"{pack} is not a pack: {PACK_FILE} is missing") from error
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read {path}: {reason_of(error)}") from error
    check_format(document, FORMAT, str(path), CertificateError)
    if data != canonical_bytes(document):
        raise CertificateError(f"{path} is not in canonical form; it was not written by fragility pack")
    return document, data


# --- writing --------------------------------------------------------------------------------------------------


def check_target(out: Path) -> None:
    """Refuse a path where something other than a pack exists, or where nothing can be written."""
    if not out.parent.is_dir():
        raise DataError(f"{out} lies in a folder that does not exist; make {out.parent} first")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise DataError(f"cannot write to {out}: no permission to write in {out.parent}; choose another place")
    if not os.path.lexists(out):
        return
    if out.is_symlink():
        raise DataError(f"{out} is a symbolic link, which is never overwritten; choose another name")
    is_archive = out.suffix.lower() == SUFFIX
    if out.is_dir() == is_archive:
        raise DataError(f"{out} is a {'folder' if is_archive else 'file'}; choose another name")
    try:
        with open_pack(out) as folder:
            document, _ = read_pack_document(folder, out)
            others = sorted(set(list_files(folder)) - {*document["files"], PACK_FILE, SIGNATURE_FILE})
    except (CertificateError, LookupError, TypeError) as error:
        raise DataError(f"{out} exists and is not a pack; choose another name") from error
    if others:
        raise DataError(f"{out} contains {others[0]!r}, which does not belong to the pack there; choose another name")


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """Yield a new folder; it becomes the pack ``out``, a folder or an archive, if the block succeeds."""
    check_target(out)
    staged = out.parent / f".fragility-{secrets.token_hex(8)}.pack"
    staged.mkdir()
    try:
        yield staged
        if out.suffix.lower() == SUFFIX:
            write_archive(staged, out)
        else:
            _put_in_place(staged, out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _put_in_place(staged: Path, out: Path) -> None:
    aside = out.parent / f".fragility-{secrets.token_hex(8)}.pack"
    if out.exists():
        out.rename(aside)  # a pack, as check_target has verified
    try:
        staged.rename(out)
    except OSError:
        if aside.exists():
            aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_archive(folder: Path, out: Path) -> None:
    """Write the files of a folder as an archive; the same files give the same bytes."""
    names = list_files(folder)
    size = sum((folder / name).stat().st_size + LOCAL + CENTRAL + 2 * len(name) for name in names) + END
    if size > LARGEST or len(names) > MOST_FILES:
        raise DataError(
            f"a pack of {size:,} bytes in {len(names):,} files is too large for an archive; name a folder instead"
        )
    with replacing(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system, entry.external_attr = 3, MODE  # the same on every system
            entry.file_size = (folder / name).stat().st_size
            with (folder / name).open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, PIECE)
