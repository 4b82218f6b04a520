"""Descriptions: what a value in a fitted model consists of, for its fingerprint.

A description contains what decides predictions, and nothing that changes with use: tables by their values without
caches, objects by the state that rebuilds them, functions by their code and the variables it reads. Code and classes of
installed libraries are identified by name. Content that cannot be inspected is named in ``unseen``.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.utils import Bunch

from fragility.base.libraries import family_of, is_genuine, is_torch_module, library_of
from fragility.models.wrappers import answers_for, own_threshold


@dataclass(frozen=True, slots=True)
class Parts:
    """A compound value: a tag, its parts, whether their order matters, and what could not be inspected."""

    tag: str
    parts: Iterable[Any] = ()
    ordered: bool = True
    unseen: tuple[str, ...] = ()


def chunk(tag: str, data: bytes = b"") -> bytes:
    """Return tagged, length-prefixed bytes, so that no two sequences of chunks read the same."""
    return f"{tag}:{len(data)}:".encode() + data


def plain(value: Any) -> bytes | None:
    """Return the bytes of a value without parts, or None for any other."""
    if isinstance(value, np.generic) and value.dtype.kind in "mM":
        return chunk(value.dtype.str, str(value.astype("i8")).encode())
    if isinstance(value, np.generic) and value.dtype.names is None:
        value = value.item()
    if value is None or isinstance(value, bool) or type(value) in (int, np.longdouble, complex, slice, range):
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


def _in_order(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in sorted(attributes, key=str)}


# --- sequences, sets, mappings, arrays and tables, by their values ----------------------------------------------


def _describe_container(value: Any) -> Parts:
    if type(value) in (list, tuple):
        return Parts("list", value)
    if type(value) in (set, frozenset):
        return Parts("set", value, ordered=False)
    # A Bunch has attributes of its own, which are lost when it is saved.
    if type(value) in (dict, types.MappingProxyType, Bunch):
        # In order, because code that iterates over a dictionary may make columns in its order.
        return Parts("mapping", [part for pair in value.items() for part in pair])
    return _describe_object(value)


def _describe_array(value: np.ndarray[Any, Any]) -> Parts:
    shape, names = list(value.shape), value.dtype.names
    if type(value) not in (np.ndarray, np.memmap):  # its operators, such as the * of a matrix, may mean something else
        attributes = [_in_order(getattr(value, "__dict__", {}))] if not _is_library(type(value).__module__) else []
        cells = [value.view(np.ndarray)]
        if isinstance(value, np.ma.MaskedArray):
            cells = [np.asarray(value.filled()), np.ma.getmaskarray(value)]
        return Parts("array subclass", [type(value), *cells, *attributes])
    if value.dtype == object:
        return Parts("array of objects", [shape, list(value.ravel())])
    if names:  # the bytes of padding between fields are undefined
        fields = [np.ascontiguousarray(value[name]) for name in names]
        return Parts("structured array", [list(names), shape, *fields])
    return Parts("array", [value.dtype.str if names is None else [], shape, np.ascontiguousarray(value).tobytes()])


def _describe_sparse(value: Any) -> Parts:
    cells = value.tocoo(copy=True)
    cells.sum_duplicates()
    attributes = [] if _is_library(type(value).__module__) else [_in_order(vars(value))]
    # The type matters: * multiplies sparse arrays cell by cell, and is the product of sparse matrices.
    return Parts("sparse", [type(value), list(value.shape), *cells.coords, cells.data, *attributes])


def _describe_pandas(value: Any) -> Parts:
    described = _describe_pandas_values(value)
    kind = type(value)
    if _is_library(kind.__module__) and is_genuine(kind):
        return described
    unseen = (*described.unseen, f"the attributes of {kind.__qualname__}, which extends a class of pandas")
    return Parts(described.tag, [kind, *described.parts], described.ordered, unseen)


def _describe_pandas_values(value: Any) -> Parts:
    if isinstance(value, pd.DataFrame):
        columns = [_column_values(value.iloc[:, i].array) for i in range(value.shape[1])]
        return Parts("table", [value.columns, value.index, *columns])
    if isinstance(value, pd.Series):
        return Parts("series", [value.name, value.index, _column_values(value.array)])
    if isinstance(value, pd.Index):
        values = list(value) if isinstance(value, pd.MultiIndex) else _column_values(value.array)
        return Parts("index", [list(value.names), values])
    if isinstance(value, pd.CategoricalDtype):
        return Parts("categories", [value.categories, value.ordered])
    if isinstance(value, pd.api.extensions.ExtensionDtype):
        return Parts("column type", [str(value)])
    return Parts("column", _column_values(value))


def _column_values(array: Any) -> list[Any]:
    """Return [type, values] of a pandas column: by value, independent of storage and caches."""
    dtype = array.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return [dtype, np.asarray(array.codes)]
    if isinstance(dtype, np.dtype) and dtype.kind not in "mM":
        return [dtype, np.asarray(array)]
    if hasattr(array, "asi8"):
        return [str(dtype), np.asarray(array.asi8)]
    return [str(dtype), [None if value is pd.NA else value for value in array.astype(object)]]


# --- code: functions by what they compute and read, classes by what they define ---------------------------------

# Attributes made by the interpreter or by the class statement; they do not affect results.
CLASS_BOOKKEEPING = frozenset(
    {
        *("__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__"),
        *("__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__firstlineno__"),
        *("__static_attributes__", "__parameters__", "__orig_bases__", "__dataclass_fields__"),
        *("__dataclass_params__", "__match_args__", "__slots__"),
    }
)
METHODS = (types.FunctionType, staticmethod, classmethod, property)
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


def _is_library(module: str | None) -> bool:
    """Return whether a module belongs to Python, to this package or to an installed package."""
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
    standard = [Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "platstdlib")]
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or any(map(path.is_relative_to, standard))


# What cannot be determined from a function.
READ_AT_RUN_TIME = (
    "what functions and classes of your own read while they run: files, services, the environment, modules imported "
    "inside a function"
)


def _describe_function(function: types.FunctionType) -> Parts:
    home, owner = function.__module__, function.__globals__.get("__name__")  # they differ for a decorated function
    named: Any = sys.modules.get(home or "")
    for part in function.__qualname__.split("."):
        named = getattr(named, part, None)
    if named is function and _is_library(home):
        return Parts("library function", [home, function.__qualname__])
    code, variables = function.__code__, function.__globals__
    closure = [_cell_contents(cell) for cell in function.__closure__ or ()]
    parts = [code, closure, function.__defaults__, function.__kwdefaults__, _in_order(vars(function))]
    if _is_library(owner) and getattr(sys.modules.get(owner or ""), "__dict__", None) is variables:
        return Parts("function", parts)
    unseen = [READ_AT_RUN_TIME]
    for name in _list_global_reads(code):
        if name in variables:
            parts += [name, *_follow_module(variables[name], _list_names(code), unseen)]
        elif not hasattr(builtins, name):
            unseen.append(f"{name!r}, which the function {function.__name__} reads but nothing defines")
    return Parts("function", parts, unseen=tuple(unseen))


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that was never bound
        return None


def _list_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code, and the code of the functions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_codes(constant)


def _list_global_reads(code: types.CodeType) -> list[str]:
    names: dict[str, None] = {}
    for inner in _list_codes(code):
        steps = list(dis.get_instructions(inner))
        local = {step.argval for step in steps if step.opname == "STORE_NAME"}  # of a class body
        names |= dict.fromkeys(s.argval for s in steps if s.opname in GLOBAL_READS and s.argval not in local)
    return list(names)


def _list_names(code: types.CodeType) -> frozenset[str]:
    return frozenset(name for inner in _list_codes(code) for name in inner.co_names)


def _follow_module(value: Any, names: frozenset[str], unseen: list[str]) -> list[Any]:
    """Return a value; for a user's module, the attributes that the code reads, such as ``settings.RATE``."""
    if not isinstance(value, types.ModuleType) or _is_library(value.__name__):
        return [value]
    attributes = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
    if not attributes:
        unseen.append(f"the module {value.__name__}, which is used as a whole")
    return [part for name in attributes for part in (name, *_follow_module(attributes[name], names - {name}, unseen))]


