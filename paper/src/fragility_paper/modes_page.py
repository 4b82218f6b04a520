"""The page of the study of failure modes: hand-written prose with every number filled in from the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from fragility_paper.plan import MATCHING
from fragility_paper.results import StudyResults
from fragility_paper.table import interval, mean, number, signed_interval
from fragility_paper.tables.exposure import STRONGEST, stress_difference, stress_values, tally
from fragility_paper.tables.modes import (
    EITHER,
    LABEL_TITLES,
    MODE_TABLES,
    Goal,
    goals_of,
    kinds_of,
    lost_difference,
    matching_score,
)

OTHERS = {
    STRONGEST: "the strongest baseline of each unit, chosen on the judged rows",
    EITHER: "the same where each baseline may also be turned round",
    "cfc_exposure": "exposure, which knows of lost groups alone",
}


def modes_document(results: StudyResults) -> str:
    """The whole page as Markdown."""
    text = files("fragility_paper").joinpath("modes.md.in").read_text(encoding="utf-8")
    tables = {f"table_{name.replace('-', '_')}": build(results).to_markdown() for name, build in MODE_TABLES.items()}
    known = {
        "units": str(len(results.units)),
        "seeds": _name_seeds(results),
        "goals_text": _bullets([*map(_goal, goals_of(results)), _lost(results)]),
        "matching_text": _bullets([*(_ahead(results, *other) for other in OTHERS.items()), _within(results)]),
    }
    return Template(text).substitute({**known, **tables})


def _name_seeds(results: StudyResults) -> str:
    seeds = sorted(results.units["seed"].unique())
    named = "three seeds" if len(seeds) == 3 else f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds}"
    return f"seven data sets, nine model families, {named}"


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _goal(goal: Goal) -> str:
    verdict = "reached" if goal.met else "**not reached**"
    return (
        f"**{LABEL_TITLES[goal.kind].capitalize()}**: exposure to `{MATCHING[goal.kind]}` has an AUROC of "
        f"{interval(goal.found)}; its difference to the strongest baseline of each unit is "
        f"{signed_interval(goal.ahead)}. The goal, at least {goal.wanted:.2f} and an interval above 0, is {verdict}."
    )


def _lost(results: StudyResults) -> str:
    """Exposure to ``lost`` beside the independent loss of the certificates, which other studies record."""
    found = [lost_difference(results, kind) for kind in kinds_of(results)]
    largest = max((abs(one.mean) for one in found if one.units), default=math.nan)
    score = number(mean(stress_values(results, "mask", score="mode_lost")))
    return (
        f"**Lost groups**: exposure to `lost` has an AUROC of {score}. It is the independent loss of the certificate, "
        f"asked unit by unit; over all kinds of labels, their mean AUROCs differ by at most {number(largest, 4)}."
    )


def _ahead(results: StudyResults, other: str, words: str) -> str:
    """Under how many kinds of labels the matching mode is ahead of another score by an interval above 0."""
    gaps = {kind: stress_difference(results, kind, other, matching_score(kind)) for kind in kinds_of(results)}
    rest = [f"{LABEL_TITLES[kind]} ({signed_interval(gap)})" for kind, gap in gaps.items() if not gap.low > 0]
    return (
        f"Against {words}, the matching mode is ahead by an interval without 0 under {len(gaps) - len(rest)} of "
        f"{len(gaps)} kinds of labels" + (f"; not with {', '.join(rest)}." if rest else ".")
    )


def _within(results: StudyResults) -> str:
    found = {kind: tally(results, kind, STRONGEST, matching_score(kind)) for kind in kinds_of(results)}
    parts = "; ".join(
        f"{LABEL_TITLES[kind]} {one.better} / {one.even} / {one.worse}" for kind, one in found.items() if one.judged
    )
    return (
        "Within units, against the strongest baseline chosen on the judged rows, better / not distinguishable / worse: "
        f"{parts}."
    )
