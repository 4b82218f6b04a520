"""Tables of the ranking: which score finds the brittle rows, by data set, by model, with intervals and budgets."""

from __future__ import annotations

from collections.abc import Sequence

from fragility_paper import paper_values as paper
from fragility_paper.data import DATASETS
from fragility_paper.library import bootstrap_mean
from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults
from fragility_paper.table import NOTHING, Table, beside, interval, mean, number, signed_interval
from fragility_paper.tables.quantities import (
    CONFIDENCE,
    PERTURBATION,
    TITLES,
    at_level,
    best_capture,
    compare,
    counted,
    dataset_means,
    datasets_of,
    is_certificate,
    models_of,
    oriented_values,
    ranking_values,
    strongest_baselines,
    wins_over_random_order,
)

NOT_IN_PAPER = (
    *PERTURBATION,
    "inverse_flip_budget",
    "inverse_threshold",
    "cfc_fds_current",
    "independent_loss",
    "common_loss",
    "cfc_exposure",
)


def score_comparison(results: StudyResults, orientation: str = "paper", rule: str = "expected") -> Table:
    """tab:score_comparison: AUROC per data set averaged over models and seeds."""
    datasets, shown = datasets_of(results), results.scores((*paper.SCORE_ORDER, *NOT_IN_PAPER))
    rows = [_score_row(results, score, orientation, rule, datasets) for score in shown]
    for metric, title in (("ceiling", "Label-noise ceiling"), ("brittle_share", "Brittle share")):
        values = results.per_unit("labels", metric=metric, rule=rule)
        cells = [number(cell) for cell in dataset_means(values, datasets)]
        rows.append((f"*{title}*", *cells, number(mean(values))))
    words = "as the paper ranks" if orientation == "paper" else "oriented on validation rows"
    return Table(
        "tab:score_comparison",
        f"Brittle-case AUROC per data set, baselines {words}, label rule `{rule}`, ours (paper)",
        ("Score", *(DATASETS[name].title for name in datasets), "Mean"),
        tuple(rows),
        f"{counted(ranking_values(results, 'cfc_fds', rule=rule))}. Certificate scores are never turned round.",
    )


def _score_row(
    results: StudyResults, score: str, orientation: str, rule: str, datasets: Sequence[str]
) -> tuple[str, ...]:
    values = ranking_values(results, score, "paper" if is_certificate(score) else orientation, rule=rule)
    cells = dataset_means(values, datasets)
    printed = paper.SCORE_COMPARISON.get(score)
    if printed is None:
        shown = [number(cell) for cell in cells]
    else:
        shown = [beside(cell, printed[name]) for name, cell in zip(datasets, cells, strict=True)]
    return (TITLES[score], *shown, number(mean(values)))


def by_model(results: StudyResults) -> Table:
    """Brittle-case AUROC by model family; the paper prints no such table."""
    scores = results.scores(("max_softmax", *PERTURBATION, "cfc_rcma", "cfc_fds", "cfc_exposure"))
    rows = tuple(
        (
            MODELS[model].title,
            *(number(mean(at_level(oriented_values(results, score), "model", [model]))) for score in scores),
            number(wins_over_random_order(results, [model]), 2),
            *(
                number(mean(results.per_unit("labels", metric=metric, rule="expected", model=model)))
                for metric in ("ceiling", "brittle_share")
            ),
        )
        for model in models_of(results)
    )
    header = (
        "Model", *(TITLES[score] for score in scores), "units with FDS above random order", "ceiling", "brittle share",
    )  # fmt: skip
    note = "Baselines oriented; means over the units where they are defined."
    return Table("by-model", "Brittle-case AUROC by model family", header, rows, note)


