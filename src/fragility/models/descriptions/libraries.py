"""What libraries hold in forms of their own: boosters by their trees, torch by its weights, tables by their values."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fragility.libraries import family_of, is_torch_module
from fragility.models.descriptions.objects import describe_moving, left_out
from fragility.models.descriptions.parts import Parts, attributes_in_order

# The state of a torch module that takes part in a forward pass in evaluation mode.
TORCH_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
TORCH_BOOKKEEPING = frozenset(
    {
        "training",
        "call_super_init",
        "dump_patches",
        "T_destination",
        "_is_full_backward_hook",
        "_compiled_call_impl",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_non_persistent_buffers_set",
    }
)

XGBOOST_ATTRIBUTES = '"attributes":'  # a key, as no text within quotes can be


def replaced_methods(value: Any) -> list[Any]:
    """Return the methods that an instance has in place of those of its class."""
    methods = {name: part for name, part in vars(value).items() if callable(getattr(type(value), name, None))}
    return [attributes_in_order(methods)] if methods else []


def describe_sklearn(value: Any) -> Parts | None:
    if type(value).__module__ not in ("sklearn.neighbors._kd_tree", "sklearn.neighbors._ball_tree"):
        return None
    state = value.__getstate__()
    return Parts("neighbour tree", [type(value), *state[:7], *state[11:]])  # between them: counters of past queries


def describe_joblib(value: Any) -> Parts | None:
    known = family_of(value) in ("joblib.MemorizedFunc", "joblib.NotMemorizedFunc", "joblib.AsyncMemorizedFunc")
    return Parts("cached function", [value.func, *replaced_methods(value)]) if known else None


def describe_numba(value: Any) -> Parts | None:
    known = family_of(value).startswith("numba.") and hasattr(value, "py_func")
    return Parts("compiled function", [value.py_func]) if known else None


def describe_xgboost(value: Any) -> Parts | None:
    if family_of(value) != "xgboost.Booster":
        return None
    text = bytes(value.save_raw(raw_format="json")).decode()
    # Attributes hold training logs and wrapper bookkeeping; only the best iteration decides predictions. The library
    # writes its keys in order, so the rest is taken as it is written: reading the trees takes six times as long.
    start = text.index(XGBOOST_ATTRIBUTES) + len(XGBOOST_ATTRIBUTES)
    attributes, end = json.JSONDecoder().raw_decode(text, start)
    return Parts("booster", [text[:start], text[end:], attributes.get("best_iteration"), *replaced_methods(value)])


def describe_lightgbm(value: Any) -> Parts | None:
    if family_of(value) != "lightgbm.Booster":
        return None
    trees = str(value.model_to_string()).split("\nparameters:")[0]
    # The order of the training categories decides which code a value gets.
    return Parts("booster", [trees, repr(value.pandas_categorical), *replaced_methods(value)])


def describe_catboost(value: Any) -> Parts | None:
    if not family_of(value).startswith("catboost.") or not hasattr(value, "_serialize_model"):
        return None
    if not value.is_fitted():
        return Parts("booster", [type(value), attributes_in_order(value.get_params()), *replaced_methods(value)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        value.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    document.pop("model_info", None)  # training parameters, time and GUID: not the function
    return Parts("booster", [type(value), json.dumps(document, sort_keys=True), *replaced_methods(value)])


def describe_torch(value: Any) -> Parts | None:
    if type(value).__name__ == "Generator":
        return describe_moving(value)
    if hasattr(value, "detach") and hasattr(value, "dtype"):
        return _tensor(value)
    return _torch_module(value) if is_torch_module(value) else None


def _tensor(value: Any) -> Parts:
    here = value.detach().cpu()
    if here.is_quantized or here.layout.__repr__() != "torch.strided":
        return Parts("tensor", [str(here)], unseen=(f"a tensor of layout {here.layout}",))
    wide = here.float() if str(here.dtype) in ("torch.bfloat16", "torch.float16") else here
    return Parts("tensor", [str(here.dtype), np.asarray(wide.contiguous().numpy())])


def _torch_module(value: Any) -> Parts:
    if hasattr(value, "inlined_graph"):
        state = dict(sorted(value.state_dict().items()))
        return Parts("script", [str(value.code), state], unseen=("the attributes of a TorchScript module",))
    held = {name: part for name, part in vars(value).items() if name not in TORCH_BOOKKEEPING | left_out(value)}
    # Hooks are numbered in the order in which a process made them, whatever they belong to.
    held |= {name: list(held.get(name, {}).values()) for name in TORCH_HOOKS}
    return Parts("torch module", [type(value), attributes_in_order(held)])


def describe_polars(value: Any) -> Parts | None:
    name = type(value).__name__
    if name == "DataFrame":
        return Parts("table", [list(value.columns), *value.get_columns()])
    if name == "Series":
        return Parts("series", [value.name, str(value.dtype), value.to_list()])
    if name == "Expr":
        return Parts("expression", [value.meta.serialize(format="json")])
    return None


def describe_pyarrow(value: Any) -> Parts | None:
    if hasattr(value, "to_pylist"):
        return Parts("arrow", [str(getattr(value, "schema", None) or value.type), value.to_pylist()])
    return Parts("arrow", [str(value.type), value.as_py()]) if hasattr(value, "as_py") else None
