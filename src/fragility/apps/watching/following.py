"""Following a stream of decisions: days are counted, a reference is set, and each look asks whether something changed.

The first days are the reference. For each column they give bounds of its mean (Clopper-Pearson for shares, empirical
Bernstein for means); declared rates and a released audit take their place where given. Then every stream, a column that
must not rise or must not fall, is watched by a `Detector`: half of alpha is spent on the bounds of the reference, half
on the detectors, each half shared equally by the streams (Bonferroni).

A share may vary from day to day although nothing happened: a feed that loses 0% today and 8% tomorrow, 3% on average.
Where the reference days show that (chi-squared test at 1%), a day's rate counts as a draw from a Beta distribution with
the bound as its mean and an intraday correlation rho:

    X      sum over days of (k_d - n_d p)^2 / (n_d p (1 - p)),  p = k / n
    rho    (X_u - (D - 1)) / sum_d (n_d - 1)(1 - n_d / n),  X_u = X (D - 1) / (5% quantile of chi-squared, D - 1)

so rho is at the upper end of what the D days admit. Among n decisions of such a day a bound is worth as much as among
n / (1 + (n / D - 1) rho) others, and a gambler bets against what the day itself lets expect after N decisions with sum
K, and never against less than the bound, or a smaller rho would pay: max(bound, (bound s + K) / (s + N)), s = 1 / rho
- 1. So the promise holds for every rho up to this one. A share that does not vary has rho = 0, and nothing changes.

The reference of a log is kept beside it, so that what the first days showed stays known when their folders are moved
away. ``watch.json`` in the folder of the log holds one reference per protocol and setting:

    format            "fragility-watch/1"
    references        a list; each has `protocol_digest`, `classes`, `reference_days` and `min_confidence`, which say
                      what it is for, the days `first` and `last` with its `rows`, and the `columns`: measure, name, and
                      how many decisions (`n`) have which sum (`k`) and sum of squares (`squares`), and rho (`spread`)

An alarm stays open until the rows speak for a return: the sum of log likelihood ratios of the bound against a rate
halfway between the bound and what was seen since the change, restarted at 0 whenever it is negative, reaches ln 100; or
until the mean since the change is no longer beyond the bound. An outage that becomes much smaller may end the alarm too
early; it then raises the next one.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.stats import chi2

from fragility.analysis.policy import upper_limit
from fragility.apps.watching.events import EPOCH, OF_FIELDS, EventBatch, EventLayout, WatchedColumn
from fragility.apps.watching.sequences import SHARES, Detector, MeanSequence, bet_on_values, weigh_start
from fragility.base.arrays import Floats, Integers
from fragility.base.errors import DataError, reason_of
from fragility.base.files import read_json, write_text
from fragility.gate.estimates import bound_mean

FORMAT, FILE = "fragility-watch/1", "watch.json"
SUMS = ("n", "k", "squares", "spread")  # of a column of the reference
VARIES, LEAST_SPREAD = 0.99, 0.05  # levels: a share varies from day to day; how little the days may show of it
LARGEST_SPREAD = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceSums:
    """What was counted on the reference days; C columns."""

    first: dt.date
    last: dt.date
    rows: int
    n: Floats  # (C,)
    k: Floats
    squares: Floats
    spread: Floats  # rho


@dataclass(frozen=True)
class ReferenceKeeper:
    """Reads and writes the reference of one log, for one protocol and setting."""

    folder: Path
    key: dict[str, Any]  # what a reference is for
    columns: tuple[WatchedColumn, ...]

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def load(self) -> ReferenceSums | None:
        """Return the stored reference of this kind; None without one."""
        for kept in self._read():
            if {name: kept[name] for name in self.key} == self.key:
                return self._decode(kept)
        return None

    def save(self, sums: ReferenceSums) -> None:
        """Store a reference beside those of other kinds."""
        columns = [
            {"measure": column.measure, "name": column.name, **dict(zip(SUMS, figures, strict=True))}
            for column, figures in zip(
                self.columns, np.stack([getattr(sums, name) for name in SUMS], axis=1).tolist(), strict=True
            )
        ]
        days = {"first": sums.first.isoformat(), "last": sums.last.isoformat(), "rows": sums.rows}
        document = {"format": FORMAT, "references": [*self._read(), {**self.key, **days, "columns": columns}]}
        write_text(self.path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def _read(self) -> list[dict[str, Any]]:
        try:
            document = read_json(self.path)
            if document["format"] != FORMAT:
                raise ValueError(f"it has format {document['format']!r}, this version reads {FORMAT!r}")
            references: list[dict[str, Any]] = document["references"]
            if any(name not in kept for kept in references for name in (*self.key, "first", "last", "rows", "columns")):
                raise ValueError("a reference lacks what it is for")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._refuse(error) from error
        return references

    def _decode(self, kept: dict[str, Any]) -> ReferenceSums:
        try:
            given = {(one["measure"], one["name"]): one for one in kept["columns"]}
            counted = {
                name: np.array([float(given[column.measure, column.name][name]) for column in self.columns])
                for name in SUMS
            }
            first, last = (dt.date.fromisoformat(kept[name]) for name in ("first", "last"))
            if not all(bool((np.isfinite(sums) & (sums >= 0.0)).all()) for sums in counted.values()) or last < first:
                raise ValueError("its figures are none of decisions")
            return ReferenceSums(first, last, int(kept["rows"]), **counted)
        except (ValueError, KeyError, TypeError) as error:
            raise self._refuse(error) from error

    def _refuse(self, error: Exception) -> DataError:
        reason = reason_of(error)
        return DataError(f"cannot read the reference {self.path}: {reason}; restore it, or remove it to set it anew")


# --- streams and alarms ---------------------------------------------------------------------------------------

LOOK_ROWS = 25  # decisions between two looks
RETURN_EVIDENCE = math.log(100.0)

Direction: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class Stream:
    """A column that is watched for a rise or for a fall."""

    place: int  # of the column
    column: WatchedColumn
    direction: Direction


def list_streams(columns: tuple[WatchedColumn, ...]) -> tuple[Stream, ...]:
    """Return what is watched: states of fields for a rise, everything else both ways."""
    streams = []
    for place, column in enumerate(columns):
        streams.append(Stream(place, column, "up"))
        if column.measure not in OF_FIELDS:
            streams.append(Stream(place, column, "down"))
    return tuple(streams)


@dataclass(slots=True, eq=False)
class DayTally:
    """What was counted on one day; C columns."""

    day: int
    columns: int
    groups: int
    intervals: dict[int, MeanSequence]  # of the columns that are means
    rows: int = 0
    n: Floats = field(init=False)  # (C,) decisions that a column is a mean over
    k: Floats = field(init=False)  # (C,) sums
    squares: Floats = field(init=False)  # (C,) sums of squares
    changed: Floats = field(init=False)  # (C,) sums of p_change over the decisions that have the property
    without: Integers = field(init=False)  # (G,) decisions made without some field of the group
    p_change: float = 0.0
    decided_without: int = 0  # decisions with a missing or stale field

    def __post_init__(self) -> None:
        self.n, self.k, self.squares, self.changed = (np.zeros(self.columns) for _ in range(4))
        self.without = np.zeros(self.groups, dtype=np.int64)


def sum_days(days: Sequence[DayTally], name: str) -> Floats:
    """Return what was counted over some days, for instance ``n``."""
    return np.asarray(np.sum([getattr(day, name) for day in days], axis=0))


def learn_spread(days: Sequence[DayTally]) -> Floats:
    """Return (C,) how decisions of one day go together, rho; 0 for columns that the days show to be steady."""
    n, k = (np.array([getattr(day, name) for day in days]) for name in ("n", "k"))  # (D, C)
    total, free = n.sum(axis=0), (n > 0).sum(axis=0) - 1.0
    p = np.divide(k.sum(axis=0), total, out=np.zeros(len(total)), where=total > 0)
    known = (free >= 1) & (p > 0.0) & (p < 1.0)
    p, free = np.where(known, p, 0.5), np.maximum(free, 1.0)
    counted = np.where(n > 0, n, 1.0)
    squares = np.where(n > 0, (k - n * p) ** 2 / (counted * p * (1.0 - p)), 0.0).sum(axis=0)
    paired = ((np.maximum(n, 1.0) - 1.0) * (1.0 - n / np.maximum(total, 1.0))).sum(axis=0)
    varies = known & (squares > chi2.ppf(VARIES, free)) & (paired > 0.0)
    spread = (squares * free / chi2.ppf(LEAST_SPREAD, free) - free) / np.maximum(paired, 1.0)
    return np.asarray(np.where(varies, np.minimum(spread, LARGEST_SPREAD), 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What the streams are compared with: the mean of each column (C,), and its bounds."""

    mean: Floats  # NaN without decisions
    lower: Floats
    upper: Floats
    rows: int


