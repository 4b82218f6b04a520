"""How soon does `fragility watch` see an outage, how often does it cry wolf, and what does a long log cost?

    FRAGILITY_DATA=... python benchmarks/watch.py outages [--starts 20] [--quiet 200]   # about 5 minutes
    FRAGILITY_DATA=... python benchmarks/watch.py varying [--quiet 200]                 # about 2 minutes
    python benchmarks/watch.py log [--rows 1000000] [--small 100000] [--work DIR]       # about 10 minutes

`outages`: a LightGBM model on half of Adult and of HELOC. A replay is 30 days of 500 decisions, drawn with replacement
from the other half; the first 7 days are the reference. An outage of one of ten kinds starts at a random decision of
days 10 to 20 and lasts to the end. The rows that it strikes are certified again, as the model decides them. Counted is
how many decisions it takes until any alarm; an alarm before the outage, or in a quiet replay, is false. On the same
replays, PSI: each day and field against the reference (deciles, categories, missing apart), an alarm above 0.2.

`varying`: quiet replays in which one field is missing at a rate drawn anew for each day (Beta, mean 3%), and replays in
which that field is then lost in a further 20% of decisions.

`log`: certificates of Credit-G, repeated with new ids and times over a year, are written by the log of `fragility
serve` itself. Reading and writing the page are timed in a process of their own, with its peak memory. Results are
added to benchmarks/results/watch.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import fragility as fg
from fragility.apps.serving.entries import LogEntry
from fragility.apps.serving.log import SealingRules, ServingLog
from fragility.apps.watching.events import EventBatch, cut_by_day, find_outside, find_repeats, lay_out_log, make_batch
from fragility.apps.watching.following import LOOK_ROWS, Follower, FollowSettings
from fragility.deciding.decisions import fill_column, find_standins
from fragility.protocol import bind
from fragility.scores import EARLY

RESULTS = Path(__file__).with_name("results") / "watch.json"
TARGETS = {"adult": "income", "heloc": "RiskPerformance"}
DAYS, PER_DAY, REFERENCE_DAYS = 30, 500, 7
ALPHA, HORIZON = 0.05, 365
PSI_LIMIT, PSI_BINS, PSI_LEAST = 0.2, 10, 1e-4
SEAL_ROWS = 1000  # of a part of the log, as the service seals by default
FIGURES = ("confidence", "flip_budget", "exposure", "predicted")


# --- outages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A model, its test rows with their certificates, and what stands in for missing fields."""

    name: str
    model: Any
    protocol: fg.Protocol
    rows: pd.DataFrame
    figures: pd.DataFrame
    standins: dict[str, Any]

    @property
    def fields(self) -> list[str]:
        return [field.name for field in self.protocol.fields]

    @property
    def numbers(self) -> list[str]:
        return [each.field for each in self.protocol.modes.ranges]


def make_world(name: str) -> World:
    from lightgbm import LGBMClassifier
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    table = pd.read_parquet(Path(os.environ["FRAGILITY_DATA"]) / f"{name}.parquet")
    X, y = table.drop(columns=TARGETS[name]), table[TARGETS[name]]
    order = np.random.default_rng(7).permutation(len(X))[:24_000]
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    words = [column for column in X.columns if X[column].dtype.kind not in "if"]
    encode = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    prepare = make_column_transformer((encode, words), remainder="passthrough", verbose_feature_names_out=False)
    estimator = LGBMClassifier(n_estimators=100, n_jobs=1, random_state=0, verbose=-1)
    model = make_pipeline(prepare.set_output(transform="pandas"), estimator).fit(X.iloc[train], y.iloc[train])
    protocol = fg.Protocol.fit(model, X.iloc[train])
    rows = X.iloc[test].reset_index(drop=True)
    standins = find_standins(bind(fg.Model.wrap(model), rows[:1], protocol), protocol)
    return World(name, model, protocol, rows, certify(model, protocol, rows), standins)


