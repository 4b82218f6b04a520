r"""Confidence sequences: intervals and alarms that stay valid however often one looks.

**Intervals.** Values x_1, x_2, ... in [0, 1] whose mean, given all earlier ones, is mu. An interval that is computed
after each row and covers mu at all times, with probability 1 - alpha, is a confidence sequence.

    share    all m with  ln B(k + 1, n - k + 1) - k ln m - (n - k) ln(1 - m) < ln(1 / alpha)
             for k of n rows; B is the beta function (mixture over all rates; Robbins, Howard and others)
    mean     centre -+ (ln(2 / alpha) + sum_i v_i psi(l_i)) / sum_i l_i,    centre = sum_i l_i x_i / sum_i l_i
             v_i = (x_i - a_{i-1})^2,  psi(l) = -ln(1 - l) - l,  a_i = (1/2 + x_1 + ... + x_i) / (i + 1)
             s_i = (1/4 + (x_1 - a_1)^2 + ... + (x_i - a_i)^2) / (i + 1),  s_0 = 1/4
             l_i = min(1/2, sqrt(2 ln(2 / alpha) / (s_{i-1} i ln(i + 1))))
             (empirical Bernstein with bets that look only at the past; Waudby-Smith and Ramdas)

**Alarms.** The question is whether the mean has risen above a bound b at some unknown time s. A gambler who bets a
share f of his money that the next value lies above b multiplies it by 1 + f (x / b - 1), on average by at most 1 while
the mean is at most b. The shares are f_j = 2^-j, j = 1..J. At each look t (after a block of rows) a new gambler may
start; those who start at s have the weight w_s, and all weights add up to at most 1:

    R_t(j) = (R_{t-1}(j) + w_t) prod_{i in block t} (1 + f_j (x_i / b - 1)),     R_t = mean_j R_t(j),   R_0 = 0
    w_t    = 1 / (T a (a + 1))    for the a-th look of a day;  T: the days of the horizon

R_t plus the weights not yet used is a nonnegative supermartingale that starts at 1, so by Ville's inequality it ever
reaches 1 / alpha with probability alpha at most: the alarm is false with that probability over the whole horizon,
whenever and however often one looks. In other words, all b with R_t(b) < 1 / alpha are a confidence sequence for the
largest mean of a stream that does not change; an alarm says that the reference has left it. Detection delay hardly
grows with time, since a gambler who starts on the day of the change has lost nothing before. A fall is found in the
same way from 1 - x and 1 - b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaln, xlog1py, xlogy

from fragility.base.arrays import Booleans, Floats

BETS = 10
SHARES: Floats = np.exp2(-np.arange(1.0, BETS + 1.0))  # f_j
LEAST_BOUND = 1e-6  # a rate of 0 would make the first row an alarm
BISECTIONS = 60
LARGEST_BET = 0.5


def weigh_start(look: int, horizon: int) -> float:
    """Return w of the a-th look of a day, counted from 1."""
    return 1.0 / (horizon * look * (look + 1.0))


def bound_shares(n: Floats, k: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return the confidence sequences of shares after n rows, k of which have the property; arrays of one shape.

    They also cover the mean of n values in [0, 1] whose sum is k, more widely than needed. Without rows they are 0, 1.
    """
    limit = math.log(1.0 / alpha) - betaln(k + 1.0, n - k + 1.0)
    mean = np.divide(k, n, out=np.full(np.shape(k), 0.5), where=n > 0)

    def cross(outside: float) -> Floats:
        inside, beyond = mean.copy(), np.full(np.shape(k), outside)
        for _ in range(BISECTIONS):
            middle = (inside + beyond) / 2
            covered = -xlogy(k, middle) - xlog1py(n - k, -middle) < limit
            inside, beyond = np.where(covered, middle, inside), np.where(covered, beyond, middle)
        return np.asarray(inside)

    return np.where(k > 0, cross(0.0), 0.0), np.where(k < n, cross(1.0), 1.0)


