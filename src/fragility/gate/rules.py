"""Rules: what an audit must show to pass a gate, and the TOML file that declares them.

confidence = 0.95          # of all verdicts together
min_confidence = 0.9       # where a prediction counts as confident; without it, as the audit's protocol declares

[written_for]              # optional: entries of the protocol that the limits depend on; `gate init` writes them
baseline = "typical"

[[rule]]
measure = "flips_early"    # share of confident predictions that flip within `groups` groups
groups = 2
at_most = 0.10

[[rule]]
measure = "exposure"       # share of confident predictions whose exposure to a failure mode exceeds `above`
mode = "wrong"
above = 0.5
allowance = 0.02           # no more than 2 percentage points above the earlier audit
by = "predicted"           # per predicted class; or a column of the rows, such as "age:25,40,60"

For the same model, the share of exposed predictions changes with the weights of exposure, with the declared noise and
with the number of values tried. So each measure names the entries of protocol and manifest that scale it. Two audits
are compared only if these entries are equal, and rules with a section [written_for] apply only to audits with its
entries.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from fragility.audits import Audit
from fragility.audits.measures import AUROC, BRITTLE, LOST, RIGHT, Measure, changed_within, exposed, flips_within
from fragility.base.canonical import digest_of
from fragility.base.errors import DataError
from fragility.base.schemas import (
    FilledText,
    Level,
    Positive,
    Share,
    check_fields,
    one_of,
    read_document,
    write_document,
)
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.evidence.modes import MODES
from fragility.scores import EARLY

PREDICTED = "predicted"  # segments by predicted class


MEASURES: dict[str, tuple[Callable[[Rule], Measure], tuple[str, ...]]] = {  # and the fields of a rule that it reads
    "flips_early": (lambda rule: flips_within(rule.groups), ("groups", "counted")),
    "any_value_budget": (lambda rule: changed_within(rule.groups), ("groups",)),
    "exposure": (lambda rule: exposed(rule.above, rule.mode), ("mode", "above")),
    "lost": (lambda rule: LOST, ()),
    "brittle": (lambda rule: BRITTLE, ()),
    "accuracy": (lambda rule: RIGHT, ()),
    "auroc": (lambda rule: AUROC, ()),
}
SETS, PATH = "sets", "path"
LIMITS = ("at_most", "at_least", "allowance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A limit for one measure of an audit.

    Attributes
    ----------
    measure : str
        ``flips_early``, ``any_value_budget``, ``exposure``, ``lost``, ``brittle``, ``accuracy`` or
        ``auroc``.
    at_most, at_least : float, optional
        The limit: ``at_least`` for ``accuracy`` and ``auroc``, ``at_most`` for every other measure.
    allowance : float, optional
        Instead of a limit: how much worse than in the earlier audit the measure may be.
    groups : int, default=2
        For ``flips_early`` and ``any_value_budget``: within how many groups a prediction flips, if they are lost or
        take other values.
    above : float, default=0.5
        For ``exposure``: the exposure above which a prediction counts as exposed.
    mode : str, optional
        For ``exposure``: the failure mode, such as ``wrong``; by default the exposure of the certificate.
    counted : {"sets", "path"}, optional
        For ``flips_early``: count over all sets of groups, which the audits must have searched for every confident row;
        or along the path, the strongest group first, which never needs fewer groups. By default over sets if all audits
        were searched, else along the path; verdicts say which.
    by : str, optional
        One verdict per segment: ``predicted`` for the predicted classes, or a column of the rows, as in
        :func:`share_by`.
    name : str, optional
        The name of the rule in reports; by default the name of its measure.
    """

    measure: Annotated[str, one_of(MEASURES)]
    at_most: Share | None = None
    at_least: Share | None = None
    allowance: Share | None = None
    groups: Positive = EARLY
    above: Share = 0.5
    mode: Annotated[str, one_of(MODES)] | None = None
    counted: Literal["sets", "path"] | None = None
    by: FilledText | None = None
    name: FilledText | None = None

    def __post_init__(self) -> None:
        check_fields(self, "a rule", DataError)
        limits = [name for name in LIMITS if getattr(self, name) is not None]
        allowed = ("at_most" if self.measured.larger_is_worse else "at_least", "allowance")
        if len(limits) != 1 or limits[0] not in allowed:
            got = " and ".join(limits) or "none"
            raise DataError(f"a rule about {self.measure} has one limit, {allowed[0]} or allowance; got {got}")
        for name in ("groups", "above", "mode", "counted"):
            if name not in MEASURES[self.measure][1] and name in self.to_dict():
                raise DataError(f"a rule about {self.measure} does not read {name}; leave it out")

    @property
    def measured(self) -> Measure:
        """The measure, with the settings of the rule."""
        return MEASURES[self.measure][0](self)

    @property
    def title(self) -> str:
        """The rule's name, or that of its measure."""
        return self.name or self.measured.title

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as the rules file holds it.

        Returns
        -------
        dict
            The fields that differ from their defaults.
        """
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if getattr(self, entry.name) != entry.default
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesDocument:
    """The content of a rules file."""

    confidence: Level = 0.95
    min_confidence: Level | None = None
    derived_from: tuple[str, ...] = ()
    written_for: Mapping[str, str] = field(default_factory=dict)
    rule: tuple[Rule, ...] = ()


def parse_rules(text: str) -> RulesDocument:
    """Return what a TOML document declares."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"the rules are not valid TOML: {error}") from error
    return read_document(document, RulesDocument, "the rules file", DataError, defaults=True)


