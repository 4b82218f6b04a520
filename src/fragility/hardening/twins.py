"""Twins: degraded copies of training rows (SPEC section 13).

With x_i a row, xbar the baseline, g(j) the group of column j, and uniforms u in [0, 1) of the draw format
``fragility-draw/1`` (stream ``harden``, draw number = number of the copy, G groups):

    mask       twin_ij = xbar_j              where u_{g(j)} < rate, else x_ij
    attenuate  twin_ij = x_ij + s (xbar_j - x_ij)   where u_{g(j)} < rate, with s the severity number
               floor(u_{G + g(j)} * L) of the protocol's L severities
    outages    twin_ij = xbar_j              where u_1 < rate and event number floor(u_0 * N) lacked a field of g(j)

The key of a row is the digest of its content and its rank among rows of equal content (by label, then by weight), so
that the twins of a table are the same whatever the order of its rows, its index or the scale of its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.canonical import row_digests
from fragility.errors import EvidenceError
from fragility.evidence import blend
from fragility.evidence.rows import Rows
from fragility.hardening.declaration import Hardening
from fragility.stress.draws import Words, row_keys, strikes, uniforms

STREAM = "harden"
BLOCK_BYTES = 16 * MEBIBYTE  # rows degraded at a time; no result depends on it
SPARSE_LIMIT = 4096 * MEBIBYTE  # what the twins of a sparse matrix may take
SPARSE_ENTRY_BYTES = 12  # a float64 and its column


class Space(NamedTuple):
    """Where the columns of a matrix move to, (d,) each."""

    baseline: Floats
    stepwise: Booleans  # columns that cannot be interpolated


@dataclass(frozen=True, eq=False)
class Degrader:
    """What happens to rows; d columns, G groups."""

    plan: Hardening
    column_group: Integers  # (d,)
    n_groups: int
    grid: Floats  # severities of `attenuate`
    removed: Booleans | None  # (patterns, G) groups that each recorded outage lacks

    def severities(self, keys: Words, copy: int) -> Floats:
        """Return (n, G) how far each group of each row moves toward its baseline in one copy."""
        draw, groups = np.array([copy]), np.arange(self.n_groups)
        if self.plan.kind == "outages":
            return self._outage_severities(keys, draw)
        struck = strikes(keys, draw, groups, self.plan.rate)[:, 0]
        if self.plan.kind == "mask":
            return struck.astype(np.float64)
        place = (uniforms(keys, draw, self.n_groups + groups)[:, 0] * len(self.grid)).astype(np.int64)
        return np.where(struck, self.grid[place], 0.0)

    def _outage_severities(self, keys: Words, draw: Integers) -> Floats:
        assert self.plan.outages is not None and self.removed is not None
        lacked = self.removed[self.plan.outages.drawn_patterns(keys, draw)[:, 0]]
        struck = strikes(keys, draw, np.array([1]), self.plan.rate)[:, 0]
        return (lacked & struck).astype(np.float64)

    def degraded(self, x: Floats, space: Space, keys: Words, copy: int) -> Floats:
        """Return twins of dense rows x (m, d)."""
        severity = self.severities(keys, copy)[:, self.column_group]
        if self.plan.kind == "attenuate":
            return blend(x, space.baseline, severity, space.stepwise)
        return np.where(severity > 0.0, space.baseline, x)


def content_keys(rows: Rows, codes: Integers, weights: Floats, seed: int) -> Words:
    """Return one key a row from its content; codes are its class's place among the labels."""
    digests = _sparse_digests(rows.native) if rows.frame is None else _value_digests(rows)
    order = np.lexsort((weights, codes, digests))
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = digests[order[1:]] != digests[order[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - first
    return row_keys(seed, STREAM, (f"{d.hex()}/{r}" for d, r in zip(digests.tolist(), rank.tolist(), strict=True)))


def _value_digests(rows: Rows) -> npt.NDArray[np.bytes_]:
    """Return a digest of the values of each row, in their order: a table and a bare array of them are one."""
    columns = {f"{j:09d}": values for j, values in enumerate(rows.columns().values())}
    return np.array(row_digests(columns), dtype="S32")


def _sparse_digests(matrix: Any) -> npt.NDArray[np.bytes_]:
    """Return a digest of the entries of each row; a sparse table is never made dense for it."""
    tidy = sp.csr_matrix(matrix, dtype=np.float64, copy=True)
    tidy.sum_duplicates()
    tidy.eliminate_zeros()
    places, values = tidy.indices.astype("<i8"), tidy.data.astype("<f8")
    bounds = zip(tidy.indptr[:-1], tidy.indptr[1:], strict=True)
    return np.array(
        [blake2b(places[a:b].tobytes() + values[a:b].tobytes(), digest_size=31).digest() + b"." for a, b in bounds],
        dtype="S32",
    )


def with_twins(matrix: Any, space: Space, keys: Words, degrader: Degrader) -> Any:
    """Return the rows and after them the twins, copy by copy: (n (1 + copies), d), in the matrix's own precision."""
    if sp.issparse(matrix):
        return _sparse_with_twins(matrix, space, keys, degrader)
    n, copies = len(matrix), degrader.plan.copies
    stack = np.empty((n * (1 + copies), matrix.shape[1]), dtype=matrix.dtype)
    stack[:n] = matrix
    for copy, part in _blocks(n, matrix.shape[1], copies):
        place = slice((copy + 1) * n + part.start, (copy + 1) * n + part.stop)
        stack[place] = degrader.degraded(matrix[part], space, keys[part], copy)
    return stack


def _sparse_with_twins(matrix: Any, space: Space, keys: Words, degrader: Degrader) -> Any:
    n, width = matrix.shape
    filled = int(np.count_nonzero(space.baseline))
    expected = SPARSE_ENTRY_BYTES * degrader.plan.copies * (matrix.nnz + degrader.plan.rate * n * filled)
    if expected > SPARSE_LIMIT:
        raise EvidenceError(
            f"the twins of this sparse matrix would take about {expected / 2**30:.0f} GiB, because {filled} of its "
            f"{width} columns have a baseline other than 0; give a protocol with baseline='zero' or 'typical'"
        )
    parts = [matrix]
    for copy, part in _blocks(n, width, degrader.plan.copies):
        twins = degrader.degraded(matrix[part].toarray(), space, keys[part], copy)
        parts.append(sp.csr_matrix(twins, dtype=matrix.dtype))
    return sp.vstack(parts, format="csr")


def _blocks(n: int, width: int, copies: int) -> Iterator[tuple[int, slice]]:
    rows = rows_within(BLOCK_BYTES, width, copies=3)
    for copy in range(copies):
        for start in range(0, n, rows):
            yield copy, slice(start, min(start + rows, n))
