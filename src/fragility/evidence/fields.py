"""Fields: what each raw field held in the training data, and rows made to hold the same.

A model was trained with columns of certain types, and some models answer differently for the number 7, the decimal 7.0
and the text "7". So the protocol records the type of each field, and rows of another type are turned into it where
nothing can be lost, and refused by name where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd

from fragility.canonical import is_missing
from fragility.errors import Advice, DataError
from fragility.evidence.dates import as_trained, dtype_of_dates, zone_mismatch
from fragility.evidence.rows import Kind, Rows

FieldType: TypeAlias = Literal["integer", "number", "boolean", "text", "date", "duration", "mixed", "empty"]
FIELD_TYPES: tuple[str, ...] = get_args(FieldType)


@dataclass(frozen=True, slots=True)
class Field:
    """A raw field of the data, as the model was trained on it."""

    name: str
    kind: Kind
    type: FieldType  # of its values; empty: training had none
    categorical: bool = False  # held as a categorical column, whose list of categories is part of the data
    dtype: str | None = None  # of a column of timestamps: its unit and time zone


def kind_of(column: pd.Series) -> Kind:
    """Return ``numeric`` for numbers, ``nominal`` for everything else (text, categories, booleans, dates)."""
    dtype = column.dtype
    numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    return "numeric" if numeric else "nominal"


_INFERRED: dict[str, FieldType] = {
    "string": "text",
    "boolean": "boolean",
    "integer": "integer",
    "floating": "number",
    "mixed-integer-float": "number",
    "datetime64": "date",
    "datetime": "date",
    "date": "date",
    "timedelta64": "duration",
    "timedelta": "duration",
    "empty": "empty",
}


def type_of(column: pd.Series) -> FieldType:
    """Return the type of a column's values; a column of missing values only has none (``empty``)."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return type_of(pd.Series(dtype.categories))
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_integer_dtype(dtype):
        return "integer"
    if bool(column.isna().all()):
        return "empty"
    if pd.api.types.is_numeric_dtype(dtype):
        return "number"
    return _INFERRED.get(pd.api.types.infer_dtype(column, skipna=True), "mixed")


def is_categorical(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def fields_of(rows: Rows, kinds: dict[str, Kind]) -> tuple[Field, ...]:
    """Return the raw fields of training rows; the cells of a sparse matrix are numbers."""
    if rows.frame is None:
        return tuple(Field(name, kinds[name], "number") for name in rows.names)
    columns = [(name, rows.frame[name]) for name in rows.names]
    return tuple(
        Field(name, kinds[name], type_of(column), is_categorical(column), dtype_of_dates(column))
        for name, column in columns
    )


def conformed(rows: Rows, fields: Sequence[Field], *, needs_categories: bool, whole: bool) -> Rows:
    """Return ``rows`` with every field of the type it had in training; refuse a field that cannot have it.

    needs_categories: the model reads categorical columns itself, so a plain column cannot stand in for one.
    whole: fields of whole numbers must be whole (raw space); else a decimal in such a field is a number like another.
    """
    if rows.frame is None:
        return rows
    changed: dict[str, Any] = {}
    for field in fields:
        column = rows.frame[field.name]
        fitting = _conformed_column(column, field, needs_categories, whole)
        if fitting is not column:
            changed[field.name] = fitting
    if not changed:
        return rows
    frame = rows.frame.assign(**changed)
    if isinstance(rows.native, np.ndarray):
        return replace(rows, frame=frame, native=frame.to_numpy())
    if isinstance(rows.native, pd.DataFrame):
        return replace(rows, frame=frame, native=frame)
    import polars

    return replace(
        rows,
        frame=frame,
        native=rows.native.with_columns([polars.from_pandas(frame[name]).alias(name) for name in changed]),
    )


def _conformed_column(column: pd.Series, field: Field, needs_categories: bool, whole: bool) -> pd.Series:
    came = type_of(column)
    if came == "empty":
        return _empty_column(column, field)
    if field.type in ("empty", "mixed"):
        return column
    plain = column
    if is_categorical(column) and not field.categorical:
        plain = _without_categories(column)
        came = type_of(plain)
    if field.categorical and needs_categories and not is_categorical(column):
        raise DataError(
            f"column {field.name!r} was categorical in the training data, now it is plain {_words(came)}; ",
            Advice(
                "give it the training categories: "
                f"pd.Categorical(X[{field.name!r}], categories=X_train[{field.name!r}].cat.categories)",
                "store it as a categorical column with the training categories (Parquet keeps them, CSV does not)",
            ),
        )
    if field.type == "date" and not field.categorical:
        return _conformed_dates(plain, field, came)
    if came == field.type:
        return plain
    fitting = None if is_categorical(plain) else _CONVERSIONS.get((field.type, came), _impossible)(plain, whole)
    if fitting is None:
        raise DataError(_mismatch(field, came, plain))
    return fitting


def _conformed_dates(column: pd.Series, field: Field, came: str) -> pd.Series:
    fitting = as_trained(column, field.dtype) if came in ("date", "text") else None
    if fitting is None:
        raise zone_mismatch(field.name, column, field.dtype) or DataError(_mismatch(field, came, column))
    return column if fitting.dtype == column.dtype else fitting


def _without_categories(column: pd.Series) -> pd.Series:
    values = column.cat.categories.dtype
    if not column.isna().any() or not pd.api.types.is_numeric_dtype(values):
        return column.astype(values)
    return column.astype(object) if pd.api.types.is_bool_dtype(values) else _to_number(column, False)


def _empty_column(column: pd.Series, field: Field) -> pd.Series:
    """Return a column of missing values in the form that a column of this field has."""
    if field.categorical:
        return column if is_categorical(column) else column.astype("category")
    if field.dtype is not None:
        return column if str(column.dtype) == field.dtype else pd.Series(pd.NaT, column.index, field.dtype, column.name)
    numeric = pd.api.types.is_numeric_dtype(column.dtype)
    if field.type in ("integer", "number"):
        return column if numeric else _to_number(column, False)
    return column.astype(object) if numeric else column


def _impossible(column: pd.Series, whole: bool) -> pd.Series | None:
    return None


def _to_number(column: pd.Series, whole: bool) -> pd.Series:
    return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan), index=column.index, name=column.name)


