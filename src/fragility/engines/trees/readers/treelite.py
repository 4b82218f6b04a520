"""Treelite: trees from the arrays of a checkpoint, compared as GTIL compares cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragility.base.errors import EngineError
from fragility.engines.trees.forest import (
    AVERAGE,
    CATEGORY,
    CATEGORY_INVERTED,
    NAN_RIGHT,
    SIGMOID,
    SOFTMAX,
    Convention,
    TreeNodes,
    assemble,
)
from fragility.engines.trees.recoding import Ensemble

LEAF, CATEGORICAL = 0, 2  # types of nodes; 1 is a numeric test
LESS, AT_MOST = 2, 3  # what sends a cell to the left


def read_checkpoint(head: Any) -> Ensemble:
    settings, model = head.settings, head.model
    n_outputs, n_trees, single = int(settings["num_class"][0]), int(model.num_tree), model.input_type == "float32"
    sets: list[Sequence[int]] = []
    # The leaves of a forest hold a value for each output, and its trees belong to none.
    trees = [
        _read_nodes(model.get_tree_accessor(i).get_field, max(int(output), 0), sets)
        for i, output in zip(range(n_trees), settings["class_id"], strict=True)
    ]
    # GTIL adds the base scores last; the order changes the last bits of a float32 sum, which the checks allow for.
    base = np.array(settings["base_scores"], dtype=np.float32 if model.output_type == "float32" else np.float64)
    averaged = bool(settings["average_tree_output"][0])
    if averaged and base.any():
        raise EngineError("a Treelite checkpoint of averaged trees with base scores")
    link = AVERAGE if not head.linked else SIGMOID if n_outputs == 1 else SOFTMAX
    scale = float(settings["sigmoid_alpha"][0]) if link == SIGMOID else 1.0
    convention = Convention(base, link, divisor=float(n_trees) if averaged else 1.0, scale=scale, single=single)
    return Ensemble(assemble(trees, convention, int(settings["num_feature"][0]), sets))


def _read_nodes(field: Callable[[str], Any], output: int, sets: list[Sequence[int]]) -> TreeNodes:
    """Return one tree; its category sets are added to ``sets``."""
    kind, compared, threshold = field("node_type"), field("cmp"), field("threshold")
    leaf, categorical = kind == LEAF, kind == CATEGORICAL
    if not np.isin(compared[~leaf & ~categorical], (LESS, AT_MOST)).all():
        raise EngineError("a Treelite test that sends larger cells to the left")
    threshold = np.where(compared == LESS, np.nextafter(threshold, threshold.dtype.type(-np.inf)), threshold)
    threshold = threshold.astype(np.float64)
    flags = np.where(field("default_left").astype(bool), 0, NAN_RIGHT).astype(np.uint8)
    starts, ends, listed = field("category_list_begin"), field("category_list_end"), field("category_list")
    for node in np.flatnonzero(categorical):
        flags[node] |= CATEGORY if field("category_list_right_child")[node] else CATEGORY_INVERTED
        threshold[node] = len(sets)
        sets.append(listed[int(starts[node]) : int(ends[node])].tolist())
    value, width = field("leaf_value")[:, None], int(np.max(field("leaf_vector_end") - field("leaf_vector_begin")))
    if width:
        vectors, value = field("leaf_vector"), np.zeros((len(kind), width))
        for node in np.flatnonzero(leaf):
            value[node] = vectors[int(field("leaf_vector_begin")[node]) : int(field("leaf_vector_end")[node])]
    return TreeNodes(field("split_index"), threshold, field("cleft"), field("cright"), leaf, flags, value, output)
