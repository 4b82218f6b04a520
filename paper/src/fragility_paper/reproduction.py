"""The page paper/pages/reproduction.md: hand-written prose with every number filled in from the tidy results."""

from __future__ import annotations

import math
from importlib.resources import files
from string import Template

import numpy as np

from fragility_paper import paper_values as paper
from fragility_paper.data import DATASETS
from fragility_paper.findings import sorted_statements
from fragility_paper.library import PairedDifference
from fragility_paper.models import MODELS
from fragility_paper.plan import PROFILES
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import mean, number, signed, signed_interval
from fragility_paper.tables import all_tables
from fragility_paper.tables.exposure import (
    ABSENT,
    exposure_findings,
    has_exposure,
)
from fragility_paper.tables.lattice import (
    SMALLEST,
    additive_units,
    flip_ceilings,
    has_lattice,
    mask_values,
    ms_a_row,
    paired,
)
from fragility_paper.tables.quantities import (
    CONFIDENCE,
    PERTURBATION,
    TITLES,
    at_level,
    best_capture,
    compare,
    gaps_to_paper,
    predictive_auroc,
    ranking_values,
    rcma_gap,
    rcma_values,
    strongest,
    strongest_baselines,
    weighted_mean,
    winners,
    wins_over_random_order,
)

DRAWS = PROFILES["paper"].draws
BINARY = tuple(name for name, spec in DATASETS.items() if len(spec.classes) == 2)


def reproduction_document(results: StudyResults) -> str:
    """The whole page as Markdown."""
    text = files("fragility_paper").joinpath("reproduction.md.in").read_text(encoding="utf-8")
    tables = {f"table_{name.replace('-', '_')}": table.to_markdown() for name, table in all_tables(results).items()}
    known = facts(results)
    agrees, differs = (Template(part).substitute(known) for part in sorted_statements(results))
    return Template(text).substitute({**known, **tables, "agrees": agrees, "differs": differs})


def facts(results: StudyResults) -> dict[str, str]:
    """Every number of the prose, by the name the template calls it."""
    return {
        **_extent(results),
        **_headline(results),
        "central_claim": _central_claim(results),
        **_exposure(results),
        **_lattice(results),
        **_agreement(results),
        **_contradictions(results),
        **_labels(results),
        **_forests(results),
        **_secondary(results),
    }


def _extent(results: StudyResults) -> dict[str, str]:
    units = results.units
    seeds = units.groupby("seed").size()
    no_rows = results.pick("labels", metric="brittle_share", state="no confident rows")
    return {
        "units": str(len(units)),
        "units_by_seed": ", ".join(f"{count} of seed {seed}" for seed, count in seeds.items()),
        "extra_units": str(len(results.pick("depth", depth=10.0, metric="auroc", score="cfc_fds"))),
        "units_without_confident": str(len(no_rows)),
        "core_hours": f"{results.timings['seconds'].sum() / 3600:.1f}",
    }