def certify(model: Any, protocol: fg.Protocol, rows: pd.DataFrame) -> pd.DataFrame:
    found = fg.audit(model, rows.reset_index(drop=True), protocol, progress=False, lattice=False)
    return found.table.select(list(FIGURES)).to_pandas()


@dataclass
class Struck:
    """Rows of a replay after an outage: values as they arrive, and what the log says of them."""

    rows: pd.DataFrame
    missing: dict[str, Any]  # field -> mask
    stale: dict[str, Any]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Struck:
        return cls(rows.copy(), {}, {})


Outage = Callable[[World, Struck, Any, Any], list[str]]  # strike rows from a mask of those after the start; fields


def lose(share: float, fields: int | str = 1) -> Outage:
    def strike(world: World, struck: Struck, late: Any, rng: Any) -> list[str]:
        count = len(world.fields) // 2 if fields == "half" else int(fields)
        names = [str(name) for name in rng.choice(world.fields, count, replace=False)]
        hit = late & (rng.random(len(late)) < share)
        struck.missing |= {name: hit for name in names}
        return names

    return strike


def age(share: float) -> Outage:
    def strike(world: World, struck: Struck, late: Any, rng: Any) -> list[str]:
        name = str(rng.choice(world.fields))
        hit = late & (rng.random(len(late)) < share)
        struck.rows.loc[hit, name] = rng.permutation(world.rows[name].to_numpy())[: hit.sum()]
        struck.stale[name] = hit
        return [name]

    return strike


def replace_number(share: float, change: Callable[[Any], Any]) -> Outage:
    def strike(world: World, struck: Struck, late: Any, rng: Any) -> list[str]:
        name = str(rng.choice(world.numbers))
        hit = late & (rng.random(len(late)) < share)
        struck.rows.loc[hit, name] = change(struck.rows.loc[hit, name])
        return [name]

    return strike


def freeze(world: World, struck: Struck, late: Any, rng: Any) -> list[str]:
    name = str(rng.choice(world.fields))
    struck.rows.loc[late, name] = struck.rows.loc[~late, name].iloc[-1]
    return [name]


def swap(world: World, struck: Struck, late: Any, rng: Any) -> list[str]:
    name = str(rng.choice(world.fields))
    hit = late & (rng.random(len(late)) < 0.3)
    struck.rows.loc[hit, name] = rng.choice(world.rows[name].to_numpy(), hit.sum())
    return [name]


KINDS: dict[str, Outage] = {
    "one field missing, 1%": lose(0.01),
    "one field missing, 5%": lose(0.05),
    "one field missing, 20%": lose(0.20),
    "three fields missing together, 5%": lose(0.05, 3),
    "half of the fields missing together, 1%": lose(0.01, "half"),
    "one field stale and marked so, 10%": age(0.10),
    "a number becomes -999, 2%": replace_number(0.02, lambda values: -999),
    "a number in another unit (times 12), 10%": replace_number(0.10, lambda values: values * 12),
    "one field frozen at its last value, not marked": freeze,
    "one field from another record, 30%, not marked": swap,
}


def vary(spread: float, share: float = 0.0, mean: float = 0.03) -> Outage:
    """Lose one field at another rate each day, and in a further share of the late decisions."""

    def strike(world: World, struck: Struck, late: Any, rng: Any) -> list[str]:
        name, strength = str(rng.choice(world.fields)), mean * (1.0 - mean) / spread**2 - 1.0
        rates = np.repeat(rng.beta(mean * strength, (1.0 - mean) * strength, DAYS), PER_DAY)
        struck.missing[name] = (rng.random(len(late)) < rates) | (late & (rng.random(len(late)) < share))
        return [name]

    return strike


