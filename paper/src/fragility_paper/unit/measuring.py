"""Everything that is measured on one unit: one data set, one model family, one seed.

The order of work keeps the channels apart. What is fitted (model, protocol, temperature) sees training and validation
rows only. Scores are made without labels (:mod:`~fragility_paper.unit.scores`), labels without scores
(:mod:`~fragility_paper.unit.labels`); they meet in a :class:`~fragility_paper.unit.case.Case`.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from sklearn.pipeline import Pipeline

import fragility as fg
from fragility_paper.data import Dataset
from fragility_paper.plan import Profile, Unit
from fragility_paper.tidy import Recorder
from fragility_paper.unit.attribution import record_shap
from fragility_paper.unit.calibration import Calibrator, record_calibration
from fragility_paper.unit.case import Case, judge, labelled_rows, row_table
from fragility_paper.unit.certificates import (
    record_certificates,
    record_cost,
    record_no_confident_rows,
    record_predictive,
    record_saturation,
)
from fragility_paper.unit.exact_mask import record_exact_mask
from fragility_paper.unit.fitted import fit_unit
from fragility_paper.unit.grid import record_grid
from fragility_paper.unit.ranking import record_rankings
from fragility_paper.unit.rows import AuditedPart, select_rows
from fragility_paper.unit.searches import record_lattice, record_search
from fragility_paper.unit.sensitivity import record_baselines, record_depth, record_groupings, record_temperature
from fragility_paper.unit.stresses import record_stresses
from fragility_paper.unit.work import Clock, UnitResult, Work


def measure(
    unit: Unit,
    data: Dataset,
    profile: Profile,
    *,
    pipeline: Pipeline | None = None,
    label_seed: int | None = None,
    engine: str = "auto",
) -> UnitResult:
    """All analyses of one unit. ``label_seed`` replaces the label channel's seed (by default the unit's)."""
    record, clock = Recorder(unit.dataset, unit.model, unit.seed), Clock()
    with clock.stage("train"):
        fitted = fit_unit(unit, data, profile, pipeline, engine)
    work = Work(fitted, profile, record, clock, unit.seed if label_seed is None else label_seed)
    test, validation = audited_parts(work, nearly=profile.extra_rows)
    with clock.stage("certificates"):
        current = fitted.certify(test.rows.positions, replace(fitted.protocol, reading="current"))
    record_certificates(work, test, current)
    record_cost(work, test.rows)
    with clock.stage("calibration"):
        calibrator = record_calibration(work, test, validation)
    rows, labelled = measure_confident(work, test, current, validation, calibrator)
    return UnitResult(record.frame(), dict(clock.seconds), test.rows.certs, rows, labelled)


def audited_parts(work: Work, *, nearly: int) -> tuple[AuditedPart, AuditedPart]:
    """Test and validation rows, chosen by confidence and a seeded permutation, certified."""
    fitted, profile, seed, parts = work.fitted, work.profile, work.fitted.unit.seed, work.fitted.split
    with work.clock.stage("predict"):
        p_test, p_validation = fitted.probabilities(parts.test), fitted.probabilities(parts.validation)
    record_predictive(work, p_test, fitted.data.y[parts.test])
    chosen = select_rows(
        p_test.max(axis=1),
        seed,
        confident=profile.audited_rows,
        nearly=nearly,
        anyone=profile.rcma_rows,
    )
    held = select_rows(
        p_validation.max(axis=1), seed, confident=profile.validation_rows, nearly=0, anyone=profile.calibration_rows
    )
    with work.clock.stage("certificates"):
        test = AuditedPart.of(fitted, parts.test, p_test, chosen)
        return test, AuditedPart.of(fitted, parts.validation, p_validation, held)


def measure_confident(
    work: Work, test: AuditedPart, current: fg.Certificates, validation: AuditedPart, calibrator: Calibrator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rankings on confident test rows, extras where this seed runs them; returns those rows, and the labelled ones."""
    if not len(test.selection.confident):
        record_no_confident_rows(work)
        return pd.DataFrame(), pd.DataFrame()
    case = judge(work, test, validation, current)
    record_rankings(case)
    with work.clock.stage("stresses"):
        record_stresses(case)
    with work.clock.stage("beam"):
        record_lattice(case)
    record_exact_mask(case)
    if work.with_extras:
        measure_extras(case, test, calibrator)
    rows = row_table(case)
    record_saturation(work, rows)
    return rows, labelled_rows(case)


def measure_extras(case: Case, test: AuditedPart, calibrator: Calibrator) -> None:
    """The costly analyses, on declared numbers of rows."""
    stage = case.work.clock.stage
    with stage("shap"):
        record_shap(case)
    with stage("sensitivity"):
        record_depth(case)
        record_temperature(case, calibrator)
        record_baselines(case)
        record_groupings(case)
    with stage("grid"):
        record_grid(case, test.select("nearly"))
    with stage("search"):
        record_search(case)
