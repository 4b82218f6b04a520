r"""Decisions expected to be lost at the current rates.

A table of reliability says how a decision depends on each evidence group g: the Birnbaum importance B_g(x), at rates r0
(SPEC section 14). Over its rows, with P the mean of P_flip and B_g the mean importance, the share of decisions that is
lost at other rates r is, to first order,

    L(r) = P + sum_g (r_g - r0_g) B_g           clipped to [0, 1]

r_g is the share of decisions in which a field of g was missing or known to be stale; a stale value counts as lost,
which overstates its cost. P_flip is linear in each rate, so L is exact if only one rate differs from r0, and for r0 = 0
it counts the decisions that a single missing group flips. Of these losses, r_g B_g are due to g. The table comes from
`failure_probability`, or from the certificates of an audit: r0 = 0, P = 0, and B_g is the share of decisions that flip
when g alone is lost. (Rows that were decided without g count as not flipped by it, so an audit of quiet days is the
right one.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fragility.audits import Audit
from fragility.audits.flips import find_single_losses
from fragility.base.arrays import Floats
from fragility.base.errors import DataError
from fragility.questions.reliability.outcomes import FailureProbability

MOST_ROWS = 20_000  # certificates of an audit that are read for the importance of its groups


@dataclass(frozen=True, slots=True, eq=False)
class LossTable:
    """How many decisions are lost with each group: G groups."""

    groups: tuple[str, ...]
    rates: Floats  # (G,) r0
    lost: float  # P
    importance: Floats  # (G,) B
    rows: int
    source: str  # where it comes from, in words

    def expect(self, rates: Floats) -> float:
        """Return L, the share of decisions lost at these rates (G,)."""
        return float(np.clip(self.lost + (rates - self.rates) @ self.importance, 0.0, 1.0))

    def by_group(self, rates: Floats) -> Floats:
        """Return (G,) the share of decisions lost because of each group."""
        return np.asarray(np.clip(rates * self.importance, 0.0, 1.0))


def tabulate_losses(given: FailureProbability, groups: Sequence[str]) -> LossTable:
    """Return the table of a reliability result."""
    names = tuple(groups)
    known, rates, importance = given.group_names, given.rates, given.importance
    lost = float(given.p_flip.mean())
    if set(known) != set(names):
        other = sorted(set(known) ^ set(names))
        raise DataError(
            f"the reliability result is of other evidence groups than the watched decisions ({other[0]!r} is in one of "
            "them only); make one under the same protocol"
        )
    if rates is None:
        raise DataError(
            "the reliability result is of recorded outages, which have no importance per group; make one with rates, "
            "for instance 0.01"
        )
    order = [known.index(name) for name in names]
    known_rows = ~np.isnan(importance)
    if not known_rows.any(axis=0).all():
        unknown = known[int(np.flatnonzero(~known_rows.any(axis=0))[0])]
        raise DataError(
            f"the reliability result says nothing of {unknown!r}, which never fails in it; make one with a rate for "
            "every group, for instance 0.01"
        )
    mean = np.nansum(importance, axis=0) / known_rows.sum(axis=0)
    return LossTable(names, rates[order], lost, mean[order], len(importance), "a reliability table")


def count_single_losses(audit: Audit) -> LossTable | None:
    """Return the table of an audit's certificates; None if they do not say which groups flip a decision alone.

    Margins after the loss of one group tell a flip under the readings that follow the original class, and only full
    certificates hold them.
    """
    if audit.extent != "full" or audit.protocol.reading == "current" or len(audit) == 0:
        return None
    names = audit.protocol.group_names
    flips, rows = np.zeros(len(names)), 0
    for table in audit.batches(["margin", "one_step_drop"]):
        margin = np.asarray(table.column("margin").to_numpy())
        drops = np.asarray(table.column("one_step_drop").combine_chunks().flatten().to_numpy()).reshape(len(table), -1)
        flips += find_single_losses(margin, drops, audit.protocol, len(audit.classes)).sum(axis=0)
        rows += len(table)
        if rows >= MOST_ROWS:
            break
    return LossTable(names, np.zeros(len(names)), 0.0, flips / rows, rows, "the certificates, one group at a time")
