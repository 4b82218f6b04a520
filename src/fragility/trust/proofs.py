"""Proofs that one row belongs to an audit: its claims, and its authentication path in the Merkle tree.

A row's digest refers to classes and groups by index, and to numbers in units of the protocol's resolution. Only the
protocol's digest binds what these indices and units mean, so a proof carries the whole protocol: its verifier
recomputes that digest, from it the context, from context and claims the row's digest, and from there the root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import pyarrow as pa

from fragility.audits import Audit, Claims, open_audit
from fragility.audits.folder import read_file
from fragility.audits.manifest import Classes, identical
from fragility.base.canonical import digest_of, inclusion_proof, root_from_proof
from fragility.base.errors import Advice, CertificateError, FragilityError, VerificationError
from fragility.base.files import write_text
from fragility.base.schemas import Count, Digest, Must, check_format, is_digest, parse_text, read_document
from fragility.blocks.checks import MALFORMED, Check
from fragility.blocks.claims import (
    claims_of,
    context_digest,
    contradictions,
    digest_from_text,
    digest_text,
    row_digests,
    schema_of,
)
from fragility.protocol import Protocol
from fragility.trust.signing import signed_predicate
from fragility.verification.outcome import Outcome

FORMAT = "fragility-proof/1"
MOST_SIBLINGS = 64
Siblings: TypeAlias = Annotated[
    tuple[Digest, ...], Must(f"at most {MOST_SIBLINGS} digests", lambda nodes: len(nodes) <= MOST_SIBLINGS)
]


@dataclass(frozen=True, slots=True)
class ProofDocument:
    """What a proof states; the fields have the names and the order of the file."""

    format: str
    model_fingerprint: str
    classes: Classes
    protocol: dict[str, Any]
    claims: dict[str, Any]
    position: Count
    count: Count
    siblings: Siblings
    root_digest: Digest
    proof_digest: Digest


# --- making ---------------------------------------------------------------------------------------------------


def prove(
    audit: str | os.PathLike[str] | Audit, row: Hashable, out: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return a proof that a row's certificate belongs to an audit, for someone who has only the root digest.

    Parameters
    ----------
    audit : path, StoredAudit or Certificates
        The folder of an audit, which is read part by part, or certificates in memory.
    row : int or str
        The row's id (a number may be given as text).
    out : path, optional
        Also write the proof to this file, as JSON.

    Returns
    -------
    dict
        The proof as plain values; :func:`verify_proof` takes it, or the file.

    Raises
    ------
    CertificateError
        No row has this id, or the audit does not hold the row's claims.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> certs = fg.audit(model, X[:100], fg.Protocol.fit(model, X))
    >>> proof = fg.prove(certs, 17)
    >>> fg.verify_proof(proof, root=certs.manifest.root_digest).verdict
    'proved: the certificate of row 17 belongs to the audit with this root'
    """
    source = audit if isinstance(audit, Audit) else open_audit(audit)
    certificate = source.row(source.find(row))
    names = _list_claim_names(source.protocol, source.classes, certificate.schema.field("id").type)
    absent = [name for name in names if name not in certificate.column_names]
    if absent:
        raise CertificateError(f"this audit does not store {absent[0]} of its rows, so no row can be proved")
    texts = (text for batch in source.batches(["digest"]) for text in batch.column("digest").to_pylist())
    leaves = sorted(map(digest_from_text, texts))
    position = leaves.index(digest_from_text(certificate.column("digest")[0].as_py()))
    body = {
        "format": FORMAT,
        "model_fingerprint": source.manifest.model.fingerprint,
        "classes": list(source.classes),
        "protocol": source.protocol.to_dict(),
        "claims": certificate.select(names).to_pylist()[0],
        "position": position,
        "count": len(leaves),
        "siblings": [digest_text(node) for node in inclusion_proof(leaves, position)],
        "root_digest": source.manifest.root_digest,
    }
    proof = {**body, "proof_digest": digest_of(body)}
    if out is not None:
        try:
            write_text(out, proof_text(proof))
        except OSError as error:
            raise CertificateError(f"cannot write the proof to {out}: {error.strerror or error}") from error
    return proof


def _list_claim_names(protocol: Protocol, classes: Sequence[Any], id_type: pa.DataType) -> list[str]:
    return [name for name in schema_of(protocol, classes, id_type).names if name != "digest"]


