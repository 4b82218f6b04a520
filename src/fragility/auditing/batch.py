"""One batch of rows to one table of certificates: what every way of auditing many rows is made of.

A `BatchAuditor` is made ready once and can be pickled, so that a worker process or another machine receives the model,
its fingerprint, the engine and the protocol with it and repeats none of the decisions. `audit` is then a pure function
of a batch: a row's certificate does not depend on the rows it came with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.auditing.auditor import Auditor, certified, input_row_digests
from fragility.auditing.baselines import compare_if_possible, stated_claims
from fragility.auditing.keeping import Choice, Keeper
from fragility.auditing.lattice import declare_lattice, lattice_of_rows, no_lattice, search_most_exposed
from fragility.certificates import (
    EXTENTS,
    BaselineComparison,
    Extent,
    LatticeClaims,
    LatticeDeclaration,
    lattice_context,
    with_block,
)
from fragility.engines.trace import HandedOver, Trace
from fragility.errors import DataError
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol, bind


@dataclass(frozen=True, eq=False)
class TracedBatch:
    """Rows whose states an engine has observed; what is left to do holds no lock of the engine."""

    rows: EvidenceRows
    trace: Trace
    block: LatticeClaims | None = None


@dataclass(frozen=True, eq=False)
class AuditedBatch:
    """The certificates of a batch, and what the manifest needs to know of it."""

    table: pa.Table  # in the format's columns, digests included
    digests: bytes  # 32 bytes a row, one after the other: of its claims
    input_digests: bytes  # the same: of its id and raw fields
    evaluations: int
    handed_over: HandedOver
    lattice_digests: bytes = b""  # the same: of its lattice block, where there is one

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, eq=False)
class FoundBlock:
    """The block of the most exposed rows, most exposed first."""

    table: pa.Table  # ids, and the block's columns
    digests: bytes  # 32 bytes per row


@dataclass(frozen=True, eq=False)
class BatchAuditor:
    """A model, a protocol and an engine made ready on the first rows, for any number of batches."""

    auditor: Auditor
    context: bytes  # what binds a row's digest to protocol and model
    extent: Extent
    lattice: LatticeDeclaration | None = None  # what the lattice block is searched with, where there is one
    other_baselines: bool = False  # whether the finding is computed again under other baselines

    @property
    def model(self) -> Model:
        return self.auditor.model

    @property
    def protocol(self) -> Protocol:
        return self.auditor.protocol

    @property
    def engine(self) -> str:
        return self.auditor.engine

    def audit(self, X: Any, ids: Sequence[Any] | None = None) -> AuditedBatch:
        """Return the certificates of raw rows (an Arrow table or batch, or whatever :func:`fragility.audit` takes)."""
        return self.certify(self.trace(X, ids))

    def trace(self, X: Any, ids: Sequence[Any] | None = None) -> TracedBatch:
        """Return what the engine observes on raw rows: the first half of an audit, which uses every core."""
        rows = self.auditor.bind(frame_of(X), ids)
        return TracedBatch(rows, self.auditor.trace(rows), self._block(rows))

    def _block(self, rows: EvidenceRows) -> LatticeClaims | None:
        if self.lattice is None or self.lattice.is_partial:
            return None
        return lattice_of_rows(rows, self.protocol, self.lattice, self.auditor.byte_budget)

    @property
    def choice(self) -> Choice:
        """The rows to keep for the end of the audit."""
        declared = self.lattice
        return Choice((declared.most_exposed or 0) if declared is not None else 0, self.other_baselines)

    def search_kept(self, keeper: Keeper) -> FoundBlock | None:
        """Return the block of the most exposed rows, the most exposed first; None where there is none."""
        declared = self.lattice
        if declared is None or declared.most_exposed is None:
            return None
        tables, digests, claims = list[pa.Table](), list[bytes](), list[pa.Table]()
        for rows in keeper.chosen(keeper.choice.exposed):
            found: LatticeClaims | None = no_lattice(self.protocol)
            if len(rows):
                bound = self.auditor.bind(frame_of(rows.frame), rows.ids)
                found = search_most_exposed(bound, self.protocol, declared, self.auditor.byte_budget)
            if found is None:
                return None
            table, own = self._with_block(rows.claims.select(["id"]), found, declared)
            tables.append(table)
            digests += own
            claims.append(rows.claims)
        order = keeper.choice.exposed(pa.concat_tables(claims))
        table = pa.concat_tables(tables).take(pa.array(order, type=pa.int64()))
        return FoundBlock(table, b"".join(digests[i] for i in order))

    def compare_kept(self, keeper: Keeper) -> BaselineComparison | None:
        """Return the confident rows under other baselines; None where there is nothing to compare."""
        if not self.other_baselines:
            return None
        found, claims = list[BaselineComparison](), list[pa.Table]()
        for rows in keeper.chosen(keeper.choice.to_compare):
            if not len(rows):
                return None
            bound = self.auditor.bind(frame_of(rows.frame), rows.ids)
            compared = compare_if_possible(
                bound, self.protocol, stated_claims(rows.claims), self.engine, self.auditor.byte_budget
            )
            if compared is None:
                return None
            found.append(compared)
            claims.append(rows.claims)
        order = pa.array(keeper.choice.to_compare(pa.concat_tables(claims)), type=pa.int64())
        table = pa.concat_tables([one.table for one in found]).take(order).combine_chunks()
        return BaselineComparison(table, found[0].baselines, self.protocol.depth)

    def _with_block(
        self, table: pa.Table, block: LatticeClaims, declared: LatticeDeclaration
    ) -> tuple[pa.Table, list[bytes]]:
        return with_block(table, block, declared, self._lattice_context(declared), self.protocol)

    def certify(self, traced: TracedBatch) -> AuditedBatch:
        """Return the certificates of traced rows: the second half, which can run beside the next batch's first."""
        part = certified(traced.trace, traced.rows, self.protocol, self.context, self.extent)
        table, block_digests = part.table, list[bytes]()
        if traced.block is not None and self.lattice is not None:
            table, block_digests = self._with_block(table, traced.block, self.lattice)
        return AuditedBatch(
            table=table,
            digests=b"".join(part.digests),
            input_digests=b"".join(input_row_digests(traced.rows)),
            evaluations=part.evaluations,
            handed_over=part.handed_over,
            lattice_digests=b"".join(block_digests),
        )

    def _lattice_context(self, declared: LatticeDeclaration) -> bytes:
        return lattice_context(self.protocol.digest, self.model.fingerprint, self.model.classes, declared)


