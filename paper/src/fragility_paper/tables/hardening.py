"""Tables of the hardening study: hardened against plain, paired by unit, on test rows; forests on validation rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fragility_paper.data import DATASETS
from fragility_paper.library import PairedDifference, paired_bootstrap
from fragility_paper.models import MODELS
from fragility_paper.plan import HARDENING_RATE
from fragility_paper.results import StudyResults, Values
from fragility_paper.table import NOTHING, Table, mean, number, signed_interval
from fragility_paper.tables.quantities import at_level, datasets_of, models_of

TOLERANCE, ROUNDING = 0.003, 1e-9  # of AUROC
BOOSTED = tuple(name for name, spec in MODELS.items() if spec.family == "boosting")
FORESTS = tuple(name for name, spec in MODELS.items() if spec.family == "forest")
Where = Mapping[str, Any]

BRITTLE: Where = {"metric": "brittle_share", "rows": "confident", "variant": "default"}
AUROC: Where = {"metric": "auroc", "rows": "test"}
EARLY: Where = {"metric": "flips_early", "rows": "confident"}
DONORS: Where = {**BRITTLE, "variant": "donor"}
NOISE: Where = {**BRITTLE, "variant": "noise"}
QUANTITIES: tuple[tuple[str, Where], ...] = (
    ("AUROC", AUROC),
    ("accuracy", {"metric": "accuracy", "rows": "test"}),
    ("NLL", {"metric": "nll", "rows": "test"}),
    ("ECE", {"metric": "ece", "rows": "test"}),
    ("confident share", {"metric": "confident_share", "rows": "test"}),
    ("error among confident", {"metric": "confident_error", "rows": "test"}),
    ("brittle share of confident rows", BRITTLE),
    ("brittle share under values of other rows", DONORS),
    ("brittle share under noise", NOISE),
    ("brittle share of all rows", {**BRITTLE, "rows": "any"}),
    ("brittle share of rows that both are confident of", {**BRITTLE, "rows": "both"}),
    ("exposure, all rows", {"metric": "exposure", "rows": "any"}),
    ("exposure, confident rows", {"metric": "exposure", "rows": "confident"}),
    ("flips early, confident rows", EARLY),
    ("k*, all rows", {"metric": "flip_budget", "rows": "any"}),
    ("k*, confident rows", {"metric": "flip_budget", "rows": "confident"}),
    ("one group flips, confident rows", {"metric": "one_group_flips", "rows": "confident"}),
)
STRESSES = {
    "default": "all three at 0.3, toward `typical`",
    "mask": "groups masked, alone (seen in training, at 0.2)",
    "dropout": "columns dropped, alone",
    "noise": "noise, alone",
    "baseline mean": "all three, toward `mean`",
    "baseline median": "all three, toward `median`",
    "baseline missing": "all three, toward `missing`",
    "naturalistic": "naturalistic outages",
    "donor": "groups from another training row",
}


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """One quantity of the same units, plain and hardened."""

    plain: Values
    hardened: Values

    @property
    def difference(self) -> PairedDifference:
        return paired_bootstrap(self.hardened.to_numpy(), self.plain.to_numpy())

    def cells(self, digits: int = 3) -> tuple[str, str, str]:
        return number(mean(self.plain), digits), number(mean(self.hardened), digits), signed_interval(self.difference)

    def of(self, level: str, names: tuple[str, ...]) -> Pair:
        return Pair(at_level(self.plain, level, names), at_level(self.hardened, level, names))


def pair(results: StudyResults, where: Where) -> Pair:
    """A quantity over the units where both are defined."""
    both = pd.concat([results.per_unit("hardening", training=name, **where) for name in ("plain", "hardened")], axis=1)
    both = both.dropna()
    return Pair(both.iloc[:, 0], both.iloc[:, 1])


# ------------------------------------------------------------------ hardened against plain


def summary(results: StudyResults, models: tuple[str, ...] = (), key: str = "summary", of: str = "All models") -> Table:
    """Every quantity, over all units or those of some models."""
    rows = []
    for title, where in QUANTITIES:
        found = pair(results, where)
        found = found.of("model", models) if models else found
        rows.append((title, *found.cells(), str(len(found.plain))))
    header = ("Quantity", "plain", "hardened", "difference [95%]", "units")
    note = (
        "Means over units where both are defined, paired bootstrap over units. Test rows; certificates and stress on "
        "the first 1,000 of a permutation that looks at no model. A row counts as brittle only where its model is "
        "confident."
    )
    return Table(key, f"{of}: hardened against plain", header, tuple(rows), note)


def boosted_by_dataset(results: StudyResults) -> Table:
    """The question of the study: is the brittle share of confident rows halved at a cost of at most 0.003 of AUROC?"""
    titles = {name: DATASETS[name].title for name in datasets_of(results)}
    rows = [_promise_row(results, shown, "dataset", name, BOOSTED) for name, shown in titles.items()]
    rows.append(_promise_row(results, "Mean", "dataset", None, BOOSTED))
    return _promise_table("boosted", "Boosted trees by data set", "Data set", rows)


def by_model(results: StudyResults) -> Table:
    rows = [_promise_row(results, MODELS[name].title, "model", name) for name in models_of(results)]
    return _promise_table("models", "By model family", "Model", rows)


def by_pair(results: StudyResults) -> Table:
    """Brittle share of confident rows, plain -> hardened, for every data set and model."""
    found = pair(results, BRITTLE)
    plain, hardened = (values.groupby(["dataset", "model"]).mean() for values in (found.plain, found.hardened))
    datasets = datasets_of(results)
    rows = tuple(
        (
            MODELS[model].title,
            *(
                f"{number(float(plain.get((name, model), math.nan)))} → "
                f"{number(float(hardened.get((name, model), math.nan)))}"
                for name in datasets
            ),
        )
        for model in models_of(results)
    )
    header = ("Model", *(DATASETS[name].title for name in datasets))
    return Table("pairs", "Brittle share of confident rows, plain → hardened, means over seeds", header, rows)


def _promise_table(key: str, title: str, first: str, rows: list[tuple[str, ...]]) -> Table:
    header = (
        first, "brittle share of confident rows, plain", "hardened", "difference [95%]", "hardened / plain",
        "AUROC, plain", "hardened", "difference [95%]", "confident share, plain", "hardened",
        "units: halved at ≤ 0.003 / not / nothing brittle",
    )  # fmt: skip
    note = (
        "Halved: the brittle share of a unit's confident rows is at most half of the plain model's, and its AUROC "
        "lower by at most 0.003. Nothing brittle: the plain model has no brittle or no confident row among those "
        "stressed."
    )
    return Table(key, title, header, tuple(rows), note)


def _promise_row(
    results: StudyResults, title: str, level: str, name: str | None, models: tuple[str, ...] = ()
) -> tuple[str, ...]:
    def narrowed(found: Pair) -> Pair:
        found = found.of("model", models) if models else found
        return found if name is None else found.of(level, (name,))

    brittle, area = narrowed(pair(results, BRITTLE)), narrowed(pair(results, AUROC))
    share = narrowed(pair(results, {"metric": "confident_share", "rows": "test"}))
    held = promise(brittle, area)
    ratio = mean(brittle.hardened) / mean(brittle.plain) if mean(brittle.plain) > 0 else math.nan
    kept = f"{held['halved']} / {held['not']} / {held['nothing']}"
    return (title, *brittle.cells(), number(ratio, 2), *area.cells(), *share.cells()[:2], kept)


def promise(brittle: Pair, area: Pair) -> dict[str, int]:
    """In how many units the brittle share is halved at the tolerated cost."""
    plain = brittle.plain.reindex(area.plain.index)
    hardened = brittle.hardened.reindex(area.plain.index)
    judged = plain > 0
    halved = judged & (hardened <= plain / 2) & (area.plain - area.hardened <= TOLERANCE + ROUNDING)
    return {"halved": int(halved.sum()), "not": int((judged & ~halved).sum()), "nothing": int((~judged).sum())}


def by_stress(
    results: StudyResults, models: tuple[str, ...] = (), key: str = "stress", of: str = "all models"
) -> Table:
    """Stress that training saw and stress that it did not."""
    there = set(results.pick("hardening", metric="brittle_share")["variant"])
    rows = []
    for variant, title in STRESSES.items():
        if variant in there:
            rows.append((title, *_stress_cells(results, variant, models)))
    header = (
        "Stress", "brittle share of confident rows, plain", "hardened", "difference [95%]",
        "of all rows, plain", "hardened", "difference [95%]",
        "any row flips, plain", "hardened", "difference [95%]",
    )  # fmt: skip
    note = "Training saw groups replaced by their typical values at a rate of 0.2, and nothing else."
    return Table(key, f"Under stress, {of}", header, tuple(rows), note)


def _stress_cells(results: StudyResults, variant: str, models: tuple[str, ...]) -> list[str]:
    cells: list[str] = []
    for metric, rows in (("brittle_share", "confident"), ("brittle_share", "any"), ("flip_under_stress", "any")):
        found = pair(results, {"metric": metric, "rows": rows, "variant": variant})
        cells += (found.of("model", models) if models else found).cells()
    return cells


def networks(results: StudyResults) -> Table:
    """Two ways to train a network that rests on more evidence, beside the plain one."""
    kinds = (("resmlp", "plain"), ("fr_resmlp", "plain"), ("resmlp", "hardened"), ("fr_resmlp", "hardened"))
    header = (
        "Quantity", "ResMLP", "FR-ResMLP", "hardened ResMLP", "both", "hardened ResMLP - FR-ResMLP [95%]", "pairs",
    )  # fmt: skip
    rows = []
    for title, where in QUANTITIES:
        values = [
            results.per_unit("hardening", training=training, **{**where, "model": model}).droplevel("model")
            for model, training in kinds
        ]
        both = pd.concat(values, axis=1).dropna()
        found = paired_bootstrap(both.iloc[:, 2].to_numpy(), both.iloc[:, 1].to_numpy())
        rows.append((title, *(number(mean(both.iloc[:, i])) for i in range(4)), signed_interval(found), str(len(both))))
    note = (
        "Paired by data set and seed. FR-ResMLP is the paper's regularised network; both: the same, hardened as well."
    )
    return Table("networks", "ResMLP, FR-ResMLP and hardened ResMLP", header, tuple(rows), note)


# ------------------------------------------------------------------ cost


def training_time(results: StudyResults) -> Table:
    rows = []
    for name in models_of(results):
        found = training_seconds(results, (name,))
        ratio = found["train hardened"] / found["train plain"]
        cells = [number(mean(found[stage]), 1) for stage in ("train plain", "train hardened")]
        total = found["train hardened"].sum() / found["train plain"].sum()
        rows.append((MODELS[name].title, *cells, number(total, 2), number(float(ratio.median()), 2)))
    header = ("Model", "plain, s", "hardened, s", "ratio of the sums", "median ratio of a unit")
    note = (
        "In the same unit, one thread, other units side by side; both with their preprocessing. Twice the rows, and "
        "for models that stop early another number of steps."
    )
    return Table("time", "Training time", header, tuple(rows), note)


def training_seconds(results: StudyResults, models: tuple[str, ...] = ()) -> pd.DataFrame:
    """One row a unit, one column a training."""
    timings = results.timings[results.timings["stage"].str.startswith("train ")]
    timings = timings[timings["model"].isin(models)] if models else timings
    return timings.pivot(index=["dataset", "model", "seed"], columns="stage", values="seconds")


# ------------------------------------------------------------------ forests, on validation rows

FOREST_LIMITS = ("none", "leaves of 5", "leaves of 20", "depth 12")
FOREST_METRICS = (
    "auroc", "nll", "confident_share", "brittle_share_of_confident", "flip_share_of_confident", "brittle_share_of_all",
    "exposure", "leaves",
)  # fmt: skip


def forests(results: StudyResults) -> Table:
    """What limits do to plain and hardened forests; validation rows."""
    header = (
        "Limit", "training", "AUROC", "NLL", "confident share", "brittle share of confident", "flips",
        "brittle share of all", "exposure", "leaves per tree",
    )  # fmt: skip
    lines = results.pick("forest")
    if lines.empty:
        return Table("forests", "Forests", header, ((NOTHING,) * len(header),), "Not in these results.")
    rows = tuple(_forest_row(results, limit, rate) for limit in FOREST_LIMITS for rate in (0.0, HARDENING_RATE))
    units = len(lines[["dataset", "model"]].drop_duplicates())
    note = (
        f"Means over {units} forests (RandomForest and ExtraTrees, seed 0), trained on at most 6,000 training rows and "
        "judged on validation rows; no test row was looked at. Flips: of confident rows, under stress."
    )
    return Table("forests", "Forests: limits on depth and leaves, on validation rows", header, rows, note)


def _forest_row(results: StudyResults, limit: str, rate: float) -> tuple[str, ...]:
    values = [mean(forest_values(results, name, limit, rate)) for name in FOREST_METRICS]
    cells = [number(v, 0 if name == "leaves" else 3) for name, v in zip(FOREST_METRICS, values, strict=True)]
    return (limit, "hardened" if rate else "plain", *cells)


def forest_values(results: StudyResults, metric: str, limit: str, rate: float) -> Values:
    """A quantity of every forest with one limit, plain (rate 0) or hardened."""
    return results.per_unit("forest", metric=metric, variant=limit, severity=rate)


# ------------------------------------------------------------------ toward the mean, as the study was first run


def toward_mean(results: StudyResults) -> Table:
    """Boosted trees hardened toward the mean, judged under `mean` and under `typical`, beside the present ones."""
    header = (
        "Units", "toward `mean`: brittle under `mean`, plain", "hardened", "brittle under `typical`, plain",
        "hardened", "toward `typical`: brittle under `typical`, plain", "hardened",
    )  # fmt: skip
    earlier = results.earlier
    if earlier is None:
        return Table("mean", "Toward the mean", header, ((NOTHING,) * len(header),), "Not in these results.")
    columns = ((earlier, "default"), (earlier, "baseline mode"), (results, "default"))
    pairs = [pair(found, {**BRITTLE, "variant": variant}).of("model", BOOSTED) for found, variant in columns]
    rows = [
        (
            f"{DATASETS[name].title}, {MODELS[model].title}",
            *(cell for found in pairs for cell in found.of("dataset", (name,)).of("model", (model,)).cells()[:2]),
        )
        for name in datasets_of(results)
        for model in BOOSTED
    ]
    rows.append(("Mean", *(cell for found in pairs for cell in found.cells()[:2])))
    note = (
        "Brittle share of confident rows. The first four columns are from the study as it was first run, with training "
        "and labels toward the mean; `typical` was called the mode there, and judged on 1,000 rows."
    )
    return Table("mean", "Boosted trees, hardened toward the mean and toward typical values", header, tuple(rows), note)


HARDENING_TABLES: Mapping[str, Callable[[StudyResults], Table]] = {
    "summary": summary,
    "summary-boosted": lambda results: summary(results, BOOSTED, "summary-boosted", "Boosted trees"),
    "boosted": boosted_by_dataset,
    "models": by_model,
    "pairs": by_pair,
    "stress": by_stress,
    "stress-boosted": lambda results: by_stress(results, BOOSTED, "stress-boosted", "boosted trees"),
    "networks": networks,
    "time": training_time,
    "forests": forests,
    "mean": toward_mean,
}
