"""Codec: rows as a float64 matrix and back, so that engines see one kind of input.

``RawCodec`` writes raw fields, ``transform`` what the final estimator is handed.

A number is itself, codes included; any other nominal value is its index in a table. What comes back has the types of
the training data: whole numbers are whole (a blend of two is rounded, halves to even), text is text, categories are
categories, nullable columns are nullable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from fragility.base.arrays import Booleans, Floats
from fragility.base.canonical import WHOLE_BITS, beyond_doubles, is_missing
from fragility.base.errors import Advice, DataError, EvidenceError, FragilityError, ModelError, first_line
from fragility.evidence.bound import CellForm, EvidenceSpace
from fragility.evidence.fields import Field, is_categorical, kind_of, type_of, value_like
from fragility.evidence.rows import Rows, Scalar, name_columns, native_like
from fragility.models.adapter import Model, copy_rows
from fragility.models.outputs import LINK_TOLERANCE, to_python

Table: TypeAlias = tuple[Scalar, ...]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RawCodec:
    """How the fields of some rows are written into a matrix, in the order of a protocol's columns, and read back."""

    rows: Rows  # whose kind of container, whose types and whose order of columns are given back
    names: tuple[str, ...]  # (d,) of the matrix' columns
    forms: tuple[CellForm, ...]  # (d,)
    gaps: tuple[Any, ...]  # (d,) what stands for a missing value in each column
    baseline: Floats  # (d,) the cells that replace lost evidence
    stepwise: Booleans  # (d,) columns that cannot be interpolated

    @classmethod
    def fit(cls, rows: Rows, space: EvidenceSpace, *, flags_as_numbers: bool = False) -> RawCodec:
        """Return a codec whose tables hold every nominal value of ``rows``, of the baseline and of ``space.listed``.

        rows: with fields of the types of the training data. flags_as_numbers: truth values with a missing one among
        them are handed over as 1, 0 and NaN. An estimator without preprocessing reads them so; pandas' own column of
        objects is what preprocessing expects.
        """
        if rows.frame is None:
            raise DataError("the raw evidence space needs a table or dense array, got a sparse matrix")
        by_name = {field.name: field for field in space.fields}
        forms, gaps, codes = [], [], []
        for declared in space.columns:
            column, field, value = rows.frame[declared.name], by_name[declared.name], declared.baseline
            others: Sequence[Any] = space.listed.get(declared.name, ())
            if column.dtype.kind in "biu" and value is not None:
                others = [other for other in others if other is not None]  # it would change the type of the column
            if field.type == "date":
                value, *others = [value_like(v, column) if isinstance(v, str) else v for v in (value, *others)]
            table = None
            if _is_its_number(column, field, value):
                dtype, code = _number_dtype(column, field, value), np.nan if value is None else float(value)
            else:
                table = _value_table(column, (value, *others))
                dtype, code = _table_dtype(column, table, flags_as_numbers), table.index(value)
            forms.append(CellForm(table, dtype, field.type == "integer" and field.kind == "numeric"))
            # Encoders tell None from NaN.
            gaps.append(next(iter(column[column.isna()]), np.nan) if column.dtype == object else np.nan)
            codes.append(code)
        baseline = np.array(codes, dtype=np.float64)
        stepwise = np.array([column.kind == "nominal" for column in space.columns]) | np.isnan(baseline)
        names = tuple(column.name for column in space.columns)
        return cls(rows, names, tuple(forms), tuple(gaps), baseline, stepwise)

    @property
    def in_order(self) -> bool:
        """Whether the matrix has the columns in the order of the table."""
        return self.names == self.rows.names

    @property
    def cell_dtype(self) -> Any:
        """The one precision in which an estimator is handed this matrix itself, or None if it is handed another."""
        if any(form.values is not None or form.whole for form in self.forms):
            return None
        # Codes are whole numbers that no state moves: in double precision they are what they are.
        dtypes = (form.dtype for form in self.forms)
        kinds = {np.dtype(float) if pd.api.types.is_integer_dtype(dtype) else dtype for dtype in dtypes}
        only = kinds.pop()
        return only.type if not kinds and only in (np.dtype(np.float64), np.dtype(np.float32)) else None

    def encode(self, frame: pd.DataFrame | None) -> Floats:
        """Return (n, d) the cells of rows; a KeyError says that a table lacks one of their values."""
        assert frame is not None
        matrix = np.empty((len(frame), len(self.forms)))
        for j, (name, form) in enumerate(zip(self.names, self.forms, strict=True)):
            if form.values is None:
                matrix[:, j] = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
            else:
                place = {value: float(i) for i, value in enumerate(form.values)}
                codes, values = pd.factorize(frame[name], use_na_sentinel=True)
                positions = [place[to_python(value)] for value in values] + [place.get(None, np.nan)]
                matrix[:, j] = np.array(positions)[codes]
        return matrix

    def encode_known(self, frame: pd.DataFrame) -> Floats | None:
        """Return (n, d) the cells of other rows; None if they have values that those of the codec do not tell of."""
        for name, form in zip(self.names, self.forms, strict=True):
            column = frame[name]
            # Encoders tell None from NaN; and the rows of the codec may have had no missing value.
            unlisted = column.dtype == object or (form.values is not None and None not in form.values)
            if (unlisted and bool(column.isna().any())) or (form.values is None and bool(beyond_doubles(column).any())):
                return None
        try:
            return self.encode(frame)
        except KeyError:
            return None

    def decode(self, matrix: Floats) -> Any:
        """Return the rows that cells (k, d) stand for, as the model is handed them: in the user's kind of container."""
        columns = {}
        for name, form, gap, cells in zip(self.names, self.forms, self.gaps, matrix.T, strict=True):
            if form.values is not None:
                columns[name] = _pick_values(form.values, cells.astype(np.int64), form.dtype, gap)
            else:
                columns[name] = cast_numbers(np.rint(cells) if form.whole else cells, form.dtype)
        if not self.in_order:
            columns = {name: columns[name] for name in self.rows.names}
        return native_like(pd.DataFrame(columns), self.rows)


