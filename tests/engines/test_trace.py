"""Traces in pieces."""

import numpy as np
import pytest
from pipelines import fitted

from fragility.engines.blackbox import trace_blackbox
from fragility.engines.trace import Trace, original_confidence
from fragility.protocol import Protocol, bind


@pytest.fixture(scope="module")
def whole() -> Trace:
    case = fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    return trace_blackbox(bind(case.model, case.X_test[:30], protocol), protocol)


def test_pieces_joined_are_the_whole(whole):
    joined = Trace.join([whole.rows(slice(0, 11)), whole.rows(slice(11, 30))])
    for name in Trace.arrays():
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert joined.evaluations == 2 * whole.evaluations and joined.engine == "blackbox"


def test_a_slice_of_rows_shares_memory_and_a_choice_does_not(whole):
    assert np.shares_memory(whole.rows(slice(3, 9)).margin, whole.margin)
    chosen = whole.rows(np.array([5, 2, 5]))
    np.testing.assert_array_equal(chosen.path_margin, whole.path_margin[[5, 2, 5]])
    assert not np.shares_memory(chosen.margin, whole.margin)


def test_confidence_is_that_of_the_original_class():
    p = np.arange(12.0).reshape(2, 2, 3)
    np.testing.assert_array_equal(original_confidence(p, np.array([[2], [0]])), [[2, 5], [6, 9]])
