"""Integrity: the checks that need neither model nor rows: format, digests and protocol.

Every part is read once. Of its rows only digests and keys of ids are kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fragility.audits.audit import Audit
from fragility.audits.manifest import Manifest, check_words, identical
from fragility.audits.stored import open_audit
from fragility.base.arrays import Floats, Integers
from fragility.base.canonical import packed_root
from fragility.base.errors import CertificateError, ProtocolError, VerificationError
from fragility.base.ids import id_keys
from fragility.base.libraries import VERSIONED
from fragility.base.schemas import is_digest
from fragility.blocks.all import place_blocks
from fragility.blocks.block import DIGEST, AuditBlock
from fragility.blocks.checks import MALFORMED, MAX_KEPT, Check, Difference
from fragility.blocks.choice import CLAIMS_TO_CHOOSE
from fragility.blocks.claims import (
    Claims,
    context_digest,
    contradictions,
    digest_from_text,
    digest_text,
    row_digests,
)
from fragility.engines.choice import ENGINES
from fragility.pages.wording import write_count
from fragility.protocol import Protocol


def check_integrity(audit: str | os.PathLike[str] | Audit) -> tuple[Check, ...]:
    """Return the checks that need neither model nor rows: format, digests and protocol."""
    loaded, first = load_audit(audit)
    return (first,) if loaded is None else (first, check_digests(loaded), check_protocol(loaded))


@dataclass(frozen=True, eq=False)
class LoadedAudit:
    """An audit whose format holds; of its rows only digests and keys of ids are kept, not claims."""

    audit: Audit
    keys: npt.NDArray[np.bytes_]  # (n,) of the ids
    confidence: Floats  # (n,)
    digests: bytearray  # 32 bytes per row: recomputed from the claims, or as stated where those are a summary
    wrong_digests: tuple[Difference, ...]
    block_digests: dict[str, bytearray]  # the same of each block that is there

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def by_key(self) -> Integers:
        """Positions in the order of the keys."""
        return np.asarray(np.argsort(self.keys, kind="stable"), dtype=np.int64)

    def positions(self, ids: Sequence[Hashable]) -> Integers:
        """Return where the certificates of these ids stand; -1 for an id without one."""
        keys = id_keys(ids)
        place = np.minimum(np.searchsorted(self.keys, keys, sorter=self.by_key), len(self) - 1)
        found = self.by_key[place]
        return np.where(self.keys[found] == keys, found, -1)


def load_audit(audit: str | os.PathLike[str] | Audit) -> tuple[LoadedAudit | None, Check]:
    """Return the certificates and the outcome of the format check."""
    if not isinstance(audit, Audit) and not Path(audit).is_dir():
        raise VerificationError(f"{audit} is not a folder; give the folder an audit was saved to")
    try:
        opened = audit if isinstance(audit, Audit) else open_audit(audit)
        _check_declarations(opened.manifest, opened.protocol)
        loaded = _read_rows(opened)
    except (CertificateError, ProtocolError) as error:
        return None, Check("format", False, str(error))
    except MALFORMED as error:
        return None, Check("format", False, f"the folder is malformed: {type(error).__name__}: {error}")
    return loaded, Check("format", True, f"{loaded.audit.manifest.format}, {write_count(len(loaded), 'certificate')}")


def _check_declarations(manifest: Manifest, protocol: Protocol) -> None:
    """Refuse a manifest or protocol that is not written as the format says, or contradicts the other."""
    # By the rules that they are read by, also where they were made in memory.
    Manifest.from_dict(manifest.to_dict())
    check_words(manifest, protocol, ENGINES[1:])
    Protocol.from_dict(protocol.to_dict())
    model = manifest.model
    for own in place_blocks(manifest.blocks, protocol, model.fingerprint, model.classes).values():
        own.check_declaration()
    unknown = set(manifest.versions) - {"python", "fragility", *VERSIONED}
    if unknown:
        raise CertificateError(f"the manifest names the version of {min(unknown)!r}, which has no part in an audit")


def _read_rows(audit: Audit) -> LoadedAudit:
    """Read every part once: its claims must have the format's types and contradict nothing, its digests are noted."""
    keys, confidence = list[npt.NDArray[np.bytes_]](), list[Floats]()
    digests, wrong_digests, wrong, count = bytearray(), list[Difference](), list[str](), 0
    blocks = {name: bytearray() for name in audit.blocks}  # digests
    expected = ExpectedRows.of(audit)
    for table in audit.batches():
        claims = audit.read_claims(table)
        bad, differing = contradictions(claims, audit.protocol, audit.extent), list[Difference]()
        for name, own in audit.blocks.items():
            blocks[name] += _read_block(own, table, claims, bad, differing)
        expected.add(table)
        count += len(bad)
        wrong += [f"{name} of row {claims.ids[i]}" for i, name in bad[: 5 - len(wrong)]]
        keys.append(id_keys(claims.ids))
        confidence.append(claims.confidence)
        stated, others = _digests_of(table, claims, audit)
        digests += stated
        wrong_digests += [*differing, *others][: MAX_KEPT - len(wrong_digests)]
    loaded = LoadedAudit(audit, np.concatenate(keys), np.concatenate(confidence), digests, tuple(wrong_digests), blocks)
    _check_counts(loaded)
    if count:
        raise CertificateError(f"{count} claims contradict the other claims of their rows: {', '.join(wrong)}")
    expected.check()
    return loaded