def prepare(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    ids: Sequence[Any] | None = None,
    engine: str = "auto",
    claims: Extent = "full",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    lattice: bool | None = None,
    rates: Any = None,
    other_baselines: bool = False,
) -> BatchAuditor:
    """Return an auditor of batches, made ready on ``X``, the first rows to audit.

    Every audit of the same rows must be made ready on the same first rows (some dozens are enough), since they decide
    which engine is used.
    """
    if claims not in EXTENTS:
        raise DataError(f"claims must be one of {', '.join(EXTENTS)}, got {claims!r}")
    rows = bind(Model.wrap(model), frame_of(X), protocol, ids)
    ready = Auditor.of(rows, protocol, engine, byte_budget)
    declared = declare_lattice(rows, protocol, engine, rates, lattice)
    return BatchAuditor(ready, ready.context, claims, declared, other_baselines and bool(protocol.alternatives))


def frame_of(X: Any) -> Any:
    """Return Arrow rows as the pandas frame that reading their file gives; other rows as they are."""
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    return X.to_pandas() if isinstance(X, pa.Table) else X


def ids_of(frame: pd.DataFrame, id_column: str | None) -> list[Any] | None:
    """Return the values of the id column; None where there is none."""
    return None if id_column is None else list(frame[id_column].tolist())
