"""How many groups it takes to flip a prediction: what the path and the search of all sets say together.

With k* the flip budget of the path and s the size of the smallest failing set that a search found,

    fewest    the smallest failing set known: min(k*, s); G + 1 if none is known
    proved    no set of so many groups, or fewer, flips the prediction: s - 1 if s is proved to be the minimum, the
              largest size searched if none was found, G if no set fails. Without a search 1, if k* > 1: the path begins
              with the largest drop of the margin, so no other group flips a prediction alone that the first does not.
              (Under the reading `current` a margin does not say which class leads, so nothing is proved.)

A prediction flips within k groups if fewest <= k, and does not if proved >= k. Otherwise it is not settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, none_up_to
from fragility.protocol import Protocol
from fragility.scores import EARLY

PATH_COLUMNS = ("flip_budget", "flipped")
SEARCH_COLUMNS = ("smallest_size", "smallest_state")


@dataclass(frozen=True, eq=False)
class FlipBounds:
    """What is known of the smallest failing set of n predictions; G groups."""

    fewest: Integers  # (n,) groups of the smallest failing set known; G + 1 if none is
    proved: Integers  # (n,) no set of up to so many groups flips the prediction
    on_path: Integers  # (n,) k*; G + 1 if the path does not flip the prediction
    groups: int

    def __len__(self) -> int:
        return len(self.fewest)

    def take(self, chosen: Any) -> FlipBounds:
        """Return the chosen predictions."""
        return FlipBounds(self.fewest[chosen], self.proved[chosen], self.on_path[chosen], self.groups)

    def flips_within(self, groups: int) -> Booleans:
        """Return (n,) whether some set of up to so many groups is known to flip a prediction."""
        return self.fewest <= min(groups, self.groups)

    def unsettled_within(self, groups: int) -> Booleans:
        """Return (n,) whether nobody knows if a set of up to so many groups flips a prediction."""
        return ~self.flips_within(groups) & (self.proved < min(groups, self.groups))

    @property
    def flips_early(self) -> Booleans:
        """(n,) whether one or two groups are known to flip a prediction."""
        return self.flips_within(EARLY)

    @property
    def holds(self) -> Booleans:
        """(n,) whether a prediction is proved to hold whatever groups are lost."""
        return self.proved >= self.groups

    @property
    def holds_unsettled(self) -> Booleans:
        """(n,) whether nobody knows if a prediction holds whatever groups are lost."""
        return (self.fewest > self.groups) & ~self.holds


def find_single_losses(margin: Floats, drops: Floats, protocol: Protocol, classes: int) -> Booleans:
    """Return (n, G) which groups flip a prediction alone, from margins (n,) and drops (n, G).

    Not under the reading `current`, whose margins are of whichever class leads. Smoothed margins have the sign of the
    unsmoothed ones, but are smaller; at a tie of all classes by the factor 1 + C a.
    """
    return np.asarray(margin[:, None] - drops < -protocol.resolution / (1.0 + classes * protocol.smoothing))


def bound_flips(
    columns: pa.Table | pd.DataFrame, protocol: Protocol, declared: LatticeDeclaration | None, *, search: bool = True
) -> FlipBounds:
    """Return what certificates say of the smallest failing sets of their rows.

    columns: PATH_COLUMNS, and SEARCH_COLUMNS if sets were searched. search: False to leave out what the search found,
    as if only the path were known.
    """
    budget, flipped = (np.asarray(columns[name]) for name in PATH_COLUMNS)
    g, n = len(protocol.groups), len(budget)
    on_path = np.where(flipped.astype(bool), budget, g + 1).astype(np.int64)
    fewest, proved = on_path, np.zeros(n, dtype=np.int64)
    if protocol.reading != "current":
        proved = (on_path > 1).astype(np.int64)
    if declared is not None and search:
        state, size = np.asarray(columns["smallest_state"], dtype=object), columns["smallest_size"]
        size = np.nan_to_num(np.asarray(size, dtype=np.float64), nan=g + 1).astype(np.int64)
        fewest = np.minimum(on_path, size)
        none = np.where(state == none_up_to(declared.max_size), declared.max_size, 0)
        proved = np.maximum(proved, np.where(state == MINIMUM, size - 1, none))
        proved = np.where(state == NONE_AT_ALL, g, proved)
    return FlipBounds(fewest, np.minimum(proved, g), on_path, g)
