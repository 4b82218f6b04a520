"""Pictures over time: one measure day by day with its alarms, and bars."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import fragility.pages.svg as svg
from fragility.apps.watching.events import OF_FIELDS
from fragility.apps.watching.findings import Alarm, Watched, write_number, write_rate, write_value
from fragility.pages.svg import ACCENT, FLIP, FLIP_TEXT, LEFT, QUIET, RIGHT, WIDTH, LinearScale

TOP, BOTTOM = 34.0, 156.0


def draw_over_time(
    days: Sequence[dt.date], watched: Watched, title: str, alarms: Sequence[Alarm], days_of_reference: int
) -> str:
    """Return one measure day by day: dots, their confidence sequences, the reference, and the measure's alarms."""
    x = _scale_days(days)
    known = [(day, figure) for day, figure in zip(days, watched.days, strict=True) if figure.decisions]
    values = [figure.value for _, figure in known]
    bounds = [bound for bound in (watched.lower, watched.upper) if bound == bound and bound < 1.0]
    # The wide band of a day with few decisions must not flatten the line.
    usual = sorted(figure.decisions for _, figure in known)[len(known) // 2] / 2
    full = [figure for _, figure in known if figure.decisions >= usual]
    high = min(1.0, 1.05 * max([*values, *bounds, *(figure.upper for figure in full), 0.001]))
    low = min([*values, *bounds, *(figure.lower for figure in full)])
    low = 0.95 * low if low > high / 2 else 0.0
    y = LinearScale(low, high, BOTTOM, TOP)
    ticks = [(tick, _write_tick(watched.measure, tick)) for tick in svg.list_ticks(low, high)]
    marks = svg.draw_value_axis(y, ticks, LEFT, RIGHT)
    ends = [
        [(x(_number(day)), y(min(max(getattr(f, end), low), high))) for day, f in known] for end in ("upper", "lower")
    ]
    marks.append(svg.draw_band(*ends))
    if days_of_reference:
        last = x(_number(days[days_of_reference - 1]))
        marks.append(svg.draw_bar(LEFT, BOTTOM + 2, max(last - LEFT, 3.0), 3, colour=QUIET))
    sides = [watched.upper] if watched.measure in OF_FIELDS else [watched.lower, watched.upper]
    for bound in sides:
        if bound == bound and low <= bound <= high:
            marks.append(svg.draw_line((LEFT, y(bound)), (RIGHT, y(bound)), colour=QUIET, width=1.4, dashed=True))
    for alarm in alarms:
        place = x(_number(alarm.day))
        marks.append(svg.draw_line((place, TOP - 4), (place, BOTTOM), colour=FLIP, width=2.0))
        anchor = "end" if place > (LEFT + RIGHT) / 2 else "start"
        marks.append(
            svg.draw_text(
                (place + (-5 if anchor == "end" else 5), TOP + 6), f"alarm {alarm.day}", anchor=anchor, colour=FLIP_TEXT
            )
        )
    points = [(x(_number(day)), y(figure.value)) for day, figure in known]
    marks.append(svg.draw_polyline(points, width=1.6))
    if len(points) <= 62:
        marks += [svg.draw_dot(point, 2.2) for point in points]
    marks += _draw_dates(days, x)
    marks.append(svg.draw_text((LEFT, 15), title, bold=True))
    spoken = "; ".join(f"{day}: {write_value(watched.measure, figure.value)}" for day, figure in known[-14:])
    raised = "".join(f" Alarm on {alarm.day}." for alarm in alarms)
    label = f"{title}, by day; the last days: {spoken}.{raised}"
    return svg.draw_picture(WIDTH, BOTTOM + 34, label, marks)


def draw_bars(days: Sequence[dt.date], values: Sequence[float], title: str) -> str:
    """Return one bar per day."""
    x = _scale_days(days)
    y = LinearScale(0.0, max([*values, 1e-9]) * 1.08, BOTTOM, TOP)
    ticks = [(tick, write_number(tick)) for tick in svg.list_ticks(0.0, y.high)]
    span = max((days[-1] - days[0]).days, 1)
    width = max(min(0.8 * (x.end - x.start) / (span + 1), 16.0), 1.0)
    marks = svg.draw_value_axis(y, ticks, LEFT, RIGHT)
    for day, value in zip(days, values, strict=True):
        marks.append(svg.draw_bar(x(_number(day)) - width / 2, y(value), width, BOTTOM - y(value), colour=ACCENT))
    marks += _draw_dates(days, x)
    marks.append(svg.draw_text((LEFT, 15), title, bold=True))
    spoken = "; ".join(f"{day}: {write_number(value)}" for day, value in list(zip(days, values, strict=True))[-14:])
    return svg.draw_picture(WIDTH, BOTTOM + 34, f"{title}; the last days: {spoken}", marks)


def _scale_days(days: Sequence[dt.date]) -> LinearScale:
    return LinearScale(_number(days[0]), _number(days[-1]), LEFT + 10, RIGHT - 10)


def _draw_dates(days: Sequence[dt.date], x: LinearScale) -> list[str]:
    """Return the first and the last day, and some between, as the labels of the axis."""
    first, last = days[0], days[-1]
    span = (last - first).days
    count = 0 if span == 0 else min(3, span)
    chosen = [first + dt.timedelta(days=round(span * step / count)) for step in range(count + 1)] if count else [first]
    marks = []
    for day in chosen:
        anchor = "middle" if count == 0 else "start" if day == first else "end" if day == last else "middle"
        place = x(_number(day)) + (-10 if anchor == "start" else 10 if anchor == "end" else 0)
        marks.append(svg.draw_text((place, BOTTOM + 20), day.isoformat(), anchor=anchor))
    return marks


def _number(day: dt.date) -> float:
    return float(day.toordinal())


def _write_tick(measure: str, value: float) -> str:
    return f"{value:g}" if measure == "exposure" else write_rate(value)
