"""Which models, data sets and sizes are timed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification

from fragility.base.errors import ModelError
from fragility_paper.bench.costs import Bench, Cost, cost_of
from fragility_paper.bench.models import MODELS, lightgbm, xgboost
from fragility_paper.bench.streaming import measured, prepare
from fragility_paper.data import load

Progress = Callable[[str], None]


def run_models(
    datasets: Sequence[str], models: Sequence[str], n_rows: int, repeats: int, data: Path | None, say: Progress
) -> list[Cost]:
    """Return the costs of each model on each data set."""
    unknown = [name for name in models if name not in MODELS]
    if unknown:
        raise ModelError(f"unknown model {unknown[0]!r}; expected one of {', '.join(MODELS)}")
    costs = []
    for dataset_name in datasets:
        dataset = load(dataset_name, data=data)
        for name in models:
            say(f"{dataset_name}: {name}")
            costs.append(cost_of(name, Bench.prepare(dataset, MODELS[name](), n_rows), repeats))
    return costs


def run_scaling(data: Path | None, growth: Growth, say: Progress) -> list[dict[str, Any]]:
    """Return how the certificate's cost grows with rows, groups, classes, trees and depth."""
    found = []
    for grows, value, bench in _growing(data, growth):
        say(f"scaling: {grows} = {value}")
        cost = cost_of(f"{grows} {value}", bench, 3, only_native=True)
        found.append({"grows": grows, "value": value, **cost.to_dict()})
    return found


@dataclass(frozen=True, slots=True)
class Growth:
    """The sizes at which growth is measured."""

    rows: tuple[int, ...] = (10_000, 100_000, 581_012)
    groups: tuple[int, ...] = (4, 14, 50, 100, 200)
    classes: tuple[int, ...] = (2, 5, 10, 20)
    trees: tuple[int, ...] = (100, 300, 900)
    depths: tuple[int, ...] = (4, 6, 8, 10)
    audited: int = 10_000  # rows, where it is not they that grow
    made: int = 30_000  # rows of a data set that is made up
    rounds: int = 50  # of LightGBM on such a data set


def _growing(data: Path | None, growth: Growth) -> Iterator[tuple[str, int, Bench]]:
    if growth.rows:
        covertype = load("covertype", data=data)
        for count in growth.rows:
            yield "rows", count, Bench.prepare(covertype, lightgbm(100), count)
    if growth.groups:
        yield from _growing_groups(growth)
    for classes in growth.classes:
        X, y = made_up(growth.made, 20, classes)
        yield "classes", classes, Bench.fitted("made up", lightgbm(growth.rounds), X, y, growth.audited)
    if growth.trees or growth.depths:
        adult = load("adult", data=data)
        for trees in growth.trees:
            yield "trees", trees, Bench.prepare(adult, lightgbm(trees), growth.audited)
        for depth in growth.depths:
            yield "depth", depth, Bench.prepare(adult, xgboost(300, depth), growth.audited)


def _growing_groups(growth: Growth) -> Iterator[tuple[str, int, Bench]]:
    """Yield one model of many columns, put into more and more groups."""
    columns = max(growth.groups)
    X, y = made_up(growth.made, columns, 2)
    for parts in growth.groups:
        blocks = {name: f"block{i % parts}" for i, name in enumerate(X.columns)}
        yield "groups", parts, Bench.fitted("made up", lightgbm(growth.rounds), X, y, growth.audited, groups=blocks)


def made_up(rows: int, columns: int, classes: int) -> tuple[pd.DataFrame, Any]:
    """Return a data set of any width: two fifths of its columns say something about the class."""
    informative = max(2 * columns // 5, int(np.ceil(np.log2(2 * classes))))
    X, y = make_classification(
        rows,
        columns,
        n_informative=informative,
        n_redundant=0,
        n_classes=classes,
        n_clusters_per_class=1,
        random_state=0,
    )
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(columns)]), y


def run_memory(data: Path | None, row_counts: Sequence[int], say: Progress) -> list[dict[str, Any]]:
    """Return time and peak memory of audits of files, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home, found = Path(folder), []
        X = prepare(home, data)
        for rows in row_counts:
            say(f"memory: a file of {rows:,} rows")
            found.append(measured(home, X, rows))
        return found
