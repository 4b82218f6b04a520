"""Budgets whatever the value: what a twin that asks the model for every combination of values says."""

import functools

import numpy as np
import pandas as pd
import pytest
from naive_any_value import any_value_budget, change_rows, flips, is_safe
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import fragility as fg

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
catboost = pytest.importorskip("catboost")

RESOLUTION = 1e-6
LGB = {"verbose": -1, "n_jobs": 1, "random_state": 0, "min_child_samples": 5}


def make_table(classes: int, missing: bool) -> tuple[pd.DataFrame, np.ndarray]:
    """Small whole numbers and categories, so that every combination of values can be tried."""
    chance, n = np.random.default_rng(7), 600
    X = pd.DataFrame(
        {
            "a": chance.integers(0, 9, n),
            "b": chance.integers(-3, 6, n),
            "c": chance.integers(0, 5, n),
            "d": chance.choice(["low", "mid", "high", "top"], n),
            "e": chance.choice(["x", "y", "z"], n),
        }
    )
    odd = (X["d"] == "mid") * 3.0 - (X["d"] == "top") * 2.0 + (X["e"] == "y") * X["c"]
    score = X["a"] * 1.0 + (X["b"] ** 2) / 3 - X["c"] * (X["a"] > 4) + odd + chance.normal(size=n)
    y = pd.qcut(score, classes, labels=False).to_numpy()
    if missing:
        X["b"] = X["b"].astype(float).where(chance.random(n) > 0.15)
        X["d"] = X["d"].where(chance.random(n) > 0.1)
    return X, y


def in_pipeline(head, encoder, missing):
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()) if missing else StandardScaler()
    names = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder) if missing else encoder
    return make_pipeline(make_column_transformer((numbers, ["a", "b", "c"]), (names, ["d", "e"])), head)


def with_categories(X):
    return X.assign(**{name: X[name].astype("category") for name in ("d", "e")})


HEADS = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=20, num_leaves=8, **LGB),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1),
    "catboost": lambda: catboost.CatBoostClassifier(
        iterations=20, depth=3, verbose=0, thread_count=1, allow_writing_files=False, random_seed=0
    ),
    "hist": lambda: HistGradientBoostingClassifier(max_iter=15, max_leaf_nodes=8, random_state=0),
    "gradient boosting": lambda: GradientBoostingClassifier(n_estimators=15, random_state=0),
    "random forest": lambda: RandomForestClassifier(15, random_state=0),
    "extra trees": lambda: ExtraTreesClassifier(15, max_depth=6, random_state=0),
    "tree": lambda: DecisionTreeClassifier(max_depth=6, random_state=0),
    "logistic": lambda: LogisticRegression(C=0.3),
    "calibrated": lambda: CalibratedClassifierCV(RandomForestClassifier(10, max_depth=5, random_state=0), ensemble=False),
}


@functools.cache
def fitted(head, encoder="one-hot", classes=2, missing=False):
    X, y = make_table(classes, missing)
    own = OneHotEncoder(handle_unknown="ignore") if encoder == "one-hot" else OrdinalEncoder()
    if encoder == "native":
        X = with_categories(X)
        made = NATIVE[head]()
    else:
        made = in_pipeline(HEADS[head](), own, missing)
    return made.fit(X[:450], y[:450]), X[:450], X[450:].reset_index(drop=True)


NATIVE = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=20, num_leaves=8, cat_smooth=1, min_data_per_group=5, **LGB),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1, enable_categorical=True),
    "hist": lambda: HistGradientBoostingClassifier(
        max_iter=15, max_leaf_nodes=8, random_state=0, categorical_features="from_dtype"
    ),
    "catboost": lambda: catboost.CatBoostClassifier(
        iterations=20,
        depth=3,
        verbose=0,
        thread_count=1,
        allow_writing_files=False,
        random_seed=0,
        cat_features=["d", "e"],
        one_hot_max_size=10,
    ),
}


