"""Small pictures as SVG text, drawn without a library: what reports and notebooks show inline.

Every function returns text that is the same for the same input. Colours are variables of the page (`--accent` and so
on) with values that hold up on white and on black, so that a notebook without our style sheet shows the same picture;
words take the colour of the text around them. Text that comes from data is escaped here and nowhere else.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fragility.text import replace_controls

# Okabe and Ito's blue and vermilion: told apart by people with any common form of colour blindness, and in grey print.
ACCENT = "var(--accent, #0072B2)"
FLIP = "var(--flip, #D55E00)"
QUIET = "var(--quiet, #8A8F98)"
RULE = "var(--rule, #8A8F9855)"
INK = "currentColor"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight map from values to places; `low` goes to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = self.high - self.low
        share = (value - self.low) / width if width else 0.5
        return self.start + share * (self.end - self.start)


def number(value: float) -> str:
    """Return a place with one decimal and no trailing zero; minus zero is zero."""
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


def escaped(text: object) -> str:
    """Return text that is safe inside an element and inside a quoted attribute."""
    return html.escape(replace_controls(text), quote=True)


# --- marks --------------------------------------------------------------------------------------------------


def line(start: Point, end: Point, *, colour: str = RULE, width: float = 1.0, dashed: bool = False) -> str:
    """Return a straight line."""
    (x1, y1), (x2, y2) = start, end
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
        f'stroke="{colour}" stroke-width="{number(width)}"{dash}/>'
    )


def polyline(points: Iterable[Point], *, colour: str = ACCENT, width: float = 2.0, dashed: bool = False) -> str:
    """Return a line through points."""
    places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{number(width)}" '
        f'stroke-linejoin="round"{dash}/>'
    )


def area(upper: Sequence[Point], lower: Sequence[Point], *, colour: str = ACCENT, opacity: float = 0.2) -> str:
    """Return the band between two lines."""
    places = " ".join(f"{number(x)},{number(y)}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon points="{places}" fill="{colour}" fill-opacity="{opacity:g}"/>'


def bar(x: float, y: float, width: float, height: float, *, colour: str = ACCENT, opacity: float = 1.0) -> str:
    """Return a filled rectangle."""
    faded = "" if opacity >= 1.0 else f' fill-opacity="{opacity:g}"'
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.0))}" '
        f'height="{number(max(height, 0.0))}" fill="{colour}"{faded}/>'
    )


def cells(corners: Iterable[Point], width: float, height: float, *, colour: str = ACCENT, opacity: float = 1.0) -> str:
    """Return many equal rectangles as one path, which keeps a density plot of any number of rows small."""
    box = f"h{number(width)}v{number(height)}h-{number(width)}z"
    drawn = "".join(f"M{number(x)} {number(y)}{box}" for x, y in corners)
    return f'<path d="{drawn}" fill="{colour}" fill-opacity="{opacity:g}"/>' if drawn else ""


def dot(centre: Point, radius: float = 2.5, *, colour: str = ACCENT, hollow: bool = False) -> str:
    """Return a dot, or a ring."""
    x, y = centre
    paint = f'fill="none" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" {paint}/>'


def words(
    place: Point, text: object, *, anchor: str = "start", size: float = 11.0, colour: str = INK, bold: bool = False
) -> str:
    """Return a line of text at the baseline `place`."""
    x, y = place
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}" font-size="{number(size)}" '
        f'fill="{colour}"{weight}>{escaped(text)}</text>'
    )


# --- axes ---------------------------------------------------------------------------------------------------


def value_axis(scale: Scale, ticks: Sequence[tuple[float, str]], left: float, right: float) -> list[str]:
    """Return the horizontal rules of a vertical axis, with their labels to the left of `left`."""
    marks = []
    for value, label in ticks:
        y = scale(value)
        marks += [line((left, y), (right, y)), words((left - 6, y + 4), label, anchor="end")]
    return marks


def place_axis(scale: Scale, ticks: Sequence[tuple[float, str]], y: float) -> list[str]:
    """Return the labels of a horizontal axis, below `y`."""
    return [words((scale(value), y + 15), label, anchor="middle") for value, label in ticks]


def tidy_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round values that cover [low, high], at most about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * index, 12) for index in range(first, last + 1)]


def picture(width: float, height: float, label: str, marks: Iterable[str], *, kind: str = "chart") -> str:
    """Return an SVG element that reads aloud as `label` and fits the width it is given."""
    return (
        f'<svg class="{kind}" role="img" aria-label="{escaped(label)}" viewBox="0 0 {number(width)} {number(height)}" '
        f'style="width:100%;max-width:{number(width)}px;height:auto" font-family="inherit" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>'
    )


def draw_share_bar(share: float) -> str:
    """Return a bar for a table's cell; the number beside it says the same."""
    return (
        '<svg class="share" aria-hidden="true" viewBox="0 0 100 10" preserveAspectRatio="none">'
        f'<rect width="100" height="10" fill="var(--soft, #8A8F9833)"/>'
        f'<rect width="{number(100 * min(share, 1.0))}" height="10" fill="{ACCENT}"/></svg>'
    )
