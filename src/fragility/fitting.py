"""Fitting: what a protocol takes from training data: its evidence columns, groups and baseline values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.canonical import beyond_doubles, is_missing
from fragility.categories import category_columns, check_readable
from fragility.errors import DataError, EvidenceError
from fragility.evidence import (
    BASELINES,
    declared_groups,
    field_baseline,
    matrix_baseline,
    merged_fields,
    raw_origin_groups,
)
from fragility.fields import Field, conformed, fields_of, kind_of
from fragility.frames import Kind, Rows, Scalar, native_like, read_rows
from fragility.handover import answers_alike, dense, transform
from fragility.models import Model
from fragility.moments import column_spreads, mean_and_spread
from fragility.scores import Floats
from fragility.tracing import Origin, output_names, trace_columns

Space: TypeAlias = Literal["transformed", "raw"]
Units: TypeAlias = Literal["raw", "transformed"]
GroupMap: TypeAlias = Mapping[str, str | Sequence[str]]
SPACES: tuple[Space, ...] = ("transformed", "raw")
UNITS: tuple[Units, ...] = ("raw", "transformed")
PROBE_ROWS = 64  # training rows on which a model is asked whether a form of its input changes its answers


@dataclass(frozen=True, eq=False)
class TrainingEvidence:
    """The training rows in the evidence space."""

    space: Space
    columns: list[str]
    origins: list[Origin]
    matrix: Any  # transformed space only
    frame: pd.DataFrame | None  # raw fields
    fields: tuple[Field, ...]

    @property
    def kinds(self) -> list[Kind]:
        return ["nominal" if origin.nominal else "numeric" for origin in self.origins]

    @property
    def field_kinds(self) -> dict[str, Kind]:
        return {field.name: field.kind for field in self.fields}

    def spreads(self) -> list[float | None]:
        if self.space == "transformed":
            values = column_spreads(self.matrix)
        else:
            assert self.frame is not None
            values = np.array(
                [
                    np.nan if kind == "nominal" else mean_and_spread(_numbers(self.frame[name]))[1]
                    for name, kind in zip(self.columns, self.kinds, strict=True)
                ]
            )
        return [
            None if kind == "nominal" or np.isnan(value) else float(value)
            for kind, value in zip(self.kinds, values, strict=True)
        ]


def _numbers(column: pd.Series) -> Floats:
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))


def training_evidence(model: Model, rows: Rows, space: Space | None, nominal: Sequence[str]) -> TrainingEvidence:
    unknown = [name for name in nominal if name not in rows.names]
    if unknown:
        raise DataError(f"nominal names {unknown[0]!r}, which is not a column of the training data")
    check_readable(model.estimator, rows.names)
    categories = _native_categories(model, rows.names)
    if space is None:
        coded = bool(categories) or (bool(nominal) and model.transformer is None)
        space = "transformed" if not coded and _hands_over_numbers(model, rows) else "raw"
    if space not in SPACES:
        raise EvidenceError(f"space must be one of {', '.join(SPACES)}, got {space!r}")
    kinds = _field_kinds(model, rows, [*nominal, *categories])
    if space == "raw":
        return _raw_evidence(rows, kinds)
    if categories:
        raise EvidenceError(
            f"the estimator treats {categories[0]!r} as a category, whose codes cannot be moved toward a baseline in "
            "the transformed space; use space='raw'"
        )
    return _transformed_evidence(model, rows, kinds)


def _raw_evidence(rows: Rows, kinds: dict[str, Kind]) -> TrainingEvidence:
    if rows.frame is None:
        raise EvidenceError("the raw evidence space needs a table or dense array, got a sparse matrix")
    # Numbers with more digits than a double holds are names of things: nothing lies between two of them.
    wide: dict[str, Kind] = {name: "nominal" for name in rows.names if beyond_doubles(rows.frame[name]).any()}
    fields = fields_of(rows, {**kinds, **wide})
    origins = [Origin((field.name,), field.kind == "nominal") for field in fields]
    return TrainingEvidence("raw", list(rows.names), origins, None, rows.frame, fields)


def _transformed_evidence(model: Model, rows: Rows, kinds: dict[str, Kind]) -> TrainingEvidence:
    matrix = transform(model, rows)[0]
    if model.transformer is None:
        names, origins = list(rows.names), [Origin((name,), kinds[name] == "nominal") for name in rows.names]
    else:
        names = output_names(model.transformer, matrix.shape[1])
        origins = trace_columns(model.transformer, rows.names, rows.native)
        if len(origins) != matrix.shape[1]:
            raise EvidenceError(
                f"the preprocessing gives {matrix.shape[1]} columns, {len(origins)} were traced; use space='raw'"
            )
    _check_no_infinity(matrix, names)
    return TrainingEvidence("transformed", names, origins, matrix, rows.frame, fields_of(rows, kinds))


def _check_no_infinity(matrix: Any, names: Sequence[str]) -> None:
    if not np.isinf(matrix.data if sp.issparse(matrix) else matrix).any():
        return
    column = next(j for j in range(len(names)) if np.isinf(dense(matrix[:, [j]])).any())
    raise EvidenceError(
        f"the preprocessing makes an infinite value of a training row in column {names[column]!r}, which has no "
        "mean; mend the preprocessing, or use space='raw'"
    )


def _hands_over_numbers(model: Model, rows: Rows) -> bool:
    """True if the final estimator is handed a numeric matrix and answers alike when its whole numbers are decimals."""
    by_type = model.transformer is None and rows.frame is not None
    if by_type and not all(kind_of(rows.frame[name]) == "numeric" for name in rows.names):  # type: ignore[index]
        return False
    try:
        transform(model, rows)
    except EvidenceError:
        return False
    return answers_alike(model, *transform(model, rows.head(PROBE_ROWS)))


def _field_kinds(model: Model, rows: Rows, codes: Sequence[str]) -> dict[str, Kind]:
    """Return each raw field's kind: by type, by the encoder that takes it, or as declared."""
    if rows.frame is None:
        return dict.fromkeys(rows.names, "numeric")
    kinds = {name: kind_of(rows.frame[name]) for name in rows.names}
    for name in [*codes, *_encoded_fields(model, rows)]:
        kinds[name] = "nominal"
    return kinds


