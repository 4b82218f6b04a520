"""LightGBM replaces the blanks in the names of columns; tables keep theirs."""

from __future__ import annotations

import joblib
import numpy as np
import pandas as pd
import pytest
from command_line import run
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import fragility as fg


@pytest.fixture(scope="module")
def cancer() -> tuple[pd.DataFrame, pd.Series]:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return X.iloc[:, :6], y


def booster() -> LGBMClassifier:
    return LGBMClassifier(n_estimators=8, verbose=-1, n_jobs=1)


@pytest.mark.parametrize("kind", ["classifier", "booster", "calibrated"])
def test_a_model_whose_names_were_rewritten_is_audited_under_the_names_of_the_table(kind, cancer):
    X, y = cancer
    model = CalibratedClassifierCV(booster(), cv=2) if kind == "calibrated" else booster()
    model.fit(X, y)
    model = model.booster_ if kind == "booster" else model
    assert fg.Model.wrap(model).columns[0] == "mean_radius" and X.columns[0] == "mean radius"
    protocol = fg.Protocol.fit(model, X)
    assert [own.name for own in protocol.fields] == list(X.columns)
    shuffled = X[:40].iloc[:, np.random.default_rng(0).permutation(6)]
    audit = fg.audit(model, shuffled, protocol, modes=True, intervals=True)
    assert audit.table.equals(fg.audit(model, X[:40], protocol, modes=True, intervals=True).table)
    assert fg.verify(audit, model, shuffled)
    row = X.iloc[0].to_dict()
    assert fg.Auditor(model, protocol).certify(row)[0].path == audit[0].path
    assert fg.Guard(model, protocol).check(row).confidence == pytest.approx(audit[0].confidence)


def test_on_the_command_line(cancer, tmp_path):
    X, y = cancer
    joblib.dump(booster().fit(X, y), tmp_path / "m.joblib")
    X.assign(label=y, **{"of another": 1}).to_parquet(tmp_path / "rows.parquet")
    given = ["--target", "label", "--ignore-extra", "--trust"]
    rows = tmp_path / "rows.parquet"
    made = run("audit", tmp_path / "m.joblib", rows, "--train", rows, "--out", tmp_path / "audit", *given)
    assert made.code == 0 and "left out of" in made.err and "of another" in made.err
    said = run("verify", tmp_path / "audit", "--model", tmp_path / "m.joblib", "--data", rows, "--target", "label",
               "--sample", "20", "--trust")  # fmt: skip
    assert said.code == 0, said


def test_names_that_are_the_same_to_lightgbm_are_refused(cancer):
    X, y = cancer
    model = booster().fit(X, y)
    both = X.assign(mean_area=X["mean area"])
    with pytest.raises(
        fg.ModelError, match="calls a column 'mean_area', and the rows have 'mean area' and 'mean_area'"
    ):
        fg.Protocol.fit(model, both)
    with pytest.raises(fg.DataError, match="expects column 'mean_radius', which the data lack"):
        fg.Protocol.fit(model, X.rename(columns={"mean radius": "radius"}).drop(columns="radius"))


def test_other_models_are_asked_under_their_own_names_only(cancer):
    X, y = cancer
    model = LogisticRegression(max_iter=5000).fit(X.rename(columns=lambda name: name.replace(" ", "_")), y)
    with pytest.raises(fg.DataError, match="the model expects columns 'mean_radius'"):
        fg.Protocol.fit(model, X)
