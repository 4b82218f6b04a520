"""Dates: how a field of dates is recorded in a protocol, and how rows get the form that the training rows had.

In memory a date is a value of its column: a pandas Timestamp, a Python date or datetime. In a protocol it is ISO text,
the day alone where a value has neither a time nor a zone. The unit and the time zone of a column of timestamps are
recorded as its dtype: a model may read its numbers, and which day it is depends on the zone.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import numpy as np
import pandas as pd

from fragility.canonical import is_missing
from fragility.errors import DataError

DTYPE = re.compile(r"datetime64\[(s|ms|us|ns)(, [^\[\]]+)?\]")
OFFSET = re.compile(r".*(Z|[+-]\d\d:?\d\d)")


def dtype_of_dates(column: pd.Series) -> str | None:
    """Return the dtype of a column of timestamps, with unit and time zone; None for any other column."""
    found = str(column.dtype)
    return found if DTYPE.fullmatch(found) else None


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
    values = column.cat.categories.to_series() if isinstance(column.dtype, pd.CategoricalDtype) else column
    zone = getattr(values.dtype, "tz", None)
    if zone is not None:
        return stamp.tz_convert(zone)
    example = next(iter(values.dropna()), stamp)
    if isinstance(example, pd.Timestamp):
        return stamp
    return stamp.to_pydatetime() if isinstance(example, dt.datetime) else stamp.date()


def middle_date(known: pd.Series) -> str:
    """Return the median date; of two in the middle the earlier, so that it is a date that a row has."""
    ordered = known.astype(known.cat.categories.dtype) if isinstance(known.dtype, pd.CategoricalDtype) else known
    return date_text(ordered.sort_values(kind="stable").iloc[(len(known) - 1) // 2])


def as_trained(column: pd.Series, dtype: str | None) -> pd.Series | None:
    """Return dates, or texts that are ISO dates, in the form of the training data; None if something would be lost.

    dtype: of the timestamps in training; None if they were Python dates or datetimes.
    """
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
    moved = stamps if zone is None else stamps.dt.tz_convert(zone)
    fitting = moved.astype(wanted)
    known = stamps.notna()
    return fitting if bool((fitting[known] == stamps[known]).all()) else None  # a coarser unit may cut digits


def _holds_texts(column: pd.Series) -> bool:
    return isinstance(next(iter(column.dropna()), None), str)


def _timestamps(column: pd.Series, dtype: str | None) -> pd.Series | None:
    if pd.api.types.is_datetime64_any_dtype(column.dtype) and isinstance(column.dtype, (np.dtype, pd.DatetimeTZDtype)):
        return column
    with_zone = dtype is not None and "," in dtype
    known = column.dropna()
    if _holds_texts(column) and with_zone != all(OFFSET.fullmatch(text) for text in known):
        return None
    try:
        found = pd.to_datetime(column.astype(object), format="ISO8601" if _holds_texts(column) else None, utc=with_zone)
    except (ValueError, TypeError):
        return None
    return pd.Series(found, index=column.index, name=column.name)


def zone_mismatch(name: str, column: pd.Series, dtype: str | None) -> DataError | None:
    """Return what to say where timestamps have a time zone and those of the training data had none, or the reverse."""
    now, then = (DTYPE.fullmatch(str(text)) for text in (column.dtype, dtype))
    if now is None or then is None or (now[2] is None) == (then[2] is None):
        return None
    if then[2] is None:
        return DataError(
            f"column {name!r} had no time zone in the training data, now it has {now[2][2:]!r}; convert it to the zone "
            f"of the training data and drop the zone: X[{name!r}].dt.tz_convert(...).dt.tz_localize(None)"
        )
    return DataError(
        f"column {name!r} had the time zone {then[2][2:]!r} in the training data, now it has none; say which it is: "
        f"X[{name!r}].dt.tz_localize(...)"
    )
