"""ONNX files before they are run: the checks of a graph, its trees, and the session that runs it.

An accepted graph is a fixed sequence of array operations. Operators that loop, branch, draw at random, come from
another library or make arrays whose size depends on the values of a row are refused, and so are weights in other files.
The time and memory of an accepted graph depend on the number of rows only, so a trial with the largest batch bounds
them for any batch. Sizes may depend on the number of rows, but values must not: otherwise a row would get another
answer in another batch.

``soundness`` loads this module by its path, in a child process. It imports numpy and, in its functions, onnx and
onnxruntime; nothing of this package.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

BATCH_ROWS = 4096  # the largest batch of a session
LEAST_ROWS = 2  # the smallest one: matrix products sum a single row in another order than several
MOST_MEMORY = 4 * 2**30  # bytes that all sessions of a process may allocate for arrays
TRIAL_MEMORY = 2**30  # bytes that one session in a trial may allocate
MOST_RANK = 16  # of an array
MOST_NODES = 2**31  # of a tree
LEARNING = "ai.onnx.ml"
STANDARD = ("", "ai.onnx")

# Operators whose output size depends only on the sizes of their inputs.
ARITHMETIC_NAMES = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitShift Cast CastLike "
    "Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity "
    "IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round "
    "Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor "
    "MatMul Gemm Einsum Softmax LogSoftmax Hardmax ArgMax ArgMin CumSum Dropout BatchNormalization "
    "GroupNormalization InstanceNormalization LayerNormalization RMSNormalization LpNormalization "
    "Concat Constant EyeLike Flatten Gather GatherElements GatherND ScatterElements ScatterND Shape Size Transpose "
    "Trilu"
)
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
# The same, provided that the inputs at these positions, which give a size or axes, do not depend on values.
SIZED_BY: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    **{f"Reduce{name}": (1,) for name in REDUCTIONS},
}
LEARNED_NAMES = (
    "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier LinearRegressor "
    "Normalizer OneHotEncoder Scaler SVMClassifier SVMRegressor TreeEnsemble TreeEnsembleClassifier "
    "TreeEnsembleRegressor ZipMap"
)
ARITHMETIC, LEARNED = frozenset(ARITHMETIC_NAMES.split()), frozenset(LEARNED_NAMES.split())
SIZES = ("Shape", "Size")  # operators whose outputs do not depend on values
# Operators that do not always compute each row of their output from the same row of their inputs.
OTHERWISE_NAMES = (
    "ArgMax ArgMin ArrayFeatureExtractor BatchNormalization Constant CumSum Einsum EyeLike Flatten Gather "
    "GatherElements GatherND GroupNormalization InstanceNormalization LayerNormalization ScatterElements ScatterND "
    "Shape Size Transpose Trilu"
)
ROW_BY_ROW = (ARITHMETIC | LEARNED) - frozenset(OTHERWISE_NAMES.split())
MIXING_AXIS = {"ArgMax": 0, "ArgMin": 0, "CumSum": 0, "Hardmax": -1, "LogSoftmax": -1, "Softmax": -1, "TopK": -1}

Array: TypeAlias = npt.NDArray[Any]


class GraphError(Exception):
    """A file is not an ONNX model, or one that is refused; with the reason."""


# --- checking a graph -------------------------------------------------------------------------------------------


def read_graph(data: bytes) -> Any:
    """Return the ``ModelProto`` of a file's bytes, without unknown fields; GraphError if it is refused."""
    import onnx

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own
        raise GraphError("it is truncated, or not an ONNX file") from error
    if not (model.ir_version and model.graph.node and model.graph.output and model.opset_import):
        raise GraphError("it is truncated, or not an ONNX file")
    model.DiscardUnknownFields()  # so that onnxruntime reads only what is checked here
    _check_graph(model, len(data))
    return model


