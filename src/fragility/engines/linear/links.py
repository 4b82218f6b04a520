"""The linear models the engine knows: dense or CSR rows in float64, and how their scores become probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fragility.arrays import Floats
from fragility.evidence import EvidenceRows
from fragility.libraries import family_of
from fragility.models import links
from fragility.scores import softmax_probabilities

LOGISTIC = ("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV")
DISCRIMINANT = "sklearn.LinearDiscriminantAnalysis"
STOCHASTIC = "sklearn.SGDClassifier"

Link: TypeAlias = Callable[[Floats], Floats]  # raw scores (..., C) -> probabilities (..., C)


def one_against_rest(scores: Floats) -> Floats:
    """Return 1 / (1 + exp(-s_c)), normalised over the classes; uniform where all of them vanish."""
    with np.errstate(over="ignore"):
        p = 1.0 / (1.0 + np.exp(-scores))
    p[p.sum(axis=-1) == 0.0] = 1.0
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def link_for(rows: EvidenceRows) -> Link | None:
    """Return the link of a known linear model, None for any other; with two classes it is the logistic one."""
    head, family = rows.model.head, family_of(rows.model.head)
    linked = rows.model.head_link is not links.Link.PREDICT_PROBA
    if family in LOGISTIC or family == DISCRIMINANT:
        if linked:
            return softmax_probabilities
        rest = getattr(head, "solver", "") == "liblinear" or getattr(head, "multi_class", "") == "ovr"
        return one_against_rest if family in LOGISTIC and rest and rows.n_classes > 2 else None
    if family == STOCHASTIC and head.loss == "log_loss":
        return one_against_rest if linked or rows.n_classes > 2 else None
    return None
