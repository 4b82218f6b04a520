"""What serving costs, whether its memory stays constant, and what a kill loses; all on this machine's loopback address.

One command per table of benchmarks/README.md; each writes its file in benchmarks/results (--out names another, and
`--out -` none):

    python benchmarks/serving.py throughput     about 4 minutes   serving.json
    python benchmarks/serving.py load           30 minutes        serving_load.json
    python benchmarks/serving.py kills          about 5 minutes   serving_kills.json
    python benchmarks/serving.py seals          about 1 minute    serving_seals.json

The model is LightGBM with 300 trees in a pipeline, trained on Adult; the variable FRAGILITY_DATA names the folder of
adult.parquet. `throughput` asks /v1/certify and /v1/check for single rows over 1, 8 and 64 connections, in turns with
a FastAPI endpoint that only predicts; client and servers share the machine. `load` asks at a steady rate and samples
the server's memory. `kills` ends the server by SIGKILL under load, again and again, then verifies that the log holds
every acknowledged row. `seals` fills one audit folder, 1,000 rows at a time, and times the first and the last seals
in processor time. Servers are started and ended here.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
from lightgbm import LGBMClassifier
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fragility as fg
from fragility.apps.serving.entries import LogEntry
from fragility.apps.serving.log import SealingRules, ServingLog, list_audits, read_events

CONNECTIONS = (1, 8, 64)
RESULTS = Path(__file__).parent / "results"
FILES = {
    "throughput": "serving.json",
    "load": "serving_load.json",
    "kills": "serving_kills.json",
    "seals": "serving_seals.json",
}
GOAL = 0.5  # of the requests per second of the endpoint that only predicts
TRAIN_ROWS, TEST_ROWS = 30_000, 4_000
PREDICT_ONLY = """
import sys, joblib, pandas as pd, uvicorn
from fastapi import FastAPI
model, app = joblib.load(sys.argv[1]), FastAPI()
@app.post("/predict")
def predict(row: dict) -> dict:
    p = model.predict_proba(pd.DataFrame([row]))[0]
    return {"class": str(model.classes_[p.argmax()]), "probability": float(p.max())}
