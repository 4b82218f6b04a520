"""How often an audit asks the model: counted, so that a change that asks more often fails here."""

import lightgbm
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import fragility as fg

pytest.importorskip("numba")

PER_ROW = 2  # x and one other state
# Whatever the number of rows: the first rows in every state, the lattice on its first rows, some states again in other
# batches, and the 1,000 most exposed confident rows once more where the lattice is read.
CALLS, ROWS = 100, 7000
N = 1500
MODELS = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1),
    "forest": lambda: RandomForestClassifier(10, max_depth=6, n_jobs=1, random_state=0),
    "logistic": LogisticRegression,
}
ASKED = ("predict", "predict_proba", "decision_function")


def count_asked(model, X, protocol, monkeypatch):
    """Return (calls, rows) that an audit asks its model for; a call within a call counts once."""
    sizes, inside = [], []

    def counting(method):
        def asked(self, *args, **kwargs):
            if inside:
                return method(self, *args, **kwargs)
            sizes.append(len(args[0] if args else kwargs["X"]))
            inside.append(True)
            try:
                return method(self, *args, **kwargs)
            finally:
                inside.pop()

        return asked

    with monkeypatch.context() as patch:
        for name in ASKED:
            if hasattr(type(model), name):
                patch.setattr(type(model), name, counting(getattr(type(model), name)))
        fg.audit(model, X, protocol, progress=False)
    return len(sizes), sum(sizes)


@pytest.mark.parametrize("family", MODELS)
def test_a_whole_audit_asks_the_model_no_more_often_than_declared(family, monkeypatch):
    draws = np.random.default_rng(0)
    X = draws.normal(size=(500 + 2 * N, 6))
    model = MODELS[family]().fit(X[:500], X[:500, 0] + X[:500, 1] * X[:500, 2] > 0)
    protocol = fg.Protocol.fit(model, X[:500])
    calls, rows = count_asked(model, X[500 : 500 + N], protocol, monkeypatch)
    more_calls, more_rows = count_asked(model, X[500:], protocol, monkeypatch)
    assert 0 < calls <= CALLS and more_calls <= CALLS
    assert PER_ROW * N <= rows <= PER_ROW * N + ROWS
    assert more_rows <= PER_ROW * 2 * N + ROWS
