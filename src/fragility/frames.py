"""Frames: rows as users bring them (pandas, polars, Arrow, arrays), checked and turned into one form.

``read_rows`` gives named columns in the model's order and one id a row. ``RawCodec`` turns raw fields into a float64
matrix and back, so that the engines see one kind of input: a numeric field is its value, a nominal one the index of
its value in a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import narwhals as nw
import numpy as np
import pandas as pd
import scipy.sparse as sp

from fragility.arrays import Floats
from fragility.canonical import is_missing
from fragility.errors import DataError

Kind: TypeAlias = Literal["numeric", "nominal"]
Scalar: TypeAlias = float | int | bool | str | None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in the model's column order: the user's own container, and its columns by name."""

    native: Any  # what the model is given: the user's kind of frame, or an array
    frame: pd.DataFrame | None  # the same as pandas; None for a sparse matrix
    names: tuple[str, ...]
    ids: tuple[Hashable, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def columns(self) -> dict[str, Any]:
        """Return name -> values, for digests."""
        if self.frame is None:
            dense = self.native.tocsc()
            return {name: dense[:, [i]].toarray()[:, 0] for i, name in enumerate(self.names)}
        return {name: self.frame[name] for name in self.names}


def read_rows(X: Any, expected: Sequence[str] | None = None, n_expected: int | None = None, ids: Any = None) -> Rows:
    """Return ``X`` as checked rows.

    expected: the model's column names; the columns of a frame are put in that order, and a missing or
        unknown one is an error. n_expected: their number, where the model knows no names.
    ids: one distinct id a row; by default the index of a pandas frame, else 0, 1, ...
    """
    if sp.issparse(X) or isinstance(X, (np.ndarray, list)):
        return _read_array(X, expected, n_expected, ids)
    _check_distinct_names(X)
    try:
        frame = nw.from_native(X, eager_only=True)
        if not isinstance(frame, nw.DataFrame):
            raise TypeError
    except TypeError as error:
        raise DataError(
            f"rows must be a pandas, polars or Arrow table or a 2-d array, got {type(X).__name__}"
        ) from error
    given = [str(name) for name in frame.columns]
    names = _matched_columns(given, expected, n_expected)
    _check_not_empty(len(frame), len(names))
    native = X if given == names else frame.select([frame.columns[given.index(name)] for name in names]).to_native()
    pandas_frame = _as_pandas(native, names)
    _check_finite(pandas_frame)
    index = X.index if isinstance(X, pd.DataFrame) else None
    if not isinstance(native, pd.DataFrame) and not _is_polars(native):
        native = pandas_frame  # Arrow tables are not model input; pandas is
    return Rows(native, pandas_frame, tuple(names), _row_ids(ids, index, len(pandas_frame)))


def _check_distinct_names(X: Any) -> None:
    # An Arrow table keeps its names apart from its columns.
    given = [str(name) for name in getattr(X, "column_names", getattr(X, "columns", []))]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"column names must be distinct, {twice!r} appears {given.count(twice)} times")


def _is_polars(frame: Any) -> bool:
    return type(frame).__module__.split(".")[0] == "polars"


def _as_pandas(native: Any, names: Sequence[str]) -> pd.DataFrame:
    if isinstance(native, pd.DataFrame):
        frame = native
    else:
        frame = nw.from_native(native, eager_only=True).to_pandas()
    return frame if list(frame.columns) == list(names) else frame.set_axis(list(names), axis=1)