def replay(world: World, strike: Outage | None, seed: list[int], *, quiet: bool = False) -> dict[str, Any]:
    """Return rows until detection by watch and by PSI; None where nothing was seen. quiet: nothing begins late."""
    rng = np.random.default_rng(seed)
    n = DAYS * PER_DAY
    chosen = rng.integers(0, len(world.rows), n)
    struck = Struck.of(world.rows.iloc[chosen].reset_index(drop=True))
    figures = world.figures.iloc[chosen].reset_index(drop=True)
    start = n if strike is None or quiet else int(rng.integers(9 * PER_DAY, 20 * PER_DAY))
    names: list[str] = []
    if strike is not None:
        names = strike(world, struck, np.arange(n) >= start, rng)
        decided = struck.rows.copy()
        fields = {field.name: field for field in world.protocol.fields}
        for name, hit in struck.missing.items():
            decided[name] = fill_column(decided[name], hit.tolist(), world.standins[name], fields[name])
        touched = (decided != world.rows.iloc[chosen].reset_index(drop=True)).any(axis=1).to_numpy()
        if touched.any():
            again = certify(world.model, world.protocol, decided[touched])
            for column in FIGURES:
                figures.loc[touched, column] = again[column].to_numpy()
    seen = {"watch": follow(world, struck, figures, chosen), "psi": measure_psi(world, struck)}
    told = {}
    for way, alarms in seen.items():
        before = [row for row, _ in alarms if row <= start]
        after = sorted((row, name) for row, name in alarms if row > start)
        told[way] = {
            "false": bool(before),
            "rows": after[0][0] - start if after else None,
            "named": bool(after) and any(name in names for row, name in after if row == after[0][0]),
        }
    return told


def follow(world: World, struck: Struck, figures: pd.DataFrame, chosen: Any) -> list[tuple[int, str]]:
    """Return (decisions read, field) of each alarm of watch."""
    layout = lay_out_log(world.protocol, fg.Model.wrap(world.model).classes, ranged=True)
    n = len(figures)

    def states(masks: dict[str, Any]) -> Any:
        none = np.zeros(n, dtype=bool)
        return np.stack([masks.get(name, none) for name in layout.fields], axis=1)

    outside = find_outside({name: struck.rows[name] for name in layout.ranged}, layout.ranged, world.protocol)
    missing = states(struck.missing)
    batch: EventBatch = make_batch(
        layout,
        day=np.repeat(np.arange(DAYS), PER_DAY),
        decision=figures["predicted"].tolist(),
        confidence=figures["confidence"].to_numpy(dtype=float),
        early=figures["flip_budget"].to_numpy(dtype=int) <= EARLY,
        means=[figures["exposure"].to_numpy(dtype=float)],
        min_confidence=0.9,
        missing=missing,
        stale=states(struck.stale),
        outside=outside,
        repeated=find_repeats([pd.factorize(struck.rows[name])[0] for name in layout.fields], missing),
    )
    follower = Follower(layout, FollowSettings(ALPHA, HORIZON, REFERENCE_DAYS, 0.0))
    for piece in cut_by_day([batch], LOOK_ROWS):
        follower.follow(piece)
    return [(each.raised_at, str(each.stream.column.name)) for each in follower.episodes]


def measure_psi(world: World, struck: Struck) -> list[tuple[int, str]]:
    """Return (decisions read, field) of each day and field whose population stability index exceeds the limit."""
    alarms = []
    for name in world.fields:
        values = struck.rows[name].reset_index(drop=True)
        early = values[: REFERENCE_DAYS * PER_DAY]
        if name in world.numbers:
            edges = np.unique(np.quantile(early.to_numpy(dtype=float), np.arange(1, PSI_BINS) / PSI_BINS))
            codes = np.searchsorted(edges, values.to_numpy(dtype=float), side="right")
            bins = len(edges) + 1
        else:
            codes, known = pd.factorize(values)
            bins = len(known)
        if name in struck.missing:
            codes = np.where(struck.missing[name], bins, codes)
        counts = np.zeros((DAYS, bins + 1))
        np.add.at(counts, (np.repeat(np.arange(DAYS), PER_DAY), codes), 1)
        p = np.maximum(counts[:REFERENCE_DAYS].sum(axis=0) / (REFERENCE_DAYS * PER_DAY), PSI_LEAST)
        q = np.maximum(counts[REFERENCE_DAYS:] / PER_DAY, PSI_LEAST)
        index = ((q - p) * np.log(q / p)).sum(axis=1)
        alarms += [((REFERENCE_DAYS + day + 1) * PER_DAY, name) for day in np.flatnonzero(index > PSI_LIMIT)]
    return sorted(alarms)


