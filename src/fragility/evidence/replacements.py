"""Replacements: what each raw field becomes when it is lost, in the field's own units.

In the raw space, and where the model has no preprocessing, the protocol's baseline says it. Elsewhere the baseline is
in the units of the estimator's input, and a raw value is sought that the preprocessing turns into it: one that a row at
hand has, or, for numbers, one between two of them, which is tried out on the preprocessing itself. A baseline that no
raw value leads to, such as the mean of one-hot columns, stays without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from fragility.arrays import Floats
from fragility.canonical import is_missing
from fragility.errors import FragilityError
from fragility.evidence.bound import EvidenceSpace
from fragility.evidence.codec import dense, transform
from fragility.evidence.fields import kind_of
from fragility.evidence.rows import Rows, read_rows
from fragility.evidence.tracing import trace_columns
from fragility.models.adapter import Model

SAMPLE = 1000  # rows looked at
CLOSE = 1e-6  # relative to the spread of the column
SHORT_BELOW = 1e5  # larger numbers are written in full
STEPS = 60  # of narrowing a number between two others
State: TypeAlias = Literal["value", "missing", "no value", "unknown"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a lost field becomes.

    Attributes
    ----------
    state : {"value", "missing", "no value", "unknown"}
        ``no value``: no single value of the field leads to the baseline; ``unknown``: the model is needed to tell.
    value : Any
        The value, where there is one.
    """

    state: State
    value: Any = None

    def __str__(self) -> str:
        return {
            "value": value_text(self.value),
            "missing": "missing",
            "no value": "no single value",
            "unknown": "not known without the model",
        }[self.state]


def value_text(value: Any) -> str:
    """Return a cell as a reader expects it: no numpy names, no decimals on whole numbers."""
    if is_missing(value):
        return "missing"
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return f"{number:.0f}" if SHORT_BELOW <= abs(number) < np.inf else f"{number:.6g}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d}" if value.time() == time() else f"{value:%Y-%m-%d %H:%M}"
    return str(value)


def fields_of_groups(evidence: EvidenceSpace, model: Model | None = None) -> dict[str, tuple[str, ...]]:
    """Return the raw fields that each evidence group has a part of, as far as it is known.

    A column of the raw space is a field. A transformed column is traced to its fields where the model is at hand; else
    only a group named like a field is taken for that field's.
    """
    fields = [field.name for field in evidence.fields]
    origins: dict[str, tuple[str, ...]] = {name: (name,) for name in fields}
    if _is_preprocessed(evidence, model):
        origins = dict(zip((column.name for column in evidence.columns), _origins(evidence, model), strict=False))
    found = {}
    for group in evidence.groups:
        parts = {field for column in group.columns for field in origins.get(column, ())} or {group.name}
        found[group.name] = tuple(name for name in fields if name in parts)
    return found


def find_replacements(
    evidence: EvidenceSpace, model: Model | None = None, frame: pd.DataFrame | None = None
) -> dict[str, Replacement]:
    """Return what each raw field becomes when it is lost.

    model, frame: the model and some raw rows, needed where the model has preprocessing of its own.
    """
    fields = [field.name for field in evidence.fields]
    baseline = {column.name: column.baseline for column in evidence.columns}
    if all(name in baseline for name in fields) and not _is_preprocessed(evidence, model):
        found = {}
        for field in evidence.fields:
            value: Any = baseline[field.name]  # a protocol writes dates as text
            dated = field.type == "date" and not is_missing(value)
            found[field.name] = _replace_by(pd.Timestamp(value) if dated else value)
        return found
    if frame is None or not _is_preprocessed(evidence, model):
        return {name: Replacement("unknown") for name in fields}
    assert model is not None
    try:
        return _search_values(evidence, model, read_rows(frame[fields].iloc[:SAMPLE], model.columns, model.n_columns))
    except FragilityError:  # rows that the model does not take are refused where they are audited, not here
        return {name: Replacement("unknown") for name in fields}


def _replace_by(value: Any) -> Replacement:
    return Replacement("missing") if is_missing(value) else Replacement("value", value)


def _is_preprocessed(evidence: EvidenceSpace, model: Model | None) -> bool:
    return evidence.space != "raw" and model is not None and model.transformer is not None


def _origins(evidence: EvidenceSpace, model: Model | None) -> list[tuple[str, ...]]:
    assert model is not None
    fields = [field.name for field in evidence.fields]
    return [origin.fields for origin in trace_columns(model.transformer, list(model.columns or fields))]


