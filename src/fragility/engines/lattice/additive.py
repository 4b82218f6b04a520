"""When a state flips, in the form that an additive model can answer; and the linear models.

A state flips when some rival class c beats the original class o by more than the resolution:

    log p~_c + a_c  >  log p~_o + a_o + resolution              p~ = max(p, 1e-12), a the decision's offsets

For a softmax (two classes: the logistic link) of raw scores f, and as long as no clip matters, this is

    E_c(S) = f_o(S) - f_c(S) + lead_oc  <  0                    lead_oc = resolution + a_o - a_c

and for averaged probabilities  E_c(S) = exp(lead_oc) p_o(S) - p_c(S) < 0: linear in the model's sums in both cases.

No clip matters while all |lead| < log(1e12) - log C. Let t be the most probable class, p_t >= 1/C. If p_o < 1e-12, then
t beats o both ways. If p_o >= 1e-12 and a rival of p_c < 1e-12 beats it only because of the clip, then log p_o is
below -log(1e12) + a_c - a_o - resolution, and t beats o without any clip. Clipping a rival upwards never undoes a flip.

In a linear model every group adds its own term, so the inequality of a rival c is

    E_c(S) = s_o - s_c + lead_oc - sum_{g in S} d_gc,      d_gc = t_go - t_gc

with s the raw scores of x and t_g what the removal of group g takes from them (`engines.linear`, which also bounds the
rounding of these sums).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.linear import GroupScores, link_for
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol
from fragility.scores import CLIP, DecisionRule, softmax_probabilities

LINK_ROUNDING = 1e-13  # of a margin computed from probabilities
MOST_LIVE = 24  # groups whose subsets are tabulated
QUANTA = 2.0**58  # the largest value a state may have


@dataclass(frozen=True, slots=True, eq=False)
class FlipRule(DecisionRule):
    """The decision of a protocol on C classes, as a lead that a rival's exact score must have."""

    offset: Floats  # zeros without a declared threshold

    @classmethod
    def of(cls, rows: EvidenceRows, protocol: Protocol) -> FlipRule:
        return cls(protocol.resolution, offset=np.zeros(rows.n_classes) if rows.offset is None else rows.offset)

    @property
    def n_classes(self) -> int:
        return len(self.offset)

    @property
    def rounding(self) -> float:
        """How far a margin may be from what the link makes of exact scores."""
        return LINK_ROUNDING

    def lead(self, original: int | Integers, rival: int) -> Any:
        """Return how far ahead of each original class the rival must be."""
        return self.resolution + self.offset[original] - self.offset[rival]

    @property
    def clip_matters(self) -> bool:
        furthest = self.resolution + float(self.offset.max() - self.offset.min())
        return not furthest < -np.log(CLIP) - np.log(self.n_classes)

    def rivals(self, original: int) -> list[int]:
        return [c for c in range(self.n_classes) if c != original]


def is_additive(rows: EvidenceRows) -> bool:
    """Return whether the decisions of a linear model are differences of its scores: two classes, or a softmax."""
    return rows.n_classes == 2 or link_for(rows) is softmax_probabilities


def _count_quanta(start: Floats, steps: Floats, rounding: Floats) -> tuple[Integers, Integers, Integers]:
    """Return E at x, -d and the two edges (m, 2) as whole numbers, of a quantum of its own for each row."""
    span = np.abs(start) + np.abs(steps).sum(axis=1)
    scale = 2.0 ** np.floor(np.log2(QUANTA / np.maximum(span, 1e-300)))
    begin, moves = np.rint(start * scale), np.rint(-steps * scale[:, None])
    off = np.abs(begin - start * scale) + np.abs(moves + steps * scale[:, None]).sum(axis=1)
    bound = np.ceil(off + (rounding + span * 2.0**-50) * scale).astype(np.int64) + 1
    return begin.astype(np.int64), moves.astype(np.int64), np.column_stack([-bound - 1, bound])


class LinearLattice:
    """A linear model's sums over groups, bound to some rows, and what `whole` asks of an additive model."""

    name = kind = "linear"
    most_live = MOST_LIVE
    few: tuple[int, ...] = ()

    def __init__(self, rows: EvidenceRows, rule: FlipRule, scores: GroupScores | None = None) -> None:
        self.rows, self.rule = rows, rule
        self.scores = GroupScores.of(rows) if scores is None else scores
        self.block: tuple[Floats, Floats, Floats]  # of the rows of the last `begin`, as `of_rows` gives them

    def of_rows(self, start: int, stop: int) -> tuple[Floats, Floats, Floats]:
        """Return s (C, m), t (G, C, m) and the bound on rounding (m,) of some rows; two classes have scores 0 and s."""
        total, removed = self.scores.sum_piece(self.rows, slice(start, stop))
        if len(total) == 1:
            total = np.concatenate([np.zeros_like(total), total])
            removed = np.concatenate([np.zeros_like(removed), removed], axis=1)
        return total, removed, self.scores.bound_rounding(self.rows.matrix[start:stop]) + self.rule.rounding

    def inequality(self, total: Floats, removed: Floats, original: Integers, rival: int) -> tuple[Floats, Floats]:
        """Return E (m,) at x and d (m, G) for one rival; E is infinite where the rival is the original class itself."""
        place = np.arange(len(original))
        start = total[original, place] - total[rival] + self.rule.lead(original, rival)
        steps = (removed[:, original, place] - removed[:, rival]).T
        return np.where(original == rival, np.inf, start), np.ascontiguousarray(steps)

    def rebind(self, rows: EvidenceRows) -> LinearLattice:
        """Return the same model bound to other rows."""
        return type(self)(rows, self.rule, self.scores)

    def entry_bytes(self) -> int:
        return 8

    def begin(self, start: int, stop: int) -> None:
        """Compute the sums of the rows that the next calls are about."""
        self.block = self.of_rows(start, stop)

    def live(self, x: Floats, run: Any) -> Booleans:
        removed = self.block[1]
        return np.asarray((removed != removed[:, :1]).any(axis=1).T)  # the same for all classes changes nothing

    def mark(self, x: Floats, original: int, largest: int, jobs: Any, marks: Any, run: Any) -> None:
        from fragility.engines.kernels.subsets import mark_sums

        row, bits, lives, first_word = jobs
        total, removed, rounding = (part[..., row] for part in self.block)
        place, group = np.nonzero(bits)
        bit = np.log2(bits[place, group]).astype(np.int64)
        for rival in self.rule.rivals(original):
            start, steps = self.inequality(total, removed, np.full(len(row), original), rival)
            begin, moves, edges = _count_quanta(start, steps, rounding)
            by_bit = np.zeros((len(row), int(lives.max())), dtype=np.int64)
            by_bit[place, bit] = moves[place, group]
            run(len(row), lambda span, _: mark_sums(begin, by_bit, edges, lives, first_word, marks[0], marks[1], span))  # noqa: B023

    def expected_margin(self, x: Floats, original: Integers, rates: Floats, run: Any) -> Floats | None:
        if self.rule.n_classes != 2:
            return None
        total, removed, _ = self.block
        score = total[1] - rates @ removed[:, 1] + self.rule.offset[1] - self.rule.offset[0]
        return np.asarray(np.where(original == 1, score, -score))
