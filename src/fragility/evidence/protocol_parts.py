"""Parts of a protocol: values as users and files give them, checked and turned into the protocol's own types."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from fragility.base.errors import ProtocolError
from fragility.base.schemas import Must, matching, show_value
from fragility.evidence.baselines import ALTERNATIVES, Alternative, list_refused
from fragility.evidence.bound import Column, Group
from fragility.evidence.domains import find_domain_faults
from fragility.evidence.fields import is_date_dtype, read_date
from fragility.evidence.modes import find_faults
from fragility.evidence.rows import list_names

GROUPING = matching(
    r"raw-origin|declared|merged at (0?\.\d+|[01](\.\d+)?)",
    "raw-origin, declared or merged at a threshold from 0 to 1",
)
MIN_RESOLUTION, MAX_RESOLUTION = 1e-9, 1e-3  # part of the format: float64 margins round at 1e-10, float32 need 1e-4
# It is also how far a verified margin may lie.
RESOLUTION = Must(
    f"a number from {MIN_RESOLUTION:g} to {MAX_RESOLUTION:g} in margin units",
    lambda value: MIN_RESOLUTION <= value <= MAX_RESOLUTION,
)
RESOLUTIONS = (1e-6, 1e-5, 1e-4, 1e-3)  # of which a fit takes the finest that a model's own rounding allows
DIGEST = matching(r"(sha256:[0-9a-f]{64})?", "sha256: and 64 digits")
MAX_SMOOTHING = 1.0  # part of the format: one vote for each class of a single tree
WEIGHTED = {
    "weights": ("RCMA", "flip budget", "degradation"),
    "exposure_weights": ("targeted", "independent", "common", "random loss"),
}
NUMBERS = {3: "three", 4: "four"}


def choose_resolution(rounding: float) -> float:
    """Return the finest resolution that is at least twice a model's own rounding, or the coarsest there is."""
    return next((own for own in RESOLUTIONS if 2.0 * rounding <= own), RESOLUTIONS[-1])


def check_partition(groups: Sequence[Group], columns: Sequence[str]) -> None:
    if not groups:
        raise ProtocolError("at least one evidence group is needed, got none")
    names = [group.name for group in groups]
    if len(set(names)) != len(names):
        raise ProtocolError(f"group names must be distinct, got {names}")
    if len(set(columns)) != len(columns):
        raise ProtocolError("column names must be distinct")
    seen: dict[str, str] = {}
    for group in groups:
        if not group.columns:
            raise ProtocolError(f"group {group.name!r} has no columns")
        for column in group.columns:
            if column in seen:
                raise ProtocolError(f"column {column!r} is in both groups {seen[column]!r} and {group.name!r}")
            seen[column] = group.name
    unknown = [column for column in seen if column not in set(columns)]
    left_out = [column for column in columns if column not in seen]
    if unknown or left_out:
        raise ProtocolError(f"groups must cover the columns exactly: unknown {unknown[:5]}, left out {left_out[:5]}")


def check_inputs(protocol: Any) -> None:
    """Refuse columns that are not said to come from fields, and groups that do not hold the fields they say."""
    names, known = [column.name for column in protocol.inputs], [field.name for field in protocol.fields]
    if len(set(names)) != len(names):
        raise ProtocolError("the names of inputs must be distinct")
    for column in protocol.inputs:
        if not column.fields or list(column.fields) != [name for name in known if name in column.fields]:
            raise ProtocolError(
                f"the input {column.name!r} must name fields in the order of the table, got {list(column.fields)!r:.80}"
            )
    columns = [column.name for column in protocol.columns]
    if protocol.space == "transformed" and columns != (names or known):
        raise ProtocolError("the protocol contradicts itself: space 'transformed', but the columns are not the inputs")
    held: dict[str, tuple[str, ...]] = protocol.evidence.group_fields
    free = {name for name in known if all(name not in fields or fields == (group,) for group, fields in held.items())}
    for group, fields in held.items():
        if protocol.grouping == "raw-origin" and fields != (group,):
            raise ProtocolError(
                f"the protocol contradicts itself: grouping 'raw-origin', but the group {group!r} holds "
                f"{list_names(fields)}"
            )
        if group in known and group not in fields:
            raise ProtocolError(
                f"the group {group!r} has the name of a field that it does not hold; it holds {list_names(fields)}: "
                "give it another name"
            )
        if protocol.grouping.startswith("merged") and not _is_joined(group, fields, free, known):
            raise ProtocolError(
                f"the protocol contradicts itself: grouping {protocol.grouping!r}, but the group {group!r} holds "
                f"{list_names(fields)}"
            )
    for entry in protocol.modes.catalogue:
        if entry.group in held and entry.fields != held[entry.group]:
            raise ProtocolError(
                f"the catalogue of {entry.group!r} must be that of the fields {list_names(held[entry.group])}, got "
                f"{list_names(entry.fields)}"
            )


