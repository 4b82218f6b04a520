"""What Ray and Spark cost over one process, and rows a second and core: the figures of the guide's cost model.

Covertype is resampled with fresh ids and audited under LightGBM: by one process on one core, by one process on all
cores, by the workers of Ray and by those of Spark on this machine, each in a process of its own. All four folders must
be equal.

    python benchmarks/cluster.py --rows 100000 --out benchmarks/results/cluster.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import joblib

import fragility as fg
from fragility.auditing.ray import RayWorkers, _connected
from fragility.auditing.spark import SparkWorkers, _session
from fragility.base.canonical import digest_bytes
from fragility_paper.bench.streaming import ID, peak_mebibytes, prepare, resample

WAYS = ("one core", "one process", "ray", "spark")
WORKERS = {"ray": b"ray::_Worker", "spark": b"pyspark.daemon"}  # how their processes call themselves
PART_ROWS = 5000  # so that two workers share even a small input evenly


class WorkerMemory:
    """The largest memory that any worker of a cluster on this machine has had, looked up twice a second."""

    def __init__(self, way: str) -> None:
        self._name, self._peak, self._done = WORKERS.get(way), 0, threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    @property
    def mebibytes(self) -> int | None:
        return None if self._name is None else self._peak // 1024

    def _look(self) -> None:
        while self._name is not None and not self._done.wait(0.5):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it may have ended meanwhile
                    if self._name in (process / "cmdline").read_bytes():
                        found = re.search(r"VmHWM:\s+(\d+)", (process / "status").read_text())
                        self._peak = max(self._peak, int(found[1]) if found else 0)


def audit(home: Path, way: str, rows: int) -> dict[str, Any]:
    """Audit the file in this process's way; starting the cluster is measured apart from the audit."""
    model, protocol = joblib.load(home / "model.joblib"), fg.Protocol.load(home / "protocol.json")
    cores, load, workers = os.cpu_count() or 1, os.getloadavg()[0], None
    with ExitStack() as running:
        start = time.perf_counter()
        if way == "ray":
            running.enter_context(_connected(cores))
            workers = RayWorkers(cores)
        elif way == "spark":
            workers = SparkWorkers(cores, running.enter_context(_session(None, cores)))
        begun, computed = time.perf_counter(), time.process_time()
        out = home / way.replace(" ", "-")
        with WorkerMemory(way) as memory:
            fg.audit_files(
                model, home / f"{rows}.parquet", protocol, out, id_column=ID, part_rows=PART_ROWS, workers=workers
            )
        done, computed = time.perf_counter(), time.process_time() - computed
    return {
        "way": way,
        "rows": rows,
        "cores": 1 if way == "one core" else cores,
        "start_seconds": round(begun - start, 1),
        "seconds": round(done - begun, 1),
        "rows_per_second": round(rows / (done - begun)),
        "driver_cpu_seconds": round(computed, 1),  # for one process, all there is
        "peak_mib": peak_mebibytes(),
        "peak_worker_mib": memory.mebibytes,
        "load_before": round(load, 1),  # of other processes; figures of a shared machine are lower bounds
        "manifest": digest_bytes((out / "manifest.json").read_bytes()),
    }


def measure(home: Path, way: str, rows: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(home), "--way", way, "--rows", str(rows)]
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"} if way == "one core" else {}
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**free, **threads})
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(audit(options.child, options.way, options.rows)))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        resample(prepare(home), options.rows, home / f"{options.rows}.parquet")
        found = []
        for way in WAYS:
            found.append(measure(home, way, options.rows))
            print(json.dumps(found[-1]), flush=True)
        assert len({line["manifest"] for line in found}) == 1, "the folders differ"
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
