"""What certificates of explainable boosting machines cost, in passes of the model itself.

    FRAGILITY_DATA=... python benchmarks/explainable.py [--rows 20000] [--repeats 5] [--out explainable.json]

A pass is ``predict_proba`` of the raw table in one batch, measured in the same run and in turns. Certificates are the
trace and all scores of bound rows. A whole audit is ``audit()`` from raw rows to the finished table, without a search
of failing sets. Times are those of the clock, the best of some repeats; beside them stands processor time over all
threads, since ``interpret`` predicts in one thread and the engine uses all.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from interpret.glassbox import ExplainableBoostingClassifier

import fragility as fg
from fragility.blocks.claims import claims_from
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.kernels.compiling import THREADS
from fragility.engines.trees.engine import TreeEngine
from fragility.protocol import bind

TRAIN, BLACKBOX_ROWS, GOAL = 8_000, 2_000, 5.0
DATASETS = ("adult", "electricity")


def time_once(work: Callable[[], Any]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(name: str, n: int, repeats: int) -> dict[str, Any]:
    table = pd.read_parquet(Path(os.environ["FRAGILITY_DATA"]) / f"{name}.parquet")
    table = table.sample(frac=1.0, random_state=0).reset_index(drop=True)
    X, y = table.iloc[:, :-1], table.iloc[:, -1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine = ExplainableBoostingClassifier(outer_bags=2, max_rounds=300, n_jobs=1, random_state=0)
        machine.fit(X[:TRAIN], y[:TRAIN])
    test = X[-n:] if len(X) - TRAIN >= n else X[TRAIN:]
    protocol = fg.Protocol.fit(machine, X[:TRAIN])
    rows = bind(machine, test, protocol)
    few = rows.take(range(min(BLACKBOX_ROWS, len(rows))))
    works: dict[str, Callable[[], Any]] = {
        "pass": lambda: machine.predict_proba(test),
        "certificates": lambda: claims_from(TreeEngine(rows).trace(rows, protocol), rows, protocol),
        "black box": lambda: claims_from(trace_blackbox(few, protocol), few, protocol),
        "whole audit": lambda: fg.audit(machine, test, protocol, progress=False, lattice=False),
    }
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in works}
    for _ in range(repeats):
        for what, work in works.items():
            times[what].append(time_once(work))
    best = {what: tuple(min(column) for column in zip(*found, strict=True)) for what, found in times.items()}
    share = len(rows) / len(few)
    scale = {"certificates": 1.0, "black box": share, "whole audit": 1.0}
    return {
        "rows": len(rows),
        "terms": len(machine.term_features_),
        "pairs": sum(len(features) == 2 for features in machine.term_features_),
        "classes": len(machine.classes_),
        "microseconds_per_row_of_a_pass": best["pass"][0] / len(rows) * 1e6,
        "passes": {what: factor * best[what][0] / best["pass"][0] for what, factor in scale.items()},
        "passes_of_processor_time": {what: factor * best[what][1] / best["pass"][1] for what, factor in scale.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {"threads": THREADS, "goal": GOAL, "data": {}}
    for dataset in DATASETS:
        found["data"][dataset] = measure(dataset, given.rows, given.repeats)
        print(dataset, json.dumps(found["data"][dataset], indent=2), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
