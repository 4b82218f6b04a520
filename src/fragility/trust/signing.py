"""Keys and signatures of audits, and of protocols before an audit exists.

A signature covers an in-toto Statement v1 in a DSSE envelope (``fragility.base.envelopes``), made with Ed25519 and
offline. A verifier makes the statement again from the folder and compares it with the signed one. Keys are PEM files.
This is the only module that needs securesystemslib.
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from fragility.audits import Audit, open_audit
from fragility.audits.folder import MANIFEST_FILE, manifest_bytes, read_file
from fragility.audits.integrity import check_integrity
from fragility.audits.manifest import identical
from fragility.base.canonical import DIGEST_PREFIX, digest_bytes
from fragility.base.envelopes import (
    CERTIFICATES_PREDICATE,
    PAYLOAD_TYPE,
    PROTOCOL_PREDICATE,
    Envelope,
    Signature,
    Statement,
    read_envelope,
    read_statement,
)
from fragility.base.errors import CertificateError, FragilityError, VerificationError, reason_of
from fragility.base.files import SIGNATURE, read_bounded, write_bytes
from fragility.base.libraries import say_lacking
from fragility.blocks.checks import Check
from fragility.protocol import Protocol
from fragility.verification.outcome import Outcome
from fragility.version import __version__

KEY_LIMIT = 2**20
PUBLIC_SUFFIX = ".pub"
PUBLIC_KEY_INFO = bytes.fromhex("302a300506032b6570032100")  # SubjectPublicKeyInfo of Ed25519, up to the 32 key bytes


def _libraries() -> tuple[Any, Any, Any]:
    """Return securesystemslib's signers and envelopes, and the serialization of keys; say how to get them."""
    try:
        from cryptography.hazmat.primitives import serialization
        from securesystemslib import dsse, signer
    except ImportError as error:
        raise VerificationError(
            say_lacking("a signature", "securesystemslib", "cryptography") or f"cannot load its library: {error}"
        ) from error
    return signer, dsse, serialization


def generate_keys(path: str | os.PathLike[str]) -> Path:
    """Make a new Ed25519 key pair: the private key in a file that only you can read, the public one beside it.

    Parameters
    ----------
    path : path
        The file of the private key (PEM, PKCS #8); the public key is written to the same name with ``.pub``. Neither
        may exist: a key is never overwritten.

    Returns
    -------
    pathlib.Path
        The file of the public key, for everyone who is to verify.

    Raises
    ------
    VerificationError
        A file of either name exists, or cannot be written.

    See Also
    --------
    sign : Sign with the private key.
    """
    signer, _, serialization = _libraries()
    private, public = Path(path), Path(f"{os.fspath(path)}{PUBLIC_SUFFIX}")
    for file in (private, public):
        if os.path.lexists(file):
            raise VerificationError(f"{file} exists, and a key is never overwritten; choose another name")
    pair = signer.CryptoSigner.generate_ed25519()
    key = serialization.load_pem_private_key(pair.private_bytes, None).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        _write_new(private, pair.private_bytes, 0o600)
        _write_new(public, key.public_bytes(serialization.Encoding.PEM, form), 0o644)
    except OSError as error:
        raise VerificationError(f"cannot write the key to {private}: {error.strerror or error}") from error
    return public


