"""Events: decisions with their day, their certificate's figures and the state of their fields, some rows at a time.

Everything that is watched is a value in [0, 1] of each decision: a *column*. Shares hold 0 or 1, means hold anything.

    missing, stale   the field was missing, or known to be stale, when the decision was made
    out_of_range     the field's number lay outside the training range that the protocol declares
    repeated         the field's value was there and equal to that of the decision before (a feed that is frozen);
                     counted in pairs of decisions that do not overlap, so that one pair says nothing of the next
    flips_early      a confident decision flips within two groups (counted among confident decisions)
    decision         the decision was for this class
    exposure         the exposure of the decision (a mean)
    lost             its failure probability at the declared rates (a mean; audits that have it)
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError
from fragility.protocol import Protocol

WatchedMeasure: TypeAlias = Literal[
    "missing", "stale", "out_of_range", "repeated", "flips_early", "decision", "exposure", "lost"
]
STATES = ("missing", "stale", "out_of_range")  # the states of a field in a decision
OF_FIELDS = (*STATES, "repeated")
MEANS = ("exposure", "lost")
ROUNDING = 1e-6  # how far a figure may lie outside 0 and 1
EPOCH = dt.date(1970, 1, 1)
FIRST_DAY, LAST_DAY = np.datetime64("0001-01-01"), np.datetime64("9999-12-31")


@dataclass(frozen=True, slots=True)
class WatchedColumn:
    """What is watched: a measure, and of which field or class."""

    measure: WatchedMeasure
    name: str | None = None  # of the field, or of the class

    @property
    def is_mean(self) -> bool:
        return self.measure in MEANS


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Consecutive decisions."""

    day: Integers  # (n,) days since 1970, never falling
    shares: Booleans  # (n, C) the columns that are shares
    confident: Booleans  # (n,) the decisions among which `flips_early` is counted
    paired: Booleans  # (n,) the second decisions of pairs, among which `repeated` is counted
    means: Floats  # (n, A) the columns that are means
    without: Booleans  # (n, G) some field of the group was missing or stale
    p_change: Floats  # (n,) the chance that the decision would be another one with its missing fields; NaN if none

    def __len__(self) -> int:
        return len(self.day)

    def slice(self, start: int, stop: int) -> EventBatch:
        """Return some consecutive decisions."""
        return replace(self, **{column.name: getattr(self, column.name)[start:stop] for column in fields(self)})


