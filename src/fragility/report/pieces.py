"""Pieces of an audit as arrays: what the report reads from anything that hands out its table piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.certificates import BaselineComparison, LatticeDeclaration, Manifest
from fragility.errors import CertificateError
from fragility.models import ClassLabel
from fragility.protocol import Protocol as Pi

PIECE_ROWS = 1 << 16
PLAIN = (
    *("id", "predicted", "confidence", "margin", "flip_budget", "flipped"),
    *("rcma", "fds", "exposure", "independent_loss", "common_loss", "path"),
)
SEARCHED = ("smallest_state", "smallest_size", "smallest_set", "smallest_count")
FAILURES = ("failure_probability", "failure_low", "failure_high", "failure_exact")
DETAILS = ("path_margin", "path_predicted", "path_collapse", "one_step_drop")


class Audit(Protocol):
    """Certificates in memory, or an audit folder read part by part."""

    manifest: Manifest
    protocol: Pi

    @property
    def classes(self) -> tuple[ClassLabel, ...]:
        """The model's classes."""
        ...

    @property
    def baselines(self) -> BaselineComparison | None:
        """The same rows under other baselines, where they were compared."""
        ...

    def __len__(self) -> int: ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Return the table's next rows."""
        ...


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of an audit: n rows, K depth, P operators, G groups. Classes and groups are indices."""

    table: pa.Table
    start: int  # position of the first row
    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    flip_budget: Integers  # (n,)
    flipped: Booleans  # (n,)
    losses: Floats  # (n, 3) targeted, independent, common; NaN where the protocol does not fade everything
    exposure: Floats  # (n,)
    thresholds: Floats  # (n, P) NaN where no severity flips
    path: Integers  # (n, K)
    collapse: Floats | None  # (n, K+1)
    drops: Floats | None  # (n, G)

    def __len__(self) -> int:
        return len(self.exposure)


def is_detailed(audit: Audit) -> bool:
    """Whether the audit holds every step of every path, not only what follows from them."""
    return bool(audit.manifest.claims == "full")


def columns_of(audit: Audit) -> list[str]:
    """Return the columns the report reads."""
    thresholds = [f"lambda_{operator}" for operator in audit.protocol.operators]
    return [*PLAIN, *thresholds, *(DETAILS if is_detailed(audit) else ()), *_lattice_columns(audit)]


def _lattice_columns(audit: Audit) -> tuple[str, ...]:
    declared = audit.manifest.lattice
    if declared is None:
        return ()
    return SEARCHED if failure_condition(declared) is None else SEARCHED + FAILURES


def failure_condition(declared: LatticeDeclaration | None) -> str | None:
    """Return how a lattice block takes evidence to fail, in words; None where it declares no failures."""
    if declared is None:
        return None
    rates, events = declared.rates, declared.events
    if rates:
        same = len(set(rates.values())) == 1
        each = f"{next(iter(rates.values())):.2g}"
        return f"if each group fails on its own with probability {each}" if same else "at the declared rates of failure"
    return "under the recorded outages" if events else None


def pieces_of(audit: Audit, columns: Sequence[str]) -> Iterator[Piece]:
    """Return the audit's rows, a bounded number at a time."""
    start = 0
    for batch in audit.batches(columns):
        for begin in range(0, batch.num_rows, PIECE_ROWS):
            table = batch.slice(begin, PIECE_ROWS).combine_chunks()
            yield _piece(table, start, audit)
            start += table.num_rows


def _piece(table: pa.Table, start: int, audit: Audit) -> Piece:
    protocol, n = audit.protocol, table.num_rows
    ways = [_numbers(table, name) for name in ("rcma", "independent_loss", "common_loss")]
    thresholds = [_numbers(table, f"lambda_{operator}") for operator in protocol.operators]
    detailed = "path_collapse" in table.column_names
    return Piece(
        table=table,
        start=start,
        predicted=coded(table.column("predicted"), audit.classes),
        confidence=_numbers(table, "confidence"),
        margin=_numbers(table, "margin"),
        flip_budget=np.asarray(table.column("flip_budget").to_numpy(), dtype=np.int64),
        flipped=np.asarray(table.column("flipped").to_numpy(), dtype=bool),
        losses=np.stack(ways, axis=1),
        exposure=_numbers(table, "exposure"),
        thresholds=np.stack(thresholds, axis=1) if thresholds else np.empty((n, 0)),
        path=coded(_items(table, "path"), protocol.group_names).reshape(n, protocol.depth),
        collapse=_lists(table, "path_collapse", protocol.depth + 1) if detailed else None,
        drops=_lists(table, "one_step_drop", len(protocol.groups)) if detailed else None,
    )


def _numbers(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def _items(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column.flatten() if table.num_rows else column.values


def _lists(table: pa.Table, name: str, width: int) -> Floats:
    return np.asarray(_items(table, name).to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, width)


def coded(values: Any, known: Sequence[Any]) -> Integers:
    """Return the place of each value among the known ones."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    encoded = whole.dictionary_encode()
    place: Mapping[Any, int] = {value: index for index, value in enumerate(known)}
    try:
        table = np.array([place[value] for value in encoded.dictionary.to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise CertificateError(f"a certificate names {error.args[0]!r}, which the audit does not declare") from error
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return cast(Integers, table[codes] if len(table) else codes.astype(np.int64))
