"""Parts made elsewhere: what a worker is given, what it sends back, and how that becomes the audit of a folder.

Workers read and compute, and write nothing. What they send back is a part in bytes, which the process that asked for it
writes; it takes every part once. A worker that dies, a task done twice or one that is done and then lost therefore
leaves nothing behind, and the order of the parts is that of their places, whoever was first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol as Interface

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from fragility.auditing.auditor import input_row_digests, manifest_of
from fragility.auditing.batch import BatchAuditor, TracedBatch
from fragility.auditing.journal import EncodedPart, Journal, PartRecord, packed_digest
from fragility.auditing.keeping import Keeper, KeptRows
from fragility.canonical import digest_bytes
from fragility.certificates import AuditedRows, ComparedBaselines, commit, remove_unnamed
from fragility.engines.trace import HandedOver
from fragility.errors import DataError, FragilityError
from fragility.evidence.rows import read_rows
from fragility.ids import KEY_BYTES, SeenIds, id_keys
from fragility.progress import Report
from fragility.protocol import Protocol
from fragility.tables import RawPart, RowSource

FIRST_ROWS = 1024  # on which model and engine are made ready, whatever the size of the parts
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


# --- what workers are given ---------------------------------------------------------------------------------


class RowsToRead(Interface):
    """Rows of a part, wherever they lie."""

    def read(self, source: RowSource | None) -> RawPart: ...


@dataclass(frozen=True)
class Span:
    """Rows of the input's files, read by whoever makes the part."""

    start: int
    rows: int

    def read(self, source: RowSource | None) -> RawPart:
        assert source is not None
        return source.span(self.start, self.rows)


@dataclass(frozen=True, eq=False)
class InHand:
    """Rows that were read before."""

    part: RawPart

    def read(self, source: RowSource | None) -> RawPart:
        return self.part


@dataclass(frozen=True, eq=False)
class Task:
    """A part to make, or, where it was finished by an earlier run, rows to compare with it."""

    place: int
    rows: RowsToRead
    known: PartRecord | None = None
    known_claims: pa.Table | None = None  # of the finished part: those by which rows are kept for the end


@dataclass(frozen=True, eq=False)
class MadePart:
    """What a worker sends back."""

    place: int
    start: int  # its first row in the input
    known: PartRecord | None
    encoded: EncodedPart | None  # None: it was finished before
    input_digest: str
    kept: KeptRows | None  # rows that may be wanted at the end of the audit
    id_keys: bytes  # 16 bytes a row; none where the ids are the rows' numbers


@dataclass(frozen=True, eq=False)
class Failure:
    """An error that a worker's user has caused: sent back as a value, so that nobody tries again."""

    error: FragilityError


@dataclass(frozen=True, eq=False)
class PartMaker:
    """All that a worker needs, sent to it once: the model made ready, and where the rows lie."""

    auditor: BatchAuditor
    source: RowSource | None = None

    def make(self, task: Task) -> MadePart | Failure:
        """Return a part, or why there is none."""
        try:
            return self._made(task)
        except FragilityError as error:
            return Failure(error)

    def _made(self, task: Task) -> MadePart:
        part = task.rows.read(self.source)
        encoded, claims = None, task.known_claims
        if task.known is None:
            batch = self.auditor.certify(traced_part(self.auditor, part, self.source))
            encoded, claims = EncodedPart.of(batch), batch.table
        digest = (
            encoded.input_digest
            if encoded is not None
            else packed_digest(bytearray(input_digests_of(self.auditor, part)))
        )
        kept = rows_to_keep(self.auditor, part, claims)
        keys = b"" if part.numbered else id_keys(part.ids).tobytes()
        return MadePart(task.place, part.start, task.known, encoded, digest, kept, keys)


def rows_to_keep(auditor: BatchAuditor, part: RawPart, certificates: pa.Table | None) -> KeptRows | None:
    """Return the rows of a part that may be wanted at the end of the audit; None where none will be."""
    if not auditor.choice or certificates is None:
        return None
    return auditor.choice.among(part.frame, part.ids, certificates)


def traced_part(auditor: BatchAuditor, part: RawPart, source: RowSource | None = None) -> TracedBatch:
    """Return what the engine observes on a part."""
    with placing_errors(source, part, auditor.protocol):
        return auditor.trace(part.frame, part.ids)


@contextmanager
def placing_errors(source: RowSource | None, part: RawPart, protocol: Protocol) -> Iterator[None]:
    """Say in which rows of the input an error lies."""
    try:
        yield
    except FragilityError as error:
        if source is not None:
            _refuse_text(source, part, protocol)
        if part.start == 0:
            raise
        raise type(error)(f"rows {part.start} to {part.start + len(part) - 1} of the input: ", error) from error


def _refuse_text(source: RowSource, part: RawPart, protocol: Protocol) -> None:
    for own in protocol.fields:
        if own.type in ("integer", "number") and own.name in part.frame.columns:
            source.refuse_text(part, own.name)