def main_ci(results: StudyResults) -> Table:
    """tab:main_ci_summary: means with intervals and paired differences to three comparators."""
    confidence, anything = strongest_baselines(results)
    comparators = (("negative_energy", "paper"), (confidence, "oriented"), (anything, "oriented"))
    shown = results.scores((*paper.SCORE_ORDER, *PERTURBATION, "cfc_exposure"))
    rows = tuple(_interval_row(results, score, comparators) for score in shown)
    header = (
        "Score", "AUROC as the paper ranks [95%]", "AUROC oriented [95%]", "Paper",
        "difference to Neg-energy as the paper ranks; share ≤ 0",
        f"to {TITLES[confidence]}, oriented; share ≤ 0",
        f"to {TITLES[anything]}, oriented; share ≤ 0",
    )  # fmt: skip
    note = (
        f"{counted(ranking_values(results, 'cfc_fds'))}; paired bootstrap over units, 10,000 resamples. The "
        "second and third comparator are the strongest oriented confidence score and the strongest oriented score of "
        "any other kind, by mean AUROC over units. Paper: CFC-RCMA +0.080 [+0.060, +0.101]; 0.3122, CFC-FDS +0.405 "
        "[+0.394, +0.416]; 0.0000."
    )
    return Table("tab:main_ci_summary", "Means over units with bootstrap intervals", header, rows, note)


