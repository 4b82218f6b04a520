"""Domains: which values a raw field may take at all, whatever stands in for it when it fails.

    numbers, dates   the training range, which the failure modes hold; two training quantiles; declared limits
    nominal          its training categories, or declared ones
    missing          where the field had missing values in training
    fixed            no other value than the row's own: the field is declared immutable

A nominal field in which most rows have a value of their own, such as a name, has no domain. Of one with more categories
than a catalogue holds by default, those of fewer than ``LEAST_ROWS`` rows are left out, as they are from catalogues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fragility.base.errors import ProtocolError
from fragility.base.schemas import matching
from fragility.evidence.fields import Field, date_text, is_categorical, read_date
from fragility.evidence.fitting import TrainingEvidence
from fragility.evidence.modes import (
    CATALOGUE_SIZE,
    LEAST_ROWS,
    Range,
    fits_field,
    is_near_unique,
    is_ordered,
    order_key,
    plain_value,
)
from fragility.evidence.rows import Scalar, list_names
from fragility.models.outputs import to_python

TRAINING_RANGE, DECLARED = "range", "declared"
QUANTILES = re.compile(r"(0?\.\d+|0)-(0?\.\d+|1(?:\.0*)?)")
RULE = matching(
    rf"{TRAINING_RANGE}|{DECLARED}|{QUANTILES.pattern}", "range, declared, or two quantiles such as 0.01-0.99"
)
DomainRequest: TypeAlias = str | Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a raw field may take."""

    field: str
    low: float | str | None = None  # of numbers or dates (ISO text); None: the end of the training range
    high: float | str | None = None
    categories: tuple[Scalar, ...] | None = None  # of a nominal field
    missing: bool = False  # a missing value is among them
    fixed: bool = False  # only the row's own value is


def fit_domains(request: DomainRequest, immutable: Sequence[str], evidence: TrainingEvidence) -> tuple[Domain, ...]:
    """Return the domain of each field whose values are known, in the order of the table; a sparse matrix has none.

    request: ``range``, two quantiles such as ``0.01-0.99``, or limits and categories by field, where the other fields
    have their training values.
    """
    by_rule = isinstance(request, str) and request != DECLARED and RULE.holds(request)
    if not isinstance(request, Mapping) and not by_rule:
        raise ProtocolError(
            "domain must be range, two quantiles such as 0.01-0.99, or a mapping from fields to values, got "
            f"{request!r}"
        )
    fixed = [immutable] if isinstance(immutable, str) else list(immutable)
    named, names = {*fixed, *(request if isinstance(request, Mapping) else ())}, [own.name for own in evidence.fields]
    if unknown := sorted(map(str, named - set(names))):
        raise ProtocolError(f"domain and immutable must name fields, got {unknown[0]!r}; they are {list_names(names)}")
    if evidence.frame is None:
        return ()
    domains = []
    for field in evidence.fields:
        column = evidence.frame[field.name]
        if field.name in fixed:
            domains.append(Domain(field.name, fixed=True))
        elif isinstance(request, Mapping) and field.name in request:
            domains.append(_read_declared(field, column, request[field.name]))
        elif (fitted := _fit_domain(field, column, None if isinstance(request, Mapping) else request)) is not None:
            domains.append(fitted)
    return tuple(domains)


def _fit_domain(field: Field, column: pd.Series, rule: str | None) -> Domain | None:
    """Return the domain of a field by its training values; None where it has none that a protocol can hold."""
    known, missing = column.dropna(), bool(column.isna().any())
    if known.empty:
        return None
    if is_ordered(field):
        quantiles = None if rule is None else QUANTILES.fullmatch(rule)
        if quantiles is None:
            return Domain(field.name, missing=missing)
        plain = known.astype(known.cat.categories.dtype) if is_categorical(known) else known
        ordered = plain.sort_values(kind="stable").reset_index(drop=True)
        ends = [ordered[int(np.rint(float(share) * (len(ordered) - 1)))] for share in quantiles.groups()]
        low, high = (plain_value(end, field) for end in ends)
        assert isinstance(low, (float, str)) and isinstance(high, (float, str))
        return Domain(field.name, low, high, missing=missing)
    try:
        counts = known.value_counts()
    except TypeError:  # cells that have no hash, such as lists
        return None
    counts = counts[counts > 0]
    if is_near_unique(counts):
        return None
    least = LEAST_ROWS if len(counts) > CATALOGUE_SIZE else 1
    values = [plain_value(value, field) for value, count in counts.items() if count >= least]
    if not values or any(value is None for value in values):
        return None
    return Domain(field.name, categories=_sort_categories(values), missing=missing)


