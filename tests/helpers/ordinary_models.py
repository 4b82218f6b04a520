"""Pipelines as people build them, of every family, with every way of preparing a table; small, so that each is fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

SEED = 3
TREES = 30

# By kind; the models of a kind take turns.
MODELS = {
    "linear": ("logistic",),
    "averaged": ("forest", "extra"),
    "boosted": ("lightgbm", "xgboost", "hist", "catboost"),
    "own": ("lightgbm-own", "xgboost-own", "hist-own", "catboost-own"),
    "combined": ("voting", "calibrated", "stacking", "bagging"),
    "other": ("mlp", "neighbours"),
}
KIND = {name: kind for kind, names in MODELS.items() for name in names}
SLOW_TO_ASK = ("voting", "calibrated", "stacking", "bagging", "mlp", "neighbours", "catboost")

# How a table is prepared, and its kind. `ratio` and `pca` make columns from several fields, so evidence is lost in raw
# fields.
PREPARATIONS = {
    "simple": "simple",
    "knn": "filled",
    "iterative": "filled",
    "winsor": "own",
    "ratio": "own",
    "pca": "pca",
}
CROSSING = ("ratio", "pca")
SPACES = ("default", "raw")


class Winsor(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A user's own transformer: each number is cut at its training quantiles."""

    def fit(self, X: Any, y: Any = None) -> Winsor:
        self.n_features_in_ = np.shape(X)[1]
        self.low_, self.high_ = np.nanquantile(np.asarray(X, dtype=float), [0.02, 0.98], axis=0)
        return self

    def transform(self, X: Any) -> Any:
        return np.clip(np.asarray(X, dtype=float), self.low_, self.high_)


def relate_to_first(X: Any) -> Any:
    """A user's own function: every number but the first becomes its ratio to the first."""
    values = np.array(X, dtype=float)
    values[:, 1:] /= 1.0 + np.abs(values[:, :1])
    return values


def make_numbers_ready(preparation: str) -> Any:
    match preparation:
        case "knn":
            return make_pipeline(KNNImputer(n_neighbors=5), StandardScaler())
        case "iterative":
            return make_pipeline(IterativeImputer(max_iter=3, random_state=SEED), StandardScaler())
        case "winsor":
            return make_pipeline(SimpleImputer(strategy="median"), Winsor(), StandardScaler())
        case "ratio":
            related = FunctionTransformer(relate_to_first, feature_names_out="one-to-one")
            return make_pipeline(SimpleImputer(strategy="median"), related, StandardScaler())
    return make_pipeline(SimpleImputer(strategy="median"), StandardScaler())


def make_booster(kind: str, **settings: Any) -> Any:
    match kind:
        case "lightgbm":
            library = pytest.importorskip("lightgbm")
            return library.LGBMClassifier(n_estimators=TREES, n_jobs=1, verbose=-1, random_state=SEED, **settings)
        case "xgboost":
            library = pytest.importorskip("xgboost")
            return library.XGBClassifier(n_estimators=TREES, max_depth=4, n_jobs=1, random_state=SEED, **settings)
        case "catboost":
            library = pytest.importorskip("catboost")
            quiet = {"verbose": False, "allow_writing_files": False, "thread_count": 1, "random_seed": SEED}
            return library.CatBoostClassifier(iterations=TREES, depth=4, **quiet, **settings)
        case "hist":
            return HistGradientBoostingClassifier(max_iter=TREES, random_state=SEED, **settings)
    raise AssertionError(kind)


def make_estimator(name: str) -> Any:
    match name:
        case "logistic":
            return LogisticRegression(max_iter=400)
        case "forest":
            return RandomForestClassifier(TREES, min_samples_leaf=2, random_state=SEED)
        case "extra":
            return ExtraTreesClassifier(TREES, min_samples_leaf=2, random_state=SEED)
        case "voting":
            parts = [(kind, make_booster(kind)) for kind in ("lightgbm", "xgboost")]
            return VotingClassifier([*parts, ("logistic", LogisticRegression(max_iter=400))], voting="soft")
        case "calibrated":
            return CalibratedClassifierCV(make_booster("xgboost"), cv=3)
        case "stacking":
            parts = [("trees", make_booster("hist")), ("logistic", LogisticRegression(max_iter=400))]
            return StackingClassifier(parts, cv=3)
        case "bagging":
            return BaggingClassifier(DecisionTreeClassifier(min_samples_leaf=3), TREES, random_state=SEED)
        case "mlp":
            return MLPClassifier((24,), max_iter=80, random_state=SEED)
        case "neighbours":
            return KNeighborsClassifier(15)
    return make_booster(name)


def name_nominal(X: pd.DataFrame) -> list[str]:
    return [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]


def make_nominal_ready() -> Any:
    return make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )


def build(name: str, preparation: str, X: pd.DataFrame) -> Any:
    """Return an unfitted pipeline for a table."""
    nominal = name_nominal(X)
    if name.endswith("-own"):
        kind = name.removesuffix("-own")
        if kind == "catboost":
            return make_booster(kind, cat_features=nominal)
        return make_booster(kind, **({"enable_categorical": True} if kind == "xgboost" else {}))
    numbers = make_column_selector(dtype_include=["number", "bool"])
    steps = []
    if len(nominal) < X.shape[1]:
        steps.append((make_numbers_ready(preparation), numbers))
    if nominal:
        steps.append((make_nominal_ready(), nominal))
    prepared = [make_column_transformer(*steps, sparse_threshold=0.0)]
    if preparation == "pca":
        prepared.append(PCA(0.95, svd_solver="full"))
    return make_pipeline(*prepared, make_estimator(name))


def fit_table(name: str, X: pd.DataFrame) -> pd.DataFrame:
    """Return a table in the types that a model with categories of its own asks for; others take it as it is."""
    if not name.endswith("-own"):
        return X
    X = X.copy()
    for field in name_nominal(X):
        if name == "catboost-own":
            X[field] = X[field].astype(object).where(X[field].notna(), "none given").astype(str).astype(object)
        elif not isinstance(X[field].dtype, pd.CategoricalDtype):
            X[field] = X[field].astype("category")
    return X


def fit_labels(name: str, y: pd.Series) -> pd.Series:
    """XGBoost takes class numbers only, also inside of a calibrated classifier."""
    if name.startswith("xgboost") or name == "calibrated":
        return pd.Series(np.unique(y.astype(str), return_inverse=True)[1], index=y.index)
    return y
