"""A model, its rows in three formats, and one audit of them, in files."""

from pathlib import Path

import joblib
import pandas as pd
import pytest
import skops.io
from command_line import NOMINAL, NUMERIC, audit_words, run
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    X, y = fg.load_credit_g()
    return X[NUMERIC + NOMINAL].assign(risk=y, loan=[f"L{i:04}" for i in range(len(X))])


@pytest.fixture(scope="module")
def model(table):
    nominal = ("nominal", OneHotEncoder(handle_unknown="ignore"), NOMINAL)
    encode = ColumnTransformer([nominal, ("numeric", StandardScaler(), NUMERIC)])
    X = table[NUMERIC + NOMINAL]
    return make_pipeline(encode, LogisticRegression(max_iter=1000)).fit(X[:700], table["risk"][:700])


@pytest.fixture(scope="module")
def made(table, model, tmp_path_factory) -> Path:
    """A folder with a model, rows in three formats, and one audit."""
    folder = tmp_path_factory.mktemp("cli")
    skops.io.dump(model, folder / "model.skops")
    joblib.dump(model, folder / "model.joblib")
    train, test = table[:700], table[700:760].reset_index(drop=True)
    train.to_parquet(folder / "train.parquet")
    test.to_parquet(folder / "test.parquet")
    test.to_csv(folder / "test.csv", index=False)
    test.to_feather(folder / "test.arrow")
    done = run(*audit_words(folder), "--out", folder / "audit")
    assert done.code == 0, done.err
    return folder
