"""The adapter: its probabilities are the library's own, its refusals say what to do, its fingerprints notice change."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from pipelines import FAMILIES, SEED, estimator, fitted, labels_for, native_table, preprocessing, split
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from fragility.base.errors import ModelError
from fragility.models import Model
from fragility.models.adapter import confirm_link
from fragility.scores import support_margin

FLOAT32 = ("xgboost",)
DATASETS = ("credit_g", "adult", "credit_g_property")


@pytest.mark.samples
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_are_the_librarys_own(family: str, space: str, dataset: str) -> None:
    case = fitted(dataset, family, space)
    model = Model.wrap(case.model)
    rows = case.X_test[:120]
    own = case.model.predict_proba(rows)
    ours = model.probabilities(rows)
    assert ours.dtype == np.float64 and ours.shape == own.shape
    np.testing.assert_allclose(ours, own, rtol=0, atol=1e-6 if family in FLOAT32 else 1e-12)
    assert list(model.classes) == list(case.model.classes_)
    matrix = rows if model.transformer is None else model.transformer.transform(rows)
    assert confirm_link(model, matrix) is model


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_head_probabilities_continue_where_the_transformer_ends(family: str, dataset: str) -> None:
    case = fitted(dataset, family, "transformed")
    model = Model.wrap(case.model)
    matrix = model.transformer.transform(case.X_test[:50])
    np.testing.assert_array_equal(model.head_probabilities(matrix), model.probabilities(case.X_test[:50]))
    assert model.head is case.model[-1]


def test_float32_boosters_keep_digits_on_the_losing_side() -> None:
    """Where float32 probabilities have all become 1, the margin is still the booster's raw score."""
    xgboost = pytest.importorskip("xgboost")
    X = split("credit_g").X_train[["duration", "credit_amount", "age"]].to_numpy(dtype=float)
    certain = xgboost.XGBClassifier(
        n_estimators=400, max_depth=2, learning_rate=1.0, reg_lambda=0.0, min_child_weight=0.0, n_jobs=1
    ).fit(X, X[:, 1] * (1 + X[:, 2] % 3) > 4000)
    raw = certain.predict(X, output_margin=True)
    own = certain.predict_proba(X)
    assert (own[raw > 17, 1] == 1.0).any() and len(np.unique(raw[raw > 17])) > 3
    p = Model.wrap(certain).probabilities(X)
    inside = np.abs(raw) < 27  # beyond, the clip at 1e-12 takes over
    np.testing.assert_allclose(support_margin(p, 1)[inside], raw[inside].astype(float), rtol=1e-12)


@pytest.mark.parametrize("kind", ["string", "integer", "boolean", "float"])
@pytest.mark.parametrize("family", ["logistic", "random_forest", "lightgbm", "catboost"])
def test_class_labels_come_as_python_scalars_in_column_order(family: str, kind: str) -> None:
    data = split("credit_g")
    X = data.X_train[["duration", "credit_amount", "age"]].to_numpy(dtype=float)
    good = (data.y_train == "good").to_numpy()
    y = {"string": np.where(good, "good", "bad"), "integer": good * 7, "boolean": good, "float": good * 2.0}[kind]
    model = Model.wrap(estimator(family).fit(X, y))
    for label in model.classes:
        assert type(label) in (str, int, bool, float)
    if family != "catboost":  # CatBoost turns booleans into the texts "False" and "True"
        assert list(model.classes) == sorted(set(y.tolist()))
    p = model.probabilities(X)
    share = p[:, 1].mean()
    assert 0.5 < share < 0.9  # the second class is the larger one, whatever its label


def test_callables_need_declared_classes() -> None:
    def always(rows: np.ndarray) -> np.ndarray:
        return np.tile([0.25, 0.75], (len(rows), 1))

    with pytest.raises(ModelError, match=r"does not name the classes.*classes=\[\.\.\.\]"):
        Model.wrap(always)
    model = Model.wrap(always, classes=["no", "yes"])
    assert model.classes == ("no", "yes")
    assert model.probabilities(np.zeros((3, 2))).tolist() == [[0.25, 0.75]] * 3


