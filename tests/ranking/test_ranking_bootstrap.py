"""Intervals over units and over rows."""

import math

import numpy as np
import pytest
from sklearn.metrics import (
    roc_auc_score,
)

from fragility.analysis.ranking import metrics

NAN = math.nan


def test_paired_bootstrap_against_a_plain_loop():
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.8, 0.1, 40), generator.normal(0.7, 0.1, 40)
    found = metrics.paired_bootstrap(a, b, resamples=4000)
    draws = np.array([(a - b)[generator.integers(0, 40, 40)].mean() for _ in range(4000)])
    assert found.mean == pytest.approx((a - b).mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.006)
    assert found.win_rate == pytest.approx((a > b).mean())
    assert found.not_better == pytest.approx(1 - found.win_rate)
    assert metrics.paired_bootstrap(a, b, resamples=4000) == found


def test_bootstrap_counts_undefined_units():
    found = metrics.paired_bootstrap([0.9, NAN, 0.8, 0.7], [0.5, 0.5, NAN, 0.7])
    assert (found.units, found.undefined) == (2, 2)
    assert (found.win_rate, found.not_better) == (0.5, 0.5)
    alone = metrics.bootstrap_mean([0.9, NAN])
    assert alone.mean == 0.9 and alone.units == 1 and math.isnan(alone.low) and math.isnan(alone.standard_deviation)
    nothing = metrics.bootstrap_mean([NAN])
    assert math.isnan(nothing.mean) and nothing.undefined == 1
    same = metrics.bootstrap_mean([0.5, 0.5, 0.5])
    assert (same.low, same.high) == (0.5, 0.5)


def test_resampled_aurocs_equal_repeated_rows():
    """A weight vector is a resample: its AUROC equals that of the rows repeated."""
    generator = np.random.default_rng(5)
    scores, label = generator.integers(0, 6, 50).astype(float), generator.random(50) < 0.4
    drawn = metrics.resampled_aurocs([scores, -scores], label, resamples=30, seed=9)
    weights = np.random.default_rng(9).multinomial(50, np.full(50, 1 / 50), size=30)
    for index, weight in enumerate(weights):
        rows = np.repeat(np.arange(50), weight)
        assert drawn[0, index] == pytest.approx(roc_auc_score(label[rows], scores[rows]))
    assert drawn[0] + drawn[1] == pytest.approx(1.0)


def test_auroc_difference_interval():
    generator = np.random.default_rng(2)
    label = generator.random(300) < 0.3
    good, bad = label + generator.normal(0, 0.5, 300), generator.normal(size=300)
    first, second = metrics.resampled_aurocs([good, bad], label)
    low, high = metrics.quantile_interval(first - second)
    assert 0.0 < low < metrics.auroc(good, label) - metrics.auroc(bad, label) < high
    first, second = metrics.resampled_aurocs([good, bad], np.zeros(300, dtype=bool))
    assert all(math.isnan(v) for v in metrics.quantile_interval(first - second))
