"""The lattice block: smallest failing sets and failure probabilities, beside the claims they do not change.

The block is optional. It has columns of its own behind the row digest, a digest of its own for each row, a root of its
own, and a declaration in the manifest from which anybody can search again: how far, with how many states, at which
rates. Whatever engine searched is named, but takes no part in the digests: what is decided is the same for all.

A block may cover the most exposed rows only. Which rows those are is known only when all of them have been audited, so
what was found cannot stand in the parts, which are written as they are finished. It stands in a table of its own, and
readers join the two; the other rows then say that they were not searched.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fragility.base.arrays import Booleans, Floats, Integers
from fragility.base.canonical import canonical_bytes
from fragility.base.errors import CertificateError
from fragility.base.schemas import Positive
from fragility.blocks.block import BlockForm
from fragility.blocks.choice import RowChoice
from fragility.blocks.claims import (
    FORMAT,
    PROBABILITY_UNIT,
    Claims,
    RowArrays,
    context_digest,
    find_absent_groups,
    float_column,
    hash_rows,
    indices_of,
    list_of,
    lists_of,
    nullable_column,
    read_sets_of_names,
    whole_column,
)
from fragility.models import ClassLabel
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
UNSEARCHED = {"smallest_state": NOT_SEARCHED, "smallest_set": []}  # of a row without a block; all else is null
OUTSIDE_THE_CONTEXT = ("engine", "most_exposed")  # who searched, and which other rows: no part of a row's digest


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeDeclaration:
    """What a block was made with; its fields have the names and the order of the manifest's."""

    engine: str  # trees, linear, wrapped, or blackbox where every state was asked of the model
    most_exposed: Positive | None = None  # how many of the confident rows were searched at most; None: every row
    max_size: int
    budget: int
    width: int
    rates: dict[str, float] | None = None  # by group, in declared order
    draws: int | None = None
    seed: int | None = None
    events: list[dict[str, Any]] | None = None  # {"groups": [...], "count": n}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def has_failures(self) -> bool:
        return self.rates is not None or self.events is not None

    @property
    def is_partial(self) -> bool:
        """Whether only the most exposed rows were searched."""
        return self.most_exposed is not None

    def choice(self, protocol: Protocol) -> RowChoice | None:
        """Return which confident rows were searched; None if every row was."""
        most = self.most_exposed
        return None if most is None else RowChoice(most, "exposure", protocol.min_confidence)

    def condition(self, protocol: Protocol) -> str:
        """How evidence fails, in words."""
        if self.rates is not None:
            return describe_rates(list(self.rates.values()), protocol.group_thing)
        return describe_events(sum(event["count"] for event in self.events or ()))

    @property
    def form(self) -> BlockForm:
        """How the block stands in a table."""
        failures = [(name, pa.bool_() if name == "failure_exact" else pa.float64()) for name in FAILURE_FIELDS]
        columns = [
            ("smallest_state", pa.string()),
            ("smallest_size", pa.int32()),
            ("smallest_set", list_of(pa.string())),
            ("smallest_count", pa.int64()),
            *(failures if self.has_failures else []),
            ("lattice_digest", pa.string()),
        ]
        return BlockForm("searched rows", columns, UNSEARCHED)

    def check_table(self, block: pa.Table) -> None:
        """Refuse a table of searched rows that is not written as the format says."""
        self.form.check(block, self.most_exposed)
        if NOT_SEARCHED in block.column("smallest_state").to_pylist():
            raise CertificateError(f"the table of searched rows has a row that says {NOT_SEARCHED!r}")

    def states(self) -> tuple[str, ...]:
        """The words a row's search may end with; their positions are what is hashed. The last is no search at all."""
        searched = (MINIMUM, UPPER_BOUND, none_up_to(self.max_size), NONE_AT_ALL, UNDECIDED)
        return (*searched, NOT_SEARCHED) if self.is_partial else searched


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

    def searched(self, declaration: LatticeDeclaration) -> Booleans:
        """(n,) the rows that were searched."""
        words = declaration.states()
        return self.smallest_state != words.index(NOT_SEARCHED) if declaration.is_partial else np.ones(len(self), bool)


# --- table --------------------------------------------------------------------------------------------------


def with_block(
    table: pa.Table, claims: LatticeClaims, declaration: LatticeDeclaration, context: bytes, protocol: Protocol
) -> tuple[pa.Table, list[bytes]]:
    """Return a table that ends with its row digests with the block behind them, and the block's own digests."""
    digests = lattice_digests(claims, context)
    states, names = (pa.array(texts, type=pa.string()) for texts in (declaration.states(), protocol.group_names))
    sets, size, count = claims.smallest_set, claims.smallest_size, claims.smallest_count
    margin = claims.expected_margin
    columns: dict[str, Any] = {
        **{name: getattr(claims, name) for name in FAILURE_FIELDS},
        "smallest_state": states.take(pa.array(claims.smallest_state)),
        "smallest_size": pa.array(size, mask=size == ABSENT),
        "smallest_set": lists_of(names.take(pa.array(np.nonzero(sets)[1])), sets.sum(axis=1)),
        "smallest_count": pa.array(count, mask=count == ABSENT),
        "expected_margin": None if margin is None else pa.array(margin, mask=np.isnan(margin)),
    }
    return declaration.form.append(table, columns, digests), digests