def test_callables_may_return_logits_when_they_say_so() -> None:
    model = Model.wrap(lambda rows: rows, classes=[0, 1, 2], output="logits")
    p = model.probabilities(np.array([[0.0, 0.0, np.log(2.0)]]))
    np.testing.assert_allclose(p, [[0.25, 0.25, 0.5]])
    single = Model.wrap(lambda rows: rows[:, 0], classes=[0, 1], output="binary_logit")
    np.testing.assert_allclose(single.probabilities(np.array([[0.0], [np.log(3.0)]])), [[0.5, 0.5], [0.25, 0.75]])
    logs = Model.wrap(lambda rows: np.log(rows), classes=[0, 1], output="log_probabilities")
    np.testing.assert_allclose(logs.probabilities(np.array([[0.3, 0.7]])), [[0.3, 0.7]])


def test_wrapping_twice_is_wrapping_once() -> None:
    model = Model.wrap(fitted("credit_g", "logistic", "transformed").model)
    assert Model.wrap(model) is model


@pytest.mark.parametrize(
    "output",
    [
        [[0.5, 0.6]],
        [[-0.1, 1.1]],
        [[np.nan, 1.0]],
        [[np.inf, 0.0]],
        [[0.4, 0.5]],
    ],
    ids=["sum above 1", "negative", "nan", "infinite", "sum below 1"],
)
def test_output_that_is_no_probability_is_refused_with_the_row(output: list[list[float]]) -> None:
    model = Model.wrap(lambda rows: np.vstack([[0.5, 0.5]] * (len(rows) - 1) + output), classes=[0, 1])
    with pytest.raises(ModelError, match=r"not a probability in 1 of 3 rows.*position 2 of the batch.*output='logits'"):
        model.probabilities(np.zeros((3, 1)))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (2, 2), (3, 2, 1)])
def test_output_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    model = Model.wrap(lambda rows: np.full(shape, 1.0 / shape[-1]), classes=["bad", "good"])
    with pytest.raises(ModelError, match=r"must have shape \(3, 2\).*\['bad', 'good'\].*got shape"):
        model.probabilities(np.zeros((3, 1)))


def test_models_without_probabilities_are_refused() -> None:
    X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    with pytest.raises(ModelError, match=r"LinearRegression is a regressor"):
        Model.wrap(LinearRegression().fit(X, y))
    with pytest.raises(ModelError, match=r"CalibratedClassifierCV"):
        Model.wrap(SVC().fit(X, y))


def test_one_class_is_refused() -> None:
    X = np.arange(20.0).reshape(10, 2)
    with pytest.raises(ModelError, match=r"at least 2 classes"):
        Model.wrap(DecisionTreeClassifier().fit(X, np.zeros(10)))


def test_repeated_or_miscounted_class_names_are_refused() -> None:
    model = fitted("credit_g", "xgboost", "transformed").model
    with pytest.raises(ModelError, match=r"2 classes, but classes names 3"):
        Model.wrap(model, classes=["a", "b", "c"])
    with pytest.raises(ModelError, match=r"distinct"):
        Model.wrap(model, classes=["a", "a"])


@pytest.mark.parametrize("declared", [["good", "bad"], ["x", "y"], ["bad", "best"]])
def test_classes_that_contradict_the_models_own_are_refused(declared: list[str]) -> None:
    model = fitted("credit_g", "logistic", "transformed").model
    with pytest.raises(ModelError, match=rf"own classes are \['bad', 'good'\].*{re.escape(repr(declared))}; leave"):
        Model.wrap(model, classes=declared)
    assert Model.wrap(model, classes=["bad", "good"]).classes == ("bad", "good")


def test_numbered_classes_take_names_but_no_other_order() -> None:
    model = fitted("credit_g", "xgboost", "transformed").model
    for swapped in ([1, 0], ["1", "0"]):
        with pytest.raises(ModelError, match=rf"own classes are \[0, 1\].*{re.escape(repr(swapped))}"):
            Model.wrap(model, classes=swapped)
    for names in (["bad", "good"], [1, 2], [0, 1]):
        assert Model.wrap(model, classes=names).classes == tuple(names)


