"""Wrappers: which fitted estimators scikit-learn's meta-estimators hold.

A search or a frozen estimator hands its rows on, and the estimator inside it answers: ``look_through`` returns that
one. Calibrators, ensembles and votes combine the answers of several: ``members`` returns those.

Only fitted attributes are read. The ``estimator`` that a user gave is a template: scikit-learn trains clones of it, and
CatBoost has ``classes_`` before it is fitted.
"""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

from sklearn.model_selection._search import BaseSearchCV

from fragility.errors import ModelError
from fragility.libraries import family_of

SELECTORS = ("sklearn.RFE", "sklearn.RFECV")


def look_through(model: Any) -> Any:
    """Return the estimator that answers for ``model``: the fitted one within searches and frozen estimators."""
    while (inner := answers_for(model)) is not None:
        model = inner
    if _is_search(model):
        name = type(model).__name__
        if hasattr(model, "cv_results_"):
            raise ModelError(f"{name} was fitted with refit=False, so it holds no fitted model; fit it with refit=True")
        raise ModelError(f"{name} was not fitted; fit it first, and the model that it finds is audited")
    return model


def answers_for(model: Any) -> Any:
    """Return the fitted estimator to which ``model`` only hands its rows on; None if it answers itself."""
    if family_of(model) == "sklearn.FrozenEstimator":
        return model.estimator
    if family_of(model) == "fragility.HardenedClassifier":
        return getattr(model, "estimator_", None)
    return getattr(model, "best_estimator_", None) if _is_search(model) else None


def _is_search(model: Any) -> bool:
    """Whether a search answers as scikit-learn's do; one with a ``predict_proba`` of its own answers itself."""
    return isinstance(model, BaseSearchCV) and all(
        getattr_static(type(model), name) is getattr_static(BaseSearchCV, name) for name in ("predict", "predict_proba")
    )


def is_fitted(classifier: Any) -> bool:
    """Whether a classifier knows its classes; CatBoost has an empty list of them before it is fitted."""
    classes = getattr(classifier, "classes_", None)
    return classes is not None and len(classes) > 0


def members(estimator: Any) -> list[tuple[Any, list[int] | None]]:
    """Return the fitted estimators whose answers ``estimator`` combines, and the columns that each one gets.

    None stands for all columns. A forest's own trees are left out: nothing is asked of them one by one.
    """
    if isinstance(calibrated := getattr(estimator, "calibrated_classifiers_", None), list):
        return [(each.estimator, None) for each in calibrated]
    if isinstance(several := getattr(estimator, "estimators_", None), (list, tuple)):
        if not several or hasattr(several[0], "tree_"):
            return []
        columns = getattr(estimator, "estimators_features_", [None] * len(several))
        return [(one, None if own is None else list(own)) for one, own in zip(several, columns, strict=True)]
    inner = getattr(estimator, "estimator_", None)
    if inner is None:
        return []
    selected = family_of(estimator) in SELECTORS
    return [(inner, estimator.get_support(indices=True).tolist() if selected else None)]
