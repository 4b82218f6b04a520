"""The review workbench over a large audit: how long a page of the queue takes, and how much memory the process holds.

    python benchmarks/review.py [--rows 1000000] [--repeats 7] [--out benchmarks/results/review.json]

A real audit of 1,000 credit applications is repeated with fresh ids until it has the rows asked for, and written as any
audit is. `fragility review` is then started on it as a user would start it; a client asks for pages of the queue under
many views, each several times in a random order, with 10,000 decisions in the store. Times are of whole pages over the
wire, until the last byte. Memory is the largest that the process ever held (VmHWM), start included.
At the end, 120,000 more decisions are made at once, and Team is asked for, the first time and again.
Goals: a median page under 300 ms, memory under 500 MB, Team under 500 ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

import fragility as fg
from fragility.apps.review.history import Case
from fragility.apps.review.store import Store

GOAL_MS, GOAL_MB, GOAL_TEAM_MS = 300.0, 500.0, 500.0
DECIDED = 10_000
BULK = 120_000
VIEWS = {
    "first page": "",
    "top 5%": "budget=5",
    "all confident": "budget=all",
    "all predictions": "budget=all&confident=0",
    "by FDS": "by=fds&budget=10",
    "hours times cases": "budget=time&hours=8&rate=30",
    "deep page": "budget=all&confident=0&page={middle}",
    "one class": "budget=all&label=bad",
    "k* = 2": "budget=all&k=2",
    "flipped by a group": "budget=all&group=duration",
    "open cases": "budget=all&status=open",
    "accepted cases": "budget=all&status=accept",
    "of a reviewer": "budget=all&reviewer=Ana",
    "search by id": "search=777",
    "sorted by confidence": "budget=all&sort=confidence&page=5",
}


def small_audit() -> fg.Certificates:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    X, y = fg.load_credit_g()
    nominal = list(X.select_dtypes(exclude="number"))
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), nominal), remainder=StandardScaler())
    model = make_pipeline(encode, GradientBoostingClassifier(random_state=0)).fit(X[:700], y[:700])
    return fg.audit(model, X, fg.Protocol.fit(model, X[:700], baseline="typical"), engine="blackbox", progress=False)


def write_large(folder: Path, rows: int) -> fg.Certificates:
    """Write an audit of many rows: the small one's claims again and again, under ids of their own."""
    small = small_audit()
    chosen = np.random.default_rng(0).integers(0, len(small), size=rows)
    claims = replace(small.claims.take(chosen.tolist()), ids=tuple(range(rows)))
    manifest = replace(small.manifest, input=replace(small.manifest.input, rows=rows))
    large = fg.Certificates.build(claims, small.protocol, manifest)
    large.save(folder)
    return large


def write_decisions(path: Path, certs: fg.Certificates) -> None:
    audit, digests = certs.manifest.root_digest, certs.table.column("digest")
    step = max(1, len(certs) // DECIDED)
    cases = [Case(digests[i].as_py(), audit, i, str(i)) for i in range(0, len(certs), step)]
    store = Store.open(path)
    store.decide_all([(case, ()) for case in cases[::2]], "Ana", "accept")
    store.decide_all([(case, ()) for case in cases[1::2]], "Ben", "escalate")
    store.close()


def write_bulk(path: Path, certs: fg.Certificates) -> int:
    """Decide about many cases at once, beside those decided; return about how many."""
    audit, digests = certs.manifest.root_digest, certs.table.column("digest")
    store = Store.open(path)
    decided = {place for _, _, place in store.changes().cases}
    places = [place for place in range(len(certs)) if place not in decided][:BULK]
    store.decide_all([(Case(digests[i].as_py(), audit, i, str(i)), ()) for i in places], "Cleo", "accept")
    store.close()
    return len(places)


class Client:
    def __init__(self, address: str) -> None:
        self.place = urlsplit(address).netloc
        self.connection = http.client.HTTPConnection("127.0.0.1", int(self.place.rpartition(":")[2]), timeout=120)
        self.cookies: list[str] = []
        self.ask(f"/?{urlsplit(address).query}")
        self.ask("/who", urlencode({"name": "Ana"}))

    def ask(self, path: str, body: str | None = None) -> tuple[float, int, bytes]:
        headers = {"host": self.place, "cookie": "; ".join(self.cookies)}
        if body is not None:
            headers |= {"origin": f"http://{self.place}", "content-type": "application/x-www-form-urlencoded"}
        started = time.perf_counter()
        self.connection.request("GET" if body is None else "POST", path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        seconds = time.perf_counter() - started
        self.cookies += [v.split(";")[0] for k, v in answer.getheaders() if k.lower() == "set-cookie"]
        return seconds, answer.status, content


def peak_megabytes(pid: int) -> float | None:
    """The largest resident memory a process ever had; known on Linux only."""
    status = Path(f"/proc/{pid}/status")
    return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024 if status.exists() else None  # type: ignore[index]


def measure(folder: Path, store: Path, repeats: int, middle: int, certs: fg.Certificates) -> dict[str, Any]:
    words = [sys.executable, "-m", "fragility", "review", str(folder), "--store", str(store), "--no-open"]
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        client = Client(process.stdout.readline().strip())
        ready = time.perf_counter() - started
        asked = [name for name in VIEWS for _ in range(repeats)]
        random.Random(0).shuffle(asked)
        seconds: dict[str, list[float]] = {name: [] for name in VIEWS}
        for name in asked:
            took, status, page = client.ask(f"/queue?{VIEWS[name].format(middle=middle)}")
            assert status == 200 and b"data-line" in page, name
            seconds[name].append(took)
        key = re.search(rb'href="(/case/[^?"]+)', client.ask("/queue")[2])[1].decode()  # type: ignore[index]
        cases = [client.ask(key)[0] for _ in range(repeats)]
        team = [client.ask("/team")[0] for _ in range(repeats)]
        bulk = write_bulk(store, certs)
        client.connection.close()  # which the server has closed meanwhile
        team_first, status, page = client.ask("/team")
        assert status == 200 and f"{bulk:,}".encode() in page
        team_again = [client.ask("/team")[0] for _ in range(repeats)]
        return {
            "ready_s": round(ready, 2),
            "median_ms": round(1000 * statistics.median(t for times in seconds.values() for t in times), 1),
            "slowest_view_median_ms": round(1000 * max(statistics.median(times) for times in seconds.values()), 1),
            "case_median_ms": round(1000 * statistics.median(cases), 1),
            "team_median_ms": round(1000 * statistics.median(team), 1),
            "bulk_decisions": bulk,
            "team_after_bulk_first_ms": round(1000 * team_first, 1),
            "team_after_bulk_median_ms": round(1000 * statistics.median(team_again), 1),
            "peak_mb": peak_megabytes(process.pid),
            "views_median_ms": {name: round(1000 * statistics.median(times), 1) for name, times in seconds.items()},
        }
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, store = Path(scratch) / "audit", Path(scratch) / "review.sqlite"
        certs = write_large(folder, given.rows)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        write_decisions(store, certs)
        found = {"rows": given.rows, "decisions": DECIDED, "audit_mb": round(size, 1), "cores": os.cpu_count()}
        found["load_before"] = round(os.getloadavg()[0], 1)
        found |= measure(folder, store, given.repeats, max(1, given.rows // 100), certs)
    found |= {"goals": {"median_ms": GOAL_MS, "peak_mb": GOAL_MB, "team_ms": GOAL_TEAM_MS}}
    text = json.dumps(found, indent=2)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
