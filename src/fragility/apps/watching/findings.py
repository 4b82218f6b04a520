"""Findings: alarms, figures day by day and decisions expected to be lost; how they are said and drawn.

A table of reliability says how a decision depends on each evidence group g: the Birnbaum importance B_g(x), at rates r0
(SPEC section 14). Over its rows, with P the mean of P_flip and B_g the mean importance, the share of decisions that is
lost at other rates r is, to first order,

    L(r) = P + sum_g (r_g - r0_g) B_g           clipped to [0, 1]

r_g is the share of decisions in which a field of g was missing or known to be stale; a stale value counts as lost,
which overstates its cost. P_flip is linear in each rate, so L is exact if only one rate differs from r0, and for r0 = 0
it counts the decisions that a single missing group flips. Of these losses, r_g B_g are due to g. The table comes from
`failure_probability`, or from the certificates of an audit: r0 = 0, P = 0, and B_g is the share of decisions that flip
when g alone is lost. (Rows that were decided without g count as not flipped by it, so an audit of quiet days is the
right one.)
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fragility.apps.watching.events import OF_FIELDS, STATES, WatchedMeasure
from fragility.apps.watching.following import Direction
from fragility.audits import Audit
from fragility.audits.flips import find_single_losses
from fragility.base.arrays import Floats
from fragility.base.errors import DataError
from fragility.base.text import escape_controls
from fragility.pages import drawing
from fragility.pages.drawing import ACCENT, FLIP, FLIP_TEXT, LEFT, QUIET, RIGHT, WIDTH, LinearScale
from fragility.pages.wording import write_count
from fragility.questions.reliability.outcomes import FailureProbability

MEASURES: dict[str, str] = {
    "missing": "is missing",
    "stale": "is stale",
    "out_of_range": "is outside its training range",
    "repeated": "repeats the value before",
    "flips_early": "confident decisions that flip early",
    "decision": "decisions for",
    "exposure": "mean exposure",
    "lost": "decisions lost at the declared rates",
}


def name_measure(measure: str, name: str | None) -> str:
    """Return what is watched, in a few words."""
    if measure in OF_FIELDS:
        return f"{name} {MEASURES[measure]}"
    return MEASURES[measure] if name is None else f"{MEASURES[measure]} {name}"


NOT_CONFIDENT = "no decision is confident"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that changed, beyond what chance explains.

    Attributes
    ----------
    measure : str
        ``missing``, ``stale``, ``out_of_range``, ``repeated``, ``flips_early``, ``decision``, ``exposure`` or ``lost``.
    name : str or None
        The field, or the class of ``decision``; None for the others.
    direction : str
        ``up`` for a rise, ``down`` for a fall.
    day : datetime.date
        The day on which the alarm was raised.
    decision_number : int
        How many decisions had been read by then, those of the reference included.
    since : datetime.date
        The day on which the change probably began.
    value : float
        The share or the mean since then.
    reference, bound : float
        The same in the reference, and the most (or least) that the reference, with the allowance, admits.
    decisions : int
        Decisions made since then, up to the end of the alarm; for ``flips_early`` the confident ones.
    affected : int
        How many of them have the property: made without the field, or with a stale or odd value. For repeated values
        and shares of decisions, how many more or fewer there are than in the reference; for means, all of them.
    changed : float or None
        How many decisions would probably be others with the field: the sum of ``p_change`` where the log has it, else
        ``affected`` times the importance of the field; None if neither is known.
    closed : datetime.date or None
        The day on which the values were back; None while the alarm is open.
    """

    measure: WatchedMeasure
    name: str | None
    direction: Direction
    day: dt.date
    decision_number: int
    since: dt.date
    value: float
    reference: float
    bound: float
    decisions: int
    affected: int
    changed: float | None
    closed: dt.date | None

    @property
    def is_open(self) -> bool:
        """Whether the values are not back yet."""
        return self.closed is None

    @property
    def title(self) -> str:
        """What changed, in a few words."""
        return name_measure(self.measure, self.name)

    def sentence(self) -> str:
        """Return the alarm in words.

        Returns
        -------
        str
            One sentence, without its full stop: field, day, and the number of decisions.
        """
        return escape_controls(f"{self.title}: {self.finding()}")

    def finding(self) -> str:
        """Return the sentence without what it is about.

        Returns
        -------
        str
            Day, value and number of decisions.
        """
        now, before = write_value(self.measure, self.value), write_value(self.measure, self.reference)
        limit = write_value(self.measure, self.bound)
        end = "" if self.closed is None else f" until {self.closed}"
        side = "at most" if self.direction == "up" else "at least"
        text = f"raised on {self.day}; {now} since {self.since}{end}, was {before} ({side} {limit} is admitted)"
        if self.measure in STATES:
            how = {"missing": "without it", "stale": "on a stale value", "out_of_range": "on such a value"}[
                self.measure
            ]
            text += f"; {write_count(self.affected, 'decision')} made {how}"
            if self.changed is not None:
                text += f", about {round(self.changed):,} would have been decided differently with the field present"
        elif self.measure == "repeated":
            text += f"; {write_count(self.affected, 'decision')} more than in the reference hold the value before them"
        elif self.measure in ("exposure", "lost"):
            text += f"; {write_count(self.decisions, 'decision')} made since"
        else:
            more = "more" if self.direction == "up" else "fewer"
            text += f"; {write_count(self.affected, 'decision')} {more} than in the reference"
        return text


