"""Scales: the entries of protocol and manifest on which a measure depends, so that audits differing in one are refused.

A share of exposed predictions falls with the weights of exposure, with the noise that is declared and with the number
of values tried, whatever the model. So each measure names the entries that scale it. Two audits are compared, and an
audit is held to rules that say what they were written for, only if these entries are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fragility.audits import Audit
from fragility.base.canonical import digest_of
from fragility.base.errors import DataError
from fragility.gate.rules import Rule


def _write_modes(audit: Audit) -> dict[str, str]:
    modes = audit.protocol.modes.to_dict()
    return {name: digest_of({name: modes[name]})[:19] if modes[name] else "none" for name in ("sentinels", "outages")}


def _write_rates(audit: Audit) -> str:
    declared = audit.lattice_declaration
    if declared is None or not declared.has_failures:
        return "none"
    if declared.rates is not None:
        return _join(f"{name} {rate:g}" for name, rate in declared.rates.items())
    return digest_of({"events": declared.events})[:19]


def _write_baseline(audit: Audit) -> str:
    protocol = audit.protocol
    if protocol.baseline != "explicit":
        return protocol.baseline
    return f"explicit {digest_of({column.name: column.baseline for column in protocol.columns})[:19]}"


def _list_nominal(audit: Audit) -> str:
    """Name the fields that fade, move and are lost as categories, whatever their type."""
    return _join(sorted(field.name for field in audit.protocol.fields if field.kind == "nominal"))


def _join(values: Any) -> str:
    return ", ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values) or "none"


ENTRIES: dict[str, Callable[[Audit], str]] = {
    "baseline": _write_baseline,
    "groups": lambda audit: _join(audit.protocol.group_names),
    "nominal": _list_nominal,
    "decision": lambda audit: str(audit.protocol.decision or "the larger probability"),
    "reading": lambda audit: audit.protocol.reading,
    "depth": lambda audit: str(audit.protocol.depth),
    "operators": lambda audit: _join(audit.protocol.operators),
    "severities": lambda audit: _join(audit.protocol.severities),
    "exposure_weights": lambda audit: _join(audit.protocol.exposure_weights),
    "resolution": lambda audit: f"{audit.protocol.resolution:g}",
    "smoothing": lambda audit: f"{audit.protocol.smoothing:.6g}",
    "min_confidence": lambda audit: f"{audit.protocol.min_confidence:g}",
    "catalogue_size": lambda audit: str(audit.protocol.modes.catalogue_size),
    "noise": lambda audit: f"{audit.protocol.modes.noise:g}",
    "sentinels": lambda audit: _write_modes(audit)["sentinels"],
    "outages": lambda audit: _write_modes(audit)["outages"],
    "rates": _write_rates,
}


def read_scales(rules: Sequence[Rule], audit: Audit) -> dict[str, str]:
    """Return the entries that scale what these rules measure, as an audit declares them, in words."""
    names = {name for rule in rules for name in rule.measured.scales or ()}
    return {name: write(audit) for name, write in ENTRIES.items() if name in names}


def check_scales(rule: Rule, audit: Audit, other: Audit) -> None:
    """Refuse two audits in which the measure of a rule has different scales."""
    theirs = read_scales([rule], other)
    for name, value in read_scales([rule], audit).items():
        if value != theirs[name]:
            raise DataError(
                f"the rule about {rule.title!r} depends on {name}, which is {value:.120} in one audit and "
                f"{theirs[name]:.120} in the other, so a difference between them is not the model's; audit both under "
                "one protocol"
            )


def check_written_for(rule: Rule, audit: Audit, written_for: Mapping[str, str]) -> None:
    """Refuse an audit whose entries are others than those that the rules were written for."""
    for name, value in read_scales([rule], audit).items():
        if name in written_for and value != written_for[name]:
            raise DataError(
                f"the rule about {rule.title!r} was written for audits whose {name} is {written_for[name]:.120}, and "
                f"here it is {value:.120}; audit as the rules say, or derive rules for such audits"
            )
