"""Few rows and few states take another way through the kernels than many, and get the same bits."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
from pipelines import fitted, split
from tree_models import MODELS

import fragility as fg
from fragility.engines.engine import Values
from fragility.engines.kernels.walks import walk_alike as scoring_kernel
from fragility.engines.trees import scoring
from fragility.engines.trees.engine import TreeEngine
from fragility.evidence import States
from fragility.protocol import bind

SMALL = ["lightgbm", "xgboost", "hist gradient boosting", "random forest depth 5", "catboost", "random forest"]
DEEP = ["random forest", "extra trees", "lightgbm 400 leaves"]  # trees of more than 256 leaves
SIZES = (1, 2, scoring.FEW_ROWS, scoring.FEW_ROWS + 1)


@pytest.fixture(scope="module", params=SMALL)
def bound(request):
    transform = fitted("credit_g_property", "lightgbm", "transformed").model[:-1]
    data = split("credit_g_property")
    X = np.asarray(transform.transform(data.X_train))
    model = MODELS[request.param]().fit(X, data.y_train.astype("category").cat.codes)
    protocol = fg.Protocol.fit(model, X, depth=6)
    return bind(model, X[:200], protocol), protocol


def test_traces_do_not_depend_on_how_many_rows_are_traced(bound):
    rows, protocol = bound
    whole, ready = TreeEngine(rows).trace(rows, protocol), TreeEngine(rows.between(0, 3)).tracer(protocol)
    for size in SIZES:
        part = rows.between(20, 20 + size)
        for trace in (ready(part), TreeEngine(part).trace(part, protocol)):
            for name in trace.arrays():
                np.testing.assert_array_equal(getattr(trace, name), getattr(whole, name)[20 : 20 + size], err_msg=name)
            assert trace.evaluations * len(rows) == whole.evaluations * size


def test_answers_do_not_depend_on_how_many_are_asked_for(bound):
    rows, _ = bound
    x, rng = rows.dense(), np.random.default_rng(0)
    moved = rng.random((len(x), rows.n_groups)) < 0.5
    severity = rng.choice([0.3, 0.5, 1.0], len(x))
    engine = TreeEngine(rows)
    predict, answer = engine.predict, engine.answer_states

    def of_values(*asked):
        return next(iter(engine.answer_values(asked[0], [Values(*asked[1:])])))

    groups = np.arange(rows.n_groups)
    whole = predict(x)
    states = [answer(x, States(np.arange(len(x)), moved, s)) for s in (None, severity)]
    values = [of_values(x, y, rows.column_group, groups) for y in (x[::-1].copy(), x[0])]
    for size in SIZES:
        np.testing.assert_array_equal(predict(x[:size]), whole[:size])
        for s, told in zip((None, severity[:size]), states, strict=True):
            few = answer(x[:size], States(np.arange(size), moved[:size], s))
            np.testing.assert_array_equal(few, told[:size])
        for y, told in zip((x[::-1][:size].copy(), x[0]), values, strict=True):
            for asked in (groups, groups[:1]):
                few = of_values(x[:size], y, rows.column_group, asked)
                np.testing.assert_array_equal(few, told[: len(asked), :size])


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("classes", [2, 4])
def test_copies_of_a_row_walk_together_and_get_the_same_bits(name, classes, monkeypatch):
    """The kernel of rows that are alike is used for copies alone, and no sum depends on it."""
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(3000, 9)).round(2)
    X[rng.random(X.shape) < 0.05] = np.nan
    noisy = np.nan_to_num(X[:, 0] + X[:, 1] * X[:, 2]) + rng.normal(size=len(X))
    model = MODELS[name]().fit(X, np.digitize(noisy, np.quantile(noisy, np.arange(1, classes) / classes)))
    rows = bind(model, X[:200], fg.Protocol.fit(model, X))
    predict, used = TreeEngine(rows).predict, []
    monkeypatch.setattr(scoring, "walk_alike", lambda *given: used.append(given) or scoring_kernel(*given))
    copies = np.repeat(X[:3], 70, axis=0)
    copies[np.arange(210), rng.integers(0, 9, 210)] = X[rng.integers(0, 3000, 210), rng.integers(0, 9, 210)]
    together = predict(copies)
    assert used
    monkeypatch.setattr(scoring, "MOST_UNLIKE", -1.0)
    used.clear()
    np.testing.assert_array_equal(together, predict(copies))
    assert not used
    np.testing.assert_allclose(together, model.predict_proba(copies), atol=1e-6)
    monkeypatch.undo()
    monkeypatch.setattr(scoring, "walk_alike", lambda *given: pytest.fail("these rows have nothing in common"))
    predict(X[:200])
