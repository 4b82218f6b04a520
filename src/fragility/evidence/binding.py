"""Binding: an evidence space applied to a model and the rows to audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fragility.arrays import Booleans, Floats, Integers
from fragility.errors import Advice, DataError, EvidenceError, FragilityError, ModelError, ProtocolError
from fragility.evidence.agreement import BATCH_ROWS, check_steady
from fragility.evidence.bound import CellForm, EvidenceRows, EvidenceSpace
from fragility.evidence.codec import (
    RawCodec,
    answers_alike,
    dense,
    guarded,
    keeps_columns,
    part_of,
    same_answers,
    transform,
)
from fragility.evidence.fields import Field, conformed
from fragility.evidence.rows import Rows, native_like, read_rows
from fragility.evidence.tracing import output_names
from fragility.models.adapter import Model
from fragility.scores import support_margin

CONFIRM_ROWS = 64  # rows on which a known link is compared with the model's own predict_proba
CLOSE = 1e-3  # a margin below which rounding might have a say in what a model predicts


def bind_rows(model: Any, X: Any, space: EvidenceSpace, ids: Any = None) -> EvidenceRows:
    """Return the rows of ``X`` in an evidence space, ready for an engine; rows already bound stay."""
    wrapped = Model.wrap(model)
    if isinstance(X, EvidenceRows):
        return _as_bound(wrapped, X, space, ids)
    check_decision(wrapped, space)
    expected = wrapped.columns or tuple(f.name for f in space.fields)
    if set(expected) != {f.name for f in space.fields} and wrapped.columns is not None:
        raise ProtocolError(
            f"the protocol was made for the columns {[f.name for f in space.fields][:8]}, the model expects "
            f"{list(expected)[:8]}; fit a protocol for this model"
        )
    rows = read_rows(X, expected, wrapped.n_columns, ids)
    fitting = conformed(
        rows,
        space.fields,
        needs_categories=wrapped.transformer is None and not hasattr(wrapped.head, "get_cat_feature_indices"),
        whole=space.space == "raw",
    )
    _check_gaps_harmless(wrapped, fitting, space.fields)
    bound = bound_rows(wrapped, fitting, space)
    check_steady(bound, space.resolution)
    # The digest is of the rows as they came: what they were turned into follows from the protocol.
    return replace(_decided_by_threshold(bound, space), source=rows)


def _check_gaps_harmless(model: Model, rows: Rows, fields: Sequence[Field]) -> None:
    """Refuse whole numbers that came as decimals because some are missing, if the model tells the two apart.

    Else a row's certificate would depend on whether another row of its batch lacks a value.
    """
    if rows.frame is None:
        return
    whole = [f.name for f in fields if f.type == "integer"]
    gappy = [name for name in whole if rows.frame[name].dtype == np.float64 and rows.frame[name].isna().any()]
    complete = np.flatnonzero(rows.frame[gappy].notna().all(axis=1))[:CONFIRM_ROWS]
    if not gappy or len(complete) == 0:
        return
    frame = rows.frame.iloc[complete]
    if not same_answers(
        model.probabilities,
        native_like(frame, rows),
        lambda: native_like(frame.astype(dict.fromkeys(gappy, int)), rows),
    ):
        raise DataError(
            f"column {gappy[0]!r} held whole numbers in the training data and now came as decimals because values are "
            "missing, which this model answers differently; hand it over as a nullable column (Int64), or fill the gaps"
        )


def _as_bound(model: Model, rows: EvidenceRows, space: EvidenceSpace, ids: Any) -> EvidenceRows:
    """Return rows that were bound before, if it was to this model and to this evidence space."""
    if ids is not None:
        raise DataError("bound rows have their ids already", Advice("; give ids= where the rows are bound", ""))
    if rows.model.head is not model.head:
        raise ModelError(f"the rows were bound to another model ({rows.model.kind}); bind them to this one")
    numeric = [j for j, column in enumerate(space.columns) if column.kind == "numeric"]
    values = [space.columns[j].baseline for j in numeric]
    declared = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if not (
        np.array_equal(rows.column_group, space.column_group)
        and np.array_equal(rows.baseline[numeric], declared, equal_nan=True)
    ):
        raise ProtocolError("the rows were bound under other groups or another baseline; bind them to this protocol")
    if not np.array_equal(_or_zeros(rows.offset, model), _or_zeros(space.decision_offset(model.classes), model)):
        raise ProtocolError("the rows were bound under another decision rule; bind them to this protocol")
    return rows


def _or_zeros(offset: Floats | None, model: Model) -> Floats:
    return np.zeros(len(model.classes)) if offset is None else offset


def check_decision(model: Model, space: EvidenceSpace) -> None:
    if model.decision is not None and model.decision != space.decision:
        declared = "the class with the larger probability" if space.decision is None else str(space.decision)
        raise ProtocolError(
            f"{model.kind} predicts {model.decision}, the protocol declares {declared}; fit a protocol for this model"
        )


def _own_answers(
    model: Model, rows: Rows, space: EvidenceSpace, handed_over: Callable[[Any], Any] | None
) -> tuple[Integers | None, Floats | None]:
    """Return class indices (n,) by the model's own predict, and its probabilities (n, C) where they were asked for.

    No classes if the model has no labels, or the protocol another rule. handed_over(places): some rows as the final
    estimator takes them; None: rows are asked about as they came.
    """
    if space.decision is not None and model.decision is None:
        return None, None
    as_they_came = handed_over is None or model.decider is None

    def given(places: slice | Integers) -> Any:
        if handed_over is not None and not as_they_came:
            return handed_over(places)
        if isinstance(places, slice):
            return part_of(rows.native, places.start, places.stop)
        return rows.take(places.tolist()).native

    def labels(places: slice | Integers) -> Integers | None:
        return model.own_labels(given(places), handed_over=not as_they_came)

    found: list[Integers] = []
    known: list[Floats] = []
    for start in range(0, len(rows), BATCH_ROWS):
        part = slice(start, min(start + BATCH_ROWS, len(rows)))
        if model.labels_follow:
            ask = model.probabilities if as_they_came else model.head_probabilities
            p = guarded(lambda: ask(given(part)), rows)  # noqa: B023
            known.append(p)
            found.append(guarded(lambda: _labels_from(p, labels, start), rows))  # noqa: B023
            continue
        told = guarded(lambda: labels(part), rows)  # noqa: B023
        if told is None:
            return None, None
        found.append(told)
    return np.concatenate(found), np.concatenate(known) if known else None


def _labels_from(p: Floats, labels: Callable[[Integers], Integers | None], start: int) -> Integers:
    """Return (m,) the most probable classes of rows from ``start`` on; where two are close, what predict says.

    It is asked about the first rows of all, whatever their probabilities: most contradictions are seen there.
    """
    top = p.argmax(axis=1)
    close = support_margin(p, top) < CLOSE
    close[: max(CONFIRM_ROWS - start, 0)] = True
    places = np.flatnonzero(close)
    told = labels(start + places) if len(places) else None
    if told is not None:
        top[places] = told
    return np.asarray(top, dtype=np.int64)


def _decided_by_threshold(bound: EvidenceRows, space: EvidenceSpace) -> EvidenceRows:
    """Return the rows with the class that a threshold of the protocol's own decides; a tie goes to its class."""
    if space.decision is None or bound.decided is not None:
        return bound
    positive = space.decision.index(bound.model.classes)
    p = np.concatenate(
        [bound.predict(bound.dense(start, start + BATCH_ROWS)) for start in range(0, len(bound), BATCH_ROWS)]
    )
    holds = support_margin(p, positive, bound.offset) >= -space.resolution
    return replace(bound.with_decided(np.where(holds, positive, 1 - positive)), own=p)


