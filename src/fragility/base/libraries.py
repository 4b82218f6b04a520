"""What is installed: which library a model comes from, which versions had a part in a result, which extras are lacking.

No library is imported to find out. The one data set that travels with the package is read here as well.
"""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Collection
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: every class but those that C code declares

# Distributions that can change a prediction, and the module each is imported as.
VERSIONED = {
    "numpy": "numpy",
    "pandas": "pandas",
    "scikit-learn": "sklearn",
    "xgboost": "xgboost",
    "xgboost-cpu": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "interpret-core": "interpret",
    "torch": "torch",
    "numba": "numba",
    "onnxruntime": "onnxruntime",
    "scipy": "scipy",
    "treelite": "treelite",
}
ALWAYS = frozenset({"numpy", "pandas", "scipy", "sklearn"})  # every audit computes with them
# Classes of this package that hand their rows to a library which their attributes do not show.
BEHIND = {"OnnxClassifier": "onnxruntime", "TreeliteClassifier": "treelite", "ResMLPClassifier": "torch"}


def library_of(value: Any) -> str:
    """Return the top-level package that defines the class of ``value``, e.g. ``sklearn``."""
    return type(value).__module__.split(".")[0]


def family_of(value: Any) -> str:
    """Return ``library.Class``, e.g. ``xgboost.Booster``: the exact class, not a base of it.

    A class that only says that it comes from a library is ``own.Class``.
    """
    return f"{library_of(value) if is_genuine(type(value)) else 'own'}.{type(value).__name__}"


def is_genuine(kind: type) -> bool:
    """Return whether a class is the one that its module holds under its name; anyone can write ``__module__``."""
    if not kind.__flags__ & MADE_IN_PYTHON:
        return True
    named: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        named = getattr(named, part, None)
    return named is kind


def is_torch_module(value: Any) -> bool:
    """Return whether ``value`` is a torch.nn.Module, also one of the user's own class."""
    return any(base.__module__ == "torch.nn.modules.module" and is_genuine(base) for base in type(value).__mro__)


def libraries_of_class(kind: type) -> frozenset[str]:
    """Return the top-level packages that define a class and its bases; of our own classes, the library behind them."""
    names = {str(base.__module__).split(".")[0] for base in kind.__mro__}
    if "fragility" in names and kind.__name__ in BEHIND:
        names.add(BEHIND[kind.__name__])
    return frozenset(names)


def libraries_of(value: Any) -> frozenset[str]:
    """Return the top-level packages that define a value: a class, function or module itself, else its class."""
    if isinstance(value, ModuleType):
        return frozenset({value.__name__.split(".")[0]})
    if isinstance(value, type):
        return libraries_of_class(value)
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return frozenset({str(value.__module__).split(".")[0]})
    return libraries_of_class(type(value))


def library_versions(used: Collection[str]) -> dict[str, str]:
    """Return the versions of Python, of this package and of the libraries that had a part in a result.

    used: the top-level packages of the model and of the engine. A library that is merely installed, or that something
    else in the process imported, had no part, so equal audits name the same versions in any process.
    """
    versions = {"python": platform.python_version(), "fragility": _version("fragility") or "unknown"}
    for distribution, module in VERSIONED.items():
        if (module in used or module in ALWAYS) and (version := _version(distribution)):
            versions[distribution] = version
    return versions


@cache  # looking into an installed library's files takes a millisecond
def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# --- libraries that a plain install does not have --------------------------------------------------------------

EXTRA_OF = {
    "polars": "polars",
    "torch": "torch",
    "safetensors": "torch",
    "numba": "trees",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "shap": "shap",
    "securesystemslib": "sign",
    "cryptography": "sign",
    "duckdb": "review",
    "fastapi": "review",
    "uvicorn": "review",
    "prometheus_client": "serve",
    "ray": "ray",
    "pyspark": "spark",
    "mlflow": "mlflow",
    "yaml": "mlflow",
}


def say_lacking(purpose: str, *libraries: str, extra: str | None = None) -> str | None:
    """Return the sentence that names the extra of this package which ``purpose`` needs; None where it is installed.

    extra: its name, where several extras bring one of the libraries.
    """
    absent = [library for library in libraries if find_spec(library) is None]
    if not absent:
        return None
    extra = extra or EXTRA_OF.get(absent[0])
    package = absent[0] if extra is None else f"'fragility[{extra}]'"
    return f"{purpose} needs {' and '.join(absent)}; install it with: pip install {package}"


@cache
def warn_once(sentence: str) -> None:
    """Warn of something that is the same for every call, such as what an extra would bring."""
    warnings.warn(sentence, stacklevel=2)


def load_credit_g() -> tuple[pd.DataFrame, pd.Series]:
    """Return the German Credit data: 1,000 loan applications and whether each was a good or a bad risk.

    Returns
    -------
    X : DataFrame of shape (1000, 20)
        7 numeric fields (``duration`` in months, ``credit_amount`` in Deutsche Mark, ``age`` ...) and 13 nominal
        ones as strings. Three carry a marker for what the bank did not know: ``no checking``,
        ``no known savings`` and ``no known property``.
    y : Series of shape (1000,)
        ``good`` (700 rows) or ``bad`` (300 rows).

    Notes
    -----
    Statlog (German Credit Data), Hans Hofmann, Universität Hamburg, 1994; UCI Machine Learning Repository,
    https://doi.org/10.24432/C5NC77, licensed under CC BY 4.0. The rows are stored in original order with the
    readable category names of Weka's ``credit-g`` version; no value was altered.

    Examples
    --------
    >>> from fragility import load_credit_g
    >>> X, y = load_credit_g()
    >>> X.shape, y.value_counts().to_dict()
    ((1000, 20), {'good': 700, 'bad': 300})
    """
    import pandas as pd

    with files("fragility").joinpath("data", "credit_g.parquet").open("rb") as stream:
        table = pd.read_parquet(stream)
    return table.drop(columns="class"), table["class"]