def list_domains(X_train):
    found = {}
    for name in X_train:
        known = X_train[name].dropna()
        if name in ("d", "e"):
            found[name] = sorted(known.astype(str).unique())
        else:
            found[name] = list(range(int(known.min()), int(known.max()) + 1))
        if X_train[name].isna().any():
            found[name] = [*found[name], None]
    return found


def compare(model, X_train, X, space, max_size=2, most=12, exact=True, **settings):
    protocol = fg.Protocol.fit(model, X_train, space=space, **settings)
    X = X[:most]
    found = fg.find_any_value_budgets(model, X, protocol, max_size=max_size, progress=False)
    domains, sizes = list_domains(X_train), set()
    classes = list(model.classes_)
    for i in range(len(X)):
        original = classes.index(found.predicted[i])
        size, count, alone = any_value_budget(
            model.predict_proba, X, i, domains, max_size, original=original, resolution=RESOLUTION
        )
        assert found.budget[i] == size, (i, found.state(i), size)
        if exact:
            assert found.method[i] == "read"
            assert found.proved[i] == min(size - 1, max_size)
            assert found.count[i] == count
            assert {name: bool(own) for (name, _), own in zip(found.units, found.alone[i], strict=True)} == alone
        if found.witnesses[i] is not None:
            witness = found.witness(i)
            assert len(witness.values) == size
            p = model.predict_proba(change_rows(X, i, [witness.values]))
            assert flips(p, original, RESOLUTION)[0] and witness.predicted == classes[int(p[0].argmax())]
        sizes.add(size)
    return found, sizes


@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("encoder", ["one-hot", "ordinal"])
@pytest.mark.parametrize("head", list(HEADS))
def test_every_pair_of_values_was_decided(head, encoder, space):
    assert len(compare(*fitted(head, encoder), space)[1]) > 1  # the comparison is about something


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("head", list(NATIVE))
def test_categories_that_a_model_reads_itself_and_missing_values(head, missing):
    if head == "catboost" and missing:
        pytest.skip("CatBoost refuses missing categories")
    compare(*fitted(head, "native", missing=missing), "raw")


@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("head", ["lightgbm", "random forest", "logistic", "xgboost"])
def test_missing_values_that_a_pipeline_fills(head, space):
    compare(*fitted(head, missing=True), space)


@pytest.mark.parametrize("head", ["lightgbm", "xgboost", "random forest", "logistic", "catboost", "hist"])
def test_several_classes(head):
    compare(*fitted(head, classes=4), "transformed")


@pytest.mark.parametrize("head", ["lightgbm", "random forest", "logistic"])
def test_three_fields(head):
    model, X_train, X = fitted(head)
    certain = np.argsort(-model.predict_proba(X).max(axis=1), kind="stable")[:4]
    assert 3 in compare(model, X_train, X.iloc[certain].reset_index(drop=True), "transformed", max_size=3)[1] | {3}


@pytest.mark.parametrize("head", ["lightgbm", "random forest", "logistic"])
def test_safe_sets(head):
    model, X_train, X = fitted(head, missing=True)
    X, domains = X[:15], list_domains(X_train)
    protocol = fg.Protocol.fit(model, X_train)
    sets = {"numbers": ["a", "b"], "names": ["d", "e"], "three": ["b", "c", "d"]}
    found = fg.find_safe_sets(model, X, protocol, sets, progress=False)
    seen = set()
    for i in range(len(X)):
        original = int(model.predict_proba(X[i : i + 1])[0].argmax())
        for s, fields in enumerate(sets.values()):
            expected = is_safe(model.predict_proba, X, i, domains, fields, original=original)
            assert found.safe[i, s] == expected
            assert (found.witnesses[i][s] is None) == expected
            seen.add(expected)
        assert is_safe(model.predict_proba, X, i, domains, found.largest[i], original=original)
    assert seen == {True, False}
