"""Pictures: small ones as SVG text, drawn without a library; the margin curve; and the base of all matplotlib figures.

Every function that returns SVG or HTML returns the same text for the same input. Colours are variables of the page
(`--accent` and so on) with defaults that are legible on white and on black, so that a notebook without our style sheet
shows the same picture; text takes the colour of the surrounding text. Text that comes from data is escaped here and
nowhere else.

Matplotlib is imported when something is drawn, and its global style is not changed.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fragility.base.errors import DataError
from fragility.base.shares import Share
from fragility.base.text import BriefRepr, replace_controls, shorten
from fragility.pages.wording import write_count, write_interval, write_known, write_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's blue and vermilion, which are distinct in all common forms of colour blindness and in grey print.
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
    """A linear map from values to positions; `low` maps to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = self.high - self.low
        share = (value - self.low) / width if width else 0.5
        return self.start + share * (self.end - self.start)


def _round(value: float) -> str:
    """Return a position with one decimal and no trailing zero; minus zero is zero."""
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
    path = "".join(f"M{_round(x)} {_round(y)}{box}" for x, y in corners)
    return f'<path d="{path}" fill="{ACCENT}" fill-opacity="{opacity:g}"/>' if path else ""


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
    """Return a bar for a table's cell, which also shows the number."""
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
    """Return an SVG element that screen readers read as `label`; with `styled` it scales to the available width."""
    style = f' style="width:100%;max-width:{_round(width)}px;height:auto"' if styled else ""
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(label)}" viewBox="0 0 {_round(width)} {_round(height)}"'
        f'{style} font-family="inherit" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>'
    )


# --- shares with intervals ----------------------------------------------------------------------------------


def draw_shares(entries: Sequence[tuple[str, Share]], measure: str = "flip early", *, total: bool = True) -> str:
    """Return one line per entry: its share as a dot, the share's interval as a line, its count as text.

    measure: what is counted, for screen readers; total: whether the first entry covers all rows.
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
    x, marks = _draw_share_axis([share for _, pair in entries for share in pair], left, right, top, bottom)
    for place, (name, pair) in enumerate(entries):
        y = top + step * (place + 0.5) - 4
        marks.append(draw_text((left - 10, y + 4), shorten(name, 20), anchor="end"))
        for offset, share, colour in zip((-6, 6), pair, (QUIET, ACCENT), strict=True):
            marks += _draw_interval(share, x, y + offset, colour, 4)
    samples = zip(names, (QUIET, ACCENT), strict=True)
    marks += draw_legend([(shorten(name, 24), colour, "solid") for name, colour in samples])
    label = "; ".join(
        f"{name}: {write_percent(first.value)} against {write_percent(second.value)}"
        for name, (first, second) in entries
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
    """Return blocks side by side; they wrap if there is no room."""
    blocks = "".join(f'<div style="min-width:0">{part}</div>' for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{blocks}</div>'


# --- matplotlib -----------------------------------------------------------------------------------------------

# Okabe and Ito's palette, which is distinct in all common forms of colour blindness and in grey print.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#8A8F98"

STYLE: Any = {  # matplotlib types the keys of its settings one by one
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(repr=False)
class Display(BriefRepr):
    """Base of the displays, which draw one panel or a row of panels."""

    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)
    _share_y: ClassVar[bool] = True  # of several panels in a new figure

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Self:
        """Draw the display in the library's style.

        Parameters
        ----------
        ax : matplotlib Axes or one per panel, optional
            The axes to draw on; a single one is split if there are several panels. New axes by default.

        Returns
        -------
        Display
            The display itself, with ``figure_`` and ``ax_``.
        """
        import matplotlib
        import matplotlib.pyplot as plt
        import numpy as np

        count, width, height = self._measure()
        figure: Any = None
        if ax is None:
            # The first figure loads the backend, which may change settings, such as a notebook's to show every figure;
            # rc_context would undo them at its end.
            face = STYLE["figure.facecolor"]
            figure = plt.figure(figsize=(width, height), layout="constrained", facecolor=face)
        with matplotlib.rc_context(STYLE):
            if ax is None:
                panels = list(figure.subplots(1, count, sharey=self._share_y, squeeze=False)[0])
            elif isinstance(ax, (Sequence, np.ndarray)):
                if len(ax) != count:
                    raise DataError(f"{count} axes were expected, one for each panel, got {len(ax)}")
                panels = list(ax)
            else:
                panels = [ax] if count == 1 else _split_axes(ax, count)
            self._draw(panels)
        self.ax_ = panels[0] if count == 1 else np.array(panels, dtype=object)
        self.figure_ = panels[0].figure
        return self

    def _measure(self) -> tuple[int, float, float]:
        """Return the number of panels, and the width and height of a new figure in inches."""
        return 1, 7.2, 4.8

    def _draw(self, panels: Sequence[Axes]) -> None:
        raise NotImplementedError


def _split_axes(ax: Axes, count: int) -> list[Axes]:
    """Return a row of panels in the place of the given axes, like scikit-learn's PartialDependenceDisplay."""
    from matplotlib.gridspec import GridSpecFromSubplotSpec

    place = ax.get_subplotspec()
    if place is None:
        raise DataError("several panels need axes made by plt.subplots, got axes placed by hand")
    ax.set_axis_off()
    grid = GridSpecFromSubplotSpec(1, count, subplot_spec=place)
    first = ax.figure.add_subplot(grid[0, 0])
    return [first, *(ax.figure.add_subplot(grid[0, i], sharey=first) for i in range(1, count))]


