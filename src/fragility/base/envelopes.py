"""Signed statements as data: a DSSE envelope around an in-toto Statement v1, read and written; no keys are needed here.

An envelope is read strictly, because it comes from anyone: exactly the fields of DSSE v1 (``keyid`` may be absent, as
other tools leave it out), each once, and base64 that decodes in one way only. White space between the fields means
nothing. Whether a signature is valid is asked in ``fragility.trust``.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fragility.base.errors import CertificateError
from fragility.base.files import parse_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# Names, not addresses: the domain .invalid is reserved and never resolves, so no one else can publish under them.
CERTIFICATES_PREDICATE = "https://fragility.invalid/certificates/v1"
PROTOCOL_PREDICATE = "https://fragility.invalid/protocol/v1"
STATEMENT_FIELDS = ("_type", "subject", "predicateType", "predicate")


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature of an envelope; the key id is a hint of the signer's, None where there is none."""

    keyid: str | None
    sig: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload and the signatures over it."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    def to_text(self) -> str:
        """Return the file's text."""
        signatures = [
            {**({} if s.keyid is None else {"keyid": s.keyid}), "sig": base64.b64encode(s.sig).decode()}
            for s in self.signatures
        ]
        payload = base64.b64encode(self.payload).decode()
        document = {"payload": payload, "payloadType": self.payload_type, "signatures": signatures}
        return json.dumps(document, indent=2) + "\n"


def read_envelope(data: bytes, name: object) -> Envelope:
    """Return the envelope of a file's bytes; ``name`` is for messages."""
    document = _parse(data, f"the envelope {name}")
    if not isinstance(document, dict) or set(document) != {"payload", "payloadType", "signatures"}:
        raise CertificateError(f"{name} is no DSSE envelope: it must have payload, payloadType and signatures alone")
    if not isinstance(document["payloadType"], str) or not isinstance(document["signatures"], list):
        raise CertificateError(f"{name} is no DSSE envelope: payloadType must be text and signatures a list")
    signatures = tuple(_read_signature(entry, name) for entry in document["signatures"])
    return Envelope(_decode(document["payload"], name), document["payloadType"], signatures)


def _read_signature(entry: Any, name: object) -> Signature:
    if not isinstance(entry, dict) or not {"sig"} <= set(entry) <= {"keyid", "sig"}:
        raise CertificateError(f"{name} is no DSSE envelope: a signature has sig and perhaps keyid, nothing else")
    keyid = entry.get("keyid")
    if keyid is not None and not isinstance(keyid, str):
        raise CertificateError(f"{name} is no DSSE envelope: keyid must be text, got {keyid!r:.80}")
    return Signature(keyid or None, _decode(entry["sig"], name))


def _decode(text: Any, name: object) -> bytes:
    """Return what base64 text (ordinary or URL-safe) stands for; refuse text with leftover bits or characters."""
    if isinstance(text, str) and text.isascii():
        for altchars in (None, b"-_"):
            try:
                data = base64.b64decode(text, altchars=altchars, validate=True)
            except (binascii.Error, ValueError):
                continue
            if base64.b64encode(data, altchars=altchars).decode() == text:
                return data
    raise CertificateError(f"{name} is no DSSE envelope: payload and signatures must be base64 text")


# --- statements ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    """What is signed: predicates about subjects, which are named by digests."""

    subjects: Mapping[str, Mapping[str, str]]  # name -> algorithm -> hexadecimal digest
    predicate_type: str
    predicate: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return the payload; the same statement is the same bytes."""
        document = {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": dict(digest)} for name, digest in self.subjects.items()],
            "predicateType": self.predicate_type,
            "predicate": dict(self.predicate),
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def read_statement(envelope: Envelope, name: object) -> Statement:
    """Return the in-toto statement of an envelope."""
    if envelope.payload_type != PAYLOAD_TYPE:
        raise CertificateError(f"{name} holds {envelope.payload_type!r:.80}, expected {PAYLOAD_TYPE!r}")
    document = _parse(envelope.payload, f"the statement in {name}")
    if not isinstance(document, dict) or set(document) != set(STATEMENT_FIELDS):
        raise CertificateError(f"{name} holds no in-toto statement: it must have {', '.join(STATEMENT_FIELDS)} alone")
    if document["_type"] != STATEMENT_TYPE:
        raise CertificateError(f"{name} holds a statement of type {document['_type']!r:.80}, not {STATEMENT_TYPE!r}")
    kind, predicate = document["predicateType"], document["predicate"]
    if not isinstance(kind, str) or not isinstance(predicate, dict):
        raise CertificateError(f"{name} holds a statement without a named predicate")
    return Statement(_read_subjects(document["subject"], name), kind, predicate)


def _read_subjects(entries: Any, name: object) -> dict[str, dict[str, str]]:
    well_formed = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and set(entry) == {"name", "digest"}
        and isinstance(entry["name"], str)
        and isinstance(entry["digest"], dict)
        and all(isinstance(digest, str) for digest in entry["digest"].values())
        for entry in entries
    )
    if not well_formed:
        raise CertificateError(f"{name} holds a statement whose subjects are not names with digests")
    subjects = {entry["name"]: dict(entry["digest"]) for entry in entries}
    if len(subjects) != len(entries):
        raise CertificateError(f"{name} holds a statement that names a subject twice")
    return subjects


def _parse(data: bytes, what: str) -> Any:
    try:
        return parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise CertificateError(f"{what} cannot be read: {error}") from error


def signed_protocol(data: bytes, name: object) -> str:
    """Return the digest of the protocol that an envelope speaks of; refuse one that speaks of something else."""
    statement = read_statement(read_envelope(data, name), name)
    if statement.predicate_type != PROTOCOL_PREDICATE:
        raise CertificateError(f"{name} signs {statement.predicate_type!r:.80}, not a protocol ({PROTOCOL_PREDICATE})")
    digest = statement.predicate.get("protocol_digest")
    if not isinstance(digest, str):
        raise CertificateError(f"{name} names no protocol_digest")
    return digest
