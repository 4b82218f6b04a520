"""Descriptions: what a value in a fitted model consists of, for its fingerprint.

A plain value is described by bytes; anything else by ``Parts``: a tag and the values to look at next. A description
holds what decides predictions and nothing that use leaves behind: tables by their values rather than by their caches,
objects by the state they are rebuilt from, functions by their code and what it reads. Code and classes of installed
libraries go by name. What cannot be looked into is named in ``unseen``.
"""

from __future__ import annotations

import builtins
import copyreg
import enum
import functools
import io
import json
import logging
import random
import sys
import sysconfig
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.utils import Bunch

from fragility.models.compiled import changed_names, global_reads

# Parameters of library estimators that cannot change a prediction: the same model with more threads is the same model.
NOT_PREDICTIVE = frozenset(
    {"n_jobs", "thread_count", "nthread", "num_threads", "verbose", "verbosity", "silent", "memory", "_sklearn_version"}
)
# Attributes in which a library keeps what use leaves behind.
_SEARCH = frozenset({"cv_results_", "refit_time_"})  # seconds among them
LEFT_BY_USE = {
    "numpy.vectorize": frozenset({"_ufunc"}),
    "skrub.MinHashEncoder": frozenset({"hash_dict_"}),
    "sklearn.GridSearchCV": _SEARCH,
    "sklearn.RandomizedSearchCV": _SEARCH,
    "sklearn.HalvingGridSearchCV": _SEARCH,
    "sklearn.HalvingRandomSearchCV": _SEARCH,
}
# Dictionaries of further parameters within the wrappers of a booster.
FURTHER_PARAMETERS = {"lightgbm": "_other_params", "xgboost": "kwargs"}
# Made by the interpreter or by the class statement; they compute nothing.
CLASS_BOOKKEEPING = frozenset(
    {
        "__module__",
        "__qualname__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
        "__slots__",
    }
)
# The state of a torch module that takes part in a forward pass in evaluation mode.
TORCH_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
TORCH_BOOKKEEPING = frozenset(
    {
        "training",
        "call_super_init",
        "dump_patches",
        "T_destination",
        "_is_full_backward_hook",
        "_compiled_call_impl",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_non_persistent_buffers_set",
    }
)
LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.local)
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
WEAK_CACHES = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
RANDOM = (np.random.RandomState, np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, random.Random)
NATIVE_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


@dataclass(frozen=True, slots=True)
class Parts:
    """A compound value: a tag, its parts, whether their order counts, and what could not be looked into."""

    tag: str
    parts: Iterable[Any] = ()
    ordered: bool = True
    unseen: tuple[str, ...] = ()


def chunk(tag: str, data: bytes = b"") -> bytes:
    """Return tagged, length-prefixed bytes, so that no two sequences of chunks read the same."""
    return f"{tag}:{len(data)}:".encode() + data


def plain(value: Any) -> bytes | None:
    """Return the bytes of a value without parts, or None for any other."""
    if isinstance(value, np.generic) and value.dtype.names is None:
        value = value.astype("i8") if value.dtype.kind in "mM" else value.item()
    if value is None or isinstance(value, bool):
        return chunk("value", repr(value).encode())
    if type(value) in (int, np.longdouble, complex, slice, range):
        return chunk("value", repr(value).encode())
    if type(value) is float:
        return chunk("float", value.hex().encode())
    if type(value) is str:
        return chunk("text", value.encode("utf-8", "surrogatepass"))
    if type(value) in (bytes, bytearray):
        return chunk("bytes", bytes(value))
    if isinstance(value, np.dtype) and value.names is None:
        return chunk("dtype", value.str.encode())
    return None


def describe(value: Any) -> Parts:
    """Return what a compound value consists of."""
    for description in _descriptions_of(type(value)):  # type: ignore[arg-type]
        found = description(value)
        if found is not None:
            return found
    return _object(value)


