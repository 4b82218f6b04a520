"""Addresses, and what happens at them.

Pages are rendered here and now; a write is answered by sending the browser to a page, so that reloading writes nothing
twice. Nothing is answered that the guards have not let through.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.resources import files

import pyarrow.csv
import pyarrow.parquet
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

import fragility.apps.review.pages as pages
from fragility.apps.guards import BrowserGuards, RequestError, Sessions
from fragility.apps.review.case_desk import CaseDesk
from fragility.apps.review.desk import Desk, Form, UnnamedError, Workbench, find_session, keep_inside, redirect, render
from fragility.apps.review.history import DECISIONS, blind_pairs, cohens_kappa, escape_formulas, tabulate_decisions
from fragility.apps.review.store import ConflictError, DecisionRefusedError, StoreError, check_name
from fragility.apps.review.views import FilterError, View, read_name
from fragility.base.errors import CertificateError, FragilityError

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
        except FilterError as error:  # said beside the filters, which keep what was typed
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
            ),
            scope=() if page is None else self.scope(view),
            rows=len(self.cases),
            model=self.cases.manifest.model.kind,
        )
        return render(context, 200 if alert is None else 400)

    def values(self, request: Request) -> Response:
        """Answer a filter that asks what a field holds."""
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
