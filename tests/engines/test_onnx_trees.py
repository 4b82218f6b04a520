"""Tree ensembles in ONNX files: the engine's sums are onnxruntime's to the last bit, and so are the findings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from converting import convert, make_rows, onnx
from onnx import TensorProto, helper
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.base.errors import EngineError
from fragility.engines.trees.forest import NARROW
from fragility.engines.trees.readers import read_ensemble
from fragility.engines.trees.scoring import compute_probabilities, make_row_scorer
from fragility.models.onnx_classifier import OnnxClassifier

catboost = pytest.importorskip("catboost")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

COLUMNS = list("abcdef")
CAT = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}
MODELS = {
    "forest": lambda: RandomForestClassifier(20, max_depth=7, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=20, random_state=0),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=20, verbose=-1, n_jobs=1),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=20, n_jobs=1),
    "catboost": lambda: catboost.CatBoostClassifier(iterations=20, depth=4, **CAT),
}


def compare_with_onnxruntime(head: OnnxClassifier, cells: np.ndarray) -> None:
    """The engine's sums, or probabilities where there is no link, are those of onnxruntime, bit by bit."""
    forest = read_ensemble(head).forest
    sums = make_row_scorer(forest, np.full(cells.shape[1], NARROW, dtype=np.uint8))(cells)
    if head.raw_score is None:
        assert np.array_equal(compute_probabilities(forest, sums), head.predict_proba(cells))
    else:
        assert np.array_equal(sums.T.astype(np.float64), head.raw_score(cells).reshape(len(cells), -1))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_sums_are_onnxruntimes_to_the_last_bit(tmp_path, name: str, n_classes: int) -> None:
    X, y = make_rows(n_classes)
    head = OnnxClassifier(convert(MODELS[name]().fit(X, y), tmp_path / "model.onnx").read_bytes())
    gaps = np.random.default_rng(0).random(X.shape) < 0.1
    compare_with_onnxruntime(head, np.concatenate([X, np.where(gaps, np.nan, X)]).astype(np.float64))


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, tuple[fg.Model, pd.DataFrame, fg.Protocol]]:
    """A forest, whose file holds the votes of one class, and boosted trees."""
    X, y = make_rows()
    table, found = pd.DataFrame(X.astype(np.float64), columns=COLUMNS), {}
    for name in ("forest", "lightgbm"):
        path = convert(MODELS[name]().fit(X, y), tmp_path_factory.mktemp(name) / "model.onnx")
        model = fg.Model.wrap(OnnxClassifier(path.read_bytes()))
        found[name] = model, table[:150], fg.Protocol.fit(model, table)
    return found


@pytest.mark.parametrize("name", ["forest", "lightgbm"])
def test_findings_are_those_of_the_black_box(cases, name: str) -> None:
    model, X, protocol = cases[name]
    assert protocol.smoothing == (1 / 20 if name == "forest" else 0.0)
    native, asked = (fg.audit(model, X, protocol, engine=e, progress=False) for e in ("trees", "blackbox"))
    assert native.manifest.root_digest == asked.manifest.root_digest
    assert native.manifest.engine.name == "trees"
    few = X[:40]
    for one, other in [
        [fg.find_failing_sets(model, few, protocol, engine=e).size for e in ("trees", "blackbox")],
        [fg.assess_reliability(model, few, protocol, 0.1, engine=e).p_flip for e in ("trees", "blackbox")],
        [
            fg.assess_modes(model, few, protocol, ["wrong"], engine=e).by_mode["wrong"].drop
            for e in ("trees", "blackbox")
        ],
    ]:
        np.testing.assert_allclose(one, other, atol=1e-6)
    # The decision holds at the ends of an interval and flips at the nearest value beyond.
    exact = fg.find_stability_intervals(model, few, protocol, ["a", "b"], engine="trees")
    for i, row in enumerate(few.to_dict("records")):
        for interval in (exact.interval(i, field) for field in ("a", "b")):
            below, above = interval.flips_below, interval.flips_above
            ends = [interval.low, interval.high, *(flip.value for flip in (below, above) if flip is not None)]
            moved = pd.DataFrame([row, *({**row, interval.field: end} for end in ends)])
            told = model.head.predict(moved)
            assert set(told[:3]) == {told[0]} and told[0] not in told[3:]


