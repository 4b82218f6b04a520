"""Hardening per failure mode: a unit trained plainly and in each declared way, judged on the same test rows and draws.

Recorded for each training: quality, the confident share, early flips, and the brittle share of confident rows under the
default stress, under each of its stressors alone, and under values of other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import fragility as fg
from fragility_paper.data import Dataset, split
from fragility_paper.library import BrittleLabels, predictive_metrics
from fragility_paper.models import model_spec
from fragility_paper.plan import HARDENING_WAYS, Profile, Unit
from fragility_paper.tidy import Recorder
from fragility_paper.training import train, train_hardened
from fragility_paper.unit.certificates import flips_early
from fragility_paper.unit.fitted import FittedUnit, fit_unit
from fragility_paper.unit.hardening import audit_first_rows, keep_stressor
from fragility_paper.unit.labels import donor_labels, label
from fragility_paper.unit.rows import HIGH_CONFIDENCE, AuditedRows
from fragility_paper.unit.work import Clock, UnitResult, Work, mean_of

ANALYSIS = "mode_hardening"


def measure_mode_hardening(unit: Unit, data: Dataset, profile: Profile) -> UnitResult:
    """Train in every way, and judge each model."""
    record, clock = Recorder(unit.dataset, unit.model, unit.seed), Clock()
    for name, fitted in _train_every_way(unit, data, profile, clock):
        work = Work(fitted, profile, record, clock, unit.seed)
        with clock.stage("judge"):
            _record_training(name, work)
    return UnitResult(record.frame(), dict(clock.seconds))


def _train_every_way(unit: Unit, data: Dataset, profile: Profile, clock: Clock) -> Iterator[tuple[str, FittedUnit]]:
    spec, parts = model_spec(unit.model), split(data.y, unit.seed, train_cap=profile.rows_to_train(unit.dataset))
    with clock.stage("train plain"):
        trained = train(spec, data, parts, device=profile.device)
    with clock.stage("protocol"):
        plain = fit_unit(unit, data, profile, trained)
    yield "plain", plain
    for name, way in HARDENING_WAYS.items():
        with clock.stage(f"train {name}"):
            pipeline = train_hardened(
                spec, plain.pipeline, data, parts, plain.protocol, rate=way.rate, copies=way.copies, modes=way.modes
            )
        yield name, replace(plain, pipeline=pipeline, model=fg.Model.wrap(pipeline))


def _record_training(name: str, work: Work) -> None:
    fitted, record = work.fitted, work.record
    test = fitted.split.test
    p, y = fitted.probabilities(test), fitted.data.y[test]
    quality, confident = predictive_metrics(p, y), p.max(axis=1) >= HIGH_CONFIDENCE
    values = {metric: getattr(quality, metric) for metric in ("auroc", "accuracy", "nll", "ece")}
    for metric, value in (values | {"confident_share": mean_of(confident)}).items():
        record.add(ANALYSIS, metric, value, count=len(y), rows="test", training=name)
    rows = audit_first_rows(work, p)
    sure = rows.p.max(axis=1) >= HIGH_CONFIDENCE
    early = mean_of(flips_early(rows.certs.claims)[sure])
    record.add(ANALYSIS, "flips_early", early, count=int(sure.sum()), rows="confident", training=name)
    for kind, labels in _label(work, rows):
        own = labels.high_confidence
        for part, kept in (("confident", labels.brittle[own]), ("any", labels.brittle)):
            share = mean_of(kept)
            record.add(ANALYSIS, "brittle_share", share, count=len(kept), rows=part, training=name, variant=kind)


def _label(work: Work, rows: AuditedRows) -> Iterator[tuple[str, BrittleLabels]]:
    default = label(work, rows.oracle)
    yield "default", default
    for place, stressor in enumerate(default.stress.stressors):
        yield stressor.kind, keep_stressor(default, place)
    yield "donor", donor_labels(work, rows, (0,))[0]
