"""Form: how raw rows become cells of an evidence space, and cells become what a model is asked about.

A form is learned once, from a model, the evidence space of a protocol and the first rows: the order and the types of
columns, how values are written as cells (``codec``) and how the model is handed them, which link gives its
probabilities, and whether columns come from the raw fields that the protocol names, which is tried on these rows. These
are facts about the model and about the form in which rows come. Further rows are bound by it without asking again; a
row's own values are looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, DataError, EvidenceError, ModelError, ProtocolError
from fragility.evidence.agreement import BATCH_ROWS, check_steady
from fragility.evidence.bound import EvidenceRows, EvidenceSpace, to_floats
from fragility.evidence.codec import RawCodec, answers_alike, call_model, dense, keeps_columns, same_answers, transform
from fragility.evidence.fields import Field
from fragility.evidence.origins import check_origins, output_names
from fragility.evidence.rows import Rows, conform_rows, native_like, read_model_rows, rows_at
from fragility.evidence.states import find_absence
from fragility.models.adapter import Model, confirm_link, labels_follow, predict_labels
from fragility.scores import DecisionRule, support_margin

CONFIRM_ROWS = 64  # rows on which a known link is compared with the model's own predict_proba
CLOSE = 1e-3  # below this margin, rounding may decide what a model predicts
MOST_VALUES = 10_000  # of a field that are remembered


def bind_rows(model: Any, X: Any, space: EvidenceSpace, ids: Any = None, *, tried: bool = False) -> EvidenceRows:
    """Return the rows of ``X`` in an evidence space, ready for an engine; bound rows are returned as they are.

    tried: the model has been tried on these rows, when they were bound before in a space of the same columns.
    """
    wrapped = Model.wrap(model)
    if not isinstance(X, EvidenceRows):
        form = Form.learn(wrapped, X, space, ids, tried=tried)
        return replace(form.first, form=form)
    if ids is not None:
        raise DataError("bound rows have their ids already", Advice("; give ids= where the rows are bound", ""))
    if X.model.head is not wrapped.head:
        raise ModelError(f"the rows were bound to another model ({X.model.kind}); bind them to this one")
    numeric = [column.kind == "numeric" for column in space.columns]
    declared = to_floats([column.baseline for column in space.columns if column.kind == "numeric"])
    same_baseline = np.array_equal(X.baseline[numeric], declared, equal_nan=True)
    if not (same_baseline and np.array_equal(X.column_group, space.column_group)):
        raise ProtocolError("the rows were bound under other groups or another baseline; bind them to this protocol")
    offsets = [0.0 if offset is None else offset for offset in (X.offset, space.decision_offset(wrapped.classes))]
    if np.any(offsets[0] != offsets[1]):
        raise ProtocolError("the rows were bound under another decision rule; bind them to this protocol")
    return X


@dataclass(frozen=True, eq=False)
class Form:
    """The form of some rows, by which further rows are bound to the same model and evidence space."""

    space: EvidenceSpace
    first: EvidenceRows  # those that it was learned from
    codec: RawCodec | None  # of raw fields; None in the transformed space
    layout: Any  # container, columns and types of the raw table, or of what the final estimator is handed

    @classmethod
    def learn(cls, model: Model, X: Any, space: EvidenceSpace, ids: Any = None, *, tried: bool = False) -> Form:
        """Learn the form of rows as they came, with every check; ``first`` has the model's own answers about them.

        tried: the model has been tried on these rows before, in a space of the same columns.
        """
        rows, typed = _read_rows(model, X, space, ids)
        form = cls.of(model, typed, space)
        first = Unanswered(form.first, typed, space).answer(asked=CONFIRM_ROWS)
        if not tried:
            if space.space == "transformed" and model.transformer is not None:
                check_origins(model, typed, space)
            check_steady(first, space.resolution)
        # The digest is of the rows as they came: what they were turned into follows from the protocol.
        return replace(form, first=replace(first, source=rows))

    @classmethod
    def of(cls, model: Model, rows: Rows, space: EvidenceSpace, *, ask: bool = True) -> Form:
        """Learn the form of rows whose fields have the types of the training data.

        ask: the model is asked about a few of them; else, in the raw space, nothing is tried and it answers as it says.
        """
        return cls._of_fields(model, rows, space, ask) if space.space == "raw" else cls._of_matrix(model, rows, space)

    @classmethod
    def _of_fields(cls, model: Model, rows: Rows, space: EvidenceSpace, ask: bool) -> Form:
        """Learn raw fields as codes; the model is handed them decoded, in their own types."""
        codec = RawCodec.fit(rows, space, flags_as_numbers=model.transformer is None)
        if ask:
            _check_same_answers(model, rows.head(CONFIRM_ROWS), codec)
        matrix = codec.encode(rows.frame)
        if ask:
            model = confirm_answers(model, lambda: codec.decode(matrix[:CONFIRM_ROWS]), raw=True)
        first = _lay_out(
            model,
            rows,
            space,
            matrix=matrix,
            baseline=codec.baseline,
            stepwise=codec.stepwise,
            ask_model=lambda cells: call_model(lambda: model.probabilities(codec.decode(cells)), rows),
            cell_dtype=codec.cell_dtype or np.float64,
            native_matrix=model.transformer is None and codec.cell_dtype is not None and codec.in_order,
            hand_over=codec.decode if model.transformer is None else None,
            encode=lambda table: codec.encode(_conform_table(table, rows, space).frame),
            forms=codec.forms if ask and codec.in_order and keeps_columns(model.transformer, rows) else None,
        )
        return cls(space, first, codec, _describe_table(rows))

    @classmethod
    def _of_matrix(cls, model: Model, rows: Rows, space: EvidenceSpace) -> Form:
        """Learn the matrix that the preprocessing makes, handed to the final estimator in its own kind of container."""
        matrix, restore, handed = transform(model, rows)
        declared = [column.name for column in space.columns]
        if matrix.shape[1] != len(declared):
            raise ProtocolError(
                f"the protocol was made for {len(declared)} columns, the model's estimator is handed "
                f"{matrix.shape[1]}; fit a protocol for this model with the same settings, or one for both with ",
                Advice.argument("space", "raw"),
            )
        names = list(rows.names) if model.transformer is None else output_names(model.transformer, len(declared))
        if names != declared:
            other = next((name for name in names if name not in set(declared)), names[0])
            raise ProtocolError(
                f"the protocol was made for other columns: it does not place {other!r}; fit one for this model"
            )
        if not answers_alike(model, matrix[:CONFIRM_ROWS], restore, handed[:CONFIRM_ROWS]):
            raise EvidenceError(
                "the model answers differently when its whole numbers are handed over as decimals, which the "
                "transformed space needs; use ",
                Advice.argument("space", "raw"),
            )
        model = confirm_answers(model, lambda: restore(dense(matrix[:CONFIRM_ROWS])), raw=False)
        baseline = to_floats([column.baseline for column in space.columns])
        first = _lay_out(
            model,
            rows,
            space,
            matrix=matrix,
            baseline=baseline,
            stepwise=np.isnan(baseline),
            ask_model=lambda cells: call_model(lambda: model.head_probabilities(restore(cells)), rows),
            cell_dtype=np.float32 if matrix.dtype == np.float32 else np.float64,
            hand_over=restore,
            encode=lambda table: dense(transform(model, _conform_table(table, rows, space))[0]),
        )
        return cls(space, first, None, _describe_input(handed))

    @property
    def model(self) -> Model:
        """The model, as confirmed on the first rows."""
        return self.first.model

    def bind(self, X: Any, ids: Any = None) -> Unanswered | None:
        """Return rows bound like the first; None if they come in another form, to be learned with every check."""
        rows, typed = _read_rows(self.model, X, self.space, ids)
        matrix: Any = None
        if self.codec is None:
            matrix, _, handed = transform(self.model, typed)
            if _describe_input(handed) != self.layout:
                return None
        elif _describe_table(typed) == self.layout and typed.frame is not None:
            matrix = self.codec.encode_known(typed.frame)
        if matrix is None:
            return None
        absent = find_absence(typed, self.space.fields, self.space.column_fields, self.space.column_group)
        bound = replace(
            self.first, matrix=matrix, ids=rows.ids, source=rows, absent=absent, decided=None, own=None, form=self
        )
        return Unanswered(bound, typed, self.space)

    def list_values(self) -> EvidenceSpace:
        """Return the space in which the values of the first rows are listed, so that later tables hold them too."""
        if self.codec is None:
            return self.space
        tables = {
            name: form.values
            for name, form in zip(self.codec.names, self.codec.forms, strict=True)
            if form.values is not None and len(form.values) <= MOST_VALUES
        }
        return replace(self.space, listed={**self.space.listed, **tables})


class Unanswered(NamedTuple):
    """Bound rows about which the model has not been asked yet."""

    rows: EvidenceRows
    typed: Rows  # the same with fields of the types of the training data
    space: EvidenceSpace

    def answer(self, states: Floats | None = None, *, asked: int = 0) -> EvidenceRows:
        """Return the rows with the model's own classes, and its probabilities where these are needed to find them.

        states: cells (k, d) that will be asked about later, the rows themselves first; their answers come with the same
        call and are remembered. asked: of so many first rows, ``predict`` is asked for the class in any case.
        """
        rows, model = self.rows, self.rows.model
        if states is not None:
            p = rows.predict(states)
            known = {cells.tobytes(): answer for cells, answer in zip(states, p, strict=True)}
            own = p[: len(rows)]
            return replace(rows, decided=self.decide(own), own=own, known=known)
        if not (self._has_threshold or labels_follow(model)):
            return replace(rows, decided=self._ask_labels())
        parts = [slice(start, start + BATCH_ROWS) for start in range(0, len(rows), BATCH_ROWS)]
        if self.space.space == "raw" and not self._has_threshold:  # they need not be made of cells
            native = self.typed.native
            answers = [call_model(lambda: model.probabilities(rows_at(native, part)), self.typed) for part in parts]  # noqa: B023
        else:
            answers = [rows.predict(rows.dense(part.start, part.stop)) for part in parts]
        p = np.concatenate(answers)
        return replace(rows, decided=self.decide(p, asked=asked), own=p)

    def decide(self, p: Floats, *, asked: int = 0) -> Integers | None:
        """Return (n,) the classes that the model itself names, p (n, C) its probabilities; None if it has no labels.

        Where two classes are close, and in the first rows that are ``asked``, ``predict`` decides.
        """
        rows, space = self.rows, self.space
        if self._has_threshold:
            assert space.decision is not None
            positive = space.decision.index(rows.model.classes)  # a tie goes to the class of the threshold
            flips = DecisionRule(space.resolution, rows.offset).flips(p, positive)
            return np.where(flips, 1 - positive, positive)
        if not labels_follow(rows.model):
            return self._ask_labels()
        decided = np.asarray(p.argmax(axis=1), dtype=np.int64)
        close = support_margin(p, decided) < CLOSE
        close[:asked] = True
        places = np.flatnonzero(close)
        if len(places) and (predicted := self._ask_labels(places)) is not None:
            decided[places] = predicted
        return decided

    @property
    def _has_threshold(self) -> bool:
        """Whether the protocol declares a threshold that the model itself does not have."""
        return self.space.decision is not None and self.rows.model.decision is None

    def _ask_labels(self, places: Integers | None = None) -> Integers | None:
        """Return the classes of the rows, or of some, by the model's own predict; None if it has no labels."""
        rows, typed, space = self
        restore, n = rows.hand_over, len(rows) if places is None else len(places)
        to_head = space.space == "transformed" and rows.model.decider is not None
        labels = []
        for start in range(0, n, BATCH_ROWS):
            part: Any = slice(start, min(start + BATCH_ROWS, n))
            part = part if places is None else places[part]
            given = restore(dense(rows.matrix[part])) if to_head and restore else rows_at(typed.native, part)
            named = call_model(lambda: predict_labels(rows.model, given, to_head=to_head), typed)  # noqa: B023
            if named is None:
                return None
            labels.append(named)
        return np.concatenate(labels)


