"""Digests of raw rows: what binds an audit to its input, and what rows are chosen by that no name can change."""

from __future__ import annotations

from fragility.canonical import Texts, row_digests
from fragility.evidence.bound import EvidenceRows
from fragility.evidence.rows import Rows

CONTENT_BYTES = 16


def content_keys(rows: EvidenceRows | Rows) -> list[bytes]:
    """Return 16 bytes per row: a hash of its raw values alone, by which rows are chosen whatever they are called."""
    source = rows.source if isinstance(rows, EvidenceRows) else rows
    return [digest[:CONTENT_BYTES] for digest in row_digests(source.columns())]


def input_row_digests(rows: EvidenceRows | Rows) -> list[bytes]:
    """Return one digest per row over its id and raw columns."""
    source = rows.source if isinstance(rows, EvidenceRows) else rows
    return row_digests({**source.columns(), "id\x00": Texts(map(str, source.ids))})
