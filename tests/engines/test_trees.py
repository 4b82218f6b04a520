"""The tree engine against the libraries' own predictions, through the black-box engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from traces import assert_same, trace_by
from tree_models import CAT, LGB, MODELS

from fragility.base.errors import DataError, EngineError, ModelError
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.trace import Trace
from fragility.engines.trees import engine as trees
from fragility.engines.trees.engine import TreeEngine
from fragility.engines.trees.forest import NARROW, Forest
from fragility.engines.trees.readers import read_ensemble
from fragility.engines.trees.scoring import compute_probabilities, make_row_scorer
from fragility.models import Model
from fragility.protocol import Protocol, bind

pytest.importorskip("numba")
xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
catboost = pytest.importorskip("catboost")


def preprocessing(X: pd.DataFrame) -> ColumnTransformer:
    numeric = [name for name in X if pd.api.types.is_numeric_dtype(X[name])]
    nominal = [name for name in X if name not in numeric]
    return ColumnTransformer(
        [
            ("numeric", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numeric),
            ("nominal", OneHotEncoder(handle_unknown="ignore", sparse_output=False), nominal),
        ]
    )


def check(model: Any, train: Any, rows: Any, **settings: Any) -> Trace:
    """Return the tree engine's trace of ``rows``, once it equals the black box's."""
    wrapped = Model.wrap(model)
    protocol = Protocol.fit(wrapped, train, **settings)
    bound = bind(wrapped, rows, protocol)
    assert TreeEngine.refusal(bound) is None
    mine = TreeEngine(bound).trace(bound, protocol)
    assert_same(mine, trace_blackbox(bound, protocol))
    return mine


# --- every model on real data ---------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_black_box_on_credit(name, credit):
    X, y = credit
    model = Pipeline([("prepare", preprocessing(X)), ("model", MODELS[name]())]).fit(X[:700], y[:700] == "good")
    mine = check(model, X[:700], X[700:])
    assert mine.engine == "trees" and len(mine.predicted) == 300


@pytest.mark.samples
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("baseline", ["mean", "typical"])
def test_equals_the_black_box_on_adult(name, baseline, adult):
    X, y = adult[0][:3000], adult[1][:3000]
    model = Pipeline([("prepare", preprocessing(X)), ("model", MODELS[name]())]).fit(X[:2400], y[:2400] == ">50K")
    operators = ("attenuate_all", "attenuate_top1", "attenuate_top3")
    check(model, X[:2400], X[2400:], baseline=baseline, operators=operators)


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_black_box_on_many_classes(name, load_data):
    X, y = load_data("covertype", "Cover_Type")
    # the file is ordered: the first rows hold few of the seven classes
    sample = np.random.default_rng(0).choice(len(X), 1800, replace=False)
    X, y = X.iloc[sample].reset_index(drop=True), y.iloc[sample].to_numpy() - 1
    model = MODELS[name]().fit(X[:1600], y[:1600])
    assert len(Model.wrap(model).classes) == 7
    check(model, X[:1600], X[1600:], reading="current", depth=5)


# --- raw scores -----------------------------------------------------------------------------------------------


RAW = {
    "xgboost": lambda m, X: m.predict(X, output_margin=True),
    "lightgbm": lambda m, X: m.predict_proba(X, raw_score=True),
    "catboost": lambda m, X: m.predict(X, prediction_type="RawFormulaVal"),
    "hist gradient boosting": lambda m, X: m.decision_function(X),
    "gradient boosting": lambda m, X: m.decision_function(X),
    "random forest": lambda m, X: m.predict_proba(X),
    "extra trees": lambda m, X: m.predict_proba(X),
}


def rounding_of(forest: Forest, n_columns: int) -> np.ndarray:
    return np.full(n_columns, NARROW if forest.single else 0, dtype=np.uint8)


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_raw_scores_equal_the_library_to_the_last_bit(name, n_classes, numbers):
    X, y = numbers
    y = (np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.0, 0.7]) if n_classes == 4 else y).astype(int)
    model = MODELS[name]().fit(X, y)
    forest = read_ensemble(model).forest
    sums = make_row_scorer(forest, rounding_of(forest, X.shape[1]))(X).T
    own = np.asarray(RAW[name](model, X)).reshape(len(X), -1)
    np.testing.assert_array_equal(sums / forest.divisor, own)


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(700, 6))
    X[:, 3] = rng.integers(0, 4, size=700)
    X[:, 4] = rng.integers(0, 2, size=700)
    return X, (X[:, 0] + X[:, 1] * X[:, 4] + rng.normal(scale=0.3, size=700) > 0).astype(int)


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_of_arbitrary_rows(name, numbers):
    X, y = numbers
    model = MODELS[name]().fit(X, y)
    rows = np.random.default_rng(0).normal(scale=3.0, size=(1100, 6))
    forest = read_ensemble(model).forest
    score = make_row_scorer(forest, rounding_of(forest, 6))
    p = compute_probabilities(forest, score(rows))
    np.testing.assert_array_equal(compute_probabilities(forest, score(rows[5:9])), p[5:9])
    np.testing.assert_allclose(p, Model.wrap(model).head_probabilities(rows), rtol=0, atol=1e-14)
    assert compute_probabilities(forest, score(rows[:0])).shape == (0, 2)


# --- missing values and unusual cells ---------------------------------------------------------------------------


def with_missing(X: np.ndarray) -> np.ndarray:
    gaps = X.copy()
    gaps[np.random.default_rng(5).random(X.shape) < 0.15] = np.nan
    return gaps


@pytest.mark.samples
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seen_missing", [True, False], ids=["seen in training", "never seen"])
@pytest.mark.parametrize("baseline", ["mean", "missing"])
def test_missing_values(name, seen_missing, baseline, numbers):
    X, y = numbers
    if name == "gradient boosting":
        pytest.skip("GradientBoostingClassifier refuses missing values")
    train = with_missing(X) if seen_missing else X
    check(MODELS[name]().fit(train, y), train, with_missing(X)[:200], baseline=baseline)


@pytest.mark.parametrize("name", MODELS)
def test_cells_on_a_threshold(name, numbers):
    X, y = numbers
    X = np.round(X)  # thresholds, cells and baseline coincide
    check(MODELS[name]().fit(X, y), X, X[:200], baseline="median", severities=(0.25, 0.5, 0.75, 1.0))


def test_a_single_precision_matrix(numbers):
    X, y = numbers[0].astype(np.float32), numbers[1]
    for name in ("lightgbm", "xgboost", "hist gradient boosting", "random forest"):
        check(MODELS[name]().fit(X, y), X, X[:100])


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "random forest", "xgboost depth 10"])
def test_sparse_rows(name, numbers):
    """XGBoost takes an absent entry for missing, the others for zero."""
    X, y = numbers
    X = sp.csr_matrix(np.where(np.abs(X) < 0.5, 0.0, X))
    check(MODELS[name]().fit(X, y), X, X[:150], baseline="zero")
    check(MODELS[name]().fit(X, y), X, X[:150], baseline="mean")


@pytest.mark.parametrize(("name", "cell"), [("random forest", 1e300), ("gradient boosting", np.nan)])
def test_cells_the_model_refuses_are_refused(name, cell, numbers):
    X, y = numbers
    model = Model.wrap(MODELS[name]().fit(X, y))
    protocol = Protocol.fit(model, X)
    bound = bind(model, X[:20].copy(), protocol)
    bound.matrix[17, 2] = cell
    with pytest.raises((DataError, ModelError)):
        TreeEngine(bound).trace(bound, protocol)


def test_cells_the_model_takes_are_traced(numbers):
    X = numbers[0].copy()
    X[7, 2], X[8, 1] = 1e300, -1e300
    for name in ("lightgbm", "catboost", "xgboost"):
        check(MODELS[name]().fit(*numbers), numbers[0], X[:20])


# --- unusual settings: exact, or refused with a reason ------------------------------------------------------------


def booster(**parameters: Any) -> Any:
    def fit(X: np.ndarray, y: np.ndarray) -> Any:
        return xgboost.train({"nthread": 1, **parameters}, xgboost.DMatrix(X, y), num_boost_round=12)

    return fit


def early_stopped(model: Any, **fit: Any) -> Any:
    return lambda X, y: model.fit(X[:400], y[:400], eval_set=[(X[400:], y[400:])], **fit)


def logistic_objective(y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p = 1 / (1 + np.exp(-raw))
    return p - y, p * (1 - p)


HANDLED = {
    "xgboost booster": booster(objective="binary:logistic"),
    "xgboost booster, softmax": lambda X, y: booster(objective="multi:softprob", num_class=3)(X, y + (X[:, 2] > 0)),
    "xgboost early stopping": early_stopped(
        xgboost.XGBClassifier(n_estimators=200, early_stopping_rounds=2, learning_rate=1.0, n_jobs=1), verbose=False
    ),
    "xgboost monotone": lambda X, y: xgboost.XGBClassifier(
        n_estimators=9, monotone_constraints=(1, 0, 0, 0, 0, 0), n_jobs=1
    ).fit(X, y),
    "xgboost base score": lambda X, y: xgboost.XGBClassifier(n_estimators=9, base_score=0.9, n_jobs=1).fit(X, y),
    "xgboost custom objective": lambda X, y: xgboost.XGBClassifier(
        n_estimators=9, objective=logistic_objective, n_jobs=1
    ).fit(X, y),
    "xgboost parallel trees": lambda X, y: xgboost.XGBClassifier(
        n_estimators=3, num_parallel_tree=4, subsample=0.5, n_jobs=1
    ).fit(X, y),
    "xgboost random forest": lambda X, y: xgboost.XGBRFClassifier(n_estimators=9, n_jobs=1).fit(X, y),
    "xgboost exact": lambda X, y: xgboost.XGBClassifier(n_estimators=9, tree_method="exact", n_jobs=1).fit(X, y),
    "xgboost lossguide": lambda X, y: xgboost.XGBClassifier(
        n_estimators=9, grow_policy="lossguide", max_leaves=20, max_depth=0, n_jobs=1
    ).fit(X, y),
    "xgboost categories": lambda X, y: xgboost.XGBClassifier(
        n_estimators=9,
        feature_types=["q", "q", "q", "c", "c", "q"],
        enable_categorical=True,
        n_jobs=1,
        max_cat_to_onehot=2,
    ).fit(X, y),
    "xgboost base margin in training": lambda X, y: xgboost.XGBClassifier(n_estimators=9, n_jobs=1).fit(
        X, y, base_margin=X[:, 0]
    ),
    "lightgbm booster": lambda X, y: lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(X, y), 12
    ),
    "lightgbm dart": lambda X, y: lightgbm.LGBMClassifier(n_estimators=9, boosting_type="dart", **LGB).fit(X, y),
    "lightgbm early stopping": early_stopped(
        lightgbm.LGBMClassifier(n_estimators=200, learning_rate=1.0, **LGB),
        callbacks=[lightgbm.early_stopping(2, verbose=False)],
    ),
    "lightgbm zero as missing": lambda X, y: lightgbm.LGBMClassifier(n_estimators=9, zero_as_missing=True, **LGB).fit(
        X, y
    ),
    "lightgbm without missing": lambda X, y: lightgbm.LGBMClassifier(n_estimators=9, use_missing=False, **LGB).fit(
        X, y
    ),
    "lightgbm categories": lambda X, y: lightgbm.LGBMClassifier(
        n_estimators=9, min_data_per_group=1, cat_smooth=1, max_cat_to_onehot=2, **LGB
    ).fit(X, y, categorical_feature=[3, 4]),
    "lightgbm sigmoid": lambda X, y: lightgbm.LGBMClassifier(n_estimators=9, sigmoid=0.5, **LGB).fit(X, y),
    "lightgbm one leaf": lambda X, y: lightgbm.LGBMClassifier(n_estimators=3, min_child_samples=600, **LGB).fit(X, y),
    "lightgbm monotone": lambda X, y: lightgbm.LGBMClassifier(
        n_estimators=9, monotone_constraints=[1, 0, 0, 0, 0, 0], **LGB
    ).fit(X, y),
    "catboost best model": early_stopped(
        catboost.CatBoostClassifier(iterations=200, learning_rate=1.0, use_best_model=True, **CAT)
    ),
    "catboost nan max": lambda X, y: catboost.CatBoostClassifier(iterations=9, nan_mode="Max", **CAT).fit(
        with_missing(X), y
    ),
    "catboost depth 1": lambda X, y: catboost.CatBoostClassifier(iterations=9, depth=1, **CAT).fit(X, y),
    "gradient boosting, zero": lambda X, y: GradientBoostingClassifier(n_estimators=9, init="zero").fit(X, y),
    "gradient boosting, subsample": lambda X, y: GradientBoostingClassifier(
        n_estimators=9, subsample=0.5, max_leaf_nodes=9, random_state=0
    ).fit(X, y),
    "hist gradient boosting, early stopping": lambda X, y: HistGradientBoostingClassifier(
        early_stopping=True, n_iter_no_change=2, learning_rate=1.0, random_state=0
    ).fit(X, y),
    "random forest, weights": lambda X, y: RandomForestClassifier(
        9, class_weight="balanced", max_leaf_nodes=30, random_state=0
    ).fit(X, y),
    "random forest, monotone": lambda X, y: RandomForestClassifier(
        9, monotonic_cst=[1, 0, 0, 0, 0, 0], random_state=0
    ).fit(X, y),
}


@pytest.mark.parametrize("name", HANDLED)
def test_unusual_settings_that_are_exact(name, numbers):
    X, y = numbers
    model = HANDLED[name](X, y)
    check(model, X, X[:150], baseline="median", severities=(0.3, 0.5, 0.99, 1.0), depth=4)


REFUSED = {
    "xgboost dart": (
        lambda X, y: xgboost.XGBClassifier(n_estimators=3, booster="dart", n_jobs=1).fit(X, y),
        "booster dart is not a plain sum of trees",
    ),
    "xgboost linear": (
        lambda X, y: xgboost.XGBClassifier(n_estimators=3, booster="gblinear", n_jobs=1).fit(X, y),
        "booster gblinear is not a plain sum of trees",
    ),
    "xgboost missing": (
        lambda X, y: xgboost.XGBClassifier(n_estimators=3, missing=0.0, n_jobs=1).fit(X, y),
        "takes 0.0 for missing instead of NaN",
    ),
    "xgboost vector leaves": (
        lambda X, y: xgboost.XGBClassifier(
            n_estimators=3, multi_strategy="multi_output_tree", tree_method="hist", n_jobs=1
        ).fit(X, y + (X[:, 2] > 0)),
        "vector in each leaf",
    ),
    "lightgbm random forest": (
        lambda X, y: lightgbm.LGBMClassifier(
            n_estimators=3, boosting_type="rf", bagging_freq=1, bagging_fraction=0.6, **LGB
        ).fit(X, y),
        "LightGBM boosting type rf",
    ),
    "lightgbm linear trees": (
        lambda X, y: lightgbm.LGBMClassifier(n_estimators=3, linear_tree=True, **LGB).fit(X, y),
        "linear models in their leaves",
    ),
    "lightgbm custom objective": (
        lambda X, y: lightgbm.LGBMClassifier(n_estimators=3, objective=logistic_objective, **LGB).fit(X, y),
        "LightGBM objective .* has no link",
    ),
    "lightgbm one against the rest": (
        lambda X, y: lightgbm.LGBMClassifier(n_estimators=3, objective="multiclassova", **LGB).fit(
            X, y + (X[:, 2] > 0)
        ),
        "LightGBM objective .* has no link",
    ),
    "catboost lossguide": (
        lambda X, y: catboost.CatBoostClassifier(iterations=3, grow_policy="Lossguide", **CAT).fit(X, y),
        "not symmetric",
    ),
    "catboost one against the rest": (
        lambda X, y: catboost.CatBoostClassifier(iterations=3, loss_function="MultiClassOneVsAll", **CAT).fit(X, y),
        "CatBoost loss 'MultiClassOneVsAll' has no link",
    ),
    "gradient boosting, exponential": (
        lambda X, y: GradientBoostingClassifier(n_estimators=3, loss="exponential").fit(X, y),
        "loss 'exponential'",
    ),
    "gradient boosting on a model": (
        lambda X, y: GradientBoostingClassifier(n_estimators=3, init=LogisticRegression()).fit(X, y),
        "init=LogisticRegression",
    ),
    "gradient boosting on a random guess": (
        lambda X, y: GradientBoostingClassifier(n_estimators=3, init=DummyClassifier(strategy="uniform")).fit(X, y),
        "'uniform' initial estimator",
    ),
    "forest of several outputs": (
        lambda X, y: RandomForestClassifier(3).fit(X, np.stack([y, 1 - y], axis=1)),
        "with 2 outputs",
    ),
    "not a tree": (lambda X, y: LogisticRegression().fit(X, y), "does not know sklearn.LogisticRegression"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusual_settings_that_are_refused(name, numbers):
    make, reason = REFUSED[name]
    with pytest.raises(EngineError, match=reason):
        read_ensemble(make(*numbers))


def test_refusal_names_the_reason(numbers):
    X, y = numbers
    model = Model.wrap(xgboost.XGBClassifier(n_estimators=3, booster="dart", n_jobs=1).fit(X, y))
    bound = bind(model, X[:5], Protocol.fit(model, X))
    assert (
        TreeEngine.refusal(bound) == TreeEngine.never_reads(bound) == "XGBoost booster dart is not a plain sum of trees"
    )


class Doubtful(RandomForestClassifier):
    """A subclass may predict otherwise, so it is not taken for its parent."""

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X)[:, ::-1]


def test_a_subclass_is_not_taken_for_its_parent(numbers):
    with pytest.raises(EngineError, match="does not know"):
        read_ensemble(Doubtful(3).fit(*numbers))


# --- invariance ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost", "random forest", "lightgbm 400 leaves"])
def test_threads_and_neighbours_do_not_change_a_bit(name, numbers, monkeypatch):
    from fragility.engines.kernels import compiling

    X, y = numbers
    rows = np.random.default_rng(1).normal(size=(1500, 6))
    model = Model.wrap(MODELS[name]().fit(X, y))
    protocol = Protocol.fit(model, X)
    results = []
    for n_threads in (1, 2, 3):
        monkeypatch.setattr(compiling, "THREADS", n_threads)
        results.append(trace_by(TreeEngine, bind(model, rows, protocol), protocol))
    alone = trace_by(TreeEngine, bind(model, rows[700:703], protocol), protocol)
    monkeypatch.setattr(trees, "CHUNK_ROWS", 600)
    results.append(trace_by(TreeEngine, bind(model, rows, protocol), protocol))
    for field in ("margin", "one_step_margin", "path_margin", "order", "threshold", "confidence"):
        first = getattr(results[0], field)
        for other in results[1:]:
            np.testing.assert_array_equal(getattr(other, field), first)
        np.testing.assert_array_equal(getattr(alone, field), first[700:703])


def test_no_rows(numbers):
    X, y = numbers
    for name in ("lightgbm", "random forest"):
        model = Model.wrap(MODELS[name]().fit(X, y))
        protocol = Protocol.fit(model, X)
        nobody = bind(model, X[:5], protocol).take([])
        empty = TreeEngine(nobody).trace(nobody, protocol)
        assert empty.one_step_margin.shape == (0, 6) and empty.path_margin.shape == (0, protocol.depth + 1)


def test_wide_rows_are_traced_in_smaller_chunks(numbers):
    X, y = numbers
    model = Model.wrap(MODELS["lightgbm"]().fit(X, y))
    protocol = Protocol.fit(model, X)
    assert trees._chunk_size(6, protocol, 10**6, 2) == trees.CHUNK_ROWS
    assert trees._chunk_size(6, protocol, 10, 2) == 512
    assert 512 <= trees._chunk_size(10_000, protocol, 10**6, 2) < 1000
    assert trees._chunk_size(10**7, protocol, 10**6, 2) == 512


def test_progress_counts_rows(numbers, monkeypatch):
    X, y = numbers
    monkeypatch.setattr(trees, "CHUNK_ROWS", 100)
    monkeypatch.setattr(trees, "LEAST_ROWS", 100)
    model = Model.wrap(MODELS["lightgbm"]().fit(X, y))
    protocol = Protocol.fit(model, X)
    seen: list[tuple[int, int]] = []
    trace_by(TreeEngine, bind(model, X[:250], protocol), protocol, lambda done, total: seen.append((done, total)))
    assert seen == [(100, 250), (200, 250), (250, 250)]


def test_confident_rows_are_clipped_as_the_definition_says(numbers):
    """Raw scores beyond log(1e12) meet the clip of the probabilities."""
    X, y = numbers
    model = GradientBoostingClassifier(n_estimators=5, learning_rate=10.0, random_state=0)
    mine = check(model.fit(X, y), X, X[:200])
    assert np.abs(mine.margin).max() > 27


def test_iterations_of_boosters_before_xgboost_2_are_counted() -> None:
    """Their files do not list where each iteration starts."""
    from fragility.engines.trees.readers.xgboost import _first_tree

    listed = {"iteration_indptr": [0, 6, 12, 18]}
    assert _first_tree(listed, 2, 3) == 12
    assert _first_tree({"gbtree_model_param": {"num_parallel_tree": "2"}}, 2, 3) == 12
