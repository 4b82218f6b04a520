"""Is a trace right? An engine's is compared with the black box on a few rows, and with the model on every row.

On the first rows every state is compared (`compare_traces`). Floats may differ by the engine's tolerance. Orders,
predictions and thresholds must be equal, unless the model confirms that a state lies within rounding of a flip.

Later rows may hold what the first do not: an unknown category, a placeholder such as 999999999999, a cell at the very
edge of a rule. So every row is looked at, and the model itself is asked about a row in doubt:

    unpromised   the engine itself knows that it may not read some cell of the row as the model does (its ``doubts``)
    contradicted the engine's margin differs from the model's own, at x or at one other state of the row's trace, which
                 follows from the row's id

Whether a row is in doubt depends on that row alone, never on the batch or the part it came in.

A model may count the rows that it is asked about at once. So some random states of every trace are asked alone and in
batches of other sizes as well (`check_steady_states`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.base.errors import ModelError
from fragility.base.ids import id_keys
from fragility.engines.engine import Engine
from fragility.engines.trace import Trace, original_confidence
from fragility.evidence import EvidenceRows, Spared, States, blend
from fragility.evidence.agreement import PROBABILITY_ROUNDING, ROUNDING, original_class
from fragility.evidence.protocol_parts import operator_width
from fragility.protocol import Protocol
from fragility.scores import removal_order

BATCH_ROWS = 16384
STEADY_STATES = 256  # of a trace, that are asked again in other batches
LONE_STATES = 8  # of them, that are asked alone
COPIES = 8  # of the cells of a batch: x, its stressed copy and what is needed to make it


# --- the first rows, in every state -------------------------------------------------------------------------


def compare_traces(
    claimed: Trace, asked: Trace, rows: EvidenceRows, protocol: Protocol, tolerance: float
) -> str | None:
    """Return how a native trace contradicts the black box's trace of the same rows; None if it does not."""
    comparison = _Comparison(claimed, asked, rows, protocol, tolerance)
    gap = comparison.find_largest_gap()
    if not gap <= tolerance:  # NaN is no agreement
        return f"differs from {rows.model.kind}'s own probabilities by {gap:.3g}"
    for claim, wrong in [
        ("predictions", comparison.count_wrong_predictions()),
        ("orders of removal", comparison.count_wrong_orders()),
        ("predictions along the path", comparison.count_wrong_steps()),
        ("flip thresholds", comparison.count_wrong_thresholds()),
    ]:
        if wrong:
            return f"differs from {rows.model.kind}'s own {claim} in {wrong} of {len(rows)} rows"
    return None


