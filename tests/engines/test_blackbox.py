"""The black-box engine: what it asks the model, what it saves, and that no batch changes a result."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import BLAS, FAMILIES, fitted, split
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility.base.errors import ModelError
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.trace import Trace
from fragility.models import Model
from fragility.protocol import Protocol, bind

EXACT = ("predicted", "order", "path_predicted", "threshold")
ARRAYS = Trace.arrays()


def assert_same(a: Trace, b: Trace, *, bitwise: bool) -> None:
    for name in ARRAYS:
        one, two = getattr(a, name), getattr(b, name)
        if bitwise or name in EXACT:
            np.testing.assert_array_equal(one, two, err_msg=name)
        else:
            np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11, err_msg=name)


def bound(family: str, space: str, n: int = 40, dataset: str = "credit_g", **changes):
    case = fitted(dataset, family, space)
    protocol = Protocol.fit(case.model, case.X_train, space=space, **changes)
    return bind(case.model, case.X_test[:n], protocol), protocol


@pytest.mark.repeats
@pytest.mark.parametrize("space", ["transformed", pytest.param("raw", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_byte_budget_changes_a_result(family: str, space: str) -> None:
    rows, protocol = bound(
        family, space, 24 if space == "transformed" else 4
    )  # a preprocessing pipeline is slow a call
    whole = trace_blackbox(rows, protocol)
    budgets = (1, 5, 37, 200) if space == "transformed" else (6, 40)  # in rows
    for budget in budgets:
        part = trace_blackbox(rows, protocol, byte_budget=16 * rows.width * budget)
        assert_same(whole, part, bitwise=family not in BLAS)


@settings(max_examples=5, deadline=None)
@given(st.integers(2**11, 2**18), st.permutations(range(12)), st.integers(0, 12))
def test_budget_order_and_splitting_change_nothing(budget: int, order: list[int], cut: int) -> None:
    case = fitted("credit_g", "lightgbm", "raw")
    protocol = Protocol.fit(case.model, case.X_train)
    X = case.X_test[:12]
    whole = trace_blackbox(bind(case.model, X, protocol), protocol)
    shuffled = X.iloc[list(order)]
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if len(part)]
    traces = [trace_blackbox(bind(case.model, part, protocol), protocol, byte_budget=budget) for part in parts]
    for name in ARRAYS:
        together = np.concatenate([getattr(trace, name) for trace in traces])
        np.testing.assert_array_equal(together, getattr(whole, name)[list(order)], err_msg=name)


class Counting:
    """A function that gives a real model's probabilities and remembers what it was asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.batches: list[np.ndarray] = []

    def __call__(self, matrix: np.ndarray) -> np.ndarray:
        self.batches.append(np.array(matrix))
        return self.model.head_probabilities(matrix)

    def fingerprint(self) -> str:
        return self.model.fingerprint


@pytest.fixture
def counted():
    """A LightGBM model over its transformed matrix, asked through a counting function."""
    case = fitted("credit_g", "lightgbm", "transformed")
    prepare = case.model[:-1]
    train, test = prepare.transform(case.X_train), prepare.transform(case.X_test)
    traced = Protocol.fit(case.model, case.X_train)
    columns = [column.name for column in traced.columns]
    groups = {g.name: [f"x{columns.index(c)}" for c in g.columns] for g in traced.groups}
    counting = Counting(Model.wrap(case.model))
    model = Model.wrap(counting, classes=list(case.model.classes_))
    protocol = Protocol.fit(model, train, groups=groups)
    counting.batches.clear()
    return counting, model, protocol, test


def test_evaluations_are_the_rows_handed_to_the_model(counted) -> None:
    counting, model, protocol, test = counted
    rows = bind(model, test[:60], protocol)
    counting.batches.clear()
    trace = trace_blackbox(rows, protocol)
    assert trace.evaluations == sum(len(batch) for batch in counting.batches)
    assert trace.evaluations < 60 * protocol.states_per_row
    assert protocol.states_per_row == 1 + 20 + 10 + 2 * 10
    assert trace.engine == "blackbox"


