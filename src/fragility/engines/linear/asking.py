"""A linear model asked about states of rows, each row with its own: sums of what its units contribute.

With u_g(x) what unit g (a group, or a column) adds to the raw scores of a row, and ubar_g what it adds at the baseline,
a state that moves units by l is  b + sum_g u_g(x) - sum_g l_g (u_g(x) - ubar_g):  one product of a row's states with
its contributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fragility.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.engines.linear.links import Link
from fragility.engines.linear.sums import GroupScores
from fragility.evidence import RowStates
from fragility.scores import sigmoid_probabilities

PIECE_BYTES = MEBIBYTE  # the states of a piece, as numbers, should stay in cache


def answers_of(scores: GroupScores, link: Link) -> Callable[[Floats, RowStates], Floats | None]:
    """Return the model's probabilities of states that each row has of its own."""

    def answer(x: Floats, states: RowStates) -> Floats | None:
        raw = np.empty((len(states), scores.n_outputs))
        for part, piece in _pieces(scores, x, states):
            raw[part] = piece
        if not np.isfinite(raw).all():
            return None  # such rows are the model's to refuse
        return sigmoid_probabilities(raw[:, 0]) if scores.n_outputs == 1 else link(raw)

    return answer


def _pieces(scores: GroupScores, x: Floats, states: RowStates) -> Iterator[tuple[slice, Floats]]:
    """Yield (some states, their raw scores (some, O))."""
    per_row = _states_of_each(states.owner, len(x))
    n_units = states.moved.shape[1]
    if not per_row:
        yield from _ragged_pieces(scores, x, states)
        return
    step = rows_within(PIECE_BYTES, n_units * max(per_row, scores.n_outputs))
    for start in range(0, len(x), step):
        total, removed = _contributions(scores, x[start : start + step], states.by_column)
        part = slice(start * per_row, (start + len(total)) * per_row)
        lost = _extents(states, part).reshape(len(total), per_row, n_units) @ removed
        yield part, (total[:, None] - lost).reshape(-1, scores.n_outputs)


def _ragged_pieces(scores: GroupScores, x: Floats, states: RowStates) -> Iterator[tuple[slice, Floats]]:
    """The same where rows have different numbers of states: each state is handed its row's contributions."""
    step = rows_within(PIECE_BYTES, states.moved.shape[1] * scores.n_outputs)
    for start in range(0, len(states), step):
        part = slice(start, min(start + step, len(states)))
        owners, place = np.unique(states.owner[part], return_inverse=True)
        total, removed = _contributions(scores, x[owners], states.by_column)
        yield part, total[place] - np.einsum("quo,qu->qo", removed[place], _extents(states, part))


def _contributions(scores: GroupScores, x: Floats, by_column: bool) -> tuple[Floats, Floats]:
    """Return (raw scores (m, O), what removing each unit takes from them (m, U, O))."""
    if by_column:
        u, at_baseline = x[:, :, None] * scores.coefficients.T, (scores.coefficients * scores.baseline).T
    else:
        u, at_baseline = np.ascontiguousarray(scores.dense_sums(x).transpose(2, 0, 1)), scores.at_baseline
    total = u.sum(axis=1) + scores.intercept
    u -= at_baseline
    return total, u


def _states_of_each(owner: Integers, n: int) -> int:
    """Return how many states each of n rows has, 0 where they have different numbers."""
    per_row, rest = divmod(len(owner), n)
    everyone = np.arange(n)
    same = (
        per_row
        and not rest
        and (owner[::per_row] == everyone).all()
        and (owner[per_row - 1 :: per_row] == everyone).all()
    )
    return per_row if same else 0


def _extents(states: RowStates, part: slice) -> Floats:
    """Return (some, U) how far each state moves each unit."""
    moved: Booleans = states.moved[part]
    if states.severity is None:
        return moved.astype(np.float64)
    severity = states.severity[part]
    return np.where(moved, severity if severity.ndim == 2 else severity[:, None], 0.0)
