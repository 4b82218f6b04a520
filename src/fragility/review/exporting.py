"""Decisions as a table, keyed by the digest of the certificate they speak of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from fragility.review.history import Entry, case_state, groups_text

# A spreadsheet runs a cell that begins with one of these as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def decisions_table(entries: Sequence[Entry], *, history: bool = False) -> pa.Table:
    """Return one row for each standing decision, or for each entry with ``history``; digest first."""
    by_case = sorted(entries, key=lambda entry: (entry.case.digest, entry.seq))
    chosen: list[tuple[Entry, str, bool]] = []
    for _, group in groupby(by_case, key=lambda entry: entry.case.digest):
        own = list(group)
        state = case_state(own)
        chosen += [(entry, state.status, entry in state.standing) for entry in (own if history else state.standing)]
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "digest": (pa.string(), [entry.case.digest for entry, _, _ in chosen]),
        "id": (pa.string(), [entry.case.row_id for entry, _, _ in chosen]),
        "audit": (pa.string(), [entry.case.audit for entry, _, _ in chosen]),
        "status": (pa.string(), [status for _, status, _ in chosen]),
        "decision": (pa.string(), [entry.action for entry, _, _ in chosen]),
        "groups": (pa.list_(pa.string()), [list(entry.groups) for entry, _, _ in chosen]),
        "reason": (pa.string(), [entry.reason for entry, _, _ in chosen]),
        "note": (pa.string(), [entry.note for entry, _, _ in chosen]),
        "reviewer": (pa.string(), [entry.reviewer for entry, _, _ in chosen]),
        "at": (pa.string(), [entry.at for entry, _, _ in chosen]),
        "blind": (pa.bool_(), [entry.blind for entry, _, _ in chosen]),
        "bulk": (pa.string(), [entry.bulk for entry, _, _ in chosen]),
        "entry": (pa.int64(), [entry.seq for entry, _, _ in chosen]),
        "undoes": (pa.int64(), [entry.undoes for entry, _, _ in chosen]),
        "stands": (pa.bool_(), [stands for _, _, stands in chosen]),
    }
    return pa.table({name: pa.array(values, type=kind) for name, (kind, values) in columns.items()})


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """Return the table as CSV can hold it: lists as JSON, and no text that a spreadsheet would run as a formula."""
    for i, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            values: list[str | None] = [groups_text(value) for value in table.column(i).to_pylist()]
        elif pa.types.is_string(field.type):
            values = [_harmless(value) for value in table.column(i).to_pylist()]
        else:
            continue
        table = table.set_column(i, field.name, pa.array(values, type=pa.string()))
    return table


def _harmless(text: str | None) -> str | None:
    return f"'{text}" if text is not None and text.startswith(FORMULA_STARTS) else text
