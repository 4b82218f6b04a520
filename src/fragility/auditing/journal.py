"""The journal of an audit of files: what is finished, so that whoever interrupts it loses one part at most.

It lies in a hidden folder of the audit's own folder until the manifest is written:

    run.json                             what is audited, by what: the key that a resumed run must have
    certificates-00007-<digest>.parquet  a finished part
    digests-00007.bin                    the digests of its rows: of claims, of input, of the lattice block
    part-00007.json                      written last: the part is finished

Each file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fragility.auditing.batch import AuditedBatch
from fragility.canonical import digest_bytes
from fragility.certificates import WORK_FOLDER, encoded_part, part_name
from fragility.certificates.manifest import place_text
from fragility.certificates.parts import read_columns
from fragility.engines.trace import HandedOver
from fragility.errors import Advice, CertificateError, DataError
from fragility.files import AUDIT_FILE, force_to_disk, parse_json, sweep_parts, write_bytes
from fragility.merkle import DIGEST_BYTES, packed_root

RUN_FILE = "run.json"
RESUME = Advice("resume=True", "--resume")
WORDS = {
    "model": "another model",
    "protocol": "another protocol",
    "engine": "another engine",
    "probabilities": "another way to the model's probabilities",
    "versions": "other versions of the libraries",
    "part_rows": "parts of another size",
    "claims": "another extent of claims",
    "lattice": "another lattice block, or other rates of failure",
    "other_baselines": "another choice about other baselines",
    "columns": "other id, label or row options",
    "input": "other input files",
}


@dataclass(frozen=True)
class PartRecord:
    """A finished part."""

    name: str  # of its file
    digest: str  # of its file
    rows: int
    evaluations: int
    handed_over: HandedOver
    input_digest: str  # of its rows, ids included
    digests_each: int  # per row: 2, or 3 with the lattice block
    digests_digest: str  # of the file of its digests


@dataclass(frozen=True, eq=False)
class EncodedPart:
    """A part as the bytes that are written, wherever it was made."""

    data: bytes  # of its file
    digests: bytes  # 32 bytes a row: of its claims
    input_digests: bytes  # the same: of its id and raw fields
    lattice_digests: bytes  # the same: of its lattice block; empty without one
    input_digest: str  # over all of its input digests
    evaluations: int
    handed_over: HandedOver

    @classmethod
    def of(cls, batch: AuditedBatch) -> EncodedPart:
        """Return a batch of certificates in bytes."""
        return cls(
            data=encoded_part(batch.table),
            digests=batch.digests,
            input_digests=batch.input_digests,
            lattice_digests=batch.lattice_digests,
            input_digest=packed_digest(bytearray(batch.input_digests)),
            evaluations=batch.evaluations,
            handed_over=batch.handed_over,
        )

    @property
    def rows(self) -> int:
        return len(self.digests) // DIGEST_BYTES


class Journal:
    """The journal in a folder that only this process writes to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target / WORK_FOLDER

    # --- the run --------------------------------------------------------------------------------------------

    def begin(self, key: Mapping[str, Any], *, resume: bool) -> None:
        """Continue the run that was interrupted, or begin one; refuse what would lose or mix finished parts."""
        finished = self.finished_count()
        if finished and not resume:
            raise CertificateError(
                f"{self.target} holds an interrupted audit with {finished} finished parts; continue it with ",
                RESUME,
                f", or remove {self.folder} to begin anew",
            )
        if finished:
            self._check_same(key)
        else:
            self.discard()
        self.folder.mkdir(exist_ok=True)
        sweep_parts(self.folder)
        write_bytes(self.folder / RUN_FILE, json.dumps(key, indent=1, sort_keys=True).encode())

    def finished_count(self) -> int:
        """Return how many parts are finished."""
        with suppress(OSError):
            return sum(name.startswith("part-") for name in os.listdir(self.folder))
        return 0

    def _check_same(self, key: Mapping[str, Any]) -> None:
        begun = self._document(RUN_FILE)
        for name, words in WORDS.items():
            if begun is None or begun.get(name) != json.loads(json.dumps(key[name])):
                raise DataError(
                    f"{self.target} holds an audit that was begun with {words}; resume it with what it was begun with, "
                    f"or remove {self.folder} to begin anew"
                )

    def discard(self) -> None:
        """Remove the journal and all finished parts in it."""
        if self.folder.is_symlink():
            raise CertificateError(f"{self.folder} is a link, not a folder of an audit; move it away")
        shutil.rmtree(self.folder, ignore_errors=True)

    def discard_if_empty(self) -> None:
        """Remove the journal of a run that finished no part."""
        if not self.finished_count():
            self.discard()

    # --- parts ----------------------------------------------------------------------------------------------

    def record(self, place: int) -> PartRecord | None:
        """Return what is known of a finished part; None where it is not finished, or not as it was written."""
        document = self._document(f"part-{place_text(place)}.json")
        if document is None:
            return None
        try:
            record = PartRecord(**{**document, "handed_over": HandedOver(*document["handed_over"])})
        except (KeyError, TypeError):
            return None
        return record if self._is_whole(place, record) else None

    def _is_whole(self, place: int, record: PartRecord) -> bool:
        lies_at = self._part_path(record)
        try:
            digests = (self.folder / _digests_name(place)).read_bytes()
            whole = len(digests) == record.digests_each * DIGEST_BYTES * record.rows
            whole = whole and digest_bytes(digests) == record.digests_digest
            return whole and digest_bytes(lies_at.read_bytes()) == record.digest
        except OSError:
            return False

    def _part_path(self, record: PartRecord) -> Path:
        """Return where a finished part lies: here, or already in its place if the run was killed at its very end."""
        here = self.folder / record.name
        return here if here.exists() else self.target / record.name

    def write(self, place: int, part: EncodedPart) -> PartRecord:
        """Write a finished part."""
        digests = part.digests + part.input_digests + part.lattice_digests
        record = PartRecord(
            name=part_name(place, part.data),
            digest=digest_bytes(part.data),
            rows=part.rows,
            evaluations=part.evaluations,
            handed_over=part.handed_over,
            input_digest=part.input_digest,
            digests_each=3 if part.lattice_digests else 2,
            digests_digest=digest_bytes(digests),
        )
        write_bytes(self.folder / record.name, part.data, own=AUDIT_FILE)
        write_bytes(self.folder / _digests_name(place), digests)
        write_bytes(self.folder / f"part-{place_text(place)}.json", json.dumps(asdict(record)).encode())
        return record

    def data(self, record: PartRecord) -> bytes:
        """Return the bytes of a finished part."""
        return self._part_path(record).read_bytes()

    def claims(self, record: PartRecord, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a finished part."""
        return read_columns(self.data(record), columns).select(list(columns))

    def roots(self, records: list[PartRecord]) -> list[str]:
        """Return the root digests over all parts: of claims, of input, and of the lattice block if there is one."""
        return [self._root(records, which) for which in range(records[0].digests_each)]

    def _root(self, records: list[PartRecord], which: int) -> str:
        together = bytearray()
        for place, record in enumerate(records):
            data = (self.folder / _digests_name(place)).read_bytes()
            size = DIGEST_BYTES * record.rows
            together += data[which * size : (which + 1) * size]
        return packed_digest(together)

    def placed(self, records: list[PartRecord]) -> Iterator[tuple[str, str]]:
        """Move the finished parts to their places, one by one; return their names and digests."""
        for record in records:
            here = self.folder / record.name
            if here.exists():
                os.replace(here, self.target / record.name)
            yield record.name, record.digest
        force_to_disk(self.target)

    def _document(self, name: str) -> dict[str, Any] | None:
        try:
            document = parse_json((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None


def packed_digest(digests: bytearray) -> str:
    """Return the text of the root digest over many that lie one after the other."""
    return f"sha256:{packed_root(digests).hex()}"


def _digests_name(place: int) -> str:
    return f"digests-{place_text(place)}.bin"
