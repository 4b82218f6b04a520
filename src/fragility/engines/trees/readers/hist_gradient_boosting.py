"""scikit-learn's HistGradientBoostingClassifier: its predictors hold their nodes as one structured array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.engines.trees.encoding import NAN_RIGHT, SIGMOID, SOFTMAX
from fragility.engines.trees.forest import Convention, Forest, TreeNodes, assemble
from fragility.errors import EngineError


def read(head: Any) -> Forest:
    if head.is_categorical_ is not None and np.any(head.is_categorical_):
        raise EngineError("HistGradientBoostingClassifier re-codes categorical features before its trees")
    trees = [_nodes(predictor.nodes, k) for stage in head._predictors for k, predictor in enumerate(stage)]
    base = np.array(head._baseline_prediction, dtype=np.float64).reshape(-1)
    link = SIGMOID if head.n_trees_per_iteration_ == 1 else SOFTMAX
    return assemble(trees, Convention(base, link), head.n_features_in_)


def _nodes(nodes: npt.NDArray[Any], output: int) -> TreeNodes:
    flags = np.where(nodes["missing_go_to_left"].astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    return TreeNodes(
        nodes["feature_idx"],
        nodes["num_threshold"],
        nodes["left"].astype(np.int64),
        nodes["right"].astype(np.int64),
        nodes["is_leaf"].astype(bool),
        flags,
        nodes["value"].astype(np.float64)[:, None],
        output,
    )
