"""The comparison of baselines, written from the definition alone (SPEC section 16): one row at a time, plain Python."""

import hashlib
import math
import statistics
from fractions import Fraction


def chosen(ids, confidence, contents, most=500, confident=0.9):
    """The confident rows whose content has the smallest hashes, in the order of the hashes of their ids.

    contents: the hash of each row's raw values.
    """
    sure = [
        (content, hashlib.blake2b(str(own).encode(), digest_size=16).digest(), own)
        for own, p, content in zip(ids, confidence, contents, strict=True)
        if p >= confident
    ]
    return [own for _, _, own in sorted(sorted(sure)[:most], key=lambda row: row[1])]


def figures(budgets, exposures, ids, depth):
    """Of one baseline: counts within one, within two, never; median k*; the ten most exposed ids."""
    order = sorted(range(len(ids)), key=lambda i: (-exposures[i], i))
    return {
        "flip_within_one": sum(1 for k in budgets if k <= 1 and k <= depth),
        "flip_within_two": sum(1 for k in budgets if k <= 2 and k <= depth),
        "never_flip": sum(1 for k in budgets if k == depth + 1),
        "median_flip_budget": float(statistics.median(budgets)),
        "most_exposed": [ids[i] for i in order[:10]],
    }


def verdict(early, rows):
    """early: of each baseline, the declared one first, the set of rows that flip within two groups.

    Returns the verdict, and for each other baseline whether it agrees in number and in rows.
    """
    own, *others = early
    agreements = [("too_few_rows", "too_few_rows") if rows < 30 else agreement(own, other, rows) for other in others]
    told = [word for pair in agreements for word in pair]
    worst = "depends" if "depends" in told else "too_few_rows" if "too_few_rows" in told else "stable"
    return worst, agreements


def agreement(own, other, rows):
    near = abs(Fraction(len(other), rows) - Fraction(len(own), rows)) <= Fraction(2, 100)
    factor = len(own) <= 2 * len(other) and len(other) <= 2 * len(own)
    in_number = "stable" if near or factor else "depends"
    if not own | other:
        return in_number, "stable"
    low, high = wilson(len(own & other), len(own | other))
    return in_number, "stable" if low > 0.5 else "depends" if high < 0.5 else "too_few_rows"


def wilson(count, n):
    """The 95% interval: all shares s with |count / n - s| <= z sqrt(s (1 - s) / n), by bisection from the estimate."""
    z, p = statistics.NormalDist().inv_cdf(0.975), count / n

    def end(outer):
        inside, outside = p, outer
        for _ in range(80):
            middle = (inside + outside) / 2
            if abs(p - middle) <= z * math.sqrt(middle * (1 - middle) / n):
                inside = middle
            else:
                outside = middle
        return inside

    return end(0.0), end(1.0)
