"""What is asked: the states in which a protocol observes every row.

    x                                       the row itself
    R(x, {g})            g = 1..G           each group removed alone
    x^(k)                k = 2..K           the path: the first k groups in order of their one-step drops removed
    x attenuated         P operators        the first ``width`` groups of that order moved toward the baseline,
                         severities         by each severity of the grid

x^(1) is a one-step state. Full attenuation (severity 1) of ``width`` groups is their removal: a step of the path where
the path is that long, or the baseline itself where it covers every group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from fragility.arrays import Floats
from fragility.protocol import Protocol, operator_width
from fragility.scores import Reading, reading_margin


@dataclass(frozen=True, slots=True)
class StatesAsked:
    """The states of a protocol, and how their margins are read: all that an engine needs to know of it."""

    n_groups: int
    depth: int
    widths: tuple[int, ...]  # (P,) groups that each operator degrades
    fading: int | None  # which operator is attenuate_all, whose margins are kept
    severities: tuple[float, ...]  # of the grid, rising
    reading: Reading
    resolution: float
    smoothing: float

    @classmethod
    def of(cls, protocol: Protocol, n_groups: int) -> StatesAsked:
        return cls(
            n_groups=n_groups,
            depth=protocol.depth,
            widths=tuple(operator_width(operator, n_groups) for operator in protocol.operators),
            fading=protocol.fading,
            severities=protocol.severities,
            reading=protocol.reading,
            resolution=protocol.resolution,
            smoothing=protocol.smoothing,
        )

    def margins(self, p: Floats, original: npt.ArrayLike, offset: Floats | None) -> Floats:
        """Return the margins of states of probabilities p (..., C), by the protocol's reading and smoothing."""
        return reading_margin(p, original, self.reading, offset, self.smoothing)

    @property
    def fade_steps(self) -> int:
        """How many margins of attenuate_all are kept for each row."""
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
        """How many states are evaluated for each row by an engine that spares none."""
        return 1 + self.n_groups + self.depth - 1 + len(self.grid) * len(self.widths)

    @property
    def longest(self) -> int:
        """How far down the order of removal any state goes, states that cover every group aside."""
        return max([self.depth, *(width for width in self.widths if width < self.n_groups)])
