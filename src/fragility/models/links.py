"""Links: how a model's output becomes probabilities in double precision.

Scores need digits left on the losing side of a confident row. Where the model's raw score and link are known (boosters,
logistic models) the raw score is taken and the link applied here, in float64; everything else goes through
``predict_proba``. The manifest repeats ``Link.describe``.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from sklearn.base import is_regressor

from fragility.base.arrays import Floats
from fragility.base.errors import PYTHON_OBJECT, Advice, ModelError
from fragility.base.libraries import family_of, is_torch_module
from fragility.models.decision import ClassLabel
from fragility.scores import sigmoid_probabilities, softmax_probabilities

OutputKind: TypeAlias = Literal["probabilities", "logits", "binary_logit", "log_probabilities"]
SUM_TOLERANCE = 1e-4  # float32 probabilities over many classes add up to 1 only this closely
LINK_TOLERANCE = 1e-5  # a link that reproduces predict_proba this closely is the model's own
XGBOOST_LINKED = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")
EXPLAINABLE = ("interpret.ExplainableBoostingClassifier", "interpret.DPExplainableBoostingClassifier")
CATBOOST_LINKED = ("Logloss", "CrossEntropy", "MultiClass")


class Link(enum.Enum):
    """Where probabilities come from; the value is the manifest's wording, in which a declared output is filled in."""

    PREDICT_PROBA = "predict_proba"
    RAW_SCORE = "raw score, link applied in float64"
    FUNCTION = "{output} of a function"
    TORCH_MODULE = "{output} of a torch module, link in float64"
    ONNX_OUTPUT = "{output} of an ONNX file, link in float64"

    def describe(self, output: OutputKind | None) -> str:
        return self.value.format(output=output)


def find_link(head: Any, output: OutputKind | None) -> tuple[Link, OutputKind | None]:
    """Return the link of a final estimator, and what it outputs where that must be declared."""
    torch_module = is_torch_module(head)
    if output is not None and family_of(head) == "fragility.OnnxClassifier":
        if head.raw_score is not None and output != "probabilities":
            raise ModelError(
                f"the ONNX file itself turns its scores into probabilities, so it does not return {output}"
            )
        _check_output_kind(output)
        return (Link.ONNX_OUTPUT, output) if head.raw_score is None else (Link.RAW_SCORE, None)
    if not torch_module and _has_probabilities(head):
        return (Link.PREDICT_PROBA if raw_score_of(head) is None else Link.RAW_SCORE), None
    if output is None and (torch_module or family_of(head) == "fragility.ExportedProgram"):
        name, kinds = type(head).__name__, "'logits', 'binary_logit', 'probabilities' or 'log_probabilities'"
        raise ModelError(
            Advice(
                f"declare what {name} returns with output={kinds}",
                f"declare what {name} returns with --returns {kinds.replace(chr(39), '')}",
            ),
            "; it is never guessed from the values",
        )
    output = output or "probabilities"
    _check_output_kind(output)
    return (Link.TORCH_MODULE if torch_module else Link.FUNCTION), output


def _check_output_kind(output: str) -> None:
    if output not in _FROM_OUTPUT:
        raise ModelError(f"output must be one of {', '.join(_FROM_OUTPUT)}, got {output!r}")


def apply_link(link: Link, head: Any, output: OutputKind | None) -> Callable[[Any], Floats]:
    """Return the function from rows to probabilities (n, C)."""
    if link is Link.PREDICT_PROBA:
        return lambda rows: np.asarray(head.predict_proba(rows), dtype=np.float64)
    if link is Link.RAW_SCORE:
        raw_score = raw_score_of(head)
        assert raw_score is not None
        return lambda rows: _sigmoid_or_softmax(raw_score(rows))
    convert = _FROM_OUTPUT[output or "probabilities"]
    if link is Link.ONNX_OUTPUT:
        ask = head.ask_output
    else:
        ask = head if link is Link.FUNCTION else partial(_ask_torch_module, head)
    return lambda rows: convert(ask(rows))


