"""Tables of hardening per failure mode: each way of training against plain training, paired by unit, on test rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from fragility_paper.data import DATASETS
from fragility_paper.library import PairedDifference, paired_bootstrap
from fragility_paper.models import MODELS
from fragility_paper.plan import HARDENING_WAYS
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import NOTHING, Table, mean, number, signed_interval
from fragility_paper.tables.quantities import at_level, datasets_of, models_of
from fragility_paper.tables.running import environments

PLAIN = "plain"
Where = Mapping[str, Any]
BRITTLE: Where = {"metric": "brittle_share", "rows": "confident", "variant": "default"}
DONORS: Where = {**BRITTLE, "variant": "donor"}
AUROC: Where = {"metric": "auroc", "rows": "test"}
QUANTITIES: Mapping[str, Where] = {
    "AUROC": AUROC,
    "confident": {"metric": "confident_share", "rows": "test"},
    "flips early": {"metric": "flips_early", "rows": "confident"},
    "brittle": BRITTLE,
    "by lost groups": {**BRITTLE, "variant": "mask"},
    "by lost columns": {**BRITTLE, "variant": "dropout"},
    "by noise": {**BRITTLE, "variant": "noise"},
    "under values of other rows": DONORS,
}


def trainings_of() -> dict[str, str]:
    """Every training, and how it is written."""
    ways = {name: f"{', '.join(f'`{m}`' for m in way.modes)} at {way.rate:g}" for name, way in HARDENING_WAYS.items()}
    return {PLAIN: PLAIN, **ways}


def values_of(results: StudyResults, training: str, where: Where, model: str) -> Values:
    return at_level(results.per_unit("mode_hardening", training=training, **where), "model", [model])


def change(results: StudyResults, training: str, where: Where, model: str) -> PairedDifference:
    """A training minus plain training, over the units where both are defined."""
    both = pd.concat([values_of(results, name, where, model) for name in (training, PLAIN)], axis=1).dropna()
    return paired_bootstrap(both.iloc[:, 0].to_numpy(), both.iloc[:, 1].to_numpy())


def fall_of_mean(results: StudyResults, training: str, where: Where, model: str) -> float:
    """How far the mean share over units falls, as a part of itself."""
    before = mean(values_of(results, PLAIN, where, model))
    return 1.0 - mean(values_of(results, training, where, model)) / before if before else math.nan


def falls_by_dataset(results: StudyResults, training: str, where: Where, model: str) -> dict[str, float]:
    """How far the mean share over seeds falls in each data set; those without any brittle row are left out."""
    falls = {}
    for dataset in datasets_of(results):
        before, after = (
            mean(at_level(values_of(results, name, where, model), "dataset", [dataset])) for name in (PLAIN, training)
        )
        if before > 0.0:
            falls[dataset] = 1.0 - after / before
    return falls


def ways(results: StudyResults) -> Table:
    """Every quantity of every training."""
    rows = tuple(
        (
            MODELS[model].title,
            shown,
            *(number(mean(values_of(results, training, where, model))) for where in QUANTITIES.values()),
        )
        for model in models_of(results)
        for training, shown in trainings_of().items()
    )
    note = (
        "Means over units. AUROC and confident share of all test rows; the others are shares of each model's own "
        "confident rows among the first 1,000 test rows of a permutation that looks at no model."
    )
    return Table("ways", "Plain and hardened", ("Model", "training", *QUANTITIES), rows, note)


def goal(results: StudyResults) -> Table:
    """By how much both brittle shares fall, and what that costs."""
    rows = tuple(
        (
            MODELS[model].title,
            shown,
            *(_fall_cell(results, training, where, model) for where in (BRITTLE, DONORS)),
            signed_interval(change(results, training, AUROC, model)),
        )
        for model in models_of(results)
        for training, shown in trainings_of().items()
        if training != PLAIN
    )
    header = ("Model", "training", "brittle", "brittle under values of other rows", "AUROC [95%]")
    note = (
        "Each fall: of the mean share over units / the mean over data sets of the fall in each, with the number of "
        "data sets that have a brittle row. AUROC: hardened minus plain, paired bootstrap over units. The goal was 40% "
        "for both shares at no more than 0.003 of the AUROC."
    )
    return Table("goal", "How far the brittle shares fall", header, rows, note)


def _fall_cell(results: StudyResults, training: str, where: Where, model: str) -> str:
    falls = falls_by_dataset(results, training, where, model)
    of_mean = fall_of_mean(results, training, where, model)
    if not falls or math.isnan(of_mean):
        return NOTHING
    return f"{of_mean:.0%} / {mean(falls.values()):.0%} ({len(falls)})"


def by_dataset(results: StudyResults) -> Table:
    """Plain against hardened in every data set."""
    rows = tuple(
        (
            MODELS[model].title,
            DATASETS[dataset].title,
            *(_dataset_cell(results, where, model, dataset) for where in (BRITTLE, DONORS, AUROC)),
        )
        for model in models_of(results)
        for dataset in datasets_of(results)
    )
    header = ("Model", "Data set", "brittle", "brittle under values of other rows", "AUROC")
    note = f"{' → '.join(trainings_of().values())}; means over seeds."
    return Table("datasets", "By data set", header, rows, note)


def _dataset_cell(results: StudyResults, where: Where, model: str, dataset: str) -> str:
    cells = (
        mean(at_level(values_of(results, training, where, model), "dataset", [dataset])) for training in trainings_of()
    )
    return " → ".join(map(number, cells))


def units_run(results: StudyResults) -> Table:
    """Which units these results are of."""
    units = results.units
    rows = tuple(
        (MODELS[model].title, DATASETS[dataset].title, ", ".join(map(str, sorted(part["seed"]))))
        for model in models_of(results)
        for dataset in datasets_of(results)
        if len(part := units[(units["model"] == model) & (units["dataset"] == dataset)])
    )
    return Table("units", "Units that were run", ("Model", "Data set", "seeds"), rows)


MODE_HARDENING_TABLES: Mapping[str, Callable[[StudyResults], Table]] = {
    "ways": ways,
    "goal": goal,
    "datasets": by_dataset,
    "units": units_run,
    "environments": environments,
}
