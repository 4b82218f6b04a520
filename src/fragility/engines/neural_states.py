r"""States of a certificate through a neural network, on its device: torch and numpy alone.

Nothing of this package is imported when it runs, so the file can be loaded by its path on a machine that has torch but
not scikit-learn; `fragility.engines.neural` makes an engine of it.

A first linear layer turns every stressed row into a sum. With W its weights, x a row and b the baseline:

    h(x)        = W x + w0
    D_g         = W_g (b_g - x_g)                                   what removing group g adds
    h(R(x, S))  = h(x) + sum_{g in S} D_g                           removals: sums, prefix sums along the path
    h(lambda)   = h(x) + lambda sum_{g attenuated} D_g              attenuation: one direction, scaled

so the rows themselves are never stressed (`HiddenSpace`). D is computed in float64 and rounded once to the network's
precision. A network without a known first layer gets stressed cells, made in float64 as the black box makes them
(`CellSpace`). Letters: m rows, d columns, G groups, H units of the first layer, C classes, K depth, P operators.

Scores follow `fragility.scores`, on the device and in float64: log p = log link(output), clipped at 1e-12.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from fragility.engines.trace import TraceStates

LOADED_IN = os.getpid()
LOG_CLIP = math.log(1e-12)  # as scores.CLIP
SUM_TOLERANCE = 1e-4  # as models.SUM_TOLERANCE
CPU_BATCH, CUDA_BATCH = 4096, 262144  # states made at a time
# A product of float32 matrices rounds by its shape: such a network is always handed as many rows, padded if need be, so
# that a row's answer depends neither on how many there are nor on how they were cut.
# On a GPU the call must also be long enough to hide the time it takes to start its kernels.
CPU_SHAPE, CUDA_SHAPE = 512, 16384
CPU_BYTES = 256 * 2**20
MOST_ROWS = 131072  # where early stopping asks which rows are left, the GPU waits: once for so many rows


@dataclass(frozen=True, eq=False)
class TracePlan:
    """The states that a trace visits, and what they move rows to."""

    states: TraceStates
    baseline: np.ndarray  # (d,)
    column_group: np.ndarray  # (d,)
    early_stop: bool = True  # ask no larger severity of a row that has flipped


@dataclass(frozen=True, eq=False)
class SplitNetwork:
    """A network as its first linear layer (or None) and the rest of it.

    output: ``logits``, ``binary_logit``, ``log_probabilities``, ``probabilities``, or ``binary_complement``: the losing
    class's probability is 1 - p, as scikit-learn's MLPClassifier gives it.
    """

    first: nn.Linear | None
    rest: Callable[[Tensor], Tensor]
    output: str
    n_classes: int
    device: torch.device
    dtype: torch.dtype


def split_module(module: nn.Module) -> tuple[nn.Linear, Callable[[Tensor], Tensor]] | None:
    """Return (first linear layer, rest) where the module is known to begin with one, else None.

    Known are ``nn.Sequential`` (also nested) that begins with ``nn.Linear``, and our own ``ResidualNetwork``; a module
    with hooks is not taken apart.
    """
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return None
    if type(module).__name__ == "ResidualNetwork":
        return module.stem, _ResidualRest(module)  # type: ignore[return-value]
    if type(module) is not nn.Sequential or len(module) == 0:
        return None
    if type(module[0]) is nn.Linear:
        return module[0], module[1:]
    inner = split_module(module[0])
    if inner is None:
        return None
    later = module[1:]
    return inner[0], lambda h: later(inner[1](h))


class _ResidualRest:
    """ResidualNetwork behind its stem; updates h in place, which saves a tenth of the memory traffic."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, h: Tensor) -> Tensor:
        for block in self.network.blocks:
            h += block.outer(F.relu_(block.inner(block.norm(h))))
        return self.network.head(self.network.norm(h))  # type: ignore[no-any-return]


@contextmanager
def steady_arithmetic(device: torch.device) -> Iterator[None]:
    """No TF32, no reduced-precision products, no autocast, no autotuning; what was set before is given back.

    After a fork one thread is used: torch's threads stay behind in the parent, and a child would wait for them forever.
    """
    with ExitStack() as stack:
        if os.getpid() != LOADED_IN:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
            stack.enter_context(flags)
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        yield


