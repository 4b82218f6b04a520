"""What 48 states of each row cost, and what labels, random orders and a beam make of them, in passes of the model.

python benchmarks/states.py --dataset adult --rows 2000 --out benchmarks/results/states_adult.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fragility_paper.bench import MODELS
from fragility_paper.bench.many_states import run_many_states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="adult")
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default FRAGILITY_DATA")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    models = options.model or list(MODELS)
    found = run_many_states([options.dataset], models, options.rows, options.repeats, options.data, print)
    for line in found:
        print(json.dumps(line))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
