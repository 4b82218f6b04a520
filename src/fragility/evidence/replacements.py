"""Replacements: what each raw field becomes when it is lost, in the field's own units.

In the raw space, and where the model has no preprocessing, the protocol's baseline says it. Elsewhere the baseline is
in the units of the estimator's input. Then a raw value is searched for that the preprocessing turns into it: a value of
one of the rows given, or a number between two of them, which is tried on the preprocessing itself. A baseline that no
raw value leads to, such as the mean of one-hot columns, stays without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats
from fragility.base.canonical import is_missing
from fragility.base.errors import FragilityError
from fragility.evidence.bound import EvidenceSpace, to_floats
from fragility.evidence.codec import dense, transform
from fragility.evidence.fields import kind_of
from fragility.evidence.rows import Rows, read_rows
from fragility.models.adapter import Model

SAMPLE = 1000  # rows looked at
CLOSE = 1e-6  # relative to the spread of the column
SHORT_BELOW = 1e5  # larger numbers are written in full
STEPS = 60  # of narrowing a number between two others
RULE_WORDS = {"zero": "zero as the model gets it", "explicit": "as declared"}  # others are named as they are
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


def find_replacements(
    evidence: EvidenceSpace, model: Model | None = None, frame: pd.DataFrame | None = None
) -> dict[str, Replacement]:
    """Return what each raw field becomes when it is lost; a model with preprocessing needs some raw rows."""
    fields = [field.name for field in evidence.fields]
    baseline: dict[str, Any] = {column.name: column.baseline for column in evidence.columns}
    if not _is_preprocessed(evidence, model):
        if all(name in baseline for name in fields):
            for field in evidence.fields:
                if field.type == "date" and not is_missing(baseline[field.name]):  # a protocol writes dates as text
                    baseline[field.name] = pd.Timestamp(baseline[field.name])
            return {name: _replace_by(baseline[name]) for name in fields}
    elif frame is not None and model is not None:
        few = frame[fields].iloc[:SAMPLE]
        with suppress(FragilityError):  # rows that the model does not take are refused where they are audited
            return _search_values(evidence, model, read_rows(few, model.name_columns(fields), model.n_columns))
    return {name: Replacement("unknown") for name in fields}


def _replace_by(value: Any) -> Replacement:
    plain = value.item() if isinstance(value, np.generic) else value  # a protocol holds no numpy scalars
    return Replacement("missing") if is_missing(plain) else Replacement("value", plain)


def _is_preprocessed(evidence: EvidenceSpace, model: Model | None) -> bool:
    """Whether the baseline is in the units of the estimator's input; columns may still bear the names of fields."""
    return evidence.space != "raw" and (bool(evidence.inputs) or (model is not None and model.transformer is not None))


def name_replacements(
    evidence: EvidenceSpace, rule: str, usual: Mapping[str, Any]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the fields of each group, and what each becomes: its value, or what the protocol alone can say of it.

    rule: the name of the baseline, which stands for a value that only the model could tell. usual: the values of fields
    whose baseline is the encoding of their most frequent category.
    """
    known = {name: value_text(value) for name, value in usual.items()}
    known |= {name: str(one) for name, one in find_replacements(evidence).items() if one.state != "unknown"}
    unknown = RULE_WORDS.get(rule, rule)
    return {
        group: tuple((name, known.get(name, unknown)) for name in names)
        for group, names in evidence.group_fields.items()
    }


Point: TypeAlias = tuple[float, float]  # a raw number, and what the preprocessing makes of it in one column


def _find_bracket(raw: pd.Series, columns: list[int], matrix: Floats, target: Floats) -> tuple[int, list[Point]] | None:
    """Return a column, and two rows' points between which the baseline lies in it; None where there are none."""
    if kind_of(raw) != "numeric":
        return None
    numbers = raw.to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.flatnonzero(~np.isnan(numbers))
    known = known[np.argsort(numbers[known], kind="stable")]
    for j in columns:
        crossing = np.flatnonzero(np.diff(np.sign(matrix[known, j] - target[j])) != 0)
        if len(crossing):
            return j, [(numbers[i], matrix[i, j]) for i in known[crossing[0] : crossing[0] + 2]]
    return None


def _search_values(evidence: EvidenceSpace, model: Model, rows: Rows) -> dict[str, Replacement]:
    """Return the raw values that the preprocessing turns into the baseline, found in rows or between two of them."""
    assert rows.frame is not None
    frame, matrix, origins = rows.frame, dense(transform(model, rows)[0]), evidence.column_fields
    target = to_floats([column.baseline for column in evidence.columns])
    tolerance = CLOSE * np.maximum(np.nan_to_num(np.nanstd(matrix, axis=0)), CLOSE)
    own = {name: [j for j, fields in enumerate(origins) if fields == (name,)] for name in rows.names}

    def at_baseline(name: str, cells: Floats) -> Any:
        """(n,) whether the columns of a field are at the baseline."""
        made, wanted = cells[:, own[name]], target[own[name]]
        with np.errstate(invalid="ignore"):
            equal = (np.abs(made - wanted) <= tolerance[own[name]]) | (np.isnan(made) & np.isnan(wanted))
        return equal.all(axis=1)

    found: dict[str, Replacement] = {}
    left: dict[str, tuple[int, list[Point]]] = {}
    for name in rows.names:
        there = at_baseline(name, matrix) if own[name] else np.zeros(len(frame), dtype=bool)
        known = np.flatnonzero(there & frame[name].notna().to_numpy())  # an imputer may turn a gap into the same cells
        if len(known):
            found[name] = _replace_by(frame[name].iloc[int(known[0])])
        elif (between := _find_bracket(frame[name], own[name], matrix, target)) is not None:
            left[name] = between
        elif there.any():
            found[name] = _replace_by(None)
    for step in range(STEPS):
        if not left:
            break
        trial, guesses = frame.iloc[[0]].copy(), {}
        for name, (j, ((low, at_low), (high, at_high))) in left.items():
            # On the straight line between the two points first, then halfway, and so on in turns.
            on_line = low + (target[j] - at_low) / (at_high - at_low) * (high - low)
            guesses[name] = value = (low + high) / 2 if step % 2 else on_line
            cell = pd.Series([value], index=trial.index)
            trial[name] = cell.astype(trial[name].dtype) if float(value).is_integer() else cell
        made = dense(transform(model, read_rows(trial, rows.names))[0])
        for name, value in guesses.items():
            if at_baseline(name, made)[0]:
                found[name] = Replacement("value", float(f"{value:.12g}"))
                del left[name]
            else:
                j, ends = left[name]
                below = made[0, j] < target[j]
                ends[0 if below == (ends[0][1] < target[j]) else 1] = (value, made[0, j])
    return {name: found.get(name, Replacement("no value")) for name in rows.names}
