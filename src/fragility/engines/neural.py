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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from fragility.base.arrays import Booleans, Floats
from fragility.base.errors import Advice, EngineError
from fragility.base.libraries import family_of
from fragility.engines.neural_states import Sizes, SplitNetwork, StatePlan, split_module, trace_states
from fragility.engines.trace import Progress, StatesAsked, Trace, Tracer
from fragility.evidence import EvidenceRows
from fragility.models.links import Link
from fragility.protocol import Protocol

ENGINE = "neural"
MOST_SUM = 1e5  # of a unit behind the first layer: rounded to about 1e-11, which leaves digits to the layers behind it
OUTPUTS = ("logits", "binary_logit", "probabilities", "log_probabilities")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}


def never_reads(rows: EvidenceRows) -> str | None:
    """Return why this engine can audit no rows of this model and protocol, or None if it may."""
    if _find_kind(rows) is None:
        return "it is not a torch module, a ResMLPClassifier or an MLPClassifier of one output per row"
    if not rows.native_matrix and rows.model.transformer is not None:
        return "preprocessing stands between the evidence and the network"
    if bool(rows.stepwise.any()) or not bool(np.isfinite(rows.baseline).all()):
        return "some columns cannot be interpolated, or have no baseline"
    return None


def refusal(rows: EvidenceRows) -> str | None:
    """Return why this engine cannot audit these rows, or None if it can."""
    if reason := never_reads(rows):
        return reason
    if not rows.native_matrix:
        return "its rows hold whole numbers or categories, which cannot be handed over as they are"
    if rows.cell_dtype != np.float64 and _find_kind(rows) == "sklearn":
        return "MLPClassifier mixes precisions on float32 rows"
    return None


def trace(
    rows: EvidenceRows, protocol: Protocol, progress: Progress | None = None, *, sizes: Sizes | None = None
) -> Trace:
    """Return the trace of every row; ``sizes`` bounds what is held at a time and changes no result."""
    if _find_kind(rows) is None:
        raise EngineError(f"the neural engine does not know {rows.model.kind}; use ", Advice.argument("engine", "auto"))
    plan, decided = _make_plan(rows, protocol), rows.decided
    round_to = torch.float32 if rows.cell_dtype == np.float32 else None
    with _hold_in_evaluation(rows.model.head):
        try:
            arrays, evaluations = trace_states(
                rows.dense, len(rows), _make_network(rows), plan, sizes, round_to, decided, progress, rows.spared
            )
        except FloatingPointError as error:
            for start in range(0, len(rows), 1024):
                rows.predict(rows.dense(start, start + 1024))  # raises the adapter's own complaint, if it has one
            message = f"the neural engine failed: {error}; use "
            raise EngineError(message, Advice.argument("engine", "blackbox")) from error
    return Trace(**arrays, evaluations=evaluations, engine=ENGINE)


def tracer(rows: EvidenceRows, protocol: Protocol) -> Tracer:
    """Return the function that traces these rows and others of their form."""
    return lambda others, progress=None: trace(others, protocol, progress)


def predictor(rows: EvidenceRows) -> None:
    """Return None: the model itself predicts rows as fast."""


def state_answers(rows: EvidenceRows) -> None:
    """Return None: a network is handed the cells of its states."""


def value_answers(rows: EvidenceRows) -> None:
    """Return None: a network is handed the cells of its states."""


def doubts(rows: EvidenceRows) -> Callable[[Floats], Booleans]:
    """Return the function cells (m, d) -> (m,) rows whose sums behind the first layer may have lost digits."""
    first = _make_network(rows).first
    if first is None:
        return lambda cells: np.zeros(len(cells), dtype=bool)
    weights = first.weight.detach().abs().double().cpu().numpy().T  # (d, H)
    at_baseline = np.abs(rows.baseline) @ weights

    def doubtful(cells: Floats) -> Booleans:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(~((np.abs(cells) @ weights + at_baseline).max(axis=1) <= MOST_SUM))

    return doubtful


def _make_plan(rows: EvidenceRows, protocol: Protocol) -> StatePlan:
    asked = StatesAsked.of(protocol, rows.n_groups)
    named = asdict(asked)
    named.pop("one_end")
    return StatePlan(baseline=rows.baseline, column_group=rows.column_group, offset=rows.offset, **named)


# --- which networks -----------------------------------------------------------------------------------------


def _find_kind(rows: EvidenceRows) -> str | None:
    head, link = rows.model.head, rows.model.head_link
    if isinstance(head, nn.Module):
        return "torch" if rows.model.output in OUTPUTS else None
    family = family_of(head)
    if family == "fragility.ResMLPClassifier":
        return "residual" if link is not Link.PREDICT_PROBA else None
    if family == "sklearn.MLPClassifier" and not (head.n_outputs_ > 1 and head.out_activation_ == "logistic"):
        return "sklearn"
    return None


def _make_network(rows: EvidenceRows) -> SplitNetwork:
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
    layers: list[nn.Module] = []
    for weights, bias in zip(head.coefs_, head.intercepts_, strict=True):
        layer = nn.Linear(weights.shape[0], weights.shape[1], device="meta")  # draws no random numbers
        layer.weight = nn.Parameter(torch.tensor(weights.T, dtype=torch.float64), requires_grad=False)
        layer.bias = nn.Parameter(torch.tensor(bias, dtype=torch.float64), requires_grad=False)
        layers += [layer, ACTIVATIONS[head.activation]()]
    return nn.Sequential(*layers[:-1]).eval()


@contextmanager
def _hold_in_evaluation(head: Any) -> Iterator[None]:
    """Hold a torch module in evaluation mode: dropout and batch statistics would make certificates random."""
    if not isinstance(head, nn.Module):
        yield
        return
    training = [part for part in head.modules() if part.training]
    head.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
