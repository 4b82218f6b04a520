"""Questions about nothing: no rows, no states, no units and no confident predictions are ordinary, and ask no model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier, StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from xgboost import XGBClassifier

import fragility as fg
from fragility.engines.choice import choose_oracle
from fragility.engines.engine import Values
from fragility.engines.oracle import ModelOracle
from fragility.evidence import States
from fragility.protocol import bind


def booster() -> LGBMClassifier:
    return LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1)


def logistic() -> LogisticRegression:
    return LogisticRegression(max_iter=300)


MODELS = {
    "logistic": logistic,
    "lightgbm": booster,
    "forest": lambda: RandomForestClassifier(10, random_state=0),
    "xgboost": lambda: XGBClassifier(n_estimators=10, n_jobs=1),
    "voting": lambda: VotingClassifier(
        [("a", booster()), ("b", XGBClassifier(n_estimators=10, n_jobs=1)), ("c", logistic())], voting="soft"
    ),
    "stacking": lambda: StackingClassifier([("a", booster()), ("b", logistic())], cv=2),
    "calibrated": lambda: CalibratedClassifierCV(logistic(), cv=2),
    "mlp": lambda: MLPClassifier((8,), max_iter=20, random_state=0),
    "blackbox": lambda: SVC(probability=True, random_state=0),
}


@pytest.fixture(scope="module")
def bank(load_data) -> tuple[pd.DataFrame, pd.Series]:
    X, y = load_data("bank_marketing", "y")
    return X[:800], (y[:800] == "yes").astype(int)


def one_hot(estimator):
    return make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False), estimator)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MODELS)
def test_a_table_of_nominal_fields_is_audited_and_verified_whatever_the_model(kind, bank):
    """No field is numeric, so the mode `noisy` has no units."""
    X, y = bank
    X = X.select_dtypes(exclude="number").astype(str).iloc[:, :6]
    model = one_hot(MODELS[kind]()).fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    audit = fg.audit(model, X[:40], protocol, modes=True, intervals=True)
    assert audit.manifest.blocks["modes"].units["noisy"] == []
    assert fg.verify(audit, model, X[:40])
    losses = fg.assess_modes(model, X[:40], protocol)
    assert losses["noisy"].drop.shape == (40, 0) and (losses["noisy"].exposure == 0).all()


@pytest.mark.parametrize("kind", ["logistic", "lightgbm", "blackbox"])
def test_nominal_fields_with_gaps_are_audited_and_checked(kind, bank):
    """No unit of `noisy`, and rows in which the units of other modes are missing."""
    X, y = bank
    X = X[["job", "marital", "contact"]].astype(object)
    X = X.mask(np.random.default_rng(0).random(X.shape) < 0.2, None)
    model = one_hot(MODELS[kind]()).fit(X[:700], y[:700])
    protocol = fg.Protocol.fit(model, X[:700])
    certs = fg.audit(model, X[700:], protocol, modes=True)
    assert certs.manifest.blocks["modes"].units["noisy"] == [] and (certs.modes["noisy"].exposure == 0.0).all()
    assert fg.verify(certs, model, X[700:])
    guard = fg.Guard(model, protocol)
    decisions = [guard.check(row).decision for row in X[700:710].to_dict("records")]
    assert decisions == model.predict(X[700:710]).tolist()


def test_soft_voting_with_a_logistic_regression_inside():
    X, y = fg.load_credit_g()
    model = one_hot(MODELS["voting"]()).fit(X[:700], y[:700])
    audit = fg.audit(model, X[700:900], fg.Protocol.fit(model, X[:700]))
    assert audit.engine == "wrapped" and fg.verify(audit, model, X[700:900], sample=20)


@pytest.mark.parametrize("kind", ("logistic", "lightgbm", "voting", "blackbox"))
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("columns", (["age"], ["job"], ["age", "balance", "job"]))
def test_one_group_or_one_row(kind, columns, bank):
    X, y = bank
    nominal = [name for name in columns if name == "job"]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    model = MODELS[kind]()
    from sklearn.compose import ColumnTransformer

    model = make_pipeline(ColumnTransformer([("n", encoder, nominal)], remainder="passthrough"), model)
    model.fit(X[columns], y)
    protocol = fg.Protocol.fit(model, X[columns])
    rows = X[columns][:1] if len(columns) > 1 else X[columns][:20]
    audit = fg.audit(model, rows, protocol, rates=0.1, modes=True, intervals=True)
    assert fg.verify(audit, model, rows)
    assert fg.Report.of(audit).to_html()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_asked_of_no_model(kind, bank):
    """Rows, states and units that there are none of have answers of their shape."""
    X, y = bank
    X = X[["job", "marital"]]
    model = one_hot(MODELS[kind]()).fit(X, y)
    rows = bind(fg.Model.wrap(model), X[:5], fg.Protocol.fit(model, X))
    oracles, asked = (ModelOracle(rows), choose_oracle(rows)), []
    model[-1].predict_proba = lambda matrix: asked.append(matrix)
    x, no_units = rows.dense(), np.empty(0, dtype=np.int64)
    assert rows.predict(x[:0]).shape == (0, 2)
    for oracle in oracles:
        assert oracle.predict(x[:0]).shape == oracle.predict_copies(x[:0], x[:0, None]).shape == (0, 2)
        assert oracle.answer_states(x, States(no_units, np.empty((0, rows.n_groups), dtype=bool))).shape == (0, 2)
        nothing, some = (Values(rows.baseline, rows.column_group, units) for units in (no_units, np.arange(2)))
        assert [p.shape for p in oracle.answer_values(x, [nothing, nothing])] == 2 * [(0, 5, 2)]
        assert [p.shape for p in oracle.answer_values(x[:0], [some])] == [(2, 0, 2)]
    assert fg.Model.wrap(model).probabilities(X[:0]).shape == (0, 2)
    assert not asked


@pytest.mark.parametrize("kind", ("logistic", "lightgbm", "voting"))
@pytest.mark.filterwarnings("ignore")
def test_an_audit_without_a_confident_prediction(kind, bank, tmp_path):
    X, _ = bank
    X = X[["age", "balance", "day"]]
    y = np.random.default_rng(0).integers(0, 2, len(X))
    model = MODELS[kind]().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    audit = fg.audit(model, X[:60], protocol, rates=0.1, modes=True)
    assert audit.claims.confidence.max() < 0.9
    assert fg.verify(audit, model, X[:60])
    assert fg.Report.of(audit, model=model, rows=X[:60], by="age").to_html()
    assert not fg.label_brittle(model, X[:60], protocol).brittle.any()
    assert len(audit.most_fragile()) == 0 and str(fg.share_by(audit, X[:60], "age"))
    fg.pack(audit.save(tmp_path / "audit"), tmp_path / "pack")
    assert fg.verify_pack(tmp_path / "pack")
