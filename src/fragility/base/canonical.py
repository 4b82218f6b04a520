"""Canonical bytes and digests: the one place where values become bytes, and the Merkle trees over row digests.

Documents (protocols, manifests) become RFC 8785 canonical JSON in which every float is written as its exact
``float.hex()`` string and a missing float as ``null``, so that no two programs can disagree about the digits of a
number. Tables become one digest per row, combined without regard to order, so that the digest of a table does not
depend on row order, column order or the way it was split.

Trees (RFC 6962, section 2.1) give one root for many rows, and short proofs of single ones. Leaves are 32-byte digests.
Hashed as in the RFC, a leaf is SHA-256(0x00 || digest), a node SHA-256(0x01 || left || right), and a tree of n leaves
splits at the largest power of two below n, which is the same as pairing neighbours level by level and letting an odd
last one rise. Rows of an audit are sorted as byte strings first, so that the root depends neither on their order nor on
how they were split into parts.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import rfc8785

from fragility.base.errors import DataError

# --- Merkle trees ---------------------------------------------------------------------------------------------

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
    reached, remaining = hashlib.sha256(LEAF + leaf).digest(), list(proof)
    while count > 1:
        beside = position ^ 1
        if beside < count:
            if not remaining:
                return None
            other = remaining.pop(0)
            left, right = (reached, other) if beside > position else (other, reached)
            reached = hashlib.sha256(NODE + left + right).digest()
        position //= 2
        count = (count + 1) // 2
    return None if remaining else reached


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


# --- documents and tables -------------------------------------------------------------------------------------

DIGEST_PREFIX = "sha256:"
ROWS_AT_A_TIME = 50_000  # bounds the memory of a table's digest
FEW_ROWS = 8  # up to so many, a cell at a time is faster than a column
BLOCK_BYTES = 2**20  # of rows that are hashed while they are in cache
WORD = np.dtype("<u8")
CELL_WORDS = 4
CELL_BYTES = CELL_WORDS * WORD.itemsize
WHOLE_BITS = 53  # up to 2**53 every whole number is a float64
Words: TypeAlias = npt.NDArray[np.uint64]


class Texts(tuple[str, ...]):
    """A column of texts of which hardly any two are equal, such as ids: each is hashed for itself."""

    __slots__ = ()

    def __getitem__(self, rows: Any) -> Any:
        text = super().__getitem__(rows)
        return Texts(text) if isinstance(rows, slice) else text


def encode(value: Any) -> Any:
    """Return ``value`` with floats as hexadecimal strings and numpy scalars as Python ones.

    Numbers of RFC 8785 are doubles, so an integer from 2**53 on is written as text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if math.isnan(value) else value.hex()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**WHOLE_BITS else str(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, Sequence)):
        return [encode(item) for item in value]
    raise TypeError(f"cannot put a {type(value).__name__} into a canonical document: {value!r}")


def canonical_bytes(document: Any) -> bytes:
    """Return the canonical bytes of a JSON-like document (see the module's text)."""
    return rfc8785.dumps(encode(document))


def digest_bytes(data: bytes) -> str:
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def digest_of(document: Any) -> str:
    """Return ``sha256:<hex>`` of a document's canonical bytes."""
    return digest_bytes(canonical_bytes(document))


def combine_digests(digests: Iterable[bytes], leaves: bytes | None = None) -> str:
    """Return one digest over many, a Merkle root, the same for every order of them.

    leaves: the digests hashed as leaves of the tree, in the same order, where that was done before.
    """
    root = sorted_root(digests) if leaves is None else root_of_hashed(digests, leaves)
    return DIGEST_PREFIX + root.hex()


class _Numbers(NamedTuple):
    """A column of numbers; what float64 cannot hold is written over it."""

    words: Words  # (n,) bits of float64
    wide: npt.NDArray[np.int64]  # rows of whole numbers beyond 2**53
    exact: Words  # (len(wide), 4) their cells

    def write(self, out: Words, rows: slice) -> None:
        """Fill cells (m, 4), of which only the last word is not 0 before, with those of some rows."""
        out[:, -1] = self.words[rows]
        if len(self.wide):
            start, stop, _ = rows.indices(len(self.words))
            inside = (self.wide >= start) & (self.wide < stop)
            out[:, :-1] = 0
            out[self.wide[inside] - start] = self.exact[inside]


class _Texts(NamedTuple):
    """A column of anything else, by its distinct values."""

    table: Words  # (distinct, 4)
    codes: npt.NDArray[np.int64] | None  # (n,); None: every row has a cell of its own

    def write(self, out: Words, rows: slice) -> None:
        out[:] = self.table[rows] if self.codes is None else self.table[self.codes[rows]]


def _make_cells(values: Any) -> _Numbers | _Texts:
    """Return 32 bytes per value: a number by its float64 bits, everything else by the SHA-256 of its text.

    NaN, NaT and None are one value, "missing"; 0.0 and -0.0 are one value; 1, 1.0 and True are one value. A whole
    number that float64 cannot hold exactly goes by its digits.
    """
    if isinstance(values, Texts):
        return _Texts(_pack_words(_hash_distinct(values)), None)
    column = pd.Series(values)
    if pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        wide = np.flatnonzero(beyond_doubles(column))
        exact = _pack_words([_scalar_bytes(int(value)) for value in column.iloc[wide]])
        return _Numbers(_number_words(column.to_numpy(dtype=np.float64, na_value=np.nan)), wide, exact)
    codes, distinct = pd.factorize(column, use_na_sentinel=True)
    return _Texts(_pack_words([*_hash_distinct(distinct), _scalar_bytes(None)]), codes)


