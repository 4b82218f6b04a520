"""Stability intervals: on which values of one field of one row the decision holds, and where it flips.

A search finds them field by field, for all rows at once; a certificate, a check and a report tell them one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pandas as pd

from fragility.base.arrays import Integers
from fragility.base.errors import DataError
from fragility.base.text import BriefRepr
from fragility.evidence.modes import Range
from fragility.evidence.rows import Scalar
from fragility.models.outputs import ClassLabel
from fragility.pages.terms import BRACKETED, EXACT, MISSING, NOT_WHOLE, UNLISTED
from fragility.pages.wording import describe_flipping_categories, describe_other_fields, describe_stability
from fragility.questions.modes.scales import Scale

SHOWN_INTERVALS = 3  # fields whose stability a story tells
STATES = (EXACT, BRACKETED, MISSING, NOT_WHOLE, UNLISTED)


@dataclass(frozen=True, slots=True)
class Flip:
    """A value of a field at which the decision flips, and the class that is predicted there."""

    value: Scalar
    predicted: ClassLabel


@dataclass(frozen=True, slots=True)
class StabilityInterval:
    """How far one field of one row may move before the decision flips.

    Attributes
    ----------
    field : str
        The raw field.
    value : number, str or None
        What the row holds; dates are ISO text.
    state : str
        ``exact``; ``bracketed``: no value that was tried between the two flips flips the decision, others may;
        ``missing``: the cell is missing; ``not whole``: a fraction in a field of whole numbers, or a time in one of
        days; ``unlisted``: the protocol knows no values of the field. The last three have no interval.
    low, high : number, str or None
        The ends of the interval, at which the decision holds; None for a nominal field.
    flips_below, flips_above : Flip or None
        The nearest value on each side at which the decision flips; None if there is none in the training range.
    categories : tuple of Flip
        Of a nominal field: the categories that flip the decision.
    nominal : bool
        Whether the field is nominal, so that it has categories and no ends.
    room : float
        The share of the field's values on which the decision holds: of the training range, which the interval covers,
        or of the training rows, by their categories in the catalogue. 1 where nothing flips.
    """

    field: str
    value: Scalar
    state: str
    low: Scalar = None
    high: Scalar = None
    flips_below: Flip | None = None
    flips_above: Flip | None = None
    categories: tuple[Flip, ...] = ()
    nominal: bool = False
    room: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether the ends are exact: one representable step beyond, the decision flips."""
        return self.state == EXACT

    @property
    def flips(self) -> bool:
        """Whether a value is known that flips the decision."""
        return bool(self.categories) or self.flips_below is not None or self.flips_above is not None

    def sentence(self) -> str:
        """Return the finding in words.

        Returns
        -------
        str
            Such as ``stable while duration is at most 27 (now 24)``, without its full stop.
        """
        if self.nominal:
            flips = [flip.value for flip in self.categories]
            return describe_flipping_categories(self.field, self.value, self.state, flips)
        below, above = (None if flip is None else flip.value for flip in (self.flips_below, self.flips_above))
        return describe_stability(self.field, self.value, self.state, (self.low, self.high), (below, above))


def describe_intervals(intervals: Sequence[StabilityInterval], most: int = SHOWN_INTERVALS) -> list[str]:
    """Return a sentence for each of the fields that can flip the decision, the least room first, and the others' count.

    most: how many fields to name.
    """
    flipping = sorted((one for one in intervals if one.flips), key=lambda one: one.room)
    told = [one.sentence() for one in flipping[:most]]
    calm = Counter(one.state for one in intervals if not one.flips)
    unknown = calm.total() - calm[EXACT] - calm[BRACKETED]
    return [*told, describe_other_fields(len(flipping) - len(told), calm[EXACT], calm[BRACKETED], unknown)]


def measure_room(own: Range, low: Scalar, high: Scalar) -> float:
    """Return the share of a field's training range that an interval covers."""
    least, most = to_number(own.low), to_number(own.high)
    within = min(to_number(high), most) - max(to_number(low), least)
    return 1.0 if most <= least else min(max(within / (most - least), 0.0), 1.0)


def count_room(weights: Mapping[Scalar, float], flips: Sequence[Flip]) -> float:
    """Return the share of training rows whose category flips nothing; weights: of the categories."""
    return 1.0 - sum(weights.get(flip.value, 0.0) for flip in flips)


def to_number(value: Scalar) -> float:
    """Return a number, or the seconds of a date since 1970."""
    return pd.Timestamp(value).timestamp() if isinstance(value, str) else float(value or 0.0)


# --- all rows and fields ------------------------------------------------------------------------------------------

