"""The lattice block, recomputed.

It is searched again as it declares, every set is put to the model, and the model is asked about smaller sets as far as
that is affordable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans
from fragility.base.errors import EngineError
from fragility.base.libraries import say_lacking
from fragility.blocks.block import BlockRecheck
from fragility.blocks.checks import DISAGREEMENT, Difference, find_differences
from fragility.blocks.claims import Claims
from fragility.blocks.lattice.making import add_chances, claims_of_sets, failures_of, search_rows
from fragility.blocks.lattice.values import FAILURE_FIELDS, LatticeClaims, LatticeDeclaration, lattice_claims_of
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import refusal
from fragility.engines.lattice.additive import FlipRule
from fragility.engines.lattice.whole import find_lattice, never_searches, row_blocks
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows, States
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, none_up_to
from fragility.pages.wording import write_count
from fragility.protocol import Protocol
from fragility.questions.reliability.failure import failure_of_rows
from fragility.questions.search import failing_sets_of_rows
from fragility.questions.search.blackbox import live_groups

ASKED_STATES = 1024  # per row: how often the model itself is asked about what an engine claims
SEARCHED = ("smallest_state", "smallest_size", "smallest_set", "smallest_count")
CHANCES = FAILURE_FIELDS[:3]


@dataclass(eq=False)
class LatticeRecheck(BlockRecheck):
    """The lattice block of rows, searched again."""

    asked: int = 0  # rows for which the model itself was asked about every smaller set

    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        """Search the block of these rows again.

        The model is asked about every claimed set. The declared search is repeated, and if it was an engine's, the
        model itself is asked about all smaller sets as far as ``ASKED_STATES`` go.
        """
        protocol, declared = self.own.protocol, self.own.declared
        assert isinstance(declared, LatticeDeclaration)
        claimed, engine = lattice_claims_of(block, declared, protocol), declared.engine
        disputed = _find_false_sets(claimed, rows, protocol)
        never = never_searches(engine, rows, protocol)
        fresh, unread = (None, never) if never else _search_again(rows, protocol, declared)
        self.never, self.unread = self.never or never, self.unread or unread
        if fresh is None:
            return disputed + self._search_by_asking(claimed, rows, declared)
        disputed += _compare((*SEARCHED, "failure_exact", *CHANCES), claimed, fresh, declared, protocol)
        disputed += _compare_margins(claimed, fresh, self.tolerance)
        if engine != BLACKBOX:
            denied, settled = _ask_model(claimed, rows, protocol, declared)
            disputed += denied
            self.asked += settled
        return disputed

    def _search_by_asking(
        self, claimed: LatticeClaims, rows: EvidenceRows, declared: LatticeDeclaration
    ) -> list[Difference]:
        """Search as a black box, because the engine is not available; what that cannot settle is not searched."""
        protocol = self.own.protocol
        asked = search_rows(rows, protocol, replace(declared, engine=BLACKBOX), progress=False)
        searched = _find_proved(claimed, declared) & _find_proved(asked, declared)
        searched &= (claimed.smallest_count >= 0) & (asked.smallest_count >= 0)
        if claimed.expected_margin is not None and asked.failure_exact is not None:
            searched &= asked.failure_exact & np.isnan(claimed.expected_margin)  # it cannot be asked for
        settled = int(searched.sum())
        self.asked += settled
        self.unsearched += len(rows) - settled
        return _find_denied(claimed, asked, declared, protocol)

    def describe(self) -> str:
        told = "every claim recomputed holds" if self.unsearched and not self.bad_rows else self.result
        return f"{self._describe_search(self.own.declared.engine)}, {told}"

    def _describe_search(self, engine: str) -> str:
        if self.unread is not None:
            return (
                f"the {engine} engine cannot read the model here ({self.unread}): {self.unsearched} of "
                f"{write_count(self.rows, 'row')} {'was' if self.rows == 1 else 'were'} not searched again"
            )
        if engine == BLACKBOX:
            return f"{write_count(self.rows, 'row')} searched again by asking the model"
        rows = write_count(self.rows, "row")
        return f"{rows} searched again; for {self.asked} the model itself was asked about every smaller set"


def _find_false_sets(claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol) -> list[Difference]:
    """Return the claimed sets that do not flip the model."""
    rule, out = FlipRule.of(rows, protocol), list[Difference]()
    for start, x, _, original in row_blocks(rows, rule):
        sets = claimed.smallest_set[start : start + len(x)]
        states = States(np.arange(len(x)), sets).sparing(rows.spared(start, start + len(x)), rows.column_group)
        margin = rule.support(ModelOracle(rows).answer_states(x, states), original)
        flips = (margin < DISAGREEMENT - rule.resolution) | ~sets.any(axis=1)
        for i in np.flatnonzero(~flips):
            found = f"margin {margin[i]:g}, which is no flip"
            out.append(Difference(claimed.ids[start + i], "smallest_set", _list_members(sets[i], protocol), found))
    return out


def _search_again(
    rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> tuple[LatticeClaims | None, str | None]:
    """Return the block by the declared search; or None, and why its engine cannot search these rows here."""
    try:
        if declared.engine != BLACKBOX:
            reason = refusal(declared.engine, rows)
            if reason is None and find_lattice(rows, protocol, declared.engine, DEFAULT_BYTE_BUDGET) is None:
                reason = say_lacking("the exact search of failing sets", "numba") or "its subsets cannot be tabulated"
            if reason is not None:
                return None, reason
        return search_rows(rows, protocol, declared, progress=False), None
    except EngineError as error:
        return None, str(error)


def _compare(
    names: Sequence[str],
    claimed: LatticeClaims,
    fresh: LatticeClaims,
    declared: LatticeDeclaration,
    protocol: Protocol,
    chosen: Booleans | None = None,
) -> list[Difference]:
    """Return where claims of the chosen rows differ: chances by more than rounding, all others at all."""
    if chosen is not None:
        claimed, fresh = (block.take(np.flatnonzero(chosen).tolist()) for block in (claimed, fresh))
    show: dict[str, Callable[[Any], Any]] = {
        "smallest_state": lambda state: declared.states()[int(state)],
        "smallest_set": lambda members: _list_members(members, protocol),
        **dict.fromkeys(("smallest_size", "smallest_count"), lambda count: None if count < 0 else int(count)),
    }
    out: list[Difference] = []
    for name in names:
        a, b = getattr(claimed, name), getattr(fresh, name)
        if a is not None:
            allowed = DISAGREEMENT if name in CHANCES else None
            out += find_differences(claimed.ids, name, a, b, allowed, show.get(name))
    return out


def _compare_margins(claimed: LatticeClaims, fresh: LatticeClaims, tolerance: float) -> list[Difference]:
    a, b = claimed.expected_margin, fresh.expected_margin
    if a is None or b is None:
        return []
    allowed = tolerance * (1.0 + 1e-3 * np.abs(np.nan_to_num(b)))
    return find_differences(claimed.ids, "expected_margin", a, b, allowed)


def _ask_model(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> tuple[list[Difference], int]:
    """Ask the model itself, by size and within a few states per row; return what it denies and the rows it settled."""
    oracle = ModelOracle(rows)
    found = failing_sets_of_rows(oracle, protocol, method="exact", max_size=declared.max_size, budget=ASKED_STATES)
    out = _find_denied(claimed, claims_of_sets(found, declared), declared, protocol)
    out += _find_denied_chances(claimed, rows, protocol, declared)
    # Every smaller set holds if they were all asked, though the claimed size itself was not.
    smaller_held = found.searched_size >= claimed.smallest_size - 1
    minimum = claimed.smallest_state == declared.states().index(MINIMUM)
    return out, int((found.resolved | (minimum & smaller_held)).sum())


def _find_denied(
    claimed: LatticeClaims, asked: LatticeClaims, declared: LatticeDeclaration, protocol: Protocol
) -> list[Difference]:
    """Return the claims that a search by asking contradicts.

    An upper bound and a search that ended early claim nothing that another search could deny. A set that is one of
    several not counted is a witness, not the first of them.
    """
    proved, decided = (_find_proved(block, declared) for block in (claimed, asked))
    smaller = (asked.smallest_size > 0) & (
        asked.smallest_size < np.where(claimed.smallest_size < 0, np.inf, claimed.smallest_size)
    )
    counted = (claimed.smallest_count >= 0) & (asked.smallest_count >= 0)
    blocks = claimed, asked, declared, protocol
    out = _compare(("smallest_state", "smallest_size"), *blocks, proved & (decided | smaller))
    out += _compare(("smallest_set", "smallest_count"), *blocks, proved & decided & counted)
    if asked.failure_exact is not None:
        out += _compare(("failure_exact", *CHANCES), *blocks, asked.failure_exact)
    return out


def _find_proved(block: LatticeClaims, declared: LatticeDeclaration) -> Booleans:
    words = np.array(declared.states(), dtype=object)[block.smallest_state]
    return np.isin(words, (MINIMUM, NONE_AT_ALL, none_up_to(declared.max_size)))


def _find_denied_chances(
    claimed: LatticeClaims, rows: EvidenceRows, protocol: Protocol, declared: LatticeDeclaration
) -> list[Difference]:
    """Enumerate the subsets of rows that have few; return the probabilities that differ."""
    if claimed.failure_exact is None or declared.rates is None:
        return []
    parts = [slice(start, start + 2048) for start in range(0, len(rows), 2048)]
    live = np.concatenate(
        [
            live_groups(rows, rows.dense(part.start, part.stop), rows.spared(part.start, part.stop)).sum(axis=1)
            for part in parts
        ]
    )
    few = np.flatnonzero(((1 << np.minimum(live, 40)) <= ASKED_STATES) & claimed.failure_exact).tolist()
    if not few:
        return []
    rates = failures_of(declared, protocol)
    chances = failure_of_rows(rows.take(few), protocol, rates, ASKED_STATES, 0, BLACKBOX, DEFAULT_BYTE_BUDGET, None)
    those = claimed.take(few)
    return _compare(CHANCES[:1], those, add_chances(those, chances), declared, protocol)


def _list_members(members: Booleans, protocol: Protocol) -> list[str]:
    return [protocol.group_names[g] for g in np.flatnonzero(members)]