@dataclass(slots=True, eq=False)
class Episode:
    """The state of an alarm."""

    stream: Stream
    raised: int  # day
    raised_at: int  # decisions read by then, those of the reference included
    since: int  # day on which the change probably began
    n: float  # decisions since then
    k: float  # their sum; of 1 - x for a fall
    changed: float  # sum of p_change over those that have the property
    known: float  # how many of these have a p_change
    closed: int | None = None
    back: float = 0.0  # evidence of a return


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How a stream is watched."""

    alpha: float
    horizon: int
    reference_days: int
    allowance: float
    rates: Mapping[str, float] = field(default_factory=dict)  # declared, by field


class Follower:
    """Days, reference, detectors and alarms of a stream of decisions, which is fed in order."""

    def __init__(
        self,
        layout: EventLayout,
        settings: FollowSettings,
        released: DayTally | None = None,
        kept: ReferenceSums | None = None,
    ) -> None:
        """released: in place of what it shows; kept: a reference that was set earlier, up to its last day."""
        self.layout, self.settings, self.released, self.kept = layout, settings, released, kept
        self.sums: ReferenceSums | None = None  # of the reference days
        self.columns = layout.columns
        self.streams = list_streams(self.columns)
        self.shares = len(self.columns) - len(layout.means)
        self.days: list[DayTally] = []
        self.episodes: list[Episode] = []
        self.reference: Reference | None = None
        self.rows = 0
        self._detector: Detector | None = None
        self._varying = np.zeros(0, dtype=np.int64)  # streams whose share varies from day to day
        self._open: dict[int, Episode] = {}
        self._look, self._watched_days = 0, 0
        self._place = np.array([stream.place for stream in self.streams])
        self._falls = np.array([stream.direction == "down" for stream in self.streams])
        self._means = [place for place, stream in enumerate(self.streams) if stream.column.is_mean]
        self._repeated = [place for place, column in enumerate(self.columns) if column.measure == "repeated"]
        self._early = next(place for place, column in enumerate(self.columns) if column.measure == "flips_early")

    @property
    def level(self) -> float:
        """The alpha of one stream, of one half."""
        return self.settings.alpha / 2.0 / len(self.streams)

    # --- feeding --------------------------------------------------------------------------------------------

    def follow(self, piece: EventBatch) -> None:
        """Take in consecutive decisions of one day, as `cut_by_day` hands them out."""
        day = int(piece.day[0])
        if not self.days or self.days[-1].day != day:
            self._begin_day(day)
        starts = np.arange(0, len(piece), LOOK_ROWS)
        n, k, changes = self._count(piece, starts)
        self._tally(piece, n, k, changes[:, :, 0])
        if self._detector is not None:
            self._watch(self._detector, day, n, k, changes, piece, starts)
        self.rows += len(piece)

    def _begin_day(self, day: int) -> None:
        if self._detector is None and self._is_after_reference(day):
            self.set_reference()
        self.days.append(self.new_tally(day))
        self._look = 0
        if self._detector is not None:
            if self._watched_days and self._watched_days % self.settings.horizon == 0:
                self._detector.restart()  # a new horizon, with an alpha of its own
            self._watched_days += 1

    def _is_after_reference(self, day: int) -> bool:
        if self.kept is not None:
            return day > (self.kept.last - EPOCH).days
        return len(self.days) >= self.settings.reference_days

    def new_tally(self, day: int) -> DayTally:
        """Return a day without decisions."""
        means = {self.shares + place: MeanSequence(self.settings.alpha) for place in range(len(self.layout.means))}
        return DayTally(day, len(self.columns), len(self.layout.groups), means)

    def _count(self, piece: EventBatch, starts: Integers) -> tuple[Floats, Floats, Floats]:
        """Return decisions and sums of each look, both (L, C), and (L, C, 2) sums and numbers of its p_change."""
        sizes = np.diff([*starts, len(piece)]).astype(np.float64)
        n = np.repeat(sizes[:, None], len(self.columns), axis=1)
        n[:, self._early] = np.add.reduceat(piece.confident.astype(np.float64), starts)
        n[:, self._repeated] = np.add.reduceat(piece.paired.astype(np.float64), starts)[:, None]
        k = np.concatenate(
            [
                np.add.reduceat(piece.shares.astype(np.float64), starts, axis=0),
                np.add.reduceat(piece.means, starts, axis=0),
            ],
            axis=1,
        )
        changes = np.zeros((*k.shape, 2))
        answered = np.flatnonzero(~np.isnan(piece.p_change))  # NaN: nothing was missing
        chances = np.stack([piece.p_change[answered], np.ones(len(answered))], axis=1)
        struck = piece.shares[answered][:, :, None] * chances[:, None, :]
        np.add.at(changes[:, : self.shares], answered // LOOK_ROWS, struck)
        return n, k, changes

    def _tally(self, piece: EventBatch, n: Floats, k: Floats, changed: Floats) -> None:
        today = self.days[-1]
        today.rows += len(piece)
        today.n += n.sum(axis=0)
        today.k += k.sum(axis=0)
        today.squares[: self.shares] = today.k[: self.shares]
        today.squares[self.shares :] += (piece.means**2).sum(axis=0)
        today.changed += changed.sum(axis=0)
        today.without += piece.without.sum(axis=0)
        today.decided_without += int(piece.shares[:, : 2 * len(self.layout.fields)].any(axis=1).sum())
        today.p_change += float(np.nansum(piece.p_change))
        for place, sequence in today.intervals.items():
            sequence.add(piece.means[:, place - self.shares])

    # --- the reference --------------------------------------------------------------------------------------

    def set_reference(self) -> None:
        """End the reference days: bounds of each column, and a detector of each stream."""
        self.sums = self.kept or ReferenceSums(
            EPOCH + dt.timedelta(days=self.days[0].day),
            EPOCH + dt.timedelta(days=self.days[-1].day),
            sum(day.rows for day in self.days),
            n=sum_days(self.days, "n"),
            k=sum_days(self.days, "k"),
            squares=sum_days(self.days, "squares"),
            spread=np.where(np.arange(len(self.columns)) < self.shares, learn_spread(self.days), 0.0),
        )
        n, k, squares = self.sums.n, self.sums.k, self.sums.squares
        if self.released is not None:  # what the audit shows is taken from it, the state of fields from the days
            has_rows = self.released.n > 0
            n, k, squares = (
                np.where(has_rows, getattr(self.released, name), counted)
                for name, counted in (("n", n), ("k", k), ("squares", squares))
            )
        mean, lower, upper = np.full(len(n), np.nan), np.zeros(len(n)), np.ones(len(n))
        alike = 1.0 + np.maximum(n / self.settings.reference_days - 1.0, 0.0) * self.sums.spread
        for place in np.flatnonzero(n > 0).tolist():
            mean[place] = k[place] / n[place]
            counted = (sums[place] / alike[place] for sums in (n, k, squares))
            lower[place], upper[place] = self._bound(place, *counted)
        for place, column in enumerate(self.columns):
            if column.measure == "missing" and column.name is not None and column.name in self.settings.rates:
                mean[place] = lower[place] = upper[place] = self.settings.rates[column.name]
        self.reference = Reference(mean, lower, upper, self.sums.rows)
        self._varying = np.flatnonzero(self.sums.spread[self._place] > 0.0)
        ends = np.where(self._falls, 1.0 - lower[self._place], upper[self._place])
        self._detector = Detector(np.minimum(ends + self.settings.allowance, 1.0), self.level)

    def _bound(self, place: int, n: float, k: float, squares: float) -> tuple[float, float]:
        level = 1.0 - self.level
        if place < self.shares:
            lower = 1.0 - float(upper_limit(n - k, n, level))
            return lower, float(upper_limit(k, n, level))
        if n < 2:
            return 0.0, 1.0
        mean = k / n
        return bound_mean(int(n), mean, max(squares - n * mean * mean, 0.0) / (n - 1), level)

    # --- watching -------------------------------------------------------------------------------------------

    def _watch(
        self, detector: Detector, day: int, n: Floats, k: Floats, changes: Floats, piece: EventBatch, starts: Integers
    ) -> None:
        counts = n[:, self._place]
        sums = np.where(self._falls, counts - k[:, self._place], k[:, self._place])  # (L, m)
        means, days = self._bet_on_means(detector, piece, starts), self._bet_on_days(detector, piece, starts)
        gain = np.log1p(SHARES * (1.0 / detector.bounds[:, None] - 1.0))  # (m, J) of a decision with the property
        loss = np.log1p(-SHARES)
        sums_of_streams = np.concatenate([counts[:, :, None], sums[:, :, None], changes[:, self._place]], axis=2)
        for look in range(len(starts)):
            self._look += 1
            weight = weigh_start(self._look, self.settings.horizon)
            gains = sums[look, :, None] * gain + (counts - sums)[look, :, None] * loss
            gains[self._means] = means[look]
            gains[self._varying] = days[look]
            reached = detector.look(gains, weight, day, sums_of_streams[look])
            decisions = self.rows + min(int(starts[look]) + LOOK_ROWS, len(piece))
            raised = [int(stream) for stream in np.flatnonzero(reached) if int(stream) not in self._open]
            for stream in list(self._open):
                self._continue(detector, stream, day, sums_of_streams[look, stream])
            for stream in raised:
                self._raise(detector, stream, day, decisions)

    def _bet_on_means(self, detector: Detector, piece: EventBatch, starts: Integers) -> Floats:
        """Return (L, M, J) the log gains of each look on the streams that are means."""
        gains = np.zeros((len(starts), len(self._means), len(SHARES)))
        for place, stream in enumerate(self._means):
            values = piece.means[:, self.streams[stream].place - self.shares]
            bets = bet_on_values(1.0 - values if self._falls[stream] else values, float(detector.bounds[stream]))
            gains[:, place] = np.add.reduceat(bets, starts, axis=0)
        return gains

    def _bet_on_days(self, detector: Detector, piece: EventBatch, starts: Integers) -> Floats:
        """Return (L, V, J) the log gains of each look on the streams whose share varies from day to day."""
        assert self.sums is not None
        gains = np.zeros((len(starts), len(self._varying), len(SHARES)))
        for at, stream in enumerate(self._varying.tolist()):
            place, today = self.streams[stream].place, self.days[-1]
            counted = np.ones(len(piece), dtype=bool)
            if place == self._early:
                counted = piece.confident
            elif place in self._repeated:
                counted = piece.paired
            values = (counted & ~piece.shares[:, place]) if self._falls[stream] else piece.shares[:, place]
            before_n, before_k = today.n[place] - counted.sum(), today.k[place] - piece.shares[:, place].sum()
            if self._falls[stream]:
                before_k = before_n - before_k
            n = before_n + np.cumsum(counted) - counted
            k = before_k + np.cumsum(values) - values
            strength = 1.0 / self.sums.spread[place] - 1.0
            bound = detector.bounds[stream]
            expected = np.maximum((bound * strength + k) / (strength + n), bound)
            bets = np.log1p(SHARES * (values / expected - 1.0)[:, None]) * counted[:, None]
            gains[:, at] = np.add.reduceat(bets, starts, axis=0)
        return gains

    def _raise(self, detector: Detector, stream: int, day: int, decisions: int) -> None:
        since, seen = detector.explain(stream)
        episode = Episode(self.streams[stream], day, decisions, int(since), *seen.tolist())
        self.episodes.append(episode)
        self._open[stream] = episode

    def _continue(self, detector: Detector, stream: int, day: int, seen: Floats) -> None:
        """Add a block of rows to an open alarm, and close it if they speak for a return."""
        episode, (n, k, changed, known) = self._open[stream], seen.tolist()
        episode.n, episode.k = episode.n + n, episode.k + k
        episode.changed, episode.known = episode.changed + changed, episode.known + known
        bound, mean = float(detector.bounds[stream]), episode.k / episode.n
        if mean > bound:
            rate = (bound + mean) / 2.0
            ratio = k * math.log(bound / rate) + (n - k) * math.log((1.0 - bound) / (1.0 - rate))
            episode.back = max(episode.back + ratio, 0.0)
        if mean <= bound or episode.back >= RETURN_EVIDENCE:
            episode.closed = day
            del self._open[stream]
            detector.restart(np.arange(len(self.streams)) == stream)
