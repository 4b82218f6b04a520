"""Training a model on rows and their degraded twins (SPEC section 13), and which models can be trained so.

Rows (x_i, y_i, w_i), i = 1..n; with c copies, at least one for each of M failure modes, the final estimator is fitted
on n (1 + c) rows: the originals with weight (1 - a) w_i and each twin with a w_i / c. By default a = M / (1 + M): the
original and each mode count the same, half and half for one mode. The weights add up to what they did, so that
penalties and least weights of a leaf keep their meaning. Preprocessing, groups, baseline and catalogue come from the
originals alone.

An estimator must take sample weights. If it sets rows aside itself, to stop early or to tune something, a row and its
twin must not be on different sides. Other models are refused before any training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone, is_regressor
from sklearn.ensemble import VotingClassifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection._search import BaseSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import has_fit_parameter

from fragility.analysis.hardening.twins import Degradation, Hardening, TwinMaker, content_keys, take
from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError, FragilityError, ModelError, ProtocolError, name_error
from fragility.base.libraries import family_of, library_of
from fragility.evidence.baselines import BASELINES
from fragility.evidence.modes import CATALOGUE_SIZE, JOINT_FIELDS
from fragility.evidence.rows import Rows, read_rows
from fragility.models import Model
from fragility.models.outputs import check_gives_probabilities, type_name
from fragility.models.wrappers import is_fitted
from fragility.protocol import Protocol, bind
from fragility.questions.stress.draws import Words
from fragility.questions.stress.stressors import Layout

# --- which models can be hardened -----------------------------------------------------------------------------

MOST_ROWS_WITHOUT_STOPPING = 10_000  # up to here scikit-learn's histogram boosting reads early_stopping="auto" as no


class ValidationParameters(NamedTuple):
    """The parameters of an estimator's ``fit`` that take validation rows."""

    rows: str
    labels: str
    weights: str | None


VALIDATION_PARAMETERS = (
    ValidationParameters("X_val", "y_val", "sample_weight_val"),
    ValidationParameters("X_validation", "y_validation", None),
)


def check_hardenable(model: Any) -> Any:
    """Return the estimator or pipeline to clone and train; refuse a model that cannot be hardened."""
    subject = model.estimator if isinstance(model, Model) else model
    subject = getattr(subject, "best_estimator_", subject)  # a finished search stands for the model that it found
    name = type_name(subject)
    if family_of(subject) in ("xgboost.Booster", "lightgbm.Booster", "catboost.CatBoost"):
        raise ModelError(
            f"{name} is a trained booster, which cannot be trained again; give the classifier it came from "
            "(XGBClassifier, LGBMClassifier, CatBoostClassifier)"
        )
    if not hasattr(subject, "fit") or not hasattr(subject, "get_params"):
        raise ModelError(
            f"hardening trains the model again, so a scikit-learn estimator or Pipeline is needed, got {name}"
        )
    head = final_estimator(subject)
    if family_of(head) == "sklearn.FrozenEstimator":
        raise ModelError("FrozenEstimator is never trained again; give the estimator inside it")
    for step_name, step in subject.steps[:-1] if isinstance(subject, Pipeline) else ():
        if hasattr(step, "fit_resample"):
            raise ModelError(
                f"the step {step_name!r} ({type_name(step)}) draws other training rows, whose twins would not be those "
                "of the rows given; resample the rows first and harden the pipeline without this step"
            )
    if isinstance(head, Pipeline):
        raise ModelError(
            "the last step of the pipeline is itself a pipeline, whose preprocessing would be fitted on degraded rows; "
            "put all steps into one pipeline"
        )
    if is_regressor(head):
        raise ModelError(f"{type_name(head)} is a regressor; hardening is for classifiers")
    for estimator in _trained_estimators(head):
        _check_takes_weighted_twins(estimator, takes_validation_rows=estimator is head)
    check_gives_probabilities(head)
    return subject


