"""From raw sums to what a certificate says of each state, for a block of rows; the definitions are ``scores``'.

raw      (outputs, n)  raw sums of one state
support  (n,)          pseudo-logit of the original class minus its best rival
margin   (n,)          the margin that the reading takes: support, or the leader minus the second; perhaps smoothed

A margin is a difference of two logarithms of probabilities. For the links of boosted trees that is a difference of two
scores, exactly, as long as neither probability is clipped; only where one may be, the probabilities are made. Support
decides flips and is never smoothed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry, helper, inlined
from fragility.engines.trees.forest import SIGMOID, SOFTMAX
from fragility.scores import CLIP

UNCLIPPED = 27.0  # below log(1 / CLIP): a class this far below the leader, less the log of their number, is not clipped


@inlined
def _score(raw: Any, divisor: float, scale: float) -> float:
    return np.float64(raw) / divisor * scale


# --- margins ------------------------------------------------------------------------------------------------


@helper
def _read_margins(raw: Any, rules: Any, original: Any, support: Any, margin: Any) -> None:
    """Fill support and margin (n,) of one state; original (n,) class at x. rules: ``scoring.Rules``."""
    if rules.link == SIGMOID:
        _read_logistic(raw, rules, original, support, margin)
    else:
        _read_classes(raw, rules, original, support, margin)
    if rules.smoothing > 0.0:
        _read_smoothed(raw, rules, original, margin)


@helper
def _read_smoothed(raw: Any, rules: Any, original: Any, margin: Any) -> None:
    """Fill margin (n,) of one state from smoothed probabilities, whose constant divisor no difference sees."""
    smoothing, offset, current = rules.smoothing, rules.smoothed_offset, rules.current
    logs = np.empty(len(offset))
    for row in range(len(original)):
        _fill_logs(raw, row, rules, smoothing, offset, logs)
        support, lead = _read_logs(logs, original[row])
        margin[row] = lead if current else support


@helper
def _read_logistic(raw: Any, rules: Any, original: Any, support: Any, margin: Any) -> None:
    """log p1 - log p0 is the score itself, shifted by the declared decision."""
    divisor, scale, current = rules.divisor, rules.scale, rules.current
    shift = rules.offset[1] - rules.offset[0]
    for row in range(len(original)):
        difference = _difference(_score(raw[0, row], divisor, scale), shift)
        support[row] = difference if original[row] == 1 else -difference
        margin[row] = abs(difference) if current else support[row]


@inlined
def _difference(score: float, shift: float) -> float:
    if abs(score) > UNCLIPPED:
        score = np.log(max(_logistic(score), CLIP)) - np.log(max(_logistic(-score), CLIP))
    return score + shift


@inlined
def _logistic(score: float) -> float:
    return 1.0 / (1.0 + np.exp(-score))


@helper
def _read_classes(raw: Any, rules: Any, original: Any, support: Any, margin: Any) -> None:
    """Find the original class, its best rival and the second of all; take their logarithms."""
    own, rival, second = np.empty(len(original)), np.empty(len(original)), np.empty(len(original))
    _find_leaders(raw, rules, original, (own, rival, second))
    linked, current, shifted, offset = rules.link == SOFTMAX, rules.current, rules.shifted, rules.offset
    safe = np.log(np.float64(len(raw))) - UNCLIPPED
    logs = np.empty(len(raw))
    for row in range(len(original)):
        first, low = max(own[row], rival[row]), min(own[row], rival[row])
        # where the original class and its best rival are not clipped, it does not matter whether others are
        if shifted or (linked and (low - first < safe or (current and second[row] - first < safe))):
            _fill_logs(raw, row, rules, 0.0, offset, logs)
            support[row], lead = _read_logs(logs, original[row])
            margin[row] = lead if current else support[row]
        elif linked:
            support[row] = own[row] - rival[row]
            margin[row] = first - second[row] if current else support[row]
        else:
            support[row] = _log_clipped(own[row]) - _log_clipped(rival[row])
            margin[row] = _log_clipped(first) - _log_clipped(second[row]) if current else support[row]


@helper
def _find_leaders(raw: Any, rules: Any, original: Any, found: Any) -> None:
    """Fill (own, best rival, second of all), each (n,): scores for SOFTMAX, else probabilities.

    Each loop touches few arrays: between many, a compiler does not try to find out whether they overlap.
    """
    own, rival, second = found
    divisor, scale = rules.divisor, rules.scale
    value, first = np.empty(len(original)), np.empty(len(original))
    for row in range(len(original)):
        first[row], rival[row], second[row] = -np.inf, -np.inf, -np.inf
    for class_ in range(len(raw)):
        for row in range(len(original)):
            value[row] = _score(raw[class_, row], divisor, scale)
        for row in range(len(original)):
            own[row] = value[row] if original[row] == class_ else own[row]
        for row in range(len(original)):
            seen = -np.inf if original[row] == class_ else value[row]
            rival[row] = seen if seen > rival[row] else rival[row]
        if rules.current:
            for row in range(len(original)):
                lower = min(first[row], value[row])
                second[row] = max(second[row], lower)
                first[row] = max(first[row], value[row])


@inlined
def _log_clipped(p: float) -> float:
    return np.log(max(p, CLIP))


@inlined
def _largest(values: Any) -> float:
    largest = -np.inf
    for value in values:
        largest = max(largest, value)
    return largest


@helper
def _fill_probabilities(raw: Any, row: int, rules: Any, p: Any) -> None:
    """Fill ``p`` (C,) with a row's probabilities."""
    divisor, scale = rules.divisor, rules.scale
    if rules.link == SIGMOID:
        score = _score(raw[0, row], divisor, scale)
        p[0], p[1] = _logistic(-score), _logistic(score)
        return
    for class_ in range(len(p)):
        p[class_] = _score(raw[class_, row], divisor, scale)
    if rules.link == SOFTMAX:
        highest, total = _largest(p), 0.0
        for class_ in range(len(p)):
            p[class_] = np.exp(p[class_] - highest)
            total += p[class_]
        for class_ in range(len(p)):
            p[class_] /= total


