"""Reading fitted ensembles: one module per library, since each stores its trees in its own way.

A reader takes the estimator and returns its ``Ensemble``, or raises EngineError with the reason why the engine could
not evaluate it exactly: an objective whose link is unknown, trees that are not a plain sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fragility.base.errors import EngineError
from fragility.base.libraries import family_of
from fragility.engines.trees.readers import catboost, interpret, lightgbm, onnx, sklearn, treelite, xgboost
from fragility.engines.trees.recoding import Ensemble

# By the exact class: a subclass may predict otherwise, so it is not taken for its parent.
READERS: dict[str, Callable[[Any], Ensemble]] = {
    "xgboost.XGBClassifier": xgboost.read_classifier,
    "xgboost.XGBRFClassifier": xgboost.read_classifier,
    "xgboost.Booster": xgboost.read_booster,
    "lightgbm.LGBMClassifier": lightgbm.read_classifier,
    "lightgbm.Booster": lightgbm.read_booster,
    "sklearn.DecisionTreeClassifier": sklearn.read_forest,
    "sklearn.ExtraTreeClassifier": sklearn.read_forest,
    "sklearn.RandomForestClassifier": sklearn.read_forest,
    "sklearn.ExtraTreesClassifier": sklearn.read_forest,
    "sklearn.BaggingClassifier": sklearn.read_bagging,
    "sklearn.GradientBoostingClassifier": sklearn.read_gradient_boosting,
    "sklearn.HistGradientBoostingClassifier": sklearn.read_hist_gradient_boosting,
    "catboost.CatBoostClassifier": catboost.read_classifier,
    "interpret.ExplainableBoostingClassifier": interpret.read_machine,
    "interpret.DPExplainableBoostingClassifier": interpret.read_machine,
    "fragility.OnnxClassifier": onnx.read_classifier,
    "fragility.TreeliteClassifier": treelite.read_checkpoint,
}


def read_ensemble(head: Any) -> Ensemble:
    """Return the fitted ensemble ``head``; refuse with a reason what cannot be evaluated exactly."""
    reader = READERS.get(family_of(head))
    if reader is None:
        raise EngineError(f"the tree engine does not know {family_of(head)}")
    return reader(head)
