"""Raw-origin tracing: which raw fields does each transformed column come from?

Each fitted scikit-learn step maps the origins of its input columns to the origins of its output columns; the walk
follows the structure of the pipeline and its fitted attributes. Names are consulted last, and only when each output
name leads to one input name without doubt.

Names, and what a transformer of the user's own says of itself, are claims. Where training rows are given, claims are
tried: each input column is given the values of other rows, and an output column that moves with it comes from it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.base import OneToOneFeatureMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

from fragility.canonical import is_missing
from fragility.errors import Advice, EvidenceError, name_error
from fragility.libraries import library_of


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a column comes from: its raw fields, and whether it encodes a category rather than a quantity."""

    fields: tuple[str, ...]
    nominal: bool = False
    banded: bool = False  # the category is one of a quantity: a bin of it, or whether it is missing
    rising: bool = field(default=True, compare=False)  # it never falls while its field rises, by the steps it passed

    def as_nominal(self) -> Origin:
        return replace(self, nominal=True)

    def as_banded(self) -> Origin:
        return replace(self, nominal=True, banded=self.banded or not self.nominal)


Origins = list[Origin]
Sample: TypeAlias = Callable[[], Any] | None  # gives the rows that a step is handed; made only where they are needed
SAMPLE_ROWS = 64
SHIFTS = (1, 7, 29)  # how far down a column's values move; together they bring most pairs of values together
ROWS_AT_A_TIME = 20_000
RISING = (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, QuantileTransformer, PowerTransformer)


def trace_columns(transformer: Any, fields: Sequence[str], rows: Any = None) -> Origins:
    """Return the origin of each output column of a fitted transformer; training ``rows`` serve to try claims."""
    sample = None if rows is None else cache(lambda: _few_rows(rows))
    return _trace(transformer, [Origin((field,)) for field in fields], sample)


def find_categories(transformer: Any, fields: Sequence[str]) -> dict[str, list[Any]]:
    """Return the categories that fitted encoders list for raw fields, as the encoder is handed them."""
    found: dict[str, list[Any]] = {}

    def walk(step: Any, origins: Origins) -> None:
        if isinstance(step, Pipeline):
            for _, inner in step.steps:
                walk(inner, origins)
                origins = _trace(inner, origins, None)
        elif isinstance(step, ColumnTransformer):
            names = [str(name) for name in getattr(step, "feature_names_in_", [])]
            for _, inner, columns in step.transformers_:
                walk(inner, [origins[i] for i in _column_indices(columns, names, len(origins))])
        elif isinstance(step, FeatureUnion):
            for _, inner in step.transformer_list:
                walk(inner, origins)
        elif len(getattr(step, "categories_", ())) == len(origins):
            for origin, values in zip(origins, step.categories_, strict=True):
                for name in origin.fields:
                    found.setdefault(name, [value for value in values if not is_missing(value)])

    walk(transformer, [Origin((field,)) for field in fields])
    return found


def output_names(transformer: Any, n_columns: int) -> list[str]:
    """Return the transformer's output column names, or c0, c1, ... where it has none."""
    try:
        names = [str(name) for name in transformer.get_feature_names_out()]
    except Exception:  # many transformers cannot name their output; the names are labels only
        names = []
    return names if len(names) == n_columns else [f"c{i}" for i in range(n_columns)]


def _trace(step: Any, origins: Origins, sample: Sample) -> Origins:
    if step is None or isinstance(step, str):
        return [] if step == "drop" else list(origins)
    if isinstance(step, Pipeline):
        for _, inner in step.steps:
            if not hasattr(inner, "fit_resample"):  # a sampler works in training only
                origins, sample = _trace(inner, origins, sample), _sample_after(inner, sample)
        return origins
    if isinstance(step, FeatureUnion):
        return [origin for _, inner in step.transformer_list for origin in _trace(inner, origins, sample)]
    if isinstance(step, ColumnTransformer):
        return _trace_column_transformer(step, origins, sample)
    if isinstance(step, FunctionTransformer) and (step.func is None or step.feature_names_out == "one-to-one"):
        traced = list(origins)
    else:
        handler = next((handler for kind, handler in _HANDLERS if isinstance(step, kind)), _trace_by_names)
        traced = handler(step, origins)
    if not _keeps_rising(step):
        traced = [replace(origin, rising=False) for origin in traced]
    users_own = step.func is not None if isinstance(step, FunctionTransformer) else library_of(step) != "sklearn"
    return _try_claims(step, origins, traced, sample) if users_own and sample is not None else traced


