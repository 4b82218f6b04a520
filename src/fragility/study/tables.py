"""The paper's tables from the tidy results, each beside the paper's printed value.

Nothing here trains or audits: a table is a function of the tidy results (:mod:`fragility.study.tidy`). Where a unit's
value is undefined (no brittle row among its confident rows, say) it is left out of the mean and counted in the note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fragility.errors import DataError
from fragility.ranking import MeanInterval, PairedDifference, bootstrap_mean, paired_bootstrap
from fragility.study import paper_values as paper
from fragility.study.datasets import DATASETS, dataset_spec
from fragility.study.models import MODELS, model_spec

RESULTS_FILE, TIMINGS_FILE, VERSIONS_FILE = "results.parquet", "timings.parquet", "versions.parquet"
REPEATED_FILE = "repeated.parquet"
UNIT = ["dataset", "model", "seed"]
CONFIDENCE = ("max_softmax", "negative_entropy", "margin", "negative_energy")
PERTURBATION = ("random_order", "one_step_drop", "permutation_order")
TITLES: Mapping[str, str] = {
    "max_softmax": "Max-softmax",
    "negative_entropy": "Neg-entropy",
    "margin": "Margin",
    "negative_energy": "Neg-energy",
    "energy_of_log_probabilities": "log-sum-exp of log-probabilities (a constant)",
    "random_order": "Random group order",
    "one_step_drop": "One-step margin drop",
    "permutation_order": "Permutation importance order",
    "group_shap": "GroupSHAP aggregate",
    "cfc_rcma": "CFC-RCMA",
    "cfc_fds": "CFC-FDS",
    "cfc_rcma_current": "CFC-RCMA, reading `current`",
    "cfc_fds_current": "CFC-FDS, reading `current`",
    "inverse_flip_budget": "Flip budget alone (1/k*)",
    "inverse_threshold": "Degradation threshold alone",
}


# ------------------------------------------------------------------ data


@dataclass(frozen=True, slots=True, eq=False)
class StudyResults:
    """Tidy results, timings and library versions of the finished units."""

    table: pd.DataFrame
    timings: pd.DataFrame
    versions: pd.DataFrame
    repeated: pd.DataFrame | None = None  # tidy results of units that were run again on another machine

    @property
    def units(self) -> pd.DataFrame:
        return self.table[UNIT].drop_duplicates().reset_index(drop=True)

    def pick(self, analysis: str, **where: Any) -> pd.DataFrame:
        """Rows of one analysis with the given settings."""
        found = self.table[self.table["analysis"] == analysis]
        for name, value in where.items():
            keep = found[name].isin(list(value)) if isinstance(value, (tuple, list)) else found[name] == value
            found = found[keep]
        return found

    def per_unit(self, analysis: str, **where: Any) -> pd.Series:
        """One value a unit, indexed by unit; refuses settings that leave several."""
        series = self.pick(analysis, **where).set_index(UNIT)["value"]
        if series.index.has_duplicates:
            raise DataError(f"{analysis} with {where} leaves several values a unit; name more settings")
        return series


def save_results(results: StudyResults, folder: str | Path) -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    results.table.to_parquet(place / RESULTS_FILE, index=False, compression="zstd")
    results.timings.to_parquet(place / TIMINGS_FILE, index=False, compression="zstd")
    results.versions.to_parquet(place / VERSIONS_FILE, index=False, compression="zstd")
    if results.repeated is not None:
        results.repeated.to_parquet(place / REPEATED_FILE, index=False, compression="zstd")


def load_results(folder: str | Path) -> StudyResults:
    """Results that :func:`save_results` wrote."""
    place = Path(folder)
    if not (place / RESULTS_FILE).is_file():
        raise DataError(
            f"{place / RESULTS_FILE} not found; make it with `fragility study tables RUN --results {place}`"
        )
    table, timings, versions = (pd.read_parquet(place / name) for name in (RESULTS_FILE, TIMINGS_FILE, VERSIONS_FILE))
    again = place / REPEATED_FILE
    return StudyResults(table, timings, versions, pd.read_parquet(again) if again.is_file() else None)


# ------------------------------------------------------------------ a table


@dataclass(frozen=True, slots=True)
class Table:
    """One table, ready to print: key names the paper's label."""

    key: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise DataError(f"table {self.key!r}: a row has {len(row)} cells, the header {len(self.header)}")

    def to_markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        lines += ["| " + " | ".join(self.header) + " |", "|---" + "|---:" * (len(self.header) - 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines) + "\n"

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.rows), columns=list(self.header))


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:+.3f}"


def beside(ours: float | None, printed: float | None, digits: int = 3) -> str:
    """Our value with the paper's in brackets."""
    return f"{number(ours, digits)} ({number(printed, digits)})"


