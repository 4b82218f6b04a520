"""Baselines: the values that a protocol holds for its columns, by rule or as the user gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.canonical import is_missing
from fragility.errors import Advice, DataError, EvidenceError
from fragility.evidence.averages import (
    BASELINES,
    artificial_fields,
    field_baseline,
    fields_without_gaps,
    matrix_baseline,
)
from fragility.evidence.dates import as_trained, date_text, value_like
from fragility.evidence.fields import Field, conformed, kind_of, type_of
from fragility.evidence.fitting import TrainingEvidence
from fragility.evidence.handover import dense, transform
from fragility.evidence.rows import Rows, Scalar, native_like, read_rows
from fragility.evidence.space import Space
from fragility.models.adapter import Model

Units: TypeAlias = Literal["raw", "transformed"]
UNITS: tuple[Units, ...] = ("raw", "transformed")
TRANSFORMED_UNITS = Advice.argument("baseline_units", "transformed")


class FittedBaseline(NamedTuple):
    """The baseline of the evidence columns."""

    name: str  # one of ``BASELINES``, or explicit
    values: list[Scalar]  # one per column
    artificial: tuple[str, ...]  # fields for which it is a value that no training row has


def fit_baseline(baseline: Any, units: Units, evidence: TrainingEvidence, model: Model, rows: Rows) -> FittedBaseline:
    """Return the baseline that is named, or given as values, for these training rows."""
    if units not in UNITS:
        raise EvidenceError(f"baseline_units must be one of {', '.join(UNITS)}, got {units!r}")
    if not isinstance(baseline, str):
        values = _explicit_baseline(baseline, units, evidence, model, rows)
        return FittedBaseline("explicit", values, artificial_fields(values, evidence))
    if baseline not in BASELINES:
        raise EvidenceError(f"baseline must be one of {', '.join(BASELINES)} or explicit values, got {baseline!r}")
    if units != "raw":
        raise EvidenceError(
            f"baseline_units says what explicit values are measured in; the baseline {baseline!r} is fitted: leave "
            "baseline_units out"
        )
    if baseline == "missing":
        _check_before_preprocessing(evidence, model)
        return FittedBaseline(baseline, [None] * len(evidence.columns), fields_without_gaps(evidence))
    values = _values_by_rule(baseline, evidence)
    # The typical category of a field is one that a row has.
    artificial = () if baseline in ("typical", "median") else artificial_fields(values, evidence)
    return FittedBaseline(baseline, values, artificial)


def _check_before_preprocessing(evidence: TrainingEvidence, model: Model) -> None:
    if evidence.space == "transformed" and model.transformer is not None:
        raise EvidenceError(
            "under the baseline 'missing' a raw field is missing and the model's own preprocessing answers, as in "
            "production; the transformed space begins behind the preprocessing, so use ",
            Advice.argument("space", "raw"),
            " or leave the space out",
        )


def _values_by_rule(baseline: str, evidence: TrainingEvidence) -> list[Scalar]:
    if evidence.space == "transformed":
        return _scalars(matrix_baseline(baseline, evidence))
    assert evidence.frame is not None
    return [
        _writable(field.name, field_baseline(baseline, evidence.frame[field.name], field)) for field in evidence.fields
    ]


def _scalars(vector: Floats) -> list[Scalar]:
    return [None if np.isnan(value) else float(value) for value in vector]


def _writable(name: str, value: Any) -> Scalar:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise EvidenceError(
        f"the baseline of column {name!r} would be {value!r} ({type(value).__name__}), which a protocol cannot hold; "
        "turn the column into numbers or text"
    )


def _gap_like(column: pd.Series) -> pd.Series:
    """Return a missing value as this column holds one: encoders tell None from NaN."""
    index = column.index[:1]
    if isinstance(column.dtype, pd.CategoricalDtype) or not isinstance(column.dtype, np.dtype):
        return pd.Series([None], dtype=column.dtype, index=index)
    if kind_of(column) == "numeric":
        return pd.Series([np.nan], index=index)
    gaps = column[column.isna()]
    return pd.Series([gaps.iloc[0] if len(gaps) else None], dtype=object, index=index)


def _explicit_baseline(
    baseline: Any, units: Units, evidence: TrainingEvidence, model: Model, rows: Rows
) -> list[Scalar]:
    if units == "transformed" and model.transformer is not None:
        if evidence.space == "raw":
            raise EvidenceError("in the raw space the baseline is in raw units; leave out ", TRANSFORMED_UNITS)
        values = _matched_values(baseline, evidence.columns, "transformed column")
        return [_explicit_number(name, values[name]) for name in evidence.columns]
    _check_not_transformed(baseline, evidence, rows)
    values = _matched_values(baseline, rows.names, "raw field")
    given = {field.name: _explicit_value(field, values[field.name], evidence.space) for field in evidence.fields}
    if evidence.space == "raw":
        return [_writable(name, given[name]) for name in evidence.columns]
    if model.transformer is None:
        return [_explicit_number(name, given[name]) for name in evidence.columns]
    row = transform(model, _row_of(given, rows))[0]
    return _scalars(dense(row)[0])


def _check_not_transformed(baseline: Any, evidence: TrainingEvidence, rows: Rows) -> None:
    """Refuse values that fit the transformed columns only, unless that is said: one number means two things there."""
    if set(evidence.columns) == set(rows.names):
        return
    named = _named_values(baseline)
    if named is not None:
        fits = set(named) == set(evidence.columns)
    else:
        fits = len(_listed_values(baseline)) == len(evidence.columns) != len(rows.names)
    if fits:
        raise EvidenceError(
            "the explicit baseline gives a value for each transformed column, and values are read in raw units unless "
            "said otherwise; give one per raw field, or add ",
            TRANSFORMED_UNITS,
        )


def _matched_values(baseline: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    values = _named_values(baseline)
    if values is None:
        vector = _listed_values(baseline)
        if len(vector) != len(names):
            raise EvidenceError(f"an explicit baseline needs {len(names)} values, one a {what}, got {len(vector)}")
        return dict(zip(names, vector, strict=True))
    wrong = [n for n in names if n not in values] or [n for n in values if n not in set(names)]
    if wrong:
        raise EvidenceError(f"an explicit baseline must name each {what} once; {wrong[0]!r} is missing or unknown")
    return values


def _listed_values(baseline: Any) -> list[Any]:
    return list(np.asarray(baseline, dtype=object).ravel())


def _named_values(baseline: Any) -> dict[str, Any] | None:
    if isinstance(baseline, (Mapping, pd.Series)):
        return {str(key): value for key, value in baseline.items()}
    if hasattr(baseline, "columns"):
        frame = read_rows(baseline).frame
        assert frame is not None
        if len(frame) != 1:
            raise EvidenceError(f"a baseline table must have exactly one row, got {len(frame)}")
        return {str(name): frame[name].iloc[0] for name in frame.columns}
    return None


def _explicit_value(field: Field, value: Any, space: Space) -> Any:
    """Return one raw value as the field's own type."""
    if is_missing(value):
        return None
    if field.type == "date" and not field.categorical:
        return _explicit_date(field, value)
    plain = value.item() if isinstance(value, np.generic) else value
    if field.kind == "numeric":
        number = _explicit_number(field.name, plain)
        if space == "raw" and field.type == "integer" and number is not None and number != round(number):
            raise EvidenceError(
                f"the baseline of column {field.name!r} must be a whole number, as in the training data, got {number!r}"
            )
        return number
    own = replace(field, categorical=False)
    column = pd.Series([plain], name=field.name)
    probe = Rows(column.to_frame(), column.to_frame(), (field.name,), (0,))
    try:
        fitting = conformed(probe, [own], needs_categories=False, whole=True).frame
    except DataError as error:
        raise EvidenceError("the explicit baseline does not fit the training data: ", error) from error
    assert fitting is not None
    fit = fitting[field.name].iloc[0]
    return fit.item() if isinstance(fit, np.generic) else fit


