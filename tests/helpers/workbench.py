"""A workbench over a small audit, asked in this process or started as one of its own."""

import http.client
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pandas as pd
from starlette.testclient import TestClient

import fragility as fg
from fragility.apps.guards import Sessions
from fragility.apps.review.app import create_app
from fragility.apps.review.desk import Workbench
from fragility.apps.review.queries import CaseIndex
from fragility.apps.review.rows import WhatIf, match_rows
from fragility.apps.review.searches import ChangeSearch, StabilitySearch
from fragility.apps.review.store import Store

HOST, PORT = "review-of-these-tests.localhost", 8808
ADDRESS = f"http://{HOST}:{PORT}"


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
def workbench(audit: Audit, store: Path, *, data: bool = True, policy: fg.ReviewPolicy | None = None, labels=None):
    """The workbench of an audit, with its model and rows unless told otherwise."""
    cases = CaseIndex.open(audit.folder, policy, labels)
    decisions = Store.open(store)
    rows = whatif = stability = changes = None
    if data:
        model = fg.Model.wrap(audit.model)
        ids = audit.certs.table.column("id").to_pylist()
        rows = match_rows(audit.X, ids, cases.names(), cases.protocol, cases.manifest, model)
        cases.add_fields(rows.to_arrow())
        whatif = WhatIf(model, cases.protocol, rows, cases.manifest)
        stability, changes = StabilitySearch(whatif), ChangeSearch(whatif)
    try:
        yield Workbench(cases, decisions, rows, whatif, stability, changes)
    finally:
        decisions.close()
        cases.close()


def stranger(bench: Workbench, sessions: Sessions | None = None, **headers: str) -> TestClient:
    """Someone who reaches the port and knows nothing."""
    app = create_app(bench, sessions or Sessions(HOST, PORT))
    return TestClient(app, base_url=ADDRESS, headers=headers, follow_redirects=False, raise_server_exceptions=False)


def reviewer(bench: Workbench, name: str) -> TestClient:
    """A reviewer's browser, who opened the first address and said who they are."""
    sessions = Sessions(HOST, PORT)
    client = stranger(bench, sessions, origin=ADDRESS)
    assert client.get(sessions.new_address()).status_code == 200
    assert client.post("/who", data={"name": name, "next": "/queue"}).headers["location"] == "/queue"
    return client


def keys(page: str) -> list[str]:
    """The cases that a page of the queue lists."""
    return re.findall(r'href="/case/([^?"]+)[^"]*" data-line', page)


class Client:
    """A browser's requests and cookies, over one connection to a workbench that runs on its own."""

    def __init__(self, address: str, name: str) -> None:
        self.place = urlsplit(address).netloc  # a name that browsers resolve, and this system may not
        self.connection = http.client.HTTPConnection("127.0.0.1", int(self.place.rpartition(":")[2]), timeout=30)
        self.cookies: dict[str, str] = {}
        assert self.ask("GET", f"/?{urlsplit(address).query}")[0] == 200
        assert self.post("/who", {"name": name})[0] == 303

    def ask(self, method: str, path: str, body: str | None = None, kind: str = "") -> tuple[int, bytes]:
        headers = {"host": self.place, "cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        if body is not None:
            headers |= {"origin": f"http://{self.place}", "content-type": kind}
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return answer.status, answer.read()

    def post(self, path: str, words: dict[str, str]) -> tuple[int, bytes]:
        return self.ask("POST", path, urlencode(words), "application/x-www-form-urlencoded")

    def new_address(self) -> str:
        """Return an address that lets another browser in."""
        self.connection.close()  # the server may have closed it, too
        return re.search(r"http://\S+token=[\w-]+", self.post("/team/address", {"view": ""})[1].decode())[0]


@contextmanager
def started(audit: Audit, store: Path, *words: object, browser: str | None = None, **variables: str):
    """The command itself, as a process; yields the process and the address it prints.

    ``browser`` is the command that opens a browser; ``variables`` are added to the environment.
    """
    command = [sys.executable, "-m", "fragility", "review", audit.folder, "--store", store, *words]
    process = subprocess.Popen(
        [str(word) for word in (command if browser else [*command, "--no-open"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **({"BROWSER": browser} if browser else {}), **variables},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), process.stderr.read()
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