def _headline(results: StudyResults) -> dict[str, str]:
    confidence, anything = strongest_baselines(results)
    against = {
        "energy": compare(results, "cfc_fds", "negative_energy", "paper"),
        "confidence": compare(results, "cfc_fds", confidence, "oriented"),
        "anything": compare(results, "cfc_fds", anything, "oriented"),
        "rcma_confidence": compare(results, "cfc_rcma", confidence, "oriented"),
    }
    found = {
        "fds": number(mean(ranking_values(results, "cfc_fds"))),
        "fds_low": number(float(ranking_values(results, "cfc_fds").min())),
        "rcma_auroc": number(mean(ranking_values(results, "cfc_rcma"))),
        "undefined": str(int(ranking_values(results, "cfc_fds").isna().sum())),
        "best_confidence": TITLES[confidence],
        "best_confidence_auroc": number(mean(ranking_values(results, confidence, "oriented"))),
        "best_anything": TITLES[anything],
        "best_anything_auroc": number(mean(ranking_values(results, anything, "oriented"))),
        "capture_20": number(mean(ranking_values(results, "cfc_fds", metric="capture_20"))),
        "capture_20_confidence": number(mean(ranking_values(results, confidence, "oriented", metric="capture_20"))),
        "capture_20_anything": number(mean(ranking_values(results, anything, "oriented", metric="capture_20"))),
        "fds_any": number(mean(ranking_values(results, "cfc_fds", rule="any"))),
        "neg_energy_paper": number(mean(ranking_values(results, "negative_energy"))),
        "random_order": number(mean(ranking_values(results, "random_order", "oriented"))),
        "one_step": number(mean(ranking_values(results, "one_step_drop", "oriented"))),
        "permutation": number(mean(ranking_values(results, "permutation_order", "oriented"))),
        "rcma_current_auroc": number(mean(ranking_values(results, "cfc_rcma_current"))),
    }
    for name, difference in against.items():
        found.update(_difference(f"against_{name}", difference))
    return found


def _central_claim(results: StudyResults) -> str:
    """Whether certificates find what breaks better than confidence does, and by how much of what is printed."""
    confidence, _ = strongest_baselines(results)
    gain, printed = compare(results, "cfc_fds", confidence, "oriented"), paper.MAIN_DELTA["cfc_fds"][0]
    if not gain.low > 0:
        return (
            "The central claim is not shown: certificates are not above oriented confidence by an interval without 0."
        )
    size = "in kind and in size" if gain.mean >= printed - 0.05 else "in kind and not in size"
    return (
        f"The central claim holds {size}. Certificates do find confident predictions that break under held-out stress "
        "better than confidence does."
    )


def _exposure(results: StudyResults) -> dict[str, str]:
    if not has_exposure(results):
        return {
            "exposure_auroc": ABSENT,
            "exposure_text": f"Exposure is {ABSENT}: they were made before it was recorded.",
        }
    ours = mean(ranking_values(results, "cfc_exposure"))
    sentences = exposure_findings(results)
    return {"exposure_auroc": number(ours), "exposure_text": "\n".join(f"- {text}" for text in sentences)}


def _lattice(results: StudyResults) -> dict[str, str]:
    if not has_lattice(results):
        return {"lattice_text": f"The lattice is {ABSENT}: they were made before it was recorded."}
    sentences = (_decided(results), _too_large(results), *_lattice_scores(results), _exact_mask(results))
    return {"lattice_text": "\n".join(f"- {text}" for text in sentences)}


def _decided(results: StudyResults) -> str:
    lines = results.pick("lattice", metric="decided")
    return (
        f"{_percent(weighted_mean(lines))} of {int(lines['count'].sum()):,} confident rows of {len(lines)} units are "
        f"decided, at {number(ms_a_row(results, lines), 2)} ms a row on one thread."
    )


def _too_large(results: StudyResults) -> str:
    found = {
        name: weighted_mean(results.pick("lattice", metric=name))
        for name in ("greedy_over", "mean_gap", "missed_flip", "beam_improve", "beam_over_where_greedy_is")
    }
    return (
        f"The greedy k* is larger than k_min in {_percent(found['greedy_over'])} of rows, by "
        f"{number(found['mean_gap'], 2)} groups on average over all rows; in {_percent(found['missed_flip'])} the path "
        "ends without a flip although a set within its depth fails. A beam of width 8 is shorter than the path in "
        f"{_percent(found['beam_improve'])}, and misses the smallest set in "
        f"{_percent(found['beam_over_where_greedy_is'])} of the rows where the path does."
    )


def _percent(share: float) -> str:
    return f"{number(100 * share, 1)}%"


