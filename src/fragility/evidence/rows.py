"""Rows as users bring them (pandas, polars, Arrow, arrays, mappings): checked, with one id each, columns in the model's
order and of the types that they had in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import narwhals as nw
import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp

from fragility.base.canonical import WHOLE_BITS, Texts, is_missing, refuse_surrogate, row_digests
from fragility.base.errors import Advice, DataError
from fragility.evidence.fields import TYPE_WORDS, Field, conform_column, has_type, type_of
from fragility.models.adapter import Model
from fragility.models.mlflow_models import TYPES, ModelSignature
from fragility.models.outputs import to_python

CONTENT_BYTES = 16
Scalar: TypeAlias = float | int | bool | str | None
# What to do with columns that are not the model's.
DROPPING = Advice(
    "drop them",
    "leave them out with --drop COL (or all such columns with --ignore-extra), name the label with --target and the "
    "row id with --id",
)
# The types of a column's values that each of MLflow's types takes; bytes are not looked into.
ACCEPTED = {
    "boolean": ("boolean",),
    "integer": ("integer",),
    "long": ("integer",),
    "float": ("integer", "number"),
    "double": ("integer", "number"),
    "string": ("text",),
    "datetime": ("date",),
}
WHOSE = "the model's MLflow signature"


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in the model's column order: the user's own container, and its columns by name."""

    native: Any  # what the model is given: the user's kind of frame, or an array
    frame: pd.DataFrame | None  # the same as pandas; None for a sparse matrix
    names: tuple[str, ...]
    ids: tuple[Hashable, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int]) -> Rows:
        """Return the rows at these positions."""
        chosen = list(positions)
        return self._part(chosen, tuple(self.ids[i] for i in chosen))

    def between(self, start: int, stop: int) -> Rows:
        """Return the rows from start to stop."""
        return self._part(slice(start, stop), self.ids[start:stop])

    def _part(self, places: Any, ids: tuple[Hashable, ...]) -> Rows:
        frame = None if self.frame is None else self.frame.iloc[places]
        return Rows(rows_at(self.native, places), frame, self.names, ids)

    def head(self, n: int) -> Rows:
        """Return the first ``n`` rows."""
        return self.between(0, n)

    def columns(self) -> dict[str, Any]:
        """Return name -> values, for digests."""
        if self.frame is None:
            dense = self.native.tocsc()
            return {name: dense[:, [i]].toarray()[:, 0] for i, name in enumerate(self.names)}
        return {name: self.frame[name] for name in self.names}


def rows_at(native: Any, places: Any) -> Any:
    """Return the rows at some places, a slice or positions, of any container that a model takes."""
    return native.iloc[places] if isinstance(native, pd.DataFrame) else native[places]


def read_rows(X: Any, expected: Sequence[str] | None = None, n_expected: int | None = None, ids: Any = None) -> Rows:
    """Return ``X`` as checked rows.

    expected: the model's column names; the columns of a frame are put in that order, and a missing or
        unknown one is an error. n_expected: their number, where the model knows no names.
    ids: one distinct id per row; by default the index of a pandas frame, else 0, 1, ...
    """
    if sp.issparse(X) or isinstance(X, (np.ndarray, list)):
        return _read_array(X, expected, n_expected, ids)
    all_names = column_names(X)
    if len(set(all_names)) < len(all_names):
        twice = next(name for name in all_names if all_names.count(name) > 1)
        raise DataError(f"column names must be distinct, {twice!r} appears {all_names.count(twice)} times")
    if isinstance(X, pd.DataFrame):
        given, size = all_names, len(X)
    else:
        frame = _read_table(X)
        given, size = [str(name) for name in frame.columns], len(frame)
    names = _matched_columns(given, expected, n_expected)
    _check_not_empty(size, len(names))
    native = X
    if given != names:
        places = [given.index(name) for name in names]
        if isinstance(X, pd.DataFrame):
            native = X.iloc[:, places]
        else:
            native = frame.select([frame.columns[place] for place in places]).to_native()
    pandas_frame = _as_pandas(native, names)
    _check_finite(pandas_frame)
    index = X.index if isinstance(X, pd.DataFrame) else None
    if not isinstance(native, pd.DataFrame) and not _is_polars(native):
        native = pandas_frame  # Arrow tables are not model input; pandas is
    return Rows(native, pandas_frame, tuple(names), row_ids(ids, index, len(pandas_frame)))


