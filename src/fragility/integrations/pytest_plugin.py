"""The pytest fixture `fragility_gate`: an audit that breaks a rule fails a test.

pytest loads this module wherever the package is installed, so it imports only the top-level package, which loads its
modules when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fragility as fg
from fragility.gate import GateResult


@pytest.fixture
def fragility_gate() -> Callable[..., GateResult]:
    """Return ``check(audit, rules, against=None, strict=False, **options)``, which fails the test if a rule fails.

    rules: a Gate, or its TOML file; options: further arguments of ``Gate.check``.
    """

    def check(audit: Any, rules: Any, against: Any = None, *, strict: bool = False, **options: Any) -> GateResult:
        __tracebackhide__ = True
        gate = rules if isinstance(rules, fg.Gate) else fg.Gate.load(rules)
        result = gate.check(audit, against, **options)
        if result.outcome == "fail" or (strict and result.outcome == "inconclusive"):
            pytest.fail(result.to_text(), pytrace=False)
        return result

    return check
