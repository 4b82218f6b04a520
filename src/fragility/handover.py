"""Handover: what a model's final estimator is handed, as a float64 matrix and back.

Preprocessing may give an array, a sparse matrix or a frame; engines see one matrix, and what they make of it is handed
over again in the estimator's own kind of container.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.errors import DataError, EvidenceError, FragilityError, ModelError
from fragility.frames import Rows
from fragility.models import Model

T = TypeVar("T")


def transform(model: Model, rows: Rows) -> tuple[Any, Callable[[Floats], Any]]:
    """Return (the matrix the final estimator is handed, how a float64 matrix becomes such a hand-over again)."""
    native = rows.native
    out = native if model.transformer is None else guarded(lambda: model.transformer.transform(native), rows)
    if sp.issparse(out):
        # Stressed cells are fractions: whole numbers could not hold them.
        dtype = out.dtype if np.issubdtype(out.dtype, np.floating) else np.dtype(np.float64)
        return sp.csr_matrix(out, dtype=dtype), lambda matrix: sp.csr_matrix(matrix, dtype=dtype)
    if hasattr(out, "columns") or hasattr(out, "iloc"):
        return _numeric_frame(out), _frame_restorer(out)
    array = np.asarray(out)
    if array.dtype == np.float32:
        return array, lambda matrix: matrix.astype(np.float32)
    return _as_numbers(array), lambda matrix: matrix


def _as_numbers(array: Any) -> Floats:
    if array.dtype == object or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        try:
            return np.asarray(array, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise EvidenceError(
                "the estimator is handed values that are not numbers, so they cannot be moved toward a baseline in the "
                "transformed space; use space='raw'"
            ) from error
    return np.asarray(array, dtype=np.float64)


def _numeric_frame(frame: Any) -> Floats:
    if isinstance(frame, pd.DataFrame) and any(isinstance(d, pd.CategoricalDtype) for d in frame.dtypes):
        raise EvidenceError("the estimator is handed categories, not numbers; use space='raw'")
    return _as_numbers(frame.to_numpy())


def _frame_restorer(frame: Any) -> Callable[[Floats], Any]:
    names = list(frame.columns)
    if isinstance(frame, pd.DataFrame):
        return lambda matrix: pd.DataFrame(matrix, columns=names)
    return lambda matrix: type(frame)(matrix, schema=names)


def guarded(call: Callable[[], T], rows: Rows) -> T:
    """Run a call into the user's model; turn what it raises into one sentence."""
    try:
        return call()
    except FragilityError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if re.search(r"\bnan\b|missing value", reason.lower()):
            holder = None
            if rows.frame is not None:
                holder = next((name for name in rows.names if rows.frame[name].isna().any()), None)
            place = f"column {holder!r} holds missing values and " if holder is not None else ""
            raise DataError(f"{place}the model refuses missing values ({reason}); impute them in a pipeline") from error
        raise ModelError(f"the model failed on these rows: {type(error).__name__}: {reason}") from error


def dense(matrix: Any) -> Floats:
    return matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix, dtype=np.float64)
