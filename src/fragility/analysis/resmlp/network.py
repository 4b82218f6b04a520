r"""The residual MLP in torch and numpy alone: its shape, weights and logits; and its training, plain and penalised.

Network: linear stem; blocks  h <- h + W2 drop(relu(W1 LayerNorm(h)));  LayerNorm and linear head.

Loss of row i (SPEC section 9, Eq. train), with x~ its degraded twin, p = softmax(z(x)), q = softmax(z(x~)), and m the
margin of the class predicted at x over its best rival:

    l_i = CE(p_i, y_i) + alpha * ( KL(p_i||q_i) + KL(q_i||p_i) + beta * [m(x_i) - m(x~_i)]_+ / (|m(x_i)| + floor) )

|m(x_i)| in the normaliser is a constant for the gradient.  A batch's loss is sum_i w_i l_i / rows.

Randomness: five streams, each with its own generator, derived from one seed (weights, shuffling, dropout, twins,
dropout of the twins).  The global generators are neither read nor advanced, and a penalised run shuffles and drops
exactly as the plain run does.

This module imports nothing else of the package, so that it runs on a machine that has torch but not scikit-learn;
`fragility.analysis.resmlp.classifier` makes a scikit-learn classifier of it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

EVALUATION_ROWS = 4096  # rows a forward pass without gradients takes at once; bounds memory, changes no result
EPSILON = 1e-8
STREAMS = ("weights", "shuffle", "dropout", "twin", "twin_dropout")
Drop: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Sizes of the network; with the weights, all that a forward pass needs."""

    n_features: int
    n_classes: int
    width: int = 128
    blocks: int = 3


class ResidualBlock(nn.Module):
    """h + W2 drop(relu(W1 LayerNorm(h)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = _blank_linear(width, width)
        self.outer = _blank_linear(width, width)

    def forward(self, h: Tensor, drop: Drop | None = None) -> Tensor:
        inside = F.relu(self.inner(self.norm(h)))
        return h + self.outer(inside if drop is None else drop(inside))


class ResidualNetwork(nn.Module):
    """Rows (n, d) to logits (n, C).  Dropout happens only when ``drop`` is given: there is no hidden mode."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.stem = _blank_linear(shape.n_features, shape.width)
        self.blocks = nn.ModuleList(ResidualBlock(shape.width) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.width)
        self.head = _blank_linear(shape.width, shape.n_classes)

    def forward(self, x: Tensor, drop: Drop | None = None) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, drop)
        return self.head(self.norm(h))


def parameter_shapes(shape: NetworkShape) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every array of the network, without making one."""
    width = shape.width
    shapes: dict[str, tuple[int, ...]] = {
        "stem.weight": (width, shape.n_features),
        "stem.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (shape.n_classes, width),
        "head.bias": (shape.n_classes,),
    }
    for b in range(shape.blocks):
        for layer, size in (("norm", (width,)), ("inner", (width, width)), ("outer", (width, width))):
            shapes[f"blocks.{b}.{layer}.weight"] = size
            shapes[f"blocks.{b}.{layer}.bias"] = (width,)
    return shapes


def stream_seed(seed: int, stream: str) -> int:
    """Return the seed of a named stream; changing one stream's use cannot move another."""
    state = np.random.SeedSequence([seed, STREAMS.index(stream)]).generate_state(2, np.uint32)
    return int(state[0]) << 31 | int(state[1]) >> 1


def new_network(shape: NetworkShape, seed: int) -> ResidualNetwork:
    """Return a network with weights and biases uniform in +-1/sqrt(fan_in), from the seed's own stream."""
    network = ResidualNetwork(shape)
    generator = torch.Generator().manual_seed(stream_seed(seed, "weights"))
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                bound = module.in_features**-0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                module.bias.uniform_(-bound, bound, generator=generator)
    return network


def build_network(shape: NetworkShape, arrays: Mapping[str, NDArray[Any]]) -> ResidualNetwork:
    """Return the network with the given weights, one array for each of `parameter_shapes`."""
    network = ResidualNetwork(shape)
    network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    return network


def export_weights(network: ResidualNetwork) -> dict[str, NDArray[np.float32]]:
    """Return name -> weights as arrays, in the order of names."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in sorted(network.state_dict().items())}


def dense_tensor(matrix: Any, index: Any, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return rows ``index`` (positions or a slice) of a dense or CSR matrix as one tensor."""
    part = matrix[index]
    part = part.toarray() if hasattr(part, "toarray") else part
    kind = np.float32 if dtype == torch.float32 else np.float64
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, and training says so
        part = np.ascontiguousarray(part, dtype=kind)
    # torch warns about, and cannot promise to respect, arrays that must not be written (memory maps)
    return torch.from_numpy(part if part.flags.writeable else part.copy()).to(device)


