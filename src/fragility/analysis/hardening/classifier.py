"""HardenedClassifier: hardening as a scikit-learn meta-estimator; and `choose_rate`, which chooses how much of it.

`choose_rate` takes the largest rate of a declared grid whose validation metric loses at most a tolerance; for boosted
trees with each of some numbers of rounds, of which it takes the one with the least log loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.metrics import get_scorer
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

from fragility.analysis.hardening.assessment import assess_model
from fragility.analysis.hardening.training import check_hardenable, find_rounds, harden, refit_protocol
from fragility.analysis.hardening.twins import Degradation
from fragility.base.arrays import Floats
from fragility.base.errors import DataError, ProtocolError, name_error
from fragility.base.progress import Report, progress_bar
from fragility.base.text import align_columns, format_number
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
        The fitted classifier; it holds no object of this package.
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
        if not (hasattr(X, "columns") or hasattr(X, "column_names")):  # tables are passed unchanged
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
        """Return the decision function of the fitted classifier, if it has one.

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


# --- the rate -------------------------------------------------------------------------------------------------

RATES = (0.05, 0.1, 0.2, 0.3, 0.4)
ROUNDS = (0.4, 1.0)
TOLERANCE = 0.002
Scorer = Callable[[Any, Any, Any], float]


@dataclass(frozen=True, slots=True)
class RateOutcome:
    """The outcome of one rate on the validation rows; rate 0 is the plain model."""

    rate: float
    rounds: int | None  # of boosting; None for models without, and where they stop early
    metric: float  # on the validation rows
    loss: float  # of the metric, against the plain model
    log_loss: float
    calibration_error: float
    confident_share: float  # of the predictions
    brittle_share: float  # of the confident predictions: those that break under held-out stress; NaN without any
    exposure: float  # mean over all predictions
    seconds: float  # of training


