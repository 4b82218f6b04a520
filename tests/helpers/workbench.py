"""A workbench over a small audit, asked in this process or started as one of its own."""

import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from starlette.testclient import TestClient

import fragility as fg
from fragility.review.app import Workbench, create_app
from fragility.review.queries import CaseIndex
from fragility.review.rows import given_rows
from fragility.review.store import Store
from fragility.review.whatif import WhatIf

PORT = 8808
TOKEN = "the-token-of-these-tests"
ADDRESS = f"http://127.0.0.1:{PORT}"


@dataclass(frozen=True)
class Audit:
    """An audit in a folder, with what it was made of."""

    folder: Path
    model: object
    X: pd.DataFrame
    certs: fg.Certificates


def saved_audit(folder: Path, model: object, X: pd.DataFrame, protocol: fg.Protocol, **options) -> Audit:
    certs = fg.audit(model, X, protocol, engine="blackbox", **options)
    certs.save(folder)
    return Audit(folder, model, X, certs)


@contextmanager
def workbench(audit: Audit, store: Path, *, data: bool = True, policy: fg.ReviewPolicy | None = None):
    """The workbench of an audit, with its model and rows unless told otherwise."""
    cases = CaseIndex.open(audit.folder, policy)
    decisions = Store.open(store)
    rows = whatif = None
    if data:
        model = fg.Model.wrap(audit.model)
        ids = audit.certs.table.column("id").to_pylist()
        rows = given_rows(audit.X, ids, cases.names(), cases.protocol, cases.manifest, model)
        cases.add_fields(rows.to_arrow())
        whatif = WhatIf.of(model, cases.protocol, rows, cases.manifest)
    try:
        yield Workbench(cases, decisions, rows, whatif)
    finally:
        decisions.close()
        cases.close()


def stranger(bench: Workbench, **headers: str) -> TestClient:
    """Someone who reaches the port and knows nothing."""
    app = create_app(bench, token=TOKEN, port=PORT)
    return TestClient(app, base_url=ADDRESS, headers=headers, follow_redirects=False, raise_server_exceptions=False)


def reviewer(bench: Workbench, name: str) -> TestClient:
    """A reviewer's browser, who opened the first address and said who they are."""
    client = stranger(bench, origin=ADDRESS)
    assert client.get("/", params={"token": TOKEN}).status_code == 303
    assert client.post("/who", data={"name": name, "next": "/queue"}).headers["location"] == "/queue"
    return client


def keys(page: str) -> list[str]:
    """The cases that a page of the queue lists."""
    return re.findall(r'href="/case/([^?"]+)[^"]*" data-line', page)


@contextmanager
def started(audit: Audit, store: Path, *words: object):
    """The command itself, as a process; yields the process and the address it prints."""
    command = [sys.executable, "-m", "fragility", "review", audit.folder, "--store", store, "--no-open", *words]
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