def _read_array(X: Any, expected: Sequence[str] | None, n_expected: int | None, ids: Any) -> Rows:
    array = X if sp.issparse(X) else np.asarray(X)
    if array.ndim != 2:
        raise DataError(f"rows must form a 2-d array (rows x columns), got {array.ndim} dimension(s)")
    _check_not_empty(*array.shape)
    n_wanted = len(expected) if expected is not None else n_expected
    if n_wanted is not None and array.shape[1] != n_wanted:
        raise DataError(f"the model was fitted on {n_wanted} columns, the array has {array.shape[1]}")
    names = tuple(expected) if expected is not None else tuple(f"x{i}" for i in range(array.shape[1]))
    if sp.issparse(array):
        if not np.isfinite(array.data).all():
            raise DataError("the sparse matrix holds an infinite or missing value; remove or replace it")
        return Rows(sp.csr_matrix(array), None, names, _row_ids(ids, None, array.shape[0]))
    # An array of mixed values has no types; each of its columns may have one.
    frame = pd.DataFrame(array, columns=list(names)).infer_objects()
    _check_finite(frame)
    return Rows(array, frame, names, _row_ids(ids, None, len(frame)))


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
    if missing and extra:
        raise DataError(
            f"the model expects {_some('column', missing)}, which the data lack; the data have "
            f"{_some('column', extra)}, which the model does not know: rename or drop"
        )
    if missing:
        raise DataError(f"the model expects {_some('column', missing)}, which the data lack")
    if extra:
        raise DataError(
            f"the data have {_some('column', extra)}, which the model does not know; drop them "
            "(on the command line name the label with --target and the row id with --id)"
        )
    return list(expected)


def _some(noun: str, names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{noun}{'s' if len(names) > 1 else ''} {shown}{more}"


def _check_finite(frame: pd.DataFrame) -> None:
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_float_dtype(column.dtype):
            bad = np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan))
            if bad.any():
                i = int(np.argmax(bad))
                raise DataError(
                    f"column {name!r} holds an infinite value (row {frame.index[i]!r}, {int(bad.sum())} in all); "
                    "replace it by a number or by NaN"
                )


def _row_ids(ids: Any, index: Any, n: int) -> tuple[Hashable, ...]:
    source = ids if ids is not None else index
    if source is None:
        return tuple(range(n))
    if isinstance(source, pd.MultiIndex):
        values: list[Any] = ["/".join(str(part) for part in key) for key in source]
    else:
        values = [value.item() if isinstance(value, np.generic) else value for value in list(source)]
    if len(values) != n:
        raise DataError(f"one id a row is needed: {n} rows, {len(values)} ids")
    if any(isinstance(value, (np.ndarray, list, dict, set)) for value in values):
        raise DataError("an id must be one number or text a row, got several values for a row")
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        if any(is_missing(value) for value in values):
            raise DataError("an id is missing; every row needs one")
        values = [str(value) for value in values]
    elif any(not -(2**63) <= value < 2**63 for value in values):
        raise DataError("an id is a whole number beyond 64 bits; pass the ids as text")
    if len(set(values)) != n:
        seen: set[Any] = set()
        twice = next(value for value in values if value in seen or seen.add(value))  # type: ignore[func-returns-value]
        raise DataError(
            f"ids must be distinct, {twice!r} appears {values.count(twice)} times; pass ids=, or reset the index"
        )
    return tuple(values)


def kind_of(column: pd.Series) -> Kind:
    """Return ``numeric`` for numbers, ``nominal`` for everything else (text, categories, booleans, dates)."""
    dtype = column.dtype
    numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    return "numeric" if numeric else "nominal"


def check_kinds(frame: pd.DataFrame, kinds: Mapping[str, Kind]) -> None:
    """Refuse a field that was numeric in training and holds something else now."""
    for name, kind in kinds.items():
        if kind == "numeric" and kind_of(frame[name]) != "numeric":
            example = next((value for value in frame[name] if not is_missing(value)), None)
            if example is None:
                continue  # a column of missing values only has no type of its own
            raise DataError(
                f"column {name!r} was numeric in the training data, now it has type {frame[name].dtype} "
                f"(for example {example!r}); convert it to numbers"
            )


