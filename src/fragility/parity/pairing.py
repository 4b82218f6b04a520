"""Two models on one table: whose column is whose, which class is which, and how each of them is asked.

A model's columns are matched by name if the rows have columns of those names, and else by order if a library made the
names up by counting or the model has none. Classes are matched by label if both models have the same labels, and else
by order: a booster's 0 and 1 stand for the labels of the pipeline that it was taken from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import DataError, ModelError, name_error
from fragility.evidence.form import CONFIRM_ROWS, confirm_answers
from fragility.evidence.rows import Rows, column_names, list_names, read_rows
from fragility.models import Decision, Model
from fragility.models.adapter import predict_labels
from fragility.models.outputs import ClassLabel
from fragility.parity.result import ComparedModel
from fragility.scores import DecisionRule

NUMBERED = re.compile(r"[A-Za-z_ ]*?(\d+)")  # what libraries call the columns of a bare array: f0, Column_0, 0


@dataclass(frozen=True, eq=False)
class Artefact:
    """One of the two models, asked about rows of the common table; it answers in the first model's class order."""

    name: str
    model: Model
    columns: tuple[int, ...]  # the column of the table that each of its columns is
    names: tuple[str, ...] | None  # what it calls them; None: it has no names
    bare: bool  # it was fitted on a bare array, and is handed one
    class_order: Integers  # (C,) its own place of each class
    offset: Floats | None  # (C,) what its decision adds to log-probabilities

    @property
    def rule(self) -> DecisionRule:
        """The rule by which it decides, without a resolution: the models are compared, not certified."""
        return DecisionRule(0.0, self.offset)

    def hand_over(self, native: Any) -> Any:
        """Return rows of the common table as the model takes them."""
        if isinstance(native, np.ndarray):
            return native if self._in_order else native[:, list(self.columns)]
        if self.bare:
            return (native.iloc if isinstance(native, pd.DataFrame) else native)[:, list(self.columns)].to_numpy()
        if not isinstance(native, pd.DataFrame):  # polars
            chosen = native[:, list(self.columns)]
            return chosen if self.names is None else chosen.rename(dict(zip(chosen.columns, self.names, strict=True)))
        chosen = native if self._in_order else native.iloc[:, list(self.columns)]
        if self.names is None or list(chosen.columns) == list(self.names):
            return chosen
        return chosen.set_axis(list(self.names), axis=1)

    @property
    def _in_order(self) -> bool:
        return self.columns == tuple(range(len(self.columns)))

    def ask(self, native: Any) -> Floats:
        """Return (m, C) probabilities of rows of the common table."""
        return np.asarray(self.model.probabilities(self.hand_over(native))[:, self.class_order])

    def ask_each(self, count: int, decode: Callable[[slice], Any]) -> tuple[Floats, dict[int, str]]:
        """Return (count, C) probabilities and why rows are refused, by row; these have NaN.

        A batch that fails is halved until the rows that fail stand alone, so the answer does not depend on the batch.
        """
        p = np.full((count, len(self.class_order)), np.nan)
        refused: dict[int, str] = {}
        pending = [slice(0, count)] if count else []
        while pending:
            part = pending.pop()
            try:
                p[part] = self.ask(decode(part))
            except Exception as error:  # whatever a foreign model raises is its answer
                if part.stop - part.start == 1:
                    refused[part.start] = name_error(error.__cause__ or error)
                else:
                    middle = (part.start + part.stop) // 2
                    pending += [slice(middle, part.stop), slice(part.start, middle)]
        return p, refused

    def own_labels(self, native: Any) -> Integers | None:
        """Return (m,) classes by the model's own ``predict``; None if it has none or fails."""
        try:
            found = predict_labels(self.model, self.hand_over(native), to_head=False)
        except Exception:  # its probabilities say the same, and are counted
            return None
        return None if found is None else np.argsort(self.class_order)[found]

    def describe(self, by_name: bool) -> ComparedModel:
        """Return the description of the model for the result."""
        labels = tuple(str(self.model.classes[place]) for place in self.class_order)
        return ComparedModel(self.name, self.model.kind, self.model.fingerprint, labels, "name" if by_name else "order")


@dataclass(frozen=True, eq=False)
class Pair:
    """Two artefacts and the rows that both can be asked about."""

    a: Artefact
    b: Artefact
    rows: Rows
    sides: tuple[ComparedModel, ComparedModel]

    @property
    def classes(self) -> tuple[ClassLabel, ...]:
        """The labels of the first model, in whose order both answer."""
        return self.a.model.classes


