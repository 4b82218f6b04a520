"""What a member of a wrapper answers at the states of rows, with the bits of its library.

    TreeMember    its trees are read, and its link is computed as its library computes it
    LinearMember  sums over groups; the link is the estimator's own, on the scores themselves
    AskedMember   the member itself is handed the cells of every state

N answers are in a row: state by state of all rows (``at_places``), or as the states come.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.special import expit
from sklearn.utils.extmath import softmax

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.base.errors import EngineError, ModelError
from fragility.base.libraries import family_of, library_of
from fragility.engines.engine import Values
from fragility.engines.kernels.links import fill_sigmoid, fill_softmax
from fragility.engines.linear import (
    GroupScores,
    never_adds_up,
    refuse_cells,
    score_states,
    score_values,
    sum_contributions,
)
from fragility.engines.trees.engine import TreeEngine
from fragility.engines.trees.forest import AVERAGE, SIGMOID, Forest
from fragility.engines.trees.scoring import PlaceStates, Score, score_cells
from fragility.engines.wrapped.combining import CELLS, SCORES, Member, Response
from fragility.evidence import EvidenceRows, States
from fragility.models import Model
from fragility.models.outputs import EXPLAINABLE
from fragility.protocol import Protocol as Declared

ASKED_BYTES = 32 * MEBIBYTE  # of the cells that a member is handed at once
LINEAR = (
    *("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV", "sklearn.SGDClassifier", "sklearn.Perceptron"),
    *(
        "sklearn.LinearDiscriminantAnalysis",
        "sklearn.LinearSVC",
        "sklearn.RidgeClassifier",
        "sklearn.RidgeClassifierCV",
    ),
    "sklearn.PassiveAggressiveClassifier",
)
# their decision function is the sum of the trees
RAW_SCORED = (
    *("sklearn.GradientBoostingClassifier", "sklearn.HistGradientBoostingClassifier"),
    *("lightgbm.LGBMClassifier", *EXPLAINABLE),
)
LARGEST_EXPONENT = {np.dtype(np.float32): 88.7, np.dtype(np.float64): np.inf}  # XGBoost stops before exp overflows


# --- rows as a member sees them -----------------------------------------------------------------------------


def take_columns(rows: EvidenceRows, columns: Integers | None) -> EvidenceRows:
    """Return the rows as a member is given them, perhaps with one column twice; None: all columns."""
    if columns is None:
        return rows
    return replace(
        rows,
        matrix=rows.matrix[:, columns],
        baseline=rows.baseline[columns],
        stepwise=rows.stepwise[columns],
        column_group=rows.column_group[columns],
        absent=None if rows.absent is None else rows.absent.of_columns(columns),
        forms=None if rows.forms is None else tuple(rows.forms[j] for j in columns),
    )


def wrap_member(member: Member) -> Model | None:
    """Return a member behind the door of models; None if it gives no probabilities, or knows one class only."""
    try:
        return Model.wrap(member.estimator)
    except ModelError:
        return None


def explain_never_read(member: Member, model: Model | None, rows: EvidenceRows) -> str | None:
    """Return why a member can never be read, only asked."""
    if member.method == CELLS:
        return "the cells of states are made"
    if member.as_array and any(form.values is not None for form in rows.forms or ()):
        return f"{member.name} is handed an array made of a table with categories"
    rows = take_columns(rows, member.columns)
    family = family_of(member.estimator)
    if family in LINEAR:
        return never_adds_up(rows)
    if model is None or model.head is not member.estimator:
        return f"{member.name} is asked for what no engine reads"
    if member.method == SCORES and family not in RAW_SCORED:
        return f"the decision function of {member.name} is not known"
    return TreeEngine.never_reads(replace(rows, model=model, n_classes=len(model.classes)))


def explain_unread(member: Member, model: Model | None, rows: EvidenceRows) -> str | None:
    """Return why a member cannot be read on these rows."""
    if reason := explain_never_read(member, model, rows):
        return reason
    rows = take_columns(rows, member.columns)
    if family_of(member.estimator) in LINEAR:
        return refuse_cells(rows)
    assert model is not None
    return TreeEngine.refusal(replace(rows, model=model, n_classes=len(model.classes)))


# --- answers ------------------------------------------------------------------------------------------------

AtPlaces: TypeAlias = Callable[[Floats, Booleans, Integers, PlaceStates], Response]


class MemberAnswers(Protocol):
    """A member's answers about rows x (m, d)."""

    threads: bool  # it may be asked in several threads at once

    def at_places(self, protocol: Declared) -> AtPlaces:
        """Return the function (x, fixed, order, Q states) -> answers (Q m, ...), as ``trees.scoring.Score``."""

    def answer_states(self, x: Floats, states: States) -> Response | None:
        """Return the answers (q, ...) to q states; None if they are no states that it can answer."""

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Response]:
        """Return the answers (k m, ...) to each of what ``Engine.answer_values`` asks."""

    def answer_rows(self, x: Floats) -> Response:
        """Return the answers (m, ...) to rows as they are."""

    def doubts(self, x: Floats) -> Booleans:
        """Return (m,) which rows the member may read otherwise."""


