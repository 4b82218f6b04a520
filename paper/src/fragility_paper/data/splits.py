"""60/20/20 splits, stratified by class, decided by the seed alone.

What is fitted (preprocessing, baseline, calibration, normalisation) sees the training or validation part only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from fragility.base.errors import DataError
from fragility_paper.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Disjoint row positions of one seed: 60% training, 20% validation, 20% test, stratified by class."""

    seed: int
    train: Array
    validation: Array
    test: Array

    def __post_init__(self) -> None:
        parts = np.concatenate([self.train, self.validation, self.test])
        if len(np.unique(parts)) != len(parts):
            raise DataError(f"the parts of the split for seed {self.seed} must be disjoint")


def split(y: Array, seed: int, *, train_cap: int | None = None) -> Split:
    """60/20/20 by class. ``train_cap`` thins the training part alone (stratified); the others stay whole."""
    rows = np.arange(len(y))
    train, rest = train_test_split(rows, test_size=0.4, random_state=seed, stratify=y)
    validation, test = train_test_split(rest, test_size=0.5, random_state=seed, stratify=y[rest])
    if train_cap is not None and len(train) > train_cap:
        train, _ = train_test_split(train, train_size=train_cap, random_state=seed, stratify=y[train])
    return Split(seed=seed, train=np.sort(train), validation=np.sort(validation), test=np.sort(test))