def proof_text(proof: Mapping[str, Any]) -> str:
    """Return the text of a proof's file."""
    return json.dumps(proof, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# --- checking -------------------------------------------------------------------------------------------------


def verify_proof(
    proof: str | os.PathLike[str] | Mapping[str, Any],
    *,
    root: str | None = None,
    public_key: str | os.PathLike[str] | None = None,
    signature: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Check that a proof's certificate belongs to the audit with a root digest; model and data are not needed.

    Parameters
    ----------
    proof : path or mapping
        What :func:`prove` wrote or returned.
    root : str, optional
        The root digest of the audit, ``sha256:...``, from where you trust it.
    public_key : path, optional
        Instead: the public key of the audit's signer, together with ``signature``.
    signature : path, optional
        The audit's ``signature.dsse.json``; the root is taken from the statement it signs.

    Returns
    -------
    Outcome
        False if a check failed.

    Raises
    ------
    CertificateError
        The file cannot be read, or is no proof of this version.
    VerificationError
        Neither a root nor a signature was given, or the signature does not hold.
    """
    expected, rows = _find_root(root, public_key, signature)
    text, document = (None, proof) if isinstance(proof, Mapping) else _read(Path(proof))
    try:
        row, reached = _follow(document, text)
    except MALFORMED as error:
        detail = str(error) if isinstance(error, FragilityError) else f"the proof is malformed: {type(error).__name__}"
        return Outcome((Check("proof", False, detail),), "")
    stated, leads_to = document["root_digest"], None if reached is None else digest_text(reached)
    if leads_to is None:
        detail = "no tree with this number of rows has a path of this length to this position"
    else:
        detail = "its claims lead to " + ("the root it states" if leads_to == stated else f"another root, {leads_to}")
    which_root = "the one expected" if stated == expected else f"{stated}, expected {expected}"
    checks = [
        Check("proof", True, f"the claims of row {row} are consistent"),
        Check("inclusion", leads_to == stated, detail),
        Check("root", stated == expected, f"the root is {which_root}"),
    ]
    if rows is not None:
        count = document["count"]
        detail = f"{rows}, as signed" if count == rows else f"{count}, but {rows} were signed"
        checks.append(Check("rows", count == rows, f"the proof counts {detail}"))
    whose = "with this root" if rows is None else "that this key signed"
    return Outcome(tuple(checks), f"proved: the certificate of row {row} belongs to the audit {whose}")


def _find_root(
    root: str | None, public_key: str | os.PathLike[str] | None, signature: str | os.PathLike[str] | None
) -> tuple[str, int | None]:
    """Return the expected root, and the number of rows if it was signed (a root does not bind the number of rows)."""
    if (root is None) == (public_key is None) or (public_key is None) != (signature is None):
        raise VerificationError(
            "a proof is checked against a root that you trust: give ",
            Advice(
                "root='sha256:...', or public_key=... and signature=...",
                "--root DIGEST, or --public-key PUB and --signature FILE",
            ),
            ", not both",
        )
    if root is None:
        assert public_key is not None and signature is not None
        predicate = signed_predicate(signature, public_key)
        return str(predicate["root_digest"]), int(predicate["rows"])
    if not is_digest(root):
        raise VerificationError(f"a root digest is sha256: and 64 hexadecimal digits, got {root!r:.80}")
    return root, None


def _read(path: Path) -> tuple[str, Any]:
    data = read_file(path, f"the proof {path}")
    document = parse_text(data, f"the proof {path}", CertificateError)
    check_format(document, FORMAT, str(path), CertificateError)
    return data.decode("utf-8"), document


def _follow(document: Mapping[str, Any], text: str | None) -> tuple[Hashable, bytes | None]:
    """Return the row and the root that the claims lead to; refuse what is not well formed."""
    proof = _read_proof(document, text)
    protocol = Protocol.from_dict(proof.protocol)
    if not identical(protocol.to_dict(), proof.protocol):
        raise CertificateError("the protocol in the proof is not written as the format says")
    claims = _read_claims(proof.claims, protocol, proof.classes)
    conflicts = contradictions(claims, protocol)
    if conflicts:
        raise CertificateError(f"{conflicts[0][1]} contradicts the other claims of the row")
    context = context_digest(protocol.digest, proof.model_fingerprint, proof.classes)
    leaf = row_digests(claims, context, protocol.resolution)[0]
    siblings = [digest_from_text(node) for node in proof.siblings]
    return claims.ids[0], root_from_proof(leaf, proof.position, proof.count, siblings)


def _read_proof(document: Mapping[str, Any], text: str | None) -> ProofDocument:
    """Return what a proof states; its fields, types and layout must be exactly those of the format."""
    proof = read_document(document, ProofDocument, "the proof", CertificateError, format=FORMAT, ordered=True)
    if digest_of({name: value for name, value in document.items() if name != "proof_digest"}) != proof.proof_digest:
        raise CertificateError("the proof was changed after it was written: its digest does not match its content")
    if text is not None and text != proof_text(document):
        raise CertificateError("the proof was changed after it was written: it is not laid out as the format says")
    return proof


def _read_claims(row: Any, protocol: Protocol, classes: Sequence[Any]) -> Claims:
    """Return the claims of the row; values must have exactly the types of the table."""
    if not isinstance(row, dict) or type(row.get("id")) not in (int, str):
        raise CertificateError("claims of the proof must be an object with the row's id")
    id_type = pa.int64() if isinstance(row["id"], int) else pa.string()
    names = _list_claim_names(protocol, classes, id_type)
    if list(row) != names:
        raise CertificateError(f"claims of the proof must be exactly {', '.join(names)}, in this order")
    try:
        table = pa.Table.from_pylist([{**row, "digest": ""}], schema=schema_of(protocol, classes, id_type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(f"the claims of the proof have wrong types: {error}") from error
    if not identical(table.drop_columns(["digest"]).to_pylist()[0], row):
        raise CertificateError("the claims of the proof have wrong types")
    return claims_of(table, protocol, classes)