def interval(found: MeanInterval | PairedDifference, sign: bool = False) -> str:
    write: Callable[[float], str] = signed if sign else number
    return f"{write(found.mean)} [{write(found.low)}, {write(found.high)}]"


def mean(values: Iterable[float]) -> float:
    known = np.asarray([v for v in values if not math.isnan(v)])
    return float(known.mean()) if len(known) else math.nan


def _counted(values: pd.Series) -> str:
    undefined = int(values.isna().sum())
    return f"{len(values) - undefined} units" + (f", {undefined} undefined" if undefined else "")


def _present(names: Sequence[str], results: StudyResults, column: str) -> list[str]:
    there = set(results.table[column])
    return [name for name in names if name in there]


# ------------------------------------------------------------------ tab:alphacast_style_main


def main_auroc(results: StudyResults) -> Table:
    values = results.per_unit("predictive", metric="auroc", rows="test")
    return _dataset_model_table(
        "tab:alphacast_style_main (AUROC)", "Predictive AUROC, ours (paper)", values, paper.MAIN_AUROC, results
    )


def main_rcma(results: StudyResults, reading: str = "current") -> Table:
    values = results.per_unit("certificate", metric="rcma", rows="any", reading=reading)
    return _dataset_model_table(
        f"tab:alphacast_style_main (RCMA, {reading})",
        f"Mean RCMA with the reading `{reading}`, ours (paper)",
        values,
        paper.MAIN_RCMA,
        results,
    )


def _dataset_model_table(
    key: str, title: str, values: pd.Series, printed: Mapping[str, Mapping[str, float]], results: StudyResults
) -> Table:
    cells = values.groupby(["dataset", "model"]).mean()
    datasets = _present(paper.DATASET_ORDER, results, "dataset")
    rows, gaps = [], []
    for model in _present(paper.MODEL_ORDER, results, "model"):
        row = [MODELS[model].title]
        for dataset in datasets:
            ours = float(cells.get((dataset, model), math.nan))
            row.append(beside(ours, printed[model][dataset]))
            gaps.append(abs(ours - printed[model][dataset]))
        rows.append(tuple(row))
    known = [gap for gap in gaps if not math.isnan(gap)]
    note = (
        f"Mean absolute difference to the paper {number(mean(known))} over {len(known)} dataset-model pairs; "
        f"means over {_counted(values)}."
    )
    return Table(key, title, ("Model", *(DATASETS[name].title for name in datasets)), tuple(rows), note)


def rcma_gap(results: StudyResults, reading: str) -> float:
    """Mean absolute difference between our mean RCMA and the paper's over dataset-model pairs."""
    cells = results.per_unit("certificate", metric="rcma", rows="any", reading=reading)
    means = cells.groupby(["dataset", "model"]).mean()
    frame = means.rename("ours").reset_index()
    printed = [paper.MAIN_RCMA[m][d] for d, m in zip(frame["dataset"], frame["model"], strict=True)]
    return mean((frame["ours"] - np.asarray(printed)).abs())


def readings(results: StudyResults) -> Table:
    rows = []
    for reading in ("current", "support", "support_unbounded"):
        row = [f"`{reading}`"]
        for place in ("any", "confident"):
            for metric in ("rcma", "rcma_median"):
                row.append(number(mean(results.per_unit("certificate", metric=metric, rows=place, reading=reading))))
        rows.append((*row, number(rcma_gap(results, reading))))
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
    return Table("readings", "The three readings of the margin", header, tuple(rows), note)


# ------------------------------------------------------------------ ranking


def ranking_values(
    results: StudyResults, score: str, orientation: str = "paper", *, metric: str = "auroc", rule: str = "expected",
    analysis: str = "ranking",
) -> pd.Series:  # fmt: skip
    return results.per_unit(analysis, score=score, orientation=orientation, metric=metric, rule=rule)


def score_comparison(results: StudyResults, orientation: str = "paper", rule: str = "expected") -> Table:
    """tab:score_comparison: AUROC per data set averaged over models and seeds."""
    datasets = _present(paper.DATASET_ORDER, results, "dataset")
    rows = []
    for score in paper.SCORE_ORDER:
        turn = "paper" if score.startswith("cfc") else orientation
        values = ranking_values(results, score, turn, rule=rule)
        rows.append(
            (TITLES[score], *_by_dataset(values, datasets, paper.SCORE_COMPARISON[score]), number(mean(values)))
        )
    for score in (*PERTURBATION, "inverse_flip_budget", "inverse_threshold", "cfc_fds_current"):
        turn = orientation if score in PERTURBATION else "paper"
        values = ranking_values(results, score, turn, rule=rule)
        rows.append((TITLES[score], *_by_dataset(values, datasets, None), number(mean(values))))
    for metric, title in (("ceiling", "Label-noise ceiling"), ("brittle_share", "Brittle share")):
        values = results.per_unit("labels", metric=metric, rule=rule)
        rows.append((f"*{title}*", *_by_dataset(values, datasets, None), number(mean(values))))
    words = "as the paper ranks" if orientation == "paper" else "oriented on validation rows"
    values = ranking_values(results, "cfc_fds", rule=rule)
    return Table(
        "tab:score_comparison",
        f"Brittle-case AUROC per data set, baselines {words}, label rule `{rule}`, ours (paper)",
        ("Score", *(DATASETS[name].title for name in datasets), "Mean"),
        tuple(rows),
        f"{_counted(values)}. Certificate scores are never turned round.",
    )


