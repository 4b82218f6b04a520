"""Slow twin of the budgets whatever the value, from the definition: the model is asked about every combination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd


def change_rows(X: pd.DataFrame, row: int, changes: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Copies of one raw row in which some fields take other values; None is a missing one."""
    table = X.iloc[[row] * len(changes)].reset_index(drop=True)
    for name in dict.fromkeys(name for change in changes for name in change):
        values = [change.get(name, X[name].iloc[row]) for change in changes]
        dtype = X[name].dtype
        if any(value is None for value in values) and dtype.kind in "iu":
            dtype = np.dtype(float)
        table[name] = pd.Series([np.nan if value is None else value for value in values], dtype=dtype)
    return table


def flips(p: Any, original: int, resolution: float, offset: Any = 0.0) -> Any:
    """Whether each of some states loses the original class: another one beats it by more than the resolution."""
    z = np.log(np.maximum(np.asarray(p, dtype=float), 1e-12)) + offset
    rivals = np.delete(z, original, axis=1).max(axis=1)
    return z[:, original] - rivals < -resolution


def any_value_budget(
    ask: Callable[[pd.DataFrame], Any],
    X: pd.DataFrame,
    row: int,
    domains: Mapping[str, Sequence[Any]],
    max_size: int,
    *,
    original: int,
    resolution: float = 1e-6,
    offset: Any = 0.0,
) -> tuple[int, int, dict[str, bool]]:
    """(the smallest number of fields of which some values flip the row, how many such sets, which field alone can)."""
    alone, found = dict.fromkeys(domains, False), (max_size + 1, 0)
    for size in range(1, max_size + 1):
        sets = list(combinations(domains, size))
        changes = [dict(zip(own, each, strict=True)) for own in sets for each in product(*(domains[f] for f in own))]
        owner = [i for i, own in enumerate(sets) for _ in product(*(domains[f] for f in own))]
        lost = flips(ask(change_rows(X, row, changes)), original, resolution, offset)
        flipping = sorted({i for i, gone in zip(owner, lost, strict=True) if gone})
        if size == 1:
            alone |= {sets[i][0]: True for i in flipping}
        if flipping:
            found = size, len(flipping)
            break
    return *found, alone


def is_safe(
    ask: Callable[[pd.DataFrame], Any],
    X: pd.DataFrame,
    row: int,
    domains: Mapping[str, Sequence[Any]],
    fields: Sequence[str],
    *,
    original: int,
    resolution: float = 1e-6,
) -> bool:
    """Whether no values of some fields flip the row; each may keep its own."""
    choices = [[*domains[name], X[name].iloc[row]] for name in fields]
    changes = [dict(zip(fields, each, strict=True)) for each in product(*choices)]
    return not flips(ask(change_rows(X, row, changes)), original, resolution).any()
