"""Outcomes: what a check found, claim by claim, and the verdict over all checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fragility.base.text import escape_controls
from fragility.blocks.checks import Check, describe_checks
from fragility.pages.results import TOP, Result
from fragility.pages.sections import Cell, Facts, Notice, Section, Table, Text
from fragility.pages.wording import write_count

NOT_FITTED = "that the protocol is fitted on training rows"
FORGED_SHARE = 0.01  # the share of forged rows for which the chance to escape a sample is told


def list_checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return checks as plain values."""
    return [
        {
            "name": check.name,
            "passed": check.passed,
            "empty": check.empty,
            "detail": check.detail,
            "differences": [str(one) for one in check.differences],
        }
        for check in checks
    ]


def show_checks(checks: Sequence[Check], verdict: str, *, holds: bool, not_proved: Sequence[str] = ()) -> Section:
    """Return the verdict and each check, to read."""
    said = {"ok": Cell("holds"), "FAILED": Cell("FAILED", amiss=True), "nothing": Cell("nothing to check")}
    rows = [(check.name, said[check.mark], check.detail) for check in checks]
    differences = [(check.name, str(one)) for check in checks for one in check.differences]
    return Section(
        "verification",
        "What was checked",
        [
            Text([verdict]) if holds else Notice(verdict),
            Table("", ("check", "", "what was found"), rows, wrapped=True, words=3),
            *([Facts(differences)] if differences else []),
            *([Facts([("not proved", text) for text in not_proved])] if not_proved else []),
        ],
    )


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Result):
    """The result of all checks; true if every one passed. Whether they covered every row, ``complete`` says.

    Attributes
    ----------
    checks : tuple of Check
        The checks in order: ``name``, ``passed``, ``detail``, ``tolerance`` and the ``differences`` found.
    rows_audited : int
        Rows of the audit, as its manifest says.
    rows_present : int
        Certificates that are here.
    rows_given : int
        Rows handed to :func:`verify`.
    rows_recomputed : int
        Certificates whose every claim was recomputed.
    unsearched : mapping of str to int
        By block: of these, those with a claim in it that could not be recomputed, because the engine that made it
        cannot read the model here.
    assumed : tuple of str
        What no check has shown, whatever was recomputed, as ``that ...``.
    """

    checks: tuple[Check, ...]
    rows_audited: int = 0
    rows_present: int = 0
    rows_given: int = 0
    rows_recomputed: int = 0
    unsearched: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    _title: ClassVar[str] = "Verification"
    _generator: ClassVar[str] = "fragility verify"

    def __bool__(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def complete(self) -> bool:
        """True if every row audited and every row given has a certificate here whose every claim was recomputed."""
        whole = self.rows_recomputed == self.rows_present == self.rows_audited == self.rows_given
        return bool(self) and whole and not self.unsearched

    def escape_probability(self, forged: int) -> float:
        """Return the chance that none of so many forged certificates was among those recomputed.

        Parameters
        ----------
        forged : int
            How many of the certificates present are supposed to be forged.

        Returns
        -------
        float
            0 where every certificate was recomputed.
        """
        n, sampled = self.rows_present, self.rows_recomputed
        few, many = sorted((min(forged, n), sampled))
        return math.prod((n - many - i) / (n - i) for i in range(few)) if few + many <= n else 0.0

    @property
    def proved(self) -> tuple[str, ...]:
        """What the checks have shown; nothing if one failed."""
        return tuple(f"{check.name}: {check.detail}" for check in self.checks if not check.empty) if self else ()

    @property
    def not_proved(self) -> tuple[str, ...]:
        """What they have not: what was not recomputed, and what is taken on trust."""
        return (*self._gaps(), *self.assumed) if self else ()

    @property
    def verdict(self) -> str:
        """The result in one line, which names what was not checked."""
        if not self:
            failed = [check.name for check in self.checks if not check.passed]
            return f"NOT verified: {' and '.join(failed)} failed"
        fitted = any(check.name == "training" for check in self.checks)
        rest = ", and the protocol is fitted on the training rows given" if fitted else f"; not checked: {NOT_FITTED}"
        if self.complete:
            which = "the one certificate" if self.rows_present == 1 else f"all {self.rows_present} certificates"
            return f"verified: every claim of {which} holds{rest}"
        return f"verified in part: every claim recomputed holds; {'; '.join(self._gaps())}{rest}"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            The verdict, each check, and what was proved and what was not.
        """
        return {
            "verified": bool(self),
            "complete": self.complete,
            "verdict": self.verdict,
            "checks": list_checks(self.checks),
            "proved": list(self.proved),
            "not_proved": list(self.not_proved),
        }

    def _gaps(self) -> list[str]:
        """Say what was not checked."""
        gaps = []
        hidden, uncertified = self.rows_audited - self.rows_present, self.rows_given - self.rows_present
        if hidden:
            gaps.append(f"{self.rows_present} of {self.rows_audited} audited rows are here, {hidden} are not checked")
        if uncertified and self.rows_given != self.rows_audited:
            gaps.append(f"{uncertified} of the {self.rows_given} rows given have no certificate")
        if self.rows_recomputed < self.rows_present:
            forged = max(1, round(FORGED_SHARE * self.rows_present))
            gaps.append(
                f"{self.rows_recomputed} of {self.rows_present} certificates were recomputed, chosen at random: "
                f"{forged} forged ({forged / self.rows_present:.0%}) would escape with probability "
                f"{self.escape_probability(forged):.2g}"
            )
        for check in self.checks:
            if check.empty and self.rows_recomputed < self.rows_present:
                gaps.append(f"no row of the {check.name} block was among them")
        for name, rows in self.unsearched.items():
            gaps.append(f"the {name} block of {write_count(rows, 'row')} was not searched again")
        return gaps

    def sections(self, top: int = TOP) -> list[Section]:
        """Return the verdict and each check.

        Parameters
        ----------
        top : int, default=10
            Not used: every check is shown.

        Returns
        -------
        list of Section
            One section.
        """
        return [show_checks(self.checks, self.verdict, holds=bool(self), not_proved=self.not_proved)]

    def to_text(self, top: int = TOP) -> str:
        """Return each check, what was not proved, and the verdict.

        Parameters
        ----------
        top : int, default=10
            Not used: every check is shown.

        Returns
        -------
        str
            Several lines; also what printing shows.
        """
        unproved = [f"not proved: {text}" for text in self.not_proved]
        proved = ["proved: the lines marked ok"] if self else []
        return "\n".join([*describe_checks(self.checks), *proved, *map(escape_controls, unproved), self.verdict])

    def _headline(self) -> str:
        return self.verdict


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Result):
    """The result of checking a signature, a proof, a pack or a protocol; true if every check passed.

    Attributes
    ----------
    checks : tuple of Check
        The checks in order: ``name``, ``passed`` and ``detail``.
    holds : str
        What follows where every check passed, in one sentence.
    """

    checks: tuple[Check, ...]
    holds: str

    _title: ClassVar[str] = "Verification"
    _generator: ClassVar[str] = "fragility verify"

    def __bool__(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        failed = [check.name for check in self.checks if not check.passed]
        return self.holds if self else f"NOT verified: {' and '.join(failed)} failed"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form.

        Returns
        -------
        dict
            The verdict, and each check.
        """
        return {"verified": bool(self), "verdict": self.verdict, "checks": list_checks(self.checks)}

    def sections(self, top: int = TOP) -> list[Section]:
        """Return the verdict and each check.

        Parameters
        ----------
        top : int, default=10
            Not used: every check is shown.

        Returns
        -------
        list of Section
            One section.
        """
        return [show_checks(self.checks, self.verdict, holds=bool(self))]

    def to_text(self, top: int = TOP) -> str:
        """Return each check and the verdict.

        Parameters
        ----------
        top : int, default=10
            Not used: every check is shown.

        Returns
        -------
        str
            Several lines; also what printing shows.
        """
        return "\n".join([*describe_checks(self.checks), self.verdict])

    def _headline(self) -> str:
        return self.verdict
