"""What limits on depth and leaves do to plain and hardened forests: a declared grid, judged on validation rows alone.

Trained on at most ``TRAIN_ROWS`` training rows of the extra seeds. A tree without limits goes down to single rows, so
each of its leaves remembers one row or one degraded twin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.arrays import Array
from fragility_paper.data import Split
from fragility_paper.library import predictive_metrics
from fragility_paper.models import model_spec
from fragility_paper.plan import HARDENING_COPIES, HARDENING_RATE
from fragility_paper.training import train, train_hardened
from fragility_paper.unit.fitted import declared_protocol
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
RATES = (0.0, HARDENING_RATE)  # 0 is plain


def record_forests(work: Work) -> None:
    """Every limit, plain and hardened."""
    unit, data = work.fitted.unit, work.fitted.data
    parts = thinned(work.fitted.split)
    positions = _validation_rows(work)
    for limit, settings in LIMITS.items():
        spec = model_spec(unit.model)
        spec = replace(spec, settings=(*spec.settings, *settings.items()))
        plain = train(spec, data, parts)
        profile = work.profile
        protocol = declared_protocol(unit, data, parts, fg.Model.wrap(plain), profile.baseline, profile.smoothing)
        for rate in RATES:
            model = plain
            if rate > 0.0:
                model = train_hardened(spec, plain, data, parts, protocol, rate=rate, copies=HARDENING_COPIES)
            fitted = replace(work.fitted, split=parts, pipeline=model, model=fg.Model.wrap(model), protocol=protocol)
            _record_forest(replace(work, fitted=fitted), positions, variant=limit, severity=rate)


def thinned(parts: Split) -> Split:
    """The split with a declared number of its training rows."""
    order = np.random.default_rng([parts.seed, 2]).permutation(parts.train)
    return replace(parts, train=np.sort(order[:TRAIN_ROWS]))


def _validation_rows(work: Work) -> Array:
    order = np.random.default_rng([work.fitted.unit.seed, 3]).permutation(work.fitted.split.validation)
    return np.sort(order[: work.profile.calibration_rows])


def _record_forest(work: Work, positions: Array, **where: Any) -> None:
    fitted, record = work.fitted, work.record
    p, y = fitted.probabilities(positions), fitted.data.y[positions]
    found = predictive_metrics(p, y)
    rows = AuditedRows(fitted, positions, p, fitted.certify(positions))
    labels = label(work, rows.oracle)
    values = {
        "auroc": found.auroc,
        "nll": found.nll,
        "confident_share": mean_of(labels.high_confidence),
        "brittle_share_of_confident": mean_of(labels.brittle[labels.high_confidence]),
        "brittle_share_of_all": mean_of(labels.brittle),
        "flip_share_of_confident": mean_of(np.asarray(labels.flip.any(axis=1))[labels.high_confidence]),
        "exposure": mean_of(rows.certs.claims.exposure),
        "leaves": mean_of(np.array([tree.get_n_leaves() for tree in fitted.pipeline[-1].estimators_])),
    }
    for metric, value in values.items():
        record.add("forest", metric, value, count=len(y), rows="validation", **where)
