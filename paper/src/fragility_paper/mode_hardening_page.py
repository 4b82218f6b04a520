"""The page of hardening per failure mode: hand-written prose with every number filled in from the results."""

from __future__ import annotations

from importlib.resources import files
from string import Template

from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults
from fragility_paper.table import mean, number, signed_interval
from fragility_paper.tables.mode_hardening import (
    AUROC,
    BRITTLE,
    DONORS,
    MODE_HARDENING_TABLES,
    PLAIN,
    change,
    fall_of_mean,
    falls_by_dataset,
    values_of,
)
from fragility_paper.tables.quantities import models_of

WANTED, AFFORDED = 0.40, 0.003  # fall of both brittle shares, and of the AUROC; set before any measurement


def mode_hardening_document(results: StudyResults) -> str:
    """The whole page as Markdown."""
    text = files("fragility_paper").joinpath("mode_hardening.md.in").read_text(encoding="utf-8")
    tables = {f"table_{name}": build(results).to_markdown() for name, build in MODE_HARDENING_TABLES.items()}
    goals = "\n".join(f"- {_goal(results, model)}" for model in models_of(results))
    return Template(text).substitute({"units": str(len(results.units)), "goals_text": goals, **tables})


def _goal(results: StudyResults, model: str) -> str:
    """What hardening against all modes does for one model, and whether that is the goal."""
    shares, falls = [], []
    for words, where in (("brittle", BRITTLE), ("brittle under values of other rows", DONORS)):
        before, after = (mean(values_of(results, name, where, model)) for name in (PLAIN, "modes"))
        of_mean = fall_of_mean(results, "modes", where, model)
        by_dataset = falls_by_dataset(results, "modes", where, model)
        falls.append((of_mean, mean(by_dataset.values())))
        shares.append(
            f"{words} {number(before)} → {number(after)}, which is {of_mean:.0%} less; {falls[-1][1]:.0%} less in a "
            "data set on average"
        )
    cost = change(results, "modes", AUROC, model)
    met = [
        "reached" if min(fall) >= WANTED and cost.mean >= -AFFORDED else "**missed**"
        for fall in zip(*falls, strict=True)
    ]
    return (
        f"**{MODELS[model].title}**, hardened against lost, wrong and noisy values: {'; '.join(shares)}. AUROC "
        f"{signed_interval(cost)}. The goal is {met[0]} for the means and {met[1]} for the mean fall over data sets."
    )
