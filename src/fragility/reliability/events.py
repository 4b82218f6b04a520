"""Recorded outages, taken as they co-occurred: p_flip is the share of events that flip, exact for every model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fragility.arrays import Booleans, Floats, Integers
from fragility.stress import Layout, Outages


@dataclass(frozen=True, slots=True, eq=False)
class EventSets:
    """The distinct sets of groups that events remove, and what would be left of them if a group never failed."""

    removed: Booleans  # (U, G) distinct sets
    weight: Floats  # (E,) share of each pattern of events
    of_event: Integers  # (E,) its set
    without: Integers  # (E, G) its set, if g never failed

    events: int  # recorded in all

    @classmethod
    def of(cls, outages: Outages, layout: Layout) -> EventSets:
        return cls.of_patterns(outages.removed_groups(layout), np.asarray(outages.counts))

    @classmethod
    def of_patterns(cls, patterns: Booleans, counts: Integers) -> EventSets:
        """Patterns (E, G) of groups, and how often each was recorded (E,)."""
        count, n_groups = patterns.shape
        reduced = patterns[:, None, :] & ~np.eye(n_groups, dtype=bool)
        every = np.concatenate([patterns, reduced.reshape(-1, n_groups)])
        removed, place = np.unique(every, axis=0, return_inverse=True)
        place = place.ravel()
        events = int(counts.sum())
        return cls(removed, counts / events, place[:count], place[count:].reshape(count, n_groups), events)

    def answers(self, flips: Booleans) -> tuple[Floats, Floats]:
        """Return p_flip (m,) and by how much it falls if a group never fails (m, G), from flips (m, U)."""
        p = flips[:, self.of_event] @ self.weight
        spared = np.einsum("meg,e->mg", flips[:, self.without], self.weight)
        return np.asarray(p), np.asarray(p[:, None] - spared)