class _Search:
    """The columns that the preprocessing makes of some rows, and the baseline that a value is sought for."""

    def __init__(self, evidence: EvidenceSpace, model: Model, rows: Rows) -> None:
        assert rows.frame is not None
        self.model, self.rows, self.frame = model, rows, rows.frame
        self.matrix = dense(transform(model, rows)[0])
        origins = _origins(evidence, model)
        self.own = {name: [j for j, fields in enumerate(origins) if fields == (name,)] for name in rows.names}
        self.target = np.array(
            [np.nan if column.baseline is None else column.baseline for column in evidence.columns], dtype=np.float64
        )
        self.tolerance = CLOSE * np.maximum(np.nan_to_num(np.nanstd(self.matrix, axis=0)), CLOSE)

    def is_reached(self, name: str, matrix: Floats) -> Any:
        """(n,) whether the columns of a field are at the baseline."""
        own = self.own[name]
        found, wanted = matrix[:, own], self.target[own]
        with np.errstate(invalid="ignore"):
            equal = (np.abs(found - wanted) <= self.tolerance[own]) | (np.isnan(found) & np.isnan(wanted))
        return equal.all(axis=1)

    def columns_at(self, values: Mapping[str, Any]) -> Floats:
        """(1, d) what the preprocessing makes of the first row with these values."""
        trial = self.frame.iloc[[0]].copy()
        for name, value in values.items():
            cell = pd.Series([value], index=trial.index)
            whole = kind_of(trial[name]) != "numeric" or float(value).is_integer()  # else: the mean of whole numbers
            trial[name] = cell.astype(trial[name].dtype) if whole else cell
        return dense(transform(self.model, read_rows(trial, self.rows.names))[0])

    def shown_by_a_row(self, name: str) -> Replacement | None:
        """The value of a row that is at the baseline."""
        there = np.flatnonzero(self.is_reached(name, self.matrix))
        return _replace_by(self.frame[name].iloc[int(there[0])]) if len(there) and self.own[name] else None

    def bracket(self, name: str) -> _Bracket | None:
        """Two rows between whose numbers the baseline lies; None where there are none."""
        if kind_of(self.frame[name]) != "numeric" or not self.own[name]:
            return None
        raw = self.frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
        known = np.flatnonzero(~np.isnan(raw))
        known = known[np.argsort(raw[known], kind="stable")]
        for j in self.own[name]:
            distance = self.matrix[known, j] - self.target[j]
            crossing = np.flatnonzero(np.diff(np.sign(distance)) != 0)
            if len(crossing):
                low, high = known[crossing[0]], known[crossing[0] + 1]
                return _Bracket(j, raw[low], raw[high], self.matrix[low, j], self.matrix[high, j])
        return None


@dataclass
class _Bracket:
    """A number sought between two others, by the column that the preprocessing makes of it."""

    column: int
    low: float
    high: float
    at_low: float
    at_high: float

    def guess(self, wanted: float, step: int) -> float:
        """Return a number between: on the straight line first, then halfway, and so on in turns."""
        if step % 2:
            return (self.low + self.high) / 2
        return self.low + (wanted - self.at_low) / (self.at_high - self.at_low) * (self.high - self.low)

    def narrow(self, value: float, found: float, wanted: float) -> None:
        if (found < wanted) == (self.at_low < wanted):
            self.low, self.at_low = value, found
        else:
            self.high, self.at_high = value, found


def _search_values(evidence: EvidenceSpace, model: Model, rows: Rows) -> dict[str, Replacement]:
    search = _Search(evidence, model, rows)
    found = {name: shown for name in rows.names if (shown := search.shown_by_a_row(name)) is not None}
    left = {name: between for name in rows.names if name not in found and (between := search.bracket(name)) is not None}
    for step in range(STEPS):
        if not left:
            break
        guesses = {name: between.guess(search.target[between.column], step) for name, between in left.items()}
        columns = search.columns_at(guesses)
        for name, value in guesses.items():
            if search.is_reached(name, columns)[0]:
                found[name] = Replacement("value", float(f"{value:.12g}"))
                del left[name]
            else:
                between = left[name]
                between.narrow(value, float(columns[0, between.column]), search.target[between.column])
    return {name: found.get(name, Replacement("no value")) for name in rows.names}
