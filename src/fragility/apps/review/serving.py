"""The process: one port of this machine, and no other; the browser; and an end that leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fragility.analysis.policy import ReviewPolicy
from fragility.apps.guards import Sessions, random_host
from fragility.apps.review.app import create_app
from fragility.apps.review.desk import Workbench
from fragility.apps.review.history import DEFAULT_REASONS
from fragility.apps.review.missing import ChangeSearch
from fragility.apps.review.queries import CaseIndex
from fragility.apps.review.rows import WhatIf, match_rows
from fragility.apps.review.stability import StabilitySearch
from fragility.apps.review.store import STORE_FILE, Store
from fragility.apps.server import AddressError, Server, bind
from fragility.models import Model

LOOPBACK, LOOPBACK_V6 = "127.0.0.1", "::1"
USUAL_PORT = 8808
ATTEMPTS = 20  # free ports tried until one is free on both loopback addresses
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
HOST = re.compile(r"review-[0-9a-f]{20}\.localhost")
PATIENCE = 10  # seconds that answers under way are given at the end
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"><title>fragility review</title></head>
<body><p><a href="{address}">Open the workbench</a></p></body></html>
"""


def open_workbench(
    folder: Path, *, store: Path | None, policy: ReviewPolicy | None, X: Any = None, ids: Any = None,
    model: Model | None = None, reasons: Mapping[str, str] = DEFAULT_REASONS, row: str | None = None,
) -> Workbench:  # fmt: skip
    """Open an audit for review, at a row of it if one is named; X, ids and model must be those of the audit."""
    cases = CaseIndex.open(folder, policy)
    try:
        rows = whatif = stability = changes = None
        if X is not None:
            rows = match_rows(X, ids, cases.names(), cases.protocol, cases.manifest, model)
            cases.add_fields(rows.to_arrow())
            if model is not None:
                whatif = WhatIf(model, cases.protocol, rows, cases.manifest)
                stability, changes = StabilitySearch(whatif), ChangeSearch(whatif)
        first_page = "/" if row is None else f"/case/{cases.find_row(row).key}"
        kept = Store.open(store or folder / STORE_FILE)
        return Workbench(cases, kept, rows, whatif, stability, changes, reasons, first_page)
    except BaseException:
        cases.close()
        raise


# --- the port -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a workbench is served: a bookmark and the drafts that a browser keeps belong to a name and a port."""

    host: str
    port: int | None = None

    @classmethod
    def recall(cls, store: Path) -> Place:
        """Return where this store was served last; a new place if it never was, or if others could read the file."""
        path = _name_place(store)
        try:
            readable_by_others = os.name == "posix" and path.stat().st_mode & 0o077
            document = json.loads(path.read_text(encoding="utf-8"))
            host, port = document["host"], document["port"]
            if not readable_by_others and HOST.fullmatch(host) and type(port) is int and 0 < port < 65536:
                return cls(host, port)
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return cls(random_host())

    def keep(self, store: Path) -> None:
        """Write it beside the store, for this user alone; where that cannot be, the next start takes a new place."""
        path = _name_place(store)
        with suppress(OSError):
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump({"host": self.host, "port": self.port}, stream)


def _name_place(store: Path) -> Path:
    return store.with_name(f"{store.name}.address")


def listen(port: int | None, usual: int | None = None) -> tuple[socket.socket, ...]:
    """Return sockets on the loopback addresses only: on this port, or by default on a usual one or any free one.

    Browsers take a name under .localhost to ::1 first. Whoever listened there on our port would be given the token, so
    the port must be ours on both addresses.
    """
    numbers = (usual or USUAL_PORT, *[0] * ATTEMPTS) if port is None else (port,)
    for attempt, number in enumerate(numbers, start=1):
        try:
            first = bind(socket.AF_INET, (LOOPBACK, number))
            try:
                return first, bind(socket.AF_INET6, (LOOPBACK_V6, first.getsockname()[1]))
            except OSError as error:
                if error.errno in NO_IPV6:  # then nobody else can listen there either
                    return (first,)
                first.close()
                raise
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or attempt == len(numbers):
                raise AddressError(
                    f"cannot listen on port {number}: {error.strerror}; choose another --port"
                ) from error
    raise AssertionError


# --- the browser --------------------------------------------------------------------------------------------


class RedirectFile:
    """A file that leads the browser to the first address.

    Everyone on a machine can read the command lines of its processes, a browser's included. So the browser is given the
    name of this file, which only its owner can read, and not the address with the token.
    """

    def __init__(self) -> None:
        self._path: Path | None = None

    def open(self, address: str) -> None:
        """Open the browser, which may take a while."""
        handle, name = tempfile.mkstemp(prefix="fragility-review-", suffix=".html")  # of mode 0600
        self._path = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(REDIRECT.format(address=escape(address)))
        threading.Thread(target=webbrowser.open, args=[self._path.as_uri()], daemon=True).start()

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


# --- from the start to the end ------------------------------------------------------------------------------


def serve(
    bench: Workbench, listening: tuple[socket.socket, ...], *, announce: Callable[[str], None], browser: bool,
    plain: bool = False,
) -> None:  # fmt: skip
    """Serve until a signal ends it; ``announce`` is called with the first address, under 127.0.0.1 if ``plain``."""
    with ExitStack() as at_exit:
        at_exit.callback(bench.cases.close)
        at_exit.callback(bench.store.close)
        redirect = RedirectFile()
        at_exit.callback(redirect.remove)
        place = Place(Place.recall(bench.store.path).host, listening[0].getsockname()[1])
        place.keep(bench.store.path)
        sessions = Sessions(LOOPBACK if plain else place.host, place.port or 0, on_entry=redirect.remove)
        address = sessions.new_address(bench.first_page)

        def start() -> None:
            announce(address)
            if browser:
                redirect.open(address)

        Server(create_app(bench, sessions), on_start=start, patience=PATIENCE).run(sockets=list(listening))
