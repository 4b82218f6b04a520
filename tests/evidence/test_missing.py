"""The baseline `missing` is what happens in production: the raw field is missing, and the model answers (SPEC 4)."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from naive import naive_certificate
from pipelines import estimator, labels_for, split
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from twins import assert_equal, remembered

import fragility as fg
from fragility.base.errors import EvidenceError
from fragility.models import Model
from fragility.protocol import Protocol, bind

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["purpose", "checking_status"]
OPERATORS = ("attenuate_all", "attenuate_top1", "attenuate_top3")
NINE = [
    "logistic", "random_forest", "extra_trees", "xgboost", "lightgbm", "catboost", "hist_gradient_boosting", "mlp",
    "naive_bayes",
]  # fmt: skip
NEVER_MISSING = ".* had no missing value in training, so the model has never seen one there"


@functools.cache
def rows() -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Credit-G with whole numbers, a decimal and texts; some ages and purposes are missing in training."""
    data = split("credit_g")
    columns = [*NUMERIC, *NOMINAL]
    train, test = (
        X[columns].astype({**dict.fromkeys(NOMINAL, object), "age": float}).reset_index(drop=True)
        for X in (data.X_train, data.X_test)
    )
    train.loc[::10, "age"] = np.nan
    train.loc[::7, "purpose"] = np.nan
    return train, test, data.y_train


def head(family: str) -> Any:
    return GaussianNB() if family == "naive_bayes" else estimator(family)


@functools.cache
def with_imputers(family: str) -> Pipeline:
    X, _, y = rows()
    fill = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False))
    pre = ColumnTransformer(
        [("n", make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), NUMERIC),
         ("c", fill, NOMINAL)]
    )  # fmt: skip
    return make_pipeline(pre, head(family)).fit(X, labels_for(family, y))


def raw_row(cells: list[Any]) -> pd.DataFrame:
    """One raw row as pandas holds it: NaN for whatever is missing."""
    return pd.DataFrame(
        {
            name: pd.Series([np.nan if cell is None else cell], dtype=object if name in NOMINAL else float)
            for name, cell in zip([*NUMERIC, *NOMINAL], cells, strict=True)
        }
    )


@pytest.mark.samples
@pytest.mark.parametrize("family", NINE)
def test_missing_equals_asking_the_pipeline_with_the_raw_field_missing(family: str) -> None:
    """Every state of the certificate, for nine families: one field missing, several, all of them, and those between."""
    model = with_imputers(family)
    X, test, _ = rows()
    with pytest.warns(UserWarning, match=NEVER_MISSING):
        protocol = Protocol.fit(model, X, baseline="missing", operators=OPERATORS)
    assert protocol.space == "raw" and protocol.group_names == tuple(X)
    assert protocol.artificial == ("duration", "credit_amount", "checking_status")
    wrapped = Model.wrap(model)
    ask = remembered(lambda cells: wrapped.probabilities(raw_row(list(cells)))[0])
    n = 3
    certs = fg.audit(model, test[:n], protocol)
    for i in range(n):
        cells = [None if pd.isna(value) else value for value in test.iloc[i]]
        expected = naive_certificate(
            ask,
            cells,
            [None if name in NOMINAL else math.nan for name in X],
            [[j] for j in range(len(X.columns))],
            protocol.depth,
            OPERATORS,
            protocol.severities,
            protocol.reading,
            protocol.weights,
            protocol.resolution,
            [True] * len(X.columns),
            [False] * len(X.columns),
            smoothing=protocol.smoothing,
        )
        assert_equal(certs, i, expected, f"{family} row {i}")


def test_the_imputer_is_not_bypassed() -> None:
    """A pipeline answers a missing value with what its imputer learned, so that few predictions flip (REVIEW 3)."""
    xgboost = pytest.importorskip("xgboost")
    data = split("credit_g")
    X, y = data.X_train[NUMERIC].astype(float), labels_for("xgboost", data.y_train)
    model = make_pipeline(SimpleImputer(), xgboost.XGBClassifier(n_estimators=30, max_depth=3)).fit(X, y)
    with pytest.warns(UserWarning, match=NEVER_MISSING):
        missing = fg.audit(model, data.X_test[NUMERIC].astype(float), Protocol.fit(model, X, baseline="missing"))
    mean = fg.audit(model, data.X_test[NUMERIC].astype(float), Protocol.fit(model, X, baseline="mean", space="raw"))
    np.testing.assert_array_equal(missing.claims.flip_budget, mean.claims.flip_budget)
    np.testing.assert_allclose(missing.claims.one_step_drop, mean.claims.one_step_drop, atol=1e-5)


# --- models without preprocessing -----------------------------------------------------------------------------------

BARE = {
    "lightgbm": lambda: pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=10, verbose=-1),
    "xgboost": lambda: pytest.importorskip("xgboost").XGBClassifier(n_estimators=10),
    "catboost": lambda: pytest.importorskip("catboost").CatBoostClassifier(iterations=10, verbose=0),
    "hist_gradient_boosting": lambda: HistGradientBoostingClassifier(max_iter=10),
    "random_forest": lambda: RandomForestClassifier(10, random_state=0),
    "extra_trees": lambda: ExtraTreesClassifier(10, random_state=0),
}


