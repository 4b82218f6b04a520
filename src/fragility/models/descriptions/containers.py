"""Containers: sequences, sets, mappings, arrays and tables, by their values."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from fragility.models.descriptions.objects import describe_object
from fragility.models.descriptions.parts import Parts


def describe_sequence(value: Any) -> Parts:
    if type(value) not in (list, tuple):
        return describe_object(value)
    return Parts("list", value)


def describe_set(value: Any) -> Parts:
    if type(value) not in (set, frozenset):
        return describe_object(value)
    return Parts("set", value, ordered=False)


def describe_mapping(value: Any) -> Parts:
    # A Bunch has bookkeeping of its own, which it loses on being saved.
    if type(value) not in (dict, types.MappingProxyType, Bunch):
        return describe_object(value)
    # In order: what iterates over a dictionary makes its columns in that order.
    return Parts("mapping", [part for pair in value.items() for part in pair])


def describe_array(value: np.ndarray[Any, Any]) -> Parts:
    form = [value.dtype.str if value.dtype.names is None else list(value.dtype.names), list(value.shape)]
    if isinstance(value, np.ma.MaskedArray):
        return Parts("masked array", [np.asarray(value.filled()), np.ma.getmaskarray(value)])
    if value.dtype == object:
        return Parts("array of objects", [list(value.shape), list(value.ravel())])
    if value.dtype.names:
        # Structured arrays may have padding, whose bytes are undefined: take field by field.
        return Parts("structured array", [*form, *(np.ascontiguousarray(value[name]) for name in value.dtype.names)])
    return Parts("array", [*form, np.ascontiguousarray(value).tobytes()])


def describe_sparse(value: Any) -> Parts:
    parts = value.tocoo(copy=True)
    parts.sum_duplicates()
    return Parts("sparse", [list(value.shape), *parts.coords, parts.data])


def describe_frame(value: pd.DataFrame) -> Parts:
    columns = [_column_values(value.iloc[:, i].array) for i in range(value.shape[1])]
    return Parts("table", [value.columns, value.index, *columns])


def describe_series(value: pd.Series) -> Parts:
    return Parts("series", [value.name, value.index, _column_values(value.array)])


def describe_index(value: pd.Index) -> Parts:
    values = list(value) if isinstance(value, pd.MultiIndex) else _column_values(value.array)
    return Parts("index", [list(value.names), values])


def describe_extension_array(value: Any) -> Parts:
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


def describe_pandas_dtype(value: Any) -> Parts:
    if isinstance(value, pd.CategoricalDtype):
        return Parts("categories", [value.categories, value.ordered])
    return Parts("column type", [str(value)])
