"""scikit-learn's MLPClassifier trained with validation rows of our own.

Its ``fit`` sets rows aside by itself and takes none. Here it is trained epoch by epoch with ``partial_fit``, and
stopped by its own rule: after ``n_iter_no_change`` epochs whose validation accuracy is not ``tol`` above the best, the
weights of the best epoch are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score
from sklearn.neural_network import MLPClassifier
from sklearn.utils import check_random_state

from fragility.arrays import Floats


def fit_by_epochs(
    model: MLPClassifier, X: Any, y: Any, sample_weight: Floats, X_val: Any, y_val: Any, sample_weight_val: Floats
) -> None:
    """Train an unfitted network with early stopping on the given validation rows."""
    own = {"early_stopping": model.early_stopping, "random_state": model.random_state}
    # One generator for all epochs: partial_fit would shuffle by the same integer each time.
    model.set_params(early_stopping=False, random_state=check_random_state(own["random_state"]))
    classes, scores = np.unique(np.asarray(y)), [-np.inf]
    best, waited = [], 0
    while len(scores) <= model.max_iter and waited <= model.n_iter_no_change:
        model.partial_fit(X, y, sample_weight=sample_weight, classes=classes)
        score = float(accuracy_score(y_val, model.predict(X_val), sample_weight=sample_weight_val))
        waited = waited + 1 if score < max(scores) + model.tol else 0
        if score > max(scores):
            best = [[part.copy() for part in parts] for parts in (model.coefs_, model.intercepts_)]
        scores.append(score)
    model.coefs_, model.intercepts_ = best
    model.set_params(**own)
    model.validation_scores_, model.best_validation_score_, model.n_iter_ = scores[1:], max(scores), len(scores) - 1
    model.best_loss_ = None
