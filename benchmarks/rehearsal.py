"""What the random-loss term adds to exposure, and what a rehearsal of the declared stress adds to both.

    FRAGILITY_DATA=... python benchmarks/rehearsal.py run [--seed 0] [--rows 1000] [--train 20000] [--out FILE]
    python benchmarks/rehearsal.py tables [FILE]

One seed of the study under the default baseline: seven data sets, nine model families. Per unit, confident test rows
are certified, stressed and ranked. Scores: exposure before the random-loss term (the mean of targeted, independent and
common loss) and after, FDS, the matching failure mode, the rehearsal with no more states than a certificate asks, as
many independent draws, and baselines: four confidence scores, the largest one-step drop and random group orders, each
turned to its better side on the very rows that judge it. Review policies are fitted on half as many rows as there are,
drawn with replacement, and checked on all of them. A unit is one line of FILE; running again adds those that are
missing, cheap models first.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fragility as fg
from fragility.analysis.policy import STARTS, fit_rule
from fragility.analysis.ranking.metrics import auroc, paired_bootstrap, resampled_aurocs
from fragility.analysis.ranking.scores import confidence_scores, random_order_score
from fragility.questions.modes.losses import losses_of_rows
from fragility.questions.stress.labels import label_rows, rehearse_rows, run_stress_rows
from fragility.questions.stress.stressors import Donor, Mask, Noise
from fragility.scores import exposure
from fragility_paper.data import load as load_data
from fragility_paper.models import MODELS
from fragility_paper.plan import PROFILES, Unit
from fragility_paper.unit.fitted import fit_unit
from fragility_paper.unit.labels import bind_donors
from fragility_paper.unit.rows import AuditedRows, select_rows

RESULTS = Path(__file__).parent / "results" / "rehearsal.jsonl"
CHEAP = ("logreg", "lightgbm", "xgboost", "catboost", "mlp", "resmlp", "fr_resmlp", "rf", "extratrees")
DATASETS = ("credit_g", "heloc", "electricity", "default_credit", "bank_marketing", "adult", "covertype")
STRESSES = {
    "default": (fg.Stress(), "lost"),
    "default, rule any": (fg.Stress(rule="any"), "lost"),
    "mask 0.1": (fg.Stress((Mask(0.1),)), "lost"),
    "mask 0.5": (fg.Stress((Mask(0.5),)), "lost"),
    "noise 0.3": (fg.Stress((Noise(0.3),)), "noisy"),
    "donor 0.3": (fg.Stress((Donor(0.3),)), "wrong"),
}
OURS = ("exposure before", "exposure", "FDS", "matching mode", "rehearsal", "independent draws")
MIN_CASES = 10
RISKS = (0.02, 0.05, 0.10)
POLICIES = ("exposure before", "exposure", "rehearsal", "confidence", "chosen")
CHOSEN = ("exposure", "rehearsal", "confidence")  # among which the level is divided
CONFIDENCE, SPLITS = 0.95, 200
BEFORE = (1 / 3, 1 / 3, 1 / 3, 0.0)


read = cache(load_data)


def measure(unit: Unit, rows: int, train: int) -> dict[str, Any]:
    start = time.process_time()
    profile = replace(PROFILES["typical"], train_cap=train)
    fitted = fit_unit(unit, read(unit.dataset), profile)
    test = fitted.split.test
    p = fitted.probabilities(test)
    chosen = select_rows(p.max(axis=1), unit.seed, confident=rows, nearly=0, anyone=0).confident
    found: dict[str, Any] = {"dataset": unit.dataset, "model": unit.model, "seed": unit.seed, "rows": len(chosen)}
    if len(chosen) < 2 * MIN_CASES:
        return found | {"stresses": {}, "policies": [], "seconds": time.process_time() - start}
    audited = AuditedRows(fitted, test[chosen], p[chosen], fitted.certify(test[chosen]))
    fixed = scores_of_certificates(audited)
    oracle, protocol = audited.oracle, fitted.protocol
    losses = losses_of_rows(oracle, protocol, ("noisy", "wrong"))
    modes = {name: losses[name].exposure for name in ("noisy", "wrong")}
    modes["lost"] = audited.certs.claims.independent_loss
    donors_oracle, donors = bind_donors(audited)
    stresses, runs = {}, {}
    for name, (declared, mode) in STRESSES.items():
        stress, own = replace(declared, seed=unit.seed), oracle
        given: dict[str, Any] = {}
        if name.startswith("donor"):
            own, given = donors_oracle, {"donors": donors}
        key = stress.names
        if key not in runs:
            rehearsed = rehearse_rows(own, protocol, stress, **given)
            alone = replace(stress.independent(), draws=rehearsed.stress.draws)
            drawn = run_stress_rows(own, protocol, alone, **given)
            runs[key] = run_stress_rows(own, protocol, stress, **given), rehearsed, drawn
        labelled, rehearsed, drawn = (label_rows(run, stress) for run in runs[key])
        scores = fixed | {"matching mode": modes[mode], "rehearsal": rehearsed.statistic}
        scores["independent draws"] = drawn.statistic
        stresses[name] = judge(scores, labelled.brittle) | {"states": len(runs[key][1].draw_margin[0].ravel())}
        if name == "default":
            policies = keep_promises(scores, labelled.brittle)
    return found | {"stresses": stresses, "policies": policies, "seconds": time.process_time() - start}


def scores_of_certificates(rows: AuditedRows) -> dict[str, np.ndarray]:
    claims, oracle = rows.certs.claims, rows.oracle
    losses = (claims.rcma, claims.independent_loss, claims.common_loss, claims.random_loss)
    return {
        "exposure before": exposure(*losses, BEFORE),
        "exposure": claims.exposure,
        "FDS": claims.fds,
        **confidence_scores(rows.p),
        "one-step drop": claims.one_step_drop.max(axis=1),
        "random order": random_order_score(oracle, rows.fitted.protocol, repeats=3, seed=rows.fitted.unit.seed),
    }


def judge(scores: dict[str, np.ndarray], brittle: np.ndarray) -> dict[str, Any]:
    """AUROC of every score, and of the differences that are asked for their 95% interval over rows."""
    counts = {"rows": len(brittle), "brittle": int(brittle.sum())}
    if min(counts["brittle"], len(brittle) - counts["brittle"]) < MIN_CASES:
        return counts
    turned = {}
    for name, values in scores.items():
        area = auroc(values, brittle)
        turned[name] = values if name in OURS or area >= 0.5 else -values
    area = {name: float(auroc(values, brittle)) for name, values in turned.items()}
    best = max((name for name in turned if name not in OURS), key=area.__getitem__)
    drawn = dict(zip(turned, resampled_aurocs(list(turned.values()), brittle, resamples=1000, seed=0), strict=True))
    pairs = [("exposure", "exposure before"), *((name, "exposure") for name in ("rehearsal", "matching mode"))]
    pairs += [("rehearsal", "matching mode"), ("rehearsal", "FDS"), ("exposure", "FDS")]
    pairs += [(name, best) for name in ("exposure before", "exposure", "rehearsal")]
    differences = {}
    for one, other in pairs:
        low, high = np.nanquantile(drawn[one] - drawn[other], [0.025, 0.975])
        name = "strongest baseline" if other == best else other
        differences[f"{one} - {name}"] = [area[one] - area[other], float(low), float(high)]
    return counts | {"auroc": area, "strongest": best, "differences": differences}


def keep_promises(scores: dict[str, np.ndarray], brittle: np.ndarray) -> list[dict[str, Any]]:
    """What becomes of policies fitted on rows drawn with replacement; all rows are the population they are about."""
    ordered = {name: scores[name] for name in ("exposure before", "exposure", "rehearsal")}
    ordered["confidence"] = -scores["max_softmax"]
    lines = []
    for risk in RISKS:
        generator = np.random.default_rng(0)
        totals = {name: np.zeros(3) for name in POLICIES}  # violations, attained, share reviewed
        used = dict.fromkeys(CHOSEN, 0)
        for _ in range(SPLITS):
            fit = generator.integers(len(brittle), size=len(brittle) // 2)
            for name in POLICIES:
                tried = CHOSEN if name == "chosen" else (name,)
                level = 1 - (1 - CONFIDENCE) / STARTS / len(tried)
                rules = {one: fit_rule(None, ordered[one][fit], brittle[fit], risk, level)[0] for one in tried}
                one = min(rules, key=lambda one: rules[one].review_share)
                threshold, rate, share = rules[one].threshold, 0.0, 1.0
                if threshold is not None:
                    left = ordered[one] < threshold
                    rate, share = float(brittle[left].mean()) if left.any() else 0.0, float(1 - left.mean())
                    if name == "chosen":
                        used[one] += 1
                totals[name] += (rate > risk, threshold is not None, share)
        for name, (violated, attained, share) in totals.items():
            line = {"risk": risk, "score": name, "violations": violated, "attained": attained, "share": share}
            line = {key: value / SPLITS if isinstance(value, np.floating) else value for key, value in line.items()}
            lines.append(line | ({"used": used} if name == "chosen" else {}))
    return lines


def run(seed: int, rows: int, train: int, out: Path, models: tuple[str, ...]) -> None:
    done = {(line["dataset"], line["model"], line["seed"]) for line in read_lines(out)}
    for model in models:
        for dataset in DATASETS:
            if (dataset, model, seed) in done:
                continue
            line = measure(Unit(dataset, model, seed), rows, train)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(dataset, model, line["rows"], f"{line['seconds']:.0f} s", flush=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# --- tables -------------------------------------------------------------------------------------------------


def write_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ("---",) * len(head), *rows])


def judged(lines: list[dict[str, Any]], stress: str) -> list[dict[str, Any]]:
    return [line | line["stresses"][stress] for line in lines if "auroc" in line["stresses"].get(stress, {})]


def list_judged(lines: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield every stress under which some unit is judged, and these units."""
    yield from ((stress, units) for stress in STRESSES if (units := judged(lines, stress)))