def _by_dataset(values: pd.Series, datasets: Sequence[str], printed: Mapping[str, float] | None) -> list[str]:
    means = values.groupby("dataset").mean()
    cells = [float(means.get(name, math.nan)) for name in datasets]
    if printed is None:
        return [number(cell) for cell in cells]
    return [beside(cell, printed[name]) for name, cell in zip(datasets, cells, strict=True)]


def by_model(results: StudyResults) -> Table:
    """Brittle-case AUROC by model family; the paper prints no such table."""
    scores = ("max_softmax", *PERTURBATION, "cfc_rcma", "cfc_fds")
    rows = []
    for model in _present(paper.MODEL_ORDER, results, "model"):
        cells = []
        for score in scores:
            values = ranking_values(results, score, "paper" if score.startswith("cfc") else "oriented")
            cells.append(number(mean(values[values.index.get_level_values("model") == model])))
        wins = _wins(results, "cfc_fds", "random_order", model)
        labels = [
            number(mean(results.per_unit("labels", metric=metric, rule="expected", model=model)))
            for metric in ("ceiling", "brittle_share")
        ]
        rows.append((MODELS[model].title, *cells, number(wins, 2), *labels))
    header = (
        "Model", *(TITLES[score] for score in scores), "units with FDS above random order", "ceiling", "brittle share",
    )  # fmt: skip
    note = "Baselines oriented; means over the units where they are defined."
    return Table("by-model", "Brittle-case AUROC by model family", header, tuple(rows), note)


def saturation(results: StudyResults) -> Table:
    """How much of the brittle label comes from margins at their largest possible value."""
    metrics = ("saturated_share", "brittle_if_saturated", "brittle_if_not", "brittle_without_flip")
    rows = []
    for model in _present(paper.MODEL_ORDER, results, "model"):
        cells = [
            number(weighted_mean(results.pick("saturation", metric=metric, model=model, rule="expected")))
            for metric in metrics
        ]
        rows.append((MODELS[model].title, *cells))
    header = (
        "Model", "rows with probability 1", "brittle among them", "brittle among the others",
        "brittle rows that never flip on their path",
    )  # fmt: skip
    note = (
        "Shares of all confident rows of a model, rule `expected`. Probability 1 means a margin of at least 27.6; "
        "clipping at 1e-12 allows no more than 27.63."
    )
    return Table("saturation", "Saturated probabilities", header, tuple(rows), note)


def _wins(results: StudyResults, score: str, baseline: str, model: str) -> float:
    """Share of a model's units in which ``score`` has the higher AUROC."""
    gain = ranking_values(results, score) - ranking_values(results, baseline, "oriented")
    known = gain[gain.index.get_level_values("model") == model].dropna()
    return float((known > 0).mean()) if len(known) else math.nan


def strongest(
    results: StudyResults, scores: Sequence[str], *, rule: str = "expected", analysis: str = "ranking"
) -> str:
    """The score with the highest mean oriented AUROC over units: one baseline for all of them."""
    return max(scores, key=lambda s: mean(ranking_values(results, s, "oriented", rule=rule, analysis=analysis)))


def compare(
    results: StudyResults,
    score: str,
    baseline: str,
    orientation: str,
    *,
    rule: str = "expected",
    analysis: str = "ranking",
) -> PairedDifference:
    """Paired bootstrap over units of AUROC(score) - AUROC(baseline)."""
    a = ranking_values(results, score, rule=rule, analysis=analysis)
    b = ranking_values(results, baseline, orientation, rule=rule, analysis=analysis).reindex(a.index)
    return paired_bootstrap(a.to_numpy(), b.to_numpy())


