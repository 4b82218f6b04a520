"""The label channel: held-out stress on some rows. Not given scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.data import Dataset
from fragility_paper.library import (
    MOST_DONORS,
    BrittleLabels,
    Donor,
    Oracle,
    Stressor,
    choose_oracle,
    label_rows,
    outage_events,
    run_stress_rows,
    with_donors,
)
from fragility_paper.unit.fitted import FittedUnit
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.work import Work

INDEPENDENT = 1_000_003  # added to the seed for a second, independent set of draws
RULES = ("expected", "any")
SEVERITY = 0.3


def label(
    work: Work,
    oracle: Oracle,
    *,
    protocol: fg.Protocol | None = None,
    severity: float = SEVERITY,
    seed_offset: int = 0,
) -> BrittleLabels:
    stress = replace(fg.Stress.at(severity), draws=work.profile.draws, seed=work.label_seed + seed_offset)
    return label_rows(run_stress_rows(oracle, protocol or work.fitted.protocol, stress), stress)


def label_under(
    work: Work, oracle: Oracle, stressor: Stressor, *, donors: Floats | None = None, seed_offset: int = 0
) -> BrittleLabels:
    """Labels by one stressor; donors (m, d) are in the space of the bound rows."""
    stress = fg.Stress((stressor,), draws=work.profile.draws, seed=work.label_seed + seed_offset)
    return label_rows(run_stress_rows(oracle, work.fitted.protocol, stress, donors=donors), stress)


def naturalistic_labels(work: Work, rows: AuditedRows, *, seed_offset: int = 0) -> BrittleLabels | None:
    """Labels from the fields that were unavailable together in training rows; none where no field has a marker."""
    outages = recorded_outages(work.fitted, work.fitted.split.train)
    return None if outages is None else label_under(work, rows.oracle, outages, seed_offset=seed_offset)


def recorded_outages(fitted: FittedUnit, positions: Array) -> fg.Outages | None:
    """The fields that were unavailable together in some rows of the data; None where no field has a marker."""
    markers = markers_of(fitted.data)
    if not markers:
        return None
    return fg.Outages.from_events(outage_events(fitted.rows(positions)[list(markers)], markers=markers))


def donor_labels(work: Work, rows: AuditedRows, seed_offsets: tuple[int, ...]) -> list[BrittleLabels]:
    """Labels where groups take another training row's values, one for each set of draws."""
    asked, lent = bind_donors(rows)
    return [label_under(work, asked, Donor(SEVERITY), donors=lent, seed_offset=offset) for offset in seed_offsets]


def bind_donors(rows: AuditedRows) -> tuple[Oracle, Floats]:
    """Who answers about the rows, and training rows (m, d) that lend them values, bound together."""
    fitted = rows.fitted
    order = np.random.default_rng(fitted.unit.seed).permutation(fitted.split.train)
    donors = fitted.rows(np.sort(order[:MOST_DONORS]))
    bound, lent = with_donors(rows.oracle.rows, fitted.model, fitted.rows(rows.positions), donors, fitted.protocol)
    return choose_oracle(bound, fitted.predictor), lent


def markers_of(data: Dataset) -> dict[str, list[Any]]:
    """Field -> values that stand for "not available", as the field's own type."""
    spec = data.spec
    return {name: [str(v) if name in spec.nominal else float(v) for v in values] for name, values in spec.markers}


def labels_at(labels: BrittleLabels, places: Array) -> BrittleLabels:
    """Labels of some rows, from the same draws."""
    run = labels.run
    kept = replace(
        run,
        id=run.id[places],
        predicted=run.predicted[places],
        confidence=run.confidence[places],
        margin=run.margin[places],
        draw_margin=run.draw_margin[places],
        draw_flip=run.draw_flip[places],
    )
    return label_rows(kept, labels.stress)
