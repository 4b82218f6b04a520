"""Neural engine: certificates of torch networks and of scikit-learn's MLPClassifier, all states on one device.

The network runs where its parameters live (move a module to the GPU before auditing it; ResMLPClassifier follows its
own ``device``), in the precision in which the model itself answers:

    torch.nn.Module      the module's own precision, float32 as a rule
    ResMLPClassifier     float32 weights in float64 arithmetic
    MLPClassifier        float64

In float64, where a network begins with a linear layer, its states are sums behind that layer (see ``neural_states``).
In float32 such sums round differently from the layer itself, by about 1e-6 in a margin: there the network is handed
stressed cells, made on its device, and answers as it answers the black box.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fragility.base.arrays import Booleans, Floats
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import family_of, is_torch_module
from fragility.engines.engine import Engine
from fragility.engines.trace import Progress, Trace, Tracer, TraceStates
from fragility.evidence import EvidenceRows
from fragility.models.outputs import Link
from fragility.protocol import Protocol

if TYPE_CHECKING:
    from torch import nn

    from fragility.engines.neural_states import Sizes, SplitNetwork, TracePlan

MOST_SUM = 1e5  # of a unit behind the first layer: rounded to about 1e-11, which leaves digits to the layers behind it
OUTPUTS = ("logits", "binary_logit", "probabilities", "log_probabilities")
ACTIVATIONS = {"identity": "Identity", "logistic": "Sigmoid", "tanh": "Tanh", "relu": "ReLU"}  # of torch.nn


class NeuralEngine(Engine):
    """A network, all of whose states are computed on one device."""

    # A float32 network rounds by the shape of its batch, in the black box as in the engine.
    name, needs, tolerance, rounding = "neural", ("torch",), 1e-4, 1e-4
    families, torch_modules = ("sklearn.MLPClassifier", "fragility.ResMLPClassifier"), True
    answers = predicts = False  # a network is handed the cells of its states

    @classmethod
    def never_reads(cls, rows: EvidenceRows) -> str | None:
        if _find_kind(rows) is None:
            return "it is not a torch module, a ResMLPClassifier or an MLPClassifier of one output per row"
        if not rows.native_matrix and rows.model.transformer is not None:
            return "preprocessing stands between the evidence and the network"
        if bool(rows.stepwise.any()) or not bool(np.isfinite(rows.baseline).all()):
            return "some columns cannot be interpolated, or have no baseline"
        return None

    @classmethod
    def refusal(cls, rows: EvidenceRows) -> str | None:
        if reason := cls.never_reads(rows):
            return reason
        if not rows.native_matrix:
            return "its rows hold whole numbers or categories, which cannot be handed over as they are"
        if rows.cell_dtype != np.float64 and _find_kind(rows) == "sklearn":
            return "MLPClassifier mixes precisions on float32 rows"
        return None

    @cached_property
    def _weights(self) -> tuple[Floats, Floats] | None:
        """(d, H) what a cell adds at most to a unit of the first layer, and (H,) the same of the baseline."""
        first = make_network(self.form).first
        if first is None:
            return None
        weights = first.weight.detach().abs().double().cpu().numpy().T
        return weights, np.abs(self.form.baseline) @ weights

    def doubts(self, cells: Floats) -> Booleans:
        """Return (m,) which rows have sums behind the first layer that may have lost digits."""
        if self._weights is None:
            return np.zeros(len(cells), dtype=bool)
        weights, at_baseline = self._weights
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(~((np.abs(cells) @ weights + at_baseline).max(axis=1) <= MOST_SUM))

    def tracer(self, protocol: Protocol) -> Tracer:
        return lambda rows, progress=None: trace_network(rows, protocol, progress)


def trace_network(
    rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None, *, sizes: Sizes | None = None
) -> Trace:
    """Return the trace of every row; ``sizes`` bounds what is held at a time and changes no result."""
    import torch

    from fragility.engines.neural_states import trace_states

    if _find_kind(rows) is None:
        raise EngineError(f"the neural engine does not know {rows.model.kind}; use ", Advice.argument("engine", "auto"))
    plan, decided = make_plan(rows, protocol), rows.decided
    round_to = torch.float32 if rows.cell_dtype == np.float32 else None
    with _hold_in_evaluation(rows.model.head):
        try:
            arrays, evaluations = trace_states(
                rows.dense, len(rows), make_network(rows), plan, sizes, round_to, decided, progress, rows.spared
            )
        except FloatingPointError as error:
            for start in range(0, len(rows), 1024):
                rows.predict(rows.dense(start, start + 1024))  # raises the adapter's own complaint, if it has one
            message = f"the neural engine failed: {error}; use "
            raise EngineError(message, Advice.argument("engine", "blackbox")) from error
    return Trace(**arrays, evaluations=evaluations, engine=NeuralEngine.name)


def make_plan(rows: EvidenceRows, protocol: Protocol) -> TracePlan:
    from fragility.engines.neural_states import TracePlan

    states = TraceStates.of(protocol, rows)
    return TracePlan(states, rows.baseline, rows.column_group)


# --- which networks -----------------------------------------------------------------------------------------


def _find_kind(rows: EvidenceRows) -> str | None:
    head, link = rows.model.head, rows.model.head_link
    if is_torch_module(head):
        return "torch" if rows.model.output in OUTPUTS else None
    family = family_of(head)
    if family == "fragility.ResMLPClassifier":
        return "residual" if link is not Link.PREDICT_PROBA else None
    if family == "sklearn.MLPClassifier" and not (head.n_outputs_ > 1 and head.out_activation_ == "logistic"):
        return "sklearn"
    return None


def make_network(rows: EvidenceRows) -> SplitNetwork:
    """Return the network that the model is, as its first linear layer and the rest, where it can be split."""
    import torch

    from fragility.engines.neural_states import SplitNetwork, split_module

    head, kind, output = rows.model.head, _find_kind(rows), "logits"
    if kind == "torch":
        module, output = head, str(rows.model.output)
    elif kind == "residual":
        cuda = head.device != "cpu" and torch.cuda.is_available()
        module = copy.deepcopy(head.network_).to(device="cuda" if cuda else "cpu", dtype=torch.float64).eval()
    else:
        module = _make_sequential(head)
        if head.out_activation_ == "logistic":
            output = "binary_complement" if rows.model.head_link is Link.PREDICT_PROBA else "binary_logit"
    parameter = next(iter(module.parameters()), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    dtype = torch.float32 if parameter is None else parameter.dtype
    # Cells that are rounded before a wider network sees them are no sums any more.
    exact = dtype == torch.float64 and rows.cell_dtype == np.float64
    parts = split_module(module) if exact else None
    if parts is None or parts[0].in_features != rows.width:
        return SplitNetwork(None, module, output, rows.n_classes, device, dtype)
    return SplitNetwork(*parts, output, rows.n_classes, device, dtype)


def _make_sequential(head: Any) -> nn.Sequential:
    """Return an MLPClassifier as a torch module that gives its raw output, in float64."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for weights, bias in zip(head.coefs_, head.intercepts_, strict=True):
        layer = nn.Linear(weights.shape[0], weights.shape[1], device="meta")  # draws no random numbers
        layer.weight = nn.Parameter(torch.tensor(weights.T, dtype=torch.float64), requires_grad=False)
        layer.bias = nn.Parameter(torch.tensor(bias, dtype=torch.float64), requires_grad=False)
        layers += [layer, getattr(nn, ACTIVATIONS[head.activation])()]
    return nn.Sequential(*layers[:-1]).eval()


@contextmanager
def _hold_in_evaluation(head: Any) -> Iterator[None]:
    """Hold a torch module in evaluation mode: dropout and batch statistics would make certificates random."""
    if not is_torch_module(head):
        yield
        return
    training = [part for part in head.modules() if part.training]
    head.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
