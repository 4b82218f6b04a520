"""The lattice block: what it declares, and smallest failing sets and failure probabilities as arrays.

From its declaration anybody can search again: how far, with how many states, at which rates. Whatever engine searched
is named, but takes no part in the digests: what is decided is the same for all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.canonical import canonical_bytes
from fragility.base.errors import CertificateError
from fragility.blocks.block import NUMBER, Column, Declaration, in_units, position_in, set_of
from fragility.blocks.claims import (
    FORMAT,
    Claims,
    RowArrays,
    find_absent_groups,
    float_column,
    indices_of,
    list_of,
    lists_of,
    nullable_column,
    read_sets_of_names,
    whole_column,
)
from fragility.engines.lattice.additive import MOST_LIVE
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, NOT_SEARCHED, UNDECIDED, UPPER_BOUND, none_up_to
from fragility.pages.wording import describe_events, describe_rates
from fragility.protocol import Protocol

FAILURE_FIELDS = ("failure_probability", "failure_low", "failure_high", "failure_exact", "expected_margin")
FOUND = (MINIMUM, UPPER_BOUND)
ABSENT = -1  # a size or count that is null
# How a model is searched that can only be asked. Nobody chooses these, or an author could search as little as he likes.
SEARCH_STATES, BEAM_WIDTH = 10_000, 8
LEAST_DRAWS, MOST_DRAWS = 2**12, 2**20
MOST_EXPOSED = 1000  # rows that are searched where nobody asked for every row
PROBABILITY_NOISE = 1e-9  # sums of the same terms in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeDeclaration(Declaration):
    """What a block was searched with."""

    max_size: int
    budget: int
    width: int
    rates: dict[str, float] | None = None  # by group, in declared order
    draws: int | None = None
    seed: int | None = None
    events: list[dict[str, Any]] | None = None  # {"groups": [...], "count": n}

    @property
    def has_failures(self) -> bool:
        return self.rates is not None or self.events is not None

    def condition(self, protocol: Protocol) -> str:
        """How evidence fails, in words."""
        if self.rates is not None:
            return describe_rates(list(self.rates.values()), protocol.group_thing)
        return describe_events(sum(event["count"] for event in self.events or ()))

    def states(self) -> tuple[str, ...]:
        """The words a row's search may end with; their positions are what is hashed."""
        return (MINIMUM, UPPER_BOUND, none_up_to(self.max_size), NONE_AT_ALL, UNDECIDED)


@dataclass(frozen=True, eq=False, repr=False)
class LatticeClaims(RowArrays):
    """The block of n certificates as arrays; G groups. The last five are None where no failures were declared."""

    smallest_state: Integers  # (n,) positions in the declaration's states
    smallest_size: Integers  # (n,) -1 where no set was found
    smallest_set: Booleans  # (n, G)
    smallest_count: Integers  # (n,) -1 where they were not counted
    failure_probability: Floats | None = None  # (n,)
    failure_low: Floats | None = None
    failure_high: Floats | None = None
    failure_exact: Booleans | None = None
    expected_margin: Floats | None = None  # NaN where it has no closed form


@dataclass(frozen=True, slots=True)
class LatticeOfRow:
    """The block of one row, to read; None for whatever is not claimed."""

    smallest_state: str | None = None
    smallest_size: int | None = None
    smallest_set: tuple[str, ...] | None = None
    smallest_count: int | None = None
    failure_probability: float | None = None
    failure_low: float | None = None
    failure_high: float | None = None
    failure_exact: bool | None = None
    expected_margin: float | None = None
    failure_condition: str | None = None  # how evidence fails, in words

    @classmethod
    def from_row(cls, row: Mapping[str, Any], declared: LatticeDeclaration, protocol: Protocol) -> LatticeOfRow:
        """Return the block in a row of the table."""
        names = ("smallest_state", "smallest_size", "smallest_count")
        values = {name: row[name] for name in (*names, *(FAILURE_FIELDS if declared.has_failures else ()))}
        condition = declared.condition(protocol) if declared.has_failures else None
        return cls(**values, smallest_set=tuple(row["smallest_set"]), failure_condition=condition)


UNSEARCHED = LatticeOfRow(smallest_state=NOT_SEARCHED, smallest_set=())


# --- table --------------------------------------------------------------------------------------------------


