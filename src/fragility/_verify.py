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

Integers and names must be equal; floats may differ by the tolerance that follows from the protocol.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fragility._audit import claims_from, input_row_digests
from fragility._lattice import BLACKBOX, LATTICE_ENGINES, confirm_lattice, largest_size
from fragility.arrays import Floats
from fragility.canonical import combine_digests
from fragility.certificates import (
    Certificates,
    Claims,
    check_declaration,
    check_manifest,
    check_words,
    context_digest,
    contradictions,
    declared_tolerance,
    digest_text,
    identical,
    lattice_context,
    lattice_contradictions,
    lattice_digests,
    row_digests,
)
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import ENGINES
from fragility.errors import CertificateError, FragilityError, ProtocolError, VerificationError
from fragility.evidence import EvidenceRows
from fragility.evidence.agreement import with_ties_settled
from fragility.evidence.averages import BASELINES
from fragility.libraries import VERSIONED
from fragility.models import Model
from fragility.progress import progress_bar
from fragility.protocol import Protocol, bind
from fragility.scores import EPSILON

MAX_LISTED = 20
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
        return f"row {self.row}, {self.field}: claimed {self.claimed}, recomputed {self.recomputed}"


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
        Of these, those whose lattice block could be searched again only in part, because the engine that made it cannot
        read the model here.
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
            gaps.append(f"the lattice block of {self.rows_unsearched} rows could be searched again only in part")
        return gaps

    def __str__(self) -> str:
        return "\n".join([*told_checks(self.checks), self.verdict])

    __repr__ = __str__


