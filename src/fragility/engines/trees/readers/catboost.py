"""CatBoost: oblivious trees from its JSON export; one test per level, leaf index bit j = test of level j.

A test of target statistics asks whether a number that training found for a category exceeds a border. The export holds
the counts behind these numbers, by the hash of the category, so the categories that pass are a set like any other. That
is so for statistics of one column; those of a combination of columns are refused.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.base.errors import EngineError
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
from fragility.evidence import CellForm

LOSSES = ("Logloss", "CrossEntropy", "MultiClass")
COUNTED = ("Borders", "Buckets", "Counter", "FeatureFreq")  # statistics that are made of counts
MAGIC = 0x4906BA494954CB65  # of CatBoost's hashes of hashes


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
    categories = _list_categories(document)
    vocabulary = Vocabulary(coded=_Hashes(head, categories).code_forms) if categories else Vocabulary()
    return Ensemble(_assemble(document, convention, categories), vocabulary)


def _export(head: Any, pool: Any = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        head.save_model(str(path), format="json", pool=pool)
        return dict(json.loads(path.read_text()))


def _refuse_unknown(document: dict[str, Any]) -> None:
    known = {"float_features", "categorical_features", "cat_features_hash", "ctrs"}
    info = document["features_info"]
    if others := sorted(name for name in set(info) - known if info[name]):
        raise EngineError(f"CatBoost model with {', '.join(others)}")
    if "oblivious_trees" not in document:
        raise EngineError("CatBoost trees that are not symmetric (grow_policy)")
    if (scale := document["scale_and_bias"][0]) != 1:
        raise EngineError(f"CatBoost model with scale {scale}")
    kinds = {split["split_type"] for tree in document["oblivious_trees"] for split in tree["splits"] or ()}
    if unread := kinds - {"FloatFeature", "OneHotFeature", "OnlineCtr"}:
        raise EngineError(f"CatBoost model with a split of type {', '.join(sorted(unread))}")
    for ctr in info.get("ctrs") or ():
        if [element["combination_element"] for element in ctr["elements"]] != ["cat_feature_value"]:
            raise EngineError(
                "CatBoost model with target statistics of combinations of columns (train with max_ctr_complexity of 1)"
            )
        if ctr["ctr_type"] not in COUNTED or ctr["identifier"] not in (document.get("ctr_data") or {}):
            raise EngineError(
                f"CatBoost model with target statistics of type {ctr['ctr_type']}, or without their counts"
            )


# --- categories ---------------------------------------------------------------------------------------------


def _hash_again(value: int) -> int:
    """Return the hash by which CatBoost finds a category of one column, given the 32-bit hash of its text."""
    signed = value - 2**32 if value >= 2**31 else value
    return MAGIC * (MAGIC * signed % 2**64) % 2**64


def _list_categories(document: dict[str, Any]) -> dict[int, list[int]]:
    """Return the hashes of the categories that each column's tests know; their places are their codes."""
    info = document["features_info"]
    features = {f["feature_index"]: f for f in info.get("categorical_features") or ()}
    known: dict[int, dict[int, None]] = {
        f["flat_feature_index"]: dict.fromkeys(_hash_again(value % 2**32) for value in f.get("values") or ())
        for f in features.values()
    }
    for ctr in info.get("ctrs") or ():
        column = features[ctr["elements"][0]["cat_feature_index"]]["flat_feature_index"]
        known[column].update(dict.fromkeys(_read_counts(document, ctr)[0]))
    return {column: list(hashes) for column, hashes in known.items()}


def _read_counts(document: dict[str, Any], ctr: dict[str, Any]) -> tuple[list[int], npt.NDArray[np.float32], int]:
    """Return the hashes of a statistic's categories, their counts (categories, classes), and the count of all rows."""
    table = document["ctr_data"][ctr["identifier"]]
    cells, stride = table["hash_map"], table["hash_stride"]
    hashes = [int(value) for value in cells[::stride]]
    counts = np.array([cells[i + 1 : i + stride] for i in range(0, len(cells), stride)], dtype=np.float32)
    return hashes, counts.reshape(len(hashes), stride - 1), int(table["counter_denominator"])


