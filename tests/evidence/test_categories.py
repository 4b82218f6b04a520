"""Columns that an estimator itself treats as categories are nominal evidence, whatever their type."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

import fragility as fg
from fragility.base.errors import EvidenceError
from fragility.evidence.fitting import category_columns
from fragility.protocol import Protocol, bind

N = 400


def coded() -> tuple[pd.DataFrame, np.ndarray]:
    """Codes whose order means nothing: the odd ones and the even ones differ."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=N), "code": rng.integers(0, 6, N), "age": rng.integers(20, 70, N)})
    return X, ((X["code"] % 2 == 1) ^ (X["x"] > 0)).astype(int).to_numpy()


def lightgbm_at_fit(X, y):
    lightgbm = pytest.importorskip("lightgbm")
    return lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1).fit(X, y, categorical_feature=["code"])


def lightgbm_booster(X, y):
    lightgbm = pytest.importorskip("lightgbm")
    data = lightgbm.Dataset(X, y, categorical_feature=["code"])
    return lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, data, 10)


def lightgbm_file(X, y):
    lightgbm = pytest.importorskip("lightgbm")
    return lightgbm.Booster(model_str=lightgbm_booster(X, y).model_to_string())


def xgboost_types(X, y):
    xgboost = pytest.importorskip("xgboost")
    kinds = ["q", "c", "q"]
    return xgboost.XGBClassifier(n_estimators=10, n_jobs=1, feature_types=kinds, enable_categorical=True).fit(X, y)


def catboost_codes(X, y):
    catboost = pytest.importorskip("catboost")
    return catboost.CatBoostClassifier(
        iterations=10, verbose=False, thread_count=1, allow_writing_files=False, cat_features=["code"]
    ).fit(X, y)


def histogram_boosting(X, y):
    return HistGradientBoostingClassifier(max_iter=10, categorical_features=["code"]).fit(X, y)


def voting(X, y):
    members = [("a", HistGradientBoostingClassifier(max_iter=5, categorical_features=[1]))]
    return VotingClassifier(members, voting="soft").fit(X, y)


def calibrated(X, y):
    return CalibratedClassifierCV(FrozenEstimator(histogram_boosting(X, y))).fit(X, y)


MAKERS = [
    lightgbm_at_fit,
    lightgbm_booster,
    lightgbm_file,
    xgboost_types,
    catboost_codes,
    histogram_boosting,
    voting,
    calibrated,
]


@pytest.mark.parametrize("make", MAKERS)
def test_codes_that_the_estimator_takes_as_categories_are_not_interpolated(make) -> None:
    X, y = coded()
    model = make(X, y)
    assert category_columns(model, 3) == [1]
    protocol = Protocol.fit(model, X)
    assert protocol.space == "raw"
    kinds = {c.name: c.kind for c in protocol.columns}
    assert kinds == {"x": "numeric", "code": "nominal", "age": "numeric"}
    rows = bind(model, X[:30], protocol)
    assert rows.stepwise.tolist() == [False, True, False]
    own = fg.Model.wrap(model).probabilities(X[:30])
    np.testing.assert_allclose(rows.predict(rows.dense()), own, rtol=1e-9)
    baseline = next(c.baseline for c in protocol.columns if c.name == "code")
    assert baseline == X["code"].mode()[0]
    with pytest.raises(EvidenceError, match=r"treats 'code' as a category.*use space='raw'"):
        Protocol.fit(model, X, space="transformed")


def test_codes_behind_preprocessing_are_traced_to_their_fields() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = coded()
    pre = make_column_transformer((StandardScaler(), ["x", "age"]), (OrdinalEncoder(), ["code"]))
    model = make_pipeline(pre, lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1))
    model.fit(X, y, lgbmclassifier__categorical_feature=[2])
    protocol = Protocol.fit(model, X)
    assert protocol.space == "raw"
    assert {c.name for c in protocol.columns if c.kind == "nominal"} == {"code"}
    passed = make_pipeline(
        make_column_transformer((StandardScaler(), ["x"]), remainder="passthrough"),
        HistGradientBoostingClassifier(max_iter=5, categorical_features=[1]),
    ).fit(X, y)
    assert {c.name for c in Protocol.fit(passed, X).columns if c.kind == "nominal"} == {"code"}


def test_models_without_categories_are_audited_as_before() -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    X, y = coded()
    for model in (
        xgboost.XGBClassifier(n_estimators=5, n_jobs=1),
        lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1),
        HistGradientBoostingClassifier(max_iter=5),
    ):
        assert category_columns(model.fit(X, y), 3) == []
        assert Protocol.fit(model, X).space == "transformed"


def test_declared_codes_are_audited_in_the_raw_space() -> None:
    X, y = coded()
    model = HistGradientBoostingClassifier(max_iter=5).fit(X, y)
    protocol = Protocol.fit(model, X, nominal=["code"])
    assert protocol.space == "raw"
    assert bind(model, X[:3], protocol).stepwise.tolist() == [False, True, False]


@pytest.mark.parametrize(("kind", "words"), [("text_features", "free text"), ("embedding_features", "vectors")])
def test_columns_of_free_text_and_of_vectors_are_refused_by_name(kind: str, words: str) -> None:
    catboost = pytest.importorskip("catboost")
    X, y = coded()
    rng = np.random.default_rng(1)
    if kind == "text_features":
        X["note"] = [" ".join(rng.choice(["late", "paid", "new", "old"], 4)) for _ in range(N)]
    else:
        X["note"] = [rng.normal(size=3).tolist() for _ in range(N)]
    model = catboost.CatBoostClassifier(iterations=5, verbose=False, thread_count=1, allow_writing_files=False)
    model.fit(X, y, **{kind: ["note"]})
    with pytest.raises(EvidenceError, match=rf"CatBoostClassifier reads column 'note' as {words}, which cannot"):
        Protocol.fit(model, X)
