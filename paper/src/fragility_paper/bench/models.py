"""The models that `fragility bench` times, at sizes users have in production."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

THREADS = os.cpu_count() or 1


def lightgbm(trees: int = 300, **settings: Any) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=trees, n_jobs=THREADS, random_state=0, verbose=-1, **settings)


def xgboost(trees: int = 300, depth: int = 6, **settings: Any) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=trees, max_depth=depth, n_jobs=THREADS, random_state=0, **settings)


def catboost(trees: int = 300, depth: int = 6) -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(
        iterations=trees, depth=depth, thread_count=THREADS, random_seed=0, verbose=False, allow_writing_files=False
    )


def hist_gradient_boosting(**settings: Any) -> Any:
    return HistGradientBoostingClassifier(max_iter=200, early_stopping=False, random_state=0, **settings)


@dataclass(frozen=True)
class TakesCategories:
    """An estimator that is handed the raw table itself, categories included, without any preprocessing."""

    estimator: Any


MODELS: Mapping[str, Callable[[], Any]] = {
    "LightGBM 300 x 31 leaves": lightgbm,
    "XGBoost 300 x depth 6": xgboost,
    "CatBoost 300 x depth 6": catboost,
    "HistGradientBoosting 200": hist_gradient_boosting,
    "RandomForest 200": lambda: RandomForestClassifier(200, n_jobs=THREADS, random_state=0),
    "ExtraTrees 200": lambda: ExtraTreesClassifier(200, n_jobs=THREADS, random_state=0),
    "LogisticRegression": lambda: LogisticRegression(max_iter=500),
    "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis,
    "LightGBM 300, categories": lambda: TakesCategories(lightgbm()),
    "XGBoost 300, categories": lambda: TakesCategories(xgboost(enable_categorical=True)),
    "HistGradientBoosting 200, categories": lambda: TakesCategories(
        hist_gradient_boosting(categorical_features="from_dtype")
    ),
}
