"""Rows a second, peak memory and busy cores of an audit of files, and how they grow with the number of rows.

Covertype is resampled with fresh ids and audited under LightGBM, each size in a process of its own:

    python benchmarks/streaming.py --rows 100000 1000000 10000000 --out streaming.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from fragility_paper.bench.streaming import measured, prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, found = Path(folder), []
        X = prepare(home)
        for rows in options.rows:
            found.append(measured(home, X, rows))
            print(json.dumps(found[-1]), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
