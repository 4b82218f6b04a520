"""Failure modes: what a unit of evidence may turn into when it is not lost but wrong, noisy, stale or a sentinel.

    lost      group           its baseline
    wrong     group           its value catalogue, fitted on training rows
    noisy     numeric column  downward: x - e s, x - e s / 2; upward: x + e s / 2, x + e s; s is the training standard
              and direction   deviation
    stale     group           its values in an earlier table, joined by id
    sentinel  field           declared values, and multiples such as x * 100 and x / 12
    outage    whole record    recorded events: the groups of an event go to their baselines together

The catalogue is in raw units. It holds quantiles of numeric fields and frequencies of categories, so no training row
can be reconstructed from it. Values that belong to single rows are left out: a nominal field in which most rows have a
value of their own has no catalogue, and one with more categories than the catalogue holds only lists those of at least
``LEAST_ROWS`` rows. Only a group of several fields keeps joint values, those of ``size`` rows; a group of more than
``JOINT_FIELDS`` fields whose joint values are mostly those of single rows has none, unless ``joint`` asks for them.
Nothing depends on the order of the training rows. The training range of each ordered field is kept beside the modes,
for stability intervals.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd

from fragility.base.arrays import Floats, is_number
from fragility.base.canonical import is_missing, row_digests
from fragility.base.errors import Advice, ProtocolError
from fragility.base.schemas import Must, Positive, one_of, whole_between, write_document
from fragility.base.text import BriefRepr
from fragility.evidence.bound import Group
from fragility.evidence.codec import cast_numbers
from fragility.evidence.fields import Field, date_text, read_date, type_of, value_like
from fragility.evidence.fitting import TrainingEvidence, are_whole, whole_columns
from fragility.evidence.rows import Scalar
from fragility.models.outputs import to_python

MODES = ("lost", "wrong", "noisy", "stale", "sentinel", "outage")
DEFAULT_MODES = ("lost", "wrong", "noisy")
CATALOGUE_SIZE = 24
LARGEST_CATALOGUE = 1000
LARGEST_NARROW = 2.0**24  # up to here decimals of single precision hold every whole number
LEAST_ROWS = 5  # that have a category of a field with many
JOINT_FIELDS = 4  # more of them describe a person
NOISE = 0.3
NOISE_STEPS = (-1.0, -0.5, 0.5, 1.0)  # times e s
NOISE_DIRECTIONS = {"downward": NOISE_STEPS[:2], "upward": NOISE_STEPS[2:]}  # the steps of one are equally likely
UNIT_WEIGHTS = {"noisy": 0.5}  # of each unit in the loss of a mode; 1 in the others
MADE_ROWS = 32
MULTIPLE = re.compile(r"x\s*([*/])\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class GroupValues:
    """The catalogue of one evidence group: what its fields may hold together, each with its count."""

    group: str
    fields: tuple[str, ...]
    values: tuple[tuple[Scalar, ...], ...]  # one value per field
    counts: tuple[Positive, ...]  # weights are counts over their sum


@dataclass(frozen=True, slots=True)
class Sentinel:
    """Values that stand in for a field when its source fails, each with a weight."""

    field: str
    values: tuple[Scalar, ...]  # a text such as "x / 12" is a multiple of a numeric field's own value
    weights: tuple[float, ...]  # they sum to 1


@dataclass(frozen=True, slots=True)
class Outage:
    """A recorded event: groups that failed together, and how often."""

    groups: tuple[str, ...]
    count: Positive


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest training value of a field of numbers or dates."""

    field: str
    low: float | str  # a date as ISO text
    high: float | str
    whole: bool  # every training value is a whole number, or a day without a time


