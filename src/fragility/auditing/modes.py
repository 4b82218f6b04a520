"""The modes block of certificates: how it is made.

`modes_of_rows` is a function of rows, protocol and declaration alone, so a block may be made part by part.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from fragility.arrays import DEFAULT_BYTE_BUDGET, Floats
from fragility.auditing.blocks import Wanted, name_engine, read_wanted
from fragility.certificates import ModesDeclaration
from fragility.certificates.modes import ModesClaims
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import prepare_answers
from fragility.errors import DataError, ProtocolError
from fragility.evidence import EvidenceRows
from fragility.modes.losses import choose_modes, losses_of_rows, units_of
from fragility.progress import Report
from fragility.protocol import Protocol

MOST_CONFIDENT = 2000  # rows that the command line assesses where nobody asked for every row
STALE = "stale"  # needs rows of another time, which an audit does not have
WantedModes: TypeAlias = Wanted  # names are those of modes that the protocol declares


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
    ready = rows if declared.engine == BLACKBOX else prepare_answers(rows)
    losses = losses_of_rows(ready, protocol, declared.modes, byte_budget=byte_budget, report=report).by_mode.values()
    drop = np.concatenate([loss.drop for loss in losses], axis=1)
    flip_chance = np.concatenate([loss.flip_chance for loss in losses], axis=1)
    return ModesClaims.of_margins(rows.ids, declared.units, margin, drop, flip_chance)


def no_modes(declared: ModesDeclaration) -> ModesClaims:
    """Return the block of no rows."""
    none = np.empty((0, sum(map(len, declared.units.values()))))
    return ModesClaims.of_margins((), declared.units, np.empty(0), none, none)
