"""What exposure adds to the time of certificates: at most 1.05 times, measured within one run.

    python benchmarks/exposure_cost.py [--dataset adult] [--rows 20000] [--repeats 5] [--out exposure_cost.json]

Exposure asks the model nothing: its states are those of the certificate. What it adds is arithmetic (independent loss,
common loss, exposure), the margins of the attenuate_all grid, and their place in digests and table. Each is timed
for itself, in turns with the whole audit, and `without` is the whole less these. The margins are timed as if they were
computed from probabilities once more; engines have them at hand from looking for the flip: the ratio is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fragility as fg
from fragility.auditing.certifying import PartAuditor
from fragility.audits import Claims
from fragility.blocks.claims import claims_from, row_digests, table_of
from fragility.scores import common_loss, exposure, independent_loss, random_loss, support_margin
from fragility_paper.bench import MODELS, Bench
from fragility_paper.bench.costs import measure
from fragility_paper.data import DATA_VARIABLE, load

GOAL = 1.05


def derive(claims: Claims, protocol: fg.Protocol) -> None:
    """The derived scores."""
    independent = independent_loss(claims.margin, claims.one_step_drop)
    fading = claims.thresholds[:, protocol.fading]
    common = common_loss(claims.margin, claims.fade_margin, fading, np.array(protocol.severities))
    random = random_loss(claims.margin, claims.one_step_drop, claims.bare_margin)
    exposure(claims.rcma, independent, common, random, protocol.exposure_weights)


def finish(claims: Claims, bench: Bench) -> None:
    """Digests and table of the claims."""
    digests = row_digests(claims, b"cost", bench.protocol.resolution)
    table_of(claims, digests, bench.protocol, bench.rows.model.classes)


def cost(dataset: str, model: str, bench: Bench, repeats: int) -> dict[str, Any]:
    protocol, n = bench.protocol, len(bench.rows)
    trace = PartAuditor.of(bench.rows, protocol).trace(bench.rows)
    claims = claims_from(trace, bench.rows, protocol)
    lean = replace(claims, fade_margin=np.empty((n, 0)))
    grid = len(protocol.severities)
    p = np.random.default_rng(0).dirichlet(np.ones(len(bench.rows.model.classes)), size=(n, grid))
    seconds = measure(
        {
            "audit": lambda: fg.audit(bench.model, bench.test, protocol, progress=False, lattice=False),
            "derived": lambda: derive(claims, protocol),
            "margins": lambda: support_margin(p, claims.predicted[:, None]),
            "finish": lambda: finish(claims, bench),
            "finish_lean": lambda: finish(lean, bench),
        },
        repeats,
    )
    added = seconds["derived"] + seconds["margins"] + max(0.0, seconds["finish"] - seconds["finish_lean"])
    return {
        "dataset": dataset,
        "model": model,
        "engine": trace.engine,
        "rows": n,
        "seconds": seconds,
        "added": added,
        "ratio": seconds["audit"] / (seconds["audit"] - added),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="adult")
    parser.add_argument("--model", action="append", choices=list(MODELS), default=None)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, default=None, help=f"folder of the data sets; default {DATA_VARIABLE}")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.data is None and DATA_VARIABLE not in os.environ:
        beside = Path(__file__).resolve().parents[2] / "shared" / "data"  # where the tests look too
        options.data = beside if beside.is_dir() else None
    records = []
    print(
        f"| model | engine | rows | audit, s | added, s | with / without (goal {GOAL}) |\n|---|---|---:|---:|---:|---:|"
    )
    for model in options.model or MODELS:
        bench = Bench.prepare(load(options.dataset, data=options.data), MODELS[model](), options.rows)
        records.append(found := cost(options.dataset, model, bench, options.repeats))
        cells = (model, found["engine"], found["rows"], f"{found['seconds']['audit']:.3f}", f"{found['added']:.4f}")
        print("| " + " | ".join(map(str, (*cells, f"{found['ratio']:.3f}"))) + " |", flush=True)
    print(f"\nlargest ratio {max(record['ratio'] for record in records):.3f}, goal {GOAL}")
    if options.out is not None:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
