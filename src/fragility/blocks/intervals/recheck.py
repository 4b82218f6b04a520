"""The intervals block, recomputed.

Three questions are put for each row with a block. The first two are put to the model itself, about raw rows in which
one field has another value and all others, missing ones too, are as they were; what is known of its preprocessing is
left aside, so that an error in it shows:

1. does the decision hold at both ends of every interval, and flip at the values beyond, to the classes named? Does it
   hold at random values inside an exact one, which nobody can foresee?
2. does it hold at every value of the catalogue inside the interval, and flip at exactly the categories named?
3. is this the whole interval? It is searched again as the block declares. Where the engine is not available, the model
   is asked at every value of fields that have few; an interval that this cannot settle is counted as not searched.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers
from fragility.blocks.block import BlockRecheck
from fragility.blocks.checks import Difference
from fragility.blocks.claims import Claims
from fragility.blocks.intervals.making import search_intervals, write_intervals
from fragility.blocks.intervals.values import IntervalsClaims, IntervalsDeclaration, intervals_claims_of, write_json
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import never_reads, refusal
from fragility.evidence import EvidenceRows
from fragility.evidence.modes import values_frame
from fragility.evidence.origins import Origin
from fragility.pages.terms import BRACKETED, EXACT
from fragility.pages.wording import write_count
from fragility.protocol import Protocol
from fragility.questions.modes.intervals import bind_estimator, choose_fields, search_fields
from fragility.questions.modes.searching import EXACT_ENGINES, Axis, Question, Search
from fragility.questions.modes.stability import NominalStability, StabilityIntervals, to_number

DRAWN_VALUES = 4  # inside each exact interval
ASKED_VALUES = 1024  # of a field: at most so many are asked one by one where an engine is not available
SIDES = (("low", "below", -1), ("high", "above", 1))
ENDS = tuple(end for end, _, _ in SIDES)


@dataclass(eq=False)
class IntervalsRecheck(BlockRecheck):
    """The intervals block of rows, searched again."""

    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        protocol, declared = self.own.protocol, self.own.declared
        assert isinstance(declared, IntervalsDeclaration)
        claimed = intervals_claims_of(block, declared)
        search = make_raw_search(rows, protocol, declared.narrow)
        found = search_fields(search, choose_fields(protocol, declared.fields))
        asked = write_intervals(rows, found)
        questions = Questions(search, claimed, self.tolerance, self.own.classes)
        disputed = questions.ask_ends() + questions.ask_inside() + _find_inner_flips(claimed, asked)
        handed, _ = bind_estimator(rows, protocol)
        self.never = self.never or never_reads(declared.engine, handed)
        unread = self.never or refusal(declared.engine, handed)
        if declared.engine not in EXACT_ENGINES:  # then no end is exact, and the model has just said all there is
            return disputed + questions.compare(asked, np.ones(claimed.state.shape, dtype=bool))
        if unread is None:
            fresh = write_intervals(rows, search_intervals(rows, protocol, declared))
            return disputed + questions.compare(fresh, np.ones(claimed.state.shape, dtype=bool))
        self.unread = unread
        settled, compared = _ask_every_value(search, found, claimed, declared)
        self.unsearched += int((~compared).any(axis=1).sum())
        return disputed + questions.compare(write_intervals(rows, settled), compared)

    def describe(self) -> str:
        rows, missed = write_count(self.rows, "row"), write_count(self.unsearched, "row")
        told = f"{rows} searched again and the model asked at every end and inside, {self.result}"
        verb = "was" if self.unsearched == 1 else "were"
        return told + (f"; {missed} {verb} not searched again: {self.unread}" if self.unsearched else "")


def make_raw_search(rows: EvidenceRows, protocol: Protocol, narrow: Mapping[str, str]) -> Search:
    """Return a search that asks the whole pipeline about raw rows: any column may come from any field."""
    anywhere = Origin(tuple(field.name for field in protocol.fields), rising=False)
    return Search(rows, [anywhere] * rows.width, protocol, BLACKBOX, DEFAULT_BYTE_BUDGET, narrow)


def _find_inner_flips(claimed: IntervalsClaims, asked: IntervalsClaims) -> list[Difference]:
    """Return the intervals within which the model flips at a value of the catalogue."""
    differences = []
    for end, beyond, way in SIDES:
        ends, flips = _numbers(getattr(claimed, end)), _numbers(getattr(asked, beyond))
        with np.errstate(invalid="ignore"):
            inside = way * (ends - flips) >= 0  # False where either is absent
        for row, place in np.argwhere(inside):
            stated, found = getattr(claimed, end)[row, place], getattr(asked, beyond)[row, place]
            field = f"interval_{end} of {claimed.fields[place]}"
            differences.append(Difference(claimed.ids[row], field, stated, f"flips at {json.loads(found)[0]}"))
    return differences


def _numbers(texts: Any) -> Floats:
    """Return the numbers of texts (n, F), those of the values where these are flips; NaN for none."""
    known: dict[str | None, float] = {None: np.nan}
    for text in set(texts.ravel().tolist()) - {None}:
        content = json.loads(text)
        known[text] = to_number(content[0] if isinstance(content, list) else content)
    return np.array([known[text] for text in texts.ravel().tolist()]).reshape(texts.shape)


def _ask_every_value(
    search: Search, found: StabilityIntervals, claimed: IntervalsClaims, declared: IntervalsDeclaration
) -> tuple[StabilityIntervals, Booleans]:
    """Return intervals that the model alone settles, and (n, F) which of the claimed ones they settle."""
    by_field, compared = dict(found.by_field), np.ones(claimed.state.shape, dtype=bool)
    for place, field in enumerate(choose_fields(search.protocol, declared.fields)):
        if isinstance(found.by_field[field.name], NominalStability):
            continue
        axis, state = search.make_axis(field), claimed.state[:, place]
        own, scale = axis.places.place, axis.scale
        few = scale.range.whole and scale.high - scale.low < ASKED_VALUES
        settled = axis.places.fits & few & (own >= scale.low) & (own <= scale.high) & (state == EXACT)
        compared[:, place] = settled | ~np.isin(state.astype(str), (EXACT, BRACKETED)) | ~axis.places.fits
        if settled.any():
            by_field[field.name] = search.try_every_value(axis)
    return StabilityIntervals(found.id, found.predicted, found.classes, by_field), compared


class Questions:
    """Claimed intervals, and the rows and the model that they are put to."""

    def __init__(self, search: Search, claimed: IntervalsClaims, tolerance: float, classes: Sequence[Any]) -> None:
        self.search, self.claimed, self.tolerance, self.classes = search, claimed, tolerance, classes
        by_name = {field.name: field for field in search.protocol.fields}
        self.axes = [search.make_axis(by_name[name]) for name in claimed.fields]

    def ask_ends(self) -> list[Difference]:
        """Return the ends at which the decision does not hold, and the flips that are none, or to another class."""
        names = [name for end, beyond, _ in SIDES for name in (end, beyond)]
        parts = list[list[tuple[str, Integers]]]()  # of each axis: the rows that have such a value
        questions = list[Question]()
        for place, axis in enumerate(self.axes):
            texts = {name: getattr(self.claimed, name)[:, place] for name in names}
            parts.append([(name, np.flatnonzero(texts[name] != None)) for name in names])  # noqa: E711
            who = np.concatenate([rows for _, rows in parts[-1]])
            questions.append(self._question(axis, who, np.concatenate([texts[name][rows] for name, rows in parts[-1]])))
        differences = []
        for place, (residual, to) in enumerate(self._ask(questions)):
            start = 0
            for name, rows in parts[place]:
                stop = start + len(rows)
                for row, r, label in zip(rows, residual[start:stop], to[start:stop], strict=True):
                    stated = str(getattr(self.claimed, name)[row, place])
                    if (told := self._dispute(name, stated, r, label)) is not None:
                        field = f"interval_{name} of {self.claimed.fields[place]}"
                        differences.append(Difference(self.claimed.ids[row], field, stated, told))
                start = stop
        return differences

    def _dispute(self, name: str, stated: str, residual: float, label: int) -> str | None:
        """Return what the model says of an end, or of a flip beyond one, if that differs from the claim."""
        if name in ENDS:
            return f"flips to {self.classes[label]!r}" if residual < -self.tolerance else None
        if residual >= self.tolerance:
            return "holds"
        same = write_json(json.loads(stated)[1]) == write_json(self.classes[label])
        return None if same else f"flips to {self.classes[label]!r}"

    def ask_inside(self) -> list[Difference]:
        """Return the exact intervals within which the decision flips at one of a few random values."""
        chance, probed = np.random.default_rng(secrets.randbits(128)), list[tuple[int, Integers, Integers]]()
        for place, axis in enumerate(self.axes):
            exact = (self.claimed.state[:, place] == EXACT) & (self.claimed.low[:, place] != None)  # noqa: E711
            who = np.flatnonzero(exact)
            if not len(who):
                continue
            ends = np.stack([self._places(axis, getattr(self.claimed, end)[who, place]) for end in ENDS])
            probes = np.concatenate(list(axis.scale.draw(ends[0], ends[1], DRAWN_VALUES, chance)))
            probed.append((place, np.tile(who, DRAWN_VALUES), probes))
        questions = [self.search.question(self.axes[place], who, probes) for place, who, probes in probed]
        differences = list[Difference]()
        for (place, who, probes), (residual, _) in zip(probed, self._ask(questions), strict=True):
            for i in np.flatnonzero(residual < -self.tolerance):
                low, high = (getattr(self.claimed, end)[who[i], place] for end in ENDS)
                told = f"flips at {self.axes[place].scale.value(int(probes[i]))}"
                field = f"interval of {self.claimed.fields[place]}"
                differences.append(Difference(self.claimed.ids[who[i]], field, f"{low} to {high}", told))
        return differences

    def _places(self, axis: Axis, texts: Any) -> Integers:
        values = [json.loads(text) for text in texts]
        return axis.scale.places(values_frame({axis.field.name: values}, self.search.frame)[axis.field.name]).place

    def _question(self, axis: Axis, who: Integers, texts: Any) -> Question:
        """Return the question about rows ``who`` where the field takes the value of a text."""
        distinct = list(dict.fromkeys(texts.tolist()))
        values = [json.loads(text) for text in distinct]
        plain = [value[0] if isinstance(value, list) else value for value in values]
        number = {text: i for i, text in enumerate(distinct)}
        which = np.array([number[text] for text in texts], dtype=np.int64)
        column = values_frame({axis.field.name: plain}, self.search.frame)[axis.field.name] if plain else pd.Series([])
        return Question(axis.field.name, axis.columns, who, column, which)

    def _ask(self, questions: Sequence[Question]) -> list[tuple[Floats, Integers]]:
        """Return the (residual, class) of the rows of each question."""
        answers = zip(questions, self.search.ask_together(questions), strict=True)
        return [self.search.measure(p, self.search.original[asked.who]) for asked, p in answers]

    def compare(self, fresh: IntervalsClaims, compared: Booleans) -> list[Difference]:
        """Return the claims that differ from recomputed ones, but for rounding at an end."""
        differences = []
        stated, found = self.claimed.texts(), fresh.texts()
        differs = {name: (stated[name] != found[name]) & compared for name in stated}
        for place, axis in enumerate(self.axes):
            for end, beyond, way in SIDES:
                rows = np.flatnonzero(differs[end][:, place] | differs[beyond][:, place])
                tied = rows[[self._is_tie(axis, int(row), place, fresh, (end, beyond, way)) for row in rows]]
                differs[end][tied, place] = differs[beyond][tied, place] = False
        for name, where in differs.items():
            for row, place in np.argwhere(where):
                field = f"interval_{name} of {self.claimed.fields[place]}"
                own = self.claimed.ids[row]
                differences.append(Difference(own, field, stated[name][row, place], found[name][row, place]))
        return differences

    def _is_tie(self, axis: Axis, row: int, place: int, fresh: IntervalsClaims, side: tuple[str, str, int]) -> bool:
        """Return whether an end differs by rounding alone: at the nearer of the two flips the margin is at the limit.

        The claimed end must be the last value before its flip.
        """
        end, beyond, way = side
        texts = [getattr(claims, beyond)[row, place] for claims in (self.claimed, fresh)]
        if None in texts or self.claimed.state[row, place] != fresh.state[row, place]:
            return False
        nearer = min(texts, key=lambda text: way * to_number(json.loads(text)[0]))
        ((residual, _),) = self._ask([self._question(axis, np.array([row]), np.array([nearer], dtype=object))])
        values = [json.loads(getattr(self.claimed, end)[row, place]), json.loads(texts[0])[0]]
        places = axis.scale.places(values_frame({axis.field.name: values}, self.search.frame)[axis.field.name]).place
        last = places[1] - way
        if self.claimed.state[row, place] == BRACKETED:
            tried = np.append(self.search.list_candidates(axis), axis.places.place[row])
            last = way * int((way * tried[way * tried < way * places[1]]).max())
        return bool(abs(residual[0]) <= self.tolerance and places[0] == last)
