"""A cluster that does not answer is said at once."""

from __future__ import annotations

import socket

import pytest

from fragility.auditing.parts import check_answers
from fragility.base.errors import ClusterError


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "spark://127.0.0.1:{}"])
def test_nothing_answers(form: str) -> None:
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS names .*, where nothing answers .*; start the cluster"):
        check_answers("RAY_ADDRESS", form.format(free_port()))


def test_what_listens_and_what_is_no_single_address_passes() -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        check_answers("RAY_ADDRESS", f"127.0.0.1:{place.getsockname()[1]}")
    for address in ("auto", "local", "local[2]", "yarn", "spark://a:1,b:2"):
        check_answers("MASTER", address)


def test_a_port_that_none_has_is_said() -> None:
    with pytest.raises(ClusterError, match=r"nothing answers"):
        check_answers("MASTER", "spark://127.0.0.1:99999")
