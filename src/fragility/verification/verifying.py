"""verify: do the claims of an audit hold?

Checks, in this order, each reported whether or not an earlier one failed:

1. format        the files are the ones the manifest names, every column has its type, no claim contradicts another,
                 and no word of manifest and protocol contradicts the values or the format
2. digests       every row's digest and the root digest are those of the claims
3. protocol      the protocol is the one the manifest names
4. model         the model given is the one audited, and described as it is
5. input         the rows given are the ones audited
6. recomputation every claim, or those of a random sample of rows, recomputed through the black-box engine
7. lattice       where there is a lattice block: the same rows searched again as it declares, every set put to the
                 model, and the model asked about smaller sets as far as that is affordable
8. baselines     where the finding was computed again under other baselines: the same, row by row

Integers and names must be equal; floats may differ by the tolerance that follows from the protocol.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans, Floats, Integers
from fragility.auditing.auditor import Auditor, claims_from, input_row_digests
from fragility.auditing.baselines import bound_under
from fragility.auditing.lattice import LATTICE_ENGINES, confirm_lattice, largest_size
from fragility.certificates import (
    COMPARED_CLAIMS,
    PART_ROWS,
    PER_STEP,
    RANKED,
    Audit,
    Claims,
    LatticeClaims,
    LatticeDeclaration,
    Manifest,
    Tolerance,
    check_comparison,
    check_declaration,
    check_words,
    claims_of,
    context_digest,
    contradictions,
    digest_from_text,
    digest_text,
    identical,
    lattice_claims_of,
    lattice_columns,
    lattice_context,
    lattice_contradictions,
    lattice_digests,
    most_exposed,
    open_audit,
    row_digests,
    rows_to_compare,
    seed_of,
)
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import ENGINES, never_reads
from fragility.errors import Advice, CertificateError, FragilityError, ProtocolError, VerificationError
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import with_ties_settled
from fragility.ids import IdSpan, id_keys, say_other_rows
from fragility.libraries import VERSIONED
from fragility.merkle import packed_root
from fragility.models import Model
from fragility.progress import Report, progress_bar
from fragility.protocol import Protocol, bind
from fragility.scores import EPSILON
from fragility.text import escape_controls
from fragility.wording import join_names

MAX_LISTED = 20
MAX_KEPT = 10_000  # differences; what is wrong in more rows than this is counted only
# What a document of unknown origin can still set off behind the checks that name its fault.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, pa.ArrowException)
EXACT = ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted")
FORGED_SHARE = 0.01  # the share of forged rows for which the chance to escape a sample is told


@dataclass(frozen=True, slots=True)
class Difference:
    """A claim that does not hold."""

    row: Hashable
    field: str
    claimed: Any
    recomputed: Any

    def __str__(self) -> str:
        told = f"row {self.row}, {self.field}: claimed {self.claimed}, recomputed {self.recomputed}"
        return escape_controls(told)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: whether it passed, in words, and the claims that failed it."""

    name: str
    passed: bool
    detail: str
    tolerance: float | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of all checks; true if every one passed. Whether they covered every row, ``complete`` says.

    Attributes
    ----------
    checks : tuple of Check
        The checks in order: ``name``, ``passed``, ``detail``, ``tolerance`` and the ``differences`` found.
    rows_audited : int
        Rows of the audit, as its manifest says.
    rows_present : int
        Certificates that are here.
    rows_given : int
        Rows handed to :func:`verify`.
    rows_recomputed : int
        Certificates whose every claim was recomputed.
    rows_unsearched : int
        Of these, those with a claim in their lattice block that could not be recomputed, because the engine that made
        it cannot read the model here.
    """

    checks: tuple[Check, ...]
    rows_audited: int = 0
    rows_present: int = 0
    rows_given: int = 0
    rows_recomputed: int = 0
    rows_unsearched: int = 0

    def __bool__(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def complete(self) -> bool:
        """True if every row audited and every row given has a certificate here whose every claim was recomputed."""
        whole = self.rows_recomputed == self.rows_present == self.rows_audited == self.rows_given
        return bool(self) and whole and not self.rows_unsearched

    def escape_probability(self, forged: int) -> float:
        """Return the chance that none of so many forged certificates was among those recomputed.

        Parameters
        ----------
        forged : int
            How many of the certificates present are supposed to be forged.

        Returns
        -------
        float
            0 where every certificate was recomputed.
        """
        n, sampled = self.rows_present, self.rows_recomputed
        few, many = sorted((min(forged, n), sampled))
        return math.prod((n - many - i) / (n - i) for i in range(few)) if few + many <= n else 0.0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self:
            failed = [check.name for check in self.checks if not check.passed]
            return f"NOT verified: {' and '.join(failed)} failed"
        if self.complete:
            return f"verified: every claim of all {self.rows_present} certificates holds"
        return f"verified in part: every claim recomputed holds; {'; '.join(self._gaps())}"

    def _gaps(self) -> list[str]:
        """Say what was not checked."""
        gaps = []
        hidden, uncertified = self.rows_audited - self.rows_present, self.rows_given - self.rows_present
        if hidden:
            gaps.append(f"{self.rows_present} of {self.rows_audited} audited rows are here, {hidden} are not checked")
        if uncertified and self.rows_given != self.rows_audited:
            gaps.append(f"{uncertified} of the {self.rows_given} rows given have no certificate")
        if self.rows_recomputed < self.rows_present:
            forged = max(1, round(FORGED_SHARE * self.rows_present))
            gaps.append(
                f"{self.rows_recomputed} of {self.rows_present} certificates were recomputed, chosen at random: "
                f"{forged} forged ({forged / self.rows_present:.0%}) would escape with probability "
                f"{self.escape_probability(forged):.2g}"
            )
        if self.rows_unsearched:
            gaps.append(f"the lattice block of {self.rows_unsearched} rows was not searched again")
        return gaps

    def __str__(self) -> str:
        return "\n".join([*told_checks(self.checks), self.verdict])

    __repr__ = __str__


def told_checks(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check, and below it the claims that failed it."""
    lines = []
    for check in checks:
        lines.append(f"{'ok    ' if check.passed else 'FAILED'}  {check.name:<13}  {escape_controls(check.detail)}")
        lines += [f"          {difference}" for difference in check.differences[:MAX_LISTED]]
        if len(check.differences) > MAX_LISTED:
            lines.append(f"          and {len(check.differences) - MAX_LISTED} more")
    return lines


