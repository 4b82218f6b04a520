"""Which requests are answered at all: a chain of checks before any page, each with its reason.

    Host            the name and port that this server was given; a page elsewhere that lets its own name point here
                    (DNS rebinding) still sends its own name
    session         a token in the first address, which is used up there, then a cookie that browsers never send along
                    from other sites
    size            of the body, whether or not it is announced
    writes          Origin must be ours, Sec-Fetch-Site must not say otherwise, and the content must be a form or JSON

Every answer forbids the browser to load anything from elsewhere, to run a script that is not a file of ours, and to
show the page in a frame.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from fragility.review.sessions import Session, Sessions

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_LIMIT = 64 * 1024
SESSION = "fragility.session"  # where the application finds the session of a request
# A browser does not send a new SameSite=Strict cookie along when a file or another site led it here and we redirect it.
# A page of ours that leads on does what a redirect cannot.
WELCOME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}">
<link rel="icon" href="/static/icon.svg" type="image/svg+xml"><title>fragility review</title></head>
<body><p><a href="{target}">Open the workbench</a></p></body></html>
"""
CLOSED = (
    "this workbench is closed to browsers that have not been let in. The address that `fragility review` printed lets "
    "one browser in, once; for another browser, make an address on the page Team, or start the workbench again"
)
READING = ("GET", "HEAD")
CONTENT_TYPES = ("application/x-www-form-urlencoded", "application/json")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": with it browsers send writes with the Origin "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    reason: str


class Guards:
    """An ASGI application in front of another."""

    def __init__(self, app: Application, sessions: Sessions) -> None:
        self.app = app
        self.sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other protocol is spoken here
        headers = _headers(scope)
        refusal = self.check_host(headers)
        if refusal is None and scope["method"] == "GET" and (token := _token_in(scope)) is not None:
            await self._enter(scope, headers, token, send)
            return
        session = self.find_session(headers)
        refusal = refusal or (Refusal(401, CLOSED) if session is None else None)
        refusal = refusal or self.check_write(scope["method"], headers)
        if refusal is not None:
            await _answer(send, refusal.status, refusal.reason)
            return
        await self._pass_on({**scope, SESSION: session}, receive, send)

    async def _enter(self, scope: Scope, headers: Mapping[str, str], token: str, send: Send) -> None:
        """Exchange a token for a cookie, and lead to the address without the token."""
        secret, known = self.sessions.admit(token), self.find_session(headers) is not None
        if secret is None and not known:
            await _answer(send, 401, CLOSED)
            return
        extra = {"content-type": "text/html; charset=utf-8"}
        if secret is not None and not known:
            extra["set-cookie"] = self.sessions.set_cookie(secret)
        await _answer(send, 200, WELCOME.format(target=escape(_without_token(scope))), extra)

    # --- the checks, in order -------------------------------------------------------------------------------

    def check_host(self, headers: Mapping[str, str]) -> Refusal | None:
        if headers.get("host", "").lower() == self.sessions.authority:
            return None
        return Refusal(403, "this page is only served under the address that `fragility review` printed")

    def find_session(self, headers: Mapping[str, str]) -> Session | None:
        """Return the session that a request's cookie stands for."""
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        name = self.sessions.cookie
        return self.sessions.find(cookies[name].value) if name in cookies else None

    def check_write(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        if method in READING:
            return None
        if method != "POST":
            return Refusal(405, f"the method {method[:20]} is not used here")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return Refusal(403, "a write must come from this page itself: Sec-Fetch-Site says otherwise")
        if headers.get("origin", "").lower() != f"http://{headers['host'].lower()}":
            return Refusal(403, "a write must come from this page itself: Origin says otherwise")
        if headers.get("content-type", "").split(";")[0].strip().lower() not in CONTENT_TYPES:
            return Refusal(415, f"a write is sent as {' or '.join(CONTENT_TYPES)}")
        announced = headers.get("content-length", "0")
        if not announced.isdigit() or len(announced) > 9 or int(announced) > BODY_LIMIT:
            return Refusal(413, f"a write holds at most {BODY_LIMIT} bytes")
        return None

    # --- passing on -----------------------------------------------------------------------------------------

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            await _answer(send, 413, f"a write holds at most {BODY_LIMIT} bytes")
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, replay, guarded)


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body, or None once it is larger than it may be."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _answer(send: Send, status: int, text: str, extra: Mapping[str, str] | None = None) -> None:
    headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", **(extra or {})}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": text.encode()})


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name; one that comes twice counts as all its values, which then match nothing."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        separator = "; " if name == "cookie" else ", "
        found[name] = f"{found[name]}{separator}{value}" if name in found else value
    return found


def _token_in(scope: Scope) -> str | None:
    """Return the token that an address holds."""
    tokens = [value for name, value in _query(scope) if name == "token"]
    return tokens[-1] if tokens else None


def _without_token(scope: Scope) -> str:
    """Return the address without its token, so that it does not stay there."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
    path = quote("/" + scope["path"].lstrip("/\\"), safe="/-_.~")  # two slashes would lead to another machine
    return f"{path}?{rest}" if rest else path


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
