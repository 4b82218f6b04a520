"""The whole lattice of a unit's confident rows: smallest failing sets and failure probabilities, exact, in one pass.

For additive models (trees, linear) every subset of a row's groups is decided once; its smallest failing set and its
failure probability at every declared rate come from the same table. Other models have no lattice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility_paper.arrays import Array, Floats
from fragility_paper.library import DEFAULT_BYTE_BUDGET, Claims, fds, find_lattice
from fragility_paper.plan import FAILURE_RATES
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.work import Work

SMALLEST_SCORES = ("cfc_fds_smallest", "inverse_smallest_set")
MASK_RATE = FAILURE_RATES[-1]  # that of the mask stressor


def flip_score(rate: float) -> str:
    """The name of P_flip as a ranking score."""
    return f"p_flip_{rate:g}"


LATTICE_SCORES = (*SMALLEST_SCORES, *(flip_score(rate) for rate in FAILURE_RATES))


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """What all subsets of n rows say; rows with too many live groups for a table are not decided."""

    decided: Array  # (n,) bool
    smallest: Array  # (n,) groups in the smallest failing set, G + 1 where no set fails
    sets: Array  # (n,) failing sets of that size
    p_flip: Mapping[float, Floats]  # by rate, NaN where not decided
    expected_margin: Floats | None  # (n,) under the mask stressor; None where it has no closed form
    n_groups: int

    @property
    def found(self) -> Array:
        return self.decided & (self.smallest <= self.n_groups)

    def within(self, depth: int) -> Array:
        """k_min as k* is counted, K + 1 for nothing within the depth; NaN where not decided."""
        return np.asarray(np.where(self.decided, np.minimum(self.smallest, depth + 1.0), np.nan))

    def scores(self, claims: Claims, depth: int, weights: tuple[float, float, float]) -> dict[str, Floats]:
        """FDS with k_min in place of k*, 1 / k_min, and P_flip at each rate."""
        size = self.within(depth)
        return {
            "cfc_fds_smallest": fds(claims.rcma, size, claims.thresholds, weights),
            "inverse_smallest_set": 1.0 / size,
            **{flip_score(rate): values for rate, values in self.p_flip.items()},
        }


def lattice_of(work: Work, rows: AuditedRows) -> Lattice | None:
    """Tabulate the subsets of every row; None for a model that is not additive.

    States near the edge are asked of the model itself, so the rows are bound without a native predictor.
    """
    fitted = work.fitted
    evidence = fitted.asked(rows.positions)
    lattice = find_lattice(evidence, fitted.protocol, fitted.predictor, DEFAULT_BYTE_BUDGET)
    if lattice is None:
        return None
    table = _Table(len(rows), int(evidence.n_groups))
    for block in lattice.blocks():
        for found in lattice.subsets(block):
            table.read(block.start + found.place, found)
        rates = np.full(table.groups, MASK_RATE)
        table.margins.append(lattice.model.expected_margin(block.x, block.original, rates, lattice.workers(0)))
    return table.finished()


class _Table:
    """The arrays of a Lattice, to be filled."""

    def __init__(self, n: int, groups: int) -> None:
        self.groups = groups
        self.decided, self.smallest = np.zeros(n, dtype=bool), np.full(n, groups + 1)
        self.sets = np.zeros(n, dtype=np.int64)
        self.p_flip = {rate: np.full(n, np.nan) for rate in FAILURE_RATES}
        self.margins: list[Floats | None] = []

    def read(self, at: Array, found: Any) -> None:
        """Take in the subsets of some rows."""
        sizes = found.sizes()
        first = (sizes > 0).argmax(axis=1)
        self.decided[at] = True
        self.smallest[at] = np.where(sizes.any(axis=1), first, self.groups + 1)
        self.sets[at] = sizes[np.arange(len(at)), first]
        for rate, values in self.p_flip.items():
            values[at], _ = found.probabilities(np.full(self.groups, rate))

    def finished(self) -> Lattice:
        known = [part for part in self.margins if part is not None]
        margin = np.concatenate(known) if known and len(known) == len(self.margins) else None
        return Lattice(self.decided, self.smallest, self.sets, self.p_flip, margin, self.groups)
