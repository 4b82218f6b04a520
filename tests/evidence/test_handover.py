"""What the final estimator is handed, and that a stressed hand-over loses nothing."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import fragility as fg


def indicators(n: int = 300) -> tuple[sp.csr_matrix, np.ndarray]:
    cells = (np.random.default_rng(0).random((n, 12)) < 0.3).astype(np.int64)
    return sp.csr_matrix(cells), (cells[:, 0] + cells[:, 1] > 0).astype(int)


def test_whole_number_sparse_rows_keep_fractions_when_stressed():
    X, y = indicators()
    model = LogisticRegression().fit(X, y)
    sparse = fg.audit(model, X, fg.Protocol.fit(model, X), engine="blackbox").claims
    dense = fg.audit(model, X.toarray(), fg.Protocol.fit(model, X.toarray()), engine="blackbox").claims
    np.testing.assert_allclose(sparse.one_step_drop, dense.one_step_drop, atol=1e-12)
    np.testing.assert_array_equal(sparse.path, dense.path)


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_logits_of_an_mlp_give_its_probabilities(activation, n_classes):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 5))
    y = np.digitize(X[:, 0], np.linspace(-0.5, 0.5, n_classes - 1))
    model = MLPClassifier((8,), activation=activation, max_iter=40, random_state=0).fit(X, y)
    wrapped = fg.Model.wrap(model)
    assert wrapped.link == "raw score, link applied in float64"
    np.testing.assert_allclose(wrapped.probabilities(X), model.predict_proba(X), atol=1e-12)


def test_catboost_from_a_file_knows_its_columns(tmp_path):
    catboost = pytest.importorskip("catboost")
    X, y = indicators()
    model = catboost.CatBoostClassifier(iterations=5, verbose=False, allow_writing_files=False).fit(X.toarray(), y)
    model.save_model(str(tmp_path / "model.cbm"))
    loaded = fg.load_model(tmp_path / "model.cbm")
    assert loaded.n_columns == 12
    protocol = fg.Protocol.fit(loaded, X.toarray())
    assert len(fg.audit(loaded, X.toarray()[:20], protocol)) == 20
