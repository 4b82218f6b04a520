"""The training check: what a protocol says of its training rows, fitted again from rows that are said to be these.

Certificates follow from model, rows and protocol; whether the baseline is one of the training data, and not one that
suits its author, can only be told with the training rows. Declared settings are taken from the protocol, and everything
that is fitted must come out as it states it.
"""

from __future__ import annotations

import warnings
from typing import Any

from fragility.audits.manifest import identical
from fragility.base.errors import Advice, FragilityError, VerificationError
from fragility.blocks.checks import Check, Difference
from fragility.evidence.domains import DECLARED
from fragility.evidence.modes import JOINT_FIELDS
from fragility.models import Model
from fragility.pages.wording import write_count
from fragility.protocol import Protocol

FITTED = (
    *("fields", "columns", "inputs", "groups", "artificial", "alternatives", "refused", "domains"),
    *("training_digest", "training_rows"),
)
FITTED_MODES = ("catalogue", "whole", "ranges")
SHOWN = 80  # characters of a value
BEFORE = 20  # of these, in front of the first that differs
ABSENT = "nothing"


def check_training(model: Model, X_train: Any, protocol: Protocol) -> Check:
    """Return whether the fitted parts of a protocol are those that these training rows give."""
    settings = _read_settings(protocol)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a fit says of rows that somebody has chosen long ago
            again = Protocol.fit(model, X_train, **settings)
    except FragilityError as error:
        return Check("training", False, f"the protocol cannot be fitted on the training rows given: {error}")
    stated, fresh = protocol.to_dict(), again.to_dict()
    pairs = {f"protocol.{name}": (stated[name], fresh[name]) for name in FITTED}
    pairs |= {f"protocol.modes.{name}": (stated["modes"][name], fresh["modes"][name]) for name in FITTED_MODES}
    differences = tuple(
        Difference("all", *find_difference(name, claimed, found))
        for name, (claimed, found) in pairs.items()
        if not identical(claimed, found)
    )
    if differences:
        return Check("training", False, "the protocol is not fitted on these training rows", differences=differences)
    own = "" if protocol.baseline != "explicit" else "; its explicit baseline was chosen, not fitted"
    return Check("training", True, f"the protocol is fitted on these {protocol.training_rows:,} training rows{own}")


def _read_domains(protocol: Protocol) -> dict[str, list[Any]]:
    """Return limits and categories as they were declared; those of training come out of a fit again."""
    declared: dict[str, list[Any]] = {}
    for own in protocol.domains:
        known = [own.low, own.high] if own.low is not None else own.categories
        if known is not None:
            declared[own.field] = [*known, *([None] if own.missing else [])]
    return declared


def _read_settings(protocol: Protocol) -> dict[str, Any]:
    """Return the declared settings, as `Protocol.fit` takes them; recorded outages take no part in what is fitted."""
    modes = protocol.modes
    settings: dict[str, Any] = {
        "space": protocol.space,
        "baseline": protocol.baseline,
        "operators": protocol.operators,
        "severities": protocol.severities,
        "depth": protocol.depth,
        "reading": protocol.reading,
        "weights": protocol.weights,
        "exposure_weights": protocol.exposure_weights,
        "resolution": protocol.resolution,
        "smoothing": protocol.smoothing,
        "min_confidence": protocol.min_confidence,
        "nominal": [own.name for own in protocol.fields if own.kind == "nominal" and own.type in ("integer", "number")],
        "decision": protocol.decision,
        "modes": [mode for mode in modes.declared if mode not in ("outage", "sentinel")],
        "catalogue": modes.catalogue_size or 1,
        "noise": modes.noise,
        # joint values of many fields, which a fit leaves out where only single rows have them, were asked for
        "joint_values": any(len(entry.fields) > JOINT_FIELDS for entry in modes.catalogue),
        "domain": protocol.domain if protocol.domain != DECLARED else _read_domains(protocol),
        "immutable": [own.field for own in protocol.domains if own.fixed],
        "sentinels": {one.field: list(zip(one.values, one.weights, strict=True)) for one in modes.sentinels},
    }
    if protocol.baseline == "explicit":
        values = {column.name: column.baseline for column in protocol.columns}
        settings |= {"baseline": values, "baseline_units": "raw" if protocol.space == "raw" else "transformed"}
    if protocol.grouping.startswith("merged"):
        settings |= {"groups": "merged", "merge_threshold": float(protocol.grouping.removeprefix("merged at "))}
    elif protocol.grouping == "declared":
        settings["groups"] = _read_groups(protocol)
    return settings


def _read_groups(protocol: Protocol) -> dict[str, list[str]]:
    """Return declared groups as a map from blocks to raw fields."""
    names = {field.name for field in protocol.fields}
    missing = next((other for other in protocol.stored if other.name == "missing"), None)
    groups = protocol.groups if missing is None or missing.groups is None else missing.groups
    if any(column not in names for group in groups for column in group.columns):
        raise VerificationError(
            "the protocol declares groups of transformed columns and does not say of which fields, so it cannot be "
            "fitted again; leave out ",
            Advice("train", "--train"),
        )
    return {group.name: list(group.columns) for group in groups}


def find_difference(name: str, claimed: Any, found: Any) -> tuple[str, str, str]:
    """Return where two unequal values first differ, by names, and both values there as texts."""
    if isinstance(claimed, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*claimed, *found)):
            if key not in claimed or key not in found:
                one, other = (str(own[key])[:SHOWN] if key in own else ABSENT for own in (claimed, found))
                return f"{name}.{key}", one, other
            if not identical(claimed[key], found[key]):
                return find_difference(f"{name}.{key}", claimed[key], found[key])
    if isinstance(claimed, list) and isinstance(found, list):
        for place, (one, other) in enumerate(zip(claimed, found, strict=False)):
            if not identical(one, other):
                return find_difference(f"{name}.{_name_entry(one, other, place)}", one, other)
        return name, write_count(len(claimed), "entry", "entries"), write_count(len(found), "entry", "entries")
    return name, *_shorten(str(claimed), str(found))


def _name_entry(one: Any, other: Any, place: int) -> str:
    """Return the name by which both entries of a list go, else their place."""
    for key in ("name", "field", "group"):
        if isinstance(one, dict) and isinstance(other, dict) and key in one and one[key] == other.get(key):
            return str(one[key])
    return str(place)


def _shorten(one: str, other: str) -> tuple[str, str]:
    """Return two texts, of long ones only what is around the first character that differs."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - BEFORE) if same > SHOWN - BEFORE else 0
    before = "..." if start else ""
    return f"{before}{one[start : start + SHOWN]}", f"{before}{other[start : start + SHOWN]}"
