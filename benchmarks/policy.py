"""Does a review policy keep its promise on real data? Simulated on the labelled rows of the study's units.

    python benchmarks/policy.py [paper/results] [--splits 1000] [--jobs 2] [--out benchmarks/results/policy.json]

Reads labelled.parquet (scores and labels of confident rows) and trains nothing. How it is done, and why in two ways, is
said in fragility_paper/policies.py.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fragility_paper.policies import CONFIDENCE, RISKS, fewest_rows, need_lines, promise_lines, simulate, units_of_rows
from fragility_paper.results import read_study
from fragility_paper.table import Table, number

WORDS = {"halves": "half fits, half checks", "draws": "drawn, checked on all"}


def run(folder: Path, splits: int, jobs: int) -> dict[str, Any]:
    labelled = read_study(folder).labelled
    if labelled is None:
        raise SystemExit(
            f"{folder} has no labelled.parquet; make it with `fragility study tables RUN --results {folder}`"
        )
    units = list(units_of_rows(labelled))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(simulate, name, rows, splits) for name, rows in units]
        found = [task.result() for task in tasks]
    promises = [promise for kept, _ in found for promise in kept]
    needs = [need for _, needed in found for need in needed]
    return {
        "confidence": CONFIDENCE,
        "splits": splits,
        "units": len(units),
        "rows": len(labelled),
        "fewest_rows": {str(risk): fewest_rows(risk) for risk in RISKS},
        "promises": promise_lines(promises, len(units)),
        "needs": need_lines(needs),
    }


def promise_table(report: dict[str, Any]) -> Table:
    rows = tuple(
        (
            line["score"],
            f"{line['risk']:.0%}",
            WORDS[line["way"]],
            f"{100 * line['violations']:.2f}% ± {100 * line['standard_error']:.2f}",
            f"{100 * line['largest_in_a_unit']:.1f}%",
            str(line["units_above"]),
            number(line["attained"], 2),
            number(line["review_share"]),
            f"{line['units']} ({line['units_with_too_few_rows']} with too few rows)",
        )
        for line in report["promises"]
    )
    header = (
        "Score", "risk", "way", "violations ± standard error", "most in a unit", "units above 5%", "attained",
        "review share", "units",
    )  # fmt: skip
    note = (
        f"{report['splits']} splits a unit, confidence {report['confidence']:.0%}: violations may be at most 5%. The "
        "standard error is over units. A checking half adds its own sampling noise; what is guaranteed is the other "
        "way: rows drawn with replacement, the rule checked on all rows of the unit."
    )
    return Table("policy", "The policy's promise", header, rows, note)


def need_table(report: dict[str, Any]) -> Table:
    rows = tuple(
        (
            line["score"],
            f"{line['risk']:.0%}",
            str(line["rows"]),
            number(line["attained"], 2),
            number(line["review_share"]),
            str(line["units"]),
        )
        for line in report["needs"]
    )
    fewest = ", ".join(f"{count} for {float(risk):.0%}" for risk, count in report["fewest_rows"].items())
    note = f"No rule can pass with fewer rows below its threshold than this, even with none of them brittle: {fewest}."
    header = ("Score", "risk", "labelled rows", "attained", "review share", "units")
    return Table("policy-rows", "How many labelled rows a policy needs", header, rows, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("paper/results"))
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    report = run(options.folder, options.splits, options.jobs)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(promise_table(report).to_markdown())
    print(need_table(report).to_markdown())


if __name__ == "__main__":
    main()
