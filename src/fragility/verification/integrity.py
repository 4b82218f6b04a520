"""Integrity: the checks that need neither model nor rows.

1. format    the files are the ones the manifest names, every column has its type, no claim contradicts another, and no
             word of manifest and protocol contradicts the values or the format
2. digests   every row's digest and the root digest are those of the claims
3. protocol  the protocol is the one the manifest names

Every part is read once. Of its rows only digests and keys of ids are kept.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fragility.arrays import Integers
from fragility.auditing.lattice import LATTICE_ENGINES, largest_size
from fragility.certificates import Audit, Claims, Manifest, open_audit
from fragility.certificates.claims import (
    claims_of,
    context_digest,
    contradictions,
    digest_from_text,
    digest_text,
    row_digests,
)
from fragility.certificates.dependence import COMPARED_CLAIMS, check_comparison, rows_to_compare
from fragility.certificates.lattice import (
    RANKED,
    LatticeClaims,
    check_declaration,
    lattice_claims_of,
    lattice_columns,
    lattice_context,
    lattice_contradictions,
    lattice_digests,
    most_exposed,
    seed_of,
)
from fragility.certificates.manifest import check_words, identical
from fragility.engines.choice import ENGINES
from fragility.errors import CertificateError, ProtocolError, VerificationError
from fragility.ids import id_keys
from fragility.libraries import VERSIONED
from fragility.merkle import DIGEST_BYTES, packed_root
from fragility.protocol import Protocol
from fragility.verification.outcome import MALFORMED, MAX_KEPT, Check, Difference


def check_integrity(audit: str | os.PathLike[str] | Audit) -> tuple[Check, ...]:
    """Return the checks that need neither model nor rows: format, digests and protocol."""
    loaded, first = load_audit(audit)
    return (first,) if loaded is None else (first, check_digests(loaded), check_protocol(loaded))


@dataclass(frozen=True, eq=False)
class LoadedAudit:
    """An audit whose format holds; of its rows only digests and keys of ids are kept, not claims."""

    audit: Audit
    keys: npt.NDArray[np.bytes_]  # (n,) of the ids
    digests: bytearray  # 32 bytes per row: recomputed from the claims, or as stated where those are a summary
    wrong_digests: tuple[Difference, ...]
    lattice_digests: bytearray  # the same of the lattice block, where there is one

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def manifest(self) -> Manifest:
        return self.audit.manifest

    @property
    def protocol(self) -> Protocol:
        return self.audit.protocol

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
    return loaded, Check("format", True, f"{loaded.manifest.format}, {len(loaded)} certificates")


def _check_declarations(manifest: Manifest, protocol: Protocol) -> None:
    """Refuse a manifest or protocol that is not written as the format says, or contradicts the other."""
    # By the rules that they are read by, also where they were made in memory.
    Manifest.from_dict(manifest.to_dict())
    check_words(manifest, protocol, ENGINES[1:])
    Protocol.from_dict(protocol.to_dict())
    if manifest.lattice is not None:
        seed = seed_of(manifest.protocol_digest, manifest.model.fingerprint)
        check_declaration(manifest.lattice, protocol, LATTICE_ENGINES, largest_size(protocol), seed)
    unknown = set(manifest.versions) - {"python", "fragility", *VERSIONED}
    if unknown:
        raise CertificateError(f"the manifest names the version of {min(unknown)!r}, which has no part in an audit")


def _read_rows(audit: Audit) -> LoadedAudit:
    """Read every part once: its claims must have the format's types and contradict nothing, its digests are noted."""
    keys: list[npt.NDArray[np.bytes_]] = []
    digests, block_digests, wrong_digests, wrong = bytearray(), bytearray(), list[Difference](), list[str]()
    declared, count = audit.lattice_declaration, 0
    searchable: pa.Table | None = None  # the rows that must have been searched, as far as they are known
    comparable: pa.Table | None = None  # the rows that must have been compared under other baselines
    for table in audit.batches():
        claims = read_claims(table, audit)
        bad = contradictions(claims, audit.protocol, audit.extent)
        if declared is not None:
            block = lattice_claims_of(table, declared, audit.protocol)
            bad += lattice_contradictions(block, claims, declared, audit.protocol)
            own, differing = _lattice_digests_of(table, block, audit)
            block_digests += own
            wrong_digests += differing[: MAX_KEPT - len(wrong_digests)]
            if declared.most_exposed is not None:
                rows = table.select(["id", *RANKED])
                if audit.manifest.is_selection:  # which rows were more exposed than these is not known any more
                    rows = rows.filter(pa.array(block.searched(declared)))
                rows = rows if searchable is None else pa.concat_tables([searchable, rows])
                searchable = rows.take(pa.array(most_exposed(rows, declared.most_exposed)))
        if audit.manifest.baselines is not None:
            rows = table.select(list(COMPARED_CLAIMS))
            rows = rows if comparable is None else pa.concat_tables([comparable, rows])
            chosen = rows_to_compare(rows.column("id").to_pylist(), rows.column("confidence").to_numpy())
            comparable = rows.take(pa.array(chosen))
        count += len(bad)
        wrong += [f"{name} of row {claims.ids[i]}" for i, name in bad[: 5 - len(wrong)]]
        keys.append(id_keys(claims.ids))
        own, differing = _digests_of(table, claims, audit)
        digests += own
        wrong_digests += differing[: MAX_KEPT - len(wrong_digests)]
    loaded = LoadedAudit(audit, np.concatenate(keys), digests, tuple(wrong_digests), block_digests)
    _check_counts(loaded)
    if count:
        raise CertificateError(f"{count} claims contradict the other claims of their rows: {', '.join(wrong)}")
    if searchable is not None:
        _check_searched(audit.searched_ids, searchable.column("id").to_pylist())
    if comparable is not None:
        _check_comparison(audit, comparable)
    return loaded


