"""Links: how a model's output becomes probabilities in double precision.

Scores need digits left on the losing side of a confident row. Where the model's raw score and link are known (boosters,
logistic models) the raw score is taken and the link applied here, in float64; everything else goes through
``predict_proba``. ``Model.link`` says which, and the manifest repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from sklearn.base import is_regressor

from fragility.arrays import Floats
from fragility.errors import PYTHON_OBJECT, Advice, ModelError
from fragility.libraries import family_of, is_torch_module
from fragility.models.decision import ClassLabel
from fragility.scores import sigmoid_probabilities, softmax_probabilities

OutputKind: TypeAlias = Literal["probabilities", "logits", "binary_logit", "log_probabilities"]
SUM_TOLERANCE = 1e-4  # float32 probabilities over many classes add up to 1 only this closely
LINK_TOLERANCE = 1e-5  # a link that reproduces predict_proba this closely is the model's own


@dataclass(frozen=True)
class Link:
    """How probabilities are made: a name for the manifest, and the function (estimator, rows) -> (n, C)."""

    name: str
    apply: Callable[[Any, Any], Floats]


def _predict_proba(estimator: Any, rows: Any) -> Floats:
    return np.asarray(estimator.predict_proba(rows), dtype=np.float64)


PREDICT_PROBA = Link("predict_proba", _predict_proba)


def type_name(value: Any) -> str:
    """Return the name of a function or class, or of a value's class."""
    return str(getattr(value, "__qualname__", type(value).__name__))


def _has_probabilities(head: Any) -> bool:
    return hasattr(head, "predict_proba") or family_of(head) in ("xgboost.Booster", "lightgbm.Booster")


def check_gives_probabilities(head: Any) -> None:
    if not _has_probabilities(head) and not callable(head):
        raise ModelError(f"{type_name(head)} {_lack_of_probabilities(head)}")


def _lack_of_probabilities(head: Any) -> str:
    """Say why an estimator has no probabilities, and what helps."""
    if hasattr(head, "__sklearn_tags__") and is_regressor(head):
        return "is a regressor; a classifier with class probabilities is needed"
    if getattr(head, "voting", None) == "hard":
        return "counts the votes of its members and has no predict_proba; fit it with voting='soft'"
    if hasattr(head, "decision_function") and hasattr(head, "fit"):
        return "has no predict_proba; fit it within CalibratedClassifierCV, which turns its scores into probabilities"
    return "has no predict_proba; a classifier with class probabilities is needed"


def link_of(head: Any, output: OutputKind | None) -> Link:
    if is_torch_module(head):
        return _torch_link(head, output)
    if not _has_probabilities(head):
        return _callable_link(output)
    make = _KNOWN_LINKS.get(family_of(head))
    return (make(head) if make is not None else None) or PREDICT_PROBA


def _callable_link(output: OutputKind | None) -> Link:
    convert = _converter(output or "probabilities")
    return Link(f"{output or 'probabilities'} of a function", lambda f, rows: convert(f(rows)))


