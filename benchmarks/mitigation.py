"""Does fragility-regularised training make predictions less fragile, and what does it cost?

    python benchmarks/mitigation.py --out mitigation.json               # test rows, declared defaults, 3 seeds
    python benchmarks/mitigation.py --ablation --out ablation.json      # validation rows, one setting changed at a time

Both models of a pair share split, preprocessing, protocol, network and seed; only the penalty differs. --ablation never
looks at the test rows: there early stopping uses a share of the training rows, and the validation rows judge.
Results are one record a unit, model and metric; the differences are paired by data set and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline

from fragility.analysis.ranking.metrics import bootstrap_mean, negative_log_likelihood, paired_bootstrap
from fragility.analysis.resmlp import FragilityPenalty, ResMLPClassifier
from fragility.auditing.pipeline import audit
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.questions.stress.labels import label_brittle
from fragility_paper.data import DATA_VARIABLE, load, preprocessing, split

DATASETS = ("adult", "bank_marketing", "credit_g", "electricity", "heloc")
PLAIN, DEFAULT = "ResMLP", "FR-ResMLP"
COMPARED = (PLAIN, DEFAULT, "floor=0.1")  # the declared default, and what the ablation found on validation rows
METRICS = {
    "auroc": "AUROC",
    "nll": "NLL",
    "confidence": "mean confidence",
    "rcma": "mean RCMA",
    "flip_budget": "mean k*",
    "fds": "mean FDS",
    "brittle_share": "brittle among high-confidence rows",
    "brittle_all": "brittle among all rows",
    "high_confidence": "high-confidence rows",
    "seconds": "training seconds",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A named change of the penalty's declared defaults; None trains the plain model."""

    name: str
    changes: Mapping[str, Any] | None


def ablation_settings() -> list[Setting]:
    """The declared default and one change at a time: weight, margin term, severity, number of groups, floor."""
    changed: list[tuple[str, dict[str, Any]]] = [(f"alpha={a:g}", {"alpha": a}) for a in (0.1, 1.0, 2.0, 5.0)]
    changed += [(f"beta={b:g}", {"beta": b}) for b in (0.0, 0.5, 1.0)]
    changed += [
        (f"severity {low:g}-{high:g}", {"min_severity": low, "max_severity": high})
        for low, high in ((0.1, 1.0), (0.5, 1.0), (1.0, 1.0))
    ]
    changed += [(f"groups {a}-{b}", {"min_groups": a, "max_groups": b}) for a, b in ((1, 1), (1, 6), (3, 6))]
    changed += [(f"floor={f:g}", {"margin_floor": f}) for f in (0.1, 1.0)]
    changed += [
        ("beta=1 floor=0.1", {"beta": 1.0, "margin_floor": 0.1}),
        ("alpha=2 severity 0.1-1 floor=0.1", {"alpha": 2.0, "max_severity": 1.0, "margin_floor": 0.1}),
        (
            "alpha=2 beta=1 severity 0.1-1 groups 1-6 floor=0.1",
            {"alpha": 2.0, "beta": 1.0, "max_severity": 1.0, "max_groups": 6, "margin_floor": 0.1},
        ),
    ]
    return [Setting(PLAIN, None), Setting(DEFAULT, {}), *(Setting(name, changes) for name, changes in changed)]


