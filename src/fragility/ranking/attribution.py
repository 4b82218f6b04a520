"""Group-SHAP: is the explanation of a prediction concentrated on few evidence groups?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats, Integers
from fragility.errors import DataError
from fragility.evidence import EvidenceRows, RowStates
from fragility.evidence.agreement import original_class
from fragility.libraries import say_lacking
from fragility.protocol import Protocol
from fragility.scores import pseudo_logits


@dataclass(frozen=True, slots=True, eq=False)
class GroupShap:
    """Absolute SHAP mass of every group on the explained rows; `score` is NaN on rows that were not explained."""

    explainer: str  # "tree", "linear" or "permutation"
    explained: Integers  # (s,) row positions
    mass: Floats  # (s, G) sum of |SHAP| within each group
    score: Floats  # (n,) share of the `top` largest groups
    top: int


def group_shap(
    rows: EvidenceRows,
    protocol: Protocol,
    *,
    background: npt.ArrayLike | None = None,
    top: int = 3,
    max_rows: int | None = None,
    among: npt.ArrayLike | None = None,
    seed: int = 0,
) -> GroupShap:
    """Return the share of absolute SHAP mass in the `top` groups: is the explanation concentrated?

    In the transformed space the estimator decides the explainer: TreeExplainer for tree ensembles, LinearExplainer for
    linear models (against `background`, by default the baseline row). Everything else, and the raw space, goes
    through permutation masking of whole groups toward the baseline. With several classes the predicted class counts.

    max_rows: explain a random subset of this many rows (declare it; at least 256 in the study); None explains all.
    among: (n,) the rows to choose from, e.g. the high-confidence ones; None chooses from all.
    """
    n, head = len(rows), rows.model.head
    picked = np.arange(n) if among is None else np.flatnonzero(among)
    if max_rows is not None and max_rows < len(picked):
        picked = np.sort(np.random.default_rng(seed).choice(picked, size=max_rows, replace=False))
    x = np.asarray(rows.dense(0, n), dtype=np.float64)[picked]
    family = _explainer_family(head) if protocol.space == "transformed" else "permutation"
    original = original_class(rows, rows.predict(x), protocol.resolution, picked)
    if family == "tree":
        explainer = _import_shap().TreeExplainer(head)
        with warnings.catch_warnings():
            # Said to callers who rely on the old layout of the values; `_sum_by_group` reads both.
            warnings.filterwarnings("ignore", message="LightGBM binary classifier")
            mass = _sum_by_group(explainer.shap_values(x, check_additivity=False), original, rows)
    elif family == "linear":
        reference = np.asarray(rows.baseline)[None, :] if background is None else np.asarray(background)
        mass = _sum_by_group(_import_shap().LinearExplainer(head, reference).shap_values(x), original, rows)
    else:
        mass = _permutation_shap(rows, x, original, seed)
    score = np.full(n, np.nan)
    score[picked] = concentration(mass, top)
    return GroupShap(family, picked, mass, score, top)


def concentration(mass: Floats, top: int = 3) -> Floats:
    """Return the share of each row's mass that its `top` largest groups hold; 0 if there is no mass at all."""
    largest = -np.sort(-mass, axis=1)[:, :top]
    total = mass.sum(axis=1)
    return np.asarray(np.divide(largest.sum(axis=1), total, out=np.zeros(len(mass)), where=total > 0.0))


def _explainer_family(estimator: Any) -> str:
    """Return which SHAP explainer fits an estimator, by its class and the library it comes from."""
    name, module = type(estimator).__name__, type(estimator).__module__.split(".")[0]
    if module in {"xgboost", "lightgbm", "catboost"}:
        return "tree"
    if module == "sklearn" and name in _SKLEARN_TREES:
        return "tree"
    return "linear" if module == "sklearn" and name in _SKLEARN_LINEAR else "permutation"


_SKLEARN_TREES = {
    "DecisionTreeClassifier",
    "ExtraTreeClassifier",
    "ExtraTreesClassifier",
    "GradientBoostingClassifier",
    "HistGradientBoostingClassifier",
    "RandomForestClassifier",
}
_SKLEARN_LINEAR = {"LogisticRegression", "LogisticRegressionCV", "SGDClassifier", "LinearDiscriminantAnalysis"}


def _import_shap() -> Any:
    try:
        import shap
    except ImportError as error:
        raise DataError(say_lacking("group-SHAP", "shap") or f"group-SHAP cannot load shap: {error}") from error
    return shap


def _permutation_shap(rows: EvidenceRows, x: Floats, original: Integers, seed: int) -> Floats:
    """Return |Shapley value| of whole groups for the log-odds-like support of the predicted class; (n, G)."""
    shap = _import_shap()
    n_groups = int(rows.n_groups)
    mass = np.empty((len(x), n_groups))
    for index, row in enumerate(x):

        def support(kept: npt.ArrayLike, row: Floats = row, index: int = index) -> Floats:
            removed = np.asarray(kept) <= 0.5
            return pseudo_logits(rows.answers(row[None], RowStates.of_one(removed)))[:, original[index]]

        explainer = shap.PermutationExplainer(support, np.zeros((1, n_groups)), seed=seed)
        explained = explainer(np.ones((1, n_groups)), max_evals=4 * n_groups + 2, silent=True)
        mass[index] = np.abs(explained.values[0])
    return mass


def _sum_by_group(values: Any, original: Integers, rows: EvidenceRows) -> Floats:
    """Return (n, G) sums of |SHAP| of the predicted class, from (n, d), (n, d, C) or a list of C arrays."""
    array = np.stack(values, axis=-1) if isinstance(values, list) else np.asarray(values)
    if array.ndim == 3:
        array = np.take_along_axis(array, original[:, None, None], axis=2)[:, :, 0]
    out = np.zeros((len(array), int(rows.n_groups)))
    np.add.at(out.T, np.asarray(rows.column_group), np.abs(array).T)
    return out
