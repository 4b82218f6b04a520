"""The lattice block of certificates, searched again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fragility.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats
from fragility.auditing.lattice import BLACKBOX, add_chances, claims_of_sets, failures_of, lattice_of_rows
from fragility.certificates import LatticeDeclaration
from fragility.certificates.lattice import LatticeClaims
from fragility.engines.choice import refusal
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.lattice.whole import find_lattice, never_searches, row_blocks
from fragility.errors import EngineError
from fragility.evidence import EvidenceRows, RowStates
from fragility.libraries import say_lacking
from fragility.progress import Report
from fragility.protocol import Protocol
from fragility.reliability.failure import failure_of_rows
from fragility.reliability.sampling import live_groups
from fragility.search import failing_sets_of_rows
from fragility.wording import MINIMUM, NONE_AT_ALL, none_up_to

ASKED_STATES = 1024  # per row: how often the model itself is asked about what an engine claims
DISAGREEMENT = 1e-9  # of probabilities: sums of the same terms in another order
SEARCHED = ("smallest_state", "smallest_size", "smallest_set", "smallest_count")
CHANCES = ("failure_probability", "failure_low", "failure_high")


class Disputed(NamedTuple):
    """A claim of a block that searching again does not confirm."""

    row: Hashable
    field: str
    claimed: Any
    recomputed: Any


class Confirmed(NamedTuple):
    """What searching n rows again found: the disputed claims, and which rows were confirmed in which way."""

    disputed: list[Disputed]
    searched: Booleans  # (n,) every claim of the row was recomputed
    asked: int  # rows whose smallest set was confirmed by asking the model for each smaller one
    never: str | None  # why the declared engine can never have read the model
    unread: str | None  # why it could not search these rows here


def confirm_lattice(
    claimed: LatticeClaims,
    rows: EvidenceRows,
    protocol: Protocol,
    declared: LatticeDeclaration,
    tolerance: float,
    progress: bool | Report | None,
) -> Confirmed:
    """Search the rows of a claimed block again, in the same order.

    The model is asked about every claimed set. The declared search is repeated, and if it was an engine's, the model
    itself is asked about all smaller sets as far as ``ASKED_STATES`` go. If the engine is not available, the model is
    searched as a black box; what that cannot settle counts as not searched.
    """
    disputed = _sets_that_hold(claimed, rows, protocol)
    never = never_searches(declared.engine, rows, protocol)
    fresh, unread = (None, never) if never else _search_again(rows, protocol, declared, progress)
    if fresh is not None:
        disputed += _differences(claimed, fresh, declared, protocol, tolerance)
        searched, settled = np.ones(len(rows), dtype=bool), 0
        if declared.engine != BLACKBOX:
            denied, settled = _ask_model(claimed, rows, protocol, declared)
            disputed += denied
    else:
        asked = lattice_of_rows(rows, protocol, replace(declared, engine=BLACKBOX), progress=progress)
        disputed += _denied(claimed, asked, declared, protocol)
        searched = _proved(claimed, declared) & _proved(asked, declared)
        searched &= (claimed.smallest_count >= 0) & (asked.smallest_count >= 0)
        if claimed.expected_margin is not None and asked.failure_exact is not None:
            searched &= asked.failure_exact & np.isnan(claimed.expected_margin)  # it cannot be asked for
        settled = int(searched.sum())
    first = {(dispute.row, dispute.field): dispute for dispute in reversed(disputed)}
    return Confirmed(list(first.values())[::-1], searched, settled, never, unread)


def _sets_that_hold(claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol) -> list[Disputed]:
    """Return the claimed sets that do not flip the model."""
    rule, out = FlipRule.of(rows, protocol), []
    for start, x, _, original in row_blocks(rows, rule):
        sets = claimed.smallest_set[start : start + len(x)]
        margin = rule.margin(rows.answers(x, RowStates(np.arange(len(x)), sets)), original)
        flips = (margin < DISAGREEMENT - rule.resolution) | ~sets.any(axis=1)
        for i in np.flatnonzero(~flips):
            found = f"margin {margin[i]:g}, which is no flip"
            out.append(Disputed(claimed.ids[start + i], "smallest_set", _names(sets[i], protocol), found))
    return out


def _search_again(
    rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration, progress: bool | Report | None
) -> tuple[LatticeClaims | None, str | None]:
    """Return the block by the declared search; or None, and why its engine cannot search these rows here."""
    try:
        if declared.engine != BLACKBOX:
            reason = refusal(declared.engine, rows)
            if reason is None and find_lattice(rows, protocol, declared.engine, DEFAULT_BYTE_BUDGET) is None:
                reason = say_lacking("the exact search of failing sets", "numba") or "its subsets cannot be tabulated"
            if reason is not None:
                return None, reason
        return lattice_of_rows(rows, protocol, declared, progress=progress), None
    except EngineError as error:
        return None, str(error)


def _differences(
    claimed: LatticeClaims, fresh: LatticeClaims, declared: LatticeDeclaration, protocol: Protocol, tolerance: float
) -> list[Disputed]:
    """Return the claims that differ: sets, sizes, counts and words at all, numbers by more than their tolerance."""
    out: list[Disputed] = []
    for name in (*SEARCHED, "failure_exact"):
        out += _exact_differences(name, claimed, fresh, declared, protocol)
    for name in CHANCES:
        out += _number_differences(name, claimed, fresh, DISAGREEMENT)
    if fresh.expected_margin is not None:
        allowed = tolerance * (1.0 + 1e-3 * np.abs(np.nan_to_num(fresh.expected_margin)))
        out += _number_differences("expected_margin", claimed, fresh, allowed)
    return out


def _exact_differences(
    name: str, claimed: LatticeClaims, fresh: LatticeClaims, declared: LatticeDeclaration, protocol: Protocol
) -> list[Disputed]:
    a, b = getattr(claimed, name), getattr(fresh, name)
    if a is None:
        return []

    def plain(value: Any) -> Any:
        if name == "smallest_state":
            return declared.states()[int(value)]
        if name == "smallest_set":
            return _names(value, protocol)
        return None if name != "failure_exact" and value < 0 else value.item()

    differs = (a != b).any(axis=1) if a.ndim == 2 else a != b
    return [Disputed(claimed.ids[i], name, plain(a[i]), plain(b[i])) for i in np.flatnonzero(differs)]


def _number_differences(
    name: str, claimed: LatticeClaims, fresh: LatticeClaims, allowed: float | Floats
) -> list[Disputed]:
    a, b = getattr(claimed, name), getattr(fresh, name)
    if a is None:
        return []
    with np.errstate(invalid="ignore"):
        differs = ~((np.abs(a - b) <= allowed) | (np.isnan(a) & np.isnan(b)))
    return [Disputed(claimed.ids[i], name, a[i].item(), b[i].item()) for i in np.flatnonzero(differs)]


# --- asking the model itself --------------------------------------------------------------------------------


def _ask_model(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> tuple[list[Disputed], int]:
    """Ask the model itself, by size and within a few states per row; return what it denies and the rows it settled."""
    found = failing_sets_of_rows(rows, protocol, method="exact", max_size=declared.max_size, budget=ASKED_STATES)
    out = _denied(claimed, claims_of_sets(found, declared), declared, protocol)
    out += _chances_denied(claimed, rows, protocol, declared)
    # Every smaller set holds if they were all asked, though the claimed size itself was not.
    smaller_held = found.searched_size >= claimed.smallest_size - 1
    minimum = claimed.smallest_state == declared.states().index(MINIMUM)
    return out, int((found.resolved | (minimum & smaller_held)).sum())


def _denied(
    claimed: LatticeClaims, asked: LatticeClaims, declared: LatticeDeclaration, protocol: Protocol
) -> list[Disputed]:
    """Return the claims that a search by asking contradicts.

    An upper bound and a search that ended early claim nothing that another search could deny. A set that is one of
    several not counted is a witness, not the first of them.
    """
    proved, decided = (_proved(block, declared) for block in (claimed, asked))
    smaller = (asked.smallest_size > 0) & (
        asked.smallest_size < np.where(claimed.smallest_size < 0, np.inf, claimed.smallest_size)
    )
    contradicted = np.flatnonzero(proved & (decided | smaller))
    counted = np.flatnonzero(proved & decided & (claimed.smallest_count >= 0) & (asked.smallest_count >= 0))
    out: list[Disputed] = []
    for places, names in (
        (contradicted, ("smallest_state", "smallest_size")),
        (counted, ("smallest_set", "smallest_count")),
    ):
        those, fresh = claimed.take(places.tolist()), asked.take(places.tolist())
        for name in names:
            out += _exact_differences(name, those, fresh, declared, protocol)
    if asked.failure_exact is not None:
        exact = np.flatnonzero(asked.failure_exact).tolist()
        those, fresh = claimed.take(exact), asked.take(exact)
        out += _exact_differences("failure_exact", those, fresh, declared, protocol)
        for name in CHANCES:
            out += _number_differences(name, those, fresh, DISAGREEMENT)
    return out


def _proved(block: LatticeClaims, declared: LatticeDeclaration) -> Booleans:
    words = np.array(declared.states(), dtype=object)[block.smallest_state]
    return np.isin(words, (MINIMUM, NONE_AT_ALL, none_up_to(declared.max_size)))


def _chances_denied(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> list[Disputed]:
    """Enumerate the subsets of rows that have few; return the probabilities that differ."""
    if claimed.failure_exact is None or declared.rates is None:
        return []
    starts = range(0, len(rows), 2048)
    live = np.concatenate([live_groups(rows, rows.dense(start, start + 2048)).sum(axis=1) for start in starts])
    few = np.flatnonzero(((1 << np.minimum(live, 40)) <= ASKED_STATES) & claimed.failure_exact).tolist()
    if not few:
        return []
    rates = failures_of(declared, protocol)
    chances = failure_of_rows(rows.take(few), protocol, rates, ASKED_STATES, 0, BLACKBOX, DEFAULT_BYTE_BUDGET, None)
    those = claimed.take(few)
    return _number_differences("failure_probability", those, add_chances(those, chances), DISAGREEMENT)


def _names(members: Booleans, protocol: Protocol) -> list[str]:
    return [protocol.group_names[g] for g in np.flatnonzero(members)]
