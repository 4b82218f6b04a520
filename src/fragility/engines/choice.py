"""Which engine audits which model: the native one that knows it exactly, else the black box."""

from __future__ import annotations

import importlib
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import family_of, is_torch_module, say_lacking, warn_once
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.checking import (
    check_steady_states,
    compare_answers,
    compare_traces,
    find_contradicted,
    mix_own_answers,
    trace_checked,
)
from fragility.engines.trace import Progress, Trace, Tracer
from fragility.engines.trees.readers import READERS
from fragility.engines.wrapped.combining import WRAPPERS
from fragility.evidence import EvidenceRows, RowStates
from fragility.protocol import Protocol

SELF_CHECK_ROWS = 16


class EngineModule(typing.Protocol):
    """What the module of a native engine offers."""

    def never_reads(self, rows: EvidenceRows) -> str | None:
        """Return why the engine can audit no rows of this model and protocol, on any machine; None if it may."""

    def refusal(self, rows: EvidenceRows) -> str | None:
        """Return why the engine cannot audit these rows, or None if it can."""

    def doubts(self, rows: EvidenceRows) -> Callable[[Floats], Booleans]:
        """Return the function cells (m, d) -> (m,) rows that the engine may read otherwise than the model."""

    def trace(self, rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
        """Return the trace of every row."""

    def tracer(self, rows: EvidenceRows, protocol: Protocol) -> Tracer:
        """Return the function that traces these rows and others of their form, prepared once."""

    def predictor(self, rows: EvidenceRows) -> Callable[[Floats], Floats] | None:
        """Return a function that predicts stressed rows (m, d), or None if the model itself is as fast."""

    def state_answers(self, rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None] | None:
        """Return a function that predicts states of rows (m, d) without building their cells, or None."""

    def value_answers(self, rows: EvidenceRows) -> Callable[[Floats, Floats, Integers, Integers], Floats] | None:
        """Return a function as ``EvidenceRows.value_answers``, or None."""


@dataclass(frozen=True, slots=True)
class NativeEngine:
    """A native engine; its module is loaded when it is first used, because its libraries are optional."""

    name: str
    path: str  # of its module
    needs: tuple[str, ...]  # importable libraries without which it is not available
    tolerance: float  # largest difference of margins from the black box that is rounding
    rounding: float = 0.0  # by which margins of the model itself differ from batch to batch
    bounded: bool = False  # its ``doubts`` bound the rounding of every state of a row
    families: tuple[str, ...] = ()  # the only models that it may read; empty: its module must be asked
    torch_modules: bool = False  # it also reads any torch.nn.Module

    @property
    def module(self) -> EngineModule:
        return typing.cast(EngineModule, importlib.import_module(self.path))

    def knows(self, rows: EvidenceRows) -> bool:
        """Return whether this engine may read such a model, judged by its class: its module is not loaded."""
        head = rows.model.head
        return not self.families or family_of(head) in self.families or (self.torch_modules and is_torch_module(head))

    def lacking(self) -> str | None:
        """Return the sentence that names the extra without which this engine is not available; None if it is."""
        return say_lacking(f"the {self.name} engine", *self.needs)

    def refusal(self, rows: EvidenceRows) -> str | None:
        """Return why this engine cannot audit these rows here, or None if it can."""
        return self.lacking() or self.module.refusal(rows)

    def never_reads(self, rows: EvidenceRows) -> str | None:
        """Return why this engine can never have audited this model under this protocol, whatever is installed here."""
        try:
            return self.module.never_reads(rows)
        except ImportError:
            return None if self.knows(rows) else f"the {self.name} engine does not know it"

    def find_doubtful(self, rows: EvidenceRows) -> Booleans:
        """Return (n,) the rows that this engine may read otherwise than the model, as far as it knows itself."""
        return _ask_doubts(self.module.doubts(rows), rows)

    def accept(self, difference: str | None, required: bool) -> bool:
        """Return whether this engine may be used, though it differs from the model in this way (None: it does not)."""
        if difference is None:
            return True
        message = f"the {self.name} engine {difference}"
        if required:
            raise EngineError(f"{message}; use ", Advice.argument("engine", "auto"))
        warnings.warn(f"{message}; the black-box engine is used instead", stacklevel=5)
        return False


def _ask_doubts(doubts: Callable[[Floats], Booleans], rows: EvidenceRows) -> Booleans:
    step = rows_within(MEBIBYTE, rows.width, least=64)  # so that what is made of the cells stays in cache
    return np.concatenate([doubts(rows.dense(start, start + step)) for start in range(0, len(rows), step)])


class ReadyEngine:
    """A native engine that has read a model, ready for rows of one form: what it makes of the model is made once.

    The form is all of rows but their cells: baseline, groups, how cells are handed over. An engine may be used in
    several threads.
    """

    def __init__(self, native: NativeEngine, rows: EvidenceRows, protocol: Protocol) -> None:
        self.native, self.first = native, rows
        self.doubts = native.module.doubts(rows)
        self.trace = native.module.tracer(rows, protocol)

    def find_doubtful(self, rows: EvidenceRows) -> Booleans:
        """Return (n,) the rows that this engine may read otherwise than the model, as far as it knows itself."""
        return _ask_doubts(self.doubts, rows)

    @cached_property
    def answers(self) -> Answers:
        """What it answers beside traces."""
        return Answers.of(self.native, self.first)

    def prepare_answers(self, rows: EvidenceRows) -> EvidenceRows:
        """Return rows of the form with this engine's answers; those that the model contradicts have the model's."""
        ready = self.answers.put_into(rows)
        return rows if ready is None else _keep_contradicted(ready, rows, self.native, self.doubts)


class Answers(NamedTuple):
    """What a native engine answers about rows of one form; None where it does not."""

    predict: Callable[[Floats], Floats] | None
    states: Callable[[Floats, RowStates], Floats | None] | None
    values: Callable[[Floats, Floats, Integers, Integers], Floats] | None

    @classmethod
    def of(cls, native: NativeEngine, rows: EvidenceRows) -> Answers:
        module = native.module
        return cls(module.predictor(rows), module.state_answers(rows), module.value_answers(rows))

    def put_into(self, rows: EvidenceRows) -> EvidenceRows | None:
        """Return the rows with these answers; None if the model itself answers as fast."""
        if self.predict is None and self.states is None:
            return None
        predict = self.predict or rows.predict_matrix
        return replace(rows, predict_matrix=predict, answer_states=self.states, answer_values=self.values)


NETWORKS = ("sklearn.MLPClassifier", "fragility.ResMLPClassifier")
NATIVE = (
    NativeEngine("linear", "fragility.engines.linear", (), 1e-6, bounded=True),
    NativeEngine("trees", "fragility.engines.trees.engine", ("numba",), 1e-6, families=tuple(READERS)),
    # A float32 network rounds by the shape of its batch, in the black box as in the engine.
    NativeEngine("neural", "fragility.engines.neural", ("torch",), 1e-4, 1e-4, families=NETWORKS, torch_modules=True),
    NativeEngine("wrapped", "fragility.engines.wrapped.engine", ("numba",), 1e-6, families=tuple(WRAPPERS)),
)
ENGINES = ("auto", BLACKBOX, *(engine.name for engine in NATIVE))


def native_for(rows: EvidenceRows, engine: str, where: str = "") -> NativeEngine | None:
    """Return the native engine that audits these rows, None for the black box; EngineError if a named one cannot.

    where: of which part of an audit a warning speaks; empty for all of it.
    """
    if engine not in ENGINES:
        raise EngineError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == BLACKBOX:
        return None
    if engine == "auto":
        found = next((native for native in NATIVE if _is_available(native, rows, where)), None)
        if found is None:
            _explain_blackbox(rows, where)
        return found
    native = next(native for native in NATIVE if native.name == engine)
    if lacking := native.lacking():
        raise EngineError(lacking)
    reason = native.refusal(rows)
    if reason is not None:
        raise EngineError(
            f"the {engine} engine cannot audit {rows.model.kind}: {reason}; use ", Advice.argument("engine", "auto")
        )
    return native


def _is_available(native: NativeEngine, rows: EvidenceRows, where: str) -> bool:
    """Return whether an engine can audit these rows; say once what it lacks if that is all.

    The libraries of an engine that does not know the model's class are not loaded.
    """
    if not native.knows(rows):
        return False
    lacking = native.lacking()
    if lacking is None:
        return native.refusal(rows) is None
    try:
        takes = native.module.refusal(rows) is None
    except ImportError:
        takes = True  # judged by its class
    if takes:
        warn_once(f"{rows.model.kind} is asked as a black box{where}, which is slower: {lacking}")
    return False


def _explain_blackbox(rows: EvidenceRows, where: str) -> None:
    """Say once why a model of a kind that an engine reads is asked as a black box all the same."""
    for native in NATIVE:
        if native.families and not native.torch_modules and native.knows(rows) and native.lacking() is None:
            reason = native.module.refusal(rows)
            if reason is not None:
                warn_once(f"{rows.model.kind} is asked as a black box{where}, which is slower: {reason}")


def refusal(engine: str, rows: EvidenceRows) -> str | None:
    """Return why a native engine of this name cannot audit these rows here; None if it can."""
    return next((native.refusal(rows) for native in NATIVE if native.name == engine), None)


def never_reads(engine: str, rows: EvidenceRows) -> str | None:
    """Return why an engine of this name can never have audited this model under this protocol; None if it may have."""
    return next((native.never_reads(rows) for native in NATIVE if native.name == engine), None)


def choose_native(
    rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int, where: str = ""
) -> NativeEngine | None:
    """Return the native engine to use, once it has agreed with the black box on a few rows; None: the black box."""
    native = native_for(rows, engine, where)
    if native is None:
        return None
    few = rows.between(0, SELF_CHECK_ROWS)
    few = few.take(np.flatnonzero(~native.find_doubtful(few)).tolist())
    if not len(few):
        return native  # each row will be looked at when it is traced
    claimed = native.module.trace(few, protocol)
    # All severities in one call: for so few rows a call costs more than the states that a flip would spare.
    asked = trace_blackbox(few, protocol, byte_budget=byte_budget, severities_at_once=len(protocol.severities))
    difference = compare_traces(claimed, asked, few, protocol, native.tolerance)
    return native if native.accept(difference, required=engine != "auto") else None


def prepare_answers(rows: EvidenceRows, engine: str = "auto") -> EvidenceRows:
    """Return the rows with a native engine's answers, if one knows the model and agrees with it on a few states.

    For labels, searches and scores. An audit takes rows as they were bound, since it checks engines against the model.
    """
    native = native_for(rows, engine)
    if native is None:
        return rows
    ready = Answers.of(native, rows).put_into(rows)
    if ready is None:
        return rows
    doubts = native.module.doubts(rows)
    gap = _find_largest_gap(ready, rows, np.flatnonzero(~_ask_doubts(doubts, rows))[:SELF_CHECK_ROWS])
    differs = f"differs from {rows.model.kind}'s own probabilities by {gap:.3g}"
    if not native.accept(None if gap <= native.tolerance else differs, required=engine != "auto"):
        return rows
    return _keep_contradicted(ready, rows, native, doubts)


def _keep_contradicted(
    ready: EvidenceRows, rows: EvidenceRows, native: NativeEngine, doubts: Callable[[Floats], Booleans]
) -> EvidenceRows:
    """Return rows with an engine's answers, and the model's own for those that it doubts or that deny the engine."""
    doubtful = _ask_doubts(doubts, rows)
    doubtful |= find_contradicted(ready, rows, native.tolerance, doubtful)
    return mix_own_answers(ready, rows, doubtful, doubts)


def _find_largest_gap(ready: EvidenceRows, rows: EvidenceRows, places: Integers) -> float:
    """Return how far an engine's answers are from the model's own on a few states of a few rows.

    The states have lost nothing, either half of their groups or columns, or all of them; fully and partly.
    """
    if not len(places):
        return 0.0
    x = rows.take(places.tolist()).dense()
    sampled = []
    for units, by_column in ((rows.n_groups, False), (rows.width, True)):
        odd = np.arange(units) % 2 == 1
        halves = np.stack([odd & ~odd, odd, ~odd, odd | ~odd])
        sampled.append(RowStates.removals(np.tile(halves, (len(x), 1, 1)), by_column))
    sampled.append(replace(sampled[0], severity=np.tile([0.3, 0.5, 0.7, 0.9], len(x))))
    gaps = []
    for states in sampled:
        cells = rows.stressed(x, states)
        own = rows.predict(cells)
        gaps += [float(np.abs(told - own).max()) for told in (ready.predict(cells), ready.answers(x, states))]
    groups = np.arange(rows.n_groups)
    for y in (x[::-1], x[0]):  # each group takes the values of another row
        told, own = (ask.value_answers(x, y, rows.column_group, groups) for ask in (ready, rows))
        gaps.append(float(np.abs(told - own).max()))
    return max(gaps)


class RowDoubter:
    """Which rows an engine may read otherwise than the model, some rows at a time."""

    def __init__(self, native: NativeEngine, rows: EvidenceRows) -> None:
        self.rows, self.tolerance, self.doubts = rows, native.tolerance, native.module.doubts(rows)
        self.ready = replace(rows, answer_states=native.module.state_answers(rows))

    def __call__(self, start: int, x: Floats, p: Floats) -> Booleans:
        """Return (m,) for rows from ``start`` on: cells x (m, d), probabilities by the model itself p (m, C)."""
        doubted = self.doubts(x)
        sure = np.flatnonzero(~doubted)
        if len(sure):
            ids = [self.rows.ids[start + i] for i in sure]
            spared = self.rows.spared(start, start + len(x))
            spared = None if spared is None else spared.of(sure)
            doubted[sure] = compare_answers(self.ready, self.rows, x[sure], spared, ids, p[sure], self.tolerance)
        return doubted


def trace_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    engine: ReadyEngine | None,
    byte_budget: int,
    progress: Progress | None = None,
) -> Trace:
    """Return the trace of bound rows by an engine made ready for them, or by the model itself if there is none.

    A native engine's answers are checked per row. Some states are asked again alone and in other batches, unless there
    are fewer than four rows.
    """
    if engine is None:
        trace = trace_blackbox(rows, protocol, byte_budget=byte_budget, progress=progress)
    else:
        trace = trace_checked(engine, rows, protocol, byte_budget, progress)
    check_steady_states(trace, rows, protocol)
    return trace
