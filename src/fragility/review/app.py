"""Addresses, and what happens at them.

Pages are rendered here and now; a write is answered by sending the browser to a page, so that reloading writes nothing
twice. Nothing is answered that the guards have not let through.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

import pyarrow.csv
import pyarrow.parquet
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

import fragility.review.pages as pages
from fragility.certificates.intervals import intervals_of_row
from fragility.errors import CertificateError, DataError, FragilityError
from fragility.review.guards import SESSION, Guards, Session, Sessions
from fragility.review.history import (
    DECISIONS,
    DEFAULT_REASONS,
    OPEN,
    WORDS,
    Case,
    blind_pairs,
    case_state,
    cohens_kappa,
    escape_formulas,
    tabulate_decisions,
)
from fragility.review.queries import CANDIDATES, CaseIndex, QueuedCase, case_key
from fragility.review.rows import GivenRows, WhatIf
from fragility.review.stability import MovableField, StabilitySearch, show_fields
from fragility.review.store import ConflictError, RefusedError, Store, StoreError, check_name
from fragility.review.views import FilterError, View, ViewError, read_name

STATIC = {"review.css": "text/css", "review.js": "text/javascript", "icon.svg": "image/svg+xml"}
EXPORTS = {"decisions.csv": "text/csv; charset=utf-8", "decisions.parquet": "application/vnd.apache.parquet"}
RECENT = 100
BULKS = 50  # actions on many cases that Team lists, beside one's own that still hold
MOST_TICKED = 200  # cases that are listed with a box each
PATIENCE = 8.0  # seconds that an answer waits for a search, which goes on without it
LONGEST_NUMBER = 15  # digits
MOST_ASKED = 1000  # second reviews in one request


@dataclass(frozen=True)
class Workbench:
    """Everything the pages need."""

    cases: CaseIndex
    store: Store
    rows: GivenRows | None = None
    whatif: WhatIf | None = None
    stability: StabilitySearch | None = None  # where there is a model to ask
    reasons: Mapping[str, str] = field(default_factory=lambda: DEFAULT_REASONS)
    first_page: str = "/"  # where the first address leads


class UnnamedError(FragilityError):
    """The reviewer has not said who they are."""


class FormFields(dict[str, list[str]]):
    """The fields of a form."""

    def one(self, name: str) -> str:
        return self.get(name, [""])[-1]

    def note(self) -> str:
        return self.one("note").replace("\r\n", "\n").strip()

    def number(self, name: str) -> int:
        """Return a whole number of the form."""
        text = self.one(name)
        if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER):
            raise DataError(f"{name} must be a whole number, got {text[:20]!r}")
        return int(text)


async def read_form(request: Request) -> FormFields:
    """Return the fields of a form that was sent."""
    try:
        text = (await request.body()).decode("utf-8")
        return FormFields(parse_qs(text, keep_blank_values=True, max_num_fields=500, errors="strict"))
    except ValueError as error:
        raise DataError("the form cannot be read") from error


async def read_json_body(request: Request) -> Any:
    """Return the JSON that was sent."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise DataError("JSON was expected") from error


Form = Annotated[FormFields, Depends(read_form)]
Json = Annotated[Any, Depends(read_json_body)]


