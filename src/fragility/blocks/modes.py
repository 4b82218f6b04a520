"""The modes block: what each declared failure mode costs a prediction, beside the claims it does not change.

For mode m with units u, where delta_u is the expected loss of margin and f_u the chance of a flip (see
fragility.questions.modes):

    mode_drop_m = delta_u,   flip_chance_m = f_u,   exposure_m = 1 - exp(-w_m sum_u [delta_u]_+ / (|margin| + 1e-8))

w_m is 1/2 for noise, of which a unit is a column and a direction, and 1 for every other mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fragility.base.arrays import Booleans, Floats
from fragility.base.errors import CertificateError, DataError, ProtocolError
from fragility.blocks.block import Block, BlockRecheck, Column, Contradictions, Declaration, Requests, in_units
from fragility.blocks.checks import DISAGREEMENT, Difference, find_differences
from fragility.blocks.choice import ChosenRows, Wanted, name_engine, read_wanted
from fragility.blocks.claims import (
    Claims,
    RowArrays,
    find_differing,
    float_column,
    list_of,
    lists_per_row,
    read_float_lists,
    whole_column,
)
from fragility.blocks.tolerances import bound_saturation
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import choose_oracle, never_reads
from fragility.engines.engine import Run
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows
from fragility.evidence.modes import UNIT_WEIGHTS
from fragility.models import ClassLabel
from fragility.pages.wording import write_count
from fragility.protocol import Protocol
from fragility.questions.modes.losses import ModeLosses, choose_modes, losses_of_rows, units_of
from fragility.scores import EPSILON, independent_loss

LOST = "lost"
MOST_CONFIDENT = 2000  # rows that the command line assesses where nobody asked for every row
STALE = "stale"  # needs rows of another time, which an audit does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesDeclaration(Declaration):
    """What a modes block was made with."""

    units: dict[str, list[str]]  # by mode, in declared order

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.units)


class ModeClaims(NamedTuple):
    """What one failure mode costs n predictions; U units."""

    units: tuple[str, ...]
    exposure: Floats  # (n,)
    drop: Floats  # (n, U) the expected loss of margin
    flip_chance: Floats  # (n, U)


@dataclass(frozen=True, eq=False, repr=False)
class ModesClaims(RowArrays):
    """The block of n certificates as arrays: M modes, W units of all modes. ``claims["wrong"]`` is one mode."""

    units: Mapping[str, Sequence[str]]  # by mode
    exposure: Floats  # (n, M)
    drop: Floats  # (n, W) the units of the first mode, then those of the next
    flip_chance: Floats  # (n, W)

    @classmethod
    def of_margins(
        cls, ids: Sequence[Any], units: Mapping[str, Sequence[str]], margin: Floats, drop: Floats, flip_chance: Floats
    ) -> ModesClaims:
        """Return a block with the exposures that follow from the margins (n,) of the rows."""
        exposure = np.stack([exposure_to(mode, margin, drop[:, own]) for mode, own in spans(units).items()], axis=1)
        return cls(tuple(ids), units, exposure, drop, flip_chance)

    def __getitem__(self, mode: str) -> ModeClaims:
        if mode not in self.units:
            raise ProtocolError(f"the block has the modes {', '.join(self.units)}, got {mode!r}")
        own, place = spans(self.units)[mode], list(self.units).index(mode)
        return ModeClaims(tuple(self.units[mode]), self.exposure[:, place], self.drop[:, own], self.flip_chance[:, own])


def exposure_to(mode: str, margin: Floats, drop: Floats) -> Floats:
    """Return the exposure to one mode, (n,); margin (n,), drop (n, U)."""
    return np.asarray(-np.expm1(-independent_loss(margin, drop, UNIT_WEIGHTS.get(mode, 1.0))))


def spans(units: Mapping[str, Sequence[str]]) -> dict[str, slice]:
    """Return where the units of each mode stand among those of all modes."""
    ends = np.cumsum([len(names) for names in units.values()]).tolist()
    return {mode: slice(end - len(names), end) for (mode, names), end in zip(units.items(), ends, strict=True)}


@dataclass(frozen=True, slots=True)
class ModeCost:
    """What one failure mode costs one prediction.

    Attributes
    ----------
    exposure : float
        1 - exp(-u), where u is the expected loss of margin over all units, as a share of the margin.
    drop : mapping of str to float
        By unit: how much margin it is expected to cost when this unit fails in this way.
    flip_chance : mapping of str to float
        By unit: how likely the decision flips when this unit, alone, fails in this way.
    """

    exposure: float
    drop: Mapping[str, float]
    flip_chance: Mapping[str, float]

    @property
    def weakest(self) -> str | None:
        """The unit whose failure flips the decision most likely; of equal ones the first. None without units."""
        return max(self.flip_chance, key=lambda unit: self.flip_chance[unit], default=None)


def costs_of_row(row: Mapping[str, Any], declared: ModesDeclaration) -> dict[str, ModeCost] | None:
    """Return the block in a row of the joined table, by mode; None if the row has none."""
    if row["modes_digest"] is None:
        return None
    found = {}
    for mode, units in declared.units.items():
        lists = []
        for name in (f"mode_drop_{mode}", f"flip_chance_{mode}"):
            values = row[name] or []
            if len(values) != len(units) or None in values:
                raise CertificateError(
                    f"column {name!r} must hold {len(units)} numbers per row, one for each unit that the manifest "
                    f"declares, got {len(values)}"
                )
            lists.append(dict(zip(units, values, strict=True)))
        found[mode] = ModeCost(row[f"exposure_{mode}"], *lists)
    return found


# --- table --------------------------------------------------------------------------------------------------


def columns_of(units: Mapping[str, Sequence[str]], protocol: Protocol) -> list[Column]:
    """Return the columns of the block."""
    number, numbers = pa.float64(), list_of(pa.float64())
    return [
        column
        for mode in units
        for column in (
            Column(f"exposure_{mode}", number, None),
            Column(f"mode_drop_{mode}", numbers, in_units(protocol.resolution)),
            Column(f"flip_chance_{mode}", numbers, in_units()),
        )
    ]


def write_columns(claims: ModesClaims) -> dict[str, Any]:
    """Return the arrays as the columns of the block."""
    values: dict[str, Any] = {}
    for mode in claims.units:
        own = claims[mode]
        values[f"exposure_{mode}"] = own.exposure
        values[f"mode_drop_{mode}"] = lists_per_row(own.drop)
        values[f"flip_chance_{mode}"] = lists_per_row(own.flip_chance)
    return values


def modes_claims_of(table: pa.Table, declaration: ModesDeclaration) -> ModesClaims:
    """Return the block of a table of rows that all have one; refuses values that no block can hold."""

    def read(kind: str) -> Floats:
        lists = [read_float_lists(table, f"{kind}_{mode}", len(units)) for mode, units in declaration.units.items()]
        return np.concatenate(lists, axis=1)

    exposure = [float_column(table, f"exposure_{mode}") for mode in declaration.units]
    ids = tuple(whole_column(table, "id").to_pylist())
    return ModesClaims(ids, declaration.units, np.stack(exposure, axis=1), read("mode_drop"), read("flip_chance"))


# --- what can be checked without the model ------------------------------------------------------------------


def check_units(units: Mapping[str, Sequence[str]], implied: Mapping[str, Sequence[str]]) -> None:
    """Refuse units that are not those of some of the protocol's modes; implied: the units of all that it may have."""
    if not units or list(units) != [mode for mode in implied if mode in units]:
        raise CertificateError(
            f"blocks.modes.units in the manifest must name modes of the protocol ({', '.join(implied)}) in their "
            f"order, got {units!r:.80}"
        )
    for mode, names in units.items():
        if names != list(implied[mode]):
            raise CertificateError(
                f"blocks.modes.units.{mode} in the manifest is not the list of units that the protocol has"
            )


