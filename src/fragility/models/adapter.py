"""Model: one door to anything that gives class probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.pipeline import Pipeline

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, ModelError
from fragility.base.libraries import family_of, is_torch_module, library_of
from fragility.base.text import BriefRepr
from fragility.models.fingerprint import Fingerprint, fingerprint
from fragility.models.mlflow_models import ModelSignature
from fragility.models.outputs import (
    EXPLAINABLE,
    LINK_TOLERANCE,
    ClassLabel,
    Decision,
    Link,
    OutputKind,
    apply_link,
    check_gives_probabilities,
    check_probabilities,
    find_link,
    label_indices,
    to_python,
    type_name,
    xgboost_objective,
)
from fragility.models.wrappers import look_through, members, read_own_threshold, read_threshold, split_model

VOTE_AVERAGING = ("ForestClassifier", "BaggingClassifier")  # bases of scikit-learn's, also of imbalanced-learn's

# Classes whose ``predict`` is slow and, according to their code, returns the most probable class.
MOST_PROBABLE = (
    *("sklearn.RandomForestClassifier", "sklearn.ExtraTreesClassifier"),
    *("sklearn.GradientBoostingClassifier", "sklearn.HistGradientBoostingClassifier"),
    *EXPLAINABLE,
    *("lightgbm.LGBMClassifier", "xgboost.XGBClassifier", "xgboost.XGBRFClassifier"),
    *("sklearn.CalibratedClassifierCV", "sklearn.VotingClassifier", "sklearn.BaggingClassifier"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Model(BriefRepr):
    """A fitted classifier with declared classes; :meth:`Model.wrap` makes one.

    A search is represented by its ``best_estimator_``, and a frozen estimator by the one inside it. A classifier that
    only applies a threshold to another one's probabilities is represented by the inner one, with the threshold as its
    ``decision``; likewise the threshold that CatBoost's ``set_probability_threshold`` sets.

    Attributes
    ----------
    estimator : object
        The model that was passed to ``wrap``.
    transformer : object or None
        Its fitted preprocessing.
    head : object
        The final estimator, which sees the transformed matrix.
    classes : tuple
        Class labels in the order of the probability columns.
    head_link : Link
        How the final estimator's output becomes probabilities.
    output : str or None
        The declared output of a torch module or function; None for any other model.
    decider : object or None
        The estimator whose ``predict`` labels rows of the head's input; None if only ``estimator`` gives labels.
    decision : Decision or None
        The model's own threshold.
    signature : ModelSignature or None
        The columns that the model's MLflow folder declares; rows that do not follow it are refused.

    See Also
    --------
    load_model : Read a model from a file.
    """

    estimator: Any
    transformer: Any
    head: Any
    classes: tuple[ClassLabel, ...]
    head_link: Link
    output: OutputKind | None = None
    decider: Any = None
    decision: Decision | None = None
    signature: ModelSignature | None = None

    @classmethod
    def wrap(
        cls, model: Any, *, classes: Sequence[ClassLabel] | None = None, output: OutputKind | None = None
    ) -> Model:
        """Return ``model`` as a :class:`Model`.

        Parameters
        ----------
        model : object
            An estimator with ``predict_proba``, a fitted Pipeline, an XGBoost or LightGBM booster, a
            ``torch.nn.Module`` (with ``classes`` and ``output``), or a function rows -> (n, C) probabilities (with
            ``classes``).
        classes : sequence of class labels, optional
            The labels in the order of the probability columns, if the model does not store them, or names to show
            instead of a booster's 0, 1, ...
        output : str, optional
            What a torch module or function returns; ``probabilities`` for functions unless declared.

        Returns
        -------
        Model
            ``model`` itself if it is one already.

        Raises
        ------
        ModelError
            It gives no probabilities, or its classes are unknown or not distinct.

        Examples
        --------
        >>> import fragility as fg
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = fg.load_credit_g()
        >>> X = X[["duration", "age"]]
        >>> fitted = LogisticRegression().fit(X, y)
        >>> fg.Model.wrap(fitted).kind
        'LogisticRegression'
        >>> fg.Model.wrap(lambda rows: fitted.predict_proba(rows), classes=["bad", "good"]).classes
        ('bad', 'good')
        """
        if isinstance(model, Model):
            return model
        transformer, head, threshold, decider = split_model(model)
        check_gives_probabilities(head)
        labels = _classes_of(head, classes)
        link, declared = find_link(head, output)
        if len(labels) < 2:
            raise ModelError(
                f"a classifier with at least 2 classes was expected, this one has {len(labels)}: {labels!r}; "
                "a prediction without an alternative cannot lose its support"
            )
        if len(set(labels)) != len(labels):
            raise ModelError(f"class labels must be distinct, got {labels!r}")
        return cls(
            estimator=model,
            transformer=transformer,
            head=head,
            classes=labels,
            head_link=link,
            output=declared,
            decider=decider,
            decision=(
                read_own_threshold(head, labels)
                if threshold is None
                else read_threshold(threshold, list(head.classes_), labels)
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ask"}  # a closure does not pickle

    @cached_property
    def _ask(self) -> Callable[[Any], Floats]:
        return apply_link(self.head_link, self.head, self.output)

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        return fingerprint([self.estimator, [to_python(label) for label in self.classes]])

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the predictions, class labels included."""
        return self._fingerprint.digest

    @property
    def fingerprint_partial(self) -> tuple[str, ...]:
        """What the fingerprint does not cover, in words; models that differ only there have the same fingerprint."""
        return self._fingerprint.partial

    @property
    def libraries(self) -> frozenset[str]:
        """The top-level packages of the classes and functions in the model, including its steps."""
        return self._fingerprint.libraries

    @property
    def link(self) -> str:
        """How the model's output becomes probabilities, in words."""
        return self.head_link.describe(self.output)

    @property
    def kind(self) -> str:
        """The model's type in words, e.g. ``Pipeline(ColumnTransformer -> LGBMClassifier)``."""
        kind = type_name(self.head)
        if self.transformer is not None:
            inner = getattr(self.transformer, "steps", [("", self.transformer)])
            kind = f"Pipeline({' -> '.join([*(type_name(step) for _, step in inner), kind])})"
        threshold = None if self.decision is None else split_model(self.estimator).threshold
        return kind if threshold is None else f"{type_name(threshold)}({kind})"

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the raw columns the model was fitted on, or None if it was fitted on a bare array."""
        declared = None if self.signature is None else self.signature.names
        if declared is None or (self.signature is not None and len(self.signature.required) < len(declared)):
            return _column_names(self.estimator)  # optional columns may be absent from the rows
        return declared

    def name_columns(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the model's columns by their names in the rows, which its library may have rewritten.

        LightGBM replaces blanks by underscores, so a model that was trained on ``mean radius`` has a column
        ``mean_radius``. A name is matched if exactly one column has it after rewriting, which LightGBM requires in
        training too; a name without a matching column is returned unchanged.

        Parameters
        ----------
        names : sequence of str
            The columns of the rows.

        Returns
        -------
        tuple of str or None
            The columns, like :attr:`columns`.
        """
        columns = self.columns
        if columns is None or set(columns) <= set(names) or not _rewrites_names(self.estimator):
            return columns
        originals: dict[str, list[str]] = {}
        for name in names:
            originals.setdefault(name.replace(" ", "_"), []).append(name)
        twice = next((name for name in columns if len(originals.get(name, ())) > 1), None)
        if twice is not None:
            raise ModelError(
                f"LightGBM calls a column {twice!r}, and the rows have {' and '.join(map(repr, originals[twice]))}, "
                "which are the same name to it; leave all but one out, or rename them"
            )
        return tuple(originals.get(name, [name])[0] for name in columns)

    @cached_property
    def n_columns(self) -> int | None:
        """Number of raw columns the model was fitted on; None if unknown."""
        count = _column_count(self.estimator)
        if count is None and self.signature is not None and all(column.required for column in self.signature.columns):
            return len(self.signature.columns)
        return count

    @property
    def votes(self) -> int | None:
        """The number of estimators that a forest or bagging averages; None for any other model."""
        if family_of(self.head) == "fragility.OnnxClassifier":
            return self.head.votes  # type: ignore[no-any-return]
        bases = ((base.__module__.split(".")[0], base.__name__) for base in type(self.head).__mro__)
        averaged = any(library == "sklearn" and name in VOTE_AVERAGING for library, name in bases)
        return len(self.head.estimators_) if averaged else None

    def with_signature(self, signature: ModelSignature) -> Model:
        """Return the model with a declared signature, reordered like its own columns.

        Parameters
        ----------
        signature : ModelSignature
            The columns.

        Returns
        -------
        Model
            The same model.

        Raises
        ------
        ModelError
            The model was fitted on other columns.
        """
        return replace(self, signature=signature.fit_to(_column_names(self.estimator)))

    def probabilities(self, rows: Any) -> Floats:
        """Return probabilities for raw rows, through the model's own preprocessing.

        Parameters
        ----------
        rows : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes``.
        """
        if not len_of(rows):
            return np.empty((0, len(self.classes)))
        return self.head_probabilities(copy_rows(rows) if self.transformer is None else self.preprocess(rows))

    def preprocess(self, rows: Any) -> Any:
        """Transform raw rows by the fitted preprocessing.

        The preprocessing gets a copy, because transformers such as scalers with ``copy=False`` write into their input.

        Parameters
        ----------
        rows : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array or table
            The result of ``transform``; the rows themselves if there is no preprocessing.
        """
        return rows if self.transformer is None else self.transformer.transform(copy_rows(rows))

    def head_probabilities(self, matrix: Any) -> Floats:
        """Return probabilities of the final estimator for rows of its own input.

        Parameters
        ----------
        matrix : array of shape (n, d)
            Rows in the form that the final estimator takes.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes``.
        """
        n = len_of(matrix)
        if n == 0:  # many models refuse a table without rows
            return np.empty((0, len(self.classes)))
        return check_probabilities(self._ask(matrix), n, self.classes)


