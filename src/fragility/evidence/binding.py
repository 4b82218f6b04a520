"""Binding: an evidence space applied to a model and the rows to audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.errors import (
    Advice,
    DataError,
    EvidenceError,
    FragilityError,
    ModelError,
    ProtocolError,
    first_line,
)
from fragility.evidence.absence import find_absence
from fragility.evidence.agreement import BATCH_ROWS, check_steady
from fragility.evidence.bound import EvidenceRows, EvidenceSpace, to_floats
from fragility.evidence.codec import RawCodec, answers_alike, call_model, dense, keeps_columns, same_answers, transform
from fragility.evidence.fields import Field
from fragility.evidence.origins import check_origins, output_names
from fragility.evidence.rows import Rows, conform_rows, native_like, read_model_rows, rows_at
from fragility.models.adapter import Model, confirm_link, labels_follow, predict_labels
from fragility.scores import DecisionRule, support_margin

CONFIRM_ROWS = 64  # rows on which a known link is compared with the model's own predict_proba
CLOSE = 1e-3  # below this margin, rounding may decide what a model predicts


def bind_rows(model: Any, X: Any, space: EvidenceSpace, ids: Any = None, *, tried: bool = False) -> EvidenceRows:
    """Return the rows of ``X`` in an evidence space, ready for an engine; bound rows are returned as they are.

    tried: the model has been tried on these rows, when they were bound before in a space of the same columns.
    """
    wrapped = Model.wrap(model)
    if isinstance(X, EvidenceRows):
        _check_bound(wrapped, X, space, ids)
        return X
    rows, fitting = read_fitting_rows(wrapped, X, space, ids)
    bound = bind_fitting_rows(wrapped, fitting, space)
    if not tried:
        if space.space == "transformed" and wrapped.transformer is not None:
            check_origins(wrapped, fitting, space)
        check_steady(bound, space.resolution)
    if space.decision is not None and bound.decided is None:
        starts = range(0, len(bound), BATCH_ROWS)
        p = np.concatenate([bound.predict(bound.dense(start, start + BATCH_ROWS)) for start in starts])
        bound = replace(bound, decided=decide_by_threshold(p, bound, space), own=p)
    # The digest is of the rows as they came: what they were turned into follows from the protocol.
    return replace(bound, source=rows)


def read_fitting_rows(model: Model, X: Any, space: EvidenceSpace, ids: Any = None) -> tuple[Rows, Rows]:
    """Return the rows of ``X`` as they came, and with fields of the types of the training data."""
    check_decision(model, space)
    fields = [f.name for f in space.fields]
    expected = model.name_columns(fields) or tuple(fields)
    if set(expected) != set(fields):
        raise ProtocolError(
            f"the protocol was made for the columns {fields[:8]}, the model expects {list(expected)[:8]}; fit a "
            "protocol for this model"
        )
    rows = read_model_rows(model, X, expected, ids)
    fitting = conform_rows(rows, space.fields, needs_categories=reads_categories(model), whole=space.space == "raw")
    _check_gaps_harmless(model, fitting, space.fields)
    return rows, fitting


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


def decide_by_threshold(p: Floats, rows: EvidenceRows, space: EvidenceSpace) -> Integers:
    """Return (n,) the classes that the protocol's own threshold decides at p (n, 2); a tie goes to its class."""
    assert space.decision is not None
    positive = space.decision.index(rows.model.classes)
    flips = DecisionRule(space.resolution, rows.offset).flips(p, positive)
    return np.where(flips, 1 - positive, positive)


def _check_gaps_harmless(model: Model, rows: Rows, fields: Sequence[Field]) -> None:
    """Refuse whole numbers that came as decimals because some are missing, if the model tells the two apart.

    Else a row's certificate would depend on whether another row of its batch lacks a value.
    """
    if rows.frame is None:
        return
    dtypes = dict(zip(rows.names, rows.frame.dtypes, strict=True))
    decimal = [f.name for f in fields if f.type == "integer" and dtypes[f.name] == np.float64]
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


