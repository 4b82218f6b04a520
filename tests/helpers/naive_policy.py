"""The review policy by loops, straight from its definition; imports nothing of the library."""

from functools import cache

from scipy.stats import binom


@cache  # walks from several starts meet the same thresholds
def upper_limit(k, n, level):
    """The rate at which k or fewer of n would be seen with probability 1 - level, found by bisection."""
    if k >= n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if binom.cdf(k, n, middle) > 1 - level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def thresholds(scores):
    """The score's quantiles in steps of 1% (a value of the sample each), and infinity."""
    ordered = sorted(scores)
    found = []
    for percent in range(1, 100):
        position = percent * (len(ordered) - 1) / 100
        index = int(position) if abs(position - round(position)) > 1e-9 else round(position)
        index = index if abs(position - index) <= 1e-9 else index + 1
        found.append(ordered[index])
    return sorted({*found, float("inf")})


def reviewed(scores, confident, threshold):
    """Which rows go to review; a score of None is not known, a threshold of None is a policy that cannot be had."""
    return [
        sure and (threshold is None or s is None or s >= threshold) for s, sure in zip(scores, confident, strict=True)
    ]


def policy(scores, brittle, risk, confidence, segments=1):
    """Return (threshold, bound) or None; rows whose score is not known, None, take no part."""
    known = [(s, b) for s, b in zip(scores, brittle, strict=True) if s is not None]
    scores, brittle = [s for s, _ in known], [b for _, b in known]
    level = 1 - (1 - confidence) / segments / 5
    grid = thresholds(scores)
    below = [sum(s < t for s in scores) for t in grid]
    bad = [sum(s < t and b for s, b in zip(scores, brittle, strict=True)) for t in grid]
    eligible = [i for i, n in enumerate(below) if upper_limit(0, n, level) <= risk]
    best = None
    for number in range(5):
        if not eligible:
            break
        i = eligible[round(number * (len(eligible) - 1) / 4)]
        while i < len(grid) and upper_limit(bad[i], below[i], level) <= risk:
            best = i if best is None else max(best, i)
            i += 1
    return None if best is None else (grid[best], upper_limit(bad[best], below[best], level))
