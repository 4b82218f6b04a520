"""What smoothing does for full-depth forests: how well scores find what breaks, and how many rows are brittle.

    python benchmarks/smoothing.py [--data FOLDER] [--baseline typical] [--rows 2000] [--train 6000] [--seeds 0]

Random forests and extra trees of 100 trees grown to full depth, on five data sets. Scores are computed twice, with
margins unsmoothed and with one vote for each class, and so are the labels of the default stress. Each score is judged
by three kinds of labels: those of either smoothing, and `flips`, the rows that some draw of the stress flips, which no
smoothing changes. Means are over the forests for which every label has both values.
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
SCORES = ("exposure", "fds")
SMOOTHED = {"without": False, "with": True}
JUDGES = ("without", "with", "flips")


def measure(dataset: str, forest: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return what one forest shows, without and with smoothing."""
    data = load(dataset, data=options.data)
    parts = split(data.y, seed, train_cap=options.train)
    model = train(model_spec(forest), data, parts)
    X = data.X.iloc[parts.test[: options.rows]]
    declared = fg.Protocol.fit(model, data.X.iloc[parts.train], baseline=options.baseline)
    protocols = {name: declared if smooth else replace(declared, smoothing=0.0) for name, smooth in SMOOTHED.items()}
    claims = {name: fg.audit(model, X, protocol, progress=False).claims for name, protocol in protocols.items()}
    labels = {name: fg.label_brittle(model, X, protocol, progress=False) for name, protocol in protocols.items()}
    sure = labels["with"].high_confidence
    broken = {name: labels[name].brittle for name in SMOOTHED}
    broken["flips"] = labels["with"].run.draw_flip.any(axis=(1, 2))
    found: dict[str, Any] = {"dataset": dataset, "forest": forest, "seed": seed, "confident": int(sure.sum())}
    found["certain"] = float((claims["with"].confidence[sure] == 1.0).mean())
    for judge, broke in broken.items():
        found[f"share {judge}"] = float(broke[sure].mean())
        for score in SCORES:
            for name in SMOOTHED:
                area = auroc(getattr(claims[name], score)[sure], broke[sure])
                found[column(score, name, judge)] = None if np.isnan(area) else area
    return found


def column(score: str, name: str, judge: str) -> str:
    return f"{score} {name} by {judge}"


def table_of(found: list[dict[str, Any]]) -> Table:
    names = ["certain", *(f"share {judge}" for judge in JUDGES)]
    names += [column(score, name, judge) for judge in JUDGES for score in SCORES for name in SMOOTHED]
    whole = [line for line in found if None not in line.values()]
    rows = [
        (f"{line['dataset']} {line['seed']}", line["forest"], str(line["confident"]), *(number(line[n]) for n in names))
        for line in found
    ]
    rows.append((f"mean of {len(whole)}", "", "", *(number(float(np.mean([w[n] for w in whole]))) for n in names)))
    header = ("data and seed", "forest", "confident rows", *names)
    return Table("smoothing", "Full-depth forests with and without smoothing", header, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--baseline", default="typical")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--train", type=int, default=6000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    found = []
    for seed in options.seeds:
        for dataset in DATASETS:
            for forest in FORESTS:
                found.append(measure(dataset, forest, seed, options))
                print(json.dumps(found[-1]), flush=True)
    print(table_of(found).to_markdown())
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
