"""Models of every kind on a table of which most rows lack some values, and their rows as slow twins see them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from naive import Row, naive_absent_cells
from pipelines import SEED, estimator, split
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from twins import remembered

from fragility.models import Model
from fragility.protocol import Protocol

NUMBERS = ["duration", "credit_amount", "age", "installment_commitment", "residence_since"]
NOMINAL = ["checking_status", "savings_status", "purpose"]
BLOCKS = {"person": ["age", "residence_since", "savings_status"], "loan": ["duration", "credit_amount", "purpose"]}
# name -> (estimator, what stands before it)
MODELS = {
    "logistic": ("logistic", "imputer"),
    "logistic, indicators": ("logistic", "indicators"),
    "random_forest": ("random_forest", "imputer"),
    "gradient_boosting": ("gradient_boosting", "indicators"),
    "mlp": ("mlp", "imputer"),
    "hist_gradient_boosting": ("hist_gradient_boosting", "codes"),
    "lightgbm": ("lightgbm", "codes"),
    "xgboost": ("xgboost", "numbers"),
    "catboost": ("catboost", "numbers"),
    "voting": ("voting", "imputer"),
    "calibrated": ("calibrated", "imputer"),
    "explainable": ("explainable", "imputer"),
}


@dataclass(frozen=True)
class Gappy:
    """A fitted model, and rows that lack values."""

    model: Any
    X_train: pd.DataFrame
    X: pd.DataFrame

    def missing(self, i: int) -> list[str]:
        return [name for name in self.X.columns if pd.isna(self.X[name].iloc[i])]


@functools.cache
def gappy(name: str) -> Gappy:
    family, before = MODELS[name]
    data = split("credit_g")
    columns = NUMBERS if before == "numbers" else NUMBERS + NOMINAL
    X_train, X = (with_gaps(part[columns], seed) for seed, part in enumerate((data.X_train, data.X_test)))
    y = (data.y_train == "good").to_numpy().astype(int)
    if before == "numbers":
        return Gappy(make(family).fit(X_train, y), X_train, X)
    model = Pipeline([("prepare", preparation(before)), ("model", make(family))]).fit(X_train, y)
    return Gappy(model, X_train, X)


def with_gaps(X: pd.DataFrame, seed: int) -> pd.DataFrame:
    """A third of the cells missing in most rows; one row lacks everything, every fifth nothing."""
    gone = np.random.default_rng(seed).random(X.shape) < 0.3
    gone[::5] = False
    gone[3] = True
    X = X.astype(dict.fromkeys(NUMBERS, float) | dict.fromkeys(set(X.columns) & set(NOMINAL), object))
    return X.mask(gone).reset_index(drop=True)


def preparation(before: str) -> ColumnTransformer:
    if before == "codes":
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        numbers: Any = FunctionTransformer(feature_names_out="one-to-one")
        return ColumnTransformer([("n", numbers, NUMBERS), ("c", codes, NOMINAL)])
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=before == "indicators"), StandardScaler())
    words = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    return ColumnTransformer([("n", numbers, NUMBERS), ("c", words, NOMINAL)])


def make(family: str) -> Any:
    if family == "voting":
        parts = [(name, estimator(name)) for name in ("lightgbm", "logistic", "gradient_boosting")]
        return VotingClassifier(parts, voting="soft")
    if family == "calibrated":
        return CalibratedClassifierCV(estimator("lightgbm"), cv=2)
    if family == "explainable":
        glassbox = pytest.importorskip("interpret.glassbox")
        return glassbox.ExplainableBoostingClassifier(
            interactions=2, max_rounds=60, outer_bags=1, n_jobs=1, random_state=SEED
        )
    return estimator(family)


@dataclass(frozen=True)
class GapTwin:
    """What the slow twin of some rows needs; cells as the protocol's space has them."""

    rows: list[Row]
    absent: list[list[bool]]  # (rows, d)
    groups: list[list[int]]
    baseline: Row
    stepwise: list[bool]
    whole: list[bool]
    probabilities: Any
    columns: list[str]


def twin_of(case: Gappy, protocol: Protocol, places: list[int]) -> GapTwin:
    """Prepared by hand: rows by scikit-learn's own output, origins by the names of its columns."""
    names = [column.name for column in protocol.columns]
    groups = [[names.index(name) for name in group.columns] for group in protocol.groups]
    baseline = [column.baseline for column in protocol.columns]
    model, some = Model.wrap(case.model), case.X.iloc[places]
    if protocol.space == "raw" or not isinstance(case.model, Pipeline):
        origins = [[name] for name in names]
        rows = [[None if pd.isna(row[name]) else row[name] for name in names] for _, row in some.iterrows()]

        def ask(cells: Row) -> Any:
            plain = {n: [np.nan if v is None else v] for n, v in zip(names, cells, strict=True)}
            return model.probabilities(pd.DataFrame(plain).astype(case.X[names].dtypes))[0]

    else:
        matrix = np.asarray(case.model[:-1].transform(some), dtype=float)
        origins = [[field for field in case.X.columns if field in name] for name in names]
        assert all(len(fields) == 1 for fields in origins)
        rows = matrix.tolist()
        ask = lambda cells: model.head_probabilities(np.array([cells], dtype=float))[0]  # noqa: E731
    absent = [naive_absent_cells(case.missing(i), origins) for i in places]
    stepwise = [column.kind == "nominal" and protocol.space == "raw" for column in protocol.columns]
    return GapTwin(rows, absent, groups, baseline, stepwise, [False] * len(names), remembered(ask), names)