def _check_graph(model: Any, size: int) -> None:
    graph = model.graph
    if model.functions:
        raise GraphError(f"it defines operators of its own ({model.functions[0].name!r}); export it without functions")
    if graph.sparse_initializer:
        raise GraphError("it contains sparse weights; export it with dense ones")
    for domain in (entry.domain for entry in model.opset_import):
        if domain not in (*STANDARD, LEARNING):
            _refuse_domain(domain)
    for tensor in graph.initializer:
        _check_tensor(tensor, size)
    computed = {tensor.name for tensor in graph.initializer}
    from_values = {value.name for value in graph.input} - computed
    computed |= from_values
    for node in graph.node:
        _check_operator(node, size)
        for name in node.input:
            if name and name not in computed:
                raise GraphError(f"the operator {node.op_type} reads {name!r}, which no operator before it computes")
        sizing = [node.input[i] for i in SIZED_BY.get(node.op_type, ()) if i < len(node.input)]
        if from_values.intersection(sizing):
            raise GraphError(
                f"the operator {node.op_type} makes an array whose size depends on the values of a row, so its memory "
                "has no bound"
            )
        outputs = {name for name in node.output if name}
        if outputs & computed or len(outputs) < sum(map(bool, node.output)):
            raise GraphError(f"the operator {node.op_type} computes a value that another operator also computes")
        computed |= outputs
        if node.op_type not in SIZES and from_values.intersection(node.input):
            from_values |= outputs
    for output in graph.output:
        if output.name not in computed:
            raise GraphError(f"no operator computes its output {output.name!r}")
    counting = {*SIZES, *MIXING_AXIS, *(f"Reduce{name}" for name in REDUCTIONS)}
    if any(node.op_type in counting for node in graph.node):
        _RowCount(model).check()


def _refuse_domain(domain: str) -> None:
    raise GraphError(
        f"it needs operators of {domain!r}, which are not part of ONNX; export it with standard operators "
        f"({LEARNING} and ai.onnx)"
    )


def _check_operator(node: Any, size: int) -> None:
    name = node.op_type
    if node.domain not in (*STANDARD, LEARNING):
        _refuse_domain(node.domain)
    allowed = name in LEARNED if node.domain == LEARNING else name in ARITHMETIC or name in SIZED_BY
    if not allowed or (name == "Dropout" and len(node.input) > 2):
        raise GraphError(
            f"the operator {name!r} is not supported: it loops, branches, draws at random or is not used by exported "
            "tabular classifiers; wrap the model in a function in Python and name that as package.module:attribute"
        )
    for attribute in node.attribute:
        if attribute.HasField("g") or attribute.graphs:
            raise GraphError(f"the operator {name!r} contains a subgraph, which is not supported")
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            raise GraphError("it contains sparse weights; export it with dense ones")
        for tensor in [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors:
            _check_tensor(tensor, size)


def _check_tensor(tensor: Any, size: int) -> None:
    """Refuse weights in another file, and dimensions larger than the file's content."""
    import onnx

    if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise GraphError(f"its weights {tensor.name!r} are in another file; save it as one file without external data")
    if len(tensor.dims) > MOST_RANK or min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) > 8 * size:
        raise GraphError(f"its weights {tensor.name!r} declare dimensions larger than the file's content")


# --- the number of rows -----------------------------------------------------------------------------------------