def main_ci(results: StudyResults) -> Table:
    """tab:main_ci_summary: means with intervals and paired differences to three comparators."""
    confidence = strongest(results, CONFIDENCE)
    anything = strongest(results, (*CONFIDENCE, *PERTURBATION))
    rows = []
    for score in (*paper.SCORE_ORDER, *PERTURBATION):
        turn = "paper" if score.startswith("cfc") else "oriented"
        plain = bootstrap_mean(ranking_values(results, score).to_numpy())
        turned = (
            interval(bootstrap_mean(ranking_values(results, score, turn).to_numpy())) if turn == "oriented" else "–"
        )
        printed = paper.MAIN_CI.get(score)
        row = [TITLES[score], interval(plain), turned, f"{number(printed[0])}" if printed else "–"]
        if score.startswith("cfc"):
            for name, orientation in (("negative_energy", "paper"), (confidence, "oriented"), (anything, "oriented")):
                found = compare(results, score, name, orientation)
                row.append(f"{interval(found, sign=True)}; {number(found.not_better)}")
        else:
            row += ["–"] * 3
        rows.append(tuple(row))
    header = (
        "Score", "AUROC as the paper ranks [95%]", "AUROC oriented [95%]", "Paper",
        "difference to Neg-energy as the paper ranks; share ≤ 0",
        f"to {TITLES[confidence]}, oriented; share ≤ 0",
        f"to {TITLES[anything]}, oriented; share ≤ 0",
    )  # fmt: skip
    note = (
        f"{_counted(ranking_values(results, 'cfc_fds'))}; paired bootstrap over units, 10,000 resamples. The "
        f"second and third "
        "comparator are the strongest oriented confidence score and the strongest oriented score of any other kind, by "
        "mean AUROC over units. Paper: CFC-RCMA +0.080 [+0.060, +0.101]; 0.3122, CFC-FDS +0.405 [+0.394, "
        "+0.416]; 0.0000."
    )
    return Table("tab:main_ci_summary", "Means over units with bootstrap intervals", header, tuple(rows), note)


def seed_variance(results: StudyResults) -> Table:
    """tab:seed_level_variance."""
    best = strongest(results, CONFIDENCE)
    other = strongest(results, (*CONFIDENCE, *PERTURBATION))
    rows = []
    for score, turn in ((best, "oriented"), (other, "oriented"), ("cfc_rcma", "paper"), ("cfc_fds", "paper")):
        found = bootstrap_mean(ranking_values(results, score, turn).to_numpy())
        wins = [
            number(compare(results, score, name, "oriented").win_rate) if score.startswith("cfc") else "–"
            for name in (best, other)
        ]
        printed = paper.SEED_VARIANCE.get(score if score.startswith("cfc") else "negative_energy")
        shown = "–" if printed is None or score == other != best else f"{printed[0]:.3f} ± {printed[1]:.3f}"
        spread = f"{number(found.mean)} ± {number(found.standard_deviation)}"
        rows.append((TITLES[score], spread, f"[{number(found.low)}, {number(found.high)}]", *wins, shown))
    header = (
        "Score",
        "Mean ± SD",
        "95% interval",
        f"Win rate against {TITLES[best]}",
        f"against {TITLES[other]}",
        "Paper",
    )
    note = "Baselines oriented. The paper's baseline row is Neg-energy; its win rates are 0.688 and 1.000."
    return Table("tab:seed_level_variance", "Spread over units", header, tuple(rows), note)


def review_budget(results: StudyResults) -> Table:
    """tab:review_budget_capture."""
    rows = []
    for score in (*paper.SCORE_ORDER, *PERTURBATION):
        for turn in ("paper",) if score.startswith("cfc") else ("paper", "oriented"):
            printed = paper.REVIEW_BUDGET.get(score, (None,) * 5) if turn == "paper" else (None,) * 5
            cells = [
                beside(mean(ranking_values(results, score, turn, metric=metric)), value) if value is not None
                else number(mean(ranking_values(results, score, turn, metric=metric)))
                for metric, value in zip(paper.REVIEW_METRICS, printed, strict=True)
            ]  # fmt: skip
            label = TITLES[score] if score.startswith("cfc") else f"{TITLES[score]}, {_turn(turn)}"
            rows.append((label, *cells))
    bound = results.per_unit("labels", metric="brittle_share", rule="expected").map(best_capture)
    rows.append(("*Perfect ranking*", "–", "–", number(mean(bound)), "–", "–"))
    undefined = int(ranking_values(results, "cfc_fds", metric="false_confidence_captured_20").isna().sum())
    note = (
        f"FalseConfCaptured@20 is undefined in {undefined} units that have no wrong, confident and brittle row. "
        f"A perfect "
        "ranking captures min(1, 0.2 / brittle share)."
    )
    header = ("Score", "Capture@5", "Capture@10", "Capture@20", "FalseConf@20", "AURC")
    return Table("tab:review_budget_capture", "Review budget, ours (paper)", header, tuple(rows), note)


def best_capture(share: float) -> float:
    """Capture@20 of a perfect ranking: min(1, 0.2 / brittle share)."""
    return math.nan if math.isnan(share) or share == 0 else min(1.0, 0.2 / share)


def _turn(orientation: str) -> str:
    return "as the paper ranks" if orientation == "paper" else "oriented"