def _describe_code(code: types.CodeType) -> Parts:
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return Parts("code", [code.co_code, code.co_exceptiontable, counts, arguments, code.co_names, code.co_consts])


def _describe_native_function(value: Any) -> Parts:
    owner = getattr(value, "__self__", None)
    name = getattr(value, "__qualname__", None) or value.__name__
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        return Parts("native method", [owner, value.__name__])
    module: str | None
    if isinstance(value, np.ufunc):
        homes = [module for module in ("numpy", "scipy.special") if module in sys.modules]
        modules = [module for module in homes if getattr(sys.modules[module], value.__name__, None) is value]
        module, name, is_library = (modules or ["numpy"])[0], value.__name__, bool(modules)
    else:
        holder = getattr(value, "__objclass__", None) or (owner if isinstance(owner, type) else None)
        module = getattr(value, "__module__", None) or getattr(holder, "__module__", None)
        is_library = _is_library(module)
    return Parts("native function", [module, name], unseen=() if is_library else (f"the native function {name}",))


def _describe_class(value: type) -> Parts:
    if _is_library(value.__module__) and is_genuine(value):
        return Parts("library class", [value.__module__, value.__qualname__])
    if issubclass(value, enum.Enum):
        parts = {name: member.value for name, member in value.__members__.items()}
        parts |= {
            n: p for n, p in vars(value).items() if isinstance(p, METHODS) and getattr(enum.Enum, n, None) is not p
        }
    else:
        parts = {n: p for n, p in vars(value).items() if n not in CLASS_BOOKKEEPING and not isinstance(p, SLOTS)}
    return Parts("class", [value.__name__, list(value.__bases__), _in_order(parts)])


