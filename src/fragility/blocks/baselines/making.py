"""How a finding is computed again under other baselines."""

from __future__ import annotations

from typing import TypeAlias

from fragility.base.arrays import Floats, Integers
from fragility.blocks.baselines.comparison import BaselineComparison, comparison_table
from fragility.blocks.claims import claims_from
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import choose_engine
from fragility.engines.oracle import make_oracle
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol, bind

OneBaseline: TypeAlias = tuple[Integers, Floats]  # (n,) flip budgets and exposures


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
