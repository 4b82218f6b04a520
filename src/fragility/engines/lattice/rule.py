"""When a state flips, in the form an additive model can answer.

A state flips when some rival class c beats the original class o by more than the resolution:

    log p~_c + a_c  >  log p~_o + a_o + resolution              p~ = max(p, 1e-12), a the decision's offsets

For a softmax (two classes: the logistic link) of raw scores f, and as long as no clip matters, this is

    E_c(S) = f_o(S) - f_c(S) + lead_oc  <  0                    lead_oc = resolution + a_o - a_c

and for averaged probabilities  E_c(S) = exp(lead_oc) p_o(S) - p_c(S) < 0: linear in the model's sums in both cases.

No clip matters while all |lead| < log(1e12) - log C. Let t be the most probable class, p_t >= 1/C. If p_o < 1e-12, then
t beats o both ways. If p_o >= 1e-12 and a rival of p_c < 1e-12 beats it only because of the clip, then log p_o is
below -log(1e12) + a_c - a_o - resolution, and t beats o without any clip. Clipping a rival upwards never undoes a flip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fragility.arrays import Booleans, Floats
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol
from fragility.scores import CLIP, support_margin


@dataclass(frozen=True, slots=True, eq=False)
class FlipRule:
    """The decision of a protocol on C classes."""

    resolution: float
    offset: Floats  # (C,) added to log-probabilities

    @classmethod
    def of(cls, rows: EvidenceRows, protocol: Protocol) -> FlipRule:
        return cls(protocol.resolution, np.zeros(rows.n_classes) if rows.offset is None else rows.offset)

    @property
    def n_classes(self) -> int:
        return len(self.offset)

    def lead(self, original: int, rival: int) -> float:
        """How far ahead of the original class the rival must be."""
        return float(self.resolution + self.offset[original] - self.offset[rival])

    @property
    def clip_matters(self) -> bool:
        furthest = self.resolution + float(self.offset.max() - self.offset.min())
        return not furthest < -np.log(CLIP) - np.log(self.n_classes)

    def rivals(self, original: int) -> list[int]:
        return [c for c in range(self.n_classes) if c != original]

    def margin(self, p: Floats, original: npt.ArrayLike) -> Floats:
        return support_margin(p, original, self.offset)

    def flipped(self, p: Floats, original: npt.ArrayLike) -> Booleans:
        """Whether states of these probabilities flip, by the definition itself."""
        return np.asarray(self.margin(p, original) < -self.resolution)