def pair_models(
    model_a: Model, model_b: Model, X: Any, ids: Any, names: tuple[str, str], decision: Decision | None
) -> Pair:
    """Match the columns and classes of two models with each other and with the rows.

    decision: the rule that a protocol declares, for models that have none of their own.
    """
    models = (model_a, model_b)
    known = _choose_names(model_a.columns, model_b.columns, column_names(X))
    widths = [model.n_columns for model in models if model.n_columns is not None]
    rows = read_rows(X, known, widths[0] if widths else None, ids)
    if isinstance(rows.native, np.ndarray) and known is not None:
        rows = replace(rows, native=rows.frame)  # a model with names is handed them
    order = _match_classes(model_a, model_b, names)
    confirmed, by_name = [], []
    for model, name, class_order in zip(models, names, order, strict=True):
        found = _find_columns(model.columns, rows.names)
        places = _place_columns(model, rows.names, name) if found is None else found
        by_name.append(found is not None)
        bare = model.columns is None and model.n_columns is not None
        rule = model.decision or decision
        offset = None if rule is None else _offset(rule, model, model_a)[class_order if model.decision else slice(None)]
        artefact = Artefact(name, model, places, model.columns, bare, class_order, offset)
        sample = rows.head(CONFIRM_ROWS).native
        asked = confirm_answers(model, lambda a=artefact, s=sample: a.hand_over(s), raw=True)  # type: ignore[misc]
        confirmed.append(Artefact(name, asked, places, model.columns, bare, class_order, offset))
    a, b = confirmed
    sides = tuple(each.describe(named) for each, named in zip(confirmed, by_name, strict=True))
    return Pair(a, b, rows, (sides[0], sides[1]))


def _offset(rule: Decision, model: Model, reference: Model) -> Floats:
    """Return a decision's offset: in the model's own class order if the rule is its own, else in the reference's."""
    return rule.offset(model.classes if model.decision else reference.classes)


def given_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names that somebody gave to columns; None for those that a library made up by counting."""
    if columns is None:
        return None
    numbers = [NUMBERED.fullmatch(name) for name in columns]
    prefixes = {name[: found.start(1)] for name, found in zip(columns, numbers, strict=True) if found}
    if len(prefixes) == 1 and all(numbers):
        counted = [int(found[1]) for found in numbers if found]
        if counted in (list(range(len(columns))), list(range(1, len(columns) + 1))):
            return None
    return tuple(columns)


def _simplify(name: str) -> str:
    """Return a name as libraries rewrite it that admit letters, digits and underscores only."""
    return re.sub(r"\W", "_", name)


def _choose_names(a: tuple[str, ...] | None, b: tuple[str, ...] | None, table: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of the rows' columns in the order of a model, or None to leave the rows as they are.

    Names that somebody gave come first, so that rows with other columns are refused. Counted names say which column is
    whose only if the table, or the other model, has the same ones.
    """
    given = [names for names in (given_names(a), given_names(b)) if names is not None]
    if a is not None and b is not None and set(a) == set(b):
        given = [a] if a != b else given[:1]
    if given:
        places = _find_columns(given[0], table)
        return given[0] if places is None else tuple(table[place] for place in places)
    for names in (a, b):
        places = _find_columns(names, table)
        if places is not None:
            return tuple(table[place] for place in places)
    return None


def _find_columns(names: Sequence[str] | None, table: Sequence[str]) -> tuple[int, ...] | None:
    """Return the place in the table of each name, literally or as a library rewrites it; None if the names differ."""
    if names is None or len(names) != len(table):
        return None
    for simplify in (str, _simplify):
        place = {simplify(each): i for i, each in enumerate(table)}
        wanted = [simplify(each) for each in names]
        if len(place) == len(table) and set(wanted) == set(place):
            return tuple(place[each] for each in wanted)
    return None


def _place_columns(model: Model, table: Sequence[str], name: str) -> tuple[int, ...]:
    """Return the columns of the table in order, for a model whose names, if any, are not the table's."""
    own = given_names(model.columns)
    if own is not None:
        unknown = [each for each in own if each not in table] or [each for each in table if each not in own]
        raise DataError(
            f"{name} has the columns {list_names(own)}, the rows {list_names(table)}: they differ in {unknown[0]!r}; "
            "give two models of the same columns, or wrap one in a function that renames them"
        )
    count = len(table) if model.n_columns is None else model.n_columns
    if count != len(table):
        raise DataError(f"{name} takes {count} columns, and the rows have {len(table)}; give it the same columns")
    return tuple(range(len(table)))


def _match_classes(a: Model, b: Model, names: tuple[str, str]) -> tuple[Integers, Integers]:
    """Return each model's own places of the classes, in the first model's order."""
    count = len(a.classes)
    if len(b.classes) != count:
        raise ModelError(
            f"{names[0]} has {count} classes ({list_names([str(c) for c in a.classes])}), {names[1]} has "
            f"{len(b.classes)} ({list_names([str(c) for c in b.classes])}); give two artefacts of one model"
        )
    same = np.arange(count)
    texts = [[str(label) for label in model.classes] for model in (a, b)]
    if set(texts[0]) == set(texts[1]):
        return same, np.array([texts[1].index(label) for label in texts[0]])
    if set(texts[0]) & set(texts[1]):
        raise ModelError(
            f"{names[0]} has the classes {list_names(texts[0])}, {names[1]} has {list_names(texts[1])}: some are the "
            "same and some are not; name the classes of one as the other's, in its own order"
        )
    return same, same
