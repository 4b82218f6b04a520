"""Averages: what stands in for lost values by rule, fitted on training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Booleans, Floats
from fragility.evidence.dates import middle_date, value_like
from fragility.evidence.fields import Field
from fragility.evidence.fitting import TrainingEvidence
from fragility.evidence.handover import dense
from fragility.evidence.moments import are_whole, column_medians, mean_and_spread, whole_columns
from fragility.evidence.rows import Scalar

BASELINES = ("typical", "mean", "median", "zero", "missing")


def matrix_baseline(kind: str, evidence: TrainingEvidence) -> Floats:
    """Return the (d,) baseline of a transformed training matrix, dense or CSR: any kind but ``missing``."""
    matrix = evidence.matrix
    if kind == "zero":
        return np.zeros(matrix.shape[1])
    if kind == "mean":
        return evidence.means
    if kind == "median":
        return _with_typical_categories(column_medians(matrix), evidence)
    means = evidence.means
    # Adding 0.0 turns -0.0 into 0.0.
    return _with_typical_categories(np.where(whole_columns(matrix), np.rint(means), means) + 0.0, evidence)


def nominal_blocks(evidence: TrainingEvidence) -> dict[tuple[str, ...], list[int]]:
    """Return the nominal columns of each raw field (or of several, where columns are made from several)."""
    blocks: dict[tuple[str, ...], list[int]] = {}
    for j, origin in enumerate(evidence.origins):
        if origin.nominal:
            blocks.setdefault(origin.fields, []).append(j)
    return blocks


def _with_typical_categories(numbers: Floats, evidence: TrainingEvidence) -> Floats:
    """Return ``numbers`` with the nominal columns of each field at values that training rows have together.

    Those of a nominal field take its most frequent category as the training rows encode it. Those of a numeric field
    (bins, indicators of missing values) and those made from several fields take their own most frequent values.
    """
    out, by_name = numbers.copy(), {field.name: field for field in evidence.fields}
    for fields, columns in nominal_blocks(evidence).items():
        row = _typical_row(by_name[fields[0]], evidence) if len(fields) == 1 else None
        if row is None:
            out[columns] = _most_frequent_values(evidence.matrix[:, columns])
        else:
            out[columns] = dense(evidence.matrix[[row]])[0, columns]
    return out


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


def _most_frequent_values(part: Any) -> Floats:
    """Return the most frequent row of a matrix; of equally frequent ones the smallest, whatever the row order."""
    # Missing codes are one value; infinity, which no row may hold, stands for them while rows are counted.
    cells = dense(part)
    distinct, counts = np.unique(np.where(np.isnan(cells), np.inf, cells), axis=0, return_counts=True)
    most = distinct[np.argmax(counts)]
    return np.where(np.isinf(most), np.nan, most)


def artificial_fields(values: Sequence[Scalar], evidence: TrainingEvidence) -> tuple[str, ...]:
    """Return the nominal fields whose baseline is a value that no training row has, in the order of the table."""
    if evidence.space == "raw":
        return tuple(
            field.name
            for field, value in zip(evidence.fields, values, strict=True)
            if field.kind == "nominal" and not _equal_to(value, evidence.frame[field.name], field).any()  # type: ignore[index]
        )
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    by_column = evidence.matrix.tocsc() if sp.issparse(evidence.matrix) else evidence.matrix
    found = {
        field
        for fields, columns in nominal_blocks(evidence).items()
        if not _occur_together(numbers[columns], by_column, columns)
        for field in fields
    }
    return tuple(field.name for field in evidence.fields if field.name in found)


def fields_without_gaps(evidence: TrainingEvidence) -> tuple[str, ...]:
    """Return the fields that have no missing value in the training rows; a sparse matrix has none."""
    frame = evidence.frame
    return tuple(field.name for field in evidence.fields if frame is None or not frame[field.name].isna().any())


def _equal_to(value: Scalar, column: pd.Series, field: Field) -> Booleans:
    """Return which cells of a raw column have a value of the protocol."""
    if value is None:
        return column.isna().to_numpy(dtype=bool)
    own = value_like(value, column) if field.type == "date" and isinstance(value, str) else value
    return np.asarray((column == own).to_numpy(dtype=bool, na_value=False))


def _occur_together(values: Floats, by_column: Any, columns: Sequence[int]) -> bool:
    rows = np.arange(by_column.shape[0])
    for value, j in zip(values, columns, strict=True):
        cells = dense(by_column[:, [j]])[rows, 0]
        rows = rows[np.isnan(cells) if np.isnan(value) else cells == value]
        if len(rows) == 0:
            return False
    return True


def field_baseline(kind: str, column: pd.Series, field: Field) -> Scalar:
    """Return one raw field's baseline, any kind but ``missing``; None if it has no training value.

    A field of whole numbers takes the nearest whole number, halves to even.
    """
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
    return middle_date(known) if field.type == "date" else _most_frequent(known)


def _most_frequent(known: pd.Series) -> Scalar:
    counts = known.value_counts()
    best = [value for value, count in counts.items() if count == counts.iloc[0]]
    # Equally frequent values: the first in text order, whatever the row order.
    value = min(best, key=lambda value: (str(value), type(value).__name__))
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[return-value]
