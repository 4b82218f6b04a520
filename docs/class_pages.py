"""Which members the page of a public class shows: its own, and not what it inherits from scikit-learn or object."""

from functools import cached_property
from importlib import import_module


def own_members(module: str, name: str, kind: str) -> list[str]:
    """Return the names of the class's own public methods, or of its properties, in the order of the source."""
    shown = getattr(import_module(module), name)
    own = {}
    for part in reversed(shown.__mro__):
        if part.__module__.startswith("fragility."):
            own.update(vars(part))
    is_kind = _is_property if kind == "properties" else _is_method
    return [member for member, value in own.items() if not member.startswith("_") and is_kind(value)]


def _is_property(value: object) -> bool:
    return isinstance(value, (property, cached_property))


def _is_method(value: object) -> bool:
    # scikit-learn adds set_fit_request and its like, which are no functions of the class's source
    return isinstance(value, (classmethod, staticmethod)) or type(value).__name__ == "function"