@functools.lru_cache(maxsize=1000)
def _descriptions_of(kind: type) -> tuple[Callable[[Any], Parts | None], ...]:
    general = next((description for known, description in _BY_TYPE if issubclass(kind, known)), None)
    if general is not None:
        return (general,)
    libraries = dict.fromkeys(base.__module__.split(".")[0] for base in kind.__mro__)
    return tuple(_BY_LIBRARY[library] for library in libraries if library in _BY_LIBRARY)


# --- containers and arrays ------------------------------------------------------------------------------------------


def _sequence(value: Any) -> Parts:
    if type(value) not in (list, tuple):
        return _object(value)
    return Parts("list", value)


def _set(value: Any) -> Parts:
    if type(value) not in (set, frozenset):
        return _object(value)
    return Parts("set", value, ordered=False)


def _mapping(value: Any) -> Parts:
    # A Bunch has bookkeeping of its own, which it loses on being saved.
    if type(value) not in (dict, types.MappingProxyType, Bunch):
        return _object(value)
    # In order: what iterates over a dictionary makes its columns in that order.
    return Parts("mapping", [part for pair in value.items() for part in pair])


def _array(value: np.ndarray[Any, Any]) -> Parts:
    form = [value.dtype.str if value.dtype.names is None else list(value.dtype.names), list(value.shape)]
    if isinstance(value, np.ma.MaskedArray):
        return Parts("masked array", [np.asarray(value.filled()), np.ma.getmaskarray(value)])
    if value.dtype == object:
        return Parts("array of objects", [list(value.shape), list(value.ravel())])
    if value.dtype.names:
        # Structured arrays may have padding, whose bytes are undefined: take field by field.
        return Parts("structured array", [*form, *(np.ascontiguousarray(value[name]) for name in value.dtype.names)])
    return Parts("array", [*form, np.ascontiguousarray(value).tobytes()])


def _sparse(value: Any) -> Parts:
    parts = value.tocoo(copy=True)
    parts.sum_duplicates()
    return Parts("sparse", [list(value.shape), *parts.coords, parts.data])


def _frame(value: pd.DataFrame) -> Parts:
    columns = [_column_values(value.iloc[:, i].array) for i in range(value.shape[1])]
    return Parts("table", [value.columns, value.index, *columns])


def _series(value: pd.Series) -> Parts:
    return Parts("series", [value.name, value.index, _column_values(value.array)])


def _index(value: pd.Index) -> Parts:
    values = list(value) if isinstance(value, pd.MultiIndex) else _column_values(value.array)
    return Parts("index", [list(value.names), values])


def _extension_array(value: Any) -> Parts:
    return Parts("column", _column_values(value))


def _column_values(array: Any) -> list[Any]:
    """Return [type, values] of a pandas column: by value, whatever holds them and whatever it has cached."""
    dtype = array.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return [dtype, np.asarray(array.codes)]
    if isinstance(dtype, np.dtype) and dtype.kind not in "mM":
        return [dtype, np.asarray(array)]
    if hasattr(array, "asi8"):
        return [str(dtype), np.asarray(array.asi8)]
    return [str(dtype), [None if value is pd.NA else value for value in array.astype(object)]]


def _pandas_dtype(value: Any) -> Parts:
    if isinstance(value, pd.CategoricalDtype):
        return Parts("categories", [value.categories, value.ordered])
    return Parts("column type", [str(value)])


def _polars(value: Any) -> Parts | None:
    name = type(value).__name__
    if name == "DataFrame":
        return Parts("table", [list(value.columns), *value.get_columns()])
    if name == "Series":
        return Parts("series", [value.name, str(value.dtype), value.to_list()])
    if name == "Expr":
        return Parts("expression", [value.meta.serialize(format="json")])
    return None


def _pyarrow(value: Any) -> Parts | None:
    if hasattr(value, "to_pylist"):
        return Parts("arrow", [str(getattr(value, "schema", None) or value.type), value.to_pylist()])
    return Parts("arrow", [str(value.type), value.as_py()]) if hasattr(value, "as_py") else None