def create_app(bench: Workbench, sessions: Sessions) -> Guards:
    """Return the guarded application."""
    desk = _Desk(bench, sessions)
    app = FastAPI(title="fragility review", docs_url=None, redoc_url=None, openapi_url=None)
    reading: dict[str, Callable[..., Response]] = {
        "/": desk.start, "/queue": desk.queue, "/who": desk.who, "/case/{key}": desk.case,
        "/case/{key}/state": desk.case_state, "/case/{key}/fields": desk.case_fields, "/bulk": desk.bulk,
        "/team": desk.team,
        "/values": desk.values, "/export/{name}": desk.export, "/static/{name}": desk.static,
    }  # fmt: skip
    writing: dict[str, Callable[..., Response]] = {
        "/who": desk.say_who, "/next": desk.next_case, "/case/{key}/decide": desk.decide,
        "/case/{key}/undo": desk.undo, "/case/{key}/second": desk.ask_second, "/case/{key}/whatif": desk.ask_whatif,
        "/bulk": desk.decide_all, "/bulk/undo": desk.undo_all, "/team/second": desk.ask_seconds,
        "/team/address": desk.make_address,
    }  # fmt: skip
    for method, routes in (("GET", reading), ("POST", writing)):
        for path, answer in routes.items():
            app.add_api_route(path, answer, methods=[method], response_model=None)

    @app.exception_handler(UnnamedError)
    async def ask_name(request: Request, error: Exception) -> Response:
        if request.method != "GET" or _wants_json(request):
            return _refuse(request, desk, 403, "say who you are first, then try again")
        query = f"?{request.url.query}" if request.url.query else ""
        return _redirect("/who", next=request.url.path + query)

    @app.exception_handler(FragilityError)
    async def explain(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in STATUS if isinstance(error, kind))
        return _refuse(request, desk, status, str(error))

    @app.exception_handler(HTTPException)
    @app.exception_handler(Exception)
    async def give_up(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        sentence = "there is no such page" if status == 404 else "this request cannot be answered"
        return _refuse(request, desk, status, sentence)

    return Guards(app, sessions)


class _Desk:
    """What happens at each address."""

    def __init__(self, bench: Workbench, sessions: Sessions) -> None:
        self.bench, self.cases, self.store = bench, bench.cases, bench.store
        self.sessions = sessions
        folder = files("fragility.review") / "static"
        self._static = {name: (folder / name).read_bytes() for name in STATIC}

    # --- who is there, and what they look at ------------------------------------------------------------------

    def reviewer(self, request: Request) -> str:
        name = _find_session(request).reviewer
        if name is None:
            raise UnnamedError("say who you are first")
        return name

    def view(self, query: str) -> View:
        return View.from_address(query).with_default_budget(query, "20" if self.cases.policy is None else "policy")

    def frame(self, request: Request, title: str, view: View | None = None, tab: str = "", **more: Any) -> pages.Frame:
        written = "" if view is None else view.address(page=1)
        return pages.Frame(
            title, self.cases.folder.resolve().name, _find_session(request).reviewer, written, tab, **more
        )

    def start(self) -> Response:
        return _redirect("/queue")

    def who(self, request: Request) -> Response:
        goto = _keep_inside(request.query_params.get("next", "/queue"))
        return _render(pages.WhoPage(self.frame(request, "Who is reviewing?"), goto, self.store.reviewers()))

    def say_who(self, request: Request, form: Form) -> Response:
        _find_session(request).reviewer = check_name(form.one("name"))
        return _redirect(_keep_inside(form.one("next") or "/queue"))

    def static(self, name: str) -> Response:
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=STATIC[name], headers={"cache-control": "max-age=600"})

    # --- the queue ----------------------------------------------------------------------------------------------

    def queue(self, request: Request) -> Response:
        viewer, view = self.reviewer(request), self.view(request.url.query)
        self.cases.catch_up(self.store)
        try:
            found, alert = self.cases.page(view, viewer), None
        except FilterError as error:  # said beside the filters, which keep what was typed
            found, alert = None, f"This filter cannot be used: {error}."
        states = {} if found is None else self.store.states_of([queued.case.digest for queued in found.cases])
        notice = self.notice(request, viewer, view)
        asked = request.query_params.get("none")
        if found is not None and asked:
            left = self.cases.waiting(view, viewer)
            why = _explain_none(
                view, left, asked == "skipped", found.done.get("park", 0), self.store.claimed_by_others(viewer)
            )
            notice = replace(notice or pages.Notice(""), also=why) if why else notice
        context = pages.QueuePageContext(
            frame=self.frame(request, "Queue", view, "queue", notice=notice, alert=alert),
            view=view,
            queue=found,
            lines=() if found is None else pages.list_queue(found.cases, states, viewer),
            choices=pages.Choices(
                labels=self.cases.classes,
                groups=self.cases.protocol.group_names,
                fields=self.cases.field_names,
                reviewers=self.store.reviewers(),
                policy=None if self.cases.policy is None else self.cases.policy.sentence(),
                modes=self.cases.modes,
            ),
            scope=() if found is None else self.scope(view),
            rows=len(self.cases),
            model=self.cases.manifest.model.kind,
        )
        return _render(context, 200 if alert is None else 400)

    def scope(self, view: View) -> tuple[tuple[str, str], ...]:
        """Return which predictions a view is about, in words."""
        fields = [(name, self.cases.wanted(name, text).in_words()) for name, text in view.where]
        return pages.describe_view(view, len(self.cases), fields)

    def values(self, request: Request) -> Response:
        """Answer a filter that asks what a field holds."""
        self.reviewer(request)
        return JSONResponse(asdict(self.cases.field_values(read_name(request.query_params.get("field", "")))))

    def notice(self, request: Request, viewer: str, view: View) -> pages.Notice | None:
        """Return what the address says was just done; the number of an entry, which only its writer may undo."""
        number, bulk = request.query_params.get("done", ""), request.query_params.get("bulk", "")
        if not number and not bulk:
            return None
        entry = self.store.entry(self.store.newest_of(viewer))  # an older one was followed by others: it is no news
        if entry is None or entry.case.audit != self.cases.audit:
            return None
        if number == str(entry.seq):
            text, name = f"{WORDS.get(entry.action, entry.action)}.", entry.case.row_id
            if entry.action == "undo":
                return pages.Notice(text, name)
            fields = {"entry": number, "view": view.address()}
            return pages.Notice(text, name, f"/case/{case_key(entry.case)}/undo", fields)
        if bulk and bulk == entry.bulk:
            text = f"{self.store.standing_of(bulk, viewer):,} decisions saved."
            return pages.Notice(text, None, "/bulk/undo", {"bulk": bulk, "view": view.address()})
        return None

    def next_case(self, request: Request, form: Form) -> Response:
        """Give out the next case of the view; on a case that is left undecided, this passes over it."""
        viewer, view, after = self.reviewer(request), self.view(form.one("view")), form.one("after")
        if not after:
            return self._next(viewer, view)
        left = self.cases.find(after)
        self.store.release(left.case, viewer)
        return self._next(viewer, view, left)

    def _next(self, viewer: str, view: View, left: QueuedCase | None = None, done: int | None = None) -> Response:
        """Send the reviewer to the next case of the view that is nobody's, and make it theirs for a while.

        The next one comes after the case they leave; when there is none after it, the first of the view.
        """
        self.cases.catch_up(self.store)
        skipped = False
        for start in (left, None) if left else (None,):
            skip = 0
            while candidates := self.cases.candidates(view, viewer, start, skip):
                free = [case for case in candidates if left is None or case.digest != left.case.digest]
                skipped |= len(free) < len(candidates)
                given = self.store.claim(free, viewer, view.awaited)
                if given is not None:
                    return _redirect(f"/case/{case_key(given)}", view.address(), done=done)
                skip += CANDIDATES
        return _redirect("/queue", view.address(), done=done, none="skipped" if skipped else "1")

    # --- one case -----------------------------------------------------------------------------------------------

    def case(self, request: Request, key: str) -> Response:
        viewer, view = self.reviewer(request), self.view(request.url.query)
        return self._case(request, viewer, view, self.cases.find(key))

    def _case(
        self, request: Request, viewer: str, view: View, queued: QueuedCase, status: int = 200,
        alert: str | None = None, draft: Mapping[str, Any] | None = None,
    ) -> Response:  # fmt: skip
        self.cases.catch_up(self.store)
        entries = self.store.entries(queued.case.digest)
        state = case_state(entries)
        history = pages.list_history(entries, state, viewer)
        hidden = state.hidden_from(viewer)
        row = self.cases.certificate_row(queued)
        story = pages.tell_story(row, queued, self.cases.protocol, self.cases.manifest)
        before, after = self.cases.neighbours(view, viewer, queued)
        similar, similar_total = self.cases.similar(queued)
        states = self.store.states_of([other.case.digest for other in similar])
        place, total = self.cases.position(view, viewer, queued)
        claimed = self.store.claimed_by(queued.case.digest)
        others = [name for name in self.cases.protocol.group_names if name not in story.path]
        rows = self.bench.rows
        context = pages.CasePage(
            frame=self.frame(
                request, f"Case {queued.case.row_id}", view, "case", alert=alert,
                notice=self.notice(request, viewer, view),
            ),
            view=view,
            queued=queued,
            status="second" if hidden else state.status,
            story=story,
            place=place,
            total=total,
            fields=None if rows is None else tuple(rows.shown(queued.case.place)),
            groups=(*story.path, *others),
            whatif=self.bench.whatif is not None,
            movable=self._movable(row),
            history=history,
            seen=max((line.entry.seq for line in history), default=0),
            hidden=hidden,
            second=state.second,
            mine=state.of(viewer),
            claimed_by=None if claimed == viewer else claimed,
            before=before,
            after=after,
            similar=pages.list_queue(similar, states, viewer),
            similar_total=similar_total,
            reasons=self.bench.reasons,
            draft=draft or {},
        )  # fmt: skip
        return _render(context, status)

    def _movable(self, row: Mapping[str, Any]) -> tuple[MovableField, ...] | None:
        """Return how far the fields of a case may move, as its certificate says; None if a search is to say it."""
        declared, protocol = self.cases.manifest.intervals, self.cases.protocol
        found = None if declared is None else intervals_of_row(row, declared, protocol)
        if found is None or (self.bench.stability is not None and len(found) < len(protocol.fields)):
            return None
        return show_fields(found.values(), protocol)

    def case_state(self, request: Request, key: str) -> Response:
        """Answer a page that asks whether someone else wrote about its case."""
        viewer, queued = self.reviewer(request), self.cases.find(key)
        entries = self.store.entries(queued.case.digest)
        lines = pages.list_history(entries, case_state(entries), viewer)
        newest = lines[0].entry if lines else None
        return JSONResponse({"last": newest.seq if newest else 0, "by": newest.reviewer if newest else None})

    def case_fields(self, request: Request, key: str) -> Response:
        """Answer a page that asks how far the values of its case may move; with 202 while that is being searched."""
        self.reviewer(request)
        queued = self.cases.find(key)
        if self.bench.stability is None:
            raise CertificateError("the model was not given; start the workbench with --model and --data")
        found = self.bench.stability.find(queued.case.place, PATIENCE)
        if found is None:
            return Response(status_code=202)
        return _render(pages.FieldsPart(self.frame(request, ""), show_fields(found, self.cases.protocol)))

    def decide(self, request: Request, key: str, form: Form) -> Response:
        viewer, queued = self.reviewer(request), self.cases.find(key)
        view = replace(self.view(form.one("view")), stay=form.one("advance") != "1")
        action, note, reason = form.one("action"), form.note(), self._reason(form)
        groups = self._groups(form) if action == "reacquire" else ()
        seen = form.number("seen") if "seen" in form else None
        draft = {"note": note, "groups": groups, "reason": reason}
        try:
            entry = self.store.write(queued.case, viewer, action, groups, note, reason, seen)
        except ConflictError as conflict:
            last = conflict.newer[-1]
            wrote = f"{last.reviewer} wrote about this case meanwhile: {WORDS.get(last.action, last.action)}"
            alert = f"Not saved. {wrote}. Look again; what you decide now will stand beside it."
            return self._case(request, viewer, view, queued, 409, alert, draft)
        except RefusedError as refused:
            return self._case(request, viewer, view, queued, 422, f"Not saved: {refused}.", draft)
        if view.stay or action == "comment":
            return _redirect(f"/case/{key}", view.address(), done=entry.seq)
        return self._next(viewer, view, queued, done=entry.seq)

    def _reason(self, form: FormFields) -> str:
        reason = form.one("reason")
        if reason and reason not in self.bench.reasons:
            raise RefusedError(f"there is no reason {reason[:40]!r}; known are {', '.join(self.bench.reasons)}")
        return reason

    def _groups(self, form: FormFields) -> tuple[str, ...]:
        chosen = [read_name(name) for name in form.get("group", [])]
        unknown = [name for name in chosen if name not in self.cases.protocol.group_names]
        if unknown:
            raise RefusedError(f"this protocol has no evidence group {unknown[0][:60]!r}")
        return tuple(chosen)

    def undo(self, request: Request, key: str, form: Form) -> Response:
        viewer, view = self.reviewer(request), self.view(form.one("view"))
        queued, entry = self.cases.find(key), self.store.entry(form.number("entry"))
        if entry is None or entry.case.digest != queued.case.digest:
            raise RefusedError("there is nothing to undo at this number")
        undone = self.store.undo(entry.seq, viewer)
        return _redirect(f"/case/{key}", view.address(), done=undone.seq)

    def ask_second(self, request: Request, key: str, form: Form) -> Response:
        viewer, view, queued = self.reviewer(request), self.view(form.one("view")), self.cases.find(key)
        if self.store.ask_second([queued.case], viewer) == 0:
            raise RefusedError("a second review is for a case on which one reviewer has decided")
        return _redirect(f"/case/{key}", view.address())

    def ask_whatif(self, request: Request, key: str, body: Json) -> Response:
        self.reviewer(request)
        queued = self.cases.find(key)
        if self.bench.whatif is None:
            raise CertificateError("the model was not given; start the workbench with --model and --data")
        given = body if isinstance(body, dict) else {}
        severities, values = given.get("severities"), given.get("values", {})
        if not isinstance(severities, dict):
            raise DataError("severities must be an object from group to a number")
        if not isinstance(values, dict):
            raise DataError("values must be an object from field to a value")
        groups, fields = ({read_name(name): value for name, value in each.items()} for each in (severities, values))
        return JSONResponse(asdict(self.bench.whatif.ask(queued.case.place, groups, fields)))

    # --- many cases ---------------------------------------------------------------------------------------------

    def bulk(self, request: Request) -> Response:
        viewer, view = self.reviewer(request), self.view(request.url.query)
        ticked = request.query_params.getlist("case")
        if not ticked and request.query_params.get("ticked") == "1":
            raise RefusedError("no case is ticked; tick some in the queue first")
        return self._bulk(request, viewer, view, ticked=ticked)

    def _bulk(
        self, request: Request, viewer: str, view: View, status: int = 200, alert: str | None = None,
        draft: Mapping[str, Any] | None = None, ticked: Sequence[str] = (),
    ) -> Response:  # fmt: skip
        """Show the open cases of a view, or of those that were ticked in the queue, to decide about at once."""
        self.cases.catch_up(self.store)
        found = self._open_cases(view, viewer, ticked)
        listed = self.cases.find_all(case for case, _ in found[:MOST_TICKED])
        context = pages.BulkPage(
            frame=self.frame(request, "Decide about many cases", view, "queue", alert=alert),
            view=view,
            scope=(("chosen", "rows ticked in the queue"),) if ticked else self.scope(view),
            decided=(len(ticked) if ticked else self.cases.count(view, viewer)) - len(found),
            open=len(found),
            lines=tuple(listed[case.digest] for case, _ in found[:MOST_TICKED]),
            never=sum(not own for _, own in found),
            expected=_fingerprint(found),
            chosen=bool(ticked),
            groups=self.cases.protocol.group_names,
            reasons=self.bench.reasons,
            draft=draft or {},
        )
        return _render(context, status)

    def _open_cases(self, view: View, viewer: str, ticked: Sequence[str]) -> tuple[tuple[Case, tuple[str, ...]], ...]:
        """Return the open cases of a view, or those of the ticked ones, each with the groups that flip it."""
        if not ticked:
            return self.cases.open_cases(view, viewer)
        if len(ticked) > MOST_TICKED:
            raise DataError(f"at most {MOST_TICKED} cases can be ticked at once, got {len(ticked)}")
        chosen = [self.cases.find(key) for key in dict.fromkeys(ticked)]
        states = self.store.states_of([queued.case.digest for queued in chosen])
        still = [queued for queued in chosen if states.get(queued.case.digest, OPEN).status == "open"]
        return tuple((queued.case, queued.failing) for queued in still)

    def decide_all(self, request: Request, form: Form) -> Response:
        """Write a decision for exactly the cases that the page listed, or for none."""
        viewer, view = self.reviewer(request), self.view(form.one("view"))
        action, note, reason = form.one("action"), form.note(), self._reason(form)
        groups = self._groups(form) if action == "reacquire" else ()
        own = action == "reacquire" and form.one("groups_of") == "own"
        ticked, everything = form.get("case", []), form.one("all") == "1"
        draft = {
            "action": action, "note": note, "reason": reason, "groups": groups, "groups_of": form.one("groups_of"),
            "cases": set(ticked),
        }  # fmt: skip
        within = ticked if form.one("chosen") == "1" else ()
        self.cases.catch_up(self.store)
        if not ticked and not everything:
            alert = "Nothing was saved: no case is ticked. Tick the cases that this is about."
            return self._bulk(request, viewer, view, 422, alert, draft, within)
        found = self._open_cases(view, viewer, ticked)
        changed = _fingerprint(found) != form.one("expected") if everything else len(found) < len(set(ticked))
        try:
            if changed:
                raise ConflictError(())
            if own and (never := sum(not failing for _, failing in found)):
                raise RefusedError(f"{never:,} of these cases never flip, so they have no groups of their own")
            chosen = [(case, failing if own else groups) for case, failing in found]
            bulk = self.store.decide_all(chosen, viewer, action, note, reason)
        except ConflictError:
            alert = "Nothing was saved: the open cases are others by now. Look at the list and confirm again."
            return self._bulk(request, viewer, view, 409, alert, draft, within)
        except RefusedError as refused:
            return self._bulk(request, viewer, view, 422, f"Nothing was saved: {refused}.", draft, within)
        return _redirect("/queue", view.address(), bulk=bulk)

    def undo_all(self, request: Request, form: Form) -> Response:
        viewer = self.reviewer(request)
        self.store.undo_all(form.one("bulk"), viewer)
        return _redirect("/team" if form.one("from") == "team" else "/queue", self.view(form.one("view")).address())

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
        return _render(context)

    def ask_seconds(self, request: Request, form: Form) -> Response:
        """Ask for a blind second review of some decided cases, drawn at random."""
        viewer, view, number = self.reviewer(request), self.view(form.one("view")), form.number("number")
        if not 1 <= number <= MOST_ASKED:
            raise RefusedError(f"ask for 1 to {MOST_ASKED} second reviews")
        self.cases.catch_up(self.store)
        self.store.ask_second(self.cases.draw_eligible(number), viewer)
        return _redirect("/team", view.address())

    def make_address(self, request: Request, form: Form) -> Response:
        """Show an address that lets another browser in."""
        self.reviewer(request)
        frame = self.frame(request, "Another browser", self.view(form.one("view")), "team")
        return _render(pages.AddressPage(frame, self.sessions.new_address()))

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


