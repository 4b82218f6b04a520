"""The residual network and its training without the package: for a machine that has numpy and torch alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fragility"


def load_core() -> SimpleNamespace:
    """Return the names of `fragility.analysis.resmlp.network`, past the packages that would import more."""
    for name, folder in (("fragility", SOURCE), ("fragility.analysis.resmlp", SOURCE / "resmlp")):
        if sys.modules.get(name) is None:
            package = ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
    return SimpleNamespace(**vars(importlib.import_module("fragility.analysis.resmlp.network")))
