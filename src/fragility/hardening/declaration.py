"""Hardening, declared: how training rows are degraded, how often, and by which random numbers (SPEC section 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from fragility.errors import ProtocolError
from fragility.stress import Outages, outage_events

Degradation: TypeAlias = Literal["mask", "attenuate", "outages"]
DEGRADATIONS: tuple[str, ...] = get_args(Degradation)
DEFAULT_RATE = 0.2
# An event is struck from a log of events that did happen: a twin without one would teach nothing.
DEFAULT_OUTAGE_RATE = 1.0


@dataclass(frozen=True, slots=True)
class Hardening:
    """What is done to a copy of a training row; validated on construction."""

    rate: float
    copies: int
    kind: Degradation
    outages: Outages | None
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in DEGRADATIONS:
            raise ProtocolError(f"kind must be one of {', '.join(DEGRADATIONS)}, got {self.kind!r}")
        if not _is_number(self.rate) or not 0.0 <= self.rate <= 1.0:
            raise ProtocolError(f"rate must be a number between 0 and 1, got {self.rate!r}")
        if not _is_whole(self.copies) or not 1 <= self.copies < 2**31:
            raise ProtocolError(f"copies must be a whole number of at least 1, got {self.copies!r}")
        if not _is_whole(self.seed):
            raise ProtocolError(f"seed must be a whole number, got {self.seed!r}")
        if self.kind == "outages" and self.outages is None:
            raise ProtocolError("the kind outages needs recorded outages, and none were given")
        if self.kind != "outages" and self.outages is not None:
            raise ProtocolError(f"recorded outages are for the kind outages, and the kind is {self.kind!r}")

    @classmethod
    def read(cls, rate: Any, copies: Any, kind: Any, outages: Any, seed: Any) -> Hardening:
        """Return what a user asked for: ``rate`` None is the kind's default, ``outages`` any log of them."""
        if rate is None:
            rate = DEFAULT_OUTAGE_RATE if kind == "outages" else DEFAULT_RATE
        if outages is not None and not isinstance(outages, Outages):
            outages = Outages.from_events(outage_events(outages))
        return cls(rate, copies, kind, outages, seed)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