def write_rules(
    rules: tuple[Rule, ...], settings: Mapping[str, Any], written_for: Mapping[str, str], heading: str = ""
) -> str:
    """Return the TOML document of some rules."""
    lines = [f"# {line}" for line in heading.splitlines()]
    lines += [f"{name} = {value!r}" for name, value in settings.items()]
    if written_for:
        lines += ["", "[written_for]"]
        lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in written_for.items()]
    for rule in rules:
        declared = {name: json.dumps(value, ensure_ascii=False) for name, value in rule.to_dict().items()}
        lines += ["", "[[rule]]", *(f"{name} = {value}" for name, value in declared.items())]
    return "\n".join(lines) + "\n"


# --- scales ---------------------------------------------------------------------------------------------------


def _write_modes(audit: Audit) -> dict[str, str]:
    modes = audit.protocol.modes.to_dict()
    return {name: digest_of({name: modes[name]})[:19] if modes[name] else "none" for name in ("sentinels", "outages")}


def _write_rates(audit: Audit) -> str:
    declared = audit.manifest.find_block(LatticeDeclaration)
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
    """Name the fields that are treated as nominal, whatever their type."""
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
    "domains": lambda audit: digest_of(write_document(list(audit.protocol.domains)))[:23],
}


def read_scales(rules: Sequence[Rule], audit: Audit) -> dict[str, str]:
    """Return the entries that scale the measures of these rules, as an audit declares them, as text."""
    names = {name for rule in rules for name in rule.measured.scales or ()}
    return {name: write(audit) for name, write in ENTRIES.items() if name in names}


def check_scales(rule: Rule, audit: Audit, other: Audit) -> None:
    """Refuse two audits in which the measure of a rule has different scales."""
    theirs = read_scales([rule], other)
    for name, value in read_scales([rule], audit).items():
        if value != theirs[name]:
            raise DataError(
                f"the rule about {rule.title!r} depends on {name}, which is {value:.120} in one audit and "
                f"{theirs[name]:.120} in the other, so their difference is not due to the models alone; audit both "
                "under one protocol"
            )


def check_written_for(rule: Rule, audit: Audit, written_for: Mapping[str, str]) -> None:
    """Refuse an audit whose entries differ from those that the rules were written for."""
    for name, value in read_scales([rule], audit).items():
        if name in written_for and value != written_for[name]:
            raise DataError(
                f"the rule about {rule.title!r} was written for audits whose {name} is {written_for[name]:.120}, and "
                f"here it is {value:.120}; audit as the rules say, or derive rules for such audits"
            )
