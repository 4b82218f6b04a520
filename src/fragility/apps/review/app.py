"""The application: its addresses, and the process that serves them.

Pages are rendered here and now; a write is answered by sending the browser to a page, so that reloading writes nothing
twice. Nothing is answered that the guards have not let through. The process has one port of this machine, and no other;
it opens the browser, and its end leaves nothing behind.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

import fragility.apps.review.pages as pages
from fragility.analysis.policy import ReviewPolicy
from fragility.apps.guards import BrowserGuards, RequestError, Sessions, random_host
from fragility.apps.review.desk import (
    CaseDesk,
    Desk,
    Form,
    UnnamedError,
    Workbench,
    find_session,
    keep_inside,
    redirect,
    render,
)
from fragility.apps.review.history import (
    DECISIONS,
    DEFAULT_REASONS,
    blind_pairs,
    cohens_kappa,
    escape_formulas,
    tabulate_decisions,
)
from fragility.apps.review.queries import CaseIndex
from fragility.apps.review.rows import WhatIf, match_rows
from fragility.apps.review.searches import ChangeSearch, StabilitySearch
from fragility.apps.review.store import STORE_FILE, ConflictError, DecisionRefusedError, Store, StoreError, check_name
from fragility.apps.review.views import FilterError, View, read_name
from fragility.apps.server import AddressError, Server, bind
from fragility.base.errors import CertificateError, FragilityError
from fragility.models import Model

STATIC = {"review.css": "text/css", "review.js": "text/javascript", "icon.svg": "image/svg+xml"}
EXPORTS = {"decisions.csv": "text/csv; charset=utf-8", "decisions.parquet": "application/vnd.apache.parquet"}
RECENT = 100
BULKS = 50  # actions on many cases that Team lists, beside one's own that still hold
MOST_ASKED = 1000  # second reviews in one request


def create_app(bench: Workbench, sessions: Sessions) -> BrowserGuards:
    """Return the guarded application."""
    desk, one = QueueDesk(bench, sessions), CaseDesk(bench, sessions)
    app = FastAPI(title="fragility review", docs_url=None, redoc_url=None, openapi_url=None)
    reading: dict[str, Callable[..., Response]] = {
        "/": desk.start, "/queue": desk.queue, "/who": desk.who, "/case/{key}": one.case,
        "/case/{key}/state": one.case_state, "/case/{key}/fields": one.case_fields,
        "/case/{key}/missing": one.case_missing, "/bulk": one.bulk, "/team": desk.team, "/values": desk.values,
        "/export/{name}": desk.export, "/static/{name}": desk.static,
    }  # fmt: skip
    writing: dict[str, Callable[..., Response]] = {
        "/who": desk.say_who, "/next": desk.next_case, "/case/{key}/decide": one.decide,
        "/case/{key}/undo": one.undo, "/case/{key}/second": one.ask_second, "/case/{key}/whatif": one.ask_whatif,
        "/bulk": one.decide_all, "/bulk/undo": one.undo_all, "/team/second": desk.ask_seconds,
        "/team/address": desk.make_address,
    }  # fmt: skip
    for method, routes in (("GET", reading), ("POST", writing)):
        for path, answer in routes.items():
            app.add_api_route(path, answer, methods=[method], response_model=None)

    @app.exception_handler(UnnamedError)
    async def ask_name(request: Request, error: Exception) -> Response:
        if request.method != "GET" or _wants_json(request):
            return _refuse(request, desk, RequestError(403, "unnamed", "say who you are first, then try again"))
        query = f"?{request.url.query}" if request.url.query else ""
        return redirect("/who", next=request.url.path + query)

    @app.exception_handler(FragilityError)
    async def explain(request: Request, error: Exception) -> Response:
        status, code = next(answer for kind, answer in ANSWERS.items() if isinstance(error, kind))
        return _refuse(request, desk, RequestError(status, code, error))

    @app.exception_handler(HTTPException)
    @app.exception_handler(Exception)
    async def give_up(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            return _refuse(request, desk, RequestError(404, "not_found", "there is no such page"))
        return _refuse(request, desk, RequestError(status, "unexpected", "this request cannot be answered"))

    return BrowserGuards(app, sessions)


class QueueDesk(Desk):
    """The queue, the team, and the addresses that belong to no case."""

    def __init__(self, bench: Workbench, sessions: Sessions) -> None:
        super().__init__(bench, sessions)
        folder = files("fragility.apps.review") / "static"
        self._static = {name: (folder / name).read_bytes() for name in STATIC}

    def start(self) -> Response:
        return redirect("/queue")

    def who(self, request: Request) -> Response:
        goto = keep_inside(request.query_params.get("next", "/queue"))
        return render(pages.WhoPage(self.frame(request, "Who is reviewing?"), goto, self.store.reviewers()))

    def say_who(self, request: Request, form: Form) -> Response:
        find_session(request).reviewer = check_name(form.one("name"))
        return redirect(keep_inside(form.one("next") or "/queue"))

    def static(self, name: str) -> Response:
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=STATIC[name], headers={"cache-control": "max-age=600"})

    # --- the queue ----------------------------------------------------------------------------------------------

    def queue(self, request: Request) -> Response:
        viewer, view = self.reviewer(request), self.view(request.url.query)
        self.cases.catch_up(self.store)
        try:
            page, alert = self.cases.page(view, viewer), None
        except FilterError as error:  # shown beside the filters, which keep the typed text
            page, alert = None, f"This filter cannot be used: {error}."
        states = {} if page is None else self.store.states_of([queued.case.digest for queued in page.cases])
        notice = self.notice(request, viewer, view)
        none_left = request.query_params.get("none")
        if page is not None and none_left:
            left = self.cases.waiting(view, viewer)
            why = _explain_none(
                view, left, none_left == "skipped", page.done.get("park", 0), self.store.claimed_by_others(viewer)
            )
            notice = replace(notice or pages.DoneNotice(""), also=why) if why else notice
        context = pages.QueuePageContext(
            frame=self.frame(request, "Queue", view, "queue", notice=notice, alert=alert),
            view=view,
            queue=page,
            lines=() if page is None else pages.list_queue(page.cases, states, viewer),
            choices=pages.FilterChoices(
                labels=self.cases.classes,
                groups=self.cases.protocol.group_names,
                fields=self.cases.field_names,
                reviewers=self.store.reviewers(),
                policy=None if self.cases.policy is None else self.cases.policy.sentence(),
                modes=self.cases.modes,
                rehearsed=self.cases.rehearsed,
            ),
            scope=() if page is None else self.scope(view),
            rows=len(self.cases),
            model=self.cases.manifest.model.kind,
        )
        return render(context, 200 if alert is None else 400)

    def values(self, request: Request) -> Response:
        """Answer a filter that asks for the values of a field."""
        self.reviewer(request)
        return JSONResponse(asdict(self.cases.field_values(read_name(request.query_params.get("field", "")))))

    def next_case(self, request: Request, form: Form) -> Response:
        """Give out the next case of the view; on a case that is left undecided, this passes over it."""
        viewer, view, after = self.reviewer(request), self.view(form.one("view")), form.one("after")
        if not after:
            return self.give_next(viewer, view)
        left = self.cases.find(after)
        self.store.release(left.case, viewer)
        return self.give_next(viewer, view, left)

    # --- the team -----------------------------------------------------------------------------------------------

    def team(self, request: Request) -> Response:
        viewer, view = self.reviewer(request), self.view(request.url.query)
        pairs = blind_pairs(self.store.blind_histories())
        recent = self.store.latest(RECENT)
        digests = sorted({entry.case.digest for entry in recent})
        here, states = self.cases.find_all(entry.case for entry in recent), self.store.states_of(digests)
        lines = []
        for entry in recent:
            queued, state = here.get(entry.case.digest), states[entry.case.digest]
            hidden = state.hidden_from(viewer) and entry.reviewer != viewer
            lines.append(pages.TeamLine(entry, None if queued is None else queued.key, hidden))
        tally = self.store.tally()
        counts: dict[str, dict[str, int]] = {}
        for reviewer, action, count in tally.standing:
            counts.setdefault(reviewer, dict.fromkeys(DECISIONS, 0))[action] = count
        context = pages.TeamPage(
            frame=self.frame(request, "Team", view, "team"),
            counts=tuple(sorted(counts.items())),
            pairs=len(pairs),
            agreeing=sum(a == b for a, b in pairs),
            kappa=cohens_kappa(pairs),
            waiting=tally.waiting,
            eligible=tally.eligible,
            recent=tuple(lines),
            bulks=tuple(self.store.bulks(BULKS, viewer)),
            store=str(self.store.path),
        )
        return render(context)

    def ask_seconds(self, request: Request, form: Form) -> Response:
        """Ask for a blind second review of some decided cases, drawn at random."""
        viewer, view, number = self.reviewer(request), self.view(form.one("view")), form.number("number")
        if not 1 <= number <= MOST_ASKED:
            raise DecisionRefusedError(f"ask for 1 to {MOST_ASKED} second reviews")
        self.cases.catch_up(self.store)
        self.store.ask_second(self.cases.draw_eligible(number), viewer)
        return redirect("/team", view.address())

    def make_address(self, request: Request, form: Form) -> Response:
        """Show an address that lets another browser in."""
        self.reviewer(request)
        frame = self.frame(request, "Another browser", self.view(form.one("view")), "team")
        return render(pages.AddressPage(frame, self.sessions.new_address()))

    def export(self, request: Request, name: str) -> Response:
        self.reviewer(request)
        if name not in EXPORTS:
            raise HTTPException(404)
        table = tabulate_decisions(self.store.everything(), history=request.query_params.get("history") == "1")
        sink = io.BytesIO()
        if name.endswith(".csv"):
            pyarrow.csv.write_csv(escape_formulas(table), sink)
        else:
            pyarrow.parquet.write_table(table, sink)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(sink.getvalue(), media_type=EXPORTS[name], headers=headers)


def _explain_none(view: View, waiting: int, skipped: bool, parked: int, claimed: int) -> str:
    """Return why there was no next case, of ``waiting`` in the view; empty if by now there is one."""
    others = waiting - (skipped and waiting > 0)
    if others > claimed:  # it was undone, or another reviewer left it
        return ""
    left = ["the one that you skipped"] if waiting > others else []
    left += [f"{others:,} with other reviewers just now"] if others else []
    noun = {"second": "case that waits for your second review", "park": "parked case"}.get(view.status, "open case")
    words = (
        f"No other {noun} is left in this view than {' and '.join(left)}" if left else f"No {noun} is left in this view"
    )
    return f"{words} ({parked:,} parked)." if parked and view.status != "park" else f"{words}."


# --- errors -------------------------------------------------------------------------------------------------

ANSWERS: dict[type[Exception], tuple[int, str]] = {  # status and code; the first kind that fits
    ConflictError: (409, "conflict"), DecisionRefusedError: (422, "refused"), StoreError: (503, "not_stored"),
    CertificateError: (404, "not_found"), FragilityError: (400, "not_answerable"),
}  # fmt: skip


def _wants_json(request: Request) -> bool:
    return request.url.path.endswith(("/whatif", "/state", "/values", "/fields", "/missing"))


def _refuse(request: Request, desk: Desk, error: RequestError) -> Response:
    if _wants_json(request):
        return JSONResponse(error.to_dict(), error.status)
    return render(pages.ErrorPage(desk.frame(request, "Not possible"), str(error)), error.status)


# --- the process ----------------------------------------------------------------------------------------------

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
    labels: Any = None,
) -> Workbench:  # fmt: skip
    """Open an audit for review, at a row of it if one is named; X, ids and model must be those of the audit.

    labels: of its rows, with the rehearsal of their stress.
    """
    cases = CaseIndex.open(folder, policy, labels)
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
        """Return the last place of this store; a new one if there is none, or if others could read the file."""
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
        """Write it beside the store, for this user only; if that fails, the next start uses a new place."""
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
                if error.errno in NO_IPV6:  # then no other process can listen there either
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
