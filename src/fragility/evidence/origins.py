"""Origins: which raw fields does each column of a model's input come from?

What the structure and the names of a preprocessing say is a claim. Each fitted scikit-learn step maps the origins of
its input columns to the origins of its output columns; the walk follows the structure of the pipeline and its fitted
attributes. Names are consulted last, and only when each output name leads to one input name without doubt.

The claim is then put to the whole preprocessing, on a few raw rows: some fields are given the values of other rows, and
a column that moves with them comes from one of them too. A step may mix fields only where one of them is missing, as an
imputer does that guesses from the other columns, so some rows have missing cells, if need be ones that were emptied for
the purpose. Most columns are said to come from one field. Fields are then moved many at a time, so that each pair of
them is told apart by one set that moves one and leaves the other; what contradicts a claim is tried field by field.

A protocol stores the origins found on its training rows; rows bound to it are compared with what it says.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
from sklearn.base import OneToOneFeatureMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.impute._base import _BaseImputer
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

from fragility.base.arrays import Booleans, Integers
from fragility.base.canonical import is_missing
from fragility.base.errors import Advice, EvidenceError, ProtocolError, name_error
from fragility.base.libraries import library_of
from fragility.evidence.bound import EvidenceSpace, InputColumn
from fragility.evidence.rows import Rows, list_names, native_like
from fragility.models.adapter import Model

SAMPLE_ROWS = 64  # of which half have a missing cell, where there are such rows
CHECKED_ROWS = 24  # where a protocol is compared with what its columns do
SHIFTS = (1, 7, 29)  # how far down a field's values move; together they bring most pairs of values together
ROWS_AT_A_TIME = 20_000
FEW_FIELDS = 6  # so many are moved one by one
MANY_FIELDS = 64  # so many are moved by one shift only where they are moved one by one
CLOSE, CLOSE_SINGLE = 1e-9, 1e-5  # relative: a matrix product rounds by the shape of its batch


class UntraceableError(EvidenceError):
    """Columns cannot be traced to the raw fields that they are made from; the raw space does not need it."""


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
RISING = (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, QuantileTransformer, PowerTransformer)


def claim_origins(transformer: Any, fields: Sequence[str]) -> Origins:
    """Return the origin of each output column of a fitted transformer, as far as its structure and names tell."""
    return _claim(transformer, [Origin((field,)) for field in fields])


def find_categories(transformer: Any, fields: Sequence[str]) -> dict[str, list[Any]]:
    """Return the categories that fitted encoders list for raw fields, as the encoder is handed them."""
    categories: dict[str, list[Any]] = {}

    def walk(step: Any, origins: Origins) -> None:
        if isinstance(step, Pipeline):
            for _, inner in step.steps:
                walk(inner, origins)
                origins = _claim(inner, origins)
        elif isinstance(step, ColumnTransformer):
            names = [str(name) for name in getattr(step, "feature_names_in_", [])]
            for _, inner, columns in step.transformers_:
                walk(inner, [origins[i] for i in _column_indices(columns, names, len(origins))])
        elif isinstance(step, FeatureUnion):
            for _, inner in step.transformer_list:
                walk(inner, origins)
        elif origins and len(getattr(step, "categories_", ())) == len(origins):
            for origin, values in zip(origins, step.categories_, strict=True):
                for name in origin.fields:
                    categories.setdefault(name, [value for value in values if not is_missing(value)])

    walk(transformer, [Origin((field,)) for field in fields])
    return categories


def output_names(transformer: Any, n_columns: int) -> list[str]:
    """Return the transformer's output column names, or c0, c1, ... where it has none that tell columns apart."""
    try:
        names = [str(name) for name in transformer.get_feature_names_out()]
    except Exception:  # many transformers cannot name their output; the names are labels only
        names = []
    return names if len(names) == n_columns == len(set(names)) else [f"c{i}" for i in range(n_columns)]


