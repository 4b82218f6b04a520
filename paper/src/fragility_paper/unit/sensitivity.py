"""What moves when depth, temperature, baseline or grouping move; on the declared extra rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import fragility as fg
from fragility_paper.arrays import Floats
from fragility_paper.library import BrittleLabels, Claims, exposure, fds, flip_budget, rcma
from fragility_paper.unit.calibration import Calibrator, tempered
from fragility_paper.unit.case import Case
from fragility_paper.unit.labels import label, labels_at
from fragility_paper.unit.ranking import EQUAL
from fragility_paper.unit.work import mean_of

DEPTHS = (3, 10, 15)
BASELINES = ("mean", "median", "zero", "mode")
GROUPINGS = ("raw-origin", "domain", "merged")
CONFIDENCE = ("max_softmax", "negative_entropy", "margin", "negative_energy")


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman; NaN where a score is constant."""
    if len(a) < 2 or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return math.nan
    return float(spearmanr(a, b).statistic)


def record_depth(case: Case) -> None:
    """K = 3, 10, 15 from one path of the largest depth; a data set with fewer groups stops at all of them."""
    fitted, places = case.work.fitted, case.sample
    deepest = min(max(DEPTHS), len(fitted.protocol.groups))
    claims = fitted.certify(case.rows.positions[places], replace(fitted.protocol, depth=deepest)).claims
    flipped = claims.path_predicted != claims.predicted[:, None]
    for depth in DEPTHS:
        steps = min(depth, deepest) + 1
        area = rcma(claims.path_collapse[:, :steps])
        scores = {
            "cfc_fds": fds(area, flip_budget(flipped[:, :steps]), claims.thresholds, EQUAL),
            "cfc_exposure": exposure(
                area, claims.independent_loss, claims.common_loss, claims.random_loss, fitted.protocol.exposure_weights
            ),
        }
        for name, score in scores.items():
            case.record_auroc("depth", name, score, case.labels.brittle[places], depth=depth)


def record_temperature(case: Case, calibrator: Calibrator) -> None:
    """Scores of the temperature-scaled model on the same rows, and their rank correlation with the raw ones."""
    fitted, places = case.work.fitted, case.sample
    brittle = case.labels.brittle[places]
    claims = fitted.certify(case.rows.positions[places], model=tempered(fitted.pipeline, calibrator)).claims
    for name, scaled in _summaries(claims).items():
        case.record_auroc("temperature", name, case.scores[name][places], brittle, variant="raw")
        case.record_auroc("temperature", name, scaled, brittle, variant="temperature")
    _record_correlation(case, "temperature", claims)


def _summaries(claims: Claims) -> dict[str, Floats]:
    return {"cfc_fds": claims.fds, "cfc_exposure": claims.exposure}


def record_baselines(case: Case) -> None:
    """Certificates toward another baseline, judged by the default labels and by labels of that baseline."""
    fixed = labels_at(case.labels, case.sample)
    for baseline in BASELINES:
        claims, own = _toward(case, baseline, fixed)
        _record_baseline(case, claims, fixed, baseline=baseline, variant="fixed labels")
        _record_baseline(case, claims, own, baseline=baseline, variant="own labels")
        _record_correlation(case, "baseline", claims, baseline=baseline)


def _toward(case: Case, baseline: str, fixed: BrittleLabels) -> tuple[Claims, BrittleLabels]:
    """Claims and labels toward one baseline; those toward the unit's own are there already."""
    if baseline == case.work.fitted.protocol.baseline:
        return case.rows.take(case.sample).certs.claims, fixed
    fitted, positions = case.work.fitted, case.rows.positions[case.sample]
    protocol = fitted.variant(baseline=baseline)
    own = label(case.work, fitted.oracle(positions, protocol), protocol=protocol)
    return fitted.certify(positions, protocol).claims, own


def _record_baseline(case: Case, claims: Claims, labels: BrittleLabels, **setting: Any) -> None:
    brittle = labels.brittle
    case.work.record.add("baseline", "brittle_share", mean_of(brittle), count=len(brittle), **setting)
    for name, values in {**_summaries(claims), "cfc_rcma": claims.rcma}.items():
        case.record_auroc("baseline", name, values, brittle, **setting)
    for name in CONFIDENCE:
        values = case.scores[name][case.sample]
        case.record_auroc("baseline", name, values, brittle, orientation="paper", **setting)
        turned = case.directions[name] * values
        case.record_auroc("baseline", name, turned, brittle, orientation="oriented", **setting)


def _record_correlation(case: Case, analysis: str, claims: Claims, **setting: Any) -> None:
    for name, values in _summaries(claims).items():
        found = rank_correlation(case.scores[name][case.sample], values)
        case.work.record.add(analysis, "rank_correlation", found, score=name, count=len(values), **setting)


def record_groupings(case: Case) -> None:
    """Certificates under other groupings, judged by the labels of the default grouping (held fixed)."""
    fitted, record = case.work.fitted, case.work.record
    brittle = case.labels.brittle[case.sample]
    for grouping in GROUPINGS:
        protocol = fitted.variant(grouping=grouping)
        claims = _grouped(case, grouping, protocol)
        for name, values in {**_summaries(claims), "cfc_rcma": claims.rcma}.items():
            case.record_auroc("grouping", name, values, brittle, grouping=grouping)
        record.add("grouping", "groups", len(protocol.groups), grouping=grouping)
        record.add("grouping", "flip_budget", mean_of(claims.flip_budget), count=len(brittle), grouping=grouping)
        _record_correlation(case, "grouping", claims, grouping=grouping)


def _grouped(case: Case, grouping: str, protocol: fg.Protocol) -> Claims:
    if grouping == "raw-origin":
        return case.rows.take(case.sample).certs.claims
    return case.work.fitted.certify(case.rows.positions[case.sample], protocol).claims