# --- what a form is made of -----------------------------------------------------------------------------------------


def _lay_out(model: Model, rows: Rows, space: EvidenceSpace, **cells: Any) -> EvidenceRows:
    """Return rows in cells that are made, about which the model has not been asked."""

    def ask_table(table: pd.DataFrame) -> Floats:
        typed = _conform_table(table, rows, space, needs_categories=reads_categories(model))
        return call_model(lambda: model.probabilities(typed.native), typed)

    if rows.frame is None:
        cells["encode"] = None
    return EvidenceRows(
        ids=rows.ids,
        column_group=space.column_group,
        n_groups=len(space.groups),
        n_classes=len(model.classes),
        model=model,
        source=rows,
        offset=space.decision_offset(model.classes),
        absent=find_absence(rows, space.fields, space.column_fields, space.column_group),
        ask_table=None if rows.frame is None else ask_table,
        **cells,
    )


def _conform_table(table: pd.DataFrame, rows: Rows, space: EvidenceSpace, *, needs_categories: bool = False) -> Rows:
    """Return further raw rows in the container and the types of rows that fit the space."""
    ordered = table[list(rows.names)].reset_index(drop=True)
    plain = Rows(ordered, ordered, rows.names, tuple(range(len(table))))
    typed = conform_rows(plain, space.fields, needs_categories=needs_categories, whole=False)
    assert typed.frame is not None
    return replace(typed, native=native_like(typed.frame, rows))


