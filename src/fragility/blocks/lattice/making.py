"""The lattice block: how it is declared, and how rows are searched for it.

`search_rows` is a function of rows, protocol and declaration alone, so a block may be made part by part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats
from fragility.base.progress import Report, progress_bar
from fragility.blocks.choice import ChosenRows
from fragility.blocks.lattice.values import (
    BEAM_WIDTH,
    LEAST_DRAWS,
    MOST_EXPOSED,
    SEARCH_STATES,
    LatticeClaims,
    LatticeDeclaration,
    largest_size,
    seed_of,
)
from fragility.engines.lattice.whole import find_lattice
from fragility.evidence import EvidenceRows
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, none_up_to
from fragility.protocol import Protocol
from fragility.questions.reliability.failure import declared_failures, failure_of_rows
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.reliability.rates import EventSets
from fragility.questions.search import FailingSets, find_failing_sets
from fragility.questions.search.blackbox import DEFAULT_NODES

BLACKBOX = "blackbox"
LATTICE_ENGINES = ("trees", "linear", "wrapped", BLACKBOX)


def declare_lattice(
    rows: EvidenceRows, protocol: Protocol, engine: str, rates: Any, wanted: bool | None = True
) -> LatticeDeclaration | None:
    """Return what a block of these rows will be made with; None for no block.

    rates: as in ``assess_reliability``; they are of every row.
    wanted: None for the most exposed rows, where an engine can read the model; else every row.
    """
    lattice = None if engine == "neural" else find_lattice(rows, protocol, engine, DEFAULT_BYTE_BUDGET)
    partial = wanted is None and rates is None
    if partial and lattice is None:
        return None
    declared = LatticeDeclaration(
        engine=BLACKBOX if lattice is None else lattice.model.name,
        rows=ChosenRows(MOST_EXPOSED, "exposure") if partial else None,
        max_size=largest_size(protocol),
        budget=SEARCH_STATES,
        width=BEAM_WIDTH,
    )
    if rates is None:
        return declared
    failures = declared_failures(rates, rows, protocol)
    if isinstance(failures, EventSets):
        counts = Counter[int]()  # fields of one group are one and the same event
        for place, weight in zip(failures.of_event.tolist(), failures.weight.tolist(), strict=True):
            counts[place] += round(weight * failures.events)
        names = protocol.group_names
        events = [
            {"groups": [names[g] for g in np.flatnonzero(failures.removed[place])], "count": count}
            for place, count in sorted(counts.items())
        ]
        return replace(declared, events=events)
    by_group = dict(zip(protocol.group_names, failures.tolist(), strict=True))
    seed = seed_of(protocol.digest, rows.model.fingerprint)
    return replace(declared, rates=by_group, draws=LEAST_DRAWS, seed=seed)


def search_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    declared: LatticeDeclaration,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = False,
) -> LatticeClaims:
    """Return the block of some rows; the block of a row depends on no other row."""
    found = find_failing_sets(
        rows.model,
        rows,
        protocol,
        max_size=declared.max_size,
        budget=declared.budget,
        width=declared.width,
        nodes=DEFAULT_NODES if declared.rows is None else 0,  # of chosen rows, what is decided quickly
        engine=declared.engine,
        byte_budget=byte_budget,
        progress=progress,
    )
    block = claims_of_sets(found, declared)
    if not declared.has_failures:
        return block
    failures, draws, seed = failures_of(declared, protocol), declared.draws or LEAST_DRAWS, declared.seed or 0
    with progress_bar("failure probabilities", progress) as report:
        chances = failure_of_rows(rows, protocol, failures, draws, seed, declared.engine, byte_budget, report)
    return add_chances(block, chances)


def claims_of_sets(found: FailingSets, declared: LatticeDeclaration) -> LatticeClaims:
    """Return what a search claims of each row's smallest failing set."""
    state = np.array([declared.states().index(word) for word in found.state], dtype=np.int64)
    proved = np.isin(found.state, (NONE_AT_ALL, none_up_to(declared.max_size)))
    is_minimum = np.asarray(found.state) == MINIMUM
    return LatticeClaims(
        ids=tuple(found.id),
        smallest_state=state,
        smallest_size=np.where(found.found, found.size, -1),
        smallest_set=found.removed,
        smallest_count=np.where(is_minimum, found.count, np.where(proved, 0, -1)),
    )


def add_chances(block: LatticeClaims, chances: FailureProbability) -> LatticeClaims:
    """Return a block with failure probabilities."""
    # A sum of products may exceed 1 in its last digit.
    likely, low, high = (np.clip(values, 0.0, 1.0) for values in (chances.p_flip, chances.low, chances.high))
    return replace(
        block,
        failure_probability=likely,
        failure_low=low,
        failure_high=high,
        failure_exact=chances.exact,
        expected_margin=chances.expected_margin,
    )


def failures_of(declared: LatticeDeclaration, protocol: Protocol) -> Floats | EventSets:
    """Return the declared rates of failure per group, or the declared events."""
    if declared.rates is not None:
        return np.array(list(declared.rates.values()), dtype=np.float64)
    events = declared.events or []
    patterns = np.array([[name in event["groups"] for name in protocol.group_names] for event in events])
    return EventSets.of_patterns(patterns, np.array([event["count"] for event in events]))
