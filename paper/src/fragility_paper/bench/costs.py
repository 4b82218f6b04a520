"""What a certificate costs, as ratios measured within one run.

For each model, on the same rows and in alternation, so that whatever else the machine does falls on all alike: one pass
of the estimator's own ``predict_proba``; the certificates by the native engine; by the black-box engine; and shap's
TreeExplainer. Ratios are of medians over the repeats. Rows are transformed beforehand: every contender is given the
estimator's input matrix, and ``end_to_end`` adds preprocessing, digests and the table.
"""

from __future__ import annotations

import re
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

import fragility as fg
from fragility_paper.bench.models import TakesCategories
from fragility_paper.data import Dataset, preprocessing
from fragility_paper.library import (
    BLACKBOX,
    DEFAULT_BYTE_BUDGET,
    Engine,
    EvidenceRows,
    bind,
    choose_engine,
    claims_from,
    trace_blackbox,
)

TRAIN_ROWS = 20_000
MANY_ROWS = 50_000  # above this one run is long enough to be its own average
SHAP_SECONDS = 30.0  # TreeExplainer on deep forests would take hours; it is timed on as many rows as fit into this


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


def with_categories(dataset: Dataset) -> pd.DataFrame:
    """Return the raw table as boosters with categories take it: what is unavailable is missing, whole numbers whole."""
    table = dataset.X.mask(pd.DataFrame(dataset.unavailable, columns=dataset.X.columns))
    for name in table:
        if name in dataset.spec.nominal:
            table[name] = pd.Categorical(table[name])
        elif table[name].notna().all() and (table[name] == table[name].round()).all():
            table[name] = table[name].astype(np.int64)
    return table


def with_indicators(dataset: Dataset) -> pd.DataFrame:
    """Return the raw table with an indicator column for each value of a nominal field: every column is a group."""
    table = pd.get_dummies(dataset.X, columns=list(dataset.spec.nominal), dtype=np.int64)
    return table.rename(columns=lambda name: re.sub(r"\W", "_", name))  # LightGBM would rename them otherwise


@dataclass(frozen=True, eq=False)
class Bench:
    """A fitted model, its protocol and the rows to audit."""

    dataset: str
    model: Any  # a pipeline, or an estimator that takes the table itself
    protocol: fg.Protocol
    test: pd.DataFrame
    rows: EvidenceRows
    native: type[Engine] | None  # chosen, and checked against the black box, before the clock starts

    @classmethod
    def prepare(cls, dataset: Dataset, estimator: Any, n_rows: int, groups: Any = "raw-origin") -> Bench:
        """Train on a seeded sample; the other rows, repeated if need be, are audited."""
        if isinstance(estimator, TakesCategories):
            own, table = estimator.estimator, with_categories(dataset)
            return cls.fitted(dataset.spec.name, own, table, dataset.y, n_rows, groups=groups, space="raw")
        model = Pipeline([("prepare", preprocessing(dataset.spec)), ("model", estimator)])
        return cls.fitted(dataset.spec.name, model, dataset.X, dataset.y, n_rows, groups=groups)

    @classmethod
    def fitted(
        cls,
        dataset: str,
        model: Any,
        table: pd.DataFrame,
        y: Any,
        n_rows: int,
        *,
        groups: Any = "raw-origin",
        space: Any = None,
    ) -> Bench:
        """Do the same with any table and an estimator that takes it."""
        order = np.random.default_rng(0).permutation(len(table))
        n_train = min(TRAIN_ROWS, len(order) // 2)
        train, rest = order[:n_train], order[n_train:]
        test = np.resize(rest, n_rows) if n_rows > len(rest) else rest[:n_rows]
        model.fit(table.iloc[train], y[train])
        protocol = fg.Protocol.fit(model, table.iloc[train], groups=groups, space=space)
        return cls.ready(dataset, model, protocol, table.iloc[test].reset_index(drop=True))

    @classmethod
    def ready(cls, dataset: str, model: Any, protocol: fg.Protocol, test: pd.DataFrame) -> Bench:
        rows = bind(model, test, protocol)
        native = choose_engine(rows, protocol, "auto", DEFAULT_BYTE_BUDGET)
        return cls(dataset, model, protocol, test, rows, native)

    def among(self, n_rows: int) -> Bench:
        """Return the same model with its first rows only."""
        return Bench.ready(self.dataset, self.model, self.protocol, self.test.iloc[:n_rows])

    @property
    def takes_table(self) -> bool:
        return not isinstance(self.model, Pipeline)

    def native_pass(self) -> object:
        """The estimator's own pass over the rows as it takes them."""
        if self.takes_table:
            return self.model.predict_proba(self.test)
        return self.model[-1].predict_proba(self.rows.matrix)

    def own_predict(self) -> object:
        """The model's own labels, which every audit compares with its probabilities."""
        return self.model.predict(self.test) if self.takes_table else self.model[-1].predict(self.rows.matrix)

    def certificate(self) -> object:
        if self.native is None:
            return self.blackbox()
        return claims_from(self.native(self.rows).trace(self.rows, self.protocol), self.rows, self.protocol)

    def blackbox(self) -> object:
        return claims_from(trace_blackbox(self.rows, self.protocol), self.rows, self.protocol)

    def end_to_end(self) -> object:
        return fg.audit(self.model, self.test, self.protocol, progress=False, lattice=False)

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
        if self.takes_table:
            return None, 0
        try:
            import shap

            explainer = shap.TreeExplainer(self.model[-1])
        except Exception:  # not a tree model, or shap is not installed: no comparison
            return None, 0
        count = 16
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
    fast = measure(contenders, 1 if many else max(repeats, 3), warm_up=not many)
    slow: dict[str, float] = {}
    explainer, explainer_rows = None, 0
    if not only_native:
        compared = {"end_to_end": bench.end_to_end, "blackbox": bench.blackbox}
        slow = measure(compared, max(1, repeats // 3), warm_up=False)
        explainer, explainer_rows = bench.explainer_seconds()
    return Cost(
        dataset=bench.dataset,
        model=name,
        rows=len(bench.rows),
        columns=bench.rows.width,
        groups=bench.rows.n_groups,
        states_per_row=bench.protocol.states_per_row,
        engine=bench.engine,
        native_pass=fast["native_pass"],
        certificate=fast["certificate"],
        blackbox=slow.get("blackbox"),
        explainer=explainer,
        explainer_rows=explainer_rows,
        end_to_end=slow.get("end_to_end"),
        peak_bytes=bench.peak_bytes(),
    )
