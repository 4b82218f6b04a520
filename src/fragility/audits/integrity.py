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
from fragility.blocks.baselines.comparison import COMPARED_CLAIMS, check_comparison, choose_compared
from fragility.blocks.block import BlockDeclaration
from fragility.blocks.checks import MALFORMED, MAX_KEPT, Check, Difference
from fragility.blocks.choice import CLAIMS_TO_CHOOSE, RowChoice
from fragility.blocks.claims import (
    Claims,
    context_digest,
    contradictions,
    digest_from_text,
    digest_text,
    row_digests,
)
from fragility.blocks.intervals.values import (
    IntervalsDeclaration,
    check_intervals_declaration,
    intervals_claims_of,
    intervals_context,
    intervals_contradictions,
    intervals_digests,
)
from fragility.blocks.lattice.making import LATTICE_ENGINES, largest_size
from fragility.blocks.lattice.values import (
    LatticeDeclaration,
    check_declaration,
    lattice_claims_of,
    lattice_context,
    lattice_contradictions,
    lattice_digests,
    seed_of,
)
from fragility.blocks.modes import (
    ModesDeclaration,
    check_modes_declaration,
    modes_claims_of,
    modes_context,
    modes_contradictions,
    modes_digests,
    units_by_mode,
)
from fragility.engines.choice import ENGINES
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
    return loaded, Check("format", True, f"{loaded.audit.manifest.format}, {len(loaded)} certificates")


def _check_declarations(manifest: Manifest, protocol: Protocol) -> None:
    """Refuse a manifest or protocol that is not written as the format says, or contradicts the other."""
    # By the rules that they are read by, also where they were made in memory.
    Manifest.from_dict(manifest.to_dict())
    check_words(manifest, protocol, ENGINES[1:])
    Protocol.from_dict(protocol.to_dict())
    if manifest.lattice is not None:
        seed = seed_of(manifest.protocol_digest, manifest.model.fingerprint)
        check_declaration(manifest.lattice, protocol, LATTICE_ENGINES, largest_size(protocol), seed)
    if manifest.modes is not None:
        check_modes_declaration(manifest.modes, units_by_mode(protocol), ENGINES[1:])
    if manifest.intervals is not None:
        check_intervals_declaration(manifest.intervals, protocol, ENGINES[1:])
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
        if audit.lattice_declaration is not None:
            blocks["lattice"] += _read_lattice(table, claims, audit.lattice_declaration, audit, bad, differing)
        for name in audit.manifest.beside:
            blocks[name] += _read_block(name, table, claims, audit, bad, differing)
        expected.add(table)
        count += len(bad)
        wrong += [f"{name} of row {claims.ids[i]}" for i, name in bad[: 5 - len(wrong)]]
        keys.append(id_keys(claims.ids))
        confidence.append(claims.confidence)
        own, others = _digests_of(table, claims, audit)
        digests += own
        wrong_digests += [*differing, *others][: MAX_KEPT - len(wrong_digests)]
    loaded = LoadedAudit(audit, np.concatenate(keys), np.concatenate(confidence), digests, tuple(wrong_digests), blocks)
    _check_counts(loaded)
    if count:
        raise CertificateError(f"{count} claims contradict the other claims of their rows: {', '.join(wrong)}")
    expected.check()
    return loaded


@dataclass
class ExpectedRows:
    """The rows that a block of some rows may cover, kept from all parts read so far."""

    audit: Audit
    choices: dict[str, RowChoice]  # by what is made of the rows
    covered: dict[str, list[Hashable]]
    rows: dict[str, pa.Table] = field(default_factory=dict)
    confident: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, audit: Audit) -> ExpectedRows:
        """Return the choices of an audit; no row is kept yet."""
        choices = choices_of(audit)
        return cls(audit, choices, {name: covered_by(audit, name) for name in choices})

    def add(self, table: pa.Table) -> None:
        """Keep rows of another part, too."""
        for name, choice in self.choices.items():
            rows = table.select(EXPECTED_CLAIMS)
            block = self.audit.blocks.get("lattice" if name == "searched" else name)
            if self.audit.manifest.is_selection and block is not None:  # what else was chosen is not known any more
                rows = rows.filter(pa.array(block.covered(table)))
            self.confident[name] += len(choice.find_confident(rows))
            rows = pa.concat_tables([self.rows[name], rows]) if name in self.rows else rows
            self.rows[name] = choice.keep_candidates(rows, set(self.covered[name]))

    def check(self) -> None:
        """Refuse an audit whose blocks cover other rows."""
        audit, whole = self.audit, not self.audit.manifest.is_selection
        for name, choice in self.choices.items():
            if name not in self.rows:
                continue
            if name == "baselines":
                _check_comparison(audit, self.rows[name], self.confident[name])
                continue
            fault = choice.find_fault(self.rows[name], self.confident[name], self.covered[name], whole=whole)
            if fault is not None:
                raise CertificateError(f"{describe_choice(audit, name, choice)}: {fault}")


EXPECTED_CLAIMS = list(dict.fromkeys((*CLAIMS_TO_CHOOSE, *COMPARED_CLAIMS)))


def choices_of(audit: Audit) -> dict[str, RowChoice]:
    """Return which rows each block covers that does not cover all: searched, modes, intervals, baselines."""
    lattice, found = audit.lattice_declaration, dict[str, RowChoice | None]()
    found["searched"] = None if lattice is None else lattice.choice(audit.protocol)
    found |= {name: declared.choice(audit.protocol) for name, declared in audit.manifest.beside.items()}
    found["baselines"] = None if audit.manifest.baselines is None else choose_compared(audit.protocol)
    return {name: choice for name, choice in found.items() if choice is not None}


