"""A forest as a fast predictor of rows as they stand: no states, no protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats
from fragility.engines.trees.forest import Forest
from fragility.engines.trees.observed import probabilities
from fragility.engines.trees.plan import plain_plan, unmoved
from fragility.engines.trees.scoring import on_all_threads, scorer_of

CHUNK_ROWS = 16384  # rows scored at a time


def forest_probabilities(forest: Forest, matrix: Floats, *, sparse: bool = False) -> Floats:
    """Return (m, C) probabilities of any rows; ``sparse``: the model would be handed them as a sparse matrix."""
    return forest_predictor(forest, matrix.shape[1], sparse=sparse)(matrix)


def forest_predictor(forest: Forest, n_columns: int, *, sparse: bool = False) -> Callable[[Floats], Floats]:
    """Return ``forest_probabilities`` as a function to be called many times: the trees are prepared once."""
    score = _row_scorer(forest, n_columns, sparse)
    return lambda matrix: probabilities(forest, score(matrix))


def raw_scores(forest: Forest, matrix: Floats, *, sparse: bool = False) -> npt.NDArray[Any]:
    """Return (m, outputs) sums of leaf values, in the library's precision."""
    return _row_scorer(forest, matrix.shape[1], sparse)(matrix).T


def _row_scorer(forest: Forest, n_columns: int, sparse: bool) -> Callable[[Floats], npt.NDArray[Any]]:
    """Return the function matrix (m, d) -> sums (outputs, m) of rows as they stand."""
    score = scorer_of(forest, plain_plan(forest, n_columns, sparse), on_all_threads)

    def sums(matrix: Floats) -> npt.NDArray[Any]:
        rows = np.ascontiguousarray(matrix, dtype=np.float64)
        out = [np.empty((len(forest.base), 0), dtype=forest.leaf_value.dtype)]
        for start in range(0, len(rows), CHUNK_ROWS):
            part = rows[start : start + CHUNK_ROWS]
            out.append(score(part, np.zeros((len(part), 1), dtype=np.int64), unmoved(1))[0])
        return np.concatenate(out, axis=1)

    return sums
