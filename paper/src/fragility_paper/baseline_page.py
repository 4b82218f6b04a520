"""The page of the study under the default protocol: hand-written prose with every number filled in from the results."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from string import Template

from fragility_paper.library import PairedDifference
from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults
from fragility_paper.table import mean, number, signed_interval
from fragility_paper.tables.baselines import (
    BASELINE_TABLES,
    LABELS,
    crossed_difference,
    label_kinds,
    score_baselines,
    smoothing_pair,
)
from fragility_paper.tables.exposure import exposure_findings
from fragility_paper.tables.quantities import at_level

BOOSTED = tuple(name for name, spec in MODELS.items() if spec.family == "boosting")


def baseline_document(results: StudyResults) -> str:
    """The whole page as Markdown."""
    text = files("fragility_paper").joinpath("baselines.md.in").read_text(encoding="utf-8")
    tables = {
        f"table_{name.replace('-', '_')}": build(results).to_markdown() for name, build in BASELINE_TABLES.items()
    }
    known = {
        "units": str(len(results.units)),
        "exposure_text": _bullets(exposure_findings(results)),
        "crossed_text": _bullets([_crossed(results, other, words) for other, words in OTHERS.items()]),
        "flips_text": _bullets(_flips(results)),
        "smoothing_text": _smoothing(results),
    }
    return Template(text).substitute({**known, **tables})


OTHERS = {"cfc_fds": "FDS", "random_order": "random group order"}


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _crossed(results: StudyResults, other: str, words: str) -> str:
    """Where exposure is ahead of another score although the labels do not share its baseline."""
    found = {
        (baseline, labels): crossed_difference(results, baseline, labels, other)
        for baseline in score_baselines(results)
        for labels in label_kinds(results)
        if labels != baseline
    }
    ahead = {pair: gap for pair, gap in found.items() if gap.low > 0}
    behind = {pair: gap for pair, gap in found.items() if not gap.low > 0}
    least = min(found.values(), key=lambda gap: gap.mean)
    exceptions = "; ".join(_named(pair, gap) for pair, gap in behind.items())
    return (
        f"**Against {words}**: labels that do not share the scores' baseline leave {len(found)} cells. Exposure is "
        f"ahead by an interval without 0 in {len(ahead)} of them"
        + (f"; not so with {exceptions}." if behind else f", by {signed_interval(least)} at least.")
    )


def _named(pair: tuple[str, str], gap: PairedDifference) -> str:
    baseline, labels = pair
    return f"scores under `{baseline}` and labels of {LABELS[labels]} ({signed_interval(gap)})"


def _flips(results: StudyResults) -> list[str]:
    """What each baseline says about the same rows, for boosted trees and for the rest."""
    others = tuple(name for name in MODELS if name not in BOOSTED)
    return [
        f"**{words}**: " + "; ".join(_finding(results, baseline, models) for baseline in score_baselines(results)) + "."
        for words, models in (("Boosted trees", BOOSTED), ("Other models", others))
    ]


def _finding(results: StudyResults, baseline: str, models: Sequence[str]) -> str:
    early = at_level(results.per_unit("crossed", metric="flips_early", baseline=baseline), "model", models)
    brittle = at_level(results.per_unit("crossed", metric="brittle_share", variant=baseline), "model", models)
    return (
        f"under `{baseline}`, {number(mean(early))} of confident predictions flip early and {number(mean(brittle))} "
        "are brittle"
    )


def _smoothing(results: StudyResults) -> str:
    parts = []
    for words, metric, score in (
        ("the AUROC of exposure", "auroc", "cfc_exposure"),
        ("the AUROC of FDS", "auroc", "cfc_fds"),
        ("the brittle share", "brittle_share", ""),
    ):
        both = smoothing_pair(results, metric, score)
        parts.append(f"{words} from {number(mean(both['without']))} to {number(mean(both['with']))}")
    return f"One vote more for each class takes {', '.join(parts[:-1])} and {parts[-1]}."
