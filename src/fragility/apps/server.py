"""The HTTP server of the local applications: its socket, its connections, and an end that finishes all requests."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fragility.apps.guards import Guards, RequestError
from fragility.base.errors import FragilityError

HEAD_SECONDS = 10.0  # for the head of a request, from the end of the answer before it
UNREAD_SECONDS = 30.0  # that a client may leave an answer unread
MOST_CONNECTIONS = 500  # open at a time: files of the log must not find that all handles are taken


class AddressError(FragilityError):
    """The address or port asked for cannot be used."""


def bind(family: int, address: Any) -> socket.socket:
    """Return a socket at an address that no other program may listen on."""
    # asyncio sends small answers at once on sockets that name their protocol; others wait 40 ms for a client's ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let another program listen on the same port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


class Connection(H11Protocol):
    """A connection whose client must send the head of each request in time, and read the answers.

    The guards bound everything between head and answer. What is no HTTP is refused in the shape of all other refusals.
    """

    _deadline: asyncio.TimerHandle | None = None  # of the head that is awaited
    _look: asyncio.TimerHandle | None = None  # the next look at whether the client reads
    _unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_reading()
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(RequestError(503, "overloaded", f"{MOST_CONNECTIONS} connections are open; try again"))
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()
        if self._look is not None:
            self._look.cancel()

    def send_400_response(self, msg: str) -> None:
        self._refuse(RequestError(400, "not_http", "the request is not valid HTTP, or its headers are too large"))

    def _expect_head(self) -> None:
        """Run the clock unless a request is being answered; an unread rest of a body does not stop it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_clock()
        elif self._deadline is None and not self.transport.is_closing():
            message = f"the head of a request must come within {HEAD_SECONDS:g} seconds"
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._refuse, RequestError(408, "timeout", message))

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch_reading(self) -> None:
        """End the connection of a client that does not read, also one that is closing: it would stay open."""
        now = self.loop.time()
        if self.transport.get_write_buffer_size() == 0:
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since >= UNREAD_SECONDS:
            self.transport.abort()
            return
        self._look = self.loop.call_later(UNREAD_SECONDS / 4, self._watch_reading)

    def _refuse(self, error: RequestError) -> None:
        if not self.transport.is_closing():
            body = error.to_json()
            head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
            self.transport.close()


class Server(uvicorn.Server):
    """A server that ends well at SIGINT, SIGTERM and SIGHUP: it stops accepting, finishes, and returns."""

    def __init__(
        self,
        app: Guards,
        *,
        on_start: Callable[[], None],
        on_stop: Callable[[], None] = lambda: None,
        lifespan: Literal["on", "off"] = "off",
        patience: int,
    ) -> None:
        """patience: seconds that answers in flight are given at the end."""
        config = uvicorn.Config(
            app,
            http=Connection,
            log_level="error",
            access_log=False,  # addresses may hold tokens
            server_header=False,
            proxy_headers=False,
            lifespan=lifespan,
            ws="none",
            timeout_graceful_shutdown=patience,
        )
        super().__init__(config)
        self._on_start, self._on_stop = on_start, on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()  # signals are obeyed and connections accepted from now on

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        obeyed = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self.handle_exit) for number in obeyed}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_stop()
        if self.should_exit:  # asked twice: what is in flight is left, and the log keeps what it has acknowledged
            self.force_exit = True
        self.should_exit = True
