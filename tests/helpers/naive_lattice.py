"""The whole lattice by enumeration, written from the definitions alone: every subset of groups, one prediction each."""

import hashlib
import itertools
import math

import numpy as np


def subsets(n_groups):
    """All subsets as tuples of group positions, by size and then in lexicographic order."""
    return [s for size in range(n_groups + 1) for s in itertools.combinations(range(n_groups), size)]


def states(x, baseline, column_group, chosen):
    out = np.empty((len(chosen), len(x)))
    for row, removed in enumerate(chosen):
        gone = set(removed)
        for j in range(len(x)):
            out[row, j] = baseline[j] if column_group[j] in gone else x[j]
    return out


def margin(p, original):
    z = [math.log(max(v, 1e-12)) for v in p]
    return z[original] - max(v for c, v in enumerate(z) if c != original)


def original_class(p, resolution):
    z = [math.log(max(v, 1e-12)) for v in p]
    return next(c for c, v in enumerate(z) if v >= max(z) - resolution)


class Enumerated:
    """One row, all subsets."""

    def __init__(self, x, predict, baseline, column_group, n_groups, resolution, own=None):
        self.n_groups = n_groups
        self.subsets = subsets(n_groups)
        p = predict(states(x, baseline, column_group, self.subsets))
        # a tie is settled by the model's own label, where it gives one
        self.original = original_class(p[0], resolution) if own is None else own
        self.margins = {s: margin(row, self.original) for s, row in zip(self.subsets, p, strict=True)}
        self.failing = {s for s, m in self.margins.items() if m < -resolution}

    def smallest(self):
        """(size, first set in lexicographic order, how many of that size), or None."""
        if not self.failing:
            return None
        size = min(len(s) for s in self.failing)
        same = sorted(s for s in self.failing if len(s) == size)
        return size, same[0], len(same)

    def minimal(self):
        """Failing sets without a failing proper subset, by size and then in lexicographic order."""
        found = []
        for s in self.subsets:
            if s in self.failing and not any(set(t) < set(s) for t in found):
                found.append(s)
        return found

    def weight(self, s, rates):
        return math.prod(r if g in s else 1.0 - r for g, r in enumerate(rates))

    def probability(self, rates):
        return math.fsum(self.weight(s, rates) for s in self.failing)

    def importance(self, rates):
        out = []
        for g in range(self.n_groups):
            fails, holds = list(rates), list(rates)
            fails[g], holds[g] = 1.0, 0.0
            out.append(self.probability(fails) - self.probability(holds))
        return out

    def expected_margin(self, rates):
        return math.fsum(self.weight(s, rates) * m for s, m in self.margins.items())


def most_exposed(rows, count, confident=0.9):
    """Ids of the rows searched by default: confident ones, by falling exposure, then by hash of id; rows are dicts."""
    sure = [row for row in rows if row["confidence"] >= confident]
    ordered = sorted(
        sure, key=lambda row: (-row["exposure"], hashlib.blake2b(str(row["id"]).encode(), digest_size=16).digest())
    )
    return [row["id"] for row in ordered[:count]]
