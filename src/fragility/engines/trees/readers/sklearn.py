"""scikit-learn's trees, forests and boosted trees.

HistGradientBoostingClassifier numbers columns of categories by an encoder of its own, and its trees see them before all
others. A category that training did not have is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fragility.base.arrays import Floats, Integers
from fragility.base.canonical import is_missing
from fragility.base.errors import EngineError
from fragility.base.libraries import family_of
from fragility.engines.trees.forest import (
    AVERAGE,
    CATEGORY_INVERTED,
    NAN_RIGHT,
    SIGMOID,
    SOFTMAX,
    Convention,
    TreeNodes,
    assemble,
    list_members,
)
from fragility.engines.trees.recoding import Ensemble, Vocabulary


def read_forest(head: Any) -> Ensemble:
    """Read a tree or a forest: a leaf holds class probabilities, a forest takes their mean."""
    if head.n_outputs_ > 1:
        raise EngineError(f"{type(head).__name__} with {head.n_outputs_} outputs")
    estimators = getattr(head, "estimators_", [head])
    trees = [_read_nodes(e.tree_, e.tree_.value[:, 0, :], 0) for e in estimators]
    convention = Convention(np.zeros(int(head.n_classes_)), AVERAGE, divisor=float(len(trees)), single=True)
    return Ensemble(assemble(trees, convention, head.n_features_in_))


def read_bagging(head: Any) -> Ensemble:
    """Read bagged decision trees, each of which sees columns of its own and may not know every class."""
    for one in head.estimators_:
        if family_of(one) not in ("sklearn.DecisionTreeClassifier", "sklearn.ExtraTreeClassifier"):
            raise EngineError(f"BaggingClassifier of {type(one).__name__}")
    n_classes, trees = len(head.classes_), []
    for one, columns in zip(head.estimators_, head.estimators_features_, strict=True):
        value = np.zeros((one.tree_.node_count, n_classes))
        value[:, np.asarray(one.classes_, dtype=np.int64)] = one.tree_.value[:, 0, :]  # bagging numbers the classes
        nodes = _read_nodes(one.tree_, value, 0)
        trees.append(nodes._replace(column=np.where(nodes.leaf, 0, np.asarray(columns)[nodes.column])))
    convention = Convention(np.zeros(n_classes), AVERAGE, divisor=float(len(trees)), single=True)
    return Ensemble(assemble(trees, convention, head.n_features_in_))


def read_gradient_boosting(head: Any) -> Ensemble:
    """Read regression trees, which count by the learning rate, on a constant start."""
    if head.loss != "log_loss":
        raise EngineError(f"GradientBoostingClassifier with loss {head.loss!r}")
    if head.init_ != "zero" and type(head.init_).__name__ != "DummyClassifier":
        raise EngineError(f"GradientBoostingClassifier with init={type(head.init_).__name__}")
    if head.init_ != "zero" and head.init_.strategy != "prior":
        raise EngineError(f"GradientBoostingClassifier with a {head.init_.strategy!r} initial estimator")
    trees = [
        _read_nodes(e.tree_, head.learning_rate * e.tree_.value[:, 0, :], k)
        for stage in head.estimators_
        for k, e in enumerate(stage)
    ]
    # The library computes its start by the same call; there is no stored attribute.
    base = np.array(head._raw_predict_init(np.zeros((1, head.n_features_in_), dtype=np.float32))[0], dtype=np.float64)
    link = SIGMOID if head.n_trees_per_iteration_ == 1 else SOFTMAX
    return Ensemble(assemble(trees, Convention(base, link, single=True), head.n_features_in_))


def _read_nodes(tree: Any, value: Floats, output: int) -> TreeNodes:
    """Return one of scikit-learn's ``Tree`` objects; value: (nodes, V)."""
    flags = np.where(tree.missing_go_to_left.astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    leaf = tree.children_left < 0
    return TreeNodes(tree.feature, tree.threshold, tree.children_left, tree.children_right, leaf, flags, value, output)


def read_hist_gradient_boosting(head: Any) -> Ensemble:
    """Read predictors that hold their nodes as one structured array."""
    categorical = head.is_categorical_
    columns, vocabulary = np.arange(head.n_features_in_), Vocabulary()  # the input column behind each that trees see
    if categorical is not None and categorical.any():
        columns = np.concatenate([np.flatnonzero(categorical), np.flatnonzero(~categorical)])
        kept = head._preprocessor.named_transformers_["encoder"].categories_
        known = head._bin_mapper.bin_thresholds_  # of a column of categories: the codes that training had
        listed = {}
        for place, categories in enumerate(kept):
            codes = {int(code) for code in known[place]}
            listed[int(columns[place])] = {
                (c.item() if isinstance(c, np.generic) else c): code
                for code, c in enumerate(categories)
                if not is_missing(c) and code in codes
            }
        vocabulary = Vocabulary(listed=listed)
    sets: list[Sequence[int]] = []
    trees = [_read_hist_nodes(tree, k, columns, sets) for stage in head._predictors for k, tree in enumerate(stage)]
    base = np.array(head._baseline_prediction, dtype=np.float64).reshape(-1)
    link = SIGMOID if head.n_trees_per_iteration_ == 1 else SOFTMAX
    return Ensemble(assemble(trees, Convention(base, link), head.n_features_in_, sets), vocabulary)


def _read_hist_nodes(predictor: Any, output: int, columns: Integers, sets: list[Sequence[int]]) -> TreeNodes:
    """Return one tree; its category sets are added to ``sets``."""
    nodes = predictor.nodes
    flags = np.where(nodes["missing_go_to_left"].astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    threshold = nodes["num_threshold"].copy()
    leaf = nodes["is_leaf"].astype(bool)
    for node in np.flatnonzero(nodes["is_categorical"].astype(bool) & ~leaf):
        flags[node] |= CATEGORY_INVERTED  # the listed categories go left
        threshold[node] = len(sets)
        sets.append(list_members(predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]))
    return TreeNodes(
        columns[nodes["feature_idx"]],
        threshold,
        nodes["left"].astype(np.int64),
        nodes["right"].astype(np.int64),
        leaf,
        flags,
        nodes["value"].astype(np.float64)[:, None],
        output,
    )
