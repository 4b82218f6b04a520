"""Two audits side by side: which predictions no longer flip early, which now do, and which labels changed.

Whether k* can be compared at all depends on the settings that the two protocols declare differently. Matching rows
needs one entry per row of each audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fragility.audits.audit import Audit
from fragility.audits.measures import FLIPS_EARLY, read_whole, settled_within
from fragility.base.text import BriefRepr, escape_controls
from fragility.protocol import Protocol
from fragility.scores import EARLY

IDS_SHOWN = 10
SAME_PROTOCOL = (
    "flip early in both",
    "confident in both, no longer flip early",
    "confident in both, flip early now",
    "flipped early, and are no longer confident",
    "flip early now, and were not confident",
)
OTHER_PROTOCOL = (
    "flip early under both",
    "confident in both, flip early under the first protocol only",
    "confident in both, flip early under the second only",
    "flip early under the first, and are not confident in the second",
    "flip early under the second, and are not confident in the first",
)
COMPARED = ("id", "predicted", "confidence", "exposure", "flip_budget")


@dataclass(frozen=True, eq=False, repr=False)
class AuditChanges(BriefRepr):
    """What changed from one audit to another, on the rows that both cover.

    Attributes
    ----------
    table : pandas.DataFrame
        One row per prediction: its id, and before and after the predicted class, confidence, k*, whether it is
        confident, and whether it is confident and flips early.
    differences : sequence of SettingDifference
        Between the two protocols.
    by_sets : bool
        Whether early flips are counted over all sets of groups; else along the paths.
    """

    table: pd.DataFrame
    differences: Sequence[SettingDifference] = ()
    by_sets: bool = False

    @property
    def comparable(self) -> bool:
        """Whether both audits ask the same question, so that a change in k* is the model's."""
        return not any(difference.decides_flips for difference in self.differences)

    @property
    def stopped(self) -> pd.DataFrame:
        """Rows that flipped early, and do not although they are still confident."""
        return self._list("early_before", "confident_after", "early_after")

    @property
    def began(self) -> pd.DataFrame:
        """Rows that flip early, and did not although they were confident."""
        return self._list("early_after", "confident_before", "early_before")

    @property
    def lost_confidence(self) -> pd.DataFrame:
        """Rows that flipped early and are no longer confident."""
        return self.table[self.table["early_before"] & ~self.table["confident_after"]]

    @property
    def gained_confidence(self) -> pd.DataFrame:
        """Rows that flip early and were not confident before."""
        return self.table[self.table["early_after"] & ~self.table["confident_before"]]

    def _list(self, early: str, confident: str, other: str) -> pd.DataFrame:
        return self.table[self.table[early] & self.table[confident] & ~self.table[other]]

    @property
    def relabelled(self) -> pd.DataFrame:
        """Rows whose predicted class changed."""
        return self.table[self.table["predicted_before"] != self.table["predicted_after"]]

    def list_groups(self) -> list[tuple[str, pd.DataFrame]]:
        """Return what happened to rows, in words, and the rows to which it happened."""
        both = self.table[self.table["early_before"] & self.table["early_after"]]
        rows = (both, self.stopped, self.began, self.lost_confidence, self.gained_confidence, self.relabelled)
        return list(zip((*(SAME_PROTOCOL if self.comparable else OTHER_PROTOCOL), "labels changed"), rows, strict=True))

    def count_right(self, truth: Mapping[Any, Any]) -> tuple[int, int]:
        """Return how many of the rows whose label changed are right now, and how many were before."""
        changed = self.relabelled
        true = changed["id"].map({str(key): str(value) for key, value in truth.items()})
        now, before = (int((true == changed[f"predicted_{when}"].map(str)).sum()) for when in ("after", "before"))
        return now, before

    def to_text(self, truth: Mapping[Any, Any] | None = None) -> str:
        """Return the counts and the first ids; ``truth`` maps ids to true classes."""
        if self.table.empty:
            return "no row in common"
        (both_words, both), *others = self.list_groups()
        lines = [f"  {both_words}: {len(both)}", *(f"  {words}: {list_rows(rows)}" for words, rows in others)]
        if not self.comparable:
            deciding = [difference for difference in self.differences if difference.decides_flips]
            told = f"  the protocols differ in {list_differences(deciding)}, so these counts do not compare the models:"
            lines.insert(0, told)
        if truth is not None and not self.relabelled.empty:
            now, before = self.count_right(truth)
            lines[-1] += f"; {now} of them now right, {before} were right before"
        counted = "over all sets of groups" if self.by_sets else "along the paths"
        meaning = f"a confident prediction that flips when one or two groups are lost, counted {counted}"
        return "\n".join([f"{len(self.table)} rows in common", *lines, f"  (flips early: {meaning})"])


