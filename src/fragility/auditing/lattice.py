"""The lattice block of certificates: how rows are searched for it, and how a claimed block is searched again.

`lattice_of_rows` is a function of rows, protocol and declaration alone, so a block may be made part by part.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fragility.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats
from fragility.certificates import LatticeDeclaration
from fragility.certificates.lattice import BEAM_WIDTH, LEAST_DRAWS, MOST_EXPOSED, SEARCH_STATES, LatticeClaims, seed_of
from fragility.engines.choice import refusal
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.lattice.whole import MOST_LIVE, find_lattice, never_searches, row_blocks
from fragility.errors import EngineError, FragilityWarning
from fragility.evidence import EvidenceRows, RowStates
from fragility.libraries import say_lacking
from fragility.progress import Report, progress_bar
from fragility.protocol import Protocol
from fragility.reliability.failure import declared_failures, failure_of_rows
from fragility.reliability.outcomes import FailureProbability
from fragility.reliability.rates import EventSets
from fragility.reliability.sampling import live_groups
from fragility.search import FailingSets, failing_sets_of_rows, find_failing_sets
from fragility.wording import MINIMUM, NONE_AT_ALL, none_up_to

BLACKBOX = "blackbox"
LATTICE_ENGINES = ("trees", "linear", BLACKBOX)
ASKED_STATES = 1024  # of the model itself, a row, for what an engine claims of it
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


# --- making -------------------------------------------------------------------------------------------------


def largest_size(protocol: Protocol) -> int:
    """The largest set a block speaks of: any, up to what a table of subsets holds."""
    return min(len(protocol.groups), MOST_LIVE)


def declare_lattice(
    rows: EvidenceRows, protocol: Protocol, engine: str, rates: Any = None, wanted: bool | None = True
) -> LatticeDeclaration | None:
    """Return what a block of these rows will be made with; None where there will be none.

    rates: as in ``failure_probability``; they are of every row.
    wanted: True for every row, False for none; None for the most exposed rows, where an engine can read the model.
    """
    if wanted is False and rates is None:
        return None
    lattice = None if engine == "neural" else find_lattice(rows, protocol, engine, DEFAULT_BYTE_BUDGET)
    partial = wanted is None and rates is None
    if partial and lattice is None:
        return None
    declared = LatticeDeclaration(
        engine=BLACKBOX if lattice is None else lattice.model.name,
        max_size=largest_size(protocol),
        budget=SEARCH_STATES,
        width=BEAM_WIDTH,
        most_exposed=MOST_EXPOSED if partial else None,
    )
    if rates is None:
        return declared
    failures = declared_failures(rates, rows, protocol)
    if isinstance(failures, EventSets):
        return replace(declared, events=_events(failures, protocol.group_names))
    by_group = dict(zip(protocol.group_names, failures.tolist(), strict=True))
    seed = seed_of(protocol.digest, rows.model.fingerprint)
    return replace(declared, rates=by_group, draws=LEAST_DRAWS, seed=seed)


def _events(events: EventSets, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return events by the groups they remove; fields of one group are one and the same event."""
    counts: dict[int, int] = {}
    for place, weight in zip(events.of_event.tolist(), events.weight.tolist(), strict=True):
        counts[place] = counts.get(place, 0) + round(weight * events.events)
    return [
        {"groups": [names[g] for g in np.flatnonzero(events.removed[place])], "count": count}
        for place, count in sorted(counts.items())
    ]


def lattice_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    declared: LatticeDeclaration,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = False,
) -> LatticeClaims:
    """Return the block of some rows: each row's depends on the declaration and on nothing else here."""
    if not len(rows):
        return no_lattice(protocol)
    found = find_failing_sets(
        rows.model,
        rows,
        protocol,
        max_size=declared.max_size,
        budget=declared.budget,
        width=declared.width,
        engine=declared.engine,
        byte_budget=byte_budget,
        progress=progress,
    )
    block = _sets_of(found, declared)
    if not declared.has_failures:
        return block
    failures, draws, seed = _failures_of(declared, protocol), declared.draws or LEAST_DRAWS, declared.seed or 0
    with progress_bar("failure probabilities", progress) as report:
        chances = failure_of_rows(rows, protocol, failures, draws, seed, declared.engine, byte_budget, report)
    return _with_chances(block, chances)


