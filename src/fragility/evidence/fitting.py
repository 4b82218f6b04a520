"""Fitting: what a protocol takes from training data: its evidence columns, groups and baseline values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.canonical import beyond_doubles
from fragility.errors import Advice, DataError, EvidenceError
from fragility.evidence.categories import category_columns, check_readable
from fragility.evidence.fields import Field, fields_of, kind_of
from fragility.evidence.groups import declared_groups, merged_fields, raw_origin_groups
from fragility.evidence.handover import answers_alike, dense, transform
from fragility.evidence.moments import column_moments, mean_and_spread
from fragility.evidence.rows import Kind, Rows
from fragility.evidence.space import SPACES, Space
from fragility.evidence.tracing import Origin, output_names, trace_columns
from fragility.files import read_json
from fragility.models.adapter import Model

GroupMap: TypeAlias = Mapping[str, str | Sequence[str]]
NEEDS_TABLE = "the raw evidence space needs a table or dense array, got a sparse matrix"
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

    def in_raw_fields(self) -> TrainingEvidence:
        """Return the same rows in the raw space."""
        return self if self.space == "raw" else _in_raw_space(self.frame, self.fields)

    @property
    def means(self) -> Floats:
        """(d,) training means of the transformed columns."""
        return self._moments[0]

    @property
    def spreads(self) -> list[float | None]:
        """Training standard deviation of each numeric column that has values."""
        return [
            None if kind == "nominal" or np.isnan(value) else float(value)
            for kind, value in zip(self.kinds, self._moments[1], strict=True)
        ]

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        if self.space == "transformed":
            return column_moments(self.matrix)
        assert self.frame is not None
        unknown = (np.nan, np.nan)
        moments = np.array(
            [
                unknown if kind == "nominal" else mean_and_spread(_numbers(self.frame[name]))
                for name, kind in zip(self.columns, self.kinds, strict=True)
            ]
        )
        return moments[:, 0], moments[:, 1]


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
            "the transformed space; use ",
            Advice.argument("space", "raw"),
        )
    return _transformed_evidence(model, rows, kinds)


def _raw_evidence(rows: Rows, kinds: dict[str, Kind]) -> TrainingEvidence:
    if rows.frame is None:
        raise EvidenceError(NEEDS_TABLE)
    # Numbers with more digits than a double holds are names of things: nothing lies between two of them.
    wide: dict[str, Kind] = {name: "nominal" for name in rows.names if beyond_doubles(rows.frame[name]).any()}
    return _in_raw_space(rows.frame, fields_of(rows, {**kinds, **wide}))


def _in_raw_space(frame: pd.DataFrame | None, fields: tuple[Field, ...]) -> TrainingEvidence:
    if frame is None:
        raise EvidenceError(NEEDS_TABLE)
    origins = [Origin((field.name,), field.kind == "nominal") for field in fields]
    return TrainingEvidence("raw", [field.name for field in fields], origins, None, frame, fields)


def _transformed_evidence(model: Model, rows: Rows, kinds: dict[str, Kind]) -> TrainingEvidence:
    matrix = transform(model, rows)[0]
    if model.transformer is None:
        names, origins = list(rows.names), [Origin((name,), kinds[name] == "nominal") for name in rows.names]
    else:
        names = output_names(model.transformer, matrix.shape[1])
        traced = trace_columns(model.transformer, rows.names, rows.native)
        if len(traced) != matrix.shape[1]:
            raise EvidenceError(
                f"the preprocessing gives {matrix.shape[1]} columns, {len(traced)} were traced; use ",
                Advice.argument("space", "raw"),
            )
        # What is made from categories alone encodes a category, whichever library's encoder made it.
        nominal = {name for name, kind in kinds.items() if kind == "nominal"}
        origins = [origin.as_nominal() if nominal.issuperset(origin.fields) else origin for origin in traced]
    _check_no_infinity(matrix, names)
    return TrainingEvidence("transformed", names, origins, matrix, rows.frame, fields_of(rows, kinds))


def _check_no_infinity(matrix: Any, names: Sequence[str]) -> None:
    if not np.isinf(matrix.data if sp.issparse(matrix) else matrix).any():
        return
    column = next(j for j in range(len(names)) if np.isinf(dense(matrix[:, [j]])).any())
    raise EvidenceError(
        f"the preprocessing makes an infinite value of a training row in column {names[column]!r}, which has no "
        "mean; mend the preprocessing, or use ",
        Advice.argument("space", "raw"),
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
    categories = {f for origin in origins if origin.nominal and not origin.banded for f in origin.fields}
    quantities = {f for origin in origins if not origin.nominal for f in origin.fields}
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
        if not groups:
            raise EvidenceError("the group map is empty; leave it out to have one group per raw field")
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
        document = read_json(path)
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