@dataclass(repr=False)
class ReliabilityDisplay(Display):
    """Decisions kept by making each group reliable; :meth:`FailureProbability.plot` draws it.

    Attributes
    ----------
    groups : sequence of str
        Names of the groups, the most decisions kept first.
    decisions_kept : sequence of float
        Decisions that would be kept if each never failed.
    lost : float
        Decisions expected to be lost at present.
    rows : int
        Total number of decisions.
    condition : str
        How evidence fails, in words.
    ax_, figure_ : matplotlib Axes and Figure
        The axes and the figure, after ``plot``.
    """

    groups: Sequence[str]
    decisions_kept: Sequence[float]
    lost: float
    rows: int
    condition: str

    def _measure(self) -> tuple[int, float, float]:
        return 1, 7.2, 1.4 + 0.32 * len(self.groups)

    def _draw(self, panels: Sequence[Axes]) -> None:
        (ax,) = panels
        ax.barh(range(len(self.groups)), self.decisions_kept, color=BLUE, height=0.7)
        ax.set_yticks(range(len(self.groups)), self.groups)
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
        ax.set_xlabel("decisions kept if it never failed")
        ax.set_title(f"{self.lost:.1f} of {self.rows} decisions expected to be lost\n{self.condition}")


# --- the margin curve -----------------------------------------------------------------------------------------

BAR_WIDTH = 10  # characters on each side of zero
LONGEST_CLASS = 16  # characters of a class beside the flip


@dataclass(frozen=True, repr=False)
class MarginCurve(BriefRepr):
    """One row's margin along its removal path; step 0 is the full record.

    `flip_step` is k*, or None if the prediction survives every step. `flip_class` is the class it flips to, and
    `classes` the class predicted at each step; None and empty if unknown.
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
        """`flips to 'good'`, or `flips at 2` if the class is unknown."""
        if self.flip_class is None:
            return f"flips at {self.flip_step}"
        return f"flips to {shorten(self.flip_class, LONGEST_CLASS)!r}"


def draw_curve_text(curve: MarginCurve) -> list[str]:
    """Return one line per step: the removed group, the remaining margin as a number and as a bar, and the class."""
    names = ["(nothing removed)", *(f"- {name}" for name in curve.groups)]
    width = max(map(len, names))
    scale = max(map(abs, curve.margins)) or 1.0
    lines = []
    for step, (name, margin, label) in enumerate(zip(names, curve.margins, curve.classes, strict=True)):
        filled = "#" * round(BAR_WIDTH * abs(margin) / scale)
        below, above = ("", filled) if margin >= 0 else (filled, "")
        bar = f"{below:>{BAR_WIDTH}}|{above:<{BAR_WIDTH}}"
        mark = "  <- flips" if step == curve.flip_step else ""
        lines.append(f"{step:>3}  {name:<{width}}  {margin:>+8.3f}  {bar}  {label}{mark}")
    return lines


def draw_curve_svg(
    curve: MarginCurve, label: str, *, width: float = 260.0, height: float = 130.0, styled: bool = True
) -> str:
    """Return the curve as SVG; the flip, if there is one, is marked and named.

    `label` is the text for screen readers. `styled` is False on pages that forbid inline styles.
    """
    left, right, top, bottom = 34.0, width - 8.0, 22.0, height - 34.0
    low, high, last = min(0.0, *curve.margins), max(0.0, *curve.margins), len(curve.margins) - 1
    if low == high:
        high = low + 1.0
    y, x = LinearScale(low, high, bottom, top), LinearScale(0, max(last, 1), left + 6, right - 6)
    places = [(x(step), y(margin)) for step, margin in enumerate(curve.margins)]
    marks = draw_value_axis(y, [(value, f"{value:g}") for value in list_ticks(low, high, 3)], left, right)
    marks.append(draw_line((left, y(0.0)), (right, y(0.0)), colour=QUIET, width=1.4))
    marks.append(draw_polyline(places))
    flip = curve.flip_step
    for step, place in enumerate(places):
        marks.append(draw_dot(place, 2.2, colour=FLIP if flip is not None and step >= flip else ACCENT))
    if flip is not None:
        at, _ = places[flip]
        # The label is at the top, which a curve that has flipped does not reach, on the side with more room.
        side, anchor = (5, "start") if at < (left + right) / 2 else (-5, "end")
        marks.append(draw_line((at, top), (at, bottom), colour=FLIP, dashed=True))
        marks.append(draw_dot(places[flip], 5.0, colour=FLIP, hollow=True))
        text = (at + side, top + 7)
        marks.append(draw_text(text, curve.flip_label, anchor=anchor, size=11, colour=FLIP_TEXT, bold=True))
    for step in range(0, last + 1, max(1, math.ceil(last / 10))):
        marks.append(draw_text((x(step), bottom + 14), str(step), anchor="middle", size=10))
    marks.append(draw_text((x(last / 2), bottom + 30), "groups removed", anchor="middle", size=10))
    marks.append(draw_text((0.0, 10.0), "margin", size=10))
    return draw_picture(width, height, label, marks, kind="curve", styled=styled)


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