def verify(
    audit: str | os.PathLike[str] | Audit,
    model: Any,
    X: Any,
    *,
    ids: Any = None,
    sample: int | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Verification:
    """Check the certificates of a folder (or in memory) against the model and the rows they speak of.

    Nothing in the folder is believed: format, digests, protocol, model and rows are checked, then every claim is
    recomputed through the black-box engine, whatever engine made it.

    Parameters
    ----------
    audit : path, StoredAudit or Certificates
        The folder that :meth:`Certificates.save` or :func:`audit_files` wrote, which is read part by part, or
        certificates in memory.
    model : estimator, pipeline, booster or Model
        The model that was audited.
    X : array or table of shape (n, d)
        The raw rows that were audited; there may be more of them.
    ids : sequence, optional
        Ids of the rows of ``X``, as in :func:`audit`.
    sample : int, optional
        Recompute only this many rows, chosen at random; the other checks always cover everything.
    seed : int, optional
        Of that choice, to repeat it. Without one the choice cannot be foreseen, which is what makes a sample worth
        something: whoever knows which rows will be recomputed can forge the others.
    progress : bool, optional
        A bar on the terminal; by default if there is one.

    Returns
    -------
    Verification
        False if a check failed. ``complete`` says whether every row was checked.

    Raises
    ------
    VerificationError
        A check could not be made at all.

    See Also
    --------
    audit : Make certificates.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> certs = fg.audit(model, X[:100], fg.Protocol.fit(model, X))
    >>> fg.verify(certs, model, X[:100]).verdict
    'verified: every claim of all 100 certificates holds'
    >>> fg.verify(certs[:5], model, X[:100]).complete
    False
    """
    if sample is not None and sample < 1:
        raise VerificationError(f"sample must be at least 1 row, got {sample}")
    loaded, first = _load(audit)
    if loaded is None:
        return Verification((first,))
    wrapped = _wrapped(model)
    checks = [first, _check_digests(loaded), _check_protocol(loaded)]
    counts = {"rows_audited": loaded.manifest.input.rows, "rows_present": len(loaded)}
    given = _Given(wrapped, X, loaded.protocol, ids)
    try:
        with progress_bar("recomputing", progress) as report:
            found = _recomputed(loaded, given, _chosen(len(loaded), sample, seed), report)
    except ProtocolError as error:
        checks += [_check_model(loaded, given.model), Check("input", False, str(error))]
        return Verification(tuple(checks), **counts)
    except FragilityError as error:
        raise VerificationError("the rows cannot be audited: ", error) from error
    checks += [_check_model(loaded, given.model, found.impossible)]
    if all(check.passed for check in checks) and not found.matched.all():
        raise VerificationError(*_say_other_rows(loaded, found))
    checks += [_check_input(loaded, found), _check_recomputation(loaded, found)]
    checks += [*_check_lattice(loaded, found), *_check_baselines(loaded, found)]
    counts |= {"rows_given": found.rows_given, "rows_recomputed": found.recomputed}
    return Verification(tuple(checks), **counts, rows_unsearched=found.unsearched)


def check_integrity(audit: str | os.PathLike[str] | Audit) -> tuple[Check, ...]:
    """Return the checks that need neither model nor rows: format, digests and protocol."""
    loaded, first = _load(audit)
    return (first,) if loaded is None else (first, _check_digests(loaded), _check_protocol(loaded))


def _wrapped(model: Any) -> Model:
    try:
        return Model.wrap(model)
    except FragilityError as error:
        raise VerificationError("the model cannot be used: ", error) from error


# --- format -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Loaded:
    """An audit whose format holds; of its rows only digests and keys of ids are kept, not claims."""

    audit: Audit
    keys: npt.NDArray[np.bytes_]  # (n,) of the ids
    digests: bytearray  # 32 bytes a row: recomputed from the claims, or as stated where those are a summary
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


def _load(audit: str | os.PathLike[str] | Audit) -> tuple[_Loaded | None, Check]:
    """Return the certificates and the outcome of the format check."""
    opened = isinstance(audit, Audit)
    if not opened and not Path(audit).is_dir():  # type: ignore[arg-type]
        raise VerificationError(f"{audit} is not a folder; give the folder an audit was saved to")
    try:
        loaded = _checked_format(audit if opened else open_audit(audit))  # type: ignore[arg-type]
    except (CertificateError, ProtocolError) as error:
        return None, Check("format", False, str(error))
    except MALFORMED as error:
        return None, Check("format", False, f"the folder is malformed: {type(error).__name__}: {error}")
    return loaded, Check("format", True, f"{loaded.manifest.format}, {len(loaded)} certificates")


def _checked_format(audit: Audit) -> _Loaded:
    """Refuse what is not written as the format says, or contradicts itself."""
    manifest, protocol = audit.manifest, audit.protocol
    # Manifest and protocol by the rules that they are read by, also where they were made in memory.
    Manifest.from_dict(manifest.to_dict())
    check_words(manifest, protocol, ENGINES[1:])
    Protocol.from_dict(protocol.to_dict())
    if manifest.lattice is not None:
        seed = seed_of(manifest.protocol_digest, manifest.model.fingerprint)
        check_declaration(manifest.lattice, protocol, LATTICE_ENGINES, largest_size(protocol), seed)
    unknown = set(manifest.versions) - {"python", "fragility", *VERSIONED}
    if unknown:
        raise CertificateError(f"the manifest names the version of {min(unknown)!r}, which has no part in an audit")
    return _checked_rows(audit)


def _checked_rows(audit: Audit) -> _Loaded:
    """Read every part once: its claims must have the format's types and contradict nothing, its digests are noted."""
    keys: list[npt.NDArray[np.bytes_]] = []
    digests, block_digests, wrong_digests, wrong = bytearray(), bytearray(), list[Difference](), list[str]()
    declared, count = audit.lattice_declaration, 0
    ranked: pa.Table | None = None
    compared: pa.Table | None = None
    for table in audit.batches():
        claims = _claims_in(table, audit)
        bad = contradictions(claims, audit.protocol, audit.extent)
        if declared is not None:
            block = lattice_claims_of(table, declared, audit.protocol)
            bad += lattice_contradictions(block, claims, declared, audit.protocol)
            own, differing = _lattice_digests_of(table, block, audit)
            block_digests += own
            wrong_digests += differing[: MAX_KEPT - len(wrong_digests)]
            ranked = _searchable(table, block, audit, ranked)
        compared = _comparable(table, audit, compared)
        count += len(bad)
        wrong += [f"{name} of row {claims.ids[i]}" for i, name in bad[: 5 - len(wrong)]]
        keys.append(id_keys(claims.ids))
        own, differing = _digests_of(table, claims, audit)
        digests += own
        wrong_digests += differing[: MAX_KEPT - len(wrong_digests)]
    _check_counts(audit, np.concatenate(keys) if keys else np.empty(0, dtype="S16"))
    if count:
        raise CertificateError(f"{count} claims contradict the other claims of their rows: {', '.join(wrong)}")
    _check_searched(audit, ranked)
    _check_comparison(audit, compared)
    return _Loaded(audit, np.concatenate(keys), digests, tuple(wrong_digests), block_digests)


def _searchable(table: pa.Table, block: LatticeClaims, audit: Audit, before: pa.Table | None) -> pa.Table | None:
    """Return the rows that must have been searched, given those of earlier parts; None where all or none were."""
    declared = audit.lattice_declaration
    if declared is None or declared.most_exposed is None:
        return None
    rows = table.select(["id", *RANKED])
    if audit.manifest.is_selection:  # which rows were more exposed than these is not known any more
        rows = rows.filter(pa.array(block.searched(declared)))
    rows = rows if before is None else pa.concat_tables([before, rows])
    return rows.take(pa.array(most_exposed(rows, declared.most_exposed)))


def _check_searched(audit: Audit, expected: pa.Table | None) -> None:
    """Refuse an audit that searched other rows than the most exposed ones."""
    if expected is None:
        return
    searched, wanted = audit.searched_ids, expected.column("id").to_pylist()
    if searched != wanted:
        missing = next((own for own in wanted if own not in set(searched)), None)
        told = "in another order" if missing is None and len(searched) == len(wanted) else f"without row {missing!r}"
        told = f"with {len(searched)} rows instead of {len(wanted)}" if len(searched) > len(wanted) else told
        raise CertificateError(f"the rows searched are not the most exposed confident ones of this audit: {told}")


def _comparable(table: pa.Table, audit: Audit, before: pa.Table | None) -> pa.Table | None:
    """Return the rows that must have been compared under other baselines, given those of earlier parts."""
    if audit.manifest.baselines is None:
        return None
    rows = table.select(list(COMPARED_CLAIMS))
    rows = rows if before is None else pa.concat_tables([before, rows])
    chosen = rows_to_compare(rows.column("id").to_pylist(), rows.column("confidence").to_numpy())
    return rows.take(pa.array(chosen))


def _check_comparison(audit: Audit, expected: pa.Table | None) -> None:
    """Refuse a comparison of baselines that is not that of these rows, or whose figures are not those of its table."""
    if expected is None:
        return
    if audit.manifest.is_selection:
        raise CertificateError("the manifest compares the baselines of an audit, of which only a selection is here")
    found = audit.baselines
    if found is None:
        raise CertificateError("the manifest speaks of other baselines, but their comparison is not here")
    check_comparison(found, expected, audit.protocol)
    for name, value in found.section().items():
        stated = getattr(audit.manifest.baselines, name)
        if not identical(stated, value):
            raise CertificateError(
                f"the manifest states baselines.{name} {stated!r:.200}, its table gives {value!r:.200}"
            )


def _claims_in(table: pa.Table, audit: Audit) -> Claims:
    block = lattice_columns(audit.lattice_declaration)
    return claims_of(table, audit.protocol, audit.classes, block, extent=audit.extent)


def _check_counts(audit: Audit, keys: npt.NDArray[np.bytes_]) -> None:
    if audit.manifest.rows != len(keys):
        raise CertificateError(f"the manifest declares {audit.manifest.rows} rows, the table has {len(keys)}")
    if not len(keys):
        raise CertificateError("there is no certificate here, so there is nothing to verify")
    ordered = np.sort(keys)
    if (ordered[1:] == ordered[:-1]).any():
        raise CertificateError("the table names a row twice")


def _digests_of(table: pa.Table, claims: Claims, audit: Audit) -> tuple[bytes, list[Difference]]:
    """Return the digests of some rows, and where those stated are others; a summary does not tell its own."""
    stated = table.column("digest").to_pylist()
    if audit.extent == "summary":
        return b"".join(_digest_stated(text) for text in stated), []
    digests = row_digests(claims, _context(audit), audit.protocol.resolution)
    return b"".join(digests), _stated_otherwise("digest", claims.ids, stated, digests)


def _stated_otherwise(
    field: str, ids: Sequence[Hashable], stated: Sequence[Any], digests: Sequence[bytes]
) -> list[Difference]:
    return [
        Difference(own_id, field, claimed, digest_text(digest))
        for own_id, claimed, digest in zip(ids, stated, digests, strict=True)
        if claimed != digest_text(digest)
    ]


def _digest_stated(text: Any) -> bytes:
    digest = digest_from_text(text) if isinstance(text, str) else b""
    if digest_text(digest) != text or len(digest) != 32:
        raise CertificateError(f"the table holds {text!r:.80} for a digest")
    return digest


def _context(audit: Audit) -> bytes:
    model = audit.manifest.model
    return context_digest(audit.manifest.protocol_digest, model.fingerprint, model.classes)


def _lattice_digests_of(table: pa.Table, block: LatticeClaims, audit: Audit) -> tuple[bytes, list[Difference]]:
    """Return the digests of some rows' blocks, and where those stated are others."""
    declared = audit.lattice_declaration
    assert declared is not None
    searched = block.searched(declared)
    mine, stated = block.take(np.flatnonzero(searched).tolist()), table.column("lattice_digest")
    model = audit.manifest.model
    context = lattice_context(audit.manifest.protocol_digest, model.fingerprint, model.classes, declared)
    digests = lattice_digests(mine, context)
    wrong = _stated_otherwise("lattice_digest", mine.ids, stated.filter(pa.array(searched)).to_pylist(), digests)
    for place in np.flatnonzero(~searched & np.asarray(stated.is_valid())):
        wrong.append(Difference(block.ids[place], "lattice_digest", stated[int(place)].as_py(), "none: not searched"))
    return b"".join(digests), wrong


# --- digests, protocol, model, input ------------------------------------------------------------------------


def _check_digests(loaded: _Loaded) -> Check:
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


def _check_protocol(loaded: _Loaded) -> Check:
    claimed, actual = loaded.manifest.protocol_digest, loaded.protocol.digest
    return _equality("protocol", "the protocol", {"digest": (claimed, actual)})


def _check_model(loaded: _Loaded, model: Model, impossible: str | None = None) -> Check:
    """Compare the model with its description; impossible: why the engine named can never have read it."""
    stated, engine = asdict(loaded.manifest.model), loaded.manifest.engine.name
    actual = {
        "fingerprint": model.fingerprint,
        "kind": model.kind,
        "classes": tuple(model.classes),
        "probabilities": model.link,
        "partial": tuple(model.fingerprint_partial),
    }
    check = _equality("model", f"the model ({model.kind})", {name: (stated[name], actual[name]) for name in actual})
    if check.passed and impossible is not None:
        wrong = Difference("all", "engine.name", engine, f"cannot be: {impossible}")
        return Check("model", False, f"the {engine} engine can never have read this model", differences=(wrong,))
    if check.passed and stated["partial"]:
        seen = f"{check.detail}, as far as its fingerprint sees: {'; '.join(stated['partial'])}"
        return Check("model", True, seen)
    return check


def _equality(name: str, noun: str, pairs: dict[str, tuple[Any, Any]]) -> Check:
    differences = tuple(Difference("all", f, a, b) for f, (a, b) in pairs.items() if not identical(a, b))
    told = "is not the one audited" if differences else "is the one audited"
    return Check(name, not differences, f"{noun} {told}", differences=differences)


def _check_input(loaded: _Loaded, found: _Recomputed) -> Check:
    claimed, n_audited = loaded.manifest.input.digest, loaded.manifest.input.rows
    if n_audited != len(loaded):  # a selection, such as the most fragile: the digest is over all rows audited
        if found.rows_given != n_audited:
            return Check(
                "input",
                False,
                f"these {len(loaded)} certificates were selected from an audit of {n_audited} rows; "
                f"give those rows, got {found.rows_given}",
            )
    elif not found.matched.all():
        lacking = len(loaded) - int(found.matched.sum())
        told = f"{lacking} of the {len(loaded)} audited rows are not among the rows given"
        return Check("input", False, told)
    digest = f"sha256:{packed_root(found.input_digests).hex()}"
    return _equality("input", "the data", {"digest": (claimed, digest)})


def _say_other_rows(loaded: _Loaded, found: _Recomputed) -> tuple[str, Advice]:
    """Return the message about audited rows that are not among those given."""
    first, start, span = int(np.argmin(found.matched)), 0, IdSpan()
    name: object = None
    for batch in loaded.audit.batches(["id"]):
        ids = batch.column("id").to_pylist()
        span.add(ids)
        if start <= first < start + len(ids):
            name = ids[first - start]
        start += len(ids)
    lacking = len(loaded) - int(found.matched.sum())
    return say_other_rows(lacking, len(loaded), name, span, found.ids_given)


# --- recomputation ------------------------------------------------------------------------------------------


class _Given:
    """The rows given, bound part by part to the model."""

    def __init__(self, model: Model, X: Any, protocol: Protocol, ids: Any) -> None:
        self.model, self.protocol = model, protocol
        self._X, self._ids = X, ids

    def __iter__(self) -> Iterator[EvidenceRows]:
        if hasattr(self._X, "parts"):
            for part in self._X.parts(PART_ROWS):
                yield self._bound(part.frame, part.ids)
            return
        rows = self._bound(self._X, self._ids)
        for start in range(0, len(rows), PART_ROWS):
            yield rows.between(start, start + PART_ROWS)

    def _bound(self, X: Any, ids: Any) -> EvidenceRows:
        if isinstance(X, pd.DataFrame) and hasattr(self._X, "parts"):
            # A label beside the fields is set aside; where a field is lacking, binding says so.
            fields = [own.name for own in self.protocol.fields]
            X = X[fields] if set(fields) <= set(X.columns) else X
        rows = bind(self.model, X, self.protocol, ids)
        self.model = rows.model
        return rows


@dataclass(eq=False)
class _Recomputed:
    """What came of recomputing, row by row."""

    matched: Booleans  # (n,) certificates whose row is among those given
    ids_given: IdSpan = field(default_factory=IdSpan)
    input_digests: bytearray = field(default_factory=bytearray)
    rows_given: int = 0
    recomputed: int = 0
    bad_rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    impossible: str | None = None  # why the engine that the manifest names can never have read the model
    # Of the lattice block: rows that have one, rows for which the model itself was asked about every smaller set, rows
    # with a claim that was not recomputed, why the declared engine can never have searched them or cannot here, and
    # rows that do not hold.
    searched: int = 0
    asked: int = 0
    unsearched: int = 0
    never: str | None = None
    unread: str | None = None
    bad_blocks: int = 0
    disputed: list[Difference] = field(default_factory=list)
    # Of the comparison of baselines: rows recomputed, and those that do not hold.
    compared: int = 0
    bad_compared: int = 0
    miscompared: list[Difference] = field(default_factory=list)


def _chosen(n: int, sample: int | None, seed: int | None) -> Booleans:
    """Return which certificates to recompute."""
    if sample is None or sample >= n:
        return np.ones(n, dtype=bool)
    entropy = secrets.randbits(128) if seed is None else seed
    chosen = np.zeros(n, dtype=bool)
    chosen[np.random.default_rng(entropy).choice(n, size=sample, replace=False)] = True
    return chosen


def _recomputed(loaded: _Loaded, given: _Given, chosen: Booleans, report: Report | None) -> _Recomputed:
    """Go through the rows given once; recompute the chosen certificates among them, part by part."""
    found = _Recomputed(np.zeros(len(loaded), dtype=bool))
    selection = loaded.manifest.is_selection
    total = int(chosen.sum())
    for rows in given:
        found.impossible = found.impossible or never_reads(loaded.manifest.engine.name, rows)
        positions = loaded.positions(rows.ids)
        known = positions >= 0
        found.ids_given.add(rows.ids)
        if found.matched[positions[known]].any():
            raise VerificationError("the rows given name an id twice; every row needs its own")
        found.matched[positions[known]] = True
        digests = input_row_digests(rows)
        found.input_digests += b"".join(
            digest for digest, counts in zip(digests, known, strict=True) if counts or selection
        )
        wanted = np.flatnonzero(known & chosen[positions])
        for place, those in _by_part(loaded.audit.part_starts, positions[wanted]):
            _recompute(loaded, place, rows.take(wanted[those].tolist()), positions[wanted[those]], found)
            if report is not None:
                report(found.recomputed, total)
        found.rows_given += len(rows)
    return found


def _by_part(starts: Sequence[int], positions: Integers) -> Iterator[tuple[int, Integers]]:
    """Return each part that holds some of the positions, and which of them."""
    places = np.searchsorted(np.asarray(starts), positions, side="right") - 1
    for place in np.unique(places):
        yield int(place), np.flatnonzero(places == place)


def _recompute(loaded: _Loaded, place: int, rows: EvidenceRows, positions: Integers, found: _Recomputed) -> None:
    """Recompute the claims of rows whose certificates stand at these positions, all of one part."""
    audit, protocol = loaded.audit, loaded.protocol
    table = audit.part(place).take(pa.array(positions - audit.part_starts[place]))
    claims = _claims_in(table, audit)
    mine = with_ties_settled(rows, claims.predicted, protocol.resolution)
    fresh = claims_from(trace_blackbox(mine, protocol), mine, protocol)
    tolerance = Tolerance.of(protocol).margin
    differences = compare_claims(claims, fresh, protocol, tolerance, audit.classes)
    if audit.extent == "summary":
        differences += _digest_differences(table, mine, fresh, audit)
    found.recomputed += len(positions)
    found.bad_rows += len({difference.row for difference in differences})
    found.differences += differences[: MAX_KEPT - len(found.differences)]
    _confirm_block(table, mine, audit, found)
    _confirm_baselines(claims, mine, audit, found)


def _digest_differences(table: pa.Table, rows: EvidenceRows, fresh: Claims, audit: Audit) -> list[Difference]:
    """Return where digests of a summary are not those of the recomputed rows.

    Two engines may round a number to different sides of a unit. Such a row is recomputed once more, by the engine that
    the manifest names.
    """
    stated = table.column("digest").to_pylist()
    digests = [digest_text(d) for d in row_digests(fresh, _context(audit), audit.protocol.resolution)]
    doubtful = [i for i, (claimed, own) in enumerate(zip(stated, digests, strict=True)) if claimed != own]
    if doubtful and audit.engine != BLACKBOX:
        few = rows.take(doubtful)
        trace = Auditor.of(few, audit.protocol, audit.engine).trace(few)
        again = row_digests(claims_from(trace, few, audit.protocol), _context(audit), audit.protocol.resolution)
        for i, digest in zip(doubtful, again, strict=True):
            digests[i] = digest_text(digest)
    return [Difference(rows.ids[i], "digest", stated[i], digests[i]) for i in doubtful if stated[i] != digests[i]]


def _check_recomputation(loaded: _Loaded, found: _Recomputed) -> Check:
    if not found.recomputed:
        return Check("recomputation", False, "none of the audited rows is among the rows given")
    tolerance = Tolerance.of(loaded.protocol).margin
    which = "all" if found.recomputed == len(loaded) else f"{found.recomputed} of"
    told = f"{found.bad_rows} rows do not hold" if found.bad_rows else "every claim holds"
    detail = f"{which} {len(loaded)} rows recomputed, {told} (margins within {tolerance:g})"
    return Check("recomputation", not found.bad_rows, detail, tolerance, tuple(found.differences))


def _confirm_block(table: pa.Table, rows: EvidenceRows, audit: Audit, found: _Recomputed) -> None:
    """Search the lattice block of some rows again, where there is one."""
    declared = audit.lattice_declaration
    if declared is None:
        return
    tolerance = Tolerance.of(audit.protocol).margin
    claimed = lattice_claims_of(table, declared, audit.protocol)
    if declared.is_partial:
        searched = np.flatnonzero(claimed.searched(declared)).tolist()
        claimed, rows = claimed.take(searched), rows.take(searched)
    if not len(rows):
        return
    found.searched += len(rows)
    confirmed = confirm_lattice(claimed, rows, audit.protocol, declared, tolerance, False)
    found.asked += confirmed.asked
    found.unsearched += len(rows) - int(confirmed.searched.sum())
    found.never, found.unread = found.never or confirmed.never, found.unread or confirmed.unread
    found.bad_blocks += len({dispute.row for dispute in confirmed.disputed})
    disputed = confirmed.disputed[: MAX_KEPT - len(found.disputed)]
    found.disputed += [Difference(*dispute) for dispute in disputed]


def _confirm_baselines(claims: Claims, rows: EvidenceRows, audit: Audit, found: _Recomputed) -> None:
    """Recompute the rows that were compared under other baselines, where they were."""
    comparison = audit.baselines
    if comparison is None:
        return
    place_of = {own_id: place for place, own_id in enumerate(comparison.ids)}
    mine = [i for i, own_id in enumerate(claims.ids) if own_id in place_of]
    if not mine:
        return
    places, few = [place_of[claims.ids[i]] for i in mine], rows.take(mine)
    differences: list[Difference] = []
    for name in comparison.baselines[1:]:
        protocol = audit.protocol.with_baseline(name)
        other = with_ties_settled(bound_under(few, protocol), claims.predicted[mine], protocol.resolution)
        fresh = claims_from(trace_blackbox(other, protocol), other, protocol)
        tolerance = _tolerances(fresh, protocol, Tolerance.of(protocol).margin)["exposure"]
        budgets, exposures = comparison.flip_budgets(name)[places], comparison.exposures(name)[places]
        pairs = {
            f"flip_budget_{name}": (budgets, fresh.flip_budget, budgets != fresh.flip_budget),
            f"exposure_{name}": (exposures, fresh.exposure, np.abs(exposures - fresh.exposure) > tolerance),
        }
        for column, (claimed, own, differs) in pairs.items():
            wrong = np.flatnonzero(differs)
            differences += [Difference(few.ids[i], column, claimed[i].item(), own[i].item()) for i in wrong]
    found.compared += len(mine)
    found.bad_compared += len({difference.row for difference in differences})
    found.miscompared += differences[: MAX_KEPT - len(found.miscompared)]


def _check_baselines(loaded: _Loaded, found: _Recomputed) -> list[Check]:
    """Return the check of the comparison of baselines, if there is one."""
    comparison = loaded.audit.baselines
    if comparison is None or not found.recomputed:
        return []
    told = f"{found.bad_compared} rows do not hold" if found.bad_compared else "every claim holds"
    others = join_names(list(comparison.baselines[1:]))
    detail = f"{found.compared} of {len(comparison)} rows recomputed under {others}, {told}"
    tolerance = Tolerance.of(loaded.protocol).margin
    return [Check("baselines", not found.bad_compared, detail, tolerance, tuple(found.miscompared))]


def _check_lattice(loaded: _Loaded, found: _Recomputed) -> list[Check]:
    """Return the check of the lattice block, if there is one."""
    declared = loaded.audit.lattice_declaration
    if declared is None or not found.recomputed:
        return []
    differences = list(found.disputed)
    if found.never is not None:
        differences.insert(0, Difference("all", "lattice.engine", declared.engine, f"cannot be: {found.never}"))
    holds = "every claim recomputed holds" if found.unsearched else "every claim holds"
    told = f"{found.bad_blocks} rows do not hold" if found.bad_blocks else holds
    tolerance = Tolerance.of(loaded.protocol).margin
    detail = f"{_how_searched(declared, found)}, {told}"
    return [Check("lattice", not differences, detail, tolerance, tuple(differences))]


def _how_searched(declared: LatticeDeclaration, found: _Recomputed) -> str:
    if found.never is not None:
        return f"the {declared.engine} engine can never have read this model"
    if found.unread is not None:
        return (
            f"the {declared.engine} engine cannot read the model here ({found.unread}): {found.unsearched} of "
            f"{found.searched} rows were not searched again"
        )
    if not found.searched:
        return "none of these rows was searched"
    if declared.engine == BLACKBOX:
        return f"{found.searched} rows searched again by asking the model"
    return f"{found.searched} rows searched again; for {found.asked} the model itself was asked about every smaller set"


def compare_claims(
    claimed: Claims, fresh: Claims, protocol: Protocol, tolerance: float, classes: Sequence[Any]
) -> list[Difference]:
    """Return every claim that differs: exact ones at all, floats by more than their tolerance.

    Lists that a summary does not claim are not compared.
    """
    allowed = _tolerances(fresh, protocol, tolerance)
    names = {"path": protocol.group_names, "predicted": classes, "path_predicted": classes}
    summary = claimed.path_margin.shape[1] == 0
    out: list[Difference] = []
    for name in Claims.__dataclass_fields__:
        if name == "ids" or (summary and name in PER_STEP):
            continue
        a, b = getattr(claimed, name), getattr(fresh, name)
        if name in EXACT:
            differs = a != b
        else:
            with np.errstate(invalid="ignore"):
                differs = ~((np.abs(a - b) <= _shaped(allowed[name], a)) | (np.isnan(a) & np.isnan(b)))
        rows = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=1))
        out += [
            Difference(claimed.ids[i], name, _shown(a[i], names.get(name)), _shown(b[i], names.get(name))) for i in rows
        ]
    return out


