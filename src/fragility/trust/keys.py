"""Ed25519 keys as PEM files, and the two things done with them; the only module that needs securesystemslib."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from fragility.base.envelopes import Envelope, Signature
from fragility.base.errors import VerificationError
from fragility.base.files import read_bounded
from fragility.base.libraries import say_lacking

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
    made = signer.CryptoSigner.generate_ed25519()
    key = serialization.load_pem_private_key(made.private_bytes, None).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        _write_new(private, made.private_bytes, 0o600)
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
    except Exception as error:  # the library has several of its own
        raise VerificationError(f"{path} holds no private key in PEM form; make one with fragility keygen") from error
    _check_kind(key, path)
    if os.name == "posix" and stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        warnings.warn(f"others can read the private key {path}; take that right away (chmod 600)", stacklevel=2)
    return signer.CryptoSigner(key)


def load_public_key(path: str | os.PathLike[str]) -> Any:
    """Return the public key of a file, as securesystemslib has it."""
    signer, _, serialization = _libraries()
    data = _read_key(path)
    if b"PRIVATE KEY" in data:
        raise VerificationError(f"{path} holds a private key, which verifying must not need; give the public one")
    try:
        key = serialization.load_pem_public_key(data)
    except Exception as error:  # the library has several of its own
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
        raise VerificationError(f"cannot read the key {path}: {getattr(error, 'strerror', None) or error}") from error


def _check_kind(key: Any, path: object) -> None:
    if "Ed25519" not in type(key).__name__:
        kind = type(key).__name__.removeprefix("_").removesuffix("PublicKey").removesuffix("PrivateKey")
        raise VerificationError(f"{path} holds a key of kind {kind}; an Ed25519 key was expected")


# --- signing and verifying --------------------------------------------------------------------------------------


def with_signature(envelope: Envelope, signer: Any) -> Envelope:
    """Return the envelope with one more signature, in the place of an earlier one by the same key."""
    made = signer.sign(_encode_for_signing(envelope))
    others = tuple(s for s in envelope.signatures if s.keyid != made.keyid)
    own = Signature(made.keyid, bytes.fromhex(made.signature))
    return Envelope(envelope.payload, envelope.payload_type, (*others, own))


def is_signed_by(envelope: Envelope, key: Any) -> bool:
    """Return whether one signature of the envelope is valid under this key.

    A key id is a hint, which other tools leave out or make in their own way; one that names another key is believed,
    so that a signature under a false name is none.
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
    """Return the ids a key goes by: securesystemslib's, and the SHA-256 of its SubjectPublicKeyInfo."""
    return key.keyid, hashlib.sha256(PUBLIC_KEY_INFO + bytes.fromhex(key.keyval["public"])).hexdigest()


def _encode_for_signing(envelope: Envelope) -> bytes:
    """Return the bytes that are signed: DSSE's encoding of payload and type, which cannot be confused."""
    _, dsse, _ = _libraries()
    return bytes(dsse.Envelope(envelope.payload, envelope.payload_type, {}).pae())
