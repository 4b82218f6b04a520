"""Failure probabilities where a field may be lost or wrong: what enumerating every combination of failures says."""

import math

import numpy as np
import pandas as pd
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_modes import frequencies, mid_quantiles
from naive_reliability import naive_failures
from small_audits import FIELDS, WEIGHTS, declared_model, whole_numbers

import fragility as fg
from fragility.base.errors import DataError, ProtocolError
from fragility.questions.reliability.sampling import DrawnSubsets

TRAIN, ROWS = whole_numbers(50, 0).to_numpy(), whole_numbers(6, 3).to_numpy()
NAMES = tuple(f"x{i}" for i in range(len(FIELDS)))
MODEL = declared_model()
PROTOCOL = fg.Protocol.fit(MODEL, TRAIN, catalogue=3, baseline="mean")
SHARES = st.floats(0.0, 0.5, allow_subnormal=False)  # two of them add up to 1 at most
ABOVE_ZERO = st.floats(0.01, 0.5)


def probabilities(row):
    """Of the declared model, by its formula."""
    score = sum(weight * value for weight, value in zip(WEIGHTS[2][0], row.values(), strict=True))
    p = 1.0 / (1.0 + math.exp(-score))
    return [1.0 - p, p]


def ways(name, lost, wrong):
    """How a field of the training rows fails."""
    j = NAMES.index(name)
    values = mid_quantiles(TRAIN[:, j].tolist(), 3)
    found = [({name: float(np.mean(TRAIN[:, j]))}, lost)] if lost else []
    return found + [({name: value}, wrong * weight) for value, weight in values.items() if wrong]


def twin(row, rates):
    groups = [ways(name, own.get("lost", 0.0), own.get("wrong", 0.0)) for name, own in rates.items()]
    return naive_failures(probabilities, dict(zip(NAMES, row, strict=True)), groups, PROTOCOL.resolution)


@settings(deadline=None, max_examples=12)
@given(st.tuples(SHARES, ABOVE_ZERO, ABOVE_ZERO, SHARES, st.floats(0.01, 1.0)))
def test_few_failing_fields_are_enumerated(shares):
    rates = {
        "x1": {"lost": shares[0], "wrong": shares[1]},
        "x0": {"lost": shares[2], "wrong": shares[3]},
        "x4": {"wrong": shares[4]},
    }
    found = fg.assess_reliability(MODEL, ROWS, PROTOCOL, rates)
    assert found.exact.all() and set(found.method) == {"enumeration"}
    places = [NAMES.index(name) for name in rates]
    for i, row in enumerate(ROWS.tolist()):
        own = twin(row, rates)
        assert found.p_flip[i] == pytest.approx(own["p_flip"], abs=1e-12)
        assert found.one_failure[i] == pytest.approx(own["one_failure"], abs=1e-12)
        np.testing.assert_allclose(found.importance[i, places], own["importance"], atol=1e-12)
    total = np.array([sum(own.values()) for own in rates.values()])
    np.testing.assert_allclose(found.kept[:, places], total * found.importance[:, places])
    never = [g for g in range(len(NAMES)) if g not in places]
    assert np.isnan(found.importance[:, never]).all() and not found.kept[:, never].any()
    assert (found.one_failure <= found.p_flip + 1e-12).all()