class _RowCount:
    """Tracks dependence on the number of rows through a graph whose operators were checked.

    ``rows``: values with an axis of rows. ``first``: those of them whose first axis is the rows. ``counts``: values
    computed from the number of rows, with a flag for each entry of a list of sizes, or None if every entry may depend
    on it.
    """

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        weights = {tensor.name for tensor in self.graph.initializer}
        self.rows = {value.name for value in self.graph.input} - weights
        self.first = set(self.rows)
        self.counts: dict[str, list[bool] | None] = {}
        self.shapes = _infer_shapes(model)
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in STANDARD), default=0)

    def check(self) -> None:
        """Raise GraphError if a value depends on the number of rows."""
        for node in self.graph.node:
            self._check_mixing(node)
            self._follow(node)
        for output in self.graph.output:
            if output.name in self.counts:
                self._refuse(f"its output {output.name!r}")

    def _refuse(self, what: str) -> None:
        raise GraphError(
            f"{what} depends on the number of rows in a batch, so a row would get another answer in another batch; "
            "export a model that predicts row by row"
        )

    def _follow(self, node: Any) -> None:
        inputs = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        if node.op_type == "Constant":
            self.constants.update(dict.fromkeys(outputs, node))
        elif node.op_type in SIZES:
            flags = self._flags_of_shape(node, inputs[0])
            if any(flags):
                self.counts[outputs[0]] = flags if node.op_type == "Shape" else [True]
        elif any(name in self.counts for name in inputs):
            self._follow_count(node, inputs, outputs)
        elif any(name in self.rows for name in inputs):
            self.rows.update(outputs)
            if self._keeps_rows_first(node):
                self.first.update(outputs)

    def _follow_count(self, node: Any, inputs: list[str], outputs: list[str]) -> None:
        """Track an operator that reads the number of rows."""
        places = [i for i, name in enumerate(node.input) if name in self.counts]
        sizes = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1}
        if node.op_type in sizes and places == [sizes[node.op_type]]:
            self.rows.update(outputs)  # as many entries as rows, but no value that depends on their number
            flags = self.counts[node.input[places[0]]]
            if flags and flags[0] and not any(flags[1:]) and node.input[0] not in self.rows:
                self.first.update(outputs)
            return
        if any(name in self.rows for name in inputs) or node.op_type in ("EyeLike", "Range"):
            self._refuse(f"the output of the operator {node.op_type}")
        for name in outputs:
            self.counts[name] = self._flags_after(node)
        if all(flags is not None and not any(flags) for flags in (self.counts[name] for name in outputs)):
            for name in outputs:  # a number of columns, taken from a list of sizes
                del self.counts[name]

    def _flags_of_shape(self, node: Any, name: str) -> list[bool]:
        """Return for each size of a value whether it may depend on the number of rows."""
        if name not in self.rows:
            return [False]
        shape = self.shapes.get(name)
        if shape is None:
            return [True]
        flags = [size is None for size in shape]
        attributes = attributes_of(node)
        return flags[attributes.get("start", 0) : attributes.get("end", len(flags))]

    def _flags_after(self, node: Any) -> list[bool] | None:
        """Return the flags of an operator's output, given those of its inputs; None if they cannot be tracked."""
        flags = self.counts.get(node.input[0]) if node.input else None
        try:
            if node.op_type in ("Cast", "Identity", "Squeeze", "Unsqueeze") and flags is not None:
                return list(flags)
            if node.op_type == "Gather" and flags is not None:
                return [flags[int(place)] for place in np.ravel(self._constant(node.input[1]))]
            if node.op_type == "Slice" and flags is not None and len(node.input) > 2:
                start, stop = (int(np.ravel(self._constant(name))[0]) for name in node.input[1:3])
                step = int(np.ravel(self._constant(node.input[4]))[0]) if len(node.input) > 4 and node.input[4] else 1
                return flags[slice(start, stop, step)]
            if node.op_type == "Concat":
                out: list[bool] = []
                for name in node.input:
                    part = self.counts[name] if name in self.counts else [False] * np.size(self._constant(name))
                    if part is None:
                        return None
                    out += part
                return out
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        return None

    def _constant(self, name: str) -> Array:
        import onnx

        tensor = self.constants[name]
        if isinstance(tensor, onnx.TensorProto):
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        return np.asarray(next(iter(attributes_of(tensor).values())))

    def _rank(self, name: str) -> int | None:
        shape = self.shapes.get(name)
        return None if shape is None else len(shape)

    def _keeps_rows_first(self, node: Any) -> bool:
        """Return whether the first axis of an operator's output is certainly the rows."""
        if node.op_type not in ROW_BY_ROW:
            return False
        attributes = attributes_of(node)
        if node.op_type in ("MatMul", "Gemm"):
            sound = self._rank(node.input[0]) == 2 and not attributes.get("transA", 0)
            return sound and node.input[0] in self.first and not self.rows.intersection(node.input[1:])
        if node.op_type == "Concat" and attributes.get("axis") in (0, *(-(self._rank(n) or 0) for n in node.input)):
            return False
        ranks = [self._rank(name) for name in [*node.input, *node.output] if name]
        of_rows = [name for name in node.input if name in self.rows]
        if any(name not in self.first for name in of_rows) or any(rank is None for rank in ranks):
            return node.domain == LEARNING and all(name in self.first for name in of_rows)
        return max(ranks[: len(node.input)], default=0) == self._rank(of_rows[0])  # type: ignore[type-var]

    def _check_mixing(self, node: Any) -> None:
        """Refuse an operator that sums, orders or compares rows."""
        if not node.input or node.input[0] not in self.first:
            return
        attributes, rank = attributes_of(node), self._rank(node.input[0])
        if node.op_type.startswith("Reduce"):
            axes = attributes.get("axes")
            if axes is None and len(node.input) > 1 and node.input[1]:
                if node.input[1] not in self.constants:
                    return
                axes = np.ravel(self._constant(node.input[1])).tolist()
            if not axes:
                mixed = not attributes.get("noop_with_empty_axes", 0)
            else:
                mixed = any(axis in (0, -(rank or 0)) for axis in axes if axis == 0 or rank)
        elif node.op_type in MIXING_AXIS:
            older = self.opset < 13 and node.op_type in ("Hardmax", "LogSoftmax", "Softmax")
            axis = attributes.get("axis", 1 if older else MIXING_AXIS[node.op_type])
            if node.op_type == "CumSum":
                if node.input[1] not in self.constants:
                    return
                axis = int(np.ravel(self._constant(node.input[1]))[0])
            mixed = axis == 0 or (rank is not None and axis == -rank)
        else:
            return
        if mixed:
            raise GraphError(
                f"the operator {node.op_type} mixes rows with each other, so a row would get another answer in another "
                "batch; export a model that predicts row by row"
            )


