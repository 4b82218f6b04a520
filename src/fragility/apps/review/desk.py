"""What every address shares: the workbench, forms, who is there, the frame of a page, and the next case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

import fragility.apps.review.pages as pages
from fragility.apps.guards import SESSION, Session, Sessions
from fragility.apps.review.history import DEFAULT_REASONS, WORDS
from fragility.apps.review.missing import ChangeSearch
from fragility.apps.review.queries import CANDIDATES, CaseIndex, QueuedCase, case_key
from fragility.apps.review.rows import MatchedRows, WhatIf
from fragility.apps.review.stability import StabilitySearch
from fragility.apps.review.store import DecisionRefusedError, Store
from fragility.apps.review.views import View, read_name
from fragility.base.errors import DataError, FragilityError

LONGEST_NUMBER = 15  # digits


@dataclass(frozen=True)
class Workbench:
    """Everything the pages need."""

    cases: CaseIndex
    store: Store
    rows: MatchedRows | None = None
    whatif: WhatIf | None = None
    stability: StabilitySearch | None = None  # where there is a model to ask
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
                    return redirect(f"/case/{case_key(given)}", view.address(), done=done)
                skip += CANDIDATES
        return redirect("/queue", view.address(), done=done, none="skipped" if skipped else "1")

    def read_reason(self, form: FormFields) -> str:
        reason = form.one("reason")
        if reason and reason not in self.bench.reasons:
            raise DecisionRefusedError(f"there is no reason {reason[:40]!r}; known are {', '.join(self.bench.reasons)}")
        return reason

    def read_groups(self, form: FormFields) -> tuple[str, ...]:
        chosen = [read_name(name) for name in form.get("group", [])]
        unknown = [name for name in chosen if name not in self.cases.protocol.group_names]
        if unknown:
            raise DecisionRefusedError(f"this protocol has no evidence group {unknown[0][:60]!r}")
        return tuple(chosen)


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