def make_answers(member: Member, model: Model | None, rows: EvidenceRows) -> MemberAnswers:
    """Return how a member answers: read if it can be, else asked."""
    if explain_unread(member, model, rows) is not None:
        return AskedMember(member, rows)
    given = take_columns(rows, member.columns)
    if family_of(member.estimator) in LINEAR:
        answers: TreeMember | LinearMember = LinearMember(member, given)
    else:
        assert model is not None
        answers = TreeMember(member, replace(given, model=model, n_classes=len(model.classes)))
    return answers if member.columns is None else ColumnsMember(answers, member.columns)


class TreeMember:
    """A member whose trees are read."""

    threads = True

    def __init__(self, member: Member, rows: EvidenceRows) -> None:
        self.rows, self.engine = rows, TreeEngine(rows)
        self.ensemble, self.doubts = self.engine.ensemble, self.engine.doubts
        self.respond = link_of(member, self.ensemble.forest)

    def at_places(self, protocol: Declared) -> AtPlaces:
        score: Score = score_cells(self.ensemble, self.rows, protocol)
        return lambda x, fixed, order, states: self.respond(score(x, fixed, order, states))

    def answer_states(self, x: Floats, states: States) -> Response | None:
        sums = self.engine.sum_states(x, states)
        return None if sums is None else self.respond(sums)

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Response]:
        return map(self.respond, self.engine.sum_values(x, asked))

    def answer_rows(self, x: Floats) -> Response:
        return self.respond(self.engine.sum_rows(x))


def link_of(member: Member, forest: Forest) -> Callable[[Any], Response]:
    """Return the function raw sums (..., outputs, n) -> answers (N,) or (N, C), as the member's library has them."""
    library, outputs = library_of(member.estimator), len(forest.base)

    def flatten(sums: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(sums, -2, -1)).reshape(-1, outputs)

    def scores(sums: Any) -> Any:
        if sums.dtype == np.float32:
            return flatten(sums)  # XGBoost: of single precision up to the end
        return flatten(sums) / forest.divisor * forest.scale

    if forest.link == AVERAGE:
        return lambda sums: flatten(sums).astype(np.float64, copy=False) / forest.divisor
    if member.method == SCORES:
        return lambda sums: flatten(sums)[:, 0] if outputs == 1 else flatten(sums)
    if forest.link == SIGMOID:
        sigmoid = _sigmoid if library in ("xgboost", "lightgbm") else expit
        return lambda sums: _both_classes(sigmoid(scores(sums)[:, 0]))
    return (lambda sums: softmax(scores(sums), copy=False)) if library == "sklearn" else lambda s: _softmax(scores(s))


def _both_classes(p: Response) -> Response:
    both = np.empty((len(p), 2), dtype=p.dtype)
    both[:, 1] = p
    np.subtract(1, p, out=both[:, 0])
    return both


def _sigmoid(scores: Response) -> Response:
    out = np.empty_like(scores)
    fill_sigmoid(scores, np.array([1.0, LARGEST_EXPONENT[scores.dtype]], dtype=scores.dtype), out)
    return out


def _softmax(scores: Response) -> Response:
    out = np.empty_like(scores)
    fill_softmax(scores, out)
    return out


class LinearMember:
    """A member whose scores are sums over groups."""

    threads = True

    def __init__(self, member: Member, rows: EvidenceRows) -> None:
        estimator = member.estimator
        weights = estimator.coef_.toarray() if sp.issparse(estimator.coef_) else np.asarray(estimator.coef_)
        w = np.atleast_2d(weights).astype(np.float64)
        b = np.broadcast_to(np.asarray(estimator.intercept_, dtype=np.float64).reshape(-1), (len(w),))
        if w.shape[1] != rows.width:
            raise EngineError(f"{member.name} has weights of {w.shape[1]} columns, it is given {rows.width}")
        self.sums = GroupScores(w, b, rows.baseline, rows.column_group, rows.n_groups)
        self.doubts = self.sums.find_rounded
        self.method, self.plain = member.method, _without_weights(estimator, len(w))

    def respond(self, raw: Floats) -> Response:
        """Return the answers of raw scores (N, O)."""
        if self.method == SCORES:
            return raw[:, 0] if raw.shape[1] == 1 else raw
        return np.asarray(self.plain.predict_proba(raw))

    def at_places(self, protocol: Declared) -> AtPlaces:
        def answer(x: Floats, fixed: Booleans, order: Integers, states: PlaceStates) -> Response:
            total, removed = sum_contributions(self.sums, x, by_column=False)  # (m, O), (m, G, O)
            if len(fixed):
                self.sums.spare(x, fixed, removed.transpose(1, 2, 0))
            places = order.shape[1]
            taken = np.take_along_axis(removed, order[:, :, None], axis=1)
            extents = states.severity[:, None] * states.moved
            if places < self.sums.n_groups:  # a state moves all the others, or none of them
                rest = removed.sum(axis=1) - taken.sum(axis=1)
                taken, extents = np.concatenate([taken, rest[:, None]], axis=1), extents[:, : places + 1]
            m, n_outputs = total.shape
            by_place = taken.transpose(1, 0, 2).reshape(-1, m * n_outputs)
            return self.respond((total.reshape(1, -1) - extents @ by_place).reshape(-1, n_outputs))

        return answer

    def answer_states(self, x: Floats, states: States) -> Response | None:
        return self.respond(score_states(self.sums, x, states))

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Response]:
        return (self.respond(score_values(self.sums, x, *one).reshape(-1, self.sums.n_outputs)) for one in asked)

    def answer_rows(self, x: Floats) -> Response:
        return self.respond(x @ self.sums.coefficients.T + self.sums.intercept)