def attribution(results: StudyResults) -> Table:
    """tab:attribution_baselines, on the declared group-SHAP rows."""
    rows = []
    for score in (*CONFIDENCE, *PERTURBATION, "group_shap", "cfc_rcma", "cfc_fds"):
        plain = ranking_values(results, score, analysis="attribution")
        turned = "–"
        if not score.startswith("cfc"):
            turned = number(mean(ranking_values(results, score, "oriented", analysis="attribution")))
        rows.append((TITLES[score], beside(mean(plain), paper.ATTRIBUTION[score]), turned))
    values = ranking_values(results, "cfc_fds", analysis="attribution")
    note = (
        f"On at most {int(results.pick('attribution', score='group_shap', metric='auroc')['count'].max())} "
        f"confident rows a "
        f"unit of the extra seeds; {_counted(values)}."
    )
    header = ("Score", "AUROC as the paper ranks (paper)", "AUROC oriented")
    return Table("tab:attribution_baselines", "Perturbation and attribution baselines", header, tuple(rows), note)


def naturalistic(results: StudyResults) -> Table:
    """tab:naturalistic_proxy."""
    rows = []
    for score in ("max_softmax", "negative_energy", *PERTURBATION, "group_shap", "cfc_rcma", "cfc_fds"):
        analysis = "naturalistic_attribution" if score == "group_shap" else "naturalistic"
        plain = ranking_values(results, score, analysis=analysis)
        printed = paper.NATURALISTIC.get(score, (None, None))
        three = plain[plain.index.get_level_values("dataset").isin(["adult", "bank_marketing", "heloc"])]
        turned = "–"
        if not score.startswith("cfc"):
            turned = number(mean(ranking_values(results, score, "oriented", analysis=analysis)))
        rows.append((TITLES[score], beside(mean(three), printed[0]), beside(mean(plain), printed[1]), turned))
    values = ranking_values(results, "cfc_fds", analysis="naturalistic")
    shares = results.per_unit("naturalistic_labels", metric="brittle_share", rule="expected")
    note = (
        f"{_counted(values)} (undefined: no or only brittle rows). Mean brittle share {number(mean(shares))}. "
        f"GroupSHAP on its "
        "declared rows."
    )
    header = ("Score", "Adult, Bank, HELOC (paper)", "All eligible (paper)", "All eligible, oriented")
    return Table("tab:naturalistic_proxy", "Naturalistic field unavailability", header, tuple(rows), note)


# ------------------------------------------------------------------ nominal against fragility


def winners(results: StudyResults, reading: str = "current") -> dict[str, tuple[str, str]]:
    """Data set -> (model with the best AUROC, model with the lowest mean RCMA)."""
    area = results.per_unit("predictive", metric="auroc", rows="test").groupby(["dataset", "model"]).mean()
    loss = results.per_unit("certificate", metric="rcma", rows="any", reading=reading)
    loss = loss.groupby(["dataset", "model"]).mean()
    return {
        name: (str(area[name].idxmax()), str(loss[name].idxmin()))
        for name in _present(paper.DATASET_ORDER, results, "dataset")
    }


def nominal_vs_fragility(results: StudyResults) -> Table:
    literal, support = winners(results), winners(results, "support")
    rows = []
    for name, (best, calm) in literal.items():
        rows.append(
            (
                dataset_spec(name).title,
                _model_title(best),
                _model_title(paper.BEST_AUROC.get(name)),
                _model_title(calm),
                _model_title(support[name][1]),
                _model_title(paper.LOWEST_RCMA.get(name)),
            )
        )
    header = (
        "Data set", "Best AUROC", "paper", "Lowest RCMA (`current`)", "Lowest RCMA (`support`)", "paper",
    )  # fmt: skip
    different = sum(best != calm for best, calm in literal.values())
    note = f"The best model by AUROC is not the one with the lowest RCMA on {different} of {len(literal)} data sets."
    return Table("tab:nominal_vs_fragility", "Best nominal model against lowest RCMA", header, tuple(rows), note)


def _model_title(name: str | None) -> str:
    return "–" if name is None else model_spec(name).title


# ------------------------------------------------------------------ search, ablations, sensitivity


def greedy_exact_beam(results: StudyResults) -> Table:
    """tab:greedy_exact_beam, pooled over the models of a data set."""
    rows = []
    names = _present(paper.DATASET_ORDER, results, "dataset")
    for name in [*names, "mean"]:
        found = results.pick("search") if name == "mean" else results.pick("search", dataset=name)
        feasible = found[found["metric"] == "exact_feasible"]
        printed = paper.GREEDY_EXACT_BEAM[name]
        cells = [f"{int(feasible['value'].sum())} of {int(feasible['count'].sum())} ({printed[0]})"]
        cells += [
            beside(weighted_mean(found[found["metric"] == metric]), value)
            for metric, value in zip(paper.SEARCH_METRICS, printed[1:], strict=True)
        ]
        rows.append(("All" if name == "mean" else DATASETS[name].title, *cells))
    header = ("Data set", "Exact-feasible cases", "ExactMatch", "GreedyOver", "MeanGap", "PairMiss", "BeamImprove")
    note = (
        "A row is exact-feasible when the search ended within its declared number of states: a smallest set was "
        "found, or "
        "none exists up to K. Rows that never flip are mostly unaffordable where there are many groups."
    )
    return Table(
        "tab:greedy_exact_beam", "Greedy against exact and beam search, ours (paper)", header, tuple(rows), note
    )


