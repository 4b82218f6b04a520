"""Slow twin of failure probabilities by mode, from the definition: every combination of failures, one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from naive import is_nan, naive_predicted_class, naive_support_margin

Row = dict[str, Any]
Ways = Sequence[tuple[Row, float]]  # how a group fails: the cells that change, and how likely that is


def _only_there(x: Row, cells: Row) -> Row:
    return {name: value for name, value in cells.items() if not is_nan(x[name])}


def naive_failures(
    probabilities: Callable[[Row], Sequence[float]], x: Row, groups: Sequence[Ways], resolution: float = 1e-6
) -> dict[str, Any]:
    """p_flip, the part of it with exactly one failure, and P(flip | g fails) - P(flip | g holds) by group.

    What is missing in the row cannot fail: a group of which no cell is there has no ways to, and changes nothing.
    """
    groups = [[(_only_there(x, cells), chance) for cells, chance in ways if _only_there(x, cells)] for ways in groups]
    original = naive_predicted_class(list(probabilities(x)), resolution)
    fates = [[({}, None), *ways] for ways in groups]
    flipping = []  # the places of the fates of each combination that flips
    for places in itertools.product(*(range(len(own)) for own in fates)):
        changed: Row = {}
        for own, place in zip(fates, places, strict=True):
            changed |= own[place][0]
        if naive_support_margin(list(probabilities({**x, **changed})), original) < -resolution:
            flipping.append(places)
    rates = [math.fsum(chance for _, chance in ways) for ways in groups]

    def chance_of(g: int, place: int) -> float:
        return 1.0 - rates[g] if place == 0 else groups[g][place - 1][1]

    def weight(places: Sequence[int], without: int | None = None) -> float:
        return math.prod(chance_of(g, place) for g, place in enumerate(places) if g != without)

    importance = []
    for g, rate in enumerate(rates):
        if rate == 0.0:
            importance.append(0.0)
            continue
        fails = math.fsum(weight(p, g) * chance_of(g, p[g]) / rate for p in flipping if p[g] > 0)
        importance.append(fails - math.fsum(weight(p, g) for p in flipping if p[g] == 0))
    return {
        "p_flip": math.fsum(weight(p) for p in flipping),
        "one_failure": math.fsum(weight(p) for p in flipping if sum(place > 0 for place in p) == 1),
        "importance": importance,
    }
