"""The neural engine against the black box, on the CPU."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted, preprocessing, read_table, split
from places import REPOSITORY
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from traces import assert_same_trace, covertype_groups

import fragility as fg
from fragility.base.errors import EngineError, FragilityError
from fragility.engines.blackbox import trace_blackbox
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.scores import (
    READINGS,
    predicted_class,
    reading_margin,
    removal_order,
    softmax_probabilities,
    support_margin,
)

torch = pytest.importorskip("torch", reason="the neural engine needs PyTorch")
from torch import nn  # noqa: E402

from fragility.analysis.resmlp import ResMLPClassifier  # noqa: E402
from fragility.engines import neural, neural_states  # noqa: E402
from fragility.engines.neural import NeuralEngine  # noqa: E402
from fragility.engines.neural_states import Sizes  # noqa: E402

OPERATORS = ("attenuate_all", "attenuate_top1", "attenuate_top2", "attenuate_top11")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(model, X_train, X, tolerance=1e-9, **settings_):
    protocol = Protocol.fit(model, X_train, **settings_)
    rows = bind(model, X, protocol)
    assert NeuralEngine.refusal(rows) is None
    claimed = neural.trace_network(rows, protocol)
    assert claimed.engine == "neural"
    assert_same_trace(claimed, trace_blackbox(rows, protocol), tolerance)
    return rows, protocol, claimed


def residual(dataset: str):
    data = split(dataset)
    head = ResMLPClassifier(width=24, blocks=2, max_epochs=3, random_state=0, device="cpu")
    model = make_pipeline(preprocessing(data.X_train), head)
    return model.fit(data.X_train, data.y_train.to_numpy(dtype=object)), data


def perceptron(n_in: int, n_out: int, dtype=torch.float32, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Linear(n_in, 16), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, n_out)
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.0)  # decisive enough to flip
    return module.to(dtype)


class Opaque(nn.Module):
    """A module whose first layer nobody knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(torch.sin(x))


