"""Scores along other removal orders."""

import numpy as np
import pandas as pd
import pipelines
import pytest

from fragility.analysis.ranking import scores
from fragility.auditing.pipeline import audit
from fragility.engines.oracle import ModelOracle
from fragility.protocol import Protocol, bind


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("reading", ["support", "current", "support_unbounded"])
def test_rcma_along_the_certificates_own_path_is_the_certificates(space, reading):
    case = pipelines.fitted("credit_g", "lightgbm", space)
    protocol = Protocol.fit(case.model, case.X_train, space=space, reading=reading)
    X = case.X_test.iloc[:12]
    certs = audit(case.model, X, protocol, engine="blackbox", lattice=False)
    rows, path, rcma = bind(case.model, X, protocol), certs.claims.path, certs.claims.rcma
    assert scores.rcma_along(ModelOracle(rows), protocol, path) == pytest.approx(rcma, abs=1e-9)
    few = rows.take(range(3))
    assert scores.rcma_along(ModelOracle(few), protocol, path[:3], byte_budget=1) == pytest.approx(rcma[:3], abs=1e-9)


def test_random_orders_are_the_mean_over_declared_orders():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:20], protocol)
    generator = np.random.default_rng(3)
    orders = [generator.permutation(rows.n_groups) for _ in range(4)]
    expected = np.mean([scores.rcma_along(ModelOracle(rows), protocol, order) for order in orders], axis=0)
    assert scores.random_order_score(ModelOracle(rows), protocol, repeats=4, seed=3) == pytest.approx(expected)


def test_permutation_importance_puts_the_useful_group_first():
    class OneField:
        classes_ = np.array([0, 1])
        n_features_in_ = 3

        def predict_proba(self, X):
            p = 1 / (1 + np.exp(-4 * np.asarray(X, dtype=float)[:, 1] - 0.5 * np.asarray(X, dtype=float)[:, 2]))
            return np.column_stack([1 - p, p])

    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=["a", "b", "c"])
    protocol = Protocol.fit(OneField(), X)
    y = (4 * X["b"] + 0.5 * X["c"] > 0).astype(int).to_numpy()
    order = scores.permutation_importance_order(ModelOracle(bind(OneField(), X, protocol)), y)
    assert order.tolist() == [1, 2, 0]
