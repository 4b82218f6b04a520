"""Searches about one case with the audited model, each in a background thread.

**How far its values may move.** A field of numbers or days has a slider over its training range, on which the stable
part is shaded. Any other field has a list of its categories, in which those that flip the decision are marked. Where
the audit has no stability intervals of a row, they are searched for, for one row at a time and no longer than
`LONGEST`.

**What its missing fields would have changed.** The audited model decided on the row with its gaps, in whatever way it
fills them. P_change is the probability that the same model would have decided differently, had it known the values:
over those that the protocol lists for the fields.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillSearching
from dataclasses import dataclass
from datetime import date
from typing import Generic, TypeVar

from fragility.apps.review.rows import WhatIf
from fragility.base.errors import FragilityError
from fragility.deciding.changing import ValueCells, find_changes
from fragility.engines.oracle import ModelOracle
from fragility.evidence.agreement import original_class
from fragility.evidence.modes import Range, weigh_values
from fragility.evidence.replacements import value_text
from fragility.evidence.rows import Scalar
from fragility.pages.terms import BRACKETED, EXACT
from fragility.pages.wording import describe_acquire, describe_change, describe_turns, make_sentence
from fragility.protocol import Protocol
from fragility.questions.modes.intervals import intervals_of_rows
from fragility.questions.modes.stability import Flip, StabilityInterval

KEPT = 64  # rows searched lately

Found = TypeVar("Found")


class RowSearch(ABC, Generic[Found]):
    """Finds something about rows, once for each of those asked for lately."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, Future[Found]] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def search(self, place: int) -> Found:
        """Compute the result for the row at ``place``."""

    def find(self, place: int, patience: float) -> Found | None:
        """Return the result for the row at ``place``; None if it is not ready within ``patience`` seconds."""
        with self._lock:
            future = self._found.get(place)
            if future is None or (future.done() and future.exception() is not None):  # tried again
                future = self._found[place] = Future()
                # A daemon: the first search of a machine compiles, and the end of the workbench does not wait for it.
                threading.Thread(target=self._run, args=(place, future), daemon=True).start()
            self._found.move_to_end(place)
            while len(self._found) > KEPT:
                self._found.popitem(last=False)
        try:
            return future.result(timeout=patience)
        except StillSearching:
            if future.done():
                raise
            return None

    def _run(self, place: int, future: Future[Found]) -> None:
        try:
            future.set_result(self.search(place))
        except BaseException as error:  # raised in the thread that waits
            future.set_exception(error)


# --- how far values may move ----------------------------------------------------------------------------------

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
    turns: tuple[float, ...]  # positions at which it flips, in percent


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
    if one.nominal:  # its list names the flipping categories
        return MovableField(one.field, one.sentence(), "", one.flips, choices=_list_choices(one, protocol))
    ends = [flip for flip in (one.flips_below, one.flips_above) if flip is not None]
    turns = describe_turns([(flip.value, flip.predicted) for flip in ends])
    return MovableField(one.field, one.sentence(), turns, one.flips, slider=_make_slider(one, training_range))


def _make_slider(one: StabilityInterval, training_range: Range | None) -> Slider | None:
    """Return the slider of a field of numbers or days; None if there is no interval, or if dates have a time."""
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
                    "answers too slowly; audit with --intervals all to have them in the certificates"
                )

        with self._whatif.use(place) as rows:
            started = time.monotonic()  # another search may have had the model before
            intervals = intervals_of_rows(rows, self._whatif.protocol, report=check)
        return tuple(intervals.interval(0, name) for name in intervals.by_field)


# --- missing fields -------------------------------------------------------------------------------------------

LIKELY = 0.5  # from here on another decision is likelier than this one


@dataclass(frozen=True)
class MissingFields:
    """Whether knowing the missing fields of a case would change its decision, to read."""

    fields: tuple[str, ...]
    sentence: str
    exact: bool  # all values that the protocol lists were tried, not draws of them
    likely: bool  # more likely than not it would
    changes_to: str | None  # the class it would most likely change to; None if no value changes it
    advice: str  # which field to fetch first; empty if there is no choice, or none helps
    reductions: tuple[tuple[str, float], ...]  # of several fields: how far the probability is expected to fall by each


class ChangeSearch(RowSearch[MissingFields]):
    """Finds what knowing the missing fields of rows would change."""

    def __init__(self, whatif: WhatIf) -> None:
        super().__init__()
        self._whatif = whatif

    def search(self, place: int) -> MissingFields:
        """Return what knowing the missing fields of the row at ``place`` would change; it has some."""
        protocol, names = self._whatif.protocol, self._whatif.rows.missing(place)
        with self._whatif.use(place) as rows:
            decided = original_class(rows, rows.own_probabilities(0, rows.dense()), protocol.resolution)
            (change,) = find_changes(ModelOracle(rows), protocol, decided, [names], ValueCells.of(rows, protocol))
        assert change is not None
        to = None if change.changes_to is None else rows.model.classes[change.changes_to]
        interval = None if change.exact else (change.low, change.high)
        several = len(names) > 1
        advised = several and change.acquire[0][1] > 0.0
        return MissingFields(
            fields=names,
            sentence=make_sentence(describe_change(names, change.probability, interval, to)),
            exact=change.exact,
            likely=change.probability > LIKELY,
            changes_to=None if to is None else str(to),
            advice=make_sentence(describe_acquire(*change.acquire[0], change.probability)) if advised else "",
            reductions=change.acquire if several else (),
        )
