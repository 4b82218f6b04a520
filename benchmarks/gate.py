"""Does a gate raise false alarms about retrained models, and does it see a model that is worse?

    FRAGILITY_DATA=... python benchmarks/gate.py train --work audits        # 320 models and audits, about half an hour
    FRAGILITY_DATA=... python benchmarks/gate.py judge --work audits --out benchmarks/results/gate.json

`train` fits LightGBM and XGBoost with 40 seeds on Adult and HELOC, and audits each model on the same test rows under
one protocol. It does so in two ways: with another seed on the same training rows ("seed": other random rows and columns
of each tree), and with another seed on another sample of two thirds of the training rows ("rows"). What is finished is
kept, so that it can be interrupted.

`judge` draws sides of one model and of five, an old one and a new one that is no worse, and counts how often a gate
fails, with the rules that `fragility gate init` writes:

    same rows     all audits are of all test rows, so they are paired
    other rows    the old audits are of one half of the test rows, the new ones of the other; another cut for each draw

Then it mixes audits in known proportions: test rows are drawn until there are 2,000 confident ones, and as many of the
new certificates are replaced by ones that flip early that the share of those lies 0, 2 or 5 points higher. With one
model on each side, the new model is the old one itself (other rows), or is mixed up to the old one's share first (same
rows), so that nothing but rows and the known increase differs. With five on each side, ten models are drawn, and each
new one is made worse by the increase: how far models differ is then in it too. How often a gate fails is its power.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
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
RETRAINED = 5  # audits of a side, where it is more than one
PAIRS = 100
POWER_ROWS, POWER_DRAWS = 2000, 200
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
            print(f"{way} {dataset} {model} {seed}: {certs.summary()['flips_early'].value:.3f}", flush=True)


def read_audits(folder: Path) -> list[fg.Certificates]:
    found = [fg.Certificates.load(seed) for seed in sorted(folder.iterdir())]
    return [take(certs, np.arange(len(certs))) for certs in found]


def take(certs: fg.Certificates, rows: Any) -> fg.Certificates:
    """Return some rows, which may repeat; a gate reads columns only, so digests are left as they are."""
    read = ("id", "confidence", "predicted", "flip_budget", "exposure", "failure_probability")
    names = [name for name in certs.table.column_names if name in read or name.startswith("exposure_")]
    table = certs.table.select(names).take(pa.array(rows))
    return fg.Certificates(table, certs.protocol, replace(certs.manifest, rows=len(table)))


def name_rows(certs: fg.Certificates, ids: Any) -> fg.Certificates:
    table = certs.table.set_column(certs.table.column_names.index("id"), "id", pa.array(ids))
    return fg.Certificates(table, certs.protocol, certs.manifest)


def strip_blocks(audits: list[fg.Certificates]) -> list[fg.Certificates]:
    return [fg.Certificates(one.table, one.protocol, replace(one.manifest, modes=None, lattice=None)) for one in audits]


# --- false alarms ---------------------------------------------------------------------------------------------


def judge_draws(audits: list[fg.Certificates], wanted: int) -> Iterator[tuple[str, str, str]]:
    """Yield the outcome of each gate on drawn sides of seeds: (which rows, which gate, outcome)."""
    n = len(audits[0])
    for draw in range(wanted):
        rng = np.random.default_rng([SPLIT_SEED, draw])
        seeds, cut = rng.permutation(len(audits)), rng.permutation(n)
        sides = [[audits[seed] for seed in some] for some in np.split(seeds[: 2 * RETRAINED], 2)]
        halves = [[take(one, rows) for one in side] for side, rows in zip(sides, np.split(cut, 2), strict=True)]
        for which, (old, new) in {"same rows": sides, "other rows": halves}.items():
            for blocks in ("plain", "with modes and rates"):
                before, after = (old, new) if blocks != "plain" else (strip_blocks(old), strip_blocks(new))
                small = fg.Gate.derive(before[0], allowance=ALLOWANCE)
                yield which, f"one against one, allowance, {blocks}", small.check(after[0], before[0]).outcome
                yield which, f"one by limits of one, {blocks}", fg.Gate.derive(before[0]).check(after[0]).outcome
                yield which, f"one by limits of five, {blocks}", fg.Gate.derive(before).check(after[0]).outcome
                none = fg.Gate.derive(before[0], allowance=0.0)
                yield which, f"one against five, no allowance, {blocks}", none.check(after[0], before).outcome
                yield which, f"five against five, no allowance, {blocks}", none.check(after, before).outcome
                yield which, f"five against five, allowance, {blocks}", small.check(after, before).outcome


# --- power ----------------------------------------------------------------------------------------------------


def early_share(certs: fg.Certificates, rows: Any = None) -> float:
    return float(find_early(certs)[find_confident(certs) if rows is None else rows].mean())


def find_confident(certs: fg.Certificates) -> Any:
    return certs.table.column("confidence").to_numpy() >= CONFIDENT


def find_early(certs: fg.Certificates) -> Any:
    return certs.table.column("flip_budget").to_numpy() <= EARLY


def judge_mixtures(audits: list[fg.Certificates], increase: float, draws: int) -> Iterator[tuple[str, str, str]]:
    """Yield the outcome of gates on sides of about 2,000 confident rows, the new ones so much worse."""
    rng = np.random.default_rng([SPLIT_SEED, round(100 * increase)])
    audits = strip_blocks(audits)
    alone = {a: fg.Gate((fg.Rule(measure="flips_early", allowance=a),)) for a in (0.0, ALLOWANCE)}
    derived = {a: fg.Gate.derive(audits[0], allowance=a) for a in (0.0, ALLOWANCE)}
    for _ in range(draws):
        # Of two models, exposure differs too, by more than the increase that is mixed in: only shares that flip early.
        for which, (old, new) in mix_one(audits, increase, rng).items():
            for allowance, gate in alone.items():
                yield which, f"one against one, one rule, allowance {allowance:g}", gate.check(new, old).outcome
        for which, (olds, news) in mix_several(audits, increase, rng).items():
            for rules, gates in {"one rule": alone, "derived rules": derived}.items():
                for allowance, gate in gates.items():
                    yield which, f"five against five, {rules}, allowance {allowance:g}", gate.check(news, olds).outcome


def mix_one(audits: list[fg.Certificates], increase: float, rng: Any) -> dict[str, tuple[Any, Any]]:
    """Return an old and a new audit of the same rows, and of other rows, that differ by a known increase alone."""
    old, new = (audits[seed] for seed in rng.choice(len(audits), 2, replace=False))
    both = np.flatnonzero(find_confident(old) & find_confident(new))
    if early_share(new, both) > early_share(old, both):
        old, new = new, old  # certificates can be made worse, not better
    missing = early_share(old, both) - early_share(new, both)
    rows = rng.choice(both, POWER_ROWS)
    worse = worsen(take(new, rows), missing + increase, early_share(new, both), rng.random(POWER_ROWS))
    confident = np.flatnonzero(find_confident(old))
    first, second = (rng.choice(confident, POWER_ROWS) for _ in range(2))
    other = worsen(take(old, second), increase, early_share(old, confident), rng.random(POWER_ROWS))
    ids = np.arange(POWER_ROWS)
    return {
        "same rows": (name_rows(take(old, rows), ids), name_rows(worse, ids)),
        "other rows": (name_rows(take(old, first), ids), name_rows(other, ids + POWER_ROWS)),
    }


def mix_several(audits: list[fg.Certificates], increase: float, rng: Any) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return five old and five new audits; what is made worse are the same rows in each of the new ones."""
    seeds = rng.permutation(len(audits))[: 2 * RETRAINED]
    olds, news = ([audits[seed] for seed in some] for some in np.split(seeds, 2))
    n = len(audits[0])
    size = round(POWER_ROWS / np.mean([find_confident(one).mean() for one in (*olds, *news)]))
    first, second = rng.integers(0, n, size), rng.integers(0, n, size)
    found = {}
    for which, rows, start in (("same rows", first, 0), ("other rows", second, size)):
        chance, ids = rng.random(size), np.arange(size)
        worse = [worsen(take(one, rows), increase, early_share(one), chance) for one in news]
        found[which] = (
            [name_rows(take(one, first), ids) for one in olds],
            [name_rows(one, ids + start) for one in worse],
        )
    return found


def worsen(certs: fg.Certificates, increase: float, share: float, chance: Any) -> fg.Certificates:
    """Return certificates of which so many more flip early as is expected to raise a share of them by an increase."""
    chosen = find_confident(certs) & ~find_early(certs) & (chance < increase / (1.0 - share))
    budget = np.where(chosen, 1, certs.table.column("flip_budget").to_numpy())
    names = certs.table.column_names
    table = certs.table.set_column(names.index("flip_budget"), "flip_budget", pa.array(budget))
    return fg.Certificates(table, certs.protocol, certs.manifest)


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
        found = count(judge_draws(audits, pairs), **own)
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
    parser.add_argument("--pairs", type=int, default=PAIRS, help="draws of sides of each data set and model")
    parser.add_argument("--draws", type=int, default=POWER_DRAWS, help="mixed draws of each data set and model")
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
