"""PyTorch files: whole modules in pickles (``.pth``), and programs exported by ``torch.export`` (``.pt2``).

Both hold pickles, so loading them runs what they contain; the caller asks for trust first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fragility.base.arrays import Floats
from fragility.base.errors import ModelError
from fragility.base.libraries import say_lacking


@dataclass(frozen=True, eq=False)
class ExportedProgram:
    """A traced graph of operations; it has one mode, and no layers that an engine could read."""

    program: Any = field(repr=False)
    digest: str

    def __call__(self, rows: Any) -> Floats:
        import torch

        like = next(iter(self.program.parameters()), torch.zeros(0, dtype=torch.float32))
        with torch.inference_mode():
            cells = torch.tensor(np.asarray(rows, dtype=np.float64)).to(device=like.device, dtype=like.dtype)
            return np.asarray(self.program(cells).double().cpu().numpy())

    def fingerprint(self) -> str:
        """Return the digest of the file, which holds the graph and its weights."""
        return self.digest


def load_torch(path: Path, kind: str) -> Any:
    """Return the module or program of a file, on the processor."""
    if (lacking := say_lacking("a PyTorch model", "torch")) is not None:
        raise ModelError(lacking)
    import torch

    if kind == ".pt2":
        return ExportedProgram(torch.export.load(path).module(), hashlib.sha256(path.read_bytes()).hexdigest())
    return torch.load(path, map_location="cpu", weights_only=False)
