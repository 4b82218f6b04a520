"""Bound rows: rows as a matrix that can be stressed, with all that a state needs.

Every deterministic state of an audit is a severity s in [0, 1] for each group, applied to x: each column of group g
moves by s_g * (baseline - x). ``blend`` is that rule, once, for every engine's twin to agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fragility.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.evidence.forms import CellForm
from fragility.evidence.row_states import RowStates
from fragility.evidence.rows import Rows
from fragility.models.adapter import Model

STEP = 0.5  # a value that cannot be interpolated takes the baseline's from this severity on


def blend(x: Floats, baseline: Floats, severity: npt.ArrayLike, stepwise: Booleans) -> Floats:
    """Return x moved toward the baseline by ``severity`` (broadcast over x's shape).

    s <= 0 is x exactly and s >= 1 the baseline exactly. Between, a cell is x + s * (baseline - x), unless it cannot be
    interpolated (a nominal column, a missing baseline or a missing value): then it is x while s < 0.5 and the
    baseline from 0.5 on.
    """
    s = np.broadcast_to(np.asarray(severity, dtype=np.float64), x.shape)
    moved = x + s * (baseline - x)
    jump = stepwise | np.isnan(x)
    moved = np.where(jump, np.where(s >= STEP, baseline, x), moved)
    return np.where(s >= 1.0, baseline, np.where(s <= 0.0, x, moved))


class OwnRows(NamedTuple):
    """Rows that an engine's answers are not believed for."""

    are: Callable[[Floats], Booleans]  # rows (m, d) -> (m,) which are of them
    predict: Callable[[Floats], Floats]  # the model itself


@dataclass(frozen=True, eq=False)
class EvidenceRows:
    """Rows to audit as a float64 matrix in the declared evidence space, with all that a state needs."""

    matrix: Any  # (n, d) float64, or CSR where the pipeline hands sparse rows to the model
    ids: tuple[Hashable, ...]
    baseline: Floats  # (d,)
    stepwise: Booleans  # (d,) columns that cannot be interpolated
    column_group: Integers  # (d,) index of each column's group
    n_groups: int
    n_classes: int
    predict_matrix: Callable[[Floats], Floats]
    model: Model  # as confirmed on these rows: its link reproduces its own predict_proba
    source: Rows  # the raw rows, for digests
    cell_dtype: Any = np.float64  # precision in which the estimator is handed its matrix
    native_matrix: bool = True  # the estimator is handed ``matrix`` itself: an engine may read it directly
    forms: tuple[CellForm, ...] | None = None  # (d,) raw cells on their way to the estimator; None: not known
    offset: Floats | None = None  # (C,) added to log-probabilities by the declared decision
    decided: Integers | None = None  # (n,) class at x by the model's own predict; None: the decision rule says it
    own: Floats | None = None  # (n, C) the model's probabilities of the rows as they stand, where they are known
    # an engine's answers to the states of some rows (m, d), None where it cannot give them; None: there is no engine
    answer_states: Callable[[Floats, RowStates], Floats | None] | None = None
    asked_itself: OwnRows | None = None  # rows that the model is asked about although there is an engine

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return len(self.baseline)

    def dense(self, start: int = 0, stop: int | None = None) -> Floats:
        """Return rows start..stop as a dense float64 matrix of their own."""
        part = self.matrix[start:stop]
        return part.toarray() if sp.issparse(part) else np.array(part, dtype=np.float64)

    def predict(self, matrix: Floats) -> Floats:
        """Return (m, C) probabilities for any stressed matrix of this space."""
        return self.predict_matrix(matrix)

    def own_probabilities(self, start: int, x: Floats) -> Floats:
        """Return (m, C) the model's probabilities of the rows from ``start`` on, whose cells are x (m, d)."""
        return self.predict(x) if self.own is None else self.own[start : start + len(x)]

    def predict_copies(self, x: Floats, copies: Floats) -> Floats:
        """Return (m k, C) probabilities of k changed copies (m, k, d) of each of the rows x (m, d)."""
        m, k, d = copies.shape
        p = self.predict(copies.reshape(m * k, d))
        own = None if self.asked_itself is None else self.asked_itself.are(x)
        if self.asked_itself is not None and own is not None and own.any():
            p = p.copy()
            p[np.repeat(own, k)] = self.asked_itself.predict(copies[own].reshape(-1, d))
        return p

    def answers(self, x: Floats, states: RowStates, byte_budget: int = DEFAULT_BYTE_BUDGET) -> Floats:
        """Return (q, C) probabilities of q states of rows x (m, d).

        An engine that can answer them does; else the model is asked about their cells, some states at a time.
        """
        told = None if self.answer_states is None else self.answer_states(x, states)
        return self._asked(x, states, byte_budget) if told is None else told

    def _asked(self, x: Floats, states: RowStates, byte_budget: int) -> Floats:
        step = rows_within(byte_budget, self.width, copies=4)  # cells, masks and the model's own copy
        starts = range(0, len(states), step)
        parts = [self.predict(self.stressed(x, states.between(start, start + step))) for start in starts]
        return np.concatenate(parts) if parts else np.empty((0, self.n_classes))

    def stressed(self, x: Floats, states: RowStates) -> Floats:
        """Return (q, d) the cells of q states of rows x (m, d)."""
        unit = states.unit_of(self.column_group)
        own, moved = x[states.owner], states.moved[:, unit]
        if states.severity is None:
            return np.where(moved, self.baseline, own)
        severity = states.severity[:, unit] if states.severity.ndim == 2 else states.severity[:, None]
        return blend(own, self.baseline, np.where(moved, severity, 0.0), self.stepwise)

    def between(self, start: int, stop: int) -> EvidenceRows:
        """Return the rows from start to stop, as views."""
        if start == 0 and stop >= len(self):
            return self
        return replace(
            self,
            matrix=self.matrix[start:stop],
            ids=self.ids[start:stop],
            source=self.source.between(start, stop),
            decided=None if self.decided is None else self.decided[start:stop],
            own=None if self.own is None else self.own[start:stop],
        )

    def take(self, positions: Sequence[int]) -> EvidenceRows:
        """Return the rows at these positions."""
        chosen = list(positions)
        return replace(
            self,
            matrix=self.matrix[chosen],
            ids=tuple(self.ids[i] for i in chosen),
            source=self.source.take(chosen),
            decided=None if self.decided is None else self.decided[chosen],
            own=None if self.own is None else self.own[chosen],
        )

    def with_decided(self, decided: Integers | None) -> EvidenceRows:
        """Return the rows with these classes at x."""
        return replace(self, decided=decided)

    def group_columns(self) -> list[Integers]:
        """Return each group's column indices."""
        return [np.flatnonzero(self.column_group == g) for g in range(self.n_groups)]
