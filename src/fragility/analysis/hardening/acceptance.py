"""Which models can be hardened; others are refused before any training.

An estimator is trained on rows and their twins, each with its weight, so it must take sample weights. If it sets rows
aside itself, to stop early or to tune something, a row and its twin must not be on different sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sklearn.base import is_regressor
from sklearn.ensemble import VotingClassifier
from sklearn.model_selection._search import BaseSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from fragility.base.errors import ModelError
from fragility.base.libraries import family_of
from fragility.models import Model
from fragility.models.links import check_gives_probabilities, type_name

MOST_ROWS_WITHOUT_STOPPING = 10_000  # up to here scikit-learn's histogram boosting reads early_stopping="auto" as no


class ValidationParameters(NamedTuple):
    """The parameters of an estimator's ``fit`` that take validation rows."""

    rows: str
    labels: str
    weights: str | None


VALIDATION_PARAMETERS = (
    ValidationParameters("X_val", "y_val", "sample_weight_val"),
    ValidationParameters("X_validation", "y_validation", None),
)


def check_hardenable(model: Any) -> Any:
    """Return the estimator or pipeline to clone and train; refuse a model that cannot be hardened."""
    subject = model.estimator if isinstance(model, Model) else model
    subject = getattr(subject, "best_estimator_", subject)  # a finished search stands for the model that it found
    name = type_name(subject)
    if family_of(subject) in ("xgboost.Booster", "lightgbm.Booster", "catboost.CatBoost"):
        raise ModelError(
            f"{name} is a trained booster, which cannot be trained again; give the classifier it came from "
            "(XGBClassifier, LGBMClassifier, CatBoostClassifier)"
        )
    if not hasattr(subject, "fit") or not hasattr(subject, "get_params"):
        raise ModelError(
            f"hardening trains the model again, so a scikit-learn estimator or Pipeline is needed, got {name}"
        )
    head = final_estimator(subject)
    if family_of(head) == "sklearn.FrozenEstimator":
        raise ModelError("FrozenEstimator is never trained again; give the estimator inside it")
    for step_name, step in subject.steps[:-1] if isinstance(subject, Pipeline) else ():
        if hasattr(step, "fit_resample"):
            raise ModelError(
                f"the step {step_name!r} ({type_name(step)}) draws other training rows, whose twins would not be those "
                "of the rows given; resample the rows first and harden the pipeline without this step"
            )
    if isinstance(head, Pipeline):
        raise ModelError(
            "the last step of the pipeline is itself a pipeline, whose preprocessing would be fitted on degraded rows; "
            "put all steps into one pipeline"
        )
    if is_regressor(head):
        raise ModelError(f"{type_name(head)} is a regressor; hardening is for classifiers")
    for estimator in _trained_estimators(head):
        _check_takes_weighted_twins(estimator, takes_validation_rows=estimator is head)
    check_gives_probabilities(head)
    return subject


def final_estimator(model: Any) -> Any:
    """Return the last step of a pipeline, or the model itself."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def _trained_estimators(head: Any) -> Iterator[Any]:
    """Yield an estimator and those that it trains: members of a vote, the base of an ensemble."""
    yield head
    own = head.get_params(deep=False)
    inner = [own.get("estimator"), *(pair[1] for pair in own.get("estimators") or [] if isinstance(pair, tuple))]
    for estimator in inner:
        if hasattr(estimator, "fit") and hasattr(estimator, "get_params"):
            yield from _trained_estimators(estimator)


def _check_takes_weighted_twins(estimator: Any, *, takes_validation_rows: bool) -> None:
    name, own = type_name(estimator), estimator.get_params(deep=False)
    if isinstance(estimator, BaseSearchCV):
        raise ModelError(
            f"{name} was not fitted; fit it, and the model it found is hardened, or search over HardenedClassifier"
        )
    if "cv" in own:
        raise ModelError(
            f"{name} splits its training rows itself, and would judge a row by its own degraded twin; harden the "
            f"estimator inside it, and then fit {name} around the result (FrozenEstimator) on rows of its own"
        )
    if family_of(estimator) == "sklearn.FixedThresholdClassifier":
        raise ModelError(
            "FixedThresholdClassifier passes no sample weights on; harden the classifier inside it, and put the "
            "threshold around the result, in a FrozenEstimator"
        )
    passes_on = isinstance(estimator, VotingClassifier)  # to its members, which are checked themselves
    if not passes_on and not has_fit_parameter(estimator, "sample_weight"):
        raise ModelError(
            f"{name} takes no sample weights, by which rows and their degraded twins share their weight half and half; "
            "choose an estimator whose fit has sample_weight"
        )
    if takes_validation_rows and validation_parameters(estimator) is not None:
        return
    if validation_share(estimator, None) is not None or own.get("eval_fraction") is not None:
        raise ModelError(
            f"{name} sets aside validation rows for early stopping itself, and would judge a row by its own degraded "
            "twin; train it without early stopping"
        )


def validation_parameters(estimator: Any) -> ValidationParameters | None:
    """Return the parameters of ``fit`` that take validation rows; None if there are none."""
    if isinstance(estimator, MLPClassifier):
        return VALIDATION_PARAMETERS[0]  # of `training.fit_by_epochs`
    return next((each for each in VALIDATION_PARAMETERS if has_fit_parameter(estimator, each.rows)), None)


def validation_share(estimator: Any, n_rows: int | None) -> float | int | None:
    """Return the share (or number) of ``n_rows`` rows that an estimator would set aside itself; None if none.

    n_rows None: as many rows as it takes.
    """
    own = estimator.get_params(deep=False)
    share = own.get("validation_fraction")
    if not share or own.get("solver") == "lbfgs":  # nothing is set aside; that solver does not stop early
        return None
    stops = own.get("early_stopping", own.get("n_iter_no_change", "always") is not None)
    if stops == "auto":
        stops = n_rows is None or n_rows > MOST_ROWS_WITHOUT_STOPPING
    return share if stops else None