def list_rows(rows: pd.DataFrame) -> str:
    """Return how many rows, and the ids of the first."""
    if rows.empty:
        return "0"
    shown = ", ".join(escape_controls(value) for value in rows["id"].head(IDS_SHOWN))
    return f"{len(rows)} (rows {shown}{', ...' if len(rows) > IDS_SHOWN else ''})"


def compare_audits(before: Audit, after: Audit, min_confidence: float) -> AuditChanges:
    """Return what changed on the rows that both audits cover, in the order of the first."""
    by_sets = settled_within(EARLY, (before, after), min_confidence)
    tables = [rows_by_id(audit, min_confidence, by_sets=by_sets) for audit in (before, after)]
    return join_changes((tables[0], tables[1]), differences_between(before.protocol, after.protocol), by_sets=by_sets)


def join_changes(
    tables: tuple[pd.DataFrame, pd.DataFrame], differences: Sequence[SettingDifference], *, by_sets: bool
) -> AuditChanges:
    """Return what changed between two tables of `rows_by_id`."""
    first, second = (
        rows.assign(early=rows["confident"] & rows["early"])[[*COMPARED[1:3], "flip_budget", "confident", "early"]]
        for rows in tables
    )
    both = first.add_suffix("_before").join(second.add_suffix("_after"), how="inner").reset_index()
    return AuditChanges(both, differences, by_sets)


def rows_by_id(audit: Audit, min_confidence: float, *, by_sets: bool) -> pd.DataFrame:
    """Return what audits of the same rows are compared by: one row per prediction, by its id as text.

    The index holds ids as text, because those of one audit may be numbers and of the other the same numbers as text.
    by_sets: count early flips over all sets of groups, which both audits must have searched; else along the path.
    """
    rows = read_whole(audit, [FLIPS_EARLY], min_confidence, columns=COMPARED, search=by_sets)
    table: pd.DataFrame = rows.table.to_pandas()
    return table.assign(
        id=table["id"].astype(str),
        confident=rows.confident,
        after_one=rows.bounds.flips_within(1),
        early=rows.bounds.flips_early,
    ).set_index("id")


# Baselines by which a field is replaced with the same value in either evidence space.
ALIKE_IN_BOTH_SPACES = ("typical", "median", "missing")
ORDER_THE_PATH = ("reading", "depth")  # which held-out stress does not read
SCALE_MARGINS = ("smoothing",)  # whose collapse under held-out stress makes a prediction brittle


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that two protocols declare differently, and what each declares, in words."""

    setting: str
    first: str
    second: str
    decides_flips: bool  # whether it decides which removals flip a prediction, so that flip budgets do not compare
    scales_scores: bool = True  # whether RCMA, FDS or exposure have another scale because of it

    def __str__(self) -> str:
        return f"{self.setting} ({self.first} against {self.second})"


def differences_between(first: Protocol, second: Protocol) -> tuple[SettingDifference, ...]:
    """Return the settings that differ, those that decide flips first."""
    found = [
        SettingDifference(setting, say(first), say(second), decides_flips)
        for setting, say, decides_flips in _settings(first, second)
        if say(first) != say(second)
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
        ("nominal fields", _list_nominal, first.baseline != "missing"),
        ("evidence space", lambda p: p.space, not alike),
        ("depth", lambda p: str(p.depth), min(first.depth, second.depth) < EARLY),
        ("operators", lambda p: _join(p.operators), False),
        ("severities", lambda p: _join(p.severities), False),
        ("weights of FDS", lambda p: _join(p.weights), False),
        ("weights of exposure", lambda p: _join(p.exposure_weights), False),
        ("resolution", lambda p: f"{p.resolution:g}", False),
        ("smoothing", lambda p: f"{p.smoothing:g}", False),
    ]


def _list_nominal(protocol: Protocol) -> str:
    return _join(sorted(field.name for field in protocol.fields if field.kind == "nominal"))


def _join(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values) or "none"


def _values(protocol: Protocol) -> dict[str, Any]:
    return {column.name: column.baseline for column in protocol.columns}


def _other_groups(first: Protocol, second: Protocol) -> list[SettingDifference]:
    """Compare groups by their names and raw fields; by their columns too where both protocols have the same columns.

    Columns may differ: a model that was trained again need not have a column for each rare category.
    """
    one, two = ({group.name: frozenset(group.columns) for group in p.groups} for p in (first, second))
    same_columns = frozenset().union(*one.values()) == frozenset().union(*two.values())
    same_fields = first.evidence.group_fields == second.evidence.group_fields
    if same_fields and (one == two or not same_columns):
        return []
    told = [f"{len(p.groups)}, {p.grouping}" for p in (first, second)]
    second_told = told[1] if told[0] != told[1] else f"{told[1]}, others"
    return [SettingDifference("groups", told[0], second_told, True)]


def list_differences(differences: Sequence[SettingDifference]) -> str:
    """`baseline (typical against mean) and depth (10 against 3)`."""
    told = [str(difference) for difference in differences]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