@helper
def _fill_logs(raw: Any, row: int, rules: Any, smoothing: float, offset: Any, logs: Any) -> None:
    """Fill ``logs`` (C,) with the logarithms of a row's clipped probabilities, smoothed and shifted by the decision."""
    _fill_probabilities(raw, row, rules, logs)
    for class_ in range(len(logs)):
        logs[class_] = _log_clipped(logs[class_] + smoothing) + offset[class_]


@helper
def _read_logs(logs: Any, original: int) -> Any:
    """Return (own class minus best rival, leader minus second)."""
    rival, first, second = -np.inf, -np.inf, -np.inf
    for class_ in range(len(logs)):
        value = logs[class_]
        if class_ != original:
            rival = max(rival, value)
        second = max(second, min(first, value))
        first = max(first, value)
    return logs[original] - rival, first - second


# --- classes and confidences --------------------------------------------------------------------------------


@helper
def _find_leading_class(raw: Any, row: int, rules: Any, logs: Any) -> int:
    """Return the first class whose pseudo-logit is within the resolution of the largest."""
    if rules.link == SIGMOID:
        shift = rules.offset[1] - rules.offset[0]
        return 1 if _difference(_score(raw[0, row], rules.divisor, rules.scale), shift) > rules.resolution else 0
    if rules.link == SOFTMAX and not rules.shifted and rules.resolution < 1.0:  # no class near the leader is clipped
        for class_ in range(len(logs)):
            logs[class_] = _score(raw[class_, row], rules.divisor, rules.scale)
    else:
        _fill_logs(raw, row, rules, 0.0, rules.offset, logs)
    least = _largest(logs) - rules.resolution
    for class_ in range(len(logs)):
        if logs[class_] >= least:
            return class_
    return 0


@helper
def _name_classes(raw: Any, rules: Any, original: Any, support: Any, named: Any) -> None:
    """Fill ``named`` (n,): the original class unless another beats it by more than the resolution."""
    resolution, logs = rules.resolution, np.empty(len(raw))
    for row in range(len(original)):
        if support[row] >= -resolution:
            named[row] = original[row]
        else:
            named[row] = _find_leading_class(raw, row, rules, logs)


@helper
def _read_confidence(raw: Any, rules: Any, original: Any, confidence: Any) -> None:
    """Fill the probability of the original class (n,)."""
    divisor, scale, link = rules.divisor, rules.scale, rules.link
    for row in range(len(original)):
        if link == SIGMOID:
            score = _score(raw[0, row], divisor, scale)
            confidence[row] = _logistic(score if original[row] == 1 else -score)
        else:
            confidence[row] = _score(raw[original[row], row], divisor, scale)
    if link == SOFTMAX:
        for row in range(len(original)):
            highest, total, own = -np.inf, 0.0, 0.0
            for class_ in range(len(raw)):
                highest = max(highest, _score(raw[class_, row], divisor, scale))
            for class_ in range(len(raw)):
                power = np.exp(_score(raw[class_, row], divisor, scale) - highest)
                total += power
                own = power if class_ == original[row] else own
            confidence[row] = own / total


# --- the order of removal -----------------------------------------------------------------------------------


@helper
def _order_groups(margin: Any, one_step: Any, last: Any, resolution: float, order: Any) -> None:
    """Fill ``order`` (n, places): the groups with the largest drops, rounded to the resolution; ties by declared order.

    margin (n,), one_step (n, G). last: (n, G) groups that come after all others, or (0, any). As many as there are
    places are kept, sorted, while the groups pass by.
    """
    places = order.shape[1]
    drops = np.empty(places)
    for row in range(len(order)):
        kept = 0
        for group in range(one_step.shape[1]):
            drop = margin[row] - one_step[row, group]
            drop = np.rint(drop / resolution) if resolution > 0.0 else drop
            if len(last) > 0 and last[row, group]:
                drop = -np.inf
            if kept == places and not drop > drops[places - 1]:
                continue
            place = kept if kept < places else places - 1
            while place > 0 and drop > drops[place - 1]:
                drops[place] = drops[place - 1]
                order[row, place] = order[row, place - 1]
                place -= 1
            drops[place] = drop
            order[row, place] = group
            kept = min(kept + 1, places)


