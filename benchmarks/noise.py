"""Does exposure to noise find the predictions that noise breaks, by family, with a direction of noise and without?

    FRAGILITY_DATA=... python benchmarks/noise.py [--rows 1500] [--train 10000] [--seeds 0] [--out FILE]

Seven data sets, two families. A unit of the failure mode `noisy` is a column and a direction. Before, it was a column
alone: its expected loss was the mean over both directions, in which a linear score loses nothing. Both exposures follow
from the same losses and are judged by the same labels: held-out noise of 0.3 standard deviations, under the rule
`expected` (the mean over 16 draws) and under `any` (some draw). Under `expected` noise breaks no linear model,
so only `any` says anything about it. Means are over the units that have rows of both kinds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.data import load, split
from fragility_paper.library import auroc
from fragility_paper.models import model_spec
from fragility_paper.table import Table, number
from fragility_paper.training import train

DATASETS = ("credit_g", "heloc", "electricity", "default_credit", "bank_marketing", "adult", "covertype")
FAMILIES = ("logreg", "lightgbm")
RULES = ("expected", "any")
SCORES = ("with direction", "without", "exposure")


def measure(dataset: str, family: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the AUROC of each score under each rule, for the confident test rows of one model; None without labels."""
    data = load(dataset, data=options.data)
    parts = split(data.y, seed, train_cap=options.train)
    model = train(model_spec(family), data, parts)
    X = data.X.iloc[parts.test[: options.rows]]
    protocol = fg.Protocol.fit(model, data.X.iloc[parts.train])
    certs = fg.audit(model, X, protocol, lattice=False, progress=False)
    losses = fg.assess_modes(model, X, protocol, ["noisy"], progress=False)["noisy"]
    together = (losses.drop[:, ::2] + losses.drop[:, 1::2]) / 2  # of each column, over both directions
    scores = {
        "with direction": losses.loss,
        "without": np.maximum(together, 0.0).sum(axis=1) / (np.abs(certs.claims.margin) + 1e-8),
        "exposure": certs.claims.exposure,
    }
    found: dict[str, Any] = {"dataset": dataset, "family": family, "seed": seed}
    for rule in RULES:
        labels = fg.label_brittle(model, X, protocol, stress=fg.Stress((fg.Noise(),), rule=rule), progress=False)
        sure = labels.high_confidence
        found["confident"], found[f"brittle {rule}"] = int(sure.sum()), int(labels.brittle[sure].sum())
        for name, score in scores.items():
            area = auroc(score[sure], labels.brittle[sure]) if sure.any() else np.nan
            found[f"{name} {rule}"] = None if np.isnan(area) else area
    return found


def tabulate(found: list[dict[str, Any]]) -> Table:
    """Return the mean AUROCs by family and rule."""
    rows = []
    for family in (*FAMILIES, "all"):
        for rule in RULES:
            some = [one for one in found if family in (one["family"], "all") and one[f"exposure {rule}"] is not None]
            means = (
                number(float(np.mean([one[f"{name} {rule}"] for one in some]))) if some else "-" for name in SCORES
            )
            rows.append((family, f"`{rule}`", *means, str(len(some))))
    header = ("family", "rule", "noisy, with direction", "noisy, without", "exposure", "units")
    return Table("noise", "AUROC for confident rows that noise breaks", header, tuple(rows), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "noise.json")
    options = parser.parse_args()
    found = [measure(d, f, s, options) for s in options.seeds for f in FAMILIES for d in DATASETS]
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(tabulate(found).to_markdown())


if __name__ == "__main__":
    main()
