"""Fit one of the declared models: preprocessing and estimator, on training rows alone."""

from __future__ import annotations

from typing import Any

from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

import fragility as fg
from fragility_paper.data import Dataset, Split, column_fields, preprocessing
from fragility_paper.library import Device, FragilityPenalty
from fragility_paper.models import ModelSpec


def train(model: ModelSpec, data: Dataset, parts: Split, *, device: Device = "cpu") -> Pipeline:
    """Fit preprocessing and model on the training rows; validation rows serve early stopping of ResMLP alone."""
    X, y = data.X, data.y
    prepare = preprocessing(data.spec).fit(X.iloc[parts.train])
    matrix = prepare.transform(X.iloc[parts.train])
    if model.library == "torch":
        estimator = _residual_network(model, parts.seed, column_fields(data.spec, prepare), device)
    else:
        estimator = _estimator(model, parts.seed)
    estimator.fit(matrix, y[parts.train], **_held_out(model, data, parts, prepare))
    return Pipeline([("prepare", prepare), ("model", estimator)])


def _held_out(model: ModelSpec, data: Dataset, parts: Split, prepare: Any) -> dict[str, Any]:
    if model.library != "torch":
        return {}
    return {
        "X_validation": prepare.transform(data.X.iloc[parts.validation]),
        "y_validation": data.y[parts.validation],
    }


def train_hardened(
    model: ModelSpec,
    plain: Pipeline,
    data: Dataset,
    parts: Split,
    protocol: fg.Protocol,
    *,
    rate: float,
    copies: int,
    modes: tuple[str, ...] = ("lost",),
) -> Pipeline:
    """Train the same pipeline again on the training rows and their degraded twins; validation rows as they are."""
    hardened: Pipeline = fg.harden(
        plain,
        data.X.iloc[parts.train],
        data.y[parts.train],
        protocol=protocol,
        rate=rate,
        copies=copies,
        modes=modes,
        fit_params=_held_out(model, data, parts, plain[0]),
        seed=parts.seed,
    )
    return hardened


def _residual_network(model: ModelSpec, seed: int, groups: tuple[str, ...], device: Device) -> Any:
    settings = dict(model.settings)
    alpha, beta = settings.pop("alpha", 0.0), settings.pop("beta", 0.0)
    penalty = FragilityPenalty(alpha=alpha, beta=beta, groups=groups) if alpha else None
    return fg.ResMLPClassifier(**settings, penalty=penalty, device=device, n_jobs=1, progress=False, random_state=seed)


def _estimator(model: ModelSpec, seed: int) -> Any:
    settings = dict(model.settings)
    if model.family == "boosting":
        return _boosting(model.name, settings, seed)
    if model.family == "forest":
        forest = RandomForestClassifier if model.name == "rf" else ExtraTreesClassifier
        return forest(**settings, random_state=seed, n_jobs=1)
    plain = LogisticRegression if model.name == "logreg" else MLPClassifier
    return plain(**settings, random_state=seed)


def _boosting(name: str, settings: dict[str, Any], seed: int) -> Any:
    """Only the library that is asked for is imported."""
    if name == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(**settings, random_state=seed, n_jobs=1)
    if name == "lightgbm":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(
            **settings, random_state=seed, n_jobs=1, deterministic=True, force_row_wise=True, verbose=-1
        )
    from catboost import CatBoostClassifier

    return CatBoostClassifier(**settings, random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False)