def _read_declared(field: Field, column: pd.Series, values: Any) -> Domain:
    """Return a domain as a user declares it: the limits of a number or date, or categories; None: missing."""
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        raise ProtocolError(f"the domain of {field.name!r} must be a list of values, got {values!r:.80}")
    plain = [to_python(value) for value in values]
    if field.type == "date":
        plain = [value if value is None or isinstance(value, str) else date_text(value) for value in plain]
    missing, known = None in plain or bool(column.isna().any()), [value for value in plain if value is not None]
    if not is_ordered(field):
        return Domain(field.name, categories=_sort_categories(known), missing=missing)
    if len(known) != 2:
        raise ProtocolError(f"the domain of {field.name!r} must be its lowest and highest value, got {values!r:.80}")
    low, high = (float(end) if type(end) is int else end for end in known)
    return Domain(field.name, low, high, missing=missing)


def _sort_categories(values: Sequence[Scalar]) -> tuple[Scalar, ...]:
    distinct = {(type(value).__name__, value): value for value in values}
    return tuple(sorted(distinct.values(), key=lambda value: (type(value).__name__, str(value))))


def range_of(domain: Domain, ranges: Mapping[str, Range], field: Field) -> Range | None:
    """Return the values of a domain of numbers or dates as a range; None where the training range is not known."""
    fitted = ranges.get(domain.field)
    if domain.low is None or domain.high is None:
        return fitted
    whole = field.type == "integer"
    if fitted is not None:  # decimals that were whole in training may be declared to take others
        whole = fitted.whole and all(
            len(end) == len("2020-05-17") if isinstance(end, str) else end.is_integer()
            for end in (domain.low, domain.high)
        )
    return Range(domain.field, domain.low, domain.high, whole)


def list_domain_values(domains: Sequence[Domain]) -> dict[str, tuple[Scalar, ...]]:
    """Return the categories that fields may take, a missing one among them; a codec of raw fields must know them."""
    return {
        domain.field: (*domain.categories, *([None] if domain.missing else []))
        for domain in domains
        if domain.categories is not None
    }


def find_domain_faults(
    domains: Sequence[Domain], rule: str, fields: Sequence[Field], ranges: Sequence[Range]
) -> Iterator[str]:
    """Yield what is wrong with declared domains, in words."""
    by_name, fitted = {domain.name: domain for domain in fields}, {domain.field for domain in ranges}
    named = [domain.field for domain in domains]
    if named != [name for name in by_name if name in named]:
        yield "the domains must name fields in the order of the table, each once"
        return
    for domain in domains:
        field, what = by_name[domain.field], f"the domain of {domain.field!r}"
        ends = (domain.low, domain.high)
        if domain.fixed:
            if domain != Domain(domain.field, fixed=True):
                yield f"{what} is fixed, so it must hold no values"
        elif is_ordered(field):
            if domain.categories is not None or (domain.low is None) != (domain.high is None):
                yield f"{what} must have a lowest and a highest value or neither, and no categories"
            elif domain.low is None:
                if rule not in (TRAINING_RANGE, DECLARED):
                    yield f"{what} must have the quantiles {rule}"
                elif domain.field not in fitted:
                    yield f"{what} is the training range, which the protocol does not hold"
            elif rule == TRAINING_RANGE:
                yield f"{what} must be the training range, as the protocol says"
            elif not all(fits_field(end, field, False) for end in ends):
                yield f"{what} must hold two values of the field, got {domain.low!r}, {domain.high!r}"
            elif order_key(domain.low) > order_key(domain.high):  # type: ignore[arg-type]
                yield f"{what} must not end before it starts, got {domain.low!r} to {domain.high!r}"
            elif field.type == "integer" and any(float(end) != round(float(end)) for end in ends):  # type: ignore[arg-type]
                yield f"{what} must end at whole numbers, got {domain.low!r} to {domain.high!r}"
        elif domain.low is not None or domain.high is not None or not domain.categories:
            yield f"{what} must be a list of categories"
        elif domain.categories != _sort_categories(domain.categories) or not all(
            fits_field(value, field, False) for value in domain.categories
        ):
            got = f"{list(domain.categories)!r:.80}"
            yield f"{what} must hold distinct categories of the field in sorted order, got {got}"
        elif field.type == "date" and any(read_date(value) is None for value in domain.categories):
            yield f"{what} must hold dates in ISO form (2020-05-17)"
