"""What a search for stability intervals found, field by field and row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pandas as pd

from fragility.arrays import Integers
from fragility.errors import DataError
from fragility.evidence.rows import Scalar
from fragility.evidence.stability import STATES, Flip, StabilityInterval, count_room, measure_room
from fragility.models.decision import ClassLabel
from fragility.modes.scales import Scale
from fragility.text import BriefRepr
from fragility.wording import BRACKETED, EXACT

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