def _pack_words(cells: Sequence[bytes]) -> Words:
    return np.frombuffer(b"".join(cells), dtype=WORD).reshape(-1, CELL_WORDS)


def _hash_distinct(values: Any) -> list[bytes]:
    plain = list(values)
    if all(type(value) is str for value in plain):  # every row's id, for one: worth a shorter way to the same bytes
        sha256 = hashlib.sha256
        return [sha256(b"text:" + text.encode()).digest() for text in plain]
    return [_scalar_bytes(value) for value in plain]


def beyond_doubles(column: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which cells are whole numbers of magnitude above 2**53, where float64 no longer holds every one."""
    if not pd.api.types.is_integer_dtype(column.dtype):
        return np.zeros(len(column), dtype=bool)
    limit = 2**WHOLE_BITS
    return np.asarray(((column > limit) | (column < -limit)).to_numpy(dtype=bool, na_value=False))


def _number_words(values: npt.NDArray[np.float64]) -> Words:
    clean = np.where(np.isnan(values), np.nan, values + 0.0)
    return np.asarray(clean.astype("<f8").view(WORD))


def _scalar_bytes(value: Any) -> bytes:
    if is_missing(value):
        return _number_cell(np.nan)
    if isinstance(value, (bool, int, np.bool_, np.integer)) and not _fits_double(int(value)):
        return hashlib.sha256(b"integer:" + str(int(value)).encode()).digest()
    if isinstance(value, (bool, int, float, np.bool_, np.number)):
        return _number_cell(float(value))
    if isinstance(value, (dt.date, np.datetime64)):
        # The same text for a day held as a date, or as a timestamp of any unit, or written out.
        value = str(pd.Timestamp(value)).removesuffix(" 00:00:00")
    return hashlib.sha256(b"text:" + str(value).encode()).digest()


def _number_cell(value: float) -> bytes:
    return bytes(CELL_BYTES - 8) + struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)


def _fits_double(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def is_missing(value: Any) -> bool:
    """True for None, NaN, NaT and pandas.NA."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:  # pandas.NA has no truth value; it is the one scalar that compares to itself as unknown
        return True


def row_digests(columns: Mapping[str, Any]) -> list[bytes]:
    """Return one 32-byte digest per row, the same for every order of the columns."""
    try:
        return _hash_columns(columns)
    except UnicodeEncodeError as error:
        raise refuse_surrogate(error) from error


def refuse_surrogate(error: UnicodeEncodeError) -> DataError:
    """Return the refusal of a text that UTF-8 cannot hold, as JSON may have it: half of a pair of code units."""
    lone = error.object[error.start : error.end]
    return DataError(f"a text holds the lone surrogate {lone!r}, which no file can hold; replace that character")


def _hash_columns(columns: Mapping[str, Any]) -> list[bytes]:
    names = sorted(columns)
    head = _hash_names(tuple(names))
    n = len(columns[names[0]]) if names else 0
    if n <= FEW_ROWS:
        return _hash_few_rows(head, [columns[name] for name in names])
    out: list[bytes] = []
    for start in range(0, n, ROWS_AT_A_TIME):
        cells = [_make_cells(_slice_rows(columns[name], start, start + ROWS_AT_A_TIME)) for name in names]
        out += _hash_rows(head, cells, min(ROWS_AT_A_TIME, n - start))
    return out


@lru_cache(maxsize=64)
def _hash_names(names: tuple[str, ...]) -> bytes:
    return hashlib.sha256(canonical_bytes(names)).digest()


def _hash_few_rows(head: bytes, columns: Sequence[Any]) -> list[bytes]:
    """Return the digests of few rows, cell by cell: the same bytes, without the cost of whole columns."""
    plain = [column.tolist() if isinstance(column, pd.Series) else list(column) for column in columns]
    return [hashlib.sha256(head + b"".join(map(_scalar_bytes, row))).digest() for row in zip(*plain, strict=True)]


def _slice_rows(column: Any, start: int, stop: int) -> Any:
    # A Series with an index of decimals takes a plain slice for one of labels.
    return column.iloc[start:stop] if isinstance(column, pd.Series) else column[start:stop]


def _hash_rows(head: bytes, cells: Sequence[_Numbers | _Texts], n: int) -> Iterator[bytes]:
    """Yield the digest of each row of cells, made in blocks of rows that stay in the processor's cache."""
    size = max(1, BLOCK_BYTES // (CELL_BYTES * (1 + len(cells))))
    block = np.zeros((min(size, n), 1 + len(cells), CELL_WORDS), dtype=WORD)
    block[:, 0] = np.frombuffer(head, dtype=WORD)
    for start in range(0, n, size):
        rows = slice(start, min(start + size, n))
        part = block[: rows.stop - rows.start]
        for place, column in enumerate(cells, start=1):
            column.write(part[:, place], rows)
        yield from hash_pieces(part.reshape(-1).view(np.uint8).data, CELL_BYTES * (1 + len(cells)))


def hash_pieces(data: bytes | memoryview, width: int) -> list[bytes]:
    """Return the SHA-256 of each piece of so many bytes."""
    sha256 = hashlib.sha256  # looked up once: a million rows are hashed a million times
    return [sha256(data[i : i + width]).digest() for i in range(0, len(data), width)]


def table_digest(columns: Mapping[str, Any]) -> str:
    """Return the digest of a table: independent of row order, column order and partitioning."""
    return combine_digests(row_digests(columns))
