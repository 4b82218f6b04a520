"""scikit-learn's GradientBoostingClassifier: regression trees times the learning rate, on a constant start."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.arrays import Floats
from fragility.engines.trees.encoding import SIGMOID, SOFTMAX
from fragility.engines.trees.forest import Convention, assemble
from fragility.engines.trees.readers.sklearn_forests import tree_nodes
from fragility.engines.trees.recoding import Ensemble
from fragility.errors import EngineError


def read(head: Any) -> Ensemble:
    if head.loss != "log_loss":
        raise EngineError(f"GradientBoostingClassifier with loss {head.loss!r}")
    trees = [
        tree_nodes(e.tree_, head.learning_rate * e.tree_.value[:, 0, :], k)
        for stage in head.estimators_
        for k, e in enumerate(stage)
    ]
    link = SIGMOID if head.n_trees_per_iteration_ == 1 else SOFTMAX
    return Ensemble(assemble(trees, Convention(_base(head), link, single=True), head.n_features_in_))


def _base(head: Any) -> Floats:
    """Return the constant raw score of the initial estimator; refuse one that looks at the row."""
    if head.init_ != "zero" and type(head.init_).__name__ != "DummyClassifier":
        raise EngineError(f"GradientBoostingClassifier with init={type(head.init_).__name__}")
    if head.init_ != "zero" and head.init_.strategy != "prior":
        raise EngineError(f"GradientBoostingClassifier with a {head.init_.strategy!r} initial estimator")
    # The library computes it by the same call; there is no stored attribute.
    return np.array(head._raw_predict_init(np.zeros((1, head.n_features_in_), dtype=np.float32))[0], dtype=np.float64)
