"""Raw scores of rows in which one unit of evidence has taken other values: a failure mode's question to a forest.

Each test is decided once for x and once for the other value; a unit changed alone takes its own decisions from the
second, and only the trees that ask about it are evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.base.arrays import Floats, Integers
from fragility.engines.kernels.compiling import run_on_all_threads
from fragility.engines.kernels.decisions import BLOCK, baseline_ways
from fragility.engines.kernels.planes import score_states
from fragility.engines.trees.recoding import Ensemble, Recoding
from fragility.engines.trees.scoring import (
    FEW_ROWS,
    PlaceStates,
    Plan,
    build_gates,
    fits_planes,
    make_plain_plan,
    make_row_scorer,
    mark_tree_groups,
    score_by_walks,
)
from fragility.engines.trees.tables import make_value_lookup
from fragility.evidence import EvidenceRows

OTHER = 0.5  # the severity of states that take cells of their own: any between 0 and 1
ValueScorer = Callable[[Floats, Floats, Integers, Integers], npt.NDArray[Any]]


def make_value_scorer(ensemble: Ensemble, recoding: Recoding, rows: EvidenceRows) -> ValueScorer:
    """Return the function (x (m, d), y (m, d) or (d,), unit of each column, asked units (k,)) -> sums (k, outputs, m).

    Trees of few leaves are scored by bit planes; deep ones walk, with all units of one fixed value in one walk. Few
    rows are scored as rows that have changed.
    """
    if ensemble.terms is not None:
        look_up = make_value_lookup(ensemble.terms, recoding.rounding)
        return lambda x, y, unit, asked: look_up(recoding.recode(x), recoding.recode(y), unit, asked)
    forest = ensemble.forest
    sparse, planes = bool(sp.issparse(rows.matrix)), fits_planes(forest)
    plain = make_plain_plan(forest, recoding.rounding, sparse)
    networks = build_gates(forest) if planes else None
    score_rows = make_row_scorer(forest, recoding.rounding, sparse)
    marked: dict[bytes, Any] = {}  # units that were asked before: (group of each column, trees that ask about each)

    def plan_for(y: Floats, unit: Integers) -> Plan:
        if unit.tobytes() not in marked:
            group = np.where(unit < 0, unit.max() + 1, unit).astype(np.uint32)  # the last is never asked
            marked[unit.tobytes()] = group, mark_tree_groups(forest, group, int(unit.max()) + 2)
        group, tree_group = marked[unit.tobytes()]
        return plain._replace(
            baseline=y,
            column_group=group,
            test_group=group[forest.test_column],
            test_base=baseline_ways(forest, y, recoding.rounding, plain.zero_missing),
            tree_group=tree_group,
        )

    def score(x: Floats, y: Floats, unit: Integers, asked: Integers) -> npt.NDArray[Any]:
        cells, others = recoding.recode(x), recoding.recode(y)
        scores = np.empty((len(asked), len(forest.base), len(x)), dtype=forest.leaf_value.dtype)
        if len(x) * len(asked) <= FEW_ROWS and len(asked):
            changed = np.where(unit == asked[:, None, None], others, cells).reshape(-1, x.shape[1])
            return np.moveaxis(score_rows(changed).reshape(len(forest.base), len(asked), len(x)), 0, 1)
        if planes or y.ndim == 1:
            plan = plan_for(others if y.ndim == 1 else others[0], unit)
            units = len(plan.tree_group)
            order = np.broadcast_to(np.arange(units), (len(x), units))
            severity = np.full(len(asked), 1.0 if y.ndim == 1 else OTHER)
            states = PlaceStates(severity, np.eye(units, dtype=np.uint8)[asked])
            if not planes:
                return score_by_walks(forest, plan, run_on_all_threads)(cells, cells[:0] != 0, order, states)
            varying = others if y.ndim == 2 else np.empty((0, x.shape[1]))
            asked_cells = (cells, varying, cells[:0] != 0)
            run_on_all_threads(
                len(x),
                BLOCK,
                lambda span: score_states(forest, networks, plan, asked_cells, order, states, span, scores),
            )
        else:
            for k, own in enumerate(asked):
                scores[k] = score_rows(np.where(unit == own, others, cells))
        return scores

    return score
