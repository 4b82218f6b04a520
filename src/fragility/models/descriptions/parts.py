"""A description: bytes for a plain value, ``Parts`` for any other.

A description holds what decides predictions and nothing that use leaves behind: tables by their values rather than by
their caches, objects by the state they are rebuilt from, functions by their code and what it reads. Code and classes of
installed libraries go by name. What cannot be looked into is named in ``unseen``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Parts:
    """A compound value: a tag, its parts, whether their order counts, and what could not be looked into."""

    tag: str
    parts: Iterable[Any] = ()
    ordered: bool = True
    unseen: tuple[str, ...] = ()


def chunk(tag: str, data: bytes = b"") -> bytes:
    """Return tagged, length-prefixed bytes, so that no two sequences of chunks read the same."""
    return f"{tag}:{len(data)}:".encode() + data


def plain(value: Any) -> bytes | None:
    """Return the bytes of a value without parts, or None for any other."""
    if isinstance(value, np.generic) and value.dtype.names is None:
        value = value.astype("i8") if value.dtype.kind in "mM" else value.item()
    if value is None or isinstance(value, bool):
        return chunk("value", repr(value).encode())
    if type(value) in (int, np.longdouble, complex, slice, range):
        return chunk("value", repr(value).encode())
    if type(value) is float:
        return chunk("float", value.hex().encode())
    if type(value) is str:
        return chunk("text", value.encode("utf-8", "surrogatepass"))
    if type(value) in (bytes, bytearray):
        return chunk("bytes", bytes(value))
    if isinstance(value, np.dtype) and value.names is None:
        return chunk("dtype", value.str.encode())
    return None


def attributes_in_order(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in sorted(attributes, key=str)}
