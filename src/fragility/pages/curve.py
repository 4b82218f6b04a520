"""The margin curve: how one prediction's margin falls as its evidence is removed, for terminals, SVG and matplotlib."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fragility.pages.svg as svg
from fragility.base.text import BriefRepr, shorten
from fragility.pages.figure import BLUE, RED
from fragility.pages.svg import ACCENT, FLIP, FLIP_TEXT, QUIET, LinearScale
from fragility.pages.wording import write_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR_WIDTH = 10  # characters on each side of zero
LONGEST_CLASS = 16  # characters of a class beside the flip


@dataclass(frozen=True, repr=False)
class MarginCurve(BriefRepr):
    """One row's margin along its removal path; step 0 is the full record.

    `flip_step` is k*, or None where the prediction survives every step. `flip_class` is the class it flips to, and
    `classes` the class predicted at each step; None and empty where they are not known.
    """

    row: Any
    predicted: Any
    confidence: float
    groups: tuple[str, ...]
    margins: tuple[float, ...]
    flip_step: int | None
    flip_class: Any = None
    classes: tuple[Any, ...] = ()

    @property
    def flip_label(self) -> str:
        """`flips to 'good'`, or `flips at 2` where the class is not known."""
        if self.flip_class is None:
            return f"flips at {self.flip_step}"
        return f"flips to {shorten(self.flip_class, LONGEST_CLASS)!r}"


def draw_curve_text(curve: MarginCurve) -> list[str]:
    """Return one line per step: what was removed, the margin left as a number and as a bar, and the class."""
    names = ["(nothing removed)", *(f"- {name}" for name in curve.groups)]
    width = max(map(len, names))
    scale = max(map(abs, curve.margins)) or 1.0
    lines = []
    for step, (name, margin, label) in enumerate(zip(names, curve.margins, curve.classes, strict=True)):
        filled = "#" * round(BAR_WIDTH * abs(margin) / scale)
        left, right = ("", filled) if margin >= 0 else (filled, "")
        bar = f"{left:>{BAR_WIDTH}}|{right:<{BAR_WIDTH}}"
        mark = "  <- flips" if step == curve.flip_step else ""
        lines.append(f"{step:>3}  {name:<{width}}  {margin:>+8.3f}  {bar}  {label}{mark}")
    return lines


def draw_curve_svg(
    curve: MarginCurve, label: str, *, width: float = 260.0, height: float = 130.0, styled: bool = True
) -> str:
    """Return the curve as SVG; the flip, if there is one, is marked and named.

    `label` is what a reader who cannot see the picture hears. `styled` is False on pages that forbid inline styles.
    """
    left, right, top, bottom = 34.0, width - 8.0, 22.0, height - 34.0
    low, high, last = min(0.0, *curve.margins), max(0.0, *curve.margins), len(curve.margins) - 1
    if low == high:
        high = low + 1.0
    y, x = LinearScale(low, high, bottom, top), LinearScale(0, max(last, 1), left + 6, right - 6)
    places = [(x(step), y(margin)) for step, margin in enumerate(curve.margins)]
    marks = svg.draw_value_axis(y, [(value, f"{value:g}") for value in svg.list_ticks(low, high, 3)], left, right)
    marks.append(svg.draw_line((left, y(0.0)), (right, y(0.0)), colour=QUIET, width=1.4))
    marks.append(svg.draw_polyline(places))
    flip = curve.flip_step
    for step, place in enumerate(places):
        marks.append(svg.draw_dot(place, 2.2, colour=FLIP if flip is not None and step >= flip else ACCENT))
    if flip is not None:
        at, _ = places[flip]
        # The label stands at the top, where a curve that has flipped is not, and on the side with more room.
        side, anchor = (5, "start") if at < (left + right) / 2 else (-5, "end")
        marks.append(svg.draw_line((at, top), (at, bottom), colour=FLIP, dashed=True))
        marks.append(svg.draw_dot(places[flip], 5.0, colour=FLIP, hollow=True))
        text = (at + side, top + 7)
        marks.append(svg.draw_text(text, curve.flip_label, anchor=anchor, size=11, colour=FLIP_TEXT, bold=True))
    for step in range(0, last + 1, max(1, math.ceil(last / 10))):
        marks.append(svg.draw_text((x(step), bottom + 14), str(step), anchor="middle", size=10))
    marks.append(svg.draw_text((x(last / 2), bottom + 30), "groups removed", anchor="middle", size=10))
    marks.append(svg.draw_text((0.0, 10.0), "margin", size=10))
    return svg.draw_picture(width, height, label, marks, kind="curve", styled=styled)


def draw_curve_axes(ax: Axes, curve: MarginCurve) -> None:
    """Draw the curve on matplotlib axes."""
    steps, flip = range(len(curve.margins)), curve.flip_step
    ax.axhline(0.0, color="#444444", linewidth=1.0)
    label = f"{curve.predicted!r} at {curve.confidence:.0%}"
    ax.plot(steps, curve.margins, color=BLUE, marker="o", markersize=5, linewidth=2.0, label=label)
    if flip is not None:
        ax.plot(steps[flip:], curve.margins[flip:], color=RED, marker="o", markersize=5, linewidth=2.0)
        label = f"flips to {curve.flip_class!r} after {write_count(flip, 'group')}"
        ring: Any = {"marker": "o", "markersize": 13, "fillstyle": "none", "markeredgewidth": 2.0}
        ax.plot([flip], [curve.margins[flip]], linestyle="none", color=RED, label=label, **ring)
    names = ["full record", *(f"− {name}" for name in curve.groups)]
    ax.set_xticks(steps, names, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_xlabel("evidence replaced by the baseline, one group after another")
    ax.set_title(f"row {curve.row}")
    ax.margins(y=0.15)
    ax.legend(loc="best")