def _check_counts(loaded: LoadedAudit) -> None:
    if loaded.manifest.rows != len(loaded):
        raise CertificateError(f"the manifest declares {loaded.manifest.rows} rows, the table has {len(loaded)}")
    if not len(loaded):
        raise CertificateError("there is no certificate here, so there is nothing to verify")
    ordered = loaded.keys[loaded.by_key]
    if (ordered[1:] == ordered[:-1]).any():
        raise CertificateError("the table names a row twice")


def _check_searched(searched: list[Hashable], wanted: list[Hashable]) -> None:
    """Refuse an audit that searched other rows than the most exposed ones."""
    if searched == wanted:
        return
    missing = next((own for own in wanted if own not in set(searched)), None)
    if len(searched) > len(wanted):
        told = f"with {len(searched)} rows instead of {len(wanted)}"
    elif missing is None and len(searched) == len(wanted):
        told = "in another order"
    else:
        told = f"without row {missing!r}"
    raise CertificateError(f"the rows searched are not the most exposed confident ones of this audit: {told}")


def _check_comparison(audit: Audit, expected: pa.Table) -> None:
    """Refuse a comparison of baselines that is not that of these rows, or whose figures are not those of its table."""
    if audit.manifest.is_selection:
        raise CertificateError("the manifest compares the baselines of an audit, of which only a selection is here")
    if audit.baselines is None:
        raise CertificateError("the manifest speaks of other baselines, but their comparison is not here")
    check_comparison(audit.baselines, expected, audit.protocol)
    for name, value in audit.baselines.section().items():
        stated = getattr(audit.manifest.baselines, name)
        if not identical(stated, value):
            raise CertificateError(
                f"the manifest states baselines.{name} {stated!r:.200}, its table gives {value!r:.200}"
            )


def read_claims(table: pa.Table, audit: Audit) -> Claims:
    """Return the claims of some rows of an audit."""
    block = lattice_columns(audit.lattice_declaration)
    return claims_of(table, audit.protocol, audit.classes, block, extent=audit.extent)


def audit_context(audit: Audit) -> bytes:
    """Return what binds the digests of an audit's rows to its protocol and model."""
    model = audit.manifest.model
    return context_digest(audit.manifest.protocol_digest, model.fingerprint, model.classes)


def _digests_of(table: pa.Table, claims: Claims, audit: Audit) -> tuple[bytes, list[Difference]]:
    """Return the digests of some rows, and where those stated are others; those of a summary can only be read."""
    stated = table.column("digest").to_pylist()
    if audit.extent == "full":
        digests = row_digests(claims, audit_context(audit), audit.protocol.resolution)
        return b"".join(digests), _list_other_digests("digest", claims.ids, stated, digests)
    digests = [digest_from_text(text) if isinstance(text, str) else b"" for text in stated]
    for text, digest in zip(stated, digests, strict=True):
        if digest_text(digest) != text or len(digest) != DIGEST_BYTES:
            raise CertificateError(f"the table holds {text!r:.80} for a digest")
    return b"".join(digests), []


def _lattice_digests_of(table: pa.Table, block: LatticeClaims, audit: Audit) -> tuple[bytes, list[Difference]]:
    """Return the digests of some rows' blocks, and where those stated are others."""
    declared, model = audit.lattice_declaration, audit.manifest.model
    assert declared is not None
    searched = block.searched(declared)
    mine, stated = block.take(np.flatnonzero(searched).tolist()), table.column("lattice_digest")
    context = lattice_context(audit.manifest.protocol_digest, model.fingerprint, model.classes, declared)
    digests = lattice_digests(mine, context)
    wrong = _list_other_digests("lattice_digest", mine.ids, stated.filter(pa.array(searched)).to_pylist(), digests)
    for place in np.flatnonzero(~searched & np.asarray(stated.is_valid())):
        wrong.append(Difference(block.ids[place], "lattice_digest", stated[int(place)].as_py(), "none: not searched"))
    return b"".join(digests), wrong


def _list_other_digests(
    field: str, ids: Sequence[Hashable], stated: Sequence[Any], digests: Sequence[bytes]
) -> list[Difference]:
    return [
        Difference(own_id, field, claimed, digest_text(digest))
        for own_id, claimed, digest in zip(ids, stated, digests, strict=True)
        if claimed != digest_text(digest)
    ]


def check_digests(loaded: LoadedAudit) -> Check:
    differences = list(loaded.wrong_digests)
    roots: list[tuple[str, str | None, bytearray]] = [("root_digest", loaded.manifest.root_digest, loaded.digests)]
    if loaded.manifest.lattice is not None:
        roots.append(("lattice.root_digest", loaded.manifest.lattice_root_digest, loaded.lattice_digests))
    for name, claimed, digests in roots:
        root = f"sha256:{packed_root(bytearray(digests)).hex()}"
        if root != claimed:
            differences.append(Difference("all", name, claimed, root))
    detail = f"{len(differences)} digests do not match" if differences else "manifest, files, rows and root match"
    return Check("digests", not differences, detail, differences=tuple(differences))


def check_protocol(loaded: LoadedAudit) -> Check:
    claimed, actual = loaded.manifest.protocol_digest, loaded.protocol.digest
    return check_equality("protocol", "the protocol", {"digest": (claimed, actual)})


def check_equality(name: str, noun: str, pairs: dict[str, tuple[Any, Any]]) -> Check:
    differences = tuple(Difference("all", f, a, b) for f, (a, b) in pairs.items() if not identical(a, b))
    told = "is not the one audited" if differences else "is the one audited"
    return Check(name, not differences, f"{noun} {told}", differences=differences)
