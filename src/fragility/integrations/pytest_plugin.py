"""The pytest fixture `fragility_gate`: an audit that breaks a rule fails a test.

pytest loads this module wherever the package is installed, so it imports the package's door alone, which loads the rest
when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fragility as fg
from fragility.gate import GateResult


@pytest.fixture
def fragility_gate() -> Callable[..., GateResult]:
    """Return ``check(audit, rules, against=None, strict=False, **given)``, which fails the test if a rule fails.

    rules: a Gate, or the TOML file of one; given: what ``Gate.check`` takes besides.
    """

    def check(audit: Any, rules: Any, against: Any = None, *, strict: bool = False, **given: Any) -> GateResult:
        __tracebackhide__ = True
        gate = rules if isinstance(rules, fg.Gate) else fg.Gate.load(rules)
        result = gate.check(audit, against, **given)
        if result.outcome == "fail" or (strict and result.outcome == "inconclusive"):
            pytest.fail(result.to_text(), pytrace=False)
        return result

    return check
