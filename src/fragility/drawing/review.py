"""Pictures of a case as plain numbers, for a template to place: how the margin falls, and how long a bar is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 236
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 24, 40


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    step: int
    lost: bool  # the prediction has flipped here


@dataclass(frozen=True)
class Curve:
    """The margin along the removal path."""

    points: tuple[Point, ...]
    line: str  # of the polyline
    zero: float  # where the margin is 0
    ticks: tuple[tuple[float, str], ...]  # of the margin
    flip: Point | None
    words: str  # the same for someone who cannot see it
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def margin_curve(margins: Sequence[float], path: Sequence[str], flip: int | None, flips_to: str | None) -> Curve:
    """Return the curve of the margin after 0, 1, 2 ... removals; ``flip`` is the step at which the class changes."""
    low, high = min(0.0, *margins), max(0.0, *margins)
    span = (high - low) or 1.0
    low, high = low - 0.06 * span, high + 0.06 * span

    def x(step: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / max(len(margins) - 1, 1), 1)

    def y(margin: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - margin) / (high - low), 1)

    points = tuple(
        Point(x(k), y(margin), k, flip is not None and k >= flip and margin < 0) for k, margin in enumerate(margins)
    )
    ends = (margins[0], 0.0) if abs(margins[0]) > 0.15 * span else (margins[0],)
    return Curve(
        points=points,
        line=" ".join(f"{point.x},{point.y}" for point in points),
        zero=y(0.0),
        ticks=tuple((y(value), f"{value:.2g}") for value in ends),
        flip=None if flip is None else points[flip],
        words=_told(margins, path, flip, flips_to),
    )


def _told(margins: Sequence[float], path: Sequence[str], flip: int | None, flips_to: str | None) -> str:
    steps = [f"after {name} {margin:.2f}" for name, margin in zip(path, margins[1:], strict=False)]
    outcome = "it never flips" if flip is None else f"it flips to {flips_to} at step {flip}"
    return f"Margin {margins[0]:.2f} at first, {', '.join(steps)}; {outcome}."


@dataclass(frozen=True)
class Bar:
    """A number as a bar from the middle of 0..100: to the right where it is positive."""

    start: float
    length: float
    negative: bool


def bars(values: Sequence[float]) -> list[Bar]:
    """Return bars on one scale; those below 0 grow to the left of a common zero."""
    low, high = min([0.0, *values]), max([0.0, *values])
    span = (high - low) or 1.0
    zero = -low / span * 100
    return [
        Bar(round(zero if value >= 0 else zero + value / span * 100, 2), round(abs(value) / span * 100, 2), value < 0)
        for value in values
    ]
