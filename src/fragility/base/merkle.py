"""Merkle trees over row digests (RFC 6962, section 2.1): one root for many rows, and short proofs of single ones.

Leaves are 32-byte digests. Hashed as in the RFC, a leaf is SHA-256(0x00 || digest), a node SHA-256(0x01 || left ||
right), and a tree of n leaves splits at the largest power of two below n, which is the same as pairing neighbours level
by level and letting an odd last one rise. Rows of an audit are sorted as byte strings first, so that the root depends
neither on their order nor on how they were split into parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

DIGEST_BYTES = 32
BLOCK = 2**16  # leaves whose levels are held at a time; a power of two, so that each block is a node of the tree
LEAF, NODE = b"\x00", b"\x01"


def sorted_root(digests: Iterable[bytes]) -> bytes:
    """Return the root over digests in the order of their bytes, the same for every order they come in."""
    return packed_root(bytearray().join(digests))


def hashed_leaves(digests: Iterable[bytes]) -> bytes:
    """Return digests hashed as leaves, one after the other: what a root needs of them before all are known."""
    return _hash_leaves(b"".join(digests))


def root_of_hashed(digests: Iterable[bytes], leaves: bytes) -> bytes:
    """Return ``sorted_root`` of digests that are hashed as leaves already, in the same order."""
    order = np.argsort(np.frombuffer(b"".join(digests), dtype=f"S{DIGEST_BYTES}"))
    if len(order) == 0:
        return root_of(b"")
    return _climb(np.frombuffer(leaves, dtype=f"V{DIGEST_BYTES}")[order].tobytes())


def packed_root(digests: bytearray) -> bytes:
    """Return the root over digests that lie one after the other in one buffer, which is sorted in place."""
    if len(digests) % DIGEST_BYTES:
        raise ValueError(f"digests have {DIGEST_BYTES} bytes each, got {len(digests)} bytes")
    np.frombuffer(digests, dtype=f"S{DIGEST_BYTES}").sort()  # as bytes: no digest is shorter than another
    return root_of(digests)


def root_of(leaves: bytes | bytearray | memoryview) -> bytes:
    """Return the root over digests that lie one after the other in one buffer; SHA-256 of nothing for none."""
    view, tops = memoryview(leaves), bytearray()
    for start in range(0, len(view), BLOCK * DIGEST_BYTES):
        tops += _climb(_hash_leaves(view[start : start + BLOCK * DIGEST_BYTES]))
    return _climb(bytes(tops)) if tops else hashlib.sha256().digest()


def _climb(level: bytes) -> bytes:
    while len(level) > DIGEST_BYTES:
        level = _hash_level(level)
    return level


def inclusion_proof(leaves: Sequence[bytes], position: int) -> list[bytes]:
    """Return the nodes beside the way from a leaf to the root, lowest first (RFC 6962, 2.1.1)."""
    if not 0 <= position < len(leaves):
        raise IndexError(f"position {position} is outside the {len(leaves)} leaves")
    level = _hash_leaves(b"".join(leaves))
    proof = []
    while len(level) > DIGEST_BYTES:
        beside = position ^ 1
        if beside * DIGEST_BYTES < len(level):
            proof.append(level[beside * DIGEST_BYTES : (beside + 1) * DIGEST_BYTES])
        position //= 2
        level = _hash_level(level)
    return proof


def root_from_proof(leaf: bytes, position: int, count: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root that a proof leads to; None where no tree of so many leaves has a proof of this shape."""
    if not 0 <= position < count or len(leaf) != DIGEST_BYTES or any(len(node) != DIGEST_BYTES for node in proof):
        return None
    found, remaining = hashlib.sha256(LEAF + leaf).digest(), list(proof)
    while count > 1:
        beside = position ^ 1
        if beside < count:
            if not remaining:
                return None
            other = remaining.pop(0)
            left, right = (found, other) if beside > position else (other, found)
            found = hashlib.sha256(NODE + left + right).digest()
        position //= 2
        count = (count + 1) // 2
    return None if remaining else found


def _hash_leaves(leaves: bytes | bytearray | memoryview) -> bytes:
    if len(leaves) % DIGEST_BYTES:
        raise ValueError(f"digests have {DIGEST_BYTES} bytes each, got {len(leaves)} bytes")
    return _hash_pieces(LEAF, bytes(leaves), DIGEST_BYTES)


def _hash_level(level: bytes) -> bytes:
    paired = len(level) // (2 * DIGEST_BYTES) * 2 * DIGEST_BYTES
    return _hash_pieces(NODE, level[:paired], 2 * DIGEST_BYTES) + level[paired:]


def _hash_pieces(kind: bytes, data: bytes, width: int) -> bytes:
    """Return the digests of all pieces of one width, one after the other."""
    sha256 = hashlib.sha256  # looked up once: a tree over a million rows hashes two million times
    return b"".join([sha256(kind + data[i : i + width]).digest() for i in range(0, len(data), width)])
