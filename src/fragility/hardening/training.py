"""Training a model on rows and their degraded twins (SPEC section 13).

Rows (x_i, y_i, w_i), i = 1..n; with c copies the final estimator is fitted on n (1 + c) rows, the originals with
weight w_i / 2 and each twin with w_i / (2 c). The weights add up to what they did, so that penalties and least weights
of a leaf keep their meaning. Preprocessing, groups and baseline come from the originals alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

from fragility.arrays import Booleans, Floats, Integers
from fragility.errors import DataError, FragilityError, ModelError
from fragility.evidence.binding import bind_rows
from fragility.evidence.rows import Rows, read_rows
from fragility.evidence.space import EvidenceSpace
from fragility.hardening.acceptance import DOORS, accepted, final_estimator, validation_door, validation_share
from fragility.hardening.declaration import Degradation, Hardening
from fragility.hardening.epochs import fit_by_epochs
from fragility.hardening.inputs import EstimatorInput
from fragility.hardening.spaces import space_for
from fragility.hardening.twins import Degrader, content_keys
from fragility.libraries import library_of
from fragility.models import Model
from fragility.models.links import type_name
from fragility.models.wrappers import is_fitted
from fragility.protocol import DEFAULT_SEVERITIES, Protocol
from fragility.stress import Layout
from fragility.stress.draws import Words

PROBE_ROWS = 256  # rows on which an estimator that was never fitted is asked what kind of input it takes


def harden(
    model: Any,
    X: Any,
    y: Any,
    *,
    protocol: Protocol | None = None,
    rate: float | None = None,
    copies: int = 1,
    kind: Degradation = "mask",
    outages: Any = None,
    sample_weight: Any = None,
    fit_params: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Any:
    """Train a model again so that its predictions rest on more of their evidence.

    The model is cloned and trained on the rows and on degraded copies of them, in which each evidence group is replaced
    by its baseline with probability ``rate``; a row and its copies share its weight half and half.

    Parameters
    ----------
    model : estimator or Pipeline
        The classifier, fitted or not; it is left as it is. Its final estimator must take ``sample_weight``.
    X : array or table of shape (n, d)
        Raw training rows.
    y : array of shape (n,)
        Their labels.
    protocol : Protocol, optional
        Which groups fail, and toward what: its space, groups, rule of the baseline and severities, fitted to these
        rows. By default the one that :meth:`Protocol.fit` makes of the model and these rows.
    rate : float, optional
        Probability with which a group is struck in a copy; 0.2 by default. With ``kind="outages"`` the probability that
        a copy suffers a recorded event, 1 by default. 0 trains the plain model, bit for bit.
    copies : int, default=1
        Degraded copies of each row.
    kind : {"mask", "attenuate", "outages"}, default="mask"
        A struck group takes its baseline (``mask``), or moves part of the way, by a severity drawn from the protocol's
        grid (``attenuate``); or the groups that one recorded event lacked take their baseline (``outages``).
    outages : Outages, table or list, optional
        The recorded events, for ``kind="outages"``: whatever :meth:`Stress.from_outages` reads.
    sample_weight : array of shape (n,), optional
        Weight of each row.
    fit_params : mapping, optional
        Further arguments of the final estimator's ``fit``, such as ``eval_set``; passed on untouched. Validation rows
        are never degraded.
    seed : int, default=0
        Of the degradation. A row's copies depend on it and on the row's content, not on its place.

    Returns
    -------
    estimator or Pipeline
        Fitted, of the model's own kind: nothing of this package is inside.

    Raises
    ------
    ModelError
        The model cannot be hardened: it takes no weights, is a trained booster, or splits its rows itself.

    See Also
    --------
    HardenedClassifier : The same as a meta-estimator, whose rate can be searched.
    choose_rate : The largest rate that costs no more than a tolerance.

    Notes
    -----
    Memory: beside the final estimator's input for the rows, 1 + ``copies`` times that input, filled in blocks of
    16 MiB; what the estimator itself takes grows with it. An estimator that sets rows aside for early stopping is
    handed them, undegraded and without their twins, where its ``fit`` takes such rows
    (scikit-learn's histogram boosting and MLPClassifier, :class:`ResMLPClassifier`), and refused where it does not. An
    out-of-bag score of a forest counts twins and says too much.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> fg.harden(LogisticRegression(), X, y)
    LogisticRegression()
    """
    plan = Hardening.read(rate, copies, kind, outages, seed)
    subject = accepted(model)
    training = _TrainingRows.read(X, y, sample_weight, plan.seed)
    extra = _fit_params(subject, fit_params, len(training.rows))
    prepared = _Prepared.fit(subject, training)
    if plan.rate == 0.0:
        # A twin equal to its row adds nothing, and a doubled table is another one to estimators that count rows.
        weights = {} if sample_weight is None else {"sample_weight": training.weights}
        return prepared.finished(prepared.handed, training.labels, {**weights, **extra})
    probe = Model.wrap(prepared.probe(subject, training, extra))
    space = space_for(probe, training.rows, protocol)
    severities = DEFAULT_SEVERITIES if protocol is None else protocol.severities
    return prepared.hardened(training, space, _degrader(plan, space, severities, probe, training.rows), extra)


# --- what is trained on -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _TrainingRows:
    rows: Rows
    labels: Any  # (n,) as they came
    codes: Integers  # (n,) place of each label among the sorted labels
    weights: Floats  # (n,)
    keys: Words  # (n,)

    @classmethod
    def read(cls, X: Any, y: Any, sample_weight: Any, seed: int) -> _TrainingRows:
        # The index of training rows names nothing that is certified, and may repeat.
        X = X.reset_index(drop=True) if isinstance(X, pd.DataFrame) else X
        rows = read_rows(X)
        labels = y if isinstance(y, pd.Series) else np.asarray(y)
        if labels.shape != (len(rows),):
            raise DataError(f"y must hold one label a row: {len(rows)} rows, y has the shape {labels.shape}")
        codes = np.unique(np.asarray(labels).astype(str), return_inverse=True)[1]
        if codes.max() == 0:
            raise DataError(f"at least 2 classes were expected in y, got one class: {np.asarray(labels).tolist()[0]!r}")
        weights = _row_weights(sample_weight, len(rows))
        return cls(rows, labels, codes, weights, content_keys(rows, codes, weights, seed))

    def first_by_key(self, share: Callable[[int], int]) -> Booleans:
        """Return (n,) true for ``share(m)`` rows of each class of m rows, the same rows whatever their order."""
        chosen = np.zeros(len(self.keys), dtype=bool)
        for code in range(self.codes.max() + 1):
            own = np.flatnonzero(self.codes == code)
            chosen[own[np.argsort(self.keys[own], kind="stable")[: share(len(own))]]] = True
        return chosen


def _row_weights(sample_weight: Any, n: int) -> Floats:
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n,):
        raise DataError(f"sample_weight must hold one weight a row: {n} rows, it has the shape {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise DataError("sample_weight must hold finite numbers of at least 0")
    return weights


def _fit_params(model: Any, fit_params: Mapping[str, Any] | None, n: int) -> dict[str, Any]:
    """Return further arguments of the final estimator's fit, with or without the name of its step before them."""
    prefix = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
    extra = {name.removeprefix(prefix): value for name, value in (fit_params or {}).items()}
    if "sample_weight" in extra:
        raise DataError("fit_params holds sample_weight; give it as an argument of its own, for twins to share it")
    held_out = {name for door in DOORS for name in (door.rows, door.labels, door.weights)}
    for name, value in extra.items():
        if name in held_out or name.startswith("eval_"):
            continue
        if isinstance(value, (np.ndarray, pd.Series)) and value.shape[:1] == (n,):
            raise DataError(
                f"fit_params gives {name!r} one value a training row, and degraded copies of the rows have none; "
                "leave it out"
            )
    return extra


# --- the model, part by part --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A clone of the user's model with its preprocessing fitted on the rows alone."""

    model: Any  # the clone
    transformer: Any  # its fitted preprocessing; None: none
    head: Any  # its final estimator, not fitted
    handed: Any  # what the final estimator is handed for the rows

    @classmethod
    def fit(cls, subject: Any, training: _TrainingRows) -> _Prepared:
        model = _cloned(subject)
        head = final_estimator(model)
        if not isinstance(model, Pipeline) or all(step in (None, "passthrough") for _, step in model.steps[:-1]):
            return cls(model, None, head, training.rows.native)
        transformer = model[:-1]
        # As the pipeline's own fit does: an encoder of targets codes the rows it learns from by cross-fitting.
        handed = _trained(lambda: transformer.fit_transform(training.rows.native, training.labels), "the preprocessing")
        return cls(model, transformer, head, handed)

    def whole(self, head: Any) -> Any:
        """Return the model with the fitted preprocessing and a fitted final estimator."""
        if not isinstance(self.model, Pipeline):
            return head
        done = self.model.steps[:-1] if self.transformer is None else self.transformer.steps
        return self.model.set_params(steps=[*done, (self.model.steps[-1][0], head)])

    def finished(self, matrix: Any, labels: Any, arguments: Mapping[str, Any]) -> Any:
        by_epochs = isinstance(self.head, MLPClassifier) and "X_val" in arguments
        fit = partial(fit_by_epochs, self.head) if by_epochs else self.head.fit
        _trained(lambda: fit(matrix, labels, **arguments), type_name(self.head))
        return self.whole(self.head)

    def probe(self, subject: Any, training: _TrainingRows, extra: Mapping[str, Any]) -> Any:
        """Return a model that says what input it takes: the user's own where it is fitted, else one of a few rows."""
        given = final_estimator(subject)
        width = self.handed.shape[1]
        if is_fitted(given) and getattr(given, "n_features_in_", width) == width:
            head = given
        else:
            few = np.flatnonzero(training.first_by_key(lambda m: max(2, -(-PROBE_ROWS * m // len(training.keys)))))
            part, labels = _taken(self.handed, few), _taken(training.labels, few)
            head = _cloned(self.head)
            _trained(lambda: head.fit(part, labels, **extra), type_name(head))
        if self.transformer is None:
            return head
        return Pipeline([*self.transformer.steps, ("final", head)])

    def hardened(
        self, training: _TrainingRows, space: EvidenceSpace, degrader: Degrader, extra: Mapping[str, Any]
    ) -> Any:
        aside, copies = self._set_aside(training, extra), degrader.plan.copies
        kept = np.flatnonzero(~aside)
        estimator_input = EstimatorInput.of(training.rows, self.transformer, self.handed, space)
        matrix = estimator_input.with_twins(kept, training.keys, degrader)
        weights = training.weights[kept]
        arguments = {**extra, **self._validation(training, np.flatnonzero(aside))}
        arguments["sample_weight"] = np.concatenate([weights / 2, np.tile(weights / (2 * copies), copies)])
        with _stopping_as_for(self.head, len(aside)):
            return self.finished(matrix, np.tile(np.asarray(training.labels)[kept], 1 + copies), arguments)

    def _set_aside(self, training: _TrainingRows, extra: Mapping[str, Any]) -> Booleans:
        """Return (n,) which rows the final estimator would keep for validation; it is handed them as they are."""
        n, door = len(training.keys), validation_door(self.head)
        share = None if door is None or door.rows in extra else validation_share(self.head, n)
        if share is None:
            return np.zeros(n, dtype=bool)
        part = share if share < 1 else share / n
        return training.first_by_key(lambda m: min(m - 1, max(1, round(part * m))))

    def _validation(self, training: _TrainingRows, aside: Integers) -> dict[str, Any]:
        if len(aside) == 0:
            return {}
        door = validation_door(self.head)
        assert door is not None
        given = {door.rows: _taken(self.handed, aside), door.labels: _taken(training.labels, aside)}
        return given if door.weights is None else {**given, door.weights: training.weights[aside]}


def _cloned(estimator: Any) -> Any:
    """Return an unfitted copy; CatBoost with cat_features is none of those that scikit-learn's clone takes."""
    if isinstance(estimator, Pipeline):
        shell = copy.copy(estimator)
        shell.steps = [(name, _cloned(step) if hasattr(step, "fit") else step) for name, step in estimator.steps]
        return shell
    if library_of(estimator) == "catboost":
        return type(estimator)(**copy.deepcopy(estimator.get_params()))
    try:
        return clone(estimator)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"the model cannot be cloned, which training it again needs: {error}") from error


def _trained(train: Callable[[], Any], name: str) -> Any:
    """Run a fit of the user's estimator; turn what it raises into one sentence."""
    try:
        return train()
    except FragilityError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(f"{name} could not be trained on these rows: {type(error).__name__}: {reason}") from error


def _taken(values: Any, positions: Integers) -> Any:
    return values.iloc[positions] if isinstance(values, (pd.DataFrame, pd.Series)) else values[positions]


@contextmanager
def _stopping_as_for(head: Any, n: int) -> Iterator[None]:
    """Let ``early_stopping="auto"`` mean what it means for ``n`` rows, however many twins there are."""
    auto = head.get_params(deep=False).get("early_stopping") == "auto"
    if not auto or validation_share(head, n) is not None:
        yield
        return
    head.set_params(early_stopping=False)
    yield
    head.set_params(early_stopping="auto")


def _degrader(plan: Hardening, space: EvidenceSpace, severities: Sequence[float], model: Model, rows: Rows) -> Degrader:
    removed = None
    if plan.outages is not None:
        removed = plan.outages.removed_groups(Layout.of(space, bind_rows(model, rows.head(1).native, space)))
    return Degrader(plan, space.column_group, len(space.groups), np.asarray(severities), removed)
