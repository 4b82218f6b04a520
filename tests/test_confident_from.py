"""Where confident begins is declared by the protocol, and everything that counts confident predictions follows it."""

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.analysis.ranking.evaluating import Baselines
from fragility.apps.review.views import View
from fragility.base.errors import DataError

LEVEL = 0.7


@pytest.fixture(scope="module")
def model():
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "installment_commitment", "credit_amount"]]
    return LogisticRegression(max_iter=2000).fit(X[:600], y[:600]), X


@pytest.fixture(scope="module")
def protocol(model):
    own, X = model
    return fg.Protocol.fit(own, X[:600], min_confidence=LEVEL)


@pytest.fixture(scope="module")
def certs(model, protocol):
    own, X = model
    found = fg.audit(own, X[600:], protocol)
    confidence = found.table.column("confidence").to_numpy()
    assert 0 < (confidence >= 0.9).sum() < (confidence >= LEVEL).sum() < len(found)
    return found


def count_confident(certs, level=LEVEL):
    return int((certs.table.column("confidence").to_numpy() >= level).sum())


def test_a_gate_made_directly(certs, tmp_path):
    gate = fg.Gate((fg.Rule(measure="flips_early", at_most=1.0),))
    assert gate.check(certs).verdicts[0].rows == count_confident(certs)
    assert fg.Gate.load(gate.save(tmp_path / "rules.toml")) == gate
    assert dataclasses.replace(gate, min_confidence=0.9).check(certs).verdicts[0].rows == count_confident(certs, 0.9)


def test_a_gate_refuses_audits_that_declare_other_levels(model, certs):
    own, X = model
    other = fg.audit(own, X[600:], fg.Protocol.fit(own, X[:600]))
    gate = fg.Gate((fg.Rule(measure="flips_early", allowance=0.1),))
    with pytest.raises(DataError, match=r"have different thresholds of confidence, 0[.]7 and 0[.]9"):
        gate.check(certs, other)


def test_watch(certs):
    found = fg.watch([certs], dates=["2026-01-31"])
    assert found.settings["min_confidence"] == LEVEL
    with pytest.raises(DataError, match="min_confidence must be at least 0 and below 1, got 1"):
        fg.watch([certs], dates=["2026-01-31"], min_confidence=1)


def test_a_policy_from_a_table_that_does_not_say(model, protocol, certs, tmp_path):
    own, X = model
    labels = fg.label_brittle(own, X[600:], protocol, fg.Stress(draws=2))
    table = labels.to_arrow() if hasattr(labels, "to_arrow") else None
    if table is None:
        import pyarrow.parquet as pq

        table = pq.read_table(labels.save(tmp_path / "labels.parquet"))
    policy = fg.ReviewPolicy.fit(certs, table.replace_schema_metadata(None), risk=0.5)
    assert policy.min_confidence == LEVEL
    assert policy.rules[0].rows == count_confident(certs)


def test_labels_of_stress(model, protocol, certs):
    own, X = model
    stress = fg.Stress(draws=2)
    labels = fg.label_brittle(own, X[600:], protocol, stress)
    assert labels.min_confidence == labels.stress.tau_confidence == LEVEL
    assert labels.high_confidence.sum() == count_confident(certs)
    assert fg.label_brittle(own, X[600:], protocol, fg.Stress(draws=2, tau_confidence=0.8)).min_confidence == 0.8
    assert fg.Stress.from_dict(stress.to_dict()) == stress  # a stress that leaves it to the protocol stays so in a file
    found = fg.evaluate(certs, own, X[600:], stress=stress, baselines=Baselines(random_orders=0, shap_rows=0))
    assert f"high confidence from {LEVEL:g}" in str(found)


def test_the_workbench():
    view = View.from_address("", LEVEL)
    assert view.confident == LEVEL
    assert "confident" not in dict(view.words())
    assert View.from_address("confident=0.9", LEVEL).words(page=1).count(("confident", "0.9")) == 1


def test_the_map(certs):
    pytest.importorskip("matplotlib")
    drawn = fg.FragilityMapDisplay.from_certificates(certs)
    assert drawn.min_confidence == LEVEL
    assert np.isclose(drawn.in_corner.sum(), 0.2 * count_confident(certs), atol=1)


def test_the_mlflow_evaluator(protocol):
    pytest.importorskip("mlflow")
    from fragility.integrations.mlflow_evaluator import EvaluatorSettings

    settings = EvaluatorSettings.read({"protocol": protocol, "stress": True})
    assert settings.min_confidence is None
    assert settings.declare_stress().tau_confidence is None  # as the protocol declares
    own = EvaluatorSettings.read({"protocol": protocol, "stress": True, "min_confidence": 0.8})
    assert own.declare_stress().tau_confidence == 0.8