@dataclass(frozen=True)
class _Comparison:
    claimed: Trace
    asked: Trace
    rows: EvidenceRows
    protocol: Protocol
    tolerance: float

    def find_largest_gap(self) -> float:
        """Return the largest difference of margins and confidences over all states that both have visited."""
        a, b = self.claimed, self.asked
        same = a.predicted == b.predicted
        names = ("margin", "confidence", "one_step_margin", "one_step_confidence")
        gaps = [np.abs(getattr(a, name) - getattr(b, name))[same] for name in names]
        gaps.append(np.abs(a.path_margin - b.path_margin)[self.find_shared_steps()])
        both_fade = same[:, None] & ~np.isnan(a.fade_margin) & ~np.isnan(b.fade_margin)
        gaps.append(np.abs(a.fade_margin - b.fade_margin)[both_fade])
        gaps.append(np.abs(a.bare_margin - b.bare_margin)[same])
        return float(np.max(np.concatenate([part.ravel() for part in gaps]), initial=0.0))

    def find_shared_steps(self) -> Booleans:
        """(n, K+1): where both paths have removed the same groups, for the same predicted class."""
        steps = range(self.protocol.depth + 1)
        return np.stack([self.have_same_groups(self.claimed.order, self.asked.order, k) for k in steps], axis=1)

    def have_same_groups(self, one: Integers, other: Integers, width: int) -> Booleans:
        """(n,): whether the first ``width`` groups of two orders are the same ones, for the same predicted class."""
        same = (np.sort(one[:, :width], axis=1) == np.sort(other[:, :width], axis=1)).all(axis=1)
        return np.asarray(same & (self.claimed.predicted == self.asked.predicted))

    def count_wrong_predictions(self) -> int:
        """Another class may be named only where two lie within rounding of the resolution."""
        differs = np.flatnonzero(self.claimed.predicted != self.asked.predicted)
        p = self.rows.predict(self.rows.dense()[differs]) if len(differs) else np.empty((0, self.rows.n_classes))
        support = self.protocol.rule(self.rows.offset).support(p, self.claimed.predicted[differs])
        return int((support < -self.protocol.resolution - 2 * self.tolerance).sum())

    def count_wrong_orders(self) -> int:
        """Two groups may change places only where their drops round to the resolution's other side."""
        drops = self.asked.margin[:, None] - self.asked.one_step_margin
        mine, theirs = (np.take_along_axis(drops, t.order, axis=1) for t in (self.claimed, self.asked))
        apart = (np.abs(mine - theirs) > self.protocol.resolution + 4 * self.tolerance).any(axis=1)
        twice = (np.diff(np.sort(self.claimed.order, axis=1), axis=1) == 0).any(axis=1)
        return int((twice | (apart & (self.claimed.predicted == self.asked.predicted))).sum())

    def count_wrong_steps(self) -> int:
        named, order = self.claimed.path_predicted, self.asked.order
        disputed = np.argwhere((named != self.asked.path_predicted) & self.find_shared_steps())
        return len(
            {i for i, k in disputed.tolist() if not self.does_rounding_decide(i, order[i, :k], 1.0, named[i, k])}
        )

    def count_wrong_thresholds(self) -> int:
        absent = None if self.rows.absent is None else self.rows.absent.groups()
        one, other = (
            removal_order(t.margin[:, None] - t.one_step_margin, self.protocol.resolution, absent)
            for t in (self.claimed, self.asked)
        )
        wrong: set[int] = set()
        for j, operator in enumerate(self.protocol.operators):
            width = operator_width(operator, self.rows.n_groups)
            mine, theirs = self.claimed.threshold[:, j], self.asked.threshold[:, j]
            disputed = np.flatnonzero((mine != theirs) & self.have_same_groups(one, other, width)).tolist()
            first = np.minimum(mine, theirs)  # severity of a flip
            wrong |= {i for i in disputed if not self.does_rounding_decide(i, other[i, :width], first[i])}
        return len(wrong)

    def does_rounding_decide(self, i: int, groups: Integers, severity: float, named: int | None = None) -> bool:
        """Ask the model about one state: is it within rounding of a flip, or (``named``) of another class's lead?"""
        moved = np.isin(np.arange(self.rows.n_groups), groups)[None]
        state = replace(States.of_one(moved), severity=np.array([severity]))
        state = state.sparing(self.rows.spared(i, i + 1), self.rows.column_group)
        p = self.rows.predict(self.rows.stressed(self.rows.dense(i, i + 1), state))[0]
        edge, rule = 2 * self.tolerance, self.protocol.rule(self.rows.offset)
        support = float(rule.support(p, self.asked.predicted[i]))
        if abs(support + self.protocol.resolution) <= edge:
            return True
        rivals = self.protocol.resolution + edge  # several classes that close: the first of them is named
        return named is not None and support < 0 and float(rule.support(p, named)) >= -rivals


# --- every row of a trace -----------------------------------------------------------------------------------


def find_contradicted_claims(trace: Trace, rows: EvidenceRows, protocol: Protocol, engine: Engine) -> Booleans:
    """Return (n,) the rows whose margins the model's own answers deny, at x or at one other state."""
    wrong = np.zeros(len(rows), dtype=bool)
    step = rows_within(DEFAULT_BYTE_BUDGET, rows.width, copies=COPIES, most=BATCH_ROWS)
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        seen, x = trace.rows(part), rows.dense(part.start, part.stop)
        p = q = rows.own_probabilities(start, x)
        original_class(rows, p, protocol.resolution, part)  # refuses a model whose predict contradicts it
        claimed = None
        if not engine.bounded:  # else its rounding is known for every row: no other state says more
            spared = rows.spared(part.start, part.stop)
            cells, claimed = draw_states(seen, x, spared, rows, protocol, draw_by_id(rows.ids[part]))
            q = rows.predict(cells)
        wrong[part] = find_contradicted_margins(seen, rows, protocol, engine, p, q, claimed)
    return wrong


def find_contradicted_margins(
    seen: Trace, rows: EvidenceRows, protocol: Protocol, engine: Engine, p: Floats, q: Floats, claimed: Floats | None
) -> Booleans:
    """Return (m,) the rows that the model denies by its probabilities p (m, C) at x, or q at a state claimed (m,)."""
    rule = protocol.rule(rows.offset)
    # no further from the model's own margin than the protocol lets a verifier find it
    tolerance = min(engine.tolerance, max(protocol.resolution, engine.rounding))
    wrong = _differ(rule.margin(p, seen.predicted), seen.margin, tolerance)
    wrong |= _differ(original_confidence(p, seen.predicted), seen.confidence, tolerance)
    if claimed is not None:
        stands = rule.support(q, seen.predicted) >= -protocol.resolution + 2 * tolerance
        differs = _differ(rule.margin(q, seen.predicted), claimed, tolerance)
        wrong |= np.where(np.isnan(claimed), stands, differs)
    return wrong


def _differ(own: Floats, claimed: Floats, tolerance: float) -> Booleans:
    """Return where two numbers differ by more than rounding; NaN differs from everything."""
    return np.asarray(~(np.abs(own - claimed) <= tolerance * (1.0 + 1e-3 * np.abs(own))))


