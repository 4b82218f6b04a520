"""What is asked of an engine, the states of a protocol, and what it answers: a Trace, before any score is made of it.

    x                                       the row itself
    R(x, {g})            g = 1..G           each group removed alone
    x^(k)                k = 2..K           the path: the first k groups in order of their one-step drops removed
    x attenuated         P operators        the first ``width`` groups of that order moved toward the baseline,
                         severities         by each severity of the grid
    R(x, {1..G})                            all evidence lost

x^(1) is a one-step state. Full attenuation (severity 1) of ``width`` groups is their removal: a step of the path where
the path is that long, or the last state where it covers every group. That state is the baseline itself, the same for
all rows, except for rows that lack evidence: each of them has its own.
"""

from __future__ import annotations

import typing
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Floats, Integers
from fragility.evidence import EvidenceRows
from fragility.evidence.protocol_parts import operator_width
from fragility.protocol import Protocol
from fragility.scores import DecisionRule

Progress: TypeAlias = Callable[[int, int], None]  # (rows done, rows in all)

UNPROMISED, CONTRADICTED = 1, 2
DOUBTS = {
    UNPROMISED: "it holds a value that the engine may read otherwise than the model",
    CONTRADICTED: "the engine contradicts the model's own answer",
}


@dataclass(frozen=True, slots=True)
class TraceStates:
    """The states of a protocol, and the rule by which they are decided: all that an engine needs to know of it."""

    n_groups: int
    depth: int
    widths: tuple[int, ...]  # (P,) groups that each operator degrades
    fading: int | None  # which operator is attenuate_all, whose margins are kept
    severities: tuple[float, ...]  # of the grid, rising
    rule: DecisionRule

    @classmethod
    def of(cls, protocol: Protocol, rows: EvidenceRows) -> TraceStates:
        return cls(
            n_groups=rows.n_groups,
            depth=protocol.depth,
            widths=tuple(operator_width(operator, rows.n_groups) for operator in protocol.operators),
            fading=protocol.fading,
            severities=protocol.severities,
            rule=protocol.rule(rows.offset),
        )

    @property
    def fade_steps(self) -> int:
        """How many margins of attenuate_all are kept per row."""
        return 0 if self.fading is None else len(self.severities)

    def on_path(self, width: int) -> bool:
        """Return whether the removal of the first ``width`` groups is a step of the path."""
        return width <= self.depth

    def removal_known(self, width: int) -> bool:
        """Return whether full attenuation of the first ``width`` groups is a state known otherwise."""
        return self.on_path(width) or width == self.n_groups

    @property
    def grid(self) -> list[float]:
        """The severities to evaluate: full attenuation only where some operator's is not known otherwise."""
        known = all(self.removal_known(width) for width in self.widths)
        return [severity for severity in self.severities if severity < 1.0 or not known]

    @property
    def per_row(self) -> int:
        """How many states are evaluated per row by an engine that spares none."""
        return 1 + self.n_groups + self.depth - 1 + len(self.grid) * len(self.widths)

    @property
    def longest(self) -> int:
        """How far down the order of removal any state goes, states that cover every group aside."""
        return max([self.depth, *(width for width in self.widths if width < self.n_groups)])


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
    fade_margin: Floats  # (n, |Lambda|) under attenuate_all, NaN from its lambda* on; (n, 0) without that operator
    bare_margin: Floats  # (n,) with all evidence lost
    evaluations: int  # model evaluations made (rows handed to the model)
    engine: str
    doubt: npt.NDArray[np.uint8] | None = None  # (n,) why the model was asked instead of the engine; 0: it was not

    @classmethod
    def allocate(
        cls, asked: TraceStates, n: int, decided: Integers | None, engine: str, layout: Literal["C", "F"] = "C"
    ) -> Trace:
        """Return the trace of n rows, to be filled; ``predicted`` is -1 where no class at x is decided (n,) yet."""
        steps = (n, asked.depth + 1)
        return cls(
            predicted=np.full(n, -1) if decided is None else np.array(decided, dtype=np.int64),
            confidence=np.empty(n),
            margin=np.empty(n),
            one_step_margin=np.empty((n, asked.n_groups), order=layout),
            one_step_confidence=np.empty((n, asked.n_groups), order=layout),
            order=np.empty((n, asked.depth), dtype=np.int64, order=layout),
            path_margin=np.empty(steps, order=layout),
            path_predicted=np.empty(steps, dtype=np.int64, order=layout),
            threshold=np.empty((n, len(asked.widths)), order=layout),
            fade_margin=np.empty((n, asked.fade_steps), order=layout),
            bare_margin=np.empty(n),
            evaluations=0,
            engine=engine,
        )

    @classmethod
    def join(cls, parts: Sequence[Trace]) -> Trace:
        """Return the trace of several pieces of rows, one after the other."""
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.arrays()}
        return cls(**arrays, evaluations=sum(part.evaluations for part in parts), engine=parts[0].engine)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Integers, Trace]], engine: str) -> Trace:
        """Return the trace of rows of which some were traced in one way and some in another: (their places, trace)."""
        place = np.argsort(np.concatenate([places for places, _ in parts]))
        whole = cls.join([trace for _, trace in parts])
        return replace(whole.rows(place), engine=engine)

    def rows(self, chosen: slice | Integers) -> Trace:
        """Return some rows; for a slice, as views into this trace."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.arrays()})

    @classmethod
    def arrays(cls) -> list[str]:
        """Return the names of the arrays, which all have one entry per row."""
        return [f.name for f in fields(cls) if f.name not in ("evaluations", "engine", "doubt")]


class Tracer(typing.Protocol):
    """An engine made ready for one model, protocol and form of rows; it may be called in several threads."""

    def __call__(self, rows: EvidenceRows, progress: Progress | None = None, /) -> Trace:
        """Return the trace of rows of that form."""


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
    def join(cls, parts: Iterable[HandedOver]) -> HandedOver:
        """Return those of several parts of the rows, in their order."""
        some = [part for part in parts if part.rows]
        return cls(sum(part.rows for part in some), *some[0][1:]) if some else cls()

    def warn(self, engine: str, total: int) -> None:
        """Warn, if there are any."""
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
