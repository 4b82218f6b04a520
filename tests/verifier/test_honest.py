"""What the library makes, the verifier in one file takes: two readings of the format agree."""

from __future__ import annotations

import pytest
from audited_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_an_honest_audit_is_proved(audited, name: str) -> None:
    case = audited(name)
    result = case.check()
    assert result.exit_code == 0, str(result)
    proved = " ".join(result.lists["proved"])
    assert "the flip budgets (24)" in proved and "the training rows (1)" in proved
    for block, topic in (("modes", "drops of modes"), ("intervals", "inside intervals")):
        assert (topic in proved) == bool(CASES[name].blocks.get(block))