@pytest.mark.parametrize("family", FAMILIES)
def test_unfitted_models_are_refused(family: str) -> None:
    with pytest.raises(ModelError, match=r"fit"):
        Model.wrap(estimator(family))


def test_several_outputs_are_refused() -> None:
    X = np.arange(20.0).reshape(10, 2)
    y = np.column_stack([np.arange(10) % 2, np.arange(10) % 3])
    with pytest.raises(ModelError, match=r"several outputs"):
        Model.wrap(DecisionTreeClassifier().fit(X, y))


def one_against_rest() -> LogisticRegression:
    return LogisticRegression(solver="liblinear")


@pytest.mark.parametrize(
    "classifier",
    [
        SGDClassifier(loss="log_loss", random_state=0),
        SGDClassifier(loss="modified_huber", random_state=0),
        GradientBoostingClassifier(loss="exponential", n_estimators=10),
        HistGradientBoostingClassifier(max_iter=5),
        GaussianNB(),
        KNeighborsClassifier(),
        one_against_rest(),
        CalibratedClassifierCV(LogisticRegression(), cv=3),
        CalibratedClassifierCV(SVC(), cv=3, method="isotonic"),
    ],
    ids=lambda c: type(c).__name__ + str(getattr(c, "loss", "")),
)
def test_less_usual_classifiers_keep_their_own_probabilities(classifier) -> None:
    data = split("credit_g")
    X = StandardScaler().fit_transform(data.X_train[["duration", "credit_amount", "age"]])
    fit = clone(classifier).fit(X, data.y_train.to_numpy(dtype=str))
    np.testing.assert_allclose(Model.wrap(fit).probabilities(X), fit.predict_proba(X), rtol=0, atol=1e-9)


def test_a_link_that_is_not_the_models_own_is_dropped_with_a_warning() -> None:
    """A model may have a predict_proba of its own; its own probabilities are then the authority."""

    def sharpened(X):
        p = LogisticRegression.predict_proba(fit, X) ** 2
        return p / p.sum(axis=1, keepdims=True)

    X = np.random.default_rng(0).normal(size=(50, 2))
    fit = LogisticRegression().fit(X, X[:, 0] > 0)
    fit.predict_proba = sharpened
    with pytest.warns(UserWarning, match=r"using predict_proba"):
        model = confirm_link(Model.wrap(fit), X)
    np.testing.assert_allclose(model.probabilities(X), fit.predict_proba(X))


# --- files of boosters and torch ------------------------------------------------------------------------------------


def test_xgboost_booster_equals_its_classifier() -> None:
    case = fitted("credit_g_property", "xgboost", "raw")
    booster = Model.wrap(case.model.get_booster())
    assert booster.classes == (0, 1, 2, 3)
    rows = case.X_test[:40]
    np.testing.assert_allclose(booster.probabilities(rows), case.model.predict_proba(rows), atol=1e-6)


def test_lightgbm_booster_equals_its_classifier() -> None:
    for dataset, classes in (("credit_g", (0, 1)), ("credit_g_property", (0, 1, 2, 3))):
        case = fitted(dataset, "lightgbm", "raw")
        booster = Model.wrap(case.model.booster_)
        assert booster.classes == classes
        rows = case.X_test[:40]
        np.testing.assert_allclose(booster.probabilities(rows), case.model.predict_proba(rows), atol=1e-12)


def test_boosters_stop_where_early_stopping_did() -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    data = split("credit_g")
    X = data.X_train[["duration", "credit_amount", "age", "installment_commitment"]].astype(float)
    y = (data.y_train == "good").astype(int)
    first = xgboost.XGBClassifier(n_estimators=200, learning_rate=0.5, early_stopping_rounds=3, n_jobs=1)
    first.fit(X[:400], y[:400], eval_set=[(X[400:], y[400:])], verbose=False)
    assert first.best_iteration < 150
    second = lightgbm.LGBMClassifier(n_estimators=200, learning_rate=0.5, n_jobs=1, verbose=-1)
    second.fit(X[:400], y[:400], eval_set=[(X[400:], y[400:])], callbacks=[lightgbm.early_stopping(3, verbose=False)])
    for classifier, booster in ((first, first.get_booster()), (second, second.booster_)):
        own = classifier.predict_proba(X)
        np.testing.assert_allclose(Model.wrap(classifier).probabilities(X), own, atol=1e-6)
        np.testing.assert_allclose(Model.wrap(booster).probabilities(X), own, atol=1e-6)