def modes_contradictions(block: ModesClaims, claims: Claims, protocol: Protocol) -> list[tuple[int, str]]:
    """Return (position, claim) wherever the block contradicts itself or the other claims of the same rows."""
    wrong: dict[str, Booleans] = {}
    for mode in block.units:
        own = block[mode]
        chance = own.flip_chance
        possible = (chance == 0.0) | (chance == 1.0) if mode == LOST else (chance >= 0.0) & (chance <= 1.0)
        wrong[f"exposure_{mode}"] = find_differing(own.exposure, exposure_to(mode, claims.margin, own.drop))
        wrong[f"flip_chance_{mode}"] = np.asarray(~np.all(possible, axis=1))
        if mode == LOST and claims.path_margin.shape[1]:  # which a summary lacks
            unit = protocol.resolution * (1.0 + np.abs(claims.path_margin).max(axis=1, keepdims=True) * 1e-3)
            wrong[f"mode_drop_{mode}"] = np.asarray(
                np.any(np.abs(own.drop - claims.one_step_drop) > 2.0 * unit, axis=1)
            )
    return [(int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad)]


# --- how it is made -------------------------------------------------------------------------------------------


def units_by_mode(protocol: Protocol) -> dict[str, list[str]]:
    """Return the modes that a block may have under this protocol, and their units."""
    return {mode: list(units_of(protocol, mode)) for mode in protocol.modes.declared if mode != STALE}