def _sample_after(step: Any, sample: Sample) -> Sample:
    """Return the sample as the step after this one gets it."""
    if sample is None or step is None or isinstance(step, str):
        return sample
    return cache(lambda: step.transform(sample()))


def _trace_column_transformer(step: ColumnTransformer, origins: Origins, sample: Sample) -> Origins:
    names = [str(name) for name in getattr(step, "feature_names_in_", [])]
    parts: list[tuple[int, Origins]] = []
    for name, inner, columns in step.transformers_:
        places = _column_indices(columns, names, len(origins))
        place = step.output_indices_[name]
        if place.stop == place.start:
            continue
        part = None if sample is None else cache(partial(_sample_columns, sample, places))
        traced = _trace(inner, [origins[i] for i in places], part)
        if len(traced) != place.stop - place.start:
            raise EvidenceError(
                f"transformer {name!r} ({type(inner).__name__}) gives {place.stop - place.start} columns, but "
                f"{len(traced)} could be traced to raw fields; declare a group map over its output columns"
            )
        parts.append((place.start, traced))
    return [origin for _, traced in sorted(parts, key=lambda part: part[0]) for origin in traced]


def _column_indices(columns: Any, names: list[str], n: int) -> list[int]:
    """Return positions for any column selection that ColumnTransformer accepts."""
    if isinstance(columns, slice):
        if isinstance(columns.start, str) or isinstance(columns.stop, str):
            start = 0 if columns.start is None else names.index(columns.start)
            stop = n if columns.stop is None else names.index(columns.stop) + 1  # label slices include their end
            return list(range(start, stop))
        return list(range(n))[columns]
    selected = [columns] if isinstance(columns, (str, int, np.integer)) else list(columns)
    if selected and isinstance(selected[0], (bool, np.bool_)):
        return [i for i, chosen in enumerate(selected) if chosen]
    return [names.index(c) if isinstance(c, str) else int(c) % n for c in selected]


def _trace_one_hot(step: OneHotEncoder, origins: Origins) -> Origins:
    infrequent = getattr(step, "infrequent_categories_", None) or [None] * len(origins)
    dropped = step.drop_idx_ if step.drop_idx_ is not None else [None] * len(origins)
    out: Origins = []
    for origin, categories, rare, drop in zip(origins, step.categories_, infrequent, dropped, strict=True):
        width = len(categories) - (len(rare) - 1 if rare is not None else 0) - (drop is not None)
        out += [origin.as_nominal()] * width
    return out


def _trace_target_encoder(step: TargetEncoder, origins: Origins) -> Origins:
    width = len(step.classes_) if getattr(step, "target_type_", "") == "multiclass" else 1
    return [origin.as_nominal() for origin in origins for _ in range(width)]


def _trace_imputer(step: SimpleImputer, origins: Origins) -> Origins:
    # A column without any training value has no statistic and is dropped, unless the imputer was told to keep it.
    empty = np.array([value is None or value != value for value in step.statistics_])
    dropped = empty & (not step.keep_empty_features)
    out = [origin for origin, gone in zip(origins, dropped, strict=True) if not gone]
    indicator = getattr(step, "indicator_", None)
    return out if indicator is None else out + _trace_indicator(indicator, origins)


def _trace_indicator(step: MissingIndicator, origins: Origins) -> Origins:
    return [origins[i].as_banded() for i in step.features_]


def _trace_bins(step: KBinsDiscretizer, origins: Origins) -> Origins:
    widths = [1] * len(origins) if step.encode == "ordinal" else [int(n) for n in step.n_bins_]
    return [origin.as_banded() for origin, width in zip(origins, widths, strict=True) for _ in range(width)]


def _trace_polynomial(step: PolynomialFeatures, origins: Origins) -> Origins:
    used = [[origins[i] for i in np.flatnonzero(powers)] for powers in step.powers_]
    # The bias column is constant, so no removal moves it: it may lie with any field.
    return [_merge(some) if some else origins[0] for some in used]