def test_torch_modules_must_declare_what_they_return() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    with pytest.raises(ModelError, match=r"declare what Sequential returns with output='logits'"):
        Model.wrap(net, classes=[0, 1, 2])
    model = Model.wrap(net, classes=["a", "b", "c"], output="logits")
    X = np.random.default_rng(0).normal(size=(20, 3))
    net.train()
    p = model.probabilities(X)
    assert net.training  # left as it was found
    np.testing.assert_array_equal(p, model.probabilities(X))  # no dropout
    net.eval()
    expected = torch.softmax(net(torch.tensor(X, dtype=torch.float32)), dim=1).detach().numpy()
    np.testing.assert_allclose(p, expected, atol=1e-6)


# --- fingerprints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fingerprint_survives_use_copies_and_pickle(family: str, space: str) -> None:
    case = fitted("credit_g", family, space)
    before = Model.wrap(case.model).fingerprint
    assert before.startswith("sha256:") and len(before) == 71
    case.model.predict_proba(case.X_test[:10])
    case.model.predict(case.X_test[:10])
    assert Model.wrap(case.model).fingerprint == before
    assert Model.wrap(copy.deepcopy(case.model)).fingerprint == before
    assert Model.wrap(pickle.loads(pickle.dumps(case.model))).fingerprint == before


@pytest.mark.parametrize("family", FAMILIES)
def test_fingerprint_is_the_same_for_the_same_training_and_other_for_other(family: str) -> None:
    data = split("credit_g")
    X, y = data.X_train, labels_for(family, data.y_train)

    def fit(rows: slice) -> Pipeline:
        return Pipeline([("p", preprocessing(X)), ("m", estimator(family))]).fit(X[rows], y[rows])

    whole = Model.wrap(fit(slice(None))).fingerprint
    assert Model.wrap(fit(slice(None))).fingerprint == whole
    assert Model.wrap(fit(slice(0, 590))).fingerprint != whole


def test_fingerprint_sees_one_changed_coefficient_threshold_category_and_scale() -> None:
    base = fitted("credit_g", "logistic", "transformed").model

    def changed(edit) -> str:
        other = copy.deepcopy(base)
        edit(other)
        return Model.wrap(other).fingerprint

    def coefficient(m):
        m[-1].coef_[0, 3] = np.nextafter(m[-1].coef_[0, 3], 1)

    def category(m):
        encoder = m[0].named_transformers_["nominal"]
        encoder.categories_[0][0] = encoder.categories_[0][0] + " "

    def scale(m):
        m[0].named_transformers_["numeric"][-1].scale_[0] *= 1 + 1e-15

    def labels(m):
        m[-1].classes_ = m[-1].classes_[::-1].copy()

    seen = {Model.wrap(base).fingerprint, *(changed(f) for f in (coefficient, category, scale, labels))}
    assert len(seen) == 5

    forest = fitted("credit_g", "random_forest", "transformed").model
    other = copy.deepcopy(forest)
    tree = other[-1].estimators_[3].tree_
    tree.threshold[0] = np.nextafter(tree.threshold[0], np.inf)
    assert Model.wrap(other).fingerprint != Model.wrap(forest).fingerprint


def test_fingerprint_ignores_threads_and_talk() -> None:
    base = fitted("credit_g", "random_forest", "transformed").model
    other = copy.deepcopy(base)
    other[-1].n_jobs = 2
    other[-1].verbose = 0
    assert Model.wrap(other).fingerprint == Model.wrap(base).fingerprint
    for family in FAMILIES:
        base = fitted("credit_g", family, "transformed").model
        other = copy.deepcopy(base)
        names = {"n_jobs", "thread_count", "verbose"} & set(other[-1].get_params())
        if family == "catboost":
            continue  # it refuses another setting once fitted
        other[-1].set_params(**dict.fromkeys(names, 2))
        assert Model.wrap(other).fingerprint == Model.wrap(base).fingerprint, family