def _tolerances(fresh: Claims, protocol: Protocol, tolerance: float) -> dict[str, Floats]:
    """Return each float claim's tolerance: margins as declared, the rest by how margins enter them."""
    n = len(fresh)
    scale = 1.0 + np.abs(fresh.path_margin).max(axis=1) * 1e-3
    margin = np.full(n, tolerance) * scale
    # c_k = (m - m_k) / (|m| + epsilon): near a tie a rounding error of the margin is large beside m.
    ratio = margin * (2.0 + fresh.path_collapse.max(axis=1)) / (np.abs(fresh.margin) + EPSILON)
    ratio = np.minimum(ratio, 1.0) if protocol.reading == "support" else ratio
    # a sum over groups of drops, each of two margins, over |m|
    own = margin * (2.0 * len(protocol.groups) + fresh.independent_loss) / (np.abs(fresh.margin) + EPSILON)
    v1, v2, v3 = protocol.exposure_weights
    # without attenuate_all the other two share its weight
    summed = ratio * (v1 + v3) + own * v2
    if protocol.fading is None:
        summed = (ratio * v1 + own * v2) * (v1 + v2 + v3) / (v1 + v2)
    return {
        "confidence": margin,
        "margin": margin,
        "path_margin": margin,
        "one_step_drop": 2 * margin,
        "one_step_confidence_drop": 2 * margin,
        "path_collapse": ratio + 1e-12,
        "rcma": ratio + 1e-12,
        "fds": ratio * protocol.weights[0] + 1e-12,
        "fade_margin": margin,
        "independent_loss": own + 1e-12,
        "common_loss": np.minimum(ratio, 1.0) + 1e-12,
        "exposure": np.minimum(summed, 1.0) + 1e-12,
    }


def _shaped(tolerance: Floats, like: Floats) -> Floats:
    return tolerance if like.ndim == 1 else tolerance[:, None]


def _shown(value: Any, names: Sequence[Any] | None) -> Any:
    if names is None:
        return value.tolist() if isinstance(value, np.ndarray) else value.item()
    return [names[i] for i in value] if isinstance(value, np.ndarray) else names[int(value)]
