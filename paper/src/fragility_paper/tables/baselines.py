"""Tables of the study under the default protocol: baselines of scores against baselines of labels, and smoothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from fragility_paper.data import DATASETS
from fragility_paper.library import PairedDifference, paired_bootstrap
from fragility_paper.models import MODELS
from fragility_paper.results import UNIT, StudyResults, Values
from fragility_paper.table import Table, mean, number, signed_interval
from fragility_paper.tables.exposure import (
    exposure_by_dataset,
    exposure_by_model,
    exposure_scores,
    exposure_stress,
    exposure_within,
)
from fragility_paper.tables.quantities import at_level, datasets_of, models_of
from fragility_paper.tables.running import environments

BASELINES = ("typical", "median", "missing", "mean")
LABELS = {
    "typical": "`typical`",
    "median": "`median`",
    "missing": "`missing`",
    "mean": "`mean`",
    "donor": "values of another row",
    "noise": "noise",
}
CROSSED = {"cfc_exposure": "exposure", "cfc_fds": "FDS", "random_order": "random order"}


def crossed_auroc(results: StudyResults, score: str, baseline: str, labels: str) -> Values:
    """AUROC per unit of a score under one baseline against labels of another, where it is defined."""
    where = {"metric": "auroc", "score": score, "baseline": baseline, "variant": labels}
    return results.per_unit("crossed", **where).dropna()


def crossed_difference(
    results: StudyResults, baseline: str, labels: str, other: str, score: str = "cfc_exposure"
) -> PairedDifference:
    """Paired bootstrap over units of AUROC(score) - AUROC(other), both under one baseline."""
    ours, theirs = (crossed_auroc(results, name, baseline, labels) for name in (score, other))
    return paired_bootstrap(ours.to_numpy(), theirs.reindex(ours.index).to_numpy())


def score_baselines(results: StudyResults) -> list[str]:
    """The baselines under which some unit has scores."""
    there = set(results.pick("crossed", metric="auroc")["baseline"])
    return [name for name in BASELINES if name in there]


def label_kinds(results: StudyResults) -> list[str]:
    """The kinds of labels against which some unit has an AUROC."""
    there = set(results.pick("crossed", metric="auroc").dropna(subset=["value"])["variant"])
    return [name for name in LABELS if name in there]


def crossed(results: StudyResults) -> Table:
    """Score baseline by label baseline: mean AUROC of exposure, FDS and random order."""
    kinds = label_kinds(results)
    rows = [
        (f"`{baseline}`", *(_crossed_cell(results, baseline, labels) for labels in kinds))
        for baseline in score_baselines(results)
    ]
    shares = (results.per_unit("crossed", metric="brittle_share", variant=labels) for labels in kinds)
    rows.append(("*brittle share of the rows*", *(number(mean(values)) for values in shares)))
    defined = (len(crossed_auroc(results, "cfc_exposure", "typical", labels)) for labels in kinds)
    rows.append(("*units with an AUROC*", *(str(count) for count in defined)))
    header = ("Scores under", *(f"labels: {LABELS[labels]}" for labels in kinds))
    note = (
        f"Each cell: {' / '.join(CROSSED.values())}. Mean AUROC over units, confident test rows. Labels of a baseline: "
        "mask, dropout and noise at 0.3, where lost groups and columns take that baseline's values. Values of another "
        "row and noise use no baseline. Every cell is over the units that have both kinds of rows."
    )
    return Table("crossed", "Baseline of the scores by baseline of the labels", header, tuple(rows), note)


def _crossed_cell(results: StudyResults, baseline: str, labels: str) -> str:
    return " / ".join(number(mean(crossed_auroc(results, score, baseline, labels))) for score in CROSSED)


def crossed_differences(results: StudyResults) -> Table:
    """How far exposure is ahead of FDS and of random order in every cell of the table."""
    rows = []
    for baseline in score_baselines(results):
        for labels in label_kinds(results):
            gaps = [crossed_difference(results, baseline, labels, other) for other in ("cfc_fds", "random_order")]
            cells = [cell for gap in gaps for cell in (signed_interval(gap), number(gap.win_rate, 2))]
            units = len(crossed_auroc(results, "cfc_exposure", baseline, labels))
            rows.append((f"`{baseline}`", LABELS[labels], *cells, str(units)))
    header = (
        "Scores under", "Labels", "exposure - FDS [95%]", "units where it is higher",
        "exposure - random order [95%]", "units where it is higher", "units",
    )  # fmt: skip
    return Table("crossed-differences", "Exposure where scores and labels differ", header, tuple(rows))


def flips_by_baseline(results: StudyResults) -> Table:
    """Which share of confident predictions flips early, and which is brittle, under each baseline, by model."""
    names = score_baselines(results)
    rows = [_flips_row(results, MODELS[model].title, "model", [model], names) for model in models_of(results)]
    rows += [_flips_row(results, DATASETS[name].title, "dataset", [name], names) for name in datasets_of(results)]
    header = (
        "Units",
        *(f"flip early, `{name}`" for name in names),
        *(f"brittle, `{name}`" for name in names),
    )
    note = (
        "Shares of the same confident test rows; brittle: labels of the same baseline. Trees split one-hot columns "
        "between 0 and 1, some at the smallest positive number, so the fractions of `mean` may read as every category "
        "at once."
    )
    return Table("flips", "Findings under each baseline", header, tuple(rows), note)


def _flips_row(
    results: StudyResults, title: str, level: str, names: Sequence[str], baselines: Sequence[str]
) -> tuple[str, ...]:
    early = (results.per_unit("crossed", metric="flips_early", baseline=name) for name in baselines)
    brittle = (results.per_unit("crossed", metric="brittle_share", variant=name) for name in baselines)
    return (title, *(number(mean(at_level(values, level, names))) for values in (*early, *brittle)))


def smoothing_table(results: StudyResults) -> Table:
    """Forests with the default smoothing and without."""
    header = (
        "Forests", "AUROC of exposure, without", "with", "difference [95%]", "AUROC of FDS, without", "with",
        "difference [95%]", "brittle share, without", "with", "units",
    )  # fmt: skip
    forests = [name for name in models_of(results) if MODELS[name].family == "forest"]
    groups = [(MODELS[name].title, "model", [name]) for name in forests]
    groups += [(DATASETS[name].title, "dataset", [name]) for name in datasets_of(results)]
    rows = [_smoothing_row(results, *group) for group in (*groups, ("All", "model", forests))]
    note = (
        "Scores and labels both without smoothing, or both with one vote more for each class (the default for averaged "
        "votes). AUROC over units where both are defined."
    )
    return Table("smoothing", "Forests with and without smoothing", header, tuple(rows), note)


def smoothing_pair(results: StudyResults, metric: str, score: str = "") -> pd.DataFrame:
    """A quantity of every forest, columns "without" and "with", where both are defined."""
    lines = results.pick("smoothing", metric=metric, score=score)
    both = {
        name: lines[(lines["smoothing"] > 0) == smoothed].set_index(UNIT)["value"]
        for name, smoothed in (("without", False), ("with", True))
    }
    return pd.DataFrame(both).dropna()


def _smoothing_row(results: StudyResults, title: str, level: str, names: Sequence[str]) -> tuple[str, ...]:
    cells: list[str] = []
    for score in ("cfc_exposure", "cfc_fds"):
        both = _narrowed(smoothing_pair(results, "auroc", score), level, names)
        gap = paired_bootstrap(both["with"].to_numpy(), both["without"].to_numpy())
        cells += (number(mean(both["without"])), number(mean(both["with"])), signed_interval(gap))
    shares = _narrowed(smoothing_pair(results, "brittle_share"), level, names)
    return (title, *cells, number(mean(shares["without"])), number(mean(shares["with"])), str(len(shares)))


def _narrowed(table: pd.DataFrame, level: str, names: Sequence[str]) -> pd.DataFrame:
    return table[table.index.get_level_values(level).isin(list(names))]


BASELINE_TABLES: Mapping[str, Callable[[StudyResults], Table]] = {
    "exposure": exposure_scores,
    "exposure-within": exposure_within,
    "exposure-model": exposure_by_model,
    "exposure-dataset": exposure_by_dataset,
    "exposure-stress": exposure_stress,
    "crossed": crossed,
    "crossed-differences": crossed_differences,
    "flips": flips_by_baseline,
    "smoothing": smoothing_table,
    "environments": environments,
}
