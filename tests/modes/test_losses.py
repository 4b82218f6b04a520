"""What failure modes cost: what a twin that asks the model for every value says, whatever engine, batch and order."""

import numpy as np
import pandas as pd
import pipelines
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_modes import frequencies, mid_quantiles, mode_loss, noise_units
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import fragility as fg
from fragility.base.errors import DataError, ProtocolError
from fragility.engines.oracle import ModelOracle
from fragility.protocol import bind
from fragility.questions.modes.losses import losses_of_rows

ROWS = 4
SINGLE = 2e-5  # XGBoost's own probabilities have single precision
CASES = [
    ("credit_g", family, space)
    for family, space in [
        ("logistic", "transformed"),
        ("random_forest", "transformed"),
        ("gradient_boosting", "transformed"),
        ("lightgbm", "transformed"),
        ("xgboost", "transformed"),
        ("catboost", "transformed"),
        ("mlp", "transformed"),
        ("lightgbm", "raw"),
        ("xgboost", "raw"),
        ("hist_gradient_boosting", "raw"),
        ("catboost", "raw"),
        ("logistic", "raw"),
    ]
] + [("credit_g_property", "lightgbm", "transformed"), ("credit_g_property", "logistic", "transformed")]


def ask(case):
    """The model's own answer for one raw row."""

    def probabilities(row):
        return case.model.predict_proba(pipelines.raw_row_table(case, list(row.values())))[0]

    return probabilities


def catalogue_of(case, size):
    """By field: (changed cells, weight) of each of its values."""
    units = {}
    for name in case.X_train:
        column = case.X_train[name]
        values = column.astype(object).tolist()
        numeric = pd.api.types.is_numeric_dtype(column)
        weights = mid_quantiles(values, size) if numeric else frequencies(values, size)
        units[name] = [({name: value}, weight) for value, weight in weights.items()]
    return units


@pytest.mark.repeats
@pytest.mark.parametrize(("dataset", "family", "space"), CASES)
def test_wrong_values_cost_what_asking_for_each_of_them_says(dataset, family, space):
    case = pipelines.fitted(dataset, family, space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=7)
    found = fg.assess_modes(case.model, case.X_test[:ROWS], protocol, ["wrong"])["wrong"]
    assert found.units == protocol.group_names
    by_field = catalogue_of(case, 7)
    units = [by_field[name] for name in found.units]
    for i in range(ROWS):
        x = dict(case.X_test.astype(object).iloc[i])
        own = mode_loss(ask(case), x, units, smoothing=protocol.smoothing)
        np.testing.assert_allclose(found.drop[i], own["drop"], atol=SINGLE if family == "xgboost" else 1e-6)
        np.testing.assert_allclose(found.flip_chance[i], own["flip_chance"], atol=1e-12)
        assert found.exposure[i] == pytest.approx(own["exposure"], abs=SINGLE)


@pytest.mark.parametrize("family", ["lightgbm", "hist_gradient_boosting", "xgboost"])
def test_noise_moves_raw_numbers_and_leaves_whole_ones_whole(family):
    case = pipelines.fitted("credit_g", family, "raw")
    whole = case.X_train["age"].fillna(30).astype(int)
    case = pipelines.Case(
        case.family, case.dataset, "raw", case.model, case.X_train.assign(age=whole), case.X_test.assign(age=33)
    )
    protocol = fg.Protocol.fit(case.model, case.X_train, space="raw", noise=0.2)
    found = fg.assess_modes(case.model, case.X_test[:ROWS], protocol, ["noisy"])["noisy"]
    spreads = {column.name: column.spread for column in protocol.columns if column.kind == "numeric"}
    assert found.units == tuple(f"{name} ({way})" for name in spreads for way in ("downward", "upward"))
    assert protocol.modes.whole == ("age",)
    for i in range(ROWS):
        x = dict(case.X_test.astype(object).iloc[i])
        own = mode_loss(ask(case), x, noise_units(x, spreads, 0.2, whole=["age"]), unit_weight=0.5)
        np.testing.assert_allclose(found.drop[i], own["drop"], atol=SINGLE)
        np.testing.assert_allclose(found.flip_chance[i], own["flip_chance"], atol=1e-12)


def test_noise_is_named_after_the_field_unless_two_columns_share_it():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["a", "b", "c"])
    double = ("twice", make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False)), ["b"])
    made = ColumnTransformer([("scaled", StandardScaler(), ["a"]), double], remainder="passthrough")
    model = make_pipeline(made, LogisticRegression()).fit(X, X.a > 0)
    units = fg.assess_modes(model, X, fg.Protocol.fit(model, X), ["noisy"])["noisy"].units
    assert units[::2] == ("a (downward)", "twice__b (downward)", "twice__b^2 (downward)", "c (downward)")


