"""The lattice block: the smallest failing set of each row, and how likely its decision is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fragility.base.errors import EngineError
from fragility.blocks.block import Block, Column, Contradictions, Requests
from fragility.blocks.claims import Claims
from fragility.blocks.lattice.making import LATTICE_ENGINES, declare_lattice, search_rows
from fragility.blocks.lattice.recheck import LatticeRecheck
from fragility.blocks.lattice.values import (
    LatticeClaims,
    LatticeDeclaration,
    LatticeOfRow,
    check_declaration,
    columns_of,
    lattice_claims_of,
    lattice_contradictions,
    write_columns,
)
from fragility.engines.engine import Run
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel
from fragility.protocol import Protocol


class LatticeBlock(Block):
    """Smallest failing sets, asked for by ``lattice``, and failure probabilities, asked for by ``rates``."""

    name = "lattice"
    rows = "searched rows"
    declaration = LatticeDeclaration
    recheck = LatticeRecheck
    engines = LATTICE_ENGINES
    keywords = ("lattice", "rates")
    by_default = True
    gives_up = EngineError, "smallest failing sets were not searched: "

    def columns(self, declared: LatticeDeclaration, protocol: Protocol) -> list[Column]:
        return columns_of(declared, protocol)

    def declare(self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> LatticeDeclaration | None:
        return declare_lattice(rows, protocol, run.engine, wanted.get("rates"), wanted.get("lattice"))

    def check_declaration(self, declared: LatticeDeclaration, protocol: Protocol, fingerprint: str) -> None:
        check_declaration(declared, protocol, fingerprint)

    def make(
        self,
        rows: EvidenceRows,
        protocol: Protocol,
        declared: LatticeDeclaration,
        claims: Mapping[str, Any],
        run: Run,
    ) -> Mapping[str, Any]:
        found = search_rows(rows, protocol, declared, run.byte_budget, run.progress)
        return write_columns(found, declared, protocol)

    def read(self, table: pa.Table, declared: LatticeDeclaration, protocol: Protocol) -> LatticeClaims:
        return lattice_claims_of(table, declared, protocol)

    def find_contradictions(
        self,
        values: LatticeClaims,
        claims: Claims,
        declared: LatticeDeclaration,
        protocol: Protocol,
        classes: Sequence[ClassLabel],
    ) -> Contradictions:
        return lattice_contradictions(values, claims, declared, protocol)

    def read_row(self, row: Mapping[str, Any], declared: LatticeDeclaration, protocol: Protocol) -> LatticeOfRow:
        return LatticeOfRow.from_row(row, declared, protocol)
