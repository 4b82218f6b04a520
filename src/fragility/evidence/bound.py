"""The evidence space, and rows bound to it: a matrix that can be stressed, with all that a state needs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.schemas import AtLeastZero
from fragility.base.text import BriefRepr
from fragility.evidence.fields import Field, Kind
from fragility.evidence.rows import Rows, Scalar
from fragility.evidence.states import Absence, Spared, States, blend
from fragility.models.adapter import Model
from fragility.models.outputs import ClassLabel, Decision

Space: TypeAlias = Literal["transformed", "raw"]
SPACES: tuple[Space, ...] = ("transformed", "raw")


def to_floats(values: Sequence[Any]) -> Floats:
    """Return the baselines of numeric columns as an array; missing ones are NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the evidence space."""

    name: str
    kind: Kind  # nominal: encodes a category (no noise; takes the encoding of a category under `typical`)
    baseline: Scalar  # None: missing (NaN for a number, the missing token for a nominal field)
    spread: AtLeastZero | None  # training standard deviation of a numeric column

    def __post_init__(self) -> None:
        if self.kind == "numeric" and type(self.baseline) is int:  # as JSON may write a float
            object.__setattr__(self, "baseline", float(self.baseline))


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column that the preprocessing hands to the final estimator."""

    name: str
    fields: tuple[str, ...]  # the raw fields it is made from


@dataclass(frozen=True, slots=True)
class Group:
    """An evidence group: columns that fail together."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class EvidenceSpace(BriefRepr):
    """Where evidence is replaced, and by what; how classes are decided there, and what counts as equal."""

    space: Space
    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    decision: Decision | None  # None: the class with the largest probability is predicted
    resolution: float
    listed: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)  # values by field that failure modes bring
    inputs: tuple[InputColumn, ...] = ()  # what the preprocessing hands on; none where there is no preprocessing

    @cached_property
    def column_fields(self) -> tuple[tuple[str, ...], ...]:
        """(d,) the raw fields that each column is made from."""
        if self.space == "raw" or not self.inputs:
            return tuple((column.name,) for column in self.columns)
        return tuple(column.fields for column in self.inputs)

    @property
    def group_fields(self) -> dict[str, tuple[str, ...]]:
        """The raw fields that each group has a part of, in the order of the table."""
        parts: dict[str, set[str]] = {group.name: set() for group in self.groups}
        for g, fields in zip(self.column_group, self.column_fields, strict=True):
            parts[self.groups[g].name] |= set(fields)
        return {
            group: tuple(field.name for field in self.fields if field.name in names) for group, names in parts.items()
        }

    @cached_property
    def column_group(self) -> Integers:
        """(d,) index of each column's group."""
        owner = {column: g for g, group in enumerate(self.groups) for column in group.columns}
        return np.array([owner[column.name] for column in self.columns], dtype=np.int64)

    def decision_offset(self, classes: Sequence[ClassLabel]) -> Floats | None:
        """Return what the declared decision adds to the log-probabilities of ``classes``; None: nothing."""
        return None if self.decision is None else self.decision.offset(classes)


@dataclass(frozen=True, slots=True)
class CellForm:
    """How the cells of one raw column are handed to a model that takes raw fields as they are.

    An engine that reads the model itself must know it: a code becomes a value of a table, a blend of whole numbers is
    rounded, a column may have half the precision.
    """

    values: tuple[Scalar, ...] | None  # a cell is a place in these; None: it is its number
    dtype: Any  # of the column handed over
    whole: bool  # a cell is rounded to a whole number, halves to even

    @property
    def categories(self) -> tuple[Any, ...] | None:
        """The categories of the column handed over, in the order of their codes; None for any other column."""
        return tuple(self.dtype.categories) if isinstance(self.dtype, pd.CategoricalDtype) else None

    @property
    def precision(self) -> np.dtype[Any]:
        """The type that holds a number of the column: that of a nullable column is the one inside."""
        inside: np.dtype[Any] = np.dtype(getattr(self.dtype, "numpy_dtype", self.dtype))
        return inside


