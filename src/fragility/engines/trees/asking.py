"""A forest asked about states of rows, each row with its own: no protocol, and no cells of any copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import Floats, Integers
from fragility.engines.trees.encoding import KIND, NUMERIC
from fragility.engines.trees.forest import Forest
from fragility.engines.trees.plan import plain_plan
from fragility.engines.trees.recoding import Recoding
from fragility.engines.trees.scoring import DECISION_BYTES, networks_of, on_all_threads, pack_nodes
from fragility.evidence import EvidenceRows, RowStates

# (recoded rows (m, d), states) -> raw sums (outputs, q)
ScoreStates: TypeAlias = Callable[[Floats, RowStates], npt.NDArray[Any]]
FlatStates: TypeAlias = tuple[Integers, npt.NDArray[np.uint8], Floats]


class Sides(NamedTuple):
    """The two sides of every cell, as it stands and at the baseline, and the units that states move."""

    baseline: Floats  # (d,)
    stepwise: npt.NDArray[np.uint8]  # (d,)
    unit: Integers  # (d,)
    numeric: npt.NDArray[np.uint8]  # (d,) 1 where a column's tests are all numeric
    test_base: npt.NDArray[np.uint8]  # (T,) 1 where the baseline goes right
    rounding: npt.NDArray[np.uint8]  # (d,) of cells before they are compared; see ``encoding``
    zero_missing: bool  # a zero cell is missing (XGBoost on sparse rows)
    whole: bool  # what is moved is removed
    slots: int  # nodes of the largest tree

    def of(self, states: RowStates) -> Sides:
        """Return the sides of the cells in these states."""
        unit = np.ascontiguousarray(states.unit_of(self.unit), dtype=np.int64)
        return self._replace(unit=unit, whole=states.severity is None)


def sides_of(forest: Forest, recoding: Recoding, rows: EvidenceRows) -> Sides:
    """Return the sides of the cells of some rows when groups are removed."""
    from fragility.engines.kernels import baseline_ways

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
        whole=True,
        slots=forest.most_nodes,
    )


def state_scorer(forest: Forest, sides: Sides) -> ScoreStates:
    """Return the scoring function of a forest: bit planes for small and oblivious trees, walks for deep ones."""
    import fragility.engines.kernels as kernels

    small = forest.most_leaves <= kernels.MAX_LEAVES or forest.oblivious
    few = len(forest.test_column) * 8 * kernels.WORDS <= DECISION_BYTES
    return _bit_planes(forest, sides) if small and few else _walks(forest, sides)


def _bit_planes(forest: Forest, sides: Sides) -> ScoreStates:
    from fragility.engines.kernels import BLOCK, score_row_states

    return _scorer(forest, sides, BLOCK, score_row_states, networks_of(forest))


def _walks(forest: Forest, sides: Sides) -> ScoreStates:
    from fragility.engines.kernels import WALK_BLOCK, walk_row_states

    plan = plain_plan(forest, len(sides.baseline), sides.zero_missing)
    packed = pack_nodes(forest, plan._replace(test_base=sides.test_base, rounding=sides.rounding))
    return _scorer(forest, sides, WALK_BLOCK, walk_row_states, packed)


def _scorer(forest: Forest, sides: Sides, block: int, kernel: Any, trees: Any) -> ScoreStates:
    """Return the scoring function of a kernel; trees: the forest as it reads it."""

    def score(x: Floats, states: RowStates) -> npt.NDArray[Any]:
        flat, moved, scores = _flat(states), sides.of(states), _blank_scores(forest, states)
        on_all_threads(len(states), block, lambda span: kernel(forest, trees, moved, x, flat, span, scores))
        return scores

    return score


def _flat(states: RowStates) -> FlatStates:
    """Return (owner, moved, severity) as the kernels take them; severity is empty where all are removals."""
    severity = np.zeros(0) if states.severity is None else np.ascontiguousarray(states.severity, dtype=np.float64)
    moved = np.ascontiguousarray(states.moved, dtype=bool).view(np.uint8)
    return np.ascontiguousarray(states.owner, dtype=np.int64), moved, severity


def _blank_scores(forest: Forest, states: RowStates) -> npt.NDArray[Any]:
    return np.empty((len(forest.base), len(states)), dtype=forest.leaf_value.dtype)
