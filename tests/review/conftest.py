"""One audit of credit applications, with the model and rows it was made of."""

import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from workbench import Audit, reviewer, saved_audit, workbench

import fragility as fg

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["checking_status", "savings_status", "purpose"]


@pytest.fixture(scope="session")
def audited(tmp_path_factory) -> Audit:
    X, y = fg.load_credit_g()
    X = X[NUMERIC + NOMINAL]
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), NOMINAL), (StandardScaler(), NUMERIC))
    model = make_pipeline(encode, GradientBoostingClassifier(n_estimators=60, random_state=0)).fit(X[:700], y[:700])
    protocol = fg.Protocol.fit(model, X[:700], baseline="typical", depth=5)
    ids = [f"L{i:04}" for i in range(700, 1000)]
    return saved_audit(tmp_path_factory.mktemp("review") / "credit", model, X[700:], protocol, ids=ids)


@pytest.fixture
def bench(audited, tmp_path):
    with workbench(audited, tmp_path / "review.sqlite") as made:
        yield made


@pytest.fixture
def ana(bench):
    return reviewer(bench, "Ana Lima")


@pytest.fixture
def ben(bench):
    return reviewer(bench, "Ben")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Audit:
    """An audit whose field names, values, classes and ids are markup."""
    bold, script = "<b>amount</b>", "<script>window.broken = 1</script>"
    X, y = fg.load_credit_g()
    frame = pd.DataFrame(
        {bold: X["credit_amount"], script: X["duration"], "\"'&><img src=x onerror=alert(1)>": X["age"]}
    )
    label = y.map({"good": "<i>good</i>", "bad": "'\"><script>1</script>"})
    model = make_pipeline(StandardScaler(), GradientBoostingClassifier(n_estimators=30, random_state=0))
    model.fit(frame[:700], label[:700])
    protocol = fg.Protocol.fit(model, frame[:700])
    ids = [f"<script>window.broken={i}</script>" for i in range(40)]
    return saved_audit(tmp_path_factory.mktemp("hostile") / "audit", model, frame[700:740], protocol, ids=ids)


@pytest.fixture(scope="session")
def strange(tmp_path_factory) -> Audit:
    """An audit whose names have spaces at their ends, line ends, control characters and another writing direction."""
    X, y = fg.load_credit_g()
    frame = pd.DataFrame(
        {
            " amount ": X["credit_amount"],
            "dura\ntion": X["duration"],
            "\u202eage\u202c": X["age"],
            "\u05de\u05d8\u05e8\u05d4": X["purpose"].map(lambda value: f" {value}"),
        }
    )
    label = y.map({"good": " >50K", "bad": "\u202ebad\n\u05d0 "})
    nominal = ["\u05de\u05d8\u05e8\u05d4"]
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), nominal), remainder="passthrough")
    model = make_pipeline(encode, GradientBoostingClassifier(n_estimators=30, random_state=0))
    model.fit(frame[:700], label[:700])
    protocol = fg.Protocol.fit(model, frame[:700])
    ids = [f" {i}\u202e\x1b[2J " for i in range(100)]
    return saved_audit(tmp_path_factory.mktemp("strange") / "audit", model, frame[700:800], protocol, ids=ids)
