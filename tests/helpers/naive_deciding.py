"""Slow twins of decisions without fields, written from the definitions: one raw row, one value at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from naive import Decision, is_nan, naive_predicted_class, naive_support_margin
from naive_ranking import uniform

Row = dict[str, Any]
Ask = Callable[[Row], Sequence[float]]
Values = list[tuple[Row, float]]  # what the unknown fields of one group may hold, with weights that sum to 1


def row_as_decided(ask: Ask, row: Row, missing: Sequence[str], baseline: Row) -> Row:
    """The row as it arrives, without its missing fields; the baseline for those without which there is no answer."""
    arrived = {**row, **dict.fromkeys(missing)}
    for name in missing:
        try:
            ask({**row, name: None})
        except ValueError:
            arrived[name] = baseline[name]
    return arrived


def known_part(values: Values, names: Sequence[str]) -> Values:
    """The values of some fields of a group: equal ones are one value."""
    found: list[tuple[Row, float]] = []
    for value, weight in values:
        part = {name: value[name] for name in names}
        for i, (other, own) in enumerate(found):
            if other == part:
                found[i] = (other, own + weight)
                break
        else:
            found.append((part, weight))
    return found


def product(units: Sequence[Values]) -> Values:
    """Every state of several groups that vary independently."""
    states = []
    for choice in itertools.product(*units):
        row: Row = {}
        for value, _ in choice:
            row |= value
        states.append((row, math.prod(weight for _, weight in choice)))
    return states


def p_change(
    ask: Ask, x: Row, decided: int, states: Values, resolution: float = 1e-6, decision: Decision | None = None
) -> float:
    """sum_v w_v 1[decision(x with M <- v) differs from the decision made]."""
    chance = 0.0
    for value, weight in states:
        if naive_support_margin(list(ask({**x, **value})), decided, decision) < -resolution:
            chance += weight
    return chance


def changes_to(
    ask: Ask, x: Row, decided: int, states: Values, resolution: float = 1e-6, decision: Decision | None = None
) -> int | None:
    """The class with the largest weight among those that take over; the first of equal ones."""
    weights: dict[int, float] = {}
    for value, weight in states:
        p = list(ask({**x, **value}))
        if naive_support_margin(p, decided, decision) < -resolution:
            to = naive_predicted_class(p, resolution, decision)
            weights[to] = weights.get(to, 0.0) + weight
    return min(weights, key=lambda to: (-weights[to], to)) if weights else None


def reduction(
    ask: Ask,
    x: Row,
    decided: int,
    units: Sequence[Values],
    field: str,
    resolution: float = 1e-6,
    decision: Decision | None = None,
) -> float:
    """P_change now, less its mean once the field is known: for each of its values, decide again, and ask again."""
    every = product(units)
    after = 0.0
    for told, weight in known_part(every, [field]):
        x_told = {**x, **told}
        then = naive_predicted_class(list(ask(x_told)), resolution, decision)
        rest = []  # states that agree with what was told, without the field
        for value, own in every:
            if value[field] == told[field]:
                rest.append(({name: v for name, v in value.items() if name != field}, own / weight))
        after += weight * p_change(ask, x_told, then, rest, resolution, decision)
    return p_change(ask, x, decided, every, resolution, decision) - after


def drawn_states(units: Sequence[Values], points: Sequence[Sequence[float]], key: str, shifts: int = 16) -> Values:
    """Quasi-random states: points (one per draw of a shift) moved by a uniform number per shift and group, modulo 1."""
    states = []
    for s in range(shifts):
        for point in points:
            row: Row = {}
            for u, values in enumerate(units):
                moved = math.fmod(point[u] + uniform(0, "unknown fields", key, s, u), 1.0)
                below = 0.0
                for value, weight in values:
                    below += weight
                    if moved < below or value is values[-1][0]:
                        row |= value
                        break
            states.append((row, 1.0 / (shifts * len(points))))
    return states


def nearest(
    training: Sequence[Row],
    digests: Sequence[bytes],
    x: Row,
    unknown: Sequence[str],
    numeric: Sequence[str],
    count: int,
) -> Values:
    """The unknown fields of the nearest training rows that have all of them, equally weighted."""
    known = [name for name in x if name not in unknown]
    spread = {}
    for name in numeric:
        values = [row[name] for row in training if not is_nan(row[name])]
        mean = math.fsum(values) / len(values)
        spread[name] = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    ranked = []
    for row, digest in zip(training, digests, strict=True):
        if any(is_nan(row[name]) for name in unknown):
            continue
        distance = 0.0
        for name in known:
            a, b = x[name], row[name]
            if is_nan(a) or is_nan(b):
                distance += 0.0 if is_nan(a) and is_nan(b) else 1.0
            elif name in numeric:
                distance += ((a - b) / (spread[name] or 1.0)) ** 2
            else:
                distance += 0.0 if a == b else 1.0
        ranked.append((round(distance, 9), digest, row))
    chosen = sorted(ranked, key=lambda entry: entry[:2])[:count]
    return known_part([(row, 1.0 / len(chosen)) for _, _, row in chosen], unknown)
