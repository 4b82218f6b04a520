"""A PartAuditor: a model and a protocol made ready once, for any number of rows.

An auditor can be pickled: a worker process receives the model, its fingerprint, the engine and the protocol with it and
repeats none of the decisions. A row's certificate does not depend on the rows it is audited with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from fragility.audits import IntervalsDeclaration, LatticeDeclaration, Manifest, ModesDeclaration
from fragility.audits.manifest import CLAIM, LIMITS, AuditedModel, AuditedRows, EngineUse, Tolerance
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.errors import Advice, DataError, EngineError, ModelError
from fragility.base.libraries import library_versions
from fragility.blocks.claims import EXTENTS, FORMAT, Extent, claims_from, context_digest, table_of
from fragility.blocks.claims import row_digests as claim_digests
from fragility.blocks.intervals.making import WantedIntervals, declare_intervals, intervals_block
from fragility.blocks.intervals.values import IntervalsClaims, intervals_context, with_intervals
from fragility.blocks.lattice.making import declare_lattice, lattice_of_rows
from fragility.blocks.lattice.values import LatticeClaims, lattice_context, with_block
from fragility.blocks.modes import ModesClaims, WantedModes, declare_modes, modes_context, modes_of_rows, with_modes
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import choose_engine, refusal
from fragility.engines.engine import Engine
from fragility.engines.oracle import make_oracle
from fragility.engines.trace import HandedOver, Progress, Trace
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.protocol import Protocol, bind


class TracedRows(NamedTuple):
    """Rows, what the engine observed of them, and those of their blocks that every row has."""

    rows: EvidenceRows
    trace: Trace
    block: LatticeClaims | None = None
    modes: ModesClaims | None = None
    intervals: IntervalsClaims | None = None


@dataclass(frozen=True, eq=False)
class CertifiedPart:
    """The certificates of some rows, and what the manifest needs to know of them."""

    table: pa.Table  # in the format's columns, digests included
    digests: bytes  # of the claims, 32 bytes per row
    beside: dict[str, pa.Table]  # ids and blocks in tables of their own, by name, where every row has one
    block_digests: bytes  # of the lattice block, then of each block beside: 32 bytes per row and block
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
    lattice: LatticeDeclaration | None = None  # how the lattice block is searched; None: there is no block
    other_baselines: bool = False  # whether the finding is computed again under other baselines
    modes: ModesDeclaration | None = None  # how the modes block is made; None: there is no block
    intervals: IntervalsDeclaration | None = None  # the same of the intervals block

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
        lattice: bool | None = None,
        rates: Any = None,
        other_baselines: bool = False,
        modes: WantedModes = None,
        intervals: WantedIntervals = None,
    ) -> PartAuditor:
        """Return an auditor of parts, made ready on ``X``, the first rows to audit.

        Every audit of the same rows must be made ready on the same first rows (some dozens are enough), since they
        decide which engine is used.
        """
        if claims not in EXTENTS:
            raise DataError(f"claims must be one of {', '.join(EXTENTS)}, got {claims!r}")
        rows = bind(Model.wrap(model), X, protocol, ids)
        auditor = replace(
            cls.of(rows, protocol, engine, byte_budget),
            extent=claims,
            lattice=declare_lattice(rows, protocol, engine, rates, lattice),
            other_baselines=other_baselines and bool(protocol.alternatives),
            modes=declare_modes(rows, protocol, engine, modes),
            intervals=declare_intervals(rows, protocol, engine, intervals),
        )
        assert auditor.context  # computed here, so that it travels with a pickled auditor
        return auditor

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

    def trace(self, rows: EvidenceRows, progress: Progress | None = None, engine: Engine | None = None) -> Trace:
        """Return the trace of rows bound to this model and protocol; a native engine's answers are checked per row.

        Some states are asked again alone and in other batches, unless there are fewer than four rows.

        engine: made ready before, for rows of the form of these.
        """
        return make_oracle(engine or self.make_ready(rows), rows).trace(self.protocol, self.byte_budget, progress)

    def trace_part(self, X: Any, ids: Sequence[Any] | None = None) -> TracedRows:
        """Return what is observed of raw rows: the first half of their audit, which uses every core."""
        rows = self.bind(X, ids)
        trace, block, modes, intervals = self.trace(rows), None, None, None
        if self.lattice is not None and not self.lattice.is_partial:
            block = lattice_of_rows(rows, self.protocol, self.lattice, self.byte_budget)
        if self.modes is not None and not self.modes.is_partial:
            modes = modes_of_rows(rows, self.protocol, self.modes, trace.margin, self.byte_budget)
        if self.intervals is not None and not self.intervals.is_partial:
            intervals = intervals_block(rows, self.protocol, self.intervals, self.byte_budget)
        return TracedRows(rows, trace, block, modes, intervals)

    def certify(self, traced: TracedRows) -> CertifiedPart:
        """Return the certificates of traced rows: the second half, which asks no model and may run in a thread."""
        rows, trace, block, modes, intervals = traced
        claims = claims_from(trace, rows, self.protocol)
        digests = claim_digests(claims, self.context, self.protocol.resolution)
        table = table_of(claims, digests, self.protocol, self.model.classes, extent=self.extent)
        block_digests, beside = list[bytes](), dict[str, pa.Table]()
        if block is not None:
            table, block_digests = self.add_block(table, block)
        if modes is not None:
            beside["modes"], own = self.add_modes(table.select(["id"]), modes)
            block_digests += own
        if intervals is not None:
            beside["intervals"], own = self.add_intervals(table.select(["id"]), intervals)
            block_digests += own
        handed_over = HandedOver.of(trace, rows.ids)
        return CertifiedPart(table, b"".join(digests), beside, b"".join(block_digests), trace.evaluations, handed_over)

    def add_block(self, table: pa.Table, block: LatticeClaims) -> tuple[pa.Table, list[bytes]]:
        """Return a table of ids with the columns of a lattice block, and the digest of each row's block."""
        assert self.lattice is not None
        model = self.model
        context = lattice_context(self.protocol.digest, model.fingerprint, model.classes, self.lattice)
        return with_block(table, block, self.lattice, context, self.protocol)

    def add_modes(self, table: pa.Table, block: ModesClaims) -> tuple[pa.Table, list[bytes]]:
        """Return a table of ids with the columns of a modes block, and the digest of each row's block."""
        assert self.modes is not None
        model = self.model
        context = modes_context(self.protocol.digest, model.fingerprint, model.classes, self.modes)
        return with_modes(table, block, self.modes, context, self.protocol.resolution)

    def add_intervals(self, table: pa.Table, block: IntervalsClaims) -> tuple[pa.Table, list[bytes]]:
        """Return a table of ids with the columns of an intervals block, and the digest of each row's block."""
        assert self.intervals is not None
        model = self.model
        context = intervals_context(self.protocol.digest, model.fingerprint, model.classes, self.intervals)
        return with_intervals(table, block, self.intervals, context)

    def manifest(self, rows: AuditedRows, root_digest: str, evaluations: int, handed_over: int) -> Manifest:
        """Return the manifest of an audit; handed_over: rows for which the model was asked instead of the engine."""
        model, protocol = self.model, self.protocol
        return Manifest(
            format=FORMAT,
            claim=CLAIM,
            limits=LIMITS,
            protocol_digest=protocol.digest,
            training_digest=protocol.training_digest,
            model=AuditedModel(
                model.kind, model.fingerprint, tuple(model.classes), model.link, tuple(model.fingerprint_partial)
            ),
            input=rows,
            engine=EngineUse(
                name=self.engine,
                evaluations=evaluations,
                paper_evaluations=rows.rows * protocol.states_per_row,
                blackbox_rows=rows.rows if self.engine == BLACKBOX else handed_over,
            ),
            tolerance=Tolerance.of(protocol),
            versions=self.versions,
            rows=rows.rows,
            root_digest=root_digest,
            claims=self.extent,
        )
