"""Signatures: who stands behind an audit, or behind a protocol before there is an audit.

What is signed is an in-toto Statement v1 in a DSSE envelope (``fragility.envelopes``), with Ed25519, offline. Whoever
verifies makes the statement anew from the folder and compares it with the one signed: nothing in it is believed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fragility.certificates import StoredAudit, identical, open_audit
from fragility.envelopes import (
    CERTIFICATES_PREDICATE,
    PAYLOAD_TYPE,
    Envelope,
    Statement,
    read_envelope,
    read_statement,
)
from fragility.errors import CertificateError, FragilityError, VerificationError
from fragility.files import JSON_LIMIT, read_bounded, write_text
from fragility.trust.keys import is_signed_by, load_private_key, load_public_key, with_signature
from fragility.trust.statements import audit_statement, protocol_statement
from fragility.verification.integrity import check_integrity
from fragility.verification.outcome import Check, Outcome

SIGNATURE_FILE = "signature.dsse.json"
SIGNATURE_SUFFIX = ".dsse.json"
OWN_VERSION = "fragility"  # of the signer; the verifier's may be another


def sign(target: str | os.PathLike[str], key: str | os.PathLike[str]) -> Path:
    """Sign an audit folder, or a protocol file before the audit.

    Parameters
    ----------
    target : path
        The folder of an audit, or a protocol file.
    key : path
        The private key (Ed25519, PEM), as :func:`generate_key` writes it.

    Returns
    -------
    pathlib.Path
        The envelope written: ``signature.dsse.json`` in the folder, or the protocol's name with ``.dsse.json``. A
        signature of another key over the same statement is kept beside the new one.

    Raises
    ------
    CertificateError
        The folder's files contradict each other; nothing is signed.
    VerificationError
        The key cannot be used, or the envelope cannot be written.

    See Also
    --------
    verify_signature : Check a signature.

    Examples
    --------
    >>> import fragility as fg
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> certs = fg.audit(model, X[:100], fg.Protocol.fit(model, X))
    >>> with TemporaryDirectory() as folder:
    ...     audit = certs.save(Path(folder) / "audit")
    ...     public_key = fg.generate_key(Path(folder) / "key")
    ...     envelope = fg.sign(audit, Path(folder) / "key")
    ...     fg.verify_signature(audit, public_key).verdict
    'signed: the files of this audit are the ones this key signed; no claim was recomputed'
    """
    signer = load_private_key(key)
    source = Path(target)
    folder = source.is_dir()
    out = source / SIGNATURE_FILE if folder else source.with_name(source.name + SIGNATURE_SUFFIX)
    payload = (_sound_statement(source) if folder else protocol_statement(source)).to_bytes()
    envelope = with_signature(_beside(out, payload), signer)
    try:
        write_text(out, envelope.to_text())
    except OSError as error:
        raise VerificationError(f"cannot write the signature to {out}: {error.strerror or error}") from error
    return out


def _sound_statement(folder: Path) -> Statement:
    wrong = [check for check in check_integrity(folder) if not check.passed]
    if wrong:
        raise CertificateError(f"{folder} cannot be signed, its {wrong[0].name} is wrong: {wrong[0].detail}")
    return audit_statement(folder, open_audit(folder))


def _beside(out: Path, payload: bytes) -> Envelope:
    """Return the envelope that is there already if it holds this payload, else an unsigned one."""
    try:
        there = _envelope_at(out)
    except CertificateError:
        there = None
    if there is not None and there.payload == payload and there.payload_type == PAYLOAD_TYPE:
        return there
    return Envelope(payload, PAYLOAD_TYPE, ())


def _envelope_at(path: Path) -> Envelope:
    try:
        data = read_bounded(path, JSON_LIMIT)
    except FileNotFoundError as error:
        raise CertificateError(f"there is no signature {path}; it is made with fragility sign") from error
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read the signature {path}: {error}") from error
    return read_envelope(data, path)


# --- verifying ------------------------------------------------------------------------------------------------


def verify_signature(
    audit: str | os.PathLike[str],
    public_key: str | os.PathLike[str],
    *,
    signature: str | os.PathLike[str] | None = None,
    protocol_key: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Check that an audit folder is whole and is the one that a key signed; no claim is recomputed.

    Parameters
    ----------
    audit : path
        The folder of an audit.
    public_key : path
        The public key (Ed25519, PEM) of whoever is to have signed it, from where you trust it.
    signature : path, optional
        The envelope; ``signature.dsse.json`` in the folder if not given.
    protocol_key : path, optional
        The public key of whoever is to have signed the protocol before the audit; the same key if not given.

    Returns
    -------
    Outcome
        False if a check failed.

    Raises
    ------
    VerificationError
        The key cannot be used, or there is no such folder.

    See Also
    --------
    verify : Recompute what the certificates claim.
    """
    folder = Path(audit)
    integrity = check_integrity(folder)
    envelope = folder / SIGNATURE_FILE if signature is None else Path(signature)
    checks = [*integrity, *signature_checks(folder, public_key, envelope, protocol_key)]
    return Outcome(
        tuple(checks), "signed: the files of this audit are the ones this key signed; no claim was recomputed"
    )


