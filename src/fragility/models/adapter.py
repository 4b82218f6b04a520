"""Model: one door to anything that gives class probabilities.

A pipeline is split into its fitted preprocessing and its final estimator; a classifier that only puts a threshold on
another one's probabilities is looked through.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from fragility.arrays import Floats, Integers
from fragility.errors import ModelError
from fragility.libraries import family_of
from fragility.models.decision import ClassLabel, Decision, is_threshold_classifier, label_indices, own_decision
from fragility.models.fingerprint import Fingerprint, fingerprint
from fragility.models.links import (
    LINK_TOLERANCE,
    PREDICT_PROBA,
    Link,
    OutputKind,
    check_gives_probabilities,
    checked_probabilities,
    link_of,
    type_name,
    xgboost_objective,
)


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted classifier with declared classes; :meth:`Model.wrap` makes one.

    A classifier that only puts a threshold on another one's probabilities is looked through: ``decision`` is its rule,
    and the rest is read off the classifier inside.

    Attributes
    ----------
    estimator : object
        What the user gave.
    transformer : object or None
        Its fitted preprocessing.
    head : object
        The final estimator, which sees the transformed matrix.
    classes : tuple
        Class labels in the order of the probability columns.
    head_link : Link
        How the final estimator's output becomes probabilities.
    decider : object or None
        Whose ``predict`` labels the rows that ``head`` takes; None: only ``estimator`` gives labels.
    decision : Decision or None
        The model's own threshold.

    See Also
    --------
    load_model : Read a model from a file.
    """

    estimator: Any
    transformer: Any
    head: Any
    classes: tuple[ClassLabel, ...]
    head_link: Link
    decider: Any = None  # whose ``predict`` labels the rows that ``head`` takes; None: only ``estimator`` gives labels
    decision: Decision | None = None  # the model's own threshold

    @classmethod
    def wrap(
        cls,
        model: Any,
        *,
        classes: Sequence[ClassLabel] | None = None,
        output: OutputKind | None = None,
    ) -> Model:
        """Return ``model`` behind this door.

        Parameters
        ----------
        model : object
            An estimator with ``predict_proba``, a fitted Pipeline, an XGBoost or LightGBM booster, a
            ``torch.nn.Module`` (with ``classes`` and ``output``), or a function rows -> (n, C) probabilities (with
            ``classes``).
        classes : sequence of class labels, optional
            The labels in the order of the probability columns, where the model does not know them, or names to show in
            place of a booster's 0, 1, ...
        output : str, optional
            What a torch module or function returns; ``probabilities`` for functions unless declared.

        Returns
        -------
        Model
            ``model`` itself if it is one already.

        Raises
        ------
        ModelError
            It gives no probabilities, or its classes are not known or not distinct.

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
        transformer, head, threshold_step = _parts(model)
        check_gives_probabilities(head)
        labels = _classes_of(head, classes)
        link = link_of(head, output)
        if len(labels) < 2:
            raise ModelError(
                f"a classifier with at least 2 classes was expected, this one knows {len(labels)}: {labels!r}; "
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
            decider=_decider(model, transformer, head, threshold_step),
            decision=None if threshold_step is None else own_decision(threshold_step, list(head.classes_), labels),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A link is made of functions without a name, which do not pickle; it follows from the rest.
        own = self.head_link.name == PREDICT_PROBA.name
        output = self.head_link.name.split(" of a ")[0] if " of a " in self.head_link.name else None
        return _unpickled, (self.estimator, self.classes, output, own, self.__dict__.get("_fingerprint"))

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        return fingerprint([self.estimator, [_plain(label) for label in self.classes]])

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the predictions, class labels included."""
        return self._fingerprint.digest

    @property
    def fingerprint_partial(self) -> tuple[str, ...]:
        """What the fingerprint could not take in, in words: another model may differ there and have the same one."""
        return self._fingerprint.partial

    @property
    def link(self) -> str:
        """Name of the way from the model's output to probabilities."""
        return self.head_link.name

    @property
    def kind(self) -> str:
        """The model's type in words, e.g. ``Pipeline(ColumnTransformer -> LGBMClassifier)``."""
        kind = type_name(self.head)
        if self.transformer is not None:
            inner = getattr(self.transformer, "steps", [("", self.transformer)])
            kind = f"Pipeline({' -> '.join([*(type_name(step) for _, step in inner), kind])})"
        if self.decision is None:
            return kind
        return f"{type_name(self.estimator if self.decider is None else self.decider)}({kind})"

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
        if self.transformer is not None:
            rows = self.transformer.transform(rows)
        return self.head_probabilities(rows)

    def head_probabilities(self, matrix: Any) -> Floats:
        """Return probabilities of the final estimator for rows of its own input.

        Parameters
        ----------
        matrix : array of shape (n, d)
            Rows as the final estimator takes them.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes``.
        """
        return checked_probabilities(self.head_link.apply(self.head, matrix), len_of(matrix), self.classes)

    def own_labels(self, rows: Any, *, handed_over: bool) -> Integers | None:
        """Return class indices by the model's own ``predict``.

        Parameters
        ----------
        rows : array or table of shape (n, d)
            Raw rows, or rows as the final estimator takes them.
        handed_over : bool
            True for the latter.

        Returns
        -------
        array of shape (n,) or None
            None for a model that has no labels of its own.
        """
        giver = self.decider if handed_over else self.estimator
        if not _gives_labels(giver):
            return None
        own = getattr(giver, "classes_", None)
        known = [_plain(label) for label in (self.classes if own is None else own)]
        indices = label_indices(giver.predict(rows), known, len_of(rows))
        if indices is None and own is not None:
            raise ModelError(
                f"{type_name(giver)}.predict must give one of the classes {known!r} for each row; it gives something "
                "else, so its decisions cannot be certified"
            )
        return indices

    def confirmed(self, matrix: Any) -> Model:
        """Return this model, with the link dropped if it does not reproduce ``predict_proba``.

        Parameters
        ----------
        matrix : array of shape (n, d)
            Rows as the final estimator takes them, to compare on.

        Returns
        -------
        Model
            This model, or one that asks ``predict_proba``.
        """
        if self.head_link.name == PREDICT_PROBA.name or not hasattr(self.head, "predict_proba"):
            return self
        own = checked_probabilities(PREDICT_PROBA.apply(self.head, matrix), len_of(matrix), self.classes)
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


