"""Trace: what an engine observed, before any score is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fragility.scores import Floats, Integers

Progress: TypeAlias = Callable[[int, int], None]  # (rows done, rows in all)


@dataclass(frozen=True, slots=True)
class Trace:
    """Observations of one audit: n rows, G groups, K depth, P operators.

    Margins follow the protocol's reading; classes are indices into the model's declared classes.
    """

    predicted: Integers  # (n,) class at x
    confidence: Floats  # (n,) its probability
    margin: Floats  # (n,) m(x)
    one_step_margin: Floats  # (n, G) m(R(x, {g}))
    one_step_confidence: Floats  # (n, G) probability of the original class there
    order: Integers  # (n, K) groups in order of removal
    path_margin: Floats  # (n, K+1) margin after 0..K removals
    path_predicted: Integers  # (n, K+1) class after 0..K removals
    threshold: Floats  # (n, P) lambda*, infinity where no severity flips
    evaluations: int  # model evaluations made (rows handed to the model)
    engine: str
