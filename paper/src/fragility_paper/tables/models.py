"""Tables of the models themselves: predictive quality, mean RCMA, and which model wins at what."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fragility_paper import paper_values as paper
from fragility_paper.data import DATASETS
from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import NOTHING, Table, beside, mean, number
from fragility_paper.tables.quantities import (
    cell_means,
    counted,
    datasets_of,
    gaps_to_paper,
    models_of,
    predictive_auroc,
    rcma_gap,
    rcma_values,
    winners,
)

Printed = Mapping[str, Mapping[str, float]]


def main_auroc(results: StudyResults) -> Table:
    """tab:alphacast_style_main, AUROC."""
    key, title = "tab:alphacast_style_main (AUROC)", "Predictive AUROC, ours (paper)"
    return _dataset_model_table(key, title, predictive_auroc(results), paper.MAIN_AUROC, results)


def main_rcma(results: StudyResults, reading: str = "current") -> Table:
    """tab:alphacast_style_main, RCMA."""
    key = f"tab:alphacast_style_main (RCMA, {reading})"
    title = f"Mean RCMA with the reading `{reading}`, ours (paper)"
    return _dataset_model_table(key, title, rcma_values(results, reading), paper.MAIN_RCMA, results)


def _dataset_model_table(key: str, title: str, values: Values, printed: Printed, results: StudyResults) -> Table:
    cells, datasets = cell_means(values), datasets_of(results)
    rows = tuple(
        (
            MODELS[model].title,
            *(beside(float(cells.get((name, model), math.nan)), printed[model][name]) for name in datasets),
        )
        for model in models_of(results)
    )
    known = [gap for gap in gaps_to_paper(values, printed) if not math.isnan(gap)]
    note = (
        f"Mean absolute difference to the paper {number(mean(known))} over {len(known)} dataset-model pairs; "
        f"means over {counted(values)}."
    )
    return Table(key, title, ("Model", *(DATASETS[name].title for name in datasets)), rows, note)


def readings(results: StudyResults) -> Table:
    rows = tuple(
        (
            f"`{reading}`",
            *(
                number(mean(results.per_unit("certificate", metric=metric, rows=place, reading=reading)))
                for place in ("any", "confident")
                for metric in ("rcma", "rcma_median")
            ),
            number(rcma_gap(results, reading)),
        )
        for reading in ("current", "support", "support_unbounded")
    )
    header = (
        "Reading",
        "mean, any row",
        "median, any row",
        "mean, confident",
        "median, confident",
        "mean gap to paper",
    )
    note = (
        "Means over units of a unit's mean and median RCMA; the last column compares the first with the paper's table."
    )
    return Table("readings", "The three readings of the margin", header, rows, note)


def nominal_vs_fragility(results: StudyResults) -> Table:
    """tab:nominal_vs_fragility."""
    literal, support = winners(results), winners(results, "support")
    rows = tuple(
        (
            DATASETS[name].title,
            _title(best),
            _title(paper.BEST_AUROC.get(name)),
            _title(calm),
            _title(support[name][1]),
            _title(paper.LOWEST_RCMA.get(name)),
        )
        for name, (best, calm) in literal.items()
    )
    header = ("Data set", "Best AUROC", "paper", "Lowest RCMA (`current`)", "Lowest RCMA (`support`)", "paper")
    different = sum(best != calm for best, calm in literal.values())
    note = f"The best model by AUROC is not the one with the lowest RCMA on {different} of {len(literal)} data sets."
    return Table("tab:nominal_vs_fragility", "Best nominal model against lowest RCMA", header, rows, note)


def _title(model: str | None) -> str:
    return NOTHING if model is None else MODELS[model].title
