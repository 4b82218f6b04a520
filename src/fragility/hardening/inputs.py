"""What the final estimator is trained on: its own input for the rows, and after it that for their twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats, Integers
from fragility.errors import ProtocolError
from fragility.evidence.codec import RawCodec
from fragility.evidence.handover import as_matrix
from fragility.evidence.rows import Rows, stacked
from fragility.evidence.space import EvidenceSpace
from fragility.evidence.tracing import output_names
from fragility.hardening.twins import Degrader, Space, with_twins
from fragility.stress.draws import Words


@dataclass(frozen=True, eq=False)
class EstimatorInput:
    """Training rows as a matrix of the evidence space, and how such a matrix becomes input of the final estimator."""

    matrix: Any  # (n, d), dense or CSR
    space: Space
    restore: Callable[[Any], Any]
    handed: Any  # the input that preprocessing made of the rows, where ``restore`` runs it again; else None

    @classmethod
    def of(cls, rows: Rows, transformer: Any, handed: Any, declared: EvidenceSpace) -> EstimatorInput:
        read = _raw_input if declared.space == "raw" else _transformed_input
        return read(rows, transformer, handed, declared)

    def with_twins(self, kept: Integers, keys: Words, degrader: Degrader) -> Any:
        """Return the input for the rows at ``kept`` and for their twins, copy by copy."""
        matrix = self.matrix if len(kept) == self.matrix.shape[0] else self.matrix[kept]
        stack = with_twins(matrix, self.space, keys[kept], degrader)
        if self.handed is None:
            return self.restore(stack)
        # Preprocessing may code the rows it was fitted on in a way of its own, so those are taken as they came.
        own = self.handed.iloc[kept] if isinstance(self.handed, pd.DataFrame) else self.handed[kept]
        return stacked(own, self.restore(stack[len(kept) :]))


def _transformed_input(rows: Rows, transformer: Any, handed: Any, declared: EvidenceSpace) -> EstimatorInput:
    matrix, restore = as_matrix(handed)
    names = list(rows.names) if transformer is None else output_names(transformer, matrix.shape[1])
    _check_columns(names, declared)
    baseline = _numbers(declared)
    # The stack is in the matrix's own form already; only a frame or another precision is made of it again.
    keeps = sp.issparse(handed) or isinstance(handed, np.ndarray)
    return EstimatorInput(
        matrix, Space(baseline, np.isnan(baseline)), (lambda stack: stack) if keeps else restore, None
    )


def _raw_input(rows: Rows, transformer: Any, handed: Any, declared: EvidenceSpace) -> EstimatorInput:
    if rows.frame is None:
        raise ProtocolError("the raw evidence space needs a table or dense array, got a sparse matrix")
    _check_columns(sorted(rows.names), declared, sorted)
    values = {column.name: column.baseline for column in declared.columns}
    codec = RawCodec.fit(rows, declared.fields, values, flags_as_numbers=transformer is None)
    place = [rows.names.index(column.name) for column in declared.columns]  # evidence columns: the protocol's order
    inverse = np.argsort(place)
    baseline = codec.encode_row(values)[place]
    nominal = np.array([column.kind == "nominal" for column in declared.columns])

    def restore(stack: Floats) -> Any:
        raw = codec.decode(stack[:, inverse])
        return raw if transformer is None else transformer.transform(raw)

    matrix = codec.encode(rows.frame)[:, place]
    space = Space(baseline, nominal | np.isnan(baseline))
    return EstimatorInput(matrix, space, restore, None if transformer is None else handed)


def _check_columns(names: list[str], declared: EvidenceSpace, order: Callable[[Any], list[str]] = list) -> None:
    known = order(column.name for column in declared.columns)
    if names != known:
        other = next((name for name in names if name not in set(known)), names[0])
        raise ProtocolError(
            f"the protocol was made for other columns: it does not place {other!r}; fit one for this model, or leave "
            "protocol out"
        )


def _numbers(declared: EvidenceSpace) -> Floats:
    return np.array([np.nan if c.baseline is None else float(c.baseline) for c in declared.columns])