server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
import asyncio
async def main():
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("http://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving
asyncio.run(main())
"""


# --- model and servers ------------------------------------------------------------------------------------------


def make_case(home: Path) -> list[dict[str, Any]]:
    """Train the model, fit its protocol and write both; return rows as JSON values."""
    table = pd.read_parquet(Path(os.environ["FRAGILITY_DATA"]) / "adult.parquet")
    table = table.sample(frac=1.0, random_state=0).reset_index(drop=True)
    X, y = table.drop(columns="income"), table["income"]
    X = X.astype({name: str for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])})
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), make_column_selector(dtype_exclude=np.number)),
        remainder="passthrough",
    )
    model = make_pipeline(encode, LGBMClassifier(n_estimators=300, n_jobs=1, verbose=-1))
    model.fit(X[:TRAIN_ROWS], y[:TRAIN_ROWS])
    joblib.dump(model, home / "model.joblib")
    fg.Protocol.fit(model, X[:TRAIN_ROWS]).save(home / "protocol.json")
    return json.loads(X[TRAIN_ROWS : TRAIN_ROWS + TEST_ROWS].to_json(orient="records"))


@contextmanager
def started(words: Sequence[str], *, kill: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a server that prints its address; yield the process and its port; end it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit(f"the server did not start: {' '.join(words)}")
        yield process, int(address.rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.wait(60)


def serve_words(home: Path, log: Path | None, *more: str) -> list[str]:
    words = ["serve", str(home / "model.joblib"), "--trust", "--protocol", str(home / "protocol.json")]
    words += [] if log is None else ["--log", str(log)]
    return [sys.executable, "-m", "fragility", *words, "--port", "0", *more]


# --- the client -------------------------------------------------------------------------------------------------


class Connection:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, document: Any) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        body = json.dumps(document).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
        return int(answer.split()[1]), await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def ask(port: int, path: str, documents: list[Any], connections: int, seconds: float) -> dict[str, Any]:
    """Ask as fast as the answers come, over so many connections, for some seconds."""
    latencies: list[float] = []
    stop = time.perf_counter() + seconds

    async def run(place: int) -> None:
        connection = Connection(port)
        while (began := time.perf_counter()) < stop:
            status, body = await connection.post(path, documents[place % len(documents)])
            if status != 200:
                raise SystemExit(f"{path} answered {status}: {body[:300]!r}")
            latencies.append(time.perf_counter() - began)
            place += connections
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(run(place) for place in range(connections)))
    took = time.perf_counter() - began
    p50, p99 = np.quantile(latencies, [0.5, 0.99]).tolist()
    return {"requests_per_second": len(latencies) / took, "p50_ms": 1000 * p50, "p99_ms": 1000 * p99}


# --- what is measured -------------------------------------------------------------------------------------------


def measure_throughput(
    home: Path, rows: list[dict[str, Any]], seconds: float, rounds: int, wait: str, numbers: Sequence[int]
) -> dict[str, Any]:
    """Requests per second and latencies of several kinds of requests, in turns; the median of the rounds."""
    field = next(iter(rows[0]))
    kinds = {
        "predict": ("/predict", rows),
        "certify": ("/v1/certify", [{"row": row} for row in rows]),
        "check": ("/v1/check", [{"row": row, "missing": []} for row in rows]),
        "check, one field missing": ("/v1/check", [{"row": row, "missing": [field]} for row in rows]),
    }
    kinds |= {f"{kind}, not logged": kinds[kind] for kind in ("certify", "check")}
    found: dict[str, dict[int, list[dict[str, Any]]]] = {kind: {n: [] for n in numbers} for kind in kinds}
    script = home / "predict_only.py"
    script.write_text(PREDICT_ONLY)
    with (
        started([sys.executable, str(script), str(home / "model.joblib")]) as (_, predicting),
        started(serve_words(home, home / "log", "--wait", wait)) as (_, serving),
        started(serve_words(home, None, "--wait", wait)) as (_, unlogged),
    ):
        for _ in range(rounds):
            for connections in numbers:
                for kind, (path, documents) in kinds.items():
                    port = {"predict": predicting}.get(kind, unlogged if kind.endswith("not logged") else serving)
                    asyncio.run(ask(port, path, documents, connections, 0.5))  # warm
                    one = asyncio.run(ask(port, path, documents, connections, seconds))
                    found[kind][connections].append(one)
                    print(f"{connections:3d} connections, {kind}: {one}", file=sys.stderr, flush=True)
    results = []
    for kind, by_connections in found.items():
        for connections, runs in by_connections.items():
            base = found["predict"][connections]
            ratios = [a["requests_per_second"] / b["requests_per_second"] for a, b in zip(runs, base, strict=True)]
            medians = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
            results.append(
                {"kind": kind, "connections": connections, **medians, "of_predict": float(np.median(ratios))}
            )
    return {"wait": wait, "seconds": seconds, "rounds": rounds, "goal": GOAL, "results": results}


async def load_steadily(process: psutil.Process, port: int, rows: list[Any], minutes: float, rate: float) -> Any:
    """Ask at a rate, checks and certificates in turns; return memory samples and counts."""
    connections = [Connection(port) for _ in range(4)]
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    samples: list[list[float]] = []
    counts = {"answered": 0, "refused": 0, "late": 0}
    latencies: list[float] = []

    async def one(place: int) -> None:
        connection = await free.get()
        began = time.perf_counter()
        document = {"row": rows[place % len(rows)]}
        path = "/v1/check" if place % 2 else "/v1/certify"
        status, _ = await connection.post(path, document)
        counts["answered" if status == 200 else "refused"] += 1
        latencies.append(time.perf_counter() - began)
        free.put_nowait(connection)

    began, place, tasks = time.perf_counter(), 0, set[asyncio.Task[None]]()
    while (now := time.perf_counter() - began) < 60 * minutes:
        if not samples or now - samples[-1][0] >= 15:
            samples.append([round(now, 1), process.memory_info().rss / 2**20, counts["answered"]])
        if place < now * rate:
            if len(tasks) > 64:  # the server is slower than the rate: what cannot be asked in time is counted
                counts["late"] += 1
            else:
                task = asyncio.create_task(one(place))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            place += 1
        else:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return samples, counts, latencies


def measure_load(home: Path, rows: list[dict[str, Any]], minutes: float, rate: float) -> dict[str, Any]:
    """Memory of a server under steady load, the log sealed all the while."""
    log = home / "log"
    with started(serve_words(home, log, "--seal-rows", "500", "--roll", "5000")) as (process, port):
        watched = psutil.Process(process.pid)
        samples, counts, latencies = asyncio.run(load_steadily(watched, port, rows, minutes, rate))
    times, memory = np.array([s[0] for s in samples]), np.array([s[1] for s in samples])
    third = len(memory) // 3
    settled = times >= times[-1] / 3
    slope = float(np.polyfit(times[settled] / 60, memory[settled], 1)[0]) if settled.sum() > 2 else float("nan")
    return {
        "minutes": minutes,
        "rate": rate,
        **counts,
        "p50_ms": 1000 * float(np.quantile(latencies, 0.5)),
        "p99_ms": 1000 * float(np.quantile(latencies, 0.99)),
        "memory_mib": {
            "start": float(memory[0]),
            "median_of_first_third": float(np.median(memory[:third] if third else memory)),
            "median_of_last_third": float(np.median(memory[-third:] if third else memory)),
            "largest": float(memory.max()),
            "mib_per_minute_after_first_third": slope,
        },
        "rows_in_log": sum(batch.num_rows for batch in read_events(log, ["id"])),
        "audit_folders": len(list_audits(log)),
        "samples": samples,
    }


async def ask_until_killed(process: subprocess.Popen[str], port: int, rows: list[Any], after: float) -> set[str]:
    """Ask over 8 connections; kill the server after some seconds; return the ids that were acknowledged."""
    acknowledged: set[str] = set()

    async def run(place: int) -> None:
        connection = Connection(port)
        try:
            while True:
                own_id = f"{process.pid}-{place}"
                path = "/v1/check" if place % 3 == 0 else "/v1/certify"
                status, _ = await connection.post(path, {"row": rows[place % len(rows)], "id": own_id})
                if status == 200:
                    acknowledged.add(own_id)
                place += 8
        except (OSError, asyncio.IncompleteReadError):
            return

    asking = [asyncio.create_task(run(place)) for place in range(8)]
    await asyncio.sleep(after)
    process.send_signal(signal.SIGKILL)
    await asyncio.gather(*asking)
    return acknowledged


def measure_kills(home: Path, rows: list[dict[str, Any]], kills: int) -> dict[str, Any]:
    """What the log holds after so many kills under load."""
    log, rng = home / "log", np.random.default_rng(0)
    rules = ("--seal-rows", "40", "--seal-every", "1s", "--roll", "300")
    acknowledged: set[str] = set()
    for number in range(kills):
        with started(serve_words(home, log, *rules), kill=True) as (process, port):
            own = asyncio.run(ask_until_killed(process, port, rows, float(rng.uniform(0.2, 3.0))))
        print(f"kill {number + 1}: {len(own)} rows acknowledged", file=sys.stderr, flush=True)
        acknowledged |= own
    with started(serve_words(home, log, *rules)):
        pass  # recovers, seals and ends
    found = [own_id for batch in read_events(log, ["id"]) for own_id in batch.column("id").to_pylist()]
    model, verified = joblib.load(home / "model.joblib"), 0
    for audit in list_audits(log):
        stored = pq.read_table(log / "rows" / audit.name).to_pandas().set_index("id")
        outcome = fg.verify(audit, model, stored, progress=False)
        if not outcome:
            raise SystemExit(str(outcome))
        verified += len(fg.open_audit(audit))
    return {
        "kills": kills,
        "acknowledged": len(acknowledged),
        "acknowledged_and_lost": len(acknowledged - set(found)),
        "logged": len(found),
        "logged_twice": len(found) - len(set(found)),
        "certificates_verified": verified,
        "audit_folders": len(list_audits(log)),
    }


def measure_seals(home: Path, rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """Processor time of the first and the last ten seals of an audit folder, and of opening it again."""
    model, protocol = joblib.load(home / "model.joblib"), fg.Protocol.load(home / "protocol.json")
    auditor, frame, seals = fg.Auditor(model, protocol), pd.DataFrame(rows[:1000]), list[float]()
    manifest = auditor.certify(frame[:1]).manifest
    with ServingLog.open(home / "log", protocol, manifest, SealingRules(roll=count + 1)) as log:
        for place in range(count // 1000):
            own = frame.set_axis([f"{place}-{i}" for i in range(1000)])
            log.append(LogEntry.of(auditor.certify(own), own, time=dt.datetime.now(dt.UTC)))
            began = time.process_time()
            log.seal()
            seals.append(time.process_time() - began)
    began = time.process_time()
    ServingLog.open(home / "log", protocol, manifest, SealingRules(roll=count + 1)).close()
    opening = time.process_time() - began
    first, last = float(np.median(seals[:10])), float(np.median(seals[-10:]))
    seconds = {"first_seals": first, "last_seals": last, "opening": opening}
    return {"rows": count, "rows_per_seal": 1000, "processor_seconds": seconds, "last_of_first": last / first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(FILES))
    add = parser.add_argument
    add("--seconds", type=float, default=6.0, help="throughput: of each measurement (default: 6)")
    add("--rounds", type=int, default=3, help="throughput: measurements of each kind; medians are shown (default: 3)")
    add("--wait", default="0ms", help="throughput: how long the server lets a row wait for others (default: 0ms)")
    add("--connections", type=int, nargs="+", default=CONNECTIONS, help="throughput (default: 1 8 64)")
    add("--minutes", type=float, default=30.0, help="load: how long (default: 30)")
    add("--rate", type=float, default=20.0, help="load: requests per second (default: 20)")
    add("--kills", type=int, default=20, help="kills: how many (default: 20)")
    add("--rows", type=int, default=100_000, help="seals: rows of the audit folder (default: 100000)")
    add("--out", default=None, help="the file to write (default: that of benchmarks/results; - for none)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        rows = make_case(home)
        if given.what == "throughput":
            result = measure_throughput(home, rows, given.seconds, given.rounds, given.wait, given.connections)
        elif given.what == "load":
            result = measure_load(home, rows, given.minutes, given.rate)
        elif given.what == "kills":
            result = measure_kills(home, rows, given.kills)
        else:
            result = measure_seals(home, rows, given.rows)
    text = json.dumps(result, indent=1)
    print(text)
    if given.out != "-":
        Path(given.out or RESULTS / FILES[given.what]).write_text(text + "\n")


if __name__ == "__main__":
    main()
