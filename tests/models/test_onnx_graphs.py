"""Hostile and broken .onnx files: one sentence each, bounded memory, nothing run that is not known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
from converting import convert, make_rows, onnx
from fuzzing import mutated_bytes, mutated_graph, one_sentence
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import fragility as fg
from fragility.base.errors import EngineError, ModelError
from fragility.engines.trees.readers import read_ensemble
from fragility.models.loading import load_model
from fragility.models.onnx_classifier import OnnxClassifier
from fragility.models.onnx_graphs import GraphError, read_graph
from fragility.models.soundness import DAMAGED, REFUSED, try_file

FLOAT = TensorProto.FLOAT


def make_file(
    nodes: list[Any], weights: dict[str, Any] | None = None, outputs: tuple[str, ...] = ("probabilities",), **model: Any
) -> Any:
    """A model of two columns whose output is made by some operators, with and without sense."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("X", FLOAT, [None, 2])],
        [helper.make_tensor_value_info(name, FLOAT, [None, 2]) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **model)


SOFTMAX = helper.make_node("Softmax", ["X"], ["probabilities"])


def refuse(model: Any) -> str:
    with pytest.raises(GraphError) as caught:
        read_graph(model if isinstance(model, bytes) else model.SerializeToString())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    return str(caught.value)


def test_a_plain_graph_is_read() -> None:
    assert read_graph(make_file([SOFTMAX]).SerializeToString()).graph.node[0].op_type == "Softmax"


@pytest.mark.parametrize(
    "data", [b"", b"x", b"tree\nversion=v4\n", b"\x00" * 64, b"\x08\x08", b'{"a": 1}', b"\x0a" * 500]
)
def test_other_content_is_no_onnx_file(data: bytes) -> None:
    assert refuse(data) == "it is truncated, or not an ONNX file"


def test_a_file_cut_off_anywhere_is_refused() -> None:
    whole = make_file([helper.make_node("MatMul", ["X", "w"], ["h"]), SOFTMAX], {"w": np.eye(2, dtype=np.float32)})
    del whole.opset_import[1]
    data = whole.SerializeToString()
    for length in range(len(data)):
        with pytest.raises(GraphError):
            OnnxClassifier(data[:length])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Loop", "the operator 'Loop' is not supported: it loops, branches, draws at random or is not used"),
        ("If", "the operator 'If' is not supported"),
        ("RandomUniformLike", "the operator 'RandomUniformLike' is not supported"),
        ("NonZero", "the operator 'NonZero' is not supported"),
        ("SequenceMap", "the operator 'SequenceMap' is not supported"),
        ("NoSuchOperator", "the operator 'NoSuchOperator' is not supported"),
    ],
)
def test_operators_that_loop_branch_or_draw_are_refused(name: str, sentence: str) -> None:
    assert refuse(make_file([helper.make_node(name, ["X"], ["h"]), SOFTMAX])).startswith(sentence)


def test_code_of_others_is_refused() -> None:
    other = helper.make_node("Run", ["X"], ["probabilities"], domain="com.example")
    said = refuse(make_file([other]))
    assert said.startswith("it needs operators of 'com.example', which are not part of ONNX; export it with")
    declared = make_file([SOFTMAX])
    declared.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert "it needs operators of 'com.microsoft'" in refuse(declared)
    own = helper.make_function("own", "Mine", ["a"], ["b"], [helper.make_node("Exp", ["a"], ["b"])], [])
    assert refuse(make_file([SOFTMAX], functions=[own])).startswith("it defines operators of its own ('Mine')")
    inner = make_file([SOFTMAX]).graph
    hidden = helper.make_node("Softmax", ["X"], ["probabilities"], body=inner)
    assert refuse(make_file([hidden])) == "the operator 'Softmax' contains a subgraph, which is not supported"


