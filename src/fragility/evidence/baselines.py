"""Baselines: the values that lost evidence takes, by rule or as the user gives them, fitted on training rows.

A protocol also stores the other baselines that its model admits, so that a finding can be computed again under each of
them. A model admits a baseline if it answers for the row in which all evidence is lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import Booleans, Floats
from fragility.base.canonical import is_missing
from fragility.base.errors import Advice, DataError, EvidenceError, FragilityError, first_line
from fragility.base.schemas import KEY, OPTIONAL, AtLeastZero
from fragility.evidence.bound import Column, EvidenceRows, EvidenceSpace, Group, Space, to_floats
from fragility.evidence.codec import dense, transform
from fragility.evidence.fields import Field, as_trained, date_text, kind_of, middle_date, type_of, value_like
from fragility.evidence.fitting import TrainingEvidence, are_whole, column_medians, mean_and_spread, whole_columns
from fragility.evidence.form import CONFIRM_ROWS, Form
from fragility.evidence.rows import Rows, Scalar, conform_rows, native_like, read_rows
from fragility.models.adapter import Model
from fragility.models.outputs import to_python

Units: TypeAlias = Literal["raw", "transformed"]
UNITS: tuple[Units, ...] = ("raw", "transformed")
BASELINES = ("typical", "mean", "median", "zero", "missing")
ALTERNATIVES = ("typical", "median", "missing", "mean")
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
        return FittedBaseline("explicit", values, _artificial_fields(values, evidence))
    if baseline not in BASELINES:
        raise EvidenceError(f"baseline must be one of {', '.join(BASELINES)} or explicit values, got {baseline!r}")
    if units != "raw":
        raise EvidenceError(
            f"baseline_units says what explicit values are measured in; the baseline {baseline!r} is fitted: leave "
            "baseline_units out"
        )
    if baseline == "missing":
        if evidence.space == "transformed" and model.transformer is not None:
            raise EvidenceError(
                "under the baseline 'missing' a raw field is missing and the model's own preprocessing answers, as in "
                "production; the transformed space begins behind the preprocessing, so use ",
                Advice.argument("space", "raw"),
                " or leave the space out",
            )
        return FittedBaseline(baseline, [None] * len(evidence.columns), _fields_without_gaps(evidence))
    if evidence.space == "transformed":
        values = _scalars(_matrix_baseline(baseline, evidence))
    else:
        values = [_check_writable(f.name, _field_baseline(baseline, evidence.raw[f.name], f)) for f in evidence.fields]
    # The typical category of a field is one that a row has.
    artificial = () if baseline in ("typical", "median") else _artificial_fields(values, evidence)
    return FittedBaseline(baseline, values, artificial)


# --- by rule ----------------------------------------------------------------------------------------------------


def _scalars(vector: Floats) -> list[Scalar]:
    return [None if np.isnan(value) else float(value) for value in vector]


def _check_writable(name: str, value: Any) -> Scalar:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise EvidenceError(
        f"the baseline of column {name!r} would be {value!r} ({type(value).__name__}), which a protocol cannot hold; "
        "turn the column into numbers or text"
    )


def _field_baseline(kind: str, column: pd.Series, field: Field) -> Scalar:
    """Return a raw field's baseline, any but ``missing``: whole for whole numbers, None if training had no value."""
    known = column.dropna()
    if field.kind == "nominal":
        return None if known.empty else _typical_value(known, field)
    if kind == "zero":
        return 0.0
    if known.empty:
        return None
    values = known.to_numpy(dtype=np.float64)
    number = float(np.median(values)) if kind == "median" else mean_and_spread(values)[0]
    whole = field.type == "integer" or (kind == "typical" and are_whole(values))
    return float(round(number)) if whole else number


def _typical_value(known: pd.Series, field: Field) -> Scalar:
    """Return the most frequent value of a nominal field, and of dates, which seldom repeat, the one in the middle."""
    if field.type == "date":
        return middle_date(known)
    counts = known.value_counts()
    best = [value for value, count in counts.items() if count == counts.iloc[0]]
    # Equally frequent values: the first in text order, whatever the row order.
    value = min(best, key=lambda value: (str(value), type(value).__name__))
    return to_python(value)  # type: ignore[no-any-return]


