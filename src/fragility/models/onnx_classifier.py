"""OnnxClassifier: an ONNX file as a classifier, run by onnxruntime.

A converter writes the properties of a classifier into the graph: class labels in the operator that makes dictionaries
of probabilities, in the classifier itself or beside the label; and the link, as the last operator. If the link is
known, its input, the raw score, is computed in the file's precision and the link is applied in float64 (`outputs`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.utils.metaestimators import available_if

from fragility.base.arrays import Floats
from fragility.base.errors import Advice, DataError, ModelError, name_error
from fragility.models.onnx_graphs import (
    BATCH_ROWS,
    LEAST_ROWS,
    TREE_OPERATORS,
    GraphError,
    Input,
    Trees,
    attributes_of,
    list_inputs,
    open_session,
    read_graph,
    read_trees,
)

SCORES = "fragility_scores"  # names of values that are added to a graph
UNUSED_LABEL = "fragility_label"
CLASS_ATTRIBUTES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
CLASSIFIERS = ("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier")
PASSING = ("Identity", "Cast", "Reshape", "Squeeze", "Flatten", "Unsqueeze")  # operators that keep a label
ROUNDING = 1e-5  # of a sum in float32
MALFORMED = (KeyError, IndexError, ValueError, TypeError)  # raised for missing attributes, or wrong types and lengths
PROBABILITY_NAMES = ("probabilities", "output_probability", "probability")  # used by the converters


class Score(NamedTuple):
    """The raw score of a graph: the value behind its link."""

    name: str  # of the value in the graph
    column: int | None  # the column of the value with the score; None: all columns
    node: Any  # the classifier to run again without its link; None if the value is in the graph already


class TreeScore(NamedTuple):
    """A tree ensemble that reads a file's columns unchanged, in float32, and gives its probabilities."""

    trees: Trees
    link: str  # sigmoid, softmax, or average for votes that are probabilities
    n_outputs: int  # 1 for the score or the votes of the second of two classes
    n_columns: int


class Outputs(NamedTuple):
    """The outputs of a graph."""

    probabilities: str
    label: str | None
    score: Score | None
    classes: tuple[Any, ...] | None


