"""A booster file on trial: loaded and used in a process of its own, because its library may crash or hang on it.

Run as a script, ``python trial.py FOLDER SUFFIX FILE``: it imports the booster's library and nothing of this package
but ``soundness``, which lies in FOLDER. It ends with code 0 where the file is sound, with FAULT where trees are none
and with REFUSED where the library refuses it, told on standard output. What was refused is not loaded again: a library
that reads beyond the end of a file refuses it now and crashes then.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

FAULT, REFUSED = 3, 4
MOST_COLUMNS = 1_000_000  # rows this wide are not made to try a file
MOST_CLASSES = 100_000
VALUES = (0.0, 1.0, -1e9, 1e9, float("nan"))


class TreeFault(Exception):
    """A tree of the file is none."""


class Refused(Exception):
    """The library refuses the file, in words of its own."""


def main(suffix: str, path: str, fault_of_tree: Callable[..., str | None]) -> int:
    try:
        predict = TRIALS[suffix](path, fault_of_tree)
    except ImportError:
        return 0  # told where the library is missed
    except Refused as refused:
        print(refused)
        return REFUSED
    except Exception as fault:  # what loads and cannot say what it holds is no model either
        print(str(fault) if isinstance(fault, TreeFault) else f"its library cannot tell its trees ({fault!s:.200})")
        return FAULT
    with suppress(Exception):  # the rows tried need not be the model's; only a crash matters
        predict()
    return 0


def _loaded(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise Refused(f"{type(error).__name__}: {first}") from error


def _rows(n_columns: int) -> Any:
    if not 0 < n_columns <= MOST_COLUMNS:
        raise TreeFault(f"it declares {n_columns} columns")
    return np.array([[value] * n_columns for value in VALUES])


def _check(trees: Iterator[tuple[Any, ...]], n_columns: int, fault_of_tree: Callable[..., str | None]) -> None:
    for number, arrays in enumerate(trees):
        fault = fault_of_tree(*arrays, n_columns)
        if fault is not None:
            raise TreeFault(f"tree {number}: {fault}")


# --- LightGBM: the text is what the library reads, so it is checked before it is loaded -----------------------------


def try_lightgbm(path: str, fault_of_tree: Callable[..., str | None]) -> Callable[[], Any]:
    text = Path(path).read_text(errors="replace")
    header, *blocks = re.split(r"^Tree=\d+\n", text, flags=re.MULTILINE)
    try:
        n_columns = int(_setting(header, "max_feature_idx")) + 1
        _check_classes(header, len(blocks))
        trees = [_lightgbm_tree(block) for block in blocks]
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise TreeFault(f"a tree cannot be read: {error}") from error
    rows = _rows(n_columns)
    _check(iter([tree for tree in trees if tree is not None]), n_columns, fault_of_tree)
    _check_sizes(Path(path).read_bytes())
    _check_parameters(text)
    import lightgbm

    booster = _loaded(lambda: lightgbm.Booster(model_file=path))
    return lambda: booster.predict(rows, num_threads=1)


def _check_classes(header: str, n_trees: int) -> None:
    """Refuse numbers of classes and of trees an iteration for which LightGBM would make room beyond all measure."""
    classes, trees = int(_setting(header, "num_class")), int(_setting(header, "num_tree_per_iteration"))
    if not 1 <= trees == classes <= MOST_CLASSES or n_trees % trees:
        raise ValueError(f"{n_trees} trees, {trees} of them an iteration, for {classes} classes")


def _check_sizes(data: bytes) -> None:
    """Refuse sizes of trees that do not lead from tree to tree: LightGBM follows them wherever they lead."""
    found = re.search(rb"^tree_sizes=(.*)$", data, flags=re.MULTILINE)
    if found is None:
        return  # LightGBM then looks for the trees itself
    starts = [match.start() for match in re.finditer(rb"^(?:Tree=\d+|end of trees)\r?$", data, flags=re.MULTILINE)]
    if found[1].split() != [b"%d" % (b - a) for a, b in itertools.pairwise(starts)]:
        raise TreeFault("the sizes of its trees are not those of its header")


def _check_parameters(text: str) -> None:
    """Refuse a parameter without a colon: LightGBM reads on behind it, and crashes now and then."""
    _, _, after = text.partition("\nparameters:")
    lines = after.partition("\nend of parameters")[0].splitlines()
    broken = next((line for line in lines if line and not re.fullmatch(r"\[[^\s:]+: .*\]", line)), None)
    if broken is not None:
        raise TreeFault(f"a parameter cannot be read: {broken!r:.80}")


def _setting(block: str, name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", block, flags=re.MULTILINE)
    if found is None:
        raise KeyError(name)
    return found[1]


def _lightgbm_tree(block: str) -> tuple[Any, ...] | None:
    """Return a tree with its leaves behind its inner nodes; None for a single leaf."""
    leaves = int(_setting(block, "num_leaves"))
    sizes = {"leaf_value": leaves, "threshold": leaves - 1, "decision_type": leaves - 1}
    if leaves < 1 or any(len(_setting(block, name).split()) != size for name, size in sizes.items() if size):
        raise ValueError(f"{leaves} leaves, and lists of other lengths")
    if leaves == 1:
        return None
    inner = leaves - 1
    children = [np.array(_setting(block, side).split(), dtype=np.int64) for side in ("left_child", "right_child")]
    if any(((child < -leaves) | (child >= inner)).any() for child in children):
        raise ValueError("a child is out of range")
    left, right = (np.concatenate([np.where(c < 0, inner + ~c, c), np.zeros(leaves, np.int64)]) for c in children)
    column = np.array(_setting(block, "split_feature").split() + ["0"] * leaves, dtype=np.int64)
    _check_categories(block)
    return left, right, np.arange(inner + leaves) >= inner, column


def _check_categories(block: str) -> None:
    """Refuse category tests that point outside of the lists of categories."""
    kinds = np.array(_setting(block, "decision_type").split(), dtype=np.int64)
    count = int(_setting(block, "num_cat"))
    asked = np.array(_setting(block, "threshold").split(), dtype=np.float64)[(kinds & 1) == 1]
    if len(asked) and not ((asked >= 0) & (asked < count)).all():
        raise ValueError("a category test is out of range")
    if count:
        bounds = np.array(_setting(block, "cat_boundaries").split(), dtype=np.int64)
        words = len(_setting(block, "cat_threshold").split())
        if len(bounds) != count + 1 or bounds[0] != 0 or (np.diff(bounds) < 0).any() or bounds[-1] > words:
            raise ValueError("the lists of categories are out of range")


# --- XGBoost and CatBoost: loaded, checked by their own export, and asked for a few predictions ---------------------


def try_xgboost(path: str, fault_of_tree: Callable[..., str | None]) -> Callable[[], Any]:
    import xgboost

    booster = xgboost.Booster()
    _loaded(lambda: booster.load_model(path))
    learner = json.loads(booster.save_raw("json"))["learner"]
    n_columns = int(learner["learner_model_param"]["num_feature"])
    rows = _rows(n_columns)
    model = learner["gradient_booster"].get("model", {})
    model = model.get("gbtree", {}).get("model", model)  # DART holds its trees one level deeper
    _check(map(_xgboost_tree, model.get("trees", [])), n_columns, fault_of_tree)
    outputs = max(int(learner["learner_model_param"]["num_class"]), 1)
    if any(not 0 <= output < outputs for output in model.get("tree_info", [])):
        raise TreeFault("a tree adds to a class that does not exist")
    booster.set_param({"nthread": 1})
    return lambda: booster.predict(xgboost.DMatrix(rows, nthread=1), validate_features=False)


def _xgboost_tree(tree: dict[str, Any]) -> tuple[Any, ...]:
    left, right = np.array(tree["left_children"], dtype=np.int64), np.array(tree["right_children"], dtype=np.int64)
    return left, right, left < 0, np.array(tree["split_indices"], dtype=np.int64)


def try_catboost(path: str, fault_of_tree: Callable[..., str | None]) -> Callable[[], Any]:
    import catboost

    model = catboost.CatBoostClassifier()
    _loaded(lambda: model.load_model(path))
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model.json"
        model.save_model(str(exported), format="json")
        _check_oblivious(json.loads(exported.read_text()))
    texts = set(model.get_cat_feature_indices())
    rows = _rows(len(model.feature_names_))
    cells: Any = rows
    if texts:
        cells = [
            [str(int(cell == cell)) if j in texts else cell for j, cell in enumerate(row)] for row in rows.tolist()
        ]
    return lambda: model.predict(cells, prediction_type="RawFormulaVal", thread_count=1)


def _check_oblivious(document: dict[str, Any]) -> None:
    known = {feature["feature_index"] for feature in document["features_info"].get("float_features", [])}
    for number, tree in enumerate(document.get("oblivious_trees", [])):
        splits = tree.get("splits") or []
        asked = {split["float_feature_index"] for split in splits if split["split_type"] == "FloatFeature"}
        if not asked <= known or len(tree["leaf_values"]) % 2 ** len(splits):
            raise TreeFault(f"tree {number}: a split or a leaf is out of range")


TRIALS: dict[str, Callable[[str, Callable[..., str | None]], Callable[[], Any]]] = {
    ".txt": try_lightgbm,
    ".json": try_xgboost,
    ".ubj": try_xgboost,
    ".cbm": try_catboost,
}


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    from soundness import fault_of_tree

    sys.exit(main(sys.argv[2], sys.argv[3], fault_of_tree))
