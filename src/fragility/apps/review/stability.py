"""How far the values of one case may move: as a page shows it, and searched for when a case is opened.

A field of numbers or days has a slider over its training range, on which the stable part is shaded. Any other field has
a list of its categories, in which those that flip the decision are marked. Where the audit has no stability intervals
of a row, they are found with the model, for one row at a time and no longer than `LONGEST`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from fragility.apps.review.rows import WhatIf
from fragility.apps.review.searching import RowSearch
from fragility.base.errors import FragilityError
from fragility.evidence.modes import Range, weigh_values
from fragility.evidence.replacements import value_text
from fragility.evidence.rows import Scalar
from fragility.pages.wording import BRACKETED, EXACT, describe_turns
from fragility.protocol import Protocol
from fragility.questions.modes.intervals import intervals_of_rows
from fragility.questions.modes.stability import Flip, StabilityInterval

LONGEST = 60.0  # seconds that a search may take
FIRST_DAY = date(1970, 1, 1).toordinal()  # days are counted from there


class SearchTooLongError(FragilityError):
    """A search for stability intervals was given up."""


@dataclass(frozen=True)
class Band:
    """A part of a slider's track, in percent of its length."""

    start: float
    length: float


@dataclass(frozen=True)
class Slider:
    """The values of a field of numbers or days, from left to right; days are counted from 1970."""

    low: float
    high: float
    value: float
    step: str  # 1, or any
    of_days: bool
    stable: Band
    unknown: tuple[Band, ...]  # between a value that holds and the next one that was tried and flips
    turns: tuple[float, ...]  # where it flips, in percent


@dataclass(frozen=True)
class Choice:
    """A category of a nominal field."""

    value: str  # as JSON
    text: str
    flips_to: str | None  # None: the decision holds
    own: bool = False  # what the row has


@dataclass(frozen=True)
class MovableField:
    """A field of a case, and how far its value may move."""

    name: str
    sentence: str
    turns: str  # the classes a number or date flips to, and where; empty if there are none
    flips: bool  # some value flips the decision
    slider: Slider | None = None
    choices: tuple[Choice, ...] = ()


def show_fields(intervals: Iterable[StabilityInterval], protocol: Protocol) -> tuple[MovableField, ...]:
    """Return the fields of a case to move: first those that can flip the decision, the least room first."""
    ranges = {training_range.field: training_range for training_range in protocol.modes.ranges}
    ordered = sorted(intervals, key=lambda one: (not one.flips, one.room if one.flips else 0.0))
    return tuple(_show_field(one, ranges.get(one.field), protocol) for one in ordered)


def _show_field(one: StabilityInterval, training_range: Range | None, protocol: Protocol) -> MovableField:
    if one.nominal:  # its list says where it flips
        return MovableField(one.field, one.sentence(), "", one.flips, choices=_list_choices(one, protocol))
    ends = [flip for flip in (one.flips_below, one.flips_above) if flip is not None]
    turns = describe_turns([(flip.value, flip.predicted) for flip in ends])
    return MovableField(one.field, one.sentence(), turns, one.flips, slider=_make_slider(one, training_range))


def _make_slider(one: StabilityInterval, training_range: Range | None) -> Slider | None:
    """Return the slider of a field of numbers or days; None where there is no interval, or dates have a time."""
    if training_range is None or one.state not in (EXACT, BRACKETED):
        return None
    of_days = isinstance(training_range.low, str)
    if of_days and not training_range.whole:
        return None
    value, first, last, low, high = (
        count(value_of) for value_of in (one.value, training_range.low, training_range.high, one.low, one.high)
    )
    left, right = min(first, value), max(last, value)
    if left == right:
        return None

    def place(number: float) -> float:
        return round(100.0 * (number - left) / (right - left), 3)

    def band(start: float, end: float) -> Band:
        return Band(place(start), round(place(end) - place(start), 3))

    turns = {side: count(flip.value) for side, flip in (("low", one.flips_below), ("high", one.flips_above)) if flip}
    unknown = [band(*sorted((end, turns[side]))) for side, end in (("low", low), ("high", high)) if side in turns]
    return Slider(
        low=left,
        high=right,
        value=value,
        step="1" if training_range.whole else "any",
        of_days=of_days,
        stable=band(low, high),
        unknown=tuple(unknown) if one.state == BRACKETED else (),
        turns=tuple(map(place, turns.values())),
    )


def count(value: Scalar) -> float:
    """Return a number, or the number of a day given as ISO text."""
    if isinstance(value, str):
        return date.fromisoformat(value).toordinal() - FIRST_DAY
    assert value is not None
    return value


def _list_choices(one: StabilityInterval, protocol: Protocol) -> tuple[Choice, ...]:
    """Return what a nominal field may hold: first what the row has, then the categories of the catalogue."""
    if one.state != EXACT:
        return ()
    flips: Mapping[Scalar, Flip] = {flip.value: flip for flip in one.categories}
    choices = [Choice(json.dumps(one.value), value_text(one.value), None, own=True)]
    for value in weigh_values(protocol.modes, one.field):
        if value != one.value:
            flip = flips.get(value)
            choices.append(Choice(json.dumps(value), value_text(value), None if flip is None else str(flip.predicted)))
    return tuple(choices)


# --- on demand ----------------------------------------------------------------------------------------------


class StabilitySearch(RowSearch[tuple[StabilityInterval, ...]]):
    """Finds the stability intervals of rows."""

    def __init__(self, whatif: WhatIf, longest: float = LONGEST) -> None:
        super().__init__()
        self._whatif, self._longest = whatif, longest

    def search(self, place: int) -> tuple[StabilityInterval, ...]:
        """Return the intervals of the row at ``place``."""
        started = time.monotonic()

        def check(_done: int, _total: int) -> None:
            if time.monotonic() - started > self._longest:
                raise SearchTooLongError(
                    f"the search for stability intervals was given up after {self._longest:g} seconds: this model "
                    "answers too slowly; audit with --intervals to have them in the certificates"
                )

        with self._whatif.use(place) as rows:
            started = time.monotonic()  # another search may have had the model before
            intervals = intervals_of_rows(rows, self._whatif.protocol, report=check)
        return tuple(intervals.interval(0, name) for name in intervals.by_field)
