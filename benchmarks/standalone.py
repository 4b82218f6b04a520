"""The residual network and its training without the package: for a machine that has numpy and torch alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fragility"


def load_core() -> SimpleNamespace:
    """Return the names of `fragility.resmlp.network` and `.training`, past the packages that would import more."""
    for name, folder in (("fragility", SOURCE), ("fragility.resmlp", SOURCE / "resmlp")):
        if sys.modules.get(name) is None:
            package = ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
    modules = [importlib.import_module(f"fragility.resmlp.{name}") for name in ("network", "training")]
    return SimpleNamespace(**{key: value for module in modules for key, value in vars(module).items()})
