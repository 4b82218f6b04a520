"""What a search for stability intervals found, field by field and row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pandas as pd

from fragility.arrays import Integers
from fragility.errors import DataError
from fragility.evidence.rows import Scalar
from fragility.models.decision import ClassLabel
from fragility.modes.scales import Scale
from fragility.wording import (
    BRACKETED,
    EXACT,
    MISSING,
    NOT_WHOLE,
    UNLISTED,
    describe_flipping_categories,
    describe_stability,
)

if TYPE_CHECKING:
    pass

STATES = (EXACT, BRACKETED, MISSING, NOT_WHOLE, UNLISTED)
BELOW, ABOVE = 0, 1
NOWHERE = -1


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
        ``exact``; ``bracketed``: each end lies between it and the flip beyond, two values that were tried; ``missing``:
        the cell is missing; ``not whole``: a fraction in a field of whole numbers, or a time in one of days;
        ``unlisted``: the protocol knows no values of the field. The last three have no interval.
    low, high : number, str or None
        The ends of the interval, at which the decision holds; None for a nominal field.
    flips_below, flips_above : Flip or None
        The nearest value on each side at which the decision flips; None if there is none in the training range.
    categories : tuple of Flip
        Of a nominal field: the categories that flip the decision.
    nominal : bool
        Whether the field is nominal, so that it has categories and no ends.
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

    @property
    def exact(self) -> bool:
        """Whether the ends are exact: one representable step beyond, the decision flips."""
        return self.state == EXACT

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


@dataclass(frozen=True, eq=False)
class OrderedStability:
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
        own = None if state in (MISSING, NOT_WHOLE) else value(int(self.place[row]))
        if state not in (EXACT, BRACKETED):
            return StabilityInterval(name, own, state)
        below, above = (
            None if to < 0 else Flip(value(int(place)), classes[to])
            for place, to in zip(self.flips[row], self.flips_to[row], strict=True)
        )
        low, high = (value(int(end)) for end in self.ends[row])
        return StabilityInterval(name, own, state, low, high, below, above)


@dataclass(frozen=True, eq=False)
class NominalStability:
    """The categories of one nominal field that flip the decision; n rows, R categories of the catalogue."""

    name: str
    own: npt.NDArray[Any]  # (n,) what the rows hold
    state: Integers  # (n,) number in STATES
    values: tuple[Scalar, ...]  # (R,)
    flips_to: Integers  # (n, R) class index, -1: the decision holds

    def interval(self, row: int, classes: Sequence[ClassLabel]) -> StabilityInterval:
        """Return the categories that flip one row."""
        flips = tuple(Flip(v, classes[to]) for v, to in zip(self.values, self.flips_to[row], strict=True) if to >= 0)
        return StabilityInterval(self.name, self.own[row], STATES[self.state[row]], categories=flips, nominal=True)


@dataclass(frozen=True, eq=False)
class StabilityIntervals:
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
