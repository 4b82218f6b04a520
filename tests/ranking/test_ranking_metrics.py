"""Ranking metrics: equal to scikit-learn, to hand-computed values and to their slow twins."""

import math

import naive_ranking
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    roc_auc_score,
)

from fragility.analysis.ranking import metrics
from fragility.base.errors import DataError

NAN = math.nan


ranked_rows = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)


@given(ranked_rows, st.sampled_from([0.05, 0.1, 0.2, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_metrics_equal_their_slow_twins_with_ties(rows, budget):
    scores, positive = [float(s) for s, _ in rows], [b for _, b in rows]
    assert metrics.auroc(scores, positive) == pytest.approx(naive_ranking.naive_auroc(scores, positive), nan_ok=True)
    assert metrics.capture_at(scores, positive, budget) == pytest.approx(
        naive_ranking.naive_capture(scores, positive, budget), nan_ok=True
    )
    assert metrics.aurc(scores, positive) == pytest.approx(naive_ranking.naive_aurc(scores, positive), nan_ok=True)


def test_auroc_equals_scikit_learn_with_ties():
    generator = np.random.default_rng(0)
    for _ in range(20):
        scores, positive = generator.integers(0, 8, 60), generator.random(60) < 0.3
        assert metrics.auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def test_metrics_by_hand():
    scores, brittle = [5, 4, 3, 2, 1], [1, 0, 1, 0, 0]
    assert metrics.auroc(scores, brittle) == pytest.approx(5 / 6)
    assert metrics.capture_at(scores, brittle, 0.2) == 0.5
    assert metrics.capture_at(scores, brittle, 0.6) == 1.0
    assert metrics.residual_risk(scores, brittle) == pytest.approx([2 / 5, 1 / 4, 1 / 3, 0, 0])
    assert metrics.aurc(scores, brittle) == pytest.approx((2 / 5 + 1 / 4 + 1 / 3) / 5)
    assert metrics.false_confidence_captured(scores, brittle, [0, 1, 1, 1, 0], 0.2) == 0.0
    assert metrics.false_confidence_captured(scores, brittle, [1, 0, 0, 0, 0], 0.2) == 1.0


def test_a_budget_of_ten_percent_of_thirty_rows_is_three_rows():
    scores = np.arange(30)[::-1]
    assert metrics.capture_at(scores, np.arange(30) < 4, 0.1) == pytest.approx(3 / 4)
    assert metrics.capture_at(scores[:21], np.arange(21) < 4, 0.1) == pytest.approx(3 / 4)  # 2.1 rows: three


def test_turning_a_score_round_mirrors_its_auroc():
    scores, brittle = np.array([1.0, 2, 2, 3, 5]), np.array([0, 1, 0, 1, 0], dtype=bool)
    assert metrics.auroc(-scores, brittle) == pytest.approx(1 - metrics.auroc(scores, brittle))


@pytest.mark.parametrize("function", [metrics.auroc, metrics.aurc])
def test_undefined_is_nan(function):
    assert math.isnan(function([1.0, 2.0], [False, False]))
    assert math.isnan(function([], []))
    assert math.isnan(function([NAN, NAN], [True, False]))


def test_all_brittle_has_captures_but_no_auroc():
    assert math.isnan(metrics.auroc([1.0, 2.0], [True, True]))
    assert metrics.capture_at([1.0, 2.0], [True, True], 0.5) == 0.5
    assert metrics.aurc([1.0, 2.0], [True, True]) == 1.0


def test_missing_scores_are_left_out():
    assert metrics.auroc([1.0, NAN, 2.0], [False, False, True]) == 1.0


@pytest.mark.parametrize(
    ("scores", "brittle", "state"),
    [
        ([], [], metrics.NO_ROWS),
        ([NAN], [True], metrics.NO_SCORE),
        ([1.0, 2.0], [False, False], metrics.NO_BRITTLE),
        ([1.0, NAN], [True, False], metrics.ALL_BRITTLE),
        ([1.0, 2.0], [True, False], metrics.DEFINED),
    ],
)
def test_states_say_why(scores, brittle, state):
    assert metrics.ranking_state(np.asarray(scores, dtype=float), np.asarray(brittle, dtype=bool)) == state


def test_wrong_shapes_and_budgets_are_refused():
    with pytest.raises(DataError, match="one value per row"):
        metrics.auroc([1.0], [True, False])
    with pytest.raises(DataError, match=r"a share in \(0, 1\], got 20"):
        metrics.capture_at([1.0], [True], 20)


def test_better_direction():
    assert metrics.better_direction([1, 2, 3], [0, 0, 1]) == 1
    assert metrics.better_direction([1, 2, 3], [1, 0, 0]) == -1
    assert metrics.better_direction([1, 1], [1, 0], fallback=-1) == -1
    assert metrics.better_direction([1, 2], [0, 0], fallback=-1) == -1
