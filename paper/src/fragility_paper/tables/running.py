"""Tables of the runs themselves: cost, library versions, and units that were run twice."""

from __future__ import annotations

from typing import Any

from fragility_paper import paper_values as paper
from fragility_paper.models import MODELS
from fragility_paper.results import UNIT, StudyResults, Values
from fragility_paper.table import NOTHING, Table, mean, number, signed
from fragility_paper.tables.quantities import models_of

STAGES = ("train", "certificates", "labels")
REPEATED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("AUROC", "predictive", {"metric": "auroc", "rows": "test"}),
    ("NLL", "predictive", {"metric": "nll", "rows": "test"}),
    ("mean RCMA (`current`)", "certificate", {"metric": "rcma", "rows": "any", "reading": "current"}),
    ("flip share", "certificate", {"metric": "flip_share", "rows": "confident", "reading": "support"}),
    ("brittle share", "labels", {"metric": "brittle_share", "rule": "expected"}),
    ("AUROC of CFC-FDS", "ranking", {"metric": "auroc", "score": "cfc_fds", "rule": "expected"}),
)


def computational_cost(results: StudyResults) -> Table:
    """tab:computational_cost: passes a row by the paper's formula, what the engine asked, and seconds."""
    header = (
        "Model", "engine", "1 + G + K + \\|P\\|\\|Λ\\|", "passes asked a row", "label passes a row",
        "train, s", "certificates, s", "labels, s",
    )  # fmt: skip
    note = (
        "Passes a row are counted by the engine; a native engine asks the model less or not at all. Seconds are "
        "means a unit on one thread of a busy two-core machine: read them as ratios."
    )
    rows = tuple(_cost_row(results, model) for model in models_of(results))
    return Table("tab:computational_cost", "Cost", header, rows, note)


def _cost_row(results: StudyResults, model: str) -> tuple[str, ...]:
    asked = results.pick("cost", metric="evaluations_a_row", model=model)
    timings = results.timings[results.timings["model"] == model]
    seconds = [timings[timings["stage"] == stage]["seconds"].mean() for stage in STAGES]
    return (
        MODELS[model].title,
        ", ".join(sorted(set(asked["score"]))),
        number(mean(results.per_unit("cost", metric="passes_certificate", model=model)), 1),
        number(mean(asked["value"]), 1),
        number(mean(results.per_unit("cost", metric="passes_labels", model=model)), 0),
        *(number(spent, 1) for spent in seconds),
    )


def environments(results: StudyResults) -> Table:
    """Which units were run with which versions: numbers of trained networks depend on them in the last bits."""
    wide = results.versions.pivot(index=UNIT, columns="library", values="versions").fillna(NOTHING)
    wide = wide.drop(columns=["fragility"], errors="ignore")
    rows = []
    for versions, units in wide.groupby(list(wide.columns)):
        models = sorted(units.index.get_level_values("model").unique(), key=paper.MODEL_ORDER.index)
        used = [f"{name} {found}" for name, found in zip(wide.columns, versions, strict=True) if found != NOTHING]
        rows.append((", ".join(MODELS[name].title for name in models), str(len(units)), ", ".join(used)))
    note = "Every unit's folder records its own versions."
    return Table("environments", "Where the units were run", ("Models", "units", "versions"), tuple(rows), note)


def repeats(results: StudyResults) -> Table:
    """How far units move when they are run again on another machine."""
    header = ("Quantity", "Models", "units", "mean difference", "mean absolute difference", "largest")
    title = "Units repeated on another machine"
    if results.repeated is None:
        return Table("repeats", title, header, ((NOTHING,) * len(header),), "No unit was repeated.")
    again = StudyResults(results.repeated, results.timings, results.versions)
    rows = []
    for name, analysis, where in REPEATED:
        gap = (again.per_unit(analysis, **where) - results.per_unit(analysis, **where)).dropna()
        rows += [_gap_row(name, models, part) for models, part in _by_training(gap)]
    note = "Repeated minus reported, over units where both are defined."
    return Table("repeats", title, header, tuple(rows), note)


def _gap_row(name: str, models: str, gap: Values) -> tuple[str, ...]:
    size = gap.abs()
    return (name, models, str(len(gap)), signed(mean(gap)), number(mean(size), 4), number(size.max(), 4))


def _by_training(values: Values) -> list[tuple[str, Values]]:
    """Values of networks trained with torch, and of the other models; empty parts are left out."""
    torch = values.index.get_level_values("model").isin([n for n, spec in MODELS.items() if spec.library == "torch"])
    parts = (("ResMLP, FR-ResMLP", values[torch]), ("others", values[~torch]))
    return [(name, part) for name, part in parts if len(part)]
