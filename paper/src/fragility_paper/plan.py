"""What is run: profiles, units and the configuration that a unit's folder records.

A unit is one data set, one model family, one seed. A profile says which units there are and how many rows each
analysis takes. Costly extras (sensitivity to baseline, grouping, depth and thresholds, group-SHAP, subset searches)
run on declared seeds and declared numbers of rows, all of which are written into the unit's ``config.json``.

Row selection is the same for every analysis: the test rows are permuted once by the seed, and an analysis takes the
first so many of them that qualify. A smaller analysis therefore looks at a prefix of the rows of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from fragility.base.errors import DataError
from fragility_paper.data import DATASETS, dataset_spec
from fragility_paper.library import Device
from fragility_paper.models import MODELS, model_spec

FORMAT = "fragility-study/4"

FAILURE_RATES = (0.05, 0.1, 0.3)  # at which groups fail, for P_flip as a ranking score; the last is the mask stressor's

# Whether scores rank brittle rows, all analyses of the paper; the same alone, with scores and labels of several
# baselines; what training on degraded copies does; whether exposure to a failure mode ranks what that mode breaks; or
# what training on copies of several failure modes does.
Study = Literal["ranking", "baselines", "hardening", "modes", "mode-hardening"]
# Kind of labels -> the failure mode that declares the same kind of failure.
MATCHING: Mapping[str, str] = {
    "default": "lost",
    "mask": "lost",
    "noise": "noisy",
    "donor": "wrong",
    "outage": "outage",
    "stale": "stale",
    "sentinel": "sentinel",
}
SENTINELS = (0.0, -999.0, "x * 100")  # of numeric fields, with equal chances
HARDENING_RATE, HARDENING_COPIES = 0.2, 1  # groups masked in degraded copies; declared before any test result


@dataclass(frozen=True, slots=True)
class Way:
    """How the copies of training rows are degraded."""

    modes: tuple[str, ...]
    rate: float
    copies: int


# Chosen on validation rows of a split that is not in the study.
HARDENING_WAYS: Mapping[str, Way] = {
    "lost": Way(("lost",), HARDENING_RATE, HARDENING_COPIES),
    "modes": Way(("lost", "wrong", "noisy"), 0.3, 3),
}

# Cheap first, so that an interrupted run still covers every data set.
_CHEAP_DATASETS = ("credit_g", "heloc", "electricity", "default_credit", "bank_marketing", "adult", "covertype")
_CHEAP_MODELS = ("logreg", "catboost", "xgboost", "lightgbm", "mlp", "resmlp", "rf", "extratrees", "fr_resmlp")


@dataclass(frozen=True, slots=True)
class Profile:
    """Which units are run, and how many rows each analysis of a unit takes."""

    name: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    audited_rows: int  # high-confidence test rows that are certified, stressed and ranked
    rcma_rows: int  # test rows of any confidence, for the mean RCMA of a model; those that hardening is judged on
    validation_rows: int  # high-confidence validation rows that decide the orientation of a baseline score
    calibration_rows: int  # validation rows of any confidence, for the temperature, or for the ablation of forests
    study: Study = "ranking"
    baseline: str = "mean"  # what replaces lost evidence; the paper's choice
    smoothing: float | None = 0.0  # of margins; None for the default of `Protocol.fit`, which depends on the model
    other_severities: tuple[float, ...] = (0.1, 0.5)  # at which labels are made again
    draws: int = 16
    extra_seeds: tuple[int, ...] = (0,)  # seeds that run the extras below
    extra_rows: int = 512  # high-confidence rows for baseline, grouping, depth, temperature and threshold extras, and
    # for the scores and labels of several baselines
    shap_rows: int = 256
    search_rows: int = 43  # high-confidence rows for exact and beam search; 9 models make 387 a data set
    search_evaluations: int = 4_100  # states an exact search may cost a row before it is called unaffordable
    random_orders: int = 3
    train_cap: int | None = None  # overrides the data set's own cap on training rows
    full: bool = False  # lifts every cap on training rows
    device: Device = "cpu"  # where ResMLP trains and predicts; recorded with a unit's timing, since it is no setting

    def __post_init__(self) -> None:
        for name in self.datasets:
            dataset_spec(name)
        for name in self.models:
            model_spec(name)
        if self.device not in get_args(Device):
            raise DataError(f"device must be one of {', '.join(get_args(Device))}, got {self.device!r}")
        if not self.datasets or not self.models or not self.seeds:
            raise DataError(f"profile {self.name!r} must name at least one data set, model and seed")

    def rows_to_train(self, dataset: str) -> int | None:
        if self.full:
            return None
        return self.train_cap if self.train_cap is not None else dataset_spec(dataset).train_cap


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="smoke",
            datasets=("credit_g",),
            models=("logreg", "rf", "mlp"),
            seeds=(0,),
            audited_rows=40,
            rcma_rows=60,
            validation_rows=40,
            calibration_rows=60,
            draws=8,
            extra_rows=40,
            shap_rows=20,
            search_rows=6,
            search_evaluations=250,
            random_orders=2,
        ),
        Profile(
            name="quick",
            datasets=("adult", "electricity", "heloc"),
            models=("logreg", "lightgbm", "rf"),
            seeds=(0,),
            audited_rows=256,
            rcma_rows=256,
            validation_rows=256,
            calibration_rows=256,
            extra_rows=256,
            shap_rows=256,
        ),
        Profile(
            name="typical-smoke",
            study="baselines",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=("credit_g",),
            models=("logreg", "rf", "mlp"),
            seeds=(0,),
            audited_rows=40,
            rcma_rows=0,
            validation_rows=40,
            calibration_rows=60,
            draws=8,
            extra_rows=30,
            random_orders=2,
        ),
        Profile(
            name="typical",
            study="baselines",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=tuple(DATASETS),
            models=tuple(MODELS),
            seeds=(0, 1, 2),
            audited_rows=2_000,
            rcma_rows=0,
            validation_rows=500,
            calibration_rows=1_000,
            extra_rows=500,
        ),
        Profile(
            name="harden-smoke",
            study="hardening",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=("credit_g",),
            models=("logreg", "lightgbm", "rf", "mlp"),
            seeds=(0,),
            audited_rows=0,
            rcma_rows=60,
            validation_rows=0,
            calibration_rows=60,
            draws=8,
            train_cap=300,
        ),
        Profile(
            name="harden",
            study="hardening",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=tuple(DATASETS),
            models=tuple(MODELS),
            seeds=(0, 1, 2),
            audited_rows=0,
            rcma_rows=1_000,
            validation_rows=0,
            calibration_rows=500,
        ),
        Profile(
            name="harden-modes-smoke",
            study="mode-hardening",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=("credit_g",),
            models=("logreg", "lightgbm"),
            seeds=(0,),
            audited_rows=0,
            rcma_rows=60,
            validation_rows=0,
            calibration_rows=0,
            draws=8,
            train_cap=300,
        ),
        Profile(
            name="harden-modes",
            study="mode-hardening",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=tuple(DATASETS),
            models=tuple(MODELS),
            seeds=(0, 1, 2),
            audited_rows=0,
            rcma_rows=1_000,
            validation_rows=0,
            calibration_rows=0,
            train_cap=20_000,
        ),
        Profile(
            name="modes-smoke",
            study="modes",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=("credit_g",),
            models=("logreg", "lightgbm", "rf", "mlp"),
            seeds=(0,),
            audited_rows=40,
            rcma_rows=0,
            validation_rows=40,
            calibration_rows=60,
            draws=8,
            random_orders=2,
        ),
        Profile(
            name="modes",
            study="modes",
            baseline="typical",
            smoothing=None,
            other_severities=(),
            datasets=tuple(DATASETS),
            models=tuple(MODELS),
            seeds=(0, 1, 2),
            audited_rows=2_000,
            rcma_rows=0,
            validation_rows=500,
            calibration_rows=1_000,
        ),
        Profile(
            name="paper",
            datasets=tuple(DATASETS),
            models=tuple(MODELS),
            seeds=(0, 1, 2),
            audited_rows=2_000,
            rcma_rows=2_000,
            validation_rows=500,
            calibration_rows=1_000,
        ),
    )
}


def profile_named(name: str, *, full: bool = False, device: Device = "cpu") -> Profile:
    """A profile by name; ``full`` lifts the declared caps on training rows."""
    try:
        return replace(PROFILES[name], full=full, device=device)
    except KeyError:
        raise DataError(f"unknown profile {name!r}; expected one of {', '.join(PROFILES)}") from None


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One trained model: the unit of the paired bootstrap."""

    dataset: str
    model: str
    seed: int

    @property
    def label(self) -> str:
        """Its name in folders; a label only, config.json holds the facts."""
        return f"{self.dataset}.{self.model}.{self.seed}"

    @property
    def folder(self) -> str:
        """Where its results lie, relative to the output folder."""
        return f"units/{self.label}"

    def __str__(self) -> str:
        return f"{self.dataset} / {self.model} / seed {self.seed}"


