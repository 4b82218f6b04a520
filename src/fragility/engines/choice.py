"""Which engine audits which model, and who answers: the native engine that knows it exactly, else the model itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fragility.base.arrays import Integers
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import warn_once
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.checking import compare_traces
from fragility.engines.engine import Engine, Values
from fragility.engines.linear import LinearEngine
from fragility.engines.neural import NeuralEngine
from fragility.engines.oracle import CheckedOracle, EngineOracle, ModelOracle, Oracle
from fragility.engines.trees.engine import TreeEngine
from fragility.engines.wrapped.engine import WrappedEngine
from fragility.evidence import EvidenceRows, States
from fragility.protocol import Protocol

SELF_CHECK_ROWS = 16


NATIVE: tuple[type[Engine], ...] = (LinearEngine, TreeEngine, NeuralEngine, WrappedEngine)
ENGINES = ("auto", BLACKBOX, *(engine.name for engine in NATIVE))


def find_engine(rows: EvidenceRows, engine: str, where: str = "") -> type[Engine] | None:
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


def _is_available(native: type[Engine], rows: EvidenceRows, where: str) -> bool:
    """Return whether an engine can audit these rows; say once what it lacks if that is all.

    The libraries of an engine that does not know the model's class are not loaded.
    """
    if not native.knows(rows):
        return False
    lacking = native.lacking()
    if lacking is None:
        return native.refusal(rows) is None
    try:
        takes = native.refusal(rows) is None
    except ImportError:
        takes = True  # judged by its class
    if takes:
        warn_once(f"{rows.model.kind} is asked as a black box{where}, which is slower: {lacking}")
    return False


def _explain_blackbox(rows: EvidenceRows, where: str) -> None:
    """Say once why a model of a kind that an engine reads is asked as a black box all the same."""
    for native in NATIVE:
        if native.families and not native.torch_modules and native.knows(rows) and native.lacking() is None:
            reason = native.refusal(rows)
            if reason is not None:
                warn_once(f"{rows.model.kind} is asked as a black box{where}, which is slower: {reason}")


def refusal(engine: str, rows: EvidenceRows) -> str | None:
    """Return why a native engine of this name cannot audit these rows here; None if it can."""
    return next((native.lacking() or native.refusal(rows) for native in NATIVE if native.name == engine), None)


def never_reads(engine: str, rows: EvidenceRows) -> str | None:
    """Return why an engine of this name can never have audited this model under this protocol, whatever is installed.

    None if it may have.
    """
    native = next((native for native in NATIVE if native.name == engine), None)
    try:
        return None if native is None else native.never_reads(rows)
    except ImportError:
        assert native is not None
        return None if native.knows(rows) else f"the {engine} engine does not know it"


def choose_engine(
    rows: EvidenceRows, protocol: Protocol, engine: str, byte_budget: int, where: str = ""
) -> type[Engine] | None:
    """Return the native engine to use, once it has agreed with the black box on a few rows; None: the black box."""
    native = find_engine(rows, engine, where)
    if native is None:
        return None
    few = rows.between(0, SELF_CHECK_ROWS)
    made = native(few)
    few = few.take(np.flatnonzero(~made.find_doubtful(few)).tolist())
    if not len(few):
        return native  # each row will be looked at when it is traced
    claimed = made.trace(few, protocol)
    # All severities in one call: for so few rows a call costs more than the states that a flip would spare.
    asked = trace_blackbox(few, protocol, byte_budget=byte_budget, severities_at_once=len(protocol.severities))
    difference = compare_traces(claimed, asked, few, protocol, native.tolerance)
    return native if native.accept(difference, required=engine != "auto") else None


def choose_oracle(rows: EvidenceRows, engine: str = "auto") -> Oracle:
    """Return who answers about rows: a native engine, if one knows the model and agrees with it on a few states.

    For labels, searches and scores. An audit's engine is chosen by its traces (``choose_engine``).
    """
    native = find_engine(rows, engine)
    if native is None or not native.answers:
        return ModelOracle(rows)
    made = native(rows)
    gap = _find_largest_gap(EngineOracle(made, rows), np.flatnonzero(~made.find_doubtful(rows))[:SELF_CHECK_ROWS])
    differs = f"differs from {rows.model.kind}'s own probabilities by {gap:.3g}"
    agrees = native.accept(None if gap <= native.tolerance else differs, required=engine != "auto")
    return CheckedOracle(made, rows) if agrees else ModelOracle(rows)


def _find_largest_gap(oracle: EngineOracle, places: Integers) -> float:
    """Return how far an engine's answers are from the model's own on a few states of a few rows.

    The states have lost nothing, either half of their groups or columns, or all of them; fully and partly.
    """
    if not len(places):
        return 0.0
    rows, model = oracle.rows, oracle.model
    x = rows.take(places.tolist()).dense()
    sampled = []
    for units, by_column in ((rows.n_groups, False), (rows.width, True)):
        odd = np.arange(units) % 2 == 1
        halves = np.stack([odd & ~odd, odd, ~odd, odd | ~odd])
        sampled.append(States.removals(np.tile(halves, (len(x), 1, 1)), by_column))
    sampled.append(replace(sampled[0], severity=np.tile([0.3, 0.5, 0.7, 0.9], len(x))))
    gaps = []
    for states in sampled:
        cells = rows.stressed(x, states)
        own = model.predict(cells)
        gaps += [float(np.abs(p - own).max()) for p in (oracle.predict(cells), oracle.answer_states(x, states))]
    groups = np.arange(rows.n_groups)
    for y in (x[::-1], x[0]):  # each group takes the values of another row
        p, own = (next(ask.answer_values(x, [Values(y, rows.column_group, groups)])) for ask in (oracle, model))
        gaps.append(float(np.abs(p - own).max()))
    return max(gaps)
