"""Rates: how often each evidence group fails, from one number or from rates of groups and raw fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fragility.arrays import Floats
from fragility.errors import DataError
from fragility.stress import Layout


def group_rates(declared: Any, names: tuple[str, ...], layout: Layout) -> Floats:
    """Return (G,) the probability that each group is unavailable.

    declared: one number for every group, or a mapping by group or by raw field. A group fails when any of its fields
    does: its rate is 1 - prod(1 - r) over the fields named. Groups that are not named never fail.
    """
    if isinstance(declared, Mapping):
        return _mapped(declared, names, layout)
    return np.full(len(names), _rate("rates", declared))


def _mapped(declared: Mapping[Any, Any], names: tuple[str, ...], layout: Layout) -> Floats:
    if not declared:
        raise DataError("rates must name at least one group or field, got an empty mapping")
    by_member: dict[int, list[float]] = {}
    by_group = {name for name in declared if name in names}
    for key, value in declared.items():
        group = names.index(key) if key in by_group else _group_of_field(str(key), names, layout)
        if key not in by_group and names[group] in by_group:
            raise DataError(f"rates name the group {names[group]!r} and its field {key!r}; give one of the two")
        by_member.setdefault(group, []).append(_rate(f"the rate of {key!r}", value))
    rates = np.zeros(len(names))
    for group, members in by_member.items():  # one rate stays the number that was declared
        rates[group] = members[0] if len(members) == 1 else 1.0 - np.prod(1.0 - np.array(members))
    return rates


def _group_of_field(field: str, names: tuple[str, ...], layout: Layout) -> int:
    groups = layout.groups_of(field)
    if len(groups) == 0:
        known = sorted({*names, *layout.known_fields})
        raise DataError(f"rates name {field!r}, which is neither a group nor a field; known are {', '.join(known)}")
    if len(groups) > 1:
        several = ", ".join(names[g] for g in groups)
        raise DataError(f"the field {field!r} is part of several groups ({several}); give the rates of those groups")
    return int(groups[0])


def _rate(what: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)):
        raise DataError(f"{what} must be a number from 0 to 1, got {value!r}")
    try:
        rate = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be a number from 0 to 1, got {value!r}") from error
    if not 0.0 <= rate <= 1.0:
        raise DataError(f"{what} must be a number from 0 to 1, got {rate:g}")
    return rate
