"""What failure modes and stability intervals cost, in passes of the model itself.

    FRAGILITY_DATA=... python benchmarks/modes.py [--rows 20000] [--repeats 3] [--out modes.json]

A pass is the estimator's own prediction of the encoded rows in one batch, measured in the same run and in turns. Times
are processor time over all threads, the best of some repeats, so that other work on the machine counts little. Adult:
6 whole-number fields, 8 nominal fields. The rows are bound and the model is read before the clock starts.
Peak memory is what Python and numpy hold at most beyond the bound rows (``tracemalloc``), in a run of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import pandas as pd
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility.engines.choice import choose_oracle
from fragility.engines.kernels.compiling import THREADS
from fragility.protocol import Protocol, bind
from fragility.questions.modes.intervals import intervals_of_rows
from fragility.questions.modes.losses import losses_of_rows

TRAIN, SEED = 10_000, 0
GOALS = {"wrong and noisy": 15.0, "intervals of all fields": 10.0}  # of LightGBM
MODELS: dict[str, Callable[[], Any]] = {
    "LightGBM, 300 trees": lambda: lightgbm.LGBMClassifier(n_estimators=300, n_jobs=THREADS, verbose=-1),
    "XGBoost, 300 trees": lambda: xgboost.XGBClassifier(n_estimators=300, n_jobs=THREADS),
    "random forest, 100 trees": lambda: RandomForestClassifier(100, n_jobs=THREADS, random_state=SEED),
    "logistic regression": lambda: LogisticRegression(max_iter=500),
    "network": lambda: MLPClassifier((64,), max_iter=20, random_state=SEED),
    "black box": lambda: GaussianNB(),  # no engine reads it
}


def processor_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def peak_mebibytes(work: Callable[[], Any]) -> float:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def measure(
    make: Callable[[], Any], table: pd.DataFrame, n: int, repeats: int, with_intervals: bool = True
) -> dict[str, Any]:
    y, X = table["income"], table.drop(columns="income")
    numeric = list(X.select_dtypes("number"))
    nominal = [name for name in X if name not in numeric]
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), nominal), remainder=StandardScaler()
    )
    model = make_pipeline(encode, make()).fit(X[:TRAIN], y[:TRAIN].astype("category").cat.codes)
    protocol = Protocol.fit(model, X[:TRAIN])
    rows = bind(model, X[TRAIN : TRAIN + n], protocol)
    matrix = rows.dense()
    work = {
        "pass": lambda: model[-1].predict_proba(matrix),
        "wrong": lambda: losses_of_rows(choose_oracle(rows), protocol, ["wrong"]),
        "noisy": lambda: losses_of_rows(choose_oracle(rows), protocol, ["noisy"]),
        "wrong and noisy": lambda: losses_of_rows(choose_oracle(rows), protocol, ["wrong", "noisy"]),
        "intervals, reading the model": lambda: intervals_of_rows(rows, protocol, []),
        "intervals of numeric fields": lambda: intervals_of_rows(rows, protocol, numeric),
        "intervals of nominal fields": lambda: intervals_of_rows(rows, protocol, nominal),
        "intervals of all fields": lambda: intervals_of_rows(rows, protocol),
    }
    few = rows.between(0, 64)
    if with_intervals:
        intervals_of_rows(few, protocol)  # kernels are compiled
    losses_of_rows(choose_oracle(few), protocol, ["wrong", "noisy"])
    if not with_intervals:
        work = {name: run for name, run in work.items() if not name.startswith("intervals")}
    best = {name: min(processor_seconds(run) for _ in range(repeats)) for name, run in work.items()}
    passes = {name: best[name] / best["pass"] for name in work if name != "pass"}
    peaks = {name: peak_mebibytes(work[name]) for name in GOALS if name in work}
    sizes = {"rows_mebibytes": matrix.nbytes / 2**20, "peak_mebibytes": peaks}
    return {"rows": len(rows), "pass_seconds": best["pass"], "passes": passes, **sizes}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--no-intervals", action="store_true", help="measure failure modes alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = pd.read_parquet(Path(os.environ["FRAGILITY_DATA"]) / "adult.parquet").sample(frac=1.0, random_state=SEED)
    found: dict[str, Any] = {}
    for name in given.models:
        one = found[name] = measure(MODELS[name], table, given.rows, given.repeats, not given.no_intervals)
        parts = ", ".join(f"{part} {passes:.1f}" for part, passes in one["passes"].items())
        print(f"{name}: {parts} passes of {one['pass_seconds']:.3f} s (goals for LightGBM: {GOALS})")
        peaks = ", ".join(f"{part} {peak:.0f}" for part, peak in one["peak_mebibytes"].items())
        print(f"  peak memory: {peaks} MiB beyond rows of {one['rows_mebibytes']:.0f} MiB", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