def _claim(step: Any, origins: Origins) -> Origins:
    if step is None or isinstance(step, str):
        return [] if step == "drop" else list(origins)
    if isinstance(step, Pipeline):
        for _, inner in step.steps:
            if not hasattr(inner, "fit_resample"):  # a sampler works in training only
                origins = _claim(inner, origins)
        return origins
    if isinstance(step, FeatureUnion):
        return [origin for _, inner in step.transformer_list for origin in _claim(inner, origins)]
    if isinstance(step, ColumnTransformer):
        return _claim_column_transformer(step, origins)
    if isinstance(step, FunctionTransformer) and (step.func is None or step.feature_names_out == "one-to-one"):
        claimed = list(origins)
    else:
        handler = next((handler for kind, handler in _HANDLERS if isinstance(step, kind)), _trace_by_names)
        claimed = handler(step, origins)
    return claimed if _keeps_rising(step) else [replace(origin, rising=False) for origin in claimed]


def _claim_column_transformer(step: ColumnTransformer, origins: Origins) -> Origins:
    names = [str(name) for name in getattr(step, "feature_names_in_", [])]
    parts: list[tuple[int, Origins]] = []
    for name, inner, columns in step.transformers_:
        place = step.output_indices_[name]
        if place.stop == place.start:
            continue
        claimed = _claim(inner, [origins[i] for i in _column_indices(columns, names, len(origins))])
        if len(claimed) != place.stop - place.start:
            raise UntraceableError(
                f"transformer {name!r} ({type(inner).__name__}) gives {place.stop - place.start} columns, but "
                f"{len(claimed)} could be traced to raw fields; declare a group map over its output columns"
            )
        parts.append((place.start, claimed))
    return [origin for _, claimed in sorted(parts, key=lambda part: part[0]) for origin in claimed]


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