@dataclass(frozen=True, slots=True, repr=False)
class FailureModes(BriefRepr):
    """The failure modes that a protocol declares, with what they need.

    Attributes
    ----------
    declared : tuple of str
        Among ``lost``, ``wrong``, ``noisy``, ``stale``, ``sentinel`` and ``outage``.
    catalogue : tuple of GroupValues
        The values of ``wrong``, in raw units; a group without values has no unit in this mode.
    catalogue_size : int
        R, how many values of a group are asked for; 0 without ``wrong``.
    noise : float
        e of ``noisy``, in training standard deviations.
    whole : tuple of str
        The columns whose noisy values are rounded to whole numbers.
    sentinels : tuple of Sentinel
        The values of ``sentinel``.
    outages : tuple of Outage
        The events of ``outage``: groups that failed together, and how often.
    ranges : tuple of Range
        The training range of each field of numbers or dates, whichever modes are declared.
    """

    declared: tuple[Annotated[str, one_of(MODES)], ...] = ()
    catalogue: tuple[GroupValues, ...] = ()
    catalogue_size: Annotated[int, whole_between(0, LARGEST_CATALOGUE)] = 0
    noise: Annotated[float, Must("a number above 0", lambda value: value > 0)] = NOISE
    whole: tuple[str, ...] = ()
    sentinels: tuple[Sentinel, ...] = ()
    outages: tuple[Outage, ...] = ()
    ranges: tuple[Range, ...] = ()

    def listed_values(self) -> dict[str, tuple[Scalar, ...]]:
        """Return the values that modes bring and rows need not have, so that a codec of raw fields knows them.

        Returns
        -------
        dict of str to tuple
            Values by field.
        """
        found: dict[str, dict[Scalar, None]] = {}
        for entry in self.catalogue:
            for values in entry.values:
                for name, value in zip(entry.fields, values, strict=True):
                    found.setdefault(name, {})[value] = None
        for sentinel in self.sentinels:
            own = (value for value in sentinel.values if read_multiple(value) is None)
            found.setdefault(sentinel.field, {}).update(dict.fromkeys(own))
        for each in self.ranges:
            found.setdefault(each.field, {}).update(dict.fromkeys((each.low, each.high)))
        return {name: tuple(values) for name, values in found.items()}

    def in_raw_fields(self, fields: Sequence[Field]) -> FailureModes:
        """Return the same modes where the columns of the evidence are the raw fields.

        Parameters
        ----------
        fields : sequence of Field
            The raw fields.

        Returns
        -------
        FailureModes
            With the whole columns among these fields.
        """
        return replace(self, whole=find_whole_fields(fields) if "noisy" in self.declared else ())

    def to_dict(self) -> dict[str, Any]:
        """Return the modes as plain JSON values.

        Returns
        -------
        dict
            As a protocol's file has them.
        """
        document: dict[str, Any] = write_document(self)
        return document


NO_MODES = FailureModes()


def read_multiple(value: Scalar) -> float | None:
    """Return the factor that a text such as ``x * 100`` or ``x / 12`` stands for; None for any other value."""
    match = MULTIPLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[2]) == 0.0:
        return None
    return float(match[2]) if match[1] == "*" else 1.0 / float(match[2])


# --- fitting ------------------------------------------------------------------------------------------------


def fit_modes(
    names: Sequence[str],
    catalogue: int,
    noise: float,
    sentinels: Mapping[str, Sequence[Any]] | None,
    outages: Any,
    evidence: TrainingEvidence,
    groups: Sequence[Group],
    joint: bool = False,
) -> FailureModes:
    """Return the failure modes of a protocol, fitted on its training rows; joint: as in ``fit_catalogue``."""
    wanted = {names} if isinstance(names, str) else {*names}
    if unknown := wanted - set(MODES):
        raise ProtocolError(f"modes must be among {', '.join(MODES)}, got {min(map(str, unknown))!r}")
    given, events = read_sentinels(sentinels, evidence.fields), fit_outages(outages, evidence, groups)
    for mode, values in (("sentinel", given), ("outage", events)):
        if mode in wanted and not values:
            argument = f"{mode}s"
            raise ProtocolError(f"the mode {mode!r} needs its values; give ", Advice.argument(argument, "..."))
        wanted |= {mode} if values else set()
    return FailureModes(
        declared=tuple(mode for mode in MODES if mode in wanted),
        catalogue=fit_catalogue(evidence, groups, catalogue, joint) if "wrong" in wanted else (),
        catalogue_size=int(catalogue) if "wrong" in wanted else 0,
        noise=float(noise) if is_number(noise) else noise,
        whole=fit_whole_columns(evidence) if "noisy" in wanted else (),
        sentinels=given,
        outages=events,
        ranges=fit_ranges(evidence),
    )


