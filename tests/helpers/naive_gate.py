"""Slow twins of the gate's estimates, written from their definitions."""

import math


def binomial_tail(k, n, p):
    """P(at least k of n) for the rate p."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def share_bounds(k, n, level):
    """Clopper-Pearson: the rates at which so many, or so few, become as rare as 1 - level."""

    def solve(too_low):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if too_low(middle) else (low, middle)
        return (low + high) / 2

    lower = 0.0 if k == 0 else solve(lambda p: binomial_tail(k, n, p) < 1 - level)
    upper = 1.0 if k == n else solve(lambda p: 1 - binomial_tail(k + 1, n, p) > 1 - level)
    return lower, upper


def order(high, low):
    return 1.0 if high > low else 0.5 if high == low else 0.0


def auroc(scores, positive):
    """The AUROC pair by pair, and DeLong's component of each row."""
    ups = [s for s, p in zip(scores, positive, strict=True) if p]
    downs = [s for s, p in zip(scores, positive, strict=True) if not p]
    value = sum(order(u, d) for u in ups for d in downs) / (len(ups) * len(downs))
    influence = []
    for s, p in zip(scores, positive, strict=True):
        if p:
            influence.append((sum(order(s, d) for d in downs) / len(downs) - value) / len(ups))
        else:
            influence.append((sum(order(u, s) for u in ups) / len(ups) - value) / len(downs))
    return value, influence


def difference_bounds(new, old, shared):
    """Bounds of a difference, from (value, lower, upper, influence by id) of each."""
    covariance = sum(new[3][i] * old[3][i] for i in shared)
    spreads = [math.sqrt(sum(v * v for v in one[3].values())) for one in (new, old)]
    r = 0.0 if 0.0 in spreads else max(-1.0, min(1.0, covariance / (spreads[0] * spreads[1])))
    below = [new[0] - new[1], old[2] - old[0]]
    above = [new[2] - new[0], old[0] - old[1]]
    d = new[0] - old[0]
    down, up = (math.sqrt(max(a * a + b * b - 2 * r * a * b, 0.0)) for a, b in (below, above))
    return d - down, d + up


def reach_of_training(level, *sides):
    """How far the means of retrained models, side by side, may lie from the truth: Student's t of pooled deviations."""
    from scipy import stats

    squares, freedom = 0.0, 0
    for values in sides:
        mean = sum(values) / len(values)
        squares += sum((value - mean) ** 2 for value in values)
        freedom += len(values) - 1
    if freedom == 0:
        return 0.0
    return stats.t(freedom).ppf(level) * math.sqrt(squares / freedom * sum(1 / len(values) for values in sides))


def average(estimates):
    """The mean of (value, lower, upper, influence by id) over audits; a row that an audit lacks has no influence."""
    m = len(estimates)
    ids = {own for one in estimates for own in one[3]}
    influence = {own: sum(one[3].get(own, 0.0) for one in estimates) / m for own in ids}
    spreads = [math.sqrt(sum(v * v for v in one.values())) for one in (influence, *(e[3] for e in estimates))]
    narrowed = spreads[0] / (sum(spreads[1:]) / m) if sum(spreads[1:]) else 1.0
    value = sum(one[0] for one in estimates) / m
    below = sum(one[0] - one[1] for one in estimates) / m
    above = sum(one[2] - one[0] for one in estimates) / m
    return value, value - narrowed * below, value + narrowed * above, influence
