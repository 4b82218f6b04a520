"""Black-box engine: certificates of any model, through its probabilities alone.

It asks for each distinct state once: equal rows are audited once; rows whose paths meet share what is left of them; a
group that already lies at its baseline leaves the state as it was; the first step of the path is a one-step state
already known; full attenuation is a removal already known, and so is any attenuation of values that can only jump; and
once a severity has flipped a row, larger ones are not asked. States are handed over in batches bounded by a byte
budget, and no result depends on the batch a row is in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.engines.trace import Progress, StatesAsked, Trace, original_confidence
from fragility.evidence import STEP, EvidenceRows
from fragility.evidence.agreement import original_class
from fragility.protocol import Protocol
from fragility.scores import removal_order, state_prediction, support_margin

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

    severities_at_once: of the grid; more mean fewer, larger calls, and states that a flip would have spared. For a few
    rows, where calls cost more than states.
    """
    asked = StatesAsked.of(protocol, rows.n_groups)
    capacity = rows_within(byte_budget, rows.width, copies=2)  # half for the batch, half for its making
    distinct, copy_of = _distinct_rows(rows.matrix, rows.decided)
    chunk_rows = max(1, capacity // 4)  # a chunk's own arrays must fit as well
    phase_states = max(asked.n_groups, asked.depth, len(asked.widths) * severities_at_once, 1)
    calls = _Calls.within(capacity, rows, min(chunk_rows, len(distinct)) * phase_states)
    parts = []
    for start in range(0, len(distinct), chunk_rows):
        chosen = distinct[start : start + chunk_rows]
        parts.append(_trace_chunk(_dense_rows(rows, chosen), chosen, rows, asked, calls, severities_at_once))
        if progress is not None:
            progress(len(rows) * (start + len(chosen)) // len(distinct), len(rows))
    return replace(Trace.join(parts).rows(copy_of), evaluations=calls.evaluations)


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
    keys = bits @ multipliers(matrix.shape[1])  # wrapping arithmetic: equal rows have equal keys
    _, first, copy_of = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == n or not (bits == bits[first][copy_of]).all():  # nothing to gain, or (never seen) a clash
        return everyone, everyone
    if decided is not None and not (decided == decided[first][copy_of]).all():  # a tie that the model settled both ways
        return everyone, everyone
    by_position = np.argsort(first)
    rank = np.empty_like(by_position)
    rank[by_position] = np.arange(len(first))
    return first[by_position], rank[copy_of]


def multipliers(d: int) -> npt.NDArray[np.uint64]:
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


class _Chunk(NamedTuple):
    """Some rows whose removal order is known: m rows, d columns."""

    x: Floats  # (m, d)
    rank: Ranks
    rows: EvidenceRows
    asked: StatesAsked
    calls: _Calls


def _trace_chunk(
    x: Floats, chosen: Integers, rows: EvidenceRows, asked: StatesAsked, calls: _Calls, severities_at_once: int
) -> Trace:
    resolution = asked.resolution
    p0 = _ask_originals(x, calls, rows.n_classes)
    predicted = original_class(rows, p0, resolution, chosen)
    original = predicted[:, None]
    margin = asked.margins(p0, predicted, rows.offset)
    one_step = _ask_one_steps(x, p0, rows, calls)
    one_step_margin = asked.margins(one_step, original, rows.offset)
    order = removal_order(margin[:, None] - one_step_margin, resolution)
    # (m, d): when each column's group is removed; narrow, because it is read for every state
    rank = np.argsort(order, axis=1).astype(np.int32)[:, rows.column_group]
    chunk = _Chunk(x, rank, rows, asked, calls)
    path = _ask_path(chunk, p0, one_step, order)
    threshold, fade_margin = _ask_thresholds(chunk, predicted, path, severities_at_once)
    return Trace(
        predicted=predicted,
        confidence=original_confidence(p0, predicted),
        margin=margin,
        one_step_margin=one_step_margin,
        one_step_confidence=original_confidence(one_step, original),
        order=order[:, : asked.depth],
        path_margin=asked.margins(path, original, rows.offset),
        path_predicted=state_prediction(path, original, resolution, rows.offset),
        threshold=threshold,
        fade_margin=fade_margin,
        evaluations=0,  # counted by the calls, for all chunks
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


# --- the path -----------------------------------------------------------------------------------------------


def _ask_path(chunk: _Chunk, p0: Floats, one_step: Floats, order: Integers) -> Floats:
    """Return (m, K+1, C) probabilities after 0..K removals, from those of x (m, C) and of one step (m, G, C)."""
    x, rank, rows, asked, calls = chunk
    path = np.empty((len(x), asked.depth + 1, p0.shape[1]))
    path[:, 0] = p0
    path[:, 1] = one_step[np.arange(len(x)), order[:, 0]]
    same = _idle_steps(chunk, order)
    new = ~same
    new[:, 0] = False  # the first step is a one-step state
    copies, sources = _meeting_states(chunk, order[:, : asked.depth], new)
    new[copies] = False
    for k in range(2, asked.depth + 1):
        moving = np.flatnonzero(new[:, k - 1])
        if len(moving):
            state = calls.reserve(len(moving), path, (moving, k))
            whole = len(moving) == len(x)
            state[:] = x if whole else x[moving]
            np.copyto(state, rows.baseline, where=(rank if whole else rank[moving]) < k)
    calls.flush()
    path[:, 1:][copies] = path[:, 1:][sources]
    for k in range(2, asked.depth + 1):
        path[same[:, k - 1], k] = path[same[:, k - 1], k - 1]
    return path


def _idle_steps(chunk: _Chunk, order: Integers) -> Booleans:
    """Return (m, K): the steps of the path that remove a group which lies at its baseline already."""
    x, rows = chunk.x, chunk.rows
    idle = [_at_baseline(x[:, columns], rows.baseline[columns]).all(axis=1) for columns in rows.group_columns()]
    return np.take_along_axis(np.stack(idle, axis=1), order[:, : chunk.asked.depth], axis=1)


Places: TypeAlias = tuple[Integers, Integers]  # rows, and steps of their paths counted from 0


def _meeting_states(chunk: _Chunk, order: Integers, new: Booleans) -> tuple[Places, Places]:
    """Return (states of the path that another row's path passes through as well, those other states).

    order: (m, K), new: (m, K) the states to look at. Equal keys are only a hint: the states themselves are compared.
    """
    who, step = np.nonzero(new)
    _, first, key_of = np.unique(_path_keys(chunk, order)[who, step], return_index=True, return_inverse=True)
    repeats = np.flatnonzero(first[key_of] != np.arange(len(who)))
    origin = first[key_of[repeats]]
    equal = _equal_states(chunk, (who[repeats], step[repeats]), (who[origin], step[origin]))
    repeats, origin = repeats[equal], origin[equal]
    return (who[repeats], step[repeats]), (who[origin], step[origin])


def _path_keys(chunk: _Chunk, order: Integers) -> npt.NDArray[np.uint64]:
    """Return (m, K) keys: a key is a sum over groups, so each step of a path changes it by one group's difference."""
    bits, base = chunk.x.view(np.uint64), chunk.rows.baseline.view(np.uint64)
    factor = multipliers(chunk.rows.width)
    change = np.stack([(base[c] - bits[:, c]) @ factor[c] for c in chunk.rows.group_columns()], axis=1)
    steps = np.cumsum(np.take_along_axis(change, order, axis=1), axis=1, dtype=np.uint64)
    return np.asarray((bits @ factor)[:, None] + steps)


def _equal_states(chunk: _Chunk, some: Places, others: Places) -> Booleans:
    """Return where two states are the same row of cells, to the last bit."""
    bits, base = chunk.x.view(np.uint64), chunk.rows.baseline.view(np.uint64)
    equal = np.empty(len(some[0]), dtype=bool)
    for start in range(0, len(equal), chunk.calls.capacity):
        part = slice(start, start + chunk.calls.capacity)
        one, other = (
            np.where(chunk.rank[who[part]] <= step[part][:, None], base, bits[who[part]])
            for who, step in (some, others)
        )
        equal[part] = (one == other).all(axis=1)
    return equal


# --- the severity grid --------------------------------------------------------------------------------------


class _Motion(NamedTuple):
    """How the cells of a chunk move toward the baseline."""

    toward: Floats  # (m, d) baseline - x
    jump: Booleans  # (m, d) cells that cannot be interpolated
    any_jump: bool
    outside: dict[int, Booleans]  # by operator width: (m, d) cells of groups that it leaves alone


def _ask_thresholds(chunk: _Chunk, predicted: Integers, path: Floats, at_once: int) -> tuple[Floats, Floats]:
    """Return (m, P) lambda* and the (m, |Lambda|) margins of attenuate_all below its own.

    Rows that have flipped are not asked again at larger severities, those asked at once aside.
    """
    asked = chunk.asked
    motion = _motion_of(chunk)
    threshold, known = _known_thresholds(chunk, motion, predicted, path)
    fade_margin = _known_fading(chunk, known, threshold, predicted, path)
    for start in range(0, len(asked.severities), at_once):
        live = [np.flatnonzero(np.isinf(threshold[:, j]) & ~known[:, j]) for j in range(len(asked.widths))]
        answers = [
            [_ask_severity(chunk, motion, w, severity, who, path) for who, w in zip(live, asked.widths, strict=True)]
            for severity in asked.severities[start : start + at_once]
        ]
        chunk.calls.flush()
        for i, given in enumerate(answers, start):
            for j, (who, p) in enumerate(zip(live, given, strict=True)):
                _note_flips(chunk, (i, j), who, p, predicted, (threshold, fade_margin))
    return threshold, fade_margin


def _note_flips(
    chunk: _Chunk,
    at: tuple[int, int],
    who: Integers,
    p: Floats,
    predicted: Integers,
    known: tuple[Floats, Floats],
) -> None:
    """Enter the answers p (len(who), C) at one severity of one operator into lambda* and the fading margins."""
    (i, j), (threshold, fade_margin) = at, known
    asked, offset = chunk.asked, chunk.rows.offset
    standing = np.isinf(threshold[who, j])  # others have flipped at a smaller severity that was asked at once
    who, p = who[standing], p[standing]
    flipped = support_margin(p, predicted[who], offset) < -asked.resolution
    threshold[who[flipped], j] = asked.severities[i]
    if j == asked.fading:
        margins = asked.margins(p, predicted[who], offset)
        fade_margin[who, i] = np.where(flipped, np.nan, margins)


def _known_fading(chunk: _Chunk, known: Booleans, threshold: Floats, predicted: Integers, path: Floats) -> Floats:
    """Return (m, |Lambda|) margins of attenuate_all, filled in for rows whose cells can only jump; else NaN."""
    asked, offset = chunk.asked, chunk.rows.offset
    fade_margin = np.full((len(chunk.x), asked.fade_steps), np.nan)
    if asked.fading is None:
        return fade_margin
    who = np.flatnonzero(known[:, asked.fading])
    if len(who) == 0:
        return fade_margin
    still = asked.margins(path[who, 0], predicted[who], offset)
    gone = asked.margins(_removed(chunk, asked.n_groups, who, path), predicted[who], offset)
    for i, severity in enumerate(asked.severities):
        margins = gone if severity >= STEP else still
        fade_margin[who, i] = np.where(severity >= threshold[who, asked.fading], np.nan, margins)
    return fade_margin


def _motion_of(chunk: _Chunk) -> _Motion:
    jump = chunk.rows.stepwise | np.isnan(chunk.x)
    narrow = [width for width in chunk.asked.widths if width < chunk.asked.n_groups]
    outside = {width: chunk.rank >= width for width in narrow}
    return _Motion(chunk.rows.baseline - chunk.x, jump, bool(jump.any()), outside)


def _ask_severity(chunk: _Chunk, motion: _Motion, width: int, severity: float, who: Integers, path: Floats) -> Floats:
    """Return (len(who), C) probabilities of rows ``who`` with ``width`` groups attenuated; filled at the next flush."""
    p = np.empty((len(who), path.shape[2]))
    if severity == 1.0 and chunk.asked.removal_known(width):
        p[:] = _removed(chunk, width, who, path)
    elif len(who):
        state = chunk.calls.reserve(len(who), p, slice(None))
        _attenuate(state, chunk, motion, severity, who)
        if width in motion.outside:
            np.copyto(state, chunk.x[who], where=motion.outside[width][who])
    return p


def _removed(chunk: _Chunk, width: int, who: Integers, path: Floats) -> Floats:
    """Return (len(who), C) probabilities with the first ``width`` groups removed, where that state is known."""
    if chunk.asked.on_path(width):
        return np.asarray(path[who, width])
    return np.tile(chunk.calls.everything_removed(), (len(who), 1)) if len(who) else path[who, 0]


def _known_thresholds(chunk: _Chunk, motion: _Motion, predicted: Integers, path: Floats) -> tuple[Floats, Booleans]:
    """Return (m, P) lambda* of rows whose attenuated groups can only jump, and which rows these are; else infinity.

    Below severity 0.5 such a row is x itself, from 0.5 on it is the removal of those groups.
    """
    asked = chunk.asked
    threshold = np.full((len(chunk.x), len(asked.widths)), np.inf)
    known = np.zeros(threshold.shape, dtype=bool)
    jumps_at = next((severity for severity in asked.severities if severity >= STEP), None)
    if not motion.any_jump:
        return threshold, known
    still = motion.jump | (motion.toward == 0)
    for j, width in enumerate(asked.widths):
        if not asked.removal_known(width):
            continue
        known[:, j] = (still | (chunk.rank >= width)).all(axis=1)
        who = np.flatnonzero(known[:, j])
        if len(who) and jumps_at is not None:
            lost = (
                support_margin(_removed(chunk, width, who, path), predicted[who], chunk.rows.offset) < -asked.resolution
            )
            threshold[who[lost], j] = jumps_at
    return threshold, known


def _attenuate(state: Floats, chunk: _Chunk, motion: _Motion, severity: float, who: Integers) -> None:
    """Fill ``state`` with rows ``who`` at ``severity``: the rule of ``evidence.blend``, without its temporaries."""
    baseline = chunk.rows.baseline
    if severity >= 1.0:
        state[:] = baseline
        return
    whole = len(who) == len(chunk.x)
    own = chunk.x if whole else chunk.x[who]
    np.multiply(motion.toward if whole else motion.toward[who], severity, out=state)
    state += own
    if motion.any_jump:
        target = np.broadcast_to(baseline, own.shape) if severity >= STEP else own
        np.copyto(state, target, where=motion.jump if whole else motion.jump[who])
