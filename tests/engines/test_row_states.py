"""States that each row has of its own: engines answer as the model itself does when it is handed every copy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, SGDClassifier
from tree_models import LGB, MODELS

import fragility as fg
from fragility.analysis.ranking.scores import random_order_score, rcma_along
from fragility.engines.choice import choose_oracle, find_engine
from fragility.engines.linear import LinearEngine
from fragility.engines.oracle import ModelOracle, Oracle
from fragility.engines.trees.engine import TreeEngine
from fragility.evidence import EvidenceRows, States
from fragility.protocol import bind
from fragility.questions.search import failing_sets_of_rows
from fragility.questions.stress.labels import label_rows, run_stress_rows

pytest.importorskip("numba")
lightgbm = pytest.importorskip("lightgbm")

NAMES = (
    *("xgboost", "xgboost depth 10", "lightgbm", "lightgbm 400 leaves", "catboost", "catboost depth 10"),
    *("hist gradient boosting", "random forest", "extra trees"),
)
TREES = {
    **{name: MODELS[name] for name in NAMES},
    "lightgbm zeros missing": lambda: lightgbm.LGBMClassifier(n_estimators=25, zero_as_missing=True, **LGB),
}
LINEAR = {
    "logistic": lambda: LogisticRegression(max_iter=300),
    "one against the rest": lambda: SGDClassifier(loss="log_loss", random_state=0),
    "discriminant": LinearDiscriminantAnalysis,
}
ROUNDING = {"trees": 1e-15, "linear": 1e-12}


def kinds_of_states(rows: EvidenceRows, per_row: int | None = None) -> list[States]:
    """Groups and columns, removed and attenuated; rows with 0 to 150 states each, or ``per_row``."""
    draws = np.random.default_rng(4)
    counts = draws.choice([0, 1, 5, 48, 64, 65, 150], len(rows)) if per_row is None else np.full(len(rows), per_row)
    owner = np.repeat(np.arange(len(rows)), counts)
    found = []
    for units, by_column in ((rows.n_groups, False), (rows.width, True)):
        moved = draws.random((len(owner), units)) < draws.random((len(owner), 1))
        severities = np.sort(draws.choice([0.0, 0.2, 0.5, 0.99, 1.0], len(owner)))
        found += [States(owner, moved, None, by_column), States(owner, moved, severities, by_column)]
    return found


def check(rows: EvidenceRows, engine: str) -> None:
    """The engine answers every kind of states itself, and as the model does."""
    native = find_engine(rows, "auto")
    assert native is not None and native.name == engine
    answer = native(rows).answer_states
    x = rows.dense()
    for states in kinds_of_states(rows):
        told = answer(x, states)
        assert told is not None and told.shape == (len(states), rows.n_classes)
        asked = rows.predict(rows.stressed(x, states))
        np.testing.assert_allclose(told, asked, rtol=0, atol=ROUNDING[engine])


def bound(model: Any, train: Any, rows: Any, **how: Any) -> EvidenceRows:
    return bind(model, rows, fg.Protocol.fit(model, train, **how))


# --- as the model does ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(3)
    X = draws.normal(size=(700, 6))
    X[:, 3] = draws.integers(0, 4, size=700)
    X[:, 4] = draws.integers(0, 2, size=700)
    return X, (X[:, 0] + X[:, 1] * X[:, 4] + draws.normal(scale=0.3, size=700) > 0).astype(int)


@pytest.mark.samples
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("baseline", ["mean", "missing"])
def test_missing_cells_and_missing_baselines(name, baseline, numbers):
    X, y = numbers[0].copy(), numbers[1]
    X[np.random.default_rng(5).random(X.shape) < 0.15] = np.nan
    check(bound(TREES[name]().fit(X, y), X, X[:40], baseline=baseline), "trees")


@pytest.mark.parametrize("name", ["xgboost", "xgboost depth 10", "lightgbm", "random forest", "logistic"])
@pytest.mark.parametrize("baseline", ["zero", "mean"])
def test_sparse_rows(name, baseline, numbers):
    """XGBoost takes an absent entry for missing, the others for zero."""
    X, y = numbers
    X = sp.csr_matrix(np.where(np.abs(X) < 0.5, 0.0, X))
    check(
        bound((TREES | LINEAR)[name]().fit(X, y), X, X[:40], baseline=baseline), "trees" if name in TREES else "linear"
    )


@pytest.mark.parametrize("name", TREES)
def test_cells_on_a_threshold(name, numbers):
    X, y = np.round(numbers[0]), numbers[1]
    check(bound(TREES[name]().fit(X, y), X, X[:40], baseline="median"), "trees")


@pytest.mark.samples
@pytest.mark.parametrize("family", ["lightgbm", "xgboost", "hist_gradient_boosting"])
@pytest.mark.parametrize("baseline", ["typical", "missing"])
def test_categories_as_the_library_codes_them(family, baseline):
    case = fitted("credit_g", family, "raw")
    check(bound(case.model, case.X_train, case.X_test[:30], space="raw", baseline=baseline), "trees")


@pytest.mark.samples
@pytest.mark.parametrize(
    "family", ["lightgbm", "xgboost", "catboost", "hist_gradient_boosting", "random_forest", "extra_trees", "logistic"]
)
@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property", "adult"])
def test_pipelines_on_real_data(family, dataset):
    case = fitted(dataset, family, "transformed")
    check(bound(case.model, case.X_train, case.X_test[:25]), "linear" if family == "logistic" else "trees")


# --- nothing but the state decides -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eight(numbers) -> dict[str, EvidenceRows]:
    X, y = numbers
    return {name: bound(TREES[name]().fit(X, y), X, X[:8]) for name in ("lightgbm", "catboost", "random forest")}


@given(
    name=st.sampled_from(["lightgbm", "catboost", "random forest"]),
    cuts=st.lists(st.integers(1, 1199), max_size=4, unique=True),
    threads=st.integers(1, 3),
    order=st.permutations(range(8)),
)
@settings(max_examples=25, deadline=None)
def test_neighbours_threads_and_order_do_not_change_a_bit(eight, name, cuts, threads, order):
    from fragility.engines.kernels import compiling

    rows = eight[name]
    x, states = rows.dense(), kinds_of_states(rows, per_row=150)[0]
    answer = TreeEngine(rows).answer_states
    whole = answer(x, states)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "THREADS", threads)
        for start, stop in itertools.pairwise([0, *sorted(cuts), len(states)]):
            np.testing.assert_array_equal(answer(x, states.between(start, stop)), whole[start:stop])
        places = np.concatenate([np.flatnonzero(states.owner == row) for row in order])
        shuffled = States(states.owner, states.moved[places])
        np.testing.assert_array_equal(answer(x[list(order)], shuffled), whole[places])


# --- what an engine leaves to the model -------------------------------------------------------------------------------


def test_severities_of_each_unit_go_to_the_model(eight, numbers):
    rows = eight["lightgbm"]
    answer = TreeEngine(rows).answer_states
    removals = kinds_of_states(rows, per_row=8)[0]
    own = replace(removals, severity=np.random.default_rng(0).random(removals.moved.shape))
    assert answer(rows.dense(), own) is None
    answers = [oracle.answer_states(rows.dense(), own) for oracle in (choose_oracle(rows), ModelOracle(rows))]
    np.testing.assert_allclose(*answers, rtol=0, atol=1e-15)
    X, y = numbers
    linear = bound(LogisticRegression().fit(X, y), X, X[:8])
    told = LinearEngine(linear).answer_states(linear.dense(), own)
    np.testing.assert_allclose(told, ModelOracle(linear).answer_states(linear.dense(), own), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "cell"), [("random forest", 1e300), ("logistic", np.nan)])
def test_cells_the_model_refuses_are_refused(name, cell, numbers):
    X, y = numbers
    rows = bound((TREES | LINEAR)[name]().fit(X, y), X, X[:20].copy())
    oracle = choose_oracle(rows)
    x = rows.dense()
    x[17, 2] = cell
    with pytest.raises((fg.DataError, fg.ModelError)):
        oracle.answer_states(x, kinds_of_states(rows, per_row=8)[0])


def test_answers_that_disagree_with_the_model_give_way_with_a_warning(numbers, monkeypatch):
    X, y = numbers
    rows = bound(LogisticRegression().fit(X, y), X, X[:20])
    right = LinearEngine.answer_states

    def wrong(self, x, states):
        return right(self, x, states) + (0.25 if states.by_column else 0.0)

    monkeypatch.setattr(LinearEngine, "answer_states", wrong)
    with pytest.warns(
        UserWarning, match="the linear engine differs from LogisticRegression's own probabilities by 0.25"
    ):
        assert isinstance(choose_oracle(rows), ModelOracle)


# --- what is made of the answers --------------------------------------------------------------------------------------


FAMILIES = ("lightgbm", "catboost", "random_forest", "logistic")


def counted(rows: EvidenceRows, monkeypatch: pytest.MonkeyPatch) -> tuple[Oracle, list[int]]:
    """Who answers about the rows, with a list of how many rows are handed to any predictor from now on."""
    calls: list[int] = []
    oracle = choose_oracle(rows)
    oracle.asks_model(rows.dense())  # rows in doubt are known now

    def predict(matrix: np.ndarray) -> np.ndarray:
        calls.append(len(matrix))
        return rows.predict(matrix)

    monkeypatch.setattr(oracle, "_predict", predict)
    return oracle, calls


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_are_the_models_and_no_copy_is_handed_over(family, monkeypatch):
    case = fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test[:60], protocol)
    outages = fg.Stress.from_outages([{"age"}, {"job", "housing"}], draws=16)
    for stress in (fg.Stress((fg.Mask(), fg.Dropout()), draws=16), outages):
        oracle, calls = counted(rows, monkeypatch)
        told, asked = (run_stress_rows(by, protocol, stress) for by in (oracle, ModelOracle(rows)))
        assert calls == []
        np.testing.assert_allclose(told.draw_margin, asked.draw_margin, rtol=0, atol=1e-9)
        if family != "logistic":
            np.testing.assert_array_equal(told.draw_margin, asked.draw_margin)
        one, other = (label_rows(run, stress) for run in (told, asked))
        for rule in ("expected", "any"):
            np.testing.assert_array_equal(one.relabel(rule=rule).brittle, other.relabel(rule=rule).brittle)


@pytest.mark.parametrize("family", FAMILIES)
def test_orders_are_the_models_and_no_copy_is_handed_over(family, monkeypatch):
    case = fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test[:40], protocol)
    oracle, calls = counted(rows, monkeypatch)
    order = np.random.default_rng(0).permutation(rows.n_groups)
    told, asked = (rcma_along(by, protocol, order) for by in (oracle, ModelOracle(rows)))
    np.testing.assert_allclose(told, asked, rtol=0, atol=1e-9)
    told, asked = (random_order_score(by, protocol) for by in (oracle, ModelOracle(rows)))
    np.testing.assert_allclose(told, asked, rtol=0, atol=1e-9)
    assert calls == []


@pytest.mark.samples
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["beam", "exact"])
def test_sets_are_the_models_and_no_copy_is_handed_over(family, method, monkeypatch):
    case = fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test[:25], protocol)
    oracle, calls = counted(rows, monkeypatch)
    told, asked = (failing_sets_of_rows(by, protocol, method=method, budget=2000) for by in (oracle, ModelOracle(rows)))
    assert calls == [25]
    for field in ("size", "removed", "count", "searched_size", "evaluations"):
        np.testing.assert_array_equal(getattr(told, field), getattr(asked, field))
    np.testing.assert_allclose(told.margin, asked.margin, rtol=0, atol=1e-9)
