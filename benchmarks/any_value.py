"""How long the search takes for how many groups must change, to any values, before a decision flips. (SPEC 19)

    NUMBA_NUM_THREADS=1 python benchmarks/any_value.py [--dataset adult heloc default_credit] [--trees 300] [--rows 200]
        [--model lightgbm xgboost forest] [--size 3] [--out benchmarks/results/any_value.json]

On confident test rows and one thread: milliseconds per row (median, 99th percentile), the
share decided up to 1, 2 and 3 groups, and what the chances of the catalogue cost beside it. Goals: every row decided up
to 2 groups, median at most 0.5 ms and 99th percentile at most 15 ms; up to 3 groups 95% within 0.1 s.

Times are processor time of one thread (set NUMBA_NUM_THREADS=1). The rows are searched one at a time, so that each has
a time of its own; what is read of the model is read before.
Without the benchmark data (FRAGILITY_DATA) the bundled Credit-G takes their place.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import fragility as fg
from fragility.protocol import bind
from fragility.questions.any_value.deciding import DEFAULT_BUDGET, AnyValues
from fragility.questions.any_value.native import DOUBTFUL, FLIPS, OPEN

TARGETS = {
    "adult": "income",
    "heloc": "RiskPerformance",
    "default_credit": "default",
    "credit_g": "class",
    "covertype": "Cover_Type",
}
CONFIDENT = 0.9
MOST_TRAINED = 40_000


def read_table(name: str) -> tuple[pd.DataFrame, Any]:
    """Return the fields as a booster takes them, and the labels as 0 and 1."""
    folder = os.environ.get("FRAGILITY_DATA")
    if folder is None:
        X, y = fg.load_credit_g()
    else:
        X = pd.read_parquet(Path(folder) / f"{name}.parquet")
        y = X.pop(TARGETS[name] if TARGETS[name] in X else X.columns[-1])
    for column in X:
        if not pd.api.types.is_numeric_dtype(X[column]):
            X[column] = X[column].astype("category")
    return X, pd.factorize(y, sort=True)[0]


def make_model(kind: str, trees: int) -> Any:
    if kind == "lightgbm":
        import lightgbm

        return lightgbm.LGBMClassifier(n_estimators=trees, verbose=-1, n_jobs=1)
    if kind == "forest":
        return RandomForestClassifier(trees, random_state=0, n_jobs=1)
    import xgboost

    return xgboost.XGBClassifier(n_estimators=trees, n_jobs=1, enable_categorical=True)


def measure(dataset: str, kind: str, trees: int, rows: int, largest: int) -> dict[str, Any]:
    X, y = read_table(dataset)
    if kind == "forest":
        X = X.apply(lambda column: column.cat.codes if column.dtype == "category" else column).fillna(-1)
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, random_state=1)
    train, test = train[:MOST_TRAINED], test[:MOST_TRAINED]
    model = make_model(kind, trees).fit(X.iloc[train], y[train])
    confident = test[model.predict_proba(X.iloc[test]).max(axis=1) >= CONFIDENT][:rows]
    protocol = fg.Protocol.fit(model, X.iloc[train])
    start = time.thread_time()
    bound = bind(model, X.iloc[confident], protocol)
    values = AnyValues(bound, protocol)
    assert values.native is not None and not values.left.any()
    units = [list(fields) for fields in values.units.values()]
    values.native.search_size(np.array([0]), units, 1, DEFAULT_BUDGET)
    prepared = time.thread_time() - start
    decided = np.ones((largest, len(confident)), dtype=bool)  # a doubtful set is decided by one question to the model
    seconds, size_of, open_sets = np.zeros((largest, len(confident))), np.zeros(len(confident), dtype=int), 0
    for row in range(len(confident)):
        for size in range(1, largest + 1):
            start = time.thread_time()
            found = values.native.search_size(np.array([row]), units, size, DEFAULT_BUDGET)
            seconds[size - 1, row] = time.thread_time() - start
            open_sets += int(found.counts[0, OPEN] + found.counts[0, DOUBTFUL])
            if found.counts[0, OPEN] and not found.counts[0, FLIPS]:
                decided[size - 1 :, row] = False
            if found.counts[0, FLIPS]:
                size_of[row] = size
                break
    start = time.thread_time()
    for rows_of_class in values.group_rows(np.arange(len(confident))):
        values.native.weigh(rows_of_class)
    weighed = (time.thread_time() - start) / len(confident)
    shares = " ".join(f"{(size_of == size).mean():.3f}" for size in range(1, largest + 1))
    print(
        f"{dataset} {kind} {trees} trees, {len(confident)} rows, {len(units)} groups, prepared in {prepared:.1f} s; "
        f"flip at 1..{largest}: {shares}; doubtful or open sets: {open_sets}; chances {1e3 * weighed:.2f} ms"
    )
    result: dict[str, Any] = {
        "dataset": dataset, "model": kind, "trees": trees, "classes": int(y.max()) + 1, "rows": len(confident),
        "groups": len(units), "prepared_seconds": prepared, "undecided_sets": open_sets, "chances_ms": 1e3 * weighed,
    }  # fmt: skip
    for size in range(1, largest + 1):
        total = 1e3 * seconds[:size].sum(axis=0)
        result[f"up_to_{size}"] = {
            "flipped": float((size_of[size_of > 0] <= size).sum() / len(confident)),
            "decided": float(decided[size - 1].mean()),
            "within_100_ms": float((total <= 100).mean()),
            **{
                name: float(np.quantile(total, q))
                for name, q in (("median_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))
            },
        }
        print(
            f"    up to {size}: median {np.median(total):.3f} ms, 99% {np.quantile(total, 0.99):.2f} ms, "
            f"95% {np.quantile(total, 0.95):.2f} ms, most {total.max():.2f} ms"
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["adult", "heloc", "default_credit"], choices=list(TARGETS))
    parser.add_argument(
        "--model", nargs="+", default=["lightgbm", "xgboost"], choices=["lightgbm", "xgboost", "forest"]
    )
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--size", type=int, default=3, choices=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    names = asked.dataset if "FRAGILITY_DATA" in os.environ else ["credit_g"]
    found = [measure(name, kind, asked.trees, asked.rows, asked.size) for name in names for kind in asked.model]
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
