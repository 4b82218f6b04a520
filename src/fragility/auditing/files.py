"""audit_files: rows in files in, certificates in a folder out, in memory that does not depend on how many there are.

A part is finished when its journal says so; the manifest, written last, makes all parts the audit of the folder. The
journal is a hidden folder in the audit's own folder until then, so that an interruption costs one part at most:

    run.json                             what is audited, by what: the key that a resumed run must have
    certificates-00007-<digest>.parquet  a finished part
    digests-00007.bin                    the digests of its rows: of claims, of input, of the lattice block
    part-00007.json                      written last: the part is finished

Each file appears whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs as arrow_fs

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.auditing.auditor import Auditor, TracedRows
from fragility.auditing.baselines import compare_if_possible, stated_claims
from fragility.auditing.lattice import no_lattice, search_most_exposed
from fragility.auditing.parts import (
    FIRST_ROWS,
    KEPT_CLAIMS,
    Choice,
    Failure,
    Keeper,
    MadePart,
    PartMaker,
    PartRecord,
    Span,
    Task,
    Workers,
    input_digests_of,
    name_rows_in_errors,
    packed_digest,
)
from fragility.auditing.pipeline import run_pipeline
from fragility.canonical import digest_bytes
from fragility.certificates import BaselineComparison, StoredAudit
from fragility.certificates.claims import Extent
from fragility.certificates.folder import WORK_FOLDER, commit, read_protocol_signature, remove_unnamed, writing_into
from fragility.certificates.lattice import LatticeClaims
from fragility.certificates.manifest import AuditedRows, ComparedBaselines, place_text
from fragility.certificates.parts import PART_ROWS, part_name, read_columns
from fragility.engines.trace import HandedOver, Progress
from fragility.errors import Advice, CertificateError, DataError, FragilityError
from fragility.files import AUDIT_FILE, force_to_disk, parse_json, sweep_parts, write_bytes
from fragility.formats import CsvFormat
from fragility.ids import KEY_BYTES, SeenIds
from fragility.libraries import library_versions
from fragility.merkle import DIGEST_BYTES
from fragility.progress import Report, progress_bar
from fragility.protocol import Protocol
from fragility.tables import RawPart, RowSource, open_source
from fragility.verification.integrity import check_integrity

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


def audit_files(
    model: Any,
    source: str | os.PathLike[str] | RowSource,
    protocol: Protocol,
    out: str | os.PathLike[str],
    *,
    id_column: str | None = None,
    target: str | None = None,
    drop: Sequence[str] = (),
    rows: slice | None = None,
    resume: bool = False,
    claims: Extent = "full",
    engine: str = "auto",
    part_rows: int = PART_ROWS,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    lattice: bool | None = None,
    rates: Any = None,
    other_baselines: bool = True,
    protocol_signature: str | os.PathLike[str] | None = None,
    csv: CsvFormat | None = None,
    filesystem: arrow_fs.FileSystem | None = None,
    workers: Workers | None = None,
    progress: bool | Progress | None = None,
) -> StoredAudit:
    """Audit the rows of files, however many, and write one certificate for each row to a folder.

    The folder is the same, byte by byte, as :func:`audit` and :meth:`Certificates.save` write for rows that fit into
    memory, with :meth:`Certificates.with_baselines` between them unless ``other_baselines`` is False. Whatever
    interrupts the audit, the parts finished by then are kept, and ``resume=True`` goes on from there to the same bytes.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    source : path or address
        Parquet, CSV or Arrow: a file, a folder of files, or a pattern such as ``rows/2026-*.parquet``; with ``://`` in
        it an address that pyarrow knows, such as ``s3://bucket/rows/``. Rows that were opened before (a ``RowSource``)
        come with their ids, columns and format.
    protocol : Protocol
        What is removed and degraded, and how the result is read.
    out : path
        The folder to write: a new one, an empty one, or one that holds an audit, which is replaced at the very end.
    id_column : str, optional
        The column with a distinct id for each row; by default the index that pandas stored, else the row's number.
    target : str, optional
        A column of labels, kept away from the model; it need not be there.
    drop : sequence of str, optional
        Further columns that are kept away from the model; they need not be there.
    rows : slice, optional
        Only these rows, counted over all files.
    resume : bool, default=False
        Go on with an audit that was interrupted. Model, protocol, options and input must be those it was begun with.
    claims : {"full", "summary"}, default="full"
        ``summary`` leaves out the lists with one entry per step, severity or group: scores only, in a fraction of the
        space. Row digests are those of the full audit.
    engine : str, default="auto"
        As in :func:`audit`.
    part_rows : int, default=50000
        Rows of a part, which is what is held in memory at a time and what an interruption can lose.
    byte_budget : int, default=256 MiB
        As in :func:`audit`.
    lattice : bool, optional
        As in :func:`audit`: whose smallest failing set to search; by default that of the 1,000 most exposed confident
        rows, where an engine can read the model.
    rates : float, mapping or Outages, optional
        As in :func:`audit`: how often evidence fails; also say how likely each decision is lost.
    other_baselines : bool, default=True
        Compute the finding again under the other baselines that the model admits, on at most 500 confident rows, as
        :func:`compare_baselines` does. A model that can only be asked is then asked for up to 500 times
        ``protocol.states_per_row`` further states for each baseline.
    protocol_signature : path, optional
        The envelope that :func:`sign` wrote for the protocol file before the audit; it is kept with the certificates.
    csv : CsvFormat, optional
        How CSV files are written.
    filesystem : pyarrow.fs.FileSystem, optional
        Where ``source`` lies, if not here and not at an address.
    workers : RayWorkers or SparkWorkers, optional
        Processes on this machine or others that make the parts; by default this process makes them. The folder is the
        same, byte by byte, and an audit begun in one way may be resumed in another.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all or 0 if not known).

    Returns
    -------
    StoredAudit
        The finished audit, to be read part by part.

    Raises
    ------
    FragilityError
        The input, the model and the protocol do not belong together, the folder cannot be written, or the audit there
        cannot be resumed.

    See Also
    --------
    audit : Certificates of rows in memory.
    open_audit : Read the folder later.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> protocol = fg.Protocol.fit(model, X[:700])
    >>> with tempfile.TemporaryDirectory() as home:
    ...     X[700:].to_parquet(Path(home, "rows.parquet"))
    ...     audit = fg.audit_files(model, Path(home, "rows.parquet"), protocol, Path(home, "audit"))
    ...     print(len(audit), audit.engine)
    300 linear
    """
    if part_rows < 1:
        raise DataError(f"part_rows must be at least 1, got {part_rows}")
    chosen = slice(None) if rows is None else rows
    if any(bound is not None and bound < 0 for bound in (chosen.start, chosen.stop)) or chosen.step not in (None, 1):
        raise DataError(f"rows of files are counted forward, one by one; got {rows}")
    envelope = None if protocol_signature is None else read_protocol_signature(protocol_signature, protocol.digest)
    found = source
    if not isinstance(found, RowSource):
        found = open_source(
            found,
            fields=protocol.fields,
            id_column=id_column,
            target=target,
            rows=chosen,
            csv=csv,
            filesystem=filesystem,
            drop=drop,
        )
    first = found.head(FIRST_ROWS)
    with name_rows_in_errors(found, first, protocol):
        auditor = Auditor.prepare(
            model,
            first.frame,
            protocol,
            ids=first.ids,
            engine=engine,
            claims=claims,
            byte_budget=byte_budget,
            lattice=lattice,
            rates=rates,
            other_baselines=other_baselines,
        )
    with writing_into(out, patience=0.0) as (folder, alone), progress_bar("auditing", progress) as report:
        journal, maker = Journal(folder), PartMaker(auditor, found)
        if resume and not journal.finished_count() and _is_finished(folder, auditor, found, part_rows, envelope):
            return StoredAudit(out)
        journal.begin(_run_key(auditor, found, part_rows), resume=resume)
        sink = FolderSink(auditor, journal, found.count or 0, report)
        tasks = _list_tasks(auditor, found, journal, part_rows, by_workers=workers is not None)

        def finish(task: Task, traced: TracedRows | None) -> int:
            return sink.write(maker.finish(task, traced))

        try:
            if workers is None:
                sink.count_rows(run_pipeline(tasks, maker.trace, finish))
            else:
                sink.count_rows(sink.write(part) for part in workers.made(maker, tasks))
            sink.commit(alone, envelope)
        except (OSError, FragilityError) as error:
            kept = journal.finished_count()
            if not kept:
                raise
            words: FragilityError
            if isinstance(error, FragilityError):
                words = error
            else:
                words = CertificateError(f"cannot write the certificates to {folder}: {error.strerror or error}")
            raise type(words)(words, f" ({kept} finished parts are kept; go on with ", RESUME, ")") from error
        finally:
            journal.discard_if_empty()
    return StoredAudit(out)


def _list_tasks(
    auditor: Auditor, source: RowSource, journal: Journal, part_rows: int, *, by_workers: bool
) -> Iterator[Task]:
    """Yield the parts of the input; workers read Parquet files themselves, other files can only be read in order."""
    total, keeps = source.count, bool(Choice.of(auditor))
    parts: Iterator[RawPart | Span] = source.parts(part_rows)
    if by_workers and total is not None:
        parts = (Span(start, min(part_rows, total - start)) for start in range(0, total, part_rows))
    for place, part in enumerate(parts):
        known = journal.record(place)
        yield Task(place, part, known, journal.read_claims(known, KEPT_CLAIMS) if known and keeps else None)


def _run_key(auditor: Auditor, source: RowSource, part_rows: int) -> dict[str, Any]:
    """Return what must be the same in a run that continues the parts of this one."""
    csv = source.tables.csv
    return {
        "model": auditor.model.fingerprint,
        "protocol": auditor.protocol.digest,
        "engine": auditor.engine,
        "probabilities": auditor.model.link,
        "versions": library_versions(),
        "part_rows": part_rows,
        "claims": auditor.extent,
        "lattice": None if auditor.lattice is None else auditor.lattice.to_dict(),
        "other_baselines": auditor.other_baselines,
        "columns": [
            *(source.id_column, source.target, source.chosen.start, source.chosen.stop),
            *(csv.separator, csv.encoding, csv.decimal, *source.drop),
        ],
        "input": [[file.name, file.size] for file in source.files],
    }


def _is_finished(folder: Path, auditor: Auditor, source: RowSource, part_rows: int, envelope: bytes | None) -> bool:
    """Return whether the folder holds this very audit, whole: it was interrupted after its end, in its report."""
    if not all(check.passed for check in check_integrity(folder)):
        return False
    found = StoredAudit(folder)
    said = found.manifest
    if (
        found.extent != auditor.extent
        or said.lattice != auditor.lattice
        or (found.baselines is not None) != auditor.other_baselines
        or said.protocol_signature != (None if envelope is None else digest_bytes(envelope))
        or len(found.part_names) != math.ceil(len(found) / part_rows)
    ):
        return False
    digests = b"".join(input_digests_of(auditor, part) for part in source.parts(part_rows))
    rows = AuditedRows(packed_digest(digests), len(digests) // DIGEST_BYTES)
    own = auditor.manifest(rows, said.root_digest, said.engine.evaluations, said.engine.blackbox_rows)
    return own == replace(said, lattice=None, lattice_root_digest=None, baselines=None, protocol_signature=None)


# --- the sink of parts --------------------------------------------------------------------------------------


@dataclass
class FolderSink:
    """Writes parts to the journal of a folder as they come, in any order, and makes them its audit in the end."""

    auditor: Auditor
    journal: Journal
    total: int  # rows; 0 if not known
    report: Report | None
    records: dict[int, PartRecord] = field(default_factory=dict)
    seen: SeenIds = field(default_factory=SeenIds)

    def __post_init__(self) -> None:
        self.keeper = Keeper(Choice.of(self.auditor))

    def write(self, made: MadePart | Failure) -> int:
        """Write a part; return its number of rows, 0 if it came before. The error of a worker ends the audit."""
        if isinstance(made, Failure):
            raise made.error
        if made.place in self.records:
            return 0
        known = made.known
        if known is not None and known.input_digest != made.input_digest:
            raise DataError(
                f"the input has changed since the audit was interrupted: its rows {made.start} to "
                f"{made.start + known.rows - 1} are others; restore it, or remove {self.journal.folder} to begin anew"
            )
        twice = self.seen.add_keys(np.frombuffer(made.id_keys, dtype=f"S{KEY_BYTES}")) if made.id_keys else None
        if twice is not None:
            data = made.data if known is None else self.journal.read_part(known)
            own_id = read_columns(data, ["id"]).column("id")[twice].as_py()
            raise DataError(f"ids must be distinct, {own_id!r} appears twice")
        record = known or self.journal.write(made.place, made)
        self.records[made.place] = record
        self.keeper.add(made.place, made.kept)
        return record.rows

    def count_rows(self, written: Generator[int, None, None]) -> None:
        """Write all parts and report the rows done."""
        done = 0
        with closing(written):
            for rows in written:
                done += rows
                if rows and self.report is not None:
                    self.report(done, self.total)

    def commit(self, alone: bool, envelope: bytes | None = None) -> None:
        """Examine the rows that were kept, bind the parts together and make them the folder's audit.

        envelope: the signature of the protocol.
        """
        self.seen = SeenIds()  # no longer needed, and all digests are read now
        auditor, journal = self.auditor, self.journal
        records = [self.records[place] for place in range(len(self.records))]
        root, input_digest, *lattice_root = journal.roots(records)
        declared, searched, compared = auditor.lattice, self._search_exposed(), self._compare_baselines()
        beside: dict[str, pa.Table] = {}
        if declared is not None and declared.is_partial:
            declared = None if searched is None else declared
        if searched is not None:
            beside["searched"], digests = searched
            lattice_root = [packed_digest(digests)]
        if compared is not None:
            beside["baselines"] = compared.table
        rows, evaluations = sum(record.rows for record in records), sum(record.evaluations for record in records)
        handed_over = HandedOver.join(record.handed_over for record in records)
        handed_over.warn(auditor.engine, rows)
        manifest = replace(
            auditor.manifest(AuditedRows(input_digest, rows), root, evaluations, handed_over.rows),
            lattice=declared,
            lattice_root_digest=None if declared is None else lattice_root[0],
            baselines=None if compared is None else ComparedBaselines(**compared.section()),
            protocol_signature=None if envelope is None else digest_bytes(envelope),
        )
        commit(journal.target, journal.move_parts(records), auditor.protocol, manifest, envelope, beside)
        journal.discard()
        if alone:
            remove_unnamed(journal.target)

    def _search_exposed(self) -> tuple[pa.Table, bytes] | None:
        """Return the lattice block of the most exposed rows, the most exposed first, and its digests."""
        auditor, declared, choice = self.auditor, self.auditor.lattice, self.keeper.choice
        if declared is None or declared.most_exposed is None:
            return None
        tables, digests, claims = list[pa.Table](), list[bytes](), list[pa.Table]()
        for rows in self.keeper.chosen(choice.exposed):
            found: LatticeClaims | None = no_lattice(auditor.protocol)
            if len(rows):
                bound = auditor.bind(rows.frame, rows.ids)
                found = search_most_exposed(bound, auditor.protocol, declared, auditor.byte_budget)
            if found is None:
                return None
            table, own = auditor.add_block(rows.claims.select(["id"]), found)
            tables.append(table)
            digests += own
            claims.append(rows.claims)
        order = choice.exposed(pa.concat_tables(claims))
        table = pa.concat_tables(tables).take(pa.array(order, type=pa.int64()))
        return table, b"".join(digests[i] for i in order)

    def _compare_baselines(self) -> BaselineComparison | None:
        """Return the confident rows under other baselines; None if there is nothing to compare."""
        auditor, choice = self.auditor, self.keeper.choice
        if not auditor.other_baselines:
            return None
        found, claims = list[BaselineComparison](), list[pa.Table]()
        for rows in self.keeper.chosen(choice.to_compare):
            if not len(rows):
                return None
            bound, own = auditor.bind(rows.frame, rows.ids), stated_claims(rows.claims)
            compared = compare_if_possible(bound, auditor.protocol, own, auditor.engine, auditor.byte_budget)
            if compared is None:
                return None
            found.append(compared)
            claims.append(rows.claims)
        order = pa.array(choice.to_compare(pa.concat_tables(claims)), type=pa.int64())
        table = pa.concat_tables([one.table for one in found]).take(order).combine_chunks()
        return BaselineComparison(table, found[0].baselines, auditor.protocol.depth)


def write_table_parts(
    out: str | os.PathLike[str],
    auditor: Auditor,
    parts: Iterator[MadePart | Failure],
    total: int,
    progress: bool | Progress | None,
) -> StoredAudit:
    """Write the parts of a cluster's sorted table to a folder, and return the audit there."""
    with writing_into(out, patience=0.0) as (folder, alone), progress_bar("auditing", progress) as report:
        journal = Journal(folder)
        journal.begin({}, resume=False)
        try:
            sink = FolderSink(auditor, journal, total, report)
            sink.count_rows(sink.write(part) for part in parts)
            sink.commit(alone)
        except BaseException:
            journal.discard()  # nobody could continue it: what the cluster held is gone
            raise
    return StoredAudit(out)


