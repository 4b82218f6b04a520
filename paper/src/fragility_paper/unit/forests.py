"""Why hardening may hurt full-depth forests, and what helps: a declared grid, judged on validation rows alone.

Trained on at most ``TRAIN_ROWS`` training rows of the extra seeds. A tree without limits goes down to single rows, so
each of its leaves remembers one row or one degraded twin; the grid limits leaves or depth, and moves rate and copies.
Where all trees agree, the probability is 1 and the margin stands at its clip, so that one vote lost takes most of it:
how often that is so, and what one vote added to each class makes of it, is recorded too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.data import Split
from fragility_paper.library import BrittleLabels, auroc, label_rows, predictive_metrics
from fragility_paper.models import ModelSpec, model_spec
from fragility_paper.training import train, train_hardened
from fragility_paper.unit.fitted import FittedUnit, declared_protocol
from fragility_paper.unit.labels import label
from fragility_paper.unit.rows import AuditedRows
from fragility_paper.unit.work import Work, mean_of

TRAIN_ROWS = 6_000
LIMITS: dict[str, dict[str, int]] = {
    "none": {},
    "leaves of 5": {"min_samples_leaf": 5},
    "leaves of 20": {"min_samples_leaf": 20},
    "depth 12": {"max_depth": 12},
}
CERTAIN = 27.0  # a margin that only probabilities of 1 have, to rounding: it is clipped at log(1e12) = 27.6
SETTINGS = ((0.0, 1), (0.1, 1), (0.2, 1), (0.3, 1), (0.2, 4))  # rate and copies; rate 0 is plain


def record_forests(work: Work) -> None:
    """Every limit with every rate and number of copies."""
    unit, data = work.fitted.unit, work.fitted.data
    parts = thinned(work.fitted.split)
    positions = _validation_rows(work)
    for limit, settings in LIMITS.items():
        spec = model_spec(unit.model)
        spec = replace(spec, settings=(*spec.settings, *settings.items()))
        plain = train(spec, data, parts)
        protocol = declared_protocol(unit, data, parts, fg.Model.wrap(plain))
        for rate, copies in SETTINGS:
            model = _hardened(spec, plain, work.fitted, parts, protocol, rate, copies)
            fitted = replace(work.fitted, split=parts, pipeline=model, model=fg.Model.wrap(model), protocol=protocol)
            where = {"variant": limit, "severity": rate, "depth": float(copies)}
            _record_forest(replace(work, fitted=fitted), positions, **where)


def thinned(parts: Split) -> Split:
    """The split with a declared number of its training rows."""
    order = np.random.default_rng([parts.seed, 2]).permutation(parts.train)
    return replace(parts, train=np.sort(order[:TRAIN_ROWS]))


def _validation_rows(work: Work) -> Array:
    order = np.random.default_rng([work.fitted.unit.seed, 3]).permutation(work.fitted.split.validation)
    return np.sort(order[: work.profile.calibration_rows])


def _hardened(
    spec: ModelSpec, plain: Any, fitted: FittedUnit, parts: Split, protocol: fg.Protocol, rate: float, copies: int
) -> Any:
    if rate == 0.0:
        return plain
    return train_hardened(spec, plain, fitted.data, parts, protocol, rate=rate, copies=copies)


def _record_forest(work: Work, positions: Array, **where: Any) -> None:
    fitted, record = work.fitted, work.record
    p, y = fitted.probabilities(positions), fitted.data.y[positions]
    found = predictive_metrics(p, y)
    rows = AuditedRows(fitted, positions, p, fitted.certify(positions))
    labels = label(work, rows.evidence)
    values = {
        "auroc": found.auroc,
        "nll": found.nll,
        "confident_share": mean_of(labels.high_confidence),
        "brittle_share_of_confident": mean_of(labels.brittle[labels.high_confidence]),
        "brittle_share_of_all": mean_of(labels.brittle),
        "flip_share_of_confident": mean_of(np.asarray(labels.flip.any(axis=1))[labels.high_confidence]),
        "certain_share_of_confident": mean_of(np.asarray(labels.margin >= CERTAIN)[labels.high_confidence]),
        "exposure": mean_of(rows.certs.claims.exposure),
        "leaves": mean_of(np.array([tree.get_n_leaves() for tree in fitted.pipeline[-1].estimators_])),
    }
    if p.shape[1] == 2:
        mask = [stressor.kind for stressor in labels.stress.stressors].index("mask")
        values["auroc_masked"] = masked_auroc(labels.run.draw_margin[:, mask, 0], labels.predicted, y)
        values["probability_drop"] = probability_drop(labels)
        values["smoothed_brittle_share"] = smoothed_brittle_share(labels, len(fitted.pipeline[-1].estimators_))
    for metric, value in values.items():
        record.add("forest", metric, value, count=len(y), rows="validation", **where)


def masked_auroc(margin: Floats, predicted: Array, y: Array) -> float:
    """How well two classes are told apart when groups are masked; margin (n,) of the class predicted without."""
    return auroc(np.where(predicted == 1, margin, -margin), y == 1)


def probability_drop(labels: BrittleLabels) -> float:
    """Mean loss of the original class's probability over all draws, confident rows; two classes."""
    run = labels.run
    drop = (_chance(run.margin)[:, None, None] - _chance(run.draw_margin)).mean(axis=(1, 2))
    return mean_of(drop[labels.high_confidence])


def smoothed_brittle_share(labels: BrittleLabels, trees: int) -> float:
    """The brittle share of the same rows, had each class one vote more than its trees gave it; two classes."""
    run = labels.run
    milder = replace(run, margin=smoothed(run.margin, trees), draw_margin=smoothed(run.draw_margin, trees))
    return mean_of(label_rows(milder, labels.stress).brittle[labels.high_confidence])


def smoothed(margin: Floats, trees: int) -> Floats:
    """The log odds of two classes once each has one vote more."""
    votes = _chance(margin) * trees
    return np.asarray(np.log((votes + 1.0) / (trees - votes + 1.0)))


def _chance(margin: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-margin)))