def make_ensemble(**changes: Any) -> OnnxClassifier:
    """One tree of one test, v <= 0.5, whose leaves say -1 and 2; attributes of its node may differ."""
    attributes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 0],
        "class_weights": [-1.0, 2.0],
        "classlabels_int64s": [0, 1],
        "post_transform": "LOGISTIC",
        **changes,
    }
    node = helper.make_node("TreeEnsembleClassifier", ["X"], ["label", "p"], domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_tensor_value_info("p", TensorProto.FLOAT, [None, 2]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return OnnxClassifier(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


EDGES = np.array([[v, 0.0] for v in (0.0, -0.0, 0.5, np.nextafter(np.float32(0.5), 0), 0.7, np.nan, 1e-45, -1e-45)])


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE"])
@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("threshold", [0.5, 0.0])
def test_tests_of_every_kind_at_their_edges(mode: str, missing: int, threshold: float) -> None:
    head = make_ensemble(
        nodes_modes=[mode, "LEAF", "LEAF"],
        nodes_values=[threshold, 0.0, 0.0],
        nodes_missing_value_tracks_true=[missing, 0, 0],
        base_values=[0.25],
    )
    compare_with_onnxruntime(head, EDGES)


def test_nodes_may_be_numbered_in_any_way() -> None:
    """The first node of a tree is its root, whatever its number."""
    head = make_ensemble(
        nodes_treeids=[7, 7, 7, 3],
        nodes_nodeids=[3, 2, 1, 0],
        nodes_featureids=[1, 0, 0, 0],
        nodes_modes=["BRANCH_LT", "LEAF", "LEAF", "LEAF"],
        nodes_values=[0.1, 0.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0, 0],
        nodes_falsenodeids=[2, 0, 0, 0],
        class_treeids=[3, 7, 7],
        class_nodeids=[0, 1, 2],
        class_ids=[0, 0, 0],
        class_weights=[0.3, -1.0, 2.0],
    )
    compare_with_onnxruntime(head, EDGES[:, ::-1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes_modes": ["BRANCH_EQ", "LEAF", "LEAF"]}, "has tests of the kind BRANCH_EQ"),
        ({"nodes_values": [np.inf, 0.0, 0.0]}, "holds numbers that are not finite"),
        ({"class_nodeids": [1, 1]}, "has several weights per leaf and class"),
        ({"base_values": [0.1, 0.2]}, "has base values for other outputs than its trees"),
        ({"class_weights": [1.0, 2.0]}, "is not one tree ensemble on its columns as they are"),
        ({"post_transform": "PROBIT"}, "is not one tree ensemble on its columns as they are"),
    ],
)
def test_what_is_not_read_exactly_is_left_to_onnxruntime(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        read_ensemble(make_ensemble(**changes))


def test_trees_behind_other_operators_are_left_to_onnxruntime(tmp_path) -> None:
    X, y = make_rows()
    path = convert(LogisticRegression().fit(X, y), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match="is not one tree ensemble on its columns as they are"):
        read_ensemble(OnnxClassifier(path.read_bytes()))
    scaled = onnx.load(convert(MODELS["boosting"]().fit(X, y), tmp_path / "trees.onnx"))
    scaled.graph.node.insert(0, helper.make_node("Exp", ["X"], ["scaled"]))
    scaled.graph.node[1].input[0] = "scaled"
    with pytest.raises(EngineError, match="is not one tree ensemble on its columns as they are"):
        read_ensemble(OnnxClassifier(scaled.SerializeToString()))
