"""Slow twin of stability intervals, written from the definition: the model is asked about every value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from naive import naive_predicted_class, naive_support_margin

Ask = Callable[[Sequence[Any]], Sequence[Sequence[float]]]  # values of one field of one row -> probabilities


def stability_interval(
    ask: Ask,
    own: Any,
    values: Sequence[Any],
    *,
    resolution: float = 1e-6,
    original: int | None = None,
    margin: Callable[..., float] = naive_support_margin,
) -> dict[str, Any]:
    """values: all that the field can hold in its training range, rising. The search goes outward from ``own``."""
    if original is None:
        original = naive_predicted_class(list(ask([own])[0]), resolution)
    found: dict[str, Any] = {}
    sides = {"below": [v for v in reversed(values) if v < own], "above": [v for v in values if v > own]}
    for side, outward in sides.items():
        end, flip = own, None
        for value, p in zip(outward, ask(outward) if outward else [], strict=True):
            if margin(list(p), original) < -resolution:
                flip = (value, naive_predicted_class(list(p), resolution))
                break
            end = value
        found[side] = (end, flip)
    return found


def flipping_categories(ask: Ask, own: Any, values: Sequence[Any], *, resolution: float = 1e-6) -> dict[Any, int]:
    """The categories that flip the decision, with the class predicted there."""
    original = naive_predicted_class(list(ask([own])[0]), resolution)
    answers = zip(values, ask(values), strict=True)
    return {
        value: naive_predicted_class(list(p), resolution)
        for value, p in answers
        if naive_support_margin(list(p), original) < -resolution
    }
