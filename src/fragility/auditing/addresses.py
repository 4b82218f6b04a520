"""Addresses of clusters: whether anything answers there, before a library waits for it without end."""

from __future__ import annotations

import re
import socket

from fragility.errors import ClusterError

WAIT_SECONDS = 10


def check_answers(variable: str, address: str) -> None:
    """Refuse an address of the form [scheme://]host:port at which nothing takes a connection; others are not judged."""
    found = re.fullmatch(r"(?:\w+://)?(\[[^]]+\]|[^:/,\[\]]+):(\d{1,5})", address.strip())
    if found is None:
        return
    try:
        with socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=WAIT_SECONDS):
            return
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ClusterError(
            f"{variable} names {address}, where nothing answers ({reason}); start the cluster there, "
            f"or unset {variable}"
        ) from error
