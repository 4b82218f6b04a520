"""Exposure: what its formula promises, and that neither engine, batch nor order changes it."""

import numpy as np
import pipelines
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fragility as fg
from fragility import scores
from fragility.base.errors import CertificateError, ProtocolError

shares = st.floats(0.0, 1.0)
weights = st.tuples(*[st.floats(0.05, 1.0)] * 3)


@given(shares, st.floats(0.0, 50.0), shares, weights)
def test_it_lies_between_0_and_1_and_grows_with_each_loss(targeted, independent, common, v):
    def e(t, i, a):
        return float(scores.exposure(np.array([t]), np.array([i]), np.array([a]), v)[0])

    own = e(targeted, independent, common)
    assert 0.0 <= own <= 1.0
    assert e(targeted + 0.1, independent, common) >= own
    assert e(targeted, independent + 0.1, common) >= own
    assert e(targeted, independent, common + 0.1) >= own
    assert e(0.0, 0.0, 0.0) == 0.0


@given(shares, st.floats(0.0, 50.0), weights)
def test_without_a_common_loss_its_weight_goes_to_the_others(targeted, independent, v):
    mean = (v[0] * targeted + v[1] * independent) / (v[0] + v[1])
    found = scores.exposure(np.array([targeted]), np.array([independent]), np.array([np.nan]), v)[0]
    assert found == pytest.approx(1 - np.exp(-sum(v) * mean), abs=1e-12)


def test_a_prediction_that_nothing_moves_has_none():
    margin, still = np.array([2.0]), np.full((1, 10), 2.0)
    grid = np.arange(1, 11) / 10
    assert scores.independent_loss(margin, np.array([[0.0, -1.0]]))[0] == 0.0
    assert scores.common_loss(margin, still, np.array([np.inf]), grid)[0] == 0.0
    assert scores.common_loss(margin, np.full((1, 10), np.nan), np.array([0.1]), grid)[0] == 1.0


@pytest.mark.parametrize("family", ["logistic", "lightgbm", "random_forest", "xgboost"])
def test_engines_batches_and_order_agree(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    X = case.X_test[:60]
    native = fg.audit(case.model, X, protocol).claims
    asked = fg.audit(case.model, X, protocol, engine="blackbox", byte_budget=2**17).claims
    turned = fg.audit(case.model, X[::-1], protocol).claims
    for name in ("exposure", "independent_loss", "common_loss"):
        np.testing.assert_allclose(getattr(native, name), getattr(asked, name), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(getattr(turned, name)[::-1], getattr(native, name), rtol=1e-8, atol=1e-9)


def test_evaluations_do_not_rise():
    """The margins it reads are those of states that the thresholds ask for anyway."""
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train)
    certs = fg.audit(case.model, case.X_test[:50], protocol, engine="blackbox")
    counts = certs.manifest.engine
    assert counts.evaluations <= 50 * protocol.states_per_row


def test_weights_are_declared_and_must_make_sense():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, exposure_weights=(1.0, 0.0, 0.0))
    claims = fg.audit(case.model, case.X_test[:20], protocol).claims
    np.testing.assert_allclose(claims.exposure, 1 - np.exp(-claims.rcma))
    assert fg.Protocol.from_json(protocol.to_json()) == protocol
    with pytest.raises(ProtocolError, match="exposure_weights must be three numbers"):
        fg.Protocol.fit(case.model, case.X_train, exposure_weights=(1.0, 2.0))
    with pytest.raises(ProtocolError, match="needs the operator attenuate_all"):
        fg.Protocol.fit(case.model, case.X_train, operators=("attenuate_top1",), exposure_weights=(0, 0, 1))


def test_a_protocol_that_fades_nothing_has_no_common_loss():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, operators=("attenuate_top1",))
    certs = fg.audit(case.model, case.X_test[:20], protocol)
    assert certs.table.column("common_loss").null_count == 20 and certs[0].common_loss is None
    assert [way for way, _ in certs[0].losses()] == ["strongest groups first", "each group on its own"]
    assert fg.verify(certs, case.model, case.X_test[:20])
    with pytest.raises(CertificateError, match="have no common_loss"):
        certs.most_fragile(3, by="common_loss")
