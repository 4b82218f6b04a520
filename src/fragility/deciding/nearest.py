"""The nearest training rows: what the unknown fields held in rows that look like this one in what is known.

    distance(a, b)^2 = sum over known fields of d_f^2
    d_f = |a_f - b_f| / s_f           numbers and dates; s_f is the training standard deviation
    d_f = 0 if a_f = b_f, else 1      categories
    d_f = 1                           one of the two is missing (0 if both are)

The unknown fields then hold, together, what they hold in each of the 24 nearest training rows that have all of them,
with equal weights. Rows at the same distance are taken in the order of their content's digests, so neither the order of
the training rows nor the rows checked together change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats, rows_within
from fragility.base.canonical import is_missing, row_digests
from fragility.base.errors import Advice, DataError
from fragility.deciding.values import JointValues
from fragility.evidence.fields import Field, date_text
from fragility.evidence.rows import Rows, Scalar
from fragility.models.decision import to_python
from fragility.protocol import Protocol

NEAREST = 24
DISTANCE_BYTES = 64 * 2**20


class Neighbours:
    """Training rows, ready to be searched."""

    def __init__(self, training: Rows, protocol: Protocol) -> None:
        if training.frame is None:
            raise DataError("the nearest training rows need a table or a dense array, got a sparse matrix")
        self.fields = {field.name: field for field in protocol.fields}
        digests = row_digests({name: training.frame[name] for name in self.fields})
        order = np.argsort(np.array(digests, dtype="S32"), kind="stable")
        self.frame = training.frame.iloc[order].reset_index(drop=True)
        self.missing = {name: self.frame[name].isna().to_numpy(dtype=bool) for name in self.fields}
        self.measured: dict[str, tuple[Floats, float]] = {}
        self.codes: dict[str, tuple[Floats, dict[Any, int]]] = {}
        for field in protocol.fields:
            column = self.frame[field.name]
            if _is_measured(field):
                numbers = _to_numbers(column)
                spread = float(np.nanstd(numbers)) if (~np.isnan(numbers)).any() else 0.0
                self.measured[field.name] = numbers, spread if spread > 0.0 else 1.0
            else:
                codes, values = pd.factorize(column, use_na_sentinel=True)
                known = {to_python(value): code for code, value in enumerate(values)}
                self.codes[field.name] = codes.astype(np.float64), known

    def find(self, table: pd.DataFrame, unknown: Sequence[str], unread: Sequence[str] = ()) -> list[JointValues]:
        """Return what the unknown fields hold in the training rows nearest to each row of a raw table.

        unread: further unknown fields, which the model does not read.
        """
        complete = np.flatnonzero(~np.any([self.missing[name] for name in unknown], axis=0))
        if len(complete) < 1:
            raise DataError(f"no training row holds all of {', '.join(map(repr, unknown))}; give rows that do")
        known = [name for name in self.fields if name not in unknown and name not in unread]
        step = rows_within(DISTANCE_BYTES, len(complete), copies=3)
        found = []
        for start in range(0, len(table), step):
            part = table.iloc[start : start + step]
            distance = np.zeros((len(part), len(complete)))
            for name in known:
                distance += self._differences(part[name], name, complete)
            for own in distance:
                found.append(self._joint_values(complete[_take_smallest(own, NEAREST)], tuple(unknown)))
        return found

    def _differences(self, column: pd.Series, name: str, places: Any) -> Floats:
        """Return (m, t) squared differences of one field."""
        gone, theirs = column.isna().to_numpy(dtype=bool)[:, None], self.missing[name][places]
        if name in self.measured:
            numbers, spread = self.measured[name]
            apart = (_to_numbers(column)[:, None] - numbers[places]) / spread
            squared = apart * apart
        else:
            codes, known = self.codes[name]
            own = np.array([known.get(to_python(value), -2) if not is_missing(value) else -1 for value in column])
            squared = (own[:, None] != codes[places]).astype(np.float64)
        return np.where(gone & theirs, 0.0, np.where(gone | theirs, 1.0, squared))

    def _joint_values(self, places: Any, unknown: tuple[str, ...]) -> JointValues:
        rows = self.frame[list(unknown)].iloc[places]
        counts: dict[tuple[Scalar, ...], int] = {}
        for row in rows.itertuples(index=False, name=None):
            values = tuple(_plain(value, self.fields[name]) for name, value in zip(unknown, row, strict=True))
            counts[values] = counts.get(values, 0) + 1
        weights = np.array([*counts.values()]) / len(rows)
        return JointValues(unknown, tuple(counts), weights, np.arange(len(counts)))


def make_neighbours(
    read: Callable[[Any, Any], Rows], training: Any, conditional: bool, protocol: Protocol
) -> Neighbours | None:
    """Return the training rows ready to be searched, None if they are not wanted; read: turns them into rows."""
    if conditional and training is None:
        raise DataError(
            Advice(
                "conditional=True takes values from training rows; give training=...",
                "--conditional takes values from training rows; name them with --train",
            )
        )
    if training is not None and not conditional:
        raise DataError(
            "training rows are given, but are read for ",
            Advice("conditional=True", "--conditional"),
            " alone; give it, or leave them out",
        )
    return Neighbours(read(training, None), protocol) if conditional else None


def _is_measured(field: Field) -> bool:
    return field.kind == "numeric" or (field.type == "date" and not field.categorical)


def _to_numbers(column: pd.Series) -> Floats:
    """Return numbers, or the seconds of dates; NaN where a value is missing."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array(
        [
            np.nan if is_missing(v) else float(v) if isinstance(v, (int, float)) else pd.Timestamp(v).timestamp()
            for v in column
        ]
    )


def _take_smallest(distance: Floats, count: int) -> Any:
    """Return the places of the smallest distances; equal ones in the order of places."""
    if len(distance) <= count:
        return np.argsort(distance, kind="stable")
    limit = np.partition(distance, count - 1)[count - 1]
    near = np.flatnonzero(distance <= limit)
    return near[np.argsort(distance[near], kind="stable")][:count]


def _plain(value: Any, field: Field) -> Scalar:
    if field.type == "date":
        return date_text(value)
    plain = to_python(value)
    return float(plain) if field.kind == "numeric" else plain