def _find_session(request: Request) -> Session:
    session = request.scope[SESSION]
    assert isinstance(session, Session)
    return session


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


def _fingerprint(cases: Sequence[tuple[Case, Sequence[str]]]) -> str:
    """Return a name for these cases in this order, so that what is confirmed is what was listed."""
    return hashlib.sha256("\n".join(case.digest for case, _ in cases).encode()).hexdigest()


def _keep_inside(path: str) -> str:
    """Return a path of this application; anything else becomes the queue."""
    return path if path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() else "/queue"


def _redirect(path: str, query: str = "", **more: Any) -> RedirectResponse:
    added = urlencode({name: value for name, value in more.items() if value is not None})
    words = "&".join(part for part in (query, added) if part)
    return RedirectResponse(f"{path}?{words}" if words else path, status_code=303)


def _render(context: Any, status: int = 200) -> HTMLResponse:
    return HTMLResponse(pages.render(context), status_code=status)


# --- errors -------------------------------------------------------------------------------------------------

STATUS: tuple[tuple[type[Exception], int], ...] = (
    (ConflictError, 409), (RefusedError, 422), (ViewError, 400), (StoreError, 503), (CertificateError, 404),
    (FragilityError, 400),
)  # fmt: skip


def _wants_json(request: Request) -> bool:
    return request.url.path.endswith(("/whatif", "/state", "/values", "/fields"))


def _refuse(request: Request, desk: _Desk, status: int, sentence: str) -> Response:
    if _wants_json(request):
        return JSONResponse({"error": sentence}, status_code=status)
    return _render(pages.ErrorPage(desk.frame(request, "Not possible"), sentence), status)
