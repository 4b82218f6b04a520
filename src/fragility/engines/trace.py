"""What is answered: Trace, the observations of an engine before any score is made of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats, Integers

Progress: TypeAlias = Callable[[int, int], None]  # (rows done, rows in all)

UNPROMISED, CONTRADICTED = 1, 2
DOUBTS = {
    UNPROMISED: "it holds a value that the engine may read otherwise than the model",
    CONTRADICTED: "the engine contradicts the model's own answer",
}


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
    doubt: npt.NDArray[np.uint8] | None = None  # (n,) why the model was asked instead of the engine; 0: it was not

    @classmethod
    def joined(cls, parts: Sequence[Trace]) -> Trace:
        """Return the trace of several pieces of rows, one after the other."""
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.arrays()}
        return cls(**arrays, evaluations=sum(part.evaluations for part in parts), engine=parts[0].engine)

    @classmethod
    def merged(cls, parts: Sequence[tuple[Integers, Trace]], engine: str) -> Trace:
        """Return the trace of rows of which some were traced in one way and some in another: (their places, trace)."""
        place = np.argsort(np.concatenate([places for places, _ in parts]))
        whole = cls.joined([trace for _, trace in parts])
        return replace(whole.rows(place), engine=engine)

    def rows(self, chosen: slice | Integers) -> Trace:
        """Return some rows; for a slice, as views into this trace."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.arrays()})

    @classmethod
    def arrays(cls) -> list[str]:
        """Return the names of the arrays, which all have one entry a row."""
        return [f.name for f in fields(cls) if f.name not in ("evaluations", "engine", "doubt")]


class HandedOver(NamedTuple):
    """Rows of an audit for which the model was asked instead of the engine."""

    rows: int = 0
    first: Hashable = None  # id of the first of them
    reason: str = ""

    @classmethod
    def of(cls, trace: Trace, ids: Sequence[Hashable]) -> HandedOver:
        if trace.doubt is None or not trace.doubt.any():
            return cls()
        first = int(np.flatnonzero(trace.doubt)[0])
        return cls(int((trace.doubt > 0).sum()), ids[first], DOUBTS[int(trace.doubt[first])])

    @classmethod
    def joined(cls, parts: Iterable[HandedOver]) -> HandedOver:
        """Return those of several parts of the rows, in their order."""
        some = [part for part in parts if part.rows]
        return cls(sum(part.rows for part in some), *some[0][1:]) if some else cls()

    def warn(self, engine: str, total: int) -> None:
        """Say so, where there are any."""
        if self.rows:
            warnings.warn(
                f"{self.rows} of {total} rows were audited by asking the model instead of the {engine} engine (first: "
                f"row {self.first!r}, {self.reason})",
                stacklevel=3,
            )


def original_confidence(p: Floats, original: Integers) -> Floats:
    """Return the probability of the original class at each state; p (..., C), original broadcast to (...)."""
    index: Any = np.broadcast_to(original, p.shape[:-1])[..., None]
    return np.asarray(np.take_along_axis(p, index, axis=-1)[..., 0])
