"""How far greedy paths are from the smallest failing sets, counted."""

import math

import numpy as np
import pandas as pd
import pytest

import fragility as fg
from fragility_paper.unit.searches import compare_searches


class PairModel:
    """Flips when 'b' and 'c' are both removed; 'a' has the largest one-step drop but never helps."""

    classes_ = np.array([0, 1])
    n_features_in_ = 3

    def predict_proba(self, X):
        a, b, c = np.asarray(X, dtype=float).T
        score = 2.0 + 0.5 * a - 4.0 * (1 - b) * (1 - c) + 1.0 * (1 - a) * (1 - b) * (1 - c)
        p = 1 / (1 + np.exp(-score))
        return np.column_stack([1 - p, p])


X = pd.DataFrame({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 0.0]}, index=["missed", "single"])


def search(**how):
    protocol = fg.Protocol.fit(PairModel(), X, baseline=[0.0, 0.0, 0.0])
    return fg.find_failing_sets(PairModel(), X, protocol, **how)


def test_diagnostics_of_a_missed_pair():
    found = compare_searches([3, 1], search(method="exact"), search(method="beam", width=3))
    assert (found.exact_match, found.greedy_over, found.mean_gap) == (0.5, 0.5, 0.5)
    assert (found.pair_miss, found.beam_improve) == (0.5, 0.5)
    assert (found.rows, found.exact_feasible, found.beam_rows) == (2, 2, 2)


def test_diagnostics_without_searches_are_undefined_and_counted():
    found = compare_searches([1, 2])
    assert found.exact_feasible == 0 and found.beam_rows == 0
    assert all(math.isnan(v) for v in (found.exact_match, found.greedy_over, found.mean_gap, found.beam_improve))
    assert found == compare_searches([1, 2]) and hash(found) == hash(compare_searches([1, 2]))


def test_searches_of_other_rows_or_of_a_smaller_depth_are_refused():
    shallow = search(max_size=2)
    with pytest.raises(fg.ProtocolError, match="has 2 rows, the greedy budgets 1"):
        compare_searches([1], beam=shallow)
    with pytest.raises(fg.ProtocolError, match="stopped at size 2"):
        compare_searches([9, 9], beam=shallow)
