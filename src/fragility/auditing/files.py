"""audit_files: rows in files in, certificates in a folder out, in memory that does not depend on how many there are.

A part is finished when its journal says so; the manifest, written last, makes all parts the audit of the folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs as arrow_fs

from fragility.auditing.certifying import PartAuditor, TracedRows
from fragility.auditing.journal import RESUME, Journal, RunKey
from fragility.auditing.parts import (
    FIRST_ROWS,
    Choices,
    Failure,
    Keeper,
    KeptRows,
    MadePart,
    PartMaker,
    PartRecord,
    Task,
    Workers,
    input_digests_of,
    name_rows_in_errors,
)
from fragility.auditing.pipeline import run_pipeline
from fragility.audits import StoredAudit
from fragility.audits.folder import commit, read_protocol_signature, remove_unnamed, writing_into
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import AuditedRows
from fragility.audits.parts import PART_ROWS, read_columns
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.canonical import DIGEST_BYTES, combine_digests, digest_bytes
from fragility.base.errors import CertificateError, DataError, FragilityError
from fragility.base.ids import KEY_BYTES, SeenIds
from fragility.base.progress import Report, progress_bar
from fragility.blocks.all import BLOCKS, list_claims
from fragility.blocks.block import DIGEST, Declaration
from fragility.blocks.choice import Wanted
from fragility.blocks.claims import Extent
from fragility.engines.trace import HandedOver, Progress
from fragility.protocol import Protocol
from fragility.tables.formats import CsvFormat
from fragility.tables.sources import RawPart, RowSource, open_source


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
    modes: Wanted = None,
    intervals: Wanted = None,
    any_value: bool | int | None = None,
    baselines: bool | None = None,
    protocol_signature: str | os.PathLike[str] | None = None,
    csv: CsvFormat | None = None,
    filesystem: arrow_fs.FileSystem | None = None,
    workers: Workers | None = None,
    progress: bool | Progress | None = None,
) -> StoredAudit:
    """Audit the rows of files, however many, and write one certificate for each row to a folder.

    The folder is the same, byte by byte, as :func:`audit` with ``baselines=None`` and :meth:`Certificates.save` write
    for rows that fit into memory. Whatever interrupts the audit, the parts finished by
    then are kept, and ``resume=True`` goes on from there to the same bytes.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    source : path, address or RowSource
        Parquet, CSV or Arrow: a file, a folder of files, or a pattern such as ``rows/2026-*.parquet``; with ``://`` in
        it an address that pyarrow knows, such as ``s3://bucket/rows/``. A RowSource brings its own ids and columns.
    protocol : Protocol
        What is removed and degraded, and how the result is read.
    out : path
        The folder to write: a new one, an empty one, or one that holds an audit, which is replaced at the very end.
    id_column : str, optional
        The column with a distinct id for each row; by default the index that pandas stored, else the row's number.
    target, drop : str and sequence of str, optional
        A column of labels, and further columns, which are kept away from the model; they need not be there.
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
    byte_budget, lattice, rates
        As in :func:`audit`.
    modes, intervals : bool, int or sequence of str, optional
        As in :func:`audit`. A number of confident rows costs as much however many rows there are.
    any_value : bool or int, optional
        As in :func:`audit`.
    baselines : bool, optional
        Whether to compute the finding again under other baselines, as :func:`compare_baselines` does and at its cost;
        by default if that can be done.
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
        auditor = PartAuditor.prepare(
            model,
            first.frame,
            protocol,
            ids=first.ids,
            engine=engine,
            claims=claims,
            byte_budget=byte_budget,
            wanted={
                "lattice": lattice,
                "rates": rates,
                "modes": modes,
                "intervals": intervals,
                "any_value": any_value,
                "baselines": baselines,
            },
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
                sink.count_rows(sink.write(part) for part in workers.make_parts(maker, tasks))
            sink.commit(alone, envelope)
        except (OSError, FragilityError) as error:
            kept = journal.finished_count()
            if not kept:
                raise
            words = (
                error
                if isinstance(error, FragilityError)
                else CertificateError(f"cannot write the certificates to {folder}: {error.strerror or error}")
            )
            raise type(words)(words, f" ({kept} finished parts are kept; go on with ", RESUME, ")") from error
        finally:
            if not journal.finished_count():
                journal.discard()
    return StoredAudit(out)


def _list_tasks(
    auditor: PartAuditor, source: RowSource, journal: Journal, part_rows: int, *, by_workers: bool
) -> Iterator[Task]:
    """Yield the parts of the input; workers read Parquet files themselves, other files can only be read in order."""
    total, keeps, names = source.count, bool(Choices.of(auditor)), list_claims()
    parts: Iterator[RawPart | Callable[[RowSource], RawPart]] = source.parts(part_rows)
    if by_workers and total is not None:
        starts = range(0, total, part_rows)
        parts = (partial(RowSource.span, start=start, rows=min(part_rows, total - start)) for start in starts)
    for place, part in enumerate(parts):
        known = journal.record(place)
        claims = read_columns(journal.read_part(known), names).select(names) if known and keeps else None
        yield Task(place, part, known, claims)


def _run_key(auditor: PartAuditor, source: RowSource, part_rows: int) -> RunKey:
    """Return what must be the same in a run that continues the parts of this one."""
    csv, declared = source.tables.csv, {name: own.to_dict() for name, own in auditor.declared.items()}
    columns = [
        *(source.id_column, source.target, source.chosen.start, source.chosen.stop),
        *(csv.separator, csv.encoding, csv.decimal, *source.drop),
    ]
    return {
        "model": (auditor.model.fingerprint, "another model"),
        "protocol": (auditor.protocol.digest, "another protocol"),
        "engine": (auditor.engine, "another engine"),
        "probabilities": (auditor.model.link, "another way to the model's probabilities"),
        "versions": (auditor.versions, "other versions of the libraries"),
        "part_rows": (part_rows, "parts of another size"),
        "claims": (auditor.extent, "another extent of claims"),
        **{name: (declared.get(name), f"other choices about the {name} block") for name in BLOCKS},
        "columns": (columns, "other id, label or row options"),
        "input": ([[file.name, file.size] for file in source.files], "other input files"),
    }


def _is_finished(folder: Path, auditor: PartAuditor, source: RowSource, part_rows: int, envelope: bytes | None) -> bool:
    """Return whether the folder holds this very audit, whole: it was interrupted after its end, in its report."""
    if not all(check.passed for check in check_integrity(folder)):
        return False
    stored = StoredAudit(folder)
    said = stored.manifest
    if (
        stored.extent != auditor.extent
        or {name: block.without_root() for name, block in said.blocks.items()} != dict(auditor.declared)
        or said.protocol_signature != (None if envelope is None else digest_bytes(envelope))
        or len(stored.part_names) != math.ceil(len(stored) / part_rows)
    ):
        return False
    digests = b"".join(input_digests_of(auditor, part) for part in source.parts(part_rows))
    rows = AuditedRows(combine_digests([digests]), len(digests) // DIGEST_BYTES)
    manifest = auditor.manifest(rows, said.root_digest, said.engine.evaluations, said.engine.blackbox_rows)
    return manifest == replace(said.without_blocks(), protocol_signature=None)


# --- the sink of parts --------------------------------------------------------------------------------------


@dataclass
class FolderSink:
    """Writes parts to the journal of a folder as they come, in any order, and makes them its audit in the end."""

    auditor: PartAuditor
    journal: Journal
    total: int  # rows; 0 if not known
    report: Report | None
    records: dict[int, PartRecord] = field(default_factory=dict)
    seen: SeenIds = field(default_factory=SeenIds)

    def __post_init__(self) -> None:
        self.keeper = Keeper(Choices.of(self.auditor))

    def write(self, made: MadePart | Failure) -> int:
        """Write a part; return its number of rows, 0 if it came before. The error of a worker ends the audit."""
        if isinstance(made, Failure):
            raise made.error
        if made.place in self.records:
            return 0
        record = made.record
        if record.input_digest != made.input_digest:
            raise DataError(
                f"the input has changed since the audit was interrupted: its rows {made.start} to "
                f"{made.start + record.rows - 1} are others; restore it, or remove {self.journal.folder} to begin anew"
            )
        twice = self.seen.add_keys(np.frombuffer(made.id_keys, dtype=f"S{KEY_BYTES}")) if made.id_keys else None
        if twice is not None:
            data = self.journal.read_part(record) if made.data is None else made.data[0]
            own_id = read_columns(data, ["id"]).column("id")[twice].as_py()
            raise DataError(f"ids must be distinct, {own_id!r} appears twice")
        if made.data is not None:
            self.journal.write(made, made.data)
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
        root, input_digest, *block_roots = journal.roots(records)
        declared, made = dict[str, Declaration](), dict[str, list[pa.Table]]()
        for name, own in auditor.blocks.items():
            if not own.declared.is_partial:
                declared[name] = replace(own.declared, root_digest=block_roots.pop(0))
            elif (table := self.keeper.examine(name, partial(self._make_block, name))) is not None:
                declared[name], made[name] = own.with_root(table.column(DIGEST).to_pylist()), [table]
        rows, evaluations = sum(record.rows for record in records), sum(record.evaluations for record in records)
        handed_over = HandedOver.join(record.handed_over for record in records)
        handed_over.warn(auditor.engine, rows)
        manifest = replace(
            auditor.manifest(AuditedRows(input_digest, rows), root, evaluations, handed_over.rows),
            blocks=declared,
            protocol_signature=None if envelope is None else digest_bytes(envelope),
        )
        commit(journal.target, journal.move_parts(records), made, auditor.protocol, manifest, envelope)
        journal.discard()
        if alone:
            remove_unnamed(journal.target)

    def _make_block(self, name: str, rows: KeptRows) -> pa.Table | None:
        """Return the table of a block of chosen rows; None if nobody asked for it and it fails."""
        bind_rows = partial(self.auditor.bind, rows.frame, rows.ids, tried=True)
        return self.auditor.make_block(name, rows.claims, bind_rows)


def write_table_parts(
    out: str | os.PathLike[str],
    auditor: PartAuditor,
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
