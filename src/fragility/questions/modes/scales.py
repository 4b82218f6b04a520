"""Scales: the values that an ordered raw field can hold, numbered so that neighbours differ by 1.

A place is a whole number of 64 bits. Whole numbers are their own places and days are counted from 1970; a decimal's
place is its rank among the decimals of its column's precision (that of 0.0 is 0), and the place of any other date
counts the units of its column. So the value one representable step beyond v is that of ``place(v) + 1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.evidence.fields import DTYPE, Field, as_trained, date_text
from fragility.evidence.modes import Range
from fragility.evidence.rows import Scalar

LARGEST_WHOLE, LARGEST_HALF = 2.0**53, 2.0**11  # up to here float64, and float16, hold every whole number
NARROW = ("float32", "float16")  # decimals narrower than float64


class Places(NamedTuple):
    """Where the cells of a column stand on a scale; n cells."""

    place: Integers  # (n,), 0 where there is none
    known: Booleans  # (n,) the cell is not missing
    fits: Booleans  # (n,) its value is one of the scale


@dataclass(frozen=True)
class Scale:
    """The ordered values of a raw field."""

    field: Field
    range: Range
    precision: Any  # np.float64, np.float32 or np.float16, of decimals

    @property
    def unit(self) -> str:
        """The unit in which dates are counted."""
        known = DTYPE.fullmatch(self.field.dtype or "")
        return "D" if self.range.whole else known[1] if known is not None else "us"

    @cached_property
    def low(self) -> int:
        """The place of the smallest training value."""
        place = self._place_of(self.range.low)
        return place + 1 if self._is_decimal and self.numbers(np.array([place]))[0] < self.range.low else place

    @cached_property
    def high(self) -> int:
        """The place of the largest training value."""
        place = self._place_of(self.range.high)
        return place - 1 if self._is_decimal and self.numbers(np.array([place]))[0] > self.range.high else place

    @property
    def _is_decimal(self) -> bool:
        return self.field.type != "date" and not self.range.whole

    @property
    def _is_integer(self) -> bool:
        """Whether values are written without a point; decimals that are whole keep theirs."""
        return self.range.whole and self.field.type == "integer"

    def _place_of(self, value: Scalar) -> int:
        given = pd.Series([value]) if self.field.type != "date" else _stamps(pd.Series([pd.Timestamp(str(value))]))
        return int(self._places_of(given)[0])

    def _places_of(self, known: pd.Series) -> Integers:
        """Return the places of values that are known and fit; dates without a zone."""
        if self.field.type == "date":
            return known.to_numpy().astype(f"datetime64[{self.unit}]").astype(np.int64)
        numbers = known.to_numpy(dtype=np.float64)
        return numbers.astype(np.int64) if self.range.whole else rank_decimals(numbers.astype(self.precision))

    def places(self, column: pd.Series) -> Places:
        """Return where the cells of a column stand."""
        if self.field.type == "date":
            trained = as_trained(column, self.field.dtype)
            assert trained is not None  # rows of another type are refused when they are bound
            column = _stamps(trained)
        known = column.notna().to_numpy()
        place = np.zeros(len(column), dtype=np.int64)
        fits = known.copy()
        if self.range.whole and self.field.type != "date":
            numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
            fits &= (numbers == np.rint(numbers)) & (np.abs(numbers) <= LARGEST_WHOLE)
            if self.precision == np.float16 and max(abs(self.low), abs(self.high)) > LARGEST_HALF:
                fits[:] = False  # the column holds some whole numbers only
        elif self.range.whole:
            fits &= (column == column.dt.normalize()).to_numpy()
        elif self._is_decimal and self.precision != np.float64:
            numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
            with np.errstate(over="ignore"):
                fits &= numbers == numbers.astype(self.precision)  # other numbers lie between two values of the scale
        place[fits] = self._places_of(column[fits])
        return Places(place, known, fits)

    def column(self, places: Integers) -> pd.Series:
        """Return the values of places as a column of the field."""
        if self.field.type != "date":
            return pd.Series(places if self._is_integer else self.numbers(places).astype(self.precision))
        stamps = self._to_stamps(places)
        if self.field.dtype is None:
            plain = stamps.dt.date if self.range.whole else pd.Series(stamps.dt.to_pydatetime(), dtype=object)
            return plain.astype(object)
        dtype: Any = pd.api.types.pandas_dtype(self.field.dtype)
        zone = getattr(dtype, "tz", None)
        return (stamps if zone is None else stamps.dt.tz_localize("UTC").dt.tz_convert(zone)).astype(dtype)

    def _to_stamps(self, places: Integers) -> pd.Series:
        """Return dates without a zone."""
        counted = np.asarray(places, dtype=np.int64).astype(f"datetime64[{self.unit}]")
        return pd.Series(counted.astype("datetime64[s]") if self.unit == "D" else counted)

    def values(self, places: Integers) -> list[Scalar]:
        """Return the values of places: whole numbers, decimals, or dates as ISO text."""
        if self.field.type == "date":
            return [date_text(value) for value in self.column(places)]
        return list((places if self._is_integer else self.numbers(places)).tolist())

    def value(self, place: int) -> Scalar:
        """Return the value of one place."""
        return self.values(np.array([place]))[0]

    def numbers(self, places: Integers) -> Floats:
        """Return the values of places as numbers; dates are counted."""
        if not self._is_decimal:
            return places.astype(np.float64)
        return unrank_decimals(places, self.precision).astype(np.float64)

    def draw(self, low: Integers, high: Integers, count: int, chance: np.random.Generator) -> Iterator[Integers]:
        """Yield random places (n,) from low to high, ``count`` times: uniform in the values."""
        first, last = self.numbers(low), self.numbers(high)
        for _ in range(count):
            share = chance.random(len(low))
            yield np.clip(self.nearest(first * (1.0 - share) + last * share), low, high)

    def nearest(self, numbers: Floats) -> Integers:
        """Return the places of values near to numbers."""
        if self._is_decimal:
            return rank_decimals(numbers.astype(self.precision))
        return np.clip(numbers, -(2.0**62), 2.0**62).astype(np.int64)


def _stamps(dates: pd.Series) -> pd.Series:
    """Return dates of any form as timestamps without a zone; those with one in UTC."""
    stamps = dates if pd.api.types.is_datetime64_any_dtype(dates.dtype) else pd.to_datetime(dates)
    return stamps if stamps.dt.tz is None else stamps.dt.tz_convert("UTC").dt.tz_localize(None)


def rank_decimals(values: npt.NDArray[np.floating[Any]]) -> Integers:
    """Return the rank of each decimal among those of its precision; 0.0 and -0.0 have rank 0."""
    signed = np.dtype(f"i{values.dtype.itemsize}")
    bits: Integers = np.ascontiguousarray(values).view(signed).astype(np.int64)
    size = bits & int(np.iinfo(signed).max)
    return np.where(bits < 0, -size, size)


def unrank_decimals(ranks: Integers, precision: Any) -> npt.NDArray[np.floating[Any]]:
    """Return the decimals of some ranks."""
    signed = np.dtype(f"i{np.dtype(precision).itemsize}")
    size = np.abs(ranks).astype(signed).view(precision)
    return np.asarray(np.where(ranks < 0, -size, size))
