"""What unknown fields may hold: states of their values, with weights that sum to one.

    one field              its catalogue: mid-quantiles of numbers and dates, most frequent categories with their counts
    several fields         the product of their catalogues if that has at most ``draws`` states, else ``draws``
                           quasi-random states of it
    fields of one group    the joint values of the group's catalogue; where only some of the group's fields are unknown,
                           these fields of the joint values (the others keep what the row holds)
    conditional            the joint values of the 24 nearest training rows (``nearest``)

Quasi-random states: a Sobol sequence of draws / 16 points in one dimension per group, shifted 16 times modulo 1 by
uniform numbers of the counter-based generator of ``stress.draws``. Its key is made from the content of the row as
decided and the names of the unknown fields, so a row's states depend on nothing else. Coordinate u takes the value v of
its group with the cumulated weights of the values before v at most u. Every shift gives an unbiased estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import Advice, DataError, ProtocolError
from fragility.evidence.modes import GroupValues
from fragility.evidence.rows import Scalar, list_names
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
            own = tuple(values[place] for place in places)
            weights[own] = weights.get(own, 0.0) + count / sum(entry.counts)
            source.setdefault(own, r)
        return cls(tuple(unknown), tuple(weights), np.array([*weights.values()]), np.array([*source.values()]))

    def code_field(self, field: str) -> Integers:
        """Return (k,) the first value that holds the same of one field: equal numbers are equal values of the field."""
        own = [value[self.fields.index(field)] for value in self.values]
        return np.array([own.index(each) for each in own], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """States of unknown fields: which value each unit has, and how much each state weighs."""

    codes: Integers  # (q, U) place of each unit's value
    weight: Floats  # (1, q), or (16, q) by shift; each row sums to 1
    draws: int | None  # None: every state is there, so what is computed from them is exact


def choose_units(protocol: Protocol, unknown: Sequence[str]) -> list[JointValues]:
    """Return the values of unknown fields, group by group; refuse a field of which the protocol knows none."""
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
    found = []
    for entry in protocol.modes.catalogue:
        own = [name for name in entry.fields if name in unknown]
        if own:
            found.append(JointValues.of_catalogue(entry, own))
    return found


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


def list_states(units: Sequence[JointValues]) -> States:
    """Return every state of the product, the last unit changing fastest."""
    codes = np.indices([len(unit.values) for unit in units]).reshape(len(units), -1).T
    weight = np.ones(len(codes))
    for u, unit in enumerate(units):
        weight = weight * unit.weights[codes[:, u]]
    return States(np.ascontiguousarray(codes), weight[None], None)


def draw_states(units: Sequence[JointValues], draws: int, content: bytes) -> States:
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
    return States(*weigh_distinct(codes), draws)


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