def units_of(profile: Profile) -> tuple[Unit, ...]:
    """All units, seed by seed; within a seed cheap models first, so an early stop leaves whole seeds."""
    units = (
        Unit(dataset, model, seed) for dataset in profile.datasets for model in profile.models for seed in profile.seeds
    )
    return tuple(sorted(units, key=lambda u: (u.seed, _CHEAP_MODELS.index(u.model), _CHEAP_DATASETS.index(u.dataset))))


def unit_config(unit: Unit, profile: Profile) -> dict[str, Any]:
    """Everything that decides a unit's numbers, as plain values."""
    data = dataset_spec(unit.dataset)
    no_setting = ("name", "datasets", "models", "seeds", "device")
    analyses = {key: value for key, value in asdict(profile).items() if key not in no_setting}
    analyses |= {"extra_seeds": list(profile.extra_seeds), "other_severities": list(profile.other_severities)}
    if profile.study == "hardening":
        analyses["hardening"] = {"kind": "mask", "rate": HARDENING_RATE, "copies": HARDENING_COPIES}
    if profile.study == "mode-hardening":
        analyses["hardening"] = {name: asdict(way) for name, way in HARDENING_WAYS.items()}
    if profile.study == "modes":
        analyses["sentinels"] = {"numeric": list(SENTINELS), "nominal": "the rarest category"}
    return {
        "format": FORMAT,
        "dataset": unit.dataset,
        "model": model_spec(unit.model).to_dict(),
        "seed": unit.seed,
        "profile": profile.name,
        "data_content_sha256": data.content_sha256,
        "split": "60/20/20 stratified by class",
        "train_cap": profile.rows_to_train(unit.dataset),
        "extras": unit.seed in profile.extra_seeds,
        "failure_rates": list(FAILURE_RATES),
        "analyses": analyses,
    }
