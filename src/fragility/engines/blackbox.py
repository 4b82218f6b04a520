"""Black-box engine: certificates of any model, through its probabilities alone.

It asks for each distinct state once. Equal rows are audited once. Rows whose paths meet share the rest of them. A group
at its baseline leaves the state as it was. The first step of the path is a one-step state. Full attenuation, and any
attenuation of values that can only jump, is a removal. Beyond the severity that flips a row, none is asked.
States are handed over in batches within a byte budget, and no result depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.engines.trace import Progress, Trace, TraceStates, original_confidence
from fragility.evidence import STEP, EvidenceRows, Spared
from fragility.evidence.agreement import original_class
from fragility.protocol import Protocol
from fragility.scores import removal_order

ENGINE = "blackbox"
Ranks: TypeAlias = npt.NDArray[np.int32]  # (n, d) step at which each column's group is removed, from 0


def trace_blackbox(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: Progress | None = None,
    severities_at_once: int = 1,
) -> Trace:
    """Return the trace of every row; ``byte_budget`` bounds the stressed rows held at a time.

    severities_at_once: more than 1 means fewer, larger calls, and states that a flip would have spared.
    """
    asked = TraceStates.of(protocol, rows)
    capacity = rows_within(byte_budget, rows.width, copies=2)  # half for the batch, half for its making
    distinct, copy_of = distinct_rows(rows.matrix, rows.decided, None if rows.absent is None else rows.absent.gone)
    chunk_rows = max(1, capacity // 4)  # a chunk's own arrays must fit as well
    phase_states = max(asked.n_groups, asked.depth, len(asked.widths) * severities_at_once, 1)
    # One buffer for all phases: memory touched for the first time costs more than filling it.
    buffer = np.empty((min(capacity, min(chunk_rows, len(distinct)) * phase_states), rows.width))
    calls = _Calls(rows, capacity, buffer)
    parts = []
    for start in range(0, len(distinct), chunk_rows):
        chosen = distinct[start : start + chunk_rows]
        part = rows.matrix[chosen]
        x = part.toarray() if sp.issparse(part) else np.asarray(part, dtype=np.float64)
        spared = None if rows.absent is None else rows.absent.take(chosen).spared(0, None)
        parts.append(_trace_chunk(x, spared, chosen, rows, asked, calls, severities_at_once))
        if progress is not None:
            progress(len(rows) * (start + len(chosen)) // len(distinct), len(rows))
    return replace(Trace.join(parts).rows(copy_of), evaluations=calls.evaluations)


def distinct_rows(matrix: Any, decided: Integers | None, absent: Booleans | None) -> tuple[Integers, Integers]:
    """Return (positions of the distinct rows, for each row the index of its copy among them).

    absent: (n, any) what is missing in each row, in which copies agree too.
    """
    everyone = np.arange(matrix.shape[0])
    if sp.issparse(matrix):
        return everyone, everyone
    keys = row_keys(matrix)
    if absent is not None:
        keys = keys + absent.astype(np.uint64) @ _multipliers(absent.shape[1])
    copy_of, _ = pd.factorize(keys)
    _, first = np.unique(copy_of, return_index=True)
    bits = np.ascontiguousarray(matrix, dtype=np.float64).view(np.uint64)
    if len(first) == len(everyone) or not (bits == bits[first][copy_of]).all():  # nothing to gain, or a clash of keys
        return everyone, everyone
    if decided is not None and not (decided == decided[first][copy_of]).all():  # a tie that the model settled both ways
        return everyone, everyone
    if absent is not None and not (absent == absent[first][copy_of]).all():
        return everyone, everyone
    return first, copy_of


def row_keys(matrix: Floats) -> npt.NDArray[np.uint64]:
    """Return a number per row, equal for equal rows: the wrapping sum of its cells' bits times fixed odd numbers."""
    bits = np.ascontiguousarray(matrix, dtype=np.float64).view(np.uint64)
    return np.asarray(bits @ _multipliers(matrix.shape[1]))