def check_values(protocol: Any) -> None:
    """Refuse baselines by rule that contradict what they are called, as far as the protocol itself tells."""
    named = [(protocol.baseline, [column.baseline for column in protocol.columns], protocol.artificial)]
    named += [(one.name, one.values, one.artificial) for one in protocol.stored if one.values is not None]
    by_name = {field.name: field for field in protocol.fields}
    first = {entry.fields[0]: entry.values[0][0] for entry in protocol.modes.catalogue if len(entry.fields) == 1}
    for name, values, artificial in named:
        if name in ("typical", "median") and artificial:
            raise ProtocolError(f"the protocol contradicts itself: under {name!r} no baseline is artificial")
        if name not in ("typical", "median", "mean") or protocol.space != "raw":
            continue
        for column, value in zip(protocol.columns, values, strict=True):
            field = by_name[column.name]
            if field.kind == "nominal" and field.type != "date" and first.get(field.name, value) != value:
                raise ProtocolError(
                    f"the protocol contradicts itself: baseline {name!r}, but that of {field.name!r} is {value!r}, not "
                    f"the most frequent value of its catalogue, {first[field.name]!r}"
                )
            whole = field.kind == "numeric" and field.type == "integer"
            if whole and isinstance(value, float) and not value.is_integer():  # other types: see `_check_column`
                raise ProtocolError(
                    f"the protocol contradicts itself: {field.name!r} holds whole numbers, its baseline is {value!r}"
                )


def _is_joined(name: str, fields: Sequence[str], free: Set[str], known: Sequence[str]) -> bool:
    """Return whether a group's name joins its fields by +; fields that no column comes from may be among them."""
    parts = [f"({re.escape(f'+{own}')}){'' if own in fields else '?'}" for own in known if own in {*fields, *free}]
    # Where a field is called like the joined names, `groups.py` adds a word to them.
    return re.fullmatch("".join(parts) + r"( \(merged\))*", f"+{name}") is not None


def order_alternatives(protocol: Any) -> tuple[Alternative, ...]:
    """Return the stored alternatives in their order, with floats in numeric columns: JSON may write them otherwise."""

    def read(other: Alternative) -> Alternative:
        if other.values is None or len(other.values) != len(protocol.columns):
            return other
        pairs = zip(protocol.columns, other.values, strict=True)
        values = (float(v) if c.kind == "numeric" and type(v) is int else v for c, v in pairs)
        return replace(other, values=tuple(values))

    order = [*ALTERNATIVES, *sorted(other.name for other in protocol.stored)]
    return tuple(sorted(map(read, protocol.stored), key=lambda other: order.index(other.name)))