def labels_follow(model: Model) -> bool:
    """Return whether ``predict`` is known to return the class with the largest probability, except for ties."""
    head, estimator = model.head, model.estimator
    listed = family_of(head) in MOST_PROBABLE and "predict" not in vars(head)
    return listed and model.decider is head and (estimator is head or type(estimator) is Pipeline)


def predict_labels(model: Model, rows: Any, *, to_head: bool) -> Integers | None:
    """Return (n,) class indices by the model's own ``predict`` (to_head: its decider's); None if it gives no labels."""
    classifier = model.decider if to_head else model.estimator
    # Boosters, functions and torch modules return scores, not decisions.
    if not hasattr(classifier, "predict_proba") or not callable(getattr(classifier, "predict", None)):
        return None
    classes = getattr(classifier, "classes_", None)
    labels = [to_python(label) for label in (model.classes if classes is None else classes)]
    indices = label_indices(classifier.predict(copy_rows(rows)), labels, len_of(rows))
    if indices is None and classes is not None:
        raise ModelError(
            f"{type_name(classifier)}.predict must give one of the classes {labels!r} for each row; it gives something "
            "else, so its decisions cannot be certified"
        )
    return indices


def confirm_link(model: Model, matrix: Any) -> Model:
    """Return the model, or one that uses ``predict_proba`` if its link does not reproduce it on the head's input."""
    if model.head_link is not Link.RAW_SCORE or not hasattr(model.head, "predict_proba"):
        return model
    asking = replace(model, head_link=Link.PREDICT_PROBA, output=None)
    probabilities = asking.head_probabilities(matrix)
    try:
        gap = float(np.abs(probabilities - model.head_probabilities(matrix)).max(initial=0.0))
    except Exception:  # an unusual setting of a known model: its own probabilities are the authority
        gap = np.inf
    if gap <= LINK_TOLERANCE:
        return model
    warnings.warn(
        f"{model.kind}: {model.link} differs from predict_proba by {gap:.3g}; using predict_proba", stacklevel=3
    )
    return asking


