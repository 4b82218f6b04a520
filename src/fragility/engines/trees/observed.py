"""What is read of the raw sums of states: the rules, and the arrays of a trace to be filled by the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats, Integers
from fragility.engines.states import StatesAsked
from fragility.engines.trees.encoding import SIGMOID, SOFTMAX
from fragility.engines.trees.forest import Forest
from fragility.scores import sigmoid_probabilities, smoothed_offset, softmax_probabilities


def probabilities(forest: Forest, sums: npt.NDArray[Any]) -> Floats:
    """Return (..., n, C) probabilities of raw sums (..., outputs, n): the forest's link in float64."""
    scores = np.moveaxis(sums, -2, -1).astype(np.float64) / forest.divisor * forest.scale
    if forest.link == SIGMOID:
        return sigmoid_probabilities(scores[..., 0])
    return softmax_probabilities(scores) if forest.link == SOFTMAX else scores


class Rules(NamedTuple):
    """How raw sums become margins, classes and thresholds; C classes, P operators, S severities."""

    link: int
    divisor: float
    scale: float
    offset: Floats  # (C,) of the declared decision
    shifted: bool  # some offset is not 0
    current: bool  # the reading takes the leader's margin, not the original class's
    resolution: float
    smoothing: float
    smoothed_offset: Floats  # (C,) of the declared decision, for the logarithms of smoothed probabilities
    widths: Integers  # (P,) groups that each operator degrades
    fading: int  # which operator is attenuate_all, -1: none
    severities: Floats  # (S,)
    n_grid: int  # how many of them are scored; the last, removal, may be known
    bare: npt.NDArray[Any]  # (outputs,) raw sums of the baseline itself

    @classmethod
    def of(cls, forest: Forest, asked: StatesAsked, offset: Floats | None, bare: npt.NDArray[Any]) -> Rules:
        offsets = np.zeros(forest.n_classes) if offset is None else np.asarray(offset, dtype=np.float64)
        smoothed = smoothed_offset(offset, asked.smoothing)
        return cls(
            link=forest.link,
            divisor=float(forest.divisor),
            scale=float(forest.scale),
            offset=offsets,
            shifted=bool(offsets.any()),
            current=asked.reading == "current",
            resolution=float(asked.resolution),
            smoothing=float(asked.smoothing),
            smoothed_offset=np.zeros(forest.n_classes) if smoothed is None else smoothed,
            widths=np.array(asked.widths, dtype=np.int64),
            fading=-1 if asked.fading is None else asked.fading,
            severities=np.array(asked.severities, dtype=np.float64),
            n_grid=len(asked.grid),
            bare=bare,
        )


class Blank(NamedTuple):
    """The arrays of a ``Trace`` that are read off scores; n rows, G groups, K depth, P operators."""

    predicted: Integers  # (n,)
    confidence: Floats  # (n,)
    margin: Floats  # (n,)
    one_step_margin: Floats  # (n, G)
    one_step_confidence: Floats  # (n, G)
    path_margin: Floats  # (n, K+1)
    path_predicted: Integers  # (n, K+1)
    threshold: Floats  # (n, P)
    fade_margin: Floats  # (n, S), or (n, 0)

    @classmethod
    def of(cls, asked: StatesAsked, decided: Integers | None, n: int) -> Blank:
        """Return arrays to fill; decided: (n,) classes at x by the model's own predict, None: the trees say them."""
        return cls(
            predicted=np.full(n, -1) if decided is None else np.array(decided, dtype=np.int64),
            confidence=np.empty(n),
            margin=np.empty(n),
            one_step_margin=np.empty((n, asked.n_groups)),
            one_step_confidence=np.empty((n, asked.n_groups)),
            path_margin=np.empty((n, asked.depth + 1)),
            path_predicted=np.empty((n, asked.depth + 1), dtype=np.int64),
            threshold=np.empty((n, len(asked.widths))),
            fade_margin=np.empty((n, asked.fade_steps)),
        )

    def rows(self, chosen: slice) -> Blank:
        """Return some rows, as views."""
        views: Any = (array[chosen] for array in self)
        return Blank(*views)
