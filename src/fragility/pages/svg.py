"""Small pictures as SVG text, drawn without a library, and plain HTML tables: what reports and notebooks show inline.

Every function returns text that is the same for the same input. Colours are variables of the page (`--accent` and so
on) with values that hold up on white and on black, so that a notebook without our style sheet shows the same picture;
text takes the colour of the text around it. Text that comes from data is escaped here and nowhere else.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fragility.base.shares import Share
from fragility.base.text import replace_controls, shorten
from fragility.pages.wording import write_interval, write_known, write_percent

# Okabe and Ito's blue and vermilion: told apart by people with any common form of colour blindness, and in grey print.
ACCENT = "var(--accent, #0072B2)"
FLIP = "var(--flip, #D55E00)"
FLIP_TEXT = "var(--flip-text, currentColor)"
QUIET = "var(--quiet, #8A8F98)"
RULE = "var(--rule, #8A8F9855)"
INK = "currentColor"
WIDTH, LEFT, RIGHT = 440.0, 44.0, 424.0  # of a chart in a report
CELL = "padding:.25em .8em .25em 0;text-align:{align};vertical-align:top"
TABLE = "border-collapse:collapse;font-size:inherit;color:inherit"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A straight map from values to places; `low` goes to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = self.high - self.low
        share = (value - self.low) / width if width else 0.5
        return self.start + share * (self.end - self.start)


def _round(value: float) -> str:
    """Return a place with one decimal and no trailing zero; minus zero is zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def escape(text: object) -> str:
    """Return text that is safe inside an element and inside a quoted attribute."""
    return html.escape(replace_controls(text), quote=True)


# --- marks --------------------------------------------------------------------------------------------------


def draw_line(start: Point, end: Point, *, colour: str = RULE, width: float = 1.0, dashed: bool = False) -> str:
    """Return a straight line."""
    (x1, y1), (x2, y2) = start, end
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line x1="{_round(x1)}" y1="{_round(y1)}" x2="{_round(x2)}" y2="{_round(y2)}" '
        f'stroke="{colour}" stroke-width="{_round(width)}"{dash}/>'
    )


def draw_polyline(points: Iterable[Point], *, colour: str = ACCENT, width: float = 2.0, dashed: bool = False) -> str:
    """Return a line through points."""
    places = " ".join(f"{_round(x)},{_round(y)}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{_round(width)}" '
        f'stroke-linejoin="round"{dash}/>'
    )


def draw_band(upper: Sequence[Point], lower: Sequence[Point]) -> str:
    """Return the band between two lines."""
    places = " ".join(f"{_round(x)},{_round(y)}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon points="{places}" fill="{ACCENT}" fill-opacity="0.22"/>'


def draw_bar(x: float, y: float, width: float, height: float, *, colour: str = ACCENT, opacity: float = 1.0) -> str:
    """Return a filled rectangle."""
    faded = "" if opacity >= 1.0 else f' fill-opacity="{opacity:g}"'
    return (
        f'<rect x="{_round(x)}" y="{_round(y)}" width="{_round(max(width, 0.0))}" '
        f'height="{_round(max(height, 0.0))}" fill="{colour}"{faded}/>'
    )


def draw_cells(corners: Iterable[Point], width: float, height: float, opacity: float) -> str:
    """Return many equal rectangles as one path, which keeps a density plot of any number of rows small."""
    box = f"h{_round(width)}v{_round(height)}h-{_round(width)}z"
    drawn = "".join(f"M{_round(x)} {_round(y)}{box}" for x, y in corners)
    return f'<path d="{drawn}" fill="{ACCENT}" fill-opacity="{opacity:g}"/>' if drawn else ""


def draw_dot(centre: Point, radius: float = 2.5, *, colour: str = ACCENT, hollow: bool = False) -> str:
    """Return a dot, or a ring."""
    x, y = centre
    paint = f'fill="none" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
    return f'<circle cx="{_round(x)}" cy="{_round(y)}" r="{_round(radius)}" {paint}/>'


def draw_text(
    place: Point, text: object, *, anchor: str = "start", size: float = 11.0, colour: str = INK, bold: bool = False
) -> str:
    """Return a line of text at the baseline `place`."""
    x, y = place
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{_round(x)}" y="{_round(y)}" text-anchor="{anchor}" font-size="{_round(size)}" '
        f'fill="{colour}"{weight}>{escape(text)}</text>'
    )


