"""What hardening costs and what it does: training time against plain training in one run, and brittle shares.

    python benchmarks/harden.py                                     # Bank, HELOC and Adult, one split, one thread
    python benchmarks/harden.py --dataset heloc --model lightgbm --seed 1
    python benchmarks/harden.py --modes --seed 12                   # lost, wrong and noisy values, all data sets

Settings are the declared ones (mask, rate 0.2, one copy); models are the study's. Times are medians over alternating
repeats; the hardened model is made from the fitted plain one, as a user does it. The goal is (1 + copies) times plain
plus 10%; `overhead` is what was measured beyond (1 + copies) times. "rows twice" is the estimator alone on the rows
and on copies that are not degraded: what twice the rows cost it.
Memory is what tracemalloc saw at its peak, against the estimator's input in double precision.

`--modes` compares LightGBM trained plainly, hardened against lost values, and hardened against wrong and noisy values
as well, on at most 20,000 training rows. The goal is a brittle share under held-out stress, and one under values of
other rows, that are both 40% lower on average at no more than 0.003 of the AUROC. The last way trains on wrong values
almost alone: it says how far any weight of the copies could go, and is no setting to use.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.analysis.hardening.assessment import assess_model
from fragility.analysis.ranking.metrics import predictive_metrics
from fragility_paper.data import DATASETS as ALL_DATASETS
from fragility_paper.data import load, preprocessing, split
from fragility_paper.models import model_spec
from fragility_paper.training import train

DATASETS = ("bank_marketing", "heloc", "adult")
MODELS = ("logreg", "lightgbm", "xgboost")
TEST_ROWS = 2000
MOST_TRAINING_ROWS = 20_000  # where modes are compared
COMPARED = (  # modes, rate, copies, copy_weight (None: the default); none is plain training
    ((), 0.0, 1, None),
    (("lost",), 0.2, 1, None),
    (("lost", "wrong"), 0.3, 2, None),
    (("lost", "wrong", "noisy"), 0.3, 3, None),
    (("lost", "wrong", "noisy"), 0.3, 3, 0.9),
    (("wrong",), 0.3, 4, 0.99),
)
STRESSORS = {"mask": fg.Mask(), "dropout": fg.Dropout(), "noise": fg.Noise(), "donors": fg.Donor()}
COPIES = 1


def timed(work: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def unit(dataset: str, model: str, seed: int, repeats: int) -> dict[str, Any]:
    data = load(dataset)
    parts = split(data.y, seed)
    X, y = data.X.iloc[parts.train], data.y[parts.train]
    X_test, y_test = data.X.iloc[parts.test][:TEST_ROWS], data.y[parts.test][:TEST_ROWS]
    declared = train(model_spec(model), data, parts)
    seconds: dict[str, list[float]] = {"plain": [], "hardened": [], "rows twice": []}
    matrix = declared[:-1].transform(X)
    stack = sparse.vstack if sparse.issparse(matrix) else np.concatenate
    twice, labels = stack([matrix, matrix]), np.concatenate([y, y])
    for _ in range(repeats):
        plain, took = timed(lambda: clone(declared).fit(X, y))
        seconds["plain"].append(took)
        hardened, took = timed(partial(fg.harden, plain, X, y, copies=COPIES))
        seconds["hardened"].append(took)
        head = clone(declared[-1])
        _, took = timed(partial(head.fit, twice, labels, sample_weight=np.full(len(labels), 0.5)))
        seconds["rows twice"].append(took)
    protocol = fg.Protocol.fit(plain, X)
    before, after = (assess_model(m, X_test, protocol, y_test) for m in (plain, hardened))
    ratio = statistics.median(seconds["hardened"]) / statistics.median(seconds["plain"])
    return {
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "rows": len(X),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": ratio,
        "overhead": ratio / (1 + COPIES) - 1,
        "plain": figures(before),
        "hardened": figures(after),
        "engines": [before.engine, after.engine],
    }


def figures(stands: Any) -> dict[str, float]:
    names = ("confident_share", "brittle_share", "flip_after_one", "flip_within_two", "exposure", "flip_budget")
    return {"auroc": stands.quality.auroc, "nll": stands.quality.nll, **{n: getattr(stands, n) for n in names}}


def compare_modes(dataset: str, seed: int) -> list[dict[str, Any]]:
    """Return the figures of LightGBM on one split: plain, and hardened in each of the compared ways."""
    data = load(dataset)
    parts = split(data.y, seed, train_cap=MOST_TRAINING_ROWS)
    X, y = data.X.iloc[parts.train], data.y[parts.train]
    X_test, y_test = data.X.iloc[parts.test][:TEST_ROWS], data.y[parts.test][:TEST_ROWS]
    plain = clone(train(model_spec("lightgbm"), data, parts)).fit(X, y)
    protocol = fg.Protocol.fit(plain, X)
    found = []
    for modes, rate, copies, weight in COMPARED:
        how = {"modes": modes, "rate": rate, "copies": copies, "copy_weight": weight}
        model = fg.harden(plain, X, y, protocol=protocol, **how) if modes else plain
        labels = fg.label_brittle(model, X_test, protocol, fg.Stress(tuple(STRESSORS.values())), donors=X)
        broken = dict(zip(STRESSORS, labels.brittle_by[labels.high_confidence].T, strict=True))
        lost = broken["mask"] | broken["dropout"]
        found.append(
            {
                "dataset": dataset,
                "seed": seed,
                **how,
                "modes": list(modes),
                "auroc": predictive_metrics(model.predict_proba(X_test), y_test).auroc,
                "confident": float(labels.high_confidence.mean()),
                "brittle": float((lost | broken["noise"]).mean()),  # under the default held-out stress
                "brittle_lost": float(lost.mean()),
                "brittle_noise": float(broken["noise"].mean()),
                "brittle_donors": float(broken["donors"].mean()),
            }
        )
    return found


def print_modes(found: list[dict[str, Any]]) -> None:
    """Print the mean over the data sets of each way to harden, and the mean fall of the two shares in question."""
    names = ("brittle", "brittle_lost", "brittle_noise", "brittle_donors", "confident", "auroc")
    ways = [found[i :: len(COMPARED)] for i in range(len(COMPARED))]  # each over the data sets
    for (modes, rate, copies, weight), own in zip(COMPARED, ways, strict=True):
        means = "  ".join(f"{name} {np.mean([one[name] for one in own]):.4f}" for name in names)
        falls = []
        for name in ("brittle", "brittle_donors"):
            pairs = [(one[name], plain[name]) for one, plain in zip(own, ways[0], strict=True) if plain[name] > 0]
            falls.append(f"{name} falls by {np.mean([1 - after / before for after, before in pairs]):.1%} per data set")
        settings = f"rate {rate:.1f} copies {copies} weight {'default' if weight is None else weight}"
        print(f"{'+'.join(modes) or 'plain':16} {settings}  {means}  {', '.join(falls)}")


def memory(dataset: str, seed: int) -> dict[str, float]:
    """Peak memory of hardening beyond what was there, as a multiple of the estimator's input in double precision."""
    data = load(dataset)
    X, y = data.X.iloc[split(data.y, seed).train], data.y[split(data.y, seed).train]
    model = make_pipeline(preprocessing(data.spec), GaussianNB()).fit(X, y)  # it keeps nothing of its input
    matrix = np.asarray(model[:-1].transform(X))
    peaks = {}
    for name, rate in (("plain", 0.0), ("hardened", 0.2)):
        tracemalloc.start()
        fg.harden(model, X, y, rate=rate)
        peaks[name] = tracemalloc.get_traced_memory()[1] / matrix.nbytes
        tracemalloc.stop()
    return {"matrix_mib": matrix.nbytes / 2**20, **{f"{name}_peak": peak for name, peak in peaks.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", choices=ALL_DATASETS)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--modes", action="store_true", help="compare failure modes instead; all data sets")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = Path(__file__).parent / "results"
    if options.modes:
        found: list[dict[str, Any]] = []
        for dataset in options.dataset or ALL_DATASETS:
            found += compare_modes(dataset, options.seed)
            print(f"{dataset} done", flush=True)
        print_modes(found)
        (options.out or results / "harden_modes.json").write_text(json.dumps(found, indent=2) + "\n")
        return
    units = []
    for dataset in options.dataset or DATASETS:
        for model in options.model or MODELS:
            units.append(unit(dataset, model, options.seed, options.repeats))
            shown = units[-1]
            print(
                f"{dataset:15} {model:9} x{shown['ratio']:.2f}  brittle {shown['plain']['brittle_share']:.3f} -> "
                f"{shown['hardened']['brittle_share']:.3f}  AUROC {shown['plain']['auroc']:.3f} -> "
                f"{shown['hardened']['auroc']:.3f}",
                flush=True,
            )
    machine = {"python": platform.python_version(), "threads": 1}
    measured = {"machine": machine, "copies": COPIES, "units": units, "memory": memory("adult", options.seed)}
    (options.out or results / "harden.json").write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
