"""Which requests the local applications answer: checks that come before any endpoint, each with its reason.

Of the decision server (`ServiceGuards`):

    token     where one is set, every request but those of health checks must bring it
    Host      without a token only programs of this machine are served, and the request must be addressed to it: a page
              elsewhere that lets its own name point here (DNS rebinding) still sends its own name
    Origin    without a token, a page of another site is refused

Of the workbench (`BrowserGuards`). A browser sends its cookies to every port of a host name, and any server of this
machine can set cookies for the names it shares with us. The workbench is therefore served under a host name of its own,
`review-<random>.localhost`, which browsers resolve to this machine: no other server is ever asked for under that name,
so none receives or sets our cookie. The name is kept beside the store, in a file that only its owner can read, so that
bookmarks and drafts outlive a start. What a cookie stands for, the reviewer's name included, is kept here and not in
the browser.

    Host      the name and port that this server was given
    session   a token in the first address, which is used up there, then a cookie that browsers never send along from
              other sites
    writes    Origin must be ours, and Sec-Fetch-Site must not say otherwise

Of both:

    content   a POST has one of the declared types, and no more bytes than declared, whether or not they are announced
    time      of the decision server: reading the body and answering take no longer than declared

Every refusal is the last answer on its connection: a client that goes on sending would otherwise keep it open. Every
answer forbids the browser to load anything from elsewhere, to run a script that is not a file of ours, and to show the
page in a frame.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from fragility.base.errors import FragilityError

Scope: TypeAlias = MutableMapping[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
Send: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

DRAIN_SECONDS, DRAIN_BYTES = 1.0, 2**24  # what a refused client may still send, so that it can read why
JSON = "application/json"
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


class RequestError(FragilityError):
    """A refused request, with the status of the answer, a code for programs, and the row that is meant."""

    def __init__(self, status: int, code: str, *parts: Any, row: int | None = None) -> None:
        super().__init__(*parts)
        self.status, self.code, self.row = status, code, row

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the answer: the one shape that all errors have."""
        place = {} if self.row is None else {"row": self.row}
        return {"error": {"code": self.code, "message": str(self), **place}}

    def to_json(self) -> bytes:
        """Return the same as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"retry-after": "1"} if self.status == 503 else {}


class Guards(ABC):
    """An ASGI application in front of another."""

    content_types: tuple[str, ...] = (JSON,)  # of a POST

    def __init__(self, app: Application, most_bytes: int, most_seconds: float | None = None) -> None:
        self.app, self.most_bytes, self.most_seconds = app, most_bytes, most_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other protocol is spoken here
        headers = read_headers(scope)
        started = False

        async def answer(message: AsgiMessage) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                names = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            app = self.check(scope, headers)
            async with asyncio.timeout(self.most_seconds):
                body = await self._read_body(receive) if scope["method"] == "POST" else b""
                waiting: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

                async def replay() -> AsgiMessage:
                    return waiting.pop() if waiting else await receive()

                await app(scope, replay, answer)
        except TimeoutError:
            if not started:
                message = f"the request took longer than {self.most_seconds:g} seconds; send fewer rows"
                await self.refuse(answer, RequestError(504, "timeout", message))
        except RequestError as error:
            if "expect" not in headers:  # such a client sends nothing before it is asked to
                await _drain(receive)
            await self.refuse(answer, error)

    @abstractmethod
    def check(self, scope: Scope, headers: Mapping[str, str]) -> Application:
        """Return the application that answers a request; RequestError for one that is refused."""

    async def refuse(self, send: Send, error: RequestError) -> None:
        """Answer with an error, and close the connection."""
        body = error.to_json()
        fixed = {"content-type": JSON, "content-length": str(len(body)), "connection": "close"}
        await send_answer(send, error.status, body, {**fixed, **error.headers})

    def check_body(self, headers: Mapping[str, str]) -> None:
        """Refuse a body of another type, or one that is announced as too large."""
        if headers.get("content-type", "").split(";")[0].strip().lower() not in self.content_types:
            raise RequestError(415, "not_json", f"send the body as {' or '.join(self.content_types)}")
        announced = headers.get("content-length", "0")
        if not announced.isdigit() or len(announced) > 15 or int(announced) > self.most_bytes:
            raise self._refuse_size()

    def _refuse_size(self) -> RequestError:
        message = f"a request holds at most {self.most_bytes} bytes; send fewer rows at a time"
        return RequestError(413, "too_large", message)

    async def _read_body(self, receive: Receive) -> bytes:
        """Return the whole body, whether or not its size was announced."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.most_bytes:
                raise self._refuse_size()
            more = message["type"] != "http.disconnect" and message.get("more_body", False)
        return bytes(body)


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request; a repeated header has all its values joined, so that it matches no check."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in headers else value
    return headers


