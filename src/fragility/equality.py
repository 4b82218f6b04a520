"""Equality of reports whose figures may be undefined: two undefined figures are the same answer."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any


class NanEqual:
    """Base of a dataclass (with ``eq=False``) that equals another one field by field, NaN being equal to NaN.

    Python decides by identity or by value whether a dataclass that holds NaN equals itself, depending on its version.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._figures() == other._figures()

    def __hash__(self) -> int:
        return hash(self._figures())

    def _figures(self) -> tuple[Any, ...]:
        values = (getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]
        return tuple("undefined" if isinstance(value, float) and math.isnan(value) else value for value in values)