def check_evidence(protocol: Any) -> None:
    """Refuse columns, groups and a baseline that are malformed or contradict each other."""
    for field in protocol.fields:
        if field.dtype is not None and not (field.type == "date" and is_date_dtype(field.dtype)):
            raise ProtocolError(
                f"dtype of {field.name!r} must be null or that of timestamps in a known time zone, such as "
                f"'datetime64[us, UTC]', got {field.dtype!r:.80}"
            )
    check_partition(protocol.groups, [column.name for column in protocol.columns])
    kinds = {field.name: field.kind for field in protocol.fields}
    if protocol.grouping == "raw-origin" and not set(protocol.group_names) <= set(kinds):
        raise ProtocolError(
            "the protocol contradicts itself: grouping 'raw-origin', but groups are not named after fields"
        )
    if protocol.space == "raw" and {c.name: c.kind for c in protocol.columns} != kinds:
        raise ProtocolError("the protocol contradicts itself: space 'raw', but the columns are not the fields")
    unknown = set(protocol.artificial) - set(kinds)
    if unknown:
        raise ProtocolError(f"the protocol contradicts itself: artificial names {min(unknown)!r}, which is not a field")
    for column in protocol.columns:
        _check_column(column, protocol.baseline)


def _check_column(column: Column, word: str) -> None:
    """Refuse a column whose baseline does not fit the protocol's word for it."""
    value, numeric = column.baseline, column.kind == "numeric"
    if numeric and value is not None and type(value) is not float:
        raise ProtocolError(f"the baseline of {column.name!r} must be a number or null, got {show_value(value)}")
    if word == "zero" and numeric and value != 0.0:
        expected = "0"
    elif word == "missing" and value is not None:
        expected = "null"
    elif word in ("typical", "mean", "median") and numeric and value is None and column.spread is not None:
        expected = "a number, as it had values in training"
    else:
        return
    raise ProtocolError(
        f"the protocol contradicts itself: baseline {word!r}, but the baseline of {column.name!r} is {value!r}, "
        f"expected {expected}"
    )


def check_settings(protocol: Any) -> None:
    """Refuse settings that are out of range."""
    n_groups, depth = len(protocol.groups), protocol.depth
    if depth > n_groups:
        raise ProtocolError(
            f"depth must be a whole number from 1 to the number of groups, {n_groups}, got {depth!r}; "
            "leave it out for 10, or all groups if there are fewer"
        )
    rising = all(a < b for a, b in itertools.pairwise(protocol.severities))
    if not protocol.severities or not rising or not (protocol.severities[0] > 0 and protocol.severities[-1] <= 1):
        raise ProtocolError(f"severities must rise strictly within (0, 1], got {list(protocol.severities)}")
    for name, weights in (("weights", protocol.weights), ("exposure_weights", protocol.exposure_weights)):
        if not sum(weights) > 0:
            count = NUMBERS[len(WEIGHTED[name])]
            raise ProtocolError(f"{name} must be {count} numbers >= 0, not all 0, got {list(weights)}")
    if len(set(protocol.operators)) != len(protocol.operators):
        raise ProtocolError(f"operators must be distinct, got {list(protocol.operators)}")
    for operator in protocol.operators:
        operator_width(operator, n_groups)
    targeted, independent, common, _ = protocol.exposure_weights
    if protocol.fading is None and common > 0 and not targeted + independent > 0:
        raise ProtocolError(
            "exposure_weights give weight to the common loss, which needs the operator attenuate_all, and none to the "
            f"losses that share it otherwise; add the operator to {list(protocol.operators)}"
        )


