"""The same scores against labels of other stress, and who is better within the unit by more than chance.

Every score stays as it is, and a baseline keeps the direction it was given on validation rows with the default labels;
only the stress that decides who is brittle changes. Differences of AUROC come with a paired bootstrap over the unit's
rows. The unit's strongest baseline is named twice: on validation rows, as a user could, and on the judged rows
themselves, in the baselines' favour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragility_paper.arrays import Array, Floats, Scores
from fragility_paper.library import BrittleLabels, auroc, quantile_interval, resampled_aurocs
from fragility_paper.tidy import Recorder
from fragility_paper.unit.case import Case
from fragility_paper.unit.labels import INDEPENDENT, donor_labels, label, naturalistic_labels
from fragility_paper.unit.lattice import LATTICE_SCORES
from fragility_paper.unit.work import mean_of

DEFAULT = "default"
RANKED = ("cfc_exposure", "cfc_fds", "cfc_rcma", "independent_loss", "common_loss", *LATTICE_SCORES)
COMPARED = ("cfc_exposure", "cfc_fds", "cfc_rcma")
# Perturbation first: where validation rows cannot tell, the strongest is the first.
BASELINES = (
    "random_order",
    "permutation_order",
    "one_step_drop",
    "max_softmax",
    "negative_entropy",
    "margin",
    "negative_energy",
)
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Labels of the confident test rows by one kind of stress, and what an independent set of draws says of them."""

    name: str
    rule: str
    brittle: Array
    again: Floats  # the rule's own statistic over independent draws, for the ceiling


def record_stresses(case: Case) -> None:
    """AUROC, ceiling, brittle rows and differences within the unit, for every kind of stress."""
    chosen = strongest_on_validation(case)
    there = [name for name in (*RANKED, *BASELINES) if name in case.scores]
    oriented = {name: case.directions[name] * case.scores[name] for name in there}
    for variant in variants(case):
        compared = COMPARED if variant.name == DEFAULT else COMPARED[:2]
        record_variant(case.work.record, variant, oriented, compared, chosen)


def variants(case: Case) -> Iterator[Variant]:
    yield variant_of(DEFAULT, case.labels, case.independent)
    yield from each_stressor(case)
    yield variant_of("any", case.labels.relabel(rule="any"), case.independent.relabel(rule="any"))
    for severity in case.work.profile.other_severities:
        drawn = [label(case.work, case.rows.oracle, severity=severity, seed_offset=o) for o in (0, INDEPENDENT)]
        yield variant_of(f"severity {severity:g}", *drawn)
    if case.natural is not None:
        again = naturalistic_labels(case.work, case.rows, seed_offset=INDEPENDENT)
        yield variant_of("naturalistic", case.natural, again or case.natural)
    yield variant_of("donor", *donor_labels(case.work, case.rows, (0, INDEPENDENT)))


def variant_of(name: str, labels: BrittleLabels, again: BrittleLabels) -> Variant:
    return Variant(name, labels.stress.rule, labels.brittle, again.statistic)


def each_stressor(case: Case) -> Iterator[Variant]:
    """The rows that mask, dropout or noise breaks alone, from the draws that are there."""
    labels, again = case.labels, case.independent
    for place, stressor in enumerate(labels.stress.stressors):
        broken = labels.brittle_by[:, place] & labels.high_confidence
        yield Variant(stressor.kind, labels.stress.rule, broken, again.kappa[:, place])


def strongest_on_validation(case: Case) -> str:
    """The baseline with the highest oriented AUROC on confident validation rows, default labels."""
    held = case.held
    if held is None:
        return BASELINES[0]
    turned = {name: case.directions[name] * held.scores[name] for name in BASELINES}
    return strongest(turned, held.labels.brittle)


def strongest(scores: Scores, brittle: Array) -> str:
    areas = {name: auroc(scores[name], brittle) for name in BASELINES}
    return max(BASELINES, key=lambda name: -1.0 if math.isnan(areas[name]) else areas[name])


def record_variant(record: Recorder, variant: Variant, scores: Scores, compared: tuple[str, ...], chosen: str) -> None:
    """AUROC of every score and the ceiling; differences of the compared scores to every baseline.

    ``chosen`` is the baseline that is the strongest on validation rows.
    """
    brittle = variant.brittle
    where: dict[str, Any] = {"variant": variant.name, "rule": variant.rule, "count": len(brittle)}
    record.add("stress", "brittle_share", mean_of(brittle), **where)
    record.add("stress", "brittle_rows", float(brittle.sum()), **where)
    record.add("stress", "ceiling", auroc(variant.again, brittle), **where)
    for name, values in scores.items():
        record.add("stress", "auroc", auroc(values, brittle), score=name, **where)
    named = {"strongest on validation rows": chosen, "strongest on these rows": strongest(scores, brittle)}
    for words, name in named.items():
        record.add("stress", "auroc", auroc(scores[name], brittle), score=words, against=name, **where)
    paired = {name: values for name, values in scores.items() if name in compared or name in BASELINES}
    record_differences(record, paired, brittle, compared, named, **where)


def record_differences(
    record: Recorder, scores: Scores, brittle: Array, compared: tuple[str, ...], named: Mapping[str, str], **where: Any
) -> None:
    """AUROC(score) - AUROC(baseline) with its 95% interval over row resamples, all on the same resamples.

    ``named`` gives further names to baselines, such as the unit's strongest.
    """
    names = [name for name in scores if name in compared or name not in RANKED]
    drawn = dict(zip(names, resampled_aurocs([scores[n] for n in names], brittle, resamples=RESAMPLES), strict=True))
    area = {name: auroc(scores[name], brittle) for name in names}
    others = {**{name: name for name in names if name not in compared}, **named}
    pairs = [(score, words, name) for score in compared for words, name in others.items()]
    pairs += [(compared[0], name, name) for name in compared[1:]]
    for score, words, name in pairs:
        low, high = quantile_interval(np.asarray(drawn[score] - drawn[name]))
        for metric, value in (("difference", area[score] - area[name]), ("low", low), ("high", high)):
            record.add("within", metric, value, score=score, against=words, **where)
