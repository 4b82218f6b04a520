"""Tables that a cluster holds: the pure function from rows to certificates, and the folder that becomes of them.

Neither Ray nor Spark keeps the order of rows. A folder of certificates has one, so it is restored by sorting by id
before the rows are cut into parts; the audit is then the one that a single machine makes of the sorted rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.auditing.batch import BatchAuditor, prepare
from fragility.auditing.journal import Journal
from fragility.auditing.keeping import Keeper
from fragility.auditing.making import Collector, Failure, MadePart, finish_audit
from fragility.certificates import Extent, StoredAudit, schema_of, writing_into
from fragility.engines.trace import Progress
from fragility.errors import DataError
from fragility.progress import progress_bar
from fragility.protocol import Protocol
from fragility.tables import RawPart


@dataclass(frozen=True)
class Columns:
    """Which columns are no fields."""

    id: str
    target: str | None = None

    def check(self, names: Sequence[str]) -> None:
        """Refuse a table without the ids."""
        if self.id not in names:
            raise DataError(f"the id column {self.id!r} is not among the columns {', '.join(names)}")

    def part(self, rows: pa.Table, start: int = 0) -> RawPart:
        """Return rows without their ids and labels."""
        ids = rows.column(self.id)
        if ids.null_count:
            raise DataError(f"the id column {self.id!r} has rows without an id; every row needs a distinct one")
        fields = rows.drop_columns([name for name in (self.id, self.target) if name in rows.column_names])
        return RawPart(fields.replace_schema_metadata(None).to_pandas(), ids.to_pylist(), start)


@dataclass(frozen=True, eq=False)
class TableAuditor:
    """Rows in, their certificates out: a table for a table, whatever rows it holds and wherever it is called."""

    auditor: BatchAuditor
    columns: Columns

    def __call__(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema(rows.schema.field(self.columns.id).type).empty_table()
        part = self.columns.part(rows)
        return self.auditor.audit(part.frame, part.ids).table

    def schema(self, id_type: pa.DataType) -> pa.Schema:
        """Return the columns of the certificates of rows with ids of this type."""
        kept = pa.int64() if pa.types.is_integer(id_type) else pa.string()
        return schema_of(self.auditor.protocol, self.auditor.model.classes, kept, extent=self.auditor.extent)


def prepare_table(
    model: Any,
    first: pa.Table,
    protocol: Protocol,
    columns: Columns,
    *,
    engine: str,
    claims: Extent,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    in_folder: bool = True,
) -> TableAuditor:
    """Return the function, made ready on the first rows.

    in_folder: whether a folder will be written, with what ``audit_files`` finds when all rows were audited.
    """
    if not first.num_rows:
        raise DataError("there are no rows to audit; at least one was expected")
    part = columns.part(first)
    ready = prepare(
        model,
        part.frame,
        protocol,
        ids=part.ids,
        engine=engine,
        claims=claims,
        byte_budget=byte_budget,
        lattice=None if in_folder else False,
        other_baselines=in_folder,
    )
    return TableAuditor(ready, columns)


def check_part_rows(part_rows: int) -> None:
    if part_rows < 1:
        raise DataError(f"part_rows must be at least 1, got {part_rows}")


def check_ascending(part: RawPart, ids: pa.ChunkedArray) -> RawPart:
    """Return a part of sorted rows; refuse one with an id twice, and rows that are not sorted after all."""
    plain = ids.combine_chunks()
    falling = pc.greater_equal(plain[:-1], plain[1:])
    if pc.any(falling).as_py():
        place = falling.to_pylist().index(True)
        raise DataError(f"ids must be distinct, {part.ids[place]!r} appears twice")
    return part


def collect(
    out: str | os.PathLike[str],
    auditor: BatchAuditor,
    parts: Iterable[MadePart | Failure],
    total: int,
    progress: bool | Progress | None,
) -> StoredAudit:
    """Write the parts of a sorted table to a folder, and return the audit there."""
    with writing_into(out, patience=0.0) as (target, alone), progress_bar("auditing", progress) as report:
        journal = Journal(target)
        journal.begin({}, resume=False)
        try:
            collector = Collector(auditor, journal, total, report, Keeper(auditor.choice))
            collector.take_all(parts)
            finish_audit(journal, auditor, collector.in_order(), collector.keeper, alone)
        except BaseException:
            journal.discard()  # nobody could go on with it: what the cluster held is gone
            raise
    return StoredAudit(out)