# --- the journal --------------------------------------------------------------------------------------------


class Journal:
    """The finished parts of an audit, in a folder that only this process writes to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target / WORK_FOLDER

    def begin(self, key: Mapping[str, Any], *, resume: bool) -> None:
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
        begun = self._read_document(RUN_FILE) if finished else None
        for name, words in WORDS.items() if finished else ():
            if begun is None or begun.get(name) != json.loads(json.dumps(key[name])):
                raise DataError(
                    f"{self.target} holds an audit that was begun with {words}; resume it with what it was begun with, "
                    f"or remove {self.folder} to begin anew"
                )
        self.folder.mkdir(exist_ok=True)
        sweep_parts(self.folder)
        write_bytes(self.folder / RUN_FILE, json.dumps(key, indent=1, sort_keys=True).encode())

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

    def discard_if_empty(self) -> None:
        """Remove the journal of a run that finished no part."""
        if not self.finished_count():
            self.discard()

    def record(self, place: int) -> PartRecord | None:
        """Return what is known of a finished part; None if it is not finished, or not as it was written."""
        document = self._read_document(f"part-{place_text(place)}.json") or {}
        try:
            record = PartRecord(**{**document, "handed_over": HandedOver(*document["handed_over"])})
            digests = self._digests_path(place).read_bytes()
            whole = (
                len(digests) == record.digests_each * DIGEST_BYTES * record.rows
                and digest_bytes(digests) == record.digests_digest
                and digest_bytes(self.read_part(record)) == record.digest
            )
        except (KeyError, TypeError, OSError):
            return None
        return record if whole else None

    def write(self, place: int, part: MadePart) -> PartRecord:
        """Write a finished part."""
        record = PartRecord(
            name=part_name(place, part.data),
            digest=digest_bytes(part.data),
            rows=part.rows,
            evaluations=part.evaluations,
            handed_over=part.handed_over,
            input_digest=part.input_digest,
            digests_each=len(part.digests) // DIGEST_BYTES // part.rows,
            digests_digest=digest_bytes(part.digests),
        )
        write_bytes(self.folder / record.name, part.data, own=AUDIT_FILE)
        write_bytes(self._digests_path(place), part.digests)
        write_bytes(self.folder / f"part-{place_text(place)}.json", json.dumps(asdict(record)).encode())
        return record

    def read_part(self, record: PartRecord) -> bytes:
        """Return the bytes of a finished part: here, or in its final place if the run was killed at its very end."""
        here = self.folder / record.name
        return (here if here.exists() else self.target / record.name).read_bytes()

    def read_claims(self, record: PartRecord, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a finished part."""
        return read_columns(self.read_part(record), columns).select(list(columns))

    def roots(self, records: list[PartRecord]) -> list[str]:
        """Return the root digests over all parts: of claims, of input, and of the lattice block if there is one."""
        found = []
        for which in range(records[0].digests_each):
            together = bytearray()
            for place, record in enumerate(records):
                size = DIGEST_BYTES * record.rows
                together += self._digests_path(place).read_bytes()[which * size : (which + 1) * size]
            found.append(packed_digest(together))
        return found

    def move_parts(self, records: list[PartRecord]) -> Iterator[tuple[str, str]]:
        """Move the finished parts to their places, one by one; yield their names and digests."""
        for record in records:
            here = self.folder / record.name
            if here.exists():
                os.replace(here, self.target / record.name)
            yield record.name, record.digest
        force_to_disk(self.target)

    def _read_document(self, name: str) -> dict[str, Any] | None:
        try:
            document = parse_json((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def _digests_path(self, place: int) -> Path:
        return self.folder / f"digests-{place_text(place)}.bin"