# --- code -----------------------------------------------------------------------------------------------------------


def is_library(module: str | None) -> bool:
    """True for modules of Python, of this package and of installed packages: known by name and version."""
    if not module or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top == "fragility" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    return file is not None and _is_installed(file)


@functools.cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    standard = (Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "platstdlib"))
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(
        path.is_relative_to(f) for f in standard
    )


def _at_address(module: str | None, qualified: str) -> Any:
    """Return what a library holds under that name, or None."""
    value: Any = sys.modules.get(module or "")
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value


def _function(function: types.FunctionType) -> Parts:
    home, owner = function.__module__, function.__globals__.get("__name__")  # they differ for a decorated function
    if is_library(home) and _at_address(home, function.__qualname__) is function:
        return Parts("library function", [home, function.__qualname__])
    code = function.__code__
    changed = changed_names(code)
    closure = zip(code.co_freevars, function.__closure__ or (), strict=True)
    cells = [_cell(cell) for name, cell in closure if name not in changed]
    parts = [cells, function.__defaults__, function.__kwdefaults__, _attributes_in_order(vars(function))]
    if is_library(owner) and "<lambda>" not in code.co_qualname:
        return Parts("library function", [owner, code.co_qualname, *parts])
    values, unseen = ([], ()) if is_library(owner) else _globals_of(function, changed)
    unseen += tuple(f"{name!r}, which the function {function.__name__} changes" for name in sorted(changed))
    return Parts("function", [code, *parts, *values], unseen=unseen)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that was never bound
        return None


def _globals_of(function: types.FunctionType, changed: frozenset[str]) -> tuple[list[Any], tuple[str, ...]]:
    """Return the values of the globals that a function reads, and what of them cannot be found."""
    values: list[Any] = []
    unseen: list[str] = []
    for name, *attributes in global_reads(function.__code__):
        if name in changed:
            continue
        if name in function.__globals__:
            value = function.__globals__[name]
            values += [name, *_through_modules(value, attributes, unseen)]
        elif not hasattr(builtins, name):
            unseen.append(f"{name!r}, which the function {function.__name__} reads and nothing defines")
    return values, tuple(unseen)


def _through_modules(value: Any, attributes: list[str], unseen: list[str]) -> list[Any]:
    """Follow ``settings.RATE`` into modules of the user's own; a library's module is its name."""
    path: list[Any] = []
    while isinstance(value, types.ModuleType) and not is_library(value.__name__):
        if not attributes or not hasattr(value, attributes[0]):
            unseen.append(f"the module {value.__name__}, which is used as a whole")
            break
        path.append(attributes[0])
        value, attributes = getattr(value, attributes[0]), attributes[1:]
    return [*path, value]


def _code(code: types.CodeType) -> Parts:
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return Parts("code", [code.co_code, code.co_exceptiontable, counts, named, code.co_names, code.co_consts])


def _native_function(value: Any) -> Parts:
    owner = getattr(value, "__self__", None)
    name = getattr(value, "__qualname__", None) or value.__name__
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        return Parts("native method", [owner, value.__name__])
    holder = getattr(value, "__objclass__", None) or (owner if isinstance(owner, type) else None)
    module = getattr(value, "__module__", None) or getattr(holder, "__module__", None)
    if isinstance(value, np.ufunc):
        module, name, known = _ufunc_address(value)
    else:
        known = is_library(module)
    return Parts("native function", [module, name], unseen=() if known else (f"the native function {name}",))


def _ufunc_address(value: np.ufunc) -> tuple[str, str, bool]:
    homes = [module for module in ("numpy", "scipy.special") if module in sys.modules]
    found = [module for module in homes if getattr(sys.modules[module], value.__name__, None) is value]
    return (found or ["numpy"])[0], value.__name__, bool(found)


def _method(value: types.MethodType) -> Parts:
    return Parts("method", [value.__func__, value.__self__])


