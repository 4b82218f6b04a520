"""Fingerprints of fitted models: a digest over what determines their predictions.

The walk is structural: parameters, fitted arrays, nested estimators, boosters by their own serialised form. It does
not go through pickle, whose bytes change with object identity and between a model in memory and the same model
loaded from a file. Settings that cannot change a prediction (threads, verbosity, caches) are left out.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from fragility.canonical import DIGEST_PREFIX

# Named so that the same model with more threads or less talk keeps its fingerprint.
NOT_PREDICTIVE = frozenset(
    {"n_jobs", "thread_count", "nthread", "num_threads", "verbose", "verbosity", "silent", "memory", "_sklearn_version"}
)
MAX_DEPTH = 60


def fingerprint(model: object) -> str:
    """Return ``sha256:<hex>`` of a fitted model; equal for equal models, in memory or loaded from a file."""
    hasher = hashlib.sha256()
    _Walk(hasher.update).visit(model, 0)
    return DIGEST_PREFIX + hasher.hexdigest()


class _Walk:
    """Feeds a tagged, length-prefixed description of a value to ``emit``."""

    def __init__(self, emit: Callable[[bytes], None]) -> None:
        self._emit = emit
        self._open: set[int] = set()  # objects on the current path: a cycle is written as a mark

    def _put(self, tag: str, data: bytes = b"") -> None:
        self._emit(f"{tag}:{len(data)}:".encode())
        self._emit(data)

    def visit(self, value: Any, depth: int) -> None:
        if _put_scalar(self._put, value):
            return
        if id(value) in self._open or depth > MAX_DEPTH:
            self._put("cycle")
            return
        self._open.add(id(value))
        try:
            self._visit_compound(value, depth)
        finally:
            self._open.discard(id(value))

    def _visit_compound(self, value: Any, depth: int) -> None:
        serialise = _booster_serialiser(value)
        if serialise is not None:
            self._put("booster", serialise(value))
        elif isinstance(value, np.ndarray):
            self._visit_array(value, depth)
        elif sp.issparse(value):
            self._put("sparse", str(value.shape).encode())
            self.visit([np.asarray(part) for part in sp.find(value)], depth + 1)
        elif isinstance(value, (list, tuple)):
            self._put("list", str(len(value)).encode())
            for item in value:
                self.visit(item, depth + 1)
        elif isinstance(value, (set, frozenset)):
            self._put("set", str(len(value)).encode())
            for item in sorted(value, key=repr):
                self.visit(item, depth + 1)
        elif isinstance(value, Mapping):
            self._visit_mapping(value, depth)
        else:
            self._visit_object(value, depth)

    def _visit_array(self, value: np.ndarray[Any, Any], depth: int) -> None:
        self._put("array", f"{value.dtype.str if value.dtype != object else 'O'}{value.shape}".encode())
        if value.dtype == object:
            for item in value.ravel():
                self.visit(item, depth + 1)
        elif value.dtype.names:
            # Structured arrays may have padding, whose bytes are undefined: take field by field.
            for name in value.dtype.names:
                self._put("field", name.encode())
                self._visit_array(np.ascontiguousarray(value[name]), depth + 1)
        else:
            self._put("data", np.ascontiguousarray(value).tobytes())

    def _visit_mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        predictive = ((repr(key), item) for key, item in value.items() if key not in NOT_PREDICTIVE)
        items = sorted(predictive, key=lambda pair: pair[0])
        self._put("mapping", str(len(items)).encode())
        for key, item in items:
            self._put("key", key.encode())
            self.visit(item, depth + 1)

    def _visit_object(self, value: Any, depth: int) -> None:
        own = getattr(value, "fingerprint", None)
        if callable(own):  # a model that knows what determines its predictions says so itself
            self._put("own", str(own()).encode())
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, np.ufunc, type)):
            self._visit_function(value, depth)
        else:
            self._put("object", f"{type(value).__module__}.{type(value).__qualname__}".encode())
            self.visit(_state_of(value), depth + 1)

    def _visit_function(self, value: Any, depth: int) -> None:
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
        self._put("function", name.encode())
        code = getattr(value, "__code__", None)
        if code is not None:
            self._visit_code(code, depth)
            self.visit([cell.cell_contents for cell in (value.__closure__ or ())], depth + 1)
            self.visit(value.__defaults__ or (), depth + 1)

    def _visit_code(self, code: types.CodeType, depth: int) -> None:
        # Names too: the same bytecode that calls another function is another function.
        self._put("code", code.co_code)
        self.visit(list(code.co_names), depth + 1)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._visit_code(constant, depth + 1)
            else:
                self.visit(constant, depth + 1)


def _put_scalar(put: Callable[..., None], value: Any) -> bool:
    if isinstance(value, np.generic) and value.dtype.names is None:
        value = value.item()
    if value is None or isinstance(value, (bool, int)):
        put("value", repr(value).encode())
    elif isinstance(value, float):
        put("float", value.hex().encode())
    elif isinstance(value, str):
        put("text", value.encode())
    elif isinstance(value, (bytes, bytearray)):
        put("bytes", bytes(value))
    elif isinstance(value, (np.dtype, slice, range, complex)):
        put("value", repr(value).encode())
    elif isinstance(value, (np.random.RandomState, np.random.Generator)):
        put("random")  # the state of a generator cannot change a fitted model's predictions
    else:
        return False
    return True


def _state_of(value: Any) -> Any:
    """Return the state an object would be rebuilt from."""
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.ModuleType):
        return value.__name__
    state = getattr(value, "__dict__", None)
    if state:
        return state
    try:
        reduced = value.__reduce_ex__(2)
    except TypeError:
        return repr(type(value))
    return reduced if isinstance(reduced, str) else [part for part in reduced[1:3] if part is not None]


def _booster_serialiser(value: Any) -> Callable[[Any], bytes] | None:
    """Return how a gradient-boosting library's own object becomes bytes, or None for anything else."""
    module = type(value).__module__.split(".")[0]
    name = type(value).__name__
    if module == "xgboost" and name == "Booster":
        return _xgboost_bytes
    if module == "lightgbm" and name == "Booster":
        return _lightgbm_bytes
    if module == "catboost" and hasattr(value, "_serialize_model"):
        return _catboost_bytes
    if module == "torch" and hasattr(value, "state_dict"):
        return _torch_bytes
    return None


def _xgboost_bytes(booster: Any) -> bytes:
    document = json.loads(bytes(booster.save_raw(raw_format="json")))
    # Attributes hold training logs and wrapper bookkeeping; only the best iteration decides predictions.
    attributes = document["learner"].pop("attributes", {})
    document["learner"]["best_iteration"] = attributes.get("best_iteration")
    return json.dumps(document, sort_keys=True).encode()


def _lightgbm_bytes(booster: Any) -> bytes:
    trees = str(booster.model_to_string()).split("\nparameters:")[0]
    # The order of the training categories decides which code a value gets.
    return (trees + repr(booster.pandas_categorical)).encode()


def _catboost_bytes(model: Any) -> bytes:
    if not model.is_fitted():
        return repr(sorted(model.get_params().items())).encode()
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    document.pop("model_info", None)  # training parameters, time and GUID: not the function
    return json.dumps(document, sort_keys=True).encode()


def _torch_bytes(module: Any) -> bytes:
    hasher = hashlib.sha256(repr(module).encode())
    for name, tensor in sorted(module.state_dict().items()):
        array = tensor.detach().cpu().contiguous().numpy()
        hasher.update(f"{name}{array.dtype}{array.shape}".encode())
        hasher.update(array.tobytes())
    return hasher.digest()
