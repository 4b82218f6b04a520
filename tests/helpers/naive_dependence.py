"""The comparison of baselines, written from the definition alone (SPEC section 16): one row at a time, plain Python."""

import hashlib
import statistics


def chosen(ids, confidence, most=500, confident=0.9):
    """The confident rows whose ids have the smallest hashes, in the order of these."""
    sure = [
        (hashlib.blake2b(str(own).encode(), digest_size=16).digest(), own)
        for own, p in zip(ids, confidence, strict=True)
        if p >= confident
    ]
    return [own for _, own in sorted(sure)[:most]]


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


def verdict(within_two, rows):
    """within_two: counts by baseline, the declared one first; shares as exact fractions of the rows."""
    from fractions import Fraction

    own, *others = [Fraction(count, rows) for count in within_two]
    for other in others:
        near = abs(other - own) <= Fraction(2, 100)
        factor = own / 2 <= other <= 2 * own
        if not near and not factor:
            return "depends"
    return "stable"
