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

from fragility.base.errors import ModelError

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