def test_no_state_is_asked_twice_for_a_row(counted) -> None:
    counting, model, protocol, test = counted
    rows = bind(model, test[:1], protocol)
    counting.batches.clear()
    trace_blackbox(rows, protocol)
    asked = np.concatenate(counting.batches)
    assert len(np.unique(asked, axis=0)) == len(asked)


def test_equal_rows_are_asked_once(counted) -> None:
    counting, model, protocol, test = counted
    once = bind(model, test[:5], protocol)
    counting.batches.clear()
    single = trace_blackbox(once, protocol)
    many = trace_blackbox(bind(model, np.tile(test[:5], (7, 1)), protocol), protocol)
    assert many.evaluations == single.evaluations
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(many, name), np.concatenate([getattr(single, name)] * 7))


def test_groups_at_their_baseline_cost_nothing_and_change_nothing(counted) -> None:
    counting, model, protocol, test = counted
    baseline = np.array([column.baseline for column in protocol.columns], dtype=float)
    row = test[:1].copy()
    at_baseline = np.isin(protocol.column_group, range(5, len(protocol.groups)))
    row[:, at_baseline] = baseline[at_baseline]
    rows = bind(model, row, protocol)
    counting.batches.clear()
    trace = trace_blackbox(rows, protocol)
    np.testing.assert_array_equal(trace.one_step_margin[0, 5:], trace.margin[0])
    # 1 original, at most 5 one-step states, 4 further path states, and the severities
    assert trace.evaluations <= 1 + 5 + 4 + len(protocol.operators) * len(protocol.severities)


def test_the_baseline_itself_is_a_row_like_any_other(counted) -> None:
    counting, model, protocol, _ = counted
    baseline = np.array([[column.baseline for column in protocol.columns]], dtype=float)
    rows = bind(model, baseline, protocol)
    counting.batches.clear()
    trace = trace_blackbox(rows, protocol)
    assert np.isinf(trace.threshold).all()
    assert (trace.path_predicted == trace.predicted[:, None]).all()
    assert trace.order[0].tolist() == list(range(10))  # nothing drops, so declared order


