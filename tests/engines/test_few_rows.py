"""Few rows and few states take another way through the kernels than many, and get the same bits."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
from pipelines import fitted, split
from tree_models import MODELS

import fragility as fg
from fragility.engines.trees import engine as trees
from fragility.engines.trees import scoring
from fragility.evidence import RowStates
from fragility.protocol import bind

SMALL = ["lightgbm", "xgboost", "hist gradient boosting", "random forest depth 5", "catboost", "random forest"]
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
    whole, ready = trees.trace(rows, protocol), trees.tracer(rows.between(0, 3), protocol)
    for size in SIZES:
        part = rows.between(20, 20 + size)
        for trace in (ready(part), trees.trace(part, protocol)):
            for name in trace.arrays():
                np.testing.assert_array_equal(getattr(trace, name), getattr(whole, name)[20 : 20 + size], err_msg=name)
            assert trace.evaluations * len(rows) == whole.evaluations * size


def test_answers_do_not_depend_on_how_many_are_asked_for(bound):
    rows, _ = bound
    x, rng = rows.dense(), np.random.default_rng(0)
    moved = rng.random((len(x), rows.n_groups)) < 0.5
    severity = rng.choice([0.3, 0.5, 1.0], len(x))
    predict, answer, of_values = trees.predictor(rows), trees.state_answers(rows), trees.value_answers(rows)
    groups = np.arange(rows.n_groups)
    whole = predict(x)
    states = [answer(x, RowStates(np.arange(len(x)), moved, s)) for s in (None, severity)]
    values = [of_values(x, y, rows.column_group, groups) for y in (x[::-1].copy(), x[0])]
    for size in SIZES:
        np.testing.assert_array_equal(predict(x[:size]), whole[:size])
        for s, told in zip((None, severity[:size]), states, strict=True):
            few = answer(x[:size], RowStates(np.arange(size), moved[:size], s))
            np.testing.assert_array_equal(few, told[:size])
        for y, told in zip((x[::-1][:size].copy(), x[0]), values, strict=True):
            for asked in (groups, groups[:1]):
                few = of_values(x[:size], y, rows.column_group, asked)
                np.testing.assert_array_equal(few, told[: len(asked), :size])