async def send_answer(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a whole answer."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive) -> None:
    """Read what a client has sent already; closing the connection before would discard the answer."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message["type"] != "http.disconnect" and message.get("more_body", False)


def _hash(secret: str) -> bytes:
    # Compared and looked up by hash, so that the time this takes reveals nothing about the secret.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


# --- the decision server ------------------------------------------------------------------------------------

OPEN_PATHS = ("/healthz", "/readyz")  # health checks send no token
HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]@,\s]+))(?::\d{1,5})?")


@dataclass(frozen=True)
class GuardRules:
    """What requests must bring, and how much they may take."""

    token: str | None = field(default=None, repr=False)
    most_bytes: int = 2**20
    most_seconds: float = 30.0


class ServiceGuards(Guards):
    """The guards of the decision server."""

    def __init__(self, app: Application, rules: GuardRules, count: Callable[[str], None] = lambda code: None) -> None:
        """count: called with the code of every request that is refused here."""
        super().__init__(app, rules.most_bytes, rules.most_seconds)
        self._count = count
        self._token = None if rules.token is None else _hash(rules.token)

    def check(self, scope: Scope, headers: Mapping[str, str]) -> Application:
        """Refuse a request without the token, from another site, or with another body than declared."""
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may take the other one
            raise RequestError(400, "two_lengths", "send Content-Length or Transfer-Encoding, not both")
        if self._token is None:
            self._check_local(headers)
        elif scope["path"] not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(_hash(given.strip()), self._token):
                raise RequestError(401, "unauthorized", "send the server's token as 'Authorization: Bearer TOKEN'")
        if scope["method"] == "POST":
            self.check_body(headers)
        return self.app

    def _check_local(self, headers: Mapping[str, str]) -> None:
        """Refuse what a browser sends on behalf of another site."""
        host = headers.get("host", "").lower()
        match = HOST.fullmatch(host)
        if match is None or not is_loopback(match["six"] or match["name"]):
            message = (
                "without a token this server is only reached as localhost or by a loopback address, e.g. 127.0.0.1"
            )
            raise RequestError(403, "wrong_host", f"{message}; start it with a token")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            message = "without a token this server does not answer pages of other sites; start it with a token"
            raise RequestError(403, "wrong_origin", message)

    async def refuse(self, send: Send, error: RequestError) -> None:
        """Count an error and answer with it."""
        self._count(error.code)
        await super().refuse(send, error)


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a host is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- the workbench ------------------------------------------------------------------------------------------

BODY_LIMIT = 64 * 1024
SESSION = "fragility.session"  # where the application finds the session of a request
WEEK = 7 * 24 * 3600  # seconds; a session ends with the process, whatever the browser keeps
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


def random_host() -> str:
    """Return a random name that browsers resolve to this machine and that others cannot guess."""
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

    def find(self, headers: Mapping[str, str]) -> Session | None:
        """Return the session of a request's cookie."""
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        return self._browsers.get(_hash(cookies[self.cookie].value)) if self.cookie in cookies else None


class BrowserGuards(Guards):
    """The guards of the workbench."""

    content_types = ("application/x-www-form-urlencoded", JSON)

    def __init__(self, app: Application, sessions: Sessions) -> None:
        super().__init__(app, BODY_LIMIT)
        self.sessions = sessions

    def check(self, scope: Scope, headers: Mapping[str, str]) -> Application:
        """Refuse a request to another name, one without a session, and a write from elsewhere."""
        if headers.get("host", "").lower() != self.sessions.authority:
            raise RequestError(
                403, "wrong_host", "this page is only served under the address that `fragility review` printed"
            )
        session = self.sessions.find(headers)
        token, address = split_token(scope)
        if token is not None and scope["method"] == "GET":
            secret = self.sessions.admit(token)
            if secret is not None or session is not None:
                return self._welcome(address, secret if session is None else None)
        if session is None:
            raise RequestError(401, "unauthorized", CLOSED)
        if scope["method"] not in ("GET", "HEAD"):
            self._check_write(scope["method"], headers)
        scope[SESSION] = session
        return self.app

    def _check_write(self, method: str, headers: Mapping[str, str]) -> None:
        if method != "POST":
            raise RequestError(405, "wrong_method", f"the method {method[:20]} is not used here")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise RequestError(403, "wrong_origin", "a write must come from this page itself: Sec-Fetch-Site differs")
        if headers.get("origin", "").lower() != f"http://{headers['host'].lower()}":
            raise RequestError(403, "wrong_origin", "a write must come from this page itself: Origin differs")
        self.check_body(headers)

    def _welcome(self, address: str, secret: str | None) -> Application:
        """Return what leads a browser on to an address, with the cookie of a new session."""
        headers = {"content-type": "text/html; charset=utf-8"}
        if secret is not None:
            headers["set-cookie"] = (
                f"{self.sessions.cookie}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={WEEK}"
            )

        async def welcome(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send_answer(send, 200, WELCOME.format(target=escape(address)).encode(), headers)

        return welcome

    async def refuse(self, send: Send, error: RequestError) -> None:
        """Answer with a sentence as plain text."""
        await send_answer(
            send,
            error.status,
            str(error).encode(),
            {"content-type": "text/plain; charset=utf-8", "connection": "close"},
        )


def split_token(scope: Scope) -> tuple[str | None, str]:
    """Return the token in an address, and the address without the token, which must not stay in it."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    tokens = [value for name, value in query if name == "token"]
    rest = urlencode([(name, value) for name, value in query if name != "token"])
    path = quote("/" + scope["path"].lstrip("/\\"), safe="/-_.~")  # two slashes would lead to another machine
    return tokens[-1] if tokens else None, f"{path}?{rest}" if rest else path
