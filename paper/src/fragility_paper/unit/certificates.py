"""What the certificates of a unit say on average, what they cost, and how good the model is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.library import EARLY, Claims, collapse, predictive_metrics, rcma
from fragility_paper.unit.rows import HIGH_CONFIDENCE, AuditedPart, AuditedRows, Kind
from fragility_paper.unit.work import Work, mean_of, median_of

SATURATED = 27.6  # probabilities are clipped at 1e-12, so no margin exceeds log(1e12) = 27.63
ROWS: tuple[tuple[str, Kind], ...] = (("any", "anyone"), ("confident", "confident"))


def flips_early(claims: Claims) -> Array:
    """Which predictions flip within two groups."""
    return np.asarray(claims.flipped & (claims.flip_budget <= EARLY))


def record_predictive(work: Work, p: Floats, y: Array) -> None:
    """Quality of the model on all test rows, and the sizes of the unit."""
    record, fitted = work.record, work.fitted
    found = predictive_metrics(p, y)
    for name in ("accuracy", "macro_f1", "auroc", "average_precision", "nll", "ece", "brier"):
        record.add("predictive", name, getattr(found, name), count=found.rows, rows="test")
    confident = p.max(axis=1) >= HIGH_CONFIDENCE
    record.add("predictive", "confident_share", confident.mean(), count=len(p), rows="test")
    wrong = (p.argmax(axis=1) != y)[confident]
    record.add("predictive", "confident_error", mean_of(wrong), count=len(wrong), rows="test")
    for part in ("train", "validation", "test"):
        record.add("rows", part, len(getattr(fitted.split, part)))
    record.add("rows", "groups", len(fitted.protocol.groups))
    record.add("rows", "columns", len(fitted.protocol.columns))


def record_certificates(work: Work, test: AuditedPart, current: fg.Certificates) -> None:
    """Means of the certificates on any and on confident test rows, in the three readings, and the mean path."""
    for rows, kind in ROWS:
        support = test.select(kind).certs.claims
        literal = current.take(test.places(kind)).claims
        _record_rcma(work, rows, support, literal)
        record_claims(work, rows, "support", support)
        record_claims(work, rows, "current", literal)
        _record_path(work, rows, support)


def _record_rcma(work: Work, rows: str, support: Claims, literal: Claims) -> None:
    unbounded = rcma(collapse(support.margin, support.path_margin, "support_unbounded"))
    for reading, values in (("support", support.rcma), ("current", literal.rcma), ("support_unbounded", unbounded)):
        setting: dict[str, Any] = {"count": len(values), "rows": rows, "reading": reading}
        work.record.add("certificate", "rcma", mean_of(values), **setting)
        work.record.add("certificate", "rcma_median", median_of(values), **setting)


def record_claims(work: Work, rows: str, reading: str, claims: Claims) -> None:
    """Means of what the certificates of some rows claim."""
    record = work.record
    setting: dict[str, Any] = {"rows": rows, "reading": reading, "count": len(claims)}
    record.add("certificate", "flip_budget", mean_of(claims.flip_budget), **setting)
    record.add("certificate", "flip_share", mean_of(claims.flipped), **setting)
    for name in ("fds", "exposure", "independent_loss", "common_loss"):
        record.add("certificate", name, mean_of(getattr(claims, name)), **setting)
    record.add("certificate", "one_group_flips", mean_of(claims.flip_budget == 1), **setting)
    record.add("certificate", "flips_early", mean_of(flips_early(claims)), **setting)
    for place, name in enumerate(("attenuate_all", "attenuate_top1")):
        record.add("certificate", f"flips_{name}", mean_of(np.isfinite(claims.thresholds[:, place])), **setting)


def _record_path(work: Work, rows: str, claims: Claims) -> None:
    for step in range(work.fitted.protocol.depth + 1):
        setting: dict[str, Any] = {"rows": rows, "reading": "support", "step": step, "count": len(claims)}
        work.record.add("path", "collapse", mean_of(claims.path_collapse[:, step]), **setting)
        flips = claims.path_predicted[:, step] != claims.predicted
        work.record.add("path", "flipped", mean_of(flips), **setting)


def record_cost(work: Work, audited: AuditedRows) -> None:
    """Forward passes a row: the paper's formula, what the engine asked for, and the label channel's."""
    record, protocol, n = work.record, work.fitted.protocol, len(audited)
    record.add("cost", "passes_original", 1)
    record.add("cost", "passes_one_step", len(protocol.groups))
    record.add("cost", "passes_path", protocol.depth)
    record.add("cost", "passes_degradation", len(protocol.operators) * len(protocol.severities))
    record.add("cost", "passes_certificate", protocol.states_per_row)
    record.add("cost", "passes_labels", len(fg.Stress().stressors) * work.profile.draws)
    engine = audited.certs.manifest.engine
    record.add("cost", "evaluations_a_row", engine.evaluations / max(n, 1), count=n, score=engine.name)


def record_saturation(work: Work, rows: pd.DataFrame) -> None:
    """How much of the label is clipping: probability 1 gives the largest margin, which is lost first."""
    saturated = rows["margin"].to_numpy() >= SATURATED
    brittle = rows["brittle_expected"].to_numpy()
    # k* = K + 1: never flips on its path
    lasting = rows["inverse_flip_budget"].to_numpy() < 1 / work.fitted.protocol.depth
    setting: dict[str, Any] = {"rule": "expected", "rows": "confident"}
    work.record.add("saturation", "saturated_share", mean_of(saturated), count=len(rows), **setting)
    for name, kept in (("brittle_if_saturated", saturated), ("brittle_if_not", ~saturated)):
        work.record.add("saturation", name, mean_of(brittle[kept]), count=int(kept.sum()), **setting)
    count = int(brittle.sum())
    work.record.add("saturation", "brittle_without_flip", mean_of(lasting[brittle]), count=count, **setting)


def record_no_confident_rows(work: Work) -> None:
    work.record.add("labels", "brittle_share", math.nan, count=0, rule="expected", state="no confident rows")
