"""Who may use the workbench: tokens that open it once, and the browsers that came in with one.

A browser sends its cookies to every port of a host name, and any server of this machine can set cookies for the names
it shares with us. The workbench is therefore served under a host name of its own, `review-<random>.localhost`, which
browsers take to this machine: no other server is ever asked for under that name, so none receives or sets our cookie.
What a cookie stands for, the reviewer's name included, is kept here and not in the browser.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

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
            self._tokens.add(_hashed(token))
        return f"http://{self.authority}{path}?token={token}"

    def admit(self, token: str) -> str | None:
        """Use up a token; return the secret for the browser's cookie, or None if the token is not valid (any more)."""
        with self._lock:
            if _hashed(token) not in self._tokens:
                return None
            self._tokens.discard(_hashed(token))
            secret = secrets.token_urlsafe(32)
            self._browsers[_hashed(secret)] = Session()
        self._on_entry()
        return secret

    def find(self, secret: str) -> Session | None:
        """Return the session of a cookie's secret."""
        return self._browsers.get(_hashed(secret))

    def set_cookie(self, secret: str) -> str:
        """Return the header that gives a browser its cookie."""
        return f"{self.cookie}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={WEEK}"


def _hashed(secret: str) -> bytes:
    # Looked up by hash, so that the time a lookup takes tells nothing about the secret.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
