"""What is answered: Trace, the observations of an engine before any score is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from fragility.arrays import Floats, Integers

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
    fade_margin: (
        Floats  # (n, |Lambda|) margin under attenuate_all, NaN from its lambda* on; (n, 0) without that operator
    )
    evaluations: int  # model evaluations made (rows handed to the model)
    engine: str

    @classmethod
    def joined(cls, parts: Sequence[Trace]) -> Trace:
        """Return the trace of several pieces of rows, one after the other."""
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.arrays()}
        return cls(**arrays, evaluations=sum(part.evaluations for part in parts), engine=parts[0].engine)

    def rows(self, chosen: slice | Integers) -> Trace:
        """Return some rows; for a slice, as views into this trace."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.arrays()})

    @classmethod
    def arrays(cls) -> list[str]:
        """Return the names of the arrays, which all have one entry a row."""
        return [f.name for f in fields(cls) if f.name not in ("evaluations", "engine")]


def original_confidence(p: Floats, original: Integers) -> Floats:
    """Return the probability of the original class at each state; p (..., C), original broadcast to (...)."""
    index: Any = np.broadcast_to(original, p.shape[:-1])[..., None]
    return np.asarray(np.take_along_axis(p, index, axis=-1)[..., 0])
