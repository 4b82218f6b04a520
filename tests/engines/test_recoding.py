"""Boosters that number categories themselves: the tree engine reads raw tables as the library does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pipelines import Case, estimator, fitted, labels_for, native_estimator, split
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from traces import assert_same, trace_by

import fragility as fg
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import choose_oracle, find_engine
from fragility.engines.lattice import whole
from fragility.engines.trees.engine import TreeEngine
from fragility.protocol import bind

pytest.importorskip("numba")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

FAMILIES = ("lightgbm", "xgboost", "hist_gradient_boosting")
OPERATORS = ("attenuate_all", "attenuate_top1", "attenuate_top3")


def check(model: Any, train: Any, rows: Any, **settings: Any) -> fg.Protocol:
    protocol = fg.Protocol.fit(model, train, space="raw", operators=OPERATORS, **settings)
    bound = bind(model, rows, protocol)
    assert TreeEngine.refusal(bound) is None
    assert_same(TreeEngine(bound).trace(bound, protocol), trace_blackbox(bound, protocol))
    return protocol


def refused(model: Any, train: Any, rows: Any, **settings: Any) -> str | None:
    protocol = fg.Protocol.fit(model, train, **settings)
    bound = bind(model, rows, protocol)
    assert find_engine(bound, "auto") is None
    return TreeEngine.refusal(bound)


def typed(case: Case, X: pd.DataFrame) -> pd.DataFrame:
    """The case's table with columns of many types: whole numbers, single precision, nullable, booleans, codes."""
    numbers = X[["age", "duration", "credit_amount"]].fillna(30)
    return X.assign(
        age=numbers["age"].astype(np.int16),
        duration=numbers["duration"].astype("Int64").mask(X["duration"].isna()),
        credit_amount=numbers["credit_amount"].astype(np.float32) / np.float32(7),
        foreign_worker=(X["foreign_worker"].astype(object) == "yes").astype(bool),
        housing=pd.Categorical(X["housing"].astype(object).map({"own": 40, "rent": 7, "for free": 19})),
    )


@pytest.mark.samples
@pytest.mark.parametrize("baseline", ["mean", "typical", "missing"])
@pytest.mark.parametrize("family", FAMILIES)
def test_columns_of_many_types_equal_the_black_box(family, baseline):
    case = fitted("credit_g", family, "raw")
    train, rows = typed(case, case.X_train), typed(case, case.X_test)
    if baseline == "missing":  # a plain column of whole numbers or of truth values cannot hold a gap
        train, rows = (X.astype({"age": "Int16", "foreign_worker": "int8"}) for X in (train, rows))
    y = labels_for(family, split("credit_g").y_train)
    model = native_estimator(family, train).fit(train, y)
    check(model, train, rows, baseline=baseline)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_audit_chooses_the_trees_and_says_what_the_black_box_says(family, recwarn):
    case = fitted("credit_g", family, "raw")
    protocol = fg.Protocol.fit(case.model, case.X_train, space="raw")
    certificates = fg.audit(case.model, case.X_test, protocol, progress=False)
    asked = fg.audit(case.model, case.X_test, protocol, engine="blackbox", progress=False)
    assert certificates.engine == "trees" and asked.engine == "blackbox"
    np.testing.assert_array_equal(certificates.claims.path_predicted, asked.claims.path_predicted)
    np.testing.assert_array_equal(certificates.claims.path, asked.claims.path)
    assert not [w for w in recwarn if "black-box engine" in str(w.message)]


@pytest.mark.repeats
@pytest.mark.parametrize("family", FAMILIES)
def test_four_classes_and_deep_trees(family):
    case = fitted("credit_g_property", family, "raw")
    deep = {
        "lightgbm": {"num_leaves": 500, "min_child_samples": 1, "cat_smooth": 0.0, "min_data_per_group": 1},
        "xgboost": {"max_depth": 12, "max_cat_to_onehot": 2},
        "hist_gradient_boosting": {"max_leaf_nodes": None, "min_samples_leaf": 1},
    }
    y = labels_for(family, split("credit_g_property").y_train)
    model = native_estimator(family, case.X_train).set_params(**deep[family]).fit(case.X_train, y)
    check(model, case.X_train, case.X_test)


@pytest.mark.repeats
@pytest.mark.parametrize("family", FAMILIES)
def test_walks_equal_the_black_box(family, monkeypatch):
    monkeypatch.setattr("fragility.engines.trees.scoring.DECISION_BYTES", 0)
    case = fitted("credit_g", family, "raw")
    check(case.model, case.X_train, case.X_test)