def weighted_mean(rows: pd.DataFrame) -> float:
    """Mean of the values that are defined, by the number of rows behind each."""
    known = rows.dropna(subset=["value"])
    weight = known["count"].sum()
    return float((known["value"] * known["count"]).sum() / weight) if weight else math.nan


def component_ablation(results: StudyResults) -> Table:
    """tab:targeted_component_ablation over all units."""
    rows = []
    for score in ("negative_energy", "cfc_rcma", "inverse_threshold", "inverse_flip_budget", "cfc_fds"):
        values = ranking_values(results, score)
        printed = paper.COMPONENT_ABLATION[score]
        rows.append((TITLES[score], beside(mean(values), printed[0]), beside(float(values.min()), printed[1])))
    for score in ("cfc_rcma_current", "cfc_fds_current"):
        values = ranking_values(results, score)
        rows.append((TITLES[score], number(mean(values)), number(float(values.min()))))
    note = f"Ours over {_counted(ranking_values(results, 'cfc_fds'))}, the paper over nine units of 256 rows."
    header = ("Ranking signal", "Mean AUROC (paper)", "Min AUROC (paper)")
    return Table("tab:targeted_component_ablation", "Component ablation", header, tuple(rows), note)


def design_stability(results: StudyResults) -> Table:
    """tab:targeted_design_stability."""
    rows = []
    for (check, setting), printed in paper.DESIGN_STABILITY.items():
        if check == "depth":
            values = results.per_unit("depth", metric="auroc", depth=float(setting))
        elif check == "weights":
            values = results.per_unit("weights", metric="auroc", weights=setting)
        elif setting == "rank correlation":
            values = results.per_unit("temperature", metric="rank_correlation")
        else:
            values = results.per_unit("temperature", metric="auroc", variant=setting)
        label = f"K = {setting}" if check == "depth" else setting
        rows.append((check, label, beside(mean(values), printed), number(float(values.min())), _counted(values)))
    header = ("Check", "Setting", "Mean AUROC or correlation (paper)", "Minimum", "Over")
    note = "Depth and calibration on the declared extra rows, weights on all confident rows. K is at most G."
    return Table("tab:targeted_design_stability", "Design stability", header, tuple(rows), note)


def baseline_sensitivity(results: StudyResults) -> Table:
    """tab:baseline_sensitivity, with the default labels and with labels of the same baseline."""
    rows = []
    for name, printed in paper.BASELINE_SENSITIVITY.items():
        row = [name]
        for variant in ("fixed labels", "own labels"):
            where = {"metric": "auroc", "baseline": name, "variant": variant}
            ours = mean(results.per_unit("baseline", score="cfc_fds", **where))
            plain = max(mean(results.per_unit("baseline", score=s, orientation="paper", **where)) for s in CONFIDENCE)
            turned = max(
                mean(results.per_unit("baseline", score=s, orientation="oriented", **where)) for s in CONFIDENCE
            )
            row += [beside(ours, printed[0]), beside(plain, printed[1]), number(turned)]
        correlation = mean(results.per_unit("baseline", metric="rank_correlation", baseline=name))
        rows.append((*row, number(correlation)))
    header = (
        "Baseline", "FDS, fixed labels (paper)", "best confidence as the paper ranks (paper)", "best confidence "
        "oriented",
        "FDS, own labels (paper)", "best confidence as the paper ranks (paper)", "best confidence oriented",
        "rank correlation with `mean`",
    )  # fmt: skip
    note = (
        "Fixed: labels of the default (mean) baseline. Own: the label channel replaces evidence by the same "
        "baseline. The "
        "paper says labels were fixed, yet its confidence column moves with the baseline, which fixed labels cannot do."
    )
    return Table("tab:baseline_sensitivity", "Sensitivity to the baseline", header, tuple(rows), note)


def grouping_sensitivity(results: StudyResults) -> Table:
    """alg:grouping_baseline_sensitivity; the paper prints no numbers."""
    rows = []
    for name in ("raw-origin", "domain", "merged"):
        where = {"grouping": name}
        area = results.per_unit("grouping", metric="auroc", score="cfc_fds", **where)
        rows.append(
            (
                name,
                number(mean(results.per_unit("grouping", metric="groups", **where)), 1),
                number(mean(area)),
                number(mean(results.per_unit("grouping", metric="auroc", score="cfc_rcma", **where))),
                number(mean(results.per_unit("grouping", metric="rank_correlation", **where))),
                number(mean(results.per_unit("grouping", metric="flip_budget", **where)), 2),
                _counted(area),
            )
        )
    header = ("Grouping", "mean G", "FDS AUROC", "RCMA AUROC", "rank correlation with raw-origin", "mean k*", "Over")
    note = "Labels of the raw-origin grouping, held fixed. The paper describes this diagnostic and prints no values."
    return Table("alg:grouping_baseline_sensitivity", "Sensitivity to the grouping", header, tuple(rows), note)


