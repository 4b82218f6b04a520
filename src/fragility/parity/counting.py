"""Counts of a comparison, which grow state by state and depend on no order, and the examples found so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.evidence.binding import RawLayout
from fragility.parity.result import CLEAN, KINDS, Gaps, KindParity, Reveal

BINS_PER_DECADE = 40  # neighbouring edges differ by 6%
SMALLEST_EDGE = -18  # decades; whatever is smaller lies in the first bin
BINS = BINS_PER_DECADE * 21
MOST_REASONS = 3
SEVERAL = ("outage", "path", "faded")  # kinds that change several groups at once


class Outcome(NamedTuple):
    """What two models answer in k states, judged."""

    p_a: Floats  # (k, C), NaN where it refuses
    p_b: Floats
    refused_a: Booleans  # (k,)
    refused_b: Booleans
    gap: Floats  # (k,) the largest difference of a probability; 0 where a model refuses
    margin_gap: Floats
    differs: Booleans  # beyond the tolerance, and not for rounding or a tie
    label: Booleans  # of those, where the labels differ
    tie: Booleans
    rounded: Booleans
    reasons: dict[tuple[str, int], str]  # (a or b, state) -> why it refuses

    @property
    def alarm(self) -> Booleans:
        """(k,) where the artefacts are not the same model."""
        return np.asarray(self.differs | (self.refused_a ^ self.refused_b))

    def take(self, places: Integers) -> Outcome:
        """Return the outcome of some states, which may repeat."""
        reasons: dict[tuple[str, int], str] = {}
        for role in ("a", "b") if self.reasons else ():
            said = {state: reason for (who, state), reason in self.reasons.items() if who == role}
            reasons |= {(role, i): said[s] for i, s in enumerate(places.tolist()) if s in said}
        arrays = {name: value[places] for name, value in self._asdict().items() if name != "reasons"}
        return Outcome(**arrays, reasons=reasons)


class Histogram:
    """Counts of numbers >= 0 in bins of 6%; its quantiles are upper edges."""

    def __init__(self) -> None:
        self.counts, self.largest = np.zeros(BINS, dtype=np.int64), 0.0

    def add(self, values: Floats) -> None:
        """Count values."""
        if len(values):
            with np.errstate(divide="ignore"):
                place = np.ceil((np.log10(values) - SMALLEST_EDGE) * BINS_PER_DECADE)
            self.counts += np.bincount(np.clip(place, 0, BINS - 1).astype(np.int64), minlength=BINS)
            self.largest = max(self.largest, float(values.max()))

    def quantile(self, q: float) -> float:
        """Return a number that a share q of the values does not exceed."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self.counts), np.ceil(q * total)))
        edge = 0.0 if place == 0 else 10.0 ** (place / BINS_PER_DECADE + SMALLEST_EDGE)
        return min(edge, self.largest)

    def gaps(self) -> Gaps:
        """Return the quantiles that a result states."""
        return Gaps(self.quantile(0.5), self.quantile(0.9), self.quantile(0.99), self.largest)


@dataclass
class Count:
    """The counts of one change: a kind of state, a unit and a value."""

    states: int = 0
    differing: int = 0
    labels: int = 0
    ties: int = 0
    rounded: int = 0
    only_a: int = 0
    only_b: int = 0
    neither: int = 0
    outside: int = 0
    skipped: int = 0
    largest: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count the states of an outcome."""
        a, b = outcome.refused_a, outcome.refused_b
        self.states += len(a)
        for name, flags in (
            ("differing", outcome.differs), ("labels", outcome.label), ("ties", outcome.tie),
            ("rounded", outcome.rounded), ("only_a", b & ~a), ("only_b", a & ~b), ("neither", a & b),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + int(flags.sum()))
        self.largest = max(self.largest, float(outcome.gap.max(initial=0.0)))

    def move_outside(self) -> None:
        """Count all states as outside the first model's inputs."""
        self.outside, self.only_b, self.neither = self.states, 0, 0


class Change(NamedTuple):
    """A kind of state, a unit and what it turns into."""

    kind: str
    unit: str
    value: str


class Candidate(NamedTuple):
    """A state that may be shown as an example; the smaller key is the better one."""

    key: tuple[int, int, int, int, str]  # cells changed, rank of what differs, -gap, place of the row, value
    change: Change
    layout: RawLayout
    cells: Floats  # (d,)
    clean: Floats  # (d,) the row as it is, in the same layout
    answers: tuple[Floats, Floats]  # (C,) each, as the models gave them among other states


