"""Fitting: the training rows in the evidence space of a protocol, and the means, spreads and medians of its columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.pipeline import Pipeline

from fragility.base.arrays import Booleans, Floats
from fragility.base.canonical import beyond_doubles
from fragility.base.errors import Advice, DataError, EvidenceError, FragilityWarning
from fragility.evidence.bound import SPACES, InputColumn, Space
from fragility.evidence.codec import answers_alike, dense, transform
from fragility.evidence.fields import DTYPE, Field, Kind, is_categorical, kind_of, type_of
from fragility.evidence.origins import Origin, UntraceableError, claim_origins, list_inputs, trace_origins
from fragility.evidence.rows import Rows, list_names
from fragility.models.adapter import Model
from fragility.models.outputs import lightgbm_header
from fragility.models.wrappers import look_through, members

BASELINE_DIGITS = 12  # significant digits of means and spreads
PROBE_ROWS = 64  # training rows on which a model is asked whether a form of its input changes its answers


@dataclass(frozen=True, eq=False)
class TrainingEvidence:
    """The training rows in the evidence space."""

    space: Space
    columns: list[str]
    origins: list[Origin]
    matrix: Any  # transformed space only
    frame: pd.DataFrame | None  # raw fields
    fields: tuple[Field, ...]
    inputs: tuple[InputColumn, ...] = ()  # what the preprocessing hands on, where that can be traced

    @property
    def kinds(self) -> list[Kind]:
        return ["nominal" if origin.nominal else "numeric" for origin in self.origins]

    @property
    def raw(self) -> pd.DataFrame:
        """The raw training rows as a table, which the raw space always has."""
        assert self.frame is not None
        return self.frame

    def in_raw_fields(self) -> TrainingEvidence:
        """Return the same rows in the raw space."""
        return self if self.space == "raw" else _raw_evidence(self.frame, self.fields, self.inputs)

    @property
    def means(self) -> Floats:
        """(d,) training means of the transformed columns."""
        return self._moments[0]

    @property
    def spreads(self) -> list[float | None]:
        """Training standard deviation of each numeric column that has values."""
        return [
            None if kind == "nominal" or np.isnan(value) else float(value)
            for kind, value in zip(self.kinds, self._moments[1], strict=True)
        ]

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        if self.space == "transformed":
            return column_moments(self.matrix)
        moments = np.full((len(self.columns), 2), np.nan)
        for j, (name, kind) in enumerate(zip(self.columns, self.kinds, strict=True)):
            if kind == "numeric":
                moments[j] = mean_and_spread(self.raw[name].to_numpy(dtype=np.float64, na_value=np.nan))
        return moments[:, 0], moments[:, 1]


def fields_of(rows: Rows, kinds: dict[str, Kind]) -> tuple[Field, ...]:
    """Return the raw fields of training rows; the cells of a sparse matrix are numbers."""
    if rows.frame is None:
        return tuple(Field(name, kinds[name], "number") for name in rows.names)
    fields = []
    for name in rows.names:
        column = rows.frame[name]
        dtype = str(column.dtype) if DTYPE.fullmatch(str(column.dtype)) else None
        fields.append(Field(name, kinds[name], type_of(column), is_categorical(column), dtype))
    return tuple(fields)


def read_training_rows(
    model: Model, rows: Rows, space: Space | None, nominal: Sequence[str], *, one_each: bool = True
) -> TrainingEvidence:
    """Return the training rows in the evidence space; by default the transformed one, where that is possible.

    one_each: groups are made of single fields, so that a column made from several fields has no place among them.
    """
    unknown = [name for name in nominal if name not in rows.names]
    if unknown:
        raise DataError(f"nominal names {unknown[0]!r}, which is not a column of the training data")
    check_readable(model.estimator, rows.names)
    handed = cache(lambda: transform(model, rows))
    traced = cache(lambda: [] if model.transformer is None else trace_origins(model, rows))
    categories = [rows.names[i] for i in category_columns(model.estimator, len(rows.names))]
    if space is None:
        coded = bool(categories) or (bool(nominal) and model.transformer is None)
        space = "transformed" if not coded and _takes_numbers(model, rows, handed) else "raw"
        if space == "transformed" and one_each and rows.frame is not None and (why := _say_mixed(model, traced)):
            warnings.warn(FragilityWarning(*why), stacklevel=3)
            space = "raw"
    if space not in SPACES:
        raise EvidenceError(f"space must be one of {', '.join(SPACES)}, got {space!r}")
    kinds = _field_kinds(model, rows, [*nominal, *categories], traced)
    if space == "raw":
        if rows.frame is not None:
            # Numbers with more digits than a double holds are names of things: nothing lies between two of them.
            kinds |= {name: "nominal" for name in rows.names if beyond_doubles(rows.frame[name]).any()}
        return _raw_evidence(rows.frame, fields_of(rows, kinds), _trace_inputs(model, traced))
    if categories:
        raise EvidenceError(
            f"the estimator treats {categories[0]!r} as a category, whose codes cannot be moved toward a baseline in "
            "the transformed space; use ",
            Advice.argument("space", "raw"),
        )
    matrix = handed()[0]
    inputs: tuple[InputColumn, ...] = ()
    if model.transformer is None:
        names, origins = list(rows.names), [Origin((name,), kinds[name] == "nominal") for name in rows.names]
    else:
        if len(traced()) != matrix.shape[1]:
            raise EvidenceError(
                f"the preprocessing gives {matrix.shape[1]} columns, {len(traced())} were traced; use ",
                Advice.argument("space", "raw"),
            )
        inputs = list_inputs(model, traced())
        names = [column.name for column in inputs]
        # What is made from categories alone encodes a category, whichever library's encoder made it.
        coded_fields = {name for name, kind in kinds.items() if kind == "nominal"}
        origins = [o.as_nominal() if coded_fields.issuperset(o.fields) else o for o in traced()]
    if np.isinf(matrix.data if sp.issparse(matrix) else matrix).any():
        column = next(j for j in range(len(names)) if np.isinf(dense(matrix[:, [j]])).any())
        raise EvidenceError(
            f"the preprocessing makes an infinite value of a training row in column {names[column]!r}, which has no "
            "mean; correct the preprocessing, or use ",
            Advice.argument("space", "raw"),
        )
    return TrainingEvidence("transformed", names, origins, matrix, rows.frame, fields_of(rows, kinds), inputs)


def _say_mixed(model: Model, traced: Callable[[], list[Origin]]) -> tuple[str | Advice | EvidenceError, ...]:
    """Return why columns cannot be assigned to single fields, and what is done instead; nothing if they can."""
    if model.transformer is None:
        return ()
    chosen = "evidence is replaced in the raw fields, before the preprocessing (", Advice.argument("space", "raw"), ")"
    try:
        mixed = [column for column in list_inputs(model, traced()) if len(column.fields) > 1]
    except UntraceableError as error:
        return *chosen, ": ", error
    if not mixed:
        return ()
    shown = f"{mixed[0].name!r} from {list_names(mixed[0].fields)}"
    count = f"{len(mixed)} columns of the estimator's input are" if len(mixed) > 1 else "a column of its input is"
    return *chosen, f", because {count} made from several fields: {shown}"


def _trace_inputs(model: Model, traced: Callable[[], list[Origin]]) -> tuple[InputColumn, ...]:
    """Return what the preprocessing hands on; nothing where it cannot be traced, which the raw space does not need."""
    if model.transformer is None:
        return ()
    with suppress(EvidenceError):
        return list_inputs(model, traced())
    return ()


def _raw_evidence(
    frame: pd.DataFrame | None, fields: tuple[Field, ...], inputs: tuple[InputColumn, ...] = ()
) -> TrainingEvidence:
    if frame is None:
        raise EvidenceError("the raw evidence space needs a table or dense array, got a sparse matrix")
    origins = [Origin((field.name,), field.kind == "nominal") for field in fields]
    return TrainingEvidence("raw", [field.name for field in fields], origins, None, frame, fields, inputs)


def _takes_numbers(model: Model, rows: Rows, handed: Callable[[], tuple[Any, Any, Any]]) -> bool:
    """True if the final estimator is handed a numeric matrix and answers alike when its whole numbers are decimals."""
    by_type = model.transformer is None and rows.frame is not None
    if by_type and not all(kind_of(rows.frame[name]) == "numeric" for name in rows.names):  # type: ignore[index]
        return False
    try:
        matrix, restore, given = handed()
    except EvidenceError:
        return False
    return answers_alike(model, matrix[:PROBE_ROWS], restore, given[:PROBE_ROWS])


def _field_kinds(model: Model, rows: Rows, codes: Sequence[str], traced: Callable[[], list[Origin]]) -> dict[str, Kind]:
    """Return each raw field's kind: by type, by the encoder that takes it, or as declared."""
    if rows.frame is None:
        return dict.fromkeys(rows.names, "numeric")
    kinds = {name: kind_of(rows.frame[name]) for name in rows.names} | dict.fromkeys(codes, "nominal")
    origins: list[Origin] = []
    if model.transformer is not None:
        with suppress(EvidenceError):  # columns that cannot be traced keep the kind their type gives them
            origins = traced()
    # Fields that reach the estimator only through an encoder of categories are nominal.
    categories = {f for origin in origins if origin.nominal and not origin.banded for f in origin.fields}
    quantities = {f for origin in origins if not origin.nominal for f in origin.fields}
    return kinds | dict.fromkeys(categories - quantities, "nominal")


