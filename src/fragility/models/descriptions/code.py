"""Code: functions by what they compute and read, classes by what they define, those of libraries by name."""

from __future__ import annotations

import builtins
import enum
import functools
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import numpy as np

from fragility.libraries import is_genuine
from fragility.models.compiled import changed_names, global_reads
from fragility.models.descriptions.parts import Parts, attributes_in_order

# Made by the interpreter or by the class statement; they compute nothing.
CLASS_BOOKKEEPING = frozenset(
    {
        "__module__",
        "__qualname__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
        "__slots__",
    }
)
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def is_library(module: str | None) -> bool:
    """True for modules of Python, of this package and of installed packages: known by name and version."""
    if not module or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top == "fragility" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    return file is not None and _is_installed(file)


@functools.cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    standard = (Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "platstdlib"))
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(
        path.is_relative_to(f) for f in standard
    )


def _at_address(module: str | None, qualified: str) -> Any:
    """Return what a library holds under that name, or None."""
    value: Any = sys.modules.get(module or "")
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value


def describe_function(function: types.FunctionType) -> Parts:
    home, owner = function.__module__, function.__globals__.get("__name__")  # they differ for a decorated function
    if is_library(home) and _at_address(home, function.__qualname__) is function:
        return Parts("library function", [home, function.__qualname__])
    code = function.__code__
    within = is_library(owner) and getattr(sys.modules.get(owner or ""), "__dict__", None) is function.__globals__
    changed = changed_names(code)
    closure = zip(code.co_freevars, function.__closure__ or (), strict=True)
    cells = [_cell(cell) for name, cell in closure if name not in changed]
    parts = [cells, function.__defaults__, function.__kwdefaults__, attributes_in_order(vars(function))]
    values, unseen = ([], ()) if within else _globals_of(function, changed)
    unseen += tuple(f"{name!r}, which the function {function.__name__} changes" for name in sorted(changed))
    return Parts("function", [code, *parts, *values], unseen=unseen)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that was never bound
        return None


def _globals_of(function: types.FunctionType, changed: frozenset[str]) -> tuple[list[Any], tuple[str, ...]]:
    """Return the values of the globals that a function reads, and what of them cannot be found."""
    values: list[Any] = []
    unseen: list[str] = []
    for name, *attributes in global_reads(function.__code__):
        if name in changed:
            continue
        if name in function.__globals__:
            value = function.__globals__[name]
            values += [name, *_through_modules(value, attributes, unseen)]
        elif not hasattr(builtins, name):
            unseen.append(f"{name!r}, which the function {function.__name__} reads and nothing defines")
    return values, tuple(unseen)


def _through_modules(value: Any, attributes: list[str], unseen: list[str]) -> list[Any]:
    """Follow ``settings.RATE`` into modules of the user's own; a library's module is its name."""
    path: list[Any] = []
    while isinstance(value, types.ModuleType) and not is_library(value.__name__):
        if not attributes or not hasattr(value, attributes[0]):
            unseen.append(f"the module {value.__name__}, which is used as a whole")
            break
        path.append(attributes[0])
        value, attributes = getattr(value, attributes[0]), attributes[1:]
    return [*path, value]


def describe_code(code: types.CodeType) -> Parts:
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return Parts("code", [code.co_code, code.co_exceptiontable, counts, named, code.co_names, code.co_consts])


def describe_native_function(value: Any) -> Parts:
    owner = getattr(value, "__self__", None)
    name = getattr(value, "__qualname__", None) or value.__name__
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        return Parts("native method", [owner, value.__name__])
    holder = getattr(value, "__objclass__", None) or (owner if isinstance(owner, type) else None)
    module = getattr(value, "__module__", None) or getattr(holder, "__module__", None)
    if isinstance(value, np.ufunc):
        module, name, known = _ufunc_address(value)
    else:
        known = is_library(module)
    return Parts("native function", [module, name], unseen=() if known else (f"the native function {name}",))


def _ufunc_address(value: np.ufunc) -> tuple[str, str, bool]:
    homes = [module for module in ("numpy", "scipy.special") if module in sys.modules]
    found = [module for module in homes if getattr(sys.modules[module], value.__name__, None) is value]
    return (found or ["numpy"])[0], value.__name__, bool(found)


def describe_method(value: types.MethodType) -> Parts:
    return Parts("method", [value.__func__, value.__self__])


def describe_class(value: type) -> Parts:
    if is_library(value.__module__) and is_genuine(value):
        return Parts("library class", [value.__module__, value.__qualname__])
    return Parts("class", [value.__name__, list(value.__bases__), attributes_in_order(_own_namespace(value))])


def _own_namespace(value: type) -> dict[str, Any]:
    if issubclass(value, enum.Enum):
        return {name: member.value for name, member in value.__members__.items()}
    return {
        name: part
        for name, part in vars(value).items()
        if name not in CLASS_BOOKKEEPING and not isinstance(part, SLOTS)
    }


def describe_descriptor(value: Any) -> Parts:
    if isinstance(value, property):
        return Parts("property", [value.fget])
    return Parts(type(value).__name__, [value.__func__])


def describe_module(value: types.ModuleType) -> Parts:
    return Parts("module", [value.__name__])
