"""A PartAuditor: a model and a protocol made ready once, for any number of rows.

An auditor can be pickled: a worker process receives the model, its fingerprint, the engine and the protocol with it and
repeats none of the decisions. A row's certificate does not depend on the rows it is audited with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from fragility.audits import Manifest
from fragility.audits.manifest import CLAIM, LIMITS, AuditedModel, AuditedRows, EngineUse
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.errors import Advice, DataError, EngineError, FragilityWarning, ModelError
from fragility.base.libraries import library_versions
from fragility.base.progress import Report
from fragility.blocks.all import BLOCKS, NO_BLOCKS, declare_blocks, place_blocks
from fragility.blocks.block import AuditBlock, Declaration, Requests
from fragility.blocks.claims import EXTENTS, FORMAT, Claims, Extent, claims_from, context_digest, table_of
from fragility.blocks.claims import row_digests as claim_digests
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import choose_engine, refusal
from fragility.engines.engine import Engine, Run
from fragility.engines.oracle import make_oracle
from fragility.engines.trace import HandedOver, Progress, Trace
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol, bind


class TracedRows(NamedTuple):
    """Rows, what the engine observed of them, and the columns of those blocks that every row has."""

    rows: EvidenceRows
    trace: Trace
    claims: Claims | None = None  # where blocks needed them
    blocks: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class CertifiedPart:
    """The certificates of some rows, and what the manifest needs to know of them."""

    table: pa.Table  # in the format's columns, digests included
    digests: bytes  # of the claims, 32 bytes per row
    blocks: dict[str, pa.Table]  # tables of those blocks that every row has, by name
    evaluations: int
    handed_over: HandedOver


@dataclass(frozen=True, eq=False)
class PartAuditor:
    """A model and a protocol made ready once; rows are then audited part by part, whatever the parts.

    The first rows decide what could turn out differently for each part: how the model's output becomes probabilities,
    and which engine is used.
    """

    model: Model  # as confirmed on the first rows
    protocol: Protocol
    native: type[Engine] | None  # None: the black box
    byte_budget: int = DEFAULT_BYTE_BUDGET
    extent: Extent = "full"
    declared: Mapping[str, Declaration] = field(default_factory=dict)  # of the blocks to make, by name
    by_default: frozenset[str] = frozenset()  # blocks that nobody asked for, which may be left out if they fail

    @classmethod
    def of(
        cls,
        rows: EvidenceRows,
        protocol: Protocol,
        engine: str = "auto",
        byte_budget: int = DEFAULT_BYTE_BUDGET,
        where: str = "",
    ) -> PartAuditor:
        """Return an auditor made ready on the first of the rows to audit; where: of which part a warning speaks."""
        return cls(rows.model, protocol, choose_engine(rows, protocol, engine, byte_budget, where), byte_budget)

    @classmethod
    def prepare(
        cls,
        model: Any,
        X: Any,
        protocol: Protocol,
        *,
        ids: Sequence[Any] | None = None,
        engine: str = "auto",
        claims: Extent = "full",
        byte_budget: int = DEFAULT_BYTE_BUDGET,
        wanted: Requests = NO_BLOCKS,
    ) -> PartAuditor:
        """Return an auditor of parts, made ready on ``X``, the first rows to audit.

        Every audit of the same rows must be made ready on the same first rows (some dozens are enough), since they
        decide which engine is used.
        """
        if claims not in EXTENTS:
            raise DataError(f"claims must be one of {', '.join(EXTENTS)}, got {claims!r}")
        rows = bind(Model.wrap(model), X, protocol, ids)
        auditor = replace(cls.of(rows, protocol, engine, byte_budget), extent=claims)
        auditor = auditor.with_blocks(wanted, rows, engine)
        assert auditor.context  # computed here, so that it travels with a pickled auditor
        return auditor

    def with_blocks(self, wanted: Requests, rows: EvidenceRows, engine: str) -> PartAuditor:
        """Return the auditor with the blocks that are wanted; rows: the first of the audit; engine: as asked for."""
        declared = declare_blocks(wanted, rows, self.protocol, Run(engine, self.byte_budget, False))
        asked = {name for name in declared if BLOCKS[name].is_asked(wanted)}
        return replace(self, declared=declared, by_default=frozenset(declared) - asked)

    @cached_property
    def blocks(self) -> dict[str, AuditBlock]:
        """The blocks to make, by name."""
        return place_blocks(self.declared, self.protocol, self.model.fingerprint, self.model.classes)

    @cached_property
    def context(self) -> bytes:
        """What binds a row's digest to protocol and model."""
        return context_digest(self.protocol.digest, self.model.fingerprint, self.model.classes)

    @property
    def engine(self) -> str:
        return BLACKBOX if self.native is None else self.native.name

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the libraries that have a part in the audit: those of the model, and of the engine."""
        needs = () if self.native is None else self.native.needs
        return library_versions(self.model.libraries.union(needs))

    def bind(self, X: Any, ids: Any = None, *, tried: bool = False) -> EvidenceRows:
        """Return further rows, bound; refuse rows for which the first decisions do not hold.

        tried: they are rows of the audit, on which the model was tried when they were audited.
        """
        rows = bind(self.model, X, self.protocol, ids, tried=tried)
        if rows.model.link != self.model.link:
            raise ModelError(
                f"{self.model.kind}: {self.model.link} gives the probabilities of the first rows, but not those of the "
                f"rows from {rows.ids[0]!r} on; give a model whose predict_proba follows one rule"
            )
        reason = None if self.native is None else refusal(self.engine, rows)
        if reason is not None:
            raise EngineError(
                f"the {self.engine} engine audited the first rows, but not those from {rows.ids[0]!r} on: {reason}; "
                "use ",
                Advice.argument("engine", "blackbox"),
            )
        return rows

    def make_ready(self, rows: EvidenceRows) -> Engine | None:
        """Return the engine, ready for rows of the form of these; None for the black box."""
        return None if self.native is None else self.native(rows)

    def trace(
        self, rows: EvidenceRows, progress: Progress | None = None, engine: Engine | None = None, parts: int = 1
    ) -> Trace:
        """Return the trace of rows bound to this model and protocol; a native engine's answers are checked per row.

        Some states are asked again alone and in other batches, unless there are fewer than four rows.

        engine: made ready before, for rows of the form of these. parts: among which those states are divided.
        """
        oracle = make_oracle(engine or self.make_ready(rows), rows)
        return oracle.trace(self.protocol, self.byte_budget, progress, parts)

    def trace_part(self, X: Any, ids: Sequence[Any] | None = None) -> TracedRows:
        """Return what is observed of raw rows: the first half of their audit, which uses every core."""
        rows = self.bind(X, ids)
        trace, whole = self.trace(rows), [block for block in self.blocks.values() if not block.declared.is_partial]
        if not whole:
            return TracedRows(rows, trace)
        claims, run = claims_from(trace, rows, self.protocol), Run(byte_budget=self.byte_budget, progress=False)
        return TracedRows(rows, trace, claims, {block.name: block.compute(rows, claims, run) for block in whole})

    def certify(self, traced: TracedRows) -> CertifiedPart:
        """Return the certificates of traced rows: the second half, which asks no model and may run in a thread."""
        rows, trace = traced.rows, traced.trace
        claims = claims_from(trace, rows, self.protocol) if traced.claims is None else traced.claims
        digests = claim_digests(claims, self.context, self.protocol.resolution)
        table = table_of(claims, digests, self.protocol, self.model.classes, extent=self.extent)
        ids = table.column("id").combine_chunks()
        blocks = {name: self.blocks[name].tabulate(ids, values) for name, values in traced.blocks.items()}
        return CertifiedPart(table, b"".join(digests), blocks, trace.evaluations, HandedOver.of(trace, rows.ids))

    def make_block(
        self, name: str, claims: pa.Table, bind_rows: Callable[[], EvidenceRows], progress: bool | Report | None = False
    ) -> pa.Table | None:
        """Return the table of a block of some rows; None, with a warning, if nobody asked for it and it fails.

        claims: those of the rows that blocks are made from. bind_rows: what returns the rows, if there are any.
        """
        block, ids = self.blocks[name], claims.column("id").combine_chunks()
        run = Run(byte_budget=self.byte_budget, progress=progress)
        caught, sentence = block.kind.gives_up if block.kind.gives_up and name in self.by_default else ((), "")
        if not len(ids):
            return block.tabulate(ids, {column.name: [] for column in block.columns})
        try:
            return block.tabulate(ids, block.compute(bind_rows(), claims, run))
        except caught as error:
            warnings.warn(FragilityWarning(sentence, error), stacklevel=3)
            return None

    def manifest(self, rows: AuditedRows, root_digest: str, evaluations: int, handed_over: int) -> Manifest:
        """Return the manifest of an audit; handed_over: rows for which the model was asked instead of the engine."""
        model, protocol = self.model, self.protocol
        return Manifest(
            format=FORMAT,
            claim=CLAIM,
            limits=LIMITS,
            protocol_digest=protocol.digest,
            model=AuditedModel(
                model.kind, model.fingerprint, tuple(model.classes), model.link, tuple(model.fingerprint_partial)
            ),
            input=rows,
            engine=EngineUse(
                name=self.engine,
                evaluations=evaluations,
                blackbox_rows=rows.rows if self.engine == BLACKBOX else handed_over,
            ),
            versions=self.versions,
            rows=rows.rows,
            root_digest=root_digest,
            claims=self.extent,
        )
