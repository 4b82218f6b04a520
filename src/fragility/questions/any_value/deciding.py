"""What is known of free fields row by row: read from the model where it can be, asked where it cannot.

Every set that is said to flip a row has been asked of the model itself. A row that the model contradicts is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Integers
from fragility.base.canonical import is_missing
from fragility.base.errors import FragilityError, ProtocolError
from fragility.base.ids import id_keys
from fragility.evidence import EvidenceRows
from fragility.evidence.modes import Range, values_frame
from fragility.evidence.rows import Scalar
from fragility.models.outputs import ClassLabel
from fragility.protocol import Protocol
from fragility.questions.any_value.asking import Change, RawAsker
from fragility.questions.any_value.native import (
    DOUBTFUL,
    FLIPS,
    HOLDS,
    OPEN,
    Decided,
    Job,
    ModelReader,
    Native,
    Reading,
)
from fragility.questions.any_value.values import make_ranges
from fragility.questions.modes.intervals import bind_estimator, find_narrow
from fragility.questions.modes.searching import Search

DEFAULT_BUDGET = 200_000  # boxes of trees that are looked at for one set before it is left open
ASKED_AT_ONCE = 65_536  # changed rows that are made at a time
DEFAULT_ASKED = 2_000  # rows that the model is asked about for each row that is not read
ROWS_TOGETHER = 2048


@dataclass(frozen=True, slots=True)
class Witness:
    """Values that flip a decision, as the model itself confirmed on the raw row.

    Attributes
    ----------
    values : dict of str to value
        What the fields become; all others stay as they are.
    predicted : class label
        The class that is predicted then.
    """

    values: dict[str, Scalar]
    predicted: ClassLabel

    def to_text(self) -> str:
        """Return it in words.

        Returns
        -------
        str
            Such as ``duration = 48 and savings = none: bad``.
        """
        changed = " and ".join(f"{name} = {_show(value)}" for name, value in self.values.items())
        return f"{changed}: {self.predicted}"


def _show(value: Scalar) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


class AnyValues:
    """The rows of a search, their fields' domains, and who decides about them; ProtocolError if nothing can be varied.

    narrow: the types of decimals narrower than float64, by field; by default those of the columns.
    by_sets: decide sets of one and two fields as larger ones are, set by set, as a verifier does.
    """

    def __init__(
        self,
        rows: EvidenceRows,
        protocol: Protocol,
        engine: str = "auto",
        byte_budget: int = DEFAULT_BYTE_BUDGET,
        narrow: Mapping[str, str] | None = None,
        *,
        by_sets: bool = False,
    ) -> None:
        self.protocol, self.domains = protocol, protocol.domains
        training = {own.field: own for own in protocol.modes.ranges}
        ranges: dict[str, Range] = make_ranges(self.domains, training, protocol.fields)
        narrow = find_narrow(rows, protocol.fields) if narrow is None else narrow
        self.search = Search(*bind_estimator(rows, protocol), protocol, engine, byte_budget, narrow, ranges)
        self.asker = RawAsker(self.search)
        self.free = [own.field for own in self.domains if not own.fixed]
        self.reading: Reading = ModelReader(self.search, self.domains, by_sets).read()
        self.left = self.reading.asked.copy()  # rows that the model contradicted are added
        if not self.free:
            raise ProtocolError("the protocol declares no values that any field may take, so nothing can be varied")

    @property
    def native(self) -> Native | None:
        """The model as it is read; None if it can only be asked."""
        return self.reading.native

    @cached_property
    def units(self) -> dict[str, tuple[str, ...]]:
        """The free fields of each group that has any."""
        return list_units(self.protocol)

    def is_known(self, fields: Sequence[str]) -> bool:
        """Return whether all of some fields are read."""
        return self.native is not None and all(name in self.native.values for name in fields)

    def group_rows(self, rows: Integers) -> Iterator[Integers]:
        """Yield rows of one decided class, some at a time."""
        for original in np.unique(self.search.original[rows]):
            some = rows[self.search.original[rows] == original]
            for start in range(0, len(some), ROWS_TOGETHER):
                yield some[start : start + ROWS_TOGETHER]

    # --- read -----------------------------------------------------------------------------------------------

    def decide(self, jobs: Sequence[Job], budget: int) -> list[tuple[int, Witness | None]]:
        """Return the state of each row and set of fields that are read, and what flips it as the model confirms.

        A field may keep its own value although that is not one of its pieces; then the sets without it count as well.
        """
        if not jobs:
            return []
        assert self.native is not None
        found: list[Decided] = [Decided(OPEN)] * len(jobs)
        by_class: dict[int, list[int]] = {}
        for i, (row, _) in enumerate(jobs):
            by_class.setdefault(int(self.search.original[row]), []).append(i)
        for places in by_class.values():
            for i, own in zip(places, self.native.decide([jobs[i] for i in places], budget), strict=True):
                found[i] = own
        return self._confirm(jobs, found)

    def _confirm(self, jobs: Sequence[Job], found: Sequence[Decided]) -> list[tuple[int, Witness | None]]:
        """Ask the model about every change: those that flip, and those near the edge."""
        assert self.native is not None
        flat = [(i, change) for i, own in enumerate(found) for change in own.changes]
        residual, to = self.asker.measure([jobs[i][0] for i, _ in flat], [change for _, change in flat])
        flips: dict[int, Witness] = {}
        for (i, change), left, label in zip(flat, residual, to, strict=True):
            if left < 0 and change:
                flips.setdefault(i, Witness(dict(change), self.search.rows.model.classes[label]))
        settled = list[tuple[int, Witness | None]]()
        for i, own in enumerate(found):
            if i in flips:
                settled.append((FLIPS, flips[i]))
            elif own.state == FLIPS:  # the model contradicts what was read
                self.left[jobs[i][0]] = True
                settled.append((OPEN, None))
            elif own.state == DOUBTFUL:
                settled.append((HOLDS if self.native.settled_by_asking else OPEN, None))
            else:
                settled.append((own.state, None))
        return settled

    def lacks_own(self, row: int, name: str) -> bool:
        """Return whether a field's own value in a row is not among the pieces that are read."""
        assert self.native is not None
        own = self.native.values[name]
        return bool(len(own.domain) > 1 and own.own[row] < 0 and self.native.settled_by_asking)

    # --- asked ----------------------------------------------------------------------------------------------

    def try_values(self, name: str) -> list[Scalar]:
        """Return the values of a field that are tried: categories or ends of the domain, the catalogue, and missing."""
        domain = next(own for own in self.domains if own.field == name)
        values: dict[Any, Scalar] = {}
        if domain.categories is not None:
            values = {(type(value), value): value for value in domain.categories}
        elif name in self.search.ranges:
            scale = self.search.make_axis(self.field(name)).scale
            inside = [place for place in self._catalogue_places(name) if scale.low <= place <= scale.high]
            values = {place: scale.value(place) for place in [scale.low, scale.high, *inside]}
        return [*values.values(), *([None] if domain.missing else [])]

    def may_take(self, row: int, name: str, value: Scalar) -> bool:
        """Return whether a value is in the domain of a free field, or the row's own."""
        domain = next((own for own in self.domains if own.field == name), None)
        if domain is None or name not in self.free:
            return False
        own = self.search.frame[name].iloc[row]
        if value is None:
            return domain.missing or is_missing(own)
        try:
            made = values_frame({name: [value]}, self.search.frame)[name]
        except (ValueError, TypeError, OverflowError, FragilityError):  # a text for a number, or no date
            return False
        if not is_missing(own) and bool(made.iloc[0] == own):
            return True
        if domain.categories is not None:
            return (type(value), value) in {(type(one), one) for one in domain.categories}
        if name not in self.search.ranges:
            return False
        scale = self.search.make_axis(self.field(name)).scale
        place, known, fits = scale.places(made)
        return bool(known[0] and fits[0]) and scale.low <= int(place[0]) <= scale.high

    def field(self, name: str) -> Any:
        """Return a field of the protocol."""
        return next(field for field in self.protocol.fields if field.name == name)

    def _catalogue_places(self, name: str) -> list[int]:
        return [int(place) for place in self.search.list_candidates(self.search.make_axis(self.field(name)))]

    @cached_property
    def seeds(self) -> list[int]:
        """By row a seed that follows from its id alone."""
        return [int.from_bytes(key[:8], "little") for key in id_keys(self.search.rows.ids)]

    @cached_property
    def tried(self) -> dict[str, list[Scalar]]:
        """The values of each free field that are tried."""
        return {name: self.try_values(name) for name in self.free}

    def ask_set(
        self, rows: Sequence[int] | Integers, fields: Sequence[str], budget: int
    ) -> tuple[list[Witness | None], int]:
        """Try values of some fields together in each of some rows, at most ``budget`` of them per row.

        Return what flips each row, and how many values were tried of each. All combinations are tried where there are
        so few, else some of them, drawn evenly by the row's id.
        """
        choices = [self.tried[name] for name in fields]
        lengths = [len(own) for own in choices]
        total = math.prod(lengths)
        count = min(total, budget)
        if count < 1:
            return [None] * len(rows), 0
        witnesses: list[Witness | None] = []
        together = max(1, ASKED_AT_ONCE // count)
        for start in range(0, len(rows), together):
            some = [int(row) for row in rows[start : start + together]]
            if total <= budget:
                picks = [np.stack(np.unravel_index(np.arange(total), lengths), axis=1)] * len(some)
            else:
                picks = [self._draw(row, lengths, count) for row in some]
            changes: list[Change] = [
                {name: own[i] for name, own, i in zip(fields, choices, pick, strict=True)}
                for pick in np.concatenate(picks)
            ]
            residual, to = self.asker.measure(np.repeat(some, count), changes)
            for place, flips in enumerate((residual < 0).reshape(len(some), count)):
                first = place * count + int(np.argmax(flips))
                classes = self.search.rows.model.classes
                witnesses.append(Witness(dict(changes[first]), classes[to[first]]) if flips.any() else None)
        return witnesses, count

    def _draw(self, row: int, lengths: Sequence[int], count: int) -> Integers:
        draws = np.random.default_rng([len(lengths), self.seeds[row]])
        return np.stack([draws.integers(0, length, count) for length in lengths], axis=1)


def list_units(protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """Return the free fields of each group that has any; each field by itself where groups share some."""
    free, groups = [own.field for own in protocol.domains if not own.fixed], protocol.evidence.group_fields
    named = [name for fields in groups.values() for name in fields]
    if len(set(named)) < len(named):
        return {name: (name,) for name in free}
    own = {group: tuple(name for name in fields if name in free) for group, fields in groups.items()}
    return {group: fields for group, fields in own.items() if fields}
