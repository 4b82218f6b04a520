"""Do native engines claim what the black box claims? On all seven data sets, for every model of `fragility bench`.

    python benchmarks/parity.py [--rows 1000] [--model NAME ...] [--out parity.json]

A row counts as different if any exact claim of it (predicted class, path, k*, classes along the path, lambda*) differs.
For such a row the distance to the nearest decision edge is looked at: a margin within float rounding of a flip, or of
a tie between two drops, can go either way, and is counted as a tie.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fragility.audits import Claims
from fragility.blocks.claims import claims_from
from fragility.engines.blackbox import trace_blackbox
from fragility.verification.recomputing import EXACT
from fragility_paper.bench import MODELS, Bench
from fragility_paper.data import DATA_VARIABLE, DATASETS, load

EDGE = 1e-9  # margins this close to an edge are decided by rounding


def differing_rows(native: Claims, asked: Claims) -> np.ndarray:
    different = np.zeros(len(native), dtype=bool)
    for name in EXACT:
        a, b = getattr(native, name), getattr(asked, name)
        different |= (a != b).reshape(len(native), -1).any(axis=1)
    return different


def at_an_edge(claims: Claims, resolution: float) -> np.ndarray:
    """Rows with a state within rounding of a flip, or two drops within rounding of changing places."""
    flip = (np.abs(claims.path_margin + resolution) < EDGE).any(axis=1)
    steps = claims.one_step_drop / resolution
    rounding = (np.abs(np.abs(steps - np.rint(steps)) - 0.5) < EDGE / resolution).any(axis=1)
    return flip | rounding


def compare(dataset: str, model: str, rows: int, data: Path | None) -> dict[str, Any]:
    bench = Bench.prepare(load(dataset, data=data), MODELS[model](), rows)
    if bench.native is None:
        return {"dataset": dataset, "model": model, "engine": "blackbox", "rows": 0}
    native = claims_from(bench.native(bench.rows).trace(bench.rows, bench.protocol), bench.rows, bench.protocol)
    asked = claims_from(trace_blackbox(bench.rows, bench.protocol), bench.rows, bench.protocol)
    different = differing_rows(native, asked)
    return {
        "dataset": dataset,
        "model": model,
        "engine": bench.native.name,
        "rows": len(native),
        "different": int(different.sum()),
        "of_them_ties": int((different & at_an_edge(asked, bench.protocol.resolution)).sum()),
        "largest_margin_gap": float(np.abs(native.path_margin - asked.path_margin).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--model", action="append", choices=list(MODELS), default=None, help="default: all")
    parser.add_argument("--data", type=Path, default=None, help=f"folder of the data sets; default {DATA_VARIABLE}")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.data is None and DATA_VARIABLE not in os.environ:
        beside = Path(__file__).resolve().parents[2] / "shared" / "data"  # where the tests look too
        options.data = beside if beside.is_dir() else None
    records = []
    for dataset in DATASETS:
        for model in options.model or MODELS:
            records.append(compare(dataset, model, options.rows, options.data))
            print(json.dumps(records[-1]), flush=True)
    print(
        f"{sum(r['rows'] for r in records)} rows, {sum(r.get('different', 0) for r in records)} different, "
        f"{sum(r.get('of_them_ties', 0) for r in records)} of them ties"
    )
    if options.out is not None:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
