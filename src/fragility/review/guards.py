"""Which requests are answered at all: a chain of checks before any page, each with its reason.

    Host            one of the loopback names with the port we listen on; a page elsewhere that lets its own name point
                    here (DNS rebinding) still sends its own name
    token           in the first address, then a cookie that browsers never send along from other sites
    size            of the body, whether or not it is announced
    writes          Origin must be ours, Sec-Fetch-Site must not say otherwise, and the content must be a form or JSON

Every answer forbids the browser to load anything from elsewhere, to run a script that is not a file of ours, and to
show the page in a frame.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_LIMIT = 64 * 1024
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

    def __init__(self, app: Application, *, port: int, token: str) -> None:
        self.app = app
        self.port = port
        self.token = token
        self.cookie = f"fragility-review-{port}"  # cookies are shared between the ports of a machine
        self.hosts = tuple(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other protocol is spoken here
        headers = _headers(scope)
        refusal = self.check_host(headers) or None
        if refusal is None and (target := self._entered(scope)) is not None:
            await _answer(send, 303, "", {"location": target, "set-cookie": self._set_cookie()})
            return
        refusal = refusal or self.check_token(headers) or self.check_write(scope["method"], headers)
        if refusal is not None:
            await _answer(send, refusal.status, refusal.reason)
            return
        await self._pass_on(scope, receive, send)

    # --- the checks, in order -------------------------------------------------------------------------------

    def check_host(self, headers: Mapping[str, str]) -> Refusal | None:
        if headers.get("host", "").lower() in self.hosts:
            return None
        return Refusal(403, f"this page is only served as {self.hosts[0]}")

    def _entered(self, scope: Scope) -> str | None:
        """Return where to go on if the address holds the right token, so that it does not stay in the address."""
        words = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in words if name == "token"]
        if scope["method"] not in READING or not tokens or not _same(tokens[-1], self.token):
            return None
        rest = urlencode([(name, value) for name, value in words if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # two slashes would lead to another machine
        return f"{_quoted(path)}?{rest}" if rest else _quoted(path)

    def check_token(self, headers: Mapping[str, str]) -> Refusal | None:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        given = cookies[self.cookie].value if self.cookie in cookies else ""
        if _same(given, self.token):
            return None
        return Refusal(401, "open the address that `fragility review` printed: it holds the key to this page")

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
        if not announced.isdigit() or int(announced) > BODY_LIMIT:
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

    def _set_cookie(self) -> str:
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"


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


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _quoted(path: str) -> str:
    return quote(path, safe="/-_.~")