def draw_share_bar(share: float) -> str:
    """Return a bar for a table's cell; the number beside it says the same."""
    return (
        '<svg class="share" aria-hidden="true" viewBox="0 0 100 10" preserveAspectRatio="none">'
        f'<rect width="100" height="10" fill="var(--soft, #8A8F9833)"/>'
        f'<rect width="{_round(100 * min(share, 1.0))}" height="10" fill="{ACCENT}"/></svg>'
    )


# --- axes and pictures --------------------------------------------------------------------------------------


def draw_value_axis(scale: LinearScale, ticks: Sequence[tuple[float, str]], left: float, right: float) -> list[str]:
    """Return the horizontal rules of a vertical axis, with their labels to the left of `left`."""
    marks = []
    for value, label in ticks:
        y = scale(value)
        marks += [draw_line((left, y), (right, y)), draw_text((left - 6, y + 4), label, anchor="end")]
    return marks


def draw_place_axis(scale: LinearScale, ticks: Sequence[tuple[float, str]], y: float) -> list[str]:
    """Return the labels of a horizontal axis, below `y`."""
    return [draw_text((scale(value), y + 15), label, anchor="middle") for value, label in ticks]


def list_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round values that cover [low, high], at most about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * index, 12) for index in range(first, last + 1)]


def draw_legend(entries: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return coloured samples with their names on one line: (name, colour, ``solid``, ``faint`` or ``dashed``)."""
    marks, x, y = list[str](), LEFT, 16.0
    for name, colour, style in entries:
        if style == "dashed":
            marks.append(draw_line((x, y - 4), (x + 14, y - 4), colour=colour, width=2.4, dashed=True))
        else:
            marks.append(draw_bar(x, y - 9, 12, 10, colour=colour, opacity=0.22 if style == "faint" else 1.0))
        marks.append(draw_text((x + 19, y), name))
        x += 19 + 6.3 * len(name) + 20
    return marks


def draw_picture(
    width: float, height: float, label: str, marks: Iterable[str], *, kind: str = "chart", styled: bool = True
) -> str:
    """Return an SVG element that reads aloud as `label`; with `styled` it fits the width it is given."""
    style = f' style="width:100%;max-width:{_round(width)}px;height:auto"' if styled else ""
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(label)}" viewBox="0 0 {_round(width)} {_round(height)}"'
        f'{style} font-family="inherit" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>'
    )


# --- shares with intervals ----------------------------------------------------------------------------------


def draw_shares(entries: Sequence[tuple[str, Share]], measure: str = "flip early", *, total: bool = True) -> str:
    """Return one line per entry: its share as a dot, the share's interval as a line, its count as text.

    measure: what the share does, for readers who cannot see it; total: whether the first entry is of all rows.
    """
    left, right, top, step = 128.0, 330.0, 20.0, 25.0
    bottom = top + step * len(entries)
    x, marks = _draw_share_axis([share for _, share in entries], left, right, top, bottom)
    for place, (name, share) in enumerate(entries):
        y = top + step * (place + 0.5) - 4
        marks.append(draw_text((left - 10, y + 4), shorten(name, 20), anchor="end", bold=total and place == 0))
        marks += _draw_interval(share, x, y, QUIET if total and place == 0 else ACCENT, 4.5)
        least = "" if share.exact else "\u2265 "
        marks.append(draw_text((right + 12, y + 4), f"{least}{share.count:,} of {share.rows:,}"))
    label = "; ".join(
        f"{name}: {share.count} of {share.rows} {measure}, {write_known(share)}, 95% interval {write_interval(share)}"
        for name, share in entries
    )
    return draw_picture(WIDTH, bottom + 16, f"Share that {measure}. {label}", marks)


def draw_paired_shares(
    entries: Sequence[tuple[str, tuple[Share, Share]]], names: tuple[str, str], measure: str = "flip early"
) -> str:
    """Return two shares per entry with their intervals, one audit above the other."""
    left, right, top, step = 128.0, RIGHT, 44.0, 34.0
    bottom = top + step * len(entries)
    x, marks = _draw_share_axis([share for _, both in entries for share in both], left, right, top, bottom)
    for place, (name, both) in enumerate(entries):
        y = top + step * (place + 0.5) - 4
        marks.append(draw_text((left - 10, y + 4), shorten(name, 20), anchor="end"))
        for offset, share, colour in zip((-6, 6), both, (QUIET, ACCENT), strict=True):
            marks += _draw_interval(share, x, y + offset, colour, 4)
    samples = zip(names, (QUIET, ACCENT), strict=True)
    marks += draw_legend([(shorten(name, 24), colour, "solid") for name, colour in samples])
    label = "; ".join(
        f"{name}: {write_percent(one.value)} against {write_percent(two.value)}" for name, (one, two) in entries
    )
    return draw_picture(WIDTH, bottom + 16, f"Share that {measure}, {names[0]} against {names[1]}. {label}", marks)


def _draw_share_axis(
    shares: Sequence[Share], left: float, right: float, top: float, bottom: float
) -> tuple[LinearScale, list[str]]:
    high = max([0.1, *(share.upper for share in shares if share.rows)])
    x = LinearScale(0.0, min(1.0, 1.05 * high), left, right)
    ticks = [tick for tick in list_ticks(0.0, x.high) if tick <= 1.0]
    marks = [draw_line((x(tick), top - 4), (x(tick), bottom - 6)) for tick in ticks]
    return x, marks + draw_place_axis(x, [(tick, write_percent(tick)) for tick in ticks], bottom - 6)


def _draw_interval(share: Share, x: LinearScale, y: float, colour: str, radius: float) -> list[str]:
    if not share.rows:
        return []
    interval = draw_line((x(share.lower), y), (x(share.upper), y), colour=colour, width=2.4)
    return [interval, draw_dot((x(share.value), y), radius, colour=colour)]


def draw_fifths(fifths: Sequence[Share]) -> str:
    """Return how often predictions are wrong, by fifths of exposure, with intervals."""
    top, bottom = 20.0, 166.0
    y = LinearScale(0.0, max(0.02, *(rate.upper for rate in fifths)) * 1.05, bottom, top)
    slot = (RIGHT - LEFT) / len(fifths)
    marks = draw_value_axis(y, [(tick, write_percent(tick)) for tick in list_ticks(0.0, y.high)], LEFT, RIGHT)
    names = ("least exposed", "second", "third", "fourth", "most exposed")
    for place, (rate, name) in enumerate(zip(fifths, names, strict=True)):
        x, low, high = LEFT + slot * (place + 0.5), y(rate.lower), y(rate.upper)
        marks.append(draw_text((x, bottom + 15), name, anchor="middle"))
        marks.append(draw_bar(x - 20, y(rate.value), 40, bottom - y(rate.value), opacity=0.75))
        whisker = (((x, low), (x, high)), ((x - 5, low), (x + 5, low)), ((x - 5, high), (x + 5, high)))
        marks += [draw_line(*ends, colour=INK, width=1.4) for ends in whisker]
    marks.append(draw_text(((LEFT + RIGHT) / 2, bottom + 36), "fifths by exposure", anchor="middle"))
    label = ", ".join(f"{name} {write_percent(rate.value)}" for name, rate in zip(names, fifths, strict=True))
    return draw_picture(WIDTH, 208.0, f"Share of predictions that are wrong, by fifths of exposure: {label}", marks)


# --- notebooks ----------------------------------------------------------------------------------------------


def draw_table(head: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """Return an HTML table that needs no style sheet; the columns in `numeric` are flush right."""

    def cell(tag: str, column: int, value: object) -> str:
        align = "right" if column in numeric else "left"
        scope = ' scope="col"' if tag == "th" else ""
        return f'<{tag}{scope} style="{CELL.format(align=align)}">{escape(value)}</{tag}>'

    header = "".join(cell("th", column, name) for column, name in enumerate(head))
    body = "".join(f"<tr>{''.join(cell('td', i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    return f'<table style="{TABLE}"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'


def put_side_by_side(*parts: str) -> str:
    """Return blocks beside each other, one below the other where there is no room."""
    blocks = "".join(f'<div style="min-width:0">{part}</div>' for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{blocks}</div>'
