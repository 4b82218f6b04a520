"""Forms: how the cells of an evidence column are handed to a model that takes raw fields as they are.

An engine that reads the model itself must know what becomes of a cell on its way: a code becomes a value of a table, a
blend of whole numbers is rounded, a column may have half the precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from fragility.evidence.rows import Rows, Scalar


@dataclass(frozen=True, slots=True)
class CellForm:
    """How the cells of one column are handed over."""

    values: tuple[Scalar, ...] | None  # a cell is a place in these; None: it is its number
    dtype: Any  # of the column handed over
    whole: bool  # a cell is rounded to a whole number, halves to even

    @property
    def categories(self) -> tuple[Any, ...] | None:
        """The categories of the column handed over, in the order of their codes; None for any other column."""
        return tuple(self.dtype.categories) if isinstance(self.dtype, pd.CategoricalDtype) else None

    @property
    def precision(self) -> np.dtype[Any]:
        """The type that holds a number of the column: that of a nullable column is the one inside."""
        inside: np.dtype[Any] = np.dtype(getattr(self.dtype, "numpy_dtype", self.dtype))
        return inside


def kept_as_they_are(transformer: Any, rows: Rows) -> bool:
    """True if a preprocessing hands on the columns of these rows as they are: their order, types and values."""
    if transformer is None:
        return True
    if not _is_identity(transformer, len(rows.names)):
        return False
    few = rows.head(2).native
    out = transformer.transform(few)
    if isinstance(few, pd.DataFrame):
        same_types = isinstance(out, pd.DataFrame) and list(out.dtypes) == list(few.dtypes)
        return same_types and bool(out.set_axis(few.columns, axis=1).equals(few))
    if isinstance(few, np.ndarray) and isinstance(out, np.ndarray):
        return out.dtype == few.dtype and bool(pd.DataFrame(out).equals(pd.DataFrame(few)))
    return False


def _is_identity(step: Any, n_columns: int) -> bool:
    """True if a step is known, by what it is, to change nothing but perhaps the container of its rows."""
    if step is None or isinstance(step, str):
        return step is None or step == "passthrough"
    if type(step) is Pipeline:
        return all(_is_identity(inner, n_columns) for _, inner in step.steps)
    if type(step) is ColumnTransformer:
        return _in_order(step, n_columns) and all(_is_identity(inner, n_columns) for _, inner, _ in step.transformers_)
    return type(step) is FunctionTransformer and step.func is None and not step.validate


def _in_order(step: ColumnTransformer, n_columns: int) -> bool:
    names = list(getattr(step, "feature_names_in_", range(n_columns)))
    taken: list[Any] = []
    for _, _, columns in step.transformers_:
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            return False
        taken += [columns_name if isinstance(columns_name, str) else names[columns_name] for columns_name in columns]
    return taken == names