@dataclass(frozen=True, slots=True)
class WatchedValue:
    """A share or a mean over some decisions.

    Attributes
    ----------
    value : float
        The share or the mean; NaN without decisions.
    decisions : int
        Over how many decisions.
    lower, upper : float
        Its confidence sequence.
    """

    value: float
    decisions: int
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Watched:
    """One measure over time.

    Attributes
    ----------
    measure, name : str
        What is watched, and of which field or class.
    reference, lower, upper : float
        Its mean in the reference, and the bounds of that; NaN before the reference is complete.
    days : tuple of WatchedValue
        One for each day.
    recent : WatchedValue
        The same over the last days.
    """

    measure: WatchedMeasure
    name: str | None
    reference: float
    lower: float
    upper: float
    days: tuple[WatchedValue, ...]
    recent: WatchedValue


@dataclass(frozen=True, slots=True)
class GroupLoss:
    """What the current rate of one evidence group costs.

    Attributes
    ----------
    group : str
        Its name.
    rate : float
        Share of decisions that were made without some field of it, over the last days.
    importance : float
        Share of decisions that are lost with it and not without.
    lost_per_day : float
        Decisions lost because of it, per day.
    """

    group: str
    rate: float
    importance: float
    lost_per_day: float


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """Decisions expected to be lost at the current rates.

    Attributes
    ----------
    per_day : float
        At the rates of the last days.
    share : float
        The same as a share of decisions.
    by_day : tuple of float
        For each day, at the rates of that day.
    groups : tuple of GroupLoss
        The groups, the costliest first.
    source : str
        Where the importance comes from.
    rows : int
        Of how many rows.
    """

    per_day: float
    share: float
    by_day: tuple[float, ...]
    groups: tuple[GroupLoss, ...]
    source: str
    rows: int


def write_number(value: float) -> str:
    """Return a number with few digits."""
    if math.isnan(value):
        return "none"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_rate(value: float) -> str:
    """Return a share, with two significant digits if it is small."""
    if math.isnan(value):
        return "none"
    return "0%" if value == 0 else f"{100 * value:.2g}%" if abs(value) < 0.0995 else f"{value:.0%}"


def write_value(measure: str, value: float) -> str:
    """Return a value of a measure: a share, or a mean exposure."""
    return write_number(value) if measure == "exposure" else write_rate(value)


# --- decisions expected to be lost ----------------------------------------------------------------------------

MOST_ROWS = 20_000  # certificates of an audit that are read for the importance of its groups