@pytest.mark.parametrize("place", ["../../etc/passwd", "/etc/passwd", "weights.bin"])
def test_weights_in_other_files_are_refused(place: str) -> None:
    model = make_file([helper.make_node("MatMul", ["X", "w"], ["h"]), SOFTMAX], {"w": np.eye(2, dtype=np.float32)})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    assert refuse(model).startswith("its weights 'w' are in another file; save it as one file")
    # the same within an attribute
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    assert refuse(make_file([constant, SOFTMAX])).startswith("its weights 'w' are in another file")


def test_dimensions_without_content_are_refused() -> None:
    model = make_file([SOFTMAX], {"w": np.zeros(3, dtype=np.float32)})
    for dims in ([2**40, 2**20], [-1], [1] * 20, [10**6]):
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)
        assert refuse(model) == "its weights 'w' declare dimensions larger than the file's content"
    sparse = make_file([SOFTMAX])
    sparse.graph.sparse_initializer.add().dims.extend([2**40])
    assert refuse(sparse) == "it contains sparse weights; export it with dense ones"


def test_cycles_and_dangling_values_are_refused() -> None:
    turn = [helper.make_node("Add", ["X", "b"], ["a"]), helper.make_node("Exp", ["a"], ["b"]), SOFTMAX]
    assert refuse(make_file(turn)) == "the operator Add reads 'b', which no operator before it computes"
    twice = [helper.make_node("Exp", ["X"], ["a"]), helper.make_node("Log", ["X"], ["a"]), SOFTMAX]
    assert refuse(make_file(twice)) == "the operator Log computes a value that another operator also computes"
    assert refuse(make_file([SOFTMAX], outputs=("lost",))) == "no operator computes its output 'lost'"


def test_arrays_whose_size_a_row_decides_are_refused() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["X"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["k"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["k", "one"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["much"]),
        SOFTMAX,
    ]
    said = refuse(make_file(nodes, {"one": np.array([1], dtype=np.int64)}))
    assert said == (
        "the operator ConstantOfShape makes an array whose size depends on the values of a row, so its memory has no "
        "bound"
    )
    shaped = [helper.make_node("Shape", ["X"], ["s"]), helper.make_node("ConstantOfShape", ["s"], ["zeros"]), SOFTMAX]
    read_graph(make_file(shaped).SerializeToString())  # the number of rows is not a value of a row


def node(name: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(name, inputs.split(), [output], **attributes)


COUNT = [
    node("Shape", "X", "shape"),
    node("Gather", "shape zero", "count"),
    node("Cast", "count", "number", to=FLOAT),
]
NUMBERS = {
    "zero": np.array(0, dtype=np.int64),
    "one": np.array([1], dtype=np.int64),
    "many": np.array(64.0, dtype=np.float32),
    "axis": np.array([0], dtype=np.int64),
    "ones": np.ones((1, 2), dtype=np.float32),
}
DEPENDS = "depends on the number of rows in a batch"
MIXES = "mixes rows with each other"


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ([*COUNT, node("Mul", "X number", "h")], f"the output of the operator Mul {DEPENDS}"),
        ([*COUNT, node("Greater", "number many", "c"), node("Where", "c X ones", "h")], f"Where {DEPENDS}"),
        ([*COUNT, node("Range", "zero count zero", "h")], f"Range {DEPENDS}"),
        ([node("Size", "X", "s"), node("Cast", "s", "n", to=FLOAT), node("Div", "X n", "h")], f"Div {DEPENDS}"),
        ([*COUNT, node("Mul", "number many", "h")], f"its output 'h' {DEPENDS}"),
        ([*COUNT, node("Expand", "ones shape", "e"), node("ReduceSum", "e axis", "n"), node("Mul", "X n", "h")],
         f"the operator ReduceSum {MIXES}"),
        ([*COUNT, node("ConstantOfShape", "shape", "e"), node("CumSum", "e zero", "n"), node("Add", "X n", "h")],
         f"the operator CumSum {MIXES}"),
        ([node("ReduceMean", "X", "m", axes=[0]), node("Sub", "X m", "h")], f"the operator ReduceMean {MIXES}"),
        ([node("ReduceMax", "X", "m", axes=[-2]), node("Sub", "X m", "h")], f"the operator ReduceMax {MIXES}"),
        ([node("ReduceSum", "X", "m", keepdims=0), node("Div", "X m", "h")], f"the operator ReduceSum {MIXES}"),
        ([node("Softmax", "X", "h", axis=0)], f"the operator Softmax {MIXES}"),
    ],
)  # fmt: skip
def test_values_that_depend_on_the_number_of_rows_are_refused(nodes: list[Any], sentence: str) -> None:
    outputs = ("h",) if "its output" in sentence else ("probabilities",)
    last = [] if outputs == ("h",) else [node("Softmax", "h", "probabilities")]
    assert sentence in refuse(make_file([*nodes, *last], NUMBERS, outputs))


