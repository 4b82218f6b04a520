"""The compiled kernels against a walk written from the definition, on random small forests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from fragility.engines.engine import Values
from fragility.engines.kernels.compiling import run_on_all_threads
from fragility.engines.kernels.decisions import baseline_ways
from fragility.engines.kernels.preparing import build_networks, preorder
from fragility.engines.kernels.walks import walk_alike
from fragility.engines.trees import forest as encoding
from fragility.engines.trees.forest import Convention, TreeNodes, assemble
from fragility.engines.trees.scoring import (
    PlaceStates,
    Plan,
    make_plain_plan,
    make_row_scorer,
    mark_tree_groups,
    pack_nodes,
    score_by_planes,
    score_by_walks,
)
from fragility.engines.trees.values import value_by_planes, value_by_walks
from fragility.evidence import blend

VALUES = np.array([-2.0, -1.0, -1e-36, 0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 33.0, np.nan])
KINDS = (
    encoding.NUMERIC,
    encoding.NUMERIC,
    encoding.NUMERIC,
    encoding.ZERO_BAND,
    encoding.CATEGORY,
    encoding.CATEGORY_INVERTED,
)
N_SETS = 3


# --- slow twins -----------------------------------------------------------------------------------------------


def naive_right(v: float, threshold: float, flags: int, sets: list[list[int]], zero: float = 1e-35) -> bool:
    if np.isnan(v):
        return bool(flags & encoding.NAN_RIGHT)
    kind = flags & encoding.KIND
    if kind == encoding.ZERO_BAND and abs(v) <= float(np.float32(zero)):
        return bool(flags & encoding.NAN_RIGHT)
    if kind in (encoding.NUMERIC, encoding.ZERO_BAND):
        return bool(v > threshold)
    inside = v > -1 and int(v) in sets[int(threshold)]  # cut toward zero
    return inside and v >= 0 if kind == encoding.CATEGORY else not inside


def naive_scores(nodes: list[TreeNodes], sets: list[list[int]], base: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return (rows, outputs): each row walks each tree, leaf values are added in tree order."""
    scores = np.tile(base, (len(X), 1))
    for row, x in zip(scores, X, strict=True):
        for tree in nodes:
            node = 0
            while not tree.leaf[node]:
                right = naive_right(x[tree.column[node]], tree.threshold[node], tree.flags[node], sets)
                node = (tree.right if right else tree.left)[node]
            row[tree.output : tree.output + tree.value.shape[1]] += tree.value[node]
    return scores


# --- random forests -------------------------------------------------------------------------------------------


