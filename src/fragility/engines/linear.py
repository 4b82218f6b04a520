r"""Linear engine: certificates of linear classifiers without one model pass.

The raw score of class c is a sum over evidence groups, and every state of a certificate only exchanges terms of it:

    s_c(x)          = b_c + sum_g u_gc,    u_gc = sum_{j in g} w_cj x_j,    ubar_gc the same at the baseline
    s_c(R(x, {g}))  = s_c(x) - t_gc,       t_gc = u_gc - ubar_gc
    s_c(x^(k))      = s_c(x) - sum_{g among the first k groups of the path} t_gc
    s_c(lambda)     = s_c(x) - lambda sum_{g attenuated} t_gc

so a certificate costs one product of the rows with the weights, and sums. `linear_traces` makes a trace of s and t.

Letters: m rows, d columns, G groups, C classes, O outputs (1 for two classes, else C), K depth, P operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fragility.base.arrays import MEBIBYTE, Booleans, Floats, Integers, rows_within
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import family_of
from fragility.engines.engine import Engine, Values
from fragility.engines.linear_traces import Link, choose_filling
from fragility.engines.trace import Progress, Trace, Tracer, TraceStates
from fragility.evidence import EvidenceRows, States
from fragility.models import outputs
from fragility.protocol import Protocol
from fragility.scores import sigmoid_probabilities, softmax_probabilities

LOGISTIC = ("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV")
DISCRIMINANT = "sklearn.LinearDiscriminantAnalysis"
STOCHASTIC = "sklearn.SGDClassifier"

PIECE_BYTES = 2 * MEBIBYTE  # an array of a piece of rows should stay in cache
STATES_BYTES = MEBIBYTE  # and so should the states of a piece, as numbers
LEAST_ROWS = 16
JOINED_COLUMNS = 4  # neighbouring groups of so few columns share one product
MOST_ROUNDING = 1e-9  # of a margin


# --- which models -------------------------------------------------------------------------------------------


def link_for(rows: EvidenceRows) -> Link | None:
    """Return the link of a known linear model, None for any other; with two classes it is the logistic one."""
    head, family = rows.model.head, family_of(rows.model.head)
    linked = rows.model.head_link is not outputs.Link.PREDICT_PROBA
    if family in LOGISTIC or family == DISCRIMINANT:
        if linked:
            return softmax_probabilities
        rest = getattr(head, "solver", "") == "liblinear" or getattr(head, "multi_class", "") == "ovr"
        return normalise_one_against_rest if family in LOGISTIC and rest and rows.n_classes > 2 else None
    if family == STOCHASTIC and head.loss == "log_loss":
        return normalise_one_against_rest if linked or rows.n_classes > 2 else None
    return None


def normalise_one_against_rest(scores: Floats) -> Floats:
    """Return 1 / (1 + exp(-s_c)), normalised over the classes; uniform where all of them vanish."""
    with np.errstate(over="ignore"):
        p = 1.0 / (1.0 + np.exp(-scores))
    p[p.sum(axis=-1) == 0.0] = 1.0
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def never_adds_up(rows: EvidenceRows) -> str | None:
    """Return why linear scores of rows of this model and protocol are no sums over groups; None if they may be."""
    if not rows.native_matrix and rows.model.transformer is not None:
        return "preprocessing stands between the evidence and the scores"
    if bool(rows.stepwise.any()) or not bool(np.isfinite(rows.baseline).all()):
        return "some columns cannot be interpolated, or have no baseline"
    return None


def refuse_cells(rows: EvidenceRows) -> str | None:
    """Return why linear scores of these very rows are not summed here; None if they can be."""
    if not rows.native_matrix and rows.model.transformer is None:
        return "its rows hold whole numbers or categories, which cannot be handed over as they are"
    if rows.cell_dtype != np.float64:
        return "its rows are float32, and sums of float32 products depend on their order"
    return None


# --- sums over groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupScores:
    """The linear model as sums over groups."""

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
        """(groups, their columns among the sorted ones, weights) of each product; small neighbours joined.

        weights ((groups) O, c): those of each column, in the rows of its group.
        """
        stops = np.cumsum(np.bincount(self.column_group, minlength=self.n_groups))
        starts, found, first = np.r_[0, stops[:-1]], [], 0
        for g in range(1, self.n_groups + 1):
            if g == self.n_groups or stops[g] - starts[first] > JOINED_COLUMNS:
                columns = slice(int(starts[first]), int(stops[g - 1]))
                group = self.column_group[self.by_group][columns] - first
                weights = np.zeros((g - first, self.n_outputs, len(group)))
                weights[group, :, np.arange(len(group))] = self.coefficients[:, self.by_group][:, columns].T
                found.append((slice(first, g), columns, weights.reshape((g - first) * self.n_outputs, len(group))))
                first = g
        return found

    @cached_property
    def _largest_weights(self) -> Floats:
        """(d,): what a cell counts at most in the difference of two scores."""
        weights = np.abs(self.coefficients)
        return np.asarray(weights.max(axis=0) if len(weights) == 1 else np.sort(weights, axis=0)[-2:].sum(axis=0))

    def bound_rounding(self, cells: Any) -> Floats:
        """Return (m,) how far sums over these cells (m, d), dense or CSR, may be from exact ones, here or in the model.

        With u = 2^-53: 2 (d + 3) u sum_j |w_j| (|x_j| + |xbar_j|).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.asarray(abs(cells) @ self._largest_weights).ravel()
        sums += float(np.abs(self.baseline) @ self._largest_weights) + float(np.abs(self.intercept).max())
        return np.asarray(2.0 * (len(self.baseline) + 3) * 2.0**-53 * sums)

    def find_rounded(self, cells: Any) -> Booleans:
        """Return (m,) the rows (m, d), dense or CSR, whose sums may have lost digits that matter.

        A state is the score of x less what is removed: where a cell is large, both are, and their difference is
        rounded.
        """
        return ~(self.bound_rounding(cells) <= MOST_ROUNDING)  # NaN: such rows are the model's to refuse

    def sum_piece(self, rows: EvidenceRows, piece: slice) -> tuple[Floats, Floats]:
        """Return s (O, m) and t (G, O, m) of some rows; rows come last, so that every sum runs over whole vectors."""
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are left to the model
            u = self._sum_sparse(rows.matrix, piece) if sp.issparse(rows.matrix) else self.sum_dense(rows.matrix[piece])
            total = u.sum(axis=0)
            total += self.intercept[:, None]
            u -= self.at_baseline[:, :, None]
            if (spared := rows.spared(piece.start, piece.stop)) is not None:
                self.spare(rows.dense(piece.start, piece.stop), spared.cells, u)
        return total, u

    def spare(self, x: Floats, fixed: Booleans, removed: Floats) -> None:
        """Change t (G, O, m) of rows x (m, d) to that of the cells that are not fixed (m, d); of no cell it is 0."""
        those = np.flatnonzero(fixed.any(axis=1))
        removed[:, :, those] = self.sum_dense(np.where(fixed[those], 0.0, x[those] - self.baseline))

    def sum_dense(self, part: Floats) -> Floats:
        """Return u (G, O, m) of some rows (m, d)."""
        part = part[:, self.by_group]
        u = np.empty((self.n_groups * self.n_outputs, len(part)))
        for groups, columns, weights in self.products:
            into = u[groups.start * self.n_outputs : groups.stop * self.n_outputs]
            np.matmul(weights, part[:, columns].T, out=into)
        return u.reshape(self.n_groups, self.n_outputs, len(part))

    def _sum_sparse(self, matrix: Any, piece: slice) -> Floats:
        """Return u (G, O, m); each stored cell goes to the sum of its group."""
        m = piece.stop - piece.start
        cells = slice(matrix.indptr[piece.start], matrix.indptr[piece.stop])
        columns, values = matrix.indices[cells], matrix.data[cells]
        place = (self.column_group * m).take(columns)
        place += np.repeat(np.arange(m), np.diff(matrix.indptr[piece.start : piece.stop + 1]))
        sums = [np.bincount(place, values * w.take(columns), self.n_groups * m) for w in self.coefficients]
        # without any stored cell, bincount counts in whole numbers
        return np.stack([part.reshape(self.n_groups, m) for part in sums], axis=1).astype(np.float64, copy=False)


