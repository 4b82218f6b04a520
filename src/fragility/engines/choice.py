"""Which engine audits which model: the native one that knows it exactly, else the black box."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fragility.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.comparison import disagreement
from fragility.engines.doubts import contradicted_answers, differing_answers, with_own_answers
from fragility.engines.trace import Progress, Trace
from fragility.errors import Advice, EngineError
from fragility.evidence import EvidenceRows, RowStates
from fragility.libraries import family_of, say_lacking, suggest_extra
from fragility.protocol import Protocol

SELF_CHECK_ROWS = 16


@dataclass(frozen=True, slots=True)
class NativeEngine:
    """A native engine's module, loaded only when asked: its libraries are optional."""

    name: str
    module: str  # offers refusal(rows), never_reads(rows) -> reason or None, trace(rows, protocol, progress) -> Trace
    needs: tuple[str, ...]  # importable libraries without which it is not available
    tolerance: float  # largest difference of margins from the black box that is rounding
    rounding: float = 0.0  # by which margins of the model itself differ from batch to batch
    bounded: bool = False  # its ``doubts`` bound the rounding of every state of a row
    families: tuple[str, ...] = ()  # of models that it reads, where it cannot be loaded without its libraries

    def refusal(self, rows: EvidenceRows) -> str | None:
        """Return why this engine cannot audit these rows, or None if it can."""
        return self.lacking() or self._loaded().refusal(rows)

    def lacking(self) -> str | None:
        """Return the sentence that names the extra without which this engine is not available; None if it is."""
        return say_lacking(f"the {self.name} engine", *self.needs)

    def takes(self, rows: EvidenceRows) -> bool:
        """Return whether this engine would audit these rows if its libraries were installed."""
        try:
            return self._loaded().refusal(rows) is None
        except ImportError:
            return self._reads_family_of(rows)

    def never_reads(self, rows: EvidenceRows) -> str | None:
        """Return why this engine can never have audited this model under this protocol, wherever it ran.

        It follows from the model and the protocol, not from what is installed here: None if it may have.
        """
        try:
            reason: str | None = self._loaded().never_reads(rows)
            return reason
        except ImportError:
            return None if self._reads_family_of(rows) else f"the {self.name} engine does not know it"

    def _reads_family_of(self, rows: EvidenceRows) -> bool:
        """Return whether it was a model of the engine's that could not be read; one without families says no first."""
        return not self.families or family_of(rows.model.head) in self.families

    def doubtful(self, rows: EvidenceRows) -> Booleans:
        """Return (n,) the rows that this engine may read otherwise than the model, as far as it knows itself."""
        doubts = self.doubts(rows)
        step = rows_within(MEBIBYTE, rows.width, least=64)  # so that what is made of the cells stays in cache
        return np.concatenate([doubts(rows.dense(start, start + step)) for start in range(0, len(rows), step)])

    def doubts(self, rows: EvidenceRows) -> Callable[[Floats], Booleans]:
        """Return the same for any cells (m, d) of these columns; an engine that offers no such function doubts none."""
        offered = getattr(self._loaded(), "doubts", None)
        return (lambda cells: np.zeros(len(cells), dtype=bool)) if offered is None else offered(rows)

    def allowed(self, resolution: float) -> float:
        """Return how far a margin may be from the model's own: no further than the protocol lets a verifier find it."""
        return min(self.tolerance, max(resolution, self.rounding))

    def trace(self, rows: EvidenceRows, protocol: Protocol, progress: Progress | None) -> Trace:
        return self._loaded().trace(rows, protocol, progress)  # type: ignore[no-any-return]

    def predictor(self, rows: EvidenceRows) -> Callable[[Floats], Floats] | None:
        """Return the engine's own predictor of stressed rows, None where it has none faster than the model."""
        offered = getattr(self._loaded(), "predictor", None)
        return None if offered is None else offered(rows)

    def state_answers(self, rows: EvidenceRows) -> Callable[[Floats, RowStates], Floats | None] | None:
        """Return the engine's answers to states that each row has of its own, None where it has none."""
        offered = getattr(self._loaded(), "state_answers", None)
        return None if offered is None else offered(rows)

    def _loaded(self) -> Any:
        return importlib.import_module(self.module)


NATIVE = (
    NativeEngine("linear", "fragility.engines.linear.engine", (), 1e-6, bounded=True),
    NativeEngine("trees", "fragility.engines.trees.engine", ("numba",), 1e-6),
    # A float32 network rounds by the shape of its batch, in the black box as in the engine.
    NativeEngine("neural", "fragility.engines.neural", ("torch",), 1e-4, 1e-4, families=("sklearn.MLPClassifier",)),
)
ENGINES = ("auto", BLACKBOX, *(engine.name for engine in NATIVE))


def prepared(rows: EvidenceRows, engine: str = "auto") -> EvidenceRows:
    """Return the rows with what answers fastest for many stressed copies of them.

    Answers are a native engine's where it knows the model and agrees with it on a few states, else the model's own.
    For labels, searches and scores; an audit takes rows as they were bound, since it checks engines against the model.
    """
    native = native_for(rows, engine)
    if native is None:
        return rows
    predictor, answers = native.predictor(rows), native.state_answers(rows)
    if predictor is None and answers is None:
        return rows
    ready = replace(rows, predict_matrix=predictor or rows.predict_matrix, answer_states=answers)
    doubtful = native.doubtful(rows)
    gap = _largest_gap(ready, rows, np.flatnonzero(~doubtful)[:SELF_CHECK_ROWS])
    differs = f"differs from {rows.model.kind}'s own probabilities by {gap:.3g}"
    if not _accepted(None if gap <= native.tolerance else differs, native, required=engine != "auto"):
        return rows
    doubtful |= contradicted_answers(ready, rows, native.tolerance, doubtful)
    return with_own_answers(ready, rows, doubtful, native.doubts(rows))