def _interval_row(results: StudyResults, score: str, comparators: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    plain = interval(bootstrap_mean(ranking_values(results, score).to_numpy()))
    printed = paper.MAIN_CI.get(score)
    shown = number(printed[0]) if printed else NOTHING
    if is_certificate(score):
        found = [compare(results, score, name, orientation) for name, orientation in comparators]
        return (TITLES[score], plain, NOTHING, shown, *(f"{signed_interval(f)}; {number(f.not_better)}" for f in found))
    turned = interval(bootstrap_mean(oriented_values(results, score).to_numpy()))
    return (TITLES[score], plain, turned, shown, *[NOTHING] * len(comparators))


def seed_variance(results: StudyResults) -> Table:
    """tab:seed_level_variance; the paper's baseline row is Neg-energy, ours the strongest of its kind."""
    best, other = strongest_baselines(results)
    printed = {best: "negative_energy", "cfc_rcma": "cfc_rcma", "cfc_fds": "cfc_fds"}
    rows = tuple(
        (
            TITLES[score],
            *_spread(results, score),
            *_win_rates(results, score, (best, other)),
            _printed_spread(printed.get(score)),
        )
        for score in results.scores((best, other, "cfc_rcma", "cfc_fds", "cfc_exposure"))
    )
    header = (
        "Score",
        "Mean ± SD",
        "95% interval",
        f"Win rate against {TITLES[best]}",
        f"against {TITLES[other]}",
        "Paper",
    )
    note = "Baselines oriented. The paper's baseline row is Neg-energy; its win rates are 0.688 and 1.000."
    return Table("tab:seed_level_variance", "Spread over units", header, rows, note)


def _spread(results: StudyResults, score: str) -> tuple[str, str]:
    found = bootstrap_mean(oriented_values(results, score).to_numpy())
    return (
        f"{number(found.mean)} ± {number(found.standard_deviation)}",
        f"[{number(found.low)}, {number(found.high)}]",
    )


def _win_rates(results: StudyResults, score: str, baselines: Sequence[str]) -> list[str]:
    """Share of units in which a certificate score has the higher AUROC; baselines are not compared."""
    if not is_certificate(score):
        return [NOTHING] * len(baselines)
    return [number(compare(results, score, name, "oriented").win_rate) for name in baselines]


def _printed_spread(score: str | None) -> str:
    if score is None:
        return NOTHING
    centre, deviation = paper.SEED_VARIANCE[score][:2]
    return f"{centre:.3f} ± {deviation:.3f}"


def review_budget(results: StudyResults) -> Table:
    """tab:review_budget_capture."""
    rows = []
    for score in results.scores((*paper.SCORE_ORDER, *PERTURBATION, "cfc_exposure")):
        if is_certificate(score):
            rows.append((TITLES[score], *_budget_cells(results, score, "paper")))
        else:
            rows.append((f"{TITLES[score]}, as the paper ranks", *_budget_cells(results, score, "paper")))
            rows.append((f"{TITLES[score]}, oriented", *_budget_cells(results, score, "oriented")))
    bound = results.per_unit("labels", metric="brittle_share", rule="expected").map(best_capture)
    rows.append(("*Perfect ranking*", NOTHING, NOTHING, number(mean(bound)), NOTHING, NOTHING))
    undefined = int(ranking_values(results, "cfc_fds", metric="false_confidence_captured_20").isna().sum())
    note = (
        f"FalseConfCaptured@20 is undefined in {undefined} units that have no wrong, confident and brittle row. "
        "A perfect ranking captures min(1, 0.2 / brittle share)."
    )
    header = ("Score", "Capture@5", "Capture@10", "Capture@20", "FalseConf@20", "AURC")
    return Table("tab:review_budget_capture", "Review budget, ours (paper)", header, tuple(rows), note)


def _budget_cells(results: StudyResults, score: str, orientation: str) -> list[str]:
    ours = [mean(ranking_values(results, score, orientation, metric=metric)) for metric in paper.REVIEW_METRICS]
    printed = paper.REVIEW_BUDGET.get(score)
    if printed is None or orientation != "paper":
        return [number(value) for value in ours]
    return [beside(value, theirs) for value, theirs in zip(ours, printed, strict=True)]


def attribution(results: StudyResults) -> Table:
    """tab:attribution_baselines, on the declared group-SHAP rows."""
    rows = tuple(
        (
            TITLES[score],
            beside(mean(ranking_values(results, score, analysis="attribution")), paper.ATTRIBUTION.get(score)),
            _oriented_cell(results, score, "attribution"),
        )
        for score in (
            *CONFIDENCE,
            *PERTURBATION,
            "group_shap",
            *results.scores(("cfc_rcma", "cfc_fds", "cfc_exposure")),
        )
    )
    most = int(results.pick("attribution", score="group_shap", metric="auroc")["count"].max())
    values = ranking_values(results, "cfc_fds", analysis="attribution")
    note = f"On at most {most} confident rows a unit of the extra seeds; {counted(values)}."
    header = ("Score", "AUROC as the paper ranks (paper)", "AUROC oriented")
    return Table("tab:attribution_baselines", "Perturbation and attribution baselines", header, rows, note)


def _oriented_cell(results: StudyResults, score: str, analysis: str) -> str:
    if is_certificate(score):
        return NOTHING
    return number(mean(oriented_values(results, score, analysis=analysis)))


def naturalistic(results: StudyResults) -> Table:
    """tab:naturalistic_proxy."""
    certificate = results.scores(("cfc_rcma", "cfc_fds", "cfc_exposure"))
    scores = ("max_softmax", "negative_energy", *PERTURBATION, "group_shap", *certificate)
    values = ranking_values(results, "cfc_fds", analysis="naturalistic")
    shares = results.per_unit("naturalistic_labels", metric="brittle_share", rule="expected")
    note = (
        f"{counted(values)} (undefined: no or only brittle rows). Mean brittle share {number(mean(shares))}. "
        "GroupSHAP on its declared rows."
    )
    header = ("Score", "Adult, Bank, HELOC (paper)", "All eligible (paper)", "All eligible, oriented")
    rows = tuple(_naturalistic_row(results, score) for score in scores)
    return Table("tab:naturalistic_proxy", "Naturalistic field unavailability", header, rows, note)


def _naturalistic_row(results: StudyResults, score: str) -> tuple[str, ...]:
    analysis = "naturalistic_attribution" if score == "group_shap" else "naturalistic"
    plain = ranking_values(results, score, analysis=analysis)
    three = at_level(plain, "dataset", ["adult", "bank_marketing", "heloc"])
    on_three, on_all = paper.NATURALISTIC.get(score, (None, None))
    return (
        TITLES[score],
        beside(mean(three), on_three),
        beside(mean(plain), on_all),
        _oriented_cell(results, score, analysis),
    )
