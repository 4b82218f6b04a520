"""Intervals: how far a share, or a difference of two shares, may lie from what the rows at hand show.

All are score intervals. With k of n rows, p = k / n and z the normal quantile of the level (95%: 1.96):

    Wilson      (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)                   one share
    Newcombe    d - sqrt((p1-l1)^2 + (u2-p2)^2)   to   d + sqrt((u1-p1)^2 + (p2-l2)^2)      p1 - p2, different rows
    Tango       all D with |b - c - n D| <= z sqrt(n (2 q + D (1-D)))                       p1 - p2, the same n rows

In Newcombe's, l and u are the ends of Wilson's intervals. In Tango's, b rows have the property only the first time and
c only the second; q is the likeliest share of the latter if the difference is D:

    q = (sqrt(B^2 - 4 A C) - B) / 2A    with    A = 2n,  B = (2n - b + c) D - b - c,  C = -c D (1-D)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

Z95 = 1.959963984540054  # written out, because the last digit of a computed one depends on the machine
BISECTIONS = 60  # of an interval of length 2: to 2e-18


@dataclass(frozen=True, slots=True)
class Share:
    """A share of rows with its 95% interval (Wilson).

    Attributes
    ----------
    count : int
        Rows that have the property.
    rows : int
        Rows looked at.
    lower, upper : float
        The ends of the interval; 0 and 1 for a share of no rows. The lower end is that of the rows counted, the upper
        end that of the unsettled rows as well, so that the interval covers whatever they turn out to be.
    unsettled : int, default=0
        Further rows of which it is unknown whether they have the property, so that the share is "at least" this.
    """

    count: int
    rows: int
    lower: float
    upper: float
    unsettled: int = 0

    @property
    def exact(self) -> bool:
        """Whether it is known of every row."""
        return self.unsettled == 0

    @property
    def value(self) -> float:
        """The share itself; NaN for a share of no rows."""
        return self.count / self.rows if self.rows else float("nan")


@dataclass(frozen=True, slots=True)
class ShareDifference:
    """A difference of two shares, the first minus the second, with its 95% interval.

    Attributes
    ----------
    value : float
        The difference; NaN where one of the shares is of no rows.
    lower, upper : float
        The ends of the interval.
    paired : bool
        True where both shares are of the same rows (Tango), False where they are not (Newcombe).
    """

    value: float
    lower: float
    upper: float
    paired: bool


def normal_quantile(level: float) -> float:
    """Return z such that a normal value lies within -z and z with probability ``level``."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def share_of(count: int, rows: int, z: float = Z95, *, unsettled: int = 0) -> Share:
    """Return a share with its Wilson interval; unsettled: rows of which the property is not known."""
    if rows == 0:
        return Share(0, 0, 0.0, 1.0)
    lower, upper = _wilson(count, rows, z)
    return Share(count, rows, lower, _wilson(count + unsettled, rows, z)[1] if unsettled else upper, unsettled)


def add_shares(shares: Iterable[Share]) -> Share:
    """Return the share of all the rows of several shares."""
    listed = list(shares)
    count, rows, unsettled = (sum(getattr(one, name) for one in listed) for name in ("count", "rows", "unsettled"))
    return share_of(count, rows, unsettled=unsettled)


def _wilson(count: int, rows: int, z: float) -> tuple[float, float]:
    p = count / rows
    centre = p + z * z / (2 * rows)
    spread = z * math.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    scale = 1 + z * z / rows
    return 0.0 if count == 0 else (centre - spread) / scale, 1.0 if count == rows else (centre + spread) / scale


def difference_of(one: Share, other: Share) -> ShareDifference:
    """Return the difference of two shares of different rows, with Newcombe's interval.

    Unsettled rows count as rows without the property, in both: searches of one kind are compared by what they found.
    """
    one, other = (share if share.exact else share_of(share.count, share.rows) for share in (one, other))
    p1, p2 = one.value, other.value
    below = math.hypot(p1 - one.lower, other.upper - p2)
    above = math.hypot(one.upper - p1, p2 - other.lower)
    return ShareDifference(p1 - p2, p1 - p2 - below, p1 - p2 + above, paired=False)


def paired_difference(first_only: int, second_only: int, rows: int, z: float = Z95) -> ShareDifference:
    """Return the difference of two shares of the same rows, with Tango's interval.

    first_only, second_only: rows that have the property only the first or only the second time.
    """
    if rows == 0:
        return ShareDifference(float("nan"), -1.0, 1.0, paired=True)
    value = (first_only - second_only) / rows
    score = partial(_score, first_only, second_only, rows)
    lower = _crossing(lambda d: score(d) - z, -1.0, value)
    return ShareDifference(value, lower, _crossing(lambda d: score(d) + z, value, 1.0), paired=True)


def _score(b: int, c: int, n: int, difference: float) -> float:
    """Return Tango's statistic at a difference; it falls as the difference grows."""
    distance = b - c - n * difference
    q2, q1, q0 = 2 * n, (2 * n - b + c) * difference - b - c, -c * difference * (1 - difference)
    q = (math.sqrt(max(q1 * q1 - 4 * q2 * q0, 0.0)) - q1) / (2 * q2)
    variance = n * (2 * q + difference * (1 - difference))
    if variance <= 0.0:
        return 0.0 if distance == 0.0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function passes zero."""
    if falling(high) > 0.0:
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return (low + high) / 2
