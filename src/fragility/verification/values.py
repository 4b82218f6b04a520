"""Do the values of a baseline exist? What can be told of them without the training rows.

Under ``typical`` and ``median`` a lost category becomes the most frequent one, which is the first of its catalogue, as
the model's preprocessing encodes it; and a column that hands on whole numbers becomes a whole number under ``typical``.
Under any baseline a nominal field whose columns are the encoding of no category that is known must be named artificial.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fragility.base.arrays import Floats
from fragility.base.errors import FragilityError
from fragility.blocks.checks import Difference
from fragility.evidence import EvidenceRows
from fragility.evidence.bound import to_floats
from fragility.evidence.fields import Field
from fragility.evidence.modes import values_frame
from fragility.evidence.origins import find_categories
from fragility.evidence.rows import Scalar
from fragility.models.outputs import to_python
from fragility.protocol import Protocol

SAME = 1e-9  # of a cell: by so much may the encoding of a category differ from the baseline
MOST_CATEGORIES = 1000


def find_unreal(rows: EvidenceRows, protocol: Protocol) -> list[Difference]:
    """Return the fields whose baselines are no value that they can take, though the protocol says so."""
    if protocol.space == "raw" or rows.model.transformer is None or rows.encode is None:
        return []  # a raw baseline is compared with the catalogue when the protocol is read
    named = [(protocol.baseline, [column.baseline for column in protocol.columns], protocol.artificial)]
    named += [(one.name, list(one.values), one.artificial) for one in protocol.stored if one.values is not None]
    encoders = find_categories(rows.model.transformer, rows.source.names)
    found = []
    for field in protocol.fields:
        own = [j for j, fields in enumerate(protocol.evidence.column_fields) if fields == (field.name,)]
        if field.kind == "nominal" and field.type != "date" and own:
            nominal = [j for j in own if protocol.columns[j].kind == "nominal"]
            found += _compare_categories(rows, protocol, field, nominal, named, encoders.get(field.name, []))
        elif field.type == "integer":
            found += _compare_numbers(rows, field, own, named)
    return found


Named = list[tuple[str, list[Scalar], tuple[str, ...]]]  # baselines: name, one value for each column, artificial fields


def _compare_categories(
    rows: EvidenceRows, protocol: Protocol, field: Field, own: list[int], named: Named, listed: Sequence[Scalar]
) -> list[Difference]:
    entry = next((entry for entry in protocol.modes.catalogue if entry.fields == (field.name,)), None)
    first = [] if entry is None else [values[0] for values in entry.values]
    if not own or not (first or listed):
        return []  # what the categories are is not known
    cells = _encode(rows, field.name, [*first, *map(to_python, listed)][:MOST_CATEGORIES])
    found = []
    for name, values, artificial in named:
        wanted = to_floats([values[j] for j in own])
        same = np.array([_are_same(made[own], wanted) for made in cells])
        label = f"baseline {name!r} of {field.name!r}"
        told = ", ".join(f"{value:g}" for value in wanted[:4]) + (", ..." if len(wanted) > 4 else "")
        if not len(same):
            continue
        if name in ("typical", "median") and first:
            if not same[0]:
                found.append(
                    Difference("all", label, told, f"not the encoding of {first[0]!r}, its most frequent value")
                )
        elif not same.any() and field.name not in artificial and not _is_missing(rows, field, own, wanted):
            found.append(Difference("all", label, told, "the encoding of no category, yet not named artificial"))
    return found


def _compare_numbers(rows: EvidenceRows, field: Field, own: list[int], named: Named) -> list[Difference]:
    """Compare the columns that hand on a field of whole numbers as it is."""
    numbers = [-7.0, 0.0, 3.0, 1000.0]
    cells = _encode(rows, field.name, numbers)
    handed = [j for j in own if len(cells) and np.array_equal(cells[:, j], numbers)]
    found = []
    for name, values, _ in named:
        for j in handed if name == "typical" else []:
            value = values[j]
            if isinstance(value, float) and not value.is_integer():
                found.append(
                    Difference(
                        "all", f"baseline {name!r} of {field.name!r}", value, "no whole number, which the field holds"
                    )
                )
    return found


def _encode(rows: EvidenceRows, name: str, values: Sequence[Scalar]) -> Floats:
    """Return the cells (k, d) of values of a field that the preprocessing takes, in their order."""
    assert rows.encode is not None and rows.source.frame is not None
    try:
        return rows.encode(values_frame({name: list(values)}, rows.source.frame))
    except FragilityError:
        return np.empty((0, rows.width))


def _is_missing(rows: EvidenceRows, field: Field, own: list[int], wanted: Floats) -> bool:
    """Return whether the baseline is the encoding of a missing value."""
    return any(_are_same(made[own], wanted) for made in _encode(rows, field.name, [None]))


def _are_same(a: Floats, b: Floats) -> bool:
    same = (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= SAME * (1.0 + np.abs(b)))
    return bool(same.all())