def _logarithm(x):
    return np.log1p(x)


def _root(x):
    return np.sqrt(x)


def _nested_one(x):
    return (lambda v: v + 1)(x)


def _nested_two(x):
    return (lambda v: v + 2)(x)


@pytest.mark.parametrize(("one", "two"), [(_logarithm, _root), (_nested_one, _nested_two)])
def test_fingerprint_sees_what_a_function_calls(one, two) -> None:
    """The same bytecode with another name or another inner function is another function."""
    X = np.arange(1.0, 41.0).reshape(20, 2)
    y = np.arange(20) % 2
    two.__name__, two.__qualname__ = one.__name__, one.__qualname__
    fits = [make_pipeline(FunctionTransformer(f), LogisticRegression()).fit(X, y) for f in (one, two)]
    fits[1][-1].coef_, fits[1][-1].intercept_, fits[1][-1].n_iter_ = (
        fits[0][-1].coef_,
        fits[0][-1].intercept_,
        fits[0][-1].n_iter_,
    )
    assert Model.wrap(fits[0]).fingerprint != Model.wrap(fits[1]).fingerprint


def test_fingerprint_sees_the_order_of_native_categories() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    case = fitted("credit_g", "lightgbm", "raw")
    before = Model.wrap(case.model.booster_)
    other = lightgbm.Booster(model_str=case.model.booster_.model_to_string())
    other.pandas_categorical = [list(reversed(values)) for values in case.model.booster_.pandas_categorical]
    assert (Model.wrap(other).probabilities(case.X_test) != before.probabilities(case.X_test)).any()
    assert Model.wrap(other).fingerprint != before.fingerprint


def test_declared_class_names_are_part_of_the_fingerprint() -> None:
    model = fitted("credit_g", "xgboost", "transformed").model
    assert Model.wrap(model, classes=["x", "y"]).fingerprint != Model.wrap(model).fingerprint


def test_nested_pipelines_and_remainders_are_split_at_the_last_step() -> None:
    data = split("credit_g")
    inner = ColumnTransformer(
        [("n", StandardScaler(), ["duration", "age"])], remainder="drop", verbose_feature_names_out=False
    )
    pipeline = make_pipeline(inner, make_pipeline(StandardScaler(), LogisticRegression()))
    pipeline.fit(data.X_train, data.y_train)
    model = Model.wrap(pipeline)
    np.testing.assert_allclose(model.probabilities(data.X_test), pipeline.predict_proba(data.X_test), atol=1e-12)


def test_names_and_number_of_raw_columns() -> None:
    for family in FAMILIES:
        case = fitted("credit_g", family, "raw")
        model = Model.wrap(case.model)
        assert model.columns == tuple(case.X_train.columns), family
        assert model.n_columns == 20
    bare = Model.wrap(LogisticRegression().fit(np.eye(4), [0, 1, 0, 1]))
    assert bare.columns is None and bare.n_columns == 4
    catboost = Model.wrap(estimator("catboost").fit(np.random.default_rng(SEED).normal(size=(30, 3)), [0, 1] * 15))
    assert catboost.columns is None


def test_native_tables_have_gaps() -> None:
    """The raw-space tests are only worth something if missing values reach the models."""
    X = native_table(split("adult").X_test, "lightgbm")
    assert X.isna().any(axis=1).mean() > 0.2 and X["workclass"].isna().any()
    assert isinstance(X["workclass"].dtype, pd.CategoricalDtype)


def test_fingerprint_is_the_same_in_another_process(tmp_path) -> None:
    """A validator recomputes it elsewhere: no hash seed, memory address or order of use may enter."""
    expected = []
    for family in FAMILIES:
        model = fitted("credit_g", family, "raw").model
        joblib.dump(model, tmp_path / f"{family}.joblib")
        expected.append(Model.wrap(model).fingerprint)
    script = (
        "import sys, joblib; from fragility.models import Model\n"
        "for path in sys.argv[1:]: print(Model.wrap(joblib.load(path)).fingerprint)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, *(str(tmp_path / f"{f}.joblib") for f in FAMILIES)]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
        assert done.stdout.split() == expected