# --- states -------------------------------------------------------------------------------------------------


class HiddenSpace:
    """Rows behind the first linear layer, where every state is a sum.

    A state is what the network is handed for it, (..., units); the network may overwrite it.
    """

    def __init__(self, x: Tensor, fixed: Tensor | None, layer: _FirstLayer) -> None:
        self.h, self.delta = layer.sums(x, fixed)
        self.removed: dict[int, Tensor] = {self.delta.shape[1]: self.delta.sum(dim=1)}
        self.order = torch.empty(0)

    def origin(self) -> Tensor:
        """(m, units): the rows themselves."""
        return self.h.clone()

    def one_step(self, start: int, stop: int) -> Tensor:
        """(m, stop - start, units): each of these groups removed alone."""
        return self.h[:, None] + self.delta[:, start:stop]

    def follow(self, order: Tensor) -> None:
        """Learn the path: order (m, G)."""
        self.order = order

    def _removed(self, width: int) -> Tensor:
        """(m, H): sum of D over the first ``width`` groups of the path."""
        if width not in self.removed:
            first = self.order[:, width - 1 : width, None].expand(-1, 1, self.h.shape[1])
            step = self.delta.gather(1, first)[:, 0]
            self.removed[width] = step if width == 1 else self._removed(width - 1) + step
        return self.removed[width]

    def path(self, start: int, stop: int) -> Tensor:
        """(m, stop - start, units): the first start + 1 .. stop groups of the path removed."""
        return torch.stack([self.h + self._removed(k + 1) for k in range(start, stop)], dim=1)

    def attenuated(self, width: int, severity: float, who: Tensor | None) -> Tensor:
        """(len(who), units): the first ``width`` groups of the path moved by ``severity``; all rows for None."""
        h, direction = self.h, self._removed(width)
        if who is not None:
            h, direction = h[who], direction[who]
        return torch.add(h, direction, alpha=severity)


