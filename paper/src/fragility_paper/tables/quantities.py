"""Quantities that several tables, figures and the page share: values by score, the strongest baseline, comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fragility_paper import paper_values as paper
from fragility_paper.library import PairedDifference, paired_bootstrap
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import mean

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
    "cfc_exposure": "Exposure (ours)",
    "independent_loss": "Independent loss alone (exposure)",
    "common_loss": "Common loss alone (exposure)",
    "cfc_exposure_current": "Exposure (ours), reading `current`",
    "cfc_rcma_current": "CFC-RCMA, reading `current`",
    "cfc_fds_current": "CFC-FDS, reading `current`",
    "inverse_flip_budget": "Flip budget alone (1/k*)",
    "inverse_threshold": "Degradation threshold alone",
    "cfc_fds_smallest": "CFC-FDS with k_min",
    "inverse_smallest_set": "Smallest set alone (1/k_min)",
    "p_flip_0.05": "P_flip at 0.05",
    "p_flip_0.1": "P_flip at 0.1",
    "p_flip_0.3": "P_flip at 0.3",
}


def is_certificate(score: str) -> bool:
    """Certificate scores are never turned round."""
    return score.startswith(("cfc", "inverse", "p_flip")) or score in ("independent_loss", "common_loss")


def datasets_of(results: StudyResults) -> list[str]:
    return results.present("dataset", paper.DATASET_ORDER)


def models_of(results: StudyResults) -> list[str]:
    return results.present("model", paper.MODEL_ORDER)


def counted(values: Values) -> str:
    """How many units a mean is over, and how many it had to leave out."""
    undefined = int(values.isna().sum())
    return f"{len(values) - undefined} units" + (f", {undefined} undefined" if undefined else "")


def at_level(values: Values, level: str, names: Sequence[str]) -> Values:
    """The values of some data sets or models."""
    return values[values.index.get_level_values(level).isin(list(names))]


def ranking_values(
    results: StudyResults,
    score: str,
    orientation: str = "paper",
    *,
    metric: str = "auroc",
    rule: str = "expected",
    analysis: str = "ranking",
) -> Values:
    """One ranking metric of one score, a value a unit."""
    return results.per_unit(analysis, score=score, orientation=orientation, metric=metric, rule=rule)


def oriented_values(
    results: StudyResults, score: str, *, rule: str = "expected", analysis: str = "ranking", metric: str = "auroc"
) -> Values:
    """As :func:`ranking_values`, baselines turned toward brittleness, certificate scores as they are."""
    turn = "paper" if is_certificate(score) else "oriented"
    return ranking_values(results, score, turn, metric=metric, rule=rule, analysis=analysis)


def strongest(
    results: StudyResults, scores: Sequence[str], *, rule: str = "expected", analysis: str = "ranking"
) -> str:
    """The score with the highest mean oriented AUROC over units: one baseline for all of them."""
    return max(scores, key=lambda score: mean(oriented_values(results, score, rule=rule, analysis=analysis)))


def strongest_baselines(results: StudyResults) -> tuple[str, str]:
    """The strongest confidence score, and the strongest score that is no certificate's."""
    return strongest(results, CONFIDENCE), strongest(results, (*CONFIDENCE, *PERTURBATION))


def compare(results: StudyResults, score: str, baseline: str, orientation: str) -> PairedDifference:
    """Paired bootstrap over units of AUROC(score) - AUROC(baseline)."""
    a = ranking_values(results, score)
    b = ranking_values(results, baseline, orientation).reindex(a.index)
    return paired_bootstrap(a.to_numpy(), b.to_numpy())


def wins_over_random_order(results: StudyResults, models: Sequence[str]) -> float:
    """Share of some models' units in which FDS has a higher AUROC than random group orders."""
    gain = ranking_values(results, "cfc_fds") - ranking_values(results, "random_order", "oriented")
    known = at_level(gain, "model", models).dropna()
    return float((known > 0).mean()) if len(known) else math.nan


def cell_means(values: Values) -> Values:
    """Means by data set and model."""
    return values.groupby(["dataset", "model"]).mean()


def gaps_to_paper(values: Values, printed: Mapping[str, Mapping[str, float]]) -> list[float]:
    """|ours - paper| for every data set and model that has units."""
    cells = cell_means(values).rename("ours").reset_index()
    places = zip(cells["dataset"], cells["model"], cells["ours"], strict=True)
    return [abs(ours - printed[model][dataset]) for dataset, model, ours in places]


def rcma_values(results: StudyResults, reading: str) -> Values:
    return results.per_unit("certificate", metric="rcma", rows="any", reading=reading)


def rcma_gap(results: StudyResults, reading: str) -> float:
    """Mean absolute difference between our mean RCMA and the paper's over dataset-model pairs."""
    return mean(gaps_to_paper(rcma_values(results, reading), paper.MAIN_RCMA))


def predictive_auroc(results: StudyResults) -> Values:
    return results.per_unit("predictive", metric="auroc", rows="test")


def winners(results: StudyResults, reading: str = "current") -> dict[str, tuple[str, str]]:
    """Data set -> (model with the best AUROC, model with the lowest mean RCMA)."""
    area, loss = cell_means(predictive_auroc(results)), cell_means(rcma_values(results, reading))
    return {name: (str(area[name].idxmax()), str(loss[name].idxmin())) for name in datasets_of(results)}


def weighted_mean(rows: pd.DataFrame) -> float:
    """Mean of the values that are defined, by the number of rows behind each."""
    known = rows.dropna(subset=["value"])
    weight = known["count"].sum()
    return float((known["value"] * known["count"]).sum() / weight) if weight else math.nan


def best_capture(share: float) -> float:
    """Capture@20 of a perfect ranking: min(1, 0.2 / brittle share)."""
    return math.nan if math.isnan(share) or share == 0 else min(1.0, 0.2 / share)


def dataset_means(values: Values, datasets: Sequence[str]) -> list[float]:
    means = values.groupby("dataset").mean()
    return [float(means.get(name, np.nan)) for name in datasets]
