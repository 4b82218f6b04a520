"""The engine of wrappers: the states of every member, and the wrapper's arithmetic on their answers.

At every state of a trace the wrapper's probabilities are what its arithmetic makes of its members' answers there. So no
state is asked of the wrapper, and no member but those that cannot be read is asked either.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import EngineError
from fragility.engines.trace import Progress, Trace, Tracer
from fragility.engines.trees.engine import trace_in_chunks, try_unusual_cells
from fragility.engines.trees.forest import AVERAGE
from fragility.engines.wrapped.combining import Combination, Member, Response
from fragility.evidence import EvidenceRows, RowStates
from fragility.models import Model
from fragility.models.links import Link
from fragility.protocol import Protocol

ENGINE = "wrapped"
BLOCK_ROWS = 2048  # rows that are combined together: the answers to their states stay in cache


class Reading(NamedTuple):
    """A wrapper as it is read, and its members behind the door of models."""

    combination: Combination
    models: tuple[Model | None, ...]


_READINGS: weakref.WeakKeyDictionary[Model, Reading] = weakref.WeakKeyDictionary()


def reading_of(model: Model) -> Reading:
    """Return the wrapper's expression, read once per adapter; EngineError if it is not known."""
    from fragility.engines.wrapped.members import wrap_member

    reading = _READINGS.get(model)
    if reading is None:
        combination = Combination.read(model.head)
        reading = Reading(combination, tuple(wrap_member(member) for member in combination.members))
        _READINGS[model] = reading
    return reading


# --- which models -------------------------------------------------------------------------------------------


def never_reads(rows: EvidenceRows) -> str | None:
    """Return why the engine can audit no rows of this model and protocol, or None if it may."""
    from fragility.engines.wrapped.members import explain_never_read

    try:
        reading = reading_of(rows.model)
    except EngineError as error:
        return str(error)
    if rows.model.head_link is not Link.PREDICT_PROBA:
        return f"its probabilities come from {rows.model.link!r}"
    pairs = zip(reading.combination.members, reading.models, strict=True)
    reasons = [explain_never_read(member, model, rows) for member, model in pairs]
    return None if None in reasons else f"none of its members can be read: {reasons[0]}"


def refusal(rows: EvidenceRows) -> str | None:
    """Return why the engine cannot audit these rows, or None if it can."""
    from fragility.engines.wrapped.members import explain_unread

    if reason := never_reads(rows):
        return reason
    reading = reading_of(rows.model)
    pairs = zip(reading.combination.members, reading.models, strict=True)
    reasons = [explain_unread(member, model, rows) for member, model in pairs]
    if None not in reasons:
        return f"none of its members can be read: {reasons[0]}"
    try:
        Answering(rows)
    except EngineError as error:
        return str(error)
    return None


class Answering:
    """The members of a wrapper, bound to the baseline and groups of some rows."""

    def __init__(self, rows: EvidenceRows) -> None:
        from fragility.engines.wrapped.members import make_answers

        reading = reading_of(rows.model)
        self.combination = reading.combination
        pairs = zip(self.combination.members, reading.models, strict=True)
        self.answers = {member: make_answers(member, model, rows) for member, model in pairs}

    @property
    def threads(self) -> bool:
        """Whether all members may be asked in several threads."""
        return all(answers.threads for answers in self.answers.values())

    def combine(self, given: dict[Member, Response]) -> Floats:
        """Return (N, C) the wrapper's probabilities of its members' answers."""
        return np.asarray(self.combination.combine(given.__getitem__), dtype=np.float64)

    def combine_one(self, answer: Response) -> Floats:
        """Return the same for a wrapper with a single member."""
        return self.combine(dict.fromkeys(self.answers, answer))


def doubts(rows: EvidenceRows) -> Callable[[Floats], Booleans]:
    """Return the function cells (m, d) -> (m,) rows that some member may read otherwise than is known here."""
    doubtful = [answers.doubts() for answers in Answering(rows).answers.values()]
    return lambda cells: reduce(np.logical_or, (each(cells) for each in doubtful))


# --- the trace ----------------------------------------------------------------------------------------------


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    return tracer(rows, protocol)(rows, progress)


def tracer(rows: EvidenceRows, protocol: Protocol) -> Tracer:
    """Return the function that traces these rows and others of their form, prepared once."""
    from fragility.engines.trees.scoring import AuditScorer, States, SumLink

    answering = Answering(rows)
    at_places = {member: answers.at_places(protocol) for member, answers in answering.answers.items()}

    def score(x: Floats, fixed: Booleans, order: Integers, states: States) -> Any:
        p = answering.combine({member: answer(x, fixed, order, states) for member, answer in at_places.items()})
        by_state = p.reshape(len(states.severity), len(x), rows.n_classes)
        return np.ascontiguousarray(by_state.transpose(0, 2, 1))

    as_they_are = SumLink(AVERAGE, 1.0, 1.0, rows.n_classes)
    scorer = AuditScorer(score, as_they_are, rows, protocol, BLOCK_ROWS, ENGINE)
    threads = None if answering.threads else 1
    return lambda others, progress=None: trace_in_chunks(scorer, others, protocol, progress, threads)


# --- answers to labels, searches and scores -----------------------------------------------------------------


def predictor(rows: EvidenceRows) -> Callable[[Floats], Floats]:
    """Return the wrapper's probabilities of stressed rows, prepared once."""
    answering = Answering(rows)
    at_rows = {member: answers.at_rows() for member, answers in answering.answers.items()}

    def predict(matrix: Floats) -> Floats:
        try_unusual_cells(matrix, rows, set())
        return answering.combine({member: answer(matrix) for member, answer in at_rows.items()})

    return predict


def state_answers(rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None]:
    """Return the function (rows (m, d), states, other ones for each row) -> their probabilities, prepared once."""
    answering, accepted = Answering(rows), set[str]()
    at_states = {member: answers.at_states() for member, answers in answering.answers.items()}

    def answer(x: Floats, states: RowStates) -> Floats | None:
        try_unusual_cells(x, rows, accepted)
        given: dict[Member, Response] = {}
        for member, ask in at_states.items():
            told = ask(x, states)
            if told is None:
                return None
            given[member] = told
        return answering.combine(given)

    return answer


def value_answers(rows: EvidenceRows) -> Callable[[Floats, Floats, Integers, Integers], Floats]:
    """Return the function of ``EvidenceRows.value_answers``, prepared once."""
    answering, accepted = Answering(rows), set[str]()
    at_values = {member: answers.at_values() for member, answers in answering.answers.items()}

    def answer(x: Floats, y: Floats, unit: Integers, asked: Integers) -> Floats:
        for cells in (x, np.atleast_2d(y)):
            try_unusual_cells(cells, rows, accepted)
        p = answering.combine({member: ask(x, y, unit, asked) for member, ask in at_values.items()})
        return p.reshape(len(asked), len(x), rows.n_classes)

    return answer
