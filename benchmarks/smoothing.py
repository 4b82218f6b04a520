"""What smoothing does for full-depth forests: how well scores find brittle predictions, and how many there are.

    python benchmarks/smoothing.py [--data FOLDER] [--rows 2000] [--train 6000] [--seed 0] [--out FILE]

Ten forests of 100 trees grown to full depth, random forests and extra trees, on five data sets. Scores and labels are
computed twice, with margins unsmoothed and with one vote for each class; the label channel is the default one. Scores
are also judged by the labels of the other smoothing, so that a gain is not one of the labels alone.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.data import load, split
from fragility_paper.library import auroc
from fragility_paper.models import model_spec
from fragility_paper.table import Table, number
from fragility_paper.training import train

DATASETS = ("credit_g", "bank_marketing", "electricity", "heloc", "default_credit")
FORESTS = ("rf", "extratrees")
SMOOTHINGS = ("without", "with")


def measure(dataset: str, forest: str, rows: int, train_rows: int, seed: int, folder: Path | None) -> dict[str, Any]:
    """Return what one forest shows, without and with smoothing."""
    data = load(dataset, data=folder)
    parts = split(data.y, seed, train_cap=train_rows)
    model = train(model_spec(forest), data, parts)
    X = data.X.iloc[parts.test[:rows]]
    smoothed = fg.Protocol.fit(model, data.X.iloc[parts.train])
    protocols = dict(zip(SMOOTHINGS, (replace(smoothed, smoothing=0.0), smoothed), strict=True))
    claims = {name: fg.audit(model, X, protocol, progress=False).claims for name, protocol in protocols.items()}
    labels = {name: fg.label_brittle(model, X, protocol, progress=False) for name, protocol in protocols.items()}
    sure = labels["with"].high_confidence
    found: dict[str, Any] = {"dataset": dataset, "forest": forest, "rows": len(X), "confident": int(sure.sum())}
    found["certain"] = float((claims["with"].confidence[sure] == 1.0).mean())
    found["baseline"] = smoothed.baseline
    for judge in SMOOTHINGS:
        brittle = labels[judge].brittle[sure]
        found[f"brittle {judge}"] = float(brittle.mean())
        for name in SMOOTHINGS:
            for score in ("exposure", "fds"):
                area = auroc(getattr(claims[name], score)[sure], brittle)
                found[f"{score} {name}, labels {judge}"] = None if np.isnan(area) else area
    return found


def mean_of(found: list[dict[str, Any]], name: str) -> float:
    values = [line[name] for line in found if line[name] is not None]
    return float(np.mean(values)) if values else float("nan")


def table_of(found: list[dict[str, Any]]) -> Table:
    names = [
        *("certain", "brittle without", "brittle with"),
        *(f"{score} {name}, labels {name}" for score in ("exposure", "fds") for name in SMOOTHINGS),
    ]
    rows = [
        (line["dataset"], line["forest"], str(line["confident"]), *(number(line[name]) for name in names))
        for line in found
    ]
    rows.append(("mean", "", "", *(number(mean_of(found, name)) for name in names)))
    header = ("data", "forest", "confident rows", *names)
    return Table("smoothing", "Full-depth forests with and without smoothing", header, tuple(rows), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--train", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    found = []
    for dataset in DATASETS:
        for forest in FORESTS:
            found.append(measure(dataset, forest, options.rows, options.train, options.seed, options.data))
            print(json.dumps(found[-1]), flush=True)
    print(table_of(found).to_markdown())
    for name in found[0]:
        if "labels" in name:
            print(f"{name}: {mean_of(found, name):.3f}")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
