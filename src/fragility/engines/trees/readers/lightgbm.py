"""LightGBM: trees from the text form of its booster, in float64."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragility.base.errors import EngineError
from fragility.engines.trees.forest import (
    CATEGORY_INVERTED,
    NAN_RIGHT,
    NUMERIC,
    SIGMOID,
    SOFTMAX,
    ZERO_BAND,
    Convention,
    TreeNodes,
    assemble,
    list_members,
)
from fragility.engines.trees.recoding import Ensemble, Vocabulary, number_categories

# ``decision_type`` of a node: is it a category, does a missing cell go left, and what counts as missing
CATEGORY_BIT, DEFAULT_LEFT_BIT = 1, 2
MISSING_SHIFT, MISSING_MASK = 2, 3
# Lines of numbers of a tree; a single leaf has few of them
NUMBERS = {
    "split_feature": np.int64,
    "threshold": np.float64,
    "decision_type": np.int64,
    "left_child": np.int64,
    "right_child": np.int64,
    "leaf_value": np.float64,
}
NAN_IS_ZERO, ZERO_IS_MISSING = 0, 1  # and 2: NaN alone is missing
TINY = 1e-30  # cells within float32(1e-35) of 0 are compared as 0 in dense rows, as they are in sparse ones


def read_classifier(head: Any) -> Ensemble:
    if head.get_params().get("pred_early_stop") not in (None, False):
        raise EngineError("LightGBM stops adding trees to confident rows (pred_early_stop)")
    return read_booster(head.booster_)


def read_booster(booster: Any) -> Ensemble:
    header, *blocks = booster.model_to_string().split("\nTree=")
    settings = _parse_settings(header)
    objective = settings.get("objective", "").split()
    if not objective or objective[0] not in ("binary", "multiclass"):
        name = settings.get("objective", "custom")
        raise EngineError(f"LightGBM objective {name!r} has no link the tree engine knows")
    if re.search(r"^average_output$", header, flags=re.MULTILINE):
        raise EngineError("LightGBM boosting type rf averages probabilities, not scores")
    n_outputs = int(settings["num_tree_per_iteration"])
    sets: list[Sequence[int]] = []
    trees = [_read_nodes(block, t % n_outputs, sets) for t, block in enumerate(_parse_trees(blocks))]
    scale = float(next((word.split(":")[1] for word in objective if word.startswith("sigmoid:")), 1.0))
    convention = Convention(np.zeros(n_outputs), SIGMOID if n_outputs == 1 else SOFTMAX, scale=scale)
    forest = assemble(trees, convention, int(settings["max_feature_idx"]) + 1, sets)
    vocabulary = Vocabulary(in_order=[number_categories(kept) for kept in booster.pandas_categorical or ()])
    return Ensemble(forest, vocabulary, least=TINY)


def _parse_settings(text: str) -> dict[str, Any]:
    return dict(line.split("=", 1) for line in text.split("\n") if "=" in line)


def _parse_trees(blocks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings of each tree, its columns of numbers as arrays."""
    trees = [_parse_settings(block.split("\n\n")[0]) for block in blocks]
    for name, kind in NUMBERS.items():
        words = [tree.get(name, "").split() for tree in trees]
        # one conversion for all trees: a call for each costs more than its numbers
        joined = np.array(list(itertools.chain.from_iterable(words)), dtype=kind)
        ends = np.cumsum([len(part) for part in words], dtype=np.int64)
        for tree, part in zip(trees, np.split(joined, ends[:-1]), strict=False):  # one empty part without trees
            tree[name] = part
    return trees


def _read_nodes(block: dict[str, Any], output: int, sets: list[Sequence[int]]) -> TreeNodes:
    """Return one tree, its leaves behind its inner nodes; its category sets are added to ``sets``."""
    if block.get("is_linear", "0") != "0":
        raise EngineError("LightGBM trees with linear models in their leaves (linear_tree)")
    n_leaves = int(block["num_leaves"])
    inner, pad = n_leaves - 1, np.zeros(n_leaves, dtype=np.int64)
    threshold, decision = block["threshold"].copy(), block["decision_type"]
    default_right = (decision & DEFAULT_LEFT_BIT) == 0
    missing = (decision >> MISSING_SHIFT) & MISSING_MASK
    nan_right = np.where(missing == NAN_IS_ZERO, threshold < 0.0, default_right)  # 0 > t
    flags = np.where(nan_right, NAN_RIGHT, 0) | np.where(missing == ZERO_IS_MISSING, ZERO_BAND, NUMERIC)
    own_sets: list[list[int]] = []
    if block.get("num_cat", "0") != "0":
        bounds = [int(word) for word in block["cat_boundaries"].split()]
        words = np.array(block["cat_threshold"].split(), dtype=np.uint32)
        own_sets = [list_members(words[a:b]) for a, b in itertools.pairwise(bounds)]
    for node in np.flatnonzero(decision & CATEGORY_BIT):
        flags[node] = CATEGORY_INVERTED | NAN_RIGHT  # the listed categories go left, all else right
        sets.append(own_sets[int(threshold[node])])
        threshold[node] = len(sets) - 1
    # LightGBM numbers leaves from 0 as ~leaf, which is negative
    children = (block["left_child"], block["right_child"])
    left, right = (np.where(child < 0, inner + ~child, child) for child in children)
    return TreeNodes(
        np.concatenate([block["split_feature"], pad]),
        np.concatenate([threshold, pad]),
        np.concatenate([left, pad]),
        np.concatenate([right, pad]),
        np.arange(inner + n_leaves) >= inner,
        np.concatenate([flags, pad]).astype(np.uint8),
        np.concatenate([np.zeros(inner), block["leaf_value"]])[:, None],
        output,
    )
