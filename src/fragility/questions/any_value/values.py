"""The values that fields may take, cut into pieces on which a model decides alike.

A field of numbers or dates is cut where a test of the trees turns; its missing value is a piece of its own. A nominal
field's categories are its pieces. A linear model needs only the values at which its sums are least and largest: both
ends of a field that moves one column one way, and otherwise every value.

A field may keep its own value or take any of its domain. A row's own value beyond the domain is a piece that no other
row may take.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.canonical import is_missing
from fragility.base.errors import FragilityError
from fragility.evidence.domains import Domain, range_of
from fragility.evidence.fields import Field, date_text
from fragility.evidence.modes import is_ordered, values_frame, weigh_values
from fragility.evidence.rows import Scalar
from fragility.models.outputs import to_python
from fragility.questions.modes.scales import Scale
from fragility.questions.modes.searching import MOST_VALUES, Axis, Search, find_edges

if TYPE_CHECKING:
    from fragility.engines.trees.pieces import ForestPieces

NO_PIECE = -1


@dataclass(frozen=True, eq=False)
class FieldValues:
    """The values of one field in P pieces, for n rows."""

    field: Field
    columns: Integers  # of the estimator's input that come from it
    domain: Booleans  # (P,) the piece holds a value of the domain
    own: Integers  # (n,) the piece of each row's own value; NO_PIECE where it is in none
    weights: dict[int, float]  # of pieces with values of the catalogue that are in the domain; they sum to 1, or none
    cells: Floats  # (P, d) at a value of each piece

    def value(self, row: int, piece: int) -> Scalar:
        """Return a value of a piece, as near to the row's own as may be, and if possible one of the catalogue."""
        raise NotImplementedError

    def choose_piece(self, row: int, begin: int, end: int) -> int:
        """Return the piece to show among those that the field may take: the row's own, or the most frequent."""
        own = int(self.own[row])
        if begin <= own < end:
            return own
        allowed = begin + np.flatnonzero(self.domain[begin:end])
        return int(max(allowed, key=lambda piece: (self.weights.get(int(piece), 0.0), -abs(int(piece) - own))))


@dataclass(frozen=True, eq=False)
class OrderedValues(FieldValues):
    """A field of numbers or dates."""

    axis: Axis
    first: Integers  # the first place of each piece but the lowest; beyond them a piece for missing, if there is one
    listed: dict[int, int]  # place: piece, of values of the catalogue

    def value(self, row: int, piece: int) -> Scalar:
        if piece > len(self.first):
            return None
        scale, places = self.axis.scale, self.axis.places
        own = int(places.place[row]) if places.fits[row] else (scale.low + scale.high) // 2
        if places.fits[row] and piece == self.own[row]:
            return scale.value(own)
        low = scale.low if piece == 0 else max(int(self.first[piece - 1]), scale.low)
        high = scale.high if piece == len(self.first) else min(int(self.first[piece]) - 1, scale.high)
        known = [place for place, where in self.listed.items() if where == piece]
        return scale.value(min(known, key=lambda place: abs(place - own)) if known else min(max(own, low), high))


@dataclass(frozen=True, eq=False)
class NominalValues(FieldValues):
    """A field of categories, or of numbers each of which is a piece."""

    listed: tuple[Scalar, ...]  # (P,)

    def choose_piece(self, row: int, begin: int, end: int) -> int:
        own = int(self.own[row])
        if begin <= own < end:
            return own
        allowed = begin + np.flatnonzero(self.domain[begin:end])
        return int(max(allowed, key=lambda piece: (self.weights.get(int(piece), 0.0), -int(piece))))

    def value(self, row: int, piece: int) -> Scalar:
        return self.listed[piece]


