"""Thresholds, severities and both label rules, on rows with confidence of at least 0.85."""

from __future__ import annotations

from itertools import product
from typing import Any

from fragility_paper.arrays import Scores
from fragility_paper.library import BrittleLabels, auroc
from fragility_paper.unit.case import Case
from fragility_paper.unit.labels import RULES, label
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.scores import cheap_scores
from fragility_paper.unit.work import mean_of

TAU_P = (0.85, 0.90, 0.95)
TAU_KAPPA = (0.25, 0.50, 0.75)
SEVERITIES = (0.1, 0.3, 0.5)
GRID_SCORES = ("cfc_exposure", "cfc_fds", "cfc_rcma", "independent_loss", "common_loss", "max_softmax", "one_step_drop")


def record_grid(case: Case, rows: AuditedRows) -> None:
    """One set of draws a severity; every cell of the grid is a reading of the same draws."""
    scores, oracle = cheap_scores(rows), rows.oracle
    for severity in SEVERITIES:
        labels = label(case.work, oracle, severity=severity)
        for rule, tau_p, tau_kappa in product(RULES, TAU_P, TAU_KAPPA):
            cell = labels.relabel(tau_confidence=tau_p, tau_collapse=tau_kappa, rule=rule)
            _record_cell(case, cell, scores, severity)


def _record_cell(case: Case, cell: BrittleLabels, scores: Scores, severity: float) -> None:
    keep, stress = cell.high_confidence, cell.stress
    brittle = cell.brittle[keep]
    setting: dict[str, Any] = {
        "rule": stress.rule,
        "tau_p": stress.tau_confidence,
        "tau_kappa": stress.tau_collapse,
        "severity": severity,
        "count": len(brittle),
    }
    case.work.record.add("grid", "brittle_share", mean_of(brittle), **setting)
    for name in GRID_SCORES:
        value = auroc(case.directions[name] * scores[name][keep], brittle)
        case.work.record.add("grid", "auroc", value, score=name, orientation="oriented", **setting)
