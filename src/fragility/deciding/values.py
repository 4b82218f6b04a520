"""What unknown fields may hold: states of their values, with weights that sum to one.

    one field              its catalogue: mid-quantiles of numbers and dates, most frequent categories with their counts
    several fields         the product of their catalogues if that has at most ``draws`` states, else ``draws``
                           quasi-random states of it
    fields of one group    the joint values of the group's catalogue; where only some of the group's fields are unknown,
                           these fields of the joint values (the others keep what the row holds)
    conditional            the joint values of the 24 nearest training rows (`Neighbours`)

Quasi-random states: a Sobol sequence of draws / 16 points in one dimension per group, shifted 16 times modulo 1 by
uniform numbers of the counter-based generator of ``stress.draws``. Its key is made from the content of the row as
decided and the names of the unknown fields, so a row's states depend on nothing else. Coordinate u takes the value v of
its group with the cumulated weights of the values before v at most u. Every shift gives an unbiased estimate.

The nearest training rows look like this one in what is known:

    distance(a, b)^2 = sum over known fields of d_f^2
    d_f = |a_f - b_f| / s_f           numbers and dates; s_f is the training standard deviation
    d_f = 0 if a_f = b_f, else 1      categories
    d_f = 1                           one of the two is missing (0 if both are)

The unknown fields then hold, together, what they hold in each of the 24 nearest training rows that have all of them,
with equal weights. Rows at the same distance are taken in the order of their content's digests, so neither the order of
the training rows nor the rows checked together change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fragility.base.arrays import Floats, Integers, rows_within
from fragility.base.canonical import is_missing, row_digests
from fragility.base.errors import Advice, DataError, ProtocolError
from fragility.evidence.fields import Field, date_text
from fragility.evidence.modes import GroupValues
from fragility.evidence.rows import Rows, Scalar, list_names
from fragility.models.outputs import to_python
from fragility.protocol import Protocol
from fragility.questions.reliability.sampling import REPLICATES, weigh_distinct
from fragility.questions.stress.draws import row_keys, uniforms

DEFAULT_DRAWS = 1024
STREAM = "unknown fields"


@dataclass(frozen=True, slots=True, eq=False)
class JointValues:
    """The values that some fields may hold together."""

    fields: tuple[str, ...]
    values: tuple[tuple[Scalar, ...], ...]  # distinct, one entry per field
    weights: Floats  # (k,) they sum to 1
    source: Integers  # (k,) the first entry of the group's catalogue that holds each of them

    @classmethod
    def of_catalogue(cls, entry: GroupValues, unknown: Sequence[str]) -> JointValues:
        """Return the values of the unknown fields of a group; equal ones are one value."""
        places = [entry.fields.index(name) for name in unknown]
        weights: dict[tuple[Scalar, ...], float] = {}
        source: dict[tuple[Scalar, ...], int] = {}
        for r, (values, count) in enumerate(zip(entry.values, entry.counts, strict=True)):
            joint = tuple(values[place] for place in places)
            weights[joint] = weights.get(joint, 0.0) + count / sum(entry.counts)
            source.setdefault(joint, r)
        return cls(tuple(unknown), tuple(weights), np.array([*weights.values()]), np.array([*source.values()]))

    def code_field(self, field: str) -> Integers:
        """Return (k,) for each value the first one with the same value of one field."""
        of_field = [value[self.fields.index(field)] for value in self.values]
        return np.array([of_field.index(each) for each in of_field], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ValueStates:
    """States of unknown fields: which value each unit has, and how much each state weighs."""

    codes: Integers  # (q, U) place of each unit's value
    weight: Floats  # (1, q), or (16, q) by shift; each row sums to 1
    draws: int | None  # None: every state is there, so what is computed from them is exact


def choose_units(protocol: Protocol, unknown: Sequence[str]) -> list[JointValues]:
    """Return the values of unknown fields, group by group; refuse a field without values in the protocol."""
    entries = {name: entry for entry in protocol.modes.catalogue for name in entry.fields}
    lacking = [name for name in unknown if name not in entries]
    if lacking and not protocol.modes.catalogue:
        raise ProtocolError(
            f"what {list_names(lacking)} might hold is not known: the protocol has no value catalogue; fit one that "
            "declares the mode 'wrong', as Protocol.fit does by default"
        )
    if lacking:
        raise ProtocolError(
            f"what {list_names(lacking)} might hold is not known: the protocol's catalogue has no values for it, "
            "because the field is shared between evidence groups or holds values that a protocol cannot; regroup the "
            "fields, or ",
            Advice("give training rows and conditional=True", "name training rows by --train, with --conditional"),
        )
    units = []
    for entry in protocol.modes.catalogue:
        fields = [name for name in entry.fields if name in unknown]
        if fields:
            units.append(JointValues.of_catalogue(entry, fields))
    return units


def check_draws(draws: int) -> None:
    """Refuse a number of draws that the quasi-random states cannot have."""
    power = draws // REPLICATES if isinstance(draws, int) and not isinstance(draws, bool) else 0
    if power < 1 or power & (power - 1) or power * REPLICATES != draws:
        raise DataError(f"draws must be a power of two of at least {REPLICATES}, got {draws!r}")


def count_states(units: Sequence[JointValues]) -> int:
    """Return how many states the product of some units has."""
    total = 1
    for unit in units:
        total *= len(unit.values)
    return total


def list_states(units: Sequence[JointValues]) -> ValueStates:
    """Return every state of the product, the last unit changing fastest."""
    codes = np.indices([len(unit.values) for unit in units]).reshape(len(units), -1).T
    weight = np.ones(len(codes))
    for u, unit in enumerate(units):
        weight = weight * unit.weights[codes[:, u]]
    return ValueStates(np.ascontiguousarray(codes), weight[None], None)


def draw_states(units: Sequence[JointValues], draws: int, content: bytes) -> ValueStates:
    """Return quasi-random states of the product; content: the digest of the row as decided."""
    names = "\x1f".join(name for unit in units for name in unit.fields)
    key = row_keys(0, STREAM, [f"{content.hex()}\x1f{names}"])
    shifts = uniforms(key, np.arange(REPLICATES), np.arange(len(units)))[0]  # (16, U)
    points = (_sobol_points(len(units), draws // REPLICATES)[None] + shifts[:, None]) % 1.0
    flat = points.reshape(draws, len(units))
    codes = np.empty(flat.shape, dtype=np.int64)
    for u, unit in enumerate(units):
        below = np.cumsum(unit.weights)[:-1]  # of the values up to each; the last takes the rest
        codes[:, u] = np.searchsorted(below, flat[:, u], side="right")
    return ValueStates(*weigh_distinct(codes), draws)


@lru_cache(maxsize=64)
def _sobol_points(dimensions: int, count: int) -> Floats:
    points: Floats = stats.qmc.Sobol(dimensions, scramble=False).random_base2(count.bit_length() - 1)
    points.setflags(write=False)
    return points


def raw_values(units: Sequence[JointValues], codes: Integers) -> Mapping[str, list[Scalar]]:
    """Return the raw values of the unknown fields in states (q, U)."""
    return {
        name: [unit.values[code][j] for code in codes[:, u]]
        for u, unit in enumerate(units)
        for j, name in enumerate(unit.fields)
    }


# --- the nearest training rows --------------------------------------------------------------------------------

NEAREST = 24
DISTANCE_BYTES = 64 * 2**20


class Neighbours:
    """Training rows, ready to be searched."""

    def __init__(self, training: Rows, protocol: Protocol) -> None:
        if training.frame is None:
            raise DataError("the nearest training rows need a table or a dense array, got a sparse matrix")
        self.fields = {field.name: field for field in protocol.fields}
        digests = row_digests({name: training.frame[name] for name in self.fields})
        order = np.argsort(np.array(digests, dtype="S32"), kind="stable")
        self.frame = training.frame.iloc[order].reset_index(drop=True)
        self.missing = {name: self.frame[name].isna().to_numpy(dtype=bool) for name in self.fields}
        self.measured: dict[str, tuple[Floats, float]] = {}
        self.codes: dict[str, tuple[Floats, dict[Any, int]]] = {}
        for field in protocol.fields:
            column = self.frame[field.name]
            if _is_measured(field):
                numbers = _to_numbers(column)
                spread = float(np.nanstd(numbers)) if (~np.isnan(numbers)).any() else 0.0
                self.measured[field.name] = numbers, spread if spread > 0.0 else 1.0
            else:
                codes, values = pd.factorize(column, use_na_sentinel=True)
                known = {to_python(value): code for code, value in enumerate(values)}
                self.codes[field.name] = codes.astype(np.float64), known

    def find(self, table: pd.DataFrame, unknown: Sequence[str], unread: Sequence[str] = ()) -> list[JointValues]:
        """Return what the unknown fields hold in the training rows nearest to each row of a raw table.

        unread: further unknown fields, which the model does not read.
        """
        complete = np.flatnonzero(~np.any([self.missing[name] for name in unknown], axis=0))
        if len(complete) < 1:
            raise DataError(f"no training row holds all of {', '.join(map(repr, unknown))}; give rows that do")
        known = [name for name in self.fields if name not in unknown and name not in unread]
        step = rows_within(DISTANCE_BYTES, len(complete), copies=3)
        joint_values = []
        for start in range(0, len(table), step):
            part = table.iloc[start : start + step]
            distance = np.zeros((len(part), len(complete)))
            for name in known:
                distance += self._differences(part[name], name, complete)
            for to_row in distance:
                joint_values.append(self._joint_values(complete[_take_smallest(to_row, NEAREST)], tuple(unknown)))
        return joint_values

    def _differences(self, column: pd.Series, name: str, places: Any) -> Floats:
        """Return (m, t) squared differences of one field."""
        gone, theirs = column.isna().to_numpy(dtype=bool)[:, None], self.missing[name][places]
        if name in self.measured:
            numbers, spread = self.measured[name]
            apart = (_to_numbers(column)[:, None] - numbers[places]) / spread
            squared = apart * apart
        else:
            codes, known = self.codes[name]
            row_codes = np.array([known.get(to_python(value), -2) if not is_missing(value) else -1 for value in column])
            squared = (row_codes[:, None] != codes[places]).astype(np.float64)
        return np.where(gone & theirs, 0.0, np.where(gone | theirs, 1.0, squared))

    def _joint_values(self, places: Any, unknown: tuple[str, ...]) -> JointValues:
        rows = self.frame[list(unknown)].iloc[places]
        counts: dict[tuple[Scalar, ...], int] = {}
        for row in rows.itertuples(index=False, name=None):
            values = tuple(_plain(value, self.fields[name]) for name, value in zip(unknown, row, strict=True))
            counts[values] = counts.get(values, 0) + 1
        weights = np.array([*counts.values()]) / len(rows)
        return JointValues(unknown, tuple(counts), weights, np.arange(len(counts)))


def make_neighbours(
    read: Callable[[Any, Any], Rows], training: Any, conditional: bool, protocol: Protocol
) -> Neighbours | None:
    """Return the training rows ready to be searched, None if they are not wanted; read: turns them into rows."""
    if conditional and training is None:
        raise DataError(
            Advice(
                "conditional=True takes values from training rows; give training=...",
                "--conditional takes values from training rows; name them with --train",
            )
        )
    if training is not None and not conditional:
        raise DataError(
            "training rows are given, but are read for ",
            Advice("conditional=True", "--conditional"),
            " alone; give it, or leave them out",
        )
    return Neighbours(read(training, None), protocol) if conditional else None


def _is_measured(field: Field) -> bool:
    return field.kind == "numeric" or (field.type == "date" and not field.categorical)


def _to_numbers(column: pd.Series) -> Floats:
    """Return numbers, or the seconds of dates; NaN where a value is missing."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array(
        [
            np.nan if is_missing(v) else float(v) if isinstance(v, (int, float)) else pd.Timestamp(v).timestamp()
            for v in column
        ]
    )


def _take_smallest(distance: Floats, count: int) -> Any:
    """Return the places of the smallest distances; equal ones in the order of places."""
    if len(distance) <= count:
        return np.argsort(distance, kind="stable")
    limit = np.partition(distance, count - 1)[count - 1]
    near = np.flatnonzero(distance <= limit)
    return near[np.argsort(distance[near], kind="stable")][:count]


def _plain(value: Any, field: Field) -> Scalar:
    if field.type == "date":
        return date_text(value)
    plain = to_python(value)
    return float(plain) if field.kind == "numeric" else plain
