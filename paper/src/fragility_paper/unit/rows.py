"""Which rows of a part each analysis takes, and those rows with their certificates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.library import Oracle
from fragility_paper.unit.fitted import FittedUnit

HIGH_CONFIDENCE = 0.90
NEARLY_CONFIDENT = 0.85  # the lowest threshold of the grid

Kind = Literal["confident", "nearly", "anyone"]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Positions (in the part) of the rows that each analysis takes, all prefixes of one seeded permutation."""

    confident: Array  # confidence >= 0.90
    nearly: Array  # confidence >= 0.85, for the grid of confidence thresholds
    anyone: Array  # any confidence

    @property
    def union(self) -> Array:
        return np.unique(np.concatenate([self.confident, self.nearly, self.anyone]))


def select_rows(confidence: Floats, seed: int, *, confident: int, nearly: int, anyone: int) -> Selection:
    """The first so many rows of a seeded permutation that qualify; labels play no part."""
    order = np.random.default_rng([seed, len(confidence)]).permutation(len(confidence))
    ranked = confidence[order]
    return Selection(
        confident=np.sort(order[ranked >= HIGH_CONFIDENCE][:confident]),
        nearly=np.sort(order[ranked >= NEARLY_CONFIDENT][:nearly]),
        anyone=np.sort(order[:anyone]),
    )


@dataclass(frozen=True, eq=False)
class AuditedRows:
    """Rows with their probabilities and certificates; no labels."""

    fitted: FittedUnit
    positions: Array  # row positions in the data set
    p: Floats  # (n, C)
    certs: fg.Certificates

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def truth(self) -> Array:
        return np.asarray(self.fitted.data.y[self.positions])

    @cached_property
    def oracle(self) -> Oracle:
        """Who answers about the rows, bound by the unit's own protocol; bound once, since several analyses ask."""
        return self.fitted.oracle(self.positions)

    def take(self, places: Array) -> AuditedRows:
        return AuditedRows(self.fitted, self.positions[places], self.p[places], self.certs.take(places))


@dataclass(frozen=True, slots=True, eq=False)
class AuditedPart:
    """The test or the validation part: every row that some analysis takes, certified once."""

    selection: Selection
    rows: AuditedRows  # of the union, in its order

    @classmethod
    def of(cls, fitted: FittedUnit, part: Array, p: Floats, selection: Selection) -> AuditedPart:
        positions = part[selection.union]
        return cls(selection, AuditedRows(fitted, positions, p[selection.union], fitted.certify(positions)))

    def places(self, kind: Kind) -> Array:
        """Where the rows of one analysis lie among ``rows``."""
        wanted: Array = getattr(self.selection, kind)
        return np.searchsorted(self.selection.union, wanted)

    def select(self, kind: Kind) -> AuditedRows:
        return self.rows.take(self.places(kind))