def _check_bound(model: Model, rows: EvidenceRows, space: EvidenceSpace, ids: Any) -> None:
    """Refuse rows that were bound before to another model or evidence space."""
    if ids is not None:
        raise DataError("bound rows have their ids already", Advice("; give ids= where the rows are bound", ""))
    if rows.model.head is not model.head:
        raise ModelError(f"the rows were bound to another model ({rows.model.kind}); bind them to this one")
    numeric = [column.kind == "numeric" for column in space.columns]
    declared = to_floats([column.baseline for column in space.columns if column.kind == "numeric"])
    same_baseline = np.array_equal(rows.baseline[numeric], declared, equal_nan=True)
    if not (same_baseline and np.array_equal(rows.column_group, space.column_group)):
        raise ProtocolError("the rows were bound under other groups or another baseline; bind them to this protocol")
    own, other = (0.0 if o is None else o for o in (rows.offset, space.decision_offset(model.classes)))
    if np.any(own != other):
        raise ProtocolError("the rows were bound under another decision rule; bind them to this protocol")


def check_decision(model: Model, space: EvidenceSpace) -> None:
    if model.decision is not None and model.decision != space.decision:
        declared = "the class with the larger probability" if space.decision is None else str(space.decision)
        raise ProtocolError(
            f"{model.kind} predicts {model.decision}, the protocol declares {declared}; fit a protocol for this model"
        )


def _own_answers(
    model: Model, rows: Rows, space: EvidenceSpace, hand_over: Callable[[Any], Any] | None
) -> tuple[Integers | None, Floats | None]:
    """Return class indices (n,) by the model's own predict, and its probabilities (n, C) where they were asked for.

    No classes if the model has no labels, or the protocol another rule. hand_over(places): some rows as the final
    estimator takes them; None: the model is asked about raw rows.
    """
    if space.decision is not None and model.decision is None:
        return None, None
    give, to_head = _giver(model, rows, hand_over)
    parts = [slice(start, min(start + BATCH_ROWS, len(rows))) for start in range(0, len(rows), BATCH_ROWS)]
    if not labels_follow(model):
        return ask_labels(model, rows, hand_over), None
    ask = model.head_probabilities if to_head else model.probabilities
    p = np.concatenate([call_model(lambda: ask(give(part)), rows) for part in parts])  # noqa: B023
    # Most contradictions between predict and the probabilities are seen in the first rows.
    return decide_by_model(model, rows, hand_over, p, asked=CONFIRM_ROWS), p


def _giver(
    model: Model, rows: Rows, hand_over: Callable[[Any], Any] | None
) -> tuple[Callable[[slice | Integers], Any], bool]:
    """Return the function places -> some rows as whoever gives the labels takes them, and whether that is the head."""
    if hand_over is not None and model.decider is not None:
        return hand_over, True
    return lambda places: rows_at(rows.native, places), False


def ask_labels(
    model: Model, rows: Rows, hand_over: Callable[[Any], Any] | None, places: Integers | None = None
) -> Integers | None:
    """Return the classes of the rows, or of some, by the model's own predict; None if it has no labels."""
    give, to_head = _giver(model, rows, hand_over)
    n = len(rows) if places is None else len(places)
    found = []
    for start in range(0, n, BATCH_ROWS):
        part = slice(start, min(start + BATCH_ROWS, n))
        some = part if places is None else places[part]
        labels = call_model(lambda: predict_labels(model, give(some), to_head=to_head), rows)  # noqa: B023
        if labels is None:
            return None
        found.append(labels)
    return np.concatenate(found)


def decide_by_model(
    model: Model, rows: Rows, hand_over: Callable[[Any], Any] | None, p: Floats, *, asked: int = 0
) -> Integers:
    """Return (n,) the classes of a model whose labels follow its probabilities p (n, C); the first are asked for.

    Where two classes are close, predict decides.
    """
    decided = p.argmax(axis=1)
    close = support_margin(p, decided) < CLOSE
    close[:asked] = True
    places = np.flatnonzero(close)
    if len(places) and (predicted := ask_labels(model, rows, hand_over, places)) is not None:
        decided[places] = predicted
    return np.asarray(decided, dtype=np.int64)


