"""The formulas, against their slow twins and the identities their docstrings state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive import (
    naive_collapse,
    naive_common_loss,
    naive_current_margin,
    naive_exposure,
    naive_fds,
    naive_order,
    naive_predicted_class,
    naive_pseudo_logits,
    naive_smoothed,
    naive_state_prediction,
    naive_support_margin,
)

from fragility import scores
from fragility.models import Decision

RESOLUTION = 1e-6

weight = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1e-300, 1e-13, 0.5, 1.0 - 1e-16]))


@st.composite
def probability_vectors(draw: st.DrawFn) -> np.ndarray:
    values = np.array(draw(st.lists(weight, min_size=2, max_size=6)))
    return values / values.sum() if values.sum() > 0 else np.full(len(values), 1.0 / len(values))


@given(probability_vectors(), st.data())
@settings(max_examples=300, deadline=None)
def test_margins_and_predictions_equal_the_slow_twins(p: np.ndarray, data: st.DataObject) -> None:
    original = data.draw(st.integers(0, len(p) - 1))
    np.testing.assert_allclose(scores.pseudo_logits(p), naive_pseudo_logits(p), rtol=1e-12, atol=1e-12)
    assert scores.support_margin(p, original) == pytest.approx(naive_support_margin(p, original), rel=1e-9, abs=1e-12)
    assert scores.current_margin(p) == pytest.approx(naive_current_margin(p), rel=1e-9, abs=1e-12)
    z = sorted(naive_pseudo_logits(p))
    gaps = [abs(abs(a - b) - RESOLUTION) for a in z for b in z]
    if min(gaps) > 1e-12:  # at the edge of the resolution itself rounding may decide
        assert scores.predicted_class(p, RESOLUTION) == naive_predicted_class(p, RESOLUTION)
        assert scores.state_prediction(p, original, RESOLUTION) == naive_state_prediction(p, original, RESOLUTION)


@given(probability_vectors(), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_clipped_and_smoothed_probabilities_sum_to_one(p: np.ndarray, smoothing: float) -> None:
    clipped = scores.clipped_probabilities(p)
    assert clipped.sum() == pytest.approx(1.0) and clipped.min() >= 1e-12 * (1 - 1e-9)
    smoothed = scores.smoothed_probabilities(p, smoothing)
    np.testing.assert_allclose(smoothed, naive_smoothed(p, smoothing), rtol=1e-12)
    assert smoothed.sum() == pytest.approx(1.0)


@given(probability_vectors())
@settings(max_examples=100, deadline=None)
def test_pseudo_logits_sum_to_zero_and_ignore_a_common_factor(p: np.ndarray) -> None:
    z = scores.pseudo_logits(p)
    assert abs(z.sum()) < 1e-9
    if (p > 1e-9).all():
        np.testing.assert_allclose(scores.pseudo_logits(p * 0.5), z, atol=1e-12)


def test_certain_predictions_have_finite_margins() -> None:
    p = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    m = scores.support_margin(p, np.array([0, 0, 0]))
    assert m[0] == pytest.approx(-math.log(1e-12))
    assert m[1] == pytest.approx(math.log(1e-12))
    assert m[2] == 0.0


def test_broadcasts_over_states_of_a_row() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=(5, 3))
    original = rng.integers(0, 4, size=5)
    m = scores.support_margin(p, original[:, None])
    assert m.shape == (5, 3)
    for i in range(5):
        for s in range(3):
            assert m[i, s] == pytest.approx(naive_support_margin(p[i, s], original[i]), rel=1e-12)


def test_a_tie_is_not_a_flip_and_goes_to_the_class_declared_first() -> None:
    assert scores.predicted_class(np.array([0.5, 0.5]), RESOLUTION) == 0
    assert scores.predicted_class(np.array([0.5 - 1e-9, 0.5 + 1e-9]), RESOLUTION) == 0
    assert scores.predicted_class(np.array([0.2, 0.4, 0.4]), RESOLUTION) == 1
    for original in (0, 1):
        assert scores.state_prediction(np.array([0.5, 0.5]), original, RESOLUTION) == original
    behind = np.array([0.500001, 0.499999])
    lost_by = -float(scores.support_margin(behind, 1))
    assert scores.state_prediction(behind, 1, lost_by) == 1  # by the resolution itself: not more than it
    assert scores.state_prediction(behind, 1, np.nextafter(lost_by, 0.0)) == 0
    just_inside, just_outside = 0.9e-6, 1.1e-6
    for gap, expected in ((just_inside, 1), (just_outside, 0)):
        p = np.array([1 / (1 + math.exp(-gap)), 1 / (1 + math.exp(gap))])
        assert scores.state_prediction(p, 1, RESOLUTION) == expected
        assert scores.predicted_class(p[::-1], RESOLUTION) == 1 - expected  # the second class leads by as much


drops = st.lists(
    st.one_of(st.floats(-5, 5), st.sampled_from([0.0, 1e-7, -1e-7, 1.0, 1.0 + 4e-7])), min_size=1, max_size=12
)


@given(drops)
@settings(max_examples=200, deadline=None)
def test_removal_order_equals_the_slow_twin(values: list[float]) -> None:
    assert scores.removal_order(np.array([values]), RESOLUTION)[0].tolist() == naive_order(values, RESOLUTION)


def test_drops_that_differ_by_rounding_noise_keep_declared_order() -> None:
    noisy = np.array([[0.3, 0.7 - 1e-13, 0.7, 0.7 + 1e-13, 0.0, -0.0, -1e-15]])
    assert scores.removal_order(noisy, RESOLUTION)[0].tolist() == [1, 2, 3, 0, 4, 5, 6]


@given(st.floats(-1e-6, 30), st.lists(st.floats(-30, 30), min_size=1, max_size=10), st.sampled_from(scores.READINGS))
@example(-5e-7, [-1.0, 1.0], "support")  # a class that lags by rounding is still the model's decision
@settings(max_examples=300, deadline=None)
def test_collapse_equals_the_slow_twin_and_is_bounded(margin: float, path: list[float], reading: str) -> None:
    if reading == "current":
        margin, path = abs(margin), [abs(m) for m in path]
    c = scores.collapse(np.array([margin]), np.array([[margin, *path]]), reading)
    expected = [0.0] + [naive_collapse(margin, m, reading) for m in path]
    np.testing.assert_allclose(c[0], expected, rtol=1e-12)
    area = scores.rcma(c)[0]
    assert area == pytest.approx(math.fsum(expected) / (len(path) + 1), rel=1e-12)
    assert area >= 0.0
    if reading in ("support", "current"):
        assert area <= 1.0


@given(st.floats(-1e-6, 30), st.lists(st.floats(-30, 60), min_size=1, max_size=10), st.data())
@example(2.0, [3.0, 1.0], None)
@settings(max_examples=300, deadline=None)
def test_losses_equal_the_slow_twins(margin: float, values: list[float], data: st.DataObject | None) -> None:
    """Margins that grow when evidence fades, or goes, lose nothing: not less than nothing."""
    drops = [margin - value for value in values]
    independent = math.fsum(max(0.0, drop) for drop in drops) / (abs(margin) + 1e-8)
    assert scores.independent_loss(np.array([margin]), np.array([drops]))[0] == pytest.approx(independent, rel=1e-9)
    flips_at = len(values) if data is None else data.draw(st.integers(0, len(values)))
    grid = np.arange(1, len(values) + 1) / len(values)
    threshold = grid[flips_at] if flips_at < len(values) else math.inf
    fading = np.where(np.arange(len(values)) < flips_at, values, math.nan)
    found = scores.common_loss(np.array([margin]), fading[None], np.array([threshold]), grid)[0]
    assert found == pytest.approx(naive_common_loss(margin, values[:flips_at], len(values)), rel=1e-9, abs=1e-12)


@given(
    st.floats(0, 1),
    st.floats(0, 20),
    st.one_of(st.none(), st.floats(0, 1)),
    st.floats(0, 1),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 1), st.floats(0, 1)),
)
@settings(max_examples=200, deadline=None)
def test_exposure_equals_the_slow_twin(targeted, independent, common, random, weights) -> None:
    known = math.nan if common is None else common
    found = scores.exposure(*(np.array([loss]) for loss in (targeted, independent, known, random)), weights)[0]
    expected = naive_exposure(targeted, independent, common, random, weights)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_rows_whose_margin_is_zero_have_finite_collapse() -> None:
    c = scores.collapse(np.zeros(1), np.array([[0.0, -1.0, 0.0]]), "support")
    assert c.tolist() == [[0.0, 1.0, 0.0]]
    c = scores.collapse(np.zeros(1), np.array([[0.0, -1.0, 0.0]]), "support_unbounded")
    assert c[0, 1] == pytest.approx(1e8)


@given(st.lists(st.booleans(), min_size=1, max_size=10))
def test_flip_budget_is_the_first_flip(flips: list[bool]) -> None:
    expected = flips.index(True) + 1 if True in flips else len(flips) + 1
    assert scores.flip_budget(np.array([[False, *flips]])).tolist() == [expected]


terms = st.tuples(
    st.floats(0, 1), st.integers(1, 16), st.lists(st.sampled_from([0.1, 0.3, 0.7, 1.0, math.inf]), max_size=3)
)


def _fds(area: float, budget: int, thresholds: list[float], weights: tuple[float, float, float]) -> float:
    array = np.array([thresholds], dtype=float).reshape(1, len(thresholds))
    return float(scores.fds(np.array([area]), np.array([budget]), array, weights)[0])


@given(terms, st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)))
@settings(max_examples=200, deadline=None)
def test_fds_equals_the_slow_twin_and_lies_in_the_unit_interval(term, weights) -> None:
    value = _fds(*term, weights)
    assert value == pytest.approx(naive_fds(*term, weights), rel=1e-9, abs=1e-15)
    assert 0.0 <= value < 1.0


@given(terms, st.floats(0.01, 1))
@settings(max_examples=200, deadline=None)
def test_fds_increases_in_each_term(term, step: float) -> None:
    area, budget, thresholds = term
    w = (1 / 3, 1 / 3, 1 / 3)
    value = _fds(area, budget, thresholds, w)
    assert _fds(area + step, budget, thresholds, w) > value
    assert _fds(area, budget + 1, thresholds, w) < value
    for i, threshold in enumerate(thresholds):
        if math.isinf(threshold):
            earlier = [*thresholds[:i], 1.0, *thresholds[i + 1 :]]
        else:
            earlier = [*thresholds[:i], threshold * 0.9, *thresholds[i + 1 :]]
        assert _fds(area, budget, earlier, w) > value


def test_no_flip_under_an_operator_contributes_nothing() -> None:
    w = (0.0, 0.0, 1.0)
    assert _fds(0.3, 2, [math.inf, math.inf], w) == 0.0
    assert _fds(0.3, 2, [], w) == 0.0
    assert _fds(0.3, 2, [0.5, math.inf], w) == pytest.approx(1 - math.exp(-0.5 / (0.5 + 1e-8)))


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_flip_threshold_is_the_smallest_grid_value_that_flips(flips: list[bool]) -> None:
    grid = np.array([0.25, 0.5, 1.0])
    expected = grid[flips.index(True)] if True in flips else math.inf
    assert scores.flip_threshold(grid, np.array([flips])).tolist() == [expected]


@given(st.floats(-40, 40))
def test_logistic_link_keeps_digits_on_both_sides(score: float) -> None:
    p = scores.sigmoid_probabilities(np.array([score]))[0]
    assert p[1] == pytest.approx(1 / (1 + math.exp(-score)), rel=1e-13)
    assert p[0] == pytest.approx(1 / (1 + math.exp(score)), rel=1e-13)
    if abs(score) < 27:  # beyond, the clip at 1e-12 takes over
        assert scores.support_margin(p, 1) == pytest.approx(score, rel=1e-9, abs=1e-12)


def test_links_survive_enormous_scores() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        p = scores.softmax_probabilities(np.array([[1e4, -1e4, 0.0]]))
    assert p.tolist() == [[1.0, 0.0, 0.0]]
    p = scores.sigmoid_probabilities(np.array([1e4, -1e4]))
    assert p.tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("t", [1e-9, 0.2, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("c", [0, 1])
def test_a_thresholds_offset_makes_its_class_lead_exactly_where_it_is_reached(c, t):
    offset = Decision(("no", "yes")[c], t).offset(("no", "yes"))
    for own in (0.0, 1e-15, t * (1 - 1e-5), t * (1 - 1e-5) + 3e-5 * (1 - t) * t, 0.47, 1.0):
        p = [own, 1.0 - own] if c == 0 else [1.0 - own, own]
        for original in (0, 1):
            expected = naive_support_margin(p, original, (c, t))
            assert scores.support_margin(p, original, offset) == pytest.approx(expected, rel=1e-9, abs=1e-9)
            expected = naive_state_prediction(p, original, RESOLUTION, (c, t))
            assert scores.state_prediction(p, original, RESOLUTION, offset) == expected
        assert scores.current_margin(p, offset) == pytest.approx(naive_current_margin(p, (c, t)), rel=1e-9, abs=1e-9)
        assert (scores.predicted_class(p, RESOLUTION, offset) == c) == (own >= t)


@pytest.mark.parametrize("terms", [1, 7, 11, 54, 200])
def test_a_rows_sums_depend_neither_on_the_other_rows_nor_on_how_arrays_lie_in_memory(terms: int) -> None:
    rng = np.random.default_rng(terms)
    margin, wide = rng.normal(size=40), rng.normal(size=(40, terms))
    severities, threshold = np.linspace(0.01, 1.0, terms), rng.choice([0.3, 0.7, np.inf], 40)

    def found_for(rows: slice, order: str) -> list[np.ndarray]:
        m, values = margin[rows], np.array(wide[rows], order=order)
        return [
            scores.rcma(values),
            scores.independent_loss(m, values),
            scores.common_loss(m, values, threshold[rows], severities),
            scores.random_loss(m, values, values[:, 0]),
            scores.degradation_risk(np.abs(values)),
        ]

    together = found_for(slice(None), "C")
    for order in ("C", "F"):
        for found, expected in zip(found_for(slice(None), order), together, strict=True):
            np.testing.assert_array_equal(found, expected)
        for i in range(40):
            for found, expected in zip(found_for(slice(i, i + 1), order), together, strict=True):
                assert found[0] == expected[i]


@pytest.mark.parametrize("depth", [1, 10, 126, 127, 128, 300])
def test_flip_budgets_of_any_depth(depth: int) -> None:
    rng = np.random.default_rng(depth)
    flipped = rng.random((50, depth + 1)) < 2.0 / depth
    expected = [next((k for k in range(1, depth + 1) if row[k]), depth + 1) for row in flipped]
    assert scores.flip_budget(flipped).tolist() == expected
    assert scores.flip_budget(np.asfortranarray(flipped)).tolist() == expected
