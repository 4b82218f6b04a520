"""The journal of an audit of files: its finished parts, before they are the audit of a folder.

It is a hidden folder in the audit's own folder, so that an interruption costs one part at most:

    run.json                             what is audited, by what: the key that a resumed run must have
    certificates-00007-<digest>.parquet  a finished part
    modes-00007-<digest>.parquet         its modes block, where every row has one; so with its intervals block
    digests-00007.bin                    the digests of its rows: of claims, of input, of the blocks that every row has
    part-00007.json                      written last: the part is finished

Each file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from fragility.auditing.parts import MadePart, PartRecord
from fragility.audits.folder import WORK_FOLDER
from fragility.audits.manifest import place_text
from fragility.base.canonical import DIGEST_BYTES, digest_bytes, packed_root
from fragility.base.errors import Advice, CertificateError, DataError
from fragility.base.files import AUDIT_FILE, force_to_disk, parse_json, sweep_parts, write_bytes
from fragility.blocks.claims import digest_text
from fragility.engines.trace import HandedOver

RUN_FILE = "run.json"
RESUME = Advice("resume=True", "--resume")

RunKey: TypeAlias = Mapping[str, tuple[Any, str]]  # name: value, and words for another one


class Journal:
    """The finished parts of an audit, in a folder that only this process writes to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target / WORK_FOLDER

    def begin(self, key: RunKey, *, resume: bool) -> None:
        """Continue the run that was interrupted, or begin one; refuse what would lose or mix finished parts."""
        finished = self.finished_count()
        if finished and not resume:
            raise CertificateError(
                f"{self.target} holds an interrupted audit with {finished} finished parts; continue it with ",
                RESUME,
                f", or remove {self.folder} to begin anew",
            )
        if not finished:
            self.discard()
        begun = self._read_document(RUN_FILE)
        values = {name: value for name, (value, _) in key.items()}
        for name, value in json.loads(json.dumps(values)).items() if finished else ():
            if begun.get(name) != value:
                raise DataError(
                    f"{self.target} holds an audit that was begun with {key[name][1]}; resume it with what it was "
                    f"begun with, or remove {self.folder} to begin anew"
                )
        self.folder.mkdir(exist_ok=True)
        sweep_parts(self.folder)
        write_bytes(self.folder / RUN_FILE, json.dumps(values, indent=1, sort_keys=True).encode())

    def finished_count(self) -> int:
        """Return how many parts are finished."""
        with suppress(OSError):
            return sum(name.startswith("part-") for name in os.listdir(self.folder))
        return 0

    def discard(self) -> None:
        """Remove the journal and all finished parts in it."""
        if self.folder.is_symlink():
            raise CertificateError(f"{self.folder} is a link, not a folder of an audit; move it away")
        shutil.rmtree(self.folder, ignore_errors=True)

    def record(self, place: int) -> PartRecord | None:
        """Return what is known of a finished part; None if it is not finished, or not as it was written."""
        document = self._read_document(f"part-{place_text(place)}.json")
        try:
            record = PartRecord(**{**document, "handed_over": HandedOver(*document["handed_over"])})
            digests = self._digests_path(place).read_bytes()
            whole = (
                len(digests) == record.digests_each * DIGEST_BYTES * record.rows
                and digest_bytes(digests) == record.digests_digest
                and all(digest_bytes(self._read_file(name)) == digest for name, digest in record.files.items())
            )
        except (KeyError, TypeError, OSError):
            return None
        return record if whole else None

    def write(self, part: MadePart, files: tuple[bytes, ...]) -> None:
        """Write a finished part; files: the bytes of its files."""
        for name, data in zip(part.record.files, files, strict=True):
            write_bytes(self.folder / name, data, own=AUDIT_FILE)
        write_bytes(self._digests_path(part.place), part.digests)
        write_bytes(self.folder / f"part-{place_text(part.place)}.json", json.dumps(asdict(part.record)).encode())

    def read_part(self, record: PartRecord) -> bytes:
        """Return the bytes of a finished part's certificates."""
        return self._read_file(record.name)

    def _read_file(self, name: str) -> bytes:
        """Return the bytes of a finished file: here, or in its final place if the run was killed at its very end."""
        here = self.folder / name
        return (here if here.exists() else self.target / name).read_bytes()

    def roots(self, records: list[PartRecord]) -> list[str]:
        """Return the root digests over all parts: of claims, of input, and of each block that every row has."""
        found = []
        for which in range(records[0].digests_each):
            together = bytearray()
            for place, record in enumerate(records):
                size = DIGEST_BYTES * record.rows
                together += self._digests_path(place).read_bytes()[which * size : (which + 1) * size]
            found.append(digest_text(packed_root(together)))
        return found

    def move_parts(self, records: list[PartRecord]) -> Iterator[tuple[str, str]]:
        """Move the finished parts to their places, one by one; yield their names and digests."""
        # All certificates first, then one block of all parts after the other: the order of the manifest.
        for files_of_one_kind in zip(*(record.files.items() for record in records), strict=True):
            for name, digest in files_of_one_kind:
                here = self.folder / name
                if here.exists():
                    os.replace(here, self.target / name)
                yield name, digest
        force_to_disk(self.target)

    def _read_document(self, name: str) -> dict[str, Any]:
        """Return a document of the journal, empty if there is none that can be read."""
        with suppress(OSError, ValueError):
            document = parse_json((self.folder / name).read_text(encoding="utf-8"))
            return document if isinstance(document, dict) else {}
        return {}

    def _digests_path(self, place: int) -> Path:
        return self.folder / f"digests-{place_text(place)}.bin"