def _lattice_scores(results: StudyResults) -> list[str]:
    """What k_min does to FDS, and where P_flip stands."""
    units = additive_units(results)

    def values(score: str) -> Values:
        return ranking_values(results, score).reindex(units)

    pairs = (
        (SMALLEST, "cfc_fds", "FDS with k_min in place of k*", "FDS"),
        ("inverse_smallest_set", "inverse_flip_budget", "1/k_min alone", "1/k* alone"),
        ("p_flip_0.05", "cfc_exposure", "P_flip at 0.05", "exposure"),
        ("p_flip_0.1", "cfc_exposure", "P_flip at 0.1", "exposure"),
        ("p_flip_0.3", "cfc_exposure", "P_flip at 0.3", "exposure"),
    )
    found = []
    for score, other, words, against in pairs:
        gap = paired(values(score), values(other))
        found.append(
            f"{words} ranks brittle rows with AUROC {number(mean(values(score)))}, {signed_interval(gap)} against "
            f"{against}, higher in {100 * gap.win_rate:.0f}% of units."
        )
    return found


def _exact_mask(results: StudyResults) -> str:
    drawn, exact = (number(mean(mask_values(results, "ceiling", "expected", name))) for name in ("drawn", "exact"))
    flips = [number(value) for value in flip_ceilings(results)]
    return (
        f"Mask alone, two classes: an independent set of draws predicts the label `expected` with AUROC {drawn}, the "
        f"expected margin, without noise, with {exact}. Where any of {DRAWS} draws flips a row, an independent set "
        f"reaches {flips[0]} drawn and {flips[1]} computed; no score can be expected to pass {flips[3]}."
    )


def _difference(name: str, found: PairedDifference) -> dict[str, str]:
    return {
        name: signed_interval(found),
        f"{name}_mean": signed(found.mean),
        f"{name}_wins": f"{100 * found.win_rate:.0f}%",
        f"{name}_losses": f"{100 * found.not_better:.0f}%",
    }


def _agreement(results: StudyResults) -> dict[str, str]:
    gaps = gaps_to_paper(predictive_auroc(results), paper.MAIN_AUROC)
    chosen = winners(results)
    return {
        "auroc_gap": number(mean(gaps)),
        "auroc_worst": number(max(gaps)),
        **{f"rcma_gap_{reading}": number(rcma_gap(results, reading)) for reading in ("current", "support")},
        "rcma_unbounded": number(mean(rcma_values(results, "support_unbounded")), 1),
        "winners_differ": str(sum(best != calm for best, calm in chosen.values())),
        "winners_all": str(len(chosen)),
        "winners_list": "; ".join(
            f"{DATASETS[name].title}: {MODELS[best].title} against {MODELS[calm].title}"
            for name, (best, calm) in chosen.items()
            if best != calm
        ),
    }


def _contradictions(results: StudyResults) -> dict[str, str]:
    """The numbers that show the paper's contradictions."""
    energy, margin = (ranking_values(results, name) for name in ("negative_energy", "margin"))
    gap = at_level((energy - margin).abs(), "dataset", BINARY)
    constant = ranking_values(results, "energy_of_log_probabilities")
    oriented = mean(ranking_values(results, "max_softmax", "oriented"))
    turned = mean(max(value, 1 - value) for value in paper.SCORE_COMPARISON["max_softmax"].values())
    share = results.per_unit("labels", metric="brittle_share", rule="expected")
    share_any = results.per_unit("labels", metric="brittle_share", rule="any")
    return {
        "energy_margin_gap": f"{float(np.nanmax(gap)) if len(gap) else math.nan:.1e}",
        "binary_units": str(int(gap.notna().sum())),
        "constant_energy": number(mean(constant)),
        "max_softmax_paper": number(mean(ranking_values(results, "max_softmax"))),
        "max_softmax_oriented": number(oriented),
        "paper_turned": number(turned),
        "paper_turned_gain": signed(paper.MAIN_CI["cfc_fds"][0] - turned),
        "perfect_20": number(mean(share.map(best_capture))),
        "share": number(mean(share)),
        "share_over": str(int((share > 0.2 / 0.914).sum())),
        "share_any": number(mean(share_any)),
        "share_any_over": str(int((share_any > 0.2 / 0.914).sum())),
        "share_units": str(int(share.notna().sum())),
    }