def _matrix_baseline(kind: str, evidence: TrainingEvidence) -> Floats:
    """Return the (d,) baseline of a transformed training matrix, dense or CSR: any kind but ``missing``.

    Under ``typical`` and ``median`` the nominal columns of each field take values that training rows have together.
    Those of a nominal field take its most frequent category as the training rows encode it. Those of a numeric field
    (bins, indicators of missing values) and those made from several fields take their own most frequent values.
    """
    matrix, by_name = evidence.matrix, {field.name: field for field in evidence.fields}
    if kind == "zero":
        return np.zeros(matrix.shape[1])
    if kind == "mean":
        return evidence.means
    if kind == "median":
        out = column_medians(matrix)
    else:
        # Adding 0.0 turns -0.0 into 0.0.
        out = np.where(whole_columns(matrix), np.rint(evidence.means), evidence.means) + 0.0
    for fields, columns in _nominal_blocks(evidence).items():
        row = _typical_row(by_name[fields[0]], evidence) if len(fields) == 1 else None
        if row is not None:
            out[columns] = dense(matrix[[row]])[0, columns]
            continue
        # The most frequent row; of equally frequent ones the smallest, whatever the row order. Missing codes are one
        # value; infinity, which no row may hold, stands for them while rows are counted.
        cells = dense(matrix[:, columns])
        distinct, counts = np.unique(np.where(np.isnan(cells), np.inf, cells), axis=0, return_counts=True)
        most = distinct[np.argmax(counts)]
        out[columns] = np.where(np.isinf(most), np.nan, most)
    return out


def _nominal_blocks(evidence: TrainingEvidence) -> dict[tuple[str, ...], list[int]]:
    """Return the nominal columns of each raw field (or of several, where columns are made from several)."""
    blocks: dict[tuple[str, ...], list[int]] = {}
    for j, origin in enumerate(evidence.origins):
        if origin.nominal:
            blocks.setdefault(origin.fields, []).append(j)
    return blocks


def _typical_row(field: Field, evidence: TrainingEvidence) -> int | None:
    """Return a training row that has the typical value of a field; None if the field has no categories."""
    if evidence.frame is None or field.kind != "nominal":
        return None
    column = evidence.frame[field.name]
    known = column.dropna()
    if known.empty:
        return 0  # missing is the only value it has
    try:
        return int(np.argmax(_equal_to(_typical_value(known, field), column, field)))
    except TypeError:  # cells that have no hash, such as lists, cannot be counted
        return None


def _artificial_fields(values: Sequence[Scalar], evidence: TrainingEvidence) -> tuple[str, ...]:
    """Return the nominal fields whose baseline is a value that no training row has, in the order of the table."""
    if evidence.space == "raw":
        pairs = [(f, value) for f, value in zip(evidence.fields, values, strict=True) if f.kind == "nominal"]
        return tuple(f.name for f, value in pairs if not _equal_to(value, evidence.raw[f.name], f).any())
    numbers, artificial = to_floats(values), set()
    by_column = evidence.matrix.tocsc() if sp.issparse(evidence.matrix) else evidence.matrix
    for fields, columns in _nominal_blocks(evidence).items():
        rows = np.arange(by_column.shape[0])  # that have the baseline's value in each of the columns so far
        for j in columns:
            cells = dense(by_column[:, [j]])[rows, 0]
            rows = rows[np.isnan(cells) if np.isnan(numbers[j]) else cells == numbers[j]]
        if len(rows) == 0:
            artificial |= set(fields)
    return tuple(field.name for field in evidence.fields if field.name in artificial)


def _fields_without_gaps(evidence: TrainingEvidence) -> tuple[str, ...]:
    """Return the fields that have no missing value in the training rows; a sparse matrix has none."""
    frame = evidence.frame
    return tuple(field.name for field in evidence.fields if frame is None or not frame[field.name].isna().any())


