"""Wrappers: the fitted estimators inside pipelines and scikit-learn's meta-estimators.

A search or a frozen estimator only delegates to the estimator inside it, which ``look_through`` returns. Calibrators,
ensembles and votes combine the predictions of several estimators, which ``members`` returns. ``split_model`` returns
preprocessing, classifier and threshold.

Only fitted attributes are read. The ``estimator`` parameter is a template, of which scikit-learn trains clones, and
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
    """Return the fitted estimator inside searches and frozen estimators; any other model is returned unchanged."""
    while (inner := answers_for(model)) is not None:
        model = inner
    if _is_search(model):
        name = type(model).__name__
        if hasattr(model, "cv_results_"):
            raise ModelError(f"{name} was fitted with refit=False, so it has no fitted model; fit it with refit=True")
        raise ModelError(f"{name} was not fitted; fit it first, and its best estimator is audited")
    return model


def answers_for(model: Any) -> Any:
    """Return the fitted estimator to which ``model`` only delegates; None if it predicts itself."""
    if family_of(model) == "sklearn.FrozenEstimator":
        return model.estimator
    if family_of(model) == "fragility.HardenedClassifier":
        return getattr(model, "estimator_", None)
    return getattr(model, "best_estimator_", None) if _is_search(model) else None


def _is_search(model: Any) -> bool:
    """Return whether a model is a search that delegates; one that overrides ``predict_proba`` predicts itself."""
    return isinstance(model, BaseSearchCV) and all(
        getattr_static(type(model), name) is getattr_static(BaseSearchCV, name) for name in ("predict", "predict_proba")
    )


def is_fitted(classifier: Any) -> bool:
    """Return whether a classifier has classes; CatBoost has an empty list of them before it is fitted."""
    classes = getattr(classifier, "classes_", None)
    return classes is not None and len(classes) > 0


def members(estimator: Any) -> list[tuple[Any, list[int] | None]]:
    """Return the fitted estimators whose predictions ``estimator`` combines, and the columns of each.

    None means all columns. The trees of a forest are not listed.
    """
    if isinstance(calibrated := getattr(estimator, "calibrated_classifiers_", None), list):
        return [(fold.estimator, None) for fold in calibrated]
    if isinstance(several := getattr(estimator, "estimators_", None), (list, tuple)):
        if not several or hasattr(several[0], "tree_"):
            return []
        columns = getattr(estimator, "estimators_features_", [None] * len(several))
        pairs = zip(several, columns, strict=True)
        return [(member, None if subset is None else list(subset)) for member, subset in pairs]
    inner = getattr(estimator, "estimator_", None)
    if inner is None:
        return []
    selected = family_of(estimator) in SELECTORS
    return [(inner, estimator.get_support(indices=True).tolist() if selected else None)]


class ModelParts(NamedTuple):
    """The parts of a model, after unwrapping searches and frozen estimators and joining pipelines."""

    transformer: Any  # fitted preprocessing, or None
    head: Any  # the final classifier
    threshold: Any  # the threshold classifier around it, or None
    decider: Any  # the estimator whose ``predict`` labels rows of the head's input, or None


def split_model(model: Any) -> ModelParts:
    steps: list[tuple[str, Any]] = []
    threshold, before_threshold = None, 0
    while True:
        model = look_through(model)
        if isinstance(model, Pipeline):
            # Samplers such as SMOTE act in training only.
            steps += [(name, step) for name, step in model.steps[:-1] if not hasattr(step, "fit_resample")]
            model = model.steps[-1][1]
        elif is_threshold_classifier(model):
            if threshold is None:  # of an inner threshold classifier only the probabilities matter
                threshold, before_threshold = model, len(steps)
            model = getattr(model, "estimator_", model.estimator)  # it may wrap a classifier that was fitted before
        else:
            break
    decider = model if threshold is None else threshold if len(steps) == before_threshold else None
    if len({name for name, _ in steps}) < len(steps):  # pipelines within a pipeline may repeat names
        steps = [(f"{i}-{name}", step) for i, (name, step) in enumerate(steps)]
    idle = all(step is None or step == "passthrough" for _, step in steps)
    return ModelParts(None if idle else Pipeline(steps), model, threshold, decider)


def is_threshold_classifier(model: Any) -> bool:
    """Return whether a model is a classifier of scikit-learn that applies a threshold to another's probabilities."""
    bases = ((base.__module__.split(".")[0], base.__name__) for base in type(model).__mro__ if is_genuine(base))
    return any(library == "sklearn" and name in THRESHOLD_CLASSIFIERS for library, name in bases)


def read_threshold(model: Any, classes: Sequence[Any], names: Sequence[ClassLabel]) -> Decision:
    """Return the decision of a fitted threshold classifier.

    classes: its class labels; names: the labels that the model declares for them.
    """
    name = type(model).__name__
    if model.response_method == "decision_function":
        raise ModelError(
            f"{name} thresholds the decision function, but certificates are about probabilities; fit it ",
            Advice("with response_method='predict_proba'", "again so that it thresholds predict_proba"),
        )
    threshold = getattr(model, "best_threshold_", None)
    if threshold is None:
        threshold = 0.5 if model.threshold == "auto" else model.threshold
    _check_threshold(name, threshold)
    scorer = getattr(model, "_curve_scorer", None)
    positive = scorer._get_pos_label() if scorer is not None else getattr(model, "pos_label", None)
    index = len(classes) - 1 if positive is None else list(classes).index(positive)
    return Decision(names[index], float(threshold))


def own_threshold(head: Any) -> float | None:
    """Return the threshold from which CatBoost's ``predict`` returns the second of two classes; None if it is 0.5."""
    ask = getattr(head, "get_probability_threshold", None)
    if ask is None or not family_of(head).startswith("catboost.") or not head.is_fitted():
        return None
    threshold = float(ask())
    return None if threshold == 0.5 else threshold


def read_own_threshold(head: Any, names: Sequence[ClassLabel]) -> Decision | None:
    """Return the decision of a classifier with a threshold of its own; None if it predicts the most probable class."""
    threshold = own_threshold(head)
    if threshold is None or len(names) != 2:
        return None
    _check_threshold(type(head).__name__, threshold)
    return Decision(names[1], threshold)


def _check_threshold(name: str, threshold: float) -> None:
    if not SMALLEST_THRESHOLD <= threshold <= 1.0 - SMALLEST_THRESHOLD:
        raise ModelError(
            f"{name} has the threshold {threshold:g}, at which one class is predicted whatever the probabilities; "
            "such a prediction cannot lose its support"
        )
