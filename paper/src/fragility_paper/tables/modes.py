"""Tables of the study of failure modes: exposure to each mode against labels of each kind of failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fragility_paper.data import DATASETS
from fragility_paper.library import MeanInterval, PairedDifference, bootstrap_mean, paired_bootstrap
from fragility_paper.models import MODELS
from fragility_paper.plan import MATCHING
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import NOTHING, Table, interval, mean, number, signed_interval
from fragility_paper.tables.exposure import (
    CHOSEN,
    FEWEST,
    STRONGEST,
    enough_rows,
    passes_ceiling,
    stress_difference,
    stress_values,
    tally,
)
from fragility_paper.tables.quantities import at_level, datasets_of, models_of
from fragility_paper.tables.running import environments

EITHER = "strongest in either direction"
MODE_TITLES = {
    "lost": "a group takes its baseline",
    "wrong": "a group takes a value of its catalogue",
    "noisy": "a numeric column moves by up to 0.3 standard deviations",
    "outage": "the groups of a recorded event take their baselines",
    "stale": "a group takes its earlier value",
    "sentinel": "a field takes 0, -999 or 100 times its value, or its rarest category",
}
LABEL_TITLES = {
    "default": "mask, dropout, noise",
    "mask": "lost groups",
    "noise": "noise",
    "donor": "values of other rows",
    "outage": "recorded outages",
    "stale": "stale values",
    "sentinel": "sentinels",
}
SCORE_TITLES = {
    "cfc_exposure": "exposure",
    "cfc_fds": "FDS",
    **{f"mode_{mode}": f"exposure to `{mode}`" for mode in MODE_TITLES},
    CHOSEN: "strongest baseline, chosen on validation rows",
    STRONGEST: "strongest baseline, chosen on the judged rows",
    EITHER: "the same, each baseline turned round where that helps it",
}
GOALS = {"noise": 0.92, "donor": 0.84, "outage": 0.94}  # AUROC of the matching mode; set before the study was run


def matching_score(kind: str) -> str:
    return f"mode_{MATCHING[kind]}"


def kinds_of(results: StudyResults) -> list[str]:
    """The kinds of labels that these results have."""
    there = set(results.pick("stress", metric="auroc")["variant"])
    return [kind for kind in LABEL_TITLES if kind in there]


def scores_of(results: StudyResults) -> list[str]:
    """The scores that these results have; the mode ``outage`` needs data with recorded outages."""
    there = set(results.pick("stress", metric="auroc")["score"])
    return [score for score in SCORE_TITLES if score in there]


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be shown for one kind of labels, and what came out."""

    kind: str
    wanted: float
    found: MeanInterval
    ahead: PairedDifference  # of the strongest baseline of each unit, chosen on the judged rows

    @property
    def met(self) -> bool:
        return self.found.mean >= self.wanted and self.ahead.low > 0.0


def goals_of(results: StudyResults) -> list[Goal]:
    there = kinds_of(results)
    return [
        Goal(kind, wanted, _mean_auroc(results, kind, matching_score(kind)), _ahead(results, kind))
        for kind, wanted in GOALS.items()
        if kind in there
    ]


def lost_difference(results: StudyResults, kind: str) -> PairedDifference:
    """AUROC of exposure to ``lost`` minus that of the certificate's independent loss, which is the same formula."""
    return stress_difference(results, kind, "independent_loss", "mode_lost")


def _mean_auroc(results: StudyResults, kind: str, score: str) -> MeanInterval:
    return bootstrap_mean(stress_values(results, kind, score=score).to_numpy())


def _ahead(results: StudyResults, kind: str, other: str = STRONGEST) -> PairedDifference:
    return stress_difference(results, kind, other, matching_score(kind))


# ------------------------------------------------------------------ the tables


def crossed_modes(results: StudyResults) -> Table:
    """Score mode by label mode: mean AUROC over units with its interval; the matching mode in bold."""
    kinds = kinds_of(results)
    rows = [
        (SCORE_TITLES[score], *(_crossed_cell(results, kind, score) for kind in kinds)) for score in scores_of(results)
    ]
    for words, metric in (("label-noise ceiling", "ceiling"), ("brittle share", "brittle_share")):
        shown = (number(mean(stress_values(results, kind, metric))) for kind in kinds)
        rows.append((f"*{words}*", *shown))
    defined = (stress_values(results, kind, score="cfc_exposure").notna().sum() for kind in kinds)
    rows.append(("*units with an AUROC*", *(str(count) for count in defined)))
    header = ("Score", *(f"labels: {LABEL_TITLES[kind]}" for kind in kinds))
    note = (
        "Mean AUROC over the units that have brittle and other rows, [95%] by 10,000 resamples of units; the mode that "
        "matches the labels in bold. Baselines are oriented on validation rows with the default labels. Exposure to "
        "`outage` exists for the data sets with recorded outages."
    )
    return Table("modes", "Failure mode of the score by failure mode of the labels", header, tuple(rows), note)


