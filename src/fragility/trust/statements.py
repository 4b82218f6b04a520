"""What is signed of an audit, and of a protocol: statements that follow from the files, so they can be compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fragility.canonical import DIGEST_PREFIX, digest_bytes
from fragility.certificates import MANIFEST_FILE, Audit, manifest_bytes
from fragility.envelopes import CERTIFICATES_PREDICATE, PROTOCOL_PREDICATE, Statement
from fragility.errors import CertificateError
from fragility.files import JSON_LIMIT, read_bounded
from fragility.protocol import Protocol
from fragility.version import __version__

FINGERPRINT = "fragilityFingerprint"  # not sha256: that would be read as the digest of a model file's bytes
MEANS = ("confidence", "flip_budget", "rcma", "fds", "exposure")


def audit_statement(folder: Path, certificates: Audit) -> Statement:
    """Return the statement of an audit folder: model and manifest by digest, and what the audit found."""
    manifest = certificates.manifest
    subjects = {
        MANIFEST_FILE: {"sha256": _hex(digest_bytes(manifest_bytes(folder)))},
        "model": {FINGERPRINT: _hex(manifest.model.fingerprint)},
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
    """Return what an audit found, in counts and in means of exact sums: the same for every order of the rows."""
    tally = audit.tally()
    rows = tally.count("rows")
    sums = {
        name: math.fsum(value for batch in audit.batches([name]) for value in batch.column(0).to_pylist())
        for name in MEANS
    }
    return {
        "min_confidence": tally.min_confidence,
        "confident": tally.count("confident"),
        "confident_flip_after_one": tally.count("after_one"),
        "confident_flip_within_two": tally.count("early"),
        "never_flip": tally.count("never_flips"),
        **{f"mean_{name}": total / rows if rows else None for name, total in sums.items()},
    }


def protocol_statement(path: Path) -> Statement:
    """Return the statement of a protocol file, by the SHA-256 of its bytes and by its own digest."""
    protocol = Protocol.load(path)
    text = protocol.to_json().encode()
    try:
        given = read_bounded(path, JSON_LIMIT)
    except (OSError, ValueError) as error:
        raise CertificateError(f"cannot read the protocol {path}: {error}") from error
    if given != text:
        raise CertificateError(
            f"{path} is not laid out as a protocol is written into an audit, so its bytes cannot be signed for one; "
            "write it again with Protocol.load and save"
        )
    subjects = {"protocol.json": {"sha256": _hex(digest_bytes(text))}}
    return Statement(subjects, PROTOCOL_PREDICATE, {"protocol_digest": protocol.digest, "fragility": __version__})


def _hex(digest: str) -> str:
    return digest.removeprefix(DIGEST_PREFIX)
