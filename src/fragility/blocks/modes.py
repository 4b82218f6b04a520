"""The modes block: what each declared failure mode costs a prediction, beside the claims it does not change.

For mode m with units u, where delta_u is the expected loss of margin and f_u the chance of a flip (see
fragility.questions.modes):

    mode_drop_m = delta_u,   flip_chance_m = f_u,   exposure_m = 1 - exp(-w_m sum_u [delta_u]_+ / (|margin| + 1e-8))

w_m is 1/2 for noise, of which a unit is a column and a direction, and 1 for every other mode.

The block is optional and stands in a table of its own (`fragility.blocks.block`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats
from fragility.base.errors import CertificateError, DataError, ProtocolError
from fragility.base.progress import Report
from fragility.base.schemas import Positive
from fragility.blocks.block import BlockDeclaration, BlockForm
from fragility.blocks.choice import RowChoice
from fragility.blocks.claims import (
    PROBABILITY_UNIT,
    Claims,
    Extent,
    RowArrays,
    context_digest,
    find_differing,
    float_column,
    hash_rows,
    list_of,
    lists_per_row,
    read_float_lists,
    whole_column,
)
from fragility.blocks.requests import Wanted, name_engine, read_wanted
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import choose_oracle
from fragility.engines.oracle import ModelOracle
from fragility.evidence import EvidenceRows
from fragility.evidence.modes import UNIT_WEIGHTS
from fragility.models import ClassLabel
from fragility.protocol import Protocol
from fragility.questions.modes.losses import choose_modes, losses_of_rows, units_of
from fragility.scores import independent_loss

LOST = "lost"
MOST_CONFIDENT = 2000  # rows that the command line assesses where nobody asked for every row
STALE = "stale"  # needs rows of another time, which an audit does not have
WantedModes: TypeAlias = Wanted  # names are those of modes that the protocol declares


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesDeclaration(BlockDeclaration):
    """What a modes block was made with."""

    most_confident: Positive | None = (
        None  # so many confident rows have a block, drawn by their content; None: every row
    )
    units: dict[str, list[str]]  # by mode, in declared order

    @property
    def most(self) -> int | None:
        return self.most_confident

    def choice(self, protocol: Protocol) -> RowChoice | None:
        most = self.most_confident
        return None if most is None else RowChoice(most, "content", protocol.min_confidence)

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.units)

    @property
    def form(self) -> BlockForm:
        number, numbers = pa.float64(), list_of(pa.float64())
        by_mode = [
            column
            for mode in self.units
            for column in (
                (f"exposure_{mode}", number),
                (f"mode_drop_{mode}", numbers),
                (f"flip_chance_{mode}", numbers),
            )
        ]
        return BlockForm("rows with failure modes", [*by_mode, ("modes_digest", pa.string())])


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
    """Return the block in a row of the table, by mode; None if the row has none."""
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


def with_modes(
    table: pa.Table, claims: ModesClaims, declaration: ModesDeclaration, context: bytes, resolution: float
) -> tuple[pa.Table, list[bytes]]:
    """Return a table with the columns of the block of its rows behind its own, and the block's digests."""
    digests = modes_digests(claims, context, resolution)
    values: dict[str, Any] = {}
    for mode in declaration.units:
        own = claims[mode]
        values[f"exposure_{mode}"] = own.exposure
        values[f"mode_drop_{mode}"] = lists_per_row(own.drop)
        values[f"flip_chance_{mode}"] = lists_per_row(own.flip_chance)
    return declaration.form.append(table, values, digests), digests


def modes_claims_of(table: pa.Table, declaration: ModesDeclaration) -> ModesClaims:
    """Return the block of a table of rows that all have one; refuses values that no block can hold."""

    def read(kind: str) -> Floats:
        lists = [read_float_lists(table, f"{kind}_{mode}", len(units)) for mode, units in declaration.units.items()]
        return np.concatenate(lists, axis=1)

    exposure = [float_column(table, f"exposure_{mode}") for mode in declaration.units]
    ids = tuple(whole_column(table, "id").to_pylist())
    return ModesClaims(ids, declaration.units, np.stack(exposure, axis=1), read("mode_drop"), read("flip_chance"))


# --- digests ------------------------------------------------------------------------------------------------