def run_outages(starts: int, quiet: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "days": DAYS, "decisions_per_day": PER_DAY, "reference_days": REFERENCE_DAYS, "alpha": ALPHA,
        "horizon": HORIZON, "look_every": LOOK_ROWS, "psi_limit": PSI_LIMIT, "starts": starts, "quiet_replays": quiet,
        "quiet": [], "outages": [],
    }  # fmt: skip
    for place, name in enumerate(TARGETS):
        world = make_world(name)
        calm = [replay(world, None, [place, 0, seed]) for seed in range(quiet)]
        line = {"data": name, **{way: sum(each[way]["false"] for each in calm) / quiet for way in ("watch", "psi")}}
        report["quiet"].append(line)
        print(f"{name}: false alarms in quiet replays: watch {line['watch']:.1%}, PSI {line['psi']:.1%}", flush=True)
        for kind, strike in enumerate(KINDS.values(), 1):
            found = [replay(world, strike, [place, kind, seed]) for seed in range(starts)]
            line = {"data": name, "kind": list(KINDS)[kind - 1]}
            for way in ("watch", "psi"):
                rows = [each[way]["rows"] for each in found]
                known = sorted(row if row is not None else np.inf for row in rows)
                line[way] = {
                    "found": sum(row is not None for row in rows),
                    "median_rows": finite(np.median(known)),
                    "worst_rows": finite(known[-1]),
                    "named": sum(each[way]["named"] for each in found),
                    "false_before": sum(each[way]["false"] for each in found),
                }
            report["outages"].append(line)
            print(f"{name}, {line['kind']}: {say(line['watch'], starts)} | PSI {say(line['psi'], starts)}", flush=True)
    return report


def run_varying(quiet: int) -> list[dict[str, Any]]:
    report = []
    for place, name in enumerate(TARGETS):
        world = make_world(name)
        for at, spread in enumerate((0.01, 0.03)):
            calm = [replay(world, vary(spread), [place, 20 + at, seed], quiet=True) for seed in range(quiet)]
            lost = [replay(world, vary(spread, 0.2), [place, 30 + at, seed]) for seed in range(20)]
            rows = [each["watch"]["rows"] for each in lost]
            line = {
                "data": name, "mean": 0.03, "spread": spread, "quiet_replays": quiet,
                "false": sum(each["watch"]["false"] for each in calm) / quiet,
                "found": sum(row is not None for row in rows), "of": len(rows),
                "median_rows": finite(np.median([np.inf if row is None else row for row in rows])),
            }  # fmt: skip
            report.append(line)
            print(line, flush=True)
    return report


def finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def say(found: dict[str, Any], starts: int) -> str:
    rows = "-" if found["median_rows"] is None else f"{found['median_rows']:,.0f}"
    return f"{found['found']}/{starts} found, median {rows} rows, field named {found['named']}"


# --- a long log -----------------------------------------------------------------------------------------------