def _class(value: type) -> Parts:
    if is_library(value.__module__):
        return Parts("library class", [value.__module__, value.__qualname__])
    return Parts("class", [value.__name__, list(value.__bases__), _attributes_in_order(_own_namespace(value))])


def _own_namespace(value: type) -> dict[str, Any]:
    if issubclass(value, enum.Enum):
        return {name: member.value for name, member in value.__members__.items()}
    return {
        name: part
        for name, part in vars(value).items()
        if name not in CLASS_BOOKKEEPING and not isinstance(part, SLOTS)
    }


def _descriptor(value: Any) -> Parts:
    if isinstance(value, property):
        return Parts("property", [value.fget])
    return Parts(type(value).__name__, [value.__func__])


def _module(value: types.ModuleType) -> Parts:
    return Parts("module", [value.__name__])


# --- objects --------------------------------------------------------------------------------------------------------


def _object(value: Any) -> Parts:
    if callable(getattr(type(value), "fingerprint", None)):  # it knows what determines its predictions
        return Parts("own", [type(value).__qualname__, str(value.fingerprint())])
    if type(value).__name__ == "cython_function_or_method":
        return _native_function(value)
    parts = _rebuilt_from(value)
    if parts is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return Parts("object", [type(value)], unseen=(f"an object of type {kind}, which shows no state",))
    return Parts("object", [type(value), *parts])


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
    gone = _left_out(value)
    kept = {name: part for name, part in state.items() if name not in gone}
    further = FURTHER_PARAMETERS.get(type(value).__module__.split(".")[0], "")
    if isinstance(kept.get(further), dict):
        kept[further] = {name: part for name, part in kept[further].items() if name not in NOT_PREDICTIVE}
    return _attributes_in_order(kept)


def _attributes_in_order(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in sorted(attributes, key=str)}


def _left_out(value: Any) -> frozenset[str]:
    """Return the attributes that say how an object was used or is run, not what it computes."""
    kind = type(value)
    names = _cached_properties(kind)  # type: ignore[arg-type]
    if is_library(kind.__module__):
        names |= LEFT_BY_USE.get(f"{kind.__module__.split('.')[0]}.{kind.__name__}", frozenset())
        if hasattr(value, "get_params"):
            names |= NOT_PREDICTIVE
    return names


@functools.lru_cache(maxsize=1000)
def _cached_properties(kind: type) -> frozenset[str]:
    return frozenset(name for base in kind.__mro__ for name, part in vars(base).items() if _is_cached_property(part))


def _is_cached_property(part: Any) -> bool:
    return isinstance(part, functools.cached_property) or type(part).__name__ in ("cached_property", "lazyproperty")


def _enum_member(value: enum.Enum) -> Parts:
    return Parts("member", [type(value).__name__, value.name])


def _cached_function(value: Any) -> Parts:
    return Parts("cached function", [value.__wrapped__])


def _no_effect(value: Any) -> Parts:
    # Locks, loggers and caches of weak references compute nothing; a generator of random numbers moves with every use.
    return Parts("no effect", [type(value).__name__])


def _unseen(value: Any) -> Parts:
    return Parts("unseen", [type(value).__name__], unseen=(f"an object of type {type(value).__name__}",))


# --- libraries ------------------------------------------------------------------------------------------------------


def _sklearn(value: Any) -> Parts | None:
    if type(value).__module__ not in ("sklearn.neighbors._kd_tree", "sklearn.neighbors._ball_tree"):
        return None
    state = value.__getstate__()
    return Parts("neighbour tree", [type(value), *state[:7], *state[11:]])  # between them: counters of past queries


def _joblib(value: Any) -> Parts | None:
    return Parts("cached function", [value.func]) if type(value).__name__.endswith("MemorizedFunc") else None


def _numba(value: Any) -> Parts | None:
    return Parts("compiled function", [value.py_func]) if hasattr(value, "py_func") else None