def signature_checks(
    folder: Path,
    public_key: str | os.PathLike[str],
    envelope: Path,
    protocol_key: str | os.PathLike[str] | None = None,
) -> list[Check]:
    """Return the checks of the signature, of what it speaks of, and of the protocol's own signature if there is one."""
    key = load_public_key(public_key)
    other = key if protocol_key is None else load_public_key(protocol_key)
    try:
        certificates = open_audit(folder)
    except FragilityError as error:
        return [Check("signature", False, f"the folder cannot be read, so nothing signed can be found in it: {error}")]
    checks = _audit_checks(folder, certificates, envelope, key)
    if certificates.protocol_signature is not None:
        checks.append(_protocol_check(certificates.protocol_signature, other))
    elif protocol_key is not None:
        checks.append(Check("protocol key", False, "this audit names no signature of its protocol"))
    return checks


def _audit_checks(folder: Path, certificates: StoredAudit, path: Path, key: Any) -> list[Check]:
    try:
        statement, signed = _signed_statement(path, key)
        made = audit_statement(folder, certificates)
    except CertificateError as error:
        return [Check("signature", False, str(error))]
    return [signed, Check("statement", *_compared(statement, made))]


def _signed_statement(path: Path, key: Any) -> tuple[Statement, Check]:
    envelope = _envelope_at(path)
    statement = read_statement(envelope, path)
    valid = is_signed_by(envelope, key)
    told = f"by the key {key.keyid[:16]}" if valid else f"{path.name} has no valid signature by this key"
    return statement, Check("signature", valid, told)


def _compared(stated: Statement, made: Statement) -> tuple[bool, str]:
    """Return whether a statement is the one that follows from the folder, and what differs if not."""
    for name, digest in made.subjects.items():
        if dict(stated.subjects.get(name, {})) != dict(digest):
            return False, f"another {name} was signed than the one here"
    if stated.predicate_type != made.predicate_type or stated.subjects.keys() != made.subjects.keys():
        return False, f"something else was signed: {stated.predicate_type!r:.80} of {', '.join(stated.subjects):.80}"
    theirs, ours = dict(stated.predicate), dict(made.predicate)
    signer = theirs.get(OWN_VERSION)
    if list(theirs) != list(ours) or not isinstance(signer, str):
        return False, f"the predicate must have exactly the fields {', '.join(ours)}"
    wrong = [name for name in ours if name != OWN_VERSION and not identical(theirs[name], ours[name])]
    if wrong:
        return False, f"it states another {wrong[0]} than the folder: {theirs[wrong[0]]!r:.80}"
    return True, f"it speaks of this manifest, this model and this result (signed with fragility {signer:.40})"


def _protocol_check(data: bytes, key: Any) -> Check:
    """That it speaks of this protocol was checked when the folder was read."""
    valid = is_signed_by(read_envelope(data, "the protocol's signature"), key)
    told = f"the protocol was signed before the audit by the key {key.keyid[:16]}"
    return Check("protocol key", valid, told if valid else "the protocol's signature is not valid by this key")


def signed_predicate(path: str | os.PathLike[str], public_key: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a key signed about an audit; VerificationError where it did not."""
    statement, check = _signed_statement(Path(path), load_public_key(public_key))
    if not check.passed:
        raise VerificationError(check.detail)
    predicate = dict(statement.predicate)
    typed = isinstance(predicate.get("root_digest"), str) and type(predicate.get("rows")) is int
    if statement.predicate_type != CERTIFICATES_PREDICATE or not typed:
        raise VerificationError(f"{path} does not sign an audit, so it names no root")
    return predicate