def write_long_log(folder: Path, rows: int, seed: int = 0) -> None:
    """Write a log of so many decisions over a year; the last tenth has an outage."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = fg.load_credit_g()
    X = X.select_dtypes("number")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    block, rng = SEAL_ROWS, np.random.default_rng(seed)
    given = X.sample(block, replace=True, random_state=seed).reset_index(drop=True)
    certs = fg.audit(model, given, protocol, ids=[str(i) for i in range(block)], progress=False, lattice=False)
    entry = LogEntry.of(certs, given, time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    names = [field.name for field in protocol.fields]
    first, year = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.timedelta(days=365)
    rules = SealingRules(seal_rows=block, roll=100_000)
    with ServingLog.open(folder, protocol, certs.manifest, rules) as log:
        for start in range(0, rows, block):
            count = min(block, rows - start)
            ids = pa.array([str(start + i) for i in range(count)])
            share = 0.05 if start >= 0.9 * rows else 0.002
            gone = [[names[0]] if hit else [] for hit in rng.random(count) < share]
            times = pa.array([first + year * ((start + i) / rows) for i in range(count)], entry.events["time"].type)
            events = {name: entry.events[name].slice(0, count) for name in entry.events.schema.names}
            events |= {"id": ids, "time": times, "missing": pa.array(gone, entry.events["missing"].type)}
            events["p_change"] = pa.array([0.1 if each else None for each in gone], pa.float64())
            renamed = [
                pa.record_batch([ids, *batch.slice(0, count).columns[1:]], schema=batch.schema)
                for batch in (entry.certificates, entry.rows)
            ]
            told = pa.record_batch([events[name] for name in entry.events.schema.names], schema=entry.events.schema)
            log.append(LogEntry(*renamed, told, 0, 0))
            log.seal()


MEASURE = r"""
import json, re, sys, time
from pathlib import Path
import fragility as fg
def peak():  # of this process alone: getrusage begins with that of its parent
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
def queued():  # seconds that this process was ready to run while the machine ran others
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
fg.watch
loaded, waited = peak(), queued()
start, used = time.perf_counter(), time.process_time()
found = fg.watch(sys.argv[1])
read = time.perf_counter() - start
page = found.to_html()
print(json.dumps({"rows": sum(found.decisions), "read_s": read, "page_s": time.perf_counter() - start,
    "processor_s": time.process_time() - used, "queued_s": queued() - waited, "page_bytes": len(page),
    "alarms": len(found.alarms), "loaded_mib": loaded, "peak_mib": peak()}))
"""


def run_log(rows: int, small: int, work: Path | None) -> list[dict[str, Any]]:
    """Measure logs of two sizes; of five runs in turns the fastest counts, since others use the machine too."""
    found = []
    with tempfile.TemporaryDirectory() as home:
        sizes = {size: (work or Path(home)) / str(size) for size in (small, rows)}
        for size, folder in sizes.items():
            if not folder.exists():
                began = time.perf_counter()
                write_long_log(folder, size)
                print(f"{size:,} decisions logged in {time.perf_counter() - began:.0f} s", flush=True)
        runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
        for _ in range(5):
            for size, folder in sizes.items():
                words = [sys.executable, "-c", MEASURE, str(folder)]
                runs[size].append(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
        for size in sizes:
            line = min(runs[size], key=lambda run: run["page_s"])
            line["slowest_s"] = max(run["page_s"] for run in runs[size])
            found.append(line)
            print(
                f"{line['rows']:,} decisions: page in {line['page_s']:.1f} s ({line['processor_s']:.1f} s of processor "
                f"time, {line['queued_s']:.1f} s waiting for one), peak {line['peak_mib']:.0f} MiB "
                f"({line['loaded_mib']:.0f} before), page of "
                f"{line['page_bytes']:,} bytes",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("outages", "varying", "log"))
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--quiet", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--work", type=Path, help="where the logs are kept, to be measured again without writing them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    made = (
        run_outages(given.starts, given.quiet)
        if given.what == "outages"
        else run_varying(given.quiet)
        if given.what == "varying"
        else run_log(given.rows, given.small, given.work)
    )
    document = json.loads(given.out.read_text()) if given.out.exists() else {}
    document[given.what] = made
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
