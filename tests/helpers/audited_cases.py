"""Models, rows and audits with every block, to be checked without the library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fragility_check as checker
import pandas as pd
import pytest
from ordinary_cells import Cell
from ordinary_models import build, fit_labels, fit_table
from ordinary_tables import read_ordinary
from ordinary_ways import declare_groups

import fragility as fg

TRAINED, AUDITED, IN_CELLS, FEW_STATES = 1200, 24, 12, 64
EVERYTHING = {"lattice": True, "modes": True, "intervals": True, "any_value": True, "baselines": True}


@dataclass(frozen=True)
class Audited:
    """An audit folder with all that is needed to check it."""

    folder: Path
    model: Any
    X_train: pd.DataFrame
    X: pd.DataFrame

    def check(self, folder: Path | None = None, **settings: Any) -> checker.Result:
        settings.setdefault("train", self.X_train)
        return checker.check(folder or self.folder, self.X, seed=3, **checker.take_apart(self.model), **settings)

    def refuses(self, folder: Path, **settings: Any) -> bool:
        """Whether a folder is refused: most are after few questions to the model, the others are asked all."""
        return any(self.check(folder, **limit).exit_code == 1 for limit in ({"limit": FEW_STATES}, settings))


@dataclass(frozen=True)
class Case:
    table: str
    model: str
    preparation: str = "simple"
    protocol: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, Any] = field(default_factory=lambda: EVERYTHING)
    claims: str = "full"
    rows: int = AUDITED


SMALL = Case("categorical", "hist-own", rows=10)
CASES = {
    "logistic regression": Case("mixed", "logistic"),
    "LightGBM, missing cells": Case("holes", "lightgbm"),
    "LightGBM, missing cells, raw": Case("holes", "lightgbm", protocol={"space": "raw"}),
    "random forest, several classes": Case("classes", "forest"),
    "HistGradientBoosting with categories of its own": Case("categorical", "hist-own"),
    "XGBoost": Case("mixed", "xgboost"),
    "behind a KNNImputer": Case("holes", "logistic", "knn"),
    "a transformer of the user's": Case("mixed", "lightgbm", "winsor"),
    "a function of several fields": Case("holes", "logistic", "ratio"),
    "a threshold": Case("mixed", "logistic", protocol={"decision": 0.3}),
    "summary": Case("holes", "forest", blocks={}, claims="summary"),
    "rates": Case("classes", "forest", blocks={"rates": 0.1}),
    "mean, current": Case("holes", "forest", protocol={"baseline": "mean", "reading": "current"}, blocks={}),
    "missing": Case("holes", "lightgbm", protocol={"baseline": "missing"}, blocks={}),
    "sentinels": Case(
        "holes",
        "hist",
        protocol={"sentinels": {"savings": ["x / 12", -1], "age": [0]}, "modes": ("lost", "noisy", "sentinel")},
        blocks={"modes": True},
    ),
}


def make_ordinary(cell: Cell, folder: Path) -> Audited:
    """An audit of a cell of the ordinary-use matrix with every block; rows come as its source has them."""
    X, y = read_ordinary(cell.table)
    X, y = fit_table(cell.model, X), fit_labels(cell.model, y)
    n = min(TRAINED, len(X) * 3 // 5)
    model = build(cell.model, cell.preparation, X).fit(X[:n], y[:n])
    train, rows = (
        pass_through(part, cell.source, folder.parent / name)
        for part, name in ((X[:n], "train"), (X[n : n + IN_CELLS], "rows"))
    )
    groups: Any = {"fields": "raw-origin", "merged": "merged", "declared": declare_groups(list(X))}[cell.groups]
    space = {} if cell.space == "default" else {"space": cell.space}
    protocol = fg.Protocol.fit(model, train, groups=groups, **space)
    fg.audit(model, rows, protocol, progress=False, **EVERYTHING).save(folder)
    return Audited(folder, model, train, rows)


def pass_through(table: pd.DataFrame, source: str, path: Path) -> Any:
    """A table as it is read from such a file, or as polars holds it."""
    table = table.reset_index(drop=True)
    if source == "polars":
        return pytest.importorskip("polars").from_pandas(table)
    write, read = {"csv": ("to_csv", pd.read_csv), "parquet": ("to_parquet", pd.read_parquet)}[source]
    getattr(table, write)(path, index=False)
    return read(path)


def make_audit(case: Case, folder: Path) -> Audited:
    X, y = read_ordinary(case.table)
    X, y = fit_table(case.model, X), fit_labels(case.model, y)
    model = build(case.model, case.preparation, X).fit(X[:TRAINED], y[:TRAINED])
    rows = X[TRAINED : TRAINED + case.rows]
    if case.table != "mixed":
        rows = rows.reset_index(drop=True)
    protocol = fg.Protocol.fit(model, X[:TRAINED], **case.protocol)
    if case.claims == "full":
        fg.audit(model, rows, protocol, **case.blocks).save(folder)
    else:
        rows.to_parquet(folder.with_suffix(".parquet"))
        fg.audit_files(model, folder.with_suffix(".parquet"), protocol, folder, claims=case.claims, **case.blocks)
    return Audited(folder, model, X[:TRAINED], rows)