@pytest.mark.parametrize("family", ["lightgbm", "hist_gradient_boosting"])
def test_a_category_that_training_did_not_have_is_what_the_library_makes_of_it(family):
    case = fitted("credit_g", family, "raw")
    rows = case.X_test[:50].copy()
    rows["purpose"] = rows["purpose"].cat.add_categories(["a yacht"])
    rows.loc[::3, "purpose"] = "a yacht"
    rows.loc[1::3, "housing"] = None
    check(case.model, case.X_train, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_categories_beyond_ascii(family):
    case = fitted("credit_g", family, "raw")
    names = {"own": "zuhause", "rent": "Miete für 5 €", "for free": "frei"}
    train, rows = (X.assign(housing=X["housing"].cat.rename_categories(names)) for X in (case.X_train, case.X_test))
    y = labels_for(family, split("credit_g").y_train)
    check(native_estimator(family, train).fit(train, y), train, rows)


@pytest.mark.repeats
@pytest.mark.parametrize("family", FAMILIES)
def test_categories_in_another_order(family):
    case = fitted("credit_g", family, "raw")
    model, rows = case.model, case.X_test
    protocol = fg.Protocol.fit(model, case.X_train, space="raw")
    backwards = rows.assign(housing=rows["housing"].cat.reorder_categories(["rent", "own", "for free"]))
    assert_same(
        *(
            trace(bind(model, backwards, protocol), protocol)
            for trace in (partial(trace_by, TreeEngine), trace_blackbox)
        )
    )
    a, b = (trace_by(TreeEngine, bind(model, X, protocol), protocol) for X in (rows, backwards))
    np.testing.assert_array_equal(a.path_margin, b.path_margin)


def test_ordered_categories_are_quantities_to_lightgbm():
    case = fitted("credit_g", "lightgbm", "raw")
    ordered = pd.CategoricalDtype(["<1", "1<=X<4", "4<=X<7", ">=7", "unemployed"], ordered=True)
    train, rows = (X.astype({"employment": ordered}) for X in (case.X_train, case.X_test))
    model = estimator("lightgbm").fit(train, labels_for("lightgbm", split("credit_g").y_train))
    check(model, train, rows)


def test_a_booster_keeps_its_categories_in_a_file(tmp_path):
    for family, name in (("lightgbm", "model.txt"), ("xgboost", "model.json")):
        case = fitted("credit_g", family, "raw")
        if family == "lightgbm":
            case.model.booster_.save_model(tmp_path / name)
            again = lightgbm.Booster(model_file=tmp_path / name)
        else:
            case.model.save_model(tmp_path / name)
            again = xgboost.XGBClassifier()
            again.load_model(tmp_path / name)
        check(again, case.X_train, case.X_test[:60])


@pytest.mark.parametrize("family", FAMILIES)
def test_threads_do_not_change_a_bit(family, monkeypatch):
    from fragility.engines.kernels import compiling

    case = fitted("credit_g", family, "raw")
    protocol = fg.Protocol.fit(case.model, case.X_train, space="raw")
    rows = bind(case.model, pd.concat([case.X_test] * 4, ignore_index=True), protocol)
    results = []
    for n_threads in (1, 2, 3):
        monkeypatch.setattr(compiling, "THREADS", n_threads)
        results.append(TreeEngine(rows).trace(rows, protocol))
    for field in ("margin", "one_step_margin", "path_margin", "order", "threshold", "confidence"):
        for other in results[1:]:
            np.testing.assert_array_equal(getattr(other, field), getattr(results[0], field))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_predictor_equals_the_model_on_any_stressed_rows(family):
    case = fitted("credit_g", family, "raw")
    train, rows = typed(case, case.X_train), typed(case, case.X_test)
    model = native_estimator(family, train).fit(train, labels_for(family, split("credit_g").y_train))
    bound = bind(model, rows, fg.Protocol.fit(model, train, space="raw"))
    fast = choose_oracle(bound)
    assert fast.name == "trees"
    x = bound.dense()
    halfway = np.where(bound.stepwise, x, x + 0.37 * (bound.baseline - x))
    np.testing.assert_allclose(fast.predict(halfway), bound.predict(halfway), rtol=0, atol=1e-14)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lattice_reads_the_same_trees(family):
    case = fitted("credit_g", family, "raw")
    protocol = fg.Protocol.fit(case.model, case.X_train, space="raw")
    rows = bind(case.model, case.X_test[:6], protocol)
    lattice = whole.find_lattice(rows, protocol, "trees", 2**28)
    assert lattice is not None
    draws = np.random.default_rng(0)
    for block in lattice.blocks():
        for found in lattice.subsets(block):
            for i in range(len(found.place)):
                states = draws.integers(0, 1 << int(found.lives[i]), 200)
                marked = (found.words_of(i)[states >> 6] >> (states & 63).astype(np.uint64)) & np.uint64(1)
                asked = lattice.ask_flips(block, int(found.place[i]), states, found.group[i])
                np.testing.assert_array_equal(marked.astype(bool), asked)


# --- preprocessing that changes nothing ---------------------------------------------------------------------------


def passed_on(X: pd.DataFrame, *parts: Any) -> ColumnTransformer:
    names = list(X.columns)
    half = len(names) // 2
    prepare = ColumnTransformer(
        [("first", parts[0], names[:half]), ("second", parts[1], names[half:])], verbose_feature_names_out=False
    )
    return prepare.set_output(transform="pandas")


@pytest.mark.parametrize("kind", ["function", "columns"])
def test_a_pipeline_that_hands_on_its_columns_is_read_through(kind):
    case = fitted("credit_g", "lightgbm", "raw")
    same = FunctionTransformer() if kind == "function" else passed_on(case.X_train, "passthrough", "passthrough")
    model = make_pipeline(same, estimator("lightgbm"))
    model.fit(case.X_train, labels_for("lightgbm", split("credit_g").y_train))
    check(model, case.X_train, case.X_test[:80])


def test_a_pipeline_that_changes_a_column_is_not():
    case = fitted("credit_g", "lightgbm", "raw")
    numbers = case.X_train.select_dtypes("number").columns.tolist()
    scaled = ColumnTransformer([("scaled", StandardScaler(), numbers)], remainder="passthrough")
    model = make_pipeline(scaled.set_output(transform="pandas"), estimator("lightgbm"))
    model.fit(case.X_train, labels_for("lightgbm", split("credit_g").y_train))
    assert "what a preprocessing makes of it" in refused(model, case.X_train, case.X_test[:5], space="raw")


# --- what is refused, with its reason -----------------------------------------------------------------------------


def test_codes_that_a_space_interpolates_are_refused():
    """Between two codes there is no category."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), rng.integers(0, 4, 400).astype(float), rng.normal(size=400)])
    y = (X[:, 0] + (X[:, 1] == 2) > 0.5).astype(int)
    model = HistGradientBoostingClassifier(max_iter=5, categorical_features=[1]).fit(X, y)
    protocol = check(model, X, X[:50])
    moving = replace(bind(model, X[:5], protocol), stepwise=np.zeros(3, dtype=bool))
    assert TreeEngine.refusal(moving) == "column 1 holds categories as numbers, which the evidence space interpolates"


def test_cells_in_half_precision_are_refused():
    case = fitted("credit_g", "hist_gradient_boosting", "raw")
    train, rows = (X.astype({"age": np.float16}) for X in (case.X_train, case.X_test[:5]))
    model = native_estimator("hist_gradient_boosting", train)
    model.fit(train, labels_for("hist_gradient_boosting", split("credit_g").y_train))
    assert "float16 are rounded in a way" in refused(model, train, rows, space="raw")


# --- CatBoost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_catboost_that_reads_categories_one_by_one(dataset):
    case = fitted(dataset, "catboost", "raw")
    y = labels_for("catboost", split(dataset).y_train)
    model = native_estimator("catboost", case.X_train).set_params(one_hot_max_size=255).fit(case.X_train, y)
    rows = case.X_test.copy()
    rows.loc[::5, "purpose"] = "a yacht"
    for baseline in ("mean", "typical"):
        check(model, case.X_train, rows, baseline=baseline)


@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
@pytest.mark.parametrize("statistics", [None, "Buckets", "Counter"])
def test_catboost_with_target_statistics_of_single_columns(dataset, statistics):
    case = fitted(dataset, "catboost", "raw")
    y = labels_for("catboost", split(dataset).y_train)
    chosen = {"max_ctr_complexity": 1, "one_hot_max_size": 4} | ({"simple_ctr": statistics} if statistics else {})
    model = native_estimator("catboost", case.X_train).set_params(**chosen).fit(case.X_train, y)
    rows = case.X_test.copy()
    rows.loc[::5, "purpose"] = "a yacht"  # no statistic knows it
    check(model, case.X_train, rows)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_ctr_complexity": 2}, "target statistics of combinations of columns (train with max_ctr_complexity of 1"),
        ({"simple_ctr": "BinarizedTargetMeanValue", "max_ctr_complexity": 1}, "of type BinarizedTargetMeanValue"),
    ],
)
def test_catboost_with_other_target_statistics_is_left_to_the_black_box(settings, reason):
    catboost = pytest.importorskip("catboost")
    draws = np.random.default_rng(0)
    X = pd.DataFrame({name: draws.choice(list("abcdefgh"), 600) for name in ("one", "other")})
    y = (X["one"].map(ord) + X["other"].map(ord)) % 2  # no column by itself says anything
    quick = {"iterations": 30, "model_size_reg": 0.0, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostClassifier(cat_features=["one", "other"], **quick, **settings).fit(X, y)
    assert reason in refused(model, X, X[:5])


def test_catboost_with_numbers_for_categories_is_left_to_the_black_box():
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"number": rng.normal(size=300), "code": rng.integers(0, 2, 300)})
    y = (X["number"] + X["code"] > 0.5).astype(int)
    model = catboost.CatBoostClassifier(iterations=5, cat_features=["code"], verbose=0, allow_writing_files=False)
    assert refused(model.fit(X, y), X, X[:5]) == "column 1 holds categories that are not texts"