def covered_by(audit: Audit, name: str) -> list[Hashable]:
    """Return the ids of the rows that a block covers, in its order."""
    if name == "baselines":
        return [] if audit.baselines is None else list(audit.baselines.ids)
    return audit.searched_ids if name == "searched" else audit.ids_of_block(name)


def describe_choice(audit: Audit, name: str, choice: RowChoice) -> str:
    """Return the beginning of the sentence that a block covers other rows than those declared."""
    noun = {"searched": "rows searched", "baselines": "rows compared under other baselines"}.get(name)
    noun = noun or audit.manifest.beside[name].form.rows
    if choice.by == "exposure":
        return f"the {noun} are not the most exposed confident ones of this audit"
    return f"the {noun} are not the confident ones of this audit that their content chooses"


def _check_counts(loaded: LoadedAudit) -> None:
    if loaded.audit.manifest.rows != len(loaded):
        raise CertificateError(f"the manifest declares {loaded.audit.manifest.rows} rows, the table has {len(loaded)}")
    if not len(loaded):
        raise CertificateError("there is no certificate here, so there is nothing to verify")
    ordered = loaded.keys[loaded.by_key]
    if (ordered[1:] == ordered[:-1]).any():
        raise CertificateError("the table names a row twice")


def _check_comparison(audit: Audit, expected: pa.Table, confident: int) -> None:
    """Refuse a comparison of baselines that is not that of these rows, or whose figures are not those of its table."""
    if audit.manifest.is_selection:
        raise CertificateError("the manifest compares the baselines of an audit, of which only a selection is here")
    if audit.baselines is None:
        raise CertificateError("the manifest speaks of other baselines, but their comparison is not here")
    check_comparison(audit.baselines, expected, audit.protocol, confident)
    for name, value in audit.baselines.section().items():
        stated = getattr(audit.manifest.baselines, name)
        if not identical(stated, value):
            raise CertificateError(
                f"the manifest states baselines.{name} {stated!r:.200}, its table gives {value!r:.200}"
            )


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


def _read_lattice(
    table: pa.Table,
    claims: Claims,
    declared: LatticeDeclaration,
    audit: Audit,
    bad: list[tuple[int, str]],
    wrong: list[Difference],
) -> bytes:
    """Return the digests of some rows' lattice blocks; note contradictions, and where those stated are others."""
    block = lattice_claims_of(table, declared, audit.protocol)
    bad += lattice_contradictions(block, claims, declared, audit.protocol)
    searched, model = block.searched(declared), audit.manifest.model
    mine, stated = block.take(np.flatnonzero(searched).tolist()), table.column("lattice_digest")
    context = lattice_context(audit.manifest.protocol_digest, model.fingerprint, model.classes, declared)
    digests = lattice_digests(mine, context)
    wrong += _compare_digests("lattice_digest", mine.ids, stated.filter(pa.array(searched)).to_pylist(), digests)
    for place in np.flatnonzero(~searched & np.asarray(stated.is_valid())):
        wrong.append(Difference(block.ids[place], "lattice_digest", stated[int(place)].as_py(), "none: not searched"))
    return b"".join(digests)


def _read_block(
    name: str,
    table: pa.Table,
    claims: Claims,
    audit: Audit,
    bad: list[tuple[int, str]],
    wrong: list[Difference],
) -> bytes:
    """Return the digests of a block of some rows; note contradictions, and where those stated are others."""
    declared = audit.manifest.beside[name]
    form = declared.form
    covered = form.covered(table)
    without = table.filter(pa.array(~covered))
    if any(without.column(column).null_count < len(without) for column in form.names):
        raise CertificateError(f"a row has claims of the {name} block and no {form.digest}")
    if len(without) and not declared.is_partial:
        raise CertificateError(
            f"row {without.column('id')[0].as_py()!r} has no {name} block, and every row must have one"
        )
    mine, places = table.filter(pa.array(covered)), np.flatnonzero(covered)
    found, digests = _recompute_block(mine, claims.take(places.tolist()), declared, audit)
    bad += [(int(places[i]), column) for i, column in found]
    ids, stated = mine.column("id").to_pylist(), mine.column(form.digest).to_pylist()
    wrong += _compare_digests(form.digest, ids, stated, digests)
    return b"".join(digests)


def _recompute_block(
    mine: pa.Table, claims: Claims, declared: BlockDeclaration, audit: Audit
) -> tuple[list[tuple[int, str]], list[bytes]]:
    """Return the contradictions and the digests of a block of rows that all have one."""
    protocol, model = audit.protocol, audit.manifest.model
    bound = (audit.manifest.protocol_digest, model.fingerprint, model.classes)
    if isinstance(declared, IntervalsDeclaration):
        intervals = intervals_claims_of(mine, declared)
        found = intervals_contradictions(intervals, claims, protocol, model.classes)
        return found, intervals_digests(intervals, intervals_context(*bound, declared))
    assert isinstance(declared, ModesDeclaration)
    modes = modes_claims_of(mine, declared)
    found = modes_contradictions(modes, claims, protocol, audit.extent)
    return found, modes_digests(modes, modes_context(*bound, declared), protocol.resolution)


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
        roots.append((f"{name}.root_digest", getattr(manifest, f"{name}_root_digest"), own))
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