def columns_of(declared: LatticeDeclaration, protocol: Protocol) -> list[Column]:
    """Return the columns of the block."""
    number, chance = pa.float64(), in_units()
    columns = [
        Column("smallest_state", pa.string(), position_in(declared.states()), NOT_SEARCHED),
        Column("smallest_size", pa.int32(), NUMBER),
        Column("smallest_set", list_of(pa.string()), set_of(protocol.group_names), []),
        Column("smallest_count", pa.int64(), NUMBER),
    ]
    if declared.has_failures:
        columns += [Column(name, number, chance) for name in FAILURE_FIELDS[:3]]
        columns += [Column("failure_exact", pa.bool_(), NUMBER), Column("expected_margin", number, None)]
    return columns


def write_columns(claims: LatticeClaims, declared: LatticeDeclaration, protocol: Protocol) -> dict[str, Any]:
    """Return the arrays as the columns of the block."""
    states, names = (pa.array(texts, type=pa.string()) for texts in (declared.states(), protocol.group_names))
    sets, size, count = claims.smallest_set, claims.smallest_size, claims.smallest_count
    margin = claims.expected_margin
    return {
        **{name: getattr(claims, name) for name in FAILURE_FIELDS},
        "smallest_state": states.take(pa.array(claims.smallest_state)),
        "smallest_size": pa.array(size, mask=size == ABSENT),
        "smallest_set": lists_of(names.take(pa.array(np.nonzero(sets)[1])), sets.sum(axis=1)),
        "smallest_count": pa.array(count, mask=count == ABSENT),
        "expected_margin": None if margin is None else pa.array(margin, mask=np.isnan(margin)),
    }


def lattice_claims_of(table: pa.Table, declaration: LatticeDeclaration, protocol: Protocol) -> LatticeClaims:
    """Return the block of a table of rows that all have one; refuses values that no block can hold."""
    failures: dict[str, Any] = {}
    if declaration.has_failures:
        failures = {name: float_column(table, name) for name in FAILURE_FIELDS[:3]}
        failures["failure_exact"] = whole_column(table, "failure_exact").to_numpy(zero_copy_only=False)
        failures["expected_margin"] = nullable_column(table, "expected_margin", np.nan)
    return LatticeClaims(
        ids=tuple(whole_column(table, "id").to_pylist()),
        smallest_state=indices_of(whole_column(table, "smallest_state"), declaration.states(), "smallest_state"),
        smallest_size=_read_integers(table, "smallest_size"),
        smallest_set=read_sets_of_names(table, "smallest_set", protocol.group_names, "groups"),
        smallest_count=_read_integers(table, "smallest_count"),
        **failures,
    )


def _read_integers(table: pa.Table, name: str) -> Integers:
    column = whole_column(table, name, nulls=True)
    values = np.asarray(column.fill_null(ABSENT).to_numpy(zero_copy_only=False), dtype=np.int64)
    if (values[np.asarray(column.is_valid())] < 0).any():
        raise CertificateError(f"column {name!r} of the certificate table holds a number below 0")
    return values


# --- what can be checked without the model ------------------------------------------------------------------


def seed_of(protocol_digest: str, fingerprint: str) -> int:
    """Return the seed of sampled probabilities: if an author chose it, he could try many and keep the best."""
    document = {"format": FORMAT, "model_fingerprint": fingerprint, "protocol_digest": protocol_digest}
    digest = hashlib.sha256(canonical_bytes(document)).digest()
    return int.from_bytes(digest[:8], "big") >> 11  # 53 bits: a whole number in any JSON


def check_declaration(declared: LatticeDeclaration, protocol: Protocol, fingerprint: str) -> None:
    """Refuse a declaration whose words and numbers are not those of a search."""
    largest = largest_size(protocol)
    whole_numbers: dict[str, tuple[Any, int, int]] = {
        "max_size": (declared.max_size, largest, largest),
        "budget": (declared.budget, SEARCH_STATES, SEARCH_STATES),
        "width": (declared.width, BEAM_WIDTH, BEAM_WIDTH),
    }
    if declared.rates is not None:
        whole_numbers["draws"] = (declared.draws, LEAST_DRAWS, MOST_DRAWS)
    elif declared.draws is not None or declared.seed is not None:
        raise CertificateError("blocks.lattice in the manifest declares draws or a seed, but no rates")
    if declared.rows is not None:
        whole_numbers["rows.most"] = declared.rows.most, MOST_EXPOSED, MOST_EXPOSED
        if declared.has_failures:
            raise CertificateError(
                "blocks.lattice in the manifest declares failures of some rows only; they are of every row"
            )
    for name, (value, low, high) in whole_numbers.items():
        if type(value) is not int or not low <= value <= high:
            wanted = f"{low}" if low == high else f"a whole number from {low} to {high}"
            raise CertificateError(f"blocks.lattice.{name} in the manifest must be {wanted}, got {value!r:.80}")
    if declared.draws is not None and declared.draws & (declared.draws - 1):
        raise CertificateError(f"blocks.lattice.draws in the manifest must be a power of two, got {declared.draws}")
    _check_failures(declared, protocol)
    seed = seed_of(protocol.digest, fingerprint)
    if declared.rates is not None and (type(declared.seed) is not int or declared.seed != seed):
        raise CertificateError(
            f"blocks.lattice.seed in the manifest must be {seed}, which follows from protocol and model, got "
            f"{declared.seed!r:.80}"
        )


