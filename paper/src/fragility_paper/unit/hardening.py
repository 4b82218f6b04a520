"""Hardened against plain: one unit trained twice, and both judged on the same test rows under the same draws.

Training sees one kind of failure: groups replaced by their baseline. The stress it did not see is noise, single columns
dropped, other rows' values, recorded outages and other baselines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.arrays import Floats
from fragility_paper.data import Dataset, split
from fragility_paper.library import BrittleLabels, predictive_metrics
from fragility_paper.models import model_spec
from fragility_paper.plan import HARDENING_COPIES, HARDENING_RATE, Profile, Unit
from fragility_paper.tidy import Recorder
from fragility_paper.training import train, train_hardened
from fragility_paper.unit.certificates import flips_early
from fragility_paper.unit.fitted import FittedUnit, fit_unit
from fragility_paper.unit.forests import record_forests
from fragility_paper.unit.labels import donor_labels, label, naturalistic_labels
from fragility_paper.unit.rows import HIGH_CONFIDENCE, AuditedRows, select_rows
from fragility_paper.unit.work import Clock, UnitResult, Work, mean_of

TRAININGS = ("plain", "hardened")
OTHER_BASELINES = ("mean", "median", "missing")
Labels = Mapping[str, BrittleLabels]  # by training


@dataclass(frozen=True, slots=True, eq=False)
class Twins:
    """The plain and the hardened model of a unit with the test rows that both are judged on."""

    works: Mapping[str, Work]
    rows: Mapping[str, AuditedRows]

    @property
    def record(self) -> Recorder:
        return self.works["plain"].record


def measure_hardening(unit: Unit, data: Dataset, profile: Profile) -> UnitResult:
    """Train plain and hardened, and compare them."""
    record, clock = Recorder(unit.dataset, unit.model, unit.seed), Clock()
    fitted = _trained_twice(unit, data, profile, clock)
    works = {name: Work(model, profile, record, clock, unit.seed) for name, model in fitted.items()}
    with clock.stage("predict"):
        p = {name: model.probabilities(model.split.test) for name, model in fitted.items()}
    _record_predictive(works, p)
    with clock.stage("certificates"):
        twins = Twins(works, {name: audit_first_rows(work, p[name]) for name, work in works.items()})
    _record_certificates(twins)
    with clock.stage("stresses"):
        for name, labels in _stresses(twins):
            _record_stress(record, name, labels)
    if works["plain"].with_extras and model_spec(unit.model).family == "forest":
        with clock.stage("forests"):
            record_forests(works["plain"])
    return UnitResult(record.frame(), dict(clock.seconds))


def _trained_twice(unit: Unit, data: Dataset, profile: Profile, clock: Clock) -> dict[str, FittedUnit]:
    parts = split(data.y, unit.seed, train_cap=profile.rows_to_train(unit.dataset))
    with clock.stage("train plain"):
        trained = train(model_spec(unit.model), data, parts, device=profile.device)
    with clock.stage("protocol"):
        plain = fit_unit(unit, data, profile, trained)
    with clock.stage("train hardened"):
        pipeline = train_hardened(
            model_spec(unit.model),
            plain.pipeline,
            data,
            plain.split,
            plain.protocol,
            rate=HARDENING_RATE,
            copies=HARDENING_COPIES,
        )
    return {"plain": plain, "hardened": replace(plain, pipeline=pipeline, model=fg.Model.wrap(pipeline))}


def _record_predictive(works: Mapping[str, Work], p: Mapping[str, Floats]) -> None:
    """Quality of both on all test rows, and how many labels changed."""
    for name, work in works.items():
        y = work.fitted.data.y[work.fitted.split.test]
        found, confident = predictive_metrics(p[name], y), p[name].max(axis=1) >= HIGH_CONFIDENCE
        values = {m: getattr(found, m) for m in ("auroc", "nll", "ece", "accuracy", "macro_f1", "brier")}
        values["confident_share"] = mean_of(confident)
        values["confident_error"] = mean_of((p[name].argmax(axis=1) != y)[confident])
        for metric, value in values.items():
            work.record.add("hardening", metric, value, count=len(y), rows="test", training=name)
    changed = p["plain"].argmax(axis=1) != p["hardened"].argmax(axis=1)
    works["plain"].record.add("hardening", "label_changed", mean_of(changed), count=len(changed), rows="test")


def audit_first_rows(work: Work, p: Floats) -> AuditedRows:
    """The first test rows of a permutation that does not look at the model."""
    fitted, count = work.fitted, work.profile.rcma_rows
    chosen = select_rows(p.max(axis=1), fitted.unit.seed, confident=0, nearly=0, anyone=count).anyone
    positions = fitted.split.test[chosen]
    return AuditedRows(fitted, positions, p[chosen], fitted.certify(positions))


def _record_certificates(twins: Twins) -> None:
    confident = {name: rows.p.max(axis=1) >= HIGH_CONFIDENCE for name, rows in twins.rows.items()}
    both = confident["plain"] & confident["hardened"]
    for name, rows in twins.rows.items():
        claims = rows.certs.claims
        values = {m: getattr(claims, m) for m in ("exposure", "rcma", "fds", "flip_budget")}
        values |= {"flip_share": claims.flipped, "one_group_flips": claims.flip_budget == 1}
        values["flips_early"] = flips_early(claims)
        for kind, kept in (("any", np.ones(len(both), dtype=bool)), ("confident", confident[name]), ("both", both)):
            for metric, value in values.items():
                where: dict[str, Any] = {"rows": kind, "training": name, "count": int(kept.sum())}
                twins.record.add("hardening", metric, mean_of(value[kept]), **where)


# ------------------------------------------------------------------ stress, seen and unseen


def _stresses(twins: Twins) -> Iterator[tuple[str, Labels]]:
    """Labels of both models by every kind of stress."""
    default = _labels(twins)
    yield "default", default
    for place, stressor in enumerate(default["plain"].stress.stressors):
        yield stressor.kind, {name: keep_stressor(labels, place) for name, labels in default.items()}
    for severity in twins.works["plain"].profile.other_severities:
        yield f"severity {severity:g}", _labels(twins, severity=severity)
    for baseline in OTHER_BASELINES:
        labels = _toward(twins, baseline)
        if labels is not None:
            yield f"baseline {baseline}", labels
    natural = {name: naturalistic_labels(twins.works[name], rows) for name, rows in twins.rows.items()}
    known = {name: labels for name, labels in natural.items() if labels is not None}
    if len(known) == len(TRAININGS):
        yield "naturalistic", known
    yield "donor", {name: donor_labels(twins.works[name], rows, (0,))[0] for name, rows in twins.rows.items()}


def _labels(twins: Twins, **setting: Any) -> Labels:
    return {name: label(twins.works[name], rows.oracle, **setting) for name, rows in twins.rows.items()}


def keep_stressor(labels: BrittleLabels, place: int) -> BrittleLabels:
    """The same rows under one of the stressors, from the draws that are there."""
    broken = labels.brittle_by[:, place]
    only = slice(place, place + 1)
    return replace(
        labels, brittle=broken & labels.high_confidence, flip=labels.flip[:, only], kappa=labels.kappa[:, only]
    )


def _toward(twins: Twins, baseline: str) -> Labels | None:
    """Labels where groups and columns fail toward another baseline than in training; None if a model admits none."""
    found = {}
    for name, rows in twins.rows.items():
        fitted = twins.works[name].fitted
        protocol = fitted.admitted(baseline)
        if protocol is None:
            return None
        found[name] = label(twins.works[name], fitted.oracle(rows.positions, protocol), protocol=protocol)
    return found


def _record_stress(record: Recorder, stress: str, labels: Labels) -> None:
    """Brittle rows among each model's confident rows, among all rows, and among rows that both are confident of."""
    both = labels["plain"].high_confidence & labels["hardened"].high_confidence
    for name, found in labels.items():
        where: dict[str, Any] = {"training": name, "variant": stress}
        own, n = found.high_confidence, len(found)
        record.add("hardening", "brittle_share", mean_of(found.brittle), rows="any", count=n, **where)
        values = mean_of(found.brittle[own])
        record.add("hardening", "brittle_share", values, rows="confident", count=int(own.sum()), **where)
        values = mean_of(found.brittle[both])
        record.add("hardening", "brittle_share", values, rows="both", count=int(both.sum()), **where)
        record.add(
            "hardening", "flip_under_stress", mean_of(np.asarray(found.flip.any(axis=1))), rows="any", count=n, **where
        )
