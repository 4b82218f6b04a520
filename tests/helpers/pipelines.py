"""Real fitted models on real data, small enough for a test run; each is fitted once a session.

Two forms of every family: `transformed` is a Pipeline whose last step takes a numeric matrix; `raw` takes
the table itself, with native categories where the library has them. Some numeric cells of the raw boosters'
tables are missing, because their models accept that and users' tables look like that.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import pytest
from places import data_folder
from sklearn.base import ClassifierMixin
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

SEED = 7
# Small models on few cores: more threads would only wait for each other.
threadpool_limits(limits=1)

FAMILIES = (
    "logistic",
    "random_forest",
    "extra_trees",
    "gradient_boosting",
    "hist_gradient_boosting",
    "xgboost",
    "lightgbm",
    "catboost",
    "mlp",
)
NATIVE = ("hist_gradient_boosting", "xgboost", "lightgbm", "catboost")
BLAS = ("logistic", "mlp")  # a dot product's rounding depends on the shape of the batch

TARGETS = {"credit_g": "class", "adult": "income", "credit_g_property": "property_magnitude"}
SIZES = {"credit_g": (600, 400), "adult": (600, 3000), "credit_g_property": (600, 400)}


@functools.cache
def read_table(name: str) -> pd.DataFrame:
    if name == "credit_g":  # bundled with the package
        return pd.read_parquet(str(files("fragility") / "data" / "credit_g.parquet"))
    path = data_folder() / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} not found; set FRAGILITY_DATA to the folder that holds it")
    return pd.read_parquet(path)


@dataclass(frozen=True)
class Split:
    X_train: pd.DataFrame
    y_train: pd.Series
    X_test: pd.DataFrame
    y_test: pd.Series


@functools.cache
def split(dataset: str) -> Split:
    """Rows shuffled once by a fixed seed. `credit_g_property` is Credit-G with a target of four classes."""
    table = read_table(dataset.removesuffix("_property"))
    table = table.sample(frac=1.0, random_state=SEED).reset_index(drop=True)
    n_train, n_test = SIZES[dataset]
    target = TARGETS[dataset]
    X, y = table.drop(columns=[target]), table[target].astype(object)
    return Split(
        X[:n_train].reset_index(drop=True),
        y[:n_train].reset_index(drop=True),
        X[n_train : n_train + n_test].reset_index(drop=True),
        y[n_train : n_train + n_test].reset_index(drop=True),
    )


def numeric_names(X: pd.DataFrame) -> list[str]:
    return [name for name in X.columns if pd.api.types.is_numeric_dtype(X[name])]


def nominal_names(X: pd.DataFrame) -> list[str]:
    return [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]


def preprocessing(X: pd.DataFrame, *, sparse: bool = False) -> ColumnTransformer:
    """Median imputation and standardisation, one-hot for nominal fields (SPEC section 11)."""
    return ColumnTransformer(
        [
            (
                "numeric",
                make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
                numeric_names(X),
            ),
            ("nominal", OneHotEncoder(handle_unknown="ignore", sparse_output=sparse), nominal_names(X)),
        ],
        sparse_threshold=1.0 if sparse else 0.0,
    )


def estimator(family: str) -> ClassifierMixin:
    match family:
        case "logistic":
            return LogisticRegression(max_iter=400)
        case "random_forest":
            return RandomForestClassifier(25, min_samples_leaf=2, random_state=SEED)
        case "extra_trees":
            return ExtraTreesClassifier(25, min_samples_leaf=2, random_state=SEED)
        case "gradient_boosting":
            return GradientBoostingClassifier(n_estimators=25, random_state=SEED)
        case "hist_gradient_boosting":
            return HistGradientBoostingClassifier(max_iter=25, random_state=SEED)
        case "xgboost":
            xgboost = pytest.importorskip("xgboost")
            return xgboost.XGBClassifier(n_estimators=25, max_depth=4, n_jobs=1, random_state=SEED)
        case "lightgbm":
            lightgbm = pytest.importorskip("lightgbm")
            return lightgbm.LGBMClassifier(
                n_estimators=25, min_child_samples=5, n_jobs=1, verbose=-1, random_state=SEED
            )
        case "catboost":
            catboost = pytest.importorskip("catboost")
            return catboost.CatBoostClassifier(
                iterations=25,
                depth=4,
                thread_count=1,
                verbose=False,
                random_seed=SEED,
                allow_writing_files=False,
            )
        case "mlp":
            return MLPClassifier((16,), max_iter=60, random_state=SEED)
    raise AssertionError(family)


@dataclass(frozen=True)
class Case:
    """A fitted model and the rows that belong to it."""

    family: str
    dataset: str
    space: str
    model: Any
    X_train: pd.DataFrame
    X_test: pd.DataFrame

    @property
    def bitwise(self) -> bool:
        """Whether the model's arithmetic is the same in a batch of any shape."""
        return self.family not in BLAS

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.family}-{self.space}"


def labels_for(family: str, y: pd.Series) -> np.ndarray:
    """XGBoost takes class numbers only; the others keep the data's own strings."""
    if family == "xgboost":
        return np.unique(y.astype(str), return_inverse=True)[1]
    return y.to_numpy(dtype=object)


@functools.cache
def fitted(dataset: str, family: str, space: str) -> Case:
    data = split(dataset)
    y = labels_for(family, data.y_train)
    if space == "raw" and family in NATIVE:
        X_train, X_test = native_table(data.X_train, family), native_table(data.X_test, family)
        model = native_estimator(family, X_train).fit(X_train, y)
        return Case(family, dataset, space, model, X_train, X_test)
    model = Pipeline([("prepare", preprocessing(data.X_train)), ("model", estimator(family))])
    model.fit(data.X_train, y)
    return Case(family, dataset, space, model, data.X_train, data.X_test)


def native_table(X: pd.DataFrame, family: str) -> pd.DataFrame:
    """Categories as the library wants them; one numeric cell in twenty missing, and Adult's `?` too."""
    X = X.copy()
    gaps = np.random.default_rng(SEED).random((len(X), len(numeric_names(X)))) < 0.05
    for j, name in enumerate(numeric_names(X)):
        X[name] = X[name].astype(float).mask(gaps[:, j])
    if family == "catboost":
        return X.astype({name: object for name in nominal_names(X)})
    for name in nominal_names(X):
        categories = sorted(set(read_table_column(name)) - {"?"})
        X[name] = pd.Categorical(X[name].where(X[name] != "?"), categories=categories)
    return X


@functools.cache
def read_table_column(name: str) -> tuple[str, ...]:
    table = read_table("credit_g")
    return tuple((table if name in table else read_table("adult"))[name])


def native_estimator(family: str, X: pd.DataFrame) -> Any:
    model = estimator(family)
    match family:
        case "hist_gradient_boosting":
            return model.set_params(categorical_features="from_dtype")
        case "xgboost":
            return model.set_params(enable_categorical=True)
        case "catboost":
            return model.set_params(cat_features=nominal_names(X))
    return model


def raw_row_table(case: Case, cells: list[Any]) -> pd.DataFrame:
    """One row of the raw space as the model's own kind of table, in the types it was trained with."""
    columns = {}
    for name, cell in zip(case.X_train.columns, cells, strict=True):
        dtype = case.X_train[name].dtype
        gap = pd.api.types.is_integer_dtype(dtype) and pd.isna(cell)
        columns[name] = pd.Series([cell], dtype=float if gap else dtype)
    return pd.DataFrame(columns)