@dataclass(slots=True)
class MeanSequence:
    """The confidence sequence of a mean, fed some values at a time; any split of the values gives the same interval."""

    alpha: float
    rows: int = 0
    total: float = 0.0  # sum of x
    spread: float = 0.25  # 1/4 + sum of (x - a)^2
    weights: float = 0.0  # sum of l
    weighted: float = 0.0  # sum of l x
    penalty: float = 0.0  # sum of v psi(l)

    def add(self, values: Floats) -> None:
        """Take in the next values, (n,) in [0, 1]."""
        if len(values) == 0:
            return
        i = self.rows + np.arange(1, len(values) + 1)
        sums = self.total + np.cumsum(values)
        after = (0.5 + sums) / (i + 1)
        before = np.concatenate([[(0.5 + self.total) / (self.rows + 1)], after[:-1]])
        spreads = self.spread + np.cumsum((values - after) ** 2)
        variance = np.concatenate([[self.spread], spreads[:-1]]) / i
        bets = np.minimum(LARGEST_BET, np.sqrt(2 * math.log(2 / self.alpha) / (variance * i * np.log(i + 1))))
        self.penalty += float(((values - before) ** 2 * (-np.log1p(-bets) - bets)).sum())
        self.weighted += float((bets * values).sum())
        self.weights += float(bets.sum())
        self.rows, self.total, self.spread = int(i[-1]), float(sums[-1]), float(spreads[-1])

    def interval(self) -> tuple[float, float]:
        """Return the interval after the values so far."""
        if self.rows == 0:
            return 0.0, 1.0
        centre = self.weighted / self.weights
        width = (math.log(2 / self.alpha) + self.penalty) / self.weights
        return max(centre - width, 0.0), min(centre + width, 1.0)


def bet_on_values(values: Floats, bound: float) -> Floats:
    """Return (n, J) the log gain of each bet on each value in [0, 1]."""
    return np.asarray(np.log1p(SHARES * (values[:, None] / bound - 1.0)))


@dataclass(slots=True, eq=False)
class Detector:
    """m streams watched at once; each is given its bound and stays below it while all is well.

    Beside R_t, each bet keeps the start that explains its gain best, and what was seen since: what an alarm tells.
    """

    bounds: Floats  # (m,)
    alpha: float  # of one stream: the chance of a false alarm over the horizon
    log_r: Floats = field(init=False)  # (m, J) ln R_t(j)
    best: Floats = field(init=False)  # (m, J) the largest term of R_t(j)
    since: Floats = field(init=False)  # (m, J, S) sums of what is seen, from the start of that term
    started: Floats = field(init=False)  # (m, J) when it started, as the caller counts

    def __post_init__(self) -> None:
        self.bounds = np.maximum(self.bounds, LEAST_BOUND)
        shape = (len(self.bounds), BETS)
        self.log_r, self.best = np.full(shape, -np.inf), np.full(shape, -np.inf)
        self.since, self.started = np.zeros((*shape, 1)), np.zeros(shape)

    def look(self, gains: Floats, weight: float, now: float, seen: Floats) -> Booleans:
        """Take in a block of rows; return (m,) whether the evidence reaches 1 / alpha.

        gains (m, J): log gains on the block; weight: w of this look; seen (m, S): what to sum up since the start.
        """
        start = math.log(weight) if weight > 0.0 else -math.inf
        self.log_r = np.logaddexp(self.log_r, start) + gains
        fresh = start > self.best
        self.best = np.where(fresh, start, self.best) + gains
        self.started = np.where(fresh, now, self.started)
        self.since = np.where(fresh[:, :, None], 0.0, self.since) + seen[:, None, :]
        return self.evidence() >= -math.log(self.alpha)

    def evidence(self) -> Floats:
        """Return (m,) ln R_t."""
        top = self.log_r.max(axis=1)
        finite = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(finite + np.log(np.exp(self.log_r - finite[:, None]).mean(axis=1)))

    def explain(self, stream: int) -> tuple[float, Floats]:
        """Return when the change probably began, and (S,) the sums of what was seen since."""
        bet = int(self.best[stream].argmax())
        return float(self.started[stream, bet]), self.since[stream, bet].copy()

    def restart(self, streams: Booleans | slice = slice(None)) -> None:
        """Forget what some streams (m,) have gained."""
        self.log_r[streams] = -np.inf
        self.best[streams] = -np.inf