class OnnxClassifier:
    """The classifier of an ONNX file.

    Parameters
    ----------
    data : bytes
        Content of the file; GraphError if it is refused.

    Attributes
    ----------
    classes_ : tuple or None
        Class labels in the order of the probability columns; None if the file does not store them.
    inputs : tuple of Input
        The inputs of a session, in the order of the columns.
    outputs : Outputs
        Which values of the graph are probabilities, label and raw score.
    votes : int or None
        The number of trees of an averaged forest; None for any other model.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        model = read_graph(data)
        self.inputs: tuple[Input, ...] = tuple(list_inputs(model))
        graph = _Graph(model)
        try:
            self.outputs = graph.find_outputs()
            self.votes = graph.count_votes(self.outputs.probabilities)
        except MALFORMED as error:
            raise GraphError(f"an operator behind its outputs is damaged ({name_error(error)})") from error
        self.classes_ = self.outputs.classes
        widths = [entry.width for entry in self.inputs]
        if None in widths and len(widths) > 1:
            raise GraphError("it has several inputs, one of which does not declare its number of columns")
        self.n_features_in_ = None if None in widths else sum(width or 0 for width in widths)
        if len(widths) > 1 and set(widths) == {1}:
            self.feature_names_in_ = np.array([entry.name for entry in self.inputs], dtype=object)
        self._lock = threading.Lock()
        self._sessions: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}  # sessions do not pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["data"])  # type: ignore[misc]

    def fingerprint(self) -> str:
        """Return the digest of the file's bytes."""
        return hashlib.sha256(self.data).hexdigest()

    def predict_proba(self, rows: Any) -> Floats:
        """Return the file's own probabilities (n, C)."""
        p = np.asarray(self.ask_output(rows), dtype=np.float64)
        if p.ndim == 2 and p.shape[1] > 1:
            p[(p < 0.0) & (p >= -ROUNDING)] = 0.0  # 1 - s, where the votes s add up to more than 1
            return p
        if self.outputs.score is None:
            raise ModelError(
                f"the output {self.outputs.probabilities!r} of the ONNX file is one number per row, and the file does "
                "not declare its meaning; if it is a logit, declare ",
                Advice("output='binary_logit'", "--returns binary_logit"),
            )
        p = p.reshape(-1, 1)
        return np.hstack([1.0 - p, p])

    def ask_output(self, rows: Any) -> npt.NDArray[Any]:
        """Return the output of the file for probabilities, as it is."""
        return self._run("own", self.outputs.probabilities, rows)

    @available_if(lambda self: self.outputs.label is not None and self.classes_ is not None)  # type: ignore[untyped-decorator]
    def predict(self, rows: Any) -> npt.NDArray[Any]:
        """Return the file's own labels (n,)."""
        return np.asarray(self._run("own", self.outputs.label or "", rows)).reshape(-1)

    def find_trees(self) -> TreeScore | None:
        """Return the tree ensemble of this file; None if the file contains anything else."""
        try:
            ensemble = _Graph(read_graph(self.data)).find_trees(self.outputs, self.inputs)
        except (GraphError, *MALFORMED):
            return None
        if ensemble is None:
            return None
        trees, link, n_outputs = ensemble
        return TreeScore(trees, link, n_outputs, self.n_features_in_ or int(trees.column.max()) + 1)

    @property
    def raw_score(self) -> Callable[[Any], Floats] | None:
        """The function rows -> raw scores, (n,) for two classes, else (n, C); None if the file's link is unknown."""
        score = self.outputs.score
        return None if score is None else self._ask_scores

    def _ask_scores(self, rows: Any) -> Floats:
        score = self.outputs.score
        assert score is not None
        values = np.asarray(self._run("score", score.name, rows), dtype=np.float64)
        return values if score.column is None else values[:, score.column]

    # --- running ------------------------------------------------------------------------------------------------

    def _session(self, kind: str) -> Any:
        with self._lock:
            if kind not in self._sessions:
                model = read_graph(self.data)
                edit_outputs(model, self.outputs, scores=kind == "score")
                self._sessions[kind] = open_session(model.SerializeToString())
            return self._sessions[kind]

    def _run(self, kind: str, output: str, rows: Any) -> npt.NDArray[Any]:
        feeds, n = self._feed(rows)
        session, parts = self._session(kind), []
        most = self.inputs[0].rows or BATCH_ROWS
        for start in range(0, n, most):
            part = {name: cells[start : start + most] for name, cells in feeds.items()}
            count = len(next(iter(part.values())))
            lacking = (self.inputs[0].rows or LEAST_ROWS) - count
            if lacking > 0:  # repeat the last row
                part = {name: np.concatenate([c, np.repeat(c[-1:], lacking, axis=0)]) for name, c in part.items()}
            parts.append(np.asarray(session.run([output], part)[0])[:count])
        return np.concatenate(parts)

    def _feed(self, rows: Any) -> tuple[dict[str, npt.NDArray[Any]], int]:
        """Return the inputs of a session for some rows, with columns by position, and the number of rows."""
        if hasattr(rows, "toarray"):
            rows = rows.toarray()
        names: list[str] | None = None
        if hasattr(rows, "columns"):
            names = [str(name) for name in rows.columns]
            cells = [np.asarray(rows[name].to_numpy()) for name in rows.columns]
        else:
            matrix = np.asarray(rows)
            cells = list(matrix.T)
        if self.n_features_in_ is not None and len(cells) != self.n_features_in_:
            raise DataError(f"the ONNX file takes {self.n_features_in_} columns, the rows have {len(cells)}")
        feeds, place = {}, 0
        for entry in self.inputs:
            width = entry.width or len(cells)
            columns = [
                _convert(cells[j], entry, names[j] if names is not None else f"x{j}")
                for j in range(place, place + width)
            ]
            feeds[entry.name] = columns[0] if entry.flat else np.stack(columns, axis=1)
            place += width
        return feeds, len(cells[0]) if cells else 0


def _convert(cells: npt.NDArray[Any], to: Input, name: str) -> npt.NDArray[Any]:
    """Return one column in the type of its input; DataError if a value does not fit."""
    if to.dtype.kind == "O":
        if not all(isinstance(value, str) for value in cells.tolist()):
            raise DataError(f"column {name!r} must hold texts without gaps: the ONNX input {to.name!r} takes texts")
        return cells.astype(object)
    try:
        numbers = cells.astype(np.float64) if to.dtype.kind == "f" or cells.dtype.kind not in "iub" else cells
    except (TypeError, ValueError):
        raise DataError(f"column {name!r} must hold numbers: the ONNX input {to.name!r} takes {to.dtype}") from None
    with np.errstate(over="ignore", invalid="ignore"):
        out = numbers.astype(to.dtype)
    if to.dtype.kind != "f" and not np.array_equal(out, numbers):
        kind = "truth values" if to.dtype.kind == "b" else "whole numbers"
        raise DataError(f"column {name!r} must hold {kind} without gaps: the ONNX input {to.name!r} takes {to.dtype}")
    return out


# --- reading a graph --------------------------------------------------------------------------------------------