# --- sums of states -----------------------------------------------------------------------------------------


def score_values(scores: GroupScores, x: Floats, y: Floats, unit: Integers, asked: Integers) -> Floats:
    """Return the raw scores (k, m, O) of rows in which one unit has taken the cells of y."""
    moved, weights = np.broadcast_to(y, x.shape) - x, scores.coefficients
    added = [moved[:, unit == own] @ weights[:, unit == own].T for own in asked]
    return np.asarray(x @ weights.T + scores.intercept + np.stack(added))


def score_states(scores: GroupScores, x: Floats, states: States) -> Floats:
    """Return the raw scores (q, O) of q states, made some at a time."""
    raw = np.empty((len(states), scores.n_outputs))
    n, n_units, owner = len(x), states.moved.shape[1], states.owner
    per_row, rest = divmod(len(owner), n)
    ends = (owner[::per_row], owner[per_row - 1 :: per_row]) if per_row and not rest else ()
    if ends and all((end == np.arange(n)).all() for end in ends):  # each row has as many states
        step = rows_within(STATES_BYTES, n_units * max(per_row, scores.n_outputs))
        for start in range(0, n, step):
            total, removed = sum_contributions(scores, x[start : start + step], states.by_column)
            part = slice(start * per_row, (start + len(total)) * per_row)
            lost = _list_extents(states, part).reshape(len(total), per_row, n_units) @ removed
            raw[part] = (total[:, None] - lost).reshape(-1, scores.n_outputs)
        return raw
    step = rows_within(STATES_BYTES, n_units * scores.n_outputs)
    for start in range(0, len(states), step):
        part = slice(start, min(start + step, len(states)))
        owners, place = np.unique(owner[part], return_inverse=True)
        total, removed = sum_contributions(scores, x[owners], states.by_column)
        raw[part] = total[place] - np.einsum("quo,qu->qo", removed[place], _list_extents(states, part))
    return raw


