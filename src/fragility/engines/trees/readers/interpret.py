"""Explainable boosting machines of ``interpret``: each term is a table over the bins of its features.

A cell falls into a bin of its feature: 0 for a missing one, the last for one that training did not know, and between
them the stretches between cuts, or the categories. The raw score is the intercept plus one entry of each term's table,
in the order of the terms.

Categories are texts. A number is compared with them by the text that the library writes for it, so a category that is
such a text stands at its number, among numbers that are unknown; other texts stand far beyond all numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fragility.base.arrays import Floats
from fragility.base.errors import EngineError
from fragility.engines.trees.forest import SIGMOID, SOFTMAX, Convention, assemble
from fragility.engines.trees.recoding import FURTHEST, Ensemble, Vocabulary
from fragility.engines.trees.terms import Axis, Term, build_tree, flatten_terms
from fragility.evidence import CellForm

UNKNOWN = -FURTHEST  # stands for a text that the feature does not know
EXACT = 2.0**53  # whole numbers beyond have several texts
MISSING_BIN, LAST_BIN = 0, -1


def read_machine(head: Any) -> Ensemble:
    """Read a fitted classifier."""
    binary, kinds = len(head.classes_) == 2, list(head.feature_types_in_)
    if head.link_ != ("logit" if binary else "mlogit"):
        raise EngineError(f"an explainable boosting machine with the link {head.link_!r}")
    base = np.array(head.intercept_, dtype=np.float64).reshape(-1)
    places = {j: _place_categories(head.bins_[j]) for j, kind in enumerate(kinds) if kind != "continuous"}
    terms = []
    for features, scores in zip(head.term_features_, head.term_scores_, strict=True):
        axes = []
        for j in features:
            level = min(len(head.bins_[j]), len(features)) - 1  # pairs may have bins of their own
            bins = head.bins_[j][level]
            axes.append(
                _stretch_categories(j, level, bins, places[j]) if j in places else _stretch_cuts(j, level, bins)
            )
        terms.append(Term(tuple(axes), np.array(scores, dtype=np.float64).reshape(*scores.shape[: len(axes)], -1)))
    if not terms:
        raise EngineError("an explainable boosting machine without terms")
    forest = assemble(
        [build_tree(term) for term in terms], Convention(base, SIGMOID if binary else SOFTMAX), head.n_features_in_
    )
    vocabulary = Vocabulary(coded=_Codes(places, len(kinds)).code_forms, reads_numbers=True)
    return Ensemble(forest, vocabulary, terms=flatten_terms(terms, base))


def _stretch_cuts(column: int, level: int, cuts: Floats) -> Axis:
    """Return a feature of numbers: one that equals a cut is above it."""
    edges = np.concatenate([[UNKNOWN], np.nextafter(np.asarray(cuts, dtype=np.float64), -np.inf), [np.inf]])
    return Axis(column, level, edges, np.array([LAST_BIN, *range(1, len(cuts) + 2), MISSING_BIN]))


def _stretch_categories(column: int, level: int, bins: Mapping[str, int], places: Mapping[str, float]) -> Axis:
    """Return a feature of categories; numbers between them are unknown."""
    edges: list[float] = []
    numbers: list[int] = [LAST_BIN]
    for place, text in sorted((place, text) for text, place in places.items()):
        edges.append(float(np.nextafter(place, -np.inf)))
        numbers.append(bins.get(text, LAST_BIN))
        if place < FURTHEST:
            edges.append(place)
            numbers.append(LAST_BIN)
    return Axis(column, level, np.array([*edges, np.inf]), np.array([*numbers, MISSING_BIN]))


def _place_categories(levels: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return where each category of a feature stands among the numbers."""
    texts = list(dict.fromkeys(text for level in levels for text in level))
    places = {}
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            continue
        if not np.isfinite(number) or text not in (write_number(number), f"{number:.0f}"):
            continue  # no number is written so
        if abs(number) >= EXACT:
            raise EngineError(f"an explainable boosting machine with the category {text!r}, a number beyond 2**53")
        places[text] = number
    others = (text for text in texts if text not in places)
    return places | {text: FURTHEST * (k + 1) for k, text in enumerate(others)}


def write_number(value: float) -> str:
    """Return the text that the library writes for a number: "2" for 2.0."""
    text = str(np.array([value + 0.0]).astype(np.str_)[0])
    return text.rstrip("0").rstrip(".") if text.endswith(".0") else text


class _Codes:
    """Where the values of a column that holds no numbers stand."""

    def __init__(self, places: Mapping[int, Mapping[str, float]], n_columns: int) -> None:
        self.places, self.n_columns = places, n_columns

    def code_forms(self, forms: Sequence[CellForm]) -> dict[int, dict[Any, float]]:
        """Return {value: place} of each column of values."""
        return {
            j: {value: self._code(j, value) for value in form.values if value is not None}
            for j, form in enumerate(forms[: self.n_columns])
            if form.values is not None
        }

    def _code(self, column: int, value: Any) -> float:
        if not isinstance(value, (str, bool, int, float)):
            raise EngineError(f"column {column} holds values of type {type(value).__name__}, which are not texts")
        if column in self.places:
            whole = isinstance(value, int)  # truth values are "1" and "0"
            text = value if isinstance(value, str) else str(int(value)) if whole else write_number(value)
            return self.places[column].get(text, UNKNOWN)
        try:
            number = float(value)
        except ValueError:
            return UNKNOWN
        return UNKNOWN if abs(number) >= FURTHEST else number