def _unpickled(
    estimator: Any, classes: tuple[ClassLabel, ...], output: OutputKind | None, own: bool, found: Fingerprint | None
) -> Model:
    model = Model.wrap(estimator, classes=classes, output=output)
    if own:
        model = replace(model, head_link=PREDICT_PROBA)
    if found is not None:
        model.__dict__["_fingerprint"] = found  # a worker need not compute it again
    return model


def len_of(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _split_pipeline(model: Any) -> tuple[Any, Any]:
    """Return (fitted preprocessing or None, final estimator)."""
    steps = getattr(model, "steps", None)
    if steps is None or not hasattr(model, "predict"):
        return None, model
    # Samplers (SMOTE and its like) work in training only; a prediction passes them by.
    before = [(name, step) for name, step in steps[:-1] if not hasattr(step, "fit_resample")]
    head = steps[-1][1]
    if all(step is None or step == "passthrough" for _, step in before):
        return None, head
    return (model[:-1] if len(before) == len(steps) - 1 else Pipeline(before)), head


def _parts(model: Any) -> tuple[Any, Any, Any]:
    """Return (fitted preprocessing or None, final classifier, the threshold classifier around it or None)."""
    model = _unfrozen(model)
    if is_threshold_classifier(model):
        return *_split_pipeline(_thresholded(model)), model
    transformer, head = _split_pipeline(model)
    head = _unfrozen(head)
    if is_threshold_classifier(head):
        return transformer, _thresholded(head), head
    return transformer, head, None


def _thresholded(model: Any) -> Any:
    """Return the fitted classifier inside a threshold classifier."""
    return _unfrozen(getattr(model, "estimator_", model.estimator))


def _unfrozen(model: Any) -> Any:
    return model.estimator if family_of(model) == "sklearn.FrozenEstimator" else model


def _decider(model: Any, transformer: Any, head: Any, threshold_step: Any) -> Any:
    if threshold_step is None:
        return head
    inside = threshold_step is _unfrozen(model) and transformer is not None  # it takes raw rows, not the matrix
    return None if inside else threshold_step


def _gives_labels(estimator: Any) -> bool:
    """True for classifiers; a booster's or a function's output is no decision, nor is a torch module's."""
    return hasattr(estimator, "predict_proba") and callable(getattr(estimator, "predict", None))


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
                f"{type_name(head)} does not say which classes its probabilities stand for; "
                "fit it first, or declare them in column order with classes=[...]"
            )
        if any(isinstance(part, (list, np.ndarray)) for part in known):
            raise ModelError(f"{type_name(head)} has several outputs; audit one output at a time")
        return tuple(_plain(label) for label in known)
    if known is not None:
        _check_names([_plain(label) for label in known], list(declared))
    return tuple(_plain(label) for label in declared)


def _check_names(known: list[Any], declared: list[Any]) -> None:
    """Refuse declared classes that contradict the model's own; names for classes 0, 1, ... are welcome."""
    if len(known) != len(declared):
        raise ModelError(f"the model has {len(known)} classes, but classes names {len(declared)}: {declared!r}")
    same = [str(label) for label in known] == [str(label) for label in declared]
    numbered = known == list(range(len(known)))
    reordered = {str(label) for label in known} == {str(label) for label in declared}
    if same or (numbered and not reordered):
        return
    raise ModelError(
        f"the model's own classes are {known!r}, in the order of its probability columns, but classes says "
        f"{declared!r}; leave classes out"
    )


def _booster_classes(head: Any) -> list[int] | None:
    family = family_of(head)
    if family == "xgboost.Booster":
        n = int(xgboost_objective(head)[1])
        return list(range(max(n, 2)))
    if family == "lightgbm.Booster":
        return list(range(max(head.num_model_per_iteration(), 2)))
    return None
