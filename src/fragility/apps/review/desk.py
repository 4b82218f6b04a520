"""Addresses of cases: the page of one, decisions about one or many; and what all addresses share.

Shared are the workbench, forms, who is there, the frame of a page, and the next case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

import fragility.apps.review.pages as pages
from fragility.apps.guards import SESSION, Session, Sessions
from fragility.apps.review.history import DEFAULT_REASONS, OPEN, WORDS, Case, case_state
from fragility.apps.review.queries import CANDIDATES, CaseIndex, QueuedCase, case_key
from fragility.apps.review.rows import MatchedRows, WhatIf
from fragility.apps.review.searches import ChangeSearch, MovableField, StabilitySearch, show_fields
from fragility.apps.review.store import ConflictError, DecisionRefusedError, Store
from fragility.apps.review.views import View, read_name
from fragility.base.errors import CertificateError, DataError, FragilityError
from fragility.blocks.intervals.values import IntervalsDeclaration, intervals_of_row

LONGEST_NUMBER = 15  # digits


@dataclass(frozen=True)
class Workbench:
    """Everything the pages need."""

    cases: CaseIndex
    store: Store
    rows: MatchedRows | None = None
    whatif: WhatIf | None = None
    stability: StabilitySearch | None = None  # None without a model
    changes: ChangeSearch | None = None  # likewise
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


class Desk:
    """What the addresses of the workbench have in common."""

    def __init__(self, bench: Workbench, sessions: Sessions) -> None:
        self.bench, self.cases, self.store = bench, bench.cases, bench.store
        self.sessions = sessions

    def reviewer(self, request: Request) -> str:
        name = find_session(request).reviewer
        if name is None:
            raise UnnamedError("say who you are first")
        return name

    def view(self, query: str) -> View:
        return View.from_address(query, self.cases.protocol.min_confidence).with_default_budget(
            query, "20" if self.cases.policy is None else "policy"
        )

    def frame(self, request: Request, title: str, view: View | None = None, tab: str = "", **more: Any) -> pages.Frame:
        written = "" if view is None else view.address(page=1)
        return pages.Frame(
            title, self.cases.folder.resolve().name, find_session(request).reviewer, written, tab, **more
        )

    def scope(self, view: View) -> tuple[tuple[str, str], ...]:
        """Return which predictions a view is about, in words."""
        fields = [(name, self.cases.wanted(name, text).in_words()) for name, text in view.where]
        return pages.describe_view(view, len(self.cases), fields)

    def notice(self, request: Request, viewer: str, view: View) -> pages.DoneNotice | None:
        """Return the notice of the last action, which the address names; only its writer may undo it."""
        number, bulk = request.query_params.get("done", ""), request.query_params.get("bulk", "")
        if not number and not bulk:
            return None
        entry = self.store.entry(self.store.newest_of(viewer))  # an older one was followed by others: it is no news
        if entry is None or entry.case.audit != self.cases.audit:
            return None
        if number == str(entry.seq):
            text, name = f"{WORDS.get(entry.action, entry.action)}.", entry.case.row_id
            if entry.action == "undo":
                return pages.DoneNotice(text, name)
            fields = {"entry": number, "view": view.address()}
            undo, saved = f"/case/{case_key(entry.case)}/undo", self.name_draft(entry.case.digest, viewer)
            return pages.DoneNotice(text, name, undo, fields, saved=saved)
        if bulk and bulk == entry.bulk:
            text = f"{self.store.standing_of(bulk, viewer):,} decisions saved."
            fields = {"bulk": bulk, "view": view.address()}
            return pages.DoneNotice(text, None, "/bulk/undo", fields, saved=self.name_draft("bulk", viewer))
        return None

    def name_draft(self, what: str, viewer: str) -> str:
        """Return what a browser keeps a reviewer's draft under, about a case by its digest, or about many."""
        return hashlib.sha256(f"{self.cases.audit}\n{what}\n{viewer}".encode("utf-8", "surrogatepass")).hexdigest()

    def give_next(self, viewer: str, view: View, left: QueuedCase | None = None, done: int | None = None) -> Response:
        """Send the reviewer to the next unclaimed case of the view, and claim it for them for a while.

        The next one comes after the case they leave; when there is none after it, the first of the view.
        """
        self.cases.catch_up(self.store)
        skipped = False
        for start in (left, None) if left else (None,):
            skip = 0
            while candidates := self.cases.candidates(view, viewer, start, skip):
                free = [case for case in candidates if left is None or case.digest != left.case.digest]
                skipped |= len(free) < len(candidates)
                claimed = self.store.claim(free, viewer, view.awaited)
                if claimed is not None:
                    return redirect(f"/case/{case_key(claimed)}", view.address(), done=done)
                skip += CANDIDATES
        return redirect("/queue", view.address(), done=done, none="skipped" if skipped else "1")

    def read_reason(self, form: FormFields) -> str:
        reason = form.one("reason")
        if reason and reason not in self.bench.reasons:
            raise DecisionRefusedError(f"there is no reason {reason[:40]!r}; known are {', '.join(self.bench.reasons)}")
        return reason

    def read_groups(self, form: FormFields) -> tuple[str, ...]:
        groups = [read_name(name) for name in form.get("group", [])]
        unknown = [name for name in groups if name not in self.cases.protocol.group_names]
        if unknown:
            raise DecisionRefusedError(f"this protocol has no evidence group {unknown[0][:60]!r}")
        return tuple(groups)