def search_most_exposed(
    rows: EvidenceRows,
    protocol: Protocol,
    declared: LatticeDeclaration,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
) -> LatticeClaims | None:
    """Return the block of rows that nobody asked to be searched; None, with a warning, where the engine gives up."""
    try:
        return lattice_of_rows(rows, protocol, declared, byte_budget)
    except EngineError as error:
        warnings.warn(FragilityWarning("smallest failing sets were not searched: ", error), stacklevel=4)
        return None


def no_lattice(protocol: Protocol) -> LatticeClaims:
    """Return the block of no rows."""
    none = np.empty(0, dtype=np.int64)
    return LatticeClaims((), none, none, np.empty((0, len(protocol.groups)), dtype=bool), none)


def _sets_of(found: FailingSets, declared: LatticeDeclaration) -> LatticeClaims:
    state = np.array([declared.states().index(word) for word in found.state], dtype=np.int64)
    proved = np.isin(found.state, (NONE_AT_ALL, none_up_to(declared.max_size)))
    is_minimum = np.isin(found.state, (MINIMUM,))
    return LatticeClaims(
        ids=tuple(found.id),
        smallest_state=state,
        smallest_size=np.where(found.found, found.size, -1),
        smallest_set=found.removed,
        smallest_count=np.where(is_minimum, found.count, np.where(proved, 0, -1)),
    )


def _with_chances(block: LatticeClaims, chances: FailureProbability) -> LatticeClaims:
    def bounded(values: Floats) -> Floats:
        return np.clip(values, 0.0, 1.0)  # a sum of products may exceed 1 in its last digit

    return replace(
        block,
        failure_probability=bounded(chances.p_flip),
        failure_low=bounded(chances.low),
        failure_high=bounded(chances.high),
        failure_exact=chances.exact,
        expected_margin=chances.expected_margin,
    )


def _failures_of(declared: LatticeDeclaration, protocol: Protocol) -> Floats | EventSets:
    if declared.rates is not None:
        return np.array(list(declared.rates.values()), dtype=np.float64)
    events = declared.events or []
    patterns = np.array([[name in event["groups"] for name in protocol.group_names] for event in events])
    return EventSets.of_patterns(patterns, np.array([event["count"] for event in events]))


# --- searching again ----------------------------------------------------------------------------------------


def confirm_lattice(
    claimed: LatticeClaims,
    rows: EvidenceRows,
    protocol: Protocol,
    declared: LatticeDeclaration,
    tolerance: float,
    progress: bool | Report | None,
) -> Confirmed:
    """Search the rows of a claimed block again, in the same order.

    Every set claimed is put to the model. The declared search is repeated, and where it was an engine's, the model
    itself is asked about all smaller sets as far as ``ASKED_STATES`` go. Where the engine is not at hand, the model is
    searched as a black box; what that cannot settle is not believed, but counted as not searched.
    """
    disputed = _sets_that_hold(claimed, rows, protocol)
    never = never_searches(declared.engine, rows, protocol)
    fresh, unread = (None, never) if never else _searched_again(rows, protocol, declared, progress)
    if fresh is None:
        asked = lattice_of_rows(rows, protocol, replace(declared, engine=BLACKBOX), progress=progress)
        disputed += _denied(claimed, asked, declared, protocol)
        searched = _settled(claimed, asked, declared)
        return Confirmed(_distinct(disputed), searched, int(searched.sum()), never, unread)
    disputed += _differences(claimed, fresh, declared, protocol, tolerance)
    settled = 0
    if declared.engine != BLACKBOX:
        denied, settled = _asked(claimed, rows, protocol, declared)
        disputed += denied
    return Confirmed(_distinct(disputed), np.ones(len(rows), dtype=bool), settled, never, unread)