def largest_size(protocol: Protocol) -> int:
    """The largest set a block speaks of: any, up to what a table of subsets holds."""
    return min(len(protocol.groups), MOST_LIVE)


def _check_failures(declared: LatticeDeclaration, protocol: Protocol) -> None:
    rates, events = declared.rates, declared.events
    if rates is not None and events is not None:
        raise CertificateError("blocks.lattice in the manifest declares rates and events; there is one of the two")
    if rates is not None and not (
        isinstance(rates, dict)
        and tuple(rates) == protocol.group_names
        and all(type(rate) is float and 0.0 <= rate <= 1.0 for rate in rates.values())
    ):
        raise CertificateError(
            "blocks.lattice.rates in the manifest must give each group, in order, a float from 0 to 1"
        )
    if events is not None and not (
        isinstance(events, list) and events and all(_is_event(event, protocol.group_names) for event in events)
    ):
        raise CertificateError('blocks.lattice.events in the manifest must be a list of {"groups": [...], "count": n}')


def _is_event(event: Any, names: Sequence[str]) -> bool:
    if not isinstance(event, dict) or list(event) != ["groups", "count"] or not isinstance(event["groups"], list):
        return False
    known = [name for name in names if name in event["groups"]]
    return event["groups"] == known and type(event["count"]) is int and 0 < event["count"] < 2**53


def lattice_contradictions(
    block: LatticeClaims, claims: Claims, declaration: LatticeDeclaration, protocol: Protocol
) -> list[tuple[int, str]]:
    """Return (position, claim) wherever the block contradicts itself or the row's other claims."""
    states = np.array(declaration.states(), dtype=object)[block.smallest_state]
    found = np.isin(states, FOUND)
    none = np.isin(states, (NONE_AT_ALL, none_up_to(declaration.max_size)))
    size, count = block.smallest_size, block.smallest_count
    absent = find_absent_groups(claims.already_missing, protocol)
    most = np.array([math.comb(len(protocol.groups), max(int(k), 0)) for k in size])
    wrong = {
        "smallest_size": (found != (size != ABSENT))
        | (found & ((size != block.smallest_set.sum(axis=1)) | (size < 1) | (size > declaration.max_size)))
        | ((states == MINIMUM) & claims.flipped & (size > claims.flip_budget)),
        "smallest_set": (~found & block.smallest_set.any(axis=1)) | (block.smallest_set & absent).any(axis=1),
        "smallest_count": np.select(
            [states == MINIMUM, none], [(count == 0) | (count > most), count != 0], count != ABSENT
        ),
        "smallest_state": none & claims.flipped & (claims.flip_budget <= declaration.max_size),
    }
    if block.failure_probability is not None:
        wrong |= _failure_contradictions(block, states, declaration)
    return [(int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad)]


def _failure_contradictions(block: LatticeClaims, states: Any, declaration: LatticeDeclaration) -> dict[str, Booleans]:
    p, low, high = (np.asarray(v) for v in (block.failure_probability, block.failure_low, block.failure_high))
    exact = np.asarray(block.failure_exact)
    outside = ~((p >= 0.0) & (p <= 1.0))
    unlikely = np.zeros(len(p), dtype=bool)
    if declaration.rates is not None:
        rates = np.array(list(declaration.rates.values()))
        alone = np.where(block.smallest_set, rates, 1.0 - rates).prod(axis=1)  # this set fails, and nothing else
        unlikely = exact & np.isin(states, FOUND) & (p < alone - PROBABILITY_NOISE)
    return {
        "failure_probability": outside | unlikely | ((states == NONE_AT_ALL) & (p > PROBABILITY_NOISE)),
        "failure_low": ~((low >= 0.0) & (low <= p)) | (exact & (low != p)),
        "failure_high": ~((high <= 1.0) & (high >= p)) | (exact & (high != p)),
    }
