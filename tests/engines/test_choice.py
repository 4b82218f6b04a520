"""Which engine audits which model, and that a native engine that disagrees with the model is not used."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import fragility as fg
from fragility.engines import choice


@pytest.fixture
def data():
    X = np.random.default_rng(0).normal(size=(60, 4))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


def test_auto_takes_the_engine_that_knows_the_model(data):
    X, y = data
    for model, engine in [(LogisticRegression(), "linear"), (GaussianNB(), "blackbox")]:
        model.fit(X, y)
        certs = fg.audit(model, X, fg.Protocol.fit(model, X))
        assert certs.engine == certs.manifest["engine"]["name"] == engine


def test_an_engine_that_does_not_know_the_model_is_refused_with_the_reason(data):
    X, y = data
    model = GaussianNB().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    with pytest.raises(fg.EngineError, match=r"the linear engine cannot audit GaussianNB: .*; use engine='auto'"):
        fg.audit(model, X, protocol, engine="linear")
    with pytest.raises(fg.EngineError, match="must be one of auto, blackbox, linear, trees, neural, got 'magic'"):
        fg.audit(model, X, protocol, engine="magic")


def test_an_engine_that_disagrees_with_the_model_gives_way_with_a_warning(data, monkeypatch):
    X, y = data
    model = GaussianNB().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    wrong = choice.NativeEngine("disagreeing", "disagreeing_engine", (), 1e-6)
    monkeypatch.setattr(choice, "NATIVE", (wrong,))
    monkeypatch.setattr(choice, "ENGINES", (*choice.ENGINES, "disagreeing"))
    with pytest.warns(UserWarning, match="the disagreeing engine differs from GaussianNB's own probabilities by 0.25"):
        certs = fg.audit(model, X, protocol)
    assert certs.engine == "blackbox"
    with pytest.raises(fg.EngineError, match=r"differs .* by 0.25; use engine='auto'"):
        fg.audit(model, X, protocol, engine="disagreeing")


def test_an_engine_whose_library_is_absent_says_so(data, monkeypatch):
    X, y = data
    model = LogisticRegression().fit(X, y)
    absent = choice.NativeEngine("linear", "fragility.engines.linear.engine", ("a_library_that_is_not_there",), 1e-6)
    monkeypatch.setattr(choice, "NATIVE", (absent,))
    assert fg.audit(model, X, fg.Protocol.fit(model, X)).engine == "blackbox"
    with pytest.raises(fg.EngineError, match="a_library_that_is_not_there is not installed"):
        fg.audit(model, X, fg.Protocol.fit(model, X), engine="linear")