def _xgboost(value: Any) -> Parts | None:
    if type(value).__name__ != "Booster":
        return None
    document = json.loads(bytes(value.save_raw(raw_format="json")))
    # Attributes hold training logs and wrapper bookkeeping; only the best iteration decides predictions.
    attributes = document["learner"].pop("attributes", {})
    document["learner"]["best_iteration"] = attributes.get("best_iteration")
    return Parts("booster", [json.dumps(document, sort_keys=True)])


def _lightgbm(value: Any) -> Parts | None:
    if type(value).__name__ != "Booster":
        return None
    trees = str(value.model_to_string()).split("\nparameters:")[0]
    # The order of the training categories decides which code a value gets.
    return Parts("booster", [trees, repr(value.pandas_categorical)])


def _catboost(value: Any) -> Parts | None:
    if not hasattr(value, "_serialize_model"):
        return None
    if not value.is_fitted():
        return Parts("booster", [type(value).__name__, _attributes_in_order(value.get_params())])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        value.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    document.pop("model_info", None)  # training parameters, time and GUID: not the function
    return Parts("booster", [type(value), json.dumps(document, sort_keys=True)])


def _torch(value: Any) -> Parts | None:
    if type(value).__name__ == "Generator":
        return _no_effect(value)
    if hasattr(value, "detach") and hasattr(value, "dtype"):
        return _tensor(value)
    return _torch_module(value) if _is_torch_module(value) else None


def _is_torch_module(value: Any) -> bool:
    return any(base.__module__ == "torch.nn.modules.module" for base in type(value).__mro__)


def _tensor(value: Any) -> Parts:
    here = value.detach().cpu()
    if here.is_quantized or here.layout.__repr__() != "torch.strided":
        return Parts("tensor", [str(here)], unseen=(f"a tensor of layout {here.layout}",))
    wide = here.float() if str(here.dtype) in ("torch.bfloat16", "torch.float16") else here
    return Parts("tensor", [str(here.dtype), np.asarray(wide.contiguous().numpy())])


def _torch_module(value: Any) -> Parts:
    if hasattr(value, "inlined_graph"):
        state = dict(sorted(value.state_dict().items()))
        return Parts("script", [str(value.code), state], unseen=("the attributes of a TorchScript module",))
    held = {name: part for name, part in vars(value).items() if name not in TORCH_BOOKKEEPING | _left_out(value)}
    # Hooks are numbered in the order in which a process made them, whatever they belong to.
    held |= {name: list(held.get(name, {}).values()) for name in TORCH_HOOKS}
    return Parts("torch module", [type(value), _attributes_in_order(held)])


_BY_TYPE: list[tuple[Any, Callable[[Any], Parts]]] = [
    (np.ndarray, _array),
    ((list, tuple), _sequence),
    ((set, frozenset), _set),
    ((dict, types.MappingProxyType), _mapping),
    (sp.sparray | sp.spmatrix, _sparse),
    (types.FunctionType, _function),
    (types.CodeType, _code),
    (types.MethodType, _method),
    (NATIVE_FUNCTIONS, _native_function),
    (enum.Enum, _enum_member),
    (type, _class),
    (types.ModuleType, _module),
    ((property, staticmethod, classmethod), _descriptor),
    (pd.DataFrame, _frame),
    (pd.Series, _series),
    (pd.Index, _index),
    (pd.api.extensions.ExtensionArray, _extension_array),
    (pd.api.extensions.ExtensionDtype, _pandas_dtype),
    (RANDOM, _no_effect),
    (LOCKS, _no_effect),
    (WEAK_CACHES, _no_effect),
    (logging.Logger, _no_effect),
    (functools._lru_cache_wrapper, _cached_function),
    (GENERATORS, _unseen),
    ((weakref.ref, *weakref.ProxyTypes), _unseen),
    (io.IOBase, _unseen),
]
_BY_LIBRARY: dict[str, Callable[[Any], Parts | None]] = {
    "sklearn": _sklearn,
    "joblib": _joblib,
    "numba": _numba,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "catboost": _catboost,
    "torch": _torch,
    "polars": _polars,
    "pyarrow": _pyarrow,
}