def copy_rows(rows: Any) -> Any:
    """Return rows that a model may write into; polars and Arrow tables are immutable."""
    return rows.copy() if isinstance(rows, (np.ndarray, pd.DataFrame)) or sp.issparse(rows) else rows


def len_of(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def _column_names(estimator: Any) -> tuple[str, ...] | None:
    estimator = look_through(estimator)
    names, family = getattr(estimator, "feature_names_in_", None), family_of(estimator)
    if names is None and family == "xgboost.Booster":
        names = estimator.feature_names
    elif names is None and family == "lightgbm.Booster":
        names = estimator.feature_name()
    elif names is None and family.startswith("catboost.") and estimator.feature_names_:
        names = list(estimator.feature_names_)
        if names == [str(i) for i in range(len(names))]:
            names = None  # CatBoost numbers the columns of a bare array "0", "1", ...
    if names is None:
        names = _ask_members(estimator, _column_names)
    return None if names is None else tuple(str(name) for name in names)


def _rewrites_names(estimator: Any) -> bool:
    """Return whether the column names of an estimator come from LightGBM, which replaces blanks."""
    estimator = look_through(estimator)
    if isinstance(estimator, Pipeline):
        estimator = look_through(estimator.steps[0][1])
    inside = (member for member, columns in members(estimator) if columns is None)
    return library_of(estimator) == "lightgbm" or any(map(_rewrites_names, inside))


def _column_count(estimator: Any) -> int | None:
    estimator = look_through(estimator)
    count = getattr(estimator, "n_features_in_", None)
    if family_of(estimator).startswith("catboost."):
        count = len(estimator.feature_names_)  # n_features_in_ is 0 after loading from a file
    if not count and (names := _column_names(estimator)) is not None:
        count = len(names)
    # A wrapper around CatBoost has the same n_features_in_ of 0.
    return int(count) if count else _ask_members(estimator, _column_count)


def _ask_members(estimator: Any, ask: Callable[[Any], Any]) -> Any:
    """Return the answer of the first estimator inside a wrapper that takes the same columns as the wrapper."""
    return next((ask(member) for member, columns in members(estimator) if columns is None), None)


def _classes_of(head: Any, declared: Sequence[ClassLabel] | None) -> tuple[ClassLabel, ...]:
    stored, family = getattr(head, "classes_", None), family_of(head)
    if stored is None or len(stored) == 0:
        stored = None
        if family == "xgboost.Booster":
            stored = range(max(xgboost_objective(head)[1], 2))
        elif family == "lightgbm.Booster":
            stored = range(max(head.num_model_per_iteration(), 2))
    several = stored is not None and (
        any(isinstance(part, (list, np.ndarray)) for part in stored)  # one list of labels per output
        or (len(stored) > 2 and getattr(head, "out_activation_", "") == "logistic")  # a multilabel model
    )
    if several or getattr(head, "multilabel_", False):
        raise ModelError(
            f"{type_name(head)} predicts several outputs, and a certificate is about one; audit a classifier with one "
            "output"
        )
    if stored is not None and declared is not None:
        _check_names([to_python(label) for label in stored], list(declared))
    labels = stored if declared is None else declared
    if labels is not None:
        return tuple(map(to_python, labels))
    if hasattr(head, "fit"):
        raise ModelError(
            f"{type_name(head)} is not fitted, or does not name the classes of its probabilities; fit it first"
        )
    if is_torch_module(head):
        wrap = "Model.wrap(model, classes=[...], output='logits')"
        advice = Advice(
            f"declare them in column order: {wrap}",
            "declare them in column order with --classes A,B, and what it returns with --returns logits",
        )
    else:
        advice = Advice(
            "declare them in column order: Model.wrap(model, classes=[...])",
            "declare them in column order with --classes A,B",
        )
    raise ModelError(f"{type_name(head)} does not name the classes of its probabilities; ", advice)


def _check_names(stored: list[Any], declared: list[Any]) -> None:
    """Refuse declared classes that contradict the model's own; names for classes 0, 1, ... are allowed."""
    if len(stored) != len(declared):
        raise ModelError(f"the model has {len(stored)} classes, but classes names {len(declared)}: {declared!r}")
    stored_texts, declared_texts = list(map(str, stored)), list(map(str, declared))
    numbered = stored == list(range(len(stored)))
    if stored_texts != declared_texts and (not numbered or set(stored_texts) == set(declared_texts)):
        raise ModelError(
            f"the model's own classes are {stored!r}, in the order of its probability columns, but classes says "
            f"{declared!r}; leave classes out"
        )