class _FirstLayer:
    """The first linear layer, group by group, in float64."""

    def __init__(self, network: SplitNetwork, plan: TracePlan) -> None:
        assert network.first is not None
        self.dtype = network.dtype
        weight = network.first.weight.detach().double()
        self.columns = [
            torch.as_tensor(np.flatnonzero(plan.column_group == g), device=network.device)
            for g in range(plan.states.n_groups)
        ]
        self.weights = [weight[:, columns].T.contiguous() for columns in self.columns]  # (d_g, H)
        bias = network.first.bias
        self.bias = torch.zeros_like(weight[:, 0]) if bias is None else bias.detach().double()
        # The black box hands cells over in the network's precision; so is the baseline.
        self.baseline = torch.as_tensor(plan.baseline, device=network.device).to(self.dtype).double()

    def sums(self, x: Tensor, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return h (m, H) and D (m, G, H) of rows x (m, d); fixed (m, d): cells that no state moves, or None."""
        x = x.to(self.dtype).double()
        delta = torch.empty(len(x), len(self.columns), len(self.bias), dtype=self.dtype, device=x.device)
        h = self.bias.expand(len(x), -1)
        for g, (columns, weight) in enumerate(zip(self.columns, self.weights, strict=True)):
            part = x[:, columns]
            h = h + part @ weight
            change = self.baseline[columns] - part
            if fixed is not None:
                change = change.masked_fill(fixed[:, columns], 0.0)
            delta[:, g] = change @ weight
        return h.to(self.dtype), delta


class CellSpace:
    """The same states as cells in float64, by the rule of ``evidence.blend``, rounded as the model is handed them."""

    def __init__(
        self, x: Tensor, fixed: Tensor | None, plan: TracePlan, network: SplitNetwork, round_to: torch.dtype | None
    ) -> None:
        self.x, self.network, self.round_to = x, network, round_to
        self.target = torch.as_tensor(plan.baseline, device=x.device, dtype=torch.float64).expand_as(x)  # (m, d)
        if fixed is not None:
            self.target = torch.where(fixed, x, self.target)
        self.column_group = torch.as_tensor(plan.column_group, device=x.device)
        self.n_groups = plan.states.n_groups
        self.rank = torch.empty(0)

    def _round(self, cells: Tensor) -> Tensor:
        return cells.to(self.round_to or cells.dtype).to(self.network.dtype)

    def origin(self) -> Tensor:
        return self._round(self.x.clone())

    def one_step(self, start: int, stop: int) -> Tensor:
        groups = torch.arange(start, stop, device=self.x.device)
        mine = self.column_group[None, :] == groups[:, None]
        return self._round(torch.where(mine[None], self.target[:, None], self.x[:, None]))

    def follow(self, order: Tensor) -> None:
        self.rank = torch.argsort(order, dim=1)[:, self.column_group]  # (m, d): when each column's group is removed

    def path(self, start: int, stop: int) -> Tensor:
        last = torch.arange(start, stop, device=self.x.device)
        gone = self.rank[:, None, :] <= last[None, :, None]
        return self._round(torch.where(gone, self.target[:, None], self.x[:, None]))

    def attenuated(self, width: int, severity: float, who: Tensor | None) -> Tensor:
        rows = slice(None) if who is None else who
        x, rank, target = self.x[rows], self.rank[rows], self.target[rows]
        moved = target if severity >= 1.0 else x + severity * (target - x)
        return self._round(moved if width == self.n_groups else torch.where(rank < width, moved, x))


Space: TypeAlias = HiddenSpace | CellSpace


# --- scores on the device -----------------------------------------------------------------------------------


def log_probabilities(raw: Tensor, output: str) -> Tensor:
    """Return (N, C) log probabilities in float64 of a network's output; NaN where it is no probability."""
    raw = raw.double()
    if output == "logits":
        return F.log_softmax(raw, dim=-1)
    if output in ("binary_logit", "binary_complement"):
        s = raw.reshape(-1)
        if output == "binary_logit":
            return torch.stack([F.logsigmoid(-s), F.logsigmoid(s)], dim=-1)
        p = torch.sigmoid(s)
        return torch.stack([1.0 - p, p], dim=-1).log()
    p = raw.exp() if output == "log_probabilities" else raw
    good = ((p >= 0).all(dim=-1) & ((p.sum(dim=-1) - 1.0).abs() <= SUM_TOLERANCE)).unsqueeze(-1)
    return torch.where(good, p.log(), torch.nan)


def _clipped(log_p: Tensor, offset: Tensor | None) -> Tensor:
    z = log_p.clamp(min=LOG_CLIP)
    return z if offset is None else z + offset


def support_margins(log_p: Tensor, original: Tensor, offset: Tensor | None = None) -> Tensor:
    """As scores.support_margin: log_p (..., C), original (...) -> (...)."""
    z = _clipped(log_p, offset)
    if z.shape[-1] == 2:
        difference = z[..., 1] - z[..., 0]
        return torch.where(original == 1, difference, -difference)
    index = original.unsqueeze(-1)
    own = z.gather(-1, index).squeeze(-1)
    return own - z.scatter(-1, index, -torch.inf).amax(dim=-1)


def reading_margins(
    log_p: Tensor, original: Tensor, reading: str, offset: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """As scores.reading_margin."""
    if smoothing > 0.0:
        log_p = (log_p.exp() + smoothing).log()  # the divisor 1 + C a is the same for every class
        if offset is not None:  # as scores.smoothed_offset: all classes tie at p = softmax(-offset), smoothed or not
            offset = -(F.log_softmax(-offset, dim=-1).exp() + smoothing).log()
    if reading != "current":
        return support_margins(log_p, original, offset)
    top = _clipped(log_p, offset).topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def predicted_classes(log_p: Tensor, resolution: float, offset: Tensor | None = None) -> Tensor:
    """As scores.predicted_class: the first class within ``resolution`` of the largest."""
    z = _clipped(log_p, offset)
    near = z >= z.amax(dim=-1, keepdim=True) - resolution
    last = z.shape[-1] - 1  # where no class is near (NaN, refused later), still a class
    return torch.where(near, torch.arange(last + 1, device=z.device), last).amin(dim=-1)


def removal_orders(drops: Tensor, resolution: float, last: Tensor | None = None) -> Tensor:
    """As scores.removal_order: (m, G) -> (m, G)."""
    gains = -torch.round(drops / resolution)
    if last is not None:
        gains = gains.masked_fill(last, torch.inf)
    return torch.sort(gains, dim=1, stable=True).indices


# --- one chunk of rows --------------------------------------------------------------------------------------


class _Evaluator:
    """Hands states to the network in batches, and remembers whether any answer was no probability."""

    def __init__(self, network: SplitNetwork, plan: TracePlan, batch: int) -> None:
        self.network, self.plan, self.batch, self.evaluations = network, plan, batch, 0
        rule = plan.states.rule
        self.offset = None if rule.offset is None else torch.as_tensor(rule.offset, device=network.device)
        self.bad = torch.zeros((), dtype=torch.bool, device=network.device)

    def __call__(self, states: Tensor) -> Tensor:
        """Return log probabilities (..., C) of states (..., units)."""
        flat = states.reshape(-1, states.shape[-1])
        raw = []
        for part in torch.split(flat, self.shape or self.batch):
            n = len(part)
            if self.shape is not None and n < self.shape:
                part = torch.cat([part, part[-1:].expand(self.shape - n, -1)])
            raw.append(self.network.rest(part)[:n])
        log_p = log_probabilities(raw[0] if len(raw) == 1 else torch.cat(raw), self.network.output)
        self.bad = self.bad | torch.isnan(log_p).any()
        self.evaluations += len(flat)
        return log_p.reshape(*states.shape[:-1], -1)

    @property
    def shape(self) -> int | None:
        """How many rows every call has; None in double precision, where rounding cannot decide anything."""
        if self.network.dtype == torch.float64:
            return None
        return CUDA_SHAPE if self.network.device.type == "cuda" else CPU_SHAPE

    def margins(self, log_p: Tensor, original: Tensor) -> Tensor:
        """Return the margins that the plan reads off log probabilities (..., C)."""
        rule = self.plan.states.rule
        return reading_margins(log_p, original, rule.reading, self.offset, rule.smoothing)

    def flips(self, log_p: Tensor, original: Tensor) -> Tensor:
        """Return where states of log probabilities (..., C) have lost the original class."""
        return support_margins(log_p, original, self.offset) < -self.plan.states.rule.resolution

    def many(self, make: Callable[[int, int], Tensor], count: int, rows: int) -> Tensor:
        """Return (m, count, C): states made some at a time, as many as fill a batch."""
        at_once = max(1, self.batch // max(rows, 1))
        parts = [self(make(start, min(start + at_once, count))) for start in range(0, count, at_once)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _trace_chunk(
    space: Space,
    ask: _Evaluator,
    at_baseline: Tensor,
    decided: Tensor | None,
    last: Tensor | None,
    whole: Tensor | None,
) -> dict[str, Tensor]:
    """Return the trace of some rows.

    at_baseline: (1, C) answers where all evidence is lost, of rows that lack none. last: (m, G) groups at the end of
    the order. whole: (m,) which rows lack none, None for all.
    """
    plan, origin = ask.plan, ask(space.origin())
    m = len(origin)
    predicted = predicted_classes(origin, plan.states.rule.resolution, ask.offset) if decided is None else decided
    margin = ask.margins(origin, predicted)
    one_step = ask.many(space.one_step, plan.states.n_groups, m)
    alone = predicted[:, None].expand(-1, plan.states.n_groups)
    one_step_margin = ask.margins(one_step, alone)
    order = removal_orders(margin[:, None] - one_step_margin, plan.states.rule.resolution, last)
    space.follow(order)
    # after 0..K removals, (m, K+1, C); the first step is a one-step state already known
    known = [origin[:, None], one_step.gather(1, order[:, :1, None].expand(-1, 1, one_step.shape[2]))]
    if plan.states.depth > 1:
        known.append(ask.many(lambda a, b: space.path(a + 1, b + 1), plan.states.depth - 1, m))
    path = torch.cat(known, dim=1)
    along = predicted[:, None].expand(-1, plan.states.depth + 1)
    winner = predicted_classes(path, plan.states.rule.resolution, ask.offset)
    if plan.states.on_path(plan.states.n_groups):
        bare = path[:, plan.states.n_groups]
    else:
        bare = at_baseline.expand(m, -1)
        if whole is not None:
            own = ask(space.attenuated(plan.states.n_groups, 1.0, None))
            bare = torch.where(whole[:, None], bare, own)
    threshold, fade_margin = _find_thresholds(space, ask, predicted, path, bare)
    return {
        "predicted": predicted,
        "confidence": _own(origin, predicted),
        "margin": margin,
        "one_step_margin": one_step_margin,
        "one_step_confidence": _own(one_step, alone),
        "order": order[:, : plan.states.depth],
        "path_margin": ask.margins(path, along),
        "path_predicted": torch.where(ask.flips(path, along), winner, along),
        "threshold": threshold,
        "fade_margin": fade_margin,
        "bare_margin": ask.margins(bare, predicted),
    }


def _own(log_p: Tensor, original: Tensor) -> Tensor:
    """Return the probability of the original class at each state."""
    return log_p.gather(-1, original.unsqueeze(-1)).squeeze(-1).exp()


def _find_thresholds(
    space: Space, ask: _Evaluator, predicted: Tensor, path: Tensor, bare: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (m, P) lambda* and the (m, |Lambda|) margins of attenuate_all below its own.

    path (m, K+1, C), bare (m, C): answers along the path and with all evidence lost.
    """
    plan, m = ask.plan, len(predicted)
    threshold = torch.full((m, len(plan.states.widths)), torch.inf, dtype=torch.float64, device=path.device)
    fade_steps = 0 if plan.states.fading is None else len(plan.states.severities)
    fade_margin = torch.full((m, fade_steps), torch.nan, dtype=torch.float64, device=path.device)

    def note(j: int, i: int, who: Tensor | None, answers: Tensor) -> None:
        """Enter the answers for rows ``who``, all for None, at severity i of operator j."""
        rows = slice(None) if who is None else who
        own, before = predicted[rows], threshold[rows, j]
        threshold[rows, j] = torch.where(
            ask.flips(answers, own) & torch.isinf(before), plan.states.severities[i], before
        )
        if j == plan.states.fading:
            margins = ask.margins(answers, own)
            fade_margin[rows, i] = torch.where(torch.isinf(threshold[rows, j]), margins, torch.nan)

    for i, severity in enumerate(plan.states.severities):
        asked: list[tuple[int, Tensor | None, Tensor]] = []  # (operator, live rows, states)
        for j, width in enumerate(plan.states.widths):
            if severity == 1.0 and width <= plan.states.depth:
                note(j, i, None, path[:, width])
                continue
            if severity == 1.0 and width == plan.states.n_groups:
                note(j, i, None, bare)
                continue
            who = torch.nonzero(torch.isinf(threshold[:, j]))[:, 0] if plan.early_stop else None
            if who is not None and len(who) == m:
                who = None  # all rows, which saves a copy
            if who is None or len(who) > 0:
                asked.append((j, who, space.attenuated(width, severity, who)))
        if asked:
            answers = ask(torch.cat([states for _, _, states in asked]))
            parts = torch.split(answers, [len(states) for _, _, states in asked])
            for (j, who, _), part in zip(asked, parts, strict=True):
                note(j, i, who, part)
    return threshold, fade_margin


# --- all rows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Rows held at a time, and states handed to the network at a time; neither changes a result."""

    rows: int
    batch: int

    @classmethod
    def fitting(cls, network: SplitNetwork, plan: TracePlan, batch: int | None = None) -> Sizes:
        """Return sizes that fit the device's free memory (a fixed budget on the CPU)."""
        cuda = network.device.type == "cuda"
        free = torch.cuda.mem_get_info(network.device)[0] // 2 if cuda else CPU_BYTES
        item = torch.empty(0, dtype=network.dtype).element_size()
        units = len(plan.baseline) if network.first is None else network.first.out_features
        groups = plan.states.n_groups if network.first is not None else 3
        states = 2 + 2 * (plan.states.n_groups + plan.states.depth) + len(plan.states.widths)
        # D or masks, the path's running sums, and the answers in float64 with the copies their scores need
        row = (
            units * item * (2 * groups + plan.states.depth)
            + 6 * 8 * states * network.n_classes
            + 16 * len(plan.baseline)
        )
        return cls(
            rows=int(min(MOST_ROWS if cuda else CPU_BATCH, max(1, free // row))),
            batch=batch or (CUDA_BATCH if cuda else CPU_BATCH),
        )


def trace_states(
    cells: Callable[[int, int], np.ndarray | Tensor],
    n: int,
    network: SplitNetwork,
    plan: TracePlan,
    sizes: Sizes | None = None,
    round_to: torch.dtype | None = None,
    decided: np.ndarray | None = None,
    progress: Callable[[int, int], None] | None = None,
    spared: Callable[[int, int], tuple[np.ndarray, np.ndarray] | None] | None = None,
) -> tuple[dict[str, np.ndarray], int]:
    """Return the arrays of a trace, by name, and how many states the network was handed.

    cells(start, stop) gives rows as a (m, d) matrix; ``round_to`` is the precision in which the model is handed cells,
    where that is coarser than float64; ``decided`` (n,) is the class at x, where the model itself says it;
    spared(start, stop) gives the cells (m, d) and groups (m, G) of rows that no state moves, None where there are none.
    Raises FloatingPointError where the network's output is no probability.
    """
    sizes = sizes or Sizes.fitting(network, plan)
    ask = _Evaluator(network, plan, sizes.batch)
    results = _HostArrays(n, network.device)
    with steady_arithmetic(network.device):
        layer = None if network.first is None else _FirstLayer(network, plan)

        def make_space(x: Tensor, fixed: Tensor | None) -> Space:
            if layer is None:
                return CellSpace(x.double(), fixed, plan, network, round_to)
            return HiddenSpace(x, fixed, layer)

        def on_device(marks: np.ndarray) -> Tensor:
            return torch.as_tensor(marks, device=network.device)

        one = torch.as_tensor(plan.baseline, device=network.device, dtype=torch.float64)[None]
        at_baseline = ask(make_space(one, None).origin())
        for start in range(0, n, sizes.rows):
            stop = min(start + sizes.rows, n)
            x = torch.as_tensor(cells(start, stop))
            if network.device.type == "cuda" and not x.is_cuda:
                x = x.pin_memory()  # so that it travels while the device works on the chunk before
            x = x.to(network.device, non_blocking=True)
            own = None if decided is None else torch.as_tensor(decided[start:stop], device=network.device)
            kept = None if spared is None else spared(start, stop)
            fixed, last = (None, None) if kept is None else map(on_device, kept)
            whole = None if fixed is None else ~fixed.any(dim=1)
            found = _trace_chunk(make_space(x, fixed), ask, at_baseline, own, last, whole)
            results.take({**found, "bad": ask.bad}, start)
            if progress is not None:
                progress(stop, n)
        results.finish()
    return results.arrays, ask.evaluations


class _HostArrays:
    """Whole arrays on the host, filled chunk by chunk; from a GPU the copies run beside the next chunk's work."""

    def __init__(self, n: int, device: torch.device) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.n = n
        self.device = device
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.waiting: tuple[torch.cuda.Event, dict[str, Tensor], int] | None = None

    def take(self, found: dict[str, Tensor], start: int) -> None:
        """Take the tensors of the chunk that begins at row ``start``."""
        # Classes and groups are small numbers: half the bytes cross from the device.
        found = {name: t if t.is_floating_point() else t.to(torch.int32) for name, t in found.items()}
        if self.stream is None:
            self._place(found, start)
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            carried = {}
            for name, tensor in found.items():
                tensor.record_stream(self.stream)  # its memory is not given to the next chunk before it is copied
                pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                carried[name] = pinned.copy_(tensor, non_blocking=True)  # whole once the stream has come so far
            event = self.stream.record_event()
        self.finish()
        self.waiting = event, carried, start

    def finish(self) -> None:
        """Place the chunk that is still on its way, if there is one."""
        if self.waiting is not None:
            event, carried, start = self.waiting
            self.waiting = None
            event.synchronize()
            self._place(carried, start)

    def _place(self, found: dict[str, Tensor], start: int) -> None:
        bad = found.pop("bad")
        rows = len(found["margin"])
        if bool(bad):
            raise FloatingPointError(f"rows {start} to {start + rows}: the network's output is no probability")
        for name, tensor in found.items():
            if name not in self.arrays:
                kind = np.float64 if tensor.is_floating_point() else np.int64
                self.arrays[name] = np.empty((self.n, *tensor.shape[1:]), dtype=kind)
            torch.from_numpy(self.arrays[name][start : start + rows]).copy_(tensor)
