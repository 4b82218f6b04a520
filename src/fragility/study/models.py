"""The nine models of the study, with declared, untuned settings.

Every model is a scikit-learn ``Pipeline``: ``prepare`` (median imputation and standardisation for numeric fields,
one-hot for nominal fields, fitted on the training rows alone) and ``model``. The settings below were chosen for
cost before any test result was seen and are the same for every data set; where the library's own default is
affordable it is kept. A unit uses one thread, so its numbers do not depend on how many units run at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

from fragility.errors import ModelError
from fragility.resmlp import Device, FragilityPenalty, ResMLPClassifier
from fragility.study.datasets import DatasetSpec
from fragility.study.preparation import column_fields, preprocessing

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model family: its name in the tables, the library that must be importable, its settings."""

    name: str
    title: str
    library: str
    settings: Settings
    family: str

    def to_dict(self) -> dict[str, Any]:
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in self.settings}
        return {"name": self.name, "library": self.library, "settings": settings}


_NEURAL: Settings = (("width", 128), ("blocks", 2), ("batch_size", 512), ("max_epochs", 30), ("patience", 5))

MODELS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("logreg", "LogReg", "sklearn", (("C", 1.0), ("max_iter", 500)), "linear"),
        ModelSpec("rf", "RF", "sklearn", (("n_estimators", 100),), "forest"),
        ModelSpec("extratrees", "ExtraTrees", "sklearn", (("n_estimators", 100),), "forest"),
        ModelSpec(
            "xgboost",
            "XGBoost",
            "xgboost",
            (("n_estimators", 200), ("learning_rate", 0.1), ("max_depth", 6), ("tree_method", "hist")),
            "boosting",
        ),
        ModelSpec(
            "lightgbm",
            "LightGBM",
            "lightgbm",
            (("n_estimators", 200), ("learning_rate", 0.1), ("num_leaves", 31)),
            "boosting",
        ),
        ModelSpec(
            "catboost",
            "CatBoost",
            "catboost",
            (("iterations", 200), ("learning_rate", 0.1), ("depth", 6)),
            "boosting",
        ),
        ModelSpec(
            "mlp",
            "MLP",
            "sklearn",
            (
                ("hidden_layer_sizes", (128, 64)),
                ("batch_size", 200),
                ("max_iter", 30),
                ("early_stopping", True),
                ("n_iter_no_change", 10),
            ),
            "neural",
        ),
        ModelSpec("resmlp", "ResMLP", "torch", _NEURAL, "neural"),
        ModelSpec("fr_resmlp", "FR-ResMLP", "torch", (*_NEURAL, ("alpha", 0.5), ("beta", 0.1)), "neural"),
    )
}


def model_spec(name: str) -> ModelSpec:
    """The declaration of one model family, by name."""
    try:
        return MODELS[name]
    except KeyError:
        raise ModelError(f"unknown model {name!r}; expected one of {', '.join(MODELS)}") from None


def train(
    model: ModelSpec,
    data: DatasetSpec,
    X_train: pd.DataFrame,
    y_train: np.ndarray,
    X_validation: pd.DataFrame,
    y_validation: np.ndarray,
    *,
    seed: int,
    device: Device = "cpu",
) -> Pipeline:
    """Fit preprocessing and model on the training rows; validation rows serve early stopping of ResMLP alone."""
    prepare = preprocessing(data).fit(X_train)
    matrix = prepare.transform(X_train)
    estimator = _estimator(model, seed, column_fields(data, prepare), device)
    if model.library == "torch":
        estimator.fit(matrix, y_train, X_validation=prepare.transform(X_validation), y_validation=y_validation)
    else:
        estimator.fit(matrix, y_train)
    return Pipeline([("prepare", prepare), ("model", estimator)])


def _estimator(model: ModelSpec, seed: int, groups: tuple[str, ...], device: Device) -> Any:
    settings = dict(model.settings)
    if model.library == "torch":
        return _residual(settings, seed, groups, device)
    if model.name == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(**settings, random_state=seed, n_jobs=1)
    if model.name == "lightgbm":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(
            **settings, random_state=seed, n_jobs=1, deterministic=True, force_row_wise=True, verbose=-1
        )
    if model.name == "catboost":
        from catboost import CatBoostClassifier

        return CatBoostClassifier(
            **settings, random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False
        )
    if model.family == "forest":
        kind = RandomForestClassifier if model.name == "rf" else ExtraTreesClassifier
        return kind(**settings, random_state=seed, n_jobs=1)
    kind = LogisticRegression if model.name == "logreg" else MLPClassifier
    return kind(**settings, random_state=seed)


def _residual(settings: dict[str, Any], seed: int, groups: tuple[str, ...], device: Device) -> ResMLPClassifier:
    alpha, beta = settings.pop("alpha", 0.0), settings.pop("beta", 0.0)
    penalty = FragilityPenalty(alpha=alpha, beta=beta, groups=groups) if alpha else None
    return ResMLPClassifier(**settings, penalty=penalty, device=device, n_jobs=1, progress=False, random_state=seed)