def final_estimator(model: Any) -> Any:
    """Return the last step of a pipeline, or the model itself."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def _trained_estimators(head: Any) -> Iterator[Any]:
    """Yield an estimator and those that it trains: members of a vote, the base of an ensemble."""
    yield head
    settings = head.get_params(deep=False)
    inner = [
        settings.get("estimator"),
        *(pair[1] for pair in settings.get("estimators") or [] if isinstance(pair, tuple)),
    ]
    for estimator in inner:
        if hasattr(estimator, "fit") and hasattr(estimator, "get_params"):
            yield from _trained_estimators(estimator)


def _check_takes_weighted_twins(estimator: Any, *, takes_validation_rows: bool) -> None:
    name, settings = type_name(estimator), estimator.get_params(deep=False)
    if isinstance(estimator, BaseSearchCV):
        raise ModelError(
            f"{name} was not fitted; fit it, and the model it found is hardened, or search over HardenedClassifier"
        )
    if "cv" in settings:
        raise ModelError(
            f"{name} splits its training rows itself, and would judge a row by its own degraded twin; harden the "
            f"estimator inside it, and then fit {name} around the result (FrozenEstimator) on rows of its own"
        )
    if family_of(estimator) == "sklearn.FixedThresholdClassifier":
        raise ModelError(
            "FixedThresholdClassifier passes no sample weights on; harden the classifier inside it, and put the "
            "threshold around the result, in a FrozenEstimator"
        )
    passes_on = isinstance(estimator, VotingClassifier)  # to its members, which are checked themselves
    if not passes_on and not has_fit_parameter(estimator, "sample_weight"):
        raise ModelError(
            f"{name} takes no sample weights, by which rows and their degraded twins share their weight half and half; "
            "choose an estimator whose fit has sample_weight"
        )
    if takes_validation_rows and validation_parameters(estimator) is not None:
        return
    if validation_share(estimator, None) is not None or settings.get("eval_fraction") is not None:
        raise ModelError(
            f"{name} sets aside validation rows for early stopping itself, and would judge a row by its own degraded "
            "twin; train it without early stopping"
        )


def validation_parameters(estimator: Any) -> ValidationParameters | None:
    """Return the parameters of ``fit`` that take validation rows; None if there are none."""
    if isinstance(estimator, MLPClassifier):
        return VALIDATION_PARAMETERS[0]  # of `training.fit_by_epochs`
    return next(
        (parameters for parameters in VALIDATION_PARAMETERS if has_fit_parameter(estimator, parameters.rows)), None
    )


def validation_share(estimator: Any, n_rows: int | None) -> float | int | None:
    """Return the share (or number) of ``n_rows`` rows that an estimator would set aside itself; None if none.

    n_rows None: as many rows as it takes.
    """
    settings = estimator.get_params(deep=False)
    share = settings.get("validation_fraction")
    if not share or settings.get("solver") == "lbfgs":  # nothing is set aside; that solver does not stop early
        return None
    stops = settings.get("early_stopping", settings.get("n_iter_no_change", "always") is not None)
    if stops == "auto":
        stops = n_rows is None or n_rows > MOST_ROWS_WITHOUT_STOPPING
    return share if stops else None


# Boosted trees: class -> the names of the number of rounds, and what it is where none is set.
BOOSTED: dict[str, tuple[tuple[str, ...], int]] = {
    "lightgbm.LGBMClassifier": (("n_estimators",), 100),
    "xgboost.XGBClassifier": (("n_estimators",), 100),
    "catboost.CatBoostClassifier": (("iterations", "n_estimators", "num_boost_round", "num_trees"), 1000),
    "sklearn.GradientBoostingClassifier": (("n_estimators",), 100),
    "sklearn.HistGradientBoostingClassifier": (("max_iter",), 100),
}
STOPPING = ("early_stopping_rounds", "early_stopping_round", "od_type", "od_wait")


def find_rounds(model: Any, n_rows: int) -> tuple[str, int] | None:
    """Return the name and the number of the boosting rounds of a model's final estimator.

    None where it does not boost, or sets the number itself by stopping early on that many rows.
    """
    head = final_estimator(model)
    names, usual = BOOSTED.get(family_of(head), ((), 0))
    settings = head.get_params(deep=False)
    if not names or any(settings.get(name) for name in STOPPING) or settings.get("boosting_type") == "rf":
        return None
    if settings.get("booster") == "gblinear" or validation_share(head, n_rows) is not None:
        return None
    given = [(name, int(settings[name])) for name in names if settings.get(name) is not None]
    return given[0] if given else (names[0], usual)


def _set_rounds(model: Any, rounds: Any, n_rows: int) -> None:
    """Set the number of boosting rounds of a clone."""
    found = find_rounds(model, n_rows)
    if found is None:
        raise ModelError(
            f"rounds sets the number of boosting rounds, which {type_name(final_estimator(model))} has not, or finds "
            "itself by stopping early; leave it out"
        )
    if type(rounds) is not int or rounds < 1:
        raise ProtocolError(f"rounds must be a whole number of at least 1, got {rounds!r}")
    final_estimator(model).set_params(**{found[0]: rounds})


# --- training -------------------------------------------------------------------------------------------------

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
    modes: Sequence[str] = ("lost",),
    copy_weight: float | None = None,
    rounds: int | None = None,
    sample_weight: Any = None,
    fit_params: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Any:
    """Train a model again so that its predictions rest on more of their evidence.

    The model is cloned and trained on the rows and on degraded copies of them, in which each evidence group is replaced
    by its baseline with probability ``rate``, or by a wrong value (``modes``); a row and its copies share its weight.

    Parameters
    ----------
    model : estimator or Pipeline
        The classifier, fitted or not; it is not changed. Its final estimator must take ``sample_weight``.
    X, y : array or table of shape (n, d), array of shape (n,)
        Raw training rows and their labels.
    protocol : Protocol, optional
        Which groups fail, and toward what: its space, groups, rule of the baseline and severities, fitted to these
        rows. By default the one that :meth:`Protocol.fit` makes of the model and these rows.
    rate : float, optional
        Probability with which a group is struck in a copy; 0.2 by default. With ``kind="outages"`` the probability that
        a copy suffers a recorded event, 1 by default. 0 trains the plain model, bit for bit.
    copies : int, default=1
        Degraded copies of each row; at least as many as there are modes.
    kind : {"mask", "attenuate", "outages"}, default="mask"
        A struck group takes its baseline (``mask``), or moves part of the way, by a severity drawn from the protocol's
        grid (``attenuate``); or the groups that one recorded event lacked take their baseline (``outages``).
    outages : Outages, table or list, optional
        The recorded events, for ``kind="outages"``: whatever :meth:`Stress.from_outages` reads.
    modes : sequence of str, default=("lost",)
        What a struck group turns into: its baseline (``lost``), a value of the protocol's catalogue (``wrong``), or
        its own numbers slightly off (``noisy``, which strikes all numbers of a copy, whatever the rate). With several
        modes the copies are dealt out to them in this order.
    copy_weight : float, optional
        Share of a row's weight that its copies carry together. By default M / (1 + M) for M modes, so that the row and
        each mode count the same: half with one mode, three quarters with three.
    rounds : int, optional
        Boosting rounds, for boosted trees; by default as many as the model has. Fewer often go well with hardening.
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
        Fitted, of the same class as the model; it holds no object of this package.

    See Also
    --------
    HardenedClassifier : The same as a meta-estimator, whose rate can be searched.
    choose_rate : The largest rate that costs no more than a tolerance, and how many rounds go with it.

    Notes
    -----
    Memory: beside the final estimator's input for the rows, that input once more and once for each copy. An estimator
    that sets rows aside for early stopping is handed them, undegraded and without their twins, if its ``fit`` takes
    such rows (scikit-learn's histogram boosting and MLPClassifier, :class:`ResMLPClassifier`); otherwise it is refused,
    like one that takes no weights, splits its rows itself, or is a trained booster. An out-of-bag score of a forest
    counts twins and says too much.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> fg.harden(LogisticRegression(), X, y)
    LogisticRegression()
    """
    plan = Hardening(rate, copies, kind, outages, seed, modes, copy_weight)
    subject = check_hardenable(model)
    if rounds is not None:
        subject = _clone(subject)
        _set_rounds(subject, rounds, len(y))
    training = _TrainingRows.read(X, y, sample_weight, plan.seed)
    rows, n = training.rows, len(training.rows)
    extra = _read_fit_params(subject, fit_params, n)
    prepared = _Prepared.fit(subject, training)
    if plan.rate == 0.0:
        # A twin equal to its row adds nothing, and a doubled table is another one to estimators that count rows.
        weight_argument = {} if sample_weight is None else {"sample_weight": training.weights}
        return prepared.finish(prepared.handed, training.labels, {**weight_argument, **extra})

    probe = prepared.make_probe(subject, training, extra)
    refitted = refit_protocol(probe, rows.native, protocol)
    removed = None
    if plan.outages is not None:
        removed = plan.outages.removed_groups(Layout.of(refitted, bind(probe, rows.head(1).native, refitted)))
    maker = TwinMaker.of(plan, refitted, removed, rows, prepared.transformer, prepared.handed)
    aside, validation = prepared.set_aside(training, extra)
    fitting = np.flatnonzero(~aside)
    weights = training.weights[fitting]
    arguments = {**extra, **validation}
    shared = weights * (plan.copy_weight / plan.twins)
    arguments["sample_weight"] = np.concatenate([weights * (1 - plan.copy_weight), np.tile(shared, plan.twins)])
    labels = np.tile(np.asarray(training.labels)[fitting], 1 + plan.twins)
    head = prepared.head
    # "auto" keeps the meaning that it has for n rows, however many twins there are.
    by_size = head.get_params(deep=False).get("early_stopping") == "auto" and validation_share(head, n) is None
    if by_size:
        head.set_params(early_stopping=False)
    hardened = prepared.finish(maker.stack_twins(fitting, training.keys), labels, arguments)
    if by_size:
        head.set_params(early_stopping="auto")
    return hardened


def refit_protocol(model: Any, X: Any, protocol: Protocol | None) -> Protocol:
    """Return the protocol for a model trained on ``X``: the default one, or a given one fitted to X by its own rules.

    A given protocol may come from other rows, or from a model whose preprocessing learned from other rows: its
    baseline would then be in other units.
    """
    if protocol is None:
        return Protocol.fit(model, X)
    if not isinstance(protocol, Protocol):
        raise ProtocolError(f"protocol must be a Protocol, got {type(protocol).__name__}")
    named, raw = protocol.baseline in BASELINES, protocol.space == "raw"
    fitted = Protocol.fit(
        model,
        X,
        space=protocol.space,
        groups="raw-origin" if protocol.grouping == "raw-origin" else {g.name: g.columns for g in protocol.groups},
        baseline=protocol.baseline if named else {column.name: column.baseline for column in protocol.columns},
        baseline_units="raw" if named or raw else "transformed",
        nominal=[field.name for field in protocol.fields if field.kind == "nominal"] if raw else (),
        modes=[mode for mode in protocol.modes.declared if mode not in ("sentinel", "outage")],
        catalogue=protocol.modes.catalogue_size or CATALOGUE_SIZE,
        noise=protocol.modes.noise,
        joint_values=any(len(entry.fields) > JOINT_FIELDS for entry in protocol.modes.catalogue),
    )
    modes = replace(
        protocol.modes, catalogue=fitted.modes.catalogue, whole=fitted.modes.whole, ranges=fitted.modes.ranges
    )
    learned = ["fields", "columns", "groups", "artificial", "inputs", "stored", "refused"]
    learned += ["training_digest", "training_rows"]
    depth = min(protocol.depth, len(fitted.groups))
    return replace(protocol, depth=depth, modes=modes, **{name: getattr(fitted, name) for name in learned})


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
        rows = read_rows(X.reset_index(drop=True) if isinstance(X, pd.DataFrame) else X)
        n = len(rows)
        labels = y if isinstance(y, pd.Series) else np.asarray(y)
        if labels.shape != (n,):
            raise DataError(f"y must hold one label per row: {n} rows, y has the shape {labels.shape}")
        codes = np.unique(np.asarray(labels).astype(str), return_inverse=True)[1]
        if codes.max() == 0:
            raise DataError(f"at least 2 classes were expected in y, got one class: {np.asarray(labels).tolist()[0]!r}")
        weights = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if weights.shape != (n,):
            raise DataError(f"sample_weight must hold one weight per row: {n} rows, it has the shape {weights.shape}")
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise DataError("sample_weight must hold finite numbers of at least 0")
        return cls(rows, labels, codes, weights, content_keys(rows, codes, weights, seed))

    def first_by_key(self, share: Callable[[int], int]) -> Booleans:
        """Return (n,) true for ``share(m)`` rows of each class of m rows, the same rows whatever their order."""
        selected = np.zeros(len(self.keys), dtype=bool)
        for code in range(self.codes.max() + 1):
            of_class = np.flatnonzero(self.codes == code)
            selected[of_class[np.argsort(self.keys[of_class], kind="stable")[: share(len(of_class))]]] = True
        return selected


def _read_fit_params(model: Any, fit_params: Mapping[str, Any] | None, n: int) -> dict[str, Any]:
    """Return further arguments of the final estimator's fit, given with or without the name of its step."""
    prefix = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
    extra = {name.removeprefix(prefix): value for name, value in (fit_params or {}).items()}
    if "sample_weight" in extra:
        raise DataError("fit_params holds sample_weight; give it as an argument of its own, for twins to share it")
    held_out = {name for names in VALIDATION_PARAMETERS for name in names}
    for name, value in extra.items():
        of_training_rows = name not in held_out and not name.startswith("eval_")
        if of_training_rows and isinstance(value, (np.ndarray, pd.Series)) and value.shape[:1] == (n,):
            raise DataError(
                f"fit_params gives {name!r} one value per training row, and degraded copies of the rows have none; "
                "leave it out"
            )
    return extra


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A clone of the user's model with its preprocessing fitted on the rows alone."""

    model: Any  # the clone
    transformer: Any  # its fitted preprocessing; None if there is none
    head: Any  # its final estimator, not fitted
    handed: Any  # the final estimator's input for the rows

    @classmethod
    def fit(cls, subject: Any, training: _TrainingRows) -> _Prepared:
        model = _clone(subject)
        head = final_estimator(model)
        if not isinstance(model, Pipeline) or all(step in (None, "passthrough") for _, step in model.steps[:-1]):
            return cls(model, None, head, training.rows.native)
        transformer = model[:-1]
        # As the pipeline's own fit does: an encoder of targets codes the rows it learns from by cross-fitting.
        handed = _train(lambda: transformer.fit_transform(training.rows.native, training.labels), "the preprocessing")
        return cls(model, transformer, head, handed)

    def finish(self, matrix: Any, labels: Any, arguments: Mapping[str, Any]) -> Any:
        """Fit the final estimator and return the whole model."""
        by_epochs = isinstance(self.head, MLPClassifier) and "X_val" in arguments
        fit = partial(fit_by_epochs, self.head) if by_epochs else self.head.fit
        _train(lambda: fit(matrix, labels, **arguments), type_name(self.head))
        if not isinstance(self.model, Pipeline):
            return self.head
        fitted = self.model.steps[:-1] if self.transformer is None else self.transformer.steps
        return self.model.set_params(steps=[*fitted, (self.model.steps[-1][0], self.head)])

    def make_probe(self, subject: Any, training: _TrainingRows, extra: Mapping[str, Any]) -> Model:
        """Return a model that tells what input it takes: the user's own if it is fitted, else one of a few rows."""
        head, width = final_estimator(subject), self.handed.shape[1]
        usable = is_fitted(head) and getattr(head, "n_features_in_", width) == width
        if usable and self.transformer is None:
            usable = Model.wrap(head).columns in (None, training.rows.names)
        if not usable:
            few = np.flatnonzero(training.first_by_key(lambda m: max(2, -(-PROBE_ROWS * m // len(training.keys)))))
            head = _clone(self.head)
            part, labels = take(self.handed, few), take(training.labels, few)
            _train(lambda: head.fit(part, labels, **extra), type_name(head))
        return Model.wrap(head if self.transformer is None else Pipeline([*self.transformer.steps, ("final", head)]))

    def set_aside(self, training: _TrainingRows, extra: Mapping[str, Any]) -> tuple[Booleans, dict[str, Any]]:
        """Return (n,) which rows the final estimator keeps for validation, and the arguments that hand them over."""
        n, names = len(training.keys), validation_parameters(self.head)
        share = None if names is None or names.rows in extra else validation_share(self.head, n)
        if names is None or share is None:
            return np.zeros(n, dtype=bool), {}
        part = share if share < 1 else share / n
        selected = training.first_by_key(lambda m: min(m - 1, max(1, round(part * m))))
        aside = np.flatnonzero(selected)
        if len(aside) == 0:
            return selected, {}
        arguments = {names.rows: take(self.handed, aside), names.labels: take(training.labels, aside)}
        if names.weights is not None:
            arguments[names.weights] = training.weights[aside]
        return selected, arguments


def _clone(estimator: Any) -> Any:
    """Return an unfitted copy; scikit-learn's clone does not take CatBoost with cat_features."""
    if isinstance(estimator, Pipeline):
        shell = copy.copy(estimator)
        shell.steps = [(name, _clone(step) if hasattr(step, "fit") else step) for name, step in estimator.steps]
        return shell
    if library_of(estimator) == "catboost":
        return type(estimator)(**copy.deepcopy(estimator.get_params()))
    try:
        return clone(estimator)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"the model cannot be cloned, which training it again needs: {error}") from error


def _train(fit: Callable[[], Any], name: str) -> Any:
    """Run a fit of the user's estimator; turn what it raises into one sentence."""
    try:
        return fit()
    except FragilityError:
        raise
    except Exception as error:
        raise ModelError(f"{name} could not be trained on these rows: {name_error(error)}") from error


def fit_by_epochs(
    model: MLPClassifier, X: Any, y: Any, sample_weight: Floats, X_val: Any, y_val: Any, sample_weight_val: Floats
) -> None:
    """Train an unfitted network of scikit-learn with early stopping on the given validation rows.

    Its own ``fit`` takes no validation rows. So ``partial_fit`` trains one epoch at a time, and its own rule stops it:
    after ``n_iter_no_change`` epochs whose validation accuracy is not ``tol`` above the best, the best weights stay.
    """
    settings = {"early_stopping": model.early_stopping, "random_state": model.random_state}
    # One generator for all epochs: partial_fit would shuffle by the same integer each time.
    model.set_params(early_stopping=False, random_state=check_random_state(settings["random_state"]))
    classes, scores = np.unique(np.asarray(y)), [-np.inf]
    best, waited = [], 0
    while len(scores) <= model.max_iter and waited <= model.n_iter_no_change:
        model.partial_fit(X, y, sample_weight=sample_weight, classes=classes)
        score = float(accuracy_score(y_val, model.predict(X_val), sample_weight=sample_weight_val))
        waited = waited + 1 if score < max(scores) + model.tol else 0
        if score > max(scores):
            best = [[part.copy() for part in parts] for parts in (model.coefs_, model.intercepts_)]
        scores.append(score)
    model.coefs_, model.intercepts_ = best
    model.set_params(**settings)
    model.validation_scores_, model.best_validation_score_, model.n_iter_ = scores[1:], max(scores), len(scores) - 1
    model.best_loss_ = None
