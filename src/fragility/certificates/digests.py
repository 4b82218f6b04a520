"""Row digests: SHA-256 over a row's measured claims, rounded so that every engine gets the same bytes.

Two engines add the same numbers in another order and differ in the last digits. Margins and drops are therefore counted
in units of the protocol's resolution, below which nothing in a certificate has a meaning, and probabilities in units of
2**-20. The probability unit is binary on purpose: a vote share a / b lies exactly between two multiples of it only if b
is divisible by 2**21, while thousandths and 1 / 128 are common (and the latter lies between two multiples of 1e-6).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fragility.arrays import Floats
from fragility.canonical import BLOCK_BYTES, DIGEST_PREFIX, canonical_bytes, hashed_pieces
from fragility.certificates.claims import Claims
from fragility.models import ClassLabel

FORMAT = "fragility-certificates/1"
PROBABILITY_UNIT = 2.0**-20
# The claims that are hashed, as their bytes follow on the context and the id.
LAYOUT = (
    ("predicted", "<i4"),
    ("confidence", "<f8"),
    ("flip_budget", "<i4"),
    ("flipped", "u1"),
    ("thresholds", "<f8"),
    ("path", "<i4"),
    ("path_margin", "<f8"),
    ("path_predicted", "<i4"),
    ("fade_margin", "<f8"),
    ("one_step_drop", "<f8"),
    ("one_step_confidence_drop", "<f8"),
)
IN_RESOLUTION = ("path_margin", "fade_margin", "one_step_drop")
IN_PROBABILITY = ("confidence", "one_step_confidence_drop")


def row_digests(claims: Claims, context: bytes, resolution: float) -> list[bytes]:
    """Return each row's 32-byte digest: sha256 over context, id and claims in the layout of docs/format.md."""
    counted = all(type(own_id) is int for own_id in claims.ids)
    layout = _layout(claims, len(context) if counted else None)
    block = np.zeros(max(1, BLOCK_BYTES // layout.itemsize), dtype=layout)
    if counted:
        block["context"], block["kind"] = np.frombuffer(context, dtype=np.uint8), ord("i")
    out: list[bytes] = []
    for start in range(0, len(claims), len(block)):
        rows = slice(start, min(start + len(block), len(claims)))
        own = block[: rows.stop - start]
        _write(own, claims, rows, resolution)
        data = own.view(np.uint8).data
        if counted:
            own["id"] = claims.ids[rows]
            out += hashed_pieces(data, layout.itemsize)
        else:
            out += _hashed_behind(context, claims.ids[rows], data, layout.itemsize)
    return out


def _layout(claims: Claims, context_bytes: int | None) -> np.dtype[np.void]:
    """Return the bytes of a row's claims in order; a whole number as id has its place before them, with the context."""
    before = [] if context_bytes is None else [("context", "u1", (context_bytes,)), ("kind", "u1"), ("id", "<i8")]
    return np.dtype([*before, *((name, kind, getattr(claims, name).shape[1:]) for name, kind in LAYOUT)])


def _write(block: npt.NDArray[np.void], claims: Claims, rows: slice, resolution: float) -> None:
    """Fill the claims of some rows: margins in units of the resolution, probabilities in their own."""
    for name, _ in LAYOUT:
        values = getattr(claims, name)[rows]
        if name in IN_RESOLUTION:
            values = _counted(values, resolution)
        elif name in IN_PROBABILITY:
            values = _counted(values, PROBABILITY_UNIT)
        block[name] = values


def _hashed_behind(context: bytes, ids: Sequence[Hashable], data: memoryview, width: int) -> Iterator[bytes]:
    """Yield the digest of each row of claims behind its context and an id of any length."""
    for i, own_id in enumerate(ids):
        yield hashlib.sha256(context + _id_bytes(own_id) + data[i * width : (i + 1) * width]).digest()


def _counted(values: Floats, unit: float) -> Floats:
    """Return values as whole multiples of a unit, halves to even; adding 0 makes -0 the 0 it is, NaN is one value."""
    counted = np.rint(values / unit) + 0.0
    missing = np.isnan(counted)
    return np.where(missing, np.nan, counted) if missing.any() else counted


def _bytes_of(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    """Return (n, ...) values as (n, bytes), little-endian."""
    typed = np.ascontiguousarray(values.astype(dtype))
    return typed.view(np.uint8).reshape(len(values), typed.nbytes // max(len(values), 1))


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