def modes_digests(claims: ModesClaims, context: bytes, resolution: float) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and block in the layout of docs/format.md."""
    columns = [(claims.drop, "<f8", resolution), (claims.flip_chance, "<f8", PROBABILITY_UNIT)]
    return hash_rows(claims.ids, context, columns)


def modes_context(
    protocol_digest: str, model_fingerprint: str, classes: Sequence[ClassLabel], declaration: ModesDeclaration
) -> bytes:
    """Return what binds a row's block to its protocol, its model and its units; not to an engine or to other rows."""
    return context_digest(protocol_digest, model_fingerprint, classes, modes={"units": declaration.units})


# --- what can be checked without the model ------------------------------------------------------------------


def check_modes_declaration(
    declared: ModesDeclaration, implied: Mapping[str, Sequence[str]], engines: Sequence[str]
) -> None:
    """Refuse a declaration that is not one of the protocol's modes; implied: the units of all that it may have."""
    units = declared.units
    if not units or list(units) != [mode for mode in implied if mode in units]:
        raise CertificateError(
            f"modes.units in the manifest must name modes of the protocol ({', '.join(implied)}) in their order, got "
            f"{units!r:.80}"
        )
    for mode, names in units.items():
        if names != list(implied[mode]):
            raise CertificateError(f"modes.units.{mode} in the manifest is not the list of units that the protocol has")
    if declared.engine not in engines:
        raise CertificateError(f"modes in the manifest names the engine {declared.engine!r:.80}, which does not exist")


def modes_contradictions(
    block: ModesClaims, claims: Claims, protocol: Protocol, extent: Extent
) -> list[tuple[int, str]]:
    """Return (position, claim) wherever the block contradicts itself or the other claims of the same rows."""
    wrong: dict[str, Booleans] = {}
    for mode in block.units:
        own = block[mode]
        chance = own.flip_chance
        possible = (chance == 0.0) | (chance == 1.0) if mode == LOST else (chance >= 0.0) & (chance <= 1.0)
        wrong[f"exposure_{mode}"] = find_differing(own.exposure, exposure_to(mode, claims.margin, own.drop))
        wrong[f"flip_chance_{mode}"] = np.asarray(~np.all(possible, axis=1))
        if mode == LOST and extent == "full":
            unit = protocol.resolution * (1.0 + np.abs(claims.path_margin).max(axis=1, keepdims=True) * 1e-3)
            wrong[f"mode_drop_{mode}"] = np.asarray(
                np.any(np.abs(own.drop - claims.one_step_drop) > 2.0 * unit, axis=1)
            )
    return [(int(i), name) for name, bad in wrong.items() for i in np.flatnonzero(bad)]


# --- how it is made -------------------------------------------------------------------------------------------


def units_by_mode(protocol: Protocol) -> dict[str, list[str]]:
    """Return the modes that a block may have under this protocol, and their units."""
    return {mode: list(units_of(protocol, mode)) for mode in protocol.modes.declared if mode != STALE}


def declare_modes(rows: EvidenceRows, protocol: Protocol, engine: str, wanted: WantedModes) -> ModesDeclaration | None:
    """Return what a block of these rows will be made with; None for no block."""
    if wanted is None or wanted is False:
        return None
    names, most = read_wanted(wanted, "modes", "assess")
    if names is not None and STALE in names:
        raise DataError("the mode 'stale' needs the rows of an earlier time, which certificates lack: use assess_modes")
    chosen = choose_modes(protocol, names, with_earlier=False)
    if not chosen:
        raise ProtocolError("the protocol declares no failure modes: fit one that does, or audit without modes")
    units = units_by_mode(protocol)
    return ModesDeclaration(
        engine=name_engine(rows, engine),
        most_confident=most,
        units={mode: units[mode] for mode in chosen},
    )


def modes_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    declared: ModesDeclaration,
    margin: Floats,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    report: Report | None = None,
) -> ModesClaims:
    """Return the block of some rows, whose certificates have these margins; it depends on no other row."""
    if not len(rows):
        return no_modes(declared)
    oracle = ModelOracle(rows) if declared.engine == BLACKBOX else choose_oracle(rows)
    losses = losses_of_rows(oracle, protocol, declared.modes, byte_budget=byte_budget, report=report).by_mode.values()
    drop = np.concatenate([loss.drop for loss in losses], axis=1)
    flip_chance = np.concatenate([loss.flip_chance for loss in losses], axis=1)
    return ModesClaims.of_margins(rows.ids, declared.units, margin, drop, flip_chance)


def no_modes(declared: ModesDeclaration) -> ModesClaims:
    """Return the block of no rows."""
    none = np.empty((0, sum(map(len, declared.units.values()))))
    return ModesClaims.of_margins((), declared.units, np.empty(0), none, none)
