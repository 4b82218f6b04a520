"""Fitting: what a protocol takes from training data: its evidence columns, groups and baseline values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.canonical import is_missing
from fragility.errors import DataError, EvidenceError
from fragility.evidence import (
    BASELINES,
    column_spreads,
    declared_groups,
    field_baseline,
    matrix_baseline,
    merged_fields,
    raw_origin_groups,
)
from fragility.frames import Kind, Rows, Scalar, kind_of, read_rows
from fragility.handover import transform
from fragility.models import Model
from fragility.tracing import Origin, output_names, trace_columns

Space: TypeAlias = Literal["transformed", "raw"]
GroupMap: TypeAlias = Mapping[str, str | Sequence[str]]
SPACES: tuple[Space, ...] = ("transformed", "raw")


@dataclass(frozen=True, eq=False)
class TrainingEvidence:
    """The training rows in the evidence space."""

    space: Space
    columns: list[str]
    origins: list[Origin]
    matrix: Any  # transformed space only
    frame: pd.DataFrame | None  # raw fields
    field_kinds: dict[str, Kind]

    @property
    def kinds(self) -> list[Kind]:
        return ["nominal" if origin.nominal else "numeric" for origin in self.origins]

    def spreads(self) -> list[float | None]:
        if self.space == "transformed":
            values = column_spreads(self.matrix)
        else:
            assert self.frame is not None
            numbers = [
                np.full(1, np.nan) if kind == "nominal" else self.frame[name].to_numpy(float, na_value=np.nan)
                for name, kind in zip(self.columns, self.kinds, strict=True)
            ]
            values = np.array([column_spreads(column[:, None])[0] for column in numbers])
        return [
            None if kind == "nominal" or np.isnan(value) else float(value)
            for kind, value in zip(self.kinds, values, strict=True)
        ]


def training_evidence(model: Model, rows: Rows, space: Space | None, nominal: Sequence[str]) -> TrainingEvidence:
    unknown = [name for name in nominal if name not in rows.names]
    if unknown:
        raise DataError(f"nominal names {unknown[0]!r}, which is not a column of the training data")
    if space is None:
        space = "transformed" if _hands_over_numbers(model, rows) else "raw"
    if space not in SPACES:
        raise EvidenceError(f"space must be one of {', '.join(SPACES)}, got {space!r}")
    kinds = _field_kinds(model, rows, nominal)
    if space == "raw":
        if rows.frame is None:
            raise EvidenceError("the raw evidence space needs a table or dense array, got a sparse matrix")
        origins = [Origin((name,), kinds[name] == "nominal") for name in rows.names]
        return TrainingEvidence(space, list(rows.names), origins, None, rows.frame, kinds)
    matrix = transform(model, rows)[0]
    if model.transformer is None:
        names, origins = list(rows.names), [Origin((name,), kinds[name] == "nominal") for name in rows.names]
    else:
        names = output_names(model.transformer, matrix.shape[1])
        origins = trace_columns(model.transformer, rows.names)
        if len(origins) != matrix.shape[1]:
            raise EvidenceError(
                f"the preprocessing gives {matrix.shape[1]} columns, {len(origins)} were traced; use space='raw'"
            )
    return TrainingEvidence(space, names, origins, matrix, rows.frame, kinds)


def _hands_over_numbers(model: Model, rows: Rows) -> bool:
    """True if the final estimator is handed a numeric matrix without native categories."""
    if _native_categories(model, rows.names):
        return False
    if model.transformer is None:
        return rows.frame is None or all(kind_of(rows.frame[name]) == "numeric" for name in rows.names)
    try:
        transform(model, rows)
    except EvidenceError:
        return False
    return True


def _field_kinds(model: Model, rows: Rows, nominal: Sequence[str]) -> dict[str, Kind]:
    """Return each raw field's kind: by type, by the encoder that takes it, or as declared."""
    if rows.frame is None:
        return dict.fromkeys(rows.names, "numeric")
    kinds = {name: kind_of(rows.frame[name]) for name in rows.names}
    for name in [*nominal, *_native_categories(model, rows.names), *_encoded_fields(model, rows.names)]:
        kinds[name] = "nominal"
    return kinds


def _encoded_fields(model: Model, names: Sequence[str]) -> list[str]:
    """Return fields that reach the estimator only through an encoder of categories."""
    if model.transformer is None:
        return []
    try:
        origins = trace_columns(model.transformer, names)
    except EvidenceError:
        return []
    quantities = {f for origin in origins if not origin.nominal for f in origin.fields}
    categories = {f for origin in origins if origin.nominal for f in origin.fields}
    return [name for name in names if name in categories - quantities]


