"""Wrapped models: do native engines claim what the black box claims, and what do their certificates cost?

    python benchmarks/wrapped.py costs  [--dataset adult] [--rows 10000] [--repeats 5] [--out wrapped.json]
    python benchmarks/wrapped.py parity [--rows 500] [--dataset NAME ...] [--out wrapped_parity.json]

A pass is the wrapper's own predict_proba on the same rows. "before" is the black box, which audited such models until
their members could be read. Parity takes every wrapper around every inner model, on all seven data sets.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from parity import at_an_edge, differing_rows
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from fragility.blocks.claims import claims_from
from fragility.engines.blackbox import trace_blackbox
from fragility_paper.bench import Bench, costs
from fragility_paper.data import DATASETS, load

Maker = Callable[[], Any]


def make_inner(scale: int) -> dict[str, Maker]:
    """Return the inner models; scale: how many trees, in tens."""
    from catboost import CatBoostClassifier
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier

    return {
        "LogisticRegression": lambda: LogisticRegression(max_iter=300),
        "LightGBM": lambda: LGBMClassifier(n_estimators=10 * scale, verbose=-1, random_state=0),
        "XGBoost": lambda: XGBClassifier(n_estimators=10 * scale, max_depth=6, random_state=0),
        "HistGradientBoosting": lambda: HistGradientBoostingClassifier(
            max_iter=10 * scale, early_stopping=False, random_state=0
        ),
        "RandomForest": lambda: RandomForestClassifier(10 * scale, max_leaf_nodes=256, random_state=0),
        "CatBoost": lambda: CatBoostClassifier(
            iterations=10 * scale, depth=6, verbose=0, allow_writing_files=False, random_seed=0
        ),
    }


def linear() -> Any:
    return LogisticRegression(max_iter=200, C=0.1)


WRAPPERS: dict[str, Callable[[Maker], Any]] = {
    "sigmoid": lambda make: CalibratedClassifierCV(make(), cv=3),
    "isotonic": lambda make: CalibratedClassifierCV(make(), method="isotonic", cv=3),
    "temperature": lambda make: CalibratedClassifierCV(make(), method="temperature", cv=3),
    "sigmoid, one model": lambda make: CalibratedClassifierCV(make(), cv=3, ensemble=False),
    "voting": lambda make: VotingClassifier(
        [("a", make()), ("b", linear()), ("c", make())], voting="soft", weights=[2, 1, 1]
    ),
    "bagging": lambda make: BaggingClassifier(make(), 3, max_features=0.7, bootstrap_features=True, random_state=0),
    "one against rest": lambda make: OneVsRestClassifier(make()),
    "stacking": lambda make: StackingClassifier([("a", make()), ("b", linear())], LogisticRegression(), cv=2),
    "stacking, passed through": lambda make: StackingClassifier(
        [("a", make()), ("b", linear())], LogisticRegression(max_iter=50), cv=2, passthrough=True
    ),
}


read = cache(load)


# --- parity -------------------------------------------------------------------------------------------------


def compare(dataset: str, wrapper: str, inner: str, make: Maker, rows: int) -> dict[str, Any]:
    bench = Bench.prepare(read(dataset), WRAPPERS[wrapper](make), rows)
    record: dict[str, Any] = {"dataset": dataset, "wrapper": wrapper, "inner": inner, "rows": len(bench.rows)}
    if bench.native is None:
        return {**record, "engine": "blackbox"}
    trace, asked = (
        bench.native(bench.rows).trace(bench.rows, bench.protocol),
        trace_blackbox(bench.rows, bench.protocol),
    )
    native, own = (claims_from(each, bench.rows, bench.protocol) for each in (trace, asked))
    different = differing_rows(native, own)
    return {
        **record,
        "engine": bench.native.name,
        "different": int(different.sum()),
        "of_them_ties": int((different & at_an_edge(own, bench.protocol.resolution)).sum()),
        "largest_margin_gap": float(np.abs(trace.path_margin - asked.path_margin).max()),
    }


def check_parity(options: argparse.Namespace) -> list[dict[str, Any]]:
    records = []
    for wrapper in WRAPPERS:
        for inner, make in make_inner(options.trees // 10).items():
            for dataset in options.dataset or DATASETS:
                records.append(compare(dataset, wrapper, inner, make, options.rows))
                print(json.dumps(records[-1]), flush=True)
    read = [record for record in records if record["engine"] != "blackbox"]
    print(
        f"{len(records)} models, {len(read)} of them read, {sum(r['rows'] for r in read)} rows compared, "
        f"{sum(r['different'] for r in read)} different, {sum(r['of_them_ties'] for r in read)} of them ties"
    )
    return records


# --- costs --------------------------------------------------------------------------------------------------


def make_measured() -> dict[str, Maker]:
    inner = make_inner(30)
    light, extreme, hist, forest, cat = (
        inner[name] for name in ("LightGBM", "XGBoost", "HistGradientBoosting", "RandomForest", "CatBoost")
    )
    return {
        "LightGBM, sigmoid, 5 folds": lambda: CalibratedClassifierCV(light(), cv=5),
        "LightGBM, sigmoid, one model": lambda: CalibratedClassifierCV(light(), cv=5, ensemble=False),
        "LightGBM, isotonic, 5 folds": lambda: CalibratedClassifierCV(light(), method="isotonic", cv=5),
        "XGBoost, sigmoid, 5 folds": lambda: CalibratedClassifierCV(extreme(), cv=5),
        "XGBoost, sigmoid, one model": lambda: CalibratedClassifierCV(extreme(), cv=5, ensemble=False),
        "XGBoost, isotonic, 5 folds": lambda: CalibratedClassifierCV(extreme(), method="isotonic", cv=5),
        "CatBoost, temperature, 5 folds": lambda: CalibratedClassifierCV(cat(), method="temperature", cv=5),
        "HistGradientBoosting, sigmoid, 5 folds": lambda: CalibratedClassifierCV(hist(), cv=5),
        "voting of LightGBM, XGBoost, LogisticRegression": lambda: VotingClassifier(
            [("a", light()), ("b", extreme()), ("c", linear())], voting="soft"
        ),
        "voting of LightGBM, XGBoost, RandomForest": lambda: VotingClassifier(
            [("a", light()), ("b", extreme()), ("c", forest())], voting="soft"
        ),
        "bagging of 5 LightGBM": lambda: BaggingClassifier(light(), 5, max_features=0.7, random_state=0),
        "stacking of LightGBM, XGBoost": lambda: StackingClassifier(
            [("a", light()), ("b", extreme())], LogisticRegression(), cv=2
        ),
    }


def time_models(options: argparse.Namespace) -> list[dict[str, Any]]:
    records = []
    for dataset in options.dataset or ["adult"]:
        data = read(dataset)
        for name, make in make_measured().items():
            if options.model and not any(part in name for part in options.model):
                continue
            bench = Bench.prepare(data, make(), options.rows)
            if bench.native is None:
                print(f"{dataset} {name}: no engine reads it")
                continue
            head, handed = bench.rows.model.head, bench.rows.hand_over(bench.rows.dense())
            engine, rows, protocol = bench.native(bench.rows), bench.rows, bench.protocol
            took = costs.measure(
                {
                    "pass": lambda: head.predict_proba(handed),  # noqa: B023
                    "certificate": lambda: claims_from(engine.trace(rows, protocol), rows, protocol),  # noqa: B023
                },
                options.repeats,
            )
            took |= costs.measure({"before": lambda: trace_blackbox(rows, protocol)}, 1, warm_up=False)  # noqa: B023
            passes, before = took["certificate"] / took["pass"], took["before"] / took["pass"]
            records.append(
                {"dataset": dataset, "model": name, "engine": bench.native.name, "rows": len(rows), **took}
                | {"passes": passes, "passes_before": before}
            )
            print(f"{dataset} {name}: {before:.1f} -> {passes:.2f} passes of {1000 * took['pass']:.0f} ms", flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["costs", "parity"])
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trees", type=int, default=20, help="of each inner model, for parity")
    parser.add_argument("--train", type=int, default=None, help="rows that models are trained on")
    parser.add_argument("--dataset", action="append", choices=list(DATASETS), default=None)
    parser.add_argument("--model", action="append", default=None, help="part of a model's name, for costs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    options.rows = options.rows or (500 if options.what == "parity" else 10_000)
    # what a model has learned does not matter for parity
    costs.TRAIN_ROWS = options.train or (2000 if options.what == "parity" else costs.TRAIN_ROWS)
    warnings.filterwarnings("ignore", module="sklearn")
    warnings.filterwarnings("ignore", module="lightgbm")
    records = check_parity(options) if options.what == "parity" else time_models(options)
    if options.out is not None:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
