"""What many stressed copies of each row cost, in passes of the model over the same rows.

``many_states_costs`` times the one call that labels, orders and searches make: 48 states of each row, which remove
groups (mask) or columns (dropout) of its own, from their sets to their probabilities. ``uses_costs`` times what is made
of it: labels with their random draws and margins, random orders, a beam search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.bench.costs import Bench, measure
from fragility_paper.bench.models import MODELS
from fragility_paper.data import load
from fragility_paper.library import (
    Oracle,
    States,
    choose_oracle,
    failing_sets_of_rows,
    random_order_score,
    run_stress_rows,
)

STATES = 48  # of each row: three stressors of 16 draws
RATE = 0.3  # how many units a state removes, on average
CHUNK_ROWS = 4096  # whose states are held at a time


def many_states_costs(bench: Bench, repeats: int) -> dict[str, float]:
    """Return the passes that 48 states of every row take: ``mask`` and ``dropout``."""
    oracle = choose_oracle(bench.rows)
    mask, dropout = _answering(oracle, by_column=False), _answering(oracle, by_column=True)
    return _in_passes(bench, {"mask": mask, "dropout": dropout}, repeats)


def uses_costs(bench: Bench, repeats: int) -> dict[str, float]:
    """Return the passes that labels of 48 draws, random orders (five) and a beam search take."""
    oracle, protocol = choose_oracle(bench.rows), bench.protocol
    stresses = {f"labels by {s.kind}": fg.Stress((s,), draws=STATES) for s in (fg.Mask(RATE), fg.Dropout(RATE))}
    uses: dict[str, Callable[[], object]] = {
        name: lambda stress=stress: run_stress_rows(oracle, protocol, stress)  # type: ignore[misc]
        for name, stress in stresses.items()
    }
    uses["random orders"] = lambda: random_order_score(oracle, protocol)
    uses["beam search"] = lambda: failing_sets_of_rows(oracle, protocol, method="beam")
    return _in_passes(bench, uses, repeats)


def run_many_states(
    datasets: Sequence[str],
    models: Sequence[str],
    n_rows: int,
    repeats: int,
    data: Path | None,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return one plain row for each model on each data set: the passes of the calls and of their uses."""
    found = []
    for dataset_name in datasets:
        dataset = load(dataset_name, data=data)
        for name in models:
            say(f"{dataset_name}: {name}, {STATES} states of each row")
            bench = Bench.prepare(dataset, MODELS[name](), n_rows)
            costs = many_states_costs(bench, repeats) | uses_costs(bench, repeats)
            found.append({"dataset": dataset_name, "model": name, "engine": bench.engine, "rows": n_rows, **costs})
    return found


def _answering(oracle: Oracle, by_column: bool) -> Callable[[], None]:
    """Return the call to be timed; the sets are drawn before, once for all chunks of rows."""
    rows = oracle.rows
    n = min(len(rows), CHUNK_ROWS)
    struck = np.random.default_rng(0).random((n, STATES, rows.width if by_column else rows.n_groups)) < RATE
    states = States.removals(struck, by_column)

    def answer() -> None:
        for start in range(0, len(rows), CHUNK_ROWS):
            x = rows.dense(start, start + CHUNK_ROWS)
            oracle.answer_states(x, states.between(0, STATES * len(x)))

    return answer


def _in_passes(bench: Bench, work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    seconds = measure({"pass": bench.native_pass, **work}, repeats)
    return {name: seconds[name] / seconds["pass"] for name in work}