def _infer_shapes(model: Any) -> dict[str, list[int | None] | None]:
    """Infer the shapes of values by name, with None for a size that depends on the graph's inputs.

    Shapes that the file declares are ignored.
    """
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except Exception:  # of the library; without shapes, more graphs are refused
        inferred = bare
    shapes: dict[str, list[int | None] | None] = {t.name: list(t.dims) for t in model.graph.initializer}
    for value in [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]:
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and kind.HasField("shape"):
            sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
            shapes[value.name] = sizes
    return shapes


# --- trees ------------------------------------------------------------------------------------------------------


class Trees(NamedTuple):
    """The trees of an operator as flat arrays of N nodes; the nodes of a tree are consecutive, its root first."""

    column: Array  # (N,)
    threshold: Array  # (N,) float32 or float64
    mode: tuple[str, ...]  # (N,) LEAF, BRANCH_LEQ, ...
    true: Array  # (N,) child, counted from the root of its tree
    false: Array  # (N,)
    missing_true: Array  # (N,) whether a missing cell goes to ``true``
    starts: Array  # (trees+1,) first node of each tree
    weight_node: Array  # (W,) node that a weight belongs to
    weight_output: Array  # (W,)
    weight: Array  # (W,) float32 or float64
    base: Array  # () or (outputs,) added to the sums


TREE_OPERATORS = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")


def attributes_of(node: Any) -> dict[str, Any]:
    """Return an operator's attributes by name, as Python values and arrays."""
    import onnx

    def value(attribute: Any) -> Any:
        held = onnx.helper.get_attribute_value(attribute)
        if isinstance(held, onnx.TensorProto):
            return onnx.numpy_helper.to_array(held)
        return held.decode("utf-8", "replace") if isinstance(held, bytes) else held

    return {attribute.name: value(attribute) for attribute in node.attribute}


def read_trees(node: Any) -> Trees:
    """Return the trees of a classifier or regressor; GraphError if its arrays are malformed."""
    attributes = attributes_of(node)
    prefix = "class" if node.op_type == "TreeEnsembleClassifier" else "target"

    def numbers(name: str, like: Array | None = None) -> Array:
        if like is None:
            return np.asarray(attributes.get(name, ()), dtype=np.int64)
        return np.asarray(attributes.get(f"{name}_as_tensor", attributes.get(name, ())), dtype=like.dtype)

    double = any(f"{name}_as_tensor" in attributes for name in ("nodes_values", f"{prefix}_weights", "base_values"))
    like = np.zeros(0, dtype=np.float64 if double else np.float32)
    tree, node_id = numbers("nodes_treeids"), numbers("nodes_nodeids")
    mode = tuple(text.decode("utf-8", "replace") for text in attributes.get("nodes_modes", ()))
    arrays = [numbers(name) for name in ("nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")]
    threshold = numbers("nodes_values", like)
    n = len(node_id)
    if not n or {len(tree), len(mode), len(threshold), *map(len, arrays)} != {n}:
        raise GraphError("a tree ensemble is damaged: its arrays differ in length, or are empty")
    tracks = numbers("nodes_missing_value_tracks_true")
    missing_true = tracks.astype(bool) if len(tracks) == n else np.zeros(n, dtype=bool)
    first = np.flatnonzero(np.r_[True, tree[1:] != tree[:-1]])
    starts, labels = np.append(first, n), tree[first]
    place = _Places(labels, np.repeat(np.arange(len(first)), np.diff(starts)), node_id)
    leaf = np.array([text == "LEAF" for text in mode])
    true, false = (np.where(leaf, 0, place.find(tree, child, ~leaf) - starts[place.rank]) for child in arrays[1:])
    weight_tree, weight_id = numbers(f"{prefix}_treeids"), numbers(f"{prefix}_nodeids")
    weight, output = numbers(f"{prefix}_weights", like), numbers(f"{prefix}_ids")
    if len({len(weight_tree), len(weight_id), len(weight), len(output)}) > 1:
        raise GraphError("a tree ensemble is damaged: its lists of weights differ in length")
    weight_node = place.find(weight_tree, weight_id, np.ones(len(weight), dtype=bool))
    base = numbers("base_values", like)
    return Trees(arrays[0], threshold, mode, true, false, missing_true, starts, weight_node, output, weight, base)


