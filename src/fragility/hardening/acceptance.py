"""Acceptance: which models can be hardened, said before any training.

An estimator is trained on rows and their twins, each with its weight. So it must take weights; and where it sets rows
aside itself, to stop in time or to tune something, a row must not be on one side and its twin on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sklearn.base import is_regressor
from sklearn.ensemble import VotingClassifier
from sklearn.model_selection._search import BaseSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from fragility.errors import ModelError
from fragility.libraries import family_of
from fragility.models import Model
from fragility.models.links import check_gives_probabilities, type_name

MOST_ROWS_WITHOUT_STOPPING = 10_000  # up to here scikit-learn's histogram boosting reads early_stopping="auto" as no


@dataclass(frozen=True, slots=True)
class ValidationDoor:
    """The parameters of an estimator's ``fit`` through which validation rows are handed to it."""

    rows: str
    labels: str
    weights: str | None


DOORS = (ValidationDoor("X_val", "y_val", "sample_weight_val"), ValidationDoor("X_validation", "y_validation", None))


def accepted(model: Any) -> Any:
    """Return the estimator or pipeline that is to be cloned and trained; refuse what cannot be hardened."""
    subject = model.estimator if isinstance(model, Model) else model
    subject = getattr(subject, "best_estimator_", subject)  # a finished search stands for what it found
    _check_trainable(subject)
    head = final_estimator(subject)
    _check_steps(subject)
    _check_head(head)
    return subject


def final_estimator(model: Any) -> Any:
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def _check_trainable(model: Any) -> None:
    name = type_name(model)
    if family_of(model) in ("xgboost.Booster", "lightgbm.Booster", "catboost.CatBoost"):
        raise ModelError(
            f"{name} is a trained booster, which cannot be trained again; give the classifier it came from "
            "(XGBClassifier, LGBMClassifier, CatBoostClassifier)"
        )
    if not hasattr(model, "fit") or not hasattr(model, "get_params"):
        raise ModelError(
            f"hardening trains the model again, so a scikit-learn estimator or Pipeline is needed, got {name}"
        )
    if family_of(final_estimator(model)) == "sklearn.FrozenEstimator":
        raise ModelError("FrozenEstimator is never trained again; give the estimator inside it")


def _check_steps(model: Any) -> None:
    steps = model.steps if isinstance(model, Pipeline) else []
    for name, step in steps[:-1]:
        if hasattr(step, "fit_resample"):
            raise ModelError(
                f"the step {name!r} ({type_name(step)}) draws other training rows, whose twins would not be those of "
                "the rows given; resample the rows first and harden the pipeline without this step"
            )


def _check_head(head: Any) -> None:
    if isinstance(head, Pipeline):
        raise ModelError(
            "the last step of the pipeline is itself a pipeline, whose preprocessing would be fitted on degraded rows; "
            "put all steps into one pipeline"
        )
    if is_regressor(head):
        raise ModelError(f"{type_name(head)} is a regressor; hardening is for classifiers")
    for estimator in _estimators_in(head):
        _check_no_own_folds(estimator)
        _check_takes_weights(estimator)
        if estimator is not head or validation_door(estimator) is None:
            _check_sets_nothing_aside(estimator)
    check_gives_probabilities(head)


def _estimators_in(head: Any) -> Iterator[Any]:
    """Yield an estimator and those that it trains: members of a vote, the base of an ensemble."""
    yield head
    own = head.get_params(deep=False)
    inner = [own.get("estimator"), *(pair[1] for pair in own.get("estimators") or [] if isinstance(pair, tuple))]
    for estimator in inner:
        if hasattr(estimator, "fit") and hasattr(estimator, "get_params"):
            yield from _estimators_in(estimator)


def _check_no_own_folds(estimator: Any) -> None:
    name = type_name(estimator)
    if isinstance(estimator, BaseSearchCV):
        raise ModelError(
            f"{name} was not fitted; fit it, and the model it found is hardened, or search over HardenedClassifier"
        )
    if "cv" in estimator.get_params(deep=False):
        raise ModelError(
            f"{name} splits its training rows itself, and would judge a row by its own degraded twin; harden the "
            f"estimator inside it, and then fit {name} around the result (FrozenEstimator) on rows of its own"
        )


def _check_takes_weights(estimator: Any) -> None:
    if family_of(estimator) == "sklearn.FixedThresholdClassifier":
        raise ModelError(
            "FixedThresholdClassifier passes no sample weights on; harden the classifier inside it, and put the "
            "threshold around the result, in a FrozenEstimator"
        )
    passes_on = isinstance(estimator, VotingClassifier)  # to its members, which are asked themselves
    if not passes_on and not has_fit_parameter(estimator, "sample_weight"):
        raise ModelError(
            f"{type_name(estimator)} takes no sample weights, by which rows and their degraded twins share their "
            "weight half and half; choose an estimator whose fit has sample_weight"
        )


def validation_door(estimator: Any) -> ValidationDoor | None:
    if isinstance(estimator, MLPClassifier):
        return DOORS[0]  # by way of `epochs`
    return next((door for door in DOORS if has_fit_parameter(estimator, door.rows)), None)


def _check_sets_nothing_aside(estimator: Any) -> None:
    if validation_share(estimator, None) is None and estimator.get_params(deep=False).get("eval_fraction") is None:
        return
    raise ModelError(
        f"{type_name(estimator)} sets aside validation rows for early stopping itself, and would judge a row by its "
        "own degraded twin; train it without early stopping"
    )


def validation_share(estimator: Any, n_rows: int | None) -> float | int | None:
    """Return the share (or number) of ``n_rows`` rows that an estimator would set aside itself; None: none.

    n_rows None: as many rows as it takes.
    """
    own = estimator.get_params(deep=False)
    share = own.get("validation_fraction")
    if not share or own.get("solver") == "lbfgs":  # nothing is set aside; that solver does not stop early
        return None
    if "early_stopping" in own:
        stops = own["early_stopping"]
        if stops == "auto":
            stops = n_rows is None or n_rows > MOST_ROWS_WITHOUT_STOPPING
    else:
        stops = own.get("n_iter_no_change", "always") is not None
    return share if stops else None
