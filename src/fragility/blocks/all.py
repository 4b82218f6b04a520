"""All kinds of blocks, in the order in which audits name them; whoever handles blocks goes through this list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fragility.base.errors import CertificateError
from fragility.base.schemas import show_value
from fragility.blocks.any_value import AnyValueBlock
from fragility.blocks.baselines.block import BaselinesBlock
from fragility.blocks.block import AuditBlock, Block, Declaration, Requests
from fragility.blocks.choice import CLAIMS_TO_CHOOSE
from fragility.blocks.intervals.block import IntervalsBlock
from fragility.blocks.lattice.block import LatticeBlock
from fragility.blocks.modes import ModesBlock
from fragility.engines.engine import Run
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol

BLOCKS: dict[str, Block] = {
    kind.name: kind for kind in (LatticeBlock(), ModesBlock(), IntervalsBlock(), AnyValueBlock(), BaselinesBlock())
}
NO_BLOCKS: Requests = {"lattice": False, "baselines": False}


def declare_blocks(wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> dict[str, Declaration]:
    """Return what the blocks of an audit will be made with, by name; rows: the first of the audit.

    A block that nobody asked for is left out if it cannot be made.
    """
    declared = {
        name: kind.declare(wanted, rows, protocol, run) for name, kind in BLOCKS.items() if kind.is_wanted(wanted)
    }
    return {name: own for name, own in declared.items() if own is not None}


def want_none(wanted: Requests) -> bool:
    """Return whether no block is wanted."""
    return not any(kind.is_wanted(wanted) for kind in BLOCKS.values())


def list_claims() -> list[str]:
    """Return the claims by which rows are chosen for blocks, and those that blocks are made from."""
    return list(dict.fromkeys([*CLAIMS_TO_CHOOSE, *(name for kind in BLOCKS.values() for name in kind.claims)]))


def place_blocks(
    declared: Mapping[str, Declaration], protocol: Protocol, fingerprint: str, classes: tuple[Any, ...]
) -> dict[str, AuditBlock]:
    """Return the declared blocks of an audit of this model under this protocol, by name, in order."""
    return {
        name: AuditBlock(BLOCKS[name], own, protocol, fingerprint, tuple(classes)) for name, own in declared.items()
    }


def read_declarations(document: Any, what: str) -> dict[str, Declaration]:
    """Return the declarations in the field ``blocks`` of a manifest; refuses unknown blocks, and another order."""
    if not isinstance(document, Mapping):
        raise CertificateError(f"blocks in {what} must be an object, got {show_value(document)}")
    unknown = [name for name in document if name not in BLOCKS]
    if unknown:
        raise CertificateError(
            f"{what} has the unknown field 'blocks.{unknown[0]:.80}'; the fields of blocks are {', '.join(BLOCKS)}"
        )
    if list(document) != [name for name in BLOCKS if name in document]:
        raise CertificateError(f"the fields of blocks in {what} are not in the order of the format")
    return {name: BLOCKS[name].declaration.from_dict(own, what, f"blocks.{name}") for name, own in document.items()}