def _explicit_date(field: Field, value: Any) -> str:
    column = pd.Series([value], name=field.name, dtype=object if isinstance(value, str) else None)
    fitting = as_trained(column, field.dtype)
    if fitting is None:
        zone = "" if field.dtype is None else f" as in training ({field.dtype})"
        raise EvidenceError(f"the baseline of column {field.name!r} must be a date{zone}, got {value!r}")
    return date_text(fitting.iloc[0])


def _explicit_number(name: str, value: Any) -> float | None:
    if is_missing(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"the baseline of column {name!r} must be a number, got {value!r}") from error
    if np.isinf(number):
        raise EvidenceError(f"the baseline of column {name!r} must be finite, got {number!r}")
    return number


def _row_of(values: Mapping[str, Any], rows: Rows) -> Rows:
    """Return one row of these raw values, in the training rows' kind of container and types."""
    if rows.frame is None:
        cells = np.array([[np.nan if values[name] is None else values[name] for name in rows.names]], dtype=float)
        return Rows(sp.csr_matrix(cells), None, rows.names, (0,))
    frame = pd.DataFrame({name: _cell_like(values[name], rows.frame[name]) for name in rows.names})
    return Rows(native_like(frame, rows), frame, rows.names, (0,))


def _cell_like(value: Any, column: pd.Series) -> pd.Series:
    if value is None:
        return _gap_like(column).reset_index(drop=True)
    if isinstance(value, str) and type_of(column) == "date":
        return pd.Series([value_like(value, column)], dtype=column.dtype)
    if isinstance(value, float) and pd.api.types.is_integer_dtype(column.dtype) and value != round(value):
        return pd.Series([value])  # a mean of whole numbers is what was asked for; preprocessing takes it as it is
    return pd.Series([value], dtype=column.dtype)
