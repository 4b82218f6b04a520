"""Findings: alarms, figures day by day and expected losses, and how they are said."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from fragility.apps.watching.events import OF_FIELDS, STATES, WatchedMeasure
from fragility.apps.watching.following import Direction
from fragility.base.text import escape_controls
from fragility.pages.wording import write_count

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
        if self.measure in OF_FIELDS:
            return f"{self.name} {MEASURES[self.measure]}"
        return f"{MEASURES[self.measure]} {self.name}" if self.name is not None else MEASURES[self.measure]

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
    """Return a share with two significant digits where it is small."""
    if math.isnan(value):
        return "none"
    return "0%" if value == 0 else f"{100 * value:.2g}%" if abs(value) < 0.0995 else f"{value:.0%}"


def write_value(measure: str, value: float) -> str:
    """Return a value of a measure: a share, or a mean exposure."""
    return write_number(value) if measure == "exposure" else write_rate(value)
