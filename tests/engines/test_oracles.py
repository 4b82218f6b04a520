"""Every oracle answers every kind of question as the model itself does: engines x questions x spaces x wrappers.

Rows are of ordinary size, with missing cells, an outlier and a category that training rows lack, so that some rows are
in doubt. The model's own answers are those of `ModelOracle`, whose cells `tests/evidence/test_states.py` compares with
the rule one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tree_models import LGB, MODELS, lightgbm, xgboost

import fragility as fg
from fragility.engines.choice import choose_oracle
from fragility.engines.engine import Values
from fragility.engines.oracle import CheckedOracle, ModelOracle, Oracle
from fragility.evidence import Spared, States
from fragility.protocol import bind

pytest.importorskip("numba")

TRAIN, ROWS = 500, 2000
UNITS = {"by group": False, "by column": True}

PLAIN = {
    "logistic": lambda: LogisticRegression(max_iter=500),
    "one against the rest": lambda: SGDClassifier(loss="log_loss", random_state=0),
    "discriminant": LinearDiscriminantAnalysis,
    "naive Bayes": GaussianNB,
    "network": lambda: MLPClassifier((8,), max_iter=30, random_state=0),
    **{name: MODELS[name] for name in MODELS if name not in ("decision tree", "extra tree")},
    "lightgbm zeros missing": lambda: lightgbm.LGBMClassifier(n_estimators=25, zero_as_missing=True, **LGB),
}
WRAPPED = {
    "calibrated lightgbm": lambda: CalibratedClassifierCV(MODELS["lightgbm"](), cv=2),
    "calibrated logistic": lambda: CalibratedClassifierCV(PLAIN["logistic"](), cv=2),
    "voting": lambda: VotingClassifier(
        [("trees", MODELS["xgboost"]()), ("linear", PLAIN["logistic"]()), ("asked", GaussianNB())], voting="soft"
    ),
}
NATIVE = {  # that take a table with categories as it is
    "lightgbm": MODELS["lightgbm"],
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=25, n_jobs=1, enable_categorical=True, tree_method="hist"),
    "hist gradient boosting": MODELS["hist gradient boosting"],
    "calibrated lightgbm": WRAPPED["calibrated lightgbm"],
}
ENGINE = {
    **dict.fromkeys(("logistic", "one against the rest", "discriminant"), "linear"),
    **dict.fromkeys(("naive Bayes", "network"), "blackbox"),
    **dict.fromkeys(WRAPPED, "wrapped"),
}
ROUNDING = {"trees": 1e-15, "linear": 1e-12, "wrapped": 1e-12, "blackbox": 0.0}

CASES = [
    *((name, space, n_classes) for name in (*PLAIN, *WRAPPED) for space in ("transformed",) for n_classes in (2, 3)),
    *((name, "raw", n_classes) for name in NATIVE for n_classes in (2, 3)),
    ("logistic", "raw", 2),  # a pipeline's raw fields: preprocessing stands between the states and any engine
    ("lightgbm 400 leaves", "numbers", 2),
    ("logistic", "numbers", 3),
]


@cache
def draw_table(n_classes: int) -> tuple[pd.DataFrame, np.ndarray]:
    draws, n = np.random.default_rng(n_classes), TRAIN + ROWS
    X = pd.DataFrame(
        {
            "a": draws.normal(size=n),
            "b": draws.normal(size=n).round(1),
            "c": draws.integers(0, 6, n).astype(float),
            "kind": pd.Categorical(draws.choice(["one", "two", "three", "four"], n)),
            "place": pd.Categorical(draws.choice(["in", "out"], n)),
        }
    )
    score = X.a + X.b * (X.place == "in") + 0.3 * X.c - (X.kind == "two") + draws.normal(scale=0.4, size=n)
    X.loc[draws.random(n) < 0.1, "b"] = np.nan
    return X, np.digitize(score, np.quantile(score[:TRAIN], np.linspace(0, 1, n_classes + 1)[1:-1]))


class Answering(NamedTuple):
    """Rows, who answers about them, and how many rows the model has been handed."""

    oracle: Oracle
    model: ModelOracle
    x: np.ndarray
    spared: Spared | None
    asked: list[int]


@cache
def make_case(name: str, space: str, n_classes: int) -> Answering:
    X, y = draw_table(n_classes)
    nominal, numeric = ["kind", "place"], ["a", "b", "c"]
    if space == "raw" and name in NATIVE:
        model = NATIVE[name]()
    elif space == "numbers":
        X = X[numeric].fillna(0.0)
        model = (PLAIN | WRAPPED)[name]()
    else:
        prepared = ColumnTransformer(
            [
                ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numeric),
                ("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), nominal),
            ]
        )
        model = make_pipeline(prepared, (PLAIN | WRAPPED)[name]())
    model.fit(X[:TRAIN], y[:TRAIN])
    protocol = fg.Protocol.fit(model, X[:TRAIN], space="transformed" if space == "transformed" else "raw")
    rows = X[TRAIN:].reset_index(drop=True)
    rows.loc[7, "a"] = 1e12
    bound, asked = bind(model, rows, protocol), list[int]()
    own = bound.ask_model
    bound = replace(bound, ask_model=lambda matrix: asked.append(len(matrix)) or own(matrix))
    oracle = choose_oracle(bound)
    oracle.asks_model(bound.dense())  # rows in doubt are known from here on
    return Answering(oracle, ModelOracle(bound), bound.dense(), bound.spared(), asked)


def draw_states(case: Answering, by_column: bool, severity: str | None) -> States:
    rows, draws = case.model.rows, np.random.default_rng(1)
    owner = np.repeat(np.arange(len(case.x)), draws.integers(0, 4, len(case.x)))
    moved = draws.random((len(owner), rows.width if by_column else rows.n_groups)) < 0.4
    extents = {
        None: None,
        "per state": draws.choice([0.0, 0.3, 0.5, 0.8, 1.0], len(owner)),
        "per unit": draws.random(moved.shape),
    }
    return States(owner, moved, extents[severity], by_column).sparing(case.spared, rows.column_group)


def ask_states(by_column: bool, severity: str | None) -> Callable[[Oracle, Answering], np.ndarray]:
    return lambda oracle, case: oracle.answer_states(case.x, draw_states(case, by_column, severity))


def ask_values(by_column: bool, shared: bool) -> Callable[[Oracle, Answering], np.ndarray]:
    def ask(oracle: Oracle, case: Answering) -> np.ndarray:
        rows = case.model.rows
        unit = np.arange(rows.width) if by_column else rows.column_group
        y = case.x[11] if shared else np.roll(case.x, 1, axis=0)
        return next(oracle.answer_values(case.x, [Values(y, unit, np.unique(unit)[:4])]))

    return ask


def ask_copies(oracle: Oracle, case: Answering) -> np.ndarray:
    copies = np.repeat(case.x[:, None], 2, axis=1)
    copies[:, 0, 0] += 0.1
    copies[:, 1, -1] = case.x[::-1, -1]
    return oracle.predict_copies(case.x, copies)


def ask_cells(oracle: Oracle, case: Answering) -> np.ndarray:
    rows = case.model.rows
    cells = np.where(np.random.default_rng(2).random(case.x.shape) < 0.3, rows.baseline, case.x)
    return oracle.predict(cells)


QUESTIONS: dict[str, Any] = {
    **{f"removed {name}": ask_states(by_column, None) for name, by_column in UNITS.items()},
    **{f"faded {name}": ask_states(by_column, "per state") for name, by_column in UNITS.items()},
    **{f"faded apart {name}": ask_states(by_column, "per unit") for name, by_column in UNITS.items()},
    **{f"another row's values {name}": ask_values(by_column, False) for name, by_column in UNITS.items()},
    **{f"one row's values {name}": ask_values(by_column, True) for name, by_column in UNITS.items()},
    "copies": ask_copies,
    "cells": ask_cells,
}


@pytest.mark.samples
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_the_models(case, question):
    name, space, n_classes = case
    answering = make_case(*case)
    engine = ENGINE.get(name, "trees") if space != "raw" or name in NATIVE else "blackbox"
    assert answering.oracle.name == engine
    told, own = (QUESTIONS[question](oracle, answering) for oracle in (answering.oracle, answering.model))
    assert told.shape == own.shape and told.shape[-1] == n_classes and np.isfinite(own).all()
    np.testing.assert_allclose(told, own, rtol=0, atol=ROUNDING[engine])


@pytest.mark.parametrize("case", [case for case in CASES if case[0] in ("logistic", "lightgbm", "voting")], ids=str)
def test_the_model_is_asked_about_rows_in_doubt_alone(case):
    oracle, _, x, _, asked = answering = make_case(*case)
    if not isinstance(oracle, CheckedOracle):
        assert case == ("logistic", "raw", 2) and not oracle.asks_model(x).any()
        return
    np.testing.assert_array_equal(oracle.asks_model(x), oracle.doubted)
    assert oracle.doubted[7] == (case[0] != "lightgbm") and oracle.doubted.mean() < 0.05
    states = draw_states(answering, False, None)
    asked.clear()
    oracle.answer_states(x, states)
    unusual = 1 if case[0] != "logistic" else 0  # a row with a missing cell shows that the model takes such cells
    assert sum(asked) <= oracle.doubted[states.owner].sum() + unusual
    few = oracle.take([7, 3])
    np.testing.assert_array_equal(few.asks_model(x[[7, 3]]), oracle.doubted[[7, 3]])