@dataclass(frozen=True, slots=True, eq=False)
class LossTable:
    """How many decisions are lost with each group: G groups."""

    groups: tuple[str, ...]
    rates: Floats  # (G,) r0
    lost: float  # P
    importance: Floats  # (G,) B
    rows: int
    source: str  # where it comes from, in words

    def expect(self, rates: Floats) -> float:
        """Return L, the share of decisions lost at these rates (G,)."""
        return float(np.clip(self.lost + (rates - self.rates) @ self.importance, 0.0, 1.0))

    def by_group(self, rates: Floats) -> Floats:
        """Return (G,) the share of decisions lost because of each group."""
        return np.asarray(np.clip(rates * self.importance, 0.0, 1.0))


def tabulate_losses(given: FailureProbability, groups: Sequence[str]) -> LossTable:
    """Return the table of a reliability result."""
    names = tuple(groups)
    known, rates, importance = given.group_names, given.rates, given.importance
    lost = float(given.p_flip.mean())
    if set(known) != set(names):
        other = sorted(set(known) ^ set(names))
        raise DataError(
            f"the reliability result is of other evidence groups than the watched decisions ({other[0]!r} is in one of "
            "them only); make one under the same protocol"
        )
    if rates is None:
        raise DataError(
            "the reliability result is of recorded outages, which have no importance per group; make one with rates, "
            "for instance 0.01"
        )
    order = [known.index(name) for name in names]
    known_rows = ~np.isnan(importance)
    if not known_rows.any(axis=0).all():
        unknown = known[int(np.flatnonzero(~known_rows.any(axis=0))[0])]
        raise DataError(
            f"the reliability result says nothing of {unknown!r}, which never fails in it; make one with a rate for "
            "every group, for instance 0.01"
        )
    mean = np.nansum(importance, axis=0) / known_rows.sum(axis=0)
    return LossTable(names, rates[order], lost, mean[order], len(importance), "a reliability table")


def count_single_losses(audit: Audit) -> LossTable | None:
    """Return the table of an audit's certificates; None if they do not say which groups flip a decision alone.

    Margins after the loss of one group tell a flip under the readings that follow the original class, and only full
    certificates hold them.
    """
    if audit.extent != "full" or audit.protocol.reading == "current" or len(audit) == 0:
        return None
    names = audit.protocol.group_names
    flips, rows = np.zeros(len(names)), 0
    for table in audit.batches(["margin", "one_step_drop"]):
        margin = np.asarray(table.column("margin").to_numpy())
        drops = np.asarray(table.column("one_step_drop").combine_chunks().flatten().to_numpy()).reshape(len(table), -1)
        flips += find_single_losses(margin, drops, audit.protocol, len(audit.classes)).sum(axis=0)
        rows += len(table)
        if rows >= MOST_ROWS:
            break
    return LossTable(names, np.zeros(len(names)), 0.0, flips / rows, rows, "the certificates, one group at a time")


# --- figures over time, drawn ---------------------------------------------------------------------------------

TOP, BOTTOM = 34.0, 156.0


