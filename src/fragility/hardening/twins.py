"""Twins: degraded copies of training rows (SPEC section 13).

With x_i a row, xbar the baseline, g(j) the group of column j, and uniforms u in [0, 1) of the draw format
``fragility-draw/1`` (stream ``harden``, draw number = number of the copy, G groups):

    mask       twin_ij = xbar_j              where u_{g(j)} < rate, else x_ij
    attenuate  twin_ij = x_ij + s (xbar_j - x_ij)   where u_{g(j)} < rate, with s the severity number
               floor(u_{G + g(j)} * L) of the protocol's L severities
    outages    twin_ij = xbar_j              where u_1 < rate and event number floor(u_0 * N) lacked a field of g(j)

The key of a row is the digest of its content and its rank among rows of equal content (by label, then by weight).
So the twins of a table do not depend on the order of its rows, its index or the scale of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.canonical import row_digests
from fragility.errors import Advice, EvidenceError, ProtocolError
from fragility.evidence import blend
from fragility.evidence.codec import RawCodec, as_matrix
from fragility.evidence.rows import Rows, stacked
from fragility.protocol import Protocol
from fragility.stress.declaration import outage_events
from fragility.stress.draws import Words, row_keys, strikes, uniforms
from fragility.stress.stressors import Outages

Degradation: TypeAlias = Literal["mask", "attenuate", "outages"]
DEGRADATIONS: tuple[str, ...] = get_args(Degradation)
DEFAULT_RATE = 0.2
# A twin that suffers no event of a log would be a copy of its row.
DEFAULT_OUTAGE_RATE = 1.0
STREAM = "harden"
BLOCK_BYTES = 16 * MEBIBYTE  # rows degraded at a time; no result depends on it
SPARSE_LIMIT = 4096 * MEBIBYTE  # memory that the twins of a sparse matrix may take
SPARSE_ENTRY_BYTES = 12  # a float64 and its column


@dataclass(frozen=True, slots=True)
class Hardening:
    """How a copy of a training row is degraded; ``rate`` None is the default, ``outages`` may be any log of them."""

    rate: Any
    copies: int
    kind: Degradation
    outages: Any
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in DEGRADATIONS:
            raise ProtocolError(f"kind must be one of {', '.join(DEGRADATIONS)}, got {self.kind!r}")
        if self.rate is None:
            object.__setattr__(self, "rate", DEFAULT_OUTAGE_RATE if self.kind == "outages" else DEFAULT_RATE)
        is_number = isinstance(self.rate, (int, float, np.integer, np.floating)) and not isinstance(self.rate, bool)
        if not is_number or not 0.0 <= self.rate <= 1.0:
            raise ProtocolError(f"rate must be a number between 0 and 1, got {self.rate!r}")
        if not _is_whole(self.copies) or not 1 <= self.copies < 2**31:
            raise ProtocolError(f"copies must be a whole number of at least 1, got {self.copies!r}")
        if not _is_whole(self.seed):
            raise ProtocolError(f"seed must be a whole number, got {self.seed!r}")
        if self.kind == "outages" and self.outages is None:
            raise ProtocolError("the kind outages needs recorded outages, and none were given")
        if self.kind != "outages" and self.outages is not None:
            raise ProtocolError(f"recorded outages are for the kind outages, and the kind is {self.kind!r}")
        if self.outages is not None and not isinstance(self.outages, Outages):
            object.__setattr__(self, "outages", Outages.from_events(outage_events(self.outages)))


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def content_keys(rows: Rows, codes: Integers, weights: Floats, seed: int) -> Words:
    """Return (n,) keys of the rows from their content; ``codes`` are the places of their classes among the labels."""
    if rows.frame is None:
        digests = np.array(_sparse_digests(rows.native), dtype="S32")
    else:  # columns by their place: a table and a bare array of its values are the same
        columns = {f"{j:09d}": values for j, values in enumerate(rows.columns().values())}
        digests = np.array(row_digests(columns), dtype="S32")
    order = np.lexsort((weights, codes, digests))
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = digests[order[1:]] != digests[order[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - first
    return row_keys(seed, STREAM, (f"{d.hex()}/{r}" for d, r in zip(digests.tolist(), rank.tolist(), strict=True)))


def _sparse_digests(matrix: Any) -> list[bytes]:
    """Return a digest of the entries of each row; a sparse table is never made dense for it."""
    tidy = sp.csr_matrix(matrix, dtype=np.float64, copy=True)
    tidy.sum_duplicates()
    tidy.eliminate_zeros()
    places, values = tidy.indices.astype("<i8"), tidy.data.astype("<f8")
    bounds = zip(tidy.indptr[:-1], tidy.indptr[1:], strict=True)
    return [blake2b(places[a:b].tobytes() + values[a:b].tobytes(), digest_size=31).digest() + b"." for a, b in bounds]


@dataclass(frozen=True, eq=False)
class TwinMaker:
    """Training rows in the evidence space of a protocol, from which twins are made; d columns, G groups.

    The final estimator is handed ``restore(matrix)`` for any matrix of the space.
    """

    plan: Hardening
    protocol: Protocol
    removed: Booleans | None  # (patterns, G) groups that each recorded outage lacks
    matrix: Any  # (n, d), dense or CSR
    baseline: Floats  # (d,)
    stepwise: Booleans  # (d,) columns that cannot be interpolated
    restore: Callable[[Any], Any]
    handed: Any  # the estimator's input for the rows, if ``restore`` would run the preprocessing again; else None

    @classmethod
    def of(
        cls,
        plan: Hardening,
        protocol: Protocol,
        removed: Booleans | None,
        rows: Rows,
        transformer: Any,
        handed: Any,
    ) -> TwinMaker:
        """Return the maker of twins of ``rows``, for which a fitted transformer (or None) made the input ``handed``."""
        if protocol.space == "transformed":
            matrix, restore = as_matrix(handed)
            baseline = np.array([np.nan if c.baseline is None else float(c.baseline) for c in protocol.columns])
            kept = sp.issparse(handed) or isinstance(handed, np.ndarray)  # the stack already has that form
            same = (lambda stack: stack) if kept else restore
            return cls(plan, protocol, removed, matrix, baseline, np.isnan(baseline), same, None)
        if rows.frame is None:
            raise ProtocolError("the raw evidence space needs a table or dense array, got a sparse matrix")
        values = {column.name: column.baseline for column in protocol.columns}
        codec = RawCodec.fit(rows, protocol.fields, values, flags_as_numbers=transformer is None)
        place = [rows.names.index(column.name) for column in protocol.columns]
        inverse = np.argsort(place)
        baseline = codec.baseline[place]
        nominal = np.array([column.kind == "nominal" for column in protocol.columns])

        def restore_fields(stack: Floats) -> Any:
            raw = codec.decode(stack[:, inverse])
            return raw if transformer is None else transformer.transform(raw)

        return cls(
            plan,
            protocol,
            removed,
            codec.encode(rows.frame)[:, place],
            baseline,
            nominal | np.isnan(baseline),
            restore_fields,
            None if transformer is None else handed,
        )

    def stack_twins(self, kept: Integers, keys: Words) -> Any:
        """Return the estimator's input for the rows at ``kept`` and for their twins, copy by copy."""
        matrix = self.matrix if len(kept) == self.matrix.shape[0] else self.matrix[kept]
        n, blocks = len(kept), self._twin_blocks(matrix, keys[kept])
        if sp.issparse(matrix):
            self._check_sparse_size(matrix)
            stack = sp.vstack([matrix, *(sp.csr_matrix(block, dtype=matrix.dtype) for block in blocks)], format="csr")
        else:
            stack = np.empty((n * (1 + self.plan.copies), matrix.shape[1]), dtype=matrix.dtype)
            stack[:n] = matrix
            filled = n
            for block in blocks:
                stack[filled : filled + len(block)] = block
                filled += len(block)
        if self.handed is None:
            return self.restore(stack)
        # Preprocessing may code the rows it was fitted on in a way of its own, so those are taken as they came.
        own = self.handed.iloc[kept] if isinstance(self.handed, pd.DataFrame) else self.handed[kept]
        return stacked(own, self.restore(stack[n:]))

    def _twin_blocks(self, matrix: Any, keys: Words) -> Iterator[Floats]:
        """Yield the twins of some rows at a time, dense, copy by copy."""
        n, width = matrix.shape
        step = rows_within(BLOCK_BYTES, width, copies=3)
        for copy in range(self.plan.copies):
            for start in range(0, n, step):
                x = matrix[start : start + step]
                x = x.toarray() if sp.issparse(x) else x
                severity = self._draw_severities(keys[start : start + step], copy)[:, self.protocol.column_group]
                if self.plan.kind == "attenuate":
                    yield blend(x, self.baseline, severity, self.stepwise)
                else:
                    yield np.where(severity > 0.0, self.baseline, x)

    def _draw_severities(self, keys: Words, copy: int) -> Floats:
        """Return (n, G) how far each group of each row moves toward its baseline in one copy."""
        plan, draw, groups = self.plan, np.array([copy]), np.arange(len(self.protocol.groups))
        if self.removed is not None:
            lacked = self.removed[plan.outages.draw_patterns(keys, draw)[:, 0]]
            struck = lacked & strikes(keys, draw, np.array([1]), plan.rate)[:, 0]
        else:
            struck = strikes(keys, draw, groups, plan.rate)[:, 0]
        if plan.kind != "attenuate":
            return np.asarray(struck, dtype=np.float64)
        grid = np.asarray(self.protocol.severities)
        place = (uniforms(keys, draw, len(groups) + groups)[:, 0] * len(grid)).astype(np.int64)
        return np.where(struck, grid[place], 0.0)

    def _check_sparse_size(self, matrix: Any) -> None:
        filled = int(np.count_nonzero(self.baseline))
        expected = SPARSE_ENTRY_BYTES * self.plan.copies * (matrix.nnz + self.plan.rate * matrix.shape[0] * filled)
        if expected > SPARSE_LIMIT:
            raise EvidenceError(
                f"the twins of this sparse matrix would take about {expected / 2**30:.0f} GiB, because {filled} of its "
                f"{matrix.shape[1]} columns have a baseline other than 0; give a protocol with ",
                Advice("baseline='zero' or 'typical'", "--baseline zero or --baseline typical"),
            )