def _find_passing(document: dict[str, Any], ctr: dict[str, Any], border: float, known: list[int]) -> list[int]:
    """Return the codes of the categories whose statistic exceeds a border, in the library's own precision.

    The statistic is ((good + prior) / (total + prior's weight) + shift) * scale; one that is not known counts nothing,
    and its code is that after the last.
    """
    hashes, counts, everything = _read_counts(document, ctr)
    at, kind = ctr["target_border_idx"], ctr["ctr_type"]
    if kind in ("Counter", "FeatureFreq"):
        good, total = counts[:, 0], np.full(len(counts), everything, dtype=np.float32)
        nothing = np.float32(everything)
    else:
        good = counts[:, at] if kind == "Buckets" else counts[:, at + 1 :].sum(axis=1, dtype=np.float32)
        total, nothing = counts.sum(axis=1, dtype=np.float32), np.float32(0.0)
    good, total = np.append(good, np.float32(0.0)), np.append(total, nothing)
    prior, weight, shift, scale = (
        np.float32(ctr[name]) for name in ("prior_numerator", "prior_denomerator", "shift", "scale")
    )
    passes = ((good + prior) / (total + weight) + shift) * scale > np.float32(border)
    code = {value: place for place, value in enumerate(known)}
    listed = {code[value] for value, passed in zip(hashes, passes[:-1], strict=True) if passed}
    if passes[-1]:  # so do categories of other statistics that this one does not know
        listed |= {place for value, place in code.items() if value not in set(hashes)} | {len(known)}
    return sorted(listed)


# --- trees --------------------------------------------------------------------------------------------------


def _assemble(document: dict[str, Any], convention: Convention, known: Mapping[int, list[int]]) -> Forest:
    """Return the forest: tests and leaves alone, since an oblivious tree needs no nodes."""
    info, trees = document["features_info"], document["oblivious_trees"]
    numbers = {feature["feature_index"]: feature for feature in info.get("float_features") or ()}
    categories = {feature["feature_index"]: feature for feature in info.get("categorical_features") or ()}
    # A test of statistics says its place among all tests: those of numbers first, then categories, then statistics.
    first = sum(len(f.get("borders") or ()) for f in numbers.values())
    first += sum(len(f.get("values") or ()) for f in categories.values())
    statistics = [(ctr, border) for ctr in info.get("ctrs") or () for border in ctr["borders"]]
    sets: list[Sequence[int]] = []
    splits: list[tuple[int, float, int]] = []  # column, threshold and flags of all levels of all trees
    for split in (split for tree in trees for split in tree["splits"] or ()):
        if split["split_type"] == "FloatFeature":
            feature = numbers[split["float_feature_index"]]
            # AsTrue sends NaN to the side of v > border; AsFalse and AsIs (NaN > border is false) do not
            flags = NAN_RIGHT if feature["nan_value_treatment"] == "AsTrue" else 0
            splits.append((feature["flat_feature_index"], float(np.float32(split["border"])), flags))
            continue
        if split["split_type"] == "OneHotFeature":  # the one category that is asked for goes right
            column = categories[split["cat_feature_index"]]["flat_feature_index"]
            passing = [known[column].index(_hash_again(split["value"] % 2**32))]
        else:
            ctr, border = statistics[split["split_index"] - first]
            if border != split["border"]:
                raise EngineError("CatBoost model whose target statistics are numbered in an unknown way")
            column = categories[ctr["elements"][0]["cat_feature_index"]]["flat_feature_index"]
            passing = _find_passing(document, ctr, border, known[column])
        splits.append((column, float(len(sets)), CATEGORY))
        sets.append(passing)
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
        level_start=find_starts([len(tree["splits"] or ()) for tree in trees]),
        **convention._asdict(),
    )


class _Hashes:
    """What CatBoost makes of a category: the hash of its text, asked of the library itself and kept."""

    def __init__(self, head: Any, known: Mapping[int, list[int]]) -> None:
        self.head = head
        self.code_of = {column: {h: code for code, h in enumerate(hashes)} for column, hashes in known.items()}
        self.hash_of: dict[str, int] = {}

    def code_forms(self, forms: Sequence[CellForm]) -> dict[int, dict[Any, float]]:
        """Return {category: code} of each column of categories; all that no test knows have one code."""
        texts = {column: forms[column].values for column in self.code_of}
        for column, values in texts.items():
            if values is None or not all(type(value) is str for value in values):
                raise EngineError(f"column {column} holds categories that are not texts")
        new = sorted({str(v) for values in texts.values() for v in values or ()} - set(self.hash_of))
        if new:  # the model is exported with a table of these texts: CatBoost then lists their hashes
            import pandas as pd
            from catboost import Pool

            names = list(self.head.feature_names_)
            cells = {name: new if j in self.code_of else 0.0 for j, name in enumerate(names)}
            pool = Pool(pd.DataFrame(cells, columns=names), cat_features=sorted(self.code_of))
            listed = _export(self.head, pool)["features_info"]["cat_features_hash"]
            self.hash_of |= {entry["value"]: entry["hash"] % 2**32 for entry in listed}
        return {
            column: {v: codes.get(_hash_again(self.hash_of[str(v)]), len(codes)) for v in texts[column] or ()}
            for column, codes in self.code_of.items()
        }
