"""Rebinding: further rows of a model and an evidence space, without asking again what the first rows have shown.

`binding.bind_rows` asks the model many times: whether its link holds, whether it answers a row alike alone and in
company, whether whole numbers may be handed over as decimals. These are facts about the model and about the form in
which rows come, so a few rows show them once. A row's own values are looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import Floats, Integers
from fragility.base.canonical import beyond_doubles
from fragility.evidence.absence import find_absence
from fragility.evidence.binding import (
    RawLayout,
    ask_labels,
    decide_by_model,
    decide_by_threshold,
    read_fitting_rows,
)
from fragility.evidence.bound import EvidenceRows, EvidenceSpace
from fragility.evidence.codec import dense, transform
from fragility.evidence.rows import Rows, conform_rows
from fragility.models.adapter import Model, labels_follow

MOST_VALUES = 10_000  # of a field that are remembered


class Rebound(NamedTuple):
    """Rows that were bound again: the model has not been asked about them yet."""

    rows: EvidenceRows  # without the model's own answers
    fitting: Rows  # the same with fields of the types of the training data
    space: EvidenceSpace

    def decide(self, p: Floats) -> Integers | None:
        """Return (n,) the classes that the model itself names, p (n, C) its probabilities; None if it has no labels."""
        rows, fitting, space = self
        model = rows.model
        if space.decision is not None and model.decision is None:
            return decide_by_threshold(p, rows, space)
        hand_over = None
        if space.space != "raw" and rows.hand_over is not None:
            restore = rows.hand_over
            hand_over = lambda places: restore(dense(rows.matrix[places]))  # noqa: E731
        if labels_follow(model):
            return decide_by_model(model, fitting, hand_over, p)
        return ask_labels(model, fitting, hand_over)

    def answer(self, states: Floats | None = None) -> EvidenceRows:
        """Return the rows with the model's own probabilities and classes.

        states: cells (k, d) that will be asked about later, the rows themselves first; their answers come with the same
        call and are remembered.
        """
        if states is None:
            p = self.rows.predict(self.rows.dense())
            return replace(self.rows, decided=self.decide(p), own=p)
        p = self.rows.predict(states)
        own = p[: len(self.rows)]
        predict = remember_answers(self.rows.ask_model, states, p)
        return replace(self.rows, decided=self.decide(own), own=own, ask_model=predict)


def remember_answers(predict: Callable[[Floats], Floats], states: Floats, p: Floats) -> Callable[[Floats], Floats]:
    """Return a model's answers to cells (m, d); those known, p (k, C) of states (k, d), are not asked for again."""
    known = {cells.tobytes(): own for cells, own in zip(states, p, strict=True)}

    def ask(matrix: Floats) -> Floats:
        if len(matrix) <= len(known):
            found = [known.get(cells.tobytes()) for cells in matrix]
            if all(own is not None for own in found):
                return np.array(found)
        return predict(matrix)

    return ask


@dataclass(frozen=True, eq=False)
class Rebinding:
    """Binds rows that come in the form of those that were bound first."""

    first: EvidenceRows  # bound with every check
    space: EvidenceSpace
    form: Any  # of what the final estimator is handed, or of the raw table
    layout: RawLayout | None  # of raw fields as cells; None in the transformed space

    @classmethod
    def of(cls, first: EvidenceRows, space: EvidenceSpace) -> Rebinding:
        """Return the binding of rows like these, which were bound to the space."""
        model, raw = first.model, space.space == "raw"
        fitting = conform_rows(first.source, space.fields, needs_categories=False, whole=raw)
        if raw:
            layout = RawLayout.of(fitting, space, flags_as_numbers=model.transformer is None)
            return cls(first, space, describe_table(fitting), layout)
        return cls(first, space, describe_input(transform(model, fitting)[2]), None)

    @property
    def model(self) -> Model:
        """The model, as confirmed on the first rows."""
        return self.first.model

    def list_values(self) -> EvidenceSpace:
        """Return the space in which the values of the first rows are listed, so that later tables hold them too."""
        if self.layout is None:
            return self.space
        tables = {
            name: form.values
            for name, form in zip(self.layout.rows.names, self.layout.codec.forms, strict=True)
            if form.values is not None and len(form.values) <= MOST_VALUES
        }
        return replace(self.space, listed={**self.space.listed, **tables})

    def bind(self, X: Any, ids: Any = None) -> Rebound | None:
        """Return rows bound like the first; None if they come in another form, to be bound with every check."""
        rows, fitting = read_fitting_rows(self.model, X, self.space, ids)
        matrix = self._encode(fitting) if self.layout is not None else self._transform(fitting)
        if matrix is None:
            return None
        space = self.space
        absent = find_absence(fitting, space.fields, space.column_fields, space.column_group)
        bound = replace(self.first, matrix=matrix, ids=rows.ids, source=rows, decided=None, own=None, absent=absent)
        return Rebound(bound, fitting, self.space)

    def _transform(self, fitting: Rows) -> Any:
        matrix, _, handed = transform(self.model, fitting)
        return matrix if describe_input(handed) == self.form else None

    def _encode(self, fitting: Rows) -> Floats | None:
        """Return the cells of raw fields; None if the tables of the first rows do not hold all their values."""
        assert self.layout is not None
        if describe_table(fitting) != self.form:
            return None
        frame, codec = fitting.frame, self.layout.codec
        assert frame is not None
        for name, form in zip(fitting.names, codec.forms, strict=True):
            column = frame[name]
            # Encoders tell None from NaN; and the first rows may have had no missing value.
            unlisted = column.dtype == object or (form.values is not None and None not in form.values)
            if (unlisted and bool(column.isna().any())) or (form.values is None and bool(beyond_doubles(column).any())):
                return None
        try:
            return np.asarray(codec.encode(frame)[:, list(self.layout.place)])
        except KeyError:  # a value that the first rows did not have
            return None


def describe_input(handed: Any) -> Any:
    """Return the form of what an estimator is handed: its container, columns and types."""
    if hasattr(handed, "columns"):
        return type(handed), tuple(handed.columns), tuple(handed.dtypes)
    if sp.issparse(handed):
        return "sparse", handed.format, handed.dtype, handed.shape[1]
    array = np.asarray(handed)
    return type(handed), array.dtype, array.shape[1:]


def describe_table(rows: Rows) -> Any:
    """Return the form of a raw table: its container, columns and types."""
    types = None if rows.frame is None else tuple(rows.frame.dtypes)
    plain = isinstance(rows.native, (np.ndarray, pd.DataFrame))
    schema = None if plain else tuple(rows.native.schema.items())  # polars
    dtype = None if isinstance(rows.native, pd.DataFrame) else getattr(rows.native, "dtype", None)
    return type(rows.native), dtype, rows.names, types, schema
