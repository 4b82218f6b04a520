"""The residual MLP in torch and numpy alone: its shape, its weights, its logits.

Network: linear stem; blocks  h <- h + W2 drop(relu(W1 LayerNorm(h)));  LayerNorm and linear head.

This module and `training` import nothing else of the package, so that they run on a machine that has torch but not
scikit-learn; `fragility.resmlp.classifier` makes a scikit-learn classifier of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

EVALUATION_ROWS = 4096  # rows a forward pass without gradients takes at once; bounds memory, changes no result
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


def cuda_available() -> bool:
    return torch.cuda.is_available()


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
    network: ResidualNetwork,
    matrix: Any,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> NDArray[Any]:
    """Return (n, C) float64 logits, computed in ``dtype`` a few thousand rows at a time."""
    device = torch.device(device)
    n = int(matrix.shape[0])
    out = np.empty((n, network.shape.n_classes), dtype=np.float64)
    run = copy.deepcopy(network).to(device=device, dtype=dtype)
    with torch.inference_mode():
        for start in range(0, n, EVALUATION_ROWS):
            part = slice(start, min(start + EVALUATION_ROWS, n))
            out[part] = run(dense_tensor(matrix, part, device, dtype)).double().cpu().numpy()
    return out


def _blank_linear(n_in: int, n_out: int) -> nn.Linear:
    # nn.Linear would draw its weights from the global generator; new_network draws them from its own.
    return nn.utils.skip_init(nn.Linear, n_in, n_out)
