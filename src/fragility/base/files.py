"""Files that appear whole or not at all, and never in the place of something that is not ours.

A file is written under a hidden name beside its target, forced to the disk, and renamed. The hidden file is locked
while its writer lives; what a killed writer left is recognised by its name and its free lock, and removed by the next
write. No output replaces a link, a key, a model, a signature, a review's decisions, or a file of an audit or a log,
unless its writer says that it writes such files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: no advisory locks; two writers must not share a folder there
    fcntl = None  # type: ignore[assignment]

PART_NAME = re.compile(r"\.fragility-[0-9a-f]{16}\.part(\.\w*)?")
PRIVATE = 0o600  # of files that hold people's values
LOCK_NAME = ".fragility.lock"
LOCK_PATIENCE = 60.0  # seconds to wait for another writer of the same folder
LOCK_POLL = 0.02
NESTING = 60  # our own documents nest four deep
LARGE_FILE = 64 * 2**20
JSON_LIMIT = 64 * 2**20  # a protocol of ten thousand columns takes about two MiB
WHOLE_DIGITS = 300  # a whole number of so many digits is still a double
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

# What an output may not replace, unless its writer makes such files.
MODEL, AUDIT_FILE, SIGNATURE, LOG_FILE = "a model", "a file of an audit", "a signature", "a file of a log"
MODEL_SUFFIXES = (".skops", ".joblib", ".pkl", ".pickle", ".ubj", ".cbm", ".tl", ".safetensors", ".onnx", ".pt")
MODEL_START = re.compile(rb'tree\n|\s*\{\s*"(learner|features_info|ctr_data)"\s*:')  # LightGBM, XGBoost, CatBoost
# <what>-<first 16 digits of the file's SHA-256>: a name has one content for ever, so writing spoils nothing being read.
# A part of the certificates has its place in the input before that, counted from 00000; so have the blocks of a part.
CONTENT_NAME = re.compile(
    r"(?P<kind>(?!part-)[a-z_]+)-(?P<place>\d{5,})-(?P<part>[0-9a-f]{16})\.parquet"
    r"|(?P<table>[a-z_]+)-(?P<beside>[0-9a-f]{16})\.parquet"
    r"|(?P<document>protocol|protocol-signature)-(?P<digest>[0-9a-f]{16})\.json"
)
LOG_PART_NAME = re.compile(r"part-(?P<place>\d{5,})-(?P<digest>[0-9a-f]{16})\.parquet")  # rows or events
SIGNATURE_NAME = re.compile(r".*\.dsse\.json")
MANIFEST_START = re.compile(rb'\s*\{.*"format"\s*:\s*"fragility-certificates/', re.DOTALL)
SNIFFED_BYTES = 64 * 1024


def precious_kind(path: Path) -> str | None:
    """Return what lies at a path if it is something that an output may not replace, in words; None otherwise."""
    if path.is_symlink():
        return "a symbolic link"
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        return "not a regular file"
    with path.open("rb") as stream:
        start = stream.read(SNIFFED_BYTES)
    if start.startswith(b"-----BEGIN"):
        return "a key"
    if start.startswith(b"SQLite format 3"):
        return "a database"
    if CONTENT_NAME.fullmatch(path.name) or MANIFEST_START.match(start):
        return AUDIT_FILE
    if SIGNATURE_NAME.fullmatch(path.name):
        return SIGNATURE
    if LOG_PART_NAME.fullmatch(path.name):
        return LOG_FILE
    if path.suffix.lower() in MODEL_SUFFIXES or MODEL_START.match(start):
        return MODEL
    return None


@contextmanager
def replacing(path: str | os.PathLike[str], *, own: str | None = None) -> Iterator[Path]:
    """Yield a temporary path in the target's folder; it takes the target's place if the block succeeds.

    An existing file's permissions are kept. OSError where something precious lies there; ``own`` is the kind that the
    caller writes, such as MODEL or AUDIT_FILE, and may replace.
    """
    kind = precious_kind(Path(path))
    if kind not in (None, own):
        raise FileExistsError(errno.EEXIST, f"it is {kind}, which is never overwritten; choose another name", str(path))
    target = Path(os.path.realpath(path))
    sweep_parts(target.parent)
    handle, part = _new_part(target)
    try:
        yield part
        force_to_disk(part)
        os.replace(part, target)
        force_to_disk(target.parent)
    finally:
        part.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], data: bytes, *, own: str | None = None, private: bool = False) -> None:
    """Write a file, whole or not at all; ``own`` as in ``replacing``. private: only its owner may read it."""
    with replacing(path, own=own) as part:
        if private:
            part.chmod(PRIVATE)
        part.write_bytes(data)


def _new_part(target: Path) -> tuple[int | None, Path]:
    """Create a hidden file for what will become `target`; return the handle that holds its lock, and its path."""
    while True:
        part = target.parent / f".fragility-{secrets.token_hex(8)}.part{target.suffix}"
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            os.close(handle)  # Windows renames no open file
            return None, part
        # Between these two lines another process may take the new file for a leftover and remove it.
        _lock(handle, wait=True)
        if _is_still_at(handle, part):
            break
        os.close(handle)
    if target.is_file():
        with suppress(OSError):
            os.chmod(part, stat.S_IMODE(target.stat().st_mode))
    return handle, part


def sweep_parts(folder: Path) -> None:
    """Remove what killed writers left in a folder: hidden files of our naming whose lock is free."""
    if fcntl is None:
        return
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(folder)
    for part in (folder / name for name in names if PART_NAME.fullmatch(name)):
        with suppress(OSError):
            handle = os.open(part, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                regular = stat.S_ISREG(os.fstat(handle).st_mode)
                if regular and _lock(handle, wait=False) is True and _is_still_at(handle, part):
                    part.unlink()
            finally:
                os.close(handle)


# --- one writer at a time -----------------------------------------------------------------------------------


@contextmanager
def exclusive(folder: Path, *, patience: float | None = None) -> Iterator[bool]:
    """Be the only writer of a folder; the lock ends with the process, however it ends. False: no locks there.

    patience: seconds to wait for another writer; LOCK_PATIENCE by default.
    """
    if fcntl is None:
        yield False
        return
    path = folder / LOCK_NAME
    deadline = time.monotonic() + (LOCK_PATIENCE if patience is None else patience)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        # The last owner removes the file while it holds the lock, so a lock on a removed file is worth nothing.
        taken = _lock(handle, wait=False)
        if taken is not False and _is_still_at(handle, path):
            break
        os.close(handle)
        if time.monotonic() > deadline:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing there; wait for it to end")
        time.sleep(LOCK_POLL)
    try:
        yield taken is True
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder that is there; BlockingIOError if another process holds it.

    Unlike a lock file, it cannot be removed without what it protects. Where there are no locks, nothing is held.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        if _lock(handle, wait=False) is False:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing there; wait for it to end")
        yield
    finally:
        os.close(handle)


def lock_open(handle: int) -> None:
    """Hold the lock of an open file until it is closed; BlockingIOError if another process holds it."""
    if fcntl is not None and _lock(handle, wait=False) is False:
        raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing there; wait for it to end")


def _lock(handle: int, *, wait: bool) -> bool | None:
    """Take the lock of an open file; False if another process holds it, None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_still_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def force_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # only POSIX can open a folder to force its entries out
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- files of unknown origin ------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file of unknown origin for reading; ValueError for a pipe or device, which could block or never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a regular file")
    return os.fdopen(handle, "rb")