def _native_categories(model: Model, names: Sequence[str]) -> list[str]:
    """Return fields that the estimator itself treats as categories."""
    head = model.head
    if model.transformer is not None:
        return []
    if hasattr(head, "get_cat_feature_indices"):
        return [names[i] for i in head.get_cat_feature_indices()]
    mask = getattr(head, "is_categorical_", None)
    return [] if mask is None else [name for name, chosen in zip(names, mask, strict=True) if chosen]


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


def baseline_for(baseline: Any, evidence: TrainingEvidence, model: Model, rows: Rows) -> tuple[list[Scalar], str]:
    if not isinstance(baseline, str):
        return _explicit_baseline(baseline, evidence, model, rows), "explicit"
    if baseline not in BASELINES:
        raise EvidenceError(f"baseline must be one of {', '.join(BASELINES)} or explicit values, got {baseline!r}")
    if evidence.space == "raw":
        assert evidence.frame is not None
        return [
            _writable(name, field_baseline(baseline, evidence.frame[name], kind))
            for name, kind in zip(evidence.columns, evidence.kinds, strict=True)
        ], baseline
    missing = _transformed_missing_row(model, rows) if baseline == "missing" else None
    vector = matrix_baseline(baseline, evidence.matrix, evidence.origins, missing)
    return [None if np.isnan(value) else float(value) for value in vector], baseline


def _writable(name: str, value: Any) -> Scalar:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise EvidenceError(
        f"the baseline of column {name!r} would be {value!r} ({type(value).__name__}), which a protocol cannot hold; "
        "turn the column into numbers or text"
    )


def _transformed_missing_row(model: Model, rows: Rows) -> Floats | None:
    """Return what the preprocessing makes of a row in which every field is missing, if it takes one."""
    if model.transformer is None or rows.frame is None:
        return None
    row = rows.frame.iloc[:1].copy()
    for name in rows.names:
        row[name] = np.nan if kind_of(row[name]) == "numeric" else pd.Series([None], dtype=object, index=row.index)
    try:
        out = model.transformer.transform(row)
    except Exception:  # the encoder knows no missing token: all its columns stay 0
        return None
    dense = out.toarray() if sp.issparse(out) else np.asarray(out, dtype=np.float64)
    return np.asarray(dense[0])


def _explicit_baseline(baseline: Any, evidence: TrainingEvidence, model: Model, rows: Rows) -> list[Scalar]:
    names = evidence.columns
    values = _named_values(baseline)
    if values is None:
        vector = list(np.asarray(baseline).ravel())
        if len(vector) != len(names):
            raise EvidenceError(f"an explicit baseline needs {len(names)} values, one a column, got {len(vector)}")
        values = dict(zip(names, vector, strict=True))
    elif evidence.space == "transformed" and set(values) == set(rows.names) and set(values) != set(names):
        row = pd.DataFrame([values])[list(rows.names)]
        dense = transform(model, read_rows(row, model.columns, model.n_columns))[0]
        vector = list((dense.toarray() if sp.issparse(dense) else dense)[0])
        values = dict(zip(names, vector, strict=True))
    wrong = [n for n in names if n not in values] or [n for n in values if n not in set(names)]
    if wrong:
        raise EvidenceError(f"an explicit baseline must name each column once; {wrong[0]!r} is missing or unknown")
    return [
        _explicit_value(name, values[name], kind, evidence.space)
        for name, kind in zip(names, evidence.kinds, strict=True)
    ]


def _named_values(baseline: Any) -> dict[str, Any] | None:
    if isinstance(baseline, Mapping):
        return {str(key): value for key, value in baseline.items()}
    if isinstance(baseline, pd.Series):
        return {str(key): value for key, value in baseline.items()}
    if hasattr(baseline, "columns"):
        frame = read_rows(baseline).frame
        assert frame is not None
        if len(frame) != 1:
            raise EvidenceError(f"a baseline table must have exactly one row, got {len(frame)}")
        return {str(name): frame[name].iloc[0] for name in frame.columns}
    return None


def _explicit_value(name: str, value: Any, kind: Kind, space: Space) -> Scalar:
    if is_missing(value):
        return None
    if kind == "nominal" and space == "raw":
        return _writable(name, value.item() if isinstance(value, np.generic) else value)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"the baseline of column {name!r} must be a number, got {value!r}") from error
    if np.isinf(number):
        raise EvidenceError(f"the baseline of column {name!r} must be finite, got {number!r}")
    return number
