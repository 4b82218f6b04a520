"""What a single decision costs: one row through `fg.Auditor` and `fg.Guard`, next to the model's own answer.

    FRAGILITY_DATA=... python benchmarks/latency.py [--calls 10000] [--models lightgbm ...] [--out latency.json]

Five models on Adult behind the usual ColumnTransformer (median and standardisation of numbers, one-hot codes of
categories): LightGBM and XGBoost with 300 trees, a random forest of 100, logistic regression, and LightGBM within
CalibratedClassifierCV of three folds. For every row, in turns and in one thread:

    predict_proba   the pipeline's own, on a table of one row that is there already
    certify         fg.Auditor(model, protocol).certify of the same table
    certify_dict    the same of the row as a dict of Python values
    audit           fg.audit of the same table, without a search of failing sets
    check           fg.Guard(model, protocol).check of the dict, with one missing field, another one for each row

Ratios are medians over the median of predict_proba, by the clock and in processor time of the thread; beside them is
the 99th percentile by the clock over its own median. On a busy machine the clock also counts the work of others, in
predict_proba as in the rest: the ratios in processor time are then the fair ones, and percentiles say little.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits
from xgboost import XGBClassifier

import fragility as fg

TRAIN, TREES, WARM_UP, AUDITS = 20_000, 300, 50, 50
GOALS = {"certify": 1.5, "check": 2.5}  # medians over that of predict_proba
TAIL_GOAL = 3.0  # the 99th percentile over the median


def make_models() -> dict[str, Any]:
    booster = LGBMClassifier(n_estimators=TREES, n_jobs=1, verbose=-1, random_state=0)
    return {
        "lightgbm": booster,
        "xgboost": XGBClassifier(n_estimators=TREES, n_jobs=1, random_state=0),
        "random forest": RandomForestClassifier(100, n_jobs=1, random_state=0),
        "logistic regression": LogisticRegression(max_iter=2000),
        "calibrated lightgbm": CalibratedClassifierCV(booster, cv=3),
    }


def make_preprocessing(X: pd.DataFrame) -> ColumnTransformer:
    numbers = [name for name in X if pd.api.types.is_numeric_dtype(X[name])]
    texts = [name for name in X if name not in numbers]
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            ("texts", OneHotEncoder(handle_unknown="ignore", sparse_output=False), texts),
        ]
    )


def make_guard(model: Pipeline, protocol: fg.Protocol) -> Any:
    """Return a guard; None, with a sentence, in a version without one."""
    if not hasattr(fg, "Guard"):
        print("this version has no fg.Guard: check is left out", flush=True)
        return None
    return fg.Guard(model, protocol)


def measure(model: Pipeline, X: pd.DataFrame, protocol: fg.Protocol, calls: int) -> dict[str, Any]:
    began = time.perf_counter()
    auditor = fg.Auditor(model, protocol)
    made_ready = time.perf_counter() - began
    guard, fields = make_guard(model, protocol), list(X.columns)
    times: dict[str, list[tuple[float, float]]] = {}

    def run(name: str, work: Callable[[], Any]) -> None:
        clock, processor = time.perf_counter(), time.thread_time()
        work()
        times.setdefault(name, []).append((time.perf_counter() - clock, time.thread_time() - processor))

    gc.collect()
    for i in range(calls + WARM_UP):
        if i == WARM_UP:
            times.clear()
        row = X.iloc[[i % len(X)]]
        record = row.iloc[0].to_dict()
        run("predict_proba", lambda: model.predict_proba(row))  # noqa: B023
        run("certify", lambda: auditor.certify(row))  # noqa: B023
        run("certify_dict", lambda: auditor.certify(record))  # noqa: B023
        if guard is not None:
            run("check", lambda: guard.check(record, missing=[fields[i % len(fields)]]))  # noqa: B023
        if i < WARM_UP + AUDITS:
            run("audit", lambda: fg.audit(model, row, protocol, lattice=False, progress=False))  # noqa: B023
    by_clock = {name: np.array(found)[:, 0] for name, found in times.items()}
    medians = {name: np.median(found, axis=0) for name, found in times.items()}  # (clock, processor)
    ratios = {name: median / medians["predict_proba"] for name, median in medians.items()}
    return {
        "engine": auditor.engine,
        "seconds_to_make_ready": made_ready,
        "calls": calls,
        "median_ms": {name: 1e3 * float(clock) for name, (clock, _) in medians.items()},
        "ratio": {name: float(clock) for name, (clock, _) in ratios.items()},
        "processor_ratio": {name: float(processor) for name, (_, processor) in ratios.items()},
        "p99_over_median": {
            name: float(np.quantile(found, 0.99) / np.median(found)) for name, found in by_clock.items()
        },
    }


def say(name: str, found: dict[str, Any]) -> None:
    print(f"{name} ({found['engine']}, ready in {found['seconds_to_make_ready']:.2f} s, {found['calls']} calls)")
    for what, ratio in found["ratio"].items():
        tail, processor, goal = found["p99_over_median"][what], found["processor_ratio"][what], GOALS.get(what)
        verdict = ""
        if goal is not None:
            judged = {"clock": ratio <= goal, "processor": processor <= goal, "p99": tail <= TAIL_GOAL}
            missed = [word for word, holds in judged.items() if not holds]
            verdict = f"goal {goal}: " + (f"missed ({', '.join(missed)})" if missed else "met")
        figures = f"{found['median_ms'][what]:8.2f} ms  x {ratio:6.2f}  processor x {processor:6.2f}"
        print(f"  {what:14} {figures}  p99 {tail:5.2f} medians  {verdict}")
    print(flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--models", nargs="*", default=list(make_models()), choices=list(make_models()))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = pd.read_parquet(Path(os.environ["FRAGILITY_DATA"]) / "adult.parquet")
    table = table.sample(frac=1.0, random_state=0).reset_index(drop=True)
    X, y = table.iloc[:, :-1], table.iloc[:, -1].astype("category").cat.codes
    results: dict[str, Any] = {"goals": GOALS, "tail_goal": TAIL_GOAL, "models": {}}
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for name in given.models:
            model = make_pipeline(make_preprocessing(X), make_models()[name]).fit(X[:TRAIN], y[:TRAIN])
            protocol = fg.Protocol.fit(model, X[:TRAIN])
            results["models"][name] = measure(model, X[TRAIN:], protocol, given.calls)
            say(name, results["models"][name])
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