def _is_its_number(column: pd.Series, field: Field, baseline: Scalar) -> bool:
    """True if a cell of this field can stand in the matrix as the number it is."""
    wide = beyond_doubles(column)
    if field.kind == "nominal":
        numeric = kind_of(column) == "numeric" and not wide.any()
        return numeric and (baseline is None or (isinstance(baseline, (int, float)) and abs(baseline) <= 2**WHOLE_BITS))
    if wide.any():
        raise DataError(
            f"column {column.name!r} holds the whole number {int(column[wide].iloc[0])}, beyond 2**53, where a number "
            f"in double precision loses digits; if it is a code, ",
            Advice(f"fit the protocol with nominal=[{column.name!r}]", "store it as text"),
        )
    return True


def _number_dtype(column: pd.Series, field: Field, baseline: Scalar) -> Any:
    dtype = column.dtype
    if kind_of(column) != "numeric":
        return np.dtype(np.float64)  # a column without any value
    # Whole numbers with gaps are decimals in a plain column, in every batch if the baseline is a gap.
    plain_integer = isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.integer)
    return np.dtype(np.float64) if plain_integer and (baseline is None or field.type != "integer") else dtype


def cast_numbers(values: Floats, dtype: Any) -> Any:
    """Return numbers in the type of a column; whole ones that a narrow type cannot hold, such as -1, in a wide one."""
    limits = np.iinfo(getattr(dtype, "numpy_dtype", dtype)) if pd.api.types.is_integer_dtype(dtype) else None
    fits = limits is None or (np.nanmin(values, initial=0) >= limits.min and np.nanmax(values, initial=0) <= limits.max)
    if not isinstance(dtype, np.dtype):
        missing = np.isnan(values)
        if limits is not None:
            whole = pd.arrays.IntegerArray(np.where(missing, 0, values).astype(np.int64), missing)
            return whole.astype(dtype) if fits else whole
        return pd.arrays.FloatingArray(values.copy(), missing).astype(dtype)
    return values.astype(dtype if fits else np.int64)


def _value_table(column: pd.Series, others: Sequence[Any]) -> Table:
    try:
        distinct = column.unique()
    except TypeError as error:
        raise DataError(f"column {column.name!r} holds values that are neither numbers nor texts: {error}") from error
    values = [None if is_missing(value) else to_python(value) for value in distinct]
    return tuple(dict.fromkeys([*values, *others]))


