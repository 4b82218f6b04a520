"""Merkle roots and proofs against the recursive definitions of RFC 6962, section 2.1, written out here."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fragility.base.canonical import (
    BLOCK,
    hashed_leaves,
    inclusion_proof,
    packed_root,
    root_from_proof,
    root_of,
    root_of_hashed,
    sorted_root,
)

digests = st.lists(st.binary(min_size=32, max_size=32), min_size=0, max_size=70)


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def mth(entries: list[bytes]) -> bytes:
    if not entries:
        return sha(b"")
    if len(entries) == 1:
        return sha(b"\x00" + entries[0])
    k = split(len(entries))
    return sha(b"\x01" + mth(entries[:k]) + mth(entries[k:]))


def path(m: int, entries: list[bytes]) -> list[bytes]:
    if len(entries) == 1:
        return []
    k = split(len(entries))
    if m < k:
        return [*path(m, entries[:k]), mth(entries[k:])]
    return [*path(m - k, entries[k:]), mth(entries[:k])]


def split(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


@given(digests)
@settings(deadline=None)
def test_root_and_proofs_are_those_of_the_rfc(leaves: list[bytes]) -> None:
    assert root_of(b"".join(leaves)) == mth(leaves)
    for position, leaf in enumerate(leaves):
        proof = inclusion_proof(leaves, position)
        assert proof == path(position, leaves)
        assert root_from_proof(leaf, position, len(leaves), proof) == mth(leaves)


@given(digests)
@settings(deadline=None)
def test_leaves_hashed_beforehand_give_the_same_root(leaves: list[bytes]) -> None:
    assert root_of_hashed(leaves, hashed_leaves(leaves)) == sorted_root(leaves) == mth(sorted(leaves))


def test_published_root_of_one_empty_leaf() -> None:
    """RFC 6962's hash of a tree without leaves, and the tree over the empty leaf, are published constants."""
    assert root_of(b"").hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha(b"\x00").hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"


@given(digests, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_order_does_not_matter(leaves: list[bytes], shuffle: random.Random) -> None:
    mixed = list(leaves)
    shuffle.shuffle(mixed)
    assert sorted_root(mixed) == sorted_root(leaves)


@given(digests.filter(len), st.data())
@settings(deadline=None)
def test_a_changed_proof_leads_elsewhere(leaves: list[bytes], data: st.DataObject) -> None:
    leaves = sorted(set(leaves))
    position = data.draw(st.integers(0, len(leaves) - 1))
    proof = inclusion_proof(leaves, position)
    other = data.draw(st.binary(min_size=32, max_size=32).filter(lambda leaf: leaf != leaves[position]))
    root = root_of(b"".join(leaves))
    assert root_from_proof(other, position, len(leaves), proof) != root
    assert root_from_proof(leaves[position], position, len(leaves), [*proof, other]) is None
    if proof:
        assert root_from_proof(leaves[position], position, len(leaves), proof[:-1]) is None
        assert root_from_proof(leaves[position], position, len(leaves), [other, *proof[1:]]) != root


def test_what_no_tree_has() -> None:
    leaf = sha(b"x")
    assert root_from_proof(leaf, 1, 1, []) is None
    assert root_from_proof(leaf, -1, 2, [leaf]) is None
    assert root_from_proof(leaf[:5], 0, 1, []) is None
    assert root_from_proof(leaf, 0, 2, [leaf[:5]]) is None
    with pytest.raises(IndexError, match="outside"):
        inclusion_proof([leaf], 1)
    with pytest.raises(ValueError, match="32 bytes each"):
        root_of(b"abc")


def test_a_packed_buffer_has_the_root_of_its_digests():
    """Sorted in place, and in blocks of which each is a node of the tree."""
    for count in (0, 1, 2, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3):
        digests = [hashlib.sha256(str(i).encode()).digest() for i in range(count)]
        assert packed_root(bytearray(b"".join(digests))) == sorted_root(digests)
        if 0 < count < BLOCK + 2:
            assert packed_root(bytearray(b"".join(digests))) == naive_root(sorted(digests))
    assert packed_root(bytearray(b"\0" * 32 + b"\0" * 31 + b"\1")) == sorted_root([b"\0" * 31 + b"\1", b"\0" * 32])


def naive_root(leaves):
    """RFC 6962, section 2.1, as it stands there."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()
