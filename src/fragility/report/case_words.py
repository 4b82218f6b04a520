"""The sentences about one case: what it rests on, what its values become, and what a search adds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fragility.report.glossary import GLOSSARY
from fragility.report.phrases import brief, listed, percent
from fragility.report.summary import AuditNumbers, Case, FieldValue, GroupFacts, SmallestSet
from fragility.words import flips_in_words

SCORES = [(word, GLOSSARY[word]) for word in ("exposure", "FDS", "k*")]
SHOWN_FIELDS = 4  # of a group of many fields


def budget(case: Case) -> str:
    """Return a case's k*."""
    return str(case.flip_budget) if case.flipped else "no flip"


def values_words(audit: AuditNumbers) -> list[str]:
    """Return how to read the values of cases, or why there are none."""
    if audit.lacks_field is not None:
        return [f"Their values are not shown: the rows given lack the field {brief(audit.lacks_field)}."]
    if any(case.values is not None for case in audit.focus.cases):
        return ["Each group of the path shows the row's own value and, after the arrow, what replaces it when lost."]
    return []


def replaced_words(group: str, values: Sequence[FieldValue]) -> str:
    """Return what the fields of a group hold and become."""
    told = [
        f"{'' if one.field == group else brief(one.field) + ' '}{brief(one.value)} → {brief(one.becomes)}"
        for one in values[:SHOWN_FIELDS]
    ]
    more = [f"{len(values) - SHOWN_FIELDS} more fields"] if len(values) > SHOWN_FIELDS else []
    return ", ".join([*told, *more])


def becomes_words(group: GroupFacts) -> str:
    """Return what the fields of a group become when they are lost."""
    shown = group.becomes[:SHOWN_FIELDS]
    told = [f"{'' if name == group.name else brief(name) + ' '}{brief(value)}" for name, value in shown]
    more = [f"{len(group.becomes) - SHOWN_FIELDS} more fields"] if len(group.becomes) > SHOWN_FIELDS else []
    return ", ".join([*told, *more])


def review_command(audit: AuditNumbers, case: Case) -> str | None:
    """Return the command that opens a case in the workbench; None for an audit that lies in no folder."""
    folder = audit.facts.folder
    return None if folder is None else f"fragility review {shlex.quote(folder)} --row {shlex.quote(case.id)}"


def case_sentence(case: Case) -> str:
    """Return one sentence for someone who decides about a case."""
    found = case.smallest
    what = flips_in_words(
        [brief(name) for name in case.path],
        case.flip_budget if case.flipped else None,
        None if case.flips_to is None else repr(brief(case.flips_to)),
        [] if found is None else [brief(name) for name in found.groups],
        None if found is None else found.state,
        min((value for value in case.thresholds.values() if value is not None), default=None),
    )
    return f"{brief(case.predicted)!r} at {percent(case.confidence)}{what}"


def smallest_words(case: Case, condition: str | None) -> str | None:
    """Return what the search over all subsets adds to the path; None where there was none."""
    found = case.smallest
    if found is None:
        return None
    told = _smallest_set(case, found)
    if found.failure_probability is None or condition is None:
        return told
    low, high = found.failure_interval or (0.0, 0.0)
    interval = "" if found.failure_interval is None else f" (between {percent(low)} and {percent(high)})"
    lost = f"it is lost with probability {percent(found.failure_probability)}{_odds(found.failure_probability)}"
    return f"{told} {condition.capitalize()}, {lost}{interval}."


def _odds(probability: float) -> str:
    """Return a small probability as one in so many, which people weigh better than a percentage."""
    return f", one case in {round(1 / probability):,}" if 1e-9 < probability < 0.35 else ""


def _smallest_set(case: Case, found: SmallestSet) -> str:
    if found.size is None:
        return f"Smallest failing set: {found.state}."
    minimal = found.state == "minimum"
    proved = "no smaller set flips it" if minimal else "whether a smaller set flips it is not settled"
    if case.flipped and found.size >= case.flip_budget:
        return f"The path is as short as any set found; {proved}."
    count = "" if found.count is None or found.count == 1 else f", one of {found.count:,} such sets"
    size = "A single group flips it" if found.size == 1 else f"{found.size} groups are enough"
    return f"{size}: {listed([brief(name) for name in found.groups])}{count}; {proved}."
