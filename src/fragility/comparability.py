"""Comparability: which settings two protocols declare differently, and whether k* can still be compared.

Two models rarely share a protocol to the last digit: a baseline fitted on other training rows has other values. What
makes two audits ask different questions is a different setting. Some settings decide which removals flip a prediction
(the baseline, the groups, the decision, and what orders the path); the others only scale RCMA, FDS and exposure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fragility.protocol import Protocol
from fragility.scores import EARLY

# Baselines by which a field is replaced with the same value in either evidence space.
ALIKE_IN_BOTH_SPACES = ("typical", "median", "missing")
ORDER_THE_PATH = ("reading", "depth")  # which held-out stress does not read
SCALE_MARGINS = ("smoothing",)  # whose collapse under held-out stress makes a prediction brittle


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that two protocols declare differently.

    Attributes
    ----------
    setting : str
        Its name.
    first : str
        What the first protocol declares, in words.
    second : str
        What the second protocol declares.
    decides_flips : bool
        Whether it decides which removals flip a prediction, so that flip budgets do not compare.
    scales_scores : bool
        Whether RCMA, FDS or exposure have another scale because of it.
    """

    setting: str
    first: str
    second: str
    decides_flips: bool
    scales_scores: bool = True

    def __str__(self) -> str:
        return f"{self.setting} ({self.first} against {self.second})"


def differences_between(first: Protocol, second: Protocol) -> tuple[SettingDifference, ...]:
    """Return the settings that differ, those that decide flips first."""
    found = [
        SettingDifference(setting, told(first), told(second), decides_flips)
        for setting, told, decides_flips in _settings(first, second)
        if told(first) != told(second)
    ]
    found += _other_groups(first, second)
    if first.baseline == second.baseline == "explicit" and _values(first) != _values(second):
        found.append(SettingDifference("baseline", "explicit", "other explicit values", True))
    elif first.training_digest != second.training_digest:
        told = [f"{protocol.training_rows} rows" for protocol in (first, second)]
        found.append(SettingDifference("training rows", told[0], f"{told[1]}, others", False, False))
    return tuple(sorted(found, key=lambda difference: not difference.decides_flips))


def differences_in_stress(first: Protocol, second: Protocol) -> tuple[SettingDifference, ...]:
    """Return the settings that make held-out stress break other predictions."""
    found = differences_between(first, second)
    return tuple(
        one
        for one in found
        if one.setting in SCALE_MARGINS or (one.decides_flips and one.setting not in ORDER_THE_PATH)
    )


Setting = tuple[str, Callable[[Protocol], str], bool]


def _settings(first: Protocol, second: Protocol) -> list[Setting]:
    alike = {first.baseline, second.baseline} <= set(ALIKE_IN_BOTH_SPACES)
    return [
        ("baseline", lambda p: p.baseline, True),
        ("decision", lambda p: str(p.decision or "the larger probability"), True),
        ("reading", lambda p: p.reading, True),
        ("evidence space", lambda p: p.space, not alike),
        ("depth", lambda p: str(p.depth), min(first.depth, second.depth) < EARLY),
        ("operators", lambda p: _listed(p.operators), False),
        ("severities", lambda p: _listed(p.severities), False),
        ("weights of FDS", lambda p: _listed(p.weights), False),
        ("weights of exposure", lambda p: _listed(p.exposure_weights), False),
        ("resolution", lambda p: f"{p.resolution:g}", False),
        ("smoothing", lambda p: f"{p.smoothing:g}", False),
    ]


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values) or "none"


def _values(protocol: Protocol) -> dict[str, Any]:
    return {column.name: column.baseline for column in protocol.columns}


def _other_groups(first: Protocol, second: Protocol) -> list[SettingDifference]:
    """Compare groups by their names; by their columns too where both protocols have the same columns."""
    one, two = ({group.name: frozenset(group.columns) for group in p.groups} for p in (first, second))
    same_columns = frozenset().union(*one.values()) == frozenset().union(*two.values())
    if one.keys() == two.keys() and (one == two or not same_columns):
        return []
    told = [f"{len(p.groups)}, {p.grouping}" for p in (first, second)]
    second_told = told[1] if told[0] != told[1] else f"{told[1]}, others"
    return [SettingDifference("groups", told[0], second_told, True)]


def list_differences(differences: Sequence[SettingDifference]) -> str:
    """`baseline (typical against mean) and depth (10 against 3)`."""
    told = [str(difference) for difference in differences]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