def test_the_number_of_rows_may_give_sizes_and_the_number_of_columns_anything() -> None:
    sizes = [
        *COUNT[:1],
        node("Slice", "shape axis one", "rows"),
        node("Concat", "rows one", "column", axis=0),
        node("Expand", "ones shape", "e"),
        node("Add", "X e", "h"),
        node("ConstantOfShape", "column", "zeros"),
        node("Add", "h zeros", "k"),
        node("Reshape", "k shape", "l"),
        node("ReduceSum", "l one", "sum", keepdims=1),
        node("Div", "l sum", "m"),
    ]
    width = [
        node("Gather", "shape one", "width"),  # as attention divides by it
        node("Cast", "width", "columns", to=FLOAT),
        node("Sqrt", "columns", "root"),
        node("Div", "m root", "n"),
    ]
    read_graph(make_file([*sizes, *width, node("Softmax", "n", "probabilities")], NUMBERS).SerializeToString())


def test_inputs_and_outputs_that_are_no_rows_are_refused() -> None:
    def answer(change: Any) -> str:
        model = make_file([SOFTMAX])
        change(model.graph)
        with pytest.raises(GraphError) as caught:
            OnnxClassifier(model.SerializeToString())
        return str(caught.value)

    def dims(graph: Any) -> Any:
        return graph.input[0].type.tensor_type.shape.dim

    assert answer(lambda g: dims(g).add(dim_value=3)) == "its input 'X' is not a table of rows and columns"
    assert answer(lambda g: setattr(dims(g)[0], "dim_value", 10**9)).startswith(
        "its input 'X' declares 1000000000 rows"
    )
    assert answer(lambda g: setattr(dims(g)[1], "dim_value", 0)) == "its input 'X' declares None rows of 0 columns"
    complex64 = TensorProto.COMPLEX64
    assert "takes values that are neither numbers nor texts" in answer(
        lambda g: setattr(g.input[0].type.tensor_type, "elem_type", complex64)
    )
    several = [helper.make_node("Softmax", ["X"], ["a"]), helper.make_node("Exp", ["X"], ["b"])]
    with pytest.raises(GraphError, match=r"^one output of probabilities was expected, its outputs are: a, b; export"):
        OnnxClassifier(make_file(several, outputs=("a", "b")).SerializeToString())
    labels = TensorProto.INT64
    assert answer(lambda g: setattr(g.output[0].type.tensor_type, "elem_type", labels)).startswith(
        "one output of probabilities was expected, its outputs are: probabilities; export"
    )


def test_hundreds_of_malformed_graphs_are_read_or_refused_in_a_sentence(tmp_path) -> None:
    """Without a session; ``test_fuzz`` runs such files as well."""
    X, y = make_rows()
    sound = [
        convert(RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, y), tmp_path / "forest.onnx"),
        convert(lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1).fit(X, y), tmp_path / "trees.onnx"),
        convert(LogisticRegression().fit(X, y), tmp_path / "linear.onnx"),
    ]
    chance, read = random.Random(0), 0
    for number in range(400):
        data = sound[number % 3].read_bytes()
        data = (mutated_graph if number % 4 else mutated_bytes)(data, chance)
        try:
            head = OnnxClassifier(data)
            read += 1
            read_ensemble(head)
        except (GraphError, EngineError, ModelError) as error:
            assert one_sentence(str(error))
    assert 50 < read < 350


