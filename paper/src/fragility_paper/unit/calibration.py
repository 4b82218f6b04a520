"""Raw, temperature-scaled and brittleness-aware probabilities of one unit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.library import (
    FragilityTemperature,
    brier_score,
    clipped_probabilities,
    expected_calibration_error,
    negative_log_likelihood,
    pseudo_logits,
    scaled_probabilities,
    softmax_probabilities,
)
from fragility_paper.unit.rows import AuditedPart, AuditedRows
from fragility_paper.unit.work import Work

FRAGILE_SHARE = 0.2
Calibrator = FragilityTemperature
METRICS = {"ece": expected_calibration_error, "brier": brier_score, "nll": negative_log_likelihood}


def record_calibration(work: Work, test: AuditedPart, validation: AuditedPart) -> Calibrator:
    """Fit on validation rows of any confidence, compare on test rows of any confidence."""
    record = work.record
    seen, asked = validation.select("anyone"), test.select("anyone")
    calibrator = Calibrator().fit(seen.p, seen.truth, seen.certs.claims.fds)
    versions = _versions(calibrator, asked)
    everyone, fragile = np.ones(len(asked), dtype=bool), _fragile(calibrator, asked)
    for name, p in versions.items():
        for prefix, rows in (("", everyone), ("fragile_", fragile)):
            _record_quality(work, name, prefix, p[rows], asked.truth[rows])
    record.add("calibration", "temperature", calibrator.temperature_, score="temperature")
    record.add("calibration", "eta", calibrator.eta_, score="bats")
    same = (versions["bats"].argmax(axis=1) == asked.p.argmax(axis=1)).mean()
    record.add("calibration", "same_label", same, score="bats", count=len(asked))
    return calibrator


def _versions(calibrator: Calibrator, rows: AuditedRows) -> dict[str, Floats]:
    return {
        "raw": clipped_probabilities(rows.p),
        "temperature": scaled_probabilities(rows.p, np.full(len(rows), calibrator.temperature_)),
        "bats": calibrator.transform(rows.p, rows.certs.claims.fds),
    }


def _fragile(calibrator: Calibrator, rows: AuditedRows) -> Array:
    """The fifth of the rows with the highest normalised FDS."""
    chosen = np.zeros(len(rows), dtype=bool)
    order = np.argsort(-calibrator.normalised(rows.certs.claims.fds), kind="stable")
    chosen[order[: math.ceil(FRAGILE_SHARE * len(rows))]] = True
    return chosen


def _record_quality(work: Work, version: str, prefix: str, p: Floats, truth: Array) -> None:
    for metric, measured in METRICS.items():
        value = measured(p, truth)
        work.record.add("calibration", f"{prefix}{metric}", value, score=version, count=len(p), rows="any")


class TemperedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A fitted estimator whose pseudo-logits are divided by one temperature."""

    def __init__(self, estimator: Any, temperature: float) -> None:
        self.estimator = estimator
        self.temperature = temperature
        self.classes_ = np.asarray(estimator.classes_)

    def predict_proba(self, X: Any) -> Floats:
        p = fg.Model.wrap(self.estimator).probabilities(X)
        return softmax_probabilities(pseudo_logits(p) / self.temperature)

    def predict(self, X: Any) -> Array:
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def tempered(pipeline: Pipeline, calibrator: Calibrator) -> Pipeline:
    """The pipeline with temperature-scaled probabilities."""
    head = TemperedClassifier(pipeline[-1], float(calibrator.temperature_))
    return Pipeline([*pipeline.steps[:-1], ("model", head)])
