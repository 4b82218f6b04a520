"""Tables of exposure, the score that goes beyond the paper: against FDS, every baseline, and under other stress.

Results from before exposure was recorded lack its rows; the tables then say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fragility_paper.data import DATASETS
from fragility_paper.library import PairedDifference, bootstrap_mean, paired_bootstrap
from fragility_paper.models import MODELS
from fragility_paper.results import UNIT, StudyResults, Values
from fragility_paper.table import NOTHING, Table, interval, mean, number, signed_interval
from fragility_paper.tables.quantities import (
    CONFIDENCE,
    PERTURBATION,
    TITLES,
    at_level,
    datasets_of,
    models_of,
    oriented_values,
)

ABSENT = "not in these results"
STRONGEST, CHOSEN = "strongest on these rows", "strongest on validation rows"
FEWEST = 10  # brittle rows, and other rows, that a unit needs before a difference within it is judged
EXPOSURE_PARTS = ("independent_loss", "common_loss")
VARIANTS = (
    "default",
    "mask",
    "dropout",
    "noise",
    "severity 0.1",
    "severity 0.5",
    "any",
    "naturalistic",
    "donor",
)
VARIANT_TITLES = {
    "default": "all three at 0.3 (the default)",
    "mask": "groups masked, alone",
    "dropout": "columns dropped, alone",
    "noise": "noise, alone",
    "severity 0.1": "all three at 0.1",
    "severity 0.5": "all three at 0.5",
    "any": "rule `any`",
    "naturalistic": "naturalistic outages",
    "donor": "groups from another training row",
}
STRONGEST_TITLES = {
    STRONGEST: "the unit's strongest, chosen on the judged rows",
    CHOSEN: "the unit's strongest, chosen on validation rows",
}


@dataclass(frozen=True, slots=True)
class Tally:
    """In how many units a difference is significant within the unit."""

    better: int
    even: int
    worse: int
    too_few: int  # units with too few brittle or other rows to judge, or without an AUROC

    @property
    def judged(self) -> int:
        return self.better + self.even + self.worse

    @property
    def worse_share(self) -> float:
        return self.worse / self.judged if self.judged else float("nan")

    def cells(self) -> tuple[str, str, str, str]:
        return str(self.better), str(self.even), str(self.worse), str(self.too_few)


def has_exposure(results: StudyResults) -> bool:
    return not results.pick("within", score="cfc_exposure", metric="difference").empty


def stress_values(results: StudyResults, variant: str, metric: str = "auroc", score: str = "") -> Values:
    """One value a unit under one kind of stress."""
    return results.per_unit("stress", variant=variant, metric=metric, score=score)


def stress_difference(results: StudyResults, variant: str, other: str, score: str = "cfc_exposure") -> PairedDifference:
    """Paired bootstrap over units of AUROC(score) - AUROC(other)."""
    return _paired(stress_values(results, variant, score=score), stress_values(results, variant, score=other))


def _paired(a: Values, b: Values) -> PairedDifference:
    return paired_bootstrap(a.to_numpy(), b.reindex(a.index).to_numpy())


def tally(
    results: StudyResults, variant: str, against: str, score: str = "cfc_exposure", units: pd.Index | None = None
) -> Tally:
    """Units in which the 95% interval of the difference lies above, around and below 0."""
    lines = results.pick("within", variant=variant, against=against, score=score)
    wide = lines.pivot(index=UNIT, columns="metric", values="value")
    wide = wide if units is None else wide[wide.index.isin(units)]
    known = enough_rows(results, variant).reindex(wide.index, fill_value=False) & wide["difference"].notna()
    better, worse = known & (wide["low"] > 0), known & (wide["high"] < 0)
    even = known & ~better & ~worse
    return Tally(int(better.sum()), int(even.sum()), int(worse.sum()), int((~known).sum()))


def enough_rows(results: StudyResults, variant: str) -> pd.Series:
    """Whether a unit has enough rows of both kinds."""
    lines = results.pick("stress", variant=variant, metric="brittle_rows").set_index(UNIT)
    return (lines["value"] >= FEWEST) & (lines["count"] - lines["value"] >= FEWEST)


def passes_ceiling(results: StudyResults, variant: str, score: str = "cfc_exposure") -> tuple[int, int]:
    """In how many units the score is at least as high as the ceiling, and of how many."""
    gap = (stress_values(results, variant, score=score) - stress_values(results, variant, "ceiling")).dropna()
    return int((gap >= 0).sum()), len(gap)


def _absent(key: str, title: str, header: tuple[str, ...]) -> Table:
    row = (ABSENT, *[NOTHING] * (len(header) - 1))
    return Table(key, title, header, (row,), "These results were made before exposure was recorded.")


# ------------------------------------------------------------------ the tables


def exposure_scores(results: StudyResults) -> Table:
    """Mean AUROC of exposure, FDS and every oriented baseline, and how far exposure is ahead."""
    title = "Exposure beside every other score"
    header = (
        "Score",
        "AUROC [95%]",
        "exposure minus it [95%]",
        "units where exposure is higher",
        "Capture@20",
        "AURC",
    )
    if not has_exposure(results):
        return _absent("exposure-scores", title, header)
    names = ("cfc_exposure", *EXPOSURE_PARTS, "cfc_rcma", "cfc_fds", *PERTURBATION, *CONFIDENCE)
    rows = [_score_row(results, name) for name in names]
    rows += [_strongest_row(results, name) for name in STRONGEST_TITLES]
    undefined = int(oriented_values(results, "cfc_exposure").isna().sum())
    note = (
        f"Baselines oriented on validation rows; means over units, {undefined} undefined; 10,000 resamples of units. "
        "The targeted part of exposure is RCMA."
    )
    return Table("exposure-scores", title, header, tuple(rows), note)


def _score_row(results: StudyResults, score: str) -> tuple[str, ...]:
    ours, other = oriented_values(results, "cfc_exposure"), oriented_values(results, score)
    measured = [number(mean(oriented_values(results, score, metric=metric))) for metric in ("capture_20", "aurc")]
    return (TITLES[score], interval(bootstrap_mean(other.to_numpy())), *_ahead(score, ours, other), *measured)


def _ahead(score: str, ours: Values, other: Values) -> tuple[str, str]:
    if score == "cfc_exposure":
        return NOTHING, NOTHING
    found = _paired(ours, other)
    return signed_interval(found), number(found.win_rate, 2)


def _strongest_row(results: StudyResults, score: str) -> tuple[str, ...]:
    values = stress_values(results, "default", score=score)
    ahead = _ahead(score, stress_values(results, "default", score="cfc_exposure"), values)
    return (STRONGEST_TITLES[score], interval(bootstrap_mean(values.to_numpy())), *ahead, NOTHING, NOTHING)


def exposure_within(results: StudyResults) -> Table:
    """In how many units exposure, and FDS, are better, not distinguishable and worse, by a bootstrap over rows."""
    title = "Within units: better, not distinguishable, worse"
    header = ("Against", *(f"{s}: {w}" for s in ("exposure", "FDS") for w in ("better", "even", "worse")), "too few")
    if not has_exposure(results):
        return _absent("exposure-within", title, header)
    rows = [("CFC-FDS", *tally(results, "default", "cfc_fds").cells()[:3], *[NOTHING] * 3, _few(results, "cfc_fds"))]
    for name in (*STRONGEST_TITLES, *PERTURBATION, *CONFIDENCE):
        both = [
            cell for score in ("cfc_exposure", "cfc_fds") for cell in tally(results, "default", name, score).cells()
        ]
        rows.append((STRONGEST_TITLES.get(name) or TITLES[name], *both[:3], *both[4:7], both[3]))
    if not results.pick("within", variant="group-SHAP rows").empty:
        both = [
            cell
            for score in ("cfc_exposure", "cfc_fds")
            for cell in tally(results, "group-SHAP rows", "group_shap", score).cells()
        ]
        rows.append((f"{TITLES['group_shap']}, on its rows", *both[:3], *both[4:7], both[3]))
    note = (
        "Paired bootstrap over a unit's confident test rows, 2,000 resamples: better or worse where the 95% interval "
        f"of the difference of AUROCs excludes 0. Too few: units with fewer than {FEWEST} brittle or {FEWEST} other "
        "rows. The strongest baseline chosen on the judged rows themselves is chosen in the baselines' favour."
    )
    return Table("exposure-within", title, header, tuple(rows), note)


def _few(results: StudyResults, against: str) -> str:
    return tally(results, "default", against).cells()[3]


def exposure_stress(results: StudyResults) -> Table:
    """The same under every kind of stress."""
    title = "Exposure under other stress"
    header = (
        "Stress", "brittle share", "exposure", "FDS", "RCMA", "strongest baseline", "ceiling", "exposure - FDS [95%]",
        "exposure - strongest [95%]", "within units: better / even / worse / too few", "units at or above the ceiling",
    )  # fmt: skip
    if not has_exposure(results):
        return _absent("exposure-stress", title, header)
    there = set(results.pick("stress", metric="auroc")["variant"])
    rows = tuple(_stress_row(results, name) for name in VARIANTS if name in there)
    note = (
        "Scores and their directions are those of the default labels; only the stress that decides who is brittle "
        "changes. Strongest baseline: the unit's, chosen on the judged rows under that stress. Means over the units "
        "where an AUROC is defined."
    )
    return Table("exposure-stress", title, header, rows, note)


def _stress_row(results: StudyResults, variant: str) -> tuple[str, ...]:
    scores = ("cfc_exposure", "cfc_fds", "cfc_rcma", STRONGEST)
    passed, judged = passes_ceiling(results, variant)
    return (
        VARIANT_TITLES[variant],
        number(mean(stress_values(results, variant, "brittle_share"))),
        *(number(mean(stress_values(results, variant, score=score))) for score in scores),
        number(mean(stress_values(results, variant, "ceiling"))),
        signed_interval(stress_difference(results, variant, "cfc_fds")),
        signed_interval(stress_difference(results, variant, STRONGEST)),
        " / ".join(tally(results, variant, STRONGEST).cells()),
        f"{passed} of {judged}",
    )


def exposure_by_model(results: StudyResults) -> Table:
    titles = {name: MODELS[name].title for name in models_of(results)}
    return _by_level(results, "exposure-model", "Exposure by model family", "model", titles)


def exposure_by_dataset(results: StudyResults) -> Table:
    titles = {name: DATASETS[name].title for name in datasets_of(results)}
    return _by_level(results, "exposure-dataset", "Exposure by data set", "dataset", titles)


def _by_level(results: StudyResults, key: str, title: str, level: str, titles: dict[str, str]) -> Table:
    header = (
        level.replace("dataset", "data set").capitalize(), "exposure", "FDS", "Random group order",
        "strongest baseline", "ceiling", "exposure - FDS [95%]", "exposure - strongest [95%]",
        "within units: better / even / worse / too few",
    )  # fmt: skip
    if not has_exposure(results):
        return _absent(key, title, header)
    rows = tuple(_level_row(results, level, name, shown) for name, shown in titles.items())
    note = "Default labels; the strongest baseline of each unit is chosen on the judged rows."
    return Table(key, title, header, rows, note)


def _level_row(results: StudyResults, level: str, name: str, title: str) -> tuple[str, ...]:
    def values(score: str = "", metric: str = "auroc") -> Values:
        return at_level(stress_values(results, "default", metric, score), level, [name])

    ours = values("cfc_exposure")
    return (
        title,
        *(number(mean(values(score))) for score in ("cfc_exposure", "cfc_fds", "random_order", STRONGEST)),
        number(mean(values(metric="ceiling"))),
        *(signed_interval(_paired(ours, values(score))) for score in ("cfc_fds", STRONGEST)),
        " / ".join(tally(results, "default", STRONGEST, units=ours.index).cells()),
    )


def units_that_lose(results: StudyResults, variant: str = "default") -> Sequence[str]:
    """Units in which exposure is significantly worse than the strongest baseline, by name."""
    lines = results.pick("within", variant=variant, against=STRONGEST, score="cfc_exposure", metric="high")
    high = lines.set_index(UNIT)["value"]
    enough = enough_rows(results, variant).reindex(high.index, fill_value=False)
    lost = high[enough & (high < 0)].index
    return [f"{DATASETS[dataset].title} / {MODELS[model].title} / {seed}" for dataset, model, seed in lost]


def excludes_zero(found: PairedDifference) -> bool:
    return bool(np.isfinite(found.low)) and (found.low > 0 or found.high < 0)


# ------------------------------------------------------------------ in words


def exposure_findings(results: StudyResults) -> list[str]:
    """What the tables say, one sentence for each finding, good or bad."""
    return [*_exposure_ahead(results), *_exposure_loses(results), _exposure_ceiling(results)]


def _exposure_ahead(results: StudyResults) -> list[str]:
    """Mean AUROC, and its difference to FDS and to the strongest baseline of each unit."""
    ours = bootstrap_mean(oriented_values(results, "cfc_exposure").to_numpy())
    found = [
        f"Mean AUROC {interval(ours)} over {ours.units} units; FDS {number(mean(oriented_values(results, 'cfc_fds')))}."
    ]
    for name, words in (("cfc_fds", "FDS"), *STRONGEST_TITLES.items()):
        difference = stress_difference(results, "default", name)
        zero = "which excludes 0" if excludes_zero(difference) else "which includes 0"
        found.append(
            f"Difference to {words}: {signed_interval(difference)}, {zero}; "
            f"higher in {100 * difference.win_rate:.0f}% of units."
        )
    return found


def _exposure_loses(results: StudyResults) -> list[str]:
    """Where it is significantly worse, by default and under other stress."""
    counted = tally(results, "default", STRONGEST)
    lost = units_that_lose(results)
    names = f": {'; '.join(lost)}" if lost else ""
    found = [
        f"Within units, against the strongest baseline chosen on the judged rows: better in {counted.better}, "
        f"not distinguishable in {counted.even}, worse in {counted.worse} ({100 * counted.worse_share:.1f}% of "
        f"{counted.judged} judged){names}."
    ]
    there = set(results.pick("stress", metric="auroc")["variant"])
    other = [name for name in VARIANTS if name in there and name != "default"]
    behind = [VARIANT_TITLES[name] for name in other if not stress_difference(results, name, STRONGEST).low > 0]
    below = [VARIANT_TITLES[name] for name in other if not stress_difference(results, name, "cfc_fds").low > 0]
    for words, names_of in (("FDS", below), ("the strongest baseline", behind)):
        where = f"except: {'; '.join(names_of)}" if names_of else "without exception"
        found.append(
            f"Above {words} by an interval without 0 under each of the {len(other)} other kinds of stress, {where}."
        )
    return found


def _exposure_ceiling(results: StudyResults) -> str:
    passed, judged = passes_ceiling(results, "default")
    ceiling = number(mean(stress_values(results, "default", "ceiling")))
    return f"The label-noise ceiling is {ceiling} on average; exposure is at or above it in {passed} of {judged} units."
