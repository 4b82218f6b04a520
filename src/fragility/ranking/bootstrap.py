"""Uncertainty of ranking metrics: over units (models) and, for one model, over its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from fragility.arrays import Booleans, Floats, Integers
from fragility.equality import NanEqual
from fragility.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class MeanInterval(NanEqual):
    """A mean over units with its percentile interval; `undefined` units are counted, not averaged."""

    mean: float
    low: float
    high: float
    standard_deviation: float
    units: int
    undefined: int


@dataclass(frozen=True, slots=True, eq=False)
class PairedDifference(NanEqual):
    """Mean of a - b over paired units, its percentile interval, and how many units agree with its sign."""

    mean: float
    low: float
    high: float
    win_rate: float  # share of units with a > b
    not_better: float  # share of units with a - b <= 0
    units: int
    undefined: int


def bootstrap_mean(
    values: npt.ArrayLike, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> MeanInterval:
    """Mean over units with the percentile bootstrap interval (units resampled with replacement)."""
    v = np.asarray(values, dtype=np.float64)
    known = v[~np.isnan(v)]
    low, high = _percentile_interval(known, resamples, level, seed)
    spread = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    mean = float(known.mean()) if len(known) else math.nan
    return MeanInterval(mean, low, high, spread, len(known), len(v) - len(known))


def paired_bootstrap(
    a: npt.ArrayLike, b: npt.ArrayLike, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> PairedDifference:
    """Paired bootstrap of mean(a - b) over units; a unit where either is NaN is undefined and counted."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(f"paired values must have one entry a unit, got shapes {first.shape} and {second.shape}")
    interval = bootstrap_mean(first - second, resamples=resamples, level=level, seed=seed)
    known = (first - second)[~np.isnan(first - second)]
    win = float((known > 0).mean()) if len(known) else math.nan
    lose = float((known <= 0).mean()) if len(known) else math.nan
    return PairedDifference(interval.mean, interval.low, interval.high, win, lose, interval.units, interval.undefined)


def _percentile_interval(values: Floats, resamples: int, level: float, seed: int) -> tuple[float, float]:
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0.0:  # scipy calls a degenerate distribution NaN; every resample has this very mean
        return float(values[0]), float(values[0])
    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        batch=max(1, 2**22 // len(values)),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def bootstrap_auroc_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    positive: npt.ArrayLike,
    *,
    resamples: int = 2_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of AUROC(a) - AUROC(b) when rows are resampled; for one model, where rows are the units.

    Resamples without one of the two classes are left out. NaN when the difference itself is undefined.
    """
    first, second = resampled_aurocs([np.asarray(a), np.asarray(b)], positive, resamples=resamples, seed=seed)
    return quantile_interval(first - second, level)


def resampled_aurocs(
    scores: Sequence[Floats], positive: npt.ArrayLike, *, resamples: int = 2_000, seed: int = 0
) -> Floats:
    """AUROC of every score on the same row resamples, (scores, resamples); NaN where a resample lacks a class.

    Each resample is a vector of row weights, so every score is sorted once.
    """
    label = np.asarray(positive, dtype=bool)
    out = np.full((len(scores), resamples), np.nan)
    if not label.any() or label.all():
        return out
    generator = np.random.default_rng(seed)
    placed = [_places(np.asarray(s, dtype=np.float64), label) for s in scores]
    n, batch = len(label), max(1, 2**20 // len(label))  # 8 MB of weights stay in cache better than more
    for start in range(0, resamples, batch):
        stop = min(start + batch, resamples)
        weights = generator.multinomial(n, np.full(n, 1.0 / n), size=stop - start).astype(np.float64)
        for index, places in enumerate(placed):
            out[index, start:stop] = _weighted_auroc(weights, places)
    return out


def quantile_interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return math.nan, math.nan
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(known, [tail, 1.0 - tail])
    return float(low), float(high)


class _Places(NamedTuple):
    """Where the positive rows of one score fall among its negative rows."""

    negative: Integers  # (q,) negative rows by ascending score
    positive: Integers  # (p,) positive rows
    below: Integers  # (p,) negatives with a lower score
    up_to: Integers  # (p,) negatives with a lower or equal score


def _places(s: Floats, label: Booleans) -> _Places:
    negative, positive = np.flatnonzero(~label), np.flatnonzero(label)
    negative = negative[np.argsort(s[negative], kind="stable")]
    below, up_to = (np.searchsorted(s[negative], s[positive], side=side) for side in ("left", "right"))
    return _Places(negative, positive, below, up_to)


def _weighted_auroc(weights: Floats, places: _Places) -> Floats:
    """AUROC of each row of weights, (resamples, n) -> (resamples,); half of a tie counts."""
    passed = np.zeros((len(weights), len(places.negative) + 1))
    np.cumsum(np.take(weights, places.negative, axis=1), axis=1, out=passed[:, 1:])
    own = weights[:, places.positive]
    won = (own * (passed[:, places.below] + passed[:, places.up_to])).sum(axis=1) / 2.0
    with np.errstate(invalid="ignore"):
        return np.asarray(won / (own.sum(axis=1) * passed[:, -1]))
