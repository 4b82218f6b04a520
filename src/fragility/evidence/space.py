"""The evidence space: what binding needs to know of a protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from fragility.arrays import Floats, Integers
from fragility.evidence.fields import Field
from fragility.evidence.rows import Kind, Scalar
from fragility.models.decision import ClassLabel, Decision

Space: TypeAlias = Literal["transformed", "raw"]
SPACES: tuple[Space, ...] = ("transformed", "raw")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the evidence space."""

    name: str
    kind: Kind  # nominal: encodes a category (no noise; takes the encoding of a category under `typical`)
    baseline: Scalar  # None: missing (NaN for a number, the missing token for a nominal field)
    spread: float | None  # training standard deviation of a numeric column


@dataclass(frozen=True, slots=True)
class Group:
    """An evidence group: columns that fail together."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class EvidenceSpace:
    """Where evidence is replaced, and by what; how classes are decided there, and what counts as equal."""

    space: Space
    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    decision: Decision | None  # None: the class with the largest probability is predicted
    resolution: float

    @cached_property
    def column_group(self) -> Integers:
        """(d,) index of each column's group."""
        owner = {column: g for g, group in enumerate(self.groups) for column in group.columns}
        return np.array([owner[column.name] for column in self.columns], dtype=np.int64)

    def decision_offset(self, classes: Sequence[ClassLabel]) -> Floats | None:
        """Return what the declared decision adds to the log-probabilities of ``classes``; None: nothing."""
        return None if self.decision is None else self.decision.offset(classes)
