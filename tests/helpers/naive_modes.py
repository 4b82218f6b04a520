"""Slow twins of failure modes, written from the definitions: one raw row, one unit, one value at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from naive import EPSILON, is_nan, naive_margin, naive_predicted_class, naive_support_margin

Row = dict[str, Any]


def mid_quantiles(values: Sequence[float], size: int) -> dict[float, float]:
    """The quantiles (i + 1/2) / size of the known values, each a value that occurs, with their weights."""
    known = sorted(value for value in values if not is_nan(value))
    weights: dict[float, float] = {}
    for i in range(size):
        share = (2 * i + 1) / (2 * size)
        for rank, value in enumerate(known, start=1):
            if rank / len(known) >= share - 1e-12:  # the first value with so many at or below it
                weights[value] = weights.get(value, 0.0) + 1 / size
                break
    return weights


def frequencies(values: Sequence[Any], size: int) -> dict[Any, float]:
    """The most frequent known categories with their frequencies, renormalised; ties in text order.

    None if most values are held by one row each. Of more categories than ``size``, those of at least 5 rows.
    """
    counts: dict[Any, int] = {}
    for value in values:
        if not is_nan(value):
            counts[value] = counts.get(value, 0) + 1
    if sum(counts.values()) > 1 and sum(1 for count in counts.values() if count == 1) > sum(counts.values()) / 2:
        return {}
    often = counts if len(counts) <= size else {value: count for value, count in counts.items() if count >= 5}
    kept = sorted(often, key=lambda value: (-counts[value], str(value)))[:size]
    total = sum(counts[value] for value in kept)
    return {value: counts[value] / total for value in kept}


def noise_units(x: Row, spreads: dict[str, float], extent: float, whole: Sequence[str] = ()) -> list[list[Any]]:
    """Of each number, downward and then upward: its two values, half and all of the extent away, equally likely."""
    units = []
    for name, spread in spreads.items():
        for direction in (-1.0, 1.0):
            values = [x[name] + direction * share * extent * spread for share in (1.0, 0.5)]
            units.append([({name: float(round(v)) if name in whole else v}, 0.5) for v in values])
    return units


def mode_loss(
    probabilities: Callable[[Row], Sequence[float]],
    x: Row,
    units: Sequence[Sequence[tuple[Row, float]]],
    *,
    reading: str = "support",
    resolution: float = 1e-6,
    smoothing: float = 0.0,
    unit_weight: float = 1.0,
) -> dict[str, Any]:
    """units: of each unit its values, as (the cells that change, weight); the weights of a unit sum to 1.

    A cell that is missing in the row stays so.


    unit_weight: of each unit in the loss, 1/2 for noise, whose units are a column and a direction.
    """
    p = list(probabilities(x))
    original = naive_predicted_class(p, resolution)
    margin = naive_margin(p, original, reading, smoothing=smoothing)
    drops, chances = [], []
    for values in units:
        expected, chance = [], []
        for changed, weight in values:
            there = {name: value for name, value in changed.items() if not is_nan(x[name])}  # no values otherwise
            q = list(probabilities({**x, **there}))
            expected.append(weight * naive_margin(q, original, reading, smoothing=smoothing))
            chance.append(weight if naive_support_margin(q, original) < -resolution else 0.0)
        drops.append(margin - math.fsum(expected))
        chances.append(math.fsum(chance))
    loss = unit_weight * math.fsum(max(0.0, drop) for drop in drops) / (abs(margin) + EPSILON)
    return {"drop": drops, "flip_chance": chances, "loss": loss, "exposure": 1.0 - math.exp(-loss)}
