"""Raw scores by look-ups in tables, in the forms in which `scoring` and `values` give those of trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.kernels.compiling import run_in_this_thread, run_on_all_threads
from fragility.engines.kernels.terms import TERM_BLOCK, score_ordered_states, score_other_values, score_own_states
from fragility.engines.trees.forest import Flags
from fragility.engines.trees.recoding import Recoding
from fragility.engines.trees.terms import Terms
from fragility.evidence import EvidenceRows, States


def make_order_lookup(terms: Terms, plan: Any, share: Any = run_in_this_thread) -> Any:
    """Return a ``scoring.Score``; plan: ``scoring.Plan``."""

    def score(x: Floats, fixed: Booleans, order: Integers, states: Any) -> Floats:
        partly = (states.severity > 0.0) & (states.severity < 1.0)
        severities = np.unique(states.severity[partly])
        level = np.where(states.severity >= 1.0, len(severities) + 1, 0)
        level[partly] = np.searchsorted(severities, states.severity[partly]) + 1
        level_at = np.ascontiguousarray(np.where(states.moved != 0, level[:, None], 0).T)
        scores = np.empty((len(states.severity), len(terms.base), len(x)))
        levels, cells = (severities, level_at), (x, fixed)
        share(len(x), TERM_BLOCK, lambda span: score_ordered_states(terms, plan, cells, order, levels, span, scores))
        return scores

    return score


def make_row_lookup(terms: Terms, rounding: Flags) -> Callable[[Floats], Floats]:
    """Return the function rows (m, d) -> raw sums (outputs, m), without states."""
    score, none = make_value_lookup(terms, rounding), np.full(len(rounding), -1)
    return lambda matrix: np.asarray(score(matrix, matrix[:1], none, np.zeros(1, dtype=np.int64))[0])


def make_state_lookup(
    terms: Terms, recoding: Recoding, rows: EvidenceRows
) -> Callable[[Floats, States], npt.NDArray[Any]]:
    """Return the function (recoded rows (m, d), q states) -> raw sums (outputs, q)."""
    baseline, stepwise = recoding.recode(rows.baseline), rows.stepwise.astype(np.uint8)

    def score(x: Floats, states: States) -> Floats:
        unit = np.ascontiguousarray(states.unit_of(rows.column_group), dtype=np.int64)
        severity = np.zeros(0) if states.severity is None else np.ascontiguousarray(states.severity, dtype=np.float64)
        flags = np.ascontiguousarray(states.moved, dtype=bool).view(np.uint8)
        flat = (np.ascontiguousarray(states.owner, dtype=np.int64), flags, severity)
        sides = (baseline, stepwise, unit, recoding.rounding)
        scores = np.empty((len(terms.base), len(states)))
        run_on_all_threads(len(states), TERM_BLOCK, lambda span: score_own_states(terms, sides, x, flat, span, scores))
        return scores

    return score


def make_value_lookup(terms: Terms, rounding: Flags) -> Callable[[Floats, Floats, Integers, Integers], Floats]:
    """Return the function (recoded x (m, d), y (m, d) or (d,), unit of each column, asked (k,)) -> (k, outputs, m)."""

    def score(x: Floats, y: Floats, unit: Integers, asked: Integers) -> Floats:
        cells, others = (np.ascontiguousarray(np.atleast_2d(each), dtype=np.float64) for each in (x, y))
        units, chosen = (np.ascontiguousarray(each, dtype=np.int64) for each in (unit, asked))
        scores = np.empty((len(asked), len(terms.base), len(cells)))
        run_on_all_threads(
            len(cells),
            TERM_BLOCK,
            lambda span: score_other_values(terms, cells, others, units, chosen, rounding, span, scores),
        )
        return scores

    return score