def threshold_grid(results: StudyResults, rule: str = "expected") -> Table:
    """Threshold and severity sensitivity: FDS and oriented max-softmax, with the brittle share."""
    rows = []
    for severity in (0.1, 0.3, 0.5):
        for tau_p in (0.85, 0.90, 0.95):
            row = [f"{severity:.1f}", f"{tau_p:.2f}"]
            for tau_kappa in (0.25, 0.50, 0.75):
                where = {"rule": rule, "severity": severity, "tau_p": tau_p, "tau_kappa": tau_kappa}
                area = results.per_unit("grid", metric="auroc", score="cfc_fds", **where)
                calm = results.per_unit("grid", metric="auroc", score="max_softmax", **where)
                share = results.per_unit("grid", metric="brittle_share", **where)
                row.append(f"{number(mean(area))} / {number(mean(calm))} / {number(mean(share))}")
            rows.append(tuple(row))
    header = ("Severity", "confidence ≥", "collapse ≥ 0.25", "collapse ≥ 0.50", "collapse ≥ 0.75")
    note = (
        "Each cell: AUROC of FDS / AUROC of max-softmax oriented / brittle share. Means over the units where it "
        "is defined; "
        "on the declared extra rows."
    )
    return Table(
        "app:threshold_sensitivity", f"Thresholds and severities, label rule `{rule}`", header, tuple(rows), note
    )


def label_table(results: StudyResults) -> Table:
    """How many rows are brittle, how noisy that label is, and what a perfect ranking could capture."""
    rows = []
    for name in _present(paper.DATASET_ORDER, results, "dataset"):
        row = [DATASETS[name].title]
        for rule in ("expected", "any"):
            for metric in ("brittle_share", "ceiling", "agreement"):
                row.append(number(mean(results.per_unit("labels", metric=metric, rule=rule, dataset=name))))
        row.append(number(mean(results.per_unit("predictive", metric="confident_share", dataset=name))))
        row.append(number(mean(results.per_unit("predictive", metric="confident_error", dataset=name))))
        rows.append(tuple(row))
    header = (
        "Data set", "expected: brittle share", "ceiling", "agreement",
        "any: brittle share", "ceiling", "agreement", "confident share", "error among confident",
    )  # fmt: skip
    note = (
        "Ceiling: AUROC of the brittle rate over an independent set of draws. Agreement: how often the "
        "independent set gives "
        "the same label. Confident: probability of at least 0.90."
    )
    return Table("labels", "The labels: brittle share and noise", header, tuple(rows), note)


def bats(results: StudyResults) -> Table:
    """tab:bats_calibration."""
    rows = []
    for name, printed in paper.BATS.items():
        cells = [
            beside(mean(results.per_unit("calibration", metric=metric, score=name)), value)
            for metric, value in zip(paper.BATS_METRICS, printed, strict=True)
        ]
        extra = [
            number(mean(results.per_unit("calibration", metric=metric, score=name)))
            for metric in ("nll", "fragile_brier")
        ]
        rows.append((name, *cells, *extra))
    eta = results.per_unit("calibration", metric="eta", score="bats")
    same = results.per_unit("calibration", metric="same_label", score="bats")
    note = (
        f"{_counted(eta)}. The validation rows chose η = 0 (plain temperature scaling) in "
        f"{int((eta == 0).sum())} of them. "
        f"Predicted labels unchanged in {100 * mean(same):.1f}% of rows."
    )
    header = ("Method", "ECE", "Brier", "Fragile ECE", "Fragile NLL", "NLL", "Fragile Brier")
    return Table("tab:bats_calibration", "Brittleness-aware temperature, ours (paper)", header, tuple(rows), note)


