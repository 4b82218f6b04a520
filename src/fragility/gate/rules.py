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
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from fragility.audits.measures import AUROC, BRITTLE, LOST, RIGHT, Measure, exposed, flips_within
from fragility.base.errors import DataError
from fragility.base.schemas import FilledText, Level, Positive, Share, check_fields, one_of, read_document
from fragility.evidence.modes import MODES
from fragility.scores import EARLY

PREDICTED = "predicted"  # segments by predicted class


MEASURES: dict[str, tuple[Callable[[Rule], Measure], tuple[str, ...]]] = {  # and the fields of a rule that it reads
    "flips_early": (lambda rule: flips_within(rule.groups), ("groups", "counted")),
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
    """What one measure of an audit must keep to.

    Attributes
    ----------
    measure : str
        ``flips_early``, ``exposure``, ``lost``, ``brittle``, ``accuracy`` or ``auroc``.
    at_most, at_least : float, optional
        The limit: ``at_least`` for ``accuracy`` and ``auroc``, ``at_most`` for every other measure.
    allowance : float, optional
        Instead of a limit: how much worse than the earlier audit it may be.
    groups : int, default=2
        Of ``flips_early``: within how many groups a prediction flips.
    above : float, default=0.5
        Of ``exposure``: what counts as exposed.
    mode : str, optional
        Of ``exposure``: the failure mode, such as ``wrong``; by default the exposure of the certificate.
    counted : {"sets", "path"}, optional
        Of ``flips_early``: over all sets of groups, which the audits must have searched for every confident row; or
        along the path, the strongest group first, which is at least as many groups. By default over sets where all
        audits were searched, else along the path; verdicts say which.
    by : str, optional
        One verdict per segment: ``predicted`` for the predicted classes, or a column of the rows, as in
        :func:`share_by`.
    name : str, optional
        What reports call the rule; by default what it measures.
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
        given = [name for name in LIMITS if getattr(self, name) is not None]
        allowed = ("at_most" if self.measured.larger_is_worse else "at_least", "allowance")
        if len(given) != 1 or given[0] not in allowed:
            got = " and ".join(given) or "none"
            raise DataError(f"a rule about {self.measure} has one limit, {allowed[0]} or allowance; got {got}")
        for name in ("groups", "above", "mode", "counted"):
            if name not in MEASURES[self.measure][1] and name in self.to_dict():
                raise DataError(f"a rule about {self.measure} does not read {name}; leave it out")

    @property
    def measured(self) -> Measure:
        """What the rule is about."""
        return MEASURES[self.measure][0](self)

    @property
    def title(self) -> str:
        """What the rule is called: its name, or what it measures."""
        return self.name or self.measured.title

    def to_dict(self) -> dict[str, Any]:
        """Return what is declared.

        Returns
        -------
        dict
            What the rules file holds: no defaults.
        """
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if getattr(self, entry.name) != entry.default
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesDocument:
    """What a rules file holds."""

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