def _equal_to(value: Scalar, column: pd.Series, field: Field) -> Booleans:
    """Return which cells of a raw column have a value of the protocol."""
    if value is None:
        return column.isna().to_numpy(dtype=bool)
    own = value_like(value, column) if field.type == "date" and isinstance(value, str) else value
    return np.asarray((column == own).to_numpy(dtype=bool, na_value=False))


# --- as the user gives it ---------------------------------------------------------------------------------------


def _explicit_baseline(
    baseline: Any, units: Units, evidence: TrainingEvidence, model: Model, rows: Rows
) -> list[Scalar]:
    given = _given_values(baseline)
    if units == "transformed" and model.transformer is not None:
        if evidence.space == "raw":
            raise EvidenceError("in the raw space the baseline is in raw units; leave out ", TRANSFORMED_UNITS)
        values = _match_values(given, evidence.columns, "transformed column")
        return [_explicit_number(name, values[name]) for name in evidence.columns]
    by_name = isinstance(given, dict)
    fits_columns = set(given) == set(evidence.columns) if by_name else len(given) == len(evidence.columns)
    fits_fields = set(evidence.columns) == set(rows.names) if by_name else len(given) == len(rows.names)
    if fits_columns and not fits_fields:
        raise EvidenceError(
            "the explicit baseline gives a value for each transformed column, and values are read in raw units unless "
            "said otherwise; give one per raw field, or add ",
            TRANSFORMED_UNITS,
        )
    values = _match_values(given, rows.names, "raw field")
    values = {field.name: _explicit_value(field, values[field.name], evidence.space) for field in evidence.fields}
    if evidence.space == "raw":
        return [_check_writable(name, values[name]) for name in evidence.columns]
    if model.transformer is None:
        return [_explicit_number(name, values[name]) for name in evidence.columns]
    return _scalars(dense(transform(model, _row_of(values, rows))[0])[0])


def _given_values(baseline: Any) -> dict[str, Any] | list[Any]:
    """Return the values that a user gives, by name or as a list."""
    if isinstance(baseline, (Mapping, pd.Series)):
        return {str(key): value for key, value in baseline.items()}
    if not hasattr(baseline, "columns"):
        return list(np.asarray(baseline, dtype=object).ravel())
    frame = read_rows(baseline).frame
    assert frame is not None
    if len(frame) != 1:
        raise EvidenceError(f"a baseline table must have exactly one row, got {len(frame)}")
    return {str(name): frame[name].iloc[0] for name in frame.columns}


def _match_values(given: dict[str, Any] | list[Any], names: Sequence[str], what: str) -> dict[str, Any]:
    if isinstance(given, list):
        if len(given) != len(names):
            raise EvidenceError(f"an explicit baseline needs {len(names)} values, one per {what}, got {len(given)}")
        return dict(zip(names, given, strict=True))
    wrong = [n for n in names if n not in given] or [n for n in given if n not in set(names)]
    if wrong:
        raise EvidenceError(f"an explicit baseline must name each {what} once; {wrong[0]!r} is missing or unknown")
    return given


def _explicit_value(field: Field, value: Any, space: Space) -> Any:
    """Return one raw value as the field's own type."""
    if is_missing(value):
        return None
    if field.type == "date" and not field.categorical:
        dates = as_trained(pd.Series([value], dtype=object if isinstance(value, str) else None), field.dtype)
        if dates is None:
            zone = "" if field.dtype is None else f" as in training ({field.dtype})"
            raise EvidenceError(f"the baseline of column {field.name!r} must be a date{zone}, got {value!r}")
        return date_text(dates.iloc[0])
    plain = to_python(value)
    if field.kind == "numeric":
        number = _explicit_number(field.name, plain)
        if space == "raw" and field.type == "integer" and number is not None and number != round(number):
            raise EvidenceError(
                f"the baseline of column {field.name!r} must be a whole number, as in the training data, got {number!r}"
            )
        return number
    frame = pd.DataFrame({field.name: [plain]})
    probe = Rows(frame, frame, (field.name,), (0,))
    try:
        fitting = conform_rows(probe, [replace(field, categorical=False)], needs_categories=False, whole=True).frame
    except DataError as error:
        raise EvidenceError("the explicit baseline does not fit the training data: ", error) from error
    assert fitting is not None
    return to_python(fitting[field.name].iloc[0])


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
        cells = to_floats([values[name] for name in rows.names])
        return Rows(sp.csr_matrix(cells[None, :]), None, rows.names, (0,))
    frame = pd.DataFrame({name: _cell_like(values[name], rows.frame[name]) for name in rows.names})
    return Rows(native_like(frame, rows), frame, rows.names, (0,))


