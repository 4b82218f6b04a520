"""audit_files: rows in files in, certificates in a folder out, in memory that does not depend on how many there are.

Three things happen at the same time: the next part is read, a part is computed on all cores, and the part before it is
hashed, encoded and written. A part is finished when its journal says so; the manifest, written last, makes all of them
the audit of the folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs as arrow_fs

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.auditing.auditor import manifest_of
from fragility.auditing.batch import BatchAuditor, TracedBatch, prepare
from fragility.auditing.journal import RESUME, EncodedPart, Journal, PartRecord, packed_digest
from fragility.auditing.keeping import KEPT_CLAIMS, Keeper, KeptRows
from fragility.auditing.making import (
    FIRST_ROWS,
    Collector,
    InHand,
    PartMaker,
    Span,
    Task,
    Workers,
    check_unchanged,
    finish_audit,
    input_digests_of,
    placing_errors,
    rows_to_keep,
    traced_part,
)
from fragility.canonical import digest_bytes
from fragility.certificates import PART_ROWS, AuditedRows, Extent, StoredAudit, read_protocol_signature, writing_into
from fragility.engines.trace import Progress
from fragility.errors import CertificateError, DataError, FragilityError
from fragility.ids import SeenIds
from fragility.libraries import library_versions
from fragility.merkle import DIGEST_BYTES
from fragility.progress import Report, progress_bar
from fragility.protocol import Protocol
from fragility.tables import CsvFormat, RawPart, RowSource, open_source
from fragility.verification.verifying import check_integrity


def audit_files(
    model: Any,
    source: str | os.PathLike[str],
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
        it an address that pyarrow knows, such as ``s3://bucket/rows/``.
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
        ``summary`` leaves out the lists with one entry a step, severity or group: scores only, in a fraction of the
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
    envelope = None if protocol_signature is None else read_protocol_signature(protocol_signature, protocol.digest)
    found = open_source(
        source,
        fields=protocol.fields,
        id_column=id_column,
        target=target,
        rows=_forward(rows),
        csv=csv,
        filesystem=filesystem,
        drop=drop,
    )
    first = found.head(FIRST_ROWS)
    with placing_errors(found, first, protocol):
        ready = prepare(
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
    with writing_into(out, patience=0.0) as (target_folder, alone), progress_bar("auditing", progress) as report:
        run = _Run(found, ready, Journal(target_folder), part_rows, report)
        if resume and run.is_finished(envelope):
            return StoredAudit(out)
        run.journal.begin(run.key(), resume=resume)
        try:
            if workers is None:
                run.work()
            else:
                run.work_on(workers)
            run.seen = SeenIds()  # no longer needed, and the digests are
            finish_audit(run.journal, ready, run.records, run.keeper, alone, envelope)
        except (OSError, FragilityError) as error:
            raise _with_hint(error, run) from error
        finally:
            run.journal.discard_if_empty()
    return StoredAudit(out)


def _forward(rows: slice | None) -> slice:
    if rows is None:
        return slice(None)
    if any(bound is not None and bound < 0 for bound in (rows.start, rows.stop)) or rows.step not in (None, 1):
        raise DataError(f"rows of files are counted forward, one by one; got {rows}")
    return rows


def _with_hint(error: OSError | FragilityError, run: _Run) -> Exception:
    """Return the error, and what is not lost."""
    kept = run.journal.finished_count()
    if not kept:
        return error
    if isinstance(error, OSError):
        error = CertificateError(f"cannot write the certificates to {run.journal.target}: {error.strerror or error}")
    return type(error)(error, f" ({kept} finished parts are kept; go on with ", RESUME, ")")


@dataclass
class _Run:
    """One audit of files while it is made."""

    source: RowSource
    auditor: BatchAuditor
    journal: Journal
    part_rows: int
    report: Report | None
    records: list[PartRecord] = field(default_factory=list)
    seen: SeenIds = field(default_factory=SeenIds)
    rows_done: int = 0

    def __post_init__(self) -> None:
        self.keeper = Keeper(self.auditor.choice)

    def key(self) -> dict[str, Any]:
        """Return what must be the same in a run that goes on with the parts of this one."""
        source, model = self.source, self.auditor.model
        csv = source.csv
        return {
            "model": model.fingerprint,
            "protocol": self.auditor.protocol.digest,
            "engine": self.auditor.engine,
            "probabilities": model.link,
            "versions": library_versions(),
            "part_rows": self.part_rows,
            "claims": self.auditor.extent,
            "lattice": None if self.auditor.lattice is None else self.auditor.lattice.to_dict(),
            "other_baselines": self.auditor.other_baselines,
            "columns": [
                *(source.id_column, source.target, source.chosen.start, source.chosen.stop),
                *(csv.separator, csv.encoding, csv.decimal, *source.drop),
            ],
            "input": [[file.name, file.size] for file in source.files],
        }

    def is_finished(self, envelope: bytes | None) -> bool:
        """Return whether the folder holds this very audit, whole: it was interrupted after its end, in its report."""
        folder = self.journal.target
        if self.journal.finished_count() or not all(check.passed for check in check_integrity(folder)):
            return False
        found, auditor = StoredAudit(folder), self.auditor
        said = found.manifest
        if (
            found.extent != auditor.extent
            or said.lattice != auditor.lattice
            or (found.baselines is not None) != auditor.other_baselines
            or said.protocol_signature != (None if envelope is None else digest_bytes(envelope))
            or len(found.part_names) != math.ceil(len(found) / self.part_rows)
        ):
            return False
        digests = [input_digests_of(auditor, part) for part in self.source.parts(self.part_rows)]
        packed, rows = bytearray(b"".join(digests)), sum(map(len, digests)) // DIGEST_BYTES
        own = manifest_of(
            auditor.model,
            auditor.protocol,
            auditor.engine,
            said.engine.evaluations,
            said.engine.blackbox_rows,
            AuditedRows(packed_digest(packed), rows),
            said.root_digest,
            said.claims,
        )
        return own == replace(said, lattice=None, lattice_root_digest=None, baselines=None, protocol_signature=None)

    # --- making ---------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Make every part that is not finished yet."""
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as finisher:
            parts = self._known_rows()
            upcoming: Future[Any] = reader.submit(next, parts, None)
            finishing: Future[tuple[PartRecord, KeptRows | None]] | None = None
            place = 0
            while (given := upcoming.result()) is not None:
                upcoming = reader.submit(next, parts, None)
                part, known = given
                if known is not None:
                    self._wait(finishing)
                    finishing = None
                    self._note(known, rows_to_keep(self.auditor, part, self._claims_of(known)))
                else:
                    traced = traced_part(self.auditor, part, self.source)
                    self._wait(finishing)
                    finishing = finisher.submit(self._finish_part, place, traced, part)
                    del traced  # whoever finishes it lets go of it before the next one is made
                place += 1
            self._wait(finishing)

    def _known_rows(self) -> Iterator[tuple[RawPart, PartRecord | None]]:
        """Return the parts of the input, and what is finished of them; refuse an input that has changed."""
        for place, part in enumerate(self.source.parts(self.part_rows)):
            if not part.numbered:
                self._check_distinct(part)
            known = self.journal.record(place)
            if known is not None:
                digest = packed_digest(bytearray(input_digests_of(self.auditor, part)))
                check_unchanged(known, digest, part.start, self.journal)
            yield part, known

    def _check_distinct(self, part: RawPart) -> None:
        twice = self.seen.add(part.ids)
        if twice is not None:
            raise DataError(
                f"ids must be distinct, {twice!r} appears twice among the first {part.start + len(part)} rows"
            )

    def _claims_of(self, known: PartRecord) -> pa.Table | None:
        return self.journal.claims(known, KEPT_CLAIMS) if self.auditor.choice else None

    def _finish_part(self, place: int, traced: TracedBatch, part: RawPart) -> tuple[PartRecord, KeptRows | None]:
        batch = self.auditor.certify(traced)
        return self.journal.write(place, EncodedPart.of(batch)), rows_to_keep(self.auditor, part, batch.table)

    def _wait(self, finishing: Future[tuple[PartRecord, KeptRows | None]] | None) -> None:
        if finishing is not None:
            self._note(*finishing.result())

    def _note(self, record: PartRecord, kept: KeptRows | None) -> None:
        self.keeper.add(len(self.records), kept)
        self.records.append(record)
        self.rows_done += record.rows
        if self.report is not None:
            self.report(self.rows_done, self.source.count or 0)

    # --- making elsewhere -----------------------------------------------------------------------------------

    def work_on(self, workers: Workers) -> None:
        """Have workers make every part that is not finished yet."""
        collector = Collector(self.auditor, self.journal, self.source.count or 0, self.report, self.keeper)
        collector.take_all(workers.made(PartMaker(self.auditor, self.source), self._tasks()))
        self.records = collector.in_order()

    def _tasks(self) -> Iterator[Task]:
        """Return the parts to make: Parquet files are read by who makes them, others can only be read in order."""
        total, size = self.source.count, self.part_rows
        rows: Iterator[Span | InHand]
        if total is None:
            rows = (InHand(part) for part in self.source.parts(size))
        else:
            rows = (Span(start, min(size, total - start)) for start in range(0, total, size))
        for place, own in enumerate(rows):
            known = self.journal.record(place)
            yield Task(place, own, known, None if known is None else self._claims_of(known))
