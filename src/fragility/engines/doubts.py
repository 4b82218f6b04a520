"""Doubts: rows for which a native engine is not believed, so that the model itself is asked.

On the first rows an engine is compared with the model in every state (`choice`). That says little of rows that hold
what the first ones do not: a category that training did not have, a placeholder such as 999999999999, a cell at the
very edge of a rule. So every row is looked at:

    unpromised   the engine itself knows that it may not read some cell of the row as the model does (``doubtful``)
    contradicted the engine's margin differs from the model's own, at x or at one other state of the row's trace, which
                 follows from the row's id

Whether a row is in doubt depends on that row alone, never on the batch or the part it came in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.engines.blackbox import multipliers, trace_blackbox
from fragility.engines.states import StatesAsked
from fragility.engines.trace import CONTRADICTED, UNPROMISED, Progress, Trace, original_confidence
from fragility.evidence import EvidenceRows, OwnRows, RowStates, blend
from fragility.evidence.agreement import original_class
from fragility.ids import id_keys
from fragility.protocol import Protocol
from fragility.scores import pseudo_logits, support_margin

BATCH_ROWS = 16384
COPIES = 8  # of the cells of a batch: x, its stressed copy and what is needed to make it


def trace_checked(
    native: Any, rows: EvidenceRows, protocol: Protocol, byte_budget: int, progress: Progress | None = None
) -> Trace:
    """Return a native engine's trace, with the black box's own in the rows for which the engine is in doubt."""
    doubt = np.where(native.doubtful(rows), UNPROMISED, 0).astype(np.uint8)
    told = np.flatnonzero(doubt == 0)
    parts: list[tuple[Integers, Trace]] = []
    if len(told):
        own = rows if len(told) == len(rows) else rows.take(told.tolist())
        trace: Trace = native.trace(own, protocol, progress)
        wrong = _contradicted(trace, own, protocol, native)
        if not wrong.any() and len(told) == len(rows):
            return trace
        doubt[told[wrong]] = CONTRADICTED
        parts.append((told[~wrong], trace.rows(np.flatnonzero(~wrong))))
    asked = np.flatnonzero(doubt)
    parts.append((asked, trace_blackbox(rows.take(asked.tolist()), protocol, byte_budget=byte_budget)))
    merged = Trace.merged(parts, native.name)
    # Each row counts by itself: what rows share in a batch is not theirs.
    states = len(asked) * StatesAsked.of(protocol, rows.n_groups).per_row
    evaluations = states + sum(trace.evaluations for places, trace in parts if places is not asked)
    return replace(merged, doubt=doubt, evaluations=evaluations)


# --- an engine's trace --------------------------------------------------------------------------------------


def _contradicted(trace: Trace, rows: EvidenceRows, protocol: Protocol, native: Any) -> Booleans:
    """Return (n,) the rows whose margins the model's own answers deny, at x or at one other state."""
    asked, tolerance = StatesAsked.of(protocol, rows.n_groups), native.allowed(protocol.resolution)
    wrong = np.zeros(len(rows), dtype=bool)
    step = rows_within(DEFAULT_BYTE_BUDGET, rows.width, copies=COPIES, most=BATCH_ROWS)
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        seen, x = trace.rows(part), rows.dense(part.start, part.stop)
        p = rows.own_probabilities(start, x)
        original_class(rows, p, protocol.resolution, part)  # refuses a model whose predict contradicts it
        wrong[part] = _far(asked.margins(p, seen.predicted, rows.offset), seen.margin, tolerance)
        wrong[part] |= _far(original_confidence(p, seen.predicted), seen.confidence, tolerance)
        if native.bounded:
            continue  # its rounding is known for every row: no other state says more
        cells, claimed = _one_state(seen, x, rows, protocol, rows.ids[part])
        q = rows.predict(cells)
        stands = support_margin(q, seen.predicted, rows.offset) >= -protocol.resolution + 2 * tolerance
        differs = _far(asked.margins(q, seen.predicted, rows.offset), claimed, tolerance)
        wrong[part] |= np.where(np.isnan(claimed), stands, differs)
    return wrong


def _far(own: Floats, claimed: Floats, tolerance: float) -> Booleans:
    """Return where two numbers differ by more than rounding; NaN is far from everything."""
    return np.asarray(~(np.abs(own - claimed) <= tolerance * (1.0 + 1e-3 * np.abs(own))))


def _one_state(
    seen: Trace, x: Floats, rows: EvidenceRows, protocol: Protocol, ids: Sequence[Hashable]
) -> tuple[Floats, Floats]:
    """Return one state per row, a step of its path or a severity at which all fades, and the margin claimed there.

    The state is returned as cells (m, d). A claim of NaN says that the prediction has flipped there.
    """
    depth, everyone = protocol.depth, np.arange(len(x))
    choice = _draws(ids) % (depth + seen.fade_margin.shape[1])
    step = np.minimum(choice, depth - 1) + 1
    claimed = seen.path_margin[everyone, step]
    gone = _ranks(seen.order, rows.n_groups) < step[:, None]
    cells = np.where(gone[:, rows.column_group], rows.baseline, x)
    fading = np.flatnonzero(choice >= depth)
    if len(fading) and protocol.fading is not None:
        at = choice[fading] - depth
        claimed[fading] = seen.fade_margin[fading, at]
        severity = np.where(
            np.isnan(claimed[fading]), seen.threshold[fading, protocol.fading], np.array(protocol.severities)[at]
        )
        cells[fading] = blend(x[fading], rows.baseline, severity[:, None], rows.stepwise)
    return cells, claimed


