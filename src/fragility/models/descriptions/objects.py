"""Objects, by the state they would be rebuilt from, without what use left in them."""

from __future__ import annotations

import copyreg
import enum
import functools
import random
import sys
from typing import Any

import numpy as np

from fragility.libraries import is_genuine, library_of
from fragility.models.descriptions.code import describe_native_function, is_library
from fragility.models.descriptions.parts import Parts, attributes_in_order

RANDOM = (np.random.RandomState, np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, random.Random)

# Parameters of library estimators that cannot change a prediction: the same model with more threads is the same model.
NOT_PREDICTIVE = frozenset(
    {"n_jobs", "thread_count", "nthread", "num_threads", "verbose", "verbosity", "silent", "memory", "_sklearn_version"}
)
# Attributes in which a library keeps what use leaves behind.
LEFT_BY_USE = {
    "numpy.vectorize": frozenset({"_ufunc"}),
    "skrub.MinHashEncoder": frozenset({"hash_dict_"}),
}
# Dictionaries of further parameters within the wrappers of a booster.
FURTHER_PARAMETERS = {"lightgbm": "_other_params", "xgboost": "kwargs"}


def describe_object(value: Any) -> Parts:
    kind = type(value)
    if callable(getattr(kind, "fingerprint", None)) and library_of(value) == "fragility" and is_genuine(kind):
        # It knows what determines its predictions, and it is ours.
        return Parts("own", [type(value).__qualname__, str(value.fingerprint())])
    if type(value).__name__ == "cython_function_or_method":
        return describe_native_function(value)
    parts = _rebuilt_from(value)
    if parts is None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        return Parts("object", [kind], unseen=(f"an object of type {name}, which shows no state",))
    cached = sorted(_cached_properties(kind))  # type: ignore[arg-type]
    return Parts("object", [kind, *parts], unseen=tuple(f"what {kind.__qualname__}.{name} keeps" for name in cached))


def _rebuilt_from(value: Any) -> list[Any] | None:
    """Return the parts an object would be rebuilt from, or None if it shows none."""
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
    except Exception:  # it cannot be saved; what it holds can still be looked at
        held = getattr(value, "__dict__", None)
        return None if held is None else [_state(value, held)]
    if isinstance(reduced, str):
        return [reduced]
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    known = make in (copyreg.__newobj__, copyreg.__newobj_ex__, type(value))  # type: ignore[attr-defined]
    parts = [None if known else make, [part for part in arguments if part is not type(value)], _state(value, state)]
    return [*parts, *(list(part) for part in (items, pairs) if part is not None)]


def _state(value: Any, state: Any) -> Any:
    if isinstance(state, tuple) and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        return [_state(value, part) for part in state]  # attributes in __dict__ and in __slots__
    if type(state) is not dict:
        return state
    gone = left_out(value)
    kept = {name: part for name, part in state.items() if name not in gone}
    if (
        library_of(value) not in sys.stdlib_module_names
        and is_library(type(value).__module__)
        and is_genuine(type(value))
    ):
        # A library's estimator draws in training; what else holds a generator may predict by it.
        kept = {name: "generator" if isinstance(part, RANDOM) else part for name, part in kept.items()}
    further = FURTHER_PARAMETERS.get(type(value).__module__.split(".")[0], "")
    if isinstance(kept.get(further), dict):
        kept[further] = {name: part for name, part in kept[further].items() if name not in NOT_PREDICTIVE}
    return attributes_in_order(kept)


def left_out(value: Any) -> frozenset[str]:
    """Return the attributes that say how an object was used or is run, not what it computes."""
    kind = type(value)
    names = _cached_properties(kind)  # type: ignore[arg-type]
    if is_library(kind.__module__) and is_genuine(kind):
        names |= LEFT_BY_USE.get(f"{kind.__module__.split('.')[0]}.{kind.__name__}", frozenset())
        if hasattr(value, "get_params"):
            names |= NOT_PREDICTIVE
    return names


@functools.lru_cache(maxsize=1000)
def _cached_properties(kind: type) -> frozenset[str]:
    return frozenset(name for base in kind.__mro__ for name, part in vars(base).items() if _is_cached_property(part))


def _is_cached_property(part: Any) -> bool:
    return isinstance(part, functools.cached_property) or type(part).__name__ in ("cached_property", "lazyproperty")


def describe_enum_member(value: enum.Enum) -> Parts:
    return Parts("member", [type(value).__name__, value.name])


def describe_cached_function(value: Any) -> Parts:
    return Parts("cached function", [value.__wrapped__])


def describe_idle(value: Any) -> Parts:
    # Locks and loggers compute nothing.
    return Parts("no effect", [type(value).__name__])


def describe_moving(value: Any) -> Parts:
    # A generator of random numbers, a cache of weak references: another after every use, and it may decide predictions.
    name = type(value).__name__
    return Parts("no effect", [name], unseen=(f"the state of a {name}",))


def describe_closed(value: Any) -> Parts:
    return Parts("unseen", [type(value).__name__], unseen=(f"an object of type {type(value).__name__}",))