def _flags_to_integer(column: pd.Series, whole: bool) -> pd.Series:
    if column.isna().any():
        return _to_number(column, whole)
    return column.astype(np.int64)


def _number_to_integer(column: pd.Series, whole: bool) -> pd.Series | None:
    """Return whole numbers as such; with gaps among them they stay decimals, as pandas holds such a column."""
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    known = values[~np.isnan(values)]
    if not bool((known == np.rint(known)).all()):
        return None if whole else column
    fits = len(known) == len(values) and bool((np.abs(known) <= 2.0**53).all())
    return column.astype(np.int64) if fits else column


def _to_boolean(column: pd.Series, whole: bool) -> pd.Series | None:
    only_flags = bool(column.isin([0, 1]).all())
    return column.astype(bool) if only_flags else None


_CONVERSIONS: dict[tuple[str, str], Callable[[pd.Series, bool], pd.Series | None]] = {  # (in training, now)
    ("number", "integer"): _to_number,
    ("number", "boolean"): _to_number,
    ("integer", "boolean"): _flags_to_integer,
    ("integer", "number"): _number_to_integer,
    ("boolean", "integer"): _to_boolean,
    ("boolean", "number"): _to_boolean,
}

_WORDS = {
    "integer": "whole numbers",
    "number": "numbers",
    "boolean": "true or false",
    "text": "text",
    "date": "dates",
    "duration": "durations",
    "mixed": "values of no one type",
    "empty": "nothing",
}


def _words(type_name: str) -> str:
    return _WORDS[type_name]


def _mismatch(field: Field, came: str, column: pd.Series) -> str:
    example = _example(column, field)
    return (
        f"column {field.name!r} held {_words(field.type)} in the training data, now it holds {_words(came)} "
        f"(for example {example!r}); {_remedy(field, came)}"
    )


def _example(column: pd.Series, field: Field) -> Any:
    """Return a value that shows the difference: a fraction among whole numbers, text among numbers."""
    known = [value for value in column if not is_missing(value)]
    if field.type == "integer" and type_of(column) == "number":
        known = [value for value in known if value != round(value)] or known
    value = known[0]
    return value.item() if isinstance(value, np.generic) else value


def _remedy(field: Field, came: str) -> str:
    if field.type == "text":
        if came in ("integer", "number"):
            return (
                "codes read as numbers lose leading zeros, so read the file again with this column as text "
                f"(pandas: dtype={{{field.name!r}: str}})"
            )
        return "convert it to text as it was in training"
    if field.type == "integer" and came == "number":
        return "round it, or fit the protocol on training rows that hold it as decimals (astype(float))"
    if field.type in ("integer", "number"):
        return "convert it to numbers"
    if field.type == "boolean":
        return "convert it to True and False"
    return f"convert it to {_words(field.type)} as in training"
