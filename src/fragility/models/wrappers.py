"""Wrappers: which fitted estimators pipelines and scikit-learn's meta-estimators hold.

A search or a frozen estimator hands its rows on, and the estimator inside it answers: ``look_through`` returns that
one. Calibrators, ensembles and votes combine the answers of several: ``members`` returns those. ``split_model`` returns
preprocessing, classifier and threshold.

Only fitted attributes are read. The ``estimator`` that a user gave is a template: scikit-learn trains clones of it, and
CatBoost has ``classes_`` before it is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getattr_static
from typing import Any, NamedTuple

from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from fragility.base.errors import Advice, ModelError
from fragility.base.libraries import family_of, is_genuine
from fragility.models.outputs import SMALLEST_THRESHOLD, ClassLabel, Decision

THRESHOLD_CLASSIFIERS = ("FixedThresholdClassifier", "TunedThresholdClassifierCV")
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
        return [(fold.estimator, None) for fold in calibrated]
    if isinstance(several := getattr(estimator, "estimators_", None), (list, tuple)):
        if not several or hasattr(several[0], "tree_"):
            return []
        columns = getattr(estimator, "estimators_features_", [None] * len(several))
        return [(one, None if chosen is None else list(chosen)) for one, chosen in zip(several, columns, strict=True)]
    inner = getattr(estimator, "estimator_", None)
    if inner is None:
        return []
    selected = family_of(estimator) in SELECTORS
    return [(inner, estimator.get_support(indices=True).tolist() if selected else None)]


class ModelParts(NamedTuple):
    """What a model consists of, once searches and frozen estimators are looked through and pipelines are joined."""

    transformer: Any  # fitted preprocessing, or None
    head: Any  # the final classifier
    threshold: Any  # the threshold classifier around it, or None
    decider: Any  # whose ``predict`` labels the rows that ``head`` takes, or None


def split_model(model: Any) -> ModelParts:
    steps: list[tuple[str, Any]] = []
    threshold, before_threshold = None, 0
    while True:
        model = look_through(model)
        if isinstance(model, Pipeline):
            # Samplers (SMOTE and its like) work in training only; a prediction passes them by.
            steps += [(name, step) for name, step in model.steps[:-1] if not hasattr(step, "fit_resample")]
            model = model.steps[-1][1]
        elif is_threshold_classifier(model):
            if threshold is None:  # only the probabilities of an inner one are asked for
                threshold, before_threshold = model, len(steps)
            model = getattr(model, "estimator_", model.estimator)  # it may be put around a fitted classifier
        else:
            break
    decider = model if threshold is None else threshold if len(steps) == before_threshold else None
    if len({name for name, _ in steps}) < len(steps):  # pipelines within a pipeline may repeat names
        steps = [(f"{i}-{name}", step) for i, (name, step) in enumerate(steps)]
    idle = all(step is None or step == "passthrough" for _, step in steps)
    return ModelParts(None if idle else Pipeline(steps), model, threshold, decider)


def is_threshold_classifier(model: Any) -> bool:
    """True for scikit-learn's classifiers that put a threshold on another one's probabilities."""
    bases = ((base.__module__.split(".")[0], base.__name__) for base in type(model).__mro__ if is_genuine(base))
    return any(library == "sklearn" and name in THRESHOLD_CLASSIFIERS for library, name in bases)


def read_threshold(model: Any, own: Sequence[Any], shown: Sequence[ClassLabel]) -> Decision:
    """Return the rule of a fitted threshold classifier; ``shown`` are the names of its classes ``own``."""
    name = type(model).__name__
    if model.response_method == "decision_function":
        raise ModelError(
            f"{name} thresholds the decision function, and a certificate speaks of probabilities; fit it ",
            Advice("with response_method='predict_proba'", "anew so that it thresholds predict_proba"),
        )
    threshold = getattr(model, "best_threshold_", None)
    if threshold is None:
        threshold = 0.5 if model.threshold == "auto" else model.threshold
    _check_threshold(name, threshold)
    scorer = getattr(model, "_curve_scorer", None)
    positive = scorer._get_pos_label() if scorer is not None else getattr(model, "pos_label", None)
    index = len(own) - 1 if positive is None else list(own).index(positive)
    return Decision(shown[index], float(threshold))


def own_threshold(head: Any) -> float | None:
    """Return the probability from which CatBoost's ``predict`` names the second of two classes; None if it is 0.5."""
    ask = getattr(head, "get_probability_threshold", None)
    if ask is None or not family_of(head).startswith("catboost.") or not head.is_fitted():
        return None
    threshold = float(ask())
    return None if threshold == 0.5 else threshold


def read_own_threshold(head: Any, shown: Sequence[ClassLabel]) -> Decision | None:
    """Return the rule of a classifier that holds a threshold itself; None: the most probable class is predicted."""
    threshold = own_threshold(head)
    if threshold is None or len(shown) != 2:
        return None
    _check_threshold(type(head).__name__, threshold)
    return Decision(shown[1], threshold)


def _check_threshold(name: str, threshold: float) -> None:
    if not SMALLEST_THRESHOLD <= threshold <= 1.0 - SMALLEST_THRESHOLD:
        raise ModelError(
            f"{name} has the threshold {threshold:g}, at which one class is predicted whatever the probabilities; "
            "such a prediction cannot lose its support"
        )