def _read_table(X: Any) -> nw.DataFrame[Any]:
    try:
        frame = nw.from_native(X, eager_only=True)
        if not isinstance(frame, nw.DataFrame):
            raise TypeError
    except TypeError as error:
        raise DataError(
            f"rows must be a pandas, polars or Arrow table or a 2-d array, got {type(X).__name__}"
        ) from error
    return frame


def column_names(X: Any) -> list[str]:
    """Return the names of a table's columns; an Arrow table keeps them apart from its columns."""
    if isinstance(X, pd.DataFrame):  # whose columns are attributes too, whatever their names
        return [str(name) for name in X.columns]
    return [str(name) for name in getattr(X, "column_names", getattr(X, "columns", []))]


def _is_polars(frame: Any) -> bool:
    return type(frame).__module__.split(".")[0] == "polars"


def _as_pandas(native: Any, names: Sequence[str]) -> pd.DataFrame:
    frame = native if isinstance(native, pd.DataFrame) else nw.from_native(native, eager_only=True).to_pandas()
    for column in native.get_columns() if _is_polars(native) else ():
        if column.dtype.is_integer() and column.null_count():  # whole numbers stay whole where some are missing
            kind = "uint64" if column.dtype.is_unsigned_integer() else "int64"
            values, gaps = column.fill_null(0).to_numpy().astype(kind), column.is_null().to_numpy()
            frame = frame.assign(**{column.name: pd.arrays.IntegerArray(values, gaps)})
    return frame if list(frame.columns) == list(names) else frame.set_axis(list(names), axis=1)


def native_like(frame: pd.DataFrame, rows: Rows) -> Any:
    """Return ``frame`` in the kind of container that ``rows`` came in, with the column types it has there."""
    if isinstance(rows.native, np.ndarray):
        return frame.to_numpy()
    if not _is_polars(rows.native):
        return frame
    import polars

    columns = [polars.from_pandas(frame[name]).alias(name) for name in frame.columns]
    for i, column in enumerate(columns):
        with suppress(polars.exceptions.PolarsError):  # a baseline that an Enum does not list: the model will refuse it
            columns[i] = column.cast(rows.native.schema[column.name])
    return polars.DataFrame(columns)


def _read_array(X: Any, expected: Sequence[str] | None, n_expected: int | None, ids: Any) -> Rows:
    array = X if sp.issparse(X) else np.asarray(X)
    if array.ndim != 2:
        raise DataError(f"rows must form a 2-d array (rows x columns), got {array.ndim} dimension(s)")
    _check_not_empty(*array.shape)
    n_wanted = len(expected) if expected is not None else n_expected
    if n_wanted is not None and array.shape[1] != n_wanted:
        raise DataError(f"the model was fitted on {n_wanted} columns, the array has {array.shape[1]}")
    names = tuple(expected) if expected is not None else tuple(name_places(array.shape[1]))
    if sp.issparse(array):
        if not np.isfinite(array.data).all():
            raise DataError("the sparse matrix holds an infinite or missing value; remove or replace it")
        return Rows(sp.csr_matrix(array), None, names, row_ids(ids, None, array.shape[0]))
    # An array of mixed values has no types; each of its columns may have one.
    frame = pd.DataFrame(array, columns=list(names)).infer_objects()
    _check_finite(frame)
    return Rows(array, frame, names, row_ids(ids, None, len(frame)))


def name_places(width: int) -> list[str]:
    """Return the names of the columns of an array: x0, x1, ..."""
    return [f"x{i}" for i in range(width)]


def _check_not_empty(n: int, d: int) -> None:
    if n == 0 or d == 0:
        raise DataError(f"at least one row and one column are needed, got {n} rows and {d} columns")


def _matched_columns(given: list[str], expected: Sequence[str] | None, n_expected: int | None) -> list[str]:
    if expected is None:
        if n_expected is not None and len(given) != n_expected:
            raise DataError(f"the model was fitted on {n_expected} columns, the table has {len(given)}: {given}")
        return given
    missing = [name for name in expected if name not in given]
    extra = [name for name in given if name not in set(expected)]
    lack = f"the model expects {name_columns(missing)}, which the data lack"
    unknown = f"the data have {name_columns(extra)}, which the model does not know"
    if missing:
        raise DataError(f"{lack}; {unknown}: rename or drop" if extra else lack)
    if extra:
        raise DataError(f"{unknown}; ", DROPPING)
    return list(expected)