def bind_fitting_rows(model: Model, rows: Rows, space: EvidenceSpace) -> EvidenceRows:
    """Bind rows whose fields have the types of the training data."""
    common = partial(
        EvidenceRows,
        ids=rows.ids,
        column_group=space.column_group,
        n_groups=len(space.groups),
        n_classes=len(model.classes),
        source=rows,
        offset=space.decision_offset(model.classes),
        absent=find_absence(rows, space.fields, space.column_fields, space.column_group),
    )
    return (_bind_raw if space.space == "raw" else _bind_transformed)(model, rows, space, common)


@dataclass(frozen=True, eq=False)
class RawLayout:
    """Raw fields as cells: how the rows of a table become a matrix in the protocol's order, and are handed over."""

    rows: Rows  # which fit the space
    space: EvidenceSpace
    codec: RawCodec
    place: tuple[int, ...]  # (d,) the column of the table that each evidence column is

    @classmethod
    def of(cls, rows: Rows, space: EvidenceSpace, *, flags_as_numbers: bool) -> RawLayout:
        """Lay out rows whose fields have the types of the training data; flags_as_numbers: see ``RawCodec.fit``."""
        if rows.frame is None:
            raise DataError("the raw evidence space needs a table or dense array, got a sparse matrix")
        values = {column.name: column.baseline for column in space.columns}
        codec = RawCodec.fit(rows, space.fields, values, space.listed, flags_as_numbers=flags_as_numbers)
        return cls(rows, space, codec, tuple(rows.names.index(column.name) for column in space.columns))

    @property
    def in_order(self) -> bool:
        """Whether the protocol has the columns in the order of the table."""
        return list(self.place) == list(range(len(self.place)))

    @property
    def baseline(self) -> Floats:
        """(d,) the cells that replace lost evidence."""
        return np.asarray(self.codec.baseline[list(self.place)])

    @property
    def stepwise(self) -> Booleans:
        """(d,) columns that cannot be interpolated."""
        return np.array([c.kind == "nominal" for c in self.space.columns]) | np.isnan(self.baseline)

    def matrix(self) -> Floats:
        """Return (n, d) the cells of the rows."""
        assert self.rows.frame is not None
        return np.asarray(self.codec.encode(self.rows.frame)[:, list(self.place)])

    def encode(self, table: pd.DataFrame) -> Floats:
        """Return (k, d) the cells of other raw rows."""
        return np.asarray(self.codec.encode(_fit_table(table, self.rows, self.space)[1])[:, list(self.place)])

    def decode(self, matrix: Floats) -> Any:
        """Return cells (k, d) as the model is handed them: raw values in the user's kind of container."""
        return self.codec.decode(matrix[:, np.argsort(self.place)])


def _bind_raw(model: Model, rows: Rows, space: EvidenceSpace, common: Callable[..., EvidenceRows]) -> EvidenceRows:
    """Bind raw fields as codes; the model is handed them decoded, in their own types."""
    layout = RawLayout.of(rows, space, flags_as_numbers=model.transformer is None)
    codec, baseline = layout.codec, layout.baseline
    _check_same_answers(model, rows.head(CONFIRM_ROWS), codec)
    matrix = layout.matrix()
    confirmed = confirm_answers(model, lambda: layout.decode(matrix[:CONFIRM_ROWS]), raw=True)

    def predict(stressed: Floats) -> Floats:
        return call_model(lambda: confirmed.probabilities(layout.decode(stressed)), rows)

    decided, own = _own_answers(confirmed, rows, space, None)
    return common(
        matrix=matrix,
        baseline=baseline,
        stepwise=layout.stepwise,
        model=confirmed,
        ask_model=predict,
        decided=decided,
        own=own,
        cell_dtype=codec.cell_dtype or np.float64,
        native_matrix=model.transformer is None and codec.cell_dtype is not None and layout.in_order,
        hand_over=layout.decode if model.transformer is None else None,
        encode=layout.encode,
        forms=codec.forms if layout.in_order and keeps_columns(model.transformer, rows) else None,
    )