def told_checks(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check, and below it the claims that failed it."""
    lines = []
    for check in checks:
        lines.append(f"{'ok    ' if check.passed else 'FAILED'}  {check.name:<13}  {check.detail}")
        lines += [f"          {difference}" for difference in check.differences[:MAX_LISTED]]
        if len(check.differences) > MAX_LISTED:
            lines.append(f"          and {len(check.differences) - MAX_LISTED} more")
    return lines


def verify(
    audit: str | os.PathLike[str] | Certificates,
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
    audit : path or Certificates
        The folder that :meth:`Certificates.save` wrote, or certificates in memory.
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
    counts = {"rows_audited": loaded.manifest["input"]["rows"], "rows_present": len(loaded)}
    try:
        rows = bind(wrapped, X, loaded.protocol, ids)
    except ProtocolError as error:
        checks += [_check_model(loaded, wrapped), Check("input", False, str(error))]
        return Verification(tuple(checks), **counts)
    except FragilityError as error:
        raise VerificationError(f"the rows cannot be audited: {error}") from error
    chosen = _chosen(len(loaded), sample, seed)
    recomputation, recomputed = _check_recomputation(loaded, rows, chosen, progress)
    lattice, unsearched = _check_lattice(loaded, rows, chosen, progress)
    checks += [_check_model(loaded, rows.model), _check_input(loaded, rows), recomputation, *lattice]
    counts |= {"rows_given": len(rows), "rows_recomputed": recomputed, "rows_unsearched": unsearched}
    return Verification(tuple(checks), **counts)


def check_integrity(audit: str | os.PathLike[str] | Certificates) -> tuple[Check, ...]:
    """Return the checks that need neither model nor rows: format, digests and protocol."""
    loaded, first = _load(audit)
    return (first,) if loaded is None else (first, _check_digests(loaded), _check_protocol(loaded))


def _wrapped(model: Any) -> Model:
    try:
        return Model.wrap(model)
    except FragilityError as error:
        raise VerificationError(f"the model cannot be used: {error}") from error


# --- format -------------------------------------------------------------------------------------------------


def _load(audit: str | os.PathLike[str] | Certificates) -> tuple[Certificates | None, Check]:
    """Return the certificates and the outcome of the format check."""
    if not isinstance(audit, Certificates) and not Path(audit).is_dir():
        raise VerificationError(f"{audit} is not a folder; give the folder an audit was saved to")
    try:
        loaded = audit if isinstance(audit, Certificates) else Certificates.load(audit)
        _check_format(loaded)
    except (CertificateError, ProtocolError) as error:
        return None, Check("format", False, str(error))
    except MALFORMED as error:
        return None, Check("format", False, f"the folder is malformed: {type(error).__name__}: {error}")
    return loaded, Check("format", True, f"{loaded.manifest['format']}, {len(loaded)} certificates")


def _check_format(certificates: Certificates) -> None:
    """Refuse what is not written as the format says, or contradicts itself."""
    manifest, protocol = certificates.manifest, certificates.protocol
    check_manifest(manifest, saved=False)
    check_words(manifest, protocol, ENGINES[1:])
    contradiction = contradiction_in(protocol)
    if contradiction:
        raise CertificateError(f"the protocol contradicts itself: {contradiction}")
    unknown = set(manifest["versions"]) - {"python", "fragility", *VERSIONED}
    if unknown:
        raise CertificateError(f"the manifest names the version of {min(unknown)!r}, which has no part in an audit")
    claims = certificates.claims
    if manifest["rows"] != len(claims):
        raise CertificateError(f"the manifest declares {manifest['rows']} rows, the table has {len(claims)}")
    if not len(claims):
        raise CertificateError("there is no certificate here, so there is nothing to verify")
    if len(set(claims.ids)) != len(claims):
        raise CertificateError("the table names a row twice")
    wrong = contradictions(claims, protocol)
    declared = certificates.lattice_declaration
    if certificates.lattice is not None and declared is not None:
        check_declaration(manifest["lattice"], protocol, LATTICE_ENGINES, largest_size(protocol))
        wrong += lattice_contradictions(certificates.lattice, claims, declared, protocol)
    if wrong:
        told = ", ".join(f"{name} of row {claims.ids[i]}" for i, name in wrong[:5])
        raise CertificateError(f"{len(wrong)} claims contradict the other claims of their rows: {told}")


# --- digests, protocol, model, input ------------------------------------------------------------------------


def _check_digests(certificates: Certificates) -> Check:
    manifest, claims = certificates.manifest, certificates.claims
    model = manifest["model"]
    context = context_digest(manifest["protocol_digest"], model["fingerprint"], model["classes"])
    digests = row_digests(claims, context, certificates.protocol.resolution)
    stated = certificates.table.column("digest").to_pylist()
    differences = [
        Difference(own_id, "digest", claimed, digest_text(digest))
        for own_id, claimed, digest in zip(claims.ids, stated, digests, strict=True)
        if claimed != digest_text(digest)
    ]
    root = combine_digests(digests)
    if root != manifest["root_digest"]:
        differences.append(Difference("all", "root_digest", manifest["root_digest"], root))
    differences += _lattice_digest_differences(certificates)
    detail = f"{len(differences)} digests do not match" if differences else "manifest, files, rows and root match"
    return Check("digests", not differences, detail, differences=tuple(differences))


def _lattice_digest_differences(certificates: Certificates) -> list[Difference]:
    block, declared = certificates.lattice, certificates.lattice_declaration
    if block is None or declared is None:
        return []
    digests = lattice_digests(block, lattice_context(certificates.manifest, declared))
    stated = certificates.table.column("lattice_digest").to_pylist()
    differences = [
        Difference(own_id, "lattice_digest", claimed, digest_text(digest))
        for own_id, claimed, digest in zip(block.ids, stated, digests, strict=True)
        if claimed != digest_text(digest)
    ]
    root, claimed_root = combine_digests(digests), certificates.manifest["lattice"]["root_digest"]
    if root != claimed_root:
        differences.append(Difference("all", "lattice.root_digest", claimed_root, root))
    return differences


def _check_protocol(certificates: Certificates) -> Check:
    claimed, actual = certificates.manifest["protocol_digest"], certificates.protocol.digest
    return _equality("protocol", "the protocol", {"digest": (claimed, actual)})


def contradiction_in(protocol: Protocol) -> str | None:
    """Return where a protocol's words do not fit its values, as far as they tell; None if nowhere."""
    fields = {field.name: field.kind for field in protocol.fields}
    if protocol.extra:
        return f"the format does not know the field {next(iter(protocol.extra))!r}"
    if type(protocol.training_rows) is not int or not isinstance(protocol.training_digest, str):
        return "training_rows is no whole number, or training_digest no text"
    if not re.fullmatch(r"raw-origin|declared|merged at (0?\.\d+|[01](\.\d+)?)", protocol.grouping):
        return f"grouping {protocol.grouping!r} is none that the format knows"
    if protocol.grouping == "raw-origin" and not set(protocol.group_names) <= set(fields):
        return "grouping 'raw-origin', but groups are not named after fields"
    if protocol.space == "raw" and {c.name: c.kind for c in protocol.columns} != fields:
        return "space 'raw', but the columns are not the fields"
    return _baseline_contradiction(protocol)


def _baseline_contradiction(protocol: Protocol) -> str | None:
    word = protocol.baseline
    if word not in (*BASELINES, "explicit"):
        return f"baseline {word!r} is none that the format knows"
    for column in protocol.columns:
        value = column.baseline
        numeric = column.kind == "numeric"
        if not isinstance(value, (str, bool, int, float, type(None))):
            return f"the baseline of {column.name!r} is no value of a column"
        if word == "zero" and numeric and value != 0.0:
            return f"baseline 'zero', but {column.name!r} has the baseline {value!r}"
        if word == "missing" and (numeric or protocol.space == "raw") and value is not None:
            return f"baseline 'missing', but {column.name!r} has the baseline {value!r}"
        if word in ("mean", "median", "mode") and numeric and value is None and column.spread is not None:
            return f"baseline {word!r}, but {column.name!r}, which had values in training, has none"
    return None


def _check_model(certificates: Certificates, model: Model) -> Check:
    stated = certificates.manifest["model"]
    actual = {
        "fingerprint": model.fingerprint,
        "kind": model.kind,
        "classes": list(model.classes),
        "probabilities": model.link,
        "partial": list(model.fingerprint_partial),
    }
    check = _equality("model", f"the model ({model.kind})", {name: (stated[name], actual[name]) for name in actual})
    if check.passed and stated["partial"]:
        seen = f"{check.detail}, as far as its fingerprint sees: {'; '.join(stated['partial'])}"
        return Check("model", True, seen)
    return check


def _equality(name: str, noun: str, pairs: dict[str, tuple[Any, Any]]) -> Check:
    differences = tuple(Difference("all", f, a, b) for f, (a, b) in pairs.items() if not identical(a, b))
    told = "is not the one audited" if differences else "is the one audited"
    return Check(name, not differences, f"{noun} {told}", differences=differences)


def _check_input(certificates: Certificates, rows: EvidenceRows) -> Check:
    claimed, n_audited = certificates.manifest["input"]["digest"], certificates.manifest["input"]["rows"]
    if n_audited != len(certificates):  # a selection, such as the most fragile: the digest is over all rows audited
        if len(rows) != n_audited:
            return Check(
                "input",
                False,
                f"these {len(certificates)} certificates were selected from an audit of {n_audited} rows; "
                f"give those rows, got {len(rows)}",
            )
        return _equality("input", "the data", {"digest": (claimed, combine_digests(input_row_digests(rows)))})
    wanted = {str(own_id) for own_id in certificates.claims.ids}
    digests = [
        digest for own_id, digest in zip(rows.ids, input_row_digests(rows), strict=True) if str(own_id) in wanted
    ]
    if len(digests) < len(wanted):
        return Check(
            "input",
            False,
            f"{len(wanted) - len(digests)} of the {len(wanted)} audited rows are not among the rows given",
        )
    return _equality("input", "the data", {"digest": (claimed, combine_digests(digests))})


# --- recomputation ------------------------------------------------------------------------------------------


def _chosen(n: int, sample: int | None, seed: int | None) -> list[int]:
    if sample is None or sample >= n:
        return list(range(n))
    entropy = secrets.randbits(128) if seed is None else seed
    return sorted(np.random.default_rng(entropy).choice(n, size=sample, replace=False).tolist())


def _check_recomputation(
    certificates: Certificates, rows: EvidenceRows, wanted: Sequence[int], progress: bool | None
) -> tuple[Check, int]:
    """Return the check and how many rows were recomputed."""
    claims, protocol = certificates.claims, certificates.protocol
    chosen, mine = _rows_of(certificates, rows, wanted)
    if mine is None:
        return Check("recomputation", False, "none of the audited rows is among the rows given"), 0
    with progress_bar("recomputing", progress) as report:
        trace = trace_blackbox(mine, protocol, progress=report)
    fresh = claims_from(trace, mine, protocol)
    tolerance = declared_tolerance(protocol)["margin"]
    differences = compare_claims(claims.take(chosen), fresh, protocol, tolerance, certificates.classes)
    which = "all" if len(chosen) == len(claims) else f"{len(chosen)} of"
    bad = len({difference.row for difference in differences})
    told = f"{bad} rows do not hold" if differences else "every claim holds"
    detail = f"{which} {len(claims)} rows recomputed, {told} (margins within {tolerance:g})"
    return Check("recomputation", not differences, detail, tolerance, tuple(differences)), len(chosen)


def _rows_of(
    certificates: Certificates, rows: EvidenceRows, wanted: Sequence[int]
) -> tuple[list[int], EvidenceRows | None]:
    """Return the certificates among those wanted whose rows are given, and the rows; None where there is none."""
    claims = certificates.claims
    place = {str(own_id): i for i, own_id in enumerate(rows.ids)}
    chosen = [i for i in wanted if str(claims.ids[i]) in place]
    if not chosen:
        return chosen, None
    mine = rows.take([place[str(claims.ids[i])] for i in chosen])
    return chosen, with_ties_settled(mine, claims.predicted[chosen], certificates.protocol.resolution)


def _check_lattice(
    certificates: Certificates, rows: EvidenceRows, wanted: Sequence[int], progress: bool | None
) -> tuple[list[Check], int]:
    """Return the check of the lattice block, if there is one, and how many rows were searched again only in part."""
    block, declared = certificates.lattice, certificates.lattice_declaration
    chosen, mine = _rows_of(certificates, rows, wanted)
    if block is None or declared is None or mine is None:
        return [], 0
    tolerance = declared_tolerance(certificates.protocol)["margin"]
    with progress_bar("searching again", progress) as report:
        found = confirm_lattice(block.take(chosen), mine, certificates.protocol, declared, tolerance, report or False)
    differences = tuple(Difference(*dispute) for dispute in found.disputed)
    bad = len({difference.row for difference in differences})
    told = f"{bad} rows do not hold" if bad else "every claim holds"
    if not found.searched:
        how = (
            f"the {declared.engine} engine cannot read the model here: of {len(chosen)} rows {found.asked} could be "
            "settled by asking the model"
        )
    elif declared.engine == BLACKBOX:
        how = f"{len(chosen)} rows searched again by asking the model"
    else:
        how = f"{len(chosen)} rows searched again; for {found.asked} the model itself was asked about every smaller set"
    unsearched = 0 if found.searched else len(chosen) - found.asked
    return [Check("lattice", not differences, f"{how}, {told}", tolerance, differences)], unsearched


def compare_claims(
    claimed: Claims, fresh: Claims, protocol: Protocol, tolerance: float, classes: Sequence[Any]
) -> list[Difference]:
    """Return every claim that differs: exact ones at all, floats by more than their tolerance."""
    allowed = _tolerances(fresh, protocol, tolerance)
    names = {"path": protocol.group_names, "predicted": classes, "path_predicted": classes}
    out: list[Difference] = []
    for name in Claims.__dataclass_fields__:
        if name == "ids":
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
        "exposure": np.minimum(ratio * (v1 + v3) + own * v2, 1.0) + 1e-12,
    }


def _shaped(tolerance: Floats, like: Floats) -> Floats:
    return tolerance if like.ndim == 1 else tolerance[:, None]


def _shown(value: Any, names: Sequence[Any] | None) -> Any:
    if names is None:
        return value.tolist() if isinstance(value, np.ndarray) else value.item()
    return [names[i] for i in value] if isinstance(value, np.ndarray) else names[int(value)]
