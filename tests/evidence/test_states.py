"""States said by what they move: their cells are the rule's own, and the model is asked a bounded number at a time."""

import numpy as np
import pipelines
import pytest
from naive import naive_cell

import fragility as fg
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows, States
from fragility.protocol import bind


@pytest.fixture(scope="module", params=[("logistic", "transformed"), ("lightgbm", "raw")], ids="-".join)
def rows(request) -> EvidenceRows:
    """Numbers alone, and numbers with categories that only jump and cells that are missing."""
    family, space = request.param
    case = pipelines.fitted("credit_g", family, space)
    return bind(case.model, case.X_test[:6], fg.Protocol.fit(case.model, case.X_train, space=space))


def ragged(rows: EvidenceRows, by_column: bool, severity: object) -> States:
    """States of the first six rows: none of the third, and another number of each of the others."""
    draws = np.random.default_rng(1)
    owner = np.repeat(np.arange(6), [3, 1, 0, 7, 2, 5])
    moved = draws.random((len(owner), rows.width if by_column else rows.n_groups)) < 0.4
    if severity == "by state":
        severity = draws.choice([0.0, 0.3, 0.5, 0.8, 1.0], len(owner))
    elif severity == "by unit":
        severity = draws.random(moved.shape)
    return States(owner, moved, severity, by_column)


@pytest.mark.parametrize("by_column", [False, True], ids=["groups", "columns"])
@pytest.mark.parametrize("severity", [None, "by state", "by unit"])
def test_cells_follow_the_rule_one_by_one(rows, by_column, severity):
    states = ragged(rows, by_column, severity)
    x = rows.dense()
    cells = rows.stressed(x, states)
    for i, owner in enumerate(states.owner):
        for j, group in enumerate(rows.column_group):
            unit = j if by_column else group
            by = severity_of(states, i, unit)
            np.testing.assert_equal(cells[i, j], naive_cell(x[owner, j], rows.baseline[j], by, rows.stepwise[j]))


def severity_of(states: States, i: int, unit: int) -> float:
    if not states.moved[i, unit]:
        return 0.0
    if states.severity is None:
        return 1.0
    return float(states.severity[i] if states.severity.ndim == 1 else states.severity[i, unit])


def test_no_answer_depends_on_the_byte_budget(rows):
    x, states = rows.dense(), ragged(rows, False, None)
    model = ModelOracle(rows)
    whole, tiny = model.answer_states(x, states), model.answer_states(x, states, byte_budget=1)
    np.testing.assert_allclose(tiny, whole, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(whole, rows.predict(rows.stressed(x, states)))
    assert model.answer_states(x, states.between(0, 0)).shape == (0, 2)


def test_states_of_rows_that_have_as_many_each(rows):
    moved = np.random.default_rng(0).random((6, 4, rows.n_groups)) < 0.5
    states = States.removals(moved)
    assert states.owner.tolist() == [i for i in range(6) for _ in range(4)] and len(states) == 24
    one = States.of_one(moved[2])
    x = rows.dense()
    np.testing.assert_array_equal(rows.stressed(x[2:3], one), rows.stressed(x, states)[8:12])
    np.testing.assert_array_equal(rows.stressed(x, States.unmoved(6, rows.n_groups)), x)