def input_digests_of(auditor: BatchAuditor, part: RawPart) -> bytes:
    """Return the digests of a part's ids and raw fields, 32 bytes per row, without auditing them."""
    model = auditor.model
    expected = model.columns or tuple(f.name for f in auditor.protocol.fields)
    return b"".join(input_row_digests(read_rows(part.frame, expected, model.n_columns, part.ids)))


def limit_threads(count: int = 1) -> None:
    """Let this process compute in so many threads: there is a worker for every core already.

    It must come before the model, which may bring libraries that look at these settings when they are loaded.
    """
    os.environ.update(dict.fromkeys(THREADS, str(count)))
    threadpool_limits(count)


# --- where they are made ------------------------------------------------------------------------------------


class Workers(Interface):
    """Processes that make parts."""

    def made(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        """Return the parts as they are finished, in any order; take few more tasks than there are workers."""
        ...


# --- what becomes of them -----------------------------------------------------------------------------------


@dataclass
class Collector:
    """The parts that have arrived, written as they come."""

    auditor: BatchAuditor
    journal: Journal
    total: int  # rows, as far as known; 0 where not
    report: Report | None
    keeper: Keeper
    records: dict[int, PartRecord] = field(default_factory=dict)
    seen: SeenIds = field(default_factory=SeenIds)
    rows_done: int = 0

    def take_all(self, parts: Iterable[MadePart | Failure]) -> None:
        """Take every part; the first error of a worker ends the audit."""
        for part in parts:
            if isinstance(part, Failure):
                raise part.error
            self._take(part)

    def _take(self, made: MadePart) -> None:
        if made.place in self.records:
            return
        if made.known is not None:
            check_unchanged(made.known, made.input_digest, made.start, self.journal)
        record = made.known or self.journal.write(made.place, _present(made.encoded))
        self._check_distinct(made, record)
        self.keeper.add(made.place, made.kept)
        self.records[made.place] = record
        self.rows_done += record.rows
        if self.report is not None:
            self.report(self.rows_done, self.total)

    def _check_distinct(self, made: MadePart, record: PartRecord) -> None:
        if not made.id_keys:
            return
        twice = self.seen.add_keys(np.frombuffer(made.id_keys, dtype=f"S{KEY_BYTES}"))
        if twice is not None:
            own_id = self.journal.claims(record, ["id"]).column("id")[twice].as_py()
            raise DataError(f"ids must be distinct, {own_id!r} appears twice")

    def in_order(self) -> list[PartRecord]:
        """Return all parts in the order of their rows, when none is to come."""
        self.seen = SeenIds()  # no longer needed, and the digests are
        return [self.records[place] for place in range(len(self.records))]


def _present(encoded: EncodedPart | None) -> EncodedPart:
    assert encoded is not None
    return encoded


def check_unchanged(known: PartRecord, digest: str, start: int, journal: Journal) -> None:
    """Refuse rows that are not those of the part that was finished before."""
    if known.input_digest != digest:
        raise DataError(
            f"the input has changed since the audit was interrupted: its rows {start} to {start + known.rows - 1} are "
            f"others; restore it, or remove {journal.folder} to begin anew"
        )


def finish_audit(
    journal: Journal,
    auditor: BatchAuditor,
    records: list[PartRecord],
    keeper: Keeper,
    alone: bool,
    envelope: bytes | None = None,
) -> None:
    """Look closer at the rows that were kept, bind the parts together and make them the folder's audit.

    An envelope is the signature of its protocol.
    """
    root, input_digest, *lattice_root = journal.roots(records)
    declared, found, compared = auditor.lattice, auditor.search_kept(keeper), auditor.compare_kept(keeper)
    if declared is not None and declared.is_partial:
        declared = None if found is None else declared
        lattice_root = [] if found is None else [packed_digest(bytearray(found.digests))]
    rows, evaluations = sum(record.rows for record in records), sum(record.evaluations for record in records)
    handed_over = HandedOver.joined(record.handed_over for record in records)
    handed_over.warn(auditor.engine, rows)
    manifest = manifest_of(
        auditor.model,
        auditor.protocol,
        auditor.engine,
        evaluations,
        handed_over.rows,
        AuditedRows(input_digest, rows),
        root,
        auditor.extent,
    )
    whole = replace(
        manifest,
        lattice=declared,
        lattice_root_digest=None if declared is None else lattice_root[0],
        baselines=None if compared is None else ComparedBaselines(**compared.section()),
        protocol_signature=None if envelope is None else digest_bytes(envelope),
    )
    beside = {} if found is None else {"searched": found.table}
    beside |= {} if compared is None else {"baselines": compared.table}
    commit(journal.target, journal.placed(records), auditor.protocol, whole, envelope, beside)
    journal.discard()
    if alone:
        remove_unnamed(journal.target)
