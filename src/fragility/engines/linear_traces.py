"""Traces of linear models: three ways to fill some rows, the fastest that is exact for a link and a protocol.

With two classes and the logistic link the margin needs no link at all: log p1 - log p0 = s, and clipping probabilities
at 1e-12 clips s at log(1e12). With many classes and the softmax link, let o be the original class and D_c = s_o - s_c:
the support margin is min_{c != o} D_c as long as no probability in it is clipped, and
p_o = 1 / (1 + sum_{c != o} exp(-D_c)).

A filling is handed views of the rows to fill (``predicted`` is -1 where it is to find the class at x), s (O, m),
t (G, O, m), what is asked, what a decision threshold adds to log p1 - log p0, and the groups (G, m) that come last in
the order of removal, or None. It leaves out the margins with all evidence lost. Rows come last in every array, so that
each operation runs over whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.engines.trace import Trace, TraceStates, original_confidence
from fragility.scores import (
    CLIP,
    flip_threshold,
    removal_order,
    sigmoid_probabilities,
    softmax_probabilities,
)

Link: TypeAlias = Callable[[Floats], Floats]  # raw scores (..., C) -> probabilities (..., C)

BOUND = -float(np.log(CLIP))  # largest margin two clipped probabilities can have
TINY = 1e-290


Filling: TypeAlias = Callable[[Trace, Floats, Floats, TraceStates, float, Booleans | None], None]


def choose_filling(outputs: int, link: Link, asked: TraceStates) -> Filling:
    """Return how some rows are filled: the fastest way that is exact for this link and protocol."""
    if outputs == 1:
        return _fill_binary if asked.rule.smoothing == 0.0 else _fill_linked(lambda s: sigmoid_probabilities(s[..., 0]))
    smooth = asked.rule.smoothing > 0.0
    if smooth or link is not softmax_probabilities or asked.rule.reading == "current" or asked.rule.resolution >= 1.0:
        return _fill_linked(link)
    return _fill_softmax


# --- two classes --------------------------------------------------------------------------------------------


def _fill_binary(
    out: Trace, total: Floats, removed: Floats, asked: TraceStates, threshold_shift: float, last: Booleans | None
) -> None:
    """Fill some rows from s (1, m) and t (G, 1, m), both turned so that the predicted class is the positive one.

    With S = +-s, T_g = +-t_g and a threshold's shift H = +-h the support margin of a state is clip(S - sum T) + H, its
    confidence 1 / (1 + exp(sum T - S)).
    """
    if out.predicted[0] < 0:
        lead = np.clip(total[0], -BOUND, BOUND) + threshold_shift
        np.greater(lead, asked.rule.resolution, out=out.predicted, casting="unsafe")
    sign = (2 * out.predicted - 1).astype(np.float64)
    score, loss = total[0] * sign, removed[:, 0]
    shift = threshold_shift * sign if threshold_shift else None
    loss *= sign
    one_step = np.subtract(score, loss, out=out.one_step_margin.T)
    _fill_confidences(score, out.confidence)
    _fill_confidences(one_step, out.one_step_confidence.T)
    out.margin[:] = score
    for support in (out.margin, one_step):
        _read_margins(_clip(support, shift), asked)
    order = _sort_groups(one_step - out.margin, last, asked)
    out.order.T[:] = order[: asked.depth]
    m = len(score)
    lost = np.asarray(loss.ravel().take(order * m + np.arange(m)))  # (J, m): of each group in order, then summed
    for k in range(1, len(lost)):
        lost[k] += lost[k - 1]
    path = out.path_margin.T
    path[0] = score
    np.subtract(score, lost[: asked.depth], out=path[1:])
    flipped = _clip(path, shift) < -asked.rule.resolution
    out.path_predicted.T[:] = out.predicted.astype(np.int8) ^ flipped.view(np.int8)
    _read_margins(path, asked)
    for j, width in enumerate(asked.widths):
        whole = loss.sum(axis=0) if width > len(lost) else lost[width - 1]
        out.threshold[:, j] = _linear_threshold(score if shift is None else score + shift, whole, asked)
        if shift is not None:
            out.threshold[asked.rule.resolution + shift >= BOUND, j] = np.inf  # no clipped margin is that low
        if j == asked.fading:
            fading = out.fade_margin.T
            np.subtract(score, np.multiply.outer(asked.severities, whole), out=fading)
            _read_margins(_clip(fading, shift), asked)
            _forget_flipped(out, j, asked)


def _forget_flipped(out: Trace, operator: int, asked: TraceStates) -> None:
    """Blank the fading margins from the flip on, where other engines do not ask."""
    flipped = np.array(asked.severities)[:, None] >= out.threshold[:, operator]
    out.fade_margin.T[:] = np.where(flipped, np.nan, out.fade_margin.T)


def _fill_confidences(score: Floats, out: Floats) -> None:
    """Fill ``out`` with 1 / (1 + exp(-score))."""
    np.negative(score, out=out)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    out += 1.0
    np.reciprocal(out, out=out)


def _clip(support: Floats, shift: Floats | None) -> Floats:
    """Clip support margins in place as probabilities are clipped, and add the shift of a threshold."""
    if max(support.max(), -support.min()) > BOUND:
        np.clip(support, -BOUND, BOUND, out=support)
    if shift is not None:
        support += shift
    return support


def _read_margins(support: Floats, asked: TraceStates) -> None:
    """Read support margins in place; the ``current`` reading is their absolute value."""
    if asked.rule.reading == "current":
        np.abs(support, out=support)


# --- for any number of classes ------------------------------------------------------------------------------


def _sort_groups(gains: Floats, last: Booleans | None, asked: TraceStates) -> Integers:
    """Return the transposed ``removal_order`` of -gains (G, m), as far as the states go down the path.

    Rounded drops are whole numbers: with the group's index in their low bits a plain sort is a stable one, and numpy
    sorts whole numbers several times faster than it argsorts.
    """
    n_groups = len(gains)
    bits = (n_groups - 1).bit_length()
    largest = (2 * BOUND / asked.rule.resolution + 1) * 2.0**bits
    if largest >= 2.0**52:
        return np.asarray(
            removal_order(-gains.T, asked.rule.resolution, None if last is None else last.T).T[: asked.longest]
        )
    if last is not None:
        gains[last] = 2 * BOUND + asked.rule.resolution  # more than any other
    gains /= asked.rule.resolution
    keys: Integers = np.rint(gains, out=gains).astype(np.int32 if largest < 2.0**31 else np.int64)
    keys <<= bits
    keys += np.arange(n_groups, dtype=keys.dtype)[:, None]
    by_row = keys.T.copy()
    by_row.sort(axis=1)
    return np.asarray(np.bitwise_and(by_row.T[: asked.longest], 2**bits - 1, order="C", dtype=np.int64))


def _linear_threshold(lead: Floats, loss: Floats, asked: TraceStates) -> Floats:
    """Return lambda*: each lead - lambda * loss falls below -resolution at one point and stays there.

    lead, loss: (m,), or (C, m) with one line per rival. Where nothing is lost the point lies beyond 1, also for a lead
    of -resolution: hence the two tiny numbers.
    """
    grid = np.array([*asked.severities, np.inf])
    with np.errstate(over="ignore"):
        crossing = np.maximum(lead + asked.rule.resolution, TINY) / np.maximum(loss, TINY)
    if crossing.ndim == 2:
        crossing = crossing.min(axis=0)
    held: Integers = np.zeros(len(crossing), np.int8 if len(grid) < 128 else np.int64)
    for severity in asked.severities:
        held += (crossing >= severity).view(np.int8)
    return np.asarray(grid.take(held))


# --- many classes, softmax ----------------------------------------------------------------------------------


def _fill_softmax(
    out: Trace, total: Floats, removed: Floats, asked: TraceStates, threshold_shift: float, last: Booleans | None
) -> None:
    """Fill some rows from s (C, m) and t (G, C, m).

    ``lead`` holds D (C, m), infinite for the original class itself; ``loss`` what each group's removal takes from it.
    A clip changes margins alone: what flips, and who wins, is decided between probabilities far above 1e-12.
    """
    if out.predicted[0] < 0:
        np.argmax(total >= total.max(axis=0) - asked.rule.resolution, axis=0, out=out.predicted)
    n_classes, m = total.shape
    place = out.predicted * m + np.arange(m)  # of the original class among C m numbers
    lead = total.ravel().take(place) - total
    np.put(lead, place, np.inf)
    loss = removed.reshape(len(removed), -1).take(place, axis=1)[:, None] - removed
    one_step = lead - loss
    _fill_margins(lead[None], out.margin[None])
    _fill_margins(one_step, out.one_step_margin.T)
    order = _sort_groups(out.one_step_margin.T - out.margin, last, asked)
    out.order.T[:] = order[: asked.depth]
    lost = np.empty((len(order), n_classes, m))  # (J, C, m): of each group in order, then summed
    place = order * (n_classes * m) + np.arange(m)
    for c in range(n_classes):
        np.take(loss, place, out=lost[:, c], mode="clip")  # no place is outside; any other mode would copy first
        place += m
    for k in range(1, len(lost)):
        lost[k] += lost[k - 1]
    path = lead - lost[: asked.depth]
    out.path_margin[:, 0] = out.margin
    _fill_margins(path, out.path_margin.T[1:])
    out.path_predicted[:] = out.predicted[:, None]
    _name_winners(out.path_predicted.T[:1], lead[None], asked.rule.resolution)
    _name_winners(out.path_predicted.T[1:], path, asked.rule.resolution)
    for j, width in enumerate(asked.widths):
        whole = loss.sum(axis=0) if width > len(lost) else lost[width - 1]
        out.threshold[:, j] = _linear_threshold(lead, whole, asked)
        if j == asked.fading:
            for i, severity in enumerate(asked.severities):
                _fill_margins((lead - severity * whole)[None], out.fade_margin.T[i : i + 1])
            _forget_flipped(out, j, asked)
    out.confidence[:] = _own_probability(lead, axis=0)
    out.one_step_confidence.T[:] = _own_probability(one_step, axis=1)


def _fill_margins(lead: Floats, out: Floats) -> None:
    """Fill ``out`` (Q, m) with the support margins of states D (Q, C, m): the smallest lead, clipped where it matters.

    A margin within +-(log 1e12 - log C) is made of probabilities above 1e-12. Beyond it, with r the best competitor,
    log p_o = -log sum_c exp(-D_c), log p_r = log p_o - min_c D_c, and neither counts below log 1e-12.
    """
    np.min(lead, axis=1, out=out)
    safe = BOUND - np.log(lead.shape[1])
    if max(out.max(), -out.min()) <= safe:
        return
    state, row = np.nonzero(np.abs(out) > safe)
    own, smallest = lead[state, :, row], out[state, row]  # (k, C), (k,)
    shift = np.maximum(-smallest, 0.0)
    log_own = -shift - np.log(np.exp(-shift) + np.exp(-own - shift[:, None]).sum(axis=1))
    out[state, row] = np.maximum(log_own, -BOUND) - np.maximum(log_own - smallest, -BOUND)


def _own_probability(lead: Floats, axis: int) -> Floats:
    """Return p_o = 1 / (1 + sum_c exp(-D_c)); overwrites ``lead``."""
    np.negative(lead, out=lead)
    with np.errstate(over="ignore"):
        np.exp(lead, out=lead)
    return np.asarray(1.0 / (1.0 + lead.sum(axis=axis)))


def _name_winners(predicted: Integers, lead: Floats, resolution: float) -> None:
    """Put the first class within ``resolution`` of the leading one where the original has lost; lead (K, C, m)."""
    margin = lead.min(axis=1)
    lost = margin < -resolution
    near = margin + resolution
    for c in range(lead.shape[1] - 1, -1, -1):
        np.copyto(predicted, c, where=lost & (lead[:, c] <= near))


# --- any link, any margin -----------------------------------------------------------------------------------


def _fill_linked(link: Link) -> Filling:
    """Return the filling of some rows by the definitions: states' raw scores (..., O), their probabilities, margins."""

    def fill(
        out: Trace, total: Floats, removed: Floats, asked: TraceStates, threshold_shift: float, last: Booleans | None
    ) -> None:
        rule = replace(asked.rule, offset=np.array([0.0, threshold_shift]) if threshold_shift else None)
        score, loss = np.ascontiguousarray(total.T), np.ascontiguousarray(removed.transpose(2, 0, 1))
        p, one_step = link(score), link(score[:, None] - loss)
        if out.predicted[0] < 0:
            out.predicted[:] = rule.predict(p)
        original = out.predicted[:, None]
        out.confidence[:] = original_confidence(p, out.predicted)
        out.margin[:] = rule.margin(p, out.predicted)
        out.one_step_margin[:] = rule.margin(one_step, original)
        out.one_step_confidence[:] = original_confidence(one_step, original)
        absent = None if last is None else last.T
        order = removal_order(out.margin[:, None] - out.one_step_margin, asked.rule.resolution, absent)
        out.order[:] = order[:, : asked.depth]
        lost = np.cumsum(np.take_along_axis(loss, order[:, :, None], axis=1), axis=1)
        path = np.concatenate([p[:, None], link(score[:, None] - lost[:, : asked.depth])], axis=1)
        out.path_margin[:] = rule.margin(path, original)
        out.path_predicted[:] = rule.settle(path, original)
        severities = np.array(asked.severities)
        for j, width in enumerate(asked.widths):
            states = link(score[:, None] - severities[:, None] * lost[:, width - 1][:, None])
            out.threshold[:, j] = flip_threshold(severities, rule.flips(states, original))
            if j == asked.fading:
                out.fade_margin[:] = rule.margin(states, original)
                _forget_flipped(out, j, asked)

    return fill
