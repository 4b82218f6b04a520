"""The page over time: one HTML document, made of the report's blocks; alarms come first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import fragility.pages.svg as svg
from fragility.apps.watching.events import OF_FIELDS, STATES
from fragility.apps.watching.findings import Alarm, Watched, WatchFindings, write_number, write_rate, write_value
from fragility.base.text import shorten
from fragility.pages.svg import ACCENT, FLIP, FLIP_TEXT, LEFT, QUIET, RIGHT, WIDTH, Scale
from fragility.pages.wording import write_count, write_percent
from fragility.report.blocks import Block, Facts, Figure, Notice, Numbers, Section, Table, Text
from fragility.report.rendering import render_document, render_sections

TITLE = "Decisions over time"
GENERATOR = "fragility watch"
TOP, BOTTOM = 34.0, 156.0
SHOWN_GROUPS = 6
MOST_PICTURES = 24  # of fields; the table has them all
NAMES = {
    "missing": "missing",
    "stale": "stale",
    "out_of_range": "outside the training range",
    "repeated": "repeats the value before",
}


def render_page(found: WatchFindings) -> str:
    """Return the whole document."""
    body = render_sections(TITLE, write_byline(found), list_sections(found))
    return render_document(TITLE, body, GENERATOR)


def write_byline(found: WatchFindings) -> str:
    """Return what was watched."""
    models = "; ".join(found.models)
    return f"{found.source}, {found.days[0]} to {found.days[-1]}; model: {models}"


def list_sections(found: WatchFindings) -> list[Section]:
    """Return the sections, alarms first."""
    sections = [Section("now", "Now", list(_tell_now(found)))]
    if found.alarms:
        sections.append(Section("alarms", "All alarms", [_list_alarms(found.alarms)]))
    if found.loss is not None:
        sections.append(Section("lost", "Decisions expected to be lost", list(_tell_losses(found))))
    sections.append(Section("certificates", "Decisions and their certificates", list(_tell_certificates(found))))
    fields = [each for each in found.watched if each.measure in OF_FIELDS]
    if fields:
        sections.append(Section("fields", "Fields", list(_tell_fields(found, fields))))
    sections.append(Section("days", f"{found.unit.capitalize()} by {found.unit}", [_list_days(found)]))
    sections.append(Section("how", "How alarms are raised", [_explain(found)]))
    return sections


def _tell_now(found: WatchFindings) -> Sequence[Block]:
    blocks: list[Block] = [Text([f"{found.headline()}."])]
    blocks += [Notice(f"{alarm.title}: {alarm.finding()}.") for alarm in found.open_alarms]
    recent = {each.measure: each.recent for each in found.watched if each.name is None}
    window = min(found.settings["window"], len(found.days))
    per_day = sum(found.decisions[-window:]) / window
    entries = [(write_number(per_day), f"decisions per {found.unit}")]
    if found.loss is not None:
        entries.append((write_number(found.loss.per_day), "of them expected to be lost at the current rates"))
    if found.unit == "day":
        without = sum(found.without[-window:]) / max(sum(found.decisions[-window:]), 1)
        entries.append((write_rate(without), "made with a missing or stale field"))
    early = recent["flips_early"]
    told = "of confident decisions flip early" if early.decisions else "of the decisions are confident"
    entries += [(write_percent(early.value), told), (write_number(recent["exposure"].value), "mean exposure")]
    blocks += [Numbers(entries), Text([f"These numbers are of {found.last_days}.", *found.notes])]
    return blocks


def _list_alarms(alarms: Sequence[Alarm]) -> Table:
    head = (
        "what",
        "raised",
        "after decisions",
        "since",
        "value",
        "reference",
        "decisions affected",
        "would change",
        "ended",
    )
    rows = [
        (
            f"{alarm.title} ({'rise' if alarm.direction == 'up' else 'fall'})",
            str(alarm.day),
            f"{alarm.decision_number:,}",
            str(alarm.since),
            write_value(alarm.measure, alarm.value),
            write_value(alarm.measure, alarm.reference),
            f"{alarm.affected:,}",
            "-" if alarm.changed is None else write_number(alarm.changed),
            "open" if alarm.closed is None else str(alarm.closed),
        )
        for alarm in alarms
    ]
    return Table("Alarms in the order in which they were raised", head, rows, sortable=True)


def _tell_losses(found: WatchFindings) -> Sequence[Block]:
    loss = found.loss
    assert loss is not None
    rows = [
        (each.group, write_rate(each.rate), write_rate(each.importance), write_number(each.lost_per_day))
        for each in loss.groups
    ]
    head = ("group", "decisions without it", "decisions that hang on it", "lost per day")
    table = Table("Evidence groups, costliest first", head, rows[:SHOWN_GROUPS], sortable=True)
    bars = _draw_bars(found.days, loss.by_day, "Decisions expected to be lost")
    caption = (
        "Expected decisions lost: how often each group was missing or stale on the day, times how many decisions hang "
        f"on it (to first order; from {loss.source}, {write_count(loss.rows, 'row')})."
    )
    blocks: list[Block] = [Figure([bars], caption, table)]
    if len(rows) > SHOWN_GROUPS:
        blocks.append(Table("All evidence groups", head, rows, folded=True, sortable=True))
    if any(found.changed):
        total = f"{round(sum(found.changed)):,}"
        blocks.append(
            Text(
                [
                    f"Of the {write_count(sum(found.without), 'decision')} made with a missing or stale field, about "
                    f"{total} would have been decided differently with the field present (the sum of p_change in the "
                    "log)."
                ]
            )
        )
    return blocks


def _tell_certificates(found: WatchFindings) -> Sequence[Block]:
    titles = {
        "exposure": "Mean exposure",
        "flips_early": "Confident decisions that flip early (share)",
        "decision": "Decisions for {} (share)",
        "lost": "Decisions lost at the declared rates (share)",
    }
    pictures = [
        draw_over_time(found, each, titles[each.measure].format(each.name))
        for measure in titles
        for each in found.watched
        if each.measure == measure and any(day.decisions for day in each.days)
    ]
    unit = found.unit
    caption = (
        f"Each dot is {'an' if unit == 'audit' else 'a'} {unit}, with its confidence sequence as a band. The grey bar "
        f"marks the {unit}s of the reference, the dashed lines its bounds; a vertical line is an alarm."
    )
    return [Figure(pictures, caption, small=True)]


def _tell_fields(found: WatchFindings, fields: Sequence[Watched]) -> Sequence[Block]:
    alarmed = {(alarm.measure, alarm.name) for alarm in found.alarms}
    moving = [
        each
        for each in fields
        if (each.measure, each.name) in alarmed or (each.measure in STATES and any(day.value > 0 for day in each.days))
    ]
    moving.sort(key=lambda each: ((each.measure, each.name) not in alarmed, -each.recent.value))
    blocks: list[Block] = []
    if moving:
        pictures = [
            draw_over_time(found, each, f"{shorten(each.name, 26)}: {NAMES[each.measure]} (share of decisions)")
            for each in moving[:MOST_PICTURES]
        ]
        left = len(moving) - len(pictures)
        more = f" {write_count(left, 'quieter one')} only in the table." if left else ""
        blocks.append(Figure(pictures, f"Share of decisions, those with alarms first.{more}", small=True))
    else:
        blocks.append(Text(["No field was missing, stale or outside its training range on any day."]))
    by_name: dict[str, dict[str, str]] = {}
    for each in fields:
        told = f"{write_rate(each.recent.value)} (was {write_rate(each.reference)})"
        by_name.setdefault(str(each.name), {})[each.measure] = told
    rows = [(name, *(own.get(measure, "-") for measure in OF_FIELDS)) for name, own in by_name.items()]
    head = ("field", *(NAMES[measure] for measure in OF_FIELDS))
    blocks.append(Table("The last days, and the reference", head, rows, folded=True, sortable=True))
    return blocks


def _list_days(found: WatchFindings) -> Table:
    by = {each.measure: each for each in found.watched if each.name is None}
    columns = {
        found.unit: [str(day) for day in found.days],
        "decisions": [f"{count:,}" for count in found.decisions],
        "mean exposure": [write_number(day.value) for day in by["exposure"].days],
        "flip early": [write_percent(day.value) for day in by["flips_early"].days],
    }
    if found.unit == "day":
        columns["missing or stale field"] = [f"{count:,}" for count in found.without]
    if found.loss is not None:
        columns["expected lost"] = [write_number(lost) for lost in found.loss.by_day]
    rows = list(zip(*columns.values(), strict=True))
    return Table(f"{found.unit.capitalize()}s", tuple(columns), rows, folded=len(rows) > 14)


def _explain(found: WatchFindings) -> Facts:
    settings, unit, count = found.settings, found.unit, found.settings["reference_days"]
    first = f"the first {unit}" if count == 1 else f"the first {count} {unit}s"
    told = settings["reference"]
    span = "" if told is None else f" ({told['first']} to {told['last']}, {write_count(told['decisions'], 'decision')})"
    return Facts(
        [
            ("reference", f"{first} with decisions{span}, unless rates were declared or a released audit was given"),
            (
                "alarm",
                "the reference has left the confidence sequence of the stream. All streams together raise a false "
                f"alarm within {settings['horizon']} {unit}s with a probability of at most {settings['alpha']:g}, "
                "however often one looks, if decisions are drawn as in the reference",
            ),
            ("allowance", f"{settings['allowance']:g} beyond the bounds of the reference"),
            ("ended", "the decisions since speak for a return, a hundred to one, or are within the bound on average"),
            ("band", f"the confidence sequence of one {unit} by itself, {1 - settings['alpha']:.0%}"),
        ]
    )


# --- pictures -----------------------------------------------------------------------------------------------


def draw_over_time(found: WatchFindings, watched: Watched, title: str) -> str:
    """Return one measure day by day: dots, their confidence sequences, the reference, and alarms."""
    days, x = found.days, _scale_days(found.days)
    known = [(day, figure) for day, figure in zip(days, watched.days, strict=True) if figure.decisions]
    raised = [a for a in found.alarms if (a.measure, a.name) == (watched.measure, watched.name)]
    values = [figure.value for _, figure in known]
    bounds = [bound for bound in (watched.lower, watched.upper) if bound == bound and bound < 1.0]
    # The wide band of a day with few decisions must not flatten the line.
    usual = sorted(figure.decisions for _, figure in known)[len(known) // 2] / 2
    full = [figure for _, figure in known if figure.decisions >= usual]
    high = min(1.0, 1.05 * max([*values, *bounds, *(figure.upper for figure in full), 0.001]))
    low = min([*values, *bounds, *(figure.lower for figure in full)])
    low = 0.95 * low if low > high / 2 else 0.0
    y = Scale(low, high, BOTTOM, TOP)
    ticks = [(tick, _write_tick(watched.measure, tick)) for tick in svg.list_ticks(low, high)]
    marks = svg.draw_value_axis(y, ticks, LEFT, RIGHT)
    ends = [
        [(x(_number(day)), y(min(max(getattr(f, end), low), high))) for day, f in known] for end in ("upper", "lower")
    ]
    marks.append(svg.draw_band(*ends))
    if reference := found.days_of_reference:
        last = x(_number(days[reference - 1]))
        marks.append(svg.draw_bar(LEFT, BOTTOM + 2, max(last - LEFT, 3.0), 3, colour=QUIET))
    sides = [watched.upper] if watched.measure in OF_FIELDS else [watched.lower, watched.upper]
    for bound in sides:
        if bound == bound and low <= bound <= high:
            marks.append(svg.draw_line((LEFT, y(bound)), (RIGHT, y(bound)), colour=QUIET, width=1.4, dashed=True))
    for alarm in raised:
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
    said = "; ".join(f"{day}: {write_value(watched.measure, figure.value)}" for day, figure in known[-14:])
    alarms = "".join(f" Alarm on {alarm.day}." for alarm in raised)
    label = f"{title}, by day; the last days: {said}.{alarms}"
    return svg.draw_picture(WIDTH, BOTTOM + 34, label, marks)


def _draw_bars(days: Sequence[dt.date], values: Sequence[float], title: str) -> str:
    """Return one bar per day."""
    x = _scale_days(days)
    y = Scale(0.0, max([*values, 1e-9]) * 1.08, BOTTOM, TOP)
    ticks = [(tick, write_number(tick)) for tick in svg.list_ticks(0.0, y.high)]
    span = max((days[-1] - days[0]).days, 1)
    width = max(min(0.8 * (x.end - x.start) / (span + 1), 16.0), 1.0)
    marks = svg.draw_value_axis(y, ticks, LEFT, RIGHT)
    for day, value in zip(days, values, strict=True):
        marks.append(svg.draw_bar(x(_number(day)) - width / 2, y(value), width, BOTTOM - y(value), colour=ACCENT))
    marks += _draw_dates(days, x)
    marks.append(svg.draw_text((LEFT, 15), title, bold=True))
    said = "; ".join(f"{day}: {write_number(value)}" for day, value in list(zip(days, values, strict=True))[-14:])
    return svg.draw_picture(WIDTH, BOTTOM + 34, f"{title}; the last days: {said}", marks)


def _scale_days(days: Sequence[dt.date]) -> Scale:
    return Scale(_number(days[0]), _number(days[-1]), LEFT + 10, RIGHT - 10)


def _draw_dates(days: Sequence[dt.date], x: Scale) -> list[str]:
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
