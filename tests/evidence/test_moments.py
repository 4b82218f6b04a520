"""Means and spreads of training columns: exact, at a declared number of digits, and the same for every row order."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive import naive_mean
from pipelines import fitted, split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fragility as fg
from fragility.evidence.fitting import (
    column_medians,
    column_moments,
    exact_sum,
    mean_and_spread,
    round_digits,
    whole_columns,
)
from fragility.protocol import Protocol

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(-1e9, 1e9)


@given(st.lists(finite, max_size=40))
@settings(max_examples=200, deadline=None)
def test_sums_are_exact(values: list[float]) -> None:
    assert exact_sum(np.array(values, dtype=float)) == sum(map(Fraction, values), Fraction(0))


def test_sums_of_many_values_are_exact() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=100_000) * 10.0 ** rng.integers(-20, 20, 100_000)
    assert float(exact_sum(values)) == math.fsum(values)


@given(st.lists(moderate, min_size=1, max_size=30), st.randoms(use_true_random=False))
@example([0.0, 0.0, 2.3391335307791337e-191], Random(0))
@settings(max_examples=200, deadline=None)
def test_moments_do_not_depend_on_the_order(values: list[float], random) -> None:
    shuffled = random.sample(values, len(values))
    assert mean_and_spread(np.array(values)) == mean_and_spread(np.array(shuffled))
    assert mean_and_spread(np.array(values))[0] == naive_mean(values)


@given(st.lists(st.sampled_from([0.0, 0.0, 1.0, -2.5, 1e-3, 7.0]), min_size=4, max_size=40))
@settings(max_examples=100, deadline=None)
def test_sparse_columns_have_the_moments_of_dense_ones(values: list[float]) -> None:
    dense = np.array(values).reshape(-1, 1)
    assert column_moments(sp.csr_matrix(dense)) == column_moments(dense)
    assert column_medians(sp.csr_matrix(dense)) == column_medians(dense) == np.median(values)
    assert whole_columns(sp.csr_matrix(dense)) == whole_columns(dense) == [all(v == int(v) for v in values)]


def test_noise_below_the_spread_is_zero_and_constants_are_themselves() -> None:
    assert mean_and_spread(np.array([1.0, -1.0, 1e-16])) == (0.0, round_digits(math.sqrt(2 / 3)))
    assert math.copysign(1.0, mean_and_spread(np.array([-1e-17, 1.0, -1.0]))[0]) == 1.0
    assert mean_and_spread(np.full(7, 0.1)) == (0.1, 0.0)
    assert mean_and_spread(np.array([1e-30, 3e-30]))[0] == 2e-30
    assert all(math.isnan(value) for value in mean_and_spread(np.array([np.nan])))
    assert round_digits(2 / 3) == 0.666666666667 and round_digits(123456789012345.6) == 123456789012000.0


SPLIT_AT_ZERO = ["age", "duration", "credit_amount"]


@pytest.fixture(scope="module")
def standardised():
    lightgbm = pytest.importorskip("lightgbm")
    data = split("credit_g")
    model = make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(n_estimators=30, verbose=-1, n_jobs=1))
    return model.fit(data.X_train[SPLIT_AT_ZERO], data.y_train), data


def test_the_mean_of_a_standardised_column_is_zero(standardised) -> None:
    model, data = standardised
    assert [c.baseline for c in Protocol.fit(model, data.X_train[SPLIT_AT_ZERO]).columns] == [0.0, 0.0, 0.0]


@pytest.mark.slow
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["typical", "mean", "median"]), st.sampled_from(["transformed", "raw"])
)
@settings(max_examples=12, deadline=None)
def test_the_order_of_the_training_rows_changes_nothing(seed: int, baseline: str, space: str) -> None:
    case = fitted("credit_g", "lightgbm", "transformed")
    decimals = case.X_train.astype({"age": float, "credit_amount": float})
    shuffled = decimals.sample(frac=1.0, random_state=seed)
    one, other = (
        Protocol.fit(case.model, X, baseline=baseline, space=space, groups="merged") for X in (decimals, shuffled)
    )
    assert one.digest == other.digest


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=3, deadline=None)
def test_the_order_of_audited_rows_changes_nothing(seed: int) -> None:
    case = fitted("credit_g", "lightgbm", "raw")
    protocol = Protocol.fit(case.model, case.X_train)
    X = case.X_test[:60]
    one = fg.audit(case.model, X, protocol).to_pandas().set_index("id")["digest"]
    other = fg.audit(case.model, X.sample(frac=1.0, random_state=seed), protocol)
    assert one.to_dict() == other.to_pandas().set_index("id")["digest"].to_dict()


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_training_rows_leaves_the_certificates_alone(standardised, seed: int) -> None:
    model, data = standardised
    X = data.X_train[SPLIT_AT_ZERO]
    protocols = [Protocol.fit(model, rows) for rows in (X, X.sample(frac=1.0, random_state=seed))]
    audits = [fg.audit(model, data.X_test[SPLIT_AT_ZERO][:100], p).to_pandas() for p in protocols]
    pd.testing.assert_frame_equal(*audits)