def compute_logits(
    network: ResidualNetwork, matrix: Any, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
) -> NDArray[Any]:
    """Return (n, C) float64 logits, computed in ``dtype`` a few thousand rows at a time."""
    device = torch.device(device)
    out = np.empty((matrix.shape[0], network.shape.n_classes), dtype=np.float64)
    run = copy.deepcopy(network).to(device=device, dtype=dtype)
    with torch.inference_mode():
        for start in range(0, len(out), EVALUATION_ROWS):
            part = slice(start, start + EVALUATION_ROWS)
            out[part] = run(dense_tensor(matrix, part, device, dtype)).double().cpu().numpy()
    return out


def _blank_linear(n_in: int, n_out: int) -> nn.Linear:
    # nn.Linear would draw its weights from the global generator; new_network draws them from its own.
    return nn.utils.skip_init(nn.Linear, n_in, n_out)


# --- training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How the weights are found."""

    max_epochs: int = 100
    patience: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    dropout: float = 0.1
    gradient_clip: float | None = 1.0
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceStress:
    """How twins are made and what they cost: column_group (d,) integers 0..G-1, baseline (d,), and the weights."""

    column_group: NDArray[Any]
    baseline: NDArray[Any]
    alpha: float = 0.5
    beta: float = 0.1
    min_groups: int = 1
    max_groups: int = 3
    min_severity: float = 0.1
    max_severity: float = 0.5
    margin_floor: float = EPSILON


@dataclass(frozen=True, slots=True, eq=False)
class NetworkRows:
    """Rows for training or validation: codes (n,) class columns, weights (n,), values in a dense or CSR matrix.

    ``index`` (n,) says where in the matrix the rows are, so that a split needs no copy; None: all of it, in order.
    """

    matrix: Any
    codes: NDArray[Any]
    weights: NDArray[Any] | None = None
    index: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def tensor(self, positions: Any, device: torch.device) -> Tensor:
        """The values at ``positions`` (integers or a slice) as float32."""
        return dense_tensor(self.matrix, positions if self.index is None else self.index[positions], device)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One line of the training history; validation_nll is None without validation rows."""

    number: int
    loss: float
    validation_nll: float | None
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A trained network (on the CPU, best weights), what happened, and which epoch was kept."""

    network: ResidualNetwork
    history: tuple[Epoch, ...]
    best_epoch: int


class SeededDropout:
    """Inverted dropout of a batch of equal parts, each drawn from its own stream: rows alone, or rows and their twins.

    With twins, the rows' part is drawn as the plain run would draw it.
    """

    def __init__(self, rate: float, *generators: torch.Generator) -> None:
        self.rate = rate
        self.generators = generators

    def __call__(self, h: Tensor) -> Tensor:
        if self.rate == 0.0:
            return h
        mask = torch.empty_like(h)
        for part, generator in zip(mask.chunk(len(self.generators)), self.generators, strict=True):
            part.bernoulli_(1.0 - self.rate, generator=generator)
        return h * mask.div_(1.0 - self.rate)


def support_margins(logits: Tensor, twin_logits: Tensor) -> tuple[Tensor, Tensor]:
    """m(x) and m(x~): the class leading at x minus its best rival, at x and at x~; (n, C) each -> (n,), (n,)."""
    leader = logits.detach().argmax(dim=1, keepdim=True)
    return _compute_margin(logits, leader), _compute_margin(twin_logits, leader)


def _compute_margin(logits: Tensor, leader: Tensor) -> Tensor:
    if logits.shape[1] == 2:  # one rival: no search for the best
        return (logits.gather(1, leader) - logits.gather(1, 1 - leader)).squeeze(1)
    rivals = logits.scatter(1, leader, -torch.inf)
    return logits.gather(1, leader).squeeze(1) - rivals.amax(dim=1)


def weighted_loss(row_loss: Tensor, weights: Tensor | None) -> Tensor:
    return row_loss.mean() if weights is None else (row_loss * weights).sum() / row_loss.shape[0]


