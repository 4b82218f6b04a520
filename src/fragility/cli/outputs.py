"""What a command will write: checked before the work begins, and looked at again when it is interrupted.

A command names its outputs here first. Whether something was written is then read from the disk, so that the sentence
after Ctrl-C is true whatever the command was doing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fragility.errors import DataError
from fragility.files import precious_kind

# path -> how it looked when the command began
_planned: dict[Path, object] = {}


def forget_outputs() -> None:
    """Begin a command: nothing is planned yet."""
    _planned.clear()


def plan_folder(folder: Path, *, consent: bool = False, option: str | None = None) -> None:
    """Find out before the work, not after it, that an audit cannot be written to `folder`.

    consent: an audit whose certificates are named by decisions of a review may be replaced; ``option`` gives consent.
    """
    _planned[folder] = _look(folder)  # first: whoever interrupts the slow import below is told the truth too
    from fragility.certificates import check_writable_folder

    check_writable_folder(folder)
    if not consent and (entries := _review_entries(folder)):
        remedy = f"choose another folder{f', or give {option} to replace it all the same' if option else ''}"
        raise DataError(f"{folder} is under review: {entries} speak of the certificates that it holds now; {remedy}")


def _review_entries(folder: Path) -> str | None:
    """Return how many entries the review of an audit has, in words; None if there is no review."""
    from fragility.review.store import STORE_FILE, Store, StoreError

    path = folder / STORE_FILE
    if not path.exists():
        return None
    try:
        store = Store.open_to_read(path)
    except StoreError:  # whatever it is, it is not ours to lose
        return f"the decisions of {STORE_FILE}"
    count = store.last()
    store.close()
    return f"{count} {'entry' if count == 1 else 'entries'} of {STORE_FILE}" if count else None


def plan_files(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, str | Path | None], *, own: str | None = None
) -> None:
    """Check the files a command is to write (option -> file) against the disk, each other and what it reads.

    own: the kind of precious file that the command writes and may replace (see ``fragility.files``).
    """
    taken = {Path(path).resolve(): role for role, path in inputs.items() if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        _check_file(path, option, own)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise DataError(f"{option} and {other} both name {path}; give {option} a file of its own")
        _planned[path] = _look(path)


def interruption(how: str = "interrupted") -> str:
    """Return what to say after Ctrl-C or SIGTERM."""
    if not _planned:
        return how
    kept = [sentence for path in _planned if (sentence := _finished_parts(path))]
    if kept:
        return f"{how}; {kept[0]}"
    changed = [str(path) for path, before in _planned.items() if _look(path) != before]
    if not changed:
        return f"{how}; nothing was written"
    return f"{how}; written by then, perhaps not to the end: {', '.join(changed)}"


def _finished_parts(folder: Path) -> str | None:
    """Say what an interrupted audit keeps in its folder."""
    finished = len(list((folder / ".audit").glob("part-*.json")))
    return f"{finished} finished parts are kept in {folder}; go on with --resume" if finished else None


def _check_file(path: Path, option: str, own: str | None) -> None:
    if path.is_dir():
        raise DataError(f"{option} {path} is a folder; name a file")
    kind = precious_kind(path)
    if kind not in (None, own):
        raise DataError(f"{option} {path} is {kind}, which is never overwritten; choose another name")
    if not path.parent.is_dir():
        raise DataError(f"{option} {path} lies in a folder that does not exist; make {path.parent} first")
    _check_writable(path.parent, path, option)


def _check_writable(folder: Path, target: Path, option: str) -> None:
    if not folder.is_dir():
        raise DataError(f"{option} {target} cannot be made: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(
            f"{option} {target} cannot be written: no permission to write to {folder}; choose another place"
        )


def _look(path: Path) -> object:
    """Return something that differs once a file, or anything in a folder, was written."""
    if not path.exists():
        return None
    return frozenset(_signature(each) for each in (path, *(path.rglob("*") if path.is_dir() else ())))


def _signature(path: Path) -> tuple[str, int, int, int]:
    found = path.lstat()
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size
