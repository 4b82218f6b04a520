"""What the tests of serving share: a small model with numbers and categories, its protocol, and rows to decide on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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

NUMBERS = ["duration", "credit_amount", "age"]
TEXTS = ["checking_status", "housing"]


@dataclass(frozen=True)
class Case:
    """A fitted model with its protocol, and rows that it was not trained on; their ids are text."""

    model: Any
    protocol: fg.Protocol
    X: pd.DataFrame

    def audit(self, rows: slice) -> fg.Certificates:
        return fg.audit(self.model, self.X[rows], self.protocol, progress=False, lattice=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as JSON values."""
        return json.loads(self.X.to_json(orient="records"))


@pytest.fixture(scope="session")
def case() -> Case:
    X, y = fg.load_credit_g()
    X = X[[*NUMBERS, *TEXTS]].astype(dict.fromkeys(TEXTS, str))
    encode = make_column_transformer(
        (StandardScaler(), NUMBERS), (OneHotEncoder(handle_unknown="ignore", sparse_output=False), TEXTS)
    )
    model = make_pipeline(encode, LogisticRegression(max_iter=500)).fit(X[:600], y[:600])
    rows = X[600:].set_index(pd.Index([f"L{number}" for number in X.index[600:]]))
    return Case(model, fg.Protocol.fit(model, X[:600]), rows)


@pytest.fixture(scope="session")
def answering(case):
    from fragility.apps.serving.requests import Answering

    made = Answering(fg.Model.wrap(case.model), case.protocol)
    return made, made.warm_up()


@pytest.fixture
def serve(case, answering) -> Callable[..., Any]:
    """Return `serve(log=None, ...)`: a client of an application in this process, and the service behind it."""
    from starlette.testclient import TestClient

    from fragility.apps.guards import GuardRules
    from fragility.apps.serving.app import ServiceRules, create_app
    from fragility.apps.serving.batching import BatchRules
    from fragility.apps.serving.log import SealingRules, ServingLog

    @contextmanager
    def start(
        log: Path | None = None,
        rules: SealingRules | None = None,
        *,
        base: str = "http://127.0.0.1:8809",
        answers: Any = None,
        most_rows: int = 50,
        batches: BatchRules | None = None,
        **guards: Any,
    ) -> Iterator[Any]:
        made, manifest = answering
        kept = None if log is None else ServingLog.open(log, case.protocol, manifest, rules)
        own = ServiceRules(batches or BatchRules(), GuardRules(**guards), most_rows)
        app, service = create_app(answers or made, kept, own)
        with kept or nullcontext(), TestClient(app, base_url=base, raise_server_exceptions=False) as client:
            yield client, service

    return start
