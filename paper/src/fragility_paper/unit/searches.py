"""Greedy against exact and beam search for the smallest failing set.

``search``: as the paper does it, by asking any model about a declared number of rows within a declared budget.
``lattice``: all confident rows of additive models, every subset decided. The beam runs where the greedy path was too
long; elsewhere it could not be shorter.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import fragility as fg
from fragility_paper.arrays import Array
from fragility_paper.library import FailingSets, NanEqual, failing_sets_of_rows
from fragility_paper.unit.case import Case
from fragility_paper.unit.lattice import Lattice
from fragility_paper.unit.work import mean_of

BEAM_WIDTH = 8


def record_search(case: Case) -> None:
    record, profile = case.work.record, case.work.profile
    sample = case.rows.take(case.places(profile.search_rows))
    oracle, protocol = sample.oracle, case.work.fitted.protocol
    exact = failing_sets_of_rows(oracle, protocol, method="exact", budget=profile.search_evaluations)
    beam = failing_sets_of_rows(oracle, protocol, method="beam", width=BEAM_WIDTH)
    found = compare_searches(sample.certs.claims.flip_budget, exact, beam)
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
        oracle = case.rows.take(too_large).oracle
        found = failing_sets_of_rows(oracle, protocol, method="beam", width=BEAM_WIDTH).size
    where: dict[str, Any] = {"count": int(lattice.decided.sum())}
    improved = float((found < greedy[too_large]).sum())
    case.work.record.add("lattice", "beam_improve", improved / max(where["count"], 1), **where)
    still = mean_of(found > smallest[too_large])
    case.work.record.add("lattice", "beam_over_where_greedy_is", still, count=len(too_large))


@dataclass(frozen=True, slots=True, eq=False)
class SearchComparison(NanEqual):
    """How far the greedy flip budget is from the smallest failing set; NaN where no row allows it.

    exact_match   Pr[k* = k_exact]                    greedy_over  Pr[k* > k_exact]
    mean_gap      E[(k* - k_exact)_+]                 pair_miss    Pr[k_exact = 2 and k* > 2]
    beam_improve  Pr[k_beam < k*]

    The first four are over exact-feasible rows, the last over all rows the beam searched. Where the exact search ran
    out of evaluations, the feasible rows are the ones with small failing sets, so read the first four with
    `exact_unaffordable` beside them.
    """

    rows: int
    exact_feasible: int
    exact_unaffordable: int
    exact_match: float
    greedy_over: float
    mean_gap: float
    pair_miss: float
    beam_rows: int
    beam_improve: float

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return asdict(self)


def compare_searches(
    greedy: npt.ArrayLike, exact: FailingSets | None = None, beam: FailingSets | None = None
) -> SearchComparison:
    """Compare greedy flip budgets with exact and beam searches of the same rows, in the same order.

    k* = K + 1 means "no flip within the protocol's depth K"; so does a smallest set of more than K groups here.

    Parameters
    ----------
    greedy : array of shape (n,)
        k* of the certificates.
    exact : FailingSets, optional
        Of ``fg.find_failing_sets`` with ``method="exact"``.
    beam : FailingSets, optional
        The same with ``method="beam"``.

    Returns
    -------
    SearchComparison
        How often and by how much the greedy path is longer than need be; NaN where no row allows it.

    Raises
    ------
    ProtocolError
        The searches are of other rows or of a smaller depth.
    """
    k = np.asarray(greedy, dtype=np.int64)
    reach = int(k.max(initial=0))
    for name, search in (("exact", exact), ("beam", beam)):
        if search is not None and len(search) != len(k):
            raise fg.ProtocolError(f"{name} search has {len(search)} rows, the greedy budgets {len(k)}")
        if search is not None and reach > search.max_size + 1:
            raise fg.ProtocolError(
                f"greedy budgets reach {reach} but the {name} search stopped at size "
                f"{search.max_size}; search with max_size equal to the protocol's depth"
            )
    feasible = np.zeros(len(k), dtype=bool) if exact is None else exact.resolved
    gap = np.zeros(0, dtype=np.int64) if exact is None else (k - _within_depth(exact))[feasible]
    pairs = np.zeros(0, dtype=bool) if exact is None else ((exact.size == 2) & (k > 2))[feasible]
    improved = np.zeros(0, dtype=bool) if beam is None else _within_depth(beam) < k
    return SearchComparison(
        rows=len(k),
        exact_feasible=int(feasible.sum()),
        exact_unaffordable=0 if exact is None else int((~feasible).sum()),
        exact_match=_mean(gap == 0),
        greedy_over=_mean(gap > 0),
        mean_gap=_mean(np.maximum(gap, 0)),
        pair_miss=_mean(pairs),
        beam_rows=0 if beam is None else len(beam),
        beam_improve=_mean(improved),
    )


def _within_depth(search: FailingSets) -> Array:
    """Return the sizes as the greedy path would have counted them: nothing beyond the depth."""
    return np.minimum(search.size, min(search.max_size, search.depth) + 1)


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