def _write_new(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


# --- reading --------------------------------------------------------------------------------------------------


def load_private_key(path: str | os.PathLike[str]) -> Any:
    """Return the signer of a private key's file; warn if others can read the file."""
    signer, _, serialization = _libraries()
    data = _read_key(path)
    if b"PUBLIC KEY" in data:
        raise VerificationError(f"{path} holds a public key; signing needs the private one")
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError as error:
        raise VerificationError(f"{path} is protected by a passphrase; give a key without one") from error
    except Exception as error:  # the library raises several types
        raise VerificationError(f"{path} holds no private key in PEM form; fragility sign keys makes one") from error
    _check_kind(key, path)
    if os.name == "posix" and stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        warnings.warn(f"others can read the private key {path}; remove that permission (chmod 600)", stacklevel=2)
    return signer.CryptoSigner(key)


def load_public_key(path: str | os.PathLike[str]) -> Any:
    """Return the public key of a file as securesystemslib's object."""
    signer, _, serialization = _libraries()
    data = _read_key(path)
    if b"PRIVATE KEY" in data:
        raise VerificationError(f"{path} holds a private key, which verifying must not need; give the public one")
    try:
        key = serialization.load_pem_public_key(data)
    except Exception as error:  # the library raises several types
        raise VerificationError(f"{path} holds no public key in PEM form") from error
    _check_kind(key, path)
    return signer.SSlibKey.from_crypto(key)


def public_pem(signer: Any) -> bytes:
    """Return the public key of a signer as the content of a PEM file."""
    _, _, serialization = _libraries()
    info = PUBLIC_KEY_INFO + bytes.fromhex(signer.public_key.keyval["public"])
    key = serialization.load_der_public_key(info)
    made = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return bytes(made)


def _read_key(path: str | os.PathLike[str]) -> bytes:
    try:
        return read_bounded(path, KEY_LIMIT)
    except (OSError, ValueError) as error:
        raise VerificationError(f"cannot read the key {path}: {reason_of(error)}") from error


def _check_kind(key: Any, path: object) -> None:
    if "Ed25519" not in type(key).__name__:
        kind = type(key).__name__.removeprefix("_").removesuffix("PublicKey").removesuffix("PrivateKey")
        raise VerificationError(f"{path} holds a key of kind {kind}; an Ed25519 key was expected")


# --- signing and verifying --------------------------------------------------------------------------------------


def with_signature(envelope: Envelope, signer: Any) -> Envelope:
    """Return the envelope with one more signature, which replaces an earlier one by the same key."""
    signed = signer.sign(_encode_for_signing(envelope))
    others = tuple(s for s in envelope.signatures if s.keyid != signed.keyid)
    signature = Signature(signed.keyid, bytes.fromhex(signed.signature))
    return Envelope(envelope.payload, envelope.payload_type, (*others, signature))


def is_signed_by(envelope: Envelope, key: Any) -> bool:
    """Return whether one signature of the envelope is valid under this key.

    A key id is only a hint: other tools omit it or compute it differently. A signature whose id names another key is
    ignored, even if it is valid under this key.
    """
    signers, _, _ = _libraries()
    from securesystemslib.exceptions import UnverifiedSignatureError

    for signature in envelope.signatures:
        if signature.keyid is None or signature.keyid in ids_of(key):
            with suppress(UnverifiedSignatureError):
                key.verify_signature(signers.Signature(key.keyid, signature.sig.hex()), _encode_for_signing(envelope))
                return True
    return False


def ids_of(key: Any) -> tuple[str, str]:
    """Return the ids in use for a key: securesystemslib's, and the SHA-256 of its SubjectPublicKeyInfo."""
    return key.keyid, hashlib.sha256(PUBLIC_KEY_INFO + bytes.fromhex(key.keyval["public"])).hexdigest()


def _encode_for_signing(envelope: Envelope) -> bytes:
    """Return the bytes that are signed: DSSE's unambiguous encoding of payload and type."""
    _, dsse, _ = _libraries()
    return bytes(dsse.Envelope(envelope.payload, envelope.payload_type, {}).pae())


# --- making ---------------------------------------------------------------------------------------------------

SIGNATURE_FILE = "signature.dsse.json"
SIGNATURE_SUFFIX = ".dsse.json"
FINGERPRINT = "fragilityFingerprint"  # not "sha256", which a reader would take for the digest of a model file
COUNTS = ("confident", "flips_after_one", "flips_early", "holds", "never_flips")
MEANS = ("mean_confidence", "mean_flip_budget", "mean_rcma", "mean_fds", "mean_exposure")
SIGNER_VERSION = "fragility"  # the verifier may use another version


def sign(target: str | os.PathLike[str], key: str | os.PathLike[str]) -> Path:
    """Sign an audit folder, or a protocol file before the audit.

    Parameters
    ----------
    target : path
        The folder of an audit, or a protocol file.
    key : path
        The private key (Ed25519, PEM), as :func:`generate_keys` writes it.

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
    ...     public_key = fg.generate_keys(Path(folder) / "key")
    ...     envelope = fg.sign(audit, Path(folder) / "key")
    ...     fg.verify_signature(audit, public_key).verdict
    'signed: the files of this audit are the ones this key signed; no claim was recomputed'
    """
    signer = load_private_key(key)
    source = Path(target)
    if source.is_dir():
        wrong = [check for check in check_integrity(source) if not check.passed]
        if wrong:
            raise CertificateError(f"{source} cannot be signed, its {wrong[0].name} is wrong: {wrong[0].detail}")
        out, statement = source / SIGNATURE_FILE, audit_statement(source, open_audit(source))
    else:
        out, statement = source.with_name(source.name + SIGNATURE_SUFFIX), protocol_statement(source)
    envelope = Envelope(statement.to_bytes(), PAYLOAD_TYPE, ())
    with suppress(CertificateError):  # signatures of other keys over the same statement are kept
        existing = _read_envelope_file(out)
        if (existing.payload, existing.payload_type) == (envelope.payload, envelope.payload_type):
            envelope = existing
    try:
        write_bytes(out, with_signature(envelope, signer).to_text().encode(), own=SIGNATURE)
    except OSError as error:
        raise VerificationError(f"cannot write the signature to {out}: {error.strerror or error}") from error
    return out


def _read_envelope_file(path: Path) -> Envelope:
    missing = f"there is no signature {path}; it is made with fragility sign"
    return read_envelope(read_file(path, f"the signature {path}", missing), path)


# --- verifying ------------------------------------------------------------------------------------------------


def verify_signature(
    audit: str | os.PathLike[str],
    public_key: str | os.PathLike[str],
    *,
    signature: str | os.PathLike[str] | None = None,
    protocol_key: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Check that an audit folder, or a protocol file, is intact and was signed by a key; no claim is recomputed.

    Parameters
    ----------
    audit : path
        The folder of an audit, or a protocol file.
    public_key : path
        The public key (Ed25519, PEM) of the expected signer, from a source that you trust.
    signature : path, optional
        The envelope; ``signature.dsse.json`` in the folder, or the protocol's name with ``.dsse.json``, if not given.
    protocol_key : path, optional
        The public key of the expected signer of the protocol; the same key if not given.

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
    if folder.is_file():
        if protocol_key is not None:
            raise VerificationError("a protocol file has one signature; give the key of its signer alone")
        envelope = folder.with_name(folder.name + SIGNATURE_SUFFIX) if signature is None else Path(signature)
        return Outcome(_check_protocol(folder, public_key, envelope), "signed: this protocol is what this key signed")
    integrity = check_integrity(folder)
    envelope = folder / SIGNATURE_FILE if signature is None else Path(signature)
    checks = (*integrity, *signature_checks(folder, public_key, envelope, protocol_key))
    return Outcome(checks, "signed: the files of this audit are the ones this key signed; no claim was recomputed")


def signature_checks(
    folder: Path, public_key: str | os.PathLike[str], envelope: Path, protocol_key: str | os.PathLike[str] | None = None
) -> list[Check]:
    """Return the checks of the signature, of its statement, and of the protocol's own signature if there is one."""
    key = load_public_key(public_key)
    other = key if protocol_key is None else load_public_key(protocol_key)
    try:
        certificates = open_audit(folder)
    except FragilityError as error:
        return [Check("signature", False, f"the folder cannot be read, so nothing signed can be found in it: {error}")]
    try:
        statement, signed = _check_signed(envelope, key)
        checks = [signed, _compare_statements(statement, audit_statement(folder, certificates))]
    except CertificateError as error:
        checks = [Check("signature", False, str(error))]
    if certificates.protocol_signature is not None:
        # Reading the folder has checked that it is a signature of this protocol.
        valid = is_signed_by(read_envelope(certificates.protocol_signature, "the protocol's signature"), other)
        detail = f"the protocol was signed before the audit by the key {other.keyid[:16]}"
        checks.append(
            Check("protocol key", valid, detail if valid else "the protocol's signature is not valid by this key")
        )
    elif protocol_key is not None:
        checks.append(Check("protocol key", False, "this audit names no signature of its protocol"))
    return checks


def _check_protocol(path: Path, public_key: str | os.PathLike[str], envelope: Path) -> tuple[Check, ...]:
    """Return the checks of a protocol file's own signature."""
    key, made = load_public_key(public_key), protocol_statement(path)
    try:
        statement, signed = _check_signed(envelope, key)
    except CertificateError as error:
        return (Check("signature", False, str(error)),)
    return signed, _compare_statements(statement, made)


def _check_signed(path: Path, key: Any) -> tuple[Statement, Check]:
    envelope = _read_envelope_file(path)
    statement = read_statement(envelope, path)
    valid = is_signed_by(envelope, key)
    detail = f"by the key {key.keyid[:16]}" if valid else f"{path.name} has no valid signature by this key"
    return statement, Check("signature", valid, detail)


def _compare_statements(stated: Statement, made: Statement) -> Check:
    """Return whether the signed statement equals the one made from the folder, and what differs if not."""
    theirs, ours = dict(stated.predicate), dict(made.predicate)
    signer = theirs.get(SIGNER_VERSION)
    differing = [name for name, digest in made.subjects.items() if dict(stated.subjects.get(name, {})) != dict(digest)]
    equal = False
    if differing:
        detail = f"the signature is of another {differing[0]}"
    elif stated.predicate_type != made.predicate_type or stated.subjects.keys() != made.subjects.keys():
        detail = f"something else was signed: {stated.predicate_type!r:.80} of {', '.join(stated.subjects):.80}"
    elif list(theirs) != list(ours) or not isinstance(signer, str):
        detail = f"the predicate must have exactly the fields {', '.join(ours)}"
    elif wrong := [name for name in ours if name != SIGNER_VERSION and not identical(theirs[name], ours[name])]:
        detail = f"its {wrong[0]} differs from the folder's: {theirs[wrong[0]]!r:.80}"
    else:
        equal = True
        what = "this manifest, this model and this result" if "model" in made.subjects else "this protocol"
        detail = f"it is about {what} (signed with fragility {signer:.40})"
    return Check("statement", equal, detail)


def signed_predicate(path: str | os.PathLike[str], public_key: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the predicate that a key signed about an audit; raise VerificationError if it did not sign one."""
    statement, check = _check_signed(Path(path), load_public_key(public_key))
    if not check.passed:
        raise VerificationError(check.detail)
    predicate = dict(statement.predicate)
    typed = isinstance(predicate.get("root_digest"), str) and type(predicate.get("rows")) is int
    if statement.predicate_type != CERTIFICATES_PREDICATE or not typed:
        raise VerificationError(f"{path} does not sign an audit, so it names no root")
    return predicate


# --- statements -----------------------------------------------------------------------------------------------


def audit_statement(folder: Path, certificates: Audit) -> Statement:
    """Return the statement of an audit folder: model and manifest by digest, and what the audit found."""
    manifest = certificates.manifest
    subjects = {
        MANIFEST_FILE: {"sha256": _strip_prefix(digest_bytes(manifest_bytes(folder)))},
        "model": {FINGERPRINT: _strip_prefix(manifest.model.fingerprint)},
    }
    predicate = {
        "format": manifest.format,
        "protocol_digest": manifest.protocol_digest,
        "root_digest": manifest.root_digest,
        "rows": manifest.rows,
        "audited_rows": manifest.input.rows,
        "summary": verdict_summary(certificates),
        "fragility": __version__,
    }
    return Statement(subjects, CERTIFICATES_PREDICATE, predicate)


def verdict_summary(audit: Audit) -> dict[str, Any]:
    """Return the counts of an audit, and means of exact sums, which do not depend on the order of the rows."""
    tally = audit.tally()
    return {
        "min_confidence": tally.min_confidence,
        **{name: tally.share(name).count for name in COUNTS},
        "flips_early_unsettled": tally.share("flips_early").unsettled,
        **{name: tally.mean(name).value if tally.rows else None for name in MEANS},
    }


def protocol_statement(path: Path) -> Statement:
    """Return the statement of a protocol file, by the SHA-256 of its bytes and by its own digest."""
    protocol = Protocol.load(path)
    text = protocol.to_json().encode()
    if read_file(path, f"the protocol {path}") != text:
        raise CertificateError(
            f"{path} is not formatted as Protocol.save writes it, so its bytes differ from those in an audit; write it "
            "again with Protocol.load and save"
        )
    subjects = {"protocol.json": {"sha256": _strip_prefix(digest_bytes(text))}}
    return Statement(subjects, PROTOCOL_PREDICATE, {"protocol_digest": protocol.digest, "fragility": __version__})


def _strip_prefix(digest: str) -> str:
    return digest.removeprefix(DIGEST_PREFIX)
