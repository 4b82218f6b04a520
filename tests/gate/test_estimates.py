"""What the gate estimates equals its slow twins, and its bounds hold as often as they say."""

import naive_gate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fragility.base.ids import id_keys
from fragility.gate.estimates import (
    Estimate,
    RetrainedEstimates,
    compare_estimates,
    compare_retrained,
    estimate_auroc,
    estimate_mean,
    estimate_share,
)

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


def estimates_of(shares, rng, n=60):
    """One estimate per share, of n rows that are partly the same ones."""
    starts = [int(rng.integers(0, 30)) for _ in shares]
    found = [
        estimate_share(rng.random(n) < share, id_keys(range(s, s + n)), LEVEL)
        for share, s in zip(shares, starts, strict=True)
    ]
    plain = [
        (one.value, one.lower, one.upper, dict(zip(range(s, s + n), one.influence.tolist(), strict=True)))
        for one, s in zip(found, starts, strict=True)
    ]
    return RetrainedEstimates(tuple(found)), plain


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.sampled_from([0.95, 0.99]))
@settings(max_examples=40, deadline=None)
def test_retrained_models_are_compared_as_their_slow_twin_compares_them(seed, m, k, level):
    rng = np.random.default_rng(seed)
    (new, plain_new), (old, plain_old) = estimates_of(rng.random(m), rng), estimates_of(rng.random(k), rng)
    found = compare_retrained(new, old, level)
    ours, theirs = naive_gate.average(plain_new), naive_gate.average(plain_old)
    shared = ours[3].keys() & theirs[3].keys()
    lower, upper = naive_gate.difference_bounds(ours, theirs, shared)
    reach = naive_gate.reach_of_training(level, [one[0] for one in plain_new], [one[0] for one in plain_old])
    value = ours[0] - theirs[0]
    assert (found.value, found.shared) == (pytest.approx(value, abs=1e-12), len(shared))
    assert found.lower == pytest.approx(value - np.hypot(value - lower, reach), abs=1e-9)
    assert found.upper == pytest.approx(value + np.hypot(upper - value, reach), abs=1e-9)
    mean = new.bound_mean(level)
    alone = naive_gate.reach_of_training(level, [one[0] for one in plain_new])
    assert mean.lower == pytest.approx(max(ours[0] - np.hypot(ours[0] - ours[1], alone), 0.0), abs=1e-9)
    following = naive_gate.reach_of_training(level, [one[0] for one in plain_new], [0.3])
    assert new.bound_next(level) == pytest.approx(sum(one[2] for one in plain_new) / m + following, abs=1e-9)


def test_one_audit_on_each_side_is_compared_as_before():
    rng = np.random.default_rng(5)
    (new, _), (old, _) = estimates_of([0.3], rng), estimates_of([0.2], rng)
    assert compare_retrained(new, old, LEVEL) == compare_estimates(new.estimates[0], old.estimates[0])
    assert new.bound_next(LEVEL) == new.estimates[0].upper == new.bound_mean(LEVEL).upper


def test_audits_without_rows_for_a_measure_are_left_out():
    rng = np.random.default_rng(6)
    shown, _ = estimates_of([0.3, 0.4], rng)
    empty = estimate_share(np.empty(0, dtype=bool), id_keys([]), LEVEL)
    with_empty = RetrainedEstimates((*shown.estimates, empty))
    assert with_empty.bound_mean(LEVEL).lower == shown.bound_mean(LEVEL).lower
    nothing = RetrainedEstimates((empty, empty))
    assert np.isnan(nothing.bound_mean(LEVEL).value) and np.isnan(compare_retrained(nothing, shown, LEVEL).value)


@pytest.mark.parametrize(("m", "k"), [(5, 5), (3, 3), (1, 5), (5, 1)])
def test_the_bounds_of_retrained_models_hold_as_often_as_they_say(m, k):
    """Shares scatter around 0.2 by 0.03 from training to training, on 400 rows that all models share."""
    rng, missed, draws = np.random.default_rng(11), np.zeros(2), 800
    keys = id_keys(range(400))
    for _ in range(draws):
        ease = rng.random(400)  # rows that are easy for one model are easy for all
        sides = []
        for count in (m, k):
            shares = rng.normal(0.2, 0.03, count)
            holds = [np.where(rng.random(400) < 0.3, rng.random(400), ease) < share for share in shares]
            sides.append(RetrainedEstimates(tuple(estimate_share(one, keys, LEVEL) for one in holds)))
        found = compare_retrained(*sides, LEVEL)
        missed += [found.lower > 0.0, found.upper < 0.0]
    assert (missed / draws <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / draws)).all(), missed / draws


def test_the_bound_of_one_more_model_holds_as_often_as_it_says():
    rng, missed, draws = np.random.default_rng(11), 0, 4000
    for _ in range(draws):
        *good, new = rng.normal(0.2, 0.03, 6)
        shown = RetrainedEstimates(tuple(Estimate(v, 10, v, v, np.empty(0), id_keys([])) for v in good))
        missed += new > shown.bound_next(LEVEL)
    assert missed / draws == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / draws))
