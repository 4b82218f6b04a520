"""Reading fitted ensembles: one module for each library that stores its trees in its own way.

A reader takes the estimator and returns its ``Forest``, or raises EngineError with the reason why the engine could not
evaluate it exactly: an objective whose link is unknown, trees that are not a plain sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fragility.engines.trees.forest import Forest
from fragility.engines.trees.readers import (
    catboost,
    gradient_boosting,
    hist_gradient_boosting,
    lightgbm,
    sklearn_forests,
    xgboost,
)
from fragility.engines.trees.recoding import Ensemble
from fragility.errors import EngineError
from fragility.libraries import family_of

# By the exact class: a subclass may predict otherwise, so it is not taken for its parent.
READERS: dict[str, Callable[[Any], Ensemble]] = {
    "xgboost.XGBClassifier": xgboost.read_classifier,
    "xgboost.XGBRFClassifier": xgboost.read_classifier,
    "xgboost.Booster": xgboost.read_booster,
    "lightgbm.LGBMClassifier": lightgbm.read_classifier,
    "lightgbm.Booster": lightgbm.read_booster,
    "sklearn.DecisionTreeClassifier": sklearn_forests.read_tree,
    "sklearn.ExtraTreeClassifier": sklearn_forests.read_tree,
    "sklearn.RandomForestClassifier": sklearn_forests.read_forest,
    "sklearn.ExtraTreesClassifier": sklearn_forests.read_forest,
    "sklearn.GradientBoostingClassifier": gradient_boosting.read,
    "sklearn.HistGradientBoostingClassifier": hist_gradient_boosting.read,
    "catboost.CatBoostClassifier": catboost.read,
}


def load_forest(head: Any) -> Forest:
    """Return the trees of the fitted ensemble ``head`` as flat arrays."""
    return load_ensemble(head).forest


def load_ensemble(head: Any) -> Ensemble:
    """Return the fitted ensemble ``head``; refuse with a reason what cannot be evaluated exactly."""
    reader = READERS.get(family_of(head))
    if reader is None:
        raise EngineError(f"the tree engine does not know {family_of(head)}")
    return reader(head)
