"""Exposure: what its formula promises, and that neither engine, batch nor order changes it."""

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_random_loss

import fragility as fg
from fragility import scores
from fragility.base.errors import CertificateError, ProtocolError

shares = st.floats(0.0, 1.0)
weights = st.tuples(*[st.floats(0.05, 1.0)] * 4)
margins = st.floats(-30.0, 30.0)


def combine(*parts):
    *losses, v = parts
    return float(scores.exposure(*(np.array([loss]) for loss in losses), v)[0])


@given(shares, st.floats(0.0, 50.0), shares, shares, weights)
def test_it_lies_between_0_and_1_and_grows_with_each_loss(targeted, independent, common, random, v):
    losses = (targeted, independent, common, random)
    own = combine(*losses, v)
    assert 0.0 <= own <= 1.0
    for i in range(4):
        assert combine(*losses[:i], losses[i] + 0.1, *losses[i + 1 :], v) >= own
    assert combine(0.0, 0.0, 0.0, 0.0, v) == 0.0


@given(shares, st.floats(0.0, 50.0), shares, weights)
def test_without_a_common_loss_its_weight_goes_to_the_targeted_and_independent_losses(targeted, independent, random, v):
    mean = (v[0] * targeted + v[1] * independent) / (v[0] + v[1])
    found = combine(targeted, independent, np.nan, random, v)
    assert found == pytest.approx(1 - np.exp(-sum(v[:3]) * mean - v[3] * random), abs=1e-12)


@given(margins, st.lists(margins, min_size=1, max_size=12), margins)
@settings(max_examples=300, deadline=None)
def test_the_random_loss_equals_the_slow_twin_and_is_a_share(margin, drops, bare):
    found = scores.random_loss(np.array([margin]), np.array([drops]), np.array([bare]))[0]
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(naive_random_loss(margin, drops, bare), rel=1e-9, abs=1e-9)


@given(st.floats(0.5, 10.0), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=8))
def test_where_losses_add_up_the_random_loss_is_the_expected_one(margin, drops):
    """Of an additive margin each group takes its drop with the chance that it is lost: r D, as long as it is < m."""
    drops = np.array(drops) * min(1.0, margin / max(sum(drops), 1e-9))
    found = scores.random_loss(np.array([margin]), drops[None], np.array([margin - drops.sum()]))[0]
    assert found == pytest.approx(np.mean(scores.LOSS_RATES) * drops.sum() / margin, rel=1e-6, abs=1e-9)


def test_a_prediction_that_nothing_moves_has_none():
    margin, still = np.array([2.0]), np.full((1, 10), 2.0)
    grid = np.arange(1, 11) / 10
    assert scores.independent_loss(margin, np.array([[0.0, -1.0]]))[0] == 0.0
    assert scores.common_loss(margin, still, np.array([np.inf]), grid)[0] == 0.0
    assert scores.random_loss(margin, np.array([[0.0, -1.0]]), np.array([2.5]))[0] == 0.0
    assert scores.common_loss(margin, np.full((1, 10), np.nan), np.array([0.1]), grid)[0] == 1.0


@pytest.mark.parametrize("family", ["logistic", "lightgbm", "random_forest", "xgboost"])
def test_engines_batches_and_order_agree(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    X = case.X_test[:60]
    native = fg.audit(case.model, X, protocol).claims
    asked = fg.audit(case.model, X, protocol, engine="blackbox", byte_budget=2**17).claims
    turned = fg.audit(case.model, X[::-1], protocol).claims
    for name in ("exposure", "independent_loss", "common_loss", "random_loss", "bare_margin"):
        np.testing.assert_allclose(getattr(native, name), getattr(asked, name), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(getattr(turned, name)[::-1], getattr(native, name), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("operators", [("attenuate_all", "attenuate_top1"), ("attenuate_top2",), ()])
@pytest.mark.parametrize("family", ["logistic", "lightgbm", "random_forest", "mlp"])
def test_all_evidence_lost_is_one_state_whoever_asks_and_in_whatever_batch(family, operators):
    """Rows with gaps have such a state of their own; every engine and every piece of the rows gives the same bits."""
    case = pipelines.fitted("credit_g", family, "transformed")
    X = case.X_test[:24].copy()
    X.iloc[::3, [1, 4]] = np.nan
    protocol = fg.Protocol.fit(case.model, case.X_train, operators=operators, depth=3)
    whole = fg.audit(case.model, X, protocol).claims
    alone = [fg.audit(case.model, X[i : i + 1], protocol, ids=[i]).claims for i in range(6)]
    np.testing.assert_array_equal([one.bare_margin[0] for one in alone], whole.bare_margin[:6])
    asked = fg.audit(case.model, X, protocol, engine="blackbox").claims
    np.testing.assert_allclose(whole.bare_margin, asked.bare_margin, rtol=1e-9, atol=1e-9)
    full = ~whole.already_missing.any(axis=1)
    assert 0 < full.sum() < 24
    for y in (0, 1):
        assert np.ptp(whole.bare_margin[full & (whole.predicted == y)]) < 1e-12


def test_evaluations_do_not_rise():
    """The margins it reads are those of states that the thresholds ask for anyway."""
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    certs = fg.audit(case.model, case.X_test[:50], protocol, engine="blackbox")
    counts = certs.manifest.engine
    assert counts.evaluations <= 50 * protocol.states_per_row


def test_weights_are_declared_and_must_make_sense():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, exposure_weights=(1.0, 0.0, 0.0, 0.0))
    claims = fg.audit(case.model, case.X_test[:20], protocol).claims
    np.testing.assert_allclose(claims.exposure, 1 - np.exp(-claims.rcma))
    assert fg.Protocol.from_json(protocol.to_json()) == protocol
    with pytest.raises(ProtocolError, match="exposure_weights must be four numbers"):
        fg.Protocol.fit(case.model, case.X_train, exposure_weights=(1.0, 2.0, 1.0))
    with pytest.raises(ProtocolError, match="needs the operator attenuate_all"):
        fg.Protocol.fit(case.model, case.X_train, operators=("attenuate_top1",), exposure_weights=(0, 0, 1, 1))


def test_a_protocol_that_fades_nothing_has_no_common_loss():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, operators=("attenuate_top1",))
    certs = fg.audit(case.model, case.X_test[:20], protocol)
    assert certs.table.column("common_loss").null_count == 20 and certs[0].common_loss is None
    assert [way for way, _ in certs[0].losses()] == [
        *("strongest groups first", "each group on its own", "groups at random"),
    ]
    assert fg.verify(certs, case.model, case.X_test[:20])
    with pytest.raises(CertificateError, match="have no common_loss"):
        certs.most_fragile(3, by="common_loss")
