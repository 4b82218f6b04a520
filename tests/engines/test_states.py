"""The states of a protocol: which are asked, and which follow from others."""

import pytest
from sklearn.linear_model import LogisticRegression

from fragility.engines.trace import TraceStates
from fragility.protocol import Protocol, bind


@pytest.fixture(scope="module")
def asked(credit):
    X, y = credit
    X = X[["duration", "credit_amount", "age", "existing_credits"]]
    model = LogisticRegression(max_iter=300).fit(X, y)

    def states(**settings) -> TraceStates:
        protocol = Protocol.fit(model, X, severities=(0.25, 0.5, 1.0), **settings)
        return TraceStates.of(protocol, bind(model, X[:2], protocol))

    return states


def test_widths_follow_the_operators(asked):
    states = asked(depth=2, operators=("attenuate_all", "attenuate_top1", "attenuate_top3"))
    assert states.widths == (4, 1, 3) and states.depth == 2 and states.n_groups == 4
    assert states.longest == 3, "attenuating every group needs no order"


def test_full_attenuation_is_a_removal_already_known(asked):
    assert asked(depth=2, operators=("attenuate_all", "attenuate_top2")).grid == [0.25, 0.5]


def test_full_attenuation_is_asked_where_the_path_is_too_short(asked):
    states = asked(depth=2, operators=("attenuate_top1", "attenuate_top3"))
    assert [states.on_path(width) for width in states.widths] == [True, False]
    assert [states.removal_known(width) for width in (1, 2, 3, 4)] == [True, True, False, True]
    assert states.grid == [0.25, 0.5, 1.0]
