"""Raw-origin tracing: which raw fields does each transformed column come from?

Each fitted scikit-learn step maps the origins of its input columns to the origins of its output columns; the walk
follows the structure of the pipeline and its fitted attributes. Names are consulted last, and only when each output
name leads to one input name without doubt.

All of this is a claim, made without a row: `fragility.evidence.origins` tries it on rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
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

from fragility.canonical import is_missing
from fragility.errors import Advice, EvidenceError
from fragility.libraries import library_of


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
    found: dict[str, list[Any]] = {}

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
                    found.setdefault(name, [value for value in values if not is_missing(value)])

    walk(transformer, [Origin((field,)) for field in fields])
    return found


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
    own = getattr(step, "feature_names_in_", None)
    inputs = [str(name) for name in own] if own is not None else [f"x{i}" for i in range(len(origins))]
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
    found: list[int] = []
    rest = name
    for i in sorted(range(len(inputs)), key=lambda i: -len(inputs[i])):
        word = rf"(?<![^\W_]){re.escape(inputs[i])}(?![^\W_])"
        if re.search(word, rest):
            found.append(i)
            rest = re.sub(word, " ", rest)
    return sorted(found)


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
