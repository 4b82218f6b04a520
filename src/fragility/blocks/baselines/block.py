"""The comparison of baselines as a block: flip budgets and exposures of chosen rows under each baseline."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import CertificateError, FragilityError, ProtocolError
from fragility.blocks.baselines.comparison import COMPARED_ROWS, BaselineComparison, comparison_table
from fragility.blocks.block import (
    NUMBER,
    Block,
    BlockRecheck,
    Column,
    Contradictions,
    Declaration,
    Requests,
    in_units,
)
from fragility.blocks.checks import Difference, find_differences
from fragility.blocks.choice import ChosenRows, name_engine
from fragility.blocks.claims import Claims, claims_from, whole_column
from fragility.blocks.tolerances import claim_tolerances
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import choose_engine, never_reads
from fragility.engines.engine import Run
from fragility.engines.oracle import make_oracle
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import OtherBatches, with_ties_settled
from fragility.models import ClassLabel
from fragility.pages.wording import join_names, write_count
from fragility.protocol import Protocol, bind

OneBaseline: TypeAlias = tuple[Integers, Floats]  # (n,) flip budgets and exposures


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinesDeclaration(Declaration):
    """What the finding was compared under."""

    baselines: list[str]  # the declared one, then all others that the model admits


@dataclass(eq=False)
class BaselinesRecheck(BlockRecheck):
    """Flip budgets and exposures under the other baselines, recomputed by asking the model."""

    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        declared, differences = self.own.protocol, list[Difference]()
        self.never = self.never or never_reads(self.own.declared.engine, rows)
        claimed = self.own.read(block)
        for name in claimed.baselines[1:]:
            protocol = declared.with_baseline(name)
            bound = OtherBatches.bind(bind_under(rows, declared, protocol), secrets.randbits(128))
            other = with_ties_settled(bound, claims.predicted, protocol.resolution)
            fresh = claims_from(trace_blackbox(other, protocol), other, protocol)
            tolerance = claim_tolerances(fresh, protocol, self.tolerance)["exposure"]
            budgets, exposures = claimed.flip_budgets(name), claimed.exposures(name)
            differences += find_differences(rows.ids, f"flip_budget_{name}", budgets, fresh.flip_budget)
            differences += find_differences(rows.ids, f"exposure_{name}", exposures, fresh.exposure, tolerance)
        return differences

    def describe(self) -> str:
        others = join_names(list(list_baselines(self.own.protocol)[1:]))
        return f"{write_count(self.rows, 'row')} recomputed under {others}, {self.result}"


class BaselinesBlock(Block):
    """The finding under other baselines, asked for by ``baselines``."""

    name = "baselines"
    rows = "rows compared under other baselines"
    declaration = BaselinesDeclaration
    recheck = BaselinesRecheck
    by = "content"
    claims = ("flip_budget", "exposure")
    by_default = True
    in_selections = False  # the verdict is about the whole audit
    gives_up = FragilityError, "the finding was not compared under other baselines: "

    def columns(self, declared: BaselinesDeclaration, protocol: Protocol) -> list[Column]:
        return [
            column
            for name in declared.baselines
            for column in (
                Column(f"flip_budget_{name}", pa.int32(), NUMBER),
                Column(f"exposure_{name}", pa.float64(), in_units()),
            )
        ]

    def declare(
        self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run
    ) -> BaselinesDeclaration | None:
        if not protocol.alternatives:
            if wanted.get("baselines") is None:
                return None
            raise ProtocolError(
                "the protocol stores no other baseline that the model admits, so there is none to compare"
            )
        return BaselinesDeclaration(
            engine=name_engine(rows, run.engine),
            rows=ChosenRows(COMPARED_ROWS, "content"),
            baselines=list(list_baselines(protocol)),
        )

    def check_declaration(self, declared: BaselinesDeclaration, protocol: Protocol, fingerprint: str) -> None:
        known = list_baselines(protocol)
        if tuple(declared.baselines) != known or len(known) < 2:
            raise CertificateError(
                f"the comparison is of the baselines {', '.join(declared.baselines)}, the protocol has "
                f"{', '.join(known)}"
            )
        if declared.rows != ChosenRows(COMPARED_ROWS, "content"):
            raise CertificateError(f"blocks.baselines.rows.most in the manifest must be {COMPARED_ROWS}")

    def make(
        self,
        rows: EvidenceRows,
        protocol: Protocol,
        declared: BaselinesDeclaration,
        claims: Mapping[str, Any],
        run: Run,
    ) -> Mapping[str, Any]:
        own = np.asarray(claims["flip_budget"], dtype=np.int64), np.asarray(claims["exposure"], dtype=np.float64)
        table = compare_rows(rows, protocol, own, declared.engine, run.byte_budget).table
        return {name: table.column(name).combine_chunks() for name in table.column_names[1:]}

    def read(self, table: pa.Table, declared: BaselinesDeclaration, protocol: Protocol) -> BaselineComparison:
        names = [column.name for column in self.columns(declared, protocol)]
        comparison = BaselineComparison(table.select(["id", *names]), tuple(declared.baselines), protocol.depth)
        for name in comparison.baselines:
            whole_column(table, f"flip_budget_{name}")
            budgets, exposures = comparison.flip_budgets(name), comparison.exposures(name)
            if (
                not ((budgets >= 1) & (budgets <= protocol.depth + 1)).all()
                or not ((exposures >= 0) & (exposures <= 1)).all()
            ):
                raise CertificateError(
                    f"the table of baselines holds an impossible flip budget or exposure under {name}"
                )
        return comparison

    def find_contradictions(
        self,
        values: BaselineComparison,
        claims: Claims,
        declared: BaselinesDeclaration,
        protocol: Protocol,
        classes: Sequence[ClassLabel],
    ) -> Contradictions:
        own = protocol.baseline
        wrong = {
            f"flip_budget_{own}": values.flip_budgets(own) != claims.flip_budget,
            f"exposure_{own}": values.exposures(own) != claims.exposure,
        }
        return [(int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad)]


# --- computing a finding again under other baselines ---------------------------------------------------------


def list_baselines(protocol: Protocol) -> tuple[str, ...]:
    """Return the declared baseline, and the others that the model admits."""
    return (protocol.baseline, *protocol.alternatives)


def compare_rows(
    rows: EvidenceRows, protocol: Protocol, own: OneBaseline, engine: str, byte_budget: int
) -> BaselineComparison:
    """Compare rows that are bound under the declared baseline; own: their claims under it, made by ``engine``."""
    others = engine if engine == BLACKBOX else "auto"  # another baseline may be in a space that this engine cannot read
    claims = [(protocol.baseline, *own)]
    for name in protocol.alternatives:
        other = protocol.with_baseline(name)
        where = f" where the finding is compared under the baseline {name!r}, and only there"
        claims.append((name, *claims_under(bind_under(rows, protocol, other), other, others, byte_budget, where)[1]))
    return BaselineComparison(comparison_table(rows.ids, claims), list_baselines(protocol), protocol.depth)


def bind_under(rows: EvidenceRows, declared: Protocol, other: Protocol) -> EvidenceRows:
    """Return raw rows that are bound under one protocol, bound under the same with another baseline."""
    tried = other.space == declared.space
    return bind(rows.model, rows.source.native, other, rows.ids, tried=tried)


def claims_under(
    rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int, where: str = ""
) -> tuple[str, OneBaseline]:
    """Return the engine that was used, and what it found; where: of which baseline a warning speaks."""
    native = choose_engine(rows, protocol, engine, byte_budget, where)
    trace = make_oracle(None if native is None else native(rows), rows).trace(protocol, byte_budget)
    claims = claims_from(trace, rows, protocol)
    return BLACKBOX if native is None else native.name, (claims.flip_budget, claims.exposure)