@dataclass
class Counts:
    """Everything counted about n rows."""

    n: int
    by_change: dict[Change, Count] = field(default_factory=dict)
    gaps: dict[str, tuple[Histogram, Histogram]] = field(default_factory=dict)
    alarmed: dict[tuple[str, str], Booleans] = field(default_factory=dict)  # (n,) rows with an alarm, by kind and unit
    reasons: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    best: dict[tuple[str, str], Candidate] = field(default_factory=dict)  # by kind and unit
    # changes of rows that agree as they are, and values of rows that agree only once a unit is lost
    revealed: dict[Change, Count] = field(default_factory=dict)
    cleared_rows: dict[int, list[str]] = field(default_factory=dict)
    refusing: dict[tuple[str, str], str] = field(default_factory=dict)  # units one model refuses throughout: a or b

    def add(self, change: Change, outcome: Outcome, rows: Integers, agreeing: Integers) -> None:
        """Count the states of one change.

        rows: (k,) the places of the rows that they are made from. agreeing: the states of rows that agree as they are,
        since no change of another row reveals anything.
        """
        self.by_change.setdefault(change, Count()).add(outcome)
        self.revealed.setdefault(change, Count()).add(outcome.take(agreeing))
        answered = ~(outcome.refused_a | outcome.refused_b)
        probability, margin = self.gaps.setdefault(change.kind, (Histogram(), Histogram()))
        probability.add(outcome.gap[answered])
        margin.add(outcome.margin_gap[answered])
        if outcome.alarm.any():
            place = change.kind, change.unit
            self.alarmed.setdefault(place, np.zeros(self.n, dtype=bool))[rows[outcome.alarm]] = True
        said = Counter((role, reason) for (role, _), reason in outcome.reasons.items())
        self.reasons.setdefault(change.kind, Counter()).update(said)

    def pass_over(self, change: Change, states: int) -> None:
        """Count states that are not asked, because a model refuses this unit throughout."""
        count = self.by_change.setdefault(change, Count())
        count.states += states
        if self.refusing[change.kind, change.unit] == "a":
            count.outside += states
        else:
            count.skipped += states

    def offer(self, found: Candidate) -> None:
        """Keep a candidate if it is the best of its kind and unit."""
        place = found.change.kind, found.change.unit
        if place not in self.best or found.key < self.best[place].key:
            self.best[place] = found

    def find_refusing(self) -> None:
        """Note the units that one model refuses in every state counted so far; clean rows are never refused so."""
        totals: dict[tuple[str, str], Count] = {}
        for change, count in self.by_change.items():
            total = totals.setdefault((change.kind, change.unit), Count())
            for name in ("states", "only_a", "only_b", "neither"):
                setattr(total, name, getattr(total, name) + getattr(count, name))
        for place, total in totals.items():
            if place[0] == CLEAN or not total.states:
                continue
            if total.only_b + total.neither == total.states:
                self.refusing[place] = "a"
                for change, count in self.by_change.items():
                    if (change.kind, change.unit) == place:
                        count.move_outside()
                self.best.pop(place, None)
                self.alarmed.pop(place, None)
                self.revealed = {c: count for c, count in self.revealed.items() if (c.kind, c.unit) != place}
            elif total.only_a == total.states:
                self.refusing[place] = "b"

    def list_kinds(self) -> tuple[KindParity, ...]:
        """Return the counts by kind."""
        names = (
            *("states", "differing", "labels", "ties", "rounded"),
            *("only_a", "only_b", "neither", "outside", "skipped"),
        )
        found = []
        for kind in KINDS:
            own = [count for change, count in self.by_change.items() if change.kind == kind]
            if not own:
                continue
            probability, margin = self.gaps.get(kind, (Histogram(), Histogram()))
            said = sorted(self.reasons.get(kind, Counter()).items(), key=lambda item: (-item[1], item[0]))
            sums = {name: sum(getattr(count, name) for count in own) for name in names}
            alarmed = [rows for (of, _), rows in self.alarmed.items() if of == kind]
            found.append(
                KindParity(
                    kind=kind,
                    **sums,
                    rows=int(np.any(alarmed, axis=0).sum()) if alarmed else 0,
                    probability=probability.gaps(),
                    margin=margin.gaps(),
                    refusals=tuple((role, reason, n) for (role, reason), n in said[:MOST_REASONS]),
                )
            )
        return tuple(found)

    def list_reveals(self) -> tuple[Reveal, ...]:
        """Return what reveals an alarm, most labels first; changes of several groups come last."""
        found = [
            Reveal(*change, c.states, c.differing, c.labels, c.only_a, c.only_b, c.largest)
            for change, c in self.revealed.items()
            if c.differing or c.only_a or c.only_b
        ]
        return tuple(sorted(found, key=_rank_reveal))


def _rank_reveal(one: Reveal) -> tuple[object, ...]:
    alone = one.only_a + one.only_b
    return (
        one.kind in SEVERAL,
        -one.labels,
        -alone,
        -one.differing,
        -round(one.largest, 6),
        one.kind,
        one.unit,
        one.value,
    )
