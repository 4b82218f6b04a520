r"""Linear engine: certificates of linear classifiers without one model pass.

The raw score of class c is a sum over evidence groups, and every state of a certificate only exchanges terms of it:

    s_c(x)          = b_c + sum_g u_gc,    u_gc = sum_{j in g} w_cj x_j,    ubar_gc the same at the baseline
    s_c(R(x, {g}))  = s_c(x) - t_gc,       t_gc = u_gc - ubar_gc
    s_c(x^(k))      = s_c(x) - sum_{g among the first k groups of the path} t_gc
    s_c(lambda)     = s_c(x) - lambda sum_{g attenuated} t_gc

so a certificate costs one product of the rows with the weights, and sums. With two classes and the logistic link the
margin needs no link at all: log p1 - log p0 = s, and clipping probabilities at 1e-12 clips s at log(1e12). With many
classes and the softmax link, let o be the original class and D_c = s_o - s_c: the support margin is min_{c != o} D_c as
long as no probability in it is clipped, and p_o = 1 / (1 + sum_{c != o} exp(-D_c)).

Models: LogisticRegression and LogisticRegressionCV (binary, multinomial, one against the rest),
LinearDiscriminantAnalysis, SGDClassifier with log loss; dense or CSR rows in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from fragility.engines.trace import Progress, Trace
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows
from fragility.models import PREDICT_PROBA
from fragility.protocol import Protocol, operator_width
from fragility.scores import (
    CLIP,
    Floats,
    Integers,
    flip_threshold,
    predicted_class,
    reading_margin,
    removal_order,
    softmax_probabilities,
    state_prediction,
    support_margin,
)

ENGINE = "linear"
LOGISTIC = ("LogisticRegression", "LogisticRegressionCV")
BOUND = -float(np.log(CLIP))  # largest margin two clipped probabilities can have
PIECE_BYTES = 2**21  # an array of a piece of rows should stay in cache; no result depends on it
JOINED_COLUMNS = 4  # neighbouring groups of so few columns share one product
TINY = 1e-290


def refusal(rows: EvidenceRows) -> str | None:
    """Return why this engine cannot audit these rows, or None if it can."""
    if _link_for(rows) is None:
        return "it is not a linear classifier whose scores and link are known"
    if not rows.native_matrix:
        return "preprocessing or categories stand between the evidence and the scores"
    if rows.cell_dtype != np.float64:
        return "its rows are float32, and sums of float32 products depend on their order"
    if bool(rows.stepwise.any()) or not bool(np.isfinite(rows.baseline).all()):
        return "some columns cannot be interpolated, or have no baseline"
    return None


def trace(rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None) -> Trace:
    """Return the trace of every row."""
    link = _link_for(rows)
    if link is None:
        raise EngineError(f"the linear engine does not know {rows.model.kind}; use engine='auto'")
    scores = _GroupScores.of(rows)
    fill = _filling(scores.n_outputs, link, protocol)
    out = _blank_trace(len(rows), rows.n_groups, protocol)
    rule = _Rule.of(rows)
    if rows.decided is not None:
        out.predicted[:] = rows.decided
    size = max(16, PIECE_BYTES // (8 * _widest(rows.n_groups, scores.n_outputs, protocol)))
    for start in range(0, len(rows), size):
        piece = slice(start, min(start + size, len(rows)))
        total, removed = scores.of_piece(rows, piece)
        fill(_part(out, piece), total, removed, protocol, rule)
        if progress is not None:
            progress(piece.stop, len(rows))
    return out


# --- which models, with which link --------------------------------------------------------------------------

Link: TypeAlias = Callable[[Floats], Floats]  # raw scores (..., C) -> probabilities (..., C)


@dataclass(frozen=True)
class _Rule:
    """How the class at x is decided."""

    decided: bool  # the trace to fill holds it already
    shift: float  # what a threshold adds to log p1 - log p0

    @classmethod
    def of(cls, rows: EvidenceRows) -> _Rule:
        shift = 0.0 if rows.offset is None else float(rows.offset[1] - rows.offset[0])
        return cls(rows.decided is not None, shift)


Filling: TypeAlias = Callable[
    [Trace, Floats, Floats, Protocol, _Rule], None
]  # (rows to fill, s (O, m), t (G, O, m), protocol, rule)


def _one_against_rest(scores: Floats) -> Floats:
    """Return 1 / (1 + exp(-s_c)), normalised over the classes; uniform where all of them vanish."""
    with np.errstate(over="ignore"):
        p = 1.0 / (1.0 + np.exp(-scores))
    p[p.sum(axis=-1) == 0.0] = 1.0
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def _link_for(rows: EvidenceRows) -> Link | None:
    """Return the link of a known linear model, None for any other; with two classes it is the logistic one."""
    head = rows.model.head
    if type(head).__module__.split(".")[0] != "sklearn":
        return None
    name, linked = type(head).__name__, rows.model.link != PREDICT_PROBA.name
    if name in LOGISTIC or name == "LinearDiscriminantAnalysis":
        if linked:
            return softmax_probabilities
        rest = getattr(head, "solver", "") == "liblinear" or getattr(head, "multi_class", "") == "ovr"
        return _one_against_rest if name in LOGISTIC and rest and rows.n_classes > 2 else None
    if name == "SGDClassifier" and head.loss == "log_loss":
        return _one_against_rest if linked or rows.n_classes > 2 else None
    return None


# --- sums over groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GroupScores:
    """The linear model as sums over groups; O outputs: 1 for two classes, else one a class."""

    coefficients: Floats  # (O, d)
    intercept: Floats  # (O,)
    baseline: Floats  # (d,)
    column_group: Integers  # (d,)
    n_groups: int

    @classmethod
    def of(cls, rows: EvidenceRows) -> _GroupScores:
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

    def of_piece(self, rows: EvidenceRows, piece: slice) -> tuple[Floats, Floats]:
        """Return s (O, m) and t (G, O, m) of some rows; rows come last, so that every sum runs over whole vectors."""
        u = self._sparse_sums(rows.matrix, piece) if sp.issparse(rows.matrix) else self._dense_sums(rows.matrix[piece])
        total = u.sum(axis=0)
        total += self.intercept[:, None]
        if not np.isfinite(total).all():
            _refuse_rows(rows, piece)
        u -= self.at_baseline[:, :, None]
        return total, u

    def _dense_sums(self, part: Floats) -> Floats:
        """Return u (G, O, m)."""
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
        return np.stack([part.reshape(self.n_groups, m) for part in sums], axis=1)


def _refuse_rows(rows: EvidenceRows, piece: slice) -> None:
    """Raise the model's own complaint about missing or infinite cells."""
    rows.predict(rows.dense(piece.start, piece.stop))
    raise EngineError("the linear engine met scores that are not finite; use engine='blackbox'")


