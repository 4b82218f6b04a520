"""What the black-box engine adds to the model's own work, and what it saves.

    python benchmarks/blackbox.py [--dataset adult] [--rows 3000] [--repeats 5] [--out FILE.json]

For each model, on one thread and in alternation: the engine's whole run, and the bare ``predict_proba`` calls on the
very batches that run handed to the model. Two ratios are printed:

- time: engine / bare calls, of CPU seconds (the best of the repeats), goal at most 1.15;
- evaluations: rows handed to the model / the paper's n (1 + G + K + |P| |Lambda|), goal at most 0.9 on Adult.

Without the benchmark data (FRAGILITY_DATA) the bundled Credit-G takes Adult's place.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from fragility import Protocol, load_credit_g
from fragility.engines.blackbox import trace_blackbox
from fragility.evidence import EvidenceRows
from fragility.protocol import bind

TIME_GOAL, EVALUATION_GOAL = 1.15, 0.9
TARGETS = {"adult": "income", "credit_g": "class"}


@dataclass(frozen=True)
class Result:
    dataset: str
    model: str
    rows: int
    columns: int
    evaluations: int
    paper_evaluations: int
    engine_seconds: float
    bare_seconds: float

    @property
    def time_ratio(self) -> float:
        return self.engine_seconds / self.bare_seconds

    @property
    def evaluation_ratio(self) -> float:
        return self.evaluations / self.paper_evaluations


def models() -> dict[str, Any]:
    from catboost import CatBoostClassifier
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier

    return {
        "logistic regression": LogisticRegression(max_iter=500),
        "random forest": RandomForestClassifier(100, random_state=0),
        "gradient boosting": GradientBoostingClassifier(random_state=0),
        "hist gradient boosting": HistGradientBoostingClassifier(random_state=0),
        "XGBoost": XGBClassifier(n_estimators=200, n_jobs=1, random_state=0),
        "LightGBM": LGBMClassifier(n_estimators=200, n_jobs=1, verbose=-1, random_state=0),
        "CatBoost": CatBoostClassifier(
            iterations=200, thread_count=1, verbose=False, random_seed=0, allow_writing_files=False
        ),
        "MLP": MLPClassifier((64, 32), max_iter=40, random_state=0),
    }


def table(dataset: str) -> tuple[pd.DataFrame, pd.Series]:
    """Return rows and labels; the bundled data set where the other is absent."""
    if dataset == "credit_g":
        return load_credit_g()
    folder = Path(os.environ.get("FRAGILITY_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    read = pd.read_parquet(folder / f"{dataset}.parquet").sample(frac=1.0, random_state=0).reset_index(drop=True)
    return read.drop(columns=TARGETS[dataset]), read[TARGETS[dataset]]


def pipeline(X: pd.DataFrame, estimator: Any) -> Pipeline:
    numeric = X.select_dtypes("number").columns.tolist()
    nominal = [name for name in X.columns if name not in numeric]
    prepare = ColumnTransformer(
        [
            ("numeric", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numeric),
            ("nominal", OneHotEncoder(handle_unknown="ignore", sparse_output=False), nominal),
        ]
    )
    return Pipeline([("prepare", prepare), ("model", estimator)])


def recorded(rows: EvidenceRows, protocol: Protocol) -> list[np.ndarray]:
    """Return the batches that the engine hands to the model."""
    batches: list[np.ndarray] = []

    def predict(matrix: np.ndarray) -> np.ndarray:
        batches.append(matrix.copy())  # the engine fills its buffer anew
        return rows.predict(matrix)

    trace_blackbox(replace(rows, ask_model=predict), protocol)
    return batches


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(dataset: str, name: str, model: Pipeline, X_train: Any, X: Any, repeats: int) -> Result:
    protocol = Protocol.fit(model, X_train)
    rows = bind(model, X, protocol)
    head = model[-1]
    batches = recorded(rows, protocol)
    engine, bare = [], []
    evaluations = 0
    for _ in range(repeats):
        bare.append(cpu_seconds(lambda: [head.predict_proba(batch) for batch in batches]))
        start = time.process_time()
        evaluations = trace_blackbox(rows, protocol).evaluations
        engine.append(time.process_time() - start)
    assert evaluations == sum(len(batch) for batch in batches)
    return Result(
        dataset=dataset,
        model=name,
        rows=len(rows),
        columns=rows.width,
        evaluations=evaluations,
        paper_evaluations=len(rows) * protocol.states_per_row,
        engine_seconds=min(engine),
        bare_seconds=min(bare),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the black-box engine as ratios.")
    parser.add_argument("--dataset", choices=sorted(TARGETS), default="adult")
    parser.add_argument("--rows", type=int, default=2000, help="rows to audit")
    parser.add_argument("--train-rows", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="*", help="some of the models only")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/blackbox.json"))
    options = parser.parse_args()
    with threadpool_limits(limits=1):  # CPU seconds compare only on one thread
        run(options)


def run(options: argparse.Namespace) -> None:
    dataset = options.dataset
    try:
        X, y = table(dataset)
    except FileNotFoundError:
        dataset = "credit_g"
        print("Adult not found (set FRAGILITY_DATA); the bundled Credit-G takes its place")
        X, y = table(dataset)
    n_train = min(options.train_rows, len(X) * 6 // 10)
    X_train, X_test = X[:n_train], X[n_train : n_train + options.rows]
    results = []
    print(
        f"{'model':<24}{'engine s':>10}{'bare s':>10}{'time':>8}{'evaluations':>13}  on {len(X_test)} rows of {dataset}"
    )
    for name, estimator in models().items():
        if options.models and name not in options.models:
            continue
        labels = (y[:n_train] == y.iloc[0]).astype(int) if name == "XGBoost" else y[:n_train].to_numpy(dtype=object)
        model = pipeline(X_train, estimator).fit(X_train, labels)
        result = measure(dataset, name, model, X_train, X_test, options.repeats)
        results.append(result)
        print(
            f"{name:<24}{result.engine_seconds:>10.3f}{result.bare_seconds:>10.3f}"
            f"{result.time_ratio:>8.3f}{result.evaluation_ratio:>13.3f}"
        )
    write(results, options.out)


def write(results: list[Result], path: Path) -> None:
    document = {
        "goals": {"time_ratio": TIME_GOAL, "evaluation_ratio": EVALUATION_GOAL},
        "worst": {
            "time_ratio": max(result.time_ratio for result in results),
            "evaluation_ratio": max(result.evaluation_ratio for result in results),
        },
        "machine": {"processor": platform.machine(), "python": platform.python_version(), "threads": 1},
        "results": [
            {**asdict(result), "time_ratio": result.time_ratio, "evaluation_ratio": result.evaluation_ratio}
            for result in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(
        f"worst: time {document['worst']['time_ratio']:.3f} (goal {TIME_GOAL}), "
        f"evaluations {document['worst']['evaluation_ratio']:.3f} (goal {EVALUATION_GOAL}); written to {path}"
    )


if __name__ == "__main__":
    main()
