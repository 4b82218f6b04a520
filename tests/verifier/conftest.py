"""Audits are made once a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from audited_cases import CASES, Audited, make_audit


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Audited]:
    made: dict[str, Audited] = {}

    def find(name: str) -> Audited:
        if name not in made:
            made[name] = make_audit(CASES[name], tmp_path_factory.mktemp("audits") / "audit")
        return made[name]

    return find