_FROM_OUTPUT: dict[str, Callable[[Any], Floats]] = {
    "probabilities": lambda values: np.asarray(values, dtype=np.float64),
    "logits": softmax_probabilities,
    "binary_logit": lambda values: sigmoid_probabilities(np.asarray(values, dtype=np.float64).reshape(-1)),
    "log_probabilities": lambda values: np.exp(np.asarray(values, dtype=np.float64)),
}


def _sigmoid_or_softmax(raw: Any) -> Floats:
    scores = np.asarray(raw, dtype=np.float64)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    return sigmoid_probabilities(scores) if scores.ndim == 1 else softmax_probabilities(scores)


def _ask_torch_module(module: Any, rows: Any) -> Any:
    import torch

    like = next(iter(module.parameters()), torch.zeros(0, dtype=torch.float32, device="cpu"))
    was_training = module.training
    module.eval()  # dropout and batch statistics would make the certificate random
    try:
        with torch.inference_mode():
            tensor = torch.as_tensor(np.asarray(rows, dtype=np.float64)).to(device=like.device, dtype=like.dtype)
            return module(tensor).double().cpu().numpy()
    finally:
        module.train(was_training)


def type_name(value: Any) -> str:
    """Return the name of a function or class, or of a value's class."""
    return str(getattr(value, "__qualname__", type(value).__name__))


def _has_probabilities(head: Any) -> bool:
    return hasattr(head, "predict_proba") or family_of(head) in ("xgboost.Booster", "lightgbm.Booster")


def check_gives_probabilities(head: Any) -> None:
    if _has_probabilities(head) or callable(head):
        return
    if hasattr(head, "__sklearn_tags__") and is_regressor(head):
        reason = "is a regressor; a classifier with class probabilities is needed"
    elif getattr(head, "voting", None) == "hard":
        reason = "counts the votes of its members and has no predict_proba; fit it with voting='soft'"
    elif hasattr(head, "decision_function") and hasattr(head, "fit"):
        reason = "has no predict_proba; fit it within CalibratedClassifierCV, which turns its scores into probabilities"
    else:
        reason = "has no predict_proba; a classifier with class probabilities is needed"
    raise ModelError(f"{type_name(head)} {reason}")


# --- raw scores -------------------------------------------------------------------------------------------------


def raw_score_of(head: Any) -> Callable[[Any], Any] | None:
    """Return the function from rows to raw scores whose sigmoid or softmax the model predicts; None: not known."""
    family = family_of(head)
    if family in ("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV"):
        # liblinear fits many classes one against the rest and normalises: no softmax.
        one_vs_rest = head.solver == "liblinear" or getattr(head, "multi_class", "") == "ovr"
        linked = len(head.classes_) == 2 or not one_vs_rest
    elif family == "sklearn.SGDClassifier":
        linked = head.loss == "log_loss" and len(head.classes_) == 2
    elif family in ("sklearn.GradientBoostingClassifier", "sklearn.HistGradientBoostingClassifier"):
        linked = getattr(head, "loss", "log_loss") == "log_loss"
    elif family == "sklearn.MLPClassifier":
        # Its predict_proba is 1 - p for one class of two; the logits keep the digits of a confident row.
        one_label = np.ndim(head.classes_[0]) == 0
        binary = head.out_activation_ == "logistic" and len(head.classes_) == 2
        return partial(_mlp_logits, head) if one_label and (binary or head.out_activation_ == "softmax") else None
    elif family in EXPLAINABLE:
        linked = head.link_ in ("logit", "mlogit")
    elif family == "fragility.TreeliteClassifier":
        return head.raw_scores if head.linked else None
    elif family == "fragility.ResMLPClassifier":
        return head.decision_logits  # type: ignore[no-any-return]
    elif family == "fragility.OnnxClassifier":
        return head.raw_score  # type: ignore[no-any-return]
    else:
        linked = family == "sklearn.LinearDiscriminantAnalysis"
    return head.decision_function if linked else _booster_score_of(head, family)