def draw_over_time(
    days: Sequence[dt.date], watched: Watched, title: str, alarms: Sequence[Alarm], days_of_reference: int
) -> str:
    """Return one measure day by day: dots, their confidence sequences, the reference, and the measure's alarms."""
    x = _scale_days(days)
    decided = [(day, figure) for day, figure in zip(days, watched.days, strict=True) if figure.decisions]
    values = [figure.value for _, figure in decided]
    bounds = [bound for bound in (watched.lower, watched.upper) if bound == bound and bound < 1.0]
    # The wide band of a day with few decisions must not flatten the line.
    usual = sorted(figure.decisions for _, figure in decided)[len(decided) // 2] / 2
    full = [figure for _, figure in decided if figure.decisions >= usual]
    high = min(1.0, 1.05 * max([*values, *bounds, *(figure.upper for figure in full), 0.001]))
    low = min([*values, *bounds, *(figure.lower for figure in full)])
    low = 0.95 * low if low > high / 2 else 0.0
    y = LinearScale(low, high, BOTTOM, TOP)
    write_tick = "{:g}".format if watched.measure == "exposure" else write_rate
    ticks = [(tick, write_tick(tick)) for tick in drawing.list_ticks(low, high)]
    marks = drawing.draw_value_axis(y, ticks, LEFT, RIGHT)
    ends = [
        [(x(_number(day)), y(min(max(getattr(f, end), low), high))) for day, f in decided] for end in ("upper", "lower")
    ]
    marks.append(drawing.draw_band(*ends))
    if days_of_reference:
        last = x(_number(days[days_of_reference - 1]))
        marks.append(drawing.draw_bar(LEFT, BOTTOM + 2, max(last - LEFT, 3.0), 3, colour=QUIET))
    sides = [watched.upper] if watched.measure in OF_FIELDS else [watched.lower, watched.upper]
    for bound in sides:
        if bound == bound and low <= bound <= high:
            marks.append(drawing.draw_line((LEFT, y(bound)), (RIGHT, y(bound)), colour=QUIET, width=1.4, dashed=True))
    for alarm in alarms:
        place = x(_number(alarm.day))
        marks.append(drawing.draw_line((place, TOP - 4), (place, BOTTOM), colour=FLIP, width=2.0))
        anchor = "end" if place > (LEFT + RIGHT) / 2 else "start"
        marks.append(
            drawing.draw_text(
                (place + (-5 if anchor == "end" else 5), TOP + 6), f"alarm {alarm.day}", anchor=anchor, colour=FLIP_TEXT
            )
        )
    points = [(x(_number(day)), y(figure.value)) for day, figure in decided]
    marks.append(drawing.draw_polyline(points, width=1.6))
    if len(points) <= 62:
        marks += [drawing.draw_dot(point, 2.2) for point in points]
    marks += _draw_dates(days, x)
    marks.append(drawing.draw_text((LEFT, 15), title, bold=True))
    spoken = "; ".join(f"{day}: {write_value(watched.measure, figure.value)}" for day, figure in decided[-14:])
    raised = "".join(f" Alarm on {alarm.day}." for alarm in alarms)
    label = f"{title}, by day; the last days: {spoken}.{raised}"
    return drawing.draw_picture(WIDTH, BOTTOM + 34, label, marks)


def draw_bars(days: Sequence[dt.date], values: Sequence[float], title: str) -> str:
    """Return one bar per day."""
    x = _scale_days(days)
    y = LinearScale(0.0, max([*values, 1e-9]) * 1.08, BOTTOM, TOP)
    ticks = [(tick, write_number(tick)) for tick in drawing.list_ticks(0.0, y.high)]
    span = max((days[-1] - days[0]).days, 1)
    width = max(min(0.8 * (x.end - x.start) / (span + 1), 16.0), 1.0)
    marks = drawing.draw_value_axis(y, ticks, LEFT, RIGHT)
    for day, value in zip(days, values, strict=True):
        marks.append(drawing.draw_bar(x(_number(day)) - width / 2, y(value), width, BOTTOM - y(value), colour=ACCENT))
    marks += _draw_dates(days, x)
    marks.append(drawing.draw_text((LEFT, 15), title, bold=True))
    spoken = "; ".join(f"{day}: {write_number(value)}" for day, value in list(zip(days, values, strict=True))[-14:])
    return drawing.draw_picture(WIDTH, BOTTOM + 34, f"{title}; the last days: {spoken}", marks)


def _scale_days(days: Sequence[dt.date]) -> LinearScale:
    return LinearScale(_number(days[0]), _number(days[-1]), LEFT + 10, RIGHT - 10)


def _draw_dates(days: Sequence[dt.date], x: LinearScale) -> list[str]:
    """Return the first and the last day, and some between, as the labels of the axis."""
    first, last = days[0], days[-1]
    span = (last - first).days
    count = 0 if span == 0 else min(3, span)
    dates = [first + dt.timedelta(days=round(span * step / count)) for step in range(count + 1)] if count else [first]
    marks = []
    for day in dates:
        anchor = "middle" if count == 0 else "start" if day == first else "end" if day == last else "middle"
        place = x(_number(day)) + (-10 if anchor == "start" else 10 if anchor == "end" else 0)
        marks.append(drawing.draw_text((place, BOTTOM + 20), day.isoformat(), anchor=anchor))
    return marks


def _number(day: dt.date) -> float:
    return float(day.toordinal())