class _Graph:
    """A checked graph, read backwards from its outputs."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.maker = {name: node for node in model.graph.node for name in node.output if name}

    def find_outputs(self) -> Outputs:
        probability, labels = [], []
        for output in self.graph.output:
            node = self.maker.get(output.name)
            floats = output.type.tensor_type.elem_type in (1, 10, 11, 16)
            if (node is not None and node.op_type == "ZipMap") or floats:
                probability.append(output.name)
            elif output.type.HasField("tensor_type"):
                labels.append(output.name)
        if len(probability) > 1:
            probability = [name for name in probability if name in PROBABILITY_NAMES]
        if len(probability) != 1:
            names = ", ".join(output.name for output in self.graph.output)
            raise GraphError(
                f"one output of probabilities was expected, its outputs are: {names}; export the classifier with "
                "probabilities and labels only"
            )
        name, classes = probability[0], None
        zipped = self.maker.get(name)
        if zipped is not None and zipped.op_type == "ZipMap":
            name, classes = zipped.input[0], _class_labels(zipped)
        label = labels[0] if len(labels) == 1 else None
        behind = self.maker.get(self.pass_over(name))
        if classes is None and behind is not None and behind.op_type in CLASSIFIERS:
            classes = _class_labels(behind)
        if classes is None and label is not None:
            classes = self.find_classes_of_label(label)
        return Outputs(name, label, self.find_score(name, behind), classes)

    def pass_over(self, name: str) -> str:
        """Follow a value back through operators that change at most its rounding."""
        while (node := self.maker.get(name)) is not None:
            same = node.op_type == "Identity" or (node.op_type == "Cast" and attributes_of(node)["to"] in (1, 11))
            same = same or (node.op_type == "Normalizer" and attributes_of(node).get("norm") == "L1")
            same = same or (node.op_type == "Mul" and self.holds_ones(node.input[1]))
            if not same:
                break
            name = node.input[0]
        return name

    def holds_ones(self, name: str) -> bool:
        return name in self.weights and bool((self.array(name) == 1.0).all())

    def array(self, name: str) -> npt.NDArray[Any]:
        import onnx

        return np.asarray(onnx.numpy_helper.to_array(self.weights[name]))

    def find_classes_of_label(self, name: str) -> tuple[Any, ...] | None:
        """Return the list of labels from which the graph selects the predicted one."""
        node = self.maker.get(name)
        while node is not None and node.op_type in PASSING:
            node = self.maker.get(node.input[0])
        if node is None or node.op_type not in ("ArrayFeatureExtractor", "Gather"):
            return None
        return _plain_labels(self.array(node.input[0])) if node.input[0] in self.weights else None

    def count_votes(self, name: str) -> int | None:
        """Return the number of trees whose probabilities are summed; None for any other classifier."""
        node = self.maker.get(self.pass_over(name))
        if node is None or node.op_type != "TreeEnsembleClassifier":
            return None
        trees = read_trees(node)
        averaged = attributes_of(node).get("post_transform", "NONE") == "NONE" and (trees.weight >= 0).all()
        return len(trees.starts) - 1 if averaged else None

    def find_trees(self, outputs: Outputs, inputs: tuple[Input, ...]) -> tuple[Trees, str, int] | None:
        """Return the ensemble that computes scores or votes from the only input, its link and number of outputs."""
        value, score = self.pass_over(outputs.probabilities), outputs.score
        if score is not None and score.node is None:
            value = self.pass_over(score.name)
        node = self.maker.get(value)
        if node is None or node.op_type not in TREE_OPERATORS or len(inputs) > 1 or inputs[0].flat:
            return None
        source, in_float32 = node.input[0], inputs[0].dtype == np.float32
        while (before := self.maker.get(source)) is not None:
            if before.op_type != "Identity" and not (before.op_type == "Cast" and attributes_of(before)["to"] == 1):
                return None
            cast = before.op_type == "Cast" and inputs[0].dtype.kind == "f"
            source, in_float32 = before.input[0], in_float32 or cast
        if source != inputs[0].name or not in_float32:
            return None
        trees, attributes = read_trees(node), attributes_of(node)
        voted = np.unique(trees.weight_output)
        if node.op_type == "TreeEnsembleRegressor":
            aggregate, transform = attributes.get("aggregate_function", "SUM"), attributes.get("post_transform", "NONE")
            targets = int(attributes.get("n_targets", 1))
            summed = score is not None and aggregate == "SUM" and transform == "NONE"
            complete = summed and bool((voted == np.arange(targets)).all())
            return (trees, "sigmoid" if targets == 1 else "softmax", targets) if complete else None
        n_classes = len(_class_labels(node) or ())
        linked = score is not None or self.count_votes(outputs.probabilities) is not None
        if not linked or trees.weight_output.max() >= n_classes:
            return None
        if len(voted) == 1 and n_classes == 2:  # the sum is that of the second class, whichever class it names
            trees = trees._replace(weight_output=np.zeros_like(trees.weight_output))
            return trees, "average" if score is None else "sigmoid", 1
        if n_classes == 2 and trees.base.any():
            return None
        if score is not None and score.column is not None:  # the second class's half of opposed scores
            second = trees.weight_output == 1
            half = (trees.weight_node[second], np.zeros(int(second.sum()), dtype=np.int64), trees.weight[second])
            return trees._replace(weight_node=half[0], weight_output=half[1], weight=half[2]), "sigmoid", 1
        return trees, "average" if score is None else "softmax", n_classes

    def find_score(self, name: str, node: Any) -> Score | None:
        """Return the raw score behind a sigmoid or softmax; None if there is another link, or none."""
        value = self.pass_over(name)
        if node is None:
            return None
        if node.op_type in CLASSIFIERS:
            return _score_of_classifier(node, value)
        if node.op_type == "Softmax" and attributes_of(node).get("axis", -1) in (-1, 1):
            return Score(node.input[0], None, None)
        if node.op_type == "Concat" and len(node.input) == 2:  # of 1 - p and p
            rest, node = self.maker.get(node.input[0]), self.maker.get(node.input[1])
            if rest is None or rest.op_type != "Sub" or node is None or rest.input[1] != node.output[0]:
                return None
            if not self.holds_ones(rest.input[0]):
                return None
        while node is not None and node.op_type in ("Squeeze", "Reshape", "Flatten"):
            node = self.maker.get(node.input[0])
        if node is None or node.op_type != "Sigmoid":
            return None
        return Score(node.input[0], None, None)


def _score_of_classifier(node: Any, value: str) -> Score | None:
    """Return the score of a classifier that applies the link itself."""
    if node.op_type not in ("TreeEnsembleClassifier", "LinearClassifier") or node.output[1] != value:
        return None
    attributes = attributes_of(node)
    n_classes, link = len(_class_labels(node) or ()), attributes.get("post_transform", "NONE")
    if node.op_type == "LinearClassifier":
        weights = np.asarray(attributes["coefficients"]).reshape(-1)
        outputs = len(attributes.get("intercepts", ())) or n_classes
        parts = weights.reshape(outputs, -1) if outputs and len(weights) % outputs == 0 else weights[None]
        bias = np.asarray(attributes.get("intercepts", np.zeros(outputs))).reshape(-1, 1)
        opposed = outputs == 2 and bool((parts[0] == -parts[1]).all() and (bias[0] == -bias[1]).all())
    else:
        trees = read_trees(node)
        outputs = len(np.unique(trees.weight_output))
        opposed = _are_opposed(trees)
        if outputs == 1 and bool((trees.weight >= 0).all()):
            return None  # onnxruntime interprets a sum of nonnegative weights as a probability
    if link == "SOFTMAX" and outputs == n_classes > 1:
        return Score(SCORES, None, node)
    if link == "LOGISTIC" and n_classes == 2 and (outputs == 1 or opposed):
        return Score(SCORES, 1, node)
    return None


def _are_opposed(trees: Trees) -> bool:
    """Return whether each leaf of an ensemble for two classes adds w to the second and -w to the first."""
    by_output = [trees.weight_output == output for output in (0, 1)]
    if (trees.weight_output > 1).any() or by_output[0].sum() != by_output[1].sum():
        return False
    first, second = ((trees.weight_node[of_output], trees.weight[of_output]) for of_output in by_output)
    base = np.broadcast_to(trees.base, 2) if len(trees.base) in (0, 1, 2) and trees.base.any() else np.zeros(2)
    return bool((first[0] == second[0]).all() and (first[1] == -second[1]).all() and base[0] == -base[1])


def _class_labels(node: Any) -> tuple[Any, ...] | None:
    attributes = attributes_of(node)
    return next((_plain_labels(np.array(attributes[name])) for name in CLASS_ATTRIBUTES if attributes.get(name)), None)


def _plain_labels(values: npt.NDArray[Any]) -> tuple[Any, ...]:
    return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values.reshape(-1).tolist())


def edit_outputs(model: Any, outputs: Outputs, *, scores: bool) -> None:
    """Change the outputs of a graph to its raw scores, or to its label and its probabilities as an array."""
    import onnx

    names = [outputs.probabilities] + ([outputs.label] if outputs.label is not None else [])
    if scores:
        assert outputs.score is not None
        names = [outputs.score.name]
        if outputs.score.node is not None:
            bare = onnx.NodeProto()
            bare.CopyFrom(outputs.score.node)
            bare.name, bare.output[:] = SCORES, [UNUSED_LABEL, SCORES]
            for attribute in bare.attribute:
                if attribute.name == "post_transform":
                    attribute.s = b"NONE"
            model.graph.node.append(bare)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