@pytest.mark.parametrize("budget_rows", [1, 8, 100])
def test_batches_stay_within_the_byte_budget(counted, budget_rows: int) -> None:
    counting, model, protocol, test = counted
    rows = bind(model, test[:40], protocol)
    counting.batches.clear()
    budget = 2 * 8 * rows.width * budget_rows
    trace_blackbox(rows, protocol, byte_budget=budget)
    assert max(len(batch) for batch in counting.batches) <= budget_rows
    counting.batches.clear()
    trace_blackbox(rows, protocol)
    assert len(counting.batches) <= 20  # and with room, few large calls instead of many small ones


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_severities_asked_at_once_change_nothing_but_the_calls(space: str) -> None:
    rows, protocol = bound("lightgbm", space)
    calls: list[int] = []
    one_by_one = trace_blackbox(rows, protocol)
    listening = dataclasses.replace(rows, ask_model=lambda m: calls.append(len(m)) or rows.predict(m))
    for at_once in (3, 10, 99):
        calls.clear()
        together = trace_blackbox(listening, protocol, severities_at_once=at_once)
        assert_same(one_by_one, together, bitwise=True)
        most = (
            4 + (rows.absent is not None) + -(-10 // at_once)
        )  # rows with gaps lose everything in a state of their own
        assert len(calls) <= most and together.evaluations == sum(calls) > one_by_one.evaluations


def test_larger_severities_are_not_asked_once_flipped(counted) -> None:
    _, model, protocol, test = counted
    rows = bind(model, test[:200], protocol)
    trace = trace_blackbox(rows, protocol)
    only = Protocol.from_dict({**protocol.to_dict(), "operators": []})
    without = trace_blackbox(rows, only)
    grid = np.array(protocol.severities)
    # every row is asked up to and including its own threshold; severity 1 needs no question of its own
    needed = sum(int(np.minimum(np.searchsorted(grid, trace.threshold[:, j]) + 1, 9).sum()) for j in range(2))
    assert trace.evaluations - without.evaluations <= needed + 1


def test_paths_that_meet_are_asked_once(counted) -> None:
    """Rows that differ only in groups removed early share the rest of their path."""
    counting, model, protocol, test = counted
    rows = np.repeat(test[:1], 4, axis=0)
    alone = trace_blackbox(bind(model, rows[:1], protocol), protocol)
    first = protocol.column_group == alone.order[0, 0]
    rows[1:, first] *= 1 + np.arange(1, 4)[:, None] * 1e-12  # the same prediction and path, another row
    counting.batches.clear()
    trace = trace_blackbox(bind(model, rows, protocol), protocol)
    assert (trace.order == alone.order).all()
    for name in ("path_margin", "path_predicted"):
        np.testing.assert_array_equal(getattr(trace, name)[:, 1:], np.repeat(getattr(alone, name)[:, 1:], 4, axis=0))
    # Every row asks for itself, its one-step states and its severities, and all four together for one path.
    severities = alone.evaluations - 1 - 20 - 9
    assert trace.evaluations <= 4 * (1 + 20 + severities) + 9


def test_values_that_can_only_jump_are_not_attenuated_step_by_step() -> None:
    rows, protocol = bound("lightgbm", "raw", 30, baseline="missing")
    assert rows.stepwise.all()
    trace = trace_blackbox(rows, protocol)
    without = trace_blackbox(rows, Protocol.from_dict({**protocol.to_dict(), "operators": []}))
    gaps = 0 if rows.absent is None else int(rows.absent.spared(0, len(rows)).cells.any(axis=1).sum())
    assert trace.evaluations - without.evaluations <= 1 + gaps  # the baseline itself, and that of each row with gaps
    assert set(trace.threshold.ravel().tolist()) <= {0.5, np.inf} and 0.5 in trace.threshold
    low = Protocol.from_dict({**protocol.to_dict(), "severities": [0.2, 0.4]})
    assert np.isinf(trace_blackbox(rows, low).threshold).all()


@pytest.mark.samples
@pytest.mark.parametrize("reading", ["support", "current", "support_unbounded"])
@pytest.mark.parametrize("family", ["random_forest", "catboost", "mlp"])
def test_flips_paths_and_thresholds_hang_together(family: str, reading: str) -> None:
    rows, protocol = bound(family, "transformed", 60, reading=reading)
    trace = trace_blackbox(rows, protocol)
    np.testing.assert_array_equal(trace.path_margin[:, 0], trace.margin)
    np.testing.assert_array_equal(trace.path_predicted[:, 0], trace.predicted)
    everyone = np.arange(len(rows))
    np.testing.assert_array_equal(trace.path_margin[:, 1], trace.one_step_margin[everyone, trace.order[:, 0]])
    drops = trace.margin[:, None] - trace.one_step_margin
    along = np.take_along_axis(drops, trace.order, axis=1)
    assert (np.diff(along, axis=1) <= protocol.resolution).all()
    for path in trace.order:
        assert len(set(path.tolist())) == protocol.depth
    if reading == "support":
        flipped = trace.path_predicted != trace.predicted[:, None]
        np.testing.assert_array_equal(flipped, trace.path_margin < -protocol.resolution)
    grid = set(protocol.severities) | {np.inf}
    assert set(trace.threshold.ravel().tolist()) <= grid
    # Full attenuation of the first group is the first removal.
    never, first = np.isinf(trace.threshold[:, 1]), trace.path_predicted[:, 1] != trace.predicted
    assert not (never & first).any()


def test_unflipped_rows_agree_under_all_readings() -> None:
    traces = {
        reading: trace_blackbox(*bound("logistic", "transformed", 80, reading=reading))
        for reading in ("support", "current", "support_unbounded")
    }
    held = (traces["support"].path_predicted == traces["support"].predicted[:, None]).all(axis=1)
    # Readings differ only where a one-step removal already flips the class.
    _, protocol = bound("logistic", "transformed", 1)
    kept = held & (traces["support"].one_step_margin >= -protocol.resolution).all(axis=1)
    assert kept.sum() >= 5
    for reading in ("current", "support_unbounded"):
        np.testing.assert_array_equal(traces[reading].order[kept], traces["support"].order[kept])
        np.testing.assert_allclose(traces[reading].path_margin[kept], traces["support"].path_margin[kept], atol=1e-12)


def test_progress_rises_to_the_number_of_rows(counted) -> None:
    _, model, protocol, test = counted
    rows = bind(model, test[:50], protocol)
    seen: list[tuple[int, int]] = []
    trace_blackbox(
        rows, protocol, byte_budget=16 * rows.width * 40, progress=lambda done, total: seen.append((done, total))
    )
    assert len(seen) > 1 and seen[-1] == (50, 50)
    assert seen == sorted(seen) and all(total == 50 for _, total in seen)


def test_sparse_and_dense_rows_give_the_same_trace() -> None:
    data = split("credit_g")
    numeric = ["duration", "age"]
    nominal = ["purpose", "checking_status", "housing"]
    X, y = data.X_train[[*numeric, *nominal]], data.y_train
    dense = make_pipeline(
        ColumnTransformer([("c", OneHotEncoder(sparse_output=False), nominal)], remainder=StandardScaler()),
        LogisticRegression(max_iter=300),
    ).fit(X, y)
    hot = ColumnTransformer([("c", OneHotEncoder(), nominal)], remainder=StandardScaler(), sparse_threshold=1.0).fit(X)
    sparse = Pipeline([("p", hot), ("m", dense[-1])])
    traces = []
    for model in (dense, sparse):
        protocol = Protocol.fit(model, X)
        traces.append(trace_blackbox(bind(model, data.X_test[X.columns][:30], protocol), protocol))
    assert_same(*traces, bitwise=False)


def test_float32_rows_are_handed_over_as_float32() -> None:
    data = split("credit_g")
    X = data.X_train[["duration", "credit_amount", "age"]].to_numpy(np.float32)
    types = set()

    def watch(matrix: np.ndarray) -> np.ndarray:
        types.add(matrix.dtype)
        return np.tile([0.3, 0.7], (len(matrix), 1))

    model = Model.wrap(watch, classes=[0, 1])
    protocol = Protocol.fit(model, X)
    types.clear()
    trace_blackbox(bind(model, X[:10], protocol), protocol)
    assert types == {np.dtype(np.float32)}


def test_a_model_that_fails_midway_fails_with_one_sentence(counted) -> None:
    counting, model, protocol, test = counted
    rows = bind(model, test[:10], protocol)

    def broken(matrix: np.ndarray) -> np.ndarray:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        trace_blackbox(dataclasses.replace(rows, ask_model=broken), protocol)
    counting.model = None
    with pytest.raises(ModelError, match="the model failed on these rows: AttributeError"):
        trace_blackbox(rows, protocol)


def test_a_table_of_one_row_and_of_one_group() -> None:
    X = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0] * 5})
    model = LogisticRegression().fit(X, [0, 1, 1, 1] * 5)
    protocol = Protocol.fit(model, X)
    assert protocol.depth == 1 and len(protocol.groups) == 1
    trace = trace_blackbox(bind(model, X[:1], protocol), protocol)
    assert trace.order.tolist() == [[0]] and trace.path_margin.shape == (1, 2)
