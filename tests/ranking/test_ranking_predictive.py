"""Probability metrics against scikit-learn and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    roc_auc_score,
)

from fragility.analysis.ranking.metrics import (
    brier_score,
    class_codes,
    expected_calibration_error,
    negative_log_likelihood,
    predictive_metrics,
    reliability_curve,
)
from fragility.base.errors import DataError


def random_case(seed: int, n: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(n_classes, 0.5), size=n), rng.integers(0, n_classes, size=n)


def slow_ece(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        members = [i for i in range(len(y)) if low < p[i].max() <= high]
        if members:
            accuracy = np.mean([p[i].argmax() == y[i] for i in members])
            confidence = np.mean([p[i].max() for i in members])
            total += len(members) / len(y) * abs(accuracy - confidence)
    return total


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(2, 5), st.integers(1, 20))
def test_ece_equals_the_definition(seed, n, n_classes, bins):
    p, y = random_case(seed, n, n_classes)
    assert expected_calibration_error(p, y, bins) == pytest.approx(slow_ece(p, y, bins), abs=1e-12)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_brier_and_nll_equal_scikit_learn(n_classes):
    p, y = random_case(3, 200, n_classes)
    labels = list(range(n_classes))
    assert brier_score(p, y) == pytest.approx(
        brier_score_loss(y, p[:, 1] if n_classes == 2 else p, labels=labels), abs=1e-12
    )
    assert negative_log_likelihood(p, y) == pytest.approx(log_loss(y, p, labels=labels), rel=1e-9)


def test_brier_full_sum_is_twice_the_halved_one_for_two_classes():
    p, y = random_case(5, 50, 2)
    full = np.mean(np.sum((p - np.eye(2)[y]) ** 2, axis=1))
    assert full == pytest.approx(2 * brier_score(p, y))


def test_perfectly_calibrated_bins_have_no_error():
    p = np.tile([0.75, 0.25], (4, 1))
    assert expected_calibration_error(p, np.array([0, 0, 0, 1])) == pytest.approx(0.0)


def test_a_sure_and_right_model_has_zero_brier_and_nll():
    p = np.eye(3)
    y = np.arange(3)
    assert brier_score(p, y) == 0.0
    assert negative_log_likelihood(p, y) == 0.0
    assert expected_calibration_error(p, y) == 0.0


def test_nll_of_a_sure_and_wrong_model_is_the_clip():
    assert negative_log_likelihood([[1.0, 0.0]], [1]) == pytest.approx(-np.log(1e-12))


def test_bin_edges_are_closed_on_the_right():
    curve = reliability_curve([[0.5, 0.5], [0.6, 0.4]], [0, 0], bins=2)
    assert curve.count.tolist() == [1, 1]


def test_empty_bins_are_counted_and_nan():
    curve = reliability_curve([[0.9, 0.1]], [0], bins=3)
    assert curve.count.tolist() == [0, 0, 1]
    assert np.isnan(curve.accuracy[:2]).all()


@pytest.mark.parametrize(
    ("y", "classes", "codes"),
    [
        (["b", "a"], ["a", "b"], [1, 0]),
        (np.array([True, False]), (False, True), [1, 0]),
        (np.array([1.0, 5.0]), np.array([5, 1]), [1, 0]),
    ],
)
def test_class_codes_follow_the_declared_order(y, classes, codes):
    assert class_codes(y, classes).tolist() == codes


def test_class_codes_name_unknown_labels():
    with pytest.raises(DataError, match=r"y holds 'c', not among the model's classes \['a', 'b'\]"):
        class_codes(["a", "c"], ["a", "b"])


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        ([0.1, 0.9], [0, 1], "probabilities must be"),
        ([[0.1, 0.9]], [0, 1], "one entry for each of the 1 rows"),
        ([[0.1, 0.9]], ["a"], "use class_codes"),
        ([[0.1, 0.9]], [2], r"must lie in 0\.\.1"),
        ([[0.1, 0.2]], [1], "sum to 1"),
        ([[np.nan, 1.0]], [1], "must be finite"),
    ],
)
def test_bad_input_is_refused_with_a_reason(p, y, message):
    with pytest.raises(DataError, match=message):
        negative_log_likelihood(p, y)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_predictive_metrics_equal_scikit_learn(n_classes):
    generator = np.random.default_rng(1)
    p, y = generator.dirichlet(np.ones(n_classes), 300), generator.integers(0, n_classes, 300)
    found = predictive_metrics(p, y)
    assert found.rows == 300
    assert found.accuracy == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert found.macro_f1 == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    assert found.nll == pytest.approx(log_loss(y, p))
    if n_classes == 2:
        assert found.auroc == pytest.approx(roc_auc_score(y, p[:, 1]))
        assert found.average_precision == pytest.approx(average_precision_score(y, p[:, 1]))
        assert found.brier == pytest.approx(brier_score_loss(y, p[:, 1]))
    else:
        assert found.auroc == pytest.approx(roc_auc_score(y, p, multi_class="ovr", average="macro"))
        one_hot = np.eye(n_classes)[y]
        assert found.average_precision == pytest.approx(average_precision_score(one_hot, p, average="macro"))
    absent = predictive_metrics(p, np.zeros(300, dtype=int))
    assert math.isnan(absent.auroc) and math.isnan(absent.average_precision)