def _describe_input(handed: Any) -> Any:
    """Return the form of what an estimator is handed: its container, columns and types."""
    if hasattr(handed, "columns"):
        return type(handed), tuple(handed.columns), tuple(handed.dtypes)
    if sp.issparse(handed):
        return "sparse", handed.format, handed.dtype, handed.shape[1]
    array = np.asarray(handed)
    return type(handed), array.dtype, array.shape[1:]


def _describe_table(rows: Rows) -> Any:
    """Return the form of a raw table: its container, columns and types."""
    types = None if rows.frame is None else tuple(rows.frame.dtypes)
    plain = isinstance(rows.native, (np.ndarray, pd.DataFrame))
    schema = None if plain else tuple(rows.native.schema.items())  # polars
    dtype = None if isinstance(rows.native, pd.DataFrame) else getattr(rows.native, "dtype", None)
    return type(rows.native), dtype, rows.names, types, schema


# --- whether model, protocol and rows belong together ---------------------------------------------------------------


def _read_rows(model: Model, X: Any, space: EvidenceSpace, ids: Any) -> tuple[Rows, Rows]:
    """Return the rows of ``X`` as they came, and with fields of the types of the training data."""
    check_decision(model, space)
    fields = [field.name for field in space.fields]
    expected = model.name_columns(fields) or tuple(fields)
    if set(expected) != set(fields):
        raise ProtocolError(
            f"the protocol was made for the columns {fields[:8]}, the model expects {list(expected)[:8]}; fit a "
            "protocol for this model"
        )
    rows = read_model_rows(model, X, expected, ids)
    typed = conform_rows(rows, space.fields, needs_categories=reads_categories(model), whole=space.space == "raw")
    _check_gaps_harmless(model, typed, space.fields)
    return rows, typed


