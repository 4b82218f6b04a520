"""The tree engine: a whole certificate from a tree ensemble without materialising one stressed row.

``load_forest`` turns a fitted ensemble into one flat ``Forest``. Every split becomes a *test*: go right iff v > t, where
v is the cell as the library compares it (float32 or float64). Strict comparisons, zero-as-missing, category sets and
default directions are all brought to that form exactly:

    library              compares                      as a test
    XGBoost              left iff float32 v < t        t' = the float32 just below t
    LightGBM             left iff float64 v <= t       t' = t; NaN as 0, or to the default side; zero band; category sets
    scikit-learn trees   left iff float32 v <= t       t' = t (float64)
    HistGradientBoosting left iff float64 v <= t       t' = t
    CatBoost             right iff float32 v > border  t' = border; tests shared by a whole level

Raw scores are sums of leaf values in tree order, in the library's own precision, starting from its base score; the link
(sigmoid, softmax, mean of leaf probabilities) is applied in float64, as the model adapter does.

``trace_trees`` evaluates the states of the certificate in two rounds, because the removal path of a row depends on its
own one-step drops: first x and every single removal, then the path and the operators' severity grids.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fragility.errors import EngineError
from fragility.scores import Floats, Integers, sigmoid_probabilities, softmax_probabilities

logger = logging.getLogger(__name__)

SIGMOID, SOFTMAX, AVERAGE = 0, 1, 2  # how raw scores become probabilities
NAN_RIGHT = 1  # test flag: a missing value goes right
NUMERIC, ZERO_BAND, CATEGORY, CATEGORY_INVERTED = 0, 2, 4, 6  # test flags: what is compared
KIND = 6


class Forest(NamedTuple):
    """A tree ensemble as flat arrays; T tests, N nodes in preorder (a left child follows its parent), L leaves."""

    test_column: npt.NDArray[np.int32]  # (T,) sorted
    test_threshold: Floats  # (T,) rising within a column; for a category test the number of its set
    test_flags: npt.NDArray[np.uint8]  # (T,) NAN_RIGHT | kind
    column_start: Integers  # (d+1,) first test of each column
    set_start: Integers  # (sets+1,) first word of each category set
    set_words: npt.NDArray[np.uint32]
    node_test: npt.NDArray[np.int32]  # (N,) test, or -1 - leaf
    node_right: npt.NDArray[np.int32]  # (N,) right child
    tree_start: Integers  # (trees+1,) first node of each tree
    leaf_start: Integers  # (trees+1,) first leaf of each tree
    leaf_value: npt.NDArray[Any]  # (L, V) float32 or float64; V > 1: a leaf holds a value for each output
    tree_output: npt.NDArray[np.int32]  # (trees,) first output a tree adds to
    level_test: npt.NDArray[np.int32]  # (levels,) tests of oblivious trees, lowest index bit first; else empty
    level_start: Integers  # (trees+1,) first level of each oblivious tree
    base: npt.NDArray[Any]  # (outputs,) where the sums start
    divisor: float  # sums are divided by it
    link: int  # SIGMOID, SOFTMAX or AVERAGE
    scale: float  # raw scores are multiplied by it before the link
    single: bool  # cells are compared in float32
    n_classes: int

    @property
    def n_trees(self) -> int:
        return len(self.tree_output)

    @property
    def oblivious(self) -> bool:
        return len(self.level_start) > 1


class _Nodes(NamedTuple):
    """One tree as its library stores it; node 0 is the root."""

    column: npt.NDArray[Any]
    threshold: npt.NDArray[Any]  # in the form right iff v > threshold
    left: npt.NDArray[Any]  # < 0 or self-referencing entries are never read where ``leaf`` holds
    right: npt.NDArray[Any]
    leaf: npt.NDArray[np.bool_]
    flags: npt.NDArray[np.uint8]
    value: npt.NDArray[Any]  # (nodes, V), read at leaves
    output: int = 0


def supports(model: Any) -> str | None:
    """Return None if the engine evaluates ``model`` exactly, else the reason why it does not."""
    try:
        forest = load_forest(model.head)
    except EngineError as error:
        return str(error)
    expected = "predict_proba" if forest.link == AVERAGE else "raw score, link applied in float64"
    if model.link != expected:
        return f"its probabilities come from {model.link!r}, the tree engine reproduces {expected!r}"
    if forest.n_classes != len(model.classes):
        return f"its trees give {forest.n_classes} classes, the model declares {len(model.classes)}"
    return None


def load_forest(head: Any) -> Forest:
    """Return the fitted ensemble ``head`` as flat arrays; refuse with a reason what cannot be evaluated exactly."""
    name = f"{type(head).__module__.split('.')[0]}.{type(head).__name__}"
    reader = _READERS.get(name)
    if reader is None:
        raise EngineError(f"the tree engine does not know {name}")
    return reader(head)


# --- XGBoost ------------------------------------------------------------------------------------------------


def _read_xgboost_classifier(head: Any) -> Forest:
    if not np.isnan(head.missing):
        raise EngineError(f"XGBoost takes {head.missing!r} for missing instead of NaN")
    booster = head.get_booster()
    try:
        last = int(booster.best_iteration) + 1
    except AttributeError:  # fitted without early stopping
        last = None
    return _read_xgboost(booster, last)


def _read_xgboost_booster(booster: Any) -> Forest:
    best = booster.attr("best_iteration")
    return _read_xgboost(booster, None if best is None else int(best) + 1)


def _read_xgboost(booster: Any, last: int | None) -> Forest:
    learner = json.loads(booster.save_raw("json"))["learner"]
    objective = learner["objective"]["name"]
    if objective not in ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax"):
        raise EngineError(f"XGBoost objective {objective} has no link the tree engine knows")
    boosted = learner["gradient_booster"]
    if boosted["name"] != "gbtree":
        raise EngineError(f"XGBoost booster {boosted['name']} is not a plain sum of trees")
    model = boosted["model"]
    if model.get("cats", {}).get("enc"):
        raise EngineError("XGBoost re-codes the categories of a data frame, which the tree engine does not")
    n_classes = max(int(learner["learner_model_param"]["num_class"]), 1)
    if int(learner["learner_model_param"].get("num_target", 1)) > max(n_classes, 1):
        raise EngineError("XGBoost model with several targets")
    end = model["iteration_indptr"][last] if last is not None else len(model["trees"])
    sets: list[Sequence[int]] = []
    trees = [
        _xgboost_tree(tree, output, sets)
        for tree, output in zip(model["trees"][:end], model["tree_info"][:end], strict=True)
    ]
    return _assemble(
        trees,
        sets=sets,
        base=_xgboost_base(learner["learner_model_param"]["base_score"], n_classes),
        n_columns=int(learner["learner_model_param"]["num_feature"]),
        link=SIGMOID if n_classes == 1 else SOFTMAX,
        single=True,
    )


def _xgboost_base(text: str, n_outputs: int) -> npt.NDArray[np.float32]:
    """Return the margin the sums start from: a logit for binary models, as it stands for softmax."""
    score = np.atleast_1d(np.asarray(json.loads(text), dtype=np.float32))
    if n_outputs == 1:
        # float64 log rounded once gives what the library's float32 logarithm gives
        odds = np.float32(1.0) / score - np.float32(1.0)
        score = (-np.log(odds.astype(np.float64))).astype(np.float32)
    return np.ascontiguousarray(np.broadcast_to(score, n_outputs))


def _xgboost_tree(tree: dict[str, Any], output: int, sets: list[Sequence[int]]) -> _Nodes:
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise EngineError("XGBoost trees with a vector in each leaf (multi_output_tree)")
    condition = np.asarray(tree["split_conditions"], dtype=np.float32)
    left = np.asarray(tree["left_children"])
    flags = np.where(np.asarray(tree["default_left"], dtype=bool), 0, NAN_RIGHT).astype(np.uint8)
    threshold = np.nextafter(condition, np.float32(-np.inf)).astype(np.float64)
    for node, start, size in zip(
        tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
    ):
        flags[node] |= CATEGORY  # the listed categories go right
        threshold[node] = len(sets)
        sets.append(tree["categories"][start : start + size])
    return _Nodes(
        np.asarray(tree["split_indices"]),
        threshold,
        left,
        np.asarray(tree["right_children"]),
        left < 0,
        flags,
        condition[:, None],
        output,
    )


# --- LightGBM -----------------------------------------------------------------------------------------------


def _read_lightgbm_classifier(head: Any) -> Forest:
    return _read_lightgbm(head.booster_)


def _read_lightgbm(booster: Any) -> Forest:
    if booster.pandas_categorical:
        raise EngineError("LightGBM re-codes the categories of a data frame, which the tree engine does not")
    header, *blocks = re.split(r"^Tree=\d+\n", booster.model_to_string(), flags=re.MULTILINE)
    settings = _settings(header)
    words = settings.get("objective", "").split()
    if not words or words[0] not in ("binary", "multiclass"):
        raise EngineError(f"LightGBM objective {settings.get('objective', 'custom')!r} has no link the tree engine knows")
    per_iteration = int(settings["num_tree_per_iteration"])
    sets: list[Sequence[int]] = []
    trees = [_lightgbm_tree(_settings(block), t % per_iteration, sets) for t, block in enumerate(blocks)]
    averaged = re.search(r"^average_output$", header, flags=re.MULTILINE) is not None
    return _assemble(
        trees,
        sets=sets,
        base=np.zeros(per_iteration),
        n_columns=int(settings["max_feature_idx"]) + 1,
        link=SIGMOID if per_iteration == 1 else SOFTMAX,
        divisor=len(trees) // per_iteration if averaged else 1,
        scale=float(next((w.split(":")[1] for w in words if w.startswith("sigmoid:")), 1.0)),
    )


def _settings(block: str) -> dict[str, str]:
    lines = block.split("\n\n")[0].split("\n") if not block.startswith("tree") else block.split("\n")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _lightgbm_tree(block: dict[str, str], output: int, sets: list[Sequence[int]]) -> _Nodes:
    if block.get("is_linear", "0") != "0":
        raise EngineError("LightGBM trees with linear models in their leaves (linear_tree)")
    n_leaves = int(block["num_leaves"])
    value = np.array(block["leaf_value"].split(), dtype=np.float64)[:, None]
    inner = n_leaves - 1
    if inner == 0:
        return _single_leaf(value, output)
    threshold = np.array(block["threshold"].split(), dtype=np.float64)
    decision = np.array(block["decision_type"].split(), dtype=np.int64)
    flags, threshold = _lightgbm_tests(decision, threshold, _lightgbm_sets(block), sets)
    children = [np.array(block[side].split(), dtype=np.int64) for side in ("left_child", "right_child")]
    left, right = (np.where(child < 0, inner + ~child, child) for child in children)
    pad = np.zeros(n_leaves, dtype=np.int64)
    return _Nodes(
        np.concatenate([np.array(block["split_feature"].split(), dtype=np.int64), pad]),
        np.concatenate([threshold, pad]),
        np.concatenate([left, pad]),
        np.concatenate([right, pad]),
        np.arange(inner + n_leaves) >= inner,
        np.concatenate([flags, pad]).astype(np.uint8),
        np.concatenate([np.zeros((inner, 1)), value]),
        output,
    )


def _lightgbm_tests(
    decision: Integers, threshold: Floats, own_sets: list[list[int]], sets: list[Sequence[int]]
) -> tuple[Integers, Floats]:
    """Return (flags, thresholds) of LightGBM's decision types: bit 0 category, bit 1 default left, bits 2-3 missing."""
    category = (decision & 1) == 1
    default_right = (decision & 2) == 0
    missing = (decision >> 2) & 3  # 0: NaN counts as 0; 1: zero and NaN go to the default side; 2: NaN does
    nan_right = np.where(missing == 0, threshold < 0.0, default_right)  # 0 > t
    flags = np.where(nan_right, NAN_RIGHT, 0) | np.where(missing == 1, ZERO_BAND, NUMERIC)
    threshold = threshold.copy()
    for node in np.flatnonzero(category):
        flags[node] = CATEGORY_INVERTED | NAN_RIGHT  # the listed categories go left, all else right
        sets.append(own_sets[int(threshold[node])])
        threshold[node] = len(sets) - 1
    return flags, threshold