def _encoded_fields(model: Model, rows: Rows) -> list[str]:
    """Return fields that reach the estimator only through an encoder of categories."""
    if model.transformer is None:
        return []
    try:
        origins = trace_columns(model.transformer, rows.names, rows.native)
    except EvidenceError:
        return []
    quantities = {f for origin in origins if not origin.nominal for f in origin.fields}
    categories = {f for origin in origins if origin.nominal for f in origin.fields}
    return [name for name in rows.names if name in categories - quantities]


def _native_categories(model: Model, names: Sequence[str]) -> list[str]:
    """Return fields that the estimator itself treats as categories."""
    return [names[i] for i in category_columns(model.estimator, len(names))]


def groups_for(
    groups: str | os.PathLike[str] | GroupMap, evidence: TrainingEvidence, rows: Rows, threshold: float
) -> tuple[dict[str, list[str]], str]:
    if not isinstance(groups, (str, os.PathLike, Mapping)):
        raise EvidenceError(f"groups must be 'raw-origin', 'merged', a map or a JSON file, got {groups!r}")
    if isinstance(groups, Mapping):
        return declared_groups(groups, evidence.columns, evidence.origins), "declared"
    if groups == "raw-origin":
        return raw_origin_groups(evidence.columns, evidence.origins), "raw-origin"
    if groups == "merged":
        if not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
            raise EvidenceError(f"merge_threshold must lie in (0, 1], got {threshold!r}")
        if rows.frame is None:
            raise EvidenceError("merged groups need a table or dense array, got a sparse matrix")
        blocks = merged_fields(rows.frame, evidence.field_kinds, threshold)
        used = {name for origin in evidence.origins for name in origin.fields}
        kept = {name: block for name, block in blocks.items() if name in used}
        return declared_groups(kept, evidence.columns, evidence.origins), f"merged at {float(threshold)!r}"
    return declared_groups(read_group_map(groups), evidence.columns, evidence.origins), "declared"


