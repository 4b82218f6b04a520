"""Who may use the workbench, and which requests are answered at all.

A browser sends its cookies to every port of a host name, and any server of this machine can set cookies for the names
it shares with us. The workbench is therefore served under a host name of its own, `review-<random>.localhost`, which
browsers take to this machine: no other server is ever asked for under that name, so none receives or sets our cookie.
The name is kept beside the store, in a file that only its owner can read, so that bookmarks and drafts outlive a start.
What a cookie stands for, the reviewer's name included, is kept here and not in the browser.

A chain of checks comes before any page, each with its reason:

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

import hashlib
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

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


# --- sessions -----------------------------------------------------------------------------------------------

LOOPBACK = "127.0.0.1"
WEEK = 7 * 24 * 3600  # seconds; a session ends with the process, whatever the browser keeps


def random_host() -> str:
    """Return a name that browsers resolve to this machine, and that nobody else can guess."""
    return f"review-{secrets.token_hex(10)}.localhost"


@dataclass
class Session:
    """A browser that was let in."""

    reviewer: str | None = None


class Sessions:
    """The tokens and the browsers of one server."""

    def __init__(self, host: str, port: int, *, on_entry: Callable[[], None] = lambda: None) -> None:
        self.authority = f"{host}:{port}"
        self.cookie = f"fragility-review-{port}-{secrets.token_hex(4)}"
        self._on_entry = on_entry
        self._tokens: set[bytes] = set()
        self._browsers: dict[bytes, Session] = {}
        self._lock = threading.Lock()

    def new_address(self, path: str = "/") -> str:
        """Return an address that lets one browser in, once, and leads to a page."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens.add(_hash(token))
        return f"http://{self.authority}{path}?token={token}"

    def admit(self, token: str) -> str | None:
        """Use up a token; return the secret for the browser's cookie, or None if the token is not valid (any more)."""
        with self._lock:
            if _hash(token) not in self._tokens:
                return None
            self._tokens.discard(_hash(token))
            secret = secrets.token_urlsafe(32)
            self._browsers[_hash(secret)] = Session()
        self._on_entry()
        return secret

    def find(self, secret: str) -> Session | None:
        """Return the session of a cookie's secret."""
        return self._browsers.get(_hash(secret))

    def set_cookie(self, secret: str) -> str:
        """Return the header that gives a browser its cookie."""
        return f"{self.cookie}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={WEEK}"


def _hash(secret: str) -> bytes:
    # Looked up by hash, so that the time a lookup takes tells nothing about the secret.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


# --- guards -------------------------------------------------------------------------------------------------


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
        headers: dict[str, str] = {}
        # A header that comes twice has all its values, which then match nothing.
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in headers else value
        refusal = self.check_host(headers)
        session = self.find_session(headers)
        token, address = split_token(scope)
        if refusal is None and scope["method"] == "GET" and token is not None:  # it is exchanged for a cookie
            secret = self.sessions.admit(token)
            if secret is None and session is None:
                await _answer(send, 401, CLOSED)
                return
            extra = {"content-type": "text/html; charset=utf-8"}
            if secret is not None and session is None:
                extra["set-cookie"] = self.sessions.set_cookie(secret)
            await _answer(send, 200, WELCOME.format(target=escape(address)), extra)
            return
        refusal = refusal or (Refusal(401, CLOSED) if session is None else None)
        refusal = refusal or self.check_write(scope["method"], headers)
        if refusal is not None:
            await _answer(send, refusal.status, refusal.reason)
            return
        await self._pass_on({**scope, SESSION: session}, receive, send)

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
        """Hand a request with its whole body, if that is small, to the application; add our headers to the answer."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > BODY_LIMIT:
                await _answer(send, 413, f"a write holds at most {BODY_LIMIT} bytes")
                return
            more = message["type"] != "http.disconnect" and message.get("more_body", False)
        waiting: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, replay, guarded)


def split_token(scope: Scope) -> tuple[str | None, str]:
    """Return the token that an address holds, and the address without it, so that it does not stay there."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    tokens = [value for name, value in query if name == "token"]
    rest = urlencode([(name, value) for name, value in query if name != "token"])
    path = quote("/" + scope["path"].lstrip("/\\"), safe="/-_.~")  # two slashes would lead to another machine
    return tokens[-1] if tokens else None, f"{path}?{rest}" if rest else path


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