def _crossed_cell(results: StudyResults, kind: str, score: str) -> str:
    cell = interval(_mean_auroc(results, kind, score))
    return f"**{cell}**" if score == matching_score(kind) else cell


def matching_modes(results: StudyResults) -> Table:
    """Exposure to the mode of the labels against exposure, the strongest baselines and the ceiling."""
    header = (
        "Labels", "mode", "AUROC [95%]", "strongest baseline", "ceiling", "mode - strongest [95%]",
        "units where it is higher", "mode - strongest on validation rows [95%]",
        "mode - strongest in either direction [95%]", "mode - exposure [95%]",
        "within units: better / even / worse / too few", "units at or above the ceiling",
    )  # fmt: skip
    rows = tuple(_matching_row(results, kind) for kind in kinds_of(results))
    note = (
        "Strongest baseline: the unit's, chosen on the judged rows under the same labels, in the baselines' favour; "
        "then the one chosen on validation rows, and the one that is strongest if every baseline may also be turned "
        "round on the judged rows. Within units: against the former, paired bootstrap over rows, 2,000 "
        f"resamples; too few: fewer than {FEWEST} brittle or {FEWEST} other rows."
    )
    return Table("modes-matching", "The matching mode against the strongest baseline", header, rows, note)


def _matching_row(results: StudyResults, kind: str) -> tuple[str, ...]:
    score, ahead = matching_score(kind), _ahead(results, kind)
    passed, judged = passes_ceiling(results, kind, score)
    return (
        LABEL_TITLES[kind],
        f"`{MATCHING[kind]}`",
        interval(_mean_auroc(results, kind, score)),
        number(mean(stress_values(results, kind, score=STRONGEST))),
        number(mean(stress_values(results, kind, "ceiling"))),
        signed_interval(ahead),
        number(ahead.win_rate, 2),
        *(signed_interval(_ahead(results, kind, other)) for other in (CHOSEN, EITHER, "cfc_exposure")),
        " / ".join(tally(results, kind, STRONGEST, score).cells()),
        f"{passed} of {judged}",
    )


def matching_where_enough(results: StudyResults) -> Table:
    """The same comparison in units whose AUROCs rest on more than a few rows."""
    header = (
        "Labels", "mode", "AUROC [95%]", "exposure", "strongest baseline", "ceiling", "mode - strongest [95%]",
        "units where it is higher", "units",
    )  # fmt: skip
    rows = tuple(_enough_row(results, kind) for kind in kinds_of(results))
    note = f"Units with at least {FEWEST} brittle and {FEWEST} other rows under these labels; columns as above."
    return Table("modes-enough", "The matching mode where there are enough rows", header, rows, note)


def _enough_row(results: StudyResults, kind: str) -> tuple[str, ...]:
    enough = enough_rows(results, kind)

    def values(score: str = "", metric: str = "auroc") -> Values:
        found = stress_values(results, kind, metric, score)
        return found[enough.reindex(found.index, fill_value=False)]

    ours, other = values(matching_score(kind)), values(STRONGEST)
    ahead = paired_bootstrap(ours.to_numpy(), other.reindex(ours.index).to_numpy())
    return (
        LABEL_TITLES[kind],
        f"`{MATCHING[kind]}`",
        interval(bootstrap_mean(ours.to_numpy())),
        *(number(mean(part)) for part in (values("cfc_exposure"), other, values(metric="ceiling"))),
        signed_interval(ahead),
        number(ahead.win_rate, 2),
        str(ahead.units),
    )


def modes_by_model(results: StudyResults) -> Table:
    titles = {name: MODELS[name].title for name in models_of(results)}
    return _by_level(results, "modes-model", "The matching mode by model family", "model", titles)


def modes_by_dataset(results: StudyResults) -> Table:
    titles = {name: DATASETS[name].title for name in datasets_of(results)}
    return _by_level(results, "modes-dataset", "The matching mode by data set", "dataset", titles)


