"""The audited rows, if they are given, and the model's answers in any state of one of them."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.audits import Manifest
from fragility.base.arrays import Floats
from fragility.base.canonical import combine_digests, is_missing, row_digests
from fragility.base.errors import DataError, ModelError
from fragility.base.ids import IdSpan, say_other_rows
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows, States
from fragility.evidence.agreement import original_class
from fragility.evidence.fields import date_text, read_date
from fragility.evidence.modes import Range, values_frame, weigh_values
from fragility.evidence.replacements import Replacement, find_replacements, value_text
from fragility.evidence.rows import Scalar, read_rows
from fragility.models import Model
from fragility.protocol import Protocol, bind


@dataclass(frozen=True)
class FieldLine:
    """One field of a row: its value, what takes the place of the value when it is lost, and its evidence groups."""

    name: str
    value: str
    replacement: str | None  # None if unknown
    groups: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return self.replacement not in (None, self.value)


@dataclass(frozen=True, eq=False)
class MatchedRows:
    """Rows in the order of the audit; only the protocol's fields."""

    frame: pd.DataFrame
    ids: tuple[Any, ...]
    groups_of: Mapping[str, tuple[str, ...]]  # evidence groups that each field has a part in
    replacements: Mapping[str, Replacement]  # what each field becomes when it is lost

    def row(self, place: int) -> pd.DataFrame:
        """Return one row, as a table with the types of all."""
        return self.frame.iloc[[place]]

    def shown(self, place: int) -> list[FieldLine]:
        """Return the fields of one row, in the protocol's order."""
        row, lines = self.frame.iloc[[place]], []
        for name in self.frame.columns:  # cell by cell: a row across columns would turn whole numbers into others
            lost = self.replacements[name]
            known = None if lost.state == "unknown" else str(lost)
            lines.append(FieldLine(name, value_text(row[name].iloc[0]), known, self.groups_of.get(name, ())))
        return lines

    def missing(self, place: int) -> tuple[str, ...]:
        """Return the fields of one row without a value."""
        return tuple(name for name in self.frame.columns if is_missing(self.frame[name].iloc[place]))

    def to_arrow(self) -> pa.Table:
        """Return the fields as a table that filters can ask: numbers as numbers, everything else as pages show it."""
        return pa.table({str(name): to_filterable(self.frame[name]) for name in self.frame.columns})


def to_filterable(column: pd.Series) -> pa.Array:
    """Return a field for filters."""
    if pd.api.types.is_bool_dtype(column.dtype) or not pd.api.types.is_numeric_dtype(column.dtype):
        return pa.array([None if is_missing(value) else value_text(value) for value in column], type=pa.string())
    if column.dtype in (np.float16, np.float32):  # 0.1 is meant by 0.1, and not the nearest number of 32 bits
        column = column.astype(str).astype(np.float64)
    return pa.array(column.to_numpy(dtype=np.float64, na_value=np.nan), from_pandas=True)


def match_rows(
    X: pd.DataFrame, ids: Any, names: Sequence[str], protocol: Protocol, manifest: Manifest,
    model: Model | None = None,
) -> MatchedRows:  # fmt: skip
    """Return the rows whose ids are ``names``, in that order; refuse rows that are not the ones audited."""
    fields = [field.name for field in protocol.fields]
    missing = [name for name in fields if name not in X.columns]
    if missing:
        raise DataError(f"the rows lack the field {missing[0]!r}, which the protocol of this audit names")
    rows = read_rows(X[fields], fields, None, ids)
    place_of = {str(row_id): i for i, row_id in enumerate(rows.ids)}
    absent = [name for name in names if name not in place_of]
    if absent:
        raise DataError(*say_other_rows(len(absent), len(names), absent[0], IdSpan(names), IdSpan(rows.ids)))
    places = [place_of[name] for name in names]
    assert rows.frame is not None
    frame = rows.frame.iloc[places]
    own_ids = tuple(rows.ids[i] for i in places)
    if not manifest.is_selection:  # whose digest is over rows that are not here
        texts = np.array([str(row_id) for row_id in own_ids], dtype=object)
        columns = {str(name): frame[name].reset_index(drop=True) for name in frame.columns}
        if combine_digests(row_digests({**columns, "id\x00": texts})) != manifest.input.digest:
            raise DataError(
                "the rows are not the ones that were audited: their values differ; give the rows of the audit"
            )
    replacements = find_replacements(protocol.evidence, model, frame)
    return MatchedRows(frame, own_ids, groups_of_fields(protocol, model), replacements)


def groups_of_fields(protocol: Protocol, model: Model | None = None) -> dict[str, tuple[str, ...]]:
    """Return the evidence groups of each raw field, as far as known."""
    fields = protocol.evidence.group_fields
    return {
        field.name: tuple(group for group, parts in fields.items() if field.name in parts) for field in protocol.fields
    }


KEPT = 64  # rows bound lately; binding asks the model a few times


@dataclass(frozen=True)
class StateAnswer:
    """One state of one row."""

    predicted: str
    confidence: float  # of the class predicted in this state
    original: str
    support: float  # probability of the class predicted on the full record
    margin: float
    margin_before: float
    flipped: bool
    probabilities: Mapping[str, float]


