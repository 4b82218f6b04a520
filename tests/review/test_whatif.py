"""What-if gives the engine's own numbers."""

import numpy as np
import pytest
from sklearn.base import clone
from workbench import saved_audit, workbench

import fragility as fg
from fragility.apps.review.rows import WhatIf
from fragility.base.errors import DataError, ModelError


def check_equals_certificates(bench, certs: fg.Certificates, places: range) -> None:
    protocol, names = certs.protocol, certs.protocol.group_names
    for place in places:
        cert = certs[place]
        for k in range(len(cert.path) + 1):
            answer = bench.whatif.ask(place, {group: 1.0 for group in cert.path[:k]})
            assert answer.margin == pytest.approx(cert.path_margin[k], abs=1e-9)
            assert answer.predicted == str(cert.path_predicted[k]) and answer.original == str(cert.predicted)
            assert answer.flipped == (cert.path_predicted[k] != cert.predicted)
        for severity, margin in zip(protocol.severities, cert.fade_margin, strict=False):
            assert bench.whatif.ask(place, dict.fromkeys(names, severity)).margin == pytest.approx(margin, abs=1e-9)
        for group, drop in cert.one_step_drop.items():
            answer = bench.whatif.ask(place, {group: 1.0})
            assert cert.margin - answer.margin == pytest.approx(drop, abs=1e-9)
            lost = cert.confidence - answer.support
            assert lost == pytest.approx(cert.one_step_confidence_drop[group], abs=1e-9)


def test_in_the_transformed_space(bench, audited):
    check_equals_certificates(bench, audited.certs, range(12))


def test_in_the_raw_space_with_a_threshold_the_papers_reading_and_smoothing(audited, tmp_path):
    protocol = fg.Protocol.fit(
        audited.model, audited.X, space="raw", reading="current", decision=0.6, depth=4, smoothing=0.02
    )
    made = saved_audit(tmp_path / "raw", audited.model, audited.X[:20], protocol)
    with workbench(made, tmp_path / "raw.sqlite") as bench:
        check_equals_certificates(bench, made.certs, range(0, 20, 4))


def test_a_part_of_a_group_lies_between(bench, audited):
    probabilities = [bench.whatif.ask(0, {"duration": s}).probabilities["bad"] for s in (0.0, 0.5, 1.0)]
    assert all(0.0 <= p <= 1.0 for p in probabilities)
    whole = bench.whatif.ask(0, {})
    assert whole.confidence == pytest.approx(audited.certs[0].confidence) and not whole.flipped
    assert whole.margin == whole.margin_before == pytest.approx(audited.certs[0].margin)


def test_rows_asked_long_ago_are_bound_again(bench, monkeypatch):
    monkeypatch.setattr("fragility.apps.review.rows.KEPT", 2)
    before = [bench.whatif.ask(place, {"age": 0.5}) for place in range(5)]
    assert [bench.whatif.ask(place, {"age": 0.5}) for place in range(5)] == before
    assert len(bench.whatif._bound) == 2


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), True, "1", None])
def test_a_severity_is_a_number_from_0_to_1(bench, value):
    with pytest.raises(DataError, match="between 0 and 1"):
        bench.whatif.ask(0, {"age": value})
    with pytest.raises(DataError, match="no evidence group 'income'"):
        bench.whatif.ask(0, {"income": 0.5})


def test_another_model_is_refused(bench, audited):
    labels = np.where(np.arange(len(audited.X)) % 2, "good", "bad")
    other = fg.Model.wrap(clone(audited.model).fit(audited.X, labels))
    with pytest.raises(ModelError, match="not the model that was audited"):
        WhatIf(other, bench.cases.protocol, bench.rows, bench.cases.manifest)
