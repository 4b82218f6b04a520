"""The arithmetic of wrappers: from the answers of their members to probabilities, as scikit-learn computes them.

Let a_i be what member i answers for N states: probabilities (N, C), or the decision function (N,) or (N, C).

    calibrated   mean_i calibrate_i(a_i)       a_i: the decision function where there is one, else probabilities
    voting       average_i(a_i), weighted
    bagging      sum_i a_i / n                 a_i sees columns of its own, and may lack classes
    one-vs-rest  a_i[:, 1], normalised over i
    stacking     final(a_1 | a_2 | ... | x)    x where the wrapper passes it through

Operations, their order and their precision are the library's: given the same answers, the result has the same bits. A
wrapper may hold wrappers: ``Combination.combine`` is the whole expression, its members are those at the bottom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs
from scipy.special import expit

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import EngineError
from fragility.base.libraries import family_of
from fragility.models.wrappers import look_through

PROBABILITIES, SCORES, CELLS = "predict_proba", "decision_function", "cells"
TREES = ("sklearn.DecisionTreeClassifier", "sklearn.ExtraTreeClassifier")

Response: TypeAlias = npt.NDArray[Any]  # (N,) or (N, C), float32 or float64


@dataclass(frozen=True, eq=False)
class Member:
    """Someone at the bottom of a wrapper who is asked by one method; of ``CELLS``, the states themselves."""

    estimator: Any
    method: str
    columns: Integers | None  # those of the wrapper that it is given, perhaps one twice; None: all
    as_array: bool  # it is given a matrix even where the wrapper is given a table

    @property
    def name(self) -> str:
        return type(self.estimator).__name__


Ask: TypeAlias = Callable[[Member], Response]
Combine: TypeAlias = Callable[[Ask], Response]


@dataclass(frozen=True, eq=False)
class Combination:
    """A wrapper as an expression in the answers of its members."""

    members: tuple[Member, ...]
    combine: Combine
    n_classes: int

    @classmethod
    def read(cls, wrapper: Any) -> Combination:
        """Return the expression of a fitted wrapper; EngineError if it is none, or computes in a way not known here."""
        if family_of(wrapper) not in WRAPPERS:
            raise EngineError(f"{type(wrapper).__name__} is no wrapper whose arithmetic is known")
        reader = _Reader()
        combine = reader.read(wrapper, PROBABILITIES, None, False)
        return cls(tuple(reader.members), combine, len(wrapper.classes_))


class _Reader:
    """Reads wrappers within wrappers, and notes the members that are met."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def read(self, estimator: Any, method: str, columns: Integers | None, as_array: bool) -> Combine:
        estimator = look_through(estimator)
        reader = WRAPPERS.get(family_of(estimator))
        of_trees = family_of(estimator) == "sklearn.BaggingClassifier" and is_bagged_trees(estimator)
        if reader is not None and not of_trees:
            return reader(self, estimator, method, columns, as_array)
        return self._note(Member(estimator, method, columns, as_array))

    def _note(self, member: Member) -> Combine:
        self.members.append(member)
        return lambda ask: ask(member)

    def read_calibrated(self, wrapper: Any, method: str, columns: Integers | None, as_array: bool) -> Combine:
        parts = []
        for one in wrapper.calibrated_classifiers_:
            _check_classes(one.estimator, len(wrapper.classes_))
            asked = SCORES if hasattr(one.estimator, SCORES) else PROBABILITIES
            parts.append((one, asked, self.read(one.estimator, asked, columns, as_array)))

        def combine(ask: Ask) -> Response:
            answers = [calibrate(one, asked, part(ask)) for one, asked, part in parts]
            total = np.zeros(answers[0].shape)  # of double precision, whatever the answers have
            for answer in answers:
                total += answer
            return np.asarray(total / len(parts))

        return combine

    def read_voting(self, wrapper: Any, method: str, columns: Integers | None, as_array: bool) -> Combine:
        for one in wrapper.estimators_:
            _check_classes(one, len(wrapper.classes_))
        weights = None
        if wrapper.weights is not None:
            pairs = zip(wrapper.estimators, wrapper.weights, strict=True)
            weights = [weight for (_, estimator), weight in pairs if not _is_dropped(estimator)]
        parts = [self.read(one, PROBABILITIES, columns, as_array) for one in wrapper.estimators_]
        return lambda ask: np.average(np.asarray([part(ask) for part in parts]), axis=0, weights=weights)

    def read_bagging(self, wrapper: Any, method: str, columns: Integers | None, as_array: bool) -> Combine:
        n_classes, parts = len(wrapper.classes_), []
        for one, own in zip(wrapper.estimators_, wrapper.estimators_features_, strict=True):
            if not hasattr(one, method):
                raise EngineError(f"{type(wrapper).__name__} counts the votes of {type(one).__name__}")
            if method == SCORES:
                _check_classes(one, n_classes)
            all_columns = np.array_equal(own, np.arange(wrapper.n_features_in_))
            given = columns if all_columns else own if columns is None else columns[own]
            known = None if len(one.classes_) == n_classes else np.asarray(one.classes_, dtype=np.int64)
            parts.append((known, self.read(one, method, given, True)))
        jobs = np.array_split(np.arange(len(parts)), min(effective_n_jobs(wrapper.n_jobs), len(parts)))

        def combine(ask: Ask) -> Response:
            sums = []  # one for each of the library's jobs
            for job in jobs:
                total: Any = 0.0
                for known, part in (parts[i] for i in job):
                    answer = part(ask)
                    if known is not None:
                        full = np.zeros((len(answer), n_classes))
                        full[:, known] = answer
                        answer = full
                    total = total + answer.astype(np.float64, copy=False)
                sums.append(total)
            return np.asarray(sum(sums) / len(parts))

        return combine

    def read_one_vs_rest(self, wrapper: Any, method: str, columns: Integers | None, as_array: bool) -> Combine:
        parts = [self.read(one, method, columns, as_array) for one in wrapper.estimators_]

        def combine(ask: Ask) -> Response:
            answers = [part(ask) for part in parts]
            if method == SCORES:
                return answers[0] if len(answers) == 1 else np.array([answer.ravel() for answer in answers]).T
            y = np.array([answer[:, 1] for answer in answers]).T
            if len(answers) == 1:
                y = np.concatenate((1 - y, y), axis=1)
            sums = np.sum(y, axis=1)[:, np.newaxis]
            return np.asarray(np.divide(y, sums, out=y, where=sums != 0))

        return combine

    def read_stacking(self, wrapper: Any, method: str, columns: Integers | None, as_array: bool) -> Combine:
        final, two = wrapper.final_estimator_, len(wrapper.classes_) == 2
        if not hasattr(final, "coef_"):
            raise EngineError(f"the final estimator {type(final).__name__} is not linear")
        parts = []
        for one, asked in zip(wrapper.estimators_, wrapper.stack_method_, strict=True):
            if asked not in (PROBABILITIES, SCORES):
                raise EngineError(f"{type(wrapper).__name__} stacks the {asked} of {type(one).__name__}")
            parts.append((asked, self.read(one, asked, columns, as_array)))
        if wrapper.passthrough:
            parts.append((CELLS, self._note(Member(None, CELLS, columns, as_array))))

        def combine(ask: Ask) -> Response:
            stacked = []
            for asked, part in parts:
                answer = part(ask)
                if answer.ndim == 1:
                    answer = answer.reshape(-1, 1)
                elif asked == PROBABILITIES and two:
                    answer = answer[:, 1:]  # the first says the same
                stacked.append(answer)
            return np.asarray(getattr(final, method)(np.hstack(stacked)))

        return combine