def nominal_loss(logits: Tensor, codes: Tensor, weights: Tensor | None = None) -> Tensor:
    """Weighted mean cross-entropy."""
    return weighted_loss(F.cross_entropy(logits, codes, reduction="none"), weights)


def fragility_loss(
    logits: Tensor, twin_logits: Tensor, codes: Tensor, stress: EvidenceStress, weights: Tensor | None = None
) -> Tensor:
    """The penalised loss of the module's text, as a weighted mean over rows."""
    log_p, log_q = F.log_softmax(logits, dim=1), F.log_softmax(twin_logits, dim=1)
    penalty = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1)  # KL(p||q) + KL(q||p)
    if stress.beta:
        margin, twin_margin = support_margins(logits, twin_logits)
        collapse = F.relu(margin - twin_margin) / (margin.detach().abs() + stress.margin_floor)
        penalty = penalty + stress.beta * collapse
    return weighted_loss(F.nll_loss(log_p, codes, reduction="none") + stress.alpha * penalty, weights)


class BatchTwins:
    """Draws degraded twins: a few groups of each row, at one severity per row, moved toward the baseline.

    x~ = x + s * (baseline - x) on the columns of the drawn groups; number of groups uniform on
    min_groups..max_groups (never more than there are), severity s uniform on [min_severity, max_severity].
    """

    def __init__(self, stress: EvidenceStress, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> None:
        device = generator.device
        self.generator = generator
        self.column_group = torch.as_tensor(stress.column_group, dtype=torch.int64, device=device)
        self.baseline = torch.as_tensor(stress.baseline, device=device).to(dtype)
        self.n_groups = int(np.max(stress.column_group)) + 1
        self.most = min(stress.max_groups, self.n_groups)
        self.least = min(stress.min_groups, self.most)
        self.low, self.high = stress.min_severity, stress.max_severity

    def group_severity(self, n: int) -> Tensor:
        """(n, G): the drawn severity on the drawn groups, zero elsewhere."""
        severity = self.low + (self.high - self.low) * self._uniform(n, 1)
        lottery = self._uniform(n, self.n_groups)
        drawn = lottery.topk(self.most, dim=1, largest=False).indices
        span = self.most - self.least + 1
        count = self.least + (self._uniform(n, 1) * span).floor().clamp_(max=span - 1)
        taken = torch.arange(self.most, device=drawn.device) < count
        return torch.zeros_like(lottery).scatter_(1, drawn, taken * severity)

    def _uniform(self, *size: int) -> Tensor:
        return torch.rand(size, generator=self.generator, device=self.generator.device, dtype=self.baseline.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        severity = self.group_severity(x.shape[0]).index_select(1, self.column_group)
        return torch.lerp(x, self.baseline.expand_as(x), severity)


class _Batches:
    """Shuffled mini-batches as tensors on the device.

    The matrix is converted batch by batch.  On a GPU whose free memory is at least four times the matrix, the matrix
    moves there once instead: gathering rows on the host would take most of each step.
    """

    def __init__(self, rows: NetworkRows, plan: TrainingPlan, device: torch.device) -> None:
        self.rows = rows
        self.batch_size = plan.batch_size
        self.device = device
        self.generator = torch.Generator().manual_seed(stream_seed(plan.seed, "shuffle"))
        self.codes = torch.as_tensor(rows.codes, dtype=torch.int64).to(device)
        weights = rows.weights
        self.weights = None if weights is None else torch.as_tensor(weights).to(device=device, dtype=torch.float32)
        self.resident = _resident_matrix(rows, device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        order = torch.randperm(len(self.rows), generator=self.generator)
        placed = order.to(self.device)
        for start in range(0, len(order), self.batch_size):
            index = placed[start : start + self.batch_size]
            if self.resident is not None:
                x = self.resident.index_select(0, index)
            else:
                x = self.rows.tensor(order[start : start + self.batch_size].numpy(), self.device)
            yield x, self.codes[index], None if self.weights is None else self.weights[index]


def _resident_matrix(rows: NetworkRows, device: torch.device) -> Tensor | None:
    if device.type != "cuda":
        return None
    n, d = len(rows), int(rows.matrix.shape[1])
    free, _ = torch.cuda.mem_get_info(device)
    if 4 * n * d > free // 4:
        return None
    whole = torch.empty((n, d), dtype=torch.float32, device=device)
    for start in range(0, n, EVALUATION_ROWS):
        part = slice(start, start + EVALUATION_ROWS)
        whole[part] = rows.tensor(part, device)
    return whole


class _Step:
    """One optimiser step on a batch: plain, or with the penalty."""

    def __init__(
        self, network: ResidualNetwork, plan: TrainingPlan, stress: EvidenceStress | None, device: torch.device
    ) -> None:
        def stream(name: str) -> torch.Generator:
            return torch.Generator(device=device).manual_seed(stream_seed(plan.seed, name))

        self.network = network
        self.clip = plan.gradient_clip
        self.parameters = list(network.parameters())
        # Decay on matrices only: shrinking biases and norms regularises nothing.
        matrices = [p for p in self.parameters if p.ndim == 2]
        vectors = [p for p in self.parameters if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, fused=True)
        # With alpha = 0 the twin cannot move the weights, so it is not drawn.
        self.stress = stress if stress is not None and stress.alpha > 0.0 else None
        if self.stress is None:
            self.drop = SeededDropout(plan.dropout, stream("dropout"))
        else:
            self.drop = SeededDropout(plan.dropout, stream("dropout"), stream("twin_dropout"))
            self.twin = BatchTwins(self.stress, stream("twin"))

    def loss(self, x: Tensor, codes: Tensor, weights: Tensor | None) -> Tensor:
        if self.stress is None:
            return nominal_loss(self.network(x, self.drop), codes, weights)
        # One pass over both halves: half the kernel launches of two passes, the same numbers.
        both = self.network(torch.cat([x, self.twin(x)]), self.drop)
        logits, twin_logits = both.split(x.shape[0])
        return fragility_loss(logits, twin_logits, codes, self.stress, weights)

    def __call__(self, x: Tensor, codes: Tensor, weights: Tensor | None) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, codes, weights)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        return loss.detach()


def mean_nll(network: ResidualNetwork, rows: NetworkRows, device: torch.device) -> float:
    """Weighted mean cross-entropy of ``rows`` in float32, summed in float64."""
    total, weight = 0.0, 0.0
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    with torch.inference_mode():
        for start in range(0, len(rows), EVALUATION_ROWS):
            part = slice(start, start + EVALUATION_ROWS)
            codes = torch.as_tensor(rows.codes[part], dtype=torch.int64).to(device)
            losses = F.cross_entropy(network(rows.tensor(part, device)), codes, reduction="none").double()
            w = torch.as_tensor(weights[part], dtype=torch.float64).to(device)
            total, weight = total + float((losses * w).sum()), weight + float(w.sum())
    return total / weight


def train_network(
    rows: NetworkRows,
    shape: NetworkShape,
    plan: TrainingPlan,
    *,
    validation: NetworkRows | None = None,
    stress: EvidenceStress | None = None,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Trained:
    """Train and return the weights of the epoch with the lowest validation NLL (the last one without validation).

    Stops when ``plan.patience`` epochs in a row have not lowered it.  Raises FloatingPointError if the loss is not
    finite.
    """
    device = torch.device(device)
    with _cpu_threads(plan.threads):
        network = new_network(shape, plan.seed).to(device)
        batches, step = _Batches(rows, plan, device), _Step(network, plan, stress, device)
        best, best_nll, best_epoch = copy.deepcopy(network.state_dict()), np.inf, 0
        history: list[Epoch] = []
        for number in range(1, plan.max_epochs + 1):
            started = time.perf_counter()
            total = torch.zeros((), dtype=torch.float64, device=device)
            for x, codes, weights in batches:
                total += step(x, codes, weights).double() * x.shape[0]
            loss = float(total) / len(rows)
            nll = None if validation is None else mean_nll(network, validation, device)
            if not np.isfinite(loss) or (nll is not None and not np.isfinite(nll)):
                raise FloatingPointError(f"the loss was {loss} in epoch {number} (validation {nll})")
            history.append(Epoch(number, loss, nll, time.perf_counter() - started))
            if on_epoch is not None:
                on_epoch(history[-1])
            if nll is None or nll < best_nll:
                best, best_epoch = copy.deepcopy(network.state_dict()), number
                best_nll = np.inf if nll is None else nll
            elif number - best_epoch >= plan.patience:
                break
        network.load_state_dict(best)
        return Trained(network.to("cpu"), tuple(history), best_epoch)


@contextmanager
def _cpu_threads(threads: int) -> Iterator[None]:
    """Hold torch to a declared number of threads, then give back what was set.

    The sum of a matrix product changes in its last bits with the number of threads, so a seed fixes the weights only
    together with that number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