# --- columns that an estimator itself treats as categories --------------------------------------------------------
#
# Boosters may be told that a column of numbers holds codes. Codes are names: there is nothing between 3 and 4, so such
# a column is nominal evidence. Each library is asked what it learned, not what it was told: models come from files.


def category_columns(estimator: Any, n_columns: int) -> list[int]:
    """Return the positions of the input columns that ``estimator``, or an estimator within it, treats as categories."""
    estimator = look_through(estimator)
    if isinstance(estimator, Pipeline):
        if len(estimator.steps) == 1:
            return category_columns(estimator[-1], n_columns)
        try:
            origins = claim_origins(estimator[:-1], [str(i) for i in range(n_columns)])
        except EvidenceError:  # columns that cannot be traced keep the kind their type gives them
            return []
        chosen = category_columns(estimator[-1], len(origins))
        return sorted({int(field) for i in chosen for field in origins[i].fields})
    positions = set(_own_categories(estimator))
    for member, columns in members(estimator):
        handed = range(n_columns) if columns is None else columns
        positions |= {handed[i] for i in category_columns(member, len(handed))}
    return sorted(position for position in positions if position < n_columns)


def check_readable(estimator: Any, names: Sequence[str]) -> None:
    """Refuse an estimator that reads columns as free text or as vectors: they are no single value to replace."""
    head = look_through(estimator)
    if isinstance(head, Pipeline):
        return check_readable(head[-1], names if len(head.steps) == 1 else ())  # others are columns that it makes
    for member, columns in members(head):
        check_readable(member, names if columns is None else [names[i] for i in columns if i < len(names)])
    for ask, words in (("get_text_feature_indices", "free text"), ("get_embedding_feature_indices", "vectors")):
        positions = list(getattr(head, ask, list)())
        if positions:
            name = names[positions[0]] if positions[0] < len(names) else positions[0]
            raise EvidenceError(
                f"{type(head).__name__} reads column {name!r} as {words}, which cannot be replaced by a baseline; "
                "audit a model without such columns, or turn them into numbers in a pipeline before it"
            )