def list_names(names: Sequence[str], limit: int = 5) -> str:
    """`'a', 'b' and 3 more`."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def name_columns(names: Sequence[str]) -> str:
    """`column 'a'`; `columns 'a', 'b' and 3 more`."""
    return f"column{'s' if len(names) > 1 else ''} {list_names(names)}"


def _check_finite(frame: pd.DataFrame) -> None:
    decimal = [place for place, dtype in enumerate(frame.dtypes) if pd.api.types.is_float_dtype(dtype)]
    for name, column in ((frame.columns[place], frame.iloc[:, place]) for place in decimal):
        bad = np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if bad.any():
            first = frame.index[int(np.argmax(bad))]
            raise DataError(
                f"column {name!r} holds an infinite value (row {first!r}, {bad.sum()} in all); replace it by a number "
                "or by NaN"
            )


def index_ids(index: pd.Index) -> list[Any]:
    """Return a stored index as ids; the levels of one with several are joined."""
    if isinstance(index, pd.MultiIndex):
        return ["/".join(str(level) for level in key) for key in index]
    return list(index.tolist())


def row_ids(ids: Any, index: pd.Index | None, n: int) -> tuple[Hashable, ...]:
    """Return one distinct id for each of ``n`` rows: the ids given, else the index of their table, else 0, 1, ..."""
    source = ids if ids is not None else index
    if source is None:
        return tuple(range(n))
    if isinstance(source, pd.RangeIndex) and len(source) == n:
        return tuple(source)  # whole numbers, each once
    values = [to_python(value) for value in (index_ids(source) if isinstance(source, pd.Index) else source)]
    if len(values) != n:
        raise DataError(f"one id per row is needed: {n} rows, {len(values)} ids")
    if any(isinstance(value, (np.ndarray, list, dict, set)) for value in values):
        raise DataError("an id must be one number or text per row, got several values for a row")
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        if any(is_missing(value) for value in values):
            raise DataError("an id is missing; every row needs one")
        values = [str(value) for value in values]
    elif any(not -(2**63) <= value < 2**63 for value in values):
        raise DataError(
            "an id is a whole number beyond 64 bits; ", Advice("pass the ids as text", "store them as text")
        )
    _check_texts(values)
    if len(set(values)) != n:
        times = Counter(values)
        twice = next(value for value in values if times[value] > 1)
        raise DataError(
            f"ids must be distinct, {twice!r} appears {times[twice]} times; ",
            Advice("pass ids=, or reset the index", "name a column with distinct ids by --id"),
        )
    return tuple(values)


def _check_texts(ids: Sequence[Hashable]) -> None:
    try:
        "".join(value for value in ids if isinstance(value, str)).encode()
    except UnicodeEncodeError as error:
        raise refuse_surrogate(error) from error


def stacked(X: Any, others: Any) -> Any:
    """Return two sets of rows of one kind, one after the other."""
    if sp.issparse(X):
        return sp.vstack([X, others]).tocsr()
    if isinstance(X, (np.ndarray, list)):
        return np.concatenate([np.asarray(X), np.asarray(others)])
    if isinstance(X, pd.DataFrame):
        return pd.concat([X, others[list(X.columns)]], ignore_index=True)
    both = [nw.from_native(part, eager_only=True) for part in (X, others)]
    return nw.concat([both[0], both[1].select(both[0].columns)]).to_native()


# --- rows of a model ---------------------------------------------------------------------------------------------
#
# MLflow refuses rows whose columns are missing or of another type before the model sees them. The same rows are
# refused here, by name. Two rules are wider than MLflow's: whole numbers may stand where numbers are declared, in any
# width, and categories of texts where texts are.


def read_model_rows(
    model: Model, X: Any, expected: Sequence[str] | None = None, ids: Sequence[Hashable] | None = None
) -> Rows:
    """Return ``X`` as rows in the model's column order; refuse rows that contradict the model's signature.

    expected: names of the columns where the model knows none.
    """
    if model.signature is not None:
        _check_columns(model.signature, X)
    if expected is None:
        expected = model.name_columns(column_names(X))
    rows = read_rows(X, expected, model.n_columns, ids)
    if model.signature is not None and rows.frame is not None:
        _check_types(model.signature, rows.frame)
    return rows


def _check_columns(signature: ModelSignature, X: Any) -> None:
    names, bare = signature.names, sp.issparse(X) or isinstance(X, (np.ndarray, list))
    if bare or names is None:
        width = np.shape(X)[1] if bare and np.ndim(X) == 2 else len(column_names(X)) if not bare else None
        if width is not None and width != len(signature.columns):
            raise DataError(f"{WHOSE} has {len(signature.columns)} columns, the rows have {width}")
        return
    given = column_names(X)
    missing = [name for name in signature.required if name not in given]
    extra = [name for name in given if name not in set(names)]
    if missing:
        more = f"; the data have {name_columns(extra)}, which it does not list: rename or drop" if extra else ""
        raise DataError(f"{WHOSE} requires {name_columns(missing)}, which the data lack{more}")
    if extra:
        raise DataError(f"the data have {name_columns(extra)}, which {WHOSE} does not list; ", DROPPING)


def _check_types(signature: ModelSignature, frame: pd.DataFrame) -> None:
    by_name = {column.name: column for column in signature.columns}
    for i, name in enumerate(frame.columns):
        declared = by_name[name] if signature.names is not None else signature.columns[i]
        came = type_of(frame[name])
        if came == "empty" or came in ACCEPTED.get(declared.type, (came,)):
            continue
        gaps = came == "number" and frame[name].isna().any() and "integer" in ACCEPTED[declared.type]
        remedy = (
            "whole numbers with gaps among them are decimals, which MLflow refuses too: fill the gaps, or log the "
            "model with this column as double"
            if gaps
            else "convert it, or log the model with the signature of such rows"
        )
        raise DataError(
            f"column {name!r} holds {TYPE_WORDS[came]}, and {WHOSE} says {declared.type} ({TYPES[declared.type]}); "
            f"{remedy}"
        )


def conform_rows(rows: Rows, fields: Sequence[Field], *, needs_categories: bool, whole: bool) -> Rows:
    """Return ``rows`` with every field of the type it had in training; refuse a field that cannot have it.

    needs_categories: the model reads categorical columns itself, so a plain column cannot stand in for one.
    whole: fields of whole numbers must hold whole numbers (raw space); else they may hold decimals.
    """
    if rows.frame is None:
        return rows
    changed: dict[str, Any] = {}
    dtypes = dict(zip(rows.frame.columns, rows.frame.dtypes, strict=True))
    for field in fields:
        if has_type(dtypes[field.name], field):
            continue
        column = rows.frame[field.name]
        fitting = conform_column(column, field, needs_categories, whole)
        if fitting is not column:
            changed[field.name] = fitting
    if not changed:
        return rows
    frame = rows.frame.assign(**changed)
    if isinstance(rows.native, np.ndarray):
        return replace(rows, frame=frame, native=frame.to_numpy())
    if isinstance(rows.native, pd.DataFrame):
        return replace(rows, frame=frame, native=frame)
    import polars

    columns = [polars.from_pandas(frame[name]).alias(name) for name in changed]
    return replace(rows, frame=frame, native=rows.native.with_columns(columns))


# --- records -----------------------------------------------------------------------------------------------------
#
# Rows may come as mappings from fields to Python values, as a service receives them. A value becomes what the training
# data held: 3.0 in a field of whole numbers is 3, and None is a missing value. What does not fit is left as it is, and
# refused by name where rows are bound.


def are_records(rows: Any) -> bool:
    """Whether rows came as one mapping, or as a list of mappings."""
    return isinstance(rows, Mapping) or (isinstance(rows, (list, tuple)) and any(isinstance(r, Mapping) for r in rows))


def read_records(
    records: Any, fields: Sequence[Field], listed: Mapping[str, Sequence[Scalar]], *, named: bool
) -> pd.DataFrame | np.ndarray[Any, Any]:
    """Return records as a table with one column per field, of the type that it had in training.

    listed: values by field, which categorical columns know beside their own. named: the model knows its columns by
    name; if it does not, and the fields are named as the columns of an array, they form one.
    """
    rows: Sequence[Any] = [records] if isinstance(records, Mapping) else list(records)
    names = [field.name for field in fields]
    known = set(names)
    rows = [name_by_text(row, place) for place, row in enumerate(rows)]
    for place, row in enumerate(rows):
        if row.keys() != known:
            _refuse_keys(row, names, f"row {place}" if len(rows) > 1 else "the row")
    try:
        columns = {
            field.name: _make_column([row[field.name] for row in rows], field, listed.get(field.name, ()))
            for field in fields
        }
        frame = pd.DataFrame(columns)
    except UnicodeEncodeError as error:
        raise refuse_surrogate(error) from error
    return frame if named or names != name_places(len(names)) else frame.to_numpy()


def name_by_text(row: Any, place: int) -> Mapping[str, Any]:
    """Return a record with its fields named by texts, as a protocol names those of a table with numbered columns."""
    if not isinstance(row, Mapping):
        raise DataError(f"row {place} must be a mapping from fields to values, got {type(row).__name__}")
    return row if all(isinstance(name, str) for name in row) else {str(name): row[name] for name in row}


def _refuse_keys(row: Mapping[Any, Any], names: Sequence[str], which: str) -> None:
    absent = [name for name in names if name not in row]
    unknown = [str(name) for name in row if name not in set(names)]
    if absent:
        plural = "s" if len(absent) > 1 else ""
        rest = f" (it has {list_names(unknown)}, which the protocol does not know)" if unknown else ""
        raise DataError(
            f"{which} lacks the field{plural} {list_names(absent)}{rest}; give every field, and None where its value "
            "is missing"
        )
    raise DataError(
        f"{which} has the field{'s' if len(unknown) > 1 else ''} {list_names(unknown)}, which the protocol does not "
        "know; leave out what is no field of the model"
    )


def _make_column(values: list[Any], field: Field, listed: Sequence[Scalar]) -> Any:
    """Return the values of one field as its training column held them, where they fit."""
    gaps = [is_missing(value) for value in values]
    if field.categorical:
        given = [None if gap else value for value, gap in zip(values, gaps, strict=True)]
        if any(type(value) in (list, dict, set) for value in given):
            return pd.Series(given, dtype=object)  # refused where rows are bound
        known = [int(v) if field.type == "integer" and isinstance(v, float) else v for v in listed]
        return pd.Categorical(given, categories=[v for v in dict.fromkeys([*known, *given]) if v is not None])
    if field.type in ("integer", "number") and all(
        gap or _is_number(value) for value, gap in zip(values, gaps, strict=True)
    ):
        whole = field.type == "integer" and not any(gaps) and all(_is_whole(value) for value in values)
        if whole:
            return np.array([int(value) for value in values], dtype=np.int64)
        return np.array([np.nan if gap else float(value) for value, gap in zip(values, gaps, strict=True)])
    if field.type == "boolean" and not any(gaps) and all(isinstance(value, (bool, np.bool_)) for value in values):
        return np.array(values, dtype=bool)
    if field.dtype is not None and all(gaps):
        return pd.Series(pd.NaT, range(len(values)), field.dtype)
    # NaN, as tables hold it whose other rows have the value: an imputer tells it from None, and a row would be answered
    # in one way alone and in another beside others.
    plain = [np.nan if gap else value for value, gap in zip(values, gaps, strict=True)]
    return pd.Series(plain, dtype=object) if all(gaps) else plain


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a column holds: whole ones beyond 64 bits are refused where rows are bound."""
    if isinstance(value, (int, np.integer)):
        return -(2**63) <= int(value) < 2**63
    return isinstance(value, (float, np.floating))


def _is_whole(value: Any) -> bool:
    """Whether a number is whole; a decimal one beyond 2**53 stays what it is."""
    return isinstance(value, (int, np.integer)) or (float(value).is_integer() and abs(value) <= 2**WHOLE_BITS)


# --- digests -----------------------------------------------------------------------------------------------------


def input_digests(rows: Rows) -> npt.NDArray[np.bytes_]:
    """Return one digest per row over its raw columns, ids aside."""
    return np.array(row_digests(rows.columns()), dtype="S32")


def content_keys(rows: Rows) -> list[bytes]:
    """Return 16 bytes per row: a hash of its raw values alone, by which rows are chosen whatever they are called."""
    return [digest[:CONTENT_BYTES] for digest in row_digests(rows.columns())]


def input_row_digests(rows: Rows) -> list[bytes]:
    """Return one digest per row over its id and raw columns."""
    return row_digests({**rows.columns(), "id\x00": Texts(map(str, rows.ids))})
