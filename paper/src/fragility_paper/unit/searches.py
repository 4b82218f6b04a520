"""Greedy against exact and beam search for the smallest failing set, on a declared number of rows."""

from __future__ import annotations

import fragility as fg
from fragility_paper.library import failing_sets_of_rows
from fragility_paper.unit.case import Case

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