def fit_ranges(evidence: TrainingEvidence) -> tuple[Range, ...]:
    """Return the training range of each field of numbers or dates that has values; a sparse matrix has none."""
    ranges = []
    for field in filter(is_ordered, evidence.fields):
        known = pd.Series() if evidence.frame is None else evidence.frame[field.name].dropna()
        if known.empty:
            continue
        low, high = (plain_value(end, field) for end in (known.min(), known.max()))
        assert isinstance(low, (float, str)) and isinstance(high, (float, str))
        days = field.type == "date" and all(len(date_text(value)) == len("2020-05-17") for value in known.unique())
        numbers = field.kind == "numeric" and (
            field.type == "integer"
            or (are_whole(known.to_numpy(dtype=np.float64)) and bool(known.abs().max() <= LARGEST_NARROW))
        )
        ranges.append(Range(field.name, low, high, numbers or days))
    return tuple(ranges)


def is_ordered(field: Field) -> bool:
    """Return whether a field holds numbers or dates."""
    return field.kind == "numeric" or (field.type == "date" and not field.categorical)


def fit_catalogue(
    evidence: TrainingEvidence, groups: Sequence[Group], size: int, joint: bool = False
) -> tuple[GroupValues, ...]:
    """Return the catalogue of the groups whose values are known in raw units.

    A group has none if a column of it comes from a field that another group shares, or from values that a protocol
    cannot hold, or that are those of single rows; a sparse matrix has none at all.

    joint: also list joint values of many fields that only single rows have.
    """
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 1 <= size <= LARGEST_CATALOGUE:
        raise ProtocolError(f"catalogue must be a whole number from 1 to {LARGEST_CATALOGUE}, got {size!r}")
    frame = evidence.frame
    if frame is None:
        return ()
    by_name = {field.name: field for field in evidence.fields}
    found = []
    for group, names in _own_fields(evidence, groups).items():
        fields = [by_name[name] for name in names]
        counted = (
            _count_field(frame[names[0]], fields[0], size)
            if len(names) == 1
            else _count_rows(frame, fields, size, joint)
        )
        if counted:
            found.append(GroupValues(group, names, tuple(counted), tuple(counted.values())))
    return tuple(found)


