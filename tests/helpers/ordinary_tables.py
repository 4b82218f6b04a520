"""Tables of ordinary size and every common kind: made ones, scikit-learn's, and public ones where they are found.

A table comes as (X, y) in the types people have: whole numbers, floats, booleans, text, pandas categories, missing
cells, names with spaces. Made tables are drawn from a fixed seed and are the same on any machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from pipelines import read_table
from sklearn import datasets

Table = tuple[pd.DataFrame, pd.Series]

ROWS = 6000
REGIONS = ("north", "south", "east", "west", "centre", "coast")
WORK = ("none", "clerk", "trade", "nurse", "teacher", "engineer", "manager", "own business")


def draw_people(seed: int, rows: int = ROWS) -> tuple[pd.DataFrame, np.ndarray]:
    """Return correlated fields of loan applicants, and the score that decides about them."""
    chance = np.random.default_rng(seed)
    standing = chance.normal(size=rows)
    age = np.clip(40 + 11 * chance.normal(size=rows) + 3 * standing, 18, 90).astype(int)
    income = np.exp(10.3 + 0.5 * standing + 0.3 * chance.normal(size=rows)).round(2)
    loan = np.maximum(500, income * np.exp(0.4 * chance.normal(size=rows) - 1)).astype(int)
    work = np.clip((3.5 + 1.6 * standing + chance.normal(size=rows)).astype(int), 0, 7)
    region = chance.choice(6, rows, p=(0.35, 0.2, 0.15, 0.15, 0.1, 0.05))
    table = pd.DataFrame(
        {
            "annual income": income,
            "age": age,
            "years employed": np.clip((age - 20) * chance.beta(2, 3, rows), 0, 50).astype(int),
            "savings": np.where(
                chance.random(rows) < 0.2, 0.0, np.exp(7 + standing + chance.normal(size=rows))
            ).round(),
            "loan amount": loan,
            "earlier loans": chance.poisson(1.2, rows),
            "owns a car": chance.random(rows) < 0.6,
            "region": np.array(REGIONS)[region],
            "work": np.array(WORK)[work],
            "purpose": chance.choice(["car", "home", "study", "other"], rows, p=(0.5, 0.2, 0.1, 0.2)),
        }
    )
    score = (
        1.5 * standing
        - 1.2 * np.log(loan / income)
        + 0.04 * (age - 40)
        - 0.5 * table["earlier loans"].to_numpy()
        + 0.8 * (region == 1)
        - 0.9 * (table["purpose"] == "study").to_numpy() * (age < 30)
        + 0.5 * table["owns a car"].to_numpy()
    )
    return table, score - score.mean()


def label_by(score: np.ndarray, seed: int, shift: float = 0.0, slope: float = 2.0) -> pd.Series:
    chance = np.random.default_rng(seed + 1000).random(len(score))
    return pd.Series(np.where(chance < 1 / (1 + np.exp(-(slope * score + shift))), "repaid", "defaulted"))


def make_mixed() -> Table:
    X, score = draw_people(1)
    return X, label_by(score, 1)


def make_categorical() -> Table:
    """Pandas categories, one of which nobody has; the most frequent one of a field says that nothing is known."""
    X, score = draw_people(2)
    unknown = np.random.default_rng(2).random(len(X)) < 0.55
    X["region"] = pd.Categorical(X["region"].mask(unknown, "unknown"), categories=[*REGIONS, "unknown", "abroad"])
    X["work"] = X["work"].astype("category")
    X["purpose"] = X["purpose"].astype("category")
    return X, label_by(score, 2)


def make_holes() -> Table:
    """Missing cells: of numbers and of text, at random and together, and where others say so."""
    X, score = draw_people(3)
    chance = np.random.default_rng(3)
    gone = pd.DataFrame(chance.random(X.shape) < 0.06, columns=X.columns)
    for name in ("savings", "years employed"):  # one source that is down now and then
        gone[name] |= chance.random(len(X)) < 0.0 if name == "savings" else gone["savings"]
    gone["annual income"] |= (X["work"] == "none") & (chance.random(len(X)) < 0.5)
    gone["owns a car"] = False
    gone["purpose"] = False
    for name in X.columns[gone.any()]:
        cells = X[name].astype(float) if name in X.select_dtypes("number") else X[name].astype(object)
        X[name] = cells.mask(gone[name])
    return X, label_by(score, 3)


def make_classes() -> Table:
    X, score = draw_people(4)
    rank = pd.Series(score + 0.4 * np.random.default_rng(4).normal(size=len(X))).rank(pct=True)
    y = pd.cut(rank, [0, 0.3, 0.6, 0.9, 1], labels=["decline", "ask", "accept", "prefer"]).astype(str)
    return X, y


def make_rare() -> Table:
    """One prediction in fifty is of the class that matters."""
    X, score = draw_people(5, 8000)
    X = X.drop(columns=["owns a car", "purpose"])
    return X, label_by(score, 5, shift=8.2)


def make_unsure() -> Table:
    """Labels that fields say little about, so that a model is rarely sure."""
    X, score = draw_people(6)
    return X, label_by(score, 6, slope=0.35)


def make_numeric() -> Table:
    """Numbers only, in columns that are named with one letter and a counter."""
    chance = np.random.default_rng(7)
    factors = chance.normal(size=(ROWS, 4))
    values = factors @ chance.normal(size=(4, 14)) + 0.7 * chance.normal(size=(ROWS, 14))
    X = pd.DataFrame(values.round(4), columns=[f"f{j}" for j in range(14)])
    X["f11"], X["f12"] = (X["f11"] * 3).round().astype(int), X["f12"].clip(0)
    score = factors[:, 0] + factors[:, 1] * factors[:, 2] + 0.6 * values[:, 3]
    return X, pd.Series((score + 0.5 * chance.normal(size=ROWS) > 0.4).astype(int))


def make_nominal() -> Table:
    """Nominal fields only, in text, as in a table of chess positions; many say nearly the same in every row."""
    chance = np.random.default_rng(8)
    X, sway = {}, np.zeros(ROWS)
    for j in range(18):
        kinds = int(chance.integers(2, 6))
        shares = chance.dirichlet(np.ones(kinds) * (0.4 if j % 3 else 3.0)) + 0.01
        drawn = chance.choice(kinds, ROWS, p=shares / shares.sum())
        X[f"square {j}"] = np.array(list("ntfwb"))[drawn]
        sway += chance.normal(size=kinds)[drawn]
    frame = pd.DataFrame(X)
    sway += 2.0 * ((frame["square 0"] == frame["square 3"]) & (frame["square 6"] == "n")).to_numpy()
    return frame, pd.Series(np.where(sway + 0.5 * chance.normal(size=ROWS) > np.median(sway), "won", "nowin"))


def from_sklearn(name: str) -> Table:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
    order = np.random.default_rng(9).permutation(len(X))
    return X.iloc[order].reset_index(drop=True), y.iloc[order].reset_index(drop=True)


def from_public(name: str, target: str, rows: int = 8000) -> Table:
    table = read_table(name)
    table = table.sample(min(rows, len(table)), random_state=4).reset_index(drop=True)
    y = table.pop(target)
    return table, y


def public_nominal() -> Table:
    X, y = from_public("bank_marketing", "y")
    return X.select_dtypes(exclude="number"), y


def public_holes() -> Table:
    """Adult, where `?` is a missing cell, and with more of them among the numbers."""
    X, y = from_public("adult", "income")
    gone = np.random.default_rng(10).random(X.shape) < 0.05
    for j, name in enumerate(X.columns):
        if pd.api.types.is_numeric_dtype(X[name]):
            X[name] = X[name].astype(float).mask(gone[:, j])
        else:
            X[name] = X[name].astype(object).mask(X[name] == "?")
    return X, y


# By kind; the tables of a kind take turns.
MADE: dict[str, dict[str, Callable[[], Table]]] = {
    "nominal": {"nominal": make_nominal},
    "numeric": {"numeric": make_numeric, "cancer": lambda: from_sklearn("breast_cancer")},
    "mixed": {"mixed": make_mixed, "categorical": make_categorical, "credit": lambda: from_public("credit_g", "class")},
    "holes": {"holes": make_holes},
    "classes": {
        "classes": make_classes,
        "digits": lambda: from_sklearn("digits"),
        "wine": lambda: from_sklearn("wine"),
    },
    "rare": {"rare": make_rare},
    "unsure": {"unsure": make_unsure},
}
PUBLIC: dict[str, dict[str, Callable[[], Table]]] = {
    "nominal": {"bank-nominal": public_nominal},
    "numeric": {"default": lambda: from_public("default_credit", "default payment next month")},
    "mixed": {
        "bank": lambda: from_public("bank_marketing", "y"),
        "electricity": lambda: from_public("electricity", "class"),
    },
    "holes": {"adult-holes": public_holes},
    "classes": {"covertype": lambda: from_public("covertype", "Cover_Type")},
    "unsure": {"heloc": lambda: from_public("heloc", "RiskPerformance")},
}
MAKERS = {name: make for kinds in (MADE, PUBLIC) for tables in kinds.values() for name, make in tables.items()}
KIND = {name: kind for kinds in (MADE, PUBLIC) for kind, tables in kinds.items() for name in tables}


@functools.cache
def read_ordinary(name: str) -> Table:
    """Return a table by name; skips where a public one is not at hand."""
    X, y = MAKERS[name]()
    if name in MADE["mixed"] and name == "mixed":
        X.index = pd.Index([f"case {row}" for row in range(len(X))], name="case")
        y.index = X.index
    if len(X) < 300 and len(np.unique(y)) < 2:
        pytest.skip(f"{name} is too small")
    return X, y
