"""Which models, data sets and sizes are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fragility.errors import ModelError
from fragility_paper.bench.costs import Bench, Cost, cost_of
from fragility_paper.bench.models import MODELS, lightgbm, xgboost
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


def run_scaling(data: Path | None, row_counts: Sequence[int], say: Progress) -> list[dict[str, Any]]:
    """Return how the certificate's cost grows with rows, groups, trees and depth."""
    found = []
    for grows, value, bench in _growing(data, row_counts):
        say(f"scaling: {grows} = {value}")
        cost = cost_of(f"{grows} {value}", bench, 3, only_native=True)
        found.append({"grows": grows, "value": value, **cost.to_dict()})
    return found


def _growing(data: Path | None, row_counts: Sequence[int]) -> Iterator[tuple[str, int, Bench]]:
    covertype, adult = load("covertype", data=data), load("adult", data=data)
    for count in row_counts:
        yield "rows", count, Bench.prepare(covertype, lightgbm(100), count)
    for parts in (4, 7, 14):
        blocks = {field: f"block{i % parts}" for i, field in enumerate(adult.spec.fields)}
        yield "groups", parts, Bench.prepare(adult, lightgbm(), 10_000, groups=blocks)
    for trees in (100, 300, 900):
        yield "trees", trees, Bench.prepare(adult, lightgbm(trees), 10_000)
    for depth in (4, 6, 8, 10):
        yield "depth", depth, Bench.prepare(adult, xgboost(300, depth), 10_000)