@dataclass(frozen=True, eq=False)
class EvidenceRows:
    """Rows to audit as a float64 matrix in the declared evidence space, with all that a state needs.

    Only data, and the way to the model itself. Who answers about stressed copies is an oracle (`engines.oracle`).
    """

    matrix: Any  # (n, d) float64, or CSR where the pipeline hands sparse rows to the model
    ids: tuple[Hashable, ...]
    baseline: Floats  # (d,)
    stepwise: Booleans  # (d,) columns that cannot be interpolated
    column_group: Integers  # (d,) index of each column's group
    n_groups: int
    n_classes: int
    # cells (m, d), at least one row -> (m, C) the model's own probabilities; nobody else is asked here
    ask_model: Callable[[Floats], Floats]
    model: Model  # as confirmed on these rows: its link reproduces its own predict_proba
    source: Rows  # the raw rows, for digests
    cell_dtype: Any = np.float64  # precision in which the estimator is handed its matrix
    native_matrix: bool = True  # the estimator is handed ``matrix`` itself: an engine may read it directly
    forms: tuple[CellForm, ...] | None = None  # (d,) raw cells on their way to the estimator; None: not known
    offset: Floats | None = None  # (C,) added to log-probabilities by the declared decision
    decided: Integers | None = None  # (n,) class at x by the model's own predict; None: the decision rule gives it
    own: Floats | None = None  # (n, C) the model's probabilities of the rows as they stand, where they are known
    absent: Absence | None = None  # what is missing in the rows, and so no state moves; None: nothing
    # cells (m, d) -> what the final estimator is handed; None: preprocessing stands between them
    hand_over: Callable[[Floats], Any] | None = None
    # raw rows in a table -> their cells (k, d), for the values that failure modes bring; None for a sparse matrix
    encode: Callable[[pd.DataFrame], Floats] | None = None
    # raw rows in a table -> (k, C) the model's own probabilities, through its whole pipeline; None for a sparse matrix
    ask_table: Callable[[pd.DataFrame], Floats] | None = None
    form: Any = None  # the Form that bound them, by which further rows can be bound
    known: Mapping[bytes, Floats] | None = None  # cells -> (C,) the model's answers that were asked for before

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return len(self.baseline)

    def dense(self, start: int = 0, stop: int | None = None) -> Floats:
        """Return rows start..stop as a dense float64 matrix of their own."""
        part = self.matrix[start:stop]
        return part.toarray() if sp.issparse(part) else np.array(part, dtype=np.float64)

    def spared(self, start: int = 0, stop: int | None = None) -> Spared | None:
        """Return what no state moves in the rows start..stop; None if all may be moved."""
        return None if self.absent is None else self.absent.spared(start, stop)

    def targets(self, x: Floats, spared: Spared | None) -> Floats:
        """Return what the cells of rows x (m, d) move to: the baseline (d,), or (m, d) where some are spared."""
        return self.baseline if spared is None else np.where(spared.cells, x, self.baseline)

    def predict(self, matrix: Floats) -> Floats:
        """Return (m, C) the model's own probabilities of any stressed matrix; without rows it is not asked."""
        if not len(matrix):
            return np.empty((0, self.n_classes))
        if self.known is not None and len(matrix) <= len(self.known):
            answers = [self.known.get(cells.tobytes()) for cells in matrix]
            if all(answer is not None for answer in answers):
                return np.array(answers)
        return self.ask_model(matrix)

    def own_probabilities(self, start: int, x: Floats) -> Floats:
        """Return (m, C) the model's probabilities of the rows from ``start`` on, whose cells are x (m, d)."""
        return self.predict(x) if self.own is None else self.own[start : start + len(x)]

    def stressed(self, x: Floats, states: States) -> Floats:
        """Return (q, d) the cells of q states of rows x (m, d)."""
        unit = states.unit_of(self.column_group)
        cells, moved = x[states.owner], states.moved[:, unit]
        if states.severity is None:
            return np.where(moved, self.baseline, cells)
        severity = states.severity[:, unit] if states.severity.ndim == 2 else states.severity[:, None]
        return blend(cells, self.baseline, np.where(moved, severity, 0.0), self.stepwise)

    def between(self, start: int, stop: int) -> EvidenceRows:
        """Return the rows from start to stop, as views."""
        if start == 0 and stop >= len(self):
            return self
        return self._part(slice(start, stop), self.ids[start:stop], self.source.between(start, stop))

    def take(self, positions: Sequence[int]) -> EvidenceRows:
        """Return the rows at these positions."""
        chosen = list(positions)
        return self._part(chosen, tuple(self.ids[i] for i in chosen), self.source.take(chosen))

    def _part(self, chosen: slice | list[int], ids: tuple[Hashable, ...], source: Rows) -> EvidenceRows:
        decided = None if self.decided is None else self.decided[chosen]
        own = None if self.own is None else self.own[chosen]
        absent = None if self.absent is None else self.absent.take(chosen)
        matrix = self.matrix[chosen]
        return replace(self, matrix=matrix, ids=ids, source=source, decided=decided, own=own, absent=absent)

    def group_columns(self) -> list[Integers]:
        """Return each group's column indices."""
        return [np.flatnonzero(self.column_group == g) for g in range(self.n_groups)]
