"""Which requests are answered at all: checks that come before any endpoint.

    token     where one is set, every request but those of health checks must bring it
    Host      without a token only programs of this machine are served, and the request must be addressed to it: a page
              elsewhere that lets its own name point here (DNS rebinding) still sends its own name
    Origin    without a token, a page of another site is refused
    content   a POST holds JSON, and no more bytes than declared
    time      reading the body and answering take no longer than declared

Every refusal is JSON of one shape, and the last thing that is sent on its connection: a client that goes on sending
would otherwise keep it open.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fragility.apps.review.guards import HEADERS, Application, Message, Receive, Scope, Send
from fragility.apps.serving.requests import RequestError

DRAIN_SECONDS, DRAIN_BYTES = 1.0, 2**24  # what a refused client may still send, so that it can read why
OPEN_PATHS = ("/healthz", "/readyz")  # health checks send no token
HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]@,\s]+))(?::\d{1,5})?")
JSON = "application/json"


@dataclass(frozen=True)
class GuardRules:
    """What requests must bring, and how much they may take."""

    token: str | None = field(default=None, repr=False)
    most_bytes: int = 2**20
    most_seconds: float = 30.0


class ServiceGuards:
    """An ASGI application in front of another."""

    def __init__(self, app: Application, rules: GuardRules, count: Callable[[str], None] = lambda code: None) -> None:
        """count: is told the code of every request that is refused here."""
        self.app, self.rules, self._count = app, rules, count
        self._token = None if rules.token is None else _hash(rules.token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other protocol is spoken here
        headers: dict[str, str] = {}
        # A header that comes twice has both values, which then match nothing.
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                names = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            self._check(scope, headers)
            async with asyncio.timeout(self.rules.most_seconds):
                body = await self._read_body(receive) if scope["method"] == "POST" else b""
                waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

                async def replay() -> Message:
                    return waiting.pop() if waiting else await receive()

                await self.app(scope, replay, answer)
        except TimeoutError:
            if not started:
                told = f"the request took longer than {self.rules.most_seconds:g} seconds; send fewer rows"
                await self._refuse(answer, RequestError(504, "timeout", told))
        except RequestError as error:
            if "expect" not in headers:  # such a client sends nothing before it is told to
                await self._drain(receive)
            await self._refuse(answer, error)

    async def _drain(self, receive: Receive) -> None:
        """Read what a client has sent already; closing before would take the answer from it."""
        size, more = 0, True
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while more and size < DRAIN_BYTES:
                    message = await receive()
                    size += len(message.get("body", b""))
                    more = message["type"] != "http.disconnect" and message.get("more_body", False)

    async def _refuse(self, send: Send, error: RequestError) -> None:
        self._count(error.code)
        body = json.dumps(error.to_dict(), ensure_ascii=False).encode()
        headers = {"content-type": JSON, "content-length": str(len(body)), "connection": "close"}
        headers |= extra_headers(error)
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    # --- the checks, in order -------------------------------------------------------------------------------

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may take the other one
            told = "send Content-Length or Transfer-Encoding, not both"
            raise RequestError(400, "two_lengths", told)
        if self._token is None:
            self._check_local(headers)
        elif scope["path"] not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(_hash(given.strip()), self._token):
                raise RequestError(401, "unauthorized", "send the server's token as 'Authorization: Bearer TOKEN'")
        if scope["method"] == "POST":
            if headers.get("content-type", "").split(";")[0].strip().lower() != JSON:
                raise RequestError(415, "not_json", f"send the body as {JSON}")
            announced = headers.get("content-length", "0")
            if not announced.isdigit() or len(announced) > 15 or int(announced) > self.rules.most_bytes:
                raise self._refuse_size()

    def _check_local(self, headers: Mapping[str, str]) -> None:
        """Refuse what a browser sends on behalf of another site."""
        host = headers.get("host", "").lower()
        found = HOST.fullmatch(host)
        if found is None or not is_loopback(found["six"] or found["name"]):
            told = "without a token this server is only reached as localhost or by a loopback address such as 127.0.0.1"
            raise RequestError(403, "wrong_host", f"{told}; start it with a token")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            told = "without a token this server does not answer pages of other sites; start it with a token"
            raise RequestError(403, "wrong_origin", told)

    def _refuse_size(self) -> RequestError:
        told = f"a request holds at most {self.rules.most_bytes} bytes; send fewer rows at a time"
        return RequestError(413, "too_large", told)

    async def _read_body(self, receive: Receive) -> bytes:
        """Return the whole body, whether or not its size was announced."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.rules.most_bytes:
                raise self._refuse_size()
            more = message["type"] != "http.disconnect" and message.get("more_body", False)
        return bytes(body)


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a host is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def extra_headers(error: RequestError) -> dict[str, Any]:
    """Return the headers that belong to the status of an error."""
    if error.status == 401:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": "1"} if error.status == 503 else {}


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
