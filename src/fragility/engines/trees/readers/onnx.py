"""ONNX: the tree ensemble of a graph that hands it the file's columns as they are, in float32.

onnxruntime compares cells and adds weights in float32, tree by tree, and adds the base values last; here they are the
leaves of trees without a split, behind all others. Of two classes, an ensemble may hold the votes for one alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from fragility.base.errors import EngineError
from fragility.engines.trees.forest import AVERAGE, NAN_RIGHT, SIGMOID, SOFTMAX, Convention, Flags, TreeNodes, assemble
from fragility.engines.trees.recoding import Ensemble
from fragility.models.onnx_graphs import Trees

# mode: does a cell that passes the test go right, and is one that equals the threshold among those
MODES = {
    "BRANCH_LEQ": (False, True),
    "BRANCH_LT": (False, False),
    "BRANCH_GT": (True, False),
    "BRANCH_GTE": (True, True),
}


LINKS = {"sigmoid": SIGMOID, "softmax": SOFTMAX, "average": AVERAGE}


def read_classifier(head: Any) -> Ensemble:
    found = head.find_trees()
    if found is None:
        raise EngineError("the ONNX file is not one tree ensemble on its columns as they are")
    trees = found.trees
    _refuse_unknown(trees)
    # A leaf holds a value for each output, unless each tree adds to one output alone.
    leaf_values = np.zeros((len(trees.column), found.n_outputs), dtype=np.float32)
    leaf_values[trees.weight_node, trees.weight_output] = trees.weight
    parts = [slice(start, stop) for start, stop in itertools.pairwise(trees.starts)]
    added_to = [np.flatnonzero((leaf_values[part] != 0.0).any(axis=0)) for part in parts]
    apart = all(len(outputs) <= 1 for outputs in added_to)
    nodes = _orient_nodes(trees)
    read = []
    for part, outputs in zip(parts, added_to, strict=True):
        output = int(outputs[0]) if apart and len(outputs) else 0
        value = leaf_values[part, output : output + 1] if apart else leaf_values[part]
        read.append(nodes(part, value, output))
    base = trees.base.astype(np.float32)
    if base.any():
        if len(base) != found.n_outputs:
            raise EngineError("the tree ensemble of the ONNX file has base values for other outputs than its trees")
        read += [_make_leaf(base[k : k + 1], k) for k in range(len(base))] if apart else [_make_leaf(base, 0)]
    convention = Convention(np.zeros(found.n_outputs, dtype=np.float32), LINKS[found.link], single=True)
    return Ensemble(assemble(read, convention, found.n_columns))


def _refuse_unknown(trees: Trees) -> None:
    if trees.threshold.dtype != np.float32:
        raise EngineError("the tree ensemble of the ONNX file is in double precision, its answers are not")
    if unread := sorted(set(trees.mode) - {*MODES, "LEAF"}):
        raise EngineError(f"the tree ensemble of the ONNX file has tests of the kind {', '.join(unread)}")
    if not all(np.isfinite(part).all() for part in (trees.threshold, trees.weight, trees.base)):
        raise EngineError("the tree ensemble of the ONNX file holds numbers that are not finite")
    owners = np.stack([trees.weight_node, trees.weight_output], axis=1)
    if len(np.unique(owners, axis=0)) < len(owners) or any(trees.mode[node] != "LEAF" for node in owners[:, 0]):
        raise EngineError("the tree ensemble of the ONNX file has several weights per leaf and class")


def _orient_nodes(trees: Trees) -> Callable[[slice, Any, int], TreeNodes]:
    """Return the function (nodes of a tree, their values, output) -> the tree with its tests as ``right iff v > t``."""
    leaf = np.array([mode == "LEAF" for mode in trees.mode])
    right_if_true, inclusive = np.array([MODES.get(mode, (False, True)) for mode in trees.mode]).T
    # v <= t and v > t ask for t itself, v < t and v >= t for the number below it
    below = np.nextafter(trees.threshold, np.float32(-np.inf))
    threshold = np.where(inclusive == right_if_true, below, trees.threshold).astype(np.float64)
    flags: Flags = np.where(trees.missing_true == right_if_true, NAN_RIGHT, 0).astype(np.uint8)
    left = np.where(right_if_true, trees.false, trees.true)
    right = np.where(right_if_true, trees.true, trees.false)

    def cut(part: slice, value: Any, output: int) -> TreeNodes:
        own = (left[part], right[part], leaf[part], flags[part])
        return TreeNodes(trees.column[part], threshold[part], *own, value, output)

    return cut


def _make_leaf(value: Any, output: int) -> TreeNodes:
    """Return a tree without a split."""
    none = np.zeros(1, dtype=np.int64)
    return TreeNodes(none, none, none, none, np.ones(1, dtype=bool), none.astype(np.uint8), value[None], output)
