"""Slow twins of confidence sequences and alarms, written from their definitions: one row, one gambler at a time."""

import math

from scipy.stats import chi2


def share_covers(n, k, m, alpha):
    """Whether the rate m is inside the confidence sequence of k of n rows: the mixture integrated by a fine sum."""
    steps = 20_000
    peak = 0.0 if k in (0, n) else k * math.log(k / n) + (n - k) * math.log(1 - k / n)
    mixture = 0.0
    for step in range(steps):
        q = (step + 0.5) / steps
        mixture += math.exp(k * math.log(q) + (n - k) * math.log(1 - q) - peak) / steps
    return math.log(mixture) + peak - k * math.log(m) - (n - k) * math.log(1 - m) < math.log(1 / alpha)


def mean_interval(values, alpha):
    """The empirical Bernstein confidence sequence after all values, value by value."""
    a, s = 0.5, 0.25
    weights = weighted = penalty = 0.0
    for i, x in enumerate(values, 1):
        bet = min(0.5, math.sqrt(2 * math.log(2 / alpha) / (s * i * math.log(i + 1))))
        weights += bet
        weighted += bet * x
        penalty += (x - a) ** 2 * (-math.log(1 - bet) - bet)
        a = (0.5 + math.fsum(values[:i])) / (i + 1)
        means = [(0.5 + math.fsum(values[:j])) / (j + 1) for j in range(1, i + 1)]
        s = (0.25 + math.fsum((v - m) ** 2 for v, m in zip(values, means, strict=False))) / (i + 1)
    width = (math.log(2 / alpha) + penalty) / weights
    return max(weighted / weights - width, 0.0), min(weighted / weights + width, 1.0)


def evidence(blocks, bound, weights, bets=10):
    """R after each block: every gambler of every start on his own."""
    found = []
    for now in range(1, len(blocks) + 1):
        total = 0.0
        for start in range(now):
            for j in range(1, bets + 1):
                money = weights[start] / bets
                for block in blocks[start:now]:
                    for x in block:
                        money *= 1 + 2.0**-j * (x / bound - 1)
                total += money
        found.append(total)
    return found


def likeliest_start(blocks, bound, weights, bets=10):
    """The start of the richest gambler."""
    best, found = -math.inf, None
    for start in range(len(blocks)):
        for j in range(1, bets + 1):
            money = math.log(weights[start])
            for block in blocks[start:]:
                for x in block:
                    money += math.log(1 + 2.0**-j * (x / bound - 1))
            if money > best:
                best, found = money, start
    return found


def spend(days, looks, horizon):
    """The weights of all looks of some days."""
    return [1.0 / (horizon * a * (a + 1)) for _ in range(days) for a in range(1, looks + 1)]


def expected_loss(rates, table_rates, table_loss, importance):
    """The share of decisions lost at some rates, to first order around the rates of the table."""
    lost = table_loss
    for r, r0, b in zip(rates, table_rates, importance, strict=True):
        lost += (r - r0) * b
    return min(max(lost, 0.0), 1.0)


def loss_by_sets(rates, flips):
    """The exact share lost: groups fail independently, and `flips` says for each set whether the decision is lost."""
    total = 0.0
    for mask, lost in enumerate(flips):
        chance = 1.0
        for g, r in enumerate(rates):
            chance *= r if mask >> g & 1 else 1 - r
        total += chance * lost
    return total


def find_spread(n, k):
    """rho of days with n_d decisions and sum k_d, 0 where these show no spread."""
    p, free = sum(k) / sum(n), len(n) - 1
    x = sum((kd - nd * p) ** 2 / (nd * p * (1 - p)) for nd, kd in zip(n, k, strict=True))
    if chi2.cdf(x, free) <= 0.99:
        return 0.0
    widest = x * free / chi2.ppf(0.05, free)
    return min(0.5, (widest - free) / sum((nd - 1) * (1 - nd / sum(n)) for nd in n))