# --- the trial in a process of its own --------------------------------------------------------------------------


@pytest.mark.parametrize("times", [10**5, 10**7])  # the second is beyond what onnxruntime itself would make
def test_graphs_that_take_too_much_memory_are_refused(tmp_path, times: int) -> None:
    nodes = [helper.make_node("Tile", ["X", "times"], ["h"]), helper.make_node("Softmax", ["h"], ["probabilities"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(make_file(nodes, {"times": np.array([1, times], dtype=np.int64)}).SerializeToString())
    with pytest.raises(ModelError, match=r"model\.onnx': it takes more than \d+ MiB of memory for 4096 rows$"):
        load_model(path)


def test_trees_that_are_none_are_refused(tmp_path, capsys) -> None:
    X, y = make_rows()
    path = convert(RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y), tmp_path / "model.onnx")
    whole = onnx.load(path)

    def change(name: str, place: int, value: int) -> Path:
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        attribute = next(a for a in model.graph.node[0].attribute if a.name == name)
        attribute.ints[place] = value
        onnx.save(model, tmp_path / "changed.onnx")
        return tmp_path / "changed.onnx"

    cases = [
        ("nodes_truenodeids", 1, 0, "a tree: a node is reached in two ways"),
        ("nodes_truenodeids", 1, 999, "a tree ensemble is damaged: it names a node that does not exist"),
        ("nodes_nodeids", 1, 0, "a tree ensemble is damaged: a tree has two nodes with one id"),
        ("nodes_treeids", 0, 1, "a tree ensemble is damaged: the nodes of a tree are not consecutive"),
        ("class_nodeids", 0, 999, "a tree ensemble is damaged: it names a node that does not exist"),
        ("nodes_featureids", 0, 5_000_000, "a tree: a node tests a column that is not among the"),
    ]
    for name, place, value, sentence in cases:
        assert try_file(".onnx", str(change(name, place, value))) in (DAMAGED, REFUSED)
        assert capsys.readouterr().out.startswith(sentence)
    with pytest.raises(ModelError, match=r"changed\.onnx' is damaged: a tree: a node tests a column that is not among"):
        load_model(tmp_path / "changed.onnx")


def test_what_onnxruntime_refuses_is_said_in_a_sentence(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_file([helper.make_node("Gemm", ["X"], ["probabilities"])]).SerializeToString())
    with pytest.raises(
        ModelError, match=r"^cannot load the model .*: onnxruntime refuses it: This is an invalid model\. [^\n]*$"
    ):
        load_model(path)


def test_the_original_of_these_files_loads(tmp_path) -> None:
    X, y = make_rows()
    assert load_model(convert(LogisticRegression().fit(X, y), tmp_path / "model.onnx")).classes == (0, 1)


def test_the_resolution_follows_the_rounding_of_a_model_in_single_precision(tmp_path):
    """An honest audit of every failure mode verifies; a model in double precision keeps the finest resolution."""
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    X, y = fg.load_credit_g()
    X = X.select_dtypes("number").iloc[:, :7].to_numpy().astype(np.float32)
    trained = GaussianNB().fit(X[:700], (y[:700] == y[0]).to_numpy().astype(int))
    file = tmp_path / "bayes.onnx"
    file.write_bytes(to_onnx(trained, X[:1], options={"zipmap": False}, target_opset=17).SerializeToString())
    model = fg.load_model(file)
    protocol = fg.Protocol.fit(model, X[:700])
    assert 1e-6 < protocol.resolution <= 1e-3
    certs = fg.audit(model, X[700:], protocol, modes=True)
    assert fg.verify(certs, model, X[700:]).complete
    assert fg.Protocol.fit(trained, X[:700]).resolution == 1e-6
    assert fg.Protocol.fit(model, X[:700], resolution=1e-6).resolution == 1e-6
