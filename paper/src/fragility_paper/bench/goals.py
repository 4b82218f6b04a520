"""The goals set for the cost of an audit, what was measured before, and what is measured now.

Costs are in passes: how often the model's own ``predict_proba`` answers the same rows in that time. Both are measured
in turns in one process (see ``costs``). Every goal is measured in two rounds, the second after all goals of the first,
so that a reader sees how far a figure moves on this machine.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility_paper.bench.costs import Bench, measure, with_indicators
from fragility_paper.bench.models import (
    THREADS,
    TakesCategories,
    catboost,
    hist_gradient_boosting,
    lightgbm,
    xgboost,
)
from fragility_paper.data import Dataset, load
from fragility_paper.library import PartAuditor, TracedRows, bind, input_row_digests

LEAST_DIFFERENCE = 1e-9  # seconds, by which more rows take longer
FIXED_ROWS = 16  # so few that nothing but the fixed cost is left
ROUNDS = 2
LEAST_SECONDS = 0.5  # what takes less is repeated until it has taken so long
MOST_REPEATS = 40
LONG_SECONDS = 8.0  # what takes longer is its own average
MANY_STATES = "fragility_paper.bench.many_states"

Unit: TypeAlias = Literal["passes", "seconds"]
Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the goals are measured on; tests take one small data set and few trees."""

    two_classes: str = "adult"
    many_classes: str = "covertype"
    share: float = 1.0  # of the rows
    trees: int = 300
    forest: int = 200
    rounds: int = 50
    repeats: int = 3
    data: Path | None = None

    def rows(self, count: int) -> int:
        return max(50, round(count * self.share))


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table: how it was, how it should be, and how it is measured."""

    work: str
    before: str
    most: float
    measured: Callable[[Benches], float | None]  # None: it cannot be measured here
    unit: Unit = "passes"


@dataclass(frozen=True, slots=True)
class Result:
    """A goal and what was measured, one figure a round."""

    work: str
    before: str
    most: float
    unit: Unit
    found: tuple[float | None, ...]

    @property
    def verdict(self) -> str:
        """``met`` only if it was met in every round."""
        known = [value for value in self.found if value is not None]
        if len(known) < len(self.found):
            return "not measured"
        reached = [value <= self.most for value in known]
        return "met" if all(reached) else "missed" if not any(reached) else "met once"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "found": list(self.found), "verdict": self.verdict}


@dataclass(eq=False)
class Benches:
    """Models fitted when they are first asked for, and kept for the second round."""

    sizes: Sizes
    made: dict[str, Bench] = field(default_factory=dict)
    asked_together: dict[str, dict[str, float]] = field(default_factory=dict)

    def get(self, name: str) -> Bench:
        if name not in self.made:
            self.made[name] = BENCHES[name](self.sizes)
        return self.made[name]

    # --- what is measured -----------------------------------------------------------------------------------

    def certificate(self, name: str) -> float:
        """Trace and scores of all rows, in passes."""
        return self._passes(self.get(name), self.get(name).certificate)

    def end_to_end(self, name: str) -> float:
        """``audit()`` from raw rows to finished certificates, in passes."""
        return self._passes(self.get(name), self.get(name).end_to_end)

    def marginal(self, name: str) -> float:
        """What ``audit()`` of all rows costs beyond that of a quarter of them, in passes over the rows beyond."""
        whole = self.get(name)
        few = whole.among(len(whole.test) // 4)
        contenders = {"pass": whole.native_pass, "few passed": few.native_pass}
        found = measure(contenders | {"all": whole.end_to_end, "few": few.end_to_end}, self.sizes.repeats)
        return (found["all"] - found["few"]) / max(found["pass"] - found["few passed"], LEAST_DIFFERENCE)

    def fixed_seconds(self, name: str) -> float:
        """``audit()`` of a few rows, in seconds."""
        few = self.get(name).among(FIXED_ROWS)
        return measure({"few": few.end_to_end}, max(self.sizes.repeats, 5))["few"]

    def fixed_passes(self, name: str) -> float:
        """The same in passes over all rows."""
        bench = self.get(name)
        return self._passes(bench, bench.among(FIXED_ROWS).end_to_end)

    def many_states(self, name: str, stressor: str) -> float | None:
        """48 states of a stressor, in passes; None where the library does not offer them as one call."""
        if importlib.util.find_spec(MANY_STATES) is None:
            return None
        known = self.asked_together.setdefault(name, {})
        if stressor not in known:
            known |= import_module(MANY_STATES).many_states_costs(self.get(name), self.sizes.repeats)
        return float(known.pop(stressor))  # the next round measures it anew

    def _passes(self, bench: Bench, work: Callable[[], object]) -> float:
        contenders = {"pass": bench.native_pass, "work": work}
        start = time.perf_counter()
        for run in contenders.values():
            run()
        spent = time.perf_counter() - start
        often = max(self.sizes.repeats, min(MOST_REPEATS, int(LEAST_SECONDS / spent)))
        found = measure(contenders, 1 if spent > LONG_SECONDS else often, warm_up=False)
        return found["work"] / found["pass"]


@cache
def _loaded(name: str, data: Path | None) -> Dataset:
    return load(name, data=data)


def _two(estimator: Callable[[Sizes], Any], rows: int) -> Callable[[Sizes], Bench]:
    return lambda sizes: Bench.prepare(_loaded(sizes.two_classes, sizes.data), estimator(sizes), sizes.rows(rows))


def _many(estimator: Callable[[Sizes], Any], rows: int) -> Callable[[Sizes], Bench]:
    return lambda sizes: Bench.prepare(_loaded(sizes.many_classes, sizes.data), estimator(sizes), sizes.rows(rows))


def _indicators(sizes: Sizes) -> Bench:
    dataset = _loaded(sizes.many_classes, sizes.data)
    table, name = with_indicators(dataset), f"{dataset.spec.name}, indicators"
    return Bench.fitted(name, lightgbm(sizes.rounds), table, dataset.y, sizes.rows(200_000))


def _forest(kind: Any) -> Callable[[Sizes], Any]:
    return lambda sizes: kind(sizes.forest, n_jobs=THREADS, random_state=0)


def _logistic(_: Sizes) -> Any:
    return LogisticRegression(max_iter=500)


BENCHES: Mapping[str, Callable[[Sizes], Bench]] = {
    "LightGBM, categories": _two(lambda s: TakesCategories(lightgbm(s.trees)), 20_000),
    "XGBoost, categories": _two(lambda s: TakesCategories(xgboost(s.trees, enable_categorical=True)), 20_000),
    "HistGradientBoosting, categories": _two(
        lambda _: TakesCategories(hist_gradient_boosting(categorical_features="from_dtype")), 20_000
    ),
    "LightGBM, 54 groups": _indicators,
    "LightGBM": _two(lambda s: lightgbm(s.trees), 40_000),
    "XGBoost": _two(lambda s: xgboost(s.trees), 40_000),
    "CatBoost, many classes": _many(lambda s: catboost(s.trees), 2_000),
    "RandomForest": _two(_forest(RandomForestClassifier), 10_000),
    "ExtraTrees": _two(_forest(ExtraTreesClassifier), 10_000),
    "LogisticRegression": _two(_logistic, 10_000),
    "LogisticRegression, many classes": _many(_logistic, 2_000),
    "LinearDiscriminantAnalysis, many classes": _many(lambda _: LinearDiscriminantAnalysis(), 2_000),
    "LightGBM, labels": _two(lambda s: lightgbm(s.trees), 10_000),
    "XGBoost, labels": _two(lambda s: xgboost(s.trees), 10_000),
}


def _certificate(work: str, before: str, most: float, bench: str) -> Goal:
    return Goal(work, before, most, lambda benches: benches.certificate(bench))


def _end_to_end(work: str, before: str, most: float, bench: str) -> Goal:
    return Goal(work, before, most, lambda benches: benches.end_to_end(bench))


def _marginal(work: str, before: str, most: float, bench: str) -> Goal:
    return Goal(f"audit(), each row beyond the first: {work}", before, most, lambda benches: benches.marginal(bench))


def _many_states(model: str, bench: str) -> list[Goal]:
    def goal(stressor: str) -> Goal:
        work = f"{model}: 48 {stressor} states a row (labels, orders, searches)"
        return Goal(work, "48 and more", 5.0, lambda benches: benches.many_states(bench, stressor))

    return [goal("mask"), goal("dropout")]


LABELLED = {
    "LightGBM": "LightGBM, labels",
    "XGBoost": "XGBoost, labels",
    "RandomForest": "RandomForest",
    "LogisticRegression": "LogisticRegression",
}
GOALS: tuple[Goal, ...] = (
    _certificate("LightGBM with categories, 20,000 rows of Adult", "140 (2,000 rows)", 8.0, "LightGBM, categories"),
    _certificate("XGBoost with categories, 20,000 rows of Adult", "27 (2,000 rows)", 8.0, "XGBoost, categories"),
    _certificate(
        "HistGradientBoosting with categories, 20,000 rows of Adult",
        "35 (2,000 rows)",
        8.0,
        "HistGradientBoosting, categories",
    ),
    _end_to_end("audit() of 200,000 rows of Covertype, 54 groups, LightGBM", "10.6", 5.0, "LightGBM, 54 groups"),
    _end_to_end("audit() of 40,000 rows of Adult, LightGBM", "4.5 to 5.1 (10,000 rows)", 3.0, "LightGBM"),
    _end_to_end("audit() of 40,000 rows of Adult, XGBoost", "11 to 18 (10,000 rows)", 8.0, "XGBoost"),
    _marginal("Adult, LightGBM", "5.8 to 6.0", 3.5, "LightGBM"),
    _marginal("Adult, XGBoost", "14.1 to 15.3", 7.0, "XGBoost"),
    _marginal("Adult with categories, LightGBM", "8.8", 3.5, "LightGBM, categories"),
    _marginal("Adult with categories, XGBoost", "18.9", 4.0, "XGBoost, categories"),
    _marginal("Adult with categories, HistGradientBoosting", "9.9", 3.0, "HistGradientBoosting, categories"),
    Goal(
        "fixed cost of audit(), LightGBM, in seconds",
        "0.275",
        0.15,
        lambda benches: benches.fixed_seconds("LightGBM"),
        "seconds",
    ),
    _certificate("CatBoost, seven classes, 2,000 rows of Covertype", "21", 8.0, "CatBoost, many classes"),
    _certificate("RandomForest of full depth, 10,000 rows of Adult", "8.9", 5.0, "RandomForest"),
    _certificate("ExtraTrees of full depth, 10,000 rows of Adult", "10.2", 5.0, "ExtraTrees"),
    _certificate("LogisticRegression, 10,000 rows of Adult", "4.5", 3.0, "LogisticRegression"),
    _certificate(
        "LogisticRegression, seven classes, 2,000 rows of Covertype", "9.7", 10.0, "LogisticRegression, many classes"
    ),
    _certificate(
        "LinearDiscriminantAnalysis, seven classes, 2,000 rows of Covertype",
        "36",
        10.0,
        "LinearDiscriminantAnalysis, many classes",
    ),
    *(goal for model, bench in LABELLED.items() for goal in _many_states(model, bench)),
)
END_TO_END = ("LightGBM, 54 groups", "LightGBM", "XGBoost")  # whose parts are timed as well


def run_goals(sizes: Sizes, say: Progress, goals: Sequence[Goal] = GOALS) -> dict[str, Any]:
    """Return what every goal asks for, measured in two rounds, and where the time of whole audits goes."""
    benches = Benches(sizes)
    found: list[list[float | None]] = [[] for _ in goals]
    for number in range(1, ROUNDS + 1):
        for goal, values in zip(goals, found, strict=True):
            say(f"round {number} of {ROUNDS}: {goal.work}")
            values.append(goal.measured(benches))
    results = [
        Result(goal.work, goal.before, goal.most, goal.unit, tuple(values))
        for goal, values in zip(goals, found, strict=True)
    ]
    whole = [name for name in END_TO_END if name in benches.made]
    return {
        "goals": [result.to_dict() for result in results],
        "fixed_passes": {name: benches.fixed_passes(name) for name in whole if name != "LightGBM, 54 groups"},
        "parts": [{"bench": name, **parts_of(benches.get(name))} for name in whole],
    }


def parts_of(bench: Bench) -> dict[str, float]:
    """Return the parts of an audit in passes, each run alone: what bounds a goal that is missed."""
    protocol = bench.protocol
    rows = cache(lambda: bind(fg.Model.wrap(bench.model), bench.test, protocol))
    auditor = cache(lambda: PartAuditor.of(rows(), protocol))
    context = cache(lambda: auditor().context)
    trace = cache(lambda: auditor().trace(rows()))
    steps: dict[str, Callable[[], object]] = {
        "native_pass": bench.native_pass,
        "own_predict": bench.own_predict,  # a part of what follows
        "bind": rows,  # reading, preprocessing and own predict
        "engine": auditor,  # reading the model, and checking the engine on a few rows
        "fingerprint": context,
        "trace": trace,
        "claims": lambda: auditor().certify(TracedRows(rows(), trace())),  # with their digests and table
        "input": lambda: input_row_digests(rows().source),
    }
    seconds = {name: _seconds(step) for name, step in steps.items()}
    native = seconds.pop("native_pass")
    return {"native_pass_seconds": native, **{name: value / native for name, value in seconds.items()}}


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
