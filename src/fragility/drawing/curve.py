"""Certificates in a notebook: small tables, and the collapse of one margin as an inline picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fragility.drawing.svg import (
    FLIP,
    QUIET,
    Scale,
    dot,
    escaped,
    line,
    picture,
    polyline,
    tidy_ticks,
    value_axis,
    words,
)

CELL = "padding:.25em .8em .25em 0;text-align:{align};vertical-align:top"
TABLE = "border-collapse:collapse;font-size:inherit;color:inherit"


def collapse_curve(margins: Sequence[float], flip: int | None, label: str, *, width: float = 260.0) -> str:
    """Return the margin after 0, 1, 2 ... removals; the flip, if there is one, is marked and named.

    `flip` is the step at which the prediction flips. `label` is what a reader who cannot see the picture hears.
    """
    height, left, right, top, bottom = 112.0, 34.0, width - 8.0, 10.0, 84.0
    low, high = min(0.0, *margins), max(0.0, *margins)
    if low == high:
        high = low + 1.0
    y, x = Scale(low, high, bottom, top), Scale(0, max(len(margins) - 1, 1), left + 6, right - 6)
    places = [(x(step), y(margin)) for step, margin in enumerate(margins)]
    ticks = [(value, f"{value:g}") for value in tidy_ticks(low, high, 3)]
    marks = [*value_axis(y, ticks, left, right), line((left, y(0.0)), (right, y(0.0)), colour=QUIET, width=1.4)]
    marks.append(polyline(places))
    marks += [dot(place, 2.2) for place in places]
    if flip is not None:
        marks += _flip_mark(places[flip], flip, (left, right), (top, bottom))
    marks += _step_labels(x, len(margins) - 1, bottom)
    return picture(width, height, label, marks, kind="curve")


def _flip_mark(
    place: tuple[float, float], flip: int, sides: tuple[float, float], ends: tuple[float, float]
) -> list[str]:
    """Return a ring at the flip and the word beside it, on the side where there is room."""
    x, _ = place
    to_the_right = x < (sides[0] + sides[1]) / 2
    words_at = (x + 5 if to_the_right else x - 5, ends[0] + 7)  # at the top, where a curve that has flipped is not
    anchor = "start" if to_the_right else "end"
    return [
        line((x, ends[0]), (x, ends[1]), colour=FLIP, dashed=True),
        dot(place, 5.0, colour=FLIP, hollow=True),
        words(words_at, f"flips at {flip}", anchor=anchor, size=11, colour="var(--flip-text, currentColor)", bold=True),
    ]


def _step_labels(x: Scale, last: int, bottom: float) -> list[str]:
    every = max(1, math.ceil(last / 10))
    steps = [step for step in range(0, last + 1) if step % every == 0]
    marks = [words((x(step), bottom + 14), str(step), anchor="middle", size=10) for step in steps]
    return [*marks, words((x(last / 2), bottom + 26), "groups removed", anchor="middle", size=10)]


def plain_table(head: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """Return an HTML table that needs no style sheet; the columns in `numeric` are flush right."""

    def cell(tag: str, column: int, value: object) -> str:
        align = "right" if column in numeric else "left"
        scope = ' scope="col"' if tag == "th" else ""
        return f'<{tag}{scope} style="{CELL.format(align=align)}">{escaped(value)}</{tag}>'

    header = "".join(cell("th", column, name) for column, name in enumerate(head))
    body = "".join(f"<tr>{''.join(cell('td', i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    return f'<table style="{TABLE}"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'


def side_by_side(*parts: str) -> str:
    """Return blocks beside each other, one below the other where there is no room."""
    blocks = "".join(f'<div style="min-width:0">{part}</div>' for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{blocks}</div>'