def read_group_map(path: str | os.PathLike[str]) -> GroupMap:
    """Return the group map of a JSON file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(
            f"groups must be 'raw-origin', 'merged', a map or a JSON file; cannot read {str(path)!r}: "
            f"{error.strerror or error}"
        ) from error
    except ValueError as error:
        raise EvidenceError(f"the group map {str(path)!r} is not valid JSON: {error}") from error
    if not isinstance(document, dict) or not document:
        raise EvidenceError(f"the group map {str(path)!r} must be a JSON object field -> block or block -> [fields]")
    return cast(GroupMap, document)


# --- baselines ------------------------------------------------------------------------------------------


def baseline_for(
    baseline: Any, units: Units, evidence: TrainingEvidence, model: Model, rows: Rows
) -> tuple[list[Scalar], str]:
    """Return the baseline of each evidence column, and its word: a name of ``BASELINES``, or ``explicit``."""
    if units not in UNITS:
        raise EvidenceError(f"baseline_units must be one of {', '.join(UNITS)}, got {units!r}")
    if not isinstance(baseline, str):
        return _explicit_baseline(baseline, units, evidence, model, rows), "explicit"
    if baseline not in BASELINES:
        raise EvidenceError(f"baseline must be one of {', '.join(BASELINES)} or explicit values, got {baseline!r}")
    if units != "raw":
        raise EvidenceError(
            f"baseline_units says what explicit values are measured in; the baseline {baseline!r} is fitted: leave "
            "baseline_units out"
        )
    if evidence.space == "raw":
        assert evidence.frame is not None
        return [
            _writable(field.name, field_baseline(baseline, evidence.frame[field.name], field))
            for field in evidence.fields
        ], baseline
    tokens = _missing_tokens(evidence, model, rows) if baseline == "missing" else None
    return _scalars(matrix_baseline(baseline, evidence.matrix, evidence.origins, tokens)), baseline


def _scalars(vector: Floats) -> list[Scalar]:
    return [None if np.isnan(value) else float(value) for value in vector]


def _writable(name: str, value: Any) -> Scalar:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise EvidenceError(
        f"the baseline of column {name!r} would be {value!r} ({type(value).__name__}), which a protocol cannot hold; "
        "turn the column into numbers or text"
    )


def _missing_tokens(evidence: TrainingEvidence, model: Model, rows: Rows) -> Floats:
    """Return (d,) what the preprocessing makes of each column's fields when they are missing.

    Where an encoder refuses a missing value it knows no token for it: then all indicators of the field are 0, which is
    how encoders write "none of these", and a column that holds a code or a number is missing itself.
    """
    width = len(evidence.columns)
    if model.transformer is None or rows.frame is None:
        return np.full(width, np.nan)
    whole = _row_without(rows.names, model, rows)
    if whole is not None:
        return whole
    tokens = np.where(_indicators(evidence.matrix), 0.0, np.nan)
    for name in rows.names:
        row = _row_without([name], model, rows)
        if row is not None:
            own = np.array([name in origin.fields for origin in evidence.origins])
            tokens[own] = row[own]
    return tokens


def _indicators(matrix: Any) -> Any:
    """Return which columns hold nothing but 0 and 1."""
    if sp.issparse(matrix):
        other = matrix.tocoo()
        mixed = set(other.col[(other.data != 0) & (other.data != 1)].tolist())
        return np.array([j not in mixed for j in range(matrix.shape[1])])
    return ((matrix == 0) | (matrix == 1)).all(axis=0)


def _row_without(names: Sequence[str], model: Model, rows: Rows) -> Floats | None:
    """Return the first training row as the preprocessing hands it on with these fields missing, if it takes that."""
    assert rows.frame is not None
    row = rows.frame.iloc[:1].assign(**{name: _gap_like(rows.frame[name]) for name in names})
    try:
        return dense(model.transformer.transform(native_like(row, rows)))[0]
    except Exception:  # whatever the user's encoder raises, it does not take a missing value
        return None


def _gap_like(column: pd.Series) -> Any:
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
            raise EvidenceError("in the raw space the baseline is in raw units; leave out baseline_units='transformed'")
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
            "said otherwise; give one a raw field, or add baseline_units='transformed'"
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
        raise EvidenceError(f"the explicit baseline does not fit the training data: {error}") from error
    assert fitting is not None
    fit = fitting[field.name].iloc[0]
    return fit.item() if isinstance(fit, np.generic) else fit


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
    if isinstance(value, float) and pd.api.types.is_integer_dtype(column.dtype) and value != round(value):
        return pd.Series([value])  # a mean of whole numbers is what was asked for; preprocessing takes it as it is
    return pd.Series([value], dtype=column.dtype)