def _cell_like(value: Any, column: pd.Series) -> pd.Series:
    if value is None:  # as this column holds a missing value: encoders tell None from NaN
        if isinstance(column.dtype, pd.CategoricalDtype) or not isinstance(column.dtype, np.dtype):
            return pd.Series([None], dtype=column.dtype)
        if kind_of(column) == "numeric":
            return pd.Series([np.nan])
        return pd.Series([next(iter(column[column.isna()]), None)], dtype=object)
    if isinstance(value, str) and type_of(column) == "date":
        return pd.Series([value_like(value, column)], dtype=column.dtype)
    if isinstance(value, float) and pd.api.types.is_integer_dtype(column.dtype) and value != round(value):
        return pd.Series([value])  # a mean of whole numbers is what was asked for; preprocessing takes it as it is
    return pd.Series([value], dtype=column.dtype)


# --- alternatives ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternative:
    """A baseline that a protocol could have instead of its own."""

    name: str = field(metadata=KEY)
    artificial: tuple[str, ...]  # fields for which it is a value that no training row has
    # One per column; None for ``missing``, whose values are all missing.
    values: tuple[Scalar, ...] | None = field(default=None, metadata=OPTIONAL)
    # Of ``missing``, which is in the raw space, where the columns of the protocol are not the raw fields:
    groups: tuple[Group, ...] | None = field(default=None, metadata=OPTIONAL)
    spreads: tuple[AtLeastZero | None, ...] | None = field(default=None, metadata=OPTIONAL)  # one per field


def check_baseline_accepted(model: Model, rows: Rows, space: EvidenceSpace, baseline: str) -> EvidenceRows:
    """Return a few of the rows bound; refuse a baseline for which the model has no answer."""
    bound = Form.of(model, rows.head(CONFIRM_ROWS), space).first
    bound.predict(bound.dense(0, 1))  # a fault on an ordinary row is the model's, not the baseline's
    try:
        bound.predict(bound.baseline[None, :])
    except FragilityError as error:
        if baseline != "missing":
            raise EvidenceError(
                f"the model cannot take the baseline {baseline!r}: ", error, "; choose another"
            ) from error
        refused, which = error, "every field"
        for j, column in enumerate(space.columns):  # name the first field whose missing value the model refuses
            lost = bound.dense(0, 1)
            lost[:, j] = bound.baseline[j]
            try:
                bound.predict(lost)
            except FragilityError as first:
                refused, which = first, f"the field {column.name!r}"
                break
        reason = first_line(refused.__cause__ or refused)
        raise EvidenceError(
            f"the model cannot take the baseline 'missing': it has no answer when {which} is missing ({reason}); add "
            "an imputer to its pipeline, or choose another baseline"
        ) from error
    return bound


def fit_alternatives(
    declared: str, evidence: TrainingEvidence, space: EvidenceSpace, model: Model, rows: Rows, bound: EvidenceRows
) -> tuple[Alternative, ...]:
    """Return the other baselines that the model admits; ``bound``: a few rows, bound under the protocol's own."""
    alternatives = []
    for name in ALTERNATIVES:
        if name == declared:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a model says of a baseline that nobody has chosen
                if name == "missing":
                    alternatives.append(_fit_missing(evidence, space, model, rows))
                    continue
                fitted = fit_baseline(name, "raw", evidence, model, rows)
                if space.space == "transformed":
                    bound.predict(to_floats(fitted.values)[None, :])
                else:  # the codes of the rows depend on the baseline's values
                    _check_answers(model, rows, replace(space, columns=with_values(space.columns, fitted.values)))
                alternatives.append(Alternative(name, fitted.artificial, tuple(fitted.values)))
        except FragilityError:  # it cannot be made of these rows, or the model refuses it
            continue
    return tuple(alternatives)


