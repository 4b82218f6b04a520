"""The intervals block: how far each field of a row may move before the decision flips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fragility.blocks.block import Block, Column, Contradictions, Requests
from fragility.blocks.claims import Claims
from fragility.blocks.intervals.making import declare_intervals, search_intervals, write_intervals
from fragility.blocks.intervals.recheck import IntervalsRecheck
from fragility.blocks.intervals.values import (
    IntervalsClaims,
    IntervalsDeclaration,
    check_intervals_declaration,
    columns_of,
    intervals_claims_of,
    intervals_contradictions,
    intervals_of_row,
    write_columns,
)
from fragility.engines.engine import Run
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel
from fragility.protocol import Protocol
from fragility.questions.modes.stability import StabilityInterval


class IntervalsBlock(Block):
    """Stability intervals, asked for by ``intervals``."""

    name = "intervals"
    rows = "rows with stability intervals"
    declaration = IntervalsDeclaration
    recheck = IntervalsRecheck

    def columns(self, declared: IntervalsDeclaration, protocol: Protocol) -> list[Column]:
        return columns_of()

    def declare(self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> IntervalsDeclaration:
        return declare_intervals(rows, protocol, run.engine, wanted["intervals"])

    def check_declaration(self, declared: IntervalsDeclaration, protocol: Protocol, fingerprint: str) -> None:
        check_intervals_declaration(declared, protocol)

    def make(
        self,
        rows: EvidenceRows,
        protocol: Protocol,
        declared: IntervalsDeclaration,
        claims: Mapping[str, Any],
        run: Run,
    ) -> Mapping[str, Any]:
        with run.show("stability intervals") as report:
            found = search_intervals(rows, protocol, declared, run.byte_budget, report)
        return write_columns(write_intervals(rows, found))

    def read(self, table: pa.Table, declared: IntervalsDeclaration, protocol: Protocol) -> IntervalsClaims:
        return intervals_claims_of(table, declared)

    def find_contradictions(
        self,
        values: IntervalsClaims,
        claims: Claims,
        declared: IntervalsDeclaration,
        protocol: Protocol,
        classes: Sequence[ClassLabel],
    ) -> Contradictions:
        return intervals_contradictions(values, claims, protocol, classes)

    def read_row(
        self, row: Mapping[str, Any], declared: IntervalsDeclaration, protocol: Protocol
    ) -> dict[str, StabilityInterval] | None:
        return intervals_of_row(row, declared, protocol)