def _booster_score_of(head: Any, family: str) -> Callable[[Any], Any] | None:
    """Return the raw score of XGBoost's, LightGBM's and CatBoost's models."""
    if family in ("xgboost.XGBClassifier", "xgboost.XGBRFClassifier"):
        linked = xgboost_objective(head.get_booster())[0] in XGBOOST_LINKED
        return partial(head.predict, output_margin=True) if linked else None
    if family == "xgboost.Booster":
        objective, _ = xgboost_objective(head)
        if objective not in XGBOOST_LINKED:
            raise ModelError(
                f"an XGBoost booster with objective binary:logistic or multi:softprob was expected, got {objective}; "
                "wrap its probabilities in a function and declare the classes"
            )
        return partial(_xgboost_margin, head)
    if family in ("lightgbm.LGBMClassifier", "lightgbm.Booster"):
        bare = family == "lightgbm.Booster"
        scale = _lightgbm_scale(head if bare else head.booster_)
        if scale is None and bare:
            raise ModelError(
                "a LightGBM booster with objective binary or multiclass was expected; "
                "wrap its probabilities in a function and declare the classes"
            )
        ask = partial(head.predict if bare else head.predict_proba, raw_score=True)
        # Multiplying by 1.0 changes no bit.
        return None if scale is None else lambda rows: np.asarray(ask(rows), dtype=np.float64) * scale
    if family == "catboost.CatBoostClassifier":
        linked = str(head.get_all_params().get("loss_function", "")).split(":")[0] in CATBOOST_LINKED
        return partial(head.predict, prediction_type="RawFormulaVal") if linked else None
    return None


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda h: h,
    "relu": lambda h: np.maximum(h, 0.0),
    "tanh": np.tanh,
    "logistic": lambda h: sigmoid_probabilities(h)[..., 1],
}


def _mlp_logits(estimator: Any, rows: Any) -> Floats:
    h = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    last = len(estimator.coefs_) - 1
    for i, (weights, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_, strict=True)):
        h = np.asarray(h @ weights) + bias
        if i < last:
            h = _ACTIVATIONS[estimator.activation](h)
    return np.asarray(h, dtype=np.float64)


def xgboost_objective(booster: Any) -> tuple[str, int]:
    """Return (objective, number of classes; 0 for binary)."""
    learner = json.loads(booster.save_config())["learner"]
    return learner["objective"]["name"], int(learner["learner_model_param"]["num_class"])


def _xgboost_margin(booster: Any, rows: Any) -> Any:
    import xgboost

    names = booster.feature_names if not hasattr(rows, "columns") else None
    matrix = xgboost.DMatrix(rows, feature_names=names, enable_categorical=True)
    best = booster.attr("best_iteration")
    last = int(best) + 1 if best is not None else 0
    return booster.predict(matrix, output_margin=True, iteration_range=(0, last))


def lightgbm_header(booster: Any, name: str) -> list[str]:
    """Return the words of one line in the header of a LightGBM model's text."""
    lines = booster.model_to_string(num_iteration=1).splitlines()
    return next((line.removeprefix(f"{name}=").split() for line in lines if line.startswith(f"{name}=")), [])


def _lightgbm_scale(booster: Any) -> float | None:
    """Return the factor of the binary sigmoid, 1 for softmax, None for any other objective."""
    name, *settings = lightgbm_header(booster, "objective") or [""]
    if name == "binary":
        return float(next((w.split(":")[1] for w in settings if w.startswith("sigmoid:")), 1.0))
    return 1.0 if name == "multiclass" else None


def check_probabilities(p: Floats, n: int, classes: tuple[ClassLabel, ...]) -> Floats:
    """Return ``p`` if it is a probability for each class of each row; say which row is not."""
    if p.ndim != 2 or p.shape != (n, len(classes)):
        raise ModelError(
            f"the model's probabilities must have shape ({n}, {len(classes)}): one row per prediction, one column for "
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
                "declare output='logits'", f"write a function that turns them into probabilities and {PYTHON_OBJECT}"
            ),
        )
    return p