@settings(deadline=None, max_examples=12)
@given(st.dictionaries(st.sampled_from(NAMES), st.floats(0.0, 1.0), min_size=1))
def test_without_wrong_values_it_is_the_probability_of_loss(rates):
    plain = fg.assess_reliability(MODEL, ROWS, PROTOCOL, rates)
    found = fg.assess_reliability(
        MODEL, ROWS, PROTOCOL, {name: {"lost": rate, "wrong": 0.0} for name, rate in rates.items()}
    )
    for name in ("p_flip", "low", "high", "exact", "expected_margin", "importance", "kept", "rates"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    assert found.method == plain.method and plain.one_failure is None
    mixed = fg.assess_reliability(MODEL, ROWS, PROTOCOL, {**rates, "x0": {"lost": rates.get("x0", 0.0)}})
    np.testing.assert_array_equal(mixed.p_flip, plain.p_flip)


def test_many_failing_fields_are_drawn_around_the_exact_part():
    rates = {name: {"lost": 0.1, "wrong": 0.15} for name in NAMES}
    found = fg.assess_reliability(MODEL, ROWS, PROTOCOL, rates)
    assert not found.exact.any() and set(found.method) == {"quasi-random"}
    several = 1 - 0.75**6 - 6 * 0.25 * 0.75**5
    for i, row in enumerate(ROWS.tolist()):
        own = twin(row, rates)
        assert found.one_failure[i] == pytest.approx(own["one_failure"], abs=1e-12)
        assert found.p_flip[i] == pytest.approx(own["p_flip"], abs=0.01)
        np.testing.assert_allclose(found.importance[i], own["importance"], atol=0.06)
        assert found.low[i] - 0.003 <= own["p_flip"] <= found.high[i] + 0.003
    assert (found.one_failure <= found.low).all() and (found.low <= found.p_flip).all()
    assert (found.p_flip <= found.high).all() and (found.high <= found.one_failure + several + 1e-12).all()
    again = fg.assess_reliability(MODEL, ROWS[::-1], PROTOCOL, rates, byte_budget=2**16)
    np.testing.assert_allclose(again.p_flip[::-1], found.p_flip, atol=1e-12)


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("family", "space"), [("lightgbm", "raw"), ("logistic", "transformed"), ("random_forest", "transformed")]
)
def test_real_models_are_asked_for_every_combination(family, space):
    case = pipelines.fitted("credit_g", family, space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=4)
    rates = {"checking_status": {"wrong": 0.2, "lost": 0.1}, "credit_amount": {"wrong": 0.05}, "age": {"wrong": 0.3}}
    X = case.X_test[:2]
    found, asked = (
        fg.assess_reliability(case.model, X, protocol, rates, engine=engine) for engine in ("auto", "blackbox")
    )
    np.testing.assert_allclose(found.p_flip, asked.p_flip, atol=1e-12)
    raw = protocol if space == "raw" else fg.Protocol.fit(case.model, case.X_train, space="raw")
    baseline = {column.name: column.baseline for column in raw.columns}
    groups = []
    for name, own in rates.items():
        values = case.X_train[name].astype(object).tolist()
        numeric = pd.api.types.is_numeric_dtype(case.X_train[name])
        weights = mid_quantiles(values, 4) if numeric else frequencies(values, 4)
        lost = [({name: baseline[name]}, own["lost"])] if "lost" in own else []
        groups.append(lost + [({name: value}, own["wrong"] * weight) for value, weight in weights.items()])
    for i in range(len(X)):
        row = dict(X.astype(object).iloc[i])
        own = naive_failures(
            lambda r: case.model.predict_proba(pipelines.raw_row_table(case, list(r.values())))[0],
            row,
            groups,
            protocol.resolution,
        )
        assert found.p_flip[i] == pytest.approx(own["p_flip"], abs=1e-9)
        assert found.one_failure[i] == pytest.approx(own["one_failure"], abs=1e-9)


@pytest.mark.parametrize(
    ("rates", "error", "message"),
    [
        ({"x0": {"lost": 0.6, "wrong": 0.6}}, DataError, "the rates of 'x0' add up to 1.2; lost and wrong exclude"),
        ({"x0": {"noisy": 0.1}}, DataError, "the rates of 'x0' must be by mode, lost or wrong, got 'noisy'"),
        ({"x0": {}}, DataError, "must be by mode, lost or wrong, got none"),
        ({"x0": {"wrong": 1.5}}, DataError, "the rate of 'x0' must be a number from 0 to 1, got 1.5"),
        ({"x9": {"wrong": 0.1}}, DataError, "neither a group nor a field"),
    ],
)
def test_wrong_rates_are_refused(rates, error, message):
    with pytest.raises(error, match=message):
        fg.assess_reliability(MODEL, ROWS, PROTOCOL, rates)


def test_wrong_values_need_a_catalogue():
    lost_only = fg.Protocol.fit(MODEL, TRAIN, modes=("lost",))
    with pytest.raises(ProtocolError, match="no values that 'x0' takes when it is wrong; fit one that declares"):
        fg.assess_reliability(MODEL, ROWS, lost_only, {"x0": {"wrong": 0.1}})
    found = fg.assess_reliability(MODEL, ROWS, lost_only, {"x0": {"lost": 0.1}})
    assert found.one_failure == pytest.approx(found.p_flip)


def test_what_is_said_and_stored(tmp_path):
    found = fg.assess_reliability(MODEL, ROWS, PROTOCOL, {name: {"lost": 0.02, "wrong": 0.005} for name in NAMES})
    assert found.condition == "if each field is missing 2% and wrong 0.5% of the time"
    assert "are lost by a single failure, which is exact." in str(found)
    assert found.rates == pytest.approx(np.full(6, 0.025))
    np.testing.assert_array_equal(found.to_pandas()["one_failure"], found.one_failure)
    some = fg.assess_reliability(MODEL, ROWS, PROTOCOL, {"x0": {"wrong": 0.1}})
    assert some.condition == "at the declared rates of missing and wrong values"
    assert some.p_flip == pytest.approx(some.one_failure)


def test_an_audit_takes_rates_of_loss_only():
    with pytest.raises(DataError, match="the rate of 'x0' must be a number from 0 to 1"):
        fg.audit(MODEL, ROWS, PROTOCOL, rates={"x0": {"wrong": 0.1}})


@pytest.mark.parametrize("rate", [0.5, 0.25, 1.0])
def test_draws_are_counted_not_guessed_from_their_weights(rate):
    drawn = DrawnSubsets.of(np.array([rate]), 4096, 0)
    assert drawn.draws == 4096
    high = drawn.estimates(np.zeros((1, len(drawn.removed)), dtype=bool))[2]
    assert high == pytest.approx(1 - 0.025 ** (1 / 4096))
