"""What the gate estimates equals its slow twins, and its bounds hold as often as they say."""

import naive_gate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fragility.gate.estimates import (
    Estimate,
    RetrainedEstimates,
    compare_estimates,
    estimate_auroc,
    estimate_mean,
    estimate_share,
)
from fragility.ids import id_keys

LEVEL = 0.95


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.sampled_from([0.9, 0.95, 0.995]))
@settings(max_examples=40, deadline=None)
def test_a_share_equals_its_slow_twin(holds, level):
    found = estimate_share(np.array(holds), id_keys(range(len(holds))), level)
    assert (found.value, found.rows) == (sum(holds) / len(holds), len(holds))
    assert (found.lower, found.upper) == pytest.approx(naive_gate.share_bounds(sum(holds), len(holds), level), abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30))
@settings(max_examples=40, deadline=None)
def test_an_auroc_equals_its_slow_twin(rows):
    scores, positive = (np.array(column) for column in zip(*rows, strict=True))
    found = estimate_auroc(scores.astype(float), positive, id_keys(range(len(rows))), LEVEL)
    if positive.all() or not positive.any():
        assert np.isnan(found.value) and (found.lower, found.upper) == (0.0, 1.0)
        return
    value, influence = naive_gate.auroc(scores.tolist(), positive.tolist())
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.influence == pytest.approx(influence, abs=1e-12)
    assert 0.0 <= found.lower <= found.value <= found.upper <= 1.0


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(0, 30), st.integers(2, 30))
@settings(max_examples=40, deadline=None)
def test_a_difference_equals_its_slow_twin(seed, n, start, m):
    """Rows 0..n against rows start..start+m: paired, unpaired or both."""
    rng = np.random.default_rng(seed)
    new = estimate_mean(rng.random(n), id_keys(range(n)), LEVEL)
    old = estimate_mean(rng.random(m), id_keys(range(start, start + m)), LEVEL)
    found = compare_estimates(new, old)
    shared = set(range(n)) & set(range(start, start + m))
    plain = [
        (one.value, one.lower, one.upper, dict(zip(ids, one.influence.tolist(), strict=True)))
        for one, ids in ((new, range(n)), (old, range(start, start + m)))
    ]
    assert found.shared == len(shared)
    assert (found.lower, found.upper) == pytest.approx(naive_gate.difference_bounds(*plain, shared), abs=1e-12)


def test_an_audit_compared_with_itself_has_no_difference():
    rng = np.random.default_rng(0)
    same = estimate_share(rng.random(500) < 0.3, id_keys(range(500)), LEVEL)
    found = compare_estimates(same, same)
    assert found.value == 0.0 and found.shared == 500
    assert found.upper - found.lower < 0.01  # Clopper-Pearson's two sides differ a little


def test_no_rows_show_nothing():
    for found in (
        estimate_share(np.empty(0, dtype=bool), id_keys([]), LEVEL),
        estimate_mean(np.empty(0), id_keys([]), LEVEL),
    ):
        assert np.isnan(found.value) and (found.rows, found.lower, found.upper) == (0, 0.0, 1.0)
    assert estimate_mean(np.array([0.2]), id_keys([1]), LEVEL).upper == 1.0


def test_an_auroc_without_an_error_is_not_certain():
    found = estimate_auroc(np.arange(20.0), np.arange(20) >= 10, id_keys(range(20)), LEVEL)
    assert (found.value, found.upper) == (1.0, 1.0) and 0.6 < found.lower < 0.8


@pytest.mark.parametrize("paired", [True, False])
def test_the_bounds_of_a_difference_hold_as_often_as_they_say(paired):
    """Shares 0.30 and 0.25 of correlated rows: each one-sided 95% bound is missed in at most about 5% of draws."""
    rng, missed, draws = np.random.default_rng(7), np.zeros(2), 800
    for _ in range(draws):
        common = rng.random(400)
        other = common if paired else rng.random(400)
        noise = rng.random((2, 400)) < 0.3
        fresh = rng.random((2, 400))
        first, second = np.where(noise[0], fresh[0], common) < 0.30, np.where(noise[1], fresh[1], other) < 0.25
        ids = id_keys(range(400)), id_keys(range(400) if paired else range(400, 800))
        found = compare_estimates(estimate_share(first, ids[0], LEVEL), estimate_share(second, ids[1], LEVEL))
        missed += [found.lower > 0.05, found.upper < 0.05]
    assert (missed / draws <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / draws)).all(), missed / draws


def test_rows_matched_by_accident_change_nothing():
    """Two months whose rows are both numbered from 0: unrelated rows have unrelated influences."""
    rng = np.random.default_rng(3)
    first, second = rng.random(4000) < 0.3, rng.random(4000) < 0.3
    one = estimate_share(first, id_keys(range(4000)), LEVEL)
    numbered, apart = (
        compare_estimates(one, estimate_share(second, id_keys(ids), LEVEL)) for ids in (range(4000), range(4000, 8000))
    )
    assert (numbered.shared, apart.shared) == (4000, 0)
    assert numbered.lower == pytest.approx(apart.lower, abs=0.002)


@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8), st.sampled_from([0.95, 0.99]))
@settings(max_examples=40, deadline=None)
def test_the_reach_of_retrained_models_equals_its_slow_twin(values, level):
    shown = RetrainedEstimates(tuple(Estimate(v, 10, v - 0.1, v + 0.1, np.empty(0), id_keys([])) for v in values))
    following, change = naive_gate.retrained_bounds(values, [v + 0.1 for v in values], level)
    assert shown.bound_next(level) == pytest.approx(following, abs=1e-9)
    assert shown.bound_change(level) == pytest.approx(change, abs=1e-9)


def test_one_audit_cannot_tell_how_far_retrained_models_differ():
    alone = RetrainedEstimates((estimate_share(np.arange(50) < 10, id_keys(range(50)), LEVEL),))
    assert alone.bound_change(LEVEL) == 0.0 and alone.bound_next(LEVEL) == alone.estimates[0].upper


def test_prediction_bounds_hold_as_often_as_they_say():
    """Shares of retrained models scatter around 0.2; a new pair of them exceeds the bounds of five in 5% of draws."""
    rng, missed, draws = np.random.default_rng(11), np.zeros(2), 4000
    for _ in range(draws):
        *good, old, new = rng.normal(0.2, 0.03, 7)
        shown = RetrainedEstimates(tuple(Estimate(v, 10, v, v, np.empty(0), id_keys([])) for v in good))
        missed += [new > shown.bound_next(LEVEL), new - old > shown.bound_change(LEVEL)]
    assert missed / draws == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / draws))