def _lightgbm_sets(block: dict[str, str]) -> list[list[int]]:
    if block.get("num_cat", "0") == "0":
        return []
    bounds = [int(word) for word in block["cat_boundaries"].split()]
    words = np.array(block["cat_threshold"].split(), dtype=np.uint32)
    return [
        [int(i) for i in np.flatnonzero(np.unpackbits(words[a:b].view(np.uint8), bitorder="little"))]
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]


def _single_leaf(value: npt.NDArray[Any], output: int) -> _Nodes:
    nothing = np.zeros(1, dtype=np.int64)
    return _Nodes(
        nothing, np.zeros(1), nothing, nothing, np.ones(1, dtype=bool), np.zeros(1, dtype=np.uint8), value[:1], output
    )


# --- scikit-learn -------------------------------------------------------------------------------------------


def _read_sklearn_forest(head: Any) -> Forest:
    return _read_sklearn(head, list(head.estimators_))


def _read_sklearn_tree(head: Any) -> Forest:
    return _read_sklearn(head, [head])


def _read_sklearn(head: Any, estimators: list[Any]) -> Forest:
    if head.n_outputs_ > 1:
        raise EngineError(f"{type(head).__name__} with {head.n_outputs_} outputs")
    trees = [_sklearn_nodes(e.tree_, e.tree_.value[:, 0, :], 0) for e in estimators]
    return _assemble(
        trees,
        base=np.zeros(int(head.n_classes_)),
        n_columns=head.n_features_in_,
        link=AVERAGE,
        divisor=len(trees),
        single=True,
    )


