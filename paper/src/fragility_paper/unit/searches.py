"""Greedy against exact and beam search for the smallest failing set.

``search``: as the paper does it, by asking any model about a declared number of rows within a declared budget.
``lattice``: all confident rows of additive models, every subset decided. The beam runs where the greedy path was too
long; elsewhere it could not be shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.arrays import Array
from fragility_paper.library import failing_sets_of_rows
from fragility_paper.unit.case import Case
from fragility_paper.unit.lattice import Lattice
from fragility_paper.unit.work import mean_of

BEAM_WIDTH = 8


def record_search(case: Case) -> None:
    record, profile = case.work.record, case.work.profile
    sample = case.rows.take(case.places(profile.search_rows))
    rows, protocol = sample.evidence, case.work.fitted.protocol
    exact = failing_sets_of_rows(rows, protocol, method="exact", budget=profile.search_evaluations)
    beam = failing_sets_of_rows(rows, protocol, method="beam", width=BEAM_WIDTH)
    found = fg.compare_searches(sample.certs.claims.flip_budget, exact, beam)
    for name in ("exact_match", "greedy_over", "mean_gap", "pair_miss"):
        record.add("search", name, getattr(found, name), count=found.exact_feasible)
    record.add("search", "beam_improve", found.beam_improve, count=found.beam_rows)
    record.add("search", "exact_feasible", found.exact_feasible, count=found.rows)
    record.add("search", "exact_unaffordable", found.exact_unaffordable, count=found.rows)
    record.add("search", "evaluations_exact", int(exact.evaluations.sum()), count=found.rows)
    record.add("search", "evaluations_beam", int(beam.evaluations.sum()), count=found.rows)


def record_lattice(case: Case) -> None:
    """k* against k_min on all confident rows; nothing for a model that is not additive."""
    lattice = case.lattice
    if lattice is None:
        return
    depth = case.work.fitted.protocol.depth
    greedy, smallest = case.rows.certs.claims.flip_budget, lattice.within(depth)
    gap = (greedy - smallest)[lattice.decided]
    missed = (greedy > depth) & (smallest <= depth)  # the path ends without a flip, and a set within its depth fails
    shares = {
        "exact_match": gap == 0,
        "greedy_over": gap > 0,
        "mean_gap": gap,
        "pair_miss": ((smallest == 2) & (greedy > 2))[lattice.decided],
        "missed_flip": missed[lattice.decided],
        "greedy": greedy[lattice.decided],
        "smallest": smallest[lattice.decided],
        "never_fails": ~lattice.found[lattice.decided],
        "single_set": (lattice.sets == 1)[lattice.found],
    }
    case.work.record.add("lattice", "decided", mean_of(lattice.decided), count=len(greedy))
    for name, values in shares.items():
        case.work.record.add("lattice", name, mean_of(values), count=len(values))
    case.work.record.add("lattice", "largest_gap", gap.max(initial=0.0), count=len(gap))
    _record_beam(case, lattice, greedy)


def _record_beam(case: Case, lattice: Lattice, greedy: Array) -> None:
    """In how many rows the beam is shorter than the path, and how often it still is too large where the path was."""
    protocol = case.work.fitted.protocol
    smallest = lattice.within(protocol.depth)
    too_large = np.flatnonzero(greedy > smallest)
    found = np.zeros(0, dtype=np.int64)
    if len(too_large):
        rows = case.rows.take(too_large).evidence
        found = failing_sets_of_rows(rows, protocol, method="beam", width=BEAM_WIDTH).size
    where: dict[str, Any] = {"count": int(lattice.decided.sum())}
    improved = float((found < greedy[too_large]).sum())
    case.work.record.add("lattice", "beam_improve", improved / max(where["count"], 1), **where)
    still = mean_of(found > smallest[too_large])
    case.work.record.add("lattice", "beam_over_where_greedy_is", still, count=len(too_large))
