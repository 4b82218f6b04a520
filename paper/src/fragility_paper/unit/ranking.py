"""How well each score finds the brittle rows: metrics of scores against labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility_paper.arrays import Array, Floats, Scores
from fragility_paper.library import (
    BrittleLabels,
    aurc,
    auroc,
    capture_at,
    false_confidence_captured,
    fds,
    label_noise_ceiling,
    natural_direction,
    ranking_state,
)
from fragility_paper.tidy import Recorder
from fragility_paper.unit.case import Case
from fragility_paper.unit.labels import RULES, SEVERITY
from fragility_paper.unit.scores import CERTIFICATE
from fragility_paper.unit.work import mean_of

EQUAL = (1 / 3, 1 / 3, 1 / 3)
WEIGHTS = {"equal": EQUAL, "flip-heavy": (1 / 6, 2 / 3, 1 / 6), "degradation-heavy": (1 / 6, 1 / 6, 2 / 3)}
STRESSOR_SCORES = (
    "cfc_exposure",
    "cfc_fds",
    "cfc_rcma",
    "max_softmax",
    "one_step_drop",
    "random_order",
    "permutation_order",
)


def record_rankings(case: Case) -> None:
    """Everything that is measured on the confident rows of every unit."""
    record_labels(case)
    for rule in RULES:
        labels = case.labels.relabel(rule=rule)
        record_ranking(case.work.record, "ranking", case.scores, labels, case.directions, case.wrong)
    record_stressors(case)
    record_weights(case)
    record_naturalistic(case)


def record_labels(case: Case) -> None:
    """How many rows are brittle, and how noisy that label is."""
    record = case.work.record
    for rule in RULES:
        labels, again = case.labels.relabel(rule=rule), case.independent.relabel(rule=rule)
        setting: dict[str, Any] = {"rule": rule, "rows": "confident", "severity": SEVERITY, "count": len(labels)}
        record.add("labels", "brittle_share", mean_of(labels.brittle), **setting)
        record.add("labels", "wrong_share", mean_of(case.wrong), **setting)
        record.add("labels", "wrong_brittle", float((case.wrong & labels.brittle).sum()), **setting)
        record.add("labels", "ceiling", label_noise_ceiling(labels, again).auroc, **setting)
        # How often two sets of draws give the same label: the noise that every score has to live with.
        record.add("labels", "agreement", mean_of(again.brittle == labels.brittle), **setting)


def record_ranking(
    record: Recorder,
    analysis: str,
    scores: Scores,
    labels: BrittleLabels,
    directions: dict[str, int],
    wrong: Array,
    **setting: Any,
) -> None:
    """Every score's metrics, as the paper ranks by it and turned toward brittleness."""
    for name, values in scores.items():
        where: dict[str, Any] = {"score": name, "rule": labels.stress.rule, **setting}
        _record_metrics(record, analysis, values, labels.brittle, wrong, orientation="paper", **where)
        if name not in CERTIFICATE:
            turned = directions.get(name, natural_direction(name)) * values
            _record_metrics(record, analysis, turned, labels.brittle, wrong, orientation="oriented", **where)


def _record_metrics(
    record: Recorder, analysis: str, values: Floats, brittle: Array, wrong: Array, **setting: Any
) -> None:
    state = ranking_state(values, brittle)
    where = {**setting, "count": int((~np.isnan(values)).sum())}
    record.add(analysis, "auroc", auroc(values, brittle), state="" if state == "defined" else state, **where)
    for budget in (5, 10, 20):
        record.add(analysis, f"capture_{budget}", capture_at(values, brittle, budget / 100), **where)
    found = false_confidence_captured(values, brittle, wrong)
    record.add(analysis, "false_confidence_captured_20", found, **where)
    record.add(analysis, "aurc", aurc(values, brittle), **where)


def record_stressors(case: Case) -> None:
    """AUROC against the rows that one stressor alone breaks."""
    record = case.work.record
    for place, stressor in enumerate(case.labels.stress.names):
        broken = case.labels.brittle_by[:, place]
        setting: dict[str, Any] = {"variant": stressor.split("(")[0], "rule": "expected", "count": len(broken)}
        record.add("stressor", "brittle_share", mean_of(broken), **setting)
        for name in STRESSOR_SCORES:
            value = auroc(case.directions[name] * case.scores[name], broken)
            record.add("stressor", "auroc", value, score=name, orientation="oriented", **setting)


def record_weights(case: Case) -> None:
    """FDS of the same certificates by other weights."""
    claims = case.rows.certs.claims
    for name, weights in WEIGHTS.items():
        score = fds(claims.rcma, claims.flip_budget, claims.thresholds, weights)
        case.record_auroc("weights", "cfc_fds", score, case.labels.brittle, weights=name)


def record_naturalistic(case: Case) -> None:
    """The same ranking against labels of recorded outages."""
    labels, record = case.natural, case.work.record
    if labels is None:
        return
    record.add("naturalistic_labels", "brittle_share", mean_of(labels.brittle), count=len(labels), rule="expected")
    record_ranking(record, "naturalistic", case.scores, labels, case.directions, case.wrong)