def computational_cost(results: StudyResults) -> Table:
    """tab:computational_cost: passes a row by the paper's formula, what the engine asked, and seconds."""
    rows = []
    for name in _present(paper.MODEL_ORDER, results, "model"):
        counted = results.pick("cost", metric="evaluations_a_row", model=name)
        formula = results.per_unit("cost", metric="passes_certificate", model=name)
        labels = results.per_unit("cost", metric="passes_labels", model=name)
        mine = results.timings[results.timings["model"] == name]
        seconds = {
            stage: mine[mine["stage"] == stage]["seconds"].mean() for stage in ("train", "certificates", "labels")
        }
        rows.append(
            (
                MODELS[name].title,
                ", ".join(sorted(set(counted["score"]))),
                number(mean(formula), 1),
                number(mean(counted["value"]), 1),
                number(mean(labels), 0),
                *(number(seconds[stage], 1) for stage in ("train", "certificates", "labels")),
            )
        )
    header = (
        "Model", "engine", "1 + G + K + \\|P\\|\\|Λ\\|", "passes asked a row", "label passes a row",
        "train, s", "certificates, s", "labels, s",
    )  # fmt: skip
    note = (
        "Passes a row are counted by the engine; a native engine asks the model less or not at all. Seconds are "
        "means a unit "
        "on one thread of a busy two-core machine: read them as ratios."
    )
    return Table("tab:computational_cost", "Cost", header, tuple(rows), note)


def environments(results: StudyResults) -> Table:
    """Which units were run with which versions: numbers of trained networks depend on them in the last bits."""
    wide = results.versions.pivot(index=UNIT, columns="library", values="versions").fillna("–")
    wide = wide.drop(columns=["fragility"], errors="ignore")
    rows = []
    for version, units in wide.groupby(list(wide.columns)):
        models = sorted(units.index.get_level_values("model").unique(), key=paper.MODEL_ORDER.index)
        words = ", ".join(
            f"{name} {number_}" for name, number_ in zip(wide.columns, version, strict=True) if number_ != "–"
        )
        rows.append((", ".join(MODELS[name].title for name in models), str(len(units)), words))
    note = "Every unit's folder records its own versions."
    return Table("environments", "Where the units were run", ("Models", "units", "versions"), tuple(rows), note)


def repeats(results: StudyResults) -> Table:
    """How far units move when they are run again on another machine."""
    asked: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("AUROC", "predictive", {"metric": "auroc", "rows": "test"}),
        ("NLL", "predictive", {"metric": "nll", "rows": "test"}),
        ("mean RCMA (`current`)", "certificate", {"metric": "rcma", "rows": "any", "reading": "current"}),
        ("flip share", "certificate", {"metric": "flip_share", "rows": "confident", "reading": "support"}),
        ("brittle share", "labels", {"metric": "brittle_share", "rule": "expected"}),
        ("AUROC of CFC-FDS", "ranking", {"metric": "auroc", "score": "cfc_fds", "rule": "expected"}),
    )
    header = ("Quantity", "Models", "units", "mean difference", "mean absolute difference", "largest")
    title = "Units repeated on another machine"
    if results.repeated is None:
        return Table("repeats", title, header, (("–",) * 6,), "No unit was repeated.")
    again = StudyResults(results.repeated, results.timings, results.versions)
    rows = []
    for name, analysis, where in asked:
        gap = (again.per_unit(analysis, **where) - results.per_unit(analysis, **where)).dropna()
        for models, part in _by_training(gap):
            size = part.abs()
            rows.append(
                (name, models, str(len(part)), signed(mean(part)), number(mean(size), 4), number(size.max(), 4))
            )
    note = "Repeated minus reported, over units where both are defined."
    return Table("repeats", title, header, tuple(rows), note)


def _by_training(values: pd.Series) -> list[tuple[str, pd.Series]]:
    """Values of networks trained with torch, and of the other models; empty parts are left out."""
    torch = values.index.get_level_values("model").isin([n for n, spec in MODELS.items() if spec.library == "torch"])
    parts = (("ResMLP, FR-ResMLP", values[torch]), ("others", values[~torch]))
    return [(name, part) for name, part in parts if len(part)]


def mitigation(results: StudyResults) -> Table:
    """The auxiliary study: ResMLP against its fragility-regularised twin."""
    rows = []
    asked = (
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
    for title, analysis, where in asked:
        plain = results.per_unit(analysis, model="resmlp", **where).droplevel("model")
        aware = results.per_unit(analysis, model="fr_resmlp", **where).droplevel("model")
        shared = plain.index.intersection(aware.index)
        found = paired_bootstrap(aware.loc[shared].to_numpy(), plain.loc[shared].to_numpy())
        rows.append(
            (
                title,
                number(mean(plain.loc[shared])),
                number(mean(aware.loc[shared])),
                interval(found, sign=True),
                f"{len(shared)}",
            )
        )
    header = ("Quantity", "ResMLP", "FR-ResMLP", "difference [95%]", "pairs")
    note = "Paired by data set and seed. Brittle, flip and k* are over each model's own confident rows."
    return Table("fig:neural_ablation_app", "Fragility-regularised training", header, tuple(rows), note)


Builder = Callable[[StudyResults], Table]
TABLES: Mapping[str, Builder] = {
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


def all_tables(results: StudyResults) -> dict[str, Table]:
    """Every table, by short name, in the order of the document."""
    return {name: build(results) for name, build in TABLES.items()}
