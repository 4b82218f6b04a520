"""Comparison of a native engine with the black box: the same observations in every state, or a reason to distrust it.

Floats may differ by the engine's tolerance. Orders, predictions and thresholds must be equal, except where a state lies
so near the resolution's edge that rounding decides; there the model itself is asked whether it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fragility.arrays import Booleans, Integers
from fragility.engines.trace import Trace
from fragility.evidence import EvidenceRows, RowStates
from fragility.protocol import Protocol, operator_width
from fragility.scores import removal_order, support_margin


def disagreement(claimed: Trace, asked: Trace, rows: EvidenceRows, protocol: Protocol, tolerance: float) -> str | None:
    """Return how a native trace contradicts the black box's trace of the same rows; None if it does not."""
    return _Comparison(claimed, asked, rows, protocol, tolerance).verdict()


@dataclass(frozen=True)
class _Comparison:
    claimed: Trace
    asked: Trace
    rows: EvidenceRows
    protocol: Protocol
    tolerance: float

    def verdict(self) -> str | None:
        gap = self.largest_gap()
        if not gap <= self.tolerance:  # NaN is no agreement
            return f"differs from {self.rows.model.kind}'s own probabilities by {gap:.3g}"
        for claim, wrong in [
            ("predictions", self.wrong_predictions()),
            ("orders of removal", self.wrong_orders()),
            ("predictions along the path", self.wrong_path_predictions()),
            ("flip thresholds", self.wrong_thresholds()),
        ]:
            if wrong:
                return f"differs from {self.rows.model.kind}'s own {claim} in {wrong} of {len(self.rows)} rows"
        return None

    def largest_gap(self) -> float:
        """Return the largest difference of margins and confidences over all states that both have visited."""
        a, b = self.claimed, self.asked
        same = a.predicted == b.predicted
        pairs = [
            (a.margin, b.margin),
            (a.confidence, b.confidence),
            (a.one_step_margin, b.one_step_margin),
            (a.one_step_confidence, b.one_step_confidence),
        ]
        gaps = [np.abs(one - other)[same] for one, other in pairs]
        gaps.append(np.abs(a.path_margin - b.path_margin)[self.shared_steps()])
        fading = np.abs(a.fade_margin - b.fade_margin)
        gaps.append(fading[same[:, None] & ~np.isnan(a.fade_margin) & ~np.isnan(b.fade_margin)])
        return float(np.max([np.max(part, initial=0.0) for part in gaps]))

    def shared_steps(self) -> Booleans:
        """(n, K+1): where both paths have removed the same groups, for the same predicted class."""
        steps = range(self.protocol.depth + 1)
        return np.stack([self.same_groups(self.claimed.order, self.asked.order, k) for k in steps], axis=1)

    def same_groups(self, one: Integers, other: Integers, width: int) -> Booleans:
        """(n,): whether the first ``width`` groups of two orders are the same ones, for the same predicted class."""
        same = (np.sort(one[:, :width], axis=1) == np.sort(other[:, :width], axis=1)).all(axis=1)
        return np.asarray(same & (self.claimed.predicted == self.asked.predicted))

    def wrong_predictions(self) -> int:
        """Another class may be named only where two lie within rounding of the resolution."""
        differs = np.flatnonzero(self.claimed.predicted != self.asked.predicted)
        p = self.rows.predict(self.rows.dense()[differs]) if len(differs) else np.empty((0, self.rows.n_classes))
        support = support_margin(p, self.claimed.predicted[differs], self.rows.offset)
        return int((support < -self.protocol.resolution - 2 * self.tolerance).sum())

    def wrong_orders(self) -> int:
        """Two groups may change places only where their drops round to the resolution's other side."""
        drops = self.asked.margin[:, None] - self.asked.one_step_margin
        mine, theirs = (np.take_along_axis(drops, t.order, axis=1) for t in (self.claimed, self.asked))
        apart = (np.abs(mine - theirs) > self.protocol.resolution + 4 * self.tolerance).any(axis=1)
        twice = (np.diff(np.sort(self.claimed.order, axis=1), axis=1) == 0).any(axis=1)
        return int((twice | (apart & (self.claimed.predicted == self.asked.predicted))).sum())

    def wrong_path_predictions(self) -> int:
        differs = (self.claimed.path_predicted != self.asked.path_predicted) & self.shared_steps()
        wrong = {
            int(i)
            for i, k in zip(*np.nonzero(differs), strict=True)
            if not self.rounding_decides(int(i), self.asked.order[i, :k], 1.0, int(self.claimed.path_predicted[i, k]))
        }
        return len(wrong)

    def wrong_thresholds(self) -> int:
        one, other = (removal_order(t.margin[:, None] - t.one_step_margin, self.protocol.resolution) for t in self.both)
        wrong: set[int] = set()
        for j, operator in enumerate(self.protocol.operators):
            width = operator_width(operator, self.rows.n_groups)
            mine, theirs = self.claimed.threshold[:, j], self.asked.threshold[:, j]
            for i in np.flatnonzero((mine != theirs) & self.same_groups(one, other, width)):
                severity = float(min(mine[i], theirs[i]))
                if not self.rounding_decides(int(i), other[i, :width], severity, None):
                    wrong.add(int(i))
        return len(wrong)

    @property
    def both(self) -> tuple[Trace, Trace]:
        return self.claimed, self.asked

    def rounding_decides(self, i: int, groups: Integers, severity: float, named: int | None) -> bool:
        """Ask the model about one state: is it within rounding of a flip, or (``named``) of another class's lead?"""
        moved = np.isin(np.arange(self.rows.n_groups), groups)[None]
        state = RowStates(np.zeros(1, dtype=np.int64), moved, np.array([severity]))
        p = self.rows.answers(self.rows.dense(i, i + 1), state)[0]
        edge, offset = 2 * self.tolerance, self.rows.offset
        support = float(support_margin(p, self.asked.predicted[i], offset))
        if abs(support + self.protocol.resolution) <= edge:
            return True
        rivals = self.protocol.resolution + edge  # several classes that close: the first of them is named
        return named is not None and support < 0 and float(support_margin(p, named, offset)) >= -rivals
