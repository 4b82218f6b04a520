"""A linear model asked about states of rows, each row with its own: sums of what its units contribute.

With t_u(x) what removing unit u (a group, or a column) takes from the raw scores s(x), a state that moves units by
severities l is  s(x) - sum_u l_u t_u(x):  one product of a row's states with its contributions.
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
    """Return the model's probabilities of states that each row has of its own, prepared once."""
    spread = {False: _spread(scores), True: scores.coefficients.T}

    def answer(x: Floats, states: RowStates) -> Floats | None:
        total = x @ scores.coefficients.T + scores.intercept
        if not np.isfinite(total).all():
            return None  # such rows are the model's to refuse
        raw = total[states.owner]
        toward = x - scores.baseline
        for part, lost in _pieces(toward, states, spread[states.by_column]):
            raw[part] -= lost
        return sigmoid_probabilities(raw[:, 0]) if scores.n_outputs == 1 else link(raw)

    return answer


def _spread(scores: GroupScores) -> Floats:
    """Return (d, G O): the weights of each column, in the places of its group."""
    weights = np.zeros((len(scores.baseline), scores.n_groups, scores.n_outputs))
    weights[np.arange(len(weights)), scores.column_group] = scores.coefficients.T
    return weights.reshape(len(weights), -1)


def _pieces(toward: Floats, states: RowStates, weights: Floats) -> Iterator[tuple[slice, Floats]]:
    """Yield (some states, what they take from the raw scores (some, O)).

    weights: (d, O) where units are columns, else (d, G O).
    """
    outputs = weights.shape[1] if states.by_column else weights.shape[1] // states.moved.shape[1]
    per_row = _states_of_each(states.owner, len(toward))
    step = rows_within(PIECE_BYTES, states.moved.shape[1] * max(per_row, 1))
    if per_row and (outputs == 1 or not states.by_column):
        for start in range(0, len(toward), step):
            cells = toward[start : start + step]
            part = slice(start * per_row, (start + len(cells)) * per_row)
            by_unit = cells[:, :, None] * weights if states.by_column else cells @ weights
            moved = _numbers(states, part).reshape(len(cells), per_row, -1)
            yield part, (moved @ by_unit.reshape(len(cells), -1, outputs)).reshape(-1, outputs)
        return
    by_unit = toward if states.by_column else toward @ weights
    for start in range(0, len(states), step):
        part = slice(start, start + step)
        own, moved = by_unit[states.owner[part]], _numbers(states, part)
        if states.by_column:
            yield part, (own * moved) @ weights
        else:
            yield part, np.einsum("qgo,qg->qo", own.reshape(*moved.shape, outputs), moved)


def _states_of_each(owner: Integers, n: int) -> int:
    """Return how many states each of n rows has, 0 where they have different numbers."""
    counts = np.bincount(owner, minlength=n)
    return int(counts[0]) if len(counts) == n and (counts == counts[0]).all() else 0


def _numbers(states: RowStates, part: slice) -> Floats:
    """Return (some, U) how far each state moves each unit."""
    moved: Booleans = states.moved[part]
    if states.severity is None:
        return moved.astype(np.float64)
    severity = states.severity[part]
    return np.where(moved, severity if severity.ndim == 2 else severity[:, None], 0.0)