@pytest.mark.samples
@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.parametrize("family", BARE)
def test_trees_are_read_natively_where_a_field_is_missing(family: str, gaps: bool) -> None:
    """Whole numbers, decimals and truth values of a booster without preprocessing: NaN is its own rule."""
    data = split("credit_g")
    X, test = (
        Z[NUMERIC].assign(ratio=Z["age"] / 7, flag=Z["age"] > 40).reset_index(drop=True)
        for Z in (data.X_train, data.X_test)
    )
    if gaps:
        X.loc[::9, ["ratio"]] = np.nan
        test.loc[::4, ["ratio"]] = np.nan
    model = BARE[family]().fit(X, labels_for("xgboost", data.y_train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        protocol = Protocol.fit(model, X, baseline="missing")
    assert protocol.space == "raw" and all(column.baseline is None for column in protocol.columns)
    native = fg.audit(model, test[:60], protocol)
    assert native.engine == "trees"
    slow = fg.audit(model, test[:60], protocol, engine="blackbox")
    np.testing.assert_array_equal(native.claims.flip_budget, slow.claims.flip_budget)
    np.testing.assert_allclose(native.claims.path_margin, slow.claims.path_margin, rtol=1e-6, atol=1e-6)
    lost = test[:1].astype(float).assign(age=np.nan, flag=np.nan)
    bound = bind(model, test[:1], protocol)
    cells = bound.dense()
    for name in ("age", "flag"):
        place = list(X).index(name)
        cells[0, place] = bound.baseline[place]
    np.testing.assert_allclose(bound.predict(cells), Model.wrap(model).probabilities(lost), rtol=1e-12)


def test_the_transformed_space_begins_behind_the_preprocessing() -> None:
    X, _, _ = rows()
    with pytest.raises(
        EvidenceError, match=r"a raw field is missing and the model's own preprocessing answers, as in production"
    ):
        Protocol.fit(with_imputers("logistic"), X, baseline="missing", space="transformed")
    numbers = X[NUMERIC].astype(float)
    model = HistGradientBoostingClassifier(max_iter=5).fit(numbers, split("credit_g").y_train)
    with pytest.warns(UserWarning, match=r"^2 fields \(duration, credit_amount\) had no missing value in training"):
        assert Protocol.fit(model, numbers, baseline="missing", space="transformed").space == "transformed"


def test_sparse_rows_are_their_own_matrix() -> None:
    X, _, y = rows()
    matrix = sp.csr_matrix(X[NUMERIC[:2]].to_numpy(dtype=float))
    model = pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=5, verbose=-1).fit(matrix, y)
    with pytest.warns(UserWarning, match=r"^2 fields \(x0, x1\) had no missing value"):
        protocol = Protocol.fit(model, matrix, baseline="missing")
    assert protocol.space == "transformed" and [c.baseline for c in protocol.columns] == [None, None]


# --- what is refused and said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "field", "said"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()), "duration", "Input X contains NaN"),
        (GaussianNB(), "duration", "Input X contains NaN"),
        (
            make_pipeline(
                ColumnTransformer(
                    [("n", SimpleImputer(), NUMERIC), ("c", OneHotEncoder(sparse_output=False), NOMINAL)]
                ),
                LogisticRegression(max_iter=500),
            ),
            "checking_status",
            r"Found unknown categories \[nan\] in column 1",
        ),
        (
            make_pipeline(
                ColumnTransformer([("n", SimpleImputer(), NUMERIC), ("c", OrdinalEncoder(), NOMINAL)]),
                LogisticRegression(max_iter=500),
            ),
            "purpose",
            r"Found unknown categories \[nan\] in column 0",
        ),
    ],
    ids=["scaled", "bare", "one-hot", "ordinal"],
)
def test_a_model_that_cannot_answer_is_refused_with_the_field_and_its_words(model: Any, field: str, said: str) -> None:
    X, _, y = rows()
    X = X if isinstance(model, Pipeline) and "columntransformer" in model.named_steps else X[NUMERIC[:2]]
    if field == "purpose":
        X = X.assign(purpose=X["purpose"].fillna("other"))
    model.fit(X, y)
    with pytest.raises(
        EvidenceError,
        match=rf"cannot take the baseline 'missing': it has no answer when the field '{field}' is missing "
        rf"\({said}.*\); add an imputer to its pipeline, or choose another baseline",
    ):
        Protocol.fit(model, X, baseline="missing")


def test_nothing_is_said_where_every_field_had_missing_values() -> None:
    X, _, y = rows()
    X = X[NUMERIC].astype(float)
    X.iloc[::8] = np.nan
    model = make_pipeline(SimpleImputer(), LogisticRegression(max_iter=500)).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Protocol.fit(model, X, baseline="missing").artificial == ()
