"""A small pipeline on five fields of Credit-G, and artefacts of it with known faults."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fragility as fg

FIELDS = ["checking_status", "duration", "age", "housing", "installment_commitment"]
NOMINAL = ["checking_status", "housing"]
CLASSES = ["bad", "good"]


@pytest.fixture(scope="session")
def credit():
    X, y = fg.load_credit_g()
    X = X[FIELDS].astype({"duration": int, "age": int})
    return X[:500], y[:500], X[500:]


@pytest.fixture(scope="session")
def trained(credit):
    X, y, _ = credit
    numbers = [name for name in FIELDS if name not in NOMINAL]
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), NOMINAL), (SimpleImputer(), numbers))
    return make_pipeline(encode, LogisticRegression(max_iter=2000)).fit(X, y)


@pytest.fixture(scope="session")
def faulty(trained):
    """It reads a missing duration as 0, refuses a missing age and is off for people who rent and are over 50."""

    def ask(rows):
        if rows["age"].isna().any():
            raise ValueError("age must be a number")
        p = trained.predict_proba(rows.assign(duration=rows["duration"].fillna(0)))
        off = ((rows["housing"] == "rent") & (rows["age"] > 50)).to_numpy()
        return np.where(off[:, None], p[:, ::-1], p)

    return fg.Model.wrap(ask, classes=CLASSES)


@pytest.fixture(scope="session")
def numbers(credit):
    """A model of three numbers, and rows of them; it refuses missing values."""
    X, y, rest = credit
    names = ["duration", "age", "installment_commitment"]
    return LogisticRegression(max_iter=2000).fit(X[names].astype(float), y), rest[names].astype(float)
