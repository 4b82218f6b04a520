"""Fields: what each raw field held in the training data, and columns made to hold the same.

A model was trained with columns of certain types, and some models answer differently for the number 7, the decimal 7.0
and the text "7". So the protocol records the type of each field, and rows of another type are turned into it where
nothing can be lost, and refused by name where it can.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd

from fragility.base.canonical import is_missing
from fragility.base.errors import Advice, DataError
from fragility.models.outputs import to_python

Kind: TypeAlias = Literal["numeric", "nominal"]
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
    if pd.api.types.is_complex_dtype(dtype):
        return "mixed"
    if pd.api.types.is_numeric_dtype(dtype):
        return "number"
    return _INFERRED.get(pd.api.types.infer_dtype(column, skipna=True), "mixed")


def is_categorical(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def has_type(dtype: Any, field: Field) -> bool:
    """Whether every column of this dtype fits the field as it is, whatever its values."""
    if field.categorical:
        return False
    if isinstance(dtype, np.dtype):
        kinds = {"integer": "iu", "number": "f", "boolean": "b"}
        return dtype.kind in kinds.get(field.type, "")
    return field.type == "text" and isinstance(dtype, pd.StringDtype)


def conform_column(column: pd.Series, field: Field, needs_categories: bool, whole: bool) -> pd.Series:
    came = type_of(column)
    if came == "empty":
        return _conform_empty(column, field)
    if field.type in ("empty", "mixed"):
        return column
    plain = column
    if is_categorical(column) and not field.categorical:
        plain = _drop_categories(column)
        came = type_of(plain)
    if field.categorical and needs_categories and not is_categorical(column):
        raise DataError(
            f"column {field.name!r} was categorical in the training data, now it is plain {TYPE_WORDS[came]}; ",
            Advice(
                "give it the training categories: "
                f"pd.Categorical(X[{field.name!r}], categories=X_train[{field.name!r}].cat.categories)",
                "store it as a categorical column with the training categories (Parquet keeps them, CSV does not)",
            ),
        )
    if field.type == "date" and not field.categorical:
        dates = as_trained(plain, field.dtype) if came in ("date", "text") else None
        if dates is None:
            zones = _describe_zone_mismatch(field.name, plain, field.dtype)
            raise DataError(zones or _describe_mismatch(field, came, plain))
        return plain if dates.dtype == plain.dtype else dates
    if came == "integer" and plain.dtype == object and field.type in ("integer", "number"):
        _check_width(plain, field)
    if came == field.type:
        return plain
    fitting = None if is_categorical(plain) else _convert(plain, field.type, came, whole)
    if fitting is None:
        raise DataError(_describe_mismatch(field, came, plain))
    return fitting


def _check_width(column: pd.Series, field: Field) -> None:
    """Refuse whole numbers that no column of numbers holds."""
    for value in column:
        if not is_missing(value) and not -(2**63) <= value < 2**63:
            digits = len(str(abs(int(value)))) if abs(value) < 10**100 else "more than 100"
            raise DataError(
                f"column {field.name!r} holds a whole number of {digits} digits, beyond 64 bits; give it as a decimal "
                "number, or None if it stands for a missing value"
            )


def _drop_categories(column: pd.Series) -> pd.Series:
    values = column.cat.categories.dtype
    if not column.isna().any() or not pd.api.types.is_numeric_dtype(values):
        return column.astype(values)
    return column.astype(object) if pd.api.types.is_bool_dtype(values) else _to_number(column)


def _conform_empty(column: pd.Series, field: Field) -> pd.Series:
    """Return a column of missing values in the form that a column of this field has."""
    if field.categorical:
        return column if is_categorical(column) else column.astype("category")
    if field.dtype is not None:
        return column if str(column.dtype) == field.dtype else pd.Series(pd.NaT, column.index, field.dtype, column.name)
    numeric = pd.api.types.is_numeric_dtype(column.dtype)
    if (field.type in ("integer", "number")) == numeric:
        return column
    return column.astype(object) if numeric else _to_number(column)


def _to_number(column: pd.Series) -> pd.Series:
    return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan), index=column.index, name=column.name)


def _convert(column: pd.Series, wanted: str, came: str, whole: bool) -> pd.Series | None:
    """Return a column as the type that it had in training; None if something would be lost."""
    if wanted == "number" and came in ("integer", "boolean"):
        return _to_number(column)
    if wanted == "integer" and came == "boolean":
        return _to_number(column) if column.isna().any() else column.astype(np.int64)
    if wanted == "integer" and came == "number":
        # Whole numbers with gaps among them stay decimals, as pandas holds such a column.
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        known = values[~np.isnan(values)]
        if not bool((known == np.rint(known)).all()):
            return None if whole else column
        fits = len(known) == len(values) and bool((np.abs(known) <= 2.0**53).all())
        return column.astype(np.int64) if fits else column
    if wanted == "boolean" and came in ("integer", "number"):
        return column.astype(bool) if bool(column.isin([0, 1]).all()) else None
    return None


TYPE_WORDS = {
    "integer": "whole numbers",
    "number": "numbers",
    "boolean": "true or false",
    "text": "text",
    "date": "dates",
    "duration": "durations",
    "mixed": "values of no one type",
    "empty": "nothing",
}


_CONVERT_TO = {
    "integer": "numbers",
    "number": "numbers",
    "boolean": "True and False",
    "text": "text as it was in training",
    "date": "dates as in training",
    "duration": "durations as in training",
}


def _describe_mismatch(field: Field, came: str, column: pd.Series) -> str:
    known = [value for value in column if not is_missing(value)]
    remedy = f"convert it to {_CONVERT_TO[field.type]}"
    if field.type == "integer" and came == "number":
        known = [value for value in known if value != round(value)] or known  # show a fraction among whole numbers
        remedy = "round it, or fit the protocol on training rows that hold it as decimals (astype(float))"
    elif field.type == "text" and came in ("integer", "number"):
        remedy = (
            "codes read as numbers lose leading zeros, so read the file again with this column as text "
            f"(pandas: dtype={{{field.name!r}: str}})"
        )
    return (
        f"column {field.name!r} held {TYPE_WORDS[field.type]} in the training data, now it holds {TYPE_WORDS[came]} "
        f"(for example {to_python(known[0])!r}); {remedy}"
    )


# --- dates ------------------------------------------------------------------------------------------------------
#
# In memory a date is a value of its column: a pandas Timestamp, a Python date or datetime. A protocol has ISO text,
# the day alone where a value has neither a time nor a zone. The unit and the time zone of a column of timestamps are
# recorded as its dtype: a model may read its numbers, and which day it is depends on the zone.

DTYPE = re.compile(r"datetime64\[(s|ms|us|ns)(, [^\[\]]+)?\]")
OFFSET = re.compile(r".*(Z|[+-]\d\d:?\d\d)")
YEAR = re.compile(r"\d{4}", re.ASCII)  # pandas also reads "now", another date when it is verified, and "" as missing


def is_date_dtype(text: Any) -> bool:
    """True if a text names a dtype of timestamps, in a time zone that is known here."""
    if not isinstance(text, str) or not DTYPE.fullmatch(text):
        return False
    try:
        pd.api.types.pandas_dtype(text)
    except (TypeError, ValueError, KeyError):
        return False
    return True


def date_text(value: Any) -> str:
    """Return a date as a protocol has it: ``2020-05-17``, or ``2020-05-17T13:45:00+02:00`` with a time or a zone."""
    stamp = pd.Timestamp(value)
    if stamp.tzinfo is None and stamp == stamp.normalize():
        return stamp.strftime("%Y-%m-%d")
    return str(stamp.isoformat())


def read_date(text: Any) -> pd.Timestamp | None:
    """Return the timestamp that a text of a protocol stands for; None if it stands for none."""
    if not isinstance(text, str):
        return None
    try:
        stamp = pd.Timestamp(text)
    except ValueError:
        return None
    return None if is_missing(stamp) or date_text(stamp) != text else stamp


def value_like(text: str, column: pd.Series) -> Any:
    """Return the date of a protocol as this column holds its values."""
    stamp = pd.Timestamp(text)
    values = column.cat.categories.to_series() if is_categorical(column) else column
    zone = getattr(values.dtype, "tz", None)
    if zone is not None:
        return stamp.tz_convert(zone)
    example = next(iter(values.dropna()), stamp)
    if isinstance(example, pd.Timestamp):
        return stamp
    return stamp.to_pydatetime() if isinstance(example, dt.datetime) else stamp.date()


def middle_date(known: pd.Series) -> str:
    """Return the median date; of two in the middle the earlier, so that it is a date that a row has."""
    ordered = known.astype(known.cat.categories.dtype) if is_categorical(known) else known
    return date_text(ordered.sort_values(kind="stable").iloc[(len(known) - 1) // 2])


def as_trained(column: pd.Series, dtype: str | None) -> pd.Series | None:
    """Return dates or ISO texts as in training (``dtype`` None: as Python dates); None if something would be lost."""
    if dtype is None and column.dtype == object and not _holds_texts(column):
        return column
    stamps = _timestamps(column, dtype)
    if stamps is None:
        return None
    if dtype is None:
        days = stamps.dt.tz is None and bool((stamps.dropna() == stamps.dropna().dt.normalize()).all())
        return stamps.dt.date.where(stamps.notna(), None) if days else None
    wanted: Any = pd.api.types.pandas_dtype(dtype)
    zone = getattr(wanted, "tz", None)
    if (zone is None) != (stamps.dt.tz is None):
        return None
    fitting = (stamps if zone is None else stamps.dt.tz_convert(zone)).astype(wanted)
    cut = (fitting != stamps) & stamps.notna()  # a coarser unit may cut digits
    return None if cut.any() else fitting


def _holds_texts(column: pd.Series) -> bool:
    return isinstance(next(iter(column.dropna()), None), str)


def _timestamps(column: pd.Series, dtype: str | None) -> pd.Series | None:
    if pd.api.types.is_datetime64_any_dtype(column.dtype) and isinstance(column.dtype, (np.dtype, pd.DatetimeTZDtype)):
        return column
    with_zone, texts = dtype is not None and "," in dtype, _holds_texts(column)
    if texts and not all(YEAR.match(text) for text in column.dropna()):
        return None
    if texts and with_zone != all(OFFSET.fullmatch(text) for text in column.dropna()):
        return None
    try:
        found = pd.to_datetime(column.astype(object), format="ISO8601" if texts else None, utc=with_zone)
    except (ValueError, TypeError):
        return None
    return pd.Series(found, index=column.index, name=column.name)


def _describe_zone_mismatch(name: str, column: pd.Series, dtype: str | None) -> str | None:
    """Say that timestamps have a time zone and those of the training data had none, or the reverse."""
    now, then = (DTYPE.fullmatch(str(text)) for text in (column.dtype, dtype))
    if now is None or then is None or (now[2] is None) == (then[2] is None):
        return None
    if then[2] is None:
        return (
            f"column {name!r} had no time zone in the training data, now it has {now[2][2:]!r}; convert it to the zone "
            f"of the training data and drop the zone: X[{name!r}].dt.tz_convert(...).dt.tz_localize(None)"
        )
    return (
        f"column {name!r} had the time zone {then[2][2:]!r} in the training data, now it has none; say which it is: "
        f"X[{name!r}].dt.tz_localize(...)"
    )
