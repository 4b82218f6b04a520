"""Linear models: every group adds its own term, so the flip inequality of a rival c is

    E_c(S) = s_o - s_c + lead_oc - sum_{g in S} d_gc,      d_gc = t_go - t_gc

with s the raw scores of x and t_g what the removal of group g takes from them (`engines.linear.sums`, which also bounds
the rounding of these sums).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.arrays import Booleans, Floats, Integers
from fragility.engines.lattice.rule import FlipRule
from fragility.engines.linear.links import link_for
from fragility.engines.linear.sums import GroupScores
from fragility.evidence import EvidenceRows
from fragility.scores import softmax_probabilities

LINK_ROUNDING = 1e-13
TABLE_BITS = 24
QUANTA = 2.0**58  # the largest value a state may have


def additive(rows: EvidenceRows) -> bool:
    """Whether the decisions of a linear model are differences of its scores: two classes, or a softmax."""
    return rows.n_classes == 2 or link_for(rows) is softmax_probabilities


class LinearLattice:
    """A linear model's sums over groups, bound to some rows."""

    name = "linear"

    def __init__(self, rows: EvidenceRows, rule: FlipRule) -> None:
        self.rows, self.rule = rows, rule
        self.scores = GroupScores.of(rows)

    def of_rows(self, start: int, stop: int) -> tuple[Floats, Floats, Floats]:
        """Return s (C, m), t (G, C, m) and the bound on rounding (m,) of some rows; two classes have scores 0 and s."""
        total, removed = self.scores.of_piece(self.rows, slice(start, stop))
        if len(total) == 1:
            total = np.concatenate([np.zeros_like(total), total])
            removed = np.concatenate([np.zeros_like(removed), removed], axis=1)
        return total, removed, self.scores.rounding(self.rows.matrix[start:stop]) + LINK_ROUNDING

    def inequality(self, total: Floats, removed: Floats, original: Integers, rival: int) -> tuple[Floats, Floats]:
        """Return E (m,) at x and d (m, G) for one rival; E is infinite where the rival is the original class itself."""
        place = np.arange(len(original))
        lead = self.rule.resolution + self.rule.offset[original] - self.rule.offset[rival]
        start = total[original, place] - total[rival] + lead
        steps = (removed[:, original, place] - removed[:, rival]).T
        return np.where(original == rival, np.inf, start), np.ascontiguousarray(steps)


def in_quanta(start: Floats, steps: Floats, rounding: Floats) -> tuple[Integers, Integers, Integers]:
    """Return E at x, -d and the two edges (m, 2) as whole numbers, of a quantum of its own for each row."""
    span = np.abs(start) + np.abs(steps).sum(axis=1)
    scale = 2.0 ** np.floor(np.log2(QUANTA / np.maximum(span, 1e-300)))
    begin, moves = np.rint(start * scale), np.rint(-steps * scale[:, None])
    off = np.abs(begin - start * scale) + np.abs(moves + steps * scale[:, None]).sum(axis=1)
    bound = np.ceil(off + (rounding + span * 2.0**-50) * scale).astype(np.int64) + 1
    return begin.astype(np.int64), moves.astype(np.int64), np.column_stack([-bound - 1, bound])


class LinearMarks:
    """The same door to `whole` that trees have: live groups, marks, expected margins, over a block of rows."""

    name = "linear"

    def __init__(self, lattice: LinearLattice) -> None:
        self.lattice, self.rule = lattice, lattice.rule
        self._block: tuple[Floats, Floats, Floats] | None = None

    def entry_bytes(self) -> int:
        return 8

    def begin(self, start: int, stop: int) -> None:
        """Compute the sums of the rows that are asked about next."""
        self._block = self.lattice.of_rows(start, stop)

    def live(self, x: Floats, run: Any) -> Booleans:
        assert self._block is not None
        removed = self._block[1]
        return np.asarray((removed != removed[:, :1]).any(axis=1).T)  # the same for all classes changes nothing

    def mark(self, x: Floats, original: int, jobs: Any, marks: Any, run: Any) -> None:
        from fragility.engines.kernels.subsets import mark_sums

        assert self._block is not None
        row, bits, lives, first_word = jobs
        total, removed, rounding = (part[..., row] for part in self._block)
        place, group = np.nonzero(bits)
        bit = np.log2(bits[place, group]).astype(np.int64)
        for rival in self.rule.rivals(original):
            start, steps = self.lattice.inequality(total, removed, np.full(len(row), original), rival)
            begin, moves, edges = in_quanta(start, steps, rounding)
            by_bit = np.zeros((len(row), TABLE_BITS), dtype=np.int64)
            by_bit[place, bit] = moves[place, group]
            run(len(row), lambda span, _: mark_sums(begin, by_bit, edges, lives, first_word, marks[0], marks[1], span))  # noqa: B023

    def expected_margin(self, x: Floats, original: Integers, rates: Floats, run: Any) -> Floats | None:
        assert self._block is not None
        if self.rule.n_classes != 2:
            return None
        total, removed, _ = self._block
        score = total[1] - rates @ removed[:, 1] + self.rule.offset[1] - self.rule.offset[0]
        return np.asarray(np.where(original == 1, score, -score))