def _sklearn_nodes(tree: Any, value: Floats, output: int) -> _Nodes:
    leaf = tree.children_left < 0
    flags = np.where(tree.missing_go_to_left.astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    return _Nodes(tree.feature, tree.threshold, tree.children_left, tree.children_right, leaf, flags, value, output)


def _read_gradient_boosting(head: Any) -> Forest:
    if head.loss != "log_loss":
        raise EngineError(f"GradientBoostingClassifier with loss {head.loss!r}")
    n_outputs = head.n_trees_per_iteration_
    trees = [
        _sklearn_nodes(e.tree_, head.learning_rate * e.tree_.value[:, 0, :], k)
        for stage in head.estimators_
        for k, e in enumerate(stage)
    ]
    return _assemble(
        trees,
        base=_gradient_boosting_base(head),
        n_columns=head.n_features_in_,
        link=SIGMOID if n_outputs == 1 else SOFTMAX,
        single=True,
    )


def _gradient_boosting_base(head: Any) -> Floats:
    """Return the constant raw score of the initial estimator; refuse one that looks at the row."""
    if head.init_ != "zero" and type(head.init_).__name__ != "DummyClassifier":
        raise EngineError(f"GradientBoostingClassifier with init={type(head.init_).__name__}")
    if head.init_ != "zero" and head.init_.strategy != "prior":
        raise EngineError(f"GradientBoostingClassifier with a {head.init_.strategy!r} initial estimator")
    # The library computes it by the same call; there is no stored attribute.
    return np.array(head._raw_predict_init(np.zeros((1, head.n_features_in_), dtype=np.float32))[0], dtype=np.float64)


def _read_hist_gradient_boosting(head: Any) -> Forest:
    if head.is_categorical_ is not None and np.any(head.is_categorical_):
        raise EngineError("HistGradientBoostingClassifier re-codes categorical features before its trees")
    n_outputs = head.n_trees_per_iteration_
    trees = [
        _hist_nodes(predictor.nodes, k) for stage in head._predictors for k, predictor in enumerate(stage)
    ]
    return _assemble(
        trees,
        base=np.array(head._baseline_prediction, dtype=np.float64).reshape(-1),
        n_columns=head.n_features_in_,
        link=SIGMOID if n_outputs == 1 else SOFTMAX,
    )


def _hist_nodes(nodes: npt.NDArray[Any], output: int) -> _Nodes:
    flags = np.where(nodes["missing_go_to_left"].astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    return _Nodes(
        nodes["feature_idx"],
        nodes["num_threshold"],
        nodes["left"].astype(np.int64),
        nodes["right"].astype(np.int64),
        nodes["is_leaf"].astype(bool),
        flags,
        nodes["value"].astype(np.float64)[:, None],
        output,
    )


# --- CatBoost -----------------------------------------------------------------------------------------------


def _read_catboost(head: Any) -> Forest:
    """Read CatBoost's exported JSON: oblivious trees, one test a level, leaf index bit j = test of level j."""
    loss = str(head.get_all_params().get("loss_function", "")).split(":")[0]
    if loss not in ("Logloss", "CrossEntropy", "MultiClass"):
        raise EngineError(f"CatBoost loss {loss or 'custom'!r} has no link the tree engine knows")
    document = _catboost_document(head)
    others = sorted(set(document["features_info"]) - {"float_features"})
    if any(document["features_info"][name] for name in others):
        raise EngineError(f"CatBoost model with {', '.join(others)}")
    if "oblivious_trees" not in document:
        raise EngineError("CatBoost trees that are not symmetric (grow_policy)")
    n_outputs = 1 if loss != "MultiClass" else len(document["scale_and_bias"][1])
    scale, bias = document["scale_and_bias"]
    if scale != 1:
        raise EngineError(f"CatBoost model with scale {scale}")
    return _assemble_oblivious(document, n_outputs, np.array(bias, dtype=np.float64))


def _catboost_document(head: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        head.save_model(str(path), format="json")
        return dict(json.loads(path.read_text()))


def _assemble_oblivious(document: dict[str, Any], n_outputs: int, bias: Floats) -> Forest:
    features = {f["feature_index"]: f for f in document["features_info"]["float_features"]}
    trees = document["oblivious_trees"]
    splits = [split for tree in trees for split in tree["splits"]]
    other = next((s["split_type"] for s in splits if s["split_type"] != "FloatFeature"), None)
    if other is not None:
        raise EngineError(f"CatBoost model with a split of type {other}")
    column = np.array([features[s["float_feature_index"]]["flat_feature_index"] for s in splits], dtype=np.int32)
    # nan_value_treatment: AsTrue sends NaN to the side of v > border; AsFalse and AsIs (NaN > border is false) do not
    flags = np.array(
        [features[s["float_feature_index"]]["nan_value_treatment"] == "AsTrue" for s in splits], dtype=np.uint8
    )
    threshold = np.array([s["border"] for s in splits], dtype=np.float32).astype(np.float64)
    tests, level_test = _distinct_tests(column, threshold, flags)
    levels = [len(tree["splits"]) for tree in trees]
    leaves = [np.array(tree["leaf_values"], dtype=np.float64).reshape(-1, n_outputs) for tree in trees]
    n_columns = max((f["flat_feature_index"] for f in features.values()), default=-1) + 1
    nothing = np.zeros(0, dtype=np.int32)
    return Forest(
        *tests,
        column_start=_column_start(tests[0], n_columns),
        set_start=np.zeros(1, dtype=np.int64),
        set_words=np.zeros(0, dtype=np.uint32),
        node_test=nothing,
        node_right=nothing,
        tree_start=np.zeros(len(trees) + 1, dtype=np.int64),
        leaf_start=_starts([len(values) for values in leaves]),
        leaf_value=np.concatenate(leaves),
        tree_output=np.zeros(len(trees), dtype=np.int32),
        level_test=level_test,
        level_start=_starts(levels),
        base=np.zeros(n_outputs) + bias,
        divisor=1.0,
        link=SIGMOID if n_outputs == 1 else SOFTMAX,
        scale=1.0,
        single=True,
        n_classes=max(n_outputs, 2),
    )


# --- assembling ---------------------------------------------------------------------------------------------


def _assemble(
    trees: list[_Nodes],
    *,
    base: npt.NDArray[Any],
    n_columns: int,
    link: int,
    sets: Sequence[Sequence[int]] = (),
    divisor: float = 1.0,
    scale: float = 1.0,
    single: bool = False,
) -> Forest:
    """Return the forest of ``trees``: nodes in preorder, equal splits merged into one test."""
    from fragility.engines.tree_kernels import preorder

    if not trees:
        raise EngineError("the ensemble has no trees")
    ordered = [_reordered(tree, preorder(tree.left, tree.right, tree.leaf)) for tree in trees]
    starts = _starts([len(tree.leaf) for tree in ordered])
    leaf = np.concatenate([tree.leaf for tree in ordered])
    column = np.concatenate([tree.column for tree in ordered])[~leaf].astype(np.int32)
    flags = np.concatenate([tree.flags for tree in ordered])[~leaf]
    threshold = np.concatenate([tree.threshold for tree in ordered])[~leaf].astype(np.float64)
    set_start, set_words, threshold = _pack_sets(sets, flags, threshold)
    tests, inner_test = _distinct_tests(column, threshold, flags)
    node_test = np.empty(len(leaf), dtype=np.int32)
    node_test[~leaf] = inner_test
    node_test[leaf] = -1 - np.arange(int(leaf.sum()), dtype=np.int32)
    return Forest(
        *tests,
        column_start=_column_start(tests[0], n_columns),
        set_start=set_start,
        set_words=set_words,
        node_test=node_test,
        node_right=np.concatenate([t.right + s for t, s in zip(ordered, starts, strict=False)]).astype(np.int32),
        tree_start=starts,
        leaf_start=_starts([int(tree.leaf.sum()) for tree in ordered]),
        leaf_value=np.ascontiguousarray(np.concatenate([t.value[t.leaf] for t in ordered])),
        tree_output=np.array([tree.output for tree in ordered], dtype=np.int32),
        level_test=np.zeros(0, dtype=np.int32),
        level_start=np.zeros(1, dtype=np.int64),
        base=base,
        divisor=float(divisor),
        link=link,
        scale=scale,
        single=single,
        n_classes=max(len(base), 2),
    )


def _reordered(tree: _Nodes, order: Integers) -> _Nodes:
    place = np.empty(len(tree.leaf), dtype=np.int64)
    place[order] = np.arange(len(order))
    right = np.where(tree.leaf, 0, tree.right)
    return _Nodes(
        tree.column[order],
        tree.threshold[order],
        place[np.where(tree.leaf, 0, tree.left)][order],
        place[right][order],
        tree.leaf[order],
        tree.flags[order],
        tree.value[order],
        tree.output,
    )


def _starts(sizes: Sequence[int]) -> Integers:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _pack_sets(
    sets: Sequence[Sequence[int]], flags: npt.NDArray[np.uint8], threshold: Floats
) -> tuple[Integers, npt.NDArray[np.uint32], Floats]:
    """Return (starts, words) of the distinct category sets and thresholds that number them."""
    distinct: dict[tuple[int, ...], int] = {}
    numbers = np.array([distinct.setdefault(tuple(sorted(s)), len(distinct)) for s in sets], dtype=np.int64)
    category = (flags & KIND) >= CATEGORY
    threshold = threshold.copy()
    if category.any():
        threshold[category] = numbers[threshold[category].astype(np.int64)]
    words = [np.zeros(max(members, default=0) // 32 + 1, dtype=np.uint32) for members in distinct]
    for row, members in zip(words, distinct, strict=True):
        for member in members:
            row[member // 32] |= np.uint32(1 << (member % 32))
    flat = np.concatenate(words) if words else np.zeros(0, dtype=np.uint32)
    return _starts([len(row) for row in words]), flat, threshold


def _distinct_tests(
    column: npt.NDArray[np.int32], threshold: Floats, flags: npt.NDArray[np.uint8]
) -> tuple[tuple[npt.NDArray[np.int32], Floats, npt.NDArray[np.uint8]], npt.NDArray[np.int32]]:
    """Return the distinct (column, threshold, flags), sorted, and the number of each split's test."""
    order = np.lexsort((flags, threshold, column))
    c, t, f = column[order], threshold[order], flags[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (c[1:] != c[:-1]) | (t[1:] != t[:-1]) | (f[1:] != f[:-1])
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.cumsum(first) - 1
    return (c[first], t[first], f[first]), number


def _column_start(test_column: npt.NDArray[np.int32], n_columns: int) -> Integers:
    return np.searchsorted(test_column, np.arange(n_columns + 1)).astype(np.int64)


_READERS: dict[str, Callable[[Any], Forest]] = {
    "xgboost.XGBClassifier": _read_xgboost_classifier,
    "xgboost.XGBRFClassifier": _read_xgboost_classifier,
    "xgboost.Booster": _read_xgboost_booster,
    "lightgbm.LGBMClassifier": _read_lightgbm_classifier,
    "lightgbm.Booster": _read_lightgbm,
    "sklearn.DecisionTreeClassifier": _read_sklearn_tree,
    "sklearn.ExtraTreeClassifier": _read_sklearn_tree,
    "sklearn.RandomForestClassifier": _read_sklearn_forest,
    "sklearn.ExtraTreesClassifier": _read_sklearn_forest,
    "sklearn.GradientBoostingClassifier": _read_gradient_boosting,
    "sklearn.HistGradientBoostingClassifier": _read_hist_gradient_boosting,
    "catboost.CatBoostClassifier": _read_catboost,
}
