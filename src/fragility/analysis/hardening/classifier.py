"""HardenedClassifier: hardening as a scikit-learn meta-estimator, so that rate and copies can be searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    _num_samples,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from fragility.analysis.hardening.training import harden
from fragility.analysis.hardening.twins import Degradation
from fragility.base.arrays import Floats
from fragility.protocol import Protocol


class HardenedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # no types there
    """A classifier that is trained on its rows and on degraded copies of them (see :func:`harden`).

    Put a whole pipeline inside, not this class into a pipeline: evidence groups are traced through the preprocessing
    that it can see.

    Parameters
    ----------
    estimator : estimator or Pipeline
        The classifier to train; it is cloned.
    rate, copies, kind, outages, modes, copy_weight : optional
        How copies of rows are degraded, as in :func:`harden`.
    protocol : Protocol, optional
        Which groups fail, and toward what; fitted again to the rows of each ``fit``, by its own rules.
    seed : int, default=0
        Of the degradation.

    Attributes
    ----------
    estimator_ : estimator or Pipeline
        The fitted classifier, with nothing of this package inside.
    classes_ : array of shape (C,)
        Class labels in the order of the probability columns.
    n_features_in_, feature_names_in_ : int, array of str
        Number of columns seen in ``fit``, and their names where a table was given.

    See Also
    --------
    harden : The same as a function.
    choose_rate : Chooses the rate by what it costs on validation rows.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import GridSearchCV
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> search = GridSearchCV(fg.HardenedClassifier(LogisticRegression()), {"rate": [0.1, 0.2]}, cv=3)
    >>> search.fit(X, y).best_params_["rate"] in (0.1, 0.2)
    True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        rate: float | None = None,
        copies: int = 1,
        kind: Degradation = "mask",
        outages: Any = None,
        modes: Sequence[str] = ("lost",),
        copy_weight: float | None = None,
        protocol: Protocol | None = None,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.rate = rate
        self.copies = copies
        self.kind = kind
        self.outages = outages
        self.modes = modes
        self.copy_weight = copy_weight
        self.protocol = protocol
        self.seed = seed

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, **fit_params: Any
    ) -> HardenedClassifier:
        """Train the classifier on the rows and their degraded copies.

        Parameters
        ----------
        X, y : array or table of shape (n, d), array of shape (n,)
            Raw training rows and their labels.
        sample_weight : array of shape (n,), optional
            Weight of each row.
        **fit_params : Any
            Further arguments of the final estimator's ``fit``, such as ``eval_set``.

        Returns
        -------
        HardenedClassifier
            The classifier itself.
        """
        if y is None:
            # In scikit-learn's words, which its own tools look for.
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(X, labels)
        if _num_samples(X):
            check_classification_targets(labels)
        if not (hasattr(X, "columns") or hasattr(X, "column_names")):  # a table stays as it is
            mixed = isinstance(self.estimator, Pipeline) or get_tags(self.estimator).input_tags.categorical
            X = check_array(X, accept_sparse="csr", dtype=None if mixed else "numeric", ensure_all_finite=False)
        _check_feature_names(self, X, reset=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        settings = self.get_params(deep=False)
        estimator = settings.pop("estimator")
        self.estimator_ = harden(estimator, X, labels, sample_weight=weights, fit_params=fit_params, **settings)
        self.classes_ = self.estimator_.classes_
        _check_n_features(self, X, reset=True)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted class of each row.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n,)
            Class labels.
        """
        check_is_fitted(self)
        return np.asarray(self.estimator_.predict(X)).reshape(_num_samples(X))

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n, C)
            In the order of ``classes_``.
        """
        check_is_fitted(self)
        return np.asarray(self.estimator_.predict_proba(X))

    @available_if(  # type: ignore[untyped-decorator]
        lambda self: hasattr(getattr(self, "estimator_", self.estimator), "decision_function")
    )
    def decision_function(self, X: Any) -> Floats:
        """Return the decision function of the fitted classifier, where it has one.

        Parameters
        ----------
        X : array or table of shape (n, d)
            Raw rows.

        Returns
        -------
        array of shape (n,) or (n, C)
            As the classifier gives it.
        """
        check_is_fitted(self)
        return np.asarray(self.estimator_.decision_function(X))

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.classifier_tags = inner.classifier_tags
        tags.non_deterministic = inner.non_deterministic
        return tags
