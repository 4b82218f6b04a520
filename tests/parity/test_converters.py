"""Converted models: the verdict is that of rows with gaps, asked directly, whatever the converter does."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

import fragility as fg


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    return X, (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int), rng.random(X.shape)


def check_verdict(model, artefact, rows):
    """Compare on complete rows, and with each field missing in turn."""
    found = fg.check_parity(model, artefact, rows)
    gaps = []
    for j in range(rows.shape[1]):
        missing = rows.copy()
        missing[:, j] = np.nan
        gaps.append(np.abs(model.predict_proba(missing) - artefact.probabilities(missing)).max(axis=1))
    assert found["clean"].differing == 0
    assert found["missing"].differing == int((np.array(gaps) > 1e-5).sum())
    return found


def test_a_forest_converted_to_onnx(rows, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    X, y, draw = rows
    forest = RandomForestClassifier(n_estimators=10, max_depth=4, random_state=0).fit(
        np.where(draw < 0.15, np.nan, X), y
    )
    graph = skl2onnx.to_onnx(forest, X[:1], options={"zipmap": False})
    (tmp_path / "forest.onnx").write_bytes(graph.SerializeToString())
    found = check_verdict(forest, fg.load_model(tmp_path / "forest.onnx"), X[:25])
    if found["missing"].differing:
        assert len(found.smallest.changed) == 1 and found.smallest.row[next(iter(found.smallest.changed))] is None


def test_lightgbm_read_by_treelite(rows):
    treelite, lightgbm = (pytest.importorskip(name) for name in ("treelite", "lightgbm"))
    X, y, draw = rows
    zeros = np.where(draw < 0.2, 0.0, X).astype(float)
    model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, zero_as_missing=True).fit(zeros, y)
    tree = treelite.frontend.from_lightgbm(model.booster_)

    def ask(table):
        p = treelite.gtil.predict(tree, np.ascontiguousarray(table, dtype=np.float64)).reshape(len(table))
        return np.stack([1 - p, p], axis=1)

    check_verdict(model, fg.Model.wrap(ask, classes=[0, 1]), X[:25].astype(float))