def _as_probabilities(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _binary_logit(values: Any) -> Floats:
    return sigmoid_probabilities(np.asarray(values, dtype=np.float64).reshape(-1))


_OUTPUTS: dict[str, Callable[[Any], Floats]] = {
    "probabilities": _as_probabilities,
    "logits": softmax_probabilities,
    "binary_logit": _binary_logit,
    "log_probabilities": lambda values: np.exp(np.asarray(values, dtype=np.float64)),
}


def _converter(output: str) -> Callable[[Any], Floats]:
    if output not in _OUTPUTS:
        raise ModelError(f"output must be one of {', '.join(_OUTPUTS)}, got {output!r}")
    return _OUTPUTS[output]


def _torch_link(module: Any, output: OutputKind | None) -> Link:
    if output is None:
        name = type(module).__name__
        kinds = "'logits', 'binary_logit', 'probabilities' or 'log_probabilities'"
        raise ModelError(
            Advice(
                f"declare what {name} returns with output={kinds}",
                f"wrap it in Python with Model.wrap, which declares what {name} returns ({kinds}), and {PYTHON_OBJECT}",
            ),
            "; it is never guessed from the values",
        )
    convert = _converter(output)
    return Link(f"{output} of a torch module, link in float64", lambda m, rows: convert(_torch_forward(m, rows)))


def _torch_forward(module: Any, rows: Any) -> Any:
    import torch

    parameter = next(iter(module.parameters()), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None else torch.float32
    was_training = module.training
    module.eval()  # dropout and batch statistics would make the certificate random
    try:
        with torch.inference_mode():
            tensor = torch.as_tensor(np.asarray(rows, dtype=np.float64)).to(device=device, dtype=dtype)
            return module(tensor).double().cpu().numpy()
    finally:
        module.train(was_training)


def _sigmoid_or_softmax(raw: Any) -> Floats:
    scores = np.asarray(raw, dtype=np.float64)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    return sigmoid_probabilities(scores) if scores.ndim == 1 else softmax_probabilities(scores)


def _named(raw: Callable[[Any, Any], Any]) -> Link:
    return Link("raw score, link applied in float64", lambda estimator, rows: _sigmoid_or_softmax(raw(estimator, rows)))


def _decision_function(_: Any) -> Link:
    return _named(lambda estimator, rows: estimator.decision_function(rows))


def _gradient_boosting(head: Any) -> Link | None:
    return _decision_function(head) if getattr(head, "loss", "log_loss") == "log_loss" else None


def _logistic_regression(head: Any) -> Link | None:
    # liblinear fits many classes one against the rest and normalises: no softmax.
    ovr = len(head.classes_) > 2 and (head.solver == "liblinear" or getattr(head, "multi_class", "") == "ovr")
    return None if ovr else _decision_function(head)


def _sgd(head: Any) -> Link | None:
    return _decision_function(head) if head.loss == "log_loss" and len(head.classes_) == 2 else None


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda h: h,
    "relu": lambda h: np.maximum(h, 0.0),
    "tanh": np.tanh,
    "logistic": lambda h: sigmoid_probabilities(h)[..., 1],
}


def _mlp(head: Any) -> Link | None:
    # Its predict_proba is 1 - p for one class of two; the logits keep the digits of a confident row.
    if head.out_activation_ not in ("logistic", "softmax") or np.ndim(head.classes_[0]) > 0:
        return None
    if head.out_activation_ == "logistic" and len(head.classes_) != 2:
        return None
    return _named(_mlp_logits)


def _mlp_logits(estimator: Any, rows: Any) -> Floats:
    h = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    last = len(estimator.coefs_) - 1
    for i, (weights, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_, strict=True)):
        h = np.asarray(h @ weights) + bias
        if i < last:
            h = _ACTIVATIONS[estimator.activation](h)
    return np.asarray(h, dtype=np.float64)


def _residual_mlp(_: Any) -> Link:
    return Link(
        "raw score, link applied in float64",
        lambda estimator, rows: softmax_probabilities(estimator.decision_logits(rows)),
    )


def xgboost_objective(booster: Any) -> tuple[str, int]:
    """Return (objective, number of classes; 0 for binary)."""
    learner = json.loads(booster.save_config())["learner"]
    return learner["objective"]["name"], int(learner["learner_model_param"]["num_class"])


_XGBOOST_LINKED = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")


def _xgboost_classifier(head: Any) -> Link | None:
    if xgboost_objective(head.get_booster())[0] not in _XGBOOST_LINKED:
        return None
    return _named(lambda estimator, rows: estimator.predict(rows, output_margin=True))


def _xgboost_booster(head: Any) -> Link | None:
    objective, _ = xgboost_objective(head)
    if objective not in _XGBOOST_LINKED:
        raise ModelError(
            f"an XGBoost booster with objective binary:logistic or multi:softprob was expected, got {objective}; "
            "wrap its probabilities in a function and declare the classes"
        )
    return _named(_xgboost_booster_margin)


