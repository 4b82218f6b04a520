"""From a model's output to probabilities in double precision, and from probabilities to the class that is predicted.

**Links.** Scores of confident rows need precise small probabilities. If the model's raw score and link are known
(boosters, logistic models), the raw score is used and the link is applied here, in float64; all other models are asked
by ``predict_proba``. The manifest repeats ``Link.describe``.

**Decisions.** Without a declared rule the class with the largest probability is predicted. A two-class model may have a
threshold t instead: its class c is predicted if p_c >= t. This is the largest entry of z~ once c has an offset,

    z~_c - log(t / (1 - t))  >=  z~_other      if and only if      p_c >= t,

so a margin under a threshold is the plain one shifted by a constant, and a flip is a change of the decision itself.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from sklearn.base import is_regressor

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import PYTHON_OBJECT, Advice, ModelError, ProtocolError
from fragility.base.libraries import family_of, is_torch_module
from fragility.base.schemas import Must, check_fields, named, write_document
from fragility.scores import sigmoid_probabilities, softmax_probabilities

# --- decisions ------------------------------------------------------------------------------------------------

ClassLabel: TypeAlias = str | int | bool | float
SMALLEST_THRESHOLD = 1e-9  # probabilities are clipped at 1e-12: nearer to 0 or 1 no decision would ever flip

THRESHOLD = (
    f"a number between 0 and 1 (at least {SMALLEST_THRESHOLD:g} from either; otherwise one class is predicted whatever "
    "the evidence)"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A threshold of a two-class model: ``label`` is predicted if its probability is at least ``threshold``."""

    label: ClassLabel = field(metadata=named("class"))
    threshold: Annotated[float, Must(THRESHOLD, lambda t: SMALLEST_THRESHOLD <= t <= 1.0 - SMALLEST_THRESHOLD)]

    def __post_init__(self) -> None:
        check_fields(self, "a decision", ProtocolError)

    def __str__(self) -> str:
        return f"{self.label!r} where its probability is at least {self.threshold:g}"

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = write_document(self)
        return document

    @classmethod
    def read(cls, declared: Any, classes: Sequence[ClassLabel] | None = None) -> Decision | None:
        """Return a decision declared as an object, ``{"class": label, "threshold": t}``, or t for the second class."""
        if declared is None or isinstance(declared, Decision):
            return declared
        if isinstance(declared, Mapping):
            if set(declared) != {"class", "threshold"}:
                raise ProtocolError(
                    f"a decision has the entries 'class' and 'threshold', got {sorted(map(str, declared))}"
                )
            return cls(to_python(declared["class"]), _number(declared["threshold"]))
        if classes is None:
            raise ProtocolError(f"a decision must be an object with 'class' and 'threshold', got {declared!r}")
        check_two_classes(classes)
        return cls(classes[1], _number(declared))

    def offset(self, classes: Sequence[ClassLabel]) -> Floats:
        """Return what is added to the log-probabilities of ``classes``: -log(t / (1 - t)) for the threshold's class."""
        out = np.zeros(2)
        out[self.index(classes)] = math.log1p(-self.threshold) - math.log(self.threshold)
        return out

    def index(self, classes: Sequence[ClassLabel]) -> int:
        """Return the position of the threshold's class; True is not the class 1."""
        check_two_classes(classes)
        same = [c == self.label and isinstance(c, bool) == isinstance(self.label, bool) for c in classes]
        if not any(same):
            raise ProtocolError(f"the decision names the class {self.label!r}, but the classes are {list(classes)!r}")
        return same.index(True)


def check_two_classes(classes: Sequence[ClassLabel]) -> None:
    if len(classes) != 2:
        raise ProtocolError(
            f"a decision threshold needs a model with two classes, this one has {len(classes)}; leave the decision out"
        )


def to_python(value: Any) -> Any:
    """Return a numpy scalar as a Python value, and any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, (np.integer, np.floating)) else value


def label_indices(labels: Any, classes: Sequence[Any], n: int) -> Integers | None:
    """Return (n,) positions of predicted labels among ``classes``; None if they are not one class label per row.

    Shapes and types may differ from those of the classes (CatBoost returns a column, and booleans as texts).
    """
    values = np.asarray(labels)
    if values.shape not in ((n,), (n, 1)):
        return None
    codes, distinct = pd.factorize(values.reshape(n))
    by_value = {to_python(c): i for i, c in enumerate(classes)}
    by_text = {str(c): i for c, i in by_value.items()}
    places = [by_value.get(value, by_text.get(str(value))) for value in map(to_python, distinct)]
    if None in places or (len(codes) and codes.min() < 0):
        return None
    return np.array(places, dtype=np.int64)[codes]


# --- links ----------------------------------------------------------------------------------------------------

OutputKind: TypeAlias = Literal["probabilities", "logits", "binary_logit", "log_probabilities"]
SUM_TOLERANCE = 1e-4  # float32 probabilities over many classes add up to 1 only this closely
LINK_TOLERANCE = 1e-5  # a link is accepted if it reproduces predict_proba this closely
XGBOOST_LINKED = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")
EXPLAINABLE = ("interpret.ExplainableBoostingClassifier", "interpret.DPExplainableBoostingClassifier")
CATBOOST_LINKED = ("Logloss", "CrossEntropy", "MultiClass")


class Link(enum.Enum):
    """How probabilities are computed; the value is the manifest's wording, with the declared output as ``output``."""

    PREDICT_PROBA = "predict_proba"
    RAW_SCORE = "raw score, link applied in float64"
    FUNCTION = "{output} of a function"
    TORCH_MODULE = "{output} of a torch module, link in float64"
    ONNX_OUTPUT = "{output} of an ONNX file, link in float64"

    def describe(self, output: OutputKind | None) -> str:
        return self.value.format(output=output)


def find_link(head: Any, output: OutputKind | None) -> tuple[Link, OutputKind | None]:
    """Return the link of a final estimator, and its output if that must be declared."""
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
    """Return the function from rows to raw scores, whose sigmoid or softmax the model predicts; None if unknown."""
    family = family_of(head)
    if family in ("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV"):
        # liblinear fits several classes one against the rest and normalises, which is not a softmax.
        one_vs_rest = head.solver == "liblinear" or getattr(head, "multi_class", "") == "ovr"
        linked = len(head.classes_) == 2 or not one_vs_rest
    elif family == "sklearn.SGDClassifier":
        linked = head.loss == "log_loss" and len(head.classes_) == 2
    elif family in ("sklearn.GradientBoostingClassifier", "sklearn.HistGradientBoostingClassifier"):
        linked = getattr(head, "loss", "log_loss") == "log_loss"
    elif family == "sklearn.MLPClassifier":
        # Its predict_proba computes 1 - p for one class of two; the logits are more precise for confident rows.
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
        # Multiplication by 1.0 is exact.
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
    """Return ``p`` if each row contains class probabilities; else raise ModelError with the first bad row."""
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
