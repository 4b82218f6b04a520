"""CatBoost: oblivious trees from its JSON export; one test per level, leaf index bit j = test of level j."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fragility.engines.trees.forest import (
    CATEGORY,
    NAN_RIGHT,
    SIGMOID,
    SOFTMAX,
    Convention,
    Forest,
    collect_tests,
    find_starts,
)
from fragility.engines.trees.recoding import Ensemble, Vocabulary
from fragility.errors import EngineError
from fragility.evidence import CellForm

LOSSES = ("Logloss", "CrossEntropy", "MultiClass")


def read_classifier(head: Any) -> Ensemble:
    loss = str(head.get_all_params().get("loss_function", "")).split(":")[0]
    if loss not in LOSSES:
        raise EngineError(f"CatBoost loss {loss or 'custom'!r} has no link the tree engine knows")
    document = _export(head)
    _refuse_unknown(document)
    bias = document["scale_and_bias"][1]
    n_outputs = len(bias) if loss == "MultiClass" else 1
    base = np.zeros(n_outputs) + np.array(bias, dtype=np.float64)
    convention = Convention(base, SIGMOID if n_outputs == 1 else SOFTMAX, single=True)
    features = document["features_info"].get("categorical_features", [])
    vocabulary = Vocabulary(coded=_Hashes(head, features).code_forms) if features else Vocabulary()
    return Ensemble(_assemble(document, convention), vocabulary)


def _export(head: Any, pool: Any = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        head.save_model(str(path), format="json", pool=pool)
        return dict(json.loads(path.read_text()))


def _refuse_unknown(document: dict[str, Any]) -> None:
    known = {"float_features", "categorical_features", "cat_features_hash"}
    others = sorted(name for name in set(document["features_info"]) - known if document["features_info"][name])
    if others:
        statistics = " (target statistics of categories; one_hot_max_size reads them one by one)"
        raise EngineError(f"CatBoost model with {', '.join(others)}{statistics if 'ctrs' in others else ''}")
    if "oblivious_trees" not in document:
        raise EngineError("CatBoost trees that are not symmetric (grow_policy)")
    if (scale := document["scale_and_bias"][0]) != 1:
        raise EngineError(f"CatBoost model with scale {scale}")
    kinds = {split["split_type"] for tree in document["oblivious_trees"] for split in tree["splits"]}
    if unread := kinds - {"FloatFeature", "OneHotFeature"}:
        raise EngineError(f"CatBoost model with a split of type {', '.join(sorted(unread))}")


def _assemble(document: dict[str, Any], convention: Convention) -> Forest:
    """Return the forest: tests and leaves alone, since an oblivious tree needs no nodes."""
    info, trees = document["features_info"], document["oblivious_trees"]
    numbers = {feature["feature_index"]: feature for feature in info["float_features"]}
    categories = {feature["feature_index"]: feature for feature in info.get("categorical_features", [])}
    sets: list[Sequence[int]] = []
    splits: list[tuple[int, float, int]] = []  # column, threshold and flags of all levels of all trees
    for split in (split for tree in trees for split in tree["splits"]):
        if split["split_type"] == "FloatFeature":
            feature = numbers[split["float_feature_index"]]
            # AsTrue sends NaN to the side of v > border; AsFalse and AsIs (NaN > border is false) do not
            flags = NAN_RIGHT if feature["nan_value_treatment"] == "AsTrue" else 0
            splits.append((feature["flat_feature_index"], float(np.float32(split["border"])), flags))
        else:
            # The one category that is asked for goes right; its code is its place among those the model asks for.
            feature = categories[split["cat_feature_index"]]
            splits.append((feature["flat_feature_index"], float(len(sets)), CATEGORY))
            sets.append([[value % 2**32 for value in feature["values"]].index(split["value"] % 2**32)])
    n_columns = max((f["flat_feature_index"] for f in (*numbers.values(), *categories.values())), default=-1) + 1
    column, threshold, flag = zip(*splits, strict=True) if splits else ((), (), ())
    tests, level_test = collect_tests(
        np.array(column, np.int32), np.array(threshold, np.float64), np.array(flag, np.uint8), n_columns, sets
    )
    leaves = [np.array(tree["leaf_values"], dtype=np.float64).reshape(-1, len(convention.base)) for tree in trees]
    no_nodes = np.zeros(0, dtype=np.int32)
    return Forest(
        **tests,
        node_test=no_nodes,
        node_right=no_nodes,
        tree_start=np.zeros(len(trees) + 1, dtype=np.int64),
        leaf_start=find_starts([len(values) for values in leaves]),
        leaf_value=np.concatenate(leaves),
        tree_output=np.zeros(len(trees), dtype=np.int32),
        level_test=level_test,
        level_start=find_starts([len(tree["splits"]) for tree in trees]),
        **convention._asdict(),
    )


class _Hashes:
    """What CatBoost makes of a category: the hash of its text, asked of the library itself and kept."""

    def __init__(self, head: Any, features: list[dict[str, Any]]) -> None:
        self.head = head
        self.asked = {f["flat_feature_index"]: [value % 2**32 for value in f.get("values", [])] for f in features}
        self.hash_of: dict[str, int] = {}

    def code_forms(self, forms: Sequence[CellForm]) -> dict[int, dict[Any, int]]:
        """Return {category: code} of each column of categories; one that no tree asks for has no code."""
        texts = {column: forms[column].values for column in self.asked}
        for column, values in texts.items():
            if values is None or not all(type(value) is str for value in values):
                raise EngineError(f"column {column} holds categories that are not texts")
        new = sorted({str(v) for values in texts.values() for v in values or ()} - set(self.hash_of))
        if new:  # the model is exported with a table of these texts: CatBoost then lists their hashes
            import pandas as pd
            from catboost import Pool

            names = list(self.head.feature_names_)
            cells = {name: new if j in self.asked else 0.0 for j, name in enumerate(names)}
            pool = Pool(pd.DataFrame(cells, columns=names), cat_features=sorted(self.asked))
            listed = _export(self.head, pool)["features_info"]["cat_features_hash"]
            self.hash_of |= {entry["value"]: entry["hash"] % 2**32 for entry in listed}
        return {
            column: {v: asked.index(self.hash_of[v]) for v in texts[column] or () if self.hash_of[v] in asked}
            for column, asked in self.asked.items()
        }