def rank_table(lines: list[dict[str, Any]]) -> str:
    rows = []
    for stress, units in list_judged(lines):
        areas = pd.DataFrame([unit["auroc"] for unit in units])
        strongest = float(np.mean([unit["auroc"][unit["strongest"]] for unit in units]))
        means = [f"{areas[name].mean():.3f}" for name in OURS]
        rows.append((stress, f"{len(units)}", *means, f"{strongest:.3f}"))
    return write_table(("labels", "units judged", *OURS, "strongest baseline"), rows)


def difference_table(lines: list[dict[str, Any]]) -> str:
    rows = []
    for stress, units in list_judged(lines):
        for name in ("exposure - exposure before", "rehearsal - exposure", "rehearsal - matching mode"):
            one, other = name.split(" - ")
            found = [[unit["auroc"][own] for unit in units] for own in (one, other)]
            paired = paired_bootstrap(*found)
            won = sum(a > b for a, b in zip(*found, strict=True))
            clear = [unit["differences"][name] for unit in units]
            better, worse = sum(low > 0 for _, low, _ in clear), sum(high < 0 for _, _, high in clear)
            told = f"{paired.mean:+.3f} [{paired.low:+.3f}, {paired.high:+.3f}]"
            rows.append((stress, name, told, f"{won} of {len(units)}", f"{better} / {worse}"))
    return write_table(
        ("labels", "difference", "mean and interval over units", "units won", "clearly better / worse"), rows
    )


