"""Soundness of trees, and of the booster files that hold them.

Libraries walk their trees without bounds checks: a child out of range reads foreign memory, and a child that points
back to an ancestor gives an endless loop. A damaged booster or ONNX file can therefore crash or hang its library, so
``loading`` first runs this module as a script in a child process: ``python soundness.py SUFFIX FILE``. It imports
numpy, the file's library and ``onnx_graphs``, nothing else of this package.

The script exits with 0 if the file is valid, with DAMAGED if a tree is malformed and with REFUSED if the library
refuses the file; standard output gives the reason. A refused file must not be loaded again: a library that reads beyond
the end of a file may refuse it once and crash the next time.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

DAMAGED, REFUSED = 3, 4  # exit codes
Array: TypeAlias = npt.NDArray[Any]
MOST_COLUMNS = 1_000_000  # a file is not tried with wider rows
MOST_CLASSES = 100_000
VALUES = (0.0, 1.0, -1e9, 1e9, float("nan"))


def fault_of_tree(left: Array, right: Array, leaf: Array, column: Array, n_columns: int) -> str | None:
    """Return what is wrong with a tree whose node 0 is the root; None if it is valid. Nodes may be unreachable."""
    return fault_of_trees(left, right, leaf, column, np.array([0, len(leaf)]), n_columns)


def fault_of_trees(left: Array, right: Array, leaf: Array, column: Array, starts: Array, n_columns: int) -> str | None:
    """Return what is wrong with consecutive trees, whose children are counted from the root of their tree.

    starts: (trees+1,) first node of each tree. All trees are walked together, level by level.
    """
    n = len(leaf)
    if not len(left) == len(right) == len(column) == n or (np.diff(starts) < 1).any():
        return "its arrays differ in length, or are empty"
    reached_by = np.full(n, -1, dtype=np.int64)
    tree = np.arange(len(starts) - 1)
    level = np.asarray(starts[:-1], dtype=np.int64)
    while len(level):
        if (reached_by[level] >= 0).any():
            return "a node is reached in two ways"
        places = np.arange(len(level))
        reached_by[level] = places
        if (reached_by[level] != places).any():  # two entries of this level are the same node
            return "a node is reached in two ways"
        tree, level = tree[~leaf[level]], level[~leaf[level]]
        if ((column[level] < 0) | (column[level] >= n_columns)).any():
            return f"a node tests a column that is not among the {n_columns}"
        children = np.concatenate([left[level], right[level]]).astype(np.int64)
        tree = np.concatenate([tree, tree])
        level = children + starts[tree]
        if ((children < 0) | (level >= starts[tree + 1])).any():
            return "a child is out of range"
    return None


# --- booster files ----------------------------------------------------------------------------------------------


class DamagedError(Exception):
    """A tree of the file is malformed."""


class RefusedError(Exception):
    """The library refuses the file."""


def try_file(suffix: str, path: str) -> int:
    """Load a booster file, check its trees and compute a few predictions; return the exit code."""
    try:
        predict = TRIALS[suffix](path)
    except ImportError:
        return 0  # loading reports which library is missing
    except RefusedError as refused:
        print(refused)
        return REFUSED
    except DamagedError as damaged:
        print(damaged)
        return DAMAGED
    except Exception as fault:  # a file that loads but cannot be exported is damaged too
        print(f"its library cannot export its trees ({fault!s:.200})")
        return DAMAGED
    with suppress(Exception):  # the rows may not suit the model; only a crash matters
        predict()
    return 0


def _load(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise RefusedError(f"{type(error).__name__}: {first}") from error


def _trial_rows(n_columns: int) -> Any:
    if not 0 < n_columns <= MOST_COLUMNS:
        raise DamagedError(f"it declares {n_columns} columns")
    return np.array([[value] * n_columns for value in VALUES])


def _check_trees(trees: Iterable[tuple[Any, Any, Any, Any]], n_columns: int) -> None:
    for number, arrays in enumerate(trees):
        fault = fault_of_tree(*arrays, n_columns)
        if fault is not None:
            raise DamagedError(f"tree {number}: {fault}")


def _try_lightgbm(path: str) -> Callable[[], Any]:
    """Check the text, which is what the library reads, before it is loaded."""
    text = Path(path).read_text(errors="replace")
    if not text.startswith("tree"):
        raise DamagedError("it is not a LightGBM model: such a file starts with 'tree'")
    if "\nend of trees" not in text or "\nend of parameters" not in text:
        # LightGBM aborts on a truncated file, or loads it without the missing part, such as categories.
        raise DamagedError("it is truncated: the end of its trees or parameters is missing")
    header, *blocks = re.split(r"^Tree=\d+\n", text, flags=re.MULTILINE)
    try:
        n_columns = int(_setting(header, "max_feature_idx")) + 1
        # LightGBM allocates memory for any number of classes and of trees per iteration.
        n_classes, per_iteration = int(_setting(header, "num_class")), int(_setting(header, "num_tree_per_iteration"))
        if not 1 <= per_iteration == n_classes <= MOST_CLASSES or len(blocks) % per_iteration:
            raise ValueError(f"{len(blocks)} trees, {per_iteration} per iteration, for {n_classes} classes")
        trees = [tree for tree in map(_lightgbm_tree, blocks) if tree is not None]
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise DamagedError(f"a tree cannot be read: {error}") from error
    rows = _trial_rows(n_columns)
    _check_trees(trees, n_columns)
    _check_lightgbm_offsets(Path(path).read_bytes(), text)
    import lightgbm

    booster = _load(lambda: lightgbm.Booster(model_file=path))
    return lambda: booster.predict(rows, num_threads=1)


def _check_lightgbm_offsets(data: bytes, text: str) -> None:
    """Refuse wrong sizes of trees and malformed parameters, with which LightGBM would read out of place or crash."""
    sizes = re.search(rb"^tree_sizes=(.*)$", data, flags=re.MULTILINE)
    starts = [match.start() for match in re.finditer(rb"^(?:Tree=\d+|end of trees)\r?$", data, flags=re.MULTILINE)]
    # Without sizes, LightGBM searches for the trees itself.
    if sizes is not None and sizes[1].split() != [b"%d" % (b - a) for a, b in itertools.pairwise(starts)]:
        raise DamagedError("the sizes of its trees differ from those in its header")
    parameters = text.partition("\nparameters:")[2].partition("\nend of parameters")[0]
    for line in parameters.splitlines():
        if line and not re.fullmatch(r"\[[^\s:]+: .*\]", line):
            raise DamagedError(f"a parameter cannot be read: {line!r:.80}")


def _setting(block: str, name: str) -> str:
    match = re.search(rf"^{name}=(.*)$", block, flags=re.MULTILINE)
    if match is None:
        raise KeyError(name)
    return match[1]


def _lightgbm_tree(block: str) -> tuple[Any, Any, Any, Any] | None:
    """Return a tree with its leaves after its inner nodes; None for a single leaf."""

    def numbers(name: str, dtype: Any = np.int64) -> Any:
        return np.array(_setting(block, name).split(), dtype=dtype)

    leaves = int(_setting(block, "num_leaves"))
    inner = leaves - 1
    sizes = {"leaf_value": leaves, "threshold": inner, "decision_type": inner}
    if leaves < 1 or any(len(_setting(block, name).split()) != size for name, size in sizes.items() if size):
        raise ValueError(f"{leaves} leaves, and lists of other lengths")
    if leaves == 1:
        return None
    children = [numbers("left_child"), numbers("right_child")]
    if any(((child < -leaves) | (child >= inner)).any() for child in children):
        raise ValueError("a child is out of range")
    left, right = (np.concatenate([np.where(c < 0, inner + ~c, c), np.zeros(leaves, np.int64)]) for c in children)
    column = np.concatenate([numbers("split_feature"), np.zeros(leaves, np.int64)])
    n_categorical = int(_setting(block, "num_cat"))
    positions = numbers("threshold", np.float64)[(numbers("decision_type") & 1) == 1]  # positions in the category lists
    if len(positions) and not ((positions >= 0) & (positions < n_categorical)).all():
        raise ValueError("a category test is out of range")
    if n_categorical:
        bounds, words = numbers("cat_boundaries"), len(_setting(block, "cat_threshold").split())
        if len(bounds) != n_categorical + 1 or bounds[0] != 0 or (np.diff(bounds) < 0).any() or bounds[-1] > words:
            raise ValueError("the lists of categories are out of range")
    return left, right, np.arange(inner + leaves) >= inner, column


def _try_xgboost(path: str) -> Callable[[], Any]:
    import xgboost

    booster = xgboost.Booster()
    has_suffix = path.lower().endswith((".json", ".ubj"))
    _load(lambda: booster.load_model(path if has_suffix else bytearray(Path(path).read_bytes())))
    learner = json.loads(booster.save_raw("json"))["learner"]
    n_columns = int(learner["learner_model_param"]["num_feature"])
    rows = _trial_rows(n_columns)
    model = learner["gradient_booster"].get("model", {})
    model = model.get("gbtree", {}).get("model", model)  # DART holds its trees one level deeper
    names = ("left_children", "right_children", "split_indices")
    trees = ([np.array(tree[name], dtype=np.int64) for name in names] for tree in model.get("trees", []))
    _check_trees(((left, right, left < 0, column) for left, right, column in trees), n_columns)
    outputs = max(int(learner["learner_model_param"]["num_class"]), 1)
    if any(not 0 <= output < outputs for output in model.get("tree_info", [])):
        raise DamagedError("a tree adds to a class that does not exist")
    booster.set_param({"nthread": 1})
    return lambda: booster.predict(xgboost.DMatrix(rows, nthread=1), validate_features=False)


def _try_catboost(path: str) -> Callable[[], Any]:
    import catboost

    model = catboost.CatBoostClassifier()
    _load(lambda: model.load_model(path))
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model.json"
        model.save_model(str(exported), format="json")
        document = json.loads(exported.read_text())
    columns = {feature["feature_index"] for feature in document["features_info"].get("float_features", [])}
    for number, tree in enumerate(document.get("oblivious_trees", [])):
        splits = tree.get("splits") or []
        tested = {split["float_feature_index"] for split in splits if split["split_type"] == "FloatFeature"}
        if not tested <= columns or len(tree["leaf_values"]) % 2 ** len(splits):
            raise DamagedError(f"tree {number}: a split or a leaf is out of range")
    texts = set(model.get_cat_feature_indices())
    rows = _trial_rows(len(model.feature_names_))
    cells: Any = rows
    if texts:
        cells = [
            [str(int(cell == cell)) if j in texts else cell for j, cell in enumerate(row)] for row in rows.tolist()
        ]
    return lambda: model.predict(cells, prediction_type="RawFormulaVal", thread_count=1)


def _try_onnx(path: str) -> Callable[[], Any]:
    # By its path, because an import from the package would import scikit-learn.
    spec = importlib.util.spec_from_file_location("onnx_graphs", Path(__file__).with_name("onnx_graphs.py"))
    assert spec is not None and spec.loader is not None
    graphs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(graphs)
    data = Path(path).read_bytes()
    try:
        model = graphs.read_graph(data)
        inputs = graphs.list_inputs(model)
        for node in model.graph.node:
            if node.op_type in graphs.TREE_OPERATORS:
                trees = graphs.read_trees(node)
                leaf = np.array([mode == "LEAF" for mode in trees.mode])
                n_columns = sum(entry.width or 0 for entry in inputs) if len(model.graph.node) == 1 else MOST_COLUMNS
                fault = fault_of_trees(trees.true, trees.false, leaf, trees.column, trees.starts, n_columns)
                if fault is not None:
                    raise DamagedError(f"a tree: {fault}")
    except graphs.GraphError as error:
        raise RefusedError(str(error)) from error
    try:
        session = graphs.open_session(model.SerializeToString(), graphs.TRIAL_MEMORY)
    except Exception as error:
        reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip()).partition("\n")[0]
        raise RefusedError(f"onnxruntime refuses it: {reason[:300]}") from error
    try:
        graphs.try_session(session, inputs, VALUES)
    except graphs.GraphError as error:
        raise RefusedError(str(error)) from error
    return lambda: None


def _try_treelite(path: str) -> Callable[[], Any]:
    import treelite

    model = _load(lambda: treelite.Model.deserialize_bytes(Path(path).read_bytes()))
    header = model.get_header_accessor()
    n_columns, outputs = int(header.get_field("num_feature")[0]), header.get_field("num_class")
    rows = _trial_rows(n_columns)
    if not len(outputs) or not 1 <= outputs[0] <= MOST_CLASSES or (header.get_field("class_id") >= outputs[0]).any():
        raise DamagedError("a tree adds to a class that does not exist")
    for number in range(model.num_tree):
        field = model.get_tree_accessor(number).get_field
        arrays = field("cleft"), field("cright"), field("node_type") == 0, field("split_index")
        fault = fault_of_tree(*arrays, n_columns)
        for name in ("leaf_vector", "category_list"):
            start, end = field(f"{name}_begin").astype(np.int64), field(f"{name}_end").astype(np.int64)
            if ((start < 0) | (start > end) | (end > len(field(name)))).any():
                fault = f"a {name.replace('_', ' ')} is out of range"
        if any(len(field(name)) != len(arrays[0]) for name in ("threshold", "leaf_value", "default_left", "cmp")):
            fault = "its arrays differ in length"
        if fault is not None:
            raise DamagedError(f"tree {number}: {fault}")
    return lambda: treelite.gtil.predict(model, rows.astype(model.input_type), nthread=1)


TRIALS: dict[str, Callable[[str], Callable[[], Any]]] = {
    ".txt": _try_lightgbm,
    ".json": _try_xgboost,
    ".ubj": _try_xgboost,
    ".cbm": _try_catboost,
    ".onnx": _try_onnx,
    ".tl": _try_treelite,
}


if __name__ == "__main__":
    sys.exit(try_file(sys.argv[1], sys.argv[2]))