NUMBERS = np.random.default_rng(5).normal(size=(160, 12))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_sklearn_perceptron(dataset, reading):
    case = fitted(dataset, "mlp", "transformed")
    check(case.model, case.X_train, case.X_test[:150], reading=reading, operators=OPERATORS)


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (7,), (6, 5)])
def test_sklearn_activations_and_depths(activation, hidden):
    y = (NUMBERS[:, 0] + NUMBERS[:, 1] ** 2 > 0.7).astype(int) + (NUMBERS[:, 2] > 0.5)
    model = MLPClassifier(hidden, activation=activation, max_iter=40, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(NUMBERS, y)
    check(model, NUMBERS, NUMBERS[:40])


def test_rows_that_all_flip_early():
    model = Model.wrap(perceptron(12, 3, torch.float64), classes=[0, 1, 2], output="logits")
    protocol = Protocol.fit(model, NUMBERS)
    flips = neural.trace_network(bind(model, NUMBERS, protocol), protocol).threshold.max(axis=1) <= 0.5
    assert flips.any()
    check(model, NUMBERS, NUMBERS[flips])
    check(model, NUMBERS, NUMBERS[flips][:1])


def test_sklearn_probabilities_are_its_own():
    case = fitted("credit_g", "mlp", "transformed")
    _, _, claimed = check(case.model, case.X_train, case.X_test)
    own = case.model.predict_proba(case.X_test)
    np.testing.assert_allclose(claimed.confidence, own[np.arange(len(own)), claimed.predicted], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_residual_network(dataset):
    model, data = residual(dataset)
    rows, protocol, _ = check(model, data.X_train, data.X_test[:120], operators=OPERATORS)
    assert neural.make_network(rows).first is not None
    assert fg.audit(model, data.X_test[:20], protocol).manifest.engine.name == "neural"


def test_covertype_sample():
    table = read_table("covertype").sample(900, random_state=3).reset_index(drop=True)
    X, y = table.drop(columns="Cover_Type"), table["Cover_Type"].to_numpy()
    model = make_pipeline(StandardScaler(), MLPClassifier((20, 20), max_iter=30, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:600], y[:600])
    rows, _, _ = check(model, X[:600], X[600:], groups=covertype_groups(X.columns))
    assert (rows.n_groups, rows.n_classes) == (12, len(set(y[:600])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("output", ["logits", "binary_logit", "probabilities", "log_probabilities"])
@pytest.mark.parametrize("opaque", [False, True])
def test_torch_modules(dtype, output, opaque):
    n_classes = 2 if output == "binary_logit" else 3
    module = perceptron(12, 1 if output == "binary_logit" else n_classes, dtype)
    if output == "probabilities":
        module.append(nn.Softmax(dim=-1))
    if output == "log_probabilities":
        module.append(nn.LogSoftmax(dim=-1))
    if opaque:
        module = Opaque(module)
    model = Model.wrap(module, classes=list(range(n_classes)), output=output)
    # float32 rounds a batch of another shape differently on some processors; margins keep six digits
    rows, _, _ = check(model, NUMBERS, NUMBERS, tolerance=1e-9 if dtype == torch.float64 else 2e-6)
    assert (neural.make_network(rows).first is not None) == (dtype == torch.float64 and not opaque)
    assert all(part.training for part in module.modules()), "the module's mode is given back"


def test_audit_of_a_torch_module_says_which_engine():
    model = Model.wrap(perceptron(12, 3), classes=["a", "b", "c"], output="logits")
    protocol = Protocol.fit(model, NUMBERS)
    assert fg.audit(model, NUMBERS, protocol).manifest.engine.name == "neural"
    assert fg.audit(model, NUMBERS, protocol, engine="neural").manifest.engine.name == "neural"


@pytest.mark.parametrize("sizes", [Sizes(1, 1), Sizes(7, 3), Sizes(50, 1000), Sizes(10_000, 64)])
def test_sizes_change_nothing(sizes):
    for dtype in (torch.float32, torch.float64):
        model = Model.wrap(perceptron(12, 3, dtype), classes=[0, 1, 2], output="logits")
        protocol = Protocol.fit(model, NUMBERS)
        rows = bind(model, NUMBERS[:60], protocol)
        whole = neural.trace_network(rows, protocol)
        parts = neural.trace_network(rows, protocol, sizes=sizes)
        assert_same_trace(parts, whole, 1e-12 if dtype == torch.float64 else 2e-6)


def test_first_layer_sums_equal_stressed_cells():
    model = Model.wrap(perceptron(12, 3, torch.float64), classes=[0, 1, 2], output="logits")
    protocol = Protocol.fit(model, NUMBERS, groups={f"block {i}": names for i, names in enumerate(_pairs(model))})
    rows = bind(model, NUMBERS, protocol)
    plan = neural.make_plan(rows, protocol)
    network = neural.make_network(rows)
    model.head.eval()
    sums, asked = neural_states.trace_states(rows.dense, len(rows), network, plan)
    undivided = replace(network, first=None, rest=model.head)
    cells, asked_too = neural_states.trace_states(rows.dense, len(rows), undivided, plan)
    assert asked == asked_too
    for name, values in sums.items():
        np.testing.assert_allclose(values, cells[name], rtol=1e-12, atol=1e-12, err_msg=name)


def _pairs(model) -> list[list[str]]:
    names = [column.name for column in Protocol.fit(model, NUMBERS).columns]
    return [names[i::5] for i in range(5)]


def test_early_stop_only_saves_evaluations():
    model = Model.wrap(perceptron(12, 3, torch.float64), classes=[0, 1, 2], output="logits")
    protocol = Protocol.fit(model, NUMBERS)
    rows = bind(model, NUMBERS, protocol)
    plan, network = neural.make_plan(rows, protocol), neural.make_network(rows)
    model.head.eval()
    early, few = neural_states.trace_states(rows.dense, len(rows), network, plan)
    every, many = neural_states.trace_states(rows.dense, len(rows), network, replace(plan, early_stop=False))
    states = 1 + 12 + (protocol.depth - 1) + 2 * 9
    assert few < many == len(rows) * states + 1
    for name, values in early.items():
        np.testing.assert_allclose(values, every[name], rtol=1e-12, atol=1e-12, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(0, 2**32 - 1), st.sampled_from(READINGS), st.sampled_from([0.0, 0.005, 0.3]))
def test_scores_on_the_device_are_the_definitions(n_classes, seed, reading, smoothing):
    rng = np.random.default_rng(seed)
    raw = np.round(rng.normal(size=(6, 4, n_classes)) * rng.choice([1, 30]), rng.integers(0, 3))  # with ties
    p = softmax_probabilities(raw)
    original = rng.integers(0, n_classes, size=(6, 4))
    log_p = neural_states.log_probabilities(torch.as_tensor(raw), "logits")
    at = torch.as_tensor(original)
    np.testing.assert_allclose(neural_states.support_margins(log_p, at), support_margin(p, original), atol=1e-9)
    for offset in (None, rng.normal(size=n_classes)):
        on_device = None if offset is None else torch.as_tensor(offset)
        found = neural_states.reading_margins(log_p, at, reading, on_device, smoothing)
        np.testing.assert_allclose(found, reading_margin(p, original, reading, offset, smoothing), atol=1e-9)
    np.testing.assert_array_equal(neural_states.predicted_classes(log_p, 1e-6), predicted_class(p, 1e-6))
    drops = np.round(rng.normal(size=(6, 9)), 1)
    np.testing.assert_array_equal(
        neural_states.removal_orders(torch.as_tensor(drops), 1e-6), removal_order(drops, 1e-6)
    )


def test_float32_rows_of_a_residual_network():
    X = NUMBERS.astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    model = ResMLPClassifier(width=8, blocks=1, max_epochs=2, random_state=0, device="cpu").fit(X, y)
    rows, _, _ = check(model, X, X[:50])
    assert neural.make_network(rows).first is None, "cells that are rounded first are no sums"


def test_refusals():
    case = fitted("credit_g", "mlp", "transformed")
    protocol = Protocol.fit(case.model, case.X_train, space="raw")
    assert "preprocessing stands between" in NeuralEngine.refusal(bind(case.model, case.X_test[:5], protocol))
    logistic = fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(logistic.model, logistic.X_train)
    rows = bind(logistic.model, logistic.X_test[:5], protocol)
    assert "not a torch module" in NeuralEngine.refusal(rows)
    with pytest.raises(EngineError, match="does not know"):
        neural.trace_network(rows, protocol)
    X = NUMBERS.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((4,), max_iter=5, random_state=0).fit(X, X[:, 0] > 0)
    assert "float32" in NeuralEngine.refusal(bind(model, X, Protocol.fit(model, X)))


def test_hooked_modules_are_not_taken_apart():
    module = perceptron(12, 3, torch.float64)
    assert neural_states.split_module(module) is not None
    assert neural_states.split_module(nn.Sequential(module, nn.Identity())) is not None
    assert neural_states.split_module(Opaque(module)) is None
    assert neural_states.split_module(nn.Sequential(nn.ReLU(), nn.Linear(2, 2))) is None
    module[0].register_forward_hook(lambda *_: None)
    assert neural_states.split_module(module) is None


def test_output_that_is_no_probability_is_refused():
    module = perceptron(12, 3)
    good = Model.wrap(nn.Sequential(module, nn.Softmax(dim=-1)), classes=[0, 1, 2], output="probabilities")
    protocol = Protocol.fit(good, NUMBERS)
    model = Model.wrap(module, classes=[0, 1, 2], output="probabilities")
    with pytest.raises(FragilityError, match="not a probability"):
        neural.trace_network(bind(model, NUMBERS, protocol), protocol)


def test_missing_cells_are_refused():
    model = Model.wrap(perceptron(12, 3), classes=[0, 1, 2], output="logits")
    protocol = Protocol.fit(model, NUMBERS)
    X = NUMBERS.copy()
    X[100, 3] = np.nan
    with pytest.raises(FragilityError):
        neural.trace_network(bind(model, X, protocol), protocol)


def test_settings_are_given_back():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with neural_states.steady_arithmetic(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.slow
def test_benchmark_needs_torch_and_numpy_alone(tmp_path):
    table = pd.DataFrame(read_table("covertype").iloc[::4000])
    table.to_parquet(tmp_path / "covertype.parquet")
    script = REPOSITORY / "benchmarks" / "neural.py"

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    data = str(tmp_path / "covertype.npz")
    run(str(script), "prepare", "--data", str(tmp_path / "covertype.parquet"), "--out", data)
    absent = "import sys, runpy; sys.modules.update(dict.fromkeys(['sklearn', 'pandas', 'scipy', 'fragility']));"
    arguments = [
        "neural.py",
        "run",
        "--data",
        data,
        "--epochs",
        "1",
        "--repeats",
        "1",
        "--width",
        "16",
        "--blocks",
        "1",
    ]
    code = f"{absent} sys.argv = {arguments!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    printed = run("-c", code)
    assert '"certificates_per_second"' in printed


@pytest.mark.parametrize("opaque", [False, True], ids=["sequential", "opaque"])
def test_float32_networks_answer_a_row_alike_in_any_batch(opaque):
    """A product of float32 matrices rounds by its shape; cut and reordered, the digests of the rows are the same."""
    module = perceptron(12, 3)
    model = Model.wrap(Opaque(module) if opaque else module, classes=["a", "b", "c"], output="logits")
    rows = np.random.default_rng(6).normal(size=(1500, 12))
    protocol = Protocol.fit(model, NUMBERS, depth=4)
    whole = fg.audit(model, rows, protocol, engine="neural").table.column("digest").to_pylist()
    order = np.random.default_rng(7).permutation(1500)
    for size in (1, 7, 333):
        few = order[: min(1500, 12 * size)]
        for start in range(0, len(few), size):
            those = few[start : start + size]
            part = fg.audit(model, rows[those], protocol, ids=those, engine="neural")
            assert part.table.column("digest").to_pylist() == [whole[i] for i in those]