def check_decision(model: Model, space: EvidenceSpace) -> None:
    """Refuse a model that decides otherwise than the protocol declares."""
    if model.decision is not None and model.decision != space.decision:
        declared = "the class with the larger probability" if space.decision is None else str(space.decision)
        raise ProtocolError(
            f"{model.kind} predicts {model.decision}, the protocol declares {declared}; fit a protocol for this model"
        )


def reads_categories(model: Model) -> bool:
    """Whether a model reads categorical columns itself, so that a plain column cannot stand in for one."""
    return model.transformer is None and not hasattr(model.head, "get_cat_feature_indices")


def reads_codes(model: Model, X: Any) -> bool:
    """Whether a model that reads categorical columns itself goes by their codes, so that their order matters."""
    if not isinstance(X, pd.DataFrame) or not reads_categories(model):
        return False
    categorical = [str(name) for name in X.columns if isinstance(X[name].dtype, pd.CategoricalDtype)]
    turned = X.assign(**{name: X[name].cat.reorder_categories(X[name].cat.categories[::-1]) for name in categorical})
    return not same_answers(model.probabilities, X, lambda: turned)


def _check_gaps_harmless(model: Model, rows: Rows, fields: Sequence[Field]) -> None:
    """Refuse whole numbers that came as decimals because some are missing, if the model tells the two apart.

    Else a row's certificate would depend on whether another row of its batch lacks a value.
    """
    if rows.frame is None:
        return
    dtypes = dict(zip(rows.names, rows.frame.dtypes, strict=True))
    decimal = [field.name for field in fields if field.type == "integer" and dtypes[field.name] == np.float64]
    gappy = [name for name in decimal if rows.frame[name].isna().any()]
    if not gappy:
        return
    complete = np.flatnonzero(rows.frame[gappy].notna().all(axis=1))[:CONFIRM_ROWS]
    if len(complete) == 0:
        return
    frame = rows.frame.iloc[complete]
    as_whole = frame.astype(dict.fromkeys(gappy, int))
    if not same_answers(model.probabilities, native_like(frame, rows), lambda: native_like(as_whole, rows)):
        raise DataError(
            f"column {gappy[0]!r} held whole numbers in the training data and now came as decimals because values are "
            "missing, which this model answers differently; hand it over as a nullable column (Int64), or fill the gaps"
        )


def _check_same_answers(model: Model, rows: Rows, codec: RawCodec) -> None:
    """Refuse columns that must be handed over in another type, such as whole numbers with gaps, if it matters."""
    frame = rows.frame
    assert frame is not None
    changed = {
        name: form.dtype
        for name, form in zip(codec.names, codec.forms, strict=True)
        if form.dtype != frame[name].dtype and form.categories is None
    }
    if changed and not same_answers(model.probabilities, rows.native, lambda: codec.decode(codec.encode(frame))):
        name = next(name for name in rows.names if name in changed)
        raise EvidenceError(
            f"the model answers differently once column {name!r} may hold missing values, because it is then handed "
            f"over as {changed[name]}; choose a baseline other than missing, or train with a nullable column (Int64)"
        )


def confirm_answers(model: Model, sample: Callable[[], Any], *, raw: bool) -> Model:
    """Return the model with its link confirmed on a few rows; a failure is left to the first prediction."""
    try:
        rows = sample()
        return confirm_link(model, model.preprocess(rows) if raw else rows)
    except ModelError:
        raise
    except Exception:
        return model