@dataclass
class ExpectedRows:
    """The rows that blocks of chosen rows may have, kept from all parts read so far."""

    audit: Audit
    blocks: dict[str, AuditBlock]  # those of chosen rows
    covered: dict[str, list[Hashable]]
    rows: dict[str, pa.Table] = field(default_factory=dict)
    confident: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, audit: Audit) -> ExpectedRows:
        """Return the choices of an audit; no row is kept yet."""
        blocks = blocks_of_chosen_rows(audit)
        return cls(audit, blocks, {name: audit.ids_of_block(name) for name in blocks})

    def add(self, table: pa.Table) -> None:
        """Keep rows of another part, too."""
        for name, own in self.blocks.items():
            rows, choice = table.select(list(CLAIMS_TO_CHOOSE)), own.choice
            assert choice is not None
            if self.audit.manifest.is_selection:  # what else was chosen is not known any more
                rows = rows.filter(pa.array(own.covered(table)))
            self.confident[name] += len(choice.find_confident(rows))
            rows = pa.concat_tables([self.rows[name], rows]) if name in self.rows else rows
            self.rows[name] = choice.keep_candidates(rows, set(self.covered[name]))

    def check(self) -> None:
        """Refuse an audit whose blocks have other rows."""
        whole = not self.audit.manifest.is_selection
        for name, own in self.blocks.items():
            if not whole and not own.kind.in_selections:
                raise CertificateError(f"the {name} block is about a whole audit, of which only a selection is here")
            choice = own.choice
            if choice is None or name not in self.rows:
                continue
            fault = choice.find_fault(self.rows[name], self.confident[name], self.covered[name], whole=whole)
            if fault is not None:
                raise CertificateError(f"{own.describe_choice()}: {fault}")


def blocks_of_chosen_rows(audit: Audit) -> dict[str, AuditBlock]:
    """Return the blocks that do not have every row, by name."""
    return {name: own for name, own in audit.blocks.items() if own.declared.is_partial}


def _check_counts(loaded: LoadedAudit) -> None:
    if loaded.audit.manifest.rows != len(loaded):
        raise CertificateError(f"the manifest declares {loaded.audit.manifest.rows} rows, the table has {len(loaded)}")
    if not len(loaded):
        raise CertificateError("there is no certificate here, so there is nothing to verify")
    ordered = loaded.keys[loaded.by_key]
    if (ordered[1:] == ordered[:-1]).any():
        raise CertificateError("the table names a row twice")


def audit_context(audit: Audit) -> bytes:
    """Return what binds the digests of an audit's rows to its protocol and model."""
    model = audit.manifest.model
    return context_digest(audit.manifest.protocol_digest, model.fingerprint, model.classes)


def _digests_of(table: pa.Table, claims: Claims, audit: Audit) -> tuple[bytes, list[Difference]]:
    """Return the digests of some rows, and where those stated are others; those of a summary can only be read."""
    stated = table.column("digest").to_pylist()
    if audit.extent == "full":
        digests = row_digests(claims, audit_context(audit), audit.protocol.resolution)
        return b"".join(digests), _compare_digests("digest", claims.ids, stated, digests)
    for text in stated:
        if not is_digest(text):
            raise CertificateError(f"the table holds {text!r:.80} for a digest")
    return b"".join(map(digest_from_text, stated)), []


def _read_block(
    own: AuditBlock, table: pa.Table, claims: Claims, bad: list[tuple[int, str]], wrong: list[Difference]
) -> bytes:
    """Return the digests of a block of some rows; note contradictions, and where those stated are others."""
    covered = own.covered(table)
    own.check_absent(table.filter(pa.array(~covered)))
    places = np.flatnonzero(covered)
    mine = own.cut_out(table, places)
    bad += [(int(places[i]), name) for i, name in own.find_contradictions(mine, claims.take(places.tolist()))]
    digests, ids = own.hash_rows(mine), mine.column("id").to_pylist()
    wrong += _compare_digests(own.digest, ids, mine.column(DIGEST).to_pylist(), digests)
    return b"".join(digests)


def _compare_digests(
    field: str, ids: Sequence[Hashable], stated: Sequence[Any], digests: Sequence[bytes]
) -> list[Difference]:
    found = zip(ids, stated, map(digest_text, digests), strict=True)
    return [Difference(own_id, field, claimed, own) for own_id, claimed, own in found if claimed != own]


def check_digests(loaded: LoadedAudit) -> Check:
    differences = list(loaded.wrong_digests)
    manifest = loaded.audit.manifest
    roots: list[tuple[str, str | None, bytearray]] = [("root_digest", manifest.root_digest, loaded.digests)]
    for name, own in loaded.block_digests.items():
        roots.append((f"blocks.{name}.root_digest", manifest.blocks[name].root_digest, own))
    for name, claimed, digests in roots:
        root = digest_text(packed_root(bytearray(digests)))
        if root != claimed:
            differences.append(Difference("all", name, claimed, root))
    detail = f"{len(differences)} digests do not match" if differences else "manifest, files, rows and root match"
    return Check("digests", not differences, detail, differences=tuple(differences))


def check_protocol(loaded: LoadedAudit) -> Check:
    claimed, actual = loaded.audit.manifest.protocol_digest, loaded.audit.protocol.digest
    return check_equality("protocol", "the protocol", {"digest": (claimed, actual)})


def check_equality(name: str, noun: str, pairs: dict[str, tuple[Any, Any]]) -> Check:
    differences = tuple(Difference("all", f, a, b) for f, (a, b) in pairs.items() if not identical(a, b))
    told = "is not the one audited" if differences else "is the one audited"
    return Check(name, not differences, f"{noun} {told}", differences=differences)
