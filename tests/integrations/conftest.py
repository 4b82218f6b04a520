"""An MLflow store in a SQLite file, and models that are logged to it."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
FIELDS = ["duration", "credit_amount", "age", "housing"]


@dataclass(frozen=True)
class Store:
    uri: str
    experiment: str
    home: Path


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="the extra mlflow is not installed")
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    home = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{home}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    return Store(uri, client.create_experiment("credit", artifact_location=(home / "artefacts").as_uri()), home)


@pytest.fixture(autouse=True)
def tracking(store, monkeypatch):
    """Every test uses the store, leaves no run active, and writes to a folder of its own."""
    import mlflow

    mlflow.set_tracking_uri(store.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", store.experiment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


@dataclass(frozen=True)
class Case:
    """A pipeline, its training rows, the rows to evaluate and their classes."""

    model: Any
    train: pd.DataFrame
    rows: pd.DataFrame
    labels: pd.Series
    protocol: fg.Protocol

    @property
    def data(self) -> pd.DataFrame:
        return self.rows.assign(risk=self.labels)


@pytest.fixture(scope="session")
def case() -> Case:
    X, y = fg.load_credit_g()
    X = X[FIELDS].astype({"duration": float, "credit_amount": float, "age": float, "housing": object})
    y = y.astype(str).astype(object)
    encode = make_column_transformer((OneHotEncoder(), ["housing"]), remainder=StandardScaler())
    model = make_pipeline(encode, LogisticRegression()).fit(X[:300], y[:300])
    return Case(model, X[:300], X[300:500], y[300:500], fg.Protocol.fit(model, X[:300]))


@pytest.fixture(scope="session")
def address(store, case) -> str:
    """Where the store keeps the pipeline."""
    import mlflow.sklearn

    mlflow.set_tracking_uri(store.uri)
    with mlflow.start_run(experiment_id=store.experiment):
        return mlflow.sklearn.log_model(case.model, name="pipeline", pip_requirements=[]).model_uri
