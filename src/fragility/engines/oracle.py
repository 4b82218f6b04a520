"""Oracle: who answers questions about stressed copies of rows.

    ModelOracle    the model itself
    EngineOracle   a native engine that has read the model, unchecked
    CheckedOracle  the engine, and the model itself about every row in doubt

A question is about rows as cells x (m, d): states, which move units toward the baseline; units that take other values;
whole changed copies; any cells at all. Questions about nothing (no rows, no states, no units) are answered here, and
never reach a model or an engine.

A row is in doubt if the engine itself knows that it may not read some cell of the row as the model does (its
``doubts``), or if the model contradicts the engine about that row. This depends on the row alone, never on the batch or
the part it came in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.base.ids import id_keys
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import row_keys, trace_blackbox
from fragility.engines.checking import (
    BATCH_ROWS,
    COPIES,
    check_steady_states,
    draw_by_id,
    draw_states,
    find_contradicted_claims,
    find_contradicted_margins,
)
from fragility.engines.engine import Engine, Values
from fragility.engines.trace import CONTRADICTED, UNPROMISED, Progress, Trace, TraceStates
from fragility.evidence import EvidenceRows, Spared, States
from fragility.protocol import Protocol
from fragility.scores import pseudo_logits


class Oracle(ABC):
    """Answers about copies of rows of one form; ``rows`` are those that it was made for.

    By default the cells of all copies are built and predicted.
    """

    name: str  # of the engine that answers, or the black box

    def __init__(self, rows: EvidenceRows) -> None:
        self.rows = rows

    @property
    def model(self) -> ModelOracle:
        """The model itself, for the same rows."""
        return ModelOracle(self.rows)

    def take(self, positions: Sequence[int]) -> Oracle:
        """Return the same oracle for the rows at these positions."""
        other = copy(self)
        other.rows = self.rows.take(positions)
        return other

    def asks_model(self, x: Floats) -> Booleans:
        """Return (m,) about which rows x (m, d) the model itself is asked although there is an engine."""
        return np.zeros(len(x), dtype=bool)

    # --- questions ------------------------------------------------------------------------------------------

    def predict(self, matrix: Floats) -> Floats:
        """Return (m, C) probabilities of any stressed matrix (m, d)."""
        return self._predict(matrix) if len(matrix) else np.empty((0, self.rows.n_classes))

    def predict_copies(self, x: Floats, copies: Floats) -> Floats:
        """Return (m k, C) probabilities of k changed copies (m, k, d) of each of the rows x (m, d)."""
        return self._predict_copies(x, copies) if copies.size else np.empty((0, self.rows.n_classes))

    def answer_states(self, x: Floats, states: States, byte_budget: int = DEFAULT_BYTE_BUDGET) -> Floats:
        """Return (q, C) probabilities of q states of rows x (m, d); byte_budget: of the cells held at a time."""
        return self._answer_states(x, states, byte_budget) if len(states) else np.empty((0, self.rows.n_classes))

    def answer_values(
        self, x: Floats, asked: Sequence[Values], byte_budget: int = DEFAULT_BYTE_BUDGET
    ) -> Iterator[Floats]:
        """Yield the (k, m, C) probabilities of rows x (m, d) in which one unit has taken other cells."""
        answers = iter(self._answer_values(x, [one for one in asked if len(one.asked)] if len(x) else [], byte_budget))
        for one in asked:
            nothing = not len(one.asked) or not len(x)
            yield np.empty((len(one.asked), len(x), self.rows.n_classes)) if nothing else next(answers)

    def trace(
        self,
        protocol: Protocol,
        byte_budget: int = DEFAULT_BYTE_BUDGET,
        progress: Progress | None = None,
        parts: int = 1,
    ) -> Trace:
        """Return the trace of the rows.

        Some of its states are asked of the model again, alone and in other batches, unless there are fewer than four
        rows. parts: of an audit, among which these states are divided.
        """
        trace = self._trace(protocol, byte_budget, progress)
        check_steady_states(trace, self.rows, protocol, parts=parts)
        return trace

    # --- by whom they are answered --------------------------------------------------------------------------

    @abstractmethod
    def _predict(self, matrix: Floats) -> Floats: ...

    @abstractmethod
    def _trace(self, protocol: Protocol, byte_budget: int, progress: Progress | None) -> Trace: ...

    def _predict_copies(self, x: Floats, copies: Floats) -> Floats:
        return self.predict(copies.reshape(-1, copies.shape[2]))

    def _answer_states(self, x: Floats, states: States, byte_budget: int) -> Floats:
        rows = self.rows
        step = rows_within(byte_budget, rows.width, copies=4)  # cells, masks and the model's own copy
        parts = (states.between(start, start + step) for start in range(0, len(states), step))
        return np.concatenate([self.predict(rows.stressed(x, part)) for part in parts])

    def _answer_values(self, x: Floats, asked: Sequence[Values], byte_budget: int) -> Iterable[Floats]:
        width, n_classes = self.rows.width, self.rows.n_classes
        for cells, unit, units in asked:
            p, y = np.empty((len(units), len(x), n_classes)), np.broadcast_to(cells, x.shape)
            step = rows_within(byte_budget, width * len(units), copies=4)
            for start in range(0, len(x), step):
                part = slice(start, start + step)
                copies = np.where(unit == units[:, None, None], y[part], x[part])
                p[:, part] = self.predict(copies.reshape(-1, width)).reshape(len(units), -1, n_classes)
            yield p


class ModelOracle(Oracle):
    """The model itself, which is handed the cells of every copy."""

    name = BLACKBOX

    @property
    def model(self) -> ModelOracle:
        return self

    def _predict(self, matrix: Floats) -> Floats:
        return self.rows.predict(matrix)

    def _trace(self, protocol: Protocol, byte_budget: int, progress: Progress | None) -> Trace:
        return trace_blackbox(self.rows, protocol, byte_budget=byte_budget, progress=progress)


class EngineOracle(Oracle):
    """A native engine, whatever the model says; what the engine does not answer itself is asked of the model."""

    def __init__(self, engine: Engine, rows: EvidenceRows) -> None:
        super().__init__(rows)
        self.engine, self.name = engine, engine.name

    def _predict(self, matrix: Floats) -> Floats:
        return self.engine.predict(matrix) if self.engine.predicts else self.rows.predict(matrix)

    def _answer_states(self, x: Floats, states: States, byte_budget: int) -> Floats:
        answered = self.engine.answer_states(x, states)
        return super()._answer_states(x, states, byte_budget) if answered is None else answered

    def _answer_values(self, x: Floats, asked: Sequence[Values], byte_budget: int) -> Iterable[Floats]:
        answered = self.engine.answer_values(x, asked)
        return super()._answer_values(x, asked, byte_budget) if answered is None else answered

    def _trace(self, protocol: Protocol, byte_budget: int, progress: Progress | None) -> Trace:
        return self.engine.trace(self.rows, protocol, progress)

    def find_doubted(self, start: int, x: Floats, p: Floats) -> Booleans:
        """Return (m,) which of the rows from ``start`` on are in doubt.

        x (m, d): their cells. p (m, C): their probabilities by the model itself.
        """
        doubted = self.engine.doubts(x)
        sure = np.flatnonzero(~doubted)
        if len(sure):
            spared = self.rows.spared(start, start + len(x))
            spared = None if spared is None else spared.of(sure)
            doubted[sure] = self.find_contradicted(x[sure], spared, [self.rows.ids[start + i] for i in sure], p[sure])
        return doubted

    def find_contradicted(self, x: Floats, spared: Spared | None, ids: Sequence[Hashable], p: Floats) -> Booleans:
        """Return (m,) the rows x (m, d) of which the model denies the answers: at x, or without about half the groups.

        p (m, C): their probabilities by the model itself.
        """
        without = remove_halves(ids, self.rows, spared)
        both = np.stack([np.zeros_like(without.moved), without.moved], axis=1)
        states = States.removals(both, without.by_column)
        own = np.stack([p, self.model.answer_states(x, without)], axis=1)
        answered = self.answer_states(x, states).reshape(own.shape)
        return np.asarray(
            ~(np.abs(pseudo_logits(own) - pseudo_logits(answered)) <= self.engine.tolerance).all(axis=(1, 2))
        )


class CheckedOracle(Oracle):
    """A native engine's answers, and the model's own about rows in doubt; every trace is checked row by row.

    Which rows are in doubt is found when they are first asked about; each is known by its cells, so the model is asked
    about another row of the same cells as well.
    """

    def __init__(self, engine: Engine, rows: EvidenceRows) -> None:
        super().__init__(rows)
        self.engine, self.name = engine, engine.name
        self.unchecked = EngineOracle(engine, rows)

    def take(self, positions: Sequence[int]) -> CheckedOracle:
        """Return the same oracle for the rows at these positions."""
        doubted, keys = self.doubted[list(positions)], self._doubted_keys
        other = CheckedOracle(self.engine, self.rows.take(positions))
        vars(other).update(doubted=doubted, _doubted_keys=keys)
        return other

    @cached_property
    def doubted(self) -> Booleans:
        """(n,) the rows that are in doubt."""
        rows, doubted = self.rows, self.engine.find_doubtful(self.rows)
        places = np.flatnonzero(~doubted)
        step = rows_within(DEFAULT_BYTE_BUDGET, rows.width, copies=COPIES, most=BATCH_ROWS)
        for start in range(0, len(places), step):
            some = places[start : start + step]
            part = rows.take(some.tolist()) if len(places) < len(rows) else rows.between(start, start + step)
            x = part.dense()
            p = part.own_probabilities(0, x)
            doubted[some] = self.unchecked.find_contradicted(x, part.spared(), part.ids, p)
        return doubted

    @cached_property
    def _doubted_keys(self) -> Integers:
        doubted = np.flatnonzero(self.doubted)
        return np.unique(row_keys(self.rows.take(doubted.tolist()).dense())) if len(doubted) else doubted

    def asks_model(self, x: Floats) -> Booleans:
        if not self.engine.answers or not len(self._doubted_keys):
            return super().asks_model(x)
        return np.isin(row_keys(x), self._doubted_keys)

    def _predict(self, matrix: Floats) -> Floats:
        if not self.engine.predicts:
            return self.rows.predict(matrix)
        own = self.asks_model(matrix) | self.engine.doubts(matrix)
        if not own.any():
            return self.unchecked.predict(matrix)
        return self._mix(own, lambda oracle, some: oracle.predict(matrix[some]))

    def _predict_copies(self, x: Floats, copies: Floats) -> Floats:
        p = super()._predict_copies(x, copies)
        if self.engine.predicts and (own := self.asks_model(x)).any():
            p = p.copy()
            p[np.repeat(own, copies.shape[1])] = self.rows.predict(copies[own].reshape(-1, copies.shape[2]))
        return p

    def _answer_states(self, x: Floats, states: States, byte_budget: int) -> Floats:
        own = self.asks_model(x)[states.owner]
        if own.any():
            return self._mix(own, lambda oracle, some: oracle.answer_states(x, states.some(some), byte_budget))
        answered = self.engine.answer_states(x, states)
        return super()._answer_states(x, states, byte_budget) if answered is None else answered

    def _answer_values(self, x: Floats, asked: Sequence[Values], byte_budget: int) -> Iterable[Floats]:
        doubted = self.asks_model(x)
        for one, p in zip(asked, self.unchecked.answer_values(x, asked, byte_budget), strict=True):
            own = np.flatnonzero(doubted | self.asks_model(np.atleast_2d(one.cells)))
            if len(own):
                theirs = one if one.cells.ndim == 1 else one._replace(cells=one.cells[own])
                p[:, own] = next(self.model.answer_values(x[own], [theirs], byte_budget))
            yield p

    def _mix(self, own: Booleans, ask: Callable[[Oracle, Booleans], Floats]) -> Floats:
        """Return answers (q, C): the model's own where they are marked, elsewhere the engine's."""
        p = np.empty((len(own), self.rows.n_classes))
        p[own] = ask(self.model, own)
        if not own.all():
            p[~own] = ask(self.unchecked, ~own)
        return p

    # --- traces ---------------------------------------------------------------------------------------------

    def _trace(self, protocol: Protocol, byte_budget: int, progress: Progress | None) -> Trace:
        """Return the engine's trace, with the black box's own of the rows for which the engine is in doubt."""
        engine, rows = self.engine, self.rows
        doubt = np.where(engine.find_doubtful(rows), UNPROMISED, 0).astype(np.uint8)
        promised = np.flatnonzero(doubt == 0)
        parts: list[tuple[Integers, Trace]] = []
        if len(promised):
            own = rows if len(promised) == len(rows) else rows.take(promised.tolist())
            trace = engine.trace(own, protocol, progress)
            wrong = find_contradicted_claims(trace, own, protocol, engine)
            if not wrong.any() and len(promised) == len(rows):
                return trace
            doubt[promised[wrong]] = CONTRADICTED
            parts.append((promised[~wrong], trace.rows(np.flatnonzero(~wrong))))
        asked = np.flatnonzero(doubt)
        parts.append((asked, trace_blackbox(rows.take(asked.tolist()), protocol, byte_budget=byte_budget)))
        merged = Trace.merge(parts, engine.name)
        # Each row counts by itself: what rows share in a batch is not theirs.
        states = len(asked) * TraceStates.of(protocol, rows).per_row
        evaluations = states + sum(trace.evaluations for places, trace in parts if places is not asked)
        return replace(merged, doubt=doubt, evaluations=evaluations)

    def trace_undecided(self, protocol: Protocol, decide: Callable[[Floats], Integers | None]) -> Trace | None:
        """Return the checked trace of few rows whose classes are not decided, asking the model once about all states.

        The engine names the classes first, and the model is asked about x and the other state in one call. None if the
        engine is in doubt about a row, or the model names another class: such rows take the longer way of ``trace``,
        which comes to the same result.

        decide: the model's probabilities at x (n, C) -> its own classes (n,), None if it has no labels.
        """
        engine, rows = self.engine, self.rows
        x = rows.dense()
        if engine.doubts(x).any():
            return None
        trace = engine.trace(rows, protocol)
        claimed = None
        if engine.bounded:
            p = q = rows.predict(x)
        else:
            cells, claimed = draw_states(trace, x, rows.spared(), rows, protocol, draw_by_id(rows.ids))
            p, q = np.split(rows.predict(np.concatenate([x, cells])), 2)
        named = decide(p)
        if named is not None and not np.array_equal(named, trace.predicted):
            return None
        contradicts = find_contradicted_margins(trace, rows, protocol, engine, p, q, claimed)
        return None if contradicts.any() else trace

    def list_checked_states(self, protocol: Protocol) -> Floats:
        """Return the cells (k, d) of the states at which the model will be asked whether the engine is right.

        These are x, the state of a certificate's check and that of an engine's answers, so that one call answers all.
        """
        engine, rows = self.engine, self.rows
        x = rows.dense()
        cells = [x, rows.stressed(x, remove_halves(rows.ids, rows, rows.spared()))]
        if not engine.bounded and not engine.doubts(x).any():
            trace, drawn = engine.trace(rows, protocol), draw_by_id(rows.ids)
            cells.append(draw_states(trace, x, rows.spared(), rows, protocol, drawn)[0])
        return np.concatenate(cells)


def make_oracle(engine: Engine | None, rows: EvidenceRows) -> Oracle:
    """Return who answers about rows: an engine made ready for rows of their form, checked, or the model itself."""
    return ModelOracle(rows) if engine is None else CheckedOracle(engine, rows)


def remove_halves(ids: Sequence[Hashable], rows: EvidenceRows, spared: Spared | None) -> States:
    """Return one state per row, which has lost about half the groups; the row's id says which."""
    n_groups = rows.n_groups
    bits = np.unpackbits(np.frombuffer(id_keys(ids).tobytes(), dtype=np.uint8).reshape(len(ids), -1), axis=1)
    halves = np.tile(bits, -(-n_groups // bits.shape[1]))[:, :n_groups].astype(bool)
    return States(np.arange(len(ids)), halves).sparing(spared, rows.column_group)
