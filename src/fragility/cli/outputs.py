"""The outputs of a command: checked before the work begins, and inspected if it is interrupted.

A command registers its outputs here first. After Ctrl-C the disk is inspected, so that the message says correctly what
was written, whatever the command was doing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fragility.base.errors import DataError
from fragility.base.files import precious_kind, replacing, write_text
from fragility.cli.options import PICTURES, CsvOptions, LoadingOptions
from fragility.cli.terminal import note
from fragility.pages.results import checked_suffix

# path -> its state when the command began
_planned: dict[Path, object] = {}


def forget_outputs() -> None:
    """Forget the outputs of an earlier command."""
    _planned.clear()


def plan_folder(folder: Path, *, consent: bool = False, option: str | None = None) -> None:
    """Check, before the work, that an audit can be written to `folder`.

    consent: whether an audit that decisions of a review refer to may be replaced; ``option``: the flag for consent.
    """
    _planned[folder] = _look(folder)  # first, because the slow import below may be interrupted too
    from fragility.audits.folder import check_writable_folder

    check_writable_folder(folder)
    from fragility.apps.review.store import STORE_FILE, Store, StoreError

    if consent or not (folder / STORE_FILE).exists():
        return
    try:
        store = Store.open_to_read(folder / STORE_FILE)
    except StoreError:  # a damaged store may still contain decisions
        entries = f"the decisions of {STORE_FILE} refer"
    else:
        count = store.last()
        store.close()
        if not count:
            return
        entries = f"1 entry of {STORE_FILE} refers" if count == 1 else f"{count} entries of {STORE_FILE} refer"
    remedy = f"choose another folder{f', or give {option} to replace it all the same' if option else ''}"
    raise DataError(f"{folder} is under review: {entries} to the certificates in it; {remedy}")


def plan_files(
    outputs: Mapping[str, Path | Sequence[Path] | None],
    inputs: Mapping[str, str | Path | None],
    *,
    own: str | None = None,
) -> None:
    """Check the output files of a command (option -> file or files) against the disk, each other and its inputs.

    own: the kind of precious file that the command writes and may replace (see ``fragility.base.files``).
    """
    roles = {Path(path).resolve(): role for role, path in inputs.items() if path is not None}
    files = [
        (option, path)
        for option, paths in outputs.items()
        for path in ([paths] if isinstance(paths, Path) else paths or ())
    ]
    for option, path in files:
        if path.is_dir():
            raise DataError(f"{option} {path} is a folder; name a file")
        kind = precious_kind(path)
        if kind not in (None, own):
            raise DataError(f"{option} {path} is {kind}, which is never overwritten; choose another name")
        if not path.parent.is_dir():
            raise DataError(f"{option} {path} lies in a folder that does not exist; make {path.parent} first")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise DataError(
                f"{option} {path} cannot be written: no permission to write to {path.parent}; choose another place"
            )
        if path.resolve() in roles:
            other = roles[path.resolve()]
            raise DataError(f"{option} and {other} both name {path}; give {option} another file")
        roles[path.resolve()] = option
        _planned[path] = _look(path)


def plan_results(
    paths: Sequence[Path] | None, suffixes: Sequence[str], inputs: Mapping[str, str | Path | None]
) -> None:
    """Check the files of ``--out`` like `plan_files`; their formats must be supported and different."""
    plan_files({"--out": paths}, inputs)
    formats = [checked_suffix(path, suffixes) for path in paths or ()]
    if len(set(formats)) < len(formats):
        kinds = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise DataError(f"--out names two files of the same kind; name each kind once: {kinds}")


def plan_pack(out: Path) -> None:
    """Check, before the work, that a pack can be written to `out`, a folder or an archive."""
    _planned[out] = _look(out)
    from fragility.packing.archive import check_target

    check_target(out)


def save_result(
    result: Any, paths: Sequence[Path] | None, text: str | None = None, plot: Callable[[], Any] | None = None
) -> None:
    """Save a result to each file of ``--out``, as text, as a picture or in another format of the result."""
    for path in paths or ():
        suffix = path.suffix.lower()
        if suffix in PICTURES:
            draw((plot or result.plot)(), path)
            continue
        if suffix == ".txt" and text is not None:
            write_text(path, text.rstrip("\n") + "\n")
        else:
            result.save(path)
        note(f"written to {path}")


def list_sources(
    model: str,
    data: object,
    target: str | None,
    id_column: str | None,
    csv: CsvOptions,
    loading: LoadingOptions,
    rows: object = None,
) -> list[str]:
    """Return the options with which `fragility verify` reads the same model and rows as a command."""
    from fragility.tables.formats import kind_of_file  # loads pandas

    options = {
        "--model": model, "--data": data, "--target": target, "--id": id_column, "--rows": rows,
        "--classes": loading.classes, "--returns": loading.returns,
    }  # fmt: skip
    if kind_of_file(str(data)) in ("csv", None):
        options |= {"--separator": csv.separator, "--encoding": csv.encoding, "--decimal": csv.decimal}
    words = [str(word) for option, value in options.items() if value is not None for word in (option, value)]
    return [*words, *["--trust"] * loading.trust]


def draw(display: Any, path: Path) -> None:
    """Write a Display to a file of `--out`."""
    try:
        with replacing(path) as temporary:
            display.figure_.savefig(temporary, dpi=150)
    except ValueError as error:  # a kind of picture that matplotlib does not know
        raise DataError(f"--out {path} cannot be drawn: {error}") from error
    note(f"drawn to {path}")


def describe_interruption(how: str = "interrupted") -> str:
    """Return the message after Ctrl-C or SIGTERM."""
    if not _planned:
        return how
    for folder in _planned:
        if finished := len(list((folder / ".audit").glob("part-*.json"))):
            return f"{how}; {finished} finished parts are kept in {folder}; continue with --resume"
    changed = [str(path) for path, before in _planned.items() if _look(path) != before]
    if not changed:
        return f"{how}; nothing was written"
    return f"{how}; written, perhaps incompletely: {', '.join(changed)}"


def _look(path: Path) -> object:
    """Return a value that changes if a file, or anything in a folder, is written."""
    if not path.exists():
        return None
    stats = [(str(file), file.lstat()) for file in (path, *(path.rglob("*") if path.is_dir() else ()))]
    return frozenset((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
