"""The linear engine: rows in pieces, each turned into sums and each sum into observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fragility.arrays import MEBIBYTE, Booleans, Floats, rows_within
from fragility.engines.linear.asking import answers_of
from fragility.engines.linear.fillings import Rule, filling
from fragility.engines.linear.links import link_for
from fragility.engines.linear.sums import GroupScores
from fragility.engines.states import StatesAsked
from fragility.engines.trace import Progress, Trace
from fragility.errors import Advice, EngineError
from fragility.evidence import EvidenceRows, RowStates
from fragility.protocol import Protocol

ENGINE = "linear"
PIECE_BYTES = 2 * MEBIBYTE  # an array of a piece of rows should stay in cache
LEAST_ROWS = 16
MOST_ROUNDING = 1e-9  # of a margin


def never_reads(rows: EvidenceRows) -> str | None:
    """Return why this engine can audit no rows of this model and protocol, or None if it may."""
    if link_for(rows) is None:
        return "it is not a linear classifier whose scores and link are known"
    if not rows.native_matrix and rows.model.transformer is not None:
        return "preprocessing stands between the evidence and the scores"
    if bool(rows.stepwise.any()) or not bool(np.isfinite(rows.baseline).all()):
        return "some columns cannot be interpolated, or have no baseline"
    return None


def refusal(rows: EvidenceRows) -> str | None:
    """Return why this engine cannot audit these rows, or None if it can."""
    if not rows.native_matrix and rows.model.transformer is None:
        return "its rows hold whole numbers or categories, which cannot be handed over as they are"
    if rows.cell_dtype != np.float64:
        return "its rows are float32, and sums of float32 products depend on their order"
    return never_reads(rows)


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    link = link_for(rows)
    if link is None:
        raise EngineError(f"the linear engine does not know {rows.model.kind}; use ", Advice.argument("engine", "auto"))
    asked = StatesAsked.of(protocol, rows.n_groups)
    scores = GroupScores.of(rows)
    fill, rule = filling(scores.n_outputs, link, asked), Rule.of(rows)
    out = _blank_trace(len(rows), asked)
    if rows.decided is not None:
        out.predicted[:] = rows.decided
    size = rows_within(PIECE_BYTES, _widest(scores.n_outputs, asked), least=LEAST_ROWS)
    for start in range(0, len(rows), size):
        piece = slice(start, min(start + size, len(rows)))
        total, removed = scores.of_piece(rows, piece)
        fill(out.rows(piece), total, removed, asked, rule)
        if progress is not None:
            progress(piece.stop, len(rows))
    return out


def state_answers(rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None]:
    """Return the model's probabilities of states that each row has of its own, prepared once."""
    link = link_for(rows)
    if link is None:
        raise EngineError(f"the linear engine does not know {rows.model.kind}; use ", Advice.argument("engine", "auto"))
    return answers_of(GroupScores.of(rows), link)


def doubts(rows: EvidenceRows) -> Callable[[Any], Booleans]:
    """Return the function cells (m, d), dense or CSR, -> (m,) rows whose sums may have lost digits that matter.

    A state is the score of x less what is removed: where a cell is large, both are, and their difference is rounded.
    """
    scores = GroupScores.of(rows)
    return lambda cells: ~(scores.rounding(cells) <= MOST_ROUNDING)  # NaN: such rows are the model's to refuse


def _widest(outputs: int, asked: StatesAsked) -> int:
    """Return how many cells a row has in the widest array."""
    if outputs == 1:
        return asked.n_groups
    return max(asked.n_groups, asked.depth + 1, len(asked.severities)) * outputs


def _blank_trace(n: int, asked: StatesAsked) -> Trace:
    """Return a trace to be filled; its tables are stored state by state, as they are made."""
    steps = asked.depth + 1
    return Trace(
        predicted=np.empty(n, np.int64),
        confidence=np.empty(n),
        margin=np.empty(n),
        one_step_margin=np.empty((asked.n_groups, n)).T,
        one_step_confidence=np.empty((asked.n_groups, n)).T,
        order=np.empty((asked.depth, n), np.int64).T,
        path_margin=np.empty((steps, n)).T,
        path_predicted=np.empty((steps, n), np.int64).T,
        threshold=np.empty((len(asked.widths), n)).T,
        fade_margin=np.empty((asked.fade_steps, n)).T,
        evaluations=0,
        engine=ENGINE,
    )