def lattice_claims_of(table: pa.Table, declaration: LatticeDeclaration, protocol: Protocol) -> LatticeClaims:
    """Return the block of a table whose schema was checked; refuses values that no block can hold."""
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


# --- digests ------------------------------------------------------------------------------------------------


def lattice_digests(claims: LatticeClaims, context: bytes) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and block in the layout of docs/format.md."""
    columns: list[tuple[Any, str, float | None]] = [
        (claims.smallest_state, "u1", None),
        (claims.smallest_size, "<i4", None),
        (claims.smallest_count, "<i8", None),
        (claims.smallest_set, "u1", None),
    ]
    if claims.failure_probability is not None:
        chances = (claims.failure_probability, claims.failure_low, claims.failure_high)
        columns += [*((values, "<f8", PROBABILITY_UNIT) for values in chances), (claims.failure_exact, "u1", None)]
    return hash_rows(claims.ids, context, columns)


def lattice_context(
    protocol_digest: str, model_fingerprint: str, classes: Sequence[ClassLabel], declaration: LatticeDeclaration
) -> bytes:
    """Return what binds a row's block to its protocol, its model and what was declared; not to an engine."""
    declared = {name: value for name, value in declaration.to_dict().items() if name not in OUTSIDE_THE_CONTEXT}
    return context_digest(protocol_digest, model_fingerprint, classes, lattice=declared)


# --- what can be checked without the model ------------------------------------------------------------------


def seed_of(protocol_digest: str, fingerprint: str) -> int:
    """Return the seed of sampled probabilities: if an author chose it, he could try many and keep the best."""
    document = {"format": FORMAT, "model_fingerprint": fingerprint, "protocol_digest": protocol_digest}
    digest = hashlib.sha256(canonical_bytes(document)).digest()
    return int.from_bytes(digest[:8], "big") >> 11  # 53 bits: a whole number in any JSON


def check_declaration(
    declared: LatticeDeclaration, protocol: Protocol, engines: Sequence[str], largest: int, seed: int
) -> None:
    """Refuse a declaration whose words and numbers are not those of a search; seed: the one that ``seed_of`` gives."""
    whole_numbers: dict[str, tuple[Any, int, int]] = {
        "max_size": (declared.max_size, largest, largest),
        "budget": (declared.budget, SEARCH_STATES, SEARCH_STATES),
        "width": (declared.width, BEAM_WIDTH, BEAM_WIDTH),
    }
    if declared.rates is not None:
        whole_numbers["draws"] = (declared.draws, LEAST_DRAWS, MOST_DRAWS)
    elif declared.draws is not None or declared.seed is not None:
        raise CertificateError("lattice in the manifest declares draws or a seed, but no rates")
    if declared.is_partial:
        whole_numbers["most_exposed"] = declared.most_exposed, MOST_EXPOSED, MOST_EXPOSED
        if declared.has_failures:
            raise CertificateError("lattice in the manifest declares failures of some rows only; they are of every row")
    for name, (value, low, high) in whole_numbers.items():
        if type(value) is not int or not low <= value <= high:
            wanted = f"{low}" if low == high else f"a whole number from {low} to {high}"
            raise CertificateError(f"lattice.{name} in the manifest must be {wanted}, got {value!r:.80}")
    if declared.draws is not None and declared.draws & (declared.draws - 1):
        raise CertificateError(f"lattice.draws in the manifest must be a power of two, got {declared.draws}")
    if declared.engine not in engines:
        raise CertificateError(f"lattice in the manifest names the engine {declared.engine!r:.80}, which is none of it")
    _check_failures(declared, protocol)
    if declared.rates is not None and (type(declared.seed) is not int or declared.seed != seed):
        raise CertificateError(
            f"lattice.seed in the manifest must be {seed}, which follows from protocol and model, got "
            f"{declared.seed!r:.80}"
        )


def _check_failures(declared: LatticeDeclaration, protocol: Protocol) -> None:
    rates, events = declared.rates, declared.events
    if rates is not None and events is not None:
        raise CertificateError("lattice in the manifest declares rates and events; there is one of the two")
    if rates is not None and not (
        isinstance(rates, dict)
        and tuple(rates) == protocol.group_names
        and all(type(rate) is float and 0.0 <= rate <= 1.0 for rate in rates.values())
    ):
        raise CertificateError("lattice.rates in the manifest must give each group, in order, a float from 0 to 1")
    if events is not None and not (
        isinstance(events, list) and events and all(_is_event(event, protocol.group_names) for event in events)
    ):
        raise CertificateError('lattice.events in the manifest must be a list of {"groups": [...], "count": n}')


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


def split_block(table: pa.Table, declaration: LatticeDeclaration, protocol: Protocol) -> tuple[pa.Table, pa.Table]:
    """Return certificates without the block's columns, and the block of the rows that were searched."""
    form, choice = declaration.form, declaration.choice(protocol)
    searched = table.filter(pc.not_equal(table.column("smallest_state"), NOT_SEARCHED))
    order = np.arange(len(searched)) if choice is None else choice.order(searched)
    return table.drop_columns(form.names), form.select(searched, order)
