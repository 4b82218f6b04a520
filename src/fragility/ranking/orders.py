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
    n, d = len(rows), rows.width
    depth = min(protocol.depth, int(rows.n_groups))
    orders = np.broadcast_to(np.asarray(order, dtype=np.int64), (n, np.shape(order)[-1]))[:, :depth]
    out = np.empty(n)
    chunk = max(1, byte_budget // (32 * d * (depth + 1)))
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        out[start:stop] = _rcma_chunk(rows, protocol, orders[start:stop], start, byte_budget)
    return out


def _rcma_chunk(rows: EvidenceRows, protocol: Protocol, orders: Integers, start: int, byte_budget: int) -> Floats:
    n, depth = orders.shape
    stop = start + n
    rank = np.full((n, int(rows.n_groups)), depth, dtype=np.int64)  # never removed within the depth
    np.put_along_axis(rank, orders, np.arange(depth)[None, :].repeat(n, axis=0), axis=1)
    removed = rank[:, None, :] < np.arange(depth + 1)[None, :, None]
    p = rows.answers(rows.dense(start, stop), RowStates.removals(removed), byte_budget).reshape(n, depth + 1, -1)
    original = original_class(rows, p[:, 0], protocol.resolution, slice(start, stop))
    margins = reading_margin(p, original[:, None], protocol.reading, rows.offset)
    return rcma(collapse(margins[:, 0], margins, protocol.reading))


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
    orders = [generator.permutation(int(rows.n_groups)) for _ in range(repeats)]
    along = [rcma_along(rows, protocol, order, byte_budget=byte_budget) for order in orders]
    return np.asarray(np.mean(along, axis=0))


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
            increase[group] += (negative_log_likelihood(rows.predict(permuted), code) - base) / repeats
    return np.argsort(-increase, kind="stable")