def _own_categories(estimator: Any) -> list[int]:
    library = type(estimator).__module__.split(".")[0]
    if library == "lightgbm":
        # A range ``[low:high]`` for a quantity, the codes ``3:1:2`` for a category.
        infos = lightgbm_header(getattr(estimator, "booster_", estimator), "feature_infos")
        return [i for i, info in enumerate(infos) if info != "none" and not info.startswith("[")]
    if library == "xgboost":
        booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
        return [i for i, kind in enumerate(booster.feature_types or []) if kind == "c"]
    if hasattr(estimator, "get_cat_feature_indices"):  # CatBoost
        return [int(i) for i in estimator.get_cat_feature_indices()]
    mask = getattr(estimator, "is_categorical_", None)  # scikit-learn's histogram boosting
    return [] if mask is None else [int(i) for i in np.flatnonzero(mask)]


# --- means, spreads and medians, the same for every order of the rows ------------------------------------------------
#
# Sums are exact, so no order of adding can change them. A mean is then rounded to ``BASELINE_DIGITS`` digits, counted
# from the larger of its magnitude and the column's spread: what lies below is rounding noise, and a tree that
# splits a standardised column at 0 must not be sent left or right by a mean of 1e-17.


def exact_sum(values: Floats) -> Fraction:
    """Return the sum of finite float64 values without any rounding.

    Each pass takes off the leading bits of all values, cut at one common place so that float64 adds them exactly in
    any order, and leaves the rest for the next pass.
    """
    total, rest = Fraction(0), values
    headroom = math.ceil(math.log2(len(values) + 2))
    while len(rest) and (largest := float(np.abs(rest).max())) > 0.0:
        exponent = math.frexp(largest)[1] + headroom
        if exponent >= 1024:  # too large for the common place; rare enough to add one by one
            return total + sum(map(Fraction, rest.tolist()), Fraction(0))
        place = math.ldexp(1.0, exponent)
        leading = (place + rest) - place
        total += Fraction(float(leading.sum()))
        rest = rest - leading
        rest = rest[rest != 0.0]
    return total


