"""Claims that an engine and a verifier with shared code would both confirm; one that shares nothing refuses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fragility_check as checker
import numpy as np
import pandas as pd
import pytest
from forging_folders import Rows, forge
from ordinary_models import relate_to_first
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import fragility as fg

NAMES = ["a", "b", "c", "d"]


def draw_table(holes: float) -> tuple[pd.DataFrame, np.ndarray]:
    chance = np.random.default_rng(11)
    X = chance.normal(size=(500, 4)) @ chance.normal(size=(4, 4)) + chance.normal(size=(500, 4))
    y = (X @ [1.0, -1.5, 0.7, 0.5] + chance.normal(size=500) > 0).astype(int)
    X[chance.random(X.shape) < holes] = np.nan
    return pd.DataFrame(X, columns=NAMES), y


def hold_others(model: Pipeline, protocol: dict[str, Any], audited: pd.DataFrame):
    """Intervals of an engine that takes each column of the matrix for one field's, and holds all others fixed."""
    last, before = model[-1], model[:-1]
    ranges = {r["field"]: (r["low"], r["high"]) for r in protocol["modes"]["ranges"]}

    def find_end(row: np.ndarray, j: int, scale: float, x: float, to: float, y: int) -> tuple[float, float | None]:
        def holds(value: float) -> bool:
            moved = row.copy()
            moved[j] += (value - x) * scale
            return bool(last.predict(moved[None])[0] == y)

        if holds(to):
            return to, None
        inside, beyond = x, to
        while np.nextafter(inside, beyond) != beyond:
            middle = inside + (beyond - inside) / 2
            inside, beyond = (middle, beyond) if holds(middle) else (inside, middle)
        return inside, beyond

    def forged(rows: Rows) -> None:
        for i, row in enumerate(rows):
            cells = before.transform(audited[i : i + 1])[0]
            y = int(last.predict(cells[None])[0])
            for j, state in enumerate(row["interval_state"]):
                x = audited.iloc[i, j]
                if state not in ("exact", "bracketed"):
                    continue
                step = audited[i : i + 1].copy()
                step.iloc[0, j] += 1.0
                scale = (before.transform(step)[0] - cells)[j]
                low, high = ranges[NAMES[j]]
                for name, side, to in (("low", "below", min(low, x)), ("high", "above", max(high, x))):
                    end, flip = find_end(cells, j, scale, x, to, y)
                    row[f"interval_{name}"][j] = json.dumps(end)
                    row[f"interval_{side}"][j] = (
                        None if flip is None else json.dumps([flip, 1 - y], separators=(",", ":"))
                    )
                row["interval_state"][j] = "exact"

    return forged


PREPARATIONS = {
    "an imputer that looks at other fields": (lambda: make_pipeline(KNNImputer(), StandardScaler()), 0.15),
    "a transformer of the user's": (
        lambda: make_pipeline(
            SimpleImputer(), FunctionTransformer(relate_to_first, feature_names_out="one-to-one"), StandardScaler()
        ),
        0.0,
    ),
}


@pytest.mark.parametrize("what", PREPARATIONS)
def test_exact_intervals_that_hold_the_other_columns_fixed(tmp_path: Path, what: str) -> None:
    make, holes = PREPARATIONS[what]
    X, y = draw_table(holes)
    model = Pipeline([*make().steps, ("model", LogisticRegression())]).fit(X[:400], y[:400])
    audited = X[400:].reset_index(drop=True)
    audited = audited[audited.isna().any(axis=1) | (holes == 0)][:20].reset_index(drop=True)
    protocol = fg.Protocol.fit(model, X[:400], space="raw")
    folder = fg.audit(model, audited, protocol, intervals=True, lattice=False).save(tmp_path / "honest")
    asked = checker.take_apart(model)
    assert checker.check(folder, audited, **asked, seed=1).exit_code == 0

    def claim_linear(m: dict[str, Any]) -> None:
        m["engine"]["name"] = m["blocks"]["intervals"]["engine"] = "linear"

    forged = forge(
        folder,
        tmp_path / "forged",
        blocks={"intervals": hold_others(model, protocol.to_dict(), audited)},
        manifest=claim_linear,
    )
    result = checker.check(forged, audited, **asked, seed=1)
    false = next(line for line in result.lists["false"] if line.startswith("the decision inside intervals and beyond"))
    assert int(false.split(": ")[1].split(" of ")[0]) >= 10, false


def test_a_field_that_is_missing_is_not_lost(tmp_path: Path) -> None:
    """An engine that moves the imputed cell to the baseline: the field leads the path though the row never had it."""
    X, y = draw_table(0.3)
    model = make_pipeline(SimpleImputer(strategy="constant", fill_value=3.0), StandardScaler(), LogisticRegression())
    model.fit(X[:400], y[:400])
    audited = X[400:][X[400:].isna().any(axis=1)][:20].reset_index(drop=True)
    protocol = fg.Protocol.fit(model, X[:400], space="transformed")
    folder = fg.audit(model, audited, protocol, lattice=False).save(tmp_path / "honest")
    asked = checker.take_apart(model)
    assert checker.check(folder, audited, **asked).exit_code == 0
    p = protocol.to_dict()

    def lose(rows: Rows) -> None:
        e = checker.Evidence(p, checker.Rows(audited, None, p), {"predict_cells": None, **asked}, [0, 1])
        e.absent[:] = e.gone[:] = False
        for i, row in enumerate(rows):
            own = checker.certify(e, i, row["predicted"])
            for name in ("one_step_drop", "one_step_confidence_drop", "path_margin"):
                row[name] = [float(v) for v in own[name]]
            row["path"] = [NAMES[g] for g in own["order"]]
            row["path_predicted"] = [
                row["predicted"],
                *(abs(row["predicted"] - int(flip == 1)) for flip in own["flips"]),
            ]
            row["flip_budget"] = next((k + 1 for k, flip in enumerate(own["flips"]) if flip == 1), p["depth"] + 1)
            row["flipped"] = row["flip_budget"] <= p["depth"]
            for o in p["operators"]:
                flips = zip(p["severities"], own[f"flips_{o}"], strict=True)
                row[f"lambda_{o}"] = next((s for s, flip in flips if flip == 1), None)
            row["fade_margin"] = [float(v) for v in checker.cut_fading(p, own, row)]
            row |= checker.derive(p, row)

    result = checker.check(forge(folder, tmp_path / "forged", claims=lose), audited, **asked)
    assert result.exit_code == 1
    assert any(line.startswith("the order of paths") for line in result.lists["false"]), str(result)