def _labels(results: StudyResults) -> dict[str, str]:
    found = {"draws": str(DRAWS)}
    electricity = at_level(ranking_values(results, "cfc_fds"), "dataset", ["electricity"])
    ceiling = results.per_unit("labels", metric="ceiling", rule="expected", dataset="electricity")
    first = results.per_unit("path", metric="collapse", rows="confident", step=1.0)
    agreement = results.per_unit("labels", metric="agreement", rule="expected", dataset="electricity")
    found |= {
        "fds_electricity": number(mean(electricity)),
        "ceiling_electricity": number(mean(ceiling)),
        "agreement_electricity": number(mean(agreement)),
        "first_electricity": number(mean(at_level(first, "dataset", ["electricity"]))),
        "first_all": number(mean(first)),
    }
    for rule in ("expected", "any"):
        for metric in ("ceiling", "agreement"):
            found[f"{metric}_{rule}"] = number(mean(results.per_unit("labels", metric=metric, rule=rule)))
    for stressor in ("mask", "dropout", "noise"):
        where = {"variant": stressor}
        found[f"share_{stressor}"] = number(mean(results.per_unit("stressor", metric="brittle_share", **where)))
        found[f"fds_{stressor}"] = number(mean(results.per_unit("stressor", metric="auroc", score="cfc_fds", **where)))
    return found


def _forests(results: StudyResults) -> dict[str, str]:
    forests = tuple(name for name, spec in MODELS.items() if spec.family == "forest")
    shares = {
        "forest_saturated": "saturated_share",
        "forest_brittle_saturated": "brittle_if_saturated",
        "forest_brittle_other": "brittle_if_not",
        "forest_no_flip": "brittle_without_flip",
    }
    return {
        "forest_wins": f"{100 * wins_over_random_order(results, forests):.0f}%",
        **{
            name: number(weighted_mean(results.pick("saturation", metric=metric, model=forests)))
            for name, metric in shares.items()
        },
    }


def _secondary(results: StudyResults) -> dict[str, str]:
    eta = results.per_unit("calibration", metric="eta", score="bats")

    def calibration(metric: str, score: str) -> str:
        return number(mean(results.per_unit("calibration", metric=metric, score=score)))

    found = {
        f"{metric}_{score}": calibration(metric, score)
        for metric in ("ece", "fragile_ece", "fragile_nll")
        for score in ("raw", "temperature", "bats")
    }
    search = results.pick("search", metric="greedy_over").dropna(subset=["value"])
    correlation = results.per_unit("temperature", metric="rank_correlation", score="cfc_fds")
    best = strongest(results, (*CONFIDENCE, *PERTURBATION), analysis="naturalistic")
    return {
        **found,
        "eta_zero": str(int((eta == 0).sum())),
        "eta_units": str(len(eta)),
        "greedy_over": number(weighted_mean(search)),
        "exact_cases": str(int(search["count"].sum())),
        "temperature_correlation": number(mean(correlation)),
        "natural_fds": number(mean(ranking_values(results, "cfc_fds", analysis="naturalistic"))),
        "natural_best": number(mean(ranking_values(results, best, "oriented", analysis="naturalistic"))),
        "natural_best_name": TITLES[best],
        "natural_units": str(len(ranking_values(results, "cfc_fds", analysis="naturalistic"))),
        "natural_undefined": str(int(ranking_values(results, "cfc_fds", analysis="naturalistic").isna().sum())),
        "shap_oriented": number(mean(ranking_values(results, "group_shap", "oriented", analysis="attribution"))),
        "shap_fds": number(mean(ranking_values(results, "cfc_fds", analysis="attribution"))),
    }
