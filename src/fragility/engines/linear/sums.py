"""Raw scores of rows and of their removals, as sums over evidence groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fragility.arrays import Floats, Integers
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows

JOINED_COLUMNS = 4  # neighbouring groups of so few columns share one product


@dataclass(frozen=True)
class GroupScores:
    """The linear model as sums over groups; O outputs: 1 for two classes, else one a class."""

    coefficients: Floats  # (O, d)
    intercept: Floats  # (O,)
    baseline: Floats  # (d,)
    column_group: Integers  # (d,)
    n_groups: int

    @classmethod
    def of(cls, rows: EvidenceRows) -> GroupScores:
        head = rows.model.head
        raw = head.coef_.toarray() if sp.issparse(head.coef_) else np.asarray(head.coef_)
        w = np.atleast_2d(raw).astype(np.float64)
        b = np.broadcast_to(np.asarray(head.intercept_, dtype=np.float64).reshape(-1), (len(w),))
        if len(w) == 2 == rows.n_classes:
            w, b = w[1:] - w[:1], b[1:] - b[:1]
        if w.shape != (1 if rows.n_classes == 2 else rows.n_classes, rows.width):
            raise EngineError(f"{rows.model.kind} has weights of shape {w.shape} for {rows.width} columns")
        return cls(w, b, rows.baseline, rows.column_group, rows.n_groups)

    @property
    def n_outputs(self) -> int:
        return len(self.intercept)

    @cached_property
    def at_baseline(self) -> Floats:
        """(G, O): ubar."""
        sums = np.zeros((self.n_groups, self.n_outputs))
        np.add.at(sums, self.column_group, (self.coefficients * self.baseline).T)
        return sums

    @cached_property
    def by_group(self) -> Integers | slice:
        """Columns sorted by group; all of them as they are, where they are sorted already."""
        sorted_already = bool((np.diff(self.column_group) >= 0).all())
        return slice(None) if sorted_already else np.argsort(self.column_group, kind="stable")

    @cached_property
    def products(self) -> list[tuple[slice, slice, Floats]]:
        """Return (groups, their columns among the sorted ones, weights) of each product; small neighbours joined."""
        stops = np.cumsum(np.bincount(self.column_group, minlength=self.n_groups))
        starts, found, first = np.r_[0, stops[:-1]], [], 0
        for g in range(1, self.n_groups + 1):
            if g == self.n_groups or stops[g] - starts[first] > JOINED_COLUMNS:
                columns = slice(int(starts[first]), int(stops[g - 1]))
                found.append((slice(first, g), columns, self._spread(first, g, columns)))
                first = g
        return found

    def _spread(self, first: int, stop: int, columns: slice) -> Floats:
        """Return ((stop - first) O, c): weights of some sorted columns, each in the rows of its group."""
        group = self.column_group[self.by_group][columns] - first
        weights = np.zeros((stop - first, self.n_outputs, len(group)))
        weights[group, :, np.arange(len(group))] = self.coefficients[:, self.by_group][:, columns].T
        return weights.reshape(-1, len(group))

    @cached_property
    def _largest_weights(self) -> Floats:
        """(d,): what a cell counts at most in the difference of two scores."""
        weights = np.abs(self.coefficients)
        return np.asarray(weights.max(axis=0) if len(weights) == 1 else np.sort(weights, axis=0)[-2:].sum(axis=0))

    def rounding(self, cells: Any) -> Floats:
        """Return (m,) how far sums over these cells (m, d), dense or CSR, may be from exact ones, here or in the model.

        With u = 2^-53: 2 (d + 3) u sum_j |w_j| (|x_j| + |xbar_j|).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.asarray(abs(cells) @ self._largest_weights).ravel()
        sums += float(np.abs(self.baseline) @ self._largest_weights) + float(np.abs(self.intercept).max())
        return np.asarray(2.0 * (len(self.baseline) + 3) * 2.0**-53 * sums)

    def of_piece(self, rows: EvidenceRows, piece: slice) -> tuple[Floats, Floats]:
        """Return s (O, m) and t (G, O, m) of some rows; rows come last, so that every sum runs over whole vectors."""
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are left to the model
            part = rows.matrix[piece]
            u = self._sparse_sums(rows.matrix, piece) if sp.issparse(rows.matrix) else self.dense_sums(part)
            total = u.sum(axis=0)
            total += self.intercept[:, None]
            u -= self.at_baseline[:, :, None]
        return total, u

    def dense_sums(self, part: Floats) -> Floats:
        """Return u (G, O, m) of some rows (m, d)."""
        part = part[:, self.by_group]
        u = np.empty((self.n_groups * self.n_outputs, len(part)))
        for groups, columns, weights in self.products:
            into = u[groups.start * self.n_outputs : groups.stop * self.n_outputs]
            np.matmul(weights, part[:, columns].T, out=into)
        return u.reshape(self.n_groups, self.n_outputs, len(part))

    def _sparse_sums(self, matrix: Any, piece: slice) -> Floats:
        """Return u (G, O, m); each stored cell goes to the sum of its group."""
        m = piece.stop - piece.start
        cells = slice(matrix.indptr[piece.start], matrix.indptr[piece.stop])
        columns, values = matrix.indices[cells], matrix.data[cells]
        place = (self.column_group * m).take(columns)
        place += np.repeat(np.arange(m), np.diff(matrix.indptr[piece.start : piece.stop + 1]))
        sums = [np.bincount(place, values * w.take(columns), self.n_groups * m) for w in self.coefficients]
        # without any stored cell, bincount counts in whole numbers
        return np.stack([part.reshape(self.n_groups, m) for part in sums], axis=1).astype(np.float64, copy=False)