@cache
def _multipliers(d: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(0).integers(1, 2**63, size=d, dtype=np.uint64) | np.uint64(1)


@dataclass
class _Calls:
    """Collects stressed rows into large batches and sends each probability where it belongs."""

    rows: EvidenceRows
    capacity: int
    buffer: Floats  # (capacity or fewer, d)
    evaluations: int = 0
    fill: int = 0
    waiting: list[tuple[int, int, Floats, Any]] = field(default_factory=list)
    at_baseline: Floats | None = None

    def reserve(self, count: int, sink: Floats, where: Any) -> Floats:
        """Return a view for ``count`` stressed rows; their probabilities will be put into ``sink[where]``."""
        if self.fill + count > len(self.buffer):
            self.flush()
        start, self.fill = self.fill, self.fill + count
        self.waiting.append((start, self.fill, sink, where))
        return self.buffer[start : self.fill]

    def everything_removed(self) -> Floats:
        """Return the (C,) probabilities at the baseline itself, which is one state for all rows."""
        if self.at_baseline is None:
            self.at_baseline = self.rows.predict(self.rows.baseline[None, :])[0]
            self.evaluations += 1
        return self.at_baseline

    def flush(self) -> None:
        if self.fill == 0:
            return
        p = self.rows.predict(self.buffer[: self.fill])
        for start, stop, sink, where in self.waiting:
            sink[where] = p[start:stop]
        self.evaluations += self.fill
        self.fill = 0
        self.waiting.clear()


class _Chunk(NamedTuple):
    """Some rows: m rows, d columns, G groups."""

    x: Floats  # (m, d)
    target: Floats  # what cells move to: the baseline (d,), or (m, d) where some rows lack evidence
    spared: Spared | None  # which evidence they lack
    idle: Booleans  # (m, G) groups that lie at their baseline already
    rows: EvidenceRows
    asked: TraceStates
    calls: _Calls

    def target_of(self, who: Integers | slice) -> Floats:
        """Return what the cells of some rows move to."""
        return self.target if self.spared is None else self.target[who]


def _trace_chunk(
    x: Floats,
    spared: Spared | None,
    chosen: Integers,
    rows: EvidenceRows,
    asked: TraceStates,
    calls: _Calls,
    severities_at_once: int,
) -> Trace:
    target = rows.targets(x, spared)
    same = (x == target) | (np.isnan(x) & np.isnan(target))
    idle = np.stack([same[:, columns].all(axis=1) for columns in rows.group_columns()], axis=1)
    chunk = _Chunk(x, target, spared, idle, rows, asked, calls)
    p0 = np.empty((len(x), rows.n_classes))
    calls.reserve(len(x), p0, slice(None))[:] = x
    calls.flush()
    predicted = original_class(rows, p0, asked.rule.resolution, chosen)
    original = predicted[:, None]
    margin = asked.rule.margin(p0, predicted)
    one_step = _ask_one_steps(chunk, p0)
    one_step_margin = asked.rule.margin(one_step, original)
    absent = None if spared is None else spared.groups
    order = removal_order(margin[:, None] - one_step_margin, asked.rule.resolution, absent)
    # narrow, because it is read for every state
    rank: Ranks = np.argsort(order, axis=1).astype(np.int32)[:, rows.column_group]
    path = _ask_path(chunk, order[:, : asked.depth], rank, p0, one_step)
    grid = _Grid(chunk, rank, predicted, path)
    grid.ask(severities_at_once)
    return Trace(
        predicted=predicted,
        confidence=original_confidence(p0, predicted),
        margin=margin,
        one_step_margin=one_step_margin,
        one_step_confidence=original_confidence(one_step, original),
        order=order[:, : asked.depth],
        path_margin=asked.rule.margin(path, original),
        path_predicted=asked.rule.settle(path, original),
        threshold=grid.threshold,
        fade_margin=grid.fade_margin,
        bare_margin=asked.rule.margin(grid.removed(asked.n_groups, np.arange(len(x))), predicted),
        evaluations=0,  # counted by the calls, for all chunks
        engine=ENGINE,
    )


def _select(who: Integers, n: int) -> Integers | slice:
    """Return an index of rows ``who`` among n; a slice if these are all rows, since views are cheaper than copies."""
    return slice(None) if len(who) == n else who


def _ask_one_steps(chunk: _Chunk, p0: Floats) -> Floats:
    """Return (m, G, C) probabilities with each group removed alone; an idle group changes nothing."""
    x, idle, rows, calls = chunk.x, chunk.idle, chunk.rows, chunk.calls
    one_step = np.repeat(p0[:, None, :], rows.n_groups, axis=1)
    for g, columns in enumerate(rows.group_columns()):
        moving = np.flatnonzero(~idle[:, g])
        if len(moving):
            state = calls.reserve(len(moving), one_step, (moving, g))
            some = _select(moving, len(x))
            state[:] = x[some]
            state[:, columns] = chunk.target_of(some)[..., columns]
    calls.flush()
    return one_step


# --- the path -----------------------------------------------------------------------------------------------


def _ask_path(chunk: _Chunk, order: Integers, rank: Ranks, p0: Floats, one_step: Floats) -> Floats:
    """Return (m, K+1, C) probabilities after 0..K removals; order (m, K), p0 (m, C), one_step (m, G, C)."""
    x, idle, asked, calls = chunk.x, chunk.idle, chunk.asked, chunk.calls
    path = np.empty((len(x), asked.depth + 1, p0.shape[1]))
    path[:, 0] = p0
    path[:, 1] = one_step[np.arange(len(x)), order[:, 0]]
    same = np.take_along_axis(idle, order, axis=1)  # (m, K): steps that change nothing
    new = ~same
    new[:, 0] = False  # the first step is a one-step state
    copies, sources = _find_meeting_states(chunk, order, rank, new)
    new[copies] = False
    for k in range(2, asked.depth + 1):
        moving = np.flatnonzero(new[:, k - 1])
        if len(moving):
            state, some = calls.reserve(len(moving), path, (moving, k)), _select(moving, len(x))
            state[:] = x[some]
            np.copyto(state, chunk.target_of(some), where=rank[some] < k)
    calls.flush()
    path[:, 1:][copies] = path[:, 1:][sources]
    for k in range(2, asked.depth + 1):
        path[same[:, k - 1], k] = path[same[:, k - 1], k - 1]
    return path


Places: TypeAlias = tuple[Integers, Integers]  # rows, and steps of their paths counted from 0


def _find_meeting_states(chunk: _Chunk, order: Integers, rank: Ranks, new: Booleans) -> tuple[Places, Places]:
    """Return (states of the path that another row's path passes through as well, those other states).

    order: (m, K), new: (m, K) the states to look at. A state's key is a sum over groups, so each step of a path changes
    it by one group's difference. Equal keys are only a hint: the cells themselves are compared, to the last bit.
    """
    bits = chunk.x.view(np.uint64)
    base = np.broadcast_to(chunk.target.view(np.uint64), bits.shape)
    factor = _multipliers(chunk.rows.width)
    change = np.stack([(base[:, c] - bits[:, c]) @ factor[c] for c in chunk.rows.group_columns()], axis=1)
    steps = np.cumsum(np.take_along_axis(change, order, axis=1), axis=1, dtype=np.uint64)
    keys = np.asarray((bits @ factor)[:, None] + steps)  # (m, K)
    who, step = np.nonzero(new)
    _, first, key_of = np.unique(keys[who, step], return_index=True, return_inverse=True)
    repeats = np.flatnonzero(first[key_of] != np.arange(len(who)))
    origin = first[key_of[repeats]]
    equal = np.empty(len(repeats), dtype=bool)
    for start in range(0, len(equal), chunk.calls.capacity):
        part = slice(start, start + chunk.calls.capacity)
        one, other = (
            np.where(rank[who[at[part]]] <= step[at[part]][:, None], base[who[at[part]]], bits[who[at[part]]])
            for at in (repeats, origin)
        )
        equal[part] = (one == other).all(axis=1)
    repeats, origin = repeats[equal], origin[equal]
    return (who[repeats], step[repeats]), (who[origin], step[origin])


# --- the severity grid --------------------------------------------------------------------------------------


class _Grid:
    """The attenuated states of a chunk, and what is known of them: lambda* and the margins of attenuate_all."""

    def __init__(self, chunk: _Chunk, rank: Ranks, predicted: Integers, path: Floats) -> None:
        self.chunk, self.x, self.rows, self.asked, self.calls = chunk, chunk.x, chunk.rows, chunk.asked, chunk.calls
        self.predicted, self.path = predicted, path
        self.bare: Floats | None = None  # (m, C) probabilities with everything removed that is there
        self.toward = chunk.target - self.x  # (m, d)
        self.jump = self.rows.stepwise | np.isnan(self.x)  # (m, d) cells that cannot be interpolated
        self.any_jump = bool(self.jump.any())
        self.outside = {width: rank >= width for width in self.asked.widths if width < self.asked.n_groups}
        self.threshold = np.full((len(self.x), len(self.asked.widths)), np.inf)
        self.fade_margin = np.full((len(self.x), self.asked.fade_steps), np.nan)
        self.known = np.zeros(self.threshold.shape, dtype=bool)  # rows whose attenuated groups can only jump
        if self.any_jump:
            self._fill_known()

    def _fill_known(self) -> None:
        """Fill in the rows whose attenuated groups can only jump.

        Below severity 0.5 such a row is x itself, from 0.5 on it is the removal of those groups.
        """
        asked = self.asked
        jumps_at = next((severity for severity in asked.severities if severity >= STEP), np.inf)
        still = self.jump | (self.toward == 0)
        for j, width in enumerate(asked.widths):
            if not asked.removal_known(width):
                continue
            self.known[:, j] = (still | self.outside.get(width, False)).all(axis=1)
            who = np.flatnonzero(self.known[:, j])
            if not len(who) or (np.isinf(jumps_at) and j != asked.fading):
                continue
            gone = self.removed(width, who)
            self.threshold[who[self._flips(gone, who)], j] = jumps_at
            if j == asked.fading:
                before, after = (asked.rule.margin(p, self.predicted[who]) for p in (self.path[who, 0], gone))
                for i, severity in enumerate(asked.severities):
                    margins = after if severity >= STEP else before
                    self.fade_margin[who, i] = np.where(severity >= self.threshold[who, j], np.nan, margins)

    def ask(self, at_once: int) -> None:
        """Ask for the severities, some at once; rows that flipped at smaller ones are not asked again."""
        for start in range(0, len(self.asked.severities), at_once):
            live = [np.flatnonzero(rows) for rows in (np.isinf(self.threshold) & ~self.known).T]
            answers = [
                [self._reserve(width, severity, who) for who, width in zip(live, self.asked.widths, strict=True)]
                for severity in self.asked.severities[start : start + at_once]
            ]
            self.calls.flush()
            for i, given in enumerate(answers, start):
                for j, (who, p) in enumerate(zip(live, given, strict=True)):
                    self._note_flips(i, j, who, p)

    def _note_flips(self, i: int, j: int, who: Integers, p: Floats) -> None:
        """Enter the answers p (len(who), C) at severity i of operator j."""
        holding = np.isinf(self.threshold[who, j])  # others have flipped at a smaller severity that was asked at once
        who, p = who[holding], p[holding]
        flipped = self._flips(p, who)
        self.threshold[who[flipped], j] = self.asked.severities[i]
        if j == self.asked.fading:
            margins = self.asked.rule.margin(p, self.predicted[who])
            self.fade_margin[who, i] = np.where(flipped, np.nan, margins)

    def _flips(self, p: Floats, who: Integers) -> Booleans:
        """Return where rows ``who`` flip at states of probabilities p (len(who), C)."""
        return self.asked.rule.flips(p, self.predicted[who])

    def _reserve(self, width: int, severity: float, who: Integers) -> Floats:
        """Return (len(who), C) probabilities of rows with ``width`` groups attenuated; filled at the next flush.

        Cells follow the rule of ``evidence.blend``, without its temporaries.
        """
        p = np.empty((len(who), self.path.shape[2]))
        if severity == 1.0 and self.asked.removal_known(width):
            p[:] = self.removed(width, who)
        elif len(who):
            state, some = self.calls.reserve(len(who), p, slice(None)), _select(who, len(self.x))
            own = self.x[some]
            if severity >= 1.0:
                state[:] = self.chunk.target_of(some)
            else:
                np.multiply(self.toward[some], severity, out=state)
                state += own
                if self.any_jump:
                    np.copyto(state, self.chunk.target_of(some) if severity >= STEP else own, where=self.jump[some])
            if width in self.outside:
                np.copyto(state, own, where=self.outside[width][some])
        return p

    def removed(self, width: int, who: Integers) -> Floats:
        """Return (len(who), C) probabilities with the first ``width`` groups removed, where that state is known."""
        if self.asked.on_path(width):
            return np.asarray(self.path[who, width])
        if not len(who):
            return np.asarray(self.path[who, 0])
        if self.chunk.spared is None:
            return np.tile(self.calls.everything_removed(), (len(who), 1))
        return np.asarray(self._everything_removed(self.chunk.spared)[who])

    def _everything_removed(self, spared: Spared) -> Floats:
        """Return (m, C) probabilities with everything removed; a row that lacks evidence has its own such state."""
        if self.bare is None:
            self.bare = np.tile(self.calls.everything_removed(), (len(self.x), 1))
            own = np.flatnonzero(spared.cells.any(axis=1))
            self.bare[own] = self.rows.predict(self.chunk.target[own])
            self.calls.evaluations += len(own)
        return self.bare