def _without_weights(estimator: Any, n_outputs: int) -> Any:
    """Return the estimator as it would be for rows that are their own scores: its link is the library's."""
    plain = copy.copy(estimator)
    plain.coef_, plain.intercept_, plain.n_features_in_ = np.eye(n_outputs), np.zeros(n_outputs), n_outputs
    vars(plain).pop("feature_names_in_", None)
    return plain


def answer_changed(member: MemberAnswers, x: Floats, values: Values) -> Response:
    """Return the answers (k m, ...) of rows that have changed."""
    return np.concatenate([member.answer_rows(np.where(values.unit == own, values.cells, x)) for own in values.asked])


class AskedMember:
    """A member that is handed the cells of every state; of ``CELLS``, the cells themselves."""

    threads = False  # the user's model is asked in the caller's thread

    def __init__(self, member: Member, rows: EvidenceRows) -> None:
        if rows.hand_over is None:
            raise EngineError(f"preprocessing stands between the evidence and {member.name}")
        if sp.issparse(rows.matrix) and member.method == CELLS:
            raise EngineError("its rows are sparse, and are passed through to the final estimator")
        self.member, self.rows, self.hand_over = member, rows, rows.hand_over

    def answer_rows(self, cells: Floats) -> Response:
        """Return the answers of rows (N, d)."""
        handed = self.hand_over(cells)
        if self.member.as_array or self.member.method == CELLS:
            handed = handed if sp.issparse(handed) else np.asarray(handed)
            handed = handed if self.member.columns is None else handed[:, self.member.columns]
        if self.member.method == CELLS:
            return np.asarray(handed)
        return np.asarray(getattr(self.member.estimator, self.member.method)(handed))

    def _ask_many(self, n: int, cells_of: Callable[[slice], Floats]) -> Response:
        step = rows_within(ASKED_BYTES, self.rows.width, copies=4)
        return np.concatenate(
            [self.answer_rows(cells_of(slice(i, min(i + step, n)))) for i in range(0, max(n, 1), step)]
        )

    def at_places(self, protocol: Declared) -> AtPlaces:
        def answer(x: Floats, fixed: Booleans, order: Integers, states: PlaceStates) -> Response:
            rank = np.full((len(x), self.rows.n_groups), order.shape[1])  # a group's place; the others move together
            np.put_along_axis(rank, order, np.arange(order.shape[1])[None], axis=1)
            rank = np.minimum(rank, self.rows.n_groups - 1)
            moved = states.moved[:, rank].astype(bool).reshape(-1, self.rows.n_groups)
            owner = np.tile(np.arange(len(x)), len(states.severity))
            every = States(owner, moved, np.repeat(states.severity, len(x)))
            if len(fixed):
                by_column = every.moved[:, self.rows.column_group] & ~fixed[owner]
                every = replace(every, moved=by_column, by_column=True)
            return self._ask_many(len(every), lambda part: self.rows.stressed(x, every.some(part)))

        return answer

    def answer_states(self, x: Floats, states: States) -> Response | None:
        return self._ask_many(len(states), lambda part: self.rows.stressed(x, states.some(part)))

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Response]:
        return (answer_changed(self, x, one) for one in asked)

    def doubts(self, x: Floats) -> Booleans:
        return np.zeros(len(x), dtype=bool)


class ColumnsMember:
    """A member that is read and given some of the columns."""

    def __init__(self, answers: TreeMember | LinearMember, columns: Integers) -> None:
        self.answers, self.columns, self.threads = answers, columns, answers.threads

    def at_places(self, protocol: Declared) -> AtPlaces:
        answer = self.answers.at_places(protocol)
        return lambda x, fixed, order, states: answer(
            x[:, self.columns], fixed.take(self.columns, axis=1), order, states
        )

    def answer_states(self, x: Floats, states: States) -> Response | None:
        if states.by_column:
            severity = states.severity
            if severity is not None and severity.ndim == 2:
                severity = severity[:, self.columns]
            states = States(states.owner, states.moved[:, self.columns], severity, by_column=True)
        return self.answers.answer_states(x[:, self.columns], states)

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Response]:
        return (answer_changed(self, x, one) for one in asked)  # a unit may have no column here

    def answer_rows(self, x: Floats) -> Response:
        return self.answers.answer_rows(x[:, self.columns])

    def doubts(self, x: Floats) -> Booleans:
        return self.answers.doubts(x[:, self.columns])
