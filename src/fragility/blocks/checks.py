"""Checks: what was looked at, whether it holds, and the claims that do not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.base.text import escape_controls
from fragility.pages.wording import write_count

MAX_LISTED = 20
DISAGREEMENT = 1e-9  # of recomputed probabilities: sums of the same terms in another order
MAX_KEPT = 10_000  # differences; what is wrong in more rows than this is counted only
# What a document of unknown origin can still set off behind the checks that name its fault.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class Difference:
    """A claim that does not hold."""

    row: Hashable
    field: str
    claimed: Any
    recomputed: Any

    def __str__(self) -> str:
        told = f"row {self.row}, {self.field}: claimed {self.claimed}, recomputed {self.recomputed}"
        return escape_controls(told)


def find_differences(
    ids: Sequence[Hashable],
    name: str,
    claimed: Any,
    fresh: Any,
    allowed: Any = None,
    show: Callable[[Any], Any] | None = None,
) -> list[Difference]:
    """Return the rows whose claim differs from the recomputed one.

    allowed: how far a number may lie from the claimed one; where it is None, the two must be equal. show: how a value
    is told.
    """
    if allowed is None:
        differs = claimed != fresh
    else:
        with np.errstate(invalid="ignore"):
            differs = ~((np.abs(claimed - fresh) <= allowed) | (np.isnan(claimed) & np.isnan(fresh)))
    rows = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=1)).tolist()
    show = show or (lambda value: value.tolist())
    return [Difference(ids[i], name, show(claimed[i]), show(fresh[i])) for i in rows]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: whether it passed, in words, and the claims that failed it.

    empty: whether there was nothing to look at, so that passing proves nothing.
    """

    name: str
    passed: bool
    detail: str
    tolerance: float | None = None
    differences: tuple[Difference, ...] = ()
    empty: bool = False

    @property
    def mark(self) -> str:
        """How the check ended: ok, FAILED or nothing."""
        return "FAILED" if not self.passed else "nothing" if self.empty else "ok"


@dataclass(eq=False)
class Recheck:
    """What came of recomputing some claims of an audit, part by part."""

    audit: Any
    rows: int = 0
    bad_rows: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def tolerance(self) -> float:
        """How far a recomputed margin may lie."""
        return float(self.audit.protocol.resolution)

    @property
    def result(self) -> str:
        """Whether the claims hold, in words."""
        if not self.rows:
            return "so none of these claims was checked"
        return (
            f"{write_count(self.bad_rows, 'row')} {'does' if self.bad_rows == 1 else 'do'} not hold"
            if self.bad_rows
            else "every claim holds"
        )

    def note(self, rows: int, differences: list[Difference]) -> None:
        """Count the rows recomputed and those that do not hold; of the differences only so many are kept."""
        self.rows += rows
        self.bad_rows += len({difference.row for difference in differences})
        self.differences += differences[: MAX_KEPT - len(self.differences)]


def describe_checks(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check, and below it the claims that failed it."""
    lines = []
    for check in checks:
        lines.append(f"{check.mark:<8}{check.name:<13}  {escape_controls(check.detail)}")
        lines += [f"          {difference}" for difference in check.differences[:MAX_LISTED]]
        if len(check.differences) > MAX_LISTED:
            lines.append(f"          and {len(check.differences) - MAX_LISTED} more")
    return lines
