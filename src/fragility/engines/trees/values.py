"""Raw scores of rows in which one unit of evidence has taken other values: a failure mode's question to a forest.

Through trees of few leaves, each test is decided once for x and once for the other value; a unit changed alone takes
its own decisions from the second, and only the trees that ask about it are evaluated again. Through deep trees, all
values of all units take one walk (``kernels.values``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.base.arrays import Floats, Integers
from fragility.engines.engine import Values
from fragility.engines.kernels.compiling import LANES, run_on_all_threads
from fragility.engines.kernels.decisions import BLOCK, baseline_ways
from fragility.engines.kernels.planes import score_states
from fragility.engines.kernels.values import MOST_VALUES, VALUES_BLOCK, walk_values
from fragility.engines.trees.forest import Flags, Forest, find_starts
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
    pack_nodes,
)
from fragility.engines.trees.tables import make_value_lookup
from fragility.evidence import EvidenceRows

OTHER = 0.5  # the severity of states that take cells of their own: any between 0 and 1
Sums = npt.NDArray[Any]  # (k, outputs, m)
ValueScorer = Callable[[Floats, Sequence[Values]], Iterator[Sums]]


def make_value_scorer(ensemble: Ensemble, recoding: Recoding, rows: EvidenceRows) -> ValueScorer:
    """Return the function (x (m, d), values of units) -> raw sums (k, outputs, m) of each.

    Few rows are scored as rows that have changed.
    """
    if ensemble.terms is not None:
        look_up = make_value_lookup(ensemble.terms, recoding.rounding)
        return lambda x, asked: (
            look_up(recoding.recode(x), recoding.recode(one.cells), one.unit, one.asked) for one in asked
        )
    forest = ensemble.forest
    sparse = bool(sp.issparse(rows.matrix))
    plain = make_plain_plan(forest, recoding.rounding, sparse)
    score_rows = make_row_scorer(forest, recoding.rounding, sparse)
    together = (value_by_planes if fits_planes(forest) else value_by_walks)(forest, plain)

    def score(x: Floats, asked: Sequence[Values]) -> Iterator[Sums]:
        cells = np.ascontiguousarray(recoding.recode(x), dtype=np.float64)
        recoded = [one._replace(cells=recoding.recode(one.cells)) for one in asked]
        if len(x) * max((len(one.asked) for one in asked), default=0) > FEW_ROWS:
            yield from together(cells, recoded)
            return
        for one in recoded:
            changed = np.where(one.unit == one.asked[:, None, None], one.cells, cells).reshape(-1, x.shape[1])
            yield np.moveaxis(score_rows(changed).reshape(len(forest.base), len(one.asked), len(x)), 0, 1)

    return score


# --- trees of few leaves ------------------------------------------------------------------------------------


def value_by_planes(forest: Forest, plain: Plan) -> ValueScorer:
    """Return the function of recoded rows and values that reads bit planes."""
    networks = build_gates(forest)
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
            test_base=baseline_ways(forest, y, plain.rounding, plain.zero_missing),
            tree_group=tree_group,
        )

    def score(x: Floats, one: Values) -> Sums:
        others, shared = one.cells, one.cells.ndim == 1
        plan = plan_for(others if shared else others[0], one.unit)
        units = len(plan.tree_group)
        order = np.broadcast_to(np.arange(units), (len(x), units))
        severity = np.full(len(one.asked), 1.0 if shared else OTHER)
        states = PlaceStates(severity, np.eye(units, dtype=np.uint8)[one.asked])
        given = (x, np.empty((0, x.shape[1])) if shared else others, x[:0] != 0)
        scores = np.empty((len(one.asked), len(forest.base), len(x)), dtype=forest.leaf_value.dtype)
        run_on_all_threads(
            len(x), BLOCK, lambda span: score_states(forest, networks, plan, given, order, states, span, scores)
        )
        return scores

    return lambda x, asked: (score(x, one) for one in asked)


# --- deep trees ---------------------------------------------------------------------------------------------


class Axes(NamedTuple):
    """Columns that change together, and what they may turn into; A axes of up to 64 values each."""

    column_axis: Integers  # (d,) -1: a column that does not change
    sizes: Integers  # (A,) how many values
    first_value: Integers  # (A+1,) where an axis begins among all values
    first_line: Integers  # (A+1,) and among the lines of LANES sums
    node_set: npt.NDArray[np.uint64]  # (N,) values of a node's axis that go right; empty if rows have their own
    taken: Floats  # (m, values, d) else: by place within their axis
    rounding: Flags  # (d,) of cells
    zero_missing: bool


def value_by_walks(forest: Forest, plain: Plan) -> ValueScorer:
    """Return the function of recoded rows and values that walks through deep trees, once for as many as it can."""
    packed = cache(lambda: pack_nodes(forest, plain))

    def fill(x: Floats, axes: Axes, scores: Sums) -> None:
        run_on_all_threads(len(x), VALUES_BLOCK, lambda span: walk_values(forest, packed(), axes, x, span, scores))

    def score(x: Floats, asked: Sequence[Values]) -> Iterator[Sums]:
        places = [np.empty(len(one.asked), dtype=np.int64) for one in asked]  # of each value among all of them
        scores = np.empty((sum(map(len, places)), len(forest.base), len(x)), dtype=forest.leaf_value.dtype)
        start = 0
        for some in _list_walks(asked):
            axes = _make_axes(forest, plain, x, asked, some)
            stop = start + int(axes.first_value[-1])
            fill(x, axes, scores[start:stop])
            for at, (number, place) in enumerate((value for _, values in some for value in values), start):
                places[number][place] = at
            start = stop
        return (scores[own] for own in places)

    return score


Axis = tuple[Integers, list[tuple[int, int]]]  # its columns, and its values: (round, place in ``asked``)


def _list_walks(asked: Sequence[Values]) -> list[list[Axis]]:
    """Return which values walk together: on axes that share no column, at most 64 on each."""
    axes: dict[bytes, Axis] = {}
    for number, one in enumerate(asked):
        for place, own in enumerate(one.asked):
            columns = np.flatnonzero(one.unit == own)
            axes.setdefault(columns.tobytes(), (columns, []))[1].append((number, place))
    walks: list[list[Axis]] = []
    taken: list[set[int]] = []
    for columns, values in axes.values():
        for start in range(0, len(values), MOST_VALUES):
            part = columns, values[start : start + MOST_VALUES]
            free = (i for i, used in enumerate(taken) if used.isdisjoint(columns.tolist()))
            if (i := next(free, None)) is None:
                i = len(walks)
                walks.append([])
                taken.append(set())
            walks[i].append(part)
            taken[i].update(columns.tolist())
    return walks


def _make_axes(forest: Forest, plain: Plan, x: Floats, asked: Sequence[Values], axes: Sequence[Axis]) -> Axes:
    column_axis, counts = np.full(x.shape[1], -1, dtype=np.int64), [len(values) for _, values in axes]
    for axis, (columns, _) in enumerate(axes):
        column_axis[columns] = axis
    node_set, taken = np.empty(0, dtype=np.uint64), np.empty((0, 0, 0))
    if all(one.cells.ndim == 1 for one in asked):
        test_set = np.zeros(len(forest.test_column) + 1, dtype=np.uint64)  # the last: of leaves
        numbers = {number for _, values in axes for number, _ in values}
        ways = {i: baseline_ways(forest, asked[i].cells, plain.rounding, plain.zero_missing) for i in numbers}
        test_axis = column_axis[forest.test_column]
        for axis, (_, values) in enumerate(axes):
            tests = np.flatnonzero(test_axis == axis)
            for bit, (number, _) in enumerate(values):
                test_set[tests] |= ways[number][tests].astype(np.uint64) << np.uint64(bit)
        node_set = test_set[np.maximum(forest.node_test, -1)]
    else:
        taken = np.zeros((len(x), max(counts), x.shape[1]))
        for columns, values in axes:
            for i, (number, _) in enumerate(values):
                taken[:, i, columns] = asked[number].cells[..., columns]
    return Axes(
        column_axis=column_axis,
        sizes=np.array(counts, dtype=np.int64),
        first_value=find_starts(counts),
        first_line=find_starts([-(-count // LANES) for count in counts]),
        node_set=node_set,
        taken=taken,
        rounding=plain.rounding,
        zero_missing=plain.zero_missing,
    )
