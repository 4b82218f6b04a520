"""Scores along other removal orders: RCMA when groups go at random, or in one order for all rows.

They need further model calls, on states that no certificate holds: the group order is not the row's own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fragility.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.evidence import EvidenceRows, RowStates
from fragility.evidence.agreement import original_class
from fragility.protocol import Protocol
from fragility.ranking.predictive import negative_log_likelihood
from fragility.scores import collapse, rcma, reading_margin


def rcma_along(
    rows: EvidenceRows,
    protocol: Protocol,
    order: npt.ArrayLike,
    *,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Floats:
    """RCMA of every row when groups are removed in a given order instead of the certificate's.

    order: group indices, (G,) for one order or (n, G) for one a row; the first K = protocol.depth are removed.
    """
    orders = np.broadcast_to(np.asarray(order, dtype=np.int64), (len(rows), np.shape(order)[-1]))
    return _rcma_of(rows, protocol, orders[:, None], byte_budget)[:, 0]


def random_order_score(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    repeats: int = 5,
    seed: int = 0,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> Floats:
    """Mean RCMA over `repeats` random group orders, each order common to all rows."""
    generator = np.random.default_rng(seed)
    orders = np.stack([generator.permutation(int(rows.n_groups)) for _ in range(repeats)])
    along = _rcma_of(rows, protocol, np.broadcast_to(orders, (len(rows), *orders.shape)), byte_budget)
    return np.asarray(along.mean(axis=1))


def _rcma_of(rows: EvidenceRows, protocol: Protocol, orders: Integers, byte_budget: int) -> Floats:
    """Return (n, R) RCMA of every row along each of its orders (n, R, G or fewer)."""
    n, repeats = orders.shape[:2]
    depth = min(protocol.depth, int(rows.n_groups))
    out = np.empty((n, repeats))
    chunk = max(1, byte_budget // (32 * rows.width * repeats * (depth + 1)))
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        out[part] = _rcma_chunk(rows, protocol, orders[part, :, :depth], part, byte_budget)
    return out


def _rcma_chunk(rows: EvidenceRows, protocol: Protocol, orders: Integers, part: slice, byte_budget: int) -> Floats:
    m, repeats, depth = orders.shape
    rank = np.full((m, repeats, int(rows.n_groups)), depth, dtype=np.int64)  # never removed within the depth
    np.put_along_axis(rank, orders, np.broadcast_to(np.arange(depth), orders.shape), axis=2)
    removed = rank[:, :, None] < np.arange(depth + 1)[:, None]
    states = RowStates.removals(removed.reshape(m, repeats * (depth + 1), -1))
    p = rows.answers(rows.dense(part.start, part.stop), states, byte_budget).reshape(m, repeats, depth + 1, -1)
    original = original_class(rows, p[:, 0, 0], protocol.resolution, part)
    margins = reading_margin(p, original[:, None, None], protocol.reading, rows.offset, protocol.smoothing)
    margins = margins.reshape(m * repeats, -1)
    return rcma(collapse(margins[:, 0], margins, protocol.reading)).reshape(m, repeats)


def permutation_importance_order(rows: EvidenceRows, y: npt.ArrayLike, *, repeats: int = 3, seed: int = 0) -> Integers:
    """Groups by descending increase of validation NLL when the group's columns are permuted together across rows.

    rows: validation rows; y: their class columns (`fragility.ranking.class_codes`). Ties keep declared order.
    """
    x = np.asarray(rows.dense(0, rows.matrix.shape[0]), dtype=np.float64)
    code = np.asarray(y, dtype=np.int64)
    base = negative_log_likelihood(rows.predict(x), code)
    generator = np.random.default_rng(seed)
    increase = np.zeros(int(rows.n_groups))
    for _ in range(repeats):
        shuffle = generator.permutation(len(x))
        for group in range(len(increase)):
            columns = np.flatnonzero(np.asarray(rows.column_group) == group)
            permuted = x.copy()
            permuted[:, columns] = x[np.ix_(shuffle, columns)]
            increase[group] += (
                negative_log_likelihood(rows.predict_copies(x, permuted[:, None]), code) - base
            ) / repeats
    return np.argsort(-increase, kind="stable")