# --- objects, by the state that rebuilds them, without traces of use --------------------------------------------

RANDOM = (np.random.RandomState, np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, random.Random)
# Parameters of library estimators that cannot change a prediction, such as the number of threads.
NOT_PREDICTIVE = frozenset(
    {"n_jobs", "thread_count", "nthread", "num_threads", "verbose", "verbosity", "silent", "memory", "_sklearn_version"}
)
# Attributes that change when an object of a library is used.
LEFT_BY_USE = {"numpy.vectorize": {"_ufunc"}, "skrub.MinHashEncoder": {"hash_dict_"}}
# Attributes in which the wrappers of boosters store further parameters.
FURTHER_PARAMETERS = {"lightgbm": "_other_params", "xgboost": "kwargs"}


def _describe_object(value: Any) -> Parts:
    kind = type(value)
    if callable(getattr(kind, "fingerprint", None)) and library_of(value) == "fragility" and is_genuine(kind):
        # One of our own classes, which computes the digest of what determines its predictions.
        unseen = (READ_AT_RUN_TIME,) if getattr(value, "runs_code_of_others", False) else ()
        return Parts("own", [kind.__qualname__, str(value.fingerprint())], unseen=unseen)
    if kind.__name__ == "cython_function_or_method":
        return _describe_native_function(value)
    parts = _rebuilding_parts(value)
    if parts is None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        return Parts("object", [kind], unseen=(f"an object of type {name}, which shows no state",))
    cached = sorted(_cached_properties(kind))  # type: ignore[arg-type]
    return Parts("object", [kind, *parts], unseen=tuple(f"what {kind.__qualname__}.{name} keeps" for name in cached))


def _rebuilding_parts(value: Any) -> list[Any] | None:
    """Return the parts from which pickle would rebuild an object; None if there are none."""
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
    except Exception:  # it cannot be pickled, but its attributes can be inspected
        attributes = getattr(value, "__dict__", None)
        return None if attributes is None else [_predictive_state(value, attributes)]
    if isinstance(reduced, str):
        return [reduced]
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    standard = make in (copyreg.__newobj__, copyreg.__newobj_ex__, type(value))  # type: ignore[attr-defined]
    others = [part for part in arguments if part is not type(value)]
    iterated = (list(part) for part in (items, pairs) if part is not None)
    return [None if standard else make, others, _predictive_state(value, state), *iterated]


def _predictive_state(value: Any, state: Any) -> Any:
    if isinstance(state, tuple) and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        return [_predictive_state(value, part) for part in state]  # attributes in __dict__ and in __slots__
    if type(state) is not dict:
        return state
    ignored = _attributes_left_out(value)
    attributes = {name: part for name, part in state.items() if name not in ignored}
    library, module = library_of(value), type(value).__module__
    if library not in sys.stdlib_module_names and _is_library(module) and is_genuine(type(value)):
        # Estimators of libraries use their generator in training only; other objects may predict with it.
        attributes = {name: "generator" if isinstance(part, RANDOM) else part for name, part in attributes.items()}
    further = FURTHER_PARAMETERS.get(library, "")
    if isinstance(attributes.get(further), dict):
        attributes[further] = {name: part for name, part in attributes[further].items() if name not in NOT_PREDICTIVE}
    return _in_order(attributes)


