"""The paper's tables from the tidy results, each beside the paper's printed value.

Nothing here trains or audits: a table is a function of :class:`~fragility_paper.results.StudyResults`. Where a unit's
value is undefined (no brittle row among its confident rows, say) it is left out of the mean and counted in the note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fragility_paper.plan import Study
from fragility_paper.results import StudyResults
from fragility_paper.table import Table
from fragility_paper.tables.baselines import BASELINE_TABLES
from fragility_paper.tables.design import (
    baseline_sensitivity,
    component_ablation,
    design_stability,
    greedy_exact_beam,
    grouping_sensitivity,
)
from fragility_paper.tables.exposure import (
    exposure_by_dataset,
    exposure_by_model,
    exposure_scores,
    exposure_stress,
    exposure_within,
)
from fragility_paper.tables.hardening import HARDENING_TABLES
from fragility_paper.tables.labels import label_table, saturation, threshold_grid
from fragility_paper.tables.lattice import (
    exact_ceiling,
    exact_labels,
    lattice_by_dataset,
    lattice_by_model,
    lattice_ranking,
    lattice_stress,
)
from fragility_paper.tables.mode_hardening import MODE_HARDENING_TABLES
from fragility_paper.tables.models import main_auroc, main_rcma, nominal_vs_fragility, readings
from fragility_paper.tables.modes import MODE_TABLES
from fragility_paper.tables.ranking import (
    attribution,
    by_model,
    main_ci,
    naturalistic,
    review_budget,
    score_comparison,
    seed_variance,
)
from fragility_paper.tables.running import computational_cost, environments, repeats
from fragility_paper.tables.uses import bats, mitigation

RANKING_TABLES: Mapping[str, Callable[[StudyResults], Table]] = {
    "main-auroc": main_auroc,
    "main-rcma": main_rcma,
    "readings": readings,
    "labels": label_table,
    "scores": score_comparison,
    "scores-oriented": lambda results: score_comparison(results, "oriented"),
    "scores-any-rule": lambda results: score_comparison(results, "oriented", "any"),
    "by-model": by_model,
    "saturation": saturation,
    "intervals": main_ci,
    "seeds": seed_variance,
    "review": review_budget,
    "attribution": attribution,
    "naturalistic": naturalistic,
    "exposure": exposure_scores,
    "exposure-within": exposure_within,
    "exposure-stress": exposure_stress,
    "exposure-model": exposure_by_model,
    "exposure-dataset": exposure_by_dataset,
    "lattice": lattice_by_dataset,
    "lattice-model": lattice_by_model,
    "lattice-ranking": lattice_ranking,
    "lattice-stress": lattice_stress,
    "exact-ceiling": exact_ceiling,
    "exact-labels": exact_labels,
    "nominal": nominal_vs_fragility,
    "search": greedy_exact_beam,
    "components": component_ablation,
    "design": design_stability,
    "baseline": baseline_sensitivity,
    "grouping": grouping_sensitivity,
    "grid": threshold_grid,
    "grid-any-rule": lambda results: threshold_grid(results, "any"),
    "bats": bats,
    "mitigation": mitigation,
    "cost": computational_cost,
    "environments": environments,
    "repeats": repeats,
}


TABLES: Mapping[Study, Mapping[str, Callable[[StudyResults], Table]]] = {
    "ranking": RANKING_TABLES,
    "baselines": BASELINE_TABLES,
    "hardening": HARDENING_TABLES,
    "modes": MODE_TABLES,
    "mode-hardening": MODE_HARDENING_TABLES,
}


def tables_of(results: StudyResults) -> Mapping[str, Callable[[StudyResults], Table]]:
    """The tables of the study that these results are of, by short name."""
    return TABLES[results.study]


def all_tables(results: StudyResults) -> dict[str, Table]:
    """Every table, by short name, in the order of the document."""
    return {name: build(results) for name, build in tables_of(results).items()}
