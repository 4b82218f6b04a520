"""Tree models as the tests of the engines train them: every library, small trees and deep ones."""

from __future__ import annotations

import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
catboost = pytest.importorskip("catboost")

CAT = {"verbose": 0, "thread_count": 1, "allow_writing_files": False, "random_seed": 0}
LGB = {"verbose": -1, "n_jobs": 1, "random_state": 0}

MODELS = {
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=25, max_depth=6, n_jobs=1),
    "xgboost depth 10": lambda: xgboost.XGBClassifier(n_estimators=5, max_depth=10, n_jobs=1),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=25, **LGB),
    "lightgbm 400 leaves": lambda: lightgbm.LGBMClassifier(n_estimators=5, num_leaves=400, min_child_samples=1, **LGB),
    "catboost": lambda: catboost.CatBoostClassifier(iterations=25, depth=6, **CAT),
    "catboost depth 10": lambda: catboost.CatBoostClassifier(iterations=4, depth=10, **CAT),
    "hist gradient boosting": lambda: HistGradientBoostingClassifier(max_iter=15, random_state=0),
    "gradient boosting": lambda: GradientBoostingClassifier(n_estimators=12, random_state=0),
    "random forest": lambda: RandomForestClassifier(12, random_state=0),
    "random forest depth 5": lambda: RandomForestClassifier(12, max_depth=5, random_state=0),
    "extra trees": lambda: ExtraTreesClassifier(12, random_state=0),
    "decision tree": lambda: DecisionTreeClassifier(random_state=0),
    "extra tree": lambda: ExtraTreeClassifier(random_state=0),
}
