"""How evidence fails, as the user declares it: a rate per group, rates per group and mode, or recorded outages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import DataError, ProtocolError
from fragility.protocol import Protocol
from fragility.questions.stress.stressors import Layout

RATED_MODES = ("lost", "wrong")  # those whose units are groups
ROUNDING = 1e-9  # by which declared rates may exceed 1 together


def group_rates(declared: Any, names: tuple[str, ...], layout: Layout) -> Floats:
    """Return (G,) the probability that each group is unavailable.

    declared: one number for every group, or a mapping by group or by raw field. A group fails when any of its fields
    does: its rate is 1 - prod(1 - r) over the fields named. Groups that are not named never fail.
    """
    if not isinstance(declared, Mapping):
        return np.full(len(names), _read_rate("rates", declared))
    if not declared:
        raise DataError("rates must name at least one group or field, got an empty mapping")
    by_member: dict[int, list[float]] = {}
    by_group = {name for name in declared if name in names}
    for key, value in declared.items():
        group = names.index(key) if key in by_group else _find_group(str(key), names, layout)
        if key not in by_group and names[group] in by_group:
            raise DataError(f"rates name the group {names[group]!r} and its field {key!r}; give one of the two")
        by_member.setdefault(group, []).append(_read_rate(f"the rate of {key!r}", value))
    rates = np.zeros(len(names))
    for group, members in by_member.items():  # one rate stays the number that was declared
        rates[group] = members[0] if len(members) == 1 else 1.0 - np.prod(1.0 - np.array(members))
    return rates


def _find_group(field: str, names: tuple[str, ...], layout: Layout) -> int:
    groups = layout.groups_of(field)
    if len(groups) == 0:
        known = sorted({*names, *layout.known_fields})
        raise DataError(f"rates name {field!r}, which is neither a group nor a field; known are {', '.join(known)}")
    if len(groups) > 1:
        several = ", ".join(names[g] for g in groups)
        raise DataError(f"the field {field!r} is part of several groups ({several}); give the rates of those groups")
    return int(groups[0])


def _read_rate(what: str, value: Any) -> float:
    try:
        rate = None if isinstance(value, (bool, np.bool_)) else float(value)
    except (TypeError, ValueError):
        rate = None
    if rate is None or not 0.0 <= rate <= 1.0:
        shown = repr(value) if rate is None else f"{rate:g}"
        raise DataError(f"{what} must be a number from 0 to 1, got {shown}")
    return rate


@dataclass(frozen=True, slots=True, eq=False)
class ModeRates:
    """How often each group is lost and how often it is wrong; it cannot be both at once."""

    lost: Floats  # (G,)
    wrong: Floats  # (G,)

    @property
    def failing(self) -> Floats:
        """(G,) how often a group fails in either way."""
        return self.lost + self.wrong


def has_modes(declared: Any) -> bool:
    """Return whether rates are declared per mode, for at least one group or field."""
    return isinstance(declared, Mapping) and any(isinstance(value, Mapping) for value in declared.values())


def mode_rates(declared: Mapping[Any, Any], protocol: Protocol, layout: Layout) -> ModeRates:
    """Return the rates of {group or field: {"lost": a, "wrong": b}}; a plain number is a rate of loss.

    Several fields of one group count, mode by mode, as in ``group_rates``.
    """
    by_mode: dict[str, dict[Any, Any]] = {mode: {} for mode in RATED_MODES}
    for key, value in declared.items():
        given = value if isinstance(value, Mapping) else {"lost": value}
        if not given or (unknown := [mode for mode in given if mode not in RATED_MODES]):
            got = repr(unknown[0]) if given else "none"
            raise DataError(f"the rates of {key!r} must be by mode, {' or '.join(RATED_MODES)}, got {got}")
        for mode, rate in given.items():
            by_mode[mode][key] = rate
    names = protocol.group_names
    found = {mode: group_rates(own, names, layout) if own else np.zeros(len(names)) for mode, own in by_mode.items()}
    rates = ModeRates(**found)
    listed = {entry.group for entry in protocol.modes.catalogue}
    for g, name in enumerate(names):
        if rates.failing[g] > 1.0 + ROUNDING:
            raise DataError(
                f"the rates of {name!r} add up to {rates.failing[g]:g}; lost and wrong exclude each other, so that "
                "they are at most 1 together"
            )
        if rates.wrong[g] > 0.0 and name not in listed:
            raise ProtocolError(
                f"the protocol has no values that {name!r} takes when it is wrong; fit one that declares the mode "
                "'wrong', or leave out this rate"
            )
    return rates


@dataclass(frozen=True, slots=True, eq=False)
class EventSets:
    """The distinct sets of groups that events remove, and what would be left of them if a group never failed.

    p_flip is the share of events that flip a row: exact for every model.
    """

    removed: Booleans  # (U, G) distinct sets
    weight: Floats  # (E,) share of each pattern of events
    of_event: Integers  # (E,) its set
    without: Integers  # (E, G) its set, if g never failed
    events: int  # recorded in all

    @classmethod
    def of_patterns(cls, patterns: Booleans, counts: Integers) -> EventSets:
        """Patterns (E, G) of groups, and how often each was recorded (E,)."""
        count, n_groups = patterns.shape
        reduced = patterns[:, None, :] & ~np.eye(n_groups, dtype=bool)
        every = np.concatenate([patterns, reduced.reshape(-1, n_groups)])
        removed, place = np.unique(every, axis=0, return_inverse=True)
        place = place.ravel()
        events = int(counts.sum())
        return cls(removed, counts / events, place[:count], place[count:].reshape(count, n_groups), events)

    def answers(self, flips: Booleans) -> tuple[Floats, Floats]:
        """Return p_flip (m,) and by how much it falls if a group never fails (m, G), from flips (m, U)."""
        p = flips[:, self.of_event] @ self.weight
        spared = np.einsum("meg,e->mg", flips[:, self.without], self.weight)
        return np.asarray(p), np.asarray(p[:, None] - spared)
