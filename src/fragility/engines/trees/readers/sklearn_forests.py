"""scikit-learn's trees and forests: a leaf holds class probabilities, a forest takes their mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.arrays import Floats
from fragility.engines.trees.encoding import AVERAGE, NAN_RIGHT
from fragility.engines.trees.forest import Convention, TreeNodes, assemble
from fragility.engines.trees.recoding import Ensemble
from fragility.errors import EngineError


def read_forest(head: Any) -> Ensemble:
    return _read(head, list(head.estimators_))


def read_tree(head: Any) -> Ensemble:
    return _read(head, [head])


def _read(head: Any, estimators: list[Any]) -> Ensemble:
    if head.n_outputs_ > 1:
        raise EngineError(f"{type(head).__name__} with {head.n_outputs_} outputs")
    trees = [tree_nodes(e.tree_, e.tree_.value[:, 0, :], 0) for e in estimators]
    base = np.zeros(int(head.n_classes_))
    convention = Convention(base, AVERAGE, divisor=float(len(trees)), single=True)
    return Ensemble(assemble(trees, convention, head.n_features_in_))


def tree_nodes(tree: Any, value: Floats, output: int) -> TreeNodes:
    """Return one of scikit-learn's ``Tree`` objects; value: (nodes, V)."""
    flags = np.where(tree.missing_go_to_left.astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    leaf = tree.children_left < 0
    return TreeNodes(tree.feature, tree.threshold, tree.children_left, tree.children_right, leaf, flags, value, output)