BELOW, ABOVE = 0, 1
NOWHERE = -1


@dataclass(frozen=True, eq=False, repr=False)
class OrderedStability(BriefRepr):
    """The intervals of one field of numbers or dates; n rows, values as places on the field's scale."""

    scale: Scale
    place: Integers  # (n,) of the rows' own values
    state: Integers  # (n,) number in STATES
    ends: Integers  # (n, 2) low and high
    flips: Integers  # (n, 2) the nearest values that flip, read where ``flips_to`` is a class
    flips_to: Integers  # (n, 2) class index, -1: no value of the training range flips

    def interval(self, row: int, classes: Sequence[ClassLabel]) -> StabilityInterval:
        """Return the interval of one row."""
        name, state, value = self.scale.field.name, STATES[self.state[row]], self.scale.value
        if state not in (EXACT, BRACKETED):
            return StabilityInterval(name, None, state)
        own = value(int(self.place[row]))
        below, above = (
            None if to < 0 else Flip(value(int(place)), classes[to])
            for place, to in zip(self.flips[row], self.flips_to[row], strict=True)
        )
        low, high = (value(int(end)) for end in self.ends[row])
        room = measure_room(self.scale.range, low, high)
        return StabilityInterval(name, own, state, low, high, below, above, room=room)


@dataclass(frozen=True, eq=False, repr=False)
class NominalStability(BriefRepr):
    """The categories of one nominal field that flip the decision; n rows, R categories of the catalogue."""

    name: str
    own: npt.NDArray[Any]  # (n,) what the rows hold
    state: Integers  # (n,) number in STATES
    weights: Mapping[Scalar, float]  # of the R categories, by their counts in training
    flips_to: Integers  # (n, R) class index, -1: the decision holds

    def interval(self, row: int, classes: Sequence[ClassLabel]) -> StabilityInterval:
        """Return the categories that flip one row."""
        flips = tuple(Flip(v, classes[to]) for v, to in zip(self.weights, self.flips_to[row], strict=True) if to >= 0)
        state, room = STATES[self.state[row]], count_room(self.weights, flips)
        return StabilityInterval(self.name, self.own[row], state, categories=flips, nominal=True, room=room)

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The R categories."""
        return tuple(self.weights)


@dataclass(frozen=True, eq=False, repr=False)
class StabilityIntervals(BriefRepr):
    """How far each field of n rows may move before the decision flips.

    Attributes
    ----------
    id : array of shape (n,)
        The ids of the rows.
    predicted : array of shape (n,)
        The index of the class predicted at the row as it stands.
    classes : tuple
        The labels of the classes.
    by_field : dict of str to OrderedStability or NominalStability
        The intervals of each field as arrays; :meth:`interval` reads one of them.
    """

    id: npt.NDArray[Any]
    predicted: Integers
    classes: tuple[ClassLabel, ...]
    by_field: dict[str, OrderedStability | NominalStability]

    def __len__(self) -> int:
        return len(self.id)

    def interval(self, row: int, field: str) -> StabilityInterval:
        """Return what is known of one field of one row.

        Parameters
        ----------
        row : int
            The position of the row.
        field : str
            The raw field.

        Returns
        -------
        StabilityInterval
            Its ends, and where the decision flips.
        """
        if field not in self.by_field:
            raise DataError(f"the fields searched are {', '.join(self.by_field)}, got {field!r}")
        return self.by_field[field].interval(row, self.classes)

    def describe(self, row: int, field: str) -> str:
        """Say what is known of one field of one row, such as ``stable while duration is at most 27 (now 24)``.

        Parameters
        ----------
        row : int
            The position of the row.
        field : str
            The raw field.

        Returns
        -------
        str
            A sentence without its full stop.
        """
        return self.interval(row, field).sentence()

    def to_pandas(self) -> pd.DataFrame:
        """Return the intervals as a table.

        Returns
        -------
        DataFrame
            One row per prediction and field: the interval, and where the decision flips.
        """
        found = []
        for row, own in enumerate(self.id):
            for name in self.by_field:
                one = self.interval(row, name)
                below, above = one.flips_below, one.flips_above
                found.append(
                    {
                        "id": own,
                        "field": name,
                        "value": one.value,
                        "state": one.state,
                        "low": one.low,
                        "high": one.high,
                        "flips_below": None if below is None else below.value,
                        "class_below": None if below is None else below.predicted,
                        "flips_above": None if above is None else above.value,
                        "class_above": None if above is None else above.predicted,
                        "categories": {flip.value: flip.predicted for flip in one.categories} if one.nominal else None,
                    }
                )
        return pd.DataFrame(found, dtype=object)
