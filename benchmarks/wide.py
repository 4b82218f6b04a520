"""Rows with more groups than a table of all subsets holds: how many are decided, and what that costs.

    python benchmarks/wide.py [--rows 40] [--budget 10000] [--out benchmarks/results/wide.json]

Tables with 36 to 64 fields: scikit-learn's digits, and two that are made (two classes, six classes). Each row is
searched within the same budget of states, first without integer programs and then with them; processor time per row.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import fragility as fg

TEST = 300
MODELS: dict[str, Any] = {
    "LightGBM, 100 trees": LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1),
    "LightGBM, 300 trees": LGBMClassifier(n_estimators=300, n_jobs=1, verbose=-1),
    "random forest, 100 trees": RandomForestClassifier(100, n_jobs=1, random_state=0, min_samples_leaf=2),
    "logistic regression": LogisticRegression(max_iter=2000),
}


def tables() -> Iterator[tuple[str, pd.DataFrame, Any]]:
    X, y = make_classification(6000, 40, n_informative=24, n_classes=2, random_state=3, class_sep=1.2)
    yield "40 fields, 2 classes", pd.DataFrame(X).add_prefix("f"), y
    X, y = make_classification(6000, 36, n_informative=20, n_classes=6, random_state=4, class_sep=1.5)
    yield "36 fields, 6 classes", pd.DataFrame(X).add_prefix("f"), y
    X, y = load_digits(return_X_y=True)
    yield "digits, 64 fields, 10 classes", pd.DataFrame(X).add_prefix("p"), y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for name, X, y in tables():
        for kind, model in MODELS.items():
            fitted = clone(model).fit(X[:-TEST], y[:-TEST])
            protocol, rows = fg.Protocol.fit(fitted, X[:-TEST]), X[-TEST:][: given.rows]
            fg.find_failing_sets(fitted, rows[:1], protocol, progress=False)  # compiles
            line: dict[str, Any] = {"table": name, "model": kind, "rows": given.rows}
            sizes = []
            for way, nodes in (("before", 0), ("after", 1000)):
                started = time.process_time()
                found = fg.find_failing_sets(fitted, rows, protocol, budget=given.budget, nodes=nodes, progress=False)
                line[f"seconds_a_row_{way}"] = (time.process_time() - started) / given.rows
                line[f"decided_{way}"] = int(found.resolved.sum())
                sizes.append(found.size)
            line |= {"smaller_sets": int(np.sum(sizes[1] < sizes[0])), "methods": dict(Counter(found.method))}
            results.append(line)
            print(line, flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