def mean_and_spread(values: Floats, zeros: int = 0) -> tuple[float, float]:
    """Return the mean and the standard deviation of the known values and of ``zeros`` cells that hold 0."""
    known = values[~np.isnan(values)]
    n = len(known) + zeros
    if n == 0:
        return math.nan, math.nan
    mean = float(exact_sum(known) / n)
    apart = known - mean
    widest = max(float(np.abs(apart).max(initial=0.0)), abs(mean) if zeros else 0.0)
    unit = math.ldexp(1.0, min(math.frexp(widest)[1], 1000))  # a power of two: squares neither overflow nor vanish
    squares = exact_sum((apart / unit) ** 2) + zeros * Fraction((mean / unit) ** 2)
    spread = unit * math.sqrt(squares / n)
    return round_digits(mean, spread), round_digits(spread)


def round_digits(value: float, scale: float = 0.0) -> float:
    """Return ``value`` at ``BASELINE_DIGITS`` significant digits of the larger of itself and ``scale``."""
    size = max(abs(value), scale)
    if size == 0.0 or not math.isfinite(size):
        return value
    # Adding 0.0 turns -0.0 into 0.0.
    return round(value, BASELINE_DIGITS - 1 - math.floor(math.log10(size))) + 0.0


def column_moments(matrix: Any) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each column of a dense or CSR matrix; NaN where it has no value."""
    moments = np.array([mean_and_spread(values, zeros) for values, zeros in _columns(matrix)])
    return moments[:, 0], moments[:, 1]


def are_whole(values: Floats) -> bool:
    """True if the known values are whole numbers."""
    known = values[~np.isnan(values)]
    return bool((known == np.rint(known)).all())


def whole_columns(matrix: Any) -> Booleans:
    """Return which columns of a dense or CSR matrix hold whole numbers only."""
    return np.array([are_whole(values) for values, _ in _columns(matrix)], dtype=bool)


def column_medians(matrix: Any) -> Floats:
    if not sp.issparse(matrix):
        with warnings.catch_warnings():
            # A column without any value has no median; NaN is the right answer and numpy's warning is noise.
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(np.nanmedian(np.asarray(matrix, dtype=np.float64), axis=0), dtype=np.float64)
    by_column = matrix.tocsc()
    # Where most cells are 0, so is the one in the middle; wide sparse matrices have hardly any other columns.
    mostly_zero = 2 * np.diff(by_column.indptr) < matrix.shape[0]
    return np.array([0.0 if zero else np.median(by_column[:, [j]].toarray()) for j, zero in enumerate(mostly_zero)])


def _columns(matrix: Any) -> Iterator[tuple[Floats, int]]:
    """Yield each column's stored values in float64, and how many cells beside them hold 0."""
    if sp.issparse(matrix):
        by_column = matrix.tocsc()
        for start, stop in zip(by_column.indptr[:-1], by_column.indptr[1:], strict=True):
            yield by_column.data[start:stop].astype(np.float64), matrix.shape[0] - int(stop - start)
        return
    cells = np.asarray(matrix)  # a table of numbers too
    for j in range(cells.shape[1]):
        yield np.array(cells[:, j], dtype=np.float64), 0
