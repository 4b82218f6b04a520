"""The process of `fragility serve`: its token, its address, and its server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from fragility.apps.server import AddressError, Server, bind
from fragility.apps.serving.answering import Answering
from fragility.apps.serving.app import ServiceRules, create_app
from fragility.apps.serving.log import ServingLog
from fragility.base.errors import DataError
from fragility.base.files import read_bounded

TOKEN_VARIABLE = "FRAGILITY_TOKEN"
SHORTEST_TOKEN = 16  # characters
TOKEN_BYTES = 4096
BACKLOG = 2048


def read_token(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token of a file, or of the environment; None where there is neither."""
    if path is not None:
        try:
            token = read_bounded(path, TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the token {path}: {getattr(error, 'strerror', None) or error}") from error
        source = str(path)
    else:
        token, source = environment.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
        if not token:
            return None
    if len(token) < SHORTEST_TOKEN or not all(33 <= ord(letter) <= 126 for letter in token):
        raise DataError(
            f"the token in {source} must be at least {SHORTEST_TOKEN} letters and digits without spaces; make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections at an address; port 0 is any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = bind(family, address)
        listening.listen(BACKLOG)
        return listening
    except OSError as error:
        reason = error.strerror or error
        raise AddressError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from error


def serve(
    answering: Answering,
    log: ServingLog | None,
    rules: ServiceRules,
    listening: socket.socket,
    *,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal ends it; ``announce`` is called with the address."""
    app, service = create_app(answering, log, rules)
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = Server(
        app,
        on_start=lambda: announce(address),
        on_stop=service.refuse_more,
        lifespan="on",
        patience=int(rules.guards.most_seconds) + 1,
    )
    server.run(sockets=[listening])
