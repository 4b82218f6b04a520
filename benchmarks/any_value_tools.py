"""Which sets of one or two fields flip a row: the same question put to other tools, side by side. (SPEC 19)

    pip install dtai-veritas treecf pyxai z3-solver
    python benchmarks/any_value_tools.py [--rows 3] [--trees 300] [--out benchmarks/results/any_value_tools.json]

HELOC, 23 numeric fields, XGBoost; every field may take any value of its training range, all others stay. A tool that is
not installed is left out. Seconds are processor time of one process per row; the other tools read the same model.

    Veritas    the least (or largest) raw score with the fields of a set free, for each of the 276 sets
    treecf     its menu of minimal sets of at most two fields (exact backend)
    PyXAI      a minimal contrastive reason with all conditions but those on a set excluded, for ``--pairs`` of the 253
               pairs; it knows no range of values, so it may find values beyond it
    z3         satisfiability of the same question about each pair, on a model of ``--small`` trees

An answer contradicts ours if it says that a set flips the row and we say that it cannot, or the other way round, beyond
1e-4 of raw score (the tools compute in single precision). PyXAI contradicts it only by not finding what we find.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import time
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from any_value import CONFIDENT, make_model, read_table
from sklearn.model_selection import train_test_split

import fragility as fg
from fragility.protocol import bind
from fragility.questions.any_value.deciding import DEFAULT_BUDGET, AnyValues
from fragility.questions.any_value.native import FLIPS

NEAR = 1e-4
Sets = list[tuple[int, ...]]


class Case:
    """A model, some of its confident rows, and what this library says of all sets of one and two fields."""

    def __init__(self, trees: int, rows: int) -> None:
        self.trees = trees
        X, y = read_table("heloc")
        train, test = train_test_split(np.arange(len(y)), test_size=0.3, random_state=1)
        self.model = make_model("xgboost", trees).fit(X.iloc[train], y[train])
        certain = test[self.model.predict_proba(X.iloc[test]).max(axis=1) >= CONFIDENT][:rows]
        self.X, self.names = X.iloc[certain], list(X)
        self.low, self.high = (np.asarray(end, dtype=float) for end in (X.iloc[train].min(), X.iloc[train].max()))
        self.background = X.iloc[train[:2000]].to_numpy(dtype=float)
        self.raw = np.asarray(self.model.predict(self.X, output_margin=True), dtype=float)
        self.sets: Sets = [own for size in (1, 2) for own in combinations(range(len(self.names)), size)]
        protocol = fg.Protocol.fit(self.model, X.iloc[train])
        self.values = AnyValues(bind(self.model, self.X, protocol), protocol)
        self.own = np.array([self.decide(row) for row in range(len(self.X))])

    def decide(self, row: int) -> list[bool]:
        """Return which sets flip a row; each is decided by itself."""
        assert self.values.native is not None
        jobs = [(row, [self.names[f] for f in own]) for own in self.sets]
        return [own.state == FLIPS for own in self.values.native.decide(jobs, DEFAULT_BUDGET)]

    def time_search(self, row: int) -> float:
        """Return the seconds in which all sets of one and all of two fields of a row are decided."""
        native = self.values.native
        assert native is not None
        units = [list(fields) for fields in self.values.units.values()]
        start = time.process_time()
        flips = [int(native.search_size(np.array([row]), units, k, DEFAULT_BUDGET).counts[0, FLIPS]) for k in (1, 2)]
        seconds = time.process_time() - start
        sizes = np.array([len(own) for own in self.sets])
        assert flips == [int(self.own[row][sizes == k].sum()) for k in (1, 2)]
        return seconds

    def row(self, row: int) -> Any:
        return self.X.iloc[row].to_numpy(dtype=float)


def ask_veritas(case: Case, row: int, sets: Sets) -> list[bool | None]:
    import veritas

    with contextlib.redirect_stdout(io.StringIO()):
        trees = veritas.get_addtree(case.model)
    x, up = case.row(row), case.raw[row] > 0
    config = veritas.Config(veritas.HeuristicType.MIN_OUTPUT if up else veritas.HeuristicType.MAX_OUTPUT)
    config.stop_when_optimal = True
    found: list[bool | None] = []
    for own in sets:
        ends = [(case.low[f], case.high[f]) if f in own else (x[f], x[f]) for f in range(len(x))]
        search = config.get_search(trees, [veritas.Interval(low, np.nextafter(high, np.inf)) for low, high in ends])
        while search.steps(100) == veritas.StopReason.NONE:
            pass
        lost = -search.get_solution(0).output if up else search.get_solution(0).output
        found.append(None if abs(lost) < NEAR else lost > 0)
    return found


def ask_treecf(case: Case, row: int, sets: Sets) -> list[bool | None]:
    import treecf

    ranges = [treecf.Range(*each) for each in zip(case.names, map(float, case.low), map(float, case.high), strict=True)]
    explainer = treecf.Explainer(case.model, background=case.background, constraints=ranges)
    beyond = {"op": "<=", "value": 0.5 - NEAR / 8} if case.raw[row] > 0 else {"op": ">=", "value": 0.5 + NEAR / 8}
    target = treecf.Target.probability(**beyond)
    menu = explainer.recourse_menu(case.row(row), target, max_levers=2, mode="minimal", backend="exact")
    minimal = [
        {case.names.index(name) for name in key.split("+")}
        for key, entry in menu.entries.items()
        if isinstance(entry, treecf.Counterfactual)
    ]
    return [any(one <= set(own) for one in minimal) for own in sets]


def ask_pyxai(case: Case, row: int, sets: Sets) -> list[bool | None]:
    with contextlib.redirect_stdout(io.StringIO()):
        from pyxai import Explaining
        from pyxai.sources.learners.model_io import ModelIO

        kinds = {"problem_type": "classification", "instances_type": "tabular", "labels_type": "classes"}
        _, model = ModelIO.import_models(case.model, **kinds)
        model.learner_information.feature_names = [*case.names, "class"]
        explainer = Explaining.initialize(model, case.row(row), features_type={"numerical": case.names})
        found: list[bool | None] = []
        for own in sets:
            explainer.set_excluded_features([name for f, name in enumerate(case.names) if f not in own])
            found.append(bool(explainer.minimal_contrastive_reason(n=1)))
    return found


def read_trees(model: Any, names: list[str]) -> list[Any]:
    """Return each tree of a booster as (field, threshold, left, right) or the value of a leaf."""

    def build(node: dict[str, Any]) -> Any:
        if "leaf" in node:
            return float(node["leaf"])
        children = {child["nodeid"]: child for child in node["children"]}
        threshold = float(np.float32(node["split_condition"]))
        return names.index(node["split"]), threshold, build(children[node["yes"]]), build(children[node["no"]])

    return [build(json.loads(text)) for text in model.get_booster().get_dump(dump_format="json")]


def ask_z3(case: Case, row: int, sets: Sets) -> list[bool | None]:
    import z3

    x, trees = np.float32(case.row(row)).astype(float), read_trees(case.model, case.names)

    def build(node: Any, free: dict[int, Any]) -> Any:
        if not isinstance(node, tuple):
            return z3.RealVal(node) if free else node
        field, threshold, left, right = node
        if field not in free:
            return build(left if x[field] < threshold else right, free)
        return z3.If(free[field] < threshold, build(left, free), build(right, free))

    offset = float(case.raw[row]) - sum(build(tree, {}) for tree in trees)
    found: list[bool | None] = []
    for own in sets:
        solver, free = z3.Solver(), {f: z3.Real(f"f{f}") for f in own}
        for f, value in free.items():
            solver.add(value >= case.low[f], value <= case.high[f])
        total = z3.Sum([build(tree, free) for tree in trees]) + offset
        solver.add(total < -NEAR if case.raw[row] > 0 else total > NEAR)
        found.append(solver.check() == z3.sat)
    return found


def compare(name: str, ask: Callable[..., Any], case: Case, rows: int, sets: Sets, one_way: bool) -> dict[str, Any]:
    """Return the seconds per row of one tool and of ours, and in how many sets they contradict each other."""
    places, seconds, ours, wrong = [case.sets.index(own) for own in sets], [], [], 0
    case.time_search(0)
    for row in range(rows):
        start = time.process_time()
        told = ask(case, row, sets)
        seconds.append(time.process_time() - start)
        ours.append(min(case.time_search(row) for _ in range(3)))
        known = [(own, other) for own, other in zip(case.own[row][places], told, strict=True) if other is not None]
        wrong += sum(own and not other if one_way else bool(own) != other for own, other in known)
    whole = len(case.sets) / len(sets)
    result = {
        "tool": name, "rows": rows, "sets": len(sets), "seconds_per_set": float(np.mean(seconds)) / len(sets),
        "times_ours_for_all_sets": whole * float(np.mean(seconds) / np.mean(ours)),
        "ours_seconds_for_all_sets": float(np.mean(ours)), "contradictions": int(wrong),
    }  # fmt: skip
    print(result)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--small", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    case, small = Case(asked.trees, asked.rows), Case(asked.small, 1)
    pairs = [own for own in case.sets if len(own) == 2]
    some = [pairs[i] for i in np.random.default_rng(0).choice(len(pairs), asked.pairs, replace=False)]
    tools = {
        "veritas": (ask_veritas, case, asked.rows, case.sets, False),
        "treecf": (ask_treecf, case, asked.rows, case.sets, False),
        "pyxai": (ask_pyxai, case, 1, some, True),
        "z3": (ask_z3, small, 1, some, False),
    }
    found = []
    for name, (ask, own, rows, sets, one_way) in tools.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed")
            continue
        found.append(compare(name, ask, own, rows, sets, one_way) | {"trees": own.trees})
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