def _trace_guesses(step: Any, origins: Origins) -> Origins:
    """Trace an imputer that guesses a missing value from the other columns: each column may come from all of them."""
    indicator = getattr(step, "indicator_", None)
    flags = [] if indicator is None else _trace_indicator(indicator, origins)
    n_filled = len(step.get_feature_names_out()) - len(flags)
    return [_merge(origins)] * n_filled + flags


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
    fields = tuple(dict.fromkeys(name for origin in origins for name in origin.fields))
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
    handed = getattr(step, "feature_names_in_", None)
    inputs = [str(name) for name in handed] if handed is not None else [f"x{i}" for i in range(len(origins))]
    try:
        outputs = [str(name) for name in step.get_feature_names_out()]
    except Exception as error:
        raise UntraceableError(
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
    places: list[int] = []
    rest = name
    for i in sorted(range(len(inputs)), key=lambda i: -len(inputs[i])):
        word = rf"(?<![^\W_]){re.escape(inputs[i])}(?![^\W_])"
        if re.search(word, rest):
            places.append(i)
            rest = re.sub(word, " ", rest)
    return sorted(places)


_HANDLERS: list[tuple[type, Callable[[Any, Origins], Origins]]] = [
    (OneHotEncoder, _trace_one_hot),
    (TargetEncoder, _trace_target_encoder),
    (OrdinalEncoder, lambda step, origins: [origin.as_nominal() for origin in origins]),
    (SimpleImputer, _trace_imputer),
    (_BaseImputer, _trace_guesses),  # KNNImputer and IterativeImputer
    (MissingIndicator, _trace_indicator),
    (KBinsDiscretizer, _trace_bins),
    (PolynomialFeatures, _trace_polynomial),
    (SelectorMixin, lambda step, origins: [origins[i] for i in step.get_support(indices=True)]),
    (FunctionTransformer, _trace_by_names),
    (Normalizer, lambda step, origins: [_merge(origins)] * len(origins)),  # each output depends on the whole row
    (OneToOneFeatureMixin, lambda step, origins: list(origins)),
]


# --- claimed and tried ----------------------------------------------------------------------------------------------


def trace_origins(model: Model, rows: Rows) -> Origins:
    """Return the origin of each column that the preprocessing hands on: as claimed, and as tried on training rows."""
    claimed = claim_origins(model.transformer, rows.names)
    found = Trial.of(model, rows).find_fields([origin.fields for origin in claimed])
    if found is None:
        found = [origin.fields for origin in claimed]
    if len(found) != len(claimed):
        raise UntraceableError(
            f"the preprocessing gives {len(found)} columns, {len(claimed)} could be traced to raw fields"
        )
    place = {name: j for j, name in enumerate(rows.names)}
    found = [tuple(sorted(fields, key=place.__getitem__)) for fields in found]
    return [
        replace(origin, fields=fields) if len(fields) == len(origin.fields) else Origin(fields, rising=False)
        for origin, fields in zip(claimed, found, strict=True)
    ]


def list_inputs(model: Model, origins: Origins) -> tuple[InputColumn, ...]:
    """Return the columns that the preprocessing hands on, with the raw fields that each is made from."""
    names = output_names(model.transformer, len(origins))
    return tuple(InputColumn(name, origin.fields) for name, origin in zip(names, origins, strict=True))


def known_origins(model: Model, space: EvidenceSpace) -> Origins:
    """Return the origins of the preprocessing's columns that a protocol stores, with what its steps say beside.

    A column is known to rise with its field only where its steps make it from that field alone.
    """
    stored = [Origin(column.fields, rising=False) for column in space.inputs]
    names = [origin.name for origin in space.fields]
    try:
        claimed = claim_origins(model.transformer, list(model.name_columns(names) or names))
    except UntraceableError:
        return stored
    if len(claimed) != len(stored):
        return stored
    return [
        replace(claim, fields=origin.fields) if set(origin.fields) == set(claim.fields) else origin
        for origin, claim in zip(stored, claimed, strict=True)
    ]


def check_origins(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Refuse a protocol whose columns come from other fields than it says, by their steps or by what they do here."""
    check_claims(model, rows, space)
    check_moves(model, rows, space)


def check_claims(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Refuse a protocol whose columns come from other fields than it says, by the structure of the preprocessing."""
    claimed = claim_origins(model.transformer, rows.names)
    if len(claimed) != len(space.inputs):
        raise ProtocolError(
            f"the protocol names {len(space.inputs)} columns of the estimator's input, the preprocessing makes "
            f"{len(claimed)}; fit a protocol for this model"
        )
    _compare(space, [origin.fields for origin in claimed], rows.names, "is made from")


def check_moves(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Refuse a protocol whose columns move with other fields than it says, on a few of these rows."""
    moved = Trial.of(model, rows, CHECKED_ROWS, SHIFTS[:2]).find_fields([column.fields for column in space.inputs])
    if moved is not None:
        _compare(space, moved, rows.names, "changes with")


def _compare(space: EvidenceSpace, fields_of: Sequence[tuple[str, ...]], names: Sequence[str], does: str) -> None:
    for column, fields in zip(space.inputs, fields_of, strict=True):
        if others := [name for name in names if name in set(fields) - set(column.fields)]:
            raise ProtocolError(
                f"the protocol says that column {column.name!r} is made from {list_names(column.fields)}, but it "
                f"{does} {list_names(others)}; fit a protocol for this model"
            )


# --- trying ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trial:
    """A preprocessing, and the few rows on which it is tried."""

    model: Model
    rows: Rows  # a few
    shifts: Sequence[int]

    @classmethod
    def of(cls, model: Model, rows: Rows, n_rows: int = SAMPLE_ROWS, shifts: Sequence[int] = SHIFTS) -> Trial:
        """Choose the rows, the same ones whatever the order of the table."""
        return cls(model, choose_rows(rows, n_rows), shifts)

    def find_fields(self, said: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]] | None:
        """Return the fields of each column: those it is said to come from, and those it moves with.

        None where nothing can be tried: there is one row only.
        """
        names = self.rows.names
        if len(self.rows) < 2 or all(set(own) == set(names) for own in said):
            return None
        place = {name: j for j, name in enumerate(names)}
        fields = np.zeros((len(said), len(names)), dtype=bool)
        for c, own in enumerate(said):
            fields[c, [place[name] for name in own if name in place]] = True
        whole, several = fields.all(axis=1), fields.sum(axis=1) > 1
        sets, sample = list_sets(len(names)), self._empty_cells(range(len(names)))
        try:
            moved = self._find_moved(sample, sets, self.shifts)
        except UntraceableError:
            sample = self._choose_emptied()
            moved = self._find_moved(sample, sets, self.shifts)
        if moved.shape[1] != len(said):
            return [()] * moved.shape[1]
        if len(names) > FEW_FIELDS:
            wrong = (moved.T & ~np.array([[(own & some).any() for some in sets] for own in fields])).any(axis=1)
            if not (wrong | (several & ~whole)).any():
                return list(said)
            shifts = self.shifts[:1] if len(names) > MANY_FIELDS else self.shifts
            moved = self._find_moved(sample, list(np.eye(len(names), dtype=bool)), shifts)
            if (wrong & ~(moved.T & ~fields).any(axis=1)).any():
                raise UntraceableError(
                    "the preprocessing makes a column that moves with several fields together and with none of them "
                    "alone, so it cannot be traced to raw fields"
                )
        fields |= moved.T
        return [tuple(name for name, own in zip(names, row, strict=True) if own) for row in fields]

    def _choose_emptied(self) -> Sample:
        """Return the rows with copies in which cells are emptied, of fields whose missing values are accepted."""
        every = range(len(self.rows.names))
        sample = self._empty_cells([j for j in every if self._accepts(self._empty_cells([j]))])
        return sample if self._accepts(sample) else self._empty_cells([])

    def _empty_cells(self, places: Sequence[int]) -> Sample:
        """Return the rows with copies in which each of some fields is missing once."""
        width = len(self.rows.names)
        count = 0 if self.rows.frame is None else min(len(places), max(len(self.rows) // 2, 1))
        emptied = np.zeros((count, width), dtype=bool)
        if count:
            emptied[np.arange(len(places)) % count, list(places)] = True
        return Sample(self.rows, np.arange(count) % len(self.rows), emptied)

    def _accepts(self, sample: Sample) -> bool:
        if not len(sample.copied):
            return True
        try:
            self._make(sample.table([np.arange(len(sample))[:, None]]))
        except Exception:  # an encoder that knows no missing value, for one: such rows are never answered
            return False
        return True

    def _make(self, native: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a step says of values that nobody has asked about
            made = self.model.preprocess(native)
        cells = np.asarray(made.toarray() if sp.issparse(made) else made)
        return cells if cells.dtype == object or cells.dtype.kind in "SUMmf" else cells.astype(np.float64)

    def _find_moved(self, sample: Sample, sets: Sequence[Booleans], shifts: Sequence[int]) -> Booleans:
        """Return (sets, columns) which columns move when the fields of a set take the values of other rows."""
        n = len(sample)
        moves = [(s, shift) for s in range(len(sets)) for shift in shifts if shift % n]
        width = max(1, ROWS_AT_A_TIME // n - 2)
        found: dict[int, Booleans] = {}
        for start in range(0, len(moves), width):
            some = moves[start : start + width]
            own = np.arange(n)[:, None]
            takes = [own, own, *(np.where(sets[s], np.roll(own, shift, axis=0), own) for s, shift in some)]
            out = self._transform(sample, takes)
            for b, (s, _) in enumerate(some, start=2):
                changed = differs(out[b], out[0]).any(axis=0)
                found[s] = found[s] | changed if s in found else changed
        return np.array([found[s] for s in range(len(sets))])

    def _transform(self, sample: Sample, takes: Sequence[Integers]) -> Any:
        """Return (blocks, n, columns) what is made of rearranged copies of the sample, the first two as they are."""
        name = " -> ".join(type(step).__name__ for _, step in getattr(self.model.transformer, "steps", ()))
        try:
            out = self._make(sample.table(takes)).reshape(len(takes), len(sample), -1)
        except Exception as error:
            raise UntraceableError(
                f"the preprocessing ({name}) fails on rows in which some fields have another row's value "
                f"({name_error(error)}), so its columns cannot be traced to raw fields"
            ) from error
        if differs(out[1], out[0]).any():
            raise EvidenceError(
                f"the preprocessing ({name}) gives different columns for the same row twice in a table, so it is "
                "random or depends on the other rows; a certificate needs preprocessing that treats each row by itself"
            )
        return out


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows, and behind them copies of some in which cells are emptied."""

    rows: Rows
    copied: Integers  # (m,) the rows copied
    emptied: Booleans  # (m, d)

    def __len__(self) -> int:
        return len(self.rows) + len(self.copied)

    def table(self, takes: Sequence[npt.NDArray[np.int64]]) -> Any:
        """Return rows in the user's kind of container: cell (i, j) of each block is that of row takes[i, j]."""
        places = np.concatenate([np.broadcast_to(some, (len(self), len(self.rows.names))) for some in takes])
        if self.rows.frame is None:
            return sp.csr_matrix(np.take_along_axis(self.rows.native.toarray(), places, axis=0))
        source = np.concatenate([np.arange(len(self.rows)), self.copied])
        columns = {}
        for j, name in enumerate(self.rows.names):
            column = self.rows.frame[name].iloc[source].reset_index(drop=True)
            gone = np.concatenate([np.zeros(len(self.rows), dtype=bool), self.emptied[:, j]])
            if gone.any():
                column = column.mask(gone)
            columns[name] = column.iloc[places[:, j]].reset_index(drop=True)
        return native_like(pd.DataFrame(columns), self.rows)


def choose_rows(rows: Rows, count: int = SAMPLE_ROWS) -> Rows:
    """Return a few rows, the same whatever the order of the table; half have missing cells where there are such."""
    try:
        frame = rows.frame
        hashes = None if frame is None else pd.util.hash_pandas_object(frame, index=False).to_numpy()
    except (TypeError, ValueError):  # cells that have no hash
        hashes = None
    if hashes is None:
        return rows.head(count)
    assert frame is not None
    order = np.argsort(hashes, kind="stable")
    gappy = frame.isna().any(axis=1).to_numpy(dtype=bool)[order]
    chosen = order[gappy][: count // 2]
    chosen = np.concatenate([chosen, order[~gappy][: count - len(chosen)]])
    chosen = np.concatenate([chosen, order[gappy][count // 2 :][: count - len(chosen)]])
    return rows.take(chosen.tolist())


def list_sets(n_fields: int) -> list[Booleans]:
    """Return sets of fields such that for any two fields one holds the first and not the second."""
    if n_fields <= FEW_FIELDS:
        return list(np.eye(n_fields, dtype=bool))
    return list(_halves(n_fields))


def _halves(n_fields: int) -> Iterator[Booleans]:
    for bit in range((n_fields - 1).bit_length()):
        held = (np.arange(n_fields) >> bit & 1).astype(bool)
        yield held
        yield ~held


def differs(a: Any, b: Any) -> Any:
    """Return where two arrays hold different values, rounding aside."""
    if a.dtype.kind == "f":
        close = CLOSE_SINGLE if a.dtype.itemsize < np.dtype(np.float64).itemsize else CLOSE
        return ~np.isclose(a, b, rtol=close, atol=1e-12, equal_nan=True)
    return np.asarray(a != b, dtype=bool) & ~(pd.isna(a) & pd.isna(b))