def random_tree(rng: np.random.Generator, n_columns: int, n_leaves: int, output: int, parts: int) -> TreeNodes:
    """Return a tree grown at random leaves; its nodes are not in preorder."""
    left, right, leaf = [0], [0], [True]
    for _ in range(n_leaves - 1):
        node = int(rng.choice(np.flatnonzero(leaf)))
        leaf[node] = False
        left[node], right[node] = len(leaf), len(leaf) + 1
        left += [0, 0]
        right += [0, 0]
        leaf += [True, True]
    size = len(leaf)
    flags = rng.choice(KINDS, size) | rng.integers(0, 2, size)
    threshold = rng.choice(VALUES[:-1], size)
    category = (flags & encoding.KIND) >= encoding.CATEGORY
    threshold[category] = rng.integers(0, N_SETS, category.sum())
    return TreeNodes(
        rng.integers(0, n_columns, size),
        threshold,
        np.array(left),
        np.array(right),
        np.array(leaf),
        flags.astype(np.uint8),
        rng.normal(size=(size, parts)),
        output,
    )


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """A forest (single-leaf trees, unused and constant columns included), rows, groups, a baseline and severities."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.integers(1, 6))
    parts = draw(st.sampled_from([1, 3]))
    outputs = 3 if parts == 3 else draw(st.sampled_from([1, 3]))
    most = draw(st.sampled_from([1, 2, 5, 31, 64, 200]))
    nodes = [
        random_tree(rng, d, int(rng.integers(1, most + 1)), t % outputs if parts == 1 else 0, parts)
        for t in range(draw(st.integers(1, 6)))
    ]
    sets = [sorted({int(i) for i in rng.integers(0, 40, rng.integers(0, 6))}) for _ in range(N_SETS)]
    X = rng.choice(VALUES, (draw(st.sampled_from([1, 7, 70])), d))
    X[:, rng.random(d) < 0.2] = 1.0
    X[:, 0] = draw(st.sampled_from([X[:, 0], rng.normal(scale=10.0, size=len(X))]))  # few distinct cells, or many
    baseline = np.where(rng.random(d) < 0.5, rng.choice(VALUES, d), rng.normal(size=d))
    n_groups = draw(st.integers(1, d))
    group = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, d - n_groups)])
    return {
        "forest": assemble(nodes, Convention(rng.normal(size=outputs), encoding.AVERAGE), d, sets),
        "nodes": nodes,
        "sets": sets,
        "X": X,
        "baseline": baseline,
        "stepwise": np.isnan(baseline) | (rng.random(d) < 0.2),
        "rounding": rng.choice([0, encoding.WHOLE, encoding.NARROW], d).astype(np.uint8),
        "group": group,
        "rank": np.stack([rng.permutation(n_groups) for _ in X]),
        "severity": np.sort(rng.choice([0.0, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0], 9)),
        "moved": rng.integers(0, 2, (9, n_groups)).astype(np.uint8),
    }


def plan_of(problem: dict[str, Any], monotone: bool) -> Plan:
    forest, group = problem["forest"], problem["group"].astype(np.uint32)
    n_groups = int(group.max()) + 1
    return Plan(
        baseline=problem["baseline"],
        stepwise=problem["stepwise"].astype(np.uint8),
        column_group=group,
        test_group=group[forest.test_column],
        test_base=baseline_ways(forest, problem["baseline"], problem["rounding"], False),
        tree_group=mark_tree_groups(forest, group, n_groups),
        slots=forest.most_nodes,
        rounding=problem["rounding"],
        single=False,
        zero_missing=False,
        monotone=monotone,
    )


def order_of(problem: dict[str, Any]) -> np.ndarray:
    """Return (n, G) the group at each place."""
    return np.argsort(problem["rank"], axis=1)


def rounded(cells: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    whole = np.where(rounding == encoding.WHOLE, np.round(cells), cells)
    return np.where(rounding == encoding.NARROW, whole.astype(np.float32).astype(np.float64), whole)


def expected(problem: dict[str, Any]) -> np.ndarray:
    """Return (states, outputs, n) by materialising every stressed row."""
    out = []
    for severity, moved in zip(problem["severity"], problem["moved"], strict=True):
        s = severity * moved[problem["rank"]][:, problem["group"]]
        stressed = blend(problem["X"], problem["baseline"], s, problem["stepwise"])
        handed = rounded(stressed, problem["rounding"])
        out.append(naive_scores(problem["nodes"], problem["sets"], problem["forest"].base, handed).T)
    return np.array(out)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_both_kernels_equal_materialised_rows_to_the_last_bit(problem):
    states = PlaceStates(problem["severity"], problem["moved"])
    want = expected(problem)
    for monotone in (True, False):
        plan = plan_of(problem, monotone)
        for kernel in (score_by_planes, score_by_walks):
            cells = (problem["X"], problem["X"][:0] != 0)
            got = kernel(problem["forest"], plan, run_on_all_threads)(*cells, order_of(problem), states)
            np.testing.assert_array_equal(got, want, err_msg=f"{kernel.__name__}, monotone={monotone}")


@settings(max_examples=20, deadline=None)
@given(problems())
def test_plain_rows(problem):
    rounding = np.full(problem["X"].shape[1], encoding.NARROW if problem["forest"].single else 0, dtype=np.uint8)
    got = make_row_scorer(problem["forest"], rounding)(problem["X"]).T
    np.testing.assert_array_equal(
        got, naive_scores(problem["nodes"], problem["sets"], problem["forest"].base, problem["X"])
    )


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 0.5]))
def test_rows_that_are_alike_equal_rows_that_walk_alone(problem, seed, changed):
    """Copies of one row, a share of whose cells were changed, and rows that have nothing in common."""
    rng, forest = np.random.default_rng(seed), problem["forest"]
    copies = np.repeat(problem["X"][:1], 150, axis=0)
    copies = np.where(rng.random(copies.shape) < changed, rng.choice(VALUES, copies.shape), copies)
    plan = plan_of(problem, True)
    for X in (copies, problem["X"], problem["X"][:1]):
        got = np.full((len(forest.base), len(X)), np.nan)
        run_on_all_threads(len(X), 64, lambda span: walk_alike(forest, plan, pack_nodes(forest, plan), X, span, got))  # noqa: B023
        handed = rounded(X, problem["rounding"])
        np.testing.assert_array_equal(got.T, naive_scores(problem["nodes"], problem["sets"], forest.base, handed))


def changed_rows(problem: dict[str, Any], X: np.ndarray, values: Values, zero_missing: bool) -> np.ndarray:
    """Return (k, outputs, n) of rows with the cells of one unit after the other."""
    out = []
    for unit in values.asked:
        cells = np.where(values.unit == unit, values.cells, X)
        handed = rounded(np.where(zero_missing & (cells == 0.0), np.nan, cells), problem["rounding"])
        out.append(naive_scores(problem["nodes"], problem["sets"], problem["forest"].base, handed).T)
    return np.array(out)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1), st.sampled_from([True, False]), st.sampled_from([1, 3, 70]))
def test_values_of_units_are_those_of_rows_that_have_changed(problem, seed, zero_missing, rounds):
    """70 rounds have more values than one walk holds; units of some rounds overlap those of others."""
    rng, forest, X = np.random.default_rng(seed), problem["forest"], problem["X"][:7]
    d = X.shape[1]
    plain = make_plain_plan(forest, problem["rounding"], sparse=False)._replace(zero_missing=zero_missing)
    partitions = [problem["group"], np.arange(d), np.where(rng.random(d) < 0.5, 0, -1)]
    for shape in ((d,), (len(X), d)):
        asked = []
        for _ in range(rounds):
            unit = partitions[rng.choice(3, p=[0.8, 0.1, 0.1])]
            units = np.unique(unit[unit >= 0])
            chosen = rng.permutation(units)[: rng.integers(1, len(units) + 1)] if len(units) else np.array([0])
            asked.append(Values(rng.choice(VALUES, shape), unit, chosen))
        given = [values for values in asked if (values.unit >= 0).any()]
        for score in (value_by_planes, value_by_walks):
            for values, got in zip(given, score(forest, plain)(X, given), strict=True):
                want = changed_rows(problem, X, values, zero_missing)
                np.testing.assert_array_equal(got, want, err_msg=score.__name__)


# --- what the kernels rely on ---------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False, width=64),
    st.floats(allow_nan=False, allow_infinity=False, width=64),
)
def test_a_moving_cell_crosses_a_threshold_at_most_once(x, baseline):
    """x + s (b - x) is monotone in s with rounding, also once rounded to float32 or to whole numbers, to s = 0.999."""
    severities = np.array([0.0, 1e-9, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 1.0])
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(baseline - x):
            return
        cells = np.array([blend(np.array([x]), np.array([baseline]), s, np.array([False]))[0] for s in severities])
        for seen in (cells, cells.astype(np.float32), np.rint(cells)):
            steps = np.sign(seen[1:].astype(float) - seen[:-1])
            assert not ((steps > 0).any() and (steps < 0).any())


def test_leaf_numbers_of_a_balanced_tree_need_one_union_a_node():
    depth = 4
    size = 2 ** (depth + 1) - 1
    leaf = np.arange(size) >= size // 2
    left = np.where(leaf, 0, 2 * np.arange(size) + 1)
    order = preorder(left, left + 1, leaf)
    place = np.empty(size, dtype=np.int64)
    place[order] = np.arange(size)
    test = np.where(leaf[order], -1, 0).astype(np.int32)
    right = place[np.where(leaf, 0, left + 1)][order].astype(np.int32)
    gates, _, slots, _ = build_networks(test, right, np.array([0, size]))
    assert len(gates) == len(slots) == 2**depth - 1


def test_more_states_than_one_walk_holds():
    """70 states are walked in two rounds."""
    rng = np.random.default_rng(0)
    nodes = [random_tree(rng, 3, 40, 0, 1) for _ in range(3)]
    for tree in nodes:
        tree.flags[:] = 0
    problem = {
        "forest": assemble(nodes, Convention(np.zeros(1), encoding.SIGMOID), 3),
        "nodes": nodes,
        "sets": [],
        "X": rng.normal(size=(20, 3)),
        "baseline": np.zeros(3),
        "stepwise": np.zeros(3, dtype=bool),
        "rounding": np.zeros(3, dtype=np.uint8),
        "group": np.arange(3),
        "rank": np.tile(np.arange(3), (20, 1)),
        "severity": np.sort(rng.choice(np.arange(11) / 10, 70)),
        "moved": rng.integers(0, 2, (70, 3)).astype(np.uint8),
    }
    states = PlaceStates(problem["severity"], problem["moved"])
    for kernel in (score_by_planes, score_by_walks):
        got = kernel(problem["forest"], plan_of(problem, True), run_on_all_threads)(
            problem["X"], problem["X"][:0] != 0, order_of(problem), states
        )
        np.testing.assert_array_equal(got, expected(problem))
