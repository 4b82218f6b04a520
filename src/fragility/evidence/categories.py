"""Categories: which columns a fitted estimator itself treats as categories, whatever type they have.

Boosters may be told that a column of numbers holds codes. Codes are names: there is nothing between 3 and 4, so such a
column is nominal evidence. Each library is asked what it learned, not what it was told, because models come from files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from fragility.errors import EvidenceError
from fragility.evidence.tracing import trace_columns
from fragility.models.wrappers import look_through, members


def category_columns(estimator: Any, n_columns: int) -> list[int]:
    """Return the positions of the input columns that ``estimator``, or an estimator within it, treats as categories."""
    estimator = look_through(estimator)
    if isinstance(estimator, Pipeline):
        return _through_pipeline(estimator, n_columns)
    found = set(_own_positions(estimator))
    for member, columns in members(estimator):
        handed = range(n_columns) if columns is None else columns
        found |= {handed[i] for i in category_columns(member, len(handed))}
    return sorted(position for position in found if position < n_columns)


def check_readable(estimator: Any, names: Sequence[str]) -> None:
    """Refuse an estimator that reads columns as free text or as vectors: they are no single value to replace."""
    head = look_through(estimator)
    if isinstance(head, Pipeline):
        return check_readable(head[-1], names if len(head.steps) == 1 else ())  # others are columns that it makes
    for member, columns in members(head):
        check_readable(member, names if columns is None else [names[i] for i in columns if i < len(names)])
    for ask, words in (("get_text_feature_indices", "free text"), ("get_embedding_feature_indices", "vectors")):
        positions = list(getattr(head, ask, list)())
        if positions:
            name = names[positions[0]] if positions[0] < len(names) else positions[0]
            raise EvidenceError(
                f"{type(head).__name__} reads column {name!r} as {words}, which cannot be replaced by a baseline; "
                "audit a model without such columns, or turn them into numbers in a pipeline before it"
            )


def _through_pipeline(pipeline: Pipeline, n_columns: int) -> list[int]:
    if len(pipeline.steps) == 1:
        return category_columns(pipeline[-1], n_columns)
    try:
        origins = trace_columns(pipeline[:-1], [str(i) for i in range(n_columns)])
    except EvidenceError:  # columns that cannot be traced keep the kind their type gives them
        return []
    chosen = category_columns(pipeline[-1], len(origins))
    return sorted({int(field) for i in chosen for field in origins[i].fields})


def _own_positions(estimator: Any) -> list[int]:
    library = type(estimator).__module__.split(".")[0]
    if library == "lightgbm":
        return _lightgbm_positions(getattr(estimator, "booster_", estimator))
    if library == "xgboost":
        booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
        return [i for i, kind in enumerate(booster.feature_types or []) if kind == "c"]
    if hasattr(estimator, "get_cat_feature_indices"):  # CatBoost
        return [int(i) for i in estimator.get_cat_feature_indices()]
    mask = getattr(estimator, "is_categorical_", None)  # scikit-learn's histogram boosting
    return [] if mask is None else [int(i) for i in np.flatnonzero(mask)]


def _lightgbm_positions(booster: Any) -> list[int]:
    """Read the model's own text: a range ``[low:high]`` for a quantity, its codes ``3:1:2`` for a category."""
    lines = booster.model_to_string(num_iteration=1).splitlines()
    infos = next((line for line in lines if line.startswith("feature_infos=")), "feature_infos=")
    kinds = infos.removeprefix("feature_infos=").split()
    return [i for i, info in enumerate(kinds) if info != "none" and not info.startswith("[")]
