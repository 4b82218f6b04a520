"""The process: one port of this machine, and no other; a token that only the first address holds; the browser."""

from __future__ import annotations

import errno
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from fragility.errors import FragilityError
from fragility.models import Model
from fragility.policy import ReviewPolicy
from fragility.review.app import Workbench, create_app
from fragility.review.queries import CaseIndex
from fragility.review.rows import given_rows
from fragility.review.store import Store
from fragility.review.whatif import WhatIf

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8808
STORE_FILE = "review.sqlite"


class PortError(FragilityError):
    """The port asked for cannot be used."""


@dataclass(frozen=True)
class Given:
    """The rows of an audit and, perhaps, its model."""

    X: Any
    ids: Any
    model: Model | None = None


def open_workbench(folder: Path, *, store: Path | None, policy: ReviewPolicy | None, given: Given | None) -> Workbench:
    """Open an audit for review; everything that can be wrong with what was given is found here."""
    cases = CaseIndex.open(folder, policy)
    try:
        rows = whatif = None
        if given is not None:
            rows = given_rows(given.X, given.ids, cases.names(), cases.protocol, cases.manifest, given.model)
            cases.add_fields(rows.to_arrow())
            if given.model is not None:
                whatif = WhatIf.of(given.model, cases.protocol, rows, cases.manifest)
        return Workbench(cases, Store.open(store or folder / STORE_FILE), rows, whatif)
    except BaseException:
        cases.close()
        raise


def listen(port: int | None) -> socket.socket:
    """Return a socket on the loopback address only: on this port, or by default on the usual one or any free one."""
    wanted = (USUAL_PORT, 0) if port is None else (port,)
    for number in wanted:
        try:
            return _bound(number)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or number == wanted[-1]:
                raise PortError(f"cannot listen on port {number}: {error.strerror}; choose another --port") from error
    raise AssertionError


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # there it would let another program listen on the same port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((LOOPBACK, port))
    except BaseException:
        found.close()
        raise
    return found


def serve(bench: Workbench, listening: socket.socket, *, announce: Callable[[str], None], browser: bool) -> None:
    """Serve until interrupted; ``announce`` is told the first address."""
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(32)
    config = uvicorn.Config(
        create_app(bench, token=token, port=port),
        log_level="warning",
        access_log=False,  # the first address holds the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
    )
    address = f"http://{LOOPBACK}:{port}/?token={token}"
    listening.listen()  # whoever is told the address may come at once
    announce(address)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # how it is meant to end
    finally:
        bench.store.close()
        bench.cases.close()