class _Handed(NamedTuple):
    """Rows as a space has them, and how the model answers for any rows like them; d columns."""

    matrix: Any  # (n, d)
    baseline: Floats  # (d,)
    stepwise: Booleans  # (d,)
    model: Model  # as confirmed on these rows
    predict: Callable[[Floats], Floats]
    answers: tuple[Integers | None, Floats | None]  # classes and probabilities of the rows as they stand
    cell_dtype: Any
    native_matrix: bool
    forms: tuple[CellForm, ...] | None = None


def bound_rows(model: Model, rows: Rows, space: EvidenceSpace) -> EvidenceRows:
    """Return rows that fit the space's fields, bound."""
    handed = (_handed_raw if space.space == "raw" else _handed_transformed)(model, rows, space)
    return EvidenceRows(
        matrix=handed.matrix,
        ids=rows.ids,
        baseline=handed.baseline,
        stepwise=handed.stepwise,
        column_group=space.column_group,
        n_groups=len(space.groups),
        n_classes=len(model.classes),
        predict_matrix=handed.predict,
        model=handed.model,
        source=rows,
        offset=space.decision_offset(model.classes),
        decided=handed.answers[0],
        own=handed.answers[1],
        cell_dtype=handed.cell_dtype,
        native_matrix=handed.native_matrix,
        forms=handed.forms,
    )


def _handed_raw(model: Model, rows: Rows, space: EvidenceSpace) -> _Handed:
    """Raw fields as codes; the model is handed them decoded, in their own types."""
    if rows.frame is None:
        raise DataError("the raw evidence space needs a table or dense array, got a sparse matrix")
    frame, values = rows.frame, {column.name: column.baseline for column in space.columns}
    codec = RawCodec.fit(rows, space.fields, values, flags_as_numbers=model.transformer is None)
    _check_same_answers(model, rows.head(CONFIRM_ROWS), codec)
    place = [rows.names.index(column.name) for column in space.columns]  # evidence columns are in the protocol's order
    inverse = np.argsort(place)
    baseline = codec.encode_row(values)[place]
    confirmed = _confirmed(model, lambda: codec.decode(codec.encode(frame.iloc[:CONFIRM_ROWS])), raw=True)
    in_order = place == list(range(len(place)))
    as_they_are = model.transformer is None and codec.cell_dtype is not None and in_order

    def predict(matrix: Floats) -> Floats:
        return guarded(lambda: confirmed.probabilities(codec.decode(matrix[:, inverse])), rows)

    return _Handed(
        matrix=codec.encode(frame)[:, place],
        baseline=baseline,
        stepwise=np.array([c.kind == "nominal" for c in space.columns]) | np.isnan(baseline),
        model=confirmed,
        predict=predict,
        answers=_own_answers(confirmed, rows, space, None),
        cell_dtype=codec.cell_dtype or np.float64,
        native_matrix=as_they_are,
        forms=codec.forms if in_order and keeps_columns(model.transformer, rows) else None,
    )