def digest_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a regular file in hexadecimal, read piece by piece."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_digested(path: str | os.PathLike[str], digest: str) -> bytes | None:
    """Return the bytes of a regular file whose SHA-256 is known, in hexadecimal; None if the file has another.

    A large file is digested before it is read: it may be nothing but holes.
    """
    with open_regular(path) as stream:
        if stream.seek(0, os.SEEK_END) > LARGE_FILE:
            stream.seek(0)
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                return None
        stream.seek(0)
        data = stream.read()
    return data if hashlib.sha256(data).hexdigest() == digest else None


def stored_size(path: str | os.PathLike[str]) -> int:
    """Return how many bytes a file takes on the disk, or its size if that is less (holes take no space)."""
    status = os.stat(path)
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, 512 * blocks)


def read_bounded(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the bytes of a regular file; ValueError for one that is larger than any of its kind."""
    with open_regular(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit // 2**20} MiB, which no such file is")
    return data


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the JSON document of a file; OSError, or ValueError in words."""
    return parse_json(read_bounded(path, JSON_LIMIT).decode("utf-8"))


def parse_json(text: str) -> Any:
    """Return a JSON document; ValueError, in words, for what two readers could understand differently.

    Refused beside what is not JSON: a name twice in one object, NaN and infinities, numbers beyond the range of a
    double, lone surrogates, absurd nesting and absurd size.
    """
    if len(text) > JSON_LIMIT:
        raise ValueError(f"it is larger than {JSON_LIMIT // 2**20} MiB, which no such file is")
    try:
        document = json.loads(
            text,
            object_pairs_hook=_refuse_repeated,
            parse_constant=_refuse_constant,
            parse_float=_read_float,
            parse_int=_read_whole,
        )
    except RecursionError as error:
        raise ValueError("it is nested absurdly deep") from error
    if _measure_depth(document) > NESTING:
        raise ValueError(f"it is nested more than {NESTING} deep")
    if SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("it holds a lone surrogate, which no text file can hold") from error
    return document


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {twice!r:.80} occurs twice in one object")
    return document


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _read_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.80} is beyond the range of a double")
    return value


def _read_whole(digits: str) -> int:
    if len(digits) > WHOLE_DIGITS:
        raise ValueError(f"{digits[:20]}... is beyond the range of a double")
    return int(digits)


def _measure_depth(document: Any) -> int:
    """Return how deep a document nests, without recursion: it is of unknown origin."""
    deepest, level = 0, [document]
    while level:
        deepest += 1
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    return deepest