WRAPPERS: dict[str, Callable[[_Reader, Any, str, Integers | None, bool], Combine]] = {
    "sklearn.CalibratedClassifierCV": _Reader.read_calibrated,
    "sklearn.VotingClassifier": _Reader.read_voting,
    "sklearn.BaggingClassifier": _Reader.read_bagging,
    "sklearn.OneVsRestClassifier": _Reader.read_one_vs_rest,
    "sklearn.StackingClassifier": _Reader.read_stacking,
}


def is_bagged_trees(wrapper: Any) -> bool:
    """Return whether a bagging is a forest in all but name: the tree engine reads it as one."""
    return all(family_of(one) in TREES for one in wrapper.estimators_)


def _is_dropped(estimator: Any) -> bool:
    return isinstance(estimator, str) and estimator == "drop"


def _check_classes(estimator: Any, n_classes: int) -> None:
    if len(estimator.classes_) != n_classes:
        raise EngineError(f"{type(estimator).__name__} was trained on {len(estimator.classes_)} of {n_classes} classes")


# --- calibration --------------------------------------------------------------------------------------------


def calibrate(one: Any, asked: str, answer: Response) -> Floats:
    """Return (N, C) probabilities: one calibrated classifier of a wrapper on the answer of its estimator."""
    n_classes = len(one.classes)
    if n_classes == 2 and answer.ndim == 2:
        answer = answer[:, 1] if asked == PROBABILITIES else answer[:, 0]
    if one.method == "temperature":
        if n_classes == 2:
            answer = answer.reshape(-1, 1)
            if asked == PROBABILITIES:
                answer = np.concatenate([1 - answer, answer], axis=1)
        p = one.calibrators[0].predict(answer)
    elif n_classes == 2:
        p = np.empty((len(answer), 2))
        p[:, 1] = _apply(one.calibrators[0], answer)
        p[:, 0] = 1.0 - p[:, 1]
    else:
        p = np.zeros((len(answer), n_classes))
        places = np.searchsorted(one.classes, one.estimator.classes_)
        for place, scores, calibrator in zip(places, answer.T, one.calibrators, strict=True):
            p[:, place] = _apply(calibrator, scores)
        sums = np.sum(p, axis=1)[:, np.newaxis]
        p = np.divide(p, sums, out=np.full_like(p, 1 / n_classes), where=sums != 0)
    p[(p > 1.0) & (p <= 1.0 + 1e-5)] = 1.0
    return np.asarray(p)


def _apply(calibrator: Any, scores: Response) -> Floats:
    if family_of(calibrator) == "sklearn._SigmoidCalibration":  # the same without the checks of its input
        return np.asarray(expit(-(calibrator.a_ * scores + calibrator.b_)))
    return np.asarray(calibrator.predict(np.ascontiguousarray(scores)))
