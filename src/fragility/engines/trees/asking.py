"""A forest asked about states of rows, each row with its own: no protocol, and no cells of any copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import Floats, Integers
from fragility.engines.trees.encoding import KIND, NUMERIC
from fragility.engines.trees.forest import Forest
from fragility.engines.trees.observed import probabilities
from fragility.engines.trees.recoding import Recoding
from fragility.engines.trees.scoring import DECISION_BYTES, on_all_threads
from fragility.evidence import EvidenceRows, RowStates

LEAST_STATES = 4  # a row, on average; fewer are decided faster as rows of their own


class Sides(NamedTuple):
    """The two sides of every cell, as it stands and at the baseline; U units that states move."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    unit: Integers  # (d,)
    numeric: npt.NDArray[np.uint8]  # (d,) 1 where a column's tests are all numeric
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    rounding: npt.NDArray[np.uint8]  # (d,) of cells before they are compared; see ``encoding``
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    slots: int  # nodes of the largest tree


def sides_of(forest: Forest, recoding: Recoding, rows: EvidenceRows) -> Sides:
    """Return the sides of the cells of some rows; states move groups."""
    from fragility.engines.trees.kernels import baseline_ways

    baseline = recoding.recoded(rows.baseline)
    zero_missing = bool(sp.issparse(rows.matrix)) and forest.absent_missing
    numeric = np.ones(rows.width, dtype=np.uint8)
    numeric[forest.test_column[(forest.test_flags & KIND) != NUMERIC]] = 0
    return Sides(
        baseline=baseline,
        stepwise=rows.stepwise.astype(np.uint8),
        unit=rows.column_group.astype(np.int64),
        numeric=numeric,
        test_base=baseline_ways(forest, baseline, recoding.rounding, zero_missing),
        rounding=recoding.rounding,
        zero_missing=zero_missing,
        slots=forest.most_nodes,
    )


# (recoded rows (m, d), states) -> raw sums (outputs, q)
ScoreStates = Callable[[Floats, RowStates], npt.NDArray[Any]]


def state_scorer(forest: Forest, sides: Sides) -> ScoreStates:
    """Return the scoring function of a forest: bit planes for small and oblivious trees, walks for deep ones."""
    import fragility.engines.trees.kernels as kernels

    leaf_columns = np.ascontiguousarray(forest.leaf_value.T)
    networks = (*kernels.build_networks(forest.node_test, forest.node_right, forest.tree_start), leaf_columns)

    def score(x: Floats, states: RowStates) -> npt.NDArray[Any]:
        from fragility.engines.trees.kernels.row_states import score_row_states

        mine = sides._replace(unit=np.ascontiguousarray(states.unit_of(sides.unit), dtype=np.int64))
        given = flat_states(states)
        scores = np.empty((len(forest.base), len(states)), dtype=forest.leaf_value.dtype)
        on_all_threads(
            len(states),
            kernels.BLOCK,
            lambda span: score_row_states(forest, networks, mine, x, given, span, scores),
        )
        return scores

    return score


def flat_states(states: RowStates) -> tuple[Integers, npt.NDArray[np.uint8], Floats]:
    """Return (owner, moved, severity) as the kernels take them."""
    severity = np.zeros(0) if states.severity is None else np.ascontiguousarray(states.severity, dtype=np.float64)
    moved = np.ascontiguousarray(states.moved, dtype=bool).view(np.uint8)
    return np.ascontiguousarray(states.owner, dtype=np.int64), moved, severity