class _Places:
    """The positions of nodes, by tree id and node id."""

    def __init__(self, labels: Array, rank: Array, node_id: Array) -> None:
        self.rank = rank  # (N,) the tree of each node
        self._labels, self._by_label = np.sort(labels), np.argsort(labels)
        self._step = int(node_id.max()) + 1
        if node_id.min() < 0 or self._step > MOST_NODES or (np.diff(self._labels) == 0).any():
            raise GraphError("a tree ensemble is damaged: the nodes of a tree are not consecutive")
        keys = rank * self._step + node_id
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        if (np.diff(self._keys) == 0).any():
            raise GraphError("a tree ensemble is damaged: a tree has two nodes with one id")

    def find(self, tree: Array, node_id: Array, needed: Array) -> Array:
        """Return the position of each needed node, 0 for the others; GraphError if one does not exist."""
        which = np.searchsorted(self._labels[:-1], tree)
        valid = (self._labels[which] == tree) & (node_id >= 0) & (node_id < self._step)
        keys = self._by_label[which] * self._step + np.where(valid, node_id, 0)
        place = np.searchsorted(self._keys[:-1], keys)
        if (needed & ~(valid & (self._keys[place] == keys))).any():
            raise GraphError("a tree ensemble is damaged: it names a node that does not exist")
        return np.where(needed, self._order[place], 0)


# --- running ----------------------------------------------------------------------------------------------------

_ALLOCATOR = threading.Lock()
_registered: list[Any] = []


def open_session(data: bytes, memory: int = MOST_MEMORY) -> Any:
    """Return the session of a checked graph, with one thread, so that the order of sums is fixed, and bounded memory.

    memory: the bound in bytes; the first session of a process sets it.
    """
    import onnxruntime

    with _ALLOCATOR:
        if not _registered:  # one for all sessions of a process: onnxruntime has no bound per session
            kind, place = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
            arena = onnxruntime.OrtArenaCfg({"max_mem": memory, "arena_extend_strategy": 1})
            onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, place), arena)
            _registered.append(arena)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, warnings are not logged
    options.add_session_config_entry("session.use_env_allocators", "1")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


class Input(NamedTuple):
    """One input of a graph."""

    name: str
    dtype: Any  # of numpy; object for texts
    rows: int | None  # its fixed batch size, if any
    width: int | None  # number of columns; None if the file does not declare it
    flat: bool  # an array of one dimension


def list_inputs(model: Any) -> list[Input]:
    """Return the inputs of a graph; GraphError if they are not rows of numbers and texts."""
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape") or len(dims) not in (1, 2):
            raise GraphError(f"its input {value.name!r} is not a table of rows and columns")
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        except (KeyError, TypeError, ValueError):
            dtype = np.dtype("V")
        if dtype.kind not in "fiubO":
            raise GraphError(f"its input {value.name!r} takes values that are neither numbers nor texts")
        rows, width = dims[0], 1 if len(dims) == 1 else dims[1]
        if (rows is not None and not 0 < rows <= BATCH_ROWS) or (width is not None and width < 1):
            raise GraphError(f"its input {value.name!r} declares {rows} rows of {width} columns")
        inputs.append(Input(value.name, dtype, rows, width, len(dims) == 1))
    if not inputs:
        raise GraphError("it takes no input")
    if len({entry.rows for entry in inputs}) > 1:
        raise GraphError("its inputs take different numbers of rows at once")
    return inputs


def try_session(session: Any, inputs: Iterable[Input], values: Iterable[float]) -> None:
    """Run a session on the largest batch, with one value in all cells; GraphError if it exceeds the memory bound.

    Other errors are ignored: an encoder may refuse an unknown text.
    """
    for value in values:
        feed = {}
        for entry in inputs:
            shape = (entry.rows or BATCH_ROWS,) if entry.flat else (entry.rows or BATCH_ROWS, entry.width or 1)
            if entry.dtype.kind == "O":
                feed[entry.name] = np.full(shape, "a", dtype=object)
            else:
                cell = value if entry.dtype.kind == "f" else max(-1.0, min(value, 1.0))  # NaN becomes 1
                feed[entry.name] = np.full(shape, cell).astype(entry.dtype)
        try:
            session.run(None, feed)
        except Exception as error:
            if isinstance(error, MemoryError) or re.search(
                r"bad_alloc|llocat|vailable memory|more than \d+ bytes", str(error)
            ):
                rows = next(iter(inputs)).rows or BATCH_ROWS
                raise GraphError(f"it takes more than {TRIAL_MEMORY // 2**20} MiB of memory for {rows} rows") from error