def _merge(origins: Origins) -> Origin:
    fields = tuple(dict.fromkeys(field for origin in origins for field in origin.fields))
    nominal, banded = all(origin.nominal for origin in origins), any(origin.banded for origin in origins)
    return Origin(fields, nominal, banded, len(origins) == 1 and origins[0].rising)


def _keeps_rising(step: Any) -> bool:
    """True if a step is known, by what it is, to make columns that never fall while a known value rises."""
    if type(step) is FunctionTransformer:
        return step.func is None
    if type(step) is SimpleImputer or type(step) is MissingIndicator:
        return is_missing(step.missing_values)
    if type(step) is KBinsDiscretizer:
        return bool(step.encode == "ordinal")
    return type(step) in RISING or (isinstance(step, SelectorMixin) and library_of(step) == "sklearn")


def _trace_by_names(step: Any, origins: Origins) -> Origins:
    """Trace through output names; a column that no single input name explains comes from all of them."""
    own = getattr(step, "feature_names_in_", None)
    inputs = [str(name) for name in own] if own is not None else [f"x{i}" for i in range(len(origins))]
    try:
        outputs = [str(name) for name in step.get_feature_names_out()]
    except Exception as error:
        raise EvidenceError(
            f"{type(step).__name__} does not name its output columns, so they cannot be traced to the fields "
            f"{', '.join(_merge(origins).fields)}; give it get_feature_names_out (FunctionTransformer: "
            "feature_names_out='one-to-one') or use ",
            Advice.argument("space", "raw"),
        ) from error
    encoded: Sequence[Any] = ()  # inputs that an encoder of another library treats as categories, numbers among them
    if type(step).__module__.startswith("category_encoders."):
        encoded = getattr(step, "cols", None) or ()
    elif type(step).__module__.startswith("feature_engine.encoding"):
        encoded = getattr(step, "variables_", ())
    codes = {str(name) for name in encoded}
    known = [o.as_nominal() if name in codes else o for name, o in zip(inputs, origins, strict=True)]
    return [_origin_of_name(name, inputs, known) for name in outputs]


def _origin_of_name(name: str, inputs: list[str], origins: Origins) -> Origin:
    if name in inputs:
        return origins[inputs.index(name)]
    unavailable = name.removeprefix("missingindicator_")  # as scikit-learn's imputers name their indicators
    if unavailable in inputs:
        return origins[inputs.index(unavailable)].as_banded()
    named = _inputs_in(name, inputs)
    if len(named) == 1 and name.startswith(f"{inputs[named[0]]}_"):
        return origins[named[0]]
    return _merge([origins[i] for i in named] if len(named) > 1 else origins)


def _inputs_in(name: str, inputs: list[str]) -> list[int]:
    """Return the inputs whose names occur in ``name`` as whole words, except within a longer one that does."""
    found: list[int] = []
    rest = name
    for i in sorted(range(len(inputs)), key=lambda i: -len(inputs[i])):
        word = rf"(?<![^\W_]){re.escape(inputs[i])}(?![^\W_])"
        if re.search(word, rest):
            found.append(i)
            rest = re.sub(word, " ", rest)
    return sorted(found)


# --- trying claims on training rows ---------------------------------------------------------------------------------


def _few_rows(rows: Any) -> Any:
    """Return a few rows, the same ones whatever the order of the table."""
    try:
        if not isinstance(rows, pd.DataFrame) and hasattr(rows, "hash_rows"):  # polars
            hashes = rows.hash_rows().to_numpy()
        else:
            frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(np.asarray(rows))
            hashes = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    except (TypeError, ValueError):  # sparse rows, or cells that have no hash
        hashes = np.arange(rows.shape[0])
    chosen = np.argsort(hashes, kind="stable")[:SAMPLE_ROWS]
    return rows.iloc[chosen] if isinstance(rows, pd.DataFrame) else rows[chosen]


def _sample_columns(sample: Callable[[], Any], places: list[int]) -> Any:
    rows = sample()
    return rows.iloc[:, places] if isinstance(rows, pd.DataFrame) else rows[:, places]


