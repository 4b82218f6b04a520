"""What is signed of an audit, and of a protocol: statements that follow from the files, so they can be compared."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.canonical import DIGEST_PREFIX, digest_bytes
from fragility.certificates import CONFIDENT, MANIFEST_FILE, Certificates, StoredAudit, manifest_bytes
from fragility.envelopes import CERTIFICATES_PREDICATE, PROTOCOL_PREDICATE, Statement
from fragility.errors import CertificateError
from fragility.files import JSON_LIMIT, read_bounded
from fragility.protocol import Protocol
from fragility.version import __version__

FINGERPRINT = "fragilityFingerprint"  # not sha256: that would be read as the digest of a model file's bytes
MEANS = ("confidence", "flip_budget", "rcma", "fds", "exposure")


def audit_statement(folder: Path, certificates: Certificates | StoredAudit) -> Statement:
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


def verdict_summary(certificates: Certificates | StoredAudit) -> dict[str, Any]:
    """Return what an audit found, in counts and in means of exact sums: the same for every order of the rows."""
    counts = np.zeros(4, dtype=np.int64)
    for batch in certificates.batches(["confidence", "flipped", "flip_budget"]):
        counts += _counts(batch)
    confident, after_one, within_two, never = map(int, counts)
    return {
        "min_confidence": CONFIDENT,
        "confident": confident,
        "confident_flip_after_one": after_one,
        "confident_flip_within_two": within_two,
        "never_flip": never,
        **{f"mean_{name}": _mean(certificates, name) for name in MEANS},
    }


def _counts(batch: pa.Table) -> np.ndarray[Any, Any]:
    confidence, flipped, budget = (batch.column(i).to_numpy() for i in range(3))
    confident, flipped = confidence >= CONFIDENT, flipped.astype(bool)
    cases = (confident, confident & flipped & (budget <= 1), confident & flipped & (budget <= 2), ~flipped)
    return np.array([np.count_nonzero(case) for case in cases], dtype=np.int64)


def _mean(certificates: Certificates | StoredAudit, name: str) -> float | None:
    pieces = (batch.column(0).to_pylist() for batch in certificates.batches([name]))
    rows = len(certificates)
    return math.fsum(itertools.chain.from_iterable(pieces)) / rows if rows else None


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
