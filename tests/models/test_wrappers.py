"""Every wrapper of scikit-learn and imbalanced-learn around every booster: audited as it predicts, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from command_line import run
from pipelines import SEED, split
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, RFECV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC
from sklearn.utils import all_estimators

import fragility as fg
from fragility.base.errors import ModelError
from fragility.evidence.fitting import category_columns
from fragility.models import Model

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
catboost = pytest.importorskip("catboost")
imblearn_ensemble = pytest.importorskip("imblearn.ensemble")
imblearn_pipeline = pytest.importorskip("imblearn.pipeline")
imblearn_testing = pytest.importorskip("imblearn.utils.testing")
over_sampling = pytest.importorskip("imblearn.over_sampling")

pytestmark = pytest.mark.filterwarnings("ignore")

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["checking_status", "purpose"]
TRAINED, AUDITED = 160, 24

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: LogisticRegression(max_iter=500),
    "forest": lambda: RandomForestClassifier(6, max_depth=5, random_state=SEED),
    "hist": lambda: HistGradientBoostingClassifier(max_iter=6, random_state=SEED),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=6, verbose=-1, n_jobs=1, random_state=SEED),
    "xgboost": lambda: xgboost.XGBClassifier(  # boosting hands over weights of 1/n, which no child would sum to 1
        n_estimators=6, max_depth=3, n_jobs=1, min_child_weight=0
    ),
    "catboost": lambda: catboost.CatBoostClassifier(
        iterations=6, depth=3, verbose=0, thread_count=1, allow_writing_files=False, random_seed=SEED
    ),
}
FAST = ("catboost", "lightgbm")  # the others are tried among the slow tests

FOLDS: dict[str, Any] = {"cv": 2}
THRESHOLD: dict[str, Any] = {"response_method": "predict_proba"}

LOOKED_THROUGH: dict[str, Callable[[Any], Any]] = {
    "GridSearchCV": lambda m: GridSearchCV(m, {}, **FOLDS),
    "RandomizedSearchCV": lambda m: RandomizedSearchCV(m, {}, n_iter=1, **FOLDS),
    "HalvingGridSearchCV": lambda m: HalvingGridSearchCV(m, {}, **FOLDS),
    "HalvingRandomSearchCV": lambda m: HalvingRandomSearchCV(m, {}, n_candidates=1, min_resources=80, **FOLDS),
}
# Wrappers whose fit turns the table into an array: a pipeline within them cannot choose columns by name.
OF_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "AdaBoostClassifier": lambda m: AdaBoostClassifier(m, n_estimators=2, random_state=SEED),
    "BaggingClassifier": lambda m: BaggingClassifier(m, 2, max_features=0.8, random_state=SEED),
    "SelfTrainingClassifier": lambda m: SelfTrainingClassifier(m),
    "BalancedBaggingClassifier": lambda m: imblearn_ensemble.BalancedBaggingClassifier(m, 2, random_state=SEED),
    "EasyEnsembleClassifier": lambda m: imblearn_ensemble.EasyEnsembleClassifier(2, estimator=m, random_state=SEED),
    "RUSBoostClassifier": lambda m: imblearn_ensemble.RUSBoostClassifier(m, n_estimators=2, random_state=SEED),
}
SELECTING: dict[str, Callable[[Any], Any]] = {
    "RFE": lambda m: RFE(m, n_features_to_select=2),
    "RFECV": lambda m: RFECV(m, min_features_to_select=2, **FOLDS),
}
OF_TABLES: dict[str, Callable[[Any], Any]] = {
    "CalibratedClassifierCV": lambda m: CalibratedClassifierCV(m, **FOLDS),
    "CalibratedClassifierCV isotonic": lambda m: CalibratedClassifierCV(m, method="isotonic", ensemble=False, **FOLDS),
    "CalibratedClassifierCV of a search": lambda m: CalibratedClassifierCV(GridSearchCV(m, {}, **FOLDS), **FOLDS),
    "search of CalibratedClassifierCV": lambda m: GridSearchCV(CalibratedClassifierCV(m, **FOLDS), {}, **FOLDS),
    "OneVsRestClassifier": lambda m: OneVsRestClassifier(m),
    "VotingClassifier": lambda m: VotingClassifier([("a", m), ("b", clone(m))], voting="soft"),
    "StackingClassifier": lambda m: StackingClassifier([("a", m)], LogisticRegression(), **FOLDS),
    "FixedThresholdClassifier": lambda m: FixedThresholdClassifier(m, threshold=0.6, **THRESHOLD),
    "TunedThresholdClassifierCV": lambda m: TunedThresholdClassifierCV(m, thresholds=7, **THRESHOLD, **FOLDS),
    "search of FixedThresholdClassifier": lambda m: GridSearchCV(
        FixedThresholdClassifier(m, threshold=0.6, **THRESHOLD), {}, **FOLDS
    ),
    "FixedThresholdClassifier of a search": lambda m: FixedThresholdClassifier(
        GridSearchCV(m, {}, **FOLDS), threshold=0.6, **THRESHOLD
    ),
    "imblearn Pipeline": lambda m: imblearn_pipeline.make_pipeline(
        over_sampling.RandomOverSampler(random_state=SEED), m
    ),
}
AUDITABLE = {**LOOKED_THROUGH, **OF_TABLES, **OF_ARRAYS, **SELECTING}
NEEDS_WEIGHTS = ("AdaBoostClassifier", "RUSBoostClassifier", "RFE", "RFECV")  # or importances: no pipeline inside


def rows(part: str, columns: list[str] = NUMERIC + NOMINAL) -> pd.DataFrame:
    data = split("credit_g")
    X = data.X_train[:TRAINED] if part == "train" else data.X_test[:AUDITED]
    return X[columns].astype({name: object for name in columns if name in NOMINAL}).reset_index(drop=True)


def labels() -> pd.Series:
    return (split("credit_g").y_train[:TRAINED] == "good").astype(int)


def encoded() -> Any:
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    return make_column_transformer((StandardScaler(), NUMERIC), (encoder, NOMINAL))


def forms(wrapper: str, classifier: str) -> list[tuple[Any, list[str]]]:
    """The wrapper around a pipeline and at the end of one, unfitted, each with the columns that it takes."""
    wrap, make = AUDITABLE[wrapper], CLASSIFIERS[classifier]
    around = (encoded(), NUMERIC + NOMINAL) if wrapper not in OF_ARRAYS else (StandardScaler(), NUMERIC)
    found = [(make_pipeline(encoded(), wrap(make())), NUMERIC + NOMINAL)]
    if wrapper in NEEDS_WEIGHTS:
        return [*found, (wrap(make()), NUMERIC)]
    return [*found, (wrap(make_pipeline(around[0], make())), around[1])]


def pairs() -> list[Any]:
    marks = {name: () if name in FAST else (pytest.mark.slow,) for name in CLASSIFIERS}
    impossible = {("RFE", "hist"), ("RFECV", "hist")}  # it has no importances
    found = [(wrapper, name) for wrapper in AUDITABLE for name in CLASSIFIERS if (wrapper, name) not in impossible]
    return [pytest.param(*pair, id="-".join(pair), marks=marks[pair[1]]) for pair in found]


@pytest.mark.samples
@pytest.mark.parametrize(("wrapper", "classifier"), pairs())
def test_a_wrapper_is_audited_as_it_predicts(wrapper: str, classifier: str) -> None:
    for model, columns in forms(wrapper, classifier):
        model.fit(rows("train", columns), labels())
        X = rows("test", columns)
        certs = fg.audit(model, X, fg.Protocol.fit(model, rows("train", columns)), progress=False)
        assert certs.to_pandas()["predicted"].tolist() == np.asarray(model.predict(X)).tolist()
        np.testing.assert_allclose(certs.table["confidence"], _confidence(model, X), atol=1e-5)
        if wrapper in LOOKED_THROUGH and classifier != "hist":
            assert certs.engine == ("linear" if classifier == "logistic" else "trees")


def _confidence(model: Any, X: pd.DataFrame) -> Any:
    """The probability of what is predicted, which a threshold may make the smaller one."""
    p = model.predict_proba(X)
    return p[np.arange(len(X)), np.searchsorted(model.classes_, model.predict(X))]


# --- what only hands its rows on is the model inside it ------------------------------------------------------------


def fit_frozen(model: Any, X: pd.DataFrame, y: pd.Series) -> tuple[Any, Any]:
    fitted = model.fit(X, y)
    return FrozenEstimator(fitted), fitted


def fit_hardened(model: Any, X: pd.DataFrame, y: pd.Series) -> tuple[Any, Any]:
    wrapper = fg.HardenedClassifier(model).fit(X, y)
    return wrapper, wrapper.estimator_


def fit_search(name: str) -> Callable[..., tuple[Any, Any]]:
    def fit(model: Any, X: pd.DataFrame, y: pd.Series) -> tuple[Any, Any]:
        search = LOOKED_THROUGH[name](model).fit(X, y)
        return search, search.best_estimator_

    return fit


def fit_at_the_end(model: Pipeline, X: pd.DataFrame, y: pd.Series) -> tuple[Any, Any]:
    search = GridSearchCV(model[-1], {}, **FOLDS)
    outer = make_pipeline(model[0], search).fit(X, y)
    return outer, Pipeline([outer.steps[0], ("gridsearchcv", search.best_estimator_)])


def fit_twice_over(model: Any, X: pd.DataFrame, y: pd.Series) -> tuple[Any, Any]:
    search = GridSearchCV(model, {}, **FOLDS).fit(X, y)
    return FrozenEstimator(search), search.best_estimator_


HANDING_ON = {name: fit_search(name) for name in LOOKED_THROUGH} | {
    "FrozenEstimator": fit_frozen,
    "HardenedClassifier": fit_hardened,
    "search at the end of a pipeline": fit_at_the_end,
    "frozen search": fit_twice_over,
}


@pytest.mark.samples
@pytest.mark.parametrize("wrapper", HANDING_ON)
@pytest.mark.parametrize("classifier", ["lightgbm", "catboost"])
def test_what_hands_its_rows_on_is_the_same_model_as_the_one_inside(wrapper: str, classifier: str) -> None:
    pipeline = make_pipeline(encoded(), CLASSIFIERS[classifier]())
    outer, inner = HANDING_ON[wrapper](pipeline, rows("train"), labels())
    one, other = Model.wrap(outer), Model.wrap(inner)
    assert one.fingerprint == other.fingerprint
    assert one.kind == other.kind and one.columns == other.columns and one.link == other.link
    X, protocols = rows("test"), [fg.Protocol.fit(model, rows("train")) for model in (outer, inner)]
    assert protocols[0].to_dict() == protocols[1].to_dict() and protocols[0].space == "transformed"
    certs = [fg.audit(model, X, protocols[0], progress=False) for model in (outer, inner)]
    assert certs[0].manifest.root_digest == certs[1].manifest.root_digest
    assert certs[0].engine == certs[1].engine == "trees"
    assert fg.verify(certs[0], inner, X) and fg.verify(certs[1], outer, X)


def test_a_search_with_an_answer_of_its_own_is_not_looked_through() -> None:
    class Cautious(GridSearchCV):
        def predict_proba(self, X: Any) -> Any:
            return 0.5 * super().predict_proba(X) + 0.25

    X = rows("train", NUMERIC)
    search = Cautious(LogisticRegression(max_iter=500), {}, **FOLDS).fit(X, labels())
    model = Model.wrap(search)
    np.testing.assert_allclose(model.probabilities(X), search.predict_proba(X))
    assert model.head is search and model.fingerprint != Model.wrap(search.best_estimator_).fingerprint


def test_pipelines_within_a_pipeline_are_joined() -> None:
    inner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    model = make_pipeline(StandardScaler(), FrozenEstimator(inner.fit(rows("train", NUMERIC), labels())))
    model.fit(rows("train", NUMERIC), labels())
    wrapped, X = Model.wrap(model), rows("test", NUMERIC)
    assert wrapped.kind == "Pipeline(StandardScaler -> StandardScaler -> LogisticRegression)"
    np.testing.assert_allclose(wrapped.probabilities(X), model.predict_proba(X))
    assert fg.audit(model, X, fg.Protocol.fit(model, rows("train", NUMERIC)), progress=False).engine == "linear"


def test_the_outer_one_of_two_thresholds_decides() -> None:
    inner = FixedThresholdClassifier(CLASSIFIERS["lightgbm"](), threshold=0.9, **THRESHOLD)
    model = FixedThresholdClassifier(inner, threshold=0.6, **THRESHOLD).fit(rows("train", NUMERIC), labels())
    X = rows("test", NUMERIC)
    certs = fg.audit(model, X, fg.Protocol.fit(model, rows("train", NUMERIC)), progress=False)
    assert certs.to_pandas()["predicted"].tolist() == model.predict(X).tolist()
    assert Model.wrap(model).decision.threshold == 0.6


# --- templates are never asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["GridSearchCV", "CalibratedClassifierCV", "BaggingClassifier"])
def test_a_wrapped_catboost_from_a_file_knows_its_columns(wrapper: str, tmp_path) -> None:
    train, test = rows("train", NUMERIC), rows("test", NUMERIC)
    model = AUDITABLE[wrapper](CLASSIFIERS["catboost"]()).fit(train, labels())
    joblib.dump(model, tmp_path / "model.joblib")
    train.to_parquet(tmp_path / "train.parquet")
    test[NUMERIC[::-1]].to_parquet(tmp_path / "test.parquet")  # the model's own order is restored
    words = ["audit", tmp_path / "model.joblib", tmp_path / "test.parquet", "--train", tmp_path / "train.parquet"]
    done = run(*words, "--trust", "--out", tmp_path / "audit")
    assert done.code == 0, done.err
    found = fg.Certificates.load(tmp_path / "audit").to_pandas()["predicted"].tolist()
    assert found == np.asarray(model.predict(test)).tolist()


def test_categories_are_those_of_the_fitted_members() -> None:
    X = pd.DataFrame({"a": np.arange(80) % 7, "b": np.arange(80) % 5, "c": np.arange(80) % 3})
    y = (X["a"] + X["b"] > 5).astype(int)
    boosting = HistGradientBoostingClassifier(max_iter=3, categorical_features=[0])
    bagging = BaggingClassifier(boosting, 4, max_features=2, random_state=SEED).fit(X, y)
    firsts = {int(columns[0]) for columns in bagging.estimators_features_}
    assert category_columns(bagging, 3) == sorted(firsts) and len(firsts) > 1
    for name in ("GridSearchCV", "CalibratedClassifierCV", "VotingClassifier", "StackingClassifier"):
        boosting = HistGradientBoostingClassifier(max_iter=3, categorical_features=[1])
        assert category_columns(AUDITABLE[name](boosting).fit(X, y), 3) == [1], name


# --- refused, in one sentence ----------------------------------------------------------------------------------------

TWO_OUTPUTS = np.column_stack([np.arange(TRAINED) % 2, np.arange(TRAINED) % 3 > 0]).astype(int)
THREE = np.arange(TRAINED) % 3
THREE_LABELS = np.column_stack([THREE == 0, THREE != 1, THREE == 2]).astype(int)

REFUSED: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "VotingClassifier hard": (
        lambda m: VotingClassifier([("a", m)]),
        None,
        r"^VotingClassifier counts the votes of its members and has no predict_proba; fit it with voting='soft'$",
    ),
    "search of a hard vote": (
        lambda m: GridSearchCV(VotingClassifier([("a", m)]), {}, **FOLDS),
        None,
        r"^VotingClassifier counts the votes .* voting='soft'$",
    ),
    "OneVsOneClassifier": (OneVsOneClassifier, THREE, r"^OneVsOneClassifier has no predict_proba; fit it within Calib"),
    "OutputCodeClassifier": (OutputCodeClassifier, THREE, r"^OutputCodeClassifier has no predict_proba; a classifier"),
    "ClassifierChain": (ClassifierChain, TWO_OUTPUTS, r"^ClassifierChain predicts several outputs"),
    "MultiOutputClassifier": (MultiOutputClassifier, TWO_OUTPUTS, r"^MultiOutputClassifier predicts several outputs"),
    "OneVsRestClassifier of labels": (OneVsRestClassifier, THREE_LABELS, r"^OneVsRestClassifier predicts several outp"),
    "search without refit": (
        lambda m: GridSearchCV(m, {}, refit=False, **FOLDS),
        None,
        r"^GridSearchCV was fitted with refit=False, so it has no fitted model; fit it with refit=True$",
    ),
    "threshold on scores": (
        lambda m: FixedThresholdClassifier(m, threshold=0.2, response_method="decision_function"),
        None,
        r"^FixedThresholdClassifier thresholds the decision function",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("classifier", ["logistic", "catboost"])
def test_a_wrapper_without_probabilities_is_refused_in_one_sentence(name: str, classifier: str) -> None:
    wrap, y, sentence = REFUSED[name]
    if name == "threshold on scores" and classifier == "catboost":
        pytest.skip("CatBoost has no decision function")
    model = wrap(CLASSIFIERS[classifier]()).fit(rows("train", NUMERIC), labels() if y is None else y)
    with pytest.raises(ModelError, match=sentence):
        Model.wrap(model)
    with pytest.raises(ModelError, match=sentence):
        fg.Protocol.fit(make_pipeline(StandardScaler(), FrozenEstimator(model)), rows("train", NUMERIC))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (LinearRegression(), r"^LinearRegression is a regressor; a classifier"),
        (SVC(), r"^SVC has no predict_proba; fit it within CalibratedClassifierCV, which turns its scores into"),
        (RidgeClassifier(), r"^RidgeClassifier has no predict_proba; fit it within CalibratedClassifierCV"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_estimator_without_probabilities_is_told_what_helps(model: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        Model.wrap(model.fit(rows("train", NUMERIC), labels()))


def test_a_network_of_several_labels_is_refused() -> None:
    model = MLPClassifier((3,), max_iter=2).fit(rows("train", NUMERIC), THREE_LABELS)
    with pytest.raises(ModelError, match=r"^MLPClassifier predicts several outputs"):
        Model.wrap(model)


@pytest.mark.parametrize("wrapper", AUDITABLE)
@pytest.mark.parametrize("classifier", ["lightgbm", "catboost"])
def test_an_unfitted_wrapper_is_refused_in_one_sentence(wrapper: str, classifier: str) -> None:
    with pytest.raises(ModelError, match=r"fit it first"):
        Model.wrap(AUDITABLE[wrapper](CLASSIFIERS[classifier]()))


def test_no_wrapper_is_forgotten() -> None:
    known = {name for name, kind in all_estimators() + imblearn_testing.all_estimators() if _wraps_classifiers(kind)}
    tried = " ".join([*AUDITABLE, *REFUSED])
    assert {name for name in known if name not in tried} == set()


def _wraps_classifiers(kind: type) -> bool:
    given = set(inspect.signature(kind.__init__).parameters)
    return bool(given & {"estimator", "estimators"}) and (
        hasattr(kind, "predict_proba") or getattr(kind, "_estimator_type", "") == "classifier"
    )
