"""Tables of the whole lattice: greedy against the smallest sets, k_min and P_flip as scores, the mask without draws.

Additive models only (trees, linear). Results from before the lattice was recorded lack these rows; the tables say so.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fragility_paper.data import DATASETS
from fragility_paper.library import PairedDifference, bootstrap_mean, paired_bootstrap
from fragility_paper.models import MODELS
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import NOTHING, Table, interval, mean, number, signed_interval
from fragility_paper.tables.exposure import ABSENT, STRONGEST, VARIANT_TITLES, VARIANTS, stress_values
from fragility_paper.tables.quantities import (
    TITLES,
    datasets_of,
    models_of,
    oriented_values,
    weighted_mean,
)

SMALLEST, FLIPS = "cfc_fds_smallest", ("p_flip_0.05", "p_flip_0.1", "p_flip_0.3")
RANKED = (
    "cfc_fds",
    SMALLEST,
    "inverse_flip_budget",
    "inverse_smallest_set",
    *FLIPS,
    "cfc_exposure",
    "cfc_rcma",
    "random_order",
)
METRICS = ("capture_5", "capture_10", "capture_20", "false_confidence_captured_20", "aurc")
COUNTED = (
    ("decided", 3), ("greedy", 2), ("smallest", 2), ("greedy_over", 3), ("mean_gap", 2), ("missed_flip", 3),
    ("never_fails", 3), ("single_set", 3), ("beam_improve", 3), ("beam_over_where_greedy_is", 3),
)  # fmt: skip
COUNTED_TITLES = (
    "decided", "mean k*", "mean k_min", "k* too large", "mean gap", "no flip on the path, yet a set of at most K fails",
    "no set fails at all", "only one smallest set", "beam shorter than k*", "beam too large where k* is",
)  # fmt: skip


def has_lattice(results: StudyResults) -> bool:
    return not results.pick("lattice", metric="decided").empty


def additive_units(results: StudyResults) -> pd.Index:
    return results.per_unit("lattice", metric="decided").index


def _absent(key: str, title: str, header: tuple[str, ...]) -> Table:
    row = (ABSENT, *[NOTHING] * (len(header) - 1))
    return Table(key, title, header, (row,), "These results were made before the lattice was recorded.")


# ------------------------------------------------------------------ greedy against the smallest sets


def lattice_by_dataset(results: StudyResults) -> Table:
    titles = {name: DATASETS[name].title for name in datasets_of(results)}
    return _search_table(results, "lattice", "Greedy against the smallest failing sets, by data set", "dataset", titles)


def lattice_by_model(results: StudyResults) -> Table:
    titles = {name: MODELS[name].title for name in models_of(results)}
    return _search_table(results, "lattice-model", "The same by model family", "model", titles)


def _search_table(results: StudyResults, key: str, title: str, level: str, titles: dict[str, str]) -> Table:
    header = (level.replace("dataset", "data set").capitalize(), "rows", *COUNTED_TITLES, "largest gap", "ms a row")
    if not has_lattice(results):
        return _absent(key, title, header)
    there = set(results.pick("lattice", metric="decided")[level])
    rows = [_search_row(results, shown, **{level: name}) for name, shown in titles.items() if name in there]
    rows.append(_search_row(results, "All"))
    note = (
        "Every confident test row of the additive models, every subset of its groups decided; k_min counts as k* "
        "does, K + 1 where no set of at most K groups fails. Shares and means over rows. The beam (width 8) ran where "
        "k* was too large; elsewhere it could not be shorter. Milliseconds on one thread, with all units running side "
        "by side, for the smallest set and three failure probabilities; compilation included."
    )
    return Table(key, title, header, tuple(rows), note)


def _search_row(results: StudyResults, title: str, **where: str) -> tuple[str, ...]:
    lines = results.pick("lattice", metric="decided", **where)
    cells = [
        number(weighted_mean(results.pick("lattice", metric=metric, **where)), digits) for metric, digits in COUNTED
    ]
    largest = results.pick("lattice", metric="largest_gap", **where)["value"].max()
    return (title, f"{int(lines['count'].sum()):,}", *cells, f"{largest:.0f}", number(ms_a_row(results, lines), 2))


def ms_a_row(results: StudyResults, lines: pd.DataFrame) -> float:
    """Milliseconds a row that the lattice took in some units."""
    timings = results.timings[results.timings["stage"] == "lattice"]
    took = lines.merge(timings, on=["dataset", "model", "seed"])
    rows = took["count"].sum()
    return 1e3 * float(took["seconds"].sum()) / rows if rows else math.nan


# ------------------------------------------------------------------ as ranking scores


def lattice_ranking(results: StudyResults) -> Table:
    title = "The smallest set and the failure probability as ranking scores"
    header = (
        "Score", "AUROC [95%]", "minus FDS [95%]", "units above FDS", "minus exposure [95%]", "units above exposure",
        "Capture@5", "Capture@10", "Capture@20", "FalseConf@20", "AURC",
    )  # fmt: skip
    if not has_lattice(results):
        return _absent("lattice-ranking", title, header)
    rows = tuple(_ranking_row(results, name) for name in RANKED)
    note = (
        f"Over the {len(additive_units(results))} units of additive models, default labels; P_flip is exact, with "
        "every group failing independently at the rate shown. Random group order is oriented on validation rows."
    )
    return Table("lattice-ranking", title, header, rows, note)


def _ranking_row(results: StudyResults, score: str) -> tuple[str, ...]:
    values = _additive(results, oriented_values(results, score))
    measured = [number(mean(_additive(results, oriented_values(results, score, metric=name)))) for name in METRICS]
    against = [cell for other in ("cfc_fds", "cfc_exposure") for cell in _ahead(results, score, other, values)]
    return (TITLES[score], interval(bootstrap_mean(values.to_numpy())), *against, *measured)


def _additive(results: StudyResults, values: Values) -> Values:
    return values.reindex(additive_units(results))


def _ahead(results: StudyResults, score: str, other: str, values: Values) -> tuple[str, str]:
    if score == other:
        return NOTHING, NOTHING
    found = paired(values, oriented_values(results, other))
    return signed_interval(found), number(found.win_rate, 2)


def paired(a: Values, b: Values) -> PairedDifference:
    return paired_bootstrap(a.to_numpy(), b.reindex(a.index).to_numpy())


def lattice_stress(results: StudyResults) -> Table:
    title = "The same under every kind of stress"
    scores = ("cfc_fds", SMALLEST, *FLIPS, "cfc_exposure")
    header = (
        "Stress", *(TITLES[name] for name in scores), "strongest baseline", "ceiling",
        "FDS with k_min - FDS [95%]", "P_flip at 0.3 - FDS [95%]", "P_flip at 0.3 - exposure [95%]",
    )  # fmt: skip
    if not has_lattice(results):
        return _absent("lattice-stress", title, header)
    there = set(results.pick("stress", metric="auroc")["variant"])
    rows = tuple(_stress_row(results, name, scores) for name in VARIANTS if name in there)
    note = "Additive models; means over the units where an AUROC is defined, paired bootstrap over units."
    return Table("lattice-stress", title, header, rows, note)


def _stress_row(results: StudyResults, variant: str, scores: tuple[str, ...]) -> tuple[str, ...]:
    def values(score: str = "", metric: str = "auroc") -> Values:
        return _additive(results, stress_values(results, variant, metric, score))

    pairs = ((SMALLEST, "cfc_fds"), (FLIPS[-1], "cfc_fds"), (FLIPS[-1], "cfc_exposure"))
    return (
        VARIANT_TITLES[variant],
        *(number(mean(values(score))) for score in (*scores, STRONGEST)),
        number(mean(values(metric="ceiling"))),
        *(signed_interval(paired(values(a), values(b))) for a, b in pairs),
    )


# ------------------------------------------------------------------ the mask without draws


def exact_ceiling(results: StudyResults) -> Table:
    title = "The label-noise ceiling of the mask stressor, drawn and exact, two classes"
    header = (
        "Model", "expected: ceiling drawn", "exact", "agreement drawn", "exact", "brittle share drawn", "exact",
        "any flip: ceiling drawn", "without draws", "P_flip against drawn labels", "P_flip, without draws",
    )  # fmt: skip
    if not has_lattice(results):
        return _absent("exact-ceiling", title, header)
    there = set(results.pick("exact_mask")["model"])
    rows = tuple(_ceiling_row(results, MODELS[name].title, model=name) for name in models_of(results) if name in there)
    note = (
        "Mask alone at 0.3. `expected`: the drawn ceiling is the AUROC of an independent set of draws, the exact one "
        "that of the expected margin, which has no noise; agreement with the label in use; where the margin is no sum "
        "of the model's parts (forests) there is no closed form. `any flip`: a row is labelled where any of the draws "
        "flips it. Without draws: what an independent set of draws, and P_flip, can be expected to reach, from P_flip "
        "alone; over the units where all four are defined."
    )
    return Table("exact-ceiling", title, header, (*rows, _ceiling_row(results, "All")), note)


def _ceiling_row(results: StudyResults, title: str, **where: str) -> tuple[str, ...]:
    def cell(metric: str, rule: str, variant: str) -> str:
        return number(mean(mask_values(results, metric, rule, variant, **where)))

    expected = [
        cell(metric, "expected", variant)
        for metric in ("ceiling", "agreement", "brittle_share")
        for variant in ("drawn", "exact")
    ]
    return (title, *expected, *(number(value) for value in flip_ceilings(results, **where)))


def flip_ceilings(results: StudyResults, **where: str) -> list[float]:
    """Ceilings of the rule `any flip`: drawn, without draws, of P_flip drawn and without draws; over the same units."""
    variants = ("drawn", "no draws", "exact", "no draws, best")
    found = [mask_values(results, "ceiling", "any flip", variant, **where) for variant in variants]
    return [mean(column) for _, column in pd.concat(found, axis=1, keys=variants).dropna().items()]


def mask_values(results: StudyResults, metric: str, rule: str, variant: str, **where: Any) -> Values:
    """One value a unit of two classes."""
    binary = tuple(name for name, spec in DATASETS.items() if len(spec.classes) == 2)
    return results.per_unit(
        "exact_mask", metric=metric, rule=rule, variant=variant, **{"dataset": binary, "score": "", **where}
    )


def exact_labels(results: StudyResults) -> Table:
    """AUROC of some scores against the label of the draws and against the label without draws."""
    title = "Scores against the mask label, drawn and exact"
    header = ("Score", "AUROC, drawn label", "AUROC, exact label", "difference [95%]", "units")
    if not has_lattice(results):
        return _absent("exact-labels", title, header)
    rows = tuple(_exact_row(results, name) for name in ("cfc_exposure", "cfc_fds", SMALLEST, FLIPS[-1], "random_order"))
    note = "Two classes, rule `expected`, mask alone at 0.3, models whose margin is a sum (boosting, LogReg)."
    return Table("exact-labels", title, header, rows, note)


def _exact_row(results: StudyResults, score: str) -> tuple[str, ...]:
    drawn, exact = (mask_values(results, "auroc", "expected", variant, score=score) for variant in ("drawn", "exact"))
    found = paired(exact, drawn)
    return (TITLES[score], number(mean(drawn)), number(mean(exact)), signed_interval(found), str(found.units))
