"""The result of checks that recompute no prediction: each check in words, and one line of verdict."""

from __future__ import annotations

from dataclasses import dataclass

from fragility.verification.verifying import Check, told_checks


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of checking a signature or a proof; true if every check passed.

    Attributes
    ----------
    checks : tuple of Check
        The checks in order: ``name``, ``passed`` and ``detail``.
    holds : str
        What follows where every check passed, in one sentence.
    """

    checks: tuple[Check, ...]
    holds: str

    def __bool__(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        failed = [check.name for check in self.checks if not check.passed]
        return self.holds if self else f"NOT verified: {' and '.join(failed)} failed"

    def __str__(self) -> str:
        return "\n".join([*told_checks(self.checks), self.verdict])

    __repr__ = __str__
