"""Row digests: SHA-256 over a row's measured claims, rounded so that every engine gets the same bytes.

Two engines add the same numbers in another order and differ in the last digits. Margins and drops are therefore counted
in units of the protocol's resolution, below which nothing in a certificate has a meaning, and probabilities in units of
2**-20. The probability unit is binary on purpose: a vote share a / b lies exactly between two multiples of it only if b
is divisible by 2**21, while thousandths and 1 / 128 are common (and the latter lies between two multiples of 1e-6).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats
from fragility.canonical import DIGEST_PREFIX, canonical_bytes
from fragility.certificates.claims import Claims
from fragility.models import ClassLabel

FORMAT = "fragility-certificates/1"
PROBABILITY_UNIT = 2.0**-20


def row_digests(claims: Claims, context: bytes, resolution: float) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and claims in the layout of docs/format.md."""
    parts = [
        _bytes_of(claims.predicted, "<i4"),
        _bytes_of(_counted(claims.confidence, PROBABILITY_UNIT), "<f8"),
        _bytes_of(claims.flip_budget, "<i4"),
        _bytes_of(claims.flipped, "u1"),
        _bytes_of(claims.thresholds, "<f8"),
        _bytes_of(claims.path, "<i4"),
        _bytes_of(_counted(claims.path_margin, resolution), "<f8"),
        _bytes_of(claims.path_predicted, "<i4"),
        _bytes_of(_counted(claims.fade_margin, resolution), "<f8"),
        _bytes_of(_counted(claims.one_step_drop, resolution), "<f8"),
        _bytes_of(_counted(claims.one_step_confidence_drop, PROBABILITY_UNIT), "<f8"),
    ]
    block = np.concatenate(parts, axis=1)
    data, width, sha256 = block.tobytes(), block.shape[1], hashlib.sha256
    return [
        sha256(context + own_id + data[i * width : (i + 1) * width]).digest()
        for i, own_id in enumerate(_ids_bytes(claims.ids))
    ]


def _counted(values: Floats, unit: float) -> Floats:
    """Return values as whole multiples of a unit, halves to even; adding 0 makes -0 the 0 it is, NaN is one value."""
    return np.asarray(np.where(np.isnan(values), np.nan, np.rint(values / unit) + 0.0))


def _bytes_of(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    """Return (n, ...) values as (n, bytes), little-endian."""
    typed = np.ascontiguousarray(values.astype(dtype))
    return typed.view(np.uint8).reshape(len(values), typed.nbytes // max(len(values), 1))


def _ids_bytes(ids: Sequence[Hashable]) -> list[bytes]:
    if all(type(own_id) is int for own_id in ids):
        packed = np.array(ids, dtype="<i8").tobytes()
        return [b"i" + packed[i : i + 8] for i in range(0, len(packed), 8)]
    return [_id_bytes(own_id) for own_id in ids]


def _id_bytes(own_id: Hashable) -> bytes:
    if isinstance(own_id, int):
        return b"i" + struct.pack("<q", own_id)
    text = str(own_id).encode()
    return b"s" + struct.pack("<I", len(text)) + text


def context_digest(protocol_digest: str, model_fingerprint: str, classes: Sequence[ClassLabel]) -> bytes:
    """Return what binds a row to its protocol and model."""
    document = {
        "format": FORMAT,
        "protocol_digest": protocol_digest,
        "model_fingerprint": model_fingerprint,
        "classes": list(classes),
    }
    return hashlib.sha256(canonical_bytes(document)).digest()


def digest_text(digest: bytes) -> str:
    return DIGEST_PREFIX + digest.hex()


def digest_from_text(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix(DIGEST_PREFIX))