@dataclass(frozen=True)
class RateChoice:
    """The outcome of each rate on validation rows, and the rate chosen; made by :func:`choose_rate`.

    Attributes
    ----------
    rate, rounds, model : float, int or None, estimator or Pipeline
        The largest rate within the tolerance (0 if none is, and then the plain model stays), of its numbers of boosting
        rounds within the tolerance the one with the least log loss, and the model trained with both.
    metric, tolerance : str, float
        Name of the metric, and what it may lose.
    outcomes : tuple of RateOutcome
        The plain model (rate 0) first, then each rate of the grid, with each number of rounds; the plain model with
        fewer rounds is there to compare with, and is never chosen.

    See Also
    --------
    harden : Trains with one rate.
    """

    rate: float
    rounds: int | None
    model: Any
    metric: str
    tolerance: float
    outcomes: tuple[RateOutcome, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per rate and number of rounds.

        Returns
        -------
        pandas.DataFrame
            The attributes of each outcome.
        """
        return pd.DataFrame([asdict(outcome) for outcome in self.outcomes])

    def to_text(self) -> str:
        """Return the table and the choice in words.

        Returns
        -------
        str
            Several lines.
        """
        heads = ("rate", "rounds", self.metric, "loss", "log loss", "calibration error", "confident")
        cells: list[tuple[str, ...]] = [(*heads, "of these brittle", "exposure", "seconds")]
        digits = (4, 4, 4, 4, 3, 3, 3, 1)
        for outcome in self.outcomes:
            rate, rounds, *figures = astuple(outcome)
            mark = " *" if (rate, rounds) == (self.rate, self.rounds) else ""
            cells.append(
                (f"{rate:g}{mark}", "" if rounds is None else str(rounds), *map(format_number, figures, digits))
            )
        if self.rounds is None:
            cells = [(line[0], *line[2:]) for line in cells]
        if self.rate == 0.0:
            choice = f"no rate loses at most {self.tolerance:g} of {self.metric}: the plain model stays"
        else:
            choice = f"* the largest rate that loses at most {self.tolerance:g} of {self.metric} on the validation rows"
        return "\n".join([*align_columns(cells), choice, *self._describe_rounds()])

    def _describe_rounds(self) -> list[str]:
        """Return what another number of rounds gained, in a sentence."""
        every = self.outcomes[0].rounds
        if self.rate == 0.0 or self.rounds is None or self.rounds == every:
            return []
        of_rate = {outcome.rounds: outcome for outcome in self.outcomes if outcome.rate == self.rate}
        fewer, full = of_rate[self.rounds], of_rate[every]
        plain = next(outcome for outcome in self.outcomes if (outcome.rate, outcome.rounds) == (0.0, self.rounds))
        return [
            f"{self.rounds} rounds instead of {every}: log loss {fewer.log_loss:.4f} instead of {full.log_loss:.4f}, "
            f"calibration error {fewer.calibration_error:.4f} instead of {full.calibration_error:.4f}, brittle share "
            f"{fewer.brittle_share:.3f} instead of {full.brittle_share:.3f}",
            f"{self.rounds} rounds without hardening: log loss {plain.log_loss:.4f}, calibration error "
            f"{plain.calibration_error:.4f}, brittle share {plain.brittle_share:.3f}",
        ]

    def __repr__(self) -> str:
        return self.to_text()


def choose_rate(
    model: Any,
    X: Any,
    y: Any,
    X_val: Any,
    y_val: Any,
    *,
    rates: Sequence[float] = RATES,
    rounds: Sequence[float] = ROUNDS,
    tolerance: float = TOLERANCE,
    metric: str | Scorer = "roc_auc",
    protocol: Protocol | None = None,
    copies: int = 1,
    kind: Degradation = "mask",
    outages: Any = None,
    modes: Sequence[str] = ("lost",),
    copy_weight: float | None = None,
    sample_weight: Any = None,
    fit_params: Mapping[str, Any] | None = None,
    seed: int = 0,
    engine: str = "auto",
    progress: bool | Report | None = None,
) -> RateChoice:
    """Harden a model with each rate of a grid and choose the largest that costs little on validation rows.

    Parameters
    ----------
    model : estimator or Pipeline
        The classifier, fitted or not.
    X, y : array or table of shape (n, d), array of shape (n,)
        Raw training rows and their labels.
    X_val, y_val : array or table, array
        Validation rows, which no model is trained on, and their labels; they are never degraded for the metric.
    rates : sequence of float, default=(0.05, 0.1, 0.2, 0.3, 0.4)
        The grid, declared before looking.
    rounds : sequence of float, default=(0.4, 1.0)
        For boosted trees that do not stop early: the shares of the model's number of rounds that each rate is tried
        with. Hardening and many rounds may together cost more than either.
    tolerance : float, default=0.002
        What the metric may lose against the plain model.
    metric : str or callable, default="roc_auc"
        A scikit-learn scorer's name, or a function (model, X, y) -> number, larger is better. With more than two
        classes ``roc_auc`` is ``roc_auc_ovr``.
    protocol, copies, kind, outages, modes, copy_weight, sample_weight, fit_params, seed : optional
        As in :func:`harden`.
    engine : str, default="auto"
        As in :func:`audit`, for what the validation predictions rest on.
    progress : bool or callable, optional
        A bar over the rates on the terminal (the default if there is one), or a function (done, in all).

    Returns
    -------
    RateChoice
        The rate, the number of rounds, the model trained with them, and the table of what each did.

    See Also
    --------
    harden : Trains with one rate.
    """
    grid = tuple(sorted({float(rate) for rate in rates}))
    if not grid or not 0.0 < grid[0] <= grid[-1] <= 1.0:
        raise ProtocolError(f"rates must be numbers above 0 and up to 1, got {list(rates)}")
    shares = tuple(sorted({float(share) for share in rounds}))
    if not shares or not 0.0 < shares[0] <= shares[-1] == 1.0:
        raise ProtocolError(f"rounds must be shares above 0, with 1 among them, got {list(rounds)}")
    if not tolerance >= 0.0:
        raise ProtocolError(f"tolerance must be a number of at least 0, got {tolerance!r}")
    score = _read_scorer(metric, y)
    outcomes: list[RateOutcome] = []

    boosting = find_rounds(check_hardenable(model), len(y))
    tried = [None] if boosting is None else sorted({max(1, round(share * boosting[1])) for share in shares})

    def attempt(subject: Any, rate: float, many: int | None, declared: Protocol | None) -> tuple[Any, Protocol]:
        """Train with one rate and number of rounds and note the outcome; return the model and its protocol."""
        started = time.perf_counter()
        trained = harden(
            subject,
            X,
            y,
            protocol=declared,
            rate=rate,
            copies=copies,
            kind=kind,
            outages=outages,
            modes=modes,
            copy_weight=copy_weight,
            rounds=None if boosting is None or many == boosting[1] else many,
            sample_weight=sample_weight,
            fit_params=fit_params,
            seed=seed,
        )
        seconds = time.perf_counter() - started
        refitted = refit_protocol(trained, X, protocol) if declared is None else declared
        assessed = assess_model(trained, X_val, refitted, y_val, engine=engine)
        assert assessed.quality is not None
        quality = assessed.quality.nll, assessed.quality.ece
        reached = _compute_score(score, trained, X_val, y_val)
        loss = outcomes[0].metric - reached if outcomes else 0.0
        of_confident = (assessed.confident_share, assessed.brittle_share, assessed.exposure)
        outcomes.append(RateOutcome(rate, many, reached, loss, *quality, *of_confident, seconds))
        return trained, refitted

    with progress_bar("hardening", progress) as report:
        plain, refitted = attempt(model, 0.0, tried[-1], None)
        best, best_model = outcomes[0], plain
        for many in tried[:-1]:  # what fewer rounds do by themselves, to compare with
            attempt(plain, 0.0, many, refitted)
        for rate in grid:
            for many in tried:
                if report is not None:
                    report(len(outcomes), (1 + len(grid)) * len(tried))
                trained, _ = attempt(plain, rate, many, refitted)
                last = outcomes[-1]
                if last.loss <= tolerance and (rate > best.rate or last.log_loss < best.log_loss):
                    best, best_model = last, trained
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
    return RateChoice(best.rate, best.rounds, best_model, name, float(tolerance), tuple(outcomes))


def _read_scorer(metric: str | Scorer, y: Any) -> Scorer:
    if callable(metric):
        return metric
    if metric == "roc_auc" and len(np.unique(np.asarray(y).astype(str))) > 2:
        metric = "roc_auc_ovr"
    try:
        return get_scorer(metric)  # type: ignore[no-any-return]
    except ValueError as error:
        raise DataError(
            f"metric must be the name of a scikit-learn scorer, such as roc_auc or neg_log_loss, got {metric!r}"
        ) from error


def _compute_score(score: Scorer, model: Any, X: Any, y: Any) -> float:
    try:
        reached = float(score(model, X, y))
    except Exception as error:
        raise DataError(f"metric fails on the validation rows: {name_error(error)}") from error
    if np.isnan(reached):
        raise DataError("metric has no value on the validation rows; give rows in which every class occurs")
    return reached