# --- from sums to a trace -----------------------------------------------------------------------------------


def _widest(n_groups: int, outputs: int, protocol: Protocol) -> int:
    """Return how many cells a row has in the widest array."""
    return n_groups if outputs == 1 else max(n_groups, protocol.depth + 1, len(protocol.severities)) * outputs


def _blank_trace(n: int, n_groups: int, protocol: Protocol) -> Trace:
    """Return a trace to be filled; its tables are stored state by state, as they are made."""
    steps = protocol.depth + 1
    return Trace(
        predicted=np.empty(n, np.int64),
        confidence=np.empty(n),
        margin=np.empty(n),
        one_step_margin=np.empty((n_groups, n)).T,
        one_step_confidence=np.empty((n_groups, n)).T,
        order=np.empty((protocol.depth, n), np.int64).T,
        path_margin=np.empty((steps, n)).T,
        path_predicted=np.empty((steps, n), np.int64).T,
        threshold=np.empty((len(protocol.operators), n)).T,
        evaluations=0,
        engine=ENGINE,
    )


def _part(out: Trace, piece: slice) -> Trace:
    """Return views of some rows."""
    return replace(
        out, **{f.name: getattr(out, f.name)[piece] for f in fields(out) if f.name not in ("evaluations", "engine")}
    )


def _fill_binary(out: Trace, total: Floats, removed: Floats, protocol: Protocol, rule: _Rule) -> None:
    """Fill some rows from s (1, m) and t (G, 1, m), both turned so that the predicted class is the positive one.

    With S = +-s, T_g = +-t_g and a threshold's shift H = +-h the support margin of a state is clip(S - sum T) + H, its
    confidence 1 / (1 + exp(sum T - S)).
    """
    resolution = protocol.resolution
    if not rule.decided:
        lead = np.clip(total[0], -BOUND, BOUND) + rule.shift
        np.greater(lead, resolution, out=out.predicted, casting="unsafe")
    sign = (2 * out.predicted - 1).astype(np.float64)
    score, loss, shift = total[0] * sign, removed[:, 0], rule.shift * sign
    loss *= sign
    one_step = np.subtract(score, loss, out=out.one_step_margin.T)
    _confidences(score, out.confidence)
    _confidences(one_step, out.one_step_confidence.T)
    out.margin[:] = score
    for support in (out.margin, one_step):
        _read(_clipped(support, shift, rule), protocol)
    order = _ordered(one_step - out.margin, protocol)
    out.order.T[:] = order[: protocol.depth]
    lost = _running_sums(loss, order)
    path = out.path_margin.T
    path[0] = score
    np.subtract(score, lost[: protocol.depth], out=path[1:])
    flipped = _clipped(path, shift, rule) < -resolution
    out.path_predicted.T[:] = out.predicted.astype(np.int8) ^ flipped.view(np.int8)
    _read(path, protocol)
    for j, operator in enumerate(protocol.operators):
        width = operator_width(operator, len(loss))
        whole = loss.sum(axis=0) if width > len(lost) else lost[width - 1]
        out.threshold[:, j] = _linear_threshold(score + shift, whole, protocol)
        out.threshold[resolution + shift >= BOUND, j] = np.inf  # no clipped margin is that low


