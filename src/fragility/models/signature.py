"""Signatures: the columns that a model's MLflow folder declares, by name and type.

A folder's ``MLmodel`` file may hold the schema of the rows that the model was logged with. MLflow refuses rows that do
not follow it, so a model that is audited with other rows would not be the model that answers in production.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fragility.base.errors import ModelError

# MLflow's scalar types, and in words what a column of each holds.
TYPES = {
    "boolean": "true or false",
    "integer": "whole numbers",
    "long": "whole numbers",
    "float": "numbers",
    "double": "numbers",
    "string": "text",
    "datetime": "dates",
    "binary": "bytes",
}


@dataclass(frozen=True, slots=True)
class SignatureColumn:
    """One column of a signature; ``name`` is None where columns go by position."""

    name: str | None
    type: str  # one of TYPES
    required: bool = True


@dataclass(frozen=True, slots=True)
class Signature:
    """The columns of a model's input, in the order in which the model takes them."""

    columns: tuple[SignatureColumn, ...]

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of all columns, or None where columns go by position."""
        named = tuple(column.name for column in self.columns if column.name is not None)
        return named if len(named) == len(self.columns) else None

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that rows must have."""
        return tuple(column.name for column in self.columns if column.required and column.name is not None)

    def fit_to(self, own: Sequence[str] | None) -> Signature:
        """Return the signature in the order of the model's own columns; ModelError if the two contradict each other.

        LightGBM replaces blanks in names, and numbers the columns of an array; such columns go by position.
        """
        names = self.names
        if own is None or names is None:
            if own is not None and len(own) != len(self.columns):
                raise ModelError(
                    f"the model's MLflow signature has {len(self.columns)} columns, and the model was fitted on "
                    f"{len(own)}; log the model again with the signature of its own training rows"
                )
            return self
        by_position = [re.sub(r"\s", "_", name) for name in names], [f"Column_{i}" for i in range(len(names))]
        if list(own) in by_position:
            return self
        unknown = [name for name in names if name not in own] or [name for name in own if name not in names]
        if unknown:
            here, there = ("lists", "does not know") if unknown[0] in names else ("lacks", "was fitted on")
            raise ModelError(
                f"the model's MLflow signature {here} the column {unknown[0]!r}, which the model {there}; log the "
                "model again with the signature of its own training rows"
            )
        by_name = {column.name: column for column in self.columns}
        return replace(self, columns=tuple(by_name[name] for name in own))


def read_signature(inputs: Any) -> Signature:
    """Return the signature of the JSON text that a folder's ``MLmodel`` holds under ``inputs``."""
    try:
        document = json.loads(inputs)
        columns = tuple(column for entry in document for column in _read_entry(entry, len(document)))
    except ModelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(
            "its MLmodel file has a signature that cannot be read: its inputs are no list of columns in JSON"
        ) from error
    names = [column.name for column in columns]
    if not columns or (None in names and len({*names}) > 1) or (None not in names and len({*names}) < len(names)):
        raise ModelError("its MLmodel file has a signature without columns, or with names that are not distinct")
    return Signature(columns)


def _read_entry(entry: Any, n_entries: int) -> list[SignatureColumn]:
    name, kind = entry.get("name") if isinstance(entry, dict) else None, entry["type"]
    if kind == "tensor" and name is None and n_entries == 1:
        dtype, shape = entry["tensor-spec"]["dtype"], entry["tensor-spec"]["shape"]
        if len(shape) == 2 and isinstance(shape[1], int) and 0 < shape[1] <= MOST_COLUMNS:
            # A tensor says how its cells are stored, which an adapter sees to; only text is no number.
            return [SignatureColumn(None, "string" if dtype in ("object", "str") else "double")] * shape[1]
    if not isinstance(kind, str) or kind not in TYPES or not isinstance(name, str | None):
        raise ModelError(
            f"its signature has {'an input' if name is None else f'the input {name!r}'} of type {kind!r}; rows of a "
            f"table have columns of the types {', '.join(TYPES)}"
        )
    # MLflow wrote "optional" before it wrote "required".
    return [SignatureColumn(name, kind, entry.get("required", not entry.get("optional", False)) is not False)]


MOST_COLUMNS = 1_000_000
