"""The study under the library's default protocol, and how much a ranking depends on the baseline.

Rankings under the unit's own baseline are those of the reproduction. On the declared extra rows, scores and labels are
also made under every other baseline that the model admits, so that no score wins only because it shares its baseline
with the labels. Forests are judged without smoothing as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.data import Dataset
from fragility_paper.library import Claims, auroc, random_order_score
from fragility_paper.plan import Profile, Unit
from fragility_paper.tidy import Recorder
from fragility_paper.unit.case import Case, judge
from fragility_paper.unit.certificates import flips_early, record_claims, record_no_confident_rows
from fragility_paper.unit.fitted import fit_unit
from fragility_paper.unit.labels import donor_labels, label, labels_at
from fragility_paper.unit.measuring import audited_parts
from fragility_paper.unit.ranking import record_rankings
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.stresses import record_stresses
from fragility_paper.unit.work import Clock, UnitResult, Work, mean_of

BASELINES = ("typical", "median", "missing", "mean")
CROSSED = ("cfc_exposure", "cfc_fds", "random_order")


def measure_baselines(unit: Unit, data: Dataset, profile: Profile) -> UnitResult:
    """Rankings of one unit under its own baseline, and the table of score baseline by label baseline."""
    record, clock = Recorder(unit.dataset, unit.model, unit.seed), Clock()
    with clock.stage("train"):
        fitted = fit_unit(unit, data, profile)
    work = Work(fitted, profile, record, clock, unit.seed)
    test, validation = audited_parts(work, nearly=0)
    if not len(test.selection.confident):
        record_no_confident_rows(work)
        return UnitResult(record.frame(), dict(clock.seconds))
    record_claims(work, "confident", "support", test.select("confident").certs.claims)
    case = judge(work, test, validation)
    record_rankings(case)
    with clock.stage("stresses"):
        record_stresses(case)
    with clock.stage("baselines"):
        record_crossed(case)
    with clock.stage("smoothing"):
        record_smoothing(case)
    return UnitResult(record.frame(), dict(clock.seconds))


# ------------------------------------------------------------------ score baseline by label baseline


def record_crossed(case: Case) -> None:
    """AUROC of scores under each baseline against labels under each baseline, and against labels that use none."""
    rows, record = case.rows.take(case.sample), case.work.record
    scores: dict[str, dict[str, Floats]] = {}
    brittle = _labels_without_baseline(case, rows)
    for baseline in BASELINES:
        protocol = case.work.fitted.admitted(baseline)
        record.add("crossed", "admitted", float(protocol is not None), baseline=baseline)
        if protocol is not None:
            scores[baseline], brittle[baseline] = _under(case, rows, protocol)
    for name, labels in brittle.items():
        where: dict[str, Any] = {"variant": name, "rule": "expected", "count": len(labels)}
        record.add("crossed", "brittle_share", mean_of(labels), **where)
        for baseline, values in scores.items():
            for score, value in values.items():
                record.add("crossed", "auroc", auroc(value, labels), baseline=baseline, score=score, **where)


def _labels_without_baseline(case: Case, rows: AuditedRows) -> dict[str, Array]:
    """Which rows break under noise alone, and which where groups take another training row's values."""
    drawn = labels_at(case.labels, case.sample)
    kinds = [stressor.kind for stressor in drawn.stress.stressors]
    noise = drawn.brittle_by[:, kinds.index("noise")] & drawn.high_confidence
    return {"noise": noise, "donor": donor_labels(case.work, rows, (0,))[0].brittle}


def _under(case: Case, rows: AuditedRows, protocol: fg.Protocol) -> tuple[dict[str, Floats], Array]:
    """Scores and brittle rows where lost evidence takes the values of the protocol's baseline."""
    fitted = case.work.fitted
    own = protocol is fitted.protocol
    claims = rows.certs.claims if own else fitted.certify(rows.positions, protocol).claims
    _record_flips(case, claims, baseline=protocol.baseline)
    if own:
        scores = {name: case.directions[name] * case.scores[name][case.sample] for name in CROSSED}
        return scores, labels_at(case.labels, case.sample).brittle
    oracle = fitted.oracle(rows.positions, protocol)
    repeats, seed = case.work.profile.random_orders, fitted.unit.seed
    random = random_order_score(oracle, protocol, repeats=repeats, seed=seed)
    values = (claims.exposure, claims.fds, case.directions["random_order"] * random)
    return dict(zip(CROSSED, values, strict=True)), label(case.work, oracle, protocol=protocol).brittle


def _record_flips(case: Case, claims: Claims, **setting: Any) -> None:
    values = {"flips_early": flips_early(claims), "flip_share": claims.flipped, "flip_budget": claims.flip_budget}
    for metric, value in values.items():
        case.work.record.add("crossed", metric, mean_of(value), count=len(claims), **setting)


# ------------------------------------------------------------------ forests with and without smoothing


def record_smoothing(case: Case) -> None:
    """Scores and labels of the same rows, with the protocol's smoothing and without; models without any are skipped."""
    fitted, record = case.work.fitted, case.work.record
    if fitted.protocol.smoothing == 0.0:
        return
    bare = replace(fitted.protocol, smoothing=0.0)
    claims = fitted.certify(case.rows.positions, bare).claims
    labels = label(case.work, fitted.oracle(case.rows.positions, bare), protocol=bare)
    for protocol, found, brittle in (
        (fitted.protocol, case.rows.certs.claims, case.labels.brittle),
        (bare, claims, labels.brittle),
    ):
        where: dict[str, Any] = {"smoothing": protocol.smoothing, "rule": "expected", "count": len(brittle)}
        record.add("smoothing", "brittle_share", mean_of(brittle), **where)
        for name, values in (("cfc_exposure", found.exposure), ("cfc_fds", found.fds), ("cfc_rcma", found.rcma)):
            record.add("smoothing", "auroc", auroc(values, brittle), score=name, **where)
