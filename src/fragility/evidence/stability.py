"""The stability interval of one field of one row: on which of its values the decision holds, and where it flips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fragility.evidence.modes import FailureModes, Range
from fragility.evidence.rows import Scalar
from fragility.models.decision import ClassLabel
from fragility.wording import (
    BRACKETED,
    EXACT,
    MISSING,
    NOT_WHOLE,
    UNLISTED,
    describe_flipping_categories,
    describe_other_fields,
    describe_stability,
)

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


def weigh_values(modes: FailureModes, field: str) -> dict[Scalar, float]:
    """Return the known values of a field in the catalogue, each with its share of their counts."""
    entry = next((entry for entry in modes.catalogue if field in entry.fields), None)
    counts: dict[Scalar, int] = {}
    if entry is not None:
        for values, count in zip(entry.values, entry.counts, strict=True):
            value = values[entry.fields.index(field)]
            if value is not None:
                counts[value] = counts.get(value, 0) + count
    return {value: count / sum(counts.values()) for value, count in counts.items()}


def to_number(value: Scalar) -> float:
    """Return a number, or the seconds of a date since 1970."""
    return pd.Timestamp(value).timestamp() if isinstance(value, str) else float(value or 0.0)
