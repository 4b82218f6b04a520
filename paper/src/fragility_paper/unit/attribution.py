"""Group-SHAP: the attribution baseline, on a declared number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import fragility as fg
from fragility_paper.arrays import Array, Floats
from fragility_paper.library import (
    Oracle,
    better_direction,
    concentration,
    group_shap,
    original_class,
    pseudo_logits,
)
from fragility_paper.models import model_spec
from fragility_paper.unit.case import Case
from fragility_paper.unit.fitted import FittedUnit
from fragility_paper.unit.labels import labels_at
from fragility_paper.unit.ranking import record_ranking
from fragility_paper.unit.stresses import COMPARED, record_differences

TOP_GROUPS = 3


def record_shap(case: Case) -> None:
    """Group-SHAP beside every other score on the same rows, against both kinds of labels."""
    record, places = case.work.record, case.places(case.work.profile.shap_rows)
    values, explainer = group_shap_scores(case.work.fitted, case.rows.positions[places])
    scores = {**{name: score[places] for name, score in case.scores.items()}, "group_shap": values}
    directions = {**case.directions, "group_shap": _shap_direction(case)}
    wrong = case.wrong[places]
    labels = labels_at(case.labels, places)
    record_ranking(record, "attribution", scores, labels, directions, wrong, variant=explainer)
    compared = {name: directions[name] * scores[name] for name in (*COMPARED, "group_shap")}
    where: dict[str, Any] = {"variant": "group-SHAP rows", "rule": labels.stress.rule, "count": len(places)}
    record.add("stress", "brittle_rows", float(labels.brittle.sum()), **where)
    record_differences(record, compared, labels.brittle, COMPARED, {}, **where)
    if case.natural is not None:
        natural = labels_at(case.natural, places)
        record_ranking(record, "naturalistic_attribution", scores, natural, directions, wrong)


def _shap_direction(case: Case) -> int:
    """Decided on as many confident validation rows; without any, concentrated attribution counts as brittle."""
    if case.held is None:
        return 1
    count = min(case.work.profile.shap_rows, len(case.held.rows))
    values, _ = group_shap_scores(case.work.fitted, case.held.rows.positions[:count])
    return better_direction(values, case.held.labels.brittle[:count], 1)


def group_shap_scores(fitted: FittedUnit, positions: Array) -> tuple[Floats, str]:
    """Share of attribution in the top groups, and which explainer gave it."""
    oracle = fitted.oracle(positions)
    if model_spec(fitted.unit.model).family in ("linear", "boosting"):
        found = group_shap(oracle, fitted.protocol, top=TOP_GROUPS)
        return found.score, found.explainer
    return concentration(masked_group_shap(oracle, fitted.protocol, fitted.unit.seed), TOP_GROUPS), "group masking"


def masked_group_shap(oracle: Oracle, protocol: fg.Protocol, seed: int, pairs: int = 2) -> Floats:
    """|Shapley value| of whole groups, (n, G), by antithetic permutation masking toward the baseline, in one batch.

    For each of ``pairs`` random orders and its reverse, the change of the predicted class's pseudo-logit as each
    group turns from baseline to the row's value. For models whose own explainer is slow or absent (deep forests
    took TreeExplainer 1.4 s a row).
    """
    rows, x = oracle.rows, oracle.rows.dense()
    original = original_class(rows, oracle.predict(x), protocol.resolution)
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(int(rows.n_groups)) for _ in range(pairs)]
    orders = [order for forward in drawn for order in (forward, forward[::-1])]
    values = np.zeros((len(x), int(rows.n_groups)))
    for order in orders:
        values[:, order] += np.diff(_support_as_groups_appear(oracle, x, original, order), axis=1) / len(orders)
    return np.abs(values)


def _support_as_groups_appear(oracle: Oracle, x: Floats, original: Array, order: Array) -> Floats:
    """(n, G+1): the predicted class's pseudo-logit with the first 0..G groups of ``order`` present."""
    rows, groups = oracle.rows, len(order)
    rank = np.empty(groups, dtype=np.int64)
    rank[order] = np.arange(groups)
    present = rank[rows.column_group][None, :] < np.arange(groups + 1)[:, None]
    states = np.where(present[None], x[:, None, :], rows.baseline).reshape(-1, x.shape[1])
    z = pseudo_logits(oracle.predict(states)).reshape(len(x), groups + 1, -1)
    return np.asarray(np.take_along_axis(z, original[:, None, None], axis=2)[:, :, 0])
