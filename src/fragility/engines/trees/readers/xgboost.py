"""XGBoost: trees from the JSON form of its booster, in float32."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragility.base.errors import EngineError
from fragility.engines.trees.forest import CATEGORY, NAN_RIGHT, SIGMOID, SOFTMAX, Convention, TreeNodes, assemble
from fragility.engines.trees.recoding import Ensemble, Vocabulary, number_categories

OBJECTIVES = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")


def read_classifier(head: Any) -> Ensemble:
    if not np.isnan(head.missing):
        raise EngineError(f"XGBoost takes {head.missing!r} for missing instead of NaN")
    booster = head.get_booster()
    try:
        last = int(booster.best_iteration) + 1
    except AttributeError:  # fitted without early stopping
        last = None
    return _read(booster, last)


def read_booster(booster: Any) -> Ensemble:
    best = booster.attr("best_iteration")
    return _read(booster, None if best is None else int(best) + 1)


def _read(booster: Any, last: int | None) -> Ensemble:
    learner = json.loads(booster.save_raw("json"))["learner"]
    settings, objective, boosted = learner["learner_model_param"], learner["objective"], learner["gradient_booster"]
    n_outputs = max(int(settings["num_class"]), 1)
    if objective["name"] not in OBJECTIVES:
        raise EngineError(f"XGBoost objective {objective['name']} has no link the tree engine knows")
    if boosted["name"] != "gbtree":
        raise EngineError(f"XGBoost booster {boosted['name']} is not a plain sum of trees")
    if int(settings.get("num_target", 1)) > n_outputs:
        raise EngineError("XGBoost model with several targets")
    # The sums start from a logit for binary models, from the score as it stands for softmax.
    base = np.atleast_1d(np.asarray(json.loads(settings["base_score"]), dtype=np.float32))
    if n_outputs == 1:
        from fragility.engines.kernels.links import fill_logits

        logits = np.empty_like(base)
        fill_logits(base, np.ones(1, dtype=np.float32), logits)
        base = logits
    base = np.ascontiguousarray(np.broadcast_to(base, n_outputs))
    convention = Convention(base, SIGMOID if n_outputs == 1 else SOFTMAX, single=True, absent_missing=True)
    model = boosted["model"]
    end = len(model["trees"]) if last is None else _first_tree(model, last, n_outputs)
    outputs, sets = model["tree_info"][:end], list[Sequence[int]]()
    trees = [_read_nodes(tree, output, sets) for tree, output in zip(model["trees"][:end], outputs, strict=True)]
    forest = assemble(trees, convention, int(settings["num_feature"]), sets)
    return Ensemble(forest, _read_vocabulary(model.get("cats", {}).get("enc", [])))


def _first_tree(model: dict[str, Any], iteration: int, n_outputs: int) -> int:
    """Return the number of trees before an iteration; versions before 2.0 do not list it."""
    if "iteration_indptr" in model:
        return int(model["iteration_indptr"][iteration])
    return iteration * n_outputs * max(int(model["gbtree_model_param"]["num_parallel_tree"]), 1)


def _read_vocabulary(kept: list[dict[str, Any]]) -> Vocabulary:
    """Return the categories of each column that was a frame's categories in training; a sliced booster has none."""
    listed: dict[int, dict[Any, int]] = {}
    cut: dict[int, tuple[bytes, ...]] = {}
    for column, values in enumerate(kept):
        texts: tuple[bytes, ...] = ()
        if "offsets" in values:  # texts are kept as the bytes of all of them and where each begins
            joined = bytes(value & 0xFF for value in values["values"])
            texts = tuple(joined[a:b] for a, b in itertools.pairwise(values["offsets"]))
        if all(text.isascii() for text in texts):
            decoded = [text.decode("ascii") for text in texts] or values["values"]
            if len(decoded):
                listed[column] = number_categories(decoded)
        else:
            cut[column] = texts
    # A category that training did not have is taken for its neighbour in order, or refused: it is not missing.
    return Vocabulary(listed=listed, cut=cut, own_codes=True, closed=True)


def _read_nodes(tree: dict[str, Any], output: int, sets: list[Sequence[int]]) -> TreeNodes:
    """Return one tree; its category sets are added to ``sets``."""
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise EngineError("XGBoost trees with a vector in each leaf (multi_output_tree)")
    condition = np.asarray(tree["split_conditions"], dtype=np.float32)
    left = np.asarray(tree["left_children"])
    flags = np.where(np.asarray(tree["default_left"], dtype=bool), 0, NAN_RIGHT).astype(np.uint8)
    threshold = np.nextafter(condition, np.float32(-np.inf)).astype(np.float64)
    segments = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
    for node, start, size in segments:
        flags[node] |= CATEGORY  # the listed categories go right
        threshold[node] = len(sets)
        sets.append(tree["categories"][start : start + size])
    column, right = np.asarray(tree["split_indices"]), np.asarray(tree["right_children"])
    return TreeNodes(column, threshold, left, right, left < 0, flags, condition[:, None], output)