def draw_by_id(ids: Sequence[Hashable]) -> Integers:
    """Return (m,) numbers that follow from the ids, so that a row draws the same state wherever it stands."""
    words = np.frombuffer(id_keys(ids).tobytes(), dtype=">u8").reshape(-1, 2)[:, 0]
    return (words >> np.uint64(11)).astype(np.int64)


def draw_states(
    seen: Trace, x: Floats, spared: Spared | None, rows: EvidenceRows, protocol: Protocol, drawn: Integers
) -> tuple[Floats, Floats]:
    """Return one state per row and the margin claimed there.

    It is a step of the row's path, a severity at which all evidence fades, or the loss of all evidence. A state is
    returned as cells (m, d). A claim of NaN says that the prediction has flipped there.

    drawn: (m,) whole numbers, which choose the states modulo their number.
    """
    depth, everyone = protocol.depth, np.arange(len(x))
    bare = depth + seen.fade_margin.shape[1]
    choice = drawn % (bare + 1)
    step = np.minimum(choice, depth - 1) + 1
    claimed = seen.path_margin[everyone, step]
    rank = np.full((len(x), rows.n_groups), rows.n_groups)  # place of each group in the order
    np.put_along_axis(rank, seen.order, np.arange(seen.order.shape[1])[None], axis=1)
    target = rows.targets(x, spared)
    cells = np.where((rank < step[:, None])[:, rows.column_group], target, x)
    lost = choice == bare
    claimed[lost], cells[lost] = seen.bare_margin[lost], np.broadcast_to(target, x.shape)[lost]
    fading = np.flatnonzero((choice >= depth) & ~lost)
    if len(fading) and protocol.fading is not None:
        at = choice[fading] - depth
        claimed[fading] = seen.fade_margin[fading, at]
        severity = np.where(
            np.isnan(claimed[fading]), seen.threshold[fading, protocol.fading], np.array(protocol.severities)[at]
        )
        target = target if spared is None else target[fading]
        cells[fading] = blend(x[fading], target, severity[:, None], rows.stepwise)
    return cells, claimed


# --- a few states, alone and in other batches ----------------------------------------------------------------


def check_steady_states(
    trace: Trace, rows: EvidenceRows, protocol: Protocol, seed: int = 0, lone: int | None = None, parts: int = 1
) -> None:
    """Ask about random states of a trace alone and in batches of other sizes; refuse a model that answers differently.

    seed: of the choice of states and sizes; an audit always makes the same choice, a verifier draws a new one.
    lone: how many states are asked alone; by default one for every four rows, up to `LONE_STATES`.
    parts: how many traces of an audit share these numbers; one state alone and two together are asked of each.
    """
    most, states = -(-LONE_STATES // parts), max(-(-STEADY_STATES // parts), 2)
    lone, chance = min(most, len(rows) // 4) if lone is None else lone, np.random.default_rng(seed)
    if not lone or not len(rows):
        return
    count = max(min(states, max(len(rows), 2 * lone)), 2 * lone)
    chosen = np.resize(chance.permutation(len(rows)), count)
    few, seen = rows.take(chosen.tolist()), trace.rows(chosen)
    on_path, fades = chance.integers(protocol.depth, size=count), seen.fade_margin.shape[1]
    off_path = protocol.depth + chance.integers(fades + 1, size=count)
    choice = np.where(chance.random(count) < 0.5, on_path, off_path)
    cells, claimed = draw_states(seen, few.dense(), few.spared(), few, protocol, choice)
    sizes = [1] * lone
    while sum(sizes) < len(chosen):
        sizes.append(int(2.0 ** chance.uniform(1.0, 8.0)))
    stops = np.cumsum(sizes)
    p = np.concatenate([few.predict(cells[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)])
    rule = protocol.rule(rows.offset)
    own, support = rule.margin(p, seen.predicted), rule.support(p, seen.predicted)
    rounding = max(protocol.resolution, ROUNDING)
    apart = np.abs(1 / (1 + np.exp(-own)) - 1 / (1 + np.exp(-claimed))) > PROBABILITY_ROUNDING
    differs = np.where(np.isnan(claimed), support > 2 * rounding, apart & _differ(own, claimed, 2 * rounding))
    if differs.any():
        i = int(np.argmax(differs))
        alone = "alone" if i < lone else f"in a batch of {sizes[int(np.searchsorted(stops, i, side='right'))]}"
        raise ModelError(
            f"{rows.model.kind} answers a stressed row otherwise when it is asked {alone} than among the states of an "
            f"audit (row {few.ids[i]!r}; {differs.sum()} of {len(chosen)} states that were tried): its answers depend "
            "on how many rows it is asked about at once, so they cannot be certified; give a model that answers row by "
            "row"
        )