def find_session(request: Request) -> Session:
    session = request.scope[SESSION]
    assert isinstance(session, Session)
    return session


def keep_inside(path: str) -> str:
    """Return a path of this application; anything else becomes the queue."""
    return path if path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() else "/queue"


def redirect(path: str, query: str = "", **more: Any) -> RedirectResponse:
    added = urlencode({name: value for name, value in more.items() if value is not None})
    words = "&".join(part for part in (query, added) if part)
    return RedirectResponse(f"{path}?{words}" if words else path, status_code=303)


def render(context: Any, status: int = 200) -> HTMLResponse:
    return HTMLResponse(pages.render(context), status_code=status)


# --- the desk of cases ----------------------------------------------------------------------------------------

PATIENCE = 8.0  # seconds that an answer waits for a search, which goes on without it
MOST_TICKED = 200  # cases that are listed with a box each


class CaseDesk(Desk):
    """The addresses under /case, and /bulk."""

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
            missing=() if rows is None else rows.missing(queued.case.place),
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
            draft_key=self.name_draft(queued.case.digest, viewer),
        )  # fmt: skip
        return render(context, status)

    def _movable(self, row: Mapping[str, Any]) -> tuple[MovableField, ...] | None:
        """Return from the certificate how far the fields of a case may move; None if they must be searched for."""
        declared, protocol = self.cases.manifest.find_block(IntervalsDeclaration), self.cases.protocol
        intervals = None if declared is None else intervals_of_row(row, declared, protocol)
        if intervals is None or (self.bench.stability is not None and len(intervals) < len(protocol.fields)):
            return None
        return show_fields(intervals.values(), protocol)

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
        intervals = self.bench.stability.find(queued.case.place, PATIENCE)
        if intervals is None:
            return Response(status_code=202)
        return render(pages.FieldsPart(self.frame(request, ""), show_fields(intervals, self.cases.protocol)))

    def case_missing(self, request: Request, key: str) -> Response:
        """Answer a page that asks what its missing fields would have changed; with 202 while that is being searched."""
        self.reviewer(request)
        queued = self.cases.find(key)
        if self.bench.changes is None or self.bench.rows is None:
            raise CertificateError("the model was not given; start the workbench with --model and --data")
        if not self.bench.rows.missing(queued.case.place):
            raise CertificateError("no field of this case is missing")
        missing = self.bench.changes.find(queued.case.place, PATIENCE)
        return (
            Response(status_code=202)
            if missing is None
            else render(pages.MissingPart(self.frame(request, ""), missing))
        )

    def decide(self, request: Request, key: str, form: Form) -> Response:
        viewer, queued = self.reviewer(request), self.cases.find(key)
        view = replace(self.view(form.one("view")), stay=form.one("advance") != "1")
        action, note, reason = form.one("action"), form.note(), self.read_reason(form)
        groups = self.read_groups(form) if action == "reacquire" else ()
        seen = form.number("seen") if "seen" in form else None
        draft = {"note": note, "groups": groups, "reason": reason}
        try:
            entry = self.store.write(queued.case, viewer, action, groups, note, reason, seen)
        except ConflictError as conflict:
            last = conflict.newer[-1]
            wrote = f"{last.reviewer} wrote about this case meanwhile: {WORDS.get(last.action, last.action)}"
            alert = f"Not saved. {wrote}. Look again; what you decide now will stand beside it."
            return self._case(request, viewer, view, queued, 409, alert, draft)
        except DecisionRefusedError as refused:
            return self._case(request, viewer, view, queued, 422, f"Not saved: {refused}.", draft)
        if view.stay or action == "comment":
            return redirect(f"/case/{key}", view.address(), done=entry.seq)
        return self.give_next(viewer, view, queued, done=entry.seq)

    def undo(self, request: Request, key: str, form: Form) -> Response:
        viewer, view = self.reviewer(request), self.view(form.one("view"))
        queued, entry = self.cases.find(key), self.store.entry(form.number("entry"))
        if entry is None or entry.case.digest != queued.case.digest:
            raise DecisionRefusedError("there is nothing to undo at this number")
        undone = self.store.undo(entry.seq, viewer)
        return redirect(f"/case/{key}", view.address(), done=undone.seq)

    def ask_second(self, request: Request, key: str, form: Form) -> Response:
        viewer, view, queued = self.reviewer(request), self.view(form.one("view")), self.cases.find(key)
        if self.store.ask_second([queued.case], viewer) == 0:
            raise DecisionRefusedError("a second review is for a case on which one reviewer has decided")
        return redirect(f"/case/{key}", view.address())

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
        groups, fields = (
            {read_name(name): value for name, value in given_names.items()} for given_names in (severities, values)
        )
        return JSONResponse(asdict(self.bench.whatif.ask(queued.case.place, groups, fields)))

    # --- many cases ---------------------------------------------------------------------------------------------

    def bulk(self, request: Request) -> Response:
        viewer, view = self.reviewer(request), self.view(request.url.query)
        ticked = request.query_params.getlist("case")
        if not ticked and request.query_params.get("ticked") == "1":
            raise DecisionRefusedError("no case is ticked; tick some in the queue first")
        return self._bulk(request, viewer, view, ticked=ticked)

    def _bulk(
        self, request: Request, viewer: str, view: View, status: int = 200, alert: str | None = None,
        draft: Mapping[str, Any] | None = None, ticked: Sequence[str] = (),
    ) -> Response:  # fmt: skip
        """Show the open cases of a view, or of those that were ticked in the queue, to decide about at once."""
        self.cases.catch_up(self.store)
        open_cases = self._open_cases(view, viewer, ticked)
        listed = self.cases.find_all(case for case, _ in open_cases[:MOST_TICKED])
        context = pages.BulkPage(
            frame=self.frame(request, "Decide about many cases", view, "queue", alert=alert),
            view=view,
            scope=(("chosen", "rows ticked in the queue"),) if ticked else self.scope(view),
            decided=(len(ticked) if ticked else self.cases.count(view, viewer)) - len(open_cases),
            open=len(open_cases),
            lines=tuple(listed[case.digest] for case, _ in open_cases[:MOST_TICKED]),
            never=sum(not failing for _, failing in open_cases),
            expected=_fingerprint(open_cases),
            chosen=bool(ticked),
            groups=self.cases.protocol.group_names,
            reasons=self.bench.reasons,
            draft=draft or {},
            draft_key=self.name_draft("bulk", viewer),
        )
        return render(context, status)

    def _open_cases(self, view: View, viewer: str, ticked: Sequence[str]) -> tuple[tuple[Case, tuple[str, ...]], ...]:
        """Return the open cases of a view, or those of the ticked ones, each with the groups that flip it."""
        if not ticked:
            return self.cases.open_cases(view, viewer)
        if len(ticked) > MOST_TICKED:
            raise DataError(f"at most {MOST_TICKED} cases can be ticked at once, got {len(ticked)}")
        cases = [self.cases.find(key) for key in dict.fromkeys(ticked)]
        states = self.store.states_of([queued.case.digest for queued in cases])
        still = [queued for queued in cases if states.get(queued.case.digest, OPEN).status == "open"]
        return tuple((queued.case, queued.failing) for queued in still)

    def decide_all(self, request: Request, form: Form) -> Response:
        """Write a decision for all cases that the page listed, or for none of them."""
        viewer, view = self.reviewer(request), self.view(form.one("view"))
        action, note, reason = form.one("action"), form.note(), self.read_reason(form)
        groups = self.read_groups(form) if action == "reacquire" else ()
        own_groups = action == "reacquire" and form.one("groups_of") == "own"
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
        open_cases = self._open_cases(view, viewer, ticked)
        changed = _fingerprint(open_cases) != form.one("expected") if everything else len(open_cases) < len(set(ticked))
        try:
            if changed:
                raise ConflictError(())
            if own_groups and (never := sum(not failing for _, failing in open_cases)):
                raise DecisionRefusedError(f"{never:,} of these cases never flip, so they have no groups of their own")
            decisions = [(case, failing if own_groups else groups) for case, failing in open_cases]
            bulk = self.store.decide_all(decisions, viewer, action, note, reason)
        except ConflictError:
            alert = "Nothing was saved: the open cases are others by now. Look at the list and confirm again."
            return self._bulk(request, viewer, view, 409, alert, draft, within)
        except DecisionRefusedError as refused:
            return self._bulk(request, viewer, view, 422, f"Nothing was saved: {refused}.", draft, within)
        return redirect("/queue", view.address(), bulk=bulk)

    def undo_all(self, request: Request, form: Form) -> Response:
        viewer = self.reviewer(request)
        self.store.undo_all(form.one("bulk"), viewer)
        return redirect("/team" if form.one("from") == "team" else "/queue", self.view(form.one("view")).address())


def _fingerprint(cases: Sequence[tuple[Case, Sequence[str]]]) -> str:
    """Return a name for these cases in this order, so that what is confirmed is what was listed."""
    return hashlib.sha256("\n".join(case.digest for case, _ in cases).encode()).hexdigest()
