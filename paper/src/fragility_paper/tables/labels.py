"""Tables of the labels: how many rows are brittle, how noisy that is, and what thresholds and clipping do to it."""

from __future__ import annotations

from fragility_paper.data import DATASETS
from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults
from fragility_paper.table import Table, mean, number
from fragility_paper.tables.quantities import datasets_of, models_of, weighted_mean


def label_table(results: StudyResults) -> Table:
    """How many rows are brittle, how noisy that label is, and what a perfect ranking could capture."""
    rows = tuple(_label_row(results, name) for name in datasets_of(results))
    header = (
        "Data set", "expected: brittle share", "ceiling", "agreement",
        "any: brittle share", "ceiling", "agreement", "confident share", "error among confident",
    )  # fmt: skip
    note = (
        "Ceiling: AUROC of the rule's own statistic over an independent set of draws. Agreement: how often the "
        "independent set gives the same label. Confident: probability of at least 0.90."
    )
    return Table("labels", "The labels: brittle share and noise", header, rows, note)


def _label_row(results: StudyResults, dataset: str) -> tuple[str, ...]:
    labels = [
        results.per_unit("labels", metric=metric, rule=rule, dataset=dataset)
        for rule in ("expected", "any")
        for metric in ("brittle_share", "ceiling", "agreement")
    ]
    confident = [
        results.per_unit("predictive", metric=metric, dataset=dataset)
        for metric in ("confident_share", "confident_error")
    ]
    return (DATASETS[dataset].title, *(number(mean(values)) for values in (*labels, *confident)))


def saturation(results: StudyResults) -> Table:
    """How much of the brittle label comes from margins at their largest possible value."""
    metrics = ("saturated_share", "brittle_if_saturated", "brittle_if_not", "brittle_without_flip")
    rows = tuple(
        (
            MODELS[model].title,
            *(
                number(weighted_mean(results.pick("saturation", metric=metric, model=model, rule="expected")))
                for metric in metrics
            ),
        )
        for model in models_of(results)
    )
    header = (
        "Model", "rows with probability 1", "brittle among them", "brittle among the others",
        "brittle rows that never flip on their path",
    )  # fmt: skip
    note = (
        "Shares of all confident rows of a model, rule `expected`. Probability 1 means a margin of at least 27.6; "
        "clipping at 1e-12 allows no more than 27.63."
    )
    return Table("saturation", "Saturated probabilities", header, rows, note)


def threshold_grid(results: StudyResults, rule: str = "expected") -> Table:
    """Threshold and severity sensitivity: FDS, exposure and oriented max-softmax, with the brittle share."""
    rows = tuple(
        (
            f"{severity:.1f}",
            f"{tau_p:.2f}",
            *(_grid_cell(results, rule, severity, tau_p, tau_kappa) for tau_kappa in (0.25, 0.50, 0.75)),
        )
        for severity in (0.1, 0.3, 0.5)
        for tau_p in (0.85, 0.90, 0.95)
    )
    header = ("Severity", "confidence ≥", "collapse ≥ 0.25", "collapse ≥ 0.50", "collapse ≥ 0.75")
    note = (
        "Each cell: AUROC of FDS / of exposure / of max-softmax oriented / brittle share. Means over the units where "
        "it is defined; on the declared extra rows."
    )
    title = f"Thresholds and severities, label rule `{rule}`"
    return Table("app:threshold_sensitivity", title, header, rows, note)


def _grid_cell(results: StudyResults, rule: str, severity: float, tau_p: float, tau_kappa: float) -> str:
    return " / ".join(number(value) for value in grid_point(results, rule, severity, tau_p, tau_kappa))


def grid_point(
    results: StudyResults, rule: str, severity: float, tau_p: float, tau_kappa: float
) -> tuple[float, float, float, float]:
    """Mean AUROC of FDS, of exposure, of oriented max-softmax, and mean brittle share in one cell of the grid."""
    where = {"rule": rule, "severity": severity, "tau_p": tau_p, "tau_kappa": tau_kappa}
    return (
        mean(results.per_unit("grid", metric="auroc", score="cfc_fds", **where)),
        mean(results.per_unit("grid", metric="auroc", score="cfc_exposure", **where)),
        mean(results.per_unit("grid", metric="auroc", score="max_softmax", **where)),
        mean(results.per_unit("grid", metric="brittle_share", **where)),
    )