def _check_same_answers(model: Model, rows: Rows, codec: RawCodec) -> None:
    """Refuse columns that must be handed over in another type, such as whole numbers with gaps, if it matters."""
    changed = [
        name
        for name, dtype in zip(rows.names, codec.dtypes, strict=True)
        if dtype != rows.frame[name].dtype and not isinstance(dtype, pd.CategoricalDtype)  # type: ignore[index]
    ]
    if changed and not same_answers(
        model.probabilities,
        rows.native,
        lambda: codec.decode(codec.encode(rows.frame)),  # type: ignore[arg-type]
    ):
        raise EvidenceError(
            f"the model answers differently once column {changed[0]!r} may hold missing values, because it is then "
            f"handed over as {codec.dtypes[rows.names.index(changed[0])]}; choose a baseline other than missing, or "
            "train with a nullable column (Int64)"
        )


def _handed_transformed(model: Model, rows: Rows, space: EvidenceSpace) -> _Handed:
    """The matrix that the preprocessing makes, handed to the final estimator in its own kind of container."""
    matrix, restore, handed = transform(model, rows)
    _check_columns(model, rows, matrix.shape[1], [column.name for column in space.columns])
    if not answers_alike(model, matrix[:CONFIRM_ROWS], restore, handed[:CONFIRM_ROWS]):
        raise EvidenceError(
            "the model answers differently when its whole numbers are handed over as decimals, which the transformed "
            "space needs; use ",
            Advice.argument("space", "raw"),
        )
    baseline = np.array([np.nan if c.baseline is None else float(c.baseline) for c in space.columns])
    confirmed = _confirmed(model, lambda: restore(dense(matrix[:CONFIRM_ROWS])), raw=False)

    def predict(stressed: Floats) -> Floats:
        return guarded(lambda: confirmed.head_probabilities(restore(stressed)), rows)

    return _Handed(
        matrix=matrix,
        baseline=baseline,
        stepwise=np.isnan(baseline),
        model=confirmed,
        predict=predict,
        answers=_own_answers(confirmed, rows, space, lambda places: restore(dense(matrix[places]))),
        cell_dtype=np.float32 if matrix.dtype == np.float32 else np.float64,
        native_matrix=True,
    )


def _check_columns(model: Model, rows: Rows, width: int, declared: list[str]) -> None:
    """Refuse a model whose estimator is handed other columns than the protocol was made for."""
    if width != len(declared):
        raise ProtocolError(
            f"the protocol was made for {len(declared)} columns, the model's estimator is handed {width}; "
            "fit a protocol for this model"
        )
    names = list(rows.names) if model.transformer is None else output_names(model.transformer, width)
    if names != declared:
        other = next((name for name in names if name not in set(declared)), names[0])
        raise ProtocolError(
            f"the protocol was made for other columns: it does not place {other!r}; fit one for this model"
        )


def _confirmed(model: Model, sample: Callable[[], Any], *, raw: bool) -> Model:
    """Return the model with its link confirmed on a few rows; a failure is left to the first prediction."""
    try:
        rows = sample()
        return model.confirmed(model.transformer.transform(rows) if raw and model.transformer is not None else rows)
    except ModelError:
        raise
    except Exception:
        return model


def check_baseline_accepted(model: Model, rows: Rows, space: EvidenceSpace, baseline: str) -> EvidenceRows:
    """Return a few of the rows bound; refuse a baseline for which the model has no answer."""
    bound = bound_rows(model, rows.head(CONFIRM_ROWS), space)
    bound.predict(bound.dense(0, 1))  # a fault on an ordinary row is the model's, not the baseline's
    try:
        bound.predict(bound.baseline[None, :])
    except FragilityError as error:
        if baseline == "missing":
            raise _refusal_of_gaps(bound, space, error) from error
        raise EvidenceError(f"the model cannot take the baseline {baseline!r}: ", error, "; choose another") from error
    return bound


def _refusal_of_gaps(bound: EvidenceRows, space: EvidenceSpace, error: FragilityError) -> EvidenceError:
    """Return the error that names the first field whose missing value the model refuses, and what it says."""
    x, which = bound.dense(0, 1), "every field"
    for j, column in enumerate(space.columns):
        lost = x.copy()
        lost[:, j] = bound.baseline[j]
        try:
            bound.predict(lost)
        except FragilityError as refused:
            which, error = f"the field {column.name!r}", refused
            break
    said = (str(error.__cause__ or error).strip().splitlines() or [type(error).__name__])[0]
    return EvidenceError(
        f"the model cannot take the baseline 'missing': it has no answer when {which} is missing ({said}); add an "
        "imputer to its pipeline, or choose another baseline"
    )
