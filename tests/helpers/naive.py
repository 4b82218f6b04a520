"""Slow twins of the library, written from the definitions: one row, one state, one class at a time.

Nothing here is vectorised and nothing comes from ``fragility``. A row is a plain list of cells; a cell is a
float or, in the raw space, any value a model accepts (a string, a boolean, None). ``probabilities`` takes a
list with one row and returns that row's class probabilities, in the model's own class order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

EPSILON = 1e-8
CLIP = 1e-12

Row = list[Any]
Probabilities = Callable[[list[Row]], Sequence[float]]


# --- scores ---------------------------------------------------------------------------------------


def naive_pseudo_logits(p: Sequence[float]) -> list[float]:
    """z_c = log p~_c - mean_j log p~_j, with p~ = max(p, 1e-12) renormalised."""
    clipped = [max(float(value), CLIP) for value in p]
    total = math.fsum(clipped)
    logs = [math.log(value / total) for value in clipped]
    mean = math.fsum(logs) / len(logs)
    return [value - mean for value in logs]


Decision = tuple[int, float]  # class c is predicted where p_c >= t


def naive_decision_scores(p: Sequence[float], decision: Decision | None = None) -> list[float]:
    """Pseudo-logits; a declared threshold t takes log(t / (1 - t)) from its class."""
    z = naive_pseudo_logits(p)
    if decision is not None:
        c, t = decision
        z[c] -= math.log(t / (1.0 - t))
    return z


def naive_predicted_class(p: Sequence[float], resolution: float, decision: Decision | None = None) -> int:
    """The first class whose score is within `resolution` of the largest; under a threshold its class has the tie."""
    z = naive_decision_scores(p, decision)
    if decision is not None:
        c = decision[0]
        return c if z[c] >= z[1 - c] - resolution else 1 - c
    best = max(z)
    for c, value in enumerate(z):
        if value >= best - resolution:
            return c
    raise AssertionError("the maximum is within any resolution of itself")


def naive_support_margin(p: Sequence[float], original: int, decision: Decision | None = None) -> float:
    """z of the original class minus its best competitor."""
    z = naive_decision_scores(p, decision)
    return z[original] - max(value for c, value in enumerate(z) if c != original)


def naive_current_margin(p: Sequence[float], decision: Decision | None = None) -> float:
    """Top minus second pseudo-logit, whichever class leads."""
    z = sorted(naive_decision_scores(p, decision), reverse=True)
    return z[0] - z[1]


def naive_state_prediction(
    p: Sequence[float], original: int, resolution: float, decision: Decision | None = None
) -> int:
    """The original class stays unless another one beats it by more than `resolution`."""
    if naive_support_margin(p, original, decision) < -resolution:
        return naive_predicted_class(p, resolution, decision)
    return original


def naive_smoothed(p: Sequence[float], smoothing: float) -> list[float]:
    """(p_c + a) / (1 + C a)."""
    return [(float(value) + smoothing) / (1.0 + len(p) * smoothing) for value in p]


def naive_smoothed_decision(decision: Decision | None, smoothing: float) -> Decision | None:
    """Where the smoothed probability of the class is as large as the smoothed threshold, it is predicted."""
    if decision is None:
        return None
    c, t = decision
    return c, naive_smoothed([t, 1.0 - t], smoothing)[0]


def naive_margin(
    p: Sequence[float], original: int, reading: str, decision: Decision | None = None, smoothing: float = 0.0
) -> float:
    """The margin of the smoothed probabilities; every decision is about the others."""
    p, decision = naive_smoothed(p, smoothing), naive_smoothed_decision(decision, smoothing)
    if reading == "current":
        return naive_current_margin(p, decision)
    if reading in ("support", "support_unbounded"):
        return naive_support_margin(p, original, decision)
    raise AssertionError(reading)


def naive_collapse(margin: float, stressed: float, reading: str) -> float:
    """c = (m(x) - m(x')) / (|m(x)| + 1e-8), clipped as the reading says."""
    c = max(0.0, (margin - stressed) / (abs(margin) + EPSILON))
    return min(c, 1.0) if reading == "support" else c


def naive_order(drops: Sequence[float], resolution: float, absent: Sequence[int] = ()) -> list[int]:
    """Groups by descending drop at the declared resolution; ties in declared order; absent groups after all others."""
    steps = [-math.inf if g in absent else round(drop / resolution) for g, drop in enumerate(drops)]
    order: list[int] = []
    while len(order) < len(drops):
        best = None
        for g in range(len(drops)):
            if g not in order and (best is None or steps[g] > steps[best]):
                best = g
        assert best is not None
        order.append(best)
    return order


def naive_fds(rcma: float, flip_budget: int, thresholds: Sequence[float | None], weights: Sequence[float]) -> float:
    """FDS = 1 - exp(-u), u = w1 RCMA + w2 / k* + w3 mean_P 1 / (lambda*_P + 1e-8); no flip contributes 0."""
    total = 0.0
    for threshold in thresholds:
        if threshold is not None and not math.isinf(threshold):
            total += 1.0 / (threshold + EPSILON)
    graded = total / len(thresholds) if thresholds else 0.0
    u = weights[0] * rcma + weights[1] / flip_budget + weights[2] * graded
    return 1.0 - math.exp(-u)


# --- states ---------------------------------------------------------------------------------------


def is_nan(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def naive_mean(values: Sequence[float]) -> float:
    """The mean at 12 significant digits of the larger of itself and the spread; what lies below is noise."""
    n = len(values)
    mean = math.fsum(values) / n
    widest = max(abs(value - mean) for value in values) or 1.0  # its square may be too small for a float
    spread = widest * math.sqrt(math.fsum(((value - mean) / widest) ** 2 for value in values) / n)
    size = max(abs(mean), spread)
    return round(mean, 11 - math.floor(math.log10(size))) + 0.0 if size > 0 else mean


def naive_typical_number(values: Sequence[float]) -> float:
    """The mean of the known values, rounded to a whole number (halves to even) where all of them are whole."""
    known = [value for value in values if not is_nan(value)]
    return float(round(naive_mean(known))) if all(v == int(v) for v in known) else naive_mean(known)


def naive_typical_category(values: Sequence[Any]) -> Any:
    """The most frequent known category; of equally frequent ones the first in text order."""
    counts: dict[Any, int] = {}
    for value in values:
        if not is_nan(value):
            counts[value] = counts.get(value, 0) + 1
    return min(counts, key=lambda value: (-counts[value], str(value)))


def naive_cell(x: Any, baseline: Any, severity: float, stepwise: bool, whole: bool = False) -> Any:
    """One cell at one severity; a field of whole numbers takes the nearest one, halves to even."""
    if severity >= 1.0:
        return baseline
    if severity <= 0.0:
        return x
    if stepwise or is_nan(x) or is_nan(baseline):
        return baseline if severity >= 0.5 else x
    moved = x + severity * (baseline - x)
    return round(moved) if whole else moved


def naive_absent_cells(missing: Sequence[str], origins: Sequence[Sequence[str]]) -> list[bool]:
    """A cell is absent if every raw field it comes from is missing in the row; ``missing`` names such fields."""
    return [bool(fields) and all(field in missing for field in fields) for fields in origins]


def naive_absent_groups(groups: Sequence[Sequence[int]], absent: Sequence[bool]) -> list[int]:
    """A group is absent if all of its cells are."""
    return [g for g, columns in enumerate(groups) if all(absent[j] for j in columns)]


def naive_targets(x: Row, baseline: Row, absent: Sequence[bool]) -> Row:
    """What the cells of a row move to: evidence that is not there cannot be lost, so it stays as it is."""
    return [x[j] if absent[j] else baseline[j] for j in range(len(x))]


def naive_state(
    x: Row,
    baseline: Row,
    groups: Sequence[Sequence[int]],
    severity: dict[int, float],
    stepwise: Sequence[bool],
    whole: Sequence[bool] | None = None,
) -> Row:
    """Every column of group g moves by s_g * (baseline - x)."""
    state = list(x)
    for g, s in severity.items():
        for j in groups[g]:
            state[j] = naive_cell(x[j], baseline[j], s, stepwise[j], whole is not None and whole[j])
    return state


def naive_operator_groups(operator: str, order: Sequence[int], n_groups: int) -> list[int]:
    if operator == "attenuate_all":
        return list(range(n_groups))
    assert operator.startswith("attenuate_top"), operator
    return list(order[: int(operator.removeprefix("attenuate_top"))])


def naive_common_loss(margin: float, fading: Sequence[float], n_severities: int) -> float:
    """Mean over the grid of the share lost as everything fades; 1 from the flip on."""
    lost = [min(1.0, max(0.0, (margin - m) / (abs(margin) + EPSILON))) for m in fading]
    return (math.fsum(lost) + (n_severities - len(fading))) / n_severities


def naive_random_loss(margin: float, drops: Sequence[float], bare: float) -> float:
    """Mean over the rates of the expected collapse when every group is lost with that rate, clipped to [0, 1]."""
    scale, values = abs(margin) + EPSILON, []
    for r in (0.1, 0.3, 0.5):
        value = r * (1.0 - r) * math.fsum(drops) / scale + r**2 * (margin - bare) / scale
        values.append(min(1.0, max(0.0, value)))
    return math.fsum(values) / len(values)


def naive_exposure(
    targeted: float, independent: float, common: float | None, random: float, weights: Sequence[float]
) -> float:
    """1 - exp(-(v1 T + v2 I + v3 A + v4 Q)); without A the weights of T and I are scaled up to share its weight."""
    v1, v2, v3, v4 = weights
    if common is None:
        u = (v1 * targeted + v2 * independent) * (v1 + v2 + v3) / (v1 + v2)
    else:
        u = v1 * targeted + v2 * independent + v3 * common
    return 1.0 - math.exp(-u - v4 * random)


# --- the certificate ------------------------------------------------------------------------------


def naive_certificate(
    probabilities: Probabilities,
    x: Row,
    baseline: Row,
    groups: Sequence[Sequence[int]],
    depth: int,
    operators: Sequence[str],
    severities: Sequence[float],
    reading: str,
    weights: Sequence[float],
    resolution: float,
    stepwise: Sequence[bool] | None = None,
    whole: Sequence[bool] | None = None,
    decision: Decision | None = None,
    exposure_weights: Sequence[float] = (1 / 3, 1 / 3, 1 / 3, 1),
    smoothing: float = 0.0,
    absent: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """Algorithm `cfc` for one row; group and class claims are indices. ``absent``: its cells that are missing."""
    stepwise = [False] * len(x) if stepwise is None else list(stepwise)
    absent_groups: list[int] = []
    if absent is not None:
        baseline = naive_targets(x, baseline, absent)
        absent_groups = naive_absent_groups(groups, absent)

    def at(severity: dict[int, float]) -> list[float]:
        return [float(v) for v in probabilities([naive_state(x, baseline, groups, severity, stepwise, whole)])]

    p = at({})
    original = naive_predicted_class(p, resolution, decision)
    margin = naive_margin(p, original, reading, decision, smoothing)

    one_step_margin, one_step_drop, one_step_confidence = [], [], []
    for g in range(len(groups)):
        removed = at({g: 1.0})
        one_step_margin.append(naive_margin(removed, original, reading, decision, smoothing))
        one_step_drop.append(margin - one_step_margin[g])
        one_step_confidence.append(removed[original])
    order = naive_order(one_step_drop, resolution, absent_groups)

    path_margin, path_predicted, path_collapse = [margin], [original], [0.0]
    flip_budget, flipped = depth + 1, False
    for k in range(1, depth + 1):
        state = at({g: 1.0 for g in order[:k]})
        path_margin.append(naive_margin(state, original, reading, decision, smoothing))
        path_predicted.append(naive_state_prediction(state, original, resolution, decision))
        path_collapse.append(naive_collapse(margin, path_margin[k], reading))
        if not flipped and path_predicted[k] != original:
            flip_budget, flipped = k, True
    rcma = math.fsum(path_collapse) / (depth + 1)

    thresholds: list[float | None] = []
    for operator in operators:
        chosen = naive_operator_groups(operator, order, len(groups))
        found = None
        for severity in sorted(severities):
            state = at({g: severity for g in chosen})
            if naive_state_prediction(state, original, resolution, decision) != original:
                found = severity
                break
        thresholds.append(found)

    fading = []
    if "attenuate_all" in operators:
        turns = thresholds[list(operators).index("attenuate_all")]
        for severity in sorted(severities):
            if turns is not None and severity >= turns:
                break
            state = at({g: severity for g in range(len(groups))})
            fading.append(naive_margin(state, original, reading, decision, smoothing))
    common = naive_common_loss(margin, fading, len(severities)) if "attenuate_all" in operators else None
    independent = math.fsum(max(0.0, drop) for drop in one_step_drop) / (abs(margin) + EPSILON)

    everything_lost = at({g: 1.0 for g in range(len(groups))})
    bare_margin = naive_margin(everything_lost, original, reading, decision, smoothing)
    random = naive_random_loss(margin, one_step_drop, bare_margin)

    return {
        "fade_margin": fading,
        "bare_margin": bare_margin,
        "independent_loss": independent,
        "common_loss": common,
        "random_loss": random,
        "exposure": naive_exposure(rcma, independent, common, random, exposure_weights),
        "predicted": original,
        "confidence": p[original],
        "margin": margin,
        "one_step_margin": one_step_margin,
        "one_step_drop": one_step_drop,
        "one_step_confidence": one_step_confidence,
        "path": order[:depth],
        "path_margin": path_margin,
        "path_predicted": path_predicted,
        "path_collapse": path_collapse,
        "flip_budget": flip_budget,
        "flipped": flipped,
        "rcma": rcma,
        "threshold": thresholds,
        "fds": naive_fds(rcma, flip_budget, thresholds, weights),
    }


# --- label channel --------------------------------------------------------------------------------


def naive_kappa(margin: float, stressed: float) -> float:
    """kappa = [m(x) - m_P(x)]_+ / (|m(x)| + 1e-8)."""
    return max(0.0, margin - stressed) / (abs(margin) + EPSILON)


def naive_brittle(
    probabilities: Probabilities,
    x: Row,
    draws: dict[str, list[Row]],
    rule: str = "expected",
    tau_confidence: float = 0.90,
    tau_kappa: float = 0.50,
    resolution: float = 1e-6,
    smoothing: float = 0.0,
) -> bool:
    """Whether a row is confident and at least one stressor, given as its explicit stressed rows, breaks it.

    A single state flips below -resolution (section 2), unsmoothed; the mean margin of the `expected` rule flips below 0
    (section 7). Margins are smoothed (section 4).
    """
    p = [float(v) for v in probabilities([x])]
    original = naive_predicted_class(p, resolution)
    if p[original] < tau_confidence:
        return False
    margin = naive_margin(p, original, "support", smoothing=smoothing)
    for stressed_rows in draws.values():
        answers = [probabilities([row]) for row in stressed_rows]
        margins = [naive_margin(answer, original, "support", smoothing=smoothing) for answer in answers]
        if rule == "expected":
            mean = math.fsum(margins) / len(margins)
            if mean < 0 or naive_kappa(margin, mean) >= tau_kappa:
                return True
        elif rule == "any":
            for answer, m in zip(answers, margins, strict=True):
                lost = naive_support_margin(answer, original) < -resolution
                if lost or naive_kappa(margin, m) >= tau_kappa:
                    return True
        else:
            raise AssertionError(rule)
    return False


# --- metrics --------------------------------------------------------------------------------------


def naive_auroc(label: Sequence[bool], score: Sequence[float]) -> float:
    """Share of (positive, negative) pairs ranked the right way; a tie counts one half."""
    won = pairs = 0.0
    for i in range(len(label)):
        for j in range(len(label)):
            if label[i] and not label[j]:
                pairs += 1
                if score[i] > score[j]:
                    won += 1
                elif score[i] == score[j]:
                    won += 0.5
    return won / pairs if pairs else math.nan


def naive_ranking(score: Sequence[float]) -> list[int]:
    """Row numbers, highest score first, ties in row order."""
    return sorted(range(len(score)), key=lambda i: (-score[i], i))


def naive_capture(label: Sequence[bool], score: Sequence[float], fraction: float) -> float:
    """Share of the positive rows among the ceil(fraction * n) rows ranked highest."""
    reviewed = naive_ranking(score)[: math.ceil(fraction * len(score) - 1e-12)]
    positives = sum(1 for value in label if value)
    return sum(1 for i in reviewed if label[i]) / positives if positives else math.nan


def naive_aurc(label: Sequence[bool], score: Sequence[float]) -> float:
    """Mean positive share among the rows left after escalating the 0, 1, ..., n-1 highest-ranked."""
    ranking = naive_ranking(score)
    risks = []
    for escalated in range(len(ranking)):
        left = ranking[escalated:]
        risks.append(sum(1 for i in left if label[i]) / len(left))
    return math.fsum(risks) / len(risks)


# --- search ---------------------------------------------------------------------------------------


def naive_smallest_failing_sets(
    probabilities: Probabilities,
    x: Row,
    baseline: Row,
    groups: Sequence[Sequence[int]],
    resolution: float,
    largest: int | None = None,
    absent: Sequence[bool] | None = None,
) -> list[tuple[int, ...]]:
    """Every failing set of the smallest size that has one, at most `largest` groups; empty when none has.

    A group that is missing in the row is in no set.
    """
    able = list(range(len(groups)))
    if absent is not None:
        baseline = naive_targets(x, baseline, absent)
        able = [g for g in able if g not in naive_absent_groups(groups, absent)]
    original = naive_predicted_class(probabilities([x]), resolution)
    stepwise = [False] * len(x)
    for size in range(1, (len(groups) if largest is None else largest) + 1):
        failing = []
        for chosen in itertools.combinations(able, size):
            state = naive_state(x, baseline, groups, {g: 1.0 for g in chosen}, stepwise)
            if naive_state_prediction(probabilities([state]), original, resolution) != original:
                failing.append(chosen)
        if failing:
            return failing
    return []
