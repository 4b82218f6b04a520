"""Time and memory of training the residual MLP, plain and fragility-regularised, in one run.

    python benchmarks/training.py                                   # Adult on the CPU, one thread
    python benchmarks/training.py --dataset covertype --write covertype.npz
    python benchmarks/training.py --prepared covertype.npz --device cuda --batch-size 4096

With --prepared nothing but numpy and torch is needed: the network and its training are loaded by their paths, so the
same code runs where the package is not installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from standalone import load_core

PARTS = ("train", "validation", "test")
MODELS = ("ResMLP", "FR-ResMLP")


def prepare(dataset: str, seed: int) -> dict[str, np.ndarray]:
    """Matrices and class columns of the three parts, column groups and baseline, as the study makes them."""
    from fragility_paper.data import column_fields, load, preprocessing, split

    data = load(dataset)
    parts = split(data.y, seed)
    transformer = preprocessing(data.spec).fit(data.X.iloc[parts.train])
    fields = column_fields(data.spec, transformer)
    order = {field: g for g, field in enumerate(dict.fromkeys(fields))}
    prepared: dict[str, np.ndarray] = {"column_group": np.array([order[field] for field in fields])}
    for part in PARTS:
        index = getattr(parts, part)
        prepared[f"{part}_matrix"] = transformer.transform(data.X.iloc[index]).astype(np.float32)
        prepared[f"{part}_codes"] = data.y[index]
    prepared["baseline"] = prepared["train_matrix"].mean(axis=0, dtype=np.float64)
    return prepared


def train_once(core: Any, prepared: dict[str, np.ndarray], model: str, options: argparse.Namespace) -> Any:
    """One training; wall and CPU seconds, peak memory, history and quality on the test part."""
    rows = core.Rows(prepared["train_matrix"], prepared["train_codes"])
    validation = core.Rows(prepared["validation_matrix"], prepared["validation_codes"])
    n_classes = int(prepared["train_codes"].max()) + 1
    shape = core.NetworkShape(rows.matrix.shape[1], n_classes, options.width, options.blocks)
    plan = core.TrainingPlan(
        max_epochs=options.epochs,
        patience=options.patience,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        seed=options.seed,
        threads=options.threads,
    )
    stress = None
    if model == "FR-ResMLP":
        stress = core.EvidenceStress(prepared["column_group"], prepared["baseline"])
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before, cpu, wall = _peak_host_bytes(), time.process_time(), time.perf_counter()
    trained = core.train_network(rows, shape, plan, validation=validation, stress=stress, device=options.device)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    epochs = len(trained.history)
    return {
        "model": model,
        "seconds": wall,
        "cpu_seconds": cpu,
        "epochs": epochs,
        "best_epoch": trained.best_epoch,
        "seconds_per_epoch": float(np.median([epoch.seconds for epoch in trained.history])),
        "cpu_seconds_per_epoch": cpu / epochs,
        "rows_per_second": len(rows) * epochs / wall,
        "host_growth_bytes": _peak_host_bytes() - before,
        "device_peak_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else None,
        **_quality(core, trained.network, prepared, options.device),
    }


def _peak_host_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _quality(core: Any, network: Any, prepared: dict[str, np.ndarray], device: str) -> dict[str, float]:
    codes = prepared["test_codes"]
    logits = core.compute_logits(network, prepared["test_matrix"], device)
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    own = logits[np.arange(len(codes)), codes]
    return {
        "test_accuracy": float((logits.argmax(axis=1) == codes).mean()),
        "test_nll": float((log_sum - own).mean()),
    }


def environment(options: argparse.Namespace, prepared: dict[str, np.ndarray]) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    return {
        "dataset": options.prepared.stem if options.prepared else options.dataset,
        "training_rows": int(prepared["train_matrix"].shape[0]),
        "columns": int(prepared["train_matrix"].shape[1]),
        "groups": int(prepared["column_group"].max()) + 1,
        "width": options.width,
        "blocks": options.blocks,
        "batch_size": options.batch_size,
        "seed": options.seed,
        "threads": options.threads,
        "device": f"{options.device} ({name})",
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def report(results: list[dict[str, Any]], place: dict[str, Any]) -> str:
    head = ("model", "epochs", "best", "total s", "s/epoch", "CPU s/epoch", "rows/s", "peak MiB", "accuracy", "NLL")
    lines = [
        "{dataset}: {training_rows:,} training rows, {columns} columns, {groups} groups; width {width}, "
        "{blocks} blocks, batch {batch_size}; {device}, {threads} thread(s), torch {torch}".format(**place),
        " ".join(f"{name:>11}" for name in head),
    ]
    for r in results:
        peak = r["device_peak_bytes"] if r["device_peak_bytes"] is not None else r["host_growth_bytes"]
        cells = (
            r["model"],
            r["epochs"],
            r["best_epoch"],
            f"{r['seconds']:.1f}",
            f"{r['seconds_per_epoch']:.3f}",
            f"{r['cpu_seconds_per_epoch']:.3f}",
            f"{r['rows_per_second']:,.0f}",
            f"{peak / 2**20:.0f}",
            f"{r['test_accuracy']:.4f}",
            f"{r['test_nll']:.4f}",
        )
        lines.append(" ".join(f"{cell!s:>11}" for cell in cells))
    ratio = ratios(results)
    lines.append(
        f"FR-ResMLP / ResMLP, time an epoch: {ratio['seconds_per_epoch']:.2f} wall, "
        f"{ratio['cpu_seconds_per_epoch']:.2f} CPU; total: {ratio['seconds']:.2f} wall"
    )
    return "\n".join(lines)


def ratios(results: list[dict[str, Any]]) -> dict[str, float]:
    plain, regularised = (next(r for r in results if r["model"] == model) for model in MODELS)
    return {key: regularised[key] / plain[key] for key in ("seconds", "seconds_per_epoch", "cpu_seconds_per_epoch")}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="adult", help="name of a study data set (in FRAGILITY_DATA)")
    parser.add_argument("--prepared", type=Path, help="train on a file made by --write")
    parser.add_argument("--write", type=Path, help="prepare the data, write them to this .npz and stop")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write everything measured to this JSON file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.prepared:
        with np.load(options.prepared) as file:
            prepared = {name: file[name] for name in file.files}
    else:
        prepared = prepare(options.dataset, options.seed)
    if options.write:
        np.savez_compressed(options.write, **prepared)
        print(f"{options.write}: {options.write.stat().st_size / 2**20:.1f} MiB")
        return
    core = load_core()
    warm = argparse.Namespace(**{**vars(options), "epochs": 1})
    train_once(core, {**prepared, **_head(prepared, 2048)}, "FR-ResMLP", warm)  # libraries load on first use
    results = [train_once(core, prepared, model, options) for model in MODELS]
    place = environment(options, prepared)
    print(report(results, place))
    if options.out:
        document = {"environment": place, "results": results, "ratios": ratios(results)}
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _head(prepared: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
    """The first rows of each part, with the last class kept so that the network has its shape."""
    keep = {part: np.r_[:n, prepared[f"{part}_codes"].argmax()] for part in PARTS}
    return {f"{part}_{what}": prepared[f"{part}_{what}"][keep[part]] for part in PARTS for what in ("matrix", "codes")}


if __name__ == "__main__":
    main()