# --- entry points -------------------------------------------------------------------------------------------


@entry
def observe_removals(scores: Any, rules: Any, out: Any, rest: Any) -> None:
    """Read the first round, x and every group removed alone: scores (1 + G, outputs, n).

    out: ``scoring.Blank``, whose ``predicted`` holds the class at x, or -1 where the trees are to say it. rest:
    (order (n, places) to be filled, last (n, G) groups at its end or (0, any), support (n, K+1) along the path, to be
    filled up to the first removal).
    """
    predicted, margin = out.predicted, out.margin
    order, last, path_support = rest
    n, logs = len(predicted), np.empty(scores.shape[1])
    support, read, named = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    for row in range(n):
        if predicted[row] < 0:
            predicted[row] = _find_leading_class(scores[0], row, rules, logs)
    _read_margins(scores[0], rules, predicted, support, margin)
    _read_confidence(scores[0], rules, predicted, out.confidence)
    _name_classes(scores[0], rules, predicted, support, named)
    path_margin, path_predicted = out.path_margin, out.path_predicted
    _keep_step(0, margin, support, named, path_margin, path_support, path_predicted)
    one_step_margin, one_step_confidence = out.one_step_margin, out.one_step_confidence
    for group in range(len(scores) - 1):
        _read_margins(scores[1 + group], rules, predicted, support, read)
        _keep_group(group, read, one_step_margin)
        _read_confidence(scores[1 + group], rules, predicted, read)
        _keep_group(group, read, one_step_confidence)
    _order_groups(margin, one_step_margin, last, rules.resolution, order)
    picked = np.empty((scores.shape[1], n), dtype=scores.dtype)
    for row in range(n):
        for output in range(len(picked)):
            picked[output, row] = scores[1 + order[row, 0], output, row]
    _read_margins(picked, rules, predicted, support, read)
    _name_classes(picked, rules, predicted, support, named)
    _keep_step(1, read, support, named, path_margin, path_support, path_predicted)


@helper
def _keep_step(
    step: int, margin: Any, support: Any, named: Any, path_margin: Any, path_support: Any, path_predicted: Any
) -> None:
    """Keep what was read of one step of the path."""
    for row in range(len(margin)):
        path_margin[row, step] = margin[row]
        path_support[row, step] = support[row]
        path_predicted[row, step] = named[row]


@helper
def _keep_group(group: int, read: Any, kept: Any) -> None:
    """Keep what was read of the removal of one group."""
    for row in range(len(read)):
        kept[row, group] = read[row]


@entry
def observe_path_and_grid(scores: Any, rules: Any, out: Any, path_support: Any) -> None:
    """Read the second round: the path from its second removal on, each severity of each operator, all evidence lost.

    scores (states, outputs, n); the last state is left out where all rows share it, as ``rules.bare``. path_support
    (n, K+1): filled up to the first removal.
    """
    predicted, n = out.predicted, len(out.predicted)
    support, margin, named = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    path_margin, path_predicted = out.path_margin, out.path_predicted
    depth, n_operators = path_support.shape[1] - 1, len(rules.widths)
    for step in range(2, depth + 1):
        _read_margins(scores[step - 2], rules, predicted, support, margin)
        _name_classes(scores[step - 2], rules, predicted, support, named)
        _keep_step(step, margin, support, named, path_margin, path_support, path_predicted)
    bare, shared = np.empty((len(rules.bare), n), dtype=rules.bare.dtype), depth - 1 + rules.n_grid * n_operators
    for output in range(len(bare)):
        if len(scores) > shared:
            bare[output] = scores[shared, output]
        else:
            bare[output] = rules.bare[output]
    bare_support = np.empty(n)
    _read_margins(bare, rules, predicted, bare_support, out.bare_margin)
    threshold, fade_margin = out.threshold, out.fade_margin
    threshold[:], fade_margin[:] = np.inf, np.nan
    for i in range(rules.n_grid):
        for operator in range(n_operators):
            _read_margins(scores[depth - 1 + i * n_operators + operator], rules, predicted, support, margin)
            _keep_severity(i, operator, rules, support, margin, threshold, fade_margin)
    for operator in range(n_operators if rules.n_grid < len(rules.severities) else 0):
        width = rules.widths[operator]
        if width <= depth:
            for row in range(n):
                support[row], margin[row] = path_support[row, width], path_margin[row, width]
        else:
            support[:], margin[:] = bare_support, out.bare_margin
        _keep_severity(rules.n_grid, operator, rules, support, margin, threshold, fade_margin)


@helper
def _keep_severity(
    i: int, operator: int, rules: Any, support: Any, margin: Any, threshold: Any, fade_margin: Any
) -> None:
    """Keep the severity if it is the first to flip a row, and the margin of the fading operator before that."""
    severity, resolution, fading = rules.severities[i], rules.resolution, rules.fading
    for row in range(len(support)):
        if threshold[row, operator] == np.inf and support[row] < -resolution:
            threshold[row, operator] = severity
        if operator == fading and threshold[row, operator] == np.inf:
            fade_margin[row, i] = margin[row]
