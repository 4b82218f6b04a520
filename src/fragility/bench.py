"""bench: what a certificate costs, as ratios measured within one run.

For each model, on the same rows and in alternation, so that whatever else the machine does falls on all alike: one pass
of the estimator's own ``predict_proba``; the certificates by the native engine; by the black-box engine; and shap's
TreeExplainer. Ratios are of medians over the repeats. Rows are transformed beforehand: every contender is given the
estimator's input matrix, and ``end_to_end`` adds preprocessing, digests and the table.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

from fragility.arrays import DEFAULT_BYTE_BUDGET
from fragility.audit import audit, claims_from
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import NativeEngine, choose_native
from fragility.errors import ModelError
from fragility.evidence import EvidenceRows
from fragility.files import write_text
from fragility.protocol import Protocol, bind
from fragility.study.datasets import Dataset, load
from fragility.study.preparation import preprocessing

TRAIN_ROWS = 20_000
THREADS = os.cpu_count() or 1
MANY_ROWS = 50_000  # above this one run is long enough to be its own average
SHAP_SECONDS = 30.0  # TreeExplainer on deep forests would take hours; it is timed on as many rows as fit into this


def _lightgbm(trees: int = 300, **settings: Any) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=trees, n_jobs=THREADS, random_state=0, verbose=-1, **settings)


def _xgboost(trees: int = 300, depth: int = 6) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=trees, max_depth=depth, n_jobs=THREADS, random_state=0)


def _catboost(trees: int = 300, depth: int = 6) -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(
        iterations=trees, depth=depth, thread_count=THREADS, random_seed=0, verbose=False, allow_writing_files=False
    )


MODELS: Mapping[str, Callable[[], Any]] = {
    "LightGBM 300 x 31 leaves": _lightgbm,
    "XGBoost 300 x depth 6": _xgboost,
    "CatBoost 300 x depth 6": _catboost,
    "HistGradientBoosting 200": lambda: HistGradientBoostingClassifier(
        max_iter=200, early_stopping=False, random_state=0
    ),
    "RandomForest 200": lambda: RandomForestClassifier(200, n_jobs=THREADS, random_state=0),
    "ExtraTrees 200": lambda: ExtraTreesClassifier(200, n_jobs=THREADS, random_state=0),
    "LogisticRegression": lambda: LogisticRegression(max_iter=500),
    "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis,
}


@dataclass(frozen=True)
class Cost:
    """Median seconds of one model's contenders on the same rows, and what follows from them."""

    dataset: str
    model: str
    rows: int
    columns: int
    groups: int
    states_per_row: int
    engine: str
    native_pass: float  # the estimator's predict_proba on the transformed rows
    certificate: float  # native engine: trace and scores of all rows
    blackbox: float | None  # black-box engine, the same
    explainer: float | None  # TreeExplainer, scaled to all rows
    explainer_rows: int
    end_to_end: float | None  # audit() from raw rows to the finished certificates
    peak_bytes: int  # of the arrays the native engine allocates

    @property
    def over_native_pass(self) -> float:
        return self.certificate / self.native_pass

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.certificate

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "over_native_pass": self.over_native_pass, "rows_per_second": self.rows_per_second}


def measure(contenders: Mapping[str, Callable[[], object]], repeats: int, warm_up: bool = True) -> dict[str, float]:
    """Return each contender's median seconds, taking turns."""
    if warm_up:
        for run in contenders.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


