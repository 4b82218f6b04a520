"""Model: one door to anything that gives class probabilities.

Scores need probabilities in double precision with digits left on the losing side of a confident row. Where the
model's raw score and link are known (boosters, logistic models) the raw score is taken and the link applied here, in
float64; everything else goes through ``predict_proba``. ``Model.link`` says which, and the manifest repeats it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from fragility.arrays import Floats
from fragility.errors import ModelError
from fragility.fingerprint import fingerprint
from fragility.libraries import family_of, is_torch_module
from fragility.scores import sigmoid_probabilities, softmax_probabilities

ClassLabel: TypeAlias = str | int | bool | float
OutputKind: TypeAlias = Literal["probabilities", "logits", "binary_logit", "log_probabilities"]
SUM_TOLERANCE = 1e-4  # float32 probabilities over many classes add up to 1 only this closely
LINK_TOLERANCE = 1e-5  # a link that reproduces predict_proba this closely is the model's own


@dataclass(frozen=True)
class Link:
    """How probabilities are made: a name for the manifest, and the function (estimator, rows) -> (n, C)."""

    name: str
    apply: Callable[[Any, Any], Floats]


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted classifier with declared classes.

    ``estimator`` is what the user gave; ``transformer`` its fitted preprocessing (or None) and ``head`` the final
    estimator, which sees the transformed matrix.
    """

    estimator: Any
    transformer: Any
    head: Any
    classes: tuple[ClassLabel, ...]
    head_link: Link

    @classmethod
    def wrap(
        cls,
        model: Any,
        *,
        classes: Sequence[ClassLabel] | None = None,
        output: OutputKind | None = None,
    ) -> Model:
        """Return ``model`` behind this door.

        model: an estimator with ``predict_proba``, a fitted Pipeline, an XGBoost or LightGBM booster, a
            ``torch.nn.Module`` (with ``classes`` and ``output``), or a function rows -> (n, C) probabilities
            (with ``classes``).
        classes: the labels in the order of the probability columns, where the model does not know them, or names
            to show in place of a booster's 0, 1, ...
        output: what a torch module or function returns; ``probabilities`` for functions unless declared.
        """
        if isinstance(model, Model):
            return model
        transformer, head = _split_pipeline(model)
        _check_gives_probabilities(head)
        labels = _classes_of(head, classes)
        link = _link_of(head, output)
        if len(labels) < 2:
            raise ModelError(
                f"a classifier with at least 2 classes was expected, this one knows {len(labels)}: {labels!r}; "
                "a prediction without an alternative cannot lose its support"
            )
        if len(set(labels)) != len(labels):
            raise ModelError(f"class labels must be distinct, got {labels!r}")
        return cls(estimator=model, transformer=transformer, head=head, classes=labels, head_link=link)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that determines the predictions, class labels included."""
        return fingerprint([self.estimator, [_plain(label) for label in self.classes]])

    @property
    def link(self) -> str:
        return self.head_link.name

    @property
    def kind(self) -> str:
        """The model's type in words, e.g. ``Pipeline(ColumnTransformer -> LGBMClassifier)``."""
        head = _type_name(self.head)
        if self.transformer is None:
            return head
        inner = getattr(self.transformer, "steps", [("", self.transformer)])
        return f"Pipeline({' -> '.join([*(_type_name(step) for _, step in inner), head])})"

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the raw columns the model was fitted on, or None if it was fitted on a bare array."""
        return _feature_names(self.estimator)

    @property
    def n_columns(self) -> int | None:
        """Number of raw columns the model was fitted on, where it knows."""
        count = getattr(self.estimator, "n_features_in_", None)
        if family_of(self.estimator).startswith("catboost."):
            count = len(self.estimator.feature_names_) or None  # n_features_in_ is 0 after loading from a file
        if count is None and self.columns is not None:
            count = len(self.columns)
        return None if count is None else int(count)

    def probabilities(self, rows: Any) -> Floats:
        """Return (n, C) probabilities for raw rows, through the model's own preprocessing."""
        if self.transformer is not None:
            rows = self.transformer.transform(rows)
        return self.head_probabilities(rows)

    def head_probabilities(self, matrix: Any) -> Floats:
        """Return (n, C) probabilities of the final estimator for rows of its own input."""
        return _checked_probabilities(self.head_link.apply(self.head, matrix), len_of(matrix), self.classes)

    def confirmed(self, matrix: Any) -> Model:
        """Return this model, with the link dropped if it does not reproduce ``predict_proba`` on ``matrix``."""
        if self.head_link.name == PREDICT_PROBA.name or not hasattr(self.head, "predict_proba"):
            return self
        own = _checked_probabilities(PREDICT_PROBA.apply(self.head, matrix), len_of(matrix), self.classes)
        try:
            linked = self.head_probabilities(matrix)
            gap = float(np.abs(own - linked).max(initial=0.0))
        except Exception:  # an unusual setting of a known model: its own probabilities are the authority
            gap = np.inf
        if gap <= LINK_TOLERANCE:
            return self
        warnings.warn(
            f"{self.kind}: {self.head_link.name} differs from predict_proba by {gap:.3g}; using predict_proba",
            stacklevel=3,
        )
        return replace(self, head_link=PREDICT_PROBA)


