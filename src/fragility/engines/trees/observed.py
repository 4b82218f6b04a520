"""From raw sums to what a certificate needs of each state: margins, classes and confidences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats, Integers
from fragility.engines.trace import original_confidence
from fragility.engines.trees.encoding import SIGMOID, SOFTMAX
from fragility.engines.trees.forest import Forest
from fragility.scores import (
    CLIP,
    Reading,
    predicted_class,
    reading_margin,
    sigmoid_probabilities,
    softmax_probabilities,
    state_prediction,
    support_margin,
)


def probabilities(forest: Forest, sums: npt.NDArray[Any]) -> Floats:
    """Return (..., n, C) probabilities of raw sums (..., outputs, n): the forest's link in float64."""
    scores = np.moveaxis(sums, -2, -1).astype(np.float64) / forest.divisor * forest.scale
    if forest.link == SIGMOID:
        return sigmoid_probabilities(scores[..., 0])
    return softmax_probabilities(scores) if forest.link == SOFTMAX else scores


def observed(forest: Forest, sums: npt.NDArray[Any], offset: Floats | None) -> Observed:
    """Return raw sums (Q, outputs, n) of Q states of n rows, ready to be asked for margins and classes."""
    if forest.link == SIGMOID:
        return ObservedScores(sums[:, 0].astype(np.float64) / forest.divisor * forest.scale, offset)
    return Observed(probabilities(forest, sums), offset)


class Observed:
    """Probabilities of the states of a chunk; every result is (states, n)."""

    def __init__(self, p: Floats, offset: Floats | None) -> None:
        self.p = p  # (Q, n, C)
        self.offset = offset  # (C,) of the declared decision

    def take(self, states: Sequence[int] | range) -> Observed:
        return Observed(self.p[list(states)], self.offset)

    def pick(self, state: Integers) -> Observed:
        """Return one state, chosen for each row."""
        return Observed(self.p[state, np.arange(len(state))][None], self.offset)

    def join(self, later: Observed) -> Observed:
        return Observed(np.concatenate([self.p, later.p]), self.offset)

    def repeat(self, n: int) -> Observed:
        """Return the states of one row as those of n rows."""
        return Observed(np.repeat(self.p, n, axis=1), self.offset)

    def predicted(self, resolution: float) -> Integers:
        """Return the class of the first state; (n,)."""
        return predicted_class(self.p[0], resolution, self.offset)

    def support(self, original: Integers) -> Floats:
        return support_margin(self.p, original, self.offset)

    def margin(self, original: Integers, reading: Reading) -> Floats:
        return reading_margin(self.p, original, reading, self.offset)

    def state_predicted(self, original: Integers, resolution: float) -> Integers:
        return state_prediction(self.p, original, resolution, self.offset)

    def confidence(self, original: Integers) -> Floats:
        return original_confidence(self.p, original)


class ObservedScores(Observed):
    """The same for a binary logistic score s, without a detour through probabilities.

    log p1 - log p0 = s exactly, so the margins are s itself where neither probability is clipped.
    """

    UNCLIPPED = 27.0  # below log(1 / CLIP)

    def __init__(self, s: Floats, offset: Floats | None) -> None:
        self.s = s  # (Q, n)
        self.offset = offset  # (2,) of the declared decision

    def take(self, states: Sequence[int] | range) -> ObservedScores:
        return ObservedScores(self.s[list(states)], self.offset)

    def pick(self, state: Integers) -> ObservedScores:
        return ObservedScores(self.s[state, np.arange(len(state))][None], self.offset)

    def join(self, later: Observed) -> ObservedScores:
        assert isinstance(later, ObservedScores)
        return ObservedScores(np.concatenate([self.s, later.s]), self.offset)

    def repeat(self, n: int) -> ObservedScores:
        return ObservedScores(np.repeat(self.s, n, axis=1), self.offset)

    def _difference(self) -> Floats:
        """Return log p1 - log p0 of clipped probabilities, shifted by the declared decision."""
        extreme = np.abs(self.s) > self.UNCLIPPED
        difference = self.s
        if extreme.any():
            difference = self.s.copy()
            log_p = np.log(np.maximum(sigmoid_probabilities(self.s[extreme]), CLIP))
            difference[extreme] = log_p[:, 1] - log_p[:, 0]
        return difference if self.offset is None else difference + (self.offset[1] - self.offset[0])

    def predicted(self, resolution: float) -> Integers:
        return np.asarray(self._difference()[0] > resolution, dtype=np.int64)

    def support(self, original: Integers) -> Floats:
        return self._difference() * np.where(original == 1, 1.0, -1.0)

    def margin(self, original: Integers, reading: Reading) -> Floats:
        return np.abs(self._difference()) if reading == "current" else self.support(original)

    def state_predicted(self, original: Integers, resolution: float) -> Integers:
        return np.asarray(np.where(self.support(original) >= -resolution, original, 1 - original))

    def confidence(self, original: Integers) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(self.s * np.where(original == 1, -1.0, 1.0))))