def run_unit(dataset: str, seed: int, settings: list[Setting], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every setting on one split; one record a setting and metric."""
    data = load(dataset, data=options.data)
    parts = split(data.y, seed, train_cap=options.train_cap)
    X_train, y_train = data.X.iloc[parts.train], data.y[parts.train]
    prepare = preprocessing(data.spec).fit(X_train)
    judged = parts.validation if options.ablation else parts.test
    X, y = data.X.iloc[judged], data.y[judged]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(judged))[: options.rows])
    records, protocol = [], None
    for setting in settings:
        started = time.perf_counter()
        model = _trained(setting, prepare, X_train, y_train, data, parts, seed, options)
        seconds = time.perf_counter() - started
        protocol = protocol or Protocol.fit(model, X_train)
        values = {**_predictive(model, X, y), **_fragility(model, X.iloc[chosen], protocol), "seconds": seconds}
        unit = {"dataset": dataset, "seed": seed, "model": setting.name}
        records += [{**unit, "metric": name, "value": float(value)} for name, value in values.items()]
        print(f"{dataset} seed {seed} {setting.name}: " + _short(values), flush=True)
    return records


def _trained(
    setting: Setting, prepare: Any, X_train: Any, y_train: Any, data: Any, parts: Any, seed: int, options: Any
) -> Pipeline:
    penalty = None
    if setting.changes is not None:
        penalty = FragilityPenalty(groups=prepare, **setting.changes)
    model = ResMLPClassifier(
        width=options.width, blocks=options.blocks, penalty=penalty, device=options.device, random_state=seed
    )
    matrix = prepare.transform(X_train)
    if options.ablation:  # the validation rows judge, so they may not also stop the training
        model.fit(matrix, y_train)
    else:
        held = prepare.transform(data.X.iloc[parts.validation])
        model.fit(matrix, y_train, X_validation=held, y_validation=data.y[parts.validation])
    return Pipeline([("prepare", prepare), ("model", model)])


def _predictive(model: Pipeline, X: Any, y: np.ndarray) -> dict[str, float]:
    p = Model.wrap(model).probabilities(X)
    score = p[:, 1] if p.shape[1] == 2 else p
    return {"auroc": roc_auc_score(y, score, multi_class="ovr"), "nll": negative_log_likelihood(p, y)}


def _fragility(model: Pipeline, X: Any, protocol: Protocol) -> dict[str, float]:
    claims = audit(model, X, protocol, progress=False, lattice=False).claims
    labels = label_brittle(model, X, protocol)
    sure = int(labels.high_confidence.sum())
    return {
        "confidence": claims.confidence.mean(),
        "rcma": claims.rcma.mean(),
        "flip_budget": claims.flip_budget.mean(),
        "fds": claims.fds.mean(),
        "brittle_share": labels.brittle.sum() / sure if sure else np.nan,
        "brittle_all": labels.brittle.mean(),
        "high_confidence": labels.high_confidence.mean(),
    }


def _short(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def differences(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every setting minus the plain model: overall with a bootstrap interval over units, and by data set."""
    value = {(r["dataset"], r["seed"], r["model"], r["metric"]): r["value"] for r in records}
    units = sorted({(r["dataset"], r["seed"]) for r in records})
    models = [m for m in dict.fromkeys(r["model"] for r in records) if m != PLAIN]
    lines = []
    for model in models:
        for metric in METRICS:
            paired = [u for u in units if (*u, model, metric) in value and (*u, PLAIN, metric) in value]
            with_penalty = np.array([value[*u, model, metric] for u in paired])
            plain = np.array([value[*u, PLAIN, metric] for u in paired])
            overall = asdict(paired_bootstrap(with_penalty, plain))
            of_unit = np.array([name for name, _ in paired])
            by_dataset = {
                str(name): float((with_penalty - plain)[of_unit == name].mean()) for name in dict.fromkeys(of_unit)
            }
            lines.append(
                {
                    "model": model,
                    "metric": metric,
                    "plain": bootstrap_mean(plain).mean,
                    "penalised": bootstrap_mean(with_penalty).mean,
                    "difference": overall,
                    "by_dataset": by_dataset,
                }
            )
    return lines


def report(lines: list[dict[str, Any]]) -> str:
    text = ["difference = penalised - plain, mean over data sets x seeds, 95% bootstrap interval over these units"]
    for line in lines:
        if line["metric"] == next(iter(METRICS)):
            head = f"  {'metric':<36}{'plain':>9}{'penalised':>11}{'difference':>12}  interval"
            text += ["", line["model"], head]
        d = line["difference"]
        text.append(
            f"  {METRICS[line['metric']]:<36}{line['plain']:>9.4f}{line['penalised']:>11.4f}{d['mean']:>+12.4f}"
            f"  [{d['low']:+.4f}, {d['high']:+.4f}]  units {d['units']}"
        )
    return "\n".join(text)


def save(path: Path | None, options: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    """Written after every unit, so that an interrupted run keeps what it measured."""
    if path is None:
        return
    document = {"options": {k: str(v) for k, v in vars(options).items()}, "records": records}
    document["differences"] = differences(records)
    path.write_text(json.dumps(_defined(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _defined(value: Any) -> Any:
    """JSON has no NaN: what is undefined (a share of no rows, an interval over one unit) becomes null."""
    if isinstance(value, float) and np.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: _defined(item) for key, item in value.items()}
    return [_defined(item) for item in value] if isinstance(value, list | tuple) else value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), help="study data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3000, help="rows audited and stressed a unit")
    parser.add_argument("--ablation", action="store_true", help="compare settings on validation rows")
    parser.add_argument("--settings", nargs="+", help="only these, by name; differences need ResMLP too")
    parser.add_argument("--train-cap", type=int, default=None, help="thin the training rows (stratified)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, default=None, help=f"folder of the data sets; default {DATA_VARIABLE}")
    parser.add_argument("--join", type=Path, nargs="+", help="no training: join the records of these JSON files")
    parser.add_argument("--out", type=Path, default=None, help="write records and differences to this JSON file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.join:
        joined = [record for path in options.join for record in json.loads(path.read_text())["records"]]
        save(options.out, options, joined)
        print(report(differences(joined)))
        return
    if options.data is None and DATA_VARIABLE not in os.environ:
        beside = Path(__file__).resolve().parents[2] / "shared" / "data"  # where the tests look too
        options.data = beside if beside.is_dir() else None
    chosen = options.settings or (None if options.ablation else COMPARED)
    settings = [s for s in ablation_settings() if chosen is None or s.name in chosen]
    records: list[dict[str, Any]] = []
    for dataset in options.dataset:
        for seed in range(options.seeds):
            records += run_unit(dataset, seed, settings, options)
            save(options.out, options, records)
    print(report(differences(records)))


if __name__ == "__main__":
    main()