def _try_claims(step: Any, origins: Origins, traced: Origins, sample: Callable[[], Any]) -> Origins:
    """Return the traced origins, each with those of the further inputs that its column moves with."""
    every = set(_merge(origins).fields)
    if all(set(origin.fields) == every for origin in traced):
        return traced
    rows = sample()
    if len(getattr(rows, "shape", ())) != 2 or rows.shape[1] != len(origins) or rows.shape[0] < 2:
        return traced
    width = max(1, ROWS_AT_A_TIME // (rows.shape[0] * len(SHIFTS)))
    found = list(traced)
    for start in range(0, len(origins), width):
        columns = list(range(start, min(start + width, len(origins))))
        for j, moved in zip(columns, _find_moved(step, rows, columns), strict=True):
            for i in moved:
                if i < len(found) and not set(origins[j].fields) <= set(found[i].fields):
                    found[i] = _merge([found[i], origins[j]])
    return found


def _find_moved(step: Any, rows: Any, columns: list[int]) -> list[list[int]]:
    """Return for each input column the output columns that move when it is given the values of other rows."""
    n, d = rows.shape
    blocks = [(None, 0), (None, 0), *((j, shift) for j in columns for shift in SHIFTS)]
    takes = np.tile(np.arange(n)[:, None], (len(blocks), d))
    for b, (j, shift) in enumerate(blocks):
        if j is not None:
            takes[b * n : (b + 1) * n, j] = np.roll(np.arange(n), shift)
    try:
        made = step.transform(_recombine(rows, takes))
    except Exception as error:
        raise EvidenceError(
            f"{type(step).__name__} fails on training rows in which one field has another row's value "
            f"({name_error(error)}), so its columns cannot be traced to raw fields; use ",
            Advice.argument("space", "raw"),
        ) from error
    cells = np.asarray(made.toarray() if sp.issparse(made) else made)
    if cells.dtype != object and cells.dtype.kind not in "SU":
        cells = cells.astype(np.float64)
    out = cells.reshape(len(blocks), n, -1)
    if _differs(out[1], out[0]).any():
        raise EvidenceError(
            f"{type(step).__name__} gives different columns for the same row twice in a table, so it is random or "
            "depends on the other rows; a certificate needs preprocessing that treats each row by itself"
        )
    changes = _differs(out[2:], out[0]).any(axis=1).reshape(len(columns), len(SHIFTS), -1).any(axis=1)
    return [np.flatnonzero(row).tolist() for row in changes]


def _recombine(rows: Any, takes: Any) -> Any:
    """Return a table of the same kind whose cell (i, j) is that of row takes[i, j]."""
    if isinstance(rows, pd.DataFrame):
        columns = [rows.iloc[:, j].take(takes[:, j]).reset_index(drop=True) for j in range(rows.shape[1])]
        return pd.concat(columns, axis=1).set_axis(rows.columns, axis=1)
    if hasattr(rows, "hash_rows"):  # polars
        return rows.select([rows.to_series(j).gather(takes[:, j]) for j in range(rows.shape[1])])
    if sp.issparse(rows):
        return sp.csr_matrix(np.take_along_axis(rows.toarray(), takes, axis=0))
    return np.take_along_axis(np.asarray(rows), takes, axis=0)


def _differs(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":  # a matrix product rounds by the shape of its batch
        return ~np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
    return np.asarray(a != b, dtype=bool) & ~(pd.isna(a) & pd.isna(b))


_HANDLERS: list[tuple[type, Callable[[Any, Origins], Origins]]] = [
    (OneHotEncoder, _trace_one_hot),
    (TargetEncoder, _trace_target_encoder),
    (OrdinalEncoder, lambda step, origins: [origin.as_nominal() for origin in origins]),
    (SimpleImputer, _trace_imputer),
    (MissingIndicator, _trace_indicator),
    (KBinsDiscretizer, _trace_bins),
    (PolynomialFeatures, _trace_polynomial),
    (SelectorMixin, lambda step, origins: [origins[i] for i in step.get_support(indices=True)]),
    (FunctionTransformer, _trace_by_names),
    (Normalizer, lambda step, origins: [_merge(origins)] * len(origins)),  # each output depends on the whole row
    (OneToOneFeatureMixin, lambda step, origins: list(origins)),
]
