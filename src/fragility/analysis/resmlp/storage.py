"""The file of a trained network: weights as arrays, everything else as JSON in the header of one .safetensors file.

Nothing in a file is executed. Checked on reading: the format's version, the names and shapes of the arrays; the
classifier checks the fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fragility.base.canonical import digest_of
from fragility.base.errors import ModelError
from fragility.base.files import MODEL, parse_json, replacing
from fragility.base.libraries import say_lacking

FORMAT = "fragility-resmlp/1"
SUFFIX = ".safetensors"


def import_network() -> Any:
    """Return the module `network`, imported on first use: the package must load without torch."""
    try:
        import fragility.analysis.resmlp.network as network
    except ImportError as error:
        raise ModelError(say_lacking("ResMLPClassifier", "torch") or f"cannot load torch: {error}") from error
    return network


def write_model(path: str | os.PathLike[str], header: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
    """Write header and weights; the file appears whole or not at all."""
    target = Path(path)
    if target.suffix != SUFFIX:
        raise ModelError(f"the file name must end in {SUFFIX}, got {target.name!r}")
    _check_safetensors()
    from safetensors.numpy import save

    text = json.dumps({"format": FORMAT, **header}, ensure_ascii=False, allow_nan=False, sort_keys=True)
    try:
        with replacing(target, own=MODEL) as temporary:
            temporary.write_bytes(save(dict(weights), metadata={"fragility": text}))
    except OSError as error:
        raise ModelError(f"cannot write the model to {target}: {error.strerror or error}") from error


def _check_safetensors() -> None:
    if lacking := say_lacking("a .safetensors file", "safetensors"):
        raise ModelError(lacking)


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a file that `write_model` wrote."""
    import_network()  # says what to install before the file's own library is missed
    _check_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("fragility")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the model {path}: {error}") from error
    try:
        header = parse_json(text or "null")
    except ValueError as error:
        raise ModelError(f"{path}: the header is not JSON: {error}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        raise ModelError(f"{path}: expected a model of format {FORMAT!r} (ResMLPClassifier.save), got {found!r}")
    return header, arrays


def read_network(shape: Mapping[str, int], arrays: Mapping[str, NDArray[Any]], source: object) -> Any:
    """Return the network of a stored shape and its arrays; `source` names the file in messages."""
    network = import_network()
    declared = network.NetworkShape(**shape)
    # The arrays are compared before anything is made: a file's header may not decide how much memory is taken.
    found = {name: array.shape for name, array in arrays.items()}
    blocks = sum(name.endswith(".outer.bias") for name in found)
    expected = network.parameter_shapes(replace(declared, blocks=min(declared.blocks, blocks + 1)))
    if found != expected:
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise ModelError(f"{source}: the arrays {wrong[:5]} are missing, unknown or not of the shape the header says")
    return network.build_network(declared, arrays)


def fingerprint(shape: Any, classes: NDArray[Any], weights: Mapping[str, NDArray[Any]]) -> str:
    """Return ``sha256:...`` over all that decides the predictions."""

    def content(array: NDArray[Any]) -> str:
        return hashlib.sha256(np.ascontiguousarray(array).astype("<f4").tobytes()).hexdigest()

    return digest_of(
        {
            "format": FORMAT,
            "shape": asdict(shape),
            "classes": [[type(label).__name__, label] for label in classes.tolist()],
            "weights": {name: [list(array.shape), content(array)] for name, array in weights.items()},
        }
    )
