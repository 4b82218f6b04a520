"""Stand-ins: the raw value of a missing field that the model cannot answer without.

It is the protocol's baseline in raw units, so that the row as decided is an ordinary raw row: it can be handed to the
model, audited, logged and verified. In the raw space the protocol declares it. In the transformed space the baseline is
a value of the estimator's columns, and the stand-in is the raw value that the preprocessing turns into it: a category
of the catalogue or of the encoder, or a number found by interpolation within the training range, rounded where the
field held whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import FragilityError
from fragility.evidence import EvidenceRows
from fragility.evidence.fields import Field, is_categorical, type_of, value_like
from fragility.evidence.modes import values_frame, weigh_values
from fragility.evidence.origins import find_categories
from fragility.evidence.rows import Scalar
from fragility.models.decision import to_python
from fragility.protocol import Protocol

GRID = 65  # values that are tried at a time between the two nearest so far
ROUNDS = 4
SAME = 1e-9  # of a cell: by so much may the encoding of a category differ from the baseline


def find_standins(rows: EvidenceRows, protocol: Protocol) -> dict[str, Scalar]:
    """Return the stand-in of each field that has one; None is a missing value.

    rows: any rows bound to the protocol. A field has no stand-in if no raw value becomes its baseline, as nominal
    fields under the baseline ``mean``.
    """
    if protocol.space == "raw" or rows.model.transformer is None or protocol.baseline == "missing":
        declared = {column.name: column.baseline for column in protocol.columns}
        return {field.name: declared.get(field.name) for field in protocol.fields}
    origins = protocol.evidence.column_fields
    used = {name for fields in origins for name in fields}
    found: dict[str, Scalar] = {field.name: None for field in protocol.fields if field.name not in used}
    own = {
        field.name: np.array([j for j, fields in enumerate(origins) if fields == (field.name,)], dtype=np.int64)
        for field in protocol.fields
    }
    measured = {
        name: columns[[protocol.columns[j].kind != "nominal" for j in columns]] for name, columns in own.items()
    }
    ranges = {each.field: each for each in protocol.modes.ranges if isinstance(each.low, float)}
    numbers = {field.name: field for field in protocol.fields if field.name in ranges and len(measured[field.name])}
    ends = {name: (float(ranges[name].low), float(ranges[name].high)) for name in numbers}
    for name, value in _solve(rows, {name: (*ends[name], int(measured[name][0])) for name in numbers}).items():
        found[name] = float(round(value)) if numbers[name].type == "integer" else value
    listed = [field for field in protocol.fields if field.name not in found and len(own[field.name])]
    candidates = {field.name: list(weigh_values(protocol.modes, field.name)) for field in listed}
    found |= _match(rows, {name: values for name, values in candidates.items() if values}, own)
    if any(name not in found for name in candidates):  # joint values of a group need not hold the most frequent ones
        for name, values in find_categories(rows.model.transformer, rows.source.names).items():
            if name in candidates and name not in found:
                with suppress(FragilityError):  # an encoder behind other steps: these are no raw values
                    found |= _match(rows, {name: [to_python(value) for value in values]}, own)
    return found


def _encode(rows: EvidenceRows, values: dict[str, list[Scalar]]) -> Floats:
    assert rows.encode is not None and rows.source.frame is not None
    return rows.encode(values_frame(values, rows.source.frame))


def _solve(rows: EvidenceRows, sought: dict[str, tuple[float, float, int]]) -> dict[str, float]:
    """Return the number of each field at which its column is nearest to the baseline; sought: low, high, column.

    All fields are searched at once, since no column of one depends on another.
    """
    if not sought or rows.encode is None:
        return {}
    places = np.arange(GRID) / (GRID - 1)
    for _ in range(ROUNDS):
        grids = {name: low + (high - low) * places for name, (low, high, _) in sought.items()}
        cells = _encode(rows, {name: list(map(float, grid)) for name, grid in grids.items()})
        for name, (_, _, column) in sought.items():
            gap = cells[:, column] - rows.baseline[column]
            crossed = np.flatnonzero((gap[:-1] <= 0.0) != (gap[1:] <= 0.0))
            at = int(crossed[0]) if len(crossed) else int(np.argmin(np.abs(gap)))
            after = min(at + 1, GRID - 1) if len(crossed) else at
            sought = sought | {name: (float(grids[name][at]), float(grids[name][after]), column)}
    found = {}
    ends = _encode(rows, {name: [low, high] for name, (low, high, _) in sought.items()})
    for name, (low, high, column) in sought.items():
        left, right = ends[:, column]
        part = 0.0 if right == left else (rows.baseline[column] - left) / (right - left)
        found[name] = low + (high - low) * float(np.clip(part, 0.0, 1.0))
    return found


def _match(rows: EvidenceRows, candidates: dict[str, list[Scalar]], own: dict[str, Integers]) -> dict[str, Scalar]:
    """Return the first value of each field, among its candidates, that is encoded as the baseline."""
    if not candidates or rows.encode is None:
        return {}
    most = max(map(len, candidates.values()))
    padded = {name: [*values, *values[:1] * (most - len(values))] for name, values in candidates.items()}
    cells, found = _encode(rows, padded), {}
    for name, values in candidates.items():
        columns = own[name]
        mine, wanted = cells[: len(values), columns], rows.baseline[columns]
        same = (np.isnan(mine) & np.isnan(wanted)) | (np.abs(mine - wanted) <= SAME * (1.0 + np.abs(wanted)))
        if same.all(axis=1).any():
            found[name] = values[int(np.argmax(same.all(axis=1)))]
    return found


# --- putting them into a table -------------------------------------------------------------------------------


def fill_column(column: pd.Series, gaps: Sequence[bool], value: Scalar, field: Field) -> pd.Series:
    """Return a raw column with the stand-in in some of its rows, in a type that holds both."""
    if not any(gaps):
        return column
    at = np.asarray(gaps)
    if value is None:
        return column.mask(at)
    if field.type == "date":
        value = value_like(str(value), column)
    if is_categorical(column):
        known = column if value in column.cat.categories else column.cat.add_categories([value])
        return known.mask(at, value)
    if field.kind == "numeric" and _are_numbers(column := column.mask(at)):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        numbers[at] = value
        whole = field.type == "integer" and not np.isnan(numbers).any() and bool((numbers == np.rint(numbers)).all())
        return pd.Series(numbers.astype(np.int64) if whole else numbers, index=column.index, name=column.name)
    filled = column.astype(object).mask(at, value)
    holds_both = type_of(column) == field.type and not filled.isna().any() and not column.isna().any()
    return filled.astype(column.dtype) if holds_both else filled


def _are_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) or type_of(column) in ("integer", "number", "boolean", "empty")