def check_alternatives(protocol: Any) -> None:
    """Refuse alternatives that do not fit the columns, and dates that are not written as such."""
    if len({protocol.baseline, *protocol.alternatives}) != 1 + len(protocol.stored):
        raise ProtocolError(
            f"alternatives must be distinct and other than the baseline {protocol.baseline!r}, got "
            f"{list(protocol.alternatives)}"
        )
    if (protocol.stored or protocol.refused) and protocol.refused != list_refused(protocol.baseline, protocol.stored):
        raise ProtocolError(
            f"a protocol stores every baseline among {', '.join(ALTERNATIVES)} that the model admits and names the "
            f"others as refused; beside {', '.join((protocol.baseline, *protocol.alternatives))} it must refuse "
            f"{', '.join(list_refused(protocol.baseline, protocol.stored)) or 'none'}, got "
            f"{', '.join(map(str, protocol.refused)) or 'none'}"
        )
    names, n_groups = [f.name for f in protocol.fields], len(protocol.groups)
    by_column, raw = [c.name for c in protocol.columns] == names, protocol.space == "raw"
    for other in protocol.stored:
        if other.name not in ALTERNATIVES:
            raise ProtocolError(f"an alternative must be one of {', '.join(ALTERNATIVES)}, got {other.name!r:.80}")
        if other.values is not None and len(other.values) != len(protocol.columns):
            raise ProtocolError(
                f"the alternative {other.name!r} must have {len(protocol.columns)} values, one per column, got "
                f"{len(other.values)}"
            )
        if (other.values is None) != (other.name == "missing"):
            raise ProtocolError("every alternative but missing has a value for each column, and missing has none")
        has = (other.groups is not None, other.spreads is not None)
        if other.name == "missing" and (has[0] != has[1] or has[0] < (not by_column) or has[0] > (not raw)):
            raise ProtocolError(
                "the alternative missing must have groups and spreads of the raw fields if the columns are not the raw "
                "fields, and neither in the raw space"
            )
        if other.groups is not None and other.spreads is not None:
            check_partition(other.groups, names)
            if len(other.spreads) != len(names) or len(other.groups) < n_groups:
                raise ProtocolError(
                    f"the alternative missing must have {len(names)} spreads and at least {n_groups} groups, "
                    f"got {len(other.spreads)} and {len(other.groups)}"
                )
    dates = {f.name for f in protocol.fields if f.type == "date"} if protocol.space == "raw" else set()
    for j, column in enumerate(protocol.columns):
        others = [other.values[j] for other in protocol.stored if other.values is not None]
        for value in [column.baseline, *others] if column.name in dates else []:
            if value is not None and read_date(value) is None:
                raise ProtocolError(
                    f"the baseline of {column.name!r} must be a date in ISO form (2020-05-17), got {value!r:.60}"
                )


def check_modes(protocol: Any) -> None:
    """Refuse failure modes that are malformed or do not fit the fields, groups and columns."""
    columns = [column.name for column in protocol.columns]
    for fault in find_faults(protocol.modes, protocol.fields, protocol.groups, columns):
        raise ProtocolError(fault)


def check_domains(protocol: Any) -> None:
    """Refuse domains that are malformed or do not fit the fields and their training ranges."""
    for fault in find_domain_faults(protocol.domains, protocol.domain, protocol.fields, protocol.modes.ranges):
        raise ProtocolError(fault)


def read_operator(operator: str) -> str:
    """Return an operator's name as a protocol has it: ``attenuate_top(2)`` is ``attenuate_top2``."""
    if not isinstance(operator, str):
        raise ProtocolError(f"an operator is a name such as attenuate_all, got {operator!r}")
    return re.sub(r"^attenuate_top\((\d+)\)$", r"attenuate_top\1", operator.strip())


def operator_width(operator: str, n_groups: int) -> int:
    """Return how many groups of the path an operator degrades: all of them, or its first j."""
    if operator == "attenuate_all":
        return n_groups
    match = re.fullmatch(r"attenuate_top(\d+)", operator)
    if match is None or not 1 <= int(match[1]) <= n_groups:
        raise ProtocolError(
            f"an operator is attenuate_all or attenuate_topJ with J from 1 to {n_groups}, the number of groups; "
            f"got {operator!r}"
        )
    return int(match[1])


def read_list(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        raise ProtocolError(f"{name} must be a list, got {values!r}")
    return list(values)


def read_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{name} must be a number, got {value!r}") from error


def read_weights(name: str, weights: Sequence[float]) -> tuple[Any, ...]:
    parts = WEIGHTED[name]
    if len(read_list(name, weights)) != len(parts):
        raise ProtocolError(f"{name} must be {NUMBERS[len(parts)]} numbers ({', '.join(parts)}), got {len(weights)}")
    return tuple(read_number("a weight", w) for w in weights)