@dataclass(frozen=True, eq=False)
class RawCodec:
    """Raw fields as a float64 matrix: numbers as they are, nominal values as indices into a table."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    tables: tuple[tuple[Scalar, ...] | None, ...]  # one a column; None for numeric
    dtypes: tuple[Any, ...]
    polars: bool
    as_array: bool

    @classmethod
    def fit(cls, rows: Rows, kinds: Mapping[str, Kind], baseline: Mapping[str, Scalar]) -> RawCodec:
        """Return a codec whose tables hold every nominal value of ``rows`` and of the baseline."""
        assert rows.frame is not None
        tables = tuple(
            _value_table(rows.frame[name], baseline[name]) if kinds[name] == "nominal" else None for name in rows.names
        )
        return cls(
            names=rows.names,
            kinds=tuple(kinds[name] for name in rows.names),
            tables=tables,
            dtypes=tuple(rows.frame[name].dtype for name in rows.names),
            polars=_is_polars(rows.native),
            as_array=isinstance(rows.native, np.ndarray),
        )

    def encode(self, frame: pd.DataFrame) -> Floats:
        matrix = np.empty((len(frame), len(self.names)))
        for j, name in enumerate(self.names):
            table = self.tables[j]
            matrix[:, j] = _number_column(frame[name]) if table is None else _codes(frame[name], table)
        return matrix

    def encode_row(self, values: Mapping[str, Scalar]) -> Floats:
        """Return one row, e.g. the baseline, as a (d,) vector."""
        out = np.empty(len(self.names))
        for j, name in enumerate(self.names):
            table, value = self.tables[j], values[name]
            out[j] = (np.nan if value is None else float(value)) if table is None else _position(table, value)
        return out

    def decode(self, matrix: Floats) -> Any:
        """Return the frame (or array) that a matrix stands for, in the user's kind of container."""
        columns = {name: self._decode_column(j, matrix[:, j]) for j, name in enumerate(self.names)}
        if self.as_array:
            if all(table is None for table in self.tables):
                return matrix
            return np.column_stack([np.asarray(column, dtype=object) for column in columns.values()])
        frame = pd.DataFrame(columns)
        if not self.polars:
            return frame
        import polars

        return polars.from_pandas(frame)

    def _decode_column(self, j: int, codes: Floats) -> Any:
        table, dtype = self.tables[j], self.dtypes[j]
        if table is None:
            return codes
        values = np.empty(len(table), dtype=object)
        values[:] = [np.nan if value is None else value for value in table]
        picked = values[codes.astype(np.int64)]
        if isinstance(dtype, pd.CategoricalDtype):
            known = list(dtype.categories)
            # The baseline's value goes to the end, so that the codes of known categories stay as they are.
            new = [value for value in table if value is not None and value not in known]
            return pd.Categorical(picked, dtype=pd.CategoricalDtype(known + new, dtype.ordered))
        try:
            return pd.Series(picked, dtype=dtype)
        except (ValueError, TypeError):  # e.g. a missing baseline in an integer column
            return pd.Series(picked, dtype=float if pd.api.types.is_numeric_dtype(dtype) else object)


def _number_column(column: pd.Series) -> Floats:
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))


def _value_table(column: pd.Series, baseline: Scalar) -> tuple[Scalar, ...]:
    try:
        distinct = column.unique()
    except TypeError as error:
        raise DataError(f"column {column.name!r} holds values that are neither numbers nor texts: {error}") from error
    values: list[Scalar] = [None if is_missing(v) else _plain(v) for v in distinct]
    values = list(dict.fromkeys(values))
    if not any(_same(baseline, value) for value in values):
        values.append(baseline)
    return tuple(values)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _same(a: Scalar, b: Scalar) -> bool:
    return a is b if a is None or b is None else a == b


def _position(table: tuple[Scalar, ...], value: Scalar) -> int:
    return next(i for i, known in enumerate(table) if _same(known, value))


def _codes(column: pd.Series, table: tuple[Scalar, ...]) -> Floats:
    codes, values = pd.factorize(column, use_na_sentinel=True)
    positions = np.array([_position(table, _plain(value)) for value in values] + [-1], dtype=np.float64)
    if (codes == -1).any():
        positions[-1] = _position(table, None)
    return np.asarray(positions[codes])
