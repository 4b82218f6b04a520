"""Which engine audits which model, and that a native engine that disagrees with the model is not used."""

import dataclasses

import disagreeing_engine
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import fragility as fg
from fragility.base.errors import EngineError
from fragility.engines import choice
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.checking import compare_traces
from fragility.engines.linear import LinearEngine
from fragility.engines.oracle import CheckedOracle, ModelOracle
from fragility.protocol import bind
from fragility.scores import support_margin


@pytest.fixture
def data():
    X = np.random.default_rng(0).normal(size=(60, 4))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


def test_auto_takes_the_engine_that_knows_the_model(data):
    X, y = data
    for model, engine in [(LogisticRegression(), "linear"), (GaussianNB(), "blackbox")]:
        model.fit(X, y)
        certs = fg.audit(model, X, fg.Protocol.fit(model, X))
        assert certs.engine == certs.manifest.engine.name == engine


def test_an_engine_that_does_not_know_the_model_is_refused_with_the_reason(data):
    X, y = data
    model = GaussianNB().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    with pytest.raises(EngineError, match=r"the linear engine cannot audit GaussianNB: .*; use engine='auto'"):
        fg.audit(model, X, protocol, engine="linear")
    with pytest.raises(EngineError, match="one of auto, blackbox, linear, trees, neural, wrapped, got 'magic'"):
        fg.audit(model, X, protocol, engine="magic")


def test_an_engine_that_disagrees_with_the_model_gives_way_with_a_warning(data, monkeypatch):
    X, y = data
    model = GaussianNB().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    wrong = disagreeing_engine.DisagreeingEngine
    monkeypatch.setattr(choice, "NATIVE", (wrong,))
    monkeypatch.setattr(choice, "ENGINES", (*choice.ENGINES, "disagreeing"))
    with pytest.warns(UserWarning, match="the disagreeing engine differs from GaussianNB's own probabilities by 0.25"):
        certs = fg.audit(model, X, protocol)
    assert certs.engine == "blackbox"
    with pytest.raises(EngineError, match=r"differs .* by 0.25; use engine='auto'"):
        fg.audit(model, X, protocol, engine="disagreeing")


def test_models_that_no_engine_knows_are_asked_themselves(data):
    X, y = data
    model = GaussianNB().fit(X, y)
    rows = bind(model, X, fg.Protocol.fit(model, X))
    assert isinstance(choice.choose_oracle(rows), ModelOracle)


def test_a_linear_model_answers_states_and_predicts_rows_itself(data):
    X, y = data
    model = LogisticRegression().fit(X, y)
    rows = bind(model, X, fg.Protocol.fit(model, X))
    assert isinstance(choice.choose_oracle(rows, "blackbox"), ModelOracle)
    oracle = choice.choose_oracle(rows)
    assert isinstance(oracle, CheckedOracle) and oracle.engine.answers and not oracle.engine.predicts


def test_a_predictor_that_disagrees_with_the_model_gives_way_with_a_warning(data, monkeypatch):
    X, y = data
    model = GaussianNB().fit(X, y)
    rows = bind(model, X, fg.Protocol.fit(model, X))
    wrong = disagreeing_engine.DisagreeingEngine
    monkeypatch.setattr(choice, "NATIVE", (wrong,))
    monkeypatch.setattr(choice, "ENGINES", (*choice.ENGINES, "disagreeing"))
    with pytest.warns(UserWarning, match="the disagreeing engine differs from GaussianNB's own probabilities by 0.25"):
        assert isinstance(choice.choose_oracle(rows), ModelOracle)
    with pytest.raises(EngineError, match=r"differs .* by 0.25; use engine='auto'"):
        choice.choose_oracle(rows, "disagreeing")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("confidence", "own probabilities by 0.25"),
        ("one_step_confidence", "own probabilities by 0.25"),
        ("path_margin", "own probabilities by 0.25"),
        ("predicted", "own predictions in 1 of 16 rows"),
        ("order", "own orders of removal in 1 of 16 rows"),
        ("path_predicted", "own predictions along the path in 1 of 16 rows"),
        ("threshold", "own flip thresholds in 1 of 16 rows"),
    ],
)
def test_an_engine_that_is_wrong_in_any_observation_of_one_row_gives_way(data, monkeypatch, fault, told):
    X, y = data
    model = GaussianNB().fit(X, y)
    wrong = disagreeing_engine.DisagreeingEngine
    monkeypatch.setattr(choice, "NATIVE", (wrong,))
    monkeypatch.setattr(disagreeing_engine, "FAULT", fault)
    with pytest.warns(UserWarning, match=f"the disagreeing engine differs from GaussianNB's {told}"):
        assert fg.audit(model, X, fg.Protocol.fit(model, X)).engine == "blackbox"


def test_rounding_at_the_edge_of_the_resolution_is_no_disagreement(data, monkeypatch):
    """A state that lies on the edge may be read either way; one that does not, may not."""
    X, y = data
    model = LogisticRegression().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    few = bind(model, X[:16], protocol)
    right = trace_blackbox(few, protocol)
    i = int(np.argmax(np.isfinite(right.threshold[:, 0])))
    later = right.threshold.copy()
    later[i, 0] = np.inf
    other = dataclasses.replace(right, threshold=later)
    assert "flip thresholds in 1 of 16" in compare_traces(other, right, few, protocol, 1e-6)
    state = few.dense(i, i + 1) + right.threshold[i, 0] * (few.baseline - few.dense(i, i + 1))
    support = float(support_margin(few.predict(state), right.predicted[i])[0])
    monkeypatch.setattr("fragility.evidence.protocol_parts.MAX_RESOLUTION", 10.0)
    on_the_edge = dataclasses.replace(protocol, resolution=-support)
    assert compare_traces(other, right, few, on_the_edge, 1e-6) is None


def test_an_engine_whose_library_is_absent_says_so(data, monkeypatch):
    X, y = data
    model = LogisticRegression().fit(X, y)
    monkeypatch.setattr(LinearEngine, "needs", ("a_library_that_is_not_there",))
    assert fg.audit(model, X, fg.Protocol.fit(model, X)).engine == "blackbox"
    with pytest.raises(
        EngineError,
        match="needs a_library_that_is_not_there; install it with: pip install a_lib",
    ):
        fg.audit(model, X, fg.Protocol.fit(model, X), engine="linear")