def _distinct(disputed: list[Disputed]) -> list[Disputed]:
    return list({(dispute.row, dispute.field): dispute for dispute in reversed(disputed)}.values())[::-1]


def _sets_that_hold(claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol) -> list[Disputed]:
    """Return the sets that do not flip the model."""
    rule, out = FlipRule.of(rows, protocol), []
    for start, x, _, original in row_blocks(rows, rule):
        sets = claimed.smallest_set[start : start + len(x)]
        margin = rule.margin(rows.answers(x, RowStates(np.arange(len(x)), sets)), original)
        holds = (margin < DISAGREEMENT - rule.resolution) | ~sets.any(axis=1)
        for i in np.flatnonzero(~holds):
            names = _names(sets[i], protocol)
            out.append(
                Disputed(claimed.ids[start + i], "smallest_set", names, f"margin {margin[i]:g}, which is no flip")
            )
    return out


def _searched_again(
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
    differs = (a != b).any(axis=1) if a.ndim == 2 else a != b
    return [
        Disputed(claimed.ids[i], name, *(_told(name, value[i], declared, protocol) for value in (a, b)))
        for i in np.flatnonzero(differs)
    ]


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


def _asked(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> tuple[list[Disputed], int]:
    """Ask the model itself, by size and within a few states per row; return what it denies and the rows it settled."""
    found = failing_sets_of_rows(rows, protocol, method="exact", max_size=declared.max_size, budget=ASKED_STATES)
    out = _denied(claimed, _sets_of(found, declared), declared, protocol)
    out += _chances_denied(claimed, rows, protocol, declared)
    # Every smaller set holds where they were all asked, though the claimed size itself was not.
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


def _settled(claimed: LatticeClaims, asked: LatticeClaims, declared: LatticeDeclaration) -> Booleans:
    """Return (n,) the rows of which asking has recomputed every claim: an expected margin cannot be asked for."""
    sets = _proved(claimed, declared) & _proved(asked, declared)
    settled = sets & (claimed.smallest_count >= 0) & (asked.smallest_count >= 0)
    if claimed.expected_margin is None or asked.failure_exact is None:
        return np.asarray(settled)
    return np.asarray(settled & asked.failure_exact & np.isnan(claimed.expected_margin))


def _chances_denied(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> list[Disputed]:
    """Enumerate the subsets of rows that have few; return the probabilities that differ."""
    if claimed.failure_exact is None or declared.rates is None:
        return []
    few = np.flatnonzero(((1 << _live_counts(rows)) <= ASKED_STATES) & claimed.failure_exact).tolist()
    if not few:
        return []
    rates = _failures_of(declared, protocol)
    chances = failure_of_rows(rows.take(few), protocol, rates, ASKED_STATES, 0, BLACKBOX, DEFAULT_BYTE_BUDGET, None)
    those = claimed.take(few)
    return _number_differences("failure_probability", those, _with_chances(those, chances), DISAGREEMENT)


def _live_counts(rows: EvidenceRows) -> Any:
    counts = [live_groups(rows, rows.dense(start, start + 2048)).sum(axis=1) for start in range(0, len(rows), 2048)]
    return np.minimum(np.concatenate(counts), 40)


def _told(name: str, value: Any, declared: LatticeDeclaration, protocol: Protocol) -> Any:
    if name == "smallest_state":
        return declared.states()[int(value)]
    if name == "smallest_set":
        return _names(value, protocol)
    return None if name != "failure_exact" and value < 0 else value.item()


def _names(members: Booleans, protocol: Protocol) -> list[str]:
    return [protocol.group_names[g] for g in np.flatnonzero(members)]
