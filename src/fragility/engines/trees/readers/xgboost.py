"""XGBoost: trees from the JSON form of its booster, in float32."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.engines.trees.encoding import CATEGORY, NAN_RIGHT, SIGMOID, SOFTMAX
from fragility.engines.trees.forest import Convention, TreeNodes, assemble
from fragility.engines.trees.recoding import Ensemble, Vocabulary
from fragility.errors import EngineError

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
    settings = learner["learner_model_param"]
    n_classes = max(int(settings["num_class"]), 1)
    _refuse_unknown(learner, n_classes)
    model = learner["gradient_booster"]["model"]
    end = model["iteration_indptr"][last] if last is not None else len(model["trees"])
    sets: list[Sequence[int]] = []
    trees = [
        _nodes(tree, output, sets) for tree, output in zip(model["trees"][:end], model["tree_info"][:end], strict=True)
    ]
    base = _base(settings["base_score"], n_classes)
    link = SIGMOID if n_classes == 1 else SOFTMAX
    convention = Convention(base, link, single=True, absent_missing=True)
    forest = assemble(trees, convention, int(settings["num_feature"]), sets)
    return Ensemble(forest, _vocabulary(model.get("cats", {}).get("enc", [])))


def _vocabulary(kept: list[dict[str, Any]]) -> Vocabulary:
    """Return the categories of each column that was a frame's categories in training; a sliced booster has none."""
    listed: dict[int, dict[Any, int]] = {}
    cut: dict[int, tuple[bytes, ...]] = {}
    for column, values in enumerate(kept):
        texts = _texts(values) if "offsets" in values else ()
        if all(text.isascii() for text in texts):
            decoded = [text.decode("ascii") for text in texts] or values["values"]
            listed[column] = {category: code for code, category in enumerate(decoded)}
        else:
            cut[column] = texts
    listed = {column: codes for column, codes in listed.items() if codes}
    # A category that training did not have is taken for its neighbour in order, or refused: it is not missing.
    return Vocabulary(listed=listed, cut=cut, own_codes=True, closed=True)


def _texts(kept: dict[str, Any]) -> tuple[bytes, ...]:
    """Return texts that are kept as the bytes of all of them and where each begins."""
    joined = bytes(value & 0xFF for value in kept["values"])
    return tuple(joined[a:b] for a, b in itertools.pairwise(kept["offsets"]))


def _refuse_unknown(learner: dict[str, Any], n_classes: int) -> None:
    objective, boosted = learner["objective"]["name"], learner["gradient_booster"]
    if objective not in OBJECTIVES:
        raise EngineError(f"XGBoost objective {objective} has no link the tree engine knows")
    if boosted["name"] != "gbtree":
        raise EngineError(f"XGBoost booster {boosted['name']} is not a plain sum of trees")
    if int(learner["learner_model_param"].get("num_target", 1)) > n_classes:
        raise EngineError("XGBoost model with several targets")


def _base(text: str, n_outputs: int) -> npt.NDArray[np.float32]:
    """Return the margin the sums start from: a logit for binary models, as it stands for softmax."""
    score = np.atleast_1d(np.asarray(json.loads(text), dtype=np.float32))
    if n_outputs == 1:
        # float64 log rounded once gives what the library's float32 logarithm gives
        odds = np.float32(1.0) / score - np.float32(1.0)
        score = (-np.log(odds.astype(np.float64))).astype(np.float32)
    return np.ascontiguousarray(np.broadcast_to(score, n_outputs))


def _nodes(tree: dict[str, Any], output: int, sets: list[Sequence[int]]) -> TreeNodes:
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