def test_noise_costs_a_linear_model_something():
    """Up and down are units of their own: together in one they would cancel in every linear score."""
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    found = fg.assess_modes(case.model, case.X_test[:40], protocol, ["noisy"])["noisy"]
    assert len(found.units) == 2 * sum(column.kind == "numeric" for column in protocol.columns)
    assert (found.exposure > 0.001).all() and np.ptp(found.exposure) > 0.05
    np.testing.assert_allclose(found.loss, 0.5 * np.maximum(found.drop, 0).sum(axis=1) / margin_of(case, 40), rtol=1e-6)


def margin_of(case, n):
    p = np.log(case.model.predict_proba(case.X_test[:n]))
    return np.abs(p[:, 0] - p[:, 1])


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("family", "space"), [("lightgbm", "raw"), ("logistic", "transformed")])
def test_noise_is_the_same_asked_at_once(family, space, at_once):
    case = pipelines.fitted("credit_g", family, space)
    protocol = fg.Protocol.fit(case.model, case.X_train, space=space)
    rows = bind(fg.Model.wrap(case.model), case.X_test[:4], protocol)
    numbers = {c.name: c.spread for c in protocol.columns if c.kind == "numeric" and c.spread}
    found = losses_of_rows(ModelOracle(rows), protocol, ["noisy"], at_once=at_once)["noisy"]
    for i in range(4):
        cells = dict(zip([c.name for c in protocol.columns], rows.dense(i, i + 1)[0], strict=True))
        units = noise_units(cells, numbers, protocol.modes.noise, protocol.modes.whole)
        own = mode_loss(
            lambda row: rows.predict(np.array([list(row.values())]))[0], cells, units,
            smoothing=protocol.smoothing, unit_weight=0.5,
        )  # fmt: skip
        np.testing.assert_allclose(found.drop[i], own["drop"], atol=1e-9)
        assert found.exposure[i] == pytest.approx(own["exposure"], abs=1e-9)