def _confidences(score: Floats, out: Floats) -> None:
    """Fill ``out`` with 1 / (1 + exp(-score))."""
    np.negative(score, out=out)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    out += 1.0
    np.reciprocal(out, out=out)


def _clipped(support: Floats, shift: Floats, rule: _Rule) -> Floats:
    """Clip support margins in place as probabilities are clipped, and add the shift of a threshold."""
    if max(support.max(), -support.min()) > BOUND:
        np.clip(support, -BOUND, BOUND, out=support)
    if rule.shift:
        support += shift
    return support


def _read(support: Floats, protocol: Protocol) -> None:
    """Read support margins in place; the ``current`` reading is their absolute value."""
    if protocol.reading == "current":
        np.abs(support, out=support)


def _ordered(gains: Floats, protocol: Protocol) -> Integers:
    """Return the transposed ``removal_order`` of -gains (G, m), as far as the protocol goes down the path.

    Rounded drops are whole numbers: with the group's index in their low bits a plain sort is a stable one, and numpy
    sorts whole numbers several times faster than it argsorts.
    """
    n_groups = len(gains)
    widths = [operator_width(operator, n_groups) for operator in protocol.operators]
    used = max([protocol.depth, *(width for width in widths if width < n_groups)])
    bits = (n_groups - 1).bit_length()
    largest = (2 * BOUND / protocol.resolution + 1) * 2.0**bits
    if largest >= 2.0**52:
        return np.asarray(removal_order(-gains.T, protocol.resolution).T[:used])
    gains /= protocol.resolution
    keys: Integers = np.rint(gains, out=gains).astype(np.int32 if largest < 2.0**31 else np.int64)
    keys <<= bits
    keys += np.arange(n_groups, dtype=keys.dtype)[:, None]
    by_row = keys.T.copy()
    by_row.sort(axis=1)
    return np.asarray(np.bitwise_and(by_row.T[:used], 2**bits - 1, order="C", dtype=np.int64))


def _running_sums(loss: Floats, order: Integers) -> Floats:
    """Return sum_{i <= k} T of the i-th group in order; (G, m), (J, m) -> (J, m)."""
    m = loss.shape[1]
    place = order * m
    place += np.arange(m)
    sums = loss.ravel().take(place)
    for k in range(1, len(sums)):
        sums[k] += sums[k - 1]
    return np.asarray(sums)


def _linear_threshold(lead: Floats, loss: Floats, protocol: Protocol) -> Floats:
    """Return lambda*: each lead - lambda * loss falls below -resolution at one point and stays there.

    lead, loss: (m,), or (C, m) with one line a rival. Where nothing is lost the point lies beyond 1, also for a lead of
    -resolution: hence the two tiny numbers.
    """
    grid = np.array([*protocol.severities, np.inf])
    with np.errstate(over="ignore"):
        crossing = np.maximum(lead + protocol.resolution, TINY) / np.maximum(loss, TINY)
    if crossing.ndim == 2:
        crossing = crossing.min(axis=0)
    held: Integers = np.zeros(len(crossing), np.int8 if len(grid) < 128 else np.int64)
    for severity in protocol.severities:
        held += (crossing >= severity).view(np.int8)
    return np.asarray(grid.take(held))


def _filling(outputs: int, link: Link, protocol: Protocol) -> Filling:
    """Return how some rows are filled: the fastest way that is exact for this link and protocol."""
    if outputs == 1:
        return _fill_binary
    slow = _fill_linked(link)
    if link is not softmax_probabilities or protocol.reading == "current" or protocol.resolution >= 1.0:
        return slow

    def fill(out: Trace, total: Floats, removed: Floats, protocol: Protocol, rule: _Rule) -> None:
        if not _fill_softmax(out, total, removed, protocol, rule):
            slow(out, total, removed, protocol, rule)

    return fill