def _xgboost_booster_margin(booster: Any, rows: Any) -> Any:
    import xgboost

    names = booster.feature_names if not hasattr(rows, "columns") else None
    matrix = xgboost.DMatrix(rows, feature_names=names, enable_categorical=True)
    best = booster.attr("best_iteration")
    last = int(best) + 1 if best is not None else 0
    return booster.predict(matrix, output_margin=True, iteration_range=(0, last))


def _lightgbm_scale(text: str) -> float | None:
    """Return the factor of the binary sigmoid, 1 for softmax, None for any other objective."""
    line = next((part for part in text.splitlines() if part.startswith("objective=")), "")
    words = line.removeprefix("objective=").split()
    if not words:
        return None
    if words[0] == "binary":
        return float(next((w.split(":")[1] for w in words if w.startswith("sigmoid:")), 1.0))
    return 1.0 if words[0] == "multiclass" else None


def _lightgbm_classifier(head: Any) -> Link | None:
    scale = _lightgbm_scale(head.booster_.model_to_string(num_iteration=1))
    if scale is None:
        return None
    return _named(lambda estimator, rows: _scaled(estimator.predict_proba(rows, raw_score=True), scale))


def _lightgbm_booster(head: Any) -> Link | None:
    scale = _lightgbm_scale(head.model_to_string(num_iteration=1))
    if scale is None:
        raise ModelError(
            "a LightGBM booster with objective binary or multiclass was expected; "
            "wrap its probabilities in a function and declare the classes"
        )
    return _named(lambda booster, rows: _scaled(booster.predict(rows, raw_score=True), scale))


def _scaled(raw: Any, scale: float) -> Floats:
    scores = np.asarray(raw, dtype=np.float64)
    return scores if scale == 1.0 else scores * scale


def _catboost(head: Any) -> Link | None:
    loss = str(head.get_all_params().get("loss_function", "")).split(":")[0]
    if loss not in ("Logloss", "CrossEntropy", "MultiClass"):
        return None
    return _named(lambda estimator, rows: estimator.predict(rows, prediction_type="RawFormulaVal"))


_KNOWN_LINKS: dict[str, Callable[[Any], Link | None]] = {
    "sklearn.LogisticRegression": _logistic_regression,
    "sklearn.LogisticRegressionCV": _logistic_regression,
    "sklearn.LinearDiscriminantAnalysis": _decision_function,
    "sklearn.SGDClassifier": _sgd,
    "sklearn.MLPClassifier": _mlp,
    "sklearn.GradientBoostingClassifier": _gradient_boosting,
    "sklearn.HistGradientBoostingClassifier": _gradient_boosting,
    "xgboost.XGBClassifier": _xgboost_classifier,
    "xgboost.XGBRFClassifier": _xgboost_classifier,
    "xgboost.Booster": _xgboost_booster,
    "lightgbm.LGBMClassifier": _lightgbm_classifier,
    "lightgbm.Booster": _lightgbm_booster,
    "catboost.CatBoostClassifier": _catboost,
    "fragility.ResMLPClassifier": _residual_mlp,
}


def checked_probabilities(p: Floats, n: int, classes: tuple[ClassLabel, ...]) -> Floats:
    """Return ``p`` if it is a probability for each class of each row; say which row is not."""
    if p.ndim != 2 or p.shape != (n, len(classes)):
        raise ModelError(
            f"the model's probabilities must have shape ({n}, {len(classes)}): one row a prediction, one column for "
            f"each of the classes {list(classes)!r}; got shape {p.shape}"
        )
    sums = p.sum(axis=1)
    bad = ~(np.isfinite(p).all(axis=1) & (p >= 0).all(axis=1) & (np.abs(sums - 1.0) <= SUM_TOLERANCE))
    if bad.any():
        i = int(np.argmax(bad))
        raise ModelError(
            f"the model's output is not a probability in {int(bad.sum())} of {n} rows: values must lie in [0, 1] and "
            f"add up to 1; the first such row (position {i} of the batch) is {np.array2string(p[i], precision=6)} "
            f"with sum {sums[i]:.6g}; if these are logits, ",
            Advice(
                "declare output='logits'",
                f"write a function that turns them into probabilities and {PYTHON_OBJECT}",
            ),
        )
    return p
