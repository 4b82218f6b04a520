"""Whether exposure to a failure mode ranks the rows that this kind of failure breaks.

Scores and their directions are those of the other studies; exposure to every mode is added. The labels come from
held-out stress: masked groups, noise, values of other training rows, stale values, sentinels, and the outages recorded
in test rows. Everything that a mode needs is fitted on training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import fragility as fg
from fragility_paper.arrays import Floats, Scores
from fragility_paper.data import Dataset
from fragility_paper.library import (
    Donor,
    Layout,
    ModeLosses,
    Oracle,
    Stressor,
    auroc,
    losses_of_rows,
    values_frame,
)
from fragility_paper.plan import MATCHING, SENTINELS, Profile, Unit
from fragility_paper.tidy import Recorder
from fragility_paper.unit.case import Case, judge
from fragility_paper.unit.certificates import record_claims, record_no_confident_rows
from fragility_paper.unit.failures import Sentinels, Stale, nearest_donors
from fragility_paper.unit.fitted import FittedUnit, fit_unit
from fragility_paper.unit.labels import INDEPENDENT, SEVERITY, bind_donors, label_under, recorded_outages
from fragility_paper.unit.measuring import audited_parts
from fragility_paper.unit.stresses import (
    BASELINES,
    DEFAULT,
    Variant,
    each_stressor,
    record_variant,
    strongest_on_validation,
    variant_of,
)
from fragility_paper.unit.work import Clock, UnitResult, Work, mean_of

CERTIFICATE = ("cfc_exposure", "cfc_fds", "independent_loss")


def measure_modes(unit: Unit, data: Dataset, profile: Profile) -> UnitResult:
    """Scores of every mode against labels of every kind of failure, on the confident test rows of one unit."""
    record, clock = Recorder(unit.dataset, unit.model, unit.seed), Clock()
    with clock.stage("train"):
        fitted = fit_unit(unit, data, profile)
    with clock.stage("protocol"):
        fitted = replace(fitted, protocol=declare_modes(fitted))
    work = Work(fitted, profile, record, clock, unit.seed)
    test, validation = audited_parts(work, nearly=0)
    if not len(test.selection.confident):
        record_no_confident_rows(work)
        return UnitResult(record.frame(), dict(clock.seconds))
    record_claims(work, "confident", "support", test.select("confident").certs.claims)
    case = judge(work, test, validation)
    failing = FailingRows.of(case)
    with clock.stage("modes"):
        losses = assess(failing)
    record_modes(case, losses)
    record_mode_rankings(case, failing, losses)
    return UnitResult(record.frame(), dict(clock.seconds))


# ------------------------------------------------------------------ the declared modes


def declare_modes(fitted: FittedUnit) -> fg.Protocol:
    """The unit's protocol with every mode; ``outage`` only where training rows record outages."""
    return fg.Protocol.fit(
        fitted.model,
        fitted.rows(fitted.split.train),
        baseline=fitted.protocol.baseline,
        smoothing=fitted.protocol.smoothing,
        modes=("lost", "wrong", "noisy", "stale"),
        sentinels=declare_sentinels(fitted),
        outages=recorded_outages(fitted, fitted.split.train),
    )


def declare_sentinels(fitted: FittedUnit) -> dict[str, list[Any]]:
    """Field -> 0, -999 and 100 times its value, or the rarest training category of a nominal field."""
    spec, train = fitted.data.spec, fitted.rows(fitted.split.train)
    found: dict[str, list[Any]] = {name: list(SENTINELS) for name in spec.numeric}
    for name in spec.nominal:
        counts = train[name].value_counts()
        found[name] = [min(counts.index, key=lambda category: (counts[category], category))]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class FailingRows:
    """The confident test rows, bound together with the training rows that lend them values."""

    case: Case
    oracle: Oracle
    donors: Floats  # (m, d)

    @classmethod
    def of(cls, case: Case) -> FailingRows:
        return cls(case, *bind_donors(case.rows))

    @property
    def protocol(self) -> fg.Protocol:
        return self.case.work.fitted.protocol

    def variant(self, name: str, stressor: Stressor) -> Variant:
        """Labels by one stressor, and a second set of draws for the ceiling."""
        drawn = (
            label_under(self.case.work, self.oracle, stressor, donors=self.donors, seed_offset=offset)
            for offset in (0, INDEPENDENT)
        )
        return variant_of(name, *drawn)