def _fit_table(table: pd.DataFrame, rows: Rows, space: EvidenceSpace) -> tuple[Rows, pd.DataFrame]:
    """Return further raw rows in the container and the types of rows that fit the space, and the same as a table."""
    ordered = table[list(rows.names)].reset_index(drop=True)
    fitting = conform_rows(
        Rows(ordered, ordered, rows.names, tuple(range(len(table)))), space.fields, needs_categories=False, whole=False
    )
    assert fitting.frame is not None
    return replace(fitting, native=native_like(fitting.frame, rows)), fitting.frame


def _check_same_answers(model: Model, rows: Rows, codec: RawCodec) -> None:
    """Refuse columns that must be handed over in another type, such as whole numbers with gaps, if it matters."""
    frame = rows.frame
    assert frame is not None
    changed = {
        name: form.dtype
        for name, form in zip(rows.names, codec.forms, strict=True)
        if form.dtype != frame[name].dtype and form.categories is None
    }
    if changed and not same_answers(model.probabilities, rows.native, lambda: codec.decode(codec.encode(frame))):
        name, dtype = next(iter(changed.items()))
        raise EvidenceError(
            f"the model answers differently once column {name!r} may hold missing values, because it is then handed "
            f"over as {dtype}; choose a baseline other than missing, or train with a nullable column (Int64)"
        )


def _bind_transformed(
    model: Model, rows: Rows, space: EvidenceSpace, common: Callable[..., EvidenceRows]
) -> EvidenceRows:
    """Bind the matrix that the preprocessing makes, handed to the final estimator in its own kind of container."""
    matrix, restore, handed = transform(model, rows)
    declared = [column.name for column in space.columns]
    if matrix.shape[1] != len(declared):
        raise ProtocolError(
            f"the protocol was made for {len(declared)} columns, the model's estimator is handed {matrix.shape[1]}; "
            "fit a protocol for this model with the same settings, or one for both with ",
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
            "the model answers differently when its whole numbers are handed over as decimals, which the transformed "
            "space needs; use ",
            Advice.argument("space", "raw"),
        )
    baseline = to_floats([column.baseline for column in space.columns])
    confirmed = confirm_answers(model, lambda: restore(dense(matrix[:CONFIRM_ROWS])), raw=False)

    def predict(stressed: Floats) -> Floats:
        return call_model(lambda: confirmed.head_probabilities(restore(stressed)), rows)

    def encode(table: pd.DataFrame) -> Floats:
        return dense(transform(model, _fit_table(table, rows, space)[0])[0])

    decided, own = _own_answers(confirmed, rows, space, lambda places: restore(dense(matrix[places])))
    return common(
        matrix=matrix,
        baseline=baseline,
        stepwise=np.isnan(baseline),
        model=confirmed,
        ask_model=predict,
        decided=decided,
        own=own,
        cell_dtype=np.float32 if matrix.dtype == np.float32 else np.float64,
        hand_over=restore,
        encode=None if rows.frame is None else encode,
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


def check_baseline_accepted(model: Model, rows: Rows, space: EvidenceSpace, baseline: str) -> EvidenceRows:
    """Return a few of the rows bound; refuse a baseline for which the model has no answer."""
    bound = bind_fitting_rows(model, rows.head(CONFIRM_ROWS), space)
    bound.predict(bound.dense(0, 1))  # a fault on an ordinary row is the model's, not the baseline's
    try:
        bound.predict(bound.baseline[None, :])
    except FragilityError as error:
        if baseline != "missing":
            raise EvidenceError(
                f"the model cannot take the baseline {baseline!r}: ", error, "; choose another"
            ) from error
        refused, which = error, "every field"
        for j, column in enumerate(space.columns):  # name the first field whose missing value the model refuses
            lost = bound.dense(0, 1)
            lost[:, j] = bound.baseline[j]
            try:
                bound.predict(lost)
            except FragilityError as first:
                refused, which = first, f"the field {column.name!r}"
                break
        reason = first_line(refused.__cause__ or refused)
        raise EvidenceError(
            f"the model cannot take the baseline 'missing': it has no answer when {which} is missing ({reason}); add "
            "an imputer to its pipeline, or choose another baseline"
        ) from error
    return bound
