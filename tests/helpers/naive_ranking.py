"""Slow twins of the label channel, the ranking metrics and the searches, written from their definitions.

One row, one draw, one state, one tied order at a time; plain Python where the product is vectorised.
"""

import hashlib
import itertools
import math

import numpy as np

MODULUS = 2**64


# --- draws (format fragility-draw/1, see the docstring of fragility.questions.stress) -----------------------------


def row_key(seed, stream, sample_id):
    text = f"fragility-draw/1\x1f{seed}\x1f{stream}\x1f{sample_id}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def splitmix64(seed, n):
    """Output number n = 1, 2, ... of SplitMix64, by stepping its state n times for small n, else by one jump."""
    state = seed
    if n <= 64:
        for _ in range(n):
            state = (state + 0x9E3779B97F4A7C15) % MODULUS
    else:
        state = (seed + n * 0x9E3779B97F4A7C15) % MODULUS
    word = state
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % MODULUS
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % MODULUS
    return word ^ (word >> 31)


def uniform(seed, stream, sample_id, draw, position):
    word = splitmix64(row_key(seed, stream, sample_id), draw * 2**32 + position + 1)
    return (word >> 11) / 2**53


def balanced(seed, kind, sample_id, count, positions):
    """Step 5 of the draw format, from its words: u'[t][j] of draw t at the j-th of the positions."""
    stream = f"rehearsal {kind}"

    def u(t, j):
        return uniform(seed, stream, sample_id, t, positions[j])

    places = range(len(positions))
    found = [[0.0] * len(positions) for _ in range(count)]
    for j in places:
        place = sum(u(count, i) < u(count, j) for i in places)
        v = (place + u(count + 1, 0)) / len(positions)
        for t in range(count):
            rank = sum(u(s, j) < u(t, j) for s in range(count))
            found[t][j] = (rank + v) / count
    return found


def mirrored(seed, kind, sample_id, count, positions):
    half = balanced(seed, kind, sample_id, count // 2, positions)
    return [*half, *([1.0 - u for u in row] for row in half)]


def rehearsed_rows(kind, x, baseline, column_group, n_groups, spread, severity, seed, sample_id, count):
    """The rehearsed copies of one row under one stressor."""
    if kind == "noise":
        moved = [j for j in range(len(x)) if spread[j] > 0]
        draws = mirrored(seed, kind, sample_id, count, moved)
        return [
            [v + severity * spread[j] * (2 * us[moved.index(j)] - 1) if j in moved else v for j, v in enumerate(x)]
            for us in draws
        ]
    units = n_groups if kind == "mask" else len(x)
    unit = column_group if kind == "mask" else range(len(x))
    draws = balanced(seed, kind, sample_id, count, list(range(units)))
    return [[b if us[k] < severity else v for v, b, k in zip(x, baseline, unit, strict=True)] for us in draws]


def masked(x, baseline, column_group, n_groups, rate, seed, sample_id, draw):
    gone = [uniform(seed, "mask", sample_id, draw, g) < rate for g in range(n_groups)]
    return [b if gone[g] else v for v, b, g in zip(x, baseline, column_group, strict=True)]


def dropped(x, baseline, rate, seed, sample_id, draw):
    return [
        b if uniform(seed, "dropout", sample_id, draw, j) < rate else v
        for j, (v, b) in enumerate(zip(x, baseline, strict=True))
    ]


def noised(x, spread, extent, seed, sample_id, draw):
    return [
        v + extent * s * (2 * uniform(seed, "noise", sample_id, draw, j) - 1) if s > 0 else v
        for j, (v, s) in enumerate(zip(x, spread, strict=True))
    ]


def outage(x, baseline, column_group, fields, events, seed, sample_id, draw):
    """`events`: every event on its own, as a set of field names."""
    donors = sorted(tuple(sorted(event)) for event in events)
    donor = donors[math.floor(uniform(seed, "outages", sample_id, draw, 0) * len(donors))]
    gone = {g for g, field in zip(column_group, fields, strict=True) if field in donor}
    return [b if g in gone else v for v, b, g in zip(x, baseline, column_group, strict=True)]


# --- labels ------------------------------------------------------------------------------------------------------


def naive_support_margin(p, original):
    clipped = [max(v, 1e-12) for v in p]
    logs = [math.log(v / sum(clipped)) for v in clipped]
    return logs[original] - max(v for c, v in enumerate(logs) if c != original)


def naive_label(margin, confidence, draws, flips, *, rule, tau_confidence, tau_collapse):
    """`draws`, `flips`: for every stressor each draw's support margin, and whether it flips the prediction.

    Returns (brittle, brittle_rate, the statistic that the rule decides by).
    """

    def kappa(stressed):
        return max(margin - stressed, 0.0) / (abs(margin) + 1e-8)

    def breaks(stressor, draw):
        return flips[stressor][draw] or kappa(draws[stressor][draw]) >= tau_collapse

    stressors, times = range(len(draws)), range(len(draws[0]))
    means = [sum(margins) / len(margins) for margins in draws]
    rate = sum(any(breaks(s, t) for s in stressors) for t in times) / len(times)
    if rule == "expected":
        broken = any(mean < 0 or kappa(mean) >= tau_collapse for mean in means)
        return confidence >= tau_confidence and broken, rate, max(kappa(mean) for mean in means)
    return confidence >= tau_confidence and rate > 0, rate, rate


# --- metrics -----------------------------------------------------------------------------------------------------


def naive_auroc(scores, positive):
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, p in zip(scores, positive, strict=True)
        if p
        for b, q in zip(scores, positive, strict=True)
        if not q
    ]
    return sum(wins) / len(wins) if wins else math.nan


def rankings(scores):
    """Every order of the rows by descending score that ties allow."""
    rows = range(len(scores))
    blocks = [[r for r in rows if scores[r] == value] for value in sorted(set(scores), reverse=True)]
    for choice in itertools.product(*(itertools.permutations(block) for block in blocks)):
        yield [r for block in choice for r in block]


def naive_capture(scores, positive, budget):
    slots = math.ceil(round(budget * len(scores), 9))
    if not any(positive):
        return math.nan
    found = [sum(positive[r] for r in order[:slots]) / sum(positive) for order in rankings(scores)]
    return sum(found) / len(found)


def naive_aurc(scores, positive):
    if not any(positive):
        return math.nan
    n = len(scores)
    areas = [sum(sum(positive[r] for r in order[j:]) / (n - j) for j in range(n)) / n for order in rankings(scores)]
    return sum(areas) / len(areas)


# --- search ------------------------------------------------------------------------------------------------------


def naive_exact(x, predict, baseline, column_group, n_groups, max_size, resolution):
    """Smallest failing set by enumeration, the first in lexicographic order: (size, tuple of groups or ())."""

    def margin(removed):
        state = np.asarray([b if g in removed else v for v, b, g in zip(x, baseline, column_group, strict=True)])
        return naive_support_margin(predict(state[None])[0], original)

    p = predict(np.asarray(x)[None])[0]
    z = [math.log(max(v, 1e-12)) for v in p]
    original = next(c for c, v in enumerate(z) if v >= max(z) - resolution)
    for size in range(1, max_size + 1):
        for s in itertools.combinations(range(n_groups), size):
            if margin(s) < -resolution:
                return size, s
    return max_size + 1, ()
