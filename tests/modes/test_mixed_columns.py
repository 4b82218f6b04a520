"""Intervals of models whose preprocessing mixes fields: the pipeline itself is asked within every one of them."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier
from naive import naive_support_margin
from pipelines import split
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import fragility as fg

ROWS = 15
FIELDS = ["duration", "credit_amount", "age", "residence_since"]


class OneEach(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Says that each column comes from the field of its name."""

    def fit(self, X, y=None):
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.n_features_in_ = X.shape[1]
        return self


class Ratio(OneEach):
    def transform(self, X):
        X = X.astype(float).fillna(20.0)
        return X.assign(credit_amount=X["credit_amount"] / X["duration"])


class FromTheOther(OneEach):
    """Mixes fields only where one of them is missing."""

    def transform(self, X):
        X = X.astype(float)
        return X.assign(age=X["age"].fillna(X["duration"] * 2.0)).fillna(20.0)


class OfTheOldest(OneEach):
    """Mixes fields in so few rows that trying it on some of them does not show it."""

    def transform(self, X):
        X = X.astype(float).fillna(20.0)
        return X.assign(credit_amount=X["credit_amount"].where(X["age"] != 74, 5e3 * (X["duration"] % 4)))


def ratio_of(X):
    return Ratio().transform(X)


STEPS = {
    "nearest neighbours": KNNImputer(),
    "iterative": IterativeImputer(max_iter=3),
    "function": FunctionTransformer(ratio_of, feature_names_out="one-to-one"),
    "class": Ratio(),
    "only where one is missing": FromTheOther(),
    "one field each": SimpleImputer(),
}


@functools.cache
def table(gaps: bool = True) -> tuple[pd.DataFrame, pd.Series]:
    data = split("credit_g")
    X = data.X_train[FIELDS]
    if not gaps:
        return X.reset_index(drop=True), data.y_train
    # Whole numbers with gaps: any function of one such field has exact ends, as its values are listed.
    X = X.mask(np.random.default_rng(0).random(X.shape) < 0.2).astype("Int64")
    return X.reset_index(drop=True), data.y_train


@functools.cache
def fit(step: str, head: str) -> Pipeline:
    X, y = table()
    heads = {"linear": LogisticRegression(), "trees": LGBMClassifier(n_estimators=20, verbose=-1)}
    return make_pipeline(STEPS[step], StandardScaler().set_output(transform="default"), heads[head]).fit(X, y)


@functools.cache
def found(step: str, head: str, space: str):
    X, _ = table()
    groups = "raw-origin" if space == "raw" else {"all": FIELDS}
    protocol = fg.Protocol.fit(fit(step, head), X, space=space, groups=groups)
    return protocol, fg.find_stability_intervals(fit(step, head), X[:ROWS], protocol)


def find_flips(model: Pipeline, X: pd.DataFrame, intervals, exact: list[tuple[int, str]], shares: list[float]) -> list:
    """Return the exact intervals within which the pipeline flips, asked about raw rows all at once."""
    copies, whose = [], []
    for row, name in exact:
        one = intervals.interval(row, name)
        values = sorted({round(one.low + share * (one.high - one.low)) for share in shares})
        copies.append(X.iloc[[row] * len(values)].assign(**{name: pd.array(values, dtype="Int64")}))
        whose += [(row, name)] * len(values)
    if not copies:
        return []
    own = model.predict_proba(X).argmax(axis=1)
    p = model.predict_proba(pd.concat(copies))
    # A flip is a margin below minus the resolution; at the very end of a linear model's interval it is as good as that.
    return [one for one, some in zip(whose, p, strict=True) if naive_support_margin(some, int(own[one[0]])) < -1.001e-6]


@pytest.mark.samples
@pytest.mark.parametrize("space", ["raw", "transformed"])
@pytest.mark.parametrize("head", ["linear", "trees"])
@pytest.mark.parametrize("step", STEPS)
@settings(max_examples=4, deadline=None)
@given(shares=st.lists(st.floats(0.0, 1.0), min_size=10, max_size=20))
def test_no_value_inside_an_exact_interval_flips(step: str, head: str, space: str, shares: list[float]) -> None:
    (X, _), (_, intervals), model = table(), found(step, head, space), fit(step, head)
    exact = [(i, name) for i in range(ROWS) for name in FIELDS if intervals.interval(i, name).state == "exact"]
    assert bool(exact) >= (step == "one field each")
    assert find_flips(model, X[:ROWS], intervals, exact, shares) == []


@pytest.mark.parametrize("space", ["raw", "transformed"])
@pytest.mark.parametrize("step", ["nearest neighbours", "function"])
def test_an_honest_audit_of_such_a_model_verifies(step: str, space: str) -> None:
    (X, _), (protocol, _), model = table(), found(step, "linear", space), fit(step, "linear")
    certs = fg.audit(model, X[:12], protocol, intervals=True)
    assert fg.verify(certs, model, X[:12]).verdict == (
        "verified: every claim of all 12 certificates holds; not checked: that the protocol is fitted on training rows"
    )


@pytest.mark.slow
def test_the_verifier_does_not_share_the_search_s_belief_about_columns() -> None:
    X, y = table(gaps=False)
    model = make_pipeline(OfTheOldest(), LGBMClassifier(n_estimators=30, verbose=-1)).fit(X, y)
    protocol = fg.Protocol.fit(model, X, space="transformed")
    certs = fg.audit(model, X, protocol, intervals=["duration"])
    result = fg.verify(certs, model, X)
    wrong = {one.row for check in result.checks if check.name == "intervals" for one in check.differences}
    assert not result and wrong and wrong <= set(X.index[X["age"] == 74])
