"""Black-box engine: certificates of any model, through its probabilities alone.

It asks for each distinct state once: equal rows are audited once; rows whose paths meet share what is left of them; a
group that already lies at its baseline leaves the state as it was; the first step of the path is a one-step state
already known; full attenuation is a removal already known, and so is any attenuation of values that can only jump; and
once a severity has flipped a row, larger ones are not asked. States are handed over in batches bounded by a byte
budget, and no result depends on the batch a row is in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.agreement import original_class
from fragility.engines.trace import Progress, Trace
from fragility.evidence import STEP, EvidenceRows
from fragility.protocol import Protocol, operator_width
from fragility.scores import (
    Booleans,
    Floats,
    Integers,
    reading_margin,
    removal_order,
    state_prediction,
    support_margin,
)

DEFAULT_BYTE_BUDGET = 256 * 2**20
ENGINE = "blackbox"
Ranks: TypeAlias = npt.NDArray[np.int32]  # (n, d) step at which each column's group is removed, from 0


def trace_blackbox(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: Progress | None = None,
) -> Trace:
    """Return the trace of every row; ``byte_budget`` bounds the stressed rows held at a time."""
    capacity = max(1, byte_budget // (2 * 8 * rows.width))  # half for the batch, half for its making
    distinct, copy_of = _distinct_rows(rows.matrix, rows.decided)
    chunk_rows = max(1, capacity // 4)  # a chunk's own arrays must fit as well
    phase_states = max(len(protocol.groups), protocol.depth, len(protocol.operators), 1)
    calls = _Calls.within(capacity, rows, min(chunk_rows, len(distinct)) * phase_states)
    parts = []
    for start in range(0, len(distinct), chunk_rows):
        chosen = distinct[start : start + chunk_rows]
        parts.append(_trace_chunk(_dense_rows(rows, chosen), chosen, rows, protocol, calls))
        if progress is not None:
            progress(len(rows) * (start + len(chosen)) // len(distinct), len(rows))
    arrays = {
        f.name: np.concatenate([getattr(part, f.name) for part in parts])[copy_of]
        for f in fields(Trace)
        if f.name not in ("evaluations", "engine")
    }
    return Trace(**arrays, evaluations=calls.evaluations, engine=ENGINE)


def _dense_rows(rows: EvidenceRows, chosen: Integers) -> Floats:
    part = rows.matrix[chosen]
    return part.toarray() if sp.issparse(part) else np.asarray(part, dtype=np.float64)


def _distinct_rows(matrix: Any, decided: Integers | None) -> tuple[Integers, Integers]:
    """Return (positions of the distinct rows, for each row the index of its copy among them)."""
    n = matrix.shape[0]
    everyone = np.arange(n)
    if sp.issparse(matrix):
        return everyone, everyone
    bits = np.ascontiguousarray(matrix, dtype=np.float64).view(np.uint64)
    keys = bits @ _multipliers(matrix.shape[1])  # wrapping arithmetic: equal rows have equal keys
    _, first, copy_of = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == n or not (bits == bits[first][copy_of]).all():  # nothing to gain, or (never seen) a clash
        return everyone, everyone
    if decided is not None and not (decided == decided[first][copy_of]).all():  # a tie that the model settled both ways
        return everyone, everyone
    by_position = np.argsort(first)
    rank = np.empty_like(by_position)
    rank[by_position] = np.arange(len(first))
    return first[by_position], rank[copy_of]


def _multipliers(d: int) -> npt.NDArray[np.uint64]:
    """Return d fixed odd numbers; a row's key is the wrapping sum of its cells' bits times these."""
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

    @classmethod
    def within(cls, capacity: int, rows: EvidenceRows, most: int) -> _Calls:
        """Return calls of at most ``capacity`` rows, where no phase asks for more than ``most``."""
        # One buffer for all phases: memory touched for the first time costs more than filling it.
        return cls(rows, capacity, np.empty((min(capacity, most), rows.width)))

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


def _trace_chunk(x: Floats, chosen: Integers, rows: EvidenceRows, protocol: Protocol, calls: _Calls) -> Trace:
    p0 = _ask_originals(x, calls, rows.n_classes)
    predicted = original_class(rows, p0, protocol.resolution, chosen)
    margin = reading_margin(p0, predicted, protocol.reading, rows.offset)
    one_step = _ask_one_steps(x, p0, rows, calls)
    one_step_margin = reading_margin(one_step, predicted[:, None], protocol.reading, rows.offset)
    order = removal_order(margin[:, None] - one_step_margin, protocol.resolution)
    # (n, d): when each column's group is removed; narrow, because it is read for every state
    rank = np.argsort(order, axis=1).astype(np.int32)[:, rows.column_group]
    path = _ask_path(x, p0, one_step, order, rank, rows, protocol.depth, calls)
    everyone = np.arange(len(x))
    return Trace(
        predicted=predicted,
        confidence=p0[everyone, predicted],
        margin=margin,
        one_step_margin=one_step_margin,
        one_step_confidence=np.take_along_axis(one_step, predicted[:, None, None], axis=2)[:, :, 0],
        order=order[:, : protocol.depth],
        path_margin=reading_margin(path, predicted[:, None], protocol.reading, rows.offset),
        path_predicted=state_prediction(path, predicted[:, None], protocol.resolution, rows.offset),
        threshold=_ask_thresholds(x, predicted, path, rank, rows, protocol, calls),
        evaluations=0,
        engine=ENGINE,
    )


def _ask_originals(x: Floats, calls: _Calls, n_classes: int) -> Floats:
    p = np.empty((len(x), n_classes))
    calls.reserve(len(x), p, slice(None))[:] = x
    calls.flush()
    return p


def _at_baseline(x: Floats, baseline: Floats) -> Booleans:
    return np.asarray((x == baseline) | (np.isnan(x) & np.isnan(baseline)))


def _ask_one_steps(x: Floats, p0: Floats, rows: EvidenceRows, calls: _Calls) -> Floats:
    """Return (n, G, C) probabilities with each group removed alone; a group at its baseline changes nothing."""
    one_step = np.repeat(p0[:, None, :], rows.n_groups, axis=1)
    for g, columns in enumerate(rows.group_columns()):
        moving = np.flatnonzero(~_at_baseline(x[:, columns], rows.baseline[columns]).all(axis=1))
        if len(moving):
            state = calls.reserve(len(moving), one_step, (moving, g))
            state[:] = x if len(moving) == len(x) else x[moving]
            state[:, columns] = rows.baseline[columns]
    calls.flush()
    return one_step


def _ask_path(
    x: Floats,
    p0: Floats,
    one_step: Floats,
    order: Integers,
    rank: Ranks,
    rows: EvidenceRows,
    depth: int,
    calls: _Calls,
) -> Floats:
    """Return (n, K+1, C) probabilities after 0..K removals."""
    everyone = np.arange(len(x))
    path = np.empty((len(x), depth + 1, p0.shape[1]))
    path[:, 0] = p0
    path[:, 1] = one_step[everyone, order[:, 0]]
    at_baseline = np.stack(
        [_at_baseline(x[:, columns], rows.baseline[columns]).all(axis=1) for columns in rows.group_columns()], axis=1
    )
    same = np.take_along_axis(at_baseline, order[:, :depth], axis=1)  # step k changes nothing
    asked = ~same
    asked[:, 0] = False  # the first step is a one-step state
    copies, sources = _meeting_states(x, order[:, :depth], rank, rows, asked, calls.capacity)
    asked[copies] = False
    for k in range(2, depth + 1):
        moving = np.flatnonzero(asked[:, k - 1])
        if len(moving):
            state = calls.reserve(len(moving), path, (moving, k))
            whole = len(moving) == len(x)
            state[:] = x if whole else x[moving]
            np.copyto(state, rows.baseline, where=(rank if whole else rank[moving]) < k)
    calls.flush()
    path[:, 1:][copies] = path[:, 1:][sources]
    for k in range(2, depth + 1):
        path[same[:, k - 1], k] = path[same[:, k - 1], k - 1]
    return path


Places: TypeAlias = tuple[Integers, Integers]  # rows, and steps of their paths counted from 0


def _meeting_states(
    x: Floats, order: Integers, rank: Ranks, rows: EvidenceRows, asked: Booleans, capacity: int
) -> tuple[Places, Places]:
    """Return (states of the path that another row's path passes through as well, those other states).

    A state's key is a sum over groups, so each step of a path changes it by one group's difference. Equal keys are
    only a hint: the states themselves are compared.
    """
    bits, base = x.view(np.uint64), rows.baseline.view(np.uint64)
    multipliers = _multipliers(rows.width)
    change = np.stack([(base[c] - bits[:, c]) @ multipliers[c] for c in rows.group_columns()], axis=1)
    keys = (bits @ multipliers)[:, None] + np.cumsum(np.take_along_axis(change, order, axis=1), axis=1, dtype=np.uint64)
    who, step = np.nonzero(asked)
    _, first, key_of = np.unique(keys[who, step], return_index=True, return_inverse=True)
    repeats = np.flatnonzero(first[key_of] != np.arange(len(who)))
    origin = first[key_of[repeats]]
    equal = np.empty(len(repeats), dtype=bool)
    for start in range(0, len(repeats), capacity):
        part = slice(start, start + capacity)
        one, other = (
            np.where(rank[who[at]] <= step[at][:, None], base, bits[who[at]]) for at in (repeats[part], origin[part])
        )
        equal[part] = (one == other).all(axis=1)
    repeats, origin = repeats[equal], origin[equal]
    return (who[repeats], step[repeats]), (who[origin], step[origin])


def _ask_thresholds(
    x: Floats,
    predicted: Integers,
    path: Floats,
    rank: Ranks,
    rows: EvidenceRows,
    protocol: Protocol,
    calls: _Calls,
) -> Floats:
    """Return (n, P) lambda*; rows that have flipped are not asked again at larger severities."""
    widths = [operator_width(operator, rows.n_groups) for operator in protocol.operators]
    threshold = np.full((len(x), len(widths)), np.inf)
    toward = rows.baseline - x
    jump = rows.stepwise | np.isnan(x)
    any_jump = bool(jump.any())
    known = np.zeros(threshold.shape, dtype=bool)
    if any_jump:
        for j, width in enumerate(widths):
            known[:, j] = _fill_known(
                threshold[:, j], width, jump | (toward == 0), predicted, path, rank, protocol, calls
            )
    outside = {width: rank >= width for width in widths if width < rows.n_groups}
    for severity in protocol.severities:
        live = [np.flatnonzero(np.isinf(threshold[:, j]) & ~known[:, j]) for j in range(len(widths))]
        answers = [np.empty((len(who), path.shape[2])) for who in live]
        for who, width, p in zip(live, widths, answers, strict=True):
            if severity == 1.0 and width <= protocol.depth:
                p[:] = path[who, width]  # full attenuation of the first j groups is their removal
            elif severity == 1.0 and width == rows.n_groups and len(who):
                p[:] = calls.everything_removed()
            elif len(who):
                state = calls.reserve(len(who), p, slice(None))
                _attenuate(state, x, toward, jump if any_jump else None, severity, who, rows)
                if width < rows.n_groups:
                    np.copyto(state, x[who], where=outside[width][who])
        calls.flush()
        for j, (who, p) in enumerate(zip(live, answers, strict=True)):
            flipped = support_margin(p, predicted[who], rows.offset) < -protocol.resolution
            threshold[who[flipped], j] = severity
    return threshold


def _fill_known(
    threshold: Floats,
    width: int,
    still: Booleans,
    predicted: Integers,
    path: Floats,
    rank: Ranks,
    protocol: Protocol,
    calls: _Calls,
) -> Booleans:
    """Fill in lambda* of rows whose first ``width`` groups can only jump; return which rows these are.

    Below severity 0.5 such a row is x itself, from 0.5 on it is the removal of those groups.
    """
    n_groups = len(protocol.groups)
    if not (width <= protocol.depth or width == n_groups):
        return np.zeros(len(still), dtype=bool)
    known = np.asarray((still | (rank >= width)).all(axis=1))
    who = np.flatnonzero(known)
    jumps_at = next((severity for severity in protocol.severities if severity >= STEP), None)
    if len(who) and jumps_at is not None:
        removed = path[who, width] if width <= protocol.depth else np.tile(calls.everything_removed(), (len(who), 1))
        flipped = support_margin(removed, predicted[who], calls.rows.offset) < -protocol.resolution
        threshold[who[flipped]] = jumps_at
    return known


def _attenuate(
    state: Floats, x: Floats, toward: Floats, jump: Booleans | None, severity: float, who: Integers, rows: EvidenceRows
) -> None:
    """Fill ``state`` with rows ``who`` at ``severity``: the rule of ``evidence.blend``, without its temporaries."""
    if severity >= 1.0:
        state[:] = rows.baseline
        return
    whole = len(who) == len(x)
    own = x if whole else x[who]
    np.multiply(toward if whole else toward[who], severity, out=state)
    state += own
    if jump is not None:
        target = np.broadcast_to(rows.baseline, own.shape) if severity >= STEP else own
        np.copyto(state, target, where=jump if whole else jump[who])
