"""Asking the model itself what it says of raw rows in which fields take other values, through the whole pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats, Integers
from fragility.evidence.modes import values_frame
from fragility.evidence.rows import Scalar
from fragility.questions.modes.searching import Search

Change = Mapping[str, Scalar]  # values of fields
ASKED_TOGETHER = 4096


class RawAsker:
    """The rows of a search as they came, and the model as its user asks it."""

    def __init__(self, search: Search) -> None:
        self.search, self.frame, self.model = search, search.frame, search.rows.model
        self.asked = 0

    def ask(self, who: Sequence[int] | Integers, changes: Sequence[Change]) -> Floats:
        """Return (m, C) the model's probabilities of raw rows, in each of which some fields take other values."""
        p = np.empty((len(changes), self.search.rows.n_classes))
        parts: dict[tuple[str, ...], list[int]] = {}  # a missing value may change the type of its column
        for i, change in enumerate(changes):
            parts.setdefault(tuple(sorted(name for name, value in change.items() if value is None)), []).append(i)
        for places in parts.values():
            for start in range(0, len(places), ASKED_TOGETHER):
                some = places[start : start + ASKED_TOGETHER]
                p[some] = self._ask_table([int(who[i]) for i in some], [changes[i] for i in some])
        self.asked += len(changes)
        return p

    def measure(self, who: Sequence[int] | Integers, changes: Sequence[Change]) -> tuple[Floats, Integers]:
        """Return (residual, class): below 0 the change flips the decision, to that class."""
        if not len(changes):
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        return self.search.measure(self.ask(who, changes), self.search.original[np.asarray(who)])

    def _ask_table(self, who: list[int], changes: Sequence[Change]) -> Floats:
        table = self.frame.iloc[who].reset_index(drop=True)
        for name in dict.fromkeys(name for change in changes for name in change):
            places = [i for i, change in enumerate(changes) if name in change]
            values = values_frame({name: [changes[i][name] for i in places]}, self.frame)[name]
            table[name] = _put(table[name], places, values)
        assert self.search.rows.ask_table is not None
        return self.search.rows.ask_table(table)


def _put(column: pd.Series, places: list[int], values: pd.Series) -> pd.Series:
    """Return a column in which some cells hold other values; its type is theirs where it cannot hold them."""
    if len(places) == len(column):
        return values
    if column.dtype == values.dtype:
        made = column.copy()
        made.iloc[places] = values.array
        return made
    if all(isinstance(own.dtype, np.dtype) and own.dtype.kind in "iuf" for own in (column, values)):
        numbers = column.to_numpy(dtype=np.float64).copy()
        numbers[places] = values.to_numpy(dtype=np.float64)
        return pd.Series(numbers, index=column.index, name=column.name)
    made = column.astype(object)
    made.iloc[places] = values.astype(object).array
    return made