def _by_level(results: StudyResults, key: str, title: str, level: str, titles: Mapping[str, str]) -> Table:
    kinds = kinds_of(results)
    rows = tuple(
        (shown, *(_level_cell(results, kind, level, name) for kind in kinds)) for name, shown in titles.items()
    )
    header = (level.replace("dataset", "data set").capitalize(), *(LABEL_TITLES[kind] for kind in kinds))
    note = (
        "Each cell: AUROC of exposure to the matching mode / of the strongest baseline, chosen on the judged rows; "
        "units in which the former is higher."
    )
    return Table(key, title, header, rows, note)


def _level_cell(results: StudyResults, kind: str, level: str, name: str) -> str:
    def values(score: str) -> Values:
        return at_level(stress_values(results, kind, score=score), level, [name])

    ours, other = values(matching_score(kind)), values(STRONGEST)
    if ours.notna().sum() == 0:
        return NOTHING
    ahead = paired_bootstrap(ours.to_numpy(), other.reindex(ours.index).to_numpy())
    return f"{number(mean(ours))} / {number(mean(other))}; {round(ahead.win_rate * ahead.units)} of {ahead.units}"


def mode_findings(results: StudyResults) -> Table:
    """What each mode says about confident predictions."""
    header = ("Mode", "a failure", "mean exposure", "largest flip chance, mean", "rows that one failure may flip")
    rows = tuple(
        (
            f"`{mode}`",
            words,
            *(
                number(mean(results.per_unit("modes", metric=metric, variant=mode)))
                for metric in ("exposure", "flip_chance", "flips")
            ),
        )
        for mode, words in MODE_TITLES.items()
        if not results.pick("modes", variant=mode).empty
    )
    note = (
        "Confident test rows, mean over units. Flip chance: the chance that a failure of this mode, of one unit alone, "
        "flips the decision; the largest over the units of the row."
    )
    return Table("modes-findings", "What each mode says about confident predictions", header, rows, note)


def goals(results: StudyResults) -> Table:
    """The goals of the study and what came out."""
    rows = tuple(
        (
            LABEL_TITLES[goal.kind],
            f"`{MATCHING[goal.kind]}`",
            f"{goal.wanted:.2f}",
            interval(goal.found),
            signed_interval(goal.ahead),
            "yes" if goal.met else "no",
        )
        for goal in goals_of(results)
    )
    header = ("Labels", "mode", "AUROC wanted", "AUROC [95%]", "mode - strongest [95%]", "reached")
    note = "Reached: the mean is at least the one wanted, and the interval of the difference lies above 0."
    return Table("modes-goals", "Goals, set before the study was run", header, rows, note)


def earlier_definition(results: StudyResults) -> Table:
    """The matching mode now and when a unit of noise was a column without a direction, in the units of both."""
    header = ("Labels", "models", "exposure to", "before", "now", "now - before [95%]", "units")
    title, earlier = "Noise with a direction, and before", results.earlier
    if earlier is None:
        return Table("modes-earlier", title, header, (), "Not in these results.")
    rows = []
    families = {
        "all": models_of(results),
        "LogReg": ["logreg"],
        "others": [m for m in models_of(results) if m != "logreg"],
    }
    for kind in (kind for kind in GOALS if kind in kinds_of(results)):
        for words, models in families.items():
            now, before = (
                at_level(stress_values(one, kind, score=matching_score(kind)), "model", models)
                for one in (results, earlier)
            )
            both = now.dropna().index.intersection(before.dropna().index)
            now, before = now[both], before[both]
            gap = paired_bootstrap(now.to_numpy(), before.to_numpy())
            shown = (number(mean(before)), number(mean(now)), signed_interval(gap)) if gap.units else (NOTHING,) * 3
            rows.append((LABEL_TITLES[kind], words, f"`{MATCHING[kind]}`", *shown, str(gap.units)))
    note = (
        "Mean AUROC over the same units. Before, a unit of `noisy` was a column, and its expected loss the mean over "
        "both directions. Rule `expected`: in a linear model the mean margin over draws of noise is that of the row "
        "itself, so noise breaks no confident row; `benchmarks/noise.py` judges linear models under the rule `any`."
    )
    return Table("modes-earlier", title, header, tuple(rows), note)


MODE_TABLES: Mapping[str, Callable[[StudyResults], Table]] = {
    "modes": crossed_modes,
    "modes-matching": matching_modes,
    "modes-enough": matching_where_enough,
    "modes-goals": goals,
    "modes-earlier": earlier_definition,
    "modes-model": modes_by_model,
    "modes-dataset": modes_by_dataset,
    "modes-findings": mode_findings,
    "environments": environments,
}
