"""Records: rows as mappings from fields to Python values, as a service receives them, made into a table.

A value becomes what the training data held: 3.0 in a field of whole numbers is 3, and None is a missing value. What
does not fit is left as it is, and refused by name where rows are bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fragility.canonical import WHOLE_BITS, is_missing, refuse_surrogate
from fragility.errors import DataError
from fragility.evidence.fields import Field
from fragility.evidence.modes import FailureModes
from fragility.evidence.rows import Scalar, list_names, name_places

MADE_ROWS = 32


def are_records(rows: Any) -> bool:
    """Whether rows came as one mapping, or as a list of mappings."""
    return isinstance(rows, Mapping) or (isinstance(rows, (list, tuple)) and any(isinstance(r, Mapping) for r in rows))


def read_records(
    records: Any, fields: Sequence[Field], listed: Mapping[str, Sequence[Scalar]], *, named: bool
) -> pd.DataFrame | np.ndarray[Any, Any]:
    """Return records as a table with one column per field, of the type that it had in training.

    listed: values by field, which categorical columns know beside their own. named: the model knows its columns by
    name; if it does not, and the fields are named as the columns of an array, they form one.
    """
    rows: Sequence[Any] = [records] if isinstance(records, Mapping) else list(records)
    names = [field.name for field in fields]
    known = set(names)
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"row {place} must be a mapping from fields to values, got {type(row).__name__}")
        if row.keys() != known:
            _refuse_keys(row, names, f"row {place}" if len(rows) > 1 else "the row")
    try:
        columns = {
            field.name: _make_column([row[field.name] for row in rows], field, listed.get(field.name, ()))
            for field in fields
        }
        frame = pd.DataFrame(columns)
    except UnicodeEncodeError as error:
        raise refuse_surrogate(error) from error
    return frame if named or names != name_places(len(names)) else frame.to_numpy()


def _refuse_keys(row: Mapping[Any, Any], names: Sequence[str], which: str) -> None:
    absent = [name for name in names if name not in row]
    unknown = [str(name) for name in row if name not in set(names)]
    if absent:
        plural = "s" if len(absent) > 1 else ""
        rest = f" (it has {list_names(unknown)}, which the protocol does not know)" if unknown else ""
        raise DataError(
            f"{which} lacks the field{plural} {list_names(absent)}{rest}; give every field, and None where its value "
            "is missing"
        )
    raise DataError(
        f"{which} has the field{'s' if len(unknown) > 1 else ''} {list_names(unknown)}, which the protocol does not "
        "know; leave out what is no field of the model"
    )


def _make_column(values: list[Any], field: Field, listed: Sequence[Scalar]) -> Any:
    """Return the values of one field as its training column held them, where they fit."""
    gaps = [is_missing(value) for value in values]
    if field.categorical:
        given = [None if gap else value for value, gap in zip(values, gaps, strict=True)]
        if any(type(value) in (list, dict, set) for value in given):
            return pd.Series(given, dtype=object)  # refused where rows are bound
        known = [int(v) if field.type == "integer" and isinstance(v, float) else v for v in listed]
        return pd.Categorical(given, categories=[v for v in dict.fromkeys([*known, *given]) if v is not None])
    if field.type in ("integer", "number") and all(
        gap or _is_number(value) for value, gap in zip(values, gaps, strict=True)
    ):
        whole = field.type == "integer" and not any(gaps) and all(_is_whole(value) for value in values)
        if whole:
            return np.array([int(value) for value in values], dtype=np.int64)
        return np.array([np.nan if gap else float(value) for value, gap in zip(values, gaps, strict=True)])
    if field.type == "boolean" and not any(gaps) and all(isinstance(value, (bool, np.bool_)) for value in values):
        return np.array(values, dtype=bool)
    if field.dtype is not None and all(gaps):
        return pd.Series(pd.NaT, range(len(values)), field.dtype)
    # NaN, as tables hold it whose other rows have the value: an imputer tells it from None, and a row would be answered
    # in one way alone and in another beside others.
    plain = [np.nan if gap else value for value, gap in zip(values, gaps, strict=True)]
    return pd.Series(plain, dtype=object) if all(gaps) else plain


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a column holds: whole ones beyond 64 bits are refused where rows are bound."""
    if isinstance(value, (int, np.integer)):
        return -(2**63) <= int(value) < 2**63
    return isinstance(value, (float, np.floating))


def _is_whole(value: Any) -> bool:
    """Whether a number is whole; a decimal one beyond 2**53 stays what it is."""
    return isinstance(value, (int, np.integer)) or (float(value).is_integer() and abs(value) <= 2**WHOLE_BITS)


# --- rows that a protocol knows -----------------------------------------------------------------------------


def make_records(
    fields: Sequence[Field], modes: FailureModes, baseline: Mapping[str, Scalar]
) -> list[dict[str, Any]] | None:
    """Return rows made of values that a protocol knows in raw units; None if it knows none for some field.

    The values are those of the catalogue, else the ends of the training range, else the raw baseline. Each field goes
    through its values in steps of its own, so that they meet in many ways.
    """
    columns: dict[str, Sequence[Scalar]] = {name: (value,) for name, value in baseline.items()}
    columns |= {each.field: (each.low, each.high) for each in modes.ranges}
    for entry in modes.catalogue:
        columns |= dict(zip(entry.fields, zip(*entry.values, strict=True), strict=True))
    columns |= {field.name: (None,) for field in fields if field.type == "empty"}
    if any(field.name not in columns for field in fields):
        return None
    together = {name: i for i, entry in enumerate(modes.catalogue) for name in entry.fields}
    step = {field.name: 2 * together.get(field.name, place) + 1 for place, field in enumerate(fields)}
    return [
        {name: columns[name][i * step[name] % len(columns[name])] for name in (field.name for field in fields)}
        for i in range(MADE_ROWS)
    ]
