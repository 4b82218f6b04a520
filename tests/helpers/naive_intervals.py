"""Slow twins of the intervals, from their definitions: a value is inside if the test of it does not reject.

A share: the score test of p0. A difference on the same rows: the score test of D, with the other parameter at its
likeliest value, found by trying values. Nothing here solves an equation in closed form.
"""

import math


def bisected(inside, good: float, bad: float) -> float:
    """Where `inside` ends between a value inside and one that may be outside."""
    if inside(bad):
        return bad
    for _ in range(45):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if inside(middle) else (good, middle)
    return good


def share_interval(count: int, rows: int, z: float) -> tuple[float, float]:
    """All p0 with |count - rows p0| <= z sqrt(rows p0 (1 - p0))."""

    def inside(p0: float) -> bool:
        return abs(count - rows * p0) <= z * math.sqrt(rows * p0 * (1 - p0)) + 1e-13

    p = count / rows
    return bisected(inside, p, 0.0), bisected(inside, p, 1.0)


def likeliest(first_only: int, second_only: int, rows: int, difference: float) -> float:
    """The share q of rows "second only" that makes the counts likeliest, if "first only" has the share q + D."""
    low, high = max(0.0, -difference), (1.0 - difference) / 2

    def log_likelihood(q: float) -> float:
        cells = (
            (first_only, q + difference),
            (second_only, q),
            (rows - first_only - second_only, 1 - 2 * q - difference),
        )
        if any(count and share <= 0.0 for count, share in cells):
            return -math.inf
        return sum(count * math.log(share) for count, share in cells if count)

    for _ in range(70):  # golden section; the likelihood has one peak
        left, right = low + 0.381966 * (high - low), low + 0.618034 * (high - low)
        low, high = (low, right) if log_likelihood(left) >= log_likelihood(right) else (left, high)
    return (low + high) / 2


def paired_interval(first_only: int, second_only: int, rows: int, z: float) -> tuple[float, float]:
    """All D that the score test does not reject at z."""

    def inside(difference: float) -> bool:
        q = likeliest(first_only, second_only, rows, difference)
        variance = rows * (2 * q + difference - difference**2)
        return abs(first_only - second_only - rows * difference) <= z * math.sqrt(max(variance, 0.0)) + 1e-9

    d = (first_only - second_only) / rows
    return bisected(inside, d, -1.0), bisected(inside, d, 1.0)
