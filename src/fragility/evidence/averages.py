"""Averages: what stands in for lost values by rule: mean, median, zero, mode or missing, fitted on training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.evidence.fields import Field
from fragility.evidence.moments import column_means, column_medians, mean_and_spread
from fragility.evidence.rows import Scalar
from fragility.evidence.tracing import Origin

BASELINES = ("mean", "median", "zero", "mode", "missing")


def matrix_baseline(kind: str, matrix: Any, origins: Sequence[Origin], tokens: Floats | None) -> Floats:
    """Return the (d,) baseline of a transformed training matrix, dense or CSR.

    tokens: for ``missing``, what the encoders make of a missing value in their nominal columns.
    """
    if kind == "zero":
        return np.zeros(matrix.shape[1])
    if kind == "median":
        return column_medians(matrix)
    if kind == "missing":
        assert tokens is not None
        return np.where([origin.nominal for origin in origins], tokens, np.nan)
    mean = column_means(matrix)
    return _mode_rows(matrix, origins, mean) if kind == "mode" else mean


def _mode_rows(matrix: Any, origins: Sequence[Origin], mean: Floats) -> Floats:
    """Return ``mean`` with the nominal columns of each field set to their most frequent joint value."""
    out = mean.copy()
    blocks: dict[tuple[str, ...], list[int]] = {}
    for j, origin in enumerate(origins):
        if origin.nominal:
            blocks.setdefault(origin.fields, []).append(j)
    for columns in blocks.values():
        part = matrix[:, columns]
        dense = part.toarray() if sp.issparse(part) else np.asarray(part, dtype=np.float64)
        # Missing codes are one value; infinity, which no row may hold, stands for them while rows are counted.
        distinct, counts = np.unique(np.where(np.isnan(dense), np.inf, dense), axis=0, return_counts=True)
        most = distinct[np.argmax(counts)]
        out[columns] = np.where(np.isinf(most), np.nan, most)
    return out


def field_baseline(kind: str, column: pd.Series, field: Field) -> Scalar:
    """Return one raw field's baseline: a number or None (NaN) for numeric, a value or None (missing) for nominal.

    A field of whole numbers takes the nearest whole number, halves to even.
    """
    if kind == "missing":
        return None
    known = column.dropna()
    if field.kind == "nominal":
        return None if known.empty else _most_frequent(known)
    if kind == "zero":
        return 0.0
    if known.empty:
        return None
    values = known.to_numpy(dtype=np.float64)
    number = float(np.median(values)) if kind == "median" else mean_and_spread(values)[0]
    return float(round(number)) if field.type == "integer" else number


def _most_frequent(known: pd.Series) -> Scalar:
    counts = known.value_counts()
    best = [value for value, count in counts.items() if count == counts.iloc[0]]
    # Equally frequent values: the first in text order, whatever the row order.
    value = min(best, key=lambda value: (str(value), type(value).__name__))
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[return-value]