def assess(failing: FailingRows) -> ModeLosses:
    """Exposure to every declared mode; a row's earlier values are those of the nearest donor, as for stale labels."""
    rows, protocol = failing.oracle.rows, failing.protocol
    earlier = nearest_donors(rows.dense(), Layout.of(protocol, rows, failing.donors))
    return losses_of_rows(failing.oracle, protocol, protocol.modes.declared, earlier)


# ------------------------------------------------------------------ scores against labels


def record_modes(case: Case, losses: ModeLosses) -> None:
    """What each mode says about the rows: exposure, and the failure of one unit that is likeliest to flip a row."""
    for mode, one in losses.by_mode.items():
        likeliest = one.flip_chance.max(axis=1, initial=0.0)
        values = {"exposure": one.exposure, "flip_chance": likeliest, "flips": likeliest > 0.0}
        for metric, value in values.items():
            case.work.record.add("modes", metric, mean_of(value), count=len(value), variant=mode)
        case.work.record.add("modes", "units", len(one.units), variant=mode)


def record_mode_rankings(case: Case, failing: FailingRows, losses: ModeLosses) -> None:
    """AUROC, ceiling, brittle rows, and differences of the matching mode to every baseline within the unit."""
    scores = {name: case.directions[name] * case.scores[name] for name in (*CERTIFICATE, *BASELINES)}
    scores |= {f"mode_{mode}": one.exposure for mode, one in losses.by_mode.items()}
    chosen = strongest_on_validation(case)
    for variant in variants(case, failing):
        compared = (f"mode_{MATCHING[variant.name]}", "cfc_exposure")
        with case.work.clock.stage("ranking"):
            record_variant(case.work.record, variant, scores, compared, chosen)
            _record_either_direction(case, variant, scores)


def _record_either_direction(case: Case, variant: Variant, scores: Scores) -> None:
    """The strongest baseline if each could also be turned round on the judged rows: more than a user could know."""
    areas = [auroc(scores[name], variant.brittle) for name in BASELINES]
    best = max(max(area, 1.0 - area) for area in areas)
    where: dict[str, Any] = {"variant": variant.name, "rule": variant.rule, "count": len(variant.brittle)}
    case.work.record.add("stress", "auroc", best, score="strongest in either direction", **where)


def variants(case: Case, failing: FailingRows) -> Iterator[Variant]:
    """Labels of every kind of failure; recorded outages are those of the test rows."""
    stage = case.work.clock.stage
    yield variant_of(DEFAULT, case.labels, case.independent)
    yield from (variant for variant in each_stressor(case) if variant.name in MATCHING)
    stressors: dict[str, Stressor | None] = {
        "donor": Donor(SEVERITY),
        "stale": Stale(SEVERITY),
        "sentinel": _sentinels(failing),
        "outage": recorded_outages(case.work.fitted, case.work.fitted.split.test),
    }
    for name, stressor in stressors.items():
        if stressor is not None:
            with stage(f"labels: {name}"):
                variant = failing.variant(name, stressor)
            yield variant


def _sentinels(failing: FailingRows) -> Sentinels:
    """The declared sentinels as cells."""
    rows = failing.oracle.rows
    assert rows.encode is not None and rows.source.frame is not None
    values = {one.field: (one.values[0], one.values[:2][-1]) for one in failing.protocol.modes.sentinels}
    zero, error = rows.encode(values_frame(values, rows.source.frame))
    return Sentinels(zero, error, SEVERITY)