@dataclass(frozen=True, eq=False)
class Bench:
    """A fitted pipeline, its protocol and the rows to audit."""

    dataset: Dataset
    pipeline: Pipeline
    protocol: Protocol
    test: Any
    rows: EvidenceRows
    native: NativeEngine | None  # chosen, and checked against the black box, before the clock starts

    @classmethod
    def prepare(cls, dataset: Dataset, estimator: Any, n_rows: int, groups: Any = "raw-origin") -> Bench:
        order = np.random.default_rng(0).permutation(len(dataset.X))
        n_train = min(TRAIN_ROWS, len(order) // 2)
        train, rest = order[:n_train], order[n_train:]
        test = np.resize(rest, n_rows) if n_rows > len(rest) else rest[:n_rows]
        pipeline = Pipeline([("prepare", preprocessing(dataset.spec)), ("model", estimator)])
        pipeline.fit(dataset.X.iloc[train], dataset.y[train])
        protocol = Protocol.fit(pipeline, dataset.X.iloc[train], groups=groups)
        X = dataset.X.iloc[test].reset_index(drop=True)
        rows = bind(pipeline, X, protocol)
        native = choose_native(rows, protocol, "auto", DEFAULT_BYTE_BUDGET)
        return cls(dataset, pipeline, protocol, X, rows, native)

    def native_pass(self) -> object:
        return self.pipeline[-1].predict_proba(self.rows.matrix)

    def certificate(self) -> object:
        if self.native is None:
            return self.blackbox()
        return claims_from(self.native.trace(self.rows, self.protocol, None), self.rows, self.protocol)

    def blackbox(self) -> object:
        return claims_from(trace_blackbox(self.rows, self.protocol), self.rows, self.protocol)

    def end_to_end(self) -> object:
        return audit(self.pipeline, self.test, self.protocol, progress=False)

    @property
    def engine(self) -> str:
        return BLACKBOX if self.native is None else self.native.name

    def peak_bytes(self) -> int:
        tracemalloc.start()
        try:
            self.certificate()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def explainer_seconds(self) -> tuple[float | None, int]:
        """Return TreeExplainer's seconds for all rows, and the rows it was timed on; None where it does not apply."""
        try:
            import shap

            explainer = shap.TreeExplainer(self.pipeline[-1])
        except Exception:  # not a tree model, or shap is not installed: no comparison
            return None, 0
        count, spent = 16, 0.0
        while True:
            rows = self.rows.dense(0, count)
            start = time.perf_counter()
            explainer.shap_values(rows, check_additivity=False)
            spent = time.perf_counter() - start
            if count >= len(self.rows) or spent * 4 > SHAP_SECONDS:
                return spent / len(rows) * len(self.rows), len(rows)
            count = min(len(self.rows), count * 4)


def cost_of(name: str, bench: Bench, repeats: int, *, only_native: bool = False) -> Cost:
    """Return the costs of one prepared model; ``only_native`` leaves out the slow comparisons."""
    many = len(bench.rows) > MANY_ROWS
    contenders = {"native_pass": bench.native_pass, "certificate": bench.certificate}
    medians: dict[str, float | None] = {"end_to_end": None, "blackbox": None}
    medians |= measure(contenders, 1 if many else max(repeats, 3), warm_up=not many)
    explainer, explainer_rows = None, 0
    if not only_native:
        slow = {"end_to_end": bench.end_to_end, "blackbox": bench.blackbox}
        medians |= measure(slow, max(1, repeats // 3), warm_up=False)
        explainer, explainer_rows = bench.explainer_seconds()
    return Cost(
        dataset=bench.dataset.spec.name,
        model=name,
        rows=len(bench.rows),
        columns=bench.rows.width,
        groups=bench.rows.n_groups,
        states_per_row=bench.protocol.states_per_row,
        engine=bench.engine,
        native_pass=medians["native_pass"] or 0.0,
        certificate=medians["certificate"] or 0.0,
        blackbox=medians["blackbox"],
        explainer=explainer,
        explainer_rows=explainer_rows,
        end_to_end=medians["end_to_end"],
        peak_bytes=bench.peak_bytes(),
    )


Progress = Callable[[str], None]


def run_models(
    datasets: Sequence[str], models: Sequence[str], n_rows: int, repeats: int, data: Path | None, say: Progress
) -> list[Cost]:
    """Return the costs of each model on each data set."""
    unknown = [name for name in models if name not in MODELS]
    if unknown:
        raise ModelError(f"unknown model {unknown[0]!r}; expected one of {', '.join(MODELS)}")
    costs = []
    for dataset_name in datasets:
        dataset = load(dataset_name, data=data)
        for name in models:
            say(f"{dataset_name}: {name}")
            costs.append(cost_of(name, Bench.prepare(dataset, MODELS[name](), n_rows), repeats))
    return costs


def run_scaling(data: Path | None, row_counts: Sequence[int], say: Progress) -> list[dict[str, Any]]:
    """Return how the certificate's cost grows with rows, groups, trees and depth."""
    out: list[dict[str, Any]] = []

    def add(what: str, value: int, bench: Bench) -> None:
        say(f"scaling: {what} = {value}")
        cost = cost_of(f"{what} {value}", bench, 3, only_native=True)
        out.append({"grows": what, "value": value, **cost.to_dict()})

    covertype = load("covertype", data=data)
    for count in row_counts:
        add("rows", count, Bench.prepare(covertype, _lightgbm(100), count))
    adult = load("adult", data=data)
    for parts in (4, 7, 14):
        blocks = {field: f"block{i % parts}" for i, field in enumerate(adult.spec.fields)}
        add("groups", parts, Bench.prepare(adult, _lightgbm(), 10_000, groups=blocks))
    for trees in (100, 300, 900):
        add("trees", trees, Bench.prepare(adult, _lightgbm(trees), 10_000))
    for depth in (4, 6, 8, 10):
        add("depth", depth, Bench.prepare(adult, _xgboost(300, depth), 10_000))
    return out


def report(costs: Sequence[Cost], scaling: Sequence[Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """Return everything measured, as JSON values."""
    return {
        "machine": {"cores": THREADS, "processor": platform.machine(), "python": platform.python_version()},
        "repeats": repeats,
        "models": [cost.to_dict() for cost in costs],
        "scaling": [dict(row) for row in scaling],
    }


def save_report(document: Mapping[str, Any], path: Path) -> None:
    write_text(path, json.dumps(document, indent=1) + "\n")


def markdown(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown tables."""
    lines = [
        f"Measured on {document['machine']['cores']} cores, medians of {document['repeats']} alternating repeats.",
        "",
        "| data | model | engine | one native pass | certificate / native pass | faster than black box "
        "| faster than TreeExplainer (rows timed) | rows/s | end to end | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["models"]:
        lines.append(
            f"| {row['dataset']} | {row['model']} | {row['engine']} | {row['native_pass'] * 1e3:.1f} ms "
            f"| {row['over_native_pass']:.1f} | {_faster(row['blackbox'], row)} | {_explained(row)} "
            f"| {row['rows_per_second']:,.0f} | {row['end_to_end']:.2f} s | {row['peak_bytes'] / 2**20:.0f} |"
        )
    if document["scaling"]:
        lines += [
            "",
            "| grows | value | certificate | native pass | ratio | rows/s | peak MiB |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in document["scaling"]:
        lines.append(
            f"| {row['grows']} | {row['value']:,} | {row['certificate']:.3f} s | {row['native_pass']:.3f} s "
            f"| {row['over_native_pass']:.1f} | {row['rows_per_second']:,.0f} | {row['peak_bytes'] / 2**20:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _explained(row: Mapping[str, Any]) -> str:
    return "-" if row["explainer"] is None else f"{_faster(row['explainer'], row)} ({row['explainer_rows']:,})"


def _faster(other: float | None, row: Mapping[str, Any]) -> str:
    return "-" if other is None else f"{other / row['certificate']:.1f}x"