def _own_fields(evidence: TrainingEvidence, groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """Return the raw fields of each group, in the order of the table; groups that share a field are left out."""
    origin_of = dict(zip(evidence.columns, evidence.origins, strict=True))
    parts = {group.name: {name for column in group.columns for name in origin_of[column].fields} for group in groups}
    holders = pd.Series([name for names in parts.values() for name in names], dtype=object).value_counts()
    order = [field.name for field in evidence.fields]
    return {
        group: tuple(name for name in order if name in names)
        for group, names in parts.items()
        if names and all(holders[name] == 1 for name in names)
    }


def _count_field(column: pd.Series, field: Field, size: int) -> dict[tuple[Scalar, ...], int]:
    """Return the values of one field: mid-quantiles of numbers and dates, the most frequent categories otherwise."""
    known = column.dropna()
    if known.empty:
        return {}
    if field.kind == "numeric" or field.type == "date":
        plain = known.astype(known.cat.categories.dtype) if isinstance(known.dtype, pd.CategoricalDtype) else known
        ordered = plain.sort_values(kind="stable").reset_index(drop=True)
        n = len(ordered)
        places = [-(-n * (2 * i + 1) // (2 * size)) - 1 for i in range(size)]  # ceil(n (i + 1/2) / size), from 0
        chosen = [plain_value(ordered[place], field) for place in places]
        return {(value,): chosen.count(value) for value in dict.fromkeys(chosen)}
    try:
        counts = known.value_counts()
    except TypeError:  # cells that have no hash, such as lists, cannot be counted
        return {}
    if is_near_unique(counts):
        return {}
    least = LEAST_ROWS if (counts > 0).sum() > size else 1
    pairs = [(plain_value(value, field), int(count)) for value, count in counts.items() if count >= least]
    if any(value is None for value, _ in pairs):
        return {}
    pairs.sort(key=lambda pair: (-pair[1], str(pair[0]), type(pair[0]).__name__))
    return {(value,): count for value, count in pairs[:size]}


def is_near_unique(counts: pd.Series) -> bool:
    """Whether most rows have a value of their own; counts: of each value."""
    return bool(2 * (counts == 1).sum() > counts.sum() > 1)


def _count_rows(frame: pd.DataFrame, fields: Sequence[Field], size: int, joint: bool) -> dict[tuple[Scalar, ...], int]:
    """Return the joint values of ``size`` distinct rows, chosen by a hash of their content, with their counts."""
    names = [field.name for field in fields]
    digests = pd.Series(row_digests({name: frame[name] for name in names}))
    counts = digests.value_counts()
    if len(fields) > JOINT_FIELDS and not joint and is_near_unique(counts):
        return {}
    counts = counts.sort_index()[:size]
    found: dict[tuple[Scalar, ...], int] = {}
    for digest, count in counts.items():
        row = frame[names].iloc[int(np.argmax(digests == digest))]
        values = tuple(None if is_missing(row[f.name]) else plain_value(row[f.name], f) for f in fields)
        if any(value is None and not is_missing(row[f.name]) for f, value in zip(fields, values, strict=True)):
            return {}
        found[values] = found.get(values, 0) + int(count)
    return found


def plain_value(value: Any, field: Field) -> Scalar:
    """Return a value as a protocol holds it; None if it cannot."""
    if field.type == "date":
        return date_text(value)
    if field.kind == "numeric":
        return float(value) + 0.0  # -0.0 is 0.0
    plain = to_python(value)
    return plain if isinstance(plain, (str, bool, int, float)) else None


def fit_whole_columns(evidence: TrainingEvidence) -> tuple[str, ...]:
    """Return the numeric columns that hold whole numbers only, which noise leaves whole."""
    if evidence.space == "raw":
        return find_whole_fields(evidence.fields)
    whole = whole_columns(evidence.matrix)
    kinds = zip(evidence.columns, evidence.kinds, whole, strict=True)
    return tuple(name for name, kind, is_whole in kinds if kind == "numeric" and is_whole)


def find_whole_fields(fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the numeric fields of whole numbers."""
    return tuple(field.name for field in fields if field.kind == "numeric" and field.type == "integer")


# --- as users declare them ----------------------------------------------------------------------------------


def read_sentinels(given: Any, fields: Sequence[Field]) -> tuple[Sentinel, ...]:
    """Return sentinels from {field: [value, ...]} (equal weights) or {field: [(value, weight), ...]}."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ProtocolError(f"sentinels must be a mapping from fields to lists of values, got {type(given).__name__}")
    by_name = {field.name: field for field in fields}
    found = []
    for name, entries in given.items():
        if name not in by_name:
            raise ProtocolError(f"sentinels name {name!r}, which is not a field; the fields are {', '.join(by_name)}")
        if isinstance(entries, (str, bytes)) or not isinstance(entries, Sequence) or not entries:
            raise ProtocolError(f"the sentinels of {name!r} must be a list of at least one value, got {entries!r:.80}")
        pairs = [tuple(e) if isinstance(e, (tuple, list)) and len(e) == 2 else (e, 1.0) for e in entries]
        values = tuple(_sentinel_value(by_name[name], value) for value, _ in pairs)
        weights = [float(weight) for _, weight in pairs]
        if not all(np.isfinite(weight) and weight > 0 for weight in weights) or len(set(values)) != len(values):
            raise ProtocolError(
                f"the sentinels of {name!r} must be distinct, with weights above 0, got {entries!r:.80}"
            )
        found.append(Sentinel(name, values, tuple(weight / sum(weights) for weight in weights)))
    return tuple(found)


def _sentinel_value(field: Field, value: Any) -> Scalar:
    plain = to_python(value)
    if field.kind == "numeric":
        if read_multiple(plain) is not None:
            return str(plain)
        if isinstance(plain, bool) or not isinstance(plain, (int, float)) or not np.isfinite(plain):
            raise ProtocolError(
                f"a sentinel of the numeric field {field.name!r} must be a number or a multiple such as 'x * 100', got "
                f"{value!r}"
            )
        return float(plain)
    wanted = {"text": str, "boolean": bool, "integer": int, "number": float, "date": str}.get(field.type)
    if wanted is None or type(plain) is not wanted or (field.type == "date" and read_date(plain) is None):
        raise ProtocolError(
            f"a sentinel of the nominal field {field.name!r} must be of its type in training ({field.type}), got "
            f"{value!r}"
        )
    return typing.cast(Scalar, plain)


def fit_outages(outages: Any, evidence: TrainingEvidence, groups: Sequence[Group]) -> tuple[Outage, ...]:
    """Return recorded events as groups that failed together; outages: ``patterns`` of fields and their ``counts``."""
    if outages is None:
        return ()
    origin_of = dict(zip(evidence.columns, evidence.origins, strict=True))
    holders: dict[str, set[str]] = {}
    for group in groups:
        for column in group.columns:
            for name in origin_of[column].fields:
                holders.setdefault(name, set()).add(group.name)
    counts: dict[tuple[str, ...], int] = {}
    for pattern, count in zip(outages.patterns, outages.counts, strict=True):
        if unknown := [name for name in pattern if name not in holders]:
            raise ProtocolError(f"outages name {unknown[0]!r}, which the model's evidence does not have")
        failed = {name for field in pattern for name in holders[field]}
        event = tuple(group.name for group in groups if group.name in failed)
        counts[event] = counts.get(event, 0) + int(count)
    return tuple(Outage(event, count) for event, count in sorted(counts.items()))


# --- checking -----------------------------------------------------------------------------------------------


def find_faults(
    modes: FailureModes, fields: Sequence[Field], groups: Sequence[Group], columns: Sequence[str]
) -> Iterator[str]:
    """Yield what is wrong with declared modes, in words."""
    known = list(dict.fromkeys(modes.declared))
    if known != [mode for mode in MODES if mode in modes.declared] or known != list(modes.declared):
        yield f"modes must be among {', '.join(MODES)}, each once and in this order, got {list(modes.declared)!r:.120}"
    for mode, needed in (("sentinel", modes.sentinels), ("outage", modes.outages)):
        if (mode in modes.declared) != bool(needed):
            yield f"the mode {mode!r} is declared exactly if there are {mode}s"
    size, wrong = modes.catalogue_size, "wrong" in modes.declared
    if not wrong and (modes.catalogue or size):
        yield "a catalogue is declared without the mode 'wrong'"
    if wrong and not size:
        yield f"catalogue_size must be a whole number from 1 to {LARGEST_CATALOGUE}, got {size!r}"
        return
    if any(name not in columns for name in modes.whole) or len(set(modes.whole)) != len(modes.whole):
        yield "the whole columns of modes must be distinct columns"
    yield from _catalogue_faults(modes.catalogue, size, fields, [group.name for group in groups])
    by_name = {field.name: field for field in fields}
    for one in modes.sentinels:
        try:
            pairs = list(zip(one.values, one.weights, strict=True))
            if read_sentinels({one.field: pairs}, list(by_name.values())) == (one,):
                continue
        except (ProtocolError, TypeError, ValueError):
            pass
        yield f"the sentinels of {one.field!r} are not written as the format says, with weights that sum to 1"
    names = [group.name for group in groups]
    for event in modes.outages:
        if list(event.groups) != [name for name in names if name in event.groups] or not event.groups:
            yield f"an outage must name groups in declared order, got {list(event.groups)!r:.80}"
    yield from _range_faults(modes.ranges, fields)


def _range_faults(ranges: Sequence[Range], fields: Sequence[Field]) -> Iterator[str]:
    by_name = {field.name: field for field in fields if is_ordered(field)}
    named = [each.field for each in ranges]
    if named != [name for name in by_name if name in named]:
        yield "the ranges must name fields of numbers or dates in the order of the table, each once"
        return
    for each in ranges:
        own = by_name[each.field]
        if not fits_field(each.low, own, False) or not fits_field(each.high, own, False):
            yield f"the range of {each.field!r} must hold two values of the field, got {each.low!r}, {each.high!r}"
        elif order_key(each.low) > order_key(each.high):
            yield f"the range of {each.field!r} must not end before it starts, got {each.low!r} to {each.high!r}"
        elif own.type == "integer" and own.kind == "numeric" and not each.whole:
            yield f"the range of {each.field!r} must be of whole numbers, as the field is"
        elif own.kind == "numeric" and each.whole and not all(float(end).is_integer() for end in (each.low, each.high)):
            yield f"the range of {each.field!r} is of whole numbers, but ends at {each.low!r} and {each.high!r}"


def order_key(value: float | str) -> Any:
    """Return what numbers, or dates as texts, are ordered by."""
    return read_date(value) if isinstance(value, str) else value


def _catalogue_faults(
    catalogue: Sequence[GroupValues], size: int, fields: Sequence[Field], groups: Sequence[str]
) -> Iterator[str]:
    by_name = {field.name: field for field in fields}
    if [entry.group for entry in catalogue] != [name for name in groups if name in {e.group for e in catalogue}]:
        yield "the catalogue must name groups in declared order, each once"
    seen: set[str] = set()
    for entry in catalogue:
        if not entry.fields or any(name not in by_name or name in seen for name in entry.fields):
            yield f"the catalogue of {entry.group!r} must name fields, each in one group"
            return
        seen |= set(entry.fields)
        if not entry.values or len(entry.values) != len(entry.counts):
            yield f"the catalogue of {entry.group!r} must have as many counts as values"
        if len(set(entry.values)) != len(entry.values) or len(entry.values) > size:
            yield f"the values of {entry.group!r} in the catalogue must be distinct, {size} at most"
        own = by_name[entry.fields[0]]
        quantiles = len(entry.fields) == 1 and (own.kind == "numeric" or own.type == "date")
        if quantiles and sum(entry.counts) != size:
            yield f"the catalogue of {entry.group!r} must hold {size} mid-quantiles, got {sum(entry.counts)}"
        for values in entry.values:
            each = [by_name[name] for name in entry.fields]
            if len(values) != len(each) or not all(map(fits_field, values, each, [len(each) > 1] * len(each))):
                yield f"the catalogue of {entry.group!r} holds {list(values)!r:.60}, which its fields cannot"


def fits_field(value: Any, field: Field, joint: bool) -> bool:
    """Return whether a field can hold a value; among joint values one may be missing."""
    if value is None:
        return joint
    if field.type == "date":
        return read_date(value) is not None
    if field.kind == "numeric":
        return type(value) is float and bool(np.isfinite(value))
    return isinstance(value, (str, bool, int)) or (type(value) is float and bool(np.isfinite(value)))


def tabulate_catalogue(catalogue: Sequence[GroupValues]) -> tuple[dict[str, list[Scalar]], Floats]:
    """Return R values of each field, and the weight (R, U) of the r-th value of each of the U groups listed.

    R is the number of values of the group that has most; beyond its last value a group repeats its first, with weight
    0.
    """
    most = max((len(entry.values) for entry in catalogue), default=0)
    values: dict[str, list[Scalar]] = {}
    weights = np.zeros((most, len(catalogue)))
    for u, entry in enumerate(catalogue):
        for j, name in enumerate(entry.fields):
            own = [value[j] for value in entry.values]
            values[name] = own + own[:1] * (most - len(own))
        weights[: len(entry.counts), u] = np.array(entry.counts) / sum(entry.counts)
    return values, weights


def weigh_values(modes: FailureModes, field: str) -> dict[Scalar, float]:
    """Return the known values of a field in the catalogue, each with its share of their counts."""
    entry = next((entry for entry in modes.catalogue if field in entry.fields), None)
    counts: dict[Scalar, int] = {}
    if entry is not None:
        for values, count in zip(entry.values, entry.counts, strict=True):
            value = values[entry.fields.index(field)]
            if value is not None:
                counts[value] = counts.get(value, 0) + count
    return {value: count / sum(counts.values()) for value, count in counts.items()}


def make_records(
    fields: Sequence[Field], modes: FailureModes, baseline: Mapping[str, Scalar]
) -> list[dict[str, Any]] | None:
    """Return rows made of values that a protocol knows in raw units; None if it knows none for some field.

    The values are those of the catalogue, else the ends of the training range, else the raw baseline. Each field goes
    through its values in steps of its own, so that they meet in many ways.
    """
    columns: dict[str, Sequence[Scalar]] = {name: (value,) for name, value in baseline.items()}
    columns |= {each.field: (each.low, each.high) for each in modes.ranges}
    for entry in modes.catalogue:
        columns |= dict(zip(entry.fields, zip(*entry.values, strict=True), strict=True))
    columns |= {field.name: (None,) for field in fields if field.type == "empty"}
    if any(field.name not in columns for field in fields):
        return None
    together = {name: i for i, entry in enumerate(modes.catalogue) for name in entry.fields}
    step = {field.name: 2 * together.get(field.name, place) + 1 for place, field in enumerate(fields)}
    return [
        {name: columns[name][i * step[name] % len(columns[name])] for name in (field.name for field in fields)}
        for i in range(MADE_ROWS)
    ]


def values_frame(values: Mapping[str, Sequence[Scalar]], like: pd.DataFrame) -> pd.DataFrame:
    """Return rows of raw values in the types of a table; a field that is not given takes that of the first row."""
    count = len(next(iter(values.values())))
    frame = like.iloc[[0] * count].reset_index(drop=True)
    return frame.assign(**{name: _typed(given, like[name]) for name, given in values.items() if name in frame})


def _typed(values: Sequence[Scalar], column: pd.Series) -> pd.Series:
    dtype: Any = column.dtype
    if type_of(column) == "date":
        dates = [None if value is None else value_like(str(value), column) for value in values]
        return pd.Series(dates, dtype=dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        known = set(dtype.categories)
        return pd.Series(list(values), dtype=dtype if all(v is None or v in known for v in values) else object)
    if column.isna().all() and any(isinstance(value, str) for value in values):
        dtype = np.dtype(object)  # whatever the type of a column without any value
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype):
        numbers = pd.Series([np.nan if value is None else value for value in values], dtype=np.float64)
        lossless = not pd.api.types.is_integer_dtype(dtype) or bool((numbers == np.rint(numbers)).all())
        return (
            pd.Series(cast_numbers(np.asarray(numbers, dtype=np.float64), dtype))
            if lossless and not numbers.isna().any()
            else numbers
        )
    gone = column[column.isna()]
    missing = gone.iloc[0] if len(gone) else np.nan  # as the column has it: an imputer of NaN leaves None alone
    plain = pd.Series([missing if value is None else value for value in values], dtype=object)
    return plain if dtype == np.dtype(object) or plain.isna().any() else plain.astype(dtype)