def _attributes_left_out(value: Any) -> frozenset[str]:
    """Return the attributes that do not affect what an object computes."""
    kind = type(value)
    names = _cached_properties(kind)  # type: ignore[arg-type]
    if _is_library(kind.__module__) and is_genuine(kind):
        names |= LEFT_BY_USE.get(f"{library_of(value)}.{kind.__name__}", set())
        if hasattr(value, "get_params"):
            names |= NOT_PREDICTIVE
    return names


@functools.lru_cache(maxsize=1000)
def _cached_properties(kind: type) -> frozenset[str]:
    parts = [(name, type(part)) for base in kind.__mro__ for name, part in vars(base).items()]
    names = ("cached_property", "lazyproperty")
    return frozenset(name for name, t in parts if issubclass(t, functools.cached_property) or t.__name__ in names)


def _describe_moving(value: Any) -> Parts:
    # The state of a random generator or a weak cache changes with every use, and may decide predictions.
    name = type(value).__name__
    return Parts("no effect", [name], unseen=(f"the state of a {name}",))


def _describe_closed(value: Any) -> Parts:
    return Parts("unseen", [type(value).__name__], unseen=(f"an object of type {type(value).__name__}",))


# --- objects of libraries that need a description of their own --------------------------------------------------

# The state of a torch module that takes part in a forward pass in evaluation mode.
TORCH_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
TORCH_BOOKKEEPING = frozenset(
    {
        *("training", "call_super_init", "dump_patches", "T_destination", "_is_full_backward_hook"),
        *("_compiled_call_impl", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs"),
        *("_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks"),
        *("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
        "_non_persistent_buffers_set",
    }
)
XGBOOST_ATTRIBUTES = '"attributes":'  # only a key matches, since quotes inside a text are escaped


def _replaced_methods(value: Any) -> list[Any]:
    """Return the methods of an instance that replace those of its class."""
    methods = {name: part for name, part in vars(value).items() if callable(getattr(type(value), name, None))}
    return [_in_order(methods)] if methods else []


def _describe_python_library(value: Any) -> Parts | None:
    """Describe scikit-learn's neighbour trees, joblib's cached functions and numba's compiled ones."""
    family = family_of(value)
    if type(value).__module__ in ("sklearn.neighbors._kd_tree", "sklearn.neighbors._ball_tree"):
        state = value.__getstate__()
        return Parts("neighbour tree", [type(value), *state[:7], *state[11:]])  # between: counters of past queries
    if family in ("joblib.MemorizedFunc", "joblib.NotMemorizedFunc", "joblib.AsyncMemorizedFunc"):
        return Parts("cached function", [value.func, *_replaced_methods(value)])
    if family.startswith("numba.") and hasattr(value, "py_func"):
        return Parts("compiled function", [value.py_func])
    return None


def _describe_booster(value: Any) -> Parts | None:
    family = family_of(value)
    if family == "xgboost.Booster":
        text = bytes(value.save_raw(raw_format="json")).decode()
        # Attributes contain training logs and data of the wrapper; only the best iteration decides predictions. The
        # library writes its keys in a fixed order, so the rest is used as text, which is six times faster than parsing
        # the trees.
        start = text.index(XGBOOST_ATTRIBUTES) + len(XGBOOST_ATTRIBUTES)
        attributes, end = json.JSONDecoder().raw_decode(text, start)
        parts = [text[:start], text[end:], attributes.get("best_iteration")]
    elif family == "lightgbm.Booster":
        # The order of the training categories decides which code a value gets.
        parts = [str(value.model_to_string()).split("\nparameters:")[0], repr(value.pandas_categorical)]
    elif not family.startswith("catboost.") or not hasattr(value, "_serialize_model"):
        return None
    elif not value.is_fitted():
        parts = [type(value), _in_order(value.get_params())]
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.json"
            value.save_model(str(path), format="json")
            document = json.loads(path.read_text())
        document.pop("model_info", None)  # training parameters, time and GUID: not the function
        parts = [type(value), json.dumps(document, sort_keys=True), own_threshold(value)]
    return Parts("booster", [*parts, *_replaced_methods(value)])


def _describe_torch(value: Any) -> Parts | None:
    if type(value).__name__ == "Generator":
        return _describe_moving(value)
    if hasattr(value, "detach") and hasattr(value, "dtype"):
        tensor = value.detach().cpu()
        if tensor.is_quantized or tensor.layout.__repr__() != "torch.strided":
            return Parts("tensor", [str(tensor)], unseen=(f"a tensor of layout {tensor.layout}",))
        wide = tensor.float() if str(tensor.dtype) in ("torch.bfloat16", "torch.float16") else tensor
        return Parts("tensor", [str(tensor.dtype), np.asarray(wide.contiguous().numpy())])
    if not is_torch_module(value):
        return None
    if hasattr(value, "inlined_graph"):
        state = dict(sorted(value.state_dict().items()))
        return Parts("script", [str(value.code), state], unseen=("the attributes of a TorchScript module",))
    ignored = TORCH_BOOKKEEPING | _attributes_left_out(value)
    attributes = {name: part for name, part in vars(value).items() if name not in ignored}
    # The keys of hooks are numbers that depend on the process, so only their order is kept.
    attributes |= {name: list(attributes.get(name, {}).values()) for name in TORCH_HOOKS}
    return Parts("torch module", [type(value), _in_order(attributes)])


def _describe_table(value: Any) -> Parts | None:
    """Describe polars and Arrow tables, columns and scalars by their values."""
    name = type(value).__name__
    if library_of(value) == "pyarrow":
        if hasattr(value, "to_pylist"):
            return Parts("arrow", [str(getattr(value, "schema", None) or value.type), value.to_pylist()])
        return Parts("arrow", [str(value.type), value.as_py()]) if hasattr(value, "as_py") else None
    if name == "DataFrame":
        return Parts("table", [list(value.columns), *value.get_columns()])
    if name == "Series":
        return Parts("series", [value.name, str(value.dtype), value.to_list()])
    return Parts("expression", [value.meta.serialize(format="json")]) if name == "Expr" else None


# --- the description of a value: by its type, else by the libraries of its class and bases ----------------------

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
WEAK_CACHES = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
NATIVE_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)
PANDAS = (*(pd.DataFrame, pd.Series, pd.Index), *(pd.api.extensions.ExtensionArray, pd.api.extensions.ExtensionDtype))

_BY_TYPE: list[tuple[Any, Callable[[Any], Parts]]] = [
    (np.ndarray, _describe_array),
    ((list, tuple, set, frozenset, dict, types.MappingProxyType), _describe_container),
    (sp.sparray | sp.spmatrix, _describe_sparse),
    (types.FunctionType, _describe_function),
    (types.CodeType, _describe_code),
    (types.MethodType, lambda value: Parts("method", [value.__func__, value.__self__])),
    (NATIVE_FUNCTIONS, _describe_native_function),
    (enum.Enum, lambda value: Parts("member", [type(value), value.name, value.value])),
    (type, _describe_class),
    (types.ModuleType, lambda value: Parts("module", [value.__name__])),
    (property, lambda value: Parts("property", [value.fget])),
    ((staticmethod, classmethod), lambda value: Parts(type(value).__name__, [value.__func__])),
    (PANDAS, _describe_pandas),
    ((*RANDOM, *WEAK_CACHES, threading.local), _describe_moving),
    ((*LOCKS, logging.Logger), lambda value: Parts("no effect", [type(value).__name__])),  # they compute nothing
    (functools._lru_cache_wrapper, lambda value: Parts("cached function", [value.__wrapped__])),
    ((*GENERATORS, weakref.ref, *weakref.ProxyTypes, io.IOBase), _describe_closed),
]
_BY_LIBRARY: dict[str, Callable[[Any], Parts | None]] = {
    **dict.fromkeys(("sklearn", "joblib", "numba"), _describe_python_library),
    **dict.fromkeys(("xgboost", "lightgbm", "catboost"), _describe_booster),
    "torch": _describe_torch,
    **dict.fromkeys(("polars", "pyarrow"), _describe_table),
}


def describe(value: Any) -> Parts:
    """Return what a compound value consists of; a search is described as its best estimator."""
    while (inner := answers_for(value)) is not None:
        value = inner
    for description in _descriptions_of(type(value)):  # type: ignore[arg-type]
        described = description(value)
        if described is not None:
            return described
    return _describe_object(value)


@functools.lru_cache(maxsize=1000)
def _descriptions_of(kind: type) -> tuple[Callable[[Any], Parts | None], ...]:
    general = next((description for types_, description in _BY_TYPE if issubclass(kind, types_)), None)
    if general is not None:
        return (general,)
    libraries = dict.fromkeys(base.__module__.split(".")[0] for base in kind.__mro__ if is_genuine(base))
    return tuple(_BY_LIBRARY[library] for library in libraries if library in _BY_LIBRARY)
