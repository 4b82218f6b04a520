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
from fragility.errors import Advice, DataError, EvidenceError, FragilityError, ModelError
from fragility.evidence.rows import Rows, named
from fragility.models.adapter import Model
from fragility.models.links import LINK_TOLERANCE

T = TypeVar("T")


def transform(model: Model, rows: Rows) -> tuple[Any, Callable[[Floats], Any], Any]:
    """Return (the estimator's input as a matrix, how any float64 matrix becomes such an input, the input itself)."""
    native = rows.native
    out = native if model.transformer is None else guarded(lambda: model.transformer.transform(native), rows)
    return *as_matrix(out), out


def as_matrix(out: Any) -> tuple[Any, Callable[[Floats], Any]]:
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
                "transformed space; use ",
                Advice.argument("space", "raw"),
            ) from error
    return np.asarray(array, dtype=np.float64)


def _numeric_frame(frame: Any) -> Floats:
    if isinstance(frame, pd.DataFrame) and any(isinstance(d, pd.CategoricalDtype) for d in frame.dtypes):
        raise EvidenceError("the estimator is handed categories, not numbers; use ", Advice.argument("space", "raw"))
    array = frame.to_numpy()
    return array if array.dtype == np.float32 else _as_numbers(array)


def _frame_restorer(frame: Any) -> Callable[[Floats], Any]:
    names = list(frame.columns)
    dtype = np.float32 if frame.to_numpy().dtype == np.float32 else np.float64
    if isinstance(frame, pd.DataFrame):
        return lambda matrix: pd.DataFrame(matrix.astype(dtype, copy=False), columns=names)
    return lambda matrix: type(frame)(matrix.astype(dtype, copy=False), schema=names)


def answers_alike(model: Model, matrix: Any, restore: Callable[[Floats], Any], handed: Any) -> bool:
    """True if the estimator gives the same probabilities for its input and for that input rebuilt from a matrix.

    Whole numbers rebuilt as decimals are the same numbers, but not to a model that reads them as names.
    """
    if _all_decimals(handed):
        return True
    return same_answers(model.head_probabilities, handed, lambda: restore(dense(matrix)))


def same_answers(ask: Callable[[Any], Floats], handed: Any, rebuild: Callable[[], Any]) -> bool:
    """True if a model answers a rebuilt input as it answers its own."""
    try:
        own, again = ask(handed), ask(handed)
    except Exception:  # a fault of the model is reported by its first prediction
        return True
    if not _close(own, again):  # a model that does not answer twice alike says nothing about the form of its input
        return True
    try:
        return _close(own, ask(rebuild()))
    except Exception:  # it takes the one form and fails on the other
        return False


def _close(one: Floats, other: Floats) -> bool:
    return bool(np.abs(one - other).max(initial=0.0) <= LINK_TOLERANCE)


def _all_decimals(handed: Any) -> bool:
    if hasattr(handed, "columns"):
        return all(str(dtype).lower().startswith("float") for dtype in handed.dtypes)
    return np.issubdtype(handed.dtype if hasattr(handed, "dtype") else np.asarray(handed).dtype, np.floating)


def guarded(call: Callable[[], T], rows: Rows) -> T:
    """Run a call into the user's model; turn what it raises into one sentence."""
    try:
        return call()
    except FragilityError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if re.search(r"\bnan\b|missing value", reason.lower()):
            place = _columns_with_gaps(rows)
            raise DataError(f"{place}the model refuses missing values ({reason}); impute them in a pipeline") from error
        raise ModelError(f"the model failed on these rows: {type(error).__name__}: {reason}") from error


def _columns_with_gaps(rows: Rows) -> str:
    """Name all columns that hold missing values: which of them the model refuses, its own sentence may say."""
    names = [] if rows.frame is None else [name for name in rows.names if rows.frame[name].isna().any()]
    if not names:
        return ""
    return f"{named('column', names)} {'holds' if len(names) == 1 else 'hold'} missing values and "


def part_of(native: Any, start: int, stop: int) -> Any:
    """Return some rows of any container a model takes."""
    return native.iloc[start:stop] if isinstance(native, pd.DataFrame) else native[start:stop]


def dense(matrix: Any) -> Floats:
    return matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix, dtype=np.float64)
