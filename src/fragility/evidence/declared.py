"""Rows for a model: read, and checked against the signature that its MLflow folder declares.

MLflow refuses rows whose columns are missing or of another type before the model sees them. The same rows are refused
here, by name. Two rules are wider than MLflow's: whole numbers may stand where numbers are declared, in any width, and
categories of texts where texts are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.errors import DataError
from fragility.evidence.fields import TYPE_WORDS, type_of
from fragility.evidence.rows import DROPPING, Rows, column_names, name_columns, read_rows
from fragility.models.adapter import Model
from fragility.models.signature import TYPES, Signature

# The types of a column's values that each of MLflow's types takes; bytes are not looked into.
ACCEPTED = {
    "boolean": ("boolean",),
    "integer": ("integer",),
    "long": ("integer",),
    "float": ("integer", "number"),
    "double": ("integer", "number"),
    "string": ("text",),
    "datetime": ("date",),
}
WHOSE = "the model's MLflow signature"


def read_model_rows(
    model: Model, X: Any, expected: Sequence[str] | None = None, ids: Sequence[Hashable] | None = None
) -> Rows:
    """Return ``X`` as rows in the model's column order; refuse rows that contradict the model's signature.

    expected: names of the columns where the model knows none.
    """
    if model.signature is not None:
        _check_columns(model.signature, X)
    if expected is None:
        expected = model.name_columns(column_names(X))
    rows = read_rows(X, expected, model.n_columns, ids)
    if model.signature is not None and rows.frame is not None:
        _check_types(model.signature, rows.frame)
    return rows


def _check_columns(signature: Signature, X: Any) -> None:
    names, bare = signature.names, sp.issparse(X) or isinstance(X, (np.ndarray, list))
    if bare or names is None:
        width = np.shape(X)[1] if bare and np.ndim(X) == 2 else len(column_names(X)) if not bare else None
        if width is not None and width != len(signature.columns):
            raise DataError(f"{WHOSE} has {len(signature.columns)} columns, the rows have {width}")
        return
    given = column_names(X)
    missing = [name for name in signature.required if name not in given]
    extra = [name for name in given if name not in set(names)]
    if missing:
        more = f"; the data have {name_columns(extra)}, which it does not list: rename or drop" if extra else ""
        raise DataError(f"{WHOSE} requires {name_columns(missing)}, which the data lack{more}")
    if extra:
        raise DataError(f"the data have {name_columns(extra)}, which {WHOSE} does not list; ", DROPPING)


def _check_types(signature: Signature, frame: pd.DataFrame) -> None:
    by_name = {column.name: column for column in signature.columns}
    for i, name in enumerate(frame.columns):
        declared = by_name[name] if signature.names is not None else signature.columns[i]
        came = type_of(frame[name])
        if came == "empty" or came in ACCEPTED.get(declared.type, (came,)):
            continue
        gaps = came == "number" and frame[name].isna().any() and "integer" in ACCEPTED[declared.type]
        remedy = (
            "whole numbers with gaps among them are decimals, which MLflow refuses too: fill the gaps, or log the "
            "model with this column as double"
            if gaps
            else "convert it, or log the model with the signature of such rows"
        )
        raise DataError(
            f"column {name!r} holds {TYPE_WORDS[came]}, and {WHOSE} says {declared.type} ({TYPES[declared.type]}); "
            f"{remedy}"
        )
