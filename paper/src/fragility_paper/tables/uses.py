"""Tables of the secondary uses: brittleness-aware temperature, and training with the fragility penalty."""

from __future__ import annotations

from typing import Any

from fragility_paper import paper_values as paper
from fragility_paper.library import paired_bootstrap
from fragility_paper.results import StudyResults
from fragility_paper.table import Table, beside, mean, number, signed_interval
from fragility_paper.tables.quantities import counted

COMPARED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("AUROC", "predictive", {"metric": "auroc", "rows": "test"}),
    ("NLL", "predictive", {"metric": "nll", "rows": "test"}),
    ("ECE", "predictive", {"metric": "ece", "rows": "test"}),
    ("RCMA (`current`)", "certificate", {"metric": "rcma", "rows": "any", "reading": "current"}),
    ("RCMA (`support`)", "certificate", {"metric": "rcma", "rows": "any", "reading": "support"}),
    ("flip share", "certificate", {"metric": "flip_share", "rows": "confident", "reading": "support"}),
    ("mean k*", "certificate", {"metric": "flip_budget", "rows": "confident", "reading": "support"}),
    ("brittle share", "labels", {"metric": "brittle_share", "rule": "expected"}),
    ("confident share", "predictive", {"metric": "confident_share"}),
)


def bats(results: StudyResults) -> Table:
    """tab:bats_calibration."""
    rows = tuple(_calibration_row(results, name) for name in paper.BATS)
    eta = results.per_unit("calibration", metric="eta", score="bats")
    same = results.per_unit("calibration", metric="same_label", score="bats")
    note = (
        f"{counted(eta)}. The validation rows chose η = 0 (plain temperature scaling) in "
        f"{int((eta == 0).sum())} of them. Predicted labels unchanged in {100 * mean(same):.1f}% of rows."
    )
    header = ("Method", "ECE", "Brier", "Fragile ECE", "Fragile NLL", "NLL", "Fragile Brier")
    return Table("tab:bats_calibration", "Brittleness-aware temperature, ours (paper)", header, rows, note)


def _calibration_row(results: StudyResults, method: str) -> tuple[str, ...]:
    def ours(metric: str) -> float:
        return mean(results.per_unit("calibration", metric=metric, score=method))

    printed = zip(paper.BATS_METRICS, paper.BATS[method], strict=True)
    cells = [beside(ours(metric), value) for metric, value in printed]
    return (method, *cells, *(number(ours(metric)) for metric in ("nll", "fragile_brier")))


def mitigation(results: StudyResults) -> Table:
    """The auxiliary study: ResMLP against its fragility-regularised twin."""
    rows = tuple(_twin_row(results, title, analysis, where) for title, analysis, where in COMPARED)
    header = ("Quantity", "ResMLP", "FR-ResMLP", "difference [95%]", "pairs")
    note = "Paired by data set and seed. Brittle, flip and k* are over each model's own confident rows."
    return Table("fig:neural_ablation_app", "Fragility-regularised training", header, rows, note)


def _twin_row(results: StudyResults, title: str, analysis: str, where: dict[str, Any]) -> tuple[str, ...]:
    plain, aware = (
        results.per_unit(analysis, model=model, **where).droplevel("model") for model in ("resmlp", "fr_resmlp")
    )
    shared = plain.index.intersection(aware.index)
    plain, aware = plain.loc[shared], aware.loc[shared]
    found = paired_bootstrap(aware.to_numpy(), plain.to_numpy())
    return (title, number(mean(plain)), number(mean(aware)), signed_interval(found), f"{len(shared)}")