def declare_modes(rows: EvidenceRows, protocol: Protocol, engine: str, wanted: Wanted) -> ModesDeclaration:
    """Return what a block of these rows will be made with."""
    names, most = read_wanted(wanted, "modes", "assess")
    if names is not None and STALE in names:
        raise DataError("the mode 'stale' needs the rows of an earlier time, which certificates lack: use assess_modes")
    chosen = choose_modes(protocol, names, with_earlier=False)
    if not chosen:
        raise ProtocolError("the protocol declares no failure modes: fit one that does, or audit without modes")
    units = units_by_mode(protocol)
    return ModesDeclaration(
        engine=name_engine(rows, engine),
        rows=None if most is None else ChosenRows(most, "content"),
        units={mode: units[mode] for mode in chosen},
    )


# --- how it is verified ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModesRecheck(BlockRecheck):
    """The modes block of rows, recomputed by asking the model itself for every value of every unit."""

    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        declared, protocol = self.own.declared, self.own.protocol
        assert isinstance(declared, ModesDeclaration)
        claimed = modes_claims_of(block, declared)
        self.never = self.never or never_reads(declared.engine, rows)
        fresh, differences = losses_of_rows(ModelOracle(rows), protocol, declared.modes), list[Difference]()
        for mode in declared.units:
            own, again, allowed = claimed[mode], fresh[mode], mode_tolerances(fresh, mode, self.tolerance)
            differences += find_differences(claimed.ids, f"exposure_{mode}", own.exposure, again.exposure, allowed[1])
            differences += find_differences(claimed.ids, f"mode_drop_{mode}", own.drop, again.drop, allowed[0][:, None])
            differences += find_differences(
                claimed.ids, f"flip_chance_{mode}", own.flip_chance, again.flip_chance, DISAGREEMENT
            )
        return differences

    def describe(self) -> str:
        return f"{write_count(self.rows, 'row')} recomputed by asking the model for every value, {self.result}"


def mode_tolerances(fresh: ModeLosses, mode: str, tolerance: float) -> tuple[Floats, Floats]:
    """Return how far the drops and the exposure of each row may lie, by how margins enter them."""
    one, own = fresh[mode], np.abs(fresh.margin)
    largest = own + 2.0 * np.abs(one.drop).max(axis=1, initial=0.0)  # a drop is a mean over values
    margin = tolerance * (1.0 + largest * 1e-3) + bound_saturation(largest)
    # a sum over units of drops, each of two margins, over |m|
    return 2.0 * margin, np.minimum(margin * (2.0 * len(one.units) + one.loss) / (own + EPSILON), 1.0) + 1e-12


class ModesBlock(Block):
    """What each declared failure mode costs a prediction, asked for by ``modes``."""

    name = "modes"
    rows = "rows with failure modes"
    declaration = ModesDeclaration
    recheck = ModesRecheck
    by = "content"
    claims = ("margin",)

    def columns(self, declared: ModesDeclaration, protocol: Protocol) -> list[Column]:
        return columns_of(declared.units, protocol)

    def declare(self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> ModesDeclaration:
        return declare_modes(rows, protocol, run.engine, wanted["modes"])

    def check_declaration(self, declared: ModesDeclaration, protocol: Protocol, fingerprint: str) -> None:
        check_units(declared.units, units_by_mode(protocol))

    def make(
        self, rows: EvidenceRows, protocol: Protocol, declared: ModesDeclaration, claims: Mapping[str, Any], run: Run
    ) -> Mapping[str, Any]:
        oracle = ModelOracle(rows) if declared.engine == BLACKBOX else choose_oracle(rows)
        with run.show("failure modes") as report:
            losses = losses_of_rows(oracle, protocol, declared.modes, byte_budget=run.byte_budget, report=report)
        by_mode = losses.by_mode.values()
        drop, flip_chance = (
            np.concatenate([getattr(loss, name) for loss in by_mode], axis=1) for name in ("drop", "flip_chance")
        )
        return write_columns(ModesClaims.of_margins(rows.ids, declared.units, claims["margin"], drop, flip_chance))

    def read(self, table: pa.Table, declared: ModesDeclaration, protocol: Protocol) -> ModesClaims:
        return modes_claims_of(table, declared)

    def find_contradictions(
        self,
        values: ModesClaims,
        claims: Claims,
        declared: ModesDeclaration,
        protocol: Protocol,
        classes: Sequence[ClassLabel],
    ) -> Contradictions:
        return modes_contradictions(values, claims, protocol)

    def read_row(
        self, row: Mapping[str, Any], declared: ModesDeclaration, protocol: Protocol
    ) -> dict[str, ModeCost] | None:
        return costs_of_row(row, declared)