@pytest.mark.parametrize("family", ["logistic", "random_forest", "lightgbm", "xgboost", "catboost"])
def test_engines_agree_with_the_model(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    native, asked = (fg.assess_modes(case.model, case.X_test[:80], protocol, engine=e) for e in ("auto", "blackbox"))
    for mode in protocol.modes.declared:
        np.testing.assert_allclose(native[mode].drop, asked[mode].drop, atol=1e-9)
        np.testing.assert_array_equal(native[mode].flip_chance, asked[mode].flip_chance)


def test_lost_is_the_independent_loss_of_the_certificate():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    claims = fg.audit(case.model, case.X_test[:50], protocol, lattice=False).claims
    found = fg.assess_modes(case.model, case.X_test[:50], protocol)["lost"]
    np.testing.assert_allclose(found.loss, claims.independent_loss, atol=1e-9)
    np.testing.assert_allclose(found.drop, claims.one_step_drop, atol=1e-9)


def test_sentinels_multiply_and_replace_raw_values():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    declared = {"credit_amount": [("x / 12", 3.0), (-999, 1.0)], "housing": ["rent"]}
    protocol = fg.Protocol.fit(case.model, case.X_train, sentinels=declared)
    found = fg.assess_modes(case.model, case.X_test[:ROWS], protocol, ["sentinel"])["sentinel"]
    assert found.units == ("credit_amount", "housing")
    for i in range(ROWS):
        x = dict(case.X_test.astype(object).iloc[i])
        amount = [({"credit_amount": x["credit_amount"] / 12}, 0.75), ({"credit_amount": -999}, 0.25)]

        def probabilities(row):
            frame = pd.DataFrame([row]).astype({"credit_amount": float})
            return case.model.predict_proba(frame)[0]

        whole = pd.api.types.is_integer_dtype(case.X_train["credit_amount"])
        if whole:
            amount[0] = ({"credit_amount": round(x["credit_amount"] / 12)}, 0.75)
        own = mode_loss(probabilities, x, [amount, [({"housing": "rent"}, 1.0)]])
        np.testing.assert_allclose(found.drop[i], own["drop"], atol=1e-6)


def test_stale_values_are_those_of_an_earlier_table():
    case = pipelines.fitted("credit_g", "lightgbm", "raw")
    protocol = fg.Protocol.fit(case.model, case.X_train, modes=("lost", "stale"))
    X, earlier = case.X_test[:ROWS], case.X_test[ROWS : 2 * ROWS].set_axis(range(ROWS))
    found = fg.assess_modes(case.model, X, protocol, ["stale"], earlier=earlier[1:])["stale"]
    assert not found.drop[0].any()  # the earlier table lacks this row
    for i in range(1, ROWS):
        units = [[({name: earlier[name].astype(object)[i]}, 1.0)] for name in X]
        own = mode_loss(ask(case), dict(X.astype(object).iloc[i]), units)
        np.testing.assert_allclose(found.drop[i], own["drop"], atol=1e-6)
    assert "stale" not in fg.assess_modes(case.model, X, protocol).by_mode
    with pytest.raises(DataError, match="needs the same rows at an earlier time"):
        fg.assess_modes(case.model, X, protocol, ["stale"])


def test_recorded_outages_strike_the_whole_record():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    events = [{"age"}, {"age", "duration"}, {"age"}, {"housing"}]
    outages = fg.Outages.from_events(events)
    protocol = fg.Protocol.fit(case.model, case.X_train, outages=outages)
    X = case.X_test[:80]
    found = fg.assess_modes(case.model, X, protocol, ["outage"])["outage"]
    exact = fg.assess_reliability(case.model, X, protocol, outages)
    np.testing.assert_allclose(found.flip_chance[:, 0], exact.p_flip, atol=1e-12)


@settings(max_examples=6, deadline=None)
@given(st.permutations(range(30)), st.integers(2**14, 2**18))
def test_order_and_batch_change_nothing(order, budget):
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    X = case.X_test[:30]
    whole = fg.assess_modes(case.model, X, protocol)
    turned = fg.assess_modes(case.model, X.iloc[order], protocol, byte_budget=budget)
    for mode in protocol.modes.declared:
        np.testing.assert_array_equal(turned[mode].drop, whole[mode].drop[order])
        np.testing.assert_array_equal(turned[mode].flip_chance, whole[mode].flip_chance[order])


def test_spaces_agree_on_wrong_values():
    """A wrong raw value is the same mistake before and behind the preprocessing."""
    case = pipelines.fitted("credit_g", "random_forest", "transformed")
    both = [
        fg.assess_modes(
            case.model, case.X_test[:20], fg.Protocol.fit(case.model, case.X_train, space=space), ["wrong"]
        )["wrong"]
        for space in ("transformed", "raw")
    ]
    order = [both[1].units.index(name) for name in both[0].units]
    np.testing.assert_allclose(both[0].drop, both[1].drop[:, order], atol=1e-9)
    np.testing.assert_allclose(both[0].flip_chance, both[1].flip_chance[:, order], atol=1e-12)


def test_a_mode_that_is_not_declared_is_refused():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, modes=("lost",))
    with pytest.raises(ProtocolError, match="declares the modes lost, got 'wrong'"):
        fg.assess_modes(case.model, case.X_test[:3], protocol, ["wrong"])
    with pytest.raises(ProtocolError, match="modes must be among lost, wrong"):
        fg.Protocol.fit(case.model, case.X_train, modes=("broken",))
    with pytest.raises(ProtocolError, match="'sentinel' needs its values"):
        fg.Protocol.fit(case.model, case.X_train, modes=("sentinel",))


def test_columns_without_a_unit_may_be_none_beside_a_wide_unit():
    """A linear model adds up small neighbouring units together; those that belong to no unit then stand alone."""
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    groups = dict.fromkeys(case.X_train, "everything")
    protocol = fg.Protocol.fit(case.model, case.X_train, groups=groups, catalogue=3)
    native, asked = (fg.assess_modes(case.model, case.X_test[:5], protocol, engine=e) for e in ("linear", "blackbox"))
    for mode in protocol.modes.declared:
        np.testing.assert_allclose(native[mode].drop, asked[mode].drop, atol=1e-9)


def test_sparse_rows_have_no_raw_values_to_replace():
    X = np.random.default_rng(0).random((60, 3))
    model = LogisticRegression().fit(X, np.arange(60) % 2)
    protocol = fg.Protocol.fit(model, X)
    assert fg.assess_modes(model, sp.csr_matrix(X), protocol, ["lost", "noisy"])["noisy"].units
    with pytest.raises(DataError, match="the mode 'wrong' replaces raw values, which needs rows in a table"):
        fg.assess_modes(model, sp.csr_matrix(X), protocol, ["wrong"])