class ValueReader:
    """What cuts the fields of some rows; fields that cannot be cut are left out."""

    def __init__(self, search: Search, domains: Sequence[Domain], forest: ForestPieces | None, linear: bool) -> None:
        self.search, self.frame, self.forest, self.linear = search, search.frame, forest, linear
        fields = {field.name: field for field in search.protocol.fields}
        self.domains = {own.field: own for own in domains if not own.fixed}
        self.fields = [fields[name] for name in self.domains]
        self.columns = {
            name: np.array([j for j, origin in enumerate(search.origins) if name in origin.fields], dtype=np.int64)
            for name in self.domains
        }

    def owns_columns(self, field: Field) -> bool:
        """Return whether each column that comes from a field comes from no other one."""
        return all(self.search.origins[j].fields == (field.name,) for j in self.columns[field.name])

    def read(self) -> dict[str, FieldValues]:
        """Return the fields whose pieces are known."""
        if self.forest is None and not self.linear:
            return {}
        known = [field for field in self.fields if self.owns_columns(field)]
        missing = self._encode_missing(known)
        ordered = [field for field in known if is_ordered(field) and field.name in self.search.ranges]
        found: dict[str, FieldValues] = self._cut_ordered(ordered, missing)
        rest = [field for field in known if field.name not in found]
        return {**found, **self._list_values(rest, missing)}

    # --- missing values -------------------------------------------------------------------------------------

    def _encode_missing(self, fields: Sequence[Field]) -> dict[str, Floats]:
        """Return the cells (d,) of each field that may be missing, or is in a row; a field may fail to be encoded."""
        wanted = [f.name for f in fields if self.domains[f.name].missing or self.frame[f.name].isna().any()]
        if not wanted:
            return {}
        try:
            cells = self.search.encode({name: self._typed(name, [None]) for name in wanted})
        except (FragilityError, KeyError, ValueError):
            return {}
        return {name: cells[0] for name in wanted if self._can_be_missing(name, cells[0])}

    def _can_be_missing(self, name: str, cells: Floats) -> bool:
        """Return whether cells are those of a missing value: a column of categories may have no place for one."""
        forms = self.search.rows.forms
        places = [j for j in self.columns[name] if forms is not None and forms[j].values is not None]
        return not np.isnan(cells[places]).any()

    def _typed(self, name: str, values: Sequence[Scalar]) -> pd.Series:
        """Return values in the type of a field's column."""
        return values_frame({name: list(values)}, self.frame)[name]

    def _lacks_missing(self, name: str, missing: dict[str, Floats]) -> bool:
        """Return whether a field may be missing and it is not known what the model then reads."""
        return name not in missing and (self.domains[name].missing or bool(self.frame[name].isna().any()))

    # --- ordered fields -------------------------------------------------------------------------------------

    def _cut_ordered(self, fields: Sequence[Field], missing: dict[str, Floats]) -> dict[str, FieldValues]:
        axes = [self.search.make_axis(field) for field in fields if not self._lacks_missing(field.name, missing)]
        few = {axis.field.name: axis for axis in axes if axis.rising or self._is_short(axis.scale)}
        if self.linear:
            lines = self.search.encode_together({name: (axis, self._find_points(axis)) for name, axis in few.items()})
            return {
                name: self._make_points(few[name], *line, missing.get(name))
                for name, line in lines.items()
                if line is not None
            }
        edges = self.search.encode_together({name: (axis, self._find_edges(axis)) for name, axis in few.items()})
        first = {name: own for name, own in edges.items() if own is not None}
        # a value of each piece: its first, but of the lowest its last
        shown = {
            name: np.concatenate([own[:1] - 1, own]) if len(own) else np.array([few[name].scale.low])
            for name, own in first.items()
        }
        cells = self.search.encode_together({name: (few[name], _send_once(shown[name])) for name in first})
        return {name: self._make_ordered(few[name], own, cells[name], missing.get(name)) for name, own in first.items()}

    @staticmethod
    def _is_short(scale: Scale) -> bool:
        return scale.range.whole and scale.high - scale.low < MOST_VALUES

    def _find_edges(self, axis: Axis) -> Generator[Integers, Floats, Integers | None]:
        assert self.forest is not None
        return (yield from find_edges(self.forest, axis))

    def _find_points(self, axis: Axis) -> Generator[Integers, Floats, tuple[Integers, Floats] | None]:
        """Return the places that suffice for a sum, and their cells: both ends and the catalogue's, or all values."""
        scale = axis.scale
        ends = yield np.array([scale.low, scale.high])
        if axis.rising and (ends[0, axis.columns] != ends[1, axis.columns]).sum() <= 1:
            places = np.unique([scale.low, scale.high, *self._weigh_places(axis)])
        elif self._is_short(scale):
            places = np.arange(scale.low, scale.high + 1)
        else:
            return None
        return places, (yield places)

    def _make_points(self, axis: Axis, places: Integers, cells: Floats, missing: Floats | None) -> FieldValues:
        name, place = axis.field.name, {int(place): i for i, place in enumerate(places)}
        domain, values, weights = np.ones(len(places), dtype=bool), axis.scale.values(places), dict[int, float]()
        for own, weight in self._weigh_places(axis).items():
            weights[place[own]] = weight
        if missing is not None:
            domain, values = np.append(domain, self.domains[name].missing), [*values, None]
            cells = np.concatenate([cells, missing[None]])
        nowhere = np.full(len(self.frame), NO_PIECE)
        return NominalValues(
            axis.field, axis.columns, domain, nowhere, _normalise(weights), cells, listed=tuple(values)
        )

    def _weigh_places(self, axis: Axis) -> dict[int, float]:
        """Return the places of the catalogue's values that are in the domain, with their weights."""
        scale, weights = axis.scale, weigh_values(self.search.protocol.modes, axis.field.name)
        found: dict[int, float] = {}
        if weights:
            known = scale.places(self._typed(axis.field.name, list(weights)))
            for place, fits, weight in zip(known.place, known.fits, weights.values(), strict=True):
                if fits and scale.low <= place <= scale.high:
                    found[int(place)] = found.get(int(place), 0.0) + weight
        return found

    def _make_ordered(self, axis: Axis, first: Integers, cells: Floats, missing: Floats | None) -> FieldValues:
        scale, places, name = axis.scale, axis.places, axis.field.name
        domain = np.zeros(len(first) + 1, dtype=bool)
        lowest, highest = (int(np.searchsorted(first, end, side="right")) for end in (scale.low, scale.high))
        domain[lowest : highest + 1] = True
        own = np.where(places.fits, np.searchsorted(first, places.place, side="right"), NO_PIECE)
        if axis.listed is not None:
            own[(places.place < scale.low) | (places.place > scale.high)] = NO_PIECE
        if missing is not None:
            own[~places.known] = len(domain)
            domain = np.append(domain, self.domains[name].missing)
            cells = np.concatenate([cells, missing[None]])
        listed, weights = dict[int, int](), dict[int, float]()
        for place, weight in self._weigh_places(axis).items():
            listed[place] = int(np.searchsorted(first, place, side="right"))
            weights[listed[place]] = weights.get(listed[place], 0.0) + weight
        return OrderedValues(
            axis.field, axis.columns, domain, own, _normalise(weights), cells, axis=axis, first=first, listed=listed
        )

    # --- nominal fields -------------------------------------------------------------------------------------

    def _list_values(self, fields: Sequence[Field], missing: dict[str, Floats]) -> dict[str, FieldValues]:
        """Return fields whose values are looked at one by one."""
        found: dict[str, FieldValues] = {}
        for field in fields:
            values = self.list_domain(field)
            if values is None or self._lacks_missing(field.name, missing):
                continue
            made = self._make_listed(field, values, missing.get(field.name))
            if made is not None:
                found[field.name] = made
        return found

    def list_domain(self, field: Field) -> list[Scalar] | None:
        """Return the values of a domain one by one, without a missing one; None if there are too many."""
        domain = self.domains[field.name]
        if domain.categories is not None:
            return list(domain.categories)
        if field.name not in self.search.ranges:
            return None
        scale = self.search.make_axis(field).scale
        return scale.values(np.arange(scale.low, scale.high + 1)) if self._is_short(scale) else None

    def _make_listed(self, field: Field, values: list[Scalar], missing: Floats | None) -> FieldValues | None:
        own_values = [_plain(value, field) for value in self.frame[field.name]]
        pieces = {_key(value): (value, True) for value in values}
        for value in own_values:
            if value is not None:
                pieces.setdefault(_key(value), (value, False))
        known = [value for value, _ in pieces.values()]
        try:
            cells = self.search.encode({field.name: self._typed(field.name, known)})
        except (FragilityError, KeyError, ValueError, TypeError):
            return None
        if self.forest is not None and self.forest.recoding.find_unlisted(cells).any():
            return None  # the model may read a category otherwise
        place = {key: i for i, key in enumerate(pieces)}
        domain = np.array([within for _, within in pieces.values()], dtype=bool)
        if missing is not None:
            domain, known = np.append(domain, self.domains[field.name].missing), [*known, None]
            cells = np.concatenate([cells, missing[None]])
        own = np.array([len(place) if value is None else place[_key(value)] for value in own_values], dtype=np.int64)
        weights: dict[int, float] = {}
        for value, weight in weigh_values(self.search.protocol.modes, field.name).items():
            piece = place.get(_key(value))
            if piece is not None and domain[piece]:
                weights[piece] = weights.get(piece, 0.0) + weight
        columns = self.columns[field.name]
        return NominalValues(field, columns, domain, own, _normalise(weights), cells, listed=tuple(known))


def make_ranges(domains: Sequence[Domain], search_ranges: dict[str, Any], fields: Sequence[Field]) -> dict[str, Any]:
    """Return the values of each domain of numbers or dates as a range."""
    by_name = {field.name: field for field in fields}
    found = {}
    for own in domains:
        if not own.fixed and is_ordered(by_name[own.field]):
            made = range_of(own, search_ranges, by_name[own.field])
            if made is not None:
                found[own.field] = made
    return found


def _send_once(places: Integers) -> Generator[Integers, Floats, Floats]:
    return (yield places)


def _normalise(weights: dict[int, float]) -> dict[int, float]:
    total = sum(weights.values())
    return {piece: weight / total for piece, weight in weights.items()}


def _plain(value: Any, field: Field) -> Scalar:
    """Return a cell as a protocol holds it."""
    if is_missing(value):
        return None
    return date_text(value) if field.type == "date" else to_python(value)


def _key(value: Scalar) -> tuple[bool, Any]:
    return isinstance(value, bool), value