class WhatIf:
    """The audited model, asked about one row with some of its evidence lost, in whole or in part.

    The state is the one of the protocol: each column of group g moves by s_g * (baseline - x), through the same rule
    (`evidence.blend`), the same predictor and the same readings of margin and class as the engines use. With the groups
    of the path at severity 1 it therefore gives the path's own numbers.
    """

    def __init__(self, model: Model, protocol: Protocol, rows: MatchedRows, manifest: Manifest) -> None:
        if model.fingerprint != manifest.model.fingerprint:
            raise ModelError("this is not the model that was audited: its fingerprint differs; give the audited model")
        self.model, self.protocol, self.rows = model, protocol, rows
        self._bound: OrderedDict[int, EvidenceRows] = OrderedDict()
        self._lock = threading.Lock()  # models are not promised to answer two threads at once

    @contextmanager
    def use(self, place: int) -> Iterator[EvidenceRows]:
        """Have the model to oneself, with the row at ``place`` bound to it."""
        with self._lock:
            if place not in self._bound:
                self._bound[place] = self._bind(place, self.rows.row(place))
                while len(self._bound) > KEPT:
                    self._bound.popitem(last=False)
            self._bound.move_to_end(place)
            yield self._bound[place]

    def _bind(self, place: int, row: pd.DataFrame) -> EvidenceRows:
        return bind(self.model, row, self.protocol, [self.rows.ids[place]])

    def ask(
        self, place: int, severities: Mapping[str, float], values: Mapping[str, Scalar] | None = None
    ) -> StateAnswer:
        """Return the model's answer for the row at ``place`` with groups degraded and other values of some fields.

        Groups that are not named stay whole. Values are numbers, dates as ISO text, or categories.
        """
        protocol, severity = self.protocol, self._read_severities(severities)
        changed = self._change(place, values or {})
        with self.use(place) as rows:
            both = np.stack([np.zeros_like(severity), severity])
            states = States(np.zeros(2, dtype=np.int64), both > 0.0, both)
            p = ModelOracle(rows).answer_states(rows.dense(), states.sparing(rows.spared(), rows.column_group))
            if changed is not None:
                other = self._bind(place, changed)
                changed_states = states.sparing(other.spared(), other.column_group)
                p[1] = ModelOracle(other).answer_states(other.dense(), changed_states)[1]
        original = original_class(rows, p[:1], protocol.resolution)
        rule = protocol.rule(rows.offset)
        predicted = int(rule.settle(p[1:], original)[0])
        before, after = rule.margin(p, original[[0, 0]]).tolist()
        classes = [str(label) for label in rows.model.classes]
        return StateAnswer(
            predicted=classes[predicted],
            confidence=min(float(p[1, predicted]), 1.0),
            original=classes[int(original[0])],
            support=min(float(p[1, int(original[0])]), 1.0),
            margin=after,
            margin_before=before,
            flipped=predicted != int(original[0]),
            probabilities=dict(zip(classes, p[1].tolist(), strict=True)),
        )

    def _read_severities(self, severities: Mapping[str, float]) -> Floats:
        """Return (G,) the severity of each group."""
        names = {name: i for i, name in enumerate(self.protocol.group_names)}
        severity = np.zeros(len(names))
        for name, value in severities.items():
            if name not in names:
                raise DataError(f"this protocol has no evidence group {str(name)[:60]!r}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
                raise DataError(f"a severity lies between 0 and 1, got {value!r:.40} for {name!r}")
            severity[names[name]] = value
        return severity

    def _change(self, place: int, values: Mapping[str, Scalar]) -> pd.DataFrame | None:
        """Return the row with other values of some fields; None if all stay."""
        if not values:
            return None
        row, ranges = self.rows.row(place), {one.field: one for one in self.protocol.modes.ranges}
        taken = {}
        for name, value in values.items():
            if name not in row.columns:
                raise DataError(f"the rows have no field {str(name)[:60]!r}")
            known = list(weigh_values(self.protocol.modes, name))
            if name in ranges:
                taken[name] = [check_ordered(value, ranges[name], row[name].iloc[0])]
            else:
                taken[name] = [check_category(value, known, name)]
        return values_frame(taken, row).set_axis(row.index)


# --- values that a field may be given -----------------------------------------------------------------------


def check_ordered(value: Scalar, training_range: Range, now: Any) -> Scalar:
    """Return a number or date, within the training range or up to the row's own value ``now``; refuse anything else."""
    of_dates = isinstance(training_range.low, str)
    number = _read_ordered(value, training_range.whole, of_dates=of_dates)
    ends = [_read_ordered(end, False, of_dates=of_dates) for end in (training_range.low, training_range.high)]
    if not is_missing(now):
        ends.append(_read_ordered(date_text(now) if of_dates else float(now), False, of_dates=of_dates))
    defined = [end for end in ends if end is not None]
    if number is None or not min(defined) <= number <= max(defined):
        kind = "a date" if of_dates else "a whole number" if training_range.whole else "a number"
        low, high = training_range.low, training_range.high
        raise DataError(f"{training_range.field!r} takes {kind} from {low} to {high}, got {value!r:.40}")
    return value


def _read_ordered(value: Scalar, whole: bool, *, of_dates: bool) -> float | None:
    """Return a number, or the moment of a date; None for anything else, and for a part of a whole number or day."""
    if of_dates:
        moment = read_date(value)
        return None if moment is None or (whole and moment != moment.normalize()) else moment.timestamp()
    if isinstance(value, (bool, str)) or value is None:
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return None if not math.isfinite(number) or (whole and number != round(number)) else number


def check_category(value: Scalar, known: Sequence[Scalar], field: str) -> Scalar:
    """Return a category of the catalogue; refuse anything else."""
    for category in known:
        if category == value and isinstance(category, bool) == isinstance(value, bool):
            return category
    listed = ", ".join(repr(category) for category in known[:8]) or "none"
    raise DataError(f"{field!r} takes a category that the protocol lists ({listed}), got {value!r:.40}")