def worse_table(lines: list[dict[str, Any]]) -> str:
    rows = []
    for stress, units in list_judged(lines):
        for score in ("exposure before", "exposure", "rehearsal"):
            told = [unit["differences"][f"{score} - strongest baseline"] for unit in units]
            better, worse = sum(low > 0 for _, low, _ in told), sum(high < 0 for _, _, high in told)
            share = f"{worse / max(len(units), 1):.1%}"
            rows.append((stress, score, str(better), str(len(units) - better - worse), f"{worse} ({share})"))
    return write_table(("labels", "score", "better", "not shown", "worse"), rows)


def part_table(lines: list[dict[str, Any]], by: str) -> str:
    frame = pd.DataFrame(
        [{by: unit[by], **{name: unit["auroc"][name] for name in OURS}} for unit in judged(lines, "default")]
    )
    rows = [
        (str(name), str(len(part)), *(f"{part[score].mean():.3f}" for score in OURS))
        for name, part in frame.groupby(by, sort=False)
    ]
    return write_table((by, "units judged", *OURS), rows)


def policy_table(lines: list[dict[str, Any]]) -> str:
    frame = pd.DataFrame(list(list_policies(lines)))
    rows = []
    for (risk, score), part in frame.groupby(["risk", "score"], sort=False):
        used = part["used"].dropna() if "used" in part else []
        total = sum(sum(own.values()) for own in used)
        which = ", ".join(f"{name} {sum(own[name] for own in used) / total:.0%}" for name in CHOSEN) if total else ""
        rows.append(
            (
                *(f"{risk:.0%}", str(score), f"{part['share'].mean():.3f}", f"{part['attained'].mean():.2f}"),
                *(f"{part['violations'].mean():.2%}", f"{part['violations'].max():.1%}", which),
            )
        )
    head = ("risk", "score", "share reviewed", "attained", "violations", "most in a unit", "used")
    return f"{len(frame.groupby('unit'))} units\n\n" + write_table(head, rows)


def list_policies(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if "auroc" in line["stresses"].get("default", {}):
            unit = f"{line['dataset']}.{line['model']}.{line['seed']}"
            yield from ({"unit": unit, **own} for own in line["policies"])


def tabulate(path: Path) -> None:
    lines = read_lines(path)
    total = sum(line["seconds"] for line in lines)
    print(f"{len(lines)} units, {total / 60:.0f} minutes of processor time; models: {len(MODELS)}\n")
    for table in (rank_table(lines), difference_table(lines), worse_table(lines)):
        print(table + "\n")
    print(part_table(lines, "model") + "\n\n" + part_table(lines, "dataset") + "\n\n" + policy_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--rows", type=int, default=1000)
    running.add_argument("--train", type=int, default=20_000)
    running.add_argument("--models", default=",".join(CHEAP))
    running.add_argument("--out", type=Path, default=RESULTS)
    telling = commands.add_parser("tables")
    telling.add_argument("file", type=Path, nargs="?", default=RESULTS)
    options = parser.parse_args()
    if options.command == "run":
        run(options.seed, options.rows, options.train, options.out, tuple(options.models.split(",")))
    else:
        tabulate(options.file)


if __name__ == "__main__":
    main()