def len_of(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _type_name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__name__)


def _split_pipeline(model: Any) -> tuple[Any, Any]:
    """Return (fitted preprocessing or None, final estimator)."""
    steps = getattr(model, "steps", None)
    if steps is None or not hasattr(model, "predict"):
        return None, model
    before = [step for _, step in steps[:-1] if step is not None and step != "passthrough"]
    head = steps[-1][1]
    return (model[:-1] if before else None), head


def _feature_names(estimator: Any) -> tuple[str, ...] | None:
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        names = _booster_names(estimator)
    return None if names is None else tuple(str(name) for name in names)


def _booster_names(estimator: Any) -> Sequence[str] | None:
    family = family_of(estimator)
    if family == "xgboost.Booster":
        return estimator.feature_names  # type: ignore[no-any-return]
    if family == "lightgbm.Booster":
        return estimator.feature_name()  # type: ignore[no-any-return]
    if family.startswith("catboost.") and estimator.feature_names_:
        names = list(estimator.feature_names_)
        # CatBoost names the columns of a bare array "0", "1", ...; those are positions, not names.
        return None if names == [str(i) for i in range(len(names))] else names
    return None


def _classes_of(head: Any, declared: Sequence[ClassLabel] | None) -> tuple[ClassLabel, ...]:
    known = getattr(head, "classes_", None)
    if known is None or len(known) == 0:
        known = _booster_classes(head)
    if declared is None:
        if known is None:
            raise ModelError(
                f"{_type_name(head)} does not say which classes its probabilities stand for; "
                "fit it first, or declare them in column order with classes=[...]"
            )
        if any(isinstance(part, (list, np.ndarray)) for part in known):
            raise ModelError(f"{_type_name(head)} has several outputs; audit one output at a time")
        return tuple(_plain(label) for label in known)
    if known is not None and len(known) != len(declared):
        raise ModelError(f"the model has {len(known)} classes, but classes names {len(declared)}: {list(declared)!r}")
    return tuple(_plain(label) for label in declared)


def _booster_classes(head: Any) -> list[int] | None:
    family = family_of(head)
    if family == "xgboost.Booster":
        n = int(_xgboost_objective(head)[1])
        return list(range(max(n, 2)))
    if family == "lightgbm.Booster":
        return list(range(max(head.num_model_per_iteration(), 2)))
    return None


def _predict_proba(estimator: Any, rows: Any) -> Floats:
    return np.asarray(estimator.predict_proba(rows), dtype=np.float64)


PREDICT_PROBA = Link("predict_proba", _predict_proba)


def _has_probabilities(head: Any) -> bool:
    return hasattr(head, "predict_proba") or family_of(head) in ("xgboost.Booster", "lightgbm.Booster")


def _check_gives_probabilities(head: Any) -> None:
    if not _has_probabilities(head) and not callable(head):
        raise ModelError(
            f"{_type_name(head)} has no predict_proba; a classifier with class probabilities is needed "
            "(for SVC: probability=True, or wrap it in CalibratedClassifierCV)"
        )


def _link_of(head: Any, output: OutputKind | None) -> Link:
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
        raise ModelError(
            f"declare what {type(module).__name__} returns with output='logits', 'binary_logit', "
            "'probabilities' or 'log_probabilities'; it is never guessed from the values"
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


def _xgboost_objective(booster: Any) -> tuple[str, int]:
    """Return (objective, number of classes; 0 for binary)."""
    import json

    learner = json.loads(booster.save_config())["learner"]
    return learner["objective"]["name"], int(learner["learner_model_param"]["num_class"])


_XGBOOST_LINKED = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")


def _xgboost_classifier(head: Any) -> Link | None:
    if _xgboost_objective(head.get_booster())[0] not in _XGBOOST_LINKED:
        return None
    return _named(lambda estimator, rows: estimator.predict(rows, output_margin=True))


def _xgboost_booster(head: Any) -> Link | None:
    objective, _ = _xgboost_objective(head)
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


def _checked_probabilities(p: Floats, n: int, classes: tuple[ClassLabel, ...]) -> Floats:
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
            f"with sum {sums[i]:.6g}; if these are logits, declare output='logits'"
        )
    return p
