"""Which description belongs to a value: by its type, else by the libraries its class comes from."""

from __future__ import annotations

import enum
import functools
import io
import logging
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.libraries import is_genuine
from fragility.models.descriptions.code import (
    describe_class,
    describe_code,
    describe_descriptor,
    describe_function,
    describe_method,
    describe_module,
    describe_native_function,
)
from fragility.models.descriptions.containers import (
    describe_array,
    describe_extension_array,
    describe_frame,
    describe_index,
    describe_mapping,
    describe_pandas_dtype,
    describe_sequence,
    describe_series,
    describe_set,
    describe_sparse,
)
from fragility.models.descriptions.libraries import (
    describe_catboost,
    describe_joblib,
    describe_lightgbm,
    describe_numba,
    describe_polars,
    describe_pyarrow,
    describe_sklearn,
    describe_torch,
    describe_xgboost,
)
from fragility.models.descriptions.objects import (
    RANDOM,
    describe_cached_function,
    describe_closed,
    describe_enum_member,
    describe_idle,
    describe_moving,
    describe_object,
)
from fragility.models.descriptions.parts import Parts
from fragility.models.wrappers import answers_for

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
WEAK_CACHES = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
NATIVE_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)

_BY_TYPE: list[tuple[Any, Callable[[Any], Parts]]] = [
    (np.ndarray, describe_array),
    ((list, tuple), describe_sequence),
    ((set, frozenset), describe_set),
    ((dict, types.MappingProxyType), describe_mapping),
    (sp.sparray | sp.spmatrix, describe_sparse),
    (types.FunctionType, describe_function),
    (types.CodeType, describe_code),
    (types.MethodType, describe_method),
    (NATIVE_FUNCTIONS, describe_native_function),
    (enum.Enum, describe_enum_member),
    (type, describe_class),
    (types.ModuleType, describe_module),
    ((property, staticmethod, classmethod), describe_descriptor),
    (pd.DataFrame, describe_frame),
    (pd.Series, describe_series),
    (pd.Index, describe_index),
    (pd.api.extensions.ExtensionArray, describe_extension_array),
    (pd.api.extensions.ExtensionDtype, describe_pandas_dtype),
    (RANDOM, describe_moving),
    (LOCKS, describe_idle),
    ((*WEAK_CACHES, threading.local), describe_moving),
    (logging.Logger, describe_idle),
    (functools._lru_cache_wrapper, describe_cached_function),
    (GENERATORS, describe_closed),
    ((weakref.ref, *weakref.ProxyTypes), describe_closed),
    (io.IOBase, describe_closed),
]
_BY_LIBRARY: dict[str, Callable[[Any], Parts | None]] = {
    "sklearn": describe_sklearn,
    "joblib": describe_joblib,
    "numba": describe_numba,
    "xgboost": describe_xgboost,
    "lightgbm": describe_lightgbm,
    "catboost": describe_catboost,
    "torch": describe_torch,
    "polars": describe_polars,
    "pyarrow": describe_pyarrow,
}


def describe(value: Any) -> Parts:
    """Return what a compound value consists of; a search is the same model as the estimator that it found."""
    while (inner := answers_for(value)) is not None:
        value = inner
    for description in _descriptions_of(type(value)):  # type: ignore[arg-type]
        found = description(value)
        if found is not None:
            return found
    return describe_object(value)


@functools.lru_cache(maxsize=1000)
def _descriptions_of(kind: type) -> tuple[Callable[[Any], Parts | None], ...]:
    general = next((description for known, description in _BY_TYPE if issubclass(kind, known)), None)
    if general is not None:
        return (general,)
    libraries = dict.fromkeys(base.__module__.split(".")[0] for base in kind.__mro__ if is_genuine(base))
    return tuple(_BY_LIBRARY[library] for library in libraries if library in _BY_LIBRARY)