def _table_dtype(column: pd.Series, table: Table, flags_as_numbers: bool) -> Any:
    """Return what the values of a table are handed over as, the same for every batch of a protocol."""
    dtype: Any = column.dtype
    if is_categorical(column):
        known = set(dtype.categories)
        # The baseline's value goes to the end, so that the codes of known categories stay as they are.
        new = [value for value in table if value is not None and value not in known]
        return pd.CategoricalDtype([*dtype.categories, *new], dtype.ordered)
    if type_of(column) == "empty":
        return np.dtype(object)
    plain = isinstance(dtype, np.dtype) and dtype != np.dtype(object) and dtype.kind != "M"  # NaT is a timestamp
    if not plain or None not in table or np.issubdtype(dtype, np.floating):
        return dtype
    if not pd.api.types.is_integer_dtype(dtype):
        return np.dtype(np.float64) if flags_as_numbers and pd.api.types.is_bool_dtype(dtype) else np.dtype(object)
    if beyond_doubles(column).any():
        raise EvidenceError(
            f"column {column.name!r} holds whole numbers beyond 2**53, which a column with missing values cannot hold "
            "exactly; choose a baseline other than missing, or make it a nullable column (Int64)"
        )
    return np.dtype(np.float64)


def _pick_values(table: Table, places: npt.NDArray[np.int64], dtype: Any, missing: Any) -> Any:
    if isinstance(dtype, pd.CategoricalDtype):
        order = {value: i for i, value in enumerate(dtype.categories)}
        codes = np.array([-1 if value is None else order[value] for value in table])
        return pd.Categorical.from_codes(codes[places], dtype=dtype)
    values = np.empty(len(table), dtype=object)
    values[:] = [missing if value is None else value for value in table]
    if pd.api.types.is_datetime64_any_dtype(dtype):  # slow to make of objects, so once for each value
        return pd.Series(values, dtype=dtype).take(places).reset_index(drop=True)
    return pd.Series(values[places], dtype=dtype)


def transform(model: Model, rows: Rows) -> tuple[Any, Callable[[Floats], Any], Any]:
    """Return (the estimator's input as a matrix, how any float64 matrix becomes such an input, the input itself)."""
    out = rows.native
    if model.transformer is not None:
        try:
            out = call_model(lambda: model.preprocess(rows.native), rows)
        except ModelError as error:
            raise _name_failing_row(model, rows, error) from error
    return *as_matrix(out), out


def as_matrix(out: Any) -> tuple[Any, Callable[[Floats], Any]]:
    """Return an estimator's input as a matrix, and how any float64 matrix becomes such an input."""
    if sp.issparse(out):
        # Stressed cells are fractions: whole numbers could not hold them.
        dtype = out.dtype if np.issubdtype(out.dtype, np.floating) else np.dtype(np.float64)
        return sp.csr_matrix(out, dtype=dtype), lambda matrix: sp.csr_matrix(matrix, dtype=dtype)
    if isinstance(out, pd.DataFrame) and any(isinstance(d, pd.CategoricalDtype) for d in out.dtypes):
        raise EvidenceError("the estimator is handed categories, not numbers; use ", Advice.argument("space", "raw"))
    names = list(out.columns) if hasattr(out, "columns") else None
    array = np.asarray(out) if names is None else out.to_numpy()
    precision = np.float32 if array.dtype == np.float32 else np.float64
    try:
        cells = np.asarray(array, dtype=precision)
    except (TypeError, ValueError) as error:
        raise EvidenceError(
            "the estimator is handed values that are not numbers, so they cannot be moved toward a baseline in the "
            "transformed space; use ",
            Advice.argument("space", "raw"),
        ) from error
    if names is None:
        return cells, lambda matrix: matrix.astype(precision, copy=False)
    if isinstance(out, pd.DataFrame):
        return cells, lambda matrix: pd.DataFrame(matrix.astype(precision, copy=False), columns=names)
    return cells, lambda matrix: type(out)(matrix.astype(precision, copy=False), schema=names)


def answers_alike(model: Model, matrix: Any, restore: Callable[[Floats], Any], handed: Any) -> bool:
    """True if the estimator answers alike once whole numbers are decimals; one that reads them as names does not."""
    if hasattr(handed, "columns"):
        dtypes = list(handed.dtypes)
    else:
        dtypes = [handed.dtype if hasattr(handed, "dtype") else np.asarray(handed).dtype]
    decimals = all(str(dtype).lower().startswith("float") for dtype in dtypes)
    return decimals or same_answers(model.head_probabilities, handed, lambda: restore(dense(matrix)))


