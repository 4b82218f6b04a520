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
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fragility.arrays import is_number
from fragility.errors import DataError
from fragility.evidence.modes import MODES
from fragility.scores import EARLY

PREDICTED = "predicted"  # segments by predicted class


@dataclass(frozen=True, slots=True)
class Measure:
    """What a rule may measure."""

    meaning: str
    larger_is_worse: bool
    options: tuple[str, ...] = ()  # fields of a rule that it reads


MEASURES = {
    "flips_early": Measure("confident predictions that flip within {groups} groups", True, ("groups", "counted")),
    "exposure": Measure("confident predictions with an exposure{to_mode} above {above:g}", True, ("mode", "above")),
    "lost": Measure("decisions expected to be lost at the declared rates", True),
    "brittle": Measure("confident predictions that are brittle under held-out stress", True),
    "accuracy": Measure("right predictions", False),
    "auroc": Measure("AUROC of the model", False),
}
SETS, PATH = "sets", "path"
COUNTINGS = (SETS, PATH)  # how early flips are counted: over all sets of groups, or along the path
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

    measure: str
    at_most: float | None = None
    at_least: float | None = None
    allowance: float | None = None
    groups: int = EARLY
    above: float = 0.5
    mode: str | None = None
    counted: str | None = None
    by: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.measure, str) or self.measure not in MEASURES:
            raise DataError(f"a rule measures one of {', '.join(MEASURES)}; got {self.measure!r:.80}")
        own, given = MEASURES[self.measure], [name for name in LIMITS if getattr(self, name) is not None]
        wanted = ("at_most" if own.larger_is_worse else "at_least", "allowance")
        if len(given) != 1 or given[0] not in wanted:
            got = " and ".join(given) or "none"
            raise DataError(f"a rule about {self.measure} has one limit, {wanted[0]} or allowance; got {got}")
        for name in (given[0], "above"):
            value = getattr(self, name)
            if not is_number(value) or not 0.0 <= value <= 1.0:
                raise DataError(f"{name} of a rule about {self.measure} must lie within 0 and 1, got {value!r:.80}")
        if isinstance(self.groups, bool) or not isinstance(self.groups, int) or self.groups < 1:
            raise DataError(f"groups of a rule must be a whole number from 1 on, got {self.groups!r:.80}")
        if self.mode is not None and self.mode not in MODES:
            raise DataError(f"mode of a rule must be one of {', '.join(MODES)}; got {self.mode!r:.80}")
        if self.counted not in (None, *COUNTINGS):
            raise DataError(f"counted of a rule must be {' or '.join(COUNTINGS)}, got {self.counted!r:.80}")
        for name in ("by", "name"):
            if not isinstance(getattr(self, name), str | None) or getattr(self, name) == "":
                raise DataError(f"{name} of a rule must be text, got {getattr(self, name)!r:.80}")
        for name in ("groups", "above", "mode", "counted"):
            if name not in own.options and name in self.to_dict():
                raise DataError(f"a rule about {self.measure} does not read {name}; leave it out")

    @property
    def title(self) -> str:
        """What the rule is called: its name, or what it measures."""
        if self.name is not None:
            return self.name
        to_mode = "" if self.mode is None else f" to {self.mode} values"
        meaning = MEASURES[self.measure].meaning
        return meaning.format(groups=self.groups, above=self.above, to_mode=to_mode)

    def to_dict(self) -> dict[str, Any]:
        """Return what is declared.

        Returns
        -------
        dict
            What the rules file holds: no defaults.
        """
        return {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }


RULE_FIELDS = tuple(each.name for each in fields(Rule))


def parse_rules(text: str) -> tuple[tuple[Rule, ...], dict[str, Any], dict[str, str]]:
    """Return the rules of a TOML document, the settings beside them, and what they were written for."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"the rules are not valid TOML: {error}") from error
    listed = document.pop("rule", [])
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        raise DataError("the rules of a gate are declared as [[rule]], one table each")
    written_for = document.pop("written_for", {})
    if not isinstance(written_for, Mapping) or not all(isinstance(value, str) for value in written_for.values()):
        raise DataError("[written_for] of the rules is a table of texts, by entry of the protocol")
    derived_from = document.setdefault("derived_from", [])
    if not isinstance(derived_from, list) or not all(isinstance(digest, str) for digest in derived_from):
        raise DataError("derived_from of the rules is a list of root digests, as texts")
    document["derived_from"] = tuple(derived_from)
    if unknown := sorted(set(document) - {"confidence", "min_confidence", "derived_from"}):
        raise DataError(
            "a rules file has confidence, min_confidence, derived_from, [written_for] and [[rule]]; it does not know "
            f"{unknown[0]!r}"
        )
    rules = []
    for place, declared in enumerate(listed, 1):
        if unknown := sorted(set(declared) - set(RULE_FIELDS)):
            raise DataError(f"rule {place} has {unknown[0]!r}, but a rule knows {', '.join(RULE_FIELDS)}")
        if "measure" not in declared:
            raise DataError(f"rule {place} lacks a measure, one of {', '.join(MEASURES)}")
        try:
            rules.append(Rule(**declared))
        except DataError as error:
            raise DataError(f"rule {place}: ", error) from error
    return tuple(rules), document, dict(written_for)


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
