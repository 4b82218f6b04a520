"""The engine of wrappers: the states of every member, and the wrapper's arithmetic on their answers.

At every state of a trace the wrapper's probabilities are what its arithmetic makes of its members' answers there. So no
state is asked of the wrapper, and no member but those that cannot be read is asked either.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import EngineError
from fragility.engines.engine import Engine, Values
from fragility.engines.trace import Tracer
from fragility.engines.trees.engine import trace_in_chunks, try_unusual_cells
from fragility.engines.trees.forest import AVERAGE
from fragility.engines.wrapped.combining import WRAPPERS, Combination, Member, Response
from fragility.evidence import EvidenceRows, States
from fragility.models import Model
from fragility.models.outputs import Link
from fragility.protocol import Protocol

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


class WrappedEngine(Engine):
    """The members of a wrapper, bound to the baseline and groups of some rows, and its arithmetic on their answers."""

    name, needs, families = "wrapped", ("numba",), tuple(WRAPPERS)

    def __init__(self, rows: EvidenceRows) -> None:
        from fragility.engines.wrapped.members import make_answers

        super().__init__(rows)
        reading = reading_of(rows.model)
        self.combination = reading.combination
        pairs = zip(self.combination.members, reading.models, strict=True)
        self.members = {member: make_answers(member, model, rows) for member, model in pairs}
        self._accepted = set[str]()  # kinds of unusual cells that the model takes

    @classmethod
    def never_reads(cls, rows: EvidenceRows) -> str | None:
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

    @classmethod
    def refusal(cls, rows: EvidenceRows) -> str | None:
        from fragility.engines.wrapped.members import explain_unread

        if reason := cls.never_reads(rows):
            return reason
        reading = reading_of(rows.model)
        pairs = zip(reading.combination.members, reading.models, strict=True)
        reasons = [explain_unread(member, model, rows) for member, model in pairs]
        if None not in reasons:
            return f"none of its members can be read: {reasons[0]}"
        try:
            cls(rows)
        except EngineError as error:
            return str(error)
        return None

    @property
    def threads(self) -> bool:
        """Whether all members may be asked in several threads."""
        return all(member.threads for member in self.members.values())

    def combine(self, given: dict[Member, Response]) -> Floats:
        """Return (N, C) the wrapper's probabilities of its members' answers."""
        return np.asarray(self.combination.combine(given.__getitem__), dtype=np.float64)

    def combine_one(self, answer: Response) -> Floats:
        """Return the same for a wrapper with a single member."""
        return self.combine(dict.fromkeys(self.members, answer))

    def doubts(self, cells: Floats) -> Booleans:
        return reduce(np.logical_or, (member.doubts(cells) for member in self.members.values()))

    def tracer(self, protocol: Protocol) -> Tracer:
        from fragility.engines.trees.scoring import AuditScorer, PlaceStates, SumLink

        at_places = {member: answers.at_places(protocol) for member, answers in self.members.items()}
        n_classes = self.form.n_classes

        def score(x: Floats, fixed: Booleans, order: Integers, states: PlaceStates) -> Any:
            p = self.combine({member: answer(x, fixed, order, states) for member, answer in at_places.items()})
            by_state = p.reshape(len(states.severity), len(x), n_classes)
            return np.ascontiguousarray(by_state.transpose(0, 2, 1))

        as_they_are = SumLink(AVERAGE, 1.0, 1.0, n_classes)
        scorer = AuditScorer(score, as_they_are, self.form, protocol, BLOCK_ROWS, self.name)
        threads = None if self.threads else 1
        return lambda rows, progress=None: trace_in_chunks(scorer, rows, protocol, progress, threads)

    def predict(self, matrix: Floats) -> Floats:
        try_unusual_cells(matrix, self.form, set())
        return self.combine({member: answers.answer_rows(matrix) for member, answers in self.members.items()})

    def answer_states(self, x: Floats, states: States) -> Floats | None:
        try_unusual_cells(x, self.form, self._accepted)
        given: dict[Member, Response] = {}
        for member, answers in self.members.items():
            answered = answers.answer_states(x, states)
            if answered is None:
                return None
            given[member] = answered
        return self.combine(given)

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Floats]:
        for cells in (x, *(np.atleast_2d(one.cells) for one in asked)):
            try_unusual_cells(cells, self.form, self._accepted)
        given = [answers.answer_values(x, asked) for answers in self.members.values()]
        for one, *responses in zip(asked, *given, strict=True):
            p = self.combine(dict(zip(self.members, responses, strict=True)))
            yield p.reshape(len(one.asked), len(x), self.form.n_classes)
