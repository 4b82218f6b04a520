"""Does a gate raise false alarms about retrained models, and does it see a model that is worse?

    FRAGILITY_DATA=... python benchmarks/gate.py train --work audits        # 320 models and audits, about half an hour
    FRAGILITY_DATA=... python benchmarks/gate.py judge --work audits --out benchmarks/results/gate.json

`train` fits LightGBM and XGBoost with 40 seeds on Adult and HELOC, and audits each model on the same test rows under
one protocol. It does so in two ways: with another seed on the same training rows ("seed": other random rows and columns
of each tree), and with another seed on another sample of two thirds of the training rows ("rows"). What is finished is
kept, so that it can be interrupted.

`judge` draws ordered pairs of seeds, an old and a new model that is no worse, and counts how often a gate fails:

    same rows     both audits are of all test rows, so they are paired
    other rows    the old audit is of one half of the test rows, the new one of the other; another cut for each pair

with the rules that `fragility gate init` writes: an allowance of two points against the old audit, or limits derived
from it; of a plain audit, and of one with failure modes and rates; then with rules that it derives from the old audit
and four more, of seeds that are drawn for each pair. Then it mixes audits in known proportions: of the new audit, 2,000
confident rows are drawn, and as many of their certificates are replaced by early ones that its share of early flips
lies 0, 2 or 5 points above that of the old model. How often a gate fails is its power.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.scores import CONFIDENT, EARLY
from fragility_paper.data import load, preprocessing

DATASETS = {"adult": 6000, "heloc": 4000}  # test rows
MODELS = ("lightgbm", "xgboost")
WAYS = ("seed", "rows")  # what differs between retrained models
SEEDS, SPLIT_SEED = 40, 7
TRAINING_SHARE, MOST_TRAINING_ROWS = 2 / 3, 16_000
RATES = {"adult": 0.05, "heloc": None}  # of every field; the 23 fields of HELOC have too many subsets for 80 audits
ALLOWANCE = 0.02
RETRAINED = 5  # good audits that rules are derived from, where it is more than one
PAIRS = 100
POWER_ROWS, POWER_DRAWS = 2000, 60
INCREASES = (0.0, 0.02, 0.05)


# --- models and audits ----------------------------------------------------------------------------------------


def make_estimator(name: str, seed: int) -> Any:
    if name == "lightgbm":
        from lightgbm import LGBMClassifier

        sampled = {"subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.8}
        return LGBMClassifier(n_estimators=200, learning_rate=0.05, n_jobs=1, random_state=seed, verbose=-1, **sampled)
    from xgboost import XGBClassifier

    settings = {"max_depth": 5, "subsample": 0.8, "colsample_bytree": 0.8}
    return XGBClassifier(n_estimators=200, learning_rate=0.05, n_jobs=1, random_state=seed, **settings)


def train(work: Path, seeds: int) -> None:
    for dataset, test_rows in DATASETS.items():
        for way in WAYS:
            train_seeds(work / way / dataset, way, dataset, test_rows, seeds)


def train_seeds(home: Path, way: str, dataset: str, test_rows: int, seeds: int) -> None:
    data = load(dataset)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(data.y))
    test, pool = order[:test_rows], order[test_rows:]
    prepare = preprocessing(data.spec).fit(data.X.iloc[pool])  # one for all seeds, so that one protocol fits all
    for model in MODELS:
        protocol = None
        for seed in range(seeds):
            folder = home / model / f"{seed:02d}"
            if (folder / "manifest.json").is_file():
                protocol = protocol or fg.open_audit(folder).protocol
                continue
            size = min(int(TRAINING_SHARE * len(pool)), MOST_TRAINING_ROWS)
            drawn = seed if way == "rows" else 0
            rows = np.random.default_rng([SPLIT_SEED, drawn]).choice(pool, size, replace=False)
            estimator = make_estimator(model, seed).fit(prepare.transform(data.X.iloc[rows]), data.y[rows])
            pipeline = make_pipeline(prepare, estimator)
            protocol = protocol or fg.Protocol.fit(pipeline, data.X.iloc[pool])
            blocks: Any = {"rates": RATES[dataset], "modes": ["wrong", "noisy"], "lattice": None}
            if RATES[dataset] is None:
                blocks["lattice"] = False
            certs = fg.audit(pipeline, data.X.iloc[test], protocol, progress=False, **blocks)
            folder.parent.mkdir(parents=True, exist_ok=True)
            certs.save(folder)
            print(f"{way} {dataset} {model} {seed}: {certs.summary().confident_flips_within_two:.3f}", flush=True)


def read_audits(folder: Path) -> list[fg.Certificates]:
    found = [fg.Certificates.load(seed) for seed in sorted(folder.iterdir())]
    return [take(certs, np.arange(len(certs))) for certs in found]


def take(certs: fg.Certificates, rows: Any, ids: Any = None) -> fg.Certificates:
    """Return some rows, which may repeat, with new ids; a gate reads columns only, so digests are left as they are."""
    read = ("id", "confidence", "predicted", "flip_budget", "exposure", "failure_probability")
    names = [name for name in certs.table.column_names if name in read or name.startswith("exposure_")]
    table = certs.table.select(names).take(pa.array(rows))
    if ids is not None:
        table = table.set_column(names.index("id"), "id", pa.array(ids))
    return fg.Certificates(table, certs.protocol, replace(certs.manifest, rows=len(table)))


def without_blocks(certs: fg.Certificates) -> fg.Certificates:
    manifest = replace(certs.manifest, modes=None, lattice=None)
    return fg.Certificates(certs.table, certs.protocol, manifest)


# --- false alarms ---------------------------------------------------------------------------------------------


def judge_pairs(audits: list[fg.Certificates], pairs_wanted: int) -> Iterator[tuple[str, str, str]]:
    """Yield the outcome of each gate on drawn ordered pairs of seeds: (which rows, which gate, outcome)."""
    n, every = len(audits[0]), np.array(list(permutations(range(len(audits)), 2)))
    for a, b in np.random.default_rng(SPLIT_SEED).permutation(every)[:pairs_wanted].tolist():
        cut = np.random.default_rng([a, b]).permutation(n)
        pairs = {"same rows": (audits[a], audits[b])}
        pairs["other rows"] = (take(audits[a], cut[: n // 2]), take(audits[b], cut[n // 2 :]))
        for which, (old, new) in pairs.items():
            for blocks in ("plain", "with modes and rates"):
                before, after = (old, new) if blocks != "plain" else (without_blocks(old), without_blocks(new))
                against = fg.Gate.derive(before, allowance=ALLOWANCE).check(after, before)
                yield which, f"allowance, {blocks}", against.outcome
                yield which, f"limits, {blocks}", fg.Gate.derive(before).check(after).outcome
        others = np.random.default_rng([a, b, 1]).permutation([s for s in range(len(audits)) if s not in (a, b)])
        good = [audits[s] for s in (a, *others[: RETRAINED - 1])]
        for which, (old, new) in pairs.items():
            if which == "other rows":
                good = [take(certs, cut[: n // 2]) for certs in good]
            yield which, "allowance of five audits", fg.Gate.derive(good, allowance=0.0).check(new, old).outcome
            yield which, "limits of five audits", fg.Gate.derive(good).check(new).outcome


# --- power ----------------------------------------------------------------------------------------------------


def early_share(certs: fg.Certificates) -> float:
    return float(find_early(certs)[find_confident(certs)].mean())


def find_confident(certs: fg.Certificates) -> Any:
    return certs.table.column("confidence").to_numpy() >= CONFIDENT


def find_early(certs: fg.Certificates) -> Any:
    return certs.table.column("flip_budget").to_numpy() <= EARLY


def judge_mixtures(audits: list[fg.Certificates], increase: float, draws: int) -> Iterator[tuple[str, str, str]]:
    """Yield the outcome of gates on pairs of 2,000 confident rows, the new ones so much worse.

    Same rows are of two seeds, other rows of one.
    """
    rng = np.random.default_rng([SPLIT_SEED, round(100 * increase)])
    audits = [without_blocks(certs) for certs in audits]
    while draws:
        a, b = rng.choice(len(audits), 2, replace=False)
        old, new = audits[a], audits[b]
        share = early_share(old)
        if early_share(new) > share + increase:
            old, new = new, old  # certificates can be made worse, not better
            share = early_share(old)
        draws -= 1
        both = np.flatnonzero(find_confident(old) & find_confident(new))
        shared = rng.choice(both, POWER_ROWS)
        ids = np.arange(POWER_ROWS)
        first, second = (rng.choice(np.flatnonzero(find_confident(old)), POWER_ROWS) for _ in range(2))
        mixed = mix(old, np.flatnonzero(find_confident(old)), second, share + increase, rng)
        # Rows that are confident in both models have shares of their own.
        common = float(find_early(old)[both].mean())
        drawn = {
            "same rows": (take(old, shared, ids), take(new, mix(new, both, shared, common + increase, rng), ids)),
            "other rows": (take(old, first, ids), take(old, mixed, ids + POWER_ROWS)),
        }
        for which, (before, after) in drawn.items():
            limit = common if which == "same rows" else share
            gates = {
                "one rule, no allowance": fg.Gate((fg.Rule(measure="flips_early", allowance=0.0),)),
                "one rule, allowance 2 points": fg.Gate((fg.Rule(measure="flips_early", allowance=ALLOWANCE),)),
                "one rule, limit at the old share": fg.Gate((fg.Rule(measure="flips_early", at_most=limit),)),
                "derived, no allowance": fg.Gate.derive(before, allowance=0.0),
                "derived, allowance 2 points": fg.Gate.derive(before, allowance=ALLOWANCE),
                "derived, limits": fg.Gate.derive(before),
            }
            for name, gate in gates.items():
                earlier = before if any(rule.allowance is not None for rule in gate.rules) else None
                yield which, name, gate.check(after, earlier).outcome


def mix(certs: fg.Certificates, among: Any, rows: Any, share: float, rng: Any) -> Any:
    """Return rows drawn among some, a part of them replaced by early ones, which are then expected to have a share."""
    early = find_early(certs)
    own = float(early[among].mean())
    chosen = rng.random(len(rows)) < max(share - own, 0.0) / (1.0 - own)
    return np.where(chosen, rng.choice(among[early[among]], len(rows)), rows)


# --- report ---------------------------------------------------------------------------------------------------


def count(outcomes: Iterator[tuple[str, str, str]], **about: Any) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for which, gate, outcome in outcomes:
        found[which, gate].append(outcome)
    return [
        {**about, "rows": which, "gate": gate, "judged": len(seen)}
        | {outcome: seen.count(outcome) / len(seen) for outcome in ("fail", "inconclusive", "pass")}
        for (which, gate), seen in found.items()
    ]


def judge(work: Path, ways: Sequence[str], pairs: int, draws: int) -> dict[str, Any]:
    alarms, power, shares = [], [], []
    for way, dataset, model in product(ways, DATASETS, MODELS):
        audits = read_audits(work / way / dataset / model)
        own = {"retrained": way, "dataset": dataset, "model": model}
        seen = [early_share(certs) for certs in audits]
        confident = [int(find_confident(certs).sum()) for certs in audits]
        shares.append(
            {**own, "seeds": len(audits), "test_rows": len(audits[0]), "confident": float(np.mean(confident))}
            | {"early": float(np.mean(seen)), "least": min(seen), "most": max(seen), "spread": float(np.std(seen))}
        )
        found = count(judge_pairs(audits, pairs), **own)
        alarms += found
        if way == "seed":
            for increase in INCREASES:
                mixed = count(judge_mixtures(audits, increase, draws), **own, increase=increase)
                power += mixed
                found += mixed
        for line in (shares[-1], *found):
            print(*line.values(), flush=True)
    return {"allowance": ALLOWANCE, "power_rows": POWER_ROWS, "shares": shares, "false_alarms": alarms, "power": power}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "judge"))
    parser.add_argument("--work", type=Path, required=True, help="folder of the audits")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--way", action="append", choices=WAYS, help="judge only models that were retrained so")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of seeds of each data set and model")
    parser.add_argument("--draws", type=int, default=POWER_DRAWS, help="mixed pairs of each data set and model")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.step == "train":
        train(options.work, options.seeds)
        return
    report = judge(options.work, options.way or WAYS, options.pairs, options.draws)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