def _fill_softmax(out: Trace, total: Floats, removed: Floats, protocol: Protocol, rule: _Rule) -> bool:
    """Fill some rows from s (C, m) and t (G, C, m); False, with nothing of use in ``out``, if a clip would matter.

    ``lead`` holds D (C, m), infinite for the original class itself; ``loss`` what each group's removal takes from it.
    A margin within +-(log 1e12 - log C) is made of probabilities above 1e-12.
    """
    n_classes, resolution = len(total), protocol.resolution
    if not rule.decided:
        np.argmax(total >= total.max(axis=0) - resolution, axis=0, out=out.predicted)
    own = out.predicted[None]
    lead = np.take_along_axis(total, own, axis=0) - total
    np.put_along_axis(lead, own, np.inf, axis=0)
    loss = np.take_along_axis(removed, own[None], axis=1) - removed
    one_step = lead - loss
    np.min(lead, axis=0, out=out.margin)
    np.min(one_step, axis=1, out=out.one_step_margin.T)
    order = _ordered(out.one_step_margin.T - out.margin, protocol)
    out.order.T[:] = order[: protocol.depth]
    lost = np.take_along_axis(loss, order[:, None], axis=0)
    for k in range(1, len(lost)):
        lost[k] += lost[k - 1]
    path = lead - lost[: protocol.depth]
    out.path_margin[:, 0] = out.margin
    np.min(path, axis=1, out=out.path_margin.T[1:])
    furthest = max(np.abs(part).max() for part in (out.margin, out.one_step_margin, out.path_margin))
    if not furthest <= BOUND - np.log(n_classes):
        return False
    out.path_predicted[:] = out.predicted[:, None]
    _name_winners(out.path_predicted.T[:1], lead[None], out.margin[None], resolution)
    _name_winners(out.path_predicted.T[1:], path, out.path_margin.T[1:], resolution)
    for j, operator in enumerate(protocol.operators):
        width = operator_width(operator, len(loss))
        whole = loss.sum(axis=0) if width > len(lost) else lost[width - 1]
        out.threshold[:, j] = _linear_threshold(lead, whole, protocol)
    out.confidence[:] = _own_probability(lead, axis=0)
    out.one_step_confidence.T[:] = _own_probability(one_step, axis=1)
    return True


def _own_probability(lead: Floats, axis: int) -> Floats:
    """Return p_o = 1 / (1 + sum_c exp(-D_c)); overwrites ``lead``."""
    np.negative(lead, out=lead)
    np.exp(lead, out=lead)
    return np.asarray(1.0 / (1.0 + lead.sum(axis=axis)))


def _name_winners(predicted: Integers, lead: Floats, margin: Floats, resolution: float) -> None:
    """Put the first class within ``resolution`` of the leading one where the original has lost; lead (K, C, m)."""
    lost = margin < -resolution
    near = margin + resolution
    for c in range(lead.shape[1] - 1, -1, -1):
        np.copyto(predicted, c, where=lost & (lead[:, c] <= near))


def _fill_linked(link: Link) -> Filling:
    """Return the filling of some rows for many classes: states' raw scores, through the link and the definitions."""

    def fill(out: Trace, total: Floats, removed: Floats, protocol: Protocol, rule: _Rule) -> None:
        score, loss = np.ascontiguousarray(total.T), np.ascontiguousarray(removed.transpose(2, 0, 1))
        everyone, reading = np.arange(len(score)), protocol.reading
        p = link(score)
        if not rule.decided:
            out.predicted[:] = predicted_class(p, protocol.resolution)
        original = out.predicted[:, None]
        out.confidence[:] = p[everyone, out.predicted]
        out.margin[:] = reading_margin(p, out.predicted, reading)
        one_step = link(score[:, None] - loss)
        out.one_step_margin[:] = reading_margin(one_step, original, reading)
        out.one_step_confidence[:] = one_step[everyone, :, out.predicted]
        order = removal_order(out.margin[:, None] - out.one_step_margin, protocol.resolution)
        out.order[:] = order[:, : protocol.depth]
        lost = np.cumsum(np.take_along_axis(loss, order[:, :, None], axis=1), axis=1)
        path = np.concatenate([p[:, None], link(score[:, None] - lost[:, : protocol.depth])], axis=1)
        out.path_margin[:] = reading_margin(path, original, reading)
        out.path_predicted[:] = state_prediction(path, original, protocol.resolution)
        severities = np.array(protocol.severities)
        for j, operator in enumerate(protocol.operators):
            whole = lost[:, operator_width(operator, loss.shape[1]) - 1]
            states = link(score[:, None] - severities[:, None] * whole[:, None])
            flips = support_margin(states, original) < -protocol.resolution
            out.threshold[:, j] = flip_threshold(severities, flips)

    return fill
