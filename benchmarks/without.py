"""Deciding without a field: is the probability that knowing it would change the decision right?

    python benchmarks/without.py run FOLDER [--datasets NAME ...] [--models NAME ...] [--rows 400] [--seed 7]
    python benchmarks/without.py collect FOLDER --out benchmarks/results/without.json
    python benchmarks/without.py hide [--datasets NAME ...] [--rows 600] [--out benchmarks/results/without_hide.json]

`hide`: LightGBM, each ordered field hidden only in the fifth of the rows with its largest or smallest values, or in a
random fifth.

A unit is a data set and a model family, trained as in the study, on at most 20,000 training rows and with a seed that
the study does not use. On test rows each field is hidden in turn, and ten sets of two and of three fields, with values
of the catalogue and of the nearest training rows. A finished unit is a file in the folder and is not run again, so that
a run may be interrupted and several may share a folder.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import fragility as fg
from fragility.deciding.missing import choose_sets, evaluate_missing
from fragility_paper.data import DATASETS, load, split
from fragility_paper.models import MODELS
from fragility_paper.training import train

ROWS, SEVERAL_ROWS, SETS, TRAIN_CAP, SEED = 400, 100, 10, 20_000, 7
CHEAP_DATASETS = ("credit_g", "heloc", "electricity", "default_credit", "bank_marketing", "adult", "covertype")
CHEAP_MODELS = ("lightgbm", "logreg", "xgboost", "catboost", "rf", "extratrees", "mlp", "resmlp", "fr_resmlp")
WAYS = {"marginal": False, "conditional": True}
KEPT = (
    *("fields", "pairs", "changed", "observed", "expected", "brier"),
    *("auroc", "auroc_confidence", "auroc_gain_low", "auroc_gain_high"),
)
GOALS = {"difference": 0.01, "worst marginal": 0.025, "worst conditional": 0.015, "auroc": 0.94}


# --- units --------------------------------------------------------------------------------------------------


def run_unit(dataset: str, model_name: str, rows: int, seed: int) -> dict[str, Any]:
    """Train one model and hide its fields."""
    data = load(dataset)
    parts = split(data.y, seed, train_cap=TRAIN_CAP)
    started = time.process_time()
    model = train(MODELS[model_name], data, parts)
    trained = time.process_time() - started
    training = data.X.iloc[parts.train]
    resolution = 1e-4 if MODELS[model_name].library == "torch" else 1e-6
    protocol = fg.Protocol.fit(model, training, resolution=resolution)
    test = data.X.iloc[np.random.default_rng(seed).permutation(parts.test)[:rows]].reset_index(drop=True)
    fields = [field.name for field in protocol.fields]
    several = choose_sets(fields, 3, SETS)[len(fields) :]
    unit: dict[str, Any] = {"dataset": dataset, "model": model_name, "seed": seed, "rows": len(test)}
    for way, conditional in WAYS.items():
        about = {"training": training, "conditional": True} if conditional else {}
        started = time.process_time()
        single = evaluate_missing(model, test, protocol, progress=False, **about)
        joint = evaluate_missing(model, test[:SEVERAL_ROWS], protocol, sets=several, progress=False, **about)
        lines = [*single.to_dict()["by_size"], *joint.to_dict()["by_size"]]
        unit[way] = {
            "by_size": lines,
            "sets": single.to_dict()["sets"],
            "curve": single.to_dict()["curve"],
            "skipped": single.skipped,
            "seconds": time.process_time() - started,
        }
    return unit | {"training_seconds": trained}


def hide(given: argparse.Namespace) -> None:
    """Compare fields that go missing because of their value with fields that go missing by chance."""
    lines = []
    for dataset in given.datasets:
        data = load(dataset)
        parts = split(data.y, given.seed, train_cap=TRAIN_CAP)
        model, training = train(MODELS["lightgbm"], data, parts), data.X.iloc[parts.train]
        protocol = fg.Protocol.fit(model, training)
        test = data.X.iloc[np.random.default_rng(given.seed).permutation(parts.test)[: given.rows]]
        test = test.reset_index(drop=True)
        ordered = set(evaluate_missing(model, test, protocol, hide="top", progress=False).hidden)
        for way, conditional in WAYS.items():
            about = {"training": training, "conditional": True} if conditional else {}
            for rows in ("top", "bottom", "random"):
                found = evaluate_missing(model, test, protocol, hide=rows, progress=False, **about)
                pairs = found.pairs()
                pairs = pairs[pairs["hidden"].isin(ordered)]  # the same fields in each line
                line = {
                    "dataset": dataset, "values": way, "hide": rows, "pairs": len(pairs),
                    "changed": float(pairs["changed"].mean()), "expected": float(pairs["p_change"].mean()),
                }  # fmt: skip
                lines.append(line)
                print(line, flush=True)
    for way in WAYS:
        for rows in ("top", "bottom", "random"):
            own = [line for line in lines if line["values"] == way and line["hide"] == rows]
            changed, expected = (float(np.mean([line[name] for line in own])) for name in ("changed", "expected"))
            print(f"{way}, {rows}: {changed:.1%} changed, {expected:.1%} expected")
    if given.out is not None:
        given.out.write_text(json.dumps(lines, indent=1) + "\n")


def run(given: argparse.Namespace) -> None:
    given.folder.mkdir(parents=True, exist_ok=True)
    for model in given.models:
        for dataset in given.datasets:
            target = given.folder / f"{dataset}-{model}-{given.seed}.json"
            claim = target.with_suffix(".running")
            if target.exists() or claim.exists():
                continue
            claim.touch()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    unit = run_unit(dataset, model, given.rows, given.seed)
                target.write_text(json.dumps(unit, indent=1) + "\n")
                print(describe_unit(unit), flush=True)
            finally:
                claim.unlink()


def describe_unit(unit: dict[str, Any]) -> str:
    told = []
    for way in WAYS:
        one = unit[way]["by_size"][0]
        own, plain = (one[name] or float("nan") for name in ("auroc", "auroc_confidence"))
        told.append(
            f"{way} {one['observed']:.1%} changed, {one['expected']:.1%} expected, AUROC {own:.3f}, confidence "
            f"{plain:.3f}, Brier {one['brier']:.4f}, {unit[way]['seconds']:.0f} s"
        )
    return f"{unit['dataset']} {unit['model']}: " + "; ".join(told)


# --- tables -------------------------------------------------------------------------------------------------


def collect(given: argparse.Namespace) -> None:
    units = [json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))]
    tables = {way: {str(k): tabulate(units, way, k) for k in (1, 2, 3)} for way in WAYS}
    for way, by_size in tables.items():
        for size, table in by_size.items():
            print(f"\n{way}, {size} hidden at once ({len(units)} units)")
            print("data set        units  changed  expected  points  AUROC  confidence  gain: lowest end  Brier")
            for name, line in table.items():
                print(
                    f"{name:<15} {line['units']:>5}  {line['observed']:>7.1%}  {line['expected']:>8.1%}  "
                    f"{100 * line['difference']:>+6.2f}  {line['auroc']:.3f}  {line['confidence']:>10.3f}  "
                    f"{line['gain_low']:>+16.3f}  {line['brier']:.4f}"
                    + (f"  within a field {line['within']:.3f}, {line['within_confidence']:.3f}" if size == "1" else "")
                )
    if given.out is not None:
        document = {"goals": GOALS, "tables": tables, "units": [shorten(unit) for unit in units]}
        given.out.write_text(json.dumps(document, indent=1) + "\n")


def shorten(unit: dict[str, Any]) -> dict[str, Any]:
    """Return a unit with what the tables are made of; its file in the folder has each field and the curve, too."""
    kept = {}
    for way in WAYS:
        lines = [{name: line[name] for name in KEPT} for line in unit[way]["by_size"]]
        kept[way] = {"by_size": lines, "within": rank_within(unit, way), "seconds": unit[way]["seconds"]}
    return unit | kept


def rank_within(unit: dict[str, Any], way: str) -> dict[str, float]:
    """Return AUROCs within a field, the mean over fields weighted by how many decisions each changed."""
    ranked = [line for line in unit[way]["sets"] if line["auroc"] is not None]
    weight = [line["changed"] for line in ranked]
    return {
        name: float(np.average([line[name] for line in ranked], weights=weight))
        for name in ("auroc", "auroc_confidence")
    }


def tabulate(units: list[dict[str, Any]], way: str, size: int) -> dict[str, dict[str, float]]:
    """Return means over units by data set, by model and in all, for so many fields hidden at once."""
    found: dict[str, dict[str, float]] = {}
    for key, names in (("dataset", list(DATASETS)), ("model", list(MODELS)), ("all", ["all"])):
        for name in names:
            own = [unit for unit in units if key == "all" or unit[key] == name]
            lines = [line for unit in own for line in unit[way]["by_size"] if line["fields"] == size]
            if lines:
                found[name] = summarise(lines)
            if lines and size == 1:
                within = [rank_within(unit, way) for unit in own]
                found[name]["within"] = float(np.mean([one["auroc"] for one in within]))
                found[name]["within_confidence"] = float(np.mean([one["auroc_confidence"] for one in within]))
    return found


def summarise(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over units; units in which nothing changed have no AUROC."""
    ranked = [line for line in lines if line["auroc"] is not None]
    own, plain = (np.array([line[name] for line in ranked]) for name in ("auroc", "auroc_confidence"))
    gaps = own - plain
    low = high = float("nan")
    if len(gaps) > 1:
        draws = np.random.default_rng(0).integers(0, len(gaps), (10_000, len(gaps)))
        low, high = np.quantile(gaps[draws].mean(axis=1), [0.025, 0.975])
    means = {name: float(np.mean([line[name] for line in lines])) for name in ("observed", "expected", "brier")}
    absolute = float(np.mean([abs(line["expected"] - line["observed"]) for line in lines]))
    return {
        "units": len(lines),
        **means,
        "difference": means["expected"] - means["observed"],
        "mean_absolute_difference": absolute,
        "auroc": float(own.mean()),
        "confidence": float(plain.mean()),
        "gain": float(gaps.mean()),
        "gain_low": float(low),
        "gain_high": float(high),
        "units_above": int((gaps > 0).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--datasets", nargs="*", default=list(CHEAP_DATASETS), choices=list(DATASETS))
    running.add_argument("--models", nargs="*", default=list(CHEAP_MODELS), choices=list(MODELS))
    running.add_argument("--rows", type=int, default=ROWS)
    running.add_argument("--seed", type=int, default=SEED)
    running.set_defaults(work=run)
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--out", type=Path)
    collecting.set_defaults(work=collect)
    hiding = commands.add_parser("hide")
    hiding.add_argument("--datasets", nargs="*", default=list(CHEAP_DATASETS), choices=list(DATASETS))
    hiding.add_argument("--rows", type=int, default=600)
    hiding.add_argument("--seed", type=int, default=SEED)
    hiding.add_argument("--out", type=Path)
    hiding.set_defaults(work=hide)
    given = parser.parse_args()
    given.work(given)


if __name__ == "__main__":
    main()