def same_answers(ask: Callable[[Any], Floats], handed: Any, rebuild: Callable[[], Any]) -> bool:
    """True if a model answers a rebuilt input as it answers its own."""
    try:
        answers, again = ask(handed), ask(handed)
    except Exception:  # a fault of the model is reported by its first prediction
        return True
    if not np.abs(answers - again).max(initial=0.0) <= LINK_TOLERANCE:
        return True  # a model that does not answer twice alike says nothing about the form of its input
    try:
        return bool(np.abs(answers - ask(rebuild())).max(initial=0.0) <= LINK_TOLERANCE)
    except Exception:  # it takes the one form and fails on the other
        return False


def _name_failing_row(model: Model, rows: Rows, error: ModelError) -> ModelError:
    """Return the error of preprocessing that names the first row it fails on; the error itself if no row fails alone.

    Preprocessing treats each row by itself, so the row is found by halving: a value that it does not know, as a rule.
    """
    left = rows
    while len(left) > 1:
        half = left.between(0, len(left) // 2)
        try:
            model.preprocess(half.native)
        except Exception:
            left = half
        else:
            left = left.between(len(half), len(left))
    try:
        model.preprocess(left.native)
    except Exception as reason:
        failure = f"{type(reason).__name__}: {first_line(reason)}"
        advice = _advise_texts(model.transformer, rows)
        return ModelError(f"the model's preprocessing failed on row {left.ids[0]!r}: {failure}{advice}")
    return error


def _advise_texts(step: Any, rows: Rows) -> str:
    """Return what to do where an encoder knows texts and these rows hold numbers, as a CSV file of codes does."""
    inner = [part[1] for part in getattr(step, "transformers_", getattr(step, "steps", []))]
    for name, known in zip(getattr(step, "feature_names_in_", ()), getattr(step, "categories_", ()), strict=False):
        texts = [value for value in known if isinstance(value, str)]
        if texts and rows.frame is not None and name in rows.frame and kind_of(rows.frame[name]) == "numeric":
            return (
                f"; column {name!r} holds numbers here, and the model's {type(step).__name__} was fitted on texts such "
                f"as {texts[0]!r}, which a CSV file does not tell apart: give rows in which it is text, as in Parquet"
            )
    return next((advice for each in inner if (advice := _advise_texts(each, rows))), "")


def call_model(call: Callable[[], T], rows: Rows) -> T:
    """Run a call into the user's model; turn what it raises into one sentence."""
    try:
        return call()
    except FragilityError:
        raise
    except Exception as error:
        reason = first_line(error)
        if re.search(r"\bnan\b|missing value", reason.lower()):
            # Which of the columns with gaps the model refuses, its own sentence may say.
            gaps = [] if rows.frame is None else [name for name in rows.names if rows.frame[name].isna().any()]
            hold = "holds" if len(gaps) == 1 else "hold"
            place = f"{name_columns(gaps)} {hold} missing values and " if gaps else ""
            raise DataError(f"{place}the model refuses missing values ({reason}); impute them in a pipeline") from error
        raise ModelError(f"the model failed on these rows: {type(error).__name__}: {reason}") from error


def dense(matrix: Any) -> Floats:
    return matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix, dtype=np.float64)


def keeps_columns(transformer: Any, rows: Rows) -> bool:
    """True if a preprocessing hands on the columns of these rows as they are: their order, types and values."""
    if transformer is None:
        return True
    if not _is_identity(transformer, len(rows.names)):
        return False
    few = rows.head(2).native
    out = transformer.transform(copy_rows(few))
    if type(out) is not type(few) or not isinstance(few, (pd.DataFrame, np.ndarray)):
        return False
    before, after = (pd.DataFrame(some).set_axis(list(rows.names), axis=1) for some in (few, out))
    return list(after.dtypes) == list(before.dtypes) and bool(after.equals(before))


def _is_identity(step: Any, n_columns: int) -> bool:
    """True if a step is known, by what it is, to change nothing but perhaps the container of its rows."""
    if step is None or isinstance(step, str):
        return step is None or step == "passthrough"
    if type(step) is Pipeline:
        return all(_is_identity(inner, n_columns) for _, inner in step.steps)
    if type(step) is not ColumnTransformer:
        return type(step) is FunctionTransformer and step.func is None and not step.validate
    names = list(getattr(step, "feature_names_in_", range(n_columns)))
    taken: list[Any] = []
    for _, inner, columns in step.transformers_:
        if isinstance(columns, str) or not isinstance(columns, Sequence) or not _is_identity(inner, n_columns):
            return False
        taken += [column if isinstance(column, str) else names[column] for column in columns]
    return taken == names