class RowDoubter:
    """Which rows an engine may read otherwise than the model, some rows at a time."""

    def __init__(self, native: NativeEngine, rows: EvidenceRows) -> None:
        self.rows, self.tolerance, self.doubts = rows, native.tolerance, native.doubts(rows)
        self.ready = replace(rows, answer_states=native.state_answers(rows))

    def __call__(self, start: int, x: Floats, p: Floats) -> Booleans:
        """Return (m,) for rows from ``start`` on: cells x (m, d), probabilities by the model itself p (m, C)."""
        doubted = self.doubts(x)
        sure = np.flatnonzero(~doubted)
        if len(sure):
            ids = [self.rows.ids[start + i] for i in sure]
            doubted[sure] = differing_answers(self.ready, self.rows, x[sure], ids, p[sure], self.tolerance)
        return doubted


def _largest_gap(ready: EvidenceRows, rows: EvidenceRows, places: Integers) -> float:
    """Return how far an engine's answers are from the model's own on a few states of a few rows."""
    x = rows.take(places.tolist()).dense()
    gap = 0.0
    for states in _sample_states(rows, len(x)) if len(x) else ():
        cells = rows.stressed(x, states)
        own = rows.predict(cells)
        gap = max(
            gap, float(np.abs(ready.predict(cells) - own).max()), float(np.abs(ready.answers(x, states) - own).max())
        )
    return gap


def _sample_states(rows: EvidenceRows, n: int) -> list[RowStates]:
    """Return states of n rows: whole, without either half of their groups or columns, with nothing left; half way."""
    sampled = []
    for units, by_column in ((rows.n_groups, False), (rows.width, True)):
        odd = np.arange(units) % 2 == 1
        halves = np.stack([odd & ~odd, odd, ~odd, odd | ~odd])
        sampled.append(RowStates.removals(np.tile(halves, (n, 1, 1)), by_column))
    whole = sampled[0]
    return [*sampled, replace(whole, severity=np.tile([0.3, 0.5, 0.7, 0.9], n))]


def choose_native(rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int) -> NativeEngine | None:
    """Return the native engine to use, once it has agreed with the black box on a few rows; None: the black box."""
    native = native_for(rows, engine)
    if native is None or not _agrees(native, rows, protocol, byte_budget, required=engine != "auto"):
        return None
    return native


def native_for(rows: EvidenceRows, engine: str) -> NativeEngine | None:
    if engine not in ENGINES:
        raise EngineError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == BLACKBOX:
        return None
    if engine == "auto":
        return next((native for native in NATIVE if _is_available(native, rows)), None)
    native = next(native for native in NATIVE if native.name == engine)
    if lacking := native.lacking():
        raise EngineError(lacking)
    reason = native.refusal(rows)
    if reason is not None:
        raise EngineError(
            f"the {engine} engine cannot audit {rows.model.kind}: {reason}; use ", Advice.argument("engine", "auto")
        )
    return native


def _is_available(native: NativeEngine, rows: EvidenceRows) -> bool:
    """Return whether an engine can audit these rows; say once what it lacks if that is all."""
    lacking = native.lacking()
    if lacking is None:
        return native.refusal(rows) is None
    if native.takes(rows):
        suggest_extra(f"{rows.model.kind} is asked as a black box, which is slower: {lacking}")
    return False


def refusal(engine: str, rows: EvidenceRows) -> str | None:
    """Return why a native engine of this name cannot audit these rows here; None if it can."""
    return next((native.refusal(rows) for native in NATIVE if native.name == engine), None)


def never_reads(engine: str, rows: EvidenceRows) -> str | None:
    """Return why an engine of this name can never have audited this model under this protocol; None if it may have."""
    return next((native.never_reads(rows) for native in NATIVE if native.name == engine), None)


def _agrees(native: NativeEngine, rows: EvidenceRows, protocol: Protocol, byte_budget: int, required: bool) -> bool:
    """Compare a native engine with the black box on a few rows, over all their states."""
    few = rows.between(0, SELF_CHECK_ROWS)
    few = few.take(np.flatnonzero(~native.doubtful(few)).tolist())
    if not len(few):
        return True  # each row will be looked at when it is traced
    claimed = native.trace(few, protocol, None)
    # All severities in one call: for so few rows a call costs more than the states that a flip would spare.
    asked = trace_blackbox(few, protocol, byte_budget=byte_budget, severities_at_once=len(protocol.severities))
    return _accepted(disagreement(claimed, asked, few, protocol, native.tolerance), native, required)


def _accepted(reason: str | None, native: NativeEngine, required: bool) -> bool:
    """Return whether an engine that differs for this reason (None: it does not) may be used."""
    if reason is None:
        return True
    message = f"the {native.name} engine {reason}"
    if required:
        raise EngineError(f"{message}; use ", Advice.argument("engine", "auto"))
    warnings.warn(f"{message}; the black-box engine is used instead", stacklevel=5)
    return False
