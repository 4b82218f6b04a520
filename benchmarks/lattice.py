"""What the lattice costs: every subset of a row's groups, and the smallest that fail, in passes of the model itself.

    FRAGILITY_DATA=... python benchmarks/lattice.py [--out lattice.json] [--rows 2000] [--repeats 3] [--only heloc]

A pass is the library's own prediction of rows in one batch, on as many threads as the lattice uses, measured in the
same run. Times are processor time over all threads, the best of some repeats, so that other work on the machine counts
little; the wall-clock time of the best repeat stands beside them. Credit-G is bundled.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility.base.libraries import load_credit_g
from fragility.engines.choice import choose_oracle
from fragility.engines.kernels.compiling import THREADS
from fragility.engines.lattice.whole import WholeLattice, find_lattice
from fragility.protocol import Protocol, bind

TARGETS = {"adult": "income", "bank_marketing": "class", "heloc": "RiskPerformance", "default_credit": "class"}
TRAIN, SEED, BYTES = 10_000, 0, 2**28
MODELS: dict[str, Callable[[], Any]] = {
    "LightGBM, 300 trees": lambda: lightgbm.LGBMClassifier(n_estimators=300, n_jobs=THREADS, verbose=-1),
    "random forest, 200 trees of full depth": lambda: RandomForestClassifier(200, n_jobs=THREADS, random_state=SEED),
}


def tables() -> Iterator[tuple[str, pd.DataFrame, pd.Series]]:
    folder = os.environ.get("FRAGILITY_DATA")
    for name, target in TARGETS.items():
        path = Path(folder or ".") / f"{name}.parquet"
        if folder and path.exists():
            table = pd.read_parquet(path)
            label = target if target in table else table.columns[-1]
            table = table.sample(frac=1.0, random_state=SEED).reset_index(drop=True)
            yield name, table.drop(columns=[label]), table[label].astype(str)
    X, y = load_credit_g()
    yield "credit_g", X, y.astype(str)


def fitted(X: pd.DataFrame, y: pd.Series, head: Any) -> Pipeline:
    numeric = [name for name in X if pd.api.types.is_numeric_dtype(X[name])]
    nominal = [name for name in X if name not in numeric]
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numeric),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), nominal),
        sparse_threshold=0.0,
    )
    return make_pipeline(prepare, head).fit(X, y)


def best(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return (processor seconds, wall-clock seconds) of the best repeat."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        run()
        times.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return min(times)[0], min(wall for _, wall in times)


def sweep(lattice: WholeLattice, rates: Any = None) -> int:
    """Decide every subset of every row; with rates, also their failure probabilities. Return states asked for."""
    asked = 0
    for block in lattice.blocks():
        for found in lattice.subsets(block):
            found.sizes()
            asked += found.asked
            if rates is not None:
                found.probabilities(rates)
    return asked


def find_smallest(lattice: WholeLattice) -> None:
    """Decide the smallest failing sets of every row."""
    for block in lattice.blocks():
        for found in lattice.smallest(block, lattice.rows.n_groups):
            found.sizes()


def measure(name: str, X: pd.DataFrame, y: pd.Series, model: str, n: int, repeats: int) -> dict[str, Any]:
    train = min(TRAIN, len(X) * 2 // 3)
    pipeline = fitted(X[:train], y[:train], MODELS[model]())
    protocol = Protocol.fit(pipeline, X[:train])
    rows = bind(pipeline, X[train : train + n], protocol)
    many = bind(pipeline, X[train : train + 20_000], protocol)
    cells = many.dense()
    lattice = find_lattice(rows, protocol, "auto", BYTES)
    assert lattice is not None
    live = np.concatenate([block.live.sum(axis=1) for block in lattice.blocks()])
    a_pass = best(lambda: many.predict(cells), repeats)[0] / len(many)
    fast = choose_oracle(many)
    native = best(lambda: fast.predict(cells), repeats)[0] / len(many)
    seconds, wall = (value / len(rows) for value in best(lambda: sweep(lattice), repeats))
    smallest = best(lambda: find_smallest(lattice), repeats)[0] / len(rows)
    chances = best(lambda: sweep(lattice, np.full(rows.n_groups, 0.1)), repeats)[0] / len(rows)
    full = np.flatnonzero(live == live.max())
    widest = find_lattice(rows.take(np.resize(full, max(20, n // 10)).tolist()), protocol, "auto", BYTES)
    assert widest is not None
    return {
        "data": name,
        "model": model,
        "groups": rows.n_groups,
        "live_mean": float(live.mean()),
        "live_most": int(live.max()),
        "rows": len(rows),
        "ms_a_row": 1e3 * seconds,
        "wall_ms_a_row": 1e3 * wall,
        "ms_a_row_smallest": 1e3 * smallest,
        "ms_a_row_with_probability": 1e3 * chances,
        "ms_a_row_at_most_live": 1e3 * best(lambda: sweep(widest), repeats)[0] / len(widest.rows),
        "pass_us": 1e6 * a_pass,
        "passes": seconds / a_pass,
        "passes_smallest": smallest / a_pass,
        "native_pass_us": 1e6 * native,
        "asked_a_row": sweep(lattice) / len(rows),
        "table_mib_a_worker": lattice.model.entry_bytes() * 2.0 ** int(live.max()) / 2**20,
        "threads": THREADS,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path)
    options.add_argument("--rows", type=int, default=2000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", help="one of the data sets")
    chosen = options.parse_args()
    results = []
    for name, X, y in tables():
        for model in MODELS if chosen.only in (None, name) else ():
            n = chosen.rows if X.shape[1] < 19 else max(20, chosen.rows // 16)
            found = measure(name, X, y, model, n, chosen.repeats)
            results.append(found)
            print({key: round(v, 3) if isinstance(v, float) else v for key, v in found.items()}, flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
