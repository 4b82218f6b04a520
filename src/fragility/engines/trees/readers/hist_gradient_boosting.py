"""scikit-learn's HistGradientBoostingClassifier: its predictors hold their nodes as one structured array.

Columns of categories are numbered by an encoder of its own and stand before all others where its trees see them. A
category that training did not have is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Integers
from fragility.canonical import is_missing
from fragility.engines.trees.encoding import CATEGORY_INVERTED, NAN_RIGHT, SIGMOID, SOFTMAX
from fragility.engines.trees.forest import Convention, TreeNodes, assemble
from fragility.engines.trees.recoding import Ensemble, Vocabulary


def read(head: Any) -> Ensemble:
    columns = _columns(head)
    sets: list[Sequence[int]] = []
    trees = [_nodes(predictor, k, columns, sets) for stage in head._predictors for k, predictor in enumerate(stage)]
    base = np.array(head._baseline_prediction, dtype=np.float64).reshape(-1)
    link = SIGMOID if head.n_trees_per_iteration_ == 1 else SOFTMAX
    return Ensemble(assemble(trees, Convention(base, link), head.n_features_in_, sets), _vocabulary(head, columns))


def _columns(head: Any) -> Integers:
    """Return (d,) the input column behind each column that the trees see: those of categories come first."""
    if head.is_categorical_ is None:
        return np.arange(head.n_features_in_)
    return np.concatenate([np.flatnonzero(head.is_categorical_), np.flatnonzero(~head.is_categorical_)])


def _vocabulary(head: Any, columns: Integers) -> Vocabulary:
    if head.is_categorical_ is None or not head.is_categorical_.any():
        return Vocabulary()
    kept = head._preprocessor.named_transformers_["encoder"].categories_
    known = head._bin_mapper.bin_thresholds_  # of a column of categories: the codes that training had
    listed = {}
    for place, categories in enumerate(kept):
        codes = {int(code) for code in known[place]}
        places = {_plain(c): code for code, c in enumerate(categories) if not is_missing(c) and code in codes}
        listed[int(columns[place])] = places
    return Vocabulary(listed=listed)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _nodes(predictor: Any, output: int, columns: Integers, sets: list[Sequence[int]]) -> TreeNodes:
    """Return one tree; its category sets are added to ``sets``."""
    nodes = predictor.nodes
    flags = np.where(nodes["missing_go_to_left"].astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    threshold = nodes["num_threshold"].copy()
    leaf = nodes["is_leaf"].astype(bool)
    for node in np.flatnonzero(nodes["is_categorical"].astype(bool) & ~leaf):
        flags[node] |= CATEGORY_INVERTED  # the listed categories go left
        threshold[node] = len(sets)
        sets.append(_members(predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]))
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


def _members(words: npt.NDArray[np.uint32]) -> list[int]:
    """Return the codes whose bits are set in 8 words."""
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]
