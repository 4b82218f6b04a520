"""CatBoost: oblivious trees from its JSON export; one test a level, leaf index bit j = test of level j."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fragility.arrays import Floats
from fragility.engines.trees.encoding import NAN_RIGHT, SIGMOID, SOFTMAX
from fragility.engines.trees.forest import (
    NO_SETS,
    Columns,
    Convention,
    Flags,
    Forest,
    column_starts,
    distinct_tests,
    starts_of,
)
from fragility.engines.trees.recoding import Ensemble
from fragility.errors import EngineError

LOSSES = ("Logloss", "CrossEntropy", "MultiClass")


def read(head: Any) -> Ensemble:
    loss = str(head.get_all_params().get("loss_function", "")).split(":")[0]
    if loss not in LOSSES:
        raise EngineError(f"CatBoost loss {loss or 'custom'!r} has no link the tree engine knows")
    document = _exported(head)
    _refuse_unknown(document)
    bias = document["scale_and_bias"][1]
    n_outputs = len(bias) if loss == "MultiClass" else 1
    base = np.zeros(n_outputs) + np.array(bias, dtype=np.float64)
    convention = Convention(base, SIGMOID if n_outputs == 1 else SOFTMAX, single=True)
    return Ensemble(_assemble(document, convention))


def _exported(head: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        head.save_model(str(path), format="json")
        return dict(json.loads(path.read_text()))


def _refuse_unknown(document: dict[str, Any]) -> None:
    others = sorted(set(document["features_info"]) - {"float_features"})
    if any(document["features_info"][name] for name in others):
        raise EngineError(f"CatBoost model with {', '.join(others)}")
    if "oblivious_trees" not in document:
        raise EngineError("CatBoost trees that are not symmetric (grow_policy)")
    if (scale := document["scale_and_bias"][0]) != 1:
        raise EngineError(f"CatBoost model with scale {scale}")
    splits = [split for tree in document["oblivious_trees"] for split in tree["splits"]]
    other = next((split["split_type"] for split in splits if split["split_type"] != "FloatFeature"), None)
    if other is not None:
        raise EngineError(f"CatBoost model with a split of type {other}")


def _assemble(document: dict[str, Any], convention: Convention) -> Forest:
    """Return the forest: tests and leaves alone, since an oblivious tree needs no nodes."""
    features, trees = document["features_info"]["float_features"], document["oblivious_trees"]
    tests, level_test = distinct_tests(*_splits(features, trees))
    leaves = [np.array(tree["leaf_values"], dtype=np.float64).reshape(-1, len(convention.base)) for tree in trees]
    n_columns = max((feature["flat_feature_index"] for feature in features), default=-1) + 1
    no_nodes = np.zeros(0, dtype=np.int32)
    return Forest(
        *tests,
        column_start=column_starts(tests[0], n_columns),
        set_start=NO_SETS[0],
        set_words=NO_SETS[1],
        node_test=no_nodes,
        node_right=no_nodes,
        tree_start=np.zeros(len(trees) + 1, dtype=np.int64),
        leaf_start=starts_of([len(values) for values in leaves]),
        leaf_value=np.concatenate(leaves),
        tree_output=np.zeros(len(trees), dtype=np.int32),
        level_test=level_test,
        level_start=starts_of([len(tree["splits"]) for tree in trees]),
        **convention._asdict(),
    )


def _splits(features: list[dict[str, Any]], trees: list[dict[str, Any]]) -> tuple[Columns, Floats, Flags]:
    """Return (columns, thresholds, flags) of all levels of all trees."""
    by_index = {feature["feature_index"]: feature for feature in features}
    splits = [split for tree in trees for split in tree["splits"]]
    asked = [by_index[split["float_feature_index"]] for split in splits]
    column = np.array([feature["flat_feature_index"] for feature in asked], dtype=np.int32)
    threshold = np.array([split["border"] for split in splits], dtype=np.float32).astype(np.float64)
    # nan_value_treatment: AsTrue sends NaN to the side of v > border; AsFalse and AsIs (NaN > border is false) do not
    flags = [NAN_RIGHT if feature["nan_value_treatment"] == "AsTrue" else 0 for feature in asked]
    return column, threshold, np.array(flags, dtype=np.uint8)