def sum_contributions(scores: GroupScores, x: Floats, by_column: bool) -> tuple[Floats, Floats]:
    """Return (raw scores (m, O), what removing each unit takes from them (m, U, O))."""
    if by_column:
        u, at_baseline = x[:, :, None] * scores.coefficients.T, (scores.coefficients * scores.baseline).T
    else:
        u, at_baseline = np.ascontiguousarray(scores.sum_dense(x).transpose(2, 0, 1)), scores.at_baseline
    total = u.sum(axis=1) + scores.intercept
    u -= at_baseline
    return total, u


def add_up(parts: Floats) -> Floats:
    """Return the sum over the first axis, in order; numpy's own order depends on the shape of the array."""
    total: Floats = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _list_extents(states: States, part: slice) -> Floats:
    """Return (some, U) how far each state moves each unit."""
    moved: Booleans = states.moved[part]
    if states.severity is None:
        return moved.astype(np.float64)
    severity = states.severity[part]
    return np.where(moved, severity if severity.ndim == 2 else severity[:, None], 0.0)


# --- the engine ---------------------------------------------------------------------------------------------


class LinearEngine(Engine):
    """A linear classifier as sums over groups.

    With u_g(x) what unit g (a group, or a column) adds to the raw scores of a row, and ubar_g what it adds at the
    baseline, a state that moves units by l is  b + sum_g u_g(x) - sum_g l_g (u_g(x) - ubar_g):  one product of a row's
    states with its contributions. A unit that takes other values exchanges what it adds at x for what it adds at y.
    """

    name, bounded, predicts = "linear", True, False

    def __init__(self, rows: EvidenceRows) -> None:
        super().__init__(rows)
        link = link_for(rows)
        if link is None:
            message = f"the linear engine does not know {rows.model.kind}; use "
            raise EngineError(message, Advice.argument("engine", "auto"))
        self.link, self.scores = link, GroupScores.of(rows)

    @classmethod
    def never_reads(cls, rows: EvidenceRows) -> str | None:
        if link_for(rows) is None:
            return "it is not a linear classifier whose scores and link are known"
        return never_adds_up(rows)

    @classmethod
    def refusal(cls, rows: EvidenceRows) -> str | None:
        return refuse_cells(rows) or cls.never_reads(rows)

    def doubts(self, cells: Any) -> Booleans:
        return self.scores.find_rounded(cells)

    def tracer(self, protocol: Protocol) -> Tracer:
        asked, scores, offset = TraceStates.of(protocol, self.form), self.scores, self.form.offset
        fill = choose_filling(scores.n_outputs, self.link, asked)
        shift = 0.0 if offset is None else float(offset[1] - offset[0])
        widest = asked.n_groups  # cells per row in the widest array
        if scores.n_outputs > 1:
            widest = max(asked.n_groups, asked.depth + 1, len(asked.severities)) * scores.n_outputs
        size = rows_within(PIECE_BYTES, widest, least=LEAST_ROWS)
        at_baseline = self._probabilities(add_up(scores.at_baseline) + scores.intercept)
        every_class = np.arange(self.form.n_classes)
        bare_margins = asked.rule.margin(np.tile(at_baseline, (len(every_class), 1)), every_class)  # by the class at x

        def trace_rows(rows: EvidenceRows, progress: Progress | None = None) -> Trace:
            n = len(rows)
            # tables are stored state by state, as they are made
            out = Trace.allocate(asked, n, rows.decided, self.name, "F")
            for start in range(0, n, size):
                piece = slice(start, min(start + size, n))
                total, removed = scores.sum_piece(rows, piece)
                spared = rows.spared(piece.start, piece.stop)
                last, gaps = (None, None) if spared is None else (spared.groups.T, spared.cells.any(axis=1))
                own = None if gaps is None else (total[:, gaps] - add_up(removed[:, :, gaps])).T
                part = out.rows(piece)
                fill(part, total, removed, asked, shift, last)
                part.bare_margin[:] = bare_margins[part.predicted]
                if own is not None:
                    part.bare_margin[gaps] = asked.rule.margin(self._probabilities(own), part.predicted[gaps])
                if progress is not None:
                    progress(piece.stop, n)
            return out

        return trace_rows

    def answer_states(self, x: Floats, states: States) -> Floats | None:
        raw = score_states(self.scores, x, states)
        return self._probabilities(raw) if np.isfinite(raw).all() else None  # such rows are the model's to refuse

    def answer_values(self, x: Floats, asked: Sequence[Values]) -> Iterator[Floats]:
        return (self._probabilities(score_values(self.scores, x, *one)) for one in asked)

    def _probabilities(self, raw: Floats) -> Floats:
        """Return the probabilities (..., C) of raw scores (..., O)."""
        return sigmoid_probabilities(raw[..., 0]) if self.scores.n_outputs == 1 else self.link(raw)