@dataclass(frozen=True, slots=True)
class EventLayout:
    """Which columns a source of decisions has, in the order of its arrays: shares first, then means."""

    fields: tuple[str, ...]  # whose state is known; none for audits
    ranged: tuple[str, ...]  # whose values are compared with the training range
    classes: tuple[str, ...]
    means: tuple[WatchedMeasure, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # name of an evidence group, and places of its fields

    @property
    def columns(self) -> tuple[WatchedColumn, ...]:
        # Of two classes one share says it all.
        named = self.classes[1:] if len(self.classes) == 2 else self.classes
        return (
            *(WatchedColumn("missing", name) for name in self.fields),
            *(WatchedColumn("stale", name) for name in self.fields),
            *(WatchedColumn("out_of_range", name) for name in self.ranged),
            *(WatchedColumn("repeated", name) for name in self.fields),
            WatchedColumn("flips_early"),
            *(WatchedColumn("decision", name) for name in named),
            *(WatchedColumn(mean) for mean in self.means),
        )


def lay_out_log(protocol: Protocol, classes: Sequence[Any], *, ranged: bool) -> EventLayout:
    """Return the layout of logged decisions; ranged: whether their raw values can be read."""
    names = tuple(field.name for field in protocol.fields)
    numbers = {one.field for one in protocol.modes.ranges if isinstance(one.low, float)}
    return EventLayout(
        fields=names,
        ranged=tuple(name for name in names if name in numbers) if ranged else (),
        classes=tuple(map(str, classes)),
        means=("exposure",),
        groups=group_fields(protocol),
    )


def group_fields(protocol: Protocol) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each evidence group with the places of its raw fields; none if they are unknown without the model.

    A group is named like its raw field unless groups were declared or merged; then the columns of the raw space say it.
    """
    place = {field.name: at for at, field in enumerate(protocol.fields)}
    groups = []
    for group in protocol.groups:
        members = [group.name] if group.name in place else [name for name in group.columns if name in place]
        groups.append((group.name, tuple(place[name] for name in members)))
    return tuple(groups)


def make_batch(
    layout: EventLayout,
    *,
    day: Integers,
    decision: Sequence[Any] | pa.ChunkedArray | pa.Array,
    confidence: Floats,
    early: Booleans,
    means: Sequence[Floats],
    min_confidence: float,
    missing: Booleans | None = None,
    stale: Booleans | None = None,
    outside: Booleans | None = None,
    repeated: Booleans | None = None,
    p_change: Floats | None = None,
) -> EventBatch:
    """Return the values to monitor; states are (n, F), `outside` is (n, ranged). early: (n,) flips early.

    The first decision is the first of a pair: all batches of a source but the last have an even number of decisions.
    """
    n = len(day)
    confident = confidence >= min_confidence
    codes = code_classes(decision, layout.classes)
    named = range(1, 2) if len(layout.classes) == 2 else range(len(layout.classes))
    none = np.zeros((n, 0), dtype=bool)
    states = [none if state is None else state for state in (missing, stale, outside, repeated)]
    decided = np.stack([codes == code for code in named], axis=1)
    unavailable = states[0] | states[1]
    without = [
        unavailable[:, list(members)].any(axis=1) if layout.fields else none.any(axis=1) for _, members in layout.groups
    ]
    return EventBatch(
        day=day,
        shares=np.concatenate([*states, (early & confident)[:, None], decided], axis=1),
        confident=confident,
        paired=np.arange(n) % 2 == 1,
        means=np.stack([np.clip(values, 0.0, 1.0) for values in means], axis=1),
        without=np.stack(without, axis=1) if without else none,
        p_change=np.full(n, np.nan) if p_change is None else p_change,
    )


def check_figures(name: str, values: Floats, *, may_lack: bool = False) -> Floats:
    """Return values of decisions (n,), each from 0 to 1; refuse NaN unless values may be lacking."""
    wrong = ~((values >= -ROUNDING) & (values <= 1.0 + ROUNDING))
    if may_lack:
        wrong &= ~np.isnan(values)
    if wrong.any():
        first = float(values[wrong][0])
        figure = f"no {name}" if np.isnan(first) else f"{name} {first:g}"
        raise DataError(f"the log has a decision with {figure}; a number from 0 to 1 was expected, restore the log")
    return values


def code_classes(decision: Any, classes: Sequence[str]) -> Integers:
    """Return (n,) the place of each decision among the classes; refuse a decision for another class."""
    values = decision if isinstance(decision, (pa.Array, pa.ChunkedArray)) else pa.array(list(decision))
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if whole.null_count:
        raise DataError("the log has an event without a decision; restore the log")
    coded, place = pc.dictionary_encode(whole), {name: at for at, name in enumerate(classes)}
    places = []
    for label in coded.dictionary.to_pylist():
        if str(label) not in place:
            listed = ", ".join(classes)
            raise DataError(f"a decision is for {label!r}, which is no class of the model; known are {listed}")
        places.append(place[str(label)])
    return np.asarray(np.array(places, dtype=np.int64)[coded.indices.to_numpy(zero_copy_only=False)])


def days_of(times: pa.ChunkedArray | pa.Array) -> Integers:
    """Return (n,) days since 1970 in UTC; refuse what no calendar has."""
    whole = times.combine_chunks() if isinstance(times, pa.ChunkedArray) else times
    numbers = whole.to_numpy(zero_copy_only=False).astype("datetime64[us]")
    if np.isnat(numbers).any():
        raise DataError("the log has a decision without a time; it was not written by `fragility serve`")
    days = numbers.astype("datetime64[D]")
    if len(days) and not FIRST_DAY <= days.min() <= days.max() <= LAST_DAY:
        raise DataError(f"the log has a decision outside the years 1 to 9999 ({days.max()}); restore the log")
    return np.asarray(days.astype(np.int64))


def spread_lists(lists: pa.ListArray, names: Sequence[str], what: str) -> Booleans:
    """Return (n, F) which names each list holds; refuse an unknown name."""
    holds = np.zeros((len(lists), len(names)), dtype=bool)
    if lists.null_count:
        lists = lists.fill_null([])
    members = lists.flatten()
    if len(members):
        codes = pc.index_in(members, pa.array(names, type=pa.string()))
        if codes.null_count:
            other = members.filter(pc.is_null(codes))[0].as_py()
            raise DataError(f"the log calls {other!r} {what}, which is no field of its protocol")
        rows = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
        holds[rows, codes.to_numpy(zero_copy_only=False)] = True
    return holds


def find_outside(columns: dict[str, Any], ranged: Sequence[str], protocol: Protocol) -> Booleans:
    """Return (n, ranged) whether a number lies outside the training range; a missing value does not."""
    ends = {one.field: (float(one.low), float(one.high)) for one in protocol.modes.ranges if one.field in ranged}
    outside = []
    for name in ranged:
        low, high = ends[name]
        values = np.asarray(columns[name], dtype=np.float64)
        outside.append((values < low) | (values > high))
    return np.stack(outside, axis=1)


def find_repeats(codes: Sequence[Integers], missing: Booleans) -> Booleans:
    """Return (n, F) whether the second of each pair of decisions holds the value of the first, and both are there.

    codes: of each field (n,), equal where its values are and negative where there is none.
    """
    repeats = np.zeros(missing.shape, dtype=bool)
    for place, column in enumerate(codes):
        there = (column >= 0) & ~missing[:, place]
        last = len(column) // 2 * 2
        repeats[1:last:2, place] = (column[1:last:2] == column[0:last:2]) & there[1:last:2] & there[0:last:2]
    return repeats


def find_out_of_time(days: Integers, counts: Integers) -> Booleans:
    """Return (r,) which runs of decisions have a day out of order, because a clock was wrong.

    days, counts: (r,) of consecutive decisions with the same day. As many decisions as possible are kept so that days
    do not fall; so are those that are only a day behind, which came around midnight or over a leap of the clock.
    """
    # The heaviest sequence of runs whose days do not fall: for each end day, the most decisions that lead to it.
    ends: list[int] = []  # days, rising, and what leads to them: weights rise with them
    weights: list[int] = []
    runs: list[int] = []
    before = np.full(len(days), -1, dtype=np.int64)
    for run, (day, count) in enumerate(zip(days.tolist(), counts.tolist(), strict=True)):
        place = bisect_right(ends, day)
        before[run] = runs[place - 1] if place else -1
        weight = (weights[place - 1] if place else 0) + count
        stop = place
        while stop < len(ends) and weights[stop] < weight:  # a later day to which fewer lead is never better
            stop += 1
        if place and ends[place - 1] == day:
            place -= 1
        ends[place:stop], weights[place:stop], runs[place:stop] = [day], [weight], [run]
    out = np.ones(len(days), dtype=bool)
    run = runs[-1] if runs else -1
    while run >= 0:
        out[run] = False
        run = int(before[run])
    latest = np.maximum.accumulate(np.where(out, np.iinfo(np.int64).min, days))
    behind = out & (days >= latest - 1) & (days <= latest)
    return out & ~behind


@dataclass(slots=True)
class LateDecisions:
    """How many decisions were recorded after one of a later day, as happens around midnight."""

    count: int = 0


def cut_by_day(batches: Iterable[EventBatch], look: int, late: LateDecisions | None = None) -> Iterator[EventBatch]:
    """Return the same decisions in pieces of one day each, of a multiple of `look` rows unless the day ends.

    So the looks of a day are the same however the decisions were batched. A decision that is recorded after one of a
    later day counts for that later day, and is counted in `late`.
    """
    waiting: EventBatch | None = None
    latest = np.iinfo(np.int64).min
    for batch in batches:
        if len(batch) == 0:
            continue
        day = np.maximum.accumulate(np.maximum(batch.day, latest))
        if late is not None:
            late.count += int((day > batch.day).sum())
        batch, latest = replace(batch, day=day), int(day[-1])
        joined = batch if waiting is None else join_batches(waiting, batch)
        starts = [0, *(np.flatnonzero(np.diff(joined.day)) + 1).tolist(), len(joined)]
        for start, stop in pairwise(starts[:-1]):
            yield joined.slice(start, stop)
        ready = starts[-2] + (len(joined) - starts[-2]) // look * look
        if ready > starts[-2]:
            yield joined.slice(starts[-2], ready)
        waiting = joined.slice(ready, len(joined)) if ready < len(joined) else None
    if waiting is not None:
        yield waiting


def join_batches(one: EventBatch, other: EventBatch) -> EventBatch:
    """Return two batches as one."""
    return EventBatch(**{f.name: np.concatenate([getattr(one, f.name), getattr(other, f.name)]) for f in fields(one)})