def list_refused(declared: str, stored: Sequence[Alternative]) -> tuple[str, ...]:
    """Return the baselines among ``ALTERNATIVES`` that are neither the protocol's own nor stored."""
    return tuple(name for name in ALTERNATIVES if name not in (declared, *(other.name for other in stored)))


def find_admitted(
    refused: Sequence[str], model: Model, rows: Rows, space: EvidenceSpace, grouping: str
) -> dict[str, bool | None]:
    """Return of each baseline said to be refused whether the model admits it after all; None if that cannot be told.

    rows: audited ones. A model that answers for them has an answer for values that training rows have, which
    ``typical``, ``median`` and ``mean`` are made of, unless a column had no value at all in training.
    """
    whole = space.space == "raw" or model.transformer is None or grouping == "raw-origin"
    admitted: dict[str, bool | None] = {}
    for name in refused:
        if name == "missing":  # a field in two groups cannot be lost as a whole, whatever the model answers
            admitted[name] = _answers_missing(model, rows, space) if whole else None
        else:
            admitted[name] = None if any(column.baseline is None for column in space.columns) else True
    return admitted


def _answers_missing(model: Model, rows: Rows, space: EvidenceSpace) -> bool:
    """Return whether the model answers for a raw row whose every field is missing."""
    columns = tuple(Column(field.name, field.kind, None, None) for field in space.fields)
    groups = tuple(Group(field.name, (field.name,)) for field in space.fields)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check_answers(model, rows, replace(space, space="raw", columns=columns, groups=groups))
    except FragilityError:
        return False
    return True


def _fit_missing(evidence: TrainingEvidence, space: EvidenceSpace, model: Model, rows: Rows) -> Alternative:
    raw = evidence.in_raw_fields()
    missing = Alternative("missing", _fields_without_gaps(raw))
    if evidence.columns != raw.columns or tuple(evidence.spreads) != tuple(raw.spreads):  # scaled under their own names
        missing = replace(missing, groups=_groups_of_fields(space.groups, evidence), spreads=tuple(raw.spreads))
    _check_answers(model, rows, missing_space(space, missing))
    return missing


def _check_answers(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Ask the model about the row in which all evidence is lost; what it raises says that it has no answer."""
    few = Form.of(model, rows.head(CONFIRM_ROWS), space).first
    few.predict(few.baseline[None, :])


def missing_space(space: EvidenceSpace, missing: Alternative) -> EvidenceSpace:
    """Return the raw space in which every lost field is missing."""
    spreads = missing.spreads or tuple(column.spread for column in space.columns)
    columns = tuple(Column(f.name, f.kind, None, spread) for f, spread in zip(space.fields, spreads, strict=True))
    return replace(space, space="raw", columns=columns, groups=missing.groups or space.groups)


def with_values(columns: Sequence[Column], values: Sequence[Scalar]) -> tuple[Column, ...]:
    """Return the columns with another baseline."""
    return tuple(replace(column, baseline=value) for column, value in zip(columns, values, strict=True))


def _groups_of_fields(groups: Sequence[Group], evidence: TrainingEvidence) -> tuple[Group, ...]:
    """Return the groups over raw fields instead of columns; a field that no column comes from is a group of its own."""
    group_of_column = {column: group.name for group in groups for column in group.columns}
    group_of: dict[str, str] = {}
    for column, origin in zip(evidence.columns, evidence.origins, strict=True):
        for name in origin.fields:
            if group_of.setdefault(name, group_of_column[column]) != group_of_column[column]:
                raise EvidenceError(f"the columns of the field {name!r} are in different groups")
    members: dict[str, list[str]] = {group.name: [] for group in groups}
    for declared in evidence.fields:
        members.setdefault(group_of.get(declared.name, declared.name), []).append(declared.name)
    return tuple(Group(block, tuple(names)) for block, names in members.items())