def _ranks(order: Integers, n_groups: int) -> Integers:
    """Return (m, G) the place of each group in an order (m, K) of some of them; n_groups for the others."""
    rank = np.full((len(order), n_groups), n_groups)
    np.put_along_axis(rank, order, np.arange(order.shape[1])[None], axis=1)
    return rank


def _draws(ids: Sequence[Hashable]) -> Integers:
    """Return a number per id, as if drawn; the same wherever the row stands."""
    words = np.frombuffer(id_keys(ids).tobytes(), dtype=">u8").reshape(-1, 2)[:, 0]
    return (words >> np.uint64(11)).astype(np.int64)


# --- an engine's answers ------------------------------------------------------------------------------------


def contradicted_answers(
    ready: EvidenceRows, rows: EvidenceRows, tolerance: float, known: Booleans | None = None
) -> Booleans:
    """Return (n,) the rows for which an engine's answers are not the model's: at x, and without about half the groups.

    ready: the rows with the engine's answers; rows: with the model's own; known: (n,) rows in doubt anyway.
    """
    wrong = np.zeros(len(rows), dtype=bool)
    places = np.arange(len(rows)) if known is None else np.flatnonzero(~known)
    step = rows_within(DEFAULT_BYTE_BUDGET, rows.width, copies=COPIES, most=BATCH_ROWS)
    for start in range(0, len(places), step):
        some = places[start : start + step]
        part = rows.take(some.tolist()) if len(places) < len(rows) else rows.between(start, start + step)
        x = part.dense()
        wrong[some] = differing_answers(ready, rows, x, part.ids, part.own_probabilities(0, x), tolerance)
    return wrong


def differing_answers(
    ready: EvidenceRows, rows: EvidenceRows, x: Floats, ids: Sequence[Hashable], p: Floats, tolerance: float
) -> Booleans:
    """Return the same for some rows x (m, d), whose probabilities by the model itself are p (m, C)."""
    states = RowStates.removals(np.stack([np.zeros((len(x), rows.n_groups), dtype=bool), _halves(ids, rows)], axis=1))
    own = np.stack([p, rows.predict(rows.stressed(x, _second(states)))], axis=1)
    told = ready.answers(x, states).reshape(own.shape)
    return np.asarray(~(np.abs(pseudo_logits(own) - pseudo_logits(told)) <= tolerance).all(axis=(1, 2)))


def _second(states: RowStates) -> RowStates:
    return RowStates(states.owner[1::2], states.moved[1::2])


def _halves(ids: Sequence[Hashable], rows: EvidenceRows) -> Booleans:
    """Return (m, G) about half of the groups, by the row's id."""
    bits = np.unpackbits(np.frombuffer(id_keys(ids).tobytes(), dtype=np.uint8).reshape(len(ids), -1), axis=1)
    return np.tile(bits, -(-rows.n_groups // bits.shape[1]))[:, : rows.n_groups].astype(bool)


def with_own_answers(
    ready: EvidenceRows, rows: EvidenceRows, doubted: Booleans, doubts: Callable[[Floats], Booleans]
) -> EvidenceRows:
    """Return rows with an engine's answers, and the model's own for rows in doubt (n,) and for cells that it doubts."""
    keys = np.unique(_content_keys(rows.take(np.flatnonzero(doubted).tolist()).dense()))

    def in_doubt(x: Floats) -> Booleans:
        return np.isin(_content_keys(x), keys) if len(keys) else np.zeros(len(x), dtype=bool)

    def predict(matrix: Floats) -> Floats:
        own = in_doubt(matrix) | doubts(matrix)
        if not own.any():
            return ready.predict_matrix(matrix)
        p = np.empty((len(matrix), rows.n_classes))
        p[own] = rows.predict(matrix[own])
        if not own.all():
            p[~own] = ready.predict_matrix(matrix[~own])
        return p

    def answer(x: Floats, states: RowStates) -> Floats | None:
        assert ready.answer_states is not None
        own = in_doubt(x)[states.owner]
        if not own.any():
            return ready.answer_states(x, states)
        p = np.empty((len(states), rows.n_classes))
        p[own] = rows.answers(x, states.some(own))
        if not own.all():
            p[~own] = ready.answers(x, states.some(~own))
        return p

    changed = ready.predict_matrix is not rows.predict_matrix
    return replace(
        ready,
        predict_matrix=predict if changed else rows.predict_matrix,
        answer_states=None if ready.answer_states is None else answer,
        asked_itself=OwnRows(in_doubt, rows.predict_matrix),
    )


def _content_keys(x: Floats) -> npt.NDArray[np.uint64]:
    """Return a number per row of cells, equal for equal rows; another row that has it is asked about as well."""
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.uint64)
    return np.asarray(bits @ multipliers(x.shape[1]))
